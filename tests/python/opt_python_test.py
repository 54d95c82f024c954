# SPDX-License-Identifier: Apache-2.0
"""choir.opt: optimizers that are written in Python, as subclasses."""

import copy
import pickle
import unittest
import warnings

import numpy as np

from choir import StateError, autograd, opt, tensor
from small_models import DEV, Base, Plain, made, path, samples


class Momentum(opt.Optimizer):
    """SGD, as it would be written for SGD of SINGA: by apply."""

    def __init__(self, lr=0.1, momentum=0.9):
        super().__init__(lr)
        self.momentum = momentum
        self.moments = {}

    def apply(self, param_name, param_value, param_grad):
        assert param_value.shape == param_grad.shape
        self.device_check(param_value, self.step_counter, self.lr_value)
        if param_name not in self.moments:
            self.moments[param_name] = tensor.zeros_like(param_value)
        v = self.moments[param_name]
        v *= self.momentum
        v += param_grad
        param_value -= self.lr_value * v

    def get_states(self):
        return super().get_states() | {"moments": dict(self.moments)}

    def set_states(self, states):
        super().set_states(states)
        self.moments = dict(states["moments"])


class Old(opt.Optimizer):
    """The same by update, SINGA's older name, and counting of its own."""

    def __init__(self, lr=0.1, momentum=0.9):
        super().__init__(lr)
        self.momentum = momentum
        self.moments = {}
        self.counted = 0

    def update(self, param, grad):
        v = self.momentum * self.moments.get(id(param), 0.0) + grad
        self.moments[id(param)] = v
        tensor.axpy(-self.lr, v, param)

    def step(self):
        super().step()
        self.counted += 1


class Halved(opt.SGD):
    """The library's SGD on half of each gradient."""

    def apply(self, param_name, param_value, param_grad):
        super().apply(param_name, param_value, param_grad * 0.5)


class Twice(opt.SGD):
    """Each step with the gradients two times."""

    def call(self, loss):
        for p, g in autograd.backward(loss):
            self.apply(p.name, p, g + g)


def values(m):
    return {name: p.numpy() for name, p in m.get_params().items()}


