# SPDX-License-Identifier: Apache-2.0
"""ONNX files as the C library has them: their inputs, results and parameters, and
a forward whose ops Python's autograd takes over. For users: sonnx.py."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import namedtuple
from ctypes import c_char_p, c_int, c_void_p

import numpy as np

from choir import _raw, tensor
from choir._calls import check, lib, ranged
from choir._engine import _free
from choir._functions import draw_step
from choir._here import here
from choir._layer import Forward
from choir._lib import OnnxValueInfo, Step, Vars
from choir._sections import deferred, lock
from choir.tensor import Tensor

# What a file declares of an input or a result. type: "float", "int64", ...; shape:
# of each size a number, its name or None; None: not declared.
Value = namedtuple("Value", "name type shape")

_ALL = (1 << 31) - 1
# Types of ONNX that Choir keeps in wider ones, as NumPy has them.
_NARROW = {
    "int8": np.int8,
    "int16": np.int16,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
}
# Of inputs, a type becomes another one of its kind.
_KINDS = [_raw.FLOATS, (_raw.I32, _raw.I64, _raw.U8), (_raw.BOOL,)]


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _described(info: OnnxValueInfo) -> Value:
    shape = None
    if info.ndim >= 0:
        shape = tuple(
            info.shape[i]
            if info.shape[i] >= 0
            else _text(info.symbols[i]) or None
            for i in range(info.ndim)
        )
    return Value(_text(info.name), _text(lib.onnx_type_name(info.type)), shape)


def _dtype_of(number: int) -> int | None:
    """The library's dtype for a type of ONNX; None: it says none."""
    if number == 0:
        return None
    code = c_int()
    check(lib.onnx_type_dtype(number, ctypes.byref(code)))
    return code.value


def _array_for(x, code: int | None) -> np.ndarray:
    """x as an array of the dtype, but for floats where whole numbers are wanted."""
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float32)  # such as ml_dtypes' bfloat16
    if code is None or code not in _raw.FLOATS and array.dtype.kind == "f":
        return array
    near = _raw.F32 if code == _raw.BF16 else code
    return array.astype(_raw.numpy_dtype(near), copy=False)


