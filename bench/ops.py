# SPDX-License-Identifier: Apache-2.0
"""Single ops of Choir beside PyTorch's, on the shapes of a training step.

usage: bazel run //bench:ops -- [--net NAME] [--batch N] [--threads N]
                                [--op NAME] [--rounds N] [--seconds S]
                                [--dtype f32|f16|bf16]
                                [--torch-python FILE] [--torch-newest FOLDER]
                                [--json FILE]

Every round times each case in Choir (bench_ops) and in both PyTorches
(peers/torch_ops.py), for --seconds each, one program after the other. The table
has medians over the rounds and what PyTorch takes over what Choir takes; a step is
each op as often as it comes in one. Choir's fusions of ops and its graph are not
in it. Ends as //bench:train does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure  # noqa: E402
from bench.train_jobs import NETS  # noqa: E402

BENCH_OPS = os.path.join(measure.ROOT, "bench", "bench_ops")
TORCH_OPS = os.path.join(measure.ROOT, "bench", "peers", "torch_ops.py")
PEERS = {"torch": "PyTorch", "torch_newest": "newest PyTorch"}
# Those whose ops bench_ops has a list of (bench/net_ops.c).
LISTED = ("mnist_cnn", "mlp", "resnet20", "gpt384", "gpt768")


def output_of(command, text=None):
    done = subprocess.run(
        command,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == measure.MISSING:
        raise measure.Missing(
            json.loads(done.stdout.splitlines()[-1])["missing"]
        )
    if done.returncode != 0:
        raise measure.Failure(
            "%s ended with status %d" % (" ".join(command), done.returncode)
        )
    return done.stdout


def run_choir(options):
    """The cases as bench_ops prints them."""
    command = [BENCH_OPS, "--json", "--net", options.net]
    command += ["--batch", str(options.batch)]
    command += ["--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds), "--dtype", options.dtype]
    if options.op:
        command += ["--op", options.op]
    return [json.loads(line) for line in output_of(command).splitlines()]


def run_torch(peer, cases, options):
    """{"version", "results"} of torch_ops.py."""
    python = options.torch_python
    if peer == "torch_newest":
        python = measure.newest_python(options.torch_newest)
    command = [python, TORCH_OPS, "--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds)]
    return json.loads(output_of(command, json.dumps(cases)).splitlines()[-1])


def run_rounds(options):
    """Returns (rows, {peer: version}, {peer: why not}); a row has "op",
    "shapes", "attrs", "a_step", "kernel" and "us": {who: [each round]}."""
    rows, versions, missing = [], {}, {}
    for _ in range(options.rounds):
        cases = run_choir(options)
        if not rows:
            rows = [{**case, "us": {"choir": []}} for case in cases]
        for row, case in zip(rows, cases):
            row["us"]["choir"].append(case["median_us"])
        for peer in PEERS:
            if peer in missing:
                continue
            try:
                result = run_torch(peer, cases, options)
            except measure.Missing as error:
                missing[peer] = str(error)
                continue
            versions[peer] = result["version"]
            for row, us in zip(rows, result["results"]):
                if us is not None:
                    row["us"].setdefault(peer, []).append(us)
    keys = ("op", "shapes", "attrs", "a_step", "kernel", "us")
    return [{k: row[k] for k in keys} for row in rows], versions, missing


def sums_of(rows):
    """us of a step: {who: each op's median as often as it comes}."""
    sums = {}
    for row in rows:
        for who, us in row["us"].items():
            us = statistics.median(us) * row["a_step"]
            sums[who] = sums.get(who, 0) + us
    return sums


def print_tables(record, options):
    rows, sums = record["rows"], record["step_us"]
    print(
        "%s\n%s, %s, batch %d, %d thread%s, %d rounds."
        % (
            record["machine"],
            options.net,
            options.dtype,
            options.batch,
            options.threads,
            "" if options.threads == 1 else "s",
            options.rounds,
        )
    )
    measure.print_others(record["others_cores"])
    for peer, why in record["missing"].items():
        print("%s is not there: %s" % (PEERS[peer], why))
    form = "%-27s %-36s %6s %10s %15s %15s"
    print()
    print(form % ("op", "shapes", "a step", "Choir us", "PyTorch", "newest"))

    def cell(us, own):
        return "%.1f x%.2f" % (us, us / own) if us else "-"

    for row in rows:
        us = {who: statistics.median(each) for who, each in row["us"].items()}
        cells = [cell(us.get(peer), us["choir"]) for peer in PEERS]
        head = (row["op"], row["shapes"], row["a_step"], "%.1f" % us["choir"])
        print(form % (*head, *cells))
    cells = [cell(sums.get(peer), sums["choir"]) for peer in PEERS]
    print(form % ("sum of a step", "", "", "%.1f" % sums["choir"], *cells))


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="ops", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--net", choices=LISTED, default="mnist_cnn")
    parser.add_argument(
        "--batch", type=int, help="64; mlp, resnet20: 128; gpt: 8"
    )
    parser.add_argument(
        "--dtype", choices=("f32", "f16", "bf16"), default="f32"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--op", help="this one only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--torch-newest", help="else $CHOIR_TORCH_NEWEST")
    parser.add_argument("--json", help="file for every single result")
    options = parser.parse_args(argv)
    if not options.batch:
        gpt = options.net.startswith("gpt")
        options.batch = 8 if gpt else NETS[options.net].batch
    if options.rounds < 1 or options.seconds <= 0 or options.threads < 1:
        parser.error("--rounds, --seconds and --threads must be above 0")
    return options


def main(argv):
    options = parse(argv)
    others = measure.Others()
    try:
        rows, versions, missing = run_rounds(options)
    except measure.Failure as error:
        print("ops: %s" % error, file=sys.stderr)
        return 1
    if not rows:
        print("ops: a step has no op '%s'" % options.op, file=sys.stderr)
        return 2
    record = {
        "machine": measure.machine(),
        "net": options.net,
        "dtype": options.dtype,
        "batch": options.batch,
        "threads": options.threads,
        "rounds": options.rounds,
        "others_cores": others.cores(),
        "versions": versions,
        "missing": missing,
        "rows": rows,
        "step_us": sums_of(rows),
    }
    print_tables(record, options)
    if options.json:
        measure.write_json(measure.user_path(options.json), record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
