# SPDX-License-Identifier: Apache-2.0
"""Trains a net of an ONNX file further, on MNIST: its last node is left out, and a
new layer for other classes takes its place.

python3 train_mpi.py --epochs 1 --onnx net.onnx
python3 finetune_onnx.py --model net.onnx
python3 -m choir -np 2 finetune_onnx.py --model net.onnx --frozen
"""

import numpy as np

from choir import autograd, data, layer, opt, sonnx, tensor
from choir.utils import accuracy
from common import MNIST, open_device, parse_flags


class FineTuned(sonnx.SONNXModel):
    """All nodes of the file but the last `cut`, and a linear layer."""

    def __init__(self, onnx_model, cut, classes, dev):
        super().__init__(onnx_model, dev)
        self.cut = cut
        self.head = layer.Linear(classes)

    def forward(self, x):
        (y,) = super().forward(x, last_layers=-self.cut or None)
        return self.head(autograd.flatten(y))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def main(o):
    sgd = opt.SGD(o.lr, momentum=o.momentum)
    # What the file knows shall not be lost while the new layer knows nothing.
    sgd.add_group("head.*", lr_factor=o.head_factor)
    sgd = opt.DistOpt(sgd)
    rank, size = sgd.global_rank, sgd.world_size
    dev = open_device(o, sgd.local_rank)
    dev.SetRandSeed(o.seed)
    train, test = (
        data.mnist(o.data, split, o.limit) for split in ("train", "test")
    )
    share = {"batch": o.batch_size, "rank": rank, "size": size, "device": dev}
    batches = data.Loader(train, seed=o.seed, **share)
    others = data.Loader(test, shuffle=False, **share)
    m = FineTuned(o.model, o.cut, train.class_count, dev)
    if o.frozen:
        for parameter in m.get_params().values():
            parameter.stores_grad = parameter.requires_grad = False
    m.set_optimizer(sgd)
    m.compile([tensor.Tensor((1, 1, 28, 28), dev)], use_graph=True)
    for epoch in range(o.epochs):
        sums = np.zeros(3)  # losses, images, and what was right of the test
        m.train()
        for x, y in batches:
            if (loss := m(x, y)) is not None:  # else the others' last images
                sums[:2] += loss.item() * len(x), len(x)
        m.eval()
        for x, y in others:
            if len(x):
                sums[2] += accuracy(m(x).numpy(), y.numpy())
        sgd.communicator.all_reduce(sums)
        if rank == 0:
            found = sums[0] / sums[1], sums[2] / len(test)
            print(REPORT % (epoch, *found), flush=True)


REPORT = "Epoch %d: training loss = %.4f, test accuracy = %.4f"
if __name__ == "__main__":
    flags = dict(model=str, cut=1, frozen=False, epochs=5, batch_size=64)
    flags.update(lr=0.005, momentum=0.9, head_factor=10.0)
    flags.update(seed=0, limit=0, data=MNIST)
    main(
        parse_flags("Trains a net of an ONNX file further, on MNIST.", **flags)
    )
