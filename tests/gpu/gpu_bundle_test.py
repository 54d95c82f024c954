# SPDX-License-Identifier: Apache-2.0
"""The bundle in an empty folder with a bare environment: it runs, whatever the
machine has, and its report says what came of it. How fast, no test asks; limits of
time are guards against a hang."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

TOP = "choir_gpu_bundle"
# Few and quick; an empty --only is all.
SUITES = ("device_suite", "op_suite", "layer_suite", "cuda_driver_test")


class GpuBundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        with tarfile.open(cls.bundle) as archive:
            cls.names = archive.getnames()
            archive.extractall(cls.folder)

    def start(self, *flags, **more):
        # Bazel's environment would lend what another machine lacks.
        environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
        return subprocess.Popen(
            [os.path.join(self.folder, TOP, "run.sh"), *flags],
            cwd=self.folder,
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run_bundle(self, *flags, **more):
        process = self.start(*flags, **more)
        output, _ = process.communicate(timeout=250)
        return process.returncode, output

    def report(self, out):
        folder = os.path.join(self.folder, out)
        with open(os.path.join(folder, "report.md"), encoding="utf-8") as file:
            page = file.read()
        with open(
            os.path.join(folder, "report.json"), encoding="utf-8"
        ) as file:
            return json.load(file), page

    def test_it_is_small_and_stays_in_its_folder(self):
        self.assertLess(os.path.getsize(self.bundle), 60 << 20)
        for name in self.names:
            self.assertTrue(name.startswith(TOP + "/"), name)
            self.assertNotIn("..", name)
        for name in ("libchoir.so", "lib/libgomp.so.1"):
            self.assertIn(TOP + "/" + name, self.names)
        onednn = TOP + "/lib/libdnnl.so."
        self.assertTrue(any(name.startswith(onednn) for name in self.names))
        self.assertNotIn(TOP + "/lib/libc.so.6", self.names)

    def test_all_steps(self):
        status, output = self.run_bundle("--limit", "200", "--out", "all")
        record, page = self.report("all")
        states = {s["name"]: s["state"] for s in record["steps"]}
        self.assertEqual(len(states), len(record["steps"]))
        _, listed = self.run_bundle("--list")
        self.assertEqual(len(listed.splitlines()), len(states))
        for name in states:
            self.assertIn("| %s |" % name, page)
        if record["choir"]["gpus"]:
            return  # what a GPU makes of it is no question of this test
        self.assertEqual(status, 0, output)
        # It asks the driver, which any machine has or not.
        self.assertEqual(states.pop("cuda_driver_test"), "passed")
        kernels = dict(record["choir"]["parts"])["kernels"]
        self.assertEqual(states.pop("gpu_parts_test"), "passed", kernels)
        self.assertEqual(set(states.values()), {"skipped"}, output)
        self.assertIn("# Choir on a machine without a GPU\n", page)
        self.assertRegex(page, r"driver \| no: cuda: .*; needs ")
        steps = {step["name"]: step for step in record["steps"]}
        for name in SUITES[:3]:
            (reason,) = steps[name]["reasons"]
            self.assertGreater(steps[name]["skipped"], 5)
            self.assertRegex(reason, "^cuda: .*; needs ")
            self.assertIn(reason, page)
        self.assertEqual(
            steps["op_suite under memcheck"]["note"],
            "no GPU that Choir can use",
        )

    def test_no_time_is_said(self):
        flags = ("--limit", "0.1", "--out", "none", "--only", "device,op_suite")
        status, output = self.run_bundle(*flags)
        self.assertEqual(status, 3, output)
        record, page = self.report("none")
        states = [step["state"] for step in record["steps"]]
        self.assertEqual(set(states[:2]), {"not started"})
        self.assertIn("the 0.1 s of --limit were over", page)

    def test_results_are_kept_when_it_is_ended(self):
        process = self.start("--out", "ended")
        line = process.stdout.readline()
        self.assertTrue(line.startswith("cuda_driver_test"), line)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, output)
        record, page = self.report("ended")
        self.assertEqual(record["interrupted"], "SIGTERM")
        self.assertIn("Interrupted by SIGTERM", page)
        self.assertEqual(record["steps"][0]["state"], "passed")

    def test_a_suite_that_fails_or_crashes_fails_the_run(self):
        place = os.path.join(self.folder, TOP, "tests", "tensor")
        program = os.path.join(place, "gpu_parts_test")
        os.rename(program, program + ".kept")
        self.addCleanup(os.rename, program + ".kept", program)
        for script, word in (
            (
                'echo "[ RUN      ] A.B"; kill -SEGV $$',
                "ended by SIGSEGV in A.B",
            ),
            ("echo no; exit 7", "exit status 7"),
        ):
            with open(program, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n" + script + "\n")
            os.chmod(program, 0o755)
            flags = ("--only", "gpu_parts", "--out", "broken")
            status, output = self.run_bundle(*flags)
            self.assertEqual(status, 1, output)
            record, page = self.report("broken")
            self.assertEqual(record["steps"][0]["state"], "failed")
            self.assertIn(word, page)

    def test_a_step_that_hangs_is_stopped(self):
        place = os.path.join(self.folder, TOP, "tests", "core")
        program = os.path.join(place, "cuda_driver_test")
        os.rename(program, program + ".kept")
        self.addCleanup(os.rename, program + ".kept", program)
        child = os.path.join(self.folder, "child")
        with open(program, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\ntrap '' TERM\nsleep 600 &\n")
            file.write("echo $! >%s\n" % child)
            file.write("echo '[ RUN      ] A.A'\n")
            file.write("echo '[       OK ] A.A (0 ms)'\n")
            file.write("echo '[ RUN      ] A.Hangs'\nwait\nsleep 600\n")
        os.chmod(program, 0o755)
        flags = ("--only", "cuda_driver", "--out", "hang", "--limit", "20")
        status, output = self.run_bundle(*flags)
        self.assertEqual(status, 3, output)
        (step,) = self.report("hang")[0]["steps"]
        self.assertEqual((step["state"], step["passed"]), ("stopped", 1))
        self.assertIn("A.Hangs", step["note"])
        with open(child, encoding="ascii") as file:
            pid = int(file.read())
        for _ in range(100):
            if not os.path.exists("/proc/%d" % pid):
                return
            time.sleep(0.05)
        self.fail("a process of the step is left: %d" % pid)

    def test_the_python_step_runs_on_the_cpu(self):
        # Not its own command, which asks for a GPU; but the rest of it.
        root = os.path.join(self.folder, TOP)
        done = subprocess.run(
            [
                sys.executable,
                "tests/gpu/python_on_device.py",
                "--device",
                "cpu",
            ],
            cwd=root,
            env={
                "PATH": "/usr/bin:/bin",
                "LD_LIBRARY_PATH": os.path.join(root, "lib"),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("loss = ", done.stdout)

    def test_sanitize_says_what_is_missing(self):
        script = os.path.join(self.folder, TOP, "tests", "gpu", "sanitize.sh")
        for words, status, said in (
            (("lint", "x"), 2, "'lint' is no tool"),
            (("memcheck",), 2, "no program"),
        ):
            done = subprocess.run(
                ["sh", script, *words], capture_output=True, text=True
            )
            self.assertEqual(done.returncode, status)
            self.assertIn(said, done.stderr)
        # In the place of the real one: what it is given.
        tools = os.path.join(self.folder, "tools")
        os.mkdir(tools)
        fake = os.path.join(tools, "compute-sanitizer")
        with open(fake, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\necho "$@"\nexit 86\n')
        os.chmod(fake, 0o755)
        done = subprocess.run(
            ["sh", script, "racecheck", "program", "--flag"],
            env={"PATH": tools + ":/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 86)
        self.assertTrue(done.stdout.endswith("program --flag\n"), done.stdout)
        self.assertIn("--tool racecheck", done.stdout)


if __name__ == "__main__":
    GpuBundleTest.bundle = os.path.abspath(sys.argv.pop(1))
    unittest.main()
