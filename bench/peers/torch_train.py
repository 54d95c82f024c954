# SPDX-License-Identifier: Apache-2.0
"""The job of //bench:train_step in PyTorch, on one process and one thread.

usage: torch_train.py --config NAME [--net NAME] [--seconds S] [--warmup N]
                      [--batch N] [--limit N] [--data DIR]

Networks, as in examples/: mnist_cnn and mlp on MNIST, resnet20 on noise.

Configurations: nchw, channels_last, traced (channels_last through
torch.jit.trace), avx512 (channels_last with ATEN_CPU_CAPABILITY=avx512). Prints
one JSON line. Exits with 3 and {"missing": ...} where PyTorch is not installed
(install_torch.sh puts it there).

The images are converted to f32 once, before the clock starts; a step only
gathers its batch. The allocator is told to keep its pages (see ENVIRONMENT),
which PyTorch gains from in most configurations.
"""

import argparse
import gzip
import json
import os
import re
import sys
import time

# One thread everywhere: set_num_threads does not reach OpenBLAS. Freed
# activations stay with the process instead of being faulted in at each step.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}

CONFIGS = ("nchw", "channels_last", "traced", "avx512")
NETS = ("mnist_cnn", "mlp", "resnet20")


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


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", choices=CONFIGS, required=True)
    parser.add_argument("--net", choices=NETS, default="mnist_cnn")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--warmup", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--data", default="examples/data/mnist")
    return parser.parse_args(argv)


def read_idx(torch, folder, name):
    """Returns the elements of one gzipped IDX file, one row an item."""
    with gzip.open(os.path.join(folder, name + ".gz")) as file:
        data = file.read()
    dimensions = data[3]
    header = 4 + 4 * dimensions
    count = int.from_bytes(data[4:8], "big")
    elements = torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)
    return elements.reshape(count, -1)


def read_mnist(torch, options, limit):
    """Returns the images' bytes (n, 784) and labels (n)."""
    pixels = read_idx(torch, options.data, "train-images-idx3-ubyte")[:limit]
    labels = read_idx(torch, options.data, "train-labels-idx1-ubyte")[:limit]
    return pixels, labels.reshape(-1).long()


def make_noise(torch, limit):
    """The same for images (3, 32, 32)."""
    count = limit or 2560
    pixels = torch.randint(0, 256, (count, 3072), dtype=torch.uint8)
    return pixels, torch.randint(0, 10, (count,))


def make_resnet20(torch):
    nn = torch.nn

    def conv_norm(channels_in, channels, kernel, stride):
        return nn.Sequential(
            nn.Conv2d(
                channels_in,
                channels,
                kernel,
                stride=stride,
                padding=kernel // 2,
                bias=False,
            ),
            nn.BatchNorm2d(channels),
        )

    class Block(nn.Module):
        def __init__(self, channels_in, channels, stride):
            super().__init__()
            self.first = conv_norm(channels_in, channels, 3, stride)
            self.relu = nn.ReLU(inplace=True)
            self.second = conv_norm(channels, channels, 3, 1)
            self.shortcut = nn.Identity()
            if stride != 1:
                self.shortcut = conv_norm(channels_in, channels, 1, stride)

        def forward(self, x):
            y = self.second(self.relu(self.first(x)))
            return self.relu(y + self.shortcut(x))

    layers = [conv_norm(3, 16, 3, 1), nn.ReLU(inplace=True)]
    channels_in = 16
    for channels in (16, 32, 64):
        for _ in range(3):
            stride = 1 if channels == channels_in else 2
            layers.append(Block(channels_in, channels, stride))
            channels_in = channels
    layers += [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def make_model(torch, net):
    nn = torch.nn
    if net == "resnet20":
        return make_resnet20(torch)
    if net == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 4096),
            nn.ReLU(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, 10),
        )
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train(torch, options):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    limit = options.limit or None
    if options.net == "resnet20":
        image = (3, 32, 32)
        pixels, labels = make_noise(torch, limit)
    else:
        image = (1, 28, 28)
        pixels, labels = read_mnist(torch, options, limit)
    images = pixels.float().div_(255).reshape(-1, *image)
    if options.batch > len(labels):
        raise SystemExit("torch_train: the batch is larger than the data set")

    last = options.config != "nchw"
    memory_format = torch.channels_last if last else torch.contiguous_format
    model = make_model(torch, options.net).to(memory_format=memory_format)
    if options.config == "traced":
        shape = torch.zeros(options.batch, *image)
        model = torch.jit.trace(model, shape.to(memory_format=memory_format))
    loss_of = torch.nn.CrossEntropyLoss()
    settings = {"lr": 0.005, "momentum": 0.9, "weight_decay": 1e-5}
    optimizer = torch.optim.SGD(model.parameters(), foreach=True, **settings)

    def batches():
        while True:
            order = torch.randperm(len(labels))
            for at in range(0, len(labels), options.batch):
                yield order[at : at + options.batch]

    source = batches()

    def step():
        chosen = next(source)
        x = images.index_select(0, chosen).to(memory_format=memory_format)
        loss = loss_of(model(x), labels.index_select(0, chosen))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return len(chosen), loss.detach()

    for _ in range(options.warmup):
        step()
    steps, samples, losses = 0, 0, []
    start = time.perf_counter()
    while not steps or time.perf_counter() - start < options.seconds:
        count, loss = step()
        steps += 1
        samples += count
        losses.append(loss)
    seconds = time.perf_counter() - start
    data = sum(t.numel() * t.element_size() for t in (images, labels, pixels))
    capability = re.search(
        r"CPU capability usage: (\S+)", torch.__config__.show()
    )
    return {
        "name": "torch",
        "config": options.config,
        "net": options.net,
        "version": torch.__version__,
        "capability": capability.group(1) if capability else "unknown",
        "mkldnn": torch.backends.mkldnn.is_available(),
        "batch": options.batch,
        "steps": steps,
        "images": samples,
        "seconds": round(seconds, 4),
        "images_per_second": round(samples / seconds, 1),
        "rss_mb": round((resident_bytes() - data) * 1e-6, 1),
        "loss": round(float(sum(losses)) / steps, 5),
    }


def main(argv):
    options = parse(argv)
    wanted = dict(ENVIRONMENT)
    if options.config == "avx512":
        wanted["ATEN_CPU_CAPABILITY"] = "avx512"
    core = openblas_core()
    if core:
        # The user's own choice goes first.
        wanted["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE", core)
    if any(os.environ.get(k) != v for k, v in wanted.items()):
        # Read by libraries as they are loaded, so before this program.
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return 3
    print(json.dumps(train(torch, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
