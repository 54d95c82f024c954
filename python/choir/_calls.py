# SPDX-License-Identifier: Apache-2.0
"""Calls of libchoir.so: loading it, its failures as exceptions, its objects.

`lib` has the functions of _lib.py, which is made from the C headers. A call that
can fail returns a status, and `check(status)` turns one into the exception of its
kind with the library's sentence.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from ctypes import c_char_p, c_int, c_int64, c_void_p

from choir import _find
from choir._lib import FUNCTIONS, VARIABLES, StatusCode
from choir._sections import lock, locked


# ---- Failures ----


class Error(Exception):
    """The base of Choir's own exceptions."""


class CommError(Error, RuntimeError):
    """A peer died or gave up, or a wait for one took too long.

    The message says who waited, for whom and in which operation.
    """


class StateError(Error, RuntimeError):
    """A call that does not fit what was done before it."""


class NotFoundError(Error, LookupError, FileNotFoundError):
    """A file or a name that is not there."""


class UnavailableError(Error, RuntimeError):
    """This machine, or this build, lacks what was asked for."""


class NotCopied:
    """Base of objects that belong to this process."""

    def __reduce_ex__(self, protocol):
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled; make another"
        )


_KINDS = {
    StatusCode.INVALID_ARGUMENT: ValueError,
    StatusCode.OUT_OF_RANGE: IndexError,
    StatusCode.FAILED_PRECONDITION: StateError,
    StatusCode.NOT_FOUND: NotFoundError,
    StatusCode.ALREADY_EXISTS: ValueError,
    StatusCode.OUT_OF_MEMORY: MemoryError,
    StatusCode.UNIMPLEMENTED: NotImplementedError,
    StatusCode.UNAVAILABLE: UnavailableError,
    StatusCode.TIMEOUT: CommError,
    StatusCode.ABORTED: CommError,
    StatusCode.INTERNAL: Error,
}


# ---- The library ----

# Those that run work of a device or wait for it: for one thread at a time. Beside
# them op_run, which is called with the lock held.
_COMPUTING = frozenset(
    """
    checkpoint_read_all checkpoint_save dist_opt_check_digest dist_opt_create
    dist_opt_refuse_use dist_opt_use initialize layer_create_alone
    loader_create loader_next loader_seek model_compile model_create model_digest model_set_graph
    model_set_updater model_train_one_batch named_tensor_take onnx_forward onnx_open onnx_parse
    onnx_place optimizer_attach optimizer_update
    profile_destroy profile_print profile_reset profile_start profile_stop
    scope_create stream_synchronize tensor_digest tensor_read tensor_write
    training_follow training_recover training_resume training_save updater_consolidate updater_gather
    """.split()
)


def _with_lock(function):
    def call(*arguments):
        with lock:
            return function(*arguments)

    return call


class _Library:
    """The functions and variables, by their names without `choir_`."""

    def __init__(self) -> None:
        dll = _find.load_library()
        self.path: str = dll._name
        for name, (result, arguments) in FUNCTIONS.items():
            try:
                function = getattr(dll, f"choir_{name}")
            except AttributeError:
                raise ImportError(
                    f"{self.path} has no choir_{name}: it was built from "
                    "other sources than this package; install both together"
                ) from None
            function.restype = result
            function.argtypes = arguments
            if name in _COMPUTING:
                function = _with_lock(function)
            setattr(self, name, function)
        for name, kind in VARIABLES.items():
            setattr(self, name, kind.in_dll(dll, f"choir_{name}"))


lib = _Library()


def check(status: int | None) -> None:
    """Raises the exception of a failure's kind; None is OK."""
    if status is None:
        return
    code = lib.status_code(status)
    message = lib.status_message(status).decode(errors="replace")
    origin = lib.status_origin(status).decode(errors="replace")
    lib.status_free(status)
    kind = _KINDS.get(code, Error)
    error = kind(message)
    if origin:
        error.add_note(f"(from {origin.splitlines()[0]})")
    try:
        raise error
    finally:
        del error  # whose traceback has this frame: see _callback.finish


def describe(error: BaseException) -> str:
    """Its kind and sentence; an exception may fail to give one."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except BaseException as other:
        return f"{kind} (its sentence raises {type(other).__name__})"


def code_of(error: BaseException) -> int:
    """The choir_status_code_t that it becomes; INVALID_ARGUMENT for others'."""
    for value, kind in _KINDS.items():
        if issubclass(type(error), kind) and kind is not Error:
            return value
    return StatusCode.INVALID_ARGUMENT


def make_status(error: BaseException) -> int:
    """A failure for the library to hand on, from an exception."""
    text = describe(error).encode(errors="backslashreplace")
    return lib.status_make(
        c_int(code_of(error)),
        b"python",
        c_int(0),
        b"callback",
        b"%s",
        c_char_p(text),
    )


def ranged(value, what: str, bits: int = 64, signed: bool = True) -> int:
    """A whole number that fits into the library's type, which ctypes would cut
    it to without a word. TypeError for 2.5, OverflowError for 2**64."""
    number = operator.index(value)
    low = -(1 << bits - 1) if signed else 0
    if not low <= number < 1 << bits - signed:
        raise OverflowError(
            f"{what} is {number}, which does not fit into {bits} bits"
        )
    return number


def dims(shape) -> ctypes.Array:
    """A shape as the library takes it."""
    return (c_int64 * max(len(shape), 1))(*shape)


def address_of(function) -> int:
    """Of a function of C's, for a struct's field or another's argument."""
    return ctypes.cast(function, c_void_p).value


def get(function, *arguments) -> int:
    """Calls a function whose last argument is an out-pointer; what it made."""
    out = c_void_p()
    check(function(*arguments, ctypes.byref(out)))
    return out.value


class Owner:
    """Base of what owns an object of the library, its `handle`, and releases it when
    it goes."""

    __slots__ = ()
    _release = tuple  # a call that does nothing
    _computes = False  # releasing it uses a device's stream

    # Without bytecode: an exception that comes into a finalizer, such as
    # KeyboardInterrupt, is printed and lost.
    __del__ = property(operator.attrgetter("_release"))

    def _own(self, release, function, *arguments) -> None:
        """Takes over what `function` makes, whose last argument is an
        out-pointer; also when KeyboardInterrupt comes as soon as it is made."""
        out = c_void_p()
        try:
            check(function(*arguments, ctypes.byref(out)))
        finally:
            self._take(release, out.value)

    def _take(self, release, handle: int | None) -> None:
        """Owns an object that was made, in place of what it owned; the same object
        again is released once."""
        release = functools.partial(release, handle)
        self._release = locked(release) if self._computes else release
        self.handle = handle

    def _release_now(self) -> None:
        release, self._release = self._release, tuple
        release()
