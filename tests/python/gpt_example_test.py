# SPDX-License-Identifier: Apache-2.0
"""examples/python/gpt.py: it learns and writes, and has the bits of gpt_dist.
Arguments: gpt_dist and the scripts."""

import contextlib
import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
import types
import unittest

import numpy as np

from choir import data, tensor

C = os.path.abspath(sys.argv[1])
SCRIPT = next(
    os.path.abspath(path) for path in sys.argv[2:] if path.endswith("/gpt.py")
)
SHAKESPEARE = "examples/data/shakespeare/tiny_shakespeare.txt.gz"
REPORT = re.compile(
    r"Step (\d+): training loss = (\d+\.\d{4}), tokens/s = \d+, "
    r"(?:seconds = \d+\.\d, )?digest = ([0-9a-f]{16})\n"
    r"Validation loss = (\d+\.\d{4})\n"
)
# A model that learns in seconds.
SMALL = {
    "layers": 2, "heads": 2, "width": 32, "context": 16, "steps": 24,
    "lr": 0.01, "sample": 0,
}  # fmt: skip


def split(path, folder, count):
    """Writes the tensors of a file as `count` files; their index's path."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    os.makedirs(folder, exist_ok=True)
    places = {}
    for part in range(count):
        mine, elements = {}, b""
        for name in list(header)[part::count]:
            first, end = header[name]["data_offsets"]
            place = [len(elements), len(elements) + end - first]
            mine[name] = {**header[name], "data_offsets": place}
            elements += data[first:end]
            places[name] = f"model-{part}.safetensors"
        text = json.dumps(mine).encode()
        with open(os.path.join(folder, f"model-{part}.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + elements)
    return write_index(folder, places)


def write_index(folder, places):
    path = os.path.join(folder, "model.safetensors.index.json")
    with open(path, "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    return path


def run(words, status=0):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CHOIR_THREADS": "1",
    }
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=250
    )
    if done.returncode != status:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stderr if status else done.stdout


def words_of(flags):
    words = []
    for name, value in flags.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


def gpt(status=0, **flags):
    return run([sys.executable, SCRIPT, *words_of(flags)], status)


def gpt_dist(every, **flags):
    words = [C, "--threads", "1", "--evaluate-every", str(every)]
    return run([*words, *words_of(flags)])


class Gpt(unittest.TestCase):
    def setUp(self):
        with gzip.open(SHAKESPEARE) as file:
            self.text = file.read(12000)

    def write(self, count):
        path = os.path.join(os.environ["TEST_TMPDIR"], f"play{count}.txt")
        with open(path, "wb") as file:
            file.write(self.text[:count])
        return path

    def test_the_bits_of_the_c_example(self):
        # 793 characters: an epoch is 59 steps, of which the last has one window;
        # the second worker has none.
        for count, workers, flags in (
            (12000, 1, {}),
            (12000, 2, {"seed": 7}),
            (12000, 3, {"layers": 1, "heads": 4, "context": 24}),
            (793, 2, {"steps": 70}),
            # Here the scores would be the largest tensor: the loss makes none.
            (12000, 2, {"width": 8}),
            (12000, 1, {"width": 8, "head": True}),
        ):
            with self.subTest(count=count, workers=workers, flags=flags):
                flags = {**SMALL, **flags, "workers": workers}
                flags["data"] = self.write(count)
                want = REPORT.findall(gpt_dist(every=16, **flags))
                found = REPORT.findall(gpt(every=16, **flags))
                self.assertEqual(len(want), -(-flags["steps"] // 16))
                self.assertEqual(found, want)

    def test_the_log_of_the_c_example(self):
        flags = {**SMALL, "workers": 2, "steps": 150}
        flags["data"] = self.write(793)  # 59 steps an epoch
        logs = []
        for made in (gpt, gpt_dist):
            path = os.path.join(os.environ["TEST_TMPDIR"], made.__name__)
            made(every=50, **flags, log_json=path)
            with open(path, encoding="utf-8") as file:
                logs.append([json.loads(line) for line in file])
        ours, theirs = logs
        self.assertEqual(len(ours), 3)
        self.assertEqual(len(theirs), 3)
        # gpt.py counts no hits.
        unknown = {"training_accuracy", "evaluation_accuracy"}
        for mine, other in zip(ours, theirs):
            self.assertEqual(set(mine), set(other) - unknown)
            for key in ("epoch", "step", "workers", "steps", "digest"):
                self.assertEqual(mine[key], other[key], key)
            for key in ("loss", "training_loss", "evaluation_loss"):
                self.assertAlmostEqual(mine[key], other[key], 5, key)
            for own, one in zip(mine["ranks"], other["ranks"], strict=True):
                self.assertEqual(set(own), set(one))
                self.assertEqual(own["tokens"], one["tokens"])
        facts, other = ours[0]["run"], theirs[0]["run"]
        self.assertEqual(facts.pop("program"), "gpt.py")
        self.assertEqual(other.pop("program"), "gpt_dist")
        self.assertEqual(facts, other)
        page = path + ".html"
        log = os.path.join(os.environ["TEST_TMPDIR"], "gpt")
        run([sys.executable, "-m", "choir", "report", log, "-o", page])
        with open(page, encoding="utf-8") as file:
            self.assertIn("gpt.py", file.read())

    def test_learns_and_writes(self):
        # Tiny Shakespeare, its vocabulary of 65: chance is ln 65 = 4.17.
        for workers in (1, 2):
            with self.subTest(workers=workers):
                out = gpt(
                    workers=workers, layers=2, steps=150, every=75, sample=40
                )
                reports = list(REPORT.finditer(out))
                self.assertEqual([m[1] for m in reports], ["75", "150"])
                losses = [float(m[4]) for m in reports]
                self.assertLess(losses[1], losses[0])
                self.assertLess(losses[1], 2.8)
                sample = out[reports[-1].end() :]
                self.assertEqual((sample[0], sample[-1]), ("\n", "\n"))
                self.assertEqual(len(sample), 1 + 40 + 1)

    def test_the_sample_is_that_of_whole_windows(self):
        sys.path.insert(0, os.path.dirname(SCRIPT))
        from gpt_net import GPT
        from gpt_sample import write

        text = data.Tokens.text(self.write(12000))
        sizes = types.SimpleNamespace(
            layers=2, heads=2, width=32, context=8, bias=True, kv_heads=0,
            rotary=0.0, rms_norm=False, epsilon=1e-5, activation="gelu",
            gated=False, hidden=0, head=False, recompute=False,
        )  # fmt: skip
        m = GPT(sizes, text.vocabulary, windows=1)
        x = tensor.Tensor((1, 8), dtype=tensor.int32)
        m.compile([x], is_train=False)
        for part in m.get_params().values():
            part.copy_data(part * 20.0)  # so that tokens matter
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            write(m, text, 8, 30, seed=3)
        ids, rng = list(text.encode("\n")), np.random.default_rng(3)
        for _ in range(30):
            window = tensor.from_numpy(np.array([ids[-8:]], np.int32))
            scores = m(window).numpy()[0, -1].astype(float) / 0.8
            odds = np.exp(scores - scores.max())
            ids.append(rng.choice(len(odds), p=odds / odds.sum()))
        self.assertEqual(out.getvalue(), text.decode(ids) + "\n")

    def test_weights_in_hugging_faces_names(self):
        file = os.path.join(os.environ["TEST_TMPDIR"], "gpt2.safetensors")
        sizes = {**SMALL, "bias": True, "activation": "gelu_tanh", "workers": 1}
        sizes["data"] = self.write(12000)
        # With biases and the other gelu the bits are the C program's too.
        want = REPORT.findall(gpt_dist(every=12, **sizes, export=file))
        for more in ({}, {"recompute": True}):
            self.assertEqual(
                REPORT.findall(gpt(every=12, **sizes, **more)), want
            )
        # What the C program wrote is what the script begins with.
        sizes.update(steps=1, lr=0.0, weights=file)
        found = REPORT.findall(gpt(every=1, **sizes))
        self.assertEqual([m[2:] for m in found], [m[2:] for m in want[1:]])
        # In several files, of which some do not have what is placed there.
        folder = os.path.join(os.environ["TEST_TMPDIR"], "split")
        index = split(file, folder, 3)
        for path in (index, folder):
            with self.subTest(path):
                out = gpt(every=1, **{**sizes, "weights": path})
                self.assertEqual(REPORT.findall(out), found)
        with open(index) as opened:
            places = json.load(opened)["weight_map"]
        name = next(n for n in places if places[n] == "model-1.safetensors")
        for other, said in (
            ("model-0.safetensors", f"places tensor '{name}' in"),
            ("../split/model-1.safetensors", "plain name of a file beside it"),
            ("gone.safetensors", "gone.safetensors"),
            (["model-1.safetensors"], "plain name of a file beside it"),
        ):
            with self.subTest(other):
                write_index(folder, {**places, name: other})
                self.assertIn(said, gpt(1, **{**sizes, "weights": folder}))
        write_index(folder, {**places, "x": "model-1.safetensors"})
        said = gpt(1, **{**sizes, "weights": folder})
        self.assertIn("places tensor 'x' in", said)
        for text, said in (
            ('{"weight_map": {"x": "a", "x": "a"}}', "has tensor 'x' twice"),
            ('{"weight_map": 3}', "which has a file for each tensor"),
            ("[]", "index"),
            ("{", "index"),
        ):
            with self.subTest(text):
                with open(index, "w") as opened:
                    opened.write(text)
                self.assertIn(said, gpt(1, **{**sizes, "weights": folder}))
        for flags, said in (
            ({"layers": 1}, "no place for h.1.ln_1"),
            ({"layers": 3}, "there is no h.2.ln_1.weight"),
            ({"width": 16}, r"wte.weight is \(\d+, 32\); the model needs"),
        ):
            with self.subTest(flags):
                self.assertRegex(gpt(1, **{**sizes, **flags}), said)

    def test_byte_pairs(self):
        # The bytes that print stand for themselves, the others follow U+00FF.
        prints = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
        others = iter(range(0x100, 0x200))
        names = [chr(b if b in prints else next(others)) for b in range(256)]
        names += ["he", "\u0120t", "\u0120the", "er", "<|endoftext|>"]
        folder = os.path.join(os.environ["TEST_TMPDIR"], "tokenizer")
        os.makedirs(folder)
        with open(os.path.join(folder, "vocab.json"), "w") as file:
            json.dump({name: i for i, name in enumerate(names)}, file)
        with open(os.path.join(folder, "merges.txt"), "w") as file:
            file.write("h e\n\u0120 t\n\u0120t he\ne r\n")
        weights = os.path.join(os.environ["TEST_TMPDIR"], "pairs.safetensors")
        sizes = {**SMALL, "tokenizer": folder, "workers": 2}
        # So wide that gpt_dist takes the loss of the scores.
        sizes.update(data=self.write(12000), bias=True, width=80)
        want = REPORT.findall(gpt_dist(every=12, **sizes, export=weights))
        self.assertEqual(REPORT.findall(gpt(every=12, **sizes)), want)
        # They are not those of characters.
        plain = {**sizes, "tokenizer": ""}
        self.assertNotEqual(REPORT.findall(gpt(every=12, **plain)), want)
        # A sample is text, behind a line's end, of at least a byte a token.
        out = gpt(every=12, **{**sizes, "sample": 9, "workers": 1})
        sample = out[list(REPORT.finditer(out))[-1].end() :]
        self.assertEqual((sample[0], sample[-1]), ("\n", "\n"))
        with_weights = {**sizes, "steps": 1, "lr": 0.0, "weights": weights}
        found = REPORT.findall(gpt(every=1, **with_weights))
        self.assertEqual([m[2:] for m in found], [m[2:] for m in want[1:]])
        # It writes with them as they are.
        out = gpt(**{**with_weights, "steps": 0, "sample": 9, "prompt": "the"})
        self.assertEqual(REPORT.findall(out), [])
        self.assertEqual((out[:3], out[-1]), ("the", "\n"))
        for flags, said in (
            ({"tokenizer": "/nowhere"}, "cannot open '/nowhere/vocab.json'"),
            ({"tokenizer": ""}, r"wte.weight is \(261, 80\); the model needs"),
        ):
            with self.subTest(flags):
                self.assertRegex(gpt(1, **{**with_weights, **flags}), said)
        os.remove(os.path.join(folder, "merges.txt"))
        self.assertRegex(gpt(1, **sizes), "cannot open '.*merges.txt'")

    def test_llamas_network_and_weights(self):
        file = os.path.join(os.environ["TEST_TMPDIR"], "llama.safetensors")
        sizes = {
            **SMALL, "rms_norm": True, "epsilon": 1e-6, "rotary": 500.0,
            "gated": True, "activation": "silu", "hidden": 44, "kv_heads": 1,
            "head": True, "data": self.write(12000),
        }  # fmt: skip
        for workers, flags in ((2, {}), (1, {"bias": True, "hidden": 0})):
            with self.subTest(flags):
                sizes.update(flags, workers=workers)
                want = REPORT.findall(gpt_dist(every=12, **sizes, export=file))
                self.assertEqual(REPORT.findall(gpt(every=12, **sizes)), want)
                again = {**sizes, "steps": 1, "lr": 0.0, "weights": file}
                found = REPORT.findall(gpt(every=1, **again))
                self.assertEqual(
                    [m[2:] for m in found], [m[2:] for m in want[1:]]
                )
        for flags, said in (
            ({"layers": 3}, "there is no layers.2.input_layernorm.weight"),
            ({"hidden": 44}, r"_proj.weight is \(128, 32\); the model needs"),
            ({"rotary": 0.0}, "there are names for Llama's settings"),
            ({"activation": "tan"}, "gelu, gelu_tanh, silu"),
        ):
            with self.subTest(flags):
                self.assertRegex(gpt(1, **{**again, **flags}), said)

    def test_mistakes(self):
        short = self.write(13)
        for status, flags, said in (
            (2, {"workers": 0}, "workers is 0; 1 or more are needed"),
            (2, {"steps": -1}, "steps is -1; 0 or more"),
            (2, {"layer": "x"}, "ambiguous|invalid int"),
            (1, {"data": "/nowhere.txt"}, "cannot open .*nowhere.txt"),
            (1, {"data": short, "workers": 1}, "too few for a window of 16"),
            (1, {"heads": 3, "workers": 1}, "multiple of the heads"),
        ):
            with self.subTest(flags):
                self.assertRegex(gpt(status, **{**SMALL, **flags}), said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
