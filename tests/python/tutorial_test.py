# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial_python.md: its blocks, pasted one after the other, train."""

import os
import re
import subprocess
import sys
import unittest

from tests.testing import mpi_folder

PAGE, MNIST = sys.argv[1], os.path.dirname(os.path.abspath(sys.argv[2]))
EPOCH = re.compile(
    r"Starting Epoch (\d):\n"
    r"Training loss = [0-9.]+, training accuracy = [0-9.]+\n"
    r"Evaluation accuracy = ([0-9.]+), Elapsed Time = [0-9.]+s\n"
)


def blocks():
    with open(PAGE, encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)


def run(*command):
    # As a user has it: the package on the path, one thread for each worker.
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            **mpi_folder.environment(),
            "PYTHONPATH": paths,
            "CHOIR_THREADS": "1",
        },
    )


class Tutorial(unittest.TestCase):
    def paste(self, *changes):
        """The page's blocks as a file; changes: (what is there, what instead)."""
        text = "\n".join(blocks())
        for old, new in changes:
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        path = os.path.join(os.environ["TEST_TMPDIR"], f"{self.id()}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def trained(self, *command):
        """Accuracy after each epoch; nothing else was printed."""
        done = run(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(EPOCH.sub("", done.stdout), "")
        self.assertEqual(done.stderr, "")
        found = EPOCH.findall(done.stdout)
        self.assertEqual([epoch for epoch, _ in found], ["0", "1", "2"])
        return [float(share) for _, share in found]

    def test_every_block_has_its_step(self):
        self.assertEqual(
            [block.split("(")[0].split(":")[0].split()[:2] for block in blocks()],
            [
                ["import", "multiprocessing"],
                ["class", "CNN"],
                ["def", "train_one_batch"],
                ["def", "make_optimizer"],
                ["def", "load"],
                ["def", "make_model"],
                ["def", "train"],
                ["def", "train_with_processes"],
                ["if", "__name__"],
            ],
        )  # fmt: skip

    def test_every_way_to_start_it(self):
        script = self.paste()
        first = self.trained(sys.executable, script, "2")
        self.assertGreater(first[-1], 0.9)
        self.assertEqual(
            self.trained("mpiexec", "-n", "2", sys.executable, script), first
        )
        self.assertEqual(
            self.trained(sys.executable, "-m", "choir", "-np", "2", script),
            first,
        )

    def test_real_images(self):
        script = self.paste(
            (".mnist(folder, split)", ".mnist(folder, split, 1024)")
        )
        shares = self.trained(sys.executable, script, "2", MNIST)
        self.assertGreater(shares[-1], 0.5)

    def test_every_option(self):
        for option in (
            "plain", "fp16", "half", "partialUpdate", "sparseTopK",
            "sparseThreshold", "bf16",
        ):  # fmt: skip
            with self.subTest(option):
                script = self.paste(('N = "fp32"', f'N = "{option}"'))
                self.trained(sys.executable, script, "2")

    def test_an_unknown_option(self):
        script = self.paste(('N = "fp32"', 'N = "fp64"'))
        done = run(sys.executable, script, "2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("dist_option is 'fp64'; one of fp32", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
