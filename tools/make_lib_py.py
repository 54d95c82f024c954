# SPDX-License-Identifier: Apache-2.0
"""Makes python/choir/_lib.py from the public C headers.

    python3 tools/make_lib_py.py --write   # python/choir/_lib.py anew
    python3 tools/make_lib_py.py           # status 1 if it is not up to date

The compiler's preprocessor reads choir.h, so that lists and macros are expanded;
what remains are declarations. Of these the file gets what the package's other
sources use: functions and variables called lib.NAME, structs (choir_view_t as View)
and enums (choir_dtype_t as Dtype) imported from choir._lib, and the structs that
these hold or point to.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join("python", "choir")
TARGET = os.path.join(PACKAGE, "_lib.py")
SCALARS = {
    "_Bool": "c_bool",
    "char": "c_char",
    "double": "c_double",
    "float": "c_float",
    "int": "c_int",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "size_t": "c_size_t",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
}
QUALIFIERS = r"\b(?:const|struct|enum|extern|static|inline|volatile)\b"


class Mistake(Exception):
    """What the script cannot read or make; one sentence."""


def class_name(c_type):
    """ "choir_op_info_t" -> "OpInfo"."""
    words = re.sub(r"^choir_|_t$", "", c_type).split("_")
    return "".join(word.capitalize() for word in words)


# ---- Reading the headers ----


def preprocessed():
    command = ["cc", "-std=c11", "-E", "-I.", "choir.h"]
    try:
        return subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Mistake(f"{' '.join(command)}: {error}") from None


def statements(text):
    """(header, text) of each declaration of Choir's at the top level."""
    header, depth, parts = "", 0, []
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", text)
    for line in text.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            header = os.path.normpath(marker[1])
            continue
        for piece in re.split(r"([;{}])", line):
            parts.append(piece)
            depth += {"{": 1, "}": -1}.get(piece, 0)
            if depth or piece not in (";", "}"):
                continue
            whole = " ".join("".join(parts).split())
            is_body = piece == "}" and ")" in whole.split("{")[0]
            if piece == ";" or is_body:
                parts = []
                if not is_body and not header.startswith(("/", "<")):
                    yield header, whole[:-1].strip()
        parts.append(" ")


