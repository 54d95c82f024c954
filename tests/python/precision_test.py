# SPDX-License-Identifier: Apache-2.0
"""choir.model: mixed precision."""

import itertools
import os
import tempfile
import unittest

import numpy as np

from choir import StateError, autograd, opt, tensor

from small_models import DEV, Net, Plain, made, samples


class Scaled(Plain):
    """The loss times a factor."""

    factor = 1.0

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.mse_loss(out, y) * self.factor
        self.optimizer(loss)
        return out, loss


class Manual(Net):
    """Updates its parameters one by one."""

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        for p, grad in autograd.backward(loss):
            self.optimizer.apply(p.name, p, grad)
        return loss, loss


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

    def test_auto_leaves_nothing_of_what_it_measures(self):
        for use_graph in (False, True):
            runs = {}
            for precision in ("auto", "float32", "bfloat16"):
                m = made(use_graph=use_graph)
                m.set_precision(precision)
                for i in range(5):
                    m(*samples(seed=i))
                runs[precision] = m
            chosen = runs["auto"].get_precision()
            self.assertIn(chosen, ("float32", "bfloat16"))
            self.assertEqual(runs["auto"].digest(), runs[chosen].digest())
            states = [runs[p].optimizer.get_states() for p in ("auto", chosen)]
            self.assertEqual(states[0].keys(), states[1].keys())
            for name, state in states[0].items():
                np.testing.assert_array_equal(state, states[1][name])
            # Seven steps in each eagerly; and of graphs one of each.
            more = runs["auto"].calls - runs[chosen].calls
            self.assertEqual(more, 14 + 2 * use_graph)

    def test_auto_is_measured_once(self):
        m = made(use_graph=True)
        m.set_precision("auto")
        self.assertEqual(m.get_precision(), "auto")
        x, _ = samples()
        m.eval()
        wide = m(x).numpy()
        self.assertFalse((bf16(wide) == wide).all())
        m.train()
        m(*samples())
        calls, chosen = m.calls, m.get_precision()
        for i in range(4):
            m(*samples(seed=i))
        self.assertEqual((m.calls - calls, m.get_precision()), (1, chosen))
        # Again in the middle of a run.
        m.set_precision("auto")
        m(*samples(seed=4))
        self.assertNotEqual(m.get_precision(), "auto")

    def test_auto_goes_on_as_a_checkpoint_was_trained(self):
        with tempfile.TemporaryDirectory() as folder:
            for precision in ("float32", "bfloat16", "float16"):
                file = os.path.join(folder, precision)
                m = made(use_graph=True)
                m.set_precision(precision)
                m(*samples())
                m.save_checkpoint(file)
                again = made(use_graph=True)
                again.set_precision("auto")
                again.load_checkpoint(file)
                self.assertEqual(again.get_precision(), precision)
                for i in range(3):
                    m(*samples(seed=i))
                    again(*samples(seed=i))
                self.assertEqual(m.digest(), again.digest())

    def test_auto_needs_steps_of_the_library(self):
        said = r'precision "auto" is measured in steps of a compiled model'
        x, y = samples()
        m = Net()
        m.compile([x], precision="auto")
        with self.assertRaisesRegex(StateError, said):
            m(x, y)
        m = made(Manual)
        m.set_precision("auto")
        with self.assertRaisesRegex(StateError, said):
            m(x, y)
        m.set_precision("float32")
        m(x, y)

    def test_models_of_sixteen_bits(self):
        """As SINGA's scripts make them by -p float16: all of one dtype."""
        rng = np.random.default_rng(8)
        x = rng.normal(size=(32, 5)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int32)
        for dtype, make in itertools.product(
            (tensor.float16, tensor.bfloat16),
            (lambda d: opt.SGD(lr=0.1, momentum=0.9, dtype=d),
             lambda d: opt.Adam(lr=0.02)),
        ):  # fmt: skip
            digests = []
            for use_graph in (False, True):
                tx = tensor.Tensor((32, 5), DEV, dtype)
                tx.copy_from(tensor.from_numpy(x).as_type(dtype))
                m = made(Net, use_graph, tx, make(dtype), ratio=0.0)
                losses = [
                    float(m(tx, tensor.from_numpy(y))[1]) for _ in range(30)
                ]
                self.assertLess(losses[-1], 0.3 * losses[0])
                dtypes = {p.dtype for p in m.get_params().values()}
                self.assertEqual(dtypes, {dtype})
                states = m.optimizer.get_states().values()
                self.assertTrue(all(s.dtype == np.float32 for s in states))
                digests.append(m.digest())
            self.assertEqual(*digests)

    def test_refuses(self):
        for precision in ("float64", "int32"):
            with self.assertRaisesRegex(
                ValueError, "float16 or auto is needed"
            ):
                Net().set_precision(precision)


if __name__ == "__main__":
    unittest.main()
