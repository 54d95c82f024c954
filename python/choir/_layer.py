# SPDX-License-Identifier: Apache-2.0
"""What a layer is: how it makes its parameters at the first call, finds those of
the layers in it and names them by their paths; and how one of the C library's runs.
The layers are in layer.py."""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict

import numpy as np

from choir import _raw, _tape, autograd, tensor
from choir._calls import NotCopied, Owner, StateError, check, lib
from choir._functions import draw_step
from choir._here import here
from choir._lib import (
    Initializer,
    InitializerKind,
    RandomKey,
    Step,
    TapeEntry,
    Vars,
)
from choir._sections import deferred, lock
from choir._settings import Table
from choir.tensor import Tensor

CONSTANT, UNIFORM = InitializerKind.CONSTANT, InitializerKind.UNIFORM
NORMAL = InitializerKind.NORMAL


def param(
    device,
    shape,
    kind: int = CONSTANT,
    a: float = 0.0,
    b: float = 1.0,
    dtype: int = _raw.F32,
    trained: bool = True,
) -> Tensor:
    """A parameter with initial values, drawn as the C library's models do."""
    shape = _raw.sizes(shape)
    if 0 in shape:
        raise ValueError(f"a parameter of shape {shape} has no elements")
    raw = _raw.empty(device, shape, dtype)
    start = Initializer(kind, a, b)
    key = RandomKey(seed=device.seed, stream=device.next_param_stream(), step=0)
    check(lib.initialize(raw.handle, ctypes.byref(start), key))
    made = Tensor._of(raw, requires_grad=trained)
    made.stores_grad = trained
    return made


class LayerMeta(type):
    """Makes `forward` call `initialize` with the first inputs."""

    @staticmethod
    def init_wrapper(func):
        @functools.wraps(func)
        def wrapper(self, *args, **kwargs):
            keeps_all, here.keeps_all = here.keeps_all, False
            try:
                with autograd.no_grad():
                    return func(self, *args, **kwargs)
            finally:
                here.keeps_all = keeps_all

        return wrapper

    @staticmethod
    def forward_wrapper(func):
        @functools.wraps(func)
        def wrapper(self, *args, **kwargs):
            if not self._initialized:
                self.initialize(*args, **kwargs)
                self._initialized = True
            if here.cache is not None and not self._keeps_places:
                kind = type(self).__name__
                raise StateError(
                    f"{self.name or kind} ({kind}): is not known to keep places apart, so "
                    "there is no computing the next ones alone"
                )
            return func(self, *args, **kwargs)

        return wrapper

    def __new__(mcs, name, bases, attr):
        if "initialize" in attr:
            attr["initialize"] = mcs.init_wrapper(attr["initialize"])
        if "forward" in attr:
            attr["forward"] = mcs.forward_wrapper(attr["forward"])
        return super().__new__(mcs, name, bases, attr)


_CONTAINERS = (list, tuple, dict)


def _layers_in(path: str, value):
    """(path, layer) of the layers in lists, tuples and dictionaries."""
    # By type: an object may answer isinstance with anything, or raise.
    kind = type(value)
    if issubclass(kind, Layer):
        yield path, value
    elif issubclass(kind, _CONTAINERS):
        pairs = value.items() if issubclass(kind, dict) else enumerate(value)
        for key, part in pairs:
            yield from _layers_in(f"{path}{Layer.sep}{key}", part)


