# SPDX-License-Identifier: Apache-2.0
"""SINGA's operator classes that are combinations of ops: those of the functions
in `_functions` and `_losses`. `autograd` imports all of this; nobody else should.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools

from choir import _functions as functions
from choir import _losses as losses
from choir import _raw, autograd
from choir._here import here
from choir._raw import CTensor
from choir.autograd import Combined, Operator
from choir.tensor import Tensor


class Composite(Combined):
    """An operator made of others: the class of a function.

    Settings are given when it is made, tensors when it is called:
    `Clip(0, 1)(x)[0]` is `clip(x, 0, 1)`. forward and backward work on raw
    tensors; backward is for the last forward or, of a result's creator, for the
    call that made the result.
    """

    _function = None
    _settings: tuple[str, ...] = ()
    _last: Composite | None = None  # that of the last forward

    def __init__(self, *args, **settings) -> None:
        super().__init__()
        name = type(self).__name__
        if len(args) > len(self._settings):
            raise TypeError(
                f"{name} takes {len(self._settings)} settings "
                f"({', '.join(self._settings)}); {len(args)} were given"
            )
        given = dict(zip(self._settings, args))
        for key, value in settings.items():
            if key not in self._settings or key in given:
                raise TypeError(
                    f"{name} has no setting {key!r}; it has: "
                    f"{', '.join(self._settings) or 'none'}"
                )
            given[key] = value
        for key, parameter in type(self).__signature__.parameters.items():
            if (
                key not in given
                and parameter.default is inspect.Parameter.empty
            ):
                raise TypeError(f"{name} needs the setting {key!r}")
        self._given = given

    @classmethod
    def _of(cls, given: dict) -> Composite:
        """One with settings that a function was called with."""
        self = cls.__new__(cls)
        Operator.__init__(self)
        self._given = given
        return self

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        state.pop("_last", None)
        return state

    def __call__(self, *xs) -> tuple:
        # It stays that of the results of an earlier call.
        return self._run(
            xs, lambda: self if self._made is None else copy.copy(self)
        )

    def _run(self, xs, make) -> tuple:
        results = autograd._combined(
            make,
            type(self)._function,
            xs,
            self._given,
            sources=lambda xs, _given: autograd._tensors_in(xs),
        )
        return results if isinstance(results, tuple) else (results,)

    def forward(self, *xs: CTensor):
        """Raw tensors in, a raw tensor or a tuple of them out."""
        sources = [Tensor._of(x, True) for x in xs]
        before = here.training, here.outer_training
        here.training, here.outer_training = True, here.training
        last = copy.copy(self)
        try:
            results = self._run(sources, lambda: last)
        finally:
            here.training, here.outer_training = before
        if last._made is None:  # nothing in it has a gradient
            last.src, last._made = tuple(sources), results
            last._results = [y.data for y in results]
        self._last = last
        raws = tuple(y.data for y in results)
        return raws[0] if len(raws) == 1 else raws

    def backward(self, *dys: CTensor, dy=1.0):
        """See Combined."""
        return autograd._gradients_within(self._last or self, dys, dy)


def _concat(*xs, axis=0) -> Tensor:
    """Joins tensors along an axis."""
    return functions.cat(xs, axis)


def _onehot(indices, *, axis, depth, values) -> Tensor:
    """A new axis: values[1] at the index, else values[0]. No gradient."""
    return functions.onehot(axis, indices, depth, values)


def _transpose_op(x: Tensor, *, perm=None) -> Tensor:
    """Axes in another order; None reverses them."""
    return functions.transpose(x, perm)


# Class: (function, settings in SINGA's order).
_CLASSES = {
    "Sum": (functions.sum, ""),
    "Mean": (functions.mean, ""),
    "Max": (functions.max, ""),
    "Min": (functions.min, ""),
    "AddBias": (functions.add_bias, "axis"),
    "Clip": (functions.clip, "min max"),
    "Elu": (functions.elu, "alpha"),
    "SeLU": (functions.selu, "alpha gamma"),
    "LeakyRelu": (functions.leakyrelu, "a"),
    "HardSigmoid": (functions.hardsigmoid, "alpha gamma"),
    "Identity": (functions.identity, ""),
    "SoftMax": (functions.softmax, "axis"),
    "Reshape": (functions.reshape, "shape"),
    "Flatten": (functions.flatten, "axis"),
    "Transpose": (_transpose_op, "perm"),
    "Unsqueeze": (functions.unsqueeze, "axis"),
    "Squeeze": (functions.squeeze, "axis"),
    "Expand": (functions.expand, "shape"),
    "Concat": (_concat, "axis"),
    "Split": (functions.split, "axis parts num_output"),
    "Slice": (functions.slice, "starts ends axes steps"),
    "Tile": (functions.tile, "repeats"),
    "Pad": (functions.pad, "mode pads constant"),
    "UpSample": (functions.upsample, "mode scales"),
    "DepthToSpace": (functions.depth_to_space, "blocksize mode"),
    "SpaceToDepth": (functions.space_to_depth, "blocksize mode"),
    "Shape": (functions.shape, ""),
    "ConstantOfShape": (functions.constant_of_shape, "value"),
    "Gather": (functions.gather, "axis indices"),
    "Embedding": (functions.embedding, ""),
    "ScatterElements": (functions.scatter_elements, "indices updates axis"),
    "Where": (functions.where, "condition"),
    "OneHot": (_onehot, "axis depth values"),
    "NonZero": (functions.nonzero, ""),
    "Cast": (functions.cast, "to"),
    "ReduceSum": (functions.reduce_sum, "axes keepdims"),
    "ReduceMean": (functions.reduce_mean, "axes keepdims"),
    "GlobalAveragePool": (functions.globalaveragepool, "data_format"),
    "Gemm": (functions.gemm, "alpha beta transA transB"),
    "CosSim": (functions.cossim, ""),
    "SoftMaxCrossEntropy": (losses.softmax_cross_entropy, "t"),
    "CrossEntropy": (losses.cross_entropy, "t"),
    "BinaryCrossEntropy": (losses.binary_cross_entropy, "t"),
    "MeanSquareError": (losses.mse_loss, "t"),
    "RankingLoss": (losses.ranking_loss, "M"),
    "Dropout": (functions.dropout, "seed ratio"),
}


# Functions whose arguments differ from those of the class: (class, settings of the
# class by arguments of the function).
_DIFFERENT = {
    functions.cat: ("Concat", {"axis": "axis"}),
    functions.transpose: ("Transpose", {"shape": "perm"}),
    functions.add_all: ("Sum", {}),
}


def _dot(cls, a: CTensor, b: CTensor) -> CTensor:
    """The dot products of rows of two raw matrices."""
    return _raw.run("sum", _raw.run("mul", a, b), axis=1, keep_dims=False)


def _arguments(function, settings: dict[str, str]):
    """(sources, settings) of the class, each of a call's arguments."""
    parameters = inspect.signature(function).parameters.values()
    # Of *xs all are sources.
    names = [p.name for p in parameters if p.kind != p.VAR_POSITIONAL]

    def sources(args, named):
        rest = [
            value
            for name, value in itertools.zip_longest(names[: len(args)], args)
            if name not in settings
        ]
        rest += [v for name, v in named.items() if name not in settings]
        return autograd._tensors_in(rest)

    def given(args, named) -> dict:
        named = dict(zip(names, args)) | named
        return {
            setting: named[name]
            for name, setting in settings.items()
            if name in named
        }

    return sources, given


