# SPDX-License-Identifier: Apache-2.0
"""DistOpt: an optimizer on many workers."""

from __future__ import annotations

import ctypes
import json
import weakref
from typing import NamedTuple

from choir import _checkpoint, _comm, _engine, autograd
from choir._comm import Communicator, NcclIdHolder
from choir._here import here
from choir._calls import (
    CommError,
    NotCopied,
    Owner,
    StateError,
    check,
    get,
    lib,
    make_status,
    ranged,
)
from choir._optimizers import SGD, Optimizer
from choir._raw import CTensor
from choir._schedules import DecayScheduler
from choir._sections import deferred, lock
from choir._settings import Table
from choir.tensor import Tensor


class WorkersChanged(Exception):
    """Workers were lost, or came, in a step of a function of dist.elastic.run,
    which catches it and calls the function again."""


class Generation(NamedTuple):
    """The workers of an elastic run, from when on."""

    number: int  # 1: those that it began with
    step: int  # steps that were done when it began
    lost: int  # workers of the one before that did not go on
    has_come: bool  # this worker, with it: all that it has is from the others
    seconds: float  # that the change took
    text: str  # "generation 2: rank 1 (host h, pid 7) is gone, 3 workers go on"


class StrategyChange(Exception):
    """A step asks for another strategy than the one in use (internal)."""

    def __init__(self, option: str, settings: dict) -> None:
        super().__init__(option)
        self.option = option
        self.settings = settings


# A checkpoint's line with the strategy and its settings.
_STRATEGY_LINE = "python.strategy"
# The DistOpt of this process whose run is elastic.
_elastic_one: weakref.ref[DistOpt] | None = None
# SINGA's old names.
_OLD_NAMES = {"plain": "fp32", "half": "fp16"}


def strategies() -> dict[str, Table]:
    """The values of dist_option, with the table of each one's settings."""
    found = {}
    index = 0
    while True:
        definition = lib.strategy_def_get(index)
        if not definition:
            return found
        option = lib.strategy_def_option(definition).decode()
        found[option] = Table(lib.strategy_def_config(definition))
        index += 1


def elastic_one() -> DistOpt | None:
    """The one that dist.elastic is about."""
    return _elastic_one() if _elastic_one else None


