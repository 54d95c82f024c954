# SPDX-License-Identifier: Apache-2.0
"""The words of a rank that mpiexec ends.

When a rank dies Open MPI sends SIGTERM to the others and SIGKILL a second later.
A handler in Python would run when the library's call returns, which waits for the
dead rank; so a thread is told by the interpreter's own handler, through a pipe.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Callable

from choir._sections import handler_of


def _handler(_number, _frame) -> None:
    """Marks the signal as watched; the thread does the rest."""


def _own_name() -> str:
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    return f"rank {rank} (host {socket.gethostname()}, pid {os.getpid()})"


def watch(activity: Callable[[], str]) -> None:
    """From now on a rank under mpiexec says `activity()` when SIGTERM comes, and
    ends. Nothing elsewhere, in other threads than the main one, and where the
    program has a handler or a wakeup descriptor of its own."""
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
    signal.signal(signal.SIGTERM, _handler)

    def tell() -> None:
        while numbers := os.read(reader, 16):
            # A program may have set a handler of its own since.
            is_watched = handler_of(signal.SIGTERM) is _handler
            if signal.SIGTERM not in numbers or not is_watched:
                continue
            doing = activity()
            doing = f" in {doing}" if doing else ""
            text = (
                f"choir: {_own_name()} was ended by signal 15 (Terminated)"
                f"{doing}\n"
            )
            os.write(2, text.encode())
            os._exit(128 + signal.SIGTERM)

    def after_fork() -> None:
        # The pipe is the parent's, and so is the thread.
        if handler_of(signal.SIGTERM) is _handler:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=after_fork)
    threading.Thread(target=tell, daemon=True).start()
