# SPDX-License-Identifier: Apache-2.0
"""python -m choir compare: where two runs part, by their traces of digests
(core/trace.h)."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Iterator

_FORMAT = "choir-trace"
_VERSION = "1"
_COLUMNS = 10


class _Mistake(Exception):
    """What cannot be compared; one sentence."""


@dataclass
class _Line:
    step: int
    record: int
    op: str
    label: str
    operand: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    magnitude: float  # the sum of absolute values
    sums: list[str]

    def is_like(self, other: _Line, detail: str) -> bool:
        """Whether both are of the same place in the program."""
        same = (
            self.step == other.step
            and self.label == other.label
            and self.operand == other.operand
            and self.dtype == other.dtype
            and self.shape == other.shape
        )
        # Two versions of a program may have other ops in a layer.
        if detail != "tensor":
            return same
        return same and (self.op, self.record) == (other.op, other.record)

    def name(self) -> str:
        return f"{self.op} of {self.label}" if self.label else self.op

    def tensor(self) -> str:
        inside = ", ".join(map(str, self.shape))
        comma = "," if len(self.shape) == 1 else ""
        return f"{self.dtype} ({inside}{comma})"

    def place(self) -> str:
        what = f", {self.operand}, {self.tensor()}" if self.operand else ""
        return f"step {self.step}, record {self.record}: {self.name()}{what}"


class _Trace:
    """A trace's lines, read as they are needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 1
        self.is_cut = False  # it ends within a line
        self._file: BinaryIO | None = None
        try:
            self._file = open(path, "rb")
            self._take_facts(self._file.readline())
        except OSError as error:
            self.close()
            raise self._unread(error) from None
        except _Mistake:
            self.close()
            raise

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _unread(self, error: OSError) -> _Mistake:
        return _Mistake(f"cannot read {self.path}: {error.strerror or error}")

    def _take_facts(self, first: bytes) -> None:
        path = self.path
        words = first.decode(errors="replace").rstrip("\n").split("\t")
        if words[0] != _FORMAT or len(words) < 5:
            raise _Mistake(
                f"{path} is "
                + ("empty" if not first else "no trace of digests")
                + "; a run with --trace-digests writes one"
            )
        if words[1] != _VERSION:
            raise _Mistake(
                f"{path} has format {words[1]}; this version of Choir reads "
                f"{_VERSION}"
            )
        self.facts = words[2:4]  # version and device
        self.detail = words[4].partition(" ")[2]

    def lines(self) -> Iterator[bytes]:
        try:
            for line in self._file:
                if not line.endswith(b"\n"):
                    self.is_cut = True
                    return
                self.number += 1
                yield line
        except OSError as error:
            raise self._unread(error) from None

    def parse(self, line: bytes) -> _Line:
        words = line.decode(errors="replace").rstrip("\n").split("\t")
        try:
            if len(words) != _COLUMNS:
                raise ValueError
            shape = tuple(int(size) for size in words[6].split(",") if size)
            sums = words[9].split()
            for text in sums:
                float(text)
            return _Line(
                int(words[0]),
                int(words[1]),
                *words[2:6],
                shape,
                words[7],
                float(words[8] or 0),
                sums,
            )
        except ValueError:
            raise _Mistake(
                f"{self.path}: line {self.number} is no line of a trace"
            ) from None


# ---- Two values ----


def _difference(a: str, b: str) -> float:
    if a == b:
        return 0.0
    size = abs(float(b) - float(a))
    return math.inf if math.isnan(size) else size


def _relative(a: _Line, b: _Line) -> float:
    """The largest difference of two pieces' sums, by the magnitude that a piece
    has on average: sums themselves may cancel."""
    worst = max(map(_difference, a.sums, b.sums), default=0.0)
    scale = max(a.magnitude, b.magnitude) / max(len(a.sums), 1)
    if worst == 0:
        return 0.0
    is_measured = math.isfinite(worst) and math.isfinite(scale) and scale > 0
    return worst / scale if is_measured else math.inf


