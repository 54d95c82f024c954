# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/environment.md from the sources' comments.

    python3 tools/environment_page.py --write   # the page anew
    python3 tools/environment_page.py           # status 1 if it is not up to date

A comment of the form "$NAME: what it does." beside the code that reads a variable
describes it, once in the tree; "exit 1: what it means." beside the code that ends a
process describes an exit status. Each goes on to the end of the comment or to the
next of its kind. A variable that is read and not described is a mistake, as is one
that is described and not read.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join("docs", "environment.md")
BEGIN = "<!-- From here on written by tools/environment_page.py. -->\n"
END = "<!-- To here. -->\n"
# Beginning of a path: the part of the tree, in the page's order.
PARTS = {
    "": "Libraries and launchers",
    "python": "Python package",
    "examples": "Examples",
    os.path.join("tools", "choirrun"): "choirrun",
    "bench": "Benchmarks",
    "tools": "Scripts",
    "bootstrap": "Scripts",
    ".ci": "Scripts",
}
FOLDERS = [
    ".ci", "autograd", "bench", "bootstrap", "core", "dist", "examples", "io",
    "model", "onnx", "opt", "python", "tensor", "tools",
]  # fmt: skip
# In C and Python a name is a string of its own; `getenv` and `environ` have it at
# hand or in a table.
NAME = re.compile(
    r'"((?:CHOIR|OMPI|PMIX|PRTE|SLURM|TORCHELASTIC)_[A-Z0-9_a-z]*[A-Z0-9a-z])=?"'
)
READ = re.compile(r'(?:getenv\(|environ\[|environ\.get\()\s*"([A-Z_0-9]+)"')
MARK = re.compile(r'b"(CHOIR_[A-Z_]+)="')
SHELL = re.compile(r"\$\{(CHOIR_[A-Z_]+)")
NOT_VARIABLES = {"CHOIR_DTYPE_LIST"}  # of a macro's name in a text
COMMENT = re.compile(r"^\s*(?://|#(?!\w)) ?(.*)$")
VARIABLE = re.compile(r"\$(\w+): (.*)")
STATUS = re.compile(r"exit (\d+(?: \+ n)?): (.*)")


class Mistake(Exception):
    """Something in the sources that somebody must put right; one sentence."""


def sources():
    """Paths of code, from the root."""
    for start in FOLDERS:
        path = os.path.join(ROOT, start)
        if os.path.isfile(path):
            yield start
        for folder, _, names in os.walk(path, followlinks=True):
            for name in sorted(names):
                found = os.path.join(folder, name)
                if re.search(r"\.(c|h|def|inc|cu|cuh|py|sh)$|/run$", found):
                    yield os.path.relpath(found, ROOT)


def reads(path, text):
    """The variables that a source reads."""
    if path.endswith((".sh", "bootstrap", "run")):
        return set(SHELL.findall(text))
    if not path.endswith(".py"):
        text = re.sub(r"//.*", "", text)
    names = set(NAME.findall(text) + READ.findall(text) + MARK.findall(text))
    return names - NOT_VARIABLES


def described(text):
    """[(mark's pattern, name, description)] of a source's comments."""
    notes, is_open = [], False
    for line in text.splitlines():
        comment = COMMENT.match(line)
        is_open = is_open and bool(comment and comment[1].strip())
        if not comment:
            continue
        for pattern in (VARIABLE, STATUS):
            start = pattern.match(comment[1])
            if start:
                notes.append([pattern, start[1], start[2]])
                is_open = True
                break
        else:
            if is_open:
                notes[-1][2] += " " + comment[1].strip()
    return notes


def part_of(path):
    fitting = [start for start in PARTS if path.startswith(start)]
    return PARTS[max(fitting, key=len)]


def collect():
    """({name: (part, text, paths that read it)}, [(part, status, text, path)])."""
    readers, variables, statuses = {}, {}, []
    for path in sources():
        if path == os.path.join("tools", "environment_page.py"):
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        for name in reads(path, text):
            readers.setdefault(name, []).append(path)
        for pattern, name, what in described(text):
            if pattern is STATUS:
                statuses.append((part_of(path), name, what, path))
            elif name in variables:
                raise Mistake(
                    f"{path} and {variables[name][2]} describe {name}"
                )
            else:
                variables[name] = (part_of(path), what, path)
    for name in sorted(set(readers) ^ set(variables)):
        if name in readers:
            raise Mistake(
                f"{readers[name][0]} reads {name}, and no comment says "
                f'"${name}: what it does."'
            )
        raise Mistake(
            f"{variables[name][2]} describes {name}; nothing reads it"
        )
    table = {
        name: (part, what, sorted(readers[name]))
        for name, (part, what, _) in variables.items()
    }
    return table, statuses


def link(path):
    """Of a page in docs/."""
    return f"[{os.path.basename(path)}](../{path})"


def cell(text):
    """Text with links to the pages that it names."""
    return re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", text).replace("|", "\\|")


def tables():
    """The generated part of the page."""
    variables, statuses = collect()
    lines = []
    for part in dict.fromkeys(PARTS.values()):
        rows = [
            f"| `{name}` | {cell(what)} | {', '.join(map(link, paths))} |"
            for name, (own, what, paths) in sorted(variables.items())
            if own == part
        ]
        if rows:
            lines += [f"### {part}", "", "| variable | meaning | named in |"]
            lines += ["| --- | --- | --- |", *rows, ""]
    lines += ["## Exit statuses", "", "| of | status | meaning | in |"]
    lines += ["| --- | --- | --- | --- |"]
    statuses.sort(key=lambda row: int(row[1].split()[0]))
    for part in dict.fromkeys(PARTS.values()):
        for own, status, what, path in statuses:
            if own == part:
                lines.append(
                    f"| {part} | {status} | {cell(what)} | {link(path)} |"
                )
    return "\n".join(lines) + "\n\n"


def main(arguments):
    if arguments not in ([], ["--write"]):
        print("usage: environment_page.py [--write]", file=sys.stderr)
        return 2
    path = os.path.join(ROOT, PAGE)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
        made = text[:start] + "\n" + tables() + text[stop:]
    except (Mistake, ValueError) as mistake:
        print(f"environment_page.py: {PAGE}: {mistake}", file=sys.stderr)
        return 1
    if arguments:
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)
    elif made != text:
        print(
            f"environment_page.py: {PAGE} is not what the sources say; run "
            "python3 tools/environment_page.py --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
