# SPDX-License-Identifier: Apache-2.0
"""Python functions that the library calls.

ctypes prints an exception that leaves such a function, forgets it, and hands the
library what happens to lie in memory as its result. So no function of ours is
called by a pointer of its own: the library has adapters (core/callback.h) that
see from what was written, not from what came back, whether it came to its end.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_void_p

from choir._calls import check, lib, make_status
from choir._lib import Callback as _Struct

# choir_callback_t.run. It returns nothing, as ctypes leaves a result that was not
# made undefined.
_RUN = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_void_p), POINTER(c_void_p))


class Callback:
    """A function(arguments) for an adapter of the library.

    arguments: pointers as numbers, None for NULL. What it raises is a failure to
    the library and comes out of `finish`, behind the library's call.
    """

    __slots__ = ("struct", "run", "errors")

    def __init__(self, function) -> None:
        errors: list[BaseException] = []

        def run(_self, arguments, out_status) -> None:
            try:
                function(arguments)
                status = None
            except BaseException as error:
                errors.append(error)
                status = make_status(error)
            out_status[0] = status

        self.errors = errors
        self.run = _RUN(run)  # lives as long as the struct
        # Not by ctypes.cast, which makes a circle of references.
        self.struct = _Struct(c_void_p.from_buffer(self.run).value, None)

    @property
    def address(self) -> int:
        """Of its choir_callback_t, which lives as long as this object."""
        return ctypes.addressof(self.struct)


def forgive(*callbacks: Callback) -> None:
    """Behind a call that succeeded all the same: drops what callbacks raised, but
    what shall end the program."""
    for callback in callbacks:
        callback.errors[:] = [
            error
            for error in callback.errors
            if not isinstance(error, Exception)
        ]


def finish(status: int | None, *callbacks: Callback) -> None:
    """Behind the library's call: raises what a callback raised, else the
    library's own failure."""
    errors = []
    for callback in callbacks:
        errors += callback.errors
        callback.errors.clear()
    if not errors:
        check(status)
        return
    lib.status_free(status)
    try:
        # A KeyboardInterrupt before what only failed.
        raise min(errors, key=lambda error: isinstance(error, Exception))
    finally:
        # Its traceback has this frame: a circle that would keep the frames of the
        # step, and their tensors, until the garbage collector comes.
        del errors
