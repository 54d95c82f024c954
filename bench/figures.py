# SPDX-License-Identifier: Apache-2.0
"""Takes every figure of docs/performance.md anew: one command, one evening.

usage: bazel run //bench:figures -- [--machine NAME] [--rounds N] [--seconds S]
                                    [--only NAME,...] [--skip-runs]
                                    [--torch-python FILE] [--torch-newest FOLDER]

Runs limits, //bench:train in several settings, //bench:ops and
//bench:collectives one after the other, some twelve minutes on an idle machine, and
writes bench/results/NAME.json for each, the tables in docs/performance.md (between
their marks) and the picture docs/performance.svg. --machine avx2: those of another
machine, in bench/results/NAME_avx2.json and docs/performance_avx2.*. --only: these
runs, the others' files stay; --skip-runs: tables and picture from the files that are there.
"""

import argparse
import os
import subprocess
import sys
import time

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure, performance_plot, performance_tables  # noqa: E402

BENCH = os.path.join(measure.ROOT, "bench")

# What shows who is ahead; the first run has more.
FEW = ["choir_graph", "torch_channels_last"]
FEW += ["torch_newest_channels_last", "torch_newest_compiled"]
CNN = FEW + ["onednn"]
TWO = ["choir2_graph", "meeting2_graph", "independent2_graph"]
ALL = (
    ["choir"]
    + CNN
    + ["torch_nchw", "torch_traced", "torch_avx512", "torch2_ddp"]
)
ALL += ["torch_newest2_ddp", *TWO]
WIDE = FEW + ["torch_avx512", "torch2_ddp", *TWO]


def train(*flags, only=()):
    jobs = ["--only", ",".join(only)] if only else []
    return ["train.py", *flags, *jobs]


RUNS = {
    "limits": ["limits", "--json", "true"],
    "train_cnn": train(only=ALL),
    "train_cnn_2_threads": train("--threads", "2", only=CNN),
    "train_cnn_batch_256": train("--batch", "256", only=CNN),
    "train_cnn_forward": train(
        "--forward-only",
        only=CNN + ["torch_traced", "torch_newest_traced"],
    ),
    "train_mlp": train("--net", "mlp", only=WIDE),
    "train_resnet20": train("--net", "resnet20", only=WIDE),
    "ops_cnn": ["ops.py", "--seconds", "0.05"],
    "ops_mlp": ["ops.py", "--net", "mlp", "--seconds", "0.05"],
    "ops_resnet20": ["ops.py", "--net", "resnet20", "--seconds", "0.05"],
    "collectives": ["collectives.py", "--rounds", "3", "--top-k"],
}


def run(name, path, options):
    program, *flags = RUNS[name]
    program = os.path.join(BENCH, program)
    if not program.endswith(".py"):
        output = subprocess.run(
            [program, *flags], stdout=subprocess.PIPE, check=True
        ).stdout
        with open(path, "wb") as file:
            file.write(output)
        return
    command = [sys.executable, program, *flags, "--json", path]
    if "train.py" in program:
        command += ["--rounds", str(options.rounds)]
        command += ["--seconds", str(options.seconds)]
    if "collectives" not in program:
        command += ["--torch-python", options.torch_python]
        if options.torch_newest:
            command += ["--torch-newest", options.torch_newest]
    subprocess.run(command, check=True)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="figures", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--machine", help="whose page, by its file's name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", help="of: " + ", ".join(RUNS))
    parser.add_argument("--skip-runs", action="store_true")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--torch-newest", help="else $CHOIR_TORCH_NEWEST")
    options = parser.parse_args(argv)
    options.only = options.only.split(",") if options.only else list(RUNS)
    for name in options.only:
        if name not in RUNS:
            parser.error(
                "--only: no run '%s'; there are %s" % (name, ", ".join(RUNS))
            )
    if options.skip_runs:
        options.only = []
    return options


def main(argv):
    options = parse(argv)
    # Of the sources, not of Bazel's copies.
    # $BUILD_WORKSPACE_DIRECTORY: the tree in which bazel run was called; pages
    # and results are written there. Not set: the script's tree.
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY", measure.ROOT)
    suffix = "_" + options.machine if options.machine else ""
    page = os.path.join(root, "docs", "performance" + suffix)
    if not os.path.exists(page + ".md"):
        print("figures: no page %s.md" % page, file=sys.stderr)
        return 2
    folder = os.path.join(root, "bench", "results")
    os.makedirs(folder, exist_ok=True)
    results = os.path.join(folder, "%s" + suffix + ".json")
    for name in options.only:
        start = time.monotonic()
        try:
            run(name, results % name, options)
        except (OSError, subprocess.CalledProcessError) as error:
            print("figures: %s: %s" % (name, error), file=sys.stderr)
            return 1
        seconds = time.monotonic() - start
        print("figures: %s took %.0f s" % (name, seconds), file=sys.stderr)
    performance_tables.write(results, page + ".md")
    performance_plot.write(results, page + ".svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
