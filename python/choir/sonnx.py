# SPDX-License-Identifier: Apache-2.0
"""Models of ONNX files, to be run and trained on.

    rep = sonnx.prepare("resnet18.onnx")
    (scores,) = rep.run([images])                     # NumPy arrays

    sonnx.save(sonnx.to_onnx([images], net), "net.onnx")   # of any model of Choir's

    class MyModel(sonnx.SONNXModel):
        def __init__(self, onnx_model):
            super().__init__(onnx_model)
            self.linear = layer.Linear(10)

        def forward(self, *x):
            (y,) = super().forward(*x, last_layers=-1)  # without the last node
            return self.linear(y)

        def train_one_batch(self, x, y): ...          # as of any model

A model is a path, the bytes of a file, or an object with SerializeToString
(onnx.ModelProto); the package onnx is not needed. The C library runs the file
(onnx/onnx.h): of floating-point initialisers those with more than one element are
parameters, by their names in the file; the averages of batch normalisation are
states.
"""

from __future__ import annotations

import os

from choir import device as _device, model
from choir._onnx import OnnxFile, source_of
from choir._onnx_write import OnnxModel, save, to_onnx
from choir.device import Device
from choir.tensor import Tensor

__all__ = [
    "OnnxModel",
    "SONNXModel",
    "SingaBackend",
    "SingaFrontend",
    "SingaRep",
    "load",
    "prepare",
    "run_node",
    "save",
    "to_onnx",
]


class SONNXModel(model.Model):
    """A model that computes what an ONNX file says.

    Its parameters are there as soon as it is made, on `device` (the default one);
    those of another device's inputs move there at the first call. A copy or a pickle
    of a model that was made of a path reads the file again.
    """

    _keeps_places = False
    _made: OnnxFile | None = None

    def __init__(self, onnx_model, device: Device | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "_source", source_of(onnx_model))
        self._open(device or _device.get_default_device(), True)

    def _open(self, device: Device, is_new: bool) -> None:
        made = OnnxFile(self._source)
        values = made.place(device)
        for name, value in zip(made.names, values if is_new else ()):
            value.name = self._path(name)
            self._own[name] = value
        object.__setattr__(self, "_made", made)

    def _file(self, xs) -> OnnxFile:
        """On the device of the inputs."""
        if self._made is None:  # a copy
            first = next(iter(self._own.values()), None)
            device = first.device if first is not None else None
            self._open(device or _device.get_default_device(), False)
        made = self._made
        first = next((x for x in xs if isinstance(x, Tensor)), None)
        if (
            first is not None
            and first.device is not made.device
            and self._engine_made is None
        ):
            made.place(first.device)
            for name in made.names:
                self._own[name].to_device(first.device)
        return made

    def initialize(self, *input, **kwargs) -> None:
        """There is nothing to make: the file has the parameters."""

    def forward(
        self, *input, aux_output=(), last_layers: int | None = None, **kwargs
    ) -> list[Tensor]:
        """The file's results, a list. input: as the file declares them; whole numbers
        become its kind of whole numbers, floats its kind of floats.

        last_layers: of the file's nodes only nodes[:last_layers] run, -1: all but the
        last one, and the results are those of the last of these. aux_output: names of
        further values of the file, which come behind the results.
        """
        if kwargs:
            raise TypeError(
                f"SONNXModel.forward: {', '.join(kwargs)} is unknown; last_layers "
                "and aux_output can be given"
            )
        made = self._file(input)
        made.select(last_layers, aux_output)
        xs = [made.taken(i, x, made.device) for i, x in enumerate(input)]
        return made(xs, [self._own[name] for name in made.names])

    def describe(self) -> str:
        """The file for a reader: inputs, results, parameters and nodes."""
        return self._file(()).describe()


