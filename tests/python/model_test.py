# SPDX-License-Identifier: Apache-2.0
"""choir.model: training steps, graph mode, memory."""

import gc
import itertools
import os
import unittest
import warnings

import numpy as np

from choir import StateError, autograd, layer, model, opt, tensor
from small_models import DEV, Base, Net, Plain, made, path, samples


class Manual(Net):
    """Updates parameter by parameter."""

    def train_one_batch(self, x, y):
        self.calls += 1
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        for p, g in autograd.backward(loss):
            self.optimizer.update(p, g)
        self.optimizer.step()
        return out, loss


class Steps(Base):
    def test_compile_makes_parameters_by_forward(self):
        x, _ = samples()
        m = Net()
        self.assertEqual(m.get_params(), {})
        m.compile([x], is_train=True)
        self.assertEqual(
            {n: t.shape for n, t in m.get_params().items()},
            {
                "l1.W": (5, 8),
                "l1.b": (8,),
                "bn.scale": (8,),
                "bn.bias": (8,),
                "l2.W": (8, 3),
                "l2.b": (3,),
            },
        )
        self.assertEqual(
            set(m.get_states()) - set(m.get_params()),
            {"bn.running_mean", "bn.running_var"},
        )
        for name, t in m.get_states().items():
            self.assertEqual(t.name, name)

    def test_a_loss_that_is_not_finite_updates_nothing(self):
        said = (
            "training step {}: the loss is nan, and nothing was updated; values "
            "were first not finite in {}"
        )
        for use_graph in (False, True):
            m, sound = made(use_graph=use_graph), made(use_graph=use_graph)
            m.check_loss()
            x, y = samples(seed=9)
            ill = x.numpy()
            ill[2, 1] = np.nan
            for step in range(4):
                m(*samples(seed=step))
                sound(*samples(seed=step))
                with self.assertRaises(StateError) as caught:
                    m(tensor.from_numpy(ill), y)
                where = "input 0 of the batch"
                self.assertIn(
                    said.format(step + 1, where), str(caught.exception)
                )
                w = m.l1.W.numpy()
                m.l1.W.copy_from_numpy(w * (3e38 / np.abs(w).max()))
                with self.assertRaises(StateError) as caught:
                    m(x, y)
                self.assertRegex(
                    str(caught.exception),
                    said.format(step + 1, "what op linear made.*"),
                )
                m.l1.W.copy_from_numpy(w)
                m.bn.running_mean.copy_from(sound.bn.running_mean)
                m.bn.running_var.copy_from(sound.bn.running_var)
                self.same(m, sound)
            m.check_loss(False)
            m(tensor.from_numpy(ill), y)
            self.assertTrue(np.isnan(m.l2.W.numpy()).any())

    def test_one_step_is_what_mathematics_says(self):
        x, _ = samples(n=4, features=3)
        y = tensor.from_numpy(np.ones((4, 2), np.float32))
        for use_graph in (False, True):
            m = made(Plain, use_graph, x, opt.SGD(lr=0.5))
            w, b = m.l.W.numpy().astype(float), m.l.b.numpy().astype(float)
            xs = x.numpy().astype(float)
            for _ in range(4):
                out, loss = m(x, y)
                error = xs @ w + b - 1.0
                np.testing.assert_allclose(out.numpy(), error + 1, rtol=1e-5)
                np.testing.assert_allclose(
                    loss.numpy(), [np.mean(error**2)], rtol=1e-5
                )
                w -= 0.5 * xs.T @ (2 * error / 8)
                b -= 0.5 * (2 * error / 8).sum(axis=0)
            np.testing.assert_allclose(m.l.W.numpy(), w, rtol=1e-5)
            np.testing.assert_allclose(m.l.b.numpy(), b, rtol=1e-5, atol=1e-7)

    def test_eval_runs_forward_and_changes_nothing(self):
        x, y = samples()
        m = made()
        m(x, y)
        before = m.digest()
        m.eval()
        self.assertFalse(autograd.training)
        out = m(x)
        self.assertEqual(out.shape, (6, 3))
        self.assertIsNone(out.creator)
        np.testing.assert_array_equal(out.numpy(), m(x).numpy())
        self.assertEqual(m.digest(), before)
        m.train()
        self.assertTrue(autograd.training)
        m(x, y)
        self.assertNotEqual(m.digest(), before)

    def test_compiled_for_inference_calls_forward(self):
        x, _ = samples()
        m = Net()
        m.compile([x], is_train=False)
        self.assertEqual(m(x).shape, (6, 3))
        self.assertEqual(m.calls, 0)

    def test_losses_fall(self):
        x, y = samples()
        m = made(use_graph=True)
        losses = [m(x, y)[1].item() for _ in range(30)]
        self.assertLess(losses[-1], losses[0] / 2)

    def test_before_compile_steps_are_eager(self):
        """With the bits of a compiled model, and compile goes on from there."""
        x, y = samples()
        losses = []
        for compiled_at in (0, 2, 4, None):
            DEV.SetRandSeed(7)
            m = Net(ratio=0)
            m.set_optimizer(opt.SGD(lr=0.1, momentum=0.9))
            own = []
            for step in range(6):
                if step == compiled_at:
                    m.compile([x], is_train=True, use_graph=True)
                own.append(m(x, y)[1].item())
            self.assertEqual(len(m.get_params()), 6)
            self.assertEqual(m.optimizer._step, 6)
            losses.append(own)
        for other in losses[1:]:
            self.assertEqual(other, losses[0])
        self.assertEqual(len(set(losses[0])), 6)

    def test_before_compile_forward_makes_the_layers(self):
        x, _ = samples()
        m = Net()
        m.eval()
        out = m(x)
        self.assertEqual(out.shape, (6, 3))
        self.assertEqual(len(m.get_params()), 6)
        m.compile([x], is_train=False)
        np.testing.assert_array_equal(m(x).numpy(), out.numpy())

    def test_layers_in_lists_and_of_forward_are_trained(self):
        class Listed(Net):
            def __init__(self):
                model.Model.__init__(self)
                self.blocks = [layer.Linear(4)]
                self.blocks.append((layer.ReLU(), layer.Linear(6)))
                self.heads = {"a": layer.Linear(3), "b": layer.Linear(3)}
                self.first = self.blocks[0]
                self.calls, self.failure, self.fails_late = 0, None, False

            def forward(self, x):
                x = self.blocks[0](x)
                for part in self.blocks[1]:
                    x = part(x)
                if not hasattr(self, "last"):
                    self.last = layer.Linear(6)
                x = self.last(x)
                return self.heads["a"](x) + self.heads["b"](x)

        names = [
            f"{part}.{name}"
            for part in ("first", "last", "blocks.1.1", "heads.a", "heads.b")
            for name in "Wb"
        ]
        x, y = samples()
        for use_graph in (False, True):
            m = Listed()
            m.set_optimizer(opt.SGD(lr=0.1))
            m.compile([x], is_train=True, use_graph=use_graph)
            self.assertEqual(list(m.get_params()), names)
            before = {n: p.numpy().copy() for n, p in m.get_params().items()}
            for _ in range(3):
                m(x, y)
            for name, p in m.get_params().items():
                self.assertTrue((p.numpy() != before[name]).any(), name)
            file = path(f"listed{use_graph}.zip")
            m.save_states(file)
            other = Listed()
            other.compile([x], is_train=True)
            other.load_states(file)
            self.same(other, m)

    def test_no_step_without_forward_or_optimizer_call(self):
        x, y = samples()
        with self.assertRaisesRegex(
            NotImplementedError, "Model defines no forw"
        ):
            model.Model().compile([x])

    def test_a_step_without_update_warns_once_and_is_not_counted(self):
        class Forgets(Net):
            def train_one_batch(self, x, y, scale=1.0):
                if scale == 1.0:
                    return super().train_one_batch(x, y)
                self.calls += 1
                return autograd.reduce_sum(self.l1(x))

        x, y = samples()
        for use_graph, steps_before in itertools.product((False, True), (0, 3)):
            m, same = (made(cls, use_graph) for cls in (Forgets, Net))
            for _ in range(steps_before):
                m(x, y)
                same(x, y)
            calls = m.calls
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for i in range(4):
                    new = tensor.from_numpy(x.numpy() + i)
                    total = m(new, y, 2.0)
                    self.assertAlmostEqual(
                        total.item(), m.l1(new).numpy().sum(), 3
                    )
            self.assertEqual(len(caught), 1)
            self.assertEqual(caught[0].filename, __file__)
            self.assertRegex(
                str(caught[0].message), "^Forgets: train_one_batch did not upd"
            )
            # The first of a run are not kept as graphs.
            if use_graph and steps_before:
                self.assertEqual(m.calls, calls + 1)
            self.assertEqual(m.optimizer.step_counter.item(), steps_before)
            self.same(m, same)
            for _ in range(3):
                self.assertEqual(m(x, y)[1].item(), same(x, y)[1].item())
            self.same(m, same)

    def test_with_dist_opt_a_step_without_update_is_an_error(self):
        class Forgets(Net):
            def train_one_batch(self, x, y):
                return self.forward(x)

        x, y = samples()
        for use_graph in (False, True):
            m = made(Forgets, use_graph, optimizer=opt.DistOpt(opt.SGD(0.1)))
            with self.assertRaisesRegex(
                StateError, "did not update: call the opt.*other ranks wait"
            ):
                m(x, y)

    def test_without_an_optimizer_train_one_batch_is_an_ordinary_function(self):
        x, _ = samples()

        class Evaluates(Net):
            def train_one_batch(self, x):
                return self.forward(x)

        m = Evaluates()
        m.compile([x], is_train=True)
        self.assertEqual(m(x).shape, (6, 3))

    def test_an_exception_comes_out_and_the_model_goes_on(self):
        class Mine(Exception):
            pass

        x, y = samples()
        for use_graph, steps_before, fails_late in itertools.product(
            (False, True), (0, 1, 3), (False, True)
        ):
            a, b = made(use_graph=use_graph), made(use_graph=use_graph)
            for _ in range(steps_before):
                a(x, y)
            a.failure = Mine("here")
            a.fails_late = fails_late
            before = a.digest()
            # Another argument: its steps call Python.
            with self.assertRaisesRegex(Mine, "^here$") as caught:
                a(x, y, 2.0)
            self.assertIs(caught.exception, a.failure)
            self.assertEqual(a.digest(), before)
            a.failure = None
            for _ in range(3):
                a(x, y)
            for _ in range(steps_before + 3):
                b(x, y)
            self.same(a, b)

    def test_wrong_labels_change_no_state(self):
        for use_graph in (False, True):
            for steps_before in (0, 1, 2, 4):
                x, y = samples()
                a, b = made(use_graph=use_graph), made(use_graph=use_graph)
                for _ in range(steps_before):
                    a(x, y)
                before, right = a.digest(), y.numpy().copy()
                y.copy_from_numpy(right + 1)
                with self.assertRaises(IndexError):
                    a(x, y)
                self.assertEqual(a.digest(), before)
                y.copy_from_numpy(right)
                for _ in range(3):
                    a(x, y)
                for _ in range(steps_before + 3):
                    b(x, y)
                self.same(a, b)

    def test_several_inputs_and_keywords(self):
        class Two(Net):
            def forward(self, a, b):
                return super().forward(a + b)

            def train_one_batch(self, a, b, y=None, names=("n",)):
                out = self.forward(a, b)
                loss = autograd.softmax_cross_entropy(out, y)
                self.optimizer(loss)
                return {"loss": loss, "out": [out]}

        x, y = samples()
        digests = set()
        for use_graph in (False, True):
            DEV.SetRandSeed(1)
            m = Two()
            m.set_optimizer(opt.SGD(lr=0.1))
            m.compile([x, x], True, use_graph)
            for _ in range(5):
                result = m(x, x, y=y, names=("n",))
                self.assertEqual(result["out"][0].shape, (6, 3))
            digests.add(m.digest())
        self.assertEqual(len(digests), 1)

    def test_models_in_models(self):
        class Outer(model.Model):
            def __init__(self):
                super().__init__()
                self.inner = Net()
                self.last = layer.Linear(3)

            def forward(self, x):
                return self.last(self.inner.forward(x))

            def train_one_batch(self, x, y):
                loss = autograd.softmax_cross_entropy(self.forward(x), y)
                self.optimizer(loss)
                return loss

        x, y = samples()
        results = set()
        for use_graph in (False, True):
            m = made(Outer, use_graph)
            self.assertIn("inner.l1.W", m.get_params())
            self.assertIn("inner.bn.running_var", m.get_states())
            self.assertEqual(m.inner.l1.W.name, "inner.l1.W")
            first = m(x, y).item()
            for _ in range(10):
                last = m(x, y).item()
            self.assertLess(last, first)
            results.add(m.digest())
        self.assertEqual(len(results), 1)


