# SPDX-License-Identifier: Apache-2.0
"""Says of every name in SINGA's Python API what the package choir has of it.

    bazel run //tools:python_api             # writes it into docs/python.md
    bazel run //tools:python_api -- --check  # status 1 if that is not up to date

The names are those of docs/api/singa_python_api.tsv. Each is looked up in the
imported package: it is supported if a call that is right for SINGA is right for
what was found, by parameter names, their order and their defaults. What nobody
can compute is in docs/api/singa_python_notes.tsv, with these columns:

  name    a qualified name, or the beginning of names and a *; the closest counts
  status  different (it exists, and does not do quite the same), absent (and will
          be), not yet, or - (computed)
  choir   what to look up instead of the same name in choir, or -; a * stands for
          the rest of the name
  reason  a sentence without a full stop, or -
"""

import argparse
import ast
import difflib
import importlib
import inspect
import os
import re
import sys

BEGIN = "<!-- From here on written by tools/python_api.py. -->"
END = "<!-- To here. -->"
STATUSES = ["supported", "different", "absent", "not yet"]
API = "docs/api/singa_python_api.tsv"
NOTES = "docs/api/singa_python_notes.tsv"
PAGE = "docs/python.md"


class Mistake(Exception):
    """Something in the files that somebody must put right; one sentence."""


def read_table(tree, path, columns):
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        lines = file.read().splitlines()
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise Mistake(
                f"{path}:{number} has {len(row)} columns, not {len(columns)}"
            )
    if not rows or rows[0] != columns:
        raise Mistake(
            f"{path} must begin with the columns {', '.join(columns)}"
        )
    return rows[1:]


class Note:
    def __init__(self, row):
        self.name, self.status, self.choir, self.reason = row
        self.used = False
        if self.status not in [*STATUSES[1:], "-"]:
            raise Mistake(f"{NOTES}: '{self.status}' is no status")
        if self.name.endswith("*") != self.choir.endswith("*"):
            if self.choir != "-":
                raise Mistake(f"{NOTES}: {self.name}: both names need the *")
        if self.status != "-" and self.reason == "-":
            raise Mistake(f"{NOTES}: {self.name} is {self.status}, but why?")

    def fits(self, name):
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return name == self.name

    def place(self, name):
        """Where choir has it."""
        if self.choir == "-":
            return same_place(name)
        if self.choir.endswith("*"):
            return self.choir[:-1] + name[len(self.name) - 1 :]
        return self.choir


def same_place(name):
    return re.sub(r"^singa\b", "choir", name)


class Missing(Exception):
    """The package does not have it; the text is for the page, or empty."""


def member(owner, name):
    """What getattr gives, but nothing that every Python class has anyway."""
    if not inspect.isclass(owner):
        if not hasattr(owner, name):
            raise Missing("")
        return getattr(owner, name)
    holders = [c for c in owner.__mro__ if name in vars(c)]
    if not holders or holders[0] in (object, type):
        raise Missing("")
    found = getattr(owner, name)
    code = getattr(inspect.unwrap(found), "__code__", None)
    inherited = holders[0] is not owner
    if inherited and code and "NotImplementedError" in code.co_names:
        raise Missing("")
    return found


def look_up(place):
    """The object with that qualified name; raises Missing."""
    parts = place.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Its own absence, not that of what it imports.
            if error.name and (module + ".").startswith(error.name + "."):
                continue
            raise
        for part in parts[length:]:
            found = member(found, part)
        return found
    raise Missing("")


class Parameters:
    """What can be compared of a signature."""

    def __init__(self, signature):
        self.positional, self.defaults = [], {}
        self.keywords, self.any_positional, self.any_keyword = [], False, False
        kinds = inspect.Parameter
        for parameter in signature.parameters.values():
            if parameter.kind == kinds.VAR_POSITIONAL:
                self.any_positional = True
            elif parameter.kind == kinds.VAR_KEYWORD:
                self.any_keyword = True
            else:
                of_kind = (
                    self.keywords
                    if parameter.kind == kinds.KEYWORD_ONLY
                    else self.positional
                )
                of_kind.append(parameter.name)
                if parameter.default is not kinds.empty:
                    self.defaults[parameter.name] = parameter.default
        if self.positional[:1] in (["self"], ["cls"], ["mcs"]):
            del self.positional[0]


