// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_INITIALIZER_H_
#define CHOIR_MODEL_INITIALIZER_H_

#include "core/random.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// Initial values of parameters. Element e (row-major) draws number e of the
// key, so values depend neither on layout nor on rank.
//
// Ownership: plain values. Threads: one thread at a time per tensor.

// X(ENUM, name): fan_in and fan_out are of the config.
//   constant        a
//   uniform         [a, b)
//   normal          mean a, deviation b
//   glorot_uniform  [-r, r), r = sqrt(6 / (fan_in + fan_out))
//   glorot_normal   deviation sqrt(2 / (fan_in + fan_out))
//   he_uniform      [-r, r), r = sqrt(6 / fan_in)
//   he_normal       deviation sqrt(2 / fan_in)
// (Glorot and Bengio, AISTATS 2010; He et al., ICCV 2015.)
#define CHOIR_INITIALIZER_LIST(X)   \
  X(CONSTANT, constant)             \
  X(UNIFORM, uniform)               \
  X(NORMAL, normal)                 \
  X(GLOROT_UNIFORM, glorot_uniform) \
  X(GLOROT_NORMAL, glorot_normal)   \
  X(HE_UNIFORM, he_uniform)         \
  X(HE_NORMAL, he_normal)
typedef enum choir_initializer_kind_e {
#define CHOIR_INITIALIZER_ENUM_(ENUM, name) CHOIR_INITIALIZER_##ENUM,
  CHOIR_INITIALIZER_LIST(CHOIR_INITIALIZER_ENUM_)
#undef CHOIR_INITIALIZER_ENUM_
      CHOIR_INITIALIZER_COUNT
} choir_initializer_kind_t;

typedef struct choir_initializer_s {
  choir_initializer_kind_t kind;
  double a;
  double b;
  double fan_in;
  double fan_out;
} choir_initializer_t;

CHOIR_API choir_status_t
choir_initialize(choir_tensor_t* tensor, const choir_initializer_t* initializer,
                 choir_random_key_t key) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_INITIALIZER_H_
