# SPDX-License-Identifier: Apache-2.0
"""Collectives and helpers under the names that Horovod's users know.

    from choir import dist

    dist.init()                              # python -m choir -np 4 train.py
    sgd = dist.DistributedOptimizer(opt.SGD(lr=dist.scale_lr(0.01)))
    ...
    accuracy = dist.average_metrics({"accuracy": hits / seen}, weight=seen)
    if dist.rank() == 0:
        model.save_checkpoint("model.safetensors")

Values are Tensors, on any device, or NumPy arrays (also numbers and lists, as
arrays); a result is of the kind that was given, and a Tensor's is on its device.
Results have no gradients, and what is called inside a model's train_one_batch
in graph mode happens in recorded steps only.

"Collective" means: all ranks call it, in the same order. Names, shapes, dtypes,
operations and roots travel ahead of the data; where ranks differ, all of them
get a ValueError that says which rank wanted what, and can go on. When a peer
dies, ends or is later than the deadline, the others get a CommError that names
it, and the communicator is broken: every later call says the same.
"""

from __future__ import annotations

import functools
import pickle
from ctypes import POINTER, byref, c_int64, c_void_p
from typing import NamedTuple

import numpy as np

from choir import _comm, _raw
from choir import opt as _opt
from choir._comm import Communicator, NcclIdHolder, pickled
from choir._lib import (
    Collective,
    CommTensor,
    StateError,
    check,
    lib,
)
from choir._raw import CTensor
from choir.opt import Warmup
from choir.tensor import Tensor

Sum, Average = _comm.SUM, _comm.AVERAGE
Min, Max, Product = _comm.MIN, _comm.MAX, _comm.PRODUCT

_comm_of_init: Communicator | None = None
_ticket: str | None = None


# ---- Beginning and end ----


def init(
    ticket: NcclIdHolder | str | None = None,
    rank: int | None = None,
    size: int | None = None,
    deadline: float | None = None,
) -> None:
    """Joins the other workers; collective.

    Without a ticket: as the launcher says (python -m choir -np, choirrun,
    mpiexec), or alone. With one (`NcclIdHolder()`, made by one process and
    handed to the others, or its text `.id`): as `rank` of `size` on this host.
    deadline: longest wait in seconds for a peer in one operation and here;
    CHOIR_DEADLINE or 60. opt.DistOpt works on this communicator too.

    A second call does nothing; StateError if it asks for another place or
    deadline than the first. CommError names the ranks that did not come.
    """
    global _comm_of_init, _ticket
    text = ticket.id if isinstance(ticket, NcclIdHolder) else ticket
    if text is None:
        if rank is not None or size is not None:
            raise ValueError(
                "init: rank and size go with a ticket, which "
                "singa_wrap.NcclIdHolder() makes; none was given"
            )
    elif not isinstance(text, str):
        raise TypeError(
            f"init: the ticket is a {type(ticket).__name__}; a NcclIdHolder or "
            "its text is needed"
        )
    elif rank is None or size is None:
        raise ValueError("init: a ticket needs rank and size beside it")
    if is_initialized():
        comm = _comm_of_init
        if text is not None and (text, rank, size) != (
            _ticket,
            comm.global_rank,
            comm.world_size,
        ):
            raise StateError(
                f"init: this process is rank {comm.global_rank} of "
                f"{comm.world_size} already; call shutdown first"
            )
        _check_deadline(comm, deadline)
        return
    if text is not None:
        comm = Communicator(rank, size, NcclIdHolder(text), deadline=deadline)
    elif _comm.has_default():
        comm = _comm.default()  # DistOpt was first
        _check_deadline(comm, deadline)
    else:
        comm = Communicator(deadline=deadline)
    _comm.set_default(comm)
    _comm_of_init, _ticket = comm, text


def _check_deadline(comm: Communicator, deadline: float | None) -> None:
    if deadline is not None and deadline != comm.deadline:
        raise StateError(
            f"init: the communicator waits {comm.deadline:g} seconds, not "
            f"{deadline:g}; give the deadline to the first call, before DistOpt"
        )


def shutdown() -> None:
    """Waits until all ranks are here, and leaves; collective.

    Nothing where init was not called. A ticket serves once: to go on after it,
    init with a new one."""
    global _comm_of_init, _ticket
    if not is_initialized():
        return
    comm, _comm_of_init, _ticket = _comm_of_init, None, None
    _comm.set_default(None)
    comm.close()


def is_initialized() -> bool:
    """Whether init was called, and shutdown not since."""
    return _comm_of_init is not None and _comm_of_init.handle is not None


