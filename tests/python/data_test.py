# SPDX-License-Identifier: Apache-2.0
"""choir.data, choir.initializer and choir.utils. Arguments: MNIST's files in
//examples."""

import contextlib
import copy
import io
import json
import math
import os
import pathlib
import sys
import unittest
import warnings

import numpy as np

from choir import autograd, data, device, initializer, tensor, utils

DEV = device.create_cpu_device()
MNIST = None


def taken(loader):
    """(samples, place) of each batch of an epoch; samples by their first pixels."""
    found = []
    for batch in loader:
        found.append((batch.x.numpy().copy(), batch.y.numpy().copy(), batch))
    return found


def numbered(count=37):
    """Images that tell their index: pixels are its two digits to base 200."""
    made = data.synthetic(count, (1, 2, 2), class_count=5, seed=1)
    pixels, labels = made.arrays()
    return made, pixels.astype(np.float32) / 255, labels


class Datasets(unittest.TestCase):
    def test_mnist(self):
        train = data.mnist(MNIST)
        test = data.mnist(MNIST, "test")
        self.assertEqual((train.shape, train.class_count), ((1, 28, 28), 10))
        self.assertGreater(len(train), 0)
        self.assertGreater(len(test), 0)
        x, y = train.arrays()
        self.assertEqual(x.shape, (len(train), 1, 28, 28))
        self.assertEqual((x.dtype, y.dtype), (np.uint8, np.int32))
        self.assertTrue(((0 <= y) & (y < 10)).all())
        self.assertGreater(x.max(), 200)
        few = data.mnist(MNIST, limit=7)
        np.testing.assert_array_equal(few.arrays()[0], x[:7])
        self.assertEqual(repr(few), "Dataset(7 images of (1, 28, 28))")

    def test_what_is_missing_is_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "no-such-folder"):
            data.mnist("no-such-folder")
        with self.assertRaisesRegex(FileNotFoundError, "no-such-folder"):
            data.cifar10("no-such-folder")
        with self.assertRaisesRegex(
            ValueError, "split is 'all'; train or test"
        ):
            data.mnist(MNIST, "all")

    def test_cifar10(self):
        folder = os.path.join(os.environ["TEST_TMPDIR"], "cifar")
        os.makedirs(folder)
        rng = np.random.default_rng(0)
        rows = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        rows.tofile(os.path.join(folder, "test_batch.bin"))
        x, y = data.cifar10(folder, "test").arrays()
        np.testing.assert_array_equal(x.reshape(4, -1), rows[:, 1:])
        np.testing.assert_array_equal(y, rows[:, 0])

    def test_synthetic(self):
        one = data.synthetic(20, (3, 8, 8), class_count=4, seed=2)
        self.assertEqual(
            (len(one), one.shape, one.class_count), (20, (3, 8, 8), 4)
        )
        x, y = one.arrays()
        np.testing.assert_array_equal(y, np.arange(20) % 4)
        same = data.synthetic(20, (3, 8, 8), class_count=4, seed=2)
        np.testing.assert_array_equal(same.arrays()[0], x)
        part = data.synthetic(5, (3, 8, 8), class_count=4, seed=2, first=10)
        np.testing.assert_array_equal(part.arrays()[0], x[10:15])
        other = data.synthetic(20, (3, 8, 8), class_count=4, seed=3)
        self.assertTrue((other.arrays()[0] != x).any())
        with self.assertRaises(ValueError):
            data.synthetic(0)

    def test_arrays_outlive_their_set_and_are_not_written_to(self):
        x, _ = data.synthetic(4).arrays()
        before = x.copy()
        data.synthetic(4, seed=9)
        np.testing.assert_array_equal(x, before)
        with self.assertRaises(ValueError):
            x[0] = 0


