# SPDX-License-Identifier: Apache-2.0
"""What a rank says when mpiexec ends it.

When a rank dies Open MPI sends SIGTERM to the others and SIGKILL a second later.
A handler in Python runs when the library's call returns, which may wait for the
dead rank. So a thread waits for the signal too: the interpreter's own handler, in
C, writes the signal's number into a pipe that the thread reads.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Callable

from choir._sections import handler_of


_activity: Callable[[], str] = str
_is_ending = threading.Lock()  # held by the thread that ends the process


def _handler(_number, _frame) -> None:
    _end()


def _end() -> None:
    """Says what this rank is doing, and ends the process."""
    if not _is_ending.acquire(blocking=False):
        return
    try:
        rank = os.environ["OMPI_COMM_WORLD_RANK"]
        doing = _activity()
        text = (
            f"choir: rank {rank} (host {socket.gethostname()}, pid {os.getpid()}) "
            "was ended by signal 15 (Terminated)"
            + (f" in {doing}\n" if doing else "\n")
        )
        os.write(2, text.encode())
    finally:
        # exit 143: of a rank under mpiexec: SIGTERM ended it.
        os._exit(128 + signal.SIGTERM)


def watch(activity: Callable[[], str]) -> None:
    """From now on a rank under mpiexec says `activity()` when SIGTERM comes, and
    ends. Nothing elsewhere, in other threads than the main one, and where the
    program has a handler or a wakeup descriptor of its own. One that takes the
    wakeup descriptor later (asyncio) is ended when the library's call returns.
    """
    global _activity
    if (
        "OMPI_COMM_WORLD_RANK" not in os.environ
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return
    _activity = activity
    signal.signal(signal.SIGTERM, _handler)

    def wait() -> None:
        while numbers := os.read(reader, 16):
            # A program may have set a handler of its own since.
            if (
                signal.SIGTERM in numbers
                and handler_of(signal.SIGTERM) is _handler
            ):
                _end()

    def after_fork() -> None:
        # The pipe is the parent's, and so is the thread.
        if handler_of(signal.SIGTERM) is _handler:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=after_fork)
    threading.Thread(target=wait, daemon=True).start()
