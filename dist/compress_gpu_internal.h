// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMPRESS_GPU_INTERNAL_H_
#define CHOIR_DIST_COMPRESS_GPU_INTERNAL_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// What compress_internal.h and top_k_internal.h compute, of arrays in a GPU's
// memory, with the same results to the bit. What strategies exchange is the
// host's: 16-bit elements, or indices and values of the chosen, go down and up.
//
// All but the first only inside a record's run (core/cuda_backend.h), of the
// stream given; launched and not waited for, unless something is copied. Arrays
// of the GPU begin on 16 bytes and have up to 2^33 elements, those that are
// chosen from 2^31 - 1.

// Whether this build has code for the device, a GPU.
bool choir__gpu_compress_works(const choir_device_t* device);

// ---- 16 bits ----

// As choir__half_encode, which see; `dst` is the host's.
choir_status_t choir__gpu_half_encode(choir_stream_t* stream,
                                      choir_dtype_t dtype, const float* src,
                                      int64_t count, int32_t exponent,
                                      float most, uint16_t* dst,
                                      int64_t* out_clipped) CHOIR_NODISCARD;
// `src` is the host's.
choir_status_t choir__gpu_half_decode(choir_stream_t* stream,
                                      choir_dtype_t dtype, const uint16_t* src,
                                      int64_t count, int32_t exponent,
                                      float* dst) CHOIR_NODISCARD;

// ---- Chosen elements ----

// k elements of an array, in order of index: scratch memory of the GPU, one
// piece, for as long as the record runs.
typedef struct choir__gpu_chosen_s {
  int64_t k;
  int32_t* indices;
  float* values;
} choir__gpu_chosen_t;

// Room for k; what is chosen comes from the host.
choir_status_t choir__gpu_chosen_create(choir_stream_t* stream, int64_t k,
                                        choir__gpu_chosen_t* out_chosen)
    CHOIR_NODISCARD;
// Copies all of them down, or up; indices NULL: those stay as they are.
choir_status_t choir__gpu_chosen_read(choir_stream_t* stream,
                                      const choir__gpu_chosen_t* chosen,
                                      int32_t* indices, float* values)
    CHOIR_NODISCARD;
choir_status_t choir__gpu_chosen_write(choir_stream_t* stream,
                                       const choir__gpu_chosen_t* chosen,
                                       const int32_t* indices,
                                       const float* values) CHOIR_NODISCARD;

// As choir__top_k. Reads src twice, and then twice again of it what may be
// among the k: a few more than those, unless many are equal. One more piece of
// scratch memory, of 2 bytes for each element and 4 MiB.
choir_status_t choir__gpu_top_k(choir_stream_t* stream, const float* src,
                                int64_t count, int64_t k,
                                choir__gpu_chosen_t* out_chosen)
    CHOIR_NODISCARD;
// As choir__select_above, however many there are. Reads src once, and twice
// again what is chosen.
choir_status_t choir__gpu_select_above(choir_stream_t* stream, const float* src,
                                       int64_t count, float threshold,
                                       choir__gpu_chosen_t* out_chosen)
    CHOIR_NODISCARD;

// ---- What is not sent, and what came ----

// As choir__residual_add and choir__residual_subtract; chosen->values are what
// was sent.
choir_status_t choir__gpu_residual_add(choir_stream_t* stream, float decay,
                                       const float* gradient, int64_t count,
                                       float* residual) CHOIR_NODISCARD;
choir_status_t choir__gpu_residual_subtract(choir_stream_t* stream,
                                            const choir__gpu_chosen_t* chosen,
                                            float* residual) CHOIR_NODISCARD;
// Momentum correction as of choir__momentum_add, and factor masking: dst of all
// chosen = 0.
choir_status_t choir__gpu_momentum_add(choir_stream_t* stream, float momentum,
                                       float factor, const float* gradient,
                                       int64_t count, float* u, float* v)
    CHOIR_NODISCARD;
choir_status_t choir__gpu_residual_mask(choir_stream_t* stream,
                                        const choir__gpu_chosen_t* chosen,
                                        float* dst) CHOIR_NODISCARD;
// dst = src, which is the host's.
choir_status_t choir__gpu_write(choir_stream_t* stream, const float* src,
                                int64_t count, float* dst) CHOIR_NODISCARD;
// dst = 0; and dense[index] = fma(share, value, dense[index]) of all chosen.
choir_status_t choir__gpu_clear(choir_stream_t* stream, int64_t count,
                                float* dst) CHOIR_NODISCARD;
choir_status_t choir__gpu_scatter_add(choir_stream_t* stream,
                                      const choir__gpu_chosen_t* chosen,
                                      float share, float* dense)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMPRESS_GPU_INTERNAL_H_
