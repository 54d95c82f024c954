// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, of images and filters that lie densely with channels
// last: with other strides it refuses filters, and its answers can be wrong
// (seen with 9.19). What was made for a problem is kept, and so is its engine:
// a problem is always computed in the same way. Where no engine adds the bias
// itself, a second graph does, from memory between the two. The bias's gradient
// is a sum over rows of dy, and the activation is done where y lies, as cuDNN's
// engines need not keep a NaN: ops of their own.
#include <string.h>

#include "core/log.h"
#include "tensor/host_fallback_internal.h"
#include "tensor/kernels/convolution.h"
#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/cuda/cudnn_graph.h"
#include "tensor/ops/conv2d.h"

// ---- Problems ----

// Tensors of a graph.
enum { X = 1, W, B, Y, BETWEEN, VIRTUAL };

// No engine wants more.
#define MOST_ALIGNMENT 16

static int64_t alignment_of(const choir_view_t* view) {
  return choir__cuda_alignment((uintptr_t)choir__cuda_data(view),
                               MOST_ALIGNMENT);
}

// dy as rows (n h w, filters).
static choir_view_t rows_of(const choir_view_t* dy) {
  choir_view_t rows = *dy;
  rows.ndim = 2;
  rows.shape[0] = dy->shape[0] * dy->shape[2] * dy->shape[3];
  choir_view_set_contiguous(&rows);
  return rows;
}

static bool fits(const choir__conv_t* conv) {
  const choir_dtype_t dtype = conv->y->dtype;
  if (!(CHOIR_DTYPES_FLOAT >> dtype & 1u)) return false;
  const choir_view_t* images[] = {conv->x, conv->w, conv->y};
  for (int i = 0; i < 3; ++i)
    if (images[i]->dtype != dtype || choir_view_count(images[i]) == 0 ||
        !choir_view_is_channels_last(images[i]))
      return false;
  if (conv->b && !choir_view_is_contiguous(conv->b)) return false;
  // An activation is not a sum.
  return conv->kind != CHOIR__CONV_FORWARD || !conv->record->accumulate;
}

static void key_of(const choir__conv_t* conv, choir__key_t* out_key) {
  const choir_view_t* operands[] = {conv->x, conv->w, conv->y, conv->b};
  out_key->count = 0;
  choir__key_add(out_key, conv->kind);
  choir__key_add(out_key, conv->record->accumulate);
  choir__key_add(out_key, conv->y->dtype);
  for (int i = 0; i < 4; ++i) {
    if (!operands[i]) continue;
    choir__key_add_view(out_key, operands[i]);
    choir__key_add(out_key, alignment_of(operands[i]));
  }
  for (int k = 0; k < 2; ++k) {
    choir__key_add(out_key, conv->attrs->stride[k]);
    choir__key_add(out_key, conv->before[k]);
    choir__key_add(out_key, conv->after[k]);
    choir__key_add(out_key, conv->attrs->dilation[k]);
  }
}

// ---- Plans ----

typedef struct plan_s {
  choir__cuda_plan_t base;
  choir__cudnn_graph_t first;
  choir__cudnn_graph_t second;  // the bias, if `first` has not
  size_t between_bytes;         // what they have between them; 0: one graph
  bool has_engine;
} plan_t;

void choir__cudnn_plan_destroy(const choir__cudnn_t* cudnn,
                               choir__cuda_plan_t* base) {
  plan_t* plan = (plan_t*)base;
  if (!plan) return;
  choir__cudnn_graph_close(cudnn, &plan->first);
  choir__cudnn_graph_close(cudnn, &plan->second);
  choir_deallocate(cudnn->objects, plan, sizeof(*plan));
}

static choir_status_t operand(const choir__cudnn_t* cudnn,
                              choir__cudnn_graph_t* graph,
                              const choir_view_t* view, int64_t id,
                              choir__cudnn_desc_t* out_desc) {
  return choir__cudnn_tensor(cudnn, graph, view, id, alignment_of(view), false,
                             out_desc);
}

