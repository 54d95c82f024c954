# SPDX-License-Identifier: Apache-2.0
"""A run under Open MPI's mpirun, watched by the agents of its hosts: output,
ends of all kinds, and the first cause when something breaks."""

import ctypes
import os
import queue
import re
import secrets
import shlex
import signal
import subprocess
import threading
import time

import mpi_versions

# A host whose agent says nothing for so long is told of as silent.
SILENCE_SECONDS = 4
# An agent that hears nothing for so long ends the run's processes on its host.
AGENT_SILENCE_SECONDS = 15
BEAT_SECONDS = 2
# How long mpirun may take to end everything once a rank has failed; Open MPI
# gives ranks a second between SIGTERM and SIGKILL.
END_SECONDS = 6

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


def mpirun_command(hosts, result, settings, options, program, environment, run):
    """The command line, as --verbose shows it."""
    mpi = result.mpi
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
        found += mpi.remote(settings.path, run)
    else:
        found += mpi.local()
    if options.port_range:
        found += mpi.ports(*options.port_range)
    here = {s.host.name for s in result.sessions if s.is_local}
    places = [
        "%s:%d" % ("localhost" if h.name in here else h.alias, len(h.ranks))
        for h in hosts
    ]
    command = ["mpirun", "-np", str(options.np), "-H", ",".join(places)]
    # A rank's own threads must not share one core.
    command += ["--map-by", "slot", "--bind-to", "none"]
    if os.geteuid() == 0:
        # Who started choirrun as root meant it.
        command.append("--allow-run-as-root")
    for option, name, value in found:
        command += [option, name, str(value)]
    for name in sorted(environment) + ["CHOIR_RUN"]:
        command += ["-x", name]
    if options.output_filename:
        command.append("--tag-output")
    return command + [program.path] + program.arguments


class Output(threading.Thread):
    """Passes on one of mpirun's streams line by line. Open MPI's own reports
    (paragraphs between two rules) go to `on_report`, which says whether to
    show them."""

    def __init__(self, source, target, run):
        super().__init__(daemon=True)
        self.source = source
        self.target = target
        self.on_line = run.verdict.hear
        self.on_report = run.show_report
        self.folder = run.options.output_filename
        self.tag = run.mpi.tag
        self.noise = None if run.options.verbose else run.mpi.noise
        self.files = {}

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
        try:
            self.target.write(data)
            self.target.flush()
        except OSError:
            pass  # the reader of choirrun's output is gone


class Verdict:
    """What is known about how the run went wrong."""

    def __init__(self):
        self.by_signal = None  # (rank, signal)
        self.by_status = None  # (rank, status)
        self.silent = {}  # session: seconds when it was noticed
        self.stopped = {}  # rank: seconds when it went on, or None
        self.pids = {}  # rank: (session, pid)
        self.sentences = {}  # rank: its own last line about a failure
        self.failed = False

    def hear(self, line):
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

    def stopped_ranks(self):
        """Those that stood still when the run broke."""
        recently = time.monotonic() - END_SECONDS - 5
        return [
            rank
            for rank, went_on in self.stopped.items()
            if went_on is None or went_on > recently
        ]

    def first_cause(self, hosts, mpi_status):
        """A sentence, or "": a silent host, a stopped rank, a signal, an exit
        status; the latter two may be Open MPI's doing after one of the
        former."""
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
                self.last_operation(rank),
            )
        if 0 < mpi_status < 128 and self.failed:
            return "a rank ended with exit status %d" % mpi_status
        return ""


class Run:
    """One call of mpirun."""

    def __init__(self, hosts, result, settings, options, program, environment):
        self.hosts = hosts
        self.sessions = result.sessions
        self.mpi = result.mpi
        self.options = options
        self.name = secrets.token_hex(8)
        self.verdict = Verdict()
        self.news = queue.Queue()
        self.present = set()  # sessions whose hosts Open MPI came to
        self.ended_by = 0  # a signal that choirrun got
        self.environment = dict(os.environ, **environment)
        self.environment["CHOIR_RUN"] = self.name
        self.command = mpirun_command(
            hosts, result, settings, options, program, environment, self.name
        )
        self.process = None

    def show_report(self, text):
        known = self.verdict
        was_failed = known.failed
        known.read_report(text)
        self.news.put((None, {"event": "report"}))
        # Open MPI's words about a failure are choirrun's own sentence.
        is_told = was_failed or known.failed or self.ended_by
        is_told = is_told or any(
            words in text for words in mpi_versions.PEER_IS_LOST
        )
        return self.options.verbose or not is_told

    def start(self, stdout, stderr):
        libc = ctypes.CDLL(None)
        pr_set_pdeathsig = 1

        def before_exec():
            libc.prctl(pr_set_pdeathsig, signal.SIGTERM)

        for session in self.sessions:
            session.watch(self.name, AGENT_SILENCE_SECONDS, self.news)
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Its signals come from choirrun.
            start_new_session=True,
            preexec_fn=before_exec,
        )
        self.readers = [
            Output(source, target, self)
            for source, target in (
                (self.process.stdout, stdout),
                (self.process.stderr, stderr),
            )
        ]
        for reader in self.readers:
            reader.start()

        def wait():
            self.process.wait()
            self.news.put((None, {"event": "over"}))

        threading.Thread(target=wait, daemon=True).start()

    def end_all(self):
        """At once, on all hosts."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for session in self.sessions:
            session.end_run(self.name)

    def interrupt(self, number):
        """Ctrl-C and the like; the second one does not wait."""
        if self.ended_by:
            self.end_all()
        else:
            self.ended_by = number
            try:
                os.killpg(self.process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    def note(self, session, event):
        known = self.verdict
        rank = event.get("rank")
        if event["event"] == "present":
            self.present.add(session)
        elif event["event"] == "started":
            known.pids[rank] = session, event["pid"]
            # Open MPI lets stopped ranks go on before it ends them.
            if rank in known.stopped:
                known.stopped[rank] = time.monotonic()
        elif event["event"] == "stopped":
            known.stopped[rank] = None

    def look_at_hosts(self, tell):
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
        while self.process.poll() is None:
            now = time.monotonic()
            if now - beat >= BEAT_SECONDS:
                beat = now
                for session in self.sessions:
                    session.beat()
            try:
                session, event = self.news.get(timeout=0.25)
                if session and event:
                    self.note(session, event)
            except queue.Empty:
                pass
            self.look_at_hosts(tell)
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
        return self.process.wait()

    def finish(self):
        for reader in self.readers:
            reader.join(2)
        for session in self.sessions:
            session.end_run(self.name)


def exit_status(run, status):
    """choirrun's own: the ranks', 128 + n for signal n."""
    if run.ended_by:
        return 128 + run.ended_by
    known = run.verdict
    if known.by_signal and not (known.silent or known.stopped_ranks()):
        return 128 + known.by_signal[1]
    if known.by_status:
        return known.by_status[1]
    if status < 0:
        return 1
    return status


def run_program(hosts, result, settings, options, program, environment, tell,
                stdout, stderr):  # fmt: skip
    """Runs to the end; choirrun's exit status."""
    run = Run(hosts, result, settings, options, program, environment)
    if options.verbose:
        tell("runs: " + shlex.join(run.command))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: run.interrupt(n))
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
    elif status:
        cause = run.verdict.first_cause(hosts, status)
        if cause:
            tell(cause + "; all ranks were ended")
        else:
            tell("mpirun ended with status %d" % status)
    return exit_status(run, status)
