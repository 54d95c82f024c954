# SPDX-License-Identifier: Apache-2.0
"""char_rnn.py, gan.py, rbm.py and finetune_onnx.py of examples/python: each learns.
Arguments: the scripts."""

import os
import re
import subprocess
import sys
import unittest

import numpy as np

import onnx_files as files
from choir import autograd, data, device, opt, sonnx, tensor

SCRIPTS = {
    os.path.basename(path): os.path.abspath(path) for path in sys.argv[1:]
}
sys.path.insert(0, os.path.dirname(SCRIPTS["gan.py"]))
import char_rnn
import gan
from common import MNIST, SHAKESPEARE

DEV = device.create_cpu_device()
EPOCH = re.compile(r"Epoch \d+: .*")


def temporary(name):
    return os.path.join(os.environ["TEST_TMPDIR"], name)


def run(script, workers=1, status=0, **flags):
    """What it prints; of one that fails, what it says."""
    words = [SCRIPTS[script]]
    if workers > 1:
        words = ["-m", "choir", "-np", str(workers), *words]
    for name, value in flags.items():
        words.append("--" + name.replace("_", "-"))
        words += [] if value is True else [str(value)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            os.path.abspath(path) for path in sys.path if path
        ),
        "CHOIR_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    if done.returncode != status:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stderr if status else done.stdout


def numbers(out):
    """Of each epoch, what stands behind an equals sign."""
    return np.array(
        [
            [float(value) for value in re.findall(r"= ([0-9.]+)", line)]
            for line in EPOCH.findall(out)
        ]
    )


class CharRNN(unittest.TestCase):
    def test_learns_and_writes(self):
        text = bytes(data.Tokens.text(SHAKESPEARE, "bytes")[:20000].tolist())
        play = temporary("play.txt")
        with open(play, "wb") as file:
            file.write(text)
        flags = {"data": play, "epochs": 3, "length": 16, "sample": 40}
        out = run("char_rnn.py", batch_size=8, prompt="MARCIUS:", **flags)
        losses = numbers(out)
        self.assertEqual(losses.shape, (3, 2))
        # Chance is ln 58 = 4.06.
        self.assertTrue((losses[-1] < 2.2).all(), out)
        self.assertLess(losses[-1, 1], 0.9 * losses[0, 1])
        sample = out[out.index("MARCIUS:") :]
        self.assertEqual(len(sample), len("MARCIUS:") + 40 + 1)
        self.assertLessEqual(set(sample.encode()), set(text))
        # Two workers have the same texts.
        shared = run("char_rnn.py", 2, batch_size=4, **flags)
        np.testing.assert_allclose(numbers(shared), losses, atol=2e-3)

    def test_a_step_begins_where_the_one_before_ended(self):
        rng = np.random.default_rng(0)
        ids = rng.integers(0, 11, 61).astype(np.int32)
        parts = list(char_rnn.batches(ids, DEV, 5, 3, 0, 1))
        self.assertEqual(len(parts), 4)

        def made():
            DEV.SetRandSeed(1)
            m = char_rnn.CharRNN(11, 8)
            x, _ = parts[0]
            state = m.start(3, DEV)
            m.compile([x, *state], use_graph=False)
            for parameter in m.get_params().values():
                parameter.copy_data(parameter * 20.0)  # so that states matter
            return m, state

        def by_functions(carried):
            m, state = made()
            sgd, losses = opt.SGD(0.5), []
            for x, y in parts:
                scores, *after = m.forward(x, *state)
                loss = autograd.softmax_cross_entropy(scores, y)
                losses.append(loss.item())
                sgd(loss)
                if carried:
                    state = [tensor.from_numpy(t.numpy()) for t in after]
            return losses, m.digest()

        self.addCleanup(setattr, autograd, "training", False)
        for use_graph in (False, True):
            m, state = made()
            m.set_optimizer(opt.SGD(0.5))
            m.graph(use_graph)
            losses = [m(x, y, *state).item() for x, y in parts]
            self.assertEqual((losses, m.digest()), by_functions(True))
            self.assertNotEqual(losses, by_functions(False)[0])

    def test_mistakes(self):
        play = temporary("short.txt")
        with open(play, "w", encoding="ascii") as file:
            file.write("To be, or not to be")
        said = run("char_rnn.py", status=1, data=play)
        self.assertIn("17 characters are too few for 32 texts of 64", said)


