# SPDX-License-Identifier: Apache-2.0
"""A run under Open MPI's mpirun, watched by the agents of its hosts: output,
ends of all kinds, and the first cause when something breaks."""

import json
import os
import queue
import re
import secrets
import shlex
import signal
import socket
import sys
import threading
import time

import mpi_versions
import remote_shell
from host_session import HostError

# A host whose agent says nothing for so long is told of as silent.
SILENCE_SECONDS = 4
# An agent that hears nothing for so long ends the run's processes on its host.
AGENT_SILENCE_SECONDS = 15
BEAT_SECONDS = 2
# How long mpirun may take to end everything once a rank has failed; Open MPI
# gives ranks a second between SIGTERM and SIGKILL.
END_SECONDS = 6

# How long all ranks may be gone before mpirun is.
GONE_SECONDS = 5
# A host has this long to tell, after a good end, what else ended there.
SETTLE_SECONDS = 5

# Exported to all hosts, by first letters.
EXPORTED = ("CHOIR_", "OMP_", "NCCL_", "MKL_", "OPENBLAS_")
EXPORTED_NAMES = ("LD_LIBRARY_PATH", "PYTHONPATH")
# Those of one process or host.
NOT_EXPORTED = (
    "CHOIR_HOST",
    "CHOIR_RANK",
    "CHOIR_SIZE",
    "CHOIR_COMM_ID",
    "CHOIR_BOARD_FD",
    "CHOIR_LAUNCH",
)

_RANK = re.compile(r"rank (\d+) \(host ([^,()]+), pid (\d+)\)")
_OPERATION = re.compile(r"\w+ '[^']*' \(operation \d+\)|\w+ \(operation \d+\)")
_RULE = re.compile(r"-{60,}\s*")


def exported_environment(more):
    """The environment that all ranks get: {name: value}. `more` are the -x
    options, NAME or NAME=VALUE."""
    found = {}
    for name, value in os.environ.items():
        if name in NOT_EXPORTED:
            continue
        if name.startswith(EXPORTED) or name in EXPORTED_NAMES:
            found[name] = value
    for word in more:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def mpirun_command(run, folders):
    """The command line of a Run, as --verbose shows it. folders: (of this run, of
    its shared memory), or None to leave Open MPI to its own."""
    result, options, mpi = run.result, run.options, run.mpi
    found = mpi.of_ranks(
        [
            # The plainest ways of Open MPI: TCP, and memory within a host.
            ("pml", "ob1"),
            # By plain copies: Docker forbids what would be quicker, at the price
            # of a warning.
            *mpi.shared_memory,
        ]
    )
    # A lost host's daemon ends itself within 25 s.
    found += mpi.of_daemons(
        [
            ("oob_tcp_keepalive_time", 10),
            ("oob_tcp_keepalive_intvl", 5),
            ("oob_tcp_keepalive_probes", 3),
        ]
    )
    if result.networks:
        found += mpi.interfaces(result.networks, result.used, result.unused)
        found += mpi.remote(run.daemons.shell, run.name)
    else:
        found += mpi.local()
    if folders:
        found += mpi.folders(*folders)
    if options.port_range:
        found += mpi.ports(*options.port_range)
    here = {s.host.name for s in result.sessions if s.is_local}
    places = [
        "%s:%d" % ("localhost" if h.name in here else h.alias, len(h.ranks))
        for h in run.hosts
    ]
    command = ["mpirun", "-np", str(options.np), "-H", ",".join(places)]
    # A rank's own threads must not share one core.
    command += ["--map-by", "slot", "--bind-to", "none"]
    if os.geteuid() == 0:
        # Who started choirrun as root meant it.
        command.append("--allow-run-as-root")
    for option, name, value in found:
        command += [option, name, str(value)]
    for name in sorted(run.exported) + ["CHOIR_RUN"]:
        command += ["-x", name]
    if options.output_filename:
        command.append("--tag-output")
    return command + [run.program.path] + run.program.arguments


