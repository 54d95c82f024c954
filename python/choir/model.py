# SPDX-License-Identifier: Apache-2.0
"""Models: layers, what forward does with them, and a training step.

    class CNN(model.Model):
        def __init__(self):
            super().__init__()
            self.conv1 = layer.Conv2d(20, 5, activation="RELU")
            ...
        def forward(self, x): ...
        def train_one_batch(self, x, y):
            out = self.forward(x)
            loss = self.softmax_cross_entropy(out, y)
            self.optimizer(loss)
            return out, loss

    m = CNN()
    m.set_optimizer(opt.SGD(lr=0.005))
    m.compile([tx], is_train=True, use_graph=True)
    out, loss = m(tx, ty)

In graph mode a step of a new kind (shapes, other arguments, way to share gradients)
is recorded, and runs when train_one_batch has returned. From the second step on steps
of that kind are replayed, without Python: the results are the same Tensors each time,
with new elements.
"""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import warnings
import weakref
import zipfile
from collections import OrderedDict

import numpy as np

from choir import _checkpoint, _engine, _raw, autograd, layer, tensor
from choir import opt as _opt
from choir._dist_opt import StrategyChange, WorkersChanged
from choir._here import here
from choir._kv_cache import KVCache
from choir._calls import CommError, StateError, lib
from choir._sections import deferred, lock, with_handlers
from choir.autograd import ManualStep
from choir.tensor import Tensor

_AUTO = "auto"
# Of models, by the names that checkpoints have.
_PRECISIONS = {
    lib.dtype_name(code).decode(): code
    for code in (_raw.F32, _raw.BF16, _raw.F16)
}

# More than the C library keeps.
_KEPT_RESULTS = 16
_KEPT_KINDS = 256


class ModelMeta(layer.LayerMeta):
    """Makes `train_one_batch` a training step of the C library."""

    @staticmethod
    def buffer_operation(func):
        @functools.wraps(func)
        def wrapper(self, *args, **kwargs):
            return self._mixed(self._train, func, args, kwargs)

        return wrapper

    def __new__(mcs, name, bases, attr):
        if "train_one_batch" in attr and bases != (layer.Layer,):
            attr["train_one_batch"] = mcs.buffer_operation(
                attr["train_one_batch"]
            )
        return super().__new__(mcs, name, bases, attr)


