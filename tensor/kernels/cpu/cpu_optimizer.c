// SPDX-License-Identifier: Apache-2.0
// Optimizer steps, by the definition of each (tensor/ops/optimizer_steps.h):
// every rank applies them itself, so the bits must be the same on every
// processor.
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/ops/optimizer_factors.h"

// ---- Loops over a plane of p, g and what is kept ----

// Where nothing is kept nothing is touched: any place will do.
#define STEP_0(name, i) choir__##name##_step_f32(&f, &p[i], g[i], &p[i])
#define STEP_1(name, i) choir__##name##_step_f32(&f, &p[i], g[i], &s[i])
#define STEP_2(name, i) choir__##name##_step_f32(&f, &p[i], g[i], &s[i], &d[i])

#define ROW(plane, type, operand, row) \
  ((type)(plane)->data[operand] + (row) * (plane)->row_stride[operand])

#define PLANE(loop, name, kept)                                          \
  CHOIR__BODY void loop##_plane_body(const choir__plane_t* plane) {      \
    const choir__##name##_f32_t f =                                      \
        *(const choir__##name##_f32_t*)plane->params;                    \
    for (int64_t r = 0; r < plane->rows; r++) {                          \
      float* p = ROW(plane, float*, 0, r);                               \
      const float* g = ROW(plane, const float*, 1, r);                   \
      float* s = kept > 0 ? ROW(plane, float*, 2, r) : NULL;             \
      float* d = kept > 1 ? ROW(plane, float*, 3, r) : NULL;             \
      (void)s;                                                           \
      (void)d;                                                           \
      CHOIR__INDEPENDENT                                                 \
      for (int64_t i = 0; i < plane->columns; i++) STEP_##kept(name, i); \
    }                                                                    \
  }                                                                      \
  CHOIR__ISA_VARIANTS(loop##_plane, (const choir__plane_t* plane), (plane))

PLANE(sgd, sgd, 1)
PLANE(plain_sgd, sgd, 0)  // without momentum, where v may be empty
PLANE(adam, adam, 2)
PLANE(rmsprop, rmsprop, 1)
PLANE(adagrad, adagrad, 1)
PLANE(adadelta, adadelta, 2)

// ---- Records ----

// The first `count` sources as a nest whose last dimension is dense in all of
// them.
static bool update_nest(const choir_record_t* record, int32_t count,
                        choir__nest_t* nest) {
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  if (!choir__all_f32(record) || record->accumulate ||
      count > CHOIR__NEST_OPERANDS)
    return false;
  for (int32_t i = 0; i < count; i++) {
    views[i] = choir_record_src(record, i);
    if (!choir_view_same_shape(views[i], views[0])) return false;
  }
  if (!choir__nest_make(views, count, nest)) return false;
  for (int32_t i = 0; i < count; i++)
    if (nest->strides[i][nest->ndim - 1] != 1) return false;
  return true;
}

static choir_status_t update_run(const choir_record_t* record,
                                 choir_stream_t* stream, int32_t count,
                                 void (*plane)(const choir__plane_t*),
                                 const void* params) {
  choir__nest_t nest;
  void* data[CHOIR__NEST_OPERANDS];
  const size_t sizes[CHOIR__NEST_OPERANDS] = {sizeof(float), sizeof(float),
                                              sizeof(float), sizeof(float)};
  if (!update_nest(record, count, &nest))
    return CHOIR_ERROR(INTERNAL, "%s: layout not supported",
                       record->kernel->name);
  for (int32_t i = 0; i < count; i++)
    data[i] = choir__view_data(choir_record_src(record, i));
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), plane,
                  params);
  return NULL;
}

// Without momentum v is not touched.
static bool is_plain(const choir_record_t* record) {
  return ((const choir_sgd_update_attrs_t*)record->attrs)->momentum == 0;
}

static bool sgd_update_supports(const choir_record_t* record) {
  choir__nest_t nest;
  return update_nest(record, is_plain(record) ? 2 : 3, &nest);
}

static choir_status_t sgd_update_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  const choir__sgd_f32_t factors = choir__sgd_make_f32(record->attrs);
  return is_plain(record)
             ? update_run(record, stream, 2, plain_sgd_plane, &factors)
             : update_run(record, stream, 3, sgd_plane, &factors);
}
const choir_op_kernel_t choir__cpu_sgd_update =
    CHOIR_OP_KERNEL(CHOIR_OP_SGD_UPDATE, "sgd_update", "cpu", sgd_update_run,
                    sgd_update_supports);

#define UPDATE(OP, name, kept)                                           \
  static bool name##_update_supports(const choir_record_t* record) {     \
    choir__nest_t nest;                                                  \
    return update_nest(record, 2 + kept, &nest);                         \
  }                                                                      \
  static choir_status_t name##_update_run(const choir_record_t* record,  \
                                          choir_stream_t* stream) {      \
    const choir__##name##_f32_t factors =                                \
        choir__##name##_make_f32(record->attrs);                         \
    return update_run(record, stream, 2 + kept, name##_plane, &factors); \
  }                                                                      \
  const choir_op_kernel_t choir__cpu_##name##_update =                   \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name "_update", "cpu",             \
                      name##_update_run, name##_update_supports);
UPDATE(ADAM_UPDATE, adam, 2)
UPDATE(RMSPROP_UPDATE, rmsprop, 1)
UPDATE(ADAGRAD_UPDATE, adagrad, 1)
UPDATE(ADADELTA_UPDATE, adadelta, 2)
