# SPDX-License-Identifier: Apache-2.0
"""SINGA's functions of `autograd`.

Each function is one op of the C library's list or a combination of some, so it
has a gradient wherever they have. Names and arguments are SINGA's; where its
results are not those of the mathematics, NumPy's hold (docs/python.md). What
SINGA takes as a list (axes, shapes, indices) may also be a NumPy array or a
Tensor. `autograd` imports all of this; nobody else should.
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator

import numpy as np

from choir import _elements, _indexing, _numbers, _operands, _raw, autograd
from choir import tensor
from choir._arguments import (
    _as,
    _axis,
    _beside,
    _given,
    _indices,
    _ints,
    _is_whole,
    _mask,
    _to_shape,
)
from choir._here import here
from choir._lib import Step
from choir._losses import LOSSES
from choir._raw import CTensor, OPS
from choir.autograd import _op
from choir.tensor import Tensor, _need_tensor

# ---- Several tensors, element by element ----


def _fold(name: str, op: str, xs) -> Tensor:
    if not xs:
        raise TypeError(f"{name} takes one tensor or more; none was given")
    result = _need_tensor(xs[0], name)
    for x in xs[1:]:
        result = _operands.both(op, result, x)
    return result


def sum(*l) -> Tensor:
    """The sum of tensors, element by element."""
    return _fold("sum", "add", l)


def mean(*l) -> Tensor:
    """The mean of tensors, element by element."""
    return _fold("mean", "add", l) * (1.0 / builtins.max(len(l), 1))


def max(*l) -> Tensor:
    """The largest of tensors, element by element."""
    return _fold("max", "maximum", l)


def min(*l) -> Tensor:
    """The least of tensors, element by element."""
    return _fold("min", "minimum", l)


def add_all(*xs) -> Tensor:
    """The sum of tensors, element by element."""
    return _fold("add_all", "add", xs)


def add_bias(x: Tensor, b: Tensor, axis: int = 0) -> Tensor:
    """Adds a vector to each row (axis 0) or each column (axis 1) of a matrix."""
    if axis not in (0, 1):
        raise ValueError(f"add_bias: axis is {axis}; 0 or 1 is needed")
    needed = x.shape[-1 if axis == 0 else 0] if x.ndim() == 2 else None
    if b.shape != (needed,):
        raise ValueError(
            f"add_bias: x has shape {x.shape}, b {b.shape}; with axis {axis} a "
            f"matrix and a vector of {'columns' if axis == 0 else 'rows'} elements "
            "are needed"
        )
    return _operands.both(
        "add", x, b if axis == 0 else _to_shape(b, (b.size(), 1))
    )


# ---- Functions of one tensor with settings ----


def clip(x: Tensor, min=None, max=None) -> Tensor:
    """Limits elements to [min, max]; None: no limit on that side."""
    return _op(
        "clip",
        x,
        low=-math.inf if min is None else float(min),
        high=math.inf if max is None else float(max),
    )


def elu(x: Tensor, alpha: float = 1) -> Tensor:
    """x where it is not below 0, else alpha (e^x - 1)."""
    return _op("elu", x, alpha=float(alpha))


def selu(x: Tensor, alpha: float = 1.67326, gamma: float = 1.0507) -> Tensor:
    """gamma x where x > 0, else gamma alpha (e^x - 1)."""
    return _op("selu", x, alpha=float(alpha), gamma=float(gamma))


def leakyrelu(x: Tensor, a: float = 0.01) -> Tensor:
    """x where it is not below 0, else a x."""
    return _op("leaky_relu", x, alpha=float(a))


def hardsigmoid(x: Tensor, alpha: float = 0.2, gamma: float = 0.5) -> Tensor:
    """max(0, min(1, alpha x + gamma))"""
    return _op("hard_sigmoid", x, alpha=float(alpha), gamma=float(gamma))


def identity(x: Tensor) -> Tensor:
    """A copy of x; its gradient is handed on."""
    return _op("copy", x)


def softmax(x: Tensor, axis: int = 1) -> Tensor:
    """e^x over its sum over the axes from `axis` on, taken as one."""
    axis = _axis(axis, x.ndim(), "softmax")
    shape = x.shape
    if axis < x.ndim() - 1:
        x = _to_shape(x, shape[:axis] + (tensor.product(shape[axis:]),))
    return _to_shape(_op("softmax", x), shape)


# ---- Shapes ----


def reshape(x: Tensor, shape) -> Tensor:
    """The same elements in another shape; 0 keeps a size, one may be -1."""
    sizes = list(_ints(shape, "reshape: shape"))
    for i, size in enumerate(sizes):
        if size == 0:
            if i >= x.ndim():
                raise ValueError(
                    f"reshape: size {i} of {tuple(sizes)} is 0, which keeps that of "
                    f"x, but x has shape {x.shape}"
                )
            sizes[i] = x.shape[i]
    return _op("reshape", x, **tensor._to(sizes))


def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """A matrix: the sizes before `axis` in one, and the others in one."""
    if not -x.ndim() <= axis <= x.ndim():
        raise IndexError(
            f"flatten: axis {axis} of a tensor with {x.ndim()} dimensions"
        )
    if axis < 0:
        axis += x.ndim()
    rows, columns = x.shape[:axis], x.shape[axis:]
    return _to_shape(x, (tensor.product(rows), tensor.product(columns)))


def transpose(x: Tensor, shape=None) -> Tensor:
    """Axes in the order `shape`; None reverses them."""
    return tensor.transpose(
        x, None if shape is None else _ints(shape, "transpose: the order")
    )


def unsqueeze(x: Tensor, axis=-1) -> Tensor:
    """Puts in axes of size 1, at these places of the result."""
    axes = _ints(axis, "unsqueeze: axis")
    ndim = x.ndim() + len(axes)
    places = tensor._axes(axes, ndim, "unsqueeze")
    sizes = iter(x.shape)
    return _op(
        "reshape",
        x,
        **tensor._to([1 if i in places else next(sizes) for i in range(ndim)]),
    )


def squeeze(x: Tensor, axis=[]) -> Tensor:
    """Takes out axes of size 1: these, or all for an empty list."""
    axes = tensor._axes(_ints(axis, "squeeze: axis"), x.ndim(), "squeeze")
    for one in axes:
        if x.shape[one] != 1:
            raise ValueError(
                f"squeeze: axis {one} of shape {x.shape} is not of size 1"
            )
    if not axes:
        axes = tuple(i for i, size in enumerate(x.shape) if size == 1)
    return _op(
        "reshape",
        x,
        **tensor._to([s for i, s in enumerate(x.shape) if i not in axes]),
    )


def expand(x: Tensor, shape) -> Tensor:
    """x broadcast against a shape, as in ONNX: sizes of 1 in it keep x's."""
    wanted = np.broadcast_shapes(x.shape, _ints(shape, "expand: shape"))
    return _op("broadcast_to", x, **tensor._to(wanted))


