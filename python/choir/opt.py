# SPDX-License-Identifier: Apache-2.0
"""Optimizers, learning-rate schedules and DistOpt.

    sgd = opt.SGD(lr=0.005, momentum=0.9)
    sgd = opt.DistOpt(sgd)               # on many workers
    model.set_optimizer(sgd)

Inside `train_one_batch`, or after forward without a model, `sgd(loss)` (also
`sgd.backward_and_update(loss)`) computes gradients and updates every parameter
behind the loss. The arithmetic is the C library's (tensor/ops.h), so its steps
have the same bits in both languages.
"""

from __future__ import annotations

import ctypes
import json
from ctypes import POINTER

import numpy as np

from choir import _checkpoint, _comm, _engine, autograd, tensor
from choir._comm import Communicator, NcclIdHolder
from choir._lib import (
    NamedTensor,
    Param,
    ParamList,
    StateError,
    check,
    get,
    lib,
)
from choir._raw import CTensor
from choir._settings import Table
from choir.tensor import Tensor

# ---- Schedules ----


class DecayScheduler:
    """A value that changes from step to step. Subclasses define `call`."""

    def __init__(self, init_value: float) -> None:
        self.init_value = init_value

    def __call__(self, step: Tensor) -> Tensor:
        """The value at a step, a tensor of one element, as one of shape (1,)."""
        if not isinstance(step, Tensor):
            raise TypeError(
                f"the step is a {type(step).__name__}; a Tensor is needed (value(step) "
                "takes a number)"
            )
        return self.call(step)

    def call(self, step: Tensor) -> Tensor:
        return _one(self.value(int(step.item())), step.device)

    def value(self, step: int) -> float:
        """The value at a step as a number."""
        if type(self).call is DecayScheduler.call:
            raise NotImplementedError(f"{type(self).__name__} defines no call")
        return float(self.call(_one(float(step))))


def _one(value: float, device=None) -> Tensor:
    return Tensor((1,), device).set_value(value)


class Constant(DecayScheduler):
    """Always the same."""

    def value(self, step: int) -> float:
        return float(self.init_value)


class ExponentialDecay(DecayScheduler):
    """init_value * decay_rate ^ (step / decay_steps); staircase: in whole steps."""

    def __init__(
        self,
        init_value: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
    ) -> None:
        super().__init__(init_value)
        if decay_steps <= 0:
            raise ValueError(
                f"decay_steps is {decay_steps}; needs to be above 0"
            )
        self.decay_steps = decay_steps
        self.decay_rate = decay_rate
        self.staircase = staircase

    def value(self, step: int) -> float:
        times = step / self.decay_steps
        if self.staircase:
            times = step // self.decay_steps
        return float(self.init_value * self.decay_rate**times)


class Cosine(DecayScheduler):
    """From init_value to final_value along half a cosine over `period` steps."""

    def __init__(
        self, init_value: float, period: int, final_value: float = 0.0
    ):
        super().__init__(init_value)
        if period <= 0:
            raise ValueError(f"period is {period}; needs to be above 0")
        self.period = period
        self.final_value = final_value

    def value(self, step: int) -> float:
        share = min(step / self.period, 1.0)
        curve = 0.5 * (1.0 + np.cos(np.pi * share))
        return float(
            self.final_value + (self.init_value - self.final_value) * curve
        )


class Warmup(DecayScheduler):
    """Another schedule, or a number, reached in `steps` steps of linear growth."""

    def __init__(self, schedule, steps: int) -> None:
        schedule = _as_schedule(schedule)
        if steps < 0:
            raise ValueError(f"steps is {steps}; needs to be 0 or above")
        super().__init__(schedule.init_value)
        self.schedule = schedule
        self.steps = steps

    def value(self, step: int) -> float:
        factor = min(1.0, (step + 1) / (self.steps + 1))
        return factor * self.schedule.value(step)


