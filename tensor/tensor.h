// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_TENSOR_H_
#define CHOIR_TENSOR_TENSOR_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A tensor is a shared buffer and a strided view of it. Views of one tensor
// (reshape, slice, ...) share its buffer.
//
//   int64_t shape[] = {64, 1, 28, 28};
//   choir_tensor_t* x;
//   CHOIR_TRY(choir_tensor_create(device, CHOIR_DTYPE_F32, 4, shape, &x));
//   CHOIR_TRY(choir_tensor_write(x, pixels, sizeof pixels));
//
// Logical dimensions of images are N, C, H, W; how they lie in memory is told
// by the strides (convolution and pooling results are channels-last). Host
// data given and taken here is always row-major and dense.
//
// Ownership: shared; keeps its buffer, which keeps its device.
// Threads: a tensor's shape never changes and may be read by any thread; its
// elements are ordered by the streams that use them.

typedef struct choir_tensor_s choir_tensor_t;

// Dense row-major, not cleared.
CHOIR_API choir_status_t choir_tensor_create(choir_device_t* device,
                                             choir_dtype_t dtype, int32_t ndim,
                                             const int64_t* shape,
                                             choir_tensor_t** out_tensor)
    CHOIR_NODISCARD;
// With the shape, dtype and strides of `layout` (whose buffer and offset are
// ignored; strides must be dense), not cleared.
CHOIR_API choir_status_t choir_tensor_create_layout(choir_device_t* device,
                                                    const choir_view_t* layout,
                                                    choir_tensor_t** out_tensor)
    CHOIR_NODISCARD;
// A tensor over part of an existing buffer: view->buffer is retained and must
// be large enough.
CHOIR_API choir_status_t choir_tensor_from_view(const choir_view_t* view,
                                                choir_tensor_t** out_tensor)
    CHOIR_NODISCARD;
// choir_tensor_create and choir_tensor_write in one.
CHOIR_API choir_status_t
choir_tensor_from_data(choir_device_t* device, choir_dtype_t dtype,
                       int32_t ndim, const int64_t* shape, const void* data,
                       choir_tensor_t** out_tensor) CHOIR_NODISCARD;
CHOIR_API void choir_tensor_retain(choir_tensor_t* tensor);
CHOIR_API void choir_tensor_release(choir_tensor_t* tensor);

// Lent: buffer, dtype, shape, strides in one value.
CHOIR_API const choir_view_t* choir_tensor_view(const choir_tensor_t* tensor);
CHOIR_API choir_dtype_t choir_tensor_dtype(const choir_tensor_t* tensor);
CHOIR_API int32_t choir_tensor_ndim(const choir_tensor_t* tensor);
CHOIR_API const int64_t* choir_tensor_shape(const choir_tensor_t* tensor);
CHOIR_API const int64_t* choir_tensor_strides(const choir_tensor_t* tensor);
CHOIR_API int64_t choir_tensor_count(const choir_tensor_t* tensor);
CHOIR_API choir_device_t* choir_tensor_device(const choir_tensor_t* tensor);

// Copy all elements to or from row-major host memory of exactly `bytes`;
// block until done, after the work given to the device's compute stream.
CHOIR_API choir_status_t choir_tensor_read(choir_tensor_t* tensor, void* host,
                                           size_t bytes) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_tensor_write(choir_tensor_t* tensor,
                                            const void* host, size_t bytes)
    CHOIR_NODISCARD;

// What a shard, a tensor of one axis, is a part of: its elements follow one
// another from `start`, in the order of memory of the whole.
typedef struct choir_shard_s {
  int64_t start;
  choir_view_t whole;  // dtype, shape and strides; no buffer
} choir_shard_t;

// A tensor and its name: the currency of parameters, optimizer states and
// checkpoints. Borrowed.
typedef struct choir_named_tensor_s {
  const char* name;  // "conv1.W"
  choir_tensor_t* tensor;
  const choir_shard_t* shard;  // NULL: the tensor is the whole
} choir_named_tensor_t;

// Room for the whole of a shard, on its device: a tensor whose elements are not
// set. Of what is no shard the tensor itself. The caller's reference.
CHOIR_API choir_status_t choir_named_tensor_make_whole(
    const choir_named_tensor_t* named, choir_tensor_t** out_whole)
    CHOIR_NODISCARD;
// Sets a shard to its part of `whole`, which that function made; of what is no
// shard there is nothing to do. Work of the device's stream.
CHOIR_API choir_status_t choir_named_tensor_take(
    const choir_named_tensor_t* named, choir_tensor_t* whole) CHOIR_NODISCARD;

// 64 bits over names, shapes, dtypes and row-major elements of all tensors:
// equal bits, equal digest, whatever the physical layout. Blocks.
// FAILED_PRECONDITION: one is a shard.
CHOIR_API choir_status_t choir_tensor_digest(
    const choir_named_tensor_t* tensors, size_t count, uint64_t* out_digest)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_TENSOR_H_
