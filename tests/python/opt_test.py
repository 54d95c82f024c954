# SPDX-License-Identifier: Apache-2.0
"""choir.opt: every optimizer of the library against NumPy, in each of the ways
to use one; schedules, settings, states."""

import copy
import pickle
import unittest

import numpy as np

from choir import StateError, autograd, device, layer, model, opt, tensor

DEV = device.create_cpu_device()

# ---- The optimizers once more: one step, in float64 ----


def sgd(p, g, s, t, lr, momentum, dampening, weight_decay, nesterov):
    g = g + weight_decay * p
    if momentum:
        s["v"] = momentum * s.get("v", 0) + (1 - dampening) * g
        g = g + momentum * s["v"] if nesterov else s["v"]
    return p - lr * g


def adam(p, g, s, t, lr, beta1, beta2, epsilon, weight_decay):
    g = g + weight_decay * p
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g**2
    m = s["m"] / (1 - beta1 ** (t + 1))
    v = s["v"] / (1 - beta2 ** (t + 1))
    return p - lr * m / (np.sqrt(v) + epsilon)


def adamw(p, g, s, t, lr, weight_decay, **betas):
    return adam(p, g, s, t, lr, weight_decay=0, **betas) - lr * weight_decay * p


def rmsprop(p, g, s, t, lr, rho, epsilon, weight_decay):
    g = g + weight_decay * p
    s["a"] = rho * s.get("a", 0) + (1 - rho) * g**2
    return p - lr * g / np.sqrt(s["a"] + epsilon)


def adagrad(p, g, s, t, lr, epsilon, weight_decay):
    g = g + weight_decay * p
    s["h"] = s.get("h", 0) + g**2
    return p - lr * g / np.sqrt(s["h"] + epsilon)


def adadelta(p, g, s, t, lr, rho, epsilon, weight_decay):
    g = g + weight_decay * p
    s["s"] = rho * s.get("s", 0) + (1 - rho) * g**2
    d = s.get("d", 0)
    step = g * np.sqrt(d + epsilon) / np.sqrt(s["s"] + epsilon)
    s["d"] = rho * d + (1 - rho) * step**2
    return p - lr * step


