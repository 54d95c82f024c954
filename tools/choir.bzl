"""Macros for Choir's libraries, tests and layering checks.

Every C and C++ target of the tree goes through these, so that language level,
warnings, visibility of symbols and floating-point rules are set in one place.
"""

# Flags of all code. No contraction of a*b+c: results must not depend on compiler
# or instruction set, and code that wants a fused step calls fmaf. No operation
# traps, as clang assumes anyway: gcc 12 vectorises no loop for AVX2 that it can
# move an operation out of for fear of that, e^x and all that is made of it.
_COMMON_COPTS = [
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
]

_C_COPTS = _COMMON_COPTS + [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    # A choice between a void* and another pointer is a void*, and counts bytes.
    "-Wpointer-arith",
    # Config macros give every field its default; the caller's come after.
    "-Wno-override-init",
]

_CXX_COPTS = _COMMON_COPTS + [
    "-std=c++17",
    "-fvisibility-inlines-hidden",
    "-Wno-missing-field-initializers",
    # Only tests are C++. What they cost is to compile GoogleTest's macros: under the
    # sanitizers -O1 takes three times as long, and checks of undefined behaviour
    # double the rest, which say nothing of Choir's own code.
    # Nothing is thrown here, and code to clean up after a throw costs a tenth.
    "-O0",
    "-fno-sanitize=undefined",
    "-fno-exceptions",
]

# C: -O3 where nothing else was asked for; sanitizers stay at -O1 for their traces.
_OPTIMISE = select({
    "//tools:debug": [],
    "//tools:sanitizer": ["-O1", "-DCHOIR__SANITIZED"],
    "//conditions:default": ["-O3"],
})

_OPENMP_COPTS = select({
    "//tools:openmp_off": ["-Wno-unknown-pragmas"],
    "//conditions:default": ["-fopenmp"],
})

_OPENMP_LINKOPTS = select({
    "//tools:openmp_off": [],
    "//conditions:default": ["-fopenmp"],
})

_SANITIZER_DEPS = select({
    "//tools:asan": ["//tools:mpi_leaks", "//tools:spare_new"],
    "//tools:lsan": ["//tools:mpi_leaks"],
    "//conditions:default": [],
})

# A file for one instruction set is built with its flags on x86-64 only; elsewhere
# its code hides behind the compiler's own macros (__AVX2__, __AVX512F__).
_ISA_COPTS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
    ],
}

_FEATURES = ["layering_check"]

def _is_cxx(srcs):
    return any([src.endswith(".cc") for src in srcs])

def _is_for_extenders(hdr):
    """Headers for writers of ops, layers, optimizers, backends: not installed."""
    return any([hdr.endswith(end) for end in ["_def.h", "_rule.h", "_backend.h"]])

def _copts(srcs):
    language = _CXX_COPTS if _is_cxx(srcs) else _C_COPTS + _OPTIMISE
    return language + _OPENMP_COPTS

def choir_cc_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        copts = [],
        cxx_hdrs = True,
        linkopts = [],
        features = [],
        isa_srcs = {},
        textual_hdrs = [],
        visibility = None,
        **kwargs):
    """A C (or, if a source ends in .cc, C++) library of Choir.

    Args:
      name: target name.
      srcs: sources and private headers; a plain list of file names.
      hdrs: headers that targets above may include.
      deps: libraries whose headers the sources include.
      copts: more compile options.
      cxx_hdrs: whether hdrs promise to compile as C++ too. Those of the public API
        do; those for writers of backends need not.
      linkopts: more link options.
      features: more toolchain features.
      isa_srcs: {"avx2": [...], "avx512": [...]}: sources that are compiled for one
        instruction set. They see the same headers as srcs; whoever calls them
        asks the processor first.
      textual_hdrs: files that others include but that are no header (.def, .inc).
      visibility: exactly the layers above; private if not given.
      **kwargs: as of cc_library.
    """
    testonly = kwargs.get("testonly", False)
    isa_deps = []
    if any(isa_srcs.values()):
        native.cc_library(
            name = name + "_isa_headers",
            hdrs = hdrs + [src for src in srcs if src.endswith(".h")],
            testonly = testonly,
            features = _FEATURES,
            textual_hdrs = textual_hdrs,
            visibility = ["//visibility:private"],
            deps = deps,
        )
    for isa, files in isa_srcs.items():
        if not files:
            continue
        isa_deps.append(":%s_%s" % (name, isa))
        native.cc_library(
            name = "%s_%s" % (name, isa),
            srcs = files,
            testonly = testonly,
            alwayslink = True,
            copts = _copts(files) + copts + select({
                "@platforms//cpu:x86_64": _ISA_COPTS[isa],
                "//conditions:default": [],
            }),
            features = _FEATURES,
            linkstatic = True,
            visibility = ["//visibility:private"],
            deps = [":" + name + "_isa_headers"] + deps,
        )
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        # Without it a linkshared binary over this library would be empty.
        alwayslink = True,
        copts = _copts(srcs) + copts,
        features = _FEATURES + features,
        linkopts = linkopts + _OPENMP_LINKOPTS,
        linkstatic = True,
        textual_hdrs = textual_hdrs,
        visibility = visibility or ["//visibility:private"],
        deps = deps + isa_deps,
        **kwargs
    )
    if hdrs and not testonly:
        # For //:install, which names the layers that users of the C API get.
        native.filegroup(
            name = name + "_headers",
            srcs = [hdr for hdr in hdrs if not _is_for_extenders(hdr)],
            visibility = ["//:__pkg__"],
        )
        _headers_test(name, hdrs, ["c", "cc"] if cxx_hdrs else ["c"])

