# SPDX-License-Identifier: Apache-2.0
"""opt.DistOpt: its primitives by numbers, its training steps against a single
process on the whole batch, its strategies in models with and without graphs."""

import os
import tempfile
import unittest

import numpy as np

import ranks
from choir import StateError, autograd, data, device, dist
from choir import layer, model, opt, tensor
from choir.tensor import Tensor

SIZES = (1, 2, 3)
ALL = [name for name in opt.strategies() if name != "auto"]
# Those whose replicas differ after 30 steps, until they are made equal. That of
# partialUpdate needs a chunk smaller than the model.
LOCAL = ["localSGD", "sparseLocal"]


def values(rank, shape, seed=0):
    draw = np.random.RandomState(1000 * seed + rank + 1)
    return draw.uniform(-1, 1, shape).astype(np.float32)


def joined(rank, size, nccl_id, core=None, **more):
    """A DistOpt on these ranks."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    return opt.DistOpt(core or opt.SGD(lr=0.1), **more)


# ---- Primitives ----


def contract(rank, size, nccl_id):
    """lr 0.1, parameter 10, gradient 1: 9.9 after each way of sharing."""
    sgd = joined(rank, size, nccl_id)
    shape = (3, 4)
    ways = {
        "all_reduce": lambda g: sgd.all_reduce(g.data),
        "half": lambda g: sgd.all_reduce_half(g.data),
        "fused": lambda g: (
            sgd.fused_all_reduce([g.data], send=False),
            sgd.fused_all_reduce([g.data], send=True),
        ),
        "fused at once": lambda g: sgd.fused_all_reduce([g.data]),
        "fused half": lambda g: (
            sgd.fused_all_reduce_half([g.data], send=False),
            sgd.fused_all_reduce_half([g.data], send=True),
        ),
        "threshold": lambda g: sgd.sparsification(g.data, None, 0.05, False),
        "top k": lambda g: sgd.sparsification(g.data, None, 1, True),
        "fused threshold": lambda g: sgd.fused_sparsification(
            [g.data], None, 0.05, False
        ),
        "fused top k": lambda g: sgd.fused_sparsification(
            [g.data], None, 1, True
        ),
    }
    for what, way in ways.items():
        p = Tensor(shape).set_value(10.0)
        p.name = what
        g = Tensor(shape).set_value(1.0)
        way(g)
        sgd.wait()
        np.testing.assert_array_equal(g.numpy(), np.full(shape, size), what)
        sgd.update(p, g)
        np.testing.assert_allclose(p.numpy(), 9.9, atol=1e-5, err_msg=what)
    sgd.step()


def sums(rank, size, nccl_id):
    """The same with other gradients on every rank and at every place."""
    sgd = joined(rank, size, nccl_id)
    shapes = [(5,), (2, 3), (1, 2, 2)]
    every = [
        [values(r, s, i) for i, s in enumerate(shapes)] for r in range(size)
    ]
    total = [np.sum([own[i] for own in every], axis=0) for i in range(3)]

    def made():
        return [tensor.from_numpy(g) for g in every[rank]]

    for reduce, tolerance in (
        (sgd.all_reduce, 1e-6),
        (sgd.all_reduce_half, 2e-3),
    ):
        for t, want in zip(made(), total):
            reduce(t.data)
            np.testing.assert_allclose(t.numpy(), want, atol=tolerance)
    for reduce, tolerance in (
        (sgd.fused_all_reduce, 1e-6),
        (sgd.fused_all_reduce_half, 2e-3),
    ):
        listed = made()
        raw = [t.data for t in listed]
        reduce(raw, send=False)
        for t, own in zip(listed, every[rank]):
            np.testing.assert_array_equal(t.numpy(), own)  # nothing yet
        reduce(raw, send=True)
        sgd.wait()
        for t, want in zip(listed, total):
            np.testing.assert_allclose(t.numpy(), want, atol=tolerance)
    # A tensor that lies transposed.
    t = tensor.from_numpy(every[rank][1]).transpose()
    sgd.all_reduce(t.data)
    np.testing.assert_allclose(t.numpy(), total[1].T, atol=1e-6)
    # update divides by the number of ranks.
    p = Tensor(data=np.zeros((2, 3), np.float32))
    g = tensor.from_numpy(every[rank][1])
    sgd.all_reduce(g.data)
    sgd.update(p, g)
    np.testing.assert_allclose(p.numpy(), -0.1 * total[1] / size, atol=1e-6)
    case = unittest.TestCase()
    sgd.fused_all_reduce(raw, send=False)
    with case.assertRaisesRegex(StateError, "3 tensors"):
        sgd.wait()
    sgd.fused_all_reduce(raw, send=False)
    with case.assertRaisesRegex(ValueError, "same ones"):
        sgd.fused_all_reduce(raw[:2], send=True)
    with case.assertRaisesRegex(TypeError, "float32"):
        sgd.all_reduce_half(tensor.from_numpy(np.ones(2, np.int32)).data)


def choose(u, spars, top_k):
    """Which elements are to be sent."""
    if not top_k:
        return np.abs(u) >= spars
    chosen = np.zeros(u.size, bool)
    count = int(np.ceil(spars * u.size))
    order = sorted(range(u.size), key=lambda i: (-abs(u[i]), i))
    chosen[order[:count]] = True
    return chosen


def sparse(rank, size, nccl_id, top_k, spars, is_fused):
    """sent + accumulation == gradient + accumulation before, and the sum over
    ranks of what was sent is what all get."""
    sgd = joined(rank, size, nccl_id)
    shapes = [(4, 5), (7,)] if is_fused else [(4, 5)]
    count = sum(int(np.prod(s)) for s in shapes)
    kept = [np.zeros(count, np.float32) for _ in range(size)]
    accumulation = Tensor((count,))
    seen = set()
    for step in range(4):
        sent = []
        for r in range(size):
            u = values(r, (count,), step) + kept[r]
            chosen = choose(u, spars, top_k)
            sent.append(np.where(chosen, u, 0))
            kept[r] = np.where(chosen, 0, u).astype(np.float32)
            seen.add(int(chosen.sum()))
        own = values(rank, (count,), step)
        before = accumulation.numpy()
        if is_fused:
            parts = [tensor.from_numpy(own[:20].reshape(4, 5))]
            parts.append(tensor.from_numpy(own[20:]))
            sgd.fused_sparsification(
                [p.data for p in parts], accumulation.data, spars, top_k
            )
            got = np.concatenate([p.numpy().reshape(-1) for p in parts])
        else:
            t = tensor.from_numpy(own.reshape(4, 5))
            sgd.sparsification(t.data, accumulation.data, spars, top_k)
            got = t.numpy().reshape(-1)
        np.testing.assert_allclose(got, np.sum(sent, 0), atol=1e-6)
        after = accumulation.numpy()
        np.testing.assert_array_equal(sent[rank] + after, own + before)
        np.testing.assert_array_equal(after, kept[rank])
        if size == 1:
            np.testing.assert_array_equal(got + after, own + before)
    assert 0 < max(seen) and min(seen) < count, seen


def sparse_mistakes(rank, size, nccl_id):
    sgd = joined(rank, size, nccl_id)
    case = unittest.TestCase()
    t = Tensor((4,)).set_value(1.0)
    with case.assertRaisesRegex(ValueError, "share above 0"):
        sgd.sparsification(t.data, None, 1.5, True)
    with case.assertRaisesRegex(ValueError, "0 or more"):
        sgd.sparsification(t.data, None, -1, False)
    with case.assertRaisesRegex(ValueError, "3 elements; 4"):
        sgd.sparsification(t.data, Tensor((3,)).data, 0.5, True)
    # Nothing reaches the threshold: nothing is sent, all is kept.
    rest = Tensor((4,))
    sgd.sparsification(t.data, rest.data, 5.0, False)
    np.testing.assert_array_equal(t.numpy(), np.zeros(4))
    np.testing.assert_array_equal(rest.numpy(), np.ones(4))
    # A call that fails, here on the last rank, changes nothing on any.
    own, kept = values(rank, (4,)), values(rank, (4,), 1)
    t, rest = tensor.from_numpy(own), tensor.from_numpy(kept)
    wrong = Tensor((4,), dtype="float16")
    for top_k in (True, False):
        with case.assertRaises((TypeError, ValueError)):
            given = wrong if rank == size - 1 else t
            sgd.sparsification(given.data, rest.data, 0.5, top_k)
        np.testing.assert_array_equal(t.numpy(), own)
        np.testing.assert_array_equal(rest.numpy(), kept)
    # Of equal ones the first.
    t = Tensor((4,)).set_value(2.0)
    sgd.sparsification(t.data, None, 0.5, True)
    np.testing.assert_array_equal(t.numpy(), [2 * size, 2 * size, 0, 0])


# ---- Training ----


class Net(model.Model):
    """Small, with a convolution; no layer that looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.conv = layer.Conv2d(3, 3, activation="RELU")
        self.flatten = layer.Flatten()
        self.hidden = layer.Linear(8)
        self.relu = layer.ReLU()
        self.last = layer.Linear(4)
        self.loss = layer.SoftMaxCrossEntropy()
        self.calls = 0  # of Python: replayed steps make none

    def forward(self, x):
        x = self.flatten(self.conv(x))
        return self.last(self.relu(self.hidden(x)))

    def train_one_batch(self, x, y, dist_option="plain", spars=None):
        self.calls += 1
        out = self.forward(x)
        loss = self.loss(out, y)
        o = self.optimizer
        if dist_option == "plain":
            o(loss)
        elif dist_option == "half":
            o.backward_and_update_half(loss)
        elif dist_option == "clipped":
            o.backward_and_update_half(loss, clipping=True, clip_Value=spars)
        elif dist_option == "partial":
            o.backward_and_partial_update(loss, threshold=20)
        elif dist_option == "top k":
            o.backward_and_sparse_update(loss, topK=True, spars=spars)
        elif dist_option == "threshold":
            o.backward_and_sparse_update(loss, topK=False, spars=spars)
        else:
            o.step_with(loss, dist_option, spars or 0.0)
        return out, loss


