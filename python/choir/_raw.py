# SPDX-License-Identifier: Apache-2.0
"""Raw tensors and the ops of the C library's list.

A CTensor is one reference to a choir_tensor_t: a strided view of a buffer on a
device. When Python lets it go, its buffer goes back to the device's pool at
once. `run` is the only way by which the package computes.
"""

from __future__ import annotations

import ctypes
import operator
from ctypes import byref, c_void_p
from functools import partial

import numpy as np

from choir._calls import Owner, check, dims, lib
from choir._lib import Dtype, OpGradient, OpInfo, View
from choir._sections import lock
from choir._settings import Table

F32, F64, F16, BF16 = Dtype.F32, Dtype.F64, Dtype.F16, Dtype.BF16
I32, I64, U8, BOOL = Dtype.I32, Dtype.I64, Dtype.U8, Dtype.BOOL
_NUMPY = {
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    F16: np.dtype(np.float16),
    I32: np.dtype(np.int32),
    I64: np.dtype(np.int64),
    U8: np.dtype(np.uint8),
    BOOL: np.dtype(np.bool_),
}
_FROM_NUMPY = {dtype: code for code, dtype in _NUMPY.items()}
FLOATS = (F32, F64, F16, BF16)
_WHOLE = (I32, I64, U8)


def numpy_dtype(code: int) -> np.dtype:
    """NumPy's dtype; TypeError for bf16, which NumPy lacks."""
    try:
        return _NUMPY[code]
    except KeyError:
        raise TypeError(
            "NumPy has no dtype for bf16; cast to float32 first"
        ) from None


def storage_dtype(code: int) -> np.dtype:
    """The same, but uint16 for the bits of bf16."""
    return np.dtype(np.uint16) if code == BF16 else numpy_dtype(code)


def dtype_of(dtype) -> int:
    """The library's dtype for a NumPy one."""
    dtype = np.dtype(dtype).newbyteorder("=")
    try:
        return _FROM_NUMPY[dtype]
    except KeyError:
        raise TypeError(
            f"dtype {dtype} is none of Choir's; float32, float64, float16, int32, "
            "int64, uint8 and bool are possible"
        ) from None


def sizes(shape) -> tuple[int, ...]:
    """A shape: one whole number or several, none below 0."""
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    result = tuple(operator.index(size) for size in shape)
    for size in result:
        if size < 0:
            raise ValueError(f"shape {result} has a negative size")
        if size >= 1 << 63:
            raise ValueError(
                f"shape {result} has a size that is too large; at most "
                f"{(1 << 63) - 1} is possible"
            )
    return result


_new = object.__new__
_op_run, _release = lib.op_run, lib.tensor_release


