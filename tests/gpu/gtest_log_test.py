# SPDX-License-Identifier: Apache-2.0
"""What is read from the output of suites, whole or cut off."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gtest_log  # noqa: E402

LOG = """\
[==========] Running 4 tests from 1 test suite.
[ RUN      ] Ops/Suite.Adds/cuda_add
[       OK ] Ops/Suite.Adds/cuda_add (3 ms)
[ RUN      ] Ops/Suite.Adds/cuda_mul
tests/a_suite.cc:12: Skipped
cuda: there is no driver; needs one

[  SKIPPED ] Ops/Suite.Adds/cuda_mul (0 ms)
[ RUN      ] Ops/Suite.Adds/cuda_neg
tests/a_suite.cc:40: Failure
Expected: 1
  Actual: 2
[  FAILED  ] Ops/Suite.Adds/cuda_neg, where GetParam() = 8-byte object (1 ms)
[ RUN      ] Ops/Suite.Adds/cuda_exp
tests/a_suite.cc:12: Skipped
cuda: there is no driver; needs one

[  SKIPPED ] Ops/Suite.Adds/cuda_exp (0 ms)
"""
END = """\
[----------] 4 tests from Ops/Suite (4 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Ops/Suite.Adds/cuda_mul
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Ops/Suite.Adds/cuda_neg, where GetParam() = 8-byte object
"""


class GtestLogTest(unittest.TestCase):
    def test_each_test_counts_once(self):
        for text in (LOG, LOG + END):
            found = gtest_log.read(text)
            self.assertEqual(found["passed"], 1)
            self.assertEqual(found["skipped"], 2)
            self.assertEqual(
                found["reasons"], {"cuda: there is no driver; needs one": 2}
            )
            self.assertEqual(found["unfinished"], "")

    def test_a_failure_has_its_message(self):
        (failed,) = gtest_log.read(LOG)["failed"]
        self.assertEqual(failed["name"], "Ops/Suite.Adds/cuda_neg")
        self.assertIn("Expected: 1\n  Actual: 2", failed["message"])

    def test_what_was_running_when_it_was_cut_off(self):
        cut = LOG[: LOG.index("[       OK ]")]
        found = gtest_log.read(cut)
        self.assertEqual(found["unfinished"], "Ops/Suite.Adds/cuda_add")
        self.assertEqual(found["passed"], 0)

    def test_nothing(self):
        found = gtest_log.read("cannot open shared object file\n")
        self.assertEqual((found["passed"], found["failed"]), (0, []))


if __name__ == "__main__":
    unittest.main()
