# SPDX-License-Identifier: Apache-2.0
"""The other networks, ResNet-20 and a wide perceptron: they learn, and a run
gives the same bits however it is started."""

import os

from tests.examples import harness

NOTE = "no CIFAR-10 in ./cifar-10-batches-bin: synthetic images\n"


class NetworksTest(harness.ProgramTest):
    def cifar(self, *arguments, **options):
        """A run that must succeed on a few images that are files."""
        if not os.path.isdir(self.data):
            harness.small_cifar(self.data)
        return self.train(*arguments, program="cifar", **options)

    def synthetic(self, *arguments):
        """A run that must succeed, without --data."""
        status, out, err = self.run_program(*arguments, program="cifar")
        self.assertEqual((status, err), (0, ""))
        self.assert_nothing_left()
        return out

    def test_resnet_learns_synthetic_images(self):
        # Chance is 0.1. Evaluation goes by averages that have seen few steps.
        run = ("--epochs", 2, "--limit", 320, "--batch-size", 16)
        for workers in (1, 2):
            with self.subTest(workers=workers):
                out = self.synthetic(*run, "--workers", workers)
                self.assertEqual(out[: len(NOTE)], NOTE)
                epochs = harness.epochs_of(out[len(NOTE) :])
                self.assertEqual(len(epochs), 2)
                self.assertGreater(epochs[1].training_accuracy, 0.3)
                self.assertLess(epochs[1].loss, epochs[0].loss)

    def test_batch_norm_over_workers(self):
        def losses(workers, *flags):
            """The mean of a batch in each epoch; what is printed is the sum."""
            # With four times the rate roundings grow a hundredfold.
            out = self.cifar(
                "--epochs", 2, "--limit", 64, "--workers", workers,
                "--batch-size", 32 // workers, "--lr", 0.005, *flags,
            )  # fmt: skip
            return [
                epoch.loss / (2 * workers) for epoch in harness.epochs_of(out)
            ]

        alone = losses(1)
        for found, want in zip(losses(2, "--sync-batch-norm"), alone):
            self.assertAlmostEqual(found, want, delta=0.002)
        self.assertGreater(abs(losses(2)[0] - alone[0]), 0.005)
        # Workers measure together too.
        out = self.cifar(
            "--steps", 2, "--limit", 64, "--batch-size", 16, "--balance",
            "--sync-batch-norm", "--precision", "auto",
        )  # fmt: skip
        self.assertRegex(out, r"^balance: --shares \d+,\d+ .*\nprecision: ")
        digits = harness.small_data(self.path("digits"))
        status, out, err = self.run_program(
            "--sync-batch-norm", "--data", digits, program="mnist_dist"
        )
        self.assertEqual((status, out), (1, ""))
        self.assertIn("--sync-batch-norm: the network has no batch norm", err)

    def test_note_is_for_synthetic_images_only(self):
        run = ("--epochs", 1, "--limit", 32, "--batch-size", 16)
        self.assertEqual(len(harness.epochs_of(self.cifar(*run))), 1)
        self.assertEqual(self.synthetic(*run, "--quiet"), "")
        # What the archive unpacks to is found in the user's folder.
        harness.small_cifar(self.path("cifar-10-batches-bin"))
        self.assertEqual(len(harness.epochs_of(self.synthetic(*run))), 1)

    def test_resnet_gives_the_same_bits_however_started(self):
        # 69 images: in the last of three steps rank 1 has none, and its
        # averages of batch norm are those of others.
        run = ("--epochs", 2, "--batch-size", 16)
        first = harness.digests_of(self.cifar(*run))
        self.assertEqual(len(set(first)), 2)
        mpi = ("--launcher", "mpi")
        again = {
            "spawn": self.cifar(*run),
            "mpi, shm": self.cifar(*run, *mpi, "--comm", "shm"),
            "mpi, mpi": self.cifar(*run, *mpi, "--comm", "mpi"),
            "mpiexec": self.cifar(*run, under=self.mpiexec(2)),
        }
        for name, out in again.items():
            with self.subTest(started=name):
                self.assertEqual(harness.digests_of(out), first)
        other = self.cifar(*run, "--workers", 3)
        self.assertNotEqual(harness.digests_of(other), first)

    def test_resumed_resnet_is_the_run_without_a_stop(self):
        # Averages of batch norm are part of a checkpoint.
        run = ("--batch-size", 16)
        whole = harness.digests_of(self.cifar("--epochs", 3, *run))
        file = self.path("net.safetensors")
        part = self.cifar("--epochs", 2, "--save", file, *run)
        rest = self.cifar("--epochs", 3, "--resume", file, *run)
        self.assertEqual(
            harness.digests_of(part) + harness.digests_of(rest), whole
        )

    def test_perceptron_learns_and_gives_the_same_bits(self):
        harness.small_data(self.data, training=512, evaluation=40)
        run = ("--epochs", 2)
        alone = self.train(*run, "--workers", 1, program="mlp")
        first = self.train(*run, program="mlp")
        for out in (alone, first):
            epochs = harness.epochs_of(out)
            self.assertGreater(epochs[1].training_accuracy, 0.3)
            self.assertLess(epochs[1].loss, epochs[0].loss)
        again = self.train(*run, program="mlp")
        mpi = self.train(*run, "--launcher", "mpi", program="mlp")
        for out in (again, mpi):
            self.assertEqual(harness.digests_of(out), harness.digests_of(first))

    def test_checkpoint_of_another_network(self):
        file = self.path("net.safetensors")
        self.cifar("--epochs", 1, "--batch-size", 16, "--save", file)
        digits = harness.small_data(self.path("digits"))
        status, out, err = self.run_program(
            "--data", digits, "--resume", file, program="mnist_dist"
        )
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(
            err, "^mnist_dist: .*saved with model resnet20, .* mnist_cnn; "
        )

    def test_data_that_do_not_fit(self):
        digits = harness.small_data(self.path("digits"))
        colours = harness.small_cifar(self.data)
        tall = self.path("tall")
        harness.small_data(tall)
        path = os.path.join(tall, "train-images-idx3-ubyte")
        with open(path, "rb") as file:
            data = file.read()
        # 28 rows of 28 as 56 rows of 14.
        size = bytes((0, 0, 0, 56, 0, 0, 0, 14))
        harness.write_idx(path, data[:8] + size + data[16:])
        with open(os.path.join(colours, "data_batch_2.bin"), "ab") as file:
            file.write(b"x")
        for program, folder, sentence in (
            ("cifar", digits, ".*'%s/data_batch_1.bin'.*" % digits),
            ("cifar", self.path("no"), ".*folder '%s'.*" % self.path("no")),
            ("cifar", colours, ".*data_batch_2.bin' has 3074 bytes; .*"),
            ("mlp", colours, ".*folder '%s' has no train-.*" % colours),
            (
                "mlp",
                tall,
                r"data: images are \(1, 56, 14\) .*; mlp needs \(1, 28, 28\)",
            ),
        ):
            with self.subTest(program=program, folder=folder):
                got = self.run_program("--data", folder, program=program)
                self.assertEqual(got[:2], (1, ""))
                self.assertRegex(got[2], "^%s: %s\n$" % (program, sentence))

    def test_help_has_the_defaults_of_the_program(self):
        for program, rate in (
            ("cifar", "0.1"),
            ("mlp", "0.02"),
            ("mnist_dist", "0.005"),
        ):
            status, out, err = self.run_program("--help", program=program)
            self.assertEqual((status, err), (0, ""))
            self.assertIn("usage: %s " % program, out)
            self.assertIn("learning rate [%s]\n" % rate, out)
            self.assertIn("--workers", out)


if __name__ == "__main__":
    harness.main()
