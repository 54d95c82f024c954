# SPDX-License-Identifier: Apache-2.0
"""Optimizers, learning-rate schedules and DistOpt.

    sgd = opt.SGD(lr=0.005, momentum=0.9)
    sgd = opt.DistOpt(sgd)               # on many workers
    model.set_optimizer(sgd)

Inside `train_one_batch`, or after forward without a model, `sgd(loss)` (also
`sgd.backward_and_update(loss)`) computes gradients and updates every parameter
behind the loss.
"""

from choir import _optimizers
from choir._dist_opt import DistOpt, strategies
from choir._optimizers import (
    SGD,
    AdaGrad,
    Adam,
    AdamW,
    Optimizer,
    RMSProp,
    optimizers,
)
from choir._schedules import (
    Constant,
    Cosine,
    DecayScheduler,
    ExponentialDecay,
    Warmup,
)

__all__ = [
    "AdaGrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "DecayScheduler",
    "DistOpt",
    "ExponentialDecay",
    "Optimizer",
    "RMSProp",
    "SGD",
    "Warmup",
    "optimizers",
    "strategies",
]
# The rest of the C library's list.
globals().update(_optimizers.classes)
__all__ += [name for name in _optimizers.classes if name not in __all__]
