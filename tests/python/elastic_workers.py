# SPDX-License-Identifier: Apache-2.0
"""Training by workers of whom some are killed, for elastic_python_test; as a script
a worker of `python -m choir --elastic`:

elastic_workers.py FORM FOLDER    # FORM: loop or run; notes go to the folder
"""

import json
import os
import signal
import sys
import time

import numpy as np

from choir import CommError, autograd, data, device, dist, layer, model
from choir import opt, tensor

SAMPLES, GLOBAL, SHARD = 160, 24, 4
STEPS = 7  # of an epoch
PAUSE = 0.05  # seconds of each step while somebody is awaited


class Net(model.Model):
    def __init__(self, sync=True):
        super().__init__()
        self.conv = layer.Conv2d(4, 3, padding=1)
        self.norm = layer.BatchNorm2d(sync=sync)
        self.pool = layer.MaxPool2d(2, 2)
        self.drop = layer.Dropout(0.3)
        self.last = layer.Linear(5)

    def forward(self, x):
        y = self.pool(autograd.relu(self.norm(self.conv(x))))
        return self.last(self.drop(autograd.flatten(y)))

    def train_one_batch(self, x, y):
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        self.optimizer(loss)
        return out, loss


class Worker:
    """A model, its optimizer and its loader."""

    def __init__(self, use_graph, **settings):
        dev = device.create_cpu_device(reproducible=True)
        dev.SetRandSeed(7)
        self.net = Net()
        self.sgd = opt.DistOpt(
            opt.SGD(lr=0.05, momentum=0.9),
            micro_shard=SHARD,
            elastic=True,
            **settings,
        )
        self.net.set_optimizer(self.sgd)
        with dev:
            self.net.compile([tensor.Tensor((2, 1, 8, 8))], True, use_graph)
        self.loader = data.Loader(
            data.synthetic(SAMPLES, (1, 8, 8), 5),
            rank=self.sgd.global_rank,
            size=self.sgd.world_size,
            global_batch=GLOBAL,
            micro_shard=SHARD,
            seed=3,
            device=dev,
        )
        self.taken_back = 0

    def steps(self):
        return int(self.sgd.opt._step)

    def train_on(self, x, y):
        number = self.sgd.generation.number
        out, loss = self.net(x, y)
        assert out.shape == (x.shape[0], 5) and loss.shape == (1,)
        assert np.isfinite(loss.numpy()[0])
        self.taken_back += self.sgd.generation.number != number

    def report(self):
        """Where it is, and the parameters."""
        assert dist.allreduce(np.float32(1), op=dist.Sum) == dist.size()
        assert dist.communicator() is self.sgd.communicator
        return {
            "digest": f"{self.net.digest():016x}",
            "steps": self.steps(),
            "place": [dist.rank(), dist.size()],
            "own": [self.sgd.global_rank, self.sgd.world_size],
            "local": [self.sgd.local_rank, dist.local_size()],
            "position": list(self.loader.position),
            "generation": self.sgd.generation.number,
            "has_come": self.sgd.generation.has_come,
            "taken_back": self.taken_back,
        }


def kill_own():
    os.kill(os.getpid(), 9)


# ---- Ranks of ranks.run ----


def loop(
    rank, size, nccl_id, use_graph, lost=(), epochs=2, left=(), settings=()
):
    """lost, left: of some ranks, after how many steps they are killed, or asked to
    leave. settings: of DistOpt, pairs."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    worker = Worker(use_graph, **dict(settings))
    worker.net.follow(worker.loader)
    while worker.loader.position[0] < epochs:
        for x, y in worker.loader:
            if (rank, worker.steps()) in lost:
                kill_own()
            if (rank, worker.steps()) in left:
                return leave(worker, x, y)
            worker.train_on(x, y)
    return worker.report()


def leave(worker, x, y):
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        worker.train_on(x, y)
    except SystemExit as error:
        return {"left": error.code, "handle": worker.sgd.communicator.handle}
    raise AssertionError("it is still there")


def kept_batch(rank, size, nccl_id, after, factor):
    """What one of three that is lost after so many steps leaves to do, if each worker's
    batch stays, and the learning rate becomes `factor` of what it was."""
    dist.init(nccl_id, rank, size)
    worker = Worker(True)
    worker.net.follow(None)
    for _, (x, y) in zip(range(after), worker.loader):
        worker.train_on(x, y)
    fewer = data.Loader(
        worker.loader.dataset,
        global_batch=GLOBAL * 2 // 3,
        micro_shard=SHARD,
        seed=3,
        device=worker.loader.device,
    )
    fewer.seek(0, after, worker.loader.sample)
    worker.sgd.opt.lr = 0.05 * factor
    while fewer.position[0] < 2:
        for x, y in fewer:
            worker.train_on(x, y)
    worker.loader = fewer
    return worker.report()


def recover(rank, size, nccl_id):
    """One is killed before a collective; of the others one is past it."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    worker = Worker(True)
    worker.net.follow(worker.loader)
    batches = iter(worker.loader)
    for _ in range(3):
        worker.train_on(*next(batches))
    if rank == 0:
        kill_own()
    if rank == 1:
        try:
            dist.barrier("end")
            raise AssertionError("nobody is missing")
        except CommError as error:
            worker.sgd.recover(error)
    else:
        worker.train_on(*next(batches))
    assert worker.steps() == 3
    dist.barrier("end")
    while worker.loader.position[0] < 2:
        for x, y in worker.loader:
            worker.train_on(x, y)
    return worker.report()


