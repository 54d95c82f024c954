# SPDX-License-Identifier: Apache-2.0
"""Functions of Python's that the library calls: nothing may leave them."""

import contextlib
import gc
import io
import sys
import unittest
import weakref
from unittest import mock

import numpy as np

import choir
from choir import _callback, autograd, device, opt, tensor
from choir._calls import address_of, lib
from small_models import Net, made, samples


class Speechless(Exception):
    """Whose sentence cannot be had."""

    def __str__(self):
        raise ValueError("no words")


class Liar(Exception):
    """Which says of itself that it is what it is not."""

    @property
    def __class__(self):
        raise RuntimeError("no class")


class Surrogate(Exception):
    def __str__(self):
        return "\udcff\0rest"


KINDS = [
    Speechless, Liar, Surrogate, ValueError, MemoryError, KeyboardInterrupt,
    SystemExit, GeneratorExit, choir.CommError,
]  # fmt: skip


class Fails(autograd.Operator):
    """x, whose gradient cannot be had."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def forward(self, x):
        return x

    def backward(self, dy):
        raise self.failure


class Custom(Net):
    """Which may fail in its own code before and behind the optimizer's call, and
    in an operator's backward."""

    # In lists, as setting an attribute asks a value for its class.
    before, backward, behind = [], [], []

    def train_one_batch(self, x, y):
        out = self.forward(x)
        for failure in self.backward:
            out = Fails(failure)(out)[0]
        loss = autograd.softmax_cross_entropy(out, y)
        for failure in self.before:
            raise failure
        self.optimizer(loss)
        for failure in self.behind:
            raise failure
        return out, loss