class Layer(metaclass=LayerMeta):
    """The base class. Subclasses define `forward`, and `initialize`, which makes
    parameters: Tensors with stores_grad, assigned to attributes."""

    sep = "."
    _count = 0
    # Whether what it gives at a place of (n, places, ...) follows from this place.
    # Of those of the C library's list (ListLayer) that says so itself.
    _keeps_places = True

    def __init__(self) -> None:
        self._setup()

    def _setup(self) -> None:
        """Also for subclasses that do not call __init__ first."""
        if "_layers" not in self.__dict__:
            object.__setattr__(self, "_layers", OrderedDict())
            object.__setattr__(self, "_own", OrderedDict())
            object.__setattr__(self, "_initialized", False)
            object.__setattr__(self, "name", None)

    def __setattr__(self, name: str, value) -> None:
        self._setup()
        if isinstance(value, Layer):
            self._layers[name] = value
            if value.name is None:
                value._rename(self._path(name))
        elif isinstance(value, Tensor) and name not in ("data",):
            if value.stores_grad or name in self._own:
                self._own[name] = value
                if value.is_dummy():
                    value.name = self._path(name)
        elif name in self.__dict__.get("_layers", ()):
            del self._layers[name]
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str):
        text = f"{type(self).__name__} has no attribute {name!r}"
        if not self.__dict__.get("_initialized", True):
            text += " yet: a layer makes its parameters at its first call"
        raise AttributeError(text)

    def __delattr__(self, name: str) -> None:
        self._layers.pop(name, None)
        self._own.pop(name, None)
        object.__delattr__(self, name)

    def __getstate__(self) -> dict:
        """For pickle and copy: without what is made again when it is needed."""
        state = dict(self.__dict__)
        for name in ("_layers", "_own"):
            if name in state:
                state[name] = OrderedDict(state[name])
        state.pop("_made", None)
        return state

    def _path(self, name: str) -> str:
        return f"{self.name}{self.sep}{name}" if self.name else name

    def _rename(self, name: str) -> None:
        object.__setattr__(self, "name", name)
        for attribute, part in self._own.items():
            part.name = self._path(attribute)
        for attribute, part in self._layers.items():
            part._rename(self._path(attribute))

    def _own_state(self, name: str, value: Tensor) -> None:
        """An attribute that belongs to the states, but is not trained."""
        self._own[name] = value
        setattr(self, name, value)

    # ---- What subclasses define ----

    def initialize(self, *input) -> None:
        """Makes parameters from the first inputs."""

    def forward(self, *input):
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    # In training, backward computes again what lies between a call's inputs and
    # its results (autograd.recompute); of a layer in others, or of a model.
    recompute = False

    def __call__(self, *args, **kwargs):
        if self.recompute:
            return autograd.recompute(self.forward, *args, **kwargs)
        return self.forward(*args, **kwargs)

    # ---- Parameters and states ----

    def _walk(self, prefix: str = "", seen: set | None = None):
        """(name, tensor) of this layer and those in it, in order of making; last
        those of layers that are in lists and dictionaries alone ("blocks.0.W").
        """
        seen = set() if seen is None else seen
        seen.add(id(self))
        for name, value in self._own.items():
            yield prefix + name, value
        for name, part in self._layers.items():
            yield from part._walk(f"{prefix}{name}{self.sep}", seen)
        for name, value in list(self.__dict__.items()):
            if name.startswith("_") or not issubclass(type(value), _CONTAINERS):
                continue
            for path, part in _layers_in(name, value):
                if id(part) in seen:
                    continue
                if part.name is None:
                    part._rename(self._path(path))
                yield from part._walk(f"{prefix}{path}{self.sep}", seen)

    def _prefix(self) -> str:
        return f"{self.name}{self.sep}" if self.name else ""

    def get_params(self) -> dict[str, Tensor]:
        """The trained tensors of layers that were called, by name."""
        return {n: t for n, t in self._walk(self._prefix()) if t.stores_grad}

    def set_params(self, parameters: dict) -> None:
        """Copies values (Tensors or arrays) into the parameters of these names."""
        self._set(parameters, self.get_params(), "parameter")

    def get_states(self) -> dict[str, Tensor]:
        """Parameters, and what training does not learn (running averages)."""
        return dict(self._walk(self._prefix()))

    def set_states(self, states: dict) -> None:
        """Copies values into the states of these names."""
        self._set(states, self.get_states(), "state")

    def _set(self, values: dict, own: dict, kind: str) -> None:
        for name, value in values.items():
            if name not in own:
                known = (
                    ", ".join(own) or "none; call the layer or compile first"
                )
                raise KeyError(
                    f"no {kind} is called {name!r}; there are: {known}"
                )
            shape = tuple(value.shape)
            if shape != own[name].shape:
                raise ValueError(
                    f"{kind} {name} has shape {own[name].shape}; a value of shape "
                    f"{shape} was given"
                )
        for name, value in values.items():
            if isinstance(value, Tensor):
                own[name].copy_data(value)
            else:
                own[name].copy_from_numpy(np.asarray(value))

    def register_layers(self, *args) -> None:
        """Registers layers in a list, under <Class>_<index>, or an OrderedDict."""
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            items = list(args[0].items())
        else:
            if len(args) == 1 and isinstance(args[0], (list, tuple)):
                args = args[0]
            items = [(f"{type(x).__name__}_{i}", x) for i, x in enumerate(args)]
        for name, value in items:
            if not isinstance(value, Layer):
                raise TypeError(
                    f"register_layers: {name} is a {type(value).__name__}"
                )
            setattr(self, name, value)

    def dtype_check(self, *inputs: Tensor) -> None:
        """Converts inputs in place to the first one's dtype."""
        for other in inputs[1:]:
            other.to_type(inputs[0].dtype)

    def device_check(self, *inputs: Tensor) -> None:
        """Moves inputs in place to the first one's device."""
        for other in inputs[1:]:
            other.to_device(inputs[0].device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name or ''})"


