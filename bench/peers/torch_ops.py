# SPDX-License-Identifier: Apache-2.0
"""Single ops in PyTorch, for //bench:ops.

usage: torch_ops.py [--threads N] [--seconds S] < CASES

CASES: a JSON array of {"op", "shapes", "attrs", "dtype"} as bench_ops prints them. Prints
one JSON line: {"version", "results": one for each case, the median time or null
where PyTorch has no such op}. Exits with 3 and {"missing": ...} where PyTorch is
not installed.

Each op is the one that PyTorch's own training step would call, backward passes
too; images are channels-last, weights as PyTorch's layers keep them, results made
anew as always.
"""

import argparse
import json
import statistics
import sys
import time

import torch_train

MAX_SAMPLES = 400


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.1)
    options = parser.parse_args(argv)
    # What torch_train.environment() asks for.
    options.net, options.config, options.workers = "mlp", "", 1
    options.forward_only = False
    return options


DTYPES = {
    "f32": lambda torch: torch.float32,
    "f16": lambda torch: torch.float16,
    "bf16": lambda torch: torch.bfloat16,
}


def read_case(torch, case):
    """Returns the operands and the attributes, numbers by name."""
    torch.manual_seed(0)
    operands = []
    for shape in case["shapes"].split(";"):
        shape = [int(size) for size in shape.split(",")]
        if "cross_entropy" in case["op"] and len(operands) == 1:
            operands.append(torch.randint(0, 10, shape))
            continue
        if "gather" in case["op"] and len(operands) == 1:
            operands.append(torch.randint(0, len(operands[0]), shape))
            continue
        if case["op"] == "where" and not operands:
            operands.append(torch.rand(shape) < 0.5)
            continue
        operand = torch.randn(shape).to(DTYPES[case["dtype"]](torch))
        if len(shape) == 4 and "attention" not in case["op"]:
            operand = operand.to(memory_format=torch.channels_last)
        operands.append(operand)
    attrs = dict(item.split("=") for item in case["attrs"].split())
    return operands, attrs


def pair(attrs, name, default):
    return [int(attrs.get(name, default))] * 2


# ---- What PyTorch calls: a function of operands and attributes that returns
# ---- one without arguments


def conv2d(torch, x, w, b, **attrs):
    stride, padding = pair(attrs, "stride", 1), pair(attrs, "padding", 0)
    if attrs.get("activation") == "relu":
        return lambda: torch.conv2d(x, w, b, stride, padding).relu_()
    return lambda: torch.conv2d(x, w, b, stride, padding)


def conv2d_backward(torch, x, w, dy, wanted, attrs):
    stride, padding = pair(attrs, "stride", 1), pair(attrs, "padding", 0)
    rest = ([w.shape[0]], stride, padding, [1, 1], False, [0, 0], 1, wanted)
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, *rest)


def conv2d_grad_data(torch, x, w, dy, **attrs):
    return conv2d_backward(torch, x, w, dy, [True, False, False], attrs)


def conv2d_grad_weight(torch, x, w, dy, **attrs):
    return conv2d_backward(torch, x, w, dy, [False, True, True], attrs)


def linear(torch, x, w, b):
    w = w.t().contiguous()  # (out, in)
    return lambda: torch.nn.functional.linear(x, w, b)


def matmul(torch, a, b, transpose_a="0", transpose_b="0"):
    """The gradients of linear: of the weights (out, in), of the data."""
    if transpose_a == "1":
        return lambda: b.t().mm(a)
    if transpose_b == "1":
        b = b.t().contiguous()  # as the layer has them
    return lambda: a.mm(b)


def relu(torch, x):
    return lambda: torch.relu(x)


def relu_grad(torch, y, dy):
    return lambda: torch.ops.aten.threshold_backward(dy, y, 0)


def add(torch, a, b):
    return lambda: torch.add(a, b)


def max_pool2d(torch, x, **attrs):
    size = pair(attrs, "kernel", 1), pair(attrs, "stride", 1)
    return lambda: torch.ops.aten.max_pool2d_with_indices(x, *size)


def max_pool2d_grad(torch, x, _, dy, **attrs):
    size = pair(attrs, "kernel", 1), pair(attrs, "stride", 1)
    _, index = torch.ops.aten.max_pool2d_with_indices(x, *size)
    rest = (*size, [0, 0], [1, 1], False, index)
    grad = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda: grad(dy, x, *rest)


def avg_pool2d(torch, x, **attrs):
    kernel = pair(attrs, "kernel", 1)
    return lambda: torch.ops.aten.avg_pool2d(x, kernel)


def avg_pool2d_grad(torch, x, dy, **attrs):
    kernel = pair(attrs, "kernel", 1)
    rest = (kernel, kernel, [0, 0], False, True, None)
    return lambda: torch.ops.aten.avg_pool2d_backward(dy, x, *rest)


def batch_norm(torch, x, scale, bias):
    mean, var = torch.zeros_like(scale), torch.ones_like(scale)
    rest = (scale, bias, mean, var, True, 0.1, 1e-5)
    return lambda: torch.native_batch_norm(x, *rest)


def batch_norm_grad(torch, x, scale, mean, var, dy):
    var = var.abs() + 0.5
    rest = (mean, var, mean, var, True, 1e-5, [True, True, True])
    grad = torch.ops.aten.native_batch_norm_backward
    return lambda: grad(dy, x, scale, *rest)


