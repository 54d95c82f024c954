# SPDX-License-Identifier: Apache-2.0
"""The driver runs every job once and writes its table. How fast that is, no
test asks; limits of time are guards against a hang."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
TRAIN = os.path.join(ROOT, "bench", "train.py")
TORCH_TRAIN = os.path.join(ROOT, "bench", "peers", "torch_train.py")

# Debian's interpreter without what packages add: PyTorch is never there.
WITHOUT_PACKAGES = '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n'


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


class TrainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = os.path.join(folder.name, "results.json")
        self.python = os.path.join(folder.name, "python")
        with open(self.python, "w", encoding="ascii") as file:
            file.write(WITHOUT_PACKAGES)
        os.chmod(self.python, 0o755)

    def train(self, *flags):
        return run(
            sys.executable,
            TRAIN,
            *("--rounds", "1", "--seconds", "0.1", "--limit", "1024"),
            *("--torch-python", self.python, "--json", self.json),
            *flags,
        )

    def test_table_has_every_job_and_says_what_is_missing(self):
        done = self.train()
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            record = json.load(file)
        torch = ["torch_nchw", "torch_channels_last", "torch_traced"]
        torch += ["torch_avx512", "torch2_ddp", "torch_newest_nchw"]
        torch += ["torch_newest_channels_last", "torch_newest_compiled"]
        torch += ["torch_newest2_ddp"]
        self.assertEqual(sorted(record["missing"]), sorted(torch))
        self.assertIn("install_torch.sh", record["missing"]["torch_nchw"])
        newest = record["missing"]["torch_newest_compiled"]
        self.assertIn("--torch-newest", newest)
        mine = [name for name in record["results"] if name not in torch]
        self.assertEqual(len(mine), 8, mine)
        for name in mine:
            self.assertEqual(len(record["results"][name]), 1)
            speed = record["results"][name][0]["images_per_second"]
            self.assertGreater(speed, 0)
        parts = record["results"]["independent2"][0]["parts"]
        self.assertEqual([part["workers"] for part in parts], [1, 1])
        rows = done.stdout.splitlines()
        missing = [row for row in rows if "not there" in row]
        self.assertEqual(len(missing), len(torch), done.stdout)
        ratio = [row for row in rows if row.startswith("2 workers / 2 ind")]
        self.assertRegex(ratio[0], r" \d+\.\d\d \(\d+\.\d\d\.\.\d+\.\d\d\)")
        ratio = [row for row in rows if row.startswith("Choir / best")]
        self.assertRegex(ratio[0], r"PyTorch +- +>= 2.0")
        ratios = {row["text"]: row["values"] for row in record["ratios"]}
        first = {n: r[0] for n, r in record["results"].items() if r}
        speed = {n: r["images_per_second"] for n, r in first.items()}
        self.assertEqual(
            ratios["Choir / bare oneDNN loop"],
            [max(speed["choir"], speed["choir_graph"]) / speed["onednn"]],
        )
        self.assertEqual(ratios["Choir / best PyTorch"], [])

    def test_only_runs_what_is_asked_for(self):
        done = self.train("--only", "choir")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(list(json.load(file)["results"]), ["choir"])

    def test_forward_only_on_two_threads(self):
        flags = ("--forward-only", "--threads", "2", "--batch", "32")
        done = self.train(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("forward only, batch 32", done.stdout)
        self.assertIn("2 threads each", done.stdout)
        with open(self.json, encoding="utf-8") as file:
            record = json.load(file)
        self.assertTrue(record["forward_only"])
        ran = [job for job, results in record["results"].items() if results]
        self.assertEqual(ran, ["choir", "choir_graph", "onednn"])
        for job in ran:
            result = record["results"][job][0]
            self.assertEqual(result["threads"], 2)
            self.assertEqual(result["batch"], 32)

    def test_an_environment_without_torch_is_missing(self):
        folder = os.path.dirname(self.python)
        os.mkdir(os.path.join(folder, "bin"))
        os.rename(self.python, os.path.join(folder, "bin", "python"))
        flags = ("--only", "torch_newest_compiled", "--torch-newest", folder)
        done = self.train(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            missing = json.load(file)["missing"]
        self.assertIn("in " + folder, missing["torch_newest_compiled"])
        empty = os.path.join(folder, "empty")
        done = self.train(*flags[:2], "--torch-newest", empty)
        self.assertIn("empty/bin/python is no program", done.stdout)

    def test_net_is_trained_by_all_jobs_that_know_it(self):
        done = self.train("--net", "resnet20", "--batch", "16")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            record = json.load(file)
        ran = [job for job, results in record["results"].items() if results]
        mine = ("choir", "choir2", "independent2")
        both = [name + graph for name in mine for graph in ("", "_graph")]
        self.assertEqual(sorted(ran), sorted([*both, "meeting2_graph"]))
        for job in ("choir", "choir2"):
            self.assertEqual(record["results"][job][0]["net"], "resnet20")
        self.assertIn("resnet20, batch 16 for each process", done.stdout)

    @unittest.skipIf(
        os.path.exists("/proc/driver/nvidia/version"),
        "asks what is said without a GPU",
    )
    def test_a_gpu_that_is_not_there(self):
        flags = ("--device", "cuda", "--only", "choir,torch_cuda_graph")
        done = self.train(*flags)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no NVIDIA driver", done.stderr)
        done = self.train(*flags, "--keep-going", "--batch", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.json, encoding="utf-8") as file:
            record = json.load(file)
        self.assertEqual(record["device"], "cuda")
        self.assertIn("ended with status 1", record["missing"]["choir"])
        self.assertIn("torch", record["missing"]["torch_cuda_graph"])
        self.assertIn("mnist_cnn on cuda, batch 8", done.stdout)

    def test_a_failed_job_fails_the_run(self):
        done = self.train("--only", "choir,choir2", "--data", "/no/such")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with status 1", done.stderr)
        self.assertIn("/no/such", done.stderr)

    def test_wrong_flags_are_named(self):
        for flags in (
            ("--only", "tensorflow"),
            ("--only", "onednn", "--net", "mlp"),
            ("--data", ".", "--net", "resnet20"),
            ("--data", ".", "--net", "resnet50"),
            ("--only", "choir2", "--forward-only"),
            ("--only", "torch_cuda_graph"),
            ("--only", "onednn", "--device", "cuda"),
            ("--threads", "0"),
            ("--rounds", "0"),
            ("--net", "lenet"),
            ("--x",),
        ):
            with self.subTest(flags):
                done = self.train(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flags[0], done.stderr)

    def test_torch_job_says_that_torch_is_missing(self):
        done = run(self.python, TORCH_TRAIN, "--config", "nchw")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("torch", json.loads(done.stdout)["missing"])


if __name__ == "__main__":
    unittest.main()
