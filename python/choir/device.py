# SPDX-License-Identifier: Apache-2.0
"""Devices: where tensors lie and ops run.

    dev = device.create_cpu_device()
    dev.SetRandSeed(0)
    with dev:                      # new tensors without a device go here
        x = tensor.random((2, 3))

Names as in SINGA. A device of the C library is made when it is first used, with
as many threads as this process may use: the cores it may run on, divided by the
workers of this host (see `opt.DistOpt`), or CHOIR_THREADS.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import sys
import threading

from choir._callback import Callback, finish
from choir._calls import (
    UnavailableError,
    address_of,
    check,
    get,
    lib,
    ranged,
)
from choir._lib import DeviceOptions, GpuInfo, GpuPart, TraceOptions
from choir._sections import deferred, lock

_told_cpu = False
_TRACE_DETAILS = ("tensor", "layer", "step")  # choir_trace_detail_t


def _local_workers() -> int:
    """Workers of this run on this host, as far as is known yet."""
    from choir import _comm

    return _comm.local_workers()


def _default_threads() -> int:
    # $CHOIR_THREADS: threads of one op on the CPU; C programs set
    # choir_device_options_t.threads. Not set: this process's cores divided by
    # the workers of this host.
    text = os.environ.get("CHOIR_THREADS", "")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise ValueError(
                f"CHOIR_THREADS is {text!r}; a number above 0 is needed"
            )
        return int(text)
    return max(1, len(os.sched_getaffinity(0)) // _local_workers())


class _Numbers:
    """What random numbers are keyed by: a seed, and a number for each use."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws = itertools.count(0x40000001)
        self.params = 0


