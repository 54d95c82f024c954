# SPDX-License-Identifier: Apache-2.0
"""Runs over several hosts under choirrun: the bits of one host, and when
something breaks everybody ends and the first cause is told."""

import os
import shutil
import signal
import subprocess
import time

from tests.examples import harness
from tests.netlab import netlab

CHOIRRUN = os.path.join(harness.ROOT, "tools/choirrun/choirrun.py")
PROGRAM = os.path.join(harness.ROOT, "examples/mnist_dist")
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 100
# Of Open MPI 4 and 5.
LEFT = "mnist_dist|orted|prted|prterun|mpirun|host_agent"
OPERATION = r"all_reduce '[^']+' \(operation \d+\)"
AGENT = "'host_agent'"
# A rank with a child, one in a session of its own, and one that has lost its parent
# and its environment; all stay until SIGKILL. $0 is a mark in their command lines.
FAMILY = """trap '' TERM INT HUP
loop='while :; do sleep 1000; done'
sh -c "$loop" $0 &
setsid sh -c "$loop" $0 &
(env -i sh -c "trap '' TERM; while :; do /bin/sleep 1000; done" $0 &)
echo up
eval "$loop"
"""


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise harness.unittest.SkipTest(reason)


class RunCases:
    """What holds whoever starts the ranks."""

    comm = ""
    ports = ()
    # The environment of a shell that is a rank.
    rank = ""
    # What rank 0 did when rank 1 was killed.
    others = "rank 0 was in %s" % OPERATION

    def setUp(self):
        super().setUp()
        self.lab = netlab.Lab(
            rate="100mbit",
            interfaces=("eth0", "enp3s0"),
            docker0=True,
        )
        self.addCleanup(self.lab.close)
        self.h1, self.h2 = self.lab.hosts[:2]
        self.choirrun_command = [CHOIRRUN, "--comm", self.comm]
        # Cores are few, and other tests run too.
        self.extra = {"OMP_NUM_THREADS": "1"}

    def choirrun(self, *words):
        return self.h1.run(
            [*self.choirrun_command, *words],
            timeout=TIME_LIMIT,
            env=self.extra,
        )

    def ranks(self, host):
        """{rank: pid as its host has it}."""
        script = (
            "for p in $(pidof mnist_dist); do "
            "echo $p $(tr '\\0' '\\n' </proc/$p/environ | "
            "sed -n s/^%s=//p); done" % self.rank
        )
        found = {}
        for line in host.run(["sh", "-c", script]).stdout.splitlines():
            pid, rank = line.split()
            found[int(rank)] = int(pid)
        return found

    def begin(self, *more, hosts="localhost:1,h2:1", np=2, deadline=60):
        """A run without end that is in its second epoch. A short deadline is for
        tests that wait for it: on a busy machine it ends others."""
        harness.small_data(self.data, training=128, evaluation=64)
        process = self.h1.start(
            [*self.choirrun_command, "-np", np, "-H", hosts, *more, PROGRAM]
            + ["--data", self.data, "--epochs", "1000000"]
            + ["--deadline", deadline],
            env=self.extra,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for line in process.stdout:
            if line == "Starting Epoch 1:\n":
                return process
        self.fail("it ended by itself: " + process.communicate()[1])

    def expect_end(self, process, status, sentence):
        try:
            _, err = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            self.h1.call("sh", "-c", "kill -KILL -1 || true")
            self.fail("it hangs: %s%s" % process.communicate())
        self.assertEqual(process.returncode, status, err)
        last = err.splitlines()[-1]
        self.assertRegex(last, "^choirrun: " + sentence + "$", err)
        # Open MPI's own paragraphs say less.
        self.assertNotIn("-----", err)
        self.assert_host_is_clean(self.h1)

    def assert_host_is_clean(self, host):
        """No rank, no daemon, no agent; a little later at the latest."""
        end = time.monotonic() + TIME_LIMIT
        while time.monotonic() < end:
            left = host.run(
                ["sh", "-c", "ps -e -o stat=,args= | grep -E '%s' | "
                 "grep -vE '^Z|grep'" % LEFT]
            ).stdout  # fmt: skip
            if not left:
                return
            time.sleep(0.2)
        self.fail("left behind on %s:\n%s" % (host.name, left))

    def test_two_hosts_give_the_bits_of_one(self):
        harness.small_data(self.data, training=128, evaluation=64)
        flags = ["--epochs", "1", "--data", self.data]
        for hosts in ("localhost:1,h2:1", "h1,root@[fd77::2]:1", "h2:2"):
            with self.subTest(hosts):
                done = self.choirrun(
                    *["-np", "2", "-H", hosts, *self.ports, "--", PROGRAM],
                    *flags,
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(
                    harness.digests_of(done.stdout),
                    harness.digests_of(self.train("--workers", "2", *flags)),
                )

    def test_local_run_needs_no_ssh(self):
        self.h1.call("mount", "--bind", "/dev/null", "/usr/bin/ssh")
        self.extra["CHOIR_X"] = "seen"
        done = self.choirrun("-np", "2", "sh", "-c", "sleep 1; echo $CHOIR_X")
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr), (0, "seen\n" * 2, "")
        )

    def test_output_and_environment(self):
        folder = self.path("logs")
        # Not for the other hosts, whose name it is not.
        self.extra["CHOIR_HOST"] = "me"
        done = self.choirrun(
            *["-np", "2", "-H", "localhost,h2", "--output-filename", folder],
            *["-x", "ONE=1 and more", "sh", "-c"],
            "sleep 1; echo $ONE on $(hostname)$CHOIR_HOST; echo oh >&2; "
            "exit $" + self.rank,
        )
        self.assertEqual(done.returncode, 1)
        for rank, host in ((0, "h1me"), (1, "h2")):
            for stream, text in (
                ("stdout", "1 and more on %s\n" % host),
                ("stderr", "oh\n"),
            ):
                name = os.path.join(folder, "rank.%d" % rank, stream)
                with open(name) as file:
                    self.assertEqual(file.read(), text)
        self.assertEqual(
            sorted(done.stdout.splitlines()),
            ["1 and more on h1me", "1 and more on h2"],
        )

    def test_exit_status(self):
        done = self.choirrun(
            *["-np", "2", "-H", "localhost,h2", "sh", "-c"],
            "sleep 1; [ $%s = 0 ] || exit 7; sleep 100" % self.rank,
        )
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertRegex(
            done.stderr,
            r"choirrun: (a rank|rank 1 \(host h2(, pid \d+)?\)) ended with "
            "exit status 7; all ranks were ended\n$",
        )

    def expect_killed_rank(self, process, pid):
        self.expect_end(
            process,
            137,
            r"rank 1 \(host h2, pid %d\) was killed by signal 9 \(Killed\), "
            r"perhaps by the kernel for want of memory \(dmesg tells\); %s; all "
            r"ranks were ended" % (pid, self.others),
        )
        self.assert_host_is_clean(self.h2)

    def test_killed_rank(self):
        process = self.begin()
        # So slow that nearly all of a step is its exchange, with rank 0 in it.
        self.h2.set_rate("1mbit")
        time.sleep(2)
        pid = self.ranks(self.h2)[1]
        self.h2.run(["kill", "-KILL", pid])
        self.expect_killed_rank(process, pid)

    def test_stopped_rank(self):
        process = self.begin(deadline=5)
        pid = self.ranks(self.h2)[1]
        self.h2.run(["kill", "-STOP", pid])
        self.expect_end(
            process,
            1,
            r"rank 1 \(host h2, pid %d\) was stopped by a signal; rank 0 was "
            r"in %s; all ranks were ended" % (pid, OPERATION),
        )
        self.assert_host_is_clean(self.h2)

    def test_cut_link(self):
        process = self.begin(deadline=5)
        self.h2.cut()
        self.expect_end(
            process,
            1,
            r"host h2 \(rank 1\) gave no sign of life for \d+ s: it is frozen, "
            r"off or cut off; rank 0 was in %s; all ranks were ended"
            % OPERATION,
        )
        # Nobody can reach it, and still it ends what it runs.
        self.assert_host_is_clean(self.h2)

    def test_frozen_host(self):
        process = self.begin(deadline=5)
        self.h2.freeze()
        self.expect_end(
            process,
            1,
            r"host h2 \(rank 1\) gave no sign of life for \d+ s: it is frozen, "
            r"off or cut off; rank 0 was in %s; all ranks were ended"
            % OPERATION,
        )
        self.h2.thaw()
        self.assert_host_is_clean(self.h2)

    def test_interrupt(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process = self.begin()
                # The program that the lab started choirrun through dies of
                # it; choirrun's end is seen by its output.
                self.h1.run(["sh", "-c", "kill -%d $(pgrep -f '^[^ ]*python3 "
                             "[^ ]*choirrun.py')" % number])  # fmt: skip
                self.expect_end(
                    process,
                    128 + number,
                    r"interrupted by signal %d \(\w+\); all ranks were ended"
                    % number,
                )
                self.assert_host_is_clean(self.h2)

    def rows(self, host):
        """[(pid, parent, name, command line)] of a host."""
        rows = host.run(["ps", "-e", "-o", "pid=,ppid=,stat=,comm=,args="])
        found = []
        for row in rows.stdout.splitlines():
            pid, parent, state, rest = row.split(None, 3)
            name, _, words = rest.partition(" ")
            if state[0] != "Z":
                found.append((int(pid), int(parent), name, words.strip()))
        return found

    def find(self, host, name, part="", parent=None):
        """The one process of a host with this name, in whose command line is
        `part`; its parent has `parent` in that."""
        rows = self.rows(host)
        words = {row[0]: row[3] for row in rows}
        found = [
            row[0]
            for row in rows
            if row[2] == name
            and part in row[3]
            and (parent is None or parent in words.get(row[1], ""))
        ]
        self.assertEqual(len(found), 1, (name, part, rows))
        return found[0]

    def begin_families(self, mark):
        process = self.h1.start(
            [*self.choirrun_command, "-np", "2", "-H", "localhost,h2"]
            + ["sh", "-c", FAMILY, mark],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2):
            self.assertEqual(process.stdout.readline(), "up\n")
        return process

    def assert_family_is_gone(self, mark):
        end = time.monotonic() + TIME_LIMIT
        while time.monotonic() < end:
            left = [
                row
                for host in (self.h1, self.h2)
                for row in self.rows(host)
                if mark in row[3]
            ]
            if not left:
                break
            time.sleep(0.1)
        self.assertEqual(left, [])

    def assert_folders_are_gone(self):
        for host in (self.h1, self.h2):
            left = host.run(["sh", "-c", "ls /dev/shm $TMPDIR"]).stdout.split()
            self.assertEqual(
                [n for n in left if "choir" in n or "ompi" in n or "seg" in n],
                [],
                host.name,
            )

    def expect_lost(self, find, sentence, status=128 + signal.SIGKILL):
        """A process of the run that is killed: `find` gives its host and id, and
        `sentence` has a place for the id."""
        process = self.begin_families("family")
        host, pid = find()
        host.run(["kill", "-KILL", pid])
        self.expect_end(
            process, status, sentence.replace("PID", str(pid))
            + "; all ranks were ended"
        )  # fmt: skip
        self.assert_host_is_clean(self.h2)
        self.assert_family_is_gone("family")
        self.assert_folders_are_gone()

    def test_killed_agent_here(self):
        self.expect_lost(
            lambda: (
                self.h1,
                self.find(self.h1, "python3", AGENT, "choirrun.py"),
            ),
            r"choirrun's agent on host h1 \(pid PID\) was killed by signal 9 "
            r"\(Killed\)",
        )

    def test_killed_agent_there(self):
        self.expect_lost(
            lambda: (self.h2, self.find(self.h2, "python3", AGENT)),
            r"choirrun's agent on host h2 \(pid PID\) was killed by signal 9 "
            r"\(Killed\)",
        )

    def test_killed_ssh(self):
        self.expect_lost(
            lambda: (self.h1, self.find(self.h1, "ssh")),
            r"the ssh connection to h2 \(pid PID on this host\) was killed by "
            r"signal 9 \(Killed\)",
        )

    def test_killed_guard_there(self):
        self.expect_lost(
            lambda: (self.h2, self.find(self.h2, "choir-guard", AGENT)),
            "choirrun's guard on host h2 was killed",
            status=1,
        )

    def expect_no_children(self, find, number, status):
        process = self.begin_families("children")
        host, pid = find()
        host.run(["kill", "-%d" % number, pid])
        process.communicate(timeout=TIME_LIMIT)
        if status:
            self.assertEqual(process.returncode, status)
        self.assert_host_is_clean(self.h1)
        self.assert_host_is_clean(self.h2)
        self.assert_family_is_gone("children")
        self.assert_folders_are_gone()

    def test_children_when_choirrun_is_ended(self):
        def choirrun():
            return self.h1, self.find(self.h1, "python3", "choirrun.py")

        self.expect_no_children(choirrun, signal.SIGTERM, 143)
        # Who started it in the lab has another status then.
        self.expect_no_children(choirrun, signal.SIGKILL, None)

    def test_stopped_rank_at_the_start(self):
        harness.small_data(self.data)
        process = self.h1.start(
            [*self.choirrun_command, "-np", "2", "-H", "localhost,h2"]
            + ["sh", "-c", "[ $%s = 0 ] || kill -STOP $$; exec %s --data "
               "%s --deadline 3" % (self.rank, PROGRAM, self.data)],
            env=self.extra,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        self.expect_end(
            process,
            1,
            r"rank 1 \(host h2, pid \d+\) was stopped by a signal; all ranks were "
            "ended",
        )

    def expect_epochs(self, process, count):
        """It goes on for so long."""
        for line in process.stdout:
            count -= line.startswith("Starting Epoch")
            if count == 0:
                pid = self.find(self.h1, "python3", "choirrun.py")
                self.h1.run(["kill", "-INT", pid])
                self.expect_end(
                    process,
                    128 + signal.SIGINT,
                    r"interrupted by signal 2 \(Interrupt\); all ranks were ended",
                )
                return
        self.fail("it ended by itself: " + process.communicate()[1])

    def test_link_that_gets_slow(self):
        # A message of 1 MiB takes 16 s, longer than the deadline. TCP itself pauses
        # while the queue of the slow link overflows: for 6 s after five losses, for
        # another 6 s after one more.
        process = self.begin(deadline=14)
        for host in self.lab.hosts:
            host.set_rate("500kbit")
        self.expect_epochs(process, 2)

    def test_link_that_is_cut_for_a_while(self):
        # TCP may come back as late again; so may the agents' connections, which
        # end the run after 15 s.
        process = self.begin(deadline=20)
        self.h2.cut()
        time.sleep(6)
        self.h2.mend()
        self.expect_epochs(process, 3)

    def test_killed_choirrun(self):
        process = self.begin()
        self.h1.run(["sh", "-c", "kill -KILL $(pgrep -f choirrun.py)"])
        process.communicate(timeout=TIME_LIMIT)
        self.assert_host_is_clean(self.h1)
        self.assert_host_is_clean(self.h2)


class MpiRunTest(RunCases, harness.ProgramTest):
    comm = "mpi"
    ports = ("--port-range", "20000-20050")
    rank = "OMPI_COMM_WORLD_RANK"
    # Open MPI ends a process in the middle of a call when the network has not taken
    # a message for a lost one yet; then rank 0 cannot tell.
    others = (
        "(%s|Open MPI ended rank 0, which could not send to it)"
        % RunCases.others
    )

    def setUp(self):
        super().setUp()
        said = self.h1.run(["mpirun", "--version"]).stdout
        self.major = 5 if "(Open MPI) 5" in said else 4

    def test_preflight_predicts(self):
        harness.small_data(self.data, training=4096, evaluation=64)
        done = self.choirrun(
            *["--preflight", "-np", "2", "-H", "localhost,h2"],
            *[PROGRAM, "--data", self.data],
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for line in (
            r"2 workers, \d+ parameters, [\d.]+ ms to compute a step; link: "
            r"[\d.]+ ms, [\d.]+ MB/s",
            r". fp32 +17\d+ +[\d.]+ +[\d.]+",
            r". sparseLocal +\d+ +[\d.]+ +[\d.]+",
            r".* [\d.]+ times faster.*",
            "preflight passed",
        ):
            self.assertRegex(done.stdout, "(?m)^choirrun: %s$" % line)

    def test_folder_with_a_blank_where_nothing_is_executed(self):
        folder = os.path.join(self.h1.temporary, "a folder")
        os.mkdir(folder)
        self.h1.call("mount", "-t", "tmpfs", "-o", "noexec", "tmp", folder)
        self.extra["TMPDIR"] = folder
        done = self.choirrun(
            *["-np", "2", "-H", "localhost,h2", "sh", "-c"],
            "sleep 1; echo on $(hostname)",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["on h1", "on h2"])

    def test_killed_rank_of_which_the_other_hears_first(self):
        process = self.begin()
        self.h2.set_rate("1mbit")
        time.sleep(2)
        pid = self.ranks(self.h2)[1]
        name = "orted" if self.major == 4 else "prted"
        daemon = self.find(self.h2, name)
        self.h2.run(["kill", "-STOP", daemon])
        self.h2.run(["kill", "-KILL", pid])
        # Rank 0 has noticed by then.
        time.sleep(1)
        self.h2.run(["kill", "-CONT", daemon])
        self.expect_killed_rank(process, pid)

    def test_killed_mpirun(self):
        name = "mpirun" if self.major == 4 else "prterun"
        self.expect_lost(
            lambda: (self.h1, self.find(self.h1, name)),
            r"mpirun \(host h1, pid PID\) was killed by signal 9 \(Killed\)",
        )

    def test_killed_daemon(self):
        name = "orted" if self.major == 4 else "prted"
        self.expect_lost(
            lambda: (self.h2, self.find(self.h2, name)),
            name + r" \(host h2, pid PID\) was killed by signal 9 \(Killed\)",
        )

    def test_killed_guard_here(self):
        self.expect_lost(
            lambda: (self.h1, self.find(self.h1, "choir-guard", "choirrun.py")),
            "the guard of mpirun on this host was killed",
            status=1,
        )

    def test_children_of_a_killed_rank(self):
        name = "orted" if self.major == 4 else "prted"

        def child_of(host, name):
            parent = self.find(host, name)
            (pid,) = [
                row[0]
                for row in self.rows(host)
                if row[1] == parent and row[2] == "sh"
            ]
            return pid

        def rank():
            if self.major > 4:
                # Version 5 tells no end of a rank whose output is open. What
                # ranks left is ended when all are gone.
                here = child_of(self.h1, "prterun")
                self.h1.run(["kill", "-KILL", here])
            return self.h2, child_of(self.h2, name)

        self.expect_no_children(rank, signal.SIGKILL, 137)


class TcpRunTest(RunCases, harness.ProgramTest):
    """On hosts without MPI."""

    comm = "auto"
    ports = ("--port-range", "20000-20020")
    rank = "CHOIR_RANK"

    def setUp(self):
        super().setUp()
        for host in self.lab.hosts:
            for name in ("mpirun", "orted", "prted"):
                path = shutil.which(name)
                if path:
                    host.call("mount", "--bind", "/dev/null", path)

    def test_killed_guard_here(self):
        self.expect_lost(
            lambda: (self.h1, self.find(self.h1, "choir-guard", AGENT)),
            "choirrun's guard on host h1 was killed",
            status=1,
        )

    def test_children_of_a_killed_rank(self):
        def rank():
            guard = self.find(self.h2, "choir-guard", AGENT)
            (pid,) = [
                row[0]
                for row in self.rows(self.h2)
                if row[1] == guard and "setsid" in row[3]
            ]
            return self.h2, pid

        self.expect_no_children(rank, signal.SIGKILL, 137)


if __name__ == "__main__":
    harness.main()
