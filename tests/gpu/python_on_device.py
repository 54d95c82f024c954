# SPDX-License-Identifier: Apache-2.0
"""The Python package on a device: an op's numbers, and a small network whose loss
falls as it does on the CPU.

    python_on_device.py --device cpu|cuda
"""

import argparse
import os
import sys

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
sys.path.insert(0, os.path.join(ROOT, "python"))

import numpy as np  # noqa: E402

from choir import device, layer, model, opt, tensor  # noqa: E402

STEPS = 20


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.first = layer.Linear(32)
        self.relu = layer.ReLU()
        self.last = layer.Linear(4)
        self.loss = layer.SoftMaxCrossEntropy()

    def forward(self, x):
        return self.last(self.relu(self.first(x)))

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = self.loss(out, y)
        self.optimizer(loss)
        return out, loss


def train(dev):
    """The loss of each step."""
    dev.SetRandSeed(1)
    numbers = np.random.default_rng(0)
    x = tensor.from_numpy(numbers.standard_normal((64, 16)).astype(np.float32))
    y = tensor.from_numpy(numbers.integers(0, 4, 64).astype(np.int32))
    x.to_device(dev)
    y.to_device(dev)
    net = Net()
    net.set_optimizer(opt.SGD(lr=0.1, momentum=0.9))
    net.compile([x], is_train=True, use_graph=True)
    return [tensor.to_numpy(net(x, y)[1]).item() for _ in range(STEPS)]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options = parser.parse_args(argv)
    dev = device.create_cpu_device()
    if options.device == "cuda":
        dev = device.create_cuda_gpu()
        print(device.device_query(0, verbose=True))
    numbers = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    x = tensor.Tensor(data=numbers, device=dev)
    np.testing.assert_array_equal(tensor.to_numpy(x + x), numbers + numbers)
    losses = train(dev)
    np.testing.assert_allclose(
        losses, train(device.create_cpu_device()), rtol=1e-4
    )
    if not losses[-1] < 0.5 * losses[0]:
        sys.exit("python_on_device: the loss does not fall: %s" % losses)
    print("loss = %.6f after %d steps, from %.6f" % (
        losses[-1], STEPS, losses[0]))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
