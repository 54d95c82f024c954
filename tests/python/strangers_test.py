# SPDX-License-Identifier: Apache-2.0
"""Another user of the machine who watches a run start and wants to be in it.

All that he sees is /proc/net/unix. Whatever looks like an id there he takes for
one and joins by it as each rank: with the library itself, but for its check of
users (any_user.c). As rank 0 he hands an object to the others. And he waits at
the names that he can make of those he sees. All this in a network namespace, to
which such names belong: he would disturb other tests.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import choir
from choir import _comm
from choir._comm import Communicator, NcclIdHolder
from choir._calls import lib

OTHER_USER = 31337
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    "CHOIR_THREADS": "1",
}
SCRIPT = """\
import os, sys, time
from choir import dist
if os.environ["CHOIR_RANK"] == "0":
    time.sleep(float(sys.argv[1]))
dist.init(deadline=30)
mine = {"from": dist.rank()}
got = dist.broadcast_object(mine if dist.rank() == 0 else None)
assert got == {"from": 0}, got
assert dist.allgather_object(mine) == [{"from": 0}, {"from": 1}]
os.write(1, b"rank %d is well\\n" % dist.rank())
dist.shutdown()
"""


# ---- The attacker ----


class Evil:
    """Loading it makes a file, which belongs to whoever loads it."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (tempfile.mkstemp, (None, "loaded", self.folder))


def sockets():
    """(name, inode) of abstract sockets, as every user sees them."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if len(words) > 7 and words[7].startswith("@"):
                if "choir" in words[7]:
                    yield words[7][1:], words[6]


def owned_by(processes):
    """The inodes of these processes' sockets."""
    found = set()
    for process in processes:
        folder = f"/proc/{process}/fd"
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder):
                link = os.readlink(os.path.join(folder, entry))
                found.update(re.findall(r"socket:\[(\d+)\]", link))
    return found


def join_as_rank_0(nccl_id, folder):
    """In a process of its own."""
    process = os.fork()
    if process:
        return process
    with contextlib.suppress(BaseException):
        comm = Communicator(0, 2, NcclIdHolder(nccl_id), deadline=2)
        comm.share_object(Evil(folder), 0, "object")
        comm.all_gather_v(_comm.pickled(Evil(folder)), "object")
    os._exit(0)


def neighbours(name):
    """Names that differ in one of the last signs."""
    for at in range(len(name) - 3, len(name)):
        for other in "0123456789abcdef":
            yield name[:at] + other + name[at + 1 :]


def hold(name, held):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held.append(listener)
    with contextlib.suppress(OSError):
        listener.bind(b"\0" + name.encode())
        listener.listen(4)
    # Names of earlier runs are of no use any more.
    if len(held) > 400:
        held.pop(0).close()


def attack(how, folder):
    """Never ends by itself."""
    seen, children, held = set(), set(), []
    print("watching", flush=True)
    while True:
        with contextlib.suppress(ChildProcessError):
            while done := os.waitpid(-1, os.WNOHANG)[0]:
                children.discard(done)
        for name, inode in set(sockets()):
            if name in seen or inode in owned_by({*children, os.getpid()}):
                continue
            seen.add(name)
            for nccl_id in re.findall("[0-9a-f]{32}", name):
                if how == "join":
                    children.add(join_as_rank_0(nccl_id, folder))
            for other in neighbours(name):
                if how == "hold":
                    hold(other, held)
        time.sleep(0.002)


# ---- The runs ----


CLONE_NEWNET = 0x40000000


class Strangers(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest(
                "only root can start a process of another user here"
            )
        # With all processes that this one starts from now on.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise unittest.SkipTest(
                "needs a system that lets root make a network namespace: "
                + os.strerror(ctypes.get_errno())
            )

    def start_attacker(self, how):
        # That user may not read where this test lies.
        self.folder = tempfile.mkdtemp(prefix="choir-strangers-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o777)
        self.script = os.path.join(self.folder, "script.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        theirs = os.path.join(self.folder, "theirs")
        shutil.copytree(
            os.path.dirname(choir.__file__), os.path.join(theirs, "choir")
        )
        for path in (lib.path, __file__, "tests/python/any_user.so"):
            shutil.copy(path, theirs)
        self.attacker = subprocess.Popen(
            [sys.executable, os.path.join(theirs, os.path.basename(__file__))]
            + ["--attack", how, self.folder],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": theirs,
                "CHOIR_LIBRARY": os.path.join(theirs, "libchoir.so"),
                "LD_PRELOAD": os.path.join(theirs, "any_user.so"),
            },
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            user=OTHER_USER,
            group=OTHER_USER,
            extra_groups=[],
            start_new_session=True,
        )
        self.addCleanup(self.end_attacker)
        self.assertEqual(self.attacker.stdout.readline(), b"watching\n")

    def end_attacker(self):
        os.killpg(self.attacker.pid, signal.SIGKILL)
        self.attacker.wait()
        self.attacker.stdout.close()

    def run_workers(self, seconds):
        done = subprocess.run(
            [sys.executable, "-m", "choir", "-np", "2"]
            + [self.script, str(seconds)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = (done.returncode, done.stderr, sorted(done.stdout.split("\n")))
        well = ["", "rank 0 is well", "rank 1 is well"]
        self.assertEqual(self.loaded(), [], "root loaded another's object")
        self.assertEqual(said, (0, "", well))

    def loaded(self):
        paths = [os.path.join(self.folder, f) for f in os.listdir(self.folder)]
        return [
            path
            for path in paths
            if "/loaded" in path and os.stat(path).st_uid == 0
        ]

    def check(self, how, starts, seconds):
        self.start_attacker(how)
        for _ in range(starts):
            self.run_workers(seconds)
        self.assertIsNone(self.attacker.poll(), "the attacker ended")

    def test_one_who_joins_before_a_late_rank_0(self):
        self.check("join", 3, 1.0)

    def test_one_who_joins_ordinary_starts(self):
        self.check("join", 10, 0)

    def test_one_who_holds_names(self):
        self.check("hold", 10, 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        attack(*sys.argv[2:])
    unittest.main()
