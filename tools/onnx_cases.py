# SPDX-License-Identifier: Apache-2.0
"""Runs the test cases that the package onnx generates, and makes a table of them.

    bazel build //:libchoir.so && pip install onnx ml_dtypes
    python3 tools/onnx_cases.py --only 'test_conv'    # failures, one line each
    python3 tools/onnx_cases.py --write docs/onnx_cases.md

CHOIR_LIBRARY names the library, if it is not bazel-bin/libchoir.so. Cases run in
processes of their own, a part of them in each, so that one which ends badly is a
failure of its own. A case that does not run is a failure: none is left out.
"""

import argparse
import collections
import ctypes
import json
import os
import re
import subprocess
import sys

import numpy as np

# ---- The library, by its C interface ----

POINTER = ctypes.c_void_p
TENSOR_TYPES = {1: "f4", 2: "u1", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8"}
DTYPES = "f32 f64 f16 bf16 i32 i64 u8 bool".split()
NUMPY = "f4 f8 f2 u2 i4 i8 u1 ?".split()


class Failed(Exception):
    pass


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in (
            "status_message device_stream scope_input var_tensor tensor_shape"
        ).split():
            getattr(self.lib, f"choir_{name}").restype = POINTER
        self.lib.choir_onnx_run.restype = ctypes.c_bool
        self.lib.choir_onnx_result.restype = Value
        self.device = self.make("device_create", b"cpu", None)
        self.scope = self.make("scope_create", self.device)

    def call(self, name, *arguments):
        function = getattr(self.lib, f"choir_{name}")
        function.restype = POINTER
        status = function(*arguments)
        if status:
            self.lib.choir_status_message.argtypes = [POINTER]
            text = ctypes.string_at(self.lib.choir_status_message(status))
            self.lib.choir_status_free(POINTER(status))
            raise Failed(text.decode(errors="replace"))

    def make(self, name, *arguments):
        made = POINTER()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def tensor(self, array):
        array = np.asarray(array, order="C")
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        code = NUMPY.index(array.dtype.str.lstrip("<|=").replace("b1", "?"))
        if getattr(array, "is_bf16", False):
            code = 3
        data = array.ctypes.data_as(POINTER)
        return self.make(
            "tensor_from_data", self.device, code, array.ndim, shape, data
        )

    def array(self, tensor):
        tensor = POINTER(tensor)
        ndim = self.lib.choir_tensor_ndim(tensor)
        at = ctypes.cast(
            self.lib.choir_tensor_shape(tensor), ctypes.POINTER(ctypes.c_int64)
        )
        code = self.lib.choir_tensor_dtype(tensor)
        made = np.empty([at[i] for i in range(ndim)], NUMPY[code])
        self.call(
            "tensor_read", tensor, made.ctypes.data_as(POINTER),
            ctypes.c_size_t(made.nbytes),
        )  # fmt: skip
        if code == 3:
            made = (made.astype("u4") << 16).view("f4")
        return made


class Vars(ctypes.Structure):
    _fields_ = [("at", ctypes.POINTER(POINTER)), ("count", ctypes.c_int32)]


class Value(ctypes.Structure):
    _fields_ = [
        ("vars", Vars),
        ("is_sequence", ctypes.c_bool),
        ("type", ctypes.c_int32),
    ]


def element_type(info):
    """The ONNX type of a tensor's elements, or of those of a sequence's."""
    kind = info.type
    while True:
        name = kind.WhichOneof("value")
        if name == "tensor_type":
            return kind.tensor_type.elem_type
        if name not in ("sequence_type", "optional_type"):
            raise Failed(f"{info.name} is of kind {name}")
        kind = getattr(kind, name).elem_type


def as_array(value):
    """Cases give some values as messages of the schema."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def stored(value, code):
    """An array as Choir keeps it; code: the ONNX type."""
    import ml_dtypes

    value = as_array(value)
    if code == 16:
        bits = np.ascontiguousarray(value.astype(ml_dtypes.bfloat16))
        made = bits.view("u2").view(Bf16)
        return made
    if code in TENSOR_TYPES:
        return value.astype(TENSOR_TYPES[code])
    if code in (12, 13):
        return value.astype("u8").view("i8")
    if code in (3, 4, 5, 21, 22, 25, 26):
        return value.astype("i4")
    if code in (17, 18, 19, 20, 23, 24):
        return value.astype("f4")
    raise Failed(f"Choir has no tensors of ONNX's type {code}")


class Bf16(np.ndarray):
    is_bf16 = True


def given(library, tensors, value, code):
    """An input; its tensors are put into the list."""
    is_sequence = isinstance(value, list)
    parts = value if is_sequence else [] if value is None else [value]
    made = [library.tensor(stored(part, code)) for part in parts]
    tensors += made
    scope_input = library.lib.choir_scope_input
    vars_ = [POINTER(scope_input(library.scope, tensor)) for tensor in made]
    at = (POINTER * max(len(vars_), 1))(*vars_)
    return Value(Vars(at, len(vars_)), is_sequence, 0)


def taken(library, value):
    """A result as an array, a list of arrays or None."""
    tensor = library.lib.choir_var_tensor
    arrays = [
        library.array(tensor(POINTER(value.vars.at[i])))
        for i in range(value.vars.count)
    ]
    return arrays if value.is_sequence else arrays[0] if arrays else None


def run_model(library, model, inputs):
    """The results in Choir's dtypes, with their ONNX types."""
    data = model.SerializeToString()
    onnx = library.make("onnx_parse", data, ctypes.c_size_t(len(data)), None)
    lib, scope = library.lib, library.scope
    tensors = []
    try:
        library.call("onnx_place", onnx, library.device)
        known = {i.name for i in model.graph.initializer}
        infos = [i for i in model.graph.input if i.name not in known]
        if len(inputs) != len(infos):
            raise Failed(f"{len(inputs)} inputs for {len(infos)}")
        lib.choir_scope_begin(scope, None)
        values = [
            given(library, tensors, value, element_type(info))
            for info, value in zip(infos, inputs)
        ]
        at = (Value * max(len(values), 1))(*values)
        results = []
        if lib.choir_onnx_run(scope, onnx, at, len(values)):
            for i in range(len(model.graph.output)):
                value = lib.choir_onnx_result(onnx, i)
                results.append((taken(library, value), value.type))
        library.call("scope_end", scope)
        return results
    finally:
        for tensor in tensors:
            lib.choir_tensor_release(tensor)
        lib.choir_onnx_release(onnx)


# ---- Cases ----


def collect():
    from onnx.backend.test.case import model as model_cases
    from onnx.backend.test.case import node as node_cases

    import onnx.backend.test.loader as loader

    cases = list(node_cases.collect_testcases(None))
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        cases += loader.load_model_tests(kind=kind)
    names = {c.name for c in cases}
    cases += [c for c in model_cases.collect_testcases() if c.name not in names]
    return cases


def data_sets(case):
    """(model, [(inputs, outputs)])."""
    import glob

    import onnx
    from onnx import numpy_helper

    if case.model is not None and case.data_sets is not None:
        return case.model, case.data_sets
    model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
    sets = []

    def read(path, info):
        with open(path, "rb") as file:
            data = file.read()
        kind = info.type.WhichOneof("value")
        if kind == "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        if kind == "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        return numpy_helper.to_array(onnx.TensorProto.FromString(data))

    for folder in sorted(
        glob.glob(os.path.join(case.model_dir, "test_data_set_*"))
    ):
        parts = []
        for kind, infos in (
            ("input", model.graph.input),
            ("output", model.graph.output),
        ):
            paths = glob.glob(os.path.join(folder, f"{kind}_*.pb"))
            paths.sort(key=lambda p: int(re.findall(r"_(\d+)\.pb", p)[0]))
            parts.append([read(p, i) for p, i in zip(paths, infos)])
        sets.append(tuple(parts))
    return model, sets


def compare(got, expected, case, info):
    value, code = got
    declared = element_type(info)
    if expected is not None and code != declared:
        raise Failed(f"result of type {code}; {declared} is right")
    parts = value if isinstance(value, list) else [value]
    right = expected if isinstance(expected, list) else [expected]
    if isinstance(value, list) != isinstance(expected, list):
        raise Failed(f"{type(value)} was given; {type(expected)} is right")
    if len(parts) != len(right):
        raise Failed(f"{len(parts)} tensors; {len(right)} are right")
    for part, expected_part in zip(parts, right):
        compare_array(part, expected_part, case, declared)


def compare_array(array, expected, case, declared):
    import ml_dtypes

    if array is None or expected is None:
        if array is not expected:
            raise Failed("of the result and the right one one is empty")
        return
    expected = as_array(expected)
    if expected.dtype.kind in "OUS":
        raise Failed("the result is of strings")
    if array.shape != expected.shape:
        raise Failed(f"shape {array.shape}; {expected.shape} is right")
    narrow = expected.dtype.kind not in "fiub" or expected.dtype in (
        np.float16,
        ml_dtypes.bfloat16,
    )
    if expected.dtype.kind in "fV" or narrow:
        rtol = max(case.rtol, 1e-2 if declared == 16 else 0)
        np.testing.assert_allclose(
            array.astype("f8"), expected.astype("f8"), rtol=rtol, atol=case.atol
        )
    else:
        if declared == 13:
            array = array.view("u8")
        np.testing.assert_array_equal(array, expected)


def run_case(library, case):
    model, sets = data_sets(case)
    for inputs, outputs in sets:
        got = run_model(library, model, list(inputs))
        if len(got) != len(outputs):
            raise Failed(f"{len(got)} results; {len(outputs)} are right")
        for one, expected, info in zip(got, outputs, model.graph.output):
            compare(one, expected, case, info)


def run_part(path, names):
    """Prints a line of JSON for each case."""
    library = Library(path)
    cases = {c.name: c for c in collect()}
    for name in names:
        print(json.dumps([name, "began"]), flush=True)
        try:
            run_case(library, cases[name])
            reason = ""
        except Exception as error:  # whatever it is, the case fails
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = " ".join(lines[:4])[:400] or type(error).__name__
        print(json.dumps([name, reason]), flush=True)


def run_all(path, names):
    """{name: reason}; "" for a case that passes."""
    results, left = {}, list(names)
    while left:
        part = left[:400]
        command = [sys.executable, __file__, "--part", path]
        child = subprocess.run(
            command, input="\n".join(part), stdout=subprocess.PIPE, text=True
        )
        for line in child.stdout.splitlines():
            if not line.startswith("["):
                continue
            name, reason = json.loads(line)
            results[name] = reason
        began = [n for n, reason in results.items() if reason == "began"]
        for name in began:
            results[name] = f"the process ended with status {child.returncode}"
        done = [n for n in part if n in results]
        if not done:
            raise SystemExit(f"onnx_cases: {' '.join(command)} ran no case")
        left = [n for n in left if n not in results]
    return results


# ---- The table ----


def operators_of(case):
    model = data_sets(case)[0]
    return sorted({n.op_type for n in model.graph.node})


def table(cases, results):
    import onnx

    rows = collections.defaultdict(lambda: [0, 0])
    kinds = collections.defaultdict(lambda: [0, 0])
    for case in cases:
        ok = results[case.name] == ""
        kinds[case.kind][0] += ok
        kinds[case.kind][1] += 1
        if case.kind == "node":
            names = operators_of(case)
            name = names[0] if len(names) == 1 else ", ".join(names[:3])
            rows[name][0] += ok
            rows[name][1] += 1
    yield "# ONNX's test cases"
    yield ""
    yield (
        f"Those that the package onnx {onnx.__version__} generates, on a CPU. "
        "`tools/onnx_cases.py --write` makes this page."
    )
    yield ""
    yield "| kind | pass | of |"
    yield "| --- | ---: | ---: |"
    for kind, (ok, count) in sorted(kinds.items()):
        yield f"| {kind} | {ok} | {count} |"
    yield ""
    yield "## By operator (node cases)"
    yield ""
    yield "| operators of the case | pass | of |"
    yield "| --- | ---: | ---: |"
    for name, (ok, count) in sorted(rows.items()):
        yield f"| {name} | {ok} | {count} |"
    yield ""
    yield "## Cases that fail"
    yield ""
    for case in cases:
        if results[case.name]:
            yield f"- `{case.name}`: {results[case.name][:160]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="REGEX", help="names to run")
    parser.add_argument("--write", metavar="FILE", help="the table")
    parser.add_argument("--part", metavar="LIBRARY", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return run_part(arguments.part, sys.stdin.read().split())
    path = os.environ.get("CHOIR_LIBRARY", "bazel-bin/libchoir.so")
    cases = [c for c in collect() if re.search(arguments.only or "", c.name)]
    results = run_all(path, [c.name for c in cases])
    for name, reason in results.items():
        if reason and not arguments.write:
            print(f"{name}: {reason}")
    passed = sum(reason == "" for reason in results.values())
    print(f"{passed} of {len(results)} cases pass")
    if arguments.write:
        text = "\n".join(table(cases, results)) + "\n"
        with open(arguments.write, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