def split_list(text):
    """Parts between the commas that are in no parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


class Declared:
    """What the headers declare, in their order."""

    def __init__(self):
        self.structs = {}  # of each: [(name, C type, array size or None)]
        self.enums = {}  # of each: {enumerator: value}
        self.constants = {}  # enumerators of all, and of enums without a name
        self.pointers = set()  # types that are pointers
        self.functions = {}  # name: (result, [C types], is variadic)
        self.variables = {}  # name: C type
        self.headers = {}  # type or name: its header
        self.tags = {}  # struct tag: type
        for header, text in statements(preprocessed()):
            name = self._read(text)
            if name:
                self.headers[name] = header

    def _read(self, text):
        body = re.match(
            r"(typedef )?(struct|enum|union) (\w+)? ?\{(.*)\} ?(\w*)$", text
        )
        if body:
            _, kind, tag, inside, name = body.groups()
            name = name or self.tags.get(tag, tag)
            if kind == "enum":
                values = self._enumerators(inside)
                self.constants |= values
                if not name:
                    return None
                self.enums[name] = values
            elif kind == "struct":
                self.structs[name] = self._fields(name, inside)
                self.tags[tag] = name
            return name
        pointer = re.match(r"typedef .*\( ?\* ?(\w+)\) ?\(", text)
        pointer = pointer or re.match(r"typedef .*\* ?(\w+)$", text)
        if pointer:
            self.pointers.add(pointer[1])
            return pointer[1]
        opaque = re.match(r"typedef struct (\w+) (\w+)$", text)
        if opaque:
            self.tags[opaque[1]] = opaque[2]
            return None
        function = re.match(r"([\w *]+?)\b(choir_\w+) ?\((.*)\)$", text)
        if function and not text.startswith("typedef"):
            result, name, inside = function.groups()
            types = [self._typed(part)[1] for part in split_list(inside)]
            is_variadic = types[-1:] == ["..."]
            if types == ["void"]:
                types = []
            self.functions[name] = (self._clean(result), types, is_variadic)
            return name
        variable = re.match(r"extern const (\w+) (choir_\w+)$", text)
        if variable:
            self.variables[variable[2]] = variable[1]
            return variable[2]
        return None

    @staticmethod
    def _clean(text):
        """A type without qualifiers and spaces: "int64_t*". What points to const
        char or is in a const array of char* is a "text", which nobody frees."""
        text = re.sub(r"\bconst char\b|\bchar(?=\* const\*)", "text", text)
        text = re.sub(QUALIFIERS, " ", text)
        return re.sub(r"\s*\*\s*", "*", " ".join(text.split()))

    def _typed(self, text):
        """(name, C type, array size) of a field or a parameter."""
        function = re.match(r".*?\( ?\* ?(\w*)\) ?\(", text)
        if function:
            return function[1], "void*", None
        array = re.search(r"\[(.*)\]$", text)
        text = self._clean(re.sub(r" ?\[.*\]$", "", text))
        is_sized = array and array[1].strip()
        size = eval(array[1], {}, self.constants) if is_sized else None
        named = re.match(r"(.*[ *])(\w+)$", text)
        if not named:
            return "", text, size
        return named[2], named[1].strip(), size

    def _fields(self, name, inside):
        if "{" in inside:
            raise Mistake(f"{name} has a struct or union inside")
        return [
            self._typed(part.strip())
            for part in inside.split(";")
            if part.strip()
        ]

    def _enumerators(self, inside):
        values, value = {}, -1
        for part in split_list(inside):
            name, _, text = part.partition("=")
            known = self.constants | values
            value = eval(text, {}, known) if text else value + 1
            values[name.strip()] = value
        return values


# ---- What the package uses ----


def used_names():
    """(names after `lib.`, names imported from choir._lib) of the package."""
    called, imported = set(), set()
    folder = os.path.join(ROOT, PACKAGE)
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".py") or name == os.path.basename(TARGET):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            tree = ast.parse(file.read(), name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name) and node.value.id == "lib":
                    called.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                if node.module == "choir._lib":
                    imported |= {alias.name for alias in node.names}
    return called, imported


class Maker:
    """Writes the file's parts."""

    def __init__(self, declared, called, imported):
        self.declared = declared
        own = {class_name(name): name for name in declared.structs}
        own |= {class_name(name): name for name in declared.enums}
        unknown = imported - set(own) - {"FUNCTIONS", "VARIABLES"}
        if unknown:
            raise Mistake(
                f"the package imports {', '.join(sorted(unknown))} from "
                "choir._lib, which is no struct or enum of the headers"
            )
        called = {f"choir_{name}" for name in called - {"path"}}
        self.functions, self.variables = (
            {name: made for name, made in of_kind.items() if name in called}
            for of_kind in (declared.functions, declared.variables)
        )
        unknown = called - set(self.functions) - set(self.variables)
        if unknown:
            names = ", ".join(sorted(unknown)).replace("choir_", "lib.")
            raise Mistake(
                f"the package calls {names}, which no header declares"
            )
        self.enums = [e for e in declared.enums if class_name(e) in imported]
        self.structs = set()
        for name in imported & set(own):
            self._need(own[name])
        for result, types, _ in self.functions.values():
            self._need(result)
            for c_type in types:  # what only they point to can stay unknown
                if not c_type.endswith("*"):
                    self._need(c_type)
        for c_type in self.variables.values():
            self._need(c_type)

    def _need(self, c_type):
        name = c_type.rstrip("*")
        if name in self.declared.structs and name not in self.structs:
            self.structs.add(name)
            for _, part, _ in self.declared.structs[name]:
                self._need(part)

    def ctype(self, c_type, known=None):
        """A C type by ctypes' name. known: the structs that stand above, where
        not all do."""
        known = self.structs if known is None else known
        if c_type in self.declared.enums:
            return "c_int"
        if c_type in SCALARS:
            return SCALARS[c_type]
        if c_type in self.declared.pointers:
            return "_P"
        if c_type in ("text*", "char*"):
            return "c_char_p"
        if c_type == "char**":
            return "POINTER(_P)"
        if not c_type.endswith("*"):
            if c_type in known:
                return class_name(c_type)
            raise Mistake(f"{c_type} is a type that the script does not know")
        inner = c_type[:-1]
        if inner.endswith("*") or inner in known | set(SCALARS):
            return f"POINTER({self.ctype(inner, known)})"
        if inner in self.declared.pointers or inner in self.declared.enums:
            return f"POINTER({self.ctype(inner)})"
        return "_P"  # of bytes, or of what only the library knows

    def struct(self, name, known):
        fields = []
        for field, c_type, size in self.declared.structs[name]:
            made = self.ctype(c_type, known)
            made += f" * {size}" if size is not None else ""
            fields.append(f'("{field}", {made})')
        return [
            "",
            f"class {class_name(name)}(Structure):",
            f'    """{name}"""',
            *packed("    _fields_ = [", fields, "]"),
        ]

    def enum(self, name):
        values = self.declared.enums[name]
        prefix = os.path.commonprefix(list(values))
        prefix = prefix[: prefix.rindex("_") + 1]
        short = [one.removeprefix(prefix) for one in values]
        end = f" = range({len(short)})"
        numbers = list(values.values())
        if numbers != list(range(len(numbers))):
            raise Mistake(f"the values of {name} are not 0, 1, 2, ...")
        return [
            "",
            f"class {class_name(name)}:",
            f'    """{name}"""',
            *(
                packed("    ", short, end)
                if len(", ".join(short) + end) < 75
                else packed("    (", short, f"){end}")
            ),
        ]

    def function(self, name):
        result, types, is_variadic = self.functions[name]
        result = "None" if result == "void" else self.ctype(result)
        made = [self.ctype(c_type) for c_type in types if c_type != "..."]
        arguments = "None" if is_variadic else f"[{', '.join(made)}]"
        start = f'    "{name.removeprefix("choir_")}": '
        line = f"{start}({result}, {arguments}),"
        if len(line) <= 79:
            return [line]
        return packed(f"{start}({result}, [", made, "]),")

    def text(self):
        lines = []
        for name in self.declared.enums:
            if name in self.enums:
                lines += self.enum(name)
        known = set()
        for name in self.declared.structs:
            if name in self.structs:
                lines += self.struct(name, known)
                known.add(name)
        lines += ["", "# Name: (result, arguments). A status is a pointer."]
        lines.append("FUNCTIONS = {")
        header = ""
        for name in self.functions:
            if self.declared.headers[name] != header:
                header = self.declared.headers[name]
                lines.append(f"    # {header}")
            lines += self.function(name)
        lines += ["}", "", "VARIABLES = {"]
        for name, c_type in self.variables.items():
            short = name.removeprefix("choir_")
            lines.append(f'    "{short}": {class_name(c_type)},')
        lines.append("}")
        body = "\n".join(lines) + "\n"
        names = sorted(set(re.findall(r"\bc_\w+\b", body)) | {"c_void_p"})
        start = [HEAD, *packed("from ctypes import (", FROM + names, ")")]
        return "\n".join(start) + "\n\n_P = c_void_p\n" + body


