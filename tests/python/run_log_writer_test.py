# SPDX-License-Identifier: Apache-2.0
"""utils.RunLog: what it writes is what `python -m choir report` reads."""

import json
import math
import os
import tempfile
import time
import unittest

import numpy as np

from choir import StateError, _run_log, autograd, device, opt, tensor
from choir.utils import RunLog

CPU = device.create_cpu_device()


class RunLogs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "run.jsonl")
        self.states = {
            "w": tensor.from_numpy(np.ones((3, 4), np.float32)),
            "mean": tensor.from_numpy(np.ones(4, np.float32)),
        }
        self.states["w"].stores_grad = True

    def log(self, path=None, **more):
        path = self.path if path is None else path
        return RunLog(path, opt.SGD(0.1), self.states, "images", **more)

    def entries(self):
        with open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_a_report_is_what_was_done_between(self):
        log = self.log(model="none", batch=5)
        for step, samples in ((2, (5, 3)), (3, (5,))):
            time.sleep(0.5)  # of no round
            with log:
                for count in samples:
                    autograd.matmul(self.states["w"], self.states["w"].T())
                    time.sleep(0.02)
                    log.count(count)
            log.write(
                step, epoch=step - 2, loss=0.5 * step, evaluation_loss=math.nan
            )
        first, second = self.entries()
        self.assertEqual(first["digest"], f"{tensor.digest(self.states):016x}")
        self.assertEqual(first["run"]["parameters"], 12)
        self.assertEqual(first["run"]["comm"], "none")
        self.assertEqual(first["run"]["threads"], CPU.threads)
        self.assertEqual(len(first["run"]["hosts"]), 1)
        self.assertNotIn("run", second)
        self.assertIsNone(second["evaluation_loss"])
        for entry, steps, images in ((first, 2, 8), (second, 1, 5)):
            self.assertEqual(entry["steps"], steps)
            (rank,) = entry["ranks"]
            self.assertEqual(rank["images"], images)
            parts = [rank[f"{part}_seconds"] for part in _run_log.PARTS]
            self.assertAlmostEqual(sum(parts), rank["seconds"], places=6)
            self.assertGreater(rank["seconds"], 0.02 * steps)
            self.assertLess(rank["seconds"], 0.5)
            self.assertAlmostEqual(
                entry["images_per_second"], images / rank["seconds"]
            )
        run = _run_log.read(self.path)
        self.assertEqual(run.labels, "images")
        self.assertEqual([r.step for r in run.reports], [2, 3])
        self.assertEqual([r.training_loss for r in run.reports], [1.0, 1.5])
        self.assertIsNone(run.reports[0].validation_loss)
        self.assertEqual(run.facts["model"], "none")

    def test_goes_on_behind_what_is_there(self):
        for append, count in ((False, 1), (True, 2), (False, 1)):
            log = self.log(append=append)
            with log:
                log.count(1)
            log.write(1, loss=np.float32(2), training_loss=np.float64(4))
            found = self.entries()
            self.assertEqual(len(found), count)
            self.assertEqual(found[-1]["loss"], 2)
            self.assertEqual(found[-1]["training_loss"], 4)

    def test_without_a_path_seconds_alone(self):
        log = self.log("")
        with log, self.log():  # no profile of its own runs
            time.sleep(0.02)
            log.count(1)
        log.write(1, loss=0.0)
        self.assertGreater(log.seconds, 0.02)
        self.assertEqual(self.entries(), [])

    def test_mistakes(self):
        with self.assertRaises(FileNotFoundError):
            self.log("/nowhere/run.jsonl")
        log = self.log()
        with self.assertRaises(TypeError):
            log.write(1.5, loss=0.0)
        with self.assertRaisesRegex(StateError, "profile"):
            with log, self.log():
                pass
        with self.assertRaisesRegex(ValueError, "my own"):
            with log:
                raise ValueError("my own")
        with log:  # neither left one running
            pass


if __name__ == "__main__":
    unittest.main()
