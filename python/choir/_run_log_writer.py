# SPDX-License-Identifier: Apache-2.0
"""Writes the log of a training run: one JSON object a report (docs/logs.md)."""

from __future__ import annotations

import json
import math
import operator
import os
import socket
import sys
import time

import numpy as np

from choir import tensor
from choir._calls import NotCopied, Owner, check, lib
from choir._lib import SpanKind
from choir._run_log import PARTS
from choir._version import __version__


class RunLog(Owner, NotCopied):
    """The log of a training run, of which `python -m choir report` makes a page.

        log = utils.RunLog("run.jsonl", optimizer, m.get_states(), "images")
        for epoch in range(10):
            with log:  # what is timed
                for x, y in loader:
                    m(x, y)
                    log.count(len(y))
            log.write((epoch + 1) * len(loader), epoch=epoch, loss=...)

    Rank 0 writes, to the end of the file with append. path "": nobody does, and all
    that there is are the last round's `seconds`. optimizer: a DistOpt, whose ranks
    all make a log and call its methods, or another one. states: Tensors by name, of
    which each report has the digest. labels: what is counted. run: what else is said
    of the run, such as model, batch, training_samples, evaluation_samples and
    last_step.

    OSError: the file cannot be written.
    """

    _computes = True

    def __init__(
        self,
        path,
        optimizer,
        states: dict,
        labels="samples",
        append=False,
        **run,
    ) -> None:
        self._comm = getattr(optimizer, "communicator", None)
        self._optimizer, self._states = optimizer, states
        self._labels, self._run = labels, run
        self._device = next(iter(states.values())).device
        self._steps = self._count = 0
        self.seconds = 0.0
        self._path = path
        self._writes = self._comm is None or self._comm.global_rank == 0
        if not path:
            return
        self._own(lib.profile_destroy, lib.profile_create, None)
        if self._writes:
            open(path, "a" if append else "w").close()

    def __enter__(self) -> RunLog:
        """A round of steps begins. StateError: another profile runs."""
        self._steps = self._count = 0
        if self._path:
            lib.profile_reset(self.handle)
            check(lib.profile_start(self.handle))
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc) -> None:
        try:
            self._device.Sync()
            self.seconds = time.perf_counter() - self._start
        finally:
            if self._path:
                lib.profile_stop(self.handle)

    def count(self, labels: int) -> None:
        """After each step: how many of them this rank had in it."""
        self._steps += 1
        self._count += labels

    def write(
        self, step: int, *, epoch: int = 0, loss: float, **results
    ) -> None:
        """Reports the round before. Collective.

        step: of the run, so far. loss: the mean over the round's batches; results:
        training_loss (else `loss`), training_accuracy, evaluation_loss and
        evaluation_accuracy, as far as they are known."""
        if not self._path:
            return
        times = self._times()
        if self._comm is not None:
            times = self._comm.all_gather(times, "times of ranks")
        times = times.reshape(-1, 2 + len(PARTS)).tolist()
        if not self._writes:
            return
        seconds, labels = times[0][1], sum(own[0] for own in times)
        report = {
            "epoch": operator.index(epoch),
            "step": operator.index(step),
            "workers": len(times),
            "training_loss": _finite(loss),
            **{name: _finite(value) for name, value in results.items()},
            f"{self._labels}_per_second": labels / seconds,
            "seconds": seconds,
            "digest": f"{tensor.digest(self._states):016x}",
            "steps": self._steps,
            "loss": _finite(loss),
            "ranks": [self._rank(rank, *own) for rank, own in enumerate(times)],
        }
        if self._run is not None:
            report["run"], self._run = self._facts(len(times)), None
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")

    def _times(self) -> np.ndarray:
        """Of this rank: labels, seconds, and the parts of these."""
        totals = lib.profile_totals(self.handle)
        spent = totals.self_seconds
        parts = {
            "compute": spent[SpanKind.OP] + totals.outside_seconds,
            "data": spent[SpanKind.LOADER],
            "wait": spent[SpanKind.WAIT],
            "exchange": spent[SpanKind.COMM],
        }
        own = [self._count, totals.seconds, *(parts[part] for part in PARTS)]
        return np.array(own, np.float64)

    def _rank(self, rank: int, labels: float, seconds: float, *parts) -> dict:
        return {
            "rank": rank,
            self._labels: int(labels),
            "seconds": seconds,
            **{f"{name}_seconds": part for name, part in zip(PARTS, parts)},
        }

    def _facts(self, workers: int) -> dict:
        comm, states = self._comm, self._states.values()
        hosts = [socket.gethostname()]
        if comm is not None:
            hosts = [
                lib.comm_host(comm.handle, rank).decode()
                for rank in range(workers)
            ]
        return {
            "program": os.path.basename(sys.argv[0]),
            "version": __version__,
            "parameters": sum(x.size() for x in states if x.stores_grad),
            "strategy": getattr(self._optimizer, "strategy", "none"),
            "comm": "none" if comm is None else comm.backend,
            "device": self._device.name,
            "threads": self._device.threads,
            **self._run,
            "hosts": hosts,
        }


def _finite(value) -> float | None:
    """JSON has no infinity and no NaN, which a run that diverges has."""
    return float(value) if math.isfinite(value) else None
