# SPDX-License-Identifier: Apache-2.0
"""Data sets, the loader that deals them out to workers, and text as ids.

    train = data.mnist("examples/data/mnist")
    loader = data.Loader(train, batch=64, rank=sgd.global_rank, size=sgd.world_size)
    for batch in loader:                 # one epoch; the next loop is the next
        out, loss = m(batch.x, batch.y)

The loader is the C library's: a thread fills batches ahead, every sample goes
to one worker whatever their number, and uneven last batches have their weight
in averages. Batches know their place in the run, so a script that gives them
to a model has the bits of the C programs.
"""

from __future__ import annotations

import ctypes
import operator
import os
import queue
import random as _random
import threading
from collections.abc import Iterator
from ctypes import POINTER, byref

import numpy as np

from choir import _checkpoint, _raw
from choir import device as _device
from choir._lib import Batch as _CBatch
from choir._calls import NotCopied, Owner, address_of, check, lib, ranged
from choir._lib import DatasetSynthetic, LoaderPosition, Windows
from choir._settings import Table
from choir.tensor import Tensor

_SPLITS = {"train": 0, "test": 1}
_UNITS = {"characters": 0, "bytes": 1}


class Dataset(Owner, NotCopied):
    """Labelled images of 8-bit pixels in memory, made by the functions below; or
    windows of tokens, made by `Tokens.windows`."""

    def __init__(self, make, *arguments) -> None:
        """make: the library's function."""
        self._own(lib.dataset_release, make, *arguments)

    def __len__(self) -> int:
        return lib.dataset_count(self.handle)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: channels, height and width of an image, the length of a
        window."""
        x = lib.dataset_x(self.handle).contents
        return tuple(x.shape[1 : x.ndim])

    @property
    def class_count(self) -> int:
        """Labels are below it: of windows the vocabulary."""
        return lib.dataset_class_count(self.handle)

    def _is_of_images(self) -> bool:
        return bool(lib.dataset_shape(self.handle))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (n, c, h, w) uint8 and labels (n) int32, not to be written to.
        TypeError: of windows."""
        if not self._is_of_images():
            raise TypeError(
                f"arrays: {self!r} has no images; Tokens[first:last] gives ids"
            )
        n = len(self)
        count = n * lib.dataset_image_bytes(self.handle)
        pixels = (ctypes.c_uint8 * count).from_address(
            lib.dataset_pixels(self.handle)
        )
        labels = ctypes.cast(
            lib.dataset_labels(self.handle), ctypes.POINTER(ctypes.c_int32 * n)
        ).contents
        pixels.keep = labels.keep = self
        x = np.frombuffer(pixels, np.uint8).reshape((n,) + self.shape)
        y = np.frombuffer(labels, np.int32)
        x.flags.writeable = y.flags.writeable = False
        return x, y

    def __repr__(self) -> str:
        if self._is_of_images():
            return f"Dataset({len(self)} images of {self.shape})"
        return f"Dataset({len(self)} windows of {self.shape[0]} tokens)"


def _split(split: str) -> int:
    if split not in _SPLITS:
        raise ValueError(f"split is {split!r}; train or test is needed")
    return _SPLITS[split]


def _open(make, folder, split: str, limit: int) -> Dataset:
    return Dataset(
        make, os.fsencode(folder), _split(split), ranged(limit, "limit")
    )


def mnist(folder, split: str = "train", limit: int = 0) -> Dataset:
    """MNIST, or a set in its files, gzipped or not. limit: the first so many."""
    return _open(lib.dataset_open_mnist, folder, split, limit)


def cifar10(folder, split: str = "train", limit: int = 0) -> Dataset:
    """CIFAR-10 in its binary format."""
    return _open(lib.dataset_open_cifar10, folder, split, limit)


