# SPDX-License-Identifier: Apache-2.0
"""An agent (host_agent.py) on a host, reached through ssh, or here without.

When ssh fails, the sentence says which of its many ways it was and the cure.
"""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time

import host_agent
import host_facts
import host_links
import process_guard
import run_processes

# Tells how the agent ended, whatever the login shell is.
_REMOTE = (
    'exec sh -c \'python3 -c "$1"; status=$?; printf "%%s\\\\n" '
    '"$2$status}"; exit $status\' sh %s %s'
)
# One line, as some login shells end a quoted text there.
_BOOTSTRAP = (
    "import json,sys,types;"
    "[exec(compile(text,name,'exec'),"
    "sys.modules.setdefault(name,types.ModuleType(name)).__dict__)"
    " for name,text in json.loads(sys.stdin.buffer.read(%d).decode())];"
    "sys.modules['host_agent'].main(sys.stdin.buffer)"
)


_running = set()  # of all sessions
_lock = threading.Lock()  # held while one starts


def _agent():
    """What the bootstrap reads: names and texts of the agent's modules, each behind
    those that it imports."""
    texts = []
    for module in (
        process_guard,
        host_facts,
        host_links,
        run_processes,
        host_agent,
    ):
        with open(module.__file__, encoding="utf-8") as file:
            texts.append((module.__name__, file.read()))
    return json.dumps(texts).encode()


def own_children():
    """Ids of the processes that sessions have here."""
    return [process.pid for process in list(_running)]


def kill_all():
    """Kills the sessions' processes without waiting for their end; agents that
    watch a run clean up behind them. Keeps the lock, so that no session starts any
    more: the caller ends the process."""
    _lock.acquire()
    for process in list(_running):
        process.kill()


class HostError(Exception):
    """One host cannot take part; the text is the sentence, with the cure."""


class Settings:
    """How ssh is to reach the hosts: a configuration file that mpirun's ssh
    reads too. The user's own settings come after it."""

    def __init__(self, folder, hosts, port=None, identity=None):
        self.port = port
        self.identity = identity
        self.path = os.path.join(folder, "ssh_config")
        self.hosts = list(hosts)
        self._write()

    def add(self, host):
        """One more host, or another entry of a host."""
        self.hosts = [h for h in self.hosts if h.name != host.name] + [host]
        self._write()

    def _write(self):
        port, identity = self.port, self.identity
        lines = []
        for host in self.hosts:
            lines.append("Host " + host.alias)
            if host.alias != host.name:
                lines.append("HostName " + host.name)
            if host.user:
                lines.append("User " + host.user)
        lines.append("Host *")
        if port:
            lines.append("Port %d" % port)
        if identity:
            lines.append('IdentityFile "%s"' % os.path.abspath(identity))
            lines.append("IdentitiesOnly yes")
        lines += [
            # Nobody is there to type a password.
            "BatchMode yes",
            "ServerAliveInterval 5",
            "ServerAliveCountMax 3",
            "Include ~/.ssh/config",
            "Include /etc/ssh/ssh_config",
        ]
        # ssh may read it at the same time.
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(self.path + ".new", self.path)

    def endpoint(self, host):
        """(host name or address, port, user) that ssh would use."""
        try:
            done = subprocess.run(
                ["ssh", "-F", self.path, "-G", host.alias],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
            )
        except FileNotFoundError:
            raise HostError(
                "%s: there is no ssh here to reach it with; install it "
                "(Debian: openssh-client)" % host.name
            ) from None
        if done.returncode:
            raise HostError(
                "%s: ssh does not accept its configuration: %s"
                % (host.name, done.stderr.strip())
            )
        found = dict(
            line.split(" ", 1)
            for line in done.stdout.splitlines()
            if " " in line
        )
        return found["hostname"], int(found["port"]), found["user"]


