# SPDX-License-Identifier: Apache-2.0
"""Trains a CNN on MNIST; the launcher says with how many workers, and where.

python3 -m choir -np 2 train_mpi.py
mpiexec -n 2 python3 train_mpi.py --dist-option fp16
python3 train_mpi.py --onnx net.onnx
choirrun -np 2 -H localhost:1,other:1 python3 train_mpi.py
"""

import train_cnn
from choir import opt
from common import parse

if __name__ == "__main__":
    options = parse(__doc__.splitlines()[0], onnx=True)
    sgd = opt.SGD(
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    sgd = opt.DistOpt(sgd)
    train_cnn.run(sgd, options)
