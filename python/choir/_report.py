# SPDX-License-Identifier: Apache-2.0
"""python -m choir report: logs of training runs as one page of HTML.

The page has no script and loads nothing; its charts are SVG whose places are
percentages, so that texts keep their size at any width.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from html import escape

from choir import _run_log
from choir._run_log import PARTS, LogError, Report, Run

# As many as there are colours that differ well, also for colour-blind eyes.
_COLOURS = 8
# More bars than that stand without gaps.
_MAX_GAPS = 60
# Points nearer than that, in percent of the width, have no dots.
_DOT_SPACE = 1.5

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --text: #1c1c1a;
  --muted: #6b6a65; --line: #e2e1dc; --c0: #2a78d6; --c1: #eb6834;
  --c2: #1baf7a; --c3: #eda100; --c4: #e87ba4; --c5: #008300; --c6: #4a3aa7;
  --c7: #e34948; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --text: #f1f0ec;
  --muted: #a3a29b; --line: #383733; --c0: #3987e5; --c1: #d95926;
  --c2: #199e70; --c3: #c98500; --c4: #d55181; --c5: #27a327; --c6: #9085e9;
  --c7: #e66767; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem 1rem 3rem;
  background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { margin-top: 3rem; font-size: 1.25rem; }
h3 { margin: 2rem 0 0; font-size: 1rem; }
p, .legend { margin: .25rem 0; color: var(--muted); font-size: .875rem; }
p.note { padding: .5rem .75rem; border-left: 4px solid var(--c3);
  color: var(--text); }
dl { display: grid; gap: .25rem 1.5rem; margin: .5rem 0;
  grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); }
dt { color: var(--muted); font-size: .75rem; } dd { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .125rem 1rem; color: var(--text); }
.legend i { display: inline-block; width: 1.25rem; height: .75rem;
  margin-right: .375rem; vertical-align: -1px; }
.legend i.box { background: currentColor; }
.legend i.line { height: 0; border-top: 2px solid; vertical-align: 4px; }
.legend i.dashed { border-top-style: dashed; }
.plot { height: 15rem; margin: 1rem 1.25rem 0 0; }
svg { display: block; width: 100%; height: 100%; overflow: visible;
  font-size: .75rem; }
.grid { stroke: var(--line); } text { fill: var(--muted); }
polyline { fill: none; stroke: currentColor; stroke-width: 2;
  vector-effect: non-scaling-stroke; stroke-linejoin: round; }
circle { fill: currentColor; stroke: currentColor; stroke-width: 1.5; }
.dashed polyline { stroke-dasharray: 5 4; }
.dashed circle { fill: var(--page); }
rect { fill: currentColor; shape-rendering: crispEdges; }
.gaps rect { stroke: var(--page); }
.axis { margin: 1.5rem 0 0; text-align: center; font-size: .75rem; }
summary { cursor: pointer; margin: .5rem 0; font-size: .875rem; }
.scroll { overflow: auto; max-height: 30rem; }
table { border-collapse: collapse; font-size: .875rem;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: normal; white-space: normal;
  vertical-align: bottom; position: sticky; top: 0; background: var(--page); }
.text { text-align: left; }
.bar { display: flex; width: 9rem; height: .75rem; margin-top: .25rem; }
.bar i { background: currentColor; }
""" + "".join(
    f".c{i} {{ color: var(--c{i}); }}\n" for i in range(_COLOURS)
)


# ---- Numbers ----


