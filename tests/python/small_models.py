# SPDX-License-Identifier: Apache-2.0
"""Small models and their batches, for the tests of choir.model."""

import os
import unittest

import numpy as np

from choir import autograd, device, layer, model, opt, tensor

DEV = device.create_cpu_device()


def path(name):
    return os.path.join(os.environ["TEST_TMPDIR"], name)


class Base(unittest.TestCase):
    def same(self, a, b):
        self.assertEqual(a.digest(), b.digest())


def samples(n=6, features=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    y = (np.arange(n) % classes).astype(np.int32)
    return tensor.from_numpy(x), tensor.from_numpy(y)


class Net(model.Model):
    """Linear, BatchNorm, ReLU, Dropout, Linear."""

    def __init__(self, hidden=8, classes=3, ratio=0.3):
        super().__init__()
        self.l1 = layer.Linear(hidden)
        self.bn = layer.BatchNorm2d()
        self.drop = layer.Dropout(ratio)
        self.l2 = layer.Linear(classes)
        self.calls = 0
        self.failure = None
        self.fails_late = False

    def forward(self, x):
        return self.l2(self.drop(autograd.relu(self.bn(self.l1(x)))))

    def train_one_batch(self, x, y, scale=1.0):
        self.calls += 1
        if self.failure is not None and not self.fails_late:
            raise self.failure
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        if self.failure is not None:
            raise self.failure
        if scale != 1.0:
            loss = loss * scale
        self.optimizer(loss)
        return out, loss


class Plain(model.Model):
    """One Linear layer; the loss is the mean square."""

    def __init__(self, out=2):
        super().__init__()
        self.l = layer.Linear(out)

    def forward(self, x):
        return self.l(x)

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.mse_loss(out, y)
        self.optimizer(loss)
        return out, loss


def made(cls=Net, use_graph=False, x=None, optimizer=None, seed=3, **settings):
    DEV.SetRandSeed(seed)
    m = cls(**settings)
    m.set_optimizer(optimizer or opt.SGD(lr=0.1, momentum=0.9))
    m.compile([samples()[0] if x is None else x], True, use_graph)
    return m
