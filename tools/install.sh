#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bazel run //:install -- --prefix DIR [--destdir DIR]
# Puts headers, libraries, tools and choir.pc under PREFIX. With --destdir they
# go to DESTDIR/PREFIX, for whoever makes a package. The result can be moved.
set -euo pipefail

usage='usage: bazel run //:install -- --prefix DIR [--destdir DIR]'
die() {
  echo "install: $1" >&2
  exit "$2"
}

prefix='' destdir=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix=*) prefix=${1#*=} ;;
    --destdir=*) destdir=${1#*=} ;;
    --prefix | --destdir)
      [ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a folder; $usage" 2
      if [ "$1" = --prefix ]; then prefix=$2; else destdir=$2; fi
      shift
      ;;
    -h | --help)
      echo "$usage"
      exit 0
      ;;
    *) die "unknown argument '$1'; $usage" 2 ;;
  esac
  shift
done
[ -n "$prefix" ] || die "--prefix is missing; $usage" 2

# Relative to where `bazel run` was called, not to Bazel's own folder.
caller=${BUILD_WORKING_DIRECTORY:-$PWD}
absolute() {
  case $1 in
    /*) echo "$1" ;;
    *) echo "$caller/$1" ;;
  esac
}
prefix=$(absolute "$prefix")
root=$prefix
[ -z "$destdir" ] || root=$(absolute "$destdir")$prefix

version_part() {
  sed -n "s/^#define CHOIR_VERSION_$1 \([0-9]*\)$/\1/p" core/base.h
}
major=$(version_part MAJOR)
version=$major.$(version_part MINOR).$(version_part PATCH)

# The system's install: under `bazel test` this script comes first on PATH.
put() { command -p install "$@"; }

mkdir -p "$root" 2>/dev/null || die "cannot make the folder $root" 1
put -d "$root/include/choir" "$root/lib/pkgconfig"

# This script's folder in Bazel's terms holds exactly what //:install names.
while IFS= read -r header; do
  put -D -m 644 "$header" "$root/include/choir/${header#./}"
done < <(find -L . -name '*.h' -not -path './external/*')

put -m 755 libchoir.so "$root/lib/libchoir.so.$version"
ln -sf "libchoir.so.$version" "$root/lib/libchoir.so.$major"
ln -sf "libchoir.so.$major" "$root/lib/libchoir.so"
put -m 755 libchoir_mpi.so "$root/lib/libchoir_mpi.so"

cat >"$root/lib/pkgconfig/choir.pc" <<EOF
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: choir
Description: Data-parallel training of neural networks
Version: $version
Cflags: -I\${includedir}/choir
Libs: -L\${libdir} -lchoir
EOF

echo "install: Choir $version is in $root"
