# SPDX-License-Identifier: Apache-2.0
"""Subscripts of tensors, read and written: NumPy's basic indexing, and one array of
indices or truth values.
"""

from __future__ import annotations

import numpy as np

from choir import _elements, _numbers, _raw
from choir._raw import run
from choir.tensor import Tensor, _apply, _is_list, _to, to_numpy


def read(t: Tensor, keys, must_share: bool = False) -> Tensor:
    """NumPy's basic indexing: integers, slices, ..., None; one index array."""
    if not isinstance(keys, tuple):
        keys = (keys,)
    given = len(
        [key for key in keys if key is not None and key is not Ellipsis]
    )
    if given > t.ndim():
        raise IndexError(
            f"{given} indices for a tensor of shape {t.shape}; at most "
            f"{t.ndim()} are possible"
        )
    if len([key for key in keys if key is Ellipsis]) > 1:
        raise IndexError("an index can have one ellipsis (...) only")
    if Ellipsis in [key for key in keys if key is Ellipsis]:
        place = [key is Ellipsis for key in keys].index(True)
        fill = (slice(None),) * (t.ndim() - given)
        keys = keys[:place] + fill + keys[place + 1 :]
    result = t
    shape: list[int] = []
    axis = 0
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        size = t.shape[axis]
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            index = int(key)
            if not -size <= index < size:
                raise IndexError(
                    f"index {index} is out of range for axis {axis} of size {size}"
                )
            index %= size
            result = take(result, axis, index, index + 1, 1)
        elif isinstance(key, slice):
            start, stop, step = key.indices(size)
            # Of a step beyond the axis only that matters.
            step = min(step, max(size, 1))
            count = len(range(start, stop, step))
            if step < 0:
                if must_share:
                    raise NotImplementedError(
                        "setting elements through a slice with a negative step"
                    )
                result = gather(result, axis, range(start, stop, step))
            elif count != size or step != 1:
                result = take(result, axis, start, max(start, stop), step)
            shape.append(count)
        elif isinstance(key, (list, np.ndarray, Tensor)):
            if must_share:
                raise NotImplementedError(
                    "setting elements by an array of indices"
                )
            indices = (
                to_numpy(key) if isinstance(key, Tensor) else np.asarray(key)
            )
            if _is_list(key) and not indices.size:
                indices = indices.astype(np.int64)
            if indices.dtype == np.bool_:
                if indices.shape != (size,):
                    raise IndexError(
                        f"a mask of shape {indices.shape} for axis {axis} of size "
                        f"{size}"
                    )
                indices = np.flatnonzero(indices)
            if indices.ndim != 1:
                raise NotImplementedError(
                    "indices with more than one dimension; use autograd.gather"
                )
            indices = _numbers.indices(indices, axis, size)
            result = gather(result, axis, indices)
            shape.append(len(indices))
        else:
            raise TypeError(
                f"index {key!r}; an integer, a slice, None, ... or an array of "
                "integers is needed"
            )
        axis += 1
    shape.extend(t.shape[axis:])
    if tuple(shape) == result.shape:
        return result if result is not t else _apply("reshape", t, **_to(shape))
    return _apply("reshape", result, **_to(shape))


def write(t: Tensor, keys, value) -> None:
    """Sets what such an index names: to a number, an array, a list or a tensor."""
    part = read(t.detach(), keys, must_share=True)
    if isinstance(value, Tensor):
        src = value.data
    elif np.isscalar(value):
        part.set_value(value)
        return
    else:
        code = t.data.dtype
        if code == _raw.BF16:
            code = _raw.F32
        array = _numbers.assigned_list(value, code)
        src = _raw.from_array(t.device, array)
    if src.dtype != part.data.dtype:
        src = _raw.cast(src, part.data.dtype)
    if src.shape() != part.shape:
        src = run("broadcast_to", src, ndim=part.ndim(), shape=part.shape)
    run("copy", src, out=[part.data])


def take(t: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    return _apply("slice", t, axis=axis, start=start, stop=stop, step=step)


def gather(t: Tensor, axis: int, indices) -> Tensor:
    array = _numbers.narrowed(np.asarray(indices, np.int64).reshape(-1))
    index = Tensor._of(_elements.constant(t.device, array))
    return _apply("gather", t, index, axis=axis)