def _explain(session, debug_log, timed_out):
    """Why ssh did not bring an agent to life, by what `ssh -v` said."""
    log = "".join(
        line
        for line in debug_log.splitlines(True)
        if not line.startswith("debug1:")
    )
    is_connected = "Connection established" in debug_log
    # ssh gives up by itself when its peer is silent (ServerAliveInterval).
    timed_out = timed_out or (is_connected and " timed out" in log)
    name, (address, port, user) = session.name, session.endpoint
    at = "%s port %d" % (address, port)
    target = "%s@%s" % (user, address)
    by_hand = "ssh -p %d %s" % (port, target)
    if "Could not resolve hostname" in log:
        return (
            f"{name}: no host of the name {address} is known here; give its "
            f"address, or add a line '<address> {address}' to /etc/hosts"
        )
    if "Connection refused" in log:
        return (
            f"{name}: ssh was refused at {at}: no sshd listens there; start "
            "it on that host (Debian: apt-get install openssh-server), or "
            "give its port with -p"
        )
    if "No route to host" in log or "Network is unreachable" in log:
        return (
            f"{name}: there is no way to {address}: the host is off, its cable "
            "is out, or it is in another network; compare `ip -brief address` "
            "on both hosts"
        )
    if not is_connected and (timed_out or "Connection timed out" in log):
        return (
            f"{name}: no answer from {at}: the host is off, or a firewall "
            "drops the packets; look at the host, allow TCP port "
            f"{port} in its firewall, or give another port with -p"
        )
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in log:
        return (
            f"{name}: the host key of {at} is not the one that is known here: "
            "the host was installed anew, or it is another one; if you know "
            f"why, forget the old key: ssh-keygen -R '[{address}]:{port}' "
            f"(for port 22: -R {address})"
        )
    if "Host key verification failed" in log:
        return (
            f"{name}: the host key of {at} is not known here; connect once by "
            f"hand and compare it: {by_hand}"
        )
    if "Permission denied" in log or "Too many authentication" in log:
        return (
            f"{name}: ssh to {target} port {port} was denied: the host does "
            "not know your key; give it: ssh-copy-id "
            f"-p {port} {target}, or name another key with -i"
        )
    if timed_out and "Authenticated to" not in debug_log:
        if "Remote protocol version" not in debug_log:
            return (
                f"{name}: {at} accepts connections, but its sshd says "
                "nothing: the host is frozen or overloaded, or another "
                "program listens there; look at the host"
            )
        return (
            f"{name}: sshd at {at} answers, but the exchange of keys stalls: "
            "small packets pass and large ones are lost (MTU); try a smaller "
            "one on both hosts: ip link set dev <interface> mtu 1200"
        )
    if timed_out:
        return (
            f"{name}: logged in as {user}, but python3 did not start in time; "
            "look at the host, or give more time with --start-timeout"
        )
    if "Connection closed by" in log or "Connection reset by" in log:
        return (
            f"{name}: {at} closed the connection before the login: its sshd "
            "refuses this host (hosts.deny, MaxStartups), or what listens "
            f"there is no sshd; try: {by_hand}"
        )
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no word"
    return f"{name}: ssh to {at} failed: {last}; try: {by_hand}"


