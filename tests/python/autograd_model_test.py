# SPDX-License-Identifier: Apache-2.0
"""choir.autograd in the step of a model."""

import gc
import unittest

import numpy as np

from choir import _raw, autograd, device, layer, model, opt, tensor
from formulas import away, tensor_of, whole
from training import Training

CPU = device.create_cpu_device()


class Step:
    """What autograd._Scope tells of a model's step."""

    seed, step, first_sample = 11, 3, 16

    def next_stream(self):
        return 2


class InAModel(Training):
    def test_constants_are_made_once(self):
        """A graph cannot take them from the host in its middle."""
        x = tensor_of(away(2, 3).astype(np.float32))

        def constants():
            ys = [
                autograd.gather(x, 1, [2, 0]), x * [1.0, 2.0, 3.0], x[:, ::-1],
                autograd.where(x, x, [[True], [False]]), x[[1, 0]],
            ]  # fmt: skip
            return [
                source.data.handle
                for y in ys
                for source in y.creator.src
                if source is not x
            ]

        again = constants()
        self.assertEqual(len(again), 5)
        autograd._model_step = Step()
        self.addCleanup(setattr, autograd, "_model_step", None)
        first = constants()
        gc.collect()
        self.assertEqual(constants(), first)
        # What is handed out may be changed.
        autograd.shape(x).set_value(0)
        np.testing.assert_array_equal(autograd.shape(x), [2, 3])

    def test_a_step_in_a_graph_has_the_bits_of_an_eager_one(self):
        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.linear = layer.Linear(4)

            def forward(self, x):
                y = autograd.dropout(self.linear(x), ratio=0.3)
                y = y * [1, 2, 3, 4] + autograd.gather(y, 1, [3, 2, 1, 0])
                return autograd.reshape(y[:, ::-1], (0, -1))

            def train_one_batch(self, x, t):
                y = self.forward(x)
                loss = autograd.softmax_cross_entropy(y, t)
                self.optimizer(loss)
                return y, loss

        x = tensor_of(away(8, 2, 3).astype(np.float32))
        t = tensor_of(whole(8, 1))

        def train(use_graph):
            CPU.SetRandSeed(5)
            net = Net()
            net.set_optimizer(opt.SGD(lr=0.1))
            net.compile([flat], is_train=True, use_graph=use_graph)
            losses = [net(flat, t)[1].item() for _ in range(6)]
            return losses, net.linear.W.numpy()

        flat = autograd.flatten(x)
        eager, graph = train(False), train(True)
        self.assertEqual(eager[0], graph[0])
        np.testing.assert_array_equal(eager[1], graph[1])
        self.assertLess(eager[0][-1], eager[0][0] + 1)

    def test_dropout_goes_by_the_models_step(self):
        x = tensor.ones((8, 4))
        autograd._model_step = Step()
        self.addCleanup(setattr, autograd, "_model_step", None)
        got = autograd.dropout(x, ratio=0.25).numpy()
        expected = _raw.run(
            "dropout", x.data, ratio=0.25, seed=11, stream=0x20000002, step=3,
            first_sample=16,
        )  # fmt: skip
        np.testing.assert_array_equal(got, expected.read())


if __name__ == "__main__":
    unittest.main()