class Daemons(threading.Thread):
    """Starts mpirun's daemons through the agents (remote_shell.py). In a folder
    that others do not see, as who reaches the socket runs commands on hosts."""

    def __init__(self, folder, sessions, mpi):
        super().__init__(daemon=True)
        self.mpi = mpi
        self.sessions = {s.host.alias: s for s in sessions}
        # A path of a socket has 108 characters at most, and mpirun splits its
        # setting at blanks: TMPDIR may be long and have some.
        self.folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        short = "/proc/%d/fd/%d/" % (os.getpid(), self.folder)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(short + "daemons")
        self.listener.listen(16)
        # Read by a shell, not executed: TMPDIR may be mounted noexec.
        self.shell = "/bin/sh %sremote_shell" % short
        with open(short + "remote_shell", "w", encoding="utf-8") as file:
            words = [sys.executable, os.path.realpath(remote_shell.__file__)]
            words.append(short + "daemons")
            file.write('exec %s "$@"\n' % shlex.join(words))

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(
                target=self.serve, args=(connection,), daemon=True
            ).start()

    def serve(self, connection):
        def answer(**what):
            try:
                connection.sendall(json.dumps(what).encode() + b"\n")
            except OSError:
                pass

        with connection:
            try:
                request = json.loads(connection.makefile().readline())
                there = self.sessions[request["host"]].request(
                    "spawn",
                    limit=None,
                    said=lambda text: answer(said=text),
                    command=self.mpi.attached(request["command"]),
                )
                status = os.waitstatus_to_exitcode(there["status"])
                answer(status=status if status >= 0 else 128 - status)
            except (HostError, KeyError, ValueError) as error:
                answer(said="choirrun: %s\n" % error)
                answer(status=255)


class Output(threading.Thread):
    """Passes on one of mpirun's streams line by line. Open MPI's own reports
    (paragraphs between two rules) go to `on_report`, which says whether to
    show them."""

    def __init__(self, source, target, run):
        super().__init__(daemon=True)
        self.source = source
        self.target = target
        self.on_line = run.verdict.read_line
        self.on_report = run.show_report
        self.folder = run.options.output_filename
        self.tag = run.mpi.tag
        self.noise = None if run.options.verbose else run.mpi.noise
        self.files = {}
        self.is_writing = False

    def run(self):
        report = None
        is_after_report = False
        for raw in self.source:
            if is_after_report:
                # Version 5 ends its reports with a byte of zero.
                raw = raw.removeprefix(b"\0")
            is_after_report = False
            line = raw.decode(errors="replace")
            is_rule = _RULE.fullmatch(line) is not None
            if report is None and not is_rule:
                self.pass_on(raw, line)
            elif report is None:
                report = [raw]
            else:
                report.append(raw)
                if is_rule:
                    self.end_report(report)
                    report = None
                    is_after_report = True
        if report:
            self.end_report(report)
        for file in self.files.values():
            file.close()

    def end_report(self, lines):
        text = b"".join(lines).decode(errors="replace")
        if self.on_report(text):
            self.write(b"".join(lines))

    def pass_on(self, raw, line):
        if self.noise and self.noise.match(line):
            return
        self.on_line(line)
        tag = self.tag.match(raw) if self.folder else None
        if not tag:
            self.write(raw)
            return
        rank, stream = int(tag[1]), tag[2].decode()
        text = raw[tag.end() :]
        if (rank, stream) not in self.files:
            folder = os.path.join(self.folder, "rank.%d" % rank)
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, stream)
            # Unbuffered: who looks while it runs sees all.
            self.files[rank, stream] = open(path, "wb", buffering=0)
        self.files[rank, stream].write(text)
        self.write(text)

    def write(self, data):
        self.is_writing = True
        try:
            self.target.write(data)
            self.target.flush()
        except OSError:
            pass  # the reader of choirrun's output is gone
        self.is_writing = False


