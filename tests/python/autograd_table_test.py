# SPDX-License-Identifier: Apache-2.0
"""choir.autograd: every function and every op against NumPy's formula and its
gradient against finite differences, by one table."""

import inspect
import math
import unittest
from dataclasses import dataclass

import numpy as np

from choir import _raw, autograd, tensor
from formulas import (
    RNG,
    above_one,
    apart,
    away,
    bits,
    erf,
    half_away,
    inside,
    positive,
    share,
    sigmoid,
    softmax,
    tensor_of,
    to_depth,
    to_space,
    whole,
    windows,
)


# ---- The table ----


@dataclass
class Row:
    """One way to call one function.

    name: of autograd; run: the call, of tensors; formula: the same in NumPy;
    inputs: arrays, of which those of float64 have gradients. op: the C op that it
    is about. grad: whether there is a gradient; flat: whether it is 0.
    """

    name: str
    formula: object
    inputs: list
    run: object = None
    op: str | None = None
    grad: bool = True
    tolerance: float = 1e-9
    flat: bool = False

    def call(self, *xs):
        if self.run is not None:
            return self.run(*xs)
        return getattr(autograd, self.name)(*xs)

    def __str__(self):
        return f"{self.name} {[np.shape(x) for x in self.inputs]}"


def op_row(name, formula, inputs, grad=True, **settings):
    """For an op that has no function of its own name."""

    def run(*xs):
        return autograd._op(name, *xs, **settings)

    return Row(name, formula, inputs, run, name, grad)


ROWS: list[Row] = []


def rows(name, formula, *inputs, **more):
    for one in inputs:
        ROWS.append(Row(name, formula, one, **more))


# Of one tensor.
for _name, _op, _formula, _make in [
    ("negative", "neg", np.negative, away), ("abs", None, np.abs, away),
    ("exp", None, np.exp, away), ("log", None, np.log, positive),
    ("sqrt", None, np.sqrt, positive), ("square", None, np.square, away),
    ("relu", None, lambda x: np.maximum(x, 0), away),
    ("sigmoid", None, sigmoid, away), ("tanh", None, np.tanh, away),
    ("gelu", None, lambda x: x / 2 * (1 + erf(x / 2**0.5)), away),
    (
        "gelu_tanh", None,
        lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        away,
    ),
    ("silu", None, lambda x: x / (1 + np.exp(-x)), away),
    ("reciprocal", None, lambda x: 1 / x, positive),
    ("sin", None, np.sin, away), ("cos", None, np.cos, away),
    ("tan", None, np.tan, inside), ("asin", None, np.arcsin, inside),
    ("acos", None, np.arccos, inside), ("atan", None, np.arctan, away),
    ("sinh", None, np.sinh, away), ("cosh", None, np.cosh, away),
    ("asinh", None, np.arcsinh, away), ("acosh", None, np.arccosh, above_one),
    ("atanh", None, np.arctanh, inside), ("erf", None, erf, away),
    ("softplus", None, lambda x: np.log1p(np.exp(x)), away),
    ("softsign", None, lambda x: x / (1 + np.abs(x)), away),
    ("identity", "copy", lambda x: x, away),
]:  # fmt: skip
    rows(
        _name, _formula, [_make(5)], [_make(2, 3)], [_make()], [_make(2, 1, 3, 2)],
        op=_op or _name,
    )  # fmt: skip
for _name, _op, _formula in [
    ("ceil", "ceil", np.ceil), ("floor", "floor", np.floor),
    ("round", "round", half_away), ("rounde", "round_even", np.round),
    ("sign", "sign", np.sign),
]:  # fmt: skip
    rows(_name, _formula, [away(7)], [away(2, 3)], op=_op, flat=True)
HALVES = np.array([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5])
rows(
    "round",
    lambda x: np.array([-3, -2, -1, 0, 1, 2, 3.0]),
    [HALVES],
    grad=False,
)
rows(
    "rounde",
    lambda x: np.array([-2, -2, 0, 0, 0, 2, 2.0]),
    [HALVES],
    grad=False,
)

