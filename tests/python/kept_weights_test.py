# SPDX-License-Identifier: Apache-2.0
"""Predictions after weights have changed: what a kernel kept of the former ones must
not be used."""

import ctypes
import unittest

import numpy as np

from choir import autograd, layer, model, opt, tensor
from small_models import Base, path


class Conv(model.Model):
    """Wide enough for a library to order its weights anew."""

    def __init__(self):
        super().__init__()
        self.conv1 = layer.Conv2d(32, 3, padding=1)
        self.conv2 = layer.Conv2d(32, 3, padding=1, bias=False)
        self.head = layer.Linear(3)

    def forward(self, x):
        y = autograd.relu(self.conv2(autograd.relu(self.conv1(x))))
        return self.head(autograd.flatten(y))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def batch(n=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 32, 8, 8)).astype(np.float32)
    return tensor.from_numpy(x), tensor.from_numpy(
        (np.arange(n) % 3).astype(np.int32)
    )


class KeptWeights(Base):
    def made(self, use_graph=False):
        m = Conv()
        m.set_optimizer(opt.SGD(lr=0.1, momentum=0.9))
        m.compile([self.x], is_train=False, use_graph=use_graph)
        return m

    def setUp(self):
        self.x, self.y = batch()

    def expect_as_fresh(self, m, what):
        """Several predictions are those of a model that is made of the states."""
        fresh = self.made()
        fresh.set_states(
            {n: tensor.to_numpy(t) for n, t in m.get_states().items()}
        )
        m.eval()
        expected = tensor.to_numpy(fresh(self.x))
        for i in range(3):
            found = tensor.to_numpy(m(self.x))
            self.assertTrue((found == expected).all(), f"{what}, call {i}")
        return expected

    def test_training_between_predictions(self):
        for use_graph in (False, True):
            m = self.made(use_graph)
            seen = []
            for step in range(4):
                seen.append(self.expect_as_fresh(m, f"{use_graph} {step}"))
                m.train()
                m(self.x, self.y)
            for a, b in zip(seen, seen[1:]):
                self.assertFalse((a == b).all())

    def test_writes_by_hand(self):
        m = self.made()
        first = self.expect_as_fresh(m, "as made")
        w, self.number = m.conv1.W, 4
        other = np.random.default_rng(3).normal(size=w.shape)
        other = other.astype(np.float32)

        def one_filter():
            tensor.copy_data_to_from(w, tensor.from_numpy(other), 9, 18, 27)

        def by_dlpack():  # as a library does that ignores NumPy's flag
            place = np.from_dlpack(w).ctypes.data
            ctypes.c_float.from_address(place).value = self.number
            self.number += 1

        ways = {
            "copy_from_numpy": lambda: w.copy_from_numpy(other),
            "copy_from": lambda: w.copy_from(tensor.from_numpy(2 * other)),
            "set_value": lambda: w.set_value(0.25),
            "gaussian": lambda: w.gaussian(0, 1),
            "in place": lambda: w.__iadd__(tensor.from_numpy(other)),
            "a part": one_filter,
            "set_params": lambda: m.set_params({"conv1.W": other + 1}),
            "dlpack": by_dlpack,
            "dlpack again": by_dlpack,
        }
        for name, write in ways.items():
            before = tensor.to_numpy(w).copy()
            write()
            self.assertFalse((tensor.to_numpy(m.conv1.W) == before).all(), name)
            self.expect_as_fresh(m, name)
        self.assertFalse((first == self.expect_as_fresh(m, "last")).all())

    def test_files(self):
        m, other = self.made(), self.made()
        for name, t in other.get_params().items():
            t.gaussian(0, 0.3)
        other.save_states(path("other.zip"))
        for _ in range(3):
            m(self.x)
        m.load_states(path("other.zip"))
        found = self.expect_as_fresh(m, "loaded")
        self.assertTrue((found == tensor.to_numpy(other(self.x))).all())

    def test_two_models_on_one_parameter(self):
        one, two = self.made(), self.made()
        two.conv1, two.conv2 = one.conv1, one.conv2
        for step in range(3):
            self.expect_as_fresh(one, f"one {step}")
            self.expect_as_fresh(two, f"two {step}")
            one.train()
            one(self.x, self.y)

    def test_batches_of_other_sizes(self):
        m = self.made()
        for n in (1, 2, 3, 5, 1, 3, 2, 2, 1):
            self.x, _ = batch(n, seed=n)
            self.expect_as_fresh(m, f"{n} samples")


if __name__ == "__main__":
    unittest.main()
