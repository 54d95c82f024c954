# SPDX-License-Identifier: Apache-2.0
"""model.KVCache: places computed alone have the scores of the whole; what would give
others is refused."""

import copy
import pickle
import unittest

import numpy as np

from choir import StateError, autograd, device, layer, model, tensor

PLACES, SAMPLES, WORDS, WIDTH = 12, 2, 11, 12


class Text(model.Model):
    """Layers behind one another, of ids (n, t)."""

    def __init__(self, *between):
        super().__init__()
        self.tokens = layer.Embedding(WORDS, WIDTH)
        self.between = list(between)
        self.norm = layer.LayerNorm()
        self.head = layer.Linear(WORDS)

    def forward(self, x):
        x = self.tokens(x)
        for part in self.between:
            x = part(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.norm(x))


def attention(heads=3, causal=True, **more):
    return layer.MultiHeadAttention(
        heads, causal=causal, deviation=0.7, out_deviation=0.7, **more
    )


def ids(begin, end):
    """Places begin .. end - 1 of both texts."""
    rows = [[(i * i + 5 * n + 3) % WORDS for i in range(begin, end)]
            for n in range(SAMPLES)]  # fmt: skip
    return tensor.from_numpy(np.array(rows, np.int32))


def made(*between):
    m = Text(*between)
    m.compile([ids(0, PLACES)], is_train=False)
    return m, model.KVCache(m, SAMPLES, PLACES)


