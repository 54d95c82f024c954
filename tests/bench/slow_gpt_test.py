# SPDX-License-Identifier: Apache-2.0
"""slow_gpt trains on one host and on two, tunes, and goes on from its results.
How good or fast that is, no test asks."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
sys.path.insert(0, ROOT)
from bench import slow_gpt  # noqa: E402
from tests.netlab import netlab  # noqa: E402

TIME_LIMIT = 280
SMALL = (
    *("--preset", "nano", "--steps", 12, "--tune", 3, "--global-batch", 4),
    *("--rate", "20mbit", "--flags"),
    "--dist-option sparseLocal --dist-settings period=2,delay=1,spars=0.1",
)


def slow_gpt_of(*flags):
    script = os.path.join(ROOT, "bench", "slow_gpt.py")
    return subprocess.run(
        [sys.executable, script, *[str(flag) for flag in flags]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


class SlowGptTest(unittest.TestCase):
    def test_flags(self):
        self.assertEqual(slow_gpt_of("--seeds", "0,x").returncode, 2)
        self.assertEqual(slow_gpt_of("--seed", "0").returncode, 2)

    def test_the_last_tenth(self):
        with tempfile.TemporaryDirectory() as folder:
            path, vocabulary = slow_gpt.last_tenth(folder)
            self.assertEqual(vocabulary, 65)
            # 1,115,394 characters, of which 1,003,854 are learnt.
            self.assertEqual(os.path.getsize(path), 2 * 111540)

    @unittest.skipIf(netlab.missing(), netlab.missing() or "")
    def test_two_hosts_and_one(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.json")
            done = slow_gpt_of(*SMALL, "--seeds", 0, "--results", results)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(results, encoding="utf-8") as file:
                record = json.load(file)
            # 804,096 gradients of 4 bytes, which two ranks all-reduce.
            self.assertGreater(record["fp32"], 804096 * 4)
            self.assertLess(record["fp32"], 1.2 * 804096 * 4)
            two = record["hosts 0"]
            # Less than all values once: the first ones are equal, and not sent.
            self.assertLess(12 * two["bytes_per_step"], 804096 * 4)
            self.assertTrue(0 < two["computing"] <= 1)
            for name in ("alone 0", "hosts 0"):
                # ln 65 = 4.17 before the first step.
                self.assertTrue(2.2 < record[name]["loss"] < 3.9)
                # From there; another one would begin at 4.17 again.
                self.assertLess(record[name]["tuned"], 3.7)
            self.assertRegex(done.stdout, r"\n0 +[\d.]+ +[\d.]+ +-?[\d.]+ ")
            self.assertRegex(done.stdout, r"bytes of a step: fp32 / \d+")
            # Goes on: there is nothing to do any more.
            again = slow_gpt_of(*SMALL, "--seeds", 0, "--results", results)
            self.assertEqual(again.returncode, 0)
            self.assertEqual(
                again.stdout, re.sub(r"(?m)^[^ ]+( \d)?: .*\n", "", done.stdout)
            )
            other = slow_gpt_of(*SMALL, "--tune", 4, "--results", results)
            self.assertEqual(other.returncode, 1)
            self.assertIn("with another tune", other.stderr)


if __name__ == "__main__":
    unittest.main()
