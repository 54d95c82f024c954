# SPDX-License-Identifier: Apache-2.0
"""choir.autograd: every function and every op against NumPy's formula and its
gradient against finite differences, by one table; user-defined operators."""

import gc
import inspect
import math
import unittest
import weakref
from dataclasses import dataclass

import numpy as np

from choir import _raw, autograd, device, layer, model, opt, tensor
from choir.autograd import Operator
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

CPU = device.create_cpu_device()


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
ROWS.append(op_row("batch_norm", normed, _norm, epsilon=1e-5))
ROWS.append(
    op_row(
        "batch_norm_infer", normed, _norm + [away(2), positive(2)], epsilon=1e-5
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

# What has tests of its own: Dropout below, random numbers in tensor_test.py.
ELSEWHERE = {"dropout", "random_uniform", "random_normal", "fill"}
# Functions and classes with a handle: handles_test.py.
HANDLES = {"conv2d", "batchnorm_2d", "pooling_2d"}
HANDLE_CLASSES = {"_Conv2d", "_BatchNorm2d", "_Pooling2d", "_RNN"}


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
            "infer_dependency", "back_broadcast", "ctensor2numpy",
        }  # fmt: skip
        for name, value in vars(autograd).items():
            if (
                inspect.isfunction(value)
                and value.__module__ in ("choir.autograd", "choir._functions")
                and (
                    not name.startswith("_")
                    or name in ("_and", "_or", "_xor", "_not")
                )
            ):
                self.assertIn(name, named | helpers)


class Arguments(unittest.TestCase):
    def refused(self, kind, words, function, *arguments, **named):
        with self.assertRaisesRegex(kind, words):
            function(*arguments, **named)

    def test_names_of_arguments(self):
        x, y = tensor_of(away(2, 2)), tensor_of(away(2, 2))
        for got, expected in [
            (autograd.relu(x=x), autograd.relu(x)),
            (autograd.add(a=x, b=y), autograd.add(x, y)),
            (autograd.less(x, y=y), autograd.less(x, y)),
            (autograd.matmul(x=x, w=y), autograd.matmul(x, y)),
            (autograd.transpose(x=x, shape=(1, 0)), x.T()),
            (autograd.abs(a=x), abs(x)),
        ]:
            np.testing.assert_array_equal(got, expected)
        self.refused(
            TypeError, r"relu takes 1 tensor \(x\)", autograd.relu, y=x
        )
        self.refused(TypeError, "add takes 2 tensors", autograd.add, x)

    def test_numbers_and_dtypes_mix(self):
        x = tensor_of(np.float32([1, 2]))
        np.testing.assert_array_equal(autograd.add(x, 2), [3, 4])
        np.testing.assert_array_equal(autograd.sub(2, x), [1, 0])
        wide = autograd.mul(x, tensor_of(np.float64([3, 4])))
        self.assertEqual(wide.dtype, tensor.float64)

    def test_refusals(self):
        x = tensor_of(away(2, 3))
        array = np.ones((2, 3))
        for kind, words, name, *arguments in [
            (
                TypeError,
                "relu: ndarray given; a Tensor is needed",
                "relu",
                array,
            ),
            (TypeError, "a Tensor is needed", "add", array, array),
            (TypeError, "str given", "add", x, "text"),
            (TypeError, "sum takes one tensor or more", "sum"),
            (TypeError, "a Tensor is needed", "mean", array),
            (ValueError, "add_bias: axis is 2", "add_bias", x, x, 2),
            (
                ValueError,
                "vector of columns elements",
                "add_bias",
                x,
                tensor_of(away(2)),
            ),
            (IndexError, "softmax: axis 2 of a tensor with 2", "softmax", x, 2),
            (ValueError, "size 2 of .* is 0", "reshape", x, (2, 3, 0)),
            (TypeError, "whole numbers are needed", "reshape", x, (2.5, 1)),
            (ValueError, "reshape", "reshape", x, (4, 2)),
            (IndexError, "flatten: axis 3", "flatten", x, 3),
            (
                ValueError,
                "axis 1 of shape .2, 3. is not of size 1",
                "squeeze",
                x,
                1,
            ),
            (ValueError, "named twice", "unsqueeze", x, [0, 0]),
            (ValueError, "broadcast", "expand", x, (4, 3)),
            (TypeError, "cat takes one tensor or more", "cat", []),
            (ValueError, "they must add up to 3", "split", x, 1, [1, 1]),
            (ValueError, "2 equal parts of 3", "split", x, 1, None, 2),
            (ValueError, "a step is 0", "slice", x, [0], [1], [0], [0]),
            (ValueError, "1 starts, 2 ends", "slice", x, [0], [1, 2]),
            (ValueError, "3 pads for a tensor", "pad", x, "edge", [1, 2, 3]),
            (ValueError, "mirror", "pad", x, "mirror", [1, 1, 1, 1]),
            (
                NotImplementedError,
                "mode is 'linear'",
                "upsample",
                x,
                "linear",
                [1, 2],
            ),
            (
                ValueError,
                "one number above 0",
                "upsample",
                x,
                "nearest",
                [0, 1],
            ),
            (ValueError, "DCR or CRD", "depth_to_space", x, 2, "RDC"),
            (ValueError, "n, c, h, w", "space_to_depth", x, 2),
            (
                ValueError,
                "3 channels",
                "depth_to_space",
                tensor_of(away(1, 3, 2, 2)),
                2,
            ),
            (
                ValueError,
                "3 by 2 pixels",
                "space_to_depth",
                tensor_of(away(1, 1, 3, 2)),
                2,
            ),
            (IndexError, "gather", "gather", x, 1, [3]),
            (IndexError, "gather: axis 2", "gather", x, 2, [0]),
            (
                ValueError,
                "a matrix is needed",
                "embedding",
                [0],
                tensor_of(away(2)),
            ),
            (IndexError, "reduce_sum: axis 5", "reduce_sum", x, [5]),
            (
                ValueError,
                "data_format is 'NCHW'",
                "globalaveragepool",
                x,
                "NCHW",
            ),
            (
                ValueError,
                "two matrices of one shape",
                "cossim",
                x,
                tensor_of(away(2, 2)),
            ),
            (
                ValueError,
                "labels of shape .3,. for 2 rows",
                "softmax_cross_entropy",
                x,
                [0, 1, 2],
            ),
            (
                ValueError,
                "batch, classes",
                "cross_entropy",
                tensor_of(away(2)),
                [0, 1],
            ),
            (IndexError, "label", "softmax_cross_entropy", x, [0, 3]),
            (ValueError, "mse_loss", "mse_loss", x, tensor_of(away(2))),
            (
                ValueError,
                "the same is needed",
                "binary_cross_entropy",
                x,
                [0, 1],
            ),
            (ValueError, "ratio is 1", "dropout", x, 0, 1),
        ]:
            with self.subTest(name, arguments=words):
                self.refused(kind, words, getattr(autograd, name), *arguments)

    def test_zero_times_the_logarithm_of_zero(self):
        p = tensor_of(np.float64([[0, 1], [0.5, 0.5]]))
        t = tensor_of(np.float64([[0, 1], [1, 0]]), False)
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        loss = autograd.cross_entropy(p, t)
        np.testing.assert_allclose(loss, [np.log(2) / 2])
        (grad,) = autograd.grad(loss, [p])
        np.testing.assert_allclose(grad, [[0, -0.5], [-1, 0]])

    def test_ctensor2numpy(self):
        array = autograd.ctensor2numpy(tensor.ones((2,)).data)
        np.testing.assert_array_equal(array, [1, 1])


class Training(unittest.TestCase):
    def setUp(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        CPU.SetRandSeed(1)

    def param(self, array):
        p = tensor_of(np.asarray(array, np.float64))
        p.stores_grad = True
        return p


class Backward(Training):
    def test_yields_parameters_only(self):
        w, b = self.param([[1.0, 2], [3, 4]]), self.param([5.0, 6])
        x = tensor_of(np.float64([[1, -1]]))  # wants a gradient, stores none
        frozen = self.param([7.0, 8])
        frozen.requires_grad = False
        loss = autograd.mse_loss(
            autograd.add(autograd.matmul(x, w), b) * frozen.detach(),
            np.zeros((1, 2)),
        )
        found = list(autograd.backward(loss))
        self.assertEqual([id(p) for p, _ in found], [id(b), id(w)])
        y = np.array([3.0, 4]) * [7, 8]
        expected = y * [7, 8]  # 2 y / 2 elements
        np.testing.assert_allclose(found[0][1], expected)
        np.testing.assert_allclose(found[1][1], [expected, -expected])
        grads = autograd.gradients(loss)
        np.testing.assert_allclose(grads[id(b)], expected)
        self.assertEqual(set(grads), {id(w), id(b)})

    def test_a_tensor_used_twice(self):
        w = self.param([3.0, 5])
        for y, expected in [
            (w * w, [6, 10]), (w + w, [2, 2]), (w - w, [0, 0]),
            (w * w * w, [27, 75]), (autograd.cat([w, w], 0), [2, 2]),
            (autograd.square(w) + autograd.square(w), [12, 20]),
        ]:  # fmt: skip
            (pair,) = autograd.backward(y, tensor.ones_like(y))
            self.assertIs(pair[0], w)
            np.testing.assert_allclose(pair[1], expected)

    def test_a_parameter_in_other_hands(self):
        w = self.param([3.0, 5])
        loss = autograd.reduce_sum(w * w)
        other = tensor.Tensor._of(
            w.data
        )  # the same memory is not the same tensor
        self.assertEqual(autograd.grad(loss, [other]), [None])

    def test_dy(self):
        w = self.param([3.0, 5])
        y = autograd.square(w)
        for dy in (
            tensor_of(np.float64([1, 10])),
            tensor_of(np.float64([1, 10])).data,
        ):
            ((_, grad),) = autograd.backward(y, dy)
            np.testing.assert_allclose(grad, [6, 100])
        with self.assertRaisesRegex(ValueError, "starts from a gradient"):
            list(autograd.backward(y, tensor_of(np.float64([1]))))

    def test_a_loss_that_is_not_one_number(self):
        w = self.param([3.0, 5])
        with self.assertRaisesRegex(ValueError, r"the loss has shape \(2,\)"):
            next(autograd.backward(w * w))
        for loss in (3.0, np.ones(1)):
            with self.assertRaisesRegex(TypeError, "backward: .* given"):
                next(autograd.backward(loss))

    def test_nothing_was_seen(self):
        w = self.param([3.0])
        with autograd.no_grad():
            loss = w * w
        self.assertIsNone(loss.creator)
        with self.assertRaisesRegex(RuntimeError, "autograd.training = True"):
            next(autograd.backward(loss))
        self.assertTrue(autograd.training)

        @autograd.no_grad()
        def forward():
            return w * w

        self.assertIsNone(forward().creator)
        autograd.training = False
        self.assertIsNone((w * w).creator)

    def test_nothing_is_trainable(self):
        x = tensor_of(np.float64([3]))
        self.assertEqual(list(autograd.backward(x * x)), [])
        w = self.param([3.0])
        w.requires_grad = False
        self.assertIsNone((w * w).creator)

    def test_integers_have_no_gradient(self):
        w = self.param([3.0, 5])
        y = autograd.reduce_sum(
            autograd.cast(autograd.cast(w, "int32"), "float64")
        )
        with self.assertRaisesRegex(RuntimeError, "depends on no parameter"):
            list(autograd.backward(y))

    def test_memory_goes_with_the_loss(self):
        w = self.param(np.ones(1000))

        def step():
            loss = autograd.reduce_sum(autograd.square(autograd.square(w)))
            return list(autograd.backward(loss))

        step()
        gc.collect()
        before = CPU.memory()["in_use"]
        gc.disable()  # reference counts are enough
        self.addCleanup(gc.enable)
        for _ in range(3):
            step()
        self.assertEqual(CPU.memory()["in_use"], before)

    def test_deep_graphs(self):
        w = self.param([1.0])
        y = w
        for _ in range(3000):
            y = y * 1.0
        ((_, grad),) = autograd.backward(y)
        np.testing.assert_allclose(grad, [1])

    def test_helpers(self):
        w, x = self.param(np.ones((2, 3))), tensor_of(np.ones((1, 3)))
        y = w * x
        ops, tensors = autograd.infer_dependency(y.creator)
        self.assertEqual(ops, {id(y.creator): 0})
        self.assertEqual(tensors, {id(w): 1, id(x): 1})
        z = y + y
        ops, tensors = autograd.infer_dependency(z.creator)
        self.assertEqual(ops, {id(z.creator): 0, id(y.creator): 2})
        self.assertEqual(autograd.axis_helper((4, 2, 3), (2, 1)), (0, 2))
        summed = autograd.back_broadcast(
            (4, 2, 3), (2, 1), tensor.ones((4, 2, 3)).data
        )
        np.testing.assert_array_equal(summed.read(), [[12], [12]])

    def test_names(self):
        y = self.param([1.0]) * 2
        self.assertRegex(y.creator.name, r"#\d+$")
        self.assertEqual(y.creator.output_name(0), f"{y.creator.name}:0")
        self.assertEqual(y.creator.grad_name(1), f"{y.creator.name}:1_g")
        dummy = autograd.Dummy(y, "leaf")
        self.assertEqual(
            (dummy.output_name(0), dummy.grad_name(0)), ("leaf", "leaf_g")
        )
        self.assertEqual(dummy.shape, (1,))
        self.assertFalse(dummy.requires_grad)
        self.assertIs(autograd.Operation, Operator)


class TwiceAndThrice(Operator):
    """x -> 2 x, 3 x"""

    def forward(self, x):
        return _raw.run("scale", x, factor=2.0, shift=0.0), _raw.run(
            "scale", x, factor=3.0, shift=0.0
        )

    def backward(self, a, b):
        self.seen = [a.read(), b.read()]
        return _raw.run(
            "add",
            _raw.run("scale", a, factor=2.0, shift=0.0),
            _raw.run("scale", b, factor=3.0, shift=0.0),
        )


class Product(Operator):
    def forward(self, x, y):
        self.sources = x, y
        return _raw.run("mul", x, y)

    def backward(self, dy):
        x, y = self.sources
        return _raw.run("mul", dy, y), _raw.run("mul", dy, x)


class Gives(Operator):
    """The identity, with a backward of the test's."""

    def __init__(self, backward):
        super().__init__()
        self._backward = backward

    def forward(self, x):
        return _raw.run("copy", x)

    def backward(self, dy):
        return self._backward(dy)


class UserDefined(Training):
    def test_one_result(self):
        w, v = self.param([3.0, 5]), self.param([7.0, 11])
        results = Product()(w, v)
        self.assertIsInstance(results, tuple)
        loss = autograd.reduce_sum(autograd.square(results[0]))
        grads = autograd.gradients(loss)
        np.testing.assert_allclose(grads[id(w)], [2 * 3 * 49, 2 * 5 * 121])
        np.testing.assert_allclose(grads[id(v)], [2 * 7 * 9, 2 * 11 * 25])

    def test_between_and_behind_ops(self):
        w = self.param([3.0, 5])
        y = Product()(autograd.square(w), w)[0]
        y = Product()(y, y)[0]  # w^6
        ((_, grad),) = autograd.backward(y, tensor.ones_like(y))
        np.testing.assert_allclose(grad, [6 * 3.0**5, 6 * 5.0**5])

    def test_several_results(self):
        w = self.param([1.0, 10])
        op = TwiceAndThrice()
        a, b = op(w)
        loss = autograd.reduce_sum(a * b)  # 6 w^2
        ((_, grad),) = autograd.backward(loss)
        np.testing.assert_allclose(grad, [12, 120])
        np.testing.assert_allclose(op.seen, [[3, 30], [2, 20]])

    def test_a_result_that_is_not_used(self):
        for i, expected in [(0, 2), (1, 3)]:
            w = self.param([1.0, 10])
            op = TwiceAndThrice()
            y = autograd.reduce_sum(op(w)[i])
            ((_, grad),) = autograd.backward(y)
            np.testing.assert_allclose(grad, [expected] * 2)
            np.testing.assert_allclose(op.seen[1 - i], [0, 0])

    def test_outside_of_training(self):
        autograd.training = False
        y = Product()(self.param([3.0]), self.param([4.0]))[0]
        self.assertIsNone(y.creator)
        np.testing.assert_allclose(y, [12])

    def test_no_contribution(self):
        w = self.param([3.0])
        y = Gives(lambda dy: None)(w)[0]
        self.assertEqual(list(autograd.backward(y)), [])

    def test_exceptions_come_out_as_themselves(self):
        class Mine(Exception):
            pass

        def fails(dy):
            raise Mine("in backward")

        w = self.param([3.0])
        with self.assertRaisesRegex(Mine, "^in backward$"):
            list(autograd.backward(Gives(fails)(w)[0]))
        # And the next backward works.
        ((_, grad),) = autograd.backward(w * w)
        np.testing.assert_allclose(grad, [6])

    def test_gradients_that_do_not_fit(self):
        w = self.param([3.0, 4])
        ones = tensor.ones_like(w)
        wrong = tensor.ones((3,), dtype="float64").data
        for given, words in [
            (wrong, r"Gives: backward gave .*3.* for source 0"),
            ((ones.data, ones.data), "backward gave 2 gradients for 1 sources"),
        ]:
            y = Gives(lambda dy: given)(w)[0]
            with self.assertRaisesRegex(ValueError, words):
                list(autograd.backward(y, ones))

    def test_undefined(self):
        with self.assertRaisesRegex(
            NotImplementedError, "Operator defines no forward"
        ):
            Operator()(self.param([1.0]))
        with self.assertRaisesRegex(NotImplementedError, "defines no backward"):
            Operator().backward()
        with self.assertRaisesRegex(TypeError, "a Tensor is needed"):
            Product()(np.ones(1), np.ones(1))
        self.assertEqual(Product().get_params(), [])

    def test_an_operator_goes_with_its_results(self):
        op = Product()
        gone = weakref.ref(op)
        y = op(self.param([1.0]), self.param([1.0]))[0]
        list(autograd.backward(y))
        del op
        self.assertIsNotNone(gone())
        del y
        self.assertIsNone(gone())


class Classes(Training):
    """SINGA's classes: called, and on raw tensors."""

    def both(self, make, formula, *inputs):
        op = make()
        expected = np.asarray(formula(*inputs))
        results = op(*[tensor_of(x) for x in inputs])
        self.assertIsInstance(results, tuple)
        np.testing.assert_allclose(results[0], expected, 1e-9, 1e-12)
        raws = [tensor_of(x).data for x in inputs]
        y = make().forward(*raws)
        if isinstance(y, tuple):
            y = y[0]
        np.testing.assert_allclose(y.read(), expected, 1e-9, 1e-12)

    def test_all_of_the_table(self):
        x, y = away(2, 3), away(2, 3)
        image = away(1, 4, 2, 2)
        A = autograd
        for make, formula, *inputs in [
            (A.Sum, np.add, x, y), (A.Mean, lambda a, b: (a + b) / 2, x, y),
            (A.Max, np.maximum, x, y), (A.Min, np.minimum, x, y),
            (A.AddBias, lambda a, b: a + b, x, away(3)),
            (lambda: A.AddBias(1), lambda a, b: a + b[:, None], x, away(2)),
            (lambda: A.Clip(0, 1), lambda a: np.clip(a, 0, 1), x),
            (lambda: A.Elu(0.5), lambda a: np.where(a < 0, 0.5 * (np.exp(a) - 1), a), x),
            (A.LeakyRelu, lambda a: np.where(a < 0, 0.01 * a, a), x),
            (lambda: A.HardSigmoid(0.1), lambda a: np.clip(0.1 * a + 0.5, 0, 1), x),
            (A.SeLU, lambda a: 1.0507 * np.where(a > 0, a, 1.67326 * (np.exp(a) - 1)), x),
            (A.Identity, lambda a: a, x), (A.SoftMax, softmax, x),
            (lambda: A.Reshape((3, -1)), lambda a: a.reshape(3, 2), x),
            (A.Flatten, lambda a: a.reshape(1, 16), image),
            (lambda: A.Transpose((1, 0)), np.transpose, x),
            (lambda: A.Unsqueeze([0]), lambda a: a[None], x),
            (A.Squeeze, np.squeeze, away(1, 3)),
            (lambda: A.Expand((2, 2, 3)), lambda a: np.stack([a, a]), x),
            (lambda: A.Concat(1), lambda a, b: np.concatenate([a, b], 1), x, y),
            (lambda: A.Split(1, [1, 2]), lambda a: a[:, :1], x),
            (lambda: A.Slice([1], [3], [1]), lambda a: a[:, 1:3], x),
            (lambda: A.Tile([2, 1]), lambda a: np.tile(a, (2, 1)), x),
            (lambda: A.Pad("constant", [0, 1, 0, 0]), lambda a: np.pad(a, ((0, 0), (1, 0))), x),
            (lambda: A.UpSample("nearest", [1, 2]), lambda a: a.repeat(2, 1), x),
            (lambda: A.DepthToSpace(2), lambda a: to_space(a, 2, True), image),
            (lambda: A.SpaceToDepth(2), lambda a: to_depth(a, 2, True), image),
            (A.Shape, lambda a: [2, 3], x),
            (lambda: A.Gather(1, [2, 0]), lambda a: a[:, [2, 0]], x),
            (A.Embedding, lambda i, w: w[i], whole(2, 2, below=2), x),
            (lambda: A.ScatterElements([[1, 0, 1]], np.ones((1, 3))),
             lambda a: np.where([[0, 1, 0], [1, 0, 1]], 1, a), x),
            (lambda: A.Where([True, False, True]),
             lambda a, b: np.where([True, False, True], a, b), x, y),
            (lambda: A.OneHot(-1, 3, [0, 1]), lambda i: np.eye(3)[i], whole(4)),
            (A.NonZero, lambda a: np.array(np.nonzero(a)), bits(2, 3)),
            (lambda: A.Cast("int32"), lambda a: a.astype(np.int32), x),
            (lambda: A.ConstantOfShape(2.0), lambda s: np.full((2, 2), 2.0), np.int32([2, 2])),
            (lambda: A.ReduceSum([1], 0), lambda a: a.sum(1), x),
            (A.ReduceMean, lambda a: a.mean().reshape(1, 1), x),
            (A.GlobalAveragePool, lambda a: a.mean((2, 3), keepdims=True), image),
            (lambda: A.Gemm(transB=1), lambda a, b: a @ b.T, x, y),
            (A.CosSim, lambda a, b: (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1)),
             x, y),
            (lambda: A.SoftMaxCrossEntropy([0, 2]),
             lambda a: [-np.log(softmax(a)[[0, 1], [0, 2]]).mean()], x),
            (lambda: A.CrossEntropy([0, 2]),
             lambda p: [-np.log(p[[0, 1], [0, 2]]).mean()], share(2, 3)),
            (lambda: A.BinaryCrossEntropy(np.ones((2, 3))),
             lambda p: [-np.log(p + 1e-4).sum() / 2], share(2, 3)),
            (lambda: A.MeanSquareError(tensor_of(y)), lambda a: [((a - y) ** 2).mean()], x),
            (A.RankingLoss, lambda a, b: [np.maximum(0.2 - a + b, 0).mean()], away(3), away(3)),
            (lambda: A.Dropout(ratio=0), lambda a: a, x),
            # Classes of the C library's list.
            (A.ReLU, lambda a: np.maximum(a, 0), x), (A.Matmul, np.matmul, x, away(3, 2)),
            (A.Add, np.add, x, y), (A.Negative, np.negative, x), (A.Rounde, np.round, x),
            (A.And, lambda a, b: np.logical_and(a, b) * 1.0, x, y),
        ]:  # fmt: skip
            made = make()
            with self.subTest(type(made).__name__):
                self.both(make, formula, *inputs)
        tested = {"Composite"} | HANDLE_CLASSES
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        for name, value in vars(autograd).items():
            if isinstance(value, type) and issubclass(
                value, autograd.Composite
            ):
                self.assertTrue(name in tested or f"A.{name}" in text, name)

    def test_backward_on_raw_tensors(self):
        x = np.float64([[-1, 0.5, 2]])
        op = autograd.Clip(0, 1)
        op.forward(tensor_of(x).data)
        dx = op.backward(tensor_of(np.float64([[1, 10, 100]])).data)
        np.testing.assert_allclose(dx.read(), [[0, 10, 0]])
        op = autograd.SoftMaxCrossEntropy([2])
        op.forward(tensor_of(x).data)
        expected = softmax(x) - [[0, 0, 1]]
        np.testing.assert_allclose(op.backward().read(), expected)
        np.testing.assert_allclose(op.backward(1.0).read(), expected)
        np.testing.assert_allclose(op.backward(3.0).read(), 3 * expected)
        np.testing.assert_allclose(op.backward(dy=3.0).read(), 3 * expected)
        op = autograd.Split(1, [1, 2])
        op.forward(tensor_of(x).data)
        dx = op.backward(tensor.ones((1, 1), dtype="float64").data,
                         tensor_of(np.float64([[2, 3]])).data)  # fmt: skip
        np.testing.assert_allclose(dx.read(), [[1, 2, 3]])
        op = autograd.Sum()
        op.forward(tensor_of(x).data, tensor_of(x).data)
        grads = op.backward(tensor_of(x).data)
        self.assertEqual(len(grads), 2)
        np.testing.assert_allclose(grads[1].read(), x)
        op = autograd.Embedding()
        op.forward(tensor_of(np.int32([1, 1])).data, tensor_of(away(2, 1)).data)
        none, dw = op.backward(tensor_of(np.float64([[1], [10]])).data)
        self.assertIsNone(none)
        np.testing.assert_allclose(dw.read(), [[0], [11]])
        op = autograd.ReLU()
        op.forward(tensor_of(x).data)
        np.testing.assert_allclose(
            op.backward(tensor_of(x).data).read(), [[0, 0.5, 2]]
        )

    def test_refusals(self):
        clip = autograd.Clip(0, 1)
        with self.assertRaisesRegex(
            RuntimeError, "backward comes after forward"
        ):
            clip.backward(tensor.ones(1).data)
        clip.forward(tensor.ones(2).data)
        with self.assertRaisesRegex(TypeError, "0 gradients for 1 results"):
            clip.backward()
        for make, words in [
            (lambda: autograd.Clip(1, 2, 3), r"takes 2 settings \(min, max\)"),
            (lambda: autograd.Clip(0, min=1), "no setting 'min'"),
            (
                lambda: autograd.Clip(least=1),
                "no setting 'least'; it has: min, max",
            ),
            (lambda: autograd.Reshape(), "Reshape needs the setting 'shape'"),
        ]:
            with self.assertRaisesRegex(TypeError, words):
                make()

    def test_dot_of_cossim(self):
        a, b = away(2, 3), away(2, 3)
        got = autograd.CosSim.dot(tensor_of(a).data, tensor_of(b).data)
        np.testing.assert_allclose(got.read(), (a * b).sum(1))


class Step:
    """What autograd._Scope tells of a model's step."""

    seed, step, first_sample = 11, 3, 16

    def next_stream(self):
        return 2


class InAModel(Training):
    def test_constants_are_made_once(self):
        """A graph cannot take them from the host in its middle."""
        x = tensor_of(away(2, 3).astype(np.float32))

        def constants():
            ys = [
                autograd.gather(x, 1, [2, 0]), x * [1.0, 2.0, 3.0], x[:, ::-1],
                autograd.where(x, x, [[True], [False]]), x[[1, 0]],
            ]  # fmt: skip
            return [
                source.data.handle
                for y in ys
                for source in y.creator.src
                if source is not x
            ]

        again = constants()
        self.assertEqual(len(again), 5)
        autograd._model_step = Step()
        self.addCleanup(setattr, autograd, "_model_step", None)
        first = constants()
        gc.collect()
        self.assertEqual(constants(), first)
        # What is handed out may be changed.
        autograd.shape(x).set_value(0)
        np.testing.assert_array_equal(autograd.shape(x), [2, 3])

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


class Dropout(Training):
    def setUp(self):
        super().setUp()
        autograd.place.end_step()

    def test_share_and_scale(self):
        x = tensor.ones((100, 100))
        for ratio in (0.5, 0.2):
            y = autograd.dropout(x, ratio=ratio).numpy()
            kept = np.float32(1 / (1 - ratio))
            self.assertEqual(set(np.unique(y)), {0, kept})
            self.assertAlmostEqual((y == 0).mean(), ratio, delta=0.03)

    def test_outside_of_training_it_is_x(self):
        x = tensor.ones((4,))
        self.assertIs(autograd.dropout(x, ratio=0.0), x)
        autograd.training = False
        self.assertIs(autograd.dropout(x), x)
        raw = autograd.Dropout(ratio=0.5).forward(x.data)
        np.testing.assert_array_equal(raw.read(), np.ones(4))

    def test_gradient_has_the_same_mask(self):
        w = self.param(np.ones(100))
        y = autograd.dropout(w, ratio=0.3)
        ((_, grad),) = autograd.backward(y, tensor.ones_like(y))
        np.testing.assert_array_equal(grad, y.numpy())

    def test_what_masks_follow_from(self):
        x = tensor.ones((50, 4))

        def two():
            masks = [autograd.dropout(x).numpy() for _ in range(2)]
            autograd.place.end_step()
            return masks

        autograd.place.step = 0
        first, second = two()
        self.assertFalse((first == second).all())  # two in one step
        self.assertFalse((first == two()[0]).all())  # the next step
        autograd.place.step = 0
        np.testing.assert_array_equal(first, two()[0])
        CPU.SetRandSeed(2)
        autograd.place.step = 0
        self.assertFalse((first == two()[0]).all())  # another seed
        CPU.SetRandSeed(1)
        autograd.place.step = 0
        own = autograd.dropout(x, 7).numpy()
        self.assertFalse((first == own).all())  # the op's own
        autograd.place.step = 0
        autograd.place.end_step()
        autograd.place.step = 0
        np.testing.assert_array_equal(own, autograd.dropout(x, seed=7).numpy())

    def test_workers_have_their_share_of_one_mask(self):
        x = tensor.ones((8, 4))
        autograd.place.step = 5
        whole_mask = autograd.dropout(x).numpy()
        self.addCleanup(setattr, autograd.place, "first_share", (0, 1))
        parts = []
        for rank in range(2):
            autograd.place.end_step()
            autograd.place.step = 5
            autograd.place.first_share = (rank, 2)
            parts.append(autograd.dropout(x[:4]).numpy())
        np.testing.assert_array_equal(np.concatenate(parts), whole_mask)

    def test_in_a_models_step(self):
        x = tensor.ones((8, 4))
        autograd._model_step = Step()
        self.addCleanup(setattr, autograd, "_model_step", None)
        got = autograd.dropout(x, ratio=0.25).numpy()
        expected = _raw.run(
            "dropout", x.data, ratio=0.25, seed=11, stream=0x20000002, step=3,
            first_sample=16,
        )  # fmt: skip
        np.testing.assert_array_equal(got, expected.read())


if __name__ == "__main__":
    unittest.main()
