#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a program on one or several hosts.

    choirrun -np 2 -H localhost:1,user@10.0.0.5:1 -p 12345 program args...
    choirrun --min-np 2 --max-np 8 --hostfile hosts program args...

The second one is an elastic run (docs/elastic.md): workers come and go.

It finds the interfaces by the routes, looks at everything that the run needs before
it starts anything, starts the ranks by itself or, with --comm mpi, by Open MPI's
mpirun, and tells the first cause when something breaks.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import re
import shutil
import signal
import sys
import tempfile
import threading

# Installed, the modules are not beside the script but in PREFIX/lib/choirrun.
_here = os.path.dirname(os.path.realpath(__file__))
_installed = os.path.join(os.path.dirname(_here), "lib", "choirrun")
sys.path.insert(0, _installed if os.path.isdir(_installed) else _here)

import elastic_run  # noqa: E402
import host_list  # noqa: E402
import host_session  # noqa: E402
import host_watch  # noqa: E402
import mpi_run  # noqa: E402
import mpi_versions  # noqa: E402
import prediction  # noqa: E402
import preflight  # noqa: E402
import process_guard  # noqa: E402
import run_base  # noqa: E402
import tcp_run  # noqa: E402

_EPILOG = """\
exit status: the program's; 128 + n for a rank, choirrun or a process that the run
needs ended by signal n; 1 when the preflight found something, 2 for a wrong command
line.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise host_list.UsageError(message)


def _port_range(text):
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise argparse.ArgumentTypeError(
            "'%s' is not of the form FIRST-LAST" % text
        )
    return int(match[1]), int(match[2])


def _names(text):
    return [word for word in text.split(",") if word]


def _seconds(text):
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def make_parser():
    parser = _Parser(
        prog="choirrun",
        usage="choirrun -np N [-H HOSTS | --hostfile FILE] [OPTION]... "
        "PROGRAM [ARGUMENT]...\n"
        "       choirrun [--min-np N] [--max-np N] [-np N]\n"
        "                [--hostfile FILE | --host-discovery-script SCRIPT] "
        "[OPTION]... PROGRAM [ARGUMENT]...",
        description="Starts the ranks of a program on one or several hosts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "--num-proc", dest="np", type=int, metavar="N",
        help="how many ranks")  # fmt: skip
    add("-H", "--hosts", metavar="HOSTS",
        help="[user@]host[:slots],...; IPv6 in brackets; this host if not "
        "given")  # fmt: skip
    add("-hostfile", "--hostfile", metavar="FILE",
        help="lines 'host slots=n'")  # fmt: skip
    add("--min-np", type=int, metavar="N",
        help="an elastic run: the others go on without a worker or host that is "
        "lost, others come in their place, and workers come to hosts that are added "
        "to the list while it runs. It ends when fewer than N workers are left for "
        "--elastic-timeout; 1")  # fmt: skip
    add("--max-np", type=int, metavar="N",
        help="so many workers at most, where there are slots, in an elastic run; "
        "-np")  # fmt: skip
    add("--host-discovery-script", metavar="SCRIPT",
        help="prints the hosts of an elastic run, as lines host:slots; it is asked "
        "every second")  # fmt: skip
    add("--elastic-timeout", type=_seconds, metavar="S",
        help="how long fewer than --min-np workers may go on; 600")  # fmt: skip
    add("-p", "--ssh-port", type=int, metavar="PORT")
    add("-i", "--ssh-identity-file", metavar="FILE")
    add("--comm", choices=("auto", "tcp", "mpi"), default="auto",
        help="how ranks talk: over shared memory on one host and tcp between "
        "several (auto), over tcp on one host, too, or by Open MPI, whose mpirun "
        "then starts them; auto")  # fmt: skip
    add("--network-interfaces", type=_names, metavar="NAME,...", default=[],
        help="names, or networks as 10.0.0.0/24; found by the routes if not "
        "given")  # fmt: skip
    add("--port-range", type=_port_range, metavar="FIRST-LAST",
        help="TCP ports that firewalls let pass")  # fmt: skip
    add("--data", metavar="DIR",
        help="compare this folder on all hosts; what the program's own --data "
        "names, if not given")  # fmt: skip
    add("--preflight", action="store_true", help="only look, start nothing")
    add("--start-timeout", type=_seconds, default=30, metavar="S",
        help="for ssh, and for all ranks to start; 30")  # fmt: skip
    add("-x", dest="export", action="append", default=[],
        metavar="NAME[=VALUE]",
        help="more environment for the ranks than %s"
        % ", ".join([name + "*" for name in run_base.EXPORTED]
                    + list(run_base.EXPORTED_NAMES)))  # fmt: skip
    add("--output-filename", metavar="DIR",
        help="also write DIR/rank.N/stdout and stderr")  # fmt: skip
    add("--verbose", action="store_true",
        help="show mpirun's command line and words")  # fmt: skip
    add("-cb", "--check-build", action="store_true",
        help="versions, backends and devices of every host")  # fmt: skip
    add("-v", "--version", action="store_true")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def find_library():
    """libchoir.so beside an installed choirrun, or ""."""
    path = os.path.join(os.path.dirname(_here), "lib", "libchoir.so")
    return path if os.path.exists(path) else ""


def data_of(command):
    """The folder behind the program's own --data, or None."""
    for i, word in enumerate(command):
        if word.startswith("--data="):
            return word[len("--data=") :]
        if word == "--data" and i + 1 < len(command):
            return command[i + 1]
    return None


