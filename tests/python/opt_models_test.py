# SPDX-License-Identifier: Apache-2.0
"""Whose parameters an optimizer updates: one model's at a time."""

import gc
import unittest

import numpy as np

from choir import StateError, autograd, device, layer, model, opt, tensor

DEV = device.create_cpu_device()


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.fc = layer.Linear(3)

    def forward(self, x):
        return self.fc(x)

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.mse_loss(out, y)
        self.optimizer(loss)
        return out, loss


class Other(Net):
    pass


class Manual(Net):
    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.mse_loss(out, y)
        for p, g in autograd.backward(loss):
            self.optimizer.update(p, g)
        self.optimizer.step()
        return out, loss


def batch(i):
    rng = np.random.default_rng(i)
    arrays = rng.standard_normal((4, 5)), rng.standard_normal((4, 3))
    return [tensor.from_numpy(a.astype(np.float32)) for a in arrays]


def made(optimizer, kind=Net, use_graph=False):
    DEV.SetRandSeed(7)
    m = kind()
    m.set_optimizer(optimizer)
    m.compile([batch(0)[0]], is_train=True, use_graph=use_graph)
    return m


def sgd():
    return opt.SGD(lr=0.1, momentum=0.9)


def train(m, steps=4):
    for i in range(steps):
        m(*batch(i))
    return m.digest()


# A lone optimizer, and one on many workers (of whom there is one).
KINDS = [sgd, lambda: opt.DistOpt(sgd())]


def of_all_kinds(test):
    """A test of each kind, with steps run eagerly and as graphs."""

    def run(self):
        for kind in KINDS:
            for use_graph in (False, True):
                with self.subTest(optimizer=repr(kind()), graph=use_graph):
                    test(self, kind, use_graph)

    return run


class OneModelAtATimeTest(unittest.TestCase):
    @of_all_kinds
    def test_a_second_model_is_refused_and_the_first_trains_on(
        self, kind, use_graph
    ):
        expected = made(kind(), use_graph=use_graph)
        shared = kind()
        first = made(shared, use_graph=use_graph)
        second = made(shared, Other, use_graph)
        start = second.digest()
        self.assertEqual(train(first), train(expected))
        with self.assertRaisesRegex(
            StateError, "model Other: the updater is that of model Net"
        ):
            second(*batch(0))
        self.assertEqual(second.digest(), start)
        self.assertEqual(train(first), train(expected))
        second.set_optimizer(kind())
        train(second)
        self.assertNotEqual(second.digest(), start)
        self.assertEqual(train(first), train(expected))

    @of_all_kinds
    def test_it_goes_to_another_model_when_the_first_is_gone(
        self, kind, use_graph
    ):
        expected = train(made(kind(), use_graph=use_graph))
        for collects in (False, True):
            shared = kind()
            first = made(shared, use_graph=use_graph)
            train(first)
            del first
            if collects:
                gc.collect()
            second = made(shared, use_graph=use_graph)
            # What is left of the first goes while the second trains.
            second(*batch(0))
            gc.collect()
            for i in range(1, 4):
                second(*batch(i))
            self.assertEqual(second.digest(), expected)

    @of_all_kinds
    def test_it_goes_to_another_model_when_the_first_gets_another(
        self, kind, use_graph
    ):
        expected = train(made(kind(), use_graph=use_graph))
        for trains in (False, True):
            shared = kind()
            first = made(shared, use_graph=use_graph)
            train(first)
            first.set_optimizer(kind())
            if trains:
                train(first)
            second = made(shared, use_graph=use_graph)
            self.assertEqual(train(second), expected)
            train(first)
            self.assertEqual(train(second), train_on(kind, use_graph, 2))
            # The first wants it back.
            first.set_optimizer(shared)
            with self.assertRaisesRegex(StateError, "is that of model Net"):
                first(*batch(0))
            del second
            train(first)

    def test_a_model_may_go_from_an_optimizer_to_dist_opt_around_it(self):
        for use_graph in (False, True):
            inner = sgd()
            m = made(inner, use_graph=use_graph)
            train(m)
            for optimizer in (opt.DistOpt(inner), inner, opt.DistOpt(inner)):
                m.set_optimizer(optimizer)
                before = m.digest()
                self.assertNotEqual(train(m), before)
            other = made(inner, Other)
            with self.assertRaisesRegex(StateError, "is that of model Net"):
                other(*batch(0))

    def test_an_optimizer_that_serves_a_model_and_a_dist_opt_for_another(self):
        for use_graph in (False, True):
            for wrap in (lambda inner: inner, opt.DistOpt):
                expected = made(sgd(), use_graph=use_graph)
                inner = sgd()
                first = made(wrap(inner), use_graph=use_graph)
                self.assertEqual(train(first), train(expected))
                second = made(opt.DistOpt(inner), Other, use_graph)
                start = second.digest()
                with self.assertRaisesRegex(StateError, "is that of model Net"):
                    train(second)
                self.assertEqual(second.digest(), start)
                self.assertEqual(train(first), train(expected))
                # It moves, with its states at 0, when the first has another.
                first.set_optimizer(sgd())
                train(first)
                alone = made(sgd(), Other, use_graph)
                self.assertEqual(train(second), train(alone))

    def test_the_optimizers_states_outlive_its_model(self):
        optimizer = sgd()
        m = made(optimizer)
        train(m)
        states = optimizer.get_states()
        self.assertEqual(len(states), 3)
        del m
        gc.collect()
        left = optimizer.get_states()
        self.assertEqual(set(left), set(states))
        for name, value in states.items():
            np.testing.assert_array_equal(left[name], value)

    def test_steps_without_a_model(self):
        optimizer = sgd()
        m = made(optimizer)
        train(m)
        autograd.training = True
        w = tensor.from_numpy(np.ones((5, 3), np.float32))
        w.requires_grad = w.stores_grad = True
        x, y = batch(0)

        def loss():
            return autograd.mse_loss(autograd.matmul(x, w), y)

        with self.assertRaisesRegex(StateError, "is that of model Net"):
            optimizer(loss())
        # One by one they have states of their own.
        before = m.digest()
        optimizer.update(w, tensor.from_numpy(np.ones((5, 3), np.float32)))
        np.testing.assert_array_equal(
            tensor.to_numpy(w), np.full((5, 3), np.float32(0.9))
        )
        self.assertEqual(m.digest(), before)
        del m
        optimizer(loss())
        self.assertFalse(
            np.array_equal(tensor.to_numpy(w), np.full((5, 3), np.float32(0.9)))
        )

    def test_a_model_that_updates_by_hand_holds_nothing(self):
        optimizer = sgd()
        manual = made(optimizer, Manual)
        train(manual)
        other = made(optimizer)
        self.assertEqual(train(other), train(made(sgd())))
        train(manual)


def train_on(kind, use_graph, rounds):
    m = made(kind(), use_graph=use_graph)
    for _ in range(rounds):
        digest = train(m)
    return digest


if __name__ == "__main__":
    unittest.main()
