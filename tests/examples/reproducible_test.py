# SPDX-License-Identifier: Apache-2.0
"""--reproducible: the weights have the same digest for every number of threads and
on every instruction set (docs/reproducible.md)."""

import re

from tests.examples import harness

DIGEST = re.compile(r"digest = ([0-9a-f]{16})")

# What ONEDNN_MAX_CPU_ISA allows: all, no AVX-512, no AVX.
SETS = ("ALL", "AVX2", "SSE41")


class ReproducibleTest(harness.ProgramTest):
    def digests(self, *arguments, **options):
        """Of each run, by instruction set and threads."""
        found = {}
        for name in SETS:
            self.environment["ONEDNN_MAX_CPU_ISA"] = name
            for threads in 1, 3:
                out = self.train(
                    "--reproducible", "--workers", 1, "--threads", threads,
                    *arguments, **options,
                )  # fmt: skip
                found[name, threads] = DIGEST.findall(out)
        return found

    def expect_one(self, found):
        first = found["ALL", 1]
        self.assertGreater(len(first), 0)
        for run, digests in found.items():
            self.assertEqual(digests, first, run)

    def test_convolutions(self):
        run = ("--epochs", 1, "--limit", 112, "--batch-size", 48)
        self.expect_one(self.digests(*run, program="mnist_dist"))

    def test_residual_network(self):
        harness.small_cifar(self.data)
        run = ("--epochs", 1, "--limit", 20, "--batch-size", 8)
        self.expect_one(self.digests(*run, program="cifar"))

    def test_transformer(self):
        text = self.path("text")
        with open(text, "w", encoding="ascii") as file:
            file.write("".join(chr(97 + i * i % 23) for i in range(4000)))
        run = (
            "--layers", 1, "--heads", 2, "--width", 32, "--context", 16,
            "--steps", 4, "--evaluate-every", 4, "--sample", 0, "--dropout",
            0.1, "--data", text,
        )  # fmt: skip
        self.expect_one(self.digests(*run, program="gpt_dist"))

    def test_graph_and_no_graph(self):
        run = ("--reproducible", "--epochs", 1, "--limit", 96, "--workers", 1)
        plain, recorded = self.train(*run, "--graph=false"), self.train(*run)
        self.assertEqual(DIGEST.findall(recorded), DIGEST.findall(plain))


if __name__ == "__main__":
    harness.main()
