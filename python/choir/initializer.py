# SPDX-License-Identifier: Apache-2.0
"""Initial values, in place.

Of a weight (in, out) or (out, in / group, kh, kw) fan_in and fan_out are the
numbers of inputs and outputs of one element's neighbours: Glorot and Bengio,
AISTATS 2010; He et al., ICCV 2015; LeCun et al., 1998. Every draw follows from
the device's seed (`dev.SetRandSeed`).
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from choir.tensor import Tensor


def _fans(t: Tensor) -> tuple[int, int]:
    shape = t.shape
    if len(shape) < 2:
        raise ValueError(
            f"a tensor of shape {shape} has no fan; two dimensions or more are needed"
        )
    if len(shape) == 2:
        return shape[0], shape[1]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def eye(t: Tensor) -> None:
    """Ones on the diagonal of a matrix, else zeros."""
    if t.ndim() != 2:
        raise ValueError(
            f"eye: a tensor of shape {t.shape}; a matrix is needed"
        )
    t.copy_from_numpy(np.eye(t.shape[0], t.shape[1], dtype=np.float32))


def orthogonal(t: Tensor, gain: float = 1.0) -> None:
    """A random orthogonal matrix times gain (Saxe et al., 2014)."""
    if t.ndim() < 2:
        raise ValueError(
            f"orthogonal: a tensor of shape {t.shape}; a matrix is needed"
        )
    rows = t.shape[0]
    columns = math.prod(t.shape[1:])
    noise = Tensor((max(rows, columns), min(rows, columns)), t.device)
    noise.gaussian(0.0, 1.0)
    q, r = np.linalg.qr(noise.numpy().astype(np.float64))
    q *= np.sign(np.diag(r))  # so that every matrix is equally likely
    if rows < columns:
        q = q.T
    t.copy_from_numpy((gain * q).astype(np.float32).reshape(t.shape))


def lecun_uniform(t: Tensor) -> None:
    """Evenly from +-sqrt(3 / fan_in)."""
    limit = math.sqrt(3.0 / _fans(t)[0])
    t.uniform(-limit, limit)


def glorot_normal(t: Tensor) -> None:
    """N(0, sqrt(2 / (fan_in + fan_out)))."""
    t.gaussian(0.0, math.sqrt(2.0 / sum(_fans(t))))


def glorot_uniform(t: Tensor) -> None:
    """Evenly from +-sqrt(6 / (fan_in + fan_out))."""
    limit = math.sqrt(6.0 / sum(_fans(t)))
    t.uniform(-limit, limit)


def he_normal(t: Tensor) -> None:
    """N(0, sqrt(2 / fan_in))."""
    t.gaussian(0.0, math.sqrt(2.0 / _fans(t)[0]))


def lecun_normal(t: Tensor) -> None:
    """N(0, sqrt(1 / fan_in))."""
    t.gaussian(0.0, math.sqrt(1.0 / _fans(t)[0]))


def he_uniform(t: Tensor) -> None:
    """Evenly from +-sqrt(6 / fan_in)."""
    limit = math.sqrt(6.0 / _fans(t)[0])
    t.uniform(-limit, limit)


def _old(name: str, other: str) -> None:
    warnings.warn(
        f"initializer.{name} is old; use {other}",
        DeprecationWarning,
        stacklevel=3,
    )


def gaussian(t: Tensor, fan_in: int = 0, fan_out: int = 0) -> None:
    """N(0, sqrt(4 / (fan_in + fan_out))), of one fan sqrt(2 / fan) (deprecated)."""
    _old("gaussian", "glorot_normal or he_normal")
    if fan_in <= 0 and fan_out <= 0:
        raise ValueError("gaussian: fan_in or fan_out is needed")
    both = fan_in > 0 and fan_out > 0
    t.gaussian(0.0, math.sqrt((4.0 if both else 2.0) / (fan_in + fan_out)))


def xavier(t: Tensor) -> None:
    """Evenly from +-sqrt(6 / (d0 + d1)) (deprecated)."""
    _old("xavier", "glorot_uniform")
    limit = math.sqrt(6.0 / (t.shape[0] + t.shape[1]))
    t.uniform(-limit, limit)


def glorot(t: Tensor) -> None:
    """N(0, sqrt(2 / (d0 + d1))) (deprecated)."""
    _old("glorot", "glorot_normal")
    t.gaussian(0.0, math.sqrt(2.0 / (t.shape[0] + t.shape[1])))


def msra(t: Tensor) -> None:
    """N(0, sqrt(2 / d0)) (deprecated)."""
    _old("msra", "he_normal")
    t.gaussian(0.0, math.sqrt(2.0 / t.shape[0]))