# With settings.
for _name, _op, _formula, _settings in [
    ("elu", "elu", lambda x, a=1: np.where(x < 0, a * (np.exp(x) - 1), x), [(), (0.7,)]),
    (
        "selu", "selu",
        lambda x, a=1.67326, g=1.0507: g * np.where(x > 0, x, a * (np.exp(x) - 1)),
        [(), (1.2, 0.8)],
    ),
    ("leakyrelu", "leaky_relu", lambda x, a=0.01: np.where(x < 0, a * x, x), [(), (0.2,)]),
    (
        "hardsigmoid", "hard_sigmoid",
        lambda x, a=0.2, g=0.5: np.clip(a * x + g, 0, 1), [(), (0.7, 0.35)],
    ),
    (
        "clip", "clip",
        lambda x, low=None, high=None: np.clip(
            x, -np.inf if low is None else low, np.inf if high is None else high
        ),
        [(), (-0.5, 1), (0,), (None, 0.5)],
    ),
]:  # fmt: skip
    for _given in _settings:
        rows(
            _name,
            lambda x, f=_formula, g=_given: f(x, *g),
            [away(9)],
            [away(2, 3)],
            run=lambda x, n=_name, g=_given: getattr(autograd, n)(x, *g),
            op=_op,
        )
ROWS.append(
    op_row("scale", lambda x: 3 * x - 2, [away(2, 3)], factor=3.0, shift=-2.0)
)

# Of two tensors.
PAIRS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 3), ()),
    ((4, 1, 2), (3, 1)),
]
for _name, _op, _formula, _left, _right in [
    ("add", "add", np.add, away, away), ("sub", "sub", np.subtract, away, away),
    ("mul", "mul", np.multiply, away, away),
    ("div", "div", np.divide, away, positive),
    ("pow", "pow", np.power, positive, away),
    ("prelu", "prelu", lambda x, a: np.where(x < 0, a * x, x), away, away),
]:  # fmt: skip
    rows(_name, _formula, *[[_left(*a), _right(*b)] for a, b in PAIRS], op=_op)
for _name, _formula in [("maximum", np.maximum), ("minimum", np.minimum)]:
    for _a, _b in PAIRS:
        _values = apart(math.prod(_a) + math.prod(_b))
        _inputs = [
            _values[: math.prod(_a)].reshape(_a),
            _values[math.prod(_a) :].reshape(_b),
        ]
        ROWS.append(op_row(_name, _formula, _inputs))
for _name, _op, _formula in [
    ("less", "less", np.less), ("greater", "greater", np.greater),
    ("equal", "equal", np.equal), ("less_equal", "less_equal", np.less_equal),
    ("greater_equal", "greater_equal", np.greater_equal),
    ("not_equal", "not_equal", np.not_equal),
]:  # fmt: skip
    rows(
        _name, lambda a, b, f=_formula: f(a, b).astype(float),
        [bits(7), bits(7)], [bits(2, 3), bits(3)], op=_op, grad=False,
    )  # fmt: skip
for _name, _op, _formula in [
    ("_and", "logical_and", np.logical_and), ("_or", "logical_or", np.logical_or),
    ("_xor", "logical_xor", np.logical_xor),
]:  # fmt: skip
    rows(
        _name, lambda a, b, f=_formula: f(a, b).astype(float),
        [2 * bits(9), bits(9)], [bits(2, 3), bits(3)], op=_op, grad=False,
    )  # fmt: skip
rows(
    "_not",
    lambda x: np.logical_not(x).astype(float),
    [3 * bits(7)],
    op="logical_not",
    grad=False,
)

# Of several.
THREE = [away(2, 3), away(2, 3), away(3)]
for _name, _formula in [
    ("sum", lambda *l: l[0] + l[1] + l[2]), ("add_all", lambda *l: l[0] + l[1] + l[2]),
    ("mean", lambda *l: (l[0] + l[1] + l[2]) / 3),
]:  # fmt: skip
    rows(_name, _formula, THREE)
SPREAD = list(apart(3, 2, 3))
rows("max", lambda *l: np.max(l, 0), SPREAD)
rows("min", lambda *l: np.min(l, 0), SPREAD)
rows("min", lambda x: x, [away(3)])

# Shapes.
_x = away(2, 3, 4)


def shaped(name, formula, *arguments, x=_x, op=None, grad=True, **named):
    rows(
        name, formula, [x], op=op, grad=grad,
        run=lambda t: getattr(autograd, name)(t, *arguments, **named),
    )  # fmt: skip


