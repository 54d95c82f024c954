# SPDX-License-Identifier: Apache-2.0
"""What pip calls (PEP 517) for `pip install ./python`, which makes no portable
wheel: the library finds oneDNN and the rest in the system.

Bazel decides whether the library is up to date and builds it if not. Without
Bazel, a library that it left in bazel-bin will do if no source is newer.
"""

import os
import shutil
import subprocess
import sys

import make_wheel

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = ["libchoir.so", "libchoir_mpi.so"]
# Where the library's sources are.
SOURCES = "autograd core dist io model onnx opt tensor third_party tools".split()


class UnsupportedOperation(Exception):
    """The name that PEP 517 gives it."""


def repository():
    root = os.path.dirname(FOLDER)
    for needed in ["WORKSPACE", "choir.h", "LICENSE"]:
        if not os.path.exists(os.path.join(root, needed)):
            raise FileNotFoundError(
                f"{root} is not Choir's repository (it has no {needed}); the "
                "package is built from a checkout: pip install ./python, "
                "with pip 21.3 or newer, which builds in place"
            )
    return root


def newest_source(root):
    """The source file that changed last: (time, path)."""
    newest = (0, "")
    for top in ["BUILD", "WORKSPACE"] + SOURCES:
        path = os.path.join(root, top)
        files = [path] if os.path.isfile(path) else []
        for folder, _, names in os.walk(path):
            files += [os.path.join(folder, name) for name in names]
        for file in files:
            if not file.endswith((".py", ".pyc", ".md")):
                newest = max(newest, (os.lstat(file).st_mtime, file))
    return newest


def built_by_bazel(root):
    targets = ["//:" + name for name in LIBRARIES]
    subprocess.run(
        ["bazel", "build", "--noshow_progress", *targets], cwd=root, check=True
    )
    # Not the link bazel-bin: it follows the last configuration built.
    said = subprocess.run(
        ["bazel", "info", "bazel-bin"],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return said.stdout.strip()


def built_before(root):
    folder = os.path.join(root, "bazel-bin")
    time, source = newest_source(root)
    for name in LIBRARIES:
        library = os.path.join(folder, name)
        if not os.path.isfile(library):
            raise FileNotFoundError(
                f"there is neither bazel, to build {name} with, nor "
                f"{library}; ./bootstrap installs what building needs"
            )
        if os.path.getmtime(library) < time:
            raise FileNotFoundError(
                f"{library} is older than {source}, and there is no bazel to "
                "build it anew with; ./bootstrap installs what building needs"
            )
    return folder


def library_files():
    root = repository()
    if not shutil.which("bazel"):
        folder = built_before(root)
    else:
        try:
            folder = built_by_bazel(root)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                f"'{' '.join(error.cmd)}' failed in {root}, with status "
                f"{error.returncode}; its own words are above"
            ) from None
    return [os.path.join(folder, name) for name in LIBRARIES]


def package_files():
    files = []
    for folder, _, names in os.walk(os.path.join(FOLDER, "choir")):
        files += [os.path.join(folder, n) for n in names if n.endswith(".py")]
    return files


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    try:
        files = package_files() + library_files()
        name = make_wheel.wheel_name(FOLDER, files)
        make_wheel.make_wheel(
            FOLDER,
            os.path.join(os.path.dirname(FOLDER), "LICENSE"),
            files,
            os.path.join(wheel_directory, name),
        )
        print(
            f"choir: {name} is for this machine, whose libraries it uses; "
            "tools/portable_wheel.sh makes one for others"
        )
    except (OSError, RuntimeError, ValueError) as error:
        # The sentence alone; a stack of pip's tells nobody anything.
        sys.exit(f"choir: {error}")
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation(
        "Choir has no source archive: the sources are the git repository, as "
        "libchoir.so is built from all of it"
    )