def cat(xs, axis: int = 0) -> Tensor:
    """Joins tensors along an axis."""
    xs = list(xs)
    if not xs:
        raise TypeError("cat takes one tensor or more; none was given")
    for x in xs:
        _need_tensor(x, "cat")
    return tensor.concatenate(xs, axis)


def split(x: Tensor, axis: int, parts=None, num_output=None) -> tuple:
    """Cuts along an axis: into parts of these lengths, or num_output equal ones."""
    axis = _axis(axis, x.ndim(), "split")
    size = x.shape[axis]
    if parts is None:
        if not num_output or size % num_output:
            raise ValueError(
                f"split: {num_output} equal parts of {size} are not possible; give "
                "parts"
            )
        parts = [size // num_output] * num_output
    lengths = _ints(parts, "split: parts")
    if builtins.min(lengths, default=0) < 0 or builtins.sum(lengths) != size:
        raise ValueError(
            f"split: parts {lengths} of axis {axis} of shape {x.shape}; they must "
            f"add up to {size}"
        )
    ends = np.cumsum(lengths)
    return tuple(
        _indexing.take(x, axis, int(end) - length, int(end), 1)
        for end, length in zip(ends, lengths)
    )


def slice(x: Tensor, starts, ends, axes=None, steps=None) -> Tensor:
    """x[start:end:step] along axes (the first ones), by Python's rules."""
    starts, ends = _ints(starts, "slice: starts"), _ints(ends, "slice: ends")
    axes = range(len(starts)) if axes is None else _ints(axes, "slice: axes")
    steps = [1] * len(starts) if steps is None else _ints(steps, "slice: steps")
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError(
            f"slice: {len(starts)} starts, {len(ends)} ends, {len(axes)} axes, "
            f"{len(steps)} steps; as many of each are needed"
        )
    for axis, start, end, step in zip(
        tensor._axes(axes, x.ndim(), "slice"), starts, ends, steps
    ):
        if step == 0:
            raise ValueError("slice: a step is 0")
        found = range(x.shape[axis])[start:end:step]
        if step < 0:
            x = _indexing.gather(x, axis, found)
        elif found != range(x.shape[axis]):
            stop = builtins.max(found.start, found.stop)
            x = _indexing.take(x, axis, found.start, stop, step)
    return x


def tile(x: Tensor, repeats) -> Tensor:
    """numpy.tile: x as often along each axis as `repeats` says."""
    counts = _ints(repeats, "tile: repeats")
    if not counts:
        return identity(x)
    # Counts for fewer axes than x has are for the last ones.
    return _op("tile", x, ndim=len(counts), repeats=counts)


def pad(x: Tensor, mode: str, pads, constant: float = 0.0) -> Tensor:
    """Puts elements around x.

    mode: "constant", "reflect" or "edge"; pads: how many before each axis, then
    how many after each.
    """
    pads = _ints(pads, "pad: pads")
    if len(pads) != 2 * x.ndim():
        raise ValueError(
            f"pad: {len(pads)} pads for a tensor of shape {x.shape}; "
            f"{2 * x.ndim()} are needed, first those before each axis"
        )
    if isinstance(mode, bytes):
        mode = mode.decode()
    return _op(
        "pad",
        x,
        mode=mode,
        before=pads[: x.ndim()],
        after=pads[x.ndim() :],
        value=float(constant),
    )


def upsample(x: Tensor, mode: str, scales) -> Tensor:
    """Each element as often along each axis as `scales` says.

    mode: "nearest". scales: whole numbers, one for each axis.
    """
    if isinstance(mode, bytes):
        mode = mode.decode()
    if mode != "nearest":
        raise NotImplementedError(
            f"upsample: mode is {mode!r}; nearest is possible"
        )
    scales = _ints(scales, "upsample: scales")
    if len(scales) != x.ndim() or builtins.min(scales, default=1) < 1:
        raise ValueError(
            f"upsample: scales {scales} for shape {x.shape}; one number above 0 "
            "for each axis is needed"
        )
    for axis, scale in enumerate(scales):
        if scale > 1:
            x = _op("repeat", x, axis=axis, repeats=scale)
    return x


def _block(x: Tensor, blocksize: int, mode: str, name: str) -> int:
    if isinstance(mode, bytes):
        mode = mode.decode()
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"{name}: mode is {mode!r}; DCR or CRD is needed")
    if x.ndim() != 4 or not _is_whole(blocksize) or blocksize < 1:
        raise ValueError(
            f"{name}: x has shape {x.shape} and blocksize is {blocksize!r}; "
            "(n, c, h, w) and a number above 0 are needed"
        )
    return int(blocksize)


