# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial_c.md as it is written: its C blocks become files, its shell blocks
are run one after the other, and what they print is compared with the text blocks."""

import os
import re
import subprocess
import sys
import unittest

from tests.testing import mpi_folder

INSTALL, PAGE = (os.path.abspath(path) for path in sys.argv[1:])
BLOCK = re.compile(r"^```(c|sh|text)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"// (\w+\.c)\n")
# In place of Bazel, which cannot run in its own tests.
BAZEL = """#!/bin/sh
[ "$1 $2 $3" = "run //:install --" ] || exit 9
shift 3
exec "%s" "$@"
"""


def without_numbers(text):
    return re.sub(r"\b[0-9a-f]{16}\b|[0-9][0-9.]*", "#", text)


class Typed:
    """A shell whose folder and variables stay from one block to the next."""

    def __init__(self, home):
        programs = os.path.join(home, "bin")
        os.makedirs(programs)
        bazel = os.path.join(programs, "bazel")
        with open(bazel, "w", encoding="utf-8") as file:
            file.write(BAZEL % INSTALL)
        os.chmod(bazel, 0o755)
        self.folder = home
        self.file = ""
        self.environment = {
            **os.environ,
            **mpi_folder.environment(),
            "HOME": home,
            "PATH": programs + os.pathsep + os.environ["PATH"],
        }

    def run(self, block):
        """What it prints; CalledProcessError where a line fails."""
        after = os.path.join(self.environment["HOME"], "after")
        done = subprocess.run(
            ["bash", "-euc", f"{block}\n(pwd; env -0) >{after}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        )
        with open(after, encoding="utf-8") as file:
            self.folder, variables = file.read().split("\n", 1)
        self.environment = dict(
            pair.split("=", 1) for pair in variables.split("\0") if pair
        )
        return done.stdout

    def write(self, block):
        """A C block begins a file or goes on with the one before."""
        start = FILE.match(block)
        if start:
            self.file = os.path.join(self.folder, start[1])
        with open(self.file, "w" if start else "a", encoding="utf-8") as file:
            file.write(block if start else "\n" + block)


class Tutorial(unittest.TestCase):
    def test_page(self):
        with open(PAGE, encoding="utf-8") as file:
            blocks = BLOCK.findall(file.read())
        self.assertEqual(
            [kind for kind, _ in blocks if kind != "c"],
            ["sh", "sh", "sh", "text", "sh", "text"],
        )
        shell = Typed(os.path.join(os.environ["TEST_TMPDIR"], "home"))
        said = ""
        for kind, block in blocks:
            if kind == "c":
                shell.write(block)
            elif kind == "sh":
                said = shell.run(block)
            else:
                self.assertEqual(without_numbers(said), without_numbers(block))
        results = re.findall(
            r"(\d) worker\(s\): (\d+) of 1200 right, digest (\w+)\n", said
        )
        self.assertEqual([workers for workers, _, _ in results], list("122"))
        for _, right, _ in results:
            self.assertGreater(int(right), 1150)
        self.assertEqual(results[1], results[2])
        self.assertNotEqual(results[0][2], results[1][2])
        # A wrong number is the launcher's sentence.
        done = subprocess.run(
            ["./spiral", "0"],
            cwd=shell.folder,
            env=shell.environment,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^spiral: launch: workers is 0; .*\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
