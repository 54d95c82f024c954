# SPDX-License-Identifier: Apache-2.0
"""What choirrun does on each host. Sent to that host's python3 through ssh, so
that nothing has to be installed there for it to tell what is missing: only the
standard library, and no words that Python 3.6 does not know.

Requests come in as lines of JSON, answers go out as lines of JSON behind MARK;
whatever a login shell prints besides is skipped. After `watch` the agent beats
once a second and ends the run's processes here when choirrun is gone or silent. Of an
elastic run (`elastic`) it lets them go on when choirrun is gone, until they end.

What runs here for a run is started by a guard (process_guard.py), a small process
beside the agent, so that nothing of it stays whoever is killed. What the agent tells
of its host is in host_facts.py, how it measures links in host_links.py, how it finds
a run's processes in run_processes.py; all of them are sent with it.
"""

import json
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time

import host_facts
import host_links
import process_guard
import run_processes

MARK = "@choirrun "

_output_lock = threading.Lock()


def say(**answer):
    line = MARK + json.dumps(answer) + "\n"
    with _output_lock:
        try:
            sys.stdout.write(line)
            sys.stdout.flush()
        except OSError:
            # Whoever reads what ranks print goes on without choirrun.
            if not members:
                raise


class Watch(threading.Thread):
    """Tells when the run comes to this host, when ranks start, stop and end;
    beats; notices a silent choirrun."""

    INTERVAL = 0.25
    BEAT_SECONDS = 1.0
    SCAN_SECONDS = 1.0

    def __init__(self, run, silence):
        super().__init__(daemon=True)
        self.run_name = run
        self.silence = silence
        self.heard = time.monotonic()
        self.is_present = False
        self.ranks = {}  # rank: [pid, state]

    def run(self):
        beat = scan = 0
        while time.monotonic() - self.heard < self.silence:
            now = time.monotonic()
            if now - scan >= self.SCAN_SECONDS or not self.ranks:
                scan = now
                found = run_processes.of_run(self.run_name)
                if found and not self.is_present:
                    self.is_present = True
                    say(event="present")
                for rank, pid in run_processes.first_of_ranks(
                    found, self.run_name
                ).items():
                    if rank not in self.ranks:
                        self.add(rank, pid)
            for rank, entry in list(self.ranks.items()):
                state = run_processes.state_of(entry[0])
                word = {"": "gone", "T": "stopped"}.get(state, "started")
                if word != entry[1]:
                    entry[1] = word
                    ended = process_guard.wait_status(entry[0])
                    say(event=word, rank=rank, pid=entry[0], status=ended)
            if members:
                members.tell(self.ranks)
            if now - beat >= self.BEAT_SECONDS:
                beat = now
                say(event="beat")
            time.sleep(self.INTERVAL)
        # choirrun, or the way to it, is gone.
        end_what_is_left()
        os._exit(1)

    def add(self, rank, pid):
        """pid: None where only what it started is left."""
        word = "started" if pid else "gone"
        self.ranks[rank] = [pid or 0, word]
        say(event=word, rank=rank, pid=pid)


class Members:
    """Of an elastic run: the file in which its members on this host list all of
    them (CHOIR_MEMBERS), as lines ADDRESS:PORT PID."""

    def __init__(self):
        folder = tempfile.mkdtemp(prefix="choirrun-")
        guard.remove_at_end(folder)
        self.path = os.path.join(folder, "members")
        self.own = {entry["address"] for entry in host_facts.interfaces()}
        self.seen = None
        self.told = set()  # ranks

    def read(self):
        try:
            with open(self.path) as file:
                return file.read()
        except OSError:
            return ""

    def write(self, text):
        with open(self.path + ".new", "w") as file:
            file.write(text)
        os.replace(self.path + ".new", self.path)

    def tell(self, ranks):
        """Tells which ranks of this host have become members."""
        text = self.read()
        if text == self.seen:
            return
        all_found = True
        by_pid = {entry[0]: rank for rank, entry in list(ranks.items())}
        for line in text.splitlines():
            at, _, pid = line.partition(" ")
            address = at.rsplit(":", 1)[0].strip("[]")
            if address not in self.own or not pid.isdigit():
                continue
            # A rank may be a shell that started the program.
            pid = int(pid)
            while pid and pid not in by_pid:
                there = process_guard.stat(pid)
                pid = there[2] if there else 0
            all_found = all_found and pid > 0
            if pid and by_pid[pid] not in self.told:
                self.told.add(by_pid[pid])
                say(event="member", rank=by_pid[pid])
        # One may still be on its way into `ranks`, or has ended.
        self.seen = text if all_found else None


watch = None
members = None  # of an elastic run
guard = None
rendezvous = None  # the socket at which ranks meet
is_guarded = True
spawned = {}  # pid: id of the request
own_ranks = {}  # id of the request: the rank that it starts
settling = set()  # ids of requests


def on_guard_event(event):
    """Tells of what was started here for the run, and how it ended."""
    global is_guarded
    kind = event["event"]
    if kind == "started":
        spawned[event["pid"]] = event["id"]
        if event["id"] in own_ranks:
            watch.add(own_ranks[event["id"]], event["pid"])
    elif kind == "not started":
        say(answer=event["id"], failure=event["why"])
    elif kind == "ended":
        request = spawned.pop(event["pid"], None)
        if not event["was_signalled"]:
            say(**event)
        if request is not None:
            say(answer=request, status=event["status"])
    elif kind == "settled":
        answer_settled(event["id"])
    else:
        if event["status"]:
            say(event="guard over", status=event["status"])
        is_guarded = False
        for request in list(settling):
            answer_settled(request)


def answer_settled(request):
    """Once, whichever thread comes first."""
    try:
        settling.remove(request)
    except KeyError:
        return
    say(answer=request)


