# SPDX-License-Identifier: Apache-2.0
"""The wheel: installed by pip into a fresh environment it works outside of the
tree; its record is right; the same files make the same bytes."""

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import choir
from choir import _find

WHEEL = os.path.abspath(sys.argv.pop(1))
MAKE_WHEEL = os.path.abspath(sys.argv.pop(1))
PROJECT = os.path.dirname(MAKE_WHEEL)
INFO = f"choir-{choir.__version__}.dist-info"

# What an installed package must do; prints what the test compares.
TRY = """
import choir, ctypes, os
from choir import _find
library = _find.find_library()
assert os.path.dirname(library) == os.path.dirname(choir.__file__), library
assert os.path.isfile(os.path.join(os.path.dirname(library), "libchoir_mpi.so"))
_find.load_library()
print(choir.__version__, os.path.dirname(choir.__file__))
"""


class Wheel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])

    def run_it(self, *command):
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_installs_and_imports_outside_of_the_tree(self):
        venv = os.path.join(self.folder, "venv")
        # NumPy is Debian's, as this test may not use the network.
        self.run_it(
            "/usr/bin/python3", "-m", "venv", "--system-site-packages", venv
        )
        # -I: the paths of the test's own environment lead into the tree.
        python = [os.path.join(venv, "bin/python3"), "-I"]
        pip = [*python, "-m", "pip", "--disable-pip-version-check"]
        self.run_it(*pip, "install", "--no-index", "--no-deps", WHEEL)
        version, place = self.run_it(*python, "-c", TRY).split()
        self.assertEqual(version, choir.__version__)
        self.assertTrue(place.startswith(venv + os.sep), place)
        self.assertIn("Requires: numpy", self.run_it(*pip, "show", "choir"))
        self.run_it(*pip, "uninstall", "--yes", "choir")
        self.assertFalse(os.path.exists(place), "uninstall left files")

    def test_record_has_every_file_with_its_hash(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
            rows = wheel.read(f"{INFO}/RECORD").decode()
            record = {row[0]: row[1:] for row in csv.reader(io.StringIO(rows))}
            self.assertEqual(sorted(record), sorted(names))
            self.assertEqual(record.pop(f"{INFO}/RECORD"), ["", ""])
            for name, (digest, size) in record.items():
                data = wheel.read(name)
                right = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                self.assertEqual(digest, "sha256=" + right.decode().rstrip("="))
                self.assertEqual(int(size), len(data))
        for name in ["__init__.py", "libchoir.so", "libchoir_mpi.so"]:
            self.assertIn("choir/" + name, names)
        self.assertFalse([name for name in names if "pycache" in name])

    def test_metadata(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            text = wheel.read(f"{INFO}/METADATA").decode()
            tags = wheel.read(f"{INFO}/WHEEL").decode()
        head, readme = text.split("\n\n", 1)
        lines = head.splitlines()
        self.assertIn("Name: choir", lines)
        self.assertIn(f"Version: {choir.__version__}", lines)
        self.assertIn("Requires-Python: >=3.11", lines)
        self.assertIn("Requires-Dist: numpy", lines)
        for package in _find.DEBIAN_PACKAGES.values():
            self.assertIn(package, readme)
        # Those of the library that is in it: one of the two oneDNNs.
        needed = _find.needed_packages(os.path.abspath("libchoir.so"))
        self.assertEqual(
            [line for line in lines if line.startswith("Requires-External:")],
            [f"Requires-External: {package}" for package in needed],
        )
        self.assertEqual(len(needed), len(_find.DEBIAN_PACKAGES) - 1)
        tag = os.path.basename(WHEEL).split("-", 2)[2][: -len(".whl")]
        self.assertIn(f"Tag: {tag}", tags.splitlines())

    def package(self):
        """A copy of the project with a package of two files."""
        project = os.path.join(self.folder, "project")
        shutil.copytree(PROJECT, project)
        files = [
            os.path.join(project, "choir", name)
            for name in ["__init__.py", "_version.py"]
        ]
        return project, files + [os.path.abspath("libchoir.so")]

    def make(self, project, files, out):
        return subprocess.run(
            [
                *(sys.executable, MAKE_WHEEL, "--project", project),
                *("--licence", os.path.join(project, "README.md")),
                *("--out", out, *files),
            ],
            capture_output=True,
            text=True,
        )

    def test_same_files_make_same_bytes(self):
        project, files = self.package()
        made = []
        for number, order in enumerate([files, files[::-1]]):
            out = os.path.join(
                self.folder, str(number), os.path.basename(WHEEL)
            )
            os.mkdir(os.path.dirname(out))
            for path in files[:2]:
                os.utime(path, (1e9 + number, 1e9 + number))
            done = self.make(project, order, out)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, "rb") as file:
                made.append(file.read())
        self.assertEqual(made[0], made[1])

    def refused(self, words, project, files, name=os.path.basename(WHEEL)):
        out = os.path.join(self.folder, name)
        done = self.make(project, files, out)
        self.assertEqual(done.returncode, 1)
        self.assertIn(words, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse(os.path.exists(out))

    def test_refuses(self):
        project, files = self.package()
        self.refused("must be called choir-", project, files, "choir.whl")
        self.refused("these are for none", project, files[:2])
        self.refused("two files for choir/", project, files + files[:1])
        self.refused("is not below", project, files + [__file__])
        text = os.path.join(self.folder, "text.so")
        with open(text, "w", encoding="utf-8") as file:
            file.write("no library, but of more than twenty characters")
        self.refused("is not a shared library", project, files + [text])
        for machine, words in [
            (8, "for an unknown machine (8)"),
            (183, "are for linux_aarch64, linux_x86_64"),
        ]:
            with open(text, "wb") as file:
                file.write(b"\x7fELF" + bytes(14) + bytes([machine, 0]))
            self.refused(words, project, files + [text])


if __name__ == "__main__":
    unittest.main()