FROM = ["POINTER", "Structure"]
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Structs, enums and functions of libchoir.so that the package uses.

Made by tools/make_lib_py.py from the C headers; run it with --write after a change
of these, or of what the package uses. _calls.py loads the library.
"""
# fmt: off
'''


def packed(start, parts, end):
    """A list as lines of at most 79 columns."""
    line = start + ", ".join(parts) + end
    if len(line) <= 79:
        return [line]
    indent = " " * (len(start) - len(start.lstrip()))
    inside = textwrap.wrap(
        # A part is not broken.
        ", ".join(part.replace(" ", "\0") for part in parts) + ",",
        width=79,
        initial_indent=indent + "    ",
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [start, *(one.replace("\0", " ") for one in inside), indent + end]


def main(arguments):
    if arguments not in ([], ["--write"]):
        print("usage: make_lib_py.py [--write]", file=sys.stderr)
        return 2
    path = os.path.join(ROOT, TARGET)
    try:
        made = Maker(Declared(), *used_names()).text()
    except Mistake as mistake:
        print(f"make_lib_py.py: {mistake}", file=sys.stderr)
        return 1
    if arguments:
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)
        return 0
    with open(path, encoding="utf-8") as file:
        if file.read() == made:
            return 0
    print(
        f"make_lib_py.py: {TARGET} is not what the headers say; run "
        "python3 tools/make_lib_py.py --write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
