# SPDX-License-Identifier: Apache-2.0
"""choir.sonnx: models of ONNX files, run and trained."""

import copy
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import onnx_files as files
import ranks
from choir import NotFoundError, autograd, layer, model, opt, sonnx, tensor
from training import CPU, Training

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
X = np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 2, 2)


def small():
    """Relu, Reshape to two dimensions, and the weight as a second result."""
    return files.model(
        [
            files.node("Relu", ["x"], ["r"]),
            files.node("Reshape", ["r", "sizes"], ["flat"]),
            files.node("Relu", ["weight"], ["positive"]),
            files.node("Shape", ["flat"], ["count"]),
            files.node("Identity", ["flat"], ["y"]),
        ],
        [files.value("x", "float32", ("batch", 2, 2))],
        [files.value("y"), files.value("positive")],
        [
            files.tensor("sizes", np.array([0, -1])),
            files.tensor("weight", WEIGHT),
        ],
    )


def normalised():
    """Batch norm and a product."""
    return files.model(
        [
            files.node(
                "BatchNormalization",
                ["x", "scale", "shift", "mean", "var"],
                ["n"],
                momentum=0.8,
            ),
            files.node("Dropout", ["n", "ratio"], ["d"]),
            files.node("Gemm", ["d", "w", "b"], ["y"]),
        ],
        [files.value("x", "float32", ("batch", 4))],
        [files.value("y")],
        [
            files.tensor("scale", np.full(4, 1.5, np.float32)),
            files.tensor("shift", np.full(4, 0.5, np.float32)),
            files.tensor("mean", np.zeros(4, np.float32)),
            files.tensor("var", np.ones(4, np.float32)),
            files.tensor("ratio", np.float32(0)),
            files.tensor("w", WEIGHT),
            files.tensor("b", np.zeros(3, np.float32)),
        ],
    )


FLAT = np.maximum(X, 0).reshape(5, 4)


class Net(sonnx.SONNXModel):
    """The product of the file's results, compared with classes."""

    def forward(self, x):
        y, positive = super().forward(x)
        return autograd.matmul(y, positive)

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        self.optimizer(loss)
        return out, loss


class Tail(sonnx.SONNXModel):
    """A layer of its own behind a part of the file."""

    def __init__(self, onnx_model):
        super().__init__(onnx_model)
        self.linear = layer.Linear(3)

    def forward(self, *x):
        (y,) = super().forward(*x, last_layers=2)
        return self.linear(y)

    train_one_batch = Net.train_one_batch


class Both(Net):
    """A layer of its own behind all of it."""

    def __init__(self, onnx_model):
        super().__init__(onnx_model)
        self.linear = layer.Linear(3)

    def forward(self, x):
        return self.linear(super().forward(x))


class ByHand(model.Model):
    """What Net computes, written in Python."""

    def __init__(self):
        super().__init__()
        self.w = tensor.from_numpy(WEIGHT)
        self.w.stores_grad = True
        self._own["w"] = self.w

    def forward(self, x):
        y = autograd.reshape(autograd.relu(x), (5, 4))
        return autograd.matmul(y, autograd.relu(self.w))

    train_one_batch = Net.train_one_batch


def trained(m, use_graph, steps=4):
    x = tensor.from_numpy(X)
    y = tensor.from_numpy(np.array([0, 1, 2, 0, 1], np.int32))
    m.set_optimizer(opt.SGD(lr=0.5, momentum=0.9))
    m.compile([x], is_train=True, use_graph=use_graph)
    return [m(x, y)[1].item() for _ in range(steps)]


