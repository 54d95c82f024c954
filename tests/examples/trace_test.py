# SPDX-License-Identifier: Apache-2.0
"""--timeline and --verbosity: which events and rows there are, in which order.
How long anything takes, no test asks."""

import json
import os

from tests.examples import harness

# A graph may let a convolution do its pooling's work as well.
LABELS = {"conv1", "conv2", "linear1", "linear2"}
PARAMS = {f"{layer}.{part}" for layer in LABELS for part in "Wb"}


class Trace:
    def __init__(self, path):
        with open(path, encoding="ascii") as file:
            self.all = json.load(file)["traceEvents"]
        self.events = [event for event in self.all if event["ph"] == "X"]
        self.processes = self.names("process_name")
        self.threads = self.names("thread_name")

    def names(self, kind):
        return {
            (event["pid"], event.get("tid")): event["args"]["name"]
            for event in self.all
            if event["name"] == kind
        }

    def find(self, name, rank, of=None):
        """The events in order of their starts."""
        found = [
            event
            for event in self.events
            if event["pid"] == rank
            and event["name"] == name
            and (of is None or event.get("args", {}).get("of") == of)
        ]
        return sorted(found, key=lambda event: event["ts"])


def end(event):
    # Times have three decimals each.
    return event["ts"] + event["dur"] + 0.002


