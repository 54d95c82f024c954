#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh COMMAND [ARGUMENT]...
# Runs in each container before COMMAND: gives it the host key by which the others
# know it and the key by which root reaches them, from the folder that is mounted
# at /keys. Without that it makes keys that no other container has.
set -eu
# $CHOIR_KEYS: the folder of the keys from outside. Not set: /keys.
# $CHOIR_OWN_KEYS: the folder of the container's own keys. Not set: /etc/choir.
from=${CHOIR_KEYS:-/keys}
own=${CHOIR_OWN_KEYS:-/etc/choir}

umask 077
mkdir -p "$own"
for name in ssh_host_ed25519_key id_ed25519; do
  if [ -r "$from/$name" ]; then
    # A copy: ssh takes no private key that others can read or that another owns.
    cat "$from/$name" >"$own/$name"
  elif [ ! -e "$own/$name" ]; then
    echo "choir-start: there is no $from/$name; made one that no other container has" >&2
    ssh-keygen -q -t ed25519 -N '' -C choir -f "$own/$name"
  fi
  ssh-keygen -y -f "$own/$name" >"$own/$name.pub"
done
cp "$own/id_ed25519.pub" "$own/authorized_keys"
sed 's/^/* /' "$own/ssh_host_ed25519_key.pub" >"$own/known_hosts"
exec "$@"
