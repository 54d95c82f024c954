#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/clean_room.sh [--suite SUITE] [--keep] [--with FILE]... FOLDER \
#     [COMMAND [ARGUMENT]...]
# Makes a bare Debian (minbase with git, nothing else) in FOLDER, which must not
# exist or be empty, clones the last commit of this tree into it and runs COMMAND in
# the clone; `./bootstrap bazel test //...` if none is given. SUITE is bookworm
# (Debian 12, the default) or trixie (Debian 13). The status is that of COMMAND.
# Needs root, debootstrap, and this machine to be a Debian, whose mirrors are used.
# --with FILE (or folder) takes no clone: COMMAND runs in a folder that holds the
# FILEs alone.
# --keep leaves FOLDER with what was installed there; a second run then takes another
# clone, or other FILEs, into the same system.
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
    ${https_proxy:+https_proxy="$https_proxy"} \
    ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} "$@"
fi

usage='usage: tools/clean_room.sh [--suite bookworm|trixie] [--keep] [--with FILE]... FOLDER [COMMAND [ARGUMENT]...]'
keep=0 suite=bookworm files=()
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=1 ;;
    --suite)
      [ $# -gt 1 ] || die "--suite needs a SUITE; $usage" 2
      suite=$2
      shift
      ;;
    --with)
      [ -e "${2:-}" ] || die "there is no '${2:-}'; $usage" 2
      files+=("$(realpath "$2")")
      shift
      ;;
    -* | '') die "unknown flag '$1'; $usage" 2 ;;
    *) break ;;
  esac
  shift
done
case $suite in
  bookworm | trixie) ;;
  *) die "unknown suite '$suite'; $usage" 2 ;;
esac
[ $# -ge 1 ] || die "FOLDER is missing; $usage" 2
[ "$(id -u)" = 0 ] || die "must be root, for debootstrap and mounts"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
script=$(realpath "$0")
repository=$(dirname "$script")/..
room=$(realpath -m "$1")
shift
[ $# -gt 0 ] || [ ${#files[@]} -gt 0 ] || set -- ./bootstrap bazel test //...
[ $# -gt 0 ] || die "--with needs a COMMAND; $usage" 2
# Marks a folder that this script filled, and that it so may remove; says the suite.
mark=etc/choir_clean_room
if [ -e "$room/$mark" ]; then
  [ "$(cat "$room/$mark")" = "$suite" ] ||
    die "$room is a clean room of $(cat "$room/$mark"), not $suite"
elif [ -e "$room" ]; then
  { [ -d "$room" ] && [ -z "$(ls -A "$room")" ]; } ||
    die "$room is neither empty nor a clean room"
fi

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
  # Once more if a process that is just being killed wrote a file meanwhile.
  [ $keep = 1 ] && [ -e "$room/$mark" ] ||
    rm -rf --one-file-system "$room" 2>/dev/null ||
    { sleep 1 && rm -rf --one-file-system "$room"; }
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

contained mount -t tmpfs tmpfs /mnt 2>"$log" ||
  die "root may not make namespaces and mounts here, which a clean room is made of: $(cat "$log")"
if [ ! -e "$room/$mark" ]; then
  # The mirrors that this machine uses, as "URI bookworm-updates".
  # shellcheck disable=SC1091
  here=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  mirrors=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
    'Created-By: Packages' 'Origin: Debian' 'Component: main' |
    sed -n "s/ $here\\(-updates\\|-security\\|\\)\$/ $suite\\1/p" | sort -u)
  mirror=$(sed -n "s/ $suite\$//p" <<<"$mirrors" | head -n 1)
  [ -n "$mirror" ] || die "apt knows no mirror of Debian '$here' here; apt-get update may help"
  echo "clean_room.sh: a bare Debian ($suite) in $room"
  contained debootstrap --variant=minbase --include=git,ca-certificates "$suite" \
    "$room" "$mirror" >"$log" 2>&1 || die "debootstrap failed: $(tail -n 3 "$log")"
  # Where to fetch from and through which proxy; no other habit of this machine.
  sed 's/.*/deb [signed-by=\/usr\/share\/keyrings\/debian-archive-keyring.gpg] & main/' \
    <<<"$mirrors" >"$room/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https)::' \
    >"$room/etc/apt/apt.conf.d/99network" || true
  cp /etc/resolv.conf "$room/etc/resolv.conf"
  cp /etc/hosts "$room/etc/hosts"
  # And whom to trust on the way.
  find /usr/local/share/ca-certificates -name '*.crt' \
    -exec cp -t "$room/usr/local/share/ca-certificates" {} +
  contained chroot "$room" update-ca-certificates >"$log" 2>&1 ||
    die "update-ca-certificates failed: $(tail -n 3 "$log")"
  echo "$suite" >"$room/$mark"
fi

rm -rf "$room/srv/choir"
mkdir -p "$room/srv/choir"
if [ ${#files[@]} -gt 0 ]; then
  cp -r -t "$room/srv/choir" "${files[@]}"
  echo "clean_room.sh: ${files[*]##*/}; $*"
else
  git clone --quiet --no-hardlinks "$repository" "$room/srv/choir"
  echo "clean_room.sh: $(git -C "$room/srv/choir" log -1 --format='%h %s'); $*"
fi
chown -R root:root "$room/srv/choir"
contained bash "$script" --inside "$room" "$@"
