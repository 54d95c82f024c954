// SPDX-License-Identifier: Apache-2.0
// 16-bit arrays and passes over dense and chosen elements; selection is in
// top_k_cuda.c.
#include <string.h>

#include "core/device_backend.h"
#include "dist/compress_cuda_kernels_internal.h"
#include "dist/compress_cuda_modules_internal.h"
#include "dist/compress_gpu_internal.h"
#include "dist/compress_internal.h"
#include "tensor/kernels/cuda/cuda_threads.h"

enum {
  THREADS = CHOIR__CUDA_THREADS,
  ALIGNMENT = CHOIR__CUDA_GROUP * sizeof(float),
};

#if defined(CHOIR_CUDA_IMAGES)
extern const unsigned char choir__compress_cuda_image[];
extern const unsigned char choir__top_k_cuda_image[];
choir_cuda_module_t choir__compress_cuda_module = {"compress_cuda.cu",
                                                   choir__compress_cuda_image};
choir_cuda_module_t choir__top_k_cuda_module = {"top_k_cuda.cu",
                                                choir__top_k_cuda_image};
#else
choir_cuda_module_t choir__compress_cuda_module = {"compress_cuda.cu", NULL};
choir_cuda_module_t choir__top_k_cuda_module = {"top_k_cuda.cu", NULL};
#endif

#define KERNEL(symbol) \
  { &choir__compress_cuda_module, "choir_" #symbol }
// [is it BF16]
static const choir_cuda_kernel_t encodes[] = {KERNEL(f16_encode),
                                              KERNEL(bf16_encode)};
static const choir_cuda_kernel_t decodes[] = {KERNEL(f16_decode),
                                              KERNEL(bf16_decode)};
static const choir_cuda_kernel_t residual_add = KERNEL(residual_add);
static const choir_cuda_kernel_t residual_subtract = KERNEL(residual_subtract);
static const choir_cuda_kernel_t residual_mask = KERNEL(residual_mask);
static const choir_cuda_kernel_t momentum_add = KERNEL(momentum_add);
static const choir_cuda_kernel_t scatter_add = KERNEL(scatter_add);
static const choir_cuda_kernel_t clear = KERNEL(clear);

bool choir__gpu_compress_works(const choir_device_t* device) {
  return strcmp(choir_device_kernels(device), "cuda") == 0 &&
         choir__compress_cuda_module.image && choir__top_k_cuda_module.image;
}

// ---- Launches and copies ----

choir_status_t choir__gpu_launch(choir_stream_t* stream,
                                 const choir_cuda_kernel_t* kernel,
                                 uint64_t threads, const void* params) {
  if (threads == 0) return NULL;
  // A thread's number has 32 bits.
  const uint64_t most = UINT32_MAX - THREADS;
  if (threads > most)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %llu threads; at most %llu",
                       kernel->symbol, (unsigned long long)threads,
                       (unsigned long long)most);
  return choir__cuda_launch(stream, kernel,
                            (uint32_t)((threads + THREADS - 1) / THREADS),
                            THREADS, params);
}

choir_status_t choir__gpu_read(choir_stream_t* stream, const void* src,
                               void* host, size_t bytes) {
  choir_device_t* device = choir_stream_device(stream);
  return bytes ? device->vtable->read(device, stream, src, host, bytes) : NULL;
}

static choir_status_t write_up(choir_stream_t* stream, const void* host,
                               void* dst, size_t bytes) {
  choir_device_t* device = choir_stream_device(stream);
  return bytes ? device->vtable->write(device, stream, host, dst, bytes) : NULL;
}

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t groups(int64_t count) {
  return ((uint64_t)count + CHOIR__CUDA_GROUP - 1) / CHOIR__CUDA_GROUP;
}

// ---- 16 bits ----

choir_status_t choir__gpu_half_encode(choir_stream_t* stream,
                                      choir_dtype_t dtype, const float* src,
                                      int64_t count, int32_t exponent,
                                      float most, uint16_t* dst,
                                      int64_t* out_clipped) {
  *out_clipped = 0;
  if (count == 0) return NULL;
  const size_t bytes = (size_t)count * sizeof(uint16_t);
  void* memory;
  CHOIR_TRY(
      choir__cuda_scratch(stream, aligned(bytes) + sizeof(uint32_t), &memory));
  void* clipped = (char*)memory + aligned(bytes);
  CHOIR_TRY(choir__gpu_clear(stream, 1, clipped));
  CHOIR_TRY(choir__cuda_use(stream, src));
  const choir__cuda_half_t params = {
      .floats = (float*)src,  // only read
      .halves = memory,
      .clipped = clipped,
      .count = (uint64_t)count,
      .scale = choir__half_scale(exponent),
      .limit = choir__half_limit(dtype, exponent, most)};
  CHOIR_TRY(choir__gpu_launch(stream, &encodes[dtype == CHOIR_DTYPE_BF16],
                              groups(count), &params));
  CHOIR_TRY(choir__gpu_read(stream, memory, dst, bytes));
  uint32_t found = 0;
  CHOIR_TRY(choir__gpu_read(stream, clipped, &found, sizeof(found)));
  *out_clipped = found;
  return NULL;
}