# By the library's name: the step, and settings to try beside the defaults.
KNOWN = {
    "sgd": (
        sgd,
        [
            {},
            {"momentum": 0.9},
            {"momentum": 0.9, "dampening": 0.5},
            {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
        ],
    ),
    "adam": (adam, [{}, {"beta1": 0.5, "beta2": 0.9, "weight_decay": 0.1}]),
    "adamw": (adamw, [{}, {"beta1": 0.5, "beta2": 0.9, "weight_decay": 0.5}]),
    "rmsprop": (rmsprop, [{}, {"rho": 0.5, "weight_decay": 0.1}]),
    "adagrad": (adagrad, [{}, {"epsilon": 0.1, "weight_decay": 0.1}]),
    "adadelta": (adadelta, [{}, {"rho": 0.5, "weight_decay": 0.1}]),
}
# Settings whose names in Python are SINGA's.
RENAMED = {"beta1": "beta_1", "beta2": "beta_2"}
STEPS = 20
RATE = 0.05


def classes():
    """{the library's name: class}"""
    found = {}
    for value in vars(opt).values():
        if (
            isinstance(value, type)
            and issubclass(value, opt.Optimizer)
            and value is not opt.Optimizer
        ):
            found[value._name] = value
    return found


def make(name, settings, lr=RATE):
    cls = classes()[name]
    if cls in (opt.Adam, opt.AdamW):
        settings = {RENAMED.get(k, k): v for k, v in settings.items()}
    return cls(lr=lr, **settings)


def cases():
    for name in KNOWN:
        for settings in KNOWN[name][1]:
            yield name, settings


def values():
    # A seed with no gradient near zero: RMSProp divides by its size, and makes
    # much of how the last bit was rounded.
    rng = np.random.default_rng(7)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    y = rng.normal(size=(6, 3)).astype(np.float32)
    w = rng.normal(size=(4, 3)).astype(np.float32)
    b = rng.normal(size=3).astype(np.float32)
    return x, y, w, b


def gradients(x, y, w, b):
    """Of the mean of (x w + b - y)^2."""
    error = 2 * (x @ w + b - y) / y.size
    return x.T @ error, error.sum(axis=0)


def expected(name, settings, lr=lambda t: RATE, steps=STEPS):
    """w and b after some steps of NumPy's."""
    step = KNOWN[name][0]
    table = classes()[name]._table
    full = {
        n: f.default for n, f in table.fields.items() if n != "lr"
    } | settings
    x, y, w, b = (v.astype(np.float64) for v in values())
    states = {}, {}
    for t in range(steps):
        gw, gb = gradients(x, y, w, b)
        w = step(w, gw, states[0], t, lr(t), **full)
        b = step(b, gb, states[1], t, lr(t), **full)
    return w, b


class Line(model.Model):
    def __init__(self):
        super().__init__()
        self.l = layer.Linear(3)

    def forward(self, x):
        return self.l(x)

    def train_one_batch(self, x, y):
        loss = autograd.mse_loss(self.forward(x), y)
        self.optimizer(loss)
        return loss


def line(optimizer, use_graph=False):
    x, y, w, b = values()
    tx, ty = tensor.from_numpy(x), tensor.from_numpy(y)
    m = Line()
    m.set_optimizer(optimizer)
    m.compile([tx], True, use_graph)
    m.set_params({"l.W": w, "l.b": b})
    return m, tx, ty


def parameters():
    """w and b as Tensors without a layer, and their batch."""
    x, y, w, b = values()
    made = []
    for value in (w, b):
        t = tensor.from_numpy(value)
        t.stores_grad = True
        made.append(t)
    return made[0], made[1], tensor.from_numpy(x), tensor.from_numpy(y)


def loss_of(w, b, x, y):
    autograd.training = True
    return autograd.mse_loss(autograd.add_bias(autograd.matmul(x, w), b), y)


class Against(unittest.TestCase):
    def near(self, got, want, what):
        np.testing.assert_allclose(
            got, want, rtol=2e-4, atol=2e-5, err_msg=str(what)
        )

    def test_every_optimizer_has_a_class(self):
        self.assertEqual(set(classes()), set(opt.optimizers()))
        self.assertLessEqual(set(KNOWN), set(opt.optimizers()))

    def test_in_models(self):
        for name, settings in cases():
            w, b = expected(name, settings)
            digests = set()
            for use_graph in (False, True):
                m, x, y = line(make(name, settings), use_graph)
                for _ in range(STEPS):
                    m(x, y)
                self.near(m.l.W.numpy(), w, (name, settings))
                self.near(m.l.b.numpy(), b, (name, settings))
                digests.add(m.digest())
            self.assertEqual(len(digests), 1, (name, settings))

    def test_with_a_loss_and_no_model(self):
        for name, settings in cases():
            w, b, x, y = parameters()
            one = make(name, settings)
            for i in range(STEPS):
                loss = loss_of(w, b, x, y)
                (one if i % 2 else one.backward_and_update)(loss)
            want = expected(name, settings)
            self.near(w.numpy(), want[0], (name, settings))
            self.near(b.numpy(), want[1], (name, settings))
            self.assertEqual(one.step_counter.item(), STEPS)

    def test_parameter_by_parameter(self):
        for name, settings in cases():
            w, b, x, y = parameters()
            one = make(name, settings)
            for i in range(STEPS):
                for p, g in autograd.backward(loss_of(w, b, x, y)):
                    if i % 2:
                        one.update(p, g)
                    else:
                        one.apply(p.name, p, g)
                one.step()
            want = expected(name, settings)
            self.near(w.numpy(), want[0], (name, settings))
            self.near(b.numpy(), want[1], (name, settings))

    def test_the_ways_have_the_same_bits(self):
        for name, settings in cases():
            results = []
            m, x, y = line(make(name, settings))
            for _ in range(5):
                m(x, y)
            results.append((m.l.W.numpy(), m.l.b.numpy()))
            for whole in (True, False):
                m, x, y = line(make(name, settings))
                autograd.training = True
                for _ in range(5):
                    loss = autograd.mse_loss(m.forward(x), y)
                    if whole:
                        m.optimizer(loss)
                        continue
                    for p, g in autograd.backward(loss):
                        m.optimizer.update(p, g)
                    m.optimizer.step()
                results.append((m.l.W.numpy(), m.l.b.numpy()))
            for w, b in results[1:]:
                np.testing.assert_array_equal(w, results[0][0], name)
                np.testing.assert_array_equal(b, results[0][1], name)

    def test_parameters_of_one_name_keep_their_own_states(self):
        one = opt.SGD(lr=0.1, momentum=0.9)
        params = []
        for _ in range(2):
            t = tensor.ones((3,))
            t.name = "same"
            params.append(t)
        g = tensor.ones((3,))
        v = p = 0.0
        for _ in range(4):
            for t in params:
                one.update(t, g)
            v = 0.9 * v + 1
            p -= 0.1 * v
        for t in params:
            np.testing.assert_allclose(t.numpy(), 1 + p, rtol=1e-5)

    def test_frozen_parameters_stay(self):
        m, x, y = line(opt.SGD(lr=0.1, momentum=0.9, weight_decay=0.1))
        m.l.W.stores_grad = False
        w, b = m.l.W.numpy().copy(), m.l.b.numpy().copy()
        for _ in range(3):
            m(x, y)
        np.testing.assert_array_equal(m.l.W.numpy(), w)
        self.assertTrue((m.l.b.numpy() != b).all())


class AdamW(unittest.TestCase):
    def test_steps_of_pytorch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        x, y, w, b = values()
        for settings in ({}, {"weight_decay": 0.3}):
            m, tx, ty = line(opt.AdamW(lr=0.01, **settings))
            params = [torch.tensor(v, requires_grad=True) for v in (w, b)]
            other = torch.optim.AdamW(params, lr=0.01, **settings)
            for _ in range(STEPS):
                m(tx, ty)
                other.zero_grad()
                error = (
                    torch.tensor(x) @ params[0] + params[1] - torch.tensor(y)
                )
                (error**2).mean().backward()
                other.step()
            for ours, theirs in zip((m.l.W, m.l.b), params):
                np.testing.assert_allclose(
                    ours.numpy(), theirs.detach().numpy(), atol=1e-5
                )


class Groups(unittest.TestCase):
    """Two rates and two weight decays, against NumPy."""

    def grouped(self, **more):
        one = opt.SGD(lr=0.1, momentum=0.9, weight_decay=0.1)
        self.assertEqual(one.add_group("*.b", weight_decay=0, **more), 0)
        return one

    def ways(self, one):
        """l.W and l.b after STEPS, by a model without a graph and with one, and
        by a pickled optimizer."""
        for use_graph in (False, True):
            m, x, y = line(copy.deepcopy(one), use_graph)
            for i in range(STEPS):
                if i == 5:
                    m.optimizer = pickle.loads(pickle.dumps(m.optimizer))
                m(x, y)
            yield m.l.W.numpy(), m.l.b.numpy()

    def near(self, one, rate):
        w = expected(
            "sgd", {"momentum": 0.9, "weight_decay": 0.1}, lambda t: 0.1
        )
        x, y, p, b = (v.astype(np.float64) for v in values())
        states = {}, {}
        for t in range(STEPS):
            gw, gb = gradients(x, y, p, b)
            p = sgd(p, gw, states[0], t, 0.1, 0.9, 0, 0.1, False)
            b = sgd(b, gb, states[1], t, rate(t), 0.9, 0, 0, False)
        for got in self.ways(one):
            np.testing.assert_allclose(got[0], p, rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(got[1], b, rtol=2e-4, atol=2e-5)
            self.assertFalse(np.allclose(got[0], w[0], atol=1e-3))

    def test_numbers_and_factors(self):
        self.near(self.grouped(lr=0.025), lambda t: 0.025)
        self.near(self.grouped(lr_factor=0.5), lambda t: 0.05)
        self.near(self.grouped(lr=opt.Constant(0.05)), lambda t: 0.05)

    def test_a_schedule_of_its_own(self):
        decay = opt.ExponentialDecay(0.2, 3, 0.5)
        self.near(self.grouped(lr=decay), decay.value)
        self.near(
            self.grouped(lr=decay, lr_factor=0.5), lambda t: decay.value(t) / 2
        )

    def test_another_rate_on_the_way(self):
        for use_graph in (False, True):
            m, x, y = line(self.grouped(lr=0.05), use_graph)
            for _ in range(5):
                m(x, y)
            b = m.l.b.numpy().copy()
            m.optimizer.set_group_lr(0, 0)
            w = m.l.W.numpy().copy()
            for _ in range(3):
                m(x, y)
            np.testing.assert_array_equal(m.l.b.numpy(), b)
            self.assertTrue((m.l.W.numpy() != w).all())
        with self.assertRaisesRegex(ValueError, "group 1 of 1"):
            m.optimizer.set_group_lr(1, 0.5)

    def test_frozen(self):
        m, x, y = line(self.grouped(trainable=False))
        w, b = m.l.W.numpy().copy(), m.l.b.numpy().copy()
        for _ in range(3):
            m(x, y)
        np.testing.assert_array_equal(m.l.b.numpy(), b)
        self.assertFalse(m.l.b.stores_grad)
        self.assertTrue((m.l.W.numpy() != w).all())

    def test_parameter_by_parameter(self):
        want = [np.float32(1), np.float32(1)]
        one = opt.SGD(lr=0.5)
        one.add_group(["b", "c"], lr=opt.ExponentialDecay(0.25, 1, 0.5))
        params = {name: tensor.ones((2,)) for name in "ab"}
        for step in range(3):
            for name, param in params.items():
                one.apply(name, param, tensor.ones((2,)))
            one.step()
            want[0] -= 0.5
            want[1] -= 0.25 * 0.5**step
        np.testing.assert_allclose(params["a"].numpy(), want[0])
        np.testing.assert_allclose(params["b"].numpy(), want[1])

    def test_refusals(self):
        one = opt.SGD(lr=0.5)
        with self.assertRaisesRegex(ValueError, "weight_decay is -0.5; needs"):
            one.add_group("*", weight_decay=-0.5)
        one.add_group("*.nothing")
        m, x, y = line(one)
        with self.assertRaisesRegex(ValueError, "matches no parameter"):
            m(x, y)
        m, x, y = line(opt.SGD(lr=0.5))
        m(x, y)
        with self.assertRaisesRegex(StateError, "needs to be before"):
            m.optimizer.add_group("*")


class Clipping(unittest.TestCase):
    def want(self, value, norm):
        x, y, w, b = (v.astype(np.float64) for v in values())
        for _ in range(STEPS):
            grads = gradients(x, y, w, b)
            if value:
                grads = [np.clip(g, -value, value) for g in grads]
            size = np.sqrt(sum((g**2).sum() for g in grads))
            scale = min(1, norm / size) if norm else 1
            w, b = w - scale * grads[0], b - scale * grads[1]
        return w, b

    def test_by_value_and_norm(self):
        for value, norm in ((0.1, 0), (0, 0.25), (0.2, 0.3), (0, 1e6)):
            want = self.want(value, norm)
            for use_graph in (False, True):
                one = opt.SGD(lr=1.0)
                one.clip_gradients(value, norm)
                m, x, y = line(copy.deepcopy(one), use_graph)
                for _ in range(STEPS):
                    m(x, y)
                np.testing.assert_allclose(m.l.W.numpy(), want[0], atol=1e-5)
                np.testing.assert_allclose(m.l.b.numpy(), want[1], atol=1e-5)

    def test_parameter_by_parameter(self):
        one = opt.SGD(lr=1.0)
        one.clip_gradients(value=0.5)
        p = tensor.zeros((2,))
        one.apply("p", p, tensor.from_numpy(np.float32([0.25, -2])))
        np.testing.assert_array_equal(p.numpy(), [-0.25, 0.5])
        one = opt.SGD(lr=1.0)
        one.clip_gradients(norm=0.5)
        with self.assertRaisesRegex(NotImplementedError, "norm of all of them"):
            one.apply("p", p, tensor.ones((2,)))

    def test_refusals(self):
        one = opt.SGD(lr=1.0)
        with self.assertRaisesRegex(ValueError, "norm is -1; needs"):
            one.clip_gradients(norm=-1)
        m, x, y = line(one)
        m(x, y)
        with self.assertRaisesRegex(StateError, "needs to be before"):
            one.clip_gradients(norm=1)


class Schedules(unittest.TestCase):
    def test_values(self):
        decay = opt.ExponentialDecay(0.1, 2, 0.5)
        stairs = opt.ExponentialDecay(0.1, 2, 0.5, staircase=True)
        cosine = opt.Cosine(0.1, 10, final_value=0.02)
        warmup = opt.Warmup(0.1, 4)
        for t in range(15):
            self.assertAlmostEqual(decay.value(t), 0.1 * 0.5 ** (t / 2))
            self.assertAlmostEqual(stairs.value(t), 0.1 * 0.5 ** (t // 2))
            want = 0.02
            if t < 10:
                want = 0.02 + 0.08 * (1 + np.cos(np.pi * t / 10)) / 2
            self.assertAlmostEqual(cosine.value(t), want)
            self.assertAlmostEqual(warmup.value(t), 0.1 * min(1, (t + 1) / 5))
        both = opt.Warmup(stairs, 4)
        self.assertAlmostEqual(both.value(2), 0.6 * 0.05)
        self.assertEqual(opt.Constant(0.3).value(7), 0.3)

    def test_calls_take_and_give_tensors(self):
        step = tensor.Tensor((1,)).set_value(3.0)
        for schedule in (
            opt.ExponentialDecay(0.1, 2, 0.5),
            opt.Constant(0.1),
            opt.Cosine(0.1, 5),
            opt.Warmup(0.1, 5),
        ):
            value = schedule(step)
            self.assertEqual(value.shape, (1,))
            self.assertAlmostEqual(value.item(), schedule.value(3), 6)
        with self.assertRaisesRegex(
            TypeError, "the step is a int; a Tensor is"
        ):
            opt.Constant(0.1)(3)

    def test_a_subclass_with_call_on_tensors(self):
        class Inverse(opt.DecayScheduler):
            def call(self, step):
                return self.init_value / (step + 1.0)

        for use_graph in (False, True):
            one = opt.SGD(lr=Inverse(0.1), momentum=0.9)
            m, x, y = line(one, use_graph)
            for _ in range(STEPS):
                m(x, y)
            w, b = expected("sgd", {"momentum": 0.9}, lambda t: 0.1 / (t + 1))
            np.testing.assert_allclose(m.l.W.numpy(), w, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(m.l.b.numpy(), b, rtol=1e-4, atol=1e-5)
        with self.assertRaisesRegex(NotImplementedError, "defines no call"):
            opt.SGD(lr=opt.DecayScheduler(0.1))

    def test_schedules_in_every_way(self):
        for name in opt.optimizers():
            want = expected(name, {}, lambda t: 0.1 * 0.7 ** (t / 3))
            for way in range(4):
                one = make(name, {}, opt.ExponentialDecay(0.1, 3, 0.7))
                m, x, y = line(one, way == 1)
                autograd.training = True
                for _ in range(STEPS):
                    if way < 2:
                        m(x, y)
                        continue
                    loss = autograd.mse_loss(m.forward(x), y)
                    if way == 2:
                        one(loss)
                        continue
                    for p, g in autograd.backward(loss):
                        one.update(p, g)
                    one.step()
                for got, value in zip((m.l.W, m.l.b), want):
                    np.testing.assert_allclose(
                        got.numpy(), value, 5e-4, 5e-5, err_msg=f"{name} {way}"
                    )

    def test_a_bad_schedule(self):
        with self.assertRaisesRegex(
            ValueError, "decay_steps is 0; needs to be"
        ):
            opt.ExponentialDecay(0.1, 0, 0.5)
        with self.assertRaisesRegex(ValueError, "period is 0; needs to be"):
            opt.Cosine(0.1, 0)
        with self.assertRaisesRegex(NotImplementedError, "only lr can be one"):
            opt.SGD(lr=0.1, momentum=opt.ExponentialDecay(0.9, 2, 0.5))
        self.assertEqual(
            opt.SGD(lr=0.1, momentum=opt.Constant(0.5))._settings["momentum"],
            0.5,
        )


class Settings(unittest.TestCase):
    def test_lr_is_read_and_set(self):
        one = opt.SGD(lr=0.25)
        self.assertEqual(one.lr, 0.25)
        self.assertEqual(one.lr_value.item(), 0.25)
        one.lr = 0.5
        self.assertEqual(one.lr, 0.5)
        schedule = opt.ExponentialDecay(0.5, 1, 0.5)
        one.lr = schedule
        self.assertIs(one.lr, schedule)
        self.assertEqual(one.lr_value.item(), 0.5)
        p, g = tensor.ones((1,)), tensor.ones((1,))
        one.update(p, g)
        self.assertEqual(p.item(), 0.5)
        one.step()
        self.assertEqual(one.lr_value.item(), 0.25)
        one.update(p, g)
        self.assertEqual(p.item(), 0.25)
        one.lr = 1
        one.update(p, g)
        self.assertEqual(p.item(), -0.75)

    def test_a_schedule_gives_way_to_a_number_in_models(self):
        for use_graph in (False, True):
            m, x, y = line(
                opt.SGD(lr=opt.ExponentialDecay(0.1, 1, 0.5)), use_graph
            )
            for t in range(6):
                if t == 3:
                    m.optimizer.lr = 0.03
                m(x, y)
            w, _ = expected(
                "sgd", {}, lambda t: 0.03 if t >= 3 else 0.1 * 0.5**t, 6
            )
            np.testing.assert_allclose(m.l.W.numpy(), w, rtol=1e-4, atol=1e-5)

    def test_defaults_are_singas(self):
        for cls in (opt.SGD, opt.Adam, opt.RMSProp, opt.AdaGrad):
            self.assertEqual(cls().lr, 0.1, cls)

    def test_bad_settings_are_named(self):
        for make_bad, kind, words in (
            (lambda: opt.SGD(lr=-1), ValueError, "lr is -1"),
            (
                lambda: opt.SGD(lr=0.1, momentum=-0.5),
                ValueError,
                "momentum is -0.5",
            ),
            (lambda: opt.SGD(lr="fast"), (TypeError, ValueError), "fast"),
            (
                lambda: opt.SGD(lr=0.1, momentum="much"),
                TypeError,
                "SGD: momentum is 'much'; a number is needed",
            ),
            (
                lambda: opt.SGD(0.1, nesterov=True),
                ValueError,
                "momentum above 0",
            ),
            (lambda: opt.Adam(beta_1=1.5), ValueError, "beta1 is 1.5"),
            (lambda: opt.RMSProp(rho=2), ValueError, "rho is 2"),
            (lambda: opt.AdaGrad(epsilon=-1), ValueError, "epsilon is -1"),
            (lambda: opt.SGD(momentun=0.9), TypeError, "momentun"),
        ):
            with self.assertRaisesRegex(kind, words):
                make_bad()
        one = opt.SGD(lr=0.1)
        with self.assertRaisesRegex(ValueError, "lr is -1"):
            one.lr = -1
        self.assertEqual(one.lr, 0.1)

    def test_gradients_of_another_shape(self):
        with self.assertRaisesRegex(ValueError, r"apply: w has shape \(2,\)"):
            opt.SGD(lr=0.1).apply("w", tensor.ones((2,)), tensor.ones((3,)))

    def test_a_loss_that_depends_on_nothing(self):
        with self.assertRaisesRegex(StateError, "depends on no parameter"):
            opt.SGD(lr=0.1)(tensor.ones((1,)))

    def test_generated_classes_have_documentation(self):
        for name, cls in classes().items():
            self.assertTrue(cls.__doc__, name)
            self.assertIn("lr=0.05", repr(make(name, {})))


class States(unittest.TestCase):
    def steps(self, one, m, x, y, count, way):
        autograd.training = True
        for _ in range(count):
            if way == 0:
                m(x, y)
                continue
            loss = autograd.mse_loss(m.forward(x), y)
            if way == 1:
                one(loss)
                continue
            for p, g in autograd.backward(loss):
                one.update(p, g)
            one.step()

    def test_they_go_round(self):
        for name, settings in cases():
            for way in range(3):
                what = (name, settings, way)
                one = make(name, settings)
                m, x, y = line(one)
                self.steps(one, m, x, y, 5, way)
                states = one.get_states()
                self.assertEqual(states["step_counter"], 5, what)
                for key, value in states.items():
                    self.assertIsInstance(value, (np.ndarray, np.float32), what)
                    if key != "step_counter":
                        self.assertTrue(np.any(value != 0), (what, key))
                middle = {
                    n: t.numpy().copy() for n, t in m.get_params().items()
                }
                self.steps(one, m, x, y, 4, way)
                want = m.digest()
                # Into a fresh optimizer, before its first step.
                other = make(name, settings)
                m2, x, y = line(other)
                m2.set_params(middle)
                other.set_states(states)
                self.steps(other, m2, x, y, 4, way)
                self.assertEqual(m2.digest(), want, what)
                # Back into one that has gone on.
                m.set_params(middle)
                one.set_states(states)
                self.steps(one, m, x, y, 4, way)
                self.assertEqual(m.digest(), want, what)

    def test_wrong_states(self):
        one = opt.SGD(lr=0.1, momentum=0.9)
        with self.assertRaisesRegex(KeyError, "step_counter"):
            one.set_states({})
        m, x, y = line(one)
        m(x, y)
        states = one.get_states()
        key = next(k for k in states if k != "step_counter")
        states[key] = np.zeros(7, np.float32)
        with self.assertRaisesRegex(ValueError, key):
            one.set_states(states)


if __name__ == "__main__":
    unittest.main()
