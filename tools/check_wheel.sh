#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/check_wheel.sh [--suite SUITE]... [WHEEL]
# The portable wheel as a user has it: in an empty virtual environment of a bare Debian
# two workers train on MNIST, twice, with the accuracy that is due and the same digest;
# without Open MPI `mpi` says what is missing, with Debian's it trains to that digest
# too. SUITEs as of tools/clean_room.sh, which makes the systems; trixie if none is
# given. Without WHEEL one is made, twice, with the same bytes. Needs root, debootstrap
# and a network.
set -euo pipefail

die() {
  echo "check_wheel.sh: $1" >&2
  exit "${2:-1}"
}

# In the bare system, beside the wheel, the scripts and their data.
inside() {
  local python=/tmp/venv/bin/python accuracy digest said status=0
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install --no-install-recommends python3-venv >/dev/null
  ! ldconfig -p | grep -E 'lib(OpenCL|cjson|dnnl|gomp|mpi|protobuf-c|sodium)\.' ||
    die "this system is not bare: it has libraries that the wheel must bring"
  python3 -m venv /tmp/venv
  /tmp/venv/bin/pip --disable-pip-version-check install ./choir-*.whl
  $python -m choir --check-build | tee built
  grep -q 'its libraries: of the package' built || die "the wheel is not portable"
  grep -q 'communicator shm: yes' built || die "shm is not there"
  grep -q 'communicator mpi: no (.*libmpi.*; it needs Open MPI' built ||
    die "mpi does not say what it lacks"

  train=(python/train_mpi.py --epochs 1 --data mnist)
  $python -m choir -np 2 "${train[@]}" | tee first
  $python -m choir -np 2 "${train[@]}" | tee second
  accuracy=$(sed -n 's/^Evaluation accuracy = \([0-9.]*\),.*/\1/p' first)
  awk "BEGIN { exit !(${accuracy:-0} > 0.96) }" ||
    die "the accuracy is ${accuracy:-not there}, not above 0.96"
  digest=$(grep '^digest = ' first) || die "there is no digest"
  grep -qxF "$digest" second || die "the second run has another digest"

  said=$(CHOIR_COMM=mpi $python "${train[@]}" 2>&1) || status=$?
  [ $status = 1 ] && grep 'comm mpi: .*libmpi.*; it needs Open MPI' <<<"$said" ||
    die "mpi without Open MPI ended with status $status: $said"
  apt-get -qq install --no-install-recommends openmpi-bin >/dev/null
  $python -m choir --check-build | grep 'communicator mpi: yes' ||
    die "the plugin does not load with this system's Open MPI"
  CHOIR_COMM=mpi OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpiexec -n 2 "$python" "${train[@]}" | tee third
  grep -qxF "$digest" third || die "mpi has another digest"
  echo "check_wheel.sh: $(python3 --version), accuracy $accuracy, $digest"
}
if [ "${1:-}" = --inside ]; then
  inside
  exit
fi

usage='usage: tools/check_wheel.sh [--suite bookworm|trixie]... [WHEEL]'
suites=() wheel=
while [ $# -gt 0 ]; do
  case $1 in
    --suite)
      [ $# -gt 1 ] || die "--suite needs a SUITE; $usage" 2
      suites+=("$2")
      shift
      ;;
    -* | '') die "unknown flag '$1'; $usage" 2 ;;
    *)
      [ -z "$wheel" ] || die "one WHEEL, not also '$1'; $usage" 2
      wheel=$(realpath -e "$1") || exit 2
      ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
work=$(mktemp -d)
child=
finish() {
  trap '' INT TERM HUP
  # clean_room.sh takes its room away by itself.
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null || :
  wait
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# run COMMAND...: in the background, so that a signal is dealt with at once, and in a
# process group of its own, so that finish ends all of it.
run() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child"
  child=
}

if [ -z "$wheel" ]; then
  run tools/portable_wheel.sh "$work"
  wheel=$(echo "$work"/choir-*.whl)
  run tools/portable_wheel.sh "$work/again"
  cmp "$wheel" "$work/again/${wheel##*/}" || die "the same tree made another wheel"
fi
size=$(stat -c %s "$wheel")
echo "check_wheel.sh: ${wheel##*/}, $((size / 1000000)) MB"
[ "$size" -le 40000000 ] || die "the wheel is larger than 40 MB"
for suite in "${suites[@]:-trixie}"; do
  run tools/clean_room.sh --suite "$suite" --with "$wheel" \
    --with tools/check_wheel.sh --with examples/python --with examples/data/mnist \
    "$work/room" ./check_wheel.sh --inside
done
