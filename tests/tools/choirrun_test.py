# SPDX-License-Identifier: Apache-2.0
"""tools/choirrun where one host is enough: its command line, its hostfiles,
and what it makes of Open MPI's words. Between hosts: tests/netlab."""

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

FOLDER = os.path.abspath("tools/choirrun")
SCRIPT = os.path.join(FOLDER, "choirrun.py")
sys.path.insert(0, FOLDER)

import host_agent  # noqa: E402
import host_facts  # noqa: E402
import host_list  # noqa: E402
import host_session  # noqa: E402
import mpi_run  # noqa: E402
import mpi_versions  # noqa: E402
import process_guard  # noqa: E402
import run_processes  # noqa: E402
import run_base  # noqa: E402


class HostsTest(unittest.TestCase):
    def entries(self, text):
        return [(h.user, h.name, h.slots) for h in host_list.parse_hosts(text)]

    def test_syntax(self):
        self.assertEqual(
            self.entries("localhost:1,me@10.0.0.5:3,node-2.lan,[FD77:0::2]:2"),
            [
                ("", "localhost", 1),
                ("me", "10.0.0.5", 3),
                ("", "node-2.lan", 1),
                ("", "fd77::2", 2),
            ],
        )
        self.assertEqual(self.entries("me@[fd77::2]"), [("me", "fd77::2", 1)])
        # What ssh and mpirun split at colons.
        self.assertEqual(host_list.parse_hosts("[fd77::2]")[0].alias, "fd77--2")

    def test_mistakes(self):
        form = "is not of the form [user@]host[:slots], IPv6 addresses in "
        for text, sentence in (
            ("", "-H: '' " + form + "brackets"),
            ("a,,b", "-H: '' " + form),
            ("a:x", "-H: 'a:x' " + form),
            ("a:1:2", "-H: 'a:1:2' " + form),
            ("fd77::2", "did you mean [fd77::2]:1?"),
            ("[fd77::2::3]", "-H: '[fd77::2::3]': "),
            ("a:0", "-H: 'a:0' has no slots"),
            ("a,b,me@a:2", "-H: host a is named twice; give it once, with"),
        ):
            with self.assertRaises(host_list.UsageError) as caught:
                host_list.parse_hosts(text)
            self.assertIn(sentence, str(caught.exception))

    def hostfile(self, text):
        with tempfile.NamedTemporaryFile("w", suffix="hosts") as file:
            file.write(text)
            file.flush()
            try:
                return host_list.parse_hostfile(file.name)
            except host_list.UsageError as error:
                return str(error).replace(file.name, "FILE")

    def test_hostfile(self):
        hosts = self.hostfile(
            "# all of them\n\nlocalhost slots=2\n  me@b   slots = 1  # new\n"
            "[fd77::3]:4\nc\n"
        )
        self.assertEqual(
            [(h.user, h.name, h.slots) for h in hosts],
            [
                ("", "localhost", 2),
                ("me", "b", 1),
                ("", "fd77::3", 4),
                ("", "c", 1),
            ],
        )
        self.assertEqual(
            self.hostfile("a\n\nb slot=2\n"),
            "FILE line 3: 'b slot=2' is not of the form: host slots=n",
        )
        self.assertEqual(
            self.hostfile("a slots=0\n"),
            "FILE line 1: 'a slots=0' has no slots",
        )
        self.assertEqual(
            self.hostfile("# none\n"), "--hostfile: FILE names no host"
        )

    def test_ranks_fill_hosts_in_order(self):
        hosts = host_list.parse_hosts("a:2,b:3,c:1")
        placed = host_list.place_ranks(hosts, 4)
        self.assertEqual(
            [(h.name, h.ranks) for h in placed],
            [("a", [0, 1]), ("b", [2, 3])],
        )
        with self.assertRaises(host_list.UsageError) as caught:
            host_list.place_ranks(hosts, 7)
        self.assertEqual(
            str(caught.exception),
            "-np 7 needs as many slots, but there are 6: a:2, b:3, c:1",
        )


