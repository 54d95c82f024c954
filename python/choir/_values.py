# SPDX-License-Identifier: Apache-2.0
"""What collectives are given: values, and how they are reduced."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from choir import _comm, _raw
from choir._calls import lib
from choir._raw import CTensor
from choir.tensor import Tensor

Sum, Average = _comm.SUM, _comm.AVERAGE
Min, Max, Product = _comm.MIN, _comm.MAX, _comm.PRODUCT


class Value:
    """What a call was given: its elements as an own array, and the way back.

    bfloat16, which NumPy lacks, lies in the array as uint16.
    """

    def __init__(self, given, is_changed: bool = False) -> None:
        self.given = given
        if isinstance(given, (Tensor, CTensor)):
            raw = given.data if isinstance(given, Tensor) else given
            self.raw: CTensor | None = raw
            self.code = raw.dtype
            self.array = raw.read_bits()
            return
        self.raw = None
        if is_changed and not isinstance(given, np.ndarray):
            raise TypeError(
                f"a {type(given).__name__} cannot be changed in place; a Tensor or "
                "a NumPy array is needed"
            )
        if is_changed and not given.flags.writeable:
            raise ValueError("the array to be changed is read-only")
        array = np.asarray(given)
        self.code = _raw.dtype_of(array.dtype)
        self.array = np.array(array, _raw.numpy_dtype(self.code), order="C")

    @property
    def dtype_name(self) -> str:
        return lib.dtype_name(self.code).decode()

    def result(self, array: np.ndarray):
        """Elements as a new value of the kind that was given."""
        if self.raw is None:
            return array
        raw = _raw.empty(self.raw.device, array.shape, self.code)
        raw.write_bits(array)
        return Tensor._of(raw) if isinstance(self.given, Tensor) else raw

    def replace(self, array: np.ndarray):
        """Puts elements where they came from; what was given."""
        if self.raw is None:
            np.copyto(self.given, array, casting="same_kind")
        else:
            self.raw.write_bits(array)
        return self.given


def label_of(name: str | None, text: str) -> str:
    """What ranks compare: counts alone would take (2, 3) for (3, 2)."""
    return f"{name} {text}" if name else text


def rows_in(value: Value, what: str) -> int:
    """How many there are."""
    if value.array.ndim == 0:
        raise ValueError(
            f"{what}: a value without dimensions has no rows; reshape it to (1,)"
        )
    return value.array.shape[0]


def rows_of(value: Value) -> str:
    """What the parts of a first dimension must share."""
    inner = ", ".join(["*"] + [str(n) for n in value.array.shape[1:]])
    return f"{value.dtype_name} ({inner})"


class Reduction(NamedTuple):
    """How values of all ranks become one."""

    op: int
    name: str | None
    compression: type[Compression.none] | type[Compression.fp16]
    scales: dict  # fields of choir_collective_t

    def label(self, text: str) -> str:
        return label_of(self.name, text)


def reduction(
    name: str | None,
    average: bool | None,
    op: int | None,
    prescale: float,
    postscale: float,
    compression,
) -> Reduction:
    """From what Horovod's calls take."""
    scales = {}
    if prescale != 1.0 or postscale != 1.0:
        scales = {
            "scales": True,
            "prescale": float(prescale),
            "postscale": float(postscale),
        }
    return Reduction(_op_of(average, op), name, compression, scales)


def _op_of(average: bool | None, op: int | None) -> int:
    if average is not None and op is not None:
        raise ValueError("average and op say the same; give one of them")
    if op is None:
        return Sum if average is False else Average
    if op not in (Sum, Average, Min, Max, Product):
        raise ValueError(
            f"op is {op!r}; one of dist.Sum, Average, Min, Max and Product is "
            "needed"
        )
    return op


class Compression:
    """What values travel as. `none`: as they are; `fp16`: float32 and float64
    as float16, summed in float32 and rounded once; others as they are."""

    class none:
        @staticmethod
        def wire(code: int) -> int:
            return code

    class fp16:
        @staticmethod
        def wire(code: int) -> int:
            return _raw.F16 if code in (_raw.F32, _raw.F64) else code


def to_wire(value: Value, compression) -> tuple[np.ndarray, int]:
    code = compression.wire(value.code)
    if code == value.code:
        return value.array, code
    with np.errstate(over="ignore"):
        return value.array.astype(_raw.numpy_dtype(code)), code


def from_wire(value: Value, array: np.ndarray) -> np.ndarray:
    return array.astype(_raw.storage_dtype(value.code), copy=False)