// The bias as an image of one pixel.
static choir_view_t bias_image(const choir__conv_t* conv) {
  choir_view_t image = *conv->b;
  image.ndim = 4;
  for (int k = 0; k < 4; ++k) image.shape[k] = k == 1 ? conv->b->shape[0] : 1;
  choir_view_set_channels_last(&image);
  return image;
}

// x and W to y, which may be any of the three.
static choir_status_t add_conv(const choir__cudnn_t* cudnn,
                               choir__cudnn_graph_t* graph,
                               const choir__conv_t* conv,
                               choir__cudnn_desc_t y) {
  static const choir__cudnn_kind_t kinds[] = {
      [CHOIR__CONV_FORWARD] = CHOIR__CUDNN_CONVOLUTION_FORWARD,
      [CHOIR__CONV_GRAD_DATA] = CHOIR__CUDNN_CONVOLUTION_BWD_DATA,
      [CHOIR__CONV_GRAD_WEIGHT] = CHOIR__CUDNN_CONVOLUTION_BWD_FILTER,
  };
  choir__cudnn_conv_t one = {.kind = kinds[conv->kind],
                             .y = y,
                             .dtype = conv->y->dtype,
                             .accumulate = conv->record->accumulate};
  memcpy(one.stride, conv->attrs->stride, sizeof(one.stride));
  memcpy(one.before, conv->before, sizeof(one.before));
  memcpy(one.after, conv->after, sizeof(one.after));
  memcpy(one.dilation, conv->attrs->dilation, sizeof(one.dilation));
  CHOIR_TRY(operand(cudnn, graph, conv->x, X, &one.x));
  CHOIR_TRY(operand(cudnn, graph, conv->w, W, &one.w));
  return choir__cudnn_conv(cudnn, graph, &one);
}

// Between two operations numbers are as exact as sums are.
static choir_status_t add_virtual(const choir__cudnn_t* cudnn,
                                  choir__cudnn_graph_t* graph,
                                  const choir__conv_t* conv,
                                  choir__cudnn_desc_t* out_desc) {
  choir_view_t view = *conv->y;
  if (view.dtype != CHOIR_DTYPE_F64) view.dtype = CHOIR_DTYPE_F32;
  return choir__cudnn_tensor(cudnn, graph, &view, VIRTUAL, MOST_ALIGNMENT, true,
                             out_desc);
}

// y = x + b, x a tensor of the graph.
static choir_status_t add_bias(const choir__cudnn_t* cudnn,
                               choir__cudnn_graph_t* graph,
                               const choir__conv_t* conv,
                               choir__cudnn_desc_t x) {
  const choir_view_t image = bias_image(conv);
  choir__cudnn_desc_t b = NULL, y = NULL;
  CHOIR_TRY(operand(cudnn, graph, &image, B, &b));
  CHOIR_TRY(operand(cudnn, graph, conv->y, Y, &y));
  return choir__cudnn_add(cudnn, graph, conv->y->dtype, x, b, y);
}

static choir_status_t build_one(const choir__cudnn_t* cudnn,
                                const choir__conv_t* conv, plan_t* plan) {
  choir__cudnn_graph_t* graph = &plan->first;
  choir__cudnn_desc_t y = NULL;
  if (conv->kind == CHOIR__CONV_FORWARD) {
    CHOIR_TRY(add_virtual(cudnn, graph, conv, &y));
    CHOIR_TRY(add_conv(cudnn, graph, conv, y));
    CHOIR_TRY(add_bias(cudnn, graph, conv, y));
  } else {
    CHOIR_TRY(operand(cudnn, graph, conv->y, Y, &y));
    CHOIR_TRY(add_conv(cudnn, graph, conv, y));
  }
  return choir__cudnn_choose(cudnn, graph, conv->y->dtype);
}

