# SPDX-License-Identifier: Apache-2.0
"""Bytes of small ONNX files, by the wire format of Protocol Buffers: the package
onnx is not needed."""

import struct

import numpy as np

TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6,
    "int64": 7, "bool": 9, "float16": 10, "float64": 11, "uint32": 12,
    "uint64": 13, "bfloat16": 16,
}  # fmt: skip


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, value):
    """One field of a message, of an int, a float, a str or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name, array):
    array = np.asarray(array)
    dims = b"".join(field(1, size) for size in array.shape)
    kind = field(2, TYPES[array.dtype.name])
    return dims + kind + field(8, name) + field(9, array.tobytes())


def attribute(name, value):
    start = field(1, name)
    if isinstance(value, np.ndarray):
        return start + field(5, tensor("", value)) + field(20, 4)
    if isinstance(value, (list, tuple)):
        return start + b"".join(field(8, v) for v in value) + field(20, 7)
    number, kind = {int: (3, 2), float: (2, 1), str: (4, 3)}[type(value)]
    return start + field(number, value) + field(20, kind)


def node(kind, inputs, outputs, name="", **attributes):
    data = b"".join(field(1, one) for one in inputs)
    data += b"".join(field(2, one) for one in outputs)
    data += field(3, name) + field(4, kind)
    for key, value in attributes.items():
        data += field(5, attribute(key, value))
    return data


def value(name, dtype="float32", shape=None):
    """An input or a result; of its sizes a str is a name."""
    inside = field(1, TYPES[dtype])
    if shape is not None:
        sizes = [field(1 if isinstance(n, int) else 2, n) for n in shape]
        inside += field(2, b"".join(field(1, one) for one in sizes))
    return field(1, name) + field(2, field(1, inside))


def model(nodes, inputs, outputs, initializers=(), version=17):
    graph = b"".join(field(1, one) for one in nodes) + field(2, "graph")
    graph += b"".join(field(5, one) for one in initializers)
    graph += b"".join(field(11, one) for one in inputs)
    graph += b"".join(field(12, one) for one in outputs)
    operators = field(1, "") + field(2, version)
    return (
        field(1, 8) + field(2, "tests") + field(7, graph) + field(8, operators)
    )