class Subclasses(Base):
    def close(self, a, b):
        a, b = values(a), values(b)
        self.assertEqual(set(a), set(b))
        for name, value in a.items():
            np.testing.assert_allclose(value, b[name], 1e-5, 1e-6, name)

    def data(self):
        x, _ = samples()
        target = np.random.default_rng(2).normal(size=(6, 2))
        return x, tensor.from_numpy(target.astype(np.float32))

    def trained(self, optimizer, way, steps=4):
        x, y = self.data()
        m = made(Plain, way == "graph", x, optimizer)
        self.addCleanup(setattr, autograd, "training", False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(steps):
                if way == "alone":
                    optimizer(autograd.mse_loss(m.forward(x), y))
                else:
                    m(x, y)
        self.assertEqual(len(caught), int(way == "graph" and self.is_python))
        for warning in caught:
            self.assertEqual(warning.filename, __file__)
            self.assertIn(
                f"{type(optimizer).__name__} updates parameters in Python",
                str(warning.message),
            )
        self.assertEqual(optimizer.step_counter.item(), steps)
        return m

    def test_all_train_as_the_library(self):
        for make, same in [
            (Momentum, lambda: opt.SGD(0.1, 0.9)),
            (Old, lambda: opt.SGD(0.1, 0.9)),
            (lambda: Halved(0.1, 0.9), lambda: opt.SGD(0.05, 0.9)),
            (lambda: Twice(0.1, 0.9), lambda: opt.SGD(0.2, 0.9)),
            (
                lambda: Momentum(opt.ExponentialDecay(0.1, 2, 0.5), 0),
                lambda: opt.SGD(opt.ExponentialDecay(0.1, 2, 0.5)),
            ),
        ]:
            self.is_python = False
            want = self.trained(same(), "model")
            self.is_python = True
            for way in ("model", "graph", "alone"):
                one = make()
                with self.subTest(type(one).__name__, way=way):
                    self.close(self.trained(one, way), want)
                    self.assertEqual(getattr(one, "counted", 4), 4)

    def test_apply_is_called_by_name_outside_of_autograd(self):
        seen = []

        class Sees(Momentum):
            def apply(self, param_name, param_value, param_grad):
                seen.append((param_name, autograd.training))
                super().apply(param_name, param_value, param_grad)

        self.is_python = True
        self.trained(Sees(), "model", 2)
        self.assertEqual(seen, [("l.b", False), ("l.W", False)] * 2)

    def test_lr_value_and_step_counter_stay_the_same_tensors(self):
        one = Momentum(opt.ExponentialDecay(0.5, 1, 0.5))
        rate, count = one.lr_value, one.step_counter
        one.step()
        self.assertIs(one.lr_value, rate)
        self.assertIs(one.step_counter, count)
        self.assertEqual((rate.item(), count.item()), (0.25, 1))

    def test_states_go_on(self):
        self.is_python = True
        x, y = self.data()
        for copied in (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))):
            a = self.trained(Momentum(), "model")
            b = copied(a)
            self.assertEqual(b.optimizer.step_counter.item(), 4)
            a(x, y)
            b(x, y)
            self.same(a, b)
        c = self.trained(Momentum(), "model")
        other = Momentum()
        other.set_states(c.optimizer.get_states())
        self.assertEqual(other.step_counter.item(), 4)
        with self.assertRaisesRegex(StateError, "save get_states"):
            c.save_checkpoint(path("python.safetensors"))

    def test_a_model_can_change_to_one_and_back(self):
        self.is_python = True
        x, y = self.data()
        want = made(Plain, False, x, opt.SGD(0.1))
        m = made(Plain, True, x, opt.SGD(0.1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(9):
                if step == 3:
                    library = m.optimizer
                    m.set_optimizer(Momentum(0.1, 0))
                if step == 6:
                    m.set_optimizer(library)
                want(x, y)
                m(x, y)
        self.close(m, want)
        self.assertTrue(m.graph_mode)

    def test_what_is_not_possible_is_said(self):
        DEV.SetRandSeed(1)
        with self.assertRaisesRegex(TypeError, "no setting 'momentum'"):
            opt.Optimizer(0.1, momentum=0.9)
        w = tensor.ones((2,))
        w.stores_grad = True
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        with self.assertRaisesRegex(
            NotImplementedError, "Optimizer defines no apply"
        ):
            opt.Optimizer(0.1)(autograd.reduce_sum(w * w))
        with self.assertRaisesRegex(
            NotImplementedError, "Momentum updates parameters in Python"
        ):
            Momentum().add_group("*.b", lr=0.1)
        for inner in (Momentum(), Halved(0.1)):
            dist = opt.DistOpt(inner)
            with self.assertRaisesRegex(
                NotImplementedError,
                "DistOpt: .* updates .*loop over autograd.backward",
            ):
                dist(autograd.reduce_sum(w * w))

    def test_with_dist_opt_by_a_loop(self):
        x, y = self.data()

        class Loops(Plain):
            def train_one_batch(self, x, y):
                out = self.forward(x)
                loss = autograd.mse_loss(out, y)
                pairs = list(autograd.backward(loss))
                for _, g in pairs:
                    self.optimizer.all_reduce(g.data)
                self.optimizer.wait()
                for p, g in pairs:
                    self.optimizer.update(p, g)
                self.optimizer.step()
                return out, loss

        a = made(Plain, False, x, opt.SGD(0.1, 0.9))
        b = made(Loops, False, x, opt.DistOpt(Momentum()))
        for _ in range(3):
            a(x, y)
            b(x, y)
        self.close(a, b)


if __name__ == "__main__":
    unittest.main()
