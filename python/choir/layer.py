# SPDX-License-Identifier: Apache-2.0
"""Layers: operators with parameters.

    self.conv1 = layer.Conv2d(20, 5, activation="RELU")
    y = self.conv1(x)              # the first call gives W and b their shapes

A layer makes its parameters at its first call, from the input's sizes and the
device's seed; so two runs with one seed begin alike, and as the C library's
models do. Assigning a layer to another one's attribute names it; its
parameters are called by the path ("conv1.W"). What all layers share is in
_layer.py.
"""

from __future__ import annotations

import operator

import numpy as np

from choir import (
    _arguments,
    _handles,
    _layer,
    _raw,
    _recurrent_layers,
    autograd,
    tensor,
)
from choir._calls import lib
from choir._layer import (
    NORMAL,
    UNIFORM,
    Layer,
    LayerMeta,
    announced,
    floats,
    param,
)
from choir.tensor import Tensor


class Linear(_layer.ListLayer):
    """y = x W + b: (..., in) to (..., out).

    W (in, out) starts as N(0, deviation), where that is 0 as
    N(0, sqrt(2 / (in + out))), and b as 0; `in` is learnt from the first input.
    Linear(in, out[, bias]) is accepted too.
    """

    _kind = "linear"
    _input = "in_features", -1

    def __init__(
        self,
        out_features: int,
        *args,
        bias: bool = True,
        deviation: float = 0.0,
        **kwargs,
    ) -> None:
        super().__init__()
        self.in_features: int | None = None
        if args:
            self.in_features, out_features = out_features, args[0]
            if len(args) > 1:
                bias = args[1]
        if kwargs:
            raise TypeError(f"Linear has no setting {next(iter(kwargs))!r}")
        self.out_features = operator.index(out_features)
        self.bias = bias
        self.deviation = deviation


class Gemm(_layer.ListLayer):
    """alpha A' B' + beta C with a weight B and a bias C."""

    _kind = "gemm"
    _names = {
        "out_features": "nb_kernels",
        "transpose_a": "transA",
        "transpose_b": "transB",
    }

    def __init__(
        self,
        nb_kernels: int,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: bool = False,
        transB: bool = True,
        bias: bool = True,
        bias_shape=None,
    ) -> None:
        super().__init__(
            nb_kernels=nb_kernels, alpha=alpha, beta=beta, transA=transA,
            transB=transB, bias=bias, bias_shape=bias_shape or (1, nb_kernels),
        )  # fmt: skip

    def initialize(self, x: Tensor) -> None:
        super().initialize(x)
        if self.bias:
            self.b.data = _raw.run(
                "reshape", self.b.data, **tensor._to(self.bias_shape)
            )


class Embedding(Layer):
    """Rows of a table (input_dim, output_dim), chosen by integers of any shape.

    It starts as N(0, deviation), or "uniform" between -deviation and deviation.
    """

    deviation = 1.0  # of those that were pickled before it was a setting

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        initializer: str = "gaussian",
        deviation: float = 1.0,
    ) -> None:
        super().__init__()
        if initializer not in ("gaussian", "uniform"):
            raise ValueError(
                f"Embedding: initializer is {initializer!r}; gaussian or uniform is "
                "needed"
            )
        self.input_dim = input_dim
        self.output_dim = output_dim
        if not 0 <= deviation <= 1e9:
            raise ValueError(
                f"Embedding: deviation is {deviation}; needs 0 to 1e9"
            )
        self.initializer = initializer
        self.deviation = float(deviation)

    def initialize(self, x: Tensor) -> None:
        shape, size = (self.input_dim, self.output_dim), self.deviation
        if self.initializer == "gaussian":
            self.W = param(x.device, shape, NORMAL, 0.0, size)
        else:
            self.W = param(x.device, shape, UNIFORM, -size, size)

    def from_pretrained(self, W, freeze: bool = True) -> None:
        """Takes the table's values, and trains them or not."""
        if not self._initialized:
            device = W.device if isinstance(W, Tensor) else None
            self.initialize(Tensor((1,), device, tensor.int32))
            self._initialized = True
        self._set({"W": W}, {"W": self.W}, "parameter")
        self.W.stores_grad = not freeze
        self.W.requires_grad = not freeze

    def forward(self, x: Tensor) -> Tensor:
        return autograd.embedding(x, self.W)


class PositionEmbedding(_layer.ListLayer):
    """x (..., t, d) plus the first t rows of a table (num_embeddings, d), which starts
    as N(0, deviation): learnt positions."""

    _kind = "position_embedding"

    def __init__(self, num_embeddings: int, deviation: float = 1.0) -> None:
        super().__init__(
            num_embeddings=operator.index(num_embeddings), deviation=deviation
        )
        self._check()


