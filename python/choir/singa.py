# SPDX-License-Identifier: Apache-2.0
"""Runs a script that was written for SINGA, unchanged:

    python -m choir.singa train_cnn.py cnn mnist -m 2

`import singa` finds Choir, in the script and in the processes that it starts. What
follows the script's name is the script's.
"""

import os
import runpy
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_singa")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        ok = arguments[:1] in (["-h"], ["--help"])
        print(
            "usage: python -m choir.singa SCRIPT [ARGUMENT]...",
            file=sys.stdout if ok else sys.stderr,
        )
        return 0 if ok else 2
    script = arguments[0]
    if not os.path.isfile(script):
        print(f"choir.singa: there is no script {script!r}", file=sys.stderr)
        return 1
    # $PYTHONPATH: Python's own, folders that imports look in. choir.singa puts its
    # own two before them, for the processes that a script starts.
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [FOLDER, os.path.dirname(os.path.dirname(FOLDER))]
        + ([paths] if paths else [])
    )
    # As Python does it for a script, whose folder comes first.
    sys.path[0:1] = [os.path.dirname(os.path.abspath(script)), FOLDER]
    sys.argv = arguments
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