class Device:
    """A device. Threads that compute on devices take turns."""

    def __init__(
        self,
        name: str,
        lang_id: int,
        threads: int | None = None,
        reproducible: bool = False,
    ) -> None:
        self.name = name
        self.reproducible = reproducible
        self._id = ranged(lang_id, "a device's number", 32)
        self._threads = threads and ranged(threads, "threads", 32)
        self._handle: int | None = None
        self._stream: int | None = None
        self._numbers = _Numbers(0)  # of threads that set no seed
        self._own = threading.local()  # of those that did
        self._profile: int | None = None
        self._verbosity = 0
        self._skip = 5

    # ---- The library's object ----

    @property
    def handle(self) -> int:
        if self._stream is None:
            with lock, deferred():
                self._make()
        return self._handle

    @property
    def stream(self) -> int:
        if self._stream is None:
            self.handle
        return self._stream

    def _make(self) -> None:
        if self._stream is not None:
            return  # by another thread
        options = DeviceOptions(
            threads=self._threads or _default_threads(),
            # The CPU's number is -1, of a GPU that is a mistake.
            index=0 if self.name == "cpu" else self._id,
            reproducible=self.reproducible,
        )
        self._handle = get(
            lib.device_create, self.name.encode(), ctypes.byref(options)
        )
        self._stream = lib.device_stream(self._handle)

    def is_host(self) -> bool:
        """Whether NumPy can see its memory."""
        return lib.device_is_host(self.handle)

    @property
    def threads(self) -> int:
        """That one op may use."""
        return lib.device_threads(self.handle)

    def memory(self) -> dict[str, int]:
        """Bytes in use, kept for reuse, and the most that were in use."""
        stats = lib.device_memory(self.handle)
        return {
            "in_use": stats.in_use_bytes,
            "cached": stats.cached_bytes,
            "peak": stats.peak_bytes,
        }

    # ---- As in SINGA ----

    def id(self) -> int:
        """-1 for the host's CPU, else the GPU's number."""
        return self._id

    def lang(self) -> str:
        return "cpp" if self._id < 0 else "cuda"

    def SetRandSeed(self, seed: int) -> None:
        """Random numbers from here on follow from this seed alone: those of this
        thread, where it is not the main one."""
        from choir import autograd

        numbers = _Numbers(ranged(seed, "the seed"))
        if threading.current_thread() is threading.main_thread():
            self._numbers = numbers
        else:
            self._own.numbers = numbers
        autograd.place.begin_run()

    def Sync(self) -> None:
        """Waits until all work is done; raises what it failed with."""
        check(lib.stream_synchronize(self.stream))

    def Reset(self) -> None:
        """Waits, and takes profiling settings back."""
        self.Sync()
        self.SetVerbosity(0)
        self._skip = 5

    def EnableGraph(self, enable: bool) -> None:
        """Graphs belong to models: see Model.compile(use_graph=True)."""

    def ResetGraph(self) -> None:
        """Graphs belong to models: see Model.compile(use_graph=True)."""

    def RunGraph(self, serial: bool = False) -> None:
        """Graphs belong to models: see Model.compile(use_graph=True)."""

    @staticmethod
    def EnableLazyAlloc(enable: bool) -> None:
        """Memory comes from a pool when a tensor is made; nothing to choose."""

    def host(self) -> Device:
        """The host's CPU."""
        return _cpu

    def graph_enabled(self) -> bool:
        return False

    def SetVerbosity(self, verbosity: int) -> None:
        """0: nothing; 1: time of forward, backward, update; 2 and 3: every op.

        Times are taken from now on; PrintTimeProfiling prints them.
        """
        if verbosity not in (0, 1, 2, 3):
            raise ValueError(
                f"verbosity is {verbosity}; 0, 1, 2 or 3 is needed"
            )
        with lock, deferred():
            if self._profile is not None:
                lib.profile_stop(self._profile)
                lib.profile_destroy(self._profile)
                self._profile = None
            self._verbosity = verbosity
            if verbosity:
                self._profile = get(lib.profile_create, None)
                check(lib.profile_start(self._profile))

    def SetSkipIteration(self, skip_iteration: int) -> None:
        """Training steps that are left out of the times at the start; 5."""
        self._skip = operator.index(skip_iteration)

    def _end_step(self, step: int) -> None:
        if self._profile is not None and step == self._skip:
            lib.profile_stop(self._profile)
            lib.profile_reset(self._profile)
            check(lib.profile_start(self._profile))

    def PrintTimeProfiling(self) -> None:
        """Prints the table of times to stdout."""
        if self._profile is None:
            return
        self.Sync()
        pieces: list[bytes] = []
        write = Callback(lambda a: pieces.append(ctypes.string_at(a[0], a[1])))
        with lock, deferred():
            lib.profile_stop(self._profile)
            status = lib.profile_print(
                self._profile,
                min(self._verbosity, 2),
                address_of(lib.text_writer_callback),
                write.address,
            )
            finish(status, write)
            check(lib.profile_start(self._profile))
        print("Time Profiling:")
        print(b"".join(pieces).decode(), end="")

    # ---- A trace of digests ----

    def trace_digests(
        self,
        path: str | os.PathLike,
        detail: str = "tensor",
        rank: int | None = None,
    ) -> None:
        """Writes digests of what this device computes to a file, for `python -m
        choir compare`, until stop_trace.

        detail: "tensor", every operand of every op; "layer", the results of the
        last op of each; "step", the parameters of models after each training
        step. rank: of this process; 0 writes path, rank r path.r. None: as the
        launcher or DistOpt says. Models run without graphs meanwhile, but for
        "step". NotFoundError: the file cannot be written.
        """
        if detail not in _TRACE_DETAILS:
            raise ValueError(
                f"detail is {detail!r}; tensor, layer or step is needed"
            )
        if rank is None:
            from choir import _comm

            rank = _comm.known_rank()
        options = TraceOptions(
            os.fsencode(path),
            ranged(rank, "the rank", 32),
            _TRACE_DETAILS.index(detail),
        )
        with lock, deferred():
            check(lib.trace_start(self.handle, ctypes.byref(options)))

    def stop_trace(self) -> None:
        """Ends trace_digests, if it was called; UnavailableError: the file is not
        whole."""
        with lock, deferred():
            check(lib.trace_stop(self.handle))

    # ---- Random numbers ----

    def next_stream(self) -> int:
        """A number for one draw, by which its random numbers are keyed."""
        return next(self._keys().draws)

    def next_param_stream(self, count: int = 1) -> int:
        """The first of `count` for the initial values of parameters, one for each,
        as C models count."""
        with lock:
            numbers = self._keys()
            numbers.params += count
            return numbers.params - count

    @property
    def seed(self) -> int:
        return self._keys().seed

    def _keys(self) -> _Numbers:
        return getattr(self._own, "numbers", None) or self._numbers

    # ---- Python ----

    def __enter__(self) -> Device:
        _current.stack.append(self)
        return self

    def __exit__(self, *exc) -> None:
        _current.stack.pop()

    def __repr__(self) -> str:
        mode = " reproducible" if self.reproducible else ""
        return (self.name if self._id < 0 else f"{self.name}:{self._id}") + mode

    def __reduce__(self):
        return (_find_device, (self.name, self._id, self.reproducible))


class _Current(threading.local):
    def __init__(self) -> None:
        self.stack: list[Device] = []


_current = _Current()
_cpu = Device("cpu", -1)
_reproducible_cpu = Device("cpu", -1, reproducible=True)
_gpus: dict[int, Device] = {}
default_device = _cpu


