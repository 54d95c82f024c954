# SPDX-License-Identifier: Apache-2.0
"""The base of tests that train: autograd sees what runs, from one seed on."""

import unittest

import numpy as np

from choir import autograd, device
from formulas import tensor_of

CPU = device.create_cpu_device()


class Training(unittest.TestCase):
    def setUp(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        CPU.SetRandSeed(1)

    def param(self, array):
        p = tensor_of(np.asarray(array, np.float64))
        p.stores_grad = True
        return p
