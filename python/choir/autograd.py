# SPDX-License-Identifier: Apache-2.0
"""Operators with gradients.

    autograd.training = True
    loss = autograd.softmax_cross_entropy(autograd.matmul(x, w), y)
    for p, g in autograd.backward(loss):
        sgd.update(p, g)

A tensor remembers the operator that made it (`creator`), an operator its
inputs, so a result keeps alive what its gradient needs and nothing else: when
Python drops the loss, everything behind it goes. Of a function that is made of
several operators the creator is one for the whole (`_combined`). `backward` hands the operators
behind the loss to the C library, in the order in which they ran; its gradient
rules do the rest.

There is a function and a class for every operator of the C library's list,
made from it at import: a new one appears by itself. SINGA's names are used
where SINGA has it (`_NAMES`); functions further down are combinations of those.
`Operator` can be subclassed, with `forward` and `backward` on raw tensors.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import itertools
import keyword
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from ctypes import byref

from choir import _raw, _tape, tensor
from choir._callback import finish
from choir._here import here, set_training
from choir._calls import StateError, lib
from choir._lib import BackwardOptions
from choir._raw import CTensor, OPS
from choir._sections import deferred, lock
from choir.tensor import Tensor


class _Module(types.ModuleType):
    """This module, with variables that each thread has of its own."""

    @property
    def training(self) -> bool:
        return here.training

    @training.setter
    def training(self, value: bool) -> None:
        set_training(value)


training = False  # for dir(); the property of _Module goes before it
sys.modules[__name__].__class__ = _Module


class no_grad:
    """A block, or a function, in which operators remember nothing."""

    def __enter__(self) -> None:
        here.before.append(here.training)
        here.training = False

    def __exit__(self, *exc) -> None:
        here.training = here.before.pop()

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            before = here.training
            here.training = False
            try:
                return function(*args, **kwargs)
            finally:
                here.training = before

        return wrapped


# ---- Where in a run the work is: what random numbers are keyed by ----


class _Place(threading.local):
    """The step that operators run in, outside of a model: each thread's own."""

    _partition = (0, 1)

    def __init__(self) -> None:
        self.step = 0
        self._streams = 0

    @property
    def partition(self) -> tuple[int, int]:
        """Rank and number of ranks: the process's."""
        return _Place._partition

    @partition.setter
    def partition(self, partition: tuple[int, int]) -> None:
        _Place._partition = partition

    def next_stream(self) -> int:
        self._streams += 1
        return self._streams - 1

    def end_step(self) -> None:
        self.step += 1
        self._streams = 0

    def begin_run(self) -> None:
        """A new seed: as at the start of the process."""
        self.step = 0
        self._streams = 0


class _Scope:
    """A step that a model runs, or rehearses."""

    def __init__(
        self, scope: int, constants: tensor.Constants, rehearses: bool = False
    ) -> None:
        self.scope = scope
        self.constants = constants
        self._rehearses = rehearses
        step = lib.scope_step(scope).contents
        self.step = step.step
        self.seed = step.seed
        self.first_sample = step.first_sample
        self._later: list[Callable[[], None]] = []

    def next_stream(self) -> int:
        return lib.scope_next_random_stream(self.scope)

    def when_updated(self, change: Callable[[], None]) -> None:
        """Calls `change` when the parameters have been updated; never in a step
        that fails before, which so leaves all states as they were."""
        self._later.append(change)

    def updated(self) -> None:
        if lib.scope_is_ok(self.scope) and not self._rehearses:
            later, self._later = self._later, []
            for change in later:
                change()


place = _Place()


class ManualStep(Exception):
    """A model's step asks for gradients by itself (internal)."""


# ---- Operators ----