shaped("reshape", lambda x: x.reshape(2, 12), (0, -1), op="reshape")
shaped("reshape", lambda x: x.reshape(4, 6), np.array([4, 6]))
shaped("reshape", lambda x: x.reshape(24), tensor_of(np.int32([24])))
shaped("flatten", lambda x: x.reshape(2, 12))
shaped("flatten", lambda x: x.reshape(6, 4), 2)
shaped("flatten", lambda x: x.reshape(6, 4), -1)
shaped("flatten", lambda x: x.reshape(1, 24), 0)
shaped("flatten", lambda x: x.reshape(24, 1), 3)
ROWS.append(op_row("flatten", lambda x: x.reshape(2, 12), [_x], axis=1))
shaped("transpose", lambda x: x.transpose(1, 2, 0), (1, 2, 0), op="transpose")
shaped("transpose", lambda x: x.T)
shaped("unsqueeze", lambda x: x[..., None])
shaped("unsqueeze", lambda x: x[:, None], 1)
shaped("unsqueeze", lambda x: x[None, :, None, :, :, None], [0, 2, -1])
shaped("squeeze", lambda x: x.reshape(2, 3), x=away(1, 2, 1, 3))
shaped("squeeze", lambda x: x.reshape(1, 2, 3), [2], x=away(1, 2, 1, 3))
shaped("squeeze", lambda x: x.reshape(2, 1, 3), -4, x=away(1, 2, 1, 3))
shaped(
    "expand", lambda x: np.broadcast_to(x, (4, 2, 3)), (4, 2, 1), x=away(2, 3)
)
shaped("expand", lambda x: np.broadcast_to(x, (2, 3)), [1], x=away(2, 3))
ROWS.append(
    op_row("broadcast_to", lambda x: np.broadcast_to(x, (4, 2, 3)), [away(2, 1)],
           ndim=3, shape=(4, 2, 3))
)  # fmt: skip
for _axis in (0, 1, -1):
    rows(
        "cat", lambda *l, a=_axis: np.concatenate(l, a), [away(2, 2), away(2, 2), away(2, 2)],
        run=lambda *l, a=_axis: autograd.cat(l, a), op="concat",
    )  # fmt: skip
for _i in range(3):
    rows(
        "split", lambda x, i=_i: np.split(x, [1, 1], 2)[i], [_x],
        run=lambda t, i=_i: autograd.split(t, 2, [1, 0, 3])[i],
    )  # fmt: skip
    rows(
        "split", lambda x, i=_i: np.split(x, 3, 1)[i], [_x],
        run=lambda t, i=_i: autograd.split(t, 1, None, 3)[i],
    )  # fmt: skip
shaped("slice", lambda x: x[1:, 0:2], [1, 0], [2, 2], op="slice")
shaped("slice", lambda x: x[:, 2:0:-1, ::2], [2, 0], [0, 99], [1, 2], [-1, 2])
shaped("slice", lambda x: x[:, :, -3:-1], (-3,), (-1,), (-1,))
shaped("slice", lambda x: x[:, ::-1], [-1], [-99], [1], [-1])
shaped("tile", lambda x: np.tile(x, (2, 1, 3)), (2, 1, 3), op="tile")
shaped("tile", lambda x: np.tile(x, 2), 2)
shaped("tile", lambda x: np.tile(x, (2, 1, 1, 2)), [2, 1, 1, 2])
shaped("pad", lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=9), "constant",
       [1, 2, 0, 3], 9.0, x=away(2, 3), op="pad")  # fmt: skip
shaped("pad", lambda x: np.pad(x, ((1, 0), (2, 1)), "reflect"), "reflect", [1, 2, 0, 1],
       x=away(2, 3))  # fmt: skip
shaped("pad", lambda x: np.pad(x, ((1, 2), (0, 4)), "edge"), b"edge", [1, 0, 2, 4],
       x=away(2, 3))  # fmt: skip
shaped("upsample", lambda x: x.repeat(2, 2).repeat(3, 3), "nearest", [1, 1, 2, 3],
       x=away(1, 2, 2, 3), op="repeat")  # fmt: skip


_deep, _wide = away(2, 8, 2, 3), away(2, 2, 4, 6)
shaped("depth_to_space", lambda x: to_space(x, 2, True), 2, x=_deep)
shaped("depth_to_space", lambda x: to_space(x, 2, False), 2, "CRD", x=_deep)


shaped("space_to_depth", lambda x: to_depth(x, 2, True), 2, x=_wide)
shaped("space_to_depth", lambda x: to_depth(x, 2, False), 2, "CRD", x=_wide)
shaped("shape", lambda x: np.int32([2, 3, 4]), grad=False)
rows("cast", lambda x: x, [_x], run=lambda t: autograd.cast(t, "float32"), op="cast",
     tolerance=1e-6)  # fmt: skip
shaped("cast", lambda x: x.astype(np.int32), tensor.int32, grad=False)
shaped("nonzero", lambda x: np.array(np.nonzero(x)), x=bits(2, 5), grad=False)
shaped("constant_of_shape", lambda x: np.full((2, 3), 1.5, np.float32), 1.5,
       x=np.int32([2, 3]), grad=False)  # fmt: skip

