# SPDX-License-Identifier: Apache-2.0
"""SINGA's losses: functions of `autograd` whose result has shape (1)."""

from __future__ import annotations

import math

from choir import _raw, tensor
from choir._arguments import _as, _beside, _indices, _to_shape
from choir.autograd import _op, _widened
from choir.tensor import Tensor, _need_tensor


def _scores(x, name: str) -> Tensor:
    """x; in float32 where mixed precision made it of 16 bits."""
    return _widened(_need_tensor(x, name))


def _loss(x: Tensor) -> Tensor:
    """One element with the shape that losses have, (1)."""
    return _op("reshape", x, ndim=1, shape=(1,))


def _total(x: Tensor) -> Tensor:
    return _op("sum", x, axis=-1)


def _labels(t: Tensor, name: str, rows: int) -> Tensor:
    if t.size() != rows:
        raise ValueError(
            f"{name}: labels of shape {t.shape} for {rows} rows; one for each row, "
            "or rows of probabilities in the shape of x, are needed"
        )
    return _to_shape(_indices(t, t), (rows,))


def _rows(x: Tensor, t, name: str) -> tuple[Tensor, Tensor]:
    """Scores in rows, and targets; those in their shape too."""
    x = _scores(x, name)
    if x.ndim() < 2:
        raise ValueError(
            f"{name}: x has shape {x.shape}; (batch, classes), or more axes before "
            "the classes, is needed"
        )
    t = _beside(t, x)
    if x.ndim() == 2:
        return x, t
    flat = (math.prod(x.shape[:-1]), x.shape[-1])
    if t.shape not in (x.shape, x.shape[:-1]):
        raise ValueError(
            f"{name}: labels of shape {t.shape} for x of shape {x.shape}; "
            f"{x.shape[:-1]} or that of x is needed"
        )
    if t.shape == x.shape:
        t = _to_shape(t, flat)
    return _to_shape(x, flat), t


def softmax_cross_entropy(x: Tensor, t) -> Tensor:
    """The mean over all rows of -log softmax(x) at the target.

    x: (batch, classes). t: numbers of classes, of any dtype and in any shape
    with one for each row; or rows in the shape of x, which are divided by their
    sums. x with more axes, (batch, length, classes), has a row at each place, and
    t is (batch, length) or of x's shape.
    """
    x, t = _rows(x, t, "softmax_cross_entropy")
    rows = x.shape[0]
    if t.shape != x.shape or x.shape[1] == 1:
        t = _labels(t, "softmax_cross_entropy", rows)
        return _op("softmax_cross_entropy", x, t)
    t = _as(t, x.data.dtype)
    share = t / _op("sum", t, axis=1, keep_dims=True)
    total = _total(share * _op("log_softmax", x))
    return _loss(total * (-1.0 / max(rows, 1)))


def linear_cross_entropy(x: Tensor, w: Tensor, t, transpose=False) -> Tensor:
    """softmax_cross_entropy(x w, t), for many classes: no tensor of all logits is made.

    x: (..., features). w: (features, classes), or with transpose (classes,
    features), as an embedding's. t: numbers of classes, one for each row of x.
    Backward makes the logits again, tile by tile.
    """
    rows = _need_tensor(x, "linear_cross_entropy").shape[:-1]
    t = _indices(_beside(t, x), x)
    if t.size() == math.prod(rows):
        t = _to_shape(t, rows)
    return _op("linear_cross_entropy", x, t, w, transpose=transpose)


def cross_entropy(x: Tensor, t) -> Tensor:
    """The mean over all rows of -sum(t log x), for probabilities x.

    x, t: as of softmax_cross_entropy, but rows are taken as they are.
    """
    x, t = _rows(x, t, "cross_entropy")
    rows = x.shape[0]
    if t.shape != x.shape or (
        x.shape[1] == 1 and t.data.dtype not in _raw.FLOATS
    ):
        return _op("cross_entropy", x, _labels(t, "cross_entropy", rows))
    t = _as(t, x.data.dtype)
    # Where t is 0, 0 log x is 0, also for an x of 0: log(x + 1) is finite.
    is_zero = _op("equal", t.detach(), tensor.zeros_like(t))
    total = _total(t * _op("log", x + is_zero))
    return _loss(total * (-1.0 / max(rows, 1)))


def binary_cross_entropy(x: Tensor, t) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), summed, over the batch's size.

    1e-4 is added inside of the logarithms, as in SINGA.
    """
    x = _scores(x, "binary_cross_entropy")
    t = _as(_beside(t, x), x.data.dtype)
    if t.shape != x.shape:
        raise ValueError(
            f"binary_cross_entropy: t has shape {t.shape}, x {x.shape}; the same "
            "is needed"
        )
    total = _total(
        t * _op("log", x + 1e-4) + (1 - t) * _op("log", 1 - x + 1e-4)
    )
    batch = x.shape[0] if x.ndim() else 1
    return _loss(total * (-1.0 / max(batch, 1)))


def mse_loss(x: Tensor, t) -> Tensor:
    """The mean of (x - t)^2 over all elements."""
    x = _scores(x, "mse_loss")
    t = _beside(t, x)
    return _op("mse_loss", x, _as(t, x.data.dtype))


def ranking_loss(pos: Tensor, neg: Tensor, M: float = 0.2) -> Tensor:
    """The mean of max(0, M - pos + neg), of two tensors of one shape."""
    pos = _scores(pos, "ranking_loss")
    neg = _scores(_beside(neg, pos), "ranking_loss")
    if pos.shape != neg.shape:
        raise ValueError(
            f"ranking_loss: pos has shape {pos.shape}, neg {neg.shape}; the same "
            "is needed"
        )
    return _loss(_op("mean", _op("relu", neg - pos + float(M)), axis=-1))


LOSSES = (
    softmax_cross_entropy,
    linear_cross_entropy,
    cross_entropy,
    binary_cross_entropy,
    mse_loss,
    ranking_loss,
)