class Operator:
    """A function of tensors with a gradient.

    Subclasses define `forward(self, *xs)` and `backward(self, *dys)` on raw
    tensors (`Tensor.data`). A call takes Tensors and returns a tuple of them.
    """

    op_count = 0
    _is_listed = False  # in the C library
    _is_dummy = False
    # See choir_custom_op_t.
    _knows_micro_shards = False

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"{type(self).__name__}#{Operator.op_count}"
        Operator.op_count += 1
        self.src: tuple[Tensor, ...] = ()
        self._results: list[CTensor] = []
        self._sequence = 0
        self._part: _Part | None = None

    # Of one that is made of others: what these made, for each result, and the
    # tensors that they began with.
    _made: tuple[Tensor, ...] | None = None
    _begin: tuple[Tensor, ...] = ()

    def __call__(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return self._do_forward(*xs)

    def _do_forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        for x in xs:
            tensor._need_tensor(x, self.name)
        xs = [_widened(x) for x in xs]
        results = self.forward(*[x.data for x in xs])
        if not isinstance(results, (tuple, list)):
            results = (results,)
        return self._finish(xs, list(results))

    def _finish(self, xs, results: list[CTensor]) -> tuple[Tensor, ...]:
        remembers = here.training and builtins.any(x.requires_grad for x in xs)
        if not remembers and not here.keeps_all:
            return tuple(Tensor._of(raw) for raw in results)
        self.src = tuple(xs)
        self._results = results
        self._sequence, self._part = next(_sequence), here.part
        ys = []
        for i, raw in enumerate(results):
            y = Tensor._of(raw, True, self)
            y._index = i
            ys.append(y)
        return tuple(ys)

    def __getstate__(self) -> dict:
        """For pickle and copy: without what it was called with."""
        state = dict(self.__dict__, src=(), _results=[], _sequence=0)
        state["_part"] = None
        for name in ("_all", "_inputs"):
            if name in state:
                state[name] = None
        state.pop("_made", None)
        state.pop("_begin", None)
        return state

    @property
    def requires_grad(self) -> bool:
        return builtins.any(x.requires_grad for x in self.src)

    def forward(self, *xs: CTensor):
        """Raw tensors in, a raw tensor or a tuple of them out."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def backward(self, *dys: CTensor):
        """The results' gradients in, one for each source (or None) out."""
        raise NotImplementedError(f"{type(self).__name__} defines no backward")

    def get_params(self) -> list[Tensor]:
        return []

    def output_name(self, idx: int) -> str:
        """The name of a result."""
        return f"{self.name}:{idx}"

    def grad_name(self, idx: int) -> str:
        """The name of a result's gradient."""
        return f"{self.name}:{idx}_g"


Operation = Operator
_sequence = itertools.count(1)


class Dummy(Operator):
    """The operator in front of a tensor that none made."""

    _is_dummy = True

    def __init__(self, tensor: Tensor, name: str | None = None) -> None:
        super().__init__(name)
        self.tensor = tensor
        self.src = ()

    @property
    def requires_grad(self) -> bool:
        return False

    def output_name(self, idx: int) -> str:
        return self.name

    def grad_name(self, idx: int) -> str:
        return f"{self.name}_g"

    def __getattr__(self, name: str):
        if name == "tensor":
            raise AttributeError(name)
        return getattr(self.tensor, name)


class ListOperator(Operator):
    """An operator of the C library's list."""

    _is_listed = True
    op: _raw.Op
    _settings: tuple[str, ...] = ()

    def __init__(self, *args, **settings) -> None:
        super().__init__()
        for name, value in zip(self._settings, args):
            settings[name] = value
        if len(args) > len(self._settings):
            raise TypeError(
                f"{type(self).__name__} takes {len(self._settings)} settings "
                f"({', '.join(self._settings)}); {len(args)} were given"
            )
        self._given = settings
        self.attrs = self.op.attrs(**settings) if settings else None

    def __getstate__(self) -> dict:
        return dict(super().__getstate__(), attrs=None)

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self._given:
            self.attrs = self.op.attrs(**self._given)

    def forward(self, *xs: CTensor):
        self._all = self.op(*xs, attrs=self.attrs)
        self._inputs = xs
        return self._all[0]

    def backward(self, *dys: CTensor, dy=1.0):
        """The gradients of the sources of the last forward. dys: of its results; of
        one element it may be left out."""
        if self._made is not None:
            return _gradients_within(self, dys, dy)
        (dy,) = _starts(self.name, dys, dy, self._all[:1])
        grads = _gradients_of(self.op, self.attrs, self._inputs, self._all, dy)
        return grads[0] if len(grads) == 1 else tuple(grads)

    def _do_forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        _check_tensors(self.op, xs)
        if here.precision is None:
            return self._finish(xs, [self.forward(*[x.data for x in xs])])
        xs, is_cast_back = _mixed(self.op, xs)
        ys = self._finish(xs, [self.forward(*[x.data for x in xs])])
        return tuple(_cast(y, _raw.F32) for y in ys) if is_cast_back else ys

    def _finish(self, xs, results):
        ys = super()._finish(xs, results)
        if self.src:
            self._results = self._all
        return ys


def _check_tensors(op: _raw.Op, xs) -> None:
    if not op.src_min <= len(xs) <= op.src_max:
        raise TypeError(
            f"{op.name} takes {op.src_min} "
            + (f"to {op.src_max} " if op.src_max > op.src_min else "")
            + f"tensors; {len(xs)} were given"
        )
    for x in xs:
        if not isinstance(x, Tensor):
            tensor._need_tensor(x, op.name)


def apply(op: _raw.Op, xs, settings: dict) -> Tensor:
    """Runs an op of the list on tensors; its first result."""
    attrs = op.attrs(**settings) if settings else None
    return apply_attrs(op, xs, attrs)


def apply_attrs(op: _raw.Op, xs, attrs) -> Tensor:
    """The same with the attributes' struct."""
    _check_tensors(op, xs)
    if here.precision is None:
        return _run(op, xs, attrs)

    def mixed(*xs) -> Tensor:
        xs, is_cast_back = _mixed(op, xs)
        y = _run(op, xs, attrs)
        return _cast(y, _raw.F32) if is_cast_back else y

    return _combined(lambda: _bare(op), mixed, xs, {}, _classes[op.name])


def _run(op: _raw.Op, xs, attrs) -> Tensor:
    results = op(*[x.data for x in xs], attrs=attrs)
    if here.keeps_all:
        return _remember(op, xs, attrs, results)
    if not here.training or op.gradient != _raw.GRAD:
        return Tensor._of(results[0])
    for x in xs:
        if x.requires_grad:
            break
    else:
        return Tensor._of(results[0])
    return _remember(op, xs, attrs, results)


def _cast(x: Tensor, dtype: int) -> Tensor:
    if x.data.dtype == dtype:
        return x
    op = OPS["cast"]
    return _run(op, (x,), op.attrs(dtype=dtype))


def _mixed(op: _raw.Op, xs) -> tuple[list[Tensor], bool]:
    """The sources in the dtypes of mixed precision, as the C library's scopes
    take them; whether the result is to be cast back."""
    dtypes = ctypes.c_int * len(xs)
    given, wanted = dtypes(*[x.data.dtype for x in xs]), dtypes()
    is_cast_back = lib.op_mixed_dtypes(
        op.code, here.precision, given, len(xs), wanted
    )
    return [_cast(x, w) for x, w in zip(xs, wanted)], is_cast_back


def _widened(x: Tensor) -> Tensor:
    """x, in float32 where mixed precision made it of 16 bits."""
    if here.precision is None or x.data.dtype != here.precision:
        return x
    return _cast(x, _raw.F32)


def _remember(op: _raw.Op, xs, attrs, results: list[CTensor]) -> Tensor:
    node = _bare(op)
    node.attrs = attrs
    node.src = tuple(xs)
    node._results = node._all = results
    node._inputs = [x.data for x in xs]
    node._sequence, node._part = next(_sequence), here.part
    return Tensor._of(results[0], True, node)


def _bare(op: _raw.Op) -> ListOperator:
    """An operator of the list before it is told of what it is one."""
    node = _classes[op.name].__new__(_classes[op.name])
    node.name = f"{op.name}#{Operator.op_count}"
    Operator.op_count += 1
    node.attrs, node._given = None, {}
    return node


# ---- Operators that are made of others ----


class _Same(Operator):
    """Of a tensor that is given a second time: each use has its own gradient."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.src = self._made = (x,)


def _apart(value, seen: set):
    """value, in which no Tensor is there twice."""
    if isinstance(value, Tensor):
        if id(value) in seen:
            return Tensor._of(value.data, value.requires_grad, _Same(value))
        seen.add(id(value))
    elif isinstance(value, dict):
        return {name: _apart(one, seen) for name, one in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = [_apart(one, seen) for one in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _combined(make, function, args, named, kind=None, sources=None):
    """function(*args, **named), whose results have one operator, make(), as their
    creator, whatever they are made of; its backward is _gradients_within.

    sources(args, named): those of its arguments that it gives gradients of, else
    all Tensors. One result that an operator of this kind made of these stays.
    """
    if not here.training:
        return function(*args, **named)
    result = None
    if kind is not None:
        # The most frequent case: one op of the Tensors that were given.
        result = function(*args, **named)
        if isinstance(result, Tensor):
            src = [x for x in args if isinstance(x, Tensor)]
            if not result.requires_grad or _is_of(result.creator, kind, src):
                return result
    given = _given(args, named)
    if len({id(x) for x in given}) < len(given):
        args, named = _apart((tuple(args), named), set())
        given = _given(args, named)
        result = None
    if result is None:
        result = function(*args, **named)
    ys = result if isinstance(result, (tuple, list)) else (result,)
    if not builtins.any(map(_wants, ys)):
        return result
    src = given if sources is None else tuple(sources(args, named))
    if kind is not None and len(ys) == 1 and _is_of(ys[0].creator, kind, src):
        return result
    node = make()
    node.src, node._begin, node._made = src, given, tuple(ys)
    node._results = [y.data for y in ys]
    ours = []
    for i, y in enumerate(ys):
        if _wants(y):
            y = Tensor._of(y.data, True, node)
            y._index = i
        ours.append(y)
    return type(result)(ours) if ys is result else ours[0]


def _given(args, named) -> tuple[Tensor, ...]:
    """All Tensors among the arguments."""
    found: list[Tensor] = []
    for x in (*args, *named.values()):
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple, dict)):
            found.extend(_tensors_in(x))
    return tuple(found)


def _wants(y) -> bool:
    return isinstance(y, Tensor) and y.requires_grad


def _is_of(node, kind: type[Operator], src) -> bool:
    return (
        isinstance(node, kind)
        and len(node.src) == len(src)
        and builtins.all(map(operator.is_, node.src, src))
    )


def _starts(name: str, dys, dy, results) -> list:
    """The gradients that backward begins with, one for each raw result: dys, or dy
    where there is one result and it has one element. Numbers are for all."""
    if not dys and len(results) == 1:
        if results[0].count() == 1 or isinstance(dy, (CTensor, Tensor)):
            dys = (dy,)
    if len(dys) != len(results):
        raise TypeError(
            f"{name}: {len(dys)} gradients for {len(results)} results"
        )
    return [
        (
            tensor.ones_like(Tensor._of(raw)).set_value(dy).data
            if isinstance(dy, (int, float))
            else dy
        )
        for raw, dy in zip(results, dys)
    ]


def _gradients_within(node: Operator, dys, dy):
    """The gradients of the sources of an operator that is made of others, raw; None
    for one that has none."""
    if node._made is None:
        raise StateError(f"{node.name}: backward comes after forward")
    dys = _starts(node.name, dys, dy, node._results)
    grads: list[Tensor | None] = [None] * len(node.src)
    begin = {id(x) for x in node._begin}
    for y, start in zip(node._made, dys):
        if start is None or not y.requires_grad:
            continue
        for i, grad in enumerate(_grad(y, node.src, start, begin)):
            if grad is not None:
                grads[i] = grad if grads[i] is None else grads[i] + grad
    raws = tuple(None if grad is None else grad.data for grad in grads)
    return raws[0] if len(raws) == 1 else raws


class Combined(Operator):
    """An operator that is made of others."""

    def backward(self, *dys: CTensor, dy=1.0):
        """The gradients of the sources alone, raw; None for those that have none.
        dys: of its results, raw tensors or numbers; for a loss it may be left out.
        """
        return _gradients_within(self, dys, dy)


# ---- Activation checkpointing ----


class _Part:
    """Operators whose results are computed again; not those of `results`, each
    an operator's id and a result's index."""

    results: list[tuple[int, int]] = []


def recompute(function, *args, **kwargs):
    """function(*args, **kwargs), and in backward its operators again: activation
    checkpointing (Chen et al., 2016, arXiv:1604.06174).

    A training step that is a graph holds of what they made only what is returned,
    Tensors or lists, tuples and dictionaries of them; nothing else that is made
    in it may be used outside. The same bits for one more forward. Results of
    Operators of Python's stay, as do their sources. Eagerly nothing is saved:
    Python's Tensors keep their elements. A layer does so with recompute = True.
    """
    if here.part is not None:  # the outermost counts
        return function(*args, **kwargs)
    here.part = part = _Part()
    try:
        made = function(*args, **kwargs)
    finally:
        here.part = None
    part.results = [
        (id(y.creator), y._index) for y in map(_tape.inner, _tensors_in(made))
    ]
    return made


def _tensors_in(value):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


# ---- Backward ----


def _gradients_of(op, attrs, inputs, results, dy) -> list:
    """The gradients of one op's sources."""
    xs = [Tensor._of(raw, True) for raw in inputs]
    grads = _grad(_remember(op, xs, attrs, results), xs, dy)
    return [None if grad is None else grad.data for grad in grads]


def backward(y: Tensor, dy=None) -> Iterator[tuple[Tensor, Tensor]]:
    """The gradients of y with respect to the parameters it depends on.

    y: a tensor of one element, or of any shape with dy, the gradient to start
    from, in its shape or a number. Yields (parameter, gradient) for every tensor with
    `stores_grad`, the last used first. The work is done when the first pair is
    asked for.
    """
    if not isinstance(y, Tensor):
        raise TypeError(
            f"backward: {type(y).__name__} given; a Tensor is needed"
        )
    if here.model_step is not None:
        from choir import _engine

        _engine.retract()
        raise ManualStep("autograd.backward in a step that a model runs")
    if y.size() != 1 and dy is None:
        raise ValueError(
            f"backward: the loss has shape {y.shape}; one element is needed"
        )
    if y.creator is None:
        raise StateError(
            "backward: no operator that saw a parameter made this tensor; set "
            "autograd.training = True (or model.train()) before forward"
        )
    pairs = _backward_leaves(y, dy, lambda x: x.stores_grad)
    place.end_step()
    yield from reversed(pairs)


def _backward_leaves(
    y: Tensor, dy, wanted, begin=()
) -> list[tuple[Tensor, Tensor]]:
    with lock, deferred():
        free = _tape.take_scope(y.device)
        pairs = _walk_back(free.handle, y, dy, wanted, begin)
        _tape.free_scopes[y.device].append(free)
        return pairs


def _walk_back(
    scope: int, y: Tensor, dy, wanted, begin=()
) -> list[tuple[Tensor, Tensor]]:
    """In a scope that was begun; ends it."""
    leaves: list[tuple[Tensor, int]] = []

    def leaf(x: Tensor) -> int:
        if not wanted(x) or x.data.dtype not in _raw.FLOATS:
            return lib.scope_input(scope, x.data.handle)
        var = lib.scope_leaf(scope, x.data.handle)
        leaves.append((x, var))
        return var

    tape = _tape.Tape(scope, leaf, begin)
    var = tape.record(y)
    if isinstance(dy, (int, float)):
        dy = tensor.ones_like(y).set_value(dy)
    elif isinstance(dy, CTensor):
        dy = Tensor._of(dy)
    options = BackwardOptions(start=dy.data.handle if dy is not None else None)
    pairs = []
    if leaves:
        lib.scope_backward(scope, var, byref(options))
    if lib.scope_is_ok(scope):
        for x, leaf_var in leaves:
            grad = lib.var_grad(leaf_var)
            if grad:
                pairs.append((x, Tensor._of(CTensor.borrow(grad, y.device))))
    finish(lib.scope_end(scope), *tape.callbacks)
    return pairs


def gradients(y: Tensor, dy=None) -> dict[int, Tensor]:
    """{id(parameter): gradient} of backward."""
    return {id(p): g for p, g in backward(y, dy)}


def grad(y: Tensor, xs, dy=None) -> list[Tensor | None]:
    """The gradients of y with respect to the given tensors, parameters or not; None
    for one that has none, such as integers.

    ValueError: one is no source of y that an operator saw."""
    xs = list(xs)
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"grad: xs[{i}] is a {type(x).__name__}; a Tensor is needed"
            )
    sources = {
        id(x)
        for node in _tape.behind(y)
        for x in map(_tape.inner, node.src)
        if x.creator is None or isinstance(x.creator, Dummy)
    }
    made = _tape.inner(y)
    for i, x in enumerate(xs):
        if id(x) not in sources and (x is not made or made.creator is not None):
            raise ValueError(
                f"grad: xs[{i}] ({x.name}, shape {x.shape}) is no source of y: one "
                "that no operator made, and that operators used on the way to y "
                "while autograd.training was True, is needed"
            )
    return _grad(y, xs, dy)