def _index(shape: tuple[int, ...], element: int) -> str:
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, element % size)
        element //= size
    return "[" + ", ".join(map(str, index)) + "]"


def _values(a: _Line, b: _Line) -> str:
    """Where in an operand the two differ, and by how much."""
    pieces = len(a.sums)
    worst, differ = 0, 0
    for i in range(pieces):
        differ += a.sums[i] != b.sums[i]
        here = _difference(a.sums[i], b.sums[i])
        if here > _difference(a.sums[worst], b.sums[worst]):
            worst = i
    if not differ:
        return (
            "All sums are equal: what differs does not change them (the sign "
            "of a zero, differences that cancel, another result of a layer's op)."
        )
    count = math.prod(a.shape)
    begin, end = count * worst // pieces, count * (worst + 1) // pieces
    if end - begin == 1:
        what, place = "element", f"element {_index(a.shape, begin)}"
    else:
        what = "piece"
        place = f"the sum of elements {begin} to {end - 1} of {count}"
    size = _difference(a.sums[worst], b.sums[worst])
    return (
        f"{differ} of {pieces} {what}s differ{'s' if differ == 1 else ''}, by "
        f"{_relative(a, b):.2g} of the mean magnitude at most: {place}: A "
        f"{a.sums[worst]}, B {b.sums[worst]}, difference {size:.9g}."
    )


# ---- Two runs ----


@dataclass
class _Result:
    """Of one rank."""

    steps: int = 0
    records: int = 0
    passed: int = 0  # operands that differ by no more than the tolerance
    largest: float = 0.0  # of these
    largest_at: str = ""
    where: tuple[int, int] | None = None  # step and record; None: equal
    text: str = ""


class _Comparison:
    def __init__(self, a: _Trace, b: _Trace, tolerance: float) -> None:
        self.a, self.b = a, b
        self.tolerance = tolerance
        self.result = _Result()

    def run(self) -> _Result:
        ours, theirs = self.a.lines(), self.b.lines()
        last = (None, None)
        result = self.result
        while True:
            line_a, line_b = next(ours, None), next(theirs, None)
            if line_a is None or line_b is None:
                if line_a is not line_b:
                    self._end(line_a, line_b, last)
                return result
            if line_a != line_b and not self._passes(line_a, line_b):
                return result
            place = tuple(line_a.split(b"\t", 2)[:2])
            if place != last:
                result.records += 1
                result.steps += place[0] != last[0]
            last = place

    def _part(self, line: _Line, text: str) -> None:
        self.result.where = (line.step, line.record)
        self.result.text = text

    def _passes(self, line_a: bytes, line_b: bytes) -> bool:
        a, b = self.a.parse(line_a), self.b.parse(line_b)
        if not a.is_like(b, self.a.detail):
            hint = (
                " Of two versions of a program compare traces of detail layer "
                "or step."
                if self.a.detail == "tensor"
                else ""
            )
            self._part(
                min(a, b, key=lambda line: (line.step, line.record)),
                "The programs are not the same from here on: A has "
                f"{a.place()}; B has {b.place()}.{hint}",
            )
            return False
        if a.digest == b.digest:
            return True
        by = _relative(a, b)
        if self.tolerance > 0 and by <= self.tolerance:
            self.result.passed += 1
            if by >= self.result.largest:
                self.result.largest = by
                self.result.largest_at = a.place()
            return True
        self._part(a, f"{self._where(a)}\n{_values(a, b)}")
        return False

    def _where(self, line: _Line) -> str:
        """What the first difference means."""
        text = f"The runs part at {line.place()}."
        kind = line.operand.partition(" ")[0]
        equal = "within the tolerance" if self.result.passed else "equal"
        if self.a.detail == "step":
            return text + " Trace with detail layer or tensor to see where."
        if self.a.detail == "layer":
            return (
                f"{text} Everything before it is {equal}. Trace with detail "
                "tensor to see the op."
            )
        if kind in ("source", "before"):
            return (
                f"{text} It differs before the op reads it, and all results so "
                f"far are {equal}: a batch, the host or something else that is "
                "no record wrote it."
            )
        return (
            f"{text} All that was read is {equal}: it is this op that made "
            "something else."
        )

    def _end(self, line_a, line_b, last) -> None:
        shorter, letter = (self.a, "A") if line_a is None else (self.b, "B")
        longer = self.b if line_a is None else self.a
        line = longer.parse(line_a or line_b)
        how = "is cut off" if shorter.is_cut else "ends"
        after = (
            f"after step {int(last[0])}, record {int(last[1])}"
            if last[0]
            else "before the first record"
        )
        self._part(line, f"{letter} {how} {after}; the other goes on.")


