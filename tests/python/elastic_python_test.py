# SPDX-License-Identifier: Apache-2.0
"""DistOpt(elastic=True): workers that are killed and others that come, and
dist.elastic; the bits are those of a run in which nothing happened."""

import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import elastic_workers
import ranks
from choir import CommError, autograd, data, dist, opt, tensor
from elastic_workers import GLOBAL, SAMPLES, STEPS, Net

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    "CHOIR_THREADS": "1",
}


def alone(epochs):
    """What one worker comes to."""
    (report,) = ranks.results(1, elastic_workers.loop, True, (), epochs)
    assert report["steps"] == epochs * STEPS, report
    return report["digest"]


def survivors(size, function, *arguments):
    """What those returned that were not killed."""
    outcomes = ranks.run(size, function, *arguments)
    left = [o for o in outcomes if not isinstance(o, ranks.Lost)]
    for outcome in left:
        if isinstance(outcome, Exception):
            raise AssertionError(getattr(outcome, "text", outcome))
    return left


class Lost(unittest.TestCase):
    def check(self, left, epochs, generation=2):
        for rank, report in enumerate(left):
            self.assertEqual(report["digest"], alone(epochs), report)
            self.assertEqual(report["steps"], epochs * STEPS)
            for place in ("place", "own", "local"):
                self.assertEqual(report[place], [rank, len(left)])
            self.assertEqual(report["position"], [epochs, 0])
            self.assertEqual(report["generation"], generation)

    def test_steps_are_made_again(self):
        for lost in (0, 2):
            for use_graph in (False, True):
                left = survivors(
                    3, elastic_workers.loop, use_graph, [(lost, 4)]
                )
                self.assertEqual(len(left), 2)
                self.check(left, 2)
                self.assertEqual([r["taken_back"] for r in left], [1, 1])

    def test_the_first_step_and_one_left(self):
        left = survivors(3, elastic_workers.loop, True, [(1, 0), (0, 8)])
        self.assertEqual(len(left), 1)
        self.check(left, 2, 3)

    def test_shards(self):
        left = survivors(
            3, elastic_workers.loop, True, [(1, 4)], 2, (), [("shard", True)]
        )
        self.assertEqual(len(left), 2)
        self.check(left, 2)

    def test_the_batch_of_each_stays(self):
        factors = {"none": 1, "linear": 2 / 3, "sqrt": math.sqrt(2 / 3)}
        for rule, factor in factors.items():
            (want,) = ranks.results(1, elastic_workers.kept_batch, 4, factor)
            settings = [("keep_batch", True), ("rate_rule", rule)]
            left = survivors(
                3, elastic_workers.loop, True, [(1, 4)], 2, (), settings
            )
            self.assertEqual(len(left), 2)
            for report in left:
                # Four of 24 samples and four of 16, then ten of 16.
                self.assertEqual(report["steps"], 18)
                for name in ("steps", "position", "digest"):
                    self.assertEqual(report[name], want[name], rule)

    def test_the_batch_of_each_stays_in_the_next_epoch(self):
        (want,) = ranks.results(1, elastic_workers.kept_batch, STEPS, 1)
        left = survivors(3, elastic_workers.recover_at_the_end)
        self.assertEqual(len(left), 2)
        for report in left:
            self.assertEqual(report["steps"], STEPS + 10)
            for name in ("steps", "position", "digest"):
                self.assertEqual(report[name], want[name])

    def test_leaving(self):
        *others, first = sorted(
            survivors(3, elastic_workers.loop, True, (), 2, [(1, 5)]),
            key=lambda report: "left" in report,
        )
        self.assertEqual(first, {"left": 0, "handle": None})
        self.check(others, 2)

    def test_recover(self):
        left = survivors(3, elastic_workers.recover)
        self.assertEqual(len(left), 2)
        self.check(left, 2)

    def test_run(self):
        for where in (("step", 9), ("end", 1)):
            left = survivors(3, elastic_workers.run_form, where)
            self.assertEqual(len(left), 2)
            self.check(left, 3)
            for report in left:
                self.assertEqual(report["done"], 3)
                # Of the epochs' ends: of three workers, then of two.
                self.assertEqual(report["ranks"], [1.0, 0.5, 0.5])
                self.assertEqual(report["resets"], [2])
                self.assertEqual(report["unsaved"], 0)


