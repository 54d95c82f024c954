# SPDX-License-Identifier: Apache-2.0
"""What a layer is: how it makes its parameters at the first call, finds those of
the layers in it and names them by their paths. The layers are in layer.py."""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict

import numpy as np

from choir import _raw, autograd, tensor
from choir._calls import check, lib
from choir._lib import Initializer, InitializerKind, RandomKey, View
from choir.tensor import Tensor

CONSTANT, UNIFORM = InitializerKind.CONSTANT, InitializerKind.UNIFORM
NORMAL, GLOROT_NORMAL = InitializerKind.NORMAL, InitializerKind.GLOROT_NORMAL


def param(
    device,
    shape,
    kind: int = CONSTANT,
    a: float = 0.0,
    b: float = 1.0,
    fan_in: float = 0.0,
    fan_out: float = 0.0,
    channels_last: bool = False,
    dtype: int = _raw.F32,
    trained: bool = True,
) -> Tensor:
    """A parameter with initial values, drawn as the C library's models do."""
    shape = _raw.sizes(shape)
    if 0 in shape:
        raise ValueError(f"a parameter of shape {shape} has no elements")
    view = View(ndim=len(shape), dtype=dtype)
    view.shape[: len(shape)] = shape
    if channels_last:
        lib.view_set_channels_last(ctypes.byref(view))
    else:
        lib.view_set_contiguous(ctypes.byref(view))
    raw = _raw.empty_layout(device, view)
    initializer = Initializer(kind, a, b, fan_in, fan_out)
    key = RandomKey(seed=device.seed, stream=device.next_param_stream(), step=0)
    check(lib.initialize(raw.handle, ctypes.byref(initializer), key))
    made = Tensor._of(raw, requires_grad=trained)
    made.stores_grad = trained
    return made


class LayerMeta(type):
    """Makes `forward` call `initialize` with the first inputs."""

    @staticmethod
    def init_wrapper(func):
        @functools.wraps(func)
        def wrapper(self, *args, **kwargs):
            with autograd.no_grad():
                return func(self, *args, **kwargs)

        return wrapper

    @staticmethod
    def forward_wrapper(func):
        @functools.wraps(func)
        def wrapper(self, *args, **kwargs):
            if not self._initialized:
                self.initialize(*args, **kwargs)
                self._initialized = True
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
        if "_attrs" in state:
            state["_attrs"] = None
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

    def __call__(self, *args, **kwargs):
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


def floats(x: Tensor, what: str) -> int:
    code = x.data.dtype
    if code not in _raw.FLOATS:
        raise TypeError(
            f"{what}: the input is {tensor._NAMES[x.dtype]}; floating-point numbers "
            "are needed (as_type(tensor.float32))"
        )
    return code


def check_ndim(x: Tensor, ndim, what: str) -> None:
    allowed = (ndim,) if isinstance(ndim, int) else ndim
    if x.ndim() not in allowed:
        raise ValueError(
            f"{what}: the input has shape {x.shape}; "
            f"{' or '.join(map(str, allowed))} dimensions are needed"
        )
