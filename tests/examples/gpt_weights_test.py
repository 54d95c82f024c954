# SPDX-License-Identifier: Apache-2.0
"""gpt_dist --weights and --export: GPT-2's and Llama's weights in Hugging Face's names.
The losses are those of a GPT-2 and of a Llama in NumPy, in float64."""

import gzip
import json
import os
import struct

import numpy as np

from tests.examples import harness

SHAKESPEARE = os.path.join(
    harness.ROOT, "examples/data/shakespeare/tiny_shakespeare.txt.gz"
)
LAYERS, HEADS, WIDTH, CONTEXT = 2, 4, 32, 16
KV_HEADS, HIDDEN = 2, 44
GPT2 = ("--bias", "--activation", "gelu_tanh")
LLAMA = (
    "--rms-norm", "--rotary", 10000, "--gated", "--activation", "silu", "--hidden",
    HIDDEN, "--kv-heads", KV_HEADS, "--head",
)  # fmt: skip
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def write_file(path, tensors):
    header, data = {}, b""
    for name, x in tensors.items():
        dtype = {np.dtype(t): n for n, t in DTYPES.items()}[x.dtype]
        end = len(data) + x.nbytes
        header[name] = {
            "dtype": dtype,
            "shape": x.shape,
            "data_offsets": [len(data), end],
        }
        data += x.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_parts(folder, tensors, count):
    """As transformers splits a large model: files and their index, whose path is
    returned."""
    os.makedirs(folder, exist_ok=True)
    names, places = list(tensors), {}
    for part in range(count):
        file = f"model-{part + 1:05}-of-{count:05}.safetensors"
        mine = {n: tensors[n] for n in names[part::count]}
        write_file(os.path.join(folder, file), mine)
        places.update(dict.fromkeys(mine, file))
    path = os.path.join(folder, "model.safetensors.index.json")
    size = sum(x.nbytes for x in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    with open(path, "w") as file:
        json.dump(index, file, indent=2)
    return path


def read_file(path):
    """The tensors, all of f32, and the metadata."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        flat = np.frombuffer(data[begin:end], DTYPES[one["dtype"]])
        tensors[name] = flat.reshape(one["shape"])
    return tensors, metadata


def random_weights(vocabulary):
    random = np.random.default_rng(7)

    def normal(*shape, mean=0, deviation=0.3):
        return random.normal(mean, deviation, shape).astype(np.float32)

    w = {
        "wte.weight": normal(vocabulary, WIDTH),
        "wpe.weight": normal(CONTEXT, WIDTH),
    }
    for layer in range(LAYERS):
        for name, into, out in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            w[f"h.{layer}.{name}.weight"] = normal(into, out)
            # Where both kinds of gelu differ most.
            mean = -2.5 if name == "mlp.c_fc" else 0
            w[f"h.{layer}.{name}.bias"] = normal(out, mean=mean)
        for name in ("ln_1", "ln_2"):
            w[f"h.{layer}.{name}.weight"] = normal(WIDTH, mean=1)
            w[f"h.{layer}.{name}.bias"] = normal(WIDTH)
    w["ln_f.weight"], w["ln_f.bias"] = normal(WIDTH, mean=1), normal(WIDTH)
    return w


def llama_weights(vocabulary):
    random = np.random.default_rng(8)

    def normal(*shape, mean=0.0):
        return random.normal(mean, 0.3, shape).astype(np.float32)

    grouped = WIDTH // HEADS * KV_HEADS
    w = {"embed_tokens.weight": normal(vocabulary, WIDTH)}
    for layer in range(LAYERS):
        for name, into, out in (
            ("self_attn.q_proj", WIDTH, WIDTH),
            ("self_attn.k_proj", WIDTH, grouped),
            ("self_attn.v_proj", WIDTH, grouped),
            ("self_attn.o_proj", WIDTH, WIDTH),
            ("mlp.gate_proj", WIDTH, HIDDEN),
            ("mlp.up_proj", WIDTH, HIDDEN),
            ("mlp.down_proj", HIDDEN, WIDTH),
        ):
            w[f"layers.{layer}.{name}.weight"] = normal(out, into)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"layers.{layer}.{name}.weight"] = normal(WIDTH, mean=1)
    w["norm.weight"] = normal(WIDTH, mean=1)
    w["lm_head.weight"] = normal(vocabulary, WIDTH)
    return w


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def attended(q, k, v):
    """softmax(q k') v of causal heads (n, heads, t, size)."""
    t, size = q.shape[2:]
    scores = q @ k.transpose(0, 1, 3, 2) / size**0.5
    scores[:, :, np.triu(np.ones((t, t), bool), 1)] = -np.inf
    y = np.exp(log_softmax(scores)) @ v
    return y.transpose(0, 2, 1, 3).reshape(len(q), t, -1)


def mean_loss(logits, y):
    """The mean of -log p(y) over tokens (n, t)."""
    return -np.take_along_axis(log_softmax(logits), y[..., None], -1).mean()


def gpt2_loss(weights, x, y):
    """The mean of -log p(y) over tokens (n, t)."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def product(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * w[name + ".weight"] + w[name + ".bias"]

    def gelu(x):
        return (
            x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
        )

    def attention(x, name):
        n, t, _ = x.shape
        q, k, v = (
            part.reshape(n, t, HEADS, -1).transpose(0, 2, 1, 3)
            for part in np.split(product(x, name + ".c_attn"), 3, axis=-1)
        )
        return product(attended(q, k, v), name + ".c_proj")

    h = w["wte.weight"][x] + w["wpe.weight"][: x.shape[1]]
    for i in range(LAYERS):
        h = h + attention(norm(h, f"h.{i}.ln_1"), f"h.{i}.attn")
        inner = gelu(product(norm(h, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        h = h + product(inner, f"h.{i}.mlp.c_proj")
    return mean_loss(norm(h, "ln_f") @ w["wte.weight"].T, y)


def llama_loss(weights, x, y, epsilon=1e-5, theta=10000.0):
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    head = w.get("lm_head.weight", w["embed_tokens.weight"])

    def product(x, name):
        return x @ w[name + ".weight"].T

    def norm(x, name):
        root = np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x / root * w[name + ".weight"]

    def turned(x):
        """Pairs of columns j and j + size / 2 as complex numbers."""
        half = x.shape[3] // 2
        speeds = theta ** -(np.arange(half) / half)
        angles = np.arange(x.shape[2])[:, None] * speeds
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate((z.real, z.imag), -1)

    def attention(x, name):
        n, t, _ = x.shape

        def heads(part, count):
            y = product(x, f"{name}.{part}_proj").reshape(n, t, count, -1)
            return y.transpose(0, 2, 1, 3).repeat(HEADS // count, 1)

        q, k = turned(heads("q", HEADS)), turned(heads("k", KV_HEADS))
        return product(attended(q, k, heads("v", KV_HEADS)), name + ".o_proj")

    def mlp(x, name):
        gate = product(x, name + ".gate_proj")
        gate = gate / (1 + np.exp(-gate))
        return product(
            gate * product(x, name + ".up_proj"), name + ".down_proj"
        )

    h = w["embed_tokens.weight"][x]
    for i in range(LAYERS):
        one = f"layers.{i}"
        h = h + attention(norm(h, one + ".input_layernorm"), one + ".self_attn")
        h = h + mlp(norm(h, one + ".post_attention_layernorm"), one + ".mlp")
    return mean_loss(norm(h, "norm") @ head.T, y)


class GptWeightsTest(harness.ProgramTest):
    shape = GPT2  # flags

    def setUp(self):
        super().setUp()
        with gzip.open(SHAKESPEARE) as file:
            text = file.read(6000)
        self.data = self.path("play.txt")
        with open(self.data, "wb") as file:
            file.write(text)
        letters, ids = np.unique(
            np.frombuffer(text, np.uint8), return_inverse=True
        )
        self.vocabulary = len(letters)
        self.weights = random_weights(self.vocabulary)
        # The last tenth, in windows that do not overlap.
        rest = ids[len(ids) * 9 // 10 :]
        count = (len(rest) - 1) // CONTEXT * CONTEXT
        self.windows = (
            rest[:count].reshape(-1, CONTEXT),
            rest[1 : count + 1].reshape(-1, CONTEXT),
        )
        self.file = self.path("gpt2.safetensors")

    def run_gpt(self, *arguments):
        return self.run_program(
            "--data", self.data, "--layers", LAYERS, "--heads", HEADS,
            "--width", WIDTH, "--context", CONTEXT, *self.shape,
            "--threads", 1, "--sample", 0, *arguments, program="gpt_dist",
        )  # fmt: skip

    def loss_of(self, tensors, *arguments):
        """What gpt_dist says after a step that changes nothing."""
        write_file(self.file, tensors)
        return self.loss_by(self.file, *arguments)

    def loss_by(self, file, *arguments):
        log = self.path("log")
        status, _, err = self.run_gpt(
            "--weights", file, "--lr", 0, "--weight-decay", 0, "--steps",
            1, "--workers", 1, "--log-json", log, *arguments,
        )  # fmt: skip
        self.assertEqual((status, err), (0, ""))
        self.assert_nothing_left()
        with open(log) as file:
            return json.loads(file.read())["evaluation_loss"]

    def assert_close(self, got, want):
        self.assertAlmostEqual(got, want, delta=1e-6 * want)

    def test_loss_is_gpt2s(self):
        want = gpt2_loss(self.weights, *self.windows)
        plain = self.loss_of(self.weights)
        self.assert_close(plain, want)
        # The exact gelu gives another one.
        exact = self.loss_of(self.weights, "--activation", "gelu")
        self.assertGreater(abs(exact - want), 2e-6 * want)
        # As transformers writes it, with what is no parameter.
        more = {"transformer." + name: x for name, x in self.weights.items()}
        mask = np.ones((1, 1, CONTEXT, CONTEXT), np.float32)
        more["transformer.h.0.attn.bias"] = mask
        more["transformer.h.1.attn.masked_bias"] = mask[0, 0, 0, :1]
        more["lm_head.weight"] = self.weights["wte.weight"]
        self.assertEqual(self.loss_of(more), plain)
        sharded = self.loss_of(more, "--workers", 2, "--shard-optimizer")
        self.assert_close(sharded, want)

    def test_half_precision(self):
        half = {n: x.astype(np.float16) for n, x in self.weights.items()}
        want = gpt2_loss(half, *self.windows)
        self.assert_close(self.loss_of(half), want)
        # bf16 is the upper half of f32.
        bits = {n: x.view(np.uint32) >> 16 for n, x in self.weights.items()}
        upper = {n: (x << 16).view(np.float32) for n, x in bits.items()}
        want = gpt2_loss(upper, *self.windows)
        stored = {n: x.astype(np.uint16) for n, x in bits.items()}
        self.assert_close(self.loss_of(stored), want)

    def test_round_trip(self):
        export = self.path("export.safetensors")
        for workers in (1, 2):
            with self.subTest(workers=workers):
                self.loss_of(
                    self.weights, "--export", export, "--workers", workers,
                    "--quiet",
                )  # fmt: skip
                tensors, metadata = read_file(export)
                self.assertEqual(metadata["format"], "pt")
                self.assertEqual(
                    sorted(tensors),
                    sorted("transformer." + name for name in self.weights),
                )
                for name, x in self.weights.items():
                    np.testing.assert_array_equal(
                        tensors["transformer." + name], x, name
                    )
                os.remove(export)
        # Training goes on from them, and its own weights give its own loss.
        status, _, err = self.run_gpt(
            "--weights", self.file, "--steps", 20, "--export", export, "--workers",
            2,
        )  # fmt: skip
        self.assertEqual((status, err), (0, ""))
        trained, _ = read_file(export)
        plain = {n.split(".", 1)[1]: x for n, x in trained.items()}
        want = gpt2_loss(plain, *self.windows)
        self.assertLess(want, gpt2_loss(self.weights, *self.windows))
        self.assert_close(self.loss_of(trained), want)

    def test_weights_in_several_files(self):
        # Without a prefix, as the published GPT-2 has its names.
        plain = self.loss_of(self.weights)
        self.assert_close(plain, gpt2_loss(self.weights, *self.windows))
        folder = self.path("split")
        index = write_parts(folder, self.weights, 3)
        one = self.path("one")
        os.mkdir(one)
        write_file(os.path.join(one, "model.safetensors"), self.weights)
        self.assertEqual(self.loss_by(index), plain)
        self.assertEqual(self.loss_by(one), plain)
        # Of two workers the mean of their means, which rounds otherwise.
        shared = self.loss_by(folder, "--workers", 2)
        self.assertEqual(shared, self.loss_by(one, "--workers", 2))
        self.assertAlmostEqual(shared, plain, delta=2e-7 * plain)
        part = os.path.join(folder, "model-00002-of-00003.safetensors")
        write_file(part, dict(list(self.weights.items())[1:][::3][:-1]))
        self.refuses(index, "model-00002-of-00003.safetensors', which does not")
        os.remove(part)
        self.refuses(folder, "model-00002-of-00003.safetensors': No such file")

    def refuses(self, weights, said):
        status, out, err = self.run_gpt("--weights", weights, "--steps", 1)
        self.assertEqual((status, out), (1, ""))
        self.assertIn(said, err)

    def test_mistakes(self):
        def without(name):
            return {n: x for n, x in self.weights.items() if n != name}

        some = self.weights["h.0.attn.c_attn.weight"]
        for tensors, said in (
            (
                without("h.1.ln_2.bias"),
                "the file has no transformer.h.1.ln_2.bias",
            ),
            (
                {**self.weights, "h.0.attn.c_attn.weight": some.T.copy()},
                "h.0.attn.c_attn.weight is (96, 32) in the file; the model "
                "needs (32, 96)",
            ),
            (
                {**self.weights, "wpe.weight": some[:, 0]},
                "wpe.weight is (32) in the file; the model needs (16, 32)",
            ),
            (
                {**self.weights, "h.2.ln_1.bias": some[0]},
                "no place for h.2.ln_1.bias",
            ),
            (
                {**self.weights, "score.weight": some},
                "no place for score.weight",
            ),
            (
                {
                    **self.weights,
                    "lm_head.weight": self.weights["wte.weight"] * 2,
                },
                "lm_head.weight differs from wte.weight",
            ),
        ):
            with self.subTest(said=said):
                write_file(self.file, tensors)
                status, out, err = self.run_gpt(
                    "--weights", self.file, "--steps", 1, "--workers", 1
                )
                self.assertEqual((status, out), (1, ""))
                self.assertIn(said, err)
        write_file(self.file, self.weights)
        folder = self.path("none/x.safetensors")
        for arguments, said in (
            (("--weights", self.file, "--bias=false"), "no place for"),
            (("--weights", folder), "none/x.safetensors"),
            (("--export", folder), "cannot write to the folder of"),
            (
                ("--weights", self.file, "--resume", self.file),
                "--weights and --resume both say",
            ),
        ):
            with self.subTest(said=said):
                status, out, err = self.run_gpt(
                    "--steps", 1, "--workers", 1, *arguments
                )
                self.assertEqual((status, out), (1, ""))
                self.assertIn(said, err)
        with open(self.file, "r+b") as file:
            file.truncate(os.path.getsize(self.file) - 4)
        status, out, err = self.run_gpt(
            "--weights", self.file, "--steps", 1, "--workers", 2
        )
        self.assertEqual((status, out), (1, ""))
        self.assertIn("gpt2.safetensors", err)
        self.assert_nothing_left()

    def test_llamas_mistakes_and_names(self):
        self.shape = LLAMA
        weights = llama_weights(self.vocabulary)
        query = "layers.0.self_attn.q_proj.weight"
        key = "layers.1.self_attn.k_proj.weight"
        without = {n: x for n, x in weights.items() if n != query}
        for tensors, said in (
            (without, "the file has no model." + query),
            ({**weights, key: weights[key].T.copy()}, "needs (16, 32)"),
            ({**weights, key: weights[query]}, key + " is (32, 32) in the"),
            (
                {**weights, "layers.2.x": weights[key]},
                "no place for layers.2.x",
            ),
            (self.weights, "the file has no model.embed_tokens.weight"),
        ):
            with self.subTest(said=said):
                write_file(self.file, tensors)
                self.expect_refusal(said)
        write_file(self.file, weights)
        self.expect_refusal("the file has no model.layers.2", "--layers", 3)
        self.expect_refusal("no place for layers.1", "--layers", 1)
        self.expect_refusal("lm_head.weight differs from embed", "--head=false")
        self.expect_refusal("needs (48, 32)", "--hidden", 48)

    def expect_refusal(self, said, *arguments):
        status, out, err = self.run_gpt(
            "--weights", self.file, "--steps", 1, "--workers", 1, *arguments
        )
        self.assertEqual((status, out), (1, ""))
        self.assertIn(said, err)

    def test_loss_is_llamas(self):
        self.shape = LLAMA
        weights = llama_weights(self.vocabulary)
        want = llama_loss(weights, *self.windows)
        plain = self.loss_of(weights)
        self.assert_close(plain, want)
        # As transformers writes it, with what is no parameter.
        head = weights.pop("lm_head.weight")
        more = {"model." + name: x for name, x in weights.items()}
        more["model.layers.0.self_attn.rotary_emb.inv_freq"] = head[0]
        tied = self.loss_of(more, "--head=false")
        self.assert_close(tied, llama_loss(weights, *self.windows))
        more["lm_head.weight"] = head
        self.assertEqual(self.loss_of(more), plain)
        weights["lm_head.weight"] = head
        settings = self.loss_of(weights, "--rotary", 500, "--epsilon", 0.01)
        self.assert_close(
            settings, llama_loss(weights, *self.windows, 0.01, 500.0)
        )
        self.assertGreater(abs(settings - want), 1e-4 * want)
        bits = {n: x.view(np.uint32) >> 16 for n, x in weights.items()}
        upper = {n: (x << 16).view(np.float32) for n, x in bits.items()}
        stored = {n: x.astype(np.uint16) for n, x in bits.items()}
        self.assert_close(
            self.loss_of(stored), llama_loss(upper, *self.windows)
        )

    def test_llamas_round_trip(self):
        self.shape = LLAMA
        weights = llama_weights(self.vocabulary)
        export = self.path("export.safetensors")
        self.loss_of(weights, "--export", export, "--workers", 2)
        tensors, _ = read_file(export)
        full = {
            name if name == "lm_head.weight" else "model." + name: x
            for name, x in weights.items()
        }
        self.assertEqual(sorted(tensors), sorted(full))
        for name, x in full.items():
            np.testing.assert_array_equal(tensors[name], x, name)
        # Biases have names too, and training changes every one.
        status, _, err = self.run_gpt(
            "--bias", "--steps", 3, "--export", export, "--workers", 1
        )
        self.assertEqual((status, err), (0, ""))
        tensors, _ = read_file(export)
        biases = [x for name, x in tensors.items() if name.endswith(".bias")]
        self.assertEqual(len(biases), 7 * LAYERS)
        self.assertEqual(len(tensors), len(full) + len(biases))

    def test_settings_that_have_no_names(self):
        write_file(self.file, self.weights)
        for flags in (
            ("--rms-norm",),
            ("--rotary", 10000),
            ("--gated",),
            ("--kv-heads", 2),
            (*LLAMA, "--rms-norm=false"),
        ):
            self.shape = flags
            for way in ("--weights", "--export"):
                with self.subTest(flags=flags, way=way):
                    status, out, err = self.run_gpt(
                        way, self.file, "--steps", 1, "--workers", 1
                    )
                    self.assertEqual((status, out), (1, ""))
                    self.assertIn("there are names for Llama's settings", err)


if __name__ == "__main__":
    harness.main()
