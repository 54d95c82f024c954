# SPDX-License-Identifier: Apache-2.0
"""docs/python.md says of the package what tools/python_api.py finds in it."""

import subprocess
import sys
import unittest


class ApiTable(unittest.TestCase):
    def test_page_is_up_to_date(self):
        script = sys.argv[1]
        done = subprocess.run(
            [sys.executable, script, "--check", "--tree", "."],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
