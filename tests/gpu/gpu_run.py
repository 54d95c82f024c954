# SPDX-License-Identifier: Apache-2.0
"""Runs the bundle on this machine and writes one report: what passed, failed and
was skipped on its GPU, how fast Choir is there and beside PyTorch.

usage: run.sh [--limit S] [--out DIR] [--only NAME,...] [--list]
              [--torch-python FILE]

--limit: seconds for all of it (1500); each step has a limit of its own besides.
--out: report.md, report.json, and of each step its output (choir_gpu_report).
--only: steps whose names begin so. --torch-python: an interpreter with PyTorch.

The report is written again after each step, so that what is done by then is kept
whatever happens. Exit status: 0; 1 when a step failed; 3 when none did but some
were stopped or had no time; 2 for a wrong flag; 128 + n after signal n. Python's
standard library is enough; what the machine lacks is named in the report.
"""

import argparse
import ctypes
import glob
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
sys.path[:0] = [ROOT, os.path.join(ROOT, "tools", "choirrun")]

import gpu_report  # noqa: E402
import gpu_steps  # noqa: E402
import gtest_log  # noqa: E402
import host_facts  # noqa: E402

from bench import measure  # noqa: E402

MISSING = measure.MISSING  # exit status of a step whose tool is not installed
GRACE = 3  # seconds from SIGTERM to SIGKILL
LEAST = 2  # seconds that a step must have left to be started
TAIL_LINES = 25
NO_GPU = "no GPU that Choir can use"
# Of the bundle's libraries the one that is measured, whatever the machine has.
# Others of the machine are newer, and PyTorch may need what is new in them.
OWN_LIBRARY = "libdnnl.so."


# ---- The machine ----


def first_line(*command):
    """What a program says first, or "" where it is not there."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else ""


def torch_of(python):
    """Version and CUDA of an interpreter's PyTorch, or why there is none."""
    code = (
        "import torch; print('%s, CUDA %s, cuDNN %s' % (torch.__version__, "
        "torch.version.cuda, torch.backends.cudnn.version()))"
    )
    return first_line(python, "-c", code) or "not installed"


def wheel_folders(python):
    """The folders of CUDA libraries that came with an interpreter's PyTorch."""
    code = (
        "import importlib.util as u; s = u.find_spec('nvidia'); "
        "print(':'.join(s.submodule_search_locations) if s else '')"
    )
    found = []
    for folder in first_line(python, "-c", code).split(":"):
        if folder:
            found += sorted(glob.glob(os.path.join(folder, "*", "lib")))
    return found


