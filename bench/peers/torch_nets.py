# SPDX-License-Identifier: Apache-2.0
"""Data and networks of the examples in PyTorch, for torch_train.py.

Nothing is imported from PyTorch before the environment is set, so every function
takes the module.
"""

import gzip
import os

NETS = ("mnist_cnn", "mlp", "resnet20", "resnet50")
# Layers, heads, width, context, vocabulary, dropout, bias.
GPTS = {
    "gpt_nano": (4, 4, 128, 64, 65, 0.0, False),
    "gpt_10m": (6, 6, 384, 256, 65, 0.2, False),
    "gpt2": (12, 12, 768, 64, 50257, 0.0, True),
    "gpt2_long": (12, 12, 768, 1024, 50257, 0.0, True),
}
NETS += tuple(GPTS)
# Windows that a GPT is trained on, of random tokens.
WINDOWS = 4096
# Of made-up images: how many, shape, classes.
NOISE = {
    "resnet20": (2560, (3, 32, 32), 10),
    "resnet50": (512, (3, 224, 224), 1000),
}


def read_idx(torch, folder, name):
    """Returns the elements of one gzipped IDX file, one row an item."""
    with gzip.open(os.path.join(folder, name + ".gz")) as file:
        data = file.read()
    dimensions = data[3]
    header = 4 + 4 * dimensions
    count = int.from_bytes(data[4:8], "big")
    elements = torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)
    return elements.reshape(count, -1)


def read_mnist(torch, folder, limit):
    """Returns the images' bytes (n, 784) and labels (n)."""
    pixels = read_idx(torch, folder, "train-images-idx3-ubyte")[:limit]
    labels = read_idx(torch, folder, "train-labels-idx1-ubyte")[:limit]
    return pixels, labels.reshape(-1).long()


def make_noise(torch, limit, shape, class_count):
    """The same for images of a shape."""
    size = shape[0] * shape[1] * shape[2]
    pixels = torch.randint(0, 256, (limit, size), dtype=torch.uint8)
    return pixels, torch.randint(0, class_count, (limit,))


def conv_norm(nn, channels_in, channels, kernel, stride):
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


def make_resnet20(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels_in, channels, stride):
            super().__init__()
            self.first = conv_norm(nn, channels_in, channels, 3, stride)
            self.relu = nn.ReLU(inplace=True)
            self.second = conv_norm(nn, channels, channels, 3, 1)
            self.shortcut = nn.Identity()
            if stride != 1:
                self.shortcut = conv_norm(nn, channels_in, channels, 1, stride)

        def forward(self, x):
            y = self.second(self.relu(self.first(x)))
            return self.relu(y + self.shortcut(x))

    layers = [conv_norm(nn, 3, 16, 3, 1), nn.ReLU(inplace=True)]
    channels_in = 16
    for channels in (16, 32, 64):
        for _ in range(3):
            stride = 1 if channels == channels_in else 2
            layers.append(Block(channels_in, channels, stride))
            channels_in = channels
    layers += [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def make_resnet50(torch):
    """As examples/resnet50.h has it, and torchvision."""
    nn = torch.nn

    class Bottleneck(nn.Module):
        def __init__(self, channels_in, channels, stride):
            super().__init__()
            self.first = conv_norm(nn, channels_in, channels, 1, 1)
            self.second = conv_norm(nn, channels, channels, 3, stride)
            self.third = conv_norm(nn, channels, 4 * channels, 1, 1)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = nn.Identity()
            if channels_in != 4 * channels:
                self.shortcut = conv_norm(
                    nn, channels_in, 4 * channels, 1, stride
                )

        def forward(self, x):
            y = self.relu(self.second(self.relu(self.first(x))))
            return self.relu(self.third(y) + self.shortcut(x))

    layers = [conv_norm(nn, 3, 64, 7, 2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    channels_in = 64
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if channels > 64 and block == 0 else 1
            layers.append(Bottleneck(channels_in, channels, stride))
            channels_in = 4 * channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)


def make_gpt(torch, layers, heads, width, context, vocabulary, dropout, bias):
    """As examples/gpt.c has it, with one product for query, key and value."""
    nn = torch.nn
    functional = torch.nn.functional

    def linear(columns_in, columns, deviation):
        made = nn.Linear(columns_in, columns, bias=bias)
        nn.init.normal_(made.weight, 0.0, deviation)
        return made

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            small = 0.02 / (2 * layers) ** 0.5
            self.norm1 = nn.LayerNorm(width, bias=bias)
            self.all = linear(width, 3 * width, 0.02)
            self.out = linear(width, width, small)
            self.norm2 = nn.LayerNorm(width, bias=bias)
            self.expand = linear(width, 4 * width, 0.02)
            self.shrink = linear(4 * width, width, small)
            self.dropout = nn.Dropout(dropout)

        def forward(self, x):
            n, t, _ = x.shape
            parts = self.all(self.norm1(x)).split(width, 2)
            q, k, v = (
                part.view(n, t, heads, -1).transpose(1, 2) for part in parts
            )
            y = functional.scaled_dot_product_attention(
                q, k, v, None, dropout if self.training else 0.0, True
            )
            y = y.transpose(1, 2).reshape(n, t, width)
            x = x + self.dropout(self.out(y))
            y = self.shrink(functional.gelu(self.expand(self.norm2(x))))
            return x + self.dropout(y)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
            nn.init.normal_(self.tokens.weight, 0.0, 0.02)
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm = nn.LayerNorm(width, bias=bias)

        def forward(self, x):
            y = self.dropout(self.tokens(x) + self.positions[: x.shape[1]])
            y = self.norm(self.blocks(y))
            return functional.linear(y, self.tokens.weight)

    return Gpt()


def make_model(torch, net):
    nn = torch.nn
    if net in GPTS:
        return make_gpt(torch, *GPTS[net])
    if net == "resnet20":
        return make_resnet20(torch)
    if net == "resnet50":
        return make_resnet50(torch)
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


def make_data(torch, net, folder, limit):
    """Returns images (n, channels, height, width), f32, and labels (n); for a
    GPT windows and the same a token later."""
    if net in GPTS:
        context, words = GPTS[net][3], 65
        ids = torch.randint(0, words, (limit or WINDOWS, context + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if net in NOISE:
        count, shape, class_count = NOISE[net]
        pixels, labels = make_noise(torch, limit or count, shape, class_count)
    else:
        shape = (1, 28, 28)
        pixels, labels = read_mnist(torch, folder, limit)
    return pixels.float().div_(255).reshape(-1, *shape), labels
