# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that libchoir.so needs; make_wheel.py reads it too."""

# What the library is linked with, and the package that has it. A test compares
# the names with those in the library.
DEBIAN_PACKAGES = {
    "libcjson.so.1": "libcjson1",
    "libdnnl.so.2": "libdnnl2",
    "libgomp.so.1": "libgomp1",
    "libsodium.so.23": "libsodium23",
    "libstdc++.so.6": "libstdc++6",
    "libz.so.1": "zlib1g",
}
