// SPDX-License-Identifier: Apache-2.0
// Convolutions by oneDNN. Images are given to it channels-last: told to choose
// for itself it pads channels to 16, which is slower at the sizes of small
// networks. Weights are reordered from the parameter's own strides into what
// the primitive likes, and counted: in each step of a training, and once while
// they stay the same.
#include <string.h>

#include "tensor/kernels/convolution.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_conv2d.h"
#include "tensor/ops/conv2d.h"

static bool conv_fits(const choir__conv_t* conv) {
  // The activation comes after the convolution, in place: where the result is
  // added, it would be applied to what was there before, too.
  if (conv->kind == CHOIR__CONV_FORWARD && conv->record->accumulate &&
      conv->attrs->activation != CHOIR_ACTIVATION_NONE)
    return false;
  return choir__dnnl_takes_dtypes(conv->record) && conv->x->ndim == 4 &&
         conv->w->ndim == 4 && conv->y->ndim == 4 &&
         choir__elements_are_distinct(conv->x) &&
         choir__elements_are_distinct(conv->w) &&
         choir__elements_are_distinct(conv->y) &&
         (!conv->b ||
          (conv->b->ndim == 1 && choir__elements_are_distinct(conv->b)));
}

// ---- Descriptors ----

static choir_status_t make_tagged_desc(choir_dtype_t dtype, int ndims,
                                       const dnnl_dims_t shape,
                                       dnnl_format_tag_t tag,
                                       dnnl_memory_desc_t* out) {
  CHOIR__DNNL_TRY(dnnl_memory_desc_create_with_tag(
      out, ndims, shape, choir__dnnl_dtype(dtype), tag));
  return NULL;
}

static choir_status_t make_strided_desc(choir_dtype_t dtype, int ndims,
                                        const dnnl_dims_t shape,
                                        const dnnl_dims_t strides,
                                        dnnl_memory_desc_t* out) {
  CHOIR__DNNL_TRY(dnnl_memory_desc_create_with_strides(
      out, ndims, shape, choir__dnnl_dtype(dtype), strides));
  return NULL;
}

static choir_dtype_t factors_of(const choir__conv_t* conv) {
  return choir_record_src(conv->record, 0)->dtype;
}

// What the primitive has of an operand that is a result of `kind`: what is
// added has not been rounded.
static choir_dtype_t dtype_of(const choir__conv_t* conv,
                              choir__conv_kind_t kind,
                              const choir_view_t* view) {
  return conv->kind == kind && conv->record->accumulate ? CHOIR_DTYPE_F32
                                                        : view->dtype;
}

// `own` describes the operand's memory, `wanted` the primitive's:
// channels-last, with elements of `dtype`.
static choir_status_t image_descs(const choir_view_t* view, choir_dtype_t dtype,
                                  dnnl_memory_desc_t* wanted,
                                  dnnl_memory_desc_t* own) {
  static const int kOrder[] = {1, 3, 2, 0};  // inner to outer: c, w, h, n
  dnnl_dims_t shape = {0}, strides = {0};
  int64_t next = 1;
  for (int i = 0; i < 4; i++) {
    const int k = kOrder[i];
    shape[k] = view->shape[k];
    // A dimension of size 1 takes the stride of `wanted`, so that equal memory
    // has equal descriptors.
    strides[k] = shape[k] == 1 ? next : view->strides[k];
    next *= shape[k];
  }
  CHOIR_TRY(make_tagged_desc(dtype, 4, shape, dnnl_nhwc, wanted));
  return make_strided_desc(view->dtype, 4, shape, strides, own);
}

// Weights (O, I/g, kh, kw), for oneDNN with a dimension of groups in front if
// there are any. hint: of the convolution whose gradient they are.
static choir_status_t weights_descs(const choir__conv_t* conv,
                                    choir_dtype_t dtype,
                                    dnnl_memory_desc_t* own,
                                    dnnl_memory_desc_t* any,
                                    dnnl_memory_desc_t* hint) {
  const choir_view_t* w = conv->w;
  const int64_t groups = conv->attrs->groups;
  dnnl_dims_t shape = {0}, strides = {0};
  int n = 0;
  if (groups > 1) {
    shape[n] = groups;
    strides[n++] = w->strides[0] * (w->shape[0] / groups);
  }
  for (int k = 0; k < 4; k++) {
    shape[n] = k == 0 ? w->shape[0] / groups : w->shape[k];
    strides[n++] = w->strides[k] > 0 ? w->strides[k] : 1;
  }
  CHOIR_TRY(make_strided_desc(w->dtype, n, shape, strides, own));
  CHOIR_TRY(make_tagged_desc(dtype, n, shape, dnnl_format_tag_any, any));
  return make_tagged_desc(factors_of(conv), n, shape, dnnl_format_tag_any,
                          hint);
}