def communicator() -> Communicator:
    """What init joined; StateError before it."""
    if not is_initialized():
        raise StateError("dist: call choir.dist.init() first")
    return _comm_of_init


def rank() -> int:
    """This process's number, 0 to size() - 1."""
    return communicator().global_rank


def size() -> int:
    """How many processes there are."""
    return communicator().world_size


def local_rank() -> int:
    """The number among the processes of this host: which device to take."""
    return communicator().local_rank


def local_size() -> int:
    """How many processes this host has."""
    return communicator().local_size


def cross_rank() -> int:
    """This host's number, counted by lowest rank."""
    return communicator().host_index()


def cross_size() -> int:
    """How many hosts there are."""
    return communicator().host_count()


def backend() -> str:
    """How the ranks exchange: self, shm, mpi or nccl."""
    return communicator().backend


# ---- Values ----


class _Value:
    """What a call was given: its elements as an own array, and the way back.

    bfloat16, which NumPy lacks, lies in the array as uint16.
    """

    def __init__(self, given, is_changed: bool = False) -> None:
        self.given = given
        if isinstance(given, (Tensor, CTensor)):
            raw = given.data if isinstance(given, Tensor) else given
            self.raw: CTensor | None = raw
            self.code = raw.dtype
            self.array = np.empty(raw.shape(), _storage(self.code))
            check(
                lib.tensor_read(
                    raw.handle, self.array.ctypes.data, self.array.nbytes
                )
            )
            return
        self.raw = None
        if is_changed and not isinstance(given, np.ndarray):
            raise TypeError(
                f"a {type(given).__name__} cannot be changed in place; a Tensor or "
                "a NumPy array is needed"
            )
        if is_changed and not given.flags.writeable:
            raise ValueError("the array to be changed is read-only")
        array = np.asarray(given)
        self.code = _raw.dtype_of(array.dtype)
        self.array = np.array(array, _raw.numpy_dtype(self.code), order="C")

    @property
    def dtype_name(self) -> str:
        return lib.dtype_name(self.code).decode()

    def result(self, array: np.ndarray):
        """Elements as a new value of the kind that was given."""
        if self.raw is None:
            return array
        raw = _raw.empty(self.raw.device, array.shape, self.code)
        _write(raw, array)
        return Tensor._of(raw) if isinstance(self.given, Tensor) else raw

    def replace(self, array: np.ndarray):
        """Puts elements where they came from; what was given."""
        if self.raw is None:
            np.copyto(self.given, array, casting="same_kind")
        else:
            _write(self.raw, array)
        return self.given


def _storage(code: int) -> np.dtype:
    return np.dtype(np.uint16) if code == _raw.BF16 else _raw.numpy_dtype(code)


