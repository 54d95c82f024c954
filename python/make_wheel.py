# SPDX-License-Identifier: Apache-2.0
"""Makes the package's wheel out of its files; needs nothing but Python.

    make_wheel.py --project python --licence LICENSE --out WHEEL FILE...

FILEs are the package's .py files, which keep their folders below --project, and
libraries (.so), which all go beside choir/__init__.py. The same files make the
same wheel, byte for byte.
"""

import argparse
import base64
import hashlib
import os
import re
import runpy
import struct
import sys
import tomllib
import zipfile

# e_machine of ELF files, and what pip calls the platform.
PLATFORMS = {62: "linux_x86_64", 183: "linux_aarch64"}
# The oldest that the format has.
TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def platform_of(library):
    with open(library, "rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise ValueError(f"{library} is not a shared library")
    machine = struct.unpack("<H", head[18:20])[0]
    if machine not in PLATFORMS:
        raise ValueError(f"{library} is for an unknown machine ({machine})")
    return PLATFORMS[machine]


def metadata(project, folder, version, libraries):
    debian = runpy.run_path(os.path.join(folder, "choir", "_debian.py"))
    packages = set().union(*map(debian["needed_packages"], libraries))
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
    ]
    lines += [f"Classifier: {name}" for name in project["classifiers"]]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {name}" for name in project["dependencies"]]
    lines += [f"Requires-External: {name}" for name in sorted(packages)]
    lines += ["Description-Content-Type: text/markdown", ""]
    with open(
        os.path.join(folder, project["readme"]), encoding="utf-8"
    ) as file:
        return "\n".join(lines) + "\n" + file.read()


def version_of(folder):
    path = os.path.join(folder, "choir", "_version.py")
    return runpy.run_path(path)["__version__"]


def wheel_name(folder, files):
    """The file name that pip wants for a wheel of these files."""
    platforms = {platform_of(file) for file in files if file.endswith(".so")}
    if len(platforms) != 1:
        raise ValueError(
            "a wheel has libraries for one machine, these are for "
            f"{', '.join(sorted(platforms)) or 'none'}"
        )
    return f"choir-{version_of(folder)}-py3-none-{platforms.pop()}.whl"


def place_in_wheel(folder, file):
    if file.endswith(".so"):
        return "choir/" + os.path.basename(file)
    place = os.path.relpath(file, folder).replace(os.sep, "/")
    if not place.startswith("choir/"):
        raise ValueError(f"{file} is not below {folder}/choir")
    return place


def make_wheel(folder, licence, files, out):
    """Writes the wheel `out`, whose name must be wheel_name(folder, files)."""
    name = wheel_name(folder, files)
    if os.path.basename(out) != name:
        raise ValueError(f"this wheel must be called {name}, not {out}")
    with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    version = version_of(folder)
    tag = re.fullmatch(r"choir-[^-]+-(.+)\.whl", name)[1]

    libraries = [file for file in files if file.endswith(".so")]
    members = {}
    for path in files:
        place = place_in_wheel(folder, path)
        if place in members:
            raise ValueError(f"two files for {place}")
        with open(path, "rb") as file:
            members[place] = file.read()
    info = f"choir-{version}.dist-info"
    with open(licence, "rb") as file:
        licence_text = file.read()
    last = {
        f"{info}/LICENSE": licence_text,
        f"{info}/METADATA": metadata(
            project, folder, version, libraries
        ).encode(),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\n"
            "Generator: make_wheel.py of Choir\n"
            "Root-Is-Purelib: false\n"
            f"Tag: {tag}\n"
        ).encode(),
    }
    # The format asks for these at the end of the file.
    ordered = sorted(members.items()) + sorted(last.items())
    record = ""
    for place, data in ordered:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record += f"{place},sha256={digest.decode().rstrip('=')},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    ordered.append((f"{info}/RECORD", record.encode()))

    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for place, data in ordered:
            entry = zipfile.ZipInfo(place, TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser(prog="make_wheel.py")
    parser.add_argument("--project", required=True)
    parser.add_argument("--licence", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args()
    try:
        make_wheel(given.project, given.licence, given.files, given.out)
    except (OSError, ValueError) as error:
        sys.exit(f"make_wheel.py: {error}")


if __name__ == "__main__":
    main()
