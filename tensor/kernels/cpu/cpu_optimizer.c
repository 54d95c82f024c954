// SPDX-License-Identifier: Apache-2.0
// Optimizer steps. Every rank applies them itself, so the bits must be the
// same on every processor: each step is the definition in tensor/ops.h, with
// fmaf where that says so, and no other instruction is fused.
#include <math.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

typedef struct sgd_s {
  float scale, weight_decay, momentum, fresh, step;
  bool has_momentum, nesterov;
} sgd_t;

// p, g, v
CHOIR__BODY void sgd_plane_body(const choir__plane_t* plane) {
  const sgd_t a = *(const sgd_t*)plane->params;
  const int64_t n = plane->columns;
  for (int64_t r = 0; r < plane->rows; r++) {
    float* p = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* g = (const float*)plane->data[1] + r * plane->row_stride[1];
    float* v = a.has_momentum
                   ? (float*)plane->data[2] + r * plane->row_stride[2]
                   : NULL;
    if (!a.has_momentum) {
      CHOIR__INDEPENDENT
      for (int64_t i = 0; i < n; i++) {
        const float grad = __builtin_fmaf(a.weight_decay, p[i], a.scale * g[i]);
        p[i] = __builtin_fmaf(a.step, grad, p[i]);
      }
    } else if (a.nesterov) {
      CHOIR__INDEPENDENT
      for (int64_t i = 0; i < n; i++) {
        const float grad = __builtin_fmaf(a.weight_decay, p[i], a.scale * g[i]);
        const float speed = __builtin_fmaf(a.momentum, v[i], a.fresh * grad);
        v[i] = speed;
        p[i] = __builtin_fmaf(a.step, __builtin_fmaf(a.momentum, speed, grad),
                              p[i]);
      }
    } else {
      CHOIR__INDEPENDENT
      for (int64_t i = 0; i < n; i++) {
        const float grad = __builtin_fmaf(a.weight_decay, p[i], a.scale * g[i]);
        const float speed = __builtin_fmaf(a.momentum, v[i], a.fresh * grad);
        v[i] = speed;
        p[i] = __builtin_fmaf(a.step, speed, p[i]);
      }
    }
  }
}
CHOIR__ISA_VARIANTS(sgd_plane, (const choir__plane_t* plane), (plane))

typedef struct adam_s {
  float scale, weight_decay, beta1, fresh1, beta2, fresh2;
  float correction2, epsilon, step;
} adam_t;

// p, g, m, v
CHOIR__BODY void adam_plane_body(const choir__plane_t* plane) {
  const adam_t a = *(const adam_t*)plane->params;
  const int64_t n = plane->columns;
  for (int64_t r = 0; r < plane->rows; r++) {
    float* p = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* g = (const float*)plane->data[1] + r * plane->row_stride[1];
    float* m = (float*)plane->data[2] + r * plane->row_stride[2];
    float* v = (float*)plane->data[3] + r * plane->row_stride[3];
    CHOIR__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
      const float grad = __builtin_fmaf(a.weight_decay, p[i], a.scale * g[i]);
      const float m1 = __builtin_fmaf(a.beta1, m[i], a.fresh1 * grad);
      const float v1 = __builtin_fmaf(a.beta2, v[i], a.fresh2 * (grad * grad));
      m[i] = m1;
      v[i] = v1;
      p[i] = __builtin_fmaf(
          a.step, m1 / (__builtin_sqrtf(v1 / a.correction2) + a.epsilon), p[i]);
    }
  }
}
CHOIR__ISA_VARIANTS(adam_plane, (const choir__plane_t* plane), (plane))

typedef struct mean_square_s {
  float weight_decay, rho, fresh, epsilon, step;
} mean_square_t;

// p, g, s
CHOIR__BODY void rmsprop_plane_body(const choir__plane_t* plane) {
  const mean_square_t a = *(const mean_square_t*)plane->params;
  const int64_t n = plane->columns;
  for (int64_t r = 0; r < plane->rows; r++) {
    float* p = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* g = (const float*)plane->data[1] + r * plane->row_stride[1];
    float* s = (float*)plane->data[2] + r * plane->row_stride[2];
    CHOIR__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
      const float grad = __builtin_fmaf(a.weight_decay, p[i], g[i]);
      const float s1 = __builtin_fmaf(a.rho, s[i], a.fresh * (grad * grad));
      s[i] = s1;
      p[i] =
          __builtin_fmaf(a.step, grad / __builtin_sqrtf(s1 + a.epsilon), p[i]);
    }
  }
}
CHOIR__ISA_VARIANTS(rmsprop_plane, (const choir__plane_t* plane), (plane))

// p, g, s
CHOIR__BODY void adagrad_plane_body(const choir__plane_t* plane) {
  const mean_square_t a = *(const mean_square_t*)plane->params;
  const int64_t n = plane->columns;
  for (int64_t r = 0; r < plane->rows; r++) {
    float* p = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* g = (const float*)plane->data[1] + r * plane->row_stride[1];
    float* s = (float*)plane->data[2] + r * plane->row_stride[2];
    CHOIR__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
      const float grad = __builtin_fmaf(a.weight_decay, p[i], g[i]);
      const float s1 = __builtin_fmaf(grad, grad, s[i]);
      s[i] = s1;
      p[i] =
          __builtin_fmaf(a.step, grad / __builtin_sqrtf(s1 + a.epsilon), p[i]);
    }
  }
}
CHOIR__ISA_VARIANTS(adagrad_plane, (const choir__plane_t* plane), (plane))

