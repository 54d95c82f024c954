# SPDX-License-Identifier: Apache-2.0
"""A process that starts commands and ends them with all that they started.

choirrun has one, and each agent, with which this file is sent: see host_agent.py for
what it may use."""

import array
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
# Seconds between SIGTERM and SIGKILL, at the end of a run, for processes whose
# parents have ended.
ORPHAN_GRACE = 1.0
PASS_SECONDS = 0.05


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def stat(pid):
    """(name, state, parent) of a process; None: there is none."""
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    begin, end = text.index("("), text.rindex(")")
    state, parent = text[end + 2 :].split()[:2]
    return text[begin + 1 : end], state, int(parent)


def wait_status(pid):
    """Of a process that has ended and was not waited for, as os.waitpid gives it;
    None: there is none, or the system does not tell."""
    there = stat(pid)
    if not there or there[1] != "Z":
        return None
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def children_of(parent):
    """The ids of its children that have not ended."""
    found = []
    for name in os.listdir("/proc"):
        there = name.isdigit() and stat(int(name))
        if there and there[2] == parent and there[1] not in "ZX":
            found.append(int(name))
    return found


def _remove(folder, is_own, host):
    """Removes a folder. Where hosts share the file system it is not this one's
    own; then only what has this host's name in it is removed."""
    if is_own:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if ".%s." % host in name:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


