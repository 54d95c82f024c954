# SPDX-License-Identifier: Apache-2.0
"""Initial values of choir.layer's layers: moments and bounds by SINGA's formulas,
what they follow from, their dtype."""

import math
import unittest
from dataclasses import dataclass

import numpy as np

from choir import device, layer, tensor

DEV = device.create_cpu_device()


@dataclass
class Normal:
    """N(0, deviation), not cut off."""

    deviation: float

    def check(self, test, x):
        z = np.sort(x.reshape(-1).astype(np.float64)) / self.deviation
        n = len(z)
        # Five deviations of each mean, by the moments of a normal number.
        for power, mean, variance in (
            (1, 0, 1),
            (2, 1, 2),
            (3, 0, 15),
            (4, 3, 96),
        ):
            far = 5 * math.sqrt(variance / n)
            test.assertLess(abs((z**power).mean() - mean), far, power)
        # One in 741 is farther than 3 on each side, one in 10^9 than 6.
        test.assertGreater(n, 10000)
        for least, most in ((-z[0], -z[n // 100]), (z[-1], z[-n // 100])):
            test.assertTrue(3 < least < 6, least)
            test.assertTrue(2 < most < 2.7, most)


@dataclass
class Uniform:
    """Evenly from -limit to limit."""

    limit: float

    def check(self, test, x):
        u = x.reshape(-1).astype(np.float64) / self.limit
        n = len(u)
        for power, mean, variance in (
            (1, 0, 1 / 3),
            (2, 1 / 3, 4 / 45),
            (3, 0, 1 / 7),
            (4, 1 / 5, 16 / 225),
        ):
            far = 5 * math.sqrt(variance / n)
            test.assertLess(abs((u**power).mean() - mean), far, power)
        # Nobody beyond the ends; e^-10: nobody in 20 n-ths before one of them.
        for end in (u.max(), -u.min()):
            test.assertTrue(1 - 20 / n < end <= 1, end)


@dataclass
class Constant:
    value: float

    def check(self, test, x):
        np.testing.assert_array_equal(x, self.value)


ZERO = Constant(0)


def array(*shape):
    values = np.random.default_rng(0).normal(size=shape)
    return tensor.from_numpy(values.astype(np.float32))


INDICES = tensor.from_numpy(np.array([4, 2], np.int32))

# make, arguments of the first call, each state's formula.
STARTS = [
    (
        lambda: layer.Linear(300),
        [array(2, 200)],
        {"W": Normal(math.sqrt(2 / (200 + 300))), "b": ZERO},
    ),
    (
        lambda: layer.Linear(80, 400, False),
        [array(2, 80)],
        {"W": Normal(math.sqrt(2 / (80 + 400)))},
    ),
    (
        lambda: layer.Linear(300, deviation=0.02),
        [array(2, 200)],
        {"W": Normal(0.02), "b": ZERO},
    ),
    *[
        (
            lambda a=trans_a, b=trans_b: layer.Gemm(
                300, transA=a, transB=b, bias_shape=(300,)
            ),
            [array(200, 2) if trans_a else array(2, 200)],
            {"W": Normal(math.sqrt(2 / (200 + 300))), "b": ZERO},
        )
        for trans_a in (False, True)
        for trans_b in (False, True)
    ],
    (lambda: layer.Embedding(200, 90), [INDICES], {"W": Normal(1)}),
    (
        lambda: layer.Embedding(90, 200, "uniform"),
        [INDICES],
        {"W": Uniform(1)},
    ),
    (
        lambda: layer.Embedding(200, 90, deviation=0.02),
        [INDICES],
        {"W": Normal(0.02)},
    ),
    (
        lambda: layer.Embedding(90, 200, "uniform", 0.5),
        [INDICES],
        {"W": Uniform(0.5)},
    ),
    (
        lambda: layer.PositionEmbedding(90, 0.02),
        [array(2, 8, 200)],
        {"W": Normal(0.02)},
    ),
    (
        lambda: layer.PositionEmbedding(200),
        [array(2, 8, 90)],
        {"W": Normal(1)},
    ),
    (
        lambda: layer.Conv2d(60, 5),
        [array(1, 40, 5, 5)],
        {"W": Normal(math.sqrt(2 / (40 * 25 + 60))), "b": ZERO},
    ),
    (
        lambda: layer.Conv2d(160, (5, 3), group=4, bias=False),
        [array(1, 40, 5, 5)],
        {"W": Normal(math.sqrt(2 / (10 * 15 + 160)))},
    ),
    (
        lambda: layer.SeparableConv2d(120, 7, bias=True),
        [array(1, 250, 7, 7)],
        {
            "depthwise_conv.W": Normal(math.sqrt(2 / (49 + 250))),
            "depthwise_conv.b": ZERO,
            "point_conv.W": Normal(math.sqrt(2 / (250 + 120))),
            "point_conv.b": ZERO,
        },
    ),
    (
        lambda: layer.ConvTranspose2d(60, 5),
        [array(1, 40, 5, 5)],
        {"W": Normal(math.sqrt(2 / (40 * 25 + 60))), "b": ZERO},
    ),
    (
        lambda: layer.MultiHeadAttention(4),
        [array(1, 2, 120)],
        {
            f"{part}.{name}": start
            for part in ("query", "key", "value", "out")
            for name, start in (
                ("W", Normal(math.sqrt(2 / (120 + 120)))),
                ("b", ZERO),
            )
        },
    ),
    (
        lambda: layer.MultiHeadAttention(
            4, bias=False, deviation=0.02, out_deviation=0.005
        ),
        [array(1, 2, 120)],
        {
            "query.W": Normal(0.02),
            "key.W": Normal(0.02),
            "value.W": Normal(0.02),
            "out.W": Normal(0.005),
        },
    ),
    (
        lambda: layer.FeedForward(300, "silu", True, True, 0.02, 0.005),
        [array(1, 2, 120)],
        {
            "expand.W": Normal(0.02),
            "expand.b": ZERO,
            "gate.W": Normal(0.02),
            "gate.b": ZERO,
            "shrink.W": Normal(0.005),
            "shrink.b": ZERO,
        },
    ),
    (
        lambda: layer.FeedForward(bias=False),
        [array(1, 2, 60)],
        {
            "expand.W": Normal(math.sqrt(2 / (60 + 240))),
            "shrink.W": Normal(math.sqrt(2 / (240 + 60))),
        },
    ),
    (layer.LayerNorm, [array(2, 3, 4)], {"scale": Constant(1), "bias": ZERO}),
    (
        lambda: layer.LayerNorm(bias=False),
        [array(2, 3, 4)],
        {"scale": Constant(1)},
    ),
    (layer.RMSNorm, [array(2, 3, 4)], {"scale": Constant(1)}),
    (
        # Without weight in the running averages they are as they began.
        lambda: layer.BatchNorm2d(momentum=0.0),
        [array(2, 3)],
        {
            "scale": Constant(1),
            "bias": ZERO,
            "running_mean": ZERO,
            "running_var": Constant(1),
        },
    ),
    (
        lambda: layer.RNN(120, 130),
        [[array(1, 120)], array(1, 130)],
        {"Wx": Normal(1), "Wh": Normal(1), "b": ZERO},
    ),
    (
        lambda: layer.RNN(120, 130, nonlinearity="relu", bias=False),
        [[array(1, 120)], array(1, 130)],
        {"Wx": Normal(1), "Wh": Normal(1)},
    ),
    (
        lambda: layer.LSTM(120, 130),
        [[array(1, 120)], (array(1, 130), array(1, 130))],
        {
            f"{part}_{gate}": start
            for part, start in (
                ("Wx", Normal(0.01)),
                ("Wh", Normal(0.01)),
                ("b", ZERO),
            )
            for gate in "ifog"
        },
    ),
    (
        lambda: layer.GRU(120, 130),
        [array(2, 1, 120)],
        {
            "Wx": Uniform(130**-0.5),
            "Wh": Uniform(130**-0.5),
            "b": ZERO,
            "bn": ZERO,
        },
    ),
    (
        lambda: layer.CudnnRNN(64),
        [array(1, 2, 30)],
        {"W": Uniform(64**-0.5)},
    ),
]

# The base classes, and what has no states.
STATELESS = {
    "Layer", "RNN_Base", "Pooling2d", "MaxPool2d", "AvgPool2d", "MaxPool1d",
    "AvgPool1d", "Flatten", "Dropout", "Cat", "Reshape", "ReLU", "Sigmoid", "Tanh",
    "Gelu", "Silu", "Add", "SoftMax", "SoftMaxCrossEntropy", "MeanSquareError",
    "CrossEntropy", "BinaryCrossEntropy",
}  # fmt: skip


class Starts(unittest.TestCase):
    def test_moments_and_bounds(self):
        for i, (make, inputs, formulas) in enumerate(STARTS):
            DEV.SetRandSeed(5)
            made = make()
            made(*inputs)
            states = made.get_states()
            self.assertEqual(set(states), set(formulas), type(made).__name__)
            drawn = []
            for name, formula in formulas.items():
                with self.subTest(type(made).__name__, i=i, name=name):
                    values = states[name].numpy()
                    formula.check(self, values)
                    if not isinstance(formula, Constant):
                        drawn.append(values.reshape(-1)[:100])
            # Each has numbers of its own.
            for k, one in enumerate(drawn):
                for other in drawn[:k]:
                    n = min(len(one), len(other))
                    self.assertFalse((one[:n] == other[:n]).any())

    def test_every_layer_is_here(self):
        """A public class of choir.layer is in STARTS, unless it has no states."""
        known = {type(make()).__name__ for make, _, _ in STARTS}
        for name, value in vars(layer).items():
            if (
                isinstance(value, type)
                and issubclass(value, layer.Layer)
                and not name.startswith("_")
            ):
                self.assertIn(name, known | STATELESS)

    def test_seeds(self):
        for make, inputs, formulas in STARTS:

            def start(seed):
                DEV.SetRandSeed(seed)
                before, made = make(), make()
                before(*inputs)
                made(*inputs)
                return [
                    {n: t.numpy().copy() for n, t in one.get_states().items()}
                    for one in (before, made)
                ]

            one, same, other = start(1), start(1), start(2)
            for name, formula in formulas.items():
                a = one[0][name]
                np.testing.assert_array_equal(a, same[0][name])
                if not isinstance(formula, Constant):
                    self.assertGreater((a != other[0][name]).mean(), 0.99)
                    self.assertGreater((a != one[1][name]).mean(), 0.99)

    def test_parameters_have_the_inputs_dtype(self):
        for dtype in (tensor.float16, tensor.float64):
            for make, inputs, _ in STARTS:
                made = make()
                if isinstance(made, layer.Embedding):
                    continue  # its inputs are integers
                made(*converted(inputs, dtype))
                for name, state in made.get_states().items():
                    self.assertEqual(
                        state.dtype, dtype, f"{type(made).__name__}.{name}"
                    )


def converted(inputs, dtype):
    if isinstance(inputs, tensor.Tensor):
        return inputs.as_type(dtype)
    return type(inputs)(converted(one, dtype) for one in inputs)


if __name__ == "__main__":
    unittest.main()
