# SPDX-License-Identifier: Apache-2.0
"""Scripts of SINGA's, run by `python -m choir.singa`; names of singa_wrap."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import numpy as np

from choir import device, singa_wrap, tensor

SCRIPT = """
    import multiprocessing
    import sys

    import singa.tensor
    from singa import autograd, device, layer, model, opt, singa_wrap
    from singa.layer import Linear

    dev = device.create_cuda_gpu() if singa_wrap.USE_CUDA else device.get_default_device()


    class Net(model.Model):
        def __init__(self):
            super().__init__()
            self.fc = Linear(2)

        def forward(self, x):
            return self.fc(x)

        def train_one_batch(self, x, y):
            out = self.forward(x)
            loss = autograd.softmax_cross_entropy(out, y)
            self.optimizer(loss)
            return out, loss


    def work(rank):
        x = singa.tensor.Tensor((4, 3), dev)
        x.gaussian(0.0, 1.0)
        y = singa.tensor.Tensor((4,), dev, singa.tensor.int32)
        y.copy_from_numpy([0, 1, 1, 0])
        net = Net()
        net.set_optimizer(opt.SGD(lr=0.1))
        net.compile([x], is_train=True, use_graph=True)
        for _ in range(3):
            _, loss = net(x, y)
        print("trained", rank, *sys.argv[1:], flush=True)


    if __name__ == "__main__":
        work(0)
        child = multiprocessing.get_context("spawn").Process(target=work, args=(1,))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


class ScriptTest(unittest.TestCase):
    def run_script(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
            return self.run_command(path, *arguments)

    def run_command(self, *arguments):
        # The package's folder, wherever the test found it.
        paths = os.pathsep.join(sys.path)
        return subprocess.run(
            [sys.executable, "-m", "choir.singa", *arguments],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_runs_a_script_and_the_processes_that_it_starts(self):
        done = self.run_script(SCRIPT, "-m", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines(), ["trained 0 -m 2", "trained 1 -m 2"]
        )

    def test_status_and_errors_are_the_script_s(self):
        self.assertEqual(self.run_script("raise SystemExit(3)").returncode, 3)
        done = self.run_script("import singa.nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("singa.nothing", done.stderr)

    def test_wrong_command_lines(self):
        done = self.run_command()
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: ", done.stderr)
        self.assertEqual(self.run_command("--help").returncode, 0)
        done = self.run_command("nothing.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn("'nothing.py'", done.stderr)


class NamesTest(unittest.TestCase):
    def test_what_was_built(self):
        self.assertTrue(singa_wrap.USE_DIST)
        self.assertEqual(singa_wrap.USE_CUDA, device.get_num_gpus() > 0)
        with self.assertRaises(AttributeError):
            singa_wrap.USE_OPENCL

    def test_element_types(self):
        for code, dtype in (
            (singa_wrap.kFloat32, tensor.float32),
            (singa_wrap.kFloat16, tensor.float16),
            (singa_wrap.kInt, tensor.int32),
        ):
            raw = singa_wrap.Tensor([2, 3], device.get_default_device(), code)
            self.assertEqual(tensor.Tensor(data=raw).dtype, dtype)


class WholeNumbersTest(unittest.TestCase):
    def test_floats_that_are_whole_go_into_integers(self):
        t = tensor.Tensor((3,), dtype=tensor.int32)
        t.copy_from_numpy(np.array([1.0, -2.0, 3.0]))
        self.assertEqual(tensor.to_numpy(t).tolist(), [1, -2, 3])

    def test_others_do_not(self):
        t = tensor.Tensor((2,), dtype=tensor.int32)
        for wrong in ([0.5, 1.0], [2.0**31, 0.0], [np.nan, 0.0]):
            with self.assertRaises(TypeError):
                t.copy_from_numpy(np.array(wrong))


if __name__ == "__main__":
    unittest.main()
