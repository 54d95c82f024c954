# SPDX-License-Identifier: Apache-2.0
"""choir.autograd in the step of a model."""

import os
import re
import unittest

import numpy as np

from choir import _raw, autograd, device, layer, model, opt, tensor
from choir._here import here
from formulas import away, tensor_of, whole
from training import Training

CPU = device.create_cpu_device()


class Step:
    """What autograd._Scope tells of a model's step."""

    seed, step, first_sample = 11, 3, 16

    def next_stream(self):
        return 2


class InAModel(Training):
    def test_constants_in_a_graph(self):
        """It cannot take them from the host in its middle."""

        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.linear = layer.Linear(3)

            def forward(self, x):
                x = x * [1.0, -2.0, 3.0] + np.float32([[1], [2]])
                x = autograd.gather(x, 1, [2, 0, 1])[[1, 0]]
                y = self.linear(x)[:, ::-1]
                return autograd.where(y, y * 0.5, [[True], [False]])

            def train_one_batch(self, x, y):
                out = self.forward(x)
                self.optimizer(autograd.mse_loss(out, y))
                return out

        x, y = tensor_of(away(2, 3)), tensor_of(away(2, 3))
        x, y = x.as_type("float32"), y.as_type("float32")
        results = []
        for modes in ([False] * 6, [True] * 6, [False] * 2 + [True] * 4):
            CPU.SetRandSeed(4)
            m = Net()
            m.set_optimizer(opt.SGD(lr=0.1))
            m.compile([x], True, modes[0])
            outs = []
            for use_graph in modes:
                if use_graph != m.graph_mode:
                    m.graph(use_graph)
                outs.append(m(x, y).numpy().copy())
            results.append((outs, m.digest()))
            self.assertEqual(bool(m.print_graphs()), modes[-1])
            file = os.path.join(os.environ["TEST_TMPDIR"], "constants")
            m.save_checkpoint(file)
            # A run that goes on records none before it has made them, either.
            other = Net()
            other.set_optimizer(opt.SGD(lr=0.1))
            other.compile([x], True, modes[-1])
            other.load_checkpoint(file)
            for _ in range(3):
                np.testing.assert_array_equal(other(x, y), m(x, y))
            self.assertEqual(bool(other.print_graphs()), modes[-1])
        for outs, digest in results[1:]:
            np.testing.assert_array_equal(outs, results[0][0])
            self.assertEqual(digest, results[0][1])

    def test_arrays_of_a_step_go_with_the_next(self):
        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.linear = layer.Linear(2)
                self.noise = np.random.default_rng(0)

            def forward(self, x):
                return self.linear(x)

            def train_one_batch(self, x):
                noise = self.noise.standard_normal(x.shape).astype(np.float32)
                out = self.forward(x + noise)
                self.optimizer(autograd.mse_loss(out, out.detach() * 0.5))

        x = tensor.ones((1 << 10, 1 << 8))  # 1 MiB
        m = Net()
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], True, False)
        for _ in range(3):
            m(x)
        before = CPU.memory()["in_use"]
        for _ in range(30):
            m(x)
        self.assertLessEqual(CPU.memory()["in_use"], before)

    def test_a_step_in_a_graph_has_the_bits_of_an_eager_one(self):
        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.linear = layer.Linear(4)

            def forward(self, x):
                y = autograd.dropout(self.linear(x), ratio=0.3)
                y = y * [1, 2, 3, 4] + autograd.gather(y, 1, [3, 2, 1, 0])
                return autograd.reshape(y[:, ::-1], (0, -1))

            def train_one_batch(self, x, t):
                y = self.forward(x)
                loss = autograd.softmax_cross_entropy(y, t)
                self.optimizer(loss)
                return y, loss

        x = tensor_of(away(8, 2, 3).astype(np.float32))
        t = tensor_of(whole(8, 1))

        def train(use_graph):
            CPU.SetRandSeed(5)
            net = Net()
            net.set_optimizer(opt.SGD(lr=0.1))
            net.compile([flat], is_train=True, use_graph=use_graph)
            losses = [net(flat, t)[1].item() for _ in range(6)]
            return losses, net.linear.W.numpy()

        flat = autograd.flatten(x)
        eager, graph = train(False), train(True)
        self.assertEqual(eager[0], graph[0])
        np.testing.assert_array_equal(eager[1], graph[1])
        self.assertLess(eager[0][-1], eager[0][0] + 1)

    def test_dropout_goes_by_the_models_step(self):
        x = tensor.ones((8, 4))
        here.model_step = Step()
        self.addCleanup(setattr, here, "model_step", None)
        got = autograd.dropout(x, ratio=0.25).numpy()
        expected = _raw.run(
            "dropout", x.data, ratio=0.25, seed=11, stream=0x20000002, step=3,
            first_sample=16,
        )  # fmt: skip
        np.testing.assert_array_equal(got, expected.read())