def recorded(function, cls: type[Composite], settings: dict[str, str]):
    """The function, with an operator of the class as its results' creator."""
    sources, given = _arguments(function, settings)

    @functools.wraps(function)
    def called(*args, **named):
        return autograd._combined(
            lambda: cls._of(given(args, named)),
            function,
            args,
            named,
            sources=sources,
        )

    called.__module__ = "choir.autograd"
    return called


def _whole(function):
    """The same of a function without such a class."""
    kind = autograd._classes.get(function.__name__)
    cls = type(function.__name__, (Combined,), {"__module__": "choir.autograd"})

    @functools.wraps(function)
    def called(*args, **named):
        return autograd._combined(cls, function, args, named, kind)

    return called


def public() -> dict:
    """The names that `autograd` has from here."""
    made: dict = {"Combined": Combined, "Composite": Composite}
    for name, (function, settings) in _CLASSES.items():
        settings = settings.split()
        parameters = inspect.signature(function).parameters
        made[name] = type(
            name,
            (Composite,),
            {
                "_function": staticmethod(function),
                "_settings": tuple(settings),
                "__signature__": functions.signature(
                    {one: parameters[one].default for one in settings}
                ),
                "__doc__": function.__doc__,
                "__module__": "choir.autograd",
            },
        )
    made["CosSim"].dot = classmethod(_dot)
    classes = {
        function: (name, {one: one for one in settings.split()})
        for name, (function, settings) in _CLASSES.items()
    } | _DIFFERENT
    for function in functions.FUNCTIONS:
        name, settings = classes.get(function, (None, {}))
        made[function.__name__] = (
            recorded(function, made[name], settings)
            if name
            else _whole(function)
        )
    return made
