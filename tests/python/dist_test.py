# SPDX-License-Identifier: Apache-2.0
"""choir.dist against NumPy at 1 to 4 ranks, and what it says when ranks differ,
are missing or die. Values differ between ranks and elements."""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import unittest

import numpy as np

import ranks
from choir import CommError, StateError, _raw, device, dist, model, opt, tensor
from choir._comm import Communicator, NcclIdHolder
from choir.tensor import Tensor

OPS = {
    "Sum": lambda all: np.sum(all, axis=0),
    "Min": lambda all: np.min(all, axis=0),
    "Max": lambda all: np.max(all, axis=0),
    "Product": lambda all: np.prod(all, axis=0),
    "Average": lambda all: np.mean(all, axis=0),
}
DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8"]


def values(rank, shape, dtype="float32", seed=0):
    """Others on every rank and at every place."""
    draw = np.random.RandomState(100 * seed + rank + 1)
    if np.dtype(dtype).kind == "f":
        return draw.uniform(-2, 2, shape).astype(dtype)
    return draw.randint(0, 5, shape).astype(dtype)


def near(got, want, dtype="float32", share=1.0):
    kind = np.dtype(dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}
    assert np.asarray(got).dtype == kind, (np.asarray(got).dtype, kind)
    if kind.kind == "f":
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            want,
            rtol=share * tolerance[kind.name],
            atol=share * tolerance[kind.name],
        )
    else:
        np.testing.assert_array_equal(got, want)


def begin(rank, size, nccl_id, deadline=20.0):
    dist.init(nccl_id, rank, size, deadline=deadline)
    assert (dist.rank(), dist.size()) == (rank, size)


# ---- What runs on ranks ----

KEPT = []


def forgets(rank, size, nccl_id, other, folder):
    """Rank 0 drops its communicators long before it ends, rank 1 keeps them."""
    sys.stderr = open(os.path.join(folder, str(rank)), "w", buffering=1)
    comms = [
        Communicator(rank, size, nccl_id, deadline=20.0),
        Communicator(rank, size, other, deadline=20.0),
    ]
    for comm in comms:
        comm.barrier()
    if rank:
        KEPT.extend(reversed(comms))
        time.sleep(0.3)


def reduces(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    for dtype in DTYPES:
        for shape in [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3)]:
            all_ = np.stack([values(r, shape, dtype) for r in range(size)])
            own = values(rank, shape, dtype)
            for name, reference in OPS.items():
                want = reference(all_.astype(np.float64)) if all_.size else own
                if np.dtype(dtype).kind in "iu":
                    want = np.trunc(want).astype("int64").astype(dtype)
                op = getattr(dist, name)
                near(dist.allreduce(own, op=op), want, dtype)
            # from_numpy would narrow float64.
            raw = _raw.from_array(device.get_default_device(), own)
            given = tensor.from_raw_tensor(raw)
            got = dist.allreduce(given, average=False)
            assert isinstance(got, Tensor) and got.shape == shape
            near(
                got.numpy(),
                np.sum(all_.astype(np.float64), axis=0),
                dtype,
            )
            np.testing.assert_array_equal(own, values(rank, shape, dtype))
    own = values(rank, (4, 3))
    all_ = np.stack([values(r, (4, 3)) for r in range(size)])
    # In place: the same object, whatever its strides.
    changed = own.copy()
    assert dist.allreduce_(changed, op=dist.Sum) is changed
    near(changed, all_.sum(0))
    wide = np.zeros((4, 6), np.float32)
    wide[:, ::2] = own
    dist.allreduce_(wide[:, ::2], op=dist.Max)
    near(wide[:, ::2], all_.max(0))
    np.testing.assert_array_equal(wide[:, 1::2], 0)
    t = tensor.from_numpy(own)
    assert dist.allreduce_(t) is t
    near(t.numpy(), all_.mean(0))
    t = tensor.from_numpy(own).transpose()
    near(dist.allreduce(t, op=dist.Sum).numpy(), all_.sum(0).T)
    # Factors, float16 on the way, a number, a bfloat16.
    got = dist.allreduce(
        own, op=dist.Sum, prescale_factor=0.5, postscale_factor=3.0
    )
    near(got, 1.5 * all_.sum(0))
    got = dist.allreduce(own, compression=dist.Compression.fp16)
    near(got, all_.astype(np.float16).astype(np.float32).mean(0), share=200)
    assert not np.array_equal(got, dist.allreduce(own))
    ints = values(rank, (3,), "int64")
    got = dist.allreduce(ints, op=dist.Sum, compression=dist.Compression.fp16)
    assert got.dtype == np.int64
    assert float(dist.allreduce(rank + 1.0, op=dist.Sum)) == (
        size * (size + 1) / 2
    )
    b = tensor.from_numpy(own).as_type(tensor.bfloat16)
    got = dist.allreduce(b, op=dist.Max).as_type(tensor.float32).numpy()
    np.testing.assert_allclose(got, all_.max(0), rtol=1e-2)
    return dist.allreduce(own).tobytes()


