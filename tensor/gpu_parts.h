// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_GPU_PARTS_H_
#define CHOIR_TENSOR_GPU_PARTS_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// What ops on NVIDIA GPUs are computed with, beside the driver (core/gpu.h):
// the code of Choir's kernels, which is part of a library built with
// --config=cuda, and the libraries that are opened when first needed.
//
//   for (int32_t i = 0; i < choir_gpu_part_count(); ++i) {
//     choir_gpu_part_t part;
//     choir_status_t status = choir_gpu_part(i, &part);
//     printf("%s: %s\n", part.name,
//            status ? choir_status_message(status) : "yes");
//     choir_status_free(status);
//   }
//
// Threads: any.

typedef struct choir_gpu_part_s {
  const char* name;  // "kernels"; lent for good
  char version[32];  // "9.19.0"; empty: it has none of its own
} choir_gpu_part_t;

// At least 1: the kernels are the first.
CHOIR_API int32_t choir_gpu_part_count(void);
// Whether this library and this machine have it; may open a shared library, and
// asks no GPU. UNAVAILABLE with what is missing and what is needed, and with
// the name nonetheless; OUT_OF_RANGE, without a name, for an index that is not
// below the count.
CHOIR_API choir_status_t choir_gpu_part(int32_t index,
                                        choir_gpu_part_t* out_part)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_GPU_PARTS_H_
