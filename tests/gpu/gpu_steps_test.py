# SPDX-License-Identifier: Apache-2.0
"""The steps of a run on a GPU machine: what is asked of each program is what it
knows, so that no flag is found wrong there; and what must be measured is."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(os.path.dirname(HERE))]
import gpu_steps  # noqa: E402

from bench import train  # noqa: E402

# PyTorch's forms that a figure of Choir's stands beside.
PEERS = {"torch_channels_last", "torch_compiled", "torch_cuda_graph"}


def measurements():
    """Of each training step: the flags as bench/train.py reads them."""
    found = []
    for step in gpu_steps.STEPS:
        if step.kind == gpu_steps.TRAIN:
            script = step.command.index("bench/train.py")
            found.append(train.parse(step.command[script + 1 :]))
    return found


class GpuStepsTest(unittest.TestCase):
    def test_each_step_has_its_own_name(self):
        names = [step.name for step in gpu_steps.STEPS]
        self.assertEqual(len(set(names)), len(names))

    def test_networks_are_measured_in_f32_and_bf16(self):
        measured = {(m.net, m.batch, m.bf16) for m in measurements()}
        for case in (
            ("mnist_cnn", 64, False),
            ("mnist_cnn", 1024, False),
            ("mnist_cnn", 1024, True),
            ("resnet20", 128, False),
            ("resnet20", 128, True),
            ("resnet50", 32, False),
            ("resnet50", 32, True),
        ):
            self.assertIn(case, measured)

    def test_peers_are_measured_in_the_same_call(self):
        for measured in measurements():
            self.assertEqual(measured.device, "cuda")
            self.assertTrue(measured.keep_going)
            self.assertLessEqual({"choir_graph", *PEERS}, set(measured.only))


if __name__ == "__main__":
    unittest.main()
