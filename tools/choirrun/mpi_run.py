# SPDX-License-Identifier: Apache-2.0
"""A run under Open MPI's mpirun, whose daemons the agents start: its command line,
its words, its end."""

import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time

import mpi_versions
import remote_shell
import run_base
from host_session import HostError

_RULE = re.compile(r"-{60,}\s*")


def mpirun_command(mpi_run, folders):
    """The command line of a Run, as --verbose shows it. folders: (of this run, of
    its shared memory), or None to leave Open MPI to its own."""
    result, options, mpi = mpi_run.result, mpi_run.options, mpi_run.mpi
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
        found += mpi.remote(mpi_run.daemons.shell, mpi_run.name)
    else:
        found += mpi.local()
    if folders:
        found += mpi.folders(*folders)
    if options.port_range:
        found += mpi.ports(*options.port_range)
    here = {s.host.name for s in result.sessions if s.is_local}
    places = [
        "%s:%d" % ("localhost" if h.name in here else h.alias, len(h.ranks))
        for h in mpi_run.hosts
    ]
    command = ["mpirun", "-np", str(options.np), "-H", ",".join(places)]
    # A rank's own threads must not share one core.
    command += ["--map-by", "slot", "--bind-to", "none"]
    if os.geteuid() == 0:
        # Who started choirrun as root meant it.
        command.append("--allow-run-as-root")
    for option, name, value in found:
        command += [option, name, str(value)]
    for name in sorted(mpi_run.exported) + ["CHOIR_RUN"]:
        command += ["-x", name]
    if options.output_filename:
        command.append("--tag-output")
    return command + [mpi_run.program.path] + mpi_run.program.arguments


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

    def __init__(self, source, target, mpi_run):
        super().__init__(daemon=True)
        self.source = source
        self.target = target
        self.on_line = mpi_run.verdict.read_line
        self.on_report = mpi_run.show_report
        self.folder = mpi_run.options.output_filename
        self.tag = mpi_run.mpi.tag
        self.noise = None if mpi_run.options.verbose else mpi_run.mpi.noise
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


class Verdict(run_base.Verdict):
    """With what Open MPI says."""

    def __init__(self):
        super().__init__()
        self.aborted = set()  # (host, pid) of ranks that Open MPI ended

    def read_line(self, line):
        aborted = mpi_versions.ABORTED.search(line)
        if aborted:
            self.aborted.add((aborted[1], int(aborted[2])))
        super().read_line(line)

    def last_operation(self, rank):
        for other, (session, pid) in sorted(self.pids.items()):
            if other != rank and (session.info["host"], pid) in self.aborted:
                return (
                    "; Open MPI ended rank %d, which could not send to it"
                    % other
                )
        return super().last_operation(rank)

    def conclude(self):
        """Where mpirun tells of no rank, as those that lost one ended first."""
        if self.aborted and not (self.by_signal or self.by_status):
            self.by_signal = self.seen_killed

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


class MpiRun(run_base.Run):
    """One call of mpirun."""

    what = "mpirun"

    def __init__(self, folder, mpi, *arguments):
        super().__init__(*arguments)
        self.verdict = Verdict()
        self.mpi = mpi
        self.daemon = mpi.daemon
        self.folder = folder
        self.gone_since = 0.0
        self.has_ended_ranks = False  # what they left behind, too
        self.daemons = None
        self.command = None  # mpirun's
        self.pid = 0  # of mpirun
        self.started_by = None  # when it must have come to all hosts

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
            session.watch(
                self.name, run_base.AGENT_SILENCE_SECONDS, self.events
            )
        if self.result.networks:
            self.daemons = Daemons(self.folder, self.sessions, self.mpi)
            self.daemons.start()
        self.command = mpirun_command(self, self.make_folders())
        if self.options.verbose:
            tell("runs: " + shlex.join(self.command))

    def start(self, stdout, stderr):
        self.started_by = time.monotonic() + self.options.start_timeout
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
            self.lose(
                "the guard of mpirun on this host " + run_base.guard_end(event),
                0,
            )
            self.status = 1
        self.events.put((None, event))

    def ask_to_end(self):
        self.guard.signal(signal.SIGTERM)

    def check(self, now, tell):
        self.check_ranks(now)
        self.check_start(now, tell)

    def check_start(self, now, tell):
        absent = [s for s in self.sessions if s not in self.present]
        if not absent or self.is_ending() or now <= self.started_by:
            return
        tell(
            "Open MPI did not come to %s within %g s; look at the host, try "
            "--verbose, or give more time with --start-timeout"
            % (
                ", ".join(s.name for s in absent),
                self.options.start_timeout,
            )
        )
        self.end_all()

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
        if gone > run_base.GONE_SECONDS and not self.has_ended_ranks:
            self.has_ended_ranks = True
            self.guard.end_orphans()
            for session in self.sessions:
                session.end_run(self.name, ranks_only=True)
        if gone > 2 * run_base.GONE_SECONDS:
            self.lose("mpirun hung after the end of all ranks", 0)
            self.end_all()

    def finish(self):
        if self.verdict.aborted:
            self.settle()
        super().finish()
        for reader in self.readers:
            reader.join(2)
        self.verdict.conclude()