class Loaders(unittest.TestCase):
    def test_one_epoch_in_the_files_order(self):
        made, pixels, labels = numbered(10)
        loader = data.Loader(made, batch=4, shuffle=False)
        self.assertEqual(len(loader), 3)
        batches = taken(loader)
        x = np.concatenate([b[0] for b in batches])
        np.testing.assert_allclose(x, pixels, rtol=1e-6)
        np.testing.assert_array_equal(
            np.concatenate([b[1] for b in batches]), labels
        )
        self.assertEqual([len(b[1]) for b in batches], [4, 4, 2])
        for i, (_, _, batch) in enumerate(batches):
            self.assertEqual((batch.epoch, batch.step), (0, i))
            self.assertEqual(batch.first_sample, 4 * i)
            self.assertEqual(
                batch.x.batch,
                (
                    batch.first_sample,
                    batch.sample_count,
                    batch.global_count,
                    i + 1,
                ),
            )
        self.assertEqual(next(iter(loader)).x.batch[3], 4)  # of epoch 1
        loader.seek(1)
        x, y = next(iter(loader))
        self.assertEqual((x.dtype, y.dtype), (tensor.float32, tensor.int32))

    def test_every_sample_once_over_all_ranks(self):
        made, pixels, _ = numbered(53)
        whole = sorted(map(bytes, np.ascontiguousarray(pixels)))
        for size in (1, 2, 3, 4):
            for batch in (4, 16):
                if batch * size > 53:
                    continue
                loaders = [
                    data.Loader(made, batch=batch, rank=rank, size=size, seed=3)
                    for rank in range(size)
                ]
                self.assertEqual(len({len(one) for one in loaders}), 1)
                for epoch in range(2):
                    seen = []
                    steps = [taken(one) for one in loaders]
                    for step in zip(*steps):
                        counts = [b.sample_count for _, _, b in step]
                        for x, y, b in step:
                            self.assertEqual(b.epoch, epoch)
                            self.assertEqual(len(x), b.sample_count)
                            self.assertEqual(b.global_count, sum(counts))
                            seen += map(
                                bytes, np.round(x * 255) / np.float32(255)
                            )
                    want = np.round(pixels * 255) / np.float32(255)
                    self.assertEqual(sorted(seen), sorted(map(bytes, want)))
        self.assertEqual(len(whole), 53)

    def test_a_global_batch_is_the_same_for_any_number_of_ranks(self):
        made, _, _ = numbered(64)
        steps = []
        for size in (1, 2, 4):
            ranks = [
                taken(
                    data.Loader(
                        made,
                        global_batch=32,
                        micro_shard=8,
                        rank=rank,
                        size=size,
                        seed=1,
                    )
                )
                for rank in range(size)
            ]
            steps.append(
                [
                    np.concatenate([b[0] for b in step if len(b[1])])
                    for step in zip(*ranks)
                ]
            )
        for other in steps[1:]:
            for a, b in zip(steps[0], other):
                np.testing.assert_array_equal(a, b)

    def test_orders_follow_from_the_seed(self):
        made, _, _ = numbered()

        def order(seed):
            loader = data.Loader(made, batch=8, seed=seed)
            return [
                np.concatenate([b[0] for b in taken(loader)]) for _ in range(2)
            ]

        one, same, other = order(1), order(1), order(2)
        np.testing.assert_array_equal(one, same)
        self.assertTrue((one[0] != one[1]).any())
        self.assertTrue((one[0] != other[0]).any())

    def test_seek(self):
        made, _, _ = numbered()
        loader = data.Loader(made, batch=8, seed=1)
        epochs = [taken(loader) for _ in range(3)]
        self.assertEqual(loader.position, (3, 0))
        loader.seek(1, 2)
        self.assertEqual(loader.position, (1, 2))
        rest = taken(loader)
        self.assertEqual(len(rest), len(loader) - 2)
        for (xa, ya, _), (xb, yb, _) in zip(rest, epochs[1][2:]):
            np.testing.assert_array_equal(xa, xb)
            np.testing.assert_array_equal(ya, yb)
        self.assertEqual(loader.position, (2, 0))
        with self.assertRaises(IndexError):
            loader.seek(0, len(loader) + 1)

    def test_wrong_settings(self):
        made, _, _ = numbered()
        for settings, kind, words in (
            ({"batch": 0}, ValueError, "batch is 0"),
            (
                {"batchsize": 4},
                TypeError,
                "Loader has no setting 'batchsize'; it",
            ),
            ({"batch": 100}, ValueError, "100"),
            ({"rank": 2, "size": 2}, ValueError, "rank"),
            ({"batch": 2.5}, TypeError, "batch is 2.5; an integer is needed"),
        ):
            with self.assertRaisesRegex(kind, words):
                data.Loader(made, **settings)


