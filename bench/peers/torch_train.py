# SPDX-License-Identifier: Apache-2.0
"""The job of //bench:train_step in PyTorch.

usage: torch_train.py --config NAME [--net NAME] [--seconds S] [--warmup N]
                      [--batch N] [--threads N] [--workers N] [--forward-only] [--bf16]
                      [--limit N] [--data DIR] [--device cpu|cuda]

Networks, as in examples/: mnist_cnn and mlp on MNIST, resnet20 and resnet50 on
noise, GPTs on random tokens, with AdamW and limited gradients.

Configurations: nchw; channels_last; all others are channels-last as well:
traced (torch.jit.trace; forward only: and optimize_for_inference), avx512
(ATEN_CPU_CAPABILITY=avx512), compiled (torch.compile, whose work is done before
the clock starts; PyTorch 2), cuda_graph (the whole step captured once and
replayed). Prints one JSON line. Exits with 3 and {"missing": ...} where PyTorch is
not installed, or has no such configuration, or no GPU.

--workers: DistributedDataParallel over gloo; --batch is each worker's.

The images are converted to f32 once, before the clock starts; a step only
gathers its batch; batches that are not full are left out. All arithmetic is f32,
on a GPU without TF32. The allocator is told to keep its pages, from which PyTorch
gains in most configurations. On a GPU all images lie in its memory from the start,
cuDNN may try its algorithms in the warm-up, and the host waits for the GPU only
when the time is up.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import torch_nets

CONFIGS = ("nchw", "channels_last", "traced", "avx512", "compiled")
CONFIGS += ("cuda_graph",)
MISSING = 3  # exit status
# Steps after which workers agree whether to go on, or a GPU catches up.
BLOCK = 8


class Missing(Exception):
    """PyTorch, or a part of it, that is not there."""


def openblas_core():
    """The newest kernels of OpenBLAS that the processor has, or None.

    On a processor that it does not know OpenBLAS takes those of 2004.
    """
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = re.search(r"^flags\s*:(.*)$", file.read(), re.MULTILINE)
    has = set(flags.group(1).split() if flags else ()).issuperset
    if has(("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        return "SKYLAKEX"
    return "HASWELL" if has(("avx2", "fma")) else None


def environment(options):
    """What the libraries read as they are loaded."""
    threads = str(options.threads)
    values = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # set_num_threads does not reach OpenBLAS, whose threads would fight
        # OpenMP's for the cores; only the MLP is all matrix products.
        "OPENBLAS_NUM_THREADS": threads if options.net == "mlp" else "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
        # Freed activations stay instead of being faulted in at each step.
        "MALLOC_MMAP_THRESHOLD_": "4000000000",
        "MALLOC_TRIM_THRESHOLD_": "8000000000",
        "MALLOC_TOP_PAD_": "268435456",
    }
    if options.config == "avx512":
        values["ATEN_CPU_CAPABILITY"] = "avx512"
    if options.forward_only:
        values["TORCHINDUCTOR_FREEZING"] = "1"  # weights are constants
    if options.workers > 1:
        values["GLOO_SOCKET_IFNAME"] = "lo"
    core = openblas_core()
    if core:
        # The user's own choice goes first.
        # $OPENBLAS_CORETYPE: the kernels of PyTorch's OpenBLAS. Not set: those
        # of this processor.
        values["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE", core)
    return values


def set_environment(wanted):
    """Starts this program again where libraries would miss something: they
    read it as they are loaded."""
    if any(os.environ.get(k) != v for k, v in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", choices=CONFIGS, required=True)
    parser.add_argument("--net", choices=torch_nets.NETS, default="mnist_cnn")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--warmup", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--data", default="examples/data/mnist")
    # Of one worker, from launch().
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prepare(torch, model, options, example):
    """The model as the configuration runs it."""
    if options.config == "compiled":
        if not hasattr(torch, "compile"):
            raise Missing("torch.compile needs PyTorch 2")
        return torch.compile(model)
    if options.config == "traced":
        traced = torch.jit.trace(model, example)
        if not options.forward_only:
            return traced
        return torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    return model


def full_batches(torch, count, options):
    """Indices of the rank's part of each batch, epoch after epoch."""
    order = torch.Generator(options.device).manual_seed(0)
    whole = options.batch * options.workers
    first = options.batch * options.rank
    while True:
        shuffled = torch.randperm(count, generator=order, device=options.device)
        for at in range(first, count - count % whole, whole):
            yield shuffled[at : at + options.batch]


def make_optimizer(torch, params, momentum, weight_decay):
    """SGD in its quickest form: fused where PyTorch has that."""
    params = list(params)
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    try:
        return torch.optim.SGD(params, lr=0.005, fused=True, **settings)
    except (TypeError, RuntimeError):
        return torch.optim.SGD(params, lr=0.005, foreach=True, **settings)


def make_adamw(torch, params):
    """Matrices decay, the others do not."""
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)


def capture(torch, train, x, y):
    """`train` of one batch as a CUDA graph: a function that copies a batch to
    where the graph reads it, and replays."""
    # Libraries choose algorithms and take memory in the first steps, which must
    # not be captured and must not run on the default stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train(x, y)

    def replay(new_x, new_y):
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        return loss

    # The graph reads and writes its model and states, but does not keep them.
    replay.train = train
    return replay