class SingaRep:
    """An ONNX file that runs: what `prepare` gives. inputs, outputs: what the file
    declares, as (name, type, shape)."""

    def __init__(self, onnx_model, device: Device | None = None) -> None:
        self._model = SONNXModel(onnx_model, device)
        self.is_graph = False

    @property
    def device(self) -> Device:
        return self._model._file(()).device

    @property
    def inputs(self) -> list:
        return self._model._file(()).inputs

    @property
    def outputs(self) -> list:
        return self._model._file(()).outputs

    @property
    def states(self) -> dict[str, Tensor]:
        """Parameters and states by name."""
        return self._model.get_states()

    def run(
        self, x, last_layers: int | None = None, aux_output=(), **kwargs
    ) -> list:
        """The results for a list of inputs (one that is no list: of it), as NumPy
        arrays of ONNX's types; as Tensors where an input is one or is_graph is set.
        bfloat16 and types of fewer than 8 bits come as their nearest wider type.
        The others: see SONNXModel.forward."""
        xs = list(x) if isinstance(x, (list, tuple)) else [x]
        kwargs.update(last_layers=last_layers, aux_output=aux_output)
        ys = self._model.forward(*xs, **kwargs)
        if self.is_graph or any(isinstance(one, Tensor) for one in xs):
            return ys
        made = self._model._file(())
        return [made.array_of(i, y) for i, y in enumerate(ys)]


def _device_of(name) -> Device | None:
    """Of "CPU", "CUDA", "CUDA:1" or a device; None: the default one."""
    if name is None or isinstance(name, Device):
        return name
    kind, _, number = str(name).upper().partition(":")
    if kind == "CPU" and number in ("", "0"):
        return _device.get_default_device()
    if kind == "CUDA" and (not number or number.isdigit()):
        return _device.create_cuda_gpu_on(int(number or 0))
    raise ValueError(f"device {name!r}; 'CPU', 'CUDA' or a device is needed")


# ---- Bytes of a model of one node ----


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _part(field: int, value) -> bytes:
    """A field of a message: of a whole number, a text or bytes."""
    if isinstance(value, int):
        return _number(field << 3) + _number(value)
    data = value.encode() if isinstance(value, str) else value
    return _number(field << 3 | 2) + _number(len(data)) + data


def _model_of(node, version: int) -> bytes:
    graph = _part(1, node.SerializeToString()) + _part(2, "node")
    inputs = dict.fromkeys(name for name in node.input if name)
    for field, names in ((11, inputs), (12, node.output)):
        graph += b"".join(
            _part(field, _part(1, name)) for name in names if name
        )
    operators = _part(1, node.domain) + _part(2, version)
    return _part(1, 8) + _part(7, graph) + _part(8, operators)


class SingaBackend:
    """What the package onnx calls a backend: `prepare` and `run_node`."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs) -> SingaRep:
        """Reads a model. device: "CPU" (the default device), "CUDA", or a device."""
        if kwargs:
            raise TypeError(f"prepare: {', '.join(kwargs)} is unknown")
        return SingaRep(model, _device_of(device))

    @classmethod
    def run_node(
        cls, node, inputs, device="CPU", opset_version: int = 17
    ) -> list:
        """The results of one onnx.NodeProto for a list of inputs; a node without a
        name for an input gets none there."""
        rep = cls.prepare(_model_of(node, opset_version), device)
        return rep.run(list(inputs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device."""
        kind = device.upper().partition(":")[0]
        return kind == "CPU" or kind == "CUDA" and _device.get_num_gpus() > 0


class SingaFrontend:
    """SINGA's names of to_onnx."""

    singa_to_onnx_model = staticmethod(to_onnx)

    @classmethod
    def singa_to_onnx_graph(cls, inputs, y, model_name: str = "sonnx"):
        """The onnx.GraphProto of the model; needs the package onnx."""
        return to_onnx(inputs, y, model_name).graph


def load(f) -> str | bytes:
    """A file, a path or open, as prepare and SONNXModel take it. The package onnx,
    if there is one, gives ModelProtos, which they take too (onnx.load)."""
    source = source_of(f)
    if isinstance(source, str) and not os.path.isfile(source):
        raise FileNotFoundError(f"load: there is no file {source}")
    return source


prepare = SingaBackend.prepare
run_node = SingaBackend.run_node
