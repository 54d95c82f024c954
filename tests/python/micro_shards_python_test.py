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


def trained(
    rank, size, nccl_id, use_graph, make=Net, option="fp32", **settings
):
    dist.init(nccl_id, rank, size, deadline=25.0)
    dev = device.create_cpu_device(reproducible=True)
    dev.SetRandSeed(7)
    net = make()
    with dev:
        sgd = opt.DistOpt(
            opt.SGD(lr=0.05, momentum=0.9), micro_shard=SHARD, **settings
        )
        sgd.use(option)
        net.set_optimizer(sgd)
        net.compile([tensor.Tensor((2, 3, 8, 8))], True, use_graph)
        first, count = sum(PARTS[size][:rank]), PARTS[size][rank]
        for step in range(STEPS):
            net(*batch(step, first, count))
    return net.digest()


def trained_in_shards(rank, size, nccl_id, option, shard):
    return trained(rank, size, nccl_id, True, Net, option, shard=shard)


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


class Line(model.Model):
    def __init__(self):
        super().__init__()
        self.line = layer.Linear(1, bias=False)

    def forward(self, x):
        return self.line(x)

    def train_one_batch(self, x, y):
        loss = autograd.mse_loss(self.forward(x), y)
        self.optimizer(loss)
        return loss


# Of each rank's 32 samples, and of a rank without any.
LINE_PARTS = {1: (32,), 2: (18, 14), 3: (8, 16, 8), 4: (3, 0, 20, 9)}


def line_samples():
    """Products that f32 adds up without an error, and 16 bits do not."""
    draw = np.random.RandomState(3)
    x = draw.randint(-30, 31, (32, 7)).astype(np.float32)
    return x, draw.randint(-30, 31, (32, 1)).astype(np.float32)


def line_step(rank, size, nccl_id, option):
    """The weights after a step from 0 with lr 1: minus the gradient."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    dev = device.create_cpu_device(reproducible=True)
    net = Line()
    with dev:
        sgd = opt.DistOpt(opt.SGD(lr=1.0), micro_shard=1)
        sgd.use(option)
        net.set_optimizer(sgd)
        net.compile([tensor.Tensor((2, 7))], True, False)
        (weights,) = net.get_params().values()
        weights.copy_from_numpy(np.zeros(weights.shape, np.float32))
        first = sum(LINE_PARTS[size][:rank])
        part = slice(first, first + LINE_PARTS[size][rank])
        x, y = (tensor.from_numpy(a[part]) for a in line_samples())
        x.batch, x.first_in_step = (first, LINE_PARTS[size][rank], 32, 1), first
        net(x, y)
        return tensor.to_numpy(weights).ravel().tolist()


def bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def fp16(x):
    return (x * 128).astype(np.float16).astype(np.float32) / 128


def line_root(round_to):
    """The definition: 32 leaves, of which 16 nodes of two are rounded, and all
    sums of those."""
    x, y = line_samples()
    nodes = list((-2 * x * y / 32).reshape(16, 2, 7).sum(axis=1))
    nodes = [round_to(node) for node in nodes]
    while len(nodes) > 1:
        nodes = [round_to(a + b) for a, b in zip(nodes[::2], nodes[1::2])]
    return nodes[0]


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

    def test_16_bits(self):
        for option in "bf16", "fp16":
            wanted = ranks.results(1, trained, False, Net, option)[0]
            self.assertNotEqual(wanted, ranks.results(1, trained, False)[0])
            for size in PARTS:
                for shard in False, True:
                    found = ranks.results(
                        size, trained_in_shards, option, shard
                    )
                    self.assertEqual(
                        set(found), {wanted}, (size, option, shard)
                    )

    def test_16_bits_are_rounded_from_one_level_on(self):
        exact = line_root(lambda x: x)
        for option, round_to in ("bf16", bf16), ("fp16", fp16), ("fp32", None):
            wanted = line_root(round_to) if round_to else exact
            if round_to:
                self.assertFalse(np.array_equal(wanted, exact))
            for size in LINE_PARTS:
                for found in ranks.results(size, line_step, option):
                    self.assertEqual(found, (-wanted).tolist(), (option, size))

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
