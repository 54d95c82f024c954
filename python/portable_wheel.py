# SPDX-License-Identifier: Apache-2.0
"""Makes what auditwheel gives the wheel that is handed on; needs Python and dpkg.

    portable_wheel.py --openmp LIBRARY --out FOLDER WHEEL

auditwheel copied the libraries that libchoir.so is linked with into choir.libs and
gave them names of their own. This adds the OpenMP runtime under the name that it
has everywhere, the licences of all that is bundled, and a list of where it comes
from. The same WHEEL makes the same bytes on the same machine.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import urllib.parse
import zipfile

import make_wheel

# Of each library that may be bundled: what its code is under, and which texts of
# /usr/share/common-licenses its package only refers to. One that is not here has
# to be looked at first.
LICENCES = {
    "libOpenCL": (["BSD-2-Clause"], []),
    "libcjson": (["MIT"], []),
    "libprotobuf-c": (["BSD-2-Clause"], []),
    # The others are of its scrypt and HMAC, and of its BLAKE2 and Argon2.
    "libsodium": (["ISC", "BSD-2-Clause", "CC0-1.0"], ["CC0-1.0"]),
    # With Xbyak and ITT, which are part of it.
    "libdnnl": (["Apache-2.0", "BSD-3-Clause"], ["Apache-2.0"]),
    "libgomp": (["GPL-3.0-or-later WITH GCC-exception-3.1"], ["GPL-3"]),
}
LIBRARIES = "choir.libs/"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def dpkg_query(*arguments):
    return subprocess.run(
        ["dpkg-query", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


class Bundled:
    """A library in the wheel, and the Debian package that it is of."""

    def __init__(self, name, data):
        self.name = name
        base, mark, end = re.fullmatch(
            r"(lib.+?)(?:-([0-9a-f]{8}))?(\.so[.0-9]*)", name
        ).groups()
        if base not in LICENCES:
            raise ValueError(
                f"{name} would be bundled, whose licence nobody looked at; add "
                "it to LICENCES in portable_wheel.py"
            )
        self.licences, self.texts = LICENCES[base]
        # auditwheel's mark is of the file as it found it; ours has none.
        mark = mark or hashlib.sha256(data).hexdigest()[:8]
        owners = [
            line.split(": ")
            for line in dpkg_query("--search", f"*/{base}{end}").splitlines()
        ]
        packages = [
            package
            for package, path in owners
            if hashlib.sha256(read(path)).hexdigest().startswith(mark)
        ]
        if not packages:
            raise ValueError(
                f"{name} is not of the Debian package that is installed, so "
                "where it comes from is not known"
            )
        (
            self.package,
            self.version,
            self.source,
            self.source_version,
        ) = dpkg_query(
            "--show",
            "--showformat",
            "${Package} ${Version} ${source:Package} ${source:Version}",
            packages[0],
        ).split()

    def notices(self):
        """{name: text} for the folder of licences."""
        found = {
            f"{self.package}/copyright": read(
                f"/usr/share/doc/{self.package}/copyright"
            )
        }
        for text in self.texts:
            found[text] = read(f"/usr/share/common-licenses/{text}")
        return found

    def line(self):
        return (
            f"{self.name}: {' AND '.join(self.licences)}; "
            f"package {self.package} {self.version}, made from the source "
            f"package {self.source} {self.source_version}\n"
        )


def sources(bundled):
    distribution = platform.freedesktop_os_release()["NAME"]
    lines = "".join(library.line() for library in bundled)
    return (
        f"The libraries in {LIBRARIES} are those of {distribution}'s packages. "
        "Each one's copyright\nfile is here, in the folder of its package, "
        "and the texts that it refers to.\n\n" + lines
    ).encode()


def new_metadata(text, bundled, notices):
    """METADATA without the packages that need no installing any more."""
    head, readme = text.split("\n\n", 1)
    expression = {"Apache-2.0"}.union(*(b.licences for b in bundled))
    lines = []
    for line in head.splitlines():
        if line.startswith("License-Expression: "):
            line = "License-Expression: " + " AND ".join(sorted(expression))
        if not line.startswith("Requires-External: "):
            lines.append(line)
        if line.startswith("License-File: "):
            lines += [f"License-File: {name}" for name in sorted(notices)]
    return "\n".join(lines) + "\n\n" + readme


def with_component(text, library):
    """auditwheel's list of components (CycloneDX), and one more."""
    bill = json.loads(text)
    purl = "pkg:deb/%s/%s@%s" % (
        platform.freedesktop_os_release()["ID"],
        library.package,
        urllib.parse.quote(library.version, safe=""),
    )
    bill["components"].append(
        {
            "type": "library",
            "bom-ref": purl,
            "name": library.package,
            "version": library.version,
            "purl": purl,
        }
    )
    bill["dependencies"][0]["dependsOn"].append(purl)
    bill["dependencies"].append({"ref": purl})
    return json.dumps(bill)


def finish(wheel, openmp, out):
    """Writes the wheel into the folder `out`; returns its path."""
    with zipfile.ZipFile(wheel) as file:
        members = {
            name: file.read(name)
            for name in file.namelist()
            if not name.endswith(("/", ".dist-info/RECORD"))
        }
    (metadata,) = [m for m in members if m.endswith(".dist-info/METADATA")]
    info = os.path.dirname(metadata)

    # Under its own name, so that a process has one OpenMP runtime: whichever of
    # us and the program (or its PyTorch) loads it first, the other finds it.
    members[LIBRARIES + os.path.basename(openmp)] = read(openmp)
    bundled = [
        Bundled(name[len(LIBRARIES) :], data)
        for name, data in sorted(members.items())
        if name.startswith(LIBRARIES)
    ]
    notices = {"BUNDLED": sources(bundled)}
    for library in bundled:
        notices |= library.notices()
    for name, text in notices.items():
        members[f"{info}/licenses/{name}"] = text
    members[metadata] = new_metadata(
        members[metadata].decode(), bundled, notices
    ).encode()
    (bill,) = [m for m in members if m.startswith(f"{info}/sboms/")]
    (added,) = [b for b in bundled if b.name == os.path.basename(openmp)]
    members[bill] = with_component(members[bill], added).encode()

    path = os.path.join(out, os.path.basename(wheel))
    make_wheel.write_wheel(members, path)
    return path


def main():
    parser = argparse.ArgumentParser(prog="portable_wheel.py")
    parser.add_argument("--openmp", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("wheel")
    given = parser.parse_args()
    try:
        print(finish(given.wheel, given.openmp, given.out))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"portable_wheel.py: {error}")


if __name__ == "__main__":
    main()
