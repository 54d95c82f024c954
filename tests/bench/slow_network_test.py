# SPDX-License-Identifier: Apache-2.0
"""slow_network trains over a network and writes its page. How fast that is, no
test asks; limits of time are guards against a hang."""

import json
import os
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
from bench import slow_network, strategies_page  # noqa: E402
from tests.netlab import netlab  # noqa: E402

ACCURACY_RUN = os.path.join(ROOT, "bench", "accuracy_run")
DATA = os.path.join(ROOT, "examples", "data", "mnist")
TIME_LIMIT = 100


def run(command, **options):
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
        **options,
    )


class AccuracyRunTest(unittest.TestCase):
    def accuracy_run(self, *flags):
        return run([ACCURACY_RUN, "--data", DATA, *flags])

    def test_two_workers(self):
        done = self.accuracy_run(
            *["--workers", 2, "--batch", 32, "--steps", 25, "--every", 10],
            *["--dist_option", "auto", "--settings", "steps=8"],
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        *looks, plan, last = map(json.loads, done.stdout.splitlines())
        self.assertEqual([look["steps"] for look in looks], [10, 20, 25])
        self.assertIn(plan["chosen"], plan["ms_per_step"])
        self.assertTrue(last["strategy"].startswith(plan["chosen"] + " "))
        self.assertEqual((last["workers"], last["steps"]), (2, 25))
        self.assertEqual(last["accuracy"], looks[-1]["accuracy"])

    def test_stops_at_the_target(self):
        done = self.accuracy_run("--every", 5, "--target", 0.05)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2, done.stderr)
        self.assertEqual(json.loads(lines[1])["steps"], 5)

    def test_mistakes(self):
        for flags, sentence in (
            (["--dist_option", "fp8"], 'dist_option is "fp8"; known are'),
            (["--settings", "period=3"], "no field is called 'period'"),
            (["--every", "0"], "every is '0'"),
        ):
            done = self.accuracy_run("--workers", 2, *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stderr)


class SlowNetworkTest(unittest.TestCase):
    def test_in_the_lab(self):
        reason = netlab.missing()
        if reason:
            raise unittest.SkipTest(reason)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            done = run(
                [sys.executable, os.path.join(ROOT, "bench/slow_network.py")]
                + ["--rates", "100mbit", "--clock-rates", "", "--seeds", ""]
                + ["--steps", "16", "--only", "sparseLocal", "--json", path]
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
        steps = record["rates"]["100mbit"]["steps"]
        self.assertEqual(list(steps), ["alone", "sparseLocal"])
        # One host alone says nothing; two say what the strategy's table says,
        # headers and heartbeats beside it.
        self.assertLess(steps["alone"]["bytes_per_step"], 100)
        self.assertGreater(steps["sparseLocal"]["bytes_per_step"], 500)
        self.assertLess(steps["sparseLocal"]["bytes_per_step"], 50000)

    def test_mistakes(self):
        for flags in (["--only", "fp8"], ["--seeds", "x"], ["--rate", "1"]):
            done = run(
                [sys.executable, slow_network.__file__, *flags],
            )
            self.assertEqual(done.returncode, 2, done.stderr)


class PageTest(unittest.TestCase):
    def record(self):
        """Three names with made-up figures; one never gets there."""

        def runs(steps, seconds, reached=True):
            return [
                {"steps": s, "seconds": t, "reached": reached}
                for s, t in zip(steps, seconds)
            ]

        def rate(ms):
            return {
                "steps": {
                    name: {
                        "bytes_per_step": 10 * value,
                        "ms_per_step": value,
                        "predicted_ms": None,
                        "images_per_second": 1e3 / value,
                    }
                    for name, value in ms.items()
                }
            }

        slow = rate({"alone": 12, "fp32": 1500, "sparseLocal": 6.5})
        slow["clock"] = {
            "alone": runs([1500], [18]),
            "sparseLocal": runs([1500], [9]),
        }
        return {
            "target": 0.985,
            "efforts": {
                "alone": runs([1400, 1600], [9, 9]),
                "fp32": runs([4690, 4690], [9, 9], reached=False),
                "sparseLocal": runs([1500, 1500], [9, 9]),
            },
            "rates": {
                "10mbit": slow,
                "100mbit": rate({"alone": 12, "fp32": 150, "sparseLocal": 6}),
            },
        }

    def test_tables_and_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "strategies.md")
            shutil.copy(os.path.join(ROOT, "docs/strategies.md"), page)
            strategies_page.write(self.record(), folder)
            with open(page, encoding="utf-8") as file:
                text = file.read()
            picture = os.path.join(folder, "strategies.svg")
            root = xml.etree.ElementTree.parse(picture).getroot()
        self.assertIn("| one host alone | 1,500 | 1400, 1600 | 1.00 |", text)
        self.assertIn("| fp32 | - | 4690, 4690 | - |", text)
        self.assertIn("| sparseLocal | 65 | 6.5 | - | 154 | 9.8 |", text)
        self.assertIn("| 10 Mbit/s, sparseLocal | 9.0 | 9.0 | 0.50 |", text)
        # Those that get there, each with a line and its name.
        lines = [e for e in root if e.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2)
        words = [e.text for e in root if e.tag.endswith("text")]
        self.assertIn("sparseLocal", words)
        self.assertNotIn("fp32", words)


if __name__ == "__main__":
    unittest.main()