SAMPLES = 24


def batches(steps):
    """Whole batches of images whose class is where they are bright."""
    draw = np.random.RandomState(7)
    for _ in range(steps):
        y = draw.randint(0, 4, SAMPLES).astype(np.int32)
        x = draw.uniform(0, 0.5, (SAMPLES, 1, 6, 6)).astype(np.float32)
        for i, place in enumerate(y):
            row, column = divmod(int(place), 2)
            x[i, 0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] += 1.0
        yield x, y


def net(optimizer, samples, use_graph, seed=3):
    dev = device.get_default_device()
    dev.SetRandSeed(seed)
    m = Net()
    m.set_optimizer(optimizer)
    m.compile([Tensor((samples, 1, 6, 6), dev)], True, use_graph)
    return m


def train(m, rank, size, steps, options=("plain",), spars=None):
    """The losses of this rank's share of each batch."""
    n = SAMPLES // size
    tx, ty = Tensor((n, 1, 6, 6)), Tensor((n,), dtype=tensor.int32)
    losses = []
    for step, (x, y) in enumerate(batches(steps)):
        tx.copy_from_numpy(x[rank * n : (rank + 1) * n])
        ty.copy_from_numpy(y[rank * n : (rank + 1) * n])
        option = options[step % len(options)]
        _, loss = m(tx, ty, option, spars) if option != "plain" else m(tx, ty)
        losses.append(float(loss))
    return losses


