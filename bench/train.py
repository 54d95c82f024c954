# SPDX-License-Identifier: Apache-2.0
"""Training speed of Choir beside its peers, taken in turns in one run.

usage: bazel run //bench:train -- [--net NAME] [--rounds N] [--seconds S]
                                  [--only NAME,...] [--batch N] [--data DIR]
                                  [--limit N] [--torch-python FILE]
                                  [--json FILE]

Every round runs each job once, in turns from the first to the last and back,
on the real MNIST or, for resnet20, on made-up images. The table has the median and the range over the rounds; a
ratio is taken within a round and its range is that of the rounds. Ends with
status 0 however slow a job was, with 1 when one failed, 2 for a wrong flag. A
peer that is not installed is named in the table.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRAIN_STEP = os.path.join(ROOT, "bench", "train_step")
DNNL_LOOP = os.path.join(ROOT, "bench", "dnnl_loop")
TORCH_TRAIN = os.path.join(ROOT, "bench", "peers", "torch_train.py")
TORCH_MISSING = 3  # exit status of torch_train.py without PyTorch
TORCH_CONFIGS = ("nchw", "channels_last", "traced", "avx512")

# Name: batch of each process, steps before the clock starts.
NETS = {
    "mnist_cnn": (64, 32),
    "mlp": (128, 4),
    "resnet20": (128, 4),
}

# Name: what the table calls it.
JOBS = {
    "choir": "Choir, 1 process",
    "choir2": "Choir, 2 workers (spawn, shm)",
    "independent2": "Choir, 2 independent processes",
    "torch_nchw": "PyTorch, eager NCHW",
    "torch_channels_last": "PyTorch, eager channels_last",
    "torch_traced": "PyTorch, traced channels_last",
    "torch_avx512": "PyTorch, channels_last, AVX-512",
    "onednn": "bare oneDNN loop",
}


class Failure(Exception):
    """A job that did not run; its text is for the user."""


class Missing(Exception):
    """A peer that is not installed."""


def run_together(commands, options, gate=False):
    """Runs commands at the same time; returns the JSON line of each.

    With gate each prints "ready" when it could start, and all are let go
    together. A time limit guards against a hang.
    """
    limit = 300 + 10 * options.seconds
    processes = []

    def kill_all():
        for process in processes:
            process.kill()

    guard = threading.Timer(limit, kill_all)
    guard.daemon = True
    guard.start()
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if gate else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        if gate and all(
            process.stdout.readline() == "ready\n" for process in processes
        ):
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
        outputs = [process.stdout.read() for process in processes]
        for process in processes:
            process.wait()
    finally:
        guard.cancel()
        kill_all()
        for process in processes:
            process.wait()
            process.stdout.close()
            if gate:
                process.stdin.close()
    results = []
    for command, process, output in zip(commands, processes, outputs):
        lines = output.splitlines()
        if process.returncode == TORCH_MISSING and command[1] == TORCH_TRAIN:
            raise Missing(json.loads(lines[-1])["missing"])
        if process.returncode != 0 or not lines:
            raise Failure(
                "%s ended with status %d"
                % (" ".join(command), process.returncode)
            )
        results.append(json.loads(lines[-1]))
    return results


def run_job(name, options):
    """One measurement: {"images_per_second": ..., perhaps "rss_mb": ...}."""
    common = ["--net", options.net, "--seconds", str(options.seconds)]
    common += ["--batch", str(options.batch), "--limit", str(options.limit)]
    common += ["--warmup", str(NETS[options.net][1])]
    if options.data:
        common += ["--data", options.data]
    if name == "choir":
        return run_together([[TRAIN_STEP, *common]], options)[0]
    if name == "choir2":
        command = [TRAIN_STEP, "--workers", "2", *common]
        return run_together([command], options)[0]
    if name == "independent2":
        command = [TRAIN_STEP, "--gate", "true", *common]
        parts = run_together([command, command], options, gate=True)
        return {
            "images_per_second": sum(p["images_per_second"] for p in parts),
            "rss_mb": max(p["rss_mb"] for p in parts),
            "parts": parts,
        }
    if name == "onednn":
        # About as long as the others, at 100 steps a second.
        steps = max(1, int(100 * options.seconds))
        command = [DNNL_LOOP, "--json", "--batch", str(options.batch)]
        result = run_together([[*command, "--steps", str(steps)]], options)[0]
        return {"images_per_second": result["images_per_s"], **result}
    config = name[len("torch_") :]
    command = [options.torch_python, TORCH_TRAIN, "--config", config, *common]
    return run_together([command], options)[0]


def busy_seconds():
    """CPU seconds of all cores that were not idle, stolen ones included."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    total = 0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def measure(jobs, options, progress):
    """Returns ({name: [result of each round]}, {name: why}, others' cores)."""
    results = {name: [] for name in jobs}
    missing = {}
    start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    for turn in range(options.rounds):
        for name in jobs if turn % 2 == 0 else jobs[::-1]:
            if name in missing:
                continue
            try:
                result = run_job(name, options)
            except Missing as error:
                missing[name] = str(error)
                continue
            results[name].append(result)
            progress(
                "round %d: %-32s %8.0f images/s"
                % (turn + 1, JOBS[name], result["images_per_second"])
            )
    used = busy_seconds() - busy - (own_seconds() - own)
    others = max(0.0, used / (time.monotonic() - start))
    return results, missing, others