def _grad(y: Tensor, xs, dy=None, begin=()) -> list[Tensor | None]:
    """The same, with None for what is no source of y."""
    ids = {id(x) for x in xs}
    pairs = _backward_leaves(y, dy, lambda x: id(x) in ids, begin)
    found = {id(x): g for x, g in pairs}
    return [found.get(id(x)) for x in xs]


def infer_dependency(op: Operator) -> tuple[dict, dict]:
    """How often each operator behind `op`, and each tensor, is used."""
    ops: dict[int, int] = {id(op): 0}
    tensors: dict[int, int] = {}
    waiting = [op]
    seen = {id(op)}
    while waiting:
        for x in waiting.pop().src:
            tensors[id(x)] = tensors.get(id(x), 0) + 1
            if x.creator is None:
                continue
            ops[id(x.creator)] = ops.get(id(x.creator), 0) + 1
            if id(x.creator) not in seen:
                seen.add(id(x.creator))
                waiting.append(x.creator)
    return ops, tensors


def axis_helper(y_shape, x_shape) -> tuple[int, ...]:
    """The axes along which x_shape was broadcast to y_shape."""
    lead = len(y_shape) - len(x_shape)
    axes = list(range(lead))
    for i, size in enumerate(x_shape):
        if size != y_shape[lead + i]:
            axes.append(lead + i)
    return tuple(axes)