class Unknown:
    """A default that the table has as an expression, not as a value."""


def written_signature(text):
    """Parses '(self, a, b=1)' of the table."""
    function = ast.parse(f"def f{text}: pass").body[0].args
    kinds = inspect.Parameter
    parameters = []

    def add(argument, kind, default=kinds.empty):
        if isinstance(default, ast.expr):
            try:
                default = ast.literal_eval(default)
            except ValueError:
                default = Unknown
        parameters.append(kinds(argument.arg, kind, default=default))

    missing = len(function.args) - len(function.defaults)
    defaults = [kinds.empty] * missing + function.defaults
    for argument, default in zip(function.args, defaults):
        add(argument, kinds.POSITIONAL_OR_KEYWORD, default)
    if function.vararg:
        add(function.vararg, kinds.VAR_POSITIONAL)
    for argument, default in zip(function.kwonlyargs, function.kw_defaults):
        add(argument, kinds.KEYWORD_ONLY, default or kinds.empty)
    if function.kwarg:
        add(function.kwarg, kinds.VAR_KEYWORD)
    return Parameters(inspect.Signature(parameters))


def same_default(wanted, found):
    if wanted is Unknown:
        return True
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return list(wanted) == list(found)
    simple = (bool, int, float, str, type(None))
    if not isinstance(found, simple) or not isinstance(wanted, simple):
        return True
    return wanted == found


def misfit(wanted, found, of_class):
    """Why a call that is right for `wanted` may be wrong for `found`; or ''."""
    names = wanted.positional + wanted.keywords
    if found.any_positional and found.any_keyword:
        # *args are as good as a function's tensors, but not as settings, and a
        # class has no others. One made from a table can have a __signature__.
        settings = (
            names if of_class else list(wanted.defaults) + wanted.keywords
        )
        if settings and not set(names) & set(found.positional + found.keywords):
            return "takes anything, so that nothing can be compared"
    for index, name in enumerate(wanted.positional):
        if index < len(found.positional):
            if found.positional[index] != name:
                return f"`{found.positional[index]}` in place of `{name}`"
        elif not found.any_positional:
            return f"does not take `{name}` at that place"
        # What has a default is mostly given by name.
        elif name in wanted.defaults and not found.any_keyword:
            if name not in found.keywords:
                return f"does not take `{name}` by name"
    for name in wanted.keywords:
        known = name in found.positional + found.keywords
        if not known and not found.any_keyword:
            return f"does not take `{name}`"
    if wanted.any_positional and not found.any_positional:
        return "takes no further positional arguments"
    for name in found.positional + found.keywords:
        covered = name in names or wanted.any_positional
        if name not in found.defaults:
            if name in wanted.defaults:
                return f"`{name}` has no default"
            if not covered:
                return f"needs `{name}`"
        elif name in wanted.defaults:
            value = found.defaults[name]
            if not same_default(wanted.defaults[name], value):
                return f"`{name}` is {value!r} by default"
    return ""


def compare(text, found):
    """Raises Missing if what was found cannot be used as the table says."""
    if text.startswith("="):
        return
    class_of = re.match(r"class\([\w.]*\) *", text)
    if class_of:
        if not inspect.isclass(found):
            raise Missing("is not a class")
        text = text[class_of.end() :]
    if not callable(found):
        raise Missing("is not callable")
    if text == "(inherited)":
        return
    try:
        have = Parameters(inspect.signature(found))
    except (TypeError, ValueError):
        return
    why = ""
    # '(a) or (a, b)' are two ways to call it; both must do.
    for way in text.split(" or "):
        wanted = written_signature(way.removesuffix(" static"))
        why = why or misfit(wanted, have, class_of)
    if why:
        raise Missing(why)


