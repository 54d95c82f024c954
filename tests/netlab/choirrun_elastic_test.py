# SPDX-License-Identifier: Apache-2.0
"""Elastic runs under choirrun: workers, agents and hosts are lost and come, and the run
ends as if nothing had happened."""

import os
import re
import signal
import subprocess
import threading
import time

from tests.examples import harness
from tests.netlab import netlab

CHOIRRUN = os.path.join(harness.ROOT, "tools/choirrun/choirrun.py")
PROGRAM = os.path.join(harness.ROOT, "examples/mnist_dist")
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 100
# choirrun itself, which is older than its guard.
SELF = ("-o", "-f", "python3 [^ ]*choirrun.py")
LEFT = "mnist_dist|host_agent|choir-guard"
DIGEST = re.compile(r"digest = ([0-9a-f]{16})")
RUN = ("--global-batch", 48, "--micro-shard", 4, "--threads", 1)
RUN += ("--reproducible",)
TAKES_PART = r"rank %d \(host %s, pid \d+\) takes part$"


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise harness.unittest.SkipTest(reason)


class ChoirrunElasticTest(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.lab = netlab.Lab(hosts=3)
        self.addCleanup(self.lab.close)
        self.h1, self.h2, self.h3 = self.lab.hosts
        harness.small_data(self.data, training=330, evaluation=64)
        self.list = self.path("hosts")
        self.said = ""

    def write_hosts(self, *lines):
        with open(self.list, "w") as file:
            file.write("".join(line + "\n" for line in lines))

    def begin(self, *flags, epochs=1000000, deadline=60, more=()):
        """A run that is in its second epoch."""
        self.process = self.h1.start(
            [CHOIRRUN, *flags, PROGRAM, "--elastic", *RUN]
            + ["--epochs", epochs, "--data", self.data, "--deadline", deadline]
            + [*more],
            env={"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.until("Starting Epoch 1:")

    def until(self, pattern):
        """Its next line like this one."""
        timer = threading.Timer(
            TIME_LIMIT, self.h1.call, ("sh", "-c", "kill -KILL -1 || true")
        )
        timer.start()
        try:
            for line in self.process.stdout:
                self.said += line
                if re.search(pattern, line):
                    return line
        finally:
            timer.cancel()
        told = re.sub(
            r"(?m)^(Training|Evaluation|images|Starting).*\n", "", self.said
        )
        self.fail("no line like '%s':\n%s" % (pattern, told[-9000:]))

    def ranks(self, host):
        """{number: pid as its host has it}."""
        script = (
            "for p in $(pidof mnist_dist); do "
            "echo $p $(tr '\\0' '\\n' </proc/$p/environ | "
            "sed -n s/^CHOIR_RANK=//p); done"
        )
        rows = host.run(["sh", "-c", script]).stdout.splitlines()
        return {int(rank): int(pid) for pid, rank in map(str.split, rows)}

    def kill(self, host, *pattern, number=signal.SIGKILL):
        """The processes of a host that pkill finds."""
        done = host.run(["pkill", "-%d" % number, *pattern])
        self.assertEqual(done.returncode, 0)

    def alone(self, epochs, *flags):
        """What one worker prints, to which nothing happens."""
        return self.train(
            *RUN, "--epochs", epochs, "--data", self.data, "--workers", 1,
            *flags
        )  # fmt: skip

    def expect_bits(self):
        """Those of its next epoch are those of one worker. Ends it."""
        digest = DIGEST.findall(self.until(DIGEST))
        epochs = int(re.findall(r"\d+", self.until("Starting Epoch"))[0])
        self.kill(self.h1, *SELF, number=signal.SIGINT)
        out, _ = self.process.communicate(timeout=TIME_LIMIT)
        self.assertEqual(self.process.returncode, 128 + signal.SIGINT, out)
        self.assert_hosts_are_clean()
        self.assertEqual(digest, DIGEST.findall(self.alone(epochs))[-1:])

    def assert_hosts_are_clean(self):
        """No worker, no agent, no file; a little later at the latest."""
        script = (
            "ps -e -o stat=,args= | grep -E '%s' | grep -vE '^Z|grep'; "
            "ls $TMPDIR | grep choirrun" % LEFT
        )
        end = time.monotonic() + TIME_LIMIT
        for host in self.lab.hosts:
            while left := host.run(["sh", "-c", script]).stdout:
                if time.monotonic() > end:
                    self.fail("%s: %s\n%s" % (host.name, left, self.said))
                time.sleep(0.2)

    def test_a_killed_worker_is_replaced(self):
        self.begin("--min-np", 1, "-np", 3, "-H", "localhost:1,h2:2")
        for victim, host, name in ((1, self.h2, "h2"), (0, self.h1, "h1")):
            pid = self.ranks(host)[victim]
            host.run(["kill", "-KILL", pid])
            self.until(
                r"choirrun: rank %d \(host %s, pid %d\) was killed by signal 9 "
                r"\(Killed\); 2 workers go on$" % (victim, name, pid)
            )
            self.until(TAKES_PART % (4 - victim, name))
        self.assertEqual(
            (list(self.ranks(self.h1)), sorted(self.ranks(self.h2))),
            ([4], [2, 3]),
        )
        self.expect_bits()

    def test_a_killed_agent_and_a_new_one(self):
        self.begin("--min-np", 1, "-np", 3, "-H", "localhost:1,h2:1,h3:1")
        self.kill(self.h2, "-x", "python3")
        self.until(
            r"choirrun: host h2 \(rank 1\) was lost: choirrun's (agent|guard) .*; "
            "2 workers go on$"
        )
        self.until("choirrun: host h2 is back$")
        self.until(TAKES_PART % (3, "h2"))
        # The connection alone: what runs there is not the run's any more.
        self.kill(self.h1, "-f", "ssh -v .* -T h3 ")
        self.until(
            r"choirrun: host h3 \(rank 2\) was lost: the ssh connection to h3 "
            r"\(pid \d+ on this host\) was killed by signal 9 \(Killed\); 2 "
            "workers go on$"
        )
        self.until("choirrun: host h3 is back$")
        self.until(TAKES_PART % (4, "h3"))
        self.assertEqual(list(self.ranks(self.h3)), [4])
        self.expect_bits()

    def test_a_silent_host(self):
        self.begin(
            *["--min-np", 1, "-np", 3, "-H", "localhost:1,h2:1,h3:1"],
            deadline=5,
        )
        self.h3.cut()
        self.until("choirrun: host h3 gives no sign of life$")
        self.until(
            r"rank 2 \(host h3, pid \d+\) did not answer, 2 workers go on"
        )
        self.until(
            r"choirrun: host h3 \(rank 2\) was lost: .*; 2 workers go on$"
        )
        self.h3.mend()
        self.until("choirrun: host h3 is back$")
        self.until(TAKES_PART % (3, "h3"))
        self.assertEqual(list(self.ranks(self.h3)), [3])
        self.expect_bits()

    def test_hosts_that_are_added_and_removed(self):
        self.write_hosts("localhost slots=1", "h2 slots=1")
        self.begin("--min-np", 1, "--max-np", 4, "--hostfile", self.list)
        # Wrong ones are told of once.
        self.h3.make_private(os.path.dirname(os.path.realpath(PROGRAM)))
        program = os.path.realpath(PROGRAM)
        self.h3.run(["sh", "-c", "echo >>" + program])
        self.write_hosts(
            "localhost slots=1", "h2 slots=1", "h3 slots=1", "h9 slots=1"
        )
        told = self.until("^choirrun: h[39]: ") + self.until(
            "^choirrun: h[39]:"
        )
        self.assertRegex(told, "h9: no host of the name h9 is known here; .*")
        self.assertRegex(
            told, r"h3: \S+ is not the same as .*; nothing is started there "
            "until its entry changes, or for 5 minutes\n"
        )  # fmt: skip
        self.h3.run(["sh", "-c", "truncate -s -1 " + program])
        self.write_hosts("localhost slots=1", "h2 slots=1", "h3 slots=2")
        self.until("choirrun: host h3 is taken in")
        for _ in range(2):
            self.until(r"rank [23] \(host h3, pid \d+\) takes part$")
        self.write_hosts("localhost slots=1", "h3 slots=2")
        self.until(
            "choirrun: host h2 is not listed any more; rank 1 is asked to leave$"
        )
        self.until(
            r"choirrun: rank 1 \(host h2, pid \d+\) has left; 3 workers go on$"
        )
        self.assertEqual(self.h2.run(["pidof", "mnist_dist"]).stdout, "")
        self.expect_bits()

    def test_a_run_whose_choirrun_is_killed(self):
        file = self.path("net.ckpt")
        script = self.path("hosts.sh")
        with open(script, "w") as out:
            out.write("#!/bin/sh\necho localhost:1\necho h2\necho root@h3\n")
        os.chmod(script, 0o755)
        self.begin(
            *["--host-discovery-script", script, "-np", 3],
            epochs=40,
            more=("--save", file),
        )
        self.kill(self.h1, *SELF)
        self.process.communicate(timeout=TIME_LIMIT)
        self.assertEqual(len(self.ranks(self.h3)), 1)
        self.assert_hosts_are_clean()
        whole = self.path("whole.ckpt")
        self.alone(40, "--save", whole)
        with open(file, "rb") as one, open(whole, "rb") as other:
            self.assertEqual(one.read() == other.read(), True)

    def expect_end(self, status, sentence):
        out, _ = self.process.communicate(timeout=TIME_LIMIT)
        self.assertEqual(self.process.returncode, status, out)
        self.assertRegex(
            out.splitlines()[-1],
            "^choirrun: %s; all ranks were ended$" % sentence,
        )
        self.assert_hosts_are_clean()

    def test_all_are_killed(self):
        self.begin("--min-np", 1, "-np", 2, "-H", "h2:2")
        self.kill(self.h2, "-x", "mnist_dist")
        self.expect_end(
            128 + signal.SIGKILL,
            r"rank \d \(host h2, pid \d+\) was killed by signal 9 .*",
        )

    def test_too_few_are_left(self):
        self.write_hosts("localhost slots=2", "h2 slots=1")
        self.begin(
            *["--min-np", 3, "--hostfile", self.list, "--elastic-timeout", 1]
        )
        self.write_hosts("localhost slots=2")
        self.expect_end(1, "2 workers, fewer than --min-np 3, for 1 s")


if __name__ == "__main__":
    harness.main()
