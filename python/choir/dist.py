# SPDX-License-Identifier: Apache-2.0
"""Collectives and helpers under the names that Horovod's users know.

    from choir import dist

    dist.init()                              # python -m choir -np 4 train.py
    sgd = dist.DistributedOptimizer(opt.SGD(lr=dist.scale_lr(0.01)))
    ...
    accuracy = dist.average_metrics({"accuracy": hits / seen}, weight=seen)
    if dist.rank() == 0:
        model.save_checkpoint("model.safetensors")

Values are Tensors, on any device, or NumPy arrays (also numbers and lists, as
arrays); a result is of the kind that was given, and a Tensor's is on its device.
Results have no gradients, and what is called inside a model's train_one_batch
in graph mode happens in recorded steps only.

"Collective" means: all ranks call it, in the same order. Names, shapes, dtypes,
operations and roots travel ahead of the data; where ranks differ, all of them
get a ValueError that says which rank wanted what, and can go on. So too where one
rank's own call is wrong (a dtype that there is not, an object without a pickle): it
gets its own error, the others a ValueError with that in it. When a peer
dies, ends or is later than the deadline, the others get a CommError that names
it, and the communicator is broken: every later call says the same.
"""

from choir import _elastic as elastic
from choir._async_collectives import (
    Handle,
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    poll,
    synchronize,
)
from choir._collectives import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allreduce,
    grouped_allreduce_,
    join,
    reducescatter,
)
from choir._replicas import (
    DistributedOptimizer,
    allgather_object,
    average_metrics,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    rank0_only,
    scale_lr,
)
from choir._values import (
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
)
from choir._world import (
    backend,
    communicator,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from choir.opt import Warmup

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "Warmup",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "average_metrics",
    "backend",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "communicator",
    "cross_rank",
    "cross_size",
    "elastic",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "rank0_only",
    "reducescatter",
    "scale_lr",
    "shutdown",
    "size",
    "synchronize",
]
