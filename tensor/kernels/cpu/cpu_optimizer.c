// SPDX-License-Identifier: Apache-2.0
// Optimizer steps, by the entry of each (tensor/optimizers.h): every rank
// applies them itself, so the bits must be the same on every processor.
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/ops/optimizer_factors.h"

enum { OPERANDS = 4 };  // p, g and two states

// p, g and the states; p in the place of a state that there is not, which the
// step does not touch. As a nest whose last dimension is dense in all of them.
static bool make_nest(const choir_record_t* record, choir__nest_t* nest,
                      void** out_data) {
  const choir_view_t* views[OPERANDS];
  if (!choir__all_f32(record) || record->accumulate) return false;
  for (int32_t i = 0; i < OPERANDS; i++) {
    views[i] = choir_record_src(record, i < record->src_count ? i : 0);
    if (i > 1 && choir_view_count(views[i]) == 0)
      views[i] = choir_record_src(record, 0);
    if (!choir_view_same_shape(views[i], views[0])) return false;
    if (out_data) out_data[i] = choir__view_data(views[i]);
  }
  if (!choir__nest_make(views, OPERANDS, nest)) return false;
  for (int32_t i = 0; i < OPERANDS; i++)
    if (nest->strides[i][nest->ndim - 1] != 1) return false;
  return true;
}

static bool supports(const choir_record_t* record) {
  choir__nest_t nest;
  return make_nest(record, &nest, NULL);
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          void (*plane)(const choir__plane_t*),
                          const void* factors) {
  choir__nest_t nest;
  void* data[OPERANDS];
  const size_t sizes[OPERANDS] = {sizeof(float), sizeof(float), sizeof(float),
                                  sizeof(float)};
  if (!make_nest(record, &nest, data))
    return CHOIR_ERROR(INTERNAL, "%s: layout not supported",
                       record->kernel->name);
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), plane,
                  factors);
  return NULL;
}

static inline float* row_of(const choir__plane_t* plane, int32_t operand,
                            int64_t row) {
  return (float*)(void*)plane->data[operand] + row * plane->row_stride[operand];
}

#define UPDATE(T, NAME, name, states, doc)                                  \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {         \
    const choir__##name##_f32_t f =                                         \
        *(const choir__##name##_f32_t*)plane->params;                       \
    for (int64_t r = 0; r < plane->rows; r++) {                             \
      float* p = row_of(plane, 0, r);                                       \
      const float* g = row_of(plane, 1, r);                                 \
      float* s = row_of(plane, 2, r);                                       \
      float* d = row_of(plane, 3, r);                                       \
      CHOIR__INDEPENDENT                                                    \
      for (int64_t i = 0; i < plane->columns; i++)                          \
        choir__##name##_step_f32(&f, &p[i], g[i], &s[i], &d[i]);            \
    }                                                                       \
  }                                                                         \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane)) \
  static choir_status_t name##_run(const choir_record_t* record,            \
                                   choir_stream_t* stream) {                \
    const choir__##name##_f32_t factors =                                   \
        choir__##name##_make_f32(record->attrs);                            \
    return run(record, stream, name##_plane, &factors);                     \
  }                                                                         \
  const choir_op_kernel_t choir__cpu_##name##_update = CHOIR_OP_KERNEL(     \
      CHOIR_OP_##NAME##_UPDATE, #name "_update", "cpu", name##_run, supports);
CHOIR_OPTIMIZER_LIST(UPDATE, )
