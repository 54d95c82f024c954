#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/lint.sh [FILE...]
# Rules of the tree that no compiler checks, pyflakes and shellcheck over scripts,
# and clang-tidy over C files (all of them, or those named). What clang-tidy found
# clean is remembered by its preprocessed text, so that a second run takes seconds.
set -u
case ${1:-} in
  -*)
    echo "lint.sh: unknown flag '$1'; usage: tools/lint.sh [FILE...]" >&2
    exit 2
    ;;
esac
named=()
for arg in "$@"; do named+=("$(realpath --relative-to "$(dirname "$0")/.." -- "$arg")"); done
cd "$(dirname "$0")/.." || exit 1
for tool in clang-tidy-14 clang protoc-c pyflakes3 shellcheck; do
  if ! command -v "$tool" >/dev/null; then
    echo "lint.sh: $tool is missing; ./bootstrap --ci installs it on Debian 12" >&2
    exit 1
  fi
done
mapfile -t all < <(git ls-files -co --exclude-standard |
  while read -r file; do [ -f "$file" ] && echo "$file"; done)

bad=0
# complain WHAT LINES: one finding of the rules below, if there is any.
complain() {
  [ -n "$2" ] || return 0
  echo "lint.sh: $1:" >&2
  printf '%s\n' "$2" | sed 's/^/  /' >&2
  bad=1
}
# pick REGEX: those of all files whose path matches.
pick() { printf '%s\n' "${all[@]}" | grep -E "$1"; }

# One name, one file, so that a name in a log or a review is enough. Files that
# each folder has by custom are no exception worth telling.
custom='(^|/)(BUILD|BUILD\.bazel|WORKSPACE|README\.md|known_gaps\.def|kernels\.def|__init__\.py|\.gitignore|SHA256SUMS)$'
complain "file names that occur twice" "$(
  printf '%s\n' "${all[@]}" | grep -vE "$custom" | sed 's:.*/::' | sort | uniq -d
)"

complain "first line is not '// SPDX-License-Identifier: Apache-2.0'" "$(
  pick '\.(c|cc|h|cu|cuh|def|inc)$' | while read -r file; do
    read -r first <"$file"
    [ "$first" = '// SPDX-License-Identifier: Apache-2.0' ] || echo "$file"
  done
)"

complain "no '# SPDX-License-Identifier: Apache-2.0' in the first two lines" "$(
  pick '\.(py|sh|toml)$|^bootstrap$|^\.ci/run$' | while read -r file; do
    head -n 2 "$file" | grep -qxF '# SPDX-License-Identifier: Apache-2.0' ||
      echo "$file"
  done
)"

complain "tabs" "$(
  pick '\.(c|cc|h|cu|cuh|def|inc|py|bzl|sh|md|rc|toml)$|(^|/)BUILD$' |
    xargs -r grep -lP '\t'
)"

complain "spaces at the end of a line" "$(
  pick '\.(c|cc|h|cu|cuh|def|inc|py|bzl|sh|toml)$|(^|/)BUILD$' |
    xargs -r grep -nE ' +$' | cut -c1-100
)"

complain "a path or host of one machine" "$(
  pick '.' | grep -vE '^(LICENSE|examples/data/)' |
    xargs -r grep -InE '(^|[^A-Za-z0-9_.>/-])/(work|home|root|Users|farm)/|pypi[.]org|deb[.]debian[.]org' | cut -c1-160
)"

complain "links to files that are not there" "$(
  pick '\.md$' | while read -r file; do
    grep -oP '\]\(\K[^)#:]+(?=[)#])' "$file" | while read -r link; do
      [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
    done
  done
)"

# What clang-format does not break: lists, which it does not see, and comments. A
# text may be longer.
complain "lines of more than 80 columns" "$(
  pick '\.(c|cc|h|cu|cuh|def|inc)$' |
    xargs -r grep -nE '^.{81}' | grep -v '"' | cut -c1-160
)"

# The layers' public headers, all of them through the one that users include.
complain "public headers that choir.h does not include" "$(
  pick '^(core|tensor|autograd|model|onnx|opt|dist|io)/[^/]*\.h$' |
    grep -vE '_(internal|backend|def|rule)\.h$' | while read -r file; do
    grep -qxF "#include \"$file\"" choir.h || echo "$file"
  done
)"

mapfile -t py_files < <(pick '\.py$')
if [ ${#py_files[@]} -gt 0 ]; then
  complain "pyflakes" "$(pyflakes3 "${py_files[@]}" 2>&1)"
fi

mapfile -t shell_files < <(pick '\.sh$|^bootstrap$|^\.ci/run$')
complain "shellcheck" "$(shellcheck --severity=warning --format=gcc "${shell_files[@]}")"

# The same flags as in tools/choir.bzl, as far as they change meaning.
mpi=$(ls -d /usr/lib/*/openmpi/include 2>/dev/null | head -n 1)
base_flags=(-std=c11 -D_GNU_SOURCE -I. -w ${mpi:+-isystem "$mpi"})
cache=${XDG_CACHE_HOME:-$HOME/.cache}/choir-lint
mkdir -p "$cache/schema/onnx"
# The header that the build makes of ONNX's schema.
protoc-c --proto_path=onnx --c_out="$cache/schema/onnx" onnx/onnx.proto || bad=1
base_flags+=(-isystem "$cache/schema")

# Every header names what it needs, private ones too; those of tests are C++.
alone() {
  local language=(-x c -std=c11)
  case $1 in tests/*) language=(-x c++ -std=c++17) ;; esac
  clang -fsyntax-only "${base_flags[@]:1}" "${language[@]}" "$1" 2>/dev/null ||
    echo "$1"
}
complain "headers that do not compile alone" "$(
  pick '\.h$' | while read -r file; do alone "$file"; done
)"

tidy() {
  local file=$1 flags=("${base_flags[@]}") key output
  case $file in
    *_avx2.c) flags+=(-mavx2 -mfma -mf16c) ;;
    *_avx512.c)
      flags+=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
      ;;
  esac
  key=$({
    cat .clang-tidy
    echo "${flags[@]}"
    clang "${flags[@]}" -E -C "$file" 2>&1
  } | sha256sum | cut -c1-40)
  [ -e "$cache/$key" ] && return 0
  if output=$(clang-tidy-14 --quiet "$file" -- "${flags[@]}" 2>/dev/null); then
    : >"$cache/$key"
    return 0
  fi
  # The analyser's path to each finding is long; shown for files asked for by name.
  if [ ${#named[@]} -gt 0 ]; then
    printf '%s\n' "$output" >&2
  else
    printf '%s\n' "$output" | grep -E ': (error|warning): ' | sed "s:^$PWD/::" >&2
  fi
  return 1
}

if [ ${#named[@]} -gt 0 ]; then
  c_files=()
  for file in "${named[@]}"; do
    [[ $file == *.c ]] && c_files+=("$file")
  done
else
  mapfile -t c_files < <(pick '\.c$')
fi
jobs_left=$(nproc)
pids=()
for file in ${c_files[@]+"${c_files[@]}"}; do
  tidy "$file" &
  pids+=($!)
  if [ ${#pids[@]} -ge "$jobs_left" ]; then
    wait "${pids[0]}" || bad=1
    pids=("${pids[@]:1}")
  fi
done
for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" || bad=1; done

[ $bad = 0 ] && echo "lint.sh: ${#all[@]} files, ${#c_files[@]} of them through clang-tidy: clean"
exit $bad