class RMSNorm(_layer.ListLayer):
    """x / sqrt(mean(x^2) + epsilon) * scale for each row, the last axis."""

    _kind = "rms_norm"

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__(epsilon=float(epsilon))


class LayerNorm(_layer.ListLayer):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias for each row. bias False:
    without it."""

    _kind = "layer_norm"
    # `bias` is the parameter.
    _names = {"bias": "has_bias"}

    def __init__(self, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__(epsilon=float(epsilon), has_bias=bias)


def _pair(value, what: str) -> tuple[int, int]:
    if isinstance(value, (int, np.integer)):
        return int(value), int(value)
    pair = tuple(operator.index(v) for v in value)
    if len(pair) != 2:
        raise ValueError(f"{what} is {value!r}; one number or a pair is needed")
    return pair


_FILTERS = {"out_channels": "nb_kernels", "groups": "group"}


class Conv2d(_layer.ListLayer):
    """2-d convolution of images (n, c, h, w).

    nb_kernels: channels of the result; kernel_size, stride, padding, dilation:
    a number or (height, width); padding also (top, left, bottom, right).
    activation: "NOTSET" or "RELU", applied to the result. W (out, c / group,
    kh, kw) starts as N(0, sqrt(2 / (c / group kh kw + out))), b as 0. The form
    Conv2d(in_channels, nb_kernels, kernel_size[, stride[, padding]]) is accepted
    too.
    """

    _kind = "conv2d"
    _names = _FILTERS
    _input = "in_channels", 1

    def __init__(
        self,
        nb_kernels: int,
        kernel_size,
        *args,
        stride=1,
        padding=0,
        dilation=1,
        group: int = 1,
        bias: bool = True,
        pad_mode: str = "NOTSET",
        activation: str = "NOTSET",
        **kwargs,
    ) -> None:
        in_channels = None
        if args:
            in_channels, nb_kernels = nb_kernels, kernel_size
            kernel_size = args[0]
            stride = args[1] if len(args) > 1 else stride
            padding = args[2] if len(args) > 2 else padding
        if kwargs:
            raise TypeError(f"Conv2d has no setting {next(iter(kwargs))!r}")
        if activation.upper() not in ("NOTSET", "NONE", "RELU"):
            raise ValueError(
                f"Conv2d: activation is {activation!r}; NOTSET or RELU is needed"
            )
        super().__init__(
            in_channels=in_channels, nb_kernels=operator.index(nb_kernels),
            kernel_size=_pair(kernel_size, "Conv2d: kernel_size"),
            stride=_pair(stride, "Conv2d: stride"), padding=padding,
            dilation=_pair(dilation, "Conv2d: dilation"), group=group,
            bias=bias, pad_mode=pad_mode, activation=activation.upper(),
        )  # fmt: skip


class SeparableConv2d(_layer.ListLayer):
    """A convolution of each channel by itself, then one of 1 by 1."""

    _kind = "separable_conv2d"
    _names = _FILTERS

    def __init__(
        self,
        nb_kernels: int,
        kernel_size,
        *args,
        stride=1,
        padding=0,
        bias=False,
    ) -> None:
        if args:
            # (in_channels, nb_kernels, kernel_size[, stride[, padding]])
            nb_kernels, kernel_size = kernel_size, args[0]
            stride = args[1] if len(args) > 1 else stride
            padding = args[2] if len(args) > 2 else padding
        super().__init__(
            nb_kernels=nb_kernels, kernel_size=kernel_size, stride=stride,
            padding=padding, bias=bias,
        )  # fmt: skip


class ConvTranspose2d(_layer.ListLayer):
    """The transposed 2-d convolution of images (n, c, h, w), with a bias.

    nb_kernels: channels of the result; the others are numbers or (height,
    width), as Conv2d's; output_padding, less than the stride: more rows below
    and columns right. W (c, nb_kernels / group, kh, kw) starts as
    N(0, sqrt(2 / (c / group kh kw + nb_kernels))), b as 0.
    """

    _kind = "conv_transpose2d"
    _names = _FILTERS

    def __init__(
        self,
        nb_kernels: int,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        dilation=1,
        group: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            nb_kernels=operator.index(nb_kernels),
            kernel_size=_pair(kernel_size, "ConvTranspose2d: kernel_size"),
            stride=stride, padding=padding, output_padding=output_padding,
            dilation=dilation, group=group, bias=bias,
        )  # fmt: skip


class MultiHeadAttention(_layer.ListLayer):
    """softmax(q k' / sqrt(head_dim)) v for each head (Vaswani et al., 2017).

    Called with x, or query (n, t, e), key and value (n, s, ...), it gives
    (n, t, e). mask, of a shape that broadcasts to (n, num_heads, t, s): of
    integers or truth values, 0 where a place must not be seen; or of floats, which
    are added to the scores. causal: place i sees those up to i. head_dim None: e /
    num_heads; value_dim None: as head_dim. dropout: of the weights. deviation: of the
    initial weights of query, key and value, out_deviation: of those of out; 0: as
    Linear's. kv_heads: heads of key and value, each for num_heads / kv_heads
    neighbouring ones of query; None: num_heads. rotary: theta of rotary positions (Su
    et al., 2021), by which rows of query and key are turned; 0: none.
    """

    _kind = "multi_head_attention"
    _draws = 1

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        deviation: float = 0.0,
        out_deviation: float = 0.0,
        kv_heads: int | None = None,
        rotary: float = 0.0,
    ) -> None:
        super().__init__(
            num_heads=operator.index(num_heads), head_dim=head_dim,
            value_dim=value_dim, bias=bias, dropout=dropout, causal=causal,
            deviation=deviation, out_deviation=out_deviation, kv_heads=kv_heads,
            rotary=float(rotary),
        )  # fmt: skip

    def _inputs(self, query, key=None, value=None, mask=None) -> list:
        key = query if key is None else key
        xs = [query, key, key if value is None else value]
        if mask is not None:
            xs.append(_arguments._mask(mask, query))
        return xs

    def initialize(self, *xs, **named) -> None:
        super().initialize(*self._inputs(*xs, **named))

    def forward(self, *xs, **named) -> Tensor:
        return super().forward(*self._inputs(*xs, **named))


class FeedForward(_layer.ListLayer):
    """shrink(activation(expand(x))), (..., in) to (..., in), of layers Linear with
    hidden_size columns between; None: 4 in. gated: shrink(activation(gate(x)) *
    expand(x)) (Shazeer, 2020), SwiGLU with "silu". activation: "gelu", "gelu_tanh",
    "silu" or "relu". deviation: of the initial weights of expand and gate,
    out_deviation: of those of shrink; 0: as Linear's.
    """

    _kind = "feed_forward"

    def __init__(
        self,
        hidden_size: int | None = None,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        deviation: float = 0.0,
        out_deviation: float = 0.0,
    ) -> None:
        super().__init__(
            hidden_size=hidden_size, activation=activation, gated=gated,
            bias=bias, deviation=deviation, out_deviation=out_deviation,
        )  # fmt: skip


class BatchNorm2d(Layer):
    """Normalises each channel of (n, c, h, w), or (n, c), over the batch.

    momentum is the weight of the NEW batch in the running averages, as in
    SINGA; the running variance takes n / (n - 1). epsilon is 1e-5.
    BatchNorm2d(num_features[, momentum]) is accepted too.

    sync: in training the batch is that of all ranks, as PyTorch's SyncBatchNorm:
    ranks train as one with the whole batch, however it is divided. It needs a
    compiled model whose optimizer is a DistOpt, and the same layers in the same
    order on all ranks.
    """

    _keeps_places = False

    def __init__(
        self, *args, momentum: float = 0.9, sync: bool = False
    ) -> None:
        super().__init__()
        if len(args) > 1:
            momentum = args[1]
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"BatchNorm2d: momentum is {momentum}; needs 0 to 1"
            )
        self.channels: int | None = args[0] if args else None
        self.momentum = momentum
        self.sync = sync
        self._handle = _handles.BatchNormHandle(momentum)
        if sync:
            self._handle._sync = self

    def initialize(self, x: Tensor) -> None:
        if x.ndim() not in (2, 4):
            raise ValueError(
                f"BatchNorm2d: the input has shape {x.shape}; 2 or 4 dimensions "
                "are needed"
            )
        code = floats(x, "BatchNorm2d")
        announced(self, "channels", 1, x)
        c = self.channels
        self.scale = param(x.device, (c,), a=1.0, dtype=code)
        self.bias = param(x.device, (c,), dtype=code)
        for name, value in (("running_mean", 0.0), ("running_var", 1.0)):
            state = param(x.device, (c,), a=value, dtype=code, trained=False)
            self._own_state(name, state)

    def forward(self, x: Tensor) -> Tensor:
        return _handles.batchnorm_2d(
            self._handle,
            x,
            self.scale,
            self.bias,
            self.running_mean,
            self.running_var,
        )


class Pooling2d(_layer.ListLayer):
    """The largest or the mean element of windows of (n, c, h, w).

    stride None: the kernel's size. The mean divides by the window's full size.
    """

    def __init__(
        self,
        kernel_size,
        stride=None,
        padding=0,
        is_max: bool = True,
        pad_mode: str = "NOTSET",
    ) -> None:
        super().__init__(
            _kind=self._kind or ("max_pool2d" if is_max else "avg_pool2d"),
            kernel_size=kernel_size, padding=padding, is_max=is_max,
            stride=kernel_size if stride is None else stride, pad_mode=pad_mode,
        )  # fmt: skip
        self._check()


class _Pooling(Pooling2d):
    """Of one kind."""

    def __init__(self, kernel_size, stride=None, padding=0, pad_mode="NOTSET"):
        is_max = self._kind.startswith("max")
        super().__init__(kernel_size, stride, padding, is_max, pad_mode)


class MaxPool2d(_Pooling):
    """The largest element of each window."""

    _kind = "max_pool2d"


class AvgPool2d(_Pooling):
    """The mean of each window."""

    _kind = "avg_pool2d"


class MaxPool1d(_Pooling):
    """The largest element of windows along the last axis of (n, c, w) or
    (n, c, h, w)."""

    _kind = "max_pool1d"


class AvgPool1d(_Pooling):
    """The mean of windows along the last axis of (n, c, w) or (n, c, h, w)."""

    _kind = "avg_pool1d"


RNN_Base = _recurrent_layers.RNN_Base
RNN = _recurrent_layers.RNN
LSTM = _recurrent_layers.LSTM
GRU = _recurrent_layers.GRU
CudnnRNN = _recurrent_layers.CudnnRNN


# ---- Layers without parameters: functions of autograd ----


class Flatten(Layer):
    """(n, ...) to two dimensions; axis: the first that goes into the second."""

    _keeps_places = False

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return autograd.flatten(x, self.axis)


class Dropout(Layer):
    """In training sets the share `ratio` of elements to 0 and scales the rest by
    1 / (1 - ratio); what is dropped follows from the seed, the step and the
    sample's place in the whole batch, never from the worker."""

    def __init__(self, ratio: float = 0.5) -> None:
        super().__init__()
        if not 0 <= ratio < 1:
            raise ValueError(f"Dropout: ratio is {ratio}; needs 0 to below 1")
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return autograd.dropout(x, ratio=self.ratio)


class Cat(Layer):
    """Joins a list of tensors along an axis."""

    _keeps_places = False

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, xs) -> Tensor:
        return autograd.cat(xs, self.axis)


