# SPDX-License-Identifier: Apache-2.0
"""choir.tensor against NumPy: everything that is public in it."""

import copy
import gc
import inspect
import pickle
import unittest
from unittest import mock

import numpy as np

from choir import device, tensor

CPU = device.create_cpu_device()
RNG = np.random.default_rng(1)
SHAPES = [(), (1,), (7,), (2, 3), (4, 1, 5), (2, 3, 4, 5), (0, 3)]
FLOATS = ["float32", "float64", "float16"]
WHOLE = ["int32", "int64", "uint8"]


def array_of(shape, dtype="float32", low=-3.0, high=3.0):
    if np.dtype(dtype).kind == "f":
        return np.asarray(RNG.uniform(low, high, shape), dtype)
    return np.asarray(RNG.integers(0, 9, shape), dtype)


def tensor_of(array):
    """With the array's own dtype, which from_numpy may change."""
    t = tensor.Tensor(array.shape, dtype=array.dtype)
    t.copy_from_numpy(array)
    return t


def in_use():
    gc.collect()
    return CPU.memory()["in_use"]


class Case(unittest.TestCase):
    def near(self, got, expected, rtol=2e-6, atol=1e-6):
        expected = np.asarray(expected)
        self.assertEqual(tuple(got.shape), expected.shape)
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            expected.astype(np.float64),
            rtol=rtol,
            atol=atol,
        )

    def same(self, got, expected):
        expected = np.asarray(expected)
        self.assertEqual(tuple(got.shape), expected.shape)
        np.testing.assert_array_equal(np.asarray(got), expected)


class WhatItIs(Case):
    def test_defaults(self):
        t = tensor.Tensor((2, 3))
        self.assertEqual(t.shape, (2, 3))
        self.assertEqual((t.ndim(), t.size(), len(t)), (2, 6, 2))
        self.assertEqual((t.dtype, t.memsize()), (tensor.float32, 24))
        self.assertIs(t.device, CPU)
        self.assertTrue(t.requires_grad)
        self.assertFalse(t.stores_grad)
        self.assertIsNone(t.creator)
        self.assertFalse(t.is_transpose())
        self.assertTrue(t.T().is_transpose())
        self.assertFalse(t.is_empty())
        self.assertTrue(tensor.Tensor().is_empty())
        self.same(t, np.zeros((2, 3)))
        self.assertEqual(tensor.Tensor(5).shape, (5,))
        self.assertIs(tensor.PlaceHolder, tensor.Tensor)

    def test_names(self):
        a, b = tensor.ones(1), tensor.ones(1)
        self.assertTrue(a.is_dummy())
        self.assertRegex(a.name, r"^Dummy#\d+$")
        self.assertNotEqual(a.name, b.name)
        self.assertTrue(a.is_dummy())
        a.name = "conv1.W"
        self.assertFalse(a.is_dummy())

    def test_dtypes(self):
        for dtype in FLOATS + WHOLE + ["bool"]:
            for given in (
                dtype,
                np.dtype(dtype),
                getattr(np, dtype + "_" * (dtype == "bool")),
            ):
                t = tensor.Tensor((3,), dtype=given)
                self.assertEqual(np.asarray(t).dtype, np.dtype(dtype))
                self.assertEqual(tensor.Tensor.dtype_name[t.dtype], dtype)
                self.assertEqual(
                    tensor.sizeof(t.dtype), np.dtype(dtype).itemsize
                )
            self.assertEqual(tensor.Tensor((3,), dtype=t.dtype).dtype, t.dtype)
        self.assertEqual(tensor.Tensor((1,), dtype="int").dtype, tensor.int32)
        self.assertEqual(tensor.Tensor((1,), dtype=float).dtype, tensor.float32)
        self.assertEqual(
            (tensor.float32, tensor.float16, tensor.int32), (0, 1, 2)
        )
        for wrong in ("float8", 99, None, True):
            with self.assertRaisesRegex(ValueError, "unknown; one of float32"):
                tensor.Tensor((1,), dtype=wrong)
        with self.assertRaisesRegex(TypeError, "complex64 is none of Choir's"):
            tensor.Tensor((1,), dtype=np.complex64)
        with self.assertRaisesRegex(ValueError, "has a negative size"):
            tensor.Tensor((2, -1))

    def test_bfloat16(self):
        t = tensor.Tensor((3,), dtype="bfloat16").set_value(1.00390625)
        self.assertEqual(
            (t.dtype, tensor.sizeof(t.dtype)), (tensor.bfloat16, 2)
        )
        self.same(t, np.ones(3))  # to even: 1 + 2^-8 lies half way
        self.assertEqual((t + 1).dtype, tensor.bfloat16)

    def test_truth_and_numbers(self):
        self.assertTrue(tensor.ones((1, 1)))
        self.assertFalse(tensor.zeros(()))
        self.assertEqual(float(tensor.ones(1) * 2.5), 2.5)
        self.assertEqual(int(tensor.ones(1) * 2.5), 2)
        self.assertEqual(tensor.from_numpy(np.array([7])).item(), 7)
        with self.assertRaisesRegex(
            ValueError, r"shape \(2,\) is not one value"
        ):
            bool(tensor.ones(2))
        with self.assertRaisesRegex(ValueError, "item: the tensor has shape"):
            tensor.ones((2, 1)).item()
        with self.assertRaisesRegex(TypeError, "has no length"):
            len(tensor.ones(()))
        with self.assertRaisesRegex(TypeError, "unhashable"):
            {tensor.ones(1): 1}

    def test_repr(self):
        t = tensor.from_numpy(np.arange(4, dtype=np.float32).reshape(2, 2))
        self.assertEqual(
            repr(t), "Tensor([[0., 1.],\n        [2., 3.]], float32)"
        )

    def test_iteration(self):
        array = array_of((3, 2))
        rows = list(tensor.from_numpy(array))
        self.assertEqual(len(rows), 3)
        for row, expected in zip(rows, array):
            self.same(row, expected)

    def test_everything_public_is_tested(self):
        """A new name of the module needs a line in this file."""
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        for name, value in vars(tensor).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            if value.__module__ == "choir.tensor":
                self.assertTrue(f"tensor.{name}" in text, name)
        for name, value in vars(tensor.Tensor).items():
            if not name.startswith("_") and inspect.isfunction(value):
                self.assertTrue(f".{name}(" in text, name)