def _as_schedule(value) -> DecayScheduler:
    return value if isinstance(value, DecayScheduler) else Constant(value)


# ---- Optimizers ----


class _Single:
    """An optimizer of the C library for one parameter."""

    def __init__(
        self, owner: Optimizer, name: str, param: Tensor, grad: Tensor
    ):
        self.handle = owner._create()
        self.tensor = param
        self.raw = param.data
        self.grad = grad
        self.param = Param(
            name=name.encode(),
            value=param.data.handle,
            grad=grad.data.handle,
            trainable=True,
        )
        self._list = (POINTER(Param) * 1)(ctypes.pointer(self.param))
        self._device = param.device
        check(
            lib.optimizer_attach(
                self.handle,
                self._device.handle,
                ParamList(ctypes.cast(self._list, POINTER(POINTER(Param))), 1),
            )
        )

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            lib.optimizer_release(self.handle)

    def update(self, grad: Tensor, step: int) -> None:
        self.grad = grad  # alive until the next one
        self.param.grad = grad.data.handle
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


class Optimizer:
    """What all optimizers share. Subclasses name an optimizer of the C library.

    lr: a number or a DecayScheduler. Parameters need no registration: those
    behind the loss are updated, and frozen with `stores_grad = False`.
    """

    _name: str = ""  # in the C library
    _table: Table
    _definition: int

    def __init__(self, lr, dtype=tensor.float32, **settings) -> None:
        self._schedule = _as_schedule(lr)
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
        self._singles: dict[str, _Single] = {}
        self._engine: _engine.Engine | None = None
        self._handle: int | None = None  # of the engine, or of DistOpt
        self._step = 0
        self._pending: dict[str, np.ndarray] = {}  # set_states before a step
        self._resumes = False
        # Wrong settings are told here, not at the first step.
        lib.optimizer_release(self._create())

    # ---- The library's object ----

    def _create(self) -> int:
        settings = self._table.make(
            type(self).__name__,
            lr=self._schedule.value(self._step),
            **self._settings,
        )
        return get(lib.optimizer_create, self._definition, settings)

    def _own_handle(self) -> int:
        if self._handle is None:
            self._handle = self._create()
        return self._handle

    def _updater(self) -> int:
        return lib.optimizer_updater(self._own_handle())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.optimizer_release(self._handle)
            self._handle = None

    def _set_lr(self, step: int) -> None:
        """Before each step of an engine: what the schedule says."""
        if self._handle is not None and not isinstance(
            self._schedule, Constant
        ):
            check(
                lib.optimizer_set_lr(self._handle, self._schedule.value(step))
            )

    # ---- As in SINGA ----

    @property
    def lr(self):
        """The learning rate: a number or a schedule, as it was given."""
        if isinstance(self._schedule, Constant):
            return self._schedule.init_value
        return self._schedule

    @lr.setter
    def lr(self, value) -> None:
        schedule = _as_schedule(value)
        rate = schedule.value(self._step)
        self._table.make(type(self).__name__, lr=rate)
        self._schedule = schedule
        if self._handle is not None:
            check(lib.optimizer_set_lr(self._handle, rate))
        for single in self._singles.values():
            check(lib.optimizer_set_lr(single.handle, rate))

    @property
    def lr_value(self) -> Tensor:
        """The learning rate of this step, of shape (1,)."""
        return _one(self._schedule.value(self._step))

    @property
    def step_counter(self) -> Tensor:
        """Steps done, of shape (1,)."""
        return _one(float(self._step))

    def __call__(self, loss: Tensor) -> None:
        self.backward_and_update(loss)

    def call(self, loss: Tensor) -> None:
        self.backward_and_update(loss)

    def backward_and_update(self, loss: Tensor) -> None:
        """Gradients of the loss and a step with all of them."""
        engine = _engine.current
        if engine is not None:
            engine.backward_and_update(loss)
            self._step += 1
            return
        self._train_alone(loss)

    def _train_alone(
        self, loss: Tensor, first: int = 0, total: int = 1
    ) -> None:
        """A step outside of a model: with an engine of its own."""
        params = _engine.behind(loss)
        if not params:
            raise StateError(
                "backward_and_update: the loss depends on no parameter (a tensor "
                "with stores_grad) that an operator saw; set autograd.training = "
                "True before forward"
            )
        if self._engine is None or any(
            id(p) not in self._engine._params for p in params
        ):
            names = _unique_names(params)
            step = self._engine.step() if self._engine else self._step
            states = self._engine.states() if self._engine else {}
            self._engine = _engine.Engine(
                "loss",
                loss.device,
                list(zip(names, params)),
                [],
                self._updater(),
            )
            self._engine.set_step(step)
            for name, state in self._engine.states().items():
                if "/" in name and name in states:
                    state.copy_data(states[name])
            self._take_pending(self._engine.states())
        engine = self._engine
        self._set_lr(engine.step())
        engine.train(
            lambda: engine.backward_and_update(loss),
            first_sample=first,
            global_count=total,
        )
        self._step = engine.step()
        autograd.place.end_step()

    def step(self) -> None:
        """Counts a step; for those who apply gradients one by one."""
        self._step += 1
        rate = self._schedule.value(self._step)
        if not isinstance(self._schedule, Constant):
            for single in self._singles.values():
                check(lib.optimizer_set_lr(single.handle, rate))

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
        states: dict = {"step_counter": np.float32(self._step)}
        for single in self._singles.values():
            for name, state in single.states().items():
                states[name] = tensor.to_numpy(state)
        if self._handle is not None and self._engine is not None:
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
        given = {n: np.asarray(v) for n, v in states.items() if "/" in n}
        for name, value in given.items():
            if name in own and own[name].shape != value.shape:
                raise ValueError(
                    f"set_states: {name} has shape {own[name].shape}; a value of "
                    f"shape {value.shape} was given"
                )
        self._step = step
        self._pending = given
        self._take_pending(own)
        if self._engine is not None:
            self._engine.set_step(step)
            self._resumes = False
        else:
            self._resumes = True

    def _take_pending(self, own: dict[str, Tensor]) -> None:
        """States that were set before their parameters were known."""
        for name in [n for n in self._pending if n in own]:
            own[name].copy_from_numpy(self._pending.pop(name))

    def _take_engine(self, engine: _engine.Engine) -> None:
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


