# SPDX-License-Identifier: Apache-2.0
"""io/unicode_classes_internal.h is what Unicode says, as far as this Python knows
it, and tools/unicode_classes.py makes it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join("tools", "unicode_classes.py")
HEADER = os.path.join("io", "unicode_classes_internal.h")


def run(folder, *flags):
    return subprocess.run(
        [sys.executable, SCRIPT, *flags],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


class UnicodeClassesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for path in (SCRIPT, HEADER):
            os.makedirs(os.path.join(self.root, os.path.dirname(path)))
            shutil.copy(path, os.path.join(self.root, path))

    def header(self):
        with open(os.path.join(self.root, HEADER), encoding="utf-8") as file:
            return file.read()

    def test_the_header_is_right(self):
        done = run(self.root)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_header_made_by_this_python(self):
        self.assertEqual(run(self.root, "--write").returncode, 0)
        done = run(self.root)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = self.header()
        self.assertIn("{0x41, 0x5a}, {0x61, 0x7a}, {0xaa, 0xaa},", text)
        self.assertIn("{0x30, 0x39}, {0xb2, 0xb3}, {0xb9, 0xb9},", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        with open(
            os.path.join(self.root, HEADER), "w", encoding="utf-8"
        ) as file:
            file.write(text.replace("{0x30, 0x39}", "{0x30, 0x38}"))
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not what --write makes", done.stderr)

    def test_a_newer_header_with_a_letter_less(self):
        text = self.header()
        version = text.split("Unicode ")[1].split(". ")[0]
        text = text.replace(f"Unicode {version}", "Unicode 99.0.0")
        text = text.replace("{0x61, 0x7a}", "{0x61, 0x79}")
        with open(
            os.path.join(self.root, HEADER), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not right about U+007A (Ll)", done.stderr)

    def test_flags(self):
        done = run(self.root, "--wirte")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage", done.stderr)


if __name__ == "__main__":
    unittest.main()
