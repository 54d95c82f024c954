# SPDX-License-Identifier: Apache-2.0
"""Optimizers. The arithmetic is the C library's (tensor/optimizers.h), so its steps have
the same bits in both languages."""

from __future__ import annotations

from ctypes import POINTER, byref, c_void_p, pointer

import numpy as np

from choir import _engine, autograd, tensor
from choir._here import here
from choir._calls import NotCopied, Owner, StateError, check, lib
from choir._lib import NamedTensor, Param
from choir._raw import CTensor
from choir._sections import deferred, lock, with_handlers
from choir._schedules import Constant, DecayScheduler, as_schedule, scalar
from choir._settings import Table
from choir.tensor import Tensor


class _Single(Owner, NotCopied):
    """An optimizer of the C library for one parameter."""

    def __init__(
        self, owner: Optimizer, name: str, param: Tensor, grad: Tensor
    ):
        owner._create(self)
        self.tensor = param
        self.raw = param.data
        self.param = POINTER(Param)()
        self._device = param.device
        made = c_void_p()
        check(lib.param_set_create(self._device.handle, byref(made)))
        try:
            check(
                lib.param_set_add(
                    made,
                    name.encode(),
                    self.raw.handle,
                    False,
                    byref(self.param),
                )
            )
            lib.param_use_grad(self.param, grad.data.handle)
            self.param.contents.trainable = True
            check(lib.optimizer_attach(self.handle, self._device.handle, made))
        finally:
            lib.param_set_release(made)  # the optimizer keeps it

    def update(self, grad: Tensor, step: int) -> None:
        lib.param_use_grad(self.param, grad.data.handle)
        check(lib.optimizer_update(self.handle, self._device.stream, step))

    def states(self) -> dict[str, Tensor]:
        return _states(self.handle, self._device)


def _states(handle: int, device) -> dict[str, Tensor]:
    count = lib.optimizer_states(handle, None)
    named = (NamedTensor * max(count, 1))()
    lib.optimizer_states(handle, named)
    return {
        named[i].name.decode(): Tensor._of(
            CTensor.borrow(named[i].tensor, device)
        )
        for i in range(count)
    }


