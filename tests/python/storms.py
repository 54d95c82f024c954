# SPDX-License-Identifier: Apache-2.0
"""Programs that are disturbed at random places, for storm_test.py.

    python storms.py KIND COUNT SEED

What they train must be, bit for bit, what undisturbed programs train in as many
steps. Exits with 0 and the last line "KIND ok ..." when all was well.
"""

import copy
import faulthandler
import gc
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time

os.environ.setdefault("CHOIR_THREADS", "1")

import numpy as np  # noqa: E402

import choir  # noqa: E402
from choir import autograd, device, layer, model, opt, tensor  # noqa: E402
from small_models import Net  # noqa: E402

DEV = device.create_cpu_device()
PACKAGE = os.path.dirname(choir.__file__)


# ---- What is trained ----


class Twice(autograd.Operator):
    """2 x, with a gradient of Python's."""

    def forward(self, x):
        return (tensor.Tensor(data=x) * 2.0).data

    def backward(self, dy):
        return (tensor.Tensor(data=dy) * 2.0).data


class Custom(Net):
    """With an operator of Python's, a constant and code behind the update."""

    def forward(self, x):
        return Twice()(super().forward(x * [1.0, 0.5, 2.0, 1.0, -1.0]))[0]

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        self.optimizer(loss)
        self.seen = [i * i for i in range(20)]
        return out, loss


class Convolutions(model.Model):
    """Convolution, pooling, linear."""

    def __init__(self):
        super().__init__()
        self.conv = layer.Conv2d(3, 3, padding=1, activation="RELU")
        self.pool = layer.MaxPool2d(2)
        self.flat = layer.Flatten()
        self.fc = layer.Linear(3)

    def forward(self, x):
        return self.fc(self.flat(self.pool(self.conv(x))))

    def train_one_batch(self, x, y):
        loss = autograd.softmax_cross_entropy(self.forward(x), y)
        self.optimizer(loss)
        return loss


KINDS = [Net, Custom, Convolutions]


def optimizer(kind):
    if kind is Net:
        return opt.SGD(lr=opt.ExponentialDecay(0.1, 10, 0.9), momentum=0.9)
    return opt.DistOpt(opt.Adam(lr=0.01)) if kind is Custom else opt.Adam()


def batches(kind, seed=0, count=7):
    """Of different elements; steps take them in turns."""
    rng = np.random.default_rng(seed)
    shape = (4, 1, 6, 6) if kind is Convolutions else (6, 5)
    return [
        (
            tensor.from_numpy(rng.standard_normal(shape).astype(np.float32)),
            tensor.from_numpy(rng.integers(0, 3, shape[0]).astype(np.int32)),
        )
        for _ in range(count)
    ]


def made(kind, use_graph, seed=3):
    DEV.SetRandSeed(seed)
    m = kind()
    m.set_optimizer(optimizer(kind))
    m.compile([batches(kind, count=1)[0][0]], True, use_graph)
    return m


def steps_of(m):
    """The library's own count."""
    return m._engine_made.step() if m._engine_made else 0


def train(m, data):
    """The next step."""
    m(*data[steps_of(m) % len(data)])


def digest_after(kind, steps, seed=3, data_seed=0):
    """Of an undisturbed run."""
    m, data = made(kind, True, seed), batches(kind, data_seed)
    for _ in range(steps):
        train(m, data)
    assert steps_of(m) == steps
    return m.digest()


def check(m, kind, **seeds):
    steps = steps_of(m)
    found, wanted = m.digest(), digest_after(kind, steps, **seeds)
    assert found == wanted, f"{kind.__name__}: {steps} steps: another digest"
    core = getattr(m.optimizer, "opt", m.optimizer)
    assert core.step_counter.item() == steps, core.step_counter
    return steps


# ---- Interrupts ----


