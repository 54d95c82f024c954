# SPDX-License-Identifier: Apache-2.0
"""Workers that are not equally fast: shares, given and measured."""

import array
import json
import re
import struct

from tests.examples import harness

BALANCE = re.compile(
    r"^balance: --shares ([\d,]+) \(samples/s of each worker alone: ([\d, ]+)\)\n"
)


def read_floats(path):
    """What a checkpoint has of f32, {name: values}."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    return {
        name: array.array("f", data[begin:][slice(*tensor["data_offsets"])])
        for name, tensor in header.items()
        if name != "__metadata__" and tensor["dtype"] == "F32"
    }


class SharesTest(harness.ProgramTest):
    def trained(self, workers, batch, *flags):
        file = self.path("net.safetensors")
        self.train(
            "--epochs", 2, "--workers", workers, "--batch-size", batch,
            "--save", file, *flags,
        )  # fmt: skip
        return read_floats(file)

    def test_shares_change_rounding_only(self):
        # Seven steps, the last one short; the network has no batch norm.
        harness.small_data(self.data, training=600)
        alone = self.trained(1, 96)
        self.assertGreater(len(alone), 8)
        for workers, batch, shares in (
            (2, 48, "48,48"),
            (2, 48, "80,16"),
            (2, 48, "16,80"),
            (2, 48, "96,0"),
            (3, 32, "16,48,32"),
            (3, 32, "64,16,16"),
        ):
            with self.subTest(shares=shares):
                together = self.trained(workers, batch, "--shares", shares)
                self.assertEqual(together.keys(), alone.keys())
                for name, values in together.items():
                    self.assertEqual(len(values), len(alone[name]))
                    most = max(abs(a - b) for a, b in zip(values, alone[name]))
                    self.assertLess(most, 1e-5, name)

    def test_equal_shares_are_the_default(self):
        harness.small_data(self.data, training=600)
        for workers, shares in ((2, "48,48"), (3, "48,48,48")):
            run = ("--epochs", 1, "--workers", workers, "--batch-size", 48)
            self.assertEqual(
                harness.digests_of(self.train(*run, "--shares", shares)),
                harness.digests_of(self.train(*run)),
            )

    def test_small_batches_leave_nobody_out(self):
        # Less than a micro-shard for each.
        out = self.train("--epochs", 1, "--batch-size", 5, "--shares", "5,5")
        again = self.train("--epochs", 1, "--batch-size", 5)
        self.assertEqual(harness.digests_of(out), harness.digests_of(again))

    # What is measured is a matter of the moment; that it is used is not.
    def measured(self, out, workers, batch):
        """The shares that --balance printed, and the rest of the output."""
        match = BALANCE.match(out)
        self.assertIsNotNone(match, out)
        shares = [int(share) for share in match[1].split(",")]
        self.assertEqual(len(shares), workers)
        self.assertEqual(sum(shares), workers * batch)
        for share in shares:
            self.assertEqual(share % 16, 0)
            self.assertGreaterEqual(share, 16)
        self.assertEqual(len(match[2].split(", ")), workers)
        return match[1], out[match.end() :]

    def test_measured_shares_are_those_that_are_printed(self):
        for workers, flags in (
            (1, ()),
            (2, ("--graph=false",)),
            (3, ("--dist-option", "sparseTopK")),
        ):
            with self.subTest(workers=workers):
                run = ("--epochs", 2, "--workers", workers)
                run += ("--batch-size", 48, *flags)
                out = self.train(*run, "--balance")
                shares, rest = self.measured(out, workers, 48)
                again = self.train(*run, "--shares", shares)
                self.assertEqual(
                    harness.digests_of(rest), harness.digests_of(again)
                )
        self.assertEqual(self.train("--epochs", 1, "--balance", "--quiet"), "")

    def test_a_run_goes_on_with_other_shares(self):
        file = self.path("net.safetensors")
        run = ("--batch-size", 48, "--save", file)
        self.train("--epochs", 1, *run, "--shares", "80,16")
        out = self.train("--epochs", 2, *run, "--resume", file, "--balance")
        _, rest = self.measured(out, 2, 48)
        numbers = [epoch.number for epoch in harness.epochs_of(rest)]
        self.assertEqual(numbers, [1])
        self.train(
            "--epochs", 3, "--resume", file, "--workers", 1,
            "--batch-size", 96,
        )  # fmt: skip


if __name__ == "__main__":
    harness.main()