class Gan(unittest.TestCase):
    def test_images_become_digits(self):
        image = temporary("digits.pgm")
        out = run(
            "gan.py",
            limit=4000,
            epochs=12,
            lr=0.002,
            batch_size=32,
            image=image,
        )
        real = float(re.search(r"Real images: score = ([0-9.]+)", out)[1])
        self.assertGreater(real, 4, out)
        scores = numbers(out)[:, 2]
        self.assertEqual(len(scores), 12)
        self.assertLess(scores[0], 1.2, out)
        self.assertGreater(scores[-1], 2, out)
        with open(image, "rb") as file:
            self.assertEqual(file.readline(), b"P5 280 280 255\n")
            pixels = np.frombuffer(file.read(), np.uint8)
        self.assertEqual(len(pixels), 280 * 280)
        # MNIST's mean is 33; each pixel of noise would be near 127.
        self.assertLess(abs(pixels.mean() - 33), 20)

    def test_each_step_trains_one_model(self):
        found = []
        x = tensor.from_numpy(
            np.random.default_rng(0).random((7, 1, 28, 28)).astype(np.float32)
        )
        for use_graph in (False, True):
            DEV.SetRandSeed(1)
            d = gan.Discriminator(16, 1)
            g = gan.Generator(16, d)
            for m, size in ((d, gan.PIXELS), (g, gan.NOISE)):
                m.set_optimizer(opt.Adam(1e-3))
                m.compile([tensor.Tensor((1, size))], use_graph=use_graph)
            noise = tensor.Tensor((7, gan.NOISE)).uniform(-1, 1)
            for _ in range(3):
                with autograd.no_grad():
                    fake = g.forward(noise)
                own = g.fc1.W.numpy(), g.fc2.b.numpy()
                before = d.digest()
                gan.set_trained(d, True)
                d(x, fake)
                self.assertNotEqual(d.digest(), before)
                np.testing.assert_array_equal(g.fc1.W.numpy(), own[0])
                before = d.digest()
                gan.set_trained(d, False)
                g(noise)
                self.assertEqual(d.digest(), before)
                self.assertFalse((g.fc1.W.numpy() == own[0]).all())
                self.assertFalse((g.fc2.b.numpy() == own[1]).any())
            found.append(g.digest())
        self.assertEqual(*found)

    def test_scores(self):
        c = gan.Classifier(4, 10)
        c.eval()
        c.forward = lambda x: x
        one_hot = tensor.from_numpy(100 * np.eye(10, dtype=np.float32))
        self.assertAlmostEqual(c.score(one_hot), 10, 3)
        half = tensor.from_numpy(100 * np.eye(10, dtype=np.float32)[:5])
        self.assertAlmostEqual(c.score(half), 5, 3)
        self.assertAlmostEqual(c.score(tensor.zeros((6, 10))), 1, 5)


class Rbm(unittest.TestCase):
    def test_reconstructs(self):
        out = run("rbm.py", limit=2000, hidden_size=100, epochs=4)
        errors = numbers(out)
        self.assertEqual(errors.shape, (4, 2))
        self.assertTrue((np.diff(errors, axis=0) < 0).all(), out)
        self.assertLess(errors[-1, 0], 0.5 * errors[0, 0], out)
        # The best image for all has an error of 52.7.
        self.assertLess(errors[-1, 1], 0.5 * 52.7, out)


