# SPDX-License-Identifier: Apache-2.0
"""choir.layer: every layer against NumPy's formula and its gradients, of inputs
and parameters, against finite differences, by one table; in several shapes and
dtypes. What layers refuse, their names and states: layer_test.py."""

import unittest
from dataclasses import dataclass

import numpy as np

from choir import autograd, device, layer
from formulas import (
    RNG,
    apart,
    away,
    erf,
    share,
    sigmoid,
    softmax,
    tensor_of,
    whole,
    windows,
)

CPU = device.create_cpu_device()

# How far a result may be from the formula, and a gradient from a difference.
NEAR = {np.float64: 1e-9, np.float32: 2e-4, np.float16: 2e-2}
SLOPE = {np.float64: 2e-5, np.float32: 2e-3}


@dataclass
class Row:
    """One way to make a layer.

    make: the layer; formula: its results in NumPy, of the parameters by name and
    the inputs; inputs: arrays, those of float64 with a gradient but for the
    places in `constants`. run: the call, where the inputs are not its arguments.
    dtype: of the results, where the input's is not it.
    """

    make: object
    formula: object
    inputs: list
    run: object = None
    constants: tuple = ()
    dtype: object = None

    def made(self, dtype):
        """The layer after its first call, with the parameters that all dtypes
        share."""
        CPU.SetRandSeed(1)
        made = self.make()
        self.call(made, *self.tensors(dtype))
        rng = np.random.default_rng(3)
        for p in made.get_params().values():
            values = rng.uniform(-0.8, 0.8, p.shape)
            p.copy_from_numpy(values.astype(p.numpy().dtype))
        return made

    def tensors(self, dtype):
        return [
            tensor_of(
                x.astype(dtype) if x.dtype == np.float64 else x,
                i not in self.constants,
            )
            for i, x in enumerate(self.inputs)
        ]

    def call(self, made, *xs):
        autograd.place.begin_run()  # the same random numbers each time
        results = self.run(made, *xs) if self.run else made(*xs)
        return results if isinstance(results, list) else [results]

    def expected(self, params, inputs):
        results = self.formula(params, *inputs)
        return results if isinstance(results, list) else [results]

    def __str__(self):
        shapes = [np.shape(x) for x in self.inputs]
        return f"{type(self.make()).__name__} {shapes}"


ROWS: list[Row] = []


def rows(make, formula, *inputs, **more):
    for one in inputs:
        ROWS.append(Row(make, formula, one, **more))


# Linear algebra.
for _bias in (True, False):
    rows(
        lambda b=_bias: layer.Linear(5, bias=b),
        lambda p, x: x @ p["W"] + p.get("b", 0),
        [away(4, 3)],
        [away(1, 7)],
        [away(2, 3, 4)],
        [away(2, 1, 2, 3)],
    )
    for _a, _b in [(False, True), (True, False), (True, True), (False, False)]:
        rows(
            lambda a=_a, b=_b, c=_bias: layer.Gemm(5, 0.5, 2.0, a, b, c),
            lambda p, x, a=_a, b=_b: (
                0.5 * (x.T if a else x) @ (p["W"].T if b else p["W"])
                + 2 * p.get("b", 0)
            ),
            [away(4, 3)],
            [away(2, 2)],
        )
for _start in ("gaussian", "uniform"):
    rows(
        lambda s=_start: layer.Embedding(3, 4, s),
        lambda p, i: p["W"][i.astype(int)],
        [whole(5)],
        [whole(2, 3)],
        [whole(2, 1, 2).astype(np.float32)],
        dtype=np.float32,
    )


rows(
    lambda: layer.PositionEmbedding(5),
    lambda p, x: x + p["W"][: x.shape[-2]],
    [away(5, 3)],
    [away(2, 4, 3)],
    [away(2, 2, 5, 1)],
)

# Images.


def convolved(x, w, b, stride, before, after, dilation, group):
    pads = [(0, 0), (0, 0), *zip(before, after)]
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    found = windows(np.pad(x, pads), reach, stride, (0, 0), 0)
    found = found[..., :: dilation[0], :: dilation[1]]
    parts = [
        np.einsum("nchwij,ocij->nohw", one, kernel)
        for one, kernel in zip(np.split(found, group, 1), np.split(w, group))
    ]
    return np.concatenate(parts, 1) + b[:, None, None]


