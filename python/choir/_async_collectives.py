# SPDX-License-Identifier: Apache-2.0
"""Collectives that go on by themselves."""

from __future__ import annotations

from collections import deque
from ctypes import byref, c_void_p
from functools import partial

from choir import _comm
from choir._lib import Collective, NotCopied, Owner, StateError, check, lib
from choir._sections import deferred
from choir._values import (
    Compression,
    Reduction,
    Value,
    from_wire,
    label_of,
    reduction,
    to_wire,
)
from choir._world import communicator


class Handle(Owner, NotCopied):
    """An operation that was started; synchronize(handle) gives its result.

    Kept alive until then, or waited for when it is let go: the library still
    writes into the array."""

    def __init__(self, value, array, finish, kind, label, code, **fields):
        self._value, self._array, self._finish = value, array, finish
        self._work = c_void_p()
        collective = Collective(
            kind=kind,
            dtype=code,
            count=array.size,
            name=label.encode(),
            weight=1.0,
            src=array.ctypes.data,
            dst=array.ctypes.data,
        )
        for field, one in fields.items():
            setattr(collective, field, one)
        self._collective = collective
        self._comm = communicator()
        statuses = map(lib.work_wait, [self._work])
        self._release = partial(deque, map(lib.status_free, statuses), 0)
        check(
            lib.comm_start(
                self._comm.handle, byref(collective), byref(self._work)
            )
        )

    def is_done(self) -> bool:
        return not self._work or lib.work_is_done(self._work)

    def wait(self):
        if not self._work:
            raise StateError("synchronize: this handle's result was taken")
        with deferred():
            work, self._work, self._release = self._work, None, tuple
            check(lib.work_wait(work))
        return self._finish(from_wire(self._value, self._array))


def _start_allreduce(value: Value, finish, how: Reduction) -> Handle:
    array, code = to_wire(value, how.compression)
    return Handle(
        value,
        array,
        finish,
        _comm.ALL_REDUCE,
        how.label(str(array.shape)),
        code,
        op=how.op,
        **how.scales,
    )


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
    how = reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = Value(tensor)
    return _start_allreduce(value, value.result, how)


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
    how = reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = Value(tensor, is_changed=True)
    return _start_allreduce(value, value.replace, how)


def broadcast_async(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """Starts a broadcast; as allreduce_async."""
    value = Value(tensor)
    return _start_broadcast(value, value.result, root_rank, name)


def broadcast_async_(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """The same in place: synchronize changes the tensor and returns it."""
    value = Value(tensor, is_changed=True)
    return _start_broadcast(value, value.replace, root_rank, name)


def _start_broadcast(value, finish, root_rank, name):
    return Handle(
        value,
        value.array,
        finish,
        _comm.BROADCAST,
        label_of(name, str(value.array.shape)),
        value.code,
        root=root_rank,
    )


def poll(handle: Handle) -> bool:
    """Whether synchronize would return at once."""
    return handle.is_done()


def synchronize(handle: Handle):
    """Waits for what was started and gives its result, once."""
    return handle.wait()
