# SPDX-License-Identifier: Apache-2.0
"""choir.model: mixed precision."""

import itertools
import unittest

import numpy as np

from choir import autograd, opt, tensor
from small_models import Net, Plain, made, samples


class Scaled(Plain):
    """The loss times a factor."""

    factor = 1.0

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.mse_loss(out, y) * self.factor
        self.optimizer(loss)
        return out, loss


def bf16(x):
    """Rounded to eight bits, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32)


class Precision(unittest.TestCase):
    def test_one_step_is_what_mathematics_says(self):
        rng = np.random.default_rng(5)
        x = rng.normal(size=(4, 5)).astype(np.float32)
        y = rng.normal(size=(4, 2)).astype(np.float32)
        m = made(Plain, optimizer=opt.SGD(lr=0.5), x=tensor.from_numpy(x))
        m.set_precision("bfloat16")
        w, b = (p.numpy() for p in m.get_params().values())
        out, _ = m(tensor.from_numpy(x), tensor.from_numpy(y))
        want = bf16(bf16(x) @ bf16(w) + bf16(b))
        self.assertEqual(out.dtype, tensor.float32)
        np.testing.assert_allclose(out.numpy(), want, rtol=2**-7)
        self.assertTrue((bf16(out.numpy()) == out.numpy()).all())
        # The loss is of out itself; its gradient is rounded for the products.
        dy = bf16(2 * (out.numpy() - y) / out.numpy().size)
        for p, before, grad in zip(
            m.get_params().values(), (w, b), (bf16(x).T @ dy, dy.sum(axis=0))
        ):
            self.assertEqual(p.dtype, tensor.float32)
            step = (before - p.numpy()) / 0.5
            np.testing.assert_allclose(step, grad, rtol=2**-7, atol=1e-6)

    def test_graph_and_eager_have_the_same_bits(self):
        steps = {}
        for use_graph, precision in itertools.product(
            (False, True), ("float32", tensor.bfloat16, "float16")
        ):
            m = made(use_graph=use_graph)
            m.set_precision(precision)
            for i in range(5):
                m(*samples(seed=i))
            steps[use_graph, precision] = m.digest()
            # Recorded anew where it changes.
            m.set_precision("float32")
            calls = m.calls
            m(*samples(seed=5))
            is_new = not use_graph or precision != "float32"
            self.assertEqual(m.calls - calls, int(is_new))
        for precision in ("float32", tensor.bfloat16, "float16"):
            self.assertEqual(steps[False, precision], steps[True, precision])
        self.assertEqual(len(set(steps.values())), 3)

    def test_small_and_large_gradients_pass_through_float16(self):
        """Of a loss times 2**n: float16 alone would have 0 or infinity."""
        rng = np.random.default_rng(6)
        x = tensor.from_numpy(rng.normal(size=(4, 5)).astype(np.float32))
        y = tensor.from_numpy(rng.normal(size=(4, 2)).astype(np.float32))
        grads = {}
        for power in (-29, 0, 60):
            m = made(Scaled, optimizer=opt.SGD(lr=2.0**-power), x=x)
            m.factor = 2.0**power
            m.set_precision("float16")
            before = m.l.W.numpy()
            m(x, y)
            grads[power] = before - m.l.W.numpy()
        m = made(Scaled, optimizer=opt.SGD(lr=1), x=x)
        before = m.l.W.numpy()
        m(x, y)
        wide = before - m.l.W.numpy()
        for power, grad in grads.items():
            np.testing.assert_array_equal(grad, grads[0], err_msg=f"2**{power}")
        np.testing.assert_allclose(grads[0], wide, rtol=5e-3, atol=1e-3)

    def test_inference_too(self):
        x, _ = samples()
        m = Plain()
        m.compile([x], is_train=False, precision="bfloat16")
        mixed = m(x).numpy()
        m.set_precision("float32")
        wide = m(x).numpy()
        self.assertTrue((bf16(mixed) == mixed).all())
        self.assertFalse((bf16(wide) == wide).all())
        np.testing.assert_allclose(mixed, wide, rtol=0.02, atol=0.02)

    def test_refuses(self):
        for precision in ("float64", "int32"):
            with self.assertRaisesRegex(ValueError, "or float16 is needed"):
                Net().set_precision(precision)


if __name__ == "__main__":
    unittest.main()
