# SPDX-License-Identifier: Apache-2.0
"""The same CNN by autograd's functions, without a model. Not a program by itself:
see mnist_multiprocess.py and mnist_dist.py."""

import time

import numpy as np

from choir import autograd, tensor
from choir.utils import RunLog, accuracy
from common import load_mnist, open_device, partition


class CNN:
    def __init__(self):
        self.conv1 = autograd.Conv2d(1, 20, 5, padding=0)
        self.conv2 = autograd.Conv2d(20, 50, 5, padding=0)
        self.linear1 = autograd.Linear(4 * 4 * 50, 500)
        self.linear2 = autograd.Linear(500, 10)
        self.pooling1 = autograd.MaxPool2d(2, 2, padding=0)
        self.pooling2 = autograd.MaxPool2d(2, 2, padding=0)

    def forward(self, x):
        y = self.conv1(x)
        y = autograd.relu(y)
        y = self.pooling1(y)
        y = self.conv2(y)
        y = autograd.relu(y)
        y = self.pooling2(y)
        y = autograd.flatten(y)
        y = self.linear1(y)
        y = autograd.relu(y)
        return self.linear2(y)


# Makes a parameter equal on all workers: the mean of theirs.
def synchronize(tensor_, dist_opt):
    dist_opt.all_reduce(tensor_.data)
    dist_opt.wait()
    tensor_ /= dist_opt.world_size


def train_mnist_cnn(sgd, options):
    """Trains on this worker's part of MNIST and prints, on rank 0, the results."""
    rank, world_size = sgd.global_rank, sgd.world_size
    dev = open_device(options, sgd.local_rank)
    dev.SetRandSeed(options.seed)
    np.random.seed(options.seed)
    batch_size = options.batch_size

    train_x, train_y, test_x, test_y = load_mnist(options)
    facts = {
        "training_samples": len(train_x),
        "evaluation_samples": len(test_x),
    }
    train_x, train_y = partition(train_x, train_y, rank, world_size)
    test_x, test_y = partition(test_x, test_y, rank, world_size)
    num_train_batch = len(train_x) // batch_size
    num_test_batch = len(test_x) // batch_size

    model = CNN()
    tx = tensor.Tensor((batch_size, 1, 28, 28), dev, tensor.float32)
    ty = tensor.Tensor((batch_size,), dev, tensor.int32)

    # One pass finds the parameters; then all workers begin with the same ones.
    autograd.training = True
    tx.copy_from_numpy(np.random.randn(*tx.shape).astype(np.float32))
    ty.copy_from_numpy(np.zeros(batch_size, np.int32))
    out = model.forward(tx)
    loss = autograd.softmax_cross_entropy(out, ty)
    for p, g in autograd.backward(loss):
        synchronize(p, sgd)

    states = {
        f"{name}.{key}": value
        for name, part in vars(model).items()
        for key, value in part.get_states().items()
    }
    facts.update(model="cnn", batch=batch_size * world_size)
    facts["last_step"] = options.epochs * num_train_batch
    log = RunLog(options.log_json, sgd, states, "images", **facts)

    for epoch in range(options.epochs):
        start = time.time()
        idx = np.random.permutation(len(train_x))
        if rank == 0:
            print("Starting Epoch %d:" % epoch)
        autograd.training = True
        train_correct, train_loss = np.zeros(1, np.float32), np.zeros(
            1, np.float32
        )
        with log:
            for b in range(num_train_batch):
                batch = idx[b * batch_size : (b + 1) * batch_size]
                tx.copy_from_numpy(train_x[batch])
                ty.copy_from_numpy(train_y[batch])
                out = model.forward(tx)
                loss = autograd.softmax_cross_entropy(out, ty)
                train_correct += accuracy(tensor.to_numpy(out), train_y[batch])
                train_loss += tensor.to_numpy(loss)[0]
                log.count(batch_size)
                if options.dist_option in ("fp32", "plain"):
                    sgd.backward_and_update(loss)
                elif options.dist_option in ("fp16", "half"):
                    sgd.backward_and_update_half(loss)
                elif options.dist_option == "partialUpdate":
                    sgd.backward_and_partial_update(loss)
                elif options.dist_option in ("sparseTopK", "sparseThreshold"):
                    sgd.backward_and_sparse_update(
                        loss,
                        spars=options.spars,
                        topK=options.dist_option == "sparseTopK",
                    )
                else:
                    sgd.step_with(loss, options.dist_option)
        sgd.communicator.all_reduce(train_correct, name="training accuracy")
        sgd.communicator.all_reduce(train_loss, name="training loss")
        accuracies = {
            "training_accuracy": train_correct[0]
            / (num_train_batch * batch_size * world_size)
        }
        if rank == 0:
            print(
                "Training loss = %f, training accuracy = %f"
                % (train_loss[0], accuracies["training_accuracy"]),
                flush=True,
            )

        # Strategies that let replicas differ make them equal here.
        sgd.consolidate()
        autograd.training = False
        test_correct = np.zeros(1, np.float32)
        for b in range(num_test_batch):
            tx.copy_from_numpy(test_x[b * batch_size : (b + 1) * batch_size])
            target = test_y[b * batch_size : (b + 1) * batch_size]
            test_correct += accuracy(tensor.to_numpy(model.forward(tx)), target)
        sgd.communicator.all_reduce(test_correct, name="evaluation accuracy")
        accuracies["evaluation_accuracy"] = test_correct[0] / (
            num_test_batch * batch_size * world_size
        )
        if rank == 0:
            print(
                "Evaluation accuracy = %f, Elapsed Time = %fs"
                % (accuracies["evaluation_accuracy"], time.time() - start),
                flush=True,
            )
        log.write(
            (epoch + 1) * num_train_batch,
            epoch=epoch,
            loss=train_loss[0] / (num_train_batch * world_size),
            training_loss=train_loss[0],
            **accuracies,
        )