def groups(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    shapes = [(3,), (2, 2), (), (5, 1)]
    dtypes = ["float32", "int32", "float32", "float64"]

    def make(r):
        return [
            values(r, s, d, i) for i, (s, d) in enumerate(zip(shapes, dtypes))
        ]

    every = [make(r) for r in range(size)]
    own = make(rank)
    want = [np.sum([one[i] for one in every], axis=0) for i in range(4)]
    got = dist.grouped_allreduce(own, op=dist.Sum, name="four")
    for a, b, d in zip(got, want, dtypes):
        near(a, b, d)
    mixed = [tensor.from_numpy(own[0]), own[1]]
    got = dist.grouped_allreduce(mixed, op=dist.Sum)
    assert isinstance(got[0], Tensor) and isinstance(got[1], np.ndarray)
    near(got[0].numpy(), want[0])
    again = dist.grouped_allreduce_(mixed, op=dist.Sum)
    assert again[0] is mixed[0] and again[1] is mixed[1]
    near(mixed[0].numpy(), want[0])
    assert dist.grouped_allreduce([]) == []


def moves(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    # allgather: as many rows, other numbers of rows, none at all.
    for counts in ([2] * 4, [3, 1, 0, 5], [0] * 4):
        parts = [values(r, (counts[r], 3), "int64") for r in range(size)]
        np.testing.assert_array_equal(
            dist.allgather(parts[rank]), np.concatenate(parts)
        )
        got = dist.allgather(tensor.from_numpy(values(rank, (counts[rank], 2))))
        want = [values(r, (counts[r], 2)) for r in range(size)]
        np.testing.assert_array_equal(got.numpy(), np.concatenate(want))
    # broadcast from every rank in turn
    for root in range(size):
        want = values(root, (2, 5), "float64")
        own = values(rank, (2, 5), "float64")
        np.testing.assert_array_equal(dist.broadcast(own, root), want)
        np.testing.assert_array_equal(own, values(rank, (2, 5), "float64"))
        assert dist.broadcast_(own, root) is own
        np.testing.assert_array_equal(own, want)
        t = tensor.from_numpy(values(rank, (3,)))
        dist.broadcast_(t, root_rank=root)
        np.testing.assert_array_equal(t.numpy(), values(root, (3,)))
    # reducescatter: rows that can and cannot be shared equally
    for rows in (size * 2, size * 2 + size // 2, 1):
        all_ = np.stack([values(r, (rows, 3)) for r in range(size)])
        for name, reference in OPS.items():
            want = np.array_split(reference(all_.astype(np.float64)), size)
            got = dist.reducescatter(all_[rank], op=getattr(dist, name))
            near(got, want[rank])
        got = dist.reducescatter(tensor.from_numpy(all_[rank]))
        near(got.numpy(), np.array_split(all_.mean(0), size)[rank])
    # alltoall: equal parts, then rank r gives r + 1 rows to each, then uneven
    own = values(rank, (size * 2, 2))
    want = [
        values(r, (size * 2, 2))[2 * rank : 2 * rank + 2] for r in range(size)
    ]
    np.testing.assert_array_equal(dist.alltoall(own), np.concatenate(want))
    for splits_of in (
        lambda r: [r + 1] * size,
        lambda r: [(r + to) % 3 for to in range(size)],
        lambda r: [3 if r == 0 else 0] * size,
    ):
        splits = splits_of(rank)
        own = values(rank, (sum(splits), 2))
        got, counts = dist.alltoall(own, splits)
        parts = []
        for r in range(size):
            starts = np.cumsum([0] + splits_of(r))
            sent = values(r, (starts[-1], 2))
            parts.append(sent[starts[rank] : starts[rank + 1]])
        np.testing.assert_array_equal(got, np.concatenate(parts))
        np.testing.assert_array_equal(counts, [len(p) for p in parts])
        got, counts = dist.alltoall(tensor.from_numpy(own), splits)
        np.testing.assert_array_equal(got.numpy(), np.concatenate(parts))
        np.testing.assert_array_equal(counts.numpy(), [len(p) for p in parts])
    # Nobody leaves a barrier before the last one comes; one clock for all.
    if rank == size - 1:
        time.sleep(0.3)
    came = time.monotonic()
    dist.barrier("slow")
    left = time.monotonic()
    times = dist.allgather(np.array([[came, left]]))
    assert times[:, 1].min() >= times[:, 0].max(), times


def asynchronous(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    own = [values(rank, (50 + i,), seed=i) for i in range(8)]
    handles = [dist.allreduce_async(x, op=dist.Sum, name="a") for x in own]
    for i, handle in reversed(list(enumerate(handles))):
        want = np.sum([values(r, (50 + i,), seed=i) for r in range(size)], 0)
        near(dist.synchronize(handle), want)
        assert dist.poll(handle)
    try:
        dist.synchronize(handles[0])
        raise AssertionError("a result was given twice")
    except StateError:
        pass
    t = tensor.from_numpy(own[0])
    handle = dist.allreduce_async_(t, op=dist.Max)
    while not dist.poll(handle):
        time.sleep(0.001)
    assert dist.synchronize(handle) is t
    want = np.max([values(r, (50,)) for r in range(size)], 0)
    near(t.numpy(), want)
    root = size - 1
    got = dist.synchronize(dist.broadcast_async(own[1], root))
    near(got, values(root, (51,), seed=1))
    dist.synchronize(dist.broadcast_async_(own[2], root))
    near(own[2], values(root, (52,), seed=2))
    dist.allreduce_async(own[3])  # nobody waits for it
    dist.barrier()


def objects(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    root = size - 1
    own = {"rank": rank, "text": "x" * (10 * rank)}
    got = dist.broadcast_object(own, root, "it")
    assert got == {"rank": root, "text": "x" * (10 * root)}
    assert dist.broadcast_object(None if rank else [1]) == [1]
    every = dist.allgather_object(own)
    assert [one["rank"] for one in every] == list(range(size))
    # Parameters by name, Tensors and arrays.
    params = {
        "w": tensor.from_numpy(values(rank, (3, 2))),
        "b": values(rank, (2,), "float64"),
    }
    dist.broadcast_parameters(params, root_rank=root)
    np.testing.assert_array_equal(params["w"].numpy(), values(root, (3, 2)))
    np.testing.assert_array_equal(params["b"], values(root, (2,), "float64"))
    # An optimizer's step count, learning rate and momentum.
    sgd = opt.SGD(lr=0.1 * (rank + 1), momentum=0.9)
    p = Tensor(data=np.ones(3, np.float32), stores_grad=True, name="p")
    for _ in range(rank + 1):
        sgd.update(p, tensor.from_numpy(values(rank, (3,))))
        sgd.step()
    dist.broadcast_optimizer_state(sgd)
    assert float(sgd.lr) == 0.1, sgd.lr
    states = sgd.get_states()
    assert states["step_counter"] == 1
    (momentum,) = [s for n, s in states.items() if n != "step_counter"]
    near(momentum, values(0, (3,)))
    # Metrics, weighted by samples; rank 0 of several has none.
    weight = rank if size > 1 else 1
    metrics = {"loss": float("nan") if weight == 0 else 2.0 * rank, "x": 1.0}
    got = dist.average_metrics(metrics, weight=weight)
    total = sum(range(size)) if size > 1 else 1
    want = sum(2.0 * r * r for r in range(size)) / total
    assert abs(got["loss"] - want) < 1e-12 and got["x"] == 1.0
    assert np.isnan(dist.average_metrics({"a": 1.0}, weight=0)["a"])
    assert dist.scale_lr(0.5) == 0.5 * size
    called = dist.rank0_only(lambda x: x + 1)(1)
    assert called == (2 if rank == 0 else None)


def lifecycle(rank, size, nccl_id, second):
    assert not dist.is_initialized()
    try:
        dist.rank()
        raise AssertionError("a rank before init")
    except StateError as error:
        assert "init" in str(error)
    begin(rank, size, nccl_id)
    dist.init(ticket=nccl_id, rank=rank, size=size)  # its old name
    dist.init()
    dist.init(nccl_id, rank, size)
    try:
        dist.init(second, rank, size)
        raise AssertionError("another id was taken")
    except StateError:
        pass
    assert dist.local_rank() == rank and dist.local_size() == size
    assert dist.cross_rank() == 0 and dist.cross_size() == 1
    assert dist.backend() == ("self" if size == 1 else "shm")
    sgd = dist.DistributedOptimizer(opt.SGD())
    assert sgd.communicator is dist.communicator()
    assert opt.DistOpt(opt.SGD()).world_size == size
    dist.barrier()
    dist.shutdown()
    assert not dist.is_initialized()
    dist.shutdown()
    begin(rank, size, second)
    got = dist.allreduce(np.array([rank], np.int32), op=dist.Sum)
    assert got[0] == size * (size - 1) // 2
    return True


def forks(rank, size, nccl_id, second):
    """A forked child is not its parent's rank: it hears why it cannot be one,
    and its end is not the parent's."""
    begin(rank, size, nccl_id)
    dist.barrier()

    def child():
        assert not dist.is_initialized()
        for again in (lambda: begin(rank, size, second), dist.init):
            try:
                again()
                raise AssertionError("a forked child joined")
            except StateError as error:
                assert "forked" in str(error), error

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode
    got = dist.allreduce(np.int64([rank]), op=dist.Min)
    assert got[0] == 0


def after_shutdown(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    sgd = dist.DistributedOptimizer(opt.SGD())
    dist.shutdown()
    for call in (
        lambda: sgd.all_reduce(Tensor((2,)).data),
        lambda: sgd.use("fp16") or sgd.strategy,
        lambda: dist.allreduce(np.ones(2)),
    ):
        try:
            call()
            raise AssertionError("went on after shutdown")
        except StateError:
            pass


def uneven(rank, size, nccl_id):
    """Rank r has r + 1 batches; who has none left counts as zeros."""
    begin(rank, size, nccl_id)
    for step in range(rank + 1):
        going = list(range(step, size))
        got = dist.allreduce(np.float32([rank + 1, step]), op=dist.Sum)
        near(got, [sum(r + 1 for r in going), step * len(going)])
        got = dist.allreduce(np.float32([rank + 1]))
        near(got, [sum(r + 1 for r in going) / size])
    last = dist.join()
    got = dist.allreduce(np.float32([rank + 1]), op=dist.Sum)
    near(got, [size * (size + 1) / 2])
    return last


def after_join(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    if rank == 0:
        return dist.join()
    with_join = []
    for call in (
        lambda: dist.allgather(np.ones((rank, 2))),
        lambda: dist.broadcast(np.ones(2), 1),
    ):
        try:
            call()
            raise AssertionError("no error after a join")
        except ValueError as error:
            with_join.append(str(error))
    dist.join()
    return with_join


def mismatches(rank, size, nccl_id):
    """Each call is wrong on the last rank; then all go on."""
    begin(rank, size, nccl_id)
    odd = rank == size - 1

    def both(a, b):
        return b if odd else a

    f = np.float32
    calls = {
        "shape": lambda: dist.allreduce(np.ones(both(4, 5), f)),
        "transposed": lambda: dist.allreduce(
            np.ones(both((2, 3), (3, 2)), f), name="w"
        ),
        "dtype": lambda: dist.allreduce(np.ones(4, both(f, "int32"))),
        "op": lambda: dist.allreduce(
            np.ones(4, f), op=both(dist.Sum, dist.Max)
        ),
        "factor": lambda: dist.allreduce(
            np.ones(4, f), prescale_factor=both(1.0, 2.0)
        ),
        "name": lambda: dist.allreduce(np.ones(4, f), name=both("a", "b")),
        "group": lambda: dist.grouped_allreduce([np.ones(2, f)] * both(2, 3)),
        "group shape": lambda: dist.grouped_allreduce(
            [np.ones(2, f), np.ones(both(3, 4), f)]
        ),
        "rows": lambda: dist.allgather(np.ones((2, both(3, 4)), f)),
        "rows' dtype": lambda: dist.allgather(
            np.ones((2, 3), both(f, "float64"))
        ),
        "scalar": lambda: dist.allgather(np.ones(both((1,), ()), f)),
        "root": lambda: dist.broadcast(np.ones(2, f), both(0, 1)),
        "broadcast": lambda: dist.broadcast(np.ones(both(2, 3), f)),
        "scatter": lambda: dist.reducescatter(np.ones((both(4, 6), 2), f)),
        "alltoall": lambda: dist.alltoall(np.ones((size, both(2, 3)), f)),
        "splits": lambda: dist.alltoall(
            np.ones((size, 2), f), both([1] * size, [9] * size)
        ),
        "another call": lambda: both(
            lambda: dist.allreduce(np.ones(2, f)), dist.barrier
        )(),
        "parameters": lambda: dist.broadcast_parameters(
            {both("w", "v"): np.ones(2, f)}
        ),
        "their number": lambda: dist.broadcast_parameters(
            {str(i): np.ones(2, f) for i in range(both(2, 3))}
        ),
        "metrics": lambda: dist.average_metrics({both("a", "b"): 1.0}),
    }
    said = {}
    for what, call in calls.items():
        try:
            call()
            said[what] = None
        except ValueError as error:
            said[what] = str(error)
        got = dist.allreduce(np.float32([rank]), op=dist.Sum)
        assert got[0] == size * (size - 1) / 2, (what, got)
    return said


def kept_after_failure(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    x = np.full(4 + rank, 7.0, np.float32)
    t = tensor.from_numpy(x)
    for call in (lambda: dist.allreduce_(x), lambda: dist.allreduce_(t)):
        try:
            call()
            raise AssertionError("no error")
        except ValueError:
            pass
    assert (x == 7).all() and (t.numpy() == 7).all()


def joins_only(rank, size, nccl_id, deadline):
    begin(rank, size, nccl_id, deadline)
    dist.barrier()
    return True


def another_size(rank, size, nccl_id):
    dist.init(nccl_id, rank, size + rank, deadline=2.0)
    dist.barrier()


def dies(rank, size, nccl_id, victim):
    begin(rank, size, nccl_id, deadline=30.0)
    dist.allreduce(np.ones(3, np.float32))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.allreduce(np.ones(3, np.float32), name="next")


def raises(rank, size, nccl_id):
    begin(rank, size, nccl_id, deadline=30.0)
    if rank == 1:
        raise KeyError("own trouble")
    dist.allreduce(np.ones(3, np.float32), name="next")


class Trouble(BaseException):
    """What ranks.run does not catch."""


def raises_to_the_end(rank, size, nccl_id):
    begin(rank, size, nccl_id, deadline=30.0)
    dist.barrier()
    if rank == 1:
        raise Trouble("own trouble")
    dist.barrier("next")


def exits(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    dist.barrier()
    if rank == 1:
        sys.exit(3)
    dist.barrier("next")


def late(rank, size, nccl_id):
    begin(rank, size, nccl_id, deadline=2.0)
    if rank == 1:
        time.sleep(5.0)
    dist.allreduce(np.ones(3, np.float32), name="slow")


# ---- Tests ----


class AgainstNumPy(unittest.TestCase):
    def on_all_sizes(self, function):
        return {n: ranks.results(n, function) for n in (1, 2, 3, 4)}

    def test_reductions(self):
        for size, found in self.on_all_sizes(reduces).items():
            self.assertEqual(len(set(found)), 1, f"bits differ at {size} ranks")

    def test_groups(self):
        self.on_all_sizes(groups)

    def test_rows(self):
        self.on_all_sizes(moves)

    def test_asynchronous(self):
        self.on_all_sizes(asynchronous)

    def test_objects_states_and_helpers(self):
        self.on_all_sizes(objects)

    def test_spawned_processes(self):
        ranks.results(2, groups, how="spawn")

    def test_begin_end_and_again(self):
        for size in (1, 3):
            ranks.results(size, lifecycle, NcclIdHolder())

    def test_forked_child(self):
        ranks.results(2, forks, NcclIdHolder())

    def test_after_shutdown(self):
        ranks.results(2, after_shutdown)

    def test_deadline_of_a_communicator_that_is_there(self):
        ranks.results(1, _deadlines)

    def test_arguments(self):
        with self.assertRaisesRegex(ValueError, "rendezvous id"):
            dist.init(rank=0, size=2)
        with self.assertRaisesRegex(ValueError, "rank and size"):
            dist.init(NcclIdHolder())
        with self.assertRaisesRegex(TypeError, "NcclIdHolder"):
            dist.init(7, 0, 2)
        with self.assertRaisesRegex(ValueError, "rank is 5|rank from 0"):
            dist.init(NcclIdHolder(), 5, 2)
        ranks.results(1, _arguments)


def _deadlines(rank, size, nccl_id):
    case = unittest.TestCase()
    opt.DistOpt(opt.SGD())  # makes one, with 60 seconds
    with case.assertRaisesRegex(StateError, "60 seconds, not 5"):
        dist.init(deadline=5.0)
    dist.init(deadline=60.0)
    assert dist.size() == 1 and dist.communicator().deadline == 60.0
    with case.assertRaisesRegex(StateError, "60 seconds, not 2; .*silence"):
        dist.init(silence=2.0)
    dist.shutdown()
    dist.init(deadline=60.0, silence=2.0)
    assert dist.communicator().silence == 2.0
    with case.assertRaisesRegex(StateError, "60 seconds, not 5"):
        dist.init(deadline=5.0)


def _arguments(rank, size, nccl_id):
    begin(rank, size, nccl_id)
    case = unittest.TestCase()
    read_only = np.ones(2, np.float32)
    read_only.flags.writeable = False
    x = np.ones(4, np.float32)
    for call, kind, words in [
        (
            lambda: dist.allreduce(x, True, op=dist.Sum),
            ValueError,
            "one of them",
        ),
        (lambda: dist.allreduce(x, op=17), ValueError, "dist.Sum"),
        (lambda: dist.allreduce_([1.0]), TypeError, "in place"),
        (lambda: dist.allreduce_(read_only), ValueError, "read-only"),
        (
            lambda: dist.allreduce(np.ones(2, "complex64")),
            TypeError,
            "complex64",
        ),
        (lambda: dist.broadcast(x, 1), ValueError, "root"),
        (lambda: dist.broadcast(x, -1), ValueError, "root"),
        (lambda: dist.allgather(1.0), ValueError, "no rows"),
        (lambda: dist.reducescatter(1.0), ValueError, "no rows"),
        (lambda: dist.alltoall(x, [3]), ValueError, r"add to 3"),
        (lambda: dist.alltoall(x, [2, 2]), ValueError, "one number for each"),
        (lambda: dist.alltoall(x, [4.0]), ValueError, "no integers"),
        (lambda: dist.average_metrics({}, -1), ValueError, "weight"),
        (
            lambda: dist.broadcast_parameters(model.Model()),
            StateError,
            "compile",
        ),
        (
            lambda: dist.DistributedOptimizer(opt.SGD(), op=dist.Sum),
            ValueError,
            "averaged",
        ),
    ]:
        with case.assertRaisesRegex(kind, words):
            call()


class Uneven(unittest.TestCase):
    def test_join(self):
        for size in (1, 2, 4):
            last = ranks.results(size, uneven)
            self.assertEqual(last, [size - 1] * size)

    def test_other_calls_name_who_joined(self):
        said = ranks.results(3, after_join)[1:]
        for one in said:
            for text in one:
                self.assertIn("rank 0", text)
                self.assertIn("join", text)


class Differences(unittest.TestCase):
    def test_every_rank_hears_of_it(self):
        for size in (2, 3):
            found = ranks.results(size, mismatches)
            for what in found[0]:
                for rank, said in enumerate(found):
                    text = said[what]
                    self.assertIsNotNone(
                        text, f"{what}: rank {rank} had no error"
                    )
                    own = {"splits": "add to", "scalar": "no rows"}.get(what)
                    if own:  # that rank's own mistake, which the others hear
                        self.assertIn(own, text)
                    if not own or rank < size - 1:
                        self.assertIn(f"rank {size - 1}", text, what)
                    if not own:
                        self.assertRegex(text, "ranks? 0", what)

    def test_shapes_are_in_the_sentence(self):
        found = ranks.results(2, mismatches)
        self.assertIn("(2, 3)", found[0]["transposed"])
        self.assertIn("(3, 2)", found[0]["transposed"])
        self.assertIn("(*, 3)", found[1]["rows"])
        self.assertIn("'w ", found[0]["parameters"])

    def test_values_stay_when_a_call_fails(self):
        ranks.results(2, kept_after_failure)


class Ends(unittest.TestCase):
    def test_forgotten_communicators_end_with_their_process(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.results(2, forgets, NcclIdHolder(), folder)
            for rank in range(2):
                with open(os.path.join(folder, str(rank))) as said:
                    self.assertEqual(said.read(), "", rank)


class Failures(unittest.TestCase):
    def failed(self, outcome, *words):
        self.assertIsInstance(outcome, CommError, outcome)
        for word in words:
            self.assertIn(word, str(outcome))

    def test_missing_rank(self):
        start = time.monotonic()
        found = ranks.run(3, joins_only, 2.0, count=2)
        self.assertGreater(time.monotonic() - start, 1.9)
        for outcome in found:
            self.failed(outcome, "rank 2")

    def test_id_used_twice(self):
        nccl_id = NcclIdHolder()
        ranks.results(2, joins_only, 10.0, nccl_id=nccl_id)
        # All have left: nothing of the first run is in the way.
        ranks.results(2, joins_only, 10.0, nccl_id=nccl_id)
        # A third process that claims a rank which is taken.
        found = ranks.run(2, _third, nccl_id=NcclIdHolder())
        said = [str(one) for one in found if isinstance(one, Exception)]
        self.assertTrue(said)
        for text in said:
            self.assertIn("rank 0", text)

    def test_wrong_world_size(self):
        found = ranks.run(2, another_size)
        for outcome in found:
            self.assertIsInstance(outcome, (CommError, ValueError), outcome)
        self.assertTrue(any("3" in str(one) for one in found), found)

    def test_killed_rank(self):
        for victim in (0, 2):
            found = ranks.run(3, dies, victim)
            for rank, outcome in enumerate(found):
                if rank == victim:
                    self.assertIsInstance(outcome, ranks.Lost)
                    self.assertEqual(outcome.exitcode, -signal.SIGKILL)
                else:
                    self.failed(outcome, f"rank {victim}", "next")

    def test_rank_that_raises(self):
        found = ranks.run(3, raises)
        self.assertIsInstance(found[1], KeyError)
        for outcome in (found[0], found[2]):
            self.failed(outcome, "rank 1")

    def test_words_of_what_nobody_caught(self):
        for how in ("fork", "spawn", "forkserver"):
            with self.subTest(how):
                found = ranks.run(2, raises_to_the_end, how=how)
                self.assertIsInstance(found[1], ranks.Lost)
                self.assertEqual(found[1].exitcode, 1)
                self.failed(found[0], "rank 1", "Trouble: own trouble", "next")

    def test_rank_that_exits(self):
        found = ranks.run(3, exits)
        self.assertIsInstance(found[1], ranks.Lost)
        self.assertEqual(found[1].exitcode, 3)
        for outcome in (found[0], found[2]):
            self.failed(outcome, "rank 1", "sys.exit(3)", "next")

    def test_late_rank(self):
        found = ranks.run(2, late)
        self.failed(found[0], "rank 1", "slow")
        self.assertIsInstance(found[1], CommError)


def _third(rank, size, nccl_id):
    """Both processes say that they are rank 0."""
    dist.init(nccl_id, 0, size, deadline=2.0)
    dist.barrier()


if __name__ == "__main__":
    unittest.main()
