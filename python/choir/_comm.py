# SPDX-License-Identifier: Apache-2.0
"""The communicator of this process, for opt.DistOpt, dist and singa_wrap.

Collectives work on raw tensors and NumPy arrays in host memory and block until
they are done; every wait has a deadline and ends in a CommError that says who
waited for whom in which operation.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import multiprocessing.util
import os
import pickle
import sys
import threading
import traceback
import weakref
from ctypes import byref, c_int32

import numpy as np

from choir import _raw, _terminate
from choir._calls import (
    CommError,
    NotCopied,
    StateError,
    check,
    code_of,
    describe,
    get,
    lib,
    ranged,
)
from choir._lib import (
    Collective,
    CollectiveKind as Kind,
    CommConfig,
    CommId,
    CommTensor,
    Reduce,
)
from choir._raw import CTensor
from choir._sections import deferred

SUM, AVERAGE, MIN = Reduce.SUM, Reduce.AVERAGE, Reduce.MIN
MAX, PRODUCT = Reduce.MAX, Reduce.PRODUCT

_living: weakref.WeakSet[Communicator] = weakref.WeakSet()
# Of those that were forgotten and not closed: number and handle. When that
# happens is the garbage collector's choice, and peers may still count on them.
_forgotten: list[tuple[int, int]] = []
_numbers = itertools.count()
_own_ranks: dict[str | None, set[int]] = {}  # of this process, by rendezvous id
_default: Communicator | None = None


class NcclIdHolder:
    """A rendezvous id, by which the processes of one communicator find each other
    (NCCL: unique id).

    Made by one process and handed to the others (`multiprocessing.Process`
    arguments, a file that only this user can read, ...). Who knows it can join,
    so it is a secret. The name is SINGA's; it serves every backend.
    """

    def __init__(self, text: str | None = None) -> None:
        if text is None:
            made = CommId()
            check(lib.comm_id_make(byref(made)))
            text = made.text.decode()
        self.id = text

    def __getstate__(self) -> str:
        return self.id

    def __setstate__(self, text: str) -> None:
        self.id = text

    def __repr__(self) -> str:
        # Not all of it: who knows it can join.
        return f"NcclIdHolder({self.id[:4]!r}...)"


def pickled(obj) -> np.ndarray:
    """An object as bytes."""
    return np.frombuffer(
        pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8
    ).copy()


def listed(arrays: list[np.ndarray]):
    """Arrays that are reduced in place, as choir_collective_t.tensors."""
    if not arrays:
        return None
    return (CommTensor * len(arrays))(
        *[CommTensor(a.ctypes.data, a.ctypes.data, a.size) for a in arrays]
    )


class Communicator(NotCopied):
    """Joins `world_size` processes.

    Communicator(limit): as the launcher says (choirrun, mpiexec), or alone.
    Communicator(local_rank, world_size, holder, limit): by a rendezvous id, on one
    host. limit: elements of SINGA's buffers; there are none here. deadline:
    longest wait in seconds for a peer in one operation, CHOIR_DEADLINE or 60.
    silence: longest wait in seconds for a sign of life of a peer that is waited
    for; as the deadline where it is not given.

    Returns when all are there; raises CommError naming who is missing.
    """

    def __init__(
        self,
        *args,
        deadline: float | None = None,
        backend: str | None = None,
        silence: float | None = None,
    ) -> None:
        self.handle: int | None = None
        self.rendezvous_id: str | None = None
        config = CommConfig()
        check(lib.comm_config_init(byref(config)))
        if len(args) >= 3:
            rank, size, holder = args[:3]
            rank = ranged(rank, "Communicator: local_rank", 32)
            size = ranged(size, "Communicator: world_size", 32)
            if not 0 <= rank < size:
                raise ValueError(
                    f"Communicator: local_rank is {rank} and world_size {size}; a "
                    "rank from 0 to world_size - 1 is needed"
                )
            if not isinstance(holder, NcclIdHolder):
                raise TypeError(
                    "Communicator: the rendezvous id is a "
                    f"{type(holder).__name__}; a "
                    "NcclIdHolder is needed"
                )
            # Of a launcher's environment only this goes with an id.
            if config.backend != b"nccl":
                config.backend = b"auto"
            config.rank, config.size = rank, size
            config.id.text = holder.id.encode()
            self.rendezvous_id = holder.id
            _own_ranks.setdefault(holder.id, set()).add(rank)
        if backend is not None:
            config.backend = backend.encode()
        config.deadline = deadline if deadline is not None else _deadline()
        config.silence = silence if silence is not None else 0
        self._keep = config
        self.deadline: float = config.deadline  # seconds
        self.silence: float = config.silence or config.deadline  # likewise
        _terminate.watch(_activity)
        self._pending: list[CTensor] = []
        # What joined ends with the process, also when Ctrl-C comes meanwhile.
        with deferred():
            self.handle = get(lib.comm_create, byref(config))
            # Of an elastic run under way: alone until DistOpt is taken in.
            self.is_newcomer: bool = lib.comm_is_newcomer(self.handle)
            self._look()
            self._number = next(_numbers)
            _living.add(self)
            _end_with_process()

    def _look(self) -> None:
        self.global_rank: int = lib.comm_rank(self.handle)
        self.world_size: int = lib.comm_size(self.handle)
        self.local_rank: int = lib.comm_local_rank(self.handle)
        self.local_size: int = lib.comm_local_size(self.handle)

    def _become(self, handle: int) -> None:
        """That of the next generation of an elastic run, which is lent."""
        with deferred():
            lib.comm_retain(handle)
            before, self.handle = self.handle, handle
            self.is_newcomer = False
            self._look()
            lib.comm_release(before)

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if not handle:
            return
        fault = lib.comm_poll_error(handle)
        if fault is None and not _process.has_ended:
            _forgotten.append((self._number, handle))
            return
        lib.status_free(fault)
        lib.comm_release(handle)

    def _forget(self) -> None:
        """Of a worker that has left an elastic run: nobody waits for it."""
        with deferred():
            handle, self.handle = self.handle, None
            lib.comm_release(handle)

    def close(self) -> None:
        """Collective: waits until all ranks are here, and ends it."""
        with deferred():
            handle, self.handle = self.handle, None
            if handle is None:
                return
            status = lib.comm_finalize(handle)
            lib.comm_release(handle)
            check(status)

    # ---- What it is ----

    @property
    def backend(self) -> str:
        return lib.comm_backend(self.handle).decode()

    def host_index(self) -> int:
        """Which host this rank is on, counted by lowest rank."""
        return lib.comm_host_index(self.handle)

    def host_count(self) -> int:
        return lib.comm_host_count(self.handle)

    def shares_process(self) -> bool:
        """Whether another rank is a thread of this process."""
        return len(_own_ranks.get(self.rendezvous_id, ())) > 1

    def peer(self, rank: int) -> str:
        """'rank 2 (host node1, pid 4711)'"""
        return lib.comm_peer(self.handle, rank).decode()

    def __repr__(self) -> str:
        return (
            f"Communicator(rank {self.global_rank} of {self.world_size}, "
            f"{self.backend})"
        )

    # ---- The general form ----

    def run(self, kind: int, name: str, src=None, dst=None, **fields) -> None:
        """One collective; see choir_collective_t in dist/comm.h.

        src, dst: row-major arrays; dst is src unless given. dtype, count: src's
        unless given."""
        if self.handle is None:
            raise StateError(f"{name}: the communicator has ended")
        with self.preparing(kind, name):
            collective = self.collective(kind, name, src, dst, **fields)
        check(lib.comm_run(self.handle, byref(collective)))

    @staticmethod
    def collective(
        kind: int, name: str, src=None, dst=None, **fields
    ) -> Collective:
        """What `run` and lib.comm_start take; the arrays must outlive it."""
        made = Collective(kind=kind, name=name.encode(), weight=1.0)
        if src is not None:
            if "dtype" not in fields:
                fields["dtype"] = _raw.dtype_of(src.dtype)
            fields.setdefault("count", src.size)
            made.src = src.ctypes.data
            made.dst = (src if dst is None else dst).ctypes.data
        if "root" in fields:
            fields["root"] = ranged(fields["root"], f"{name}: the root", 32)
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    @contextlib.contextmanager
    def preparing(self, kind: int, name: str | None = None):
        """What this rank does before it can take part in its next operation.

        A failure in it, Ctrl-C too, is told to all ranks, as an error of that
        operation: they do not wait for this rank, and it is not one operation
        behind them if its program goes on. Nothing here may be collective."""
        try:
            yield
        except BaseException as error:
            if self.handle is not None:
                self._refuse(kind, name, error)
            raise

    def _refuse(self, kind: int, name, why: BaseException) -> None:
        # As much as the library hands on, and no part of a letter.
        text = _describe(why).encode(errors="replace")[:199]
        try:
            label = None if name is None else str(name)
        except Exception:
            label = type(name).__name__
        refused = Collective(
            kind=kind,
            name=label.encode(errors="replace") if label else None,
            refusal=text.decode(errors="ignore").encode(),
            refusal_code=code_of(why),
        )
        # The same failure as on the others, or that the communicator broke.
        lib.status_free(lib.comm_run(self.handle, byref(refused)))

    def all_reduce(
        self, array: np.ndarray, op: int = SUM, name="all_reduce", **more
    ):
        """Reduces a row-major array over ranks, in place."""
        self.run(Kind.ALL_REDUCE, name, array, op=op, **more)
        return array

    def broadcast(self, array: np.ndarray, root: int, name="broadcast"):
        """The root's elements to all, in place."""
        self.run(Kind.BROADCAST, name, array, root=root)
        return array

    def preparing_object(self, name: str):
        """`preparing` for share_object."""
        return self.preparing(Kind.BROADCAST, f"{name} (size)")

    def share_object(self, obj, root: int, name: str):
        """The root's object, by pickle; the root's own there."""
        is_root = self.global_rank == root
        with self.preparing_object(name):
            data = pickled(obj) if is_root else np.empty(0, np.uint8)
            count = np.array([data.size], np.int64)
        self.broadcast(count, root, f"{name} (size)")
        with self.preparing(Kind.BROADCAST, name):
            if not is_root:
                data = np.empty(int(count[0]), np.uint8)
        self.broadcast(data, root, name)
        return obj if is_root else pickle.loads(data.tobytes())

    def all_gather(self, array: np.ndarray, name="all_gather") -> np.ndarray:
        """As many elements of each rank, one part after the other."""
        with self.preparing(Kind.ALL_GATHER, name):
            out = np.empty((self.world_size,) + array.shape, array.dtype)
        self.run(Kind.ALL_GATHER, name, array, out)
        return out

    def all_gather_v(
        self, array: np.ndarray, name="all_gather"
    ) -> list[np.ndarray]:
        """Each rank's own number of elements."""
        with self.preparing(Kind.ALL_GATHER, name):
            array = np.ascontiguousarray(array).reshape(-1)
            count = np.array([array.size], np.int64)
        counts = self.all_gather(count, name).reshape(-1)
        with self.preparing(Kind.ALL_GATHER_V, name):
            out = np.empty(int(counts.sum()), array.dtype)
        self.run(Kind.ALL_GATHER_V, name, array, out, capacity=out.size)
        return np.split(out, np.cumsum(counts)[:-1])

    def barrier(self, name: str = "barrier") -> None:
        """Waits until all ranks are here."""
        self.run(Kind.BARRIER, name, dtype=_raw.U8)

    def check_same(self, what: str, text: str) -> None:
        """ValueError on every rank, naming who differs, unless all are alike."""
        check(lib.comm_check_same(self.handle, what.encode(), text.encode()))

    def join(self) -> int:
        """Takes part in the others' sums with zeros until all have joined.

        The rank that came last.
        """
        out = c_int32()
        check(lib.comm_join(self.handle, byref(out)))
        return out.value

    # ---- SINGA's primitives, on raw tensors: sums ----

    def synch(self, t: CTensor) -> None:
        """The sum over ranks, in place."""
        self._sum([t], "synch")

    def fusedSynch(self, tensors, send: bool = True) -> None:
        """send False: keeps the tensors in mind. True: sums what was kept, or
        these if none was, in one exchange."""
        self._sum_kept(self._sum, tensors, send, "fusedSynch")

    def synchHalf(self, t: CTensor) -> None:
        """The sum of values that travel as float16."""
        self._sum_half([t], "synchHalf")

    def fusedSynchHalf(self, tensors, send: bool = True) -> None:
        """As fusedSynch, with float16 on the way."""
        self._sum_kept(self._sum_half, tensors, send, "fusedSynchHalf")

    def sparsification(self, t: CTensor, *args) -> None:
        """sparsification(t, [accumulation,] spars, topK): see
        opt.DistOpt.sparsification."""
        with self.preparing(Kind.ALL_GATHER, "sparsification"):
            accumulation, spars, top_k = _sparse_arguments(args)
        self._sum_sparse([t], accumulation, spars, top_k, "sparsification")

    def fusedSparsification(self, tensors, *args) -> None:
        """The same over all elements of several tensors."""
        with self.preparing(Kind.ALL_GATHER, "fusedSparsification"):
            accumulation, spars, top_k = _sparse_arguments(args)
            tensors = list(tensors)
        self._sum_sparse(
            tensors, accumulation, spars, top_k, "fusedSparsification"
        )

    def wait(self) -> None:
        """Exchanges are done when their call returns: nothing to wait for.

        Raises StateError when tensors were filled and never sent.
        """
        if self._pending:
            count = len(self._pending)
            self._pending = []
            raise StateError(
                f"wait: {count} tensors were given with send=False and never sent; "
                "call with send=True first"
            )

    def _sum_kept(self, sum_up, tensors, send: bool, name: str) -> None:
        if not send:
            self._pending.extend(tensors)
            return
        with self.preparing(Kind.ALL_REDUCE, name):
            kept = self._kept(tensors, name)
        sum_up(kept, name)

    def _kept(self, tensors, name: str) -> list[CTensor]:
        tensors = list(tensors)
        kept, self._pending = self._pending, []
        if not kept:
            return tensors
        if [t.handle for t in kept] != [t.handle for t in tensors]:
            raise ValueError(
                f"{name}: {len(kept)} tensors were filled and {len(tensors)} are "
                "sent; both must be the same ones in the same order"
            )
        return kept

    def _sum(self, tensors: list[CTensor], name: str) -> None:
        with self.preparing(Kind.ALL_REDUCE, name):
            arrays = [_in_rows(t) for t in tensors]
            dtype = tensors[0].dtype if tensors else _raw.F32
        self.run(
            Kind.ALL_REDUCE,
            name,
            dtype=dtype,
            op=SUM,
            tensors=listed(arrays),
            tensor_count=len(arrays),
        )
        _put_back(tensors, arrays)

    def _sum_half(self, tensors: list[CTensor], name: str) -> None:
        with self.preparing(Kind.ALL_REDUCE, name):
            for t in tensors:
                if t.dtype != _raw.F32:
                    raise TypeError(f"{name}: a tensor is not float32")
            halves = [_raw.run("cast", t, dtype=_raw.F16) for t in tensors]
        self._sum(halves, name)
        for t, half in zip(tensors, halves):
            _raw.run("cast", half, out=[t], dtype=_raw.F32)

    def _sum_sparse(self, tensors, accumulation, spars, top_k, name) -> None:
        with self.preparing(Kind.ALL_GATHER, name):
            arrays, kept, u, chosen = self._choose(
                tensors, accumulation, spars, top_k, name
            )
        places = self.all_gather_v(chosen.astype(np.int64), name)
        values = self.all_gather_v(u[chosen].astype(np.float32), name)
        total = np.zeros_like(u)
        for index, value in zip(places, values):
            total[index] += value
        # Only now, as what was not sent is still to be: a call that fails changes
        # neither the tensors nor the accumulation.
        u[chosen] = 0
        with deferred():
            if kept is not None:
                kept.reshape(-1)[:] = u
                _put_back([accumulation], [kept])
            start = 0
            for array in arrays:
                array.reshape(-1)[:] = total[start : start + array.size]
                start += array.size
            _put_back(tensors, arrays)

    @staticmethod
    def _choose(tensors, accumulation, spars, top_k, name):
        """The tensors and the accumulation as arrays, their elements added up, one
        after the other, and where those are that are sent."""
        for t in tensors:
            if t.dtype != _raw.F32:
                raise TypeError(f"{name}: a tensor is not float32")
        if (top_k and not 0 < spars <= 1) or spars < 0:
            raise ValueError(
                f"{name}: spars is {spars}; "
                + ("a share above 0, at most 1" if top_k else "0 or more")
                + " is needed"
            )
        arrays = [_in_rows(t) for t in tensors]
        u = np.concatenate([a.reshape(-1) for a in arrays])
        kept = None
        if accumulation is not None:
            kept = _in_rows(accumulation)
            if kept.size != u.size:
                raise ValueError(
                    f"{name}: the accumulation has {kept.size} elements; {u.size} "
                    "are needed"
                )
            u = u + kept.reshape(-1)
        magnitude = np.abs(u)
        if top_k:
            k = int(np.ceil(spars * u.size))
            # Of equal magnitudes the first are taken.
            chosen = np.sort(np.argsort(-magnitude, kind="stable")[:k])
        else:
            chosen = np.flatnonzero(magnitude >= spars)
        return arrays, kept, u, chosen


