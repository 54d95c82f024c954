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

import math
import operator

import numpy as np

from choir import _handles, _recurrent_layers, autograd, tensor
from choir._calls import lib
from choir._layer import (
    GLOROT_NORMAL,
    NORMAL,
    UNIFORM,
    Layer,
    LayerMeta,
    check_ndim,
    floats,
    param,
)
from choir._raw import FLOATS, OPS
from choir.tensor import Tensor


class Linear(Layer):
    """y = x W + b: (..., in) to (..., out).

    W (in, out) starts as N(0, sqrt(2 / (in + out))), b as 0; `in` is learnt from
    the first input. Linear(in, out[, bias]) is accepted too.
    """

    def __init__(
        self, out_features: int, *args, bias: bool = True, **kwargs
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

    def initialize(self, x: Tensor) -> None:
        if x.ndim() < 2:
            raise ValueError(
                f"Linear: the input has shape {x.shape}; 2 or more dimensions are "
                "needed"
            )
        code = floats(x, "Linear")
        if self.in_features is None:
            self.in_features = x.shape[-1]
        n, m = self.in_features, self.out_features
        self.W = param(
            x.device, (n, m), GLOROT_NORMAL, fan_in=n, fan_out=m, dtype=code
        )
        # The op always takes a bias: zeros that nobody learns.
        made = param(x.device, (m,), dtype=code, trained=self.bias)
        if self.bias:
            self.b = made
        else:
            self._zeros = made

    def forward(self, x: Tensor) -> Tensor:
        return autograd.apply_attrs(
            OPS["linear"],
            (x, self.W, self.b if self.bias else self._zeros),
            None,
        )


class Gemm(Layer):
    """alpha A' B' + beta C with a weight B and a bias C."""

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
        super().__init__()
        self.nb_kernels = nb_kernels
        self.alpha = alpha
        self.beta = beta
        self.transA = transA
        self.transB = transB
        self.bias = bias
        self.bias_shape = bias_shape or (1, nb_kernels)

    def initialize(self, x: Tensor) -> None:
        code = floats(x, "Gemm")
        n = x.shape[0] if self.transA else x.shape[-1]
        m = self.nb_kernels
        shape = (m, n) if self.transB else (n, m)
        self.W = param(
            x.device, shape, GLOROT_NORMAL, fan_in=n, fan_out=m, dtype=code
        )
        if self.bias:
            self.b = param(x.device, self.bias_shape, dtype=code)

    def forward(self, x: Tensor) -> Tensor:
        y = autograd.apply(
            OPS["matmul"],
            (x, self.W),
            {"transpose_a": self.transA, "transpose_b": self.transB},
        )
        y = y * self.alpha if self.alpha != 1.0 else y
        if not self.bias:
            return y
        return y + (self.b * self.beta if self.beta != 1.0 else self.b)


class Embedding(Layer):
    """Rows of a table (input_dim, output_dim), chosen by integers of any shape."""

    def __init__(
        self, input_dim: int, output_dim: int, initializer: str = "gaussian"
    ) -> None:
        super().__init__()
        if initializer not in ("gaussian", "uniform"):
            raise ValueError(
                f"Embedding: initializer is {initializer!r}; gaussian or uniform is "
                "needed"
            )
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.initializer = initializer
        self._frozen = False

    def initialize(self, x: Tensor) -> None:
        shape = (self.input_dim, self.output_dim)
        if self.initializer == "gaussian":
            self.W = param(x.device, shape, NORMAL, 0.0, 1.0)
        else:
            self.W = param(x.device, shape, UNIFORM, -1.0, 1.0)

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


class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + epsilon) * scale for each row, the last axis."""

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = float(epsilon)

    def initialize(self, x: Tensor) -> None:
        code = floats(x, type(self).__name__)
        self.scale = param(x.device, x.shape[-1:], a=1.0, dtype=code)

    def forward(self, x: Tensor) -> Tensor:
        return autograd.apply(
            OPS["rms_norm"], (x, self.scale), {"epsilon": self.epsilon}
        )


class LayerNorm(RMSNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias for each row."""

    def initialize(self, x: Tensor) -> None:
        super().initialize(x)
        code = x.data.dtype
        self.bias = param(x.device, x.shape[-1:], dtype=code)

    def forward(self, x: Tensor) -> Tensor:
        attrs = {"epsilon": self.epsilon}
        return autograd.apply(
            OPS["layer_norm"], (x, self.scale, self.bias), attrs
        )


def _pair(value, what: str) -> tuple[int, int]:
    if isinstance(value, (int, np.integer)):
        return int(value), int(value)
    pair = tuple(operator.index(v) for v in value)
    if len(pair) != 2:
        raise ValueError(f"{what} is {value!r}; one number or a pair is needed")
    return pair