class Running(unittest.TestCase):
    def test_numpy_arrays_give_numpy_arrays(self):
        rep = sonnx.prepare(small())
        y, positive = rep.run([X])
        np.testing.assert_array_equal(y, FLAT)
        np.testing.assert_array_equal(positive, np.maximum(WEIGHT, 0))
        self.assertEqual(rep.inputs, [("x", "float", ("batch", 2, 2))])
        self.assertEqual(
            [value.name for value in rep.outputs], ["y", "positive"]
        )
        np.testing.assert_array_equal(rep.run(X)[0], y)

    def test_tensors_give_tensors(self):
        rep = sonnx.prepare(small())
        y, _ = rep.run([tensor.from_numpy(X)])
        self.assertIsInstance(y, tensor.Tensor)
        np.testing.assert_array_equal(tensor.to_numpy(y), FLAT)
        rep.is_graph = True
        self.assertIsInstance(rep.run([X])[0], tensor.Tensor)

    def test_what_is_a_model(self):
        class Proto:
            def SerializeToString(self):
                return small()

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "small.onnx")
            with open(path, "wb") as file:
                file.write(small())
            with open(path, "rb") as file:
                loaded = sonnx.load(file)
            for given in (
                path,
                os.fsencode(path).decode(),
                sonnx.load(path),
                loaded,
                bytearray(small()),
                Proto(),
            ):
                rep = sonnx.prepare(given, "CPU")
                np.testing.assert_array_equal(rep.run([X])[0], FLAT)
        with self.assertRaisesRegex(TypeError, "a path, bytes or a ModelProto"):
            sonnx.prepare(3)
        with self.assertRaisesRegex(NotFoundError, "no such file"):
            sonnx.prepare("/nowhere/small.onnx")
        with self.assertRaises(FileNotFoundError):
            sonnx.load("/nowhere/small.onnx")
        with self.assertRaisesRegex(ValueError, "onnx"):
            sonnx.prepare(b"no model")
        with self.assertRaisesRegex(ValueError, "device 'TPU'"):
            sonnx.prepare(small(), "TPU")

    def test_operators_that_there_are_not(self):
        whole = files.model(
            [files.node("Nothing", ["x"], ["y"], "first")],
            [files.value("x")],
            [files.value("y")],
        )
        with self.assertRaisesRegex(
            NotImplementedError, "Nothing of ai.onnx 17 .*first"
        ):
            sonnx.prepare(whole)

    def test_parts(self):
        rep = sonnx.prepare(small())
        (r,) = rep.run([X], last_layers=1)
        np.testing.assert_array_equal(r, np.maximum(X, 0))
        (count,) = rep.run([X], last_layers=-1)
        np.testing.assert_array_equal(count, [5, 4])
        self.assertEqual(count.dtype, np.int64)
        y, positive, r = rep.run([X], aux_output=["r", "y"])
        np.testing.assert_array_equal(y, FLAT)
        np.testing.assert_array_equal(r, np.maximum(X, 0))
        flat, weight = rep.run([X], last_layers=2, aux_output="weight")
        np.testing.assert_array_equal(flat, FLAT)
        np.testing.assert_array_equal(weight, WEIGHT)
        self.assertEqual(len(rep.run([X])), 2)
        with self.assertRaisesRegex(NotFoundError, "called 'nothing'"):
            rep.run([X], aux_output=["nothing"])
        with self.assertRaisesRegex(IndexError, "6 nodes .* has 5"):
            rep.run([X], last_layers=-6)
        with self.assertRaisesRegex(ValueError, "nothing is asked for"):
            rep.run([X], last_layers=0)

    def test_inputs_that_do_not_fit(self):
        rep = sonnx.prepare(small())
        with self.assertRaisesRegex(ValueError, "2 inputs .* takes 1"):
            rep.run([X, X])
        with self.assertRaisesRegex(ValueError, "input 'x' is .* 3 dimensions"):
            rep.run([X[0]])
        with self.assertRaisesRegex(TypeError, "last_layer is unknown"):
            rep.run([X], last_layer=1)

    def test_types(self):
        for name in ("int8", "uint16", "int32", "uint32", "int64", "float16"):
            with self.subTest(name):
                rep = sonnx.prepare(
                    files.model(
                        [files.node("Identity", ["x"], ["y"])],
                        [files.value("x", name, (3,))],
                        [files.value("y", name, (3,))],
                    )
                )
                given = np.array([1, 2, 100], name)
                (y,) = rep.run([given])
                np.testing.assert_array_equal(y, given)
                self.assertEqual(y.dtype, given.dtype)
                # from_numpy makes int32 of int64; the file has its own.
                wide = np.float32 if name == "float16" else np.int64
                (y,) = rep.run([tensor.from_numpy(given.astype(wide))])
                np.testing.assert_array_equal(tensor.to_numpy(y), given)

    def test_a_node_alone(self):
        class Node:
            input, output, domain = ["a"], ["b"], ""

            def SerializeToString(self):
                return files.node("Relu", self.input, self.output)

        (y,) = sonnx.run_node(Node(), [X])
        np.testing.assert_array_equal(y, np.maximum(X, 0))
        self.assertTrue(sonnx.SingaBackend.supports_device("CPU"))


