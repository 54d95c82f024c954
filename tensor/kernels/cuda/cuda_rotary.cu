// SPDX-License-Identifier: Apache-2.0
// rotary and its gradient: cosines and sines in double, once for all heads,
// then a thread for each pair of columns.
#include "tensor/kernels/cuda/cuda_rotary.h"

#include <math.h>

#include "tensor/kernels/cuda/cuda_dims.cuh"

CHOIR__KERNEL(choir_rotary_table, choir__cuda_rotary_t) {
  const uint32_t place = CHOIR__THREAD;
  if (place >= params.rows * params.half) return;
  const double speed =
      pow(params.theta, -static_cast<double>(place % params.half) /
                            static_cast<double>(params.half));
  const double angle =
      (place / params.half + params.offset) * speed * params.direction;
  params.table[2 * place] = static_cast<float>(cos(angle));
  params.table[2 * place + 1] = static_cast<float>(sin(angle));
}

CHOIR__KERNEL(choir_rotary, choir__cuda_rotary_t) {
  const uint32_t pair = CHOIR__THREAD;
  if (pair >= params.pairs) return;
  const float* turn = params.table + 2 * (pair % (params.rows * params.half));
  const float* x = params.x + offset_of(params.dims, params.dims.src, pair);
  float* y = params.y + offset_of(params.dims, params.dims.dst, pair);
  const float first = x[0], second = x[params.x_half];
  const float turned[] = {first * turn[0] - second * turn[1],
                          second * turn[0] + first * turn[1]};
  y[0] = params.accumulate ? y[0] + turned[0] : turned[0];
  y += params.y_half;
  y[0] = params.accumulate ? y[0] + turned[1] : turned[1];
}
