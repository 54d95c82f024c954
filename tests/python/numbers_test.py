# SPDX-License-Identifier: Apache-2.0
"""Numbers, arrays and indices beside tensors, against NumPy 2's rules.

The rules are written down here, so that they hold whichever NumPy is installed;
with NumPy 2 they are compared with its own arrays too. A number takes the
tensor's dtype, and where Choir's result has another dtype than NumPy's (integers
with a float are float32) its elements are NumPy's, rounded to it.
"""

import math
import operator
import unittest

import numpy as np

from choir import autograd, data, device, dist, layer, model, opt, singa_wrap
from choir import tensor

CPU = device.create_cpu_device()
IS_NUMPY_2 = int(np.__version__.split(".", maxsplit=1)[0]) >= 2
WHOLE = ["int32", "int64", "uint8"]
FLOATS = ["float32", "float64", "float16"]
NUMBERS = [
    0, 1, -1, 2, 3, 255, 256, -256, 2**24 + 1, 2**31 - 1, 2**31, -(2**31),
    -(2**31) - 1, 3000000000, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63,
    -(2**63), 2**64, 2**64 + 3, 2**70, -(2**70), 10**400, True, False, 0.0, 0.7,
    -0.7, 2.0, 16777217.0, 1e10, 1e39, 1e300, math.nan, math.inf, -math.inf,
    np.int32(5), np.int64(2**40), np.uint8(200), np.float32(0.1),
    np.float64(0.7), np.bool_(True),
]  # fmt: skip
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
IN_PLACE = {
    "+": operator.iadd,
    "-": operator.isub,
    "*": operator.imul,
    "/": operator.itruediv,
}
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def elements(dtype):
    """Of which some are at the dtype's ends."""
    if dtype in FLOATS:
        return np.array([0, 1, -1.5, 3, 100.25, 1e4, -1e-3], dtype)
    info = np.iinfo(dtype)
    wanted = [0, 1, 2, 7, 255, 2**24 + 1, 2**53 + 1]
    wanted += [info.max, info.max - 1, info.min, info.min + 1]
    return np.array([n for n in wanted if info.min <= n <= info.max], dtype)


def tensor_of(array):
    t = tensor.Tensor(array.shape, dtype=array.dtype)
    t.copy_from_numpy(array)
    return t


def plain(number):
    """A NumPy scalar as Python's number, which it is taken for."""
    return number.item() if isinstance(number, np.generic) else number


def outcome(function):
    """What it gives, or the exception's kind."""
    try:
        with np.errstate(all="ignore"):
            return function()
    except (OverflowError, TypeError, ValueError, IndexError) as error:
        return next(
            kind
            for kind in (OverflowError, IndexError, TypeError, ValueError)
            if isinstance(error, kind)
        )


def weak(number, dtype):
    """A number beside an array of a dtype: NumPy 2's rule."""
    if dtype in FLOATS:
        return np.dtype(dtype).type(float(number))
    info = np.iinfo(dtype)
    if not info.min <= number <= info.max:
        raise OverflowError
    return np.dtype(dtype).type(int(number))


def arithmetic(sign, array, number, is_left=True):
    """By NumPy 2's rule, in Choir's dtype."""
    number, dtype = plain(number), array.dtype.name
    function = ARITHMETIC[sign]
    if dtype in WHOLE and (isinstance(number, float) or sign == "/"):
        array, number = array.astype(np.float64), float(number)
        result = "float32"
    else:
        number, result = weak(number, dtype), dtype
    made = function(array, number) if is_left else function(number, array)
    return made.astype(result)


def comparison(sign, array, number):
    number, dtype = plain(number), array.dtype.name
    function = COMPARISONS[sign]
    if dtype in FLOATS:
        return function(array, weak(number, dtype)).astype(dtype)
    if isinstance(number, float):
        return function(array.astype(np.float64), number).astype(np.float32)
    # Python's integers have no bounds.
    holds = [function(int(one), int(number)) for one in array]
    return np.array(holds).astype(dtype)


def in_place(sign, array, number):
    dtype = array.dtype.name
    if dtype in WHOLE and (isinstance(plain(number), float) or sign == "/"):
        raise TypeError
    return arithmetic(sign, array, number)


def assigned(number, dtype):
    """As an element that is set: NumPy 2's rule."""
    number = plain(number)
    if dtype in FLOATS:
        return weak(number, dtype)
    return weak(int(number), dtype)