class _Child:
    """The guard's own process: one thread, nothing shared with the parent but a
    socket."""

    def __init__(self, connection):
        self.connection = connection
        self.received = b""  # of a request that is not here whole
        self.fds = []  # of requests to come
        self.groups = set()  # ids of what it was asked to start
        self.folders = []
        self.grace = None  # of its children; None: they are not to end
        self.ends_orphans = False  # what has lost its parent ends all the same
        self.since = {}  # pid: when SIGTERM was sent
        self.ending_since = 0.0
        self.settling = []  # ids of requests

    def run(self, keeps_stdin):
        _prctl(PR_SET_NAME, ctypes.c_char_p(b"choir-guard"))
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.setpgid(0, 0)
        # A reader of the parent's output waits until all have closed it.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(1 if keeps_stdin else 0, 3):
            os.dup2(null, fd)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer)
        has_parent = True
        while True:
            has_children = self.reap()
            if not self.groups:
                self.settle()
            if self.grace is not None and not has_children:
                break
            is_ending = self.grace is not None or self.ends_orphans
            if is_ending:
                self.end_children()
            inputs = [reader] + [self.connection] * has_parent
            timeout = PASS_SECONDS if is_ending else None
            ready = select.select(inputs, [], [], timeout)[0]
            if reader in ready:
                os.read(reader, 1 << 12)
            if self.connection in ready and not self.take():
                # The parent has ended.
                has_parent = False
                self.end(0)
        for folder, is_own in self.folders:
            _remove(folder, is_own, socket.gethostname())

    def tell(self, **event):
        try:
            self.connection.sendall(json.dumps(event).encode() + b"\n")
        except OSError:
            pass

    def take(self):
        """Reads what there is of requests, and does those that are whole. False:
        the parent is gone."""
        try:
            # Close-on-exec: no command inherits another's descriptors.
            data, ancillary, _, _ = self.connection.recvmsg(
                1 << 16, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        if not data:
            return False
        fds = array.array("i")
        for _, kind, part in ancillary:
            if kind == socket.SCM_RIGHTS:
                fds.frombytes(part[: len(part) // fds.itemsize * fds.itemsize])
        self.fds += fds
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self.do(json.loads(line.decode()))
        return True

    def do(self, request):
        if request["op"] == "start":
            # They come with the first byte of their request.
            count = request["fd_count"]
            fds, self.fds = self.fds[:count], self.fds[count:]
            self.start(request, fds)
        elif request["op"] == "signal":
            for pid in self.groups:
                try:
                    os.killpg(pid, request["number"])
                except OSError:
                    pass
        elif request["op"] == "orphans":
            self.ends_orphans = True
            self.ending_since = time.monotonic()
        elif request["op"] == "settle":
            self.settling.append(request["id"])
        elif request["op"] == "folder":
            self.folders.append((request["path"], request["is_own"]))
        else:
            self.end(request["grace"])

    def start(self, request, fds):
        guard = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(event="not started", id=request["id"], why=str(error))
            for fd in fds:
                os.close(fd)
            return
        if pid == 0:
            try:
                _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard:
                    os._exit(127)
                os.setsid()
                for number, fd in enumerate(fds, 1):
                    os.dup2(fd, number)
                    os.set_inheritable(number, True)
                signal.set_wakeup_fd(-1)
                for name in ("INT", "TERM", "HUP", "CHLD", "PIPE"):
                    number = getattr(signal, "SIG" + name)
                    signal.signal(number, signal.SIG_DFL)
                os.environ.update(request["environment"])
                os.execvp(request["command"][0], request["command"])
            except OSError as error:
                os.write(2, ("%s\n" % error).encode())
            finally:
                os._exit(127)
        for fd in fds:
            os.close(fd)
        self.groups.add(pid)
        self.tell(event="started", pid=pid, id=request["id"])

    def reap(self):
        """False when there are no children any more."""
        while True:
            try:
                found = os.waitid(
                    os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT
                )
            except ChildProcessError:
                return False
            if found is None:
                return True
            there = stat(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            self.tell(
                event="ended",
                pid=found.si_pid,
                name=there[0] if there else "?",
                status=status,
                was_signalled=found.si_pid in self.since,
            )
            self.groups.discard(found.si_pid)
            self.since.pop(found.si_pid, None)

    def settle(self):
        """All that it was asked to start has ended, and was told of."""
        for number in self.settling:
            self.tell(event="settled", id=number)
        self.settling = []

    def end(self, grace):
        """Begins to end all. A later call can only shorten the time."""
        if self.grace is None:
            self.ending_since = time.monotonic()
            self.grace = grace
        self.grace = min(self.grace, grace)

    def end_children(self):
        now = time.monotonic()
        for pid in children_of(os.getpid()):
            grace = self.grace if pid in self.groups else ORPHAN_GRACE
            if grace is None:
                continue
            is_new = pid not in self.since
            since = self.since.setdefault(pid, now)
            number = signal.SIGKILL
            if now - since < grace and now - self.ending_since < 2 * grace:
                number = signal.SIGTERM if is_new else 0
            try:
                os.kill(pid, number)
                if is_new:
                    os.kill(pid, signal.SIGCONT)
            except OSError:
                pass


class Guard:
    """A process that starts commands and ends them with all that they started: by
    `end`, and when the process that made it is gone, however that happened. Both
    are child subreapers (PR_SET_CHILD_SUBREAPER), so a process that loses its
    parent becomes the guard's child, and this process's when the guard was killed;
    dist/guard.c does the same for the launchers in C.

    Make it before the first thread: it is a fork without exec."""

    def __init__(self, keeps_stdin=False, spare=tuple):
        """keeps_stdin: commands read this process's; spare: a function that gives
        the ids of this process's own children."""
        self.on_event = None
        self.is_over = threading.Event()
        self._spare = spare
        self._folders = []
        self._lock = threading.Lock()
        own, other = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            own.close()
            try:
                _Child(other).run(keeps_stdin)
                os._exit(0)
            except BaseException:  # pylint: disable=broad-except
                os._exit(1)
        other.close()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._connection = own

    def listen(self, on_event):
        """From now on `on_event` is called, by a thread, with a dictionary: its
        "event" is started, not started, ended, settled, or over."""
        self.on_event = on_event
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for line in self._connection.makefile("rb"):
                self.on_event(json.loads(line.decode()))
        except OSError:
            pass  # it was killed
        _, status = os.waitpid(self.pid, 0)
        if status:
            self._end_adopted()
            for folder, is_own in self._folders:
                _remove(folder, is_own, socket.gethostname())
        self.is_over.set()
        self.on_event({"event": "over", "status": status})

    def _end_adopted(self):
        """Kills the guard's children, which became this process's when the guard
        was killed, and what comes from them until there is none."""
        while True:
            own = set(self._spare())
            left = [p for p in children_of(os.getpid()) if p not in own]
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                except OSError:
                    pass

    def _ask(self, fds=(), **request):
        rights = []
        if fds:
            rights = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            ]
        line = json.dumps(request).encode() + b"\n"
        try:
            with self._lock:
                sent = self._connection.sendmsg([line], rights)
                self._connection.sendall(line[sent:])
        except OSError:
            pass  # the guard has ended, which _read tells

    def start(self, id, command, environment, output, error, *more):
        """Starts it in a session of its own, with these descriptors for its output,
        more from 3 on, and more environment. The events of its start have `id`.
        """
        self._ask(
            [output, error, *more],
            op="start",
            fd_count=2 + len(more),
            id=id,
            command=list(command),
            environment=environment,
        )

    def settle(self, id):
        """The event settled, which has `id`, comes when all that was started has
        ended, behind the events of that; none comes when the guard is over."""
        self._ask(op="settle", id=id)

    def signal(self, number):
        """To the process groups of all that was started."""
        self._ask(op="signal", number=int(number))

    def end_orphans(self):
        """From now on ends what loses its parent."""
        self._ask(op="orphans")

    def remove_at_end(self, path, is_own=True):
        """is_own: nobody else has it; else see _remove."""
        self._folders.append((path, is_own))
        self._ask(op="folder", path=path, is_own=is_own)

    def end(self, grace=0.0):
        """Ends all; returns at once. `is_over` tells when it is done."""
        self._ask(op="end", grace=grace)
