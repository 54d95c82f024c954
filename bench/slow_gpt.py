# SPDX-License-Identifier: Apache-2.0
"""A GPT on two hosts with a slow network, beside one host alone.

usage: bazel run //bench:slow_gpt -- [--rate RATE] [--preset NAME] [--steps N]
           [--global-batch N] [--tune N] [--seeds N[,N]...] [--flags TEXT]
           [--results FILE]

The hosts are network namespaces of this machine (tests/netlab), one worker of
one thread each, over TCP, which train with --flags, flags of gpt_dist; the one
host alone has two workers of one thread, the preset's rate, the strategy fp32 and
the same global batch. Each model is then tuned, on one host,
for --tune steps on the tenth of the text that it has not seen, of whose last
tenth the loss is told: what it learnt, looked at from elsewhere.

For each seed: both losses, and of the two hosts the bytes that a host sent in a
step beside those of fp32 (all of its network interface) and the share of the
training that its threads computed. --results keeps what is done; a second call
goes on from there. With the preset 10m and 1,000 steps on 2 cores some 45
minutes a seed. Needs root. Status 1 when a run failed, 2 for a wrong flag.
"""

import argparse
import array
import gzip
import json
import os
import shlex
import statistics
import sys
import tempfile

# Not by the script's folder: a link in Bazel's tree, which Python would follow.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from bench import measure  # noqa: E402
from tests.netlab import netlab  # noqa: E402

PROGRAM = os.path.join(measure.ROOT, "examples", "gpt_dist")
CHOIRRUN = os.path.join(measure.ROOT, "tools", "choirrun", "choirrun.py")
TEXT = os.path.join(
    *[measure.ROOT, "examples", "data", "shakespeare"],
    "tiny_shakespeare.txt.gz",
)
# A worker's gradients, of half a batch, have a variance twice as large, and Adam's
# steps are shorter by up to a square root of 2, hence the rate; some more of it,
# and of outer_lr, is measured (docs/transformers.md).
FLAGS = (
    "--lr 0.0016 --dist-option sparseLocal "
    "--dist-settings period=4,delay=1,spars=0.08,outer_lr=1.1"
)
# Steps of fp32 of which the bytes are counted.
FEW = 2
LIMIT = 6 * 3600  # seconds of one run; guards against a hang