def is_on_machine(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def library_folders(out, python):
    """Where programs look for shared libraries: the bundle's that this machine
    lacks, and NVIDIA's."""
    chosen = os.path.join(out, "lib")
    os.makedirs(chosen, exist_ok=True)
    for path in glob.glob(os.path.join(ROOT, "lib", "*")):
        name = os.path.basename(path)
        link = os.path.join(chosen, name)
        if os.path.lexists(link):
            os.remove(link)
        if name.startswith(OWN_LIBRARY) or not is_on_machine(name):
            os.symlink(path, link)
    folders = [chosen, *wheel_folders(python)]
    before = os.environ.get("LD_LIBRARY_PATH")
    folders += [before] if before else []
    return folders + ["/usr/local/cuda/lib64"]


def describe_machine(torch_python):
    smi = "name,driver_version,memory.total,compute_cap"
    sanitizer = first_line(
        "sh", "-c", "PATH=$PATH:/usr/local/cuda/bin compute-sanitizer --version"
    )
    nvcc = first_line(
        "sh",
        "-c",
        "PATH=$PATH:/usr/local/cuda/bin nvcc --version | grep release",
    )
    return {
        "processor": measure.machine(),
        "system": "%s %s" % (platform.system(), platform.release()),
        "libc": " ".join(platform.libc_ver()),
        "nvidia-smi": first_line(
            "nvidia-smi", "--query-gpu=" + smi, "--format=csv,noheader"
        )
        or "not there",
        "nvcc": nvcc or "not there",
        "compute-sanitizer": sanitizer or "not there",
        "python": platform.python_version(),
        "numpy": first_line(
            sys.executable, "-c", "import numpy; print(numpy.__version__)"
        )
        or "not installed",
        "torch": torch_of(torch_python),
    }


def has_gpu(choir):
    """Whether the library can make a device of the first GPU."""
    return not choir.get("devices", {}).get("cuda", "no: ").startswith("no: ")


# ---- One step ----


class Interrupted(BaseException):
    def __init__(self, number):
        super().__init__(number)
        self.number = number


def end_group(process):
    """Ends a step and all that it started."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    # What ignored SIGTERM and outlived its parent.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_command(command, log, seconds):
    """Exit status, or None after `seconds`; output and errors go to `log`."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process)


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_suite(text, _path):
    return gtest_log.read(text)


def read_program(text, _path):
    return {"said": text.strip().splitlines()[-5:]}


def read_ops(text, _path):
    rows = []
    for line in text.splitlines():
        # The last line is not whole where the program was killed.
        if line.startswith("{") and line.endswith("}"):
            rows.append(json.loads(line))
    return {"ops": rows}


def read_train(text, path):
    written = read_text(path)
    if written:
        return {"train": json.loads(written)}
    return {"said": text.strip().splitlines()[-5:]}


READERS = {
    gpu_steps.SUITE: read_suite,
    gpu_steps.PROGRAM: read_program,
    gpu_steps.OPS: read_ops,
    gpu_steps.TRAIN: read_train,
}


def judge(step, status, limit, result, text):
    """(state, note) of a step by how it ended and what was read."""
    running = result.get("unfinished")
    where = " in " + running if running else ""
    tail = "\n".join(text.strip().splitlines()[-TAIL_LINES:])
    if status is None:
        return "stopped", "after %.0f s%s" % (limit, where)
    if status == MISSING and not result.get("failed"):
        return "skipped", tail
    if status < 0:
        name = signal.Signals(-status).name
        return "failed", "ended by %s%s\n%s" % (name, where, tail)
    if status or result.get("failed"):
        return "failed", "exit status %d%s\n%s" % (status, where, tail)
    if "passed" in result and not result["passed"]:
        if not result["skipped"]:
            return "skipped", "it has no lines for GPUs yet"
        return "skipped", "all lines, as told below"
    return "passed", ""


def run_step(step, options, seconds):
    file = re.sub(r"[^a-z0-9]+", "_", step.name.lower())
    words = {
        "python": sys.executable,
        "torch_python": options.torch_python,
        "out": options.out,
        "file": file,
    }
    command = [word.format(**words) for word in step.command]
    log = os.path.join(options.out, file + ".log")
    path = os.path.join(options.out, file + ".json")
    if os.path.exists(path):
        os.remove(path)  # of an earlier run
    limit = min(step.limit, seconds)
    start = time.monotonic()
    try:
        status = run_command(command, log, limit)
    except OSError as error:
        return {"state": "failed", "note": str(error), "seconds": 0}
    text = read_text(log)
    result = READERS[step.kind](text, path)
    state, note = judge(step, status, limit, result, text)
    taken = round(time.monotonic() - start, 1)
    return {"state": state, "note": note, "seconds": taken, **result}


# ---- All ----


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="run.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--limit", type=float, default=1500)
    parser.add_argument("--out", default="choir_gpu_report")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--torch-python", default=sys.executable)
    options = parser.parse_args(argv)
    wanted = tuple(options.only.split(","))
    options.steps = [s for s in gpu_steps.STEPS if s.name.startswith(wanted)]
    if not options.steps:
        parser.error("--only: no step begins so; --list shows all")
    if not options.limit > 0:
        parser.error("--limit must be above 0")
    options.out = os.path.abspath(options.out)
    return options


def set_environment(options):
    folders = library_folders(options.out, options.torch_python)
    os.environ["LD_LIBRARY_PATH"] = ":".join(folders)
    os.environ["PYTHONPATH"] = os.path.join(ROOT, "python")
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def run_all(options, record, end):
    is_there = has_gpu(record["choir"])
    for step in options.steps:
        left = end - time.monotonic()
        if step.needs_gpu and not is_there:
            # The page has the reason once, with the machine.
            result = {"state": "skipped", "note": NO_GPU, "seconds": 0}
        elif left < LEAST:
            note = "the %g s of --limit were over" % options.limit
            result = {"state": "not started", "note": note, "seconds": 0}
        else:
            result = run_step(step, options, left)
        record["steps"].append({"name": step.name, "kind": step.kind, **result})
        gpu_report.write(options.out, record)
        print(gpu_report.step_line(record["steps"][-1]), flush=True)


def exit_status(record):
    states = [step["state"] for step in record["steps"]]
    if "failed" in states:
        return 1
    return 3 if "stopped" in states or "not started" in states else 0


def main(argv):
    options = parse(argv)
    if options.list:
        for step in options.steps:
            print("%-32s at most %4.0f s" % (step.name, step.limit))
        return 0
    end = time.monotonic() + options.limit

    def interrupt(number, _frame):
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    os.makedirs(options.out, exist_ok=True)
    set_environment(options)
    library = os.path.join(ROOT, "libchoir.so")
    record = {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": describe_machine(options.torch_python),
        "choir": host_facts.op_build({"library": library}),
        "limit": options.limit,
        "libraries": os.environ["LD_LIBRARY_PATH"].split(":"),
        "steps": [],
        "interrupted": "",
    }
    try:
        run_all(options, record, end)
        status = exit_status(record)
    except Interrupted as error:
        record["interrupted"] = signal.Signals(error.number).name
        status = 128 + error.number
    gpu_report.write(options.out, record)
    print("report: " + os.path.join(options.out, "report.md"))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