def conv_row(x, settings, before=(0, 0), after=None):
    """settings: of a Conv2d with 4 kernels of 3 by 2."""

    def formula(p, x):
        y = convolved(
            x,
            p["W"],
            p.get("b", np.zeros(4)),
            settings.get("stride", (1, 1)),
            before,
            before if after is None else after,
            settings.get("dilation", (1, 1)),
            settings.get("group", 1),
        )
        return np.maximum(y, 0) if "activation" in settings else y

    rows(lambda: layer.Conv2d(4, (3, 2), **settings), formula, [x])


conv_row(away(2, 2, 5, 4), {})
conv_row(away(1, 3, 4, 6), {"stride": (2, 1), "padding": (1, 2)}, (1, 2))
conv_row(away(1, 3, 4, 6), {"padding": (1, 0, 2, 1)}, (1, 0), (2, 1))
conv_row(away(2, 2, 6, 5), {"dilation": (2, 3), "bias": False})
conv_row(away(2, 2, 5, 4), {"group": 2, "activation": "RELU"})
conv_row(away(1, 4, 3, 4), {"group": 4, "padding": 1}, (1, 1))
conv_row(away(1, 2, 5, 4), {"stride": (2, 2), "pad_mode": "SAME_UPPER"}, (1, 0))
conv_row(away(1, 2, 4, 5), {"pad_mode": "SAME_LOWER"}, (1, 1), (1, 0))


def separable(p, x, stride, padding):
    deep, point = p["depthwise_conv.W"], p["point_conv.W"]
    y = convolved(
        x,
        deep,
        p.get("depthwise_conv.b", np.zeros(len(deep))),
        (stride,) * 2,
        (padding,) * 2,
        (padding,) * 2,
        (1, 1),
        len(deep),
    )
    y = np.einsum("nchw,oc->nohw", y, point[:, :, 0, 0])
    return y + p.get("point_conv.b", np.zeros(len(point)))[:, None, None]


for _bias, _stride, _padding in [(False, 1, 0), (True, 2, 1)]:
    rows(
        lambda b=_bias, s=_stride, d=_padding: layer.SeparableConv2d(
            5, 3, stride=s, padding=d, bias=b
        ),
        lambda p, x, s=_stride, d=_padding: separable(p, x, s, d),
        [away(2, 3, 5, 4)],
        [away(1, 2, 3, 6)],
    )


def normed(p, x):
    axes = (0,) if x.ndim == 2 else (0, 2, 3)
    wide = (slice(None),) + (None,) * (x.ndim - 2)
    y = (x - x.mean(axes)[wide]) / np.sqrt(x.var(axes)[wide] + 1e-5)
    return y * p["scale"][wide] + p["bias"][wide]


rows(
    layer.BatchNorm2d, normed,
    [away(3, 2, 2, 2)], [away(2, 3, 1, 4)], [away(6, 3)], [away(4, 1)],
)  # fmt: skip


def row_normed(p, x, centred):
    x = x - x.mean(-1, keepdims=True) if centred else x
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return y * p["scale"] + p.get("bias", 0)


for _norm in (
    layer.LayerNorm,
    lambda: layer.LayerNorm(bias=False),
    layer.RMSNorm,
):
    rows(
        _norm,
        lambda p, x, c=_norm is not layer.RMSNorm: row_normed(p, x, c),
        [away(3, 4)],
        [away(2, 3, 5)],
        [away(2, 1, 2, 3)],
    )


def transposed(x, w, stride, padding, more, groups):
    (h, wide), (kh, kw) = x.shape[2:], w.shape[2:]
    size = [(n - 1) * s + k for n, s, k in zip((h, wide), stride, (kh, kw))]
    parts = []
    for one, kernel in zip(np.split(x, groups, 1), np.split(w, groups)):
        y = np.zeros((len(x), w.shape[1], size[0] + more, size[1] + more))
        for i, j in np.ndindex(kh, kw):
            part = np.einsum("nchw,co->nohw", one, kernel[:, :, i, j])
            rows = slice(i, i + h * stride[0], stride[0])
            y[:, :, rows, j : j + wide * stride[1] : stride[1]] += part
        end = [n + more - padding for n in size]
        parts.append(y[:, :, padding : end[0], padding : end[1]])
    return np.concatenate(parts, 1)


