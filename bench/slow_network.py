# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a slow network beside one of them alone, strategy by strategy.

usage: bazel run //bench:slow_network -- [--rates RATE[,RATE]...]
           [--seeds N[,N]...] [--steps N] [--only NAME[,NAME]...]
           [--accuracy NAME[,NAME]...] [--json FILE]

The hosts are network namespaces of this machine (tests/netlab), one worker of
one thread each, batch 64; the one host alone takes the same global batch, 128,
and the same learning rate. For each rate (10mbit and 100mbit):

 1. every strategy with its defaults for --steps steps: bytes that a host sends
    in a step (all of its network interface, headers and heartbeats too), ms of a
    step beside what `auto` predicts, images/s;
 2. those of --accuracy, seed by seed and in turns with the one host alone: until
    the accuracy is 0.985, looked at every 100 steps. Time is that of training
    and of making the replicas equal for the look.

Needs root. Ends with status 0 however slow a job was, with 1 when one failed, 2
for a wrong flag.
"""

import argparse
import json
import os
import statistics
import sys

from bench import measure
from tests.netlab import netlab

PROGRAM = os.path.join(measure.ROOT, "bench", "accuracy_run")
DATA = os.path.join(measure.ROOT, "examples", "data", "mnist")
TARGET = 0.985
BATCH = 64
HOSTS = 2
# The best strategy's time over that of one host alone, at most.
GOAL = 0.6
MOST_STEPS = 4690  # ten epochs
MOST_SECONDS = 240  # of training, where the goal is out of reach

# Name: dist_option, settings.
STRATEGIES = {
    "fp32": ("fp32", ""),
    "fp16": ("fp16", ""),
    "bf16": ("bf16", ""),
    "partialUpdate": ("partialUpdate", ""),
    "sparseTopK": ("sparseTopK", ""),
    "sparseThreshold": ("sparseThreshold", ""),
    "dgc": ("dgc", "warmup_steps=0"),
    "localSGD": ("localSGD", ""),
    "sparseLocal": ("sparseLocal", ""),
    "sparseLocal+": ("sparseLocal", "outer_momentum=0.5,nesterov=true"),
    "auto": ("auto", ""),
}


def command(strategy, flags):
    """Of one worker; the first host starts both."""
    words = [PROGRAM, "--data", DATA, "--threads", 1] + flags
    if strategy is None:
        return words + ["--batch", BATCH * HOSTS]
    option, settings = STRATEGIES[strategy]
    words += ["--batch", BATCH, "--dist_option", option]
    return words + (["--settings", settings] if settings else [])


def run(lab, strategy, flags, limit):
    """The program's lines. strategy None: on one host alone."""
    words = command(strategy, flags)
    if strategy is not None:
        where = ",".join(host.name + ":1" for host in lab.hosts)
        words = (
            ["mpirun", "-np", HOSTS, "-H", where, "--bind-to", "none"]
            + ["--mca", "btl", "self,tcp"]
            + ["--mca", "btl_tcp_if_include", "10.77.0.0/24"]
            + ["--mca", "oob_tcp_if_include", "10.77.0.0/24"]
        ) + words
    done = lab.hosts[0].run([str(word) for word in words], timeout=limit)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise measure.Failure(
            "%s ended with status %d: %s"
            % (strategy or "one host alone", done.returncode, done.stderr)
        )
    return [json.loads(line) for line in lines]


def predict(lab):
    """What auto measures, and the ms of a step that it predicts."""
    lines = run(lab, "auto", ["--steps", 40, "--every", 40], 300)
    plan = lines[-2]
    print(
        "auto: %.2f ms to compute a step, link %.2f ms and %.2f MB/s; it takes %s"
        % (
            plan["compute_ms"],
            plan["latency_ms"],
            plan["mb_per_second"],
            plan["chosen"],
        )
    )
    return plan


