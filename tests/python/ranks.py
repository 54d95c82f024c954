# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process of this host.

    outcomes = ranks.run(3, function, "argument")      # function(rank, size, nccl_id,
    ranks.results(3, function)                         #          "argument")

`run` gives what each rank returned or, in its place, the exception it raised, or
a Lost for one that ended without either. `results` raises the first exception.
Nobody is left behind: what takes longer than the limit is killed.
"""

import multiprocessing
import os
import time
import traceback
from multiprocessing import connection

os.environ.setdefault("CHOIR_THREADS", "1")

from choir._comm import NcclIdHolder  # noqa: E402

LIMIT = 50.0  # seconds, a guard against hangs


class Lost(Exception):
    """A rank that ended without a word; `exitcode` as of multiprocessing."""

    def __init__(self, rank, exitcode):
        super().__init__(f"rank {rank} ended with {exitcode}")
        self.exitcode = exitcode


def _main(function, rank, size, nccl_id, args, pipe):
    try:
        value = function(rank, size, nccl_id, *args)
    except Exception as error:
        error.text = traceback.format_exc()
        pipe.send((False, error))
        raise SystemExit(1) from None
    pipe.send((True, value))


def run(size, function, *args, how="fork", count=None, nccl_id=None):
    """function(rank, size, nccl_id, *args) on ranks 0 .. count - 1.

    how: fork or spawn; count: `size` unless given; nccl_id: a new one."""
    context = multiprocessing.get_context(how)
    nccl_id = nccl_id or NcclIdHolder()
    outcomes = {}
    waiting = {}
    processes = []
    for rank in range(size if count is None else count):
        own, other = context.Pipe(duplex=False)
        process = context.Process(
            target=_main, args=(function, rank, size, nccl_id, args, other)
        )
        process.start()
        other.close()
        processes.append(process)
        waiting[own] = rank
    end = time.monotonic() + LIMIT
    try:
        while waiting:
            ready = connection.wait(
                list(waiting), max(end - time.monotonic(), 0)
            )
            if not ready:
                missing = sorted(waiting.values())
                raise AssertionError(f"ranks {missing} hang in {function}")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    outcomes[rank] = pipe.recv()[1]
                except EOFError:
                    processes[rank].join()
                    outcomes[rank] = Lost(rank, processes[rank].exitcode)
        for process in processes:
            process.join(max(end - time.monotonic(), 0))
            if process.exitcode is None:
                raise AssertionError(f"a rank does not end after {function}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [outcomes[rank] for rank in range(len(processes))]


def results(size, function, *args, **how):
    """What each rank returned; raises where one failed."""
    outcomes = run(size, function, *args, **how)
    failures = [
        f"rank {rank}: {getattr(outcome, 'text', outcome)}"
        for rank, outcome in enumerate(outcomes)
        if isinstance(outcome, Exception)
    ]
    if failures:
        raise AssertionError("\n".join(failures))
    return outcomes
