# SPDX-License-Identifier: Apache-2.0
"""What Python's autograd remembers of a forward, as an ONNX file by the C library.
For users: sonnx.to_onnx."""

from __future__ import annotations

import ctypes
import os
import warnings
from ctypes import byref, c_size_t, c_void_p

from choir import _tape, tensor
from choir._calls import StateError, check, lib
from choir._engine import _free
from choir._here import here
from choir._layer import Layer
from choir._lib import (
    NamedTensor,
    OnnxName,
    OnnxTrace,
    OnnxWriteOptions,
    Step,
)
from choir._sections import deferred, lock
from choir.tensor import Tensor


class OnnxModel:
    """The bytes of a file. What onnx.ModelProto has, it has too (`graph`, ...),
    where the package onnx is installed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._proto = None

    def SerializeToString(self) -> bytes:
        return self._data

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if self._proto is None:
            import onnx

            self._proto = onnx.load_from_string(self._data)
        return getattr(self._proto, name)

    def __repr__(self) -> str:
        return f"OnnxModel({len(self._data)} bytes)"


def _listed(value) -> list[Tensor]:
    many = value if isinstance(value, (list, tuple)) else [value]
    return [tensor._need_tensor(x, "to_onnx") for x in many]


def _forward(inputs, model):
    """The results of a model, with all operators remembered."""
    before = here.training, here.keeps_all
    here.training, here.keeps_all = False, True
    try:
        forward = model.forward if isinstance(model, Layer) else model
        return forward(*inputs)
    finally:
        here.training, here.keeps_all = before


def _named(names, vars_) -> ctypes.Array:
    made = (OnnxName * max(len(names), 1))()
    for i, (name, var) in enumerate(zip(names, vars_)):
        made[i] = OnnxName(name.encode(), var)
    return made


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what}{i or ''}" for i in range(count)]


class _Trace:
    """Operators as a step of the library's, and what is in it by name."""

    def __init__(self, scope: int, inputs: list[Tensor], states: dict) -> None:
        self._scope = scope
        self._inputs = inputs
        self._names = {id(x): name for name, x in states.items()}
        self._params: dict[str, Tensor] = {}
        self.constants: list[Tensor] = []

    def _leaf(self, x: Tensor) -> int:
        name = self._names.get(id(x))
        if name is None and x.stores_grad:
            name = "param" if x.is_dummy() else x.name
        if any(x is one for one in self._inputs):
            pass
        elif name is None:
            self.constants.append(x)
        else:
            unique, number = name, 1
            while unique in self._params:
                number += 1
                unique = f"{name}_{number}"
            self._params[unique] = x
        return lib.scope_input(self._scope, x.data.handle)

    def record(self, results: list[Tensor], name: str) -> OnnxTrace:
        keeps_all, here.keeps_all = here.keeps_all, True
        try:
            self.tape = _tape.Tape(self._scope, self._leaf)
            self.tape.record(*results)
        finally:
            here.keeps_all = keeps_all
        ins = [self.tape.var(x) for x in self._inputs]
        outs = [self.tape.var(y) for y in results]
        params = (NamedTensor * max(len(self._params), 1))()
        for i, (key, x) in enumerate(self._params.items()):
            params[i] = NamedTensor(key.encode(), x.data.handle)
        return OnnxTrace(
            name.encode(),
            _named(_numbered("input", len(ins)), ins),
            len(ins),
            _named(_numbered("output", len(outs)), outs),
            len(outs),
            params,
            len(self._params),
        )


def _pack(scope: int, trace: OnnxTrace, options: OnnxWriteOptions) -> OnnxModel:
    data, size = c_void_p(), c_size_t()
    check(
        lib.onnx_pack(
            scope, byref(trace), byref(options), byref(data), byref(size)
        )
    )
    try:
        return OnnxModel(ctypes.string_at(data.value, size.value))
    finally:
        _free(data)


def to_onnx(
    inputs,
    y,
    model_name: str = "sonnx",
    path: str | os.PathLike | None = None,
    fixed_batch: bool = False,
    data_beside: bool = False,
) -> OnnxModel | None:
    """A model as an ONNX file: what it computes in inference, with its parameters.

    inputs: Tensors, with which it is called. y: a model, a layer or a function of
    them. Or what one gave, as SINGA takes it, a Tensor or a list: the operators
    that autograd remembers behind it (autograd.training = True); what these read of
    others (comparisons, indices) is written as the numbers that it was.
    Dimension 0 of the inputs, as far as it is that of the first, can have any size
    in the file, unless fixed_batch. path: where to write a file, of any size;
    without it the model is returned, and has at most 1 GiB. data_beside: parameters
    lie in a file of their own, PATH.data.
    """
    xs = _listed(inputs)
    if not xs:
        raise ValueError("to_onnx: there is no input; one at least is needed")
    is_result = isinstance(y, (Tensor, list, tuple))
    results = _listed(y if is_result else _forward(xs, y))
    if not results:
        raise ValueError("to_onnx: there is no result; one at least is needed")
    if is_result and all(one.creator is None for one in results):
        raise StateError(
            "to_onnx: no operator that autograd remembers made this; give the "
            "model itself as y, or set autograd.training = True before forward"
        )
    states = y.get_states() if isinstance(y, Layer) else {}
    options = OnnxWriteOptions(fixed_batch, data_beside)
    made = None
    with lock, deferred():
        device = results[0].device
        free = _tape.take_scope(device, Step(keeps_all=True))
        scope = free.handle
        traced = _Trace(scope, xs, states)
        trace = traced.record(results, model_name)
        check(lib.scope_take_failure(scope))
        if path is None:
            made = _pack(scope, trace, options)
        else:
            where = os.fsencode(path)
            check(lib.onnx_write(scope, byref(trace), where, byref(options)))
        check(lib.scope_end(scope))
        _tape.free_scopes[device].append(free)
    fixed = [x.shape for x in traced.constants if x.size() > 1]
    if is_result and fixed:
        warnings.warn(
            f"to_onnx: tensors of shapes {fixed} are constants in the file; if they "
            "follow from the inputs, give the model itself as y",
            stacklevel=2,
        )
    return made


def save(onnx_model, f) -> None:
    """Writes what to_onnx gave, or an onnx.ModelProto, to a path or an open file."""
    data = onnx_model.SerializeToString()
    if hasattr(f, "write"):
        f.write(data)
        return
    with open(f, "wb") as file:
        file.write(data)
