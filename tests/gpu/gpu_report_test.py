# SPDX-License-Identifier: Apache-2.0
"""The page that is made of a run: what failed with its words, figures with their
spread, and nothing that breaks a table."""

import json
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(os.path.dirname(HERE))]
import gpu_report  # noqa: E402


def suite(name, state="passed", note="", passed=0, skipped=0, failed=()):
    return {
        **{"name": name, "kind": "suite", "state": state, "note": note},
        **{"seconds": 1.5, "passed": passed, "skipped": skipped},
        "failed": [{"name": n, "message": m} for n, m in failed],
        "reasons": {"no bf16 here": skipped} if skipped else {},
        "unfinished": "",
    }


def train_step(results, missing, bf16=False):
    ratio = {"text": "Choir / best PyTorch", "values": [2.0, 4.0, 3.0]}
    train = {"net": "mnist_cnn", "batch": 64, "rounds": 3, "results": results}
    train.update(missing=missing, ratios=[ratio], bf16=bf16)
    return {
        **{"name": "train mnist_cnn, batch 64", "kind": "train"},
        **{"state": "passed", "note": "", "seconds": 60, "train": train},
    }


def images(*speeds, **more):
    return [{"images_per_second": speed, **more} for speed in speeds]


OPS = {
    **{"name": "ops of mlp", "kind": "ops", "state": "passed", "note": ""},
    "seconds": 2,
    "ops": [
        {
            **{"op": "relu", "shapes": "128,4096", "attrs": "", "a_step": 2},
            **{"kernel": "relu/cuda", "median_us": 3.25, "spread_us": 0.5},
        }
    ],
}


def record(*steps, **more):
    choir = {"version": "0.1.0", "digest": "0123456789abcdef"}
    choir.update(
        driver="for CUDA 13.0",
        devices={"cuda": "cuda kernels, 1 threads"},
        gpus=["NVIDIA H200, compute capability 9.0, 139.8 GiB"],
        parts=[["kernels", "yes"]],
    )
    return {
        **{"when": "now", "machine": {"processor": "a | b"}, "choir": choir},
        **{"interrupted": "", "steps": list(steps), **more},
    }


class GpuReportTest(unittest.TestCase):
    def test_machine_and_summary(self):
        page = gpu_report.page(
            record(suite("a", passed=3), suite("b", "failed", "x"))
        )
        self.assertTrue(page.startswith("# Choir on NVIDIA H200\n"), page)
        self.assertIn("2 steps: 1 passed, 1 failed; 3 s.", page)
        self.assertIn("| processor | a \\| b |", page)
        self.assertIn("| driver | for CUDA 13.0 |", page)
        self.assertIn("| kernels | yes |", page)
        self.assertIn("| a | passed | 3 | 0 | 0 | 1.5 |  |", page)

    def test_a_failed_test_has_its_message(self):
        failed = [("Suite.Adds/cuda_add", "a.cc:3: Failure\nExpected: 1")]
        page = gpu_report.page(
            record(suite("op_suite", "failed", "exit status 1", failed=failed))
        )
        self.assertIn("### op_suite", page)
        self.assertIn("    Suite.Adds/cuda_add\n      a.cc:3: Failure", page)
        self.assertIn("| op_suite | failed | 0 | 1 | 0 |", page)

    def test_a_crash_has_its_last_words(self):
        note = "ended by SIGSEGV in Suite.Adds\nlast words"
        page = gpu_report.page(record(suite("op_suite", "failed", note)))
        self.assertIn("    ended by SIGSEGV in Suite.Adds\n    last", page)

    def test_reasons_of_skips_are_added_up(self):
        page = gpu_report.page(
            record(suite("a", skipped=2), suite("b", skipped=3))
        )
        self.assertIn("| 5 | no bf16 here |", page)

    def test_figures_have_their_spread(self):
        own = images(100, 300, 200, name="choir", host_fallbacks=7)
        results = {"choir": own, "torch_cuda_graph": images(50, 60, 55)}
        missing = {"torch_compiled": "this PyTorch shows no GPU"}
        results["torch_compiled"] = []
        page = gpu_report.page(record(train_step(results, missing), OPS))
        self.assertIn(
            "| Choir, 1 process | 200 (100..300) | ops on the host: 7 |", page
        )
        self.assertIn("CUDA graph, channels_last | 55 (50..60) |", page)
        self.assertIn("| this PyTorch shows no GPU |", page)
        self.assertIn("Choir / best PyTorch: 3.00 (2.00..4.00)", page)
        self.assertIn("mnist_cnn, batch 64, f32, images/s: median of 3", page)
        self.assertIn("| relu/cuda | 2 | 3.25 ± 0.50 |", page)

    def test_mixed_precision_is_said(self):
        own = {"choir": images(100, 300, 200, name="choir", host_fallbacks=0)}
        page = gpu_report.page(record(train_step(own, {}, bf16=True)))
        self.assertIn("mnist_cnn, batch 64, bf16, images/s", page)
        self.assertNotIn("f32", page)

    def test_a_library_that_does_not_load(self):
        choir = {"library": "x", "error": "libdnnl.so.2: cannot open"}
        page = gpu_report.page(record(choir=choir))
        self.assertIn("does not load: libdnnl.so.2", page)
        self.assertIn("# Choir on a machine without a GPU", page)

    def test_where_things_lie_is_not_told(self):
        text = "%s: no %s/lib/x, %s/said" % (__file__, sys.prefix, "/some/out")
        text = gpu_report.without_paths(text, "/some/out")
        self.assertNotIn(HERE, text)
        self.assertTrue(text.endswith("report/said"), text)

    def test_files_are_replaced_as_a_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            for interrupted in ("", "SIGTERM"):
                gpu_report.write(folder, record(interrupted=interrupted))
            self.assertEqual(
                sorted(os.listdir(folder)), ["report.json", "report.md"]
            )
            with open(os.path.join(folder, "report.json")) as file:
                self.assertEqual(json.load(file)["interrupted"], "SIGTERM")


if __name__ == "__main__":
    unittest.main()