@functools.cache
def definition_of(kind: str) -> tuple[int, Table]:
    definition = lib.layer_def_find(kind.encode())
    if not definition:
        raise NotImplementedError(f"{kind!r} is no layer of the C library's")
    return definition, Table(lib.layer_def_config(definition))


class Forward(Owner, NotCopied):
    """Base of what the C library computes as ops in a scope, of inputs and of
    parameters that are handed over as inputs are: Python's autograd takes over what
    was remembered there."""

    _computes = True
    _name = ""
    _params: list

    def _call(self, scope: int, inputs: Vars) -> int:
        """Computes it; the variable of the results."""
        raise NotImplementedError

    def _count_results(self) -> int:
        """How many the last _call gave."""
        return 1

    def _run(self, device, xs, weights, step: Step) -> list:
        """Its results. weights: of each of its _params."""
        free = _tape.take_scope(device, step, here.precision)
        scope = free.handle
        known: dict[int, Tensor] = {}
        vars_of: dict[int, int] = {}  # id(x): one for all uses of x

        def taken(x: Tensor) -> int:
            if id(x) in vars_of:
                return vars_of[id(x)]
            if tensor._need_tensor(x, self._name).device is not device:
                raise ValueError(
                    f"{self._name}: tensors lie on {device} and {x.device}; one "
                    "device is needed (to_device moves a tensor)"
                )
            wants = x.requires_grad and x.data.dtype in _raw.FLOATS
            make = lib.scope_leaf if wants else lib.scope_input
            var = vars_of[id(x)] = make(scope, x.data.handle)
            known[var] = x
            return var

        def found(var: int) -> Tensor:
            if var not in known:
                raw = _raw.CTensor.borrow(lib.var_tensor(var), device)
                known[var] = Tensor._of(raw)
            return known[var]

        for param, x in zip(self._params, weights):
            lib.scope_bind(scope, param, taken(x))
        inputs = (ctypes.c_void_p * len(xs))(*map(taken, xs))
        y = self._call(scope, Vars(inputs, len(xs)))
        ys = []
        if lib.scope_is_ok(scope):
            for entry in _entries(scope):
                srcs = entry.srcs[: entry.src_count]
                if entry.op == len(_raw.OP_LIST):
                    name = entry.custom.name.decode()
                    check(lib.scope_end(scope))
                    raise NotImplementedError(
                        f"{self._name}: {name} has no form in ONNX files"
                    )
                op = _raw.OP_LIST[entry.op]
                made = entry.results[: op.result_count]
                first = autograd._remember(
                    op,
                    [found(src) for src in srcs],
                    op.copy(entry.attrs),
                    [found(result).data for result in made],
                )
                known[made[0]] = first
                if here.keeps_all:
                    for i in range(1, len(made)):
                        known[made[i]].creator = first.creator
                        known[made[i]]._index = i
            ys = [
                found(lib.scope_result(scope, y, i))
                for i in range(self._count_results())
            ]
            self._ran(scope, step)
        check(lib.scope_end(scope))
        _tape.free_scopes[device].append(free)
        return ys

    def _ran(self, scope: int, step: Step) -> None:
        """Before the scope ends, of a call that did not fail."""


class LibraryLayer(Forward):
    """A layer of the C library's, to which parameters are handed as inputs are.

    It learns its shapes from inputs like `xs`. paths, values: the parameters that
    training learns, by name, and initial values; count: of all parameters.
    """

    def __init__(
        self, kind: str, name: str, settings: dict, xs, first_stream: int = 0
    ) -> None:
        device = xs[0].device
        definition, table = definition_of(kind)
        config = table.make(name, **settings)
        key = device.seed, first_stream
        self._name, self._kind = name, kind
        self._params, self.paths, self.values = [], [], []
        with lock, deferred():
            self._own(
                lib.layer_release, lib.layer_create_alone, device.handle,
                name.encode(), definition, config, *key,
            )  # fmt: skip
            self._results = 0
            self._run(device, xs, (), Step())
            self.count = 0
            while param := lib.layer_param(self.handle, self.count):
                self.count += 1
                made = param.contents
                if made.trainable:
                    self._params.append(param)
                    self.paths.append(made.name.decode()[len(name) + 1 :])
                    self.values.append(_raw.CTensor.borrow(made.value, device))
                    # From now on it is the caller's alone.
                    lib.param_use_grad(param, None)
                    lib.tensor_release(made.value)
                    made.value = None

    def __call__(self, xs, weights, results: int = 1, draws: int = 0) -> list:
        """Its results, of one operator. weights: of each value. draws: of random
        numbers."""
        # Of one that is given several times there is one gradient.
        given = {id(x): x for x in (*xs, *weights)}
        return autograd._combined(
            _operator(self._kind),
            lambda *given: self._forward(xs, weights, results, draws),
            list(given.values()),
            {},
            autograd.ListOperator,
        )

    def _forward(self, xs, weights, results: int, draws: int) -> list:
        with lock, deferred():
            step = draw_step(tensor._need_tensor(xs[0], self._name), draws)
            step.training = here.training
            step.keeps_all = here.keeps_all
            if here.cache is not None:
                step.cache = here.cache.handle
            self._results = results
            return self._run(xs[0].device, xs, weights, step)

    def _call(self, scope: int, inputs: Vars) -> int:
        return lib.layer_forward_list(scope, self.handle, inputs)

    def _count_results(self) -> int:
        return self._results