class TraceTest(harness.ProgramTest):
    def trace(self, *arguments, **options):
        path = self.path("trace.json")
        out = self.train("--timeline", path, *arguments, **options)
        harness.epochs_of(out)  # nothing else is printed
        return Trace(path)

    def check_steps(self, trace, rank, steps):
        """The parts of a step, each in its place."""
        for name in ("step", "forward", "backward", "update"):
            self.assertEqual(len(trace.find(name, rank)), steps, name)
        main = {event["tid"] for event in trace.find("step", rank)}
        self.assertEqual(len(main), 1)
        main = main.pop()
        self.assertEqual(trace.threads[rank, main], "main")
        inside = {}
        for event in trace.events:
            self.assertGreaterEqual(event["ts"], 0)
            self.assertGreaterEqual(event["dur"], 0)
            if (event["pid"], event["tid"], event["cat"]) == (rank, main, "op"):
                of = event.get("args", {}).get("of")
                inside.setdefault(of, []).append(event)
        self.assertLess(LABELS, set(inside))
        # Each parameter once in each step, unless ranks share them out.
        updates = trace.find("sgd_update/cpu", rank)
        updated = {event["args"]["of"] for event in updates}
        if trace.find("give/dist_opt", rank):
            for name in ("average/dist_opt", "give/dist_opt"):
                self.assertEqual(len(trace.find(name, rank)), len(updates))
            self.assertEqual(len(updates) % steps, 0)
            self.assertLessEqual(updated, PARAMS)
        else:
            self.assertEqual(len(updates), 8 * steps)
            self.assertEqual(updated, PARAMS)
        for i, step in enumerate(trace.find("step", rank)):
            forward = trace.find("forward", rank)[i]
            backward = trace.find("backward", rank)[i]
            update = trace.find("update", rank)[i]
            self.assertLessEqual(step["ts"], forward["ts"])
            self.assertLessEqual(forward["ts"], end(forward))
            self.assertLessEqual(end(forward), backward["ts"] + 0.004)
            self.assertLessEqual(end(backward), update["ts"] + 0.004)
            self.assertLessEqual(end(update), end(step) + 0.004)
            for events in inside.values():
                self.assertTrue(
                    any(
                        step["ts"] <= event["ts"] + 0.002
                        and end(event) <= end(step) + 0.004
                        for event in events
                    )
                )
        waits = trace.find("wait for a batch", rank)
        self.assertEqual(len(waits), steps)
        self.assertEqual({event["cat"] for event in waits}, {"loader"})

    def test_one_process(self):
        # 20 steps, of which the first 5 are left out.
        trace = self.trace(
            "--epochs", 1, "--batch-size", 32, "--timeline-steps", 4,
            program="mnist",
        )  # fmt: skip
        self.assertEqual(set(trace.processes.values()), {"rank 0"})
        self.check_steps(trace, 0, 4)
        self.assertEqual([e for e in trace.events if e["cat"] == "comm"], [])

    def test_short_run_is_all_there(self):
        # 640 samples of 320 a step: two steps, no warm-up.
        trace = self.trace("--epochs", 1, "--batch-size", 320, program="mnist")
        self.check_steps(trace, 0, 2)

    def ranks(self, steps, *arguments):
        trace = self.trace(
            "--workers", 3, "--epochs", 1, "--batch-size", 16,
            "--timeline-steps", steps, *arguments
        )  # fmt: skip
        self.assertEqual({pid for pid, _ in trace.processes}, {0, 1, 2})
        for (rank, _), name in trace.processes.items():
            self.assertRegex(name, r"^rank %d \(host .*, pid \d+\)$" % rank)
        for rank in range(3):
            self.check_steps(trace, rank, steps)
        return trace

    def check_meetings(self, meetings):
        """No rank is through before all have come: one clock for all."""
        for events in zip(*meetings):
            self.assertEqual(len({e["args"]["of"] for e in events}), 1)
            last_start = max(event["ts"] for event in events)
            first_end = min(end(event) for event in events)
            self.assertLessEqual(last_start, first_end)

    def check_exchange_beside_backward(self, *arguments):
        steps = 4
        trace = self.ranks(steps, *arguments)
        reduced = []
        for rank in range(3):
            all_reduces = trace.find("all_reduce/comm", rank)
            reduced.append(all_reduces)
            self.assertEqual({e["cat"] for e in all_reduces}, {"comm"})
            # Each bucket once in each step: beside the training thread, but for
            # the last, which has nothing to run beside.
            buckets = sorted({event["args"]["of"] for event in all_reduces})
            self.assertEqual(len(all_reduces), steps * len(buckets))
            self.assertGreater(len(buckets), 1)
            for event in all_reduces:
                self.assertEqual(
                    trace.threads[rank, event["tid"]],
                    "main"
                    if event["args"]["of"] == buckets[-1]
                    else "choir-stream",
                )
            # A step goes on when the others are there, with the last one.
            waits = trace.find("wait", rank, of="exchange of gradients")
            self.assertEqual(len(waits), steps)
            for i, wait in enumerate(waits):
                *others, last = all_reduces[
                    i * len(buckets) : (i + 1) * len(buckets)
                ]
                for event in others:
                    self.assertLessEqual(end(event), end(wait) + 0.004)
                self.assertLessEqual(end(wait), last["ts"] + 0.004)
        self.check_meetings(reduced)

    def test_all_ranks_through_mpi(self):
        self.check_exchange_beside_backward(
            "--launcher", "mpi", "--comm", "mpi"
        )

    def test_all_ranks_over_tcp(self):
        self.check_exchange_beside_backward("--comm", "tcp")

    def check_shared_update(self, threads):
        steps = 4
        trace = self.ranks(steps, "--threads", threads)
        updated = set()
        for name in ("all_gather/comm", "barrier/comm"):
            meetings = [trace.find(name, rank) for rank in range(3)]
            self.assertEqual([len(events) for events in meetings], [steps] * 3)
            self.check_meetings(meetings)
        for rank in range(3):
            updates = trace.find("sgd_update/cpu", rank)
            updated |= {event["args"]["of"] for event in updates}
        self.assertEqual(updated, PARAMS)

    def test_all_ranks_through_shared_memory(self):
        self.check_shared_update(1)

    def test_all_ranks_of_several_threads(self):
        self.check_shared_update(2)

    def test_verbosity_prints_a_table_after_each_epoch(self):
        run = ("--epochs", 2, "--workers", 2, "--threads", 1, "--limit", 256)
        plain = self.train(*run)
        for verbosity in (1, 2):
            out = self.train(*run, "--verbosity", verbosity)
            tables = [
                part[: part.find("Starting Epoch")]
                for part in (out + "Starting Epoch").split("Time Profiling:\n")
            ][1:]
            rest = out
            for table in tables:
                rest = rest.replace("Time Profiling:\n" + table, "")
            # The training is the same, and so is what it prints.
            self.assertEqual(
                harness.digests_of(rest), harness.digests_of(plain)
            )
            self.assertEqual(len(tables), 2)
            for table in tables:
                for phase in ("forward", "backward", "update"):
                    # 256 samples are 2 steps of two times 64.
                    self.assertRegex(
                        table, r"%s: \d+\.\d{6} s each, 2 times, " % phase
                    )
                self.assertEqual("sgd_update/cpu" in table, verbosity == 2)
                self.assertEqual("barrier/comm" in table, verbosity == 2)
                self.assertEqual("GFLOP/s" in table, verbosity == 2)
                self.assertEqual(len(table.splitlines()) == 4, verbosity == 1)

    def test_quiet_writes_the_timeline_only(self):
        path = self.path("trace.json")
        flags = ("--quiet", "--epochs", 1, "--verbosity", 2)
        out = self.train("--timeline", path, *flags)
        self.assertEqual(out, "")
        self.assertEqual({pid for pid, _ in Trace(path).processes}, {0, 1})

    def test_file_that_cannot_be_written_is_told(self):
        harness.small_data(self.data)
        path = os.path.join(self.folder, "none", "trace.json")
        status, out, err = self.run_program(
            "--timeline", path, "--data", self.data, program="mnist"
        )
        self.assertEqual((status, out), (1, ""))
        self.assertIn("timeline: cannot write to " + path, err)
        # Only written at the end, which is a failure all the same.
        status, out, err = self.run_program(
            "--timeline", "/dev/full", "--data", self.data, "--epochs", 1,
            program="mnist",
        )  # fmt: skip
        self.assertEqual(status, 1)
        self.assertIn("timeline: cannot write to /dev/full", err)


if __name__ == "__main__":
    harness.main()
