#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/format.sh [--fix] [FILE...]
# Checks the layout of C, C++, CUDA and Python files, or with --fix changes it.
# Without files: all of the tree.
set -u
fix=0
files=()
for arg in "$@"; do
  case $arg in
    --fix) fix=1 ;;
    -*)
      echo "format.sh: unknown flag '$arg'; usage: tools/format.sh [--fix] [FILE...]" >&2
      exit 2
      ;;
    *) files+=("$(realpath -- "$arg")") ;;
  esac
done
cd "$(dirname "$0")/.." || exit 1
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files -co --exclude-standard |
    while read -r file; do [ -f "$file" ] && echo "$file"; done)
fi
for tool in clang-format-14 black; do
  if ! command -v "$tool" >/dev/null; then
    echo "format.sh: $tool is missing; ./bootstrap --ci installs it on Debian 12" >&2
    exit 1
  fi
done

c_files=() py_files=()
for file in "${files[@]}"; do
  case $file in
    # Not lists (.def): a formula in one would be taken for a declaration.
    *.c | *.cc | *.h | *.cu | *.cuh | *.inc) c_files+=("$file") ;;
    *.py) py_files+=("$file") ;;
  esac
done

bad=0
if [ ${#c_files[@]} -gt 0 ]; then
  if [ $fix = 1 ]; then
    printf '%s\0' "${c_files[@]}" |
      xargs -0 -n 16 -P "$(nproc)" clang-format-14 -i || bad=1
  else
    wrong=$(printf '%s\n' "${c_files[@]}" | xargs -n 1 -P "$(nproc)" sh -c '
      clang-format-14 "$1" | cmp -s - "$1" || echo "  $1"' sh)
    if [ -n "$wrong" ]; then
      echo "format.sh: not as clang-format would write them:" >&2
      echo "$wrong" | sort >&2
      bad=1
    fi
  fi
fi
if [ $fix = 1 ]; then py_mode=(); else py_mode=(--check); fi
if [ ${#py_files[@]} -gt 0 ]; then
  black --quiet --line-length 80 "${py_mode[@]}" "${py_files[@]}" || {
    echo "format.sh: Python files are not as black would write them" >&2
    bad=1
  }
fi
[ $bad = 0 ] || echo "format.sh: run tools/format.sh --fix" >&2
exit $bad
