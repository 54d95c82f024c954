# SPDX-License-Identifier: Apache-2.0
"""One bit is flipped in a kernel's result, in a batch, or in what one rank takes
from an exchange: compare names the op and the step of each."""

import contextlib
import ctypes
import io
import os
import tempfile
import unittest
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int32, c_void_p

import numpy as np

import ranks
from choir import device, dist, layer, model, opt, tensor
from choir.__main__ import main
from choir._calls import lib
from choir._lib import View

DEV = device.create_cpu_device()
DLL = ctypes.CDLL(lib.path)
STEPS = 4
SHAPE = (8, 6)


# ---- Who plants ----


class Record(Structure):
    """The beginning of choir_record_t."""

    _fields_ = [
        ("operation", c_void_p),
        ("kernel", c_void_p),
        ("operands", POINTER(View)),
        ("src_count", c_int32),
        ("dst_count", c_int32),
    ]


SUBMIT = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, POINTER(Record))


class Stage(Structure):
    """choir_stage_t"""

    _fields_ = [
        ("submit", SUBMIT),
        ("order", c_void_p),
        ("sees_kernels", c_bool),
        ("next", c_void_p),
    ]


DLL.choir_stage_forward.restype = c_void_p
DLL.choir_stage_forward.argtypes = [c_void_p, c_void_p, c_void_p]
DLL.choir_record_name.restype = c_char_p
DLL.choir_record_name.argtypes = [c_void_p]
DLL.choir_buffer_data.restype = c_void_p
DLL.choir_buffer_data.argtypes = [c_void_p]
for call in ("push", "pop"):
    getattr(DLL, f"choir_stream_{call}_stage").argtypes = [c_void_p, c_void_p]


