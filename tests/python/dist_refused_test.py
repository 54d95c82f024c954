# SPDX-License-Identifier: Apache-2.0
"""What one rank alone cannot do: before it sends anything it finds its own call
wrong. The others hear why, at once, and all ranks go on in step."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import ranks
from choir import _raw, autograd, device, dist, opt, tensor
from choir._comm import NcclIdHolder

SIZES = (2, 3, 4)
# Far beyond the limits of the test: who waits for it fails.
DEADLINE = 900.0


class Loud(Exception):
    def __str__(self):
        raise KeyError("loud")


class Unpicklable:
    def __reduce__(self):
        raise TypeError("no pickle of it")


class Interrupted:
    def __reduce__(self):
        raise KeyboardInterrupt


class Exits:
    def __reduce__(self):
        raise SystemExit(3)


class UnpicklableLoud:
    def __reduce__(self):
        raise Loud


def read_only():
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array


class NoStates:
    def get_states(self):
        return {}


def calls(size, odd):
    """What: a function of a wrong or a right argument, both, what the one who is
    wrong says, and in which operation the others hear it."""
    f = np.ones(4, np.float32)
    rows = np.ones((size, 2), np.float32)
    int16 = np.ones(4, np.int16)
    complex_ = np.ones((size, 2), np.complex64)
    raw = tensor.from_numpy(f).data
    half = _raw.from_array(device.get_default_device(), np.ones(3, np.float16))
    sgd = opt.DistOpt(opt.SGD())
    no_dtype = "TypeError: dtype (int16|complex64) is none of Choir's"
    no_rows = "ValueError: [a-z]+: a value without dimensions has no rows"
    wait = dist.synchronize

    def started(function, *args, **more):
        return wait(function(*args, **more))

    reduce = r"all_reduce( '[^']*')?"
    gather = r"all_gather( '[^']*')?"
    to_all = r"all_to_all( '[^']*')?"
    send = r"broadcast( '[^']*')?"
    scatter = r"reduce_scatter( '[^']*')?"
    # fmt: off
    return {
        "dtype": (dist.allreduce, int16, f, no_dtype, reduce),
        "named": (lambda x: dist.allreduce(x, name="w"), int16, f, no_dtype,
                  "all_reduce 'w'"),
        "operation": (lambda op: dist.allreduce(f, op=op), 17, dist.Sum,
                      "ValueError: op is 17; one of", reduce),
        "two operations": (lambda a: dist.allreduce(f, a, op=dist.Sum), True,
                           None, "ValueError: average and op say the same",
                           reduce),
        "factor": (lambda x: dist.allreduce(f, prescale_factor=x), "x", 1.0,
                   "ValueError: could not convert", reduce),
        "compression": (lambda c: dist.allreduce(f, compression=c), None,
                        dist.Compression.none, "AttributeError: ", reduce),
        "read-only": (dist.allreduce_, read_only(), np.ones(3, np.float32),
                      "ValueError: the array to be changed is read-only",
                      reduce),
        "in place": (dist.allreduce_, [1.0, 2.0], np.ones(2, np.float32),
                     "TypeError: a list cannot be changed in place", reduce),
        "letters": (lambda n: dist.allreduce(f, name=n), "\udc80" * 300, "n",
                    "UnicodeEncodeError: ", reduce),
        "no name": (lambda n: dist.allreduce(f, name=n), np.ones(2), "n",
                    "ValueError: The truth value of an array",
                    r"all_reduce '\[1. 1.\]'"),
        "started without a name": (
            lambda n: started(dist.broadcast_async, f, name=n), np.ones(2), "n",
            "ValueError: The truth value of an array",
            r"broadcast '\[1. 1.\]'"),
        "group": (dist.grouped_allreduce, [f, int16], [f, f], no_dtype, reduce),
        "group in place": (dist.grouped_allreduce_, [read_only()],
                           [np.ones(3, np.float32)],
                           "ValueError: .* read-only", reduce),
        "no list": (dist.grouped_allreduce, None, [f],
                    "TypeError: 'NoneType' object is not iterable", reduce),
        "start": (lambda x: started(dist.allreduce_async, x), int16, f,
                  no_dtype, reduce),
        "start in place": (lambda x: started(dist.allreduce_async_, x),
                           read_only(), np.ones(3, np.float32),
                           "ValueError: .* read-only", reduce),
        "start broadcast": (lambda x: started(dist.broadcast_async, x), int16,
                            f, no_dtype, send),
        "start to root": (lambda r: started(dist.broadcast_async_, f.copy(), r),
                          "x", 0, "TypeError: ", send),
        "broadcast": (dist.broadcast, int16, f, no_dtype, send),
        "broadcast in place": (dist.broadcast_, read_only(),
                               np.ones(3, np.float32),
                               "ValueError: .* read-only", send),
        "root": (lambda r: dist.broadcast(f, r), "x", 0, "TypeError: ", send),
        "gather": (dist.allgather, complex_, rows, no_dtype, gather),
        "scalar": (dist.allgather, 1.0, rows, no_rows, gather),
        "scatter": (dist.reducescatter, complex_, rows, no_dtype, scatter),
        "scalar to scatter": (dist.reducescatter, np.float32(1), rows, no_rows,
                              scatter),
        "scatter by": (lambda op: dist.reducescatter(rows, op=op), "sum",
                       dist.Sum, "ValueError: op is 'sum'", scatter),
        "to all": (dist.alltoall, complex_, rows, no_dtype, to_all),
        "scalar to all": (dist.alltoall, 1.0, rows, no_rows, to_all),
        "splits": (lambda s: dist.alltoall(rows, s), [[1], [2, 3]], [1] * size,
                   "ValueError: ", to_all),
        "sum of splits": (lambda s: dist.alltoall(rows, s), [9] * size,
                          [1] * size, "ValueError: .* add to", to_all),
        "barrier": (dist.barrier, 7, "b", "AttributeError: ", "barrier '7'"),
        "object": (lambda o: dist.broadcast_object(o, odd, "it"),
                   Unpicklable(), 1, "TypeError: no pickle of it",
                   r"broadcast 'it \(size\)'"),
        "objects": (lambda o: dist.allgather_object(o, "it"), Unpicklable(), 1,
                    "TypeError: no pickle of it", "all_gather 'it'"),
        "Ctrl-C": (dist.allgather_object, Interrupted(), 1, "KeyboardInterrupt",
                   "all_gather 'object'"),
        "exit": (lambda o: dist.broadcast_object(o, odd, "it"), Exits(), 1,
                 r"(SystemExit: 3|sys\.exit\(3\))",
                 r"broadcast 'it \(size\)'"),
        "no words": (dist.allgather_object, UnpicklableLoud(), 1, "Loud",
                     "all_gather 'object'"),
        "parameters": (dist.broadcast_parameters, NoStates(), {"w": f.copy()},
                       "StateError: .* no parameters yet", gather),
        "a parameter": (dist.broadcast_parameters, {"w": read_only()},
                        {"w": np.ones(3, np.float32)},
                        "ValueError: .* read-only", "broadcast 'w'"),
        "optimizer": (dist.broadcast_optimizer_state, 7, opt.SGD(),
                      "TypeError: .* an optimizer is needed",
                      r"broadcast 'optimizer state \(size\)'"),
        "metrics": (dist.average_metrics, {"a": "x"}, {"a": 1.0},
                    "ValueError: could not convert", gather),
        "weight": (lambda w: dist.average_metrics({"a": 1.0}, w), -1, 1,
                   "ValueError: average_metrics: weight is -1", gather),
        "sum": (sgd.all_reduce, None, raw, "AttributeError: ",
                "all_reduce 'synch'"),
        "sums": (sgd.fused_all_reduce, None, [raw], "TypeError: ",
                 "all_reduce 'fusedSynch'"),
        "half": (sgd.all_reduce_half, half, raw,
                 "TypeError: synchHalf: a tensor is not float32",
                 "all_reduce 'synchHalf'"),
        "halves": (sgd.fused_all_reduce_half, [half], [raw],
                   "TypeError: fusedSynchHalf: a tensor is not float32",
                   "all_reduce 'fusedSynchHalf'"),
        "sparse": (lambda s: sgd.sparsification(raw, None, s, True), 3.0, 0.5,
                   "ValueError: sparsification: spars is 3.0", gather),
        "sparse ones": (lambda t: sgd.fused_sparsification(t, None, 0.5, True),
                        [half], [raw],
                        "TypeError: fusedSparsification: a tensor is not",
                        "all_gather 'fusedSparsification'"),
    }  # fmt: skip


def in_order(number):
    """Who is one operation off has another sum, or an error."""
    rank, size = dist.rank(), dist.size()
    got = dist.allreduce(np.int64([100 * number + rank]), op=dist.Sum)
    assert got[0] == size * 100 * number + size * (size - 1) // 2, got


def refused(odd):
    """What this rank heard of each call that rank `odd` makes wrongly."""
    said = {}
    in_order(0)
    for number, (what, row) in enumerate(calls(dist.size(), odd).items(), 1):
        call, wrong, right = row[:3]
        try:
            call(wrong if dist.rank() == odd else right)
            said[what] = ""
        except BaseException as error:
            try:
                said[what] = f"{type(error).__name__}: {error}"
            except Exception:
                said[what] = type(error).__name__
        in_order(number)
    # A list without any, where others have some, is no shorter program.
    for what, call in {
        "nothing": dist.grouped_allreduce,
        "no sums": opt.DistOpt(opt.SGD()).fused_all_reduce,
    }.items():
        one = tensor.from_numpy(np.ones(2, np.float32))
        try:
            call([] if dist.rank() == odd else [one])
            said[what] = ""
        except ValueError as error:
            said[what] = str(error)
        in_order(99)
        call([])
    # Kept for an exchange to come: nobody's business yet.
    try:
        opt.DistOpt(opt.SGD()).fused_all_reduce(
            None if dist.rank() == odd else [], send=False
        )
    except TypeError:
        assert dist.rank() == odd
    in_order(100)
    return said


def on_shared_memory(rank, size, nccl_id):
    dist.init(nccl_id, rank, size, deadline=DEADLINE)
    return refused(size - 1), refused(0)


def changing(rank, size, ticket):
    """What each rank hears of changes of strategy that the last one makes
    wrongly, and what comes of the steps between them."""
    dist.init(ticket, rank, size, deadline=DEADLINE)
    sgd = opt.DistOpt(opt.SGD(lr=0.1))
    w = tensor.from_numpy(np.float32([1, 2, 3]))
    w.requires_grad = w.stores_grad = True
    said = []

    def step():
        with_x = autograd.mul(w, tensor.from_numpy(np.float32([rank, 1, 2])))
        sgd(autograd.reduce_sum(with_x))

    autograd.training = True
    step()
    for wrong in ({"dist_option": "fp8"}, {"dist_option": "fp16", "clip": -1}):
        right = {"dist_option": "fp16"}
        try:
            sgd.use(**(wrong if rank == size - 1 else right))
            said.append("")
        except ValueError as error:
            said.append(str(error))
        in_order(len(said))
        step()
    return said, sgd.strategy, w.numpy().tolist()


class Refused(unittest.TestCase):
    def check(self, said, odd):
        """said: of all ranks."""
        rows = calls(len(said), odd)
        self.assertEqual(set(said[0]), set(rows) | {"nothing", "no sums"})
        for what, (_, _, _, own, operation) in rows.items():
            kind = (
                "StateError" if own.startswith("StateError") else "ValueError"
            )
            heard = rf"^{kind}: {operation} \(operation \d+\): rank {odd}: "
            for rank, words in enumerate(said):
                with self.subTest(what, rank=rank, size=len(said)):
                    self.assertRegex(
                        words[what], ("^" if rank == odd else heard) + own
                    )
        for words in said:
            for what in ("nothing", "no sums"):
                self.assertRegex(words[what], "all ranks (must|need)")

    def test_shm(self):
        for size in SIZES:
            found = ranks.results(size, on_shared_memory)
            self.check([last for last, _ in found], size - 1)
            self.check([first for _, first in found], 0)

    def test_use(self):
        for size in SIZES:
            found = ranks.results(size, changing)
            for rank, (said, strategy, w) in enumerate(found):
                for words, own in zip(said, ("dist_option is 'fp8'", ".*clip")):
                    heard = rf"barrier 'dist_option' .*rank {size - 1}: "
                    is_odd = rank == size - 1
                    self.assertRegex(
                        words, f"^{'' if is_odd else heard + '.*'}{own}"
                    )
                self.assertRegex(strategy, "^fp32")
                self.assertEqual(w, found[0][2])
            # Three steps of the averaged gradient.
            self.assertAlmostEqual(w[1], 2 - 3 * 0.1, 5)

    def test_mpi(self):
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    ["mpiexec", "--oversubscribe", "-n", str(size)]
                    + [sys.executable, os.path.abspath(__file__), folder],
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                        "CHOIR_COMM": "mpi",
                    },
                    capture_output=True,
                    text=True,
                    timeout=ranks.LIMIT,
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                said = []
                for rank in range(size):
                    with open(os.path.join(folder, str(rank))) as file:
                        said.append(json.load(file))
                self.check(said, size - 1)


def _on_mpi(folder):
    dist.init(deadline=DEADLINE)
    assert dist.backend() == "mpi"
    said = refused(dist.size() - 1)
    with open(os.path.join(folder, str(dist.rank())), "w") as file:
        json.dump(said, file)
    dist.shutdown()


if __name__ == "__main__":
    if len(sys.argv) == 2 and os.path.isdir(sys.argv[1]):
        _on_mpi(sys.argv[1])
    else:
        dist.init(NcclIdHolder(), 0, 1)  # what `calls` makes wants one
        unittest.main()
