# SPDX-License-Identifier: Apache-2.0
"""Tests tools/python_api.py on a package, tables and a page made up here."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv.pop(1))
BEGIN = "<!-- From here on written by tools/python_api.py. -->"
END = "<!-- To here. -->"

PACKAGE = {
    "__init__.py": "__version__ = '1.2'\n",
    "opt.py": """
class Base:
    def __init__(self, lr, *, beta=0.9): self.lr = lr
    def apply(self, name): raise NotImplementedError("apply")
    def step(self): return 1
class SGD(Base):
    def __init__(self, lr=0.1, momentum=0, extra=None): pass
    size = property(lambda self: 1)
class Loose(Base):
    def __init__(self, *args, **kwargs): pass
class Told(Loose):
    pass
class Meta(type):
    def __new__(mcs, name): pass
def same(x, axis=1): pass
def renamed(y, axis=1): pass
def default(x, axis=0): pass
def no_default(x, axis): pass
def needs(x, axis=1, *, seed): pass
def more(x, axis=1, seed=None): pass
def fewer(x): pass
def several(*xs): pass
def anything(*xs, **settings): pass
def keyword(x, *, axis=1): pass
alias = same
import inspect
Told.__signature__ = inspect.signature(same)
number = 3
""",
    "moved.py": "class Device:\n    def Sync(self): pass\n",
}

# What the package must be found to have: name, signature, status, reason.
OPT = [
    ("Base", "class(object) (self, lr, beta=0.5)", "not yet", "`beta` at that"),
    ("Base.apply", "(self, name)", "supported", ""),
    ("SGD", "class(Base) (self, lr=0.1, momentum=0)", "supported", ""),
    ("SGD.apply", "(self, name)", "not yet", ""),
    ("SGD.step", "(self)", "supported", ""),
    ("SGD.size", "(self)", "not yet", "is not callable"),
    ("SGD.__eq__", "(self, rhs)", "not yet", ""),
    (
        "Loose",
        "class(Base) (self, a, b=1)",
        "not yet",
        "nothing can be compared",
    ),
    ("Loose", "class(Base) (self)", "supported", ""),
    ("anything", "(x, y)", "supported", ""),
    ("anything", "(x, axis=1)", "not yet", "nothing can be compared"),
    ("anything", "(x, *, axis)", "not yet", "nothing can be compared"),
    ("Told", "class(Base) (self, x, axis=1)", "supported", ""),
    ("Told", "class(Base) (self, x)", "supported", ""),
    ("Told", "class(Base) (self, a)", "not yet", "`x` in place of `a`"),
    ("Meta", "class(type) (inherited)", "supported", ""),
    ("Meta.__new__", "(cls, name)", "supported", ""),
    ("Meta.__call__", "(cls)", "not yet", ""),
    ("Loose.__init__", "(inherited)", "supported", ""),
    ("same", "(x, axis=1)", "supported", ""),
    ("same.deeper", "= 1", "not yet", ""),
    ("renamed", "(x, axis=1)", "not yet", "`y` in place of `x`"),
    ("default", "(x, axis=1)", "not yet", "`axis` is 0 by default"),
    ("no_default", "(x, axis=1)", "not yet", "`axis` has no default"),
    ("needs", "(x, axis=1)", "not yet", "needs `seed`"),
    ("more", "(x, axis=1)", "supported", ""),
    ("fewer", "(x, axis=1)", "not yet", "does not take `axis`"),
    ("several", "(*l)", "supported", ""),
    ("several", "(a, b)", "supported", ""),
    ("several", "(a, b=1)", "not yet", "does not take `b` by name"),
    ("fewer", "(*l)", "not yet", "takes no further positional arguments"),
    ("keyword", "(x, axis=1)", "not yet", "does not take `axis` at that place"),
    ("keyword", "(x, *, axis=1)", "supported", ""),
    ("same", "(x) or (x, axis)", "supported", ""),
    ("same", "(x) or (x, b)", "not yet", "`axis` in place of `b`"),
    ("same", "(x, axis=other.thing) static", "supported", ""),
    ("same", "class(Base) (x)", "not yet", "is not a class"),
    ("alias", "= same", "supported", ""),
    ("number", "= 3", "supported", ""),
    ("number", "(x)", "not yet", "is not callable"),
    ("nothing", "= 3", "not yet", ""),
]


class PythonApi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name
        for name, text in PACKAGE.items():
            self.write(f"lib/choir/{name}", text)
        self.page(f"by hand\n\n{BEGIN}\nold\n{END}\n\nalso by hand\n")
        self.notes()

    def write(self, path, text):
        path = os.path.join(self.tree, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def read(self):
        with open(
            os.path.join(self.tree, "docs/python.md"), encoding="utf-8"
        ) as file:
            return file.read()

    def page(self, text):
        self.write("docs/python.md", text)

    def api(self, *rows):
        rows = [("module", "qualified name", "signature"), *rows]
        text = "".join("\t".join(row) + "\n" for row in rows)
        self.write("docs/api/singa_python_api.tsv", text)

    def notes(self, *rows):
        rows = [("name", "status", "choir", "reason"), *rows]
        text = "".join("\t".join(row) + "\n" for row in rows)
        self.write("docs/api/singa_python_notes.tsv", text)

    def run_it(self, *arguments, status=0):
        done = subprocess.run(
            [sys.executable, SCRIPT, "--tree", self.tree, *arguments],
            env={"PYTHONPATH": os.path.join(self.tree, "lib")},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def table(self):
        """The page's rows of names: [name, signature, status, reason]."""
        rows = []
        for line in self.read().splitlines():
            if line.startswith("| `"):
                rows.append([part.strip(" `") for part in line.split("|")[1:5]])
        return rows

    def test_what_is_supported(self):
        self.api(
            *[("opt", f"singa.opt.{name}", text) for name, text, *_ in OPT]
        )
        self.run_it()
        rows = self.table()
        self.assertEqual(len(rows), len(OPT))
        for (name, text, status, words), row in zip(OPT, rows):
            with self.subTest(name=name, text=text):
                self.assertEqual(row[:3], [name, text, status])
                if words:
                    self.assertIn(words.strip("`"), row[3])
                else:
                    self.assertEqual(row[3], "")

    def test_counts_and_modules(self):
        self.api(
            ("opt", "singa.opt.same", "(x, axis=1)"),
            ("opt", "singa.opt.nothing", "(x)"),
            ("gone", "singa.gone.f", "(x)"),
            ("singa", "singa.__version__", "= 5"),
        )
        self.run_it()
        text = self.read()
        self.assertTrue(text.startswith(f"by hand\n\n{BEGIN}\n"))
        self.assertTrue(text.endswith(f"{END}\n\nalso by hand\n"))
        self.assertNotIn("old", text)
        for line in [
            "| opt | 1 | 0 | 0 | 1 |",
            "| gone | 0 | 0 | 0 | 1 |",
            "| singa | 1 | 0 | 0 | 0 |",
            "| **all** | 2 | 0 | 0 | 2 |",
            "### opt",
            "1 supported, 1 not yet.",
            "| `__version__` | `= 5` | supported |  |",
        ]:
            self.assertIn(line, text.splitlines())

    def test_notes(self):
        self.api(
            ("opt", "singa.opt.same", "(x, axis=1)"),
            ("opt", "singa.opt.renamed", "(x, axis=1)"),
            ("opt", "singa.opt.nothing", "(x)"),
            ("old", "singa.old.Device.Sync", "()"),
            ("old", "singa.old.f", "(x)"),
            ("old", "singa.old.g", "(x)"),
        )
        self.notes(
            ("singa.old.*", "absent", "-", "old"),
            ("singa.old.Device.*", "-", "choir.moved.Device.*", "-"),
            ("singa.old.g", "not yet", "-", "a | of it"),
            ("singa.opt.renamed", "different", "-", "takes `y`"),
            # Says nothing as long as it is not there.
            ("singa.opt.nothing", "different", "-", "other"),
        )
        self.run_it()
        self.assertEqual(
            [row[2:] for row in self.table()[:5]],
            [
                ["supported", ""],
                ["different", "takes `y"],
                ["not yet", ""],
                ["supported", "is `choir.moved.Device.Sync"],
                ["absent", "old"],
            ],
        )
        self.assertIn("| not yet | a \\| of it |", self.read())

    def test_check(self):
        self.api(("opt", "singa.opt.same", "(x, axis=1)"))
        before = self.read()
        self.assertIn("is not up to date", self.run_it("--check", status=1))
        self.assertEqual(self.read(), before)
        self.run_it()
        self.run_it("--check")
        self.write("lib/choir/opt.py", "")
        said = self.run_it("--check", status=1)
        self.assertNotIn("\n\n", said)
        self.assertIn("-| `same` | `(x, axis=1)` | supported |  |", said)
        self.assertIn("+| `same` | `(x, axis=1)` | not yet |  |", said)

    def test_notes_that_are_out_of_date(self):
        self.api(("opt", "singa.opt.same", "(x, axis=1)"))
        for note, words in [
            (
                ("singa.opt.*", "absent", "-", "why"),
                "but there is choir.opt.same",
            ),
            (("singa.opt.same", "not yet", "-", "why"), "but it is"),
            (("singa.opt.none", "absent", "-", "why"), "fits no name"),
        ]:
            self.notes(note)
            self.assertIn(words, self.run_it(status=1))
            self.assertIn(words, self.run_it("--check", status=1))

    def test_files_that_are_wrong(self):
        self.api(("opt", "singa.opt.same", "(x, axis=1)"))
        for note, words in [
            (("singa.opt.same", "done", "-", "why"), "'done' is no status"),
            (("singa.opt.same", "absent", "-", "-"), "is absent, but why?"),
            (("singa.opt.*", "-", "choir.opt", "-"), "both names need the *"),
            (("singa.opt.same", "absent"), "has 2 columns, not 4"),
        ]:
            self.notes(note)
            said = self.run_it(status=1)
            self.assertIn(words, said)
            self.assertEqual(len(said.splitlines()), 1)
        self.notes()
        self.page("no marks\n")
        self.assertIn("must have the lines", self.run_it(status=1))
        self.assertEqual(self.read(), "no marks\n")

    def test_a_package_that_does_not_import(self):
        self.api(("opt", "singa.opt.same", "(x, axis=1)"))
        self.write("lib/choir/opt.py", "import no_such_module\n")
        self.assertIn("no_such_module", self.run_it(status=1))
        self.write("lib/choir/__init__.py", "raise ImportError('no library')\n")
        self.assertIn("no library", self.run_it(status=1))
        self.assertIn("old", self.read())


if __name__ == "__main__":
    unittest.main()