class ToAndFrom(Case):
    def test_numpy_and_back(self):
        for shape in SHAPES:
            for dtype in FLOATS + WHOLE + ["bool"]:
                array = array_of(shape, dtype)
                t = tensor_of(array)
                self.same(t.numpy(), array)
                self.assertEqual(tensor.to_numpy(t).dtype, array.dtype)
                self.same(tensor.to_host(t), array)

    def test_from_numpy_narrows_as_singa_does(self):
        for given, expected in [
            ("float64", tensor.float32), ("int64", tensor.int32),
            ("float16", tensor.float16), ("uint8", tensor.uint8),
        ]:  # fmt: skip
            t = tensor.from_numpy(np.ones(3, given), CPU)
            self.assertEqual(t.dtype, expected)
        self.same(tensor.from_numpy([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
        with self.assertRaisesRegex(ValueError, "does not fit into int32"):
            tensor.from_numpy(np.array([1 << 40]))
        # Other byte orders and strides.
        self.same(tensor.from_numpy(np.arange(3, dtype=">f4")), [0, 1, 2])
        array = array_of((4, 6))
        self.same(tensor.from_numpy(array[::2, ::-3]), array[::2, ::-3])

    def test_data_argument(self):
        array = array_of((2, 3))
        t = tensor.Tensor(data=array)
        array[0, 0] = 99
        self.assertNotEqual(t[0, 0].item(), 99)
        other = tensor.Tensor(data=t)
        other.set_value(0)
        self.assertNotEqual(t[0, 1].item(), 0)
        self.assertIs(tensor.Tensor(data=t.data).data, t.data)
        self.same(tensor.Tensor(data=[1, 2]), [1, 2])

    def test_array_shares_memory(self):
        t = tensor.ones((2, 3))
        array = np.asarray(t)
        array[0, 1] = 7
        self.assertEqual(t[0, 1].item(), 7)
        t[1, 2] = 8
        CPU.Sync()
        self.assertEqual(array[1, 2], 8)
        self.same(t.T(), array.T)
        self.assertTrue(np.shares_memory(np.asarray(t.T()), array))
        self.assertTrue(np.shares_memory(np.asarray(t[1]), array))
        self.assertFalse(np.shares_memory(t.numpy(), array))
        self.assertFalse(np.shares_memory(np.array(t), array))
        self.assertEqual(np.asarray(t, np.float64).dtype, np.float64)
        self.assertEqual(np.sin(t).shape, (2, 3))
        self.assertTrue(np.shares_memory(t.__array__(copy=False), array))
        self.assertFalse(np.shares_memory(t.__array__(copy=True), array))

    def test_array_without_a_copy_where_there_must_be_one(self):
        t = tensor.ones((2,), dtype="bfloat16")
        np.testing.assert_array_equal(np.asarray(t), [1, 1])
        on_gpu = tensor.ones((2,))
        with mock.patch.object(device.Device, "is_host", lambda self: False):
            for far in (t, on_gpu):
                with self.assertRaisesRegex(ValueError, "a copy"):
                    far.__array__(copy=False)
        with self.assertRaisesRegex(ValueError, "a copy"):
            t.__array__(copy=False)
        with self.assertRaisesRegex(ValueError, "a copy"):
            on_gpu.__array__(np.float64, copy=False)

    def test_array_keeps_the_memory(self):
        before = in_use()
        array = np.asarray(tensor.ones((100,)) * 3)
        other = tensor.zeros((100,))  # would take the block, were it free
        self.assertEqual(array.sum(), 300)
        del array, other
        self.assertEqual(in_use(), before)

    def test_copy_from_numpy(self):
        t = tensor.zeros((2, 3))
        t.copy_from_numpy(np.arange(6.0))  # any shape; float64 is taken too
        self.same(t, [[0, 1, 2], [3, 4, 5]])
        t.copy_from_numpy(np.float32([8, 9]), offset=3)
        self.same(t, [[0, 1, 2], [8, 9, 5]])
        tensor.copy_from_numpy(t.data, np.ones((3, 2), np.float32))
        self.same(t, np.ones((2, 3)))
        whole = tensor.Tensor((2,), dtype="int32")
        whole.copy_from_numpy(np.array([4, 5]))  # int64
        self.same(whole, [4, 5])
        wide = tensor.Tensor((2,), dtype="float64")
        wide.copy_from_numpy(np.array([0.1, 0.2]))
        self.same(wide, np.array([0.1, 0.2]))
        # Through a view it goes where the view lies.
        t.T().copy_from_numpy(np.arange(6.0).reshape(3, 2))
        self.same(t, [[0, 2, 4], [1, 3, 5]])

    def test_copy_from_numpy_refuses(self):
        t = tensor.zeros((2, 3))
        for array, offset in [
            (np.ones(5, np.float32), 0), (np.ones(7, np.float32), 0),
            (np.ones(2, np.float32), 5), (np.ones(2, np.float32), -1),
        ]:  # fmt: skip
            with self.assertRaisesRegex(
                ValueError,
                rf"copy_from_numpy: {array.size} elements of shape "
                rf"\({array.size},\) from element {offset} on, for a tensor of "
                r"shape \(2, 3\) with 6 elements",
            ):
                t.copy_from_numpy(array, offset)
        with self.assertRaisesRegex(
            TypeError,
            r"an array of int32 for a tensor of float32; convert it with "
            r"astype\('float32'\)",
        ):
            t.copy_from_numpy(np.ones(6, np.int32))
        with self.assertRaisesRegex(ValueError, "does not fit into int32"):
            tensor.Tensor((1,), dtype="int32").copy_from_numpy(
                np.array([1 << 40])
            )
        self.same(t, np.zeros((2, 3)))

    def test_copies(self):
        a = tensor.from_numpy(array_of((2, 3)))
        for new in (a.clone(), a.deepcopy(), copy.deepcopy(a)):
            self.same(new, a.numpy())
            new.set_value(0)
            self.assertNotEqual(a[0, 0].item(), 0)
        for new in (a.copy(), copy.copy(a), a.detach()):
            self.assertIsNot(new, a)
            new[0, 0] = 5
            self.assertEqual(a[0, 0].item(), 5)
        self.assertFalse(a.detach().requires_grad)
        a.stores_grad = True
        self.assertTrue(a.clone().stores_grad)
        b = tensor.Tensor((3, 2), dtype="float64")
        b.copy_data(a)
        self.same(b, a.numpy().reshape(3, 2))
        b.copy_from(np.ones((3, 2)))
        self.same(b, np.ones((3, 2)))
        b.copy_from(a)
        self.same(b, a.numpy().reshape(3, 2))
        with self.assertRaisesRegex(ValueError, "6 elements for a tensor of 4"):
            tensor.zeros((2, 2)).copy_data(a)
        c = tensor.zeros((5,))
        tensor.copy_data_to_from(c, a, 3, 1, 2)
        self.same(c, [0, *a.numpy().reshape(-1)[2:5], 0])
        with self.assertRaisesRegex(ValueError, "3 elements from 4 of 6 to 0"):
            tensor.copy_data_to_from(c, a, 3, 0, 4)
        c.reset_like(a)
        self.same(c, np.zeros((2, 3)))

    def test_raw_tensors(self):
        a = tensor.from_numpy(array_of((2, 3)))
        self.assertIs(tensor.from_raw_tensor(a.data).data, a.data)
        self.assertEqual(len(tensor.from_raw_tensors([a.data, a.data])), 2)

    def test_pickle(self):
        for dtype in FLOATS + WHOLE + ["bool"]:
            a = tensor_of(array_of((2, 3), dtype)).T()
            a.stores_grad = True
            b = pickle.loads(pickle.dumps(a))
            self.assertEqual((b.dtype, b.stores_grad), (a.dtype, True))
            self.assertIs(b.device, CPU)
            self.same(b, a.numpy())
            self.same(
                tensor.from_raw_tensor(pickle.loads(pickle.dumps(a.data))),
                a.numpy(),
            )

    def test_devices(self):
        a = tensor.ones((2,))
        a.to_device(CPU)
        a.to_host()
        self.same(a, [1, 1])
        with CPU:
            self.assertIs(tensor.zeros((1,)).device, CPU)

    def test_a_gpu_that_is_there_stays_as_it_is_for_pickles(self):
        gpu = device.Device("cuda", 5)
        gpu.SetSkipIteration(2)
        with mock.patch.dict(device._gpus, {5: gpu}):
            self.assertIs(pickle.loads(pickle.dumps(gpu)), gpu)
        self.assertEqual(gpu._skip, 2)

    def test_making(self):
        like = tensor.Tensor((2, 3), dtype="float64").set_value(4)
        self.same(tensor.zeros_like(like), np.zeros((2, 3)))
        self.same(tensor.ones_like(like), np.ones((2, 3)))
        self.assertEqual(tensor.ones_like(like).dtype, tensor.float64)
        self.same(tensor.zeros((2, 1), dtype="int32"), np.zeros((2, 1), int))
        self.same(tensor.ones((2, 1), CPU), np.ones((2, 1)))

    def test_types(self):
        array = np.float32([1.7, -1.7, 200, 0])
        t = tensor.from_numpy(array)
        for dtype in ("float64", "float16", "int32", "int64", "bool"):
            self.near(t.as_type(dtype), array.astype(dtype), rtol=1e-3)
        self.assertEqual(t.dtype, tensor.float32)
        self.assertIs(t.to_type("int32"), t)
        self.same(t, [1, -1, 200, 0])

    def test_digest(self):
        a, b = tensor.ones((2, 3)), tensor.ones((2, 3))
        self.assertEqual(tensor.digest({"a": a}), tensor.digest({"a": b}))
        self.assertNotEqual(tensor.digest({"a": a}), tensor.digest({"b": a}))
        b[1, 1] = 2
        self.assertNotEqual(tensor.digest({"a": a}), tensor.digest({"a": b}))

    def test_memory_goes_at_once(self):
        tensor.ones((1000,)) * 2 + 1  # what is kept for later runs
        before = in_use()
        a = tensor.ones((1000,))
        self.assertGreaterEqual(CPU.memory()["in_use"], before + 4000)
        b = a.T()[::2]
        del a
        self.assertGreaterEqual(CPU.memory()["in_use"], before + 4000)
        del b  # no collection is needed
        self.assertEqual(CPU.memory()["in_use"], before)
        for _ in range(3):
            a = tensor.ones((1000,)) * 2 + 1
        # One tensor, in a block that may be somewhat larger.
        self.assertLess(CPU.memory()["in_use"], before + 8000)
        del a
        self.assertEqual(CPU.memory()["in_use"], before)


class Slicing(Case):
    def key(self, shape):
        """A random key for basic indexing."""
        key = []
        for size in shape[: RNG.integers(0, len(shape) + 1)]:
            kind = RNG.integers(0, 5)
            if kind == 0 and size:
                key.append(int(RNG.integers(-size, size)))
            elif kind == 1:
                key.append(None)
                key.append(slice(None))
            else:
                bounds = [
                    None if RNG.random() < 0.3 else int(n)
                    for n in RNG.integers(-size - 2, size + 3, 2)
                ]
                step = [None, 1, 2, 3, -1, -2][RNG.integers(0, 6)]
                key.append(slice(*bounds, step))
        if RNG.random() < 0.3:
            key.append(Ellipsis)
        return tuple(key)

    def test_random_slices(self):
        for i in range(400):
            shape = tuple(
                RNG.integers(0 if i % 20 == 0 else 1, 6, RNG.integers(1, 5))
            )
            array = array_of(shape)
            t = tensor.from_numpy(array)
            key = self.key(shape)
            with self.subTest(shape=shape, key=key):
                self.same(t[key], array[key])

    def test_random_assignments(self):
        for _ in range(300):
            shape = tuple(RNG.integers(1, 6, RNG.integers(1, 5)))
            array = array_of(shape)
            t = tensor.from_numpy(array)
            key = self.key(shape)
            if any(isinstance(k, slice) and (k.step or 1) < 0 for k in key):
                continue
            value = array_of(array[key].shape)
            with self.subTest(shape=shape, key=key):
                array[key] = value
                t[key] = tensor.from_numpy(value)
                self.same(t, array)
                array[key] = 3
                t[key] = 3
                self.same(t, array)

    def test_assignments(self):
        t = tensor.zeros((2, 3))
        t[1] = [1, 2, 3]
        t[:, 0] = np.array([7.0, 8.0])
        t[0, 1:] = tensor.ones((1,), dtype="int32")
        self.same(t, [[7, 1, 1], [8, 2, 3]])
        with self.assertRaisesRegex(NotImplementedError, "negative step"):
            t[::-1] = 1
        with self.assertRaisesRegex(NotImplementedError, "array of indices"):
            t[[0, 1]] = 1

    def test_views_share_memory(self):
        t = tensor.zeros((3, 4))
        t[1:, ::2].set_value(5)
        self.same(t, [[0] * 4, [5, 0, 5, 0], [5, 0, 5, 0]])

    def test_arrays_of_indices(self):
        array = array_of((5, 4))
        t = tensor.from_numpy(array)
        for key in ([0, 3, 3], np.array([4, -1]), [], np.arange(5) % 2 == 0):
            self.same(
                t[np.asarray(key) if len(key) else np.zeros(0, int)],
                array[np.asarray(key) if len(key) else np.zeros(0, int)],
            )
        self.same(t[:, [1, 0]], array[:, [1, 0]])
        self.same(t[tensor.from_numpy(np.array([2, 1]))], array[[2, 1]])

    def test_refusals(self):
        t = tensor.zeros((2, 3))
        for key, kind, words in [
            (2, IndexError, "index 2 is out of range for axis 0 of size 2"),
            ((0, -4), IndexError, "index -4 is out of range for axis 1"),
            ((0, 0, 0), IndexError, "3 indices for a tensor of shape"),
            ((..., ...), IndexError, "one ellipsis"),
            ("a", TypeError, "index 'a'; an integer"),
            (1.0, TypeError, "index 1.0; an integer"),
            ([2], IndexError, "gather: index 2"),
            (np.ones(3, bool), IndexError, r"a mask of shape \(3,\)"),
            (np.ones((1, 1), int), NotImplementedError, "use autograd.gather"),
        ]:
            with self.subTest(key=key), self.assertRaisesRegex(kind, words):
                t[key]


UNARY = [
    ("abs", np.abs, -3), ("exp", np.exp, -3), ("ceil", np.ceil, -3),
    ("log", np.log, 0.1), ("sign", np.sign, -3), ("sqrt", np.sqrt, 0),
    ("square", np.square, -3), ("tanh", np.tanh, -3),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -3),
    ("relu", lambda x: np.maximum(x, 0), -3),
]  # fmt: skip


class Elementwise(Case):
    def test_unary(self):
        for name, expected, low in UNARY:
            for shape in SHAPES:
                for dtype, rtol in [("float32", 2e-6), ("float64", 1e-12)]:
                    array = array_of(shape, dtype, low)
                    got = getattr(tensor, name)(tensor_of(array))
                    self.near(got, expected(array), rtol)
                    self.assertEqual(np.asarray(got).dtype, array.dtype)
        x = tensor.from_numpy(np.float32([-1.5, 2]))
        self.same(-x, [1.5, -2])
        self.same(abs(x), [1.5, 2])
        # tensor.abs tensor.exp tensor.ceil tensor.log tensor.sign tensor.sqrt
        # tensor.square tensor.tanh tensor.sigmoid tensor.relu

    def test_softmax(self):
        array = array_of((3, 5))
        e = np.exp(array)
        out = tensor.zeros((3, 5))
        got = tensor.softmax(tensor.from_numpy(array), out)
        self.assertIs(got, out)
        self.near(out, e / e.sum(1, keepdims=True))

    def test_binary_with_broadcasting(self):
        pairs = [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)),
                 ((4, 1, 5), (3, 1)), ((2, 3), ()), ((0, 3), (3,))]  # fmt: skip
        for left, right in pairs:
            for dtype, rtol in [("float32", 2e-6), ("float64", 1e-12)]:
                a, b = array_of(left, dtype), array_of(right, dtype, 0.5)
                x, y = tensor_of(a), tensor_of(b)
                self.near(x + y, a + b, rtol)
                self.near(x - y, a - b, rtol)
                self.near(x * y, a * b, rtol)
                self.near(x / y, a / b, rtol)
                self.near(tensor.add(x, y), a + b, rtol)
                self.near(tensor.sub(y, x), b - a, rtol)
                self.near(tensor.eltwise_mult(x, y), a * b, rtol)
                self.near(tensor.div(x, y), a / b, rtol)
                self.near(tensor.pow(y, x), b**a, 5 * rtol)
                self.near(y**x, b**a, 5 * rtol)
        with self.assertRaisesRegex(ValueError, r"shapes \(2\) and \(3\)"):
            tensor.ones(2) + tensor.ones(3)

    def test_numbers(self):
        for dtype, rtol in [("float32", 2e-6), ("float64", 1e-12)]:
            a = array_of((2, 3), dtype, 0.5)
            x = tensor_of(a)
            for got, expected in [
                (x + 2, a + 2), (2 + x, 2 + a), (x - 2, a - 2), (2 - x, 2 - a),
                (x * 3, a * 3), (3 * x, 3 * a), (x / 4, a / 4), (4 / x, 4 / a),
                (x**2, a**2), (x // 0.7, a // 0.7), (tensor.pow(x, 0.5), a**0.5),
                (x + np.float32(2), a + 2), (np.float32(2) * x, 2 * a),
            ]:  # fmt: skip
                self.near(got, expected, 5 * rtol)
                self.assertEqual(np.asarray(got).dtype, a.dtype)

    def test_arrays_and_lists(self):
        x = tensor.ones((2, 2))
        self.same(x + np.ones((2, 2)), 2 * np.ones((2, 2)))
        self.same(np.ones((2, 2)) + x, 2 * np.ones((2, 2)))
        self.assertIsInstance(np.ones((2, 2)) + x, tensor.Tensor)
        self.same(x * [1, 2], [[1, 2], [1, 2]])
        for wrong in ("text", None, 1j, object()):
            for call in (
                lambda a, b: a + b, lambda a, b: a**b, lambda a, b: a < b,
                tensor.add, tensor.sub, tensor.eltwise_mult, tensor.div,
                tensor.pow,
            ):  # fmt: skip
                with self.assertRaises(TypeError, msg=wrong):
                    call(x, wrong)
            for call in (tensor.add, tensor.sub, tensor.div):
                with self.assertRaises(TypeError, msg=wrong):
                    call(wrong, x)
        with self.assertRaises(TypeError):
            tensor.add(1.0, 2.0)

    def test_dtypes_of_results(self):
        def result(a, b, op):
            x = tensor.ones((2,), dtype=a)
            y = b if isinstance(b, (int, float)) else tensor.ones((2,), dtype=b)
            return tensor.Tensor.dtype_name[op(x, y).dtype]

        def add(x, y):
            return x + y

        def div(x, y):
            return x / y

        for a, b, op, expected in [
            ("float32", "float64", add, "float64"),
            ("float16", "float32", add, "float32"),
            ("float16", "bfloat16", add, "float32"),
            ("int32", "float32", add, "float32"),
            ("int64", "float16", add, "float16"),
            ("int32", "int64", add, "int64"), ("uint8", "int32", add, "int32"),
            ("int32", 2, add, "int32"), ("int32", 2.0, add, "float32"),
            ("float16", 2.5, add, "float16"), ("int32", "int32", div, "float32"),
            ("int32", 2, div, "float32"), ("float64", 3, div, "float64"),
        ]:  # fmt: skip
            with self.subTest(a=a, b=b):
                self.assertEqual(result(a, b, op), expected)
                self.assertEqual(result(a, b, op), expected)

    def test_whole_numbers(self):
        for dtype in WHOLE:
            a, b = array_of((2, 3), dtype), array_of((3,), dtype)
            x, y = tensor_of(a), tensor_of(b)
            self.same(x + y, a + b)
            self.same(x * y, a * b)
            self.same(x + 2, a + 2)

    def test_comparisons(self):
        a = np.float32([[1, 2, 3], [3, 2, 1]])
        b = np.float32([2, 2, 2])
        x, y = tensor.from_numpy(a), tensor.from_numpy(b)
        for got, expected in [
            (x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b),
            (x == y, a == b), (x != y, a != b), (x < 2, a < 2), (2 < x, 2 < a),
            (x == 2, a == 2), (x != 2, a != 2), (tensor.lt(x, 2), a < 2),
            (tensor.le(x, y), a <= b), (tensor.gt(x, y), a > b),
            (tensor.ge(x, 2), a >= 2), (tensor.eq(x, y), a == b),
        ]:  # fmt: skip
            self.same(got, expected.astype(np.float32))
            self.assertEqual(got.dtype, tensor.float32)
        self.assertFalse(x == None)  # noqa: E711
        self.assertTrue(x != None)  # noqa: E711

    def test_in_place(self):
        a = array_of((2, 3))
        x = tensor.from_numpy(a)
        same, memory = x, np.asarray(x)
        x += 2
        x -= tensor.from_numpy(np.float32([1, 2, 3]))
        x *= 1.5
        x /= tensor.ones((2, 1)) * 4
        self.assertIs(x, same)
        self.near(x, (a + 2 - np.float32([1, 2, 3])) * 1.5 / 4)
        self.assertTrue(np.shares_memory(np.asarray(x), memory))
        x += tensor.ones((3,), dtype="int32")
        self.assertEqual(x.dtype, tensor.float32)
        with self.assertRaises(ValueError):
            x += tensor.ones((4, 2, 3))

    def test_out_and_axpy(self):
        a, b = array_of((2, 3)), array_of((2, 3))
        x, y, out = (
            tensor.from_numpy(a),
            tensor.from_numpy(b),
            tensor.zeros((2, 3)),
        )
        for function, expected in [
            (tensor.add, a + b), (tensor.sub, a - b),
            (tensor.eltwise_mult, a * b), (tensor.div, a / b),
        ]:  # fmt: skip
            self.assertIs(function(x, y, out), out)
            self.near(out, expected)
        self.assertIs(tensor.axpy(2.5, x, y), y)
        self.near(y, b + 2.5 * a)

    def test_columns_and_rows(self):
        a = array_of((2, 3), low=0.5)
        column, row = array_of((2,), low=0.5), array_of((3,), low=0.5)
        x, c, r = (tensor.from_numpy(v) for v in (a, column, row))
        for method, vector, expected in [
            ("add_column", c, a + column[:, None]), ("add_row", r, a + row),
            ("div_column", c, a / column[:, None]), ("div_row", r, a / row),
            ("mult_column", c, a * column[:, None]), ("mult_row", r, a * row),
        ]:  # fmt: skip
            t = x.clone()
            getattr(t, method)(vector)
            self.near(t, expected)
        self.near(
            tensor.add_column(2, c, 3, x.clone()), 3 * a + 2 * column[:, None]
        )
        self.near(tensor.add_row(2, r, 3, x.clone()), 3 * a + 2 * row)
        # .add_column( .add_row( .div_column( .div_row( .mult_column( .mult_row(


class Reductions(Case):
    def test_sum_average_max(self):
        for shape in [(7,), (2, 3), (4, 1, 5), (2, 3, 4, 5)]:
            a = array_of(shape)
            x = tensor.from_numpy(a)
            self.near(tensor.sum(x), a.sum().reshape(1, 1), 1e-5)
            self.assertAlmostEqual(tensor.average(x), a.mean(), 5)
            self.same(tensor.max(x), a.max())
            self.same(tensor.argmax(x), a.argmax())
            for axis in range(-len(shape), len(shape)):
                self.near(tensor.sum(x, axis), a.sum(axis), 1e-5)
                self.near(tensor.average(x, axis), a.mean(axis), 1e-5)
                self.same(tensor.max(x, axis), a.max(axis))
                self.same(tensor.argmax(x, axis), a.argmax(axis))
        self.near(tensor.sum(x, (0, -1)), a.sum((0, 3)), 1e-5)
        self.near(tensor.average(x, [1, 2]), a.mean((1, 2)), 1e-5)
        out = tensor.zeros((3, 4, 5))
        self.assertIs(tensor.sum(x, 0, out), out)
        self.near(out, a.sum(0), 1e-5)
        with self.assertRaisesRegex(
            IndexError, "sum: axis 4 of a tensor with 4"
        ):
            tensor.sum(x, 4)
        with self.assertRaisesRegex(ValueError, "an axis is named twice"):
            tensor.sum(x, (0, 0))

    def test_columns_rows_norms(self):
        a = array_of((2, 3))
        x = tensor.from_numpy(a)
        self.near(tensor.sum_columns(x), a.sum(1, keepdims=True))
        self.near(tensor.sum_rows(x), a.sum(0, keepdims=True))
        self.assertAlmostEqual(x.l1(), np.abs(a).mean(), 6)
        self.assertAlmostEqual(x.l2(), np.sqrt((a * a).sum()) / 6, 6)


class Shapes(Case):
    def test_reshape_and_transpose(self):
        a = array_of((2, 3, 4))
        x = tensor.from_numpy(a)
        self.same(x.reshape(4, 6), a.reshape(4, 6))
        self.same(x.reshape((6, -1)), a.reshape(6, -1))
        self.same(tensor.reshape(x, [24]), a.reshape(24))
        self.same(tensor.reshape(x, 24), a.reshape(24))
        self.same(x.T(), a.T)
        self.same(x.transpose(), a.T)
        self.same(x.transpose((1, 2, 0)), a.transpose(1, 2, 0))
        self.same(tensor.transpose(x, (-1, 0, 1)), a.transpose(-1, 0, 1))
        self.same(x.T().reshape(-1), a.T.reshape(-1))
        self.assertTrue(np.shares_memory(np.asarray(x), np.asarray(x.T())))
        made = x.T().contiguous()
        self.assertFalse(made.is_transpose())
        self.same(made, a.T)
        self.assertIs(x.contiguous(), x)
        self.same(tensor.contiguous(x.T()), a.T)
        with self.assertRaisesRegex(ValueError, "2 axes for a tensor of shape"):
            x.transpose((0, 1))
        with self.assertRaisesRegex(ValueError, "reshape"):
            x.reshape(5, 5)
        self.assertEqual(tensor.product((2, 3, 4)), 24)
        self.assertEqual(tensor.product(()), 1)

    def test_concatenate(self):
        arrays = [array_of((2, n, 3)) for n in (1, 4, 2)]
        tensors = [tensor.from_numpy(a) for a in arrays]
        self.same(tensor.concatenate(tensors, 1), np.concatenate(arrays, 1))
        self.same(tensor.concatenate(tensors, -2), np.concatenate(arrays, 1))
        self.same(tensor.concatenate(tensors[:1], 0), arrays[0])
        many = [array_of((1, 2)) for _ in range(40)]
        self.same(
            tensor.concatenate([tensor.from_numpy(a) for a in many], 0),
            np.concatenate(many, 0),
        )

    def test_repeat(self):
        a = array_of((2, 3))
        x = tensor.from_numpy(a)
        for repeats, axis in [
            (2, None),
            (3, 0),
            (2, 1),
            ([1, 0, 2], 1),
            ([2], 0),
        ]:
            expected = np.repeat(a, repeats, axis)
            self.same(x.repeat(repeats, axis), expected)
            self.same(tensor.repeat(x, repeats, axis), expected)
        with self.assertRaisesRegex(ValueError, "repeat: repeats is"):
            x.repeat([1, 2], 1)
        with self.assertRaisesRegex(ValueError, "repeat: repeats is"):
            x.repeat(-1, 1)


class LinearAlgebra(Case):
    def test_mult(self):
        for left, right in [
            ((2, 3), (3, 4)), ((1, 7), (7, 1)), ((5, 2, 3), (5, 3, 4)),
            ((2, 1, 2, 3), (4, 3, 5)), ((2, 3), (3,)), ((5, 2, 3), (3,)),
        ]:  # fmt: skip
            a, b = array_of(left), array_of(right)
            x, y = tensor.from_numpy(a), tensor.from_numpy(b)
            self.near(tensor.mult(x, y), a @ b, 1e-5, 1e-5)
            self.near(x @ y, a @ b, 1e-5, 1e-5)
        a, b, c = array_of((2, 3)), array_of((3, 4)), array_of((2, 4))
        x, y, z = (tensor.from_numpy(v) for v in (a, b, c))
        self.near(tensor.mult(x.T(), z), a.T @ c, 1e-5, 1e-5)
        self.near(tensor.mult(x, y, alpha=3.0), 3 * a @ b, 1e-5, 1e-5)
        self.assertIs(tensor.mult(x, y, z, 2.0, 0.5), z)
        self.near(z, 2 * a @ b + 0.5 * c, 1e-5, 1e-5)
        z.copy_from_numpy(np.full((2, 4), np.nan))
        self.near(tensor.mult(x, y, z, 1.0, 0.0), a @ b, 1e-5, 1e-5)

    def test_tensordot(self):
        a, b = array_of((2, 3, 4)), array_of((3, 4, 5))
        x, y = tensor.from_numpy(a), tensor.from_numpy(b)
        for axes in (2, ([1, 2], [0, 1]), ([2], [1]), ((-1, 1), (1, 0)), 0):
            self.near(
                tensor.tensordot(x, y, axes),
                np.tensordot(a, b, axes),
                1e-5,
                1e-5,
            )
        with self.assertRaisesRegex(ValueError, r"sizes \[4\] of A meet \[3\]"):
            tensor.tensordot(x, y, 1)

    def test_einsum(self):
        operands = {"ij": (2, 3), "jk": (3, 4), "ik": (2, 4), "bij": (5, 2, 3),
                    "bjk": (5, 3, 4), "i": (2,), "j": (3,), "b": (5,)}  # fmt: skip
        arrays = {term: array_of(shape) for term, shape in operands.items()}
        for text in ["ij,jk->ik", "ij,jk", "ij->ji", "ij->", "ij->i", "ij,ij->ij",
                     "bij,bjk->bik", "bij,j->bi", "i,j->ij", "ij,jk,ik->j",
                     "bij,b->ij", "i,i->", "bij, jk -> kbi"]:  # fmt: skip
            terms = text.replace(" ", "").partition("->")[0].split(",")
            given = [arrays[term] for term in terms]
            with self.subTest(text):
                self.near(
                    tensor.einsum(text, *[tensor.from_numpy(a) for a in given]),
                    np.einsum(text, *given),
                    1e-5,
                    1e-5,
                )
        x = tensor.ones((2, 3))
        for text, given, kind, words in [
            ("...i->i", [x], NotImplementedError, "'...' in the subscripts"),
            ("ii->i", [x], NotImplementedError, "a letter comes twice"),
            ("ij,jk->ik", [x], ValueError, "2 terms in"),
            ("ijk->i", [x], ValueError, "'ijk' for a tensor of shape"),
            ("ij,ji->i", [x, x], ValueError, "'j' is 3 and 2"),
            ("ij->k", [x], ValueError, "a letter of no input"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(kind, words):
                tensor.einsum(text, *given)


class RandomNumbers(Case):
    def setUp(self):
        CPU.SetRandSeed(3)

    def test_moments(self):
        n = 40000  # five deviations of the mean: 5 / 200
        x = tensor.zeros((n,))
        drawn = tensor.uniform(-1, 3, x)
        self.assertIs(drawn, x)
        a = x.numpy()
        self.assertTrue((a >= -1).all() and (a < 3).all())
        self.assertAlmostEqual(a.mean(), 1, delta=4 / 12**0.5 * 5 / 200)
        self.assertAlmostEqual(a.std(), 4 / 12**0.5, delta=0.03)
        a = tensor.gaussian(2, 0.5, x).numpy()
        self.assertAlmostEqual(a.mean(), 2, delta=0.5 * 5 / 200)
        self.assertAlmostEqual(a.std(), 0.5, delta=0.02)
        self.assertAlmostEqual(
            np.mean(np.abs(a - 2) < 0.5), 0.6827, delta=0.015
        )
        a = tensor.bernoulli(0.3, x).numpy()
        self.assertEqual(set(np.unique(a)), {0, 1})
        self.assertAlmostEqual(a.mean(), 0.3, delta=0.46 * 5 / 200)
        a = tensor.random((n,)).numpy()
        self.assertAlmostEqual(a.mean(), 0.5, delta=0.29 * 5 / 200)

    def test_seeds(self):
        def draws():
            return [
                tensor.random((50,)).numpy(),
                tensor.zeros((50,)).gaussian(0, 1).numpy(),
                tensor.zeros((50,)).uniform(0, 1).numpy(),
            ]

        first, second = draws(), draws()
        for a, b in zip(first, second):
            self.assertFalse((a == b).all())
        CPU.SetRandSeed(3)
        for a, b in zip(first, draws()):
            self.same(a, b)
        CPU.SetRandSeed(4)
        for a, b in zip(first, draws()):
            self.assertFalse((a == b).all())

    def test_in_place_or_not(self):
        x = tensor.zeros((5,))
        for new in (
            x.bernoulli(1.0, inplace=False), x.gaussian(9, 1, inplace=False),
            x.uniform(1, 2, inplace=False), x.set_value(3, inplace=False),
        ):  # fmt: skip
            self.assertTrue((new.numpy() != 0).all())
            self.same(x, np.zeros(5))
        x.bernoulli(1.0)
        self.same(x, np.ones(5))
        # Through a view only the view's elements.
        x[::2].set_value(7)
        self.same(x, [7, 1, 7, 1, 7])


class Other(Case):
    def test_from_dlpack(self):
        array = np.ones(3, np.float32)
        tensor.from_dlpack(array)[1] = 5
        CPU.Sync()
        self.same(array, [1, 5, 1])


if __name__ == "__main__":
    unittest.main()