def _sparse_arguments(args):
    if len(args) == 3:
        return args
    if len(args) == 2:
        return None, args[0], args[1]
    raise TypeError(
        f"sparsification takes (t, accumulation, spars, topK) or (t, spars, topK); "
        f"{len(args) + 1} arguments were given"
    )


def _in_rows(t: CTensor) -> np.ndarray:
    """The elements row by row: in place where they lie so, else a copy."""
    if t.dtype == _raw.BF16:
        raise TypeError(
            "bfloat16 cannot be exchanged from Python; cast it first"
        )
    if t.device.is_host() and t.is_contiguous():
        return t.as_array()
    return t.read()


def _put_back(tensors, arrays) -> None:
    for t, array in zip(tensors, arrays):
        if not (t.device.is_host() and t.is_contiguous()):
            t.write(array)


def _deadline() -> float:
    # $CHOIR_DEADLINE: seconds that one wait may take; C programs set
    # choir_comm_config_t.deadline. Not set: 60.
    text = os.environ.get("CHOIR_DEADLINE", "60")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError(
            f"CHOIR_DEADLINE is {text!r}; seconds above 0 are needed"
        )
    return value


def default() -> Communicator:
    """The communicator that the launcher gave this process, made once."""
    global _default
    if _default is None or _default.handle is None:
        _default = Communicator()
    return _default