def recover_at_the_end(rank, size, nccl_id):
    """One is killed after an epoch's last step; the others learn that before they are
    told that the epoch is over. The batch of each stays."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    worker = Worker(True, keep_batch=True)
    worker.net.follow(worker.loader)
    batches = iter(worker.loader)
    for _ in range(STEPS):
        worker.train_on(*next(batches))
    if rank == 0:
        kill_own()
    try:
        dist.barrier("end")
        raise AssertionError("nobody is missing")
    except CommError as error:
        worker.sgd.recover(error)
    assert worker.loader.position[0] == 0 and not list(batches)
    for x, y in worker.loader:
        worker.train_on(x, y)
    return worker.report()


def run_form(rank, size, nccl_id, where):
    """elastic.run; the last rank is killed: in a step, or at an epoch's end."""
    dist.init(nccl_id, rank, size, deadline=25.0)
    worker = Worker(True)
    state = dist.elastic.ModelState(
        worker.net, worker.loader, epoch=0, ranks=[], unsaved=0
    )
    resets = []
    state.register_reset_callbacks([lambda: resets.append(dist.size())])

    @dist.elastic.run
    def train(state, epochs):
        while state.epoch < epochs:
            for x, y in worker.loader.rest_of(state.epoch):
                if rank == size - 1 and where == ("step", worker.steps()):
                    kill_own()
                state.unsaved += 1
                worker.train_on(x, y)
            if rank == size - 1 and where == ("end", state.epoch):
                kill_own()
            mean = dist.average_metrics({"rank": dist.rank()})["rank"]
            state.ranks.append(mean)
            state.epoch += 1
            state.unsaved = 0
            state.commit()
        return state.epoch

    done = train(state, 3)
    return {
        **worker.report(),
        "done": done,
        "ranks": state.ranks,
        "resets": resets,
        "unsaved": state.unsaved,
    }


# ---- Workers of the launcher, which starts another ----


class Launched:
    """Rank 1 is killed in its fourth step; the others then go slowly until
    another worker has come."""

    def __init__(self, folder):
        dist.init(deadline=25.0)
        self.is_first = dist.rank() == 1 and dist.size() == 3
        self.folder = folder
        self.worker = Worker(True)
        self.has_come = os.path.join(folder, "has come")
        if dist.size() == 1:
            open(self.has_come, "w").close()

    def before_step(self):
        worker = self.worker
        if self.is_first and worker.steps() == 3:
            kill_own()
        if worker.sgd.world_size == 2:
            end = time.monotonic() + 25
            while not os.path.exists(self.has_come):
                assert time.monotonic() < end, "nobody has come"
                time.sleep(PAUSE)
            time.sleep(PAUSE)

    def note(self, **more):
        report = {**self.worker.report(), **more}
        with open(
            os.path.join(self.folder, f"{os.getpid()}.json"), "w"
        ) as file:
            json.dump(report, file)


def launched_loop(folder, epochs=60):
    launched = Launched(folder)
    worker = launched.worker
    worker.net.follow(worker.loader)
    while worker.loader.position[0] < epochs:
        for x, y in worker.loader:
            launched.before_step()
            worker.train_on(x, y)
    launched.note()


def launched_run(folder, epochs=60):
    launched = Launched(folder)
    worker = launched.worker
    state = dist.elastic.ModelState(
        worker.net, worker.loader, epoch=0, sizes=[]
    )

    @dist.elastic.run
    def train(state):
        while state.epoch < epochs:
            for x, y in worker.loader.rest_of(state.epoch):
                launched.before_step()
                worker.train_on(x, y)
            state.sizes.append(len(dist.allgather_object(0)))
            state.epoch += 1
            state.commit()

    train(state)
    launched.note(sizes=state.sizes)


if __name__ == "__main__":
    {"loop": launched_loop, "run": launched_run}[sys.argv[1]](sys.argv[2])
