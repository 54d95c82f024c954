# SPDX-License-Identifier: Apache-2.0
"""device.create_cpu_device(reproducible=True): one result for every number of
threads and on every instruction set, by recorded steps and without."""

import os
import pickle
import subprocess
import sys
import unittest

import numpy as np

from choir import autograd, device, layer, model, opt, tensor


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.conv = layer.Conv2d(6, 3, padding=1)
        self.norm = layer.BatchNorm2d()
        self.pool = layer.MaxPool2d(2, 2)
        self.last = layer.Linear(10)

    def forward(self, x):
        y = autograd.relu(self.norm(self.conv(x)))
        return self.last(autograd.flatten(self.pool(y)))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def train(use_graph):
    """The model's digest after some steps."""
    dev = device.create_cpu_device(reproducible=True)
    dev.SetRandSeed(3)
    rng = np.random.default_rng(1)
    with dev:
        x = tensor.from_numpy(rng.standard_normal((9, 3, 10, 10)).astype("f4"))
        y = tensor.from_numpy((np.arange(9) % 10).astype("i4"))
    net = Net()
    net.set_optimizer(opt.SGD(0.1, momentum=0.9))
    net.compile([x], is_train=True, use_graph=use_graph)
    for _ in range(4):
        net(x, y)
    return net.digest()


def train_elsewhere(isa, threads):
    environment = dict(
        os.environ, ONEDNN_MAX_CPU_ISA=isa, CHOIR_THREADS=str(threads)
    )
    done = subprocess.run(
        [sys.executable, __file__, "train"],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stdout)


class ReproducibleDevice(unittest.TestCase):
    def test_instruction_sets_and_threads(self):
        wanted = train(use_graph=True)
        for isa in "ALL", "AVX2", "SSE41":
            for threads in 1, 3:
                self.assertEqual(
                    train_elsewhere(isa, threads), wanted, (isa, threads)
                )

    def test_recorded_and_not(self):
        self.assertEqual(train(use_graph=True), train(use_graph=False))

    def test_is_another_device(self):
        dev = device.create_cpu_device(reproducible=True)
        self.assertIs(dev, device.create_cpu_device(reproducible=True))
        self.assertIsNot(dev, device.create_cpu_device())
        self.assertTrue(dev.reproducible)
        self.assertFalse(device.get_default_device().reproducible)
        self.assertIs(pickle.loads(pickle.dumps(dev)), dev)
        with dev:
            self.assertIs(device.get_default_device(), dev)
            x = tensor.from_numpy(np.arange(3, dtype="f4"))
        self.assertIs(x.device, dev)
        self.assertIs(pickle.loads(pickle.dumps(x)).device, dev)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        print(train(use_graph=True))
    else:
        unittest.main()
