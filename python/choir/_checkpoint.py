# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: safetensors by the C library, of one rank or of all."""

from __future__ import annotations

import os
from contextlib import closing
from ctypes import byref, c_size_t, c_void_p

from choir._lib import (
    STATE_READ,
    Metadata,
    NamedTensor,
    check,
    get,
    lib,
    make_status,
)
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


class Gathered:
    """The states of all ranks on rank 0; to make one is collective."""

    def __init__(self, dist_opt: int, states: dict[str, Tensor]) -> None:
        self._handle = None
        self._named = _named(states)  # must outlive the list
        self._handle = get(
            lib.dist_opt_gather_states, dist_opt, self._named, len(states)
        )

    def __del__(self) -> None:
        lib.rank_states_destroy(self._handle)

    def save(self, fpath: str, lines: dict[str, str]) -> None:
        """On rank 0."""
        count = c_size_t()
        listed = lib.rank_states_list(self._handle, byref(count))
        _save(fpath, listed, count.value, lines)


class File:
    """An open file. NotFoundError: there is none; ValueError: another kind."""

    def __init__(self, fpath: str) -> None:
        self._handle = None
        self._handle = get(lib.checkpoint_open, os.fsencode(fpath))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        lib.checkpoint_destroy(self._handle)
        self._handle = None

    def metadata(self) -> dict[str, str]:
        """Its lines of text."""
        lines = {}
        for i in range(lib.checkpoint_metadata_count(self._handle)):
            line = lib.checkpoint_metadata_get(self._handle, i)
            lines[line.key.decode()] = line.value.decode()
        return lines

    def has(self, name: bytes) -> bool:
        return lib.checkpoint_find(self._handle, name) is not None

    def read(self, states: dict[str, Tensor]) -> None:
        """Fills the tensors. NotFoundError: one was not saved."""
        for name, t in states.items():
            check(
                lib.checkpoint_read(self._handle, name.encode(), t.data.handle)
            )

    def read_one(self, name: bytes, tensor: int) -> None:
        check(lib.checkpoint_read(self._handle, name, tensor))


def opened(fpath: str):
    """A File for a with statement."""
    return closing(File(fpath))


def distribute(
    file: File | None, dist_opt: int, states: dict[str, Tensor]
) -> None:
    """Collective: sets all ranks' states from what rank 0's file has."""

    def read(_self, name: bytes, tensor: int | None, found) -> int | None:
        try:
            found[0] = file.has(name)
            if found[0] and tensor:
                file.read_one(name, tensor)
        except Exception as error:
            return make_status(error)
        return None

    check(
        lib.dist_opt_distribute_states(
            dist_opt, _named(states), len(states), STATE_READ(read), c_void_p()
        )
    )
