# SPDX-License-Identifier: Apache-2.0
"""beside_torch.py runs Choir's part and prints its table; PyTorch is a stand-in."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv.pop(1))
TORCH = """
import sys, time
from unittest.mock import MagicMock
torch = MagicMock()
torch.rand.return_value = (0, 0)
torch.mm.side_effect = lambda a, b, out: time.sleep(1e-4)
sys.modules["torch"] = torch
"""


class BesideTorch(unittest.TestCase):
    def run_it(self, torch, *more):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w") as file:
                file.write(torch)
            paths = [folder] + [path for path in sys.path if path]
            return subprocess.run(
                [sys.executable, SCRIPT, "--seconds", "0.1", *more],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                capture_output=True,
                text=True,
            )

    def test_table(self):
        # Of 1 the largest time, which is the last of them in order.
        done = self.run_it(TORCH, "--rounds", "2", "--quantile", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^.*, choir torch: .*libgomp\.so")
        rows = re.findall(
            r"(?m)^.*  (torch choir|choir torch)  (import|turns|step) +"
            r"\d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)$",
            done.stdout,
        )
        self.assertEqual(len(set(rows)), 6, done.stdout)

    def test_no_torch(self):
        done = self.run_it("raise ModuleNotFoundError('no torch here')")
        self.assertEqual(done.returncode, 3)
        self.assertRegex(
            done.stderr, r"^beside_torch\.py: /.*: no torch here\n$"
        )


if __name__ == "__main__":
    unittest.main()
