# SPDX-License-Identifier: Apache-2.0
"""DLPack: tensors handed to and taken from other libraries without a copy.

A capsule called "dltensor" holds a DLManagedTensor: where the elements lie, how,
and a function that its taker calls once when it needs them no more. The taker
renames the capsule, so that nobody takes it twice.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
    py_object,
    pythonapi,
)

from choir import _raw, device
from choir._calls import get, lib
from choir._lib import View
from choir._raw import CTensor
from choir._sections import deferred
from choir.tensor import Tensor

_CPU, _CUDA_HOST = 1, 3
_DEVICE_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm"}
_DTYPES = {
    _raw.F32: (2, 32),
    _raw.F64: (2, 64),
    _raw.F16: (2, 16),
    _raw.BF16: (4, 16),
    _raw.I32: (0, 32),
    _raw.I64: (0, 64),
    _raw.U8: (1, 8),
    _raw.BOOL: (6, 8),
}
_CODES = {pair: code for code, pair in _DTYPES.items()}
_KIND_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}


# ---- The structs of dlpack.h ----


class _DLDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class _DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _DLDevice),
        ("ndim", c_int32),
        ("dtype", _DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DLManagedTensor(Structure):
    _fields_ = [
        ("dl_tensor", _DLTensor),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
    ]


# ---- Capsules ----

_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)


def _api(name: str, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, pythonapi))


_capsule_new = _api("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
_capsule_pointer = _api("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_capsule_is = _api("PyCapsule_IsValid", ctypes.c_int, py_object, c_char_p)
_capsule_rename = _api("PyCapsule_SetName", ctypes.c_int, py_object, c_char_p)
# In a destructor the capsule has no references left: only its address may go
# around.
_dying_is = _api("PyCapsule_IsValid", ctypes.c_int, c_void_p, c_char_p)
_dying_pointer = _api("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)
_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"


class _Export:
    """What one capsule points to: lives until the deleter is called."""

    def __init__(self, raw: CTensor) -> None:
        ndim = len(raw.shape())
        self.raw = raw  # keeps the elements
        self.shape = (c_int64 * max(ndim, 1))(*raw.shape())
        self.strides = (c_int64 * max(ndim, 1))(*raw.strides())
        code, bits = _DTYPES[raw.dtype]
        # The address has the offset in it: some takers overlook byte_offset.
        self.managed = _DLManagedTensor(
            _DLTensor(
                raw.address() if raw.count() else None,
                _DLDevice(_CPU, 0),
                ndim,
                _DLDataType(code, bits, 1),
                self.shape,
                self.strides,
                0,
            ),
            None,
            ctypes.cast(_deleter, c_void_p),
        )
        self.address = ctypes.addressof(self.managed)


_exports: dict[int, _Export] = {}


# May be called from any thread: ctypes takes the interpreter's lock. No function
# of Python's, into which an interrupt could come.
_deleter = ctypes.CFUNCTYPE(None, c_void_p)(_exports.__delitem__)


# The defaults hold what it needs also while the interpreter takes modules apart.
@_DESTRUCTOR
def _drop(
    capsule,
    _exports=_exports,
    _is=_dying_is,
    _pointer=_dying_pointer,
    _name=_NAME,
):
    # Under another name it was taken, and its taker calls the deleter.
    if _is(capsule, _name):
        _exports.pop(_pointer(capsule, _name), None)


# Others keep their addresses: they are never freed.
for _kept in (_deleter, _drop, _NAME, _USED_NAME):
    pythonapi.Py_IncRef(py_object(_kept))


# ---- Out ----


def _check_host(raw: CTensor) -> None:
    if not raw.device.is_host():
        raise BufferError(
            f"the tensor lies on {raw.device}; only host memory can be handed "
            "on (tensor.to_host makes a copy there)"
        )


def device_of(t: Tensor) -> tuple[int, int]:
    """DLPack's kind and number of the tensor's device."""
    _check_host(t.data)
    return (_CPU, 0)


def export(t: Tensor, stream=None):
    """A capsule over the elements of `t`, which live at least as long as it.

    Work on them is waited for before, not after: in-place changes of `t` are
    seen by the taker once device.Sync() has returned. stream: None, as host
    memory has none.
    """
    raw = t.data
    _check_host(raw)
    if stream is not None and stream != -1:
        raise BufferError(
            f"stream is {stream!r}; host memory has no streams, None is needed"
        )
    raw.device.Sync()
    made = _Export(raw)
    _exports[made.address] = made
    try:
        return _capsule_new(made.address, _NAME, ctypes.cast(_drop, c_void_p))
    except BaseException:
        del _exports[made.address]
        raise


# ---- In ----


def take(x) -> Tensor:
    """A tensor on the memory of `x`, which is kept alive as long as it is used.

    x: anything with `__dlpack__`, or a capsule that nobody has taken. BufferError
    for memory that the host cannot use and dtypes that Choir lacks; then `x` is
    as it was.
    """
    if hasattr(x, "__dlpack_device__"):
        kind = int(x.__dlpack_device__()[0])
        _check_kind(kind)
    capsule = x.__dlpack__() if hasattr(x, "__dlpack__") else x
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(
            f"from_dlpack: {type(x).__name__} given; an object with __dlpack__ "
            "is needed"
        )
    if not _capsule_is(capsule, _NAME):
        raise BufferError(
            "from_dlpack: the capsule was taken before; each can be taken once"
            if _capsule_is(capsule, _USED_NAME)
            else "from_dlpack: the capsule holds no DLPack tensor"
        )
    address = _capsule_pointer(capsule, _NAME)
    managed = _DLManagedTensor.from_address(address)
    view = _view_of(managed.dl_tensor)
    host = device.create_cpu_device()
    # The library calls release(context, data), DLPack's deleter takes the
    # context alone: on our machines' calling conventions the second argument
    # is a register that nobody reads. So no Python runs when the tensor goes,
    # on whatever thread that is.
    with deferred():
        buffer = get(
            lib.buffer_wrap,
            host.handle,
            view.offset,
            _bytes_of(view),
            managed.deleter,
            c_void_p(address),
        )
        _capsule_rename(capsule, _USED_NAME)  # from here on it is ours
        try:
            view.buffer, view.offset = buffer, 0
            raw = _raw.from_view(host, view)
        finally:
            lib.buffer_release(buffer)
        return Tensor._of(raw)


def _check_kind(kind: int) -> None:
    if kind not in (_CPU, _CUDA_HOST):
        name = _DEVICE_NAMES.get(kind, f"DLPack device kind {kind}")
        raise BufferError(
            f"from_dlpack: the memory is of {name}; the host's is needed"
        )


def _view_of(given: _DLTensor) -> View:
    """Layout; `offset` is the address of the first element here."""
    _check_kind(given.device.device_type)
    pair = (given.dtype.code, given.dtype.bits)
    code = _CODES.get(pair)
    if code is None or given.dtype.lanes != 1:
        name = _KIND_NAMES.get(pair[0], f"DLPack dtype kind {pair[0]}, bits ")
        lanes = f"x{given.dtype.lanes}" if given.dtype.lanes != 1 else ""
        raise BufferError(
            f"from_dlpack: dtype {name}{pair[1]}{lanes} is none of Choir's"
        )
    most = len(View().shape)
    if given.ndim > most:
        raise BufferError(
            f"from_dlpack: {given.ndim} dimensions; at most {most} are "
            "possible"
        )
    view = View(ndim=given.ndim, dtype=code)
    stride = 1
    for i in reversed(range(given.ndim)):
        view.shape[i] = given.shape[i]
        view.strides[i] = given.strides[i] if given.strides else stride
        stride *= given.shape[i]
        if view.strides[i] < 0 and view.shape[i] > 1:
            raise BufferError(
                f"from_dlpack: dimension {i} has stride {view.strides[i]}; "
                "negative ones are not possible, copy first"
            )
        if view.shape[i] <= 1:
            view.strides[i] = abs(view.strides[i])
    view.offset = (given.data or 0) + given.byte_offset
    if view.offset % int(lib.dtype_bytes(code)):
        raise BufferError(
            f"from_dlpack: address {view.offset:#x} is no multiple of an "
            "element's size, copy first"
        )
    return view


def _bytes_of(view: View) -> int:
    extent = 1
    for i in range(view.ndim):
        if view.shape[i] == 0:
            return 0
        extent += (view.shape[i] - 1) * view.strides[i]
    return extent * int(lib.dtype_bytes(view.dtype))