class CTensor(Owner):
    """A raw tensor of the C library; `Tensor.data` is one.

    As in SINGA, `CTensor([2, 3])` makes one on the default device, and
    `CTensor([2, 3], device, dtype)` elsewhere, of a dtype of `tensor`. Its elements
    are not set.
    """

    __slots__ = (
        "handle",
        "device",
        "_shape",
        "_dtype",
        "_release",
        "__weakref__",
    )

    def __init__(self, shape=(), device=None, dtype=0) -> None:
        from choir import device as devices, tensor

        self._begin(device or devices.get_default_device())
        self._make(sizes(shape), tensor._code(dtype))

    def _make(self, shape: tuple[int, ...], code: int) -> None:
        self._own(
            _release,
            lib.tensor_create,
            self.device.handle,
            code,
            len(shape),
            dims(shape),
        )

    def _begin(self, device) -> CTensor:
        """Owns nothing yet."""
        self.handle = self._shape = self._dtype = None
        self.device = device
        self._release = tuple  # does nothing
        return self

    @classmethod
    def borrow(cls, handle: int, device) -> CTensor:
        """Adds a reference."""
        self = _new(cls)._begin(device)
        lib.tensor_retain(handle)
        self._take(_release, handle)
        return self

    @property
    def view(self) -> View:
        return lib.tensor_view(self.handle).contents

    def shape(self) -> tuple[int, ...]:
        """Sizes; a tensor's never change."""
        if self._shape is None:
            view = self.view
            self._shape = tuple(view.shape[: view.ndim])
        return self._shape

    @property
    def dtype(self) -> int:
        """The library's dtype; a tensor's never changes."""
        if self._dtype is None:
            self._dtype = self.view.dtype
        return self._dtype

    def strides(self) -> tuple[int, ...]:
        """In elements."""
        view = self.view
        return tuple(view.strides[: view.ndim])

    def count(self) -> int:
        n = 1
        for size in self.shape():
            n *= size
        return n

    def is_contiguous(self) -> bool:
        return lib.view_is_contiguous(byref(self.view))

    def address(self) -> int:
        """Of the first element, in the device's memory."""
        view = self.view
        start = lib.buffer_data(view.buffer) or 0
        return start + view.offset * int(lib.dtype_bytes(view.dtype))

    def read(self) -> np.ndarray:
        """A copy of the elements, row-major."""
        numpy_dtype(self.dtype)
        return self.read_bits()

    def read_bits(self) -> np.ndarray:
        """The same; bf16 as uint16."""
        out = np.empty(self.shape(), storage_dtype(self.dtype))
        check(lib.tensor_read(self.handle, out.ctypes.data, out.nbytes))
        return out

    def write(self, array: np.ndarray) -> None:
        """Sets all elements from an array of the same size and dtype."""
        numpy_dtype(self.dtype)
        self.write_bits(array)

    def write_bits(self, array: np.ndarray) -> None:
        """The same; bf16 from uint16."""
        array = np.ascontiguousarray(array, storage_dtype(self.dtype))
        check(lib.tensor_write(self.handle, array.ctypes.data, array.nbytes))

    def as_array(self) -> np.ndarray:
        """The elements without a copy, for tensors in host memory.

        The array keeps the tensor alive. Work on the device's stream is waited
        for before it is returned, not after.
        """
        if not self.device.is_host():
            raise TypeError(
                f"tensor lies on {self.device}; copy it to the host first "
                "(tensor.to_numpy)"
            )
        self.device.Sync()
        code = self.dtype
        dtype = numpy_dtype(code)
        view = self.view
        if self.count() == 0:
            return np.empty(self.shape(), dtype)
        extent = 1 + sum(
            (view.shape[i] - 1) * view.strides[i] for i in range(view.ndim)
        )
        memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(
            self.address()
        )
        memory.keep = self
        flat = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(
            flat,
            self.shape(),
            [stride * dtype.itemsize for stride in self.strides()],
        )

    def layout(self) -> View:
        """The layout of a copy: as its own where that has no gaps."""
        view = View.from_buffer_copy(self.view)
        if not lib.view_is_dense(byref(view)):
            lib.view_set_contiguous(byref(view))
        return view

    def __reduce__(self):
        strides = tuple(self.layout().strides[: len(self.shape())])
        return rebuild, (self.read_bits(), self.device, self.dtype, strides)


def rebuild(bits: np.ndarray, device, code: int | None = None, strides=None):
    """What was pickled; a file of an older version has an array alone."""
    if code is None:
        return from_array(device, bits)
    view = View(ndim=bits.ndim, dtype=code)
    for i, size in enumerate(bits.shape):
        view.shape[i], view.strides[i] = size, strides[i]
    raw = empty_layout(device, view)
    raw.write_bits(bits)
    return raw


_rebuild = rebuild  # its name in such a file


def empty(device, shape, dtype: int = F32) -> CTensor:
    """A new tensor, row-major, with elements that are not set."""
    raw = _new(CTensor)._begin(device)
    raw._make(sizes(shape), dtype)
    return raw


def empty_layout(device, layout: View) -> CTensor:
    """A new tensor with the strides of `layout`."""
    raw = _new(CTensor)._begin(device)
    raw._own(_release, lib.tensor_create_layout, device.handle, byref(layout))
    return raw


def cast(raw: CTensor, code: int) -> CTensor:
    """Its elements in another dtype, as NumPy's astype: integers that are too
    wide lose their upper bits (the op `cast` takes the nearest number)."""
    wide, narrow = lib.dtype_bytes(raw.dtype), lib.dtype_bytes(code)
    if raw.dtype not in _WHOLE or code not in _WHOLE or wide <= narrow:
        return run("cast", raw, dtype=code)
    # The lower bytes of each element are the first.
    view = View.from_buffer_copy(raw.view)
    times = wide // narrow
    view.dtype = code
    view.offset *= times
    for i in range(view.ndim):
        view.strides[i] *= times
    return run("copy", from_view(raw.device, view))


