# SPDX-License-Identifier: Apache-2.0
"""python -m choir: what it prints, what it starts, how it ends."""

import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import numpy as np

import choir
from choir import _checkpoint, _raw, device, opt, tensor
from choir._calls import lib

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    "CHOIR_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}

SCRIPT = """\
import os, sys, threading, time
import numpy as np
from choir import dist
what, folder = sys.argv[1:3]
dist.init(deadline=20)
total = dist.allreduce(np.float32(dist.rank() + 1), op=dist.Sum)
text = f"{dist.rank()} of {dist.size()}: {total:g} {sys.argv[3:]}"
open(os.path.join(folder, str(os.getpid())), "w").write(text)
if dist.rank() == 1:
    if what == "kill":
        time.sleep(0.5)  # the others wait for it by then
        os.kill(os.getpid(), 9)
    if what == "raise":
        raise ValueError("my own trouble")
    if what == "exit":
        sys.exit(7)
    if what == "message":
        sys.exit("no more")
if what == "caught":
    for status in (3, "words", None, (1, 2)):
        try:
            sys.exit(status)
        except SystemExit as error:
            assert error.code == status, error.code
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()
if what == "usage":
    sys.exit(2)
if what == "late":
    dist.shutdown()
    dist.init(deadline=1)
    if dist.rank() == 1:
        time.sleep(1000)
while what == "wait":
    time.sleep(0.05)
if what != "late":
    dist.barrier("end")
"""


# A worker with loaders: one of multiprocessing, one in a session of its own, and a
# shell that stays when it is asked to end.
FAMILY = """\
import multiprocessing, os, subprocess, sys, time
from choir import dist
dist.init(deadline=20)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    context.Process(target=time.sleep, args=(1000,), daemon=True).start()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    shell = subprocess.Popen(
        ["sh", "-c", "trap '' TERM INT; echo up; while :; do sleep 1000; done"],
        stdout=subprocess.PIPE,
    )
    shell.stdout.readline()
    dist.barrier("all have theirs")
    note = os.path.join(sys.argv[1], f"rank.{dist.rank()}.{os.getpid()}")
    open(note, "w").close()
while True:
    time.sleep(0.05)
    dist.barrier("going on")
"""


def words(*arguments):
    return [sys.executable, "-m", "choir", *arguments]


