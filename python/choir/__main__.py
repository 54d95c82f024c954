# SPDX-License-Identifier: Apache-2.0
"""python -m choir: what this installation has, a launcher for one host, what is
made of the logs and traces of runs, and ONNX files.

    python -m choir --check-build
    python -m choir -np 4 train.py --epochs 2
    python -m choir report run.jsonl -o report.html
    python -m choir compare a.trace b.trace
    python -m choir sha256 model.ckpt
    python -m choir onnx model.onnx --describe

-np starts the script that often, with the interpreter and the options that the
launcher itself runs with; choir.dist, opt.DistOpt and the loader of each know
their rank. When one worker fails the others are ended, and one sentence on
stderr says which it was and what the rest waited for. Ctrl-C, SIGTERM and SIGHUP
end all; with --elastic the others of a worker that was killed go on, and another is
started. Exit status: 0, 1, 2 for wrong usage, 128 + n for signal n. For several
hosts see choirrun.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from ctypes import byref, c_char_p, c_int32

import choir
from choir import (
    _compare,
    _find,
    _onnx_command,
    _raw,
    _report,
    _sha256,
    device,
    opt,
)
from choir._calls import check, lib
from choir._lib import LaunchConfig, LaunchReport

# What ends a run.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# By the first word: what takes the words after it, and gives the exit status.
_COMMANDS = {
    "compare": _compare.main,
    "onnx": _onnx_command.main,
    "report": _report.main,
    "sha256": _sha256.main,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m choir",
        description="Says what this installation has, or runs a script on "
        "several workers of this host.",
        epilog="python -m choir report LOG...: a page of what the examples' "
        "--log-json wrote (report --help). python -m choir compare A B: where "
        "two runs part, by what they wrote with --trace-digests (compare "
        "--help). python -m choir onnx MODEL: what an ONNX file holds and "
        "computes (onnx --help). python -m choir sha256 FILE...: a hash of the "
        "weights in a checkpoint.",
    )
    parser.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="version, library, devices, communicators, strategies, optimizers",
    )
    parser.add_argument(
        "--version", action="version", version=f"choir {choir.__version__}"
    )
    parser.add_argument(
        "-np",
        "--num-proc",
        type=int,
        metavar="N",
        help="number of workers, 1 to 1024",
    )
    parser.add_argument(
        "--comm",
        help="how workers exchange: auto (default), shm, nccl, self",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL for workers to be ended (1)",
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="a worker that a signal kills does not end the others, and another is "
        "started: for opt.DistOpt(elastic=True)",
    )
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the script is the name of a module, as of python -m",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="script [args]",
        help="what each worker runs",
    )
    return parser


# ---- --check-build ----


def _mpi() -> str:
    """Whether the plugin for MPI is there, and loads."""
    # As dist/backends/mpi looks for it.
    named = os.environ.get("CHOIR_MPI_LIBRARY")
    path = named or os.path.join(
        os.path.dirname(os.path.realpath(lib.path)), "libchoir_mpi.so"
    )
    if not os.path.isfile(path):
        return f"no ({path} is not there)"
    why = "" if named else _find.why_not_trusted(path)
    if why:
        return f"no ({path}: {why})"
    # In a process of its own: a library that does not fit may end it.
    code = f"import ctypes; ctypes.CDLL({path!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    if done.returncode == 0:
        return f"yes ({path})"
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    why = lines[-1].removeprefix("OSError: ")
    return f"no ({path} does not load: {why}; it needs Open MPI 4 or 5)"


def _bundled() -> str:
    """Where oneDNN and the other libraries come from."""
    folder = _find.bundled_folder(lib.path)
    if folder:
        return f"of the package ({folder})"
    return "of this machine"


def _nccl() -> str:
    """Whether there is NCCL, and its version."""
    version = c_int32()
    try:
        check(lib.comm_nccl_version(byref(version)))
    except choir.UnavailableError as error:
        return f"no ({error})"
    number = version.value
    return f"yes ({number // 10000}.{number // 100 % 100}.{number % 100})"


def _gpus() -> list[str]:
    """The driver, or why there is none, and the GPUs that it shows."""
    try:
        version = device._driver_version()
        count = c_int32()
        check(lib.gpu_count(byref(count)))
    except choir.UnavailableError as error:
        return [f"device cuda: no ({error})"]
    lines = [f"device cuda: yes (driver for CUDA {version})"]
    for i in range(count.value):
        lines.append(f"GPU {i}: {device.device_query(i)}")
    return lines


def _gpu_parts() -> list[str]:
    lines = []
    for name, version, why in device._gpu_parts():
        if why:
            state = f"no ({why})"
        else:
            state = f"yes ({version})" if version else "yes"
        lines.append(f"GPU {name}: {state}")
    return lines


def check_build() -> None:
    """Prints what there is, a line each."""
    cores = len(os.sched_getaffinity(0))
    default = device.get_default_device()
    print(f"choir {choir.__version__}")
    print(f"  library: {lib.path} ({lib.version().decode()})")
    print(f"  its libraries: {_bundled()}")
    print(f"  python: {sys.version.split()[0]} ({sys.executable})")
    print(
        f"  device cpu: yes ({cores} cores, {default.threads} threads each op)"
    )
    for line in _gpus() + _gpu_parts():
        print(f"  {line}")
    print("  communicator self: yes")
    print("  communicator shm: yes")
    print("  communicator tcp: yes")
    print(f"  communicator mpi: {_mpi()}")
    print(f"  communicator nccl: {_nccl()}")
    print(f"  strategies: {', '.join(opt.strategies())}")
    print(f"  optimizers: {', '.join(opt.optimizers())}")
    print(f"  ops: {len(_raw.OPS)}")


# ---- -np ----


@contextlib.contextmanager
def _signals_to_main_thread():
    """Signals that come to other threads (NumPy's) go to the main one.

    The library's launcher blocks them there and takes them one by one; Python's
    own handlers would only run when it is done."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = [signal.signal(number, lambda *_: None) for number in _SIGNALS]
    main = threading.main_thread().ident

    def forward() -> None:
        while numbers := os.read(reader, 16):
            for number in numbers:
                # One that comes before the launcher looks comes round again.
                if number in _SIGNALS and not is_done.is_set():
                    signal.pthread_kill(main, number)

    is_done = threading.Event()
    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        signal.set_wakeup_fd(fd_before)
        os.close(writer)
        thread.join()
        os.close(reader)
        for number, handler in zip(_SIGNALS, before):
            signal.signal(number, handler)


def launch(
    command: list[str],
    workers: int,
    comm: str | None = None,
    grace: float = 1.0,
    elastic: bool = False,
) -> int:
    """Runs `workers` interpreters with `command` as their arguments, and says on
    stderr what went wrong; the exit status. Call from the main thread."""
    flags = subprocess._args_from_interpreter_flags()
    words = [sys.executable, *flags, *command]
    argv = (c_char_p * (len(words) + 1))(*[os.fsencode(w) for w in words], None)
    config = LaunchConfig(
        ctypes.cast(argv, ctypes.POINTER(c_char_p)),
        workers,
        comm.encode() if comm else None,
        grace,
        elastic,
    )
    report = LaunchReport()
    sys.stdout.flush()
    with _signals_to_main_thread():
        check(lib.launch_run(byref(config), byref(report)))
    message = report.message.decode(errors="replace")
    if message:
        print(f"choir: {message}", file=sys.stderr)
    return report.exit_status


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in _COMMANDS:
        return _COMMANDS[words[0]](words[1:])
    parser = _parser()
    options = parser.parse_args(words)
    if options.check_build:
        check_build()
        return 0
    if options.num_proc is None:
        parser.error("give -np N and a script, or --check-build")
    if not options.command:
        parser.error("-np needs the script that the workers run")
    script = options.command[0]
    if options.module:
        options.command.insert(0, "-m")
    elif not os.path.exists(script):
        parser.error(f"there is no script {script}")
    try:
        return launch(
            options.command,
            options.num_proc,
            options.comm,
            options.grace,
            options.elastic,
        )
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
