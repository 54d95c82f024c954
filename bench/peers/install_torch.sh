#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what //bench:train compares Choir with, Debian's PyTorch for Debian's
# own python3, and Gloo's headers for //bench:collectives. About 170 packages and
# 600 MB, which nothing else of Choir wants, so bootstrap does not know them. Run
# as root or through sudo.
set -eu

# PyTorch asks for any BLAS; without the second it gets the reference one, which
# is many times slower.
packages='python3-torch libopenblas0-pthread libgloo-dev'

# $packages is unquoted: three names.
# shellcheck disable=SC2086
if [ "$(dpkg-query -W -f '${db:Status-Status}\n' $packages 2>/dev/null |
  grep -cx installed)" = 3 ]; then
  echo "install_torch.sh: $packages are there"
  exit 0
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get -q update
# shellcheck disable=SC2086
$as_root apt-get -q install -y --no-install-recommends $packages
