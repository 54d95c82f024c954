# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md is what tools/environment_page.py makes of the sources, which
the test has for data."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join("tools", "environment_page.py")
PAGE = os.path.join("docs", "environment.md")


def run(folder, *flags):
    return subprocess.run(
        [sys.executable, SCRIPT, *flags],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class EnvironmentPageTest(unittest.TestCase):
    def test_the_page_is_current(self):
        done = run(".")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        page = read(PAGE)
        # Of the library, the package, choirrun, benchmarks and the shell scripts.
        for known in (
            "CHOIR_COMM_ID",
            "CHOIR_NCCL_LIBRARY",
            "CHOIR_DEVICE",
            "CHOIR_RUN",
            "CHOIR_TORCH_NEWEST",
            "CHOIR_CI_LIMIT",
        ):
            self.assertIn(f"| `{known}` |", page)


class MadeUpTest(unittest.TestCase):
    """Of sources made up here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for part in ("core", "docs", "python", "tools"):
            os.mkdir(os.path.join(self.root, part))
        shutil.copy(SCRIPT, os.path.join(self.root, "tools"))
        begin = "<!-- From here on written by tools/environment_page.py. -->\n"
        self.write(PAGE, f"# Title\n{begin}<!-- To here. -->\nend\n")
        self.write(
            "core/a.c",
            "// $CHOIR_A: 1: does this,\n// as docs/faults.md says. Not\n"
            '// set: nothing.\nconst char* a = getenv("CHOIR_A");\n'
            "// exit 2: wrong usage.\n// exit 128 + n: signal n.\n",
        )

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def page(self):
        done = run(self.root, "--write")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(run(self.root).returncode, 0)
        return read(os.path.join(self.root, PAGE))

    def mistake(self):
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        return done.stderr

    def test_comments_become_rows(self):
        self.write("python/b.py", '# $B: more.\n\nx = os.environ["B"]\n')
        self.assertIn("environment_page.py --write", self.mistake())
        page = self.page()
        a = "1: does this, as [faults](faults.md) says. Not set: nothing."
        self.assertIn(f"| `CHOIR_A` | {a} | [a.c](../core/a.c) |\n", page)
        self.assertIn("### Python package\n", page)
        self.assertIn("| `B` | more. | [b.py](../python/b.py) |\n", page)
        self.assertIn("| 2 | wrong usage. | [a.c](../core/a.c) |\n", page)
        self.assertIn("| 128 + n | signal n. | [a.c](../core/a.c) |\n", page)
        self.assertTrue(page.startswith("# Title\n"))
        self.assertTrue(page.endswith("<!-- To here. -->\nend\n"))

    def test_what_no_comment_describes(self):
        self.write("core/b.c", 'getenv("CHOIR_B");\n')
        self.assertIn("core/b.c reads CHOIR_B, and no comment", self.mistake())

    def test_what_nothing_reads(self):
        self.write("core/b.h", "// $CHOIR_B: is old.\n")
        self.assertIn("CHOIR_B; nothing reads it", self.mistake())

    def test_what_is_described_twice(self):
        self.write("core/b.h", '// $CHOIR_A: again.\n#define A "CHOIR_A"\n')
        self.assertIn("describe CHOIR_A", self.mistake())


if __name__ == "__main__":
    unittest.main(verbosity=2)
