# SPDX-License-Identifier: Apache-2.0
"""The report of a run on a GPU machine, as JSON and as a page."""

import collections
import json
import os
import sys

from bench import measure
from bench.train_jobs import JOBS


def step_line(step):
    """One step in one line."""
    note = step["note"].splitlines()
    return "%-32s %-11s %7.1f s  %s" % (
        step["name"],
        step["state"],
        step["seconds"],
        _counts(step) or (note[0] if note else ""),
    )


def _counts(step):
    if "passed" not in step:
        return ""
    counts = (step["passed"], len(step["failed"]), step["skipped"])
    return "%d passed, %d failed, %d skipped" % counts if any(counts) else ""


def _row(*cells):
    return "| %s |" % " | ".join(str(c).replace("|", "\\|") for c in cells)


def _table(head, rows):
    return [_row(*head), _row(*["---"] * len(head)), *[_row(*r) for r in rows]]


def _machine(record):
    choir = record["choir"]
    rows = list(record["machine"].items())
    if "error" in choir:
        rows.append(("Choir", "does not load: " + choir["error"]))
        return _table(("what", "this machine"), rows)
    build = "%s, sha256 of the library %s"
    rows.append(("Choir", build % (choir["version"], choir["digest"][:12])))
    rows.append(("driver", choir["driver"]))
    rows.append(("device cuda", choir["devices"]["cuda"]))
    for i, gpu in enumerate(choir["gpus"]):
        rows.append(("GPU %d" % i, gpu))
    rows += choir["parts"]
    return _table(("what", "this machine"), rows)


def _steps(record):
    rows = []
    for step in record["steps"]:
        note = step["note"].splitlines()
        counts = [step.get("passed", ""), "", step.get("skipped", "")]
        if "failed" in step:
            counts[1] = len(step["failed"])
        name = step["name"]
        rows.append(
            (name, step["state"], *counts, step["seconds"], "".join(note[:1]))
        )
    head = ("step", "result", "passed", "failed", "skipped", "s", "")
    return _table(head, rows)


def _skips(record):
    """Why tests were skipped, all suites together."""
    reasons = collections.Counter()
    for step in record["steps"]:
        reasons.update(step.get("reasons", {}))
    if not reasons:
        return []
    rows = [(count, reason) for reason, count in reasons.most_common()]
    return ["", "## Skipped tests", "", *_table(("tests", "reason"), rows)]


def _failures(record):
    lines = []
    for step in record["steps"]:
        if step["state"] != "failed":
            continue
        lines += ["", "### " + step["name"], ""]
        for failed in step.get("failed", []):
            lines += ["    " + failed["name"]]
            lines += ["      " + t for t in failed["message"].splitlines()]
        if not step.get("failed"):
            lines += ["    " + text for text in step["note"].splitlines()]
    return ["", "## Failures", *lines] if lines else []


def _train(step):
    train = step["train"]
    rows = []
    for name, results in train["results"].items():
        speeds = [result["images_per_second"] for result in results]
        value = train["missing"].get(name) or measure.spread(speeds, 0)
        fallbacks = [r["host_fallbacks"] for r in results if "name" in r
                     and "host_fallbacks" in r]  # fmt: skip
        note = "ops on the host: %d" % fallbacks[0] if fallbacks else ""
        rows.append((JOBS[name].text, value, note))
    text = "%s, batch %d, %s, images/s: median of %d rounds (range)"
    dtype = "bf16" if train["bf16"] else "f32"
    head = (train["net"], train["batch"], dtype, train["rounds"])
    lines = ["", text % head, ""]
    lines += _table(("who", "images/s", ""), rows)
    for ratio in train["ratios"]:
        if ratio["values"]:
            value = measure.spread(ratio["values"], 2)
            lines += ["", "%s: %s" % (ratio["text"], value)]
    return lines


def _ops(step):
    rows = []
    for op in step["ops"]:
        time = "%.2f ± %.2f" % (op["median_us"], op["spread_us"])
        cells = (op["op"], op["shapes"], op["attrs"], op["kernel"])
        rows.append((*cells, op["a_step"], time))
    head = ("op", "shapes", "attributes", "kernel", "a step", "µs")
    return ["", step["name"], "", *_table(head, rows)]


def _figures(record):
    lines = []
    for step in record["steps"]:
        if step.get("train"):
            lines += _train(step)
        elif step.get("ops"):
            lines += _ops(step)
        elif step.get("said") and step["state"] in ("passed", "stopped"):
            lines += ["", step["name"] + ":", ""]
            lines += ["    " + text for text in step["said"]]
    return ["", "## Figures", *lines] if lines else []


def title(record):
    gpus = record["choir"].get("gpus")
    name = gpus[0].split(",")[0] if gpus else "a machine without a GPU"
    return "Choir on " + name


def summary(record):
    states = collections.Counter(step["state"] for step in record["steps"])
    text = ", ".join("%d %s" % (n, s) for s, n in states.items())
    seconds = sum(step["seconds"] for step in record["steps"])
    text = "%d steps: %s; %.0f s." % (len(record["steps"]), text, seconds)
    if record["interrupted"]:
        text += " Interrupted by %s." % record["interrupted"]
    return text


def page(record):
    lines = ["# " + title(record), ""]
    lines += ["%s. %s" % (record["when"], summary(record)), ""]
    lines += _machine(record) + ["", "## Steps", ""] + _steps(record)
    lines += _failures(record) + _skips(record) + _figures(record)
    return "\n".join(lines) + "\n"


def without_paths(text, folder):
    """The text without where things lie on this machine: reports are kept."""
    bundle = os.path.abspath(__file__)
    for _ in range(3):
        bundle = os.path.dirname(bundle)
    names = {folder: "report", bundle: "choir_gpu_bundle"}
    if sys.prefix != "/usr":
        names[sys.prefix] = "python"
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def write(folder, record):
    """report.json and report.md, each whole at every moment."""
    for name, text in (
        ("report.json", json.dumps(record, indent=1) + "\n"),
        ("report.md", page(record)),
    ):
        path = os.path.join(folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(without_paths(text, folder))
        os.replace(path + ".new", path)