class Interrupts(threading.Thread):
    """Sends SIGINT to the main thread a random moment after each `arm`; once more
    where it was lost, as the interpreter drops what comes into a finalizer."""

    def __init__(self, rng, mean):
        super().__init__(daemon=True)
        self.armed, self.came = queue.SimpleQueue(), queue.SimpleQueue()
        self.rng, self.mean = rng, mean
        self.lost = 0
        self.start()

    def arm(self):
        self.armed.put(True)

    def caught(self):
        self.came.put(True)

    def run(self):
        main = threading.main_thread().ident
        while self.armed.get():
            time.sleep(self.rng.expovariate(1 / self.mean))
            signal.pthread_kill(main, signal.SIGINT)
            while True:
                try:
                    self.came.get(timeout=5)
                    break
                except queue.Empty:
                    self.lost += 1
                    signal.pthread_kill(main, signal.SIGINT)


def survive(count, storm, work):
    """Runs `work` over and over; each KeyboardInterrupt that comes out of it is
    followed by the next one's arming."""
    for _ in range(count):
        try:
            storm.arm()
            while True:
                work()
        except KeyboardInterrupt:
            storm.caught()


class Bytecodes:
    """Raises SIGINT behind a random bytecode of the package."""

    def __init__(self, rng, mean):
        self.rng, self.mean = rng, mean
        self.left = self.lost = 0

    def arm(self):
        self.left = 1 + int(self.rng.expovariate(1 / self.mean))
        sys.settrace(self.called)

    def caught(self):
        pass

    def called(self, frame, event, _arg):
        code = frame.f_code
        # What comes into a finalizer is lost in every program.
        if (
            not code.co_filename.startswith(PACKAGE)
            or code.co_name == "__del__"
        ):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.stepped

    def stepped(self, frame, event, _arg):
        if event == "opcode":
            self.left -= 1
            if self.left <= 0:
                sys.settrace(None)
                frame.f_trace_opcodes = False
                signal.raise_signal(signal.SIGINT)
        return self.stepped


def interrupt_models(count, rng, source, mean):
    done = []
    kinds = [(kind, use_graph) for kind in KINDS for use_graph in (0, 1)]
    storm = source(rng, mean)
    for i, (kind, use_graph) in enumerate(kinds):
        m, data = made(kind, bool(use_graph)), batches(kind)
        part = count // len(kinds) + (i < count % len(kinds))
        survive(part, storm, lambda: train(m, data))
        train(m, data)
        done.append(check(m, kind))
    assert storm.lost <= count // 100, storm.lost
    return f"{count} interrupts ({storm.lost} lost), {done} steps"


def interrupts(count, rng):
    """Signals at random moments of training."""
    return interrupt_models(count, rng, Interrupts, 0.002)


def bytecodes(count, rng):
    """Signals at random bytecodes of the package."""
    return interrupt_models(count, rng, Bytecodes, 8000)


def plain_work(rng):
    """Everything but steps of models that go on: no digest can be told."""
    x = tensor.from_numpy(rng.standard_normal((8, 5)).astype(np.float32))
    w = tensor.random((5, 4))
    w.stores_grad = True
    sgd = opt.SGD(lr=0.1, momentum=0.9)
    while True:
        autograd.training = True
        y = autograd.relu(autograd.matmul(x, w)) + [0.0, 1.0, 2.0, 3.0]
        loss = autograd.mse_loss(Twice()(y[:, ::-1])[0], y.detach() * 0.5)
        for p, g in autograd.backward(loss):
            sgd.update(p, g)
        sgd.step()
        opt.Adam(lr=0.01)(autograd.mse_loss(autograd.matmul(x, w), y.detach()))
        np.asarray(y).sum()
        tensor.from_dlpack(y.detach())
        np.from_dlpack(y.detach())
        pickle.loads(pickle.dumps(w))
        w[1:3] = 0.5
        m = Net()
        m.set_optimizer(opt.SGD(lr=0.1))
        m.compile([x], True, True)
        for _ in range(3):
            m(x, tensor.from_numpy(np.zeros(8, np.int32)))
        yield


