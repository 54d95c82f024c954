# SPDX-License-Identifier: Apache-2.0
"""What one training batch goes through: files and lines that run.

    python3 tools/executed_lines.py [BAZEL OPTION]...

Builds //bench:train_step with gcov, trains the MNIST CNN for a few eager steps on one
thread and prints, for each layer and together, the files of the libraries with an
executed line and the lines of the functions that ran in them.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ("core", "tensor", "autograd", "model", "opt", "onnx", "io", "dist")
BUILD = (
    "--spawn_strategy=local",
    "--platform_suffix=gcov",
    "--copt=--coverage",
    "--copt=-O0",
    "--linkopt=--coverage",
)
STEPS = (
    *("--net", "mnist_cnn", "--batch", "64", "--threads", "1"),
    *("--steps", "4", "--warmup", "1", "--graph", "false"),
)


def bazel(*arguments):
    return subprocess.run(
        ["bazel", *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


def functions_that_ran(gcda, source_root):
    """(file, first line, last line) of each function that ran."""
    with tempfile.TemporaryDirectory() as folder:
        output = subprocess.run(
            ["gcov", "--json-format", "--stdout", str(gcda)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            text=True,
        ).stdout
    for line in output.splitlines():
        for one in json.loads(line)["files"]:
            path = os.path.relpath(
                os.path.join(source_root, one["file"]), source_root
            )
            if path.split("/")[0] not in LAYERS:
                continue
            for function in one["functions"]:
                if function["execution_count"] > 0:
                    yield path, function["start_line"], function["end_line"]


def main():
    options = [*sys.argv[1:]]
    bazel("build", *BUILD, *options, "//bench:train_step")
    folder = pathlib.Path(bazel("info", *BUILD, *options, "bazel-bin"))
    execution_root = bazel("info", *BUILD, *options, "execution_root")
    for old in folder.rglob("*.gcda"):
        old.unlink()
    subprocess.run(
        [folder / "bench" / "train_step", *STEPS], check=True, cwd=ROOT
    )
    lines = collections.defaultdict(set)
    for gcda in folder.rglob("*.gcda"):
        for path, first, last in functions_that_ran(gcda, execution_root):
            lines[path].update(range(first, last + 1))
    for layer in LAYERS:
        inside = [path for path in lines if path.startswith(layer + "/")]
        count = sum(len(lines[path]) for path in inside)
        print(f"{layer:9} {len(inside):4} files {count:6} lines")
    count = sum(map(len, lines.values()))
    print(f"{'together':9} {len(lines):4} files {count:6} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
