# SPDX-License-Identifier: Apache-2.0
"""Workers of an elastic run are killed and stopped at random.

ExactlyOnceTest: parameters that count how often each sample was learnt
(exactly_once.c). ReproducibleTest: mnist_dist --reproducible ends with the file
of a run in which nothing happened. The same with shards, of which two holders
must not be lost together: there one loss is over before the next. A few runs
each here; more by

    bazel run -c opt //tests/examples:random_faults_test -- --runs 100 --seed 1
    ... -- --runs 50 --seed 1 ReproducibleTest

Run i has the seed SEED + i, so that one run is repeated by --runs 1 and its
seed: with it come the number of workers, what happens, after how much progress
and to whom. What a worker does at that moment is not in the seed.
"""

import argparse
import hashlib
import os
import random
import re
import signal
import sys
import threading
import time

from tests.examples import harness

LOST = re.compile(r"pid (\d+)\) (?:is gone|did not answer), ")
COME = re.compile(r"process (\d+) has come, ")
RUN_LIMIT = 120  # against a hang, no part of what is tested

COUNTS = ("killed", "stopped", "came")


class Faults:
    """A run that is under way, and what is done to it."""

    def __init__(self, test, process, rng):
        self.test = test
        self.process = process
        self.random = rng
        self.changed = threading.Condition()
        self.out = ""
        self.progress = -1
        self.has_ended = False
        # Who has all that the run needs, as far as known: one is always left.
        self.members = set()
        self.stopped = set()
        self.lost = set()
        self.timers = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.out += line
                self.note(line)
                self.changed.notify()
        with self.changed:
            self.has_ended = True
            self.changed.notify()

    def note(self, line):
        progress = self.test.progress.match(line)
        if progress:
            self.progress = int(progress[1])
        lost = {int(pid) for pid in LOST.findall(line)}
        self.lost |= lost
        came = {int(pid) for pid in COME.findall(line)}
        self.members = self.members - lost | came - self.stopped
        self.counts["came"] += len(came)

    def wait_for(self, progress):
        """False: the run has ended before."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.has_ended or self.progress >= progress, RUN_LIMIT
            )
            return not self.has_ended and self.progress >= progress

    def told(self):
        return ", ".join("%d %s" % (self.counts[n], n) for n in COUNTS)

    def workers(self):
        return self.test.workers(self.test.program)

    def choose(self, most):
        """Up to `most` workers, so that a member is left; by their slots."""
        workers = self.workers()
        with self.changed:
            sound = [
                slot
                for slot, pid in sorted(workers.items())
                if pid in self.members and pid not in self.stopped
            ]
        if not sound:
            return []
        keep = self.random.choice(sound)
        others = sorted(slot for slot in workers if slot != keep)
        chosen = self.random.sample(others, min(most, len(others)))
        return [workers[slot] for slot in chosen]

    def send(self, number, pid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return 0  # it has ended by itself
        return 1

    def kill(self, most):
        victims = self.choose(most)
        with self.changed:
            self.members -= set(victims)
        for pid in victims:
            self.counts["killed"] += self.send(signal.SIGKILL, pid)

    def kill_one(self):
        """And waits until the others go on."""
        victims = self.choose(1)
        for pid in victims:
            self.counts["killed"] += self.send(signal.SIGKILL, pid)
            with self.changed:
                self.members.discard(pid)
                self.changed.wait_for(
                    lambda pid=pid: self.has_ended or pid in self.lost,
                    RUN_LIMIT,
                )

    def stop(self, seconds):
        for pid in self.choose(1):
            with self.changed:
                self.members.discard(pid)
                self.stopped.add(pid)
            self.counts["stopped"] += self.send(signal.SIGSTOP, pid)
            self.timers.append(
                threading.Timer(seconds, self.resume, args=(pid,))
            )
            self.timers[-1].start()

    def resume(self, pid):
        with self.changed:
            self.stopped.discard(pid)
        self.send(signal.SIGCONT, pid)

    def inject(self):
        """One fault of a kind that is drawn."""
        kind = self.random.random()
        if self.test.is_sharded:
            self.kill_one()
            return
        if kind < self.test.stops:
            self.stop(self.test.silence * self.random.uniform(0.3, 3))
        else:
            self.kill(1 if kind < 0.75 else self.random.randint(2, 5))

    def run(self, faults, total):
        """Faults after so much progress each, or soon after the one before."""
        if self.wait_for(0):
            with self.changed:
                self.members |= set(self.workers().values())
        points = sorted(self.random.uniform(0, total) for _ in range(faults))
        if self.random.random() < 0.3:
            points[-1] = self.test.last_progress(total)
        for point in points:
            soon = self.random.random() < 0.3
            if not soon and not self.wait_for(point):
                break
            time.sleep(self.random.uniform(0, self.test.pause))
            self.inject()

    def end(self):
        """Exit status and standard error; None: it hung, and was ended."""
        self.reader.join(RUN_LIMIT)
        hangs = self.reader.is_alive()
        if hangs:
            for pid in self.test.processes():
                self.send(signal.SIGKILL, pid)
        for timer in self.timers:
            timer.join()
        self.reader.join()
        self.process.stdout.close()
        with self.process.stderr:
            err = self.process.stderr.read()
        status = self.process.wait()
        return None if hangs else status, err


class RandomFaults:
    """What the tests have in common."""

    is_sharded = False

    def one_run(self, seed):
        """What it was, the faults, and what is wrong with it, or None."""
        rng = random.Random(seed)
        workers, count = rng.randint(2, self.most), rng.randint(3, 6)
        process, total = self.begin(workers, rng)
        faults = Faults(self, process, rng)
        faults.run(count, total)
        status, err = faults.end()
        if status is None:
            return workers, faults, "it hangs"
        if (status, err) != (0, ""):
            return workers, faults, "exit status %d: %s" % (status, err)
        self.assert_nothing_left()
        return workers, faults, self.problem(faults)

    def run_all(self, runs):
        """So many runs that had enough faults; of others that came to their end
        before, the result counts too."""
        start, made, enough, failed = time.monotonic(), 0, 0, []
        totals = dict.fromkeys(COUNTS, 0)
        runs = options.runs or runs
        while enough < runs and made < 2 * runs + 5:
            seed = options.seed + made
            begun = time.monotonic()
            workers, faults, problem = self.one_run(seed)
            print(
                "seed %d: %d workers, %s, %.1f s"
                % (seed, workers, faults.told(), time.monotonic() - begun),
                flush=True,
            )
            if problem:
                failed.append(seed)
                print(faults.out[-4000:], problem, sep="\n", flush=True)
            for name in COUNTS:
                totals[name] += faults.counts[name]
            made += 1
            enough += self.is_enough(faults.counts)
        print(
            "%d runs, %d with enough faults, in all %s, %.0f s; failed: %s"
            % (
                made,
                enough,
                ", ".join("%d %s" % (totals[name], name) for name in COUNTS),
                time.monotonic() - start,
                failed,
            ),
            flush=True,
        )
        self.assertEqual(failed, [])
        self.assertEqual(enough, runs)


class ExactlyOnceTest(RandomFaults, harness.ProgramTest):
    program = "exactly_once"
    progress = re.compile(r"step (\d+)\n")
    stops = 0.25
    silence = 0.5  # as in exactly_once.c
    pause = 0.05
    most = 5  # workers

    def begin(self, workers, rng):
        epochs = 1000
        path = os.path.join(harness.ROOT, "tests/examples/exactly_once")
        micro_shard, keep_batch = rng.choice((0, 1, 4)), rng.choice((0, 1))
        process = self.start_command(
            path, workers, epochs, micro_shard, int(self.is_sharded), keep_batch
        )
        return process, epochs * 12

    def last_progress(self, total):
        return total - 128

    def is_enough(self, counts):
        return counts["killed"] + counts["stopped"] >= 3

    def problem(self, faults):
        """None: workers compare their parameters themselves."""
        return None

    def test_each_sample_is_learnt_once(self):
        self.run_all(3)


class ExactlyOnceShardsTest(ExactlyOnceTest):
    is_sharded = True


class ReproducibleTest(RandomFaults, harness.ProgramTest):
    program = "mnist_dist"
    progress = re.compile(r"Starting Epoch (\d+):\n")
    stops = 0
    silence = None
    pause = 0.1
    most = 4
    epochs = 40
    shards = ()

    def setUp(self):
        super().setUp()
        harness.small_data(self.data, training=330, evaluation=100)

    def arguments(self, *more):
        return (
            "--data", self.data, "--epochs", self.epochs, "--threads", 1,
            "--global-batch", 48, "--micro-shard", 4, "--reproducible",
            "--save", self.path("net.ckpt"), *self.shards, *more,
        )  # fmt: skip

    def begin(self, workers, rng):
        process = self.start(*self.arguments("--elastic", "--workers", workers))
        return process, self.epochs

    def last_progress(self, total):
        return total - 1

    def is_enough(self, counts):
        return counts["killed"] >= 2 and counts["came"] >= 1

    def hash(self):
        """Of parameters and states of the optimizer; the file goes."""
        with open(self.path("net.ckpt"), "rb") as file:
            text = hashlib.sha256(file.read()).hexdigest()
        os.remove(self.path("net.ckpt"))
        return text

    def problem(self, faults):
        if not os.path.exists(self.path("net.ckpt")):
            return "it has saved nothing"
        own = self.hash()
        return None if own == self.whole else "another hash: " + own

    def test_one_hash(self):
        self.train(*self.arguments("--workers", 1))
        self.whole = self.hash()
        print("sha256 of a run without faults:", self.whole)
        self.run_all(2)


class ReproducibleShardsTest(ReproducibleTest):
    is_sharded = True
    shards = ("--shard-optimizer",)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options, sys.argv[1:] = parser.parse_known_args()
    harness.main()