static choir_status_t vector_desc(const choir_view_t* view, choir_dtype_t dtype,
                                  int64_t stride, dnnl_memory_desc_t* out) {
  const dnnl_dims_t shape = {view->shape[0]};
  const dnnl_dims_t strides = {view->shape[0] > 1 ? stride : 1};
  return make_strided_desc(dtype, 1, shape, strides, out);
}

typedef struct conv_descs_s {
  dnnl_memory_desc_t x_own, x, x_hint, w_own, w_any, w_hint, b_own, b, y_own, y;
  dnnl_dims_t stride, dilation, before, after;
} conv_descs_t;

static void destroy_descs(conv_descs_t* d) {
  const dnnl_memory_desc_t all[] = {d->x_own, d->x,      d->x_hint, d->w_own,
                                    d->w_any, d->w_hint, d->b_own,  d->b,
                                    d->y_own, d->y};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
    dnnl_memory_desc_destroy(all[i]);
  memset(d, 0, sizeof(*d));
}

// Into zeros. Destroy them also after a failure.
static choir_status_t describe(const choir__conv_t* conv, conv_descs_t* d) {
  dnnl_memory_desc_t unused = NULL;
  const choir_dtype_t x = dtype_of(conv, CHOIR__CONV_GRAD_DATA, conv->x);
  const choir_dtype_t y = dtype_of(conv, CHOIR__CONV_FORWARD, conv->y);
  const choir_dtype_t w = dtype_of(conv, CHOIR__CONV_GRAD_WEIGHT, conv->w);
  CHOIR_TRY(image_descs(conv->x, x, &d->x, &d->x_own));
  CHOIR_TRY(image_descs(conv->y, y, &d->y, &d->y_own));
  choir_status_t status =
      image_descs(conv->x, factors_of(conv), &d->x_hint, &unused);
  dnnl_memory_desc_destroy(unused);
  CHOIR_TRY(status);
  CHOIR_TRY(weights_descs(conv, w, &d->w_own, &d->w_any, &d->w_hint));
  if (conv->b) {
    const choir_dtype_t b = dtype_of(conv, CHOIR__CONV_GRAD_WEIGHT, conv->b);
    CHOIR_TRY(
        vector_desc(conv->b, conv->b->dtype, conv->b->strides[0], &d->b_own));
    CHOIR_TRY(vector_desc(conv->b, b, 1, &d->b));
  }
  for (int k = 0; k < 2; k++) {
    const int64_t dilation = conv->attrs->dilation[k];
    const int64_t window = (conv->w->shape[2 + k] - 1) * dilation + 1;
    d->stride[k] = conv->attrs->stride[k];
    d->dilation[k] = dilation - 1;  // oneDNN counts the holes
    d->before[k] = conv->before[k];
    // What the last window needs behind the image; negative where rows are
    // left over.
    d->after[k] = (conv->y->shape[2 + k] - 1) * d->stride[k] + window -
                  conv->x->shape[2 + k] - d->before[k];
  }
  return NULL;
}

// ---- Plans ----

// The descriptor of the call itself; a gradient's takes the forward one as a
// hint.
static choir_status_t conv_desc(const choir__conv_t* conv,
                                const conv_descs_t* d, dnnl_engine_t engine,
                                dnnl_primitive_desc_t* out) {
  dnnl_primitive_attr_t attr;
  CHOIR_TRY(choir__dnnl_attr(false, &attr));
  dnnl_primitive_desc_t hint = NULL;
  dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
      &hint, engine, dnnl_forward_training, dnnl_convolution_auto, d->x_hint,
      d->w_hint, conv->kind == CHOIR__CONV_GRAD_DATA ? NULL : d->b, d->y,
      d->stride, d->dilation, d->before, d->after, attr);
  if (conv->kind == CHOIR__CONV_FORWARD) {
    *out = hint;
    hint = NULL;
  } else if (status == dnnl_success) {
    status = conv->kind == CHOIR__CONV_GRAD_DATA
                 ? dnnl_convolution_backward_data_primitive_desc_create(
                       out, engine, dnnl_convolution_auto, d->x, d->w_any, d->y,
                       d->stride, d->dilation, d->before, d->after, hint, attr)
                 : dnnl_convolution_backward_weights_primitive_desc_create(
                       out, engine, dnnl_convolution_auto, d->x, d->w_any, d->b,
                       d->y, d->stride, d->dilation, d->before, d->after, hint,
                       attr);
  }
  if (hint) dnnl_primitive_desc_destroy(hint);
  dnnl_primitive_attr_destroy(attr);
  CHOIR__DNNL_TRY(status);
  return NULL;
}