class Models(Training):
    def test_parameters_are_there_at_once(self):
        m = Net(small())
        self.assertEqual(list(m.get_params()), ["weight"])
        np.testing.assert_array_equal(
            tensor.to_numpy(m.get_params()["weight"]), WEIGHT
        )
        m.set_params({"weight": 2 * WEIGHT})
        _, positive = sonnx.SONNXModel.forward(m, tensor.from_numpy(X))
        np.testing.assert_array_equal(
            tensor.to_numpy(positive), np.maximum(2 * WEIGHT, 0)
        )

    def test_trains_as_the_same_model_in_python(self):
        expected = trained(ByHand(), False)
        self.assertLess(expected[-1], expected[0])
        for use_graph in (False, True):
            m = Net(small())
            np.testing.assert_allclose(
                trained(m, use_graph), expected, rtol=1e-6
            )

    def test_gradients_by_hand(self):
        m = Net(small())
        w = m.get_params()["weight"]
        out = m.forward(tensor.from_numpy(X))
        [(p, g)] = list(autograd.backward(autograd.reduce_sum(out)))
        self.assertIs(p, w)
        columns = FLAT.sum(0)[:, None]
        np.testing.assert_allclose(
            tensor.to_numpy(g), columns * (WEIGHT > 0), rtol=1e-6
        )

    def test_layers_behind_a_part(self):
        m = Tail(small())
        losses = trained(m, True, 20)
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(
            list(m.get_params()), ["weight", "linear.W", "linear.b"]
        )
        # Nothing that ran needs the file's weight.
        np.testing.assert_array_equal(
            tensor.to_numpy(m.get_params()["weight"]), WEIGHT
        )

    def test_what_is_not_to_be_trained(self):
        for use_graph in (False, True):
            whole = Both(small())
            w = whole.get_params()["weight"]
            w.stores_grad = w.requires_grad = False
            trained(whole, use_graph)
            self.assertEqual(list(whole.get_params()), ["linear.W", "linear.b"])
            np.testing.assert_array_equal(tensor.to_numpy(w), WEIGHT)

    def test_files_of_states(self):
        m = Net(small())
        trained(m, True)
        with tempfile.TemporaryDirectory() as folder:
            states = os.path.join(folder, "states.zip")
            checkpoint = os.path.join(folder, "all.safetensors")
            m.save_states(states)
            m.save_checkpoint(checkpoint)
            other = Net(small())
            other.load_states(states)
            self.assertEqual(other.digest(), m.digest())
            third = Net(small())
            third.compile([tensor.from_numpy(X)])
            third.set_optimizer(opt.SGD(lr=0.5, momentum=0.9))
            third.load_checkpoint(checkpoint)
            self.assertEqual(third.digest(), m.digest())

    def test_copies(self):
        m = Net(small())
        trained(m, True)
        x = tensor.from_numpy(X)
        m.eval()
        expected = tensor.to_numpy(m(x))
        for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
            np.testing.assert_array_equal(tensor.to_numpy(other(x)), expected)
            self.assertEqual(other.digest(), m.digest())
            other.set_params({"weight": 0 * WEIGHT})
        np.testing.assert_array_equal(tensor.to_numpy(m(x)), expected)

    def test_many_models_of_one_file(self):
        rep, other = sonnx.prepare(small()), sonnx.prepare(small())
        rep.states["weight"].set_value(1.0)
        np.testing.assert_array_equal(rep.run([X])[1], np.ones_like(WEIGHT))
        np.testing.assert_array_equal(other.run([X])[1], np.maximum(WEIGHT, 0))


