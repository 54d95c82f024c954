// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_move.h"

#include <string.h>

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/cuda/cuda_nest_host.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/strided_internal.h"

// A kernel for operands that lie densely, and one for all others.
typedef struct forms_s {
  choir_cuda_kernel_t dense;
  choir_cuda_kernel_t strided;
} forms_t;
#define FORMS(name)                                            \
  {                                                            \
    {&choir__cuda_move_module, "choir_" #name "_dense"},       \
        {&choir__cuda_move_module, "choir_" #name "_strided"}, \
  }

static const forms_t copies[] = {
#define CHOIR__MOVE(bytes, type) [bytes] = FORMS(copy_##bytes),
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__MOVE
};
static const forms_t fills[] = {
#define CHOIR__MOVE(bytes, type) [bytes] = FORMS(fill_##bytes),
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__MOVE
};
static const forms_t casts[CHOIR_DTYPE_COUNT][CHOIR_DTYPE_COUNT] = {
#define CHOIR__CAST(FROM, TO) \
  [CHOIR_DTYPE_##FROM][CHOIR_DTYPE_##TO] = FORMS(cast_##FROM##_##TO),
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__CAST
};
static const forms_t relus[CHOIR_DTYPE_COUNT] = {
#define CHOIR__RELU(TYPE) [CHOIR_DTYPE_##TYPE] = FORMS(relu_##TYPE),
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__RELU
};

// Destination and source.
static void operands(const choir_record_t* record,
                     const choir_view_t** out_views) {
  out_views[0] = choir_record_dst(record, 0);
  out_views[1] = choir_record_src(record, 0);
}

static choir_status_t launch(const choir_record_t* record,
                             choir_stream_t* stream, const forms_t* forms,
                             int32_t count, uint64_t value) {
  const choir_view_t* views[2];
  operands(record, views);
  choir__cuda_move_t params = {.value = value,
                               .accumulate = record->accumulate};
  const bool is_dense = choir__cuda_nest_make(views, count, &params.nest);
  return choir__cuda_nest_launch(stream,
                                 is_dense ? &forms->dense : &forms->strided,
                                 &params.nest, is_dense, &params);
}

static bool covers(const choir_record_t* record) {
  const choir_view_t* views[2];
  operands(record, views);
  return choir__cuda_move_module.image && choir__cuda_nest_covers(views, 2);
}

// ---- Bits as they are ----

static bool copy_supports(const choir_record_t* record) {
  return !record->accumulate &&
         choir_record_src(record, 0)->dtype ==
             choir_record_dst(record, 0)->dtype &&
         covers(record);
}
static choir_status_t copy_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  return launch(record, stream, &copies[choir_dtype_bytes(dtype)], 2, 0);
}

static bool fill_supports(const choir_record_t* record) {
  return !record->accumulate && covers(record);
}
static choir_status_t fill_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  const choir_fill_attrs_t* attrs = record->attrs;
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  unsigned char element[8] = {0};
  choir_element_store(element, dtype, attrs->value);
  uint64_t value;
  memcpy(&value, element, sizeof(value));
  return launch(record, stream, &fills[choir_dtype_bytes(dtype)], 1, value);
}

// ---- Choice ----

static void where_operands(const choir_record_t* record,
                           const choir_view_t** out_views) {
  out_views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < 3; ++i)
    out_views[i + 1] = choir_record_src(record, i);
}
static bool where_supports(const choir_record_t* record) {
  const choir_view_t* views[4];
  where_operands(record, views);
  return !record->accumulate && choir__cuda_move_module.image &&
         choir__cuda_nest_covers(views, 4);
}
static choir_status_t where_run(const choir_record_t* record,
                                choir_stream_t* stream) {
  static const choir_cuda_kernel_t wheres[] = {
#define CHOIR__MOVE(bytes, type) \
  [bytes] = {&choir__cuda_move_module, "choir_where_" #bytes},
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__MOVE
  };
  const choir_view_t* views[4];
  where_operands(record, views);
  choir__cuda_move_t params = {
      .value = choir__truth_mask(views[1]->dtype),
      .condition_bytes = (int32_t)choir_dtype_bytes(views[1]->dtype)};
  (void)choir__cuda_nest_make(views, 4, &params.nest);
  return choir__cuda_nest_launch(stream,
                                 &wheres[choir_dtype_bytes(views[0]->dtype)],
                                 &params.nest, false, &params);
}

// ---- Other dtypes ----

// Sums of the small floats would need a rounding of their own, those of
// integers another width: such records run on the host.
static bool cast_supports(const choir_record_t* record) {
  const choir_dtype_t to = choir_record_dst(record, 0)->dtype;
  if (record->accumulate && to != CHOIR_DTYPE_F32 && to != CHOIR_DTYPE_F64)
    return false;
  return covers(record);
}
static choir_status_t cast_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  const choir_dtype_t from = choir_record_src(record, 0)->dtype;
  const choir_dtype_t to = choir_record_dst(record, 0)->dtype;
  if (from == to && !record->accumulate) return copy_run(record, stream);
  return launch(record, stream, &casts[from][to], 2, 0);
}

static bool relu_supports(const choir_record_t* record) {
  return !record->accumulate &&
         relus[choir_record_dst(record, 0)->dtype].dense.module &&
         covers(record);
}
static choir_status_t relu_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  return launch(record, stream, &relus[choir_record_dst(record, 0)->dtype], 2,
                0);
}

#define KERNEL(OP, kernel, name) \
  CHOIR__CUDA_OP_KERNEL(OP, kernel, "cuda", name##_run, name##_supports)
KERNEL(COPY, copy_bits, copy)
KERNEL(FILL, fill_bits, fill)
KERNEL(CAST, cast, cast)
KERNEL(WHERE, where, where)
KERNEL(RELU, relu_non_f32, relu)