def depth_to_space(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    """(n, c, h, w) -> (n, c / b^2, h b, w b): channels become blocks of pixels.

    mode: whether a channel's number is (row, column, depth), "DCR", or (depth,
    row, column), "CRD".
    """
    b = _block(x, blocksize, mode, "depth_to_space")
    n, c, h, w = x.shape
    if c % (b * b):
        raise ValueError(
            f"depth_to_space: {c} channels do not make blocks of {b} by {b}"
        )
    depth = c // (b * b)
    if mode in ("DCR", b"DCR"):
        x = _to_shape(x, (n, b, b, depth, h, w))
        x = tensor.transpose(x, (0, 3, 4, 1, 5, 2))
    else:
        x = _to_shape(x, (n, depth, b, b, h, w))
        x = tensor.transpose(x, (0, 1, 4, 2, 5, 3))
    return _to_shape(x, (n, depth, h * b, w * b))


def space_to_depth(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    """The inverse of depth_to_space: (n, c, h, w) -> (n, c b^2, h / b, w / b)."""
    b = _block(x, blocksize, mode, "space_to_depth")
    n, c, h, w = x.shape
    if h % b or w % b:
        raise ValueError(
            f"space_to_depth: {h} by {w} pixels do not make blocks of {b} by {b}"
        )
    x = _to_shape(x, (n, c, h // b, b, w // b, b))
    order = (
        (0, 3, 5, 1, 2, 4) if mode in ("DCR", b"DCR") else (0, 1, 3, 5, 2, 4)
    )
    return _to_shape(tensor.transpose(x, order), (n, c * b * b, h // b, w // b))


def shape(x: Tensor) -> Tensor:
    """The sizes as an int32 tensor."""
    sizes = _elements.constant(x.device, np.array(x.shape, np.int32))
    return Tensor._of(_raw.run("copy", sizes))


def constant_of_shape(x, value: float = 0) -> Tensor:
    """A float32 tensor of the shape that `x` holds, filled with a number."""
    device = x.device if isinstance(x, Tensor) else None
    made = Tensor(_ints(x, "constant_of_shape: shape"), device)
    made.requires_grad = False
    return made.set_value(value)


# ---- Selecting ----


def gather(x: Tensor, axis: int, indices) -> Tensor:
    """numpy.take: entries along an axis; indices of any shape, below 0 from the
    end."""
    axis = _axis(axis, x.ndim(), "gather")
    return _op("gather", x, _indices(indices, x), axis=axis)


def embedding(x, w: Tensor) -> Tensor:
    """Rows of w: x of any shape has their numbers, (...) -> (..., columns)."""
    if w.ndim() != 2:
        raise ValueError(
            f"embedding: w has shape {w.shape}; a matrix is needed"
        )
    return _op("gather", w, _indices(x, w), axis=0)


def scatter_elements(x: Tensor, indices, updates, axis: int = 0) -> Tensor:
    """x with elements replaced: ONNX's ScatterElements.

    y[indices[i, j], j] = updates[i, j] for axis 0 of a matrix, and so on.
    """
    axis = _axis(axis, x.ndim(), "scatter_elements")
    updates = _as(_beside(updates, x), x.data.dtype)
    return _op("scatter_elements", x, _indices(indices, x), updates, axis=axis)


def where(x, y, condition) -> Tensor:
    """x where the condition is not 0, else y; all broadcast."""
    like = next((t for t in (x, y, condition) if isinstance(t, Tensor)), None)
    if like is None:
        _need_tensor(x, "where")

    def made(array) -> Tensor:
        return Tensor._of(_elements.constant(like.device, array))

    x, y = _given(x), _given(y)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        # What is no number says of which dtype one is.
        if _numbers.is_number(x):
            y = made(_elements.narrow(np.asarray(y)))
        else:
            x = made(_elements.narrow(x))
    if not isinstance(condition, Tensor):
        condition = made(np.asarray(condition, np.bool_))
    x, y, code = _operands.paired(x, y)
    return _op(
        "where",
        condition,
        _operands.as_code(x, code),
        _operands.as_code(y, code),
    )


def onehot(axis: int, indices, depth, values) -> Tensor:
    """A new axis of size `depth` at `axis`: values[1] at the index, else
    values[0]. No gradient."""
    like = indices if isinstance(indices, Tensor) else values
    if not isinstance(like, Tensor):
        like = tensor.zeros(())
    index = _indices(indices, like)
    depth = _ints(depth, "onehot: depth")[0]
    if isinstance(values, Tensor):
        values = tensor.to_numpy(values)
    off, on = (float(value) for value in np.asarray(values).reshape(-1))
    axis = _axis(axis, index.ndim() + 1, "onehot")
    return _op("one_hot", index, depth=depth, axis=axis, on=on, off=off)


def nonzero(x: Tensor) -> Tensor:
    """The places of elements that are not 0, (dimensions, count), int32.

    Their number depends on the elements, so these are read by the host.
    """
    return tensor.from_numpy(np.array(np.nonzero(tensor.to_numpy(x))))


def cast(x: Tensor, to) -> Tensor:
    """The elements in another dtype; the gradient comes back in x's."""
    return _op("cast", x, dtype=tensor._code(to))


def ctensor2numpy(x: CTensor) -> np.ndarray:
    """A copy of a raw tensor as an array."""
    return x.read()


# ---- Reductions ----


def _reduce(name: str, x: Tensor, axes, keepdims) -> Tensor:
    axes = () if axes is None else _ints(axes, f"reduce_{name}: axes")
    places = tensor._axes(axes, x.ndim(), f"reduce_{name}")
    if not places or len(places) == x.ndim():
        result = _op(name, x, axis=-1)
        return _to_shape(result, (1,) * x.ndim() if keepdims else ())
    for axis in sorted(places, reverse=True):
        x = _op(name, x, axis=axis, keep_dims=bool(keepdims))
    return x


def reduce_sum(x: Tensor, axes=None, keepdims=1) -> Tensor:
    """The sum over axes, of all for None; they stay as 1 with keepdims."""
    return _reduce("sum", x, axes, keepdims)


def reduce_mean(x: Tensor, axes=None, keepdims=1) -> Tensor:
    """The mean over axes, of all for None; they stay as 1 with keepdims."""
    return _reduce("mean", x, axes, keepdims)


def globalaveragepool(x: Tensor, data_format: str = "channels_first") -> Tensor:
    """The mean over pixels: (n, c, h, w) -> (n, c, 1, 1), or with
    "channels_last" (n, h, w, c) -> (n, 1, 1, c)."""
    if data_format not in ("channels_first", "channels_last"):
        raise ValueError(
            f"globalaveragepool: data_format is {data_format!r}; channels_first or "
            "channels_last is needed"
        )
    if x.ndim() < 3:
        raise ValueError(
            f"globalaveragepool: x has shape {x.shape}; an image is needed"
        )
    is_first = data_format == "channels_first"
    axes = range(2, x.ndim()) if is_first else range(1, x.ndim() - 1)
    return _reduce("mean", x, list(axes), 1)


# ---- Linear algebra ----


def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA=0,
    transB=0,
) -> Tensor:
    """alpha A' B' + beta C for matrices, A' transposed where transA says so."""
    y = _op("matmul", A, B, transpose_a=bool(transA), transpose_b=bool(transB))
    if alpha != 1.0:
        y = y * float(alpha)
    if C is None or beta == 0.0:
        return y
    return y + (C if beta == 1.0 else C * float(beta))


def matmul(
    x: Tensor, w: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    """x w, products of matrices in the last two axes; transpose_a, transpose_b:
    of x and w with these swapped."""
    _need_tensor(x, "matmul")
    _need_tensor(w, "matmul")
    if not (transpose_a or transpose_b):
        return autograd.apply_attrs(OPS["matmul"], (x, w), None)
    return _op("matmul", x, w, transpose_a=transpose_a, transpose_b=transpose_b)


def cossim(a: Tensor, b: Tensor) -> Tensor:
    """The cosine between rows of two matrices, (rows)."""
    if a.ndim() != 2 or a.shape != b.shape:
        raise ValueError(
            f"cossim: shapes {a.shape} and {b.shape}; two matrices of one shape "
            "are needed"
        )

    def dot(x, y):
        return _op("sum", x * y, axis=1)

    return dot(a, b) / (_op("sqrt", dot(a, a)) * _op("sqrt", dot(b, b)))


# ---- Dropout ----

_FIRST_STREAM = 0x20000000  # as in model/layers/dropout_layer.c


def dropout(x: Tensor, seed: int = 0, ratio: float = 0.5) -> Tensor:
    """In training: 0 for the share `ratio` of elements, else x / (1 - ratio).

    Outside of training x itself. Which elements follows from the seed (0: that
    of the model or the device), the step, how many dropouts ran in it before
    this one, and the sample's place in the whole batch.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: ratio is {ratio}; needs 0 to below 1")
    drawn = _drawn(x, seed)
    return (
        _op("dropout", x, ratio=float(ratio), **drawn) if drawn and ratio else x
    )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask=None,
    causal: bool = False,
    offset: int = 0,
    scale: float = 0.0,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale q k' + mask) v, (n, h, t, e), without a tensor of all weights.

    q: (n, h, t, d). k: (n, g, s, d), v: (n, g, s, e), each of the g heads for h / g
    neighbouring ones of q. mask, of a shape that broadcasts to (n, h, t, s): of
    floats, which are added; else 0 where a place must not be seen. causal: row i of q
    sees rows up to offset + i of k and v. scale 0: 1 / sqrt(d). dropout: in training,
    the share of weights that become 0, chosen as by `dropout`.
    """
    xs = [_need_tensor(x, "attention") for x in (q, k, v)]
    if mask is not None:
        xs.append(_mask(mask, q))
    drawn = _drawn(q) if dropout else {}
    return _op(
        "attention",
        *xs,
        causal=causal,
        offset=offset,
        scale=scale,
        dropout=dropout if drawn else 0.0,
        **drawn,
    )


def _drawn(x: Tensor, seed: int = 0) -> dict:
    """In training: the settings of an op that draws numbers for x. Else none."""
    step = draw_step(x, 1)
    if not step.training:
        return {}
    return {
        "seed": operator.index(seed) or step.seed,
        "stream": _FIRST_STREAM + step.random_stream,
        "step": step.step,
        "first_sample": step.first_sample,
    }


def draw_step(x: Tensor, count: int) -> Step:
    """Where in a run the work on x is: what is drawn there, `count` times, is
    keyed by it."""
    is_training = (
        here.training if here.outer_training is None else here.outer_training
    )
    at = here.model_step or (autograd.place if is_training else None)
    if at is None:
        return Step(training=False)
    step = Step(training=is_training, step=at.step)
    if at is here.model_step:
        step.seed, step.first_sample = at.seed, at.first_sample
    elif count:
        rank, _ranks = at.partition
        step.seed = x.device.seed
        step.first_sample = rank * (x.shape[0] if x.ndim() else 0)
    for i in range(count):
        stream = at.next_stream()
        step.random_stream = step.random_stream if i else stream
    return step


# ---- Plain ops by SINGA's names and argument names ----

# function: (op, arguments)
_PLAIN = {
    name: (name, ("x",))
    for name in (
        "relu", "tanh", "cos", "cosh", "acos", "acosh", "sin", "sinh", "asin",
        "asinh", "tan", "atan", "atanh", "sigmoid", "softsign", "sqrt",
        "softplus", "log", "reciprocal", "ceil", "floor", "round", "erf", "gelu",
        "gelu_tanh", "silu",
    )
}  # fmt: skip
_PLAIN.update(
    {
        "abs": ("abs", ("a",)),
        "exp": ("exp", ("a",)),
        "sign": ("sign", ("a",)),
        "negative": ("neg", ("x",)),
        "rounde": ("round_even", ("x",)),
        "_not": ("logical_not", ("x",)),
        "prelu": ("prelu", ("x", "slope")),
    }
)
_TWO = {
    "add": ("add", ("a", "b")),
    "sub": ("sub", ("a", "b")),
    "mul": ("mul", ("x", "y")),
    "div": ("div", ("a", "b")),
    "pow": ("pow", ("a", "b")),
    "less": ("less", ("x", "y")),
    "greater": ("greater", ("x", "y")),
    "equal": ("equal", ("x", "y")),
    "_and": ("logical_and", ("a", "b")),
    "_or": ("logical_or", ("a", "b")),
    "_xor": ("logical_xor", ("a", "b")),
}


_NONE = inspect.Parameter.empty


def signature(defaults: dict) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, default=default)
            for name, default in defaults.items()
        ]
    )


def _named(function: str, op: str, arguments, run):
    count = len(arguments)

    def called(*xs, **named):
        if named:
            rest = arguments[len(xs) :]
            xs += tuple(named.pop(name) for name in rest if name in named)
        if len(xs) != count or named:
            raise TypeError(
                f"{function} takes {count} tensor{'s' if count > 1 else ''} "
                f"({', '.join(arguments)})"
            )
        return run(*xs)

    called.__name__ = called.__qualname__ = function
    called.__module__ = "choir.autograd"
    called.__doc__ = f"{OPS[op].doc[:1].upper()}{OPS[op].doc[1:]}."
    called.__signature__ = signature(dict.fromkeys(arguments, _NONE))
    return called


def _plain_functions() -> dict:
    made = {}
    for function, (op, arguments) in _PLAIN.items():

        def run(*xs, _name=op):
            for x in xs:
                _need_tensor(x, _name)
            return autograd.apply_attrs(OPS[_name], xs, None)

        made[function] = _named(function, op, arguments, run)
    for function, (op, arguments) in _TWO.items():

        def run(a, b, _name=op):
            return autograd._combined(
                lambda: autograd._bare(OPS[_name]),
                _operands.both,
                (_name, a, b),
                {},
                autograd._classes[_name],
            )

        made[function] = _named(function, op, arguments, run)
    return made


# ---- What autograd gets ----

FUNCTIONS = (
    sum, mean, max, min, add_all, add_bias, clip, elu, selu, leakyrelu,
    hardsigmoid, identity, softmax, reshape, flatten, transpose, unsqueeze,
    squeeze, expand, cat, split, slice, tile, pad, upsample, depth_to_space,
    space_to_depth, shape, constant_of_shape, gather, embedding,
    scatter_elements, where, onehot, nonzero, cast, ctensor2numpy, reduce_sum,
    reduce_mean, globalaveragepool, gemm, matmul, cossim, dropout,
    attention,
    *LOSSES,
)  # fmt: skip


def public() -> dict:
    """The names that `autograd` has from here."""
    names = _plain_functions()
    names.update({function.__name__: function for function in FUNCTIONS})
    return names
