#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_torch_newest.sh FOLDER
# Makes FOLDER a virtual environment of Debian's python3 with the newest PyTorch
# that pip finds, the second peer of //bench:train. Takes the build without CUDA
# where the index has one; else the usual one, some 6 GB with NVIDIA's libraries,
# which a run on the processor does not touch. FOLDER lies outside the
# repository. Tell the benchmarks of it:
#
#   export CHOIR_TORCH_NEWEST=FOLDER
#
# Run again it only says which version is there; remove FOLDER to start afresh.
# torch.compile needs g++ and the headers of python3 (package python3-dev).
set -eu

if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
  echo "usage: install_torch_newest.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
repository=$(cd "$(dirname "$0")/../.." && pwd)
case $folder/ in
  "$repository"/*)
    echo "install_torch_newest.sh: $folder is inside the repository;" \
      "choose a folder outside of it" >&2
    exit 2
    ;;
esac
version() {
  "$folder/bin/python" -c 'import torch; print(torch.__version__)' 2>/dev/null
}
if found=$(version); then
  echo "install_torch_newest.sh: PyTorch $found is in $folder"
  exit 0
fi

# $CHOIR_PYTHON: the Python to install PyTorch into. Not set: /usr/bin/python3.
python=${CHOIR_PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  echo "install_torch_newest.sh: $python cannot make virtual environments;" \
    "apt-get install python3-venv" >&2
  exit 1
fi
header=$("$python" -c \
  'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
if ! [ -e "$header" ] || ! command -v g++ >/dev/null; then
  echo "install_torch_newest.sh: no g++ or no $header: torch.compile will not" \
    "work; apt-get install g++ python3-dev"
fi
echo "install_torch_newest.sh: a virtual environment in $folder"
"$python" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
# $pip is unquoted: a command and its arguments.
# shellcheck disable=SC2086
newest=$($pip index versions torch 2>/dev/null |
  sed -n 's/^torch (\(.*\))$/\1/p')
if [ -z "$newest" ]; then
  echo "install_torch_newest.sh: pip finds no torch; is there a network, and" \
    "does PIP_INDEX_URL name an index?" >&2
  exit 1
fi
echo "install_torch_newest.sh: the newest PyTorch is $newest"
# shellcheck disable=SC2086
if $pip install -q "torch==${newest%+*}+cpu" numpy 2>/dev/null; then
  :
else
  echo "install_torch_newest.sh: no build without CUDA there: the usual one"
  $pip install -q "torch==$newest" numpy
fi
if ! found=$(version); then
  echo "install_torch_newest.sh: PyTorch does not start:" >&2
  "$folder/bin/python" -c 'import torch' >&2
  exit 1
fi
echo "install_torch_newest.sh: PyTorch $found is in $folder; now" \
  "export CHOIR_TORCH_NEWEST=$folder"
