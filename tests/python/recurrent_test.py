# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers against PyTorch: values and gradients, of all cells, layers,
directions, with states and lengths. Skips where PyTorch is not installed."""

import itertools
import pickle
import unittest

import numpy as np

from choir import autograd, layer, singa_wrap, tensor
from formulas import RNG

try:
    import torch
except ImportError:
    torch = None

T, N, F, H = 5, 4, 3, 6
LENGTHS = np.array([3, 5, 1, 4], np.int32)
TORCH = {
    "tanh": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="tanh", **k),
    "relu": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k),
    "lstm": lambda *a, **k: torch.nn.LSTM(*a, **k),
    "gru": lambda *a, **k: torch.nn.GRU(*a, **k),
}
CHOIR = {
    "tanh": lambda *a, **k: layer.RNN(*a, nonlinearity="tanh", **k),
    "relu": lambda *a, **k: layer.RNN(*a, nonlinearity="relu", **k),
    "lstm": layer.LSTM,
    "gru": layer.GRU,
}


def array(*shape):
    return (RNG.random(shape) - 0.5).astype(np.float32)


def suffixes(layers, directions):
    """(of choir's, of torch's) names."""
    for level, reverse in itertools.product(range(layers), range(directions)):
        end = "_reverse" * reverse
        yield (f"_l{level}" if level else "") + end, f"_l{level}{end}"


def share(cell, made, theirs, layers, directions, bias):
    """Sets torch's weights to ours; {their name: how to read our gradient}."""
    reads = {}
    for own, other in suffixes(layers, directions):
        for name, wide in (
            ("Wx", "weight_ih"),
            ("Wh", "weight_hh"),
            ("b", "bias_ih"),
        ):
            if name == "b" and not bias:
                continue
            if cell == "lstm":
                parts = [getattr(made, f"{name}_{g}{own}") for g in "ifgo"]
            else:
                parts = [getattr(made, name + own)]
            with torch.no_grad():
                value = np.concatenate([p.numpy() for p in parts], -1)
                getattr(theirs, wide + other).copy_(
                    torch.from_numpy(value.T.copy())
                )
            reads[wide + other] = parts
        if bias:
            hidden = getattr(theirs, f"bias_hh{other}")
            with torch.no_grad():
                hidden.zero_()
                if cell == "gru":
                    bn = getattr(made, f"bn{own}")
                    hidden[2 * H :] = torch.from_numpy(bn.numpy())
                    reads[f"bias_hh{other}"] = [bn]
    return reads


@unittest.skipIf(torch is None, "PyTorch is not installed")
class BesidePyTorch(unittest.TestCase):
    def near(self, got, expected):
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5)

    def check(
        self, cell, layers, directions, bias, batch_first, given, lengths
    ):
        settings = dict(
            num_layers=layers,
            bidirectional=directions == 2,
            bias=bias,
            batch_first=batch_first,
        )
        made, theirs = CHOIR[cell](F, H, **settings), TORCH[cell](
            F, H, **settings
        )
        count = 2 if cell == "lstm" else 1
        arrays = [array(*((N, T) if batch_first else (T, N)), F)]
        if given:
            arrays += [array(layers * directions, N, H) for _ in range(count)]
        ours = []
        for one in arrays:
            ours.append(tensor.from_numpy(one))
            ours[-1].requires_grad = ours[-1].stores_grad = True
        more = {"lengths": LENGTHS} if lengths else {}

        def run():
            if not given:
                return made(ours[0], **more)
            return made(
                ours[0], tuple(ours[1:]) if count > 1 else ours[1], **more
            )

        run()
        for p in made.get_params().values():
            p.copy_from_numpy(array(*p.shape))
        reads = share(cell, made, theirs, layers, directions, bias)
        results = run()
        xs = [torch.from_numpy(one).requires_grad_() for one in arrays]
        state = None if not given else tuple(xs[1:]) if count > 1 else xs[1]
        if lengths:
            packed = torch.nn.utils.rnn.pack_padded_sequence(
                xs[0], torch.from_numpy(LENGTHS).long(), batch_first, False
            )
            y, last = theirs(packed, state)
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first)
        else:
            y, last = theirs(xs[0], state)
        expected = [y, *(last if count > 1 else [last])]
        loss, slopes = None, 0
        for got, want in zip(results, expected, strict=True):
            self.near(got.numpy(), want.detach().numpy())
            weights = array(*got.shape)
            slopes = slopes + (want * torch.from_numpy(weights)).sum()
            product = got * tensor.from_numpy(weights)
            one = autograd._op("sum", product)
            loss = one if got is results[0] else loss + one
        slopes.backward()
        grads = {id(p): g.numpy() for p, g in autograd.backward(loss)}
        for one, x in zip(ours, xs):
            self.near(grads[id(one)], x.grad.numpy())
        for name, parts in reads.items():
            got = np.concatenate([grads[id(p)] for p in parts], -1)
            want = getattr(theirs, name).grad.numpy().T
            if name.startswith("bias_hh"):
                want = want[2 * H :]
            self.near(got, want)

    def test_values_and_gradients(self):
        self.addCleanup(setattr, autograd, "training", autograd.training)
        autograd.training = True
        for cell in TORCH:
            for layers, directions in itertools.product((1, 2), (1, 2)):
                for given, lengths in itertools.product(
                    (False, True), repeat=2
                ):
                    bias = not (given and lengths)
                    with self.subTest(
                        cell, layers=layers, directions=directions
                    ):
                        self.check(
                            cell,
                            layers,
                            directions,
                            bias,
                            lengths,
                            given,
                            lengths,
                        )


