# SPDX-License-Identifier: Apache-2.0
"""The hashes in docs/reproducible.md are those of the weights that its runs end
with."""

import os
import re

from choir._sha256 import sha256_of

from tests.examples import harness

PAGE = os.path.join(harness.ROOT, "docs/reproducible.md")
# What the programs find beside themselves where they are built to be run.
DATA = {
    "mnist_dist": ("--data", harness.REAL_DATA),
    "cifar": (),
    "gpt_dist": (
        "--data",
        os.path.join(
            harness.ROOT, "examples/data/shakespeare/tiny_shakespeare.txt.gz"
        ),
    ),
}
ROW = re.compile(r"^\| (\w+) (--[^|]+) \| ([0-9a-f]{64}) \|$", re.MULTILINE)


class PublishedHashesTest(harness.ProgramTest):
    def test_hashes(self):
        with open(PAGE, encoding="utf-8") as page:
            rows = ROW.findall(page.read())
        self.assertEqual(
            [program for program, _, _ in rows],
            ["mnist_dist", "cifar", "gpt_dist"],
        )
        for program, flags, want in rows:
            with self.subTest(program):
                file = self.path(program + ".ckpt")
                status, _, err = self.run_program(
                    "--reproducible", "--workers", 2, "--save", file,
                    *flags.split(), *DATA[program], program=program,
                )  # fmt: skip
                self.assertEqual(status, 0, err)
                self.assertEqual(sha256_of(file), want)


if __name__ == "__main__":
    harness.main()
