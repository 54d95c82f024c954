# SPDX-License-Identifier: Apache-2.0
"""The README's model in Python, as it stands there."""

import os
import re
import sys
import unittest

os.environ["CHOIR_THREADS"] = "1"

import numpy as np

import choir

README = sys.argv[1]
TITLE = "## A model in Python\n"


def snippet():
    with open(README, encoding="utf-8") as file:
        text = file.read()
    section = text[text.index(TITLE) + len(TITLE) :]
    block = re.search(r"\n((?:    .*\n|\n)+)", section)[1]
    return "".join(line[4:] or "\n" for line in block.splitlines(keepends=True))


class Readme(unittest.TestCase):
    def test_the_model_learns(self):
        rng = np.random.default_rng(0)
        x = rng.random((64, 1, 28, 28), np.float32)
        names = {
            "tx": choir.tensor.from_numpy(x),
            "ty": choir.tensor.from_numpy(
                rng.integers(0, 10, 64).astype(np.int32)
            ),
        }
        code = snippet()
        self.assertIn("train_one_batch", code)
        exec(compile(code, README, "exec"), names)
        first = names["loss"].item()
        for _ in range(10):
            out, loss = names["m"](names["tx"], names["ty"])
        self.assertEqual(out.shape, (64, 10))
        self.assertLess(loss.item(), first)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
