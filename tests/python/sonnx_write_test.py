# SPDX-License-Identifier: Apache-2.0
"""sonnx.to_onnx: models as ONNX files, read again and run."""

import io
import os
import tempfile
import unittest
import warnings

import numpy as np

from choir import (
    NotFoundError,
    StateError,
    autograd,
    layer,
    model,
    opt,
    sonnx,
    tensor,
)

CLASSES = np.array([0, 1, 2, 1, 0], np.int32)


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def listed(value):
    many = value if isinstance(value, (list, tuple)) else [value]
    return [tensor.to_numpy(one) for one in many]


class Forward(model.Model):
    """Layers, and a function that calls them."""

    def __init__(self, function, **layers):
        super().__init__()
        for name, value in layers.items():
            setattr(self, name, value)
        object.__setattr__(self, "function", function)

    def forward(self, *xs):
        return self.function(self, *xs)

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def images():
    return Forward(
        lambda m, x: m.fc(m.flat(m.pool(autograd.relu(m.norm(m.conv(x)))))),
        conv=layer.Conv2d(6, 3, padding=1),
        norm=layer.BatchNorm2d(),
        pool=layer.MaxPool2d(2, 2),
        flat=layer.Flatten(),
        fc=layer.Linear(3),
    )


class Written(unittest.TestCase):
    def check(self, m, make, sizes=(5, 1, 8), inputs=1, tolerance=1e-5):
        """The file of m, made with three samples, gives what m does for others."""
        taken = [tensor.from_numpy(make(3, i)) for i in range(inputs)]
        written = sonnx.to_onnx(taken, m)
        rep = sonnx.prepare(written)
        for size in sizes:
            xs = [make(size, i) for i in range(inputs)]
            forward = getattr(m, "forward", m)
            expected = forward(*[tensor.from_numpy(x) for x in xs])
            found = rep.run(xs)
            for one, other in zip(found, listed(expected), strict=True):
                self.assertEqual(one.shape, other.shape)
                self.assertEqual(one.dtype, other.dtype)
                np.testing.assert_allclose(
                    one, other, tolerance, tolerance, str(size)
                )
        return rep

    def test_images(self):
        m = images()
        x, y = tensor.from_numpy(numbers(5, 2, 6, 6)), tensor.from_numpy(
            CLASSES
        )
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], is_train=True, use_graph=True)
        for _ in range(3):
            m(x, y)
        m.eval()
        rep = self.check(m, lambda n, i: numbers(n, 2, 6, 6))
        self.assertEqual(rep.inputs[0], ("input", "float", ("batch", 2, 6, 6)))
        self.assertEqual(rep.outputs[0], ("output", "float", ("batch", 3)))
        states = m.get_states()
        self.assertEqual(set(rep.states), set(states))
        for name, value in rep.states.items():
            np.testing.assert_array_equal(
                tensor.to_numpy(value), tensor.to_numpy(states[name]), name
            )

    def test_recurrent_layers(self):
        for kind in (layer.RNN, layer.LSTM, layer.GRU):
            for settings in ({}, {"bidirectional": True, "num_layers": 2}):
                with self.subTest(kind.__name__, **settings):
                    m = Forward(
                        lambda m, x: m.fc(m.cell(x)[0]),
                        cell=kind(3, 4, batch_first=True, **settings),
                        fc=layer.Linear(2),
                    )
                    self.check(m, lambda n, i: numbers(n, 5, 3, seed=i))

    def test_lengths_and_last_states(self):
        m = Forward(
            lambda m, x, n: list(m.cell(x, lengths=n)),
            cell=layer.GRU(3, 4, batch_first=True),
        )

        def make(n, i):
            lengths = np.arange(n, dtype=np.int32) % 6
            return lengths if i else numbers(n, 5, 3)

        self.check(m, make, inputs=2)

    def test_transformers(self):
        for settings in ({}, {"rotary": 1e4, "kv_heads": 2, "bias": False}):
            for norm in (layer.LayerNorm, layer.RMSNorm):
                with self.subTest(norm.__name__, **settings):
                    m = Forward(
                        lambda m, x: m.head(
                            m.norm(m.at(m.places(m.tokens(x))))
                        ),
                        tokens=layer.Embedding(11, 16),
                        places=layer.PositionEmbedding(7),
                        at=layer.MultiHeadAttention(4, causal=True, **settings),
                        norm=norm(),
                        head=layer.FeedForward(8, "silu", gated=True),
                    )
                    m.at.recompute = True
                    self.check(
                        m,
                        lambda n, i: np.random.RandomState(n)
                        .randint(0, 11, (n, 7))
                        .astype(np.int32),
                    )

    def test_functions_and_several_results(self):
        def function(x, y):
            with autograd.no_grad():
                mask = x > y
            z = autograd.where(x, autograd.gelu(y), mask)
            best = tensor.argmax(z, 1)
            rows = autograd.reshape(z, (z.shape[0] * 2, -1))
            return [z[:, 1:], best, tensor.sum(rows, 1), x]

        self.check(function, lambda n, i: numbers(n, 4, seed=i), inputs=2)

    def test_more_layers(self):
        m = Forward(
            lambda m, x: m.up(m.drop(m.mean(m.part(x)))),
            part=layer.SeparableConv2d(4, 3, padding=1),
            mean=layer.AvgPool2d(2, 2),
            drop=layer.Dropout(0.5),
            up=layer.ConvTranspose2d(3, 2, 2),
        )
        self.check(m, lambda n, i: numbers(n, 2, 6, 6))

    def test_of_results(self):
        w = tensor.from_numpy(numbers(4, 3))
        w.stores_grad = True
        autograd.training = True
        try:
            x = tensor.from_numpy(numbers(5, 4))
            y = autograd.softmax(autograd.matmul(autograd.relu(x), w))
        finally:
            autograd.training = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            written = sonnx.to_onnx([x], [y])
        rep = sonnx.prepare(written)
        np.testing.assert_allclose(
            rep.run([numbers(5, 4)])[0], tensor.to_numpy(y), 1e-6
        )
        self.assertEqual(list(rep.states), ["param"])
        # What was remembered nowhere is no file, and constants are told.
        with self.assertRaisesRegex(StateError, "model itself"):
            sonnx.to_onnx([x], autograd.relu(x))
        autograd.training = True
        try:
            y = autograd.add(x, tensor.from_numpy(numbers(5, 4)))
        finally:
            autograd.training = False
        with self.assertWarnsRegex(UserWarning, "constants"):
            sonnx.to_onnx([x], y, fixed_batch=True)

    def test_files(self):
        m = images()
        x = numbers(5, 2, 6, 6)
        expected = tensor.to_numpy(m.forward(tensor.from_numpy(x)))
        with tempfile.TemporaryDirectory() as folder:
            first, second, third = (
                os.path.join(folder, name) for name in ("a", "b", "c")
            )
            taken = [tensor.from_numpy(x)]
            self.assertIsNone(sonnx.to_onnx(taken, m, path=first))
            sonnx.to_onnx(taken, m, path=second, data_beside=True)
            self.assertTrue(os.path.exists(second + ".data"))
            written = sonnx.to_onnx(taken, m)
            sonnx.save(written, third)
            stream = io.BytesIO()
            sonnx.save(written, stream)
            self.assertEqual(stream.getvalue(), written.SerializeToString())
            with open(third, "rb") as file:
                self.assertEqual(file.read(), stream.getvalue())
            self.assertEqual(
                sorted(os.listdir(folder)), ["a", "b", "b.data", "c"]
            )
            for path in (first, second, third):
                (found,) = sonnx.prepare(path).run([x])
                np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
            with self.assertRaisesRegex(NotFoundError, "no such folder"):
                sonnx.to_onnx(taken, m, path=os.path.join(folder, "no", "d"))

    def test_a_file_is_trained_and_written_again(self):
        class Net(sonnx.SONNXModel):
            def forward(self, x):
                return super().forward(x)[0]

            train_one_batch = Forward.train_one_batch

        m = images()
        x, y = tensor.from_numpy(numbers(5, 2, 6, 6)), tensor.from_numpy(
            CLASSES
        )
        m.forward(x)
        net = Net(sonnx.to_onnx([x], m))
        net.set_optimizer(opt.SGD(lr=0.1))
        net.compile([x], is_train=True, use_graph=True)
        losses = [net(x, y).item() for _ in range(8)]
        self.assertLess(losses[-1], 0.8 * losses[0])
        net.eval()
        rep = self.check(net, lambda n, i: numbers(n, 2, 6, 6))
        self.assertEqual(set(rep.states), set(m.get_states()))

    def test_what_has_no_form(self):
        class Own(autograd.Operator):
            def forward(self, x):
                return x

            def backward(self, dy):
                return dy

        x = tensor.from_numpy(numbers(2, 3))
        with self.assertRaisesRegex(NotImplementedError, "Own.*no form"):
            sonnx.to_onnx([x], lambda x: Own()(x)[0])

        def raises(x):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            sonnx.to_onnx([x], raises)
        # Nothing is remembered from now on.
        self.assertIsNone(autograd.relu(x).creator)
        with self.assertRaisesRegex(ValueError, "fixed_batch"):
            rows = tensor.from_numpy(numbers(2, 3))
            sonnx.to_onnx([x], lambda x: x + rows)
        with self.assertRaisesRegex(TypeError, "Tensor"):
            sonnx.to_onnx([numbers(2, 3)], autograd.relu)
        with self.assertRaisesRegex(ValueError, "no input"):
            sonnx.to_onnx([], autograd.relu)


if __name__ == "__main__":
    unittest.main()
