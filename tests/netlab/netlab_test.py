# SPDX-License-Identifier: Apache-2.0
"""The lab: hosts that are apart, cables that can be cut, nothing left."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest
import uuid

from tests.examples import harness
from tests.netlab import netlab

SCRIPT = os.path.join(harness.ROOT, "tests/netlab/netlab.py")
MARK = "NETLAB_TEST_MARK"
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 100


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise unittest.SkipTest(reason)


def marked_processes(mark):
    found = []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if ("%s=%s" % (MARK, mark)).encode() in file.read():
                    found.append(int(name))
        except OSError:
            pass
    return found


class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lab = netlab.Lab(
            hosts=3, interfaces=("eth0", "enp3s0"), docker0=True
        )
        cls.addClassCleanup(cls.lab.close)

    def say(self, host, *command):
        done = self.lab.hosts[host].run(command)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_each_host_is_itself(self):
        for i, host in enumerate(self.lab.hosts):
            self.assertEqual(self.say(i, "hostname"), "h%d" % (i + 1))
            self.assertEqual(
                self.say(i, "sh", "-c", "ls /proc/1/exe"), "/proc/1/exe"
            )
            links = self.say(i, "ip", "-brief", "link")
            self.assertIn(("eth0@", "enp3s0@")[i % 2], links)
            self.assertNotIn(("eth0@", "enp3s0@")[1 - i % 2], links)
            address = self.say(i, "ip", "-brief", "address", "show", "docker0")
            self.assertIn("172.17.0.1/16", address)

    def test_ssh_from_each_to_each(self):
        for i in range(3):
            for there in ("h1", "h2", "h3", "10.77.0.2", "fd77::3"):
                said = self.say(
                    i, "ssh", "-o", "BatchMode=yes", there, "hostname"
                )
                if there.startswith("h"):
                    self.assertEqual(said, there)
        self.assertEqual(
            self.say(0, "ssh", "h2", "echo $TMPDIR"),
            self.lab.hosts[1].temporary,
        )

    def test_cut_and_mend(self):
        h1, h2 = self.lab.hosts[:2]
        h2.cut()
        ssh = ["ssh", "-o", "ConnectTimeout=1", "h2", "hostname"]
        self.assertEqual(h1.run(ssh).returncode, 255)
        h2.mend()
        done = h1.run(["ssh", "h2", "hostname"])
        self.assertEqual((done.stdout, done.stderr), ("h2\n", ""))

    def test_freeze_and_thaw(self):
        h2 = self.lab.hosts[1]
        process = h2.start(
            ["sh", "-c", "echo ready; read line; echo $line"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(process.stdout.readline(), "ready\n")
        h2.freeze()
        try:
            with self.assertRaises(subprocess.TimeoutExpired):
                process.communicate("over\n", timeout=0.3)
        finally:
            h2.thaw()
        self.assertEqual(process.communicate(timeout=TIME_LIMIT)[0], "over\n")

    def test_large_packets_are_lost(self):
        with netlab.Lab() as lab:
            h1, h2 = lab.hosts
            h2.swallow_above(1280)
            ssh = ["timeout", "1", "ssh", "h2", "true"]
            self.assertEqual(h1.run(ssh).returncode, 124)
            h2.swallow_above(1500)
            done = h1.run(
                ["sh", "-c", "head -c 100000 /dev/zero | ssh h2 wc -c"]
            )
            self.assertEqual(done.stdout, "100000\n")


class EndTest(unittest.TestCase):
    """The command line, and its ends."""

    def start(self, *arguments):
        self.mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
            text=True,
            start_new_session=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def assert_nothing_left(self):
        end = time.monotonic() + TIME_LIMIT
        while marked_processes(self.mark) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(marked_processes(self.mark), [])
        self.assertFalse(
            [name for name in os.listdir("/run") if name.startswith("lab")]
        )

    def test_status_and_environment(self):
        process = self.start(
            *["--rate", "10mbit", "--mtu", "1280", "--each", "--", "sh", "-c"],
            "echo $(hostname) of $NETLAB_HOSTS; cat /sys/class/net/eth0/mtu; "
            "exit 7",
        )
        out, err = process.communicate(timeout=TIME_LIMIT)
        self.assertEqual((process.returncode, err), (7, ""))
        self.assertEqual(
            sorted(out.splitlines()),
            ["1280"] * 2 + ["h1 of h1 h2", "h2 of h1 h2"],
        )
        self.assert_nothing_left()

    def test_ends_by_signals(self):
        for number, status in (
            (signal.SIGINT, 130),
            (signal.SIGTERM, 143),
            (signal.SIGKILL, -9),
        ):
            with self.subTest(number):
                # A command that a signal does not end.
                process = self.start(
                    "--", "sh", "-c", "trap '' INT; echo up; ssh h2 sleep 1000"
                )
                self.assertEqual(process.stdout.readline(), "up\n")
                self.assertGreater(len(marked_processes(self.mark)), 3)
                process.send_signal(number)
                if number == signal.SIGINT:
                    time.sleep(0.2)
                    process.send_signal(number)
                process.wait(timeout=TIME_LIMIT)
                self.assertEqual(process.returncode, status)
                self.assert_nothing_left()

    def test_mistakes(self):
        for arguments, sentence in (
            (
                ["--rate", "fast", "--", "true"],
                "rate 'fast' is not of the form",
            ),
            ([], "no command; put one behind --"),
        ):
            process = self.start(*arguments)
            _, err = process.communicate(timeout=TIME_LIMIT)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(sentence, err)


class TrainingTest(harness.ProgramTest):
    def test_two_hosts_give_the_bits_of_one(self):
        harness.small_data(self.data, training=128, evaluation=64)
        flags = ["--epochs", "1", "--data", self.data]
        program = os.path.join(harness.ROOT, "examples/mnist_dist")
        with netlab.Lab(rate="10mbit") as lab:
            done = lab.hosts[0].run(
                ["mpirun", "-np", "2", "-H", "localhost:1,h2:1"]
                + ["--mca", "btl", "self,tcp"]
                + ["--mca", "btl_tcp_if_include", "10.77.0.0/24"]
                + [program, "--comm", "mpi"]
                + flags,
                timeout=TIME_LIMIT,
            )
        # What Open MPI 5 says of how it started ssh, when it is in time.
        said = re.sub(r"(?m)^.*plm:ssh: Warning: setpgid.*\n", "", done.stderr)
        self.assertEqual((done.returncode, said), (0, ""))
        self.assertEqual(
            harness.digests_of(done.stdout),
            harness.digests_of(self.train("--workers", "2", *flags)),
        )


if __name__ == "__main__":
    harness.main()
