#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh INSTALL EMBED_C
set -euo pipefail
install=$PWD/$1
embed=$PWD/$2
work=$(mktemp -d "$TEST_TMPDIR/install.XXXXXX")

fail() {
  echo "install_test: $1" >&2
  exit 1
}

# refuses STATUS WORDS ARGUMENT...: that status, and one line with those words.
refuses() {
  local want=$1 words=$2 status=0 said
  shift 2
  said=$("$install" "$@" 2>&1) || status=$?
  [ "$status" = "$want" ] || fail "'$*' gave status $status, not $want: $said"
  [ "$(printf '%s\n' "$said" | wc -l)" = 1 ] || fail "'$*' said: $said"
  [[ $said == *"$words"* ]] || fail "'$*' said '$said', without '$words'"
}
refuses 2 '--prefix is missing'
refuses 2 '--prefix needs a folder' --prefix
refuses 2 '--prefix needs a folder' --prefix ''
refuses 2 '--prefix is missing' --prefix=
refuses 2 "unknown argument '--prefx'" --prefx x
refuses 2 "unknown argument 'x'" x
refuses 2 "unknown argument 'y'" --prefix "$work/never" y
# A file where a folder must be stops root too.
: >"$work/file"
refuses 1 "cannot write below $work/file/sub: Not a directory" \
  --prefix "$work/file/sub"
mkdir -p "$work/half"
: >"$work/half/lib"
refuses 1 "cannot write below $work/half: " --prefix "$work/half"
[ ! -e "$work/never" ] || fail "a refused call left a folder"

# For a package: everything below DESTDIR, nothing in PREFIX itself.
"$install" --prefix /opt/choir_install_test --destdir "$work/package"
package=$work/package/opt/choir_install_test
[ -f "$package/include/choir/choir.h" ] || fail "no choir.h"
[ ! -e /opt/choir_install_test ] || fail "--destdir wrote into the prefix"

# A relative prefix counts from the caller's folder; the tree may be moved.
BUILD_WORKING_DIRECTORY=$work "$install" --prefix first
# Twice into the same place is the same tree.
find "$work/first" -printf '%P %y %l %m\n' | sort >"$work/once"
BUILD_WORKING_DIRECTORY=$work "$install" --prefix=first
find "$work/first" -printf '%P %y %l %m\n' | sort >"$work/twice"
diff "$work/once" "$work/twice" || fail "a second install changed the tree"
mv "$work/first" "$work/moved"
lib=$work/moved/lib
include=$work/moved/include/choir
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
cd "$work"

# The library's names: its soname, and the one for the linker.
version=$(pkg-config --modversion choir)
soname=libchoir.so.$(sed -n 's/^#define CHOIR_VERSION_SONAME //p' \
  "$include/core/base.h")
[ -f "$lib/$soname" ] || fail "no $soname"
[ "$(readlink "$lib/libchoir.so")" = "$soname" ] || fail "bad libchoir.so"
readelf -d "$lib/libchoir.so" | grep -qF "soname: [$soname]" ||
  fail "libchoir.so's own soname is not $soname"
[ -f "$lib/libchoir_mpi.so" ] || fail "no libchoir_mpi.so beside libchoir.so"

# choirrun finds its modules, and the library beside it.
[ "$("$work/moved/bin/choirrun" --version)" = "choirrun of Choir $version" ] ||
  fail "choirrun says $("$work/moved/bin/choirrun" --version)"
built=$("$work/moved/bin/choirrun" --check-build)
[[ $built == *"  Choir     $version, $lib/libchoir.so, sha256 "* ]] ||
  fail "choirrun --check-build says: $built"
[[ $built == *"  device    cpu: cpu kernels, "* ]] ||
  fail "choirrun --check-build names no cpu: $built"
# Of GPUs: a driver, or why there is none that will do; this library's kernels.
said() { grep -cE "^  $1" <<<"$built"; }
[ "$(said 'GPU       driver: (for CUDA [0-9]+\.[0-9]+$|no: cuda: .*; needs )')" = 1 ] ||
  fail "choirrun --check-build is not clear about a driver: $built"
[ "$(said 'GPU       kernels: (yes$|no: .* --config=cuda)')" = 1 ] ||
  fail "choirrun --check-build is not clear about kernels: $built"
[ "$(said 'backends  nccl: (2\.[0-9]+\.[0-9]+$|no: .*; needs NCCL )')" = 1 ] ||
  fail "choirrun --check-build is not clear about NCCL: $built"

# All of choir.h and nothing that is not meant for users.
sed -n 's/^#include "\(.*\)"$/\1/p' "$include/choir.h" | sort >meant
[ "$(wc -l <meant)" -gt 20 ] || fail "choir.h names too few headers"
(cd "$include" && find . -type f ! -path ./choir.h -printf '%P\n') |
  sort >there
diff meant there || fail "installed headers (>) are not those of choir.h (<)"

# Each header alone, as C11 and as C++17.
strict=(-fsyntax-only -Wall -Wextra -Wpedantic -Werror)
read -r -a cflags < <(pkg-config --cflags choir)
for header in choir.h $(cat there); do
  # A header of macros only would be an empty file otherwise.
  printf '#include <%s>\ntypedef int not_empty_t;\n' "$header" >alone.c
  cp alone.c alone.cc
  cc -std=c11 "${strict[@]}" "${cflags[@]}" alone.c ||
    fail "$header does not compile alone as C11"
  c++ -std=c++17 "${strict[@]}" "${cflags[@]}" alone.cc ||
    fail "$header does not compile alone as C++17"
done

# use OUTPUT SOURCE: a user's build.
use() {
  local flags
  read -r -a flags < <(pkg-config --cflags --libs choir)
  cc -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$1" "$2" "${flags[@]}" -lm
}
cat >version.c <<'EOF'
#include <choir.h>
#include <stdio.h>
int main(void) { return puts(choir_version()) < 0; }
EOF
use version version.c
[ "$(./version)" = "$version" ] ||
  fail "the library is $(./version), choir.pc says $version"

# The smallest real program.
lines=$(wc -l <"$embed")
[ "$lines" -le 60 ] || fail "$embed has $lines lines; at most 60 are meant"
use embed "$embed"
said=$(./embed) || fail "the program made from $embed failed"
[[ $said =~ ^2[45][0-9]\ of\ 256\ right$ ]] || fail "$embed said: $said"
