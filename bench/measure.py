# SPDX-License-Identifier: Apache-2.0
"""What the drivers of the benchmarks share: running programs at the same time,
the machine and who else uses it, medians with their range."""

import json
import os
import resource
import statistics
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# exit 3: a peer is not installed; the last line of stdout says what to do.
MISSING = 3


class Failure(Exception):
    """A job that did not run; its text is for the user."""


class Missing(Exception):
    """A peer that is not installed; its text says what to do."""


def outputs_of(commands, limit, gate=False):
    """Runs commands at the same time; returns the lines that each printed.

    With gate each prints "ready" when it could start, and all are let go
    together. After `limit` seconds all are killed: a guard against a hang.
    """
    processes = []

    def kill_all():
        for process in processes:
            process.kill()

    guard = threading.Timer(limit, kill_all)
    guard.daemon = True
    guard.start()
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if gate else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        if gate and all(
            process.stdout.readline() == "ready\n" for process in processes
        ):
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
        outputs = [process.stdout.read() for process in processes]
        for process in processes:
            process.wait()
    finally:
        guard.cancel()
        kill_all()
        for process in processes:
            process.wait()
            process.stdout.close()
            if gate:
                process.stdin.close()
    results = []
    for command, process, output in zip(commands, processes, outputs):
        lines = output.splitlines()
        if process.returncode == MISSING and lines:
            raise Missing(json.loads(lines[-1])["missing"])
        if process.returncode != 0:
            raise Failure(
                "%s ended with status %d"
                % (" ".join(command), process.returncode)
            )
        results.append(lines)
    return results


def run_together(commands, limit, gate=False):
    """As outputs_of; returns the last line of each, JSON."""
    results = []
    for command, lines in zip(commands, outputs_of(commands, limit, gate)):
        if not lines:
            raise Failure("%s printed nothing" % " ".join(command))
        results.append(json.loads(lines[-1]))
    return results


def run_captured(command, limit):
    """Status, stdout and stderr of a command, killed after `limit` seconds."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise Failure(
            "%s was not done within %d s" % (" ".join(command), limit)
        ) from None
    return done.returncode, done.stdout, done.stderr


def cpu_info(key):
    """What /proc/cpuinfo says of the first processor, or ""."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def cpu_flags():
    return cpu_info("flags").split()


def machine():
    model = cpu_info("model name") or "unknown processor"
    names = {"avx512f": "AVX-512", "avx2": "AVX2"}
    sets = [name for flag, name in names.items() if flag in cpu_flags()]
    vectors = " with %s" % sets[0] if sets else ""
    return "%s%s, %d cores" % (model, vectors, len(os.sched_getaffinity(0)))


class Others:
    """How many cores other programs take from now on."""

    def __init__(self):
        self._start = time.monotonic()
        self._used = self._used_by_others()

    @staticmethod
    def _used_by_others():
        """CPU seconds of all cores, stolen ones included, less our own."""
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]
        own = 0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            own += usage.ru_utime + usage.ru_stime
        return busy / os.sysconf("SC_CLK_TCK") - own

    def cores(self):
        used = self._used_by_others() - self._used
        return max(0.0, used / (time.monotonic() - self._start))


def print_others(cores):
    text = "Other programs took %.2f cores meanwhile." % cores
    print(text + (" NOT IDLE: do not quote." if cores > 0.1 else ""))


def spread(values, digits):
    """ "median (least..most)"."""
    form = "%%.%df (%%.%df..%%.%df)" % (digits, digits, digits)
    return form % (statistics.median(values), min(values), max(values))


def user_path(path):
    """A path as the user means it: `bazel run` starts programs elsewhere."""
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    return os.path.join(here, path)


def newest_python(folder):
    """The interpreter with the newest PyTorch, in the folder named or in
    $CHOIR_TORCH_NEWEST. Raises Missing."""
    # $CHOIR_TORCH_NEWEST: the folder that bench/peers/install_torch_newest.sh
    # filled. Not set: only Debian's PyTorch is measured beside Choir.
    folder = folder or os.environ.get("CHOIR_TORCH_NEWEST")
    if not folder:
        raise Missing(
            "no --torch-newest FOLDER and no CHOIR_TORCH_NEWEST; "
            "bench/peers/install_torch_newest.sh makes the folder"
        )
    python = os.path.join(user_path(folder), "bin", "python")
    if not os.access(python, os.X_OK):
        raise Missing("%s is no program" % python)
    return python


def json_text(value, indent=0):
    """JSON with what has no lists or objects inside on a line of its own, so that
    a result is a line and a change of one is a line of a diff."""
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)) or not any(
        isinstance(part, (dict, list)) for part in parts
    ):
        return json.dumps(value)
    inside = [json_text(part, indent + 1) for part in parts]
    if isinstance(value, dict):
        inside = [f"{json.dumps(k)}: {t}" for k, t in zip(value, inside)]
    start, end = "{}" if isinstance(value, dict) else "[]"
    space = "\n" + " " * indent
    return f"{start}{space} " + f",{space} ".join(inside) + space + end


def write_json(path, record):
    with open(path, "w", encoding="utf-8") as file:
        file.write(json_text(record) + "\n")
