# SPDX-License-Identifier: Apache-2.0
"""What users get wrong at first, and the sentences they get."""

import os
import subprocess
import sys
import unittest
from unittest import mock

import numpy as np

import choir
from choir import StateError, UnavailableError, autograd, data, device, layer
from choir import model, opt, tensor


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.l = layer.Linear(3)

    def forward(self, x):
        return self.l(x)

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def batch(labels=(0, 1, 2, 1)):
    x = np.ones((4, 5), np.float32)
    return tensor.from_numpy(x), tensor.from_numpy(np.array(labels, np.int32))


def compiled():
    x, y = batch()
    m = Net()
    m.set_optimizer(opt.SGD(lr=0.1))
    m.compile([x], is_train=True)
    return m, x, y


def script(code, **environment):
    """Runs Python with `code`; (exit status, stderr)."""
    paths = os.pathsep.join(
        [os.path.dirname(os.path.dirname(choir.__file__))] + sys.path
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )
    return done.returncode, done.stderr


class Mistakes(unittest.TestCase):
    def test_arrays_instead_of_tensors(self):
        x = np.ones((4, 5), np.float32)
        with self.assertRaisesRegex(
            TypeError, "ndarray given; a Tensor is needed .tensor.from_numpy"
        ):
            autograd.relu(x)
        with self.assertRaisesRegex(
            TypeError, "compile: an input is a ndarray"
        ):
            Net().compile([x])
        with self.assertRaisesRegex(TypeError, "backward: ndarray given"):
            next(autograd.backward(x))

    def test_wrong_dtypes_and_shapes(self):
        m, x, y = compiled()
        with self.assertRaisesRegex(TypeError, "float16, int32"):
            tensor.from_numpy(np.ones(3, np.complex64))
        with self.assertRaisesRegex(TypeError, "Linear: the input is int32"):
            Net().compile([y.reshape((2, 2))])
        with self.assertRaisesRegex(ValueError, r"f32 \(20\); 2 or more dim"):
            Net().compile([x.reshape((20,))])
        with self.assertRaisesRegex(ValueError, "linear"):
            m(tensor.ones((4, 6)), y)
        with self.assertRaisesRegex(ValueError, "one element is needed"):
            autograd.training = True
            m.optimizer(m.forward(x))

    def test_labels_out_of_range(self):
        m, x, _ = compiled()
        with self.assertRaisesRegex((ValueError, IndexError), "3"):
            m(x, batch((0, 1, 3, 2))[1])
            device.get_default_device().Sync()

    def test_forgotten_steps(self):
        x, y = batch()
        m = Net()
        m.compile([x], is_train=True)
        with self.assertRaisesRegex(
            StateError, r"Net has no optimizer: call model.set_optimizer"
        ):
            m(x, y)
        autograd.training = False
        with self.assertRaisesRegex(StateError, "autograd.training = True"):
            next(autograd.backward(autograd.mse_loss(x, x)))

    def test_names_that_are_not_there(self):
        with self.assertRaisesRegex(
            ValueError, "dist_option is 'fp64'; one of .*fp32.* is needed"
        ):
            opt.DistOpt(opt.SGD()).use("fp64")
        with self.assertRaisesRegex(
            TypeError, "Conv2d has no setting 'strides'"
        ):
            layer.Conv2d(4, 3, strides=2)
        with self.assertRaisesRegex(TypeError, "Linear has no setting 'biass'"):
            layer.Linear(3, biass=False)

    def test_half_a_rendezvous(self):
        with self.assertRaisesRegex(
            ValueError, "go with nccl_id, the rendezvous"
        ):
            opt.DistOpt(opt.SGD(), local_rank=0, world_size=2)
        with self.assertRaisesRegex(
            TypeError, "opt is a float; an optimizer is"
        ):
            opt.DistOpt(0.1)

    def test_missing_files(self):
        m, _, _ = compiled()
        for load in (m.load_states, m.load_checkpoint, data.mnist):
            with self.assertRaisesRegex(FileNotFoundError, "no-such-file"):
                load("no-such-file")

    def test_no_gpu(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("CHOIR_DEVICE", None)
            with self.assertRaisesRegex(
                UnavailableError, "set CHOIR_DEVICE=cpu"
            ):
                device.create_cuda_gpu_on(99)
            os.environ["CHOIR_DEVICE"] = "gpu"
            with self.assertRaisesRegex(ValueError, "cpu or cuda is needed"):
                device.create_cuda_gpu_on(0)

    def test_a_number_below_zero_is_not_the_first_gpu(self):
        asked = []

        def refuse(_function, name, options):
            asked.append((name, options._obj.index))
            raise IndexError("no such GPU")

        with mock.patch.object(device, "get", refuse):
            with self.assertRaisesRegex(UnavailableError, "no such GPU"):
                device.create_cuda_gpu_on(-1)
        self.assertEqual(asked, [(b"cuda", -1)])

    def test_gpus_are_counted(self):
        ids = device.get_gpu_ids()
        self.assertEqual(device.get_num_gpus(), len(ids))
        for i in ids:
            free, total = device.get_gpu_mem_size(i)
            self.assertLessEqual(free, total)
            self.assertIn("compute capability", device.device_query(i, True))
        # A number that no GPU has: which there are, or why there is none.
        for question in (device.get_gpu_mem_size, device.device_query):
            with self.assertRaisesRegex(
                (IndexError, UnavailableError),
                "GPU 99 asked for|NVIDIA driver",
            ):
                question(99)

    def test_the_cpu_in_its_place_is_said_once(self):
        status, said = script(
            "from choir import device\n"
            "for i in range(3):\n"
            "    assert device.create_cuda_gpu_on(0).id() == -1\n",
            CHOIR_DEVICE="cpu",
        )
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count("the CPU takes the place of the GPU"), 1)

    def test_a_wrong_library(self):
        status, said = script("import choir", CHOIR_LIBRARY="/no/libchoir.so")
        self.assertNotEqual(status, 0)
        self.assertIn("ImportError", said)
        self.assertIn("/no/libchoir.so", said)

    def test_wrong_threads(self):
        status, said = script(
            "from choir import tensor; tensor.ones((1,))", CHOIR_THREADS="many"
        )
        self.assertNotEqual(status, 0)
        self.assertIn("CHOIR_THREADS is 'many'; a number above 0", said)


if __name__ == "__main__":
    unittest.main()
