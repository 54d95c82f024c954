# SPDX-License-Identifier: Apache-2.0
"""choir.autograd: what functions take and refuse; Dropout."""

import unittest

import numpy as np

from choir import autograd, device, tensor
from formulas import away, tensor_of
from training import Training

CPU = device.create_cpu_device()


class Arguments(unittest.TestCase):
    def refused(self, kind, words, function, *arguments, **named):
        with self.assertRaisesRegex(kind, words):
            function(*arguments, **named)

    def test_names_of_arguments(self):
        x, y = tensor_of(away(2, 2)), tensor_of(away(2, 2))
        for got, expected in [
            (autograd.relu(x=x), autograd.relu(x)),
            (autograd.add(a=x, b=y), autograd.add(x, y)),
            (autograd.less(x, y=y), autograd.less(x, y)),
            (autograd.matmul(x=x, w=y), autograd.matmul(x, y)),
            (autograd.transpose(x=x, shape=(1, 0)), x.T()),
            (autograd.abs(a=x), abs(x)),
        ]:
            np.testing.assert_array_equal(got, expected)
        self.refused(
            TypeError, r"relu takes 1 tensor \(x\)", autograd.relu, y=x
        )
        self.refused(TypeError, "add takes 2 tensors", autograd.add, x)

    def test_numbers_and_dtypes_mix(self):
        x = tensor_of(np.float32([1, 2]))
        np.testing.assert_array_equal(autograd.add(x, 2), [3, 4])
        np.testing.assert_array_equal(autograd.sub(2, x), [1, 0])
        wide = autograd.mul(x, tensor_of(np.float64([3, 4])))
        self.assertEqual(wide.dtype, tensor.float64)

    def test_refusals(self):
        x = tensor_of(away(2, 3))
        array = np.ones((2, 3))
        for kind, words, name, *arguments in [
            (
                TypeError,
                "relu: ndarray given; a Tensor is needed",
                "relu",
                array,
            ),
            (TypeError, "a Tensor is needed", "add", array, array),
            (TypeError, "str given", "add", x, "text"),
            (TypeError, "sum takes one tensor or more", "sum"),
            (TypeError, "a Tensor is needed", "mean", array),
            (ValueError, "add_bias: axis is 2", "add_bias", x, x, 2),
            (
                ValueError,
                "vector of columns elements",
                "add_bias",
                x,
                tensor_of(away(2)),
            ),
            (IndexError, "softmax: axis 2 of a tensor with 2", "softmax", x, 2),
            (ValueError, "size 2 of .* is 0", "reshape", x, (2, 3, 0)),
            (TypeError, "whole numbers are needed", "reshape", x, (2.5, 1)),
            (ValueError, "reshape", "reshape", x, (4, 2)),
            (IndexError, "flatten: axis 3", "flatten", x, 3),
            (
                ValueError,
                "axis 1 of shape .2, 3. is not of size 1",
                "squeeze",
                x,
                1,
            ),
            (ValueError, "named twice", "unsqueeze", x, [0, 0]),
            (ValueError, "broadcast", "expand", x, (4, 3)),
            (TypeError, "cat takes one tensor or more", "cat", []),
            (ValueError, "they must add up to 3", "split", x, 1, [1, 1]),
            (ValueError, "2 equal parts of 3", "split", x, 1, None, 2),
            (ValueError, "a step is 0", "slice", x, [0], [1], [0], [0]),
            (ValueError, "1 starts, 2 ends", "slice", x, [0], [1, 2]),
            (ValueError, "3 pads for a tensor", "pad", x, "edge", [1, 2, 3]),
            (ValueError, "mirror", "pad", x, "mirror", [1, 1, 1, 1]),
            (
                NotImplementedError,
                "mode is 'linear'",
                "upsample",
                x,
                "linear",
                [1, 2],
            ),
            (
                ValueError,
                "one number above 0",
                "upsample",
                x,
                "nearest",
                [0, 1],
            ),
            (ValueError, "DCR or CRD", "depth_to_space", x, 2, "RDC"),
            (ValueError, "n, c, h, w", "space_to_depth", x, 2),
            (
                ValueError,
                "3 channels",
                "depth_to_space",
                tensor_of(away(1, 3, 2, 2)),
                2,
            ),
            (
                ValueError,
                "3 by 2 pixels",
                "space_to_depth",
                tensor_of(away(1, 1, 3, 2)),
                2,
            ),
            (IndexError, "gather", "gather", x, 1, [3]),
            (IndexError, "gather: axis 2", "gather", x, 2, [0]),
            (
                ValueError,
                "a matrix is needed",
                "embedding",
                [0],
                tensor_of(away(2)),
            ),
            (IndexError, "reduce_sum: axis 5", "reduce_sum", x, [5]),
            (
                ValueError,
                "data_format is 'NCHW'",
                "globalaveragepool",
                x,
                "NCHW",
            ),
            (
                ValueError,
                "two matrices of one shape",
                "cossim",
                x,
                tensor_of(away(2, 2)),
            ),
            (
                ValueError,
                "labels of shape .3,. for 2 rows",
                "softmax_cross_entropy",
                x,
                [0, 1, 2],
            ),
            (
                ValueError,
                "labels is .* .3.; needs the shape of x",
                "linear_cross_entropy",
                x,
                x,
                [0, 1, 2],
                True,
            ),
            (
                ValueError,
                "batch, classes",
                "cross_entropy",
                tensor_of(away(2)),
                [0, 1],
            ),
            (
                ValueError,
                r"labels of shape \(6,\) for x of shape \(2, 3, 4\); \(2, 3\)",
                "softmax_cross_entropy",
                tensor_of(away(2, 3, 4)),
                [0, 1, 2, 3, 0, 1],
            ),
            (IndexError, "label", "softmax_cross_entropy", x, [0, 3]),
            (ValueError, "mse_loss", "mse_loss", x, tensor_of(away(2))),
            (
                ValueError,
                "the same is needed",
                "binary_cross_entropy",
                x,
                [0, 1],
            ),
            (ValueError, "ratio is 1", "dropout", x, 0, 1),
        ]:
            with self.subTest(name, arguments=words):
                self.refused(kind, words, getattr(autograd, name), *arguments)

    def test_zero_times_the_logarithm_of_zero(self):
        p = tensor_of(np.float64([[0, 1], [0.5, 0.5]]))
        t = tensor_of(np.float64([[0, 1], [1, 0]]), False)
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        loss = autograd.cross_entropy(p, t)
        np.testing.assert_allclose(loss, [np.log(2) / 2])
        (grad,) = autograd.grad(loss, [p])
        np.testing.assert_allclose(grad, [[0, -0.5], [-1, 0]])

    def test_ctensor2numpy(self):
        array = autograd.ctensor2numpy(tensor.ones((2,)).data)
        np.testing.assert_array_equal(array, [1, 1])


