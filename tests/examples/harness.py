# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs as a user would, and looks at what they leave."""

import gzip
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import uuid

ROOT = os.getcwd()  # Bazel starts tests here: the tree's root
REAL_DATA = os.path.join(ROOT, "examples/data/mnist")
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 400

EPOCH = re.compile(
    r"Starting Epoch (\d+):\n"
    r"Training loss = (\d+\.\d{6}), training accuracy = ([01]\.\d{6})\n"
    r"Evaluation accuracy = ([01]\.\d{6})\n"
    r"images/s = (\d+), seconds = (\d+\.\d), digest = ([0-9a-f]{16})\n"
)


def is_sanitized():
    with open(os.path.join(ROOT, "examples/mnist_dist"), "rb") as file:
        return b"__asan_init" in file.read()


class Epoch:
    def __init__(self, match):
        self.number = int(match[1])
        self.loss = float(match[2])
        self.training_accuracy = float(match[3])
        self.evaluation_accuracy = float(match[4])
        self.digest = match[7]


def epochs_of(output):
    """The epochs that `output` reports; there must be nothing else in it."""
    rest = EPOCH.sub("", output)
    if rest:
        raise AssertionError("unexpected output: " + rest)
    return [Epoch(match) for match in EPOCH.finditer(output)]


def digests_of(output):
    return [epoch.digest for epoch in epochs_of(output)]


def read_idx(name):
    with gzip.open(os.path.join(REAL_DATA, name + ".gz")) as file:
        return file.read()


def write_idx(path, data):
    with open(path, "wb") as file:
        file.write(data)


def small_data(folder, training=640, evaluation=200):
    """The first images of MNIST as four plain files."""
    os.makedirs(folder, exist_ok=True)
    for split, count in (("train", training), ("t10k", evaluation)):
        images = read_idx(split + "-images-idx3-ubyte")
        labels = read_idx(split + "-labels-idx1-ubyte")
        head = images[:4] + struct.pack(">i", count) + images[8:16]
        write_idx(
            os.path.join(folder, split + "-images-idx3-ubyte"),
            head + images[16 : 16 + count * 784],
        )
        write_idx(
            os.path.join(folder, split + "-labels-idx1-ubyte"),
            labels[:4] + struct.pack(">i", count) + labels[8 : 8 + count],
        )
    return folder


def small_cifar(folder, batches=(64, 0, 0, 0, 0), evaluation=16):
    """Images of one colour, that of their class, as CIFAR-10's binary files,
    with so many records more than one in each."""
    os.makedirs(folder, exist_ok=True)
    names = ["data_batch_%d.bin" % i for i in range(1, 6)] + ["test_batch.bin"]
    first = 0
    for name, more in zip(names, (*batches, evaluation)):
        records = b""
        for i in range(first, first + more + 1):
            label = i % 10
            planes = (bytes([label * part % 256]) for part in (25, 77, 130))
            records += bytes([label]) + b"".join(p * 1024 for p in planes)
        first += more + 1
        write_idx(os.path.join(folder, name), records)
    return folder


class ProgramTest(unittest.TestCase):
    """A folder of its own for each test, and a mark on all its processes."""

    def setUp(self):
        # Short: paths of sockets have 108 characters at most.
        self.folder = tempfile.mkdtemp(prefix="choir-", dir="/tmp")
        self.temporary = os.path.join(self.folder, "tmp")
        self.data = os.path.join(self.folder, "data")
        os.mkdir(self.temporary)
        self.mark = "CHOIR_TEST_MARK=" + uuid.uuid4().hex
        self.environment = dict(os.environ)
        for name in list(self.environment):
            if name.startswith(("OMPI_COMM", "PMIX", "CHOIR_RANK")):
                del self.environment[name]
        # Programs start in the test's folder.
        suppressions = self.environment.get("LSAN_OPTIONS", "")
        self.environment["LSAN_OPTIONS"] = suppressions.replace(
            "=tools/", "=" + ROOT + "/tools/"
        )
        self.environment.update(
            TMPDIR=self.temporary,
            CHOIR_TEST_MARK=self.mark.split("=")[1],
            # Two sandboxes share /dev/shm but not process ids, by which Open
            # MPI names its memory.
            OMPI_MCA_btl_vader_backing_directory=self.temporary,
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )

    def tearDown(self):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def processes(self):
        """All processes of this test, by their environment."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open("/proc/%s/environ" % name, "rb") as file:
                    marked = self.mark.encode() in file.read()
                with open("/proc/%s/stat" % name) as file:
                    is_zombie = file.read().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if marked and not is_zombie:
                found.append(int(name))
        return found

    def workers(self, program="mnist_dist"):
        """Worker processes in rank order: {rank: pid}."""
        found = {}
        for pid in self.processes():
            try:
                with open("/proc/%d/environ" % pid) as file:
                    text = file.read()
                name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
            except OSError:
                continue
            rank = re.search(
                r"\0(?:CHOIR_RANK|OMPI_COMM_WORLD_RANK)=(\d+)", text
            )
            if rank and name == program:
                found[int(rank[1])] = pid
        return found

    def assert_nothing_left(self):
        end = time.monotonic() + 20
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        left = self.processes()
        names = []
        for pid in left:
            try:
                with open("/proc/%d/cmdline" % pid) as file:
                    names.append(file.read().replace("\0", " "))
            except OSError:
                pass
        self.assertEqual(names, [], "processes left behind")
        self.assertEqual(os.listdir(self.temporary), [], "files left behind")
        hidden = [n for n in os.listdir(self.folder) if n.startswith(".")]
        self.assertEqual(hidden, [], "files left behind")

    def start(self, *arguments, program="mnist_dist", under=(), **options):
        path = os.path.join(ROOT, "examples", program)
        return self.start_command(*under, path, *arguments, **options)

    def start_command(self, *command, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(
            [str(word) for word in command],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **options,
        )

    def finish(self, process):
        out, err = process.communicate(timeout=TIME_LIMIT)
        return process.returncode, out, err

    def run_program(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def data_of(self, arguments):
        """A little of MNIST, for a run that says nothing of its data."""
        if "--data" in arguments:
            return ()
        if not os.path.isdir(self.data):
            small_data(self.data)
        return ("--data", self.data)

    def train(self, *arguments, **options):
        """A run that must succeed: what it printed."""
        status, out, err = self.run_program(
            *arguments, *self.data_of(arguments), **options
        )
        self.assertEqual((status, err), (0, ""))
        self.assert_nothing_left()
        return out

    def mpiexec(self, count):
        return ("mpiexec", "--oversubscribe", "-n", str(count))


def main():
    """Runs the tests of this shard: of all of them every n-th."""
    loader = unittest.TestLoader()
    shards = int(os.environ.get("TEST_TOTAL_SHARDS", "1"))
    shard = int(os.environ.get("TEST_SHARD_INDEX", "0"))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        with open(os.environ["TEST_SHARD_STATUS_FILE"], "w"):
            pass

    def in_shard(self, case):
        names = unittest.TestLoader.getTestCaseNames(self, case)
        return names[shard::shards]

    loader.getTestCaseNames = in_shard.__get__(loader)
    unittest.main(testLoader=loader, verbosity=2)
