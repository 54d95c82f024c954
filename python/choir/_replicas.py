# SPDX-License-Identifier: Apache-2.0
"""What keeps replicas alike, and helpers of training."""

from __future__ import annotations

import functools
import pickle

import numpy as np

from choir import _comm
from choir import opt as _opt
from choir._collectives import broadcast_
from choir._comm import pickled
from choir._calls import StateError
from choir._values import Average, Compression, Sum
from choir._world import communicator, rank, size


# ---- Objects and states ----


def broadcast_object(obj=None, root_rank: int = 0, name: str | None = None):
    """The root's object, by pickle, on every rank; collective.

    Others' `obj` is not looked at. The root gets its own object back."""
    return communicator().share_object(obj, root_rank, name or "object")


def allgather_object(obj, name: str | None = None) -> list:
    """All ranks' objects, by pickle, in rank order; collective."""
    comm, name = communicator(), name or "object"
    with comm.preparing(_comm.Kind.ALL_GATHER, name):
        data = pickled(obj)
    parts = comm.all_gather_v(data, name)
    return [pickle.loads(part.tobytes()) for part in parts]


def broadcast_parameters(params, root_rank: int = 0) -> None:
    """The root's parameters on all ranks, in place; collective.

    params: a model or layer (parameters and states), or Tensors and NumPy arrays
    by name; the same names, shapes and dtypes in the same order on all ranks.
    ValueError on all ranks names the first that differs; StateError for a model
    before compile. DistOpt does it by itself at the first step."""
    comm, what = communicator(), "broadcast_parameters: number of parameters"
    with comm.preparing(_comm.Kind.ALL_GATHER, what):
        if hasattr(params, "get_states"):
            name = type(params).__name__
            params = params.get_states()
            if not params:
                raise StateError(
                    f"broadcast_parameters: {name} has no parameters yet; call "
                    "compile first"
                )
        params = {str(name): value for name, value in dict(params).items()}
    comm.check_same(what, str(len(params)))
    for name, value in params.items():
        broadcast_(value, root_rank, name)


def broadcast_optimizer_state(optimizer, root_rank: int = 0) -> None:
    """The root's step count, settings that changed (the learning rate) and
    states (momentum and so on) on all ranks; collective.

    States are set for parameters that this rank's optimizer has met: in a step,
    or since compile where the optimizer is a model's."""
    comm, what = communicator(), "optimizer state"
    with comm.preparing_object(what):
        core = getattr(optimizer, "opt", optimizer)
        if not isinstance(core, _opt.Optimizer):
            raise TypeError(
                f"broadcast_optimizer_state: a {type(optimizer).__name__}; an "
                "optimizer is needed"
            )
        own = (core.lr, core.get_states())
    lr, states = comm.share_object(own, root_rank, what)
    if comm.global_rank != root_rank:
        core.lr = lr
        core.set_states(states)


# ---- Training ----


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    **settings,
):
    """opt.DistOpt on the communicator of init; its first step is collective.

    compression: fp16 averages gradients that travel as float16. Each update
    follows `backward_passes_per_step` steps, with their gradients added up, as
    docs/strategies.md says. named_parameters: not needed, and not looked at:
    the parameters behind the loss are updated. op: Average alone; for a sum
    multiply the learning rate by size()."""
    communicator()
    if op != Average:
        raise ValueError(
            "DistributedOptimizer: gradients are averaged (op=dist.Average); for "
            "their sum multiply the learning rate by dist.size()"
        )
    made = _opt.DistOpt(
        optimizer,
        backward_passes_per_step=backward_passes_per_step,
        **settings,
    )
    if compression is Compression.fp16:
        made.use("fp16")
    return made


def scale_lr(lr: float) -> float:
    """lr * size(): for a batch that grew with the number of workers."""
    return lr * size()


def average_metrics(metrics: dict, weight: float = 1.0) -> dict[str, float]:
    """The averages over ranks of numbers by name; collective.

    weight: of this rank, say the samples that its numbers are of; a rank without
    any gives 0. NaN where all weights are 0. The same names on all ranks, else
    a ValueError on all. The same floats on all ranks."""
    comm, what = communicator(), "average_metrics"
    with comm.preparing(_comm.Kind.ALL_GATHER, what):
        if not weight >= 0:
            raise ValueError(f"{what}: weight is {weight}; 0 or more")
        names = sorted(metrics)
        text = ",".join(names)
        values = np.array([float(metrics[n]) for n in names] + [1.0])
        # 0 * NaN is NaN, and a rank without samples has 0 / 0.
        values = values * float(weight) if weight else np.zeros_like(values)
    comm.check_same(what, text)
    total = comm.all_reduce(values, Sum, what)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = total[:-1] / total[-1]
    return {name: float(mean) for name, mean in zip(names, means)}


def rank0_only(function):
    """Decorates a function that only rank 0 runs; None on the others. Nothing in
    it may be collective."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if rank() == 0:
            return function(*args, **kwargs)
        return None

    return wrapper
