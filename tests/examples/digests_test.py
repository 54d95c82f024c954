# SPDX-License-Identifier: Apache-2.0
"""--trace-digests: what the examples write, and what they say where they cannot.
What is in it core/trace_test.cc and python/planted_difference_test.py ask."""

import os

from tests.examples import harness


def columns_of(path):
    with open(path, encoding="ascii") as file:
        facts = file.readline()
        return facts, [line.split("\t") for line in file]


class DigestsTest(harness.ProgramTest):
    def trace(self, name, *arguments, **options):
        """The digests of what was trained."""
        out = self.train(
            "--trace-digests", self.path(name), "--epochs", 1, *arguments,
            **options,
        )  # fmt: skip
        return harness.digests_of(out)  # nothing else is printed

    def same(self, a, b):
        with open(self.path(a), "rb") as one, open(self.path(b), "rb") as other:
            self.assertTrue(one.read() == other.read(), (a, b))

    def test_two_runs_write_the_same(self):
        run = ("--batch-size", 160)
        plain = self.train("--epochs", 1, *run, program="mnist")
        first = self.trace("a", *run, program="mnist")
        self.assertEqual(first, harness.digests_of(plain))
        self.trace("b", *run, "--graph=false", program="mnist")
        self.same("a", "b")
        facts, lines = columns_of(self.path("a"))
        self.assertTrue(facts.endswith("\tdevice cpu\tdetail tensor\n"), facts)
        # Evaluation is after the fourth step.
        self.assertEqual({words[0] for words in lines}, set("01234"))

    def test_each_worker_has_a_file(self):
        for comm in ("shm", "tcp"):
            run = ("--workers", 2, "--threads", 1, "--batch-size", 160)
            for name in "ab":
                self.trace(name, *run, "--comm", comm)
                self.assertFalse(os.path.exists(self.path(name + ".2")))
            self.same("a", "b")
            self.same("a.1", "b.1")
            _, lines = columns_of(self.path("a.1"))
            exchange = {
                "shm": ("average/dist_opt", "barrier/comm"),
                "tcp": ("all_reduce/comm",),
            }[comm]
            for name in exchange:
                seen = [words for words in lines if words[2] == name]
                self.assertGreater(len(seen), 0)
                for words in seen:
                    self.assertTrue(words[4].startswith("result "), words)

    def test_parameters_of_steps_are_those_of_all_workers(self):
        detail = ("--trace-detail", "step", "--batch-size", 80)
        self.trace("a", *detail, "--workers", 2, "--threads", 1)
        self.same("a", "a.1")
        _, lines = columns_of(self.path("a"))
        self.assertEqual({words[2] for words in lines}, {"parameters"})
        self.assertEqual(len(lines), 4 * 8)

    def test_file_that_cannot_be_written_is_told(self):
        harness.small_data(self.data)
        path = os.path.join(self.folder, "none", "trace")
        for name, why in (
            (path, "No such file or directory"),
            ("/dev/full", "No space left on device"),
        ):
            status, out, err = self.run_program(
                "--trace-digests", name, "--data", self.data, program="mnist"
            )
            self.assertEqual((status, out), (1, ""))
            self.assertIn("trace: cannot write to %s: %s" % (name, why), err)


if __name__ == "__main__":
    harness.main()