def has_default() -> bool:
    """Whether `default` has been made."""
    return _default is not None and _default.handle is not None


def set_default(comm: Communicator | None) -> None:
    """What `default` gives from now on; None: it makes one."""
    global _default
    _default = comm


def local_workers() -> int:
    """Workers on this host, as far as is known yet."""
    known = [comm.local_size for comm in _living if not comm.is_newcomer]
    if known:
        return max(known)
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "CHOIR_SIZE"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return 1


def known_rank() -> int:
    """This process's number, as far as is known yet."""
    if _living:
        return max(_living, key=lambda comm: comm.world_size).global_rank
    for name in ("OMPI_COMM_WORLD_RANK", "CHOIR_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


# ---- The end of a process ----
#
# A rank that ends well waits for the others, so that nobody takes its end for
# a death, and fails when they do not come; one that ends by an exception, or by
# sys.exit with a status that is no success, tells them at once. A plain `raise SystemExit(1)` outside of
# multiprocessing's children cannot be seen: it ends like success.
#
# A child of multiprocessing comes to its end while the exception that ended it is
# still under way. From Python 3.13 on that is over by then, so it is noted where
# BaseProcess._bootstrap, which catches all, prints it or asks it for its code; for
# a plain SystemExit the status is left, in the frame that forked.

_BOOTSTRAP = multiprocessing.process.BaseProcess._bootstrap.__code__

_failure: list[BaseException] = []


class _Process:
    """How far this process is in what it does about its end."""

    def __init__(self) -> None:
        self.has_exit_functions = False  # of atexit
        self.has_finalizers = False  # of multiprocessing, in its children
        self.is_child = False  # of multiprocessing, and watched
        self.has_ended = False  # its communicators are finalized or aborted
        self.has_failed = False  # and that went wrong: exit status 1


_process = _Process()


def _activity() -> str:
    """What this rank is doing, for its last words."""
    for comm in list(_living):
        handle = comm.handle  # read once: close() takes it away
        if handle and (text := lib.comm_activity(handle)):
            return text.decode(errors="replace")
    return ""


def _end_with_process() -> None:
    if multiprocessing.parent_process() is not None:
        # Up to Python 3.12 children of multiprocessing run no atexit functions.
        if not _process.has_finalizers:
            _process.has_finalizers = True
            finalize = multiprocessing.util.Finalize
            finalize(None, _end, exitpriority=100)
            finalize(None, _leave, exitpriority=-1000)
        if not _process.is_child:
            _process.is_child = True
            _watch_child()
        return
    if _process.has_exit_functions:
        return
    _process.has_exit_functions = True
    atexit.register(_end)
    before = sys.excepthook

    def note(kind, value, traceback):
        before(kind, value, traceback)
        _note(value)

    sys.excepthook = note
    _watch_exit()


def _describe(error: BaseException) -> str:
    try:
        if isinstance(error, SystemExit):
            return f"sys.exit({error.code!r})"
    except Exception:
        pass  # a code without words
    return describe(error)


def _note(error: BaseException) -> None:
    """The process ends by this exception."""
    _failure.append(error)
    # The launcher's worker is the parent.
    if not _process.is_child and lib.launch_is_worker():
        code = 9 if isinstance(error, CommError) else 3
        lib.launch_note_failure(code, _describe(error).encode(errors="replace"))


class _Exit(SystemExit):
    """What sys.exit raises in a rank, with a status that is no success.

    There is no hook for it. But when nobody has caught it, the interpreter asks it
    for its code, and does so when no frame of the program is left, or _bootstrap
    does.
    """

    @property
    def code(self):
        caller = sys._getframe().f_back
        is_last = caller is None or caller.f_code is _BOOTSTRAP
        if is_last and self not in _failure:
            _note(self)
        return super().code

    @code.setter
    def code(self, value) -> None:
        SystemExit.code.__set__(self, value)


def _watch_exit() -> None:
    plain = sys.exit

    @functools.wraps(plain)
    def exit(status=None, /):
        # In another thread it ends that thread alone.
        is_main = threading.current_thread() is threading.main_thread()
        if not status or not is_main:
            plain(status)
        raise _Exit(*status) if isinstance(status, tuple) else _Exit(status)

    sys.exit = exit


def _watch_child() -> None:
    plain = traceback.print_exc

    @functools.wraps(plain)
    def print_exc(*args, **options):
        if sys._getframe().f_back.f_code is _BOOTSTRAP:
            _note(sys.exc_info()[1])
        plain(*args, **options)

    traceback.print_exc = print_exc
    _watch_exit()


def _status_of_child() -> int:
    """What a forked child of multiprocessing is about to end with; 0 if
    _bootstrap is not yet over."""
    frame = sys._getframe()
    while frame and frame.f_code is not _BOOTSTRAP:
        name = frame.f_globals.get("__name__")
        if name in ("multiprocessing.popen_fork", "multiprocessing.forkserver"):
            return frame.f_locals.get("code", 0)
        frame = frame.f_back
    return 0


def _after_fork() -> None:
    """A forked child is no rank of its parent's communicators."""
    global _default
    for comm in list(_living):
        comm.handle = None  # not released: it is the parent's
        _living.discard(comm)
    _forgotten.clear()
    _own_ranks.clear()
    _default = None
    _failure.clear()
    # Which multiprocessing has forgotten, and what is the parent's.
    _process.has_finalizers = _process.has_failed = False


os.register_at_fork(after_in_child=_after_fork)


def _end() -> None:
    error = _failure[0] if _failure else sys.exc_info()[1]
    if error is None and _process.is_child:
        status = _status_of_child()
        error = SystemExit(status) if status else None
    is_well = error is None or (
        isinstance(error, SystemExit) and not error.code
    )
    _process.has_ended = True
    handles = [(comm._number, comm.handle) for comm in _living if comm.handle]
    failures = []
    # All ranks made them in one order.
    for _, handle in sorted(handles + _forgotten):
        if not is_well:
            lib.comm_abort(handle, _describe(error).encode(errors="replace"))
            continue
        failures.append(lib.comm_finalize(handle))
    for _, handle in _forgotten:
        lib.comm_release(handle)
    _forgotten.clear()
    if is_well and not any(failures):
        failures.append(lib.comm_shutdown())
    for status in filter(None, failures):
        _fail(status)


def _fail(status: int) -> None:
    """The process ends by this status, after all that ended well."""
    code = lib.status_code(status)
    message = lib.status_message(status).decode(errors="replace")
    lib.status_free(status)
    _process.has_failed = True
    # The launcher tells it; its worker is the parent of a child.
    if not _process.is_child and lib.launch_is_worker():
        lib.launch_note_failure(code, message.encode())
    else:
        print(f"choir: {message}", file=sys.stderr)


def _leave() -> None:
    """Runs after all other exit functions, but those of modules that were imported
    before this one. None of them can change the status otherwise."""
    if not _process.has_failed:
        return
    multiprocessing.util._exit_function()
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # exit 1: a script came to its end, and the ranks' common end then failed.
    os._exit(1)


atexit.register(_leave)