def last_tenth(folder):
    """The part of the text that is not learnt, as ids of the whole text's
    characters; and how many of these there are."""
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        text = file.read()
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    path = os.path.join(folder, "last_tenth.bin")
    with open(path, "wb") as file:
        part = text[len(text) // 10 * 9 + len(text) % 10 * 9 // 10 :]
        array.array("H", [ids[character] for character in part]).tofile(file)
    return path, len(ids)


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.tuning, self.vocabulary = last_tenth(folder)

    def words(self, seed, steps, more):
        path = os.path.join(self.folder, "log.jsonl")
        words = [PROGRAM, "--preset", self.options.preset, "--threads", 1]
        words += ["--seed", seed, "--steps", steps, "--sample", 0, "--quiet"]
        words += ["--global-batch", self.options.global_batch]
        words += ["--evaluate-every", steps, "--log-json", path]
        return [str(word) for word in words + more], path

    def run(self, seed, steps, more, host=None):
        """The program's last report."""
        words, path = self.words(seed, steps, more)
        if host:
            words = [CHOIRRUN, "--comm", "tcp", "-np", "2"] + [
                *["-H", "localhost:1,h2:1"],
                *words,
            ]
            done = host.run(words, timeout=LIMIT)
            status, err = done.returncode, done.stderr
        else:
            words += ["--workers", "2"]
            status, _, err = measure.run_captured(words, LIMIT)
        if status:
            raise measure.Failure("gpt_dist: status %d: %s" % (status, err))
        with open(path, encoding="utf-8") as file:
            return json.loads(file.readlines()[-1])

    def tune(self, seed, weights):
        more = ["--weights", weights, "--tokens", self.tuning]
        more += ["--vocabulary", self.vocabulary]
        return self.run(seed, self.options.tune, more)["evaluation_loss"]

    def alone(self, seed):
        weights = os.path.join(self.folder, "alone.safetensors")
        more = ["--data", TEXT, "--export", weights]
        report = self.run(seed, self.options.steps, more)
        return {
            "loss": report["evaluation_loss"],
            "tuned": self.tune(seed, weights),
        }

    def two_hosts(self, seed):
        weights = os.path.join(self.folder, "hosts.safetensors")
        more = ["--data", TEXT, "--export", weights]
        more += shlex.split(self.options.flags)
        with netlab.Lab(hosts=2, rate=self.options.rate) as lab:
            report = self.run(seed, self.options.steps, more, lab.hosts[0])
            sent = sent_by(lab.hosts[0])
        ranks = report["ranks"]
        return {
            "loss": report["evaluation_loss"],
            "bytes_per_step": sent / self.options.steps,
            "computing": min(
                r["compute_seconds"] / r["seconds"] for r in ranks
            ),
            "tokens_per_second": report["tokens_per_second"],
            "tuned": self.tune(seed, weights),
        }

    def fp32_bytes(self):
        """Of a step; the more of them, the less what is sent once counts."""
        sent = []
        for steps in (FEW, 2 * FEW):
            with netlab.Lab(hosts=2, rate=self.options.rate) as lab:
                self.run(0, steps, ["--data", TEXT], lab.hosts[0])
                sent.append(sent_by(lab.hosts[0]))
        return (sent[1] - sent[0]) / FEW


def sent_by(host):
    """Bytes that have left its interface."""
    for line in host.run(["cat", "/proc/net/dev"]).stdout.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == host.interface:
            return int(numbers.split()[8])
    raise netlab.LabError("%s has no %s" % (host.name, host.interface))


def tell(record):
    pairs = [
        (seed, record["alone " + seed], record["hosts " + seed])
        for seed in record["seeds"]
        if "hosts " + seed in record
    ]
    print("%-5s %9s %9s %7s   tuned:" % ("seed", "one host", "two", "%"))
    for seed, one, two in pairs:
        print(
            "%-5s %9.4f %9.4f %7.2f   %9.4f %9.4f"
            % (
                *(seed, one["loss"], two["loss"]),
                100 * (two["loss"] / one["loss"] - 1),
                *(one["tuned"], two["tuned"]),
            )
        )
    if not pairs:
        return
    means = [statistics.mean(pair[i]["loss"] for pair in pairs) for i in (1, 2)]
    two = [pair[2] for pair in pairs]
    print(
        "mean of the losses: %.2f %%; bytes of a step: fp32 / %.0f; computing: "
        "%.0f %% of the time, %.0f tokens/s"
        % (
            100 * (means[1] / means[0] - 1),
            record["fp32"] / max(one["bytes_per_step"] for one in two),
            100 * min(one["computing"] for one in two),
            min(one["tokens_per_second"] for one in two),
        )
    )


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="slow_gpt",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", default="10mbit")
    parser.add_argument("--preset", default="10m")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--flags", default=FLAGS)
    parser.add_argument("--results")
    options = parser.parse_args(arguments)
    options.seeds = [seed for seed in options.seeds.split(",") if seed]
    if not all(seed.isdigit() for seed in options.seeds):
        parser.error("--seeds is a list of whole numbers")
    return options


def run_all(options, record):
    """Adds to the record what it lacks."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        jobs = [("fp32", bench.fp32_bytes)]
        for seed in options.seeds:
            jobs.append(("alone " + seed, lambda seed=seed: bench.alone(seed)))
            jobs.append(
                ("hosts " + seed, lambda seed=seed: bench.two_hosts(seed))
            )
        for name, job in jobs:
            if name in record:
                continue
            record[name] = job()
            print("%s: %s" % (name, json.dumps(record[name])), flush=True)
            if options.results:
                measure.write_json(options.results, record)


def main(arguments):
    options = parse(arguments)
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    reason = netlab.missing()
    if reason:
        print("slow_gpt: " + reason, file=sys.stderr)
        return 1
    settings = {k: v for k, v in vars(options).items() if k != "results"}
    record = {"machine": measure.machine(), **settings}
    if options.results and os.path.exists(options.results):
        with open(options.results, encoding="utf-8") as file:
            kept = json.load(file)
        record = {**kept, **record}
        changed = [k for k in settings if k != "seeds" and kept[k] != record[k]]
        if changed:
            print(
                "slow_gpt: %s was measured with another %s"
                % (options.results, ", ".join(changed)),
                file=sys.stderr,
            )
            return 1
    try:
        run_all(options, record)
    except (measure.Failure, netlab.LabError) as failure:
        print("slow_gpt: %s" % failure, file=sys.stderr)
        return 1
    tell(record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
