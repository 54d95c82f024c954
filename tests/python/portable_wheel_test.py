# SPDX-License-Identifier: Apache-2.0
"""The last step to the portable wheel: licences of what is bundled, the OpenMP
runtime under its own name, metadata. Libraries and their packages are this
machine's; what auditwheel does is made up here, as the test has no network."""

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

import choir
from choir import _find

WHEEL = os.path.abspath(sys.argv.pop(1))
PORTABLE_WHEEL = os.path.abspath(sys.argv.pop(1))
INFO = f"choir-{choir.__version__}.dist-info"
NAME = f"choir-{choir.__version__}-py3-none-manylinux_2_36_x86_64.whl"


def loaded(base):
    """The file of a library that libchoir.so brought into this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if f"/{base}." in line:
                return line.split()[-1]
    raise FileNotFoundError(base)


class PortableWheel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])
        _find.load_library()
        self.openmp = os.path.join(
            os.path.dirname(loaded("libgomp")), "libgomp.so.1"
        )

    def repaired(self, libraries):
        """A wheel as auditwheel leaves it, with {name: bytes} bundled."""
        path = os.path.join(self.folder, NAME)
        bill = {"components": [], "dependencies": [{"dependsOn": []}]}
        with zipfile.ZipFile(WHEEL) as before:
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr("choir.libs/", "")
                for name in before.namelist():
                    wheel.writestr(name, before.read(name))
                for name, data in libraries.items():
                    wheel.writestr(f"choir.libs/{name}", data)
                wheel.writestr(
                    f"{INFO}/sboms/auditwheel.cdx.json", json.dumps(bill)
                )
        return path

    def library(self, base, mark=None):
        """Its name and bytes in a wheel; auditwheel's mark is of the file."""
        path = loaded(base)
        with open(path, "rb") as file:
            data = file.read()
        mark = mark or hashlib.sha256(data).hexdigest()[:8]
        name = os.path.basename(path).replace(".", f"-{mark}.", 1)
        return {name: data + b"patched"}

    def cjson(self, mark=None):
        return self.library("libcjson", mark)

    def run_it(self, wheel, out):
        os.mkdir(out)
        return subprocess.run(
            [
                *(sys.executable, PORTABLE_WHEEL, "--out", out),
                *("--openmp", self.openmp, wheel),
            ],
            capture_output=True,
            text=True,
        )

    def made(self, libraries, number=0):
        out = os.path.join(self.folder, str(number))
        done = self.run_it(self.repaired(libraries), out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), os.path.join(out, NAME))
        return done.stdout.strip()

    def test_everything_bundled_has_its_licence(self):
        cjson = self.cjson()
        (name,) = cjson
        libraries = {**cjson, **self.library("libsodium")}
        with zipfile.ZipFile(self.made(libraries)) as wheel:
            members = {place: wheel.read(place) for place in wheel.namelist()}
        head, _ = members[f"{INFO}/METADATA"].decode().split("\n\n", 1)
        lines = head.splitlines()
        self.assertIn(
            "License-Expression: Apache-2.0 AND BSD-2-Clause AND CC0-1.0 AND "
            "GPL-3.0-or-later WITH GCC-exception-3.1 AND ISC AND MIT",
            lines,
        )
        named = [
            line.removeprefix("License-File: ")
            for line in lines
            if line.startswith("License-File: ")
        ]
        there = [
            place.removeprefix(f"{INFO}/licenses/")
            for place in members
            if place.startswith(f"{INFO}/licenses/")
        ]
        self.assertEqual(sorted(named), sorted(there))
        texts = {
            file: members[f"{INFO}/licenses/{file}"].decode() for file in there
        }
        self.assertIn("Dave Gamble", texts["libcjson1/copyright"])
        gomp = texts["libgomp1/copyright"]
        self.assertIn("GCC RUNTIME LIBRARY EXCEPTION", gomp)
        self.assertIn("GNU GENERAL PUBLIC LICENSE", texts["GPL-3"])
        self.assertIn("Apache License", texts["LICENSE"])
        # Some of libsodium is under this, which its package only refers to.
        self.assertIn("CC0 1.0 Universal", texts["CC0-1.0"])
        self.assertRegex(texts["BUNDLED"], f"{name}: MIT; package libcjson1 ")
        self.assertRegex(texts["BUNDLED"], "libgomp.so.1: GPL.*gcc-1[0-9]")
        # Nothing of Debian's is left to be installed.
        self.assertNotIn("Requires-External", head)
        self.assertIn("Requires-Dist: numpy", lines)

    def test_openmp_keeps_its_name_and_bytes(self):
        with zipfile.ZipFile(self.made(self.cjson())) as wheel:
            bundled = wheel.read("choir.libs/libgomp.so.1")
            bill = json.loads(wheel.read(f"{INFO}/sboms/auditwheel.cdx.json"))
        with open(self.openmp, "rb") as file:
            self.assertEqual(bundled, file.read())
        (component,) = bill["components"]
        self.assertRegex(component["purl"], r"^pkg:deb/\w+/libgomp1@\d")
        for added in (
            bill["dependencies"][0]["dependsOn"],
            [bill["dependencies"][1]["ref"]],
        ):
            self.assertEqual(added, [component["bom-ref"]])

    def test_record(self):
        with zipfile.ZipFile(self.made(self.cjson())) as wheel:
            names = wheel.namelist()
            rows = wheel.read(f"{INFO}/RECORD").decode()
            record = {row[0]: row[1:] for row in csv.reader(io.StringIO(rows))}
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual(sorted(record), sorted(names))
            for name, (digest, size) in record.items():
                if name == f"{INFO}/RECORD":
                    continue
                data = wheel.read(name)
                right = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                self.assertEqual(digest, "sha256=" + right.decode().rstrip("="))
                self.assertEqual(int(size), len(data))

    def test_same_wheel_makes_same_bytes(self):
        made = []
        for number in range(2):
            with open(self.made(self.cjson(), number), "rb") as file:
                made.append(file.read())
        self.assertEqual(made[0], made[1])

    def test_refuses_what_it_does_not_know(self):
        for libraries, words in [
            ({"libnobodys-12345678.so.1": b""}, "licence nobody looked at"),
            (self.cjson("00000000"), "not of the Debian package"),
        ]:
            with tempfile.TemporaryDirectory() as parent:
                out = os.path.join(parent, "out")
                done = self.run_it(self.repaired(libraries), out)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual(os.listdir(out), [])


if __name__ == "__main__":
    unittest.main()