class Session:
    """A running agent. `name` is the host as the user called it, `info` what
    the agent said first, `events` a queue of (session, event) while a run is
    watched; the event is None when the connection has ended."""

    def __init__(self, host, settings, limit):
        self.host = host
        self.name = host.name if host else "this host"
        self.is_local = settings is None
        self.endpoint = ("localhost", 0, "")
        self.events = None
        self.info = None
        self.heard = time.monotonic()
        self._handshake = queue.Queue()
        self._answers = {}  # id of a request: queue
        self._said = {}  # id: what is called with its events
        # Called with what ranks print: {"rank":, "stream":, "text":}.
        self.on_output = None
        self.is_over = False  # the connection has ended
        self._agent_status = None  # of a remote agent, as its shell has it
        self._log = []
        self._next_id = 0
        self._lock = threading.Lock()
        text = _agent()
        if self.is_local:
            command = [sys.executable, "-c", _BOOTSTRAP % len(text)]
        else:
            self.endpoint = settings.endpoint(host)
            remote = _REMOTE % (
                shlex.quote(_BOOTSTRAP % len(text)),
                shlex.quote(
                    host_agent.MARK + '{"event": "agent over", "status": '
                ),
            )
            # -v: its stages tell causes apart that its errors do not.
            command = ["ssh", "-v", "-F", settings.path, "-T", host.alias]
            command.append(remote)
        with _lock:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C is choirrun's to handle.
                start_new_session=True,
            )
            _running.add(self._process)
        readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._read_answers, self._read_log)
        ]
        for reader in readers:
            reader.start()
        self._log_reader = readers[1]
        self._send(text)
        self._wait_handshake(limit)

    def _send(self, data):
        with self._lock:
            try:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            except (OSError, ValueError):  # it ended, or was closed here
                pass  # its end is noticed by whoever reads

    def _read_answers(self):
        mark = host_agent.MARK.encode()
        for line in self._process.stdout:
            self.heard = time.monotonic()
            if not line.startswith(mark):
                continue
            try:
                message = json.loads(line[len(mark) :].decode())
                is_message = isinstance(message, dict)
            except ValueError:
                is_message = False
            if not is_message:
                self._log.append("%s: no answer of an agent's" % line[:80])
                break
            self._take(message)
        with self._lock:
            self.is_over = True
            waiting = list(self._answers.values())
        for one in [self._handshake, *waiting]:
            one.put(None)
        if self.events:
            self.events.put((self, None))

    def _take(self, message):
        event = message.get("event")
        if event == "handshake":
            self._handshake.put(message)
        elif event == "agent over":
            self._agent_status = message["status"]
        elif event == "said":
            said = self._said.get(message["id"])
            if said:
                said(message["text"])
        elif event == "output":
            self.on_output(message)
        elif event and self.events:
            self.events.put((self, message))
        elif message.get("answer") in self._answers:
            self._answers[message["answer"]].put(message)

    def _read_log(self):
        for line in self._process.stderr:
            self._log.append(line.decode(errors="replace"))
            del self._log[:-200]

    def _wait_handshake(self, limit):
        timed_out = False
        try:
            self.info = self._handshake.get(timeout=limit)
            if self.info:
                return
            self._process.wait(timeout=5)
        except (queue.Empty, subprocess.TimeoutExpired):
            timed_out = True
        self.close()
        self._log_reader.join(5)
        log = "".join(self._log)
        status = self._process.returncode
        if status in (126, 127) and not timed_out:
            raise HostError(
                f"{self.name}: there is no python3, which choirrun needs on "
                "every host; install it (Debian: apt-get install python3)"
            )
        raise HostError(_explain(self, log, timed_out))

    def request(self, op, limit=60, said=None, **arguments):
        """The agent's answer; HostError when it has none, or could not do it.
        `said` is called with lines that come before it."""
        answers = queue.Queue()
        with self._lock:
            self._next_id += 1
            number = self._next_id
            self._answers[number] = answers
            self._said[number] = said
            if self.is_over:
                answers.put(None)
        message = dict(arguments, id=number, op=op)
        self._send(json.dumps(message).encode() + b"\n")
        try:
            answer = answers.get(timeout=limit)
        except queue.Empty:
            raise HostError(
                "%s: no answer to '%s' within %g s: the host is frozen, "
                "overloaded or cut off" % (self.name, op, limit)
            ) from None
        finally:
            with self._lock:
                del self._answers[number], self._said[number]
        if answer is None:
            raise HostError(
                "%s: the connection ended in '%s': %s"
                % (self.name, op, "".join(self._log[-1:]).strip() or "no word")
            )
        if "failure" in answer:
            raise HostError(
                "%s: '%s' failed there: %s" % (self.name, op, answer["failure"])
            )
        return answer

    def how_it_ended(self):
        """(what happened to the agent, or to the way to it; the signal that ended
        it, or 0), when the connection has ended."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "the agent on host %s is silent" % self.info["host"], 0
        agent = "choirrun's agent on host %s (pid %d)" % (
            self.info["host"],
            self.info["pid"],
        )
        if self._agent_status is not None:  # as a shell has it
            status = self._agent_status
            status = 128 - status if status > 128 else status
        elif not self.is_local:
            agent = "the ssh connection to %s (pid %d on this host)" % (
                self.name,
                self._process.pid,
            )
            if status >= 0:
                why = "".join(self._log[-1:]).strip() or "status %d" % status
                return "%s broke: %s" % (agent, why), 0
        if status < 0:
            text = "%s was killed by signal %d (%s)"
            return text % (agent, -status, signal.strsignal(-status)), -status
        return "%s ended with status %d" % (agent, status), 0

    def watch(self, run, silence, events):
        """From now on what the agent tells goes to the queue `events`."""
        self.events = events
        self.request("watch", run=run, silence=silence)

    def beat(self):
        self._send(b'{"op": "beat", "id": 0}\n')

    def signal_run(self, number):
        """To all that the agent has started."""
        message = {"op": "signal", "id": 0, "number": int(number)}
        self._send(json.dumps(message).encode() + b"\n")

    def end_run(self, run, ranks_only=False):
        """Asks for the end of the run's processes there, or of ranks and what they
        started; does not wait."""
        message = {"op": "end", "id": 0, "run": run, "ranks_only": ranks_only}
        self._send(json.dumps(message).encode() + b"\n")

    def close(self):
        """Ends the connection; an agent that watches cleans up behind it."""
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=0.3 if self.info else 0)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        _running.discard(self._process)
