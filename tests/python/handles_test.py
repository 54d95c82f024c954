# SPDX-License-Identifier: Apache-2.0
"""SINGA's handles: as the layers, forward and backward."""

import os
import unittest

os.environ["CHOIR_THREADS"] = "1"

import numpy as np

from choir import autograd, layer, singa_wrap, tensor, utils


def numbers(*shape):
    rng = np.random.default_rng(sum(shape))
    return tensor.from_numpy(rng.standard_normal(shape).astype(np.float32))


class Handles(unittest.TestCase):
    def setUp(self):
        autograd.training = True
        self.x = numbers(3, 4, 9, 8)

    def tearDown(self):
        autograd.training = False

    def test_convolution(self):
        made = layer.Conv2d(6, (3, 2), stride=2, padding=1, group=2)
        wanted = made(self.x)
        handle = singa_wrap.ConvHandle(
            self.x.data, (3, 2), (2, 2), (1, 1), 4, 6, True, 2
        )
        y = autograd.conv2d(handle, self.x, made.W, made.b)
        np.testing.assert_array_equal(y.numpy(), wanted.numpy())
        op = autograd._Conv2d(handle)
        raw = op.forward(self.x.data, made.W.data, made.b.data)
        np.testing.assert_array_equal(raw.read(), wanted.numpy())
        dy = numbers(*wanted.shape)
        grads = op.backward(dy.data)
        by_layer = autograd.grad(wanted, [made.W, made.b], dy)
        np.testing.assert_array_equal(grads[1].read(), by_layer[0].numpy())
        np.testing.assert_array_equal(grads[2].read(), by_layer[1].numpy())

    def test_odd_padding_is_zeros_around_the_image(self):
        handle = singa_wrap.ConvHandle(self.x.data, 2, 1, 0, 4, 5, False)
        W = numbers(5, 4, 2, 2)
        y = autograd.conv2d(handle, self.x, W, odd_padding=(0, 1, 1, 0))
        padded = np.pad(self.x.numpy(), ((0, 0), (0, 0), (0, 1), (1, 0)))
        again = autograd.conv2d(handle, tensor.from_numpy(padded), W)
        np.testing.assert_allclose(
            y.numpy(), again.numpy(), rtol=1e-5, atol=1e-5
        )

    def test_pooling(self):
        for is_max in (True, False):
            handle = singa_wrap.PoolingHandle(self.x.data, 2, 2, 0, is_max)
            wanted = layer.Pooling2d(2, 2, 0, is_max)(self.x)
            y = autograd.pooling_2d(handle, self.x)
            np.testing.assert_array_equal(y.numpy(), wanted.numpy())
            op = autograd._Pooling2d(handle)
            op.forward(self.x.data)
            total = op.backward(tensor.ones_like(y).data).read().sum()
            self.assertAlmostEqual(total, y.size(), 3)

    def test_batch_norm_brings_averages_up_to_date(self):
        handle = singa_wrap.BatchNormHandle(0.9, self.x.data)
        scale, bias = tensor.ones((4,)), tensor.zeros((4,))
        mean, var = tensor.zeros((4,)), tensor.ones((4,))
        y = autograd.batchnorm_2d(
            handle, self.x, scale, bias, mean, var
        ).numpy()
        x = self.x.numpy()
        axes = (0, 2, 3)
        np.testing.assert_allclose(y.mean(axes), 0, atol=1e-5)
        np.testing.assert_allclose(y.std(axes), 1, atol=1e-3)
        np.testing.assert_allclose(mean.numpy(), 0.9 * x.mean(axes), rtol=1e-4)
        n = x.size // 4
        expected = 0.1 + 0.9 * x.var(axes) * n / (n - 1)
        np.testing.assert_allclose(var.numpy(), expected, rtol=1e-4)

    def test_handles_for_other_batches(self):
        handle = singa_wrap.ConvHandle(self.x.data, 3, 1, 1, 4, 5)
        self.assertIs(utils.re_new_handle(handle, self.x.data), handle)
        other = utils.re_new_handle(handle, numbers(2, 4, 9, 8).data)
        self.assertEqual(other.batchsize, 2)
        odd = utils.same_pad_shape_check(handle, "SAME_UPPER", self.x)
        self.assertEqual(odd, [0, 0, 0, 0])
        with self.assertRaisesRegex(
            ValueError, "4 dimensions|channels are needed"
        ):
            singa_wrap.ConvHandle(self.x.data, 3, 1, 1, 3, 5)


if __name__ == "__main__":
    unittest.main()
