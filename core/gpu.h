// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_GPU_H_
#define CHOIR_CORE_GPU_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Which NVIDIA GPUs this machine has, without making a device of one
// (choir_device_create("cuda", ...), core/device.h). The driver is opened by
// the first call; all fail with UNAVAILABLE and the reason where there is none,
// or one for a CUDA older than 13.
//
// Threads: any.

typedef struct choir_gpu_info_s {
  char name[96];  // "NVIDIA H200"
  int32_t major;  // compute capability: 9.0
  int32_t minor;
  bool is_supported;  // whether choir_device_create takes it
  uint64_t total_bytes;
} choir_gpu_info_t;

// The CUDA that the driver is for: 13020 is 13.2.
CHOIR_API choir_status_t choir_gpu_driver_version(int32_t* out_version)
    CHOIR_NODISCARD;
// GPUs that the driver shows, usable or not: their numbers are 0 to count - 1.
CHOIR_API choir_status_t choir_gpu_count(int32_t* out_count) CHOIR_NODISCARD;
// OUT_OF_RANGE for a number that no GPU has.
CHOIR_API choir_status_t choir_gpu_info(int32_t index,
                                        choir_gpu_info_t* out_info)
    CHOIR_NODISCARD;
// Bytes that nobody uses, and all. Starts CUDA on this GPU for the length of
// the call, unless it runs there already; fails as choir_device_create does.
CHOIR_API choir_status_t choir_gpu_memory(int32_t index,
                                          uint64_t* out_free_bytes,
                                          uint64_t* out_total_bytes)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_GPU_H_
