#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bootstrap_test.sh BOOTSTRAP
# Runs bootstrap with a PATH that holds a few programs only: no dpkg, or stand-ins
# for dpkg, apt-get and sudo that write down how they were called.
set -euo pipefail
bootstrap=$PWD/$1
work=$(mktemp -d "$TEST_TMPDIR/bootstrap.XXXXXX")
cd "$work"

fail() {
  echo "bootstrap_test: $1" >&2
  cat said >&2
  exit 1
}

# machine [LINE...]: an empty one, with the programs that every Unix has and these
# lines in /etc/os-release; those of Debian 12 if none is given.
machine() {
  rm -rf bin log
  mkdir bin
  : >log
  [ $# -gt 0 ] || set -- 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"' ID=debian 'VERSION_ID="12"'
  printf '%s\n' "$@" >os-release
  for tool in sh sed env cat; do ln -s "$(command -v "$tool")" "bin/$tool"; done
}
# fake NAME BODY: a program that logs its call and then does BODY.
fake() {
  printf '#!/bin/sh\necho "%s $*" >>"%s"\n%s\n' "$1" "$work/log" "$2" >"bin/$1"
  chmod +x "bin/$1"
}
# debian INSTALLED_FILTER [LINE...]: a Debian where dpkg-query says of each package
# it is asked about that it is there, through a sed filter.
debian() {
  machine "${@:2}"
  fake dpkg-query "shift 3
    for name; do echo \"installed \$name\"; done | sed '$1'"
  fake apt-get ''
  fake id 'echo 0'
  fake sleep ''
}
# try STATUS ARGUMENT...
try() {
  local want=$1 status=0
  shift
  PATH=$work/bin CHOIR_OS_RELEASE=$work/os-release "$bootstrap" "$@" >said 2>&1 || status=$?
  [ "$status" = "$want" ] || fail "'$*' gave status $status, not $want"
}
says() { grep -qF -- "$1" said || fail "did not say '$1'"; }
called() { grep -qF -- "$1" log || fail "did not call '$1' but: $(cat log)"; }
not_called() { ! grep -qF -- "$1" log || fail "called '$1': $(cat log)"; }

# Another system: names what is needed by its names, installs nothing, runs nothing.
# other NAME... : of these each has a line with a reason.
other() {
  fake command_given ''
  try 1 command_given
  says 'nothing was installed'
  for name; do
    grep -qE "^  $name: [^ ]" said || fail "did not name $name and why"
  done
  ! grep -qi 'clang' said || fail "named what only CI needs"
  not_called command_given
}
machine ID=void
other bazel-bootstrap libdnnl-dev libopenmpi-dev python3-numpy gcc 'g\+\+'
says 'by the names of Debian 12'
try 1 --ci command_given
says '  clang: '
says 'only Debian 12 is known to have'
! grep -q '^  clang-tidy-14' said || fail "named what this system has not"
not_called command_given
machine 'PRETTY_NAME="Fedora Linux 43"' ID=fedora VERSION_ID=43
other onednn-devel openmpi-devel gtest-devel gcc 'gcc-c\+\+' cjson-devel protobuf-c-devel \
  libsodium-devel
says 'Fedora Linux 43 has no dpkg'
says 'by the names of Fedora'
says '  no package known (Debian: bazel-rules-java): rules that Bazel loads'
machine ID=manjaro ID_LIKE=arch
other bazel onednn openmpi gtest python-numpy
says 'by the names of Arch'
# No /etc/os-release at all.
machine
rm os-release
other bazel-bootstrap

# Debian 12 has both linters of the C code, and 13 does not: it goes on without.
machine
fake dpkg-query 'shift 3; for name; do echo "asked for $name"; done >&2'
fake apt-get ''
fake id 'echo 0'
try 0 --ci
called clang-tidy-14
! grep -q 'only Debian 12' said || fail "spoke of Debian 12 on Debian 12"
debian '' 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"' ID=debian 'VERSION_ID="13"'
try 0 --ci
says 'only Debian 12 is known to have'
not_called clang-tidy-14
called debootstrap
not_called apt-get

# Ubuntu has Debian's names: tried, and said to be no more than that.
debian '/gcc/d' 'PRETTY_NAME="Ubuntu 24.04.3 LTS"' ID=ubuntu ID_LIKE=debian 'VERSION_ID="24.04"'
fake command_given ''
try 0 command_given
says 'not on Ubuntu 24.04.3 LTS'
called 'apt-get -q install -y --no-install-recommends gcc'
called command_given

# Everything is there: the command and its status, no word, nothing called twice.
debian ''
fake command_given 'exit 7'
try 7 command_given 'a b' --ci -x
[ ! -s said ] || fail "spoke although all is there"
called 'command_given a b --ci -x'
not_called apt-get
[ "$(grep -c dpkg-query log)" = 1 ] || fail "asked dpkg more than once"
try 0
try 0 --help
says usage

# Some are missing: these are named with a reason and installed, then the command.
debian '/zlib1g-dev/d; s/^installed g++$/config-files g++/'
fake command_given ''
try 0 command_given x
says '  g++: '
says '  zlib1g-dev: compressed data sets'
! grep -q 'was tried' said || fail "doubts Debian 12"
! grep -q '  gcc: ' said || fail "named gcc, which is there"
called 'apt-get -q update'
called 'apt-get -q install -y --no-install-recommends g++ zlib1g-dev'
[ "$(tail -n 1 log)" = 'command_given x' ] || fail "the command did not come last"

# A mirror that answers wrongly once is asked again; twice is the end.
debian '/gcc/d'
fake command_given ''
fake apt-get 'case $2 in update) [ -e once ] || { : >once; exit 100; } ;; esac'
try 0 command_given
[ "$(grep -c 'apt-get -q update' log)" = 2 ] || fail "update was not tried again"
called command_given
debian '/gcc/d'
fake command_given ''
fake apt-get 'exit 100'
try 1 command_given
says 'apt-get update failed twice'
not_called command_given
fake apt-get 'case $2 in install) exit 100 ;; esac'
try 1 command_given
says 'could not install: gcc'
not_called command_given

# Not root: through sudo, or a sentence that names the packages.
debian '/gcc/d'
fake command_given ''
fake id 'echo 1000'
try 1 command_given
says 'must be root (or have sudo) to install: gcc'
not_called apt-get
not_called command_given
fake sudo '"$@"'
try 0 command_given
called 'sudo env DEBIAN_FRONTEND=noninteractive apt-get -q install'
called command_given

try 2 --bogus
says "unknown flag '--bogus'"
