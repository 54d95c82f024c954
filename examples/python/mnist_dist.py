# SPDX-License-Identifier: Apache-2.0
"""Trains a CNN on MNIST, by autograd; the launcher says with how many workers.

mpiexec --hostfile host_file python3 mnist_dist.py
"""

import mnist_cnn
from choir import opt
from common import parse

if __name__ == "__main__":
    options = parse(__doc__.splitlines()[0], log_json=True)
    sgd = opt.SGD(
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    sgd = opt.DistOpt(sgd)
    mnist_cnn.train_mnist_cnn(sgd, options)