def synthetic(
    count: int,
    shape=(1, 28, 28),
    class_count: int = 10,
    seed: int = 0,
    first: int = 0,
) -> Dataset:
    """Images drawn by numbers, for where no real data are at hand."""
    channels, height, width = shape
    numbers = (seed, first, count, channels, height, width, class_count)
    config = DatasetSynthetic(*[ranged(n, "synthetic") for n in numbers])
    return Dataset(lib.dataset_create_synthetic, byref(config))


class Batch:
    """One step's samples of this worker.

    Of images x: (n, c, h, w) float32, pixels / 255, and y: (n) int32; of windows
    both are (n, length) int32. Unpacks as (x, y). The elements are the loader's:
    they change with the next batch.
    """

    def __init__(self, c: _CBatch, device, steps: int) -> None:
        self.sample_count: int = c.sample_count
        self.global_count: int = c.global_count
        self.first_sample: int = c.first_sample
        self.first_in_step: int = c.first_in_step
        self.epoch: int = c.epoch
        self.step: int = c.step
        number = c.epoch * steps + c.step + 1
        place = (c.first_sample, c.sample_count, c.global_count, number)
        self.x = self._tensor(c.x, device, place, c.first_in_step)
        self.y = self._tensor(c.y, device, place, c.first_in_step)

    @staticmethod
    def _tensor(handle: int, device, place, first_in_step) -> Tensor:
        t = Tensor._of(_raw.CTensor.borrow(handle, device))
        t.batch = place
        t.first_in_step = first_in_step
        return t

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.x, self.y))


