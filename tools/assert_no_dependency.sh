#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# assert_no_dependency.sh DEPS_FILE TARGET FORBIDDEN...
# Fails if a label in DEPS_FILE lies in a package that begins with a FORBIDDEN
# prefix. TARGET itself must be in the list, so that an empty one is no pass.
set -u
deps=$1
target=$2
shift 2

if ! grep -qxF "$target" "$deps"; then
  echo "$target is not in its own list of dependencies: the query went wrong" >&2
  exit 1
fi
bad=0
for prefix in "$@"; do
  if found=$(awk -v p="$prefix" '
      index($0, p) == 1 {
        next_char = substr($0, length(p) + 1, 1)
        if (p ~ /[\/:]$/ || next_char ~ /^[\/:]?$/) { print "  " $0; hit = 1 }
      }
      END { exit !hit }' "$deps"); then
    echo "$target may not depend on $prefix but reaches:" >&2
    echo "$found" >&2
    bad=1
  fi
done
exit "$bad"