def spread(values, digits):
    """ "median (least..most)"."""
    form = "%%.%df (%%.%df..%%.%df)" % (digits, digits, digits)
    return form % (statistics.median(values), min(values), max(values))


def speeds(results, name):
    return [r["images_per_second"] for r in results.get(name, [])]


def best_of(results, names):
    """The job with the highest median, or None."""
    names = [name for name in names if speeds(results, name)]
    if not names:
        return None
    return max(names, key=lambda n: statistics.median(speeds(results, n)))


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                return "%s, %d cores" % (model, len(os.sched_getaffinity(0)))
    return "unknown processor"


def print_row(text, value, goal=""):
    print(("%-42s %-22s %s" % (text, value, goal)).rstrip())


def print_tables(results, missing, others, options):
    print("\n%s" % machine())
    print(
        "%s, batch %d for each process, 1 thread each, %d rounds of %g s."
        % (options.net, options.batch, options.rounds, options.seconds)
    )
    print("Other programs took %.2f cores meanwhile." % others, end="")
    print(" NOT IDLE: do not quote." if others > 0.1 else "")

    print()
    print_row("images/s", "median (range)")
    for name in results:
        if name in missing:
            value = "not installed; run bench/peers/install_torch.sh"
        else:
            value = spread(speeds(results, name), 0)
        print_row(JOBS[name], value)

    best = best_of(results, [n for n in results if n.startswith("torch_")])
    named = " (%s)" % best[len("torch_") :] if best else ""
    print()
    print_row("ratio within a round", "median (range)", "wanted")
    for text, over, under, goal in (
        ("Choir / best PyTorch" + named, "choir", best, ">= 1.2"),
        ("2 workers / 2 independent", "choir2", "independent2", ">= 0.9"),
        ("2 workers / 1 process", "choir2", "choir", ""),
        ("Choir / bare oneDNN loop", "choir", "onednn", ""),
    ):
        pairs = zip(speeds(results, over), speeds(results, under))
        ratios = [a / b for a, b in pairs]
        print_row(text, spread(ratios, 2) if ratios else "-", goal)

    print()
    goal = "<= 100" if options.net == "mnist_cnn" else ""
    print_row("resident MB without the data set", "median (range)", "wanted")
    for text, name in (
        ("Choir, 1 process", "choir"),
        ("Choir, the larger of 2 workers", "choir2"),
    ):
        values = [result["rss_mb"] for result in results.get(name, [])]
        print_row(text, spread(values, 0) if values else "-", goal)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="train", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--net", choices=NETS, default="mnist_cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", help="of: " + ", ".join(JOBS))
    parser.add_argument("--batch", type=int, help="64; mlp, resnet20: 128")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--data", help="folder of MNIST; not for resnet20")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--json", help="file for every single result")
    options = parser.parse_args(argv)
    # The bare oneDNN loop knows one network.
    jobs = [n for n in JOBS if n != "onednn" or options.net == "mnist_cnn"]
    options.only = options.only.split(",") if options.only else jobs
    for name in options.only:
        if name not in JOBS:
            parser.error(
                "--only: no job '%s'; there are %s" % (name, ", ".join(JOBS))
            )
        if name not in jobs:
            parser.error("--only: %s is for --net mnist_cnn" % name)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    options.batch = options.batch or NETS[options.net][0]
    if options.net == "resnet20":
        if options.data:
            parser.error("--data: resnet20 is trained on made-up images")
    elif not options.data:
        options.data = os.path.join(ROOT, "examples", "data", "mnist")
    # Where the user is: `bazel run` starts programs elsewhere.
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    if options.data:
        options.data = os.path.join(here, options.data)
    if options.json:
        options.json = os.path.join(here, options.json)
    return options


def main(argv):
    options = parse(argv)
    jobs = [name for name in JOBS if name in options.only]

    def progress(line):
        print(line, file=sys.stderr, flush=True)

    try:
        results, missing, others = measure(jobs, options, progress)
    except Failure as error:
        print("train: %s" % error, file=sys.stderr)
        return 1
    print_tables(results, missing, others, options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            record = {"results": results, "missing": missing}
            json.dump({**record, "others_cores": others}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