def _find_device(name: str, lang_id: int, reproducible: bool = False) -> Device:
    if lang_id < 0:
        return create_cpu_device(reproducible)
    # One that is there goes on as it is: making it again would reset it.
    return _gpus.get(lang_id) or create_cuda_gpu_on(lang_id)


def get_default_device() -> Device:
    """The host's CPU, or the innermost `with device:`."""
    return _current.stack[-1] if _current.stack else _cpu


def create_cpu_device(reproducible: bool = False) -> Device:
    """The host's CPU: one object per process.

    With reproducible=True another one, whose results have the same bits for any
    number of threads and on any processor (docs/reproducible.md); tensors and
    models are to be on it, as `with device:` has it.
    """
    return _reproducible_cpu if reproducible else _cpu


def create_cuda_gpu_on(device_id: int) -> Device:
    """The NVIDIA GPU with this number.

    Raises UnavailableError where there is none. With CHOIR_DEVICE=cpu in the
    environment it is the host's CPU instead, which is said once.
    """
    global _told_cpu
    # $CHOIR_DEVICE: cpu: create_cuda_gpu_on gives the CPU; or cuda. Not set: as
    # cuda.
    wanted = os.environ.get("CHOIR_DEVICE", "")
    if wanted not in ("", "cpu", "cuda"):
        raise ValueError(f"CHOIR_DEVICE is {wanted!r}; cpu or cuda is needed")
    if wanted == "cpu":
        if not _told_cpu:
            print(
                "choir: CHOIR_DEVICE=cpu: the CPU takes the place of the GPU",
                file=sys.stderr,
            )
            _told_cpu = True
        return _cpu
    if device_id in _gpus:
        _gpus[device_id].Reset()
        return _gpus[device_id]
    gpu = Device("cuda", device_id)
    try:
        gpu.handle
    except Exception as error:
        raise UnavailableError(
            f"create_cuda_gpu_on({device_id}): {error}; to run this script on "
            "the CPU set CHOIR_DEVICE=cpu"
        ) from None
    _gpus[device_id] = gpu
    return gpu


def create_cuda_gpu() -> Device:
    """The first NVIDIA GPU."""
    return create_cuda_gpu_on(0)


def create_cuda_gpus(num: int) -> list[Device]:
    """The first `num` NVIDIA GPUs."""
    return create_cuda_gpus_on(range(num))


def create_cuda_gpus_on(device_ids) -> list[Device]:
    """The NVIDIA GPUs with these numbers."""
    return [create_cuda_gpu_on(device_id) for device_id in device_ids]


def get_num_gpus() -> int:
    """NVIDIA GPUs that can be used here; 0 without a driver."""
    return len(get_gpu_ids())


def get_gpu_ids() -> list[int]:
    """Their numbers, as the driver counts; too old ones are left out."""
    count = ctypes.c_int32()
    try:
        check(lib.gpu_count(ctypes.byref(count)))
    except UnavailableError:
        return []
    return [i for i in range(count.value) if _gpu_info(i).is_supported]


def _number(id: int) -> int:
    return ranged(id, "a GPU's number", 32)


def _gpu_info(id: int) -> GpuInfo:
    info = GpuInfo()
    check(lib.gpu_info(_number(id), ctypes.byref(info)))
    return info


def _driver_version() -> str:
    """Of CUDA, as "13.0"; raises UnavailableError where no GPU can be used."""
    version = ctypes.c_int32()
    check(lib.gpu_driver_version(ctypes.byref(version)))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _gpu_parts() -> list[tuple[str, str, str]]:
    """What GPUs compute with: (name, version, why it is not there or "")."""
    found = []
    for i in range(lib.gpu_part_count()):
        part, why = GpuPart(), ""
        try:
            check(lib.gpu_part(i, ctypes.byref(part)))
        except UnavailableError as error:
            why = str(error)
        found.append((part.name.decode(), part.version.decode(), why))
    return found


def get_gpu_mem_size(id: int) -> tuple[int, int]:
    """(free, total) bytes of one GPU."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    check(lib.gpu_memory(_number(id), ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def device_query(id: int, verbose: bool = False) -> str:
    """What a GPU is, in words; verbose: with its free memory."""
    info = _gpu_info(id)
    text = (
        f"{info.name.decode()}, compute capability {info.major}.{info.minor}, "
        f"{info.total_bytes / 2**30:.1f} GiB"
    )
    if not info.is_supported:
        text += ", too old"
    elif verbose:
        text += f", {get_gpu_mem_size(id)[0] / 2**30:.1f} GiB free"
    return text


def enable_lazy_alloc(enable: bool) -> None:
    """Choir takes memory from a pool when a tensor is made; nothing to choose."""
