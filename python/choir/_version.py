# SPDX-License-Identifier: Apache-2.0
"""The package's version: that of core/base.h, which a test compares."""

__version__ = "0.1.0"
