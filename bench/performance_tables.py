# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance.md, from bench/results/*.json.

A table stands between <!-- table NAME --> and <!-- end of table -->; what is
between them is replaced. A table whose file is missing stays as it is.
"""

import json
import re
import statistics

from bench import measure
from bench.train_jobs import JOBS

NETS = {"mnist_cnn": "MNIST CNN", "mlp": "MLP", "resnet20": "ResNet-20"}

# File: what the tables call it.
SETTINGS = {
    "train_cnn": "MNIST CNN, batch 64",
    "train_cnn_2_threads": "MNIST CNN, batch 64, 2 threads",
    "train_cnn_batch_256": "MNIST CNN, batch 256",
    "train_cnn_forward": "MNIST CNN, batch 64, forward only",
    "train_mlp": "MLP, batch 128",
    "train_resnet20": "ResNet-20, batch 128",
}


def load(results, name):
    """The record of one run, or None. `results` is a path with %s for the name."""
    try:
        with open(results % name, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def table(head, rows):
    """Markdown; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("| --- |" + " ---: |" * (len(head) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def us_text(us):
    return "%.0f" % us if us >= 100 else "%.1f" % us


# ---- Limits ----


def rates_table(limits):
    sizes = [size["bytes"] for size in limits["rates"][0]["bandwidth"]]
    names = [
        "%.0f MiB" % (b / 2**20)
        if b >= 2**20
        else "%.0f KiB" % (b / 2**10)
        for b in sizes
    ]
    head = ["threads", "multiply-adds", "sgemm"]
    head += ["%s" % name for name in names]
    rows = []
    for rates in limits["rates"]:
        row = [str(rates["threads"])]
        row += ["%.0f" % rates["fma_gflops"], "%.0f" % rates["sgemm_gflops"]]
        row += [
            "%.0f, %.0f" % (size["read"], size["triad"])
            for size in rates["bandwidth"]
        ]
        rows.append(row)
    return table(head, rows)


def limits_table(limits):
    rows = []
    for net in limits["nets"]:
        outside = 1 - net["kernels_us"] / net["step_us"]
        rows.append(
            [
                "%s, batch %d" % (NETS[net["net"]], net["batch"]),
                "%.2f" % net["gflop"],
                "%.0f" % net["mb"],
                *("%.2f" % (1e-3 * net[key + "_limit_us"]) for key in LIMITS),
                "%.2f" % (1e-3 * net["limit_us"]),
                "%.2f" % (1e-3 * net["step_us"]),
                "%.0f %%" % (100 * net["limit_us"] / net["step_us"]),
                "%.1f %%" % (100 * outside),
            ]
        )
    head = ["one thread", "GFLOP", "MB", "flops limit, ms", "bytes limit, ms"]
    head += ["limit, ms", "step, ms", "reached", "outside kernels"]
    return table(head, rows)


LIMITS = ("flops", "bytes")


def memory_table(limits):
    rows = []
    for net in limits["nets"]:
        live, arena = net["live_bytes"], net["arena_bytes"]
        rows.append(
            [
                "%s, batch %d" % (NETS[net["net"]], net["batch"]),
                str(net["records"]),
                str(net["fused"]),
                "%.2f" % (1e-6 * live),
                "%.2f" % (1e-6 * arena),
                "%.2f" % (1e-6 * net["temporary_bytes"]),
                "%.3f" % (arena / live if live else 0),
            ]
        )
    head = ["planned step", "records", "fused away", "alive at once, MB"]
    head += ["arena, MB", "all, MB", "arena / alive"]
    return table(head, rows)


def step_table(limits, name):
    """Where the time of a step goes: what takes 0.7 % of it, and the rest."""
    net = next(net for net in limits["nets"] if net["net"] == name)
    step = net["step_us"]
    rows, rest, rest_limit = [], step - net["kernels_us"], 0
    for op in net["ops"]:
        if op["us"] < 0.007 * step:
            rest += op["us"]
            rest_limit += op["limit_us"]
            continue
        gflops = 1e3 * op["mflop"] / op["us"]
        rows.append(
            [
                "`%s` %s" % (op["kernel"], op["shapes"].replace(";", "; ")),
                "%.0f" % op["a_step"],
                us_text(op["us"]),
                "%.1f %%" % (100 * op["us"] / step),
                us_text(op["limit_us"]),
                "%.0f %%" % (100 * op["limit_us"] / op["us"]),
                "%.0f" % gflops if gflops >= 1 else "",
                "%.0f" % (1e3 * op["mb"] / op["us"]),
            ]
        )
    share = "%.1f %%" % (100 * rest / step)
    row = ["all others, and what is around the kernels", "", us_text(rest)]
    rows.append(row + [share, us_text(rest_limit), "", "", ""])
    row = ["**step**", "", us_text(step), "", us_text(net["limit_us"])]
    reached = "%.0f %%" % (100 * net["limit_us"] / step)
    rows.append(row + [reached, "", ""])
    head = ["kernel and shapes", "a step", "µs", "share", "limit, µs"]
    return table(head + ["reached", "GFLOP/s", "GB/s"], rows)


# ---- Training ----


def speeds_table(runs):
    rows = []
    for name, job in JOBS.items():
        cells = []
        for record in runs.values():
            results = record["results"].get(name)
            speeds = [r["images_per_second"] for r in results or ()]
            cells.append(measure.spread(speeds, 0) if speeds else "")
        if any(cells):
            rows.append([job.text, *cells])
    return table(["images/s", *(SETTINGS[name] for name in runs)], rows)


def ratios_table(runs):
    rows = []
    for name, record in runs.items():
        for ratio in record["ratios"]:
            if not ratio["values"]:
                continue
            pair = "%s / %s" % (ratio["over"], ratio["under"])
            rows.append(
                [
                    SETTINGS[name],
                    "`%s`" % pair,
                    measure.spread(ratio["values"], 2),
                    ratio["wanted"].replace(">= ", "≥ "),
                ]
            )
    head = ["setting", "ratio within a round", "median (range)", "wanted"]
    lines = table(head, rows).splitlines()
    lines[1] = "| --- | --- | ---: | ---: |"
    return "\n".join(lines)


def resident_table(runs):
    rows = []
    for job in ("choir", "choir_graph", "choir2", "choir2_graph"):
        cells = []
        for record in runs.values():
            values = [r["rss_mb"] for r in record["results"].get(job, ())]
            cells.append("%.0f" % statistics.median(values) if values else "")
        rows.append([JOBS[job].text, *cells])
    head = ["resident MB without the data set"]
    return table(head + [SETTINGS[name] for name in runs], rows)


# ---- Ops and collectives ----


def ops_table(ops):
    """Sums of each op over its shapes, as often as they come in a step."""
    head = ["op, all its shapes in a step"]
    rows = {}
    for column, record in enumerate(ops.values()):
        head += [NETS[record["net"]] + ", µs", "Debian's PyTorch", "newest"]
        sums = {}
        for case in record["rows"]:
            for who, us in case["us"].items():
                own = sums.setdefault(case["op"], {})
                us = statistics.median(us) * case["a_step"]
                own[who] = own.get(who, 0) + us
        sums["sum"] = record["step_us"]
        for op, us in sums.items():
            cells = rows.setdefault(op, [""] * (3 * len(ops)))
            cells[3 * column] = us_text(us["choir"])
            for index, peer in enumerate(("torch", "torch_newest")):
                if peer in us:
                    text = "× %.2f" % (us[peer] / us["choir"])
                    cells[3 * column + 1 + index] = text
    rows["sum"] = rows.pop("sum")
    return table(head, [[op, *cells] for op, cells in rows.items()])


def collectives_table(record):
    texts = {"choir": "Choir, shm", "open_mpi": "Open MPI, in place"}
    texts.update({"choir_tcp": "Choir, tcp", "open_mpi_tcp": "Open MPI, tcp"})
    texts.update({"gloo_ring": "Gloo, ring", "gloo_bcube": "Gloo, bcube"})
    times = {}
    for row in record["rows"]:
        key = (row["ranks"], row["bytes"], row["job"])
        times.setdefault(key, []).append((row["round"], row["median_us"]))
    jobs = [job for job in texts if any(key[2] == job for key in times)]
    rows = []
    for ranks, size in sorted({key[:2] for key in times}):
        cells = ["%d ranks, %d bytes" % (ranks, size)]
        for job in jobs:
            own = "choir_tcp" if job == "open_mpi_tcp" else "choir"
            own = dict(times.get((ranks, size, own), ()))
            theirs = times.get((ranks, size, job), [])
            values = [us for _, us in theirs]
            if not values:
                cells.append("")
                continue
            cell = measure.spread(values, 1)
            ratios = [us / own[turn] for turn, us in theirs if turn in own]
            if job not in ("choir", "choir_tcp") and ratios:
                cell += " × %.1f" % statistics.median(ratios)
            cells.append(cell)
        rows.append(cells)
    return table(["µs", *(texts[job] for job in jobs)], rows)


def top_k_table(record):
    rows = []
    for line in record["top_k"]:
        ratio = (line["ratio"], line["least_ratio"], line["most_ratio"])
        rows.append(
            [
                "%d elements" % line["count"],
                us_text(line["top_k_us"]),
                us_text(line["read_pass_us"]),
                "%.2f (%.2f..%.2f)" % ratio,
                "≤ %g" % line["wanted"],
            ]
        )
    head = ["largest 1 %, exact", "µs", "one read pass, µs", "ratio", "wanted"]
    return table(head, rows)


# ---- The page ----


def conditions(records):
    """Machine and how idle it was."""
    machine = next(r["machine"] for r in records if "machine" in r)
    others = [r["others_cores"] for r in records if "others_cores" in r]
    lines = [
        "%s; other programs took %.2f cores or less" % (machine, max(others))
    ]
    rounds = [r["rounds"] for r in records if "seconds" in r]
    if rounds:
        lines.append("training: %d round(s) or more" % min(rounds))
    versions = {}
    for record in records:
        for results in record.get("results", {}).values():
            for result in results:
                if result.get("name") == "torch":
                    versions[result["version"]] = result["capability"]
    for version, capability in sorted(versions.items()):
        lines.append("PyTorch %s (%s)" % (version, capability))
    return "; ".join(lines) + "."


def write(results, page):
    """Puts the tables that the results make into the page."""
    runs = {name: load(results, name) for name in SETTINGS}
    runs = {name: record for name, record in runs.items() if record}
    ops = {
        name: load(results, "ops_" + name)
        for name in ("cnn", "mlp", "resnet20")
    }
    ops = {name: record for name, record in ops.items() if record}
    limits = load(results, "limits")
    collectives = load(results, "collectives")
    tables = {}
    if runs:
        tables["conditions"] = conditions([*runs.values(), *ops.values()])
        tables["speeds"] = speeds_table(runs)
        tables["ratios"] = ratios_table(runs)
        tables["resident"] = resident_table(runs)
    if ops:
        tables["ops"] = ops_table(ops)
    if limits:
        tables["rates"] = rates_table(limits)
        tables["limits"] = limits_table(limits)
        tables["memory"] = memory_table(limits)
        for net in NETS:
            tables["step " + net] = step_table(limits, net)
    if collectives:
        tables["collectives"] = collectives_table(collectives)
        if collectives.get("top_k"):
            tables["top_k"] = top_k_table(collectives)
    fill(page, tables)


def fill(page, tables):
    """Puts tables between their marks in a page."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for name, lines in tables.items():
        mark = "<!-- table %s -->\n" % name
        pattern = re.escape(mark) + ".*?(?=<!-- end of table -->)"
        text, count = re.subn(
            pattern, lambda _: mark + "\n" + lines + "\n\n", text, flags=re.S
        )
        if count != 1:
            raise ValueError("%s: %d marks of table %s" % (page, count, name))
    with open(page, "w", encoding="utf-8") as file:
        file.write(text)
