# SPDX-License-Identifier: Apache-2.0
"""beside_onnxruntime.py compares and times; ONNX Runtime is a stand-in."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import onnx_files

SCRIPT = os.path.abspath(sys.argv.pop(1))
# Of a network that is one Relu.
PEER = """
import numpy as np
from types import SimpleNamespace

class SessionOptions:
    pass

class InferenceSession:
    def __init__(self, data, options, providers=None):
        assert isinstance(data, bytes)

    def get_inputs(self):
        taken = SimpleNamespace(name="x", type="tensor(float)", shape=["n", 5])
        return [taken]

    def run(self, names, feeds):
        return [np.maximum(feeds["x"], 0) + WRONG]
"""


class BesideOnnxRuntime(unittest.TestCase):
    def run_it(self, peer, *more):
        relu = onnx_files.model(
            [onnx_files.node("Relu", ["x"], ["y"])],
            [onnx_files.value("x", shape=["n", 5])],
            [onnx_files.value("y")],
        )
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "onnxruntime.py"), "w") as file:
                file.write(peer)
            net = os.path.join(folder, "relu.onnx")
            with open(net, "wb") as file:
                file.write(relu)
            paths = [folder] + [path for path in sys.path if path]
            return subprocess.run(
                [sys.executable, SCRIPT, "--rounds", "2", *more, net],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                capture_output=True,
                text=True,
            )

    def test_table(self):
        for threads in ("1", "2"):
            done = self.run_it(PEER.replace("WRONG", "0"), "--threads", threads)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("relu.onnx    differs by 0.0e+00\n", done.stdout)
            rows = re.findall(
                r"(?m)^relu\.onnx +(time|processor) +choir +\d+\.\d\d +\d+\.\d\d ms  "
                r"onnxruntime +\d+\.\d\d +\d+\.\d\d ms  ratio \d+\.\d\d \d+\.\d\d$",
                done.stdout,
            )
            self.assertEqual(rows, ["time", "processor"], done.stdout)

    def test_outputs_that_differ(self):
        done = self.run_it(PEER.replace("WRONG", "np.float32(0.5)"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"differs by \d\.\de-01")

    def test_no_peer(self):
        done = self.run_it("raise ModuleNotFoundError('no peer here')")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr, "beside_onnxruntime.py: no peer here\n")


if __name__ == "__main__":
    unittest.main()
