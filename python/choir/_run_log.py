# SPDX-License-Identifier: Apache-2.0
"""Reads the log of a training run: one JSON object a report (docs/logs.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

# What a rank's time is split into, in the log's order: the key is <part>_seconds.
PARTS = ("compute", "data", "wait", "exchange")
# Beyond all that is measured; sums and ratios of smaller numbers stay finite.
_LIMIT = 1e100
# Of the programs' --steps.
_MAX_STEP = 10**12


class LogError(Exception):
    """One sentence that names file and line."""


@dataclass
class Rank:
    """One rank, from one report to the next. None: the log does not say."""

    labels: float | None
    seconds: float | None
    parts: list[float | None]  # seconds, of PARTS


@dataclass
class Report:
    step: int
    steps: int  # since the report before
    epoch: float | None
    workers: float | None
    training_loss: float | None
    validation_loss: float | None
    training_accuracy: float | None
    validation_accuracy: float | None
    per_second: float | None  # labels of all ranks
    seconds: float | None
    ranks: list[Rank]


@dataclass
class Run:
    path: str
    reports: list[Report] = field(default_factory=list)
    labels: str = "samples"  # what is counted: images, tokens
    facts: dict = field(default_factory=dict)  # texts and numbers of its "run"
    hosts: list[str] = field(default_factory=list)  # of ranks
    notes: list[str] = field(default_factory=list)  # sentences for the reader


def _number(entry: dict, key: str) -> float | None:
    """None where it is missing, null (not finite), or no number."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not -_LIMIT < value < _LIMIT:
        return None
    # 0 of its type, as a step is a whole number.
    return value if abs(value) > 1 / _LIMIT else 0 * abs(value)


def _amount(entry: dict, key: str) -> float | None:
    value = _number(entry, key)
    return value if value is not None and value >= 0 else None


def _step(entry: dict, key: str) -> int | None:
    value = _number(entry, key)
    return value if isinstance(value, int) and 0 <= value <= _MAX_STEP else None


def _rank(entry: dict, labels: str) -> Rank:
    parts = [_amount(entry, f"{part}_seconds") for part in PARTS]
    return Rank(_amount(entry, labels), _amount(entry, "seconds"), parts)


def _report(entry: dict, run: Run) -> Report:
    before = run.reports[-1].step if run.reports else 0
    step = entry["step"]
    loss = "loss" if "loss" in entry else "training_loss"
    ranks = entry.get("ranks")
    ranks = ranks if isinstance(ranks, list) else []
    steps = _step(entry, "steps")
    return Report(
        step=step,
        steps=min(steps, step - before) if steps else step - before,
        epoch=_number(entry, "epoch"),
        workers=_number(entry, "workers"),
        training_loss=_number(entry, loss),
        validation_loss=_number(entry, "evaluation_loss"),
        training_accuracy=_number(entry, "training_accuracy"),
        validation_accuracy=_number(entry, "evaluation_accuracy"),
        per_second=_amount(entry, f"{run.labels}_per_second"),
        seconds=_amount(entry, "seconds"),
        ranks=[_rank(r, run.labels) for r in ranks if isinstance(r, dict)],
    )


def _note_run(entry: dict, run: Run) -> None:
    """Takes what the first report of a process says about it."""
    for key in entry:
        if key.endswith("_per_second"):
            run.labels = key.removesuffix("_per_second")
    facts = entry.get("run")
    if not isinstance(facts, dict):
        return
    hosts = facts.get("hosts")
    hosts = hosts if isinstance(hosts, list) else []
    run.hosts = [host for host in hosts if isinstance(host, str)]
    run.facts = {
        key: value
        for key, value in facts.items()
        if isinstance(value, str) or _number(facts, key) is not None
    }


def _add(entry: dict, run: Run) -> None:
    _note_run(entry, run)
    overtaken = 0
    # A killed run that goes on from a checkpoint does some steps once more.
    while run.reports and run.reports[-1].step >= entry["step"]:
        run.reports.pop()
        overtaken += 1
    if overtaken:
        run.notes.append(
            f"The run went on from a checkpoint before step {entry['step']}: "
            f"{overtaken} earlier report(s) of the same steps are left out."
        )
    run.reports.append(_report(entry, run))


def read(path: str) -> Run:
    """The run that `path` is the log of. LogError: one sentence."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    run = Run(path)
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not line.endswith("\n"):
                run.notes.append(
                    f"Line {number} of the log is cut off, as of a run that was "
                    "killed: what is here was read up to it."
                )
                break
            raise LogError(f"{path}, line {number}: not JSON ({error})")
        if not isinstance(entry, dict) or _step(entry, "step") is None:
            raise LogError(
                f"{path}, line {number}: no report of a training run, which is "
                'an object with a "step"'
            )
        _add(entry, run)
    if not run.reports:
        raise LogError(f"{path}: no report in it yet")
    return run