def _write(raw: CTensor, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    check(lib.tensor_write(raw.handle, array.ctypes.data, array.nbytes))


def _label(name: str | None, text: str) -> str:
    """What ranks compare: counts alone would take (2, 3) for (3, 2)."""
    return f"{name} {text}" if name else text


def _rows(value: _Value) -> str:
    """What the parts of a first dimension must share."""
    shape = value.array.shape
    if not shape:
        return f"{value.dtype_name} scalar"
    inner = ", ".join(["*"] + [str(n) for n in shape[1:]])
    return f"{value.dtype_name} ({inner})"


def _no_scalar(value: _Value, what: str) -> None:
    if value.array.ndim == 0:
        raise ValueError(
            f"{what}: a value without dimensions has no rows; reshape it to (1,)"
        )


class _Reduction(NamedTuple):
    """How values of all ranks become one."""

    op: int
    name: str | None
    compression: type[Compression.none] | type[Compression.fp16]
    scales: dict  # fields of choir_collective_t

    def label(self, text: str) -> str:
        return _label(self.name, text)


def _reduction(
    average: bool | None,
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    compression,
) -> _Reduction:
    """From what Horovod's calls take."""
    scales = {}
    if prescale != 1.0 or postscale != 1.0:
        scales = {
            "scales": True,
            "prescale": float(prescale),
            "postscale": float(postscale),
        }
    return _Reduction(_op_of(average, op), name, compression, scales)


def _op_of(average: bool | None, op: int | None) -> int:
    if average is not None and op is not None:
        raise ValueError("average and op say the same; give one of them")
    if op is None:
        return Sum if average is False else Average
    if op not in (Sum, Average, Min, Max, Product):
        raise ValueError(
            f"op is {op!r}; one of dist.Sum, Average, Min, Max and Product is "
            "needed"
        )
    return op


class Compression:
    """What values travel as. `none`: as they are; `fp16`: float32 and float64
    as float16, summed in float32 and rounded once; others as they are."""

    class none:
        @staticmethod
        def wire(code: int) -> int:
            return code

    class fp16:
        @staticmethod
        def wire(code: int) -> int:
            return _raw.F16 if code in (_raw.F32, _raw.F64) else code


def _to_wire(value: _Value, compression) -> tuple[np.ndarray, int]:
    code = compression.wire(value.code)
    if code == value.code:
        return value.array, code
    with np.errstate(over="ignore"):
        return value.array.astype(_raw.numpy_dtype(code)), code


def _from_wire(value: _Value, array: np.ndarray) -> np.ndarray:
    return array.astype(_storage(value.code), copy=False)


# ---- Collectives ----


def _allreduce(value: _Value, how: _Reduction) -> np.ndarray:
    array, code = _to_wire(value, how.compression)
    communicator().run(
        _comm.ALL_REDUCE,
        how.label(str(array.shape)),
        code,
        array.size,
        op=how.op,
        src=array.ctypes.data,
        dst=array.ctypes.data,
        **how.scales,
    )
    return _from_wire(value, array)


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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = _Value(tensor)
    return value.result(_allreduce(value, how))


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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = _Value(tensor, is_changed=True)
    return value.replace(_allreduce(value, how))


def _grouped(values: list[_Value], how: _Reduction) -> list[np.ndarray]:
    comm = communicator()
    wires = [_to_wire(value, how.compression) for value in values]
    shapes = " ".join(str(array.shape) for array, _ in wires)
    results: list = [None] * len(values)
    # The same order of dtypes on all ranks, as their lists are alike.
    for code in dict.fromkeys(code for _, code in wires):
        which = [i for i, wire in enumerate(wires) if wire[1] == code]
        listed = (CommTensor * len(which))(
            *[
                CommTensor(a.ctypes.data, a.ctypes.data, a.size)
                for a in (wires[i][0] for i in which)
            ]
        )
        comm.run(
            _comm.ALL_REDUCE,
            how.label(shapes),
            code,
            0,
            op=how.op,
            tensors=listed,
            tensor_count=len(which),
            **how.scales,
        )
        for i in which:
            results[i] = _from_wire(values[i], wires[i][0])
    return results


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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    values = [_Value(tensor) for tensor in tensors]
    results = _grouped(values, how)
    return [value.result(array) for value, array in zip(values, results)]


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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    values = [_Value(tensor, is_changed=True) for tensor in tensors]
    results = _grouped(values, how)
    return [value.replace(array) for value, array in zip(values, results)]


def allgather(tensor, name: str | None = None):
    """All ranks' rows, one part after the other in rank order; collective.

    tensor: at least one dimension; the first may differ between ranks, also be
    0, the others and the dtype are the same. Result: (sum of the first
    dimensions, the others). ValueError on all ranks where they differ."""
    comm = communicator()
    value = _Value(tensor)
    label = _label(name, _rows(value))
    array = value.array
    count = array.shape[0] if array.ndim else 0
    counts = comm.all_gather(np.array([count], np.int64), label)
    _no_scalar(value, "allgather")
    out = np.empty((int(counts.sum()),) + array.shape[1:], array.dtype)
    comm.run(
        _comm.ALL_GATHER_V,
        label,
        value.code,
        array.size,
        src=array.ctypes.data,
        dst=out.ctypes.data,
        capacity=out.size,
    )
    return value.result(out)


def _broadcast(value, root_rank, name):
    array = value.array
    communicator().run(
        _comm.BROADCAST,
        _label(name, str(array.shape)),
        value.code,
        array.size,
        root=root_rank,
        src=array.ctypes.data,
        dst=array.ctypes.data,
    )
    return array


def broadcast(tensor, root_rank: int = 0, name: str | None = None):
    """The root's elements on every rank; collective.

    tensor: the same shape and dtype on all ranks, of which others than the
    root's give no elements. ValueError on all ranks where shapes, dtypes or
    roots differ, or there is no such rank."""
    value = _Value(tensor)
    return value.result(_broadcast(value, root_rank, name))


def broadcast_(tensor, root_rank: int = 0, name: str | None = None):
    """broadcast in place, of a Tensor or a NumPy array; what was given."""
    value = _Value(tensor, is_changed=True)
    return value.replace(_broadcast(value, root_rank, name))


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
    value = _Value(tensor)
    how = _reduction(
        None, op, name, prescale_factor, postscale_factor, compression
    )
    array, code = _to_wire(value, compression)
    label = how.label(str(array.shape))
    if array.ndim == 0:
        comm.barrier(label)  # where others have rows, they hear of it
        _no_scalar(value, "reducescatter")
    starts = _shares(array.shape[0], comm.world_size)
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
        _comm.REDUCE_SCATTER,
        label,
        code,
        out.size,
        op=how.op,
        src=array.ctypes.data,
        dst=out.ctypes.data,
        **how.scales,
    )
    own = comm.global_rank
    rows = int(starts[own + 1] - starts[own])
    return value.result(_from_wire(value, out[:rows]))


