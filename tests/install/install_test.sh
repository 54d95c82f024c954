#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh INSTALL
set -euo pipefail
install=$PWD/$1
embed=examples/embed.c
here=$PWD
work=$(mktemp -d "$TEST_TMPDIR/install.XXXXXX")

fail() {
  echo "install_test: $1" >&2
  exit 1
}

# A wrong call: status 2 and one line that says what.
for wrong in '' '--prefix' '--prefx x' 'x'; do
  status=0
  # Unquoted: several words on purpose.
  # shellcheck disable=SC2086
  said=$("$install" $wrong 2>&1) || status=$?
  [ "$status" = 2 ] || fail "'$wrong' gave status $status, not 2"
  [ "$(printf '%s\n' "$said" | wc -l)" = 1 ] || fail "'$wrong' said: $said"
done

# For a package: everything below DESTDIR, nothing in PREFIX itself.
"$install" --prefix /opt/choir --destdir "$work/package"
[ -f "$work/package/opt/choir/include/choir/choir.h" ] || fail "no choir.h"
[ "$(readlink "$work/package/opt/choir/lib/libchoir.so")" = libchoir.so.0 ] ||
  fail "libchoir.so is no link to its soname"

# A relative prefix counts from the caller's folder; the tree may be moved.
BUILD_WORKING_DIRECTORY=$work "$install" --prefix first
mv "$work/first" "$work/moved"
export PKG_CONFIG_PATH=$work/moved/lib/pkgconfig
export LD_LIBRARY_PATH=$work/moved/lib
[ -e "$work/moved/lib/libchoir_mpi.so" ] || fail "no libchoir_mpi.so beside it"

cat >"$work/version.c" <<'EOF'
#include <choir.h>
#include <stdio.h>
int main(void) { return puts(choir_version()) < 0; }
EOF
cd "$work"
# Unquoted: flags are words.
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror -o version version.c $(pkg-config --cflags --libs choir)
[ "$(./version)" = "$(pkg-config --modversion choir)" ] ||
  fail "the library is $(./version), choir.pc says $(pkg-config --modversion choir)"

if [ -f "$here/$embed" ]; then
  lines=$(wc -l <"$here/$embed")
  [ "$lines" -le 60 ] || fail "$embed has $lines lines; at most 60 are meant"
  # shellcheck disable=SC2046
  cc -std=c11 -Wall -Wextra -Werror -o embed "$here/$embed" $(pkg-config --cflags --libs choir) -lm
  ./embed || fail "the program made from $embed failed"
fi
