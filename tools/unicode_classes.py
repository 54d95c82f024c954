# SPDX-License-Identifier: Apache-2.0
"""Makes io/unicode_classes_internal.h: the code points that are letters or numbers.

    python3 tools/unicode_classes.py --write   # the header anew
    python3 tools/unicode_classes.py           # status 1 if it is not up to date

The header says which version of Unicode it is of, and a tokenizer splits text
otherwise where the version is another: keep it that of the tokenizers that are
compared with (tiktoken 0.14: 16.0.0). The tables are those of the Python module
unicodedata2, if it is installed, which exists for each version of Unicode, else of
Python's own unicodedata, whose version is the interpreter's (3.14: 16.0.0). Without
--write, an older module than the header's checks the code points that it knows, and
a newer one nothing.
"""

import os
import re
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join("io", "unicode_classes_internal.h")
CLASSES = (("L", "letters"), ("N", "numbers"))

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_UNICODE_CLASSES_INTERNAL_H_
#define CHOIR_IO_UNICODE_CLASSES_INTERNAL_H_

#include <stdint.h>

// Made by tools/unicode_classes.py from Unicode {version}. Another version has
// other letters and numbers, so that text with the newer ones is split
// otherwise.

// Code points from first to last; arrays of them are sorted.
typedef struct choir__code_points_s {{
  uint32_t first;
  uint32_t last;
}} choir__code_points_t;

// clang-format off
"""
TAIL = """\
// clang-format on

#endif  // CHOIR_IO_UNICODE_CLASSES_INTERNAL_H_
"""


def ranges(category):
    """[(first, last)] of the general categories that begin with this letter."""
    found = []
    for point in range(0x110000):
        if unicodedata.category(chr(point))[0] != category:
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def table(category, name):
    """The array of one class, packed into lines of at most 80 columns."""
    lines = [
        f"// General categories {category}*.",
        f"static const choir__code_points_t choir__unicode_{name}[] = {{",
    ]
    line = "   "
    for first, last in ranges(category):
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line + item) > 80:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};", ""])


def header():
    tables = "\n".join(table(*one) for one in CLASSES)
    return HEAD.format(version=unicodedata.unidata_version) + tables + TAIL


def members(text, name):
    """The code points of an array in the header."""
    body = re.search(rf"choir__unicode_{name}\[\] = {{(.*?)}};", text, re.S)
    found = set()
    for first, last in re.findall(r"{0x(\w+), 0x(\w+)}", body[1]):
        found |= set(range(int(first, 16), int(last, 16) + 1))
    return found


def complaint(text):
    """What is wrong with the header, or nothing."""
    version = re.search(r"from Unicode ([0-9.]+)\. ", text)[1]
    own = unicodedata.unidata_version
    if own == version:
        return "" if text == header() else "what --write makes"
    if [int(part) for part in own.split(".")] > [
        int(part) for part in version.split(".")
    ]:
        return ""  # a newer module does not tell which characters are new
    for category, name in CLASSES:
        listed = members(text, name)
        for point in range(0x110000):
            now = unicodedata.category(chr(point))
            # Cn: the module is older than this character.
            if now != "Cn" and (now[0] == category) != (point in listed):
                return f"right about U+{point:04X} ({now})"
    return ""


def main(arguments):
    if arguments not in ([], ["--write"]):
        print("usage: unicode_classes.py [--write]", file=sys.stderr)
        return 2
    path = os.path.join(ROOT, TARGET)
    if arguments:
        with open(path, "w", encoding="utf-8") as file:
            file.write(header())
        return 0
    with open(path, encoding="utf-8") as file:
        wrong = complaint(file.read())
    if wrong:
        print(f"unicode_classes.py: {TARGET} is not {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