for _stride, _padding, _more, _group, _bias in [
    ((1, 1), 0, 0, 1, True),
    ((2, 3), 1, 1, 2, True),
    ((2, 2), 0, 0, 2, False),
]:
    rows(
        lambda s=_stride, d=_padding, m=_more, g=_group, b=_bias: (
            layer.ConvTranspose2d(4, (3, 2), s, d, m, group=g, bias=b)
        ),
        lambda p, x, s=_stride, d=_padding, m=_more, g=_group: (
            transposed(x, p["W"], s, d, m, g)
            + p.get("b", np.zeros(4))[:, None, None]
        ),
        [away(1, 2, 3, 4)],
        [away(2, 4, 2, 3)],
    )


def turned(x, theta):
    """Pairs of columns as complex numbers, times e^(i angle)."""
    half = x.shape[-1] // 2
    speeds = theta ** -(np.arange(half) / half)
    turns = np.exp(1j * np.outer(np.arange(x.shape[-2]), speeds))
    y = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([y.real, y.imag], -1)


def attended(p, query, key, value, heads, causal, kv_heads=None, rotary=None):
    def split(x, part, heads):
        y = x @ p[f"{part}.W"] + p.get(f"{part}.b", 0)
        return y.reshape(y.shape[:2] + (heads, -1)).transpose(0, 2, 1, 3)

    q = split(query, "query", heads)
    k, v = (
        np.repeat(
            split(x, part, kv_heads or heads), heads // (kv_heads or heads), 1
        )
        for x, part in ((key, "key"), (value, "value"))
    )
    if rotary:
        q, k = turned(q, rotary), turned(k, rotary)
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        scores = np.where(np.tri(*scores.shape[2:]), scores, -np.inf)
    y = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    y = y.reshape(query.shape[:2] + (-1,))
    return y @ p["out.W"] + p.get("out.b", 0)


rows(
    lambda: layer.MultiHeadAttention(2, causal=True),
    lambda p, x: attended(p, x, x, x, 2, True),
    [share(2, 3, 4)],
    [share(1, 1, 2)],
)
for _kv in (1, 2, 4):
    rows(
        lambda g=_kv: layer.MultiHeadAttention(4, kv_heads=g, causal=True),
        lambda p, x, g=_kv: attended(p, x, x, x, 4, True, g),
        [share(2, 3, 8)],
    )
    # With a mask, which goes by all weights.
    rows(
        lambda g=_kv: layer.MultiHeadAttention(4, 2, 3, kv_heads=g),
        lambda p, x, mask, g=_kv: attended(p, x, x, x, 4, True, g),
        [share(2, 3, 5), np.tri(3, dtype=np.int32)],
        run=lambda made, x, mask: made(x, mask=mask),
    )
rows(
    lambda: layer.MultiHeadAttention(4, 6, kv_heads=2, causal=True, rotary=100),
    lambda p, x: attended(p, x, x, x, 4, True, 2, 100.0),
    [share(2, 5, 3)],
)
rows(
    lambda: layer.MultiHeadAttention(2, 3, 1, False),
    lambda p, q, k, v: attended(p, q, k, v, 2, False),
    [share(2, 3, 5), share(2, 4, 3), share(2, 4, 2)],
)


