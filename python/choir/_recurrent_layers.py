# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers of `layer`."""

from __future__ import annotations

import operator

from choir import _recurrent, autograd
from choir._arguments import _to_shape
from choir._layer import (
    CONSTANT,
    NORMAL,
    UNIFORM,
    Layer,
    ListLayer,
    announced,
    floats,
    param,
)
from choir.tensor import Tensor


class RNN_Base(ListLayer):
    """Recurrent layers: num_layers one upon the other, with bidirectional a second
    direction of each from the last step to the first, dropout between layers.

    Takes all steps as one tensor (steps, batch, features), with batch_first
    (batch, steps, features), or as a list of (batch, features); then the states
    before the first step, (layers * directions, batch, hidden_size) or, of one,
    (batch, hidden_size), None: zeros; and lengths: steps of each sample, behind
    which y is 0 and the states stay. Gives y, of the last layer and in the form
    of the steps, and the states after the last step. A list is slower: its steps
    are slices.

    Names of the parameters of further layers end with _l1, _l2, ..., and then
    those of the other direction with _reverse.
    """

    _input = "input_size", -1
    _results = 2  # y and the states

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
    ) -> None:
        if not 0 <= dropout < 1:
            raise ValueError(
                f"{type(self).__name__}: dropout is {dropout}; needs 0 to below 1"
            )
        if operator.index(num_layers) < 1:
            raise ValueError(
                f"{type(self).__name__}: num_layers is {num_layers}; needs 1 at "
                "least"
            )
        super().__init__(
            input_size=input_size, hidden_size=hidden_size,
            num_layers=num_layers, bias=bias, batch_first=batch_first,
            dropout=dropout, bidirectional=bidirectional,
            _draws=num_layers - 1 if dropout else 0,
        )  # fmt: skip

    def forward(self, xs, h0=None, lengths=None):
        return tuple(self._steps(xs, (h0,), lengths))

    def step_forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self._steps([x], (h,), None)[1]

    def _settings(self) -> dict:
        return super()._settings() | {"batch_first": False}

    def initialize(self, xs, *args, **kwargs) -> None:
        is_list = isinstance(xs, (list, tuple))
        x = _to_shape(xs[0], (1, *xs[0].shape)) if is_list else xs
        self._initialize(x)

    def _initialize(self, x: Tensor) -> None:
        """By steps as one tensor."""
        super().initialize(x)

    def _steps(self, xs, states, lengths) -> list:
        """y and the states, in the form of the steps and the states that were given."""
        is_list = isinstance(xs, (list, tuple))
        if is_list:
            x = autograd.cat([_to_shape(x, (1, *x.shape)) for x in xs], 0)
        else:
            x = _recurrent.turned(xs) if self.batch_first else xs
        is_flat = any(s is not None and s.ndim() == 2 for s in states)
        places = self.num_layers * (2 if self.bidirectional else 1)
        shape = places, x.shape[1], self.hidden_size
        y, *states = self._run(*_recurrent.inputs(x, states, lengths, shape))
        if is_list:
            y = [
                _to_shape(part, part.shape[1:])
                for part in autograd.split(y, 0, [1] * len(xs))
            ]
        elif self.batch_first:
            y = _recurrent.turned(y)
        if is_flat:
            states = [_to_shape(s, s.shape[1:]) for s in states]
        return [y, *states]


class RNN(RNN_Base):
    """h = f(x Wx + h Wh + b) for each step; weights start as N(0, 1), b as 0.

    Takes steps, h and lengths and gives (y, h) as RNN_Base tells.
    """

    _kind = "rnn"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional,
        )  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"RNN: nonlinearity is {nonlinearity!r}; tanh or relu"
            )
        self.nonlinearity = nonlinearity


