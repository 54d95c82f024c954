# SPDX-License-Identifier: Apache-2.0
"""Training runs of the examples: what they print, and that the same run gives
the same bits however it is started."""

import json
import os
import pty
import re
import signal

from tests.examples import harness


class TrainTest(harness.ProgramTest):
    def test_real_data_are_learnt(self):
        out = self.train(
            "--data", harness.REAL_DATA, "--epochs", 2, "--limit", 6000,
            "--lr", 0.02,
        )  # fmt: skip
        epochs = harness.epochs_of(out)
        self.assertEqual([epoch.number for epoch in epochs], [0, 1])
        self.assertGreater(epochs[0].training_accuracy, 0.6)
        self.assertGreater(epochs[1].evaluation_accuracy, 0.9)
        self.assertLess(epochs[1].loss, epochs[0].loss)

    def test_one_process_and_one_worker_are_the_same(self):
        alone = self.train("--epochs", 2, program="mnist")
        one = self.train("--epochs", 2, "--workers", 1)
        self.assertEqual(harness.digests_of(alone), harness.digests_of(one))

    def test_every_way_to_start_gives_the_same_bits(self):
        for workers in (2, 3, 4):
            run = ("--epochs", 2, "--batch-size", 32)
            count = ("--workers", workers)
            mpi = ("--launcher", "mpi")
            under = {"under": self.mpiexec(workers)}
            first = harness.digests_of(self.train(*run, *count))
            self.assertEqual(len(set(first)), 2)
            again = {
                "spawn": self.train(*run, *count),
                "tcp": self.train(*run, *count, "--comm", "tcp"),
                "mpi, shm": self.train(*run, *count, *mpi, "--comm", "shm"),
                "mpi, mpi": self.train(*run, *count, *mpi, "--comm", "mpi"),
                "mpiexec": self.train(*run, **under),
                "mpiexec, mpi": self.train(*run, "--comm", "mpi", **under),
            }
            for name, out in again.items():
                with self.subTest(workers=workers, started=name):
                    self.assertEqual(harness.digests_of(out), first)

    def test_graphs_change_no_bit(self):
        for workers in (1, 2, 3):
            # The last batch of an epoch is a small one.
            run = ("--epochs", 3, "--batch-size", 48, "--workers", workers)
            eager = self.train(*run, "--graph=false")
            for flags in (("--graph",), ("--graph", "--sequential")):
                with self.subTest(workers=workers, flags=flags):
                    self.assertEqual(
                        harness.digests_of(self.train(*run, *flags)),
                        harness.digests_of(eager),
                    )
        file = self.path("net.safetensors")
        run = ("--epochs", 2, "--save", file)
        self.train(*run, "--graph=false")
        rest = self.train("--epochs", 4, "--resume", file)
        whole = self.train("--epochs", 4, "--graph=false")
        self.assertEqual(
            harness.digests_of(rest), harness.digests_of(whole)[2:]
        )

    def test_mixed_precision(self):
        run = ("--epochs", 2, "--batch-size", 32, "--workers", 2)
        wide = self.train(*run)
        for precision, error in (("bf16", 0.02), ("f16", 0.003)):
            mixed = self.train(*run, "--precision", precision)
            eager = self.train(*run, "--precision", precision, "--graph=false")
            digests = harness.digests_of(mixed)
            self.assertEqual(digests, harness.digests_of(eager))
            self.assertNotEqual(digests, harness.digests_of(wide))
            for a, b in zip(harness.epochs_of(mixed), harness.epochs_of(wide)):
                self.assertAlmostEqual(a.loss, b.loss, delta=error * b.loss)

    def test_measured_precision(self):
        measured = re.compile(
            r"precision: (f32|bf16) \(forward and backward of a step: "
            r"f32 [\d.e+-]+ ms, bf16 [\d.e+-]+ ms\)"
        )
        run = ("--batch-size", 32, "--workers", 2)
        file = self.path("net.safetensors")
        line, begin = self.train(
            *run, "--epochs", 2, "--precision", "auto", "--save", file
        ).split("\n", 1)
        self.assertRegex(line, measured)
        chosen = measured.fullmatch(line)[1]
        whole = self.train(*run, "--epochs", 3, "--precision", chosen)
        line, rest = self.train(
            *run, "--epochs", 3, "--precision", "auto", "--resume", file
        ).split("\n", 1)
        self.assertEqual(line, f"precision: {chosen}, as in {file}")
        self.assertEqual(
            harness.digests_of(begin) + harness.digests_of(rest),
            harness.digests_of(whole),
        )

    def test_precision_of_a_checkpoint(self):
        for precision in ("f32", "bf16", "f16"):
            file = self.path(precision)
            self.train("--epochs", 1, "--precision", precision, "--save", file)
            run = ("--epochs", 2, "--resume", file, "--precision")
            line, as_saved = self.train(*run, "auto").split("\n", 1)
            self.assertEqual(line, f"precision: {precision}, as in {file}")
            self.assertEqual(
                harness.digests_of(as_saved),
                harness.digests_of(self.train(*run, precision)),
            )
        # A flag that names one counts.
        self.assertNotIn("precision", self.train(*run, "f32"))

    def test_seed_and_workers_are_part_of_the_run(self):
        digests = {
            (seed, workers): harness.digests_of(
                self.train("--epochs", 1, "--seed", seed, "--workers", workers)
            )[0]
            for seed in (0, 1)
            for workers in (1, 2)
        }
        self.assertEqual(len(set(digests.values())), 4, digests)

    def test_resumed_run_is_the_run_without_a_stop(self):
        whole = harness.digests_of(self.train("--epochs", 5))
        file = self.path("net.safetensors")
        part = self.train("--epochs", 3, "--save", file)
        rest = self.train("--epochs", 5, "--resume", file, "--save", file)
        self.assertEqual(
            [epoch.number for epoch in harness.epochs_of(rest)], [3, 4]
        )
        self.assertEqual(
            harness.digests_of(part) + harness.digests_of(rest), whole
        )

    def test_saves_in_between(self):
        file = self.path("net.safetensors")
        harness.small_data(self.data)
        process = self.start(
            "--epochs", 1000000, "--save", file, "--save-every", 2,
            "--data", self.data,
        )  # fmt: skip
        lines = []
        while "Starting Epoch 3:\n" not in lines:
            lines.append(process.stdout.readline())
            self.assertTrue(lines[-1], lines)
        process.kill()
        lines.extend(process.communicate()[0].splitlines(keepends=True))
        self.assert_nothing_left()
        printed = re.findall("digest = (.*)", "".join(lines))
        # Which epoch was the last to be saved is a matter of the moment.
        status, out, err = self.run_program(
            "--epochs", 2, "--resume", file, "--data", self.data
        )
        self.assertEqual((status, out), (1, ""))
        saved = int(re.search(r"has all of its (\d+) epochs", err)[1])
        self.assertEqual(saved % 2, 0)
        self.assertGreaterEqual(saved, 2)
        out = self.train("--epochs", saved + 1, "--resume", file)
        epochs = harness.epochs_of(out)
        self.assertEqual([epoch.number for epoch in epochs], [saved])
        if saved < len(printed):
            self.assertEqual(epochs[0].digest, printed[saved])

    # Each rank's residuals, velocities and the like are in the file, so the
    # last files of two runs are the same only if these are.
    def files_are_equal(self, one, other):
        with open(one, "rb") as a, open(other, "rb") as b:
            return a.read() == b.read()

    def expect_to_go_on(self, option, *flags):
        run = ("--workers", 3, "--dist-option", option, *flags)
        whole, part, rest = map(self.path, ("whole", "part", "rest"))
        self.train("--epochs", 2, "--save", whole, *run)
        self.train("--epochs", 1, "--save", part, *run)
        self.train("--epochs", 2, "--save", rest, "--resume", part, *run)
        with self.subTest(option=option, flags=flags):
            self.assertTrue(self.files_are_equal(whole, rest))
            self.assertFalse(self.files_are_equal(whole, part))

    # A file has whole states, whoever keeps which part of them.
    def test_shards_are_the_whole_and_go_on_with_any_number(self):
        run = ("--epochs", 2, "--batch-size", 32)
        for workers in (2, 3):
            whole, sharded = self.path("whole"), self.path("sharded")
            count = ("--workers", workers)
            out = self.train(*run, *count, "--save", whole)
            for comm in ("shm", "tcp"):
                with self.subTest(workers=workers, comm=comm):
                    flags = (*count, "--comm", comm, "--shard-optimizer")
                    again = self.train(*run, *flags, "--save", sharded)
                    self.assertEqual(
                        harness.digests_of(again), harness.digests_of(out)
                    )
                    self.assertTrue(self.files_are_equal(whole, sharded))
        file = self.path("file")
        run = ("--workers", 3, "--batch-size", 64, "--comm", "tcp")
        self.train(*run, "--epochs", 1, "--shard-optimizer", "--save", file)
        for workers in (1, 2, 3, 4):
            with self.subTest(workers=workers):
                flags = (
                    "--workers", workers, "--batch-size", 192 // workers,
                    "--epochs", 2, "--resume", file,
                )  # fmt: skip
                plain = self.train(*flags)
                for comm in ("shm", "tcp"):
                    out = self.train(
                        *flags, "--comm", comm, "--shard-optimizer"
                    )
                    self.assertEqual(
                        harness.digests_of(out), harness.digests_of(plain)
                    )
        error = self.run_program(
            "--shard-optimizer",
            "--dist-option",
            "localSGD",
            "--data",
            self.data,
        )[2]
        self.assertRegex(error, "shard is set, and with localSGD each rank")

    def strategies(self):
        err = self.run_program("--dist-option", "what")[2]
        return re.search("known are: (.*)$", err)[1].split(", ")

    def test_every_strategy_goes_on(self):
        self.assertIn("sparseLocal", self.strategies())
        for option in self.strategies():
            self.expect_to_go_on(option)

    def test_strategies_go_on_over_mpi(self):
        for option in ("dgc", "sparseLocal"):
            self.expect_to_go_on(option, "--comm", "mpi", "--launcher", "mpi")

    def test_a_killed_run_goes_on(self):
        run = (
            "--workers", 3, "--epochs", 12, "--dist-option", "sparseLocal",
            "--dist-settings", "period=4,delay=2,outer_momentum=0.9",
        )  # fmt: skip
        whole, part, rest = map(self.path, ("whole", "part", "rest"))
        self.train(*run, "--save", whole)
        process = self.start(
            *run, "--save", part, "--save-every", 1, "--data", self.data
        )
        while process.stdout.readline() != "Starting Epoch 1:\n":
            self.assertIsNone(process.poll())
        os.kill(self.workers()[1], signal.SIGKILL)
        process.communicate()
        self.assert_nothing_left()
        self.train(*run, "--resume", part, "--save", rest)
        self.assertTrue(self.files_are_equal(whole, rest))

    def check_ranks(self, entry):
        """All samples and all of each rank's time are in the report."""
        ranks = entry["ranks"]
        self.assertEqual([rank["rank"] for rank in ranks], [0, 1, 2])
        self.assertEqual(sum(rank["images"] for rank in ranks), 640)
        for rank in ranks:
            parts = [
                rank[f"{part}_seconds"]
                for part in ("compute", "data", "wait", "exchange")
            ]
            self.assertGreaterEqual(min(parts), 0)
            self.assertGreater(parts[0], 0)
            self.assertGreater(parts[3], 0)
            self.assertAlmostEqual(sum(parts), rank["seconds"], delta=1e-6)
        batches = entry["training_loss"] / entry["loss"]
        self.assertAlmostEqual(batches, round(batches), delta=1e-9)
        self.assertLessEqual(batches, len(ranks) * entry["steps"] + 1e-9)

    def test_log_has_what_is_printed(self):
        file = self.path("log.jsonl")
        self.environment["CHOIR_HOST"] = 'a "host"'
        out = self.train("--epochs", 2, "--workers", 3, "--log-json", file)
        with open(file) as lines:
            log = [json.loads(line) for line in lines]
        printed = harness.epochs_of(out)
        self.assertEqual(len(log), 2)
        self.assertEqual(["run" in entry for entry in log], [True, False])
        self.check_run(log)
        for entry, epoch in zip(log, printed):
            self.assertEqual(entry["epoch"], epoch.number)
            self.assertEqual(entry["workers"], 3)
            self.assertEqual(entry["digest"], epoch.digest)
            self.assertAlmostEqual(
                entry["training_loss"], epoch.loss, delta=1e-6
            )
            self.assertGreater(entry["images_per_second"], 0)
            self.check_ranks(entry)
            # Every sample is counted once, also where ranks have none left.
            for key, count in (
                ("training_accuracy", 640),
                ("evaluation_accuracy", 200),
            ):
                hits = entry[key] * count
                self.assertAlmostEqual(hits, round(hits), delta=1e-9)

    def check_run(self, log):
        run = log[0]["run"]
        for key, value in {
            "program": "mnist_dist",
            "comm": "shm",
            "strategy": "fp32 overlap=true",
            "batch": 192,
            "training_samples": 640,
            "evaluation_samples": 200,
            "last_step": log[1]["step"],
            "hosts": ['a "host"'] * 3,
        }.items():
            self.assertEqual(run[key], value)
        shapes = (20 * 25, 20, 50 * 20 * 25, 50, 800 * 500, 500, 5000, 10)
        self.assertEqual(run["parameters"], sum(shapes))

    def test_log_of_a_run_that_diverges_is_json(self):
        # On a device whose memory the host does not see, where the loss is not
        # checked in each step.
        file = self.path("log.jsonl")
        self.train(
            "--epochs", 1, "--lr", 1e6, "--log-json", file,
            "--device", "null", "--limit", 64, "--batch-size", 4,
        )  # fmt: skip
        with open(file) as lines:
            entry = json.loads(lines.read(), parse_constant=self.fail)
        self.assertIsNone(entry["training_loss"])
        self.assertIsNone(entry["loss"])

    def test_quiet_prints_nothing(self):
        self.assertEqual(self.train("--epochs", 1, "--quiet"), "")

    def test_bar_on_a_terminal_only(self):
        harness.small_data(self.data, training=6400)
        arguments = ("--epochs", 1, "--data", self.data, "--batch-size", 16)
        piped = self.train(*arguments)
        self.assertNotIn("\r", piped)
        master, slave = pty.openpty()
        process = self.start(*arguments, stdout=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        self.assertEqual(process.wait(harness.TIME_LIMIT), 0)
        process.stderr.close()
        text = shown.decode().replace("\r\n", "\n")
        self.assertRegex(
            text, r"\r\[=* *\] +\d+ %  \d+ images/s  \d+ s left\x1b\[K"
        )
        # The bar is gone when the lines of the epoch come.
        lines = re.sub(r"\r[^\n\r]*\x1b\[K", "", text)
        self.assertEqual(harness.digests_of(lines), harness.digests_of(piped))

    def test_other_data(self):
        folder = "/usr/share/datasets/fashion-mnist"
        if not os.path.isdir(folder):
            self.skipTest("Debian's package dataset-fashion-mnist is missing")
        out = self.train("--data", folder, "--epochs", 1, "--limit", 6400)
        self.assertGreater(harness.epochs_of(out)[0].training_accuracy, 0.3)

    def test_help(self):
        for program in ("mnist", "mnist_dist"):
            status, out, err = self.run_program("--help", program=program)
            self.assertEqual((status, err), (0, ""))
            self.assertIn("--log-json", out)
            self.assertEqual("--workers" in out, program == "mnist_dist")

    def test_smallest_program(self):
        status, out, err = self.run_program(program="embed")
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"^2[45]\d of 256 right\n$")


if __name__ == "__main__":
    harness.main()
