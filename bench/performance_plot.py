# SPDX-License-Identifier: Apache-2.0
"""The picture of docs/performance.md, from bench/results/*.json: SVG written by
hand, so that nothing has to be installed."""

import statistics

from bench.performance_tables import NETS, SETTINGS, load
from bench.train_jobs import JOBS

WIDTH, LEFT, RIGHT = 860, 250, 150
BAR, GAP = 14, 3
COLOURS = {
    "choir": "#1b7f5c",
    "torch": "#c8553d",
    "torch_newest": "#e39c52",
    "onednn": "#7a8793",
}
TEXTS = {
    "choir": "Choir",
    "torch": "Debian's PyTorch, best",
    "torch_newest": "newest PyTorch, best",
    "onednn": "bare oneDNN loop",
}
# Beginning of a kernel's name: what the step's time is summed up by.
KINDS = {
    "conv": ("convolutions", "#1b7f5c"),
    "linear": ("matrix products", "#4aa3a2"),
    "matmul": ("matrix products", "#4aa3a2"),
    "batch_norm": ("normalisation", "#c8553d"),
    "max_pool": ("pooling", "#e39c52"),
    "avg_pool": ("pooling", "#e39c52"),
    "sgd": ("update", "#6b5b95"),
}
OTHER = ("other kernels", "#a3b18a")
AROUND = ("around the kernels", "#333333")


class Picture:
    """Collects elements from top to bottom."""

    def __init__(self):
        self.items = []
        self.y = 0

    def text(self, x, y, text, anchor="start", size=12, weight="normal"):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.items.append(
            '<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" '
            'font-weight="%s">%s</text>' % (x, y, anchor, size, weight, text)
        )

    def bar(self, x, width, colour):
        self.items.append(
            '<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>'
            % (x, self.y, max(width, 0.5), BAR, colour)
        )

    def line(self, x, top, bottom):
        self.items.append(
            '<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#999" '
            'stroke-dasharray="3 3"/>' % (x, top, x, bottom)
        )

    def legend(self, entries):
        x = LEFT
        for text, colour in entries:
            if x + 7 * len(text) > WIDTH:
                x, self.y = LEFT, self.y + BAR + 6
            self.bar(x, 12, colour)
            self.text(x + 16, self.y + 11, text)
            x += 28 + 7 * len(text)
        self.y += BAR + 12

    def svg(self):
        head = (
            '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" '
            'viewBox="0 0 %d %.0f" font-family="sans-serif" fill="#222">'
            % (WIDTH, self.y, WIDTH, self.y)
        )
        ground = '<rect width="100%" height="100%" fill="#fff"/>'
        return "\n".join([head, ground, *self.items, "</svg>", ""])


def best_speeds(record):
    """{peer: images/s of its quickest one-process job}."""
    best = {}
    for name, results in record["results"].items():
        job = JOBS[name]
        if not results or job.workers > 1 or job.copies > 1:
            continue
        speed = statistics.median(r["images_per_second"] for r in results)
        best[job.peer] = max(best.get(job.peer, 0), speed)
    return best


def draw_speeds(picture, runs):
    picture.y += 24
    title = "Images per second, as multiples of Debian's PyTorch at its best"
    picture.text(16, picture.y, title, size=15, weight="bold")
    picture.y += 14
    picture.legend([(TEXTS[peer], COLOURS[peer]) for peer in COLOURS])
    speeds = {name: best_speeds(record) for name, record in runs.items()}
    speeds = {name: best for name, best in speeds.items() if "torch" in best}
    most = max(
        (
            speed / best["torch"]
            for best in speeds.values()
            for speed in best.values()
        ),
        default=1,
    )
    scale = (WIDTH - LEFT - RIGHT) / most
    top = picture.y
    for name, best in speeds.items():
        shown = [peer for peer in COLOURS if peer in best]
        middle = picture.y + len(shown) * (BAR + GAP) / 2 + 3
        picture.text(LEFT - 10, middle, SETTINGS[name], anchor="end")
        for peer in shown:
            ratio = best[peer] / best["torch"]
            picture.bar(LEFT, scale * ratio, COLOURS[peer])
            text = "%.2f (%.0f/s)" % (ratio, best[peer])
            picture.text(
                LEFT + scale * ratio + 5, picture.y + 11, text, size=11
            )
            picture.y += BAR + GAP
        picture.y += 10
    picture.line(LEFT + scale, top, picture.y - 10)


def kinds_of(net):
    """[(text, colour, us)] of a step, largest first, around the kernels last."""
    sums = {}
    for op in net["ops"]:
        kind = OTHER
        for start, its in KINDS.items():
            if op["kernel"].startswith(start):
                kind = its
        sums[kind] = sums.get(kind, 0) + op["us"]
    rows = sorted(sums.items(), key=lambda item: -item[1])
    rows.append((AROUND, net["step_us"] - net["kernels_us"]))
    return [(*kind, us) for kind, us in rows]


def draw_steps(picture, limits):
    picture.y += 28
    title = "Where a training step goes, one thread; below: its limit here"
    picture.text(16, picture.y, title, size=15, weight="bold")
    picture.y += 14
    entries = dict(KINDS.values())
    picture.legend([*entries.items(), OTHER, AROUND])
    scale = WIDTH - LEFT - RIGHT
    for net in limits["nets"]:
        label = "%s, batch %d" % (NETS[net["net"]], net["batch"])
        picture.text(LEFT - 10, picture.y + BAR + 5, label, anchor="end")
        x = LEFT
        for _, colour, us in kinds_of(net):
            width = scale * us / net["step_us"]
            picture.bar(x, width, colour)
            x += width
        text = "%.2f ms" % (1e-3 * net["step_us"])
        picture.text(x + 5, picture.y + 11, text, size=11)
        picture.y += BAR + GAP
        reached = net["limit_us"] / net["step_us"]
        picture.bar(LEFT, scale * reached, "#d0d5da")
        text = "%.2f ms: %.0f %%" % (1e-3 * net["limit_us"], 100 * reached)
        picture.text(LEFT + scale * reached + 5, picture.y + 11, text, size=11)
        picture.y += BAR + 12


def write(results, path):
    runs = {name: load(results, name) for name in SETTINGS}
    limits = load(results, "limits")
    picture = Picture()
    runs = {name: record for name, record in runs.items() if record}
    if runs:
        draw_speeds(picture, runs)
    if limits:
        draw_steps(picture, limits)
    picture.y += 8
    with open(path, "w", encoding="utf-8") as file:
        file.write(picture.svg())
