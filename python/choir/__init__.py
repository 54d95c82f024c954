# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of neural networks, over libchoir.so.

    from choir import device, tensor, autograd, layer, model, opt

Names and meaning are those of Apache SINGA's Python package; see docs/python.md.
"""

from choir._calls import (
    CommError,
    Error,
    NotFoundError,
    StateError,
    UnavailableError,
)
from choir._version import __version__
from choir import device, tensor, autograd, layer, opt, model, initializer
from choir import data, dist, singa_wrap, sonnx, utils

__all__ = [
    "CommError",
    "Error",
    "NotFoundError",
    "StateError",
    "UnavailableError",
    "__version__",
    "autograd",
    "data",
    "device",
    "dist",
    "initializer",
    "layer",
    "model",
    "opt",
    "singa_wrap",
    "sonnx",
    "tensor",
    "utils",
]
