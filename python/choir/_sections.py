# SPDX-License-Identifier: Apache-2.0
"""Sections of code in which no signal handler runs and no other thread computes.

Python runs signal handlers between two bytecodes of the main thread, wherever it
is, and they may raise: by default Ctrl-C is a KeyboardInterrupt. A training step
changes things in Python and in the library that belong together, so handlers
wait until it is done:

    with lock, deferred():
        ...                        # whole, or not begun
        with_handlers(function)    # a user's, which may be left anywhere
        ...

`lock` is held by the one thread that computes. The library's streams, and what
a graph records of them, are for one thread at a time (core/base.h).
"""

from __future__ import annotations

import _signal
import atexit
import os
import signal
import threading
from _thread import get_ident, interrupt_main
from collections import deque
from functools import partial
from itertools import chain
from operator import call

lock = threading.RLock()
# A child lacks the thread that computes when another one forks: it would find the
# library in the middle of a step, and locks that nobody gives back. So a fork waits
# for the step's end.
os.register_at_fork(
    before=lock.acquire,
    after_in_parent=lock.release,
    after_in_child=lock.release,
)
# The interpreter ends daemon threads wherever they are, and runs finalizers after
# that, which take the lock. So the main thread waits for the step of such a thread,
# and keeps the lock.
atexit.register(lock.acquire)


def locked(function):
    """A call of `function`, of C and without arguments, that holds the lock; once,
    and without bytecode, between which a handler could come."""
    return partial(deque, map(call, (lock.acquire, function, lock.release)), 0)


# The handlers of all are looked up when a section is entered. So none of the
# real-time ones, which would cost as much again, and none that stands for a fault of
# the program, which does not wait, or cannot have a handler.
_FAULTS = {
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGKILL,
    signal.SIGSTOP,
}
_SIGNALS = sorted(
    int(number)
    for number in signal.valid_signals() - _FAULTS
    if number < signal.SIGRTMIN
)

_getsignal, _setsignal = _signal.getsignal, _signal.signal


class _State:
    """The state of the main thread: Python runs handlers in no other."""

    __slots__ = ("is_deferred", "is_entered", "pending", "handlers", "main")

    def __init__(self) -> None:
        self.is_deferred = False
        self.is_entered = False
        self.pending: list[int] = []  # signals that came meanwhile
        # Of the program, by signal, in whose place _handle is or was.
        self.handlers: dict = {}
        self.main = threading.main_thread().ident


state = _State()


def _handle(number, frame):
    if state.is_deferred:
        state.pending.append(number)
        return None
    return state.handlers[number](number, frame)


def handler_of(number):
    """The program's handler of a signal, as signal.getsignal gives it elsewhere."""
    handler = _getsignal(number)
    return state.handlers[number] if handler is _handle else handler


def _after_fork() -> None:
    state.pending.clear()  # the parent's
    if state.main == get_ident():
        return
    # Another thread forked: a section that the main thread was in has no end here.
    state.main = get_ident()
    state.is_deferred = state.is_entered = False
    for number, handler in state.handlers.items():
        if _getsignal(number) is _handle:
            _setsignal(number, handler)


os.register_at_fork(after_in_child=_after_fork)


class deferred:
    """A with block in which no signal handler of Python's runs.

    Those that would have run do so at its end, where they may raise. Inside of
    another such block, and outside of the main thread, it does nothing.
    """

    __slots__ = ("_is_mine", "_is_inner", "_outer", "_own")

    def __enter__(self) -> None:
        self._is_mine = not state.is_deferred and get_ident() == state.main
        if not self._is_mine:
            return
        # Inner: entered by a function that with_handlers calls for another section.
        # Where _handle stands for that one it stays; this one replaces, and puts
        # back, only the handlers that the function has set.
        self._is_inner = state.is_entered
        self._outer = state.handlers if self._is_inner else {}
        self._own = own = {}
        for number in _SIGNALS:
            handler = _getsignal(number)
            if callable(handler):
                if handler is _handle:
                    if number in self._outer:
                        continue
                    # An interrupt of this function, or the program, left it there.
                    handler = state.handlers[number]
                own[number] = handler
        # Until the flag is set it does what the program's does.
        state.handlers = {**state.handlers, **own}
        for number in own:
            _setsignal(number, _handle)
        state.is_entered = state.is_deferred = True

    def __exit__(self, *exc) -> None:
        if not self._is_mine:
            return
        # Not what the program set meanwhile.
        own = [n for n in self._own if _getsignal(n) is _handle]
        state.is_entered = self._is_inner
        if self._is_inner:
            state.handlers = {**state.handlers, **self._outer}
        # Calls of C functions, made by one: no handler runs in between, but for one
        # that is back already, which may run, and raise, as the next is put back.
        calls = chain(
            map(_setsignal, own, map(self._own.get, own)),
            map(setattr, [state], ["is_deferred"], [False]),
            _deliveries(),
        )
        try:
            deque(calls, 0)
        finally:
            state.is_deferred = False
            deque(calls, 0)  # what that one left of them


def _deliveries():
    """Calls that hand the pending signals to the interpreter, whose handlers run
    behind them, and empty the list."""
    return chain(
        map(interrupt_main, state.pending), map(call, [state.pending.clear])
    )


def with_handlers(function, *args):
    """Calls a user's function from a section; handlers run in it, first those of
    the pending signals."""
    is_mine = state.is_deferred and get_ident() == state.main
    try:
        if is_mine:
            state.is_deferred = False
            if state.pending:
                deque(_deliveries(), 0)
        return function(*args)
    finally:
        # The interpreter lets no handler run between the function's end and
        # here: it does so behind calls, at a function's start and when it
        # jumps back.
        if is_mine:
            state.is_deferred = True