def _text(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _sum(values) -> float:
    return sum(value for value in values if value is not None)


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Round numbers within low to high, about `count`, and their texts."""
    rough = (high - low) / count
    power = math.floor(math.log10(rough))
    step = min(
        (s * 10.0**power for s in (1, 2, 5, 10)), key=lambda s: abs(s - rough)
    )
    first, last = math.ceil(low / step), math.floor(high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [i * step for i in range(first, last + 1)]
    if digits > 6 or max(-low, high) >= 1e7:
        return [(value, f"{value:.3g}") for value in values]
    return [(value, _text(value, digits)) for value in values]


def _limits(values: list[float], from_zero: bool) -> tuple[float, float]:
    low, high = min(values, default=0), max(values, default=1)
    low = min(low, 0) if from_zero else low
    room = (high - low) * 0.05
    if room <= 1e-9 * max(abs(low), abs(high)):  # all are alike
        room = abs(high) * 0.05 or 0.5
    return low if from_zero else low - room, high + room


# ---- Parts of a page ----


def _table(head: list[str], rows: list[list[str]], texts: int = 0) -> str:
    """The first `texts` columns are texts. Cells are HTML."""

    def row(cells: list[str], tag: str) -> str:
        kinds = [
            ' class="text"' if i < texts else "" for i in range(len(cells))
        ]
        return "".join(
            f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells)
        )

    body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{row(head, "th")}'
        f"</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _details(table: str) -> str:
    return f"<details><summary>Numbers</summary>\n{table}</details>\n"


def _legend(names: list[str]) -> str:
    items = "".join(
        f'<span><i class="c{i} box"></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend">{items}</div>\n'


class _Chart:
    """A chart over steps; marks are added, then `html` draws it."""

    def __init__(self, title: str, x: tuple, y: tuple):
        self.title, self.x, self.y = title, x, y
        self.marks: list[str] = []

    def _left(self, x: float) -> float:
        return 100 * (x - self.x[0]) / (self.x[1] - self.x[0])

    def _top(self, y: float) -> float:
        return 100 - 100 * (y - self.y[0]) / (self.y[1] - self.y[0])

    def add_line(self, points: list[tuple], style: str, name: str) -> None:
        """A line, with dots where they have room; None as y is a gap."""
        pieces: list[list[tuple]] = [[]]
        for x, y in points:
            if y is None:
                pieces.append([])
            else:
                pieces[-1].append((x, y))
        span = self._left(points[-1][0]) - self._left(points[0][0])
        has_room = span >= _DOT_SPACE * (len(points) - 1)
        lines, dots = "", ""
        for piece in pieces:
            places = [(self._left(x), self._top(y)) for x, y in piece]
            joined = " ".join(f"{left:.2f},{top:.2f}" for left, top in places)
            lines += f'<polyline points="{joined}"/>' if piece else ""
            for (x, y), (left, top) in zip(piece, places):
                if has_room or len(piece) == 1:
                    dots += (
                        f'<circle cx="{left:.2f}%" cy="{top:.2f}%" r="3"><title>'
                        f"{escape(name)}, step {x:,}: {_loss(y)}</title></circle>"
                    )
        self.marks.append(
            f'<g class="{style}"><svg viewBox="0 0 100 100" '
            f'preserveAspectRatio="none">{lines}</svg>{dots}</g>\n'
        )

    def add_bars(self, spans: list[tuple], stacks: list[list[float]]) -> None:
        """A bar over each span of steps, its parts stacked."""
        gaps = "gaps" if len(spans) <= _MAX_GAPS else ""
        for part in range(max(map(len, stacks), default=0)):
            bars = []
            for (begin, end), stack in zip(spans, stacks):
                if part >= len(stack):
                    continue
                left, top = self._left(begin), self._top(sum(stack[: part + 1]))
                width = self._left(end) - left
                height = self._top(sum(stack[:part])) - top
                bars.append(
                    f'<rect x="{left:.2f}%" y="{top:.2f}%" '
                    f'width="{width:.2f}%" height="{height:.2f}%"/>'
                )
            self.marks.append(
                f'<g class="c{part % _COLOURS} {gaps}">{"".join(bars)}</g>\n'
            )

    def html(self) -> str:
        grid = []
        ticks = _ticks(*self.y, 4)
        for value, label in ticks:
            top = f"{self._top(value):.2f}%"
            grid.append(
                f'<line class="grid" x1="0" x2="100%" y1="{top}" y2="{top}"/>'
                f'<text x="-6" y="{top}" dy=".32em" text-anchor="end">{label}'
                "</text>"
            )
        for value, label in _ticks(*self.x, 5):
            if value % 1:
                continue  # of a run of few steps
            grid.append(
                f'<text x="{self._left(value):.2f}%" y="100%" dy="1.4em" '
                f'text-anchor="middle">{label}</text>'
            )
        room = max((len(label) for _, label in ticks), default=1) * 0.55 + 0.5
        return (
            f'<div class="plot" style="margin-left: {room:.2f}rem"><svg '
            f'role="img" aria-label="{escape(self.title)}">\n'
            f"{''.join(grid)}\n{''.join(self.marks)}</svg></div>\n"
            '<p class="axis">training step</p>\n'
        )


# ---- Sections ----


def _steps(runs: list[Run]) -> tuple[int, int]:
    """Those that the runs' reports are about."""
    firsts = [run.reports[0].step - run.reports[0].steps for run in runs]
    lasts = [run.reports[-1].step for run in runs]
    return min(firsts), max(max(lasts), min(firsts) + 1)


def _losses(runs: list[Run], names: list[str]) -> str:
    kinds = {"training": "training_loss", "validation": "validation_loss"}
    values = [
        getattr(report, kind)
        for run in runs
        for report in run.reports
        for kind in kinds.values()
    ]
    known = [value for value in values if value is not None]
    chart = _Chart(
        "Loss over training steps", _steps(runs), _limits(known, False)
    )
    rows = []
    for i, (run, name) in enumerate(zip(runs, names)):
        for kind, key in kinds.items():
            points = [(r.step, getattr(r, key)) for r in run.reports]
            style = f"c{i} dashed" if kind == "validation" else f"c{i}"
            chart.add_line(points, style, f"{name}, {kind}")
        for r in run.reports:
            rows.append(
                [
                    escape(name),
                    *(_text(r.step), _text(r.epoch)),
                    *(_loss(r.training_loss), _loss(r.validation_loss)),
                    *(_loss(r.training_accuracy), _loss(r.validation_accuracy)),
                ]
            )
    head = ["run", "step", "epoch", "training loss", "validation loss"]
    head += ["training accuracy", "validation accuracy"]
    kinds_legend = (
        '<div class="legend"><span><i class="line"></i>training</span>'
        '<span><i class="line dashed"></i>validation</span></div>\n'
    )
    return (
        "<h2>Loss</h2>\n"
        + _legend(names)
        + kinds_legend
        + chart.html()
        + _details(_table(head, rows, texts=1))
    )


def _spans(run: Run) -> list[tuple[int, int]]:
    return [(report.step - report.steps, report.step) for report in run.reports]


def _split(report: Report) -> list[float]:
    """Milliseconds of a step in PARTS, the mean of the ranks."""
    count = len(report.ranks) * report.steps
    return [
        1e3 * _sum(rank.parts[i] for rank in report.ranks) / count
        if count
        else 0
        for i in range(len(PARTS))
    ]


def _step_time(run: Run) -> str:
    splits = [_split(report) for report in run.reports]
    limits = _limits([sum(split) for split in splits], True)
    chart = _Chart("Milliseconds of a training step", _steps([run]), limits)
    chart.add_bars(_spans(run), splits)
    rows = [
        [_text(r.step), _text(r.steps), *(_text(x, 3) for x in [sum(s), *s])]
        for r, s in zip(run.reports, splits)
    ]
    head = ["up to step", "steps", "ms of a step", *PARTS]
    return (
        "<h3>Time of a step</h3>\n<p>Milliseconds, mean of the ranks, from one "
        "report to the next.</p>\n"
        + _legend(list(PARTS))
        + chart.html()
        + _details(_table(head, rows))
    )


def _rates(report: Report) -> list[float | None]:
    return [_ratio(rank.labels, rank.seconds) for rank in report.ranks]


def _throughput(run: Run) -> str:
    labels = escape(run.labels)
    ranks = max(len(report.ranks) for report in run.reports)
    # More could not be told apart: the table has them.
    by_rank = 0 < ranks <= _COLOURS
    stacks = [
        [rate or 0 for rate in _rates(r)] if by_rank else [r.per_second or 0]
        for r in run.reports
    ]
    limits = _limits([sum(stack) for stack in stacks], True)
    chart = _Chart(f"{run.labels} per second", _steps([run]), limits)
    chart.add_bars(_spans(run), stacks)
    names = [f"rank {r}" for r in range(ranks)]
    rows = [
        [_text(r.step), _text(r.per_second), *map(_text, _rates(r))]
        for r in run.reports
    ]
    return f"<h3>Throughput</h3>\n<p>In {labels} per second; the height is that of all " "ranks together.</p>\n" + (
        _legend(names) if by_rank else ""
    ) + chart.html() + _details(
        _table(["up to step", "all ranks", *names], rows)
    )


def _bar(parts: list[float], whole: float) -> str:
    pieces = "".join(
        f'<i class="c{i}" style="width: {100 * part / whole:.2f}%"></i>'
        for i, part in enumerate(parts)
        if whole
    )
    return f'<span class="bar">{pieces}</span>'


def _rank_table(run: Run) -> str:
    count = max(len(report.ranks) for report in run.reports)
    sums = []
    for r in range(count):
        own = [
            report.ranks[r] for report in run.reports if r < len(report.ranks)
        ]
        parts = [_sum(rank.parts[i] for rank in own) for i in range(len(PARTS))]
        sums.append((_sum(rank.labels for rank in own), parts))
    longest = max((sum(parts) for _, parts in sums), default=0)
    rows = []
    for r, (labels, parts) in enumerate(sums):
        host = run.hosts[r] if r < len(run.hosts) else "?"
        rates = _ratio(labels, sum(parts)), _ratio(labels, parts[0])
        numbers = [sum(parts), *parts]
        rows.append(
            [f"{r}", _bar(parts, longest), escape(host), _text(labels)]
            + [*map(_text, rates), *(_text(x, 2) for x in numbers)]
        )
    all_labels = _sum(labels for labels, _ in sums)
    all_parts = [sum(parts[i] for _, parts in sums) for i in range(len(PARTS))]
    rows.append(
        ["all", "", "", _text(all_labels), "", ""]
        + [_text(x, 2) for x in [sum(all_parts), *all_parts]]
    )
    labels = escape(run.labels)
    head = ["rank", "where its time went", "host", labels, f"{labels}/s"]
    head += [f"{labels}/s while computing", "seconds", *PARTS]
    return (
        "<h3>Ranks and hosts</h3>\n<p>Sums over the run, in seconds. Ranks wait "
        "for the slowest: the one that waits least, and whose rate while "
        "computing is low, holds up the others.</p>\n" + _table(head, rows, 3)
    )


def _facts(run: Run) -> str:
    last = run.reports[-1]
    facts = {
        key.replace("_", " "): value if isinstance(value, str) else f"{value:,}"
        for key, value in run.facts.items()
    }
    facts["workers"] = _text(last.workers)
    facts["steps done"] = _text(last.step)
    known = [r for r in run.reports if r.validation_loss is not None]
    if known:
        best = min(known, key=lambda r: r.validation_loss)
        text = f"{_loss(best.validation_loss)} at step {_text(best.step)}"
        facts["lowest validation loss"] = text
    items = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>\n"
        for key, value in facts.items()
    )
    return f"<dl>\n{items}</dl>\n"