static choir_status_t build_calls(const choir__conv_t* conv,
                                  const conv_descs_t* d,
                                  choir__dnnl_plan_t* plan,
                                  dnnl_primitive_desc_t pd) {
  const bool accumulate = conv->record->accumulate;
  const_dnnl_memory_desc_t w = dnnl_primitive_desc_query_md(
      pd,
      conv->kind == CHOIR__CONV_GRAD_WEIGHT ? dnnl_query_diff_weights_md
                                            : dnnl_query_weights_md,
      0);
  choir__dnnl_slot_t first, second, third = -1;
  choir__dnnl_output_t out, bias_out = {-1, -1, false};
  dnnl_primitive_desc_t own_pd = NULL;
  CHOIR__DNNL_TRY(dnnl_primitive_desc_clone(&own_pd, pd));
  choir_status_t status = NULL;
  // Operands are numbered as in the record: sources, then destinations.
  switch (conv->kind) {
    case CHOIR__CONV_FORWARD: {
      status = choir__dnnl_input(plan, 0, d->x_own, d->x, &first);
      if (!status) status = choir__dnnl_weights(plan, 1, d->w_own, w, &second);
      if (!status) status = choir__dnnl_input(plan, 2, d->b_own, d->b, &third);
      if (!status)
        status = choir__dnnl_output(plan, 3, d->y_own, d->y, accumulate, &out);
      if (status) break;
      const int32_t arguments[][2] = {{DNNL_ARG_SRC, first},
                                      {DNNL_ARG_WEIGHTS, second},
                                      {DNNL_ARG_BIAS, third},
                                      {DNNL_ARG_DST, out.slot}};
      status = choir__dnnl_call(plan, own_pd, arguments, 4);
      own_pd = NULL;
      break;
    }
    case CHOIR__CONV_GRAD_DATA: {
      status = choir__dnnl_input(plan, 1, d->w_own, w, &first);
      if (!status) status = choir__dnnl_input(plan, 2, d->y_own, d->y, &second);
      if (!status)
        status = choir__dnnl_output(plan, 3, d->x_own, d->x, accumulate, &out);
      if (status) break;
      const int32_t arguments[][2] = {{DNNL_ARG_WEIGHTS, first},
                                      {DNNL_ARG_DIFF_DST, second},
                                      {DNNL_ARG_DIFF_SRC, out.slot}};
      status = choir__dnnl_call(plan, own_pd, arguments, 3);
      own_pd = NULL;
      break;
    }
    case CHOIR__CONV_GRAD_WEIGHT: {
      status = choir__dnnl_input(plan, 0, d->x_own, d->x, &first);
      if (!status) status = choir__dnnl_input(plan, 2, d->y_own, d->y, &second);
      if (!status)
        status = choir__dnnl_output(plan, 3, d->w_own, w, accumulate, &out);
      if (!status)
        status =
            choir__dnnl_output(plan, 4, d->b_own, d->b, accumulate, &bias_out);
      if (status) break;
      const int32_t arguments[][2] = {{DNNL_ARG_SRC, first},
                                      {DNNL_ARG_DIFF_DST, second},
                                      {DNNL_ARG_DIFF_WEIGHTS, out.slot},
                                      {DNNL_ARG_DIFF_BIAS, bias_out.slot}};
      status = choir__dnnl_call(plan, own_pd, arguments, 4);
      own_pd = NULL;
      break;
    }
  }
  if (own_pd) dnnl_primitive_desc_destroy(own_pd);
  if (!status) status = choir__dnnl_output_finish(plan, &out);
  if (!status && conv->kind == CHOIR__CONV_GRAD_WEIGHT)
    status = choir__dnnl_output_finish(plan, &bias_out);
  return status;
}

