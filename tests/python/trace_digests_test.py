# SPDX-License-Identifier: Apache-2.0
"""Device.trace_digests: in scripts without a model, in models with and without
graphs, on several ranks."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

import numpy as np

import ranks
from choir import NotFoundError, StateError, UnavailableError
from choir import autograd, dist, opt, tensor
from choir.__main__ import main
from small_models import DEV, made, samples


def lines(path):
    with open(path, encoding="utf-8") as file:
        next(file)
        return [line.rstrip("\n").split("\t") for line in file]


def train(path, use_graph=True, detail="tensor", steps=4, optimizer=None):
    """The digest of what was learnt."""
    net = made(use_graph=use_graph, optimizer=optimizer)
    DEV.trace_digests(path, detail)
    for step in range(steps):
        net(*samples(seed=step))
    DEV.stop_trace()
    return net.digest()


def train_a_rank(rank, size, nccl_id, folder):
    dist.init(nccl_id, rank, size, deadline=25.0)
    for name, use_graph in (("graph", True), ("plain", False)):
        sgd = opt.DistOpt(opt.SGD(lr=0.1))
        train(os.path.join(folder, name), use_graph, optimizer=sgd)


class TraceDigestsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(DEV.stop_trace)

    def path(self, name):
        return os.path.join(self.folder, name)

    def compared(self, a, b):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            main(["compare", self.path(a), self.path(b)])
        return said.getvalue()

    def test_a_graph_shows_what_a_run_without_one_does(self):
        net = made(use_graph=True)
        for step in range(4):
            net(*samples(seed=step))
        digest = train(self.path("graph"))
        self.assertEqual(digest, net.digest())
        self.assertEqual(train(self.path("plain"), False), digest)
        self.assertRegex(
            self.compared("graph", "plain"), r"Equal: 4 steps, \d+ records\."
        )
        seen = lines(self.path("graph"))
        self.assertEqual({words[0] for words in seen}, set("0123"))
        self.assertLess({"l1", "l2"}, {words[3] for words in seen})
        self.assertEqual(
            {w[4] for w in seen if w[2] == "parameters"},
            {f"result {name}" for name in net.get_states()},
        )

    def test_a_trace_in_the_middle_of_graphs(self):
        """Steps that are recorded go on to be replayed after it."""
        digests = []
        for traced in (False, True):
            net = made(use_graph=True)
            for step in range(8):
                if traced and step == 4:
                    DEV.trace_digests(self.path("a"))
                net(*samples(seed=step))
                if step == 5:
                    DEV.stop_trace()
            digests.append(net.digest())
        self.assertEqual(*digests)
        self.assertEqual(
            {words[0] for words in lines(self.path("a"))}, set("45")
        )

    def test_details(self):
        for detail, graphs in (("layer", False), ("step", True)):
            net = made(use_graph=True)
            DEV.trace_digests(self.path("a"), detail)
            for step in range(4):
                net(*samples(seed=step))
            DEV.stop_trace()
            self.assertEqual(net.calls < 4, graphs)
            seen = lines(self.path("a"))
            names = {words[2] for words in seen}
            if detail == "step":
                self.assertEqual(names, {"parameters"})
                self.assertEqual(len(seen), 4 * len(net.get_states()))
            else:
                layers = [w[3] for w in seen if w[4] == "results"]
                self.assertIn("l2", layers)
                for one, other in zip(layers, layers[1:]):
                    self.assertNotEqual(one, other)

    def test_a_script_without_a_model(self):
        def run(path):
            DEV.SetRandSeed(1)
            weight = tensor.from_numpy(np.ones((5, 3), np.float32))
            weight.stores_grad = True
            weight.name = "weight"
            sgd = opt.SGD(lr=0.1)
            DEV.trace_digests(path)
            for step in range(3):
                x, y = samples(seed=step)
                scores = autograd.matmul(x, weight)
                sgd(autograd.softmax_cross_entropy(scores, y))
            DEV.stop_trace()

        with mock.patch.object(autograd, "training", True):
            run(self.path("a"))
            run(self.path("b"))
        self.assertRegex(self.compared("a", "b"), r"Equal: 3 steps, ")
        firsts = [w for w in lines(self.path("a")) if w[2] == "matmul"]
        self.assertEqual({words[0] for words in firsts}, set("012"))

    def test_gradients_that_are_applied_one_by_one(self):
        value = tensor.from_numpy(np.ones(3, np.float32))
        grad = tensor.from_numpy(np.ones(3, np.float32))
        sgd = opt.SGD(lr=0.1)
        DEV.trace_digests(self.path("a"))
        for _ in range(3):
            sgd.apply("value", value, grad)
            sgd.step()
        DEV.stop_trace()
        updates = [w for w in lines(self.path("a")) if w[2] == "sgd_update"]
        self.assertEqual({words[0] for words in updates}, set("012"))

    def test_ranks(self):
        ranks.results(2, train_a_rank, self.folder)
        self.assertEqual(
            sorted(os.listdir(self.folder)),
            ["graph", "graph.1", "plain", "plain.1"],
        )
        self.assertRegex(
            self.compared("graph", "plain"),
            r"Equal: 4 steps, \d+ records of each of 2 ranks\.",
        )
        seen = lines(self.path("graph.1"))
        self.assertIn("average/dist_opt", {words[2] for words in seen})
        # What the other rank gave is seen where all have it.
        given = [w[4] for w in seen if w[2] == "barrier/comm"]
        self.assertIn("result l2.W", given)

    def test_a_rank_by_its_launcher(self):
        with mock.patch.dict(os.environ, {"CHOIR_RANK": "3"}):
            DEV.trace_digests(self.path("a"))
        DEV.stop_trace()
        DEV.trace_digests(self.path("a"), rank=1)
        DEV.stop_trace()
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.1", "a.3"])

    def test_mistakes(self):
        with self.assertRaisesRegex(NotFoundError, "trace: cannot write to "):
            DEV.trace_digests(self.path("none/a"))
        with self.assertRaisesRegex(ValueError, "tensor, layer or step is"):
            DEV.trace_digests(self.path("a"), "op")
        with self.assertRaisesRegex(UnavailableError, "No space left"):
            DEV.trace_digests("/dev/full")
        DEV.trace_digests(self.path("a"))
        with self.assertRaisesRegex(StateError, "traced already, to "):
            DEV.trace_digests(self.path("b"))
        DEV.stop_trace()
        DEV.stop_trace()  # nothing is left to end


if __name__ == "__main__":
    unittest.main()