def gather(torch, x, indices):
    return lambda: torch.embedding(x, indices)


def gather_grad(torch, x, indices, dy):
    grad = torch.ops.aten.embedding_dense_backward
    return lambda: grad(dy, indices, len(x), -1, False)


def where(torch, condition, x, y):
    return lambda: torch.where(condition, x, y)


def layer_norm(torch, x, scale, bias):
    return lambda: torch.native_layer_norm(x, scale.shape, scale, bias, 1e-5)


def layer_norm_grad(torch, x, scale, dy):
    bias = torch.zeros_like(scale)
    _, mean, factor = torch.native_layer_norm(x, scale.shape, scale, bias, 1e-5)
    rest = (scale.shape, mean, factor, scale, bias, [True, True, True])
    grad = torch.ops.aten.native_layer_norm_backward
    return lambda: grad(dy, x, *rest)


def softmax(torch, x):
    return lambda: torch.softmax(x, -1)


def softmax_grad(torch, y, dy):
    grad = torch.ops.aten._softmax_backward_data
    return lambda: grad(dy, y, -1, y.dtype)


def attention(torch, q, k, v, causal="0"):
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal == "1")


def attention_grad(torch, q, k, v, y, sums, dy, causal="0"):
    for x in (q, k, v):
        x.requires_grad_(True)
    with torch.enable_grad():
        y = attention(torch, q, k, v, causal)()
    return lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)


def gelu(torch, x):
    return lambda: torch.nn.functional.gelu(x)


def gelu_grad(torch, x, dy):
    return lambda: torch.ops.aten.gelu_backward(dy, x)


def gelu_tanh(torch, x):
    return lambda: torch.nn.functional.gelu(x, approximate="tanh")


def gelu_tanh_grad(torch, x, dy):
    return lambda: torch.ops.aten.gelu_backward(dy, x, approximate="tanh")


def silu(torch, x):
    return lambda: torch.nn.functional.silu(x)


def silu_grad(torch, x, dy):
    return lambda: torch.ops.aten.silu_backward(dy, x)


def softmax_cross_entropy(torch, x, labels):
    return lambda: torch.nn.functional.cross_entropy(x, labels)


def softmax_cross_entropy_grad(torch, x, labels, dy):
    aten = torch.ops.aten
    y = x.log_softmax(1)
    one, dy = torch.tensor(float(len(labels))), dy[0]

    def grad():
        d = aten.nll_loss_backward(dy, y, labels, None, 1, -100, one)
        return aten._log_softmax_backward_data(d, y, 1, y.dtype)

    return grad


def sum_of(torch, x, axis="0"):
    return lambda: x.sum(int(axis))


def flatten(torch, x):
    return lambda: x.flatten(1)


def sgd_update(torch, w, dw, _, momentum="0", weight_decay="0"):
    param = torch.nn.Parameter(w)
    param.grad = dw
    optimizer = torch_train.make_optimizer(
        torch, [param], float(momentum), float(weight_decay)
    )
    return optimizer.step


OPS = {
    "add": add,
    "attention": attention,
    "attention_grad": attention_grad,
    "avg_pool2d": avg_pool2d,
    "avg_pool2d_grad": avg_pool2d_grad,
    "batch_norm": batch_norm,
    "batch_norm_grad": batch_norm_grad,
    "conv2d": conv2d,
    "conv2d_grad_data": conv2d_grad_data,
    "conv2d_grad_weight": conv2d_grad_weight,
    "flatten": flatten,
    "gather": gather,
    "gather_grad": gather_grad,
    "gelu": gelu,
    "gelu_grad": gelu_grad,
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_grad": gelu_tanh_grad,
    "layer_norm": layer_norm,
    "layer_norm_grad": layer_norm_grad,
    "linear": linear,
    "matmul": matmul,
    "max_pool2d": max_pool2d,
    "max_pool2d_grad": max_pool2d_grad,
    "relu": relu,
    "relu_grad": relu_grad,
    "sgd_update": sgd_update,
    "silu": silu,
    "silu_grad": silu_grad,
    "softmax": softmax,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_grad": softmax_cross_entropy_grad,
    "softmax_grad": softmax_grad,
    "sum": sum_of,
    "where": where,
}


def median_seconds(run, seconds):
    """As bench_ops measures: many runs of at least 20 us each."""
    run()
    repeats = 1
    while True:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        if time.perf_counter() - start > 20e-6:
            break
        repeats *= 4
    samples = []
    begin = time.perf_counter()
    while len(samples) < MAX_SAMPLES and (
        len(samples) < 5 or time.perf_counter() - begin < seconds
    ):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        samples.append((time.perf_counter() - start) / repeats)
    return statistics.median(samples)


def run_cases(torch, cases, options):
    torch.set_num_threads(options.threads)
    results = []
    for case in cases:
        make = OPS.get(case["op"])
        if not make:
            results.append(None)
            continue
        operands, attrs = read_case(torch, case)
        run = make(torch, *operands, **attrs)
        results.append(round(1e6 * median_seconds(run, options.seconds), 3))
    return {"version": torch.__version__, "results": results}


def main(argv):
    options = parse(argv)
    torch_train.set_environment(torch_train.environment(options))
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return torch_train.MISSING
    cases = json.load(sys.stdin)
    with torch.no_grad():
        print(json.dumps(run_cases(torch, cases, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