class Forms(unittest.TestCase):
    """Ways to call them, which all give the same."""

    def setUp(self):
        self.x = array(T, N, F)

    def test_lists_and_batch_first(self):
        for cls in (layer.RNN, layer.LSTM, layer.GRU):
            made = cls(F, H)
            y, h, *_ = made(tensor.from_numpy(self.x))
            steps = [tensor.from_numpy(one) for one in self.x]
            ys, *_ = made(steps)
            self.assertEqual(len(ys), T)
            for one, other in zip(ys, y.numpy()):
                np.testing.assert_array_equal(one.numpy(), other)
            state = h0 = tensor.zeros((N, H))
            if cls is layer.LSTM:
                state = h0, h0
            self.assertEqual(made(steps, state)[1].shape, (N, H))
            made.batch_first = True
            turned = tensor.from_numpy(self.x.transpose(1, 0, 2).copy())
            got = made(turned)
            np.testing.assert_array_equal(
                got[0].numpy().transpose(1, 0, 2), y.numpy()
            )
            np.testing.assert_array_equal(got[1].numpy(), h.numpy())

    def test_dropout_lies_between_layers(self):
        autograd.training = True
        self.addCleanup(setattr, autograd, "training", False)
        made = layer.GRU(F, H, num_layers=2, dropout=0.5)
        x = tensor.from_numpy(self.x)
        first = made(x)[1].numpy()
        second = made(x)[1].numpy()
        np.testing.assert_array_equal(first[0], second[0])
        self.assertTrue((first[1] != second[1]).any())
        autograd.training = False
        np.testing.assert_array_equal(made(x)[0].numpy(), made(x)[0].numpy())

    def test_one_tensor_of_weights(self):
        """CudnnRNN and _RNN against the layers with the same weights."""
        for mode, cls in (
            ("vanilla", layer.RNN),
            ("lstm", layer.LSTM),
            ("gru", layer.GRU),
        ):
            plain = cls(F, H, num_layers=2, bidirectional=True)
            x = tensor.from_numpy(self.x)
            plain(x)
            for p in plain.get_params().values():
                p.copy_from_numpy(array(*p.shape))
            y, h, *_ = plain(x, lengths=LENGTHS)
            flat = [one.numpy().reshape(-1) for one in plain._weights()]
            made = layer.CudnnRNN(
                H, num_layers=2, bidirectional=True, rnn_mode=mode,
                batch_first=False, use_mask=True,
            )  # fmt: skip
            made(x, seq_lengths=LENGTHS)
            made.W.copy_from_numpy(np.concatenate(flat))
            got = made(x, seq_lengths=LENGTHS).numpy()
            np.testing.assert_array_equal(got, y.numpy())
            made.return_sequences = False
            got = made(x, seq_lengths=LENGTHS).numpy()
            last = y.numpy()[LENGTHS - 1, np.arange(N)]
            np.testing.assert_array_equal(got, last)
            handle = singa_wrap.CudnnRNNHandle(
                x,
                H,
                {"vanilla": 1, "lstm": 2, "gru": 3}[mode],
                2,
                bidirectional=1,
            )
            zeros = tensor.zeros((4, N, H))
            op = autograd._RNN(handle, return_sequences=True)
            results = op(x, zeros, zeros, made.W)
            np.testing.assert_array_equal(
                results[0].numpy(), plain(x)[0].numpy()
            )
            raw = op.forward(x.data, zeros.data, zeros.data, made.W.data)
            np.testing.assert_array_equal(raw[0].read(), results[0].numpy())
            again = pickle.loads(pickle.dumps(autograd._RNN(handle, True)))
            other = again(x, zeros, zeros, made.W)
            np.testing.assert_array_equal(other[0].numpy(), results[0].numpy())
            dx, _, _, dW = op.backward(tensor.ones(y.shape).data)
            self.assertEqual(dx.shape(), x.shape)
            self.assertEqual(dW.shape(), made.W.shape)

    def test_refusals(self):
        x = tensor.from_numpy(self.x)
        with self.assertRaisesRegex(
            ValueError, "dropout is 1; needs 0 to below 1"
        ):
            layer.GRU(F, H, dropout=1)
        with self.assertRaisesRegex(ValueError, "num_layers is 0; needs 1"):
            layer.LSTM(F, H, num_layers=0)
        with self.assertRaisesRegex(ValueError, r"needs \(1, 4, 6\)"):
            layer.GRU(F, H)(x, tensor.zeros((2, N, H)))
        with self.assertRaisesRegex(ValueError, "rnn_mode is 'rnn'"):
            layer.CudnnRNN(H, rnn_mode="rnn")
        with self.assertRaisesRegex(
            IndexError, "length 6 of sample 0; needs 0 .. 5"
        ):
            layer.GRU(F, H)(x, lengths=[6, 1, 1, 1])


if __name__ == "__main__":
    unittest.main()
