# SPDX-License-Identifier: Apache-2.0
"""Training steps: the C library's model around Python's functions.

An Engine is a choir_model_t without layers: its parameters are Tensors, its
train_one_batch calls back into Python. So everything that a C model has, a
Python one has too: graphs that are recorded and replayed, gradients written
into the communicator's buckets, strategies, step counts, the same bits.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p
from functools import partial

from choir import _raw, _sync_norm, _tape, autograd
from choir._callback import Callback, finish, forgive
from choir._here import here
from choir._calls import (
    NotCopied,
    Owner,
    StateError,
    check,
    get,
    lib,
    make_status,
    ranged,
)
from choir._lib import (
    ModelBatch,
    ModelCallbacks,
    ModelDef,
    NamedTensor,
    PrecisionChoice,
)
from choir._sections import deferred, lock, locked, with_handlers
from choir.tensor import Constants, Tensor


MAX_TENSORS = ModelBatch.inputs.size // ctypes.sizeof(c_void_p)


def retract() -> None:
    """The step that runs is given up, on all ranks alike, to be run again."""
    lib.model_retract_step(here.engine._handle)


class Engine(Owner, NotCopied):
    """Parameters and an updater, trained step by step."""

    def __init__(
        self,
        name: str,
        device,
        params,
        states,
        updater: int,
        seed: int | None = None,
        sync_norms=(),
    ) -> None:
        """params, states: names and Tensors, trained and not, in order. seed: of
        dropout, the device's unless given. sync_norms: layers of batch norm over
        all ranks, one for each use in forward, in order.

        Where the updater belongs to a DistOpt this is collective: the models of
        all ranks are compared and rank 0's values sent to all.
        """
        self.device = device
        self.seed: int = device.seed if seed is None else seed
        self._handle: int | None = None
        self._tensors = list(params) + list(states)
        self._trained = len(params)
        self._params: dict[int, int] = {}  # id(Tensor): choir_param_t*
        self._frozen: list = []  # (choir_param_t*, Tensor): may be frozen later
        # The library keeps pointers to their names.
        self._sync_norms = [
            (norm, _sync_norm.struct(norm)) for norm in sync_norms
        ]
        self._body = None
        self._scope: int | None = None
        self._model: int | None = None
        self.owner = None  # a weak reference to the Model that it trains
        self.has_updater = False
        self._loss_var: int | None = None
        self._tape: _tape.Tape | None = None  # of the step that runs
        self._one: _raw.CTensor | None = None  # in place of a batch
        self._samples: set[int] = set()  # ids of the step's inputs
        self._constants = Constants()
        # How steps run from the second one on. The first is eager, also in a run
        # that goes on: it makes the constants that a graph cannot make.
        self._graph: tuple[bool, bool] | None = (False, False)
        self.recorded = False  # the last step called back
        # Steps without an update are an error: other ranks would wait.
        self.must_update = False
        self._rehearses = False
        # The library keeps pointers to these three. Not to this engine's
        # methods: nothing may wait for the garbage collector.
        this = weakref.ref(self)
        self._define = Callback(lambda a: this()._on_define(a[0]))
        self._train = Callback(lambda a: this()._on_train(a[1], a[4]))
        self._calls = ModelCallbacks(self._define.struct, self._train.struct)
        self._def = ModelDef.from_buffer_copy(lib.model_def_callbacks)
        self._def.name = name.encode()
        with lock, deferred():
            self._make(device, updater)

    def _make(self, device, updater: int) -> None:
        out = c_void_p()
        status = lib.model_create(
            device.handle,
            byref(self._def),
            byref(self._calls),
            self.seed,
            byref(out),
        )
        self._handle = out.value
        self._release = locked(partial(lib.model_release, out.value))
        finish(status, self._define)
        check(lib.model_compile(self._handle, None, 0))
        check(lib.model_set_updater(self._handle, updater))
        self.has_updater = True
        # A parameter group may have frozen some.
        for param, tensor in self._frozen:
            if not param.contents.trainable:
                tensor.stores_grad = False

    def follow(self, loader) -> None:
        """The loader that goes where an elastic run goes; None: none."""
        handle = None if loader is None else loader.handle
        check(lib.training_follow(self._handle, handle))

    def recover(self, error: BaseException) -> int | None:
        """After a failure of a collective: a status, None where the ranks that are
        left go on (choir_training_recover)."""
        return lib.training_recover(self._handle, make_status(error))

    def detach(self) -> None:
        """Of the updater, which may go to another engine now."""
        self.has_updater = False
        check(lib.model_set_updater(self._handle, None))

    # ---- Callbacks ----

    def _on_define(self, model: int) -> None:
        self._model = model
        for i, (name, tensor) in enumerate(self._tensors):
            param = lib.model_add_param(
                model, name.encode(), tensor.data.handle, i < self._trained
            )
            if not param:
                return
            self._params[id(tensor)] = param
            if i < self._trained:
                self._frozen.append((param, tensor))
        for _, norm in self._sync_norms:
            check(lib.model_add_sync_batch_norm(model, byref(norm)))

    def sync_norm(self, layer):
        """What the library was told of it."""
        for norm, struct in self._sync_norms:
            if norm is layer:
                return struct
        raise StateError(
            f"{layer.name}: sync=True, and compile did not run it; "
            "forward must use every such layer"
        )

    def _on_train(self, scope: int, out_loss: int) -> None:
        self._scope = scope
        self._loss_var = None
        self.recorded = True
        here.engine = self
        here.model_step = autograd._Scope(
            scope, self._constants, self._rehearses
        )
        here.training = True
        if self._rehearses:
            code = lib.model_precision(self._model)
            here.precision = None if code == _raw.F32 else code
        with_handlers(self._body)
        if self._loss_var is None and self.must_update:
            raise StateError(
                "train_one_batch did not update: call the optimizer with the "
                "loss (self.optimizer(loss)) in it; other ranks wait for it"
            )
        here.model_step.updated()
        c_void_p.from_address(out_loss).value = self._loss_var

    # ---- A step ----

    def train(
        self,
        body,
        inputs: Sequence[Tensor] = (),
        first_sample: int = 0,
        sample_count: int = 1,
        global_count: int = 1,
        variant: int = 0,
        number: int = 0,
        micro_shard: int = 0,
    ) -> None:
        """One training step: `body` runs forward and calls an optimizer.

        In graph mode a step like an earlier one is replayed without it: of the same
        shapes of `inputs` and the same `variant`, a number for each way in which `body` can go.
        number: which batch of the run it is, above 0, which ranks compare; 0: not
        told. micro_shard: see DistOpt. To be called in a section; `body` runs outside of it. When it raises,
        step() tells whether the step was made.
        """
        batch = self._batch(
            inputs, first_sample, sample_count, global_count, variant, number,
            micro_shard,
        )  # fmt: skip
        self._samples = {id(x) for x in inputs}
        status, callbacks = self._call(body, lib.model_train_one_batch, batch)
        if not status:
            forgive(*callbacks)  # of a step that was taken back
        is_done = self.recorded and (self.has_updated() or not status)
        if self.recorded:
            self._constants.end_step(is_done)
        if self._graph is not None and is_done:
            graph, self._graph = self._graph, None
            self.set_graph(*graph)
        finish(status, *callbacks)
        self.device._end_step(self.step())

    def has_updated(self) -> bool:
        """Whether the last step that called back came to an update."""
        return self._loss_var is not None

    def choose_precision(
        self, body, inputs, first_sample, sample_count, global_count, graph
    ) -> int:
        """The dtype in which forward and backward of a step are quicker here.

        As train, but nothing is left of the steps, in which `body` runs as often as
        it would be asked. graph: (use_graph, sequential) of the steps to come.
        """
        batch = self._batch(inputs, first_sample, sample_count, global_count)
        choice = PrecisionChoice()
        self._rehearses = True
        try:
            # The first time makes the constants that a graph cannot make.
            for way in ((False, False), graph) if graph[0] else (graph,):
                lib.model_set_graph(self._handle, *way)
                status, callbacks = self._call(
                    body, lib.model_choose_precision, batch, byref(choice)
                )
                finish(status, *callbacks)
        finally:
            self._rehearses = False
            self._constants.end_step(True)
            now = (False, False) if self._graph is not None else graph
            lib.model_set_graph(self._handle, *now)
        return choice.dtype

    def _batch(
        self,
        inputs,
        first_sample,
        sample_count,
        global_count,
        variant=0,
        number=0,
        micro_shard=0,
    ) -> ModelBatch:
        raws = [x.data for x in inputs]
        if not raws:
            if self._one is None:
                self._one = _raw.empty(self.device, (1,))
            raws = [self._one]
        return ModelBatch(
            (c_void_p * MAX_TENSORS)(*(raw.handle for raw in raws)),
            (c_void_p * MAX_TENSORS)(),
            first_sample,
            sample_count,
            global_count,
            variant,
            number,
            micro_shard,
        )

    def _call(self, body, function, batch, *more):
        """What the function returned, and the callbacks in it."""
        for param, tensor in self._frozen:
            param.contents.trainable = tensor.stores_grad
        self._body = body
        self.recorded = False
        before = here.engine, here.model_step, here.training
        try:
            status = function(self._handle, byref(batch), *more)
        finally:
            # Not by the callback, which can be left at any place.
            here.engine, here.model_step, here.training = before
            self._scope = self._body = None
            tape, self._tape = self._tape, None
        return status, (*(tape.callbacks if tape else ()), self._train)

    def backward_and_update(self, loss: Tensor) -> None:
        """In a step: gradients of the loss, exchanged and applied."""
        if loss.size() != 1:
            raise ValueError(
                f"the loss has shape {loss.shape}; one element is needed"
            )
        scope = self._scope

        def leaf(tensor: Tensor) -> int:
            param = self._params.get(id(tensor))
            if param is None:
                if tensor.stores_grad and tensor.requires_grad:
                    raise StateError(
                        f"parameter {tensor.name} of shape {tensor.shape} is not "
                        "one that this model was compiled with"
                    )
                if id(tensor) in self._samples:
                    return lib.scope_samples(scope, tensor.data.handle)
                return lib.scope_input(scope, tensor.data.handle)
            if param.contents.value != tensor.data.handle:
                raise StateError(
                    f"parameter {tensor.name} has another raw tensor than when "
                    "training began; set its elements with copy_from instead"
                )
            return lib.scope_param(scope, param)

        with deferred():
            self._tape = _tape.Tape(scope, leaf)
            var = self._tape.record(loss)
            self._loss_var = var
            lib.model_backward_and_update(self._model, scope, var)
            here.model_step.updated()

    # ---- The rest of a model ----

    def set_graph(self, use_graph: bool, sequential: bool) -> None:
        if self._graph is not None:
            self._graph = use_graph, sequential
        else:
            lib.model_set_graph(self._handle, use_graph, sequential)

    def set_loss_check(self, checks: bool) -> None:
        check(lib.model_set_loss_check(self._handle, checks))

    def step(self) -> int:
        """Training steps done."""
        return lib.model_step(self._handle)

    def last_graph(self) -> int:
        """Which graph the last step recorded or replayed; 0: none."""
        return lib.model_last_graph(self._handle)

    def set_step(self, step: int) -> None:
        lib.model_set_step(self._handle, ranged(step, "the step"))

    def digest(self) -> int:
        """64 bits over parameters and states."""
        out = c_uint64()
        check(lib.model_digest(self._handle, byref(out)))
        return out.value

    def print_graphs(self) -> str:
        """What was recorded: records, lifetimes, layouts and bytes."""
        out = c_void_p()
        check(lib.model_print_graphs(self._handle, byref(out)))
        text = ctypes.string_at(out.value).decode()
        _free(out)
        return text

    def _named(self) -> list[NamedTensor]:
        count = lib.model_states(self._handle, None)
        named = (NamedTensor * max(count, 1))()
        lib.model_states(self._handle, named)
        return list(named)[:count]

    def states(self) -> dict[str, Tensor]:
        """Parameters, states and the updater's states, by name.

        Of a state that this rank keeps a shard of, a copy of the whole, which
        with DistOpt(shard=True) is collective; `put` takes it back."""
        updater = lib.model_updater(self._handle)
        states = {}
        for named in self._named():
            handle = named.tensor
            if named.shard:
                handle = get(lib.updater_gather, updater, byref(named), -1)
            raw = _raw.CTensor.borrow(handle, self.device)
            if named.shard:
                lib.tensor_release(handle)
            states[named.name.decode()] = Tensor._of(raw)
        return states

    def put(self, states: dict[str, Tensor]) -> None:
        """After elements of tensors from states() were set: this rank's shards
        of them too."""
        for named in self._named():
            whole = states.get(named.name.decode()) if named.shard else None
            if whole is not None:
                check(lib.named_tensor_take(byref(named), whole.data.handle))


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [c_void_p]
_libc.free.restype = None


def _free(memory: c_void_p) -> None:
    _libc.free(memory)


def behind(loss: Tensor) -> list[Tensor]:
    """The parameters that a loss depends on, in the order of their first use."""
    found: dict[int, Tensor] = {}
    for node in _tape.behind(loss):
        for x in map(_tape.inner, node.src):
            if x.creator is None and x.stores_grad:
                found.setdefault(id(x), x)
    return list(found.values())