def _shares(count: int, parts: int) -> np.ndarray:
    """Where each rank's share of `count` rows begins, and the end."""
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
    value = _Value(tensor)
    array = value.array
    label = _label(name, _rows(value))
    wrong, shares = _splits_of(array, splits, comm.world_size)
    received = np.empty(comm.world_size, np.int64)
    comm.run(
        _comm.ALL_TO_ALL,
        label,
        _raw.I64,
        1,
        src=shares.ctypes.data,
        dst=received.ctypes.data,
    )
    if wrong:
        raise ValueError(wrong)
    bad = np.flatnonzero(received < 0)
    if bad.size:
        raise ValueError(
            f"alltoall: {comm.peer(int(bad[0]))} cannot divide its rows by its "
            "splits; its own error says why"
        )
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    out = np.empty((int(received.sum()),) + array.shape[1:], array.dtype)
    elements = shares * width
    comm.run(
        _comm.ALL_TO_ALL_V,
        label,
        value.code,
        array.size,
        src=array.ctypes.data,
        dst=out.ctypes.data,
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


def _splits_of(array, splits, parts):
    """What is wrong, or '', and the rows for each rank, -1 where wrong."""
    nothing = np.full(parts, -1, np.int64)
    if array.ndim == 0:
        return "alltoall: a value without dimensions has no rows", nothing
    rows = array.shape[0]
    if splits is None:
        if rows % parts:
            return (
                f"alltoall: {rows} rows cannot be shared equally by {parts} "
                "ranks; give splits"
            ), nothing
        return "", np.full(parts, rows // parts, np.int64)
    shares = np.asarray(
        splits.numpy() if isinstance(splits, Tensor) else splits
    )
    if shares.dtype.kind not in "iu" and shares.size:
        return f"alltoall: splits are {shares.dtype}, no integers", nothing
    if shares.shape != (parts,):
        return (
            f"alltoall: splits have shape {shares.shape}; one number for each of "
            f"{parts} ranks is needed"
        ), nothing
    if (shares < 0).any():
        return f"alltoall: splits {shares.tolist()} are negative", nothing
    if shares.sum() != rows:
        return (
            f"alltoall: splits {shares.tolist()} add to {shares.sum()}; the first "
            f"dimension is {rows}"
        ), nothing
    return "", np.ascontiguousarray(shares, np.int64)


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


# ---- Operations that go on by themselves ----


class Handle:
    """An operation that was started; synchronize(handle) gives its result.

    Kept alive until then, or waited for when it is let go."""

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
        check(
            lib.comm_start(
                self._comm.handle, byref(collective), byref(self._work)
            )
        )

    def __del__(self) -> None:
        if getattr(self, "_work", None):
            # The library still writes into the array.
            status = lib.work_wait(self._work)
            self._work = None
            if status is not None:
                lib.status_free(status)

    def is_done(self) -> bool:
        return not self._work or lib.work_is_done(self._work)

    def wait(self):
        if not self._work:
            raise StateError("synchronize: this handle's result was taken")
        work, self._work = self._work, None
        check(lib.work_wait(work))
        return self._finish(_from_wire(self._value, self._array))


def _start_allreduce(value: _Value, finish, how: _Reduction) -> Handle:
    array, code = _to_wire(value, how.compression)
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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = _Value(tensor)
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
    how = _reduction(
        average, op, name, prescale_factor, postscale_factor, compression
    )
    value = _Value(tensor, is_changed=True)
    return _start_allreduce(value, value.replace, how)


def broadcast_async(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """Starts a broadcast; as allreduce_async."""
    value = _Value(tensor)
    return _start_broadcast(value, value.result, root_rank, name)


def broadcast_async_(
    tensor, root_rank: int = 0, name: str | None = None
) -> Handle:
    """The same in place: synchronize changes the tensor and returns it."""
    value = _Value(tensor, is_changed=True)
    return _start_broadcast(value, value.replace, root_rank, name)


def _start_broadcast(value, finish, root_rank, name):
    return Handle(
        value,
        value.array,
        finish,
        _comm.BROADCAST,
        _label(name, str(value.array.shape)),
        value.code,
        root=root_rank,
    )


def poll(handle: Handle) -> bool:
    """Whether synchronize would return at once."""
    return handle.is_done()


def synchronize(handle: Handle):
    """Waits for what was started and gives its result, once."""
    return handle.wait()


# ---- Objects and states ----


def broadcast_object(obj=None, root_rank: int = 0, name: str | None = None):
    """The root's object, by pickle, on every rank; collective.

    Others' `obj` is not looked at. The root gets its own object back."""
    return communicator().share_object(obj, root_rank, name or "object")


def allgather_object(obj, name: str | None = None) -> list:
    """All ranks' objects, by pickle, in rank order; collective."""
    parts = communicator().all_gather_v(pickled(obj), name or "object")
    return [pickle.loads(part.tobytes()) for part in parts]


def broadcast_parameters(params, root_rank: int = 0) -> None:
    """The root's parameters on all ranks, in place; collective.

    params: a model or layer (parameters and states), or Tensors and NumPy arrays
    by name; the same names, shapes and dtypes in the same order on all ranks.
    ValueError on all ranks names the first that differs; StateError for a model
    before compile. DistOpt does it by itself at the first step."""
    if hasattr(params, "get_states"):
        name = type(params).__name__
        params = params.get_states()
        if not params:
            raise StateError(
                f"broadcast_parameters: {name} has no parameters yet; call compile "
                "first"
            )
    if not hasattr(params, "items"):
        params = dict(params)
    communicator().check_same(
        "broadcast_parameters: number of parameters", str(len(params))
    )
    for name, value in params.items():
        broadcast_(value, root_rank, str(name))


def broadcast_optimizer_state(optimizer, root_rank: int = 0) -> None:
    """The root's step count, settings that changed (the learning rate) and
    states (momentum and so on) on all ranks; collective.

    States are set for parameters that this rank's optimizer has met: in a step,
    or since compile where the optimizer is a model's."""
    core = getattr(optimizer, "opt", optimizer)
    if not isinstance(core, _opt.Optimizer):
        raise TypeError(
            f"broadcast_optimizer_state: a {type(optimizer).__name__}; an optimizer "
            "is needed"
        )
    own = (core.lr, core.get_states())
    lr, states = broadcast_object(own, root_rank, "optimizer state")
    if communicator().global_rank != root_rank:
        core.lr = lr
        core.set_states(states)


# ---- Training ----


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    **settings,
):
    """opt.DistOpt on the communicator of init; its first step is collective.

    compression: fp16 averages gradients that travel as float16. Each update
    follows `backward_passes_per_step` steps, with their gradients added up, as
    docs/strategies.md says. named_parameters: not needed, and not looked at:
    the parameters behind the loss are updated. op: Average alone; for a sum
    multiply the learning rate by size()."""
    communicator()
    if op != Average:
        raise ValueError(
            "DistributedOptimizer: gradients are averaged (op=dist.Average); for "
            "their sum multiply the learning rate by dist.size()"
        )
    made = _opt.DistOpt(
        optimizer,
        backward_passes_per_step=backward_passes_per_step,
        **settings,
    )
    if compression is Compression.fp16:
        made.use("fp16")
    return made


def scale_lr(lr: float) -> float:
    """lr * size(): for a batch that grew with the number of workers."""
    return lr * size()


def average_metrics(metrics: dict, weight: float = 1.0) -> dict[str, float]:
    """The averages over ranks of numbers by name; collective.

    weight: of this rank, say the samples that its numbers are of; a rank without
    any gives 0. NaN where all weights are 0. The same names on all ranks, else
    a ValueError on all. The same floats on all ranks."""
    if not weight >= 0:
        raise ValueError(f"average_metrics: weight is {weight}; 0 or more")
    comm = communicator()
    names = sorted(metrics)
    comm.check_same("average_metrics", ",".join(names))
    values = np.array([float(metrics[n]) for n in names] + [1.0], np.float64)
    # 0 * NaN is NaN, and a rank without samples has 0 / 0.
    total = comm.all_reduce(
        values * weight if weight else np.zeros_like(values),
        Sum,
        "average_metrics",
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        means = total[:-1] / total[-1]
    return {name: float(mean) for name, mean in zip(names, means)}


def rank0_only(function):
    """Decorates a function that only rank 0 runs; None on the others. Nothing in
    it may be collective."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if rank() == 0:
            return function(*args, **kwargs)
        return None

    return wrapper


__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "Warmup",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "average_metrics",
    "backend",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "communicator",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "rank0_only",
    "reducescatter",
    "scale_lr",
    "shutdown",
    "size",
    "synchronize",
]