def make_step(torch, options, images, labels):
    """Returns a function that does one step and returns its loss."""
    last = options.config != "nchw" and images.dim() == 4
    memory_format = torch.channels_last if last else torch.contiguous_format
    model = torch_nets.make_model(torch, options.net).to(options.device)
    model = model.train(not options.forward_only).to(
        memory_format=memory_format
    )
    example = images[: options.batch].to(memory_format=memory_format)
    model = prepare(torch, model, options, example)
    if options.workers > 1:
        model = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True
        )
    source = full_batches(torch, len(labels), options)

    def autocast():
        # A graph must not find casts of weights that were made before it.
        return torch.autocast(
            options.device,
            torch.bfloat16,
            enabled=options.bf16,
            cache_enabled=options.config != "cuda_graph",
        )

    def forward_step():
        x = images.index_select(0, next(source))
        with autocast():
            return model(x.to(memory_format=memory_format))[0, 0]

    if options.forward_only:
        return forward_step
    loss_of = torch.nn.CrossEntropyLoss()
    is_gpt = options.net in torch_nets.GPTS
    params = list(model.parameters())
    optimizer = (
        make_adamw(torch, params)
        if is_gpt
        else make_optimizer(torch, params, 0.9, 1e-5)
    )

    def train(x, y):
        with autocast():
            scores = model(x)
            loss = loss_of(scores.flatten(0, -2), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if is_gpt:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        return loss.detach()

    if options.config == "cuda_graph":
        y = labels[: options.batch].clone()
        train = capture(torch, train, example.clone(), y)

    def step():
        chosen = next(source)
        x = images.index_select(0, chosen).to(memory_format=memory_format)
        return train(x, labels.index_select(0, chosen))

    return step


def open_gpu(torch):
    if not torch.cuda.is_available():
        raise Missing("this PyTorch shows no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def run(torch, options):
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    if on_gpu:
        open_gpu(torch)
    elif options.config == "cuda_graph":
        raise Missing("a CUDA graph needs --device cuda")
    images, labels = torch_nets.make_data(
        torch, options.net, options.data, options.limit or None
    )
    images, labels = images.to(options.device), labels.to(options.device)
    if options.batch * options.workers > len(labels):
        raise SystemExit("torch_train: the batch is larger than the data set")
    if options.workers > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method="file://" + options.store,
            rank=options.rank,
            world_size=options.workers,
        )
    step = make_step(torch, options, images, labels)

    def time_is_up(start):
        up = torch.tensor(float(time.perf_counter() - start > options.seconds))
        if options.workers > 1:
            torch.distributed.all_reduce(up, torch.distributed.ReduceOp.MAX)
        return bool(up)

    def catch_up():
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(options.warmup):
        step()
    catch_up()
    losses = []
    steps = 0
    block = BLOCK if options.workers > 1 or on_gpu else 1
    start = time.perf_counter()
    while not steps or not time_is_up(start):
        made = [step() for _ in range(block)]
        # A graph writes every loss to one place, so a GPU's is the last one.
        if on_gpu:
            losses.clear()
            made = made[-1:]
        losses += made
        steps += block
    catch_up()
    seconds = time.perf_counter() - start
    data = sum(t.numel() * t.element_size() for t in (images, labels))
    capability = re.search(
        r"CPU capability usage: (\S+)", torch.__config__.show()
    )
    samples = steps * options.batch * options.workers
    return {
        "name": "torch",
        "config": options.config,
        "net": options.net,
        "device": options.device,
        "bf16": options.bf16,
        "version": torch.__version__,
        "capability": capability.group(1) if capability else "unknown",
        "mkldnn": torch.backends.mkldnn.is_available(),
        "batch": options.batch,
        "threads": options.threads,
        "workers": options.workers,
        "forward_only": options.forward_only,
        "steps": steps,
        "images": samples,
        "seconds": round(seconds, 4),
        "images_per_second": round(samples / seconds, 1),
        "rss_mb": round((resident_bytes() - data) * 1e-6, 1),
        "loss": round(float(sum(losses)) / len(losses), 5),
    }


def launch(options):
    """Starts the workers; hands on what rank 0 prints. Returns the status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.orig_argv[1:]]
        command += ["--store", os.path.join(folder, "store"), "--rank"]
        workers = [
            subprocess.Popen(
                [*command, str(rank)],
                stdout=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(options.workers)
        ]
        statuses = [worker.wait() for worker in workers]
    return max(statuses, key=abs)


def main(argv):
    options = parse(argv)
    set_environment(environment(options))
    if options.workers > 1 and not options.store:
        return launch(options)
    try:
        import torch

        with torch.inference_mode(options.forward_only):
            print(json.dumps(run(torch, options)), flush=True)
    except (ImportError, Missing) as error:
        print(json.dumps({"missing": str(error)}))
        return MISSING
    if options.workers > 1:
        # PyTorch 1.13 sometimes waits for ever when it ends its group of gloo.
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
