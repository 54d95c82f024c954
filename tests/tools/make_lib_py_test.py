# SPDX-License-Identifier: Apache-2.0
"""python/choir/_lib.py is what tools/make_lib_py.py makes of the headers, and
follows them."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join("tools", "make_lib_py.py")
LIB = os.path.join("python", "choir", "_lib.py")
FOLDERS = ("autograd", "core", "dist", "io", "model", "onnx", "opt", "tensor")


def run(folder, *flags):
    return subprocess.run(
        [sys.executable, SCRIPT, *flags],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


class MakeLibPyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        shutil.copy("choir.h", self.root)
        for part in (*FOLDERS, "python", "tools"):
            shutil.copytree(part, os.path.join(self.root, part))

    def change(self, path, old, new):
        path = os.path.join(self.root, path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count(old), 1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))

    def made(self):
        """The file, made anew after a check that found it stale."""
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("run python3 tools/make_lib_py.py --write", done.stderr)
        self.assertEqual(run(self.root, "--write").stderr, "")
        self.assertEqual(run(self.root).returncode, 0)
        with open(os.path.join(self.root, LIB), encoding="utf-8") as file:
            return file.read()

    def test_the_file_is_current(self):
        done = run(".")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_field_more(self):
        self.change(
            "core/gpu.h",
            "  int32_t minor;",
            "  int32_t minor;\n  double more[2 * SIDES];",
        )
        self.change(
            "core/gpu.h",
            "typedef struct choir_gpu_info_s",
            "enum { ONE = 1, SIDES = ONE + 2 };\ntypedef struct choir_gpu_info_s",
        )
        self.assertIn('("more", c_double * 6)', self.made())

    def test_a_value_of_a_list_more(self):
        self.change(
            "core/status.h",
            "  X(INTERNAL, 11",
            "  X(MORE, 11, more) \\\n  X(INTERNAL, 12",
        )
        self.assertIn("MORE, INTERNAL,", self.made())

    def test_a_parameter_more(self):
        self.change(
            "core/gpu.h",
            "choir_gpu_count(int32_t* out_count)",
            "choir_gpu_count(void (*f)(int, int), int32_t* out_count)",
        )
        self.assertIn('"gpu_count": (_P, [_P, POINTER(c_int32)])', self.made())

    def test_what_the_package_no_longer_uses_goes(self):
        self.change("python/choir/data.py", "lib.dataset_class_count(", "len(")
        self.assertNotIn("dataset_class_count", self.made())

    def test_what_no_header_declares(self):
        self.change(
            "python/choir/device.py",
            "from choir._lib import ",
            "from choir._lib import Elephant, ",
        )
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("imports Elephant from choir._lib", done.stderr)
        self.change("python/choir/device.py", "Elephant, ", "")
        self.change("python/choir/data.py", "lib.dataset_count(", "lib.ears(")
        done = run(self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("calls lib.ears", done.stderr)


if __name__ == "__main__":
    unittest.main()
