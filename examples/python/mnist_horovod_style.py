# SPDX-License-Identifier: Apache-2.0
"""Trains on MNIST with choir.dist, step by step as scripts for Horovod do.

python3 -m choir -np 2 mnist_horovod_style.py --epochs 2
"""

import argparse
import os

from choir import data, device, dist, layer, model, opt, tensor

_HERE = os.path.dirname(os.path.abspath(__file__))


class Net(model.Model):
    """The network of the Keras MNIST script."""

    def __init__(self):
        super().__init__()
        self.conv1 = layer.Conv2d(32, 3, activation="RELU")
        self.conv2 = layer.Conv2d(64, 3, activation="RELU")
        self.pool = layer.MaxPool2d(2)
        self.dropout1 = layer.Dropout(0.25)
        self.flatten = layer.Flatten()
        self.linear1 = layer.Linear(128)
        self.relu = layer.ReLU()
        self.dropout2 = layer.Dropout(0.5)
        self.linear2 = layer.Linear(10)
        self.softmax_cross_entropy = layer.SoftMaxCrossEntropy()

    def forward(self, x):
        x = self.pool(self.conv2(self.conv1(x)))
        x = self.flatten(self.dropout1(x))
        x = self.dropout2(self.relu(self.linear1(x)))
        return self.linear2(x)

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = self.softmax_cross_entropy(out, y)
        self.optimizer(loss)
        return out, loss


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--batch-size", type=int, default=128, help="of each worker"
    )
    parser.add_argument(
        "--lr", type=float, default=1.0, help="of one worker; 1.0"
    )
    parser.add_argument(
        "--data",
        default=os.path.join(_HERE, "..", "data", "mnist"),
        help="folder with MNIST's four files",
    )
    parser.add_argument(
        "--limit", type=int, default=0, help="images of each split; all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fp16", action="store_true", help="gradients travel as float16"
    )
    parser.add_argument(
        "--checkpoint", help="file that rank 0 writes after each epoch"
    )
    return parser.parse_args()


def hits(out, y):
    return int((out.numpy().argmax(axis=1) == y.numpy()).sum())


def main():
    options = parse()

    # 1. Join the other workers.
    dist.init()

    # 2. A device for each worker of a host.
    if device.get_num_gpus() > dist.local_rank():
        dev = device.create_cuda_gpu_on(dist.local_rank())
    else:
        dev = device.create_cpu_device()
    dev.SetRandSeed(options.seed)

    # 3. The learning rate grows with the batch, which grows with the workers.
    lr = dist.scale_lr(options.lr)

    # 4. Gradients are averaged over workers before each update.
    compression = (
        dist.Compression.fp16 if options.fp16 else dist.Compression.none
    )
    optimizer = dist.DistributedOptimizer(
        opt.Adadelta(lr=lr), compression=compression
    )

    # 5. Each worker has its own part of the samples.
    def loader(split, **settings):
        return data.Loader(
            data.mnist(options.data, split, options.limit),
            options.batch_size,
            dist.rank(),
            dist.size(),
            device=dev,
            seed=options.seed,
            **settings,
        )

    train, test = loader("train"), loader("test", shuffle=False)

    # 6. All begin with rank 0's parameters.
    net = Net()
    net.set_optimizer(optimizer)
    net.compile([tensor.Tensor((1, 1, 28, 28), dev)], use_graph=True)
    dist.broadcast_parameters(net)

    for epoch in range(options.epochs):
        net.train()
        seen = right = 0
        loss_sum = 0.0
        for batch in train:
            result = net(batch.x, batch.y)
            if result is None:
                continue  # the others' last samples
            out, loss = result
            seen += batch.sample_count
            right += hits(out, batch.y)
            loss_sum += float(loss) * batch.sample_count

        net.eval()
        test_seen = test_right = 0
        for batch in test:
            if batch.sample_count:
                test_right += hits(net(batch.x), batch.y)
                test_seen += batch.sample_count

        # 7. Metrics are averaged, each worker's by its samples.
        means = dist.average_metrics(
            {"loss": loss_sum / max(seen, 1), "accuracy": right / max(seen, 1)},
            weight=seen,
        )
        accuracy = dist.average_metrics(
            {"accuracy": test_right / max(test_seen, 1)}, weight=test_seen
        )["accuracy"]

        # 8. Only rank 0 prints and writes files.
        if dist.rank() == 0:
            print(
                "epoch = %d, workers = %d, training loss = %.4f, "
                "training accuracy = %.4f, test accuracy = %.4f"
                % (
                    epoch,
                    dist.size(),
                    means["loss"],
                    means["accuracy"],
                    accuracy,
                ),
                flush=True,
            )
            if options.checkpoint:
                net.save_checkpoint(options.checkpoint, epoch=str(epoch + 1))
    dist.shutdown()


if __name__ == "__main__":
    main()
