# SPDX-License-Identifier: Apache-2.0
"""compress prints a row for each thing that strategies compute. How fast that
is, no test asks; limits of time are guards against a hang."""

import json
import os
import subprocess
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
COMPRESS = os.path.join(ROOT, "bench", "compress")


def run(*flags):
    return subprocess.run(
        (COMPRESS, "--runs", "1", "--count", "20000", *flags),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


class CompressBenchTest(unittest.TestCase):
    def test_rows(self):
        done = run("--json", "true", "--kept", "0.05")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {}
        for line in done.stdout.splitlines():
            row = json.loads(line)
            rows[row["name"]] = row
            self.assertEqual((row["count"], row["k"]), (20000, 1000))
            self.assertGreater(row["us"], 0)
            self.assertGreater(row["share_of_step"], 0)
            # 1,000 gaps of r = 4: five bits and 19,000 / 16 zeros at most.
            gaps = row["f32_bytes"] - 32 - 4000
            self.assertGreaterEqual(gaps, 5000 / 8)
            self.assertLessEqual(gaps, (5000 + 19000 / 16) / 8 + 1)
            self.assertEqual(row["f16_bytes"], 32 + gaps + 2000)
            # Two blocks of 512 values at most.
            self.assertEqual(row["bits2_bytes"], 32 + gaps + 2 * 8 + 250)
        self.assertEqual(rows["copy"]["copies"], 1)
        for name in ("top-k", "threshold", "f16 encode", "gaps decode"):
            self.assertIn(name, rows)

    def test_table(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("200 of 20000 elements", done.stdout)
        self.assertIn("sparseTopK, 2 ranks", done.stdout)

    def test_wrong_flags_are_named(self):
        for flags in (("--kept", "2"), ("--runs", "0"), ("--x", "1")):
            with self.subTest(flags):
                done = run(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flags[0][2:], done.stderr)


if __name__ == "__main__":
    unittest.main()
