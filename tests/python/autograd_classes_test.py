# SPDX-License-Identifier: Apache-2.0
"""choir.autograd: SINGA's classes, called and on raw tensors."""

import unittest
from unittest import mock

import numpy as np

from choir import _raw, autograd, tensor
from formulas import (
    away,
    bits,
    share,
    softmax,
    tensor_of,
    to_depth,
    to_space,
    whole,
)
from training import Training

# Of which ops those are made that are not one op of the list: docs/operators.md.
with open("docs/api/singa_operators.tsv", encoding="utf-8") as table:
    MADE_OF = {
        line.split("\t")[0]: set(line.split("\t")[1].split()) for line in table
    }
NAMES = {op.code: op.name for op in _raw.OPS.values()}
# Classes with a handle: handles_test.py.
HANDLE_CLASSES = {"_Conv2d", "_BatchNorm2d", "_Pooling2d", "_RNN"}


class Classes(Training):
    """SINGA's classes: called, and on raw tensors."""

    def both(self, make, formula, *inputs):
        op = make()
        expected = np.asarray(formula(*inputs))
        with mock.patch("choir._raw._op_run", wraps=_raw._op_run) as run:
            results = op(*[tensor_of(x) for x in inputs])
        self.assertIsInstance(results, tuple)
        if isinstance(op, autograd.Composite):
            ran = {NAMES[call.args[1]] for call in run.call_args_list}
            self.assertLessEqual(ran, MADE_OF[type(op).__name__])
        np.testing.assert_allclose(results[0], expected, 1e-9, 1e-12)
        raws = [tensor_of(x).data for x in inputs]
        y = make().forward(*raws)
        if isinstance(y, tuple):
            y = y[0]
        np.testing.assert_allclose(y.read(), expected, 1e-9, 1e-12)

    def test_all_of_the_table(self):
        x, y = away(2, 3), away(2, 3)
        image = away(1, 4, 2, 2)
        A = autograd
        for make, formula, *inputs in [
            (A.Sum, np.add, x, y), (A.Mean, lambda a, b: (a + b) / 2, x, y),
            (A.Max, np.maximum, x, y), (A.Min, np.minimum, x, y),
            (A.AddBias, lambda a, b: a + b, x, away(3)),
            (lambda: A.AddBias(1), lambda a, b: a + b[:, None], x, away(2)),
            (lambda: A.Clip(0, 1), lambda a: np.clip(a, 0, 1), x),
            (lambda: A.Elu(0.5), lambda a: np.where(a < 0, 0.5 * (np.exp(a) - 1), a), x),
            (A.LeakyRelu, lambda a: np.where(a < 0, 0.01 * a, a), x),
            (lambda: A.HardSigmoid(0.1), lambda a: np.clip(0.1 * a + 0.5, 0, 1), x),
            (A.SeLU, lambda a: 1.0507 * np.where(a > 0, a, 1.67326 * (np.exp(a) - 1)), x),
            (A.Identity, lambda a: a, x), (A.SoftMax, softmax, x),
            (lambda: A.Reshape((3, -1)), lambda a: a.reshape(3, 2), x),
            (A.Flatten, lambda a: a.reshape(1, 16), image),
            (lambda: A.Transpose((1, 0)), np.transpose, x),
            (lambda: A.Unsqueeze([0]), lambda a: a[None], x),
            (A.Squeeze, np.squeeze, away(1, 3)),
            (lambda: A.Expand((2, 2, 3)), lambda a: np.stack([a, a]), x),
            (lambda: A.Concat(1), lambda a, b: np.concatenate([a, b], 1), x, y),
            (lambda: A.Split(1, [1, 2]), lambda a: a[:, :1], x),
            (lambda: A.Slice([1], [3], [1]), lambda a: a[:, 1:3], x),
            (lambda: A.Tile([2, 1]), lambda a: np.tile(a, (2, 1)), x),
            (lambda: A.Pad("constant", [0, 1, 0, 0]), lambda a: np.pad(a, ((0, 0), (1, 0))), x),
            (lambda: A.UpSample("nearest", [1, 2]), lambda a: a.repeat(2, 1), x),
            (lambda: A.DepthToSpace(2), lambda a: to_space(a, 2, True), image),
            (lambda: A.SpaceToDepth(2), lambda a: to_depth(a, 2, True), image),
            (A.Shape, lambda a: [2, 3], x),
            (lambda: A.Gather(1, [2, 0]), lambda a: a[:, [2, 0]], x),
            (A.Embedding, lambda i, w: w[i], whole(2, 2, below=2), x),
            (lambda: A.ScatterElements([[1, 0, 1]], np.ones((1, 3))),
             lambda a: np.where([[0, 1, 0], [1, 0, 1]], 1, a), x),
            (lambda: A.Where([True, False, True]),
             lambda a, b: np.where([True, False, True], a, b), x, y),
            (lambda: A.OneHot(-1, 3, [0, 1]), lambda i: np.eye(3)[i], whole(4)),
            (A.NonZero, lambda a: np.array(np.nonzero(a)), bits(2, 3)),
            (lambda: A.Cast("int32"), lambda a: a.astype(np.int32), x),
            (lambda: A.ConstantOfShape(2.0), lambda s: np.full((2, 2), 2.0), np.int32([2, 2])),
            (lambda: A.ReduceSum([1], 0), lambda a: a.sum(1), x),
            (A.ReduceMean, lambda a: a.mean().reshape(1, 1), x),
            (A.GlobalAveragePool, lambda a: a.mean((2, 3), keepdims=True), image),
            (lambda: A.Gemm(transB=1), lambda a, b: a @ b.T, x, y),
            (A.CosSim, lambda a, b: (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1)),
             x, y),
            (lambda: A.SoftMaxCrossEntropy([0, 2]),
             lambda a: [-np.log(softmax(a)[[0, 1], [0, 2]]).mean()], x),
            (lambda: A.CrossEntropy([0, 2]),
             lambda p: [-np.log(p[[0, 1], [0, 2]]).mean()], share(2, 3)),
            (lambda: A.BinaryCrossEntropy(np.ones((2, 3))),
             lambda p: [-np.log(p + 1e-4).sum() / 2], share(2, 3)),
            (lambda: A.MeanSquareError(tensor_of(y)), lambda a: [((a - y) ** 2).mean()], x),
            (A.RankingLoss, lambda a, b: [np.maximum(0.2 - a + b, 0).mean()], away(3), away(3)),
            (lambda: A.Dropout(ratio=0), lambda a: a, x),
            # Classes of the C library's list.
            (A.ReLU, lambda a: np.maximum(a, 0), x), (A.Matmul, np.matmul, x, away(3, 2)),
            (A.Add, np.add, x, y), (A.Negative, np.negative, x), (A.Rounde, np.round, x),
            (A.And, lambda a, b: np.logical_and(a, b) * 1.0, x, y),
        ]:  # fmt: skip
            made = make()
            with self.subTest(type(made).__name__):
                self.both(make, formula, *inputs)
        tested = {"Composite"} | HANDLE_CLASSES
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        for name, value in vars(autograd).items():
            if isinstance(value, type) and issubclass(
                value, autograd.Composite
            ):
                self.assertTrue(name in tested or f"A.{name}" in text, name)

    def test_backward_on_raw_tensors(self):
        x = np.float64([[-1, 0.5, 2]])
        op = autograd.Clip(0, 1)
        op.forward(tensor_of(x).data)
        dx = op.backward(tensor_of(np.float64([[1, 10, 100]])).data)
        np.testing.assert_allclose(dx.read(), [[0, 10, 0]])
        op = autograd.SoftMaxCrossEntropy([2])
        op.forward(tensor_of(x).data)
        expected = softmax(x) - [[0, 0, 1]]
        np.testing.assert_allclose(op.backward().read(), expected)
        np.testing.assert_allclose(op.backward(1.0).read(), expected)
        np.testing.assert_allclose(op.backward(3.0).read(), 3 * expected)
        np.testing.assert_allclose(op.backward(dy=3.0).read(), 3 * expected)
        op = autograd.Split(1, [1, 2])
        op.forward(tensor_of(x).data)
        dx = op.backward(tensor.ones((1, 1), dtype="float64").data,
                         tensor_of(np.float64([[2, 3]])).data)  # fmt: skip
        np.testing.assert_allclose(dx.read(), [[1, 2, 3]])
        op = autograd.Sum()
        op.forward(tensor_of(x).data, tensor_of(x).data)
        grads = op.backward(tensor_of(x).data)
        self.assertEqual(len(grads), 2)
        np.testing.assert_allclose(grads[1].read(), x)
        op = autograd.Embedding()
        op.forward(tensor_of(np.int32([1, 1])).data, tensor_of(away(2, 1)).data)
        none, dw = op.backward(tensor_of(np.float64([[1], [10]])).data)
        self.assertIsNone(none)
        np.testing.assert_allclose(dw.read(), [[0], [11]])
        op = autograd.ReLU()
        op.forward(tensor_of(x).data)
        np.testing.assert_allclose(
            op.backward(tensor_of(x).data).read(), [[0, 0.5, 2]]
        )

    def test_refusals(self):
        clip = autograd.Clip(0, 1)
        with self.assertRaisesRegex(
            RuntimeError, "backward comes after forward"
        ):
            clip.backward(tensor.ones(1).data)
        clip.forward(tensor.ones(2).data)
        with self.assertRaisesRegex(TypeError, "0 gradients for 1 results"):
            clip.backward()
        for make, words in [
            (lambda: autograd.Clip(1, 2, 3), r"takes 2 settings \(min, max\)"),
            (lambda: autograd.Clip(0, min=1), "no setting 'min'"),
            (
                lambda: autograd.Clip(least=1),
                "no setting 'least'; it has: min, max",
            ),
            (lambda: autograd.Reshape(), "Reshape needs the setting 'shape'"),
        ]:
            with self.assertRaisesRegex(TypeError, words):
                make()

    def test_dot_of_cossim(self):
        a, b = away(2, 3), away(2, 3)
        got = autograd.CosSim.dot(tensor_of(a).data, tensor_of(b).data)
        np.testing.assert_allclose(got.read(), (a * b).sum(1))


if __name__ == "__main__":
    unittest.main()