def read_hosts(options):
    """What the command line names, as it is now; [] if it names none."""
    if options.hosts:
        return host_list.parse_hosts(options.hosts)
    if options.hostfile:
        return host_list.parse_hostfile(options.hostfile)
    if options.host_discovery_script:
        return host_watch.read_script(
            options.host_discovery_script, options.start_timeout
        )
    return []


def is_elastic(options):
    return bool(options.max_np)


def check_elastic(options, slots):
    """Sets what an elastic run has of -np, --min-np and --max-np; slots: of the
    hosts that are given, or 0."""
    given = {
        "--min-np": options.min_np,
        "--max-np": options.max_np,
        "--host-discovery-script": options.host_discovery_script,
        "--elastic-timeout": options.elastic_timeout,
    }
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return
    if options.comm == "mpi":
        raise host_list.UsageError(
            "%s is not for --comm mpi, which ends all when one is lost"
            % names[0]
        )
    if names == ["--elastic-timeout"]:
        raise host_list.UsageError(
            "--elastic-timeout is for elastic runs; give --min-np, too"
        )
    if options.min_np is None:
        options.min_np = 1
    if options.max_np is None:
        options.max_np = options.np or slots or options.min_np
    if options.np is None:
        options.np = min(slots or options.max_np, options.max_np)
    if options.elastic_timeout is None:
        options.elastic_timeout = 600
    if not 1 <= options.min_np <= options.np <= options.max_np:
        raise host_list.UsageError(
            "--min-np %d, -np %d, --max-np %d: the run begins with -np, which "
            "must be from --min-np to --max-np, above 0 (-np is what the hosts "
            "have of slots if not given, --max-np is -np)"
            % (options.min_np, options.np, options.max_np)
        )


def parse(arguments):
    """(options, hosts)."""
    options = make_parser().parse_args(arguments)
    if options.version:
        return options, []
    command = options.command
    if command[:1] == ["--"]:
        del command[0]
    ways = (options.hosts, options.hostfile, options.host_discovery_script)
    if sum(way is not None for way in ways) > 1:
        raise host_list.UsageError(
            "give -H, --hostfile or --host-discovery-script, not both"
        )
    hosts = read_hosts(options)
    check_elastic(options, sum(host.slots for host in hosts))
    if not hosts:
        slots = max(options.max_np or options.np or 1, 1)
        hosts = [host_list.Host("localhost", "", slots)]
    options.listed = [dataclasses.replace(host, ranks=[]) for host in hosts]
    if options.np is None:
        if not (options.check_build or options.preflight):
            raise host_list.UsageError("-np is missing: how many ranks")
        options.np = sum(host.slots for host in hosts)
    if options.np < 1:
        raise host_list.UsageError("-np is %d; it must be above 0" % options.np)
    hosts = host_list.place_ranks(hosts, options.np)
    if not command and not (options.check_build or options.preflight):
        raise host_list.UsageError("there is no program to run")
    if options.ssh_port is not None and not 1 <= options.ssh_port <= 65535:
        raise host_list.UsageError("-p %d is no port" % options.ssh_port)
    first, last = options.port_range or (0, 65535)
    if options.comm == "mpi" and last - first < 2 * mpi_versions.DAEMON_PORTS:
        raise host_list.UsageError(
            "--port-range: %d-%d are too few; give %d for Open MPI's daemons "
            "and some for each rank" % (first, last, mpi_versions.DAEMON_PORTS)
        )
    identity = options.ssh_identity_file
    if identity and not os.path.isfile(identity):
        raise host_list.UsageError("-i: there is no file %s" % identity)
    if options.data is None:
        options.data = data_of(command)
    return options, hosts


def version():
    """Of the installed library's pkg-config file; "unknown" in the tree."""
    path = os.path.join(os.path.dirname(_here), "lib", "pkgconfig", "choir.pc")
    try:
        with open(path, encoding="utf-8") as file:
            return re.search(r"^Version: (.*)$", file.read(), re.M)[1]
    except (OSError, TypeError):
        return "unknown (not installed)"