def _notes(run: Run) -> list[str]:
    notes = list(run.notes)
    lost = sum(r.training_loss is None for r in run.reports)
    if lost:
        notes.append(
            f"{lost} of {len(run.reports)} reports have no training loss that is "
            "a finite number."
        )
    if not any(r.ranks for r in run.reports):
        notes.append("The log does not say where the time went.")
    return notes


def _run_section(run: Run, name: str) -> str:
    notes = "".join(f'<p class="note">{escape(n)}</p>\n' for n in _notes(run))
    html = f"<h2>{escape(name)}</h2>\n<p>{escape(run.path)}</p>\n{notes}"
    html += _facts(run)
    if any(report.ranks for report in run.reports):
        html += _step_time(run) + _rank_table(run)
    return html + _throughput(run)


def page(runs: list[Run], names: list[str]) -> str:
    """The whole HTML page."""
    title = escape("Training: " + ", ".join(names))
    sections = "".join(map(_run_section, runs, names))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{_losses(runs, names)}{sections}</body>\n</html>\n"
    )


# ---- TensorBoard ----


def _scalars(report: Report) -> dict[str, float | None]:
    scalars = {
        "loss/training": report.training_loss,
        "loss/validation": report.validation_loss,
        "accuracy/training": report.training_accuracy,
        "accuracy/validation": report.validation_accuracy,
        "throughput/all": report.per_second,
    }
    for r, rate in enumerate(_rates(report)):
        scalars[f"throughput/rank {r}"] = rate
    if report.ranks:
        for part, milliseconds in zip(PARTS, _split(report)):
            scalars[f"step/{part} ms"] = milliseconds
    return scalars


