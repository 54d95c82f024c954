# SPDX-License-Identifier: Apache-2.0
"""The tables and the picture of docs/strategies.md, from one record of
//bench:slow_network."""

import math
import os
import statistics

from bench.performance_tables import fill, table

ALONE = "alone"
NAMES = {ALONE: "one host alone"}
WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 50, 50
COLOURS = ["#222222", "#c8553d", "#e39c52", "#d6c14a", "#6b5b95", "#4aa3a2"]
COLOURS += ["#7a8793", "#a3b18a", "#3d6fc8", "#1b7f5c", "#0c3b2e"]


def mean_steps(runs):
    """None where a run did not reach the accuracy."""
    if not runs or not all(run["reached"] for run in runs):
        return None
    return statistics.mean(run["steps"] for run in runs)


def mean_seconds(runs):
    if mean_steps(runs) is None:
        return None
    return statistics.mean(run["seconds"] for run in runs)


def rate_text(rate):
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


def bits(rate):
    return float(rate[:-4]) * {"m": 1e6, "g": 1e9}[rate[-4]]


def number(value, digits=0):
    return "-" if value is None else "{:,.{}f}".format(value, digits)


def steps_table(record):
    efforts = record.get("efforts", {})
    alone = mean_steps(efforts.get(ALONE))
    rows = []
    for name, runs in efforts.items():
        steps = mean_steps(runs)
        ratio = steps / alone if steps and alone else None
        each = ", ".join(str(run["steps"]) for run in runs)
        rows.append(
            [NAMES.get(name, name), number(steps), each, number(ratio, 2)]
        )
    return table(["", "steps", "seed by seed", "of one host alone"], rows)


def rate_table(record, rate):
    efforts = record.get("efforts", {})
    rows = []
    for name, row in record["rates"][rate]["steps"].items():
        steps = mean_steps(efforts.get(name))
        ms = row["ms_per_step"]
        predicted = row["predicted_ms"]
        rows.append(
            [
                NAMES.get(name, name),
                number(row["bytes_per_step"]),
                number(ms, 1),
                number(predicted, 1),
                number(row["images_per_second"]),
                number(1e-3 * ms * steps if steps else None, 1),
            ]
        )
    head = ["", "bytes a step", "ms a step", "predicted", "images/s"]
    return table(head + ["seconds to the accuracy"], rows)


def clock_table(record):
    rows = []
    for rate, result in record["rates"].items():
        if "clock" not in result:
            continue
        alone = mean_seconds(result["clock"][ALONE])
        for name, runs in result["clock"].items():
            seconds = mean_seconds(runs)
            ratio = seconds / alone if seconds and alone else None
            each = ", ".join("%.1f" % run["seconds"] for run in runs)
            rows.append(
                [
                    rate_text(rate) + ", " + NAMES.get(name, name),
                    number(seconds, 1),
                    each,
                    number(ratio, 2),
                ]
            )
    return table(["", "seconds", "seed by seed", "of one host alone"], rows)


def curves(record):
    """{name: [(bits/s, seconds)]} for those that reach the accuracy."""
    found = {}
    for name, runs in record.get("efforts", {}).items():
        steps = mean_steps(runs)
        points = [
            (bits(rate), 1e-3 * steps * result["steps"][name]["ms_per_step"])
            for rate, result in record["rates"].items()
            if steps and name in result["steps"]
        ]
        if points:
            found[name] = sorted(points)
    return found


def draw(record):
    """Seconds to the accuracy against bandwidth, both on logarithmic scales."""
    found = curves(record)
    if not found:
        return None
    xs = [x for points in found.values() for x, _ in points]
    ys = [y for points in found.values() for _, y in points]
    low = math.floor(math.log10(min(ys)) * 2) / 2
    high = math.ceil(math.log10(max(ys)) * 2) / 2
    first, last = math.log10(min(xs)), math.log10(max(xs))

    def place(x, y):
        across = (math.log10(x) - first) / max(last - first, 1e-9)
        up = (math.log10(y) - low) / max(high - low, 1e-9)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    items = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
        'viewBox="0 0 %d %d" font-family="sans-serif" fill="#222" '
        'font-size="12">' % (WIDTH, HEIGHT, WIDTH, HEIGHT),
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<text x="16" y="24" font-size="15" font-weight="bold">Seconds to an '
        "accuracy of %g on MNIST: two hosts, by what is between them</text>"
        % record["target"],
    ]
    for tenth in range(round(low * 2), round(high * 2) + 1):
        value = 10 ** (tenth / 2)
        _, y = place(min(xs), value)
        items.append(
            '<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>'
            % (LEFT, y, WIDTH - RIGHT, y)
        )
        items.append(
            '<text x="%d" y="%.1f" text-anchor="end">%.3g s</text>'
            % (LEFT - 8, y + 4, value)
        )
    for rate in record["rates"]:
        x, _ = place(bits(rate), 10**low)
        items.append(
            '<text x="%.1f" y="%d" text-anchor="middle">%s</text>'
            % (x, HEIGHT - BOTTOM + 20, rate_text(rate))
        )
    labels = []
    for i, (name, points) in enumerate(found.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join("%.1f,%.1f" % place(x, y) for x, y in points)
        items.append(
            '<polyline points="%s" fill="none" stroke="%s" '
            'stroke-width="%s"%s/>'
            % (
                path,
                colour,
                "3" if name == ALONE else "2",
                ' stroke-dasharray="6 4"' if name == ALONE else "",
            )
        )
        labels.append((place(*points[-1])[1], NAMES.get(name, name), colour))
    bottom = TOP
    for y, text, colour in sorted(labels):
        bottom = max(y, bottom + 15)
        items.append(
            '<text x="%d" y="%.1f" fill="%s">%s</text>'
            % (WIDTH - RIGHT + 10, bottom + 4, colour, text)
        )
    return "\n".join(items + ["</svg>", ""])


def write(record, docs):
    tables = {}
    if record.get("efforts"):
        tables["efforts"] = steps_table(record)
    for rate in record["rates"]:
        tables[rate] = rate_table(record, rate)
    if any("clock" in result for result in record["rates"].values()):
        tables["clock"] = clock_table(record)
    fill(os.path.join(docs, "strategies.md"), tables)
    picture = draw(record)
    if picture:
        path = os.path.join(docs, "strategies.svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(picture)