@functools.cache
def _operator(kind: str) -> type[autograd.Operator]:
    """The class of what makes a layer's results where these are several ops."""
    return type(kind, (autograd.Combined,), {"__module__": "choir.layer"})


def _entries(scope: int) -> list[TapeEntry]:
    """The ops that gradients flow through, in the order in which they ran."""
    entries = []
    pointer = lib.scope_tape(scope)
    while pointer:
        entries.append(pointer.contents)
        pointer = ctypes.cast(entries[-1].previous, type(pointer))
    return entries[::-1]


class ListLayer(Layer):
    """A layer of the C library's list, _kind. Its settings are attributes, given to
    __init__, of their names there or of others by _names. _input: an attribute for
    the size of its input's axis, and the axis."""

    _kind = ""
    _names: dict[str, str] = {}
    _input: tuple[str, int] | None = None
    _results = 1
    _draws = 0
    _made: LibraryLayer | None = None

    def __init__(self, **settings) -> None:
        super().__init__()
        self.__dict__.update(settings)

    def _settings(self) -> dict:
        """As the C library has them: of a pair two, rows and columns."""
        settings = {}
        for name in definition_of(self._kind)[1].fields:
            value = getattr(self, self._names.get(name, name), None)
            if isinstance(value, (tuple, list)):
                is_four = name == "padding" and len(value) == 4
                if not (len(value) == 2 or is_four) or min(value) < 0:
                    raise ValueError(
                        f"{type(self).__name__}: {name} is {value!r}; one number "
                        "or a pair, none below 0, is needed"
                    )
                width = name.removesuffix("_size") + "_width"
                settings[name], settings[width] = value[:2]
                if is_four:
                    after = "padding_after", "padding_after_width"
                    settings.update(zip(after, value[2:]), pad_mode="explicit")
            elif value not in (None, "NOTSET"):
                settings[name] = value
        return settings

    def _check(self) -> None:
        """Refuses what is no setting, before the first call."""
        table = definition_of(self._kind)[1]
        table.make(type(self).__name__, **self._settings())

    def _make(self, xs) -> LibraryLayer:
        first = xs[0].device.next_param_stream(0)
        name = self.name or type(self).__name__
        made = LibraryLayer(self._kind, name, self._settings(), xs, first)
        object.__setattr__(self, "_made", made)
        return made

    def initialize(self, *xs: Tensor) -> None:
        floats(xs[0], type(self).__name__)
        made = self._make(xs)
        if self._input is not None:
            announced(self, *self._input, xs[0])
        xs[0].device.next_param_stream(made.count)
        for path, raw in zip(made.paths, made.values):
            *parts, name = path.split(".")
            owner = self
            for part in parts:
                if part not in owner._layers:
                    setattr(owner, part, Layer())
                owner = owner._layers[part]
            value = Tensor._of(raw, True)
            value.stores_grad = True
            setattr(owner, name, value)
        made.values.clear()

    def _weights(self) -> list[Tensor]:
        """As the C library's layer has them."""
        return [
            functools.reduce(getattr, path.split("."), self)
            for path in self._made.paths
        ]

    def _run(self, *xs: Tensor) -> list[Tensor]:
        made = self._made or self._make(xs)  # a copy has none
        return made(xs, self._weights(), self._results, self._draws)

    def forward(self, *xs: Tensor) -> Tensor:
        return self._run(*xs)[0]


def announced(layer: Layer, name: str, axis: int, x: Tensor) -> None:
    """Sets a size that the layer learns from x; it may have been given."""
    given, size = getattr(layer, name), x.shape[axis]
    if given not in (None, size):
        raise ValueError(
            f"{type(layer).__name__}: the input has shape {x.shape}; {name} was "
            f"given as {given}"
        )
    setattr(layer, name, size)


def floats(x: Tensor, what: str) -> int:
    code = tensor._need_tensor(x, what).data.dtype
    if code not in _raw.FLOATS:
        raise TypeError(
            f"{what}: the input is {tensor._NAMES[x.dtype]}; floating-point numbers "
            "are needed (as_type(tensor.float32))"
        )
    return code
