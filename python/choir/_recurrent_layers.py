# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers of `layer`."""

from __future__ import annotations

import operator

from choir import _recurrent, autograd
from choir._functions import _to_shape
from choir._layer import NORMAL, UNIFORM, Layer, check_ndim, floats, param
from choir.tensor import Tensor


class RNN_Base(Layer):
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

    _cell = ""
    _start: tuple = ()  # how weights start

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
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"{type(self).__name__}: dropout is {dropout}; needs 0 to below 1"
            )
        if operator.index(num_layers) < 1:
            raise ValueError(
                f"{type(self).__name__}: num_layers is {num_layers}; needs 1 at "
                "least"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.directions = 2 if bidirectional else 1

    def step_forward(self, *args):
        raise NotImplementedError(
            f"{type(self).__name__} defines no step_forward"
        )

    def _suffixes(self):
        """The end of names, of each layer and direction."""
        for level in range(self.num_layers):
            for reverse in range(self.directions):
                yield (f"_l{level}" if level else "") + "_reverse" * reverse

    def initialize(self, xs, *args, **kwargs) -> None:
        x = xs[0] if isinstance(xs, (list, tuple)) else xs
        name = type(self).__name__
        code = floats(x, name)
        for place, suffix in enumerate(self._suffixes()):
            features = self.input_size
            if place >= self.directions:
                features = self.hidden_size * self.directions
            self._make(x.device, code, features, suffix)

    def _make(self, device, code: int, features: int, suffix: str) -> None:
        """Parameters of one layer and direction."""
        m = self.hidden_size
        columns = _recurrent.SIZES[self._cell][0] * m
        for name, rows in (("Wx", features), ("Wh", m)):
            w = param(device, (rows, columns), *self._start, dtype=code)
            setattr(self, name + suffix, w)
        for name, size in (("b", columns), ("bn", m)):
            if name == "b" or self._cell == "gru":
                # Drawn without a bias as well, as the C library's layers do.
                made = param(device, (size,), trained=self.bias, dtype=code)
                if self.bias:
                    setattr(self, name + suffix, made)

    def _weights(self, suffix: str) -> tuple:
        """Wx, Wh, b and bn of one layer and direction."""
        return tuple(
            self.__dict__.get(name + suffix) for name in ("Wx", "Wh", "b", "bn")
        )

    def _run(self, xs, states, lengths):
        """y, h and c, in the form of the steps and the states that were given."""
        is_list = isinstance(xs, (list, tuple))
        if is_list:
            x = autograd.cat([_to_shape(x, (1, *x.shape)) for x in xs], 0)
        else:
            x = _recurrent.turned(xs) if self.batch_first else xs
        check_ndim(x, 3, type(self).__name__)
        is_flat = any(s is not None and s.ndim() == 2 for s in states)
        y, h, c = _recurrent.run(
            x,
            [self._weights(suffix) for suffix in self._suffixes()],
            self._cell,
            *[
                _to_shape(s, (1, *s.shape)) if is_flat and s is not None else s
                for s in (*states, None)[:2]
            ],
            lengths,
            self.directions,
            self.dropout,
        )
        if is_list:
            y = [
                _to_shape(part, part.shape[1:])
                for part in autograd.split(y, 0, [1] * len(xs))
            ]
        elif self.batch_first:
            y = _recurrent.turned(y)
        if is_flat:
            h = _to_shape(h, h.shape[1:])
            c = None if c is None else _to_shape(c, c.shape[1:])
        return y, h, c


class RNN(RNN_Base):
    """h = f(x Wx + h Wh + b) for each step; weights start as N(0, 1), b as 0.

    Takes steps, h and lengths and gives (y, h) as RNN_Base tells.
    """

    _start = (NORMAL, 0.0, 1.0)

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
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
        )
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"RNN: nonlinearity is {nonlinearity!r}; tanh or relu"
            )
        self.nonlinearity = nonlinearity
        self._cell = f"rnn_{nonlinearity}"

    def forward(self, xs, h0=None, lengths=None):
        return self._run(xs, (h0,), lengths)[:2]

    def step_forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self._run([x], (h,), None)[1]


