# SPDX-License-Identifier: Apache-2.0
"""Choir's LSTM and PyTorch's, forward and backward, called in turns.

usage: CHOIR_THREADS=N PYTHON beside_torch_lstm.py [--threads N] [--rounds R]

PYTHON has both. 64 steps of 32 samples of width 256, f32, the gradients of the
input and of all weights. Prints the least and the median time of each and PyTorch's
over Choir's, above 1 where Choir is faster; with --threads 1 also of the processor's
time, which other programs disturb less. Exit status 3: no PyTorch, or no Choir.
"""

import argparse
import statistics
import sys
import time

STEPS, BATCH, WIDTH = 64, 32, 256


def make_calls(threads):
    """A step of Choir and one of PyTorch."""
    import torch

    from choir import autograd, device, layer, tensor

    torch.set_num_threads(threads)
    x = torch.rand(STEPS, BATCH, WIDTH) - 0.5
    slopes = torch.rand(STEPS, BATCH, WIDTH)
    theirs, leaf = torch.nn.LSTM(WIDTH, WIDTH), x.clone().requires_grad_()
    ours, own = layer.LSTM(WIDTH, WIDTH), tensor.from_numpy(x.numpy())
    own_slopes = tensor.from_numpy(slopes.numpy())
    own.requires_grad = own.stores_grad = True

    def run_choir():
        autograd.training = True
        product = ours(own)[0] * own_slopes
        for _ in autograd.backward(autograd._op("sum", product)):
            pass
        device.get_default_device().Sync()

    def run_torch():
        leaf.grad = None
        theirs.zero_grad()
        (theirs(leaf)[0] * slopes).sum().backward()

    return run_choir, run_torch


def measure(calls, rounds, clock):
    """(least, median) seconds of each, called in turns."""
    times = [[] for _ in calls]
    for _ in range(rounds + 3):
        for call, taken in zip(calls, times):
            start = clock()
            call()
            taken.append(clock() - start)
    return [(min(t[3:]), statistics.median(t[3:])) for t in times]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(argv)
    try:
        calls = make_calls(options.threads)
    except ImportError as error:
        print(f"beside_torch_lstm.py: {error}", file=sys.stderr)
        return 3
    clocks = [("time", time.perf_counter)]
    if options.threads == 1:
        clocks.append(("processor", time.process_time))
    for name, clock in clocks:
        (least, middle), (other, other_middle) = measure(
            calls, options.rounds, clock
        )
        print(
            f"{name:9}  choir {least * 1e3:6.1f} {middle * 1e3:6.1f} ms  "
            f"torch {other * 1e3:6.1f} {other_middle * 1e3:6.1f} ms  "
            f"ratio {other / least:.2f} {other_middle / middle:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
