# SPDX-License-Identifier: Apache-2.0
"""The jobs of //bench:train: Choir and its peers, each a command that prints
its images/s, of which a GPT's are windows."""

import dataclasses
import os

from bench import measure

BENCH = os.path.join(measure.ROOT, "bench")
TRAIN_STEP = os.path.join(BENCH, "train_step")
DNNL_LOOP = os.path.join(BENCH, "dnnl_loop")
TORCH_TRAIN = os.path.join(BENCH, "peers", "torch_train.py")


@dataclasses.dataclass(frozen=True)
class Net:
    batch: int  # of each process
    warmup: int  # steps before the clock starts
    takes_mnist: bool = False  # else made-up images, or a text of its own
    context: int = 0  # tokens of a sample; 0: it takes images

    @property
    def labels(self):
        """What speeds count, and how many of them a sample has."""
        return ("tokens", self.context) if self.context else ("images", 1)


NETS = {
    "mnist_cnn": Net(64, 32, True),
    "mlp": Net(128, 4, True),
    "resnet20": Net(128, 4),
    "resnet50": Net(32, 4),
    "gpt_nano": Net(12, 8, context=64),
    "gpt_10m": Net(8, 3, context=256),
    "gpt2": Net(4, 3, context=64),
    "gpt2_long": Net(1, 3, context=1024),
}


@dataclasses.dataclass(frozen=True)
class Job:
    text: str  # what the table calls it
    peer: str  # "choir", "torch", "torch_newest" or "onednn"
    config: str = ""  # of torch_train.py
    graph: bool = False  # of Choir: replay a planned graph
    workers: int = 1  # that share gradients
    meets: bool = False  # they share none, but wait after each step
    copies: int = 1  # that do neither
    passes: tuple = ("train", "forward")
    devices: tuple = ("cpu",)
    needs: str = ""  # a flag of the processor, as /proc/cpuinfo has it

    def known_by(self, options):
        """Whether it can do what the options ask for."""
        if options.device not in self.devices:
            return False
        if self.peer == "onednn" and (
            options.net != "mnist_cnn" or options.bf16
        ):
            return False
        # Memory of tokens has no order of channels.
        if NETS[options.net].context and self.config not in (
            "", "nchw", "compiled"
        ) and self.workers == 1:  # fmt: skip
            return False
        if options.forward_only:
            return self.workers == 1 and "forward" in self.passes
        return "train" in self.passes

    def text_for(self, net):
        if not NETS[net].context:
            return self.text
        text = self.text.replace(" channels_last", "").replace(" NCHW", "")
        return text.rstrip(",")

    def usual(self, options):
        """Whether it runs unless --only says otherwise: as many threads in
        all as the options give one process."""
        alone = self.workers == 1 and self.copies == 1
        return self.known_by(options) and (alone or options.threads == 1)


BOTH = ("cpu", "cuda")
JOBS = {
    "choir": Job("Choir, 1 process", "choir", devices=BOTH),
    "choir2": Job("Choir, 2 workers (spawn, shm)", "choir", workers=2),
    "independent2": Job("Choir, 2 independent processes", "choir", copies=2),
    "choir_graph": Job(
        "Choir, graph, 1 process", "choir", graph=True, devices=BOTH
    ),
    "choir2_graph": Job(
        "Choir, graph, 2 workers",
        "choir",
        workers=2,
        graph=True,
    ),
    "independent2_graph": Job(
        "Choir, graph, 2 independent processes",
        "choir",
        copies=2,
        graph=True,
        passes=("train",),
    ),
    "meeting2_graph": Job(
        "Choir, graph, 2 that only wait",
        "choir",
        workers=2,
        meets=True,
        graph=True,
        passes=("train",),
    ),
    "torch_nchw": Job("PyTorch, eager NCHW", "torch", "nchw", devices=BOTH),
    "torch_channels_last": Job(
        "PyTorch, eager channels_last", "torch", "channels_last", devices=BOTH
    ),
    "torch_compiled": Job(
        "PyTorch, compiled channels_last",
        "torch",
        "compiled",
        devices=("cuda",),
    ),
    "torch_cuda_graph": Job(
        "PyTorch, CUDA graph, channels_last",
        "torch",
        "cuda_graph",
        passes=("train",),
        devices=("cuda",),
    ),
    "torch_traced": Job("PyTorch, traced channels_last", "torch", "traced"),
    "torch_avx512": Job(
        "PyTorch, channels_last, AVX-512", "torch", "avx512", needs="avx512f"
    ),
    "torch2_ddp": Job(
        "PyTorch, 2 workers (DDP, gloo)", "torch", "channels_last", workers=2
    ),
    "torch_newest_nchw": Job("newest PyTorch, NCHW", "torch_newest", "nchw"),
    "torch_newest_channels_last": Job(
        "newest PyTorch, channels_last", "torch_newest", "channels_last"
    ),
    "torch_newest_traced": Job(
        "newest PyTorch, traced channels_last",
        "torch_newest",
        "traced",
        passes=("forward",),
    ),
    "torch_newest_compiled": Job(
        "newest PyTorch, compiled channels_last", "torch_newest", "compiled"
    ),
    "torch_newest2_ddp": Job(
        "newest PyTorch, 2 workers (DDP, gloo)",
        "torch_newest",
        "channels_last",
        workers=2,
    ),
    "onednn": Job("bare oneDNN loop", "onednn"),
}


