# SPDX-License-Identifier: Apache-2.0
"""Packs programs, scripts and data for a machine that has none of Bazel's and
Debian's: one archive.

    make_gpu_bundle.py --out FILE.tar.xz --run SCRIPT FILE...

FILEs keep their folders in the tree, without those that Bazel builds in. Programs
and libraries are stripped. Shared libraries that they need go into lib/, but for
the C library's. SCRIPT becomes run.sh. The same files make the same archive.
"""

import argparse
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile

TOP = "choir_gpu_bundle"
# glibc's own, which must be those of the machine.
OF_LIBC = r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv))\.so\.\d+"
LARGEST = 60 << 20
# Programs have much in common: one sees what another had before.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 256 << 20}]


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def place_in_tree(path):
    """bazel-out/k8-opt/bin/tests/x -> tests/x"""
    return re.sub(r"^bazel-out/[^/]+/bin/", "", path)


def shared_libraries(path):
    """{name: path} of what the loader would load for it."""
    output = subprocess.run(
        ["ldd", path], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found = {}
    for line in output.splitlines():
        match = re.match(r"\s*(\S+) => (.*?)( \(0x[0-9a-f]+\))?$", line)
        if not match or re.fullmatch(OF_LIBC, match[1]):
            continue
        if match[2] == "not found":
            raise SystemExit(
                "make_gpu_bundle: %s needs %s, which is not on this machine"
                % (path, match[1])
            )
        found[match[1]] = match[2]
    return found


def add(archive, path, name, folder):
    """One file, stripped if it is a program; owners and times left out."""
    if is_elf(path):
        stripped = os.path.join(folder, "stripped")
        command = ["strip", "--strip-unneeded", "-o", stripped, path]
        subprocess.run(command, check=True)
        path = stripped
    entry = tarfile.TarInfo(os.path.join(TOP, name))
    entry.size = os.path.getsize(path)
    entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
    with open(path, "rb") as file:
        archive.addfile(entry, file)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(argv)
    entries = {place_in_tree(path): path for path in options.files}
    entries["run.sh"] = options.run
    for path in options.files:
        if is_elf(path):
            for name, library in shared_libraries(path).items():
                entries["lib/" + name] = library
    with (
        tempfile.TemporaryDirectory() as folder,
        open(options.out, "wb") as file,
        lzma.LZMAFile(file, "wb", filters=FILTERS) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in sorted(entries.items()):
            add(archive, path, name, folder)
    size = os.path.getsize(options.out)
    if size > LARGEST:
        raise SystemExit(
            "make_gpu_bundle: the archive has %.1f MiB; at most %d can travel"
            % (size / 2**20, LARGEST >> 20)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
