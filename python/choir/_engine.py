# SPDX-License-Identifier: Apache-2.0
"""Training steps: the C library's model around Python's functions.

An Engine is a choir_model_t without layers: its parameters are Tensors, its
train_one_batch calls back into Python. So everything that a C model has, a
Python one has too: graphs that are recorded and replayed, gradients written
into the communicator's buckets, strategies, step counts, the same bits.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64, c_void_p

from choir import _raw, autograd
from choir._lib import (
    DEFINE,
    FORWARD,
    ModelBatch,
    ModelDef,
    NamedTensor,
    TRAIN_ONE_BATCH,
    StateError,
    check,
    dims,
    get,
    lib,
    make_status,
)
from choir.tensor import Tensor

current: Engine | None = None  # whose step runs


def retract() -> None:
    """The step that runs is given up, on all ranks alike, to be run again."""
    lib.model_retract_step(current._model)


class Engine:
    """Parameters and an updater, trained step by step."""

    def __init__(self, name: str, device, params, states, updater: int) -> None:
        """params, states: names and Tensors, trained and not, in order.

        Where the updater belongs to a DistOpt this is collective: the models of
        all ranks are compared and rank 0's values sent to all.
        """
        self.device = device
        self._name = name.encode()
        self._tensors = list(params) + list(states)
        self._trained = len(params)
        self._params: dict[int, int] = {}  # id(Tensor): choir_param_t*
        self._frozen: list = []  # (choir_param_t*, Tensor): may be frozen later
        self._error: BaseException | None = None
        self._body = None
        self._scope: int | None = None
        self._model: int | None = None
        self._handle: int | None = None
        self._loss_var: int | None = None
        self.recorded = False  # the last step called back
        # The library keeps these functions.
        self._define = DEFINE(self._on_define)
        self._forward = FORWARD(lambda _scope, _self, x: x)
        self._train = TRAIN_ONE_BATCH(self._on_train)
        self._def = ModelDef(
            self._name, self._define, self._forward, self._train
        )
        self._handle = get(
            lib.model_create, device.handle, byref(self._def), None, device.seed
        )
        check(lib.model_compile(self._handle, 1, dims((1,))))
        check(lib.model_set_updater(self._handle, updater))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.model_release(self._handle)
            self._handle = None

    # ---- Callbacks ----

    def _on_define(self, model: int, _self) -> None:
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

    def _on_train(self, _model, scope: int, _self, x: int, _y, out_loss):
        global current
        before, current = current, self
        self._scope = scope
        self._loss_var = None
        self.recorded = True
        step_before = autograd._model_step
        training_before = autograd.training
        autograd._model_step = autograd._Scope(scope)
        autograd.training = True
        try:
            self._body()
            if self._loss_var is None:
                raise StateError(
                    "train_one_batch did not update: call the optimizer with the "
                    "loss (self.optimizer(loss)) in it"
                )
            autograd._model_step.updated()
            out_loss[0] = self._loss_var
            # The library would count hits of two-dimensional results.
            return self._loss_var
        except BaseException as error:  # goes on behind the C library
            self._error = self._error or error
            return lib.scope_fail(scope, make_status(error))
        finally:
            autograd._model_step = step_before
            autograd.training = training_before
            current = before
            self._scope = None

    # ---- A step ----

    def train(
        self,
        body,
        x: Tensor | None = None,
        y: Tensor | None = None,
        first_sample: int = 0,
        sample_count: int = 1,
        global_count: int = 1,
        variant: int = 0,
        number: int = 0,
    ) -> None:
        """One training step: `body` runs forward and calls an optimizer.

        In graph mode a step like an earlier one is replayed without it.
        """
        for param, tensor in self._frozen:
            param.contents.trainable = tensor.stores_grad
        self._body = body
        self._error = None
        self.recorded = False
        if x is None:
            if getattr(self, "_one", None) is None:
                self._one = _raw.empty(self.device, (1,))
            raw_x = self._one
        else:
            raw_x = x.data
        batch = ModelBatch(
            raw_x.handle,
            y.data.handle if y is not None else raw_x.handle,
            first_sample,
            sample_count,
            global_count,
            variant,
            number,
        )
        status = lib.model_train_one_batch(self._handle, byref(batch))
        self._body = None
        error, self._error = self._error, None
        if error is not None:
            lib.status_free(status)
            raise error
        check(status)
        self.device._end_step(self.step())

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
                return lib.scope_input(scope, tensor.data.handle)
            if param.contents.value != tensor.data.handle:
                raise StateError(
                    f"parameter {tensor.name} has another raw tensor than when "
                    "training began; set its elements with copy_from instead"
                )
            return lib.scope_param(scope, param)

        tape = autograd.Tape(scope, leaf)
        var = tape.record(loss)
        self._loss_var = var
        lib.model_backward_and_update(self._model, scope, var)
        if tape.error() is not None:
            self._error = tape.error()
        autograd._model_step.updated()

    # ---- The rest of a model ----

    def set_graph(self, use_graph: bool, sequential: bool) -> None:
        lib.model_set_graph(self._handle, use_graph, sequential)

    def step(self) -> int:
        """Training steps done."""
        return lib.model_step(self._handle)

    def last_graph(self) -> int:
        """Which graph the last step recorded or replayed; 0: none."""
        return lib.model_last_graph(self._handle)

    def set_step(self, step: int) -> None:
        lib.model_set_step(self._handle, step)

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

    def states(self) -> dict[str, Tensor]:
        """Parameters, states and the updater's states, by name."""
        count = lib.model_states(self._handle, None)
        named = (NamedTensor * max(count, 1))()
        lib.model_states(self._handle, named)
        return {
            named[i].name.decode(): Tensor._of(
                _raw.CTensor.borrow(named[i].tensor, self.device)
            )
            for i in range(count)
        }


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [c_void_p]
_libc.free.restype = None


def _free(memory: c_void_p) -> None:
    _libc.free(memory)


def behind(loss: Tensor) -> list[Tensor]:
    """The parameters that a loss depends on, in the order of their first use."""
    found: dict[int, Tensor] = {}
    for node in autograd._behind(loss):
        for x in node.src:
            if x.creator is None and x.stores_grad:
                found.setdefault(id(x), x)
    return list(found.values())
