# SPDX-License-Identifier: Apache-2.0
"""choir.autograd: backward, and operators that a user defines."""

import gc
import unittest
import weakref

import numpy as np

from choir import _raw, autograd, device, tensor
from choir.autograd import Operator
from formulas import tensor_of
from training import Training

CPU = device.create_cpu_device()


class Backward(Training):
    def test_yields_parameters_only(self):
        w, b = self.param([[1.0, 2], [3, 4]]), self.param([5.0, 6])
        x = tensor_of(np.float64([[1, -1]]))  # wants a gradient, stores none
        frozen = self.param([7.0, 8])
        frozen.requires_grad = False
        loss = autograd.mse_loss(
            autograd.add(autograd.matmul(x, w), b) * frozen.detach(),
            np.zeros((1, 2)),
        )
        found = list(autograd.backward(loss))
        self.assertEqual([id(p) for p, _ in found], [id(b), id(w)])
        y = np.array([3.0, 4]) * [7, 8]
        expected = y * [7, 8]  # 2 y / 2 elements
        np.testing.assert_allclose(found[0][1], expected)
        np.testing.assert_allclose(found[1][1], [expected, -expected])
        grads = autograd.gradients(loss)
        np.testing.assert_allclose(grads[id(b)], expected)
        self.assertEqual(set(grads), {id(w), id(b)})

    def test_a_tensor_used_twice(self):
        w = self.param([3.0, 5])
        for y, expected in [
            (w * w, [6, 10]), (w + w, [2, 2]), (w - w, [0, 0]),
            (w * w * w, [27, 75]), (autograd.cat([w, w], 0), [2, 2]),
            (autograd.square(w) + autograd.square(w), [12, 20]),
        ]:  # fmt: skip
            (pair,) = autograd.backward(y, tensor.ones_like(y))
            self.assertIs(pair[0], w)
            np.testing.assert_allclose(pair[1], expected)

    def test_a_parameter_in_other_hands(self):
        w = self.param([3.0, 5])
        loss = autograd.reduce_sum(w * w)
        other = tensor.Tensor._of(
            w.data
        )  # the same memory is not the same tensor
        other.name = "mine"
        with self.assertRaisesRegex(
            ValueError,
            r"grad: xs\[1\] \(mine, shape \(2,\)\) is no source of y",
        ):
            autograd.grad(loss, [w, other])
        with self.assertRaisesRegex(ValueError, r"xs\[0\] .* no source of y"):
            autograd.grad(loss, [w * 1.0])
        with self.assertRaisesRegex(ValueError, r"xs\[1\] .* no source of y"):
            autograd.grad(loss, [w, loss])
        one = self.param([2.0])  # which no operator made
        np.testing.assert_array_equal(autograd.grad(one, [one])[0], [1.0])
        with self.assertRaisesRegex(TypeError, r"grad: xs\[1\] is a float"):
            autograd.grad(loss, [w, 3.0])

    def test_dy(self):
        w = self.param([3.0, 5])
        y = autograd.square(w)
        for dy in (
            tensor_of(np.float64([1, 10])),
            tensor_of(np.float64([1, 10])).data,
        ):
            ((_, grad),) = autograd.backward(y, dy)
            np.testing.assert_allclose(grad, [6, 100])
        with self.assertRaisesRegex(ValueError, "starts from a gradient"):
            list(autograd.backward(y, tensor_of(np.float64([1]))))

    def test_a_loss_that_is_not_one_number(self):
        w = self.param([3.0, 5])
        with self.assertRaisesRegex(ValueError, r"the loss has shape \(2,\)"):
            next(autograd.backward(w * w))
        for loss in (3.0, np.ones(1)):
            with self.assertRaisesRegex(TypeError, "backward: .* given"):
                next(autograd.backward(loss))

    def test_nothing_was_seen(self):
        w = self.param([3.0])
        with autograd.no_grad():
            loss = w * w
        self.assertIsNone(loss.creator)
        with self.assertRaisesRegex(RuntimeError, "autograd.training = True"):
            next(autograd.backward(loss))
        self.assertTrue(autograd.training)

        @autograd.no_grad()
        def forward():
            return w * w

        self.assertIsNone(forward().creator)
        autograd.training = False
        self.assertIsNone((w * w).creator)

    def test_nothing_is_trainable(self):
        x = tensor_of(np.float64([3]))
        self.assertEqual(list(autograd.backward(x * x)), [])
        w = self.param([3.0])
        w.requires_grad = False
        self.assertIsNone((w * w).creator)

    def test_integers_have_no_gradient(self):
        w = self.param([3.0, 5])
        y = autograd.reduce_sum(
            autograd.cast(autograd.cast(w, "int32"), "float64")
        )
        with self.assertRaisesRegex(RuntimeError, "depends on no parameter"):
            list(autograd.backward(y))

    def test_memory_goes_with_the_loss(self):
        w = self.param(np.ones(1000))

        def step():
            loss = autograd.reduce_sum(autograd.square(autograd.square(w)))
            return list(autograd.backward(loss))

        step()
        gc.collect()
        before = CPU.memory()["in_use"]
        gc.disable()  # reference counts are enough
        self.addCleanup(gc.enable)
        for _ in range(3):
            step()
        self.assertEqual(CPU.memory()["in_use"], before)

    def test_deep_graphs(self):
        w = self.param([1.0])
        y = w
        for _ in range(3000):
            y = y * 1.0
        ((_, grad),) = autograd.backward(y)
        np.testing.assert_allclose(grad, [1])

    def test_helpers(self):
        w, x = self.param(np.ones((2, 3))), tensor_of(np.ones((1, 3)))
        y = w * x
        ops, tensors = autograd.infer_dependency(y.creator)
        self.assertEqual(ops, {id(y.creator): 0})
        self.assertEqual(tensors, {id(w): 1, id(x): 1})
        z = y + y
        ops, tensors = autograd.infer_dependency(z.creator)
        self.assertEqual(ops, {id(z.creator): 0, id(y.creator): 2})
        self.assertEqual(autograd.axis_helper((4, 2, 3), (2, 1)), (0, 2))
        summed = autograd.back_broadcast(
            (4, 2, 3), (2, 1), tensor.ones((4, 2, 3)).data
        )
        np.testing.assert_array_equal(summed.read(), [[12], [12]])

    def test_names(self):
        y = self.param([1.0]) * 2
        self.assertRegex(y.creator.name, r"#\d+$")
        self.assertEqual(y.creator.output_name(0), f"{y.creator.name}:0")
        self.assertEqual(y.creator.grad_name(1), f"{y.creator.name}:1_g")
        dummy = autograd.Dummy(y, "leaf")
        self.assertEqual(
            (dummy.output_name(0), dummy.grad_name(0)), ("leaf", "leaf_g")
        )
        self.assertEqual(dummy.shape, (1,))
        self.assertFalse(dummy.requires_grad)
        self.assertIs(autograd.Operation, Operator)