class CommandLineTest(unittest.TestCase):
    def run_script(self, *arguments):
        done = subprocess.run(
            [sys.executable, SCRIPT, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.returncode, done.stdout, done.stderr

    def test_mistakes(self):
        for arguments, sentence in (
            ([], "-np is missing: how many ranks"),
            (["-np", "x", "true"], "invalid int value: 'x'"),
            (["-np", "0", "true"], "-np is 0; it must be above 0"),
            (["-np", "2"], "there is no program to run"),
            (["-np", "2", "-H", "a", "true"], "-np 2 needs as many slots"),
            (["--nosuch", "true"], "unrecognized arguments: --nosuch"),
            (["-np", "1", "-H", "a", "--hostfile", "b", "true"], "not both"),
            (["-np", "1", "--hostfile", "/none", "true"], "No such file"),
            (["-np", "1", "-p", "0", "true"], "-p 0 is no port"),
            (["-np", "1", "-i", "/none", "true"], "there is no file /none"),
            (["-np", "1", "--port-range", "9", "true"], "FIRST-LAST"),
            (["-np", "1", "--port-range", "5-1", "true"], "FIRST-LAST"),
            (["-np", "1", "--comm", "udp", "true"], "invalid choice: 'udp'"),
            (
                ["--comm", "mpi", "--port-range", "1-5"] + ["-np", "1", "true"],
                "--port-range: 1-5 are too few",
            ),
        ):
            status, out, err = self.run_script(*arguments)
            self.assertEqual((status, out), (2, ""), err)
            self.assertIn(sentence, err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_help(self):
        status, out, _ = self.run_script("--help")
        self.assertEqual(status, 0)
        for name in ("--hostfile", "--network-interfaces", "--start-timeout"):
            self.assertIn(name, out)

    def test_mpirun_that_hangs(self):
        # As version 4 does when a rank died in MPI_Init.
        real = shutil.which("mpirun")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mpirun")
            with open(path, "w") as file:
                file.write(
                    '#!/bin/sh\n[ "$1" != --version ] || exec %s --version\n'
                    "OMPI_COMM_WORLD_RANK=0 sh -c 'sleep 2; echo over'\n"
                    "trap '' TERM\nwhile :; do sleep 1000; done\n" % real
                )
            os.chmod(path, 0o755)
            before = os.environ["PATH"]
            os.environ["PATH"] = folder + ":" + before
            try:
                status, out, err = self.run_script(
                    "--comm", "mpi", "-np", "1", "true"
                )
            finally:
                os.environ["PATH"] = before
        self.assertEqual((status, out), (1, "over\n"), err)
        self.assertEqual(
            err,
            "choirrun: mpirun hung after the end of all ranks; all ranks were "
            "ended\n",
        )

    def test_what_ranks_are_told(self):
        command = ("sh", "-c", 'echo "$CHOIR_COMM|$CHOIR_PORTS|$CHOIR_RANK"')
        for flags, told in (
            ((), "||0"),
            (("--comm", "auto"), "||0"),
            (("--comm", "tcp"), "tcp||0"),
            (("--port-range", "20000-30000"), "|20000-30000|0"),
        ):
            status, out, err = self.run_script(*flags, "-np", "1", *command)
            self.assertEqual((status, out), (0, told + "\n"), err)

    def test_missing_program(self):
        status, _, err = self.run_script("-np", "1", "./no_such_program")
        self.assertEqual(status, 1)
        self.assertIn("this host: there is no program ./no_such_program", err)


class TalkTest(unittest.TestCase):
    """What comes from another host is not believed to be what it should be."""

    def test_an_agent_that_says_something_else(self):
        for text in ("{broken", '"a word"', "[1]", "\\xff"):
            script = (
                "import sys; sys.stdin.buffer.read(%d)\n"
                f"mark = {host_agent.MARK!r}\n"
                'print(mark + \'{"event": "handshake"}\', flush=True)\n'
                f"sys.stdout.buffer.write(mark.encode() + b'{text}\\n')\n"
                "sys.stdout.flush()\n"
                "sys.stdin.buffer.read()\n"
            )
            with mock.patch.object(host_session, "_BOOTSTRAP", script):
                session = host_session.Session(None, None, 20)
            self.addCleanup(session.close)
            with self.subTest(text):
                with self.assertRaisesRegex(
                    host_session.HostError, "no answer of an agent's"
                ):
                    session.request("sources", 20, peers=[])

    def test_an_agent_that_cannot(self):
        session = host_session.Session(None, None, 20)
        self.addCleanup(session.close)
        with self.assertRaisesRegex(
            host_session.HostError,
            "this host: 'folders' failed there: TypeError: ",
        ):
            session.request("folders", 20, paths=None)


class LibrariesTest(unittest.TestCase):
    """Which files of Choir the preflight compares."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        for name in ("bin", "lib", "other"):
            os.mkdir(self.path(name))
        os.symlink(self.path("lib"), self.path("link"))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def found(self, *files, linked=None, named=""):
        """With these files there."""
        for file in files:
            with open(self.path(file), "w"):
                pass
        libraries = {"libc.so.6": "/lib/libc.so.6"}
        if linked:
            libraries["libchoir.so"] = self.path(linked)
        environment = {"CHOIR_MPI_LIBRARY": named} if named else {}
        return {
            name: os.path.relpath(os.path.realpath(file), self.folder)
            for name, file in host_facts.choir_libraries(
                self.path("bin/program"), libraries, environment
            ).items()
        }

    def test_places(self):
        plugin = "libchoir_mpi.so"
        self.assertEqual(self.found(), {})
        # Of a program that holds the library: PREFIX/lib, then beside it.
        self.assertEqual(self.found("lib/" + plugin), {plugin: "lib/" + plugin})
        self.assertEqual(self.found("bin/" + plugin), {plugin: "bin/" + plugin})
        # Of one that is linked with it: beside the library, behind links, and
        # not beside the program.
        self.assertEqual(
            self.found(linked="link/libchoir.so"),
            {"libchoir.so": "lib/libchoir.so", plugin: "lib/" + plugin},
        )
        self.assertEqual(
            self.found(linked="other/libchoir.so"),
            {"libchoir.so": "other/libchoir.so", plugin: "lib/" + plugin},
        )
        # The one that is named, or none.
        other = self.path("other", plugin)
        self.assertEqual(self.found(named=other), {})
        self.assertEqual(
            self.found("other/" + plugin, named=other),
            {plugin: "other/" + plugin},
        )


class GuardTest(unittest.TestCase):
    """process_guard.Guard, in a process of its own that may fork: it has no threads
    yet, and children of its own alone."""

    def run_guard(self, script):
        """What `script` prints, which has a `guard`, a list of its `events` and
        start(COMMAND), which gives what the command printed."""
        head = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import process_guard
events = []
def start(*command):
    reader, writer = os.pipe()
    guard.start(0, command, {}, writer, writer)
    os.close(writer)
    with open(reader) as file:
        return file.read()
"""
        done = subprocess.run(
            [sys.executable, "-c", head + script, FOLDER],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_long_command(self):
        # Longer than a socket's buffer, which a packet has to fit into.
        said = self.run_guard(
            "guard = process_guard.Guard()\n"
            "guard.listen(events.append)\n"
            "words = [str(i) * 1000 for i in range(100, 500)]\n"
            "print(start('sh', '-c', 'echo $# ${400}', 'sh', *words))\n"
            "print(start('echo', 'next'))\n"
        )
        self.assertEqual(said, "400 %s\n\nnext\n\n" % ("499" * 1000))

    def test_what_a_command_inherits(self):
        said = self.run_guard(
            "guard = process_guard.Guard()\n"
            "guard.listen(events.append)\n"
            "start('true')\n"
            "print(start('sh', '-c', 'readlink /proc/$$/fd/*'))\n"
        )
        # Its output alone, as stdout and stderr.
        pipes = [line for line in said.split() if line.startswith("pipe:")]
        sockets = [line for line in said.split() if line.startswith("socket:")]
        self.assertEqual((len(pipes), len(set(pipes)), sockets), (2, 1, []))

    def test_a_guard_that_fails(self):
        said = self.run_guard(
            "def fail(self): raise OSError('no more processes')\n"
            "process_guard._Child.reap = fail\n"
            "guard = process_guard.Guard()\n"
            "guard.listen(events.append)\n"
            "guard.is_over.wait(60)\n"
            "while not events: pass\n"
            "print(os.WEXITSTATUS(events[0]['status']))\n"
        )
        self.assertEqual(said, "1\n")

    def test_orphans_alone(self):
        # The command waits for its orphan to close the pipe, and then goes on.
        said = self.run_guard(
            "guard = process_guard.Guard()\n"
            "guard.listen(events.append)\n"
            "guard.end_orphans()\n"
            "print(start('sh', '-c',"
            " 'x=$(env -i setsid sleep 1000 & echo left); echo $x'))\n"
        )
        self.assertEqual(said, "left\n\n")

    def test_settles_behind_all_that_was_started(self):
        # A command that nobody hears any more, as a daemon whose sockets the
        # kernel has closed before it has a status.
        said = self.run_guard(
            "guard = process_guard.Guard()\n"
            "guard.listen(events.append)\n"
            "def wait(kind, count):\n"
            "    while [e['event'] for e in events].count(kind) < count: pass\n"
            "start('sh', '-c', 'exec sleep 1000 >&- 2>&-')\n"
            "guard.settle(7)\n"
            "start('true')\n"
            "wait('ended', 1)\n"
            "os.kill(events[0]['pid'], signal.SIGKILL)\n"
            "wait('settled', 1)\n"
            "guard.settle(8)\n"
            "wait('settled', 2)\n"
            "print(*[(e['event'], e.get('id')) for e in events"
            " if e['event'] in ('ended', 'settled')])\n"
        )
        self.assertEqual(
            said,
            "('ended', None) ('ended', None) ('settled', 7) ('settled', 8)\n",
        )

    def test_the_shorter_time_to_end_holds(self):
        for times in ((3, 0), (0, 3)):
            child = process_guard._Child(None)
            for grace in times:
                child.end(grace)
            self.assertEqual(child.grace, 0)


class ProcessesTest(unittest.TestCase):
    def test_a_process_in_the_middle_of_an_exec(self):
        mark = "exec-%d" % os.getpid()
        for _ in range(40):
            shell = subprocess.Popen(
                ["sh", "-c", "sleep 1000 & echo $!; wait"],
                env=dict(os.environ, CHOIR_RUN=mark),
                stdout=subprocess.PIPE,
                text=True,
            )
            with shell:
                started = int(shell.stdout.readline())
                found = run_processes.of_run(mark)
                os.kill(started, signal.SIGKILL)
            self.assertEqual(found, {shell.pid: None, started: None})

    def test_what_a_rank_left_is_not_the_rank(self):
        mark = "mark-%d" % os.getpid()
        daemon = subprocess.Popen(
            ["sh", "-c", "OMPI_COMM_WORLD_RANK=3 sh -c "
             "'sleep 1000 & echo $$ $!; wait' & wait"],
            env=dict(os.environ, CHOIR_RUN=mark),
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        rank, left = map(int, daemon.stdout.readline().split())
        found = run_processes.of_run(mark)
        self.assertEqual(found, {daemon.pid: None, rank: 3, left: 3})
        self.assertEqual(run_processes.first_of_ranks(found, mark), {3: rank})
        # As found when the rank was still its daemon's fork.
        found[rank] = None
        self.assertEqual(run_processes.first_of_ranks(found, mark), {3: rank})
        # It is the last to be reaped.
        os.kill(daemon.pid, signal.SIGSTOP)
        os.kill(rank, signal.SIGKILL)
        while run_processes.state_of(rank):
            time.sleep(0.01)
        found = run_processes.of_run(mark)
        self.assertEqual(run_processes.first_of_ranks(found, mark), {3: None})
        os.kill(left, signal.SIGKILL)


class RunTest(unittest.TestCase):
    """mpi_run.MpiRun by itself: a guard that only notes what it is asked."""

    def setUp(self):
        result = types.SimpleNamespace(sessions=[])
        mpi = types.SimpleNamespace(daemon="orted")
        self.guard = mock.Mock()
        self.run = mpi_run.MpiRun(
            "", mpi, [], result, None, None, {}, self.guard
        )

    def test_a_guard_that_ends_before_mpirun(self):
        for status, sentence in (
            (0, "the guard of mpirun on this host failed"),
            (256, "the guard of mpirun on this host failed"),
            (9, "the guard of mpirun on this host was killed"),
        ):
            self.setUp()
            self.run.note_guard({"event": "over", "status": status})
            self.assertEqual(self.run.verdict.lost, (sentence, 0))
            self.assertEqual(self.run.status, 1)
        # After mpirun's end nothing is lost.
        self.setUp()
        self.run.status = 0
        self.run.note_guard({"event": "over", "status": 0})
        self.assertIsNone(self.run.verdict.lost)

    def test_a_loss_that_is_told_behind_a_good_end(self):
        session = mock.Mock(info={"host": "h2"})
        event = {"event": "guard over", "status": 9}

        def request(op, **_):
            self.assertEqual(op, "settle")
            self.run.events.put((session, event))

        session.request = request
        self.run.sessions = [session]
        self.run.status = 0
        self.run.options = types.SimpleNamespace(start_timeout=1)
        self.assertEqual(self.run.supervise(None), 0)
        self.assertEqual(
            self.run.verdict.lost,
            ("choirrun's guard on host h2 was killed", 0),
        )
        self.assertEqual(run_base.exit_status(self.run, 0), 1)

    def test_interrupts(self):
        self.run.interrupt(signal.SIGINT)
        self.run.interrupt(signal.SIGTERM)
        self.guard.signal.assert_not_called()
        self.run.handle_signals()
        self.assertEqual(self.run.ended_by, signal.SIGINT)
        self.guard.signal.assert_called_once_with(signal.SIGTERM)
        # The second one does not wait.
        self.guard.end.assert_called_once_with()
        self.run.handle_signals()
        self.guard.end.assert_called_once_with()


class InterruptsTest(unittest.TestCase):
    def test_main_thread_that_waits(self):
        script = """
import ctypes, os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
import choirrun
def act(number):
    print(number, flush=True)
    os._exit(0)
choirrun.Interrupts(act)
def send():
    for number in (signal.SIGHUP, signal.SIGTERM):
        os.kill(os.getpid(), number)
threading.Thread(target=send).start()
# No handler of Python's runs in here, and it does not end.
mutex = ctypes.create_string_buffer(64)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
        done = subprocess.run(
            [sys.executable, "-c", script, FOLDER],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((done.stdout, done.stderr), ("15\n", ""))


class VerdictTest(unittest.TestCase):
    """Open MPI's paragraphs, of 4.1 where not said otherwise, and the sentences
    of ranks."""

    def setUp(self):
        self.hosts = host_list.place_ranks(
            host_list.parse_hosts("localhost,h2"), 2
        )
        self.verdict = mpi_run.Verdict()

    def cause(self, status=1):
        return self.verdict.first_cause(self.hosts, status)

    def test_signal(self):
        self.verdict.read_line(
            "mnist_dist: rank 0 (host h1, pid 20) was ended by mpiexec "
            "(SIGTERM) in all_reduce 'gradient bucket 0' (operation 23), "
            "waiting for rank 1 (host h2, pid 120)\n"
        )
        self.verdict.read_report(
            "-----\nmpirun noticed that process rank 1 with PID 0 on node h2 "
            "exited on signal 11 (Segmentation fault).\n-----\n"
        )
        self.assertEqual(
            self.cause(),
            "rank 1 (host h2) was killed by signal 11 (Segmentation fault); "
            "rank 0 was in all_reduce 'gradient bucket 0' (operation 23)",
        )

    def test_status(self):
        self.assertEqual(self.cause(), "")
        self.verdict.read_report(
            "mpirun detected that one or more processes exited with non-zero "
            "status, thus causing\nthe job to be terminated. The first process "
            "to do so was:\n\n  Process name: [[34824,1],0]\n  Exit code:    3\n"
        )
        self.assertEqual(
            self.cause(), "rank 0 (host localhost) ended with exit status 3"
        )

    def test_signal_of_version_5(self):
        self.verdict.read_report(
            "-----\nprterun noticed that process rank 1 with PID 57 on node h2 "
            "exited on\nsignal 9 (Killed).\n-----\n"
        )
        self.assertTrue(self.verdict.failed)
        self.assertEqual(
            self.cause(),
            "rank 1 (host h2) was killed by signal 9 (Killed), perhaps by the "
            "kernel for want of memory (dmesg tells)",
        )

    def test_status_of_version_5(self):
        self.verdict.read_report(
            "prterun detected that one or more processes exited with non-zero "
            "status,\nthus causing the job to be terminated. The first process "
            "to do so was:\n\n   Process name: [prterun-h1-38@1,0]\n"
            "   Exit code:    3\n"
        )
        self.assertTrue(self.verdict.failed)
        self.assertEqual(
            self.cause(), "rank 0 (host localhost) ended with exit status 3"
        )

    def test_status_of_a_signal(self):
        self.verdict.read_report(
            "  Process name: [[34824,1],1]\n  Exit code:    143\n"
        )
        self.assertEqual(
            self.cause(),
            "rank 1 (host h2) was killed by signal 15 (Terminated)",
        )

    def test_killed_rank_that_the_others_of_open_mpi_lost(self):
        sessions = [
            types.SimpleNamespace(info={"host": host}) for host in ("h1", "h2")
        ]
        self.verdict.pids = {0: (sessions[0], 66), 1: (sessions[1], 70)}
        self.verdict.seen_killed = 1, 9
        self.verdict.conclude()
        self.assertEqual(self.cause(), "")
        self.verdict.read_line(
            "[h1:00066] ../../ompi/mca/pml/ob1/pml_ob1_sendreq.c:190 FATAL\n"
        )
        self.verdict.conclude()
        self.assertEqual(
            self.cause(255),
            "rank 1 (host h2, pid 70) was killed by signal 9 (Killed), perhaps "
            "by the kernel for want of memory (dmesg tells); Open MPI ended "
            "rank 0, which could not send to it",
        )

    def test_status_of_what_was_not_waited_for(self):
        for script, status in (("exit 3", 3 << 8), ("kill -SEGV $$", 11)):
            process = subprocess.Popen(["sh", "-c", script])
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            found = process_guard.wait_status(process.pid)
            process.wait()
            # A shell may dump core.
            self.assertEqual(found & ~0x80, status)
            self.assertIsNone(process_guard.wait_status(process.pid))


class VersionsTest(unittest.TestCase):
    def test_which(self):
        for said, major in (
            ("mpirun (Open MPI) 4.1.4", 4),
            ("mpirun (Open MPI) 5.0.7", 5),
            ("mpirun (Open MPI) 3.1.6", None),
            ("HYDRA build details:", None),
            ("", None),
        ):
            found = mpi_versions.find_version(said)
            self.assertEqual(found and found.major, major, said)

    def interfaces(self, version, *networks):
        found = version.interfaces(networks, ["eth0", "wlan0"], ["lo", "veth"])
        return [" ".join(map(str, setting)) for setting in found]

    def test_interfaces(self):
        four, five = mpi_versions.VERSIONS
        self.assertEqual(
            self.interfaces(four, "10.7.0.0/24", "10.8.0.0/16"),
            [
                "--mca btl_tcp_if_include 10.7.0.0/24,10.8.0.0/16",
                "--mca oob_tcp_if_include 10.7.0.0/24,10.8.0.0/16",
            ],
        )
        self.assertEqual(
            self.interfaces(four, "fd77::/64"),
            [
                "--mca btl_tcp_if_exclude lo,veth",
                "--mca oob_tcp_if_exclude lo,veth",
            ],
        )
        self.assertEqual(
            self.interfaces(five, "10.7.0.0/24", "10.8.0.0/16"),
            [
                "--mca btl_tcp_if_include 10.7.0.0/24,10.8.0.0/16",
                "--mca btl_tcp_disable_family 6",
                "--prtemca prte_if_include eth0,wlan0",
            ],
        )
        self.assertEqual(
            self.interfaces(five, "fd77::/64"),
            [
                "--mca btl_tcp_if_exclude lo,veth",
                "--mca btl_tcp_disable_family 4",
                "--prtemca prte_if_include eth0,wlan0",
            ],
        )

    def passed_on(self, version, folder, data, is_verbose=False):
        run = types.SimpleNamespace(
            mpi=version,
            verdict=mpi_run.Verdict(),
            options=types.SimpleNamespace(
                output_filename=folder, verbose=is_verbose
            ),
            show_report=lambda text: "shown" in text,
        )
        target = io.BytesIO()
        output = mpi_run.Output(io.BytesIO(data), target, run)
        output.run()
        return target.getvalue()

    def test_lines_of_ranks(self):
        four, five = mpi_versions.VERSIONS
        for version, data in (
            (four, b"[1,2]<stdout>: out\n[1,2]<stderr>:err\n"),
            (five, b"[1,2]<stdout>:  out\n[1,2]<stderr>: err\n"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                said = self.passed_on(version, folder, data)
                self.assertEqual(said, b" out\nerr\n")
                with open(os.path.join(folder, "rank.2", "stdout")) as file:
                    self.assertEqual(file.read(), " out\n")

    def test_reports_and_other_lines_of_open_mpi(self):
        four, five = mpi_versions.VERSIONS
        rule = b"-" * 74 + b"\n"
        data = (
            b"one\n"
            + b"[h1:16] plm:ssh: Warning: setpgid(19,19) failed in parent\n"
            + rule
            + b"hidden\n"
            + rule
            + b"\0two\n"
            + rule
            + b"shown\n"
            + rule
            + b"\0"
        )
        for is_verbose in (False, True):
            said = self.passed_on(five, None, data, is_verbose)
            self.assertNotIn(b"\0", said)
            self.assertNotIn(b"hidden", said)
            self.assertEqual(b"setpgid" in said, is_verbose)
            self.assertTrue(said.startswith(b"one\n"))
            self.assertTrue(said.endswith(b"two\n" + rule + b"shown\n" + rule))
        # A program's own bytes stay.
        self.assertEqual(self.passed_on(four, None, b"a\0\0b\n"), b"a\0\0b\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
