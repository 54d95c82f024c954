// SPDX-License-Identifier: Apache-2.0
#include "core/graph_backend.h"
#include "tensor/fusion_def.h"
#include "tensor/strided_internal.h"

// Casts that only products read, which round what they read -> none. So no copy
// is made of the f32 parameters of mixed precision. And casts of 16 bits to f32
// that only sums and their like read, which take 16 bits as well -> none.

// The cast that wrote the view, if its result is that and temporary; else NULL.
static const choir_record_t* cast_of(const choir_graph_t* graph,
                                     const choir_view_t* view, int32_t writer) {
  const choir_record_t* cast =
      writer < 0 ? NULL : choir_graph_record(graph, writer);
  return cast && choir__record_op(cast) == CHOIR_OP_CAST && !cast->accumulate &&
                 choir_graph_is_temporary(graph, view) &&
                 choir__views_equal(choir_record_dst(cast, 0), view)
             ? cast
             : NULL;
}

// Whether source i of the record at `node` can be what its cast reads. Of two
// factors the other one has 16 bits and keeps them, or the product were one of
// f32; of two casts the smaller one stays.
static bool may_skip(const choir_graph_t* graph, int32_t node, int32_t i) {
  if (i > 1) return true;
  const choir_record_t* record = choir_graph_record(graph, node);
  const choir_view_t* view = choir_record_src(record, i);
  const choir_view_t* other = choir_record_src(record, i == 0 ? 1 : 0);
  return choir__is_narrow(other->dtype) &&
         (choir_view_count(view) >= choir_view_count(other) ||
          !cast_of(graph, other, choir_graph_writer(graph, other, node)));
}

// The record with `from` for each source that is `to`, on `operands`.
static choir_record_t without_cast(const choir_record_t* record,
                                   const choir_view_t* to,
                                   const choir_view_t* from,
                                   choir_view_t* operands) {
  choir_record_t result = *record;
  const int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count; ++i)
    operands[i] =
        i < record->src_count && choir__views_equal(&record->operands[i], to)
            ? *from
            : record->operands[i];
  result.operands = operands;
  return result;
}

// Whether the op is one that may read what a cast to `dtype` reads: a product,
// which rounds to 16 bits itself, or what has f32 sources and computes in f32.
static bool may_read(const choir_record_t* record, choir_dtype_t dtype) {
  if (choir__record_op(record) == CHOIR_OP_COUNT) return false;
  const choir_op_def_t* def = choir__op_def(choir__record_op(record));
  return dtype == CHOIR_DTYPE_F32 ? def->is_wide : def->is_product;
}

// Whether the device has a kernel of its own for the record: for sources of one
// dtype, or for a product that reads f32 beside 16 bits.
static bool has_kernel(const choir_graph_t* graph,
                       const choir_record_t* record) {
  const choir_op_kernel_t* kernel =
      choir__native_kernel(choir_graph_device(graph), record);
  const choir_dtype_t dtype = choir_record_src(record, 0)->dtype;
  bool is_of_one = true;
  for (int32_t i = 1; i < record->src_count; ++i) {
    const choir_dtype_t other = choir_record_src(record, i)->dtype;
    is_of_one &= other == dtype || !choir_dtype_is_float(other);
  }
  return kernel && (is_of_one || kernel->rounds_f32);
}

// Whether the record can read what the cast at `at` reads. Nobody wrote to that
// since then; if it is a parameter that a host changes between forward and
// backward, the product sees it, as in f32.
static bool can_read(const choir_graph_t* graph, int32_t at, int32_t node) {
  const choir_record_t* cast = choir_graph_record(graph, at);
  const choir_record_t* record = choir_graph_record(graph, node);
  const choir_view_t* to = choir_record_dst(cast, 0);
  const choir_view_t* from = choir_record_src(cast, 0);
  if (!record || !may_read(record, to->dtype) ||
      choir_graph_writer(graph, from, node) > at)
    return false;
  int32_t uses = 0;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    if (record->operands[i].buffer != to->buffer) continue;
    ++uses;
    if (i >= record->src_count ||
        !choir__views_equal(&record->operands[i], to) ||
        (to->dtype != CHOIR_DTYPE_F32 && !may_skip(graph, node, i)))
      return false;
  }
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  const choir_record_t other = without_cast(record, to, from, operands);
  return uses == 1 && has_kernel(graph, &other);
}

choir_status_t choir__fuse_cast(choir_graph_t* graph, int32_t node) {
  const choir_record_t* record = choir_graph_record(graph, node);
  if (!record || choir__record_op(record) != CHOIR_OP_CAST) return NULL;
  const choir_view_t to = *choir_record_dst(record, 0);
  const choir_view_t from = *choir_record_src(record, 0);
  const bool is_between =
      from.dtype == CHOIR_DTYPE_F32
          ? choir__is_narrow(to.dtype)
          : choir__is_narrow(from.dtype) && to.dtype == CHOIR_DTYPE_F32;
  if (!is_between || !cast_of(graph, &to, node)) return NULL;
  int32_t use = node;
  while ((use = choir_graph_next_use(graph, &to, use)) >= 0)
    if (!can_read(graph, node, use)) return NULL;
  while ((use = choir_graph_next_use(graph, &to, node)) >= 0) {
    choir_view_t operands[CHOIR_MAX_OPERANDS];
    const choir_record_t other =
        without_cast(choir_graph_record(graph, use), &to, &from, operands);
    CHOIR_TRY(choir_graph_put(graph, use, &other));
  }
  choir_graph_drop(graph, node);
  return NULL;
}
