# SPDX-License-Identifier: Apache-2.0
"""Makes docs/operators.md: what Choir has of SINGA's operators and layers.

    bazel run //tools:operators_page             # writes it
    bazel run //tools:operators_page -- --check  # status 1 if it is not up to date

The names are the classes of singa.autograd and singa.layer in
docs/api/singa_python_api.tsv. Whether the package has one, python_api.py judges. An
operator that is one op of the C library's list says so itself; of which ops the
others are made is in docs/api/singa_operators.tsv. A layer is in C if the C library
lists one of its name.
"""

import os
import sys

import python_api

TABLE = "docs/api/singa_operators.tsv"
PAGE = "docs/operators.md"
# Classes that compute nothing, and those that others are made of.
NO_OPERATORS = {"Operator", "Dummy"}
NO_LAYERS = {"LayerMeta", "Layer", "RNN_Base"}
# Layers of C under other names.
C_NAMES = {"Pooling2d": "max_pool2d, avg_pool2d"}
HEAD = """\
# SINGA's operators and layers

All {operators} operators (`singa.autograd`) and {layers} layers (`singa.layer`) of
Apache SINGA 5.1, and what Choir has of them. `tools/operators_page.py` makes this page
from the lists: SINGA's names, the package `choir`, `CHOIR_OP_LIST` (`tensor/ops.h`) and
`CHOIR_LAYER_LIST` (`model/layers.h`). Every method of them is in
[python.md](python.md). *Done* is what takes SINGA's arguments and gives what SINGA's
documentation says; its errors are not copied.
"""


def classes(rows, module, left_out):
    """[(name, qualified name, signature)] of a module of SINGA's."""
    found = []
    for own, qualified, text in rows:
        name = qualified.rpartition(".")[2]
        if own == module and text.startswith("class") and name not in left_out:
            found.append((name, qualified, text))
    return found


def state(notes, qualified, text):
    """ "done", or why it is not or not quite."""
    fitting = [note for note in notes if note.fits(qualified)]
    note = fitting[0] if fitting else None
    status, reason, complaint = python_api.judge(qualified, text, note)
    if complaint:
        raise python_api.Mistake(complaint)
    if status == "supported":
        return "done"
    word = "done, but" if status == "different" else "absent:"
    return f"{word} {reason}" if reason else word.strip(":")


def op_of(place):
    """The op that a class of choir's is, or None."""
    try:
        return getattr(python_api.look_up(place), "op", None)
    except python_api.Missing:
        return None


def made_of(name, qualified, table):
    """(names of ops, whether there is a gradient) of an operator."""
    from choir import _raw

    op = op_of(python_api.same_place(qualified))
    if op is not None:
        if name in table:
            raise python_api.Mistake(f"{TABLE}: {name} is an op of the list")
        return [op.name], op.gradient == _raw.GRAD
    if name not in table:
        return [], False
    names, gradient = table.pop(name)
    names = [] if names == "-" else names.split()
    for one in names:
        if one not in _raw.OPS:
            raise python_api.Mistake(f"{TABLE}: {name}: no op is called {one}")
    return names, gradient == "yes"


def c_layers(lib):
    """Names of the C library's layers."""
    names, index = [], 0
    while definition := lib.layer_def_get(index):
        name = lib.layer_def_config(definition).contents.name
        names.append(name.decode())
        index += 1
    return names


def row(*cells):
    return "| " + " | ".join(python_api.cell(cell) for cell in cells) + " |"


def make_page(tree):
    from choir._calls import lib

    columns = ["module", "qualified name", "signature"]
    rows = python_api.read_table(tree, python_api.API, columns)
    columns = ["name", "status", "choir", "reason"]
    notes = [
        python_api.Note(one)
        for one in python_api.read_table(tree, python_api.NOTES, columns)
    ]
    notes.sort(key=lambda note: (note.name.endswith("*"), -len(note.name)))
    columns = ["name", "made of", "gradient"]
    table = {
        name: (ops, gradient)
        for name, ops, gradient in python_api.read_table(tree, TABLE, columns)
    }
    operators = classes(rows, "autograd", NO_OPERATORS)
    layers = classes(rows, "layer", NO_LAYERS)
    lines = HEAD.format(operators=len(operators), layers=len(layers))
    lines = lines.splitlines() + ["", "## Operators", ""]
    body = []
    for name, qualified, text in operators:
        names, has_gradient = made_of(name, qualified, table)
        ops = ", ".join(f"`{one}`" for one in names) or "-"
        own = state(notes, qualified, text)
        gradient = "yes" if has_gradient else "none"
        body.append(row(f"`{name}`", own, ops, gradient))
    if table:
        raise python_api.Mistake(f"{TABLE}: SINGA has no {', '.join(table)}")
    lines += [summary(body), "", "| operator | here | ops in C | gradient |"]
    lines += ["| --- | --- | --- | --- |", *body, "", "## Layers", ""]
    known = {name.replace("_", ""): name for name in c_layers(lib)}
    body = []
    for name, qualified, text in layers:
        c_name = C_NAMES.get(name) or known.get(name.lower())
        own = state(notes, qualified, text)
        body.append(row(f"`{name}`", own, f"`{c_name}`" if c_name else "-"))
    lines += [summary(body), "", "| layer | here | layer in C |"]
    lines += ["| --- | --- | --- |", *body, ""]
    lines.append("A layer that is not in C is Python over ops.")
    return "\n".join(lines) + "\n"


def summary(body):
    absent = sum("| absent" in line for line in body)
    return f"{len(body) - absent} done, {absent} absent."


def main():
    given = python_api.arguments("operators_page.py")
    path = os.path.join(given.tree, PAGE)
    try:
        made = make_page(given.tree)
        if not given.check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(made)
            return
        with open(path, encoding="utf-8") as file:
            is_current = file.read() == made
    except (python_api.Mistake, OSError, ImportError) as error:
        sys.exit(f"operators_page.py: {error}")
    if not is_current:
        sys.exit(
            f"operators_page.py: {PAGE} is not what the lists say; run "
            "bazel run //tools:operators_page"
        )


if __name__ == "__main__":
    main()
