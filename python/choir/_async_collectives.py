# SPDX-License-Identifier: Apache-2.0
"""Collectives that go on by themselves."""

from __future__ import annotations

from collections import deque
from ctypes import byref, c_void_p
from functools import partial

from choir._collectives import reducing, sending
from choir._calls import NotCopied, Owner, StateError, check, lib
from choir._sections import deferred
from choir._values import Compression, from_wire


class Handle(Owner, NotCopied):
    """An operation that was started; synchronize(handle) gives its result.

    Kept alive until then, or waited for when it is let go: the library still
    writes into the array."""

    def __init__(
        self, comm, value, is_changed, kind, label, array, **fields
    ) -> None:
        self._value, self._array = value, array
        self._is_changed = is_changed
        self._work = c_void_p()
        with comm.preparing(kind, label):
            self._collective = comm.collective(kind, label, array, **fields)
        self._comm = comm
        statuses = map(lib.work_wait, [self._work])
        self._release = partial(deque, map(lib.status_free, statuses), 0)
        check(
            lib.comm_start(
                comm.handle, byref(self._collective), byref(self._work)
            )
        )

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._work or lib.work_is_done(self._work)

    def wait(self):
        """Waits until it is done, and gives the result, or what was changed.

        StateError when its result was taken before; CommError, ValueError as of
        the operation."""
        if not self._work:
            raise StateError("synchronize: this handle's result was taken")
        with deferred():
            work, self._work, self._release = self._work, None, tuple
            check(lib.work_wait(work))
        array = from_wire(self._value, self._array)
        value = self._value
        return value.replace(array) if self._is_changed else value.result(array)


def _start_allreduce(given, is_changed: bool, name, *how) -> Handle:
    comm, value, what, fields = reducing(given, is_changed, name, *how)
    return Handle(comm, value, is_changed, *what, **fields)


def _start_broadcast(given, is_changed: bool, root_rank, name) -> Handle:
    comm, value, what, fields = sending(given, is_changed, root_rank, name)
    return Handle(comm, value, is_changed, *what, **fields)


def allreduce_async(
    tensor,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts an allreduce of what the tensor has now; collective.

    All ranks start the same operations in the same order; they run in it, on
    a thread of the communicator. Errors come from synchronize."""
    how = average, op, prescale_factor, postscale_factor, compression
    return _start_allreduce(tensor, False, name, *how)


def allreduce_async_(
    tensor,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """The same in place: synchronize changes the tensor and returns it."""
    how = average, op, prescale_factor, postscale_factor, compression
    return _start_allreduce(tensor, True, name, *how)


def broadcast_async(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """Starts a broadcast; as allreduce_async."""
    return _start_broadcast(tensor, False, root_rank, name)


def broadcast_async_(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """The same in place: synchronize changes the tensor and returns it."""
    return _start_broadcast(tensor, True, root_rank, name)


def poll(handle: Handle) -> bool:
    """Whether synchronize would return at once."""
    return handle.is_done()


def synchronize(handle: Handle):
    """Waits for what was started and gives its result, once."""
    return handle.wait()
