# SPDX-License-Identifier: Apache-2.0
"""python -m choir compare, on traces that this file makes up."""

import contextlib
import io
import os
import tempfile
import unittest

from choir.__main__ import main

FACTS = "choir-trace\t1\tchoir 0.1.0\tdevice cpu\tdetail "


def line(step, record, op, operand, values, label="", shape=None, digest=None):
    shape = str(len(values)) if shape is None else shape
    digest = digest or "%016x" % (hash(tuple(values)) & (2**64 - 1))
    sums = " ".join(map(str, values))
    magnitude = sum(abs(float(value)) for value in values)
    words = [step, record, op, label, operand, "f32", shape, digest, magnitude]
    return "\t".join(map(str, [*words, sums])) + "\n"


def record(step, number, source, result, op="linear", label="fc"):
    return line(step, number, op, "source 0", source, label) + line(
        step, number, op, "result 0", result, label
    )


def run_of(steps=3, records=4):
    """Values by (step, record): what is read and what is written."""
    return {
        (s, r): ([s, r, 0.5], [s, r, 0.25])
        for s in range(steps)
        for r in range(records)
    }


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, detail="tensor"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(FACTS + detail + "\n" + text)

    def write_run(self, name, run, detail="tensor"):
        text = "".join(record(*place, *run[place]) for place in sorted(run))
        self.write(name, text, detail)

    def compare(self, *flags, names=("a", "b")):
        """Status and text of both streams."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            with contextlib.redirect_stderr(said):
                status = main(["compare", *map(self.path, names), *flags])
        return status, said.getvalue()

    def parted(self, b, *flags):
        status, text = self.compare(*flags)
        self.assertEqual(status, 1, text)
        self.assertIn(b, text)
        return text

    # ---- Equal ----

    def test_equal_runs(self):
        for name in "ab":
            self.write_run(name, run_of())
        self.assertEqual(self.compare(), (0, "Equal: 3 steps, 12 records.\n"))

    def test_equal_ranks(self):
        for name in ("a", "a.1", "a.2", "b", "b.1", "b.2"):
            self.write_run(name, run_of())
        self.assertEqual(
            self.compare(),
            (0, "Equal: 3 steps, 12 records of each of 3 ranks.\n"),
        )
        os.remove(self.path("b.2"))
        status, text = self.compare()
        self.assertEqual(status, 0)
        self.assertIn("A has 3 ranks and B 2: the first 2 are compared.", text)

    def test_other_facts_are_told(self):
        for name in "ab":
            self.write_run(name, run_of())
        with open(self.path("b"), "r+", encoding="utf-8") as file:
            text = file.read().replace("device cpu", "device cuda")
            file.seek(0)
            file.write(text)
        status, text = self.compare()
        self.assertEqual(status, 0)
        self.assertIn("B: choir 0.1.0, device cuda.", text)

    # ---- Values ----

    def test_a_result_names_the_op(self):
        self.write_run("a", run_of())
        run = run_of()
        run[1, 2] = ([1, 2, 0.5], [1, 2.5, 0.25])
        run[1, 3] = ([9, 9, 9], [9, 9, 9])  # what follows from it
        self.write_run("b", run)
        text = self.parted(
            "The runs part at step 1, record 2: linear of fc, result 0, f32 "
            "(3,). All that was read is equal: it is this op that made"
        )
        self.assertIn(
            "1 of 3 elements differs, by 0.4 of the mean magnitude at most: "
            "element [1]: A 2, B 2.5, difference 0.5.",
            text,
        )
        self.assertIn("Equal before: 7 records in 2 steps.", text)

    def test_a_source_names_who_did_not_write_it(self):
        self.write_run("a", run_of())
        run = run_of()
        run[2, 0] = ([0, 0, 0], [1, 1, 1])
        self.write_run("b", run)
        self.parted(
            "step 2, record 0: linear of fc, source 0, f32 (3,). It differs "
            "before the op reads it, and all results so far are equal: a batch"
        )

    def test_pieces_of_large_tensors(self):
        values = [0.5] * 32
        other = list(values)
        other[3] = 0.75
        other[7] = -0.5
        for name, sums in (("a", values), ("b", other)):
            self.write(
                name, line(0, 0, "relu", "result 0", sums, shape="64,100")
            )
        text = self.parted("result 0, f32 (64, 100)")
        self.assertIn(
            "2 of 32 pieces differ, by 2 of the mean magnitude at most: the sum of "
            "elements 1400 to 1599 of 6400: A 0.5, B -0.5, difference 1.",
            text,
        )

    def test_elements_by_index(self):
        for name, last in (("a", 6.0), ("b", "nan")):
            values = [1, 2, 3, 4, 5, last]
            self.write(
                name, line(0, 0, "relu", "result 0", values, shape="2,3")
            )
        self.parted("element [1, 2]: A 6.0, B nan, difference inf.")

    def test_bits_that_no_sum_shows(self):
        for name in "ab":
            self.write(
                name, line(0, 0, "relu", "result 0", [0.0], digest=name * 16)
            )
        self.parted("All sums are equal: what differs does not change them")

    def test_exchanges_have_names(self):
        for name, value in (("a", 1), ("b", 2)):
            self.write(
                name,
                line(0, 0, "barrier/comm", "", [], "gradients", "", "")
                + line(
                    0, 1, "all_reduce/comm", "result fc.W", [value], "bucket 0"
                ),
            )
        self.parted("record 1: all_reduce/comm of bucket 0, result fc.W, f32")

    def test_the_first_rank_is_named(self):
        for name in ("a", "b", "a.1", "b.1", "a.2", "b.2"):
            run = run_of()
            if name in ("b", "b.2"):
                run[2, 1] = ([7, 7, 7], [7, 7, 7])
            if name == "b.1":
                run[1, 3] = ([7, 7, 7], [7, 7, 7])
            self.write_run(name, run)
        text = self.parted("Rank 1 of 3 is the first.")
        self.assertIn("at step 1, record 3:", text)

    # ---- Tolerance ----

    def test_tolerance_passes_over_drift(self):
        self.write_run("a", run_of())
        run = run_of()
        for place in run:
            run[place] = tuple(
                [v * (1 + 1e-7) for v in values] for values in run[place]
            )
        run[2, 1] = ([2, 1, 0.5], [2, 1.5, 0.25])
        self.write_run("b", run)
        self.parted("at step 0, record 0:")
        text = self.parted("at step 2, record 1:", "--tolerance", "1e-5")
        self.assertIn("All that was read is within the tolerance: ", text)
        self.assertRegex(
            text,
            r"Passed over: \d+ operands with other digests, at most 3e-07 of",
        )
        status, text = self.compare("--tolerance", "0.5")
        self.assertEqual(status, 0)
        self.assertIn("Equal within the tolerance: 3 steps, ", text)
        self.assertIn("at most 0.4 of the mean magnitude (step 2,", text)

    def test_no_tolerance_hides_a_nan(self):
        for name, value in (("a", 1.0), ("b", "nan")):
            self.write(name, line(0, 0, "relu", "result 0", [value, 2.0]))
        self.parted("difference inf", "--tolerance", "1e9")

    # ---- Programs ----

    def test_another_program(self):
        self.write_run("a", run_of())
        text = "".join(
            record(*place, *values)
            for place, values in sorted(run_of().items())
            if place < (1, 1)
        )
        self.write("b", text + record(1, 1, [1], [1], "relu", "act"))
        self.parted(
            "The programs are not the same from here on: A has step 1, record "
            "1: linear of fc, source 0, f32 (3,); B has step 1, record 1: relu "
            "of act, source 0, f32 (1,)."
        )

    def test_layers_may_have_other_ops(self):
        self.write("a", line(0, 3, "relu", "results", [1], "fc"), "layer")
        self.write("b", line(0, 2, "gelu", "results", [1], "fc"), "layer")
        self.assertEqual(self.compare()[0], 0)
        self.write("b", line(0, 2, "gelu", "results", [2], "fc"), "layer")
        self.parted("Trace with detail tensor to see the op.")

    def test_parameters_of_steps(self):
        for name, value in (("a", 1), ("b", 2)):
            self.write(
                name, line(4, 0, "parameters", "result fc.W", [value]), "step"
            )
        self.parted("at step 4, record 0: parameters, result fc.W, f32 (1,).")

    # ---- Files ----

    def test_a_run_that_ended_early(self):
        self.write_run("a", run_of())
        self.write_run("b", run_of(2))
        text = self.parted("B ends after step 1, record 3; the other goes on.")
        self.assertIn("Equal before: 8 records in 2 steps.", text)
        status, text = self.compare(names=("b", "a"))
        self.assertEqual(status, 1)
        self.assertIn("A ends after", text)

    def test_a_file_that_is_cut_off(self):
        for name in "ab":
            self.write_run(name, run_of())
        size = os.path.getsize(self.path("b"))
        os.truncate(self.path("b"), size - 9)
        self.parted("B is cut off after step 2, record 3; the other goes on.")
        self.write("b", "")
        self.parted("B ends before the first record; the other goes on.")

    def mistaken(self, sentence):
        status, text = self.compare()
        self.assertEqual(status, 2, text)
        self.assertEqual(text.count("\n"), 1)
        self.assertTrue(text.startswith("choir: "), text)
        self.assertIn(sentence, text)

    def test_files_that_are_no_traces(self):
        self.write_run("b", run_of())
        self.mistaken("a: No such file")
        os.mkdir(self.path("a"))
        self.mistaken("a: Is a directory")
        os.rmdir(self.path("a"))
        open(self.path("a"), "w", encoding="utf-8").close()
        self.mistaken("a is empty; a run with --trace-digests writes one")
        with open(self.path("a"), "wb") as file:
            file.write(b"\x89PNG\r\n\xff\xfe\0")
        self.mistaken("a is no trace of digests")
        with open(self.path("a"), "w", encoding="utf-8") as file:
            file.write(FACTS.replace("\t1\t", "\t2\t") + "tensor\n")
        self.mistaken("a has format 2; this version of Choir reads 1")
        self.write_run("a", run_of(), "layer")
        self.mistaken("has detail layer and ")
        self.write_run("a", run_of())
        no_number = line(0, 0, "relu", "result 0", [1]).replace(
            "\t1\n", "\tx\n"
        )
        for wrong in ("word\n", no_number, "a" + "\t" * 9 + "\n"):
            self.write("a", wrong)
            self.mistaken("a: line ")

    def test_usage(self):
        for flags in (["--tolerance", "-1"], ["--tolerance", "x"], ["third"]):
            with self.assertRaises(SystemExit) as ended:
                with contextlib.redirect_stderr(io.StringIO()):
                    main(["compare", self.path("a"), self.path("b"), *flags])
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
