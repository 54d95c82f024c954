# SPDX-License-Identifier: Apache-2.0
"""Files of a library have an order: none needs a symbol of one above it.

Arguments: the libraries' archives.
"""

import os
import subprocess
import sys
import unittest


def read_archive(path):
    """({symbol: file that defines it}, {file: symbols that it needs})."""
    owners, needs = {}, {}
    text = subprocess.run(
        ["nm", path], check=True, capture_output=True, text=True
    ).stdout
    name = None
    for line in text.splitlines():
        words = line.split()
        if line.endswith(":"):
            name = line.split(".")[0]
            needs[name] = set()
        elif words and words[-2] == "U":
            needs[name].add(words[-1])
        elif words and words[-2].isupper():
            owners[words[-1]] = name
    return owners, needs


def find_circle(edges):
    """A list of names that ends where it began; None: there is none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name) :] + [name]
        if name in done:
            return None
        path.append(name)
        for other in sorted(edges.get(name, ())):
            circle = visit(other)
            if circle:
                return circle
        path.pop()
        done.add(name)
        return None

    for name in sorted(edges):
        circle = visit(name)
        if circle:
            return circle
    return None


class FileCirclesTest(unittest.TestCase):
    archives = []

    def test_a_circle_is_found(self):
        self.assertIsNone(find_circle({"a": {"b", "c"}, "b": {"c"}}))
        self.assertEqual(
            find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}), ["b", "c", "b"]
        )

    def test_files_have_an_order(self):
        owners, needs = {}, {}
        for archive in self.archives:
            own, wanted = read_archive(archive)
            owners.update(own)
            needs.update(wanted)
        self.assertGreater(len(needs), 60)
        edges = {
            name: {owners[s] for s in wanted if s in owners} - {name}
            for name, wanted in needs.items()
        }
        self.assertGreater(sum(map(len, edges.values())), 100)
        circle = find_circle(edges)
        if circle:
            self.fail(
                "; ".join(
                    "{}.c needs {} of {}.c".format(
                        a,
                        sorted(s for s in needs[a] if owners.get(s) == b)[0],
                        b,
                    )
                    for a, b in zip(circle, circle[1:])
                )
            )


if __name__ == "__main__":
    # Each library comes as several files.
    FileCirclesTest.archives = [
        path
        for path in sys.argv[1:]
        if path.endswith((".a", ".lo")) and os.path.getsize(path) > 8
    ]
    unittest.main(argv=sys.argv[:1])
