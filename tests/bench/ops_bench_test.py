# SPDX-License-Identifier: Apache-2.0
"""The driver times every op of a step and writes its table. How fast that is, no
test asks; limits of time are guards against a hang."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
OPS = os.path.join(ROOT, "bench", "ops.py")

# Debian's interpreter without what packages add: PyTorch is never there.
WITHOUT_PACKAGES = '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n'


class OpsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = os.path.join(folder.name, "results.json")
        self.python = os.path.join(folder.name, "python")
        with open(self.python, "w", encoding="ascii") as file:
            file.write(WITHOUT_PACKAGES)
        os.chmod(self.python, 0o755)

    def ops(self, *flags):
        small = ("--batch", "4", "--seconds", "0.0001", "--rounds", "1")
        python = ("--torch-python", self.python, "--json", self.json)
        return subprocess.run(
            (sys.executable, OPS, *small, *python, *flags),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    def test_every_network_has_its_ops(self):
        for net, op, shapes, a_step in (
            ("mnist_cnn", "conv2d", "4,20,12,12;50,20,5,5;50", 1),
            ("mlp", "linear", "4,4096;4096,4096;4096", 1),
            ("resnet20", "batch_norm", "4,32,16,16;32;32", 7),
        ):
            with self.subTest(net):
                done = self.ops("--net", net)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("PyTorch is not there: ", done.stdout)
                with open(self.json, encoding="utf-8") as file:
                    record = json.load(file)
                self.assertEqual(
                    sorted(record["missing"]), ["torch", "torch_newest"]
                )
                rows = {(r["op"], r["shapes"]): r for r in record["rows"]}
                self.assertEqual(len(rows), len(record["rows"]))
                self.assertEqual(rows[op, shapes]["a_step"], a_step)
                total = sum(
                    row["us"]["choir"][0] * row["a_step"]
                    for row in record["rows"]
                )
                self.assertAlmostEqual(record["step_us"]["choir"] / total, 1)

    def test_one_op(self):
        done = self.ops("--op", "max_pool2d", "--threads", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        shapes = [row["shapes"] for row in rows]
        self.assertEqual(shapes, ["4,20,24,24", "4,50,8,8"])

    def test_wrong_flags_are_named(self):
        for flags in (
            ("--net", "lenet"),
            ("--op", "batch_norm"),  # not in this network
            ("--rounds", "0"),
        ):
            with self.subTest(flags):
                done = self.ops(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flags[1], done.stderr)


if __name__ == "__main__":
    unittest.main()
