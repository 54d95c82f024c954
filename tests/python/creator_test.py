# SPDX-License-Identifier: Apache-2.0
"""`creator` of results: the operator of the function or the layer that was called,
whose backward gives gradients of its inputs alone. Of every function:
autograd_table_test.py."""

import copy
import gc
import unittest
import weakref

import numpy as np

from choir import autograd, layer, singa_wrap, tensor, utils
from formulas import away, softmax, tensor_of
from training import CPU, Training


class Creators(Training):
    def gradients(self, y, dy=None):
        """Of the creator's sources, as arrays."""
        dy = () if dy is None else (tensor_of(dy).data,)
        grads = y.creator.backward(*dy)
        grads = grads if isinstance(grads, tuple) else (grads,)
        self.assertEqual(len(grads), len(y.creator.src))
        return [None if g is None else g.read() for g in grads]

    def test_losses_begin_with_1(self):
        A = autograd
        x, p = away(2, 3), softmax(away(2, 3))
        onehot = np.float64([[0, 1, 0], [0, 0, 1]])
        a, b = away(4), away(4)
        on = (0.2 - a + b > 0) / 4
        w = away(3, 3)
        for loss, expected in [
            (lambda x: A.softmax_cross_entropy(x, [1, 2]), (softmax(x) - onehot) / 2),
            (lambda x: A.softmax_cross_entropy(x, onehot), (softmax(x) - onehot) / 2),
            (lambda x: A.SoftMaxCrossEntropy([1, 2])(x)[0], (softmax(x) - onehot) / 2),
            (lambda x: A.mse_loss(x, tensor_of(onehot)), (x - onehot) / 3),
            (lambda x: A.linear_cross_entropy(x, tensor_of(w), [1, 2]),
             (softmax(x @ w) - onehot) @ w.T / 2),
            (A.reduce_sum, np.ones((2, 3))),
            (A.reduce_mean, np.full((2, 3), 1 / 6)),
        ]:  # fmt: skip
            # Something behind x must not matter.
            inner = autograd.tanh(tensor_of(np.arctanh(x / 9))) * 9.0
            y = loss(inner)
            np.testing.assert_allclose(
                self.gradients(y)[0], expected, 1e-9, 1e-12
            )
            np.testing.assert_allclose(
                y.creator.backward(dy=3.0)[0].read()
                if len(y.creator.src) > 1
                else y.creator.backward(dy=3.0).read(),
                3 * expected, 1e-9, 1e-12,
            )  # fmt: skip
        y = A.cross_entropy(tensor_of(p), [1, 2])
        np.testing.assert_allclose(self.gradients(y)[0], -onehot / p / 2)
        y = A.binary_cross_entropy(tensor_of(p), onehot)
        np.testing.assert_allclose(
            self.gradients(y)[0],
            -(onehot / (p + 1e-4) - (1 - onehot) / (1 - p + 1e-4)) / 2,
        )
        y = A.ranking_loss(tensor_of(a), tensor_of(b))
        da, db = self.gradients(y)
        np.testing.assert_allclose(da, -on)
        np.testing.assert_allclose(db, on)
        y = A.relu(tensor_of(x))
        with self.assertRaisesRegex(TypeError, "0 gradients for 1 results"):
            y.creator.backward()
        # autograd.backward too.
        w = self.param(x)
        for dy, factor in [(None, 1), (2.5, 2.5), (tensor_of([2.0]).data, 2)]:
            ((p, g),) = autograd.backward(A.mse_loss(w, onehot), dy)
            self.assertIs(p, w)
            np.testing.assert_allclose(g.numpy(), factor * (x - onehot) / 3)

    def test_a_class_is_the_creator_of_each_of_its_calls(self):
        x, z = away(2, 3), away(2, 3)
        for op in (autograd.Clip(-1, 1), autograd.GlobalAveragePool()):
            a, b = (autograd.identity(tensor_of(v[..., None])) for v in (x, z))
            y1, y2 = op(a)[0], op(b)[0]
            self.assertIs(y1.creator, op)
            self.assertIs(type(y2.creator), type(op))
            self.assertIs(y1.creator.src[0], a)
            self.assertIs(y2.creator.src[0], b)
            autograd.backward(autograd.reduce_sum(y1))
        inside = np.abs(x) < 1
        np.testing.assert_array_equal(
            self.gradients(
                autograd.Clip(-1, 1)(tensor_of(x))[0], np.ones_like(x)
            )[0],
            inside,
        )

    def test_a_forward_on_raw_tensors_leaves_results_alone(self):
        w = self.param(away(2, 3))
        op = autograd.Sum()
        y = op(w, autograd.flatten(w))[0]
        op.forward(tensor_of(away(1)).data)
        self.assertEqual(op.backward(1.0).shape(), (1,))
        ((_, g),) = autograd.backward(y, 1.0)
        np.testing.assert_array_equal(g.numpy(), np.full((2, 3), 2.0))

    def test_the_same_tensor_twice(self):
        x, dy = away(3, 3), away(3, 3)
        t = autograd.identity(tensor_of(x))
        for function, expected in [
            (lambda t: autograd.sum(t, t), (dy, dy)),
            (lambda t: autograd.mul(t, t), (dy * x, dy * x)),
            (lambda t: autograd.gemm(t, t, t, 2.0),
             (2 * dy @ x.T, 2 * x.T @ dy, dy)),
        ]:  # fmt: skip
            for one in (t, tensor_of(x)):
                grads = self.gradients(function(one), dy)
                self.assertEqual(len(grads), len(expected))
                for got, wanted in zip(grads, expected):
                    np.testing.assert_allclose(got, wanted)
        # And all of it in backward.
        w = self.param(x)
        ((_, g),) = autograd.backward(
            autograd.sum(w, w, autograd.flatten(w)), tensor_of(dy)
        )
        np.testing.assert_allclose(g.numpy(), 3 * dy)

    def test_several_results(self):
        x = tensor_of(away(2, 5))
        a, b = autograd.split(autograd.identity(x), 1, [2, 3])
        self.assertIs(a.creator, b.creator)
        self.assertIsInstance(a.creator, autograd.Split)
        da, db = away(2, 2), away(2, 3)
        dx = a.creator.backward(tensor_of(da).data, tensor_of(db).data)
        np.testing.assert_array_equal(dx.read(), np.concatenate([da, db], 1))
        dx = a.creator.backward(None, tensor_of(db).data)
        np.testing.assert_array_equal(dx.read()[:, 2:], db)
        self.assertFalse(dx.read()[:, :2].any())
        with self.assertRaisesRegex(TypeError, "1 gradients for 2 results"):
            a.creator.backward(tensor_of(da).data)

    def test_what_gives_back_its_input(self):
        w = self.param(away(2, 3))
        for function, kind in [
            (autograd.flatten, autograd.Flatten),
            (lambda x: autograd.dropout(x, ratio=0.0), autograd.Dropout),
            (lambda x: autograd.slice(x, [0], [2]), autograd.Slice),
            (autograd.sum, autograd.Sum),
        ]:
            dy = away(2, 3)
            for x in (w, autograd.identity(w)):
                y = function(x)
                self.assertIsInstance(y.creator, kind)
                self.assertIs(y.creator.src[0], x)
                np.testing.assert_array_equal(self.gradients(y, dy)[0], dy)
                ((p, g),) = autograd.backward(y, tensor_of(dy))
                self.assertIs(p, w)
                np.testing.assert_array_equal(g.numpy(), dy)
                (g,) = autograd.grad(y, [w], tensor_of(dy))
                np.testing.assert_array_equal(g.numpy(), dy)
            self.assertIsNone(w.creator)
            np.testing.assert_allclose(
                autograd.gradients(autograd.reduce_sum(y * y))[id(w)].numpy(),
                2 * w.numpy(),
            )

    def test_dropout_has_its_own_mask(self):
        x = tensor_of(np.ones((20, 20)))
        y = autograd.dropout(x, ratio=0.3)
        for _ in range(2):
            np.testing.assert_array_equal(
                self.gradients(y, np.ones((20, 20)))[0], y.numpy()
            )

    def test_numbers_and_other_dtypes(self):
        x = tensor_of(np.float32(away(2, 3)))
        y = autograd.add(x, 2.0)
        self.assertIsInstance(y.creator, autograd.Add)
        self.assertIs(y.creator.src[0], x)
        np.testing.assert_array_equal(
            self.gradients(y, np.ones((2, 3), np.float32))[0], 1
        )
        z = tensor_of(away(3))
        y = autograd.mul(x, z)
        self.assertIsInstance(y.creator, autograd.Mul)
        dx, dz = self.gradients(y, np.ones((2, 3)))
        self.assertEqual(dx.dtype, np.float32)
        np.testing.assert_allclose(dx, np.tile(z.numpy(), (2, 1)), 1e-6)
        np.testing.assert_allclose(dz, x.numpy().sum(0), 1e-6)

    def test_mixed_precision(self):
        from choir._here import here
        from choir import _raw

        self.addCleanup(setattr, here, "precision", None)
        here.precision = _raw.BF16
        a, b = (tensor_of(np.float32(away(4, 4))) for _ in range(2))
        dy = np.ones((4, 4), np.float32)
        for left, right in ((a, b), (a, a)):
            y = autograd.matmul(left, right)
            self.assertIsInstance(y.creator, autograd.Matmul)
            self.assertIs(y.creator.src[0], left)
            da, db = y.creator.backward(tensor_of(dy).as_type(y.dtype).data)
            for got, wanted in [
                (da, dy @ right.numpy().T), (db, left.numpy().T @ dy)
            ]:  # fmt: skip
                got = np.float32(tensor.Tensor(data=got).as_type("float32"))
                np.testing.assert_allclose(got, wanted, 0.05, 0.1)

    def test_it_can_be_copied_and_walked(self):
        x = tensor_of(away(2, 3))
        y = autograd.clip(x, -1.0, max=1.0)
        op = copy.copy(y.creator)
        self.assertEqual(op._given, {"min": -1.0, "max": 1.0})
        np.testing.assert_array_equal(op.forward(x.data).read(), y.numpy())
        z = autograd.transpose(autograd.cat([x, y], 1), (1, 0))
        found = utils.post_order_recursive(z.creator, z)
        self.assertEqual(
            [type(op).__name__ for op in found], ["Clip", "Concat", "Transpose"]
        )
        self.assertEqual(z.creator._given, {"perm": (1, 0)})
        ops, _ = autograd.infer_dependency(z.creator)
        self.assertEqual(len(ops), 3)

    def test_nothing_waits_for_the_garbage_collector(self):
        gc.disable()
        self.addCleanup(gc.enable)
        x = tensor_of(np.float32(away(4, 3, 3)))
        rnn = layer.LSTM(3, 2)
        y, h, c = rnn(x)
        a, b = autograd.split(autograd.sum(x, x), 2, [1, 2])
        nodes = [weakref.ref(t.creator) for t in (y, h, a)]
        raws = [weakref.ref(t.data) for t in (y, h, a)]
        del y, h, c, a, b
        self.assertEqual([ref() for ref in nodes + raws], [None] * 6)


