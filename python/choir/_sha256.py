# SPDX-License-Identifier: Apache-2.0
"""python -m choir sha256: one hash of the weights in a file
(docs/reproducible.md)."""

from __future__ import annotations

import argparse
import hashlib
import sys

from choir import Error
from choir._checkpoint import opened


def sha256_of(fpath: str) -> str:
    """Of the bytes of all weights in a checkpoint or a safetensors file,
    little-endian, bfloat16 as float32, in the order of their names. An
    optimizer's states, which have a slash in their names, do not count."""
    total = hashlib.sha256()
    with opened(fpath) as file:
        for name in sorted(name for name in file if "/" not in name):
            array = file[name].numpy()
            order = array.dtype.newbyteorder("<")
            total.update(array.astype(order, copy=False).tobytes())
    return total.hexdigest()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m choir sha256",
        description="Prints one SHA-256 of the weights in each file: of their "
        "bytes, little-endian, in the order of their names. An optimizer's "
        "states do not count.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a checkpoint (--save) or another safetensors file",
    )
    status = 0
    for fpath in parser.parse_args(words).files:
        try:
            print(f"{sha256_of(fpath)}  {fpath}", flush=True)
        except (Error, OSError, ValueError) as error:
            print(f"python -m choir sha256: {error}", file=sys.stderr)
            status = 1
    return status
