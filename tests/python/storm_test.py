# SPDX-License-Identifier: Apache-2.0
"""Interrupts, exceptions, threads and pickles by the hundred: no crash, and the
digests of undisturbed runs. What runs is in storms.py, each in a process.

    bazel test //tests/python:storm_test --test_env=STORM_TIMES=10   # more of each
    STORM_SEED=7                                                     # other places

Under a sanitizer too: the process is given its runtime.
"""

import os
import re
import subprocess
import sys
import time
import unittest

# Not by importing it: under a sanitizer this process cannot load the library.
FOLDER = os.path.dirname(os.path.abspath(__file__))
TIMES = float(os.environ.get("STORM_TIMES", "1"))
SEED = os.environ.get("STORM_SEED", str(int(time.time())))


def package():
    """The folder of the Python package."""
    for path in sys.path:
        if os.path.isfile(os.path.join(path, "choir", "_find.py")):
            return path
    raise AssertionError(f"no choir in {sys.path}")


def environment():
    """Of a process that loads the library, with the runtime it was built for."""
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import importlib.util as u, sys;"
            "s = u.spec_from_file_location('choir', sys.argv[1],"
            " submodule_search_locations=[sys.argv[2]]);"
            "sys.modules['choir'] = u.module_from_spec(s);"
            "from choir import _find; print(_find.find_library())",
            os.path.join(package(), "choir", "__init__.py"),
            os.path.join(package(), "choir"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    library = said.stdout.strip()
    needed = subprocess.run(
        ["ldd", library], check=True, capture_output=True, text=True
    ).stdout
    made = {**os.environ, "PYTHONPATH": os.pathsep.join([package(), FOLDER])}
    runtimes = re.findall(r"=> (\S*lib(?:asan|ubsan)\.so\S*)", needed)
    if runtimes:
        made["LD_PRELOAD"] = " ".join(runtimes)
        # The interpreter's own memory is never freed; its allocator would hide
        # accesses behind a block.
        options = made.get("ASAN_OPTIONS", "")
        made["ASAN_OPTIONS"] = f"{options}:detect_leaks=0"
        made["PYTHONMALLOC"] = "malloc"
    return made


class Storms(unittest.TestCase):
    def storm(self, kind, count, limit=280):
        done = subprocess.run(
            [
                sys.executable,
                "-X",
                "dev",
                os.path.join(FOLDER, "storms.py"),
                kind,
                str(int(count * TIMES)),
                SEED,
            ],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=limit * max(TIMES, 1),
        )
        what = f"seed {SEED}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode, 0, what)
        self.assertRegex(done.stdout, rf"(?m)^{kind} ok", what)
        print(done.stdout, end="")

    def test_interrupts(self):
        self.storm("interrupts", 1000)

    def test_interrupts_at_bytecodes(self):
        self.storm("bytecodes", 1000)

    def test_interrupts_of_plain_code(self):
        self.storm("plain", 300)

    def test_exceptions(self):
        self.storm("exceptions", 200)

    def test_pickles(self):
        self.storm("pickles", 500)

    def test_threads(self):
        self.storm("threads", 3)


if __name__ == "__main__":
    unittest.main()