def print_build(sessions):
    library = find_library()
    for session in sessions:
        there = session.request("build", limit=120, library=library)
        info = session.info
        print("%s (host %s):" % (session.name, info["host"]))
        print("  system    %s, %d cores" % (info["system"], info["cores"]))
        print("  python    %s" % info["python"])
        print("  Open MPI  %s" % (there["mpi"] or "missing"))
        if not there["library"]:
            print("  Choir     missing: %s" % (library or "not installed here"))
            continue
        if "error" in there:
            print("  Choir     does not load: %s" % there["error"])
            continue
        print(
            "  Choir     %s, %s, sha256 %s"
            % (there["version"], there["library"], there["digest"][:12])
        )
        if "plugin" not in there:
            mpi = "no: libchoir_mpi.so is not beside the library"
        elif there["plugin_lacks"]:
            mpi = "no: it lacks " + ", ".join(there["plugin_lacks"])
        else:
            mpi = "yes"
        print("  backends  self: yes; shm: yes; tcp: yes; mpi: %s" % mpi)
        print("  backends  nccl: %s" % there["nccl"])
        for name, state in there["devices"].items():
            # Without a driver that one line, below, says it all.
            if name != "cuda" or not there["driver"].startswith("no: "):
                print("  device    %s: %s" % (name, state))
        print("  GPU       driver: %s" % there["driver"])
        for i, gpu in enumerate(there["gpus"]):
            print("  GPU       %d: %s" % (i, gpu))
        for name, state in there["parts"]:
            print("  GPU       %s: %s" % (name, state))


class Interrupts:
    """Calls `act` with the number of each signal that asks for the end, in a thread
    of its own. The interpreter writes the number to a pipe at once; the main
    thread would not see a signal that comes just before it waits for a lock. `act`
    runs with `lock` held; hold it to keep `act` from running meanwhile."""

    def __init__(self, act):
        self.act = act
        self.lock = threading.Lock()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup, and a shell's &, have one ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._run, args=(reader,), daemon=True).start()

    def _run(self, reader):
        while True:
            for number in os.read(reader, 64):
                # A line that nobody reads must not keep it.
                held = self.lock.acquire(timeout=2)
                self.act(number)
                if held:
                    self.lock.release()


def run(options, hosts, folder, guard, interrupts):
    is_report = options.preflight or options.check_build
    out = sys.stdout if is_report else sys.stderr

    def tell(text):
        # After an interrupt nothing is said of what it broke.
        with interrupts.lock, contextlib.suppress(OSError):
            print("choirrun: " + text, file=out, flush=True)

    settings = host_session.Settings(
        folder, hosts, options.ssh_port, options.ssh_identity_file
    )
    environment = run_base.exported_environment(options.export)
    program = None
    sessions = []
    try:
        if options.check_build:
            sessions, local, _ = preflight.open_sessions(
                hosts, settings, options.start_timeout
            )
            print_build(sessions)
            if local not in sessions:
                local.close()
            return 0
        if options.command:
            program = preflight.Program.find(options.command)
        several = len(hosts) > 1 or hosts[0].name != "localhost"
        result = preflight.run_preflight(
            hosts,
            settings,
            options,
            program,
            environment,
            tell if is_report or several or options.verbose else lambda _: None,
        )
        sessions = result.sessions
        slow = result.links and prediction.slowest(result.links)[0]
        if program and slow and (options.preflight or slow < prediction.FAST):
            ranks = sum(len(host.ranks) for host in hosts)
            command = [program.path, *program.arguments]
            for line in prediction.predict(command, result.links, ranks):
                tell(line)
        if options.preflight:
            tell("preflight passed")
            return 0
        parts = (hosts, result, options, program, environment, guard)
        if options.comm == "mpi":
            running = mpi_run.MpiRun(folder, result.mpi, *parts)
        elif is_elastic(options):
            changes = options.hostfile or options.host_discovery_script
            watch = changes and host_watch.HostWatch(
                functools.partial(read_hosts, options), options.listed
            )
            running = elastic_run.ElasticRun(settings, watch, *parts)
        else:
            running = tcp_run.TcpRun(*parts)
        running.prepare(tell)
        with interrupts.lock:
            interrupts.act = running.interrupt
        return run_base.run_program(
            running, tell, sys.stdout.buffer, sys.stderr.buffer
        )
    except preflight.Problems as problems:
        for sentence in problems.sentences:
            tell(sentence)
        count = len(problems.sentences)
        tell(
            "preflight found %d problem%s; nothing was started"
            % (count, "s" if count > 1 else "")
        )
        return 1
    except host_session.HostError as error:
        tell(str(error))
        return 1
    finally:
        for session in sessions:
            session.close()


def main(arguments):
    try:
        options, hosts = parse(arguments)
    except host_list.UsageError as error:
        print("choirrun: %s; choirrun --help" % error, file=sys.stderr)
        return 2
    if options.version:
        print("choirrun of Choir " + version())
        return 0

    # Before the first thread.
    guard = process_guard.Guard(True, host_session.own_children)
    folder = tempfile.mkdtemp(prefix="choirrun-")
    guard.remove_at_end(folder)

    def end(number):
        # Threads may still wait for hosts; nothing keeps choirrun now, nor
        # when nobody reads what it says.
        try:
            host_session.kill_all()
            shutil.rmtree(folder, ignore_errors=True)
            text = "choirrun: interrupted; nothing was started"
            print(text, file=sys.stderr, flush=True)
        finally:
            os._exit(128 + number)

    interrupts = Interrupts(end)
    try:
        return run(options, hosts, folder, guard, interrupts)
    finally:
        with interrupts.lock:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
