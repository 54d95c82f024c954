# SPDX-License-Identifier: Apache-2.0
"""--elastic: workers are killed, and the others end as if nothing had happened."""

import os
import re
import signal
import time

from tests.examples import harness

DIGEST = re.compile(r"digest = ([0-9a-f]{16})")
CHANGE = re.compile(
    r"generation (\d+): (rank \d+ \(host \S+, pid \d+\)(?:, rank \d+ \(host \S+, "
    r"pid \d+\))*) (?:is|are) gone; (\d+) workers? goe?s? on after step \d+ "
    r"\(\d+\.\d\d s\)\n"
)
RUN = ("--epochs", 30, "--global-batch", 48, "--micro-shard", 4, "--threads", 1)


class ElasticTest(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        harness.small_data(self.data, training=330)

    def run_with_deaths(self, workers, victims, *arguments):
        """Each is killed in another epoch. Status, output, pids."""
        process = self.start(
            *RUN,
            "--data",
            self.data,
            "--elastic",
            "--workers",
            workers,
            *arguments
        )
        out, pids = "", []
        for number, victim in enumerate(victims):
            line = None
            while line != "Starting Epoch %d:\n" % (2 + 4 * number):
                line = process.stdout.readline()
                self.assertTrue(line, "it ended by itself: " + out)
                out += line
            # So that it is not at the same place of each epoch.
            time.sleep(0.003 * number)
            pids.append(self.workers()[victim])
            os.kill(pids[-1], signal.SIGKILL)
        status, rest, err = self.finish(process)
        self.assert_nothing_left()
        return status, out + rest, err, pids

    def test_the_bits_of_a_run_without_deaths(self):
        whole = DIGEST.findall(
            self.train(
                *RUN, "--reproducible", "--workers", 1, "--data", self.data
            )
        )
        for workers, victims in ((4, [2]), (3, [0, 1]), (6, [4, 0, 2, 1])):
            with self.subTest(workers=workers, victims=victims):
                status, out, err, pids = self.run_with_deaths(
                    workers, victims, "--reproducible"
                )
                self.assertEqual((status, err), (0, ""), out)
                self.assertEqual(DIGEST.findall(out)[-1], whole[-1])
                changes = CHANGE.findall(out)
                self.assertEqual(int(changes[-1][2]), workers - len(victims))
                told = " ".join(change[1] for change in changes)
                for pid in pids:
                    self.assertIn("pid %d)" % pid, told)

    def test_what_it_saved(self):
        file = self.path("net.ckpt")
        status, out, err, _ = self.run_with_deaths(3, [1], "--save", file)
        self.assertEqual((status, err), (0, ""), out)
        self.train(
            *RUN,
            "--epochs",
            31,
            "--resume",
            file,
            "--workers",
            2,
            "--data",
            self.data
        )

    def test_all_are_killed(self):
        status, out, err, pids = self.run_with_deaths(2, [1, 0])
        self.assertEqual(status, 128 + signal.SIGKILL, out)
        self.assertRegex(
            err, r"rank 0 \(host \S+, pid %d\) was killed by signal 9" % pids[1]
        )
        self.assertEqual(err.count("\n"), 1, err)

    def test_refusals(self):
        for status, words, flags in (
            (1, "whole states", ("--shard-optimizer",)),
            (1, "keeps something", ("--dist-option", "sparseTopK")),
            (1, "here is comm tcp", ("--comm", "tcp")),
            (2, "another launcher", ("--launcher", "mpi")),
            (2, "not with --elastic", ("--timeline", self.path("t.json"))),
        ):
            got, _, err = self.run_program(
                *RUN, "--data", self.data, "--elastic", "--workers", 2, *flags
            )
            self.assertEqual((got, err.count("\n")), (status, 1), err)
            self.assertIn(words, err)


if __name__ == "__main__":
    harness.main()