def on_a_rank(rank, size, nccl_id, use_graph):
    """Losses and parameters of a rank whose samples are its part of X."""
    m = Net(small())
    part = slice(None) if size == 1 else slice(2 * rank, 2 * rank + 2)
    x = tensor.from_numpy(X[:4][part])
    y = tensor.from_numpy(np.array([0, 1, 2, 0], np.int32)[part])
    sgd = opt.SGD(lr=0.5, momentum=0.9)
    dist_opt = opt.DistOpt(
        sgd, nccl_id=nccl_id, local_rank=rank, world_size=size
    )
    m.set_optimizer(dist_opt)
    m.compile([x], is_train=True, use_graph=use_graph)
    for _ in range(4):
        m(x, y)
    return m.digest(), tensor.to_numpy(m.get_params()["weight"])


class Ranks(unittest.TestCase):
    def test_train_as_one(self):
        for use_graph in (False, True):
            [(_, alone)] = ranks.results(1, on_a_rank, use_graph)
            (first, whole), (second, _) = ranks.results(2, on_a_rank, use_graph)
            self.assertEqual(first, second)
            np.testing.assert_allclose(whole, alone, rtol=1e-5, atol=1e-6)


class Normalised(sonnx.SONNXModel):
    broken = False

    def forward(self, x):
        return super().forward(x)[0]

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        if self.broken:
            raise KeyError("mine")
        self.optimizer(loss)
        return out, loss


class NormalisedByHand(model.Model):
    """What Normalised computes, by Choir's own layers."""

    def __init__(self):
        super().__init__()
        # Its momentum is the weight of the new batch.
        self.norm = layer.BatchNorm2d(momentum=0.2)
        self.linear = layer.Linear(3)

    def forward(self, x):
        return self.linear(self.norm(x))

    train_one_batch = Net.train_one_batch


