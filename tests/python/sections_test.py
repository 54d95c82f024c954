# SPDX-License-Identifier: Apache-2.0
"""When signal handlers run in a training step, and what threads have of their own.
Hundreds of both at random moments: storm_test.py."""

import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import numpy as np

from choir import StateError, _comm, _sections, autograd, device, opt
from choir import singa_wrap, tensor
from choir._calls import lib
from small_models import Net, made, samples

CPU = device.create_cpu_device()


class Noted(Exception):
    """What the handlers of these tests raise."""


class Signals(unittest.TestCase):
    def setUp(self):
        self.came = []
        for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1):
            before = signal.signal(number, self.handler)
            self.addCleanup(signal.signal, number, before)

    def handler(self, number, frame):
        self.came.append(signal.Signals(number).name)
        raise Noted

    def test_they_wait_for_the_end_of_a_section(self):
        calm = signal.signal(
            signal.SIGUSR1, lambda number, frame: self.came.append("SIGUSR1")
        )
        self.addCleanup(signal.signal, signal.SIGUSR1, calm)
        with self.assertRaises(Noted):
            with _sections.deferred():
                for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1):
                    os.kill(os.getpid(), number)
                self.assertEqual(self.came, [])
        for _ in range(100):  # one raised; the interpreter goes on to the other
            pass
        self.assertEqual(sorted(self.came), ["SIGINT", "SIGUSR1"])

    def test_they_run_in_a_users_function(self):
        def function(number):
            os.kill(os.getpid(), number)
            self.fail("a handler raises before")

        def section():
            with _sections.deferred():
                with self.assertRaises(Noted):
                    _sections.with_handlers(function, signal.SIGINT)
                self.assertEqual(self.came, ["SIGINT"])
                os.kill(os.getpid(), signal.SIGUSR1)
                # One that waits comes as soon as it may.
                with self.assertRaises(Noted):
                    _sections.with_handlers(
                        self.fail, "a handler raises before"
                    )
                self.assertEqual(self.came, ["SIGINT", "SIGUSR1"])
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGALRM)
                # Not here either: this section is outside of it.
                self.assertEqual(self.came, ["SIGINT", "SIGUSR1"])

        with self.assertRaises(Noted):
            section()
        self.assertEqual(self.came, ["SIGINT", "SIGUSR1", "SIGALRM"])

    def test_a_section_in_a_users_function(self):
        def function():
            with _sections.deferred():
                os.kill(os.getpid(), signal.SIGINT)
                self.assertEqual(self.came, [])
            self.fail("a handler raises before")

        with _sections.deferred():
            with self.assertRaises(Noted):
                _sections.with_handlers(function)
            os.kill(os.getpid(), signal.SIGINT)
            self.assertEqual(self.came, ["SIGINT"])
            self.came.clear()
            self.addCleanup(self.came.clear)
            with self.assertRaises(Noted):
                _sections.with_handlers(lambda: None)

    def test_a_handler_that_a_users_function_sets(self):
        """As a limit of time for a part of it."""

        def raises(number, frame):
            self.came.append("mine")
            raise Noted

        def function():
            before = signal.signal(signal.SIGUSR2, raises)
            try:
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGUSR2)
                    self.assertEqual(self.came, [])
            finally:
                signal.signal(signal.SIGUSR2, before)

        with _sections.deferred():
            with self.assertRaises(Noted):
                _sections.with_handlers(function)
        self.assertEqual(self.came, ["mine"])
        self.assertEqual(signal.getsignal(signal.SIGUSR2), signal.SIG_DFL)

    def test_a_handler_that_a_users_function_sets_for_a_while(self):
        """It is in place of the program's; that one is back when it has gone, also
        behind the section."""

        def passing(number, frame):
            self.came.append("passing")

        def function():
            before = signal.signal(signal.SIGUSR1, passing)
            with _sections.deferred():
                os.kill(os.getpid(), signal.SIGUSR1)
                self.assertEqual(self.came, [])
            self.assertEqual(self.came, ["passing"])
            self.assertIs(signal.getsignal(signal.SIGUSR1), passing)
            signal.signal(signal.SIGUSR1, before)
            with self.assertRaises(Noted):
                os.kill(os.getpid(), signal.SIGUSR1)
            with _sections.deferred():
                pass
            self.assertEqual(self.came, ["passing", "SIGUSR1"])

        with _sections.deferred():
            _sections.with_handlers(function)
        self.assertEqual(signal.getsignal(signal.SIGUSR1), self.handler)

    def test_signals_of_all_numbers(self):
        """But the real-time ones and those that stand for faults."""
        for number in (signal.SIGINT, signal.SIGPROF, signal.SIGWINCH):
            self.assertIn(number, _sections._SIGNALS)
        for number in _sections._SIGNALS:
            before = signal.signal(
                number, lambda number, frame: self.came.append(number)
            )
            try:
                with _sections.deferred():
                    os.kill(os.getpid(), number)
                    self.assertEqual(self.came, [])
                self.assertEqual(self.came, [number])
            finally:
                signal.signal(number, before)
            self.came.clear()

    def test_a_handler_that_raises_while_others_are_put_back(self):
        """It ends what puts them back, and nothing else: what waited runs."""
        put_back = _sections._setsignal
        raising = {signal.SIGINT}

        def setsignal(number, handler):
            put_back(number, handler)
            if number in raising and handler == self.handler:
                os.kill(os.getpid(), number)

        with mock.patch.object(_sections, "_setsignal", setsignal):
            with self.assertRaises(Noted):
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGALRM)
                    self.assertEqual(self.came, [])
            self.assertEqual(self.came, ["SIGINT", "SIGALRM"])
            self.came.clear()
            for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1):
                self.assertEqual(signal.getsignal(number), self.handler)
            # Two of them: what waited does so until the next section ends.
            raising.add(signal.SIGUSR1)
            with self.assertRaises(Noted):
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGALRM)
            self.assertEqual(self.came, ["SIGINT", "SIGUSR1"])
            self.came.clear()
            raising.clear()
            with self.assertRaises(Noted):
                with _sections.deferred():
                    self.assertEqual(self.came, [])
            self.assertEqual(self.came, ["SIGALRM"])
        for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1):
            self.assertEqual(signal.getsignal(number), self.handler)

    def test_a_thread_that_forks_while_the_main_one_is_in_a_section(self):
        """The child is in none, and its handlers are the program's."""
        statuses = []

        def in_child():
            assert signal.getsignal(signal.SIGUSR1) == self.handler
            assert self.came == [], self.came
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                return 2
            except Noted:
                pass
            try:
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGINT)
                    self.came.append("end")
                # In a thread's child Python 3.13 looks for signals in such calls
                # alone.
                os.kill(os.getpid(), 0)
            except Noted:
                pass
            return 0 if self.came == ["SIGUSR1", "end", "SIGINT"] else 3

        def run():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = in_child()
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
            statuses.append(os.waitstatus_to_exitcode(status))

        thread = threading.Thread(target=run)
        with self.assertRaises(Noted):
            with _sections.deferred():
                os.kill(os.getpid(), signal.SIGALRM)
                thread.start()
                thread.join()
        self.assertEqual(statuses, [0])
        self.assertEqual(self.came, ["SIGALRM"])

    def test_handlers_are_the_programs_before_and_after(self):
        def other(number, frame):
            self.came.append("other")

        with _sections.deferred():
            self.assertNotEqual(signal.getsignal(signal.SIGINT), self.handler)
        self.assertEqual(signal.getsignal(signal.SIGINT), self.handler)
        for handler in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGINT, handler)
            with _sections.deferred():
                self.assertEqual(signal.getsignal(signal.SIGINT), handler)
            self.assertEqual(signal.getsignal(signal.SIGINT), handler)
        # One that is set inside of a section stays.
        signal.signal(signal.SIGINT, self.handler)
        with _sections.deferred():
            ours = signal.signal(signal.SIGINT, other)
        self.assertIs(signal.getsignal(signal.SIGINT), other)
        # A program that puts back what it found in there: it does its work.
        signal.signal(signal.SIGINT, ours)
        with self.assertRaises(Noted):
            os.kill(os.getpid(), signal.SIGINT)
        with self.assertRaises(Noted):
            with _sections.deferred():
                os.kill(os.getpid(), signal.SIGINT)
                self.assertEqual(self.came, ["SIGINT"])
        self.assertEqual(self.came, ["SIGINT", "SIGINT"])
        self.assertEqual(signal.getsignal(signal.SIGINT), self.handler)

    def test_in_other_threads_nothing_changes(self):
        seen = []

        def run():
            with _sections.deferred():
                seen.append(signal.getsignal(signal.SIGINT))
                seen.append(_sections.with_handlers(lambda: 5))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        self.assertEqual(seen, [self.handler, 5])

    def test_a_step_that_waits_for_nobody(self):
        """A handler runs at once in train_one_batch, and an endless loop there can
        be left."""

        class Endless(Net):
            is_endless = False

            def train_one_batch(self, x, y):
                while self.is_endless:
                    pass
                return super().train_one_batch.__wrapped__(self, x, y)

        m = made(Endless)
        m(*samples())
        m.is_endless = True
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(Noted):
            m(*samples())
        self.assertEqual(m.optimizer.step_counter.item(), 1)
        m.is_endless = False
        m(*samples())
        other = made()
        for _ in range(2):
            other(*samples())
        self.assertEqual(m.digest(), other.digest())

    def test_a_schedule_that_does_not_end(self):
        """The program's code too: a handler runs in it at once."""

        class Endless(opt.DecayScheduler):
            is_endless = False

            def value(self, step):
                while self.is_endless:
                    pass
                return self.init_value

        schedule = Endless(0.1)
        m = made(optimizer=opt.SGD(lr=schedule))
        m(*samples())
        before = m.digest()
        schedule.is_endless = True
        for call in (
            lambda: m(*samples()),
            lambda: made(optimizer=opt.SGD(lr=schedule)),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(Noted):
                call()
        self.assertEqual(m.digest(), before)
        schedule.is_endless = False
        m(*samples())
        self.assertEqual(m.optimizer.step_counter.item(), 2)

    def test_what_a_call_makes_is_kept_when_a_handler_raises_then(self):
        """Else the next call makes another, and the first is lost."""

        def then_interrupted(function):
            def call(*arguments):
                result = function(*arguments)
                os.kill(os.getpid(), signal.SIGINT)
                return result

            return call

        sgd = opt.SGD(lr=0.1)
        dist = opt.DistOpt(sgd)
        for owner in (sgd, dist):
            owner.handle, owner._release = None, tuple
            own = then_interrupted(owner._own)
            with mock.patch.object(owner, "_own", own):
                with self.assertRaises(Noted):
                    owner._own_handle()
            self.assertIsNotNone(owner.handle)
            self.assertEqual(owner._own_handle(), owner.handle)

    def test_a_communicator_that_was_just_joined(self):
        """It ends with the process, as others wait for that."""
        size_of = lib.comm_local_size

        def interrupted(handle):
            os.kill(os.getpid(), signal.SIGINT)
            return size_of(handle)

        before = len(_comm._forgotten)
        with mock.patch.object(lib, "comm_local_size", interrupted):
            with self.assertRaises(Noted):
                singa_wrap.Communicator(0, 1, singa_wrap.NcclIdHolder())
        self.assertEqual(len(_comm._forgotten), before + 1)

    def test_the_error_of_a_step_is_behind_what_a_handler_raises(self):
        class Late(Net):
            def forward(self, x):
                with _sections.deferred():
                    os.kill(os.getpid(), signal.SIGINT)
                    raise ValueError("mine")

        x, _ = samples()
        with self.assertRaises(Noted) as got:
            Late().forward(x)
        self.assertIsInstance(got.exception.__context__, ValueError)


def in_thread(function):
    """What it gives in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


class Threads(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, autograd, "training", False)
        CPU.SetRandSeed(1)

    def test_each_has_its_training_mode(self):
        for mode in (True, False):
            autograd.training = mode
            self.assertIs(in_thread(lambda: autograd.training), mode)

            def change(mode=mode):
                autograd.training = not mode
                return autograd.training

            self.assertIs(in_thread(change), not mode)
            self.assertIs(autograd.training, mode)

    def test_each_can_have_its_random_numbers(self):
        def draw():
            return tensor.random((4,)).numpy()

        def seeded():
            CPU.SetRandSeed(1)
            return draw()

        first = draw()
        np.testing.assert_array_equal(in_thread(seeded), first)
        # The main thread's go on where they were.
        second = draw()
        self.assertFalse((first == second).any())
        CPU.SetRandSeed(1)
        draw()
        # A thread without a seed of its own takes from the same row.
        np.testing.assert_array_equal(in_thread(draw), second)

    def test_a_step_of_one_is_none_of_another(self):
        """A thread that computes waits for the step of another to end."""
        order, begun, other = [], threading.Event(), []

        class Slow(Net):
            def train_one_batch(self, x, y):
                begun.set()
                other[0].join(0.2)  # cannot end: it waits for this step
                order.append("step")
                return super().train_one_batch.__wrapped__(self, x, y)

        def run():
            begun.wait()
            tensor.ones((2,)) + 1.0
            order.append("other")

        for use_graph in (False, True):
            m = made(Slow, use_graph)
            for _ in range(2):
                begun.clear()
                order.clear()
                other[:] = [threading.Thread(target=run)]
                other[0].start()
                m(*samples())
                other[0].join()
                self.assertEqual(order, ["step", "other"])

    def test_a_block_without_gradients_may_be_shared(self):
        """One object, in two threads, or in itself."""
        block, w = autograd.no_grad(), tensor.ones((2,))
        w.stores_grad = w.requires_grad = True
        autograd.training = True
        with block:
            with block:
                self.assertIsNone((w * w).creator)
            self.assertFalse(autograd.training)
        self.assertTrue(autograd.training)

        entered, left = threading.Event(), threading.Event()
        seen = []

        def run():
            autograd.training = False
            with block:
                entered.set()
                left.wait()
            seen.append(autograd.training)

        thread = threading.Thread(target=run)
        with block:
            thread.start()
            entered.wait()
        self.assertTrue(autograd.training)
        left.set()
        thread.join()
        self.assertEqual(seen, [False])

    def test_a_daemon_thread_that_trains_when_the_program_ends(self):
        """The main thread waits for its step, and no finalizer for ever."""
        script = """if 1:
            import threading, time
            import small_models

            # What a module has is finalized at the interpreter's end.
            small_models.kept = small_models.made()
            small_models.kept(*small_models.samples())
            has_begun = threading.Event()

            class Slow(small_models.Net):
                def train_one_batch(self, x, y):
                    has_begun.set()
                    time.sleep(0.5)
                    return super().train_one_batch.__wrapped__(self, x, y)

            def run():
                m = small_models.made(Slow)
                while True:
                    m(*small_models.samples())

            threading.Thread(target=run, daemon=True).start()
            has_begun.wait()
        """
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ranks_are_processes(self):
        nccl_id = singa_wrap.NcclIdHolder()
        failures = []

        def join(rank):
            try:
                opt.DistOpt(opt.SGD(), nccl_id, rank, 2)
            except StateError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=join, args=(r,)) for r in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(failures), 2)
        self.assertIn("are threads of one process", failures[0])


if __name__ == "__main__":
    unittest.main()
