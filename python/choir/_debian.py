# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that libchoir.so needs where it was built from the sources
and no portable wheel brought its libraries along; make_wheel.py reads it too."""

# What the library may be linked with, and the package that has it; oneDNN is
# version 2 in Debian 12 and 3 in Debian 13. A test compares the names with those
# in the library.
DEBIAN_PACKAGES = {
    "libcjson.so.1": "libcjson1",
    "libdnnl.so.2": "libdnnl2",
    "libdnnl.so.3.6": "libdnnl3.6",
    "libgomp.so.1": "libgomp1",
    "libprotobuf-c.so.1": "libprotobuf-c1",
    "libsodium.so.23": "libsodium23",
    "libstdc++.so.6": "libstdc++6",
    "libz.so.1": "zlib1g",
}


def needed_packages(path):
    """Those of the library in this file, sorted."""
    with open(path, "rb") as file:
        data = file.read()
    return sorted(
        package
        for name, package in DEBIAN_PACKAGES.items()
        if name.encode() + b"\0" in data
    )