def run_onednn(options, limit):
    # About as long as the others, at 100 steps of batch 64 a second.
    steps = max(1, int(100 * options.seconds * 64 / options.batch))
    command = [DNNL_LOOP, "--json", "--batch", str(options.batch)]
    command += ["--threads", str(options.threads), "--steps", str(steps)]
    if options.forward_only:
        command.append("--forward-only")
    result = measure.run_together([command], limit)[0]
    return {"images_per_second": result["images_per_s"], **result}


def run_job(name, options):
    """One measurement: {"images_per_second": ..., perhaps "rss_mb": ...}, with
    "labels_per_second", of images or tokens.

    Raises measure.Failure and measure.Missing.
    """
    result = _run_job(name, options)
    each = NETS[options.net].labels[1]
    return {"labels_per_second": each * result["images_per_second"], **result}


def _run_job(name, options):
    job = JOBS[name]
    if job.needs and job.needs not in measure.cpu_flags():
        raise measure.Missing("this processor has no %s" % job.needs)
    # torch.compile may take minutes.
    limit = 300 + 10 * options.seconds
    if job.peer == "onednn":
        return run_onednn(options, limit)
    flags = ["--net", options.net, "--seconds", str(options.seconds)]
    flags += ["--batch", str(options.batch), "--limit", str(options.limit)]
    flags += ["--warmup", str(NETS[options.net].warmup)]
    flags += ["--threads", str(options.threads)]
    flags += ["--workers", str(job.workers), "--device", options.device]
    if options.data:
        flags += ["--data", options.data]
    if job.peer == "choir":
        flags += ["--graph", "true" if job.graph else "false"]
        if options.bf16:
            flags += ["--bf16", "true"]
        if options.forward_only:
            flags += ["--forward_only", "true"]
        if job.meets:
            flags += ["--meet", "true"]
        if job.copies == 1:
            return measure.run_together([[TRAIN_STEP, *flags]], limit)[0]
        commands = [[TRAIN_STEP, "--gate", "true", *flags]] * job.copies
        parts = measure.run_together(commands, limit, gate=True)
        return {
            "images_per_second": sum(p["images_per_second"] for p in parts),
            "rss_mb": max(p["rss_mb"] for p in parts),
            "parts": parts,
        }
    if options.forward_only:
        flags.append("--forward-only")
    if options.bf16:
        flags.append("--bf16")
    python = options.torch_python
    if job.peer == "torch_newest":
        python = measure.newest_python(options.torch_newest)
    command = [python, TORCH_TRAIN, "--config", job.config, *flags]
    try:
        return measure.run_together([command], limit)[0]
    except measure.Missing as error:
        where = "bench/peers/install_torch.sh installs it"
        if job.peer == "torch_newest":
            where = "in %s" % os.path.dirname(os.path.dirname(python))
        raise measure.Missing("%s; %s" % (error, where)) from None
