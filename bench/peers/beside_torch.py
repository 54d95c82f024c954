# SPDX-License-Identifier: Apache-2.0
"""Choir and PyTorch in one process: what each costs the other.

usage: PYTHON beside_torch.py [--rounds N] [--seconds S] [--threads N]
                              [--quantile Q] [OTHER_PYTHON...]

PYTHON has both, for instance that of install_torch_newest.sh with Choir's wheel;
with OTHER_PYTHONs their installations are measured in turns with it. A round is one
process for PyTorch alone, one that imports Choir after it and one that imports Choir
first, for S seconds each part:

  import  PyTorch's product of two matrices, nothing of Choir's having run;
  turns   the same in turns with training steps of a CNN: Choir's, or in the process
          that has PyTorch alone its own;
  step    Choir's steps in those turns, beside the same with nothing in between.

The table has the medians over the rounds, with the range, of what PyTorch alone
takes over what it takes here (step: without turns over in turns): 1 is no loss.
Inside a process the time is the Q-quantile of all calls, 0.5 if not given; less
where other programs use the machine. Exit status 3: no PyTorch, or no Choir.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch_nets

MISSING = 3
ORDERS = ("torch", "torch choir", "choir torch")
SIZE = 768
BATCH = 64


def timed(functions, seconds, quantile):
    """Calls the functions in turns; the quantile of each one's times."""
    for _ in range(5):
        for function in functions:
            function()
    times = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for function, taken in zip(functions, times):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [
        sorted(taken)[min(int(quantile * len(taken)), len(taken) - 1)]
        for taken in times
    ]


def torch_step(torch):
    net = torch_nets.make_model(torch, "mnist_cnn")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
    x = torch.rand(BATCH, 1, 28, 28)
    y = torch.randint(0, 10, (BATCH,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def choir_step():
    import numpy as np
    from choir import device, layer, model, opt, tensor

    class Net(model.Model):
        def __init__(self):
            super().__init__()
            self.conv1 = layer.Conv2d(20, 5, activation="RELU")
            self.conv2 = layer.Conv2d(50, 5, activation="RELU")
            self.pool1 = layer.MaxPool2d(2)
            self.pool2 = layer.MaxPool2d(2)
            self.flatten = layer.Flatten()
            self.linear1 = layer.Linear(500)
            self.relu = layer.ReLU()
            self.linear2 = layer.Linear(10)
            self.loss = layer.SoftMaxCrossEntropy()

        def forward(self, x):
            x = self.pool1(self.conv1(x))
            x = self.flatten(self.pool2(self.conv2(x)))
            return self.linear2(self.relu(self.linear1(x)))

        def train_one_batch(self, x, y):
            out = self.forward(x)
            loss = self.loss(out, y)
            self.optimizer(loss)
            return out, loss

    dev = device.create_cpu_device()
    x = tensor.Tensor((BATCH, 1, 28, 28), dev)
    x.copy_from_numpy(np.random.rand(BATCH, 1, 28, 28).astype(np.float32))
    y = tensor.Tensor((BATCH,), dev, tensor.int32)
    y.copy_from_numpy(np.random.randint(0, 10, BATCH).astype(np.int32))
    net = Net()
    net.set_optimizer(opt.SGD(lr=0.005, momentum=0.9))
    net.compile([x], is_train=True, use_graph=True)
    return lambda: net(x, y)


def measure(order, options):
    """One process: {part: seconds}."""
    os.environ["CHOIR_THREADS"] = str(options.threads)
    for name in order.split():
        __import__(name)
    import torch

    torch.set_num_threads(options.threads)
    a, b = torch.rand(2, SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)
    rest = options.seconds, options.quantile

    def product():
        torch.mm(a, b, out=out)

    (alone,) = timed([product], *rest)
    step = choir_step() if "choir" in order else torch_step(torch)
    (step_alone,) = timed([step], *rest)
    turns, step_turns = timed([product, step], *rest)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        words = {line.split()[-1] for line in maps}
    return {
        "import": alone,
        "turns": turns,
        "step": step_turns,
        "step alone": step_alone,
        "OpenMP": sorted(
            word for word in words if "omp" in os.path.basename(word)
        ),
    }


def run(python, order, options):
    command = [python, os.path.abspath(__file__), "--order", order]
    for name in ("seconds", "threads", "quantile"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0))
    )
    parser.add_argument("--quantile", type=float, default=0.5)
    parser.add_argument("--order", choices=ORDERS, help=argparse.SUPPRESS)
    parser.add_argument("pythons", nargs="*", metavar="OTHER_PYTHON")
    options = parser.parse_args()
    if options.order:
        try:
            print(json.dumps(measure(options.order, options)))
        except ModuleNotFoundError as error:
            print(
                f"beside_torch.py: {sys.executable}: {error}", file=sys.stderr
            )
            sys.exit(MISSING)
        return

    pythons = [sys.executable] + options.pythons
    ratios = {}  # (python, order, part): a ratio for each round
    for number in range(options.rounds):
        for python in pythons:
            got = {order: run(python, order, options) for order in ORDERS}
            for order in ORDERS[1:]:
                here = got[order]
                for part, of in (
                    ("import", got["torch"]["import"]),
                    ("turns", got["torch"]["turns"]),
                    ("step", here["step alone"]),
                ):
                    ratios.setdefault((python, order, part), []).append(
                        of / here[part]
                    )
                if number == 0:
                    print(f"{python}, {order}: {' '.join(here['OpenMP'])}")
    print(
        f"{options.rounds} rounds, {options.threads} threads, product of "
        f"{SIZE} x {SIZE}, CNN of batch {BATCH}"
    )
    for (python, order, part), found in ratios.items():
        middle = statistics.median(found)
        print(
            f"{python}  {order:12} {part:7} {middle:.3f} "
            f"({min(found):.3f} to {max(found):.3f})"
        )


if __name__ == "__main__":
    main()
