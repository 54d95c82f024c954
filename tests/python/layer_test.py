# SPDX-License-Identifier: Apache-2.0
"""choir.layer: layers' settings and refusals, names, parameters and states. Every
layer in every dtype: layer_table_test.py; initial values: layer_starts_test.py."""

import math
import unittest
from collections import OrderedDict

import numpy as np

from choir import _raw, autograd, device, layer, tensor

DEV = device.create_cpu_device()


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def t(value, grads=False):
    made = tensor.from_numpy(np.asarray(value))
    made.requires_grad = grads
    return made


def conv(x, w, b, stride, before, after, dilation, groups):
    """2-d convolution, written down."""
    x = np.pad(x, ((0, 0), (0, 0), *zip(before, after))).astype(np.float64)
    n, c, h, width = x.shape
    out, per, kh, kw = w.shape
    oh = (h - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (width - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    y = np.zeros((n, out, oh, ow))
    for o in range(out):
        first = o // (out // groups) * per
        for i in range(oh):
            for j in range(ow):
                top, left = i * stride[0], j * stride[1]
                part = x[
                    :,
                    first : first + per,
                    top : top + (kh - 1) * dilation[0] + 1 : dilation[0],
                    left : left + (kw - 1) * dilation[1] + 1 : dilation[1],
                ]
                y[:, o, i, j] = (part * w[o]).sum(axis=(1, 2, 3)) + b[o]
    return y


def pool(x, kernel, stride, before, after, is_max):
    fill = -np.inf if is_max else 0.0
    pad = ((0, 0), (0, 0), *zip(before, after))
    x = np.pad(x.astype(np.float64), pad, constant_values=fill)
    oh = (x.shape[2] - kernel[0]) // stride[0] + 1
    ow = (x.shape[3] - kernel[1]) // stride[1] + 1
    y = np.zeros(x.shape[:2] + (oh, ow))
    for i in range(oh):
        for j in range(ow):
            top, left = i * stride[0], j * stride[1]
            part = x[:, :, top : top + kernel[0], left : left + kernel[1]]
            y[:, :, i, j] = (
                part.max(axis=(2, 3)) if is_max else part.mean(axis=(2, 3))
            )
    return y


class Base(unittest.TestCase):
    def setUp(self):
        DEV.SetRandSeed(5)
        autograd.training = True

    def near(self, got, want, rtol=1e-4, atol=1e-5):
        if isinstance(got, tensor.Tensor):
            got = got.numpy()
        self.assertEqual(got.shape, np.shape(want))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)

    def slopes(self, make_loss, tensors, eps=1e-2, tolerance=2e-2):
        """Compares gradients with finite differences of the loss."""
        grads = autograd.grad(make_loss(), tensors)
        for value, grad in zip(tensors, grads):
            self.assertIsNotNone(grad, value.name)
            got = grad.numpy().reshape(-1)
            base = value.numpy().copy()
            flat = base.reshape(-1)
            picks = np.random.default_rng(1).choice(
                flat.size, min(6, flat.size), replace=False
            )
            for i in picks:
                losses = []
                for step in (eps, -eps):
                    moved = flat.copy()
                    moved[i] += step
                    value.copy_from_numpy(moved.reshape(base.shape))
                    losses.append(make_loss().item())
                value.copy_from_numpy(base)
                want = (losses[0] - losses[1]) / (2 * eps)
                self.assertAlmostEqual(
                    got[i],
                    want,
                    delta=tolerance * max(1.0, abs(want)),
                    msg=f"{value.name} {i}",
                )

    def check_slopes(self, made, *xs):
        """Of the mean of squares of a layer's result; its parameters' too."""
        inputs = [x for x in xs if x.data.dtype in _raw.FLOATS]
        for x in inputs:
            x.requires_grad = True

        def loss():
            y = made(*xs)
            return autograd.mse_loss(y, tensor.zeros_like(y))

        loss()
        self.slopes(loss, inputs + list(made.get_params().values()))


class LinearLayers(Base):
    def test_linear(self):
        x = array(4, 3)
        made = layer.Linear(5)
        y = made(t(x))
        self.assertEqual(made.W.shape, (3, 5))
        made.b.copy_from_numpy(array(5, seed=2))
        self.near(made(t(x)), x @ made.W.numpy() + made.b.numpy())
        self.assertEqual(y.shape, (4, 5))
        self.check_slopes(made, t(x))

    def test_linear_without_bias_and_the_old_form(self):
        x = array(4, 3)
        made = layer.Linear(5, bias=False)
        self.near(made(t(x)), x @ made.W.numpy())
        self.assertEqual(set(made.get_params()), {"W"})
        old = layer.Linear(3, 5)
        self.assertEqual(old(t(x)).shape, (4, 5))
        self.assertIn("b", old.get_params())
        old = layer.Linear(3, 5, False)
        old(t(x))
        self.assertEqual(list(old.get_params()), ["W"])
        with self.assertRaisesRegex(TypeError, "Linear has no setting 'biass'"):
            layer.Linear(5, biass=True)

    def test_a_layer_behind_a_linear_without_bias_begins_as_in_c(self):
        """Initial values go by the number of parameters before them."""
        dev = device.create_cpu_device()
        x = tensor.from_numpy(array(4, 3), dev)
        found = []
        for before in (
            layer.Linear(3, bias=False),
            layer.RMSNorm(),
            layer.Linear(3),
        ):
            dev.SetRandSeed(5)
            after = layer.Linear(5)
            before(x), after(x)
            found.append(after.W.numpy().copy())
        np.testing.assert_array_equal(found[0], found[1])
        self.assertTrue((found[0] != found[2]).any())

    def test_gemm(self):
        x = array(4, 3)
        for trans_a in (False, True):
            for trans_b in (False, True):
                made = layer.Gemm(
                    5, alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b
                )
                given = t(x.T.copy() if trans_a else x)
                made(given)
                made.b.copy_from_numpy(array(1, 5, seed=3))
                w = made.W.numpy()
                self.assertEqual(w.shape, (5, 3) if trans_b else (3, 5))
                want = 0.5 * x @ (w.T if trans_b else w) + 2 * made.b.numpy()
                self.near(made(given), want)
                self.check_slopes(made, given)
        plain = layer.Gemm(5, bias=False)
        self.near(plain(t(x)), x @ plain.W.numpy().T)

    def test_embedding(self):
        made = layer.Embedding(6, 3)
        x = np.array([[1, 5], [1, 0]], np.int32)
        y = made(t(x))
        w = made.W.numpy()
        self.near(y, w[x])
        self.near(made(t(x.astype(np.float32))), w[x])
        (g,) = autograd.grad(
            autograd.mse_loss(made(t(x)), tensor.zeros((2, 2, 3))), [made.W]
        )
        want = np.zeros_like(w)
        np.add.at(want, x.reshape(-1), 2 * w[x].reshape(-1, 3) / 12)
        self.near(g, want)

    def test_embedding_from_pretrained(self):
        values = array(6, 3)
        for given in (values, t(values)):
            for freeze in (True, False):
                made = layer.Embedding(6, 3)
                made.from_pretrained(given, freeze)
                self.near(made(t(np.array([2], np.int32))), values[[2]])
                self.assertEqual(bool(made.get_params()), not freeze)
                self.assertIn("W", made.get_states())

    def test_embedding_refuses(self):
        with self.assertRaisesRegex(
            ValueError, "'normal'; gaussian or uniform"
        ):
            layer.Embedding(6, 3, "normal")
        with self.assertRaisesRegex(ValueError, "deviation is -1"):
            layer.Embedding(6, 3, deviation=-1)


class Convolutions(Base):
    def compare(
        self, made, x, before, after, stride=(1, 1), dilation=(1, 1), group=1
    ):
        y = made(t(x))
        b = np.zeros(made.nb_kernels)
        if made.bias:
            made.b.copy_from_numpy(array(made.nb_kernels, seed=4))
            b = made.b.numpy()
            y = made(t(x))
        want = conv(
            x, made.W.numpy(), b, stride, before, after, dilation, group
        )
        if made.activation == "RELU":
            want = np.maximum(want, 0)
        self.near(y, want)

    def test_plain_stride_padding_dilation_groups(self):
        x = array(2, 4, 7, 6)
        for settings, before, after in (
            ({}, (0, 0), (0, 0)),
            ({"stride": 2}, (0, 0), (0, 0)),
            ({"stride": (2, 1), "padding": (1, 2)}, (1, 2), (1, 2)),
            ({"dilation": 2, "padding": 2}, (2, 2), (2, 2)),
            ({"group": 2, "padding": 1}, (1, 1), (1, 1)),
            ({"group": 4}, (0, 0), (0, 0)),
            ({"bias": False, "padding": 1}, (1, 1), (1, 1)),
            ({"activation": "RELU"}, (0, 0), (0, 0)),
        ):
            with self.subTest(settings):
                made = layer.Conv2d(8, 3, **settings)
                self.compare(
                    made,
                    x,
                    before,
                    after,
                    made.stride,
                    made.dilation,
                    settings.get("group", 1),
                )

    def test_uneven_padding(self):
        made = layer.Conv2d(8, 3, padding=(1, 0, 2, 1))
        self.compare(made, array(2, 4, 7, 6), (1, 0), (2, 1))
        self.check_slopes(made, t(array(1, 4, 5, 5)))
        made = layer.Conv2d(3, 3, pad_mode="SAME_UPPER", stride=2)
        self.check_slopes(made, t(array(1, 2, 4, 4)))

    def test_same_padding(self):
        for size in ((7, 6), (8, 5)):
            x = array(1, 2, *size)
            for kernel in (1, 2, 3, 4):
                for stride in (1, 2, 3):
                    for mode in ("SAME_UPPER", "SAME_LOWER"):
                        before, after = [], []
                        for n in size:
                            total = max(
                                (-(-n // stride) - 1) * stride + kernel - n, 0
                            )
                            small = total // 2
                            pair = [small, total - small]
                            if mode == "SAME_LOWER":
                                pair.reverse()
                            before.append(pair[0])
                            after.append(pair[1])
                        made = layer.Conv2d(
                            3, kernel, stride=stride, pad_mode=mode
                        )
                        self.compare(made, x, before, after, (stride, stride))
                        shape = made(t(x)).shape[2:]
                        self.assertEqual(
                            shape, tuple(-(-n // stride) for n in size)
                        )

    def test_valid_ignores_padding(self):
        made = layer.Conv2d(3, 3, padding=1, pad_mode="VALID")
        self.assertEqual(made(t(array(1, 2, 5, 5))).shape, (1, 3, 3, 3))

    def test_gradients(self):
        x = array(2, 4, 5, 5)
        for settings in (
            {"padding": 1, "stride": 2},
            {"group": 2, "bias": False},
            {"dilation": 2},
        ):
            with self.subTest(settings):
                self.check_slopes(layer.Conv2d(4, 3, **settings), t(x))

    def test_the_old_form(self):
        x = t(array(1, 3, 8, 8))
        self.assertEqual(layer.Conv2d(3, 6, 5)(x).shape, (1, 6, 4, 4))
        self.assertEqual(layer.Conv2d(3, 6, 5, 2)(x).shape, (1, 6, 2, 2))
        self.assertEqual(layer.Conv2d(3, 6, 5, 1, 2)(x).shape, (1, 6, 8, 8))
        old = layer.SeparableConv2d(3, 6, 3, 1, 1)
        self.assertEqual(old(x).shape, (1, 6, 8, 8))

    def test_separable(self):
        x = array(2, 3, 6, 6)
        made = layer.SeparableConv2d(5, 3, stride=2, padding=1)
        y = made(t(x))
        deep = made.depthwise_conv.W.numpy()
        point = made.point_conv.W.numpy()
        self.assertEqual(
            (deep.shape, point.shape), ((3, 1, 3, 3), (5, 3, 1, 1))
        )
        mid = conv(x, deep, np.zeros(3), (2, 2), (1, 1), (1, 1), (1, 1), 3)
        want = conv(mid, point, np.zeros(5), (1, 1), (0, 0), (0, 0), (1, 1), 1)
        self.near(y, want)
        self.assertEqual(
            list(made.get_params()), ["depthwise_conv.W", "point_conv.W"]
        )
        self.check_slopes(made, t(x))
        with_bias = layer.SeparableConv2d(5, 3, bias=True)
        with_bias(t(x))
        self.assertEqual(len(with_bias.get_params()), 4)

    def test_it_refuses(self):
        x = t(array(1, 3, 8, 8))
        for make, kind, words in (
            (
                lambda: layer.Conv2d(4, 3, activation="TANH"),
                ValueError,
                "'TANH'",
            ),
            (
                lambda: layer.Conv2d(4, 3, dilute=2),
                TypeError,
                "setting 'dilute'",
            ),
            (lambda: layer.Conv2d(4, (1, 2, 3)), ValueError, "kernel_size is"),
            (
                lambda: layer.Conv2d(4, 3, pad_mode="SAME")(x),
                ValueError,
                "'SAME'",
            ),
            (lambda: layer.Conv2d(4, 3, group=2)(x), ValueError, "2 groups"),
            (
                lambda: layer.Conv2d(2, 4, 3)(x),
                ValueError,
                "in_channels was given as 2",
            ),
            (
                lambda: layer.Conv2d(4, 3)(t(array(3, 3))),
                ValueError,
                "4 dimens",
            ),
        ):
            with self.assertRaisesRegex(kind, words):
                make()


class Pools(Base):
    def test_max_and_mean(self):
        x = array(2, 3, 7, 6)
        for kernel, stride, padding in (
            (2, None, 0),
            (3, 2, 1),
            ((3, 2), (2, 1), 0),
            ((3, 3), 1, (1, 0)),
        ):
            k = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            s = k if stride is None else stride
            s = s if isinstance(s, tuple) else (s, s)
            p = padding if isinstance(padding, tuple) else (padding, padding)
            before, after = (p[:2], p[2:]) if len(p) == 4 else (p, p)
            for is_max in (True, False):
                with self.subTest((kernel, stride, padding, is_max)):
                    made = layer.Pooling2d(kernel, stride, padding, is_max)
                    want = pool(x, k, s, before, after, is_max)
                    self.near(made(t(x)), want)
                    other = (layer.MaxPool2d if is_max else layer.AvgPool2d)(
                        kernel, stride, padding
                    )
                    self.near(other(t(x)), want)
                    self.check_slopes(made, t(np.round(x, 1) + x * 0.01))

    def test_uneven_padding(self):
        x = array(2, 3, 7, 6)
        for is_max in (True, False):
            made = layer.Pooling2d(3, 2, (1, 0, 0, 1), is_max)
            self.near(
                made(t(x)), pool(x, (3, 3), (2, 2), (1, 0), (0, 1), is_max)
            )
            self.check_slopes(made, t(x))

    def test_same_padding(self):
        x = array(1, 2, 5, 7) - 10  # what is padded with must not win
        for mode, first in (("SAME_UPPER", (0, 0)), ("SAME_LOWER", (1, 1))):
            last = (1 - first[0], 1 - first[1])
            for is_max in (True, False):
                made = layer.Pooling2d(2, 2, 0, is_max, mode)
                self.near(
                    made(t(x)), pool(x, (2, 2), (2, 2), first, last, is_max)
                )

    def test_one_dimension(self):
        x = array(2, 3, 1, 8)
        self.near(
            layer.MaxPool1d(2)(t(x)),
            pool(x, (1, 2), (1, 2), (0, 0), (0, 0), True),
        )
        self.near(
            layer.AvgPool1d(3, 2, 1)(t(x)),
            pool(x, (1, 3), (1, 2), (0, 1), (0, 1), False),
        )

    def test_windows_of_one_element_and_of_all(self):
        x = array(1, 2, 4, 4)
        self.near(layer.MaxPool2d(1)(t(x)), x)
        self.near(layer.AvgPool2d(4)(t(x)), x.mean(axis=(2, 3), keepdims=True))

    def test_another_size_of_images_later(self):
        made = layer.Pooling2d(2, 2, 0, False, "SAME_UPPER")
        for n in (4, 5, 4):
            x = array(1, 1, n, n)
            after = (n % 2, n % 2)
            self.near(made(t(x)), pool(x, (2, 2), (2, 2), (0, 0), after, False))

    def test_it_refuses(self):
        with self.assertRaisesRegex(
            ValueError, r"MaxPool2d .*: the input is f32 \(2, 2\); 4 dimens"
        ):
            layer.MaxPool2d(2)(t(array(2, 2)))
        with self.assertRaises(ValueError):
            layer.MaxPool2d(5)(t(array(1, 1, 3, 3)))


class Normalisation(Base):
    def test_training_and_inference_by_hand(self):
        for shape in ((6, 3), (4, 3, 2, 5)):
            axes = (0,) if len(shape) == 2 else (0, 2, 3)
            wide = (1, 3) if len(shape) == 2 else (1, 3, 1, 1)
            for momentum in (0.9, 0.2, 1.0, 0.0):
                made = layer.BatchNorm2d(momentum=momentum)
                mean, var = np.zeros(3), np.ones(3)
                for i in range(3):
                    x = array(*shape, seed=i) * 2 + 1
                    y = made(t(x))
                    if i == 0:
                        made.scale.copy_from_numpy(array(3, seed=7))
                        made.bias.copy_from_numpy(array(3, seed=8))
                        y = None
                    m, v = x.mean(axis=axes), x.var(axis=axes)
                    n = x.size / 3
                    mean = (1 - momentum) * mean + momentum * m
                    var = (1 - momentum) * var + momentum * v * n / (n - 1)
                    self.near(made.running_mean, mean)
                    self.near(made.running_var, var)
                    scale, bias = (
                        p.numpy().reshape(wide) for p in (made.scale, made.bias)
                    )
                    if y is not None:
                        norm = (x - m.reshape(wide)) / np.sqrt(
                            v.reshape(wide) + 1e-5
                        )
                        self.near(y, norm * scale + bias)
                autograd.training = False
                before = made.running_mean.numpy().copy()
                y = made(t(x))
                norm = (x - mean.reshape(wide)) / np.sqrt(
                    var.reshape(wide) + 1e-5
                )
                self.near(y, norm * scale + bias, 1e-3, 1e-4)
                np.testing.assert_array_equal(made.running_mean.numpy(), before)
                autograd.training = True

    def test_gradients(self):
        made = layer.BatchNorm2d()
        x = t(array(4, 3, 2, 2), True)
        weights = t(array(4, 3, 2, 2, seed=2))
        zeros = tensor.zeros((4, 3, 2, 2))

        def loss():
            return autograd.mse_loss(made(x) * weights, zeros)

        loss()
        self.slopes(loss, [x, made.scale, made.bias])

    def test_names_and_old_form(self):
        made = layer.BatchNorm2d(3, 0.5)
        self.assertEqual((made.channels, made.momentum), (3, 0.5))
        made(t(array(2, 3)))
        self.assertEqual(list(made.get_params()), ["scale", "bias"])
        self.assertEqual(
            list(made.get_states()),
            ["scale", "bias", "running_mean", "running_var"],
        )
        with self.assertRaisesRegex(ValueError, "channels was given as 3"):
            layer.BatchNorm2d(3)(t(array(2, 4)))
        with self.assertRaisesRegex(ValueError, "momentum is 2; needs 0 to 1"):
            layer.BatchNorm2d(momentum=2)


class Recurrent(Base):
    def test_rnn(self):
        xs = [array(2, 3, seed=i) for i in range(4)]
        h0 = array(2, 5, seed=9)
        for nonlinearity, f in (
            ("tanh", np.tanh),
            ("relu", lambda v: np.maximum(v, 0)),
        ):
            for bias in (True, False):
                made = layer.RNN(3, 5, nonlinearity=nonlinearity, bias=bias)
                made([t(x) for x in xs], t(h0))
                if bias:
                    made.b.copy_from_numpy(array(5, seed=3))
                outs, last = made([t(x) for x in xs], t(h0))
                names = ["Wx", "Wh", "b"] if bias else ["Wx", "Wh"]
                self.assertEqual(list(made.get_params()), names)
                h = h0
                for x, out in zip(xs, outs):
                    h = x @ made.Wx.numpy() + h @ made.Wh.numpy()
                    h = f(h + made.b.numpy() if bias else h)
                    self.near(out, h, 1e-3, 1e-3)
                self.near(last, h, 1e-3, 1e-3)

    def test_lstm(self):
        def sigmoid(v):
            return 1 / (1 + np.exp(-v))

        xs = [array(2, 3, seed=i) for i in range(4)]
        h, c = array(2, 5, seed=8), array(2, 5, seed=9)
        for bias in (True, False):
            made = layer.LSTM(3, 5, bias=bias)
            state = t(h), t(c)
            made([t(x) for x in xs], state)
            self.assertEqual(len(made.get_params()), 12 if bias else 8)
            for i, p in enumerate(made.get_params().values()):
                p.copy_from_numpy(array(*p.shape, seed=i))
            outs, last_h, last_c = made([t(x) for x in xs], state)
            nh, nc = h, c
            for x, out in zip(xs, outs):
                g = {
                    k: x @ getattr(made, f"Wx_{k}").numpy()
                    + nh @ getattr(made, f"Wh_{k}").numpy()
                    + (getattr(made, f"b_{k}").numpy() if bias else 0)
                    for k in "ifog"
                }
                nc = sigmoid(g["f"]) * nc + sigmoid(g["i"]) * np.tanh(g["g"])
                nh = sigmoid(g["o"]) * np.tanh(nc)
                self.near(out, nh, 1e-3, 1e-4)
            self.near(last_h, nh, 1e-3, 1e-4)
            self.near(last_c, nc, 1e-3, 1e-4)

    def test_gradients(self):
        xs = [t(array(2, 3, seed=i) * 0.5, True) for i in range(3)]
        h, c = t(array(2, 4), True), t(array(2, 4, seed=1), True)
        zeros = tensor.zeros((2, 4))
        rnn, lstm = layer.RNN(3, 4), layer.LSTM(3, 4)

        def rnn_loss():
            return autograd.mse_loss(rnn(xs, h)[1], zeros)

        def lstm_loss():
            return autograd.mse_loss(lstm(xs, (h, c))[1], zeros)

        rnn_loss()
        for p in rnn.get_params().values():
            p *= 0.3
        self.slopes(rnn_loss, xs + [h] + list(rnn.get_params().values()))
        lstm_loss()
        for i, p in enumerate(lstm.get_params().values()):
            p.copy_from_numpy(array(*p.shape, seed=i))
        self.slopes(lstm_loss, xs + [h, c] + list(lstm.get_params().values()))

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, "'gelu'; tanh or relu"):
            layer.RNN(3, 4, nonlinearity="gelu")
        with self.assertRaisesRegex(NotImplementedError, "is 'relu'"):
            layer.LSTM(3, 4, "relu")
        with self.assertRaisesRegex(NotImplementedError, "'' is no layer"):
            layer.RNN_Base(3, 4)(t(array(1, 2, 3)))


class Functions(Base):
    def test_activations(self):
        x = array(3, 4)
        erf = np.vectorize(math.erf)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        for cls, want in (
            (layer.ReLU, np.maximum(x, 0)),
            (layer.Sigmoid, 1 / (1 + np.exp(-x))),
            (layer.Tanh, np.tanh(x)),
            (layer.Gelu, x / 2 * (1 + erf(x / np.sqrt(2)))),
            (layer.SoftMax, e / e.sum(axis=1, keepdims=True)),
        ):
            with self.subTest(cls.__name__):
                self.near(cls()(t(x)), want)
                self.check_slopes(cls(), t(x))

    def test_losses(self):
        x, y = array(4, 3), array(4, 3, seed=1)
        labels = np.array([0, 2, 1, 1], np.int32)
        p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        self.near(layer.MeanSquareError()(t(x), t(y)), [np.mean((x - y) ** 2)])
        self.near(
            layer.SoftMaxCrossEntropy()(t(x), t(labels)),
            [-np.log(p[np.arange(4), labels]).mean()],
        )
        self.check_slopes(layer.SoftMaxCrossEntropy(), t(x), t(labels))
        self.check_slopes(layer.MeanSquareError(), t(x), t(y))

    def test_shapes(self):
        x = array(2, 3, 4)
        self.near(layer.Flatten()(t(x)), x.reshape(2, 12))
        self.near(layer.Flatten(2)(t(x)), x.reshape(6, 4))
        self.near(layer.Reshape()(t(x), (4, 6)), x.reshape(4, 6))
        self.near(layer.Add()(t(x), t(x)), 2 * x)
        for axis in (0, 1, 2):
            self.near(
                layer.Cat(axis)([t(x), t(x)]), np.concatenate([x, x], axis)
            )

    def test_dropout(self):
        x = np.ones((50, 40), np.float32)
        for ratio in (0.0, 0.3, 0.8):
            made = layer.Dropout(ratio)
            y = made(t(x)).numpy()
            kept = y != 0
            np.testing.assert_allclose(y[kept], 1 / (1 - ratio), rtol=1e-6)
            # Five deviations of a binomial.
            self.assertLess(
                abs(kept.mean() - (1 - ratio)),
                5 * math.sqrt(ratio * (1 - ratio) / 2000) + 1e-9,
            )
            autograd.training = False
            np.testing.assert_array_equal(made(t(x)).numpy(), x)
            autograd.training = True
        for bad in (1.0, -0.1):
            with self.assertRaisesRegex(
                ValueError, f"ratio is {bad}; needs 0 to"
            ):
                layer.Dropout(bad)

    def test_dropout_draws_anew_and_repeats_by_seed(self):
        x = t(np.ones((20, 20), np.float32))
        made = layer.Dropout(0.5)

        def draws(seed):
            DEV.SetRandSeed(seed)
            return [made(x).numpy() != 0 for _ in range(2)]

        one, same, other = draws(1), draws(1), draws(2)
        np.testing.assert_array_equal(one, same)
        self.assertTrue((one[0] != one[1]).any())
        self.assertTrue((one[0] != other[0]).any())

    def test_dropouts_gradient_has_its_mask(self):
        x = t(np.ones((20, 20), np.float32), True)
        y = layer.Dropout(0.5)(x)
        (g,) = autograd.grad(autograd.mse_loss(y, tensor.zeros((20, 20))), [x])
        self.near(g, 2 * y.numpy() * 2 / 400)


class Names(Base):
    def nested(self):
        class Inner(layer.Layer):
            def __init__(self):
                super().__init__()
                self.l1 = layer.Linear(4)
                self.bn = layer.BatchNorm2d()

            def forward(self, x):
                return self.bn(self.l1(x))

        class Outer(layer.Layer):
            def __init__(self):
                super().__init__()
                self.first = Inner()
                self.parts = [layer.Linear(5), layer.ReLU(), layer.Linear(2)]
                self.register_layers(*self.parts)

            def forward(self, x):
                x = self.first(x)
                for part in self.parts:
                    x = part(x)
                return x

        made = Outer()
        made(t(array(3, 2)))
        return made

    def test_nested_and_registered(self):
        made = self.nested()
        names = [
            "first.l1.W",
            "first.l1.b",
            "first.bn.scale",
            "first.bn.bias",
            "Linear_0.W",
            "Linear_0.b",
            "Linear_2.W",
            "Linear_2.b",
        ]
        self.assertEqual(list(made.get_params()), names)
        self.assertEqual(
            set(made.get_states()) - set(names),
            {"first.bn.running_mean", "first.bn.running_var"},
        )
        for name, p in made.get_states().items():
            self.assertEqual(p.name, name)
        self.assertIs(made.first.l1, made.first._layers["l1"])
        # A part gives its own by their whole names, as in SINGA.
        self.assertEqual(list(made.first.l1.get_params()), names[:2])

    def test_register_layers_takes_lists_and_dictionaries(self):
        made = layer.Layer()
        made.register_layers([layer.ReLU(), layer.Tanh()])
        self.assertEqual(list(made._layers), ["ReLU_0", "Tanh_1"])
        made = layer.Layer()
        made.register_layers(OrderedDict(a=layer.ReLU(), b=layer.Tanh()))
        self.assertEqual(list(made._layers), ["a", "b"])
        self.assertIsInstance(made.a, layer.ReLU)
        with self.assertRaisesRegex(
            TypeError, "register_layers: int_0 is a int"
        ):
            made.register_layers(3)

    def test_replaced_and_deleted_layers_go(self):
        made = self.nested()
        del made.first
        self.assertEqual(len(made.get_params()), 4)
        made.Linear_0 = None
        # Still in the list of parts, and used.
        left = ["Linear_2.W", "Linear_2.b", "parts.0.W", "parts.0.b"]
        self.assertEqual(list(made.get_params()), left)
        made.parts = made.parts[2:]
        self.assertEqual(list(made.get_params()), left[:2])
        made.Linear_2 = layer.Linear(7)
        made.parts.clear()
        self.assertEqual(list(made.get_params()), [])

    def test_set_params_and_states(self):
        a, b = self.nested(), self.nested()
        values = {n: array(*p.shape, seed=1) for n, p in a.get_states().items()}
        a.set_states(values)
        b.set_states(a.get_states())
        for made in (a, b):
            for name, value in values.items():
                self.near(made.get_states()[name], value)
        a.set_params({"Linear_2.b": np.zeros(2, np.float32)})
        self.near(a.Linear_2.b, np.zeros(2))
        before = a.Linear_0.W.numpy().copy()
        with self.assertRaisesRegex(
            KeyError, "no parameter is called 'Linear_1.W'"
        ):
            a.set_params({"Linear_0.W": before * 2, "Linear_1.W": before})
        with self.assertRaisesRegex(
            KeyError, "no parameter is called .*running"
        ):
            a.set_params({"first.bn.running_mean": np.zeros(4, np.float32)})
        with self.assertRaisesRegex(
            ValueError,
            r"state Linear_0.W has shape \(4, 5\); a value of shape \(5,",
        ):
            a.set_states({"Linear_0.W": before.T})
        np.testing.assert_array_equal(a.Linear_0.W.numpy(), before)
        with self.assertRaisesRegex(
            KeyError, "none; call the layer or compile"
        ):
            layer.Linear(3).set_params({"W": before})

    def test_sizes_that_are_no_sizes(self):
        """2^64 + 3 is not 3."""
        x = tensor.ones((2, 3))
        for size, failure in (
            (2**64 + 3, ValueError),
            (2**63, ValueError),
            (-3, ValueError),
            (0, ValueError),
        ):
            for made in (
                layer.Linear(size),
                layer.Gemm(size),
                layer.Conv2d(size, 1),
            ):
                image = isinstance(made, layer.Conv2d)
                with self.assertRaises(failure, msg=(made, size)):
                    made(tensor.ones((2, 3, 1, 1)) if image else x)
            with self.assertRaises(failure):
                layer.RNN(3, size)([x], tensor.ones((2, 3)))
            with self.assertRaises(failure):
                layer.Embedding(size, 2)(tensor.Tensor((1,), dtype="int32"))

    def test_parts_and_bad_inputs(self):
        with self.assertRaisesRegex(
            NotImplementedError, "Layer defines no forw"
        ):
            layer.Layer()(t(array(1)))
        with self.assertRaisesRegex(TypeError, "Linear: the input is int32"):
            layer.Linear(3)(t(np.ones((2, 2), np.int32)))
        with self.assertRaisesRegex(
            ValueError, r"Linear .*: the input is f32 \(2\); 2 or more dim"
        ):
            layer.Linear(3)(t(array(2)))
        made = layer.Linear(3)
        made(t(array(2, 4)))
        with self.assertRaises(ValueError):
            made(t(array(2, 5)))

    def test_dtype_and_device_checks(self):
        a, b = t(array(2)), t(np.ones(2, np.int32))
        made = layer.Layer()
        made.dtype_check(a, b)
        self.assertEqual(b.dtype, tensor.float32)
        made.device_check(a, b)
        self.assertIs(b.device, a.device)

    def test_a_class_for_a_layer_of_the_library(self):
        made = layer._class_of("linear", "Any")(out_features=3, bias=False)
        x = array(2, 4)
        self.near(made(t(x)), x @ made.W.numpy())
        self.assertEqual(list(made.get_params()), ["W"])
        with self.assertRaisesRegex(ValueError, "linear: out_features is 0"):
            layer._class_of("linear", "Any")()(t(x))
        with self.assertRaisesRegex(TypeError, "ndarray given; a Tensor is n"):
            made(x)

    def test_every_layer_of_the_library_has_a_class(self):
        from choir._calls import lib

        index = 0
        while definition := lib.layer_def_get(index):
            index += 1
            name = lib.layer_def_config(definition).contents.name.decode()
            words = [
                key
                for key, value in vars(layer).items()
                if isinstance(value, type)
                and key.lower() == name.replace("_", "").lower()
            ]
            self.assertTrue(words, name)
        self.assertGreater(index, 5)


if __name__ == "__main__":
    unittest.main()