class Come(unittest.TestCase):
    def launched(self, form):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        done = subprocess.run(
            [sys.executable, "-m", "choir", "-np", "3", "--elastic"]
            + [elastic_workers.__file__, form, folder],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=55,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        reports = []
        for path in glob.glob(os.path.join(folder, "*.json")):
            with open(path, encoding="utf-8") as file:
                reports.append(json.load(file))
        reports.sort(key=lambda report: report["place"])
        digest = alone(60)
        self.assertEqual(
            [r["place"] for r in reports], [[0, 3], [1, 3], [2, 3]]
        )
        for report in reports:
            self.assertEqual(report["digest"], digest, report)
            self.assertEqual(report["own"], report["place"])
            self.assertEqual(report["local"], report["place"])
            self.assertEqual(report["generation"], 3)
            self.assertEqual(report["has_come"], report["place"][0] == 2)
        return reports

    def test_another_takes_its_place(self):
        reports = self.launched("loop")
        # Who lost one and took another in.
        self.assertEqual([r["taken_back"] for r in reports], [2, 2, 0])

    def test_run(self):
        first, *others = self.launched("run")
        self.assertEqual(len(first["sizes"]), 60)
        self.assertEqual(first["sizes"], sorted(first["sizes"]))
        self.assertEqual(first["sizes"][-1], 3)
        for report in others:
            self.assertEqual(report["sizes"], first["sizes"])


# ---- Mistakes ----


def started(option="fp32", use_graph=True, precision=None, **settings):
    net = Net(sync=False)
    sgd = opt.DistOpt(opt.SGD(lr=0.1), **{"elastic": True, **settings})
    sgd.use(option)
    net.set_optimizer(sgd)
    net.compile(
        [tensor.Tensor((4, 1, 8, 8))], True, use_graph, False, precision
    )
    return net


def loader(**settings):
    return data.Loader(
        data.synthetic(SAMPLES, (1, 8, 8), 5),
        rank=dist.rank(),
        size=dist.size(),
        **settings,
    )


def batch():
    return tensor.Tensor((4, 1, 8, 8)), tensor.Tensor((4,), dtype=tensor.int32)


def mistakes(rank, size, nccl_id):
    dist.init(nccl_id, rank, size, deadline=25.0)
    case = unittest.TestCase()
    settings = {
        "needs one pass per step": {"backward_passes_per_step": 2},
        "elastic with powerSGD, which keeps more": {"option": "powerSGD"},
        "elastic with localSGD, which keeps more": {"option": "localSGD"},
    }
    for words, setting in settings.items():
        with case.assertRaisesRegex(NotImplementedError, words):
            started(**setting).follow(loader(global_batch=GLOBAL))
    with case.assertRaisesRegex(RuntimeError, r"needs model.follow\(loader\)"):
        started()(*batch())
    for words, setting in {
        "keep_batch needs elastic": {"elastic": False, "keep_batch": True},
        "rate_rule needs keep_batch": {"rate_rule": "sqrt"},
        "rate_rule": {"keep_batch": True, "rate_rule": "cubic"},
    }.items():
        with case.assertRaisesRegex(ValueError, words):
            net = started(**setting)
            net.follow(None)
            net(*batch())
    with case.assertRaisesRegex(RuntimeError, 'precision="auto"'):
        started(precision="auto").follow(None)

    net = started()
    net.follow(None)
    x, y = batch()
    net(x, y)
    with case.assertRaisesRegex(CommError, "^my own$"):
        net.optimizer.recover(CommError("my own"))
    with case.assertRaisesRegex(NotImplementedError, "a compiled model.Model"):
        net.optimizer(autograd.softmax_cross_entropy(net.forward(x), y))
    with case.assertRaisesRegex(ValueError, "before epoch 2"):
        loader(global_batch=GLOBAL).rest_of(2)


def own_failures(rank, size, nccl_id):
    """What the function itself raises comes out of elastic.run."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    case = unittest.TestCase()
    calls = []

    @dist.elastic.run
    def train(state, error):
        calls.append(state.value)
        raise error

    state = dist.elastic.ObjectState(value=rank)
    with case.assertRaisesRegex(CommError, "nobody is lost"):
        train(state, CommError("nobody is lost"))
    with case.assertRaisesRegex(KeyError, "mine"):
        train(state, KeyError("mine"))
    case.assertEqual(calls, [0, 0])  # rank 0's
    state.value = 5
    state.restore()
    case.assertEqual(state.value, 0)
    state.value = 7
    state.commit()
    state.restore()
    case.assertEqual(state.value, 7)


def other_optimizers(rank, size, nccl_id):
    """follow is for any optimizer."""
    net = Net(sync=False)
    net.set_optimizer(opt.SGD(lr=0.1))
    net.compile([tensor.Tensor((4, 1, 8, 8))], True, True)
    net.follow(data.Loader(data.synthetic(SAMPLES, (1, 8, 8), 5), 8))
    net(*batch())


class Mistakes(unittest.TestCase):
    def test_mistakes(self):
        ranks.results(2, mistakes)

    def test_own_failures(self):
        ranks.results(2, own_failures)

    def test_other_optimizers(self):
        ranks.results(1, other_optimizers)


if __name__ == "__main__":
    unittest.main()