def back_broadcast(y_shape, x_shape, x: CTensor) -> CTensor:
    """Sums a raw gradient of shape y_shape down to x_shape."""
    for axis in reversed(axis_helper(y_shape, x_shape)):
        x = _raw.run("sum", x, axis=axis, keep_dims=False)
    return _raw.run("reshape", x, ndim=len(x_shape), shape=tuple(x_shape))


# ---- Functions and classes of the list ----

# The C library's names where SINGA has others: class, function.
_NAMES = {
    "neg": ("Negative", "negative"),
    "relu": ("ReLU", "relu"),
    "softmax": ("SoftMax", "softmax"),
    "softmax_cross_entropy": ("SoftMaxCrossEntropy", "softmax_cross_entropy"),
    "mse_loss": ("MeanSquareError", "mse_loss"),
    "leaky_relu": ("LeakyRelu", "leakyrelu"),
    "hard_sigmoid": ("HardSigmoid", "hardsigmoid"),
    "elu": ("Elu", "elu"),
    "selu": ("SeLU", "selu"),
    "prelu": ("PRelu", "prelu"),
    "softplus": ("SoftPlus", "softplus"),
    "softsign": ("SoftSign", "softsign"),
    "round_even": ("Rounde", "rounde"),
    "logical_and": ("And", "_and"),
    "logical_or": ("Or", "_or"),
    "logical_xor": ("Xor", "_xor"),
    "logical_not": ("Not", "_not"),
    "mul": ("Mul", "mul"),
}
# Named in Python by wrappers further down, which take SINGA's arguments.
_WRAPPED = {
    "sum", "mean", "max", "reshape", "flatten", "transpose", "slice", "concat",
    "broadcast_to", "cast", "dropout", "where", "gather", "pad", "one_hot", "tile",
    "upsample", "scatter_elements", "clip", "batch_norm", "batch_norm_infer",
    "conv2d", "max_pool2d", "avg_pool2d", "attention",
}  # fmt: skip
_classes: dict[str, type[ListOperator]] = {}


