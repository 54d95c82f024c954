# SPDX-License-Identifier: Apache-2.0
"""A run whose ranks the agents start: they meet over tcp at a port that the first
host's agent has opened, and know each other by a secret that goes through ssh. No
host needs MPI."""

import os
import secrets
import signal
import threading
import time

import run_base
from host_session import HostError

# The failures of so many seconds are one: the first to be told of need not be the
# cause. Then the other ranks are asked to end.
TOGETHER_SECONDS = 1.0
STREAMS = {1: "stdout", 2: "stderr"}


class TcpRun(run_base.Run):
    agent_silence = run_base.AGENT_SILENCE_SECONDS

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lock = threading.Lock()
        self.over = {}  # rank: its status, None where nobody could tell
        self.started = self.options.np
        self.open_streams = {
            (rank, stream) for rank in range(self.started) for stream in STREAMS
        }
        self.all_over_since = None
        self.failed_since = None
        self.has_asked = False
        self.targets = {}  # number of a stream: where its lines go
        self.files = {}  # (rank, stream)

    def prepare(self, tell):
        for session in self.sessions:
            self.watch(session)
        first = self.session_of(0)
        ports = self.options.port_range
        port = first.request("rendezvous", ports=ports)["port"]
        meeting = self.result.meeting
        at = "[%s]:%d" if ":" in meeting else "%s:%d"
        self.exported = dict(
            self.exported,
            CHOIR_SIZE=str(self.options.np),
            CHOIR_COMM_ID=secrets.token_hex(16),
            CHOIR_RENDEZVOUS=at % (meeting, port),
            CHOIR_RUN=self.name,
        )
        if self.options.comm == "tcp":
            self.exported["CHOIR_COMM"] = "tcp"
        if ports:
            self.exported["CHOIR_PORTS"] = "%d-%d" % ports
        if self.options.verbose:
            tell("ranks meet at %s" % self.exported["CHOIR_RENDEZVOUS"])

    def watch(self, session):
        session.watch(self.name, self.agent_silence, self.events)
        session.on_output = self.pass_on

    def session_of(self, rank):
        return next(s for s in self.sessions if rank in s.host.ranks)

    def start(self, stdout, stderr):
        self.targets = {1: stdout, 2: stderr}
        self.guard.listen(self.note_guard)
        for session in self.sessions:
            for rank in session.host.ranks:
                threading.Thread(
                    target=self.run_rank, args=(session, rank), daemon=True
                ).start()

    def note_guard(self, event):
        """Of choirrun's own guard, which keeps nothing but a folder."""
        if event["event"] == "over" and not self.is_over:
            self.lose("choirrun's guard " + run_base.guard_end(event), 0)
            self.verdict.failed = True

    def run_rank(self, session, rank):
        try:
            status = session.request(
                "rank",
                limit=None,
                rank=rank,
                command=[self.program.path, *self.program.arguments],
                environment=dict(self.exported, CHOIR_RANK=str(rank)),
                folder=os.getcwd(),
            )["status"]
        except HostError as error:
            status = None
            # How a connection ended, the events tell.
            if not session.is_over:
                self.lose(str(error), 0)
                self.verdict.failed = True
        with self.lock:
            self.over[rank] = status
        self.events.put((None, {"event": "over"}))

    def pass_on(self, event):
        """A line of a rank's, or a stream's end."""
        rank, stream, text = event["rank"], event["stream"], event["text"]
        with self.lock:
            if text is None:
                self.open_streams.discard((rank, stream))
                return
            if stream == 2:
                self.verdict.read_line(text)
            data = text.encode(errors="surrogateescape")
            try:
                self.targets[stream].write(data)
                self.targets[stream].flush()
            except OSError:
                pass  # the reader of choirrun's output is gone
            if self.options.output_filename:
                self.file_of(rank, stream).write(data)

    def file_of(self, rank, stream):
        if (rank, stream) not in self.files:
            folder = os.path.join(
                self.options.output_filename, "rank.%d" % rank
            )
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, STREAMS[stream])
            # Unbuffered: who looks while it runs sees all.
            self.files[rank, stream] = open(path, "wb", buffering=0)
        return self.files[rank, stream]

    def ask_to_end(self):
        self.has_asked = True
        for session in self.sessions:
            session.signal_run(signal.SIGTERM)

    def check(self, now, tell):
        with self.lock:
            over = dict(self.over)
        if not self.has_asked:
            self.judge(over)
        if self.failed_since is None and self.verdict.failed:
            self.failed_since = now
        is_time = (
            self.failed_since is not None
            and now - self.failed_since >= TOGETHER_SECONDS
        )
        if is_time and not self.has_asked:
            self.ask_to_end()
        if len(over) < self.started:
            return
        # What ranks have started may keep their output open.
        self.all_over_since = self.all_over_since or now
        if (
            self.open_streams
            and now - self.all_over_since < run_base.GONE_SECONDS
        ):
            return
        self.status = self.outcome(over)

    def outcome(self, over):
        """The run's status when all have ended."""
        return int(any(status != 0 for status in over.values()))

    def judge(self, over):
        known = self.verdict
        for rank, status in sorted(over.items()):
            if not status:
                continue
            known.failed = True
            if os.WIFSIGNALED(status):
                known.by_signal = known.by_signal or (
                    rank,
                    os.WTERMSIG(status),
                )
            else:
                known.by_status = known.by_status or (
                    rank,
                    os.WEXITSTATUS(status),
                )

    def finish(self):
        super().finish()
        # Lines may still be on their way.
        end = time.monotonic() + 2
        while self.open_streams and time.monotonic() < end:
            time.sleep(0.01)
        with self.lock:
            for file in self.files.values():
                file.close()
            self.files = {}