class BytePairs(unittest.TestCase):
    """What belongs to Python; ids are compared in byte_pairs_tiktoken_test.py."""

    def setUp(self):
        self.folder = os.path.join(os.environ["TEST_TMPDIR"], self.id())
        os.makedirs(self.folder)
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        ids = {chr(byte): byte for byte in printable}
        ids |= {chr(256 + i): byte for i, byte in enumerate(others)}
        ids |= {"ab": 256, "<|endoftext|>": 257}
        self.vocab = self.write("vocab.json", json.dumps(ids))
        self.merges = self.write("merges.txt", "#version: 0.2\na b\n")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_encode_and_decode(self):
        pairs = data.BytePairs(pathlib.Path(self.vocab), self.merges)
        self.assertEqual(len(pairs), 258)
        self.assertEqual(repr(pairs), "BytePairs(258 ids)")
        ids = pairs.encode("cab ä")
        self.assertEqual(ids.dtype, np.int32)
        self.assertEqual(ids.tolist(), [99, 256, 32, 0xC3, 0xA4])
        self.assertEqual(pairs.decode(ids), "cab ä")
        self.assertEqual(pairs.decode(ids.tolist()), "cab ä")
        self.assertEqual(pairs.decode(ids.astype(np.uint64)[::2]), "c \ufffd")
        self.assertEqual(pairs.decode_bytes(ids[::-2]), b"\xa4 c")
        self.assertEqual(pairs.encode("").tolist(), [])
        self.assertEqual(pairs.decode([]), "")
        every = bytes(range(256)) + b"ab"
        self.assertEqual(pairs.decode_bytes(pairs.encode(every)), every)
        self.assertEqual(
            pairs.encode("\ud800").tolist(), list("\ufffd".encode())
        )

    def test_tokens(self):
        pairs = data.BytePairs(self.vocab, self.merges)
        self.assertEqual(pairs.find("<|endoftext|>"), 257)
        self.assertEqual(pairs.find(b"\xff"), 255)
        self.assertEqual(pairs.decode([257, 256]), "<|endoftext|>ab")
        self.assertNotIn(257, pairs.encode("<|endoftext|>"))
        with self.assertRaisesRegex(KeyError, "abc"):
            pairs.find("abc")

    def test_mistakes(self):
        pairs = data.BytePairs(self.vocab, self.merges)
        for ids, kind, words in (
            ([258], IndexError, "id 258 at place 0; ids are from 0 to 257"),
            ([0, -1], IndexError, "id -1 at place 1"),
            ([2**31], OverflowError, "an id is 2147483648"),
            ([0.5], TypeError, "ids are float64; integers are needed"),
            (["a"], TypeError, "integers are needed"),
        ):
            with self.assertRaisesRegex(kind, words):
                pairs.decode(ids)
        with self.assertRaises(TypeError):
            pairs.encode(5)
        with self.assertRaises(TypeError):
            copy.copy(pairs)
        with self.assertRaisesRegex(FileNotFoundError, "nothing.json"):
            data.BytePairs("nothing.json", self.merges)
        wrong = self.write("wrong.txt", "a b\na c\n")
        with self.assertRaisesRegex(ValueError, "wrong.txt', line 2: .*'a c'"):
            data.BytePairs(self.vocab, wrong)


