# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a slow network beside one of them alone, strategy by strategy.

usage: bazel run //bench:slow_network -- [--rates RATE[,RATE]...]
           [--seeds N[,N]...] [--steps N] [--only NAME[,NAME]...]
           [--clock NAME[,NAME]...] [--clock-rates RATE[,RATE]...]
           [--efforts FILE] [--json FILE | --page]

The hosts are network namespaces of this machine (tests/netlab), one worker of
one thread each, batch 64; the one host alone takes the same global batch, 128,
and the same learning rate. An accuracy of 0.985 is looked for every 100 steps.

 1. Steps to that accuracy, for every strategy with its defaults and the one host
    alone, on this machine without a network: sums are in rank order everywhere,
    so they are the same steps on any link.
 2. For each rate, every strategy for --steps steps: bytes that a host sends in a
    step (all of its network interface, headers and heartbeats too), ms of a step
    beside what `auto` predicts, images/s.
 3. For each of --clock-rates, those of --clock and the one host alone, seed by
    seed and in turns, against the clock: seconds of training until the accuracy
    is there, with the exchanges that make the replicas equal for each look.

--page writes bench/results/slow_network.json, the tables of docs/strategies.md
and its picture. Needs root; some ten minutes. Ends with status 0 however slow a
job was, with 1 when one failed, 2 for a wrong flag.
"""

import argparse
import json
import os
import statistics
import sys
import time

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure, strategies_page  # noqa: E402
from tests.netlab import netlab  # noqa: E402

PROGRAM = os.path.join(measure.ROOT, "bench", "accuracy_run")
DATA = os.path.join(measure.ROOT, "examples", "data", "mnist")
ALONE = "alone"
TARGET = 0.985
BATCH = 64
HOSTS = 2
# The best strategy's time over that of one host alone, at most.
GOAL = 0.6
MOST_STEPS = 4690  # ten epochs
LIMIT = 1200  # seconds of one job; guards against a hang

# Name: dist_option, settings.
STRATEGIES = {
    "fp32": ("fp32", ""),
    "fp16": ("fp16", ""),
    "bf16": ("bf16", ""),
    "partialUpdate": ("partialUpdate", ""),
    "sparseTopK": ("sparseTopK", ""),
    "sparseThreshold": ("sparseThreshold", ""),
    "dgc": ("dgc", ""),
    "localSGD": ("localSGD", ""),
    "sparseLocal": ("sparseLocal", ""),
    "sparseLocal+": ("sparseLocal", "outer_momentum=0.5,nesterov=true"),
}

# What a step is measured with: without the warm-up.
STEADY = {"dgc": "warmup_steps=0"}


def command(name, flags, settings=None):
    words = [PROGRAM, "--data", DATA, "--threads", 1] + flags
    if name == ALONE:
        return words + ["--batch", BATCH * HOSTS]
    option, own = STRATEGIES.get(name, (name, ""))
    settings = settings or own
    words += ["--batch", BATCH, "--dist_option", option]
    return words + (["--settings", settings] if settings else [])


def run(lab, name, flags, settings=None):
    """The program's lines: in the lab, or without one as two workers here."""
    words = command(name, flags, settings)
    if name != ALONE and lab:
        where = ",".join(host.name + ":1" for host in lab.hosts)
        words = (
            ["mpirun", "-np", HOSTS, "-H", where, "--bind-to", "none"]
            + ["--mca", "btl", "self,tcp"]
            + ["--mca", "btl_tcp_if_include", "10.77.0.0/24"]
        ) + words
    elif name != ALONE:
        words += ["--workers", HOSTS]
    words = [str(word) for word in words]
    if lab:
        done = lab.hosts[0].run(words, timeout=LIMIT)
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        status, out, err = measure.run_captured(words, LIMIT)
    lines = out.splitlines()
    if status or not lines:
        raise measure.Failure(
            "%s ended with status %d: %s" % (name, status, err)
        )
    return [json.loads(line) for line in lines]


# ---- Steps to the accuracy ----


def train_to_target(lab, name, seed):
    flags = ["--seed", seed, "--target", TARGET, "--every", 100]
    last = run(lab, name, flags + ["--steps", MOST_STEPS])[-1]
    return {
        "seed": seed,
        "steps": last["steps"],
        "seconds": last["seconds"],
        "accuracy": last["accuracy"],
        "reached": last["accuracy"] >= TARGET,
    }


def mean(runs, key):
    """None where a run did not get there."""
    if not runs or not all(run["reached"] for run in runs):
        return None
    return statistics.mean(run[key] for run in runs)


def measure_efforts(options):
    print("\n== steps to an accuracy of %g, seeds %s" % (TARGET, options.seeds))
    efforts = {}
    for name in [ALONE] + options.only:
        efforts[name] = [
            train_to_target(None, name, seed) for seed in options.seeds
        ]
        steps = mean(efforts[name], "steps")
        print(
            "%-16s %8s  (%s)"
            % (
                name,
                "%.0f" % steps if steps else "-",
                ", ".join(str(run["steps"]) for run in efforts[name]),
            ),
            flush=True,
        )
    return efforts


# ---- A step ----


