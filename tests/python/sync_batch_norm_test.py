# SPDX-License-Identifier: Apache-2.0
"""layer.BatchNorm2d(sync=True): ranks with uneven batches against a single process
that has the whole batch."""

import unittest

import numpy as np

import ranks
from choir import StateError, autograd, device, dist
from choir import layer, model, opt, tensor
from choir.tensor import Tensor

# Samples of each rank, in turn; the last rank of three has none.
PARTS = {1: (12,), 2: (7, 5), 3: (5, 7, 0)}
SAMPLES = 12
STEPS = 6


class Net(model.Model):
    def __init__(self, sync):
        super().__init__()
        self.conv = layer.Conv2d(4, 3, bias=False)
        self.norm = layer.BatchNorm2d(momentum=0.3, sync=sync)
        self.flat = layer.Flatten()
        self.fc = layer.Linear(6, bias=False)
        self.row_norm = layer.BatchNorm2d(sync=sync)
        self.out = layer.Linear(4)
        self.loss = layer.SoftMaxCrossEntropy()

    def forward(self, x):
        x = autograd.relu(self.norm(self.conv(x)))
        return self.out(self.row_norm(self.fc(self.flat(x))))

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = self.loss(out, y)
        self.optimizer(loss)
        return out, loss


def batch(step, first, count):
    """Mean and spread grow with the sample, so that ranks have unlike moments."""
    draw = np.random.RandomState(step).uniform(-1, 1, (SAMPLES, 2, 5, 5))
    sample = np.arange(SAMPLES).reshape(-1, 1, 1, 1)
    x = (draw * (1 + sample / 4) + 2 * sample).astype(np.float32)
    y = ((np.arange(SAMPLES) * 3 + step) % 4).astype(np.int32)
    part = slice(first, first + count)
    return x[part], y[part]


def trained(optimizer, sync, parts, rank, use_graph, dtype):
    """What the parameters, averages and, of one more prediction, outputs are."""
    device.get_default_device().SetRandSeed(3)
    m = Net(sync)
    m.set_optimizer(optimizer)
    m.compile([Tensor((2, 2, 5, 5), dtype=dtype)], True, use_graph)
    count, first = parts[rank], sum(parts[:rank])
    for step in range(STEPS):
        x, y = batch(step, first, count)
        if not count:
            x, y = np.zeros((0, 2, 5, 5), np.float32), np.zeros(0, np.int32)
        m(tensor.from_numpy(x).as_type(dtype), tensor.from_numpy(y))
    m.eval()
    found = {name: t.numpy() for name, t in m.get_states().items()}
    x = tensor.from_numpy(batch(99, 0, SAMPLES)[0]).as_type(dtype)
    found["out"] = m(x).numpy()
    return found


def on_ranks(rank, size, nccl_id, *how):
    dist.init(nccl_id, rank, size, deadline=25.0)
    sgd = opt.DistOpt(opt.SGD(lr=0.05, momentum=0.9))
    return trained(sgd, True, PARTS[size], rank, *how)


class SyncBatchNormTest(unittest.TestCase):
    def test_ranks_train_as_one(self):
        for dtype, tolerance in (("float32", 5e-5), ("float64", 1e-11)):
            sgd = opt.SGD(lr=0.05, momentum=0.9)
            want = trained(sgd, False, PARTS[1], 0, False, dtype)
            for size in PARTS:
                for use_graph in (False, True):
                    found = ranks.results(size, on_ranks, use_graph, dtype)
                    with self.subTest(size=size, graph=use_graph, dtype=dtype):
                        self.compare(found, want, tolerance)

    def compare(self, found, want, tolerance):
        for rank, own in enumerate(found):
            self.assertEqual(own.keys(), want.keys())
            for name, value in own.items():
                where = f"{name} of rank {rank}"
                np.testing.assert_allclose(
                    value, want[name], tolerance, tolerance, err_msg=where
                )
                np.testing.assert_array_equal(value, found[0][name], where)

    def test_needs_a_dist_opt(self):
        m = Net(True)
        m.set_optimizer(opt.SGD(lr=0.1))
        x, y = map(tensor.from_numpy, batch(0, 0, 4))
        m.compile([x], True, False)
        with self.assertRaisesRegex(
            StateError, "norm has the setting sync, .*; needs a DistOpt"
        ):
            m(x, y)

    def test_needs_a_step(self):
        norm = layer.BatchNorm2d(sync=True)
        x = tensor.from_numpy(batch(0, 0, 4)[0])
        with autograd.no_grad():
            norm(x)
        autograd.training = True
        try:
            with self.assertRaisesRegex(
                StateError, "sync=True is for training"
            ):
                norm(x)
        finally:
            autograd.training = False


if __name__ == "__main__":
    unittest.main()
