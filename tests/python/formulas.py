# SPDX-License-Identifier: Apache-2.0
"""What tables of tests are made of: inputs away from kinks, formulas in NumPy."""

import math

import numpy as np

from choir import tensor

RNG = np.random.default_rng(2)


def tensor_of(array, requires_grad=True):
    array = np.asarray(array)
    t = tensor.Tensor(
        array.shape, dtype=array.dtype, requires_grad=requires_grad
    )
    t.copy_from_numpy(array)
    return t


# ---- Inputs: float64, away from kinks ----


def away(*shape, gap=0.1):
    """From -2 to 2, but not within `gap` of a multiple of 1/2."""
    x = RNG.uniform(-2, 2, shape)
    near = np.round(x * 2) / 2
    return np.where(np.abs(x - near) < gap, near + gap * 1.2, x)


def positive(*shape):
    return RNG.uniform(0.3, 2, shape)


def inside(*shape):
    return RNG.uniform(-0.9, 0.9, shape)


def above_one(*shape):
    return RNG.uniform(1.2, 3, shape)


def share(*shape):
    x = RNG.uniform(0.1, 1, shape)
    return x / x.sum(-1, keepdims=True)


def apart(*shape):
    """All elements differ by more than a finite difference changes them."""
    n = math.prod(shape)
    return (RNG.permutation(n) * 0.3 - n * 0.15 + 0.05).reshape(shape)


def whole(*shape, below=3):
    return RNG.integers(0, below, shape).astype(np.int32)


def bits(*shape):
    return RNG.integers(0, 2, shape).astype(np.float64)


# ---- Formulas ----


def erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def half_away(x):
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def windows(x, kernel, stride, padding, fill):
    """(n, c, rows, columns, kernel rows, kernel columns)"""
    pads = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    x = np.pad(x, pads, constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))
    return found[:, :, :: stride[0], :: stride[1]]


def to_space(x, b, is_dcr):
    """By ONNX's definition, pixel by pixel."""
    n, c, h, w = x.shape
    depth = c // b**2
    y = np.zeros((n, depth, h * b, w * b))
    for d in range(depth):
        for i in range(h * b):
            for j in range(w * b):
                block = i % b * b + j % b
                channel = block * depth + d if is_dcr else d * b * b + block
                y[:, d, i, j] = x[:, channel, i // b, j // b]
    return y


def to_depth(x, b, is_dcr):
    """The permutation of which to_space is the inverse."""
    n, c, h, w = x.shape
    numbers = np.arange(x[0].size).reshape(1, c * b * b, h // b, w // b)
    places = to_space(numbers, b, is_dcr).astype(int).reshape(-1)
    y = np.zeros((n, x[0].size))
    y[:, places] = x.reshape(n, -1)
    return y.reshape(n, c * b * b, h // b, w // b)