def plain(count, rng):
    """Signals in plain code: nothing is torn that memory depends on."""
    numbers = np.random.default_rng(0)
    in_use = lost = 0

    def work():
        for _ in zip(range(4), plain_work(numbers)):
            pass

    for source, mean in ((Interrupts, 0.003), (Bytecodes, 5000)):
        storm = source(rng, mean)
        for _ in range(3):
            survive(max(count // 6, 1), storm, work)
            work()
            gc.collect()
        in_use = max(in_use, DEV.memory()["in_use"])
        lost += storm.lost
    assert in_use < 4 << 20, in_use
    assert lost <= 2 + count // 100, lost
    return f"{count} interrupts ({lost} lost), {in_use} bytes left"


# ---- Exceptions ----


class Speechless(Exception):
    def __str__(self):
        raise ValueError("no words")


FAILURES = [
    ValueError, Speechless, MemoryError, KeyboardInterrupt, SystemExit,
    GeneratorExit, StopIteration, choir.CommError, RecursionError,
]  # fmt: skip


class Raised:
    """Raises an exception behind a random bytecode of the user's functions."""

    FUNCTIONS = ("train_one_batch", "forward", "backward", "work")

    def __init__(self, rng, mean):
        self.rng, self.mean = rng, mean
        self.left = 0

    def arm(self):
        self.left = 1 + int(self.rng.expovariate(1 / self.mean))
        self.failure = self.rng.choice(FAILURES)("at random")
        sys.settrace(self.called)

    def called(self, frame, event, _arg):
        name = os.path.basename(frame.f_code.co_filename)
        if name not in ("storms.py", "small_models.py"):
            return None
        if frame.f_code.co_name not in self.FUNCTIONS:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.stepped

    def stepped(self, frame, event, _arg):
        if event == "opcode":
            self.left -= 1
            if self.left <= 0:
                sys.settrace(None)
                frame.f_trace_opcodes = False
                raise self.failure
        return self.stepped


def exceptions(count, rng):
    """Exceptions at random places of the user's own functions."""
    raised = Raised(rng, 150)
    done = []
    kinds = [(kind, use_graph) for kind in KINDS for use_graph in (0, 1)]
    for i, (kind, use_graph) in enumerate(kinds):
        data = batches(kind)
        steps = 0
        for k in range(count // len(kinds) + (i < count % len(kinds))):
            # In graph mode only the first steps run Python.
            if k % 4 == 0:
                m = made(kind, bool(use_graph))
            raised.arm()
            caught = None
            while caught is None:
                if use_graph and steps_of(m) > 3:
                    m.graph(True)  # is recorded anew
                try:
                    train(m, data)
                except BaseException as error:
                    caught = error
            sys.settrace(None)
            assert caught is raised.failure, repr(caught)
            train(m, data)
            steps += check(m, kind)
        done.append(steps)
    return f"{count} exceptions, {done} steps"


# ---- Threads ----


def threads(count, rng):
    """Eight threads train models of their own at a time, `count` times."""
    for _ in range(count):
        train_in_threads(8, rng.randrange(5, 40))
    return f"{count} times 8 threads"


def train_in_threads(count, steps):
    found, failures = {}, []
    start = threading.Barrier(count)

    def run(i):
        try:
            kind, use_graph = KINDS[i % len(KINDS)], i % 2 == 0
            start.wait()
            m, data = made(kind, use_graph, i), batches(kind, i)
            for step in range(steps):
                train(m, data)
                if step % 5 == 0:  # not training, and beside a model
                    m.eval()
                    m(data[0][0])
                    m.forward(data[1][0])
                    m.train()
            found[i] = m.digest(), steps_of(m)
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for worker in workers:
        worker.start()
    # This one computes beside them.
    x = tensor.from_numpy(np.arange(12, dtype=np.float32))
    sums = set()
    while any(worker.is_alive() for worker in workers):
        sums.add(float(tensor.sum(x * 2.0 + 1.0)))
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert sums <= {144.0}, sums
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        wanted = digest_after(kind, steps, i, i), steps
        assert found[i] == wanted, f"thread {i}: another digest"


# ---- Pickles ----

WAYS = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
}
DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8",
    "bool",
]  # fmt: skip


def pickled_model(rng, way):
    """A copy of a model trains on as the model does, neither troubles the other."""
    kind, use_graph = rng.choice(KINDS), rng.random() < 0.5
    m, data = made(kind, use_graph), batches(kind)
    for _ in range(rng.randrange(5)):
        train(m, data)
    done = steps_of(m)
    other = way(m)
    if isinstance(m.optimizer, opt.DistOpt):
        assert other.optimizer is None
        other.set_optimizer(opt.DistOpt(way(m.optimizer.opt)))
    assert other.digest() == m.digest()
    DEV.SetRandSeed(rng.randrange(1000))  # which a model does not ask again
    if not done:
        DEV.SetRandSeed(3)
    for i in range(rng.randrange(5)):
        other(*data[(done + i) % len(data)])
    for each in (other, m):
        core = getattr(each.optimizer, "opt", each.optimizer)
        for step in range(int(core.step_counter.item()), 9):
            each(*data[step % len(data)])
    assert m.digest() == other.digest() == digest_after(kind, 9)


def pickled_tensor(rng, way):
    """Of every dtype and layout."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    shape = rng.choice([(), (3,), (2, 3), (0, 4), (2, 3, 4, 5)])
    t = tensor.from_numpy(
        (numbers.standard_normal(shape) * 50).astype(np.float32)
    ).as_type(rng.choice(DTYPES))
    if len(shape) > 1 and rng.random() < 0.5:
        t = t.T()
    if len(shape) > 1 and rng.random() < 0.5:
        t = t[:, ::2]
    t.stores_grad = rng.random() < 0.5
    t.requires_grad = rng.random() < 0.5
    if rng.random() < 0.5:
        t.name = "a name"
    for value in (t, [t, t]):
        other = way(value)
        if isinstance(value, list):
            assert other[0] is other[1]
            other = other[0]
        assert tensor.digest({"t": other}) == tensor.digest({"t": t})
        for name in ("dtype", "shape", "stores_grad", "requires_grad", "_name"):
            assert getattr(other, name) == getattr(t, name), name
        if other.size():
            other.set_value(1)
            assert (t.numpy() != 1).any() or (t.numpy() == 1).all()
    raw = way(t.data)
    assert raw.dtype == t.data.dtype and raw.shape() == t.shape


def pickled_optimizer(rng, way):
    """Which updates parameters outside of a model, one by one or by a loss."""
    autograd.training = True
    kind = rng.choice(
        [opt.SGD, opt.Adam, opt.RMSProp, opt.AdaGrad, opt.Adadelta]
    )
    settings = {"momentum": 0.9} if kind is opt.SGD else {}
    data = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)
    x, by_loss = tensor.from_numpy(data), rng.random() < 0.5

    def step(w, optimizer):
        loss = autograd.mse_loss(autograd.matmul(x, w), x)
        if by_loss:
            optimizer(loss)
            return
        for p, g in autograd.backward(loss):
            optimizer.update(p, g)
        optimizer.step()

    w = tensor.from_numpy(data[:3])
    w.stores_grad = w.requires_grad = True
    w.name = "w"
    optimizer = kind(lr=opt.Cosine(0.1, 10), **settings)
    for _ in range(rng.randrange(1, 4)):
        step(w, optimizer)
    v, other = way((w, optimizer))
    for _ in range(3):
        step(w, optimizer)
    for _ in range(3):
        step(v, other)
    assert tensor.digest({"w": w}) == tensor.digest({"w": v}), (kind, by_loss)
    assert other.step_counter.item() == optimizer.step_counter.item()
    autograd.training = False


def pickles(count, rng):
    """Pickles and deep copies of models, tensors and optimizers."""
    kinds = [pickled_model, pickled_tensor, pickled_optimizer]
    for _ in range(count):
        rng.choice(kinds)(rng, rng.choice(list(WAYS.values())))
    return f"{count} pickles and copies"


def main():
    faulthandler.enable()
    kind, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    print(kind, "ok:", globals()[kind](count, rng), flush=True)


if __name__ == "__main__":
    main()
