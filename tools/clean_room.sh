#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/clean_room.sh [--keep] FOLDER [COMMAND [ARGUMENT]...]
# Makes a bare Debian 12 (minbase with git, nothing else) in FOLDER, which must not
# exist or be empty, clones the last commit of this tree into it and runs COMMAND in
# the clone; `./bootstrap bazel test //...` if none is given. The status is that of
# COMMAND. Needs root and debootstrap. --keep leaves FOLDER with what bootstrap
# installed; a second run then takes another clone into the same system.
#
# Mounts and processes live in namespaces of their own, so that nothing of them can
# be left behind: not after a failure, not after Ctrl-C.
set -euo pipefail

die() {
  echo "clean_room.sh: $1" >&2
  exit "${2:-1}"
}

# Second half: inside the namespaces, as their first process.
if [ "${1:-}" = --inside ]; then
  room=$2
  shift 2
  mount --bind "$room" "$room"
  cd "$room"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount --rbind /dev dev
  mount -t tmpfs tmpfs dev/shm
  mkdir -p old_root
  # Not chroot: in one, the kernel refuses what Bazel's sandbox is built from.
  pivot_root . old_root
  umount -l /old_root
  rmdir /old_root
  cd /srv/choir
  exec env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+http_proxy="$http_proxy"} \
    ${https_proxy:+https_proxy="$https_proxy"} "$@"
fi

usage='usage: tools/clean_room.sh [--keep] FOLDER [COMMAND [ARGUMENT]...]'
keep=0
if [ "${1:-}" = --keep ]; then
  keep=1
  shift
fi
[ $# -ge 1 ] || die "FOLDER is missing; $usage" 2
case $1 in -* | '') die "unknown flag '$1'; $usage" 2 ;; esac
[ "$(id -u)" = 0 ] || die "must be root, for debootstrap and mounts"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
script=$(realpath "$0")
repository=$(dirname "$script")/..
room=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- ./bootstrap bazel test //...
# Marks a folder that this script filled, and that it so may remove.
mark=etc/choir_clean_room
[ ! -e "$room" ] || [ -e "$room/$mark" ] ||
  { [ -d "$room" ] && [ -z "$(ls -A "$room")" ]; } ||
  die "$room is neither empty nor a clean room"

child=
log=$(mktemp)
finish() {
  local status=$?
  trap '' INT TERM HUP
  if [ -n "$child" ]; then
    kill -KILL "$child" 2>/dev/null || :
    wait "$child" 2>/dev/null || :
  fi
  rm -f "$log"
  [ $keep = 1 ] && [ -e "$room/$mark" ] || rm -rf --one-file-system "$room"
  exit $status
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# contained COMMAND...: with mounts and processes that end with it. In the
# background, so that a signal is dealt with at once; --kill-child takes everything
# inside along.
contained() {
  local status=0
  unshare --mount --pid --fork --kill-child --propagation private "$@" </dev/null &
  child=$!
  wait "$child" || status=$?
  child=''
  return $status
}

if [ ! -e "$room/$mark" ]; then
  # The mirror that this machine uses.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Codename: bookworm' 'Component: main' | head -n 1)
  [ -n "$mirror" ] || die "apt knows no mirror of Debian 12 (bookworm) here"
  echo "clean_room.sh: a bare Debian 12 in $room"
  contained debootstrap --variant=minbase --include=git,ca-certificates bookworm \
    "$room" "$mirror" >"$log" 2>&1 || die "debootstrap failed: $(tail -n 3 "$log")"
  rm -f "$log"
  # Where to fetch from and through which proxy; no other habit of this machine.
  rm -f "$room/etc/apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [ -f "$file" ] && cp "$file" "$room/${file#/}"
  done
  apt-config dump | grep -E '^Acquire::(http|https)::' \
    >"$room/etc/apt/apt.conf.d/99network" || true
  cp /etc/resolv.conf "$room/etc/resolv.conf"
  cp /etc/hosts "$room/etc/hosts"
  : >"$room/$mark"
fi

mkdir -p "$room/srv"
rm -rf "$room/srv/choir"
git clone --quiet --no-hardlinks "$repository" "$room/srv/choir"
chown -R root:root "$room/srv/choir"
echo "clean_room.sh: $(git -C "$room/srv/choir" log -1 --format='%h %s'); $*"
contained bash "$script" --inside "$room" "$@"