class TwiceAndThrice(Operator):
    """x -> 2 x, 3 x"""

    def forward(self, x):
        return _raw.run("scale", x, factor=2.0, shift=0.0), _raw.run(
            "scale", x, factor=3.0, shift=0.0
        )

    def backward(self, a, b):
        self.seen = [a.read(), b.read()]
        return _raw.run(
            "add",
            _raw.run("scale", a, factor=2.0, shift=0.0),
            _raw.run("scale", b, factor=3.0, shift=0.0),
        )


class Product(Operator):
    def forward(self, x, y):
        self.sources = x, y
        return _raw.run("mul", x, y)

    def backward(self, dy):
        x, y = self.sources
        return _raw.run("mul", dy, y), _raw.run("mul", dy, x)


class Gives(Operator):
    """The identity, with a backward of the test's."""

    def __init__(self, backward):
        super().__init__()
        self._backward = backward

    def forward(self, x):
        return _raw.run("copy", x)

    def backward(self, dy):
        return self._backward(dy)


class UserDefined(Training):
    def test_one_result(self):
        w, v = self.param([3.0, 5]), self.param([7.0, 11])
        results = Product()(w, v)
        self.assertIsInstance(results, tuple)
        loss = autograd.reduce_sum(autograd.square(results[0]))
        grads = autograd.gradients(loss)
        np.testing.assert_allclose(grads[id(w)], [2 * 3 * 49, 2 * 5 * 121])
        np.testing.assert_allclose(grads[id(v)], [2 * 7 * 9, 2 * 11 * 25])

    def test_between_and_behind_ops(self):
        w = self.param([3.0, 5])
        y = Product()(autograd.square(w), w)[0]
        y = Product()(y, y)[0]  # w^6
        ((_, grad),) = autograd.backward(y, tensor.ones_like(y))
        np.testing.assert_allclose(grad, [6 * 3.0**5, 6 * 5.0**5])

    def test_several_results(self):
        w = self.param([1.0, 10])
        op = TwiceAndThrice()
        a, b = op(w)
        loss = autograd.reduce_sum(a * b)  # 6 w^2
        ((_, grad),) = autograd.backward(loss)
        np.testing.assert_allclose(grad, [12, 120])
        np.testing.assert_allclose(op.seen, [[3, 30], [2, 20]])

    def test_a_result_that_is_not_used(self):
        for i, expected in [(0, 2), (1, 3)]:
            w = self.param([1.0, 10])
            op = TwiceAndThrice()
            y = autograd.reduce_sum(op(w)[i])
            ((_, grad),) = autograd.backward(y)
            np.testing.assert_allclose(grad, [expected] * 2)
            np.testing.assert_allclose(op.seen[1 - i], [0, 0])

    def test_outside_of_training(self):
        autograd.training = False
        y = Product()(self.param([3.0]), self.param([4.0]))[0]
        self.assertIsNone(y.creator)
        np.testing.assert_allclose(y, [12])

    def test_no_contribution(self):
        w = self.param([3.0])
        y = Gives(lambda dy: None)(w)[0]
        self.assertEqual(list(autograd.backward(y)), [])

    def test_exceptions_come_out_as_themselves(self):
        class Mine(Exception):
            pass

        def fails(dy):
            raise Mine("in backward")

        w = self.param([3.0])
        with self.assertRaisesRegex(Mine, "^in backward$"):
            list(autograd.backward(Gives(fails)(w)[0]))
        # And the next backward works.
        ((_, grad),) = autograd.backward(w * w)
        np.testing.assert_allclose(grad, [6])

    def test_gradients_that_do_not_fit(self):
        w = self.param([3.0, 4])
        ones = tensor.ones_like(w)
        wrong = tensor.ones((3,), dtype="float64").data
        for given, words in [
            (wrong, r"Gives: backward gave .*3.* for source 0"),
            ((ones.data, ones.data), "backward gave 2 gradients for 1 sources"),
        ]:
            y = Gives(lambda dy: given)(w)[0]
            with self.assertRaisesRegex(ValueError, words):
                list(autograd.backward(y, ones))

    def test_undefined(self):
        with self.assertRaisesRegex(
            NotImplementedError, "Operator defines no forward"
        ):
            Operator()(self.param([1.0]))
        with self.assertRaisesRegex(NotImplementedError, "defines no backward"):
            Operator().backward()
        with self.assertRaisesRegex(TypeError, "a Tensor is needed"):
            Product()(np.ones(1), np.ones(1))
        self.assertEqual(Product().get_params(), [])

    def test_an_operator_goes_with_its_results(self):
        op = Product()
        gone = weakref.ref(op)
        y = op(self.param([1.0]), self.param([1.0]))[0]
        list(autograd.backward(y))
        del op
        self.assertIsNotNone(gone())
        del y
        self.assertIsNone(gone())


if __name__ == "__main__":
    unittest.main()