class Loader(Owner, NotCopied):
    """Deals a data set out to `size` workers; this is number `rank`.

    batch: samples of a step for each worker; global_batch: of a step over all,
    instead; seed and shuffle: the order; further settings by name, as the C
    library's table has them (micro_shard, shares, prefetch, deadline). A loop
    over it is an epoch; len() is the number of its steps, the same on every
    worker.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch: int = 64,
        rank: int = 0,
        size: int = 1,
        device=None,
        **settings,
    ) -> None:
        self.device = device or _device.get_default_device()
        self.dataset = dataset
        table = Table(ctypes.pointer(lib.loader_config_def))
        if "micro_shard" not in settings and batch < 16:
            settings["micro_shard"] = batch
        config = table.make("Loader", batch=batch, **settings)
        self._own(
            lib.loader_destroy,
            lib.loader_create,
            dataset.handle,
            self.device.handle,
            ranged(rank, "rank", 32),
            ranged(size, "size", 32),
            config,
        )

    def __len__(self) -> int:
        return lib.loader_steps(self.handle)

    def __iter__(self) -> Iterator[Batch]:
        pointer = POINTER(_CBatch)()
        while True:
            check(lib.loader_next(self.handle, byref(pointer)))
            if not pointer:
                return
            yield Batch(pointer.contents, self.device, len(self))

    def rest_of(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch from the loader's place on; none where it is past
        the epoch. ValueError: others would come before."""
        at, step = self.position
        if (at, step) == (epoch - 1, len(self)):
            self.seek(epoch)
        elif at < epoch:
            raise ValueError(
                f"rest_of: the loader is at step {step} of epoch {at}, before epoch "
                f"{epoch}"
            )
        return iter(self) if at <= epoch else iter(())

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and step of the next batch."""
        place = lib.loader_position(self.handle)
        return place.epoch, place.step

    @property
    def sample(self) -> int:
        """Of the epoch, the first sample of the next batch, over all workers."""
        return lib.loader_position(self.handle).sample

    def seek(self, epoch: int, step: int = 0, sample: int = 0) -> None:
        """Goes on there: the same batches as after running up to it. sample: where
        the step begins, if steps before it had another global batch."""
        place = LoaderPosition(
            ranged(epoch, "epoch"),
            ranged(step, "step"),
            ranged(sample, "sample"),
        )
        check(lib.loader_seek(self.handle, place))


class Tokens(Owner, NotCopied):
    """A long row of ids below `vocabulary`: a text, or a file of ids.

        text = data.Tokens.text("play.txt.gz")
        text.decode(text[:100])                    # its first 100 characters
        windows = text.windows(64)                 # a data set
        for x, y in data.Loader(windows, batch=12):
            ...                    # (12, 64) int32; y is x, one token later

    len() is the number of tokens; an index gives an id, a slice an int32 array of
    them, which is read from the file where it is one. Several threads may use one
    object.
    """

    def __init__(self, make, *arguments) -> None:
        """make: the library's function."""
        self._own(lib.tokens_release, make, *arguments)

    @classmethod
    def text(cls, path, unit: str = "characters") -> Tokens:
        """A text, gzipped or not. unit: what a token is, of the UTF-8 text's
        "characters", numbered in the order of their code points, or of any file's
        "bytes"."""
        if unit not in _UNITS:
            raise ValueError(f"unit is {unit!r}; characters or bytes is needed")
        return cls(lib.tokens_open_text, os.fsencode(path), _UNITS[unit])

    @classmethod
    def byte_pairs(cls, path, vocab, merges) -> Tokens:
        """A text, gzipped or not, by GPT-2's byte-pair encoding, from Hugging Face's
        vocab.json and merges.txt, whose number of tokens is the vocabulary."""
        return cls(
            lib.tokens_open_byte_pairs,
            os.fsencode(path),
            os.fsencode(vocab),
            os.fsencode(merges),
        )

    @classmethod
    def ids(cls, path, vocabulary: int, id_bytes: int = 0) -> Tokens:
        """A file of ids below `vocabulary`, little-endian, of 2 or 4 bytes each;
        id_bytes 0: as llm.c's header says, 2 without one. The file must not be
        written to meanwhile."""
        return cls(
            lib.tokens_open_ids,
            os.fsencode(path),
            ranged(id_bytes, "id_bytes", 32),
            ranged(vocabulary, "vocabulary"),
        )

    def __len__(self) -> int:
        return lib.tokens_count(self.handle)

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""
        return lib.tokens_vocabulary(self.handle)

    def __getitem__(self, place) -> np.ndarray | int:
        if isinstance(place, slice):
            first, last, step = place.indices(len(self))
            if step != 1:
                raise ValueError(f"tokens by steps of {step}; 1 is needed")
            return self._read(first, max(last - first, 0))
        at = operator.index(place)
        if not -len(self) <= at < len(self):
            raise IndexError(f"token {at} of {len(self)}")
        return int(self._read(at % len(self), 1)[0])

    def _read(self, first: int, count: int) -> np.ndarray:
        ids = np.empty(count, np.int32)
        check(lib.tokens_read(self.handle, first, count, _pointer(ids)))
        return ids

    def encode(self, text: str | bytes) -> np.ndarray:
        """The ids of another text; of characters, in those that the first one has.
        StateError: a file of ids does not tell what they stand for."""
        text = _bytes_of(text)
        ids = np.empty(len(text), np.int32)
        count = ctypes.c_int64()
        check(
            lib.tokens_encode(
                self.handle, text, len(text), _pointer(ids), byref(count)
            )
        )
        return ids[: count.value].copy()

    def decode_bytes(self, ids) -> bytes:
        """The bytes that a list or an array of ids stands for."""
        self.encode(b"")  # StateError of a file of ids
        row = _ids(ids)
        last = self.vocabulary - 1
        for at in np.flatnonzero((row < 0) | (row > last))[:1]:
            raise IndexError(
                f"id {row[at]} at place {at}; ids are from 0 to {last}"
            )
        size = ctypes.c_size_t()
        texts = {
            number: ctypes.string_at(
                _token_text(self.handle, number, byref(size)), size.value
            )
            for number in set(row.tolist())
        }
        return b"".join(texts[number] for number in row.tolist())

    def decode(self, ids) -> str:
        """The text of ids; what is not UTF-8 in it becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def windows(
        self, length: int, stride: int = 1, first: int = 0, count: int = 0
    ) -> Dataset:
        """Windows of `length` tokens as a data set: x is a window, y what begins
        one token later. The next one begins `stride` tokens further: 1 gives every
        window, `length` those that do not overlap. Of tokens [first, first +
        count), count 0: of all from first on."""
        config = Windows(
            first=ranged(first, "first"),
            count=ranged(count, "count"),
            length=ranged(length, "length"),
            stride=ranged(stride, "stride"),
        )
        return Dataset(lib.dataset_create_windows, self.handle, byref(config))

    def __repr__(self) -> str:
        return f"Tokens({len(self)} of a vocabulary of {self.vocabulary})"


class BytePairs(Owner, NotCopied):
    """GPT-2's byte-pair encoding, from Hugging Face's vocab.json and merges.txt.

        pairs = data.BytePairs("gpt2/vocab.json", "gpt2/merges.txt")
        ids = pairs.encode("Hello world")          # int32
        pairs.decode(ids)                          # "Hello world"
        end = pairs.find("<|endoftext|>")

    The ids are those of tiktoken's encode_ordinary: special tokens in a text are
    text. len() is the number of ids. Several threads may use one object.
    """

    def __init__(self, vocab, merges) -> None:
        self._own(
            lib.byte_pairs_destroy,
            lib.byte_pairs_open,
            os.fsencode(vocab),
            os.fsencode(merges),
        )

    def __len__(self) -> int:
        return lib.byte_pairs_count(self.handle)

    def find(self, token: str | bytes) -> int:
        """The id of a token, also of a special one; KeyError if there is none."""
        text = _bytes_of(token)
        number = lib.byte_pairs_find(self.handle, text, len(text))
        if number < 0:
            raise KeyError(token)
        return number

    def encode(self, text: str | bytes) -> np.ndarray:
        """The ids of a text; halves of surrogate pairs become U+FFFD."""
        text = _bytes_of(text)
        ids = np.empty(len(text), np.int32)
        count = ctypes.c_size_t()
        check(
            lib.byte_pairs_encode(
                self.handle,
                text,
                len(text),
                _pointer(ids),
                len(ids),
                byref(count),
            )
        )
        return ids[: count.value].copy()

    def decode_bytes(self, ids) -> bytes:
        """The bytes of a list or an array of ids, which may end in a character."""
        ids = _ids(ids)
        pointer = _pointer(ids)
        count = ctypes.c_size_t()

        def fill(text) -> None:
            check(
                lib.byte_pairs_decode(
                    self.handle,
                    pointer,
                    len(ids),
                    text,
                    count.value,
                    byref(count),
                )
            )

        fill(None)  # counts
        text = ctypes.create_string_buffer(count.value)
        fill(text)
        return text.raw

    def decode(self, ids) -> str:
        """The text of ids; what is not UTF-8 in it becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"BytePairs({len(self)} ids)"


