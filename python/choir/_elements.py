# SPDX-License-Identifier: Apache-2.0
"""Raw tensors of given elements: numbers, arrays and random numbers; and the dtype
in which those of two tensors meet."""

from __future__ import annotations

import hashlib

import numpy as np

from choir import _numbers, _raw
from choir._here import here
from choir._raw import CTensor, run

_EXACT = 1 << 53  # up to here a double holds every whole number


def promoted(left: int, right: int, is_division: bool) -> int:
    """The dtype in which two meet: NumPy's, but that integers and floats meet in
    the float's, and integers are divided in float32."""
    if left == right and (left in _raw.FLOATS or not is_division):
        return left
    if left in _raw.FLOATS and right not in _raw.FLOATS:
        return left
    if right in _raw.FLOATS and left not in _raw.FLOATS:
        return right
    if left in _raw.FLOATS:
        if {left, right} == {_raw.BF16, _raw.F16}:
            return _raw.F32
        order = (_raw.BF16, _raw.F16, _raw.F32, _raw.F64)
    elif is_division:
        return _raw.F32
    else:
        order = (_raw.BOOL, _raw.U8, _raw.I32, _raw.I64)
    return max(left, right, key=order.index)


def narrow(array: np.ndarray) -> np.ndarray:
    """float64 as float32 and int64 as int32, as SINGA takes arrays."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64:
        array = _numbers.narrowed(array)
        if array.dtype == np.int64:
            raise ValueError("an int64 element does not fit into int32")
    return array


def whole(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats as integers of dtype; as they are where one is not such a number."""
    limits = np.iinfo(dtype)
    # float(limits.max) may be rounded up, to what does not fit.
    fits = (array >= limits.min) & (array < float(limits.max) + 1)
    if not (fits & (array == np.trunc(array))).all():
        return array
    return array.astype(dtype)


def zeros(device, shape, code: int) -> CTensor:
    raw = _raw.empty(device, shape, code)
    if raw.count():
        run("fill", raw, out=[raw], value=0.0)
    return raw


def scalar(like: CTensor, value, code: int | None = None) -> CTensor:
    """A number as a tensor without dimensions, of the dtype of `like` or another.

    Made by an op, so that a graph can make it again.
    """
    raw = _raw.empty(like.device, (), like.dtype if code is None else code)
    fill(raw, _numbers.fitted(value, raw.dtype))
    return raw


def fill(raw: CTensor, value) -> None:
    """Sets all elements to a number that fits."""
    is_nan = value != value
    if not is_nan and (isinstance(value, float) or -_EXACT <= value <= _EXACT):
        run("fill", raw, out=[raw], value=float(value))
        return
    # What the op's attribute does not hold: a NaN, or more bits than a double.
    one = constant(
        raw.device, np.array(value, np.float32 if is_nan else np.int64)
    )
    shape = raw.shape()
    if is_nan and raw.dtype != _raw.F32:
        one = run("cast", one, dtype=raw.dtype)
    run("broadcast_to", one, out=[raw], ndim=len(shape), shape=shape)


def draw(name: str, raw: CTensor, low: float, high: float) -> None:
    device = raw.device
    if raw.count() == 0:
        return
    run(
        name,
        raw,
        out=[raw],
        seed=device.seed,
        stream=device.next_stream(),
        low=float(low),
        high=float(high),
        whole_tensor=True,
    )


def reshape(raw: CTensor, shape) -> CTensor:
    return run("reshape", raw, ndim=len(shape), shape=tuple(shape))


class Constants:
    """Arrays as raw tensors that nobody changes, of the steps of one model.

    A graph can take nothing from the host in its middle. So a step takes the
    tensors that the step before made of equal arrays, and the first step of a run
    is not recorded. Those that a step does not take go with its end, unless it
    ended early, perhaps before it came to them.
    """

    def __init__(self) -> None:
        self._done: dict = {}  # of the last step that came to its update
        self._failed: dict = {}  # of the last one after it
        self._now: dict = {}

    def end_step(self, is_updated: bool) -> None:
        if is_updated:
            self._done, self._failed = self._now, {}
        else:
            self._failed = self._now
        self._now = {}

    def get(self, device, array: np.ndarray) -> CTensor:
        array = np.asarray(array, order="C")
        bits = hashlib.blake2b(array.data, digest_size=16).digest()
        key = device, array.dtype.str, array.shape, bits
        for kept in (self._now, self._failed, self._done):
            if key in kept:
                break
        else:
            self._now[key] = _raw.from_array(device, array)
            return self._now[key]
        self._now[key] = kept[key]
        return kept[key]


def constant(device, array) -> CTensor:
    """An array as a raw tensor that nobody changes."""
    array = np.asarray(array)
    if here.model_step is None:
        return _raw.from_array(device, array)
    return here.model_step.constants.get(device, array)