class Model(layer.Layer, metaclass=ModelMeta):
    """The base class of models: define `forward` and `train_one_batch`."""

    TENSOR_DICT_FILENAME = "/tensor_dict.npz"
    STATES_ATTR_FILENAME = "/states_attr.json"
    MODEL_STATE_TYPE = 0
    AUX_STATE_TYPE = 1
    _warned = frozenset()  # of what, once

    def __init__(self) -> None:
        super().__init__()

    def _setup(self) -> None:
        if "_layers" in self.__dict__:
            return
        super()._setup()
        self.__dict__.update(
            training=True,
            graph_mode=True,
            sequential=False,
            optimizer=None,
            _precision=None,
            _checks_loss=False,
            _compiled=False,
            _sync_norms=(),  # of one use each, in the order of forward
            _is_manual=False,
            _seed=None,  # of the next engine; None: the device's
            **_of_this_process(),
        )

    def __getstate__(self) -> dict:
        """For pickle and copy: parameters, states, the optimizer with its own and
        the steps done; not what the library has for its steps. A DistOpt belongs
        to its process: the copy has no optimizer then."""
        state = super().__getstate__()
        if self._engine_made is not None:
            state["_seed"] = self._engine_made.seed
        if isinstance(self.optimizer, _opt.DistOpt):
            state["optimizer"] = None
        state.update(_of_this_process())
        return state

    # ---- What users call ----

    def compile(
        self,
        inputs,
        is_train: bool = True,
        use_graph: bool = False,
        sequential: bool = False,
        precision=None,
    ) -> None:
        """Runs forward once, so that every layer makes its parameters.

        inputs: a list of what forward takes: Tensors, and lists, tuples and
        dictionaries of them; the batch may differ later. use_graph: record steps and replay them; sequential: one by one,
        as they were written, else neighbours may become one. precision: see
        set_precision.
        """
        if precision is not None:
            self.set_precision(precision)
        if isinstance(inputs, Tensor):
            inputs = [inputs]
        for x in _leaves(inputs):
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"compile: an input is a {type(x).__name__}; Tensors, or lists, "
                    "tuples and dictionaries of them, are needed"
                )
        before, here.sync_norms = here.sync_norms, []
        try:
            with autograd.no_grad():
                self.forward(*inputs)
            object.__setattr__(self, "_sync_norms", tuple(here.sync_norms))
        finally:
            here.sync_norms = before
        self._compiled = True
        self.graph(use_graph, sequential)
        self.train(is_train)

    def forward(self, *input):
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def train_one_batch(self, *input, **kwargs):
        """Defined by users: forward, loss, one call of the optimizer."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no train_one_batch"
        )

    def __call__(self, *input, **kwargs):
        """train_one_batch in training mode, else forward. Before compile it runs
        as it is written, and layers make their parameters."""
        autograd.training = self.training
        if self.training:
            return self.train_one_batch(*input, **kwargs)
        return self._mixed(self.forward, *input, **kwargs)

    def predict_next(self, x: Tensor, cache: KVCache) -> Tensor:
        """forward, in inference mode, of the places that follow those in the cache:
        of x (samples, t, ...) t places. The result has rows of these alone, and the
        cache holds them afterwards. It is what forward gives at these places for the
        whole, up to rounding.

        ValueError: another model's cache, another number of samples than it is for,
        or more places than it has room for. StateError: a layer that is not known to
        keep places apart, or attention that is not causal, has a mask or has other
        keys than its own input. What forward does by functions of autograd cannot be
        checked: it must keep places apart too. After a failure the cache holds what
        it held."""
        if cache.model is not self:
            raise ValueError("predict_next: the cache is another model's")
        with autograd.no_grad(), cache._coming(x):
            return self._mixed(self.forward, x)

    def train(self, mode: bool = True) -> None:
        """Training mode from now on, here and in autograd."""
        object.__setattr__(self, "training", mode)
        autograd.training = mode

    def eval(self) -> None:
        """Inference from now on."""
        self.train(False)

    def graph(self, mode: bool = True, sequential: bool = False) -> None:
        """Graph mode from now on, or not."""
        object.__setattr__(self, "graph_mode", mode)
        object.__setattr__(self, "sequential", sequential)
        with deferred():
            self._results.clear()
            if self._engine_made is not None:
                self._engine_made.set_graph(mode, sequential)

    def set_precision(self, precision) -> None:
        """Mixed precision, when the model is called from now on.

        "bfloat16": products (linear, matmul, conv2d) have factors and results of 16
        bits, summed in float32, and what comes behind them stays so: activations and
        their gradients. Parameters, their gradients, optimizer states, losses and
        what a call returns are float32. "float16": products alone, and their
        gradients are scaled into its range, so that no loss needs scaling.
        "float32": off. Also as tensor.bfloat16 and so on.

        "auto": the quicker one of float32 and bfloat16 on this machine, rank 0's for
        all. The next training step measures it by its batch, for which
        train_one_batch is called a few times more, and nothing is left of that;
        until then it is float32. load_checkpoint takes the one that was saved.
        """
        if precision == _AUTO:
            object.__setattr__(self, "_precision", _AUTO)
            return
        code = tensor._code(precision)
        if code not in _PRECISIONS.values():
            raise ValueError(
                f"set_precision: {precision!r}; float32, bfloat16, float16 or "
                "auto is needed"
            )
        self._take_precision(code)

    def _take_precision(self, code: int) -> None:
        object.__setattr__(
            self, "_precision", None if code == _raw.F32 else code
        )

    def check_loss(self, mode: bool = True) -> None:
        """From now on a training step whose loss is not finite raises StateError
        before it updates anything, and names what was first not finite: an input, a
        parameter, or what an op of forward made (train_one_batch is called once more
        to find it). Not on a GPU."""
        object.__setattr__(self, "_checks_loss", mode)
        with deferred():
            self._results.clear()
            if self._engine_made is not None:
                self._engine_made.set_loss_check(mode)

    def get_precision(self) -> str:
        """'float32', 'bfloat16' or 'float16'; 'auto': not measured yet."""
        if self._precision == _AUTO:
            return _AUTO
        return tensor._NAMES[tensor._DTYPES[self._precision_code()]]

    def _precision_code(self) -> int:
        """The library's dtype of its precision."""
        return _raw.F32 if self._precision is None else self._precision

    def _mixed(self, function, *args, **kwargs):
        """Calls it in the model's precision."""
        before = here.precision
        here.precision = None if self._precision == _AUTO else self._precision
        try:
            return _widened(function(*args, **kwargs))
        finally:
            here.precision = before

    def set_optimizer(self, optimizer) -> None:
        """The optimizer, or DistOpt, that `self.optimizer` is in
        train_one_batch."""
        object.__setattr__(self, "optimizer", optimizer)

    def follow(self, loader) -> None:
        """For an elastic run (DistOpt(elastic=True)), once, after compile and
        set_optimizer and before the loop over the loader of the training samples;
        with other optimizers it does nothing.

            m.follow(loader)
            while loader.position[0] < epochs:
                for x, y in loader:
                    out, loss = m(x, y)

        Collective; a worker that comes to a run under way is taken in here, and gets
        parameters, states and the loader's place from the others. When workers are
        lost or come, the step at hand is taken back: m(x, y) makes the change, and
        returns what train_one_batch gives in inference mode with an optimizer that
        does nothing. The step is not counted; the loader hands it out again, with
        the shares of the workers that there are then. In sums over steps leave such
        results out: the optimizer's `generation` is another then.

        loader: a data.Loader, which stays in the library's hands. Its global batch at
        the start of the run stays, or with DistOpt(keep_batch=True) the batch of each
        worker. None: the program deals out the samples itself, by
        sgd.opt.step_counter, sgd.global_rank and sgd.world_size.
        A checkpoint is loaded before; a newcomer's load_checkpoint reads nothing.
        """
        optimizer = self.optimizer
        if not getattr(optimizer, "elastic", False):
            return
        if self._precision == _AUTO:
            raise StateError(
                'follow: elastic runs do not measure precision="auto"; set another'
            )
        with lock, deferred():
            has_come = optimizer._follow(self._engine(), loader)
        if has_come and here.raises_changes:
            raise WorkersChanged(optimizer.generation.text)

    def __get_name__(self) -> str:
        return type(self).__name__

    # ---- A training step ----

    def _engine(self) -> _engine.Engine:
        """Made at the first step; collective with DistOpt."""
        optimizer = self.optimizer
        if self._is_manual or _core(optimizer)._in_python:
            raise StateError(
                f"{type(self).__name__}: checkpoints hold the states of an optimizer "
                "that train_one_batch calls with the loss; of one that is used "
                "parameter by parameter, save get_states() yourself"
            )
        if (
            self._engine_made is None
            or not self._engine_made.has_updater
            or self._engine_optimizer is not optimizer
        ):
            params = self.get_params()
            if not params:
                raise StateError(
                    f"{type(self).__name__} has no parameters yet; call compile first"
                )
            states = {
                n: t for n, t in self.get_states().items() if n not in params
            }
            core = _core(optimizer)
            goes_on = core._trained_alone(params.values())
            so_far = core.get_states() if goes_on else {}
            core._detach(self)
            engine = _engine.Engine(
                type(self).__name__,
                next(iter(params.values())).device,
                list(params.items()),
                list(states.items()),
                optimizer._updater(),
                self._seed,
                self._sync_norms,
            )
            object.__setattr__(self, "_seed", None)
            engine.set_graph(self.graph_mode, self.sequential)
            engine.set_loss_check(self._checks_loss)
            engine.must_update = isinstance(optimizer, _opt.DistOpt)
            engine.owner = weakref.ref(self)
            object.__setattr__(self, "_engine_made", engine)
            object.__setattr__(self, "_engine_optimizer", optimizer)
            core._attach(engine)
            if so_far:
                core.set_states(so_far)
        return self._engine_made

    def _trains_with(self, core) -> bool:
        """Whether its steps need this optimizer where it is."""
        return (
            self._engine_made is core._engine and _core(self.optimizer) is core
        )

    def _train(self, func, args, kwargs):
        if here.engine is not None:
            return func(self, *args, **kwargs)
        if self._is_manual:
            return self._train_plainly(func, args, kwargs)
        optimizer = self.optimizer
        if optimizer is None:
            return self._train_without(func, args, kwargs)
        is_known = isinstance(optimizer, (_opt.Optimizer, _opt.DistOpt))
        if is_known and _core(optimizer)._in_python:
            if self._compiled and self.graph_mode:
                name = type(_core(optimizer)).__name__
                self._warn_once(
                    f"{name} updates parameters in Python, so steps with it run "
                    "without graph mode"
                )
            return self._train_plainly(func, args, kwargs)
        is_done = False
        if is_known and self._compiled:
            # What is kept of a step here goes with what the library did in it.
            with lock, deferred():
                is_done, result = self._train_whole(
                    optimizer, func, args, kwargs
                )
        return result if is_done else self._train_plainly(func, args, kwargs)

    def _train_plainly(self, func, args, kwargs):
        """A step that is none of the library's."""
        if self._precision == _AUTO:
            raise StateError(
                f'{type(self).__name__}: precision "auto" is measured in steps of a '
                "compiled model that call its optimizer with the loss "
                "(self.optimizer(loss)); set another one for this"
            )
        return func(self, *args, **kwargs)

    def _train_whole(self, optimizer, func, args, kwargs):
        """(True, what func gave); (False, None): it turned out to be none of the
        library's steps, and nothing was done."""
        if getattr(optimizer, "elastic", False) and not optimizer._followed:
            raise StateError(
                f"{type(self).__name__}: an elastic run needs model.follow(loader), or "
                "follow(None), before its first step: a worker that comes to it is "
                "taken in there"
            )
        engine = self._engine()
        optimizer._set_lr(engine.step())
        try:
            if self._precision == _AUTO:
                self._in_its_way(
                    optimizer, self._choose_precision, func, args, kwargs
                )
            inputs, *_ = self._batch(args, kwargs)
            key = _key(args, kwargs, inputs)
            # A step that calls the optimizer plainly goes by what use() chose.
            key += (getattr(optimizer, "_chosen", None), self._precision)
            way = self._ways.get(key)
            if way is not None and way != optimizer_way(optimizer):
                optimizer._use(*way)
            result = self._in_its_way(
                optimizer, self._step, func, args, kwargs, key
            )
        except ManualStep:
            if getattr(optimizer, "elastic", False):
                raise NotImplementedError(
                    "elastic runs need steps that call the optimizer with the loss; "
                    "train_one_batch calls autograd.backward"
                ) from None
            self._use_manual_steps()
            return False, None
        finally:
            # Also of a step that raised behind the optimizer's call.
            _core(optimizer)._step = engine.step()
        self._ways[key] = optimizer_way(optimizer)
        return True, result

    def _in_its_way(self, optimizer, step, *args):
        """step(engine, ...), which tells if it shares gradients in another way."""
        engine = self._engine_made
        try:
            return step(engine, *args)
        except StrategyChange as change:
            optimizer._use(
                change.option, tuple(sorted(change.settings.items()))
            )
            return step(engine, *args)

    def _choose_precision(self, engine, func, args, kwargs) -> None:
        inputs, first, n, total, _ = self._batch(args, kwargs)
        code = engine.choose_precision(
            lambda: func(self, *args, **kwargs),
            *(inputs, first, n, total),
            (self.graph_mode, self.sequential),
        )
        self._results.clear()
        if isinstance(self.optimizer, _opt.DistOpt):
            code = self.optimizer.communicator.share_object(
                int(code), 0, "precision"
            )
        self._take_precision(code)
        here.precision = self._precision

    def _train_without(self, func, args, kwargs):
        """Without an optimizer; one that train_one_batch misses is named."""
        try:
            return self._train_plainly(func, args, kwargs)
        except (AttributeError, TypeError) as error:
            if "NoneType" not in str(error):
                raise
            raise StateError(
                f"{type(self).__name__} has no optimizer: call "
                "model.set_optimizer(opt.SGD(...)) first"
            ) from error

    def _warn_once(self, text: str) -> None:
        """At the line of the program that called the model; each text once."""
        if text in self._warned:
            return
        object.__setattr__(self, "_warned", self._warned | {text})
        level, frame = 1, sys._getframe()
        while frame.f_back and frame.f_globals["__name__"].startswith("choir."):
            level, frame = level + 1, frame.f_back
        warnings.warn(f"{type(self).__name__}: {text}", stacklevel=level)

    def _use_manual_steps(self) -> None:
        """train_one_batch loops over autograd.backward: from now on its steps
        run as they are written, outside of the C library's model."""
        if self.graph_mode:
            self._warn_once(
                "train_one_batch calls autograd.backward itself, so its steps run "
                "without graph mode; self.optimizer(loss) can be recorded"
            )
        core = _core(self.optimizer)
        core._detach(self)
        core._engine = None
        object.__setattr__(self, "_engine_made", None)
        object.__setattr__(self, "_is_manual", True)
        object.__setattr__(self, "graph_mode", False)

    def _batch(self, args, kwargs):
        """What the C library takes of a step's arguments: the tensors as inputs,
        if they are a batch, and its place among all samples."""
        tensors = list(_flat(args, kwargs))[: _engine.MAX_TENSORS]
        x = tensors[0] if tensors else None
        rank, size = 0, 1
        optimizer = self.optimizer
        if isinstance(optimizer, _opt.DistOpt):
            rank, size = optimizer.global_rank, optimizer.world_size
        n = x.shape[0] if x is not None and x.shape else 1
        batch = getattr(x, "batch", None)
        if batch is not None:
            first, n, total, number = batch
            if getattr(optimizer, "micro_shard", 0):
                first = getattr(x, "first_in_step", first)
        else:
            first, total, number = rank * n, size * n, 0
        if x is None or x.ndim() == 0 or x.shape[0] != n:
            return (
                [],
                first,
                n if n == 0 else 1,
                total if n == 0 else size,
                number,
            )
        return tensors, first, n, total, number

    def _step(self, engine, func, args, kwargs, key):
        inputs, first, n, total, number = self._batch(args, kwargs)
        variant = self._variants.get(key)
        if variant is None:
            object.__setattr__(self, "_kinds", self._kinds + 1)
            variant = self._variants[key] = self._kinds
            if len(self._variants) > _KEPT_KINDS:
                oldest, _ = self._variants.popitem(last=False)
                self._ways.pop(oldest, None)
        self._variants.move_to_end(key)

        def body() -> None:
            result = func(self, *args, **kwargs)
            for t in _flat((result,), {}):
                t.creator = None  # what is behind it may go now
            _widened(result)
            # Held while the step is planned, so that replays write it again.
            object.__setattr__(self, "_last", result)

        try:
            micro_shard = getattr(self.optimizer, "micro_shard", 0)
            engine.train(
                body, inputs, first, n, total, variant, number, micro_shard
            )
            result = self._last
        except CommError:
            if isinstance(self.optimizer, _opt.DistOpt):
                self.optimizer._end_if_left()
            raise
        finally:
            object.__setattr__(self, "_last", None)
            has_changed = self._has_changed()
        if has_changed:
            return self._taken_back(func, args, kwargs, n)
        if engine.recorded and not engine.has_updated():
            self._warn_once(
                "train_one_batch did not update: the parameters stay as they are, "
                "and the step is not counted; self.optimizer(loss) updates"
            )
        graph = engine.last_graph()
        if engine.recorded:
            if graph:
                self._results[graph] = result
                if len(self._results) > _KEPT_RESULTS:
                    self._results.popitem(last=False)
            return result
        if not graph:
            return None  # a step without samples
        self._results.move_to_end(graph)
        return self._results[graph]

    def _has_changed(self) -> bool:
        """Whether the step found other workers, and was taken back."""
        optimizer = self.optimizer
        return (
            isinstance(optimizer, _opt.DistOpt) and optimizer._take_generation()
        )

    def _taken_back(self, func, args, kwargs, sample_count: int):
        """The results of a step that was taken back; see follow."""
        self._results.clear()  # the library has dropped the graphs
        if here.raises_changes:
            raise WorkersChanged(self.optimizer.generation.text)
        if sample_count == 0:
            return None
        here.is_taken_back = True
        try:
            with autograd.no_grad():
                return with_handlers(lambda: func(self, *args, **kwargs))
        finally:
            here.is_taken_back = False

    # ---- Looking at it ----

    def digest(self) -> int:
        """64 bits over parameters and states: equal for equal bits."""
        return tensor.digest(self.get_states())

    def print_graphs(self) -> str:
        """The recorded steps: records, lifetimes, layouts and bytes."""
        return self._engine_made.print_graphs() if self._engine_made else ""

    # ---- States in files ----

    def save_states(self, fpath: str, aux_states: dict | None = None) -> None:
        """Writes parameters, states and `aux_states` (Tensors by name) to a file.

        The file is SINGA's: a zip of tensor_dict.npz and states_attr.json. It
        must not exist yet, and appears whole or not at all, also when the machine
        loses its power. For whole checkpoints see save_checkpoint.
        """
        if os.path.exists(fpath):
            raise FileExistsError(
                f"save_states: {fpath} exists; remove it first"
            )
        own = self.get_states()
        aux = dict(aux_states or {})
        for name, value in aux.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"save_states: aux state {name} is a {type(value).__name__}; a "
                    "Tensor is needed"
                )
            if name in own:
                raise ValueError(
                    f"save_states: {name} is a state of the model too"
                )
        arrays, attributes = {}, {}
        for kind, states in (
            (self.MODEL_STATE_TYPE, own),
            (self.AUX_STATE_TYPE, aux),
        ):
            for name, value in states.items():
                arrays[name] = tensor.to_numpy(value)
                attributes[name] = {
                    "state_type": kind,
                    "shape": value.shape,
                    "dtype": value.dtype,
                }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(self.TENSOR_DICT_FILENAME, buffer.getvalue())
            archive.writestr(self.STATES_ATTR_FILENAME, json.dumps(attributes))
        _checkpoint.write_new(os.fspath(fpath), whole.getvalue())

    def load_states(self, fpath: str) -> dict[str, Tensor]:
        """Sets the states from such a file, SINGA's own too; gives the aux ones."""
        try:
            archive = zipfile.ZipFile(fpath)
        except zipfile.BadZipFile:
            raise ValueError(
                f"load_states: {fpath} is no file of save_states (not a zip)"
            ) from None
        with archive:
            names = {name.lstrip("/"): name for name in archive.namelist()}
            try:
                text = archive.read(
                    names[self.STATES_ATTR_FILENAME.lstrip("/")]
                )
                data = archive.read(
                    names[self.TENSOR_DICT_FILENAME.lstrip("/")]
                )
            except KeyError as error:
                raise ValueError(
                    f"load_states: {fpath} is no file of save_states (it lacks "
                    f"{error})"
                ) from None
        attributes = json.loads(text)
        states, aux = {}, {}
        with np.load(io.BytesIO(data)) as arrays:
            for name in arrays.files:
                if name not in attributes:
                    raise ValueError(
                        f"load_states: {fpath} has no attributes of {name}"
                    )
                kind = attributes[name]["state_type"]
                if kind == self.MODEL_STATE_TYPE:
                    states[name] = arrays[name]
                else:
                    aux[name] = tensor.from_numpy(arrays[name])
        self.set_states(states)
        return aux

    def save_checkpoint(self, fpath: str, loader=None, **metadata: str) -> None:
        """Writes everything that a run needs to go on, as safetensors.

        Parameters, states, the optimizer's states, the step and, of a
        data.Loader, the place in the samples, in the format of the C programs'
        --save. The file appears whole or not at all. metadata: lines of text
        beside them.

        With a DistOpt that has shard=True, or whose strategy lets ranks differ (all
        but fp32, fp16 and bf16: what was not sent yet, local steps), it is collective: replicas are
        made equal, as `DistOpt.consolidate` does, and rank 0 writes the states of
        all. With the others any rank may call it, say rank 0 alone.
        """
        if not self._resumes(loader):
            _checkpoint.save(fpath, self._own_states(), metadata)
            return
        handle = self._engine()._handle
        if self._precision != _AUTO:
            name = lib.dtype_name(self._precision_code()).decode()
            metadata = {"precision": name, **metadata}
        if isinstance(self.optimizer, _opt.DistOpt):
            metadata = {**metadata, **self.optimizer._before_save()}
        _checkpoint.save_training(handle, loader, fpath, metadata)

    def load_checkpoint(self, fpath: str, loader=None) -> None:
        """Goes on where save_checkpoint was called; after compile and, to train
        on, set_optimizer. loader: one of the same samples, batch and seed, which
        goes on at its place.

        With a DistOpt it is collective and rank 0 alone reads the file; there
        must be as many ranks as there were where its strategy lets them differ.
        """
        if not self._resumes(loader):
            with _checkpoint.opened(fpath) as file:
                file.read(self._own_states())
            return
        handle = self._engine()._handle
        dist_opt = self.optimizer
        if not isinstance(dist_opt, _opt.DistOpt):
            dist_opt = None
        if dist_opt is not None:
            if dist_opt._has_come():
                return
            dist_opt._before_load(fpath)
        if self._precision == _AUTO:
            saved = _checkpoint.line(fpath, "precision", dist_opt)
            if saved in _PRECISIONS:
                self._take_precision(_PRECISIONS[saved])
        _checkpoint.resume_training(handle, loader, fpath)

    def _resumes(self, loader) -> bool:
        """Whether it has an optimizer, with which a run goes on."""
        if isinstance(self.optimizer, (_opt.Optimizer, _opt.DistOpt)):
            return True
        if loader is not None:
            raise StateError(
                f"{type(self).__name__} has no optimizer, and a loader's place is "
                "that of a run which trains; call set_optimizer first"
            )
        return False

    def _own_states(self) -> dict[str, Tensor]:
        states = self.get_states()
        if not states:
            raise StateError(
                f"{type(self).__name__} has no parameters yet; call compile first"
            )
        return states


