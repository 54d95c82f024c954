# SPDX-License-Identifier: Apache-2.0
"""choir.data.Tokens: texts, files of ids, and windows as a data set."""

import copy
import gzip
import json
import os
import unittest

import numpy as np

from choir import data

TEXT = "the owl saw thé sea 🦉\n" * 9


class Base(unittest.TestCase):
    def write(self, name, content):
        folder = os.path.join(os.environ["TEST_TMPDIR"], self.id())
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return path


class Texts(Base):
    def test_characters(self):
        letters = sorted(set(TEXT))
        want = np.array([letters.index(letter) for letter in TEXT], np.int32)
        plain = self.write("play.txt", TEXT.encode())
        packed = self.write("play.txt.gz", gzip.compress(TEXT.encode()))
        for path in (plain, packed):
            text = data.Tokens.text(path)
            self.assertEqual(len(text), len(TEXT))
            self.assertEqual(text.vocabulary, len(letters))
            self.assertEqual(
                repr(text),
                f"Tokens({len(TEXT)} of a vocabulary of {len(letters)})",
            )
            self.assertEqual(text[:].dtype, np.int32)
            np.testing.assert_array_equal(text[:], want)
            np.testing.assert_array_equal(text.encode(TEXT), want)
            self.assertEqual(text.decode(want), TEXT)
            self.assertEqual(text.decode(want[::2].tolist()), TEXT[::2])
            self.assertEqual(text.encode("").tolist(), [])
            self.assertEqual(text.decode([]), "")

    def test_places(self):
        text = data.Tokens.text(self.write("play.txt", TEXT.encode()))
        every = text[:]
        for place in (
            slice(3, 9), slice(None, 4), slice(-7, None), slice(5, 5),
            slice(9, 3), slice(0, 10**6),
        ):  # fmt: skip
            with self.subTest(place):
                np.testing.assert_array_equal(text[place], every[place])
        self.assertEqual([text[0], text[-1]], [every[0], every[-1]])
        self.assertIsInstance(text[2], int)
        for place in (len(text), -len(text) - 1):
            with self.assertRaisesRegex(IndexError, f"token {place} of "):
                text[place]
        with self.assertRaisesRegex(ValueError, "by steps of 2; 1 is needed"):
            text[::2]
        with self.assertRaises(TypeError):
            text["a"]

    def test_bytes(self):
        content = bytes(range(256)) + b"\xff\0\0a"
        text = data.Tokens.text(self.write("any", content), unit="bytes")
        self.assertEqual((len(text), text.vocabulary), (260, 256))
        np.testing.assert_array_equal(text[:], np.frombuffer(content, np.uint8))
        self.assertEqual(text.decode_bytes(text[:]), content)
        self.assertEqual(text.encode("é").tolist(), [0xC3, 0xA9])
        self.assertEqual(text.decode([0x61, 0xC3]), "a\ufffd")

    def test_byte_pairs(self):
        # The bytes that print stand for themselves, the others follow U+00FF.
        prints = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
        others = iter(range(0x100, 0x200))
        names = [chr(b if b in prints else next(others)) for b in range(256)]
        names += ["th", "the", "<|endoftext|>"]
        ids = {name: i for i, name in enumerate(names)}
        vocab = self.write("vocab.json", json.dumps(ids).encode())
        merges = self.write("merges.txt", b"t h\nth e\n")
        path = self.write("play.txt", b"the th the\xff\n")
        text = data.Tokens.byte_pairs(path, vocab, merges)
        want = [257, 32, 256, 32, 257, 255, 10]
        self.assertEqual((len(text), text.vocabulary), (7, 259))
        self.assertEqual(text[:].tolist(), want)
        self.assertEqual(text.decode_bytes(want), b"the th the\xff\n")
        self.assertEqual(text.decode([258, 104]), "<|endoftext|>h")
        self.assertEqual(text.encode("thé").tolist(), [256, 0xC3, 0xA9])
        self.assertEqual(text.encode("").tolist(), [])
        self.assertEqual(text.windows(3).class_count, 259)
        with self.assertRaisesRegex(IndexError, "id 259 at place 0"):
            text.decode([259])
        for files, kind, words in (
            (("none.txt", vocab, merges), FileNotFoundError, "none.txt"),
            ((path, "none.json", merges), FileNotFoundError, "none.json"),
            ((path, vocab, "none.txt"), FileNotFoundError, "none.txt"),
            ((path, merges, merges), ValueError, "merges.txt', line 1"),
            ((path, vocab, path), ValueError, "play.txt', line 1"),
            ((path, vocab, None), TypeError, ""),
        ):
            with self.subTest(files):
                with self.assertRaisesRegex(kind, words):
                    data.Tokens.byte_pairs(*files)

    def test_mistakes(self):
        path = self.write("play.txt", TEXT.encode())
        text = data.Tokens.text(path)
        with self.assertRaisesRegex(ValueError, "'z' at byte 4 is none of"):
            text.encode("the zoo")
        for ids, kind, words in (
            ([0, 99], IndexError, "id 99 at place 1; ids are from 0 to 11"),
            ([-1], IndexError, "id -1 at place 0"),
            ([2**31], OverflowError, "an id is 2147483648"),
            ([0.5], TypeError, "ids are float64; integers are needed"),
        ):
            with self.assertRaisesRegex(kind, words):
                text.decode(ids)
        with self.assertRaisesRegex(ValueError, "unit is 'words'; characters"):
            data.Tokens.text(path, unit="words")
        with self.assertRaisesRegex(FileNotFoundError, "nothing.txt"):
            data.Tokens.text("nothing.txt")
        with self.assertRaisesRegex(ValueError, "not UTF-8 at byte 1"):
            data.Tokens.text(self.write("wrong.txt", b"a\xff"))
        with self.assertRaises(TypeError):
            copy.copy(text)