class KVCache(unittest.TestCase):
    def expect_the_wholes_scores(self, m, cache, ends):
        """In steps that end at these places."""
        for end in ends:
            begin = len(cache)
            part = m.predict_next(ids(begin, end), cache).numpy()
            self.assertEqual(len(cache), end)
            whole = m(ids(0, end)).numpy()
            largest = np.abs(whole).max()
            self.assertGreater(largest, 0.1)
            np.testing.assert_allclose(
                part, whole[:, begin:], rtol=0, atol=1e-5 * largest
            )

    def test_places_have_the_scores_of_the_whole(self):
        shared = attention()
        for between in (
            [
                layer.PositionEmbedding(PLACES, deviation=0.5),
                attention(),
                layer.FeedForward(deviation=0.7),
                layer.Dropout(0.5),
            ],
            [
                attention(rotary=50, kv_heads=1),
                attention(2, rotary=10),
                layer.RMSNorm(),
                layer.Silu(),
            ],
            [shared, shared],
        ):
            m, cache = made(*between)
            self.expect_the_wholes_scores(m, cache, [4, 5, 6, 9, 10, 12])
            cache.keep(5)
            self.expect_the_wholes_scores(m, cache, [7, 12])
            cache.keep(0)
            self.expect_the_wholes_scores(m, cache, [1, 2])

    def test_keys_and_values_that_are_the_input_by_name(self):
        class Named(Text):
            def forward(self, x):
                x = self.tokens(x)
                return self.head(self.between[0](x, x, value=x))

        m = Named(attention())
        m.compile([ids(0, PLACES)], is_train=False)
        cache = model.KVCache(m, SAMPLES, PLACES)
        self.expect_the_wholes_scores(m, cache, [4, 5, 12])

    def test_is_inference_and_leaves_the_mode(self):
        m, cache = made(attention(dropout=0.5), layer.Dropout(0.5))
        whole = m(ids(0, 5)).numpy()
        m.train()
        y = m.predict_next(ids(0, 5), cache)
        self.assertIsNone(y.creator)
        self.assertTrue(m.training and autograd.training)
        np.testing.assert_allclose(y.numpy(), whole, rtol=0, atol=1e-5)
        m.eval()
        # Other forward calls do not see the cache.
        np.testing.assert_array_equal(m(ids(0, 5)).numpy(), whole)

    def test_layers_that_mix_places_are_refused(self):
        class Only(model.Model):
            def __init__(self, part):
                super().__init__()
                self.first, self.part = layer.Linear(WIDTH), part

            def forward(self, x):
                return self.part(self.first(x))

        for part, shape, said in (
            (attention(causal=False), (2, 3, 4), "multi_head_.*: keys can be"),
            (layer.LSTM(WIDTH, 4, batch_first=True), (2, 3, 4), "lstm"),
            (layer.CudnnRNN(4), (2, 3, 4), "CudnnRNN"),
            (layer.MaxPool1d(3, 1), (2, 3, 4), "max_pool1d"),
            (layer.SoftMax(), (2, 3, 4), "SoftMax"),
            (layer.Flatten(), (2, 3, 4), "Flatten"),
            (layer.BatchNorm2d(), (2, 3), "BatchNorm2d"),
        ):
            with self.subTest(said):
                m = Only(part)
                x = tensor.from_numpy(np.ones(shape, np.float32))
                m.compile([x], is_train=False)
                cache = model.KVCache(m, SAMPLES, PLACES)
                if ":" not in said:
                    said += (
                        ".: is not known to keep places apart, so there is no"
                    )
                with self.assertRaisesRegex(StateError, r"^part \(" + said):
                    m.predict_next(x, cache)
                self.assertEqual(len(cache), 0)
                m(x)  # as ever

    def test_a_mask_and_other_keys_are_refused(self):
        class Other(Text):
            def forward(self, x):
                x = self.tokens(x)
                return self.between[0](x, **self.named(x))

        mask = np.ones((3, 3), bool)
        for named in (
            lambda x: {"mask": mask},
            lambda x: {"key": x * 2.0},
            lambda x: {"value": x * 2.0},
        ):
            m = Other(attention())
            m.named = named
            m.compile([ids(0, 3)], is_train=False)
            cache = model.KVCache(m, SAMPLES, PLACES)
            with self.assertRaisesRegex(StateError, "of its one input"):
                m.predict_next(ids(0, 3), cache)

    def test_has_room_for_its_places_alone(self):
        m, cache = made(attention())
        m.predict_next(ids(0, 10), cache)
        for x, said in (
            (ids(0, 3), "has room for 2 of its 12 places"),
            (ids(10, 10), "shape .*0.* is needed|has room for 2"),
            (tensor.from_numpy(np.zeros((1, 1), np.int32)), "is of 2 samples"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                m.predict_next(x, cache)
        self.assertEqual(len(cache), 10)
        self.expect_the_wholes_scores(m, cache, [12])
        for sizes, said in (((1, 0), "0 places"), ((0, 1), "0 samples")):
            with self.assertRaisesRegex(ValueError, said):
                model.KVCache(m, *sizes)
        with self.assertRaises(TypeError):
            m.predict_next(np.zeros((2, 1), np.int32), cache)

    def test_after_a_failure_it_holds_what_it_held(self):
        m, cache = made(attention())
        m.predict_next(ids(0, 4), cache)
        forward = m.forward
        for fails in (
            lambda x: forward(x) and 1 / 0,
            lambda x: forward(autograd.cat((x, x), 1)),  # other places than x's
        ):
            m.forward = fails
            with self.assertRaises((ZeroDivisionError, ValueError)):
                m.predict_next(ids(4, 6), cache)
            m.forward = forward
            self.assertEqual(len(cache), 4)
        self.expect_the_wholes_scores(m, cache, [6, 7])

    def test_is_of_one_model_and_process(self):
        (m, cache), (other, _) = made(attention()), made(attention())
        for one in (other, copy.deepcopy(m)):
            with self.assertRaisesRegex(ValueError, "another model's"):
                one.predict_next(ids(0, 3), cache)
        with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
            pickle.dumps(cache)
        with self.assertRaisesRegex(StateError, "call compile first"):
            model.KVCache(Text(), 1, 1)


if __name__ == "__main__":
    device.get_default_device().SetRandSeed(5)
    unittest.main()
