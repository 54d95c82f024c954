# SPDX-License-Identifier: Apache-2.0
"""docs/python.md and docs/operators.md say of the package what tools/python_api.py
and tools/operators_page.py find in it."""

import subprocess
import sys
import unittest


class ApiTable(unittest.TestCase):
    def test_pages_are_up_to_date(self):
        self.assertEqual(len(sys.argv), 3)
        for script in sys.argv[1:]:
            done = subprocess.run(
                [sys.executable, script, "--check", "--tree", "."],
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