def predict(lab):
    """What auto measures, and the ms of a step that it predicts."""
    plan = run(lab, "auto", ["--steps", 48, "--every", 48])[-2]
    print(
        "auto: %.2f ms to compute a step, link %.2f ms and %.2f MB/s; takes %s"
        % (
            plan["compute_ms"],
            plan["latency_ms"],
            plan["mb_per_second"],
            plan["chosen"],
        )
    )
    return plan


def measure_step(lab, name, options):
    steps = options.steps
    # What takes long is not measured for long.
    if name in ("fp32", "fp16", "bf16"):
        steps = min(steps, 16)
    flags = ["--deadline", 120, "--steps", 2 * steps, "--every", steps]
    lines = run(lab, name, flags, STEADY.get(name))
    # The second half: the first has the start of everything in it.
    seconds = lines[1]["seconds"] - lines[0]["seconds"]
    return {
        "strategy": lines[-1]["strategy"],
        "bytes_per_step": lines[-1]["bytes_per_step"],
        "ms_per_step": 1e3 * seconds / steps,
        "images_per_second": steps * BATCH * HOSTS / seconds,
    }


def measure_steps(lab, options):
    plan = predict(lab)
    result = {"plan": plan, "steps": {}}
    print(
        "%-16s %13s %10s %10s %10s"
        % ("", "bytes a step", "ms a step", "predicted", "images/s")
    )
    for name in [ALONE] + options.only:
        row = measure_step(lab, name, options)
        row["predicted_ms"] = plan["ms_per_step"].get(name)
        result["steps"][name] = row
        print(
            "%-16s %13.0f %10.2f %10s %10.0f"
            % (
                name,
                row["bytes_per_step"],
                row["ms_per_step"],
                "%.2f" % row["predicted_ms"] if row["predicted_ms"] else "",
                row["images_per_second"],
            ),
            flush=True,
        )
    return result


# ---- Against the clock ----


def measure_clock(lab, options):
    names = [ALONE] + options.clock
    runs = {name: [] for name in names}
    for seed in options.seeds:
        for name in names:
            runs[name].append(train_to_target(lab, name, seed))
    alone = mean(runs[ALONE], "seconds")
    print("seconds to an accuracy of %g, seeds %s" % (TARGET, options.seeds))
    best = None
    for name in names:
        seconds = mean(runs[name], "seconds")
        ratio = seconds / alone if seconds and alone else None
        if name != ALONE and ratio and (best is None or ratio < best):
            best = ratio
        print(
            "%-16s %8s %8s"
            % (
                name,
                "%.2f" % seconds if seconds else "-",
                "%.2f" % ratio if ratio else "-",
            ),
            flush=True,
        )
    if best:
        print("best: %.2f of one host alone (wanted: %g)" % (best, GOAL))
    return runs


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="slow_network",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", default="10mbit,100mbit,1gbit")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--only", default=",".join(STRATEGIES))
    parser.add_argument("--clock", default="sparseLocal,sparseLocal+")
    parser.add_argument("--clock-rates", default="10mbit,100mbit")
    parser.add_argument("--efforts")
    parser.add_argument("--json")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    for key in ("rates", "clock_rates", "only", "clock", "seeds"):
        words = [word for word in getattr(options, key).split(",") if word]
        setattr(options, key, words)
    for name in options.only + options.clock:
        if name not in STRATEGIES:
            parser.error(
                "no strategy is called '%s'; known are %s"
                % (name, ", ".join(STRATEGIES))
            )
    if not all(seed.isdigit() for seed in options.seeds):
        parser.error("--seeds is a list of whole numbers")
    options.seeds = [int(seed) for seed in options.seeds]
    return options


def run_all(options):
    record = {"machine": measure.machine(), "target": TARGET, "rates": {}}
    if options.efforts:
        with open(options.efforts, encoding="utf-8") as file:
            record["efforts"] = json.load(file)["efforts"]
    elif options.seeds:
        record["efforts"] = measure_efforts(options)
    rates = options.rates
    rates += [rate for rate in options.clock_rates if rate not in rates]
    for rate in rates:
        print("\n== %d hosts, %s between them" % (HOSTS, rate), flush=True)
        with netlab.Lab(hosts=HOSTS, rate=rate) as lab:
            record["rates"][rate] = measure_steps(lab, options)
            if options.seeds and options.clock and rate in options.clock_rates:
                record["rates"][rate]["clock"] = measure_clock(lab, options)
    return record


def main(arguments):
    options = parse(arguments)
    reason = netlab.missing()
    if reason:
        print("slow_network: " + reason, file=sys.stderr)
        return 1
    print(measure.machine())
    # Before anything runs: what runs in the lab is no child of this process.
    others = measure.Others()
    time.sleep(2)
    cores = others.cores()
    measure.print_others(cores)
    try:
        record = run_all(options)
    except (measure.Failure, netlab.LabError) as failure:
        print("slow_network: %s" % failure, file=sys.stderr)
        return 1
    record["others"] = cores
    path = options.json
    if path:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    if options.page:
        # Of the sources, not of Bazel's copies.
        os.chdir(os.environ.get("BUILD_WORKSPACE_DIRECTORY", measure.ROOT))
        path = os.path.join("bench", "results", "slow_network.json")
    if path:
        measure.write_json(path, record)
    if options.page:
        strategies_page.write(record, "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