class Dropout(Training):
    def setUp(self):
        super().setUp()
        autograd.place.end_step()

    def test_share_and_scale(self):
        x = tensor.ones((100, 100))
        for ratio in (0.5, 0.2):
            y = autograd.dropout(x, ratio=ratio).numpy()
            kept = np.float32(1 / (1 - ratio))
            self.assertEqual(set(np.unique(y)), {0, kept})
            self.assertAlmostEqual((y == 0).mean(), ratio, delta=0.03)

    def test_outside_of_training_it_is_x(self):
        x = tensor.ones((4,))
        y = autograd.dropout(x, ratio=0.0)
        self.assertIs(y.data, x.data)
        self.assertIsInstance(y.creator, autograd.Dropout)
        autograd.training = False
        self.assertIs(autograd.dropout(x), x)
        raw = autograd.Dropout(ratio=0.5).forward(x.data)
        np.testing.assert_array_equal(raw.read(), np.ones(4))

    def test_gradient_has_the_same_mask(self):
        w = self.param(np.ones(100))
        y = autograd.dropout(w, ratio=0.3)
        ((_, grad),) = autograd.backward(y, tensor.ones_like(y))
        np.testing.assert_array_equal(grad, y.numpy())

    def test_what_masks_follow_from(self):
        x = tensor.ones((50, 4))

        def two():
            masks = [autograd.dropout(x).numpy() for _ in range(2)]
            autograd.place.end_step()
            return masks

        autograd.place.step = 0
        first, second = two()
        self.assertFalse((first == second).all())  # two in one step
        self.assertFalse((first == two()[0]).all())  # the next step
        autograd.place.step = 0
        np.testing.assert_array_equal(first, two()[0])
        CPU.SetRandSeed(2)
        autograd.place.step = 0
        self.assertFalse((first == two()[0]).all())  # another seed
        CPU.SetRandSeed(1)
        autograd.place.step = 0
        own = autograd.dropout(x, 7).numpy()
        self.assertFalse((first == own).all())  # the op's own
        autograd.place.step = 0
        autograd.place.end_step()
        autograd.place.step = 0
        np.testing.assert_array_equal(own, autograd.dropout(x, seed=7).numpy())

    def test_workers_have_their_share_of_one_mask(self):
        x = tensor.ones((8, 4))
        autograd.place.step = 5
        whole_mask = autograd.dropout(x).numpy()
        self.addCleanup(setattr, autograd.place, "partition", (0, 1))
        parts = []
        for rank in range(2):
            autograd.place.end_step()
            autograd.place.step = 5
            autograd.place.partition = (rank, 2)
            parts.append(autograd.dropout(x[:4]).numpy())
        np.testing.assert_array_equal(np.concatenate(parts), whole_mask)


class Attention(unittest.TestCase):
    def test_masks_of_all_kinds(self):
        q, k, v = (tensor_of(away(2, 2, n, 4)) for n in (3, 5, 5))
        seen = np.tri(3, 5, 1, dtype=bool)
        want = autograd.attention(q, k, v, causal=True, offset=1).numpy()
        hidden = np.where(seen, 0.0, -np.inf)
        for mask in (
            seen,
            seen.astype(np.int64).tolist(),
            hidden,
            tensor_of(seen.astype(np.int32), False),
            tensor_of(hidden.astype(np.float32), False),
        ):
            got = autograd.attention(q, k, v, mask).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5)
        whole = autograd.attention(q, k, v).numpy()
        self.assertGreater(np.abs(whole - want).max(), 0.01)

    def test_dropout_is_drawn_by_the_place_in_training(self):
        n = 64  # each weight is 1 / n, and the product with v shows it
        q = tensor_of(np.zeros((2, 2, n, 4), np.float32))
        v = tensor_of(np.tile(np.eye(n, dtype=np.float32), (2, 2, 1, 1)))

        def weights():
            return autograd.attention(q, q, v, dropout=0.25).numpy() * n

        before = autograd.training
        self.addCleanup(setattr, autograd, "training", before)
        autograd.training = False
        np.testing.assert_allclose(weights(), 1, rtol=1e-5)
        autograd.training = True
        autograd.place.begin_run()
        first, second = weights(), weights()
        self.assertAlmostEqual((first == 0).mean(), 0.25, delta=0.02)
        np.testing.assert_allclose(first[first != 0], 4 / 3, rtol=1e-5)
        self.assertFalse((first == second).all())
        autograd.place.begin_run()
        np.testing.assert_array_equal(weights(), first)


if __name__ == "__main__":
    unittest.main()