# Selecting.
for _indices in ([2, 0, -1], np.array([[0, 1], [2, 2]]), tensor_of(np.float32([1, 1])),
                 tensor_of(np.int32([[-1], [0]]))):  # fmt: skip
    _plain = np.asarray(_indices).astype(int)
    shaped(
        "gather", lambda x, i=_plain: np.take(x, i, 1), 1, _indices, op="gather"
    )
    shaped("gather", lambda x, i=_plain: np.take(x, i, -1), -1, _indices)
rows(
    "embedding",
    lambda i, w: w[i],
    [whole(2, 3), away(3, 4)],
    [whole(5), away(3, 1)],
)
rows(
    "embedding",
    lambda i, w: w[i.astype(int)],
    [np.float32([[2, 0]]), away(3, 4)],
)


def scattered(x, u, axis):
    """ONNX's definition, element by element."""
    y = x.copy()
    for place in np.ndindex(u.shape):
        target = list(place)
        target[axis] = [[2, 0], [1, 1]][place[0]][place[1]]
        y[tuple(target)] = u[place]
    return y


for _axis in (0, 1, -1):
    rows(
        "scatter_elements", lambda x, u, a=_axis: scattered(x, u, a),
        [away(3, 3), away(2, 2)],
        run=lambda x, u, a=_axis: autograd.scatter_elements(x, [[2, 0], [1, 1]], u, a),
        op="scatter_elements",
    )  # fmt: skip
_order = np.array([[2, 0, 1], [1, 2, 0]])


def placed(x, u):
    y = x.copy()
    np.put_along_axis(y, _order, u, 1)
    return y


rows("scatter_elements", placed, [away(2, 3), away(2, 3)],
     run=lambda x, u: autograd.scatter_elements(x, _order, u, axis=-1))  # fmt: skip
rows("scatter_elements", lambda x: placed(x, np.ones((2, 3))), [away(2, 3)],
     run=lambda x: autograd.scatter_elements(x, tensor_of(_order.astype(np.int32)),
                                             [[1.0] * 3] * 2, 1))  # fmt: skip
rows(
    "gather_elements", lambda x, i: np.take_along_axis(x, i, 1),
    [away(2, 3), whole(2, 4)],
    run=lambda x, i: autograd._op("gather_elements", x, i, axis=1), op="gather_elements",
)  # fmt: skip
for _c in (
    [True, False, True],
    [[1.0], [0.0]],
    np.array([[0, 2, 0]], np.int32),
):
    rows(
        "where", lambda x, y, c=_c: np.where(np.asarray(c) != 0, x, y),
        [away(2, 3), away(2, 3)], [away(2, 3), away(3)],
        run=lambda x, y, c=_c: autograd.where(x, y, c), op="where",
    )  # fmt: skip
for _axis in (-1, 0, 1):
    rows(
        "onehot", lambda i, a=_axis: np.moveaxis(np.where(np.eye(3)[i] > 0, 5.0, 2.0), -1, a),
        [whole(2, 4)], run=lambda i, a=_axis: autograd.onehot(a, i, 3, [2, 5]), op="one_hot",
        grad=False,
    )  # fmt: skip

# Reductions.
for _name, _formula in [("reduce_sum", np.sum), ("reduce_mean", np.mean)]:
    for _axes in (None, [1], [0, -1], (2, 1, 0), 1):
        _numpy_axes = tuple(np.atleast_1d(_axes)) if _axes is not None else None
        for _keep in (1, 0):
            shaped(
                _name, lambda x, f=_formula, a=_numpy_axes, k=_keep: f(x, a, keepdims=bool(k)),
                _axes, _keep, op=_name[7:],
            )  # fmt: skip
rows("max", lambda x: x.max(1), [apart(2, 3, 2)],
     run=lambda x: tensor.max(x, 1), op="max")  # fmt: skip
rows("argmax", lambda x: x.argmax(1), [apart(2, 3, 2)],
     run=lambda x: tensor.argmax(x, 1), op="argmax", grad=False)  # fmt: skip
shaped(
    "globalaveragepool",
    lambda x: x.mean((2, 3), keepdims=True),
    x=away(2, 3, 2, 4),
)
shaped("globalaveragepool", lambda x: x.mean((1, 2), keepdims=True), "channels_last",
       x=away(2, 3, 2, 4))  # fmt: skip

