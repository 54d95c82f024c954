# SPDX-License-Identifier: Apache-2.0
"""What pickle and copy give, and what they refuse. Hundreds: storm_test.py."""

import copy
import pickle
import unittest

import numpy as np

import ranks
from choir import StateError, autograd, data, device, layer, model, opt
from choir import singa_wrap, tensor

CPU = device.create_cpu_device()
WAYS = [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy]


class CNN(model.Model):
    def __init__(self):
        super().__init__()
        self.conv = layer.Conv2d(4, 3, padding=1, pad_mode="SAME_UPPER")
        self.norm = layer.BatchNorm2d()
        self.pool = layer.AvgPool2d(2)
        self.act = autograd.Elu(0.5)
        self.drop = layer.Dropout(0.2)
        self.fc = layer.Linear(3)

    def forward(self, x):
        x = self.act(self.pool(self.norm(self.conv(x))))[0]
        return self.fc(self.drop(autograd.flatten(x)))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


def batch():
    x = np.random.default_rng(0).normal(size=(4, 2, 6, 6)).astype(np.float32)
    return tensor.from_numpy(x), tensor.from_numpy(np.int32([0, 2, 1, 1]))


def trained(use_graph=False, optimizer=None, steps=3):
    CPU.SetRandSeed(5)
    m = CNN()
    m.set_optimizer(optimizer or opt.Adam(lr=opt.Cosine(0.1, 20)))
    m.compile([batch()[0]], True, use_graph)
    for _ in range(steps):
        m(*batch())
    return m


class Recurrent(model.Model):
    """LSTM, RNN, Gemm."""

    def __init__(self):
        super().__init__()
        self.lstm = layer.LSTM(5, 4)
        self.rnn = layer.RNN(4, 3, nonlinearity="relu", bias=False)
        self.fc = layer.Gemm(3)

    def forward(self, x):
        h, c = tensor.zeros((x.shape[0], 4)), tensor.zeros((x.shape[0], 4))
        steps, _, _ = self.lstm([x, x * 0.5, x * x], (h, c))
        _, h = self.rnn(steps, tensor.zeros((x.shape[0], 3)))
        return self.fc(h)

    train_one_batch = CNN.train_one_batch.__wrapped__


class Separable(Recurrent):
    """A separable convolution, whose parts are made at its first call."""

    def __init__(self):
        model.Model.__init__(self)
        self.conv = layer.SeparableConv2d(4, 3, padding=1)
        self.pool = layer.MaxPool2d(2)
        self.fc = layer.Linear(3)

    def forward(self, x):
        return self.fc(autograd.flatten(self.pool(self.conv(x))))


class Words(Recurrent):
    """A table of which rows are taken."""

    def __init__(self):
        model.Model.__init__(self)
        self.table = layer.Embedding(7, 4, "uniform")
        self.fc = layer.Linear(3)

    def forward(self, x):
        return self.fc(autograd.flatten(self.table(x)))


def train_on(_rank, _size, _nccl_id, m):
    """In another process."""
    for _ in range(3):
        m(*batch())
    return m


class Models(unittest.TestCase):
    def test_a_trained_model_goes_on(self):
        for use_graph in (False, True):
            m = trained(use_graph)
            copies = [way(m) for way in WAYS]
            results = [m(*batch()).item() for _ in range(4)]
            for other in copies:
                self.assertEqual(
                    [other(*batch()).item() for _ in range(4)], results
                )
                self.assertEqual(other.digest(), m.digest())
                self.assertEqual(other.optimizer.step_counter.item(), 7)
                self.assertEqual(bool(other.print_graphs()), use_graph)
            self.assertEqual(
                {n: t.name for n, t in other.get_states().items()},
                {n: t.name for n, t in m.get_states().items()},
            )

    def test_layers_of_other_kinds(self):
        draw = np.random.default_rng(0)
        y = tensor.from_numpy(np.int32([0, 2, 1, 1]))
        for kind, x in [
            (Recurrent, draw.normal(size=(4, 5)).astype(np.float32)),
            (Separable, draw.normal(size=(4, 2, 6, 6)).astype(np.float32)),
            (Words, draw.integers(0, 7, (4, 3))),
        ]:
            for use_graph in (False, True):
                for steps in (0, 3):
                    with self.subTest(kind, graph=use_graph, steps=steps):
                        self.goes_on(
                            kind, tensor.from_numpy(x), y, use_graph, steps
                        )

    def goes_on(self, kind, x, y, use_graph, steps):
        CPU.SetRandSeed(5)
        m = kind()
        m.set_optimizer(opt.SGD(lr=0.1, momentum=0.9))
        m.compile([x], True, use_graph)
        for _ in range(steps):
            m(x, y)
        copies = [way(m) for way in WAYS]
        results = [m(x, y).item() for _ in range(4)]
        self.assertEqual(len(set(results)), 4)
        for other in copies:
            self.assertEqual([other(x, y).item() for _ in range(4)], results)
            self.assertEqual(other.digest(), m.digest())
            self.assertEqual(list(other.get_states()), list(m.get_states()))

    def test_before_its_first_step_and_before_compile(self):
        for steps in (0, None):
            m = trained(steps=0) if steps == 0 else CNN()
            for way in WAYS:
                other = way(m)
                self.assertEqual(list(other.get_states()), list(m.get_states()))
                if steps is None:
                    with self.assertRaisesRegex(StateError, "no optimizer"):
                        other(*batch())

    def test_evaluation_mode_and_attributes_of_ones_own(self):
        m = trained()
        m.eval()
        m.note = {"epoch": 3}
        want = m(batch()[0]).numpy()
        for way in WAYS:
            other = way(m)
            self.assertEqual(
                (other.training, other.note), (False, {"epoch": 3})
            )
            np.testing.assert_array_equal(other(batch()[0]), want)

    def test_spawn(self):
        m = trained()
        (other,) = ranks.results(1, train_on, m, how="spawn")
        for _ in range(3):
            m(*batch())
        self.assertEqual(other.digest(), m.digest())
        m(*batch())
        other(*batch())
        self.assertEqual(other.digest(), m.digest())

    def test_a_shallow_copy_shares_parameters(self):
        m = trained()
        other = copy.copy(m)
        self.assertIs(other.fc.W, m.fc.W)
        other.extra = layer.Linear(2)
        self.assertNotIn("extra", m._layers)
        # One optimizer cannot serve both.
        with self.assertRaises(StateError):
            other(*batch())
        m(*batch())

    def test_a_copy_leaves_dist_opt_behind(self):
        m = trained(optimizer=opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9)))
        for way in WAYS:
            other = way(m)
            self.assertIsNone(other.optimizer)
            with self.assertRaisesRegex(StateError, "set_optimizer"):
                way(m)(*batch())
            other.set_optimizer(way(m.optimizer.opt))
            for _ in range(2):
                other(*batch())
            kept = copy.deepcopy(m)
            kept.set_optimizer(opt.DistOpt(copy.deepcopy(m.optimizer.opt)))
            for _ in range(2):
                kept(*batch())
            self.assertEqual(other.digest(), kept.digest())


