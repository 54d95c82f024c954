#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/arm64.sh FOLDER
# Builds mnist_dist, cifar and gpt_dist for arm64 with Debian's cross compiler, into
# FOLDER. They run on such a machine, or here where the kernel hands them to QEMU
# (binfmt_misc): it is how docs/reproducible.md was compared. Needs
# gcc-aarch64-linux-gnu, qemu-user-static and, of arm64, libdnnl2, libsodium23,
# zlib1g-dev, libcjson-dev, libgomp1; headers of the others are those of this machine.
set -eu
if [[ $# != 1 || $1 == -* ]]; then
  echo "arm64.sh: give a folder; usage: tools/arm64.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1/objects" "$1/lib"
out=$(realpath "$1")
cd "$(dirname "$0")/.."
programs=(mnist_dist cifar gpt_dist)
compiler=aarch64-linux-gnu-gcc
libraries=/usr/lib/aarch64-linux-gnu

# What decides bits stands in one place.
mapfile -t flags < <(sed -n '/^_COMMON_COPTS/,/^]/s/^ *"\(-f.*\)",$/\1/p' tools/choir.bzl)
flags+=(-std=c11 -D_GNU_SOURCE -DNDEBUG -O3 -fopenmp -fPIC -ffunction-sections -I.)

# ONNX and Open MPI are left out: the programs do not need them.
mapfile -t sources < <(
  bazel query --noshow_progress "filter('\\.c\$', kind('source file', deps(
    set(${programs[*]/#///examples:}))))" 2>/dev/null |
    sed -n 's|^//||; s|:|/|p' | grep -vE '^(onnx|tools)/|mpi_plugin' | sort -u
)
[[ ${#sources[@]} -gt 0 ]] || { echo "arm64.sh: bazel query found no sources" >&2; exit 1; }
compile() { "$compiler" "${@:2}" -c "$1" -o "$out/objects/${1//\//_}.o"; }
export -f compile
export compiler out
printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -I{} bash -c 'compile "$@"' bash {} "${flags[@]}"

# Their development packages cannot be beside this machine's.
ln -sf "$libraries"/libdnnl.so.2 "$out/lib/libdnnl.so"
ln -sf "$libraries"/libsodium.so.23 "$out/lib/libsodium.so"
others=()
for source in "${sources[@]}"; do
  case $source in
    examples/mnist_dist.c | examples/cifar.c | examples/gpt_dist.c) ;;
    *) others+=("$out/objects/${source//\//_}.o") ;;
  esac
done
for program in "${programs[@]}"; do
  "$compiler" -fopenmp -o "$out/$program" "$out/objects/examples_$program.c.o" \
    "${others[@]}" -L"$out/lib" -ldnnl -lsodium -lz -lcjson -lm -Wl,--gc-sections \
    -Wl,-rpath-link="$libraries"
done
echo "arm64.sh: ${programs[*]} are in $out"