class Optimizer(Owner):
    """What all optimizers share.

    lr: a number or a DecayScheduler. Parameters need no registration: those
    behind the loss are updated, and frozen with `stores_grad = False`.

    A subclass of it, or of one of the optimizers, can update in Python: it defines
    `apply(param_name, param_value, param_grad)`, which changes param_value in place
    and keeps what it needs in itself by the name. Steps with it are eager.
    """

    _name: str = ""  # in the C library
    _table: Table
    _definition: int

    def __init__(self, lr, dtype=tensor.float32, **settings) -> None:
        self._schedule = as_schedule(lr)
        self.dtype = dtype
        self._settings = {}
        for name, value in settings.items():
            if isinstance(value, DecayScheduler):
                if not isinstance(value, Constant):
                    raise NotImplementedError(
                        f"{type(self).__name__}: {name} is a schedule; only lr can "
                        "be one"
                    )
                value = value.init_value
            self._settings[name] = value
        self._groups: list[dict] = []
        self._clip: dict = {}
        self._singles: dict[str, _Single] = {}
        self._engine: _engine.Engine | None = None
        self.handle: int | None = None  # of the engine, or of DistOpt
        self._step = 0
        self._pending: dict[str, np.ndarray] = {}  # set_states before a step
        self._resumes = False
        # Wrong settings are told here, not at the first step.
        if self._name:
            self._own_handle()
        elif settings:
            raise TypeError(
                f"{type(self).__name__} has no setting {next(iter(settings))!r}; "
                "Optimizer takes lr and dtype"
            )

    @property
    def _in_python(self) -> bool:
        """Whether its class updates parameters one by one, by code of its own."""
        own, base = type(self), Optimizer
        return (
            not own._name
            or own.apply is not base.apply
            or own.update is not base.update
            or own.call is not base.call
        )

    def __getstate__(self) -> dict:
        """For pickle and copy: settings, the step and the states, as set_states
        takes them."""
        state = dict(self.__dict__)
        for name in ("_singles", "_engine", "handle", "_release", "_resumes"):
            state.pop(name, None)
        state["_pending"] = {**self._pending, **self.get_states()}
        return state

    def __setstate__(self, state: dict) -> None:
        # Of what was pickled before there were any.
        self._groups, self._clip = [], {}
        self.__dict__.update(state)
        self._singles = {}
        self._engine = self.handle = None
        self.set_states(self._pending)
        # The step is exact here.
        self._step = state["_step"]

    # ---- The library's object ----

    def _create(self, owner: Owner) -> None:
        """Makes one for its owner."""
        settings = self._table.make(
            type(self).__name__,
            lr=with_handlers(self._schedule.value, self._step),
            **self._settings,
        )
        owner._own(
            lib.optimizer_release,
            lib.optimizer_create,
            self._definition,
            settings,
        )
        for group in self._groups:
            self._give_group(owner.handle, group)
        self._give_clip(owner.handle, self._clip)

    def _give_group(self, handle: int, group: dict) -> None:
        """Adds a group to an optimizer of the library."""
        settings = {k: v for k, v in group.items() if v is not None}
        if isinstance(group["lr"], DecayScheduler):
            settings["lr"] = with_handlers(group["lr"].value, self._step)
        struct = _GROUP.make(type(self).__name__, **settings)
        check(lib.optimizer_add_param_group(handle, struct))

    def add_group(
        self,
        match,
        lr=None,
        lr_factor: float = 1.0,
        weight_decay: float | None = None,
        trainable: bool = True,
    ) -> int:
        """Settings of their own for parameters, by their names; before the first
        step. The number of the group.

        match: a name, a pattern ("*.b", where * stands for any text) or several of
        them. A parameter is of the first group that has a pattern which is its
        whole name. lr: a number or a DecayScheduler in the place of the
        optimizer's; lr_factor multiplies either. weight_decay in the place of the
        optimizer's. trainable=False freezes the parameters.
        """
        if not isinstance(match, str):
            match = ",".join(match)
        group = {
            "match": match,
            "lr": lr.init_value if isinstance(lr, Constant) else lr,
            "lr_factor": lr_factor,
            "weight_decay": weight_decay,
            "trainable": trainable,
        }
        if self._singles or self._pending:
            raise StateError(
                f"{type(self).__name__}: a group after steps with other settings; "
                "add groups before the first"
            )
        with deferred():
            self._give_group(self._own_handle(), group)
            self._groups.append(group)
        return len(self._groups) - 1

    def _give_clip(self, handle: int, clip: dict) -> None:
        struct = _CLIP.make(type(self).__name__, **clip)
        check(lib.optimizer_set_clip(handle, struct))

    def clip_gradients(self, value: float = 0, norm: float = 0) -> None:
        """Limits of the gradients before each update; before the first step.

        value: the largest size of an element. norm: the largest norm of all
        gradients together, which are scaled by norm / theirs where that is above
        (Pascanu, Mikolov and Bengio, 2013). 0: no limit. With DistOpt they are what
        all ranks have combined. `apply`, which has one gradient, refuses a norm.
        """
        clip = {"value": value, "norm": norm}
        with deferred():
            self._give_clip(self._own_handle(), clip)
            self._clip = clip

    def set_group_lr(self, group: int, lr) -> None:
        """Another lr of a group, by its number: from the next step on."""
        rate = as_schedule(lr).value(self._step)
        with deferred():
            for handle in self._handles():
                check(lib.optimizer_set_group_lr(handle, group, rate))
            self._groups[group]["lr"] = lr

    def _handles(self) -> list[int]:
        """Of the library's optimizers: the own one and those of apply."""
        own = [] if self.handle is None else [self.handle]
        return own + [single.handle for single in self._singles.values()]

    def _own_handle(self) -> int:
        if not self._name:
            raise NotImplementedError(
                f"{type(self).__name__} updates parameters in Python; this is for "
                f"the C library's optimizers ({', '.join(optimizers())})"
            )
        if self.handle is None:
            self._create(self)
        return self.handle

    def _updater(self) -> int:
        return lib.optimizer_updater(self._own_handle())

    def _set_lr(self, step: int) -> None:
        """Before each step of an engine: what the schedule says."""
        if self.handle is not None:
            self._follow_schedules([self.handle], step)

    def _follow_schedules(self, handles: list[int], step: int) -> None:
        if not isinstance(self._schedule, Constant):
            rate = with_handlers(self._schedule.value, step)
            for handle in handles:
                check(lib.optimizer_set_lr(handle, rate))
        for i, group in enumerate(self._groups):
            if isinstance(group["lr"], DecayScheduler):
                rate = with_handlers(group["lr"].value, step)
                for handle in handles:
                    check(lib.optimizer_set_group_lr(handle, i, rate))

    # ---- As in SINGA ----

    @property
    def lr(self):
        """The learning rate: a number or a schedule, as it was given."""
        if isinstance(self._schedule, Constant):
            return self._schedule.init_value
        return self._schedule

    @lr.setter
    def lr(self, value) -> None:
        schedule = as_schedule(value)
        rate = schedule.value(self._step)
        if self._name:
            self._table.make(type(self).__name__, lr=rate)
        with deferred():
            self._schedule = schedule
            for handle in self._handles():
                check(lib.optimizer_set_lr(handle, rate))

    @property
    def lr_value(self) -> Tensor:
        """The learning rate of this step, of shape (1,)."""
        return self._scalar("lr", self._schedule.value(self._step))

    @property
    def step_counter(self) -> Tensor:
        """Steps done, of shape (1,)."""
        return self._scalar("step", float(self._step))

    def _scalar(self, name: str, value: float) -> Tensor:
        """The same Tensor each time, where device_check moved it; a new one in a
        step of a model, whose tensors do not outlive it."""
        if here.engine is not None:
            return scalar(value)
        kept = self.__dict__.setdefault("_scalars", {})
        before, made = kept.get(name) or (None, None)
        if made is None:
            made = scalar(value)
        elif before != value:
            made.set_value(value)
        kept[name] = value, made
        return made

    def __call__(self, loss: Tensor) -> None:
        self.backward_and_update(loss)

    def call(self, loss: Tensor) -> None:
        """The same; of a class that updates in Python without counting the step."""
        if not self._in_python:
            self.backward_and_update(loss)
            return
        for param, grad in autograd.backward(loss):
            with autograd.no_grad():
                self.update(param, grad)

    def backward_and_update(self, loss: Tensor) -> None:
        """Gradients of the loss and a step with all of them."""
        if self._in_python:
            self.call(loss)
            self.step()
        elif here.engine is not None:
            here.engine.backward_and_update(loss)
            self._step = here.engine.step()
        else:
            self._train_alone(loss, self._updater)

    def _train_alone(
        self, loss: Tensor, updater, first: int = 0, total: int = 1
    ) -> None:
        """A step outside of a model, by an engine of this optimizer's own.

        updater: gives the choir_updater_t* that the engine trains with. first, total:
        this step's sample and the number of samples of all ranks."""
        with lock, deferred():
            engine = self._engine_of(loss, updater)
            before = engine.step()
            self._set_lr(before)
            try:
                engine.train(
                    lambda: engine.backward_and_update(loss),
                    first_sample=first,
                    global_count=total,
                )
            finally:
                self._step = engine.step()
                if self._step != before:
                    autograd.place.end_step()

    def _engine_of(self, loss: Tensor, updater) -> _engine.Engine:
        params = _engine.behind(loss)
        if not params:
            raise StateError(
                "backward_and_update: the loss depends on no parameter (a tensor "
                "with stores_grad) that an operator saw; set autograd.training = "
                "True before forward"
            )
        if (
            self._engine is None
            or not self._engine.has_updater
            or any(id(p) not in self._engine._params for p in params)
        ):
            names = _unique_names(params)
            step = self._engine.step() if self._engine else self._step
            states = self._engine.states() if self._engine else {}
            self._detach()
            self._engine = _engine.Engine(
                "loss",
                loss.device,
                list(zip(names, params)),
                [],
                updater(),
            )
            self._engine.set_step(step)
            own = self._engine.states()
            for name, state in own.items():
                if "/" in name and name in states:
                    state.copy_data(states[name])
            self._engine.put(own)
            self._take_pending(own)
        return self._engine

    def step(self) -> None:
        """Counts a step; for those who apply gradients one by one."""
        self._step += 1
        singles = self._singles.values()
        self._follow_schedules([s.handle for s in singles], self._step)
        for single in singles:
            lib.trace_set_step(single._device.handle, self._step)

    def apply(
        self, param_name: str, param_value: Tensor, param_grad: Tensor
    ) -> None:
        """Updates one parameter in place; states are kept by its name."""
        if isinstance(param_grad, CTensor):
            param_grad = Tensor._of(param_grad)
        if param_value.shape != param_grad.shape:
            raise ValueError(
                f"apply: {param_name} has shape {param_value.shape} and its gradient "
                f"{param_grad.shape}"
            )
        with lock, deferred():
            self._apply(param_name, param_value, param_grad)

    def _apply(
        self, param_name: str, param_value: Tensor, param_grad: Tensor
    ) -> None:
        if not self._name:
            raise NotImplementedError(
                f"{type(self).__name__} defines no apply(param_name, param_value, "
                "param_grad)"
            )
        if self._clip.get("norm"):
            raise NotImplementedError(
                "apply: gradients are clipped by the norm of all of them, and "
                "apply has one; call the optimizer with the loss"
            )
        key, kept, count = param_name, {}, 0
        single = self._singles.get(key)
        while single is not None and single.raw is not param_value.data:
            if single.tensor is param_value:
                kept = single.states()  # its elements lie elsewhere now
                single = None
                break
            # Another parameter of that name.
            count += 1
            key = f"{param_name}#{count}"
            single = self._singles.get(key)
        if single is None:
            single = _Single(self, key, param_value, param_grad)
            self._singles[key] = single
            states = single.states()
            for name, state in kept.items():
                states[name].copy_data(state)
            self._take_pending(states)
        single.update(param_grad, self._step)

    def update(self, param: Tensor, grad: Tensor) -> None:
        """apply, with the parameter's own name."""
        self.apply(param.name, param, grad)

    def device_check(self, *inputs: Tensor) -> None:
        """Moves tensors to the first one's device."""
        for other in inputs[1:]:
            other.to_device(inputs[0].device)

    def get_states(self) -> dict[str, np.ndarray]:
        """'step_counter' and the states of each parameter, as arrays."""
        step = np.float32(self._step)
        if float(step) != self._step:
            step = np.float64(self._step)
        states: dict = {"step_counter": step}
        for single in self._singles.values():
            for name, state in single.states().items():
                states[name] = tensor.to_numpy(state)
        if self.handle is not None and self._engine is not None:
            for name, state in self._engine.states().items():
                if "/" in name:
                    states[name] = tensor.to_numpy(state)
        return states

    def set_states(self, states: dict) -> None:
        """Takes what get_states gave; for parameters that were not updated yet,
        when they are for the first time."""
        step = int(states["step_counter"])
        own: dict[str, Tensor] = {}
        for single in self._singles.values():
            own.update(single.states())
        if self._engine is not None:
            own.update(self._engine.states())
        given = {
            self._state_name(n): np.asarray(v)
            for n, v in states.items()
            if "/" in n
        }
        for name, value in given.items():
            if name in own and own[name].shape != value.shape:
                raise ValueError(
                    f"set_states: {name} has shape {own[name].shape}; a value of "
                    f"shape {value.shape} was given"
                )
        with deferred():
            self._step = step
            self._pending = given
            self._take_pending(own)
            if self._engine is not None:
                self._engine.set_step(step)
            self._resumes = self._engine is None

    @staticmethod
    def _state_name(name: str) -> str:
        """Today's name of a state that an earlier version may have named."""
        return name

    def _take_pending(self, own: dict[str, Tensor]) -> None:
        """States that were set before their parameters were known."""
        taken = {n: own[n] for n in self._pending if n in own}
        for name, state in taken.items():
            state.copy_from_numpy(self._pending.pop(name))
        if self._engine is not None:
            self._engine.put(taken)

    def _detach(self, model=None) -> None:
        """Before an engine of `model` gets this optimizer: takes it from the one
        before, unless that trains another model with it."""
        engine = self._engine
        if engine is None or not engine.has_updater:
            return
        owner = engine.owner and engine.owner()
        if owner is None or owner is model or not owner._trains_with(self):
            engine.detach()

    def _trained_alone(self, params) -> bool:
        """Whether it made steps with these parameters outside of a model, as one
        makes before compile."""
        engine = self._engine
        if engine is None or engine.owner is not None:
            return False
        return engine._params.keys() <= {id(p) for p in params}

    def _attach(self, engine: _engine.Engine) -> None:
        """The engine of a model that will use this optimizer."""
        self._engine = engine
        if self._resumes:
            engine.set_step(self._step)
            self._resumes = False
        if self._pending:
            self._take_pending(engine.states())

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in self._settings.items())
        return f"{type(self).__name__}(lr={self.lr}, {settings})"


