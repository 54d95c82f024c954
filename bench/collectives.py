# SPDX-License-Identifier: Apache-2.0
"""All-reduce on one host beside Open MPI and Gloo, taken in turns in one run.

usage: bazel run //bench:collectives -- [--rounds N] [--ranks N[,N...]]
                                        [--bytes N[,N...]] [--touch] [--top-k]
                                        [--only NAME,...] [--json FILE]

Choir and Open MPI run over shared memory and, without it, over TCP on loopback;
Gloo always takes TCP. Every round runs each job once for each number of ranks, in turns from the first
to the last and back. A job times blocking sums of f32 in place: 11 batches of
about 20 ms for each size, of which it gives the median. The table has the median
and the range over the rounds; a ratio is taken within a round. Choir's memory is
what its communicator allocated, the others' their own. Repeated on memory that
nobody else writes, much stays in the caches of who reads it; --touch has each
rank write its memory before each repetition, untimed, as a backward pass does.

--top-k times the selection of the largest 1 % as well.

Ends with status 0 however slow a job was, with 1 when one failed, 2 for a wrong
flag. A peer that is not installed is named in the table; Gloo's program is
compiled here ($CXX), as only its Debian package libgloo-dev brings what it takes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure  # noqa: E402

BENCH = os.path.join(measure.ROOT, "bench")
CHOIR = os.path.join(BENCH, "bench_collectives")
OPEN_MPI = os.path.join(BENCH, "mpi_all_reduce")
GLOO_SOURCE = os.path.join(BENCH, "peers", "gloo_all_reduce.cc")
GLOO_HEADER = "gloo/allreduce.h"

# Name: what the table calls it.
JOBS = {
    "choir": "Choir, shm",
    "open_mpi": "Open MPI, in place",
    "choir_tcp": "Choir, tcp",
    "open_mpi_tcp": "Open MPI, tcp",
    "gloo_ring": "Gloo, ring",
    "gloo_bcube": "Gloo, bcube",
}
TOP_K = os.path.join(BENCH, "bench_top_k")
# Count: most read passes that a selection may take.
TOP_K_GOALS = {431080: 6, 25000000: 2.5}
LIMIT = 300  # seconds of one job; guards against a hang

GLOO = ("gloo_ring", "gloo_bcube")
# Choir's job, the peers it is set beside (the quickest one counts), and
# {(ranks, bytes): the least ratio}; of all others under None.
PAIRS = (
    (
        "choir",
        ("open_mpi",),
        {(2, 4096): 3, (2, 1724320): 3.5, (4, 1724320): 5},
    ),
    ("choir", GLOO, {(2, 1724320): 10, (4, 1724320): 20}),
    ("choir_tcp", ("open_mpi_tcp",), {None: 0.97}),
    ("choir_tcp", GLOO, {(2, 1724320): 1.5, None: 0.97}),
)


def run_ranks(commands):
    """Runs processes at the same time; returns the JSON lines of the first."""
    return [json.loads(line) for line in measure.outputs_of(commands, LIMIT)[0]]


def build_gloo(folder):
    """The program, or measure.Missing when the compiler or the headers are not there."""
    program = os.path.join(folder, "gloo_all_reduce")
    if os.path.exists(program):
        return program
    # $CXX: the compiler for the peers' programs. Not set: c++.
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    flags = ["-std=c++17", "-O3", "-march=native", "-o", program]
    command = [str(compiler), *flags, GLOO_SOURCE, "-lgloo", "-lpthread"]
    if not compiler:
        raise measure.Missing("no C++ compiler")
    probe = subprocess.run(
        [compiler, "-E", "-x", "c++", "-"],
        input="#include <%s>\n" % GLOO_HEADER,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if probe.returncode:
        raise measure.Missing("no " + GLOO_HEADER)
    if subprocess.run(command, check=False).returncode:
        raise measure.Failure("%s does not compile" % GLOO_SOURCE)
    return program


def run_job(name, ranks, options, folder):
    """One measurement: {bytes: {"median_us": ..., ...}}."""
    sizes = ",".join(str(size) for size in options.bytes)
    touch = ["--touch"] if options.touch else []
    if name in ("choir", "choir_tcp"):
        command = [CHOIR, "--workers", str(ranks), "--bytes", sizes, "--json"]
        command += ["--comm", "tcp" if name == "choir_tcp" else "shm"]
        command += ["--collective", "all_reduce", "--memory", "comm", *touch]
        lines = run_ranks([command])
    elif name in ("open_mpi", "open_mpi_tcp"):
        if not shutil.which("mpiexec"):
            raise measure.Missing("no mpiexec")
        # Bound to cores where there are enough of them, its default.
        command = ["mpiexec", "-n", str(ranks), "--oversubscribe"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if ranks <= len(os.sched_getaffinity(0)):
            command += ["--bind-to", "core"]
        if name == "open_mpi_tcp":
            command += ["--mca", "btl", "self,tcp"]
        lines = run_ranks([[*command, OPEN_MPI, sizes, *touch]])
    else:
        program = build_gloo(folder)
        algorithm = name[len("gloo_") :]
        with tempfile.TemporaryDirectory() as meeting:
            lines = run_ranks(
                [
                    [program, str(rank), str(ranks), meeting, algorithm, sizes]
                    + touch
                    for rank in range(ranks)
                ]
            )
    return {line["bytes"]: line for line in lines}


def run_rounds(jobs, options, progress):
    """Returns ({(name, ranks): [result of each round]}, {name: why})."""
    results = {(n, ranks): [] for n in jobs for ranks in options.ranks}
    missing = {}
    turns = [(name, ranks) for ranks in options.ranks for name in jobs]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            for name, ranks in turns if turn % 2 == 0 else turns[::-1]:
                if name in missing:
                    continue
                try:
                    result = run_job(name, ranks, options, folder)
                except measure.Missing as error:
                    missing[name] = str(error)
                    continue
                results[name, ranks].append(result)
                told = ["%.1f" % result[b]["median_us"] for b in options.bytes]
                progress(
                    "round %d: %d ranks, %-20s %s us"
                    % (turn + 1, ranks, JOBS[name], ", ".join(told))
                )
    return results, missing


def measure_top_k():
    """What sparse exchanges select by, beside one pass over the same memory."""
    lines = run_ranks([[TOP_K, "--json"]])
    return [{**line, "wanted": TOP_K_GOALS[line["count"]]} for line in lines]


def print_top_k(lines):
    print(
        "\nlargest 1 % by magnitude, exact, one thread: us, median of 21 runs"
    )
    for line in lines:
        value = "%.0f, read pass %.0f, ratio %.2f (%.2f..%.2f)" % (
            line["top_k_us"],
            line["read_pass_us"],
            line["ratio"],
            line["least_ratio"],
            line["most_ratio"],
        )
        print(
            "  %9d elements: %s  wanted: <= %g"
            % (line["count"], value, line["wanted"])
        )


def times(results, name, ranks, size):
    rounds = results.get((name, ranks), [])
    return [result[size]["median_us"] for result in rounds]


def peer_ratio(results, own, peers, ranks, size):
    """Of the peer's job that is quickest here: (name, [ratio of a round])."""
    peers = [name for name in peers if times(results, name, ranks, size)]
    own = times(results, own, ranks, size)
    if not peers or not own:
        return None, []

    def median(name):
        return statistics.median(times(results, name, ranks, size))

    best = min(peers, key=median)
    theirs = times(results, best, ranks, size)
    return best, [b / a for a, b in zip(own, theirs)]