def _headers_test(library, hdrs, extensions):
    """Each header must compile alone, as C11 and as C++17."""
    name = library + "_headers_test"
    package = native.package_name()
    prefix = package + "/" if package else ""
    for extension in extensions:
        outs = []
        for header in hdrs:
            out = "%s_%s/%s.%s" % (name, extension, header.replace(".", "_"), extension)
            outs.append(out)
            native.genrule(
                name = out.replace("/", "_").replace(".", "_"),
                outs = [out],
                # The typedef keeps a header of macros from being an empty file.
                cmd = "printf '#include \"%s\"\\ntypedef int choir_headers_test_t;\\n' >$@" % (
                    prefix + header
                ),
                testonly = True,
                visibility = ["//visibility:private"],
            )
        native.cc_library(
            name = "%s_%s" % (name, extension),
            testonly = True,
            srcs = outs,
            copts = _copts(outs),
            features = _FEATURES,
            linkstatic = True,
            visibility = ["//visibility:private"],
            deps = [":" + library],
        )
    native.genrule(
        name = name + "_main",
        outs = [name + "_main.c"],
        cmd = "echo 'int main(void) { return 0; }' >$@",
        testonly = True,
        visibility = ["//visibility:private"],
    )
    native.cc_test(
        name = name,
        size = "small",
        srcs = [name + "_main.c"],
        linkopts = _OPENMP_LINKOPTS,
        linkstatic = True,
        tags = ["headers"],
        deps = [":%s_%s" % (name, extension) for extension in extensions],
    )

def choir_cc_binary(
        name,
        srcs = [],
        deps = [],
        copts = [],
        linkopts = [],
        features = [],
        visibility = None,
        **kwargs):
    """A program, or with linkshared a shared library, of Choir."""
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _copts(srcs) + copts,
        features = _FEATURES + features,
        linkopts = linkopts + _OPENMP_LINKOPTS,
        linkstatic = True,
        visibility = visibility or ["//visibility:private"],
        deps = deps + ([] if kwargs.get("linkshared") else _SANITIZER_DEPS),
        **kwargs
    )

def choir_mpi_plugin(name):
    """libchoir_mpi.so in this package: programs open it from their own folder.

    Args:
      name: target name, for `data` of the programs.
    """
    native.genrule(
        name = name,
        srcs = ["//:libchoir_mpi.so"],
        outs = ["libchoir_mpi.so"],
        cmd = "cp $< $@",
        visibility = ["//visibility:private"],
    )

def choir_cc_test(
        name,
        srcs,
        deps = [],
        copts = [],
        data = [],
        features = [],
        linkopts = [],
        main = True,
        size = "small",
        **kwargs):
    """A GoogleTest test in C++17.

    Tags that .ci/run knows: `tsan` also runs under the thread sanitizer, `slow`
    stays out of the sanitizer runs, `no-asan` cannot run under --config=asan.

    Args:
      name: target name.
      srcs: one or more .cc files.
      deps: libraries under test.
      copts: more compile options.
      data: files needed at run time.
      features: more toolchain features.
      linkopts: more link options.
      main: False if the test has its own main().
      size: as of cc_test.
      **kwargs: as of cc_test.
    """
    gtest = "//third_party:gtest_main" if main else "//third_party:gtest"
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        copts = _copts(srcs) + copts,
        data = data + ["//tools:lsan.supp"],
        features = _FEATURES + features,
        linkopts = linkopts + _OPENMP_LINKOPTS,
        linkstatic = True,
        deps = deps + [gtest] + _SANITIZER_DEPS,
        **kwargs
    )

