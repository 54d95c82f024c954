# SPDX-License-Identifier: Apache-2.0
"""--elastic: workers are killed, and the others end as if nothing had happened."""

import os
import re
import signal
import time

from tests.examples import harness

DIGEST = re.compile(r"digest = ([0-9a-f]{16})")
CHANGE = re.compile(
    r"generation \d+: ((?:rank \d+ \(host \S+, pid \d+\) (?:is gone|has left|did not answer), |"
    r"process \d+ has come, )+)\d+ workers? goe?s? on after step \d+ "
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
            *arguments,
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
        for workers, victims, comm in (
            (4, [2], "auto"),
            (3, [0, 1], "tcp"),
            (6, [4, 0, 2, 1], "auto"),
        ):
            with self.subTest(workers=workers, victims=victims):
                status, out, err, pids = self.run_with_deaths(
                    workers, victims, "--reproducible", "--comm", comm
                )
                self.assertEqual((status, err), (0, ""), out)
                self.assertEqual(DIGEST.findall(out)[-1], whole[-1])
                told = "".join(CHANGE.findall(out))
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
            self.data,
        )

    def endless(self, *arguments):
        """A run without end that is in its second epoch."""
        process = self.start(
            *RUN,
            "--epochs",
            1000000,
            "--data",
            self.data,
            "--elastic",
            *arguments,
        )
        self.until(process, "Starting Epoch 1:")
        return process

    def until(self, process, pattern):
        """Its first line like this one."""
        out = ""
        while True:
            line = process.stdout.readline()
            self.assertTrue(line, "it ended by itself: " + out)
            out += line
            if re.search(pattern, line):
                return line

    def expect_bits(self, process):
        """Those of its next epoch are those of one worker. Ends it."""
        digest = DIGEST.findall(self.until(process, DIGEST))
        epochs = int(
            re.findall(r"\d+", self.until(process, "Starting Epoch"))[0]
        )
        os.killpg(process.pid, signal.SIGINT)
        status, _, _ = self.finish(process)
        self.assertEqual(status, 128 + signal.SIGINT)
        self.assert_nothing_left()
        whole = self.train(
            *RUN, "--epochs", epochs, "--data", self.data, "--reproducible",
            "--workers", 1,
        )  # fmt: skip
        self.assertEqual(digest, DIGEST.findall(whole)[-1:])

    def leave(self, process, rank):
        """Worker `rank` goes, and another tells it."""
        pid = self.workers()[rank]
        os.kill(pid, signal.SIGTERM)
        out = ""
        while not ("has left the run" in out and CHANGE.search(out)):
            line = process.stdout.readline()
            self.assertTrue(line, "it ended by itself: " + out)
            out += line
        self.assertRegex(out, r"(?m)^rank \d has left the run: SIGTERM$")
        self.assertIn(
            "pid %d) has left, " % pid, "".join(CHANGE.search(out)[1])
        )
        end = time.monotonic() + 20
        while pid in self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertNotIn(pid, self.processes())

    def test_two_leave(self):
        process = self.endless("--reproducible", "--workers", 3)
        for rank in (1, 0):
            self.leave(process, rank)
        self.assertEqual(list(self.workers()), [2])
        self.expect_bits(process)

    # Those that are left end it, and well.
    def test_one_leaves_and_one_is_killed(self):
        process = self.start(
            *RUN, "--data", self.data, "--elastic", "--reproducible",
            "--workers", 3,
        )  # fmt: skip
        self.until(process, "Starting Epoch 1:")
        self.leave(process, 2)
        os.kill(self.workers()[0], signal.SIGKILL)
        status, out, err = self.finish(process)
        self.assert_nothing_left()
        self.assertEqual((status, err), (0, ""), out)
        whole = self.train(
            *RUN, "--reproducible", "--workers", 1, "--data", self.data
        )
        self.assertEqual(DIGEST.findall(out)[-1], DIGEST.findall(whole)[-1])

    def test_all_leave(self):
        process = self.endless("--workers", 3)
        for pid in self.workers().values():
            os.kill(pid, signal.SIGTERM)
        status, out, err = self.finish(process)
        self.assert_nothing_left()
        self.assertEqual(status, 128 + signal.SIGTERM, out)
        self.assertRegex(
            err,
            r"^mnist_dist: all workers have left the run: signal 15 \(.*\)$",
        )
        self.assertEqual(out.count(" has left the run: SIGTERM\n"), 3, out)

    # Workers leave nothing to others that end too.
    def test_the_launcher_ends(self):
        process = self.endless("--workers", 3)
        process.send_signal(signal.SIGTERM)
        status, out, err = self.finish(process)
        self.assert_nothing_left()
        self.assertEqual(status, 128 + signal.SIGTERM, out)
        self.assertIn("interrupted by signal 15", err)
        self.assertNotIn("has left", out)

    # Also one that came is killed.
    def test_another_takes_its_place(self):
        process = self.endless("--reproducible", "--workers", 3)
        for victim in (1, 0, 1, 2):
            os.kill(self.workers()[victim], signal.SIGKILL)
            line = self.until(process, "has come, 3 workers go on")
            self.assertRegex(line, CHANGE)
        self.expect_bits(process)

    # The others wait for the deadline, and take it in again.
    def test_one_is_stopped(self):
        process = self.endless(
            "--reproducible", "--workers", 3, "--deadline", 2
        )
        for victim in (2, 0):
            pid = self.workers()[victim]
            os.kill(pid, signal.SIGSTOP)
            self.until(process, "pid %d. did not answer, 2 workers go on" % pid)
            os.kill(pid, signal.SIGCONT)
            self.until(process, "process %d has come, 3 workers go on" % pid)
        self.expect_bits(process)

    # It is not waited for when the others have come to the end.
    def test_one_is_stopped_for_good(self):
        process = self.start(
            *RUN, "--data", self.data, "--elastic", "--workers", 3,
            "--deadline", 1,
        )  # fmt: skip
        self.until(process, "Starting Epoch 1:")
        os.kill(self.workers()[1], signal.SIGSTOP)
        self.until(process, "did not answer, 2 workers go on")
        status, out, err = self.finish(process)
        self.assertEqual(status, 0, out)
        for line in err.splitlines():
            self.assertIn(" is late: ", line)
        self.assert_nothing_left()

    def test_all_are_killed(self):
        process = self.endless()
        for pid in self.workers().values():
            os.kill(pid, signal.SIGKILL)
        status, out, err = self.finish(process)
        self.assert_nothing_left()
        self.assertEqual(status, 128 + signal.SIGKILL, out)
        self.assertRegex(
            err, r"rank \d \(host \S+, pid \d+\) was killed by signal 9"
        )
        self.assertEqual(err.count("\n"), 1, err)

    def test_refusals(self):
        for status, words, flags in (
            (1, "keeps more", ("--dist-option", "powerSGD")),
            (2, "not for workers of mpiexec", ("--launcher", "mpi")),
            (2, "not with --elastic", ("--timeline", self.path("t.json"))),
        ):
            got, _, err = self.run_program(
                *RUN, "--data", self.data, "--elastic", "--workers", 2, *flags
            )
            self.assertEqual((got, err.count("\n")), (status, 1), err)
            self.assertIn(words, err)


if __name__ == "__main__":
    harness.main()
