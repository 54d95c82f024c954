# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks of the C library's op `recurrent`: what the layers RNN, LSTM,
GRU and CudnnRNN and the operator _RNN share. `layer` and `_handles` import this.
"""

from __future__ import annotations

import numpy as np

from choir import _functions, autograd, tensor
from choir.autograd import _op
from choir.tensor import Tensor

# Gates and states of a cell.
SIZES = {"rnn_tanh": (1, 1), "rnn_relu": (1, 1), "lstm": (4, 2), "gru": (3, 1)}


def _rows(x: Tensor, start: int, count: int) -> Tensor:
    return _op("slice", x, axis=0, start=start, stop=start + count)


def _shaped(x: Tensor, *shape: int) -> Tensor:
    return _op("reshape", x, **tensor._to(shape))


def turned(x: Tensor) -> Tensor:
    """(a, b, columns) as (b, a, columns)."""
    return tensor.transpose(x, (1, 0, 2))


def _zeros(shape, like: Tensor) -> Tensor:
    return Tensor._of(tensor._zeros(like.device, shape, like.data.dtype))


def _direction(x, weights, cell, h0, c0, lengths, mask, reverse):
    """One direction of x (T, N, F): y, h and, of an LSTM, c (1, N, H)."""
    Wx, Wh, b, bn = weights
    steps, batch, features = x.shape
    x = _shaped(x, steps * batch, features)
    gates = tensor.mult(x, Wx) if b is None else _op("linear", x, Wx, b)
    gates = _shaped(gates, steps, batch, Wx.shape[1])
    initial = h0 if c0 is None else _op("concat", h0, c0, axis=0)
    srcs = [gates, lengths, Wh, initial]
    if cell == "gru":
        srcs.append(_zeros(Wh.shape[:1], x) if bn is None else bn)
    states = _op("recurrent", *srcs, cell=cell, reverse=reverse)
    y = _rows(states, int(not reverse), steps)
    last = 0 if reverse else steps
    h = _rows(states, last, 1)
    c = None if c0 is None else _rows(states, steps + 1 + last, 1)
    return (y if mask is None else y * mask), h, c


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else _op("concat", *parts, axis=axis)


def run(x, weights, cell, h0, c0, lengths, directions, dropout):
    """y (T, N, D H), h and c (L D, N, H), c None where the cell has none.

    x: (T, N, F); weights: (Wx, Wh, b, bn) of each direction of each layer, as
    model/layers.h has them, b or bn None: none; h0, c0: None is zeros; lengths:
    whole numbers, one for each sample, or None.
    """
    steps, batch, _ = x.shape
    hidden = weights[0][1].shape[0]
    mask = None
    if lengths is None:
        lengths = np.full((batch,), steps, np.int32)
        lengths = Tensor._of(tensor._constant(x.device, lengths))
    else:
        lengths = _functions._indices(lengths, x)
        numbers = np.arange(steps).reshape(steps, 1)
        is_in = _functions._beside(numbers, lengths) < lengths
        mask = _functions._as(is_in, x.data.dtype)
        mask = _shaped(mask, steps, batch, 1)
    states = []
    for state in (h0, c0)[: SIZES[cell][1]]:
        if state is None:
            state = _zeros((len(weights), batch, hidden), x)
        elif state.shape != (len(weights), batch, hidden):
            raise ValueError(
                f"a state before the first step has shape {state.shape}; needs "
                f"{(len(weights), batch, hidden)}"
            )
        states.append(state)
    ys, hs, cs = [x], [], []
    for place, ws in enumerate(weights):
        if place % directions == 0:
            if place:
                x = _joined(ys, 2)
                if dropout:  # masks are drawn by sample, which so comes first
                    x = turned(autograd.dropout(turned(x), ratio=dropout))
            ys = []
        own = [_rows(state, place, 1) for state in states] + [None]
        reverse = bool(place % directions)
        y, h, c = _direction(x, ws, cell, *own[:2], lengths, mask, reverse)
        ys.append(y)
        hs.append(h)
        cs.append(c)
    c = None if cs[0] is None else _joined(cs, 0)
    return _joined(ys, 2), _joined(hs, 0), c


def last_steps(y: Tensor, lengths) -> Tensor:
    """y (T, N, columns) at the last step of each sample, (N, columns); 0 for one
    without any."""
    steps, batch, columns = y.shape
    if lengths is None:
        return _shaped(_rows(y, steps - 1, 1), batch, columns)
    at = _functions._indices(lengths, y) - 1
    at = _op(
        "broadcast_to",
        _shaped(at, 1, batch, 1),
        **tensor._to((1, batch, columns)),
    )
    return _shaped(_op("gather_elements", y, at, axis=0), batch, columns)


class RNNHandle:
    """Of a recurrent network over `input` (T, N, F), as SINGA's CudnnRNNHandle.

    mode: 0 and 1 are an RNN with relu or tanh, 2 an LSTM, 3 a GRU. weights_size:
    the elements of the one tensor W that has all weights: of each layer, and in it
    of each direction, Wx (F, G H), Wh (H, G H) and, with a bias, b (G H) and of
    a GRU bn (H), one after the other.
    """

    def __init__(
        self,
        input,
        hidden_size: int,
        mode: int = 0,
        num_layers: int = 1,
        bias: int = 1,
        dropout: float = 0.0,
        bidirectional: int = 0,
    ) -> None:
        shape = input.shape() if callable(input.shape) else input.shape
        if len(shape) != 3:
            raise ValueError(
                f"CudnnRNNHandle: the input has shape {shape}; three dimensions "
                "(steps, samples, features) are needed"
            )
        self.cell = ("rnn_relu", "rnn_tanh", "lstm", "gru")[mode]
        self.dropout = dropout
        self.directions = 2 if bidirectional else 1
        self._shapes = []
        for place in range(num_layers * self.directions):
            features = shape[2] if place < self.directions else 0
            features = features or hidden_size * self.directions
            columns = SIZES[self.cell][0] * hidden_size
            shapes = [(features, columns), (hidden_size, columns), None, None]
            if bias:
                shapes[2] = (columns,)
            if bias and self.cell == "gru":
                shapes[3] = (hidden_size,)
            self._shapes.append(shapes)
        self.weights_size = sum(
            int(np.prod(one))
            for shapes in self._shapes
            for one in shapes
            if one
        )

    def split(self, W: Tensor) -> list:
        """The weights as `run` takes them."""
        at, result = 0, []
        for shapes in self._shapes:
            parts = []
            for shape in shapes:
                parts.append(None)
                if shape:
                    size = int(np.prod(shape))
                    parts[-1] = _shaped(_rows(W, at, size), *shape)
                    at += size
            result.append(parts)
        return result


def rnn_of(
    x,
    hx,
    cx,
    W,
    handle,
    return_sequences=False,
    use_mask=False,
    seq_lengths=None,
):
    """SINGA's operator: y, h and of an LSTM c, of x (T, N, F); y is (T, N, D H),
    or the last step of each sample (N, D H)."""
    lengths = seq_lengths if use_mask else None
    y, h, c = run(
        x,
        handle.split(W),
        handle.cell,
        hx,
        cx,
        lengths,
        handle.directions,
        handle.dropout,
    )
    if not return_sequences:
        y = last_steps(y, lengths)
    return (y, h) if c is None else (y, h, c)
