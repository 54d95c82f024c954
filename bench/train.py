# SPDX-License-Identifier: Apache-2.0
"""Training speed of Choir beside its peers, taken in turns in one run.

usage: bazel run //bench:train -- [--net NAME] [--batch N] [--threads N]
                                  [--device cpu|cuda] [--forward-only] [--bf16]
                                  [--rounds N] [--seconds S] [--only NAME,...]
                                  [--keep-going] [--data DIR] [--limit N]
                                  [--torch-python FILE] [--torch-newest FOLDER]
                                  [--json FILE]

Every round runs each job once, in turns from the first to the last and back,
on the real MNIST or, for resnet20 and resnet50, on made-up images, for GPTs on
Tiny Shakespeare. The table has
the median and the range over the rounds; a ratio is taken within a round and its
range is that of the rounds. Ends with status 0 however slow a job was, with 1 when one
failed, 2 for a wrong flag. A peer that is not installed is named in the table,
with --keep-going also a job that failed; the others go on.
"""

import argparse
import os
import statistics
import sys

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure  # noqa: E402
from bench.train_jobs import JOBS, NETS, run_job  # noqa: E402


def run_rounds(jobs, options, progress):
    """After each round ({name: [result of each]}, {name: why not}) so far."""
    results = {name: [] for name in jobs}
    missing = {}
    for turn in range(options.rounds):
        for name in jobs if turn % 2 == 0 else jobs[::-1]:
            if name in missing:
                continue
            try:
                result = run_job(name, options)
            except measure.Missing as error:
                missing[name] = str(error)
                continue
            except measure.Failure as error:
                if not options.keep_going:
                    raise
                missing[name] = str(error)
                continue
            results[name].append(result)
            progress(
                "round %d: %-38s %8.0f %s/s"
                % (
                    turn + 1,
                    JOBS[name].text_for(options.net),
                    result["labels_per_second"],
                    NETS[options.net].labels[0],
                )
            )
        yield results, missing


def speeds(results, name):
    return [r["labels_per_second"] for r in results.get(name, [])]


def best_of(results, peer):
    """The peer's one-process job with the highest median, or None."""
    names = [name for name in results if results[name]]
    names = [name for name in names if JOBS[name].peer == peer]
    names = [n for n in names if JOBS[n].workers == 1 and JOBS[n].copies == 1]
    if not names:
        return None
    return max(names, key=lambda n: statistics.median(speeds(results, n)))


# Of one thread and of two.
GPT_GOALS = {
    "gpt_nano": (1.6, 1.8),
    "gpt_10m": (1.15, 1.2),
    "gpt2": (1.8, 2.2),
    "gpt2_long": (1.2, 1.2),
}


def goals(options):
    """Least ratios wanted: to Debian's PyTorch, to anything else."""
    if options.device != "cpu":
        return "> 1", "> 1"
    if options.net in GPT_GOALS:
        return "", ">= %g" % GPT_GOALS[options.net][options.threads > 1]
    if options.net != "mnist_cnn":
        return ">= 1.2", "> 1"
    if options.forward_only:
        return ">= 1.5", "> 1"
    if options.batch >= 256:
        return ">= 2.2", "> 1"
    return (">= 2.5" if options.threads > 1 else ">= 2.0"), "> 1"


def ratios_of(results, options):
    """[{"text", "over", "under", "wanted", "values": one for each round}].

    "over" and "under" are jobs; Choir's is its quicker one.
    """
    debian, ahead = goals(options)
    choir = best_of(results, "choir")
    torch = best_of(results, "torch")
    newest = best_of(results, "torch_newest")
    rows = []
    for text, over, under, wanted in (
        ("Choir / best PyTorch", choir, torch, debian),
        ("Choir / best newest PyTorch", choir, newest, ahead),
        ("Choir / bare oneDNN loop", choir, "onednn", ahead),
        ("graph / without", "choir_graph", "choir", ""),
        ("2 workers / 2 independent", "choir2", "independent2", ">= 0.97"),
        (
            "2 workers / 2 independent, graph",
            "choir2_graph",
            "independent2_graph",
            ">= 0.97",
        ),
        (
            "2 that wait / 2 independent, graph",
            "meeting2_graph",
            "independent2_graph",
            "",
        ),
        (
            "2 workers / 2 that wait, graph",
            "choir2_graph",
            "meeting2_graph",
            "",
        ),
        ("2 workers / 1 process", "choir2", "choir", ""),
        ("2 workers, graph / PyTorch DDP", "choir2_graph", "torch2_ddp", ""),
        (
            "2 workers, graph / newest DDP",
            "choir2_graph",
            "torch_newest2_ddp",
            "",
        ),
    ):
        if over not in results or (under in JOBS and under not in results):
            continue
        pairs = zip(speeds(results, over), speeds(results, under))
        row = {"text": text, "over": over, "under": under, "wanted": wanted}
        rows.append({**row, "values": [a / b for a, b in pairs]})
    return rows


