# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that libchoir.so needs where it was built from the sources
and no portable wheel brought its libraries along; make_wheel.py reads it too."""

# What the library is linked with, and the package that has it. A test compares
# the names with those in the library.
DEBIAN_PACKAGES = {
    "libcjson.so.1": "libcjson1",
    "libdnnl.so.2": "libdnnl2",
    "libgomp.so.1": "libgomp1",
    "libstdc++.so.6": "libstdc++6",
    "libz.so.1": "zlib1g",
}
