# SPDX-License-Identifier: Apache-2.0
"""limits sets what kernels took against what they could take. How fast that is,
no test asks; limits of time are guards against a hang."""

import json
import os
import subprocess
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
LIMITS = os.path.join(ROOT, "bench", "limits")


def run(*flags):
    small = ("--sgemm_size", "64", "--largest", "524288", "--tries", "1")
    return subprocess.run(
        (LIMITS, *small, "--batch", "16", "--steps", "2", *flags),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


class LimitsTest(unittest.TestCase):
    def test_every_network_has_its_limits(self):
        done = run("--json", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        for rates in record["rates"]:
            self.assertGreater(rates["sgemm_gflops"], 0)
            sizes = [size["bytes"] for size in rates["bandwidth"]]
            self.assertEqual(sizes, [131072, 524288])
        nets = {net["net"]: net for net in record["nets"]}
        # Not resnet50, whose steps take seconds.
        self.assertEqual(sorted(nets), ["mlp", "mnist_cnn", "resnet20"])
        for net in nets.values():
            self.assertEqual(net["batch"], 16)
            self.assertGreaterEqual(net["step_us"], net["kernels_us"])
            limit = sum(op["limit_us"] for op in net["ops"])
            self.assertAlmostEqual(net["limit_us"] / limit, 1, places=3)
            self.assertGreaterEqual(net["limit_us"], net["flops_limit_us"])
            self.assertGreater(net["records"], 0)
            self.assertGreaterEqual(net["arena_bytes"], net["live_bytes"])
        # Of one image: multiply-adds of the two convolutions and the two
        # linear layers, forward and for the weights, all but the first
        # convolution's for the data too. The convolutions' gradients: of all
        # places, or (with AVX2) of one in each of the pooling's windows.
        first = 20 * 25 * 24 * 24
        second = 50 * 20 * 25 * 8 * 8
        linear = 800 * 500 + 500 * 10
        cnn = nets["mnist_cnn"]
        flop = min(
            (
                2
                * 16
                * (first + second + share * (first + 2 * second) + 3 * linear)
                for share in (1, 1 / 4)
            ),
            key=lambda flop: abs(cnn["gflop"] * 1e9 - flop),
        )
        self.assertAlmostEqual(cnn["gflop"] * 1e9 / flop, 1, places=2)
        rates = record["rates"][0]
        self.assertAlmostEqual(
            cnn["flops_limit_us"] * rates["sgemm_gflops"] * 1e3 / flop,
            1,
            places=2,
        )

    def test_sixteen_bits(self):
        flags = ("--net", "mlp", "--precision", "bf16")
        done = run(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r", of bf16 \d+ GFLOP/s\n")
        record = json.loads(run(*flags, "--json", "true").stdout)
        wide = json.loads(run("--net", "mlp", "--json", "true").stdout)
        self.assertEqual(wide["rates"][0]["bf16_gflops"], 0)
        (net,), (same,) = record["nets"], wide["nets"]
        # All but those of the update and of casts are products'.
        self.assertAlmostEqual(net["gflop"] / same["gflop"], 1, places=1)
        rates = record["rates"][0]
        rates = sorted((rates["bf16_gflops"], rates["sgemm_gflops"]))
        limits = [net["gflop"] * 1e6 / rate for rate in rates]
        self.assertLess(net["flops_limit_us"], limits[0] * 1.001)
        self.assertGreater(net["flops_limit_us"], limits[1] * 0.999)

    def test_activations_of_sixteen_bits_take_half_the_memory(self):
        # Of a network whose parameters, kept in 16 bits beside them, are few.
        arenas = [
            json.loads(
                run(
                    "--net", "resnet20", "--precision", p, "--json", "true"
                ).stdout
            )["nets"][0]["arena_bytes"]
            for p in ("f32", "bf16")
        ]
        self.assertLess(arenas[1], 0.55 * arenas[0])

    def test_table(self):
        flags = ("--net", "mnist_cnn", "--threads", "2", "--graph", "false")
        done = run(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("graph:", done.stdout)
        # One thread where the compiler has no OpenMP.
        self.assertRegex(
            done.stdout, r"mnist_cnn, batch 16, (2 threads|1 thread):"
        )
        self.assertIn("16,20,12,12;50,20,5,5", done.stdout)
        self.assertNotIn("resnet20", done.stdout)

    def test_wrong_flags_are_named(self):
        for flags in (("--net", "lenet"), ("--steps", "0"), ("--x", "1")):
            with self.subTest(flags):
                done = run(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flags[0][2:], done.stderr)


if __name__ == "__main__":
    unittest.main()
