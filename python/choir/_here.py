# SPDX-License-Identifier: Apache-2.0
"""What each thread has of its own: whether operators remember their inputs, and
the step that runs in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from choir._engine import Engine
    from choir._kv_cache import KVCache
    from choir.autograd import _Part, _Scope


class _Here(threading.local):
    # What a thread begins with: as the main thread has it then.
    start = False

    def __init__(self) -> None:
        self.training = type(self).start
        self.before: list[bool] = []  # in the blocks of autograd.no_grad
        # Operators remember their inputs in inference too, all of them, for a file.
        self.keeps_all = False
        # The library's dtype for the factors of products; None: their own.
        self.precision: int | None = None
        # Of the prediction of next places that runs; None: there is none.
        self.cache: KVCache | None = None
        self.engine: Engine | None = None  # whose step runs
        self.model_step: _Scope | None = None  # that step
        self.part: _Part | None = None  # in autograd.recompute
        # Layers of batch norm over all ranks that a compile has come to.
        self.sync_norms: list | None = None
        # The optimizer's calls in train_one_batch do nothing: its step was taken back.
        self.is_taken_back = False
        # Whether such a step raises WorkersChanged (elastic.run).
        self.raises_changes = False
        # Whether it is training outside, while a Composite's forward records.
        self.outer_training: bool | None = None


here = _Here()


def set_training(value: bool) -> None:
    here.training = value
    if threading.current_thread() is threading.main_thread():
        _Here.start = value