def print_row(text, value, goal=""):
    print(("%-44s %-22s %s" % (text, value, goal)).rstrip())


def print_tables(record, options):
    results, missing = record["results"], record["missing"]
    print("\n%s" % record["machine"])
    print(
        "%s%s, %sbatch %d for each process, %d thread%s each, %d rounds of %g s."
        % (
            options.net,
            "" if options.device == "cpu" else " on " + options.device,
            ("forward only, " if options.forward_only else "")
            + ("bf16, " if options.bf16 else ""),
            options.batch,
            options.threads,
            "" if options.threads == 1 else "s",
            options.rounds,
            options.seconds,
        )
    )
    measure.print_others(record["others_cores"])

    print()
    print_row(NETS[options.net].labels[0] + "/s", "median (range)")
    for name in results:
        if name in missing:
            value = "not there: " + missing[name]
        else:
            value = measure.spread(speeds(results, name), 0)
        print_row(JOBS[name].text_for(options.net), value)

    print()
    print_row("ratio within a round", "median (range)", "wanted")
    for row in record["ratios"]:
        text = row["text"]
        if row["under"] and JOBS[row["under"]].config:
            text += " (%s)" % JOBS[row["under"]].config
        values = row["values"]
        value = measure.spread(values, 2) if values else "-"
        print_row(text, value, row["wanted"])

    print()
    print_row("resident MB without the data set", "median (range)", "wanted")
    goal = "<= 60" if options.net == "mnist_cnn" else ""
    for name in (n for n in results if JOBS[n].peer == "choir"):
        values = [result["rss_mb"] for result in results.get(name, [])]
        if values:
            print_row(
                JOBS[name].text_for(options.net),
                measure.spread(values, 0),
                goal,
            )


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="train", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--net", choices=NETS, default="mnist_cnn")
    parser.add_argument(
        "--batch",
        type=int,
        help=", ".join("%s: %d" % (n, NETS[n].batch) for n in NETS),
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", help="of: " + ", ".join(JOBS))
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--data", help="folder of MNIST; not for other data")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--torch-newest", help="else $CHOIR_TORCH_NEWEST")
    parser.add_argument("--json", help="file for every single result")
    options = parser.parse_args(argv)
    jobs = [name for name in JOBS if JOBS[name].usual(options)]
    options.only = options.only.split(",") if options.only else jobs
    for name in options.only:
        if name not in JOBS:
            parser.error(
                "--only: no job '%s'; there are %s" % (name, ", ".join(JOBS))
            )
        if not JOBS[name].known_by(options):
            parser.error("--only: %s does not do this" % name)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    if options.threads < 1:
        parser.error("--threads must be above 0")
    options.batch = options.batch or NETS[options.net].batch
    if not NETS[options.net].takes_mnist:
        if options.data:
            parser.error("--data: %s takes its own" % options.net)
    elif not options.data:
        folder = os.path.join(measure.ROOT, "examples", "data", "mnist")
        options.data = folder
    if options.data:
        options.data = measure.user_path(options.data)
    return options


def make_record(results, missing, options, others):
    return {
        "machine": measure.machine(),
        "net": options.net,
        "device": options.device,
        "batch": options.batch,
        "threads": options.threads,
        "forward_only": options.forward_only,
        "bf16": options.bf16,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "others_cores": others.cores(),
        "results": results,
        "missing": missing,
        "ratios": ratios_of(results, options),
    }


def main(argv):
    options = parse(argv)
    jobs = [name for name in JOBS if name in options.only]

    def progress(line):
        print(line, file=sys.stderr, flush=True)

    others = measure.Others()
    try:
        # What is done is kept when this is ended before its time.
        for results, missing in run_rounds(jobs, options, progress):
            record = make_record(results, missing, options, others)
            if options.json:
                measure.write_json(measure.user_path(options.json), record)
    except measure.Failure as error:
        print("train: %s" % error, file=sys.stderr)
        return 1
    print_tables(record, options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