static choir_status_t build_two(const choir__cudnn_t* cudnn,
                                const choir__conv_t* conv, plan_t* plan) {
  const choir_dtype_t dtype = conv->y->dtype;
  choir__cudnn_desc_t to = NULL, from = NULL;
  CHOIR_TRY(choir__cudnn_tensor(cudnn, &plan->first, conv->y, BETWEEN,
                                MOST_ALIGNMENT, false, &to));
  CHOIR_TRY(add_conv(cudnn, &plan->first, conv, to));
  CHOIR_TRY(choir__cudnn_choose(cudnn, &plan->first, dtype));
  CHOIR_TRY(choir__cudnn_tensor(cudnn, &plan->second, conv->y, BETWEEN,
                                MOST_ALIGNMENT, false, &from));
  CHOIR_TRY(add_bias(cudnn, &plan->second, conv, from));
  CHOIR_TRY(choir__cudnn_choose(cudnn, &plan->second, dtype));
  plan->between_bytes =
      (size_t)choir_view_count(conv->y) * choir_dtype_bytes(dtype);
  return NULL;
}

// Leaves has_engine false, and says why, when the library cannot do it.
static choir_status_t build(const choir__cudnn_t* cudnn,
                            const choir__conv_t* conv, plan_t* plan) {
  choir_status_t status = build_one(cudnn, conv, plan);
  if (choir_status_code(status) == CHOIR_STATUS_UNIMPLEMENTED &&
      conv->kind == CHOIR__CONV_FORWARD) {
    choir_status_free(status);
    choir__cudnn_graph_close(cudnn, &plan->first);
    status = build_two(cudnn, conv, plan);
  }
  plan->has_engine = !status;
  if (choir_status_code(status) != CHOIR_STATUS_UNIMPLEMENTED) return status;
  char text[160];
  choir_log(CHOIR_LOG_WARNING, "tensor", "%s with y %s runs on the host: %s",
            conv->record->kernel->name,
            choir_view_print(conv->y, text, sizeof(text)),
            choir_status_message(status));
  choir_status_free(status);
  choir__cudnn_graph_close(cudnn, &plan->first);
  choir__cudnn_graph_close(cudnn, &plan->second);
  return NULL;
}

// The problem's plan, made if there is none. Under the lock.
static choir_status_t take_plan(choir__cudnn_t* cudnn,
                                const choir__conv_t* conv, plan_t** out_plan) {
  choir__key_t key;
  key_of(conv, &key);
  CHOIR_TRY(choir__key_check(&key, "cuDNN plan"));
  *out_plan = (plan_t*)choir__cuda_plans_find(&cudnn->plans, &key);
  if (*out_plan) return NULL;
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(cudnn->objects, sizeof(plan_t), "cuDNN plan", &memory));
  plan_t* plan = memory;
  plan->base.key = key;
  choir_status_t status = build(cudnn, conv, plan);
  if (status) {
    choir__cudnn_plan_destroy(cudnn, &plan->base);
    return status;
  }
  choir__cudnn_plan_destroy(cudnn,
                            choir__cuda_plans_keep(&cudnn->plans, &plan->base));
  *out_plan = plan;
  return NULL;
}

// ---- Runs ----

static size_t whole(size_t bytes) { return (bytes + 255) / 256 * 256; }

// What lies between two graphs comes first in the scratch memory, then the
// workspace, which the graphs use in turn.
static choir_status_t launch(const choir__cudnn_t* cudnn,
                             const choir__conv_t* conv, const plan_t* plan,
                             char* scratch, choir_stream_t* stream) {
  char* workspace = scratch ? scratch + whole(plan->between_bytes) : NULL;
  void* x = choir__cuda_data(conv->x);
  void* w = choir__cuda_data(conv->w);
  void* y = choir__cuda_data(conv->y);
  if (conv->kind != CHOIR__CONV_FORWARD) {
    const int64_t ids[] = {X, W, Y};
    void* const data[] = {x, w, y};
    return choir__cudnn_run(cudnn, &plan->first, ids, data, 3, workspace,
                            stream);
  }
  void* b = choir__cuda_data(conv->b);
  if (plan->between_bytes == 0) {
    const int64_t ids[] = {X, W, B, Y};
    void* const data[] = {x, w, b, y};
    return choir__cudnn_run(cudnn, &plan->first, ids, data, 4, workspace,
                            stream);
  }
  const int64_t first_ids[] = {X, W, BETWEEN};
  void* const first_data[] = {x, w, scratch};
  CHOIR_TRY(choir__cudnn_run(cudnn, &plan->first, first_ids, first_data, 3,
                             workspace, stream));
  const int64_t second_ids[] = {BETWEEN, B, Y};
  void* const second_data[] = {scratch, b, y};
  return choir__cudnn_run(cudnn, &plan->second, second_ids, second_data, 3,
                          workspace, stream);
}

