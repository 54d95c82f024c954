# SPDX-License-Identifier: Apache-2.0
"""What a GoogleTest program has told so far, read from its output, which is there
also when the program was killed or crashed in the middle."""

import re

_END = re.compile(
    r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)"
)
_START = "[ RUN      ] "
_PLACE = re.compile(r"\S+:\d+: (Skipped|Failure)$")
MESSAGE_LINES = 12  # of one failure


def _reason(lines):
    """The text of a skip: what follows the line of its place."""
    for i, line in enumerate(lines):
        if _PLACE.match(line):
            return " ".join(lines[i + 1 :]).strip() or "no reason given"
    return "no reason given"


def read(text):
    """{passed, skipped: counts, failed: [{name, message}], reasons: {text:
    count}, unfinished: the test that was running at the end, or ""}."""
    found = {"passed": 0, "skipped": 0, "failed": [], "reasons": {}}
    running, lines = "", []
    for line in text.splitlines():
        if line.startswith(_START):
            running, lines = line[len(_START) :], []
            continue
        end = _END.match(line)
        if not (running and end and end[2] == running):
            lines.append(line)
            continue
        if end[1] == "OK":
            found["passed"] += 1
        elif end[1] == "SKIPPED":
            found["skipped"] += 1
            reason = _reason(lines)
            found["reasons"][reason] = found["reasons"].get(reason, 0) + 1
        else:
            message = "\n".join(lines[:MESSAGE_LINES])
            found["failed"].append({"name": running, "message": message})
        running = ""
    found["unfinished"] = running
    return found