def choir_fuzz_test(name, deps):
    """A target of tests/fuzz, in <name>.c.

    As a test it runs some thousand inputs; under --config=fuzz it is libFuzzer's.

    Args:
      name: target name.
      deps: libraries under test.
    """
    native.cc_test(
        name = name,
        size = "small",
        srcs = [name + ".c"],
        copts = _copts([name + ".c"]),
        data = ["//tools:lsan.supp"],
        features = _FEATURES,
        linkopts = _OPENMP_LINKOPTS + select({
            "//tools:fuzz": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        deps = deps + ["//tests/fuzz:driver"] + _SANITIZER_DEPS,
    )

def choir_cc_tests(srcs, deps, tags = {}, sizes = {}, shards = {}, heavy = [], **kwargs):
    """One choir_cc_test per file, each named as its file without `.cc`.

    Args:
      srcs: the test files of a folder.
      deps: libraries that all of them use.
      tags: {test name: tags}, for the few that need some.
      sizes: {test name: size}, likewise.
      shards: {test name: count}, for those that would be the last to end.
      heavy: names of tests whose own code goes through millions of elements; -O1.
      **kwargs: passed on to every test.
    """
    names = [src[:-len(".cc")] for src in srcs]
    for key in tags.keys() + sizes.keys() + shards.keys() + heavy:
        if key not in names:
            fail("no test %s in this folder" % key)
    for test in names:
        choir_cc_test(
            name = test,
            size = sizes.get(test, "small"),
            srcs = [test + ".cc"],
            copts = ["-O1"] if test in heavy else [],
            shard_count = shards.get(test),
            tags = tags.get(test, []),
            deps = deps,
            **kwargs
        )

def choir_py_test(
        name,
        srcs = None,
        deps = [],
        size = "small",
        tags = [],
        asan = False,
        **kwargs):
    """A Python test of the package: `import choir` finds it and libchoir.so.

    Tagged `no-asan` unless asan, as Python lacks the sanitizer's runtime that
    libchoir.so would need; the thread sanitizer runs only what is tagged for it.
    Tagged `python`, for who wants C's tests alone.

    Args:
      name: test name.
      srcs: sources; <name>.py if not given.
      deps: libraries beside the package.
      size: as of py_test.
      tags: more tags.
      asan: it loads libchoir.so in other processes, which it gives the runtime.
      **kwargs: as of py_test.
    """
    native.py_test(
        name = name,
        size = size,
        srcs = srcs or [name + ".py"],
        python_version = "PY3",
        tags = tags + ([] if asan else ["no-asan"]) + ["python"],
        deps = deps + ["//python:choir"],
        **kwargs
    )

# Code for the chips that most have, and for all others from the first that CUDA 13
# supports on, as a text that the driver compiles. Without contraction, as in
# _COMMON_COPTS; division and roots as IEEE 754 has them are nvcc's default.
_NVCC_FLAGS = " ".join([
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "-Werror all-warnings",
    "-gencode arch=compute_75,code=compute_75",
    "-gencode arch=compute_80,code=sm_80",
    "-gencode arch=compute_90,code=sm_90",
])

def choir_cuda_image(name, src, hdrs):
    """Kernels for GPUs, as a C file with the array `choir__<name>_image`.

    Only for --config=cuda: it needs the toolkit, under its standard prefix.

    Args:
      name: target name; that of the .cu file without its end.
      src: the .cu file.
      hdrs: what it includes.
    """
    native.genrule(
        name = name,
        srcs = [src] + hdrs,
        outs = [name + "_image.c"],
        cmd = " && ".join([
            "tools=/usr/local/cuda/bin",
            # nvcc names its files by its process's number, which is the same in
            # every sandbox, and sandboxes share /tmp.
            "rm -rf $@.tmp && mkdir $@.tmp",
            "TMPDIR=$@.tmp $$tools/nvcc %s -I. -fatbin -o $@.fatbin $(location %s)" %
            (_NVCC_FLAGS, src),
            "$$tools/bin2c --name choir__%s_image $@.fatbin |" % name +
            " sed 's/^unsigned char/_Alignas(64) const unsigned char/' >$@",
            "rm -r $@.fatbin $@.tmp",
        ]),
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )

_Sources = provider(fields = ["files"])

def _sources_aspect_impl(target, ctx):
    direct = []
    for name in ["srcs", "hdrs", "textual_hdrs"]:
        for source in getattr(ctx.rule.attr, name, []):
            direct += [
                file
                for file in source.files.to_list()
                if file.is_source and not file.owner.workspace_name
            ]
    deps = getattr(ctx.rule.attr, "deps", [])
    return [_Sources(files = depset(
        direct,
        transitive = [dep[_Sources].files for dep in deps if _Sources in dep],
    ))]

_sources_aspect = aspect(
    implementation = _sources_aspect_impl,
    attr_aspects = ["deps"],
)

def _choir_sources_impl(ctx):
    files = depset(transitive = [dep[_Sources].files for dep in ctx.attr.deps])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

# The source files of programs and libraries, and of all that they are made of, for
# tests that read them.
choir_sources = rule(
    implementation = _choir_sources_impl,
    attrs = {"deps": attr.label_list(aspects = [_sources_aspect])},
)

def choir_assert_no_dependency(name, target, forbidden):
    """A test that fails if target reaches a forbidden package or repository.

    Args:
      name: test name.
      target: absolute label.
      forbidden: label prefixes such as "//tensor" (that package and all below) or
        "@system//".
    """
    native.genquery(
        name = name + "_deps",
        testonly = True,
        expression = "deps(%s)" % target,
        opts = ["--noimplicit_deps"],
        scope = [target],
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["//tools:assert_no_dependency.sh"],
        args = ["$(rootpath :%s_deps)" % name, target] + forbidden,
        data = [":%s_deps" % name],
        tags = ["layering"],
    )
