# SPDX-License-Identifier: Apache-2.0
"""The processes on this host that belong to a run, which its mark in their environment
tells. Sent with host_agent.py."""

import os
import signal
import time

import process_guard

# How long a process may take from one program to the next.
EXEC_SECONDS = 0.05


def environment_of(pid):
    """The variables of a process, each as NAME=value. Empty where it has none, or
    none yet as it is in the middle of an exec; None: it is gone or another
    user's."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text.split(b"\0") if text else []


def rank_in(words, run):
    """(whether a process with this environment belongs to `run`, its rank of Open
    MPI's or None)."""
    # $CHOIR_RUN: not for users: as CHOIR_LAUNCH, in the processes of choirrun.
    mark = b"CHOIR_RUN=" + run.encode()
    words = words or ()
    rank = None
    for word in words:
        if word.startswith(b"OMPI_COMM_WORLD_RANK="):
            rank = int(word.split(b"=")[1])
    return mark in words, rank


def runs_a_program(pid):
    """Threads of the kernel and what only waits to be reaped do not."""
    try:
        return bool(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False


def of_run(run):
    """{pid: rank or None} of the processes that belong to `run`."""
    found = {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    end = time.monotonic() + EXEC_SECONDS
    while True:
        empty = []
        for pid in pids:
            words = environment_of(pid)
            is_of_run, rank = rank_in(words, run)
            if is_of_run and pid != os.getpid():
                found[pid] = rank
            if words == [] and runs_a_program(pid):
                empty.append(pid)
        if not empty or time.monotonic() > end:
            return found
        pids = empty
        time.sleep(0.001)


def first_of_ranks(found, run):
    """{rank: id of the process that a daemon of Open MPI started as this rank, or
    None where that one is gone and what it started is left}."""
    first = {}
    for pid, rank in found.items():
        there = process_guard.stat(pid)
        if rank is None or not there:
            continue
        # A rank that was still its daemon's fork when it was looked at can have
        # started this one meanwhile.
        while rank_in(environment_of(there[2]), run)[1] == rank:
            pid = there[2]
            there = process_guard.stat(pid) or ("", "", 0)
        if found.get(there[2], rank) is None:
            first[rank] = pid
        else:
            first.setdefault(rank, None)
    return first


def state_of(pid):
    """The letter of ps, or "" when it is gone or only waits to be reaped."""
    there = process_guard.stat(pid)
    return "" if not there or there[1] in "ZX" else there[1]


def end_all(run, ranks_only=False):
    """Ends all processes of the run here, also those that start meanwhile; or ranks
    and what they started."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = [
            pid
            for pid, rank in of_run(run).items()
            if rank is not None or not ranks_only
        ]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not found:
            return
        time.sleep(process_guard.PASS_SECONDS)