def _make_function(op: _raw.Op):
    if op.table:

        def function(*xs, **settings) -> Tensor:
            return apply(op, xs, settings)

    else:

        def function(*xs) -> Tensor:
            return apply_attrs(op, xs, None)

    return function


def _make_operators(namespace: dict) -> None:
    for op in OPS.values():
        words = "".join(word.capitalize() for word in op.name.split("_"))
        class_name, function_name = _NAMES.get(op.name, (words, op.name))
        settings = tuple(op.table.fields) if op.table else ()
        doc = f"{op.doc[:1].upper()}{op.doc[1:]}."
        if op.table:
            doc += "\n\nSettings:\n\n" + op.table.describe()
        node_class = type(
            class_name,
            (ListOperator,),
            {
                "op": op,
                "_settings": settings,
                "__doc__": doc,
                "__module__": __name__,
            },
        )
        _classes[op.name] = node_class
        if op.gradient == _raw.INTERNAL:
            continue
        namespace.setdefault(class_name, node_class)
        if op.name in _WRAPPED or keyword.iskeyword(function_name):
            continue
        function = _make_function(op)
        function.__name__ = function.__qualname__ = function_name
        function.__doc__ = doc
        namespace.setdefault(function_name, function)


_make_operators(globals())


def _op(name: str, *xs: Tensor, **settings) -> Tensor:
    return apply(OPS[name], xs, settings)


# SINGA's functions and classes that are not one op of the list; they need what
# is above.
from choir import _functions  # noqa: E402

globals().update(_functions.public())

from choir import _composites  # noqa: E402

globals().update(_composites.public())
