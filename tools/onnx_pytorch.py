# SPDX-License-Identifier: Apache-2.0
"""Networks of PyTorch's, exported to ONNX, in Choir: a table.

    CHOIR_LIBRARY=.../libchoir.so PYTHONPATH=python \\
        python3 tools/onnx_pytorch.py [--only REGEX] [--steps 50]

For each network and both of torch.onnx's exporters: the largest difference between
Choir's scores and onnxruntime's, by the largest score, that between the losses of
--steps steps of SGD in Choir, a recorded graph, and in PyTorch, by the loss, and that
of scores once more, of the trained model in a file that Choir has written. Needs torch,
onnxscript and onnxruntime. Status 1 if scores differ by more than 1e-4 or losses by
more than 1e-3.
"""

import argparse
import io
import re
import sys
import warnings

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.nn import functional

from choir import autograd, opt, sonnx, tensor

SCORES, LOSSES = 1e-4, 1e-3


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Gru(Lstm):
    def __init__(self):
        super().__init__()
        self.lstm = nn.GRU(16, 32, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 10)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        parts = self.qkv(x).split(c, dim=2)
        q, k, v = (
            part.view(n, t, self.heads, c // self.heads).transpose(1, 2)
            for part in parts
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=50, width=32, places=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(places, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        y = self.tokens(x) + self.places(places)
        return self.head(self.norm(self.blocks(y)))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.down = nn.Identity()
        if stride > 1 or inside != outside:
            self.down = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False),
                nn.BatchNorm2d(outside),
            )

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.down(x))


def resnet18(width=16):
    """ResNet-18's layers with fewer channels."""
    parts = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = width
    for i, outside in enumerate((width, 2 * width, 4 * width, 8 * width)):
        parts += [
            Residual(inside, outside, 2 if i else 1),
            Residual(outside, outside, 1),
        ]
        inside = outside
    head = nn.Linear(inside, 10)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def mlp():
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.SiLU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.ELU(),
        nn.Linear(64, 10),
    )


def normal(*shape):
    return lambda: torch.randn(shape)


# name: the network, its input
NETS = {
    "mlp": (mlp, normal(8, 20)),
    "cnn": (cnn, normal(8, 1, 14, 14)),
    "lstm": (Lstm, normal(8, 6, 16)),
    "gru": (Gru, normal(8, 6, 16)),
    "gpt": (Gpt, lambda: torch.randint(0, 50, (4, 16))),
    "resnet18": (resnet18, normal(8, 3, 64, 64)),
}


def spread(net):
    """Other values where all are 0 or 1: torch.onnx's older exporter makes one
    initialiser of those that are equal."""
    with torch.no_grad():
        for part in [*net.parameters(), *net.buffers()]:
            if part.dim() == 1 and part.is_floating_point():
                part += 0.05 * torch.rand_like(part)


def exported(net, x, dynamo):
    """The bytes of the file, batch norm left as it is."""
    net.eval()
    buffer = io.BytesIO()
    if dynamo:
        program = torch.onnx.export(
            net, (x,), dynamo=True, optimize=False, verbose=False
        )
        program.save(buffer)
    else:
        torch.onnx.export(
            net,
            (x,),
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=not any(
                isinstance(part, nn.BatchNorm2d) for part in net.modules()
            ),
        )
    return buffer.getvalue()


class Trained(sonnx.SONNXModel):
    def forward(self, x):
        (y,) = super().forward(x)
        return autograd.reshape(y, (-1, y.shape[-1]))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def scores_of(data, x):
    """onnxruntime's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options)
    taken = session.get_inputs()[0]
    if taken.type == "tensor(int32)":  # as Choir writes indices
        x = x.astype(np.int32)
    (scores,) = session.run(None, {taken.name: x})
    return scores


def difference(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def difference_of_scores(data, x):
    (found,) = sonnx.prepare(data).run([x.numpy()])
    return difference(found, scores_of(data, x.numpy()))


def difference_when_written(m, x):
    """Most of PyTorch's files have a batch of one size."""
    tx = tensor.from_numpy(x)
    data = sonnx.to_onnx([tx], m, fixed_batch=True).SerializeToString()
    found = tensor.to_numpy(m.forward(tx))
    return difference(found, scores_of(data, x))


def losses_in_torch(net, x, classes, steps, rate):
    net.train()
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    for _ in range(steps):
        scores = net(x)
        loss = functional.cross_entropy(
            scores.reshape(-1, scores.shape[-1]), classes
        )
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    return np.array(losses)


def losses_in_choir(data, x, classes, steps, rate):
    m = Trained(data)
    tx = tensor.from_numpy(x.numpy())
    ty = tensor.from_numpy(classes.numpy().astype(np.int32))
    m.set_optimizer(opt.SGD(lr=rate, momentum=0.9))
    m.compile([tx], is_train=True, use_graph=True)
    losses = [m(tx, ty).item() for _ in range(steps)]
    m.eval()
    return np.array(losses), m


def row(name, dynamo, steps, rate):
    make, draw = NETS[name]
    torch.manual_seed(1)
    net, x = make(), draw()
    spread(net)
    data = exported(net, x, dynamo)
    scores = difference_of_scores(data, x)
    count = net(x).numel() // net(x).shape[-1]
    classes = torch.randint(0, 10, (count,))
    expected = losses_in_torch(net, x, classes, steps, rate)
    found, trained = losses_in_choir(data, x, classes, steps, rate)
    written = difference_when_written(trained, x.numpy())
    losses = (np.abs(found - expected) / np.maximum(expected, 0.01)).max()
    print(
        f"{name:9} {'dynamo' if dynamo else 'script':7} {scores:9.1e} "
        f"{losses:9.1e} {written:9.1e}   "
        f"{expected[0]:.4f} {expected[-1]:.4f} {found[-1]:.4f}",
        flush=True,
    )
    return max(scores, written) <= SCORES and losses <= LOSSES


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="names, a regular expression"
    )
    parser.add_argument("--steps", type=int, default=50, help="of SGD (50)")
    parser.add_argument(
        "--rate", type=float, default=0.01, help="of SGD (0.01)"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "network   by         scores    losses   written   first  last, and in Choir"
    )
    is_good = True
    for name in NETS:
        for dynamo in (True, False):
            if not re.search(options.only, f"{name} {dynamo}"):
                continue
            try:
                is_good &= row(name, dynamo, options.steps, options.rate)
            except Exception as error:  # the next row tells more
                text = str(error).splitlines() or [""]
                print(f"{name:9} {'dynamo' if dynamo else 'script':7} ", end="")
                print(f"{type(error).__name__}: {text[0][:200]}", flush=True)
                is_good = False
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
