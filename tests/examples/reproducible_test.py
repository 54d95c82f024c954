# SPDX-License-Identifier: Apache-2.0
"""--reproducible: the weights have the same digest for every number of threads and
of workers, on every instruction set and transport (docs/reproducible.md)."""

import re

from tests.examples import harness

DIGEST = re.compile(r"digest = ([0-9a-f]{16})")
# What all workers together say of the run.
RESULT = re.compile(r"(?:digest|loss|accuracy) = ([0-9a-f.]+)")

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

    def train(self, *arguments, **options):
        """As the base's, but the loader may say that workers have unlike shares."""
        status, out, err = self.run_program(
            *arguments, *self.data_of(arguments), **options
        )
        for line in err.splitlines():
            self.assertIn("does not divide evenly over", line)
        self.assertEqual(status, 0)
        self.assert_nothing_left()
        return out

    def worlds(self, *arguments, program="mnist_dist", more=()):
        """Of each run, by workers and how they talk."""
        runs = [(1, "shm"), (2, "shm"), (3, "tcp"), (4, "shm"), (7, "shm")]
        found = {}
        for workers, comm in [*runs, *more]:
            launcher = ("--launcher", "mpi") if comm == "mpi" else ()
            out = self.train(
                "--reproducible", "--workers", workers, "--comm", comm, *launcher,
                "--threads", 1 + workers % 2, *arguments, program=program,
            )  # fmt: skip
            found[workers, comm] = RESULT.findall(out)
        first = found[1, "shm"]
        self.assertGreater(len(first), 0)
        for run, digests in found.items():
            self.assertEqual(digests, first, run)

    # The last step has few samples, so that some workers have none.
    def test_convolutions_of_workers(self):
        run = ("--epochs", 1, "--limit", 106, "--global-batch", 48)
        self.worlds(*run, "--micro-shard", 4, more=[(3, "mpi")])
        self.worlds(*run, "--micro-shard", 5, "--graph=false")

    def test_16_bits_of_workers(self):
        run = ("--epochs", 1, "--limit", 106, "--global-batch", 48)
        bf16 = ("--dist-option", "bf16", "--micro-shard", 4)
        self.worlds(*run, *bf16, more=[(3, "mpi")])
        self.worlds(*run, *bf16, "--shard-optimizer", more=[(2, "tcp")])
        self.worlds(*run, "--dist-option", "fp16", "--micro-shard", 2)

    def test_residual_network_of_workers(self):
        harness.small_cifar(self.data)
        run = ("--epochs", 1, "--limit", 20, "--global-batch", 16)
        self.worlds(*run, "--micro-shard", 2, program="cifar")

    def test_transformer_of_workers(self):
        text = self.path("text")
        with open(text, "w", encoding="ascii") as file:
            file.write("".join(chr(97 + i * i % 23) for i in range(4000)))
        self.worlds(
            "--layers", 1, "--heads", 2, "--width", 32, "--context", 16,
            "--steps", 4, "--evaluate-every", 4, "--sample", 0, "--dropout",
            0.1, "--data", text, "--global-batch", 12, program="gpt_dist",
        )  # fmt: skip

    def test_resumed_with_other_workers(self):
        file = self.path("half.ckpt")
        run = ("--reproducible", "--limit", 106, "--global-batch", 48)
        whole = self.train(*run, "--epochs", 2, "--workers", 1)
        self.train(*run, "--epochs", 1, "--workers", 3, "--save", file)
        rest = self.train(*run, "--epochs", 2, "--workers", 2, "--resume", file)
        self.assertEqual(DIGEST.findall(rest)[-1], DIGEST.findall(whole)[-1])

    def test_what_follows_from_the_workers_is_refused(self):
        flag = ("--dist-option", "partialUpdate")
        status, _, err = self.run_program(
            "--reproducible", "--workers", 2, "--epochs", 1, *flag,
            *self.data_of(flag),
        )  # fmt: skip
        self.assertEqual(status, 1)
        self.assertIn("needs fp32", err)

    def test_shards_of_states(self):
        file = self.path("shards.ckpt")
        run = ("--reproducible", "--limit", 106, "--global-batch", 48)
        whole = self.train(*run, "--epochs", 2, "--workers", 1)
        for workers, comm in ((2, "shm"), (3, "shm"), (3, "tcp")):
            shards = ("--shard-optimizer", "--workers", workers, "--comm", comm)
            self.train(*run, "--epochs", 1, *shards, "--save", file)
            rest = self.train(*run, "--epochs", 2, *shards, "--resume", file)
            self.assertEqual(
                DIGEST.findall(rest)[-1], DIGEST.findall(whole)[-1], shards
            )

    def test_graph_and_no_graph(self):
        run = ("--reproducible", "--epochs", 1, "--limit", 96, "--workers", 1)
        plain, recorded = self.train(*run, "--graph=false"), self.train(*run)
        self.assertEqual(DIGEST.findall(recorded), DIGEST.findall(plain))


if __name__ == "__main__":
    harness.main()
