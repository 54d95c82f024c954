#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# assert_no_dependency_test.sh CHECKER DEPS_OF_MODEL
set -u
checker=$1
deps_of_model=$2
list=$TEST_TMPDIR/deps
printf '%s\n' //core:core //core:base.h //tensor/ops:gelu @system//:openmpi >"$list"

expect() { # STATUS ARGUMENT...
  want=$1
  shift
  "$checker" "$list" "$@" >/dev/null 2>&1
  got=$?
  if [ $got != "$want" ]; then
    echo "checker $*: status $got, expected $want" >&2
    exit 1
  fi
}

expect 0 //core:core //opt //ten //core/base @cuda//
expect 1 //core:core //tensor
expect 1 //core:core //opt //tensor
expect 1 //core:core @system//
expect 1 //core:core //core:base.h
# A list without its own target tells of a broken query, not of a clean layer.
expect 1 //opt:opt //dist

# What Bazel wrote for a real target: model reaches tensor through autograd too,
# oneDNN through tensor, and not opt.
list=$deps_of_model
expect 0 //model:model //opt
expect 1 //model:model //tensor
expect 1 //model:model //opt //third_party:dnnl