class Cube(autograd.Operator):
    """Of Python's own, which keeps what it was given."""

    def forward(self, x):
        self.x = x
        return (raw_of(x) ** 3).data

    def backward(self, dy):
        return (raw_of(dy) * 3 * raw_of(self.x) ** 2).data


def raw_of(raw):
    return tensor.Tensor._of(raw)


class Block(layer.Layer):
    """x + dropout(relu(norm(x W))), and a second result."""

    def __init__(self, recompute, leak=None):
        super().__init__()
        self.recompute = recompute
        self.linear = layer.Linear(40)
        self.attention = layer.MultiHeadAttention(4, dropout=0.2)
        self.norm = layer.BatchNorm2d()
        self.drop = layer.Dropout(0.3)
        self.leak = leak

    def forward(self, x):
        y = autograd.relu(self.norm(self.linear(x)))
        if self.leak is not None:
            self.leak.append(y)
        rows = autograd.reshape(y, (1,) + y.shape)
        y = autograd.reshape(self.attention(rows), y.shape)
        return {"sum": x + self.drop(y), "more": [autograd.tanh(y)]}


class Blocks(model.Model):
    def __init__(self, recompute, leak=None):
        super().__init__()
        self.blocks = [Block(recompute, leak) for _ in range(4)]
        self.leak = leak

    def forward(self, x):
        for block in self.blocks:
            made = block(x)
            x = made["sum"] + made["more"][0]
        return x if not self.leak else self.leak[1]

    def train_one_batch(self, x, y):
        loss = autograd.mse_loss(self.forward(x), y)
        self.optimizer(loss)
        return loss


def arena(m):
    """Bytes of a graph's temporaries."""
    return int(re.search(r"workspace of (\d+)", m.print_graphs()).group(1))


class Recompute(Training):
    def test_models_keep_their_bits_and_less_memory(self):
        rng = np.random.default_rng(3)
        x = tensor.from_numpy(rng.normal(size=(30, 40)).astype(np.float32))
        y = tensor.from_numpy(rng.normal(size=(30, 40)).astype(np.float32))
        digests, arenas = [], []
        for use_graph in (True, False):
            for recompute in (False, True):
                CPU.SetRandSeed(4)
                m = Blocks(recompute)
                m.set_optimizer(opt.SGD(lr=0.1))
                m.compile([x], True, use_graph)
                for _ in range(4):
                    m(x, y)
                digests.append(m.digest())
                if use_graph:
                    arenas.append(arena(m))
        self.assertEqual(digests, digests[:1] * 4)
        self.assertLess(arenas[1], 0.6 * arenas[0])

    def test_operators_of_pythons(self):
        """Gradients of x^3 e^(x^3) through one, with a constant factor."""
        for again in (False, True):
            x = tensor_of(away(4))
            x.requires_grad = x.stores_grad = True

            def part(x, factor=1.0):
                y = Cube()(x)[0] * factor
                return y * autograd.exp(y)

            y = (
                autograd.recompute(part, x, factor=2.0)
                if again
                else part(x, 2.0)
            )
            ((found, grad),) = autograd.backward(autograd.reduce_sum(y))
            self.assertIs(found, x)
            v = x.numpy()
            c = 2 * v**3
            want = (1 + c) * np.exp(c) * 6 * v**2
            np.testing.assert_allclose(grad.numpy(), want, rtol=1e-9)

    def test_what_is_not_a_result_cannot_be_used(self):
        x = tensor_of(away(3, 40)).as_type("float32")
        m = Blocks(True, leak := [])
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], True, False)
        leak.clear()
        leak.append(None)
        with self.assertRaisesRegex(RuntimeError, "not one of its"):
            m(x, x)

    def test_a_failure_ends_the_part(self):
        def part():
            raise KeyError("on purpose")

        with self.assertRaisesRegex(KeyError, "on purpose"):
            autograd.recompute(part)
        self.assertIsNone(here.part)


if __name__ == "__main__":
    unittest.main()
