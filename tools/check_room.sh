#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/check_room.sh
# What .ci/run tries in a clean room of another Debian, in the clone: the kernels and
# their gradients, everything that knows oneDNN, the communicators over shared memory
# and MPI, a Python suite with ranks, runs across the hosts of a network laboratory,
# and a training run of two workers, twice, with the same bits.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without these the tests in tests/netlab are skipped.
DEBIAN_FRONTEND=noninteractive ./bootstrap apt-get install -qq -y \
  --no-install-recommends iproute2 openssh-server procps >/dev/null

bazel test --noshow_progress --color=no \
  //tests/conformance:op_suite_cpu //tests/conformance:grad_suite_cpu \
  //tests/conformance:comm_suite_shm //tests/conformance:comm_suite_mpi \
  //tests/tensor:cpu_kernels_test //tests/tensor:cpu_product_test \
  //tests/tensor:dnnl_plans_test //tests/tensor:host_threads_test \
  //tests/dist:comm_mpi_test \
  //tests/python:dist_test //tests/install:install_test
# By themselves: beside suites that compute, Open MPI 5 does not get to its messages
# within the deadlines of these. Not elastic runs, which need nothing of the system but
# sockets.
bazel test --noshow_progress --color=no \
  //tests/netlab:choirrun_run_test //tests/netlab:netlab_test \
  //tests/netlab:preflight_test //tests/netlab:two_machines_test

digests() {
  bazel run --noshow_progress --ui_event_filters=-info //examples:mnist_dist -- \
    --epochs 1 --workers 2 --threads 1 | grep -o 'digest = [0-9a-f]*'
}
first=$(digests)
second=$(digests)
echo "check_room.sh: two workers: ${first//$'\n'/, }"
[ "$first" = "$second" ] || {
  echo "check_room.sh: the second run has other bits: ${second//$'\n'/, }" >&2
  exit 1
}
