#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh of the bundle (docs/gpu.md): run.sh --help
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" "$here/tests/gpu/gpu_run.py" "$@"
