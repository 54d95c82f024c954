# SPDX-License-Identifier: Apache-2.0
"""The scripts under examples/python: each form, each launcher, each dist_option."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from tests.testing import mpi_folder

DIST = os.path.abspath(sys.argv[1])
SCRIPTS = {
    os.path.basename(path): os.path.abspath(path) for path in sys.argv[2:]
}
OPTIONS = ["fp32", "fp16", "partialUpdate", "sparseTopK", "sparseThreshold"]
EPOCH = re.compile(
    r"Starting Epoch 0:\nTraining loss = [0-9.]+, training accuracy = [0-9.]+\n"
    r"Evaluation accuracy = ([0-9.]+), Elapsed Time = [0-9.]+s\n"
)


def environment():
    # As a user has it: the package on the path, one thread for each worker.
    paths = [path for path in sys.path if path]
    return {
        **os.environ,
        **mpi_folder.environment(),
        "PYTHONPATH": os.pathsep.join(paths),
        "CHOIR_THREADS": "1",
    }


def command(script, *flags, workers="2"):
    words = [sys.executable, SCRIPTS[script]]
    return words + ([workers] if workers else []) + list(flags)


def run(words, limit=120):
    return subprocess.run(
        words, capture_output=True, text=True, env=environment(), timeout=limit
    )


class Examples(unittest.TestCase):
    def check(self, words, least):
        result = run(words)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = EPOCH.search(result.stdout)
        self.assertTrue(found, result.stdout)
        self.assertGreater(float(found[1]), least, result.stdout)
        return found[1], re.findall(r"^digest = (\w{16})$", result.stdout, re.M)

    def test_model_form_by_processes(self):
        flags = ["--epochs", "1", "--limit", "2560"]
        for option in OPTIONS:
            with self.subTest(option):
                words = command("train_multiprocess.py", *flags)
                self.check(words + ["--dist-option", option], 0.5)

    def test_autograd_form_by_processes(self):
        flags = ["--epochs", "1", "--limit", "2560"]
        for option in OPTIONS:
            with self.subTest(option):
                words = command("mnist_multiprocess.py", *flags)
                self.check(words + ["--dist-option", option], 0.5)

    def test_both_forms_by_mpiexec(self):
        flags = ["--epochs", "1", "--limit", "1280"]
        for script, alike in (
            ("train_mpi.py", "train_multiprocess.py"),
            ("mnist_dist.py", "mnist_multiprocess.py"),
        ):
            with self.subTest(script):
                words = command(script, *flags, workers=None)
                mpi = self.check(["mpiexec", "-n", "2"] + words, 0.3)
                self.assertEqual(mpi, self.check(command(alike, *flags), 0.3))
                self.assertEqual(len(mpi[1]), script == "train_mpi.py")

    def test_a_run_is_logged(self):
        folder = os.environ["TEST_TMPDIR"]
        log = os.path.join(folder, "mnist.jsonl")
        page = os.path.join(folder, "mnist.html")
        words = command("mnist_dist.py", "--epochs", "2", "--limit", "640",
                        "--log-json", log, workers=None)  # fmt: skip
        self.check(["mpiexec", "-n", "2"] + words, 0)
        with open(log, encoding="utf-8") as file:
            entries = [json.loads(line) for line in file]
        self.assertEqual([e["step"] for e in entries], [5, 10])
        for entry in entries:
            self.assertEqual([r["images"] for r in entry["ranks"]], [320, 320])
            self.assertGreater(entry["evaluation_accuracy"], 0)
        self.assertEqual(entries[0]["run"]["batch"], 128)
        run([sys.executable, "-m", "choir", "report", log, "-o", page])
        with open(page, encoding="utf-8") as file:
            self.assertIn("mnist_dist.py", file.read())

    def test_the_loader_has_the_bits_of_the_c_example(self):
        flags = ["--epochs", "1", "--limit", "1000"]
        c = run([DIST, "--threads", "1"] + flags)
        self.assertEqual(c.returncode, 0, c.stderr)
        digest = re.search(r"digest = ([0-9a-f]{16})", c.stdout)[1]
        for more in ([], ["--no-graph"]):
            with self.subTest(more):
                python = run(command("mnist_loader.py", *flags, *more))
                self.assertIn(digest, python.stdout, python.stderr)

    def test_a_killed_worker_is_named(self):
        words = command(
            "train_multiprocess.py", "--epochs", "50", "--limit", "640"
        )
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process:
            process.stdout.readline()  # an epoch has begun
            listed = f"/proc/{process.pid}/task/{process.pid}/children"
            with open(listed, encoding="ascii") as file:
                children = file.read().split()
            self.assertEqual(len(children), 2)
            os.kill(int(children[1]), signal.SIGKILL)
            start = time.monotonic()
            _, errors = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(errors, rf"CommError: .*pid {children[1]}\) is gone")

    def test_mistakes(self):
        for flags, said in (
            (["--dist-option", "sparse"], "one of fp32, fp16"),
            (["--data", "/nowhere"], "cannot open folder '/nowhere'"),
            (["--device", "cuda"], "CHOIR_DEVICE=cpu"),
        ):
            with self.subTest(flags):
                words = command(
                    "train_multiprocess.py", "--limit", "128", *flags
                )
                result = run(words)
                self.assertEqual(result.returncode, 1)
                self.assertIn(said, result.stderr)


class HorovodStyle(unittest.TestCase):
    def test_workers_and_checkpoint(self):
        folder = os.environ["TEST_TMPDIR"]
        found = {}
        for workers in ("1", "2"):
            path = os.path.join(folder, f"horovod{workers}.safetensors")
            words = [sys.executable, "-m", "choir", "-np", workers]
            words += [SCRIPTS["mnist_horovod_style.py"], "--epochs", "1"]
            words += ["--limit", "1000", "--batch-size", "32"]
            result = run(words + ["--checkpoint", path])
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = result.stdout.splitlines()
            self.assertEqual(len(lines), 1, result.stdout)  # of rank 0 alone
            self.assertIn(f"workers = {workers},", lines[0])
            found[workers] = float(lines[0].split("test accuracy = ")[1])
            self.assertGreater(os.path.getsize(path), 3 * 4 * 1199882)
        self.assertGreater(min(found.values()), 0.3, found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
