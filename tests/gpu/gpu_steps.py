# SPDX-License-Identifier: Apache-2.0
"""The steps of a run on a GPU machine, in order: what matters most comes first, as
time may run out."""

import dataclasses

# Kinds of steps, by what is read from their output.
SUITE = "suite"  # GoogleTest's lines
PROGRAM = "program"  # the last lines
OPS = "ops"  # bench_ops --json
TRAIN = "train"  # the file that bench/train.py --json wrote


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    kind: str
    # Words in braces are filled in: {python}, {torch_python}, {out}.
    command: tuple
    limit: float  # seconds
    # Suites skip each line with the device's own reason; other steps are
    # skipped as a whole where there is no GPU.
    needs_gpu: bool = True


def _suite(name, program, tests, limit):
    command = (program, "--gtest_filter=" + tests)
    return Step(name, SUITE, command, limit, needs_gpu=False)


def _sanitized(tool, limit):
    command = ("sh", "tests/gpu/sanitize.sh", tool)
    command += ("tests/conformance/op_suite_others", "--gtest_filter=*/cuda_*")
    return Step("op_suite under " + tool, SUITE, command, limit)


def _example(name, *flags):
    command = ("examples/" + name, "--device", "cuda", "--epochs", "2", *flags)
    narrow = "".join(f", {flag}" for flag in flags if flag in ("bf16", "f16"))
    return Step("examples/" + name + narrow, PROGRAM, command, 120)


def _train(net, batch, *flags, limit=300):
    command = ("{python}", "bench/train.py", "--device", "cuda", "--net", net)
    command += ("--batch", str(batch), "--rounds", "3", "--seconds", "1")
    command += ("--keep-going", "--torch-python", "{torch_python}", *flags)
    name = "train %s, batch %d" % (net, batch)
    name += "".join(", " + flag.strip("-") for flag in flags)
    return Step(name, TRAIN, (*command, "--json", "{out}/{file}.json"), limit)


def _ops(net):
    command = ("bench/bench_ops", "--device", "cuda", "--net", net)
    command += ("--seconds", "0.05", "--json")
    return Step("ops of " + net, OPS, command, 120)


# Its compiled form has some 160 layers to compile, both ways.
RESNET50_LIMIT = 420

# The communicators that need GPUs.
_GPU_COMMS = "*/nccl_*"

STEPS = (
    _suite("cuda_driver_test", "tests/core/cuda_driver_test", "*", 30),
    _suite("gpu_parts_test", "tests/tensor/gpu_parts_test", "*.Kernels*", 30),
    _suite("device_suite", "tests/conformance/device_suite", "*/cuda*", 120),
    _suite("op_suite", "tests/conformance/op_suite_others", "*/cuda_*", 300),
    _suite(
        "grad_suite",
        "tests/conformance/grad_suite_others",
        "*/GradSuite.*/cuda_*",
        300,
    ),
    _suite("layer_suite", "tests/conformance/layer_suite", "*/cuda_*", 120),
    _suite(
        "optimizer_suite", "tests/conformance/optimizer_suite", "*/cuda_*", 120
    ),
    _suite("model_graph", "tests/model/model_graph_test", "*/cuda", 120),
    _suite(
        "comm_suite", "tests/conformance/comm_suite_others", _GPU_COMMS, 180
    ),
    _suite(
        "strategy_suite",
        "tests/conformance/strategy_suite_others",
        _GPU_COMMS,
        180,
    ),
    _suite(
        "compress_gpu_test", "tests/dist/compress_gpu_test", "*/machine", 60
    ),
    _suite("resnet50_test", "tests/examples/resnet50_test", "*/cuda", 120),
    Step(
        "Python package",
        PROGRAM,
        ("{python}", "tests/gpu/python_on_device.py", "--device", "cuda"),
        60,
    ),
    _example("mnist", "--limit", "12800"),
    _example("mlp", "--workers", "1", "--limit", "12800"),
    _example("cifar", "--workers", "1", "--limit", "2560"),
    _train("mnist_cnn", 64),
    _train("mnist_cnn", 1024),
    _train("resnet20", 128),
    _train("resnet50", 32, limit=RESNET50_LIMIT),
    _example("mnist", "--limit", "12800", "--precision", "bf16"),
    _example("mnist", "--limit", "12800", "--precision", "f16"),
    _train("mnist_cnn", 1024, "--bf16"),
    _train("resnet20", 128, "--bf16"),
    _train("resnet50", 32, "--bf16", limit=RESNET50_LIMIT),
    _sanitized("memcheck", 300),
    _sanitized("racecheck", 300),
    _ops("mnist_cnn"),
    _ops("mlp"),
    _ops("resnet20"),
)
