// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_SCHEDULE_H_
#define CHOIR_OPT_SCHEDULE_H_

#include "core/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// How the learning rate goes over the steps, as a factor of it.
//
//   constant     1
//   step         factor ^ floor(step / period)
//   exponential  factor ^ (step / period)
//   cosine       from 1 to `factor` along half a cosine over `period` steps
//                (Loshchilov and Hutter, ICLR 2017), then `factor`
//
// During the first `warmup` steps the result is also multiplied by
// (step + 1) / (warmup + 1).
//
// Ownership: a plain value. Threads: pure functions.

// X(ENUM, name)
#define CHOIR_SCHEDULE_LIST(X) \
  X(CONSTANT, constant)        \
  X(STEP, step)                \
  X(EXPONENTIAL, exponential)  \
  X(COSINE, cosine)
typedef enum choir_schedule_kind_e {
#define CHOIR_SCHEDULE_ENUM_(ENUM, name) CHOIR_SCHEDULE_##ENUM,
  CHOIR_SCHEDULE_LIST(CHOIR_SCHEDULE_ENUM_)
#undef CHOIR_SCHEDULE_ENUM_
} choir_schedule_kind_t;

CHOIR_API extern const char* const choir_schedule_names[];

#define CHOIR_SCHEDULE_FIELDS(X, T)                         \
  X(T, ENUM, kind, 0, choir_schedule_names, 0, "the curve") \
  X(T, INT, period, 1, 1, 1e18, "steps")                    \
  X(T, FLOAT, factor, 1, 0, 1e9, "see above")               \
  X(T, INT, warmup, 0, 0, 1e18, "steps of linear growth at the start")
CHOIR_CONFIG_STRUCT(choir_schedule_config_t, CHOIR_SCHEDULE_FIELDS);

CHOIR_API extern const choir_struct_def_t choir_schedule_config_def;

// The factor at `step` (counted from 0) of a checked config.
CHOIR_API double choir_schedule_factor(const choir_schedule_config_t* config,
                                       int64_t step);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_OPT_SCHEDULE_H_