class Verdict:
    """What is known about how the run went wrong."""

    def __init__(self):
        self.by_signal = None  # (rank, signal)
        self.by_status = None  # (rank, status)
        self.silent = {}  # session: seconds when it was noticed
        self.stopped = {}  # rank: seconds when it went on, or None
        self.pids = {}  # rank: (session, pid)
        self.sentences = {}  # rank: its own last line about a failure
        self.lost = None  # (what ended of the run's own processes, the signal)
        self.failed = False

    def read_line(self, line):
        """A line that a rank printed."""
        rank = _RANK.search(line)
        if rank and _OPERATION.search(line):
            self.sentences.setdefault(int(rank[1]), line.strip())

    def read_report(self, text):
        """One of Open MPI's paragraphs."""
        by_signal = mpi_versions.BY_SIGNAL.search(text)
        if by_signal:
            self.by_signal = int(by_signal[1]), int(by_signal[4])
        by_status = mpi_versions.BY_STATUS.search(text)
        if by_status:
            rank, status = int(by_status[1]), int(by_status[2])
            if status > 128:
                self.by_signal = self.by_signal or (rank, status - 128)
            else:
                self.by_status = rank, status
        if by_signal or by_status or "Primary job  terminated" in text:
            self.failed = True

    def who(self, rank, hosts):
        if rank in self.pids:
            session, pid = self.pids[rank]
            return "rank %d (host %s, pid %d)" % (
                rank,
                session.info["host"],
                pid,
            )
        for host in hosts:
            if rank in host.ranks:
                return "rank %d (host %s)" % (rank, host.name)
        return "rank %d" % rank

    def last_operation(self, rank):
        """Where the others were, by their own words."""
        for other, line in sorted(self.sentences.items()):
            if other == rank:
                continue
            operation = _OPERATION.search(line)
            return "; rank %d was in %s" % (other, operation[0])
        if rank in self.sentences:
            return ", in " + _OPERATION.search(self.sentences[rank])[0]
        return ""

    def stated_reason(self, rank):
        """Why it ended, by its own last line about it; "" if there is none."""
        line = self.sentences.get(rank, "")
        if not line or "was ended by signal" in line:
            return ""
        name = _RANK.search(line)
        rest = line[name.end() :]
        return rest if rest.startswith(": ") else ": " + line[name.start() :]

    def stopped_ranks(self):
        """Those that stood still when the run broke."""
        recently = time.monotonic() - END_SECONDS - 5
        return [
            rank
            for rank, went_on in self.stopped.items()
            if went_on is None or went_on > recently
        ]

    def first_cause(self, hosts, mpi_status):
        """A sentence, or "": a process of choirrun or mpirun that was lost, a
        silent host, a stopped rank, a signal, an exit status; the latter two may
        be Open MPI's doing after one of the former."""
        if self.lost:
            return self.lost[0]
        for session, seconds in self.silent.items():
            ranks = session.host.ranks
            return (
                "host %s (rank%s %s) gave no sign of life for %d s: it is "
                "frozen, off or cut off%s"
                % (
                    session.name,
                    "s" if len(ranks) > 1 else "",
                    ", ".join(map(str, ranks)),
                    seconds,
                    self.last_operation(ranks[0]),
                )
            )
        for rank in self.stopped_ranks():
            return "%s was stopped by a signal%s" % (
                self.who(rank, hosts),
                self.last_operation(rank),
            )
        if self.by_signal:
            rank, number = self.by_signal
            text = "%s was killed by signal %d (%s)" % (
                self.who(rank, hosts),
                number,
                signal.strsignal(number),
            )
            if number == signal.SIGKILL:
                text += (
                    ", perhaps by the kernel for want of memory (dmesg tells)"
                )
            return text + self.last_operation(rank)
        if self.by_status:
            rank, status = self.by_status
            return "%s ended with exit status %d%s" % (
                self.who(rank, hosts),
                status,
                self.stated_reason(rank) or self.last_operation(rank),
            )
        if 0 < mpi_status < 128 and self.failed:
            return "a rank ended with exit status %d" % mpi_status
        return ""


def guard_end(event):
    return "was killed" if os.WIFSIGNALED(event["status"]) else "failed"