class Ids(Base):
    def setUp(self):
        self.want = np.arange(300) * 7 % 500

    def test_files(self):
        for code, size in (("<u2", 2), ("<u4", 4)):
            content = self.want.astype(code).tobytes()
            magic = {2: 20240520, 4: 20240801}[size]
            head = np.zeros(256, "<i4")
            head[:3] = magic, 1, len(self.want)
            for name, path, given in (
                ("plain", self.write("ids.bin", content), size),
                ("header", self.write("h.bin", head.tobytes() + content), 0),
            ):
                with self.subTest(file=name, size=size):
                    ids = data.Tokens.ids(path, 500, id_bytes=given)
                    self.assertEqual((len(ids), ids.vocabulary), (300, 500))
                    np.testing.assert_array_equal(ids[:], self.want)
                    np.testing.assert_array_equal(ids[20:40], self.want[20:40])

    def test_mistakes(self):
        path = self.write("ids.bin", self.want.astype("<u2").tobytes())
        ids = data.Tokens.ids(path, 400)
        with self.assertRaisesRegex(IndexError, "has id [0-9]+ at place"):
            ids[:]
        for call in (lambda: ids.encode("a"), lambda: ids.decode([1])):
            with self.assertRaisesRegex(
                RuntimeError, "has ids and not what they stand for"
            ):
                call()
        for arguments, kind, words in (
            ((path, 0), ValueError, "vocabulary of 1 to"),
            ((path, 400, 3), ValueError, "2 or 4 bytes"),
            ((path, 2**64), OverflowError, "vocabulary"),
            ((path, 2.5), TypeError, ""),
            (("nothing.bin", 400), FileNotFoundError, "nothing.bin"),
        ):
            with self.assertRaisesRegex(kind, words):
                data.Tokens.ids(*arguments)


class Windows(Base):
    def setUp(self):
        self.text = data.Tokens.text(self.write("play.txt", TEXT.encode()))
        self.every = self.text[:]

    def windows_of(self, dataset, **settings):
        """x and y of all batches, in their order."""
        loader = data.Loader(dataset, shuffle=False, **settings)
        pairs = [(x.numpy().copy(), y.numpy().copy()) for x, y in loader]
        return [np.concatenate(part) for part in zip(*pairs)]

    def test_values(self):
        for length, stride, first, count in (
            (8, 1, 0, 0),
            (8, 8, 0, 0),
            (5, 3, 11, 0),
            (16, 16, 4, 100),
            (1, 1, 0, 2),
        ):
            with self.subTest(length=length, stride=stride, first=first):
                dataset = self.text.windows(length, stride, first, count)
                ids = self.every[first : first + count if count else None]
                starts = range(0, len(ids) - length, stride)
                self.assertEqual(len(dataset), len(starts))
                x, y = self.windows_of(dataset, batch=4)
                self.assertEqual((x.dtype, y.dtype), (np.int32, np.int32))
                np.testing.assert_array_equal(
                    x, [ids[i : i + length] for i in starts]
                )
                np.testing.assert_array_equal(
                    y, [ids[i + 1 : i + 1 + length] for i in starts]
                )

    def test_what_a_data_set_tells(self):
        dataset = self.text.windows(8, stride=8)
        self.assertEqual(dataset.shape, (8,))
        self.assertEqual(dataset.class_count, self.text.vocabulary)
        self.assertEqual(
            repr(dataset), f"Dataset({len(dataset)} windows of 8 tokens)"
        )
        with self.assertRaisesRegex(
            TypeError, "windows of 8 tokens.* no images"
        ):
            dataset.arrays()

    def test_a_data_set_keeps_its_text(self):
        path = self.write("ids.bin", np.arange(50, dtype="<u2").tobytes())
        x, _ = self.windows_of(data.Tokens.ids(path, 50).windows(7, 7))
        np.testing.assert_array_equal(x.ravel(), np.arange(49))

    def test_a_batch_is_shared_out(self):
        dataset = self.text.windows(8)
        settings = {"global_batch": 12, "micro_shard": 1, "seed": 3}
        whole = data.Loader(dataset, **settings)
        parts = [
            data.Loader(dataset, rank=rank, size=3, **settings)
            for rank in range(3)
        ]
        for one, *others in zip(whole, *parts):
            self.assertEqual(one.x.batch[2], one.sample_count)
            self.assertEqual(
                sum(other.sample_count for other in others), one.sample_count
            )
            together = np.concatenate([b.x.numpy() for b in others])
            self.assertEqual(
                sorted(map(bytes, together)), sorted(map(bytes, one.x.numpy()))
            )

    def test_mistakes(self):
        count = len(self.text)
        for arguments, kind, words in (
            ((count,), ValueError, "too few for a window"),
            ((0,), ValueError, "length"),
            ((8, 0), ValueError, "stride"),
            ((8, 1, -1), ValueError, "first"),
            ((8, 1, 0, count + 1), ValueError, ""),
            ((2**64,), OverflowError, "length"),
            ((2.5,), TypeError, ""),
        ):
            with self.subTest(arguments):
                with self.assertRaisesRegex(kind, words):
                    self.text.windows(*arguments)


if __name__ == "__main__":
    unittest.main()