choir_status_t choir__gpu_half_decode(choir_stream_t* stream,
                                      choir_dtype_t dtype, const uint16_t* src,
                                      int64_t count, int32_t exponent,
                                      float* dst) {
  const size_t bytes = (size_t)count * sizeof(uint16_t);
  void* memory;
  CHOIR_TRY(choir__cuda_scratch(stream, bytes, &memory));
  CHOIR_TRY(write_up(stream, src, memory, bytes));
  CHOIR_TRY(choir__cuda_use(stream, dst));
  const choir__cuda_half_t params = {.floats = dst,
                                     .halves = memory,
                                     .count = (uint64_t)count,
                                     .scale = choir__half_scale(-exponent)};
  return choir__gpu_launch(stream, &decodes[dtype == CHOIR_DTYPE_BF16],
                           groups(count), &params);
}

// ---- Chosen elements ----

choir_status_t choir__gpu_chosen_create(choir_stream_t* stream, int64_t k,
                                        choir__gpu_chosen_t* out_chosen) {
  *out_chosen = (choir__gpu_chosen_t){.k = k};
  const size_t values = aligned((size_t)k * sizeof(int32_t));
  void* memory;
  CHOIR_TRY(
      choir__cuda_scratch(stream, values + (size_t)k * sizeof(float), &memory));
  if (k == 0) return NULL;
  out_chosen->indices = memory;
  out_chosen->values = (float*)(void*)((char*)memory + values);
  return NULL;
}

choir_status_t choir__gpu_chosen_read(choir_stream_t* stream,
                                      const choir__gpu_chosen_t* chosen,
                                      int32_t* indices, float* values) {
  const size_t k = (size_t)chosen->k;
  if (indices)
    CHOIR_TRY(
        choir__gpu_read(stream, chosen->indices, indices, k * sizeof(int32_t)));
  return choir__gpu_read(stream, chosen->values, values, k * sizeof(float));
}

choir_status_t choir__gpu_chosen_write(choir_stream_t* stream,
                                       const choir__gpu_chosen_t* chosen,
                                       const int32_t* indices,
                                       const float* values) {
  const size_t k = (size_t)chosen->k;
  if (indices)
    CHOIR_TRY(write_up(stream, indices, chosen->indices, k * sizeof(int32_t)));
  return write_up(stream, values, chosen->values, k * sizeof(float));
}

// ---- What is not sent, and what came ----

choir_status_t choir__gpu_residual_add(choir_stream_t* stream, float decay,
                                       const float* gradient, int64_t count,
                                       float* residual) {
  CHOIR_TRY(choir__cuda_use(stream, gradient));
  CHOIR_TRY(choir__cuda_use(stream, residual));
  const choir__cuda_pass_t params = {
      .y = residual, .x = gradient, .count = (uint64_t)count, .factor = decay};
  return choir__gpu_launch(stream, &residual_add, groups(count), &params);
}

choir_status_t choir__gpu_momentum_add(choir_stream_t* stream, float momentum,
                                       float factor, const float* gradient,
                                       int64_t count, float* u, float* v) {
  CHOIR_TRY(choir__cuda_use(stream, gradient));
  CHOIR_TRY(choir__cuda_use(stream, u));
  CHOIR_TRY(choir__cuda_use(stream, v));
  const choir__cuda_momentum_t params = {.u = u,
                                         .v = v,
                                         .gradient = gradient,
                                         .count = (uint64_t)count,
                                         .momentum = momentum,
                                         .factor = factor};
  return choir__gpu_launch(stream, &momentum_add, groups(count), &params);
}

choir_status_t choir__gpu_write(choir_stream_t* stream, const float* src,
                                int64_t count, float* dst) {
  return write_up(stream, src, dst, (size_t)count * sizeof(float));
}

choir_status_t choir__gpu_clear(choir_stream_t* stream, int64_t count,
                                float* dst) {
  CHOIR_TRY(choir__cuda_use(stream, dst));
  const choir__cuda_pass_t params = {.y = dst, .count = (uint64_t)count};
  return choir__gpu_launch(stream, &clear, groups(count), &params);
}

static choir_status_t launch_chosen(choir_stream_t* stream,
                                    const choir_cuda_kernel_t* kernel,
                                    const choir__gpu_chosen_t* chosen,
                                    float factor, float* dense) {
  CHOIR_TRY(choir__cuda_use(stream, dense));
  const choir__cuda_pass_t params = {.y = dense,
                                     .x = chosen->values,
                                     .indices = chosen->indices,
                                     .count = (uint64_t)chosen->k,
                                     .factor = factor};
  return choir__gpu_launch(stream, kernel, params.count, &params);
}

choir_status_t choir__gpu_residual_subtract(choir_stream_t* stream,
                                            const choir__gpu_chosen_t* chosen,
                                            float* residual) {
  return launch_chosen(stream, &residual_subtract, chosen, 1, residual);
}

choir_status_t choir__gpu_residual_mask(choir_stream_t* stream,
                                        const choir__gpu_chosen_t* chosen,
                                        float* dst) {
  return launch_chosen(stream, &residual_mask, chosen, 1, dst);
}

choir_status_t choir__gpu_scatter_add(choir_stream_t* stream,
                                      const choir__gpu_chosen_t* chosen,
                                      float share, float* dense) {
  return launch_chosen(stream, &scatter_add, chosen, share, dense);
}
