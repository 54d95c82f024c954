# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: safetensors by the C library, of one rank or of all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress

from choir import _raw
from choir._calls import NotCopied, Owner, check, lib
from choir._lib import Metadata, NamedTensor
from choir.device import default_device
from choir.tensor import Tensor


def _named(states: dict[str, Tensor]):
    named = (NamedTensor * max(len(states), 1))(
        *[(name.encode(), t.data.handle) for name, t in states.items()]
    )
    return named, len(states)


def _lines(lines: dict[str, str]):
    metadata = (Metadata * max(len(lines), 1))(
        *[(key.encode(), str(text).encode()) for key, text in lines.items()]
    )
    return metadata, len(lines)


def save(fpath: str, states: dict[str, Tensor], lines: dict[str, str]) -> None:
    """Writes tensors and lines of text."""
    check(
        lib.checkpoint_save(os.fsencode(fpath), *_named(states), *_lines(lines))
    )


def save_training(
    model: int, loader: Owner | None, fpath: str, lines: dict[str, str]
) -> None:
    """Writes all that a run goes on from (dist/training.h)."""
    check(lib.training_save(model, *_place(loader, fpath), *_lines(lines)))


def resume_training(model: int, loader: Owner | None, fpath: str) -> None:
    """Goes on from such a file."""
    check(lib.training_resume(model, *_place(loader, fpath), *_lines({})))


def _place(loader: Owner | None, fpath: str):
    return None if loader is None else loader.handle, os.fsencode(fpath)


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

    # Of all that the file has, by name.

    def __len__(self) -> int:
        return lib.checkpoint_count(self.handle)

    def __iter__(self) -> Iterator[str]:
        for i in range(len(self)):
            yield lib.checkpoint_get(self.handle, i).contents.name.decode()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._find(name))

    def __getitem__(self, name: str) -> Tensor:
        """It is read now, to the CPU."""
        found = self._find(name)
        if not found:
            raise KeyError(name)
        entry = found.contents
        shape = tuple(entry.shape[: entry.ndim])
        raw = _raw.empty(default_device, shape, entry.dtype)
        check(lib.checkpoint_read(self.handle, entry.name, raw.handle))
        return Tensor._of(raw)

    def _find(self, name: str):
        return lib.checkpoint_find(self.handle, name.encode())

    def read(self, states: dict[str, Tensor]) -> None:
        """Fills the tensors. NotFoundError: one was not saved."""
        check(lib.checkpoint_read_all(self.handle, *_named(states)))


def line(fpath: str, key: str, dist_opt) -> str | None:
    """A file's text under a key; collective with a DistOpt, of rank 0's file."""
    found = None
    if dist_opt is None or dist_opt.global_rank == 0:
        try:
            with opened(fpath) as file:
                found = file.metadata().get(key)
        except Exception as error:
            found = error
    if dist_opt is not None:
        found = dist_opt.communicator.share_object(found, 0, "load_checkpoint")
    if isinstance(found, Exception):
        raise found
    return found


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