class LSTM(RNN_Base):
    """Gates i, f, o and g over steps; weights start as N(0, 0.01), biases as 0.

    c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c) (Hochreiter and
    Schmidhuber, 1997, with forget gates). Takes steps, (h, c) and lengths and
    gives (y, h, c) as RNN_Base tells. Each gate has its own Wx_i, Wh_i, b_i, ...,
    as SINGA's; the C library's layer has them side by side.
    """

    _cell = "lstm"

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
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
        )
        if nonlinearity != "tanh":
            raise NotImplementedError(f"LSTM: nonlinearity is {nonlinearity!r}")

    def _make(self, device, code: int, features: int, suffix: str) -> None:
        m = self.hidden_size
        for gate in "ifog":
            for name, shape in (("Wx", (features, m)), ("Wh", (m, m))):
                w = param(device, shape, NORMAL, 0.0, 0.01, dtype=code)
                setattr(self, f"{name}_{gate}{suffix}", w)
            if self.bias:
                b = param(device, (m,), dtype=code)
                setattr(self, f"b_{gate}{suffix}", b)

    def _weights(self, suffix: str) -> tuple:
        Wx, Wh, b = (
            [getattr(self, f"{name}_{gate}{suffix}") for gate in "ifgo"]
            if name != "b" or self.bias
            else None
            for name in ("Wx", "Wh", "b")
        )
        return (
            autograd.cat(Wx, 1),
            autograd.cat(Wh, 1),
            b and autograd.cat(b, 0),
            None,
        )

    def forward(self, xs, h0_c0=None, lengths=None):
        return self._run(xs, h0_c0 or (None, None), lengths)

    def step_forward(self, x: Tensor, h: Tensor, c: Tensor):
        return self._run([x], (h, c), None)[1:]


class GRU(RNN_Base):
    """r = sigmoid(x Wx_r + h Wh_r + b_r), z likewise,
    n = tanh(x Wx_n + b_n + r (h Wh_n + bn)), h = (1 - z) n + z h (Cho et al.,
    2014, in PyTorch's form).

    Wx (in, 3 H), Wh (H, 3 H), b (3 H) have the columns of r, z and n, bn (H) is
    its own. Weights start evenly from -1 / sqrt(H) to 1 / sqrt(H), biases as 0. Takes
    steps, h and lengths and gives (y, h) as RNN_Base tells.
    """

    _cell = "gru"

    @property
    def _start(self) -> tuple:
        bound = 1 / max(self.hidden_size, 1) ** 0.5
        return (UNIFORM, -bound, bound)

    def forward(self, xs, h0=None, lengths=None):
        return self._run(xs, (h0,), lengths)[:2]

    def step_forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self._run([x], (h,), None)[1]


class CudnnRNN(Layer):
    """SINGA's recurrent layer with all weights in one tensor W, which starts evenly
    from -1 / sqrt(hidden_size) to 1 / sqrt(hidden_size); on every device.

    rnn_mode: "vanilla" (with the activation "tanh" or "relu"), "lstm" or "gru". W
    lies as singa_wrap.CudnnRNNHandle tells. Takes x (steps, batch, features), with
    batch_first (batch, steps, features), hx and cx (None: zeros) and, with
    use_mask, seq_lengths; gives y of all steps or, without return_sequences, of
    the last step of each sample.
    """

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
        return _recurrent.RNNHandle(
            x,
            self.hidden_size,
            self.mode,
            self.num_layers,
            self.bias,
            self.dropout,
            self.bidirectional,
        )

    def initialize(self, x, hx=None, cx=None, seq_lengths=None) -> None:
        size = self._handle(x).weights_size
        bound = 1 / self.hidden_size**0.5
        code = floats(x, "CudnnRNN")
        self.W = param(x.device, (size,), UNIFORM, -bound, bound, dtype=code)

    def forward(self, x, hx=None, cx=None, seq_lengths=None):
        if self.batch_first:
            x = _recurrent.turned(x)
        y = _recurrent.rnn_of(
            x,
            hx,
            cx,
            self.W,
            self._handle(x),
            self.return_sequences,
            self.use_mask,
            seq_lengths,
        )[0]
        if self.batch_first and self.return_sequences:
            y = _recurrent.turned(y)
        return y