class Case(unittest.TestCase):
    def alike(self, got, wanted, what):
        if isinstance(got, tensor.Tensor):
            got = got.numpy()
        if isinstance(wanted, type) or isinstance(got, type):
            self.assertIs(got, wanted, what)
            return
        self.assertEqual(got.dtype, wanted.dtype, what)
        np.testing.assert_array_equal(got, wanted, str(what))

    def each(self, dtypes=None):
        for dtype in dtypes or WHOLE + FLOATS:
            for number in NUMBERS:
                yield dtype, elements(dtype), number

    def is_numpys(self, wanted, function, what):
        """What is written down here is what NumPy 2 does."""
        if not IS_NUMPY_2:
            return
        found = outcome(function)
        if isinstance(wanted, type) or isinstance(found, type):
            # Of two mistakes either may be told.
            self.assertEqual(
                isinstance(found, type), isinstance(wanted, type), what
            )
            return
        np.testing.assert_array_equal(
            wanted, found.astype(wanted.dtype), str(what)
        )


class Scalars(Case):
    def test_arithmetic(self):
        for dtype, array, number in self.each():
            for sign, function in ARITHMETIC.items():
                for is_left in (True, False):
                    what = (dtype, sign, number, is_left)
                    wanted = outcome(
                        lambda: arithmetic(sign, array, number, is_left)
                    )

                    def run(x, y=number):
                        return function(x, y) if is_left else function(y, x)

                    self.alike(
                        outcome(lambda: run(tensor_of(array))), wanted, what
                    )
                    self.is_numpys(
                        wanted, lambda: run(array, plain(number)), what
                    )

    def test_comparisons(self):
        for dtype, array, number in self.each():
            for sign, function in COMPARISONS.items():
                what = (dtype, sign, number)
                wanted = outcome(lambda: comparison(sign, array, number))
                self.alike(
                    outcome(lambda: function(tensor_of(array), number)),
                    wanted,
                    what,
                )
                self.is_numpys(
                    wanted, lambda: function(array, plain(number)), what
                )
                # By name, with the number first.
                name = {"<": "less", ">": "greater", "==": "equal"}.get(sign)
                if name is not None:
                    mirrored = {"<": ">", ">": "<", "==": "=="}[sign]
                    self.alike(
                        outcome(
                            lambda: getattr(autograd, name)(
                                number, tensor_of(array)
                            )
                        ),
                        outcome(lambda: comparison(mirrored, array, number)),
                        what,
                    )

    def test_in_place(self):
        for dtype, array, number in self.each():
            for sign, function in IN_PLACE.items():
                what = (dtype, sign + "=", number)
                wanted = outcome(lambda: in_place(sign, array, number))
                t = tensor_of(array)
                got = outcome(lambda: function(t, number))
                self.alike(got, wanted, what)
                if isinstance(got, type):
                    self.alike(t, array, what)  # as it was
                self.is_numpys(
                    wanted, lambda: function(array.copy(), plain(number)), what
                )

    def test_elements_that_are_set(self):
        for dtype, array, number in self.each():
            what = (dtype, number)

            def numpys(number=plain(number), array=array):
                made = array.copy()
                made[1] = number
                return made

            def mine(array=array):
                value = assigned(number, dtype)
                made = array.copy()
                made[1] = value
                return made

            wanted = outcome(mine)
            for change in (
                lambda t: t.__setitem__(1, number),
                lambda t: t[1:2].set_value(number),
            ):
                t = tensor_of(array)
                got = outcome(lambda: change(t))
                self.alike(got if isinstance(got, type) else t, wanted, what)
            self.is_numpys(wanted, numpys, what)

    def test_floor_division(self):
        """The quotient rounded down, not a rounded quotient; of integers exactly."""
        for dtype in ("int32", "uint8"):
            array = elements(dtype)
            for number in (1, 2, 7, -3, 255, 2.0, -4.0):
                if dtype == "uint8" and number == -3:
                    continue
                wanted = [math.floor(int(n) / number) for n in array]
                if isinstance(number, int):
                    wanted = [int(n) // number for n in array]
                got = tensor_of(array) // number
                self.alike(got, np.float32(wanted), (dtype, number))
        for dtype in ("float32", "float16"):
            array = elements(dtype)
            for number in (0.1, 0.7, -0.7, 3, -2.5, 1e-3, 100):
                divisor = np.dtype(dtype).type(number)
                wanted = array.astype(np.float64) // np.float64(divisor)
                got = tensor_of(array) // number
                self.alike(got, wanted.astype(dtype), (dtype, number))
                self.alike(
                    tensor_of(array) // tensor_of(np.full_like(array, number)),
                    wanted.astype(dtype),
                    (dtype, number),
                )
        np.testing.assert_array_equal(
            tensor_of(np.int32([7, -7])) // tensor_of(np.uint8([2, 2])), [3, -4]
        )
        for number in (2**31, 256, 2**70):
            with self.assertRaises(OverflowError):
                tensor_of(np.uint8([1])) // number


class Arrays(Case):
    def test_comparisons_of_tensors(self):
        for left in WHOLE + FLOATS:
            for right in WHOLE + FLOATS:
                a = np.repeat(elements(left), elements(right).size)
                b = np.tile(elements(right), elements(left).size)
                for sign, function in COMPARISONS.items():
                    # Integers of 64 bits and floats meet in float64.
                    if (left in FLOATS) != (right in FLOATS):
                        wide = a.astype(np.float64), b.astype(np.float64)
                    else:
                        wide = a, b
                    wanted = function(*wide)
                    got = function(tensor_of(a), tensor_of(b)).numpy()
                    np.testing.assert_array_equal(
                        got, wanted, f"{left} {sign} {right}"
                    )

    def test_arrays_beside_tensors(self):
        t = tensor_of(np.int32([1, 2**31 - 1]))
        self.alike(t < np.array([2**40, 0]), np.int32([1, 0]), "int64")
        np.testing.assert_array_equal(t == [2**40, 2**31 - 1], [0, 1])
        with self.assertRaisesRegex(ValueError, "does not fit into int32"):
            t + [2**40, 0]
        np.testing.assert_array_equal(
            tensor_of(np.uint8([0, 255])) + [-1, 1], [-1, 256]
        )

    def test_in_place_with_tensors(self):
        def run(dtype, other, a=(1, 5), b=(2, 3)):
            t = tensor_of(np.array(a, dtype))
            t += tensor_of(np.array(b, other))
            return t.numpy()

        for dtype in WHOLE + FLOATS:
            for other in WHOLE + FLOATS:
                wanted = outcome(
                    lambda: np.array([1, 5], dtype).__iadd__(
                        np.array([2, 3], other)
                    )
                )
                self.alike(
                    outcome(lambda: run(dtype, other)), wanted, (dtype, other)
                )
        # Modulo 2^32, and rounded once.
        np.testing.assert_array_equal(
            run("int32", "int64", (1, 2), (2**40 + 7, 2**32 - 3)), [8, -1]
        )
        a, b = np.float16([2048, 0.1]), np.float32([0.51, 1e-4])
        wanted = a.copy()
        wanted += b
        np.testing.assert_array_equal(run("float16", "float32", a, b), wanted)
        t = tensor_of(a)
        t += np.array([1.0, 2.0])
        np.testing.assert_array_equal(t, a + np.float16([1, 2]))
        for wrong in ("a", None, 1j):
            with self.assertRaises(TypeError):
                t += wrong

    def test_narrower_integers_keep_their_lower_bits(self):
        wide = np.array(
            [0, 1, -1, 255, 256, 300, 2**31, 2**40 + 7, -(2**63)]
        )
        t = tensor_of(wide)
        for dtype in ("int32", "uint8", "int64", "bool"):
            self.alike(t.as_type(dtype), wide.astype(dtype), dtype)
            self.alike(t.clone().to_type(dtype), wide.astype(dtype), dtype)
        square = tensor_of(np.arange(1 << 10, (1 << 10) + 12).reshape(3, 4))
        self.alike(
            square.T()[1:, ::2].as_type("uint8"),
            np.asarray(square).T[1:, ::2].astype(np.uint8),
            "a view",
        )
        small = tensor.Tensor((9,), dtype="int32")
        small.copy_data(t)
        self.alike(small, wide.astype(np.int32), "copy_data")
        small[:] = t
        self.alike(small, wide.astype(np.int32), "setitem")

    def test_setting_from_lists_and_arrays(self):
        for dtype in WHOLE:
            info = np.iinfo(dtype)
            for values, kind in [
                ([info.max + 1, 0], OverflowError),
                ([info.min - 1, 0], OverflowError),
                ([2**70, 0], OverflowError),
                ([math.nan, 0], ValueError),
                ([math.inf, 0.0], OverflowError),
            ]:
                t = tensor_of(np.array([1, 2], dtype))
                with self.assertRaises(kind):
                    t[:] = values
                self.alike(t, np.array([1, 2], dtype), (dtype, values))
            t[:] = [0.9, 1.1]
            self.alike(t, np.array([0, 1], dtype), dtype)
            # An array's elements are cast, as NumPy's.
            t[:] = np.array([2**40 + 300, 5])
            self.alike(t, np.array([2**40 + 300, 5]).astype(dtype), dtype)

    def test_copy_from_numpy(self):
        t = tensor.Tensor((2,), dtype="int64")
        t.copy_from_numpy(np.array([2**40, -(2**62) - 1]))
        np.testing.assert_array_equal(t, [2**40, -(2**62) - 1])
        t.copy_from_numpy(np.int32([1, 2]))
        np.testing.assert_array_equal(t, [1, 2])
        with self.assertRaisesRegex(TypeError, "for a tensor of int64"):
            t.copy_from_numpy(np.array([0.7, 1]))
        with self.assertRaisesRegex(ValueError, "does not fit into int64"):
            t.copy_from_numpy(np.array([2**63, 1], np.uint64))
        np.testing.assert_array_equal(t, [1, 2])
        wide = tensor.Tensor((2,), dtype="float64")
        wide.copy_from_numpy(np.array([0.1, 1e300]))
        np.testing.assert_array_equal(wide, [0.1, 1e300])
        half = tensor.Tensor((3,), dtype="bfloat16")
        half.copy_from_numpy(np.float32([1.5, -2, 1 / 3]))
        half.copy_from_numpy(np.float32([7]), offset=1)
        np.testing.assert_array_equal(half.numpy(), [1.5, 7, 0.333984375])

    def test_other_byte_orders(self):
        for given, wanted in [
            (">f8", "float32"), ("<f8", "float32"), (">f4", "float32"),
            (">i8", "int32"), (">i4", "int32"), (">f2", "float16"),
        ]:  # fmt: skip
            array = np.array([1, 2, 300]).astype(given)
            t = tensor.from_numpy(array)
            self.alike(t, array.astype(wanted), given)
            self.alike(
                tensor.zeros((3,), dtype=wanted) + array,
                array.astype(wanted),
                given,
            )
            t.copy_from_numpy(array + 1)
            self.alike(t, (array + 1).astype(wanted), given)
        with self.assertRaisesRegex(ValueError, "does not fit into int32"):
            tensor.from_numpy(np.array([2**40], ">i8"))


# What arrays of 64 bits count as beside a tensor that has fewer.
SHORT = {"float64": "float32", "int64": "int32"}
EVERY = WHOLE + FLOATS + ["bool"]


def met(dtype, other):
    """The dtype of what a tensor and an array make: SINGA's for arrays of 64 bits,
    unless the tensor has as many."""
    both = [dtype, other if other == dtype else SHORT.get(other, other)]
    floats = [name for name in both if name in FLOATS]
    order = ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]
    return max(floats or both, key=order.index)


