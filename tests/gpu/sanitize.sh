#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/sanitize.sh TOOL PROGRAM [ARGUMENT]...
# Runs a test program under NVIDIA's compute-sanitizer: TOOL is memcheck (bad
# addresses, leaks of the GPU's memory), racecheck (races in shared memory),
# initcheck or synccheck. Exit status: the program's, 86 if the tool found
# something, 3 if this machine has no compute-sanitizer.
#
#   tests/gpu/sanitize.sh memcheck bazel-bin/tests/conformance/op_suite_others \
#     '--gtest_filter=*/cuda_*'
set -eu
case ${1:-} in
  memcheck | racecheck | initcheck | synccheck) ;;
  *)
    echo "sanitize.sh: '${1:-}' is no tool; usage: sanitize.sh memcheck|racecheck|initcheck|synccheck PROGRAM [ARGUMENT]..." >&2
    exit 2
    ;;
esac
[ $# -ge 2 ] || {
  echo "sanitize.sh: there is no program to run" >&2
  exit 2
}
tool=$1
shift

sanitizer=
for place in "$(command -v compute-sanitizer || true)" \
  /usr/local/cuda/bin/compute-sanitizer \
  /usr/local/cuda/compute-sanitizer/compute-sanitizer; do
  if [ -x "$place" ]; then
    sanitizer=$place
    break
  fi
done
[ -n "$sanitizer" ] || {
  echo "sanitize.sh: this machine has no compute-sanitizer, which comes with the CUDA toolkit" >&2
  exit 3
}
set -- --tool "$tool" --error-exitcode 86 --target-processes all "$@"
[ "$tool" != memcheck ] || set -- --leak-check full "$@"
exec "$sanitizer" "$@"