// *out_done: false when the library has no engine for it.
static choir_status_t convolve(choir__cudnn_t* cudnn, const choir__conv_t* conv,
                               choir_stream_t* stream, bool* out_done) {
  plan_t* plan = NULL;
  CHOIR_TRY(take_plan(cudnn, conv, &plan));
  *out_done = plan->has_engine;
  if (!plan->has_engine) return NULL;
  size_t bytes = plan->first.workspace_bytes;
  if (bytes < plan->second.workspace_bytes)
    bytes = plan->second.workspace_bytes;
  void* scratch = NULL;
  CHOIR_TRY_NOTE(
      choir__cuda_scratch(stream, whole(plan->between_bytes) + bytes, &scratch),
      "workspace of cuDNN");
  return launch(cudnn, conv, plan, scratch, stream);
}

// db: the sum over the rows of dy.
static choir_status_t add_up_bias(const choir__conv_t* conv,
                                  choir_stream_t* stream) {
  const choir_view_t operands[2] = {rows_of(conv->y), *conv->b};
  const choir_sum_attrs_t attrs = {.axis = 0, .keep_dims = false};
  const choir_record_t sum = {.operands = operands,
                              .src_count = 1,
                              .dst_count = 1,
                              .accumulate = conv->record->accumulate,
                              .attrs = &attrs,
                              .attrs_bytes = sizeof(attrs),
                              .label = conv->record->label};
  return choir__run_inside(CHOIR_OP_SUM, &sum, stream);
}

static choir_status_t activate(const choir__conv_t* conv,
                               choir_stream_t* stream) {
  const choir_view_t operands[2] = {*conv->y, *conv->y};
  const choir_record_t relu = {.operands = operands,
                               .src_count = 1,
                               .dst_count = 1,
                               .label = conv->record->label};
  return choir__run_inside(CHOIR_OP_RELU, &relu, stream);
}

static choir_status_t run(const choir__conv_t* conv, choir_stream_t* stream) {
  choir__cudnn_t* cudnn = NULL;
  CHOIR_TRY(choir__cudnn_of(choir_stream_device(stream), &cudnn));
  bool is_done = false;
  pthread_mutex_lock(&cudnn->lock);
  choir_status_t status = convolve(cudnn, conv, stream, &is_done);
  pthread_mutex_unlock(&cudnn->lock);
  CHOIR_TRY(status);
  if (!is_done) return choir__run_on_host(conv->record, stream);
  if (conv->kind == CHOIR__CONV_GRAD_WEIGHT) return add_up_bias(conv, stream);
  return conv->kind == CHOIR__CONV_FORWARD &&
                 conv->attrs->activation == CHOIR_ACTIVATION_RELU
             ? activate(conv, stream)
             : NULL;
}

#define CONV(OP, name, kind)                                     \
  static bool name##_supports(const choir_record_t* record) {    \
    const choir__conv_t conv = choir__conv_of(record, kind);     \
    return fits(&conv) && choir__cudnn_is_there();               \
  }                                                              \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    const choir__conv_t conv = choir__conv_of(record, kind);     \
    return run(&conv, stream);                                   \
  }                                                              \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cudnn", name##_run, name##_supports)
CONV(CONV2D, conv2d, CHOIR__CONV_FORWARD)
CONV(CONV2D_GRAD_DATA, conv2d_grad_data, CHOIR__CONV_GRAD_DATA)
CONV(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, CHOIR__CONV_GRAD_WEIGHT)

static bool conv_transpose2d_supports(const choir_record_t* record) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return choir__cuda_conv2d_grad_data.supports(&inside.record);
}
CHOIR__CUDA_OP_KERNEL(CONV_TRANSPOSE2D, conv_transpose2d, "cudnn",
                      choir__conv_transpose2d_run, conv_transpose2d_supports)
