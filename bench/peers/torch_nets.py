# SPDX-License-Identifier: Apache-2.0
"""Data and networks of the examples in PyTorch, for torch_train.py.

Nothing is imported from PyTorch before the environment is set, so every function
takes the module.
"""

import gzip
import os

NETS = ("mnist_cnn", "mlp", "resnet20")


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


def make_data(torch, net, folder, limit):
    """Returns images (n, channels, height, width), f32, and labels (n)."""
    if net == "resnet20":
        shape = (3, 32, 32)
        pixels, labels = make_noise(torch, limit)
    else:
        shape = (1, 28, 28)
        pixels, labels = read_mnist(torch, folder, limit)
    return pixels.float().div_(255).reshape(-1, *shape), labels
