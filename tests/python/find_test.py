# SPDX-License-Identifier: Apache-2.0
"""choir._find: which libchoir.so it takes, and what it says when one does not
load. Messages are those of the real loader wherever it can be made to fail."""

import ctypes
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import choir
from choir import _find

LIBRARY = os.path.abspath("libchoir.so")


def _as_if_of(path, uid, lstat=os.lstat):
    """os.lstat, for whom `path` belongs to another user."""
    real = os.path.realpath(path)

    def told(at, **how):
        info = list(lstat(at, **how))
        if at == real:
            info[stat.ST_UID] = uid
        return os.stat_result(info)

    return told


class Find(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])
        without = {k: v for k, v in os.environ.items() if k != "CHOIR_LIBRARY"}
        patch = mock.patch.dict(os.environ, without, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def made(self, name, data):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def package_at(self, folder):
        """As if _find.py were in that folder of self.folder."""
        path = os.path.join(self.folder, folder, "_find.py")
        return mock.patch.object(_find, "__file__", path)

    def refused(self, function, *words):
        with self.assertRaises(ImportError) as caught:
            function()
        said = str(caught.exception)
        for word in words:
            self.assertIn(word, said)
        self.assertNotIn("\n", said)

    def test_bazel_puts_both_libraries_where_they_are_looked_for(self):
        self.assertEqual(_find.find_library(), LIBRARY)
        self.assertTrue(os.path.isfile("libchoir_mpi.so"))
        library = _find.load_library()
        self.assertEqual(library.choir_version().decode(), choir.__version__)

    def test_order(self):
        named = self.made("elsewhere/other.so", b"")
        beside = self.made("a/b/choir/libchoir.so", b"")
        above = self.made("a/libchoir.so", b"")
        with self.package_at("a/b/choir"):
            with mock.patch.dict(os.environ, CHOIR_LIBRARY=named):
                self.assertEqual(_find.find_library(), named)
            self.assertEqual(_find.find_library(), beside)
            os.remove(beside)
            self.assertEqual(_find.find_library(), above)
            with mock.patch.dict(os.environ, CHOIR_LIBRARY=""):
                self.assertEqual(_find.find_library(), above)
            os.remove(above)
            self.refused(_find.find_library, beside, above, "CHOIR_LIBRARY")

    def test_library_above_that_others_can_write(self):
        above = self.made("a/libchoir.so", b"")
        for path, mode in [
            (above, 0o666),
            (os.path.dirname(above), 0o777),
            (os.path.dirname(above), 0o1777),
            (self.folder, 0o777),
        ]:
            before = stat.S_IMODE(os.stat(path).st_mode)
            os.chmod(path, mode)
            with self.package_at("a/b/choir"), self.subTest(path):
                self.refused(
                    _find.find_library,
                    "is not loaded",
                    f"other users can write to {os.path.realpath(path)};",
                )
            os.chmod(path, before)
        # As /tmp: only owners remove what is in it.
        os.chmod(self.folder, 0o1777)
        with self.package_at("a/b/choir"):
            self.assertEqual(_find.find_library(), above)

    def test_library_above_of_another_user(self):
        above = self.made("a/libchoir.so", b"")
        for path in (above, os.path.dirname(above)):
            with mock.patch.object(os, "lstat", _as_if_of(path, 31337)):
                with self.package_at("a/b/choir"), self.subTest(path):
                    self.refused(
                        _find.find_library,
                        f"{os.path.realpath(path)} belongs to uid 31337",
                    )

    def test_folders_of_users_that_a_namespace_does_not_know(self):
        above = self.made("a/libchoir.so", b"")
        near = os.path.dirname(above)
        script = (
            "import os, sys; from choir import _find\n"
            "from tests.python.find_test import _as_if_of\n"
            "os.lstat = _as_if_of(sys.argv[2], 65534)\n"
            "print(_find.why_not_trusted(sys.argv[1]))"
        )
        env = {**os.environ, "PYTHONPATH": "python:.", "CHOIR_LIBRARY": LIBRARY}

        def why(path):
            command = ["unshare", "--user", "--map-root-user", sys.executable]
            command += ["-c", script, above, path]
            said = subprocess.run(
                command, check=True, capture_output=True, text=True, env=env
            )
            return said.stdout.strip()

        self.assertEqual(why(self.folder), "")
        for path in (above, near):
            self.assertIn(f"{path} belongs to uid 65534", why(path))
        os.chmod(self.folder, 0o777)
        self.assertEqual(
            why(self.folder), f"other users can write to {self.folder}"
        )

    def test_relative_name_is_a_path(self):
        # The loader would look for a name without a slash in the system.
        with mock.patch.dict(os.environ, CHOIR_LIBRARY="libchoir.so"):
            self.assertEqual(_find.find_library(), LIBRARY)

    def test_named_library_must_be_there(self):
        with mock.patch.dict(os.environ, CHOIR_LIBRARY="/no/such.so"):
            self.refused(_find.find_library, "CHOIR_LIBRARY is '/no/such.so'")

    def load(self, path):
        with mock.patch.dict(os.environ, CHOIR_LIBRARY=path):
            return _find.load_library()

    def renamed(self, needed):
        """A copy of the library that needs a library that nobody has."""
        nobodys = needed[:3] + "q" + needed[4:]
        with open(LIBRARY, "rb") as file:
            data = file.read()
        self.assertIn(needed.encode(), data)
        copy = data.replace(needed.encode(), nobodys.encode())
        return nobodys, self.made("renamed.so", copy)

    def needed(self):
        said = subprocess.run(
            ["readelf", "-d", LIBRARY],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return set(re.findall(r"NEEDED.*\[(.*)\]", said))

    def test_missing_package_is_named(self):
        [name] = [n for n in self.needed() if n.startswith("libdnnl.so.")]
        package = _find.DEBIAN_PACKAGES[name]
        nobodys, path = self.renamed(name)
        packages = {**_find.DEBIAN_PACKAGES, nobodys: package}
        with mock.patch.object(_find, "DEBIAN_PACKAGES", packages):
            self.refused(
                lambda: self.load(path),
                f"libchoir.so needs {nobodys}, which this machine lacks",
                f"apt-get install {package} (the others that it needs: "
                "libcjson1 libgomp1 libprotobuf-c1 libsodium23 libstdc++6 "
                "zlib1g)",
            )

    def test_missing_library_of_no_known_package(self):
        nobodys, path = self.renamed("libcjson.so.1")
        self.refused(lambda: self.load(path), f"libchoir.so needs {nobodys}")

    def test_package_that_lost_a_library_of_its_own(self):
        [name] = [n for n in self.needed() if n.startswith("libdnnl.so.")]
        nobodys, path = self.renamed(name)
        self.assertIsNone(_find.bundled_folder(path))
        inside = os.path.join(self.folder, "choir", "libchoir.so")
        os.mkdir(os.path.dirname(inside))
        os.rename(path, inside)
        folder = os.path.join(self.folder, "choir.libs")
        os.mkdir(folder)
        with self.assertRaises(ImportError) as caught:
            self.load(inside)
        said = str(caught.exception)
        self.assertIn(f"needs {nobodys}, which is neither in {folder}", said)
        self.assertIn("pip install --force-reinstall", said)
        self.assertNotIn("apt-get", said)

    def test_every_needed_library_has_a_package(self):
        needed = self.needed()
        self.assertGreater(len(needed), 3)
        # Those of libc6, without which there is no Python.
        of_libc = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
        of_libc |= {"libpthread.so.0", "ld-linux-aarch64.so.1"}
        self.assertEqual(needed - of_libc - set(_find.DEBIAN_PACKAGES), set())

    def test_old_c_library(self):
        # As glibc 2.31 says it.
        error = OSError(
            "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found "
            "(required by /x/libchoir.so)"
        )
        said = _find.explain_load_error(error, LIBRARY)
        self.assertIn("needs glibc 2.34 or newer", said)
        self.assertRegex(said, r"this machine has glibc 2\.\d+;")

    def test_not_a_library(self):
        path = self.made("text.so", b"no library")
        self.refused(lambda: self.load(path), "not a library for this machine")

    def test_another_reason_is_passed_on(self):
        said = _find.explain_load_error(
            OSError("/x.so: undefined symbol: y"), LIBRARY
        )
        self.assertIn("undefined symbol: y", said)

    def test_another_library(self):
        other = ctypes.CDLL("libz.so.1")
        path = self.made("z.so", b"")
        with mock.patch.object(ctypes, "CDLL", return_value=other):
            self.refused(lambda: self.load(path), f"{path} is not libchoir.so")

    def test_another_version(self):
        path = os.path.join(self.folder, "choir.so")
        shutil.copy(LIBRARY, path)
        with mock.patch.object(_find, "__version__", "9.9.9"):
            self.refused(
                lambda: self.load(path),
                f"of Choir {choir.__version__}",
                "this package of 9.9.9",
            )


class Version(unittest.TestCase):
    def test_is_that_of_the_c_headers(self):
        with open("core/base.h", encoding="utf-8") as file:
            text = file.read()
        parts = [
            re.search(rf"#define CHOIR_VERSION_{part} (\d+)", text)[1]
            for part in ["MAJOR", "MINOR", "PATCH"]
        ]
        self.assertEqual(choir.__version__, ".".join(parts))


if __name__ == "__main__":
    unittest.main()
