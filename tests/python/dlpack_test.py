# SPDX-License-Identifier: Apache-2.0
"""DLPack: both ways without a copy, owners kept alive as long as they are used,
and a sentence for what cannot be handed on. With PyTorch too, where it is."""

import ctypes
import gc
import importlib.util
import subprocess
import sys
import threading
import unittest
import weakref
from unittest import mock

import numpy as np

from choir import _dlpack, device, tensor

CPU = device.create_cpu_device()
SHARED = ["float32", "float64", "float16", "int32", "int64", "uint8"]


def in_use():
    gc.collect()
    return CPU.memory()["in_use"]


class Foreign:
    """Somebody else's object with __dlpack__, over an array."""

    def __init__(self, array, kind=1):
        self.array = array
        self.kind = kind

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (self.kind, 0)


class Out(unittest.TestCase):
    def test_numpy_sees_the_same_memory(self):
        for dtype in SHARED:
            x = tensor.Tensor((2, 3), dtype=dtype)
            x.copy_from_numpy(np.arange(6).reshape(2, 3).astype(dtype))
            array = np.from_dlpack(x)
            self.assertEqual(array.dtype, np.dtype(dtype))
            np.testing.assert_array_equal(array, x.numpy())
            x[1, 2] = 77
            CPU.Sync()
            self.assertEqual(array[1, 2], 77)

    def test_strides_and_offsets(self):
        whole = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        x = tensor.from_numpy(whole)
        for part, expected in [
            (x[1:, ::2], whole[1:, ::2]),
            (x.transpose((2, 0, 1)), whole.transpose(2, 0, 1)),
            (x[2, 3, 4], whole[2, 3, 4]),
            (x[0:0], whole[0:0]),
        ]:
            array = np.from_dlpack(part)
            np.testing.assert_array_equal(array, expected)
            self.assertEqual(array.shape, expected.shape)

    def test_memory_lives_as_long_as_the_array_and_no_longer(self):
        before = in_use()
        x = tensor.ones((1000,))
        array = np.from_dlpack(x)
        used = in_use()
        del x
        self.assertEqual(in_use(), used)
        self.assertEqual(array.sum(), 1000)
        del array
        self.assertEqual(in_use(), before)
        self.assertEqual(_dlpack._exports, {})

    def test_a_capsule_that_nobody_takes(self):
        before = in_use()
        capsule = tensor.ones((1000,)).__dlpack__()
        self.assertGreater(in_use(), before)
        self.assertIn('"dltensor"', repr(capsule))
        del capsule
        self.assertEqual(in_use(), before)

    def test_device(self):
        self.assertEqual(tensor.ones(2).__dlpack_device__(), (1, 0))
        self.assertIsNotNone(tensor.ones(2).__dlpack__(stream=None))
        with self.assertRaisesRegex(BufferError, "stream is 3; host memory"):
            tensor.ones(2).__dlpack__(stream=3)

    def test_memory_that_is_not_the_hosts(self):
        x = tensor.ones(2)
        with mock.patch.object(device.Device, "is_host", lambda self: False):
            for call in (x.__dlpack__, x.__dlpack_device__):
                with self.assertRaisesRegex(BufferError, "only host memory"):
                    call()

    def test_deleter_from_another_thread(self):
        before = in_use()
        arrays = [np.from_dlpack(tensor.ones((100,))) for _ in range(50)]
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join()
        self.assertEqual(in_use(), before)

    def test_arrays_that_outlive_everything(self):
        # Whatever order the interpreter takes things apart in.
        text = (
            "import numpy as np; from choir import tensor;"
            "np.kept = np.from_dlpack(tensor.ones(9));"
            "tensor.kept = tensor.from_dlpack(np.ones(9));"
            "tensor.round_trip = tensor.from_dlpack(tensor.ones(9));"
            "tensor.capsule = tensor.ones(9).__dlpack__(); print('end')"
        )
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
            | {"CHOIR_LIBRARY": str(_dlpack.lib.path)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr), (0, "end\n", "")
        )