# With an address as its result: a token's bytes end in no 0 and may be one.
_token_text = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, POINTER(ctypes.c_size_t)
)(address_of(lib.tokens_text))


def _ids(ids) -> np.ndarray:
    """A list or an array of ids in one row of int32."""
    given = np.asarray(ids)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"ids are {given.dtype}; integers are needed")
    low, high = (given.min(), given.max()) if given.size else (0, 0)
    ranged(low, "an id", 32)
    ranged(high, "an id", 32)
    return np.ascontiguousarray(given, np.int32).ravel()


def _pointer(ids: np.ndarray):
    return ids.ctypes.data_as(POINTER(ctypes.c_int32))


def _bytes_of(text: str | bytes) -> bytes:
    """UTF-8 of a text; bytes are taken as they are."""
    if not isinstance(text, str):
        return bytes(memoryview(text))
    try:
        return text.encode()
    except UnicodeEncodeError:  # surrogates: pairs are joined, as tiktoken does
        joined = text.encode("utf-16", "surrogatepass")
        return joined.decode("utf-16", "replace").encode()


class ImageBatchIter:
    """SINGA's loader of image files: batches made by a thread, ahead.

    img_list_file: lines of a path and a label (or more), apart by `delimiter`;
    image_transform(path): a list of augmented images as arrays (c, h, w), as
    SINGA has it. Iterating gives (x, y): (n, c, h, w) float32, and int32 labels
    where all are numbers, else a list of texts. capacity: batches ahead.
    """

    def __init__(
        self,
        img_list_file,
        batch_size: int,
        image_transform,
        shuffle: bool = True,
        delimiter: str = " ",
        image_folder=None,
        capacity: int = 10,
    ) -> None:
        self.img_list_file = img_list_file
        self.batch_size = batch_size
        self.image_transform = image_transform
        self.shuffle = shuffle
        self.delimiter = delimiter
        self.image_folder = image_folder
        self.queue: queue.Queue = queue.Queue(capacity)
        self.stop = threading.Event()
        self.p: threading.Thread | None = None
        with open(img_list_file, encoding="utf-8") as lines:
            self.num_samples = sum(1 for line in lines if line.strip())
        if self.num_samples == 0:
            raise ValueError(f"ImageBatchIter: {img_list_file} has no lines")

    def start(self) -> None:
        """Starts the thread."""
        self.stop.clear()
        self.p = threading.Thread(target=self.run, daemon=True)
        self.p.start()

    def __iter__(self) -> ImageBatchIter:
        return self

    def __next__(self):
        if self.p is None:
            self.start()
        value = self.queue.get()
        if isinstance(value, BaseException):
            raise value
        return value

    def end(self) -> None:
        """Stops the thread."""
        self.stop.set()
        while not self.queue.empty():
            self.queue.get_nowait()
        if self.p is not None:
            self.p.join()
            self.p = None

    def run(self) -> None:
        """The thread: reads, transforms and queues batches, round and round."""
        try:
            self._run()
        except BaseException as error:  # told to the caller of next()
            self._put(error)

    def _put(self, value) -> None:
        while not self.stop.is_set():
            try:
                self.queue.put(value, timeout=0.1)
                return
            except queue.Full:
                continue

    def _run(self) -> None:
        samples = []
        with open(self.img_list_file, encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    path, *label = line.strip().split(self.delimiter)
                    samples.append((path, label[0] if label else ""))
        index = 0
        while not self.stop.is_set():
            if index == 0 and self.shuffle:
                _random.shuffle(samples)
            images, labels, seen = [], [], 0
            while len(images) < self.batch_size:
                if self.stop.is_set():
                    return
                if not images and seen == len(samples):
                    raise ValueError(
                        "ImageBatchIter: image_transform gave no image for any of "
                        f"{len(samples)} samples"
                    )
                seen += 1
                path, label = samples[index]
                index = (index + 1) % len(samples)
                if self.image_folder is not None:
                    path = os.path.join(self.image_folder, path)
                for image in self.image_transform(path):
                    images.append(np.asarray(image, np.float32))
                    labels.append(label)
            y = labels[: self.batch_size]
            if all(label.lstrip("-").isdigit() for label in y):
                y = np.array(y, np.int32)
            self._put((np.stack(images[: self.batch_size]), y))


class Safetensors(_checkpoint.File):
    """The tensors of a safetensors file, each read when it is asked for:

        file = data.Safetensors("model.safetensors")
        for name in file:
            print(name, file[name].shape)

    Or of several files, as Hugging Face splits large models: path is their index,
    model.safetensors.index.json; or of a folder with either. `metadata()` is the
    file's lines of text. NotFoundError: there is no such file. ValueError: another
    kind, or damaged; of an index also a file that lacks, or has, what is not placed
    there.
    """


__all__ = [
    "Batch",
    "BytePairs",
    "Dataset",
    "ImageBatchIter",
    "Loader",
    "Safetensors",
    "Tokens",
    "cifar10",
    "mnist",
    "synthetic",
]
