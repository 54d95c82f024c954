# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of neural networks, over libchoir.so."""

from choir._version import __version__

__all__ = ["__version__"]
