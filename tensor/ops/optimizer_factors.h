// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_
#define CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_

#include "tensor/ops/elements.h"
#include "tensor/ops/optimizer_steps.h"

// Shapes of a step: sources p, g and what is kept, all like p; destinations p
// and what is kept. names: of the sources, for errors.
choir_status_t choir__infer_update(const char* op, const char* const* names,
                                   const choir_view_t* srcs, int32_t src_count,
                                   choir_view_t* dsts);

// 1 - beta^step by repeated squaring, so that no libm decides its bits.
double choir__adam_correction(double beta, int64_t step);

// What the steps take of their op's attributes: computed in double and rounded
// once to the type. choir__sgd_make_f32, choir__sgd_make_f64 and the same for
// the others.
#define CHOIR__OPTIMIZER_FACTORS(suffix, real)                               \
  static inline choir__sgd_##suffix##_t choir__sgd_make_##suffix(            \
      const choir_sgd_update_attrs_t* attrs) {                               \
    return (choir__sgd_##suffix##_t){                                        \
        .neg_lr = (real)-attrs->lr,                                          \
        .momentum = (real)attrs->momentum,                                   \
        .undamped = (real)(1 - attrs->dampening),                            \
        .weight_decay = (real)attrs->weight_decay,                           \
        .scale = (real)attrs->scale,                                         \
        .nesterov = attrs->nesterov,                                         \
    };                                                                       \
  }                                                                          \
                                                                             \
  static inline choir__adam_##suffix##_t choir__adam_make_##suffix(          \
      const choir_adam_update_attrs_t* attrs) {                              \
    return (choir__adam_##suffix##_t){                                       \
        .neg_lr = (real)(-attrs->lr /                                        \
                         choir__adam_correction(attrs->beta1, attrs->step)), \
        .beta1 = (real)attrs->beta1,                                         \
        .one_minus_beta1 = (real)(1 - attrs->beta1),                         \
        .beta2 = (real)attrs->beta2,                                         \
        .one_minus_beta2 = (real)(1 - attrs->beta2),                         \
        .correction2 =                                                       \
            (real)choir__adam_correction(attrs->beta2, attrs->step),         \
        .epsilon = (real)attrs->epsilon,                                     \
        .weight_decay = (real)attrs->weight_decay,                           \
        .scale = (real)attrs->scale,                                         \
    };                                                                       \
  }                                                                          \
                                                                             \
  static inline choir__rmsprop_##suffix##_t choir__rmsprop_make_##suffix(    \
      const choir_rmsprop_update_attrs_t* attrs) {                           \
    return (choir__rmsprop_##suffix##_t){                                    \
        .neg_lr = (real)-attrs->lr,                                          \
        .rho = (real)attrs->rho,                                             \
        .one_minus_rho = (real)(1 - attrs->rho),                             \
        .epsilon = (real)attrs->epsilon,                                     \
        .weight_decay = (real)attrs->weight_decay,                           \
    };                                                                       \
  }                                                                          \
                                                                             \
  static inline choir__adagrad_##suffix##_t choir__adagrad_make_##suffix(    \
      const choir_adagrad_update_attrs_t* attrs) {                           \
    return (choir__adagrad_##suffix##_t){                                    \
        .neg_lr = (real)-attrs->lr,                                          \
        .epsilon = (real)attrs->epsilon,                                     \
        .weight_decay = (real)attrs->weight_decay,                           \
    };                                                                       \
  }                                                                          \
                                                                             \
  static inline choir__adadelta_##suffix##_t choir__adadelta_make_##suffix(  \
      const choir_adadelta_update_attrs_t* attrs) {                          \
    return (choir__adadelta_##suffix##_t){                                   \
        .neg_lr = (real)-attrs->lr,                                          \
        .rho = (real)attrs->rho,                                             \
        .one_minus_rho = (real)(1 - attrs->rho),                             \
        .epsilon = (real)attrs->epsilon,                                     \
        .weight_decay = (real)attrs->weight_decay,                           \
    };                                                                       \
  }

CHOIR__OPTIMIZER_FACTORS(f32, float)
CHOIR__OPTIMIZER_FACTORS(f64, double)

#endif  // CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_
