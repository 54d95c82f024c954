# SPDX-License-Identifier: Apache-2.0
"""choir.model: lists, tuples and dictionaries of Tensors, given and returned."""

import unittest

import numpy as np

from choir import autograd, layer, model, opt, tensor
from small_models import DEV, Base

STEPS, BATCH, CHARS, HIDDEN = 5, 4, 7, 6


class CharRNN(model.Model):
    """As the example char-rnn of SINGA: steps in a list, states of its own."""

    def __init__(self):
        super().__init__()
        self.rnn = layer.LSTM(CHARS, HIDDEN)
        self.cat = layer.Cat()
        self.reshape = layer.Reshape()
        self.dense = layer.Linear(CHARS)
        self.loss = layer.SoftMaxCrossEntropy()
        self.calls = 0

    def initialize(self, inputs):
        shape = (inputs[0].shape[0], HIDDEN)
        self.hx = tensor.Tensor(shape)
        self.cx = tensor.Tensor(shape)

    def forward(self, inputs):
        x, hx, cx = self.rnn(inputs, (self.hx, self.cx))
        self.hx.copy_data(hx)
        self.cx.copy_data(cx)
        x = self.reshape(self.cat(x), (-1, HIDDEN))
        return self.dense(x)

    def train_one_batch(self, x, y):
        self.calls += 1
        out = self.forward(x)
        loss = self.loss(out, autograd.reshape(y, (-1, 1)))
        self.optimizer(loss)
        return out, loss


class States(model.Model):
    """Steps as one tensor and states in a list; a dictionary comes back."""

    def __init__(self):
        super().__init__()
        self.rnn = layer.LSTM(CHARS, HIDDEN)
        self.dense = layer.Linear(CHARS)
        self.calls = 0

    def forward(self, x, states):
        y, h, c = self.rnn(x, states)
        return {"y": self.dense(y), "states": [h, c]}

    def train_one_batch(self, x, states, t):
        self.calls += 1
        out = self.forward(x, states)
        loss = autograd.mse_loss(out["y"], t["y"])
        self.optimizer(loss)
        return out, (loss, [out["states"]])


def arrays(seed, count=STEPS):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, BATCH, CHARS)).astype(np.float32)
    return x, x.argmax(2).astype(np.int32)


class Lists(Base):
    def made(self, cls, inputs, use_graph):
        DEV.SetRandSeed(3)
        m = cls()
        m.set_optimizer(opt.SGD(lr=0.5, momentum=0.9))
        m.compile(inputs, is_train=True, use_graph=use_graph)
        return m

    def test_char_rnn(self):
        """Tensors that are filled again and again, as in the example, or new ones:
        eager and in graphs all give the same bits. 20 steps are more tensors than
        a batch of the C library has."""
        for count in (STEPS, 20):
            found = {}
            for use_graph in (False, True):
                for is_new in (False, True):
                    x, y = arrays(0, count)
                    xs = [tensor.from_numpy(a) for a in x]
                    ys = tensor.from_numpy(y)
                    m = self.made(CharRNN, [xs], use_graph)
                    losses = []
                    for step in range(6):
                        x, y = arrays(step % 3, count)
                        if is_new:
                            xs = [tensor.from_numpy(a) for a in x]
                            ys = tensor.from_numpy(y)
                        for t, a in zip([*xs, ys], [*x, y]):
                            t.copy_from_numpy(a)
                        out, loss = m(xs, ys)
                        self.assertEqual(out.shape, (count * BATCH, CHARS))
                        losses.append(loss.item())
                    found[use_graph, is_new] = losses, m.digest()
                    if use_graph and not (is_new and count > STEPS):
                        self.assertLess(m.calls, 4)
            self.assertLess(losses[-1], losses[0])
            self.assertEqual(len({str(one) for one in found.values()}), 1)

    def test_states_are_given_and_come_back(self):
        found = []
        for use_graph in (False, True):
            x, _ = arrays(0)
            states = [tensor.zeros((BATCH, HIDDEN)) for _ in range(2)]
            tx = tensor.from_numpy(x)
            m = self.made(States, [tx, states], use_graph)
            history = []
            for step in range(6):
                x, _ = arrays(step)
                tx = tensor.from_numpy(x)
                target = {"y": tensor.from_numpy(np.tanh(x))}
                out, (loss, [again]) = m(tx, states, target)
                self.assertEqual(set(out), {"y", "states"})
                self.assertEqual(out["y"].shape, (STEPS, BATCH, CHARS))
                for a, b in zip(out["states"], again):
                    self.assertIs(a.data, b.data)
                    self.assertIsNone(a.creator)
                # Of a replay the results are the same each time.
                states = [s.clone() for s in again]
                history.append(loss.item())
            if use_graph:
                self.assertLess(m.calls, 4)
            m.eval()
            out = m(tx, states)
            history += [out["y"].numpy().sum(), out["states"][1].numpy().sum()]
            found.append((history, m.digest()))
        self.assertLess(history[5], history[0])
        self.assertEqual(found[0], found[1])

    def test_compile_takes_nothing_else(self):
        x = tensor.zeros((2, 3))
        for wrong in ([x, [x, 1]], [None], [{"x": "y"}]):
            with self.assertRaisesRegex(
                TypeError,
                "compile: an input is a (int|NoneType|str); Tensors, or",
            ):
                CharRNN().compile(wrong)


if __name__ == "__main__":
    unittest.main()
