# SPDX-License-Identifier: Apache-2.0
"""What `pip install ./python` runs, in a repository made up here and with a
stand-in for Bazel, as Bazel cannot run inside its own test."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import choir

LIBRARY = os.path.abspath("libchoir.so")
BUILD = (
    "import sys, build_backend; "
    "print(build_backend.build_wheel(sys.argv[1], None, None))"
)


class BuildBackend(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])
        self.root = os.path.join(self.folder, "tree")
        self.bin = os.path.join(self.folder, "bin")
        self.out = os.path.join(self.folder, "out")
        os.mkdir(self.bin)
        os.mkdir(self.out)
        self.project = os.path.join(self.root, "python")
        shutil.copytree("python", self.project)
        for name in ["WORKSPACE", "choir.h", "LICENSE", "core/base.h"]:
            self.write(os.path.join(self.root, name), "text\n")

    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def libraries(self, folder):
        for name in ["libchoir.so", "libchoir_mpi.so"]:
            os.makedirs(os.path.join(self.root, folder), exist_ok=True)
            shutil.copyfile(LIBRARY, os.path.join(self.root, folder, name))

    def bazel(self, body):
        path = os.path.join(self.bin, "bazel")
        self.write(
            path, f'#!/bin/sh\necho "$PWD $*" >>{self.folder}/log\n{body}'
        )
        os.chmod(path, 0o755)

    def build(self):
        """Runs the hook as pip does: in a process of its own, in ./python."""
        return subprocess.run(
            [sys.executable, "-c", BUILD, self.out],
            cwd=self.project,
            env={"PATH": self.bin, "PYTHONPATH": self.project},
            capture_output=True,
            text=True,
        )

    def built(self):
        done = self.build()
        self.assertEqual(done.returncode, 0, done.stderr)
        name = done.stdout.split()[-1]
        self.assertIn(f"choir: {name} is for this machine", done.stdout)
        self.assertTrue(name.startswith(f"choir-{choir.__version__}-py3-none-"))
        with zipfile.ZipFile(os.path.join(self.out, name)) as wheel:
            for member in ["__init__.py", "_find.py", "libchoir_mpi.so"]:
                self.assertIn("choir/" + member, wheel.namelist())
            self.assertGreater(wheel.getinfo("choir/libchoir.so").file_size, 0)

    def refused(self, *words):
        done = self.build()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn("Traceback", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(os.listdir(self.out), [])

    def test_bazel_builds_and_says_where(self):
        self.bazel("[ $1 = build ] || echo $PWD/made/by/bazel\n")
        self.libraries("made/by/bazel")
        # The last configuration's, which may be a sanitizer's.
        self.libraries("bazel-bin")
        os.truncate(os.path.join(self.root, "bazel-bin/libchoir.so"), 0)
        self.built()
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            calls = file.read().splitlines()
        self.assertEqual(
            calls,
            [
                f"{self.root} build --noshow_progress "
                "//:libchoir.so //:libchoir_mpi.so",
                f"{self.root} info bazel-bin",
            ],
        )

    def test_bazel_fails(self):
        self.libraries("bazel-bin")
        self.bazel("echo 'no rule' >&2; exit 7\n")
        self.refused("choir: 'bazel build", "with status 7", "no rule")

    def test_no_bazel(self):
        self.refused("choir: there is neither bazel", "./bootstrap")
        self.libraries("bazel-bin")
        self.built()

    def test_no_bazel_and_an_older_library(self):
        self.libraries("bazel-bin")
        source = os.path.join(self.root, "core", "base.h")
        library = os.path.join(self.root, "bazel-bin", "libchoir_mpi.so")
        os.utime(library, (1e9, 1e9))
        os.utime(source, (4e9, 4e9))
        self.refused(f"libchoir.so is older than {source}")
        # A page or a script is no source of the library's.
        os.utime(source, (1e9, 1e9))
        self.write(os.path.join(self.root, "core", "README.md"), "new\n")
        for folder, _, names in os.walk(self.root):
            for name in names:
                if not name.endswith(".md"):
                    os.utime(os.path.join(folder, name), (1e9, 1e9))
        self.built()

    def test_outside_of_the_repository(self):
        os.remove(os.path.join(self.root, "choir.h"))
        self.refused(f"{self.root} is not Choir's repository", "pip install")

    def test_no_source_archive(self):
        done = subprocess.run(
            [
                *(sys.executable, "-c"),
                "import build_backend; build_backend.build_sdist('.')",
            ],
            env={"PYTHONPATH": self.project},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("UnsupportedOperation", done.stderr)
        self.assertIn("the sources are the git repository", done.stderr)


if __name__ == "__main__":
    unittest.main()
