# SPDX-License-Identifier: Apache-2.0
"""How many OpenMP threads the program asked for stays its own affair: the same
after each call of Choir, with its tensors and devices alive or gone."""

import ctypes
import gc
import importlib.util
import os
import unittest

# Two: one would be the number that some kernels set while they run.
os.environ["CHOIR_THREADS"] = "2"

import numpy as np

import choir.device
from choir import autograd, layer, opt, tensor

HAS_TORCH = importlib.util.find_spec("torch") is not None


def train(dev):
    """Convolution, pooling and a matrix product, forward and back, and more
    products of shapes that different kernels take."""
    rng = np.random.default_rng(1)
    x = tensor.from_numpy(rng.standard_normal((32, 3, 12, 12)).astype("f4"))
    x.to_device(dev)
    labels = tensor.from_numpy((np.arange(32) % 10).astype("i4"))
    labels.to_device(dev)
    conv = layer.Conv2d(8, 3)
    pool = layer.MaxPool2d(2, 2)
    last = layer.Linear(10)
    autograd.training = True
    sgd = opt.SGD(0.1)
    for _ in range(2):
        y = last(autograd.flatten(pool(conv(x))))
        sgd(autograd.softmax_cross_entropy(y, labels))
    autograd.training = False
    for rows in (1, 5, 300):
        a = tensor.from_numpy(rng.standard_normal((rows, 700)).astype("f4"))
        b = tensor.from_numpy(rng.standard_normal((700, 600)).astype("f4"))
        a.to_device(dev)
        b.to_device(dev)
        found = tensor.to_numpy(tensor.mult(a, b))
        wanted = tensor.to_numpy(a) @ tensor.to_numpy(b)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    return y


class Threads(unittest.TestCase):
    def setUp(self):
        self.gomp = ctypes.CDLL("libgomp.so.1")

    def check_all(self, threads):
        """`threads` reads the number of threads; it must not change."""
        before = threads()
        for make in (
            choir.device.create_cpu_device,
            choir.device.get_default_device,
        ):
            dev = make()
            kept = train(dev)
            self.assertEqual(threads(), before)
            with self.assertRaises(Exception):
                tensor.mult(kept, kept)
            self.assertEqual(threads(), before)
            del dev, kept
            gc.collect()
            self.assertEqual(threads(), before)

    def test_openmp(self):
        for number in (1, 3, 4):
            self.gomp.omp_set_num_threads(number)
            self.assertEqual(self.gomp.omp_get_max_threads(), number)
            self.check_all(self.gomp.omp_get_max_threads)

    @unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
    def test_torch(self):
        import torch

        for number in (2, 3):
            torch.set_num_threads(number)
            self.check_all(torch.get_num_threads)


if __name__ == "__main__":
    unittest.main()
