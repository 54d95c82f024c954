# SPDX-License-Identifier: Apache-2.0
"""Operators that Python's autograd remembers, on the tape of a scope of the C
library: for backward, and for what a file is written of."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING

from choir import _elements, _raw
from choir._callback import Callback
from choir._calls import Owner, StateError, address_of, lib
from choir._here import here
from choir._lib import CustomOp, Step, Vars
from choir._raw import CTensor
from choir._sections import with_handlers
from choir.tensor import Tensor

if TYPE_CHECKING:
    from choir.autograd import Operator, _Part


def inner(x: Tensor, begin=()) -> Tensor:
    """x or, of an operator that is made of others, what these made in its place.
    begin: ids of Tensors of which it does not matter what is behind them."""
    while id(x) not in begin and x.creator is not None:
        if x.creator._made is None:
            break
        x = x.creator._made[x._index]
    return x


def behind(*ys: Tensor, begin=()) -> list[Operator]:
    """The operators that ys depend on, in the order in which they ran; none that is
    made of others, and none behind Tensors of these ids."""
    seen: dict[int, Operator] = {}
    for y in ys:
        y = inner(y, begin)
        if y.creator is not None and id(y) not in begin:
            seen[id(y.creator)] = y.creator
    waiting = list(seen.values())
    while waiting:
        for x in waiting.pop().src:
            node = x.creator
            if node is not None and node._made is not None:
                x = inner(x, begin)
                node = x.creator
            if node is None or id(node) in seen or id(x) in begin:
                continue
            seen[id(node)] = node
            waiting.append(node)
    return sorted(seen.values(), key=lambda node: node._sequence)


class _Custom:
    """An Operator of Python's while its gradient is wanted."""

    def __init__(self, node: Operator, device) -> None:
        self.node = node
        self.device = device
        self.dys: list[CTensor | None] = [None] * len(node._results)

    def run(self, dys, out_grads: int) -> None:
        """out_grads: where the library looks for the gradients of the sources."""
        for i, dy in enumerate(dys):
            if dy is None:
                dys[i] = _elements.zeros(
                    self.device,
                    self.node._results[i].shape(),
                    self.node._results[i].dtype,
                )
        grads = with_handlers(self.node.backward, *dys)
        if not isinstance(grads, (tuple, list)):
            grads = (grads,)
        if len(grads) != len(self.node.src):
            raise ValueError(
                f"{self.node.name}: backward gave {len(grads)} gradients for "
                f"{len(self.node.src)} sources"
            )
        for i, grad in enumerate(grads):
            if isinstance(grad, Tensor):
                grad = grad.data
            if grad is not None:
                _give(grad, out_grads, i)


def _give(raw: CTensor, out: int, i: int) -> None:
    """Hands a reference to the library."""
    lib.tensor_retain(raw.handle)
    c_void_p.from_address(out + i * ctypes.sizeof(c_void_p)).value = raw.handle


