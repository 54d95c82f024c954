# SPDX-License-Identifier: Apache-2.0
"""SINGA's handles: the settings of a convolution, a pooling, a batch norm, and
the functions of autograd that take them. New code uses the layers."""

from __future__ import annotations

from choir import _composites, _raw, _recurrent, _sync_norm, autograd, tensor
from choir._here import here
from choir._raw import CTensor, OPS
from choir.tensor import Tensor


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


class ConvHandle:
    """Of images like `input` (n, c, h, w): kernel, stride and padding as
    (height, width)."""

    def __init__(
        self,
        input: CTensor,
        kernel_size,
        stride,
        padding,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        shape = input.shape() if isinstance(input, CTensor) else input.shape
        if len(shape) != 4 or shape[1] != in_channels:
            raise ValueError(
                f"ConvHandle: the input has shape {shape}; four dimensions and "
                f"{in_channels} channels are needed"
            )
        self.batchsize = shape[0]
        self.channels = in_channels
        self.num_filters = out_channels
        self.kernel_size = _pair(kernel_size)
        self.stride = _pair(stride)
        self.padding = _pair(padding)
        self.bias_term = bias
        self.group = groups


class PoolingHandle:
    """Of images: kernel, stride and padding as (height, width)."""

    def __init__(
        self, input: CTensor, kernel_size, stride, padding, is_max: bool = True
    ) -> None:
        self.kernel_size = _pair(kernel_size)
        self.stride = _pair(stride)
        self.padding = _pair(padding)
        self.is_max_pooling = is_max


class BatchNormHandle:
    """momentum: the weight of the new batch in the running averages."""

    # The layer, where a batch is that of all ranks.
    _sync = None

    def __init__(self, momentum: float, input: CTensor | None = None) -> None:
        self.factor = momentum


def _padding(handle, odd_padding) -> dict:
    top, bottom, left, right = odd_padding
    rows, columns = handle.padding
    return {
        "padding": (rows + top, columns + left),
        "padding_after": (rows + bottom, columns + right),
        "pad_mode": "explicit" if any(odd_padding) else "notset",
    }


def conv2d(handle, x, W, b=None, odd_padding=(0, 0, 0, 0)) -> Tensor:
    """A convolution as the handle says; odd_padding: (top, bottom, left, right)
    around the image beside the handle's padding."""
    if b is None:
        b = Tensor(
            (handle.num_filters,), x.device, x.dtype, requires_grad=False
        )
    settings = {
        "stride": handle.stride,
        **_padding(handle, odd_padding),
        "groups": handle.group,
    }
    return autograd.apply(OPS["conv2d"], (x, W, b), settings)


def pooling_2d(handle, x, odd_padding=(0, 0, 0, 0)) -> Tensor:
    """A pooling as the handle says."""
    settings = {
        "kernel": handle.kernel_size,
        "stride": handle.stride,
        **_padding(handle, odd_padding),
    }
    op = "max_pool2d" if handle.is_max_pooling else "avg_pool2d"
    return autograd.apply(OPS[op], (x,), settings)


def batchnorm_2d(handle, x, scale, bias, running_mean, running_var) -> Tensor:
    """Normalises each channel: in training over the batch, and brings the running
    averages up to date in place, in a model's step when it updates; else by them.
    """
    if x.ndim() == 2:
        image = tensor.reshape(x, x.shape + (1, 1))
        y = batchnorm_2d(handle, image, scale, bias, running_mean, running_var)
        return tensor.reshape(y, x.shape)
    sync = handle._sync
    if not here.training:
        if sync is not None:
            _sync_norm.note(sync)
        sources = (x, scale, bias, running_mean, running_var)
        return autograd.apply_attrs(OPS["batch_norm_infer"], sources, None)
    if sync is not None:
        node = _sync_norm._SyncBatchNorm(sync)
        y = node(x, scale, bias)[0]
        batch, unbias = node.moments(), 1.0
    else:
        node = autograd._classes["batch_norm"]()
        y = node(x, scale, bias)[0]
        n = x.shape[0] * x.shape[2] * x.shape[3]
        batch, unbias = node._all[1:], n / (n - 1) if n > 1 else 1
    weights = (handle.factor, handle.factor * unbias)
    averages = [
        running.data if isinstance(running, Tensor) else running
        for running in (running_mean, running_var)
    ]
    keep = 1 - handle.factor

    def update() -> None:
        for raw, new, weight in zip(averages, batch, weights):
            _raw.run("scale", raw, out=[raw], factor=keep, shift=0.0)
            _raw.run(
                "scale",
                new,
                out=[raw],
                accumulate=True,
                factor=weight,
                shift=0.0,
            )

    if here.model_step is None:
        update()
    else:
        here.model_step.when_updated(update)
    return y


def _of(function):
    """Of tensors and, by name, the handle."""
    return staticmethod(
        lambda *xs, handle, **given: function(handle, *xs, **given)
    )


class _Handled(_composites.Composite):
    """An operator that is made of a handle."""

    def _begin_with(self, name: str | None = None, **given) -> None:
        autograd.Operator.__init__(self, name)
        self._given = given


class _Conv2d(_Handled):
    """The operator of conv2d."""

    _function = _of(conv2d)

    def __init__(self, handle, odd_padding=(0, 0, 0, 0)) -> None:
        self._begin_with(handle=handle, odd_padding=odd_padding)

    def forward(self, x, W, b=None):
        """Raw tensors in, a raw tensor out."""
        return super().forward(*((x, W) if b is None else (x, W, b)))

    def backward(self, dy):
        """Gradients of x, W and b."""
        return super().backward(dy)


class _Pooling2d(_Handled):
    """The operator of pooling_2d."""

    _function = _of(pooling_2d)

    def __init__(self, handle, odd_padding=(0, 0, 0, 0)) -> None:
        self._begin_with(handle=handle, odd_padding=odd_padding)

    def forward(self, x):
        """A raw tensor in, one out."""
        return super().forward(x)

    def backward(self, dy):
        """The gradient of x."""
        return super().backward(dy)


class _BatchNorm2d(_Handled):
    """The operator of batchnorm_2d."""

    _function = _of(batchnorm_2d)

    def __init__(self, handle, running_mean, running_var, name=None) -> None:
        self._begin_with(
            name,
            handle=handle,
            running_mean=running_mean,
            running_var=running_var,
        )

    def forward(self, x, scale, bias):
        """Raw tensors in, a raw tensor out."""
        return super().forward(x, scale, bias)

    def backward(self, dy):
        """Gradients of x, scale and bias."""
        return super().backward(dy)


class _RNN(_Handled):
    """The operator of a recurrent network: y, h and of an LSTM c."""

    _function = staticmethod(_recurrent.rnn_of)

    def __init__(
        self,
        handle,
        return_sequences=False,
        use_mask=False,
        seq_lengths=None,
    ) -> None:
        self._begin_with(
            handle=handle,
            return_sequences=return_sequences,
            use_mask=use_mask,
            seq_lengths=seq_lengths,
        )

    def forward(self, x, hx, cx, w):
        """Raw tensors in, a tuple of them out."""
        return super().forward(x, hx, cx, w)

    def backward(self, *grad):
        """Gradients of x, hx, cx and W; grad: of y or of all results."""
        rest = len((self._last or self)._made or ()) - len(grad)
        return super().backward(*grad, *[None] * rest)


def _recorded(function, cls, *settings: str):
    return _composites.recorded(function, cls, {one: one for one in settings})


conv2d = _recorded(conv2d, _Conv2d, "handle", "odd_padding")
pooling_2d = _recorded(pooling_2d, _Pooling2d, "handle", "odd_padding")
batchnorm_2d = _recorded(
    batchnorm_2d, _BatchNorm2d, "handle", "running_mean", "running_var"
)


def public() -> dict:
    """The names that `autograd` has from here."""
    return {
        "conv2d": conv2d,
        "pooling_2d": pooling_2d,
        "batchnorm_2d": batchnorm_2d,
        "_Conv2d": _Conv2d,
        "_Pooling2d": _Pooling2d,
        "_BatchNorm2d": _BatchNorm2d,
        "_RNN": _RNN,
    }
