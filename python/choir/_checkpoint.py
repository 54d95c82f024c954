# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: safetensors by the C library, of one rank or of all."""

from __future__ import annotations

import os
import uuid
from contextlib import closing, suppress
from ctypes import byref, c_bool, c_size_t, string_at

from choir._callback import Callback, finish
from choir._calls import NotCopied, Owner, address_of, check, lib
from choir._lib import Metadata, NamedTensor
from choir._sections import deferred
from choir.tensor import Tensor


def _named(states: dict[str, Tensor]):
    return (NamedTensor * max(len(states), 1))(
        *[(name.encode(), t.data.handle) for name, t in states.items()]
    )


def _save(fpath: str, named, count: int, lines: dict[str, str]) -> None:
    metadata = (Metadata * max(len(lines), 1))(
        *[(key.encode(), str(text).encode()) for key, text in lines.items()]
    )
    check(
        lib.checkpoint_save(
            os.fsencode(fpath), named, count, metadata, len(lines)
        )
    )


def save(fpath: str, states: dict[str, Tensor], lines: dict[str, str]) -> None:
    """Writes tensors and lines of text."""
    _save(fpath, _named(states), len(states), lines)


class Gathered(Owner, NotCopied):
    """The states of all ranks on rank 0; to make one is collective."""

    def __init__(self, dist_opt: int, states: dict[str, Tensor]) -> None:
        self._named = _named(states)  # must outlive the list
        self._own(
            lib.rank_states_destroy,
            lib.dist_opt_gather_states,
            dist_opt,
            self._named,
            len(states),
        )

    def save(self, fpath: str, lines: dict[str, str]) -> None:
        """On rank 0."""
        count = c_size_t()
        listed = lib.rank_states_list(self.handle, byref(count))
        _save(fpath, listed, count.value, lines)


class File(Owner, NotCopied):
    """An open file. NotFoundError: there is none; ValueError: another kind."""

    def __init__(self, fpath: str) -> None:
        self._own(
            lib.checkpoint_destroy, lib.checkpoint_open, os.fsencode(fpath)
        )

    def close(self) -> None:
        self._release_now()

    def metadata(self) -> dict[str, str]:
        """Its lines of text."""
        lines = {}
        for i in range(lib.checkpoint_metadata_count(self.handle)):
            line = lib.checkpoint_metadata_get(self.handle, i)
            lines[line.key.decode()] = line.value.decode()
        return lines

    def has(self, name: bytes) -> bool:
        return bool(lib.checkpoint_find(self.handle, name))

    def read(self, states: dict[str, Tensor]) -> None:
        """Fills the tensors. NotFoundError: one was not saved."""
        for name, t in states.items():
            self.read_one(name.encode(), t.data.handle)

    def read_one(self, name: bytes, tensor: int) -> None:
        check(lib.checkpoint_read(self.handle, name, tensor))


def write_new(fpath: str, data: bytes) -> None:
    """A file that appears whole or not at all, as those of the C library
    (io/checkpoint.c). FileExistsError: it is there."""
    folder = os.path.dirname(os.path.abspath(fpath))
    partial = os.path.join(
        folder, f".{os.path.basename(fpath)}.{uuid.uuid4().hex}.partial"
    )
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, fpath)  # which, unlike a rename, replaces nothing
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(partial, fpath)
    finally:
        with suppress(FileNotFoundError):
            os.remove(partial)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a folder that may be written but not read
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened(fpath: str):
    """A File for a with statement."""
    return closing(File(fpath))


def distribute(
    file: File | None, dist_opt: int, states: dict[str, Tensor]
) -> None:
    """Collective: sets all ranks' states from what rank 0's file has."""

    def read(arguments) -> None:
        text, tensor, found = arguments[:3]
        name = string_at(text)
        is_there = file.has(name)
        c_bool.from_address(found).value = is_there
        if is_there and tensor:
            file.read_one(name, tensor)

    callback = Callback(read)
    with deferred():
        status = lib.dist_opt_distribute_states(
            dist_opt,
            _named(states),
            len(states),
            address_of(lib.state_read_callback),
            callback.address,
        )
        finish(status, callback)
