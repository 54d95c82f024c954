# SPDX-License-Identifier: Apache-2.0
"""Arguments of the functions of `autograd` as tensors, indices and whole numbers."""

from __future__ import annotations

import numpy as np

from choir import _elements, _numbers, _operands, _raw, tensor
from choir._here import here
from choir.autograd import _op
from choir.tensor import Tensor


def _is_whole(value) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _ints(value, what: str) -> tuple[int, ...]:
    """A number or several, of any kind, as ints."""
    if isinstance(value, Tensor):
        value = tensor.to_numpy(value)
    numbers = np.asarray(value).reshape(-1)
    whole = numbers.astype(np.int64)
    if numbers.size and (whole != numbers).any():
        raise TypeError(f"{what} is {value!r}; whole numbers are needed")
    return tuple(int(number) for number in whole)


def _axis(axis, ndim: int, name: str) -> int:
    return tensor._axes(axis, ndim, name)[0]


def _given(value):
    """A tensor or a number as it is, else an array."""
    if isinstance(value, Tensor) or _numbers.is_number(value):
        return value
    return np.asarray(value)


def _beside(value, like: Tensor) -> Tensor:
    """A tensor, number, list or array as a tensor on the device of `like`."""
    return _operands.operand(_given(value), like)


def _as(x: Tensor, code: int) -> Tensor:
    return x if x.data.dtype == code else _op("cast", x, dtype=code)


def _mask(mask, like: Tensor) -> Tensor:
    """Of attention's scores: floats, which are added to them, in the dtype of `like`;
    else whole numbers or truth values, 0 where a place must not be seen."""
    if not isinstance(mask, Tensor):
        array = np.asarray(mask)
        if array.dtype.kind != "f":
            array = array.astype(np.bool_)
        mask = Tensor._of(_elements.constant(like.device, array))
    is_added = mask.data.dtype in _raw.FLOATS
    return _as(mask, like.data.dtype) if is_added else mask


def _indices(value, like: Tensor) -> Tensor:
    """Indices or labels as int32 or int64; IndexError: one is no whole number."""
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "iubf" and array.size:
            raise IndexError(
                f"indices of dtype {array.dtype}; whole numbers are needed"
            )
        array = _numbers.narrowed(_whole(array))
        return Tensor._of(_elements.constant(like.device, array))
    if value.data.dtype in (_raw.I32, _raw.I64):
        return value
    if value.data.dtype not in _raw.FLOATS:
        return _as(value, _raw.I32)
    if here.model_step is None:
        _whole(tensor.to_numpy(value))
        return _as(value, _raw.I64)
    # In a step nothing is read: what is no whole number becomes an index that no
    # axis has, for which the op that takes it fails, in a graph too.
    t = value.detach()
    whole = _as(t, _raw.I64)
    is_whole = t == _as(whole, t.data.dtype)
    return _op("where", is_whole, whole, whole * 0 - (1 << 62))


def _whole(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    wrong = array[whole != array]  # also uint64 above int64
    if wrong.size:
        raise IndexError(
            f"an index or a label is {wrong.reshape(-1)[0]}; whole numbers are "
            "needed"
        )
    return whole


def _to_shape(x: Tensor, shape) -> Tensor:
    shape = tuple(shape)
    return x if shape == x.shape else _op("reshape", x, **tensor._to(shape))
