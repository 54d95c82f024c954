# SPDX-License-Identifier: Apache-2.0
"""Sections that neither a signal's handler nor another thread may tear.

Python runs signal handlers between two bytecodes of the main thread, wherever it
is, and they may raise: by default Ctrl-C is a KeyboardInterrupt. A training step
changes things in Python and in the library that belong together, so handlers
wait until it is done:

    with lock, deferred():
        ...                        # whole, or not begun
        delivered(function)        # a user's, which may be left anywhere
        ...

`lock` is held by the one thread that computes. The library's streams, and what
a graph records of them, are for one thread at a time (core/base.h).
"""

from __future__ import annotations

import _signal
import os
import signal
import threading
from _thread import get_ident, interrupt_main
from collections import deque
from functools import partial
from itertools import chain
from operator import call

lock = threading.RLock()
# A child that was forked while another thread computed must not wait for that
# thread, which it does not have.
os.register_at_fork(
    before=lock.acquire,
    after_in_parent=lock.release,
    after_in_child=lock.release,
)


def locked(function):
    """A call of `function`, of C and without arguments, that holds the lock; once,
    and without bytecode, between which a handler could come."""
    return partial(deque, map(call, (lock.acquire, function, lock.release)), 0)


# Those that programs give handlers that raise: ends, timeouts, notices.
_SIGNALS = [
    int(number)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    )
]


_getsignal, _setsignal = _signal.getsignal, _signal.signal


class _State:
    """Of the main thread, the only one in which handlers run."""

    __slots__ = ("is_deferred", "is_entered", "noted", "main")

    def __init__(self) -> None:
        self.is_deferred = False
        self.is_entered = False
        self.noted: list[int] = []  # signals that came meanwhile
        self.main = threading.main_thread().ident


state = _State()
_handlers: dict = {}  # signal: the program's handler, in whose place _handle is


def _handle(number, frame):
    if state.is_deferred:
        state.noted.append(number)
        return None
    return _handlers[number](number, frame)


def handler_of(number):
    """The program's handler of a signal, as signal.getsignal gives it elsewhere."""
    handler = _getsignal(number)
    return _handlers[number] if handler is _handle else handler


def _after_fork() -> None:
    state.main = get_ident()


os.register_at_fork(after_in_child=_after_fork)


class deferred:
    """A with block in which no signal handler of Python's runs.

    Those that would have run do so at its end, where they may raise. Inside of
    another such block, and outside of the main thread, it does nothing.
    """

    __slots__ = ("_is_mine", "_is_inner")

    def __enter__(self) -> None:
        self._is_mine = not state.is_deferred and get_ident() == state.main
        if not self._is_mine:
            return
        # In a function that a section outside of this one delivers to.
        self._is_inner = state.is_entered
        if not self._is_inner:
            state.noted = []
        # Those of the program; beside them ours, in an inner section or where a
        # program gave a signal back to whom it took it from.
        for number in _SIGNALS:
            handler = _getsignal(number)
            if handler is not _handle and callable(handler):
                _handlers[number] = handler
                # Until the flag is set it does what the program's does.
                _setsignal(number, _handle)
        state.is_entered = True
        state.is_deferred = True

    def __exit__(self, *exc) -> None:
        if not self._is_mine:
            return
        if self._is_inner:
            _deliver()
            return
        # Not what the program set meanwhile.
        ours = [n for n in _handlers if _getsignal(n) is _handle]
        calls = chain(
            map(_setsignal, ours, map(_handlers.get, ours)),
            map(interrupt_main, state.noted),
        )
        state.is_entered = state.is_deferred = False
        # One call of a C function: handlers run behind it, the program's own,
        # one after the other.
        deque(calls, 0)


def _deliver() -> None:
    noted, state.noted = state.noted, []
    state.is_deferred = False
    if noted:
        deque(map(interrupt_main, noted), 0)


def delivered(function, *args):
    """Calls a user's function from a section: in it handlers run, also those that
    waited until now."""
    is_mine = state.is_deferred and get_ident() == state.main
    try:
        if is_mine:
            _deliver()
        return function(*args)
    finally:
        # The interpreter lets no handler run between the function's end and
        # here: it does so behind calls, at a function's start and when it
        # jumps back.
        if is_mine:
            state.is_deferred = True