def beside(sign, array, other, is_left=True):
    """Arithmetic by NumPy 2's rule in Choir's dtype; the tensor's array is first."""
    dtype, kind = array.dtype.name, other.dtype.name
    wide = result = met(dtype, kind)
    if dtype not in FLOATS:
        if kind == "float64":
            wide = "float64"
        elif sign == "/" and kind not in FLOATS:
            wide, result = "float64", "float32"
        elif kind == dtype == "bool":
            raise ValueError  # which the library has no arithmetic of
        if kind == "int64" != dtype and (other != other.astype(np.int32)).any():
            raise ValueError
    array, other = array.astype(wide), other.astype(wide)
    function = ARITHMETIC[sign]
    made = function(array, other) if is_left else function(other, array)
    return made.astype(result)


class Beside(Case):
    """Arrays, lists and arrays without dimensions beside tensors of all dtypes."""

    def pairs(self):
        """A tensor's elements, those beside it as an array, and as they are given."""
        flags = np.array([True, False])
        of = {dtype: [elements(dtype)] for dtype in WHOLE + FLOATS}
        of["bool"] = [flags]
        of["int64"].append(np.array([3, 1, -7, 2**24 + 1]))
        of["float64"].append(np.array([0.1, 16777217.0, 1e300, -1 / 3]))
        for dtype in EVERY:
            for kind in EVERY:
                for other in of[kind]:
                    n = max(of[dtype][0].size, other.size)
                    a, b = np.resize(of[dtype][0], n), np.resize(other, n)
                    yield a, b, b
                    # NumPy 1 would take this one for a number.
                    yield a, np.full(n, other[0]), np.array(other[0])
                    if kind in ("int64", "float64", "bool"):
                        yield a, b, b.tolist()

    def test_arithmetic(self):
        for a, b, given in self.pairs():
            for sign, function in ARITHMETIC.items():
                for is_left in (True, False):
                    what = a.dtype.name, sign, given, is_left
                    wanted = outcome(lambda: beside(sign, a, b, is_left))
                    t = tensor_of(a)

                    def run():
                        if is_left:
                            return function(t, given)
                        return function(given, t)

                    self.alike(outcome(run), wanted, what)

    def test_comparisons(self):
        for a, b, given in self.pairs():
            result = met(a.dtype.name, b.dtype.name)
            for sign, function in COMPARISONS.items():
                # As they are, in NumPy 2 and here.
                wanted = function(a, b).astype(result)
                got = function(tensor_of(a), given)
                self.alike(got, wanted, (a.dtype.name, sign, given))

    def test_in_place(self):
        for a, b, given in self.pairs():
            for sign, function in IN_PLACE.items():
                what = a.dtype.name, sign + "=", given
                wanted = outcome(lambda: function(a.copy(), b))
                if a.dtype == bool:
                    wanted = TypeError  # some of NumPy's are logic
                t = tensor_of(a)
                got = outcome(lambda: function(t, given))
                self.alike(got, wanted, what)
                if isinstance(got, type):
                    self.alike(t, a, what)  # as it was

    def test_floor_division(self):
        for dtype in WHOLE + FLOATS:
            a = elements(dtype)
            for b in (
                np.array([0.1, 16777217.0, -1 / 3]), np.array([3, -7, 2**24 + 1]),
                np.float16([0.3, -2, 7]), np.array([2**40, 3, -(2**53) - 1]),
            ):  # fmt: skip
                b = np.resize(b, a.size)
                result = met(dtype, b.dtype.name)
                result = result if result in FLOATS else "float32"
                short = b
                if b.dtype == "float64" and dtype in ("float16", "float32"):
                    short = b.astype(np.float32)
                wanted = outcome(lambda: beside("+", a, b))
                if wanted is not ValueError:
                    wide = a.astype(np.float64), short.astype(np.float64)
                    with np.errstate(all="ignore"):
                        wanted = np.floor(wide[0] / wide[1]).astype(result)
                for given in (b, b.tolist()):
                    if b.dtype == np.float16 and given is not b:
                        continue
                    got = outcome(lambda: tensor_of(a) // given)
                    self.alike(got, wanted, (dtype, given))

    def test_where(self):
        for a, b, given in self.pairs():
            t, result = tensor_of(a), met(a.dtype.name, b.dtype.name)
            what = a.dtype.name, given
            condition = np.resize([True, False, False], a.size)
            if outcome(lambda: beside("/", a, b)) is ValueError:
                with self.assertRaises(ValueError):
                    autograd.where(t, given, condition)
                continue
            with np.errstate(all="ignore"):
                wanted = np.where(condition, a, b.astype(result)).astype(result)
            self.alike(autograd.where(t, given, condition), wanted, what)
            self.alike(autograd.where(given, t, ~condition), wanted, what)

    def test_numbers_in_where(self):
        """They take the tensor's dtype, a float beside integers float32."""
        condition = np.array([True, False])
        for dtype in EVERY:
            a = np.array([1, 0], dtype)
            t = tensor_of(a)
            for number in (0.1, 1, True, np.float64(0.1), np.int64(1)):
                result = dtype
                if dtype not in FLOATS:
                    if isinstance(plain(number), float):
                        result = "float32"
                    elif dtype == "bool" and plain(number) is not True:
                        result = "int32"
                wanted = np.where(
                    condition, a.astype(result), np.array(number, result)
                )
                what = dtype, number
                self.alike(autograd.where(t, number, condition), wanted, what)
                self.alike(autograd.where(number, t, ~condition), wanted, what)
        with self.assertRaises(OverflowError):
            autograd.where(tensor_of(np.uint8([1, 2])), 300, condition)
        # Without a tensor among the two they are taken as from_numpy takes them.
        c = tensor_of(condition)
        for x, y, wanted in [
            (1.5, 2, np.float32([1.5, 2])), (1, 2, np.int32([1, 2])),
            (np.float16([3, 4]), 0.1, np.float16([3, 0.1])),
            ([2**40 + 0.5, 1], 3, np.float32([2**40 + 0.5, 3])),
        ]:  # fmt: skip
            self.alike(autograd.where(x, y, c), wanted, (x, y))

    def test_conditions(self):
        x, y = tensor_of(np.float32([1, 2])), tensor_of(np.float32([3, 4]))
        for condition in (
            np.array([1e-300, 0.0]), np.array([2**32, 0]), [True, False],
            np.uint64([2**63, 0]),
        ):  # fmt: skip
            self.alike(
                autograd.where(x, y, condition), np.float32([1, 4]), condition
            )

    def test_losses(self):
        """In the dtype of what was predicted."""
        for dtype, tolerance in (("float64", 1e-14), ("float32", 4e-6)):
            x = np.array([[0.2, 0.3], [0.6, 0.1]], dtype)
            t = np.array([[0.1, 0.9], [0.7, 1 / 3]])
            given = t if dtype == "float64" else t.astype(np.float32)
            wide = x.astype(np.float64), given.astype(np.float64)
            rows = wide[1] / wide[1].sum(axis=1, keepdims=True)
            log_softmax = wide[0] - np.log(
                np.exp(wide[0]).sum(axis=1, keepdims=True)
            )
            losses = {
                "mse_loss": np.mean((wide[0] - wide[1]) ** 2),
                "ranking_loss": np.maximum(0, 0.2 - wide[0] + wide[1]).mean(),
                "cross_entropy": -(wide[1] * np.log(wide[0])).sum() / 2,
                "softmax_cross_entropy": -(rows * log_softmax).sum() / 2,
                "binary_cross_entropy": -(
                    wide[1] * np.log(wide[0] + 1e-4)
                    + (1 - wide[1]) * np.log(1 - wide[0] + 1e-4)
                ).sum()
                / 2,
            }
            for name, wanted in losses.items():
                for value in (t, t.tolist()):
                    got = getattr(autograd, name)(tensor_of(x), value)
                    self.assertEqual(got.numpy().dtype, np.dtype(dtype), name)
                    np.testing.assert_allclose(
                        got, [wanted], rtol=tolerance, err_msg=name
                    )

    def test_elements_that_are_scattered(self):
        for dtype, value in (
            ("float64", 0.1), ("int64", 2**40 + 1), ("float32", 0.1),
        ):  # fmt: skip
            x = tensor.Tensor((3, 1), dtype=dtype)
            got = autograd.scatter_elements(x, [[1]], [[value]])
            self.alike(got, np.array([[0], [value], [0]], dtype), dtype)


class Indices(Case):
    def test_numbers(self):
        array = np.float32([10, 20, 30])
        t = tensor_of(array)
        for index in (0, 2, -1, -3, np.int64(1), np.uint8(2)):
            self.alike(t[index], array[index], index)
        for index in (
            3,
            -4,
            2**31,
            2**32,
            2**63,
            2**64,
            -(2**32),
            2**70,
        ):
            with self.assertRaises(IndexError, msg=index):
                t[index]
            with self.assertRaises(IndexError, msg=index):
                t[index] = 1
        for index in (1.0, "a", 1j):
            with self.assertRaises((IndexError, TypeError), msg=index):
                t[index]
        for bounds in [
            (1, 2**70), (-(2**70), 2), (2**32, None), (None, None, 2**40),
            (None, None, 2**70), (None, None, -(2**70)), (2, None, -1),
        ]:  # fmt: skip
            part = slice(*bounds)
            self.alike(t[part], array[part], bounds)

    def test_arrays(self):
        array = np.float32([10, 20, 30])
        t = tensor_of(array)
        for index in (
            [0, 2], [-1], [], [True, False, True], np.array([1], np.uint8),
            np.array([2, -3], np.int64),
        ):  # fmt: skip
            self.alike(t[index], array[index], index)
            if isinstance(index, np.ndarray):
                self.alike(
                    t[tensor_of(index.astype(np.int64))], array[index], index
                )
        for index in (
            [3], [-4], [2**32], [2**63], [2**70], [0.5], [1.0], ["a"],
            np.array([]), np.array([2**64 - 1], np.uint64), np.array([math.nan]),
        ):  # fmt: skip
            with self.assertRaises(IndexError, msg=index):
                t[index]
        with self.assertRaises(IndexError):
            t[tensor_of(np.float32([0.5]))]

    def test_functions_that_take_indices(self):
        x = tensor_of(np.float32([[10, 20], [30, 40], [50, 60]]))
        calls = {
            "gather": lambda i: autograd.gather(x, 0, i),
            "embedding": lambda i: autograd.embedding(i, x),
            "onehot": lambda i: autograd.onehot(1, i, 3, [0, 1]),
            "softmax_cross_entropy": lambda i: autograd.softmax_cross_entropy(
                tensor.zeros((len(i), 3)), i
            ),
            "cross_entropy": lambda i: autograd.cross_entropy(
                tensor.ones((len(i), 3)), i
            ),
        }
        for name, call in calls.items():
            wanted = call([2, 0]).numpy()
            for given in (
                np.array([2, 0]), np.array([2.0, 0.0]), np.uint8([2, 0]),
                tensor_of(np.float32([2, 0])), tensor_of(np.int64([2, 0])),
                tensor_of(np.float16([2, 0])),
            ):  # fmt: skip
                np.testing.assert_array_equal(call(given), wanted, name)
            for wrong in (
                [0.7, 1.2], [3, 0], [2**32, 0], [2**32 + 1, 0], [math.nan, 0],
                [math.inf, 0],
            ):  # fmt: skip
                with self.assertRaises((IndexError, ValueError), msg=name):
                    call(wrong)
                with self.assertRaises((IndexError, ValueError), msg=name):
                    call(tensor_of(np.array(wrong)))
            for wrong in (2**64 - 1, 2**64 - 3, 2**63):
                with self.assertRaises((IndexError, TypeError), msg=name):
                    call(np.array([wrong, 0], np.uint64))

    def test_labels_in_a_models_step(self):
        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.fc = layer.Linear(3)

            def forward(self, x):
                return self.fc(x)

            def train_one_batch(self, x, y):
                loss = autograd.softmax_cross_entropy(self.forward(x), y)
                self.optimizer(loss)
                return loss

        x = tensor.ones((2, 4))
        for use_graph in (False, True):
            CPU.SetRandSeed(2)
            whole, labels = [], (np.int32([2, 0]), np.float32([2, 0]))
            for y in labels:
                CPU.SetRandSeed(2)
                m = Net()
                m.set_optimizer(opt.SGD(lr=0.1))
                m.compile([x], True, use_graph)
                t = tensor_of(y)
                for _ in range(4):
                    m(x, t)
                whole.append(m.digest())
            self.assertEqual(whole[0], whole[1])
            # The last of these is a replay in graph mode.
            for wrong in (0.7, math.nan, math.inf, 3.0):
                t.copy_from_numpy(np.float32([wrong, 0]))
                with self.assertRaises(IndexError, msg=wrong):
                    m(x, t)
                    CPU.Sync()
                m.graph(use_graph)  # is recorded anew


class WholeNumbers(Case):
    """Sizes, axes, seeds and places: never cut to what C's types hold."""

    def test_shapes(self):
        makers = [
            tensor.Tensor, tensor.zeros, tensor.ones, tensor.random,
            singa_wrap.Tensor,
        ]  # fmt: skip
        for make in makers:
            for wrong, kind in [
                ((2**70,), ValueError), ((2**64 + 3,), ValueError),
                ((2**63,), ValueError), ((2, -1), ValueError),
                ((2.5,), TypeError), ((2.0,), TypeError), (("2",), TypeError),
            ]:  # fmt: skip
                with self.assertRaises(kind, msg=(make, wrong)):
                    make(wrong)
            with self.assertRaises((ValueError, IndexError, MemoryError)):
                make((2**40, 2**40))
        for wrong in ((2.0, 3), (2.5, -1)):
            with self.assertRaises(TypeError):
                tensor.zeros((2, 3)).reshape(wrong)
        with self.assertRaises((ValueError, OverflowError)):
            tensor.zeros((2, 3)).reshape((2**64 + 2, 3))
        with self.assertRaises(TypeError):
            tensor.zeros((2, 3)).transpose((1.0, 0))
        with self.assertRaises(TypeError):
            tensor.sum(tensor.zeros((2, 3)), [0.7])

    def test_settings(self):
        for make in (
            lambda: layer.Linear(3.5),
            lambda: layer.Conv2d(3.5, 3),
            lambda: layer.Conv2d(3, (3.5, 3)),
            lambda: layer.MaxPool1d(2, 1.5),
            lambda: CPU.SetRandSeed(1.5),
            lambda: data.synthetic(2.5),
            lambda: tensor.repeat(tensor.ones((2,)), 1.5),
            lambda: tensor.repeat(tensor.ones((2,)), [1, 1.5]),
            lambda: tensor.repeat(tensor.ones((2,)), 2**64 + 1),
            lambda: CPU.SetSkipIteration(1.5),
            lambda: device.Device("cpu", -1, threads=1.5).handle,
            lambda: device.create_cuda_gpu_on(0.5),
            lambda: singa_wrap.Communicator(
                0.5, 1, singa_wrap.NcclIdHolder("half")
            ),
            lambda: singa_wrap.Communicator(
                0, 1.5, singa_wrap.NcclIdHolder("half")
            ),
        ):
            with self.assertRaises(TypeError):
                make()
        for make in (
            lambda: CPU.SetRandSeed(2**70),
            lambda: device.Device("cpu", -1, threads=2**32 + 1).handle,
            lambda: device.create_cuda_gpu_on(2**32),
            lambda: device.get_gpu_mem_size(2**32),
            lambda: device.device_query(-(2**32)),
            lambda: data.synthetic(2**64 + 3),
            lambda: autograd.tile(tensor.zeros((2,)), [2**64 + 1]),
            lambda: data.Loader(data.synthetic(4), rank=2**32),
            lambda: data.Loader(data.synthetic(4), batch=2**64 + 1),
            lambda: data.Loader(data.synthetic(4), batch=2).seek(2**64),
        ):
            with self.assertRaises((OverflowError, ValueError)):
                make()

    def test_the_seed_of_dropout(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        x = tensor.ones((2,))
        for wrong, kind in ((0.5, TypeError), (2**64, OverflowError)):
            with self.assertRaises(kind):
                autograd.dropout(x, seed=wrong)

    def test_roots(self):
        dist.init()
        self.addCleanup(dist.shutdown)
        with self.assertRaises(OverflowError):
            dist.broadcast(np.ones(2, np.float32), 2**32)

    def test_steps_of_an_optimizer(self):
        sgd = opt.SGD()
        for step in (3, 2**24 + 1, 2**40 + 1):
            sgd.set_states({"step_counter": step})
            other = opt.SGD()
            other.set_states(sgd.get_states())
            self.assertEqual(other._step, step)

    def test_raw_tensors_have_singas_dtypes(self):
        for dtype in (tensor.float32, tensor.float16, tensor.int32):
            raw = singa_wrap.Tensor([2], CPU, dtype)
            self.assertEqual(tensor.from_raw_tensor(raw).dtype, dtype)
            self.assertEqual(raw.shape(), (2,))


class Empty(Case):
    def test_products_over_an_axis_without_elements(self):
        for a, b, axes in [
            ((2, 0), (0, 3), 1), ((0, 2), (2, 3), 1), ((2, 0), (0,), 1),
            ((0, 2), (2, 0), 1), ((2, 3, 0), (0, 4), 1), ((2, 0, 3), (0, 3), 2),
            ((2, 3), (0, 4), 0),
        ]:  # fmt: skip
            wanted = np.tensordot(np.zeros(a), np.zeros(b), axes)
            got = tensor.tensordot(tensor.zeros(a), tensor.zeros(b), axes)
            self.alike(got, wanted.astype(np.float32), (a, b))
        a, b = tensor.zeros((2, 0)), tensor.zeros((0, 3))
        a.stores_grad = True
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        (grad,) = autograd.grad(
            autograd.reduce_sum(tensor.tensordot(a, b, 1), keepdims=0), [a]
        )
        self.assertEqual(grad.shape, (2, 0))

    def test_batch_norm_of_an_empty_batch(self):
        for shape in ((0, 3, 4, 4), (0, 3)):
            norm = layer.BatchNorm2d()
            norm(tensor.ones((2,) + shape[1:]))
            self.assertEqual(norm(tensor.zeros(shape)).shape, shape)


class Losses(Case):
    def test_ranking_loss_takes_one_shape(self):
        pos, neg = np.float32([[1, 2], [0, 1]]), np.float32([[0, 3], [1, 1]])
        got = autograd.ranking_loss(tensor_of(pos), tensor_of(neg), 0.5)
        np.testing.assert_allclose(
            got, [np.maximum(0, 0.5 - pos + neg).mean()], rtol=1e-6
        )
        for shapes in [((10, 10), (10,)), ((10,), (1,)), ((2, 3), (3, 2))]:
            with self.assertRaisesRegex(
                ValueError, "ranking_loss: pos has shape .* the same is needed"
            ):
                autograd.ranking_loss(*[tensor.zeros(s) for s in shapes])


if __name__ == "__main__":
    unittest.main()