class Run:
    """One call of mpirun."""

    def __init__(self, hosts, result, folder, options, program, environment,
                 guard):  # fmt: skip
        self.hosts = hosts
        self.result = result
        self.sessions = result.sessions
        self.mpi = result.mpi
        self.folder = folder
        self.options = options
        self.program = program
        self.name = secrets.token_hex(8)
        self.verdict = Verdict()
        self.events = queue.Queue()
        self.present = set()  # sessions whose hosts Open MPI came to
        self.here = {}  # rank: whether its process is there
        self.gone_since = 0.0
        self.has_ended_ranks = False  # what they left behind, too
        self.signals = []  # that choirrun got
        self.ended_by = 0  # the first of them
        self.withheld = []  # reports of Open MPI that were not shown
        self.exported = environment
        self.guard = guard
        self.daemons = None
        self.command = None  # mpirun's
        self.pid = 0  # of mpirun
        self.status = None  # its, as of subprocess
        self.is_over = False  # choirrun ended all

    def show_report(self, text):
        known = self.verdict
        was_failed = known.failed
        known.read_report(text)
        self.events.put((None, {"event": "report"}))
        # Open MPI's words about a failure are choirrun's own sentence.
        is_told = was_failed or known.failed or self.ended_by
        is_told = is_told or any(
            words in text for words in mpi_versions.PEER_IS_LOST
        )
        # Known before Open MPI hears of it; its event may still be in the queue.
        is_told = is_told or any(session.is_over for session in self.sessions)
        if self.options.verbose or not is_told:
            return True
        self.withheld.append(text)
        return False

    def make_folders(self):
        """Folders of the same names on all hosts for what Open MPI writes, which
        the guards remove; None if one of the hosts cannot."""
        memory = os.path.join("/dev/shm", os.path.basename(self.folder))
        try:
            os.mkdir(memory, 0o700)
        except OSError:
            return None
        self.guard.remove_at_end(memory)
        paths = [self.folder, memory]
        for session in self.sessions:
            if session.is_local:
                continue
            if not session.request("folders", paths=paths)["made"]:
                return None
        return paths

    def prepare(self, tell):
        """All that comes before mpirun; when choirrun ends, agents and guards
        remove what this has made."""
        for session in self.sessions:
            session.watch(self.name, AGENT_SILENCE_SECONDS, self.events)
        if self.result.networks:
            self.daemons = Daemons(self.folder, self.sessions, self.mpi)
            self.daemons.start()
        self.command = mpirun_command(self, self.make_folders())
        if self.options.verbose:
            tell("runs: " + shlex.join(self.command))

    def start(self, stdout, stderr):
        self.guard.listen(self.note_guard)
        pipes = [os.pipe(), os.pipe()]
        self.readers = [
            Output(open(reader, "rb"), target, self)
            for (reader, _), target in zip(pipes, (stdout, stderr))
        ]
        for reader in self.readers:
            reader.start()
        environment = dict(self.exported, CHOIR_RUN=self.name)
        writers = [writer for _, writer in pipes]
        self.guard.start(0, self.command, environment, *writers)
        for writer in writers:
            os.close(writer)

    def note_guard(self, event):
        """Of mpirun, and of what ranks of this host left."""
        kind = event["event"]
        if kind == "started":
            self.pid = event["pid"]
        elif kind == "not started":
            self.lose("mpirun could not be started: %s" % event["why"], 0)
            self.status = 1
        elif kind == "ended" and event["pid"] == self.pid:
            status = os.waitstatus_to_exitcode(event["status"])
            if status < 0 and not event["was_signalled"]:
                self.lose_process("mpirun", socket.gethostname(), event)
            self.status = status
        elif kind == "over" and self.status is None:
            self.lose("the guard of mpirun on this host " + guard_end(event), 0)
            self.status = 1
        self.events.put((None, event))

    def lose(self, what, number):
        """Notes what ended of the run's own processes; the first one counts, and
        none does when choirrun ends the run."""
        if not (self.verdict.lost or self.ended_by or self.is_over):
            self.verdict.lost = what, number

    def lose_process(self, name, host, event):
        number = -os.waitstatus_to_exitcode(event["status"])
        self.lose(
            "%s (host %s, pid %d) was killed by signal %d (%s)"
            % (name, host, event["pid"], number, signal.strsignal(number)),
            number,
        )

    def end_all(self):
        """At once, on all hosts."""
        self.is_over = True
        self.guard.end()
        for session in self.sessions:
            session.end_run(self.name)

    def interrupt(self, number):
        """Notes Ctrl-C and the like; from any thread."""
        self.signals.append(number)

    def handle_signals(self):
        """The first one asks mpirun to end; the second one does not wait."""
        if self.signals and not self.ended_by:
            self.ended_by = self.signals[0]
            self.guard.signal(signal.SIGTERM)
        if len(self.signals) > 1 and not self.is_over:
            self.end_all()

    def note(self, session, event):
        known = self.verdict
        if event is None:
            # A silent host is the cause of what follows from it.
            if session not in known.silent:
                self.lose(*session.how_it_ended())
            known.failed = True
            self.guard.signal(signal.SIGTERM)
            return
        rank = event.get("rank")
        kind = event["event"]
        if rank is not None:
            self.here[rank] = kind != "gone"
        if kind == "present":
            self.present.add(session)
        elif kind == "started":
            known.pids[rank] = session, event["pid"]
            # Open MPI lets stopped ranks go on before it ends them.
            if rank in known.stopped:
                known.stopped[rank] = time.monotonic()
        elif kind == "stopped":
            known.stopped[rank] = None
        elif kind == "ended" and event["name"] == self.mpi.daemon:
            if os.WIFSIGNALED(event["status"]):
                self.lose_process(event["name"], session.info["host"], event)
        elif kind == "guard over":
            self.lose(
                "choirrun's guard on host %s %s"
                % (session.info["host"], guard_end(event)),
                0,
            )
            known.failed = True

    def check_hosts(self, tell):
        now = time.monotonic()
        for session in self.sessions:
            silence = now - session.heard
            was_silent = session in self.verdict.silent
            if silence >= SILENCE_SECONDS:
                self.verdict.silent[session] = silence
                if not was_silent and not self.is_ending():
                    tell(
                        "host %s gives no sign of life; the ranks that wait "
                        "for it end at their deadline" % session.name
                        if not session.is_local
                        else "the agent on this host gives no sign of life"
                    )
            elif was_silent:
                del self.verdict.silent[session]
                if not self.is_ending():
                    tell("host %s is back" % session.name)

    def is_ending(self):
        return self.verdict.failed or self.ended_by

    def supervise(self, tell):
        """Until mpirun has ended, or had to be ended: its status."""
        beat = 0
        deadline = None
        started_by = time.monotonic() + self.options.start_timeout
        while self.status is None:
            now = time.monotonic()
            if now - beat >= BEAT_SECONDS:
                beat = now
                for session in self.sessions:
                    session.beat()
            try:
                session, event = self.events.get(timeout=0.25)
                if session:
                    self.note(session, event)
            except queue.Empty:
                pass
            self.handle_signals()
            self.check_hosts(tell)
            self.check_ranks(now)
            absent = [s for s in self.sessions if s not in self.present]
            if absent and not self.is_ending() and now > started_by:
                tell(
                    "Open MPI did not come to %s within %g s; look at the "
                    "host, try --verbose, or give more time with "
                    "--start-timeout"
                    % (
                        ", ".join(s.name for s in absent),
                        self.options.start_timeout,
                    )
                )
                self.end_all()
                break
            if self.is_ending():
                deadline = deadline or now + END_SECONDS
                if now > deadline:
                    # Open MPI waits for a host that is gone.
                    self.end_all()
                    break
        if self.status is None:
            self.guard.is_over.wait(10)
        elif self.status == 0:
            self.settle()
        return 1 if self.status is None else self.status

    def settle(self):
        """mpirun ended well. Version 5 says so also when it has lost a daemon: asks
        each host what else ended there."""
        for session in self.sessions:
            try:
                session.request("settle", limit=SETTLE_SECONDS)
            except HostError:
                pass  # a connection that ended is in the queue
        while not self.events.empty():
            session, event = self.events.get()
            if session:
                self.note(session, event)

    def check_ranks(self, now):
        """mpirun waits while what a rank started keeps the rank's output open;
        and version 4 can lock itself up when a rank died in MPI_Init."""
        is_writing = any(reader.is_writing for reader in self.readers)
        are_gone = len(self.here) == self.options.np and not any(
            self.here.values()
        )
        if not are_gone or is_writing:
            self.gone_since = now
        gone = now - self.gone_since
        if gone > GONE_SECONDS and not self.has_ended_ranks:
            self.has_ended_ranks = True
            self.guard.end_orphans()
            for session in self.sessions:
                session.end_run(self.name, ranks_only=True)
        if gone > 2 * GONE_SECONDS:
            self.lose("mpirun hung after the end of all ranks", 0)
            self.end_all()

    def finish(self):
        self.is_over = True
        # What ranks of this host left keeps their output open.
        self.guard.end(1)
        for session in self.sessions:
            session.end_run(self.name)
        for reader in self.readers:
            reader.join(2)
        self.guard.is_over.wait(10)