@contextlib.contextmanager
def nothing_is_ignored(test):
    """ctypes prints what leaves a callback."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        yield
    test.assertEqual(said.getvalue(), "")


class Callbacks(unittest.TestCase):
    def fails(self, m, failure):
        with nothing_is_ignored(self), self.assertRaises(type(failure)) as got:
            m(*samples())
        self.assertIs(got.exception, failure)

    def test_train_one_batch(self):
        for use_graph in (False, True):
            m = made(Custom, use_graph)
            m(*samples())
            for kind in KINDS:
                before = m.digest(), m.optimizer._step
                m.before = [kind("this")]
                self.fails(m, m.before[0])
                m.before = []
                m.backward = [kind("this")]
                self.fails(m, m.backward[0])
                m.backward = []
                self.assertEqual((m.digest(), m.optimizer._step), before)
            m(*samples())
            other = made(Custom)
            for _ in range(2):
                other(*samples())
            self.assertEqual(m.digest(), other.digest())

    def test_what_fails_behind_the_update_leaves_a_step(self):
        for use_graph in (False, True):
            for kind in KINDS:
                sgd = opt.SGD(lr=0.1, momentum=0.9)
                optimizer = opt.DistOpt(sgd) if kind is Speechless else sgd
                m = made(Custom, use_graph, optimizer=optimizer)
                # The second is recorded in graph mode, or would be.
                for steps in (1, 2):
                    m.behind = [kind("this")]
                    self.fails(m, m.behind[0])
                    self.assertEqual(sgd._step, steps)
                m.behind = []
                for _ in range(3):
                    m(*samples())
                self.assertEqual(sgd.step_counter.item(), 5)
                other = made(Custom)
                for _ in range(5):
                    other(*samples())
                self.assertEqual(m.digest(), other.digest())

    def test_a_step_without_a_model(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        w = tensor.ones((2, 3))
        w.stores_grad = True
        sgd = opt.SGD(lr=0.5)
        for kind in KINDS:
            failure = kind("this")
            loss = autograd.reduce_sum(Fails(failure)(w * 2.0)[0], keepdims=0)
            for call in (sgd, lambda x: list(autograd.backward(x))):
                with nothing_is_ignored(self), self.assertRaises(kind) as got:
                    call(loss)
                self.assertIs(got.exception, failure)
        self.assertEqual(sgd.step_counter.item(), 0)
        sgd(autograd.reduce_sum(w * 2.0, keepdims=0))
        self.assertEqual(sgd.step_counter.item(), 1)
        np.testing.assert_array_equal(w, np.zeros((2, 3)))

    def test_an_operators_backward_may_call_another(self):
        """A walk back in the middle of one."""
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)

        class Cubed(autograd.Operator):
            def forward(self, x):
                self.x = x
                return (tensor.from_raw_tensor(x) ** 3).data

            def backward(self, dy):
                x = tensor.Tensor(data=self.x)
                loss = autograd.reduce_sum(x * x * x, keepdims=0)
                return (
                    autograd.grad(loss, [x])[0] * tensor.Tensor(data=dy)
                ).data

        w = tensor.from_numpy(np.float32([1, -2, 3]))
        w.stores_grad = True
        loss = autograd.reduce_sum(Cubed()(w * 2.0)[0] * w, keepdims=0)
        (pair,) = autograd.backward(loss)
        # (2 w)^3 w
        np.testing.assert_allclose(pair[1], 32 * w.numpy() ** 3, rtol=1e-6)

    def test_ctrl_c_goes_before_what_only_failed(self):
        m = made(Custom)
        m.backward = [ValueError("backward")]
        m.behind = [KeyboardInterrupt()]
        self.fails(m, m.behind[0])

    def test_a_function_that_is_left_before_its_first_line(self):
        """As by RecursionError: the wrapper itself never runs."""
        x, y = samples()
        m = made()
        m(x, y)
        before = m.digest()

        def deep(left):
            if left:
                return deep(left - 1)
            return m(x, y)

        # From some depth on it is this wrapper for which there is no room.
        limit = sys.getrecursionlimit()
        failures = set()
        with contextlib.redirect_stderr(io.StringIO()):
            for depth in range(limit - 200, limit):
                try:
                    deep(depth)
                except Exception as error:
                    failures.add(type(error))
        self.assertIn(RecursionError, failures)
        self.assertEqual(m.optimizer._step, m._engine_made.step())
        if m.optimizer._step == 1:
            self.assertEqual(m.digest(), before)
        other = made()
        for _ in range(m.optimizer._step + 1):
            other(x, y)
        m(x, y)
        self.assertEqual(m.digest(), other.digest())

    def test_what_was_not_written_is_a_failure(self):
        def gone(_self, _arguments, _out_status):
            raise KeyboardInterrupt

        callback = _callback.Callback(lambda arguments: None)
        callback.run = type(callback.run)(gone)
        callback.struct.run = address_of(callback.run)
        with mock.patch("sys.unraisablehook"):
            with self.assertRaisesRegex(choir.Error, "was left before its end"):
                _callback.finish(
                    lib.text_writer_callback(callback.address, b"x", 1)
                )

    def test_a_failures_tensors_go_with_it(self):
        """Without the garbage collector, as what a step holds may fill memory."""
        kept = []

        class FailsAnew(Fails):
            def backward(self, dy):
                raise self.failure()

        class Keeps(Net):
            place = kind = None

            def train_one_batch(self, x, y):
                big = x * 3.0
                kept.append(weakref.ref(big))
                out = self.forward(x)
                if self.place == "backward":
                    out = FailsAnew(self.kind)(out)[0]
                loss = autograd.softmax_cross_entropy(out, y)
                if self.place == "before":
                    raise self.kind
                self.optimizer(loss)
                if self.place == "behind":
                    raise self.kind
                return out, loss

        def wrong_shapes():
            big = tensor.ones((5,))
            kept.append(weakref.ref(big))
            big + tensor.ones((3,))

        m = made(Keeps)
        x, y = samples()
        m(x, y)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

        def fails(call, failure):
            try:
                call()
            except failure:
                pass
            else:
                self.fail(f"no {failure}")
            self.assertEqual([ref() for ref in kept], [None] * len(kept))
            kept.clear()

        for m.place in ("before", "backward", "behind"):
            for m.kind in (ValueError, KeyboardInterrupt):
                fails(lambda: m(x, y), m.kind)
        m.place = None
        fails(wrong_shapes, ValueError)
        y.copy_from_numpy(y.numpy() + 7)
        fails(lambda: m(x, y), IndexError)

    def test_a_table_of_times(self):
        dev = device.Device("cpu", -1)
        dev.SetVerbosity(2)
        with mock.patch("ctypes.string_at", side_effect=Speechless):
            with self.assertRaises(Speechless):
                dev.PrintTimeProfiling()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            dev.PrintTimeProfiling()
        self.assertIn("Time Profiling:", said.getvalue())
        dev.SetVerbosity(0)

    def test_adapters_are_the_librarys(self):
        for name in ("custom_op", "text_writer"):
            self.assertNotEqual(address_of(getattr(lib, f"{name}_callback")), 0)
        np.testing.assert_equal(lib.model_def_callbacks.name, b"callbacks")


if __name__ == "__main__":
    unittest.main()