class ImageFiles(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(os.environ["TEST_TMPDIR"], self.id())
        os.makedirs(self.folder)
        self.arrays = {}
        for i in range(5):
            value = np.full((1, 2, 2), i, np.float32)
            np.save(os.path.join(self.folder, f"i{i}.npy"), value)
            self.arrays[f"i{i}.npy"] = value

    def lines(self, *lines):
        path = os.path.join(self.folder, "list.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        return path

    def batches(self, count, path, batch, transform=None, **settings):
        made = data.ImageBatchIter(
            path,
            batch,
            transform or (lambda p: [np.load(p)]),
            image_folder=self.folder,
            **settings,
        )
        self.assertEqual(made.num_samples, 5)
        made.start()
        try:
            return [next(made) for _ in range(count)]
        finally:
            made.end()
            self.assertIsNone(made.p)

    def test_in_order_round_and_round(self):
        path = self.lines(*[f"i{i}.npy {i * 2}" for i in range(5)])
        got = self.batches(4, path, 3, shuffle=False)
        flat_x = np.concatenate([x[:, 0, 0, 0] for x, _ in got])
        flat_y = np.concatenate([y for _, y in got])
        np.testing.assert_array_equal(flat_x, np.arange(12) % 5)
        np.testing.assert_array_equal(flat_y, np.arange(12) % 5 * 2)
        self.assertEqual(
            (got[0][0].shape, got[0][0].dtype), ((3, 1, 2, 2), np.float32)
        )
        self.assertEqual(got[0][1].dtype, np.int32)

    def test_shuffled_rounds_have_every_image(self):
        path = self.lines(*[f"i{i}.npy,{i}" for i in range(5)])
        got = self.batches(6, path, 5, shuffle=True, delimiter=",", capacity=2)
        for _, y in got:
            self.assertEqual(sorted(y), list(range(5)))

    def test_texts_as_labels_and_several_images_of_one_file(self):
        path = self.lines(*[f"i{i}.npy cat{i}" for i in range(5)])
        got = self.batches(
            1, path, 4, lambda p: [np.load(p), -np.load(p)], shuffle=False
        )
        x, y = got[0]
        self.assertEqual(y, ["cat0", "cat0", "cat1", "cat1"])
        np.testing.assert_array_equal(x[:, 0, 0, 0], [0, 0, 1, -1])

    def test_failures_come_out(self):
        path = self.lines(*[f"missing{i}.npy 1" for i in range(5)])
        with self.assertRaisesRegex(FileNotFoundError, "missing0"):
            self.batches(1, path, 2, shuffle=False)
        with self.assertRaises(FileNotFoundError):
            data.ImageBatchIter("no-such-list", 1, None)
        empty = self.lines("")
        with self.assertRaisesRegex(ValueError, "has no lines"):
            data.ImageBatchIter(empty, 1, None)

    def test_a_transform_without_images_is_refused(self):
        path = self.lines(*[f"i{i}.npy 1" for i in range(5)])
        with self.assertRaisesRegex(
            ValueError, "image_transform gave no image"
        ):
            self.batches(1, path, 2, lambda p: [], shuffle=False)


class Initialisers(unittest.TestCase):
    def setUp(self):
        DEV.SetRandSeed(3)

    def moments(self, fill, shape, deviation, limit=None):
        """Mean 0 and this deviation, to five of their own deviations."""
        t = tensor.Tensor(shape)
        fill(t)
        x = t.numpy().astype(np.float64)
        n = x.size
        self.assertLess(abs(x.mean()), 5 * deviation / math.sqrt(n))
        self.assertLess(abs(x.std() / deviation - 1), 5 / math.sqrt(2 * n))
        if limit is not None:
            self.assertLessEqual(np.abs(x).max(), limit * (1 + 1e-6))
            self.assertGreater(np.abs(x).max(), limit * 0.99)
        again = tensor.Tensor(shape)
        fill(again)
        self.assertTrue((again.numpy() != t.numpy()).any())

    def test_normal_and_uniform(self):
        for shape, fan_in, fan_out in (
            ((120, 80), 120, 80),
            ((40, 10, 5, 5), 250, 1000),
        ):
            both = fan_in + fan_out
            for fill, variance in (
                (initializer.glorot_normal, 2 / both),
                (initializer.he_normal, 2 / fan_in),
                (initializer.lecun_normal, 1 / fan_in),
            ):
                self.moments(fill, shape, math.sqrt(variance))
            for fill, limit in (
                (initializer.glorot_uniform, math.sqrt(6 / both)),
                (initializer.he_uniform, math.sqrt(6 / fan_in)),
                (initializer.lecun_uniform, math.sqrt(3 / fan_in)),
            ):
                self.moments(fill, shape, limit / math.sqrt(3), limit)

    def test_old_names_warn(self):
        for fill, deviation in (
            (lambda t: initializer.gaussian(t, 30, 70), math.sqrt(4 / 100)),
            (lambda t: initializer.gaussian(t, 30), math.sqrt(2 / 30)),
            (initializer.xavier, math.sqrt(2 / 200)),
            (initializer.glorot, math.sqrt(2 / 200)),
            (initializer.msra, math.sqrt(2 / 120)),
        ):
            with self.assertWarnsRegex(DeprecationWarning, "is old; use"):
                self.moments(fill, (120, 80), deviation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.assertRaisesRegex(
                ValueError, "fan_in or fan_out is needed"
            ):
                initializer.gaussian(tensor.Tensor((2, 2)))

    def test_eye_and_orthogonal(self):
        t = tensor.Tensor((3, 4))
        initializer.eye(t)
        np.testing.assert_array_equal(t.numpy(), np.eye(3, 4))
        for shape in ((6, 4), (4, 6), (5, 5), (4, 2, 3)):
            t = tensor.Tensor(shape)
            initializer.orthogonal(t, 2.0)
            q = t.numpy().reshape(shape[0], -1) / 2
            q = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
            np.testing.assert_allclose(q, np.eye(len(q)), atol=1e-5)

    def test_seeds_and_shapes(self):
        results = []
        for seed in (1, 1, 2):
            DEV.SetRandSeed(seed)
            t = tensor.Tensor((5, 5))
            initializer.he_normal(t)
            results.append(t.numpy())
        np.testing.assert_array_equal(results[0], results[1])
        self.assertTrue((results[0] != results[2]).any())
        with self.assertRaisesRegex(ValueError, r"shape \(3,\) has no fan"):
            initializer.he_normal(tensor.Tensor((3,)))
        with self.assertRaisesRegex(ValueError, "a matrix is needed"):
            initializer.eye(tensor.Tensor((3,)))
        with self.assertRaisesRegex(ValueError, "a matrix is needed"):
            initializer.orthogonal(tensor.Tensor((3,)))


class Utils(unittest.TestCase):
    def test_accuracy_and_text(self):
        self.assertEqual(
            utils.accuracy(
                np.array([[1, 2], [3, 0], [0, 1]]), np.array([1, 0, 0])
            ),
            2,
        )
        self.assertEqual(utils.force_unicode(b"a"), "a")
        self.assertEqual(utils.force_unicode("b"), "b")

    def test_progress(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            utils.update_progress(0.5, "half")
            utils.update_progress(3, "done")
        self.assertEqual(
            out.getvalue(),
            f"\r[{'#' * 10}{'-' * 10}] 50.0% half\r[{'#' * 20}] 100.0% done\n",
        )
        self.assertEqual(list(utils.progress([1, 2, 3])), [1, 2, 3])
        self.assertEqual(list(utils.progress(iter([1]), 1)), [1])

    def test_output_shapes_against_a_count_of_windows(self):
        for n in range(1, 9):
            for k in range(1, n + 1):
                for s in (1, 2, 3):
                    got = utils.get_output_shape("VALID", (n,), (k,), (s,))
                    self.assertEqual(got, [len(range(0, n - k + 1, s))])
                    for mode in ("SAME_UPPER", "SAME_LOWER"):
                        out = utils.get_output_shape(mode, (n,), (k,), (s,))
                        self.assertEqual(out, [len(range(0, n, s))])
                        even, odd = utils.get_padding_shape(
                            mode, (n,), (k,), (s,)
                        )
                        total = 2 * even[0] + sum(odd)
                        windows = (n + total - k) // s + 1
                        self.assertGreaterEqual(windows, out[0])
                        self.assertLess((out[0] - 1) * s + k - n, total + 1)
                        self.assertEqual(odd[mode == "SAME_UPPER"], sum(odd))
        with self.assertRaisesRegex(ValueError, "auto_pad is 'SAME'"):
            utils.get_output_shape("SAME", (3,), (1,), (1,))
        with self.assertRaisesRegex(ValueError, "pad_mode is 'VALID'"):
            utils.get_padding_shape("VALID", (3,), (1,), (1,))

    def test_post_order(self):
        autograd.training = True
        w = tensor.ones((2, 2))
        w.stores_grad = True
        a = autograd.relu(w)
        b = autograd.sigmoid(a)
        c = autograd.add(a, b)
        found = utils.post_order_recursive(c.creator, c)
        self.assertEqual(list(found), [a.creator, b.creator, c.creator])
        self.assertIs(found[c.creator], c)
        self.assertIs(found[b.creator], b)


class SafetensorsFiles(unittest.TestCase):
    ROWS = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
        "b.half": np.array([0.5, -2, 65504], np.float16),
        "c": np.array(7, np.int64),
        "d": np.zeros((0, 4), np.float32),
    }

    def write(self, name, rows):
        """As the format says: the length of a header, the header, the elements."""
        header, data_of = {"__metadata__": {"from": "a test"}}, b""
        codes = {"float32": "F32", "float16": "F16", "int64": "I64"}
        for key, x in rows.items():
            end = len(data_of) + x.nbytes
            header[key] = {
                "dtype": codes[str(x.dtype)],
                "shape": list(x.shape),
                "data_offsets": [len(data_of), end],
            }
            data_of += x.tobytes()
        text = json.dumps(header).encode()
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data_of)
        return path

    def setUp(self):
        self.folder = os.path.join(
            os.environ["TEST_TMPDIR"], self.id().rpartition(".")[2]
        )
        os.makedirs(self.folder)

    def check(self, file):
        self.assertEqual(set(file), set(self.ROWS))
        self.assertEqual(len(file), 4)
        for name, want in self.ROWS.items():
            self.assertIn(name, file)
            got = file[name].numpy()
            self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
            np.testing.assert_array_equal(got, want)

    def test_a_file(self):
        path = self.write("model.safetensors", self.ROWS)
        for named in (path, pathlib.Path(path), self.folder):
            file = data.Safetensors(named)
            self.check(file)
            self.assertEqual(file.metadata(), {"from": "a test"})
            self.assertNotIn("e", file)
            with self.assertRaisesRegex(KeyError, "e"):
                file["e"]
            file.close()

    def test_files_of_an_index(self):
        names = list(self.ROWS)
        places = {}
        for i in range(2):
            part = {name: self.ROWS[name] for name in names[2 * i : 2 * i + 2]}
            self.write(f"part{i}.safetensors", part)
            places.update(dict.fromkeys(part, f"part{i}.safetensors"))
        index = os.path.join(self.folder, "model.safetensors.index.json")
        with open(index, "w") as file:
            json.dump({"metadata": {}, "weight_map": places}, file)
        for named in (index, self.folder):
            self.check(data.Safetensors(named))

    def test_mistakes(self):
        with self.assertRaisesRegex(FileNotFoundError, "nowhere"):
            data.Safetensors("/nowhere/model.safetensors")
        with self.assertRaisesRegex(ValueError, "is a folder"):
            data.Safetensors(self.folder)
        path = self.write("cut.safetensors", self.ROWS)
        os.truncate(path, os.path.getsize(path) - 1)
        with self.assertRaisesRegex(ValueError, "cut.safetensors"):
            data.Safetensors(path)


if __name__ == "__main__":
    MNIST = os.path.dirname(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
