# SPDX-License-Identifier: Apache-2.0
"""gpt_dist: it learns and writes, the same bits however it is started, and what
it says when the text or a flag is wrong."""

import gzip
import json
import os
import re
import struct

from tests.examples import harness

SHAKESPEARE = os.path.join(
    harness.ROOT, "examples/data/shakespeare/tiny_shakespeare.txt.gz"
)
REPORT = re.compile(
    r"Step (\d+): training loss = (\d+\.\d{4}), tokens/s = \d+, "
    r"seconds = \d+\.\d, digest = ([0-9a-f]{16})\n"
    r"Validation loss = (\d+\.\d{4})\n"
)
# A model that learns in seconds.
SMALL = (
    "--layers", 2, "--heads", 2, "--width", 32, "--context", 16,
    "--steps", 24, "--evaluate-every", 12, "--lr", 0.01, "--threads", 1,
    "--sample", 0,
)  # fmt: skip


WORDS = re.compile(
    rb"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
)
MERGES = [
    (b"h", b"e"), (b" ", b"t"), (b" t", b"he"), (b"i", b"n"), (b"in", b"g"),
    (b"o", b"u"), (b"\n", b"\n"), (b" ", b"a"),
    (b"e", b"r"), (b"o", b"r"), (b"a", b"n"), (b" ", b"w"), (b"l", b"l"),
]  # fmt: skip


class Pairs:
    """GPT-2's encoding of ASCII, by trying all pairs. Token 0 is a line's end."""

    def __init__(self, merges, special=b"<|endoftext|>"):
        """merges: pairs of bytes, by rank."""
        self.merges = merges
        self.tokens = [b"\n", *(bytes([b]) for b in range(256) if b != 10)]
        for left, right in merges:
            self.tokens.append(left + right)
        self.tokens += special.split()

    def encode(self, text):
        ids = []
        for word in WORDS.findall(text):
            parts = [word[i : i + 1] for i in range(len(word))]
            while pairs := set(zip(parts, parts[1:])) & set(self.merges):
                pair = min(pairs, key=self.merges.index)
                at = list(zip(parts, parts[1:])).index(pair)
                parts[at : at + 2] = [b"".join(pair)]
            ids += map(self.tokens.index, parts)
        return ids

    def write(self, folder):
        """vocab.json and merges.txt."""
        prints = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
        others = iter(range(0x100, 0x200))
        names = [chr(b if b in prints else next(others)) for b in range(256)]

        def written(token):
            return "".join(names[byte] for byte in token)

        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "vocab.json"), "w") as file:
            ids = {written(token): i for i, token in enumerate(self.tokens)}
            json.dump(ids, file)
        with open(os.path.join(folder, "merges.txt"), "w") as file:
            file.write("#version: 0.2\n")
            for pair in self.merges:
                file.write(" ".join(map(written, pair)) + "\n")


def reports_of(out):
    """(step, training loss, digest, validation loss); nothing else is there."""
    rest = REPORT.sub("", out)
    if rest:
        raise AssertionError("unexpected output: " + rest)
    return [
        (int(m[1]), float(m[2]), m[3], float(m[4]))
        for m in REPORT.finditer(out)
    ]


def digests_of(out):
    return [report[2] for report in reports_of(out)]


