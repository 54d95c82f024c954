# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks of the C library's op `recurrent`: what the layers RNN, LSTM,
GRU and CudnnRNN and the operator _RNN share. `layer` and `_handles` import this.
"""

from __future__ import annotations

from choir import _elements, tensor
from choir._arguments import _indices
from choir._here import here
from choir._layer import LibraryLayer
from choir.autograd import _op
from choir.tensor import Tensor


def _rows(x: Tensor, start: int, count: int) -> Tensor:
    return _op("slice", x, axis=0, start=start, stop=start + count)


def _shaped(x: Tensor, *shape: int) -> Tensor:
    return _op("reshape", x, **tensor._to(shape))


def turned(x: Tensor) -> Tensor:
    """(a, b, columns) as (b, a, columns)."""
    return tensor.transpose(x, (1, 0, 2))


def inputs(x: Tensor, states, lengths, shape) -> list[Tensor]:
    """What the C library's layer takes. states: in this shape, a first size of 1 may
    be left out; None: zeros."""
    xs = [x]
    # Without any the layer makes them, of as many samples as x has.
    for state in states if any(s is not None for s in states) else ():
        if state is not None and state.ndim() == 2:
            state = _shaped(state, 1, *state.shape)
        if state is None:
            state = Tensor._of(_elements.zeros(x.device, shape, x.data.dtype))
        elif state.shape != shape:
            raise ValueError(
                f"a state before the first step has shape {state.shape}; needs "
                f"{shape}"
            )
        xs.append(state)
    if lengths is not None:
        xs.append(_indices(lengths, x))
    return xs


def last_steps(y: Tensor, lengths) -> Tensor:
    """y (T, N, columns) at the last step of each sample, (N, columns); 0 for one
    without any."""
    steps, batch, columns = y.shape
    if lengths is None:
        return _shaped(_rows(y, steps - 1, 1), batch, columns)
    at = _indices(lengths, y) - 1
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
        x = input if isinstance(input, Tensor) else Tensor._of(input)
        self._kind = ("rnn", "rnn", "lstm", "gru")[mode]
        self._settings = {
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "bias": bias,
            "dropout": dropout,
            "bidirectional": bidirectional,
        }
        if mode < 2:
            self._settings["nonlinearity"] = ("relu", "tanh")[mode]
        self.states = 2 if mode == 2 else 1
        self.directions = num_layers * (2 if bidirectional else 1)
        self.hidden_size = hidden_size
        self._draws = num_layers - 1 if dropout else 0
        self._layers: dict[bool, LibraryLayer] = {}
        values = self._layer(x, True).values
        self._shapes = [raw.shape() for raw in values]
        self.weights_size = sum(raw.count() for raw in values)
        values.clear()

    def __getstate__(self) -> dict:
        return dict(self.__dict__, _layers={})

    def _layer(self, x: Tensor, drops: bool) -> LibraryLayer:
        if drops not in self._layers:
            settings = dict(self._settings)
            if not drops:
                settings["dropout"] = 0
            self._layers[drops] = LibraryLayer(
                self._kind, "CudnnRNNHandle", settings, [x]
            )
        return self._layers[drops]

    def run(self, x, states, W: Tensor, lengths) -> list[Tensor]:
        """y (T, N, D H) and the states after the last step."""
        at, weights = 0, []
        for shape in self._shapes:
            size = tensor.product(shape)
            weights.append(_shaped(_rows(W, at, size), *shape))
            at += size
        shape = (self.directions, x.shape[1], self.hidden_size)
        xs = inputs(x, states[: self.states], lengths, shape)
        # A Composite's forward may record outside of training.
        layer = self._layer(x, here.outer_training is not False)
        return layer(xs, weights, 1 + self.states, self._draws)


def rnn_of(
    x, hx, cx, W, handle, return_sequences=False, use_mask=False,
    seq_lengths=None,
):  # fmt: skip
    """SINGA's operator: y, h and of an LSTM c, of x (T, N, F); y is (T, N, D H),
    or the last step of each sample (N, D H)."""
    lengths = seq_lengths if use_mask else None
    y, *states = handle.run(x, (hx, cx), W, lengths)
    if not return_sequences:
        y = last_steps(y, lengths)
    return (y, *states)