class Tape:
    """The operators behind a loss, as variables of a scope of the C library.

    leaf(x): the variable of a tensor that no operator made. begin: ids of Tensors
    that count as such.
    """

    def __init__(self, scope: int, leaf, begin=()) -> None:
        self.scope = scope
        self._leaf = leaf
        self._begin = begin
        self._vars: dict[tuple[int, int], int] = {}
        self._leaves: dict[int, int] = {}
        self._keep: list = []  # what the scope points to
        self.callbacks: list[Callback] = []

    def record(self, y: Tensor, *more: Tensor) -> int:
        """The variable of y. more: what else is to be on the tape."""
        nodes = behind(y, *more, begin=self._begin)
        for part, nodes in itertools.groupby(nodes, lambda n: n._part):
            since = lib.scope_tape(self.scope)
            for node in nodes:
                if node._is_listed:
                    self._record_op(node)
                else:
                    self._record_custom(node)
            if part:
                self._recompute(part, since)
        return self.var(y)

    def _recompute(self, part: _Part, since) -> None:
        """What lies between `since` and the results of this part."""
        kept = [self._vars[k] for k in part.results if k in self._vars]
        if not kept:
            raise StateError(
                "recompute: the loss depends on a tensor that was made in the "
                "function and is not one of its results"
            )
        ys = Vars((c_void_p * len(kept))(*kept), len(kept))
        var = lib.scope_tuple(self.scope, ys)
        lib.scope_recompute(self.scope, since, var)

    def var(self, x: Tensor) -> int:
        """The variable of a tensor that was recorded, or a leaf's."""
        node = x.creator
        if node is not None and node._made is not None:
            x = inner(x, self._begin)
            node = x.creator
        is_leaf = node is None or id(x) in self._begin
        if not is_leaf and not node._is_dummy:
            return self._vars[id(node), x._index]
        var = self._leaves.get(id(x))
        if var is None:
            var = self._leaf(x)
            self._leaves[id(x)] = var
        return var

    def _sources(self, node: Operator):
        count = len(node.src)
        return (c_void_p * count)(*[self.var(x) for x in node.src]), count

    def _record_op(self, node: Operator) -> None:
        srcs, count = self._sources(node)
        results = node._results
        var = lib.scope_record(
            self.scope,
            node.op.code,
            srcs,
            count,
            node.attrs,
            (c_void_p * len(results))(*[raw.handle for raw in results]),
        )
        self._vars[id(node), 0] = var
        if here.keeps_all and lib.scope_is_ok(self.scope):
            made = lib.scope_tape(self.scope).contents.results
            for i in range(1, len(results)):
                self._vars[id(node), i] = made[i]

    def _op(self, node: Operator, custom: _Custom, function) -> CustomOp:
        """function(dy, out_grads): what it does for backward."""

        def run(arguments) -> None:
            dy, out_grads = arguments[:2]
            function(CTensor.borrow(dy, custom.device), out_grads)

        callback = Callback(run)
        self.callbacks.append(callback)
        name = type(node).__name__.encode()
        self._keep.append(name)
        return CustomOp(
            name,
            address_of(lib.custom_op_callback),
            callback.address,
            node._knows_micro_shards,
        )

    def _record_custom(self, node: Operator) -> None:
        srcs, count = self._sources(node)
        results = node._results
        custom = _Custom(node, results[0].device)
        if len(results) == 1:
            op = self._op(node, custom, lambda dy, out: custom.run([dy], out))
            self._vars[id(node), 0] = lib.scope_record_custom(
                self.scope, byref(op), srcs, count, results[0].handle
            )
            return
        # Of several results each hands its gradient to one that stands for all;
        # that one is visited last.
        token = _elements.zeros(custom.device, (1,), _raw.F32)
        self._keep.append(token)
        op = self._op(
            node, custom, lambda _dy, out: custom.run(custom.dys, out)
        )
        whole = lib.scope_record_custom(
            self.scope, byref(op), srcs, count, token.handle
        )
        for i, raw in enumerate(results):

            def collect(dy: CTensor, out: int, i=i) -> None:
                custom.dys[i] = dy
                _give(token, out, 0)

            op = self._op(node, custom, collect)
            self._vars[id(node), i] = lib.scope_record_custom(
                self.scope, byref(op), (c_void_p * 1)(whole), 1, raw.handle
            )


class _FreeScope(Owner):
    """A scope of the library for gradients outside of a model's step.

    One for each backward that runs: an Operator's may call another's."""

    _computes = True

    def __init__(self, device) -> None:
        self.device = device
        self._own(lib.scope_destroy, lib.scope_create, device.handle)


# By device; those that nobody uses. One that an exception passed is let go.
free_scopes: dict = {}


def take_scope(device, step=Step(training=True), precision=None):
    """One whose step has begun."""
    free = free_scopes.setdefault(device, [])
    scope = free.pop() if free else _FreeScope(device)
    lib.scope_set_precision(
        scope.handle, _raw.F32 if precision is None else precision
    )
    lib.scope_begin(scope.handle, byref(step))
    return scope
