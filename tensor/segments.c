// SPDX-License-Identifier: Apache-2.0
// Sums over rows, segment by segment: by a kernel that takes them, or by a call
// for each and additions.
#include <string.h>

#include "core/sum_tree_backend.h"
#include "tensor/op_calls_internal.h"
#include "tensor/op_def.h"

typedef struct segments_s {
  choir_stream_t* stream;
  choir_op_t op;
  choir_tensor_t* const* srcs;
  int32_t src_count;
  uint32_t cut;
  const void* attrs;
  int64_t segment, rows;
  choir_tensor_t** dsts;
  // Results of neighbours, one reference each.
  choir_tensor_t* row[CHOIR__SUM_TREE_NODES + 1][CHOIR_OP_MAX_RESULTS];
  int32_t count;
} segments_t;

static choir_status_t run_segment(segments_t* s, int64_t first) {
  choir_tensor_t* srcs[CHOIR_MAX_OPERANDS] = {NULL};
  const int64_t left = s->rows - first;
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < s->src_count; ++i) {
    if (!(s->cut >> i & 1)) {
      choir_tensor_retain(s->srcs[i]);
      srcs[i] = s->srcs[i];
      continue;
    }
    choir_view_t view = *choir_tensor_view(s->srcs[i]);
    if (choir_view_count(&view) > 0) view.offset += first * view.strides[0];
    view.shape[0] = left < s->segment ? left : s->segment;
    status = choir_tensor_from_view(&view, &srcs[i]);
  }
  choir_tensor_t** results = s->row[s->count];
  memset(results, 0, sizeof s->row[0]);
  // A sum of one is written to its place.
  if (first == 0 && left <= s->segment)
    memcpy(results, s->dsts, sizeof s->row[0]);
  if (!status)
    status = choir_op_run(s->stream, s->op, srcs, s->src_count, s->attrs, false,
                          results);
  for (int32_t i = 0; i < s->src_count; ++i) choir_tensor_release(srcs[i]);
  if (!status) ++s->count;
  return status;
}

static choir_status_t add_two(segments_t* s, bool is_last) {
  choir_tensor_t** left = s->row[s->count - 2];
  choir_tensor_t** right = s->row[s->count - 1];
  for (int32_t i = 0; i < choir_op_result_count(s->op); ++i) {
    choir_tensor_t* both[] = {left[i], right[i]};
    choir_tensor_t* sum = is_last ? s->dsts[i] : left[i];
    CHOIR_TRY(
        choir_op_run(s->stream, CHOIR_OP_ADD, both, 2, NULL, false, &sum));
    if (sum != left[i]) choir_tensor_release(left[i]);
    choir_tensor_release(right[i]);
    left[i] = sum;
    right[i] = NULL;
  }
  --s->count;
  return NULL;
}

static choir_status_t run_segments(segments_t* s) {
  const int64_t leaves = (s->rows - 1) / s->segment + 1;
  choir__sum_tree_t tree = {.leaves = leaves};
  for (int64_t i = 0; i < leaves; ++i) {
    CHOIR_TRY(run_segment(s, i * s->segment));
    for (int32_t n = choir__sum_tree_push(&tree, (choir__node_t){0, i}); n > 0;
         --n)
      CHOIR_TRY(add_two(s, i + 1 == leaves && n == 1));
  }
  memcpy(s->dsts, s->row[0], sizeof s->row[0]);
  return NULL;
}

choir_status_t choir__op_run_segments(choir_stream_t* stream, choir_op_t op,
                                      choir_tensor_t* const* srcs,
                                      int32_t src_count, uint32_t cut,
                                      const void* attrs, int64_t segment,
                                      choir_tensor_t** dsts) {
  if (segment > 0 &&
      choir__op_call_has_kernel(choir_stream_device(stream), op, srcs,
                                src_count, attrs, false, segment, dsts))
    return choir__op_run(stream, NULL, op, srcs, src_count, attrs, false,
                         segment, dsts);
  segments_t s = {.stream = stream,
                  .op = op,
                  .srcs = srcs,
                  .src_count = src_count,
                  .cut = cut,
                  .attrs = attrs,
                  .segment = segment,
                  .dsts = dsts};
  for (int32_t i = 0; i < src_count; ++i) {
    if (!(cut >> i & 1)) continue;
    const int64_t rows = choir_tensor_shape(srcs[i])[0];
    if (s.rows == 0) s.rows = rows;
    if (rows != s.rows || rows < 1 || segment < 1)
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s: source %d has %lld rows, those before it %lld, in "
          "segments of %lld; needs as many, and 1 at least",
          choir_op_name(op), (int)i, (long long)rows, (long long)s.rows,
          (long long)segment);
  }
  choir_status_t status = run_segments(&s);
  for (int32_t k = 0; status && k < s.count; ++k)
    for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
      if (s.row[k][i] != dsts[i]) choir_tensor_release(s.row[k][i]);
  return status;
}