def op_settle(request):
    """The answer comes when all that was started here for the run has ended, and
    how has been told: the sockets of a process close before it has a status."""
    settling.add(request["id"])
    guard.settle(request["id"])
    if not is_guarded:
        answer_settled(request["id"])
    return None


def op_watch(request):
    global watch
    watch = Watch(request["run"], request["silence"])
    watch.start()
    return {}


def op_elastic(request):
    """The run is elastic; what a connection that was lost left of it here ends."""
    global members
    run_processes.end_all(watch.run_name)
    members = Members()
    return {}


def op_members(request):
    return {"text": members.read()}


def op_folders(request):
    """Makes folders that go with the run: {made: whether all of them are there
    and this user's alone}."""
    for path in request["paths"]:
        is_own = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            is_own = False
        except OSError:
            return {"made": False}
        there = os.lstat(path)
        is_private = there.st_uid == os.getuid() and not there.st_mode & 0o077
        if not is_private or not os.path.isdir(path):
            return {"made": False}
        guard.remove_at_end(path, is_own)
    return {"made": True}


def pass_on(reader, tell):
    """Calls `tell` with each line that comes from a pipe, and with None at its end."""

    def read():
        with open(reader, errors="surrogateescape", newline="\n") as lines:
            for line in lines:
                tell(line)
        tell(None)

    threading.Thread(target=read, daemon=True).start()


def op_spawn(request):
    """Runs a shell's command line; the answer comes at its end. What it says
    meanwhile comes as events."""
    reader, writer = os.pipe()
    command = ["sh", "-c", request["command"]]
    guard.start(request["id"], command, {}, writer, writer)
    os.close(writer)

    def tell(line):
        if line is not None:
            say(event="said", id=request["id"], text=line)

    pass_on(reader, tell)
    return None


def op_rendezvous(request):
    """Opens the port at which ranks meet, for the first one to inherit."""
    global rendezvous
    try:
        rendezvous = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        rendezvous.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        host_links.bind(rendezvous, "::", request["ports"])
    except OSError:  # a host without IPv6
        rendezvous = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        host_links.bind(rendezvous, "0.0.0.0", request["ports"])
    rendezvous.listen(socket.SOMAXCONN)
    return {"port": rendezvous.getsockname()[1]}


def op_rank(request):
    """Runs a rank; the answer comes at its end. What it prints comes as events,
    also behind that, as what it started may print, too; None is a stream's end.
    """
    pipes = [os.pipe(), os.pipe()]
    # In the home folder where the other is not there.
    enter = 'cd -- "$0" 2>/dev/null || cd; exec "$@"'
    command = ["sh", "-c", enter, request["folder"], *request["command"]]
    environment = request["environment"]
    if members:
        environment["CHOIR_MEMBERS"] = members.path
        if request.get("members"):
            members.write(request["members"])
    more = []
    if request["rank"] == 0:
        more = [rendezvous.fileno()]
        environment["CHOIR_RENDEZVOUS_FD"] = "3"
    writers = [writer for _, writer in pipes]
    own_ranks[request["id"]] = request["rank"]
    guard.start(request["id"], command, environment, *writers, *more)
    if request["rank"] == 0:
        rendezvous.close()
    for stream, (reader, writer) in enumerate(pipes, 1):
        os.close(writer)
        what = {"event": "output", "rank": request["rank"], "stream": stream}
        pass_on(reader, lambda line, what=what: say(text=line, **what))
    return None


def op_signal(request):
    guard.signal(request["number"])
    return None


def op_end(request):
    if request["ranks_only"]:
        guard.end_orphans()
    else:
        guard.end()
    run_processes.end_all(request["run"], request["ranks_only"])
    return None


def op_beat(_request):
    watch.heard = time.monotonic()
    return None


OPS = {
    "sources": host_facts.op_sources,
    "interfaces": lambda request: {"interfaces": host_facts.interfaces()},
    "program": host_facts.op_program,
    "data": host_facts.op_data,
    "build": host_facts.op_build,
    "listen": host_links.op_listen,
    "link": host_links.op_link,
    "watch": op_watch,
    "elastic": op_elastic,
    "members": op_members,
    "folders": op_folders,
    "settle": op_settle,
    "spawn": op_spawn,
    "rendezvous": op_rendezvous,
    "rank": op_rank,
    "signal": op_signal,
    "end": op_end,
    "beat": op_beat,
}


def handshake():
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    say(
        event="handshake",
        host=socket.gethostname(),
        pid=os.getpid(),
        boot=boot,
        # $USER: the user's name in what agents say. Not set: the user's number.
        user=os.environ.get("USER", str(os.getuid())),
        python=platform.python_version(),
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)),
    )


def go_on_alone():
    """Until what was started here has ended: choirrun is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    watch.silence = float("inf")
    while spawned and is_guarded:
        time.sleep(Watch.INTERVAL)


def end_what_is_left():
    """Of an elastic run only what this agent has started: there may be another agent
    by now, which choirrun has started when the connection to this one was lost.
    """
    if members:
        guard.end()
        guard.is_over.wait(10)
    else:
        run_processes.end_all(watch.run_name)


def main(lines):
    global guard
    guard = process_guard.Guard()
    guard.listen(on_guard_event)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handshake()
    try:
        for line in lines:
            request = json.loads(line.decode())
            try:
                answer = OPS[request["op"]](request)
            except Exception as error:  # pylint: disable=broad-except
                answer = {"failure": "%s: %s" % (type(error).__name__, error)}
            if answer is not None:
                say(answer=request["id"], **answer)
    except OSError:
        pass
    # choirrun closed the connection: by its end, or a part of it.
    if members:
        go_on_alone()
    elif watch:
        time.sleep(2)
    if watch:
        end_what_is_left()
