# SPDX-License-Identifier: Apache-2.0
"""What attention keeps of a text while a model writes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from choir._calls import NotCopied, Owner, StateError, check, lib, ranged
from choir._here import here
from choir.tensor import Tensor, _need_tensor


class KVCache(Owner, NotCopied):
    """The keys and values that causal attention made of the places seen so far, so
    that a model which writes a text computes each new place alone:

        cache = model.KVCache(m, samples=1, places=1024)
        y = m.predict_next(prompt, cache)  # (1, t)
        y = m.predict_next(token, cache)   # (1, 1), as long as there is room

    For `samples` texts of at most `places` places each. Memory comes with the first
    prediction: samples x places x the elements of key and value, in each layer of
    attention. They are those of the parameters of then: `keep(0)` after a change.
    """

    _computes = True

    def __init__(self, model, samples: int, places: int) -> None:
        params = model.get_params()
        if not params:
            raise StateError(
                f"{type(model).__name__} has no parameters yet; call compile first"
            )
        self.model = model
        self._own(
            lib.kv_cache_destroy,
            lib.kv_cache_create_alone,
            next(iter(params.values())).device.handle,
            ranged(samples, "samples"),
            ranged(places, "places"),
        )

    def __len__(self) -> int:
        """Places that it holds."""
        return lib.kv_cache_count(self.handle)

    def keep(self, count: int) -> None:
        """Forgets all but the first `count` places; more: nothing happens."""
        lib.kv_cache_keep(self.handle, ranged(count, "count"))

    @contextlib.contextmanager
    def _coming(self, x: Tensor) -> Iterator[None]:
        """While layers run with x, whose places the cache holds afterwards, or, when
        that raises, what it held."""
        x = _need_tensor(x, "predict_next")
        check(lib.kv_cache_begin(self.handle, x.data.handle))
        before, here.cache = here.cache, self
        is_done = False
        try:
            yield
            is_done = True
        finally:
            here.cache = before
            lib.kv_cache_end(self.handle, is_done)
