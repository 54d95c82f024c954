# SPDX-License-Identifier: Apache-2.0
"""The page of python -m choir report, as a browser draws it."""

import os
import shutil
import tempfile
import unittest

import browser
import run_logs
from choir import _report

REPORTS, RANKS, PARTS = 4, 3, 4
WIDTHS = (1280, 390)
# Centre (x, y) of each mark.
CENTRES = """[...document.querySelectorAll('%s')].map(mark => {
  const box = mark.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})"""
HEIGHTS = """[...document.querySelectorAll('%s')].map(
  mark => mark.getBoundingClientRect().height)"""
# What stands out of the page at its right, without what scrolls by itself.
WIDER = """[...document.querySelectorAll('body *')].filter(
  part => !part.closest('.scroll') &&
    part.getBoundingClientRect().right > document.documentElement.clientWidth
).map(part => part.outerHTML.slice(0, 80))"""


# .ci/run's first check is that it is there.
@unittest.skipUnless(
    shutil.which("chromium"), "Debian's package chromium is missing"
)
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.files.cleanup)
        cls.browser = browser.Browser(cls.files.name)
        cls.addClassCleanup(cls.browser.close)

    def page(self, made, name="run", width=1280, **options):
        log = os.path.join(self.files.name, name + ".jsonl")
        html = os.path.join(self.files.name, "page.html")
        run_logs.write(log, made)
        self.assertEqual(_report.main([log, "-o", html]), 0)
        self.browser.errors.clear()
        self.browser.open(html, width, **options)

    def run_script(self, script):
        return self.browser.run(script)

    def count(self, selector):
        return self.run_script(
            f"document.querySelectorAll('{selector}').length"
        )

    def test_console_is_empty(self):
        for width in WIDTHS:
            for dark in (False, True):
                self.page(run_logs.reports(), width=width, dark=dark)
                self.assertEqual(self.browser.errors, [])

    def test_browser_tells_errors(self):
        """Or the test above could not fail."""
        path = os.path.join(self.files.name, "bad.html")
        for text in (
            "<script>throw 1</script>",
            "<script>console.error(1)</script>",
        ):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.browser.errors.clear()
            self.browser.open(path, 1280)
            self.assertEqual(len(self.browser.errors), 1, text)

    def test_every_report_is_a_point(self):
        for width in WIDTHS:
            self.page(run_logs.reports(REPORTS, RANKS), width=width)
            # Training and validation, then bars of parts and of ranks.
            self.assertEqual(self.count("circle"), 2 * REPORTS)
            self.assertEqual(self.count("rect"), REPORTS * (PARTS + RANKS))
            lines = self.run_script(
                "[...document.querySelectorAll('polyline')].map("
                "line => line.points.length)"
            )
            self.assertEqual(lines, [REPORTS, REPORTS])

    def test_points_without_room_are_a_line(self):
        self.page(run_logs.reports(200))
        self.assertEqual(self.count("circle"), 0)
        points = self.run_script(
            "document.querySelectorAll('polyline')[1].points.length"
        )
        self.assertEqual(points, 200)

    def test_gap_where_there_is_no_number(self):
        made = run_logs.reports(5)
        made[2]["loss"] = None
        self.page(made)
        self.assertEqual(self.count("polyline"), 3)
        self.assertEqual(self.count("circle"), 9)

    def assert_linear(self, places, values):
        """Places go with values along a straight line, to half a pixel."""
        low, high = values.index(min(values)), values.index(max(values))
        slope = (places[high] - places[low]) / (values[high] - values[low])
        self.assertGreater(abs(places[high] - places[low]), 50)
        for place, value in zip(places, values, strict=True):
            want = places[low] + slope * (value - values[low])
            self.assertAlmostEqual(place, want, delta=0.5)

    def test_marks_are_where_their_numbers_are(self):
        made = run_logs.reports(REPORTS, RANKS)
        for width in WIDTHS:
            self.page(made, width=width)
            centres = self.run_script(CENTRES % "circle")
            values = [r[k] for k in ("loss", "evaluation_loss") for r in made]
            steps = [r["step"] for r in made] * 2
            self.assert_linear([y for _, y in centres], values)
            self.assert_linear([x for x, _ in centres], steps)
            self.assertGreater(centres[0][1], centres[REPORTS][1])
            # Bars by part: the first of each rank is of the same height.
            heights = self.run_script(HEIGHTS % ".c2 rect")[:REPORTS]
            waits = run_logs.reports()[0]["ranks"]
            total = self.run_script(HEIGHTS % ".c0 rect")[:REPORTS]
            mean = sum(rank["wait_seconds"] for rank in waits) / RANKS
            compute = waits[0]["compute_seconds"]
            self.assertAlmostEqual(
                heights[0] / total[0], mean / compute, delta=0.02
            )

    def test_nothing_is_wider_than_the_page(self):
        made = run_logs.reports(REPORTS, RANKS)
        made[0]["run"]["hosts"] = ["a-host-with-a-long-name." * 6] * RANKS
        made[0]["run"]["strategy"] = "sparseTopK" + "x" * 200
        for name in ("run", "a-run-with-a-long-name" * 6):
            for width in WIDTHS:
                self.page(made, name, width)
                self.run_script(
                    "document.querySelectorAll('details').forEach("
                    "part => part.open = true)"
                )
                self.assertEqual(
                    self.run_script("document.documentElement.scrollWidth"),
                    width,
                )
                self.assertEqual(self.run_script(WIDER), [])

    def test_numbers_without_measure(self):
        """What a run that diverges has, and a log that somebody made up."""
        for low, high in (
            (1e-30, 1e30),
            (1e-300, 1e99),
            (-1e99, 1e99),
            (3, 3),
            (0, 1e-40),
        ):
            made = run_logs.reports(REPORTS, RANKS)
            for report, value in zip(made, (low, high, low, high)):
                report["loss"] = value
                report["tokens_per_second"] = report["steps"] = value
                for key in ("tokens", "seconds", "wait_seconds"):
                    report["ranks"][0][key] = value
                report["ranks"][1]["compute_seconds"] = -value
            self.page(made, width=390)
            self.assertEqual(self.browser.errors, [])
            self.assertEqual(self.run_script(WIDER), [])
            self.assertEqual(self.count("circle"), 2 * REPORTS)

    def test_texts_of_charts_can_be_read(self):
        for width in WIDTHS:
            self.page(run_logs.reports(), width=width)
            heights = self.run_script(HEIGHTS % "svg text")
            self.assertGreater(len(heights), 20)
            self.assertGreater(min(heights), 10)
            left = self.run_script(
                "Math.min(...[...document.querySelectorAll('svg text')].map("
                "text => text.getBoundingClientRect().left))"
            )
            self.assertGreaterEqual(left, 0)

    def test_colours_follow_the_system(self):
        shades = []
        for dark in (False, True):
            self.page(run_logs.reports(), dark=dark)
            colour = self.run_script(
                "getComputedStyle(document.body).backgroundColor"
            )
            shades.append(int(colour.split("(")[1].split(",")[0]))
        self.assertGreater(shades[0], 200)
        self.assertLess(shades[1], 60)

    def test_hostile_log_runs_nothing(self):
        text = "</style></svg><script>document.title = 'run'</script>"
        text += "<img src=x onerror=\"document.title = 'run'\">"
        made = run_logs.reports()
        made[0]["run"] = {"hosts": [text] * 3, "program": text, text: text}
        self.page(made, name='x"><svg onload=alert(1)>')
        self.assertEqual(self.browser.errors, [])
        self.assertEqual(self.count("script, img"), 0)
        self.assertTrue(
            self.run_script("document.title").startswith("Training:")
        )


if __name__ == "__main__":
    unittest.main()
