# SPDX-License-Identifier: Apache-2.0
"""Scripts of CI: what they refuse, and that a signal ends them with all that they
started."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

CLEAN_ROOM = os.path.abspath("tools/clean_room.sh")
CHECK_WHEEL = os.path.abspath("tools/check_wheel.sh")
CI = os.path.abspath(".ci/run")
# A guard against a hang, no part of what is tested.
TIME_LIMIT = 60
# Programs that do not end by themselves; beside each, NAME.pid says who runs. One
# that waits for a child, as a shell script does, and one that ends at a signal with
# a status of its own, as Bazel does.
WAITS = """#!/bin/bash
sleep 1000 &
echo $! >"$0.pid"
wait
"""
ENDS_AT_INT = """#!/bin/bash
trap 'exit 8' INT
echo started >>"$0.log"
echo $$ >"$0.pid"
while :; do sleep 0.1; done
"""


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_flags_without_a_value(self):
        for script, arguments, sentence in (
            (CLEAN_ROOM, ["--suite"], "clean_room.sh: --suite needs a SUITE"),
            (CLEAN_ROOM, ["--with"], "clean_room.sh: there is no ''"),
            (CLEAN_ROOM, ["--suite", "sid", "x"], "unknown suite 'sid'"),
            (CLEAN_ROOM, [], "clean_room.sh: FOLDER is missing"),
            (CHECK_WHEEL, ["--suite"], "check_wheel.sh: --suite needs a SUITE"),
            (CHECK_WHEEL, ["-x"], "check_wheel.sh: unknown flag '-x'"),
        ):
            done = subprocess.run(
                ["bash", script, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT,
            )
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(sentence, done.stderr)
            self.assertIn("; usage: tools/", done.stderr)

    def program(self, text, *names):
        path = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def start(self, script, *names):
        """A copy of a script, which calls others beside it."""
        path = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(script, path)
        return subprocess.Popen(
            ["bash", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Bazel starts tests with it ignored, which bash cannot undo.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def child_of(self, program):
        """The process that it runs."""
        end = time.monotonic() + TIME_LIMIT
        while time.monotonic() < end:
            try:
                with open(program + ".pid") as file:
                    return int(file.read())
            except (FileNotFoundError, ValueError):
                time.sleep(0.02)
        self.fail(program + " does not start")

    def assert_gone(self, pid):
        end = time.monotonic() + TIME_LIMIT
        while time.monotonic() < end:
            try:
                with open("/proc/%d/stat" % pid) as file:
                    if file.read().rpartition(")")[2].split()[0] == "Z":
                        return
            except FileNotFoundError:
                return
            time.sleep(0.02)
        self.fail("process %d is left" % pid)

    def test_check_wheel_is_ended_while_it_makes_the_wheel(self):
        program = self.program(WAITS, "tools", "portable_wheel.sh")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number):
                process = self.start(CHECK_WHEEL, "tools", "check_wheel.sh")
                pid = self.child_of(program)
                process.send_signal(number)
                said, _ = process.communicate(timeout=TIME_LIMIT)
                self.assertEqual(process.returncode, 128 + number, said)
                self.assert_gone(pid)
                os.remove(program + ".pid")

    def test_ci_ends_at_ctrl_c(self):
        program = self.program(ENDS_AT_INT, "bootstrap")
        process = self.start(CI, ".ci", "run")
        pid = self.child_of(program)
        # As a terminal does it: to all that stand in front.
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=TIME_LIMIT)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, said)
        self.assert_gone(pid)
        with open(program + ".log") as file:
            self.assertEqual(file.read(), "started\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
