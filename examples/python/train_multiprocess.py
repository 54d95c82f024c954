# SPDX-License-Identifier: Apache-2.0
"""Trains a CNN on MNIST with several processes on this host.

python3 train_multiprocess.py 2 --dist-option sparseTopK
"""

import train_cnn
from choir import opt
from common import parse, run_workers


def train(local_rank, nccl_id, options):
    sgd = opt.SGD(
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    sgd = opt.DistOpt(
        sgd, nccl_id=nccl_id, local_rank=local_rank, world_size=options.workers
    )
    train_cnn.run(sgd, options)


if __name__ == "__main__":
    run_workers(train, parse(__doc__.splitlines()[0], workers=True, onnx=True))