class Layers(Training):
    """Sources are a layer's inputs, and its weights as the C library has them."""

    def check(self, made, *xs, results=1):
        """The creator's gradients are those of autograd.grad, with the inputs behind
        something; gives its sources."""
        xs = [tensor_of(np.float32(x)) for x in xs]
        ins = [autograd.identity(x) for x in xs]
        y = made(*ins)
        y = y if results == 1 else y[0]
        node = y.creator
        dy = tensor_of(np.float32(away(*y.shape)))
        grads = node.backward(dy.data, *[None] * (len(node._made or "1") - 1))
        grads = grads if isinstance(grads, tuple) else (grads,)
        self.assertEqual(len(grads), len(node.src))
        params = list(made.get_params().values())
        wanted = dict(
            zip(map(id, ins + params), autograd.grad(y, xs + params, dy))
        )
        count = 0
        for source, grad in zip(node.src, grads):
            if id(source) in wanted:
                np.testing.assert_array_equal(
                    grad.read(), wanted[id(source)].numpy()
                )
                count += 1
        self.assertEqual(count, len(wanted))
        return node

    def test_layers_of_one_and_of_several_ops(self):
        image = away(2, 4, 6, 6)
        for made, *xs in [
            (layer.Linear(3), away(2, 5)),
            (layer.Conv2d(3, 3), image),
            (layer.Conv2d(3, 3, activation="RELU"), image),
            (layer.SeparableConv2d(3, 3), image),
            (layer.MaxPool2d(2), image),
            (layer.Pooling2d(2, 2, is_max=False), image),
            (layer.BatchNorm2d(), image),
            (layer.BatchNorm2d(), away(5, 3)),
            (layer.LayerNorm(), away(2, 5)),
            (layer.Gemm(3), away(2, 5)),
            (layer.MultiHeadAttention(2), away(2, 3, 4)),
            (layer.SoftMax(), away(2, 5)),
            (layer.Flatten(), image),
        ]:
            with self.subTest(repr(made), xs=xs[0].shape):
                CPU.SetRandSeed(1)
                self.check(made, *xs)

    def test_attention_of_one_tensor_three_times(self):
        """It has one gradient."""
        m = layer.MultiHeadAttention(2)
        x = tensor_of(np.float32(away(2, 3, 4)))
        q, k, v = (autograd.identity(x) for _ in range(3))
        y, apart = m(q, q, q), m(q, k, v)
        dy = tensor_of(np.float32(away(2, 3, 4))).data
        grads, wanted = (one.creator.backward(dy) for one in (y, apart))
        self.assertEqual(len(grads), len(wanted) - 2)
        np.testing.assert_allclose(
            grads[0].read(),
            sum(grad.read() for grad in wanted[:3]),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_recurrent_layers(self):
        x, h = away(4, 2, 3), away(1, 2, 5)
        node = self.check(layer.RNN(3, 5), x, h, results=2)
        self.assertEqual(len(node._results), 2)
        node = self.check(layer.GRU(3, 5, num_layers=2), x, results=2)
        made = layer.CudnnRNN(5, batch_first=False)
        node = self.check(made, x, h, h)
        self.assertIsInstance(node, autograd._RNN)
        self.assertEqual(
            [s.shape for s in node.src],
            [(4, 2, 3), (1, 2, 5), (1, 2, 5), made.W.shape],
        )

    def test_rnn_by_its_handle(self):
        x = tensor_of(np.float32(away(4, 2, 3)))
        handle = singa_wrap.CudnnRNNHandle(x.data, 5, mode=2)
        W = self.param(away(handle.weights_size))
        W.data = W.as_type("float32").data
        h, c = (tensor_of(np.float32(away(1, 2, 5))) for _ in range(2))
        op = autograd._RNN(handle, return_sequences=True)
        y = op(x, h, c, W)[0]
        self.assertIs(y.creator, op)
        dy = tensor_of(np.float32(away(*y.shape)))
        wanted = autograd.grad(y, [x, h, c, W], dy)
        for got, one in zip(op.backward(dy.data), wanted):
            np.testing.assert_array_equal(got.read(), one.numpy())

    def test_embedding_and_convolution_without_bias(self):
        made = layer.Embedding(5, 3)
        y = made(tensor_of(np.int32([[1, 4]])))
        self.assertIsInstance(y.creator, autograd.Embedding)
        none, dW = y.creator.backward(
            tensor_of(np.ones((1, 2, 3), np.float32)).data
        )
        self.assertIsNone(none)
        np.testing.assert_array_equal(dW.read().sum(1), [0, 3, 0, 0, 3])
        x = tensor_of(np.float32(away(1, 1, 4, 4)))
        W = tensor_of(np.float32(away(2, 1, 3, 3)))
        handle = singa_wrap.ConvHandle(
            x.data, (3, 3), (1, 1), (0, 0), 1, 2, False
        )
        y = autograd.conv2d(handle, x, W)
        self.assertIsInstance(y.creator, autograd._Conv2d)
        dy = tensor_of(np.float32(away(*y.shape)))
        dx, dW = y.creator.backward(dy.data)
        for got, wanted in zip((dx, dW), autograd.grad(y, [x, W], dy)):
            np.testing.assert_array_equal(got.read(), wanted.numpy())


if __name__ == "__main__":
    unittest.main()
