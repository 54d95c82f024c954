# SPDX-License-Identifier: Apache-2.0
"""Where libchoir.so is, and what to say when it does not load.

The library is, in this order: the file that CHOIR_LIBRARY names; beside this
file, where a wheel puts it; two folders up, where Bazel puts it. The last is not
a folder of this package, so the library there must be this user's or root's.
"""

import ctypes
import os
import platform
import re
import stat

from choir._debian import DEBIAN_PACKAGES, needed_packages
from choir._version import __version__


def _is_unmapped(uid):
    """Whether it stands for all users that this process's user namespace does not
    know."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            if uid != int(file.read()):
                return False
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except OSError:
        return False
    return not any(0 <= uid - first < count for first, _, count in ranges)


def why_not_trusted(path):
    """Who else can have put the file there or can replace it, in words; "" if
    nobody but root and this user: the rule of dist/trusted_path_internal.h."""
    at = os.path.realpath(path)
    own_groups = {0}
    if os.getegid() == os.geteuid():
        own_groups.add(os.getegid())
    is_near = True  # the file, and its own folder
    while True:
        info = os.lstat(at)
        mode = info.st_mode
        if info.st_uid not in (0, os.geteuid()) and (
            is_near or not _is_unmapped(info.st_uid)
        ):
            return (
                f"{at} belongs to uid {info.st_uid}, neither to root nor to this "
                "user"
            )
        if mode & stat.S_IWOTH or (
            mode & stat.S_IWGRP and info.st_gid not in own_groups
        ):
            if is_near or not mode & stat.S_ISVTX:
                return f"other users can write to {at}"
        if at == "/":
            return ""
        is_near = not stat.S_ISDIR(mode)
        at = os.path.dirname(at)


def find_library():
    """Returns the absolute path of libchoir.so.

    Raises ImportError if there is none. A CHOIR_LIBRARY that names no file is
    an error too: nobody who sets it wants another library.
    """
    # $CHOIR_LIBRARY: a file that is loaded in place of libchoir.so. Not set:
    # the one beside the package, else two folders up.
    named = os.environ.get("CHOIR_LIBRARY")
    if named:
        if not os.path.isfile(named):
            raise ImportError(
                f"CHOIR_LIBRARY is '{named}', which is not a file; it must be "
                "the path of libchoir.so"
            )
        return os.path.abspath(named)
    # Not the real path: Bazel's files are links, and only the links lie
    # together.
    here = os.path.dirname(os.path.abspath(__file__))
    places = [
        os.path.join(here, "libchoir.so"),
        os.path.normpath(os.path.join(here, "..", "..", "libchoir.so")),
    ]
    for place in places:
        if os.path.isfile(place):
            why = why_not_trusted(place) if place != places[0] else ""
            if why:
                raise ImportError(
                    f"{place} is not loaded: {why}; set CHOIR_LIBRARY to its "
                    "path if it is the right one"
                )
            return place
    raise ImportError(
        f"there is no libchoir.so, neither {places[0]} nor {places[1]}; "
        "install the package (pip install choir-*.whl), run the program by "
        "Bazel, or set CHOIR_LIBRARY to the library's path"
    )


def bundled_folder(path):
    """Where a portable wheel has what the libchoir.so at `path` is linked with;
    None for a library that takes it from the system."""
    folder = os.path.join(os.path.dirname(path), "..", "choir.libs")
    return os.path.normpath(folder) if os.path.isdir(folder) else None


def explain_load_error(error, path):
    """Turns the loader's OSError about the library at `path` into a sentence
    that says what to do."""
    said = str(error)
    missing = re.match(r"([^/:\s]+): cannot open shared object file", said)
    folder = bundled_folder(path)
    if missing and folder:
        return (
            f"libchoir.so needs {missing[1]}, which is neither in {folder}, "
            "where the package has its libraries, nor on this machine; "
            "install the package again (pip install --force-reinstall)"
        )
    if missing:
        package = DEBIAN_PACKAGES.get(missing[1])
        if package:
            others = [n for n in needed_packages(path) if n != package]
            return (
                f"libchoir.so needs {missing[1]}, which this machine lacks; "
                f"on Debian: apt-get install {package} (the others that it "
                f"needs: {' '.join(others)})"
            )
        return f"libchoir.so needs {missing[1]}, which this machine lacks"
    old = re.search(r"version [`']GLIBC_([0-9.]+)' not found", said)
    if old:
        name, version = platform.libc_ver()
        return (
            f"libchoir.so needs glibc {old[1]} or newer, and this machine has "
            f"{name or 'libc'} {version or 'of an unknown version'}; Debian 12 "
            "or newer has it, or build the library here with Bazel"
        )
    if re.search(r"ELF|file too short", said):
        return (
            f"not a library for this machine ({platform.machine()}, "
            f"{platform.system()}): {said}"
        )
    return f"libchoir.so does not load: {said}"


def load_library():
    """Finds and loads libchoir.so; returns it as a ctypes.CDLL.

    Raises ImportError with a sentence if there is none, if it does not load, or
    if it is of another version than this package.
    """
    path = find_library()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(explain_load_error(error, path), path=path) from error
    try:
        version_of = library.choir_version
    except AttributeError:
        raise ImportError(f"{path} is not libchoir.so", path=path) from None
    version_of.argtypes = []
    version_of.restype = ctypes.c_char_p
    version = version_of().decode()
    if version != __version__:
        raise ImportError(
            f"{path} is of Choir {version}, and this package of "
            f"{__version__}; they must be the same",
            path=path,
        )
    return library