def source_of(model) -> str | bytes:
    """A path or the bytes of a file: of a path, bytes, a file that is open, or what
    has SerializeToString (onnx.ModelProto)."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    if hasattr(model, "read"):
        return bytes(model.read())
    if isinstance(model, (str, os.PathLike)):
        return os.path.abspath(os.fsdecode(model))
    raise TypeError(
        f"an ONNX model is needed, a path, bytes or a ModelProto; a "
        f"{type(model).__name__} was given"
    )


class OnnxFile(Forward):
    """A file, opened. names: of the parameters and states that place gives."""

    _name = "onnx"

    def __init__(self, source: str | bytes) -> None:
        if isinstance(source, bytes):
            call = lib.onnx_parse, source, len(source), None
        else:
            call = lib.onnx_open, os.fsencode(source)
        with deferred():
            self._own(lib.onnx_release, *call)
        self.inputs = [
            _described(lib.onnx_input(self.handle, i))
            for i in range(lib.onnx_input_count(self.handle))
        ]
        self.outputs = [
            _described(lib.onnx_output(self.handle, i))
            for i in range(lib.onnx_output_count(self.handle))
        ]
        self._dtypes = [
            _dtype_of(lib.onnx_input(self.handle, i).type)
            for i in range(len(self.inputs))
        ]
        self._params, self.names, self.types = [], [], []
        self._states: list[int] = []  # which of names training does not learn
        # A model's step, and what its states will be; None: there is none.
        self._moving: tuple | None = None
        self._selected = None
        self.device = None

    def describe(self) -> str:
        """The file for a reader."""
        text = c_void_p()
        check(lib.onnx_print(self.handle, ctypes.byref(text)))
        try:
            return _text(ctypes.cast(text, c_char_p).value)
        finally:
            _free(text)

    def place(self, device) -> list[Tensor]:
        """Parameters and states as the file has them, on a device, where it computes
        from now on; they are the caller's."""
        with lock, deferred():
            check(lib.onnx_place(self.handle, device.handle))
            count = lib.onnx_param_count(self.handle)
            self._params, self.names, made = [], [], []
            for i in range(count):
                param = lib.onnx_param(self.handle, i)
                value = param.contents.value
                raw = _raw.CTensor.borrow(value, device)
                lib.tensor_release(value)
                param.contents.value = None
                self._params.append(param)
                self.names.append(_text(param.contents.name))
                trained = bool(param.contents.trainable)
                made.append(Tensor._of(raw, trained))
                made[-1].stores_grad = trained
            self._states = [i for i, t in enumerate(made) if not t.stores_grad]
            self.device = device
            return made

    def select(self, last_layers: int | None, aux_output) -> None:
        """What calls give from now on: see sonnx.SONNXModel.forward."""
        if isinstance(aux_output, str):
            aux_output = (aux_output,)
        names = list(dict.fromkeys(aux_output))
        if last_layers is None:
            own = {value.name for value in self.outputs}
            names = [name for name in names if name not in own]
        key = last_layers, tuple(names)
        if key == self._selected:
            return
        more = (c_char_p * max(len(names), 1))(*[n.encode() for n in names])
        nodes = _ALL
        if last_layers is not None:
            nodes = ranged(last_layers, "last_layers", 32)
        check(lib.onnx_select(self.handle, nodes, more, len(names)))
        self._selected = key

    def taken(self, i: int, x, device) -> Tensor:
        """Input i as the file wants it, of a Tensor or what NumPy takes."""
        code = self._dtypes[i] if i < len(self._dtypes) else None
        if not isinstance(x, Tensor):
            x = Tensor._of(_raw.from_array(device, _array_for(x, code)))
        has = x.data.dtype
        if code in (None, has) or not any(
            code in kind and has in kind for kind in _KINDS
        ):
            return x
        if code in _raw.FLOATS:
            return tensor._apply("cast", x, dtype=code)
        return Tensor._of(_raw.cast(x.data, code))

    def array_of(self, i: int, y: Tensor) -> np.ndarray:
        """Result i of the last call, in the type that ONNX says."""
        array = tensor.to_numpy(y)
        narrow = _NARROW.get(_text(lib.onnx_type_name(self.types[i])))
        return array if narrow is None else array.astype(narrow)

    def __call__(self, xs, weights) -> list[Tensor]:
        """The results. weights: of each of names."""
        with lock, deferred():
            self._first = next(iter([*xs, *weights]), None)
            step = Step() if self._first is None else draw_step(self._first, 1)
            step.training = here.training
            step.keeps_all = here.keeps_all
            if not step.training or not self._states:
                return self._run(self.device, xs, weights, step)
            weights = self._with_states(list(weights))
            try:
                for i in self._states:
                    self._params[i].contents.value = weights[i].data.handle
                return self._run(self.device, xs, weights, step)
            finally:
                for i in self._states:
                    self._params[i].contents.value = None

    def _with_states(self, weights: list[Tensor]) -> list[Tensor]:
        """Of a model's step: with copies in the place of states, which become the
        states when the parameters have been updated."""
        step = here.model_step
        if step is None:
            return weights
        if self._moving is None or self._moving[0]() is not step:
            states = [weights[i].data for i in self._states]
            copies = [_raw.run("copy", state) for state in states]
            self._moving = weakref.ref(step), copies

            def update() -> None:
                for copy, state in zip(copies, states):
                    _raw.run("copy", copy, out=[state])

            step.when_updated(update)
        for i, copy in zip(self._states, self._moving[1]):
            weights[i] = Tensor._of(copy)
        return weights

    def _call(self, scope: int, inputs: Vars) -> int:
        return lib.onnx_forward(scope, self.handle, inputs)

    def _count_results(self) -> int:
        return lib.onnx_result_count(self.handle)

    def _ran(self, scope: int, step: Step) -> None:
        self.types = [
            lib.onnx_result_type(self.handle, i)
            for i in range(self._count_results())
        ]
        # Its nodes drew more random numbers than the one that was reserved.
        drawn = lib.scope_next_random_stream(scope) - step.random_stream
        if drawn > 1:
            draw_step(self._first, drawn - 1)
