# SPDX-License-Identifier: Apache-2.0
"""Elastic runs on several hosts, which lose workers, hosts and the network."""

import os
import re
import secrets
import signal
import subprocess
import threading
import time
import unittest

from tests.examples import harness
from tests.netlab import netlab

DIGEST = re.compile(r"digest = ([0-9a-f]{16})")
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 100
DEADLINE = 3  # seconds
RUN = (
    *("--epochs", 1000000, "--global-batch", 48, "--micro-shard", 4),
    *("--threads", 1, "--elastic", "--reproducible", "--deadline", DEADLINE),
)


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise unittest.SkipTest(reason)


class Worker:
    """A process on a host, and what it says."""

    def __init__(self, run, host, rank, more=()):
        self.environment = {
            **run.common,
            "CHOIR_RANK": str(rank),
            "CHOIR_MEMBERS": run.members_of(host),
            **dict(more),
        }
        self.run = run
        self.host = host
        self.rank = rank
        self.process = host.start(
            [os.path.join(harness.ROOT, "examples/mnist_dist"), *run.arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.run.take(self.host, line)

    def signal(self, number):
        os.kill(self.pid(), number)

    def pid(self):
        """Of the program, which nsenter has started."""
        ranks = self.host.ranks("mnist_dist")
        return next(pid for pid, rank in ranks.items() if rank == self.rank)


class Run:
    """Workers of one run, each rank on the host that `hosts` names."""

    def __init__(self, test, hosts, arguments):
        self.test = test
        self.arguments = arguments
        self.lines = []  # (name of the host, what one there said)
        self.heard = threading.Condition()
        self.common = {
            "CHOIR_SIZE": str(len(hosts)),
            "CHOIR_COMM_ID": secrets.token_hex(16),
            "CHOIR_RENDEZVOUS": hosts[0].address + ":29511",
        }
        self.workers = [
            Worker(self, host, rank) for rank, host in enumerate(hosts)
        ]

    def members_of(self, host):
        return os.path.join(host.folder, "members")

    def take(self, host, line):
        with self.heard:
            self.lines.append((host.name, line))
            self.heard.notify_all()

    def add(self, host, asked):
        """A newcomer on `host`, which knows the members that `asked` knows."""
        if host is not asked:
            with open(self.members_of(asked)) as known:
                text = known.read()
            with open(self.members_of(host), "w") as file:
                file.write(text)
        rank = len(self.workers)
        more = {"CHOIR_NEWCOMER": "1", "CHOIR_SIZE": str(rank + 1)}
        self.workers.append(Worker(self, host, rank, more))
        return self.workers[-1]

    def until(self, pattern, host=None, after=0):
        """Waits for a line like this; its number, from 1 on."""
        end = time.monotonic() + TIME_LIMIT
        with self.heard:
            at = after
            while True:
                for at in range(at, len(self.lines)):
                    name, line = self.lines[at]
                    if re.search(pattern, line) and host in (None, name):
                        return at + 1
                at = len(self.lines)
                left = end - time.monotonic()
                self.test.assertGreater(left, 0, self.said(pattern))
                self.heard.wait(left)

    def now(self):
        with self.heard:
            return len(self.lines)

    def said(self, pattern):
        told = [line for line in self.lines[:-60] if " = " not in line[1]]
        last = "".join(
            "%s: %s" % line for line in told[-40:] + self.lines[-60:]
        )
        return "'%s' did not come; the last lines:\n%s" % (pattern, last)


class ElasticHostsTest(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.lab = netlab.Lab(hosts=4)
        self.addCleanup(self.lab.close)
        harness.small_data(self.data, training=330)

    def begin(self, *hosts):
        """A run that is in its second epoch, with a worker on each."""
        arguments = [*RUN, "--data", self.data]
        run = Run(self, [self.lab.hosts[h] for h in hosts], arguments)
        run.until("Starting Epoch 1")
        return run

    def expect_bits(self, run):
        """Those of an epoch to come are those of one worker."""
        run.until("Starting Epoch", after=run.now())
        at = run.until(DIGEST, after=run.now())
        digest = DIGEST.findall(run.lines[at - 1][1])
        at = run.until("Starting Epoch", after=at)
        epochs = re.findall(r"\d+", run.lines[at - 1][1])[0]
        whole = self.train(
            *RUN[2:8], "--epochs", epochs, "--data", self.data,
            "--reproducible", "--workers", 1,
        )  # fmt: skip
        self.assertEqual(digest, DIGEST.findall(whole)[-1:])

    def test_workers_are_killed(self):
        run = self.begin(0, 1, 2, 0)
        for victim, left in ((1, 3), (0, 2)):
            run.workers[victim].signal(signal.SIGKILL)
            run.until("is gone, %d workers go on" % left)
        self.expect_bits(run)

    def test_a_host_comes(self):
        run = self.begin(0, 1)
        run.add(self.lab.hosts[2], self.lab.hosts[1])
        run.until("has come, 3 workers go on")
        run.add(self.lab.hosts[2], self.lab.hosts[2])
        run.until("has come, 4 workers go on")
        # Of half of them the one with rank 0 goes on.
        run.workers[1].signal(signal.SIGKILL)
        run.until("is gone, 3 workers go on")
        self.expect_bits(run)

    def test_a_host_is_cut_off(self):
        run = self.begin(0, 1, 2)
        self.lab.hosts[2].cut()
        run.until("did not answer, 2 workers go on")
        run.until("waiting", host="h3")
        self.lab.hosts[2].mend()
        run.until("has come, 3 workers go on")
        self.expect_bits(run)

    def test_the_first_host_is_cut_off(self):
        run = self.begin(0, 1, 2)
        self.lab.hosts[0].cut()
        run.until("did not answer, 2 workers go on")
        run.until("waiting", host="h1")
        self.lab.hosts[0].mend()
        run.until("has come, 3 workers go on")
        self.expect_bits(run)

    def test_a_host_is_behind_a_slow_link(self):
        run = self.begin(0, 1, 2)
        self.lab.hosts[2].set_rate("500kbit")
        run.until(r"host h3, pid \d+\) is behind a slow link, 2 workers go on")
        # It tries to come back, and the others do not notice.
        at = run.until("Starting Epoch")
        epoch = int(re.findall(r"\d+", run.lines[at - 1][1])[0])
        run.until("Starting Epoch %d:" % (epoch + 60))
        self.lab.hosts[2].set_rate("100mbit")
        run.until("has come, 3 workers go on")
        self.expect_bits(run)
        changes = "".join(line for _, line in run.lines if "generation" in line)
        self.assertNotRegex(changes, r"host h[12], pid \d+\) (is|did)")

    def test_a_host_is_frozen(self):
        run = self.begin(0, 1, 2)
        self.lab.hosts[1].freeze()
        run.until("did not answer, 2 workers go on")
        self.lab.hosts[1].thaw()
        run.until("has come, 3 workers go on")
        self.expect_bits(run)


if __name__ == "__main__":
    harness.main()
