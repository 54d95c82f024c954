// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_CUDA_CUDA_GPUS_H_
#define CHOIR_CORE_DEVICE_CUDA_CUDA_GPUS_H_

#include "core/cuda_driver_internal.h"

// The driver's handle of GPU `index`, for use: UNAVAILABLE in one sentence when
// it is too old or there is none, OUT_OF_RANGE for a number that none has.
choir_status_t choir__cuda_gpu_open(int32_t index,
                                    const choir__cuda_driver_t** out_driver,
                                    choir__cu_gpu_t* out_gpu) CHOIR_NODISCARD;

#endif  // CHOIR_CORE_DEVICE_CUDA_CUDA_GPUS_H_
