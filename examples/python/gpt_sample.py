# SPDX-License-Identifier: Apache-2.0
"""A text that a language model writes. Not a program by itself: see gpt.py."""

import numpy as np

from choir import model, tensor


def write(m, text, context, count, seed=0, temperature=0.8, prompt="\n"):
    """Prints the prompt and `count` tokens, each drawn by the scores behind the
    last `context` ones before it. text: the data.Tokens that m was trained on.
    """
    ids, rng = list(text.encode(prompt)), np.random.default_rng(seed)
    cache = model.KVCache(m, 1, context)
    for _ in range(count):
        # As long as the text fits into a window, the new tokens alone are computed;
        # then each window is another one, where every token has another place.
        if len(ids) > context:
            cache.keep(0)
        new = np.array([ids[-context:][len(cache) :]], np.int32)
        x = tensor.from_numpy(new, m.tokens.W.device)
        scores = m.predict_next(x, cache).numpy()[0, -1].astype(float)
        scores /= temperature
        odds = np.exp(scores - scores.max())
        ids.append(rng.choice(len(odds), p=odds / odds.sum()))
    print(text.decode(ids))
