// SPDX-License-Identifier: Apache-2.0
// where: a condition of any dtype becomes bytes, block by block, and those
// choose between elements of any dtype by their size.
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_moves.h"
#include "tensor/strided_internal.h"

enum { BLOCK = 1024, DST = 0, CONDITION = 1, LEFT = 2, RIGHT = 3 };

// A condition is true where a bit of `mask` is set: all but the sign, as -0 is
// 0 and NaN is not.
typedef void (*test_fn_t)(uint8_t* is_true, const void* condition, int64_t step,
                          uint64_t mask, int64_t count);
// y[i] = is_true[i] ? left[i * left_step] : right[i * right_step].
typedef void (*choose_fn_t)(void* dst, const uint8_t* is_true, const void* left,
                            int64_t left_step, const void* right,
                            int64_t right_step, int64_t count);

#define LOOP(expression)                            \
  do {                                              \
    CHOIR__INDEPENDENT                              \
    for (int64_t i = 0; i < count; i++) expression; \
  } while (false)

#define WHERE(bytes, type)                                                     \
  CHOIR__BODY void test_##bytes##_body(uint8_t* is_true,                       \
                                       const void* condition, int64_t step,    \
                                       uint64_t mask, int64_t count) {         \
    const type* x = condition;                                                 \
    const type bits = (type)mask;                                              \
    if (step == 1)                                                             \
      LOOP(is_true[i] = (x[i] & bits) != 0);                                   \
    else                                                                       \
      LOOP(is_true[i] = (x[i * step] & bits) != 0);                            \
  }                                                                            \
  CHOIR__ISA_VARIANTS(test_##bytes,                                            \
                      (uint8_t * is_true, const void* condition, int64_t step, \
                       uint64_t mask, int64_t count),                          \
                      (is_true, condition, step, mask, count))                 \
  /* Both are read: AVX2 cannot read 16 bits here and there. */                \
  CHOIR__BODY type either_##bytes(uint8_t is_true, type a, type b) {           \
    return is_true ? a : b;                                                    \
  }                                                                            \
  CHOIR__BODY void choose_##bytes##_body(                                      \
      void* dst, const uint8_t* is_true, const void* left, int64_t left_step,  \
      const void* right, int64_t right_step, int64_t count) {                  \
    type* y = dst;                                                             \
    const type *a = left, *b = right;                                          \
    const type a0 = *a, b0 = *b;                                               \
    if (left_step == 1 && right_step == 1)                                     \
      LOOP(y[i] = either_##bytes(is_true[i], a[i], b[i]));                     \
    else if (left_step == 1 && right_step == 0)                                \
      LOOP(y[i] = either_##bytes(is_true[i], a[i], b0));                       \
    else if (left_step == 0 && right_step == 1)                                \
      LOOP(y[i] = either_##bytes(is_true[i], a0, b[i]));                       \
    else                                                                       \
      LOOP(y[i] = either_##bytes(is_true[i], a[i * left_step],                 \
                                 b[i * right_step]));                          \
  }                                                                            \
  CHOIR__ISA_VARIANTS(                                                         \
      choose_##bytes,                                                          \
      (void* dst, const uint8_t* is_true, const void* left, int64_t left_step, \
       const void* right, int64_t right_step, int64_t count),                  \
      (dst, is_true, left, left_step, right, right_step, count))
WHERE(1, uint8_t)
WHERE(2, uint16_t)
WHERE(4, uint32_t)
WHERE(8, uint64_t)

static const test_fn_t tests[] = {
    [1] = test_1, [2] = test_2, [4] = test_4, [8] = test_8};
static const choose_fn_t chooses[] = {
    [1] = choose_1, [2] = choose_2, [4] = choose_4, [8] = choose_8};

typedef struct where_s {
  int64_t bytes;  // of an element
  int64_t condition_bytes;
  uint64_t mask;
  choir__move_fn_t move;
} where_t;

static void where_plane(const choir__plane_t* plane) {
  const where_t* where = plane->params;
  const int64_t* steps = plane->column_stride;
  uint8_t is_true[BLOCK];
  uint64_t chosen[BLOCK];
  for (int64_t r = 0; r < plane->rows; r++) {
    for (int64_t i = 0; i < plane->columns; i += BLOCK) {
      const int64_t rest = plane->columns - i;
      const int64_t count = rest < BLOCK ? rest : BLOCK;
      char* at[4];
      for (int32_t k = 0; k < 4; k++)
        at[k] = plane->data[k] +
                (r * plane->row_stride[k] + i * steps[k]) *
                    (k == CONDITION ? where->condition_bytes : where->bytes);
      tests[where->condition_bytes](is_true, at[CONDITION], steps[CONDITION],
                                    where->mask, count);
      chooses[where->bytes](chosen, is_true, at[LEFT], steps[LEFT], at[RIGHT],
                            steps[RIGHT], count);
      where->move(at[DST], steps[DST], chosen, 1, count);
    }
  }
}

static bool nest_of(const choir_record_t* record, const choir_view_t** views,
                    choir__nest_t* nest) {
  views[DST] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < 3; i++) views[i + 1] = choir_record_src(record, i);
  return choir__nest_make(views, 4, nest);
}

static bool where_supports(const choir_record_t* record) {
  const choir_view_t* views[4];
  choir__nest_t nest;
  return nest_of(record, views, &nest);
}

static choir_status_t where_run(const choir_record_t* record,
                                choir_stream_t* stream) {
  const choir_view_t* views[4];
  choir__nest_t nest;
  if (!nest_of(record, views, &nest))
    return CHOIR_ERROR(INTERNAL, "where/cpu: operands do not broadcast");
  void* data[4];
  size_t sizes[4];
  for (int32_t i = 0; i < 4; i++) {
    data[i] = choir__view_data(views[i]);
    sizes[i] = choir_dtype_bytes(views[i]->dtype);
  }
  const where_t where = {
      .bytes = (int64_t)sizes[DST],
      .condition_bytes = (int64_t)sizes[CONDITION],
      .mask = choir__truth_mask(views[CONDITION]->dtype),
      .move = choir__cpu_move(views[DST]->dtype, record->accumulate)};
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), where_plane,
                  &where);
  return NULL;
}

CHOIR__CPU_OP_KERNEL(WHERE, where, "cpu", where_run, where_supports)
