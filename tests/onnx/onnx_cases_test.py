# SPDX-License-Identifier: Apache-2.0
"""The node cases of Debian's python3-onnx: those that fail are the ones that
onnx_cases_known.txt names. tools/onnx_cases.py makes it anew after a change."""

import os
import subprocess
import sys
import unittest

try:
    import onnx
except ImportError:
    onnx = None

from choir import _find

HERE = os.path.dirname(os.path.abspath(__file__))


class CasesTest(unittest.TestCase):
    @unittest.skipUnless(
        hasattr(onnx, "ModelProto"), "there is no package onnx"
    )
    def test_those_that_fail_are_known(self):
        if not onnx.__version__.startswith("1.12."):
            self.skipTest(
                f"the list is of version 1.12, not {onnx.__version__}"
            )
        tool = os.path.join(HERE, "..", "..", "tools", "onnx_cases.py")
        known = os.path.join(HERE, "onnx_cases_known.txt")
        done = subprocess.run(
            [sys.executable, tool, "--known", known],
            env={**os.environ, "CHOIR_LIBRARY": _find.find_library()},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