def _unique_names(params: list[Tensor]) -> list[str]:
    """The parameters' names, told apart where two are alike."""
    names: list[str] = []
    for i, p in enumerate(params):
        name = p.name
        names.append(name if name not in names else f"{name}#{i}")
    return names


_GROUP = Table(pointer(lib.param_group_def))
_CLIP = Table(pointer(lib.gradient_clip_def))


def _definitions() -> dict[str, int]:
    found = {}
    while True:
        definition = lib.optimizer_def_get(len(found))
        if not definition:
            return found
        found[
            lib.optimizer_def_config(definition).contents.name.decode()
        ] = definition


_OPTIMIZERS = _definitions()


def optimizers() -> list[str]:
    """The library's names of optimizers."""
    return list(_OPTIMIZERS)


def _bind(cls: type[Optimizer], name: str) -> None:
    cls._name = name
    cls._definition = _OPTIMIZERS[name]
    cls._table = Table(lib.optimizer_def_config(_OPTIMIZERS[name]))


class SGD(Optimizer):
    """g += weight_decay p; v = momentum v + (1 - dampening) g; p -= lr v, or with
    nesterov p -= lr (g + momentum v). v starts as 0."""

    def __init__(
        self,
        lr=0.1,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        dtype=tensor.float32,
    ) -> None:
        super().__init__(
            lr,
            dtype,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )


