# SPDX-License-Identifier: Apache-2.0
"""Batch norm over the samples of all ranks: layer.BatchNorm2d(sync=True)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p

from choir._calls import StateError, check, lib
from choir._here import here
from choir._lib import SyncBatchNorm, SyncBatchNormUse
from choir._raw import CTensor
from choir._tape import inner
from choir.autograd import Operator
from choir.tensor import Tensor


def note(layer) -> None:
    """In compile: the model keeps which layers forward uses, in order."""
    if here.sync_norms is not None:
        here.sync_norms.append(layer)


def struct(layer) -> SyncBatchNorm:
    """What the library's model is told of a layer."""
    name = (layer.name or type(layer).__name__).encode()
    return SyncBatchNorm(
        name,
        layer.running_mean.data.handle,
        layer.running_var.data.handle,
        layer.momentum,
        1e-5,
    )


def _learns(x: Tensor) -> bool:
    """Whether a parameter that a step trains is behind x."""
    seen, stack = set(), [x]
    while stack:
        x = inner(stack.pop())
        if x.creator is None or not x.creator.src:
            if x.stores_grad and x.requires_grad:
                return True
        elif id(x.creator) not in seen:
            seen.add(id(x.creator))
            stack.extend(x.creator.src)
    return False


class _SyncBatchNorm(Operator):
    """The operator of it, of one use in a model's step."""

    _knows_micro_shards = True

    def __init__(self, layer) -> None:
        super().__init__()
        engine, step = here.engine, here.model_step
        if engine is None or step is None:
            raise StateError(
                f"{layer.name or 'BatchNorm2d'}: sync=True is for training steps "
                "of a model that was compiled and whose optimizer is a DistOpt"
            )
        self._norm = engine.sync_norm(layer)
        self._engine, self._scope = engine, step.scope
        self._use = SyncBatchNormUse()
        self._given: tuple = ()

    def __call__(self, *xs: Tensor) -> tuple:
        self._has_backward = any(map(_learns, xs))
        return super().__call__(*xs)

    def forward(self, *xs: CTensor) -> CTensor:
        self._given = xs  # as long as the library points to them
        check(
            lib.sync_batch_norm_forward(
                self._engine._handle,
                self._scope,
                byref(self._norm),
                (c_void_p * 3)(*(x.handle for x in xs)),
                self._has_backward,
                byref(self._use),
            )
        )
        return CTensor.borrow(self._use.y, xs[0].device)

    def moments(self) -> list[CTensor]:
        """Mean and unbiased variance over all ranks."""
        device = self._given[0].device
        return [
            CTensor.borrow(handle, device)
            for handle in (self._use.mean, self._use.unbiased)
        ]

    def backward(self, dy: CTensor) -> list[CTensor]:
        grads = (c_void_p * 3)()
        status = lib.sync_batch_norm_backward(
            ctypes.addressof(self._use), dy.handle, grads
        )
        made = [CTensor.borrow(grad, dy.device) for grad in grads if grad]
        for grad in made:
            lib.tensor_release(grad.handle)
        check(status)
        return made