def judge(name, text, note):
    """(status, reason) of one row, and a complaint about its note or None."""
    place = note.place(name) if note else same_place(name)
    status, reason = "supported", ""
    exists = False
    try:
        found = look_up(place)
        exists = True
        compare(text, found)
    except Missing as error:
        status, reason = "not yet", str(error)
    if place != same_place(name) and exists:
        reason = "; ".join(filter(None, [f"is `{place}`", reason]))
    if not note or note.status == "-":
        return status, reason, None
    complaint = None
    if note.status == "absent" and exists:
        complaint = f"{name} is absent by {note.name}, but there is {place}"
    if note.status == "not yet" and status == "supported":
        complaint = f"{name} is not yet there by {note.name}, but it is"
    if note.status == "different" and not exists:
        return "not yet", "", None
    return note.status, note.reason, complaint


def cell(text):
    return text.replace("|", "\\|")


def code(text):
    # Two backticks, should the text ever hold one.
    return f"``{cell(text)}``" if "`" in text else f"`{cell(text)}`"


def make_table(tree):
    """The generated part's lines, and complaints about notes."""
    # Otherwise every name would be missing, and nobody would say why.
    importlib.import_module("choir")
    rows = read_table(tree, API, ["module", "qualified name", "signature"])
    notes = [
        Note(row)
        for row in read_table(
            tree, NOTES, ["name", "status", "choir", "reason"]
        )
    ]
    # A whole name counts before beginnings, longer ones before shorter ones.
    notes.sort(key=lambda note: (note.name.endswith("*"), -len(note.name)))
    complaints = []
    modules = {}
    for module, name, text in rows:
        fitting = [note for note in notes if note.fits(name)]
        for note in fitting:
            note.used = True
        note = fitting[0] if fitting else None
        status, reason, complaint = judge(name, text, note)
        if complaint:
            complaints.append(complaint)
        short = re.sub(rf"^singa\.(?:{module}\.)?", "", name)
        modules.setdefault(module, []).append((short, text, status, reason))
    complaints += [
        f"{NOTES}: {note.name} fits no name" for note in notes if not note.used
    ]

    def counts(entries):
        of_status = [entry[2] for entry in entries]
        return [of_status.count(status) for status in STATUSES]

    lines = ["| module | " + " | ".join(STATUSES) + " |"]
    lines += ["|---" + "|---:" * len(STATUSES) + "|"]
    everything = [entry for entries in modules.values() for entry in entries]
    for module, entries in [*modules.items(), ("**all**", everything)]:
        numbers = " | ".join(str(count) for count in counts(entries))
        lines.append(f"| {module} | {numbers} |")
    for module, entries in modules.items():
        summary = ", ".join(
            f"{count} {status}"
            for count, status in zip(counts(entries), STATUSES)
            if count
        )
        lines += ["", f"### {module}", "", f"{summary}.", ""]
        lines += ["| name | as in SINGA | here | |", "|---|---|---|---|"]
        for short, text, status, reason in entries:
            lines.append(
                f"| {code(short)} | {code(text)} | {status} | {cell(reason)} |"
            )
    return lines, complaints


def replace_part(text, lines):
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise Mistake(f"{PAGE} must have the lines '{BEGIN}' and '{END}'")
    middle = "\n\n" + "\n".join(lines) + "\n\n"
    return text[: begin + len(BEGIN)] + middle + text[end:]


def arguments(program):
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--tree",
        default=os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."),
        help="folder of the repository",
    )
    return parser.parse_args()


def main():
    given = arguments("python_api.py")
    page = os.path.join(given.tree, PAGE)
    try:
        with open(page, encoding="utf-8") as file:
            before = file.read()
        lines, complaints = make_table(given.tree)
        after = replace_part(before, lines)
    except (Mistake, OSError, ImportError) as error:
        sys.exit(f"python_api.py: {error}")
    for complaint in complaints:
        print(f"python_api.py: {complaint}", file=sys.stderr)
    if given.check and before != after:
        changes = difflib.unified_diff(
            before.splitlines(),
            after.splitlines(),
            PAGE,
            "as computed",
            n=0,
            lineterm="",
        )
        print("\n".join(list(changes)[:40]), file=sys.stderr)
        print(
            f"python_api.py: {PAGE} is not up to date; "
            "bazel run //tools:python_api writes it",
            file=sys.stderr,
        )
    elif not given.check:
        with open(page, "w", encoding="utf-8") as file:
            file.write(after)
    return 1 if complaints or (given.check and before != after) else 0


if __name__ == "__main__":
    sys.exit(main())