def _make_optimizers(namespace: dict) -> None:
    """The classes above get their definitions; others of the list a class."""
    written = {"sgd": SGD, "adam": Adam, "rmsprop": RMSProp, "adagrad": AdaGrad}
    for name in _OPTIMIZERS:
        cls = written.get(name)
        if cls is None:
            words = "".join(word.capitalize() for word in name.split("_"))
            cls = type(words, (Optimizer,), {"__module__": __name__})
            namespace[words] = cls
            _bind(cls, name)
            _set_init(cls)
        else:
            _bind(cls, name)
    for name, cls in written.items():
        if name not in _OPTIMIZERS:
            del namespace[cls.__name__]


def _set_init(cls: type[Optimizer]) -> None:
    default = cls._table.fields["lr"].default

    def __init__(self, lr=default, **settings) -> None:
        Optimizer.__init__(self, lr, **settings)

    cls.__init__ = __init__
    cls.__doc__ = f"{cls._table.doc}.\n\nSettings:\n\n{cls._table.describe()}"


_make_optimizers(globals())


# ---- DistOpt ----


class StrategyChange(Exception):
    """A step asks for another strategy than the one in use (internal)."""

    def __init__(self, option: str, settings: dict) -> None:
        super().__init__(option)
        self.option = option
        self.settings = settings


# A checkpoint's line with the strategy and its settings.
_STRATEGY_LINE = "python.strategy"
# SINGA's old names.
_OLD_NAMES = {"plain": "fp32", "half": "fp16"}


