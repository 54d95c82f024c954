# SPDX-License-Identifier: Apache-2.0
"""The tables and pictures of docs/performance*.md are those of bench/results."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
sys.path.insert(0, ROOT)
from bench import figures, measure  # noqa: E402

FIGURES = os.path.join(ROOT, "bench", "figures.py")
# Page: the flags that make it.
PAGES = {
    "docs/performance": (),
    "docs/performance_avx2": ("--machine", "avx2"),
}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for part in ("docs", "bench/results"):
            os.makedirs(os.path.join(self.root, part))
        for page in PAGES:
            for part in (page + ".md", page + ".svg"):
                shutil.copy(os.path.join(ROOT, part), self.path(part))
        results = os.path.join(ROOT, "bench", "results")
        for name in os.listdir(results):
            target = self.path("bench/results/" + name)
            shutil.copy(os.path.join(results, name), target)

    def path(self, part):
        return os.path.join(self.root, part)

    def figures(self, *flags):
        return subprocess.run(
            (sys.executable, FIGURES, *flags),
            env={**os.environ, "BUILD_WORKSPACE_DIRECTORY": self.root},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def test_pages_and_pictures_are_in_step_with_the_results(self):
        for page, flags in PAGES.items():
            done = self.figures("--skip-runs", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            told = "run `bazel run //bench:figures -- --skip-runs %s`"
            for part in (page + ".md", page + ".svg"):
                made = read(self.path(part))
                here = read(os.path.join(ROOT, part))
                self.assertEqual(made, here, told % " ".join(flags))
            marks = re.findall(
                r"<!-- table (.*?) -->\n+(.)", read(self.path(page + ".md"))
            )
            self.assertGreater(len(marks), 8)
            for name, first in marks:
                self.assertNotEqual(
                    first, "<", "%s: table %s is empty" % (page, name)
                )
            xml.etree.ElementTree.parse(self.path(page + ".svg"))

    def test_every_result_belongs_to_a_page(self):
        known = {"slow_network.json"}  # of docs/strategies.md
        for run in figures.RUNS:
            known |= {f"{run}.json", f"{run}_avx2.json"}
        found = os.listdir(os.path.join(ROOT, "bench", "results"))
        self.assertGreater(len(found), 20)
        self.assertEqual(set(found) - known, set())

    def test_a_result_is_a_line(self):
        record = {"a": [1, 2], "b": [{"c": "x", "d": []}, {}], "e": {}}
        text = measure.json_text(record)
        self.assertEqual(json.loads(text), record)
        self.assertIn('\n "a": [1, 2],\n', text)
        self.assertIn("\n  {}\n", text)

    def test_a_lost_table_comes_back(self):
        page = read(self.path("docs/performance.md"))
        emptied = re.sub(
            r"(<!-- table limits -->\n).*?(<!-- end)", r"\1\2", page, flags=re.S
        )
        self.assertNotEqual(emptied, page)
        with open(self.path("docs/performance.md"), "w", encoding="utf-8") as f:
            f.write(emptied)
        self.assertEqual(self.figures("--skip-runs").returncode, 0)
        self.assertEqual(read(self.path("docs/performance.md")), page)

    def test_wrong_flags_are_named(self):
        done = self.figures("--only", "train_lenet")
        self.assertEqual(done.returncode, 2)
        self.assertIn("train_lenet", done.stderr)
        done = self.figures("--skip-runs", "--machine", "abacus")
        self.assertEqual(done.returncode, 2)
        self.assertIn("performance_abacus.md", done.stderr)


if __name__ == "__main__":
    unittest.main()
