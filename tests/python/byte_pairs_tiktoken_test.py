# SPDX-License-Identifier: Apache-2.0
"""choir.data.BytePairs against tiktoken and Hugging Face's tokenizers, which are
skipped where they are not installed: a vocabulary that is trained here on Python's
own sources, and 10,000 random texts."""

import collections
import inspect
import json
import os
import random
import re
import tempfile
import textwrap
import typing
import unicodedata
import unittest

from choir import data

try:
    import tiktoken
except ImportError:
    tiktoken = None
try:
    import tokenizers
except ImportError:
    tokenizers = None

TEXTS = 10000
MERGES = 700
END = "<|endoftext|>"
# As OpenAI published it with GPT-2; tiktoken runs it by a regular expression.
PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
FOREIGN = """Größe, Übermut und Äpfel: 3½ Pfund für 12 € – „schön“. Ωμέγα και
άλφα· Привет, как дела? Всё хорошо. 北京欢迎你,中文分词。日本語のテキスト。 한국어
텍스트입니다. नमस्ते दुनिया مرحبا بالعالم שלום עולם 👍🏽👩‍👩‍👧 e\u0301 ﬁ Ⅷ ٣٤٥ x² """
CORPUS = FOREIGN * 30 + "".join(
    inspect.getsource(module) for module in (random, textwrap, typing, unittest)
)


def alphabet():
    """The character that GPT-2's files have for each byte."""
    found = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in found]
    characters = {byte: chr(byte) for byte in found}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return characters


ALPHABET = alphabet()


def written(token):
    return "".join(ALPHABET[byte] for byte in token)


def trained(text, count):
    """The `count` merges of the pairs that are most frequent, one after the other:
    [(left, right)]."""
    words = collections.Counter(
        re.findall(r" ?[^\W\d_]+| ?\d+| ?[^\w\s]+|\s+(?!\S)|\s+", text)
    )
    parts = {word: [bytes([byte]) for byte in word.encode()] for word in words}
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, tokens in parts.items():
            for pair in zip(tokens, tokens[1:]):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word, tokens in parts.items():
            i = 0
            while i + 1 < len(tokens):
                if (tokens[i], tokens[i + 1]) == best:
                    tokens[i : i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def pieces():
    """What the random texts are made of: functions of a random.Random."""
    # Characters that this Python's Unicode knows are of the same class in all
    # later versions.
    known = [
        chr(point)
        for point in range(0x110000)
        if unicodedata.category(chr(point)) not in ("Cn", "Cs")
    ]
    few = [c for c in known if c < "\u3100"]
    spaces = [*" \t\n\r\v\f\x85\xa0\u1680\u2003\u2028\u202f\u3000\x1c\u200b"]
    words = CORPUS.split()
    endings = [
        "'s",
        "'d",
        "'m",
        "'t",
        "'ll",
        "'ve",
        "'re",
        "'S",
        "'l",
        "'",
        "''",
    ]
    return [
        lambda rng: rng.choice(words),
        lambda rng: " " + rng.choice(words),
        lambda rng: " " * rng.randint(1, 4),
        lambda rng: "".join(rng.choices(spaces, k=rng.randint(1, 4))),
        lambda rng: rng.choice(endings),
        lambda rng: str(rng.randint(0, 10**6)),
        lambda rng: "".join(rng.choices(known, k=rng.randint(1, 5))),
        lambda rng: "".join(rng.choices(few, k=rng.randint(1, 5))),
        lambda rng: chr(rng.randrange(128)) * rng.randint(1, 40),
        lambda rng: "".join(chr(rng.randrange(32, 127)) for _ in range(5)),
        lambda rng: CORPUS[(at := rng.randrange(len(CORPUS))) : at + 60],
        lambda rng: END,
    ]


def random_texts():
    rng = random.Random(1)
    makers = pieces()
    return [
        "".join(rng.choice(makers)(rng) for _ in range(rng.randint(0, 12)))
        for _ in range(TEXTS)
    ]


class ByOthers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        merges = trained(CORPUS, MERGES)
        tokens = [bytes([byte]) for byte in range(256)]
        random.Random(2).shuffle(tokens)
        for left, right in merges:
            if left + right not in tokens:
                tokens.append(left + right)
        cls.ranks = {token: i for i, token in enumerate(tokens)}
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.vocab = os.path.join(folder.name, "vocab.json")
        cls.merges = os.path.join(folder.name, "merges.txt")
        ids = {written(token): i for token, i in cls.ranks.items()}
        ids[END] = len(ids)
        with open(cls.vocab, "w", encoding="utf-8") as file:
            json.dump(ids, file)
        with open(cls.merges, "w", encoding="utf-8") as file:
            lines = [f"{written(a)} {written(b)}\n" for a, b in merges]
            file.write("".join(["#version: 0.2\n", *lines]))
        cls.pairs = data.BytePairs(cls.vocab, cls.merges)
        cls.texts = random_texts()

    def compare(self, encode, decode):
        merged = 0
        for text in self.texts:
            ids = self.pairs.encode(text).tolist()
            self.assertEqual(ids, encode(text), repr(text))
            self.assertEqual(self.pairs.decode(ids), text)
            part = ids[1:-1]
            self.assertEqual(self.pairs.decode(part), decode(part), part)
            merged += len(text.encode()) - len(ids)
        # They are no texts of single bytes.
        self.assertGreater(merged, 10 * TEXTS)

    @unittest.skipIf(tiktoken is None, "tiktoken is not installed")
    def test_tiktoken(self):
        other = tiktoken.Encoding(
            "small",
            pat_str=PATTERN,
            mergeable_ranks=self.ranks,
            special_tokens={END: len(self.ranks)},
        )
        self.compare(other.encode_ordinary, other.decode)
        for text in ("\ud800", "a\udc00b", "\ud83d\ude00", "x\ud83d"):
            self.assertEqual(
                self.pairs.encode(text).tolist(), other.encode_ordinary(text)
            )
        self.assertEqual(self.pairs.find(END), other.eot_token)
        self.assertEqual(len(self.pairs), other.n_vocab)

    @unittest.skipIf(tokenizers is None, "tokenizers is not installed")
    def test_hugging_face(self):
        other = tokenizers.ByteLevelBPETokenizer(
            self.vocab, self.merges, add_prefix_space=False
        )
        self.compare(
            lambda text: other.encode(text).ids,
            lambda ids: other.decode(ids, skip_special_tokens=False),
        )

    def test_texts_come_back(self):
        for text in self.texts[:1000]:
            self.assertEqual(self.pairs.decode(self.pairs.encode(text)), text)


if __name__ == "__main__":
    unittest.main()