class DistOpt(Owner, NotCopied):
    """An optimizer on many workers: gradients are combined before each step.

    opt: the optimizer; nccl_id, local_rank, world_size: the rendezvous id
    (NcclIdHolder) of processes that a program started itself on one host;
    without it, what the launcher says (choirrun, mpiexec), or alone. buffSize
    is SINGA's and has no meaning here. deadline: longest wait in seconds for
    another worker; CHOIR_DEADLINE or 60. silence: longest wait for a sign of life
    of one; as the deadline where it is not given. bucket_bytes: gradients are
    exchanged in buckets of at least so many bytes (1 MiB where it is not given);
    `threshold`, which SINGA has for this in every step, has no meaning here.
    shard: each worker keeps the optimizer's states of a part of the parameters
    alone, and updates that (ZeRO-1): 1 / world_size of their memory, with the
    same bits; get_states, set_states and checkpoints are collective then.
    peer_memory: workers of one host that see each other's memory update a part
    each, for all, in any case; False: they exchange messages.
    micro_shard: on a reproducible device (device.create_cpu_device) gradients are
    sums over micro-shards of so many samples, with the same bits for any number of
    workers (docs/reproducible.md). Each worker's samples begin with one, as a
    Loader(micro_shard=...) of the same size deals them out; the tensors that the
    model is called with have samples as first dimension, and all that is computed
    from them; BatchNorm2d needs sync=True.
    elastic: a worker that is lost does not end the run (docs/elastic.md). The others
    make the step at hand again, as the workers that are left; the launcher's
    `--elastic` starts another, which they take in. It wants a compiled model.Model,
    and Model.follow before the first step; the strategy is chosen before that. After
    a change world_size, global_rank, local_rank, the communicator and choir.dist are
    those of the workers there are now, and `generation` tells. SIGTERM, where the
    program does not handle it, lets a worker leave after the step at hand: its next
    step raises SystemExit(0), and the others go on. With shard another worker keeps a
    second copy of each part, so that the loss of one loses nothing.
    keep_batch: in an elastic run the batch of each worker stays where their number
    changes, in place of the global batch, of the loader that Model.follow names.
    rate_rule: how learning rates follow the global batch then: "none", "linear" or
    "sqrt" (times its ratio to that at the start, or the root of it).

    At the first step the models of all ranks are compared, rank 0's parameters
    are sent to all, and gradients come to lie in memory that the communicator
    allocated. Where they are exchanged by messages, that begins while backward
    goes on.
    """

    _computes = True

    def __init__(
        self,
        opt: Optimizer | None = None,
        nccl_id: NcclIdHolder | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        buffSize: int = 4194304,
        deadline: float | None = None,
        backward_passes_per_step: int = 1,
        bucket_bytes: int | None = None,
        shard: bool = False,
        peer_memory: bool = True,
        micro_shard: int = 0,
        elastic: bool = False,
        silence: float | None = None,
        keep_batch: bool = False,
        rate_rule: str = "none",
    ) -> None:
        self.micro_shard = ranged(micro_shard, "micro_shard", 32)
        self.opt = opt if opt is not None else SGD()
        if not isinstance(self.opt, Optimizer):
            raise TypeError(
                f"DistOpt: opt is a {type(opt).__name__}; an optimizer is needed"
            )
        self.buffSize = buffSize
        if nccl_id is None:
            if local_rank is not None or world_size is not None:
                raise ValueError(
                    "DistOpt: local_rank and world_size go with nccl_id, the "
                    "rendezvous id that singa_wrap.NcclIdHolder() makes; none was "
                    "given"
                )
            self.communicator = (
                _comm.default()
                if deadline is None and silence is None
                else Communicator(deadline=deadline, silence=silence)
            )
        else:
            if local_rank is None or world_size is None:
                raise ValueError(
                    "DistOpt: nccl_id needs local_rank and world_size beside it"
                )
            self.communicator = Communicator(
                local_rank,
                world_size,
                nccl_id,
                buffSize,
                deadline=deadline,
                silence=silence,
            )
        if self.communicator.shares_process():
            sentence = (
                "DistOpt: two ranks are threads of one process, where steps take "
                "turns and would wait for each other; start a process for each"
            )
            lib.comm_abort(self.communicator.handle, sentence.encode())
            raise StateError(sentence)
        self._place()
        settings = {
            "elastic": bool(elastic),
            "keep_batch": bool(keep_batch),
            "rate_rule": rate_rule,
            "backward_passes_per_step": backward_passes_per_step,
            "shard": shard,
            "peer_memory": peer_memory,
        }
        if bucket_bytes is not None:
            settings["bucket_bytes"] = bucket_bytes
        self._config = Table(ctypes.pointer(lib.dist_opt_config_def)).make(
            "DistOpt", **settings
        )
        self.handle: int | None = None
        self._strategy: tuple[str, tuple] = ("fp32", ())
        self._chosen = self._strategy  # by use()
        self.elastic: bool = bool(elastic)
        self.generation = Generation(1, 0, 0, False, 0.0, "")
        # Of an elastic run, which the library has lent: (a loader or None,).
        self._followed: tuple = ()
        if self.elastic:
            global _elastic_one
            _elastic_one = weakref.ref(self)

    def _place(self) -> None:
        self.world_size: int = self.communicator.world_size
        self.local_rank: int = self.communicator.local_rank
        self.global_rank: int = self.communicator.global_rank
        autograd.place.partition = (self.global_rank, self.world_size)

    def _own_handle(self) -> int:
        if self.handle is None:
            if self.communicator.handle is None:
                raise StateError("DistOpt: the communicator has ended")
            with deferred():
                self._own(
                    lib.dist_opt_release,
                    lib.dist_opt_create,
                    self.opt._own_handle(),
                    self.communicator.handle,
                    self._config,
                )
                self._use(*self._strategy)
        return self.handle

    def _updater(self) -> int:
        return lib.dist_opt_updater(self._own_handle())

    # ---- Elastic runs ----

    def _take_generation(self) -> bool:
        """Whether the workers are others than at the last look; then this one's
        place is that among them."""
        if not self.elastic or self.handle is None:
            return False
        now = lib.dist_opt_generation(self.handle).contents
        if now.number == self.generation.number:
            return False
        with deferred():
            self.communicator._become(now.comm)
            self._place()
            self.generation = Generation(
                now.number,
                now.step,
                now.lost,
                now.has_come,
                now.seconds,
                now.text.decode(errors="replace"),
            )
        return True

    def _end_if_left(self) -> None:
        """After a failure: ends the process where SIGTERM has made it leave."""
        if (
            self.elastic
            and self.handle is not None
            and lib.dist_opt_generation(self.handle).contents.has_left
        ):
            self.communicator._forget()
            raise SystemExit(0) from None

    def _has_come(self) -> bool:
        """Whether this worker came to a run under way."""
        self._take_generation()
        return self.generation.has_come

    def _follow(self, engine, loader) -> bool:
        """Whether this worker has come by it."""
        is_first = not self._followed
        with deferred():
            self._take_generation()  # a newcomer was taken in with the engine
            engine.follow(loader)
            self._followed = (loader,)
            self.opt._step = engine.step()
        return is_first and self.generation.has_come

    def recover(self, error: BaseException) -> None:
        """After a CommError of a collective of the program's own: where workers were
        lost, or come, and the others can go on, it makes the change that a training
        step would have made. Else it raises the error, or what went wrong.

        Some may be past that collective, in a later step, which is taken back: all
        go on after the step that `generation` says, and the program sees to what all
        of them do again; dist.elastic.run does it."""
        engine = self.opt._engine
        if not self.elastic or engine is None or not self._is_broken():
            raise error
        with lock, deferred():
            status = engine.recover(error)
            self._take_generation()
            self.opt._step = engine.step()
            try:
                check(status)
            except CommError:
                self._end_if_left()
                raise

    def _is_broken(self) -> bool:
        handle = self.communicator.handle
        fault = lib.comm_poll_error(handle) if handle else None
        lib.status_free(fault)
        return fault is not None

    # What models need of an optimizer.

    @property
    def _schedule(self) -> DecayScheduler:
        return self.opt._schedule

    def _set_lr(self, step: int) -> None:
        self.opt._set_lr(step)

    @staticmethod
    def _config_of(option: str, settings: tuple):
        known = strategies()
        if option not in known:
            raise ValueError(
                f"dist_option is {option!r}; one of {', '.join(known)} (or SINGA's "
                "plain, half) is needed"
            )
        return known[option].make(option, **dict(settings))

    def _use(self, option: str, settings: tuple) -> None:
        option = _OLD_NAMES.get(option, option)
        try:
            config = self._config_of(option, settings)
        except Exception as error:
            # The other ranks may make the change, and would wait for this one.
            if self.handle is not None:
                why = make_status(error)
                lib.status_free(lib.dist_opt_refuse_use(self.handle, why))
            raise
        with deferred():
            if self.handle is not None:
                definition = get(lib.strategy_def_parse, option.encode())
                check(lib.dist_opt_use(self.handle, definition, config))
            self._strategy = (option, settings)

    def use(self, dist_option: str, **settings) -> None:
        """The strategy of calls (`sgd(loss)`) from now on, by its name.

        Collective once training has begun. ValueError lists the known names;
        settings and what they mean: docs/strategies.md.
        """
        self._use(dist_option, tuple(sorted(settings.items())))
        self._chosen = self._strategy

    @property
    def strategy(self) -> str:
        """The strategy in use with its settings, in words."""
        text = ctypes.create_string_buffer(512)
        lib.dist_opt_print_strategy(self._own_handle(), text, 512)
        return text.value.decode()

    def consolidate(self) -> None:
        """Collective: makes all replicas equal, for strategies that let them
        differ between exchanges (partialUpdate, localSGD, sparseLocal)."""
        check(lib.updater_consolidate(self._updater()))

    def _before_save(self) -> dict[str, str]:
        """Makes replicas equal where they may differ; lines for the file."""
        if lib.dist_opt_ranks_differ(self._own_handle()):
            self.consolidate()
        return {_STRATEGY_LINE: json.dumps(self._strategy)}

    def _before_load(self, fpath: str) -> None:
        """Collective: the strategy that rank 0's file was saved with."""
        strategy = _checkpoint.line(fpath, _STRATEGY_LINE, self)
        if strategy is not None:
            option, settings = json.loads(strategy)
            self._use(option, tuple(map(tuple, settings)))

    def check_digest(self, digest: int) -> None:
        """Collective: raises on every rank unless all give the same digest."""
        check(lib.dist_opt_check_digest(self._own_handle(), digest))

    # ---- Training steps ----

    def __call__(self, loss: Tensor) -> None:
        """A step by the strategy that `use` chose, fp32 before."""
        option, settings = self._chosen
        self._step(loss, option, dict(settings))

    def _step(self, loss: Tensor, option: str, settings: dict) -> None:
        if self.opt._in_python:
            raise NotImplementedError(
                f"DistOpt: {type(self.opt).__name__} updates parameters in Python, "
                "and the steps of DistOpt are the C library's; loop over "
                "autograd.backward instead, with all_reduce(grad.data), wait() and "
                "update(param, grad) for each parameter, and step() at the end"
            )
        if here.is_taken_back:
            return
        wanted = (option, tuple(sorted(settings.items())))
        if here.engine is None:
            if self.elastic:
                raise NotImplementedError(
                    "DistOpt: elastic runs are steps of a compiled model.Model that "
                    "call the optimizer with the loss in train_one_batch"
                )
            if wanted != self._strategy:
                self._use(*wanted)
            self.opt._train_alone(
                loss, self._updater, self.global_rank, self.world_size
            )
            return
        if wanted != self._strategy:
            self._config_of(*wanted)  # a wrong one ends the step for all ranks
            _engine.retract()
            raise StrategyChange(option, dict(wanted[1]))
        here.engine.backward_and_update(loss)
        self.opt._step = here.engine.step()

    def backward_and_update(
        self, loss: Tensor, threshold: int | None = None
    ) -> None:
        """A step with gradients averaged over ranks in float32."""
        self._step(loss, "fp32", {})

    def backward_and_update_half(
        self,
        loss: Tensor,
        threshold: int | None = None,
        clipping: bool = False,
        clip_Value: float = 100,
    ) -> None:
        """The same with float16 on the way. clipping: each rank's gradients are
        first limited to [-clip_Value, clip_Value]."""
        settings = {"clip": float(clip_Value)} if clipping else {}
        self._step(loss, "fp16", settings)

    def backward_and_partial_update(
        self, loss: Tensor, threshold: int | None = None
    ) -> None:
        """A step with own gradients; then one chunk of the parameters, in turn,
        is averaged over ranks. threshold: elements of a chunk."""
        settings = {} if threshold is None else {"chunk": int(threshold)}
        self._step(loss, "partialUpdate", settings)

    def backward_and_sparse_update(
        self,
        loss: Tensor,
        threshold: int | None = None,
        spars: float = 0.05,
        topK: bool = False,
        corr: bool = True,
    ) -> None:
        """A step with a part of each gradient: with topK the share `spars` of
        elements that are largest, else those of magnitude `spars` or more. corr:
        what is not sent is added to the next step's gradients."""
        option = "sparseTopK" if topK else "sparseThreshold"
        settings = {"spars": float(spars), "feedback": bool(corr)}
        self._step(loss, option, settings)

    def step_with(
        self, loss: Tensor, dist_option: str, spars: float = 0.0
    ) -> None:
        """A step by a strategy's name: any of docs/strategies.md."""
        option = _OLD_NAMES.get(dist_option, dist_option)
        settings = {"spars": float(spars)} if spars else {}
        self._step(loss, option, settings)

    # ---- Primitives ----

    def all_reduce(self, tensor: CTensor) -> None:
        """Sums a raw tensor (`t.data`) over ranks, in place."""
        self.communicator.synch(_raw_of(tensor))

    def fused_all_reduce(self, tensor, send: bool = True) -> None:
        """The same for a list as one exchange; send False keeps them for it."""
        self.communicator.fusedSynch(_raws_of(tensor), send)

    def all_reduce_half(self, tensor: CTensor) -> None:
        """The same with float16 on the way."""
        self.communicator.synchHalf(_raw_of(tensor))

    def fused_all_reduce_half(self, tensor, send: bool = True) -> None:
        """The same for a list."""
        self.communicator.fusedSynchHalf(_raws_of(tensor), send)

    def sparsification(
        self, tensor, accumulation, spars: float, topK: bool
    ) -> None:
        """Replaces a tensor by the sum over ranks of its chosen elements.

        With an accumulation (a raw tensor, or None) that is added first, and
        takes what was not sent."""
        rest = None if accumulation is None else _raw_of(accumulation)
        self.communicator.sparsification(_raw_of(tensor), rest, spars, topK)

    def fused_sparsification(
        self, tensor, accumulation, spars: float, topK: bool
    ):
        """The same over all elements of a list."""
        rest = None if accumulation is None else _raw_of(accumulation)
        self.communicator.fusedSparsification(
            _raws_of(tensor), rest, spars, topK
        )

    def wait(self) -> None:
        """All exchanges so far are done when it returns."""
        self.communicator.wait()

    def update(self, param: Tensor, grad) -> None:
        """grad /= world_size, then the optimizer's update."""
        if isinstance(grad, CTensor):
            grad = Tensor._of(grad)
        grad /= float(self.world_size)
        self.opt.update(param, grad)

    def step(self) -> None:
        """Counts a step of the optimizer."""
        self.opt.step()

    def get_states(self) -> dict:
        """The optimizer's, whole. With shard=True collective."""
        return self.opt.get_states()

    def set_states(self, states: dict) -> None:
        """The optimizer's, whole: collective once training has begun, with the
        same states on all ranks, of which each may keep a part."""
        self.opt.set_states(states)
        if self.handle is not None:
            self.communicator.barrier("set_states")

    def __repr__(self) -> str:
        return (
            f"DistOpt({self.opt!r}, rank {self.global_rank} of {self.world_size}, "
            f"{self._strategy[0]})"
        )


def _raw_of(value) -> CTensor:
    return value.data if isinstance(value, Tensor) else value


def _raws_of(values):
    # A generator: what is no tensor fails when the communicator reads it, in
    # `preparing`, which tells the other ranks.
    for value in values:
        yield _raw_of(value)
