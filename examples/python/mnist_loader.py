# SPDX-License-Identifier: Apache-2.0
"""Trains on MNIST with Choir's loader: the bits of the C example mnist_dist.

python3 mnist_loader.py 2
"""

from choir import data, opt
from choir import tensor
from common import MNIST, open_device, parse, run_workers
from train_cnn import CNN


def train(local_rank, nccl_id, options):
    sgd = opt.SGD(
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    sgd = opt.DistOpt(
        sgd, nccl_id=nccl_id, local_rank=local_rank, world_size=options.workers
    )
    dev = open_device(options, sgd.local_rank)
    dev.SetRandSeed(options.seed)
    images = data.mnist(options.data or MNIST, limit=options.limit)
    loader = data.Loader(
        images,
        options.batch_size,
        sgd.global_rank,
        sgd.world_size,
        device=dev,
        seed=options.seed,
    )
    m = CNN()
    m.set_optimizer(sgd)
    m.compile(
        [tensor.Tensor((1, 1, 28, 28), dev)],
        is_train=True,
        use_graph=not options.no_graph,
    )
    for epoch in range(options.epochs):
        for batch in loader:
            m(batch.x, batch.y, options.dist_option, options.spars)
        sgd.consolidate()
        digest = m.digest()
        sgd.check_digest(digest)
        if sgd.global_rank == 0:
            print("epoch = %d, digest = %016x" % (epoch, digest), flush=True)


if __name__ == "__main__":
    run_workers(train, parse(__doc__.splitlines()[0], workers=True))