# exit 0: all ranks ended well; --preflight: nothing was found.
# exit 1: the preflight found something, or a host was lost; else, as any status of
# 1 to 127 but 2, what the first rank that failed ended with.
# exit 2: wrong usage.
# exit 128 + n: signal n ended a rank, choirrun, or a process that the run needs
# (mpirun, its daemon, an agent, the ssh connection).
def exit_status(run, status):
    """choirrun's own: the ranks', 128 + n for signal n."""
    if run.ended_by:
        return 128 + run.ended_by
    known = run.verdict
    if known.lost:
        return 128 + known.lost[1] if known.lost[1] else 1
    if known.by_signal and not (known.silent or known.stopped_ranks()):
        return 128 + known.by_signal[1]
    if known.by_status:
        return known.by_status[1]
    return 1 if status < 0 else status


def run_program(run, tell, stdout, stderr):
    """Runs what was prepared to the end; choirrun's exit status."""
    # Stopping choirrun alone would look like its end to the agents.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    run.start(stdout, stderr)
    status = run.supervise(tell)
    run.finish()
    if run.ended_by:
        tell(
            "interrupted by signal %d (%s); all ranks were ended"
            % (run.ended_by, signal.strsignal(run.ended_by))
        )
    elif status or run.verdict.lost:
        cause = run.verdict.first_cause(run.hosts, status)
        if cause:
            tell(cause + "; all ranks were ended")
        else:
            sys.stderr.write("".join(run.withheld))
            tell("mpirun ended with status %d" % status)
    return exit_status(run, status)
