# SPDX-License-Identifier: Apache-2.0
"""python -m choir report: the numbers of a log, what it says of one that is broken,
and TensorBoard's files."""

import contextlib
import html.parser
import io
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import run_logs
from choir.__main__ import main

try:
    import tensorboard
except ImportError:
    tensorboard = None

# Would run, or leave the text that it stands in, were it not escaped.
HOSTILE = (
    "</td></title></style>\"'><script>alert(1)</script><img src=x onerror=y>"
)


class Page(html.parser.HTMLParser):
    """Tags, attributes, and the tables' cells by row."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.tables, self.texts = [], [], [], []
        self.in_cell = False
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        self.texts.append(data)
        if self.in_cell:
            self.tables[-1][-1][-1] += data.strip()

    def rows(self, head):
        """The rows below the table's head that begins with `head`."""
        found = [t for t in self.tables if t[0][: len(head)] == head]
        assert len(found) == 1, (head, [t[0] for t in self.tables])
        return found[0][1:]


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = self.path("page.html")

    def path(self, name):
        return os.path.join(self.folder, name)

    def report(self, *arguments):
        """Status and stderr."""
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            try:
                status = main(["report", *arguments, "-o", self.output])
            except SystemExit as error:
                status = error.code
        return status, err.getvalue()

    def page(self, *logs):
        self.assertEqual(self.report(*logs), (0, ""))
        return Page(self.output)

    def log(self, name="run.jsonl", **options):
        return run_logs.write(self.path(name), run_logs.reports(**options))

    def assert_number(self, cell, want, digits):
        got = float(cell.replace(",", ""))
        self.assertAlmostEqual(got, want, delta=0.5000001 * 10**-digits)

    def test_losses_are_those_of_the_log(self):
        made = run_logs.reports()
        rows = self.page(self.log()).rows(["run", "step"])
        self.assertEqual(len(rows), len(made))
        for row, report in zip(rows, made):
            self.assertEqual(row[0], "run")
            for cell, key in zip(
                row[1:],
                ("step", "epoch", "loss", "evaluation_loss")
                + ("training_accuracy", "evaluation_accuracy"),
            ):
                self.assert_number(cell, report[key], 4)

    def test_times_are_those_of_the_log(self):
        made = run_logs.reports()
        page = self.page(self.log())
        rows = page.rows(["up to step", "steps", "ms of a step"])
        for row, report in zip(rows, made, strict=True):
            ranks = report["ranks"]
            keys = ["seconds", *(f"{c}_seconds" for c in row_parts(page))]
            self.assert_number(row[0], report["step"], 0)
            for cell, key in zip(row[2:], keys, strict=True):
                mean = sum(rank[key] for rank in ranks) / 3 / 10
                self.assert_number(cell, 1000 * mean, 3)
        rows = page.rows(["up to step", "all ranks"])
        for row, report in zip(rows, made, strict=True):
            self.assert_number(row[1], report["tokens_per_second"], 0)
            for cell, rank in zip(row[2:], report["ranks"], strict=True):
                self.assert_number(cell, rank["tokens"] / rank["seconds"], 0)

    def test_ranks_have_their_sums_and_hosts(self):
        made = run_logs.reports()
        rows = self.page(self.log()).rows(["rank"])
        self.assertEqual([row[0] for row in rows], ["0", "1", "2", "all"])
        self.assertEqual([row[2] for row in rows[:3]], run_logs.HOSTS)
        keys = ("seconds", "compute_seconds", "data_seconds", "wait_seconds")
        for r, row in enumerate(rows[:3]):
            own = [report["ranks"][r] for report in made]
            tokens = sum(rank["tokens"] for rank in own)
            self.assert_number(row[3], tokens, 0)
            for i, seconds in ((4, keys[0]), (5, keys[1])):
                rate = tokens / sum(rank[seconds] for rank in own)
                self.assert_number(row[i], rate, 0)
            for cell, key in zip(row[6:], (*keys, "exchange_seconds")):
                self.assert_number(cell, sum(rank[key] for rank in own), 2)
        self.assert_number(rows[3][3], 4 * 6000, 0)
        self.assertEqual(len(rows[3]), len(rows[0]))

    def test_what_ran_is_there(self):
        texts = self.page(self.log()).texts
        for text in ("gpt_dist", "804,096", "node2", "3", "40"):
            self.assertIn(text, texts)

    def test_several_runs(self):
        one, two = self.log("one.jsonl"), self.log("two.jsonl", count=2)
        page = self.page(one, two)
        names = [row[0] for row in page.rows(["run"])]
        self.assertEqual(names, ["one"] * 4 + ["two"] * 2)
        os.mkdir(self.path("other"))
        page = self.page(one, self.log("other/one.jsonl"))
        self.assertEqual(
            page.rows(["run"])[-1][0], self.path("other/one.jsonl")
        )

    def test_page_loads_nothing_and_has_no_script(self):
        page = self.page(self.log())
        self.assertFalse(
            {"script", "link", "img", "iframe", "object"} & {*page.tags}
        )
        names = {name for name, _ in page.attributes}
        self.assertFalse({"src", "href", "srcset", "action"} & names)
        self.assertNotIn("url(", page.text)
        self.assertNotIn("http:", page.text)
        self.assertNotIn("https:", page.text)

    def test_texts_are_escaped(self):
        made = run_logs.reports()
        made[0]["run"] = {
            "hosts": [HOSTILE] * 3,
            HOSTILE: HOSTILE,
            "n": [HOSTILE],
        }
        made[0]["digest"] = HOSTILE
        for report in made:
            report["epoch"] = report["evaluation_accuracy"] = HOSTILE
            report[HOSTILE + "_per_second"] = 1
            report["ranks"][0]["tokens"] = HOSTILE
        path = run_logs.write(self.path("<b onclick=x>'\".jsonl"), made)
        plain = self.page(self.log())
        page = self.page(path)
        self.assertLessEqual({*page.tags}, {*plain.tags})
        names = {name for name, _ in plain.attributes}
        self.assertLessEqual({name for name, _ in page.attributes}, names)
        self.assertIn(HOSTILE, page.texts)
        self.assertEqual(page.rows(["rank"])[0][2], HOSTILE)

    def test_numbers_that_are_none(self):
        made = run_logs.reports()
        made[1]["loss"] = None
        made[2]["loss"] = 10**400
        made[3]["loss"] = float("nan")
        made[2]["evaluation_loss"] = True
        made[3]["ranks"] = [None, 3, {"tokens": 1e300}]
        path = run_logs.write(self.path("run.jsonl"), made)
        page = self.page(path)
        losses = [row[3] for row in page.rows(["run"])]
        self.assertEqual(losses, ["4.0137", "–", "–", "–"])
        self.assertEqual(page.rows(["run"])[2][4], "–")
        self.assertIn("3 of 4 reports have no training loss", page.text)
        for value in ("nan", "inf", "None"):
            self.assertNotIn(f">{value}<", page.text)

    def test_half_a_surrogate_pair(self):
        made = run_logs.reports()
        made[0]["run"]["program"] = "\ud800"
        self.page(run_logs.write(self.path("run.jsonl"), made))

    def test_log_of_an_older_program(self):
        made = run_logs.reports()
        for report in made:
            for key in ("ranks", "steps", "loss"):
                del report[key]
        del made[0]["run"]
        page = self.page(run_logs.write(self.path("run.jsonl"), made))
        self.assertEqual(page.rows(["run"])[1][3], "2.0137")
        self.assertIn("The log does not say where the time went.", page.text)
        self.assertEqual(page.rows(["up to step"])[0], ["10", "7,000"])

    def test_log_that_was_cut(self):
        made = run_logs.reports()
        path = run_logs.write(self.path("run.jsonl"), made, '{"epoch": 4, "st')
        page = self.page(path)
        self.assertIn("Line 5 of the log is cut off", page.text)
        self.assertEqual(len(page.rows(["run"])), 4)
        self.assertNotIn("cut off", self.page(self.log()).text)

    def test_run_that_went_on(self):
        made = run_logs.reports()
        again = [dict(report, loss=9.0) for report in made[2:]]
        path = run_logs.write(self.path("run.jsonl"), made + again)
        page = self.page(path)
        losses = [row[3] for row in page.rows(["run"])]
        self.assertEqual(losses, ["4.0137", "2.0137", "9", "9"])
        self.assertIn("2 earlier report(s)", page.text)

    def test_logs_that_are_none(self):
        for text, sentence in (
            ("", "{}: no report in it yet"),
            ('{"step": 1', "{}: no report in it yet"),
            ("not json\n", "{}, line 1: not JSON (Expecting value"),
            ('{"step": 1}\n{"st\n{"step": 2}\n', "{}, line 2: not JSON"),
            ("[" * 100000 + "\n", "{}, line 1: not JSON"),
            ('{"step": 1}\n[1]\n', "{}, line 2: no report of a training run"),
            ('{"level": "info"}\n', "{}, line 1: no report of a training run"),
            ('{"step": "1"}\n', "{}, line 1: no report of a training run"),
            ('{"step": -1}\n', "{}, line 1: no report of a training run"),
        ):
            path = self.path("log")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            status, err = self.report(path)
            self.assertEqual(status, 1)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertTrue(err.startswith("choir: "), err)
            self.assertIn(sentence.format(path), err)
            self.assertFalse(os.path.exists(self.output))
        nowhere = self.path("nowhere")
        self.assertEqual(
            self.report(nowhere),
            (1, f"choir: cannot read {nowhere}: No such file or directory\n"),
        )

    def test_page_that_cannot_be_written(self):
        self.output = self.path("nowhere/page.html")
        status, err = self.report(self.log())
        self.assertEqual(status, 1)
        self.assertIn(f"cannot write {self.output}: No such file", err)

    def test_wrong_usage(self):
        log = self.log()
        for arguments, sentence in (
            ((), "LOG"),
            ((log, "--colour"), "--colour"),
            ((log, log), "given twice"),
            (tuple(self.path(str(i)) for i in range(9)), "9 logs"),
        ):
            status, err = self.report(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(sentence, err)
        self.output = log
        status, err = self.report(log)
        self.assertEqual(status, 2)
        self.assertIn("is one of the logs", err)
        with open(log, encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 4)

    # ---- TensorBoard ----

    def test_scalars_go_to_tensorboard(self):
        writers = {}

        class Writer:
            def __init__(self, folder):
                self.scalars, self.closed = [], False
                writers[folder] = self

            def add_scalar(self, tag, value, step):
                self.scalars.append((tag, value, step))

            def close(self):
                self.closed = True

        package = types.ModuleType("tensorboard")
        summary = types.ModuleType("tensorboard.summary")
        package.summary, summary.Writer = summary, Writer
        names = {"tensorboard": package, "tensorboard.summary": summary}
        made = run_logs.reports()
        made[1]["loss"] = None
        log = run_logs.write(self.path("..x.jsonl"), made)
        events = self.path("events")
        with mock.patch.dict(sys.modules, names):
            self.page(log, self.log(), "--tensorboard", events)
        folders = [os.path.join(events, name) for name in ("x", "run")]
        self.assertEqual(list(writers), folders)
        first = writers[folders[0]]
        self.assertTrue(first.closed)
        losses = [
            (v, s) for tag, v, s in first.scalars if tag == "loss/training"
        ]
        kept = [made[i] for i in (0, 2, 3)]
        self.assertEqual(losses, [(r["loss"], r["step"]) for r in kept])
        for log in (log, self.log()):
            with mock.patch.dict(sys.modules, names):
                status, err = self.report(log, "--tensorboard", log)
            self.assertEqual(status, 1)
            self.assertIn(f"cannot make {log}/", err)
        tags = {tag for tag, _, _ in first.scalars}
        self.assertLessEqual({"throughput/rank 2", "step/wait ms"}, tags)

    def test_tensorboard_that_is_missing(self):
        with mock.patch.dict(sys.modules, {"tensorboard.summary": None}):
            status, err = self.report(
                self.log(), "--tensorboard", self.path("events")
            )
        self.assertEqual(status, 1)
        self.assertIn("needs TensorBoard: pip install tensorboard", err)
        self.assertEqual(err.count("\n"), 1)

    @unittest.skipIf(tensorboard is None, "TensorBoard is not installed")
    def test_tensorboard_reads_them(self):
        from tensorboard.backend.event_processing import event_accumulator

        self.page(self.log(), "--tensorboard", self.path("events"))
        events = event_accumulator.EventAccumulator(self.path("events/run"))
        events.Reload()
        made = run_logs.reports()
        tensors = events.Tensors("loss/validation")
        for event, report in zip(tensors, made, strict=True):
            self.assertEqual(event.step, report["step"])
            value = event.tensor_proto.float_val[0]
            self.assertAlmostEqual(value, report["evaluation_loss"], delta=1e-6)


def row_parts(page):
    """The parts of a step, as the page's table has them."""
    return next(t[0][3:] for t in page.tables if t[0][2:3] == ["ms of a step"])


if __name__ == "__main__":
    unittest.main()
