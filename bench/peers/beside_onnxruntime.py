# SPDX-License-Identifier: Apache-2.0
"""Choir and ONNX Runtime on the same ONNX files, called in turns.

usage: PYTHON beside_onnxruntime.py [--threads N] [--rounds R] [FILE...]

PYTHON has choir, onnxruntime and NumPy. Without a FILE, and then it needs torch
too: ResNet-18 on one image of 224 x 224, and a GPT of 6 layers of width 384 on 256
tokens, as torch.onnx writes them, with random weights. The one input of a FILE gets
numbers of a normal distribution, or zeros where it takes integers; 1 stands for a
size that the file leaves open.

Each has a process of its own, since threads of both wait busily for a while (those
of ONNX Runtime for 35 ms), which is waited for before each turn; in each of R
rounds it makes five calls, of which the first two are not counted.

For each file: the largest difference of the outputs, by the largest of them; the
least and the median time of a call of each, and of the processor's time, which
other programs disturb less; ONNX Runtime's over Choir's, above 1 where Choir is
faster. Exit status 1 for outputs that differ by more than 1e-4; 3: no onnxruntime,
no torch, or no Choir.
"""

import argparse
import io
import multiprocessing
import os
import statistics
import sys
import time

TOLERANCE = 1e-4
CALLS, COUNTED = 5, 3
REST_SECONDS = 0.1
TOOLS = os.path.join(
    os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ),
    "tools",
)


def networks():
    """name: bytes of the file."""
    import torch

    sys.path.append(TOOLS)
    import onnx_pytorch

    def written(net, x):
        buffer = io.BytesIO()
        torch.onnx.export(net.eval(), (x,), buffer, dynamo=False)
        return buffer.getvalue()

    torch.manual_seed(0)
    gpt = onnx_pytorch.Gpt(65, 384, 256)
    gpt.blocks = torch.nn.Sequential(
        *[onnx_pytorch.Block(384, 6) for _ in range(6)]
    )
    return {
        "resnet18": written(
            onnx_pytorch.resnet18(64), torch.randn(1, 3, 224, 224)
        ),
        "gpt": written(gpt, torch.randint(0, 65, (1, 256))),
    }


def input_of(session):
    import numpy as np

    (taken,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 1 for size in taken.shape]
    if taken.type == "tensor(float)":
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
    else:
        x = np.zeros(shape, np.int64 if "64" in taken.type else np.int32)
    return taken.name, x


def make_peer(data, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        data, options, providers=["CPUExecutionProvider"]
    )
    name, x = input_of(session)
    return lambda: session.run(None, {name: x})[0], lambda scores: scores


def make_choir(data, threads):
    os.environ["CHOIR_THREADS"] = str(threads)
    import numpy as np
    import onnxruntime

    from choir import sonnx, tensor

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    _, x = input_of(onnxruntime.InferenceSession(data, options))
    own = tensor.from_numpy(x.astype(np.int32) if x.dtype == np.int64 else x)
    net = sonnx.SONNXModel(data)
    net.compile([own], is_train=False)

    def run():
        scores = net(own)
        return scores[0] if isinstance(scores, (list, tuple)) else scores

    return run, tensor.to_numpy


def serve(make, data, threads, pipe):
    """Answers the first message with the scores, each other one with times."""
    try:
        run, to_numpy = make(data, threads)
        scores = to_numpy(run())
    except ImportError as error:
        pipe.send(error)
        return
    pipe.send(scores)
    while pipe.recv():
        times = []
        for _ in range(CALLS):
            start = time.perf_counter(), time.process_time()
            run()
            end = time.perf_counter(), time.process_time()
            times.append((end[0] - start[0], end[1] - start[1]))
        pipe.send(times[-COUNTED:])


def measure(data, threads, rounds):
    """The difference; [(seconds, the processor's)] of Choir and of its peer."""
    import numpy as np

    context = multiprocessing.get_context("spawn")
    pipes, scores, times = [], [], ([], [])
    for make in (make_choir, make_peer):
        pipe, other = context.Pipe()
        context.Process(
            target=serve, args=(make, data, threads, other), daemon=True
        ).start()
        other.close()
        pipes.append(pipe)
        scores.append(pipe.recv())
        if isinstance(scores[-1], ImportError):
            raise scores[-1]
    for _ in range(rounds):
        for pipe, taken in zip(pipes, times):
            time.sleep(REST_SECONDS)
            pipe.send(True)
            taken.extend(pipe.recv())
    for pipe in pipes:
        pipe.send(False)
    found, expected = scores
    return np.abs(found - expected).max() / np.abs(expected).max(), *times


def tell(name, clock, choir, peer):
    (least, middle), (other, other_middle) = (
        (min(t) * 1e3, statistics.median(t) * 1e3) for t in (choir, peer)
    )
    print(
        f"{name:12} {clock:9}  choir {least:7.2f} {middle:7.2f} ms  "
        f"onnxruntime {other:7.2f} {other_middle:7.2f} ms  "
        f"ratio {other / least:.2f} {other_middle / middle:.2f}",
        flush=True,
    )


def main(argv):
    parser = argparse.ArgumentParser(
        prog="beside_onnxruntime.py", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("files", nargs="*", metavar="FILE")
    options = parser.parse_args(argv)
    if options.threads < 1 or options.rounds < 1:
        parser.error("--threads and --rounds are at least 1")
    is_wrong = False
    try:
        if options.files:
            files = {os.path.basename(path): path for path in options.files}
            for name, path in files.items():
                with open(path, "rb") as file:
                    files[name] = file.read()
        else:
            files = networks()
        for name, data in files.items():
            difference, ours, theirs = measure(
                data, options.threads, options.rounds
            )
            print(f"{name:12} differs by {difference:.1e}", flush=True)
            is_wrong |= not difference <= TOLERANCE
            for clock, i in (("time", 0), ("processor", 1)):
                tell(name, clock, [t[i] for t in ours], [t[i] for t in theirs])
    except ImportError as error:
        print(f"beside_onnxruntime.py: {error}", file=sys.stderr)
        return 3
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
