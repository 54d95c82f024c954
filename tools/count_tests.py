# SPDX-License-Identifier: Apache-2.0
"""Counts the tests of one `bazel test` run: prints "PASSED FAILED SKIPPED".

usage: count_tests.py BUILD_EVENTS_JSON EXIT_STATUS_OF_BAZEL [FAILURES]

A target counts once, as passed or failed. Each skipped test case inside a target
counts as skipped; standard error has a line for each target and reason. A target
of which nothing but skipped cases ran is no pass. A run that failed without a
failed test (some other target did not build, a flag was wrong) counts one failure.
What failed, with the end of its log, is appended to the file FAILURES.
"""

import collections
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree

LOG_LINES = 60


def read_events(path):
    with open(path, encoding="utf-8") as events:
        for line in events:
            if line.strip():
                yield json.loads(line)


def skips_of(xml_path):
    """Returns (cases that ran, [(name, reason)] of those that were skipped)."""
    try:
        root = xml.etree.ElementTree.parse(xml_path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return 1, []
    reasons, ran = [], 0
    for case in root.iter("testcase"):
        mark = case.find("skipped")
        if mark is not None:
            text = mark.get("message") or mark.text or ""
            # GoogleTest puts file:line in front of the reason.
            lines = [line for line in text.splitlines() if line.strip()]
            name = "%s.%s" % (case.get("classname"), case.get("name"))
            reasons.append((name, lines[-1] if lines else ""))
        elif case.get("status") != "notrun":
            ran += 1
    # Tests that are no GoogleTest: Bazel keeps their output as text. Python's
    # unittest names a skipped test and its reason in verbose mode only.
    for output in root.iter("system-out"):
        text = output.text or ""
        named = re.findall(
            r"^(\S+ .*?)\.\.\. skipped (.*)$", text, re.MULTILINE
        )
        count = sum(int(n) for n in re.findall(r"\bskipped=(\d+)", text))
        # A shell test says so in a line of its own.
        named += re.findall(r"^(SKIP)(?:PED)?: (.*)$", text, re.MULTILINE)
        reasons += named
        reasons += [("", "no reason shown")] * (count - len(named))
    return ran, reasons


def tell_skips(label, reasons):
    """One line for each reason, which often is that of many cases."""
    cases = collections.defaultdict(list)
    for name, reason in reasons:
        cases[reason].append(name)
    for reason, names in cases.items():
        more = " and %d more" % (len(names) - 1) if len(names) > 1 else ""
        print(
            "SKIPPED: %s %s%s: %s" % (label, names[0], more, reason),
            file=sys.stderr,
        )


def tell_failure(what, logs, failures):
    print("FAILED: %s" % what, file=sys.stderr)
    if not failures:
        return
    with open(failures, "a", encoding="utf-8") as out:
        print("FAILED: %s" % what, file=out)
        for log in logs:
            try:
                with open(log, encoding="utf-8", errors="replace") as file:
                    out.writelines(collections.deque(file, LOG_LINES))
            except OSError as error:
                print(error, file=out)


def main():
    path, bazel_status = sys.argv[1], int(sys.argv[2])
    failures = sys.argv[3] if len(sys.argv) > 3 else None
    tests, built, summaries = set(), {}, {}
    # Label to files, one per shard and attempt.
    xml_files = collections.defaultdict(list)
    failed_logs = collections.defaultdict(list)
    try:
        events = list(read_events(path))
    except OSError:
        events = []
    for event in events:
        event_id = event.get("id", {})
        if "targetConfigured" in event_id and "configured" in event:
            if event["configured"].get("targetKind", "").endswith("_test rule"):
                tests.add(event_id["targetConfigured"]["label"])
        elif "targetCompleted" in event_id:
            label = event_id["targetCompleted"]["label"]
            built[label] = event.get("completed", {}).get("success", False)
        elif "testSummary" in event_id:
            label = event_id["testSummary"]["label"]
            summaries[label] = event.get("testSummary", {}).get("overallStatus")
        elif "testResult" in event_id:
            label = event_id["testResult"]["label"]
            result = event.get("testResult", {})
            for output in result.get("testActionOutput", []):
                uri = output.get("uri", "")
                if not uri.startswith("file://"):
                    continue
                place = urllib.parse.unquote(uri[len("file://") :])
                if output.get("name") == "test.xml":
                    xml_files[label].append(place)
                elif (
                    output.get("name") == "test.log"
                    and result.get("status") != "PASSED"
                ):
                    failed_logs[label].append(place)

    passed = failed = skipped = 0
    for label in sorted(tests):
        status = summaries.get(label)
        if status is None and built.get(label, False):
            continue  # built along, but not asked to run
        if status not in ("PASSED", "FLAKY"):
            failed += 1
            tell_failure(label, failed_logs[label], failures)
            continue
        ran_cases, reasons = 0, []
        for xml_path in xml_files[label]:
            ran, why = skips_of(xml_path)
            ran_cases += ran
            reasons += why
        tell_skips(label, reasons)
        skipped += len(reasons)
        if ran_cases > 0 or not reasons:
            passed += 1
    # 4 is Bazel's "nothing to test", which an empty selection gives.
    if bazel_status not in (0, 4) and failed == 0:
        failed = 1
        tell_failure("bazel exited with %d" % bazel_status, [], failures)
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
