# SPDX-License-Identifier: Apache-2.0
"""Layers against PyTorch's: values, and gradients of inputs and parameters."""

import unittest

import numpy as np

from choir import autograd, device, layer
from formulas import away, tensor_of

try:
    import torch
except ImportError:
    torch = None

CPU = device.create_cpu_device()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Layers(unittest.TestCase):
    def compare(self, made, other, copy, inputs, call=None, **more):
        """made, other: the layers; copy: sets other's parameters from made's and
        gives [(made's, gradient of other's)] later; call: other's."""
        ours = [tensor_of(x, True) for x in inputs]
        autograd.training = True
        y = made(*ours, **more)
        pairs = copy(made.get_params())
        theirs = [torch.tensor(x, requires_grad=True) for x in inputs]
        z = (call or other)(*theirs)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), atol=1e-5)
        weights = away(*y.shape)
        (z * torch.tensor(weights)).sum().backward()
        found = {
            id(p): g for p, g in autograd.backward(y, tensor_of(weights, False))
        }
        autograd.training = False
        for param, grad in pairs():
            np.testing.assert_allclose(
                found[id(param)].numpy(), grad.numpy(), atol=1e-5
            )

    def test_transposed_convolution(self):
        for settings in (
            {},
            {"stride": 2, "padding": 1, "output_padding": 1},
            {"stride": (3, 2), "padding": (0, 1), "output_padding": (2, 1)},
            {"groups": 2, "dilation": 2},
            {"bias": False, "groups": 4, "stride": 2},
        ):
            with self.subTest(settings):
                other = torch.nn.ConvTranspose2d(4, 8, 3, **settings).double()
                own = dict(settings)
                own["group"] = own.pop("groups", 1)
                made = layer.ConvTranspose2d(8, 3, **own)

                def copy(params, other=other):
                    pairs = [(params["W"], other.weight)]
                    if "b" in params:
                        pairs.append((params["b"], other.bias))
                    for mine, its in pairs:
                        its.data = torch.tensor(mine.numpy())
                    return lambda: [(mine, its.grad) for mine, its in pairs]

                self.compare(made, other, copy, [away(2, 4, 5, 6)])

    def test_attention(self):
        query, key = away(2, 3, 8), away(2, 5, 8)
        seen = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 0, 1], [0, 1, 0, 1, 1]])
        added = away(3, 5)
        triangle = np.tri(3, 5)
        for name, mask, theirs in (
            ("plain", None, None),
            ("seen", tensor_of(seen.astype(np.int32), False), seen == 0),
            ("added", tensor_of(added, False), added),
            ("causal", None, triangle == 0),
        ):
            with self.subTest(name):
                other = torch.nn.MultiheadAttention(8, 2, batch_first=True)
                other = other.double()
                made = layer.MultiHeadAttention(2, causal=name == "causal")

                def copy(params, other=other):
                    def grads():
                        w = other.in_proj_weight.grad.chunk(3)
                        b = other.in_proj_bias.grad.chunk(3)
                        pairs = [
                            (params["out.W"], other.out_proj.weight.grad.T),
                            (params["out.b"], other.out_proj.bias.grad),
                        ]
                        for i, part in enumerate(("query", "key", "value")):
                            pairs.append((params[f"{part}.W"], w[i].T))
                            pairs.append((params[f"{part}.b"], b[i]))
                        return pairs

                    parts = ("query", "key", "value")
                    w = [params[f"{part}.W"].numpy().T for part in parts]
                    b = [params[f"{part}.b"].numpy() for part in parts]
                    other.in_proj_weight.data = torch.tensor(np.concatenate(w))
                    other.in_proj_bias.data = torch.tensor(np.concatenate(b))
                    out = other.out_proj
                    out.weight.data = torch.tensor(params["out.W"].numpy().T)
                    out.bias.data = torch.tensor(params["out.b"].numpy())
                    return grads

                def call(q, k, v, other=other, theirs=theirs):
                    mask = None if theirs is None else torch.tensor(theirs)
                    return other(q, k, v, attn_mask=mask, need_weights=False)[0]

                self.compare(
                    made,
                    other,
                    copy,
                    [query, key, away(2, 5, 8)],
                    call,
                    mask=mask,
                )


if __name__ == "__main__":
    unittest.main()