class GptTest(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        with gzip.open(SHAKESPEARE) as file:
            self.text = file.read(12000)
        self.data = self.path("play.txt")
        with open(self.data, "wb") as file:
            file.write(self.text)

    def gpt(self, *arguments, data=True, small=True, **options):
        if data:
            arguments = ("--data", self.data, *arguments)
        if small:
            arguments = (*SMALL, *arguments)
        status, out, err = self.run_program(
            *arguments, program="gpt_dist", **options
        )
        self.assertEqual((status, err), (0, ""))
        self.assert_nothing_left()
        return out

    def mistake(self, status, *arguments):
        """What is said of it."""
        got, out, err = self.run_program(*SMALL, *arguments, program="gpt_dist")
        self.assertEqual((got, out), (status, ""), err)
        self.assert_nothing_left()
        return err

    def test_learns_and_writes(self):
        # Tiny Shakespeare, its vocabulary of 65: chance is ln 65 = 4.17.
        out = self.gpt(
            "--layers", 2, "--steps", 150, "--evaluate-every", 75, "--sample",
            40, "--prompt", "ROMEO:", "--data", SHAKESPEARE, data=False,
            small=False,
        )  # fmt: skip
        end = list(REPORT.finditer(out))[-1].end()
        reports = reports_of(out[:end])
        self.assertEqual([report[0] for report in reports], [75, 150])
        self.assertLess(reports[1][3], reports[0][3])
        self.assertLess(reports[1][3], 2.8)
        sample = out[end:]
        self.assertEqual((sample[:6], sample[-1]), ("ROMEO:", "\n"))
        self.assertEqual(len(sample), 6 + 40 + 1)

    def test_every_way_to_start_gives_the_same_bits(self):
        run = ("--workers", 3)
        first = digests_of(self.gpt(*run))
        self.assertEqual(len(set(first)), 2)
        again = {
            "eager": self.gpt(*run, "--graph=false"),
            "shards of the optimizer": self.gpt(*run, "--shard-optimizer"),
            "tcp": self.gpt(*run, "--comm", "tcp"),
            "mpiexec": self.gpt(under=self.mpiexec(3)),
        }
        for name, out in again.items():
            with self.subTest(started=name):
                self.assertEqual(digests_of(out), first)

    def test_the_global_batch_is_the_same_for_any_workers(self):
        alone = reports_of(self.gpt("--workers", 1))
        for workers in (2, 4):
            with self.subTest(workers=workers):
                found = reports_of(self.gpt("--workers", workers))
                for got, want in zip(found, alone):
                    self.assertAlmostEqual(got[1], want[1], delta=0.002)
                    self.assertAlmostEqual(got[3], want[3], delta=0.002)

    def test_dropout_and_bias(self):
        run = ("--dropout", 0.2, "--bias", "--workers", 2)
        graph = digests_of(self.gpt(*run))
        self.assertEqual(digests_of(self.gpt(*run, "--graph=false")), graph)
        self.assertNotEqual(digests_of(self.gpt("--workers", 2)), graph)

    def test_activations_are_computed_again(self):
        for precision in ("f32", "bf16", "f16"):
            run = ("--dropout", 0.2, "--workers", 2, "--precision", precision)
            whole = digests_of(self.gpt(*run))
            for mode in ("--graph", "--graph=false"):
                out = self.gpt(*run, "--recompute", mode)
                self.assertEqual(digests_of(out), whole, precision)
        taken = []
        larger = ("--layers", 4, "--width", 64, "--context", 128, "--plan")
        for more in ((), ("--recompute",)):
            out = self.gpt(*larger, *more)
            found = re.search(r"activations ([\d.]+)", out)
            taken.append(float(found[1]))
        self.assertLess(taken[1], taken[0])

    def test_llamas_network(self):
        llama = (
            "--rms-norm", "--rotary", 10000, "--gated", "--activation", "silu",
            "--hidden", 44, "--kv-heads", 1, "--head",
        )  # fmt: skip
        graph = digests_of(self.gpt(*llama, "--workers", 2))
        eager = self.gpt(*llama, "--workers", 2, "--graph=false")
        self.assertEqual(digests_of(eager), graph)
        # Each setting alone makes another network, which learns.
        digests = {graph[1]}
        for i, flag in enumerate(llama):
            if str(flag).startswith("--"):
                value = llama[i + 1 : i + 2]
                alone = (
                    [flag] if str(*value).startswith("--") else [flag, *value]
                )
                reports = reports_of(self.gpt(*alone))
                self.assertLess(reports[1][1], reports[0][1] - 0.1)
                digests.add(reports[1][2])
        self.assertEqual(len(digests), 8)

    def test_resumed_run_is_the_run_without_a_stop(self):
        file = self.path("gpt.safetensors")
        run = ("--sample", 30, "--seed", 3)
        whole = self.gpt(*run)
        part = self.gpt(*run, "--save", file, "--save-every", 1, "--sample", 0)
        self.assertEqual(digests_of(part)[1], REPORT.findall(whole)[1][2])
        # All steps are there: it only writes, and the same.
        rest = self.gpt(*run, "--resume", file)
        self.assertEqual(rest, whole[list(REPORT.finditer(whole))[1].end() :])
        # Without chance every worker and every seed gives the same.
        run = ("--resume", file, "--seed", 3, "--sample", 20)
        cold = self.gpt(*run, "--temperature", 0)
        again = self.gpt(
            *run, "--temperature", 0, "--sample-seed", 5, "--workers", 3
        )
        self.assertEqual(cold, again)
        self.assertNotEqual(self.gpt(*run, "--sample-seed", 1), self.gpt(*run))

    def test_files_of_ids(self):
        letters = sorted(set(self.text))
        ids = [letters.index(byte) for byte in self.text]
        want = digests_of(self.gpt())
        for name, head, form in (
            ("plain", b"", "<%dH"),
            ("llm.c, 16", struct.pack("<3i", 20240520, 1, len(ids)), "<%dH"),
            ("llm.c, 32", struct.pack("<3i", 20240801, 7, len(ids)), "<%dI"),
        ):
            path = self.path("ids.bin")
            with open(path, "wb") as file:
                file.write(head.ljust(1024, b"\0") if head else b"")
                file.write(struct.pack(form % len(ids), *ids))
            run = ("--tokens", path, "--vocabulary", len(letters))
            with self.subTest(file=name):
                self.assertEqual(digests_of(self.gpt(*run, data=False)), want)
        err = self.mistake(1, "--tokens", path, "--vocabulary", 20)
        self.assertRegex(
            err, "ids.bin' has id [0-9]+ at place [0-9]+; the vocabulary has 20"
        )
        with open(path, "r+b") as file:
            file.truncate(2000)
        err = self.mistake(1, "--tokens", path, "--vocabulary", 70)
        self.assertIn("ids.bin' has 976 bytes of ids; its header promises", err)

    def test_byte_pairs(self):
        pairs = Pairs(MERGES)
        folder = self.path("tokenizer")
        pairs.write(folder)
        ids = pairs.encode(self.text)
        self.assertLess(len(ids), 0.9 * len(self.text))
        path = self.path("ids.bin")
        with open(path, "wb") as file:
            file.write(struct.pack("<%dH" % len(ids), *ids))
        tokens = ("--tokens", path, "--vocabulary", len(pairs.tokens))
        want = self.gpt(*tokens, "--sample", 40, data=False)
        end = list(REPORT.finditer(want))[-1].end()
        drawn = [int(number) for number in want[end:].split()]
        self.assertEqual((len(drawn), drawn[0]), (41, 0))
        # The same losses and bits, and a sample as text, of any bytes.
        found = self.path("out")
        run = ("--tokenizer", folder, "--sample", 40)
        with open(found, "wb") as file:
            self.gpt(*run, stdout=file)
        with open(found, "rb") as file:
            found = file.read()
        text = b"".join(pairs.tokens[number] for number in drawn) + b"\n"
        self.assertEqual(found[-len(text) :], text)
        rest = found[: -len(text)].decode()
        self.assertEqual(reports_of(rest), reports_of(want[:end]))
        # A prompt with what the text does not have; only writing.
        prompt = self.path("prompt")
        with open(prompt, "wb") as file:
            words = ("--prompt", "the \u00e9t\u00e9", "--steps", 0)
            self.gpt(*run, *words, stdout=file)
        with open(prompt, "rb") as file:
            written = file.read()
        self.assertTrue(written.startswith("the \u00e9t\u00e9".encode()))

    def test_resume_refuses_another_vocabulary(self):
        merges = [*MERGES[:-1], (b"q", b"z")]  # which the text does not have
        for name, pairs in (
            ("saved", Pairs(MERGES)),
            ("larger", Pairs(MERGES, b"<|endoftext|> <|pad|>")),
            ("other", Pairs(merges)),
        ):
            pairs.write(self.path(name))
        file = self.path("gpt.safetensors")
        self.gpt("--tokenizer", self.path("saved"), "--save", file)
        run = ("--data", self.data, "--resume", file)
        for more, said in (
            (("--tokenizer", self.path("larger")), "tokens.W"),
            (("--tokenizer", self.path("other")), "with training samples"),
            ((), "with training samples"),
        ):
            with self.subTest(said):
                self.assertIn(said, self.mistake(1, *run, *more))

    def test_bytes(self):
        with open(self.data, "ab") as file:
            file.write(b"\xff\xfe")
        reports = reports_of(self.gpt("--unit", "bytes"))
        self.assertLess(reports[1][3], 5.0)  # ln 256 = 5.5
        err = self.mistake(1, "--data", self.data)
        self.assertIn("play.txt' is not UTF-8 at byte 12000 (0xff)", err)

    def test_plan_tells_the_memory_first(self):
        out = self.gpt("--workers", 1, "--plan", "--steps", 400)
        figures = re.match(
            r"Memory of a worker: parameters (\S+) GB, gradients (\S+) GB, "
            r"states (\S+) GB, activations (\S+) GB, program and data (\S+) GB; "
            r"(\S+) GB in all\n1 workers, ",
            out,
        )
        *parts, whole = map(float, figures.groups())
        self.assertAlmostEqual(sum(parts), whole, delta=0.003)
        self.assertEqual(parts[0], parts[1])

    def test_mistakes(self):
        short = self.path("short.txt")
        with open(short, "w") as file:
            file.write("far too short")
        for status, arguments, said in (
            (1, ("--data", self.path("none")), "cannot open"),
            (1, ("--data", short), "are too few for a window of 16"),
            (1, ("--data", self.data, "--vocabulary", 5), "different tokens"),
            (1, ("--data", self.data, "--heads", 3), "multiple of the heads"),
            (1, ("--data", self.data, "--width", 131072), " GB are needed and"),
            (
                1,
                ("--data", self.data, "--kv-heads", 3),
                "num_heads is 2 and kv_heads 3; needs a multiple of kv_heads",
            ),
            (
                1,
                ("--data", self.data, "--rotary", 100, "--width", 6),
                "with an even number of columns",
            ),
            (1, ("--data", self.data, "--rotary", 0.5), "theta is 0.5; needs"),
            (2, ("--activation", "tanh"), "gelu, gelu_tanh, silu"),
            (2, ("--epsilon", 0), "epsilon is '0'; needs"),
            (1, ("--data", self.data, "--tokens", short), "give one of them"),
            (1, ("--tokens", short), "--tokens needs --vocabulary"),
            (
                1,
                ("--tokens", self.path("none"), "--vocabulary", 9),
                "cannot open",
            ),
            (1, ("--tokens", short, "--tokenizer", "x"), "give one of them"),
            (
                1,
                ("--data", short, "--tokenizer", "x", "--unit", "bytes"),
                "--unit and --tokenizer both say",
            ),
            (
                1,
                ("--data", short, "--tokenizer", self.path("none")),
                "cannot open '%s'" % self.path("none/vocab.json"),
            ),
            (2, ("--momentum", 0.9), "unknown flag '--momentum'"),
            (2, ("--epochs", 2), "unknown flag '--epochs'"),
            (2, ("--preset", "huge"), "nano"),
            (2, ("--layers", 0), "layers is '0'; needs"),
            (2, ("--batch-size", 3, "--global-batch", 6), "give one of them"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(said, self.mistake(status, *arguments))

    def test_help_shows_the_presets_defaults(self):
        for preset, width in (
            ("nano", 128),
            ("10m", 384),
            ("gpt2", 768),
            ("llama", 384),
        ):
            out = self.gpt(
                "--preset", preset, "--help", data=False, small=False
            )
            self.assertIn("a token's vector [%d]\n" % width, out)
            self.assertNotIn("--momentum", out)


if __name__ == "__main__":
    harness.main()
