# SPDX-License-Identifier: Apache-2.0
"""What Python's and NumPy's numbers become in a tensor: NumPy 2's rules, whichever
NumPy is installed.

A scalar takes the tensor's dtype. One that does not fit is an OverflowError;
NumPy 1 and C wrap it, or round it, without a word.
"""

from __future__ import annotations

import math

import numpy as np

from choir import _raw

_LIMITS = {
    code: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for code, dtype in _raw._NUMPY.items()
    if dtype.kind in "iu"
}
_F32 = float(np.finfo(np.float32).max)


def is_number(value) -> bool:
    """Whether it is one number, of those that a tensor can hold."""
    return isinstance(value, (bool, int, float, np.bool_)) or (
        isinstance(value, np.number)
        and not isinstance(value, np.complexfloating)
    )


def is_real(value) -> bool:
    """Whether such a number is of a floating-point type."""
    return isinstance(value, (float, np.floating))


def out_of(code: int, value) -> int:
    """-1: a whole number is below what the dtype holds, 1: above, 0: it fits."""
    low, high = _LIMITS.get(code, (-math.inf, math.inf))
    return (value > high) - (value < low)


def fitted(value, code: int):
    """A number as an operand beside a tensor of this dtype.

    An int for integers, a float for floats, infinite where it is too large.
    """
    if code in _LIMITS:
        number = int(value)
        if out_of(code, number):
            raise OverflowError(
                f"Python integer {number} out of bounds for "
                f"{_raw.numpy_dtype(code)}"
            )
        return number
    number = float(value)
    # A double is an op's attribute, which the library rounds to float32.
    if code == _raw.F16 or (code == _raw.F32 and not -_F32 < number < _F32):
        with np.errstate(over="ignore"):
            return float(_raw.numpy_dtype(code).type(number))
    return number


def assigned(value, code: int):
    """A number as an element of this dtype: floats are cut off to integers."""
    if code in _LIMITS and is_real(value):
        value = float(value)
        if math.isnan(value):
            raise ValueError("cannot convert float NaN to integer")
        if math.isinf(value):
            raise OverflowError("cannot convert float infinity to integer")
        value = int(value)
    if code == _raw.BOOL:
        return bool(value)
    return fitted(value, code)


def assigned_list(values, code: int) -> np.ndarray:
    """A list or array as elements of this dtype: a list's are Python's numbers."""
    array = np.asarray(values)
    dtype = _raw.numpy_dtype(code)
    if isinstance(values, np.ndarray) or code not in _LIMITS or not array.size:
        with np.errstate(invalid="ignore", over="ignore"):
            return array.astype(dtype)
    if array.dtype.kind in "uifO":
        for extreme in (array.max(), array.min()):
            assigned(extreme if array.dtype.kind != "O" else int(extreme), code)
    return array.astype(dtype)


def narrowed(array: np.ndarray) -> np.ndarray:
    """An int64 array as int32 where all elements fit, else itself."""
    narrow = array.astype(np.int32)
    return narrow if (narrow == array).all() else array


def indices(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """An array of indices of an axis, checked, from 0."""
    if array.dtype.kind not in "iu":
        raise IndexError(
            f"indices of dtype {array.dtype}; integers (or one truth value for "
            "each entry) are needed"
        )
    if array.size and (array.max() >= size or array.min() < -size):
        wrong = array[(array >= size) | (array < -size)].reshape(-1)[0]
        raise IndexError(
            f"gather: index {wrong} is out of range for axis {axis} of size {size}"
        )
    array = array.astype(np.int64)
    return np.where(array < 0, array + size, array)
