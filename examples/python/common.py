# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: flags, MNIST as NumPy arrays, processes."""

import argparse
import multiprocessing
import os
import sys

import numpy as np

from choir import data, device

_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
MNIST = os.path.join(_DATA, "mnist")
SHAKESPEARE = os.path.join(_DATA, "shakespeare", "tiny_shakespeare.txt.gz")
# Flags that are paths.
_PATHS = "data", "image", "log_json", "model", "onnx", "tokenizer", "weights"


def parse(
    description, workers=False, dist_option=True, log_json=False, onnx=False
):
    """The flags, as the C examples have them."""
    parser = argparse.ArgumentParser(description=description)
    if workers:
        parser.add_argument(
            "workers",
            nargs="?",
            type=int,
            default=2,
            help="processes on this host; 2",
        )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--batch-size", type=int, default=64, help="of each worker"
    )
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=int, default=0, help="training images; all"
    )
    parser.add_argument("--data", help="folder with MNIST's four files")
    if log_json:
        parser.add_argument(
            "--log-json", default="", help="file for a line of JSON an epoch"
        )
    if onnx:
        parser.add_argument(
            "--onnx", default="", help="ONNX file for the trained model"
        )
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto"
    )
    if dist_option:
        parser.add_argument("--dist-option", default="fp32")
        parser.add_argument("--spars", type=float, default=0.05)
        parser.add_argument(
            "--no-graph", action="store_true", help="run eagerly"
        )
    options = parser.parse_args()
    if workers and options.workers < 1:
        parser.error(f"workers is {options.workers}; 1 or more are needed")
    if options.epochs < 0 or options.batch_size < 1:
        parser.error("--epochs must not be below 0, --batch-size not below 1")
    options.data = users_path(options.data)
    if log_json:
        options.log_json = users_path(options.log_json)
    if onnx:
        options.onnx = users_path(options.onnx)
        folder = os.path.dirname(options.onnx) or "."
        if not os.path.isdir(folder):
            parser.error(f"--onnx: there is no folder {folder}")
    return options


def parse_flags(description, **defaults):
    """Flags by their defaults, whose types they have, and `device`. A type in the
    place of a default: the flag has to be given."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in {**defaults, "device": "auto"}.items():
        more = {"type": type(default), "default": default, "help": str(default)}
        if isinstance(default, type):
            more = {"type": default, "required": True}
        elif isinstance(default, bool):  # --name, --no-name
            more["action"] = argparse.BooleanOptionalAction
            del more["type"]
        parser.add_argument(f"--{name.replace('_', '-')}", **more)
    options = parser.parse_args()
    for name, value in vars(options).items():
        least = 1 if name in ("workers", "batch_size") else 0
        if isinstance(value, int) and value < least:
            parser.error(f"{name} is {value}; {least} or more are needed")
        if name in _PATHS:
            setattr(options, name, users_path(value))
    return options


def users_path(path):
    """Under `bazel run` paths count from where the user is. None and "" stay."""
    folder = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    return path and os.path.join(folder, path)


def open_device(options, local_rank):
    """--device auto: a GPU where there is one, else the CPU."""
    use_gpu = options.device == "cuda" or (
        options.device == "auto" and device.get_num_gpus() > 0
    )
    if use_gpu:
        return device.create_cuda_gpu_on(local_rank)
    return device.create_cpu_device()


def open_text(options):
    """--data as tokens: byte pairs of the --tokenizer, without one characters."""
    if not options.tokenizer:
        return data.Tokens.text(options.data)
    names = ("vocab.json", "merges.txt")
    files = [os.path.join(options.tokenizer, name) for name in names]
    return data.Tokens.byte_pairs(options.data, *files)


def load_mnist(options):
    """(train_x, train_y, test_x, test_y): pixels 0 to 1, (n, 1, 28, 28)."""
    folder = options.data or MNIST
    arrays = []
    for split in ("train", "test"):
        limit = options.limit if split == "train" else 0
        x, y = data.mnist(folder, split, limit).arrays()
        arrays += [x.astype(np.float32) / 255, y.copy()]
    return arrays


def partition(x, y, rank, size):
    """The part of one of `size` workers: as many samples for each."""
    count = len(x) // size
    return (
        x[rank * count : (rank + 1) * count],
        y[rank * count : (rank + 1) * count],
    )


def run_workers(target, options):
    """Starts options.workers processes and ends with the worst exit status."""
    from choir import singa_wrap

    nccl_id = singa_wrap.NcclIdHolder()
    workers = [
        multiprocessing.Process(target=target, args=(rank, nccl_id, options))
        for rank in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
            worker.join()
        sys.exit(130)
    sys.exit(max(1 if worker.exitcode else 0 for worker in workers))
