#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/check_pip.sh
# `pip install ./python` in a fresh virtual environment, as a user types it, and the
# package used from there. Not a test of Bazel's, as it runs Bazel. No network: NumPy
# is Debian's.
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(git status --porcelain)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

/usr/bin/python3 -m venv --system-site-packages "$work/venv"
"$work/venv/bin/pip" --disable-pip-version-check install --no-index \
  --no-cache-dir ./python
after=$(git status --porcelain)
cd "$work"
"$work/venv/bin/python3" - "$work/venv" <<'END'
import os
import sys

import choir
from choir import _find

place = os.path.dirname(choir.__file__)
if not place.startswith(sys.argv[1] + os.sep):
    sys.exit(f"check_pip.sh: choir was imported from {place}")
_find.load_library()
print(f"check_pip.sh: Choir {choir.__version__} loads from {place}")
END
[ "$before" = "$after" ] || {
  echo "check_pip.sh: pip left files in the tree:" >&2
  diff <(echo "$before") <(echo "$after") >&2
  exit 1
}