def from_array(device, array) -> CTensor:
    """A new tensor with an array's elements."""
    array = np.asarray(array)
    raw = empty(device, array.shape, dtype_of(array.dtype))
    raw.write(array)
    return raw


def from_view(device, view: View) -> CTensor:
    """A tensor over part of a buffer that exists."""
    raw = _new(CTensor)._begin(device)
    raw._own(_release, lib.tensor_from_view, byref(view))
    return raw


# ---- Ops ----


GRAD, NO_GRAD = OpGradient.GRAD, OpGradient.NO_GRAD
INTERNAL = OpGradient.INTERNAL


class Op:
    """One line of the op list."""

    __slots__ = (
        "code",
        "name",
        "doc",
        "src_min",
        "src_max",
        "result_count",
        "gradient",
        "table",
        "_results",
    )

    def __init__(self, code: int, info: OpInfo) -> None:
        self.code = code
        self.name: str = info.name.decode()
        self.doc: str = info.doc.decode() if info.doc else ""
        self.src_min: int = info.src_min
        self.src_max: int = info.src_max
        self.result_count: int = info.result_count
        self.gradient: int = info.gradient
        self.table = Table(info.attrs) if info.attrs else None
        self._results = c_void_p * info.result_count

    def attrs(self, **values):
        """The attributes' struct; None for an op without any."""
        if self.table is None:
            if values:
                raise TypeError(f"{self.name} takes no settings")
            return None
        return self.table.make(self.name, check_ranges=False, **values)

    def copy(self, attrs: int):
        """A copy of such a struct."""
        count = self.table.bytes if self.table else 0
        bits = ctypes.string_at(attrs, count) if count else None
        return bits and ctypes.create_string_buffer(bits, count)

    def __call__(self, *srcs: CTensor, attrs=None, out=None, accumulate=False):
        """Runs it on raw tensors; a list of its results.

        out: the tensors to write instead of new ones.
        """
        count = len(srcs)
        device = srcs[0].device
        for src in srcs:
            if src.device is not device:
                raise ValueError(
                    f"{self.name}: operands lie on {device} and {src.device}; one "
                    "device is needed (to_device moves a tensor)"
                )
        stream = device.stream
        operands = (c_void_p * count)(*[src.handle for src in srcs])
        if out is not None:
            results = self._results(*[raw.handle for raw in out])
            with lock:
                status = lib.op_run(
                    stream,
                    self.code,
                    operands,
                    count,
                    attrs,
                    accumulate,
                    results,
                )
            if status is not None:
                check(status)
            return out
        results = self._results()
        made = []
        for _ in results:
            raw = _new(CTensor)
            raw.handle = raw._shape = raw._dtype = None
            raw.device = device
            raw._release = tuple
            made.append(raw)
        try:
            with lock:
                status = _op_run(
                    stream,
                    self.code,
                    operands,
                    count,
                    attrs,
                    accumulate,
                    results,
                )
            for raw, handle in zip(made, results):
                raw._release = partial(_release, handle)
                raw.handle = handle
        except BaseException:
            # KeyboardInterrupt: what was made is released with its owners.
            for raw, handle in zip(made, results):
                raw._take(_release, handle)
            raise
        if status is not None:
            check(status)
        return made


def _read_ops() -> dict[str, Op]:
    ops = {}
    while True:
        info = lib.op_info(len(ops))
        if not info.name:
            return ops
        op = Op(len(ops), info)
        ops[op.name] = op


OPS: dict[str, Op] = _read_ops()
OP_LIST = list(OPS.values())


def run(name: str, *srcs: CTensor, out=None, accumulate=False, **settings):
    """Runs an op by its name; its first result."""
    op = OPS[name]
    attrs = op.attrs(**settings) if settings else None
    return op(*srcs, attrs=attrs, out=out, accumulate=accumulate)[0]
