# SPDX-License-Identifier: Apache-2.0
"""Tests tools/count_tests.py on build events made up here."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv.pop(1))

GTEST_XML = """<testsuites><testsuite name="Suite">
<testcase name="Runs" classname="Suite" status="run" result="completed"/>
%s</testsuite></testsuites>"""
GTEST_SKIP = """<testcase name="NeedsTwo" classname="Suite" status="run">
<skipped message="a_test.cc:12&#x0A;needs two GPUs"/></testcase>"""
ONLY_SKIP = (
    """<testsuites><testsuite name="Suite">
%s</testsuite></testsuites>"""
    % GTEST_SKIP
)
SHELL_XML = """<testsuites><testsuite name="sh" tests="1">
<testcase name="sh" status="run"/><system-out><![CDATA[
%s
]]></system-out></testsuite></testsuites>"""


class CountTests(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.events = []

    def target(self, label, kind="cc_test rule", success=True):
        self.events.append(
            {
                "id": {"targetConfigured": {"label": label}},
                "configured": {"targetKind": kind},
            }
        )
        self.events.append(
            {
                "id": {"targetCompleted": {"label": label}},
                "completed": {"success": success},
            }
        )

    def ran(self, label, status, *xmls):
        self.target(label)
        for shard, xml in enumerate(xmls):
            # A space, which a URI spells %20.
            name = "%s %d.xml" % (label.replace("/", "_"), shard)
            path = os.path.join(self.folder.name, name)
            with open(path, "w", encoding="utf-8") as out:
                out.write(xml)
            output = {
                "name": "test.xml",
                "uri": "file://" + path.replace(" ", "%20"),
            }
            log = os.path.join(self.folder.name, "%d.log" % len(self.events))
            with open(log, "w", encoding="utf-8") as out:
                out.writelines("%s, line %d\n" % (label, i) for i in range(99))
            outputs = [output, {"name": "test.log", "uri": "file://" + log}]
            result = {"status": status, "testActionOutput": outputs}
            self.events.append(
                {"id": {"testResult": {"label": label}}, "testResult": result}
            )
        self.events.append(
            {
                "id": {"testSummary": {"label": label}},
                "testSummary": {"overallStatus": status},
            }
        )

    def count(self, bazel_status, path=None):
        """Returns ([passed, failed, skipped], standard error)."""
        if path is None:
            path = os.path.join(self.folder.name, "events.json")
            with open(path, "w", encoding="utf-8") as out:
                out.write("\n".join(json.dumps(e) for e in self.events))
        self.failures = os.path.join(self.folder.name, "failures")
        done = subprocess.run(
            [sys.executable, SCRIPT, path, str(bazel_status), self.failures],
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(n) for n in done.stdout.split()], done.stderr

    def test_passed_failed_and_flaky(self):
        self.ran("//a:one", "PASSED", GTEST_XML % "")
        self.ran("//a:two", "FLAKY", GTEST_XML % "")
        self.ran("//a:three", "FAILED", GTEST_XML % "")
        self.ran("//a:four", "TIMEOUT")
        self.target("//a:library", "cc_library rule")
        counts, said = self.count(3)
        self.assertEqual(counts, [2, 2, 0])
        self.assertIn("FAILED: //a:three", said)
        self.assertIn("FAILED: //a:four", said)
        with open(self.failures, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertIn("FAILED: //a:four", lines)
        self.assertIn("FAILED: //a:three", lines)
        self.assertIn("//a:three, line 98", lines)
        self.assertNotIn("//a:three, line 3", lines)
        self.assertNotIn("//a:one, line 98", lines)

    def test_skipped_cases_are_named(self):
        self.ran("//a:some", "PASSED", GTEST_XML % GTEST_SKIP)
        counts, said = self.count(0)
        self.assertEqual(counts, [1, 0, 1])
        self.assertIn("//a:some Suite.NeedsTwo: needs two GPUs", said)

    def test_one_line_for_cases_of_one_reason(self):
        self.ran("//a:some", "PASSED", GTEST_XML % (GTEST_SKIP * 3))
        counts, said = self.count(0)
        self.assertEqual(counts, [1, 0, 3])
        self.assertEqual(
            said,
            "SKIPPED: //a:some Suite.NeedsTwo and 2 more: needs two GPUs\n",
        )

    def test_a_target_of_skips_only_is_no_pass(self):
        self.ran("//a:gpu", "PASSED", ONLY_SKIP, ONLY_SKIP)
        self.assertEqual(self.count(0)[0], [0, 0, 2])

    def test_shell_and_python_skips(self):
        self.ran("//a:sh", "PASSED", SHELL_XML % "SKIP: no sshd")
        self.ran(
            "//a:py",
            "PASSED",
            SHELL_XML % "test_x (m.T) ... skipped 'no numpy'\nOK (skipped=2)",
        )
        counts, said = self.count(0)
        self.assertEqual(counts, [2, 0, 3])
        self.assertIn("no sshd", said)
        self.assertIn("no numpy", said)
        self.assertIn("no reason shown", said)

    def test_a_test_that_did_not_build_failed(self):
        self.target("//a:broken", success=False)
        self.assertEqual(self.count(1)[0], [0, 1, 0])

    def test_a_test_built_along_does_not_count(self):
        self.target("//a:other_config")
        self.ran("//a:one", "PASSED", GTEST_XML % "")
        self.assertEqual(self.count(0)[0], [1, 0, 0])

    def test_bazel_failed_although_no_test_did(self):
        self.ran("//a:one", "PASSED", GTEST_XML % "")
        counts, said = self.count(1)
        self.assertEqual(counts, [1, 1, 0])
        self.assertIn("bazel exited with 1", said)

    def test_no_events_at_all(self):
        counts, _ = self.count(37, os.path.join(self.folder.name, "none"))
        self.assertEqual(counts, [0, 1, 0])

    def test_nothing_selected_is_no_failure(self):
        self.assertEqual(self.count(4)[0], [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