def params_of(m):
    return {name: p.numpy().copy() for name, p in m.get_params().items()}


def optimizers():
    return {
        "sgd": opt.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adam": opt.Adam(lr=0.01),
        "decay": opt.SGD(lr=opt.ExponentialDecay(0.1, 2, 0.5)),
    }


def shards(rank, size, nccl_id, use_graph):
    """Parameters after some steps on this rank's share of the samples."""
    found = {}
    for name, core in optimizers().items():
        m = net(joined(rank, size, nccl_id, core), SAMPLES // size, use_graph)
        train(m, rank, size, 5)
        found[name] = params_of(m)
    return found


def whole():
    found = {}
    for name, core in optimizers().items():
        m = net(core, SAMPLES, False)
        train(m, 0, 1, 5)
        found[name] = params_of(m)
    return found


def whole_ranks(rank, size, nccl_id):
    return whole()


def by_hand(rank, size, nccl_id):
    """Without a model: y = x w, the loss a mean of squares."""
    sgd = joined(rank, size, nccl_id, opt.SGD(lr=0.1, momentum=0.9))
    x, y = values(0, (12, 3), 1), values(0, (12, 1), 2)
    n = 12 // size
    tx = tensor.from_numpy(x[rank * n : (rank + 1) * n])
    ty = tensor.from_numpy(y[rank * n : (rank + 1) * n])
    w = Tensor(data=np.float32([[1.0], [2.0], [3.0]]), stores_grad=True)
    w.name = "w"
    autograd.training = True
    reference = np.float64([[1.0], [2.0], [3.0]])
    momentum = np.zeros_like(reference)
    for step in range(6):
        loss = autograd.mse_loss(autograd.matmul(tx, w), ty)
        if step == 4:
            # The long way.
            for p, g in autograd.backward(loss):
                sgd.all_reduce(g.data)
                grad = g.numpy() / size
            np.testing.assert_allclose(
                grad, 2 * x.T @ (x @ w.numpy() - y) / 12, atol=1e-5
            )
            continue
        sgd.backward_and_update(loss)
        gradient = 2 * x.T @ (x @ reference - y) / 12
        momentum = 0.9 * momentum + gradient
        reference -= 0.1 * momentum
        np.testing.assert_allclose(w.numpy(), reference, atol=1e-5)
    return w.numpy().tobytes()


def passes(rank, size, nccl_id):
    """Two backward passes are one step on both batches."""
    sgd = joined(
        rank, size, nccl_id, opt.SGD(lr=0.1), backward_passes_per_step=2
    )
    n = SAMPLES // (2 * size)
    m = net(sgd, n, False)
    before = params_of(m)
    ((x, y),) = batches(1)
    for half in range(2):
        first = (2 * rank + half) * n
        tx = tensor.from_numpy(x[first : first + n])
        ty = tensor.from_numpy(y[first : first + n])
        m(tx, ty)
        if half == 0:
            for name, p in params_of(m).items():
                np.testing.assert_array_equal(p, before[name])
    return params_of(m)


def one_step(rank, size, nccl_id):
    m = net(opt.SGD(lr=0.1), SAMPLES, False)
    train(m, 0, 1, 1)
    return params_of(m)


def variants(rank, size, nccl_id, option, spars, use_graph):
    """Losses, and replicas before and after they are made equal."""
    sgd = joined(rank, size, nccl_id, opt.SGD(lr=0.1))
    m = net(sgd, SAMPLES // size, use_graph)
    losses = train(m, rank, size, 30, (option,), spars)
    digest = m.digest()
    sgd.consolidate()
    sgd.check_digest(m.digest())
    name = sgd.strategy
    return losses, digest, m.digest(), name


def clipped(rank, size, nccl_id, use_graph):
    """No gradient is larger than 0.01 when it is shared."""
    m = net(
        joined(rank, size, nccl_id, opt.SGD(lr=1.0)), SAMPLES // size, use_graph
    )
    largest = 0
    for _ in range(3):
        before = params_of(m)
        train(m, rank, size, 1, ("clipped",), 0.01)
        for name, p in params_of(m).items():
            largest = max(largest, np.abs(p - before[name]).max())
    return largest


def resumes(rank, size, nccl_id, file, use_graph):
    """Every strategy's run goes on from a checkpoint as if it had not ended."""

    def trained(option, seed):
        sgd = joined(rank, size, nccl_id, opt.SGD(lr=0.1, momentum=0.9))
        if option == "partialUpdate":
            sgd.use(option, chunk=20)
        return net(sgd, SAMPLES // size, use_graph, seed)

    for option in ALL:
        m = trained(option, 3)
        options = ("plain",) if option == "partialUpdate" else (option,)
        train(m, rank, size, 11, options)
        m.save_checkpoint(file, note=option)
        digest = m.digest()
        losses = train(m, rank, size, 11, options)
        again = trained(option, 4)
        # Only rank 0 has the file.
        again.load_checkpoint(file if rank == 0 else "no such file")
        assert again.digest() == digest, option
        assert train(again, rank, size, 11, options) == losses, option
        again.optimizer.consolidate()
        m.optimizer.consolidate()
        assert again.digest() == m.digest(), option
    try:
        again.load_checkpoint("no such file")
    except FileNotFoundError as error:
        return str(error)
    return None


# How the optimizer's states and the work on them may lie.
LAYOUTS = (
    {"peer_memory": False},
    {"peer_memory": True},
    {"peer_memory": False, "shard": True},
    {"peer_memory": True, "shard": True},
)


def layouts(rank, size, nccl_id, file, use_graph):
    """States, digests and checkpoints do not tell the layout."""
    found = []
    for layout in LAYOUTS:
        adam = opt.Adam(lr=0.01)
        adam.clip_gradients(norm=0.05)
        m = net(
            joined(rank, size, nccl_id, adam, **layout),
            SAMPLES // size,
            use_graph,
        )
        train(m, rank, size, 4)
        states = m.optimizer.get_states()
        dist.barrier("all have read")
        # Halved on every rank: each has its part of them.
        m.optimizer.set_states(
            {n: s / 2 if "/" in n else s for n, s in states.items()}
        )
        halved = m.optimizer.get_states()
        for name, state in states.items():
            if "/" in name:
                np.testing.assert_array_equal(halved[name], state / 2)
        if not found:
            m.save_checkpoint(file)
        else:
            # As another layout left it, before these steps.
            m.load_checkpoint(file if rank == 0 else "no such file")
        losses = train(m, rank, size, 3)
        found.append((losses, m.digest(), m.optimizer.get_states()))
    for losses, digest, states in found[1:]:
        assert losses == found[0][0]
        assert digest == found[0][1]
        for name, state in found[0][2].items():
            np.testing.assert_array_equal(states[name], state, name)
    return digest


def changes(rank, size, nccl_id, use_graph):
    """One model, another way to share in every step."""
    sgd = joined(rank, size, nccl_id, opt.SGD(lr=0.05))
    m = net(sgd, SAMPLES // size, use_graph)
    options = ("plain", "half", "top k", "partial", "threshold", "plain")
    names = []
    losses = []
    n = SAMPLES // size
    tx, ty = Tensor((n, 1, 6, 6)), Tensor((n,), dtype=tensor.int32)
    for step, (x, y) in enumerate(batches(24)):
        tx.copy_from_numpy(x[rank * n : (rank + 1) * n])
        ty.copy_from_numpy(y[rank * n : (rank + 1) * n])
        _, loss = m(tx, ty, options[step % 6], 0.05)
        losses.append(float(loss))
        names.append(sgd._strategy[0])
    assert names[:6] == [
        "fp32",
        "fp16",
        "sparseTopK",
        "partialUpdate",
        "sparseThreshold",
        "fp32",
    ], names
    assert names[6:12] == names[:6] and names[18:] == names[:6], names
    before = m.digest()
    sgd.consolidate()
    sgd.check_digest(m.digest())
    return losses, before


class Switched(Net):
    """Whose strategy is an attribute, which no argument of a step tells; its
    running averages follow the batches."""

    option = "fp32"

    def __init__(self):
        super().__init__()
        self.norm = layer.BatchNorm2d()

    def forward(self, x):
        return super().forward(self.norm(x))

    def train_one_batch(self, x, y):
        self.calls += 1
        loss = self.loss(self.forward(x), y)
        self.optimizer.step_with(loss, self.option)
        return loss


def switched(rank, size, nccl_id):
    """How often Python ran in each of 8 steps; what two models have after a step by
    fp16, of which the first was begun by fp32."""
    tx, ty = Tensor((8, 1, 6, 6)), Tensor((8,), dtype=tensor.int32)
    tx.copy_from_numpy(values(rank, (8, 1, 6, 6)))
    ty.copy_from_numpy(np.arange(8, dtype=np.int32) % 4)
    sgd = joined(rank, size, nccl_id)

    def made(optimizer):
        device.get_default_device().SetRandSeed(3)
        m = Switched()
        m.set_optimizer(optimizer)
        m.compile([tx], True, False)
        return m

    m, calls = made(sgd), []
    for option in ["fp32"] * 2 + ["fp16"] * 3 + ["fp32"] * 3:
        m.option, before = option, m.calls
        m(tx, ty)
        calls.append(m.calls - before)
    digests = []
    for option in ("fp32", "fp16"):
        other = opt.DistOpt(opt.SGD(lr=0.1))
        other.use(option)
        m = made(other)
        m.option = "fp16"
        m(tx, ty)
        digests.append(m.digest())
    return calls, digests


def used(rank, size, nccl_id):
    """use() chooses for plain calls, before training and in it."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    sgd = dist.DistributedOptimizer(
        opt.SGD(lr=0.05), compression=dist.Compression.fp16
    )
    assert sgd.strategy.startswith("fp16"), sgd.strategy
    m = net(sgd, SAMPLES // size, True)
    train(m, rank, size, 4)
    assert sgd.strategy.startswith("fp16"), sgd.strategy
    sgd.use("sparseTopK", spars=0.25)
    before = m.calls
    train(m, rank, size, 8)
    # Python runs while the way changes and is recorded; then steps are replayed.
    assert m.calls - before <= 3, m.calls - before
    assert sgd.strategy.startswith("sparseTopK"), sgd.strategy
    assert "0.25" in sgd.strategy, sgd.strategy
    case = unittest.TestCase()
    with case.assertRaisesRegex(ValueError, "one of fp32, fp16"):
        sgd.use("nothing")
    with case.assertRaisesRegex((ValueError, TypeError), "spars"):
        sgd.use("sparseTopK", spars=7.0)
    return m.digest()


def partial(rank, size, nccl_id):
    """Each chunk of the parameters has its turn, once in K steps."""
    sgd = joined(rank, size, nccl_id, opt.SGD(lr=0.1))
    w = Tensor(data=np.zeros(16, np.float32), stores_grad=True)
    w.name = "w"
    own = tensor.from_numpy(values(rank, (16,)) + 3 * rank)
    autograd.training = True
    turns = []
    for _ in range(8):
        loss = autograd.reduce_sum(autograd.mul(w, own), keepdims=0)
        sgd.backward_and_partial_update(loss, threshold=5)
        replicas = dist.allgather(w.numpy().reshape(1, 16))
        equal = (replicas == replicas[0]).all(axis=0)
        turns.append(tuple(np.flatnonzero(equal)))
    return turns


def measured(rank, size, nccl_id, option, use_graph):
    """A run whose precision is measured, and what it chose, in a checkpoint."""
    sgd = joined(rank, size, nccl_id)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "run.safetensors")
        for way in ("auto", "chosen", "saved"):
            m = net(sgd, SAMPLES // size, use_graph)
            m.set_precision(found["auto"][0] if way == "chosen" else "auto")
            if way == "saved":
                path = file if rank == 0 else "nowhere"
                m.load_checkpoint(path)  # and rank 0 tells what it says
            losses = train(m, rank, size, 4, (option,))
            found[way] = m.get_precision(), m.digest(), losses
            if way == "auto":
                m.set_precision("float16")
                m.save_checkpoint(file)
    return found


def different_models(rank, size, nccl_id):
    sgd = joined(rank, size, nccl_id)
    w = Tensor(data=np.ones(4 + rank, np.float32), stores_grad=True)
    w.name = "w"
    autograd.training = True
    sgd(autograd.reduce_sum(w, keepdims=0))


def different_options(rank, size, nccl_id):
    sgd = joined(rank, size, nccl_id)
    m = net(sgd, SAMPLES // size, False)
    train(m, rank, size, 1)
    train(m, rank, size, 1, ("half" if rank else "bf16",))


# ---- Tests ----


def skips(rank, size, nccl_id, use_graph):
    """The last rank leaves out a batch of its loader."""
    joined(rank, size, nccl_id)
    made = data.synthetic(160 * size, (1, 6, 6), 4, seed=3)
    loader = data.Loader(made, batch=16, rank=rank, size=size)
    m = Net()
    m.set_optimizer(opt.DistOpt(opt.SGD(lr=0.1)))
    x, _ = next(iter(loader))
    m.compile([x], is_train=True, use_graph=use_graph)
    loader.seek(0)
    for i, (x, y) in enumerate(loader):
        if i == 5 and rank == size - 1:
            continue
        try:
            m(x, y)
        except ValueError as error:
            return i, str(error)
    return None


def fails(rank, size, nccl_id, use_graph):
    """In step 3 the last rank's batch has too many classes, and its program goes
    on; what each rank got in all steps."""
    n = 8
    m = net(joined(rank, size, nccl_id), n, use_graph)
    tx, ty = Tensor((n, 1, 6, 6)), Tensor((n,), dtype=tensor.int32)
    tx.copy_from_numpy(values(rank, (n, 1, 6, 6)))
    ty.copy_from_numpy(np.arange(n, dtype=np.int32) % 4)
    said = []
    for i in range(6):
        odd = i == 3 and rank == size - 1
        try:
            m(Tensor((n, 1, 5, 5)) if odd else tx, ty)
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


class Manual(Net):
    """Loops over autograd.backward itself."""

    def train_one_batch(self, x, y):
        loss = self.loss(self.forward(x), y)
        for p, g in autograd.backward(loss):
            self.optimizer.all_reduce(g.data)
            self.optimizer.update(p, g)
        return loss


def by_hand_in_a_model(rank, size, nccl_id):
    sgd = joined(rank, size, nccl_id)
    m = Manual()
    m.set_optimizer(sgd)
    m.compile([Tensor((8, 1, 6, 6))], True, True)
    tx, ty = Tensor((8, 1, 6, 6)), Tensor((8,), dtype=tensor.int32)
    tx.copy_from_numpy(values(rank, (8, 1, 6, 6)))
    ty.copy_from_numpy(np.arange(8, dtype=np.int32) % 4)
    for _ in range(3):
        m(tx, ty)
    return m.digest()


class Primitives(unittest.TestCase):
    def test_contract(self):
        for size in (1, 2, 4):
            ranks.results(size, contract)

    def test_sums(self):
        for size in SIZES:
            ranks.results(size, sums)

    def test_error_feedback(self):
        for size in SIZES:
            for is_fused in (False, True):
                ranks.results(size, sparse, True, 0.3, is_fused)
                ranks.results(size, sparse, False, 0.6, is_fused)

    def test_mistakes(self):
        ranks.results(2, sparse_mistakes)


class Training(unittest.TestCase):
    def near(self, got, want, tolerance=1e-5):
        self.assertEqual(list(got), list(want))
        for name in want:
            np.testing.assert_allclose(
                got[name], want[name], atol=tolerance, err_msg=name
            )

    def test_shards_are_the_whole_batch(self):
        (want,) = ranks.results(1, whole_ranks)
        for size in (2, 4):
            for use_graph in (False, True):
                found = ranks.results(size, shards, use_graph)
                for own in found:
                    for name in want:
                        self.near(own[name], want[name])
                for name, p in found[0]["sgd"].items():
                    for other in found[1:]:
                        np.testing.assert_array_equal(p, other["sgd"][name])

    def test_without_a_model(self):
        for size in SIZES:
            found = ranks.results(size, by_hand)
            self.assertEqual(len(set(found)), 1)

    def test_backward_passes(self):
        (want,) = ranks.results(1, one_step)
        for size in (1, 2):
            for own in ranks.results(size, passes):
                self.near(own, want)

    def test_gradients_are_clipped_on_request(self):
        for use_graph in (False, True):
            for largest in ranks.results(2, clipped, use_graph):
                self.assertAlmostEqual(largest, 0.01, delta=1e-5)

    def test_checkpoints_hold_what_every_rank_keeps(self):
        for size, use_graph in ((2, False), (3, True)):
            file = os.path.join(
                os.environ["TEST_TMPDIR"], f"{size}.safetensors"
            )
            for said in ranks.results(size, resumes, file, use_graph):
                self.assertIn("no such file", said)

    def test_states_in_shards_are_the_same(self):
        for size, use_graph in ((1, False), (2, True), (3, False)):
            file = os.path.join(
                os.environ["TEST_TMPDIR"], f"layouts{size}.safetensors"
            )
            found = ranks.results(size, layouts, file, use_graph)
            self.assertEqual(len(set(found)), 1)

    def learns(self, size, option, spars, use_graph):
        found = ranks.results(size, variants, option, spars, use_graph)
        for losses, *_ in found:
            first, last = np.mean(losses[:4]), np.mean(losses[-4:])
            self.assertLess(last, 0.8 * first, (option, losses))
        self.assertEqual(len({after for _, _, after, _ in found}), 1)
        return found

    def test_variants(self):
        for option, spars, name in [
            ("half", None, "fp16"),
            ("top k", 0.2, "sparseTopK"),
            ("threshold", 0.01, "sparseThreshold"),
        ]:
            found = self.learns(2, option, spars, True)
            self.assertEqual(len({d for _, d, _, _ in found}), 1, option)
            self.assertTrue(found[0][3].startswith(name), found[0][3])
        found = self.learns(2, "partial", None, True)
        self.assertEqual(len({d for _, d, _, _ in found}), 2)

    def test_every_option(self):
        for option in ALL:
            eager = self.learns(2, option, None, False)
            graph = self.learns(2, option, None, True)
            with self.subTest(option):
                for one, other in zip(eager, graph):
                    self.assertEqual(one[:3], other[:3])
                    self.assertTrue(one[3].startswith(option), one[3])
                count = len({digest for _, digest, _, _ in eager})
                self.assertEqual(count, 2 if option in LOCAL else 1)

    def test_auto(self):
        self.learns(2, "auto", None, True)

    def test_another_option_in_every_step(self):
        eager = ranks.results(2, changes, False)
        graph = ranks.results(2, changes, True)
        self.assertEqual(eager, graph)
        for losses, _ in eager:
            self.assertLess(np.mean(losses[-6:]), 0.9 * np.mean(losses[:3]))

    def test_an_option_that_an_attribute_says(self):
        for size in (1, 2):
            for calls, digests in ranks.results(size, switched):
                # The step that changes it begins again; those after it do not.
                self.assertEqual(calls, [1, 1, 2, 1, 1, 2, 1, 1])
                self.assertEqual(len(set(digests)), 1)

    def test_use(self):
        self.assertEqual(len(set(ranks.results(2, used))), 1)

    def test_precision_that_is_measured(self):
        for option, use_graph in (("plain", True), ("half", False)):
            runs = ranks.results(2, measured, option, use_graph)
            for found in runs:
                self.assertEqual(found["auto"], found["chosen"])
                self.assertIn(found["auto"][0], ("float32", "bfloat16"))
                self.assertEqual(found["saved"][0], "float16")
                self.assertEqual(found["saved"][:2], runs[0]["saved"][:2])
                self.assertEqual(found["auto"][:2], runs[0]["auto"][:2])

    def test_partial_update_takes_turns(self):
        for turns in ranks.results(3, partial):
            self.assertEqual(turns[:4], turns[4:])
            touched = [i for turn in turns[:4] for i in turn]
            self.assertEqual(sorted(touched), list(range(16)))
            self.assertTrue(all(turns), turns)

    def test_a_skipped_batch_is_told_to_all(self):
        for size, use_graph in ((2, False), (3, True), (4, True)):
            for outcome in ranks.results(size, skips, use_graph):
                self.assertIsNotNone(outcome, "nobody noticed")
                i, said = outcome
                self.assertIn(i, (5, 6))
                self.assertRegex(
                    said,
                    rf"at step 5 \(batch 6\), rank {size - 1} is at step 5 "
                    r"\(batch 7\); all ranks must take the same steps",
                )

    def test_a_step_that_fails_on_one_rank_is_told_to_all(self):
        for size, use_graph in ((2, True), (3, False), (4, True)):
            found = ranks.results(size, fails, use_graph)
            own = found[-1][3]
            self.assertNotIn("CommError", own)
            for rank, said in enumerate(found):
                self.assertEqual(said[:3], ["", "", ""])
                for text in said[3 + (rank == size - 1) :]:
                    self.assertRegex(
                        text,
                        rf"CommError: .*rank {size - 1} \(.*\) aborted: ",
                    )
                    self.assertIn(own.split(": ", 1)[1].split("\n")[0], text)

    def test_steps_by_hand_in_a_model(self):
        # All ranks find in their first step that these are no steps of a model.
        for size in (1, 2):
            digests = ranks.results(size, by_hand_in_a_model)
            self.assertEqual(len(set(digests)), 1)

    def test_ranks_that_differ(self):
        for function in (different_models, different_options):
            for outcome in ranks.run(2, function):
                self.assertIsInstance(outcome, Exception)
                self.assertRegex(str(outcome), "rank 1", function)


if __name__ == "__main__":
    unittest.main()