class Adam(Optimizer):
    """Kingma and Ba, "Adam", 2015, with bias correction; epsilon outside the root.

    lr is 0.1 unless given, as in SINGA."""

    def __init__(
        self, lr=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0
    ) -> None:
        super().__init__(
            lr,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
        )

    @staticmethod
    def _state_name(name: str) -> str:
        param, state = name.rsplit("/", 1)
        now = {"mean": "exp_avg", "square": "exp_avg_sq"}
        return f"{param}/{now.get(state, state)}"


class AdamW(Adam):
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019: Adam,
    and p -= lr weight_decay p beside its step."""

    def __init__(
        self,
        lr=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
    ) -> None:
        super().__init__(lr, beta_1, beta_2, epsilon, weight_decay)


class RMSProp(Optimizer):
    """avg = rho avg + (1 - rho) g^2; p -= lr g / sqrt(avg + epsilon)."""

    def __init__(self, lr=0.1, rho=0.9, epsilon=1e-8, weight_decay=0) -> None:
        super().__init__(
            lr, rho=rho, epsilon=epsilon, weight_decay=weight_decay
        )


class AdaGrad(Optimizer):
    """history += g^2; p -= lr g / sqrt(history + epsilon)."""

    def __init__(self, lr=0.1, epsilon=1e-8, weight_decay=0) -> None:
        super().__init__(lr, epsilon=epsilon, weight_decay=weight_decay)


def _make_classes() -> dict[str, type[Optimizer]]:
    """The classes above with their definitions, and one for each other of the list."""
    written = {
        "sgd": SGD,
        "adam": Adam,
        "adamw": AdamW,
        "rmsprop": RMSProp,
        "adagrad": AdaGrad,
    }
    classes = {}
    for name in _OPTIMIZERS:
        cls = written.get(name)
        if cls is None:
            words = "".join(word.capitalize() for word in name.split("_"))
            cls = type(words, (Optimizer,), {"__module__": "choir.opt"})
            _bind(cls, name)
            _set_init(cls)
        else:
            _bind(cls, name)
        classes[cls.__name__] = cls
    return classes


def _set_init(cls: type[Optimizer]) -> None:
    default = cls._table.fields["lr"].default

    def __init__(self, lr=default, **settings) -> None:
        Optimizer.__init__(self, lr, **settings)

    cls.__init__ = __init__
    cls.__doc__ = f"{cls._table.doc}.\n\nSettings:\n\n{cls._table.describe()}"


classes = _make_classes()