def digits_below_5(weights):
    """A net of an ONNX file for images of 5 classes."""
    w1, b1, w2, b2 = weights
    return files.model(
        [
            files.node("Flatten", ["x"], ["flat"]),
            files.node("Gemm", ["flat", "w1", "b1"], ["h"]),
            files.node("Relu", ["h"], ["r"]),
            files.node("Gemm", ["r", "w2", "b2"], ["y"]),
        ],
        [files.value("x", "float32", ("batch", 1, 28, 28))],
        [files.value("y")],
        [
            files.tensor("w1", w1),
            files.tensor("b1", b1),
            files.tensor("w2", w2),
            files.tensor("b2", b2),
        ],
    )


class Net(sonnx.SONNXModel):
    def forward(self, x):
        return super().forward(x)[0]

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


class FinetuneOnnx(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Files of a net as it begins, and of one that knows the digits below 5."""
        rng = np.random.default_rng(0)
        start = [
            rng.normal(0, 0.05, (784, 64)),
            np.zeros(64),
            rng.normal(0, 0.1, (64, 5)),
            np.zeros(5),
        ]
        start = [array.astype(np.float32) for array in start]
        m = Net(digits_below_5(start))
        x, y = data.mnist(MNIST, limit=6000).arrays()
        x, y = x[y < 5].astype(np.float32) / 255, y[y < 5]
        m.set_optimizer(opt.SGD(0.1, momentum=0.9))
        m.compile([tensor.Tensor((1, 1, 28, 28))], use_graph=True)
        for at in range(0, len(x) - 63, 64):
            last = slice(at, at + 64)
            m(tensor.from_numpy(x[last]), tensor.from_numpy(y[last]))
        params = m.get_params()
        learnt = [params[name].numpy() for name in ("w1", "b1", "w2", "b2")]
        autograd.training = False
        for name, weights in (("start", start), ("learnt", learnt)):
            with open(temporary(name + ".onnx"), "wb") as file:
                file.write(digits_below_5(weights))

    def tune(self, name, workers=1, **flags):
        flags = {"limit": 1000, "epochs": 5, "batch_size": 64, **flags}
        model = temporary(name + ".onnx")
        out = run("finetune_onnx.py", workers, model=model, **flags)
        found = numbers(out)
        self.assertEqual(found.shape, (flags["epochs"], 2), out)
        return found

    def test_learns_ten_classes(self):
        found = self.tune("learnt")
        self.assertLess(found[-1, 0], 0.4 * found[0, 0])
        self.assertGreater(found[-1, 1], 0.7)
        shared = self.tune("learnt", 2, batch_size=32)
        np.testing.assert_allclose(shared, found, atol=2e-3)

    def test_what_the_file_knows_is_used(self):
        learnt = self.tune("learnt", frozen=True)
        start = self.tune("start", frozen=True)
        self.assertLess(learnt[-1, 0], 0.9 * start[-1, 0])
        self.assertGreater(learnt[-1, 1], start[-1, 1])

    def test_of_a_file_that_an_example_wrote(self):
        path = temporary("written.onnx")
        run("train_mpi.py", epochs=1, limit=1280, onnx=path)
        flags = {"limit": 1000, "epochs": 2, "batch_size": 64}
        found = numbers(run("finetune_onnx.py", model=path, cut=3, **flags))
        self.assertGreater(found[-1, 1], 0.6)

    def test_mistakes(self):
        said = run("train_mpi.py", status=2, onnx="/nowhere/net.onnx")
        self.assertIn("there is no folder /nowhere", said)
        said = run("finetune_onnx.py", status=2)
        self.assertIn("required: --model", said)
        said = run("finetune_onnx.py", status=1, model="/nowhere/net.onnx")
        self.assertIn("no such file", said)
        model = temporary("start.onnx")
        said = run("finetune_onnx.py", status=1, model=model, cut=5)
        self.assertRegex(said, "IndexError: .*has 4")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
