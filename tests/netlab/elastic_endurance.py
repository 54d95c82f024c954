# SPDX-License-Identifier: Apache-2.0
"""An elastic run on hosts of the lab that loses something every few seconds.

    elastic_endurance.py --minutes 60 --seed 1 --save faults.json
    elastic_endurance.py --minutes 60 --quiet --save quiet.json
    elastic_endurance.py --compare faults.json quiet.json

Eight workers on three hosts, each held to a part of a core, train under choirrun, which
is on a host of its own, on as many images as make an epoch short. A fault of a random
kind comes every --every seconds, or at once where the one before took longer: a worker is
killed, stopped for a while, or asked to leave; the first of them is killed; a host is cut
off, frozen, or behind a slow cable for a while; a host is added and taken away again; a
host that there is not is named. Each has to be told by rank or host, and cause, within
--told seconds; epochs have to go on; each epoch's digest is, with --compare, that of the
run without faults. --compare also tells the goodput, as it is and without the time for
which workers that are stopped or cut off are waited for, and what a fault of each kind
costs.

As root: bazel run //tests/netlab:elastic_endurance -- --minutes 60 --seed 7 ...
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from tests.examples import harness
from tests.netlab import netlab

HOSTS = {"h2": 3, "h3": 3, "h4": 2}
GROUPS = "/sys/fs/cgroup/cpu"
RATE = "100mbit"
SLOW_RATE = "1mbit"
DEADLINE = 3  # of the workers, seconds
SILENCE = 1  # likewise, until one that is stopped or cut off is left out
SETTLED = 5  # seconds after which a newcomer takes part
EPOCH = re.compile(r"Starting Epoch (\d+):")
DIGEST = re.compile(r"images/s = .* digest = ([0-9a-f]{16})")


class Failed(Exception):
    """What must not happen."""


class Worker:
    def __init__(self, pid, host, rank):
        self.pid = pid
        self.host = host
        self.rank = rank
        # On its host.
        with open("/proc/%d/status" % pid) as file:
            self.own_pid = re.search(r"NSpid:.*\s(\d+)\n", file.read())[1]

    def __str__(self):
        return "host %s, pid %s" % (self.host, self.own_pid)


class Endurance:
    def __init__(self, options, lab):
        self.options = options
        self.lab = lab
        self.random = random.Random(options.seed)
        self.hosts = {host.name: host for host in lab.hosts}
        self.hostfile = os.path.join(lab.folder, "hosts")
        self.heard = threading.Condition()
        self.lines = []  # (seconds, line)
        self.digests = {}  # of epochs
        self.ended = []  # when an epoch ended for the first time
        self.faults = []  # (kind, when)
        self.epoch = -1
        self.moved = time.monotonic()
        self.groups = {}  # pid: folder of its control group
        self.told = []  # (kind, seconds)
        self.seen = {}  # pid: since when
        self.extra = {}  # hosts beside HOSTS
        self.wrong = None
        self.over = threading.Event()
        self.holder = threading.Thread(target=self.hold_all)

    # ---- The run ----

    def write_hosts(self):
        entries = {**HOSTS, **self.extra}
        text = "".join("%s slots=%d\n" % entry for entry in entries.items())
        with open(self.hostfile + ".new", "w") as file:
            file.write(text)
        os.rename(self.hostfile + ".new", self.hostfile)

    def start(self):
        self.write_hosts()
        program = os.path.join(harness.ROOT, "examples/mnist_dist")
        command = [sys.executable]
        command.append(os.path.join(harness.ROOT, "tools/choirrun/choirrun.py"))
        command += ["--min-np", "8", "--max-np", "9", "-np", "8"]
        command += ["--hostfile", self.hostfile, program, "--elastic"]
        data = os.path.join(self.lab.folder, "data")
        harness.small_data(data, training=self.options.samples)
        command += ["--data", data, "--threads", "1"]
        command += ["--reproducible", "--micro-shard", "4"]
        command += ["--global-batch", "96", "--epochs", "1000000"]
        command += ["--deadline", DEADLINE, "--silence", SILENCE]
        self.process = self.hosts["h1"].start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            now = time.monotonic()
            with self.heard:
                self.lines.append((now, line))
                self.take(line, now)
                self.heard.notify_all()
            if self.options.verbose:
                sys.stdout.write("%7.1f %s" % (now - self.began, line))
                sys.stdout.flush()

    def take(self, line, now):
        start = EPOCH.search(line)
        digest = DIGEST.search(line)
        if start:
            self.epoch = int(start[1])
        # The end of an epoch is told once more where a change came between.
        if digest and digest[1] != self.digests.get(self.epoch - 1):
            if self.epoch not in self.digests:
                self.ended.append(now)
            known = self.digests.setdefault(self.epoch, digest[1])
            self.moved = now
            if known != digest[1]:
                self.wrong = "epoch %d has two digests" % self.epoch

    def hold(self):
        """Each worker to its part of a core, where there are control groups."""
        for worker in self.workers() if os.path.isdir(GROUPS) else ():
            if worker.pid in self.groups:
                continue
            folder = "%s/choir-%d-%d" % (GROUPS, os.getpid(), worker.pid)
            os.mkdir(folder)
            self.groups[worker.pid] = folder
            quota = int(100000 * self.options.core)
            for name, text in (
                ("cpu.cfs_quota_us", str(quota)),
                ("cgroup.procs", str(worker.pid)),
            ):
                try:
                    with open(os.path.join(folder, name), "w") as file:
                        file.write(text)
                except ProcessLookupError:
                    pass

    def hold_all(self):
        while not self.over.wait(0.25):
            self.hold()

    def release(self):
        self.over.set()
        if self.holder.is_alive():
            self.holder.join()
        for folder in self.groups.values():
            try:
                os.rmdir(folder)
            except OSError:
                pass

    def workers(self):
        """Of this lab, in the order in which they came."""
        found = []
        for host in self.lab.hosts:
            for pid, rank in host.ranks("mnist_dist").items():
                try:
                    found.append(Worker(pid, host.name, rank))
                except OSError:
                    pass  # it has ended
        for worker in found:
            self.seen.setdefault(worker.pid, time.monotonic())
        return sorted(found, key=lambda worker: worker.rank)

    def until(self, pattern, seconds, at=None):
        """Seconds until a line like this one came, from now on, or from line `at` on;
        None: none did."""
        begin = time.monotonic()
        at = len(self.lines) if at is None else at
        with self.heard:
            while True:
                for when, line in self.lines[at:]:
                    if re.search(pattern, line):
                        return max(when - begin, 0)
                at = len(self.lines)
                left = begin + seconds - time.monotonic()
                if left <= 0:
                    return None
                self.heard.wait(left)

    def expect(self, kind, pattern, seconds=None, at=None):
        took = self.until(pattern, seconds or self.options.told, at)
        if took is None:
            raise Failed("%s: no line with '%s' came" % (kind, pattern))
        self.told.append((kind, took))

    # ---- Faults ----

    def any_worker(self):
        """One that takes part, in all likelihood."""
        old = time.monotonic() - SETTLED
        settled = [w for w in self.workers() if self.seen[w.pid] < old]
        return self.random.choice(settled or self.workers())

    def any_host(self):
        used = {worker.host for worker in self.workers()}
        return self.random.choice(sorted(used & set(HOSTS)))

    def kill(self, kind="killed", worker=None):
        worker = worker or self.any_worker()
        os.kill(worker.pid, signal.SIGKILL)
        self.expect(kind, r"%s\) (is gone|was killed)" % worker)

    def kill_first(self):
        self.kill("first killed", self.workers()[0])

    def stop(self):
        worker = self.any_worker()
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            self.expect("stopped", r"%s\) did not answer" % worker)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        self.expect("back", r"process %s .*has come" % worker.own_pid)

    def leave(self):
        worker = self.any_worker()
        os.kill(worker.pid, signal.SIGTERM)
        self.expect("asked to leave", r"%s\) (has left|is gone)" % worker)

    def away(self, kind, begin, end):
        name = self.any_host()
        there = [w for w in self.workers() if w.host == name]
        begin(self.hosts[name])
        try:
            how = "(did not answer|is gone|is behind a slow link)"
            self.expect(kind, r"%s\) %s" % (there[0], how))
            time.sleep(2)
        finally:
            at = len(self.lines)
            end(self.hosts[name])
        come = r"process %s .*has come|host %s, pid \d+\) takes part"
        self.expect("host back", come % (there[0].own_pid, name), 60, at)

    def cut(self):
        self.away("cut off", netlab.Host.cut, netlab.Host.mend)

    def freeze(self):
        self.away("frozen", netlab.Host.freeze, netlab.Host.thaw)

    def slow(self):
        self.away(
            "slow",
            lambda host: host.set_rate(SLOW_RATE),
            lambda host: host.set_rate(RATE),
        )

    def add_host(self):
        """There is room for one more; it goes by the next call."""
        if "h5" in self.extra:
            del self.extra["h5"]
            self.write_hosts()
            self.expect("host removed", r"h5 is not listed any more")
        else:
            self.extra["h5"] = 1
            self.write_hosts()
            self.expect("host added", r"10\.77\.0\.5:\d+ has come")

    def wrong_host(self):
        if "h5" in self.extra:
            self.add_host()
        self.extra["nowhere"] = 1
        self.write_hosts()
        self.expect("wrong host", r"nowhere: no host of the name")
        del self.extra["nowhere"]
        self.write_hosts()

    # Some come more often.
    FAULTS = (kill, kill_first, stop, leave, cut, freeze, slow, add_host)
    FAULTS += (wrong_host, kill, stop)
    # That are known by a limit alone.
    WAITED = ("stop", "cut", "freeze")

    # ---- The whole ----

    def check(self):
        if self.wrong:
            raise Failed(self.wrong)
        if self.process.poll() is not None:
            raise Failed("choirrun ended with status %d" % self.process.poll())
        if time.monotonic() - self.moved > self.options.hang:
            raise Failed("no epoch has ended for %d s" % self.options.hang)

    def pause(self, until):
        while True:
            self.check()
            if time.monotonic() >= until:
                return
            time.sleep(0.25)

    def make_fault(self):
        fault = self.random.choice(self.options.kinds)
        self.faults.append((fault.__name__, time.monotonic()))
        print("%7.1f %s" % (time.monotonic() - self.began, fault.__name__))
        sys.stdout.flush()
        fault(self)

    def run(self):
        self.began = time.monotonic()
        for host in self.lab.hosts:
            host.set_rate(RATE)
        self.start()
        if self.until("Starting Epoch 0", 60) is None:
            raise Failed("it did not start")
        self.holder.start()
        self.begin = time.monotonic()
        end = self.begin + 60 * self.options.minutes
        at = self.begin + self.options.every
        while not self.options.quiet and at < end:
            self.pause(at)
            self.make_fault()
            at += self.options.every
        self.pause(end)
        return time.monotonic() - self.begin

    def report(self, seconds):
        print("%d epochs in %.0f s" % (len(self.digests), seconds))
        print(
            "%d faults, %.1f a minute"
            % (len(self.faults), 60 * len(self.faults) / seconds)
        )
        for kind in sorted({kind for kind, _ in self.told}):
            times = sorted(took for other, took in self.told if other == kind)
            print(
                "%-16s %3d times, told within %.2f s (median), %.2f s (most)"
                % (kind, len(times), times[len(times) // 2], times[-1])
            )
        if self.options.save:
            self.save(seconds)

    def save(self, seconds):
        faults = [(kind, when - self.begin) for kind, when in self.faults]
        saved = {
            "seconds": seconds,
            "digests": self.digests,
            "ended": [when - self.begin for when in self.ended],
            "faults": faults,
            "waited": SILENCE * sum(k in self.WAITED for k, _ in faults),
        }
        with open(self.options.save, "w") as file:
            json.dump(saved, file)


def costs(run, pace):
    """[kind, seconds in which a run of `pace` seconds an epoch would have done more]
    of each fault, up to the next."""
    begins = [when for _, when in run["faults"]] + [run["seconds"]]
    found = []
    for (kind, begin), end in zip(run["faults"], begins[1:]):
        made = sum(begin < when <= end for when in run["ended"])
        found.append((kind, end - begin - made * pace))
    return found


def compare(paths):
    """Of a run with faults, and of one without."""
    runs = []
    for path in paths:
        with open(path) as file:
            runs.append(json.load(file))
    faults, quiet = runs
    common = set(faults["digests"]) & set(quiet["digests"])
    wrong = sum(faults["digests"][e] != quiet["digests"][e] for e in common)
    pace = quiet["seconds"] / len(quiet["digests"])
    needed = pace * len(faults["digests"])
    print(
        "%d of %d digests are others; goodput %.3f, %.3f without %g s of waiting"
        % (
            wrong,
            len(common),
            needed / faults["seconds"],
            needed / (faults["seconds"] - faults["waited"]),
            faults["waited"],
        )
    )
    lost = costs(faults, pace)
    for kind in sorted({kind for kind, _ in lost}):
        of_kind = [seconds for other, seconds in lost if other == kind]
        print(
            "%-16s %3d times, costs %.1f s"
            % (kind, len(of_kind), sum(of_kind) / len(of_kind))
        )
    return int(wrong > 0)


def kinds_of(text):
    names = text.split(",")
    found = [f for f in Endurance.FAULTS if f.__name__ in names]
    unknown = set(names) - {fault.__name__ for fault in found}
    if unknown:
        raise argparse.ArgumentTypeError(
            "there is no %s; there are %s"
            % (
                ", ".join(sorted(unknown)),
                ", ".join(sorted({f.__name__ for f in Endurance.FAULTS})),
            )
        )
    return found


def parse(arguments):
    parser = argparse.ArgumentParser(
        description="An elastic run that loses something every few seconds."
    )
    add = parser.add_argument
    add("--minutes", type=float, default=4)
    add("--seed", type=int, default=1)
    add("--every", type=float, default=15, help="seconds from fault to fault")
    add(
        "--kinds",
        type=kinds_of,
        default=Endurance.FAULTS,
        metavar="KIND,...",
        help="of faults; all: any",
    )
    add("--told", type=float, default=15, help="seconds")
    add("--hang", type=float, default=60, help="seconds")
    add("--core", type=float, default=0.2, help="of each worker")
    add("--quiet", action="store_true", help="without faults")
    add("--samples", type=int, default=960, help="of an epoch")
    add("--save", metavar="FILE")
    add("--compare", nargs=2, metavar="FILE")
    add("--verbose", action="store_true", help="all that the run says")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    if options.compare:
        return compare(options.compare)
    reason = netlab.missing()
    if reason:
        sys.exit(reason)
    with netlab.Lab(hosts=5) as lab:
        run = Endurance(options, lab)
        try:
            run.report(run.run())
        except Failed as failure:
            print("failed: %s; the last lines:" % failure)
            sys.stdout.writelines(line for _, line in run.lines[-40:])
            return 1
        finally:
            run.process.kill()
            for host in lab.hosts:
                host.close()
            run.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
