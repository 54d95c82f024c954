# SPDX-License-Identifier: Apache-2.0
"""A CNN as a model.Model, and a training run with it. Not a program by itself:
see train_multiprocess.py and train_mpi.py."""

import time

import numpy as np

from choir import layer, model, sonnx, tensor
from choir.utils import accuracy
from common import load_mnist, open_device, partition


class CNN(model.Model):
    def __init__(self, num_classes=10, num_channels=1):
        super().__init__()
        self.conv1 = layer.Conv2d(
            num_channels, 20, 5, padding=0, activation="RELU"
        )
        self.conv2 = layer.Conv2d(20, 50, 5, padding=0, activation="RELU")
        self.linear1 = layer.Linear(500)
        self.linear2 = layer.Linear(num_classes)
        self.pooling1 = layer.MaxPool2d(2, 2, padding=0)
        self.pooling2 = layer.MaxPool2d(2, 2, padding=0)
        self.relu = layer.ReLU()
        self.flatten = layer.Flatten()
        self.softmax_cross_entropy = layer.SoftMaxCrossEntropy()

    def forward(self, x):
        y = self.conv1(x)
        y = self.pooling1(y)
        y = self.conv2(y)
        y = self.pooling2(y)
        y = self.flatten(y)
        y = self.linear1(y)
        y = self.relu(y)
        return self.linear2(y)

    def train_one_batch(self, x, y, dist_option="fp32", spars=0):
        out = self.forward(x)
        loss = self.softmax_cross_entropy(out, y)
        if dist_option in ("fp32", "plain"):
            self.optimizer(loss)
        elif dist_option in ("fp16", "half"):
            self.optimizer.backward_and_update_half(loss)
        elif dist_option == "partialUpdate":
            self.optimizer.backward_and_partial_update(loss)
        elif dist_option == "sparseTopK":
            self.optimizer.backward_and_sparse_update(
                loss, topK=True, spars=spars
            )
        elif dist_option == "sparseThreshold":
            self.optimizer.backward_and_sparse_update(
                loss, topK=False, spars=spars
            )
        else:
            self.optimizer.step_with(loss, dist_option)
        return out, loss


def run(sgd, options):
    """Trains on this worker's part of MNIST and prints, on rank 0, the results."""
    rank, world_size = sgd.global_rank, sgd.world_size
    dev = open_device(options, sgd.local_rank)
    dev.SetRandSeed(options.seed)
    np.random.seed(options.seed)
    batch_size = options.batch_size

    train_x, train_y, test_x, test_y = load_mnist(options)
    train_x, train_y = partition(train_x, train_y, rank, world_size)
    test_x, test_y = partition(test_x, test_y, rank, world_size)
    num_train_batch = len(train_x) // batch_size
    num_test_batch = len(test_x) // batch_size

    tx = tensor.Tensor((batch_size, 1, 28, 28), dev, tensor.float32)
    ty = tensor.Tensor((batch_size,), dev, tensor.int32)
    m = CNN()
    m.set_optimizer(sgd)
    m.compile(
        [tx], is_train=True, use_graph=not options.no_graph, sequential=True
    )

    for epoch in range(options.epochs):
        start = time.time()
        idx = np.random.permutation(len(train_x))
        if rank == 0:
            print("Starting Epoch %d:" % epoch)
        train_correct, train_loss = np.zeros(1, np.float32), np.zeros(
            1, np.float32
        )
        m.train()
        for b in range(num_train_batch):
            batch = idx[b * batch_size : (b + 1) * batch_size]
            tx.copy_from_numpy(train_x[batch])
            ty.copy_from_numpy(train_y[batch])
            out, loss = m(tx, ty, options.dist_option, options.spars)
            train_correct += accuracy(tensor.to_numpy(out), train_y[batch])
            train_loss += tensor.to_numpy(loss)[0]
        sgd.communicator.all_reduce(train_correct, name="training accuracy")
        sgd.communicator.all_reduce(train_loss, name="training loss")
        if rank == 0:
            print(
                "Training loss = %f, training accuracy = %f"
                % (
                    train_loss[0],
                    train_correct[0]
                    / (num_train_batch * batch_size * world_size),
                ),
                flush=True,
            )

        # Strategies that let replicas differ make them equal here.
        sgd.consolidate()
        m.eval()
        test_correct = np.zeros(1, np.float32)
        for b in range(num_test_batch):
            tx.copy_from_numpy(test_x[b * batch_size : (b + 1) * batch_size])
            target = test_y[b * batch_size : (b + 1) * batch_size]
            test_correct += accuracy(tensor.to_numpy(m(tx)), target)
        sgd.communicator.all_reduce(test_correct, name="evaluation accuracy")
        if rank == 0:
            print(
                "Evaluation accuracy = %f, Elapsed Time = %fs"
                % (
                    test_correct[0]
                    / (num_test_batch * batch_size * world_size),
                    time.time() - start,
                ),
                flush=True,
            )

    # Equal for equal bits, on all workers and from run to run.
    digest = m.digest()
    sgd.check_digest(digest)
    if rank == 0:
        print("digest = %016x" % digest, flush=True)
    if rank == 0 and options.onnx:
        sonnx.to_onnx([tx], m, path=options.onnx)