class Main(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.notes = os.path.join(self.folder, "notes")
        os.mkdir(self.notes)
        self.script = os.path.join(self.folder, "script.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)

    def choir(self, *arguments):
        return subprocess.run(
            words(*arguments),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def workers(self, what, count=3):
        return self.choir(
            "-np", str(count), self.script, what, self.notes, "--own", "x y"
        )

    def noted(self):
        """What workers wrote, by their process."""
        found = {}
        for name in os.listdir(self.notes):
            with open(os.path.join(self.notes, name), encoding="utf-8") as file:
                found[int(name)] = file.read()
        return found

    def nobody_is_left(self):
        for pid in self.noted():
            self.assertFalse(os.path.exists(f"/proc/{pid}/stat"), pid)

    def test_check_build(self):
        done = self.choir("--check-build")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = dict(
            line.strip().split(": ", 1)
            for line in done.stdout.splitlines()
            if ": " in line
        )
        self.assertIn(f"choir {choir.__version__}\n", done.stdout)
        self.assertRegex(lines["library"], r"^/.*libchoir\.so \(")
        self.assertEqual(lines["its libraries"], "of this machine")
        self.assertTrue(lines["device cpu"].startswith("yes"), lines)
        # GPUs one by one, or the reason in one sentence.
        gpus = device.get_gpu_ids()
        state = r"yes \(driver for CUDA \d+\.\d" if gpus else r"no \(.*; needs "
        self.assertRegex(lines["device cuda"], "^" + state)
        for i in gpus:
            self.assertEqual(lines[f"GPU {i}"], device.device_query(i))
        self.assertRegex(lines["GPU kernels"], r"^(yes$|no \(.* --config=cuda)")
        self.assertEqual(lines["communicator shm"], "yes")
        self.assertRegex(
            lines["communicator mpi"], r"^(yes|no) \(.*libchoir_mpi"
        )
        self.assertRegex(
            lines["communicator nccl"],
            r"^(yes \(2\.\d+\.\d+|no \(.*needs NCCL)",
        )
        self.assertEqual(lines["strategies"], ", ".join(opt.strategies()))
        self.assertIn("sparseTopK", lines["strategies"])
        self.assertIn("adadelta", lines["optimizers"])
        self.assertEqual(int(lines["ops"]), len(_raw.OPS))

    def test_mpi_that_is_not_there(self):
        environment = {**ENVIRONMENT, "CHOIR_MPI_LIBRARY": "/nowhere/mpi.so"}
        done = subprocess.run(
            words("--check-build"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
        )
        self.assertIn("mpi: no (/nowhere/mpi.so is not there)", done.stdout)

    def test_open_mpi_that_is_not_there(self):
        beside = os.path.join(os.path.dirname(lib.path), "libchoir_mpi.so")
        with open(beside, "rb") as file:
            data = file.read()
        self.assertIn(b"libmpi.so.", data)
        plugin = os.path.join(self.folder, "libchoir_mpi.so")
        with open(plugin, "wb") as file:
            file.write(data.replace(b"libmpi.so.", b"libqpi.so."))
        environment = {
            **ENVIRONMENT,
            "CHOIR_MPI_LIBRARY": plugin,
            "CHOIR_COMM": "mpi",
        }
        for command, before, after in [
            (["-m", "choir", "--check-build"], "mpi: no (", ": lib"),
            (["-c", "from choir import dist; dist.init()"], "mpi: ", " (lib"),
        ]:
            done = subprocess.run(
                [sys.executable, *command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=50,
            )
            self.assertRegex(
                done.stdout + done.stderr,
                re.escape(f"{before}{plugin} does not load{after}")
                + r"qpi\.so\.\d+: cannot open .*; it needs Open MPI 4 or 5",
            )

    def test_workers(self):
        for count in (1, 3):
            done = self.workers("run", count)
            self.assertEqual(done.returncode, 0, done.stderr)
        total = 3 * 4 // 2
        want = [f"{r} of 3: {total} ['--own', 'x y']" for r in range(3)]
        want.append("0 of 1: 1 ['--own', 'x y']")
        self.assertEqual(sorted(self.noted().values()), sorted(want))

    def test_killed_worker(self):
        done = self.workers("kill")
        self.assertEqual(done.returncode, 128 + signal.SIGKILL, done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        self.assertRegex(
            last,
            r"^choir: rank 1 \(host .*, pid \d+\) was killed by signal 9 "
            r"\(Killed\); rank 0 .* waiting for it in barrier 'end'",
        )
        self.nobody_is_left()

    def test_worker_that_raises(self):
        done = self.workers("raise")
        self.assertEqual(done.returncode, 1)
        last = done.stderr.strip().splitlines()[-1]
        self.assertRegex(
            last,
            r"^choir: rank 1 \(.*\) failed: ValueError: my own trouble;",
        )
        self.nobody_is_left()

    def test_worker_that_exits(self):
        for what, said in (
            ("exit", "sys.exit(7)"),
            ("message", "sys.exit('no more')"),
        ):
            done = self.workers(what)
            self.assertEqual(done.returncode, 1, done.stderr)
            last = done.stderr.strip().splitlines()[-1]
            self.assertRegex(
                last, rf"^choir: rank 1 \(.*\) failed: {re.escape(said)};"
            )
            self.nobody_is_left()

    def test_exits_that_are_caught_are_none(self):
        done = self.workers("caught")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_worker_that_does_not_end(self):
        # The others wait for it when they end, and fail at the deadline.
        done = self.workers("late")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(
            done.stderr,
            r"^choir: rank [02] \(.*\) failed: finalize \(operation \d+\): rank "
            r"[02] \(.*\) waited \d\.\d s for rank 1 \(.*\), which is alive but "
            r"has not come to this operation; .*\n$",
        )
        self.nobody_is_left()

    def test_status_of_wrong_usage_is_the_workers(self):
        self.assertEqual(self.workers("usage").returncode, 2)

    def test_signals_end_all(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            before = set(self.noted())
            with subprocess.Popen(
                words("-np", "3", self.script, "wait", self.notes),
                env=ENVIRONMENT,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                end = time.monotonic() + 40
                while len(set(self.noted()) - before) < 3:
                    self.assertLess(time.monotonic(), end, "no workers")
                    time.sleep(0.05)
                process.send_signal(number)
                said = process.communicate(timeout=40)[1]
            self.assertEqual(process.returncode, 128 + number, said)
            self.assertIn(f"interrupted by signal {int(number)}", said)
            self.nobody_is_left()

    def marked(self, mark):
        """Processes with the mark in their environment, which children have too."""
        found = []
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark.encode() in file.read():
                        found.append(int(name))
            except OSError:
                pass
        return found

    def test_children_of_workers_end_too(self):
        for who, number in (
            ("rank", signal.SIGKILL),
            ("rank", signal.SIGTERM),
            ("launcher", signal.SIGKILL),
            ("launcher", signal.SIGTERM),
        ):
            with self.subTest(who=who, number=number):
                self.end_with_children(who, number)

    def end_with_children(self, who, number):
        folder = tempfile.mkdtemp(dir=self.folder)
        script = os.path.join(folder, "family.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(FAMILY)
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            words("-np", "2", "--grace", "0.3", script, folder),
            env={**ENVIRONMENT, "CHOIR_TEST_MARK": mark},
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        end = time.monotonic() + 40
        pids = {}
        while len(pids) < 2:
            self.assertLess(time.monotonic(), end, "no workers")
            self.assertIsNone(process.poll())
            time.sleep(0.02)
            for name in os.listdir(folder):
                if name.startswith("rank."):
                    _, rank, pid = name.split(".")
                    pids[rank] = int(pid)
        # The launcher, its guard, and four of each worker at least.
        self.assertGreaterEqual(len(self.marked(mark)), 10)
        os.kill(pids["1"] if who == "rank" else process.pid, number)
        process.wait(40)
        launcher_is_gone = who == "launcher" and number == signal.SIGKILL
        self.assertEqual(
            process.returncode, -number if launcher_is_gone else 128 + number
        )
        end = time.monotonic() + (20 if launcher_is_gone else 0)
        while self.marked(mark) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.marked(mark), [])

    def test_module(self):
        done = self.choir("-np", "2", "-m", "platform")
        self.assertEqual(done.returncode, 0, done.stderr)
        # Their lines can end up on one.
        self.assertEqual(done.stdout.count(platform.platform()), 2, done.stdout)

    def test_sha256(self):
        arrays = {
            "b.W": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
            "a.b": np.float32([-0.0, 1e30]),
            "a.count": np.int32([5, -1]),
            "b.W/velocity": np.float32([9]),
        }
        file = os.path.join(self.folder, "weights")
        _checkpoint.save(
            file, {n: tensor.from_numpy(a) for n, a in arrays.items()}, {}
        )
        want = b"".join(arrays[n].tobytes() for n in ("a.b", "a.count", "b.W"))
        nothing = os.path.join(self.folder, "nothing")
        done = self.choir("sha256", nothing, file)
        self.assertEqual(
            done.stdout, f"{hashlib.sha256(want).hexdigest()}  {file}\n"
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"'{nothing}': No such file", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_wrong_usage(self):
        for arguments, text in [
            ([], "--check-build"),
            (["script.py"], "give -np"),
            (["-np", "2"], "needs the script"),
            (["-np", "2", "/nowhere.py"], "there is no script /nowhere.py"),
            (["-np", "0", self.script], "1 .. 1024"),
            (["-np", "x", self.script], "invalid int"),
        ]:
            done = self.choir(*arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stderr))
            self.assertTrue(
                re.search(re.escape(text), done.stderr), done.stderr
            )


if __name__ == "__main__":
    unittest.main()
