# SPDX-License-Identifier: Apache-2.0
"""A text that a language model writes. Not a program by itself: see gpt.py."""

import numpy as np

from choir import tensor


def write(m, text, context, count, seed=0, temperature=0.8, prompt="\n"):
    """Prints the prompt and `count` tokens, each drawn by the scores behind the
    last `context` ones before it. text: the data.Tokens that m was trained on.
    """
    ids, rng = list(text.encode(prompt)), np.random.default_rng(seed)
    m.eval()
    for _ in range(count):
        seen = np.array([ids[-context:]], np.int32)
        x = tensor.from_numpy(seen, m.tokens.W.device)
        scores = m(x).numpy()[0, -1].astype(float) / temperature
        odds = np.exp(scores - scores.max())
        ids.append(rng.choice(len(odds), p=odds / odds.sum()))
    print(text.decode(ids))
