"""Stand-in for rules_cc: hands out the rules that are built into Bazel.

Debian's own bazel-rules-cc does not load in the Bazel that Debian ships.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_profile = native.fdo_profile
objc_library = native.objc_library