class LSTM(RNN_Base):
    """Gates i, f, o and g over steps; weights start as N(0, 0.01), biases as 0.

    c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c) (Hochreiter and
    Schmidhuber, 1997, with forget gates). Takes steps, (h, c) and lengths and
    gives (y, h, c) as RNN_Base tells. Each gate has its own Wx_i, Wh_i, b_i, ...,
    as SINGA's; the C library's layer has them side by side.
    """

    _kind = "lstm"
    _results = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: str = "tanh",
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional,
        )  # fmt: skip
        if nonlinearity != "tanh":
            raise NotImplementedError(f"LSTM: nonlinearity is {nonlinearity!r}")

    def _initialize(self, x: Tensor) -> None:
        code = floats(x, "LSTM")
        announced(self, *self._input, x)
        made = self._make([x])
        for suffix in [p[2:] for p in made.paths if p.startswith("Wx")]:
            for gate in "ifog":
                for name in ("Wx", "Wh", "b")[: 3 if self.bias else 2]:
                    wide = made.values[made.paths.index(name + suffix)].shape()
                    start = (CONSTANT,) if name == "b" else (NORMAL, 0.0, 0.01)
                    shape = (*wide[:-1], self.hidden_size)
                    one = param(x.device, shape, *start, dtype=code)
                    setattr(self, f"{name}_{gate}{suffix}", one)
        made.values.clear()

    def _weights(self) -> list[Tensor]:
        weights = []
        for path in self._made.paths:
            name, *end = path.split("_", 1)
            gates = [
                getattr(self, "_".join([name, gate, *end])) for gate in "ifgo"
            ]
            weights.append(autograd.cat(gates, gates[0].ndim() - 1))
        return weights

    def forward(self, xs, h0_c0=None, lengths=None):
        return tuple(self._steps(xs, h0_c0 or (None, None), lengths))

    def step_forward(self, x: Tensor, h: Tensor, c: Tensor):
        return tuple(self._steps([x], (h, c), None)[1:])


class GRU(RNN_Base):
    """r = sigmoid(x Wx_r + h Wh_r + b_r), z likewise,
    n = tanh(x Wx_n + b_n + r (h Wh_n + bn)), h = (1 - z) n + z h (Cho et al.,
    2014, in PyTorch's form).

    Wx (in, 3 H), Wh (H, 3 H), b (3 H) have the columns of r, z and n, bn (H) is
    its own. Weights start evenly from -1 / sqrt(H) to 1 / sqrt(H), biases as 0. Takes
    steps, h and lengths and gives (y, h) as RNN_Base tells.
    """

    _kind = "gru"


class CudnnRNN(Layer):
    """SINGA's recurrent layer with all weights in one tensor W, which starts evenly
    from -1 / sqrt(hidden_size) to 1 / sqrt(hidden_size); on every device.

    rnn_mode: "vanilla" (with the activation "tanh" or "relu"), "lstm" or "gru". W
    lies as singa_wrap.CudnnRNNHandle tells. Takes x (steps, batch, features), with
    batch_first (batch, steps, features), hx and cx (None: zeros) and, with
    use_mask, seq_lengths; gives y of all steps or, without return_sequences, of
    the last step of each sample.
    """

    _keeps_places = False

    def __init__(
        self,
        hidden_size: int,
        activation: str = "tanh",
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0,
        bidirectional: bool = False,
        rnn_mode: str = "lstm",
        use_mask: bool = False,
        return_sequences: bool = True,
    ) -> None:
        super().__init__()
        modes = {"lstm": 2, "gru": 3, "vanilla": 1}
        if rnn_mode not in modes or activation not in ("tanh", "relu"):
            raise ValueError(
                f"CudnnRNN: rnn_mode is {rnn_mode!r} and activation "
                f"{activation!r}; vanilla, lstm or gru, and tanh or relu are known"
            )
        self.hidden_size = hidden_size
        self.mode = modes[rnn_mode]
        if rnn_mode == "vanilla" and activation == "relu":
            self.mode = 0
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.use_mask = use_mask
        self.return_sequences = return_sequences

    def _handle(self, x: Tensor):
        if "_made" not in self.__dict__:
            self._made = _recurrent.RNNHandle(
                x, self.hidden_size, self.mode, self.num_layers, self.bias,
                self.dropout, self.bidirectional,
            )  # fmt: skip
        return self._made

    def initialize(self, x, hx=None, cx=None, seq_lengths=None) -> None:
        size = self._handle(x).weights_size
        bound = 1 / self.hidden_size**0.5
        code = floats(x, "CudnnRNN")
        self.W = param(x.device, (size,), UNIFORM, -bound, bound, dtype=code)

    def forward(self, x, hx=None, cx=None, seq_lengths=None):
        if self.batch_first:
            x = _recurrent.turned(x)
        rnn = autograd._RNN(
            self._handle(x), self.return_sequences, self.use_mask, seq_lengths
        )
        y = rnn(x, hx, cx, self.W)[0]
        if self.batch_first and self.return_sequences:
            y = _recurrent.turned(y)
        return y