class Reshape(Layer):
    """The same elements in another shape."""

    def forward(self, x: Tensor, shape) -> Tensor:
        return autograd.reshape(x, shape)


def _function_layer(name: str, function: str, doc: str) -> type[Layer]:
    def forward(self, *xs):
        return getattr(autograd, function)(*xs)

    return LayerMeta(
        name,
        (Layer,),
        {"forward": forward, "__doc__": doc, "__module__": __name__},
    )


ReLU = _function_layer("ReLU", "relu", "max(0, x)")
Sigmoid = _function_layer("Sigmoid", "sigmoid", "1 / (1 + e^-x)")
Tanh = _function_layer("Tanh", "tanh", "Hyperbolic tangent.")
Gelu = _function_layer("Gelu", "gelu", "x / 2 (1 + erf(x / sqrt 2))")
Silu = _function_layer("Silu", "silu", "x / (1 + e^-x)")
Add = _function_layer("Add", "add", "a + b")
SoftMax = _function_layer(
    "SoftMax", "softmax", "e^x over its sum along axis 1."
)
SoftMax._keeps_places = False  # axis 1 is that of places
SoftMaxCrossEntropy = _function_layer(
    "SoftMaxCrossEntropy",
    "softmax_cross_entropy",
    "The mean of -log softmax(x)[t].",
)
MeanSquareError = _function_layer(
    "MeanSquareError", "mse_loss", "The mean of (x - t)^2."
)
CrossEntropy = _function_layer(
    "CrossEntropy", "cross_entropy", "The mean of -log x[t], for probabilities."
)
BinaryCrossEntropy = _function_layer(
    "BinaryCrossEntropy",
    "binary_cross_entropy",
    "The mean over the batch of -(t log x + (1 - t) log(1 - x)).",
)


def _class_of(kind: str, name: str) -> type[Layer]:
    """Of a layer of the C library's list, with its settings there."""
    members = {"_kind": kind, "__module__": __name__}
    return LayerMeta(name, (_layer.ListLayer,), members)


def _list_layers() -> None:
    """Classes of the C library's layers that have none here."""
    known = {name.lower() for name in globals()}
    index = 0
    while definition := lib.layer_def_get(index):
        index += 1
        kind = lib.layer_def_config(definition).contents.name.decode()
        name = "".join(word.capitalize() for word in kind.split("_"))
        if name.lower() not in known:
            globals()[name] = _class_of(kind, name)


_list_layers()

# SINGA's other place for these.
for _name in (
    "Linear",
    "Conv2d",
    "SeparableConv2d",
    "BatchNorm2d",
    "Pooling2d",
    "MaxPool2d",
    "AvgPool2d",
    "MaxPool1d",
    "AvgPool1d",
    "RNN_Base",
    "RNN",
    "LSTM",
):
    setattr(autograd, _name, globals()[_name])
for _name, _value in _handles.public().items():
    setattr(autograd, _name, _value)