// p, g, s, d
CHOIR__BODY void adadelta_plane_body(const choir__plane_t* plane) {
  const mean_square_t a = *(const mean_square_t*)plane->params;
  const int64_t n = plane->columns;
  for (int64_t r = 0; r < plane->rows; r++) {
    float* p = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* g = (const float*)plane->data[1] + r * plane->row_stride[1];
    float* s = (float*)plane->data[2] + r * plane->row_stride[2];
    float* d = (float*)plane->data[3] + r * plane->row_stride[3];
    CHOIR__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
      const float grad = __builtin_fmaf(a.weight_decay, p[i], g[i]);
      const float s1 = __builtin_fmaf(a.rho, s[i], a.fresh * (grad * grad));
      const float x = __builtin_sqrtf(d[i] + a.epsilon) /
                      __builtin_sqrtf(s1 + a.epsilon) * grad;
      s[i] = s1;
      d[i] = __builtin_fmaf(a.rho, d[i], a.fresh * (x * x));
      p[i] = __builtin_fmaf(a.step, x, p[i]);
    }
  }
}
CHOIR__ISA_VARIANTS(adadelta_plane, (const choir__plane_t* plane), (plane))

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

// Without momentum v is not touched and may be empty.
static int32_t sgd_operands(const choir_record_t* record) {
  const choir_sgd_update_attrs_t* attrs = record->attrs;
  return attrs->momentum != 0 ? 3 : 2;
}

static bool sgd_update_supports(const choir_record_t* record) {
  choir__nest_t nest;
  return update_nest(record, sgd_operands(record), &nest);
}

static bool update_3_supports(const choir_record_t* record) {
  choir__nest_t nest;
  return update_nest(record, 3, &nest);
}

static bool update_4_supports(const choir_record_t* record) {
  choir__nest_t nest;
  return update_nest(record, 4, &nest);
}

static choir_status_t sgd_update_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  const choir_sgd_update_attrs_t* attrs = record->attrs;
  const sgd_t params = {
      .scale = (float)attrs->scale,
      .weight_decay = (float)attrs->weight_decay,
      .momentum = (float)attrs->momentum,
      .fresh = (float)(1.0 - attrs->dampening),
      .step = (float)-attrs->lr,
      .has_momentum = attrs->momentum != 0,
      .nesterov = attrs->nesterov,
  };
  return update_run(record, stream, sgd_operands(record), sgd_plane, &params);
}
const choir_op_kernel_t choir__cpu_sgd_update = {
    {"sgd_update/cpu", sgd_update_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_SGD_UPDATE,
    sgd_update_supports};

static choir_status_t adam_update_run(const choir_record_t* record,
                                      choir_stream_t* stream) {
  const choir_adam_update_attrs_t* attrs = record->attrs;
  const double correction1 = 1.0 - pow(attrs->beta1, (double)attrs->step);
  const double correction2 = 1.0 - pow(attrs->beta2, (double)attrs->step);
  const adam_t params = {
      .scale = (float)attrs->scale,
      .weight_decay = (float)attrs->weight_decay,
      .beta1 = (float)attrs->beta1,
      .fresh1 = (float)(1.0 - attrs->beta1),
      .beta2 = (float)attrs->beta2,
      .fresh2 = (float)(1.0 - attrs->beta2),
      .correction2 = (float)correction2,
      .epsilon = (float)attrs->epsilon,
      .step = (float)(-attrs->lr / correction1),
  };
  return update_run(record, stream, 4, adam_plane, &params);
}
const choir_op_kernel_t choir__cpu_adam_update = {
    {"adam_update/cpu", adam_update_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_ADAM_UPDATE,
    update_4_supports};

static choir_status_t rmsprop_update_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  const choir_rmsprop_update_attrs_t* attrs = record->attrs;
  const mean_square_t params = {
      .weight_decay = (float)attrs->weight_decay,
      .rho = (float)attrs->rho,
      .fresh = (float)(1.0 - attrs->rho),
      .epsilon = (float)attrs->epsilon,
      .step = (float)-attrs->lr,
  };
  return update_run(record, stream, 3, rmsprop_plane, &params);
}
const choir_op_kernel_t choir__cpu_rmsprop_update = {
    {"rmsprop_update/cpu", rmsprop_update_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_RMSPROP_UPDATE,
    update_3_supports};

static choir_status_t adagrad_update_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  const choir_adagrad_update_attrs_t* attrs = record->attrs;
  const mean_square_t params = {
      .weight_decay = (float)attrs->weight_decay,
      .epsilon = (float)attrs->epsilon,
      .step = (float)-attrs->lr,
  };
  return update_run(record, stream, 3, adagrad_plane, &params);
}
const choir_op_kernel_t choir__cpu_adagrad_update = {
    {"adagrad_update/cpu", adagrad_update_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_ADAGRAD_UPDATE,
    update_3_supports};

static choir_status_t adadelta_update_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  const choir_adadelta_update_attrs_t* attrs = record->attrs;
  const mean_square_t params = {
      .weight_decay = (float)attrs->weight_decay,
      .rho = (float)attrs->rho,
      .fresh = (float)(1.0 - attrs->rho),
      .epsilon = (float)attrs->epsilon,
      .step = (float)-attrs->lr,
  };
  return update_run(record, stream, 4, adadelta_plane, &params);
}
const choir_op_kernel_t choir__cpu_adadelta_update = {
    {"adadelta_update/cpu", adadelta_update_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_ADADELTA_UPDATE,
    update_4_supports};