class States(Training):
    x = np.random.default_rng(1).normal(1, 2, (6, 4)).astype(np.float32)
    y = np.array([0, 1, 2, 0, 1, 2], np.int32)

    def inputs(self):
        return tensor.from_numpy(self.x), tensor.from_numpy(self.y)

    def expected(self, steps):
        m = NormalisedByHand()
        x, y = self.inputs()
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], is_train=True)
        m.set_states(
            {
                "norm.scale": np.full(4, 1.5, np.float32),
                "norm.bias": np.full(4, 0.5, np.float32),
                "linear.W": WEIGHT,
                "linear.b": np.zeros(3, np.float32),
            }
        )
        losses = [m(x, y)[1].item() for _ in range(steps)]
        m.eval()
        return losses, tensor.to_numpy(m(x)), m.get_states()

    def test_averages_move_with_training(self):
        losses, scores, states = self.expected(5)
        for use_graph in (False, True):
            m = Normalised(normalised())
            self.assertEqual(
                set(m.get_states()) - set(m.get_params()), {"mean", "var"}
            )
            x, y = self.inputs()
            m.set_optimizer(opt.SGD(lr=0.1))
            m.compile([x], is_train=True, use_graph=use_graph)
            found = [m(x, y)[1].item() for _ in range(5)]
            np.testing.assert_allclose(found, losses, rtol=1e-5)
            for name, other in (
                ("mean", "running_mean"),
                ("var", "running_var"),
            ):
                np.testing.assert_allclose(
                    tensor.to_numpy(m.get_states()[name]),
                    tensor.to_numpy(states[f"norm.{other}"]),
                    rtol=1e-5,
                )
            m.eval()
            np.testing.assert_allclose(
                tensor.to_numpy(m(x)), scores, rtol=1e-4, atol=1e-5
            )

    def test_a_step_that_raises_moves_nothing(self):
        m = Normalised(normalised())
        x, y = self.inputs()
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], is_train=True, use_graph=False)
        before = m.digest()
        m.broken = True
        with self.assertRaises(KeyError):
            m(x, y)
        self.assertEqual(m.digest(), before)
        m.broken = False
        m(x, y)
        self.assertNotEqual(m.digest(), before)

    def test_functions_of_autograd_move_them_at_once(self):
        m = Normalised(normalised())
        m.forward(self.inputs()[0])
        moved = tensor.to_numpy(m.get_states()["mean"])
        np.testing.assert_allclose(moved, 0.2 * self.x.mean(0), rtol=1e-5)
        autograd.training = False
        m.forward(self.inputs()[0])
        np.testing.assert_array_equal(
            tensor.to_numpy(m.get_states()["mean"]), moved
        )

    def test_each_place_has_random_numbers_of_its_own(self):
        twice = files.model(
            [
                files.node("Dropout", ["x", "half"], ["a"]),
                files.node("Dropout", ["a", "half"], ["y"]),
            ],
            [files.value("x", "float32", (64, 4))],
            [files.value("y")],
            [files.tensor("half", np.float32(0.5))],
        )
        m = sonnx.SONNXModel(twice)
        x = tensor.from_numpy(np.ones((64, 4), np.float32))

        def of_file(x):
            return m.forward(x)[0]

        def of_functions(x):
            return autograd.dropout(autograd.dropout(x, ratio=0.5), ratio=0.5)

        found = []
        for function in (of_file, of_file, of_functions):
            CPU.SetRandSeed(7)
            results = [function(x), autograd.dropout(x, ratio=0.5), function(x)]
            found.append([tensor.to_numpy(y) for y in results])
        np.testing.assert_array_equal(found[0], found[1])
        self.assertFalse((found[0][0] == found[0][2]).all())
        # What follows has those that it has behind two functions.
        np.testing.assert_array_equal(found[0][1], found[2][1])

    def test_in_bfloat16(self):
        losses, *_ = self.expected(5)
        m = Normalised(normalised())
        x, y = self.inputs()
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], use_graph=True, precision="bfloat16")
        found = [m(x, y)[1].item() for _ in range(5)]
        np.testing.assert_allclose(found, losses, rtol=0.05)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.at("small.onnx"), "wb") as file:
            file.write(small())
        np.save(self.at("x.npy"), X)

    def at(self, name):
        return os.path.join(self.folder, name)

    def said(self, status, *words):
        done = subprocess.run(
            [sys.executable, "-m", "choir", "onnx", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    os.path.abspath(p) for p in sys.path if p
                ),
            },
        )
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout if status == 0 else done.stderr

    def test_describe(self):
        text = self.said(0, "small.onnx", "--describe")
        self.assertIn("input x: float (batch, 2, 2)\n", text)
        self.assertIn("parameter weight: f32 (4, 3)\n", text)
        self.assertIn("  Reshape (r, sizes) -> flat\n", text)
        self.assertEqual(self.said(0, "small.onnx"), text)

    def test_runs(self):
        words = "small.onnx", "--input", "x.npy"
        text = self.said(0, *words)
        self.assertIn("y: float32 (5, 4)\n", text)
        self.assertIn("positive: float32 (4, 3)\n", text)
        text = self.said(0, *words, "--output", "y.npy")
        self.assertNotIn("y: float32 (5, 4)", text)
        np.testing.assert_array_equal(np.load(self.at("y.npy")), FLAT)

    def test_what_is_wrong(self):
        with open(self.at("words.npy"), "w") as file:
            file.write("words")
        for status, words, text in (
            (1, ["none.onnx"], "no such file"),
            (1, ["words.npy"], "onnx: the bytes are no ONNX model"),
            (1, ["small.onnx", "--input", "no.npy"], "there is no file no.npy"),
            (1, ["small.onnx", "--input", "words.npy"], "is no .npy file"),
            (
                1,
                ["small.onnx", "--input", "x.npy", "--output", "no/y.npy"],
                "cannot write no/y.npy",
            ),
            (
                2,
                ["small.onnx", "--output", "y.npy"],
                "give the model's --input",
            ),
            (
                2,
                ["small.onnx", "--input", "x.npy", "--input", "x.npy"],
                "given 2 times; the model's inputs are: x",
            ),
            (
                2,
                ["small.onnx", "--input", "x.npy"] + 3 * ["--output", "y.npy"],
                "has 2 results",
            ),
            (2, [], "MODEL"),
        ):
            with self.subTest(words):
                self.assertIn(text, self.said(status, *words))


if __name__ == "__main__":
    unittest.main()
