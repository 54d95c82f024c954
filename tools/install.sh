#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bazel run //:install -- --prefix DIR [--destdir DIR]
# Puts the public headers, the libraries, choir.pc and choirrun under PREFIX. With --destdir
# they go to DESTDIR/PREFIX, for whoever makes a package. The result can be moved.
# Where PREFIX is root's: bazel build //:install, then
# sudo bazel-bin/install --prefix DIR.
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

# Relative to where the caller stands, not to Bazel's own folder.
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

# Bazel's folder for this script holds exactly what //:install names: beside it
# when it was built, around it in a test.
if [ -d "$0.runfiles/choir" ]; then
  cd "$0.runfiles/choir"
else
  cd "$(dirname "$0")"
fi
[ -e libchoir.so ] && [ -e core/base.h ] ||
  die "libchoir.so and the headers are not beside $0; $usage" 1

version_part() {
  sed -n "s/^#define CHOIR_VERSION_$1 \([0-9]*\)$/\1/p" core/base.h
}
version=$(version_part MAJOR).$(version_part MINOR).$(version_part PATCH)
soname=libchoir.so.$(version_part SONAME)

# do_or_die COMMAND...: its complaint becomes the reason in one sentence.
do_or_die() {
  local why
  why=$("$@" 2>&1) || die "cannot write below $root: ${why##*: }" 1
}
# The system's install: under `bazel test` this script comes first on PATH.
put() { do_or_die command -p install "$@"; }

do_or_die mkdir -p "$root/include/choir" "$root/lib/pkgconfig"
while IFS= read -r header; do
  put -D -m 644 "$header" "$root/include/choir/${header#./}"
done < <(find -L . -name '*.h' -not -path './external/*')

put -m 755 libchoir.so "$root/lib/$soname"
do_or_die ln -sf "$soname" "$root/lib/libchoir.so"
put -m 755 libchoir_mpi.so "$root/lib/libchoir_mpi.so"

# Its modules are no commands of their own.
put -D -m 755 tools/choirrun/choirrun.py "$root/bin/choirrun"
for module in tools/choirrun/*.py; do
  [ "${module##*/}" = choirrun.py ] ||
    put -D -m 644 "$module" "$root/lib/choirrun/${module##*/}"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/choir.pc" <<EOF
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: choir
Description: Data-parallel training of neural networks
Version: $version
Cflags: -I\${includedir}/choir
Libs: -L\${libdir} -lchoir
EOF
put -m 644 "$work/choir.pc" "$root/lib/pkgconfig/choir.pc"

echo "install: Choir $version is in $root"