def _padding(padding, pad_mode: str, what: str) -> dict:
    """The attributes that say what lies around an image."""
    if isinstance(padding, (int, np.integer)) or len(padding) != 4:
        pair = _pair(padding, f"{what}: padding")
        return {"padding": pair, "pad_mode": pad_mode}
    return {
        "padding": padding[:2],
        "padding_after": padding[2:],
        "pad_mode": "EXPLICIT" if pad_mode == "NOTSET" else pad_mode,
    }


class Conv2d(Layer):
    """2-d convolution of images (n, c, h, w).

    nb_kernels: channels of the result; kernel_size, stride, padding, dilation:
    a number or (height, width); padding also (top, left, bottom, right).
    activation: "NOTSET" or "RELU", applied to the result. W (out, c / group,
    kh, kw) starts as N(0, sqrt(2 / (c / group kh kw + out))), b as 0. The form
    Conv2d(in_channels, nb_kernels, kernel_size[, stride[, padding]]) is accepted
    too.
    """

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
        super().__init__()
        self.in_channels: int | None = None
        if args:
            self.in_channels, nb_kernels, kernel_size = (
                nb_kernels,
                kernel_size,
                args[0],
            )
            stride = args[1] if len(args) > 1 else stride
            padding = args[2] if len(args) > 2 else padding
        if kwargs:
            raise TypeError(f"Conv2d has no setting {next(iter(kwargs))!r}")
        if activation.upper() not in ("NOTSET", "NONE", "RELU"):
            raise ValueError(
                f"Conv2d: activation is {activation!r}; NOTSET or RELU is needed"
            )
        self.nb_kernels = operator.index(nb_kernels)
        self.kernel_size = _pair(kernel_size, "Conv2d: kernel_size")
        self.stride = _pair(stride, "Conv2d: stride")
        self.padding = padding
        self.dilation = _pair(dilation, "Conv2d: dilation")
        self.group = group
        self.bias = bias
        self.pad_mode = pad_mode
        self.activation = activation.upper()
        self._attrs = None

    def initialize(self, x: Tensor) -> None:
        check_ndim(x, 4, "Conv2d")
        code = floats(x, "Conv2d")
        channels = x.shape[1]
        if self.in_channels is not None and self.in_channels != channels:
            raise ValueError(
                f"Conv2d: the input has shape {x.shape}; {self.in_channels} channels "
                "were announced"
            )
        self.in_channels = channels
        if channels % self.group or self.nb_kernels % self.group:
            raise ValueError(
                f"Conv2d: {channels} input and {self.nb_kernels} output channels in "
                f"{self.group} groups; both must be multiples of the groups"
            )
        shape = (self.nb_kernels, channels // self.group) + self.kernel_size
        self.W = param(
            x.device,
            shape,
            GLOROT_NORMAL,
            fan_in=shape[1] * shape[2] * shape[3],
            fan_out=self.nb_kernels,
            channels_last=True,
            dtype=code,
        )
        made = param(
            x.device, (self.nb_kernels,), dtype=code, trained=self.bias
        )
        if self.bias:
            self.b = made
        else:
            self._zeros = made

    def forward(self, x: Tensor) -> Tensor:
        if self._attrs is None:
            self._attrs = OPS["conv2d"].attrs(
                stride=self.stride,
                dilation=self.dilation,
                groups=self.group,
                activation="relu" if self.activation == "RELU" else "none",
                **_padding(self.padding, self.pad_mode, "Conv2d"),
            )
        return autograd.apply_attrs(
            OPS["conv2d"],
            (x, self.W, self.b if self.bias else self._zeros),
            self._attrs,
        )


class SeparableConv2d(Layer):
    """A convolution of each channel by itself, then one of 1 by 1."""

    def __init__(
        self,
        nb_kernels: int,
        kernel_size,
        *args,
        stride=1,
        padding=0,
        bias=False,
    ) -> None:
        super().__init__()
        if args:
            # (in_channels, nb_kernels, kernel_size[, stride[, padding]])
            nb_kernels, kernel_size = kernel_size, args[0]
            stride = args[1] if len(args) > 1 else stride
            padding = args[2] if len(args) > 2 else padding
        self.nb_kernels = nb_kernels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.bias = bias

    def initialize(self, x: Tensor) -> None:
        check_ndim(x, 4, "SeparableConv2d")
        self.depthwise_conv = Conv2d(
            x.shape[1],
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            group=x.shape[1],
            bias=self.bias,
        )
        self.point_conv = Conv2d(self.nb_kernels, 1, bias=self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.point_conv(self.depthwise_conv(x))


class ConvTranspose2d(Layer):
    """The transposed 2-d convolution of images (n, c, h, w), with a bias.

    nb_kernels: channels of the result; the others are numbers or (height,
    width), as Conv2d's; output_padding, less than the stride: more rows below
    and columns right. W (c, nb_kernels / group, kh, kw) starts as
    N(0, sqrt(2 / (c / group kh kw + nb_kernels))), b as 0.
    """

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
        super().__init__()
        self.nb_kernels = operator.index(nb_kernels)
        self.kernel_size = _pair(kernel_size, "ConvTranspose2d: kernel_size")
        self.group = group
        self.bias = bias
        self._settings = {
            "stride": _pair(stride, "ConvTranspose2d: stride"),
            "padding": _pair(padding, "ConvTranspose2d: padding"),
            "output_padding": _pair(
                output_padding, "ConvTranspose2d: output_padding"
            ),
            "dilation": _pair(dilation, "ConvTranspose2d: dilation"),
            "groups": group,
        }

    def initialize(self, x: Tensor) -> None:
        check_ndim(x, 4, "ConvTranspose2d")
        code = floats(x, "ConvTranspose2d")
        channels, out, group = x.shape[1], self.nb_kernels, self.group
        if channels % group or out % group:
            raise ValueError(
                f"ConvTranspose2d: {channels} input and {out} output channels in "
                f"{group} groups; both must be multiples of the groups"
            )
        rows, columns = self.kernel_size
        self.W = param(
            x.device,
            (channels, out // group, rows, columns),
            GLOROT_NORMAL,
            fan_in=channels // group * rows * columns,
            fan_out=out,
            channels_last=True,
            dtype=code,
        )
        if self.bias:
            self.b = param(x.device, (out,), dtype=code)

    def forward(self, x: Tensor) -> Tensor:
        y = autograd.apply(OPS["conv_transpose2d"], (x, self.W), self._settings)
        return y + autograd.reshape(self.b, (-1, 1, 1)) if self.bias else y


class MultiHeadAttention(Layer):
    """softmax(q k' / sqrt(head_dim)) v for each head (Vaswani et al., 2017).

    Called with x, or query (n, t, e), key and value (n, s, ...), it gives
    (n, t, e). mask, of a shape that broadcasts to (n, num_heads, t, s): of
    integers or truth values, 0 where a place must not be seen; or of floats, which
    are added to the scores. causal: place i sees those up to i. head_dim None: e /
    num_heads; value_dim None: as head_dim. dropout: of the weights.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = operator.index(num_heads)
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.bias = bias
        self.dropout = Dropout(dropout)
        self.causal = causal

    def initialize(
        self, query: Tensor, key=None, value=None, mask=None
    ) -> None:
        for x in (query, key, value):
            if x is not None:
                check_ndim(x, 3, "MultiHeadAttention")
        heads, width = self.num_heads, query.shape[2]
        if self.head_dim is None and width % heads:
            raise ValueError(
                f"MultiHeadAttention: a row has {width} elements for {heads} "
                "heads; a multiple of the heads, or head_dim, is needed"
            )
        size = self.head_dim or width // heads
        self._factor = size**-0.5
        self.query = Linear(heads * size, bias=self.bias)
        self.key = Linear(heads * size, bias=self.bias)
        self.value = Linear(heads * (self.value_dim or size), bias=self.bias)
        self.out = Linear(width, bias=self.bias)

    def _heads(self, x: Tensor) -> Tensor:
        """(n, t, heads * size) as (n, heads, t, size)."""
        n, rows, _ = x.shape
        x = autograd.reshape(x, (n, rows, self.num_heads, -1))
        return autograd.transpose(x, (0, 2, 1, 3))

    def forward(self, query: Tensor, key=None, value=None, mask=None) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        q = self._heads(self.query(query)) * self._factor
        k, v = self._heads(self.key(key)), self._heads(self.value(value))
        scores = autograd.apply(OPS["matmul"], (q, k), {"transpose_b": True})
        if isinstance(mask, Tensor) and mask.data.dtype in FLOATS:
            scores = scores + mask
        elif mask is not None:
            scores = autograd.where(scores, -math.inf, mask)
        if self.causal:
            seen = np.tri(*scores.shape[2:], dtype=np.float32)
            scores = autograd.where(scores, -math.inf, seen)
        weights = self.dropout(autograd.softmax(scores, 3))
        y = autograd.apply(OPS["matmul"], (weights, v), None)
        y = autograd.transpose(y, (0, 2, 1, 3))
        return self.out(autograd.reshape(y, query.shape[:2] + (-1,)))


class BatchNorm2d(Layer):
    """Normalises each channel of (n, c, h, w), or (n, c), over the batch.

    momentum is the weight of the NEW batch in the running averages, as in
    SINGA; the running variance takes n / (n - 1). epsilon is 1e-5.
    BatchNorm2d(num_features[, momentum]) is accepted too.
    """

    def __init__(self, *args, momentum: float = 0.9) -> None:
        super().__init__()
        if len(args) > 1:
            momentum = args[1]
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"BatchNorm2d: momentum is {momentum}; needs 0 to 1"
            )
        self.channels: int | None = args[0] if args else None
        self.momentum = momentum
        self._handle = _handles.BatchNormHandle(momentum)

    def initialize(self, x: Tensor) -> None:
        check_ndim(x, (2, 4), "BatchNorm2d")
        code = floats(x, "BatchNorm2d")
        c = x.shape[1]
        if self.channels is not None and self.channels != c:
            raise ValueError(
                f"BatchNorm2d: the input has shape {x.shape}; {self.channels} "
                "channels were announced"
            )
        self.channels = c
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


class Pooling2d(Layer):
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
        super().__init__()
        self.kernel_size = _pair(kernel_size, "Pooling2d: kernel_size")
        self.stride = (
            self.kernel_size
            if stride is None
            else _pair(stride, "Pooling2d: stride")
        )
        self.padding = padding
        self.is_max = is_max
        self.pad_mode = pad_mode
        self._attrs = None

    def forward(self, x: Tensor) -> Tensor:
        check_ndim(x, 4, type(self).__name__)
        op = OPS["max_pool2d" if self.is_max else "avg_pool2d"]
        if self._attrs is None:
            self._attrs = op.attrs(
                kernel=self.kernel_size,
                stride=self.stride,
                **_padding(self.padding, self.pad_mode, type(self).__name__),
            )
        return autograd.apply_attrs(op, (x,), self._attrs)


class MaxPool2d(Pooling2d):
    """The largest element of each window."""

    def __init__(self, kernel_size, stride=None, padding=0, pad_mode="NOTSET"):
        super().__init__(kernel_size, stride, padding, True, pad_mode)


class AvgPool2d(Pooling2d):
    """The mean of each window."""

    def __init__(self, kernel_size, stride=None, padding=0, pad_mode="NOTSET"):
        super().__init__(kernel_size, stride, padding, False, pad_mode)


def _flat(value, other: int):
    return None if value is None else (other, operator.index(value))


class MaxPool1d(Pooling2d):
    """The largest element of windows along the last axis of (n, c, h, w)."""

    def __init__(self, kernel_size, stride=None, padding=0, pad_mode="NOTSET"):
        super().__init__(
            (1, kernel_size),
            _flat(stride, 1),
            _flat(padding, 0),
            True,
            pad_mode,
        )


class AvgPool1d(Pooling2d):
    """The mean of windows along the last axis of (n, c, h, w)."""

    def __init__(self, kernel_size, stride=None, padding=0, pad_mode="NOTSET"):
        super().__init__(
            (1, kernel_size),
            _flat(stride, 1),
            _flat(padding, 0),
            False,
            pad_mode,
        )


RNN_Base = _recurrent_layers.RNN_Base
RNN = _recurrent_layers.RNN
LSTM = _recurrent_layers.LSTM
GRU = _recurrent_layers.GRU
CudnnRNN = _recurrent_layers.CudnnRNN


# ---- Layers without parameters: functions of autograd ----


class Flatten(Layer):
    """(n, ...) to two dimensions; axis: the first that goes into the second."""

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
Add = _function_layer("Add", "add", "a + b")
SoftMax = _function_layer(
    "SoftMax", "softmax", "e^x over its sum along axis 1."
)
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


def _list_layers() -> None:
    """The C library's layers that have no class here: by their name."""
    known = {
        "linear": Linear,
        "conv2d": Conv2d,
        "max_pool2d": MaxPool2d,
        "avg_pool2d": AvgPool2d,
        "batch_norm2d": BatchNorm2d,
        "layer_norm": LayerNorm,
        "rms_norm": RMSNorm,
        "embedding": Embedding,
        "dropout": Dropout,
        "relu": ReLU,
        "gelu": Gelu,
        "softmax": SoftMax,
        "separable_conv2d": SeparableConv2d,
        "conv_transpose2d": ConvTranspose2d,
        "flatten": Flatten,
    }
    index = 0
    while True:
        definition = lib.layer_def_get(index)
        if not definition:
            return
        index += 1
        name = lib.layer_def_config(definition).contents.name.decode()
        if name in known or name not in OPS:
            continue
        words = "".join(word.capitalize() for word in name.split("_"))
        globals().setdefault(
            words, _function_layer(words, name, f"Layer of {name}.")
        )


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