# Linear algebra.
rows("matmul", lambda a, b: a @ b, [away(2, 3), away(3, 4)], [away(5, 2, 3), away(5, 3, 2)],
     [away(2, 1, 2, 3), away(3, 3, 2)], op="matmul")  # fmt: skip
rows("matmul", lambda a, b: a @ b.swapaxes(-1, -2), [away(2, 3), away(4, 3)],
     [away(5, 2, 3), away(4, 3)],
     run=lambda a, b: autograd.matmul(a, b, transpose_b=True))  # fmt: skip
rows("matmul", lambda a, b: a.swapaxes(-1, -2) @ b.swapaxes(-1, -2),
     [away(2, 3, 2), away(2, 4, 3)],
     run=lambda a, b: autograd.matmul(a, b, True, True))  # fmt: skip
rows(
    "linear",
    lambda x, w, b: x @ w + b,
    [away(2, 3), away(3, 4), away(4)],
    op="linear",
)
rows("add_bias", lambda x, b: x + b, [away(2, 3), away(3)])
rows("add_bias", lambda x, b: x + b[:, None], [away(2, 3), away(2)],
     run=lambda x, b: autograd.add_bias(x, b, 1))  # fmt: skip
rows("gemm", lambda a, b: a @ b, [away(2, 3), away(3, 4)])
rows("gemm", lambda a, b, c: 0.5 * a.T @ b.T + 2 * c, [away(3, 2), away(4, 3), away(4)],
     run=lambda a, b, c: autograd.gemm(a, b, c, 0.5, 2.0, 1, 1))  # fmt: skip
rows("cossim", lambda a, b: (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1)),
     [away(3, 4), away(3, 4)])  # fmt: skip

# Images.


def convolved(x, w, b):
    found = windows(x, w.shape[2:], (2, 1), (1, 0), 0)
    return np.einsum("nchwij,ocij->nohw", found, w) + b[:, None, None]


_image = away(2, 2, 5, 4)
ROWS.append(op_row("conv2d", convolved, [_image, away(3, 2, 3, 2), away(3)],
                   stride=(2, 1), padding=(1, 0)))  # fmt: skip


def transposed(x, w):
    n, _, rows, columns = x.shape
    y = np.zeros((n, w.shape[1], 2 * rows + 2, columns + 1))
    for i, j in np.ndindex(w.shape[2:]):
        part = np.einsum("nchw,co->nohw", x, w[:, :, i, j])
        y[:, :, i : i + 2 * rows : 2, j : j + columns] += part
    return y[:, :, 1:-1]


ROWS.append(op_row("conv_transpose2d", transposed, [_image, away(2, 3, 3, 2)], stride=(2, 1),
                   padding=(1, 0), output_padding=(1, 0)))  # fmt: skip
_pool = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}
ROWS.append(op_row("max_pool2d", lambda x: windows(x, (3, 2), (2, 1), (1, 0), -9e9).max((4, 5)),
                   [apart(2, 2, 5, 4)], **_pool))  # fmt: skip
ROWS.append(op_row("avg_pool2d", lambda x: windows(x, (3, 2), (2, 1), (1, 0), 0).mean((4, 5)),
                   [_image], **_pool))  # fmt: skip


def normed(x, scale, bias, mean=None, var=None):
    mean = x.mean((0, 2, 3)) if mean is None else mean
    var = x.var((0, 2, 3)) if var is None else var
    wide = (slice(None), None, None)
    y = (x - mean[wide]) / np.sqrt(var[wide] + 1e-5)
    return y * scale[wide] + bias[wide]


_norm = [away(3, 2, 2, 2), away(2), away(2)]


def _row_normed(x, scale, bias=None):
    """By the root of the mean square; with a bias by mean and variance."""
    if bias is not None:
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    return y if bias is None else y + bias


_row_norm = [away(2, 3, 4), away(4), away(4)]
ROWS.append(op_row("layer_norm", _row_normed, _row_norm, epsilon=1e-5))
ROWS.append(op_row("rms_norm", _row_normed, _row_norm[:2], epsilon=1e-5))
ROWS.append(op_row("batch_norm", normed, _norm, epsilon=1e-5))
ROWS.append(
    op_row(
        "batch_norm_infer", normed, _norm + [away(2), positive(2)], epsilon=1e-5
    )
)


