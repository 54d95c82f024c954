# SPDX-License-Identifier: Apache-2.0
"""Choir's modules under SINGA's name, where this folder is on the path of imports:
`import singa` and `from singa import tensor` give choir and choir.tensor."""

import sys

import choir

for _name, _module in list(vars(choir).items()):
    if getattr(_module, "__name__", None) == f"choir.{_name}":
        sys.modules[f"singa.{_name}"] = _module
sys.modules["singa"] = choir