ACTIVATIONS = {
    "gelu": lambda x: x / 2 * (1 + erf(x / 2**0.5)),
    "gelu_tanh": lambda x: (
        x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
}


def fed_forward(p, x, activation, gated):
    def product(x, name):
        return x @ p[name + ".W"] + p.get(name + ".b", 0)

    inner = ACTIVATIONS[activation](product(x, "gate" if gated else "expand"))
    if gated:
        inner = inner * product(x, "expand")
    return product(inner, "shrink")


for _name in ACTIVATIONS:
    for _gated in (False, True):
        rows(
            lambda n=_name, g=_gated: layer.FeedForward(6, n, g),
            lambda p, x, n=_name, g=_gated: fed_forward(p, x, n, g),
            [share(2, 3, 4)],
            [share(3, 2)],
        )
rows(
    lambda: layer.FeedForward(bias=False),
    lambda p, x: fed_forward(p, x, "gelu", False),
    [share(2, 3)],
)


def pooled(x, kernel, stride, padding, is_max):
    fill = -9e9 if is_max else 0
    found = windows(x, kernel, stride, padding, fill)
    return found.max((4, 5)) if is_max else found.mean((4, 5))


for _kernel, _stride, _padding in [
    ((2, 2), None, (0, 0)),
    ((3, 2), (2, 1), (1, 0)),
    ((3, 3), (1, 1), (1, 1)),
]:
    for _is_max in (True, False):
        for _make in (
            lambda *a, m=_is_max: layer.Pooling2d(*a, m),
            layer.MaxPool2d if _is_max else layer.AvgPool2d,
        ):
            rows(
                lambda f=_make, k=_kernel, s=_stride, d=_padding: f(k, s, d),
                lambda p, x, k=_kernel, s=_stride, d=_padding, m=_is_max: (
                    pooled(x, k, s or k, d, m)
                ),
                [apart(2, 2, 5, 4)],
                [apart(1, 3, 4, 6)],
            )
for _kernel, _stride, _padding in [(2, None, 0), (3, 2, 1)]:
    for _make in (layer.MaxPool1d, layer.AvgPool1d):
        rows(
            lambda f=_make, k=_kernel, s=_stride, d=_padding: f(k, s, d),
            lambda p, x, k=_kernel, s=_stride, d=_padding, f=_make: pooled(
                x, (1, k), (1, s or k), (0, d), f is layer.MaxPool1d
            ),
            [apart(2, 2, 1, 8)],
            [apart(1, 1, 2, 5)],
        )


# Over steps.


def rnn(p, xs, h, f):
    results = []
    for x in xs:
        h = f(x @ p["Wx"] + h @ p["Wh"] + p.get("b", 0))
        results.append(h)
    return results + [h]


def run_rnn(made, *xs):
    outs, last = made(list(xs[:-1]), xs[-1])
    return outs + [last]


for _name, _f in [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0))]:
    for _bias in (True, False):
        rows(
            lambda n=_name, b=_bias: layer.RNN(3, 4, nonlinearity=n, bias=b),
            lambda p, *xs, f=_f: rnn(p, xs[:-1], xs[-1], f),
            [away(2, 3), away(2, 3), away(2, 4)],
            [away(1, 3), away(1, 4)],
            run=run_rnn,
        )


def lstm(p, xs, h, c):
    results = []
    for x in xs:
        i, f, o, g = (
            x @ p[f"Wx_{k}"] + h @ p[f"Wh_{k}"] + p.get(f"b_{k}", 0)
            for k in "ifog"
        )
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        results.append(h)
    return results + [h, c]


def run_lstm(made, *xs):
    outs, h, c = made(list(xs[:-2]), xs[-2:])
    return outs + [h, c]


for _bias in (True, False):
    rows(
        lambda b=_bias: layer.LSTM(3, 4, bias=b),
        lambda p, *xs: lstm(p, xs[:-2], *xs[-2:]),
        [away(2, 3), away(2, 3), away(2, 4), away(2, 4)],
        [away(1, 3), away(1, 4), away(1, 4)],
        run=run_lstm,
    )


