#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Counts the lines of the layers that define and train a model: C, CUDA, lists and
# Python, generated files included, tests not.
#
# usage: tools/count_lines.sh [COMMIT]
#
# Prints a line for each folder and the total: of a commit, else of the working
# tree with its untracked files.
set -euo pipefail

cd "$(dirname "$0")/.."
total=0
for folder in core tensor autograd model opt python; do
  # Each file as "file:lines"; what git ignores is not counted.
  lines=$(git grep -Ic -e '' "${1:---untracked}" -- "$folder/*.[ch]" \
    "$folder/*.inc" "$folder/*.def" "$folder/*.cc" "$folder/*.cu" \
    "$folder/*.cuh" "$folder/*.py" ":!*_test.*" |
    awk -F: '{ sum += $NF } END { print sum }')
  printf '%-8s %6d\n' "$folder" "$lines"
  total=$((total + lines))
done
printf '%-8s %6d\n' total "$total"
