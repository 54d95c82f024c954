# SPDX-License-Identifier: Apache-2.0
"""Ranks under mpiexec that are killed, stopped or late: what those say that live,
and that all of them end."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LIMIT = 100  # seconds, a guard against hangs
PEER = r"rank %d \(host \S+, pid %d\)"

SCRIPT = """\
import atexit, logging, os, signal, sys, time
import numpy as np
what, folder, deadline, rank = sys.argv[1:4] + [os.environ["OMPI_COMM_WORLD_RANK"]]
if what == "stops at the start" and rank == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
from choir import dist
atexit.register(lambda: print("exit functions of rank", rank, "ran", flush=True))
# An interpreter of a busy machine may be slow to start.
is_late = what.startswith(("sleeps", "stops after"))
dist.init(deadline=20 if is_late else float(deadline))
total = dist.allreduce(np.float32(dist.rank() + 1), op=dist.Sum)
open(os.path.join(folder, f"{rank}.{os.getpid()}"), "w").close()
if is_late:
    dist.shutdown()
    dist.init(deadline=float(deadline))
while what == "goes on":
    dist.barrier("going on")
if what == "handles":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    while True:
        time.sleep(0.05)
while what == "takes the descriptor":
    signal.set_wakeup_fd(-1)
    time.sleep(0.05)
if what == "sleeps before shutdown" and rank == "1":
    time.sleep(1000)
if what != "shuts down at exit":
    dist.shutdown()
if what == "stops after shutdown" and rank == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if what == "sleeps after shutdown" and rank == "1":
    time.sleep(1000)
"""


class MpiEnds(unittest.TestCase):
    def setUp(self):
        # Short: paths of sockets have 108 characters at most.
        self.folder = tempfile.mkdtemp(prefix="choir-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.notes = os.path.join(self.folder, "notes")
        os.mkdir(self.notes)
        self.script = os.path.join(self.folder, "script.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)

    def start(self, what, deadline=20, comm="mpi"):
        # Sandboxes share /dev/shm but not the process ids by which Open MPI
        # names its memory there.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "CHOIR_THREADS": "1",
            "CHOIR_COMM": comm,
            "TMPDIR": self.folder,
            "OMPI_MCA_btl_vader_backing_directory": self.folder,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        process = subprocess.Popen(
            ["mpiexec", "--oversubscribe", "-n", "2", sys.executable]
            + [self.script, what, self.notes, str(deadline)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(self.kill, process)
        return process

    def kill(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()

    def finish(self, process):
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def ranks(self):
        """{rank: pid}, when both have joined."""
        end = time.monotonic() + LIMIT
        while len(os.listdir(self.notes)) < 2:
            self.assertLess(time.monotonic(), end, "no ranks")
            time.sleep(0.02)
        pids = [name.split(".") for name in os.listdir(self.notes)]
        return {int(rank): int(pid) for rank, pid in pids}

    def test_all_well(self):
        for what in ("shuts down", "shuts down at exit"):
            status, out, err = self.finish(self.start(what))
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(out.count(" ran\n"), 2, out)

    def test_killed_rank(self):
        process = self.start("goes on")
        pids = self.ranks()
        os.kill(pids[1], signal.SIGKILL)
        status, _, err = self.finish(process)
        self.assertEqual(status, 128 + signal.SIGKILL, err)
        # By the signal of mpiexec, unless MPI tells of the death before.
        self.assertRegex(
            err,
            PEER % (0, pids[0])
            + r" was ended by signal 15 \(Terminated\) in barrier 'going on' "
            r"\(operation \d+\), waiting for "
            + PEER % (1, pids[1])
            + "|CommError: .*"
            + PEER % (1, pids[1]),
        )

    def test_own_handler_stays(self):
        process = self.start("handles")
        os.kill(self.ranks()[1], signal.SIGTERM)
        status, _, err = self.finish(process)
        self.assertEqual(status, 7, err)
        self.assertNotIn("choir: ", err)

    def test_own_wakeup_descriptor(self):
        """As asyncio's: the thread that waits for signals hears of none."""
        process = self.start("takes the descriptor")
        pids = self.ranks()
        os.kill(pids[1], signal.SIGTERM)
        status, _, err = self.finish(process)
        self.assertEqual(status, 128 + signal.SIGTERM, err)
        self.assertRegex(
            err,
            PEER % (1, pids[1]) + r" was ended by signal 15 \(Terminated\)\n",
        )

    def test_rank_that_is_late_at_the_end(self):
        for what, state, where in (
            (
                "sleeps after shutdown",
                "is alive but has not come",
                "the end of the program",
            ),
            (
                "stops after shutdown",
                r"has given no sign of life for \d+\.\d s \(stopped, .+\)",
                "the end of the program",
            ),
        ):
            for comm in ("mpi", "auto"):
                with self.subTest(what=what, comm=comm):
                    for name in os.listdir(self.notes):
                        os.remove(os.path.join(self.notes, name))
                    process = self.start(what, 2, comm)
                    pids = self.ranks()
                    status, out, err = self.finish(process)
                    self.assertEqual(status, 1, err)
                    self.assertRegex(
                        err,
                        f"(?m)^choir: {where}: "
                        + PEER % (0, pids[0])
                        + r" waited \d+\.\d s for "
                        + PEER % (1, pids[1])
                        + f", which {state}$",
                    )
                    self.assertIn("exit functions of rank 0 ran", out)

    def test_rank_that_is_stopped_at_the_start(self):
        status, _, err = self.finish(self.start("stops at the start", 2))
        self.assertEqual(status, 1)
        self.assertRegex(
            err,
            r"choir._calls.CommError: comm mpi: MPI_Init did not return within 2.0 "
            r"s: .*; rank 1 \(pid \d+\) is stopped\n",
        )

    def test_rank_that_does_not_come_to_shutdown(self):
        status, _, err = self.finish(self.start("sleeps before shutdown", 2))
        self.assertEqual(status, 1)
        self.assertTrue(
            re.search(r"CommError: finalize \(operation \d+\): rank 0 .*", err),
            err,
        )


if __name__ == "__main__":
    unittest.main()
