// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_
#define CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_

#include <math.h>
#include <stdbool.h>

// One element of an optimizer step, in the type `real` (float or double). This
// is the definition to the bit: every kernel on every device does these
// operations in this order, with a fused multiply-add only where fma stands.
// The factors are made of attributes alone: tensor/ops/optimizer_factors.h.
//
//   CHOIR__OPTIMIZER_STEPS(f32, float, fmaf, sqrtf)
//
// defines choir__sgd_f32_t, choir__sgd_step_f32 and the same for adam, rmsprop,
// adagrad and adadelta.
#if defined(__CUDACC__)
#define CHOIR__STEP static inline __host__ __device__
#else
// Part of the loop around it, whatever instruction set that is for.
#define CHOIR__STEP static inline __attribute__((always_inline))
#endif

#define CHOIR__OPTIMIZER_STEPS(suffix, real, real_fma, real_sqrt)             \
  typedef struct choir__sgd_##suffix##_s {                                    \
    real neg_lr, momentum, undamped, weight_decay, scale;                     \
    bool nesterov;                                                            \
  } choir__sgd_##suffix##_t;                                                  \
                                                                              \
  /* v is not touched (and may be NULL) when momentum is 0. */                \
  CHOIR__STEP void choir__sgd_step_##suffix(const choir__sgd_##suffix##_t* f, \
                                            real* p, real g, real* v) {       \
    g = real_fma(f->weight_decay, *p, f->scale * g);                          \
    if (f->momentum != 0) {                                                   \
      *v = real_fma(f->momentum, *v, f->undamped * g);                        \
      g = f->nesterov ? real_fma(f->momentum, *v, g) : *v;                    \
    }                                                                         \
    *p = real_fma(f->neg_lr, g, *p);                                          \
  }                                                                           \
                                                                              \
  typedef struct choir__adam_##suffix##_s {                                   \
    real neg_lr; /* -lr / correction1 */                                      \
    real beta1, one_minus_beta1, beta2, one_minus_beta2;                      \
    real correction2, epsilon, weight_decay, scale;                           \
  } choir__adam_##suffix##_t;                                                 \
                                                                              \
  CHOIR__STEP void choir__adam_step_##suffix(                                 \
      const choir__adam_##suffix##_t* f, real* p, real g, real* m, real* v) { \
    g = real_fma(f->weight_decay, *p, f->scale * g);                          \
    *m = real_fma(f->beta1, *m, f->one_minus_beta1 * g);                      \
    *v = real_fma(f->beta2, *v, f->one_minus_beta2 * (g * g));                \
    *p = real_fma(f->neg_lr,                                                  \
                  *m / (real_sqrt(*v / f->correction2) + f->epsilon), *p);    \
  }                                                                           \
                                                                              \
  typedef struct choir__rmsprop_##suffix##_s {                                \
    real neg_lr, rho, one_minus_rho, epsilon, weight_decay;                   \
  } choir__rmsprop_##suffix##_t;                                              \
                                                                              \
  CHOIR__STEP void choir__rmsprop_step_##suffix(                              \
      const choir__rmsprop_##suffix##_t* f, real* p, real g, real* s) {       \
    g = real_fma(f->weight_decay, *p, g);                                     \
    *s = real_fma(f->rho, *s, f->one_minus_rho * (g * g));                    \
    *p = real_fma(f->neg_lr, g / real_sqrt(*s + f->epsilon), *p);             \
  }                                                                           \
                                                                              \
  typedef struct choir__adagrad_##suffix##_s {                                \
    real neg_lr, epsilon, weight_decay;                                       \
  } choir__adagrad_##suffix##_t;                                              \
                                                                              \
  CHOIR__STEP void choir__adagrad_step_##suffix(                              \
      const choir__adagrad_##suffix##_t* f, real* p, real g, real* s) {       \
    g = real_fma(f->weight_decay, *p, g);                                     \
    *s = real_fma(g, g, *s);                                                  \
    *p = real_fma(f->neg_lr, g / real_sqrt(*s + f->epsilon), *p);             \
  }                                                                           \
                                                                              \
  typedef struct choir__adadelta_##suffix##_s {                               \
    real neg_lr, rho, one_minus_rho, epsilon, weight_decay;                   \
  } choir__adadelta_##suffix##_t;                                             \
                                                                              \
  CHOIR__STEP void choir__adadelta_step_##suffix(                             \
      const choir__adadelta_##suffix##_t* f, real* p, real g, real* s,        \
      real* d) {                                                              \
    g = real_fma(f->weight_decay, *p, g);                                     \
    *s = real_fma(f->rho, *s, f->one_minus_rho * (g * g));                    \
    const real x =                                                            \
        real_sqrt(*d + f->epsilon) / real_sqrt(*s + f->epsilon) * g;          \
    *d = real_fma(f->rho, *d, f->one_minus_rho * (x * x));                    \
    *p = real_fma(f->neg_lr, x, *p);                                          \
  }

CHOIR__OPTIMIZER_STEPS(f32, float, fmaf, sqrtf)
CHOIR__OPTIMIZER_STEPS(f64, double, fma, sqrt)

#endif  // CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_
