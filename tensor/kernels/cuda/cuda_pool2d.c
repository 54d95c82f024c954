// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_pool2d.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/ops/pool2d.h"

static bool is_images(const choir_view_t* view, choir_dtype_t dtype) {
  return view->dtype == dtype && view->ndim == 4 &&
         choir_view_count(view) <= INT32_MAX;
}

static choir__cuda_image_t image_of(const choir_view_t* view) {
  return (choir__cuda_image_t){view->strides[0], view->strides[2],
                               view->strides[3], view->strides[1]};
}

// Whether channels may be taken CHOIR__CUDA_GROUP at a time.
static bool has_groups(const choir_view_t* view) {
  if (view->strides[1] != 1 || view->shape[1] % CHOIR__CUDA_GROUP) return false;
  for (int32_t k = 0; k < 4; ++k)
    if (k != 1 && view->shape[k] > 1 && view->strides[k] % CHOIR__CUDA_GROUP)
      return false;
  return (uintptr_t)choir__cuda_data(view) %
             (CHOIR__CUDA_GROUP * choir_dtype_bytes(view->dtype)) ==
         0;
}

// What a pooling and its gradient work on: x or dx, y or dy, the argmax indices
// (NULL: none), and the op's first source, whose shape is x's.
typedef struct operands_s {
  const choir_view_t* shape;
  const choir_view_t* x;
  const choir_view_t* y;
  const choir_view_t* index;
} operands_t;

static operands_t forward_operands(const choir_record_t* record) {
  return (operands_t){
      choir_record_src(record, 0), choir_record_src(record, 0),
      choir_record_dst(record, 0),
      record->dst_count > 1 ? choir_record_dst(record, 1) : NULL};
}
static operands_t grad_operands(const choir_record_t* record) {
  return (operands_t){
      choir_record_src(record, 0), choir_record_dst(record, 0),
      choir_record_src(record, record->src_count - 1),
      record->src_count > 2 ? choir_record_src(record, 1) : NULL};
}

// Windows beyond this would make places that 32 bits do not hold.
enum { LARGEST_WINDOW = 1 << 15 };

static bool fits(const choir_record_t* record, const operands_t* operands) {
  const choir_pool2d_attrs_t* attrs = record->attrs;
  return choir__cuda_pool2d_module.image &&
         attrs->kernel[0] <= LARGEST_WINDOW &&
         attrs->kernel[1] <= LARGEST_WINDOW &&
         is_images(operands->x, CHOIR_DTYPE_F32) &&
         is_images(operands->y, CHOIR_DTYPE_F32) &&
         (!operands->index || is_images(operands->index, CHOIR_DTYPE_U8));
}
static bool forward_supports(const choir_record_t* record) {
  const operands_t operands = forward_operands(record);
  return fits(record, &operands);
}
static bool grad_supports(const choir_record_t* record) {
  const operands_t operands = grad_operands(record);
  return fits(record, &operands);
}

static choir_status_t launch(const choir_record_t* record,
                             choir_stream_t* stream, const operands_t* operands,
                             bool is_grad, const choir_cuda_kernel_t* one,
                             const choir_cuda_kernel_t* grouped) {
  const choir__pool2d_t pool = choir__pool2d_of(operands->shape, record->attrs);
  choir__cuda_pool2d_t params = {
      .x = choir__cuda_data(operands->x),
      .y = choir__cuda_data(operands->y),
      .at_x = image_of(operands->x),
      .at_y = image_of(operands->y),
      .samples = (uint32_t)operands->x->shape[0],
      .channels = (uint32_t)operands->x->shape[1],
      .channels_last = (is_grad ? operands->x : operands->y)->strides[1] == 1,
      .accumulate = record->accumulate};
  for (int32_t i = 0; i < 2; ++i) {
    params.size[i] = (int32_t)pool.size[i];
    params.out[i] = (int32_t)pool.out[i];
    params.kernel[i] = (int32_t)pool.kernel[i];
    params.stride[i] = (int32_t)pool.stride[i];
    params.padding[i] = (int32_t)pool.padding[i];
  }
  bool by_groups = has_groups(operands->x) && has_groups(operands->y);
  if (operands->index) {
    params.index = choir__cuda_data(operands->index);
    params.at_index = image_of(operands->index);
    by_groups = by_groups && has_groups(operands->index);
  }
  uint32_t threads =
      (uint32_t)choir_view_count(is_grad ? operands->x : operands->y);
  if (by_groups) threads /= CHOIR__CUDA_GROUP;
  return choir__cuda_launch_threads(stream, by_groups ? grouped : one, threads,
                                    &params);
}

#define POOLING(OP, name, direction, is_grad)                               \
  static choir_status_t name##_run(const choir_record_t* record,            \
                                   choir_stream_t* stream) {                \
    static const choir_cuda_kernel_t one = {&choir__cuda_pool2d_module,     \
                                            "choir_" #name};                \
    static const choir_cuda_kernel_t grouped = {&choir__cuda_pool2d_module, \
                                                "choir_" #name "_grouped"}; \
    const operands_t operands = direction##_operands(record);               \
    return launch(record, stream, &operands, is_grad, &one, &grouped);      \
  }                                                                         \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, direction##_supports)
POOLING(MAX_POOL2D, max_pool2d, forward, false)
POOLING(AVG_POOL2D, avg_pool2d, forward, false)
POOLING(MAX_POOL2D_GRAD, max_pool2d_grad, grad, true)
POOLING(AVG_POOL2D_GRAD, avg_pool2d_grad, grad, true)
