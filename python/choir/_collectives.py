# SPDX-License-Identifier: Apache-2.0
"""The collectives of choir.dist."""

from __future__ import annotations

from ctypes import POINTER, c_int64

import numpy as np

from choir import _comm, _raw
from choir._values import (
    Compression,
    Value,
    from_wire,
    label_of,
    reduction,
    rows_in,
    rows_of,
    to_wire,
)
from choir._world import communicator
from choir.tensor import Tensor


def reducing(given, is_changed: bool, name, *how):
    """Of an allreduce: the communicator, what was given, and what `run` takes."""
    comm = communicator()
    with comm.preparing(_comm.Kind.ALL_REDUCE, name):
        how = reduction(name, *how)
        value = Value(given, is_changed)
        array, code = to_wire(value, how.compression)
        label = how.label(str(array.shape))
    fields = {"dtype": code, "op": how.op, **how.scales}
    return comm, value, (_comm.Kind.ALL_REDUCE, label, array), fields


def _reduced(given, is_changed: bool, name, *how) -> tuple[Value, np.ndarray]:
    comm, value, what, fields = reducing(given, is_changed, name, *how)
    comm.run(*what, **fields)
    return value, from_wire(value, what[-1])


def allreduce(
    tensor,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """The elementwise average over ranks; collective.

    tensor: the same shape and dtype on all ranks. average False, or op: another
    reduction. Result: postscale * reduction of (prescale * tensor), of the same
    shape; the same bits on all ranks, whichever backend. Averages of integers
    are truncated. name: shown in errors, the same on all ranks.

    ValueError on all ranks where they differ; CommError when a peer is lost.
    """
    how = average, op, prescale_factor, postscale_factor, compression
    value, array = _reduced(tensor, False, name, *how)
    return value.result(array)


def allreduce_(
    tensor,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """allreduce in place, of a Tensor or a NumPy array; what was given.

    The tensor stays as it was when the call fails."""
    how = average, op, prescale_factor, postscale_factor, compression
    value, array = _reduced(tensor, True, name, *how)
    return value.replace(array)


def _grouped(
    given, is_changed: bool, name, *how
) -> list[tuple[Value, np.ndarray]]:
    comm = communicator()
    with comm.preparing(_comm.Kind.ALL_REDUCE, name):
        how = reduction(name, *how)
        values = [Value(tensor, is_changed) for tensor in given]
        wires = [to_wire(value, how.compression) for value in values]
        label = how.label(" ".join(str(array.shape) for array, _ in wires))
    # The same order of dtypes on all ranks, as their lists are alike. Without any
    # tensor too: others may have some.
    for dtype in dict.fromkeys(code for _, code in wires) or [_raw.F32]:
        arrays = [array for array, code in wires if code == dtype]
        comm.run(
            _comm.Kind.ALL_REDUCE,
            label,
            dtype=dtype,
            op=how.op,
            tensors=_comm.listed(arrays),
            tensor_count=len(arrays),
            **how.scales,
        )
    return [
        (value, from_wire(value, array))
        for value, (array, _) in zip(values, wires)
    ]


def grouped_allreduce(
    tensors,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list:
    """allreduce of a list in one exchange for each dtype; collective.

    tensors: alike in number, shapes and dtypes on all ranks. A list of results.
    ValueError on all ranks where they differ; then no result at all."""
    how = average, op, prescale_factor, postscale_factor, compression
    results = _grouped(tensors, False, name, *how)
    return [value.result(array) for value, array in results]


def grouped_allreduce_(
    tensors,
    average: bool | None = None,
    name: str | None = None,
    compression=Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list:
    """grouped_allreduce in place; the list of what was given."""
    how = average, op, prescale_factor, postscale_factor, compression
    results = _grouped(tensors, True, name, *how)
    return [value.replace(array) for value, array in results]


def allgather(tensor, name: str | None = None):
    """All ranks' rows, one part after the other in rank order; collective.

    tensor: at least one dimension; the first may differ between ranks, also be
    0, the others and the dtype are the same. Result: (sum of the first
    dimensions, the others). ValueError on all ranks where they differ."""
    comm = communicator()
    with comm.preparing(_comm.Kind.ALL_GATHER, name):
        value = Value(tensor)
        array = value.array
        count = rows_in(value, "allgather")
        label = label_of(name, rows_of(value))
    counts = comm.all_gather(np.array([count], np.int64), label)
    with comm.preparing(_comm.Kind.ALL_GATHER_V, label):
        out = np.empty((int(counts.sum()),) + array.shape[1:], array.dtype)
    comm.run(
        _comm.Kind.ALL_GATHER_V,
        label,
        array,
        out,
        dtype=value.code,
        capacity=out.size,
    )
    return value.result(out)


def sending(given, is_changed: bool, root_rank, name):
    """Of a broadcast: as `reducing`."""
    comm = communicator()
    with comm.preparing(_comm.Kind.BROADCAST, name):
        value = Value(given, is_changed)
        label = label_of(name, str(value.array.shape))
    fields = {"dtype": value.code, "root": root_rank}
    return comm, value, (_comm.Kind.BROADCAST, label, value.array), fields


def _sent(given, is_changed: bool, root_rank, name) -> Value:
    comm, value, what, fields = sending(given, is_changed, root_rank, name)
    comm.run(*what, **fields)
    return value


def broadcast(tensor, root_rank: int = 0, name: str | None = None):
    """The root's elements on every rank; collective.

    tensor: the same shape and dtype on all ranks, of which others than the
    root's give no elements. ValueError on all ranks where shapes, dtypes or
    roots differ, or there is no such rank."""
    value = _sent(tensor, False, root_rank, name)
    return value.result(value.array)


def broadcast_(tensor, root_rank: int = 0, name: str | None = None):
    """broadcast in place, of a Tensor or a NumPy array; what was given."""
    value = _sent(tensor, True, root_rank, name)
    return value.replace(value.array)


def reducescatter(
    tensor,
    op: int | None = None,
    name: str | None = None,
    compression=Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """This rank's rows of the reduction over ranks; collective.

    tensor: the same shape, of at least one dimension, and dtype on all ranks.
    Of n rows rank r gets n // size, the first n % size ranks one more, in rank
    order. op: Average unless given. ValueError on all ranks where they
    differ."""
    comm = communicator()
    with comm.preparing(_comm.Kind.REDUCE_SCATTER, name):
        how = reduction(
            name, None, op, prescale_factor, postscale_factor, compression
        )
        value = Value(tensor)
        starts = _partition(rows_in(value, "reducescatter"), comm.world_size)
        array, code = to_wire(value, compression)
        label = how.label(str(array.shape))
        longest = int(np.diff(starts).max())
        if longest * comm.world_size != array.shape[0]:
            # Equal parts, of which the last rows are nobody's.
            padded = np.zeros(
                (comm.world_size, longest) + array.shape[1:], array.dtype
            )
            for part, first, last in zip(padded, starts, starts[1:]):
                part[: last - first] = array[first:last]
            array = padded
        out = np.empty((longest,) + value.array.shape[1:], array.dtype)
    comm.run(
        _comm.Kind.REDUCE_SCATTER,
        label,
        array,
        out,
        dtype=code,
        count=out.size,
        op=how.op,
        **how.scales,
    )
    own = comm.global_rank
    rows = int(starts[own + 1] - starts[own])
    return value.result(from_wire(value, out[:rows]))


def _partition(count: int, parts: int) -> np.ndarray:
    """Where each rank's part of `count` rows begins, and the end."""
    sizes = np.full(parts, count // parts, np.int64)
    sizes[: count % parts] += 1
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def alltoall(tensor, splits=None, name: str | None = None):
    """Gives rows to every rank and takes theirs; collective.

    tensor: at least one dimension; the others than the first and the dtype are
    the same on all ranks. splits: how many rows go to each rank, in rank order;
    their sum is the first dimension. Without it: equally many.

    Result: what came, in rank order; with splits a pair, the second how many
    rows came from each rank (int64, of the kind that was given). ValueError on
    all ranks where they differ or one's splits are wrong."""
    comm = communicator()
    with comm.preparing(_comm.Kind.ALL_TO_ALL, name):
        value = Value(tensor)
        array = value.array
        rows = _splits_of(rows_in(value, "alltoall"), splits, comm.world_size)
        label = label_of(name, rows_of(value))
        received = np.empty(comm.world_size, np.int64)
    comm.run(_comm.Kind.ALL_TO_ALL, label, rows, received, count=1)
    with comm.preparing(_comm.Kind.ALL_TO_ALL_V, label):
        out = np.empty((int(received.sum()),) + array.shape[1:], array.dtype)
        elements = rows * int(np.prod(array.shape[1:], dtype=np.int64))
    comm.run(
        _comm.Kind.ALL_TO_ALL_V,
        label,
        array,
        out,
        dtype=value.code,
        capacity=out.size,
        splits=elements.ctypes.data_as(POINTER(c_int64)),
    )
    if splits is None:
        return value.result(out)
    if value.raw is None:
        return value.result(out), received
    counts = _raw.from_array(value.raw.device, received)
    if isinstance(tensor, Tensor):
        counts = Tensor._of(counts)
    return value.result(out), counts


def _splits_of(rows: int, splits, parts: int) -> np.ndarray:
    """The rows for each rank."""
    if splits is None:
        if rows % parts:
            raise ValueError(
                f"alltoall: {rows} rows cannot be shared equally by {parts} "
                "ranks; give splits"
            )
        return np.full(parts, rows // parts, np.int64)
    counts = np.asarray(
        splits.numpy() if isinstance(splits, Tensor) else splits
    )
    if counts.dtype.kind not in "iu" and counts.size:
        raise ValueError(f"alltoall: splits are {counts.dtype}, no integers")
    if counts.shape != (parts,):
        raise ValueError(
            f"alltoall: splits have shape {counts.shape}; one number for each of "
            f"{parts} ranks is needed"
        )
    if (counts < 0).any():
        raise ValueError(f"alltoall: splits {counts.tolist()} are negative")
    if counts.sum() != rows:
        raise ValueError(
            f"alltoall: splits {counts.tolist()} add to {counts.sum()}; the first "
            f"dimension is {rows}"
        )
    return np.ascontiguousarray(counts, np.int64)


def barrier(name: str = "barrier") -> None:
    """Waits until all ranks are here; collective."""
    communicator().barrier(name)


def join() -> int:
    """For a rank that ran out of data: takes part in the others' allreduce (sum
    and average) with zeros until all have joined; collective.

    The rank that came last, the same on all. An average still divides by
    size(). Other collectives of those that go on fail there and name who has
    joined. DistOpt needs none of it: uneven batches have their weight.
    """
    return communicator().join()
