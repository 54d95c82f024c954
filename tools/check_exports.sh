#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/check_exports.sh [--update]
# Compares what libchoir.so exports with docs/api/exports.txt, or writes that file
# anew; a change of the API so shows in review. A line with * at its end stands for
# all symbols that a list of ops, layers or optimizers makes; what begins like one
# and is not of the list has its own line. Also: libchoir.so needs neither MPI nor
# CUDA, and libchoir_mpi.so exports one symbol.
set -u
update=0
case ${1:-} in
  '') ;;
  --update) update=1 ;;
  *)
    echo "check_exports.sh: unknown argument '$1'; usage: tools/check_exports.sh [--update]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.." || exit 1
list=docs/api/exports.txt
bazel build --noshow_progress //:libchoir.so //:libchoir_mpi.so || exit 1
built=$(bazel info bazel-bin 2>/dev/null) || exit 1

exports_of() { nm -D --defined-only "$1" | awk '{ print $NF }' | LC_ALL=C sort; }
# A symbol without a line of its own becomes the line with * that it begins like.
mapfile -t families < <(sed -n 's/\*$//p' "$list")
fold() {
  while read -r symbol; do
    for family in ${families[@]+"${families[@]}"}; do
      [[ $symbol == "$family"* ]] && ! grep -qxF "$symbol" "$list" && symbol="$family*"
    done
    echo "$symbol"
  done | LC_ALL=C sort -u
}
now=$(exports_of "$built/libchoir.so" | fold) || exit 1
bad=0
if [ $update = 1 ]; then
  mkdir -p "$(dirname "$list")"
  printf '%s\n' "$now" >"$list"
elif ! changes=$(diff <(sed '/^$/d' "$list") <(printf '%s\n' "$now" | sed '/^$/d')); then
  echo "check_exports.sh: libchoir.so does not export what $list says (< listed, > exported):" >&2
  printf '%s\n' "$changes" | grep '^[<>]' >&2
  echo "If that is meant: tools/check_exports.sh --update" >&2
  bad=1
fi
if needed=$(readelf -d "$built/libchoir.so" |
  grep -E 'NEEDED.*(mpi|cuda|cudart|cublas|cudnn|nccl)'); then
  echo "check_exports.sh: libchoir.so must load without these:" >&2
  echo "$needed" >&2
  bad=1
fi
count=$(exports_of "$built/libchoir_mpi.so" | grep -c .)
if [ "$count" -gt 1 ]; then
  echo "check_exports.sh: libchoir_mpi.so exports $count symbols; one is meant:" >&2
  exports_of "$built/libchoir_mpi.so" >&2
  bad=1
fi
exit $bad
