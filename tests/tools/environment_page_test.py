# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md names every variable that the sources read, and no other of
Choir's. The sources are those that the test has for data."""

import os
import re
import unittest

PAGE = "docs/environment.md"
# In C and Python a name is a string of its own; `getenv` and `environ` have it at
# hand or in a table.
NAME = re.compile(r'"((?:CHOIR|OMPI|PMIX|PRTE)_[A-Z0-9_a-z]*[A-Z0-9a-z])=?"')
READ = re.compile(r'(?:getenv\(|environ\[|environ\.get\()\s*"([A-Z_0-9]+)"')
SHELL = re.compile(r"\$\{?(CHOIR_[A-Z_]+)")
# Strings of this form that are no variables.
OTHERS = {"CHOIR_DTYPE_LIST"}


def variables(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith((".c", ".h", ".inc", ".def", ".cu", ".cuh")):
        text = re.sub(r"//.*", "", text)
        return set(NAME.findall(text) + READ.findall(text)) - OTHERS
    if path.endswith(".py"):
        return set(NAME.findall(text) + READ.findall(text))
    return set(SHELL.findall(text))


class EnvironmentPageTest(unittest.TestCase):
    def test_page(self):
        found = {}
        for folder, _, names in os.walk(".", followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                if path != os.path.join(".", PAGE) and "/tests/" not in path:
                    for variable in variables(path):
                        found.setdefault(variable, path)
        # Of the library, the package, choirrun and the shell scripts.
        for known in (
            "CHOIR_COMM_ID",
            "CHOIR_NCCL_LIBRARY",
            "CHOIR_DEVICE",
            "CHOIR_RUN",
            "CHOIR_TORCH_NEWEST",
            "CHOIR_CI_LIMIT",
        ):
            self.assertIn(known, found)
        with open(PAGE, encoding="utf-8") as file:
            text = file.read()
        named = set(re.findall(r"\b[A-Z][A-Za-z0-9_]*[A-Za-z0-9]\b", text))
        for variable, path in sorted(found.items()):
            self.assertIn(variable, named, f"{path} reads it")
        for variable in sorted(named):
            if variable.startswith("CHOIR_"):
                self.assertIn(variable, found, "nothing reads it")


if __name__ == "__main__":
    unittest.main(verbosity=2)
