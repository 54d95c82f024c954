#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/clean_room.sh FOLDER [COMMAND [ARGUMENT]...]
# Makes a bare Debian 12 (minbase with git, nothing else) in FOLDER, which must not
# exist or be empty, clones the last commit of this tree into it and runs COMMAND in
# the clone; `./bootstrap bazel test //...` if none is given. The status is that of
# COMMAND. Needs root and debootstrap. CHOIR_CLEAN_ROOM_KEEP=1 keeps FOLDER and its
# packages; a second run then takes another clone into the same system.
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

[ $# -ge 1 ] || die "usage: tools/clean_room.sh FOLDER [COMMAND [ARGUMENT]...]" 2
case $1 in -*) die "unknown flag '$1'; usage: tools/clean_room.sh FOLDER [COMMAND...]" 2 ;; esac
[ "$(id -u)" = 0 ] || die "must be root, for debootstrap and mounts"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
script=$(realpath "$0")
repository=$(dirname "$script")/..
mkdir -p "$1"
room=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- ./bootstrap bazel test //...

kept="$room/etc/choir_clean_room"
made=0
clean_up() {
  if [ "${CHOIR_CLEAN_ROOM_KEEP:-0}" = 0 ] && [ $made = 1 ]; then
    rm -rf --one-file-system "$room"
  fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -e "$kept" ]; then
  made=1
else
  [ -z "$(ls -A "$room")" ] || die "$room is neither empty nor a clean room"
  # The mirror that this machine uses.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Codename: bookworm' 'Component: main' | head -n 1)
  [ -n "$mirror" ] || die "apt knows no mirror of Debian 12 (bookworm) here"
  made=1
  echo "clean_room.sh: a bare Debian 12 in $room"
  debootstrap --variant=minbase --include=git,ca-certificates bookworm "$room" \
    "$mirror" >"$room.log" 2>&1 || die "debootstrap failed: $(tail -n 3 "$room.log")"
  rm -f "$room.log"
  # Where to fetch from and through which proxy; no other habit of this machine.
  rm -f "$room/etc/apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [ -f "$file" ] && cp "$file" "$room/${file#/}"
  done
  apt-config dump | grep -E '^Acquire::(http|https)::' \
    >"$room/etc/apt/apt.conf.d/99network" || true
  cp /etc/resolv.conf "$room/etc/resolv.conf"
  cp /etc/hosts "$room/etc/hosts"
  : >"$kept"
fi

mkdir -p "$room/srv"
rm -rf "$room/srv/choir"
git clone --quiet --no-hardlinks "$repository" "$room/srv/choir"
chown -R root:root "$room/srv/choir"

# In the background, so that a signal is dealt with at once; --kill-child takes
# everything inside along, and only SIGKILL gets past unshare itself.
unshare --mount --pid --fork --kill-child --propagation private \
  bash "$script" --inside "$room" "$@" </dev/null &
child=$!
trap 'kill -KILL $child 2>/dev/null; { wait $child || :; } 2>/dev/null; exit 130' INT
trap 'kill -KILL $child 2>/dev/null; { wait $child || :; } 2>/dev/null; exit 143' TERM
status=0
wait $child || status=$?
exit $status
