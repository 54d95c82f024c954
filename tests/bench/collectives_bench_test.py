# SPDX-License-Identifier: Apache-2.0
"""The driver runs its jobs and writes its table. How fast that is, no test asks;
limits of time are guards against a hang."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from tests.testing import mpi_folder

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
COLLECTIVES = os.path.join(ROOT, "bench", "collectives.py")


class CollectivesTest(unittest.TestCase):
    def run_bench(self, *flags):
        # No C++ compiler is found: Gloo counts as not installed.
        return subprocess.run(
            [sys.executable, COLLECTIVES, "--rounds", "1", *flags],
            env={
                **os.environ,
                **mpi_folder.environment(),
                "CXX": "no-such-compiler",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    def test_table_has_every_job_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            done = self.run_bench(
                *("--bytes", "64,4096", "--ranks", "2", "--json", path)
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
        self.assertEqual(sorted(record["missing"]), ["gloo_bcube", "gloo_ring"])
        rows = [(row["job"], row["bytes"]) for row in record["rows"]]
        jobs = ("choir", "choir_tcp", "open_mpi", "open_mpi_tcp")
        self.assertEqual(
            sorted(rows), [(job, size) for job in jobs for size in (64, 4096)]
        )
        self.assertTrue(all(row["median_us"] > 0 for row in record["rows"]))
        self.assertIn("not installed: no C++ compiler", done.stdout)
        for pair in (
            "Open MPI, in place / Choir, shm",
            "Open MPI, tcp / Choir, tcp",
        ):
            self.assertIn(pair, done.stdout)

    def test_memory_can_be_written_before(self):
        flags = ("--only", "choir", "--bytes", "4096", "--touch")
        done = self.run_bench(*flags, "--ranks", "3", "--top-k")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("memory written before each one", done.stdout)
        self.assertIn("25000000 elements: ", done.stdout)

    def test_a_wrong_flag_is_wrong_usage(self):
        for flags in (["--only", "smoke"], ["--ranks", "1"], ["--bytes", "x"]):
            self.assertEqual(self.run_bench(*flags).returncode, 2, flags)


if __name__ == "__main__":
    unittest.main()