def gru(xs, h, Wx, Wh, b, bn):
    results = []
    for x in xs:
        xr, xz, xn = np.split(x @ Wx + b, 3, 1)
        hr, hz, hn = np.split(h @ Wh, 3, 1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        h = (1 - z) * np.tanh(xn + r * (hn + bn)) + z * h
        results.append(h)
    return results + [h]


rows(
    lambda: layer.GRU(3, 4),
    lambda p, *xs: gru(xs[:-1], xs[-1], p["Wx"], p["Wh"], p["b"], p["bn"]),
    [away(2, 3), away(2, 3), away(2, 4)],
    [away(1, 3), away(1, 4)],
    run=run_rnn,
)


def cudnn_gru(p, x):
    """x (N, T, F) with the weights one after the other in W."""
    n, m = x.shape[2], 4
    cuts = np.cumsum([n * 3 * m, m * 3 * m, 3 * m])
    Wx, Wh, b, bn = np.split(p["W"], cuts)
    Wx, Wh = Wx.reshape(n, 3 * m), Wh.reshape(m, 3 * m)
    steps = gru(x.transpose(1, 0, 2), np.zeros((len(x), m)), Wx, Wh, b, bn)
    return np.stack(steps[:-1], 1)


rows(
    lambda: layer.CudnnRNN(4, rnn_mode="gru"),
    cudnn_gru,
    [away(2, 3, 5)],
    [away(1, 1, 2)],
)


# Without parameters.
for _make, _formula in [
    (layer.ReLU, lambda x: np.maximum(x, 0)),
    (layer.Sigmoid, sigmoid),
    (layer.Tanh, np.tanh),
    (layer.Gelu, lambda x: x / 2 * (1 + erf(x / 2**0.5))),
    (layer.Silu, lambda x: x / (1 + np.exp(-x))),
    (layer.SoftMax, lambda x: softmax(x.reshape(len(x), -1)).reshape(x.shape)),
]:
    rows(
        _make, lambda p, x, f=_formula: f(x),
        [away(3, 4)], [away(1, 1)], [away(2, 3, 2, 2)],
    )  # fmt: skip
rows(
    layer.Add, lambda p, a, b: a + b,
    [away(2, 3), away(2, 3)], [away(2, 3, 2), away(3, 1)],
)  # fmt: skip
rows(layer.Flatten, lambda p, x: x.reshape(len(x), -1), [away(2, 3, 4)])
for _axis, _shape in [(0, (1, 24)), (2, (6, 4)), (-1, (6, 4))]:
    rows(
        lambda a=_axis: layer.Flatten(a),
        lambda p, x, s=_shape: x.reshape(s),
        [away(2, 3, 4)],
        [away(3, 2, 2, 2)] if _shape[0] == 1 else [away(1, 6, 4)],
    )
for _shape in [(4, 6), (-1,), (2, 1, 12)]:
    rows(
        layer.Reshape,
        lambda p, x, s=_shape: x.reshape(s),
        [away(2, 3, 4)],
        [away(24)],
        run=lambda made, x, s=_shape: made(x, s),
    )
for _axis in (0, 1, -1):
    rows(
        lambda a=_axis: layer.Cat(a),
        lambda p, *xs, a=_axis: np.concatenate(xs, a),
        [away(2, 3), away(2, 3)],
        [away(2, 3, 1), away(2, 3, 1), away(2, 3, 1)],
        run=lambda made, *xs: made(list(xs)),
    )


def dropped(ratio):
    """What the layer's first step makes of ones; its masks: layer_test.py."""

    def formula(p, x):
        CPU.SetRandSeed(1)
        autograd.place.begin_run()
        return x * layer.Dropout(ratio)(tensor_of(np.ones(x.shape))).numpy()

    return formula


for _ratio in (0.0, 0.3):
    rows(
        lambda r=_ratio: layer.Dropout(r),
        dropped(_ratio),
        [away(5, 4)],
        [away(2, 3, 2)],
    )

# Losses: of class numbers, of rows with a one, of any numbers.


def picked(p, ids):
    return -np.log(p[np.arange(len(p)), ids.reshape(-1)]).mean().reshape(1)


def summed(p, t):
    return -(t * np.log(p)).sum().reshape(1) / len(p)


for _make, _formula, _x in [
    (layer.SoftMaxCrossEntropy, softmax, [away(4, 3), away(1, 5)]),
    (layer.CrossEntropy, lambda x: x, [share(4, 3), share(1, 5)]),
]:
    for _one in _x:
        _ids = whole(len(_one))
        rows(
            _make, lambda p, x, t, f=_formula: picked(f(x), t),
            [_one, _ids], [_one, _ids[:, None]],
        )  # fmt: skip
        rows(
            _make, lambda p, x, t, f=_formula: summed(f(x), t),
            [_one, np.eye(_one.shape[1])[_ids]], [_one, share(*_one.shape)],
            constants=(1,),
        )  # fmt: skip
rows(
    layer.BinaryCrossEntropy,
    lambda p, x, t: -(t * np.log(x + 1e-4) + (1 - t) * np.log(1 - x + 1e-4))
    .sum()
    .reshape(1)
    / len(x),
    [RNG.uniform(0.1, 0.9, (3, 2)), RNG.uniform(0.1, 0.9, (3, 2))],
    [RNG.uniform(0.1, 0.9, (5, 1)), np.eye(5)[:, :1]],
    constants=(1,),
)
rows(
    layer.MeanSquareError,
    lambda p, x, t: ((x - t) ** 2).mean().reshape(1),
    [away(2, 3), away(2, 3)],
    [away(4), away(4)],
    [away(2, 1, 3), away(2, 1, 3)],
)

# Base classes, which define nothing to compute.
ABSTRACT = {"Layer", "RNN_Base"}


class EveryLayer(unittest.TestCase):
    def setUp(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)

    def test_forward_is_the_formula(self):
        for row in ROWS:
            for dtype, tolerance in NEAR.items():
                with self.subTest(str(row), dtype=dtype.__name__):
                    made = row.made(dtype)
                    xs = row.tensors(dtype)
                    # In NumPy from the same rounded numbers, in float64.
                    params, inputs = in_float64(made.get_params(), xs)
                    expected = row.expected(params, inputs)
                    results = row.call(made, *xs)
                    self.assertEqual(len(results), len(expected))
                    if row.dtype is not None:
                        dtype, tolerance = row.dtype, NEAR[row.dtype]
                    for got, right in zip(results, expected):
                        got = got.numpy()
                        self.assertEqual(got.dtype, dtype)
                        self.assertEqual(got.shape, right.shape)
                        np.testing.assert_allclose(
                            got.astype(np.float64), right, tolerance, tolerance
                        )

    def test_gradients_are_those_of_finite_differences(self):
        for row in ROWS:
            for dtype, tolerance in SLOPE.items():
                with self.subTest(str(row), dtype=dtype.__name__):
                    self.compare_slopes(row, dtype, tolerance)

    def compare_slopes(self, row, dtype, tolerance):
        made = row.made(dtype)
        xs = row.tensors(dtype)
        tensors = made.get_params()
        if row.dtype is not None:
            tolerance = SLOPE[row.dtype]
        for i, x in enumerate(row.inputs):
            if x.dtype == np.float64 and i not in row.constants:
                tensors[i] = xs[i]
        params, inputs = in_float64(made.get_params(), xs)
        results = row.call(made, *xs)
        rng = np.random.default_rng(5)
        weights = [rng.uniform(0.5, 1.5, y.shape) for y in results]
        loss = tensor_of(np.zeros((), results[0].numpy().dtype), False)
        for y, w in zip(results, weights):
            w = tensor_of(w.astype(y.numpy().dtype), False)
            loss = loss + autograd.reduce_sum(y * w, None, 0)
        self.assertTrue(tensors, "nothing has a gradient")
        grads = autograd.grad(loss, list(tensors.values()))

        def at():
            expected = row.expected(params, inputs)
            return sum((y * w).sum() for y, w in zip(expected, weights))

        step = 1e-5
        for (name, value), grad in zip(tensors.items(), grads):
            self.assertIsNotNone(grad, name)
            self.assertEqual(grad.dtype, value.dtype)
            array = inputs[name] if isinstance(name, int) else params[name]
            expected = np.zeros(array.shape)
            for place in np.ndindex(array.shape):
                before = array[place]
                array[place] = before + step
                expected[place] = at()
                array[place] = before - step
                expected[place] -= at()
                array[place] = before
            np.testing.assert_allclose(
                grad.numpy(),
                expected / (2 * step),
                tolerance,
                tolerance,
                err_msg=str(name),
            )

    def test_every_layer_is_here(self):
        """A public class of choir.layer needs rows above, of several shapes."""
        shapes = {}
        for row in ROWS:
            shape = tuple(x.shape for x in row.inputs)
            shapes.setdefault(type(row.make()), set()).add(shape)
        for name, value in vars(layer).items():
            if (
                isinstance(value, type)
                and issubclass(value, layer.Layer)
                and not name.startswith("_")
                and name not in ABSTRACT
            ):
                self.assertGreater(len(shapes.get(value, ())), 1, name)


def in_float64(params, xs):
    """Arrays of parameters, by name, and of tensors, to compute with."""

    def wide(t):
        array = t.numpy()
        is_float = array.dtype.kind == "f"
        return array.astype(np.float64) if is_float else array.copy()

    return {n: wide(p) for n, p in params.items()}, [wide(x) for x in xs]


if __name__ == "__main__":
    unittest.main()