def _ranks(path: str) -> int:
    rank = 1
    while os.path.exists(f"{path}.{rank}"):
        rank += 1
    return rank


def _compare_files(
    path_a: str, path_b: str, tolerance: float, tells_facts: bool
) -> _Result:
    with closing(_Trace(path_a)) as a, closing(_Trace(path_b)) as b:
        if a.detail != b.detail:
            raise _Mistake(
                f"{path_a} has detail {a.detail} and {path_b} detail "
                f"{b.detail}; two of one detail can be compared"
            )
        if tells_facts and a.facts != b.facts:
            print(f"A: {', '.join(a.facts)}. B: {', '.join(b.facts)}.")
        return _Comparison(a, b, tolerance).run()


def _compare(options: argparse.Namespace) -> int:
    ranks = _ranks(options.a), _ranks(options.b)
    both = min(ranks)
    results = []
    for rank in range(both):
        tail = f".{rank}" if rank else ""
        results.append(
            _compare_files(
                options.a + tail,
                options.b + tail,
                options.tolerance,
                rank == 0,
            )
        )
    if ranks[0] != ranks[1]:
        print(
            f"A has {ranks[0]} ranks and B {ranks[1]}: the first {both} are "
            "compared."
        )
    passed = sum(result.passed for result in results)
    if passed:
        worst = max(results, key=lambda result: result.largest)
        print(
            f"Passed over: {passed} operands with other digests, at most "
            f"{worst.largest:.2g} of the mean magnitude ({worst.largest_at})."
        )
    parted = [r for r in range(both) if results[r].where]
    of_ranks = f" of each of {both} ranks" if both > 1 else ""
    if not parted:
        print(
            f"Equal{' within the tolerance' if passed else ''}: "
            f"{results[0].steps} steps, {results[0].records} "
            f"records{of_ranks}."
        )
        return 0
    first = min(parted, key=lambda rank: (results[rank].where, rank))
    result = results[first]
    if both > 1:
        print(f"Rank {first} of {both} is the first.")
    print(result.text)
    print(f"Equal before: {result.records} records in {result.steps} steps.")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m choir compare",
        description="Names the first step, op and tensor where two runs part, "
        "by what they wrote with --trace-digests. Files of further ranks (A.1, "
        "B.1, ...) are compared too. Exit status: 0 equal, 1 not, 2 for a file "
        "that cannot be read or wrong usage.",
    )
    parser.add_argument("a", metavar="A", help="the trace of one run")
    parser.add_argument("b", metavar="B", help="that of the other")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="R",
        help="pass over operands of which no piece's sum differs by more than R "
        "times the mean magnitude of a piece: for other machines, which round "
        "otherwise",
    )
    return parser


def main(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.tolerance >= 0:
        parser.error(f"--tolerance is {options.tolerance}; 0 or more is needed")
    try:
        return _compare(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except _Mistake as error:
        print(f"choir: {error}", file=sys.stderr)
        return 2