def measure_steps(lab, options, results):
    """Bytes, time and images of a step, beside what auto predicts."""
    plan = predict(lab)
    results["auto"] = plan
    print(
        "%-16s %13s %10s %10s %10s"
        % ("", "bytes a step", "ms a step", "predicted", "images/s")
    )
    for name in [None] + options.only:
        # What takes long is not measured for long; a multiple of all periods.
        steps = options.steps
        if name in ("fp32", "fp16", "bf16"):
            steps = min(steps, 16)
        flags = ["--steps", 2 * steps, "--every", steps, "--deadline", 120]
        lines = run(lab, name, flags, 600)
        # The second half: the first has the start of everything in it.
        seconds = lines[1]["seconds"] - lines[0]["seconds"]
        predicted = plan["ms_per_step"].get(name)
        row = {
            "strategy": lines[-1]["strategy"],
            "bytes_per_step": lines[-1]["bytes_per_step"],
            "ms_per_step": 1e3 * seconds / steps,
            "predicted_ms_per_step": predicted,
            "images_per_second": steps * BATCH * HOSTS / seconds,
        }
        results[name or "alone"] = row
        print(
            "%-16s %13.0f %10.2f %10s %10.0f"
            % (
                name or "one host alone",
                row["bytes_per_step"],
                row["ms_per_step"],
                "%.2f" % predicted if predicted else "",
                row["images_per_second"],
            ),
            flush=True,
        )


def reach(lab, name, seed):
    """Seconds to the target, or None, and the accuracy at the end."""
    flags = ["--seed", seed, "--target", TARGET, "--every", 100]
    flags += ["--steps", MOST_STEPS, "--seconds", MOST_SECONDS]
    last = run(lab, name, flags, 10 * MOST_SECONDS)[-1]
    reached = last["accuracy"] >= TARGET
    return {
        "seed": seed,
        "seconds": last["seconds"] if reached else None,
        "steps": last["steps"],
        "accuracy": last["accuracy"],
    }


def mean_seconds(runs):
    if not runs or any(run["seconds"] is None for run in runs):
        return None
    return statistics.mean(run["seconds"] for run in runs)


def measure_accuracy(lab, options, results):
    names = [None] + options.accuracy
    runs = {name: [] for name in names}
    for seed in options.seeds:
        for name in names:
            runs[name].append(reach(lab, name, seed))
    alone = mean_seconds(runs[None])
    print("\nto an accuracy of %g, mean of seeds %s" % (TARGET, options.seeds))
    print("%-16s %9s %9s %10s" % ("", "seconds", "steps", "of alone"))
    for name in names:
        mean = mean_seconds(runs[name])
        steps = statistics.mean(run["steps"] for run in runs[name])
        ratio = mean / alone if mean and alone else None
        print(
            "%-16s %9s %9.0f %10s"
            % (
                name or "one host alone",
                "%.2f" % mean if mean else "-",
                steps,
                "%.2f" % ratio if ratio else "-",
            ),
            flush=True,
        )
        results[name or "alone"]["runs"] = runs[name]
        results[name or "alone"]["seconds"] = mean
        results[name or "alone"]["of_alone"] = ratio
    best = min(
        (results[name]["of_alone"] or 1e9 for name in options.accuracy),
        default=None,
    )
    if best is not None:
        print(
            "best: %.2f of one host alone (wanted: at most %g)" % (best, GOAL)
        )


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="slow_network",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", default="10mbit,100mbit")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--only", default=",".join(list(STRATEGIES)[:-1]))
    parser.add_argument("--accuracy", default="sparseLocal,sparseLocal+")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    options.rates = options.rates.split(",")
    options.seeds = [int(seed) for seed in options.seeds.split(",") if seed]
    for key in ("only", "accuracy"):
        names = [name for name in getattr(options, key).split(",") if name]
        for name in names:
            if name not in STRATEGIES:
                parser.error(
                    "--%s: no strategy is called %s; known are %s"
                    % (key, name, ", ".join(STRATEGIES))
                )
        setattr(options, key, names)
    # What is trained to the end is measured first.
    options.only += [n for n in options.accuracy if n not in options.only]
    return options


def main(arguments):
    options = parse(arguments)
    reason = netlab.missing()
    if reason:
        print("slow_network: " + reason, file=sys.stderr)
        return 1
    print(measure.machine())
    others = measure.Others()
    results = {}
    try:
        for rate in options.rates:
            print("\n== %d hosts, %s between them" % (HOSTS, rate), flush=True)
            results[rate] = {}
            with netlab.Lab(hosts=HOSTS, rate=rate) as lab:
                measure_steps(lab, options, results[rate])
                if options.seeds and options.accuracy:
                    measure_accuracy(lab, options, results[rate])
    except (measure.Failure, netlab.LabError) as failure:
        print("slow_network: %s" % failure, file=sys.stderr)
        return 1
    measure.print_others(others.cores())
    if options.json:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {"machine": measure.machine(), "rates": results}, file, indent=1
            )
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