def optimizers() -> list[str]:
    """The library's names of optimizers."""
    return list(_OPTIMIZERS)


def strategies() -> dict[str, Table]:
    """The values of dist_option, with the table of each one's settings."""
    found = {}
    index = 0
    while True:
        definition = lib.strategy_def_get(index)
        if not definition:
            return found
        option = lib.strategy_def_option(definition).decode()
        found[option] = Table(lib.strategy_def_config(definition))
        index += 1


class DistOpt:
    """An optimizer on many workers: gradients are combined before each step.

    opt: the optimizer; nccl_id, local_rank, world_size: the ticket
    (NcclIdHolder) of processes that a program started itself on one host;
    without it, what the launcher says (choirrun, mpiexec), or alone. buffSize
    is SINGA's and has no meaning here. deadline: longest wait in seconds for
    another worker; CHOIR_DEADLINE or 60. bucket_bytes: gradients are exchanged
    in buckets of at least so many bytes (1 MiB where it is not given);
    `threshold`, which SINGA has for this in every step, has no meaning here.

    At the first step the models of all ranks are compared, rank 0's parameters
    are sent to all, and gradients come to lie in memory that the communicator
    allocated; their exchange begins while backward goes on.
    """

    def __init__(
        self,
        opt: Optimizer | None = None,
        nccl_id: NcclIdHolder | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        buffSize: int = 4194304,
        deadline: float | None = None,
        backward_passes_per_step: int = 1,
        bucket_bytes: int | None = None,
    ) -> None:
        self.opt = opt if opt is not None else SGD()
        if not isinstance(self.opt, Optimizer):
            raise TypeError(
                f"DistOpt: opt is a {type(opt).__name__}; an optimizer is needed"
            )
        self.buffSize = buffSize
        if nccl_id is None:
            if local_rank is not None or world_size is not None:
                raise ValueError(
                    "DistOpt: local_rank and world_size go with nccl_id, the ticket "
                    "that singa_wrap.NcclIdHolder() makes; none was given"
                )
            self.communicator = (
                _comm.default()
                if deadline is None
                else Communicator(deadline=deadline)
            )
        else:
            if local_rank is None or world_size is None:
                raise ValueError(
                    "DistOpt: nccl_id needs local_rank and world_size beside it"
                )
            self.communicator = Communicator(
                local_rank, world_size, nccl_id, buffSize, deadline=deadline
            )
        self.world_size: int = self.communicator.world_size
        self.local_rank: int = self.communicator.local_rank
        self.global_rank: int = self.communicator.global_rank
        settings = {"backward_passes_per_step": backward_passes_per_step}
        if bucket_bytes is not None:
            settings["bucket_bytes"] = bucket_bytes
        self._config = Table(lib.dist_opt_config_def).make(
            "DistOpt", **settings
        )
        self._handle: int | None = None
        self._strategy: tuple[str, tuple] = ("fp32", ())
        self._chosen = self._strategy  # by use()
        autograd.place.first_share = (self.global_rank, self.world_size)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.dist_opt_release(self._handle)
            self._handle = None

    def _own_handle(self) -> int:
        if self._handle is None:
            if self.communicator.handle is None:
                raise StateError("DistOpt: the communicator has ended")
            self._handle = get(
                lib.dist_opt_create,
                self.opt._own_handle(),
                self.communicator.handle,
                self._config,
            )
            self._use(*self._strategy)
        return self._handle

    def _updater(self) -> int:
        return lib.dist_opt_updater(self._own_handle())

    # What models need of an optimizer.

    @property
    def _schedule(self) -> DecayScheduler:
        return self.opt._schedule

    def _set_lr(self, step: int) -> None:
        self.opt._set_lr(step)

    def _use(self, option: str, settings: tuple) -> None:
        option = _OLD_NAMES.get(option, option)
        known = strategies()
        if option not in known:
            raise ValueError(
                f"dist_option is {option!r}; one of {', '.join(known)} (or SINGA's "
                "plain, half) is needed"
            )
        config = known[option].make(option, **dict(settings))
        if self._handle is not None:
            definition = get(lib.strategy_def_parse, option.encode())
            check(lib.dist_opt_use(self._handle, definition, config))
        self._strategy = (option, settings)

    def use(self, dist_option: str, **settings) -> None:
        """The strategy of calls (`sgd(loss)`) from now on, by its name.

        Collective once training has begun. ValueError lists the known names;
        settings and what they mean: docs/strategies.md.
        """
        self._use(dist_option, tuple(sorted(settings.items())))
        self._chosen = self._strategy

    @property
    def strategy(self) -> str:
        """The strategy in use with its settings, in words."""
        text = ctypes.create_string_buffer(512)
        lib.dist_opt_print_strategy(self._own_handle(), text, 512)
        return text.value.decode()

    def consolidate(self) -> None:
        """Collective: makes all replicas equal, for strategies that let them
        differ between exchanges (partialUpdate, localSGD, sparseLocal)."""
        check(lib.updater_consolidate(self._updater()))

    def _save(
        self, fpath: str, states: dict[str, Tensor], lines: dict[str, str]
    ) -> None:
        """Writes a checkpoint, of all ranks where they may differ."""
        lines = {**lines, _STRATEGY_LINE: json.dumps(self._strategy)}
        if not lib.dist_opt_ranks_differ(self._own_handle()):
            _checkpoint.save(fpath, states, lines)
            return
        self.consolidate()
        gathered = _checkpoint.Gathered(self._own_handle(), states)
        if self.global_rank == 0:
            gathered.save(fpath, lines)

    def _load(self, fpath: str, engine: _engine.Engine) -> dict[str, str]:
        """Collective: sets the states of all ranks from rank 0's file, and the
        strategy that it was saved with; its lines of text."""
        file, news = None, None
        if self.global_rank == 0:
            try:
                file = _checkpoint.File(fpath)
                news = file.metadata()
            except Exception as error:
                news = error
        news = self.communicator.share_object(news, 0, "load_checkpoint")
        if isinstance(news, Exception):
            raise news
        strategy = news.get(_STRATEGY_LINE)
        if strategy is not None:
            option, settings = json.loads(strategy)
            self._use(option, tuple(map(tuple, settings)))
        _checkpoint.distribute(file, self._own_handle(), engine.states())
        return news

    def check_digest(self, digest: int) -> None:
        """Collective: raises on every rank unless all give the same digest."""
        check(lib.dist_opt_check_digest(self._own_handle(), digest))

    # ---- Training steps ----

    def __call__(self, loss: Tensor) -> None:
        """A step by the strategy that `use` chose, fp32 before."""
        option, settings = self._chosen
        self._step(loss, option, dict(settings))

    def _step(self, loss: Tensor, option: str, settings: dict) -> None:
        wanted = (option, tuple(sorted(settings.items())))
        engine = _engine.current
        if engine is None:
            if wanted != self._strategy:
                self._use(*wanted)
            self._train_alone(loss)
            return
        if wanted != self._strategy:
            raise StrategyChange(option, dict(wanted[1]))
        engine.backward_and_update(loss)
        self.opt._step += 1

    def _train_alone(self, loss: Tensor) -> None:
        first, total = self.global_rank, self.world_size
        keep = self.opt._updater
        self.opt._updater = self._updater
        try:
            self.opt._train_alone(loss, first, total)
        finally:
            self.opt._updater = keep

    def backward_and_update(
        self, loss: Tensor, threshold: int | None = None
    ) -> None:
        """A step with gradients averaged over ranks in float32."""
        self._step(loss, "fp32", {})

    def backward_and_update_half(
        self,
        loss: Tensor,
        threshold: int | None = None,
        clipping: bool = False,
        clip_Value: float = 100,
    ) -> None:
        """The same with float16 on the way. clipping: each rank's gradients are
        first limited to [-clip_Value, clip_Value]."""
        settings = {"clip": float(clip_Value)} if clipping else {}
        self._step(loss, "fp16", settings)

    def backward_and_partial_update(
        self, loss: Tensor, threshold: int | None = None
    ) -> None:
        """A step with own gradients; then one chunk of the parameters, in turn,
        is averaged over ranks. threshold: elements of a chunk."""
        settings = {} if threshold is None else {"chunk": int(threshold)}
        self._step(loss, "partialUpdate", settings)

    def backward_and_sparse_update(
        self,
        loss: Tensor,
        threshold: int | None = None,
        spars: float = 0.05,
        topK: bool = False,
        corr: bool = True,
    ) -> None:
        """A step with a part of each gradient: with topK the share `spars` of
        elements that are largest, else those of magnitude `spars` or more. corr:
        what is not sent is added to the next step's gradients."""
        option = "sparseTopK" if topK else "sparseThreshold"
        settings = {"spars": float(spars), "feedback": bool(corr)}
        self._step(loss, option, settings)

    def step_with(
        self, loss: Tensor, dist_option: str, spars: float = 0.0
    ) -> None:
        """A step by a strategy's name: any of docs/strategies.md."""
        option = _OLD_NAMES.get(dist_option, dist_option)
        settings = {"spars": float(spars)} if spars else {}
        self._step(loss, option, settings)

    # ---- Primitives ----

    def all_reduce(self, tensor: CTensor) -> None:
        """Sums a raw tensor (`t.data`) over ranks, in place."""
        self.communicator.synch(_raw_of(tensor))

    def fused_all_reduce(self, tensor, send: bool = True) -> None:
        """The same for a list as one exchange; send False keeps them for it."""
        self.communicator.fusedSynch([_raw_of(t) for t in tensor], send)

    def all_reduce_half(self, tensor: CTensor) -> None:
        """The same with float16 on the way."""
        self.communicator.synchHalf(_raw_of(tensor))

    def fused_all_reduce_half(self, tensor, send: bool = True) -> None:
        """The same for a list."""
        self.communicator.fusedSynchHalf([_raw_of(t) for t in tensor], send)

    def sparsification(
        self, tensor, accumulation, spars: float, topK: bool
    ) -> None:
        """Replaces a tensor by the sum over ranks of its chosen elements.

        With an accumulation (a raw tensor, or None) that is added first, and
        takes what was not sent."""
        rest = None if accumulation is None else _raw_of(accumulation)
        self.communicator.sparsification(_raw_of(tensor), rest, spars, topK)

    def fused_sparsification(
        self, tensor, accumulation, spars: float, topK: bool
    ):
        """The same over all elements of a list."""
        rest = None if accumulation is None else _raw_of(accumulation)
        self.communicator.fusedSparsification(
            [_raw_of(t) for t in tensor], rest, spars, topK
        )

    def wait(self) -> None:
        """All exchanges so far are done when it returns."""
        self.communicator.wait()

    def update(self, param: Tensor, grad) -> None:
        """grad /= world_size, then the optimizer's update."""
        if isinstance(grad, CTensor):
            grad = Tensor._of(grad)
        grad /= float(self.world_size)
        self.opt.update(param, grad)

    def step(self) -> None:
        """Counts a step of the optimizer."""
        self.opt.step()

    def get_states(self) -> dict:
        """The optimizer's."""
        return self.opt.get_states()

    def set_states(self, states: dict) -> None:
        """The optimizer's."""
        self.opt.set_states(states)

    def __repr__(self) -> str:
        return (
            f"DistOpt({self.opt!r}, rank {self.global_rank} of {self.world_size}, "
            f"{self._strategy[0]})"
        )


def _raw_of(value) -> CTensor:
    return value.data if isinstance(value, Tensor) else value