def _of_this_process() -> dict:
    """The attributes of a Model that trains here, before its first step."""
    return {
        "_engine_made": None,
        "_engine_optimizer": None,
        "_variants": OrderedDict(),
        "_kinds": 0,
        "_ways": {},
        "_results": OrderedDict(),
        "_last": None,
    }


def _core(optimizer):
    """The optimizer itself, of a DistOpt that of each rank."""
    return getattr(optimizer, "opt", optimizer)


def optimizer_way(optimizer):
    """How it shares gradients now; None for one that does not."""
    return getattr(optimizer, "_strategy", ())


def _leaves(value):
    """What is in lists, tuples and dictionaries, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _flat(args, kwargs):
    """The Tensors among arguments, lists of them too, in order."""
    for value in _leaves((args, kwargs)):
        if isinstance(value, Tensor):
            yield value


def _widened(result):
    """A call's result, whose Tensors of mixed precision's 16 bits become float32;
    but for those of which a gradient may still be asked."""
    for t in _flat((result,), {}):
        if t.creator is None:
            t.data = autograd._widened(t).data
    return result


def _key(args, kwargs, inputs):
    """What steps of one kind share, beside the shapes of their inputs."""
    places = {id(value): i for i, value in enumerate(inputs)}

    def part(value):
        if isinstance(value, Tensor):
            if id(value) in places:
                return "input", places[id(value)]
            return weakref.ref(value.data)
        if isinstance(value, (list, tuple)):
            return tuple(part(one) for one in value)
        if isinstance(value, dict):
            return tuple((name, part(one)) for name, one in value.items())
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, value.tobytes()
        try:
            hash(value)
        except TypeError:
            return repr(value)
        return type(value), value

    return part(args), part(kwargs)