def print_tables(results, missing, options, others_cores):
    print("\n%s" % measure.machine())
    print("all-reduce, sum of f32 in place, blocking; ", end="")
    print("memory written before each one; " if options.touch else "", end="")
    print("%d rounds." % options.rounds)
    measure.print_others(others_cores)
    for ranks in options.ranks:
        for size in options.bytes:
            print("\n%d ranks, %d bytes: us, median (range)" % (ranks, size))
            for name in JOBS:
                if name in missing:
                    print(
                        "  %-24s not installed: %s"
                        % (JOBS[name], missing[name])
                    )
                elif times(results, name, ranks, size):
                    value = measure.spread(times(results, name, ranks, size), 2)
                    print("  %-24s %s" % (JOBS[name], value))
            for own, peers, goals in PAIRS:
                best, ratios = peer_ratio(results, own, peers, ranks, size)
                if not best:
                    continue
                goal = goals.get((ranks, size), goals.get(None))
                print(
                    "  %-32s %s%s"
                    % (
                        "%s / %s" % (JOBS[best], JOBS[own]),
                        measure.spread(ratios, 2),
                        "  wanted: >= %g" % goal if goal else "",
                    )
                )


def parse(argv):
    def numbers(text):
        values = [int(value) for value in text.split(",")]
        if min(values) < 1:
            raise ValueError
        return values

    parser = argparse.ArgumentParser(
        prog="collectives", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument(
        "--bytes", type=numbers, default=[4096, 65536, 1724320, 16777216]
    )
    parser.add_argument("--touch", action="store_true")
    parser.add_argument("--top-k", action="store_true")
    parser.add_argument("--only", help="of: " + ", ".join(JOBS))
    parser.add_argument("--json", help="file for every single result")
    options = parser.parse_args(argv)
    options.only = options.only.split(",") if options.only else list(JOBS)
    for name in options.only:
        if name not in JOBS:
            parser.error(
                "--only: no job '%s'; there are %s" % (name, ", ".join(JOBS))
            )
    if options.rounds < 1 or min(options.ranks) < 2 or min(options.bytes) < 4:
        parser.error("--rounds must be 1, --ranks 2, --bytes 4 or more")
    options.bytes = [size // 4 * 4 for size in options.bytes]
    return options


def main(argv):
    options = parse(argv)
    jobs = [name for name in JOBS if name in options.only]

    def progress(line):
        print(line, file=sys.stderr, flush=True)

    others = measure.Others()
    try:
        results, missing = run_rounds(jobs, options, progress)
        top_k = measure_top_k() if options.top_k else []
    except measure.Failure as error:
        print("collectives: %s" % error, file=sys.stderr)
        return 1
    others_cores = others.cores()
    print_tables(results, missing, options, others_cores)
    if top_k:
        print_top_k(top_k)
    if options.json:
        rows = [
            {"job": name, "ranks": ranks, "round": turn + 1, **line}
            for (name, ranks), rounds in results.items()
            for turn, result in enumerate(rounds)
            for line in result.values()
        ]
        record = {
            "machine": measure.machine(),
            "touch": options.touch,
            "others_cores": others_cores,
            "missing": missing,
            "rows": rows,
            "top_k": top_k,
        }
        measure.write_json(measure.user_path(options.json), record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
