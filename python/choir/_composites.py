# SPDX-License-Identifier: Apache-2.0
"""SINGA's operator classes that are combinations of ops: those of the functions
in `_functions` and `_losses`. `autograd` imports all of this; nobody else should.
"""

from __future__ import annotations

import inspect

from choir import _functions as functions
from choir import _losses as losses
from choir import _raw, autograd, tensor
from choir._here import here
from choir._calls import StateError
from choir._raw import CTensor
from choir.autograd import Operator
from choir.tensor import Tensor


class Composite(Operator):
    """An operator made of others: the class of a function.

    Settings are given when it is made, tensors when it is called:
    `Clip(0, 1)(x)[0]` is `clip(x, 0, 1)`. forward and backward work on raw
    tensors; backward is for the last forward.
    """

    _function = None
    _settings: tuple[str, ...] = ()

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
        self._tape = None

    def __call__(self, *xs) -> tuple:
        results = type(self)._function(*xs, **self._given)
        return results if isinstance(results, tuple) else (results,)

    def forward(self, *xs: CTensor):
        """Raw tensors in, a raw tensor or a tuple of them out."""
        sources = [Tensor._of(x, True) for x in xs]
        before = here.training, here.outer_training
        here.training, here.outer_training = True, here.training
        try:
            results = self(*sources)
        finally:
            here.training, here.outer_training = before
        self._tape = (sources, results)
        raws = tuple(y.data for y in results)
        return raws[0] if len(raws) == 1 else raws

    def backward(self, *dys: CTensor, dy=1.0):
        """The gradients of the sources of the last forward; None for those that
        have none. dys: of its results, raw tensors or numbers; for a loss it may
        be left out."""
        if self._tape is None:
            raise StateError(f"{self.name}: backward comes after forward")
        sources, results = self._tape
        if (
            not dys
            and len(results) == 1
            and (results[0].size() == 1 or isinstance(dy, CTensor))
        ):
            dys = (dy,)
        if len(dys) != len(results):
            raise TypeError(
                f"{self.name}: {len(dys)} gradients for {len(results)} results"
            )
        grads: list[Tensor | None] = [None] * len(sources)
        for y, dy in zip(results, dys):
            if isinstance(dy, (int, float)):
                dy = tensor.ones_like(y).set_value(dy).data
            for i, grad in enumerate(autograd._grad(y, sources, dy)):
                if grad is not None:
                    grads[i] = grad if grads[i] is None else grads[i] + grad
        raws = tuple(None if grad is None else grad.data for grad in grads)
        return raws[0] if len(raws) == 1 else raws


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


def _dot(cls, a: CTensor, b: CTensor) -> CTensor:
    """The dot products of rows of two raw matrices."""
    return _raw.run("sum", _raw.run("mul", a, b), axis=1, keep_dims=False)


def public() -> dict:
    """The names that `autograd` has from here."""
    made: dict = {"Composite": Composite}
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
    return made