def recurrent(cell, reverse, x, lengths, w, initial, b=None):
    """The states: h and, of an LSTM, c behind it."""
    steps, hidden = len(x), len(w)
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    states = np.zeros((len(initial), steps + 1, *initial.shape[1:]))
    states[:, steps if reverse else 0] = initial
    for t in order:
        before, after = (t + 1, t) if reverse else (t, t + 1)
        h = states[0, before]
        for n, length in enumerate(lengths):
            states[:, after, n] = states[:, before, n]
            if t >= length:
                continue
            parts = np.split(x[t, n], x.shape[2] // hidden)
            sums = np.split(h[n] @ w, x.shape[2] // hidden)
            if cell == "gru":
                r, z = (sigmoid(parts[k] + sums[k]) for k in (0, 1))
                new = np.tanh(parts[2] + r * (sums[2] + b))
                states[0, after, n] = (1 - z) * new + z * h[n]
                continue
            p = [part + part_sum for part, part_sum in zip(parts, sums)]
            if cell == "lstm":
                c = sigmoid(p[1]) * states[1, before, n]
                c = c + sigmoid(p[0]) * np.tanh(p[2])
                states[:, after, n] = sigmoid(p[3]) * np.tanh(c), c
            else:
                f = (
                    np.tanh
                    if cell == "rnn_tanh"
                    else lambda v: np.maximum(v, 0)
                )
                states[0, after, n] = f(p[0])
    return states.reshape(-1, *initial.shape[1:])


for _cell, _gates, _states in [
    ("rnn_tanh", 1, 1), ("rnn_relu", 1, 1), ("lstm", 4, 2), ("gru", 3, 1),
]:  # fmt: skip
    for _reverse in (False, True):
        _inputs = [
            away(4, 3, 3 * _gates), np.array([4, 0, 2], np.int32),
            away(3, 3 * _gates) / 2, away(_states, 3, 3),
        ]  # fmt: skip
        ROWS.append(op_row(
            "recurrent",
            lambda *xs, c=_cell, r=_reverse: recurrent(c, r, *xs),
            _inputs + ([away(3)] if _cell == "gru" else []),
            cell=_cell,
            reverse=_reverse,
        ))  # fmt: skip


def attention(q, k, v, mask=0.0, causal=False, offset=0, scale=None):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    weights = np.einsum("nhtd,nhsd->nhts", q, k) * (scale or q.shape[3] ** -0.5)
    weights = weights + mask
    if causal:
        seen = np.tri(q.shape[2], k.shape[2], offset, bool)
        weights = np.where(seen, weights, -np.inf)
    return softmax(weights) @ v


for _settings in ({}, {"causal": True, "offset": 2}, {"scale": 0.3}):
    for _masks in ([], [away(4, 3, 5)], [away(2, 1, 1, 5)]):
        ROWS.append(
            op_row(
                "attention",
                lambda *xs, s=_settings: attention(*xs, **s),
                [away(2, 4, 3, 4), away(2, 2, 5, 4), away(2, 2, 5, 3)] + _masks,
                **_settings,
            )
        )


def rotary(x, theta, offset):
    """Pairs of columns as complex numbers, times e^(i angle)."""
    rows, half = x.shape[-2], x.shape[-1] // 2
    speeds = theta ** -(np.arange(half) / half)
    turns = np.exp(1j * np.outer(np.arange(rows) + offset, speeds))
    y = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([y.real, y.imag], -1)


for _x in (away(4, 6), away(2, 3, 5, 4)):
    for _settings in ({}, {"theta": 100.0, "offset": 40}):
        ROWS.append(
            op_row(
                "rotary",
                lambda x, s=_settings: rotary(
                    x, s.get("theta", 1e4), s.get("offset", 0)
                ),
                [_x],
                **_settings,
            )
        )

# Probabilities and losses.
for _axis, _flat in [(1, (2, 12)), (0, (1, 24)), (2, (6, 4)), (-1, (6, 4))]:
    shaped("softmax", lambda x, f=_flat: softmax(x.reshape(f)).reshape(x.shape), _axis,
           op="softmax")  # fmt: skip
rows(
    "log_softmax", lambda x: np.log(softmax(x)), [away(3, 4)], op="log_softmax"
)
_x = away(3, 4)
_p = share(3, 4)
_ids = np.int32([2, 0, 3])
_mixed = positive(3, 4)


def picked(p, ids):
    return -np.log(p[np.arange(3), ids]).mean().reshape(1)


for _t in (_ids, _ids.astype(np.int64), _ids.astype(np.float32), [[2], [0], [3]],
           tensor_of(_ids.reshape(3, 1))):  # fmt: skip
    rows("softmax_cross_entropy", lambda x: picked(softmax(x), _ids), [_x],
         run=lambda x, t=_t: autograd.softmax_cross_entropy(x, t),
         op="softmax_cross_entropy")  # fmt: skip
    rows("cross_entropy", lambda p: picked(p, _ids), [_p],
         run=lambda p, t=_t: autograd.cross_entropy(p, t), op="cross_entropy")  # fmt: skip
    rows("linear_cross_entropy", lambda x, w: picked(softmax(x @ w), _ids),
         [away(3, 5), away(5, 4)],
         run=lambda x, w, t=_t: autograd.linear_cross_entropy(x, w, t),
         op="linear_cross_entropy")  # fmt: skip
# A row at each place.
_deep = np.int32([[2, 0, 3], [1, 1, 2]])


def picked_at(p):
    return (
        -np.log(np.take_along_axis(p, _deep[..., None], -1)).mean().reshape(1)
    )


rows("linear_cross_entropy", lambda x, w: picked_at(softmax(x @ w.T)),
     [away(2, 3, 5), away(4, 5)],
     run=lambda x, w: autograd.linear_cross_entropy(x, w, _deep, transpose=True))  # fmt: skip
for _t in (_deep, np.eye(4)[_deep]):
    rows("softmax_cross_entropy", lambda x: picked_at(softmax(x)),
         [away(2, 3, 4)],
         run=lambda x, t=_t: autograd.softmax_cross_entropy(x, t))  # fmt: skip
    rows("cross_entropy", picked_at, [positive(2, 3, 4)],
         run=lambda p, t=_t: autograd.cross_entropy(p, t))  # fmt: skip
for _dtype in (np.int32, np.float32, np.float64):
    rows("softmax_cross_entropy", lambda x: picked(softmax(x), _ids), [_x],
         run=lambda x, t=np.eye(4)[_ids].astype(_dtype): autograd.softmax_cross_entropy(
             x, tensor_of(t, False)))  # fmt: skip
rows(
    "softmax_cross_entropy",
    lambda x, t: -(t / t.sum(1, keepdims=True) * np.log(softmax(x)))
    .sum()
    .reshape(1)
    / 3,
    [_x, _mixed],
)
rows(
    "cross_entropy",
    lambda p, t: -(t * np.log(p)).sum().reshape(1) / 3,
    [_p, _mixed],
)
_b, _t = RNG.uniform(0.1, 0.9, (3, 2)), RNG.uniform(0.1, 0.9, (3, 2))
rows(
    "binary_cross_entropy",
    lambda x, t: -(t * np.log(x + 1e-4) + (1 - t) * np.log(1 - x + 1e-4))
    .sum()
    .reshape(1)
    / 3,
    [_b, _t],
)
ROWS.append(op_row(
    "binary_cross_entropy",
    lambda x, t: -(t * np.log(x) + (1 - t) * np.log(1 - x)).sum().reshape(1) / 3,
    [_b, _t.astype(np.float64)],
))  # fmt: skip
rows("mse_loss", lambda x, t: ((x - t) ** 2).mean().reshape(1), [away(2, 3), away(2, 3)],
     op="mse_loss")  # fmt: skip
rows("ranking_loss", lambda p, n: np.maximum(0.2 - p + n, 0).mean().reshape(1),
     [away(5), away(5) + 0.03])  # fmt: skip
rows("count_correct", lambda x, t: (x.argmax(1) == t).sum().reshape(1), [_x, _ids],
     op="count_correct", grad=False)  # fmt: skip
rows("square", np.square, [away(3)], op="square")

# What has tests of its own: Dropout in autograd_functions_test.py, random numbers
# in tensor_test.py.
ELSEWHERE = {"dropout", "random_uniform", "random_normal", "fill"}
# Functions with a handle: handles_test.py.
HANDLES = {"conv2d", "batchnorm_2d", "pooling_2d"}


class EveryFunction(unittest.TestCase):
    def test_forward_is_the_formula(self):
        for row in ROWS:
            with self.subTest(str(row)):
                got = row.call(*[tensor_of(x) for x in row.inputs])
                expected = np.asarray(row.formula(*row.inputs))
                self.assertEqual(got.shape, expected.shape)
                np.testing.assert_allclose(
                    np.asarray(got, np.float64), expected, row.tolerance, 1e-12
                )

    def test_gradient_is_that_of_finite_differences(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        step = 1e-5
        for row in ROWS:
            with self.subTest(str(row)):
                xs = [tensor_of(x) for x in row.inputs]
                y = row.call(*xs)
                op = _raw.OPS.get(row.op)
                if op is not None and op.gradient == _raw.NO_GRAD:
                    self.assertIsNone(y.creator)
                if not row.grad:
                    continue
                weights = RNG.uniform(0.5, 1.5, y.shape)
                dy = tensor_of(weights.astype(np.asarray(y).dtype))
                grads = autograd.grad(y, xs, dy)
                for i, (x, grad) in enumerate(zip(row.inputs, grads)):
                    if x.dtype != np.float64:
                        self.assertIsNone(grad)
                        continue
                    expected = np.zeros(x.shape)
                    for place in np.ndindex(x.shape):
                        at = []
                        for sign in (1, -1):
                            moved = [np.array(one) for one in row.inputs]
                            moved[i][place] += sign * step
                            at.append((row.formula(*moved) * weights).sum())
                        expected[place] = (at[0] - at[1]) / (2 * step)
                    if grad is None:  # targets of some losses
                        self.assertIn(row.name, ("binary_cross_entropy",))
                        continue
                    self.assertEqual(grad.shape, x.shape)
                    if row.flat:
                        self.assertEqual(np.abs(expected).max(), 0)
                    np.testing.assert_allclose(
                        np.asarray(grad), expected, 2e-5, 2e-6
                    )

    def test_creator_is_the_function_s_with_gradients_of_its_sources(self):
        """Whatever ops it is made of, and whatever is behind the sources."""
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        classes = {
            "add_all": "sum", "cat": "concat", "mse_loss": "meansquareerror"
        }  # fmt: skip
        # Of the other one, as in SINGA, creators have no gradient.
        settings = {
            "binary_cross_entropy", "cross_entropy", "mse_loss",
            "scatter_elements", "softmax_cross_entropy",
        }  # fmt: skip
        for row in ROWS:
            if not row.grad or not hasattr(autograd, row.name):
                continue
            with self.subTest(str(row)):
                leaves = [tensor_of(x) for x in row.inputs]
                y = row.call(*leaves)
                dy = tensor_of(RNG.uniform(0.5, 1.5, y.shape))
                dy = dy.as_type(y.dtype)
                expected = autograd.grad(y, leaves, dy)
                xs = [
                    autograd.identity(x) if a.dtype == np.float64 else x
                    for x, a in zip(leaves, row.inputs)
                ]
                y = row.call(*xs)
                node = y.creator
                name = row.name.replace("_", "")
                self.assertEqual(
                    type(node).__name__.replace("_", "").lower(),
                    classes.get(row.name, name),
                )
                dys = [None] * len(node._results)
                dys[y._index] = dy.data
                if row.name != "split":
                    dys = [dy.data]
                grads = node.backward(*dys)
                if len(node.src) == 1:
                    grads = (grads,)
                self.assertEqual(len(grads), len(node.src))
                found = {id(x): g for x, g in zip(node.src, grads)}
                count = 0
                for x, wanted in zip(xs, expected):
                    grad = found.get(id(x))
                    if grad is None:
                        if wanted is not None:
                            self.assertIn(row.name, settings)
                        continue
                    np.testing.assert_array_equal(grad.read(), wanted.numpy())
                    count += 1
                self.assertGreater(count, 0)

    def test_float32_gives_float32(self):
        for row in ROWS:
            xs = [
                x.astype(np.float32) if x.dtype == np.float64 else x
                for x in row.inputs
            ]
            with self.subTest(str(row)):
                got = row.call(*[tensor_of(x) for x in xs])
                expected = np.asarray(row.formula(*row.inputs))
                np.testing.assert_allclose(
                    np.asarray(got, np.float64), expected, 2e-4, 2e-5
                )

    def test_every_op_is_here(self):
        """An op of the C library's list needs a row above."""
        named = {row.op for row in ROWS} | ELSEWHERE
        for op in _raw.OPS.values():
            if op.gradient != _raw.INTERNAL:
                self.assertIn(op.name, named)

    def test_every_function_is_here(self):
        named = {row.name for row in ROWS} | {row.op for row in ROWS}
        named |= ELSEWHERE | HANDLES
        helpers = {
            "apply", "apply_attrs", "backward", "gradients", "grad", "axis_helper",
            "infer_dependency", "back_broadcast", "ctensor2numpy", "recompute",
        }  # fmt: skip
        for name, value in vars(autograd).items():
            if (
                inspect.isfunction(value)
                and value.__module__
                in ("choir.autograd", "choir._functions", "choir._losses")
                and (
                    not name.startswith("_")
                    or name in ("_and", "_or", "_xor", "_not")
                )
            ):
                self.assertIn(name, named | helpers)


if __name__ == "__main__":
    unittest.main()
