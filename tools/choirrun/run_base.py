# SPDX-License-Identifier: Apache-2.0
"""A run that the agents of its hosts watch: ends of all kinds, and the first cause
when something breaks. How ranks start is mpi_run's and tcp_run's."""

import os
import queue
import re
import secrets
import signal
import sys
import time

from host_session import HostError

# A host whose agent says nothing for so long is told of as silent.
SILENCE_SECONDS = 4
# An agent that hears nothing for so long ends the run's processes on its host.
AGENT_SILENCE_SECONDS = 15
BEAT_SECONDS = 2
# How long the rest may take to end once a rank has failed; Open MPI gives ranks a
# second between SIGTERM and SIGKILL.
END_SECONDS = 6
# How long what a rank started may keep the rank's output open.
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
    "CHOIR_RENDEZVOUS",
    "CHOIR_RENDEZVOUS_FD",
    "CHOIR_BOARD_FD",
    "CHOIR_LAUNCH",
    "CHOIR_MEMBERS",
    "CHOIR_NEWCOMER",
)

_RANK = re.compile(r"rank (\d+) \(host ([^,()]+), pid (\d+)\)")
_OPERATION = re.compile(r"\w+ '[^']*' \(operation \d+\)|\w+ \(operation \d+\)")


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


class Verdict:
    """What is known about how the run went wrong."""

    def __init__(self):
        self.by_signal = None  # (rank, signal)
        self.by_status = None  # (rank, status)
        self.silent = {}  # session: seconds when it was noticed
        self.stopped = {}  # rank: seconds when it went on, or None
        self.pids = {}  # rank: (session, pid)
        self.sentences = {}  # rank: its own last line about a failure
        self.seen_killed = None  # (rank, signal), as its host's agent saw it
        self.lost = None  # (what ended of the run's own processes, the signal)
        self.failed = False

    def read_line(self, line):
        """A line that a rank printed."""
        rank = _RANK.search(line)
        if rank and _OPERATION.search(line):
            self.sentences.setdefault(int(rank[1]), line.strip())

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

    def first_cause(self, hosts, status):
        """A sentence, or "": a process that the run needs and has lost, a silent
        host, a stopped rank, a signal, an exit status; the latter two may follow
        from one of the former. `status` is the whole run's."""
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
        if 0 < status < 128 and self.failed:
            return "a rank ended with exit status %d" % status
        return ""


def guard_end(event):
    return "was killed" if os.WIFSIGNALED(event["status"]) else "failed"


class Run:
    """One run. Who starts the ranks says in `status` how they ended."""

    what = "the run"  # whose status it is, for sentences

    def __init__(self, hosts, result, options, program, environment, guard):
        self.hosts = hosts
        self.result = result
        self.sessions = result.sessions
        self.options = options
        self.program = program
        self.name = secrets.token_hex(8)
        self.verdict = Verdict()
        self.events = queue.Queue()
        self.present = set()  # sessions on whose hosts there is something of it
        self.here = {}  # rank: whether its process is there
        self.signals = []  # that choirrun got
        self.ended_by = 0  # the first of them
        self.exported = environment
        self.guard = guard
        self.status = None  # once all has ended, as of subprocess
        self.is_over = False  # choirrun ended all
        self.daemon = None  # name of a process that the run needs on each host
        self.withheld = []  # reports of a launcher that were not shown

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
        """The first one asks the run to end; the second one does not wait."""
        if self.signals and not self.ended_by:
            self.ended_by = self.signals[0]
            self.ask_to_end()
        if len(self.signals) > 1 and not self.is_over:
            self.end_all()

    def note(self, session, event):
        known = self.verdict
        if event is None:
            # A silent host is the cause of what follows from it.
            if session not in known.silent:
                self.lose(*session.how_it_ended())
            known.failed = True
            self.ask_to_end()
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
        elif kind == "gone":
            status = event.get("status")
            # What starts ranks also ends them by SIGTERM.
            if status and os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
                if not (known.seen_killed or number == signal.SIGTERM):
                    known.seen_killed = rank, number
        elif kind == "ended" and event["name"] == self.daemon:
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

    def ask_to_end(self):
        """SIGTERM to what runs; who starts it knows how."""
        raise NotImplementedError

    def check(self, now, tell):
        """Called while it runs, some times a second."""
        raise NotImplementedError

    def supervise(self, tell):
        """Until all has ended, or had to be ended: the status."""
        beat = 0
        deadline = None
        while self.status is None and not self.is_over:
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
            self.check(now, tell)
            if self.is_ending():
                deadline = deadline or now + END_SECONDS
                if now > deadline:
                    # What waits for a host that is gone.
                    self.end_all()
        if self.status is None:
            self.guard.is_over.wait(10)
        elif self.status == 0:
            self.settle()
        return 1 if self.status is None else self.status

    def settle(self):
        """It ended well, it seems: asks each host what else ended there. Open MPI 5
        says so also when it has lost a daemon."""
        for session in self.sessions:
            try:
                session.request("settle", limit=SETTLE_SECONDS)
            except HostError:
                pass  # a connection that ended is in the queue
        while not self.events.empty():
            session, event = self.events.get()
            if session:
                self.note(session, event)

    def finish(self):
        self.is_over = True
        # What ranks of this host left keeps their output open.
        self.guard.end(1)
        for session in self.sessions:
            session.end_run(self.name)
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
            tell("%s ended with status %d" % (run.what, status))
    return exit_status(run, status)