def _write_events(runs: list[Run], names: list[str], folder: str) -> None:
    """A folder of TensorBoard's event files for each run."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise LogError(
            f"--tensorboard needs TensorBoard: pip install tensorboard ({error})"
        ) from error
    for run, name in zip(runs, names):
        # A path in DIR, whatever the log is called.
        own = name.replace(os.sep, "_").lstrip(".") or "run"
        place = os.path.join(folder, own)
        try:
            os.makedirs(place, exist_ok=True)
        except OSError as error:
            raise LogError(f"cannot make {place}: {error.strerror}") from error
        writer = Writer(place)
        for report in run.reports:
            for tag, value in _scalars(report).items():
                if value is not None:
                    writer.add_scalar(tag, value, report.step)
        writer.close()


# ---- The command ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m choir report",
        description="Writes a page with the curves and timings of training runs, "
        "of what the examples' --log-json wrote.",
    )
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="one for each run"
    )
    parser.add_argument(
        "-o",
        "--output",
        default="report.html",
        metavar="FILE",
        help="the page (report.html)",
    )
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write event files for TensorBoard too, a folder in DIR for each run",
    )
    return parser


def _names(paths: list[str]) -> list[str]:
    """Short ones, if these tell the runs apart."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return stems if len(set(stems)) == len(stems) else paths


def _write(path: str, text: str) -> None:
    try:
        # Half of a surrogate pair, which JSON may have, is no UTF-8.
        with open(
            path, "w", encoding="utf-8", errors="xmlcharrefreplace"
        ) as file:
            file.write(text)
    except OSError as error:
        raise LogError(f"cannot write {path}: {error.strerror}") from error


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 for a log that cannot be read, 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    paths = [os.path.realpath(path) for path in options.logs]
    if len(set(paths)) < len(paths):
        parser.error("a log is given twice")
    if len(paths) > _COLOURS:
        parser.error(f"{len(paths)} logs; a page has {_COLOURS} or fewer")
    if os.path.realpath(options.output) in paths:
        parser.error(f"-o {options.output} is one of the logs")
    try:
        runs = [_run_log.read(path) for path in options.logs]
        names = _names(options.logs)
        if options.tensorboard is not None:
            _write_events(runs, names, options.tensorboard)
        _write(options.output, page(runs, names))
    except LogError as error:
        print(f"choir: {error}", file=sys.stderr)
        return 1
    return 0
