# SPDX-License-Identifier: Apache-2.0
"""simulate on links whose figures are round."""

import json
import os
import subprocess
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
SIMULATE = os.path.join(ROOT, "bench", "simulate")


def run(*flags):
    return subprocess.run(
        (SIMULATE, *map(str, flags)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def plans(*flags):
    done = run("--json", "true", *flags)
    assert done.returncode == 0, done.stderr
    return {
        line["hosts"]: line
        for line in map(json.loads, done.stdout.splitlines())
    }


class SimulateTest(unittest.TestCase):
    # A million bytes a second; 4 MB of gradients.
    GIVEN = ("--params", 1000000, "--compute_ms", 100, "--bandwidth_mbit", 8)

    def test_what_is_given(self):
        # So far from each other that each rank tells each by itself.
        found = plans(*self.GIVEN, "--round_trip_ms", 20, "--message_us", 0)
        self.assertEqual(sorted(found), [2**i for i in range(1, 11)])
        for hosts, plan in found.items():
            self.assertEqual(plan["ranks"], hosts)
            fp32 = plan["steps"]["fp32"]
            # A header is 100 bytes; three messages wait for each other.
            latency = 0.01 + (hosts - 1) * 1e-4
            moved = 2 * 4 * (hosts - 1) / hosts
            step = 1e3 * (0.1 + 3 * latency + moved)
            self.assertAlmostEqual(fp32["ms"] / step, 1, places=4)
            self.assertAlmostEqual(fp32["bytes"] / (1e6 * moved), 1, places=4)
            self.assertAlmostEqual(
                fp32["speed_up"] * step / (hosts * 100), 1, places=4
            )

    def test_workers_of_a_host(self):
        found = plans(
            *self.GIVEN,
            *("--hosts", 4, "--ranks_per_host", 8, "--round_trip_ms", 0),
            *("--message_us", 1000),
        )
        self.assertEqual(
            {hosts: plan["ranks"] for hosts, plan in found.items()},
            {2: 16, 4: 32},
        )
        fp32 = found[4]["steps"]["fp32"]
        # Five steps, in which headers are 40 bytes.
        latency = 5 * 1e-3 + 8 * 24 * 4e-5
        self.assertAlmostEqual(
            fp32["ms"] / (1e3 * (0.1 + 3 * latency + 6)), 1, places=4
        )

    def test_a_step_that_is_measured(self):
        done = run("--net", "mnist_cnn", "--hosts", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        # With what fills the gaps between parameters.
        self.assertRegex(done.stdout, r"^431152 parameters, [\d.]+ ms ")
        for title in ("ms a step", "speed-up"):
            self.assertRegex(done.stdout, r"(?m)^%s +2 +4$" % title)
        self.assertRegex(done.stdout, r"(?m)^sparseThreshold +[\d.]+ +[\d.]+$")

    def test_mistakes(self):
        for flags, status in (
            (("--hosts", 1), 2),
            (("--net", "gpt9"), 2),
            (("--params", 5), 1),
        ):
            done = run(*flags)
            self.assertEqual((done.returncode, done.stdout), (status, ""))
            self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
