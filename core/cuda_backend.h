// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CUDA_BACKEND_H_
#define CHOIR_CORE_CUDA_BACKEND_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// For writers of kernels for NVIDIA GPUs. A kernel takes one struct by value
// and runs in one dimension; what the struct points to is memory of the device.

// What the toolkit made of one source file, for all kinds of GPU together. A
// build without the toolkit has modules without an image, and then none of
// their kernels may be launched.
typedef struct choir_cuda_module_s {
  const char* name;   // of the file, for messages
  const void* image;  // a fat binary; NULL: none
} choir_cuda_module_t;

// A kernel, by its symbol. Lives as long as the process.
typedef struct choir_cuda_kernel_s {
  const choir_cuda_module_t* module;
  const char* symbol;
} choir_cuda_kernel_t;

// Queues `blocks` times `threads` threads of the kernel on the stream of a
// `cuda` device and returns; `params`, its struct, is copied. Only inside a
// record's run, which has the device's context; operands of the record need no
// more ordering. A device loads a module when the first of its kernels is
// launched: that fails with INTERNAL if the GPU is of a kind that the image has
// no code for, and later calls then too. Blocks: 1 to 2^31 - 1; threads: 1 to
// 1024.
choir_status_t choir__cuda_launch(choir_stream_t* stream,
                                  const choir_cuda_kernel_t* kernel,
                                  uint32_t blocks, uint32_t threads,
                                  const void* params) CHOIR_NODISCARD;

// Memory of the GPU, 256-byte aligned and not cleared, for what the record
// that runs launches; the device takes it back when run returns, in stream
// order. NULL for no bytes. Only inside a record's run, and four times at most
// in it: a kernel may run another one's for a part of its work.
choir_status_t choir__cuda_scratch(choir_stream_t* stream, size_t bytes,
                                   void** out_data) CHOIR_NODISCARD;

// ---- Libraries of others: cuBLASLt, cuDNN, NCCL, ... ----
//
// They launch work of their own on a stream of the device, with the device's
// context current, as a record's run has it.

// The device's name in messages: "cuda:0".
const char* choir__cuda_who(choir_device_t* device);
// The stream as libraries take it (cudaStream_t).
struct CUstream_st* choir__cuda_stream_handle(choir_stream_t* stream);
// The record under way launches work that uses the memory at `address`, which
// none of its operands names. Only inside a record's run.
choir_status_t choir__cuda_use(choir_stream_t* stream, const void* address)
    CHOIR_NODISCARD;
// Outside a record's run: makes the device's context current on this thread,
// and takes it away again.
choir_status_t choir__cuda_begin(choir_device_t* device) CHOIR_NODISCARD;
void choir__cuda_end(choir_device_t* device);

// What a library needs once for each device: a handle and what is kept with it.
typedef struct choir_cuda_attachment_s {
  choir_status_t (*open)(choir_device_t* device, void** out_state);
  void (*close)(choir_device_t* device, void* state);
} choir_cuda_attachment_t;

// The attachment's state on this device, lent: opened by the first call that
// succeeds, closed when the device goes, its last work done; both with the
// device's context current. Only inside a record's run. `what` lives as long as
// the process. Any thread.
choir_status_t choir__cuda_attach(choir_device_t* device,
                                  const choir_cuda_attachment_t* what,
                                  void** out_state) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_CUDA_BACKEND_H_