class Others(unittest.TestCase):
    def test_a_copy_of_an_optimizer_is_its_own(self):
        m = trained()
        for way in WAYS + [copy.copy]:
            before = m.optimizer.get_states()
            other = way(m.optimizer)
            self.assertEqual(other.get_states()["step_counter"], 3)
            self.assertEqual(
                repr(other.lr.__dict__), repr(m.optimizer.lr.__dict__)
            )
            other.lr = 0.5
            del other
            m(*batch())
            self.assertEqual(m.optimizer._step, int(before["step_counter"]) + 1)
            m = trained()

    def test_of_every_dtype(self):
        array = np.array([[0.0, 1.5, 2.0], [3.0, 200.0, 1 / 3]])
        for dtype in tensor.Tensor.dtype_name.values():
            t = tensor.from_numpy(array).as_type(dtype)
            t.name = "mine"
            for way in WAYS:
                for one in (t, t.T(), t[:, 1]):
                    other = way(one)
                    self.assertEqual(
                        (other.dtype, other.shape), (one.dtype, one.shape)
                    )
                    np.testing.assert_array_equal(other, one)
                self.assertEqual(way(t).name, "mine")
                raw = tensor.from_raw_tensor(way(t.data))
                self.assertEqual(
                    tensor.digest({"": raw}), tensor.digest({"": t})
                )

    def test_layouts_stay(self):
        m = trained()
        self.assertTrue(m.conv.W.is_transpose())  # channels last
        for way in WAYS:
            self.assertEqual(
                way(m.conv.W).data.strides(), m.conv.W.data.strides()
            )

    def test_older_pickles_load(self):
        array = np.float32([1, 2])
        t = tensor._rebuild(array, CPU, False, True)
        self.assertEqual((t.dtype, t.stores_grad), (tensor.float32, True))
        np.testing.assert_array_equal(t, array)
        from choir import _raw

        np.testing.assert_array_equal(_raw._rebuild(array, CPU).read(), array)

    def test_operators(self):
        x = tensor.from_numpy(np.float32([-1, 0.5, 2]))
        for made in (
            autograd.Clip(0, 1), autograd.LeakyRelu(0.3), autograd.ReLU(),
            autograd.Elu(0.3), layer.Gelu(), layer.ReLU(),
        ):  # fmt: skip
            want = made(x)
            for way in WAYS:
                got = way(made)(x)
                if isinstance(want, tuple):
                    got, wanted = got[0], want[0]
                else:
                    wanted = want
                np.testing.assert_array_equal(got, wanted)

    def test_every_optimizer(self):
        for name in opt.optimizers():
            cls = next(
                c for c in vars(opt).values()
                if getattr(c, "_name", None) == name
            )  # fmt: skip
            self.assertIs(pickle.loads(pickle.dumps(cls)), cls)
            other = pickle.loads(pickle.dumps(cls(lr=0.25)))
            self.assertEqual(other.lr, 0.25)

    def test_what_belongs_to_this_process(self):
        rows = data.synthetic(4)
        for made in (
            opt.DistOpt(opt.SGD()), rows, data.Loader(rows, batch=2),
            opt.DistOpt(opt.SGD()).communicator, trained()._engine_made,
        ):  # fmt: skip
            name = type(made).__name__
            for way in WAYS + [copy.copy]:
                with self.assertRaisesRegex(
                    TypeError, f"{name} cannot be copied or pickled"
                ):
                    way(made)
        nccl_id = pickle.loads(pickle.dumps(singa_wrap.NcclIdHolder("a")))
        self.assertEqual(nccl_id.id, "a")


if __name__ == "__main__":
    unittest.main()
