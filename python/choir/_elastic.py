# SPDX-License-Identifier: Apache-2.0
"""choir.dist.elastic: training by a function that is called again when workers are
lost or come, under the names of Horovod's.

    from choir import dist

    state = dist.elastic.ModelState(m, loader, epoch=0)

    @dist.elastic.run
    def train(state):
        while state.epoch < 10:
            for x, y in loader.rest_of(state.epoch):
                out, loss = m(x, y)
            print(dist.average_metrics(...))
            state.epoch += 1
            state.commit()

    train(state)                         # python -m choir -np 4 --elastic train.py

m's optimizer is an opt.DistOpt(elastic=True). When a worker is lost, or comes, all
others leave the function, in a step or in a collective that fails; those that were
lost are left out. Then each puts its state back to what it was at the last commit (not
where workers came and none was lost), calls what register_reset_callbacks was given,
takes over rank 0's state (sync), and calls the function again. Newcomers begin with
sync. Rank 0 is always one that was there before.

Where this differs from Horovod: parameters, the optimizer's states and the loader's
place are no part of it. They are the library's, which has them as of the last step
that was made (docs/elastic.md), so that no step is lost and no sample is learnt twice.
commit, restore and sync are of the attributes alone, such as the number of the epoch;
restore takes back what they have become since the last commit, and no step.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable

from choir._calls import CommError, StateError
from choir._dist_opt import WorkersChanged, elastic_one
from choir._here import here
from choir._replicas import broadcast_object
from choir._world import communicator, init


class State:
    """What the workers have the same of when the function is called. Subclasses
    define save, restore and sync."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], object]] = []
        self._generation = 1  # of the function's call

    def register_reset_callbacks(
        self, callbacks: Iterable[Callable[[], object]]
    ) -> None:
        """Functions to call when the workers are others, before sync: to set what
        goes by dist.size(), say the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The workers are others."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """save, then check_host_updates."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Leaves the function where the workers have changed since it was called.
        They do so in training steps, which leave it by themselves."""
        optimizer = elastic_one()
        if optimizer and optimizer.generation.number != self._generation:
            raise WorkersChanged(optimizer.generation.text)

    def save(self) -> None:
        """Keeps a copy for restore."""
        raise NotImplementedError

    def restore(self) -> None:
        """As at the last save."""
        raise NotImplementedError

    def sync(self) -> None:
        """Collective: as rank 0's, and saved."""
        raise NotImplementedError

    def reset(self) -> None:
        """Of subclasses: before the callbacks."""


class ObjectState(State):
    """Attributes, given by name, that have a pickle: `state.epoch`."""

    def __init__(self, **attributes) -> None:
        super().__init__()
        self.__dict__.update(attributes)
        self._names = list(attributes)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._own())

    def restore(self) -> None:
        self.__dict__.update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.__dict__.update(broadcast_object(self._own(), 0, "elastic state"))
        self.save()

    def _own(self) -> dict:
        return {name: getattr(self, name) for name in self._names}


class ModelState(ObjectState):
    """Attributes, beside a compiled model with its optimizer and the loader of the
    training samples, or None: its sync calls model.follow(loader), by which newcomers
    are taken in."""

    def __init__(self, model, loader=None, **attributes) -> None:
        super().__init__(**attributes)
        self.model, self.loader = model, loader

    def sync(self) -> None:
        optimizer = self.model.optimizer
        if getattr(optimizer, "elastic", False) and not optimizer._followed:
            before, here.raises_changes = here.raises_changes, False
            try:
                self.model.follow(self.loader)
            finally:
                here.raises_changes = before
        super().sync()


def _recover(error: CommError) -> None:
    optimizer = elastic_one()
    if optimizer is None:
        raise error
    optimizer.recover(error)


def _call(state: State, function, args, kwargs):
    state.sync()
    optimizer = elastic_one()
    if optimizer:
        state._generation = optimizer.generation.number
    result = function(state, *args, **kwargs)
    # One that has returned must be there for those that are still in it.
    communicator().barrier("end of elastic.run")
    return result


def run(function):
    """Decorates a function(state, ...) that trains: the page's top says how it is
    called. It calls dist.init where the program did not.

    A CommError with which nobody was lost, or after which the others cannot go on,
    comes out of it."""

    @functools.wraps(function)
    def wrapper(state, *args, **kwargs):
        if here.raises_changes:
            raise StateError(
                "elastic.run: the function was called inside of one"
            )
        init()
        here.raises_changes = True
        is_reset = False
        try:
            while True:
                try:
                    if is_reset:
                        state.on_reset()
                    return _call(state, function, args, kwargs)
                except WorkersChanged:
                    pass
                except CommError as error:
                    _recover(error)
                if elastic_one().generation.lost:
                    state.restore()
                is_reset = True
        finally:
            here.raises_changes = False

    return wrapper


__all__ = ["ModelState", "ObjectState", "State", "WorkersChanged", "run"]