def flip(address, bit):
    byte = ctypes.c_uint8.from_address(address + bit // 8)
    byte.value ^= 1 << bit % 8


def address_of(view, element):
    return DLL.choir_buffer_data(view.buffer) + 4 * (view.offset + element)


class Planter:
    """Stands behind the trace: flips a bit once, in the `nth` record whose kernel
    has this name. Of a record without operands: in the first gradient."""

    def __init__(self, name="", nth=0, element=0, bit=0):
        self.name, self.nth = name, nth
        self.element, self.bit = element, bit
        self.gradient = None  # where the first one to be applied lies
        self.is_planted = False
        self.stage = Stage(submit=SUBMIT(self._submit), sees_kernels=True)

    def _submit(self, stage, stream, record):
        status = DLL.choir_stage_forward(stage, stream, record)
        name = DLL.choir_record_name(record).decode().partition("/")[0]
        one = record.contents
        if name == "sgd_update" and self.gradient is None:
            self.gradient = address_of(one.operands[1], self.element)
        if status or name != self.name:
            return status
        self.nth -= 1
        if self.nth == -1:
            flip(
                address_of(one.operands[one.src_count], self.element)
                if one.dst_count
                else self.gradient,
                self.bit,
            )
            self.is_planted = True
        return None

    def __enter__(self):
        DLL.choir_stream_push_stage(DEV.stream, ctypes.byref(self.stage))
        return self

    def __exit__(self, *exc):
        DLL.choir_stream_pop_stage(DEV.stream, ctypes.byref(self.stage))


# ---- What is trained ----


class Net(model.Model):
    def __init__(self):
        super().__init__()
        self.fc1 = layer.Linear(8)
        self.relu = layer.ReLU()
        self.fc2 = layer.Linear(4)
        self.loss = layer.SoftMaxCrossEntropy()

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = self.loss(out, y)
        self.optimizer(loss)
        return out, loss


def train(path, planter, batch=None, optimizer=None, rank=0):
    """batch: (step, element, bit) of what is flipped in the inputs."""
    draw = np.random.RandomState(7 + rank)
    DEV.SetRandSeed(3)
    net = Net()
    net.set_optimizer(optimizer or opt.SGD(lr=0.1, momentum=0.9))
    x = tensor.Tensor(SHAPE, device=DEV)
    y = tensor.Tensor(SHAPE[:1], device=DEV, dtype=tensor.int32)
    x.copy_from_numpy(np.zeros(SHAPE, np.float32))
    net.compile([x], is_train=True, use_graph=True)
    DEV.trace_digests(path)
    try:
        with planter:
            for step in range(STEPS):
                values = draw.rand(*SHAPE).astype(np.float32)
                if batch and batch[0] == step:
                    flip(values.ctypes.data + 4 * batch[1], batch[2])
                x.copy_from_numpy(values)
                y.copy_from_numpy(draw.randint(0, 4, 8).astype(np.int32))
                net(x, y)
    finally:
        DEV.stop_trace()
    return planter.is_planted


def train_ranks(rank, size, nccl_id, folder, plants):
    """The run without a plant, and one for each of (planting rank, peer_memory,
    name, nth, element, bit)."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    planted = []
    for number, plant in enumerate(plants):
        who, peer_memory, *rest = plant
        sgd = opt.DistOpt(
            opt.SGD(lr=0.1, momentum=0.9), peer_memory=peer_memory
        )
        planter = Planter(*rest) if who == rank else Planter()
        path = os.path.join(folder, str(number))
        planted.append(
            train(path, planter, optimizer=sgd, rank=rank) == (who == rank)
        )
    return planted


# ---- 30 of 30 ----

# Of each step: the op, how many of its kernel are in a step, which one it is,
# and the op's place.
OPS = [
    ("linear", 2, 1, "linear of fc2, result 0"),
    ("relu", 1, 0, "relu, result 0"),
    ("softmax_cross_entropy", 1, 0, "softmax_cross_entropy, result 0"),
    ("matmul", 3, 2, "matmul, result 0, f32 (6, 8)"),
    ("sgd_update", 4, 2, "sgd_update of fc2.W, result 0"),
]
# Parameters of which a rank of two has a part.
AVERAGES = (3, 1)


class PlantedDifferenceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, str(name))

    def compare(self, a, b):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = main(["compare", self.path(a), self.path(b)])
        return status, said.getvalue()

    def check(self, b, step, place, meaning, a="plain"):
        status, text = self.compare(a, b)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, rf"The runs part at step {step}, record \d+: ")
        self.assertIn(f": {place}", text)
        self.assertIn(meaning, text)
        # A bit of a zero is lost in the sum of a piece.
        self.assertRegex(
            text, r"\n(1 of \d+ (element|piece)s differs, |All sums are equal)"
        )

    def test_in_a_kernel(self):
        train(self.path("plain"), Planter())
        train(self.path("again"), Planter())
        self.assertEqual(self.compare("plain", "again")[0], 0)
        for i in range(10):
            name, count, which, place = OPS[i % 5]
            step = (i + i // 5) % STEPS
            bit = (0, 7, 15, 22, 30)[i // 2]
            with self.subTest(place, step=step, bit=bit):
                planter = Planter(name, count * step + which, 0, bit)
                self.assertTrue(train(self.path("b"), planter))
                self.check("b", step, place, "it is this op that made")

    def test_in_a_batch(self):
        train(self.path("plain"), Planter())
        for i in range(10):
            step, element, bit = i % STEPS, 5 * i, 3 * i
            with self.subTest(step=step, element=element, bit=bit):
                train(self.path("b"), Planter(), (step, element, bit))
                place = "linear of fc1, source 0, f32 (8, 6)"
                self.check("b", step, place, "before the op reads it")

    def test_in_an_exchange_of_one_rank(self):
        plants = [(-1, True), (-1, False)]
        for i in range(5):
            # Where the gradient lies is known after the first step.
            step = 1 + i % (STEPS - 1)
            who, nth = i % 2, AVERAGES[i % 2] * step
            plants.append((who, True, "average", nth, i % 4, 6 * i))
            plants.append((who, False, "all_reduce", step, i, 6 * i))
        planted = ranks.results(2, train_ranks, self.folder, plants)
        self.assertEqual(planted, [[True] * len(plants)] * 2)
        for number, plant in enumerate(plants[2:], 2):
            step = 1 + (number // 2 - 1) % (STEPS - 1)
            with self.subTest(plant=plant):
                place = (
                    "average/dist_opt of gradient bucket 0, result 0"
                    if plant[1]
                    else "all_reduce/comm of gradient bucket 0, result fc"
                )
                a = 0 if plant[1] else 1
                self.check(number, step, place, "it is this op that made", a)
                self.assertIn(
                    f"Rank {plant[0]} of 2 is the first.",
                    self.compare(a, number)[1],
                )


if __name__ == "__main__":
    unittest.main()
