# SPDX-License-Identifier: Apache-2.0
"""choir._lib against the headers: structs byte by byte, functions by their
number of parameters. The C compiler is asked, no second list is kept."""

import ctypes
import fnmatch
import inspect
import os
import re
import shutil
import subprocess
import unittest

from choir import _lib
from choir._calls import lib

FOLDERS = ("autograd", "core", "dist", "io", "model", "onnx", "opt", "tensor")


def structs():
    """(C type, class) of every Structure of _lib."""
    found = []
    for value in vars(_lib).values():
        if (
            inspect.isclass(value)
            and issubclass(value, ctypes.Structure)
            and value is not ctypes.Structure
        ):
            found.append((value.__doc__.split()[0], value))
    return found


def headers():
    """The public headers, as paths from the root."""
    found = ["choir.h"]
    for folder in FOLDERS:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".h") and not re.search(
                r"_(def|rule|backend|internal)\.h$", name
            ):
                found.append(f"{folder}/{name}")
    return found


def declarations():
    """{function: number of parameters} of everything that CHOIR_API marks."""
    found = {}
    for path in headers():
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", file.read(), flags=re.S)
        for match in re.finditer(
            r"\bCHOIR_API\b[^;(]*?\b(choir_\w+)\s*\(", text
        ):
            depth, commas, at = 1, 0, match.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                commas += depth == 1 and text[at] == ","
                at += 1
            inside = text[match.end() : at - 1].strip()
            found[match.group(1)] = 0 if inside == "void" else commas + 1
    return found


class Abi(unittest.TestCase):
    def test_structs_have_the_compilers_sizes_and_offsets(self):
        compiler = shutil.which("cc")
        self.assertIsNotNone(compiler, "this test needs cc")
        known = structs()
        self.assertGreater(len(known), 20)
        lines = [
            '#include "choir.h"',
            "#include <stddef.h>",
            "#include <stdio.h>",
        ]
        lines.append("int main(void) {")
        expected = []
        for name, cls in known:
            lines.append(f'  printf("%zu\\n", sizeof({name}));')
            expected.append((name, ctypes.sizeof(cls)))
            for field in cls._fields_:
                member = getattr(cls, field[0])
                for what, value in (
                    (f"offsetof({name}, {field[0]})", member.offset),
                    (f"sizeof((({name}*)0)->{field[0]})", member.size),
                ):
                    lines.append(f'  printf("%zu\\n", {what});')
                    expected.append((what, value))
        lines += ["  return 0;", "}"]
        folder = os.environ["TEST_TMPDIR"]
        source = os.path.join(folder, "abi_dump.c")
        program = os.path.join(folder, "abi_dump")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        subprocess.run(
            [compiler, "-std=c11", "-I.", source, "-o", program], check=True
        )
        said = subprocess.run(
            [program], check=True, capture_output=True, text=True
        ).stdout.split()
        self.assertEqual(len(said), len(expected))
        for (what, value), text in zip(expected, said):
            self.assertEqual(value, int(text), what)

    def test_structs_name_distinct_types(self):
        names = [name for name, _ in structs()]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertRegex(name, r"^choir_\w+_t$")

    def test_functions_are_exported(self):
        with open("docs/api/exports.txt", encoding="utf-8") as file:
            exported = [line.strip() for line in file if line.strip()]
        for name in _lib.FUNCTIONS:
            self.assertTrue(
                any(fnmatch.fnmatch(f"choir_{name}", one) for one in exported),
                f"choir_{name} is not in docs/api/exports.txt",
            )

    def test_functions_have_as_many_arguments_as_their_declarations(self):
        declared = declarations()
        self.assertGreater(len(declared), 150)
        for name, (_, arguments) in _lib.FUNCTIONS.items():
            self.assertIn(f"choir_{name}", declared)
            if arguments is not None:  # it takes any number
                self.assertEqual(
                    len(arguments), declared[f"choir_{name}"], f"choir_{name}"
                )

    def test_what_keeps_and_lets_go_takes_null(self):
        names = [
            name
            for name, count in declarations().items()
            if count == 1
            and re.search(r"_(retain|release|destroy|free)$", name)
        ]
        self.assertGreater(len(names), 30)
        library = ctypes.CDLL(lib.path)
        # In a process of its own, which says what it calls.
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for name in names:
                os.write(writer, f"{name}\n".encode())
                function = getattr(library, name)
                function.argtypes = [ctypes.c_void_p]
                function.restype = None
                function(None)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            called = pipe.read().split()
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0, f"{called[-1]}(NULL)")
        self.assertEqual(called, names)


if __name__ == "__main__":
    unittest.main()
