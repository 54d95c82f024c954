# SPDX-License-Identifier: Apache-2.0
"""python -m choir onnx: what an ONNX file holds, and what it computes."""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

from choir import Error, sonnx
from choir._onnx import OnnxFile, Value, source_of


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m choir onnx",
        description="Says what an ONNX file holds, or runs it on inputs from "
        ".npy files and prints the results.",
    )
    parser.add_argument("model", metavar="MODEL", help="the ONNX file")
    parser.add_argument(
        "--describe",
        action="store_true",
        help="print inputs, results, parameters and nodes (the default "
        "without --input)",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="X.npy",
        help="an input, in the file's order; once for each",
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="Y.npy",
        help="write a result there instead of printing it, in the file's order",
    )
    return parser


class _Mistake(Exception):
    """What cannot be done; one sentence."""


def _read(path: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise _Mistake(f"there is no file {path}") from None
    except OSError as error:
        raise _Mistake(
            f"cannot read {path}: {error.strerror or error}"
        ) from None
    except (ValueError, EOFError) as error:
        raise _Mistake(f"{path} is no .npy file: {error}") from None
    if not isinstance(array, np.ndarray):
        raise _Mistake(f"{path} holds several arrays; an .npy file has one")
    return array


def _write(path: str, array: np.ndarray) -> None:
    try:
        with open(path, "wb") as file:
            np.save(file, array, allow_pickle=False)
    except OSError as error:
        raise _Mistake(
            f"cannot write {path}: {error.strerror or error}"
        ) from None


def _line(value: Value, array: np.ndarray) -> str:
    text = np.array2string(array, threshold=100, edgeitems=3)
    return f"{value.name}: {array.dtype} {array.shape}\n{text}"


def _run(options: argparse.Namespace, outputs: list[Value], rep) -> None:
    results = rep.run([_read(path) for path in options.input])
    for i, array in enumerate(results):
        if i < len(options.output):
            _write(options.output[i], array)
        else:
            print(_line(outputs[i], array))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 for a file that cannot be read or run, 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.output and not options.input:
        parser.error("--output is for results; give the model's --input too")
    try:
        if options.describe or not options.input:
            source = source_of(options.model)
            print(OnnxFile(source).describe(), end="")
        if options.input:
            rep = sonnx.prepare(options.model)
            if len(options.input) != len(rep.inputs):
                names = ", ".join(value.name for value in rep.inputs) or "none"
                parser.error(
                    f"--input is given {len(options.input)} times; the model's "
                    f"inputs are: {names}"
                )
            if len(options.output) > len(rep.outputs):
                parser.error(
                    f"--output is given {len(options.output)} times; the model "
                    f"has {len(rep.outputs)} results"
                )
            _run(options, rep.outputs, rep)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (
        _Mistake,
        Error,
        ValueError,
        TypeError,
        IndexError,
        MemoryError,
        NotImplementedError,
    ) as error:
        print(f"choir: {error}", file=sys.stderr)
        return 1
    return 0