class Graph(Base):
    def test_graph_and_eager_have_the_same_bits(self):
        x, y = samples()
        for make in (
            lambda: opt.SGD(lr=0.1, momentum=0.9),
            lambda: opt.Adam(lr=0.01),
        ):
            for sequential in (False, True):
                a = made(optimizer=make())
                b = made(optimizer=make(), use_graph=True)
                b.graph(True, sequential)
                for _ in range(8):
                    (oa, la), (ob, lb) = a(x, y), b(x, y)
                    np.testing.assert_array_equal(oa.numpy(), ob.numpy())
                    self.assertEqual(la.item(), lb.item())
                    self.same(a, b)
                self.assertEqual(a.calls, 8)
                self.assertEqual(b.calls, 2)

    def test_a_replays_results_are_the_same_tensors_with_new_elements(self):
        x, y = samples()
        m = made(use_graph=True)
        m(x, y)
        out, loss = m(x, y)
        before = loss.item()
        again = m(x, y)
        self.assertIs(again[0], out)
        self.assertIs(again[1], loss)
        self.assertNotEqual(loss.item(), before)

    def test_new_elements_of_the_inputs_are_used(self):
        x, y = samples()
        other, _ = samples(seed=9)
        values = other.numpy().copy()
        a, b = made(), made(use_graph=True)
        for i in range(6):
            if i == 3:
                x.copy_from_numpy(values)
            la, lb = a(x, y)[1].item(), b(x, y)[1].item()
            self.assertEqual(la, lb)
        # Other tensors of the same shape are no new kind.
        calls = b.calls
        x2, y2 = samples(seed=4)
        self.assertEqual(a(x2, y2)[1].item(), b(x2, y2)[1].item())
        self.assertEqual(b.calls, calls)
        self.same(a, b)

    def test_kinds_of_steps_follow_and_come_back(self):
        small, small_y = samples(n=3, seed=5)
        x, y = samples()
        a, b = made(), made(use_graph=True)
        kinds = [(x, y), (small, small_y), (x, y, 0.5), (small, small_y, 2.0)]
        order = [0, 0, 0, 1, 0, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 1, 0, 2]
        for kind in order:
            (oa, la), (ob, lb) = a(*kinds[kind]), b(*kinds[kind])
            self.assertEqual(oa.shape, ob.shape)
            np.testing.assert_array_equal(oa.numpy(), ob.numpy())
            self.assertEqual(la.item(), lb.item())
            self.same(a, b)
        self.assertLess(b.calls, len(order))

    def test_a_third_tensor_is_part_of_the_kind(self):
        class Weighted(Net):
            def train_one_batch(self, x, y, w):
                self.calls += 1
                loss = autograd.softmax_cross_entropy(self.forward(x), y)
                loss = loss * w
                self.optimizer(loss)
                return loss

        x, y = samples()
        ws = [tensor.ones((1,)), tensor.ones((1,)) * 3.0]
        a, b = made(Weighted), made(Weighted, True)
        for i in (0, 0, 0, 1, 1, 1, 0, 1):
            self.assertEqual(a(x, y, ws[i]).item(), b(x, y, ws[i]).item())
        ws[0].set_value(0.5)
        self.assertEqual(a(x, y, ws[0]).item(), b(x, y, ws[0]).item())
        self.same(a, b)

    def test_a_third_tensor_may_be_new_in_each_step(self):
        class Weighted(Net):
            def train_one_batch(self, x, y, more):
                loss = autograd.softmax_cross_entropy(self.forward(x), y)
                loss = loss * more["w"][0]
                self.optimizer(loss)
                return loss

        x, y = samples()
        a, b = made(Weighted), made(Weighted, True)
        for i in range(12):
            values = [
                m(x, y, {"w": [tensor.ones((1,)) * float(i // 3)]}).item()
                for m in (a, b)
            ]
            self.assertEqual(values[0], values[1])
        self.same(a, b)

    def test_one_input_and_one_twice(self):
        x, _ = samples(features=2)
        other, _ = samples(features=2, seed=7)
        for use_graph in (False, True):
            both = made(Plain, use_graph, x)
            apart = made(Plain, False, x)
            for i in range(8):
                if i % 4 == 3:
                    want, got = apart(x, other)[1], both(x, other)[1]
                else:
                    want, got = apart(x, x.clone())[1], both(x, x)[1]
                self.assertEqual(want.item(), got.item())

        class Alone(Plain):
            def train_one_batch(self, x):
                self.calls = getattr(self, "calls", 0) + 1
                out = self.forward(x)
                self.optimizer(autograd.mse_loss(out, x))
                return out

        a, b = made(Alone, x=x), made(Alone, True, x)
        for i in range(8):
            given = other if i == 5 else x
            np.testing.assert_array_equal(a(given).numpy(), b(given).numpy())
        self.assertEqual(b.calls, 2)

    def test_two_halves_of_one_tensor_are_inputs(self):
        both = tensor.from_numpy(
            np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
        )
        x = both[0]
        a, b = made(Plain, x=x), made(Plain, True, x)
        for i in (1, 1, 1, 2, 2, 3, 2, 1):
            want = a(x.clone(), both[i].clone())[1].item()
            self.assertEqual(b(x, both[i])[1].item(), want)

    def test_integers_as_input(self):
        class Words(model.Model):
            def __init__(self):
                super().__init__()
                self.table = layer.Embedding(10, 4)
                self.last = layer.Linear(3)

            def forward(self, x):
                return self.last(autograd.flatten(self.table(x)))

            def train_one_batch(self, x, y):
                loss = autograd.softmax_cross_entropy(self.forward(x), y)
                self.optimizer(loss)
                return loss

        x = tensor.from_numpy(
            (np.arange(12) % 10).reshape(6, 2).astype(np.int32)
        )
        _, y = samples()
        a, b = made(Words, x=x), made(Words, True, x)
        losses = [a(x, y).item() for _ in range(6)]
        self.assertEqual(losses, [b(x, y).item() for _ in range(6)])
        self.assertLess(losses[-1], losses[0])

    def test_learning_rates_follow(self):
        x, y = samples()
        a, b = made(), made(use_graph=True)
        for i in range(8):
            if i == 4:
                a.optimizer.lr = 0.01
                b.optimizer.lr = 0.01
            a(x, y)
            b(x, y)
            self.same(a, b)
        plain = made(use_graph=True)
        for _ in range(8):
            plain(x, y)
        self.assertNotEqual(plain.digest(), b.digest())

    def test_schedules_follow(self):
        x, y = samples()
        models = [
            made(
                use_graph=use_graph,
                optimizer=opt.SGD(lr=opt.ExponentialDecay(0.2, 2, 0.5, True)),
            )
            for use_graph in (False, True)
        ]
        for _ in range(7):
            for m in models:
                m(x, y)
        self.same(*models)
        by_hand = made(optimizer=opt.SGD(lr=0.2))
        for i in range(7):
            by_hand.optimizer.lr = 0.2 * 0.5 ** (i // 2)
            by_hand(x, y)
        self.same(models[0], by_hand)

    def test_graph_mode_can_be_switched(self):
        x, y = samples()
        a, b = made(), made()
        for i in range(9):
            b.graph(i % 4 > 1)
            a(x, y)
            b(x, y)
        self.same(a, b)

    def test_frozen_later_and_again_trained(self):
        x, y = samples()
        a, b = made(), made(use_graph=True)
        for i in range(9):
            for m in (a, b):
                m.l1.W.stores_grad = not 3 <= i < 6
                before = m.l1.W.numpy().copy()
                m(x, y)
                frozen = np.array_equal(before, m.l1.W.numpy())
                self.assertEqual(frozen, 3 <= i < 6)
            self.same(a, b)

    def test_reading_a_value_in_a_recorded_step_is_refused(self):
        class Reads(Net):
            def train_one_batch(self, x, y):
                out = self.forward(x)
                loss = autograd.softmax_cross_entropy(out, y)
                self.read = loss.item()
                self.optimizer(loss)
                return loss

        x, y = samples()
        eager = made(Reads)
        for _ in range(3):
            self.assertEqual(eager(x, y).item(), eager.read)
        m = made(Reads, use_graph=True)
        m(x, y)
        with self.assertRaisesRegex(
            StateError, "the host reads or writes a tensor in the middle"
        ):
            m(x, y)

    def test_print_graphs(self):
        x, y = samples()
        m = made(use_graph=True)
        self.assertEqual(m.print_graphs(), "")
        for _ in range(3):
            m(x, y)
        text = m.print_graphs()
        self.assertIn("sgd_update", text)
        self.assertIn("softmax_cross_entropy", text)


class ManualSteps(Base):
    def test_a_loop_over_backward_trains_as_the_optimizer_call(self):
        x, y = samples()
        for use_graph in (False, True):
            whole, manual = made(), made(Manual, use_graph)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(5):
                    out, loss = manual(x, y)
                    self.assertEqual(whole(x, y)[1].item(), loss.item())
            self.same(whole, manual)
            self.assertFalse(manual.graph_mode)
            self.assertEqual(len(caught), int(use_graph))
            if use_graph:
                self.assertIn("run without graph mode", str(caught[0].message))
                self.assertEqual(caught[0].filename, __file__)

    def test_its_optimizers_states_are_those_in_use(self):
        x, y = samples()
        whole, manual = made(), made(Manual)
        for _ in range(3):
            whole(x, y)
            manual(x, y)
        a, b = whole.optimizer.get_states(), manual.optimizer.get_states()
        self.assertEqual(set(a), set(b))
        for name, value in a.items():
            np.testing.assert_array_equal(value, b[name], name)
        with self.assertRaisesRegex(StateError, "save get_states"):
            manual.save_checkpoint(path("manual.safetensors"))

    def test_gradients_can_be_changed_on_the_way(self):
        class Clipped(Plain):
            def train_one_batch(self, x, y):
                loss = autograd.mse_loss(self.forward(x), y)
                for p, g in autograd.backward(loss):
                    g = autograd.clip(g, -0.01, 0.01)
                    self.optimizer.update(p, g)
                return loss

        x, _ = samples(n=4, features=3)
        y = tensor.from_numpy(np.full((4, 2), 100, np.float32))
        m = made(Clipped, x=x, optimizer=opt.SGD(lr=1.0))
        before = m.l.W.numpy().copy(), m.l.b.numpy().copy()
        m(x, y)
        np.testing.assert_allclose(
            np.abs(m.l.W.numpy() - before[0]), 0.01, rtol=1e-3
        )
        np.testing.assert_allclose(m.l.b.numpy() - before[1], 0.01, rtol=1e-3)


class Memory(Base):
    @staticmethod
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_2000_steps_do_not_grow(self):
        x, y = samples()
        for use_graph in (False, True):
            m = made(use_graph=use_graph)
            for _ in range(200):
                m(x, y)
            gc.collect()
            before, in_use = self.resident(), DEV.memory()["in_use"]
            for _ in range(2000):
                m(x, y)
            self.assertEqual(DEV.memory()["in_use"], in_use)
            self.assertLess(self.resident() - before, 5 << 20)

    def test_other_learning_rates_as_arguments_do_not_grow(self):
        x, y = samples()
        m = made(use_graph=True)
        for i in range(100):
            m(x, y, 1.0 + i / 1000)
        gc.collect()
        before, in_use = self.resident(), DEV.memory()["in_use"]
        for i in range(300):
            m(x, y, 2.0 + i / 1000)
        self.assertLess(DEV.memory()["in_use"] - in_use, 1 << 20)
        self.assertLess(self.resident() - before, 5 << 20)

    def test_dropped_tensors_free_their_bytes_at_once(self):
        gc.collect()
        gc.disable()
        try:
            before = DEV.memory()["in_use"]
            t = tensor.ones((1000, 100))
            self.assertGreaterEqual(DEV.memory()["in_use"], before + 400000)
            del t
            self.assertEqual(DEV.memory()["in_use"], before)
            autograd.training = True
            w = tensor.ones((100, 1000))
            w.stores_grad = True
            before = DEV.memory()["in_use"]
            loss = autograd.mse_loss(autograd.relu(w * 2.0), w * 0.0)
            self.assertGreater(DEV.memory()["in_use"], before)
            del loss
            self.assertEqual(DEV.memory()["in_use"], before)
        finally:
            gc.enable()

    def test_a_dropped_model_frees_its_bytes(self):
        x, y = samples()
        for use_graph in (False, True):
            gc.collect()
            before = DEV.memory()["in_use"]
            m = made(use_graph=use_graph, hidden=2000)
            for _ in range(3):
                m(x, y)
            self.assertGreater(DEV.memory()["in_use"], before + 40000)
            del m
            gc.collect()
            self.assertEqual(DEV.memory()["in_use"], before)


if __name__ == "__main__":
    unittest.main()