class In(unittest.TestCase):
    def test_shares_memory_with_numpy(self):
        for dtype in SHARED:
            array = np.arange(6).reshape(2, 3).astype(dtype)
            x = tensor.from_dlpack(array)
            self.assertEqual(np.asarray(x).dtype, array.dtype)
            np.testing.assert_array_equal(x.numpy(), array)
            array[1, 2] = 77
            self.assertEqual(x[1, 2].item(), 77)
            x[0, 0] = 55
            CPU.Sync()
            self.assertEqual(array[0, 0], 55)

    def test_strides_and_offsets(self):
        whole = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        for part in (
            whole[1:, ::2],
            whole.transpose(2, 0, 1),
            whole[2, 3, 4:],
            whole[0:0],
            np.float32(3) * np.ones(()),
            np.broadcast_to(whole[0, 0], (2, 5)).copy(),
        ):
            x = tensor.from_dlpack(np.asarray(part))
            self.assertEqual(x.shape, np.shape(part))
            np.testing.assert_array_equal((x + 1).numpy(), part + 1)

    def test_keeps_the_owner_and_lets_it_go(self):
        class Owner(np.ndarray):
            pass

        array = np.ones(100).view(Owner)
        owner = weakref.ref(array)
        x = tensor.from_dlpack(array)
        part = x[10:20]
        del array, x
        gc.collect()
        self.assertIsNotNone(owner())
        self.assertEqual(part.numpy().sum(), 10)
        del part
        gc.collect()
        self.assertIsNone(owner())

    def test_round_trip(self):
        before = in_use()
        x = tensor.ones((2, 3))
        y = tensor.from_dlpack(x.T())
        self.assertEqual(y.shape, (3, 2))
        y[0, 1] = 5
        self.assertEqual(x[1, 0].item(), 5)
        del x, y
        self.assertEqual(in_use(), before)
        self.assertEqual(_dlpack._exports, {})

    def test_a_capsule_once(self):
        capsule = np.ones(3).__dlpack__()
        x = tensor.from_dlpack(capsule)
        self.assertEqual(x.shape, (3,))
        with self.assertRaisesRegex(BufferError, "taken before"):
            tensor.from_dlpack(capsule)

    def test_refuses_other_objects(self):
        for other in (3, "text", [1, 2]):
            with self.assertRaisesRegex(TypeError, "an object with __dlpack__"):
                tensor.from_dlpack(other)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        with self.assertRaisesRegex(BufferError, "holds no DLPack tensor"):
            tensor.from_dlpack(new(8, b"something", None))

    def test_refuses_what_choir_lacks(self):
        for array, words in [
            (np.ones(3, np.complex64), "dtype complex64"),
            (np.ones(3, np.uint16), "dtype uint16"),
            (np.ones(3, np.int8), "dtype int8"),
            (np.ones(3)[::-1], "dimension 0 has stride -1"),
            (np.ones((1,) * 9), "9 dimensions; at most 8"),
        ]:
            references = sys.getrefcount(array)
            with self.assertRaisesRegex(BufferError, words):
                tensor.from_dlpack(array)
            # It was not taken, so it is not kept.
            self.assertEqual(sys.getrefcount(array), references)

    def test_refuses_memory_of_a_gpu(self):
        for kind, words in [(2, "of CUDA"), (10, "of ROCm"), (77, "kind 77")]:
            with self.assertRaisesRegex(BufferError, words):
                tensor.from_dlpack(Foreign(np.ones(3), kind))
        self.assertEqual(tensor.from_dlpack(Foreign(np.ones(3), 3)).size(), 3)


@unittest.skipUnless(
    importlib.util.find_spec("torch"), "PyTorch is not installed"
)
class Torch(unittest.TestCase):
    def test_both_ways(self):
        import torch

        for dtype in SHARED + ["bfloat16"]:
            theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
            ours = tensor.from_dlpack(theirs.T)
            self.assertEqual(ours.shape, (3, 2))
            self.assertEqual(tensor.Tensor.dtype_name[ours.dtype], dtype)
            theirs[0, 1] = 77
            self.assertEqual(ours.as_type("float32")[1, 0].item(), 77)
            back = torch.from_dlpack(ours)
            self.assertEqual(back.data_ptr(), theirs.data_ptr())
            self.assertTrue(torch.equal(back, theirs.T))


if __name__ == "__main__":
    unittest.main()
