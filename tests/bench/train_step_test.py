# SPDX-License-Identifier: Apache-2.0
"""train_step does the steps it is asked for and says what it did. How fast that
is, no test asks; limits of time are guards against a hang."""

import json
import os
import subprocess
import unittest

from bench.train_jobs import NETS

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
DATA = os.path.join(ROOT, "examples", "data", "mnist")
TRAIN_STEP = os.path.join(ROOT, "bench", "train_step")


def run(*command, stdin=None):
    return subprocess.run(
        command,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


class TrainStepTest(unittest.TestCase):
    def train_step(self, *flags, stdin=None):
        common = ("--data", DATA, "--limit", "256", "--batch", "16")
        return run(TRAIN_STEP, *common, *flags, stdin=stdin)

    def result(self, *flags, stdin=None):
        done = self.train_step(*flags, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_one_process_trains_the_steps_asked_for(self):
        # 256 samples in batches of 48 are 5 full ones and one of 16.
        result = self.result("--steps", "6", "--warmup", "0", "--batch", "48")
        self.assertEqual(result["workers"], 1)
        self.assertEqual(result["steps"], 6)
        self.assertEqual(result["images"], 256)
        self.assertGreater(result["images_per_second"], 0)
        # ln 10 is the loss of a guess among ten.
        self.assertGreater(result["loss"], 1.5)
        self.assertLess(result["loss"], 3.0)

    def test_gpt_learns_its_text(self):
        # Two windows of 64 tokens, of 65 different ones; ln 65 is 4.17.
        flags = ("--net", "gpt_nano", "--batch", "2", "--limit", "64")
        done = run(TRAIN_STEP, *flags, "--steps", "3", "--warmup", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((result["net"], result["images"]), ("gpt_nano", 6))
        self.assertGreater(result["loss"], 3.0)
        self.assertLess(result["loss"], 4.5)

    def test_has_the_networks_of_the_comparison(self):
        done = run(TRAIN_STEP, "--net", "none")
        self.assertEqual(done.returncode, 2)
        self.assertIn(" of %s (" % ", ".join(NETS), done.stderr)

    def test_another_device_computes_the_same(self):
        flags = ("--steps", "3", "--warmup", "0")
        result = self.result(*flags, "--device", "cpu_async")
        self.assertEqual(result["device"], "cpu_async")
        self.assertEqual(result["loss"], self.result(*flags)["loss"])
        done = self.train_step(*flags, "--device", "abacus")
        self.assertEqual(done.returncode, 1)
        self.assertIn("abacus", done.stderr)

    def test_loss_falls(self):
        first = self.result("--steps", "4", "--warmup", "0")
        later = self.result("--steps", "4", "--warmup", "40")
        self.assertLess(later["loss"], 0.8 * first["loss"])

    def test_no_work_beside_the_fast_kernels(self):
        result = self.result("--batch", "64", "--steps", "4", "--warmup", "1")
        self.assertEqual(result["reference_runs"], 0)
        self.assertEqual(result["host_fallbacks"], 0)

    def test_bf16_learns_as_f32_does(self):
        flags = ("--graph", "true", "--steps", "4", "--warmup", "40")
        wide = self.result(*flags)
        mixed = self.result(*flags, "--bf16", "true")
        self.assertEqual(mixed["reference_runs"], 0)
        self.assertNotEqual(mixed["loss"], wide["loss"])
        self.assertAlmostEqual(
            mixed["loss"], wide["loss"], delta=0.05 * wide["loss"]
        )

    def test_other_networks(self):
        for net, data in (
            ("mlp", ("--data", DATA)),
            ("resnet20", ()),
        ):
            for workers in ("1", "2"):
                with self.subTest(net=net, workers=workers):
                    done = run(
                        *(TRAIN_STEP, "--net", net, *data, "--limit", "128"),
                        *("--workers", workers, "--batch", "16"),
                        *("--steps", "3", "--warmup", "1"),
                    )
                    self.assertEqual(done.returncode, 0, done.stderr)
                    result = json.loads(done.stdout)
                    self.assertEqual(result["net"], net)
                    self.assertEqual(result["images"], 48 * int(workers))
                    self.assertGreater(result["loss"], 1)
                    self.assertLess(result["loss"], 4)
                    self.assertEqual(result["reference_runs"], 0)
                    self.assertEqual(result["host_fallbacks"], 0)

    def test_resnet50_is_trained_on_made_up_images(self):
        flags = ("--net", "resnet50", "--batch", "1", "--limit", "2")
        flags += ("--graph", "true", "--steps", "1", "--warmup", "2")
        done = run(TRAIN_STEP, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["net"], "resnet50")
        self.assertEqual(result["images"], 1)
        self.assertAlmostEqual(result["dataset_mb"], 0.3, delta=0.01)
        # Two images are soon known by heart.
        self.assertGreater(result["loss"], 0)
        self.assertLess(result["loss"], 10)
        self.assertEqual(result["reference_runs"], 0)
        self.assertEqual(result["host_fallbacks"], 0)
        done = run(TRAIN_STEP, *flags, "--data", DATA)
        self.assertEqual(done.returncode, 1)
        self.assertIn("resnet50 is trained on made-up images", done.stderr)

    def test_two_workers_count_the_samples_of_both(self):
        # The global batch is 64, so that 256 samples are 4 steps.
        result = self.result(
            "--workers", "2", "--batch", "32", "--steps", "18", "--warmup", "2"
        )
        self.assertEqual(result["workers"], 2)
        self.assertEqual(result["steps"], 18)
        self.assertEqual(result["images"], 18 * 64)
        self.assertGreater(result["rss_mb"], 0)

    def test_two_workers_that_only_wait_share_no_gradients(self):
        flags = ("--workers", "2", "--steps", "6", "--warmup", "0")
        sharing = self.result(*flags)
        waiting = self.result(*flags, "--meet", "true")
        self.assertEqual(waiting["images"], sharing["images"])
        self.assertNotEqual(waiting["loss"], sharing["loss"])

    def test_two_workers_stop_by_the_clock_together(self):
        result = self.result("--workers", "2", "--seconds", "0.2")
        # Either worker's clock can be the one that says so.
        self.assertGreater(result["seconds"], 0.1)
        self.assertEqual(result["images"], result["steps"] * 32)

    def test_forward_only_predicts(self):
        flags = ("--forward_only", "true", "--warmup", "1")
        result = self.result(*flags, "--steps", "16")
        self.assertTrue(result["forward_only"])
        self.assertEqual(result["images"], 256)
        self.assertEqual(result["loss"], 0)
        self.assertEqual(result["reference_runs"], 0)
        done = self.train_step(*flags, "--steps", "2", "--profile", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("sgd", done.stdout)

    def test_gate_waits_for_a_line(self):
        flags = ("--gate", "true", "--steps", "1", "--warmup", "1")
        done = self.train_step(*flags, stdin="go\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[0], "ready")
        closed = self.train_step(*flags, stdin="")
        self.assertEqual(closed.returncode, 1)
        self.assertIn("standard input ended", closed.stderr)

    def test_profile_names_kernels(self):
        done = self.train_step(
            "--profile", "true", "--steps", "2", "--warmup", "1"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("conv2d", "16,1,28,28;20,1,5,5", "sgd_update", "loader"):
            self.assertIn(text, done.stdout)

    def test_wrong_flags_are_named(self):
        for flags, text in (
            (("--steps", "half"), "steps is 'half'"),
            (("--stepz", "1"), "no field is called 'stepz'"),
            (("--steps",), "'--steps' is no flag with a value"),
            (("--workers", "0"), "workers"),
        ):
            with self.subTest(flags):
                done = self.train_step(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(text, done.stderr)

    def test_missing_data_is_named(self):
        done = run(TRAIN_STEP, "--data", "/no/such/folder")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/folder", done.stderr)


if __name__ == "__main__":
    unittest.main()