static choir_status_t build(choir__dnnl_plan_t* plan, dnnl_engine_t engine,
                            const void* problem) {
  const choir__conv_t* conv = problem;
  conv_descs_t descs = {.x_own = NULL};
  dnnl_primitive_desc_t pd = NULL;
  choir_status_t status = describe(conv, &descs);
  if (!status) status = conv_desc(conv, &descs, engine, &pd);
  if (!status) status = build_calls(conv, &descs, plan, pd);
  if (pd) dnnl_primitive_desc_destroy(pd);
  destroy_descs(&descs);
  return status;
}

static choir_status_t conv_run(const choir_record_t* record,
                               choir_stream_t* stream, choir__conv_kind_t kind,
                               const choir__dnnl_blocks_t* blocks) {
  const choir__conv_t conv = choir__conv_of(record, kind);
  choir__key_t key = {.count = 0};
  choir__key_add(&key, kind);
  choir__key_add(&key, record->accumulate);
  choir__key_add_view(&key, conv.x);
  choir__key_add_view(&key, conv.w);
  choir__key_add_view(&key, conv.y);
  if (conv.b) choir__key_add_view(&key, conv.b);
  for (int k = 0; k < 2; k++) {
    choir__key_add(&key, conv.attrs->stride[k]);
    choir__key_add(&key, conv.before[k]);
    choir__key_add(&key, conv.attrs->dilation[k]);
  }
  choir__key_add(&key, conv.attrs->groups);
  void* operands[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++)
    operands[i] = choir__view_data(&record->operands[i]);
  choir__dnnl_blocks_t keeping = *blocks;
  keeping.record = record;
  CHOIR_TRY_NOTE(
      choir__dnnl_run_blocks(&key, build, &conv, stream, operands, &keeping),
      "%s", record->kernel->name);
  return NULL;
}

choir_status_t choir__dnnl_conv2d_blocks(const choir_record_t* record,
                                         choir_stream_t* stream,
                                         const choir__dnnl_blocks_t* blocks) {
  return conv_run(record, stream, CHOIR__CONV_FORWARD, blocks);
}

// In place, by the op's own loop: oneDNN's ReLU makes 0 of a NaN.
choir_status_t choir__dnnl_conv2d_activate(const choir_record_t* record,
                                           choir_stream_t* stream) {
  const choir_conv2d_attrs_t* attrs = record->attrs;
  if (attrs->activation != CHOIR_ACTIVATION_RELU) return NULL;
  const choir_view_t* y = choir_record_dst(record, 0);
  const choir_view_t operands[] = {*y, *y};
  const choir_record_t relu = {
      .operands = operands, .src_count = 1, .dst_count = 1};
  return choir__run_inside(CHOIR_OP_RELU, &relu, stream);
}

static const size_t no_strides[CHOIR_MAX_OPERANDS] = {0};
static const choir__dnnl_blocks_t whole = {.count = 1, .strides = no_strides};

#define CONV(OP, name, kind)                                     \
  static bool name##_supports(const choir_record_t* record) {    \
    const choir__conv_t conv = choir__conv_of(record, kind);     \
    return conv_fits(&conv);                                     \
  }                                                              \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    CHOIR_TRY(conv_run(record, stream, kind, &whole));           \
    return kind == CHOIR__CONV_FORWARD                           \
               ? choir__dnnl_conv2d_activate(record, stream)     \
               : NULL;                                           \
  }                                                              \
  const choir_op_kernel_t choir__cpu_##name = CHOIR_OP_KERNEL(   \
      CHOIR_OP_##OP, #name, "dnnl", name##_run, name##_supports);
CONV(CONV2D, conv2d, CHOIR__CONV_FORWARD)
CONV(CONV2D_GRAD_DATA, conv2d_grad_data, CHOIR__CONV_GRAD_DATA)
CONV(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, CHOIR__CONV_GRAD_WEIGHT)

static bool conv_transpose2d_supports(const choir_record_t* record) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return choir__cpu_conv2d_grad_data.supports(&inside.record);
}
const choir_op_kernel_t choir__cpu_conv_transpose2d =
    CHOIR_OP_KERNEL(CHOIR_OP_CONV_TRANSPOSE2D, "conv_transpose2d", "dnnl",
                    choir__conv_transpose2d_run, conv_transpose2d_supports);
