# SPDX-License-Identifier: Apache-2.0
"""DistOpt(micro_shard=...) on a reproducible device: the same bits for any number
of workers, by recorded steps and without (docs/reproducible.md)."""

import unittest

import numpy as np

import ranks
from choir import autograd, data, device, dist, layer, model, opt, tensor

SAMPLES, SHARD, STEPS = 22, 2, 4
# Of each rank; the last of four has none.
PARTS = {1: (22,), 2: (12, 10), 3: (8, 8, 6), 4: (14, 2, 6, 0)}


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.conv = layer.Conv2d(6, 3, padding=1)
        self.norm = layer.BatchNorm2d(sync=True)
        self.pool = layer.MaxPool2d(2, 2)
        self.drop = layer.Dropout(0.3)
        self.last = layer.Linear(5)

    def forward(self, x):
        y = self.pool(autograd.relu(self.norm(self.conv(x))))
        return self.last(self.drop(autograd.flatten(y)))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def batch(step, first, count):
    """Of these samples of a step, whose place among all is known."""
    draw = np.random.RandomState(step)
    x = draw.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32)
    y = draw.randint(0, 5, SAMPLES).astype(np.int32)
    part = slice(first, first + count)
    found = tensor.from_numpy(x[part]), tensor.from_numpy(y[part])
    found[0].batch = (first, count, SAMPLES, step + 1)
    found[0].first_in_step = first
    return found


def trained(rank, size, nccl_id, use_graph, make=Net):
    dist.init(nccl_id, rank, size, deadline=25.0)
    dev = device.create_cpu_device(reproducible=True)
    dev.SetRandSeed(7)
    net = make()
    with dev:
        sgd = opt.SGD(lr=0.05, momentum=0.9)
        net.set_optimizer(opt.DistOpt(sgd, micro_shard=SHARD))
        net.compile([tensor.Tensor((2, 3, 8, 8))], True, use_graph)
        first, count = sum(PARTS[size][:rank]), PARTS[size][rank]
        for step in range(STEPS):
            net(*batch(step, first, count))
    return net.digest()


def trained_by_loader(rank, size, nccl_id):
    """The last batch is short, so that some workers have no sample of it."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    dev = device.create_cpu_device(reproducible=True)
    dev.SetRandSeed(7)
    net = Net()
    with dev:
        sgd = opt.DistOpt(opt.SGD(lr=0.05), micro_shard=4)
        net.set_optimizer(sgd)
        net.compile([tensor.Tensor((2, 3, 8, 8))], True, True)
        images = data.synthetic(53, (3, 8, 8), 5)
        loader = data.Loader(
            images, rank=rank, size=size, global_batch=24, micro_shard=4
        )
        for _ in range(2):
            for x, y in loader:
                net(x, y)
    return net.digest()


class PlainNorm(Net):
    def __init__(self):
        super().__init__()
        self.norm = layer.BatchNorm2d()


class MicroShardsTest(unittest.TestCase):
    def test_any_number_of_workers(self):
        wanted = ranks.results(1, trained, False)[0]
        for size in PARTS:
            for use_graph in False, True:
                found = ranks.results(size, trained, use_graph)
                self.assertEqual(set(found), {wanted}, (size, use_graph))

    def test_loaders(self):
        wanted = ranks.results(1, trained_by_loader)[0]
        for size in 2, 3, 4:
            found = ranks.results(size, trained_by_loader)
            self.assertEqual(set(found), {wanted}, size)

    def test_norm_of_own_samples(self):
        with self.assertRaisesRegex(AssertionError, "with micro-shards"):
            ranks.results(2, trained, False, PlainNorm)


if __name__ == "__main__":
    unittest.main()
