// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGY_H_
#define CHOIR_DIST_STRATEGY_H_

#include "core/config.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A strategy is what workers send each other instead of, or less often than,
// their gradients. DistOpt (dist/dist_opt.h) makes one per run:
//
//   CHOIR_TRY(choir_dist_opt_use_sparse_top_k(dist, .spars = 0.01));
//
// What each one sends, when to use it and what it costs: docs/strategies.md.
// All ranks need the same one with the same settings; the sums are in rank
// order, so runs repeat bit for bit.

typedef struct choir_strategy_def_s choir_strategy_def_t;

// THE STRATEGY LIST. One line each; the file is
// dist/strategies/<name>_strategy.c.
// X(name, FIELDS)
#define CHOIR_STRATEGY_LIST(X)                       \
  X(fp32, CHOIR_DENSE_FIELDS)                        \
  X(fp16, CHOIR_FP16_FIELDS)                         \
  X(bf16, CHOIR_DENSE_FIELDS)                        \
  X(partial_update, CHOIR_PARTIAL_UPDATE_FIELDS)     \
  X(sparse_top_k, CHOIR_SPARSE_TOP_K_FIELDS)         \
  X(sparse_threshold, CHOIR_SPARSE_THRESHOLD_FIELDS) \
  X(dgc, CHOIR_DGC_FIELDS)                           \
  X(power_sgd, CHOIR_POWER_SGD_FIELDS)               \
  X(local_sgd, CHOIR_LOCAL_SGD_FIELDS)               \
  X(sparse_local, CHOIR_SPARSE_LOCAL_FIELDS)         \
  X(auto, CHOIR_AUTO_FIELDS)

// "fp32", "bf16": averages of gradients, weighted by samples. bf16 travels with
// 16 bits (8 of mantissa), is summed in f32 and rounded once more. Sharded
// updates (dist/dist_opt.h), which fp32 may have, come after backward.
#define CHOIR_DENSE_FIELDS(X, T)  \
  X(T, BOOL, overlap, true, 0, 1, \
    "exchange gradients while backward computes others; false: after it")

// "fp16": as bf16, with 11 bits of mantissa, multiplied by 2^exponent before
// rounding. What is finite but beyond 65504 / 2^exponent is clipped to it,
// which the log tells once unless `clip` asks for it; infinity and NaN stay
// what they are.
#define CHOIR_FP16_FIELDS(X, T)                                          \
  CHOIR_DENSE_FIELDS(X, T)                                               \
  X(T, INT, exponent, 7, -24, 24, "gradients are sent times 2^exponent") \
  X(T, FLOAT, clip, 0, 0, 1e30,                                          \
    "each gradient is limited to -clip .. clip first; 0: not")

// "partialUpdate": each rank steps with its own gradients; then one chunk of
// the parameters, in turn, is averaged over ranks.
#define CHOIR_PARTIAL_UPDATE_FIELDS(X, T) \
  X(T, INT, chunk, 131072, 1, 1e12, "parameters that are averaged in a step")

// "sparseTopK": of each bucket the share `spars` of elements, the largest in
// magnitude; with feedback the rest is added to the next step's gradients.
#define CHOIR_SPARSE_TOP_K_FIELDS(X, T)                                \
  X(T, FLOAT, spars, 0.05, 1e-9, 1, "share of gradients that is sent") \
  CHOIR_SPARSE_COMMON_FIELDS(X, T)
#define CHOIR_SPARSE_COMMON_FIELDS(X, T)                    \
  X(T, BOOL, feedback, true, 0, 1, "keep what is not sent") \
  X(T, ENUM, values, 1, choir_strategy_value_names, 0,      \
    "how the sent ones travel")
CHOIR_API extern const char* const choir_strategy_value_names[];

// "sparseThreshold": those of at least the magnitude `spars`, in the unit of
// the gradients: the default, SINGA's, suits networks of their size alone.
#define CHOIR_SPARSE_THRESHOLD_FIELDS(X, T)                            \
  X(T, FLOAT, spars, 0.05, 0, 1e30, "least magnitude of what is sent") \
  CHOIR_SPARSE_COMMON_FIELDS(X, T)

// "dgc", Deep Gradient Compression: the optimizer's momentum (SGD's; 0 for
// others) is applied before the choice, on each rank, and stops for what was
// sent. Warm-up: 25 % of elements, 6.25 %, 1.6 %, 0.4 %, each for a quarter of
// warmup_steps. Then an element waits about 1 / spars steps from one message to
// the next. The norm of each bucket's gradient is clipped to
// clip / sqrt(ranks).
#define CHOIR_DGC_FIELDS(X, T)                                          \
  X(T, FLOAT, spars, 0.001, 1e-9, 1, "share of gradients that is sent") \
  X(T, INT, warmup_steps, 400, 0, 1e12, "steps in which more is sent")  \
  X(T, FLOAT, clip, 0, 0, 1e30, "largest norm of a gradient; 0: any")   \
  X(T, ENUM, values, 1, choir_strategy_value_names, 0,                  \
    "how the sent ones travel")

// "powerSGD": of each gradient matrix two thin ones are averaged, whose product
// is its best approximation of that rank; the rest is added to the next step's
// gradient. What is no matrix, or too small to gain by it, is averaged whole.
#define CHOIR_POWER_SGD_FIELDS(X, T) \
  X(T, INT, rank, 2, 1, 64, "columns of the thin matrices")

// "localSGD": `period` steps with own gradients, then averages of parameters;
// the exchange may take `delay` of the next steps. The outer step is SGD on the
// averaged change (DiLoCo: outer_lr 0.7, outer_momentum 0.9, nesterov).
#define CHOIR_LOCAL_FIELDS(X, T)                                           \
  X(T, INT, period, 16, 1, 1e9, "steps between exchanges")                 \
  X(T, INT, delay, 8, 0, 1e9, "steps that an exchange may take")           \
  X(T, FLOAT, outer_lr, 1, 0, 100, "of the step with the averaged change") \
  X(T, FLOAT, outer_momentum, 0, 0, 1, "likewise")                         \
  X(T, BOOL, nesterov, false, 0, 1, "likewise; needs outer_momentum")
#define CHOIR_LOCAL_SGD_FIELDS(X, T) CHOIR_LOCAL_FIELDS(X, T)

// "sparseLocal": as localSGD, but of the change of parameters only the largest
// are sent, in a few bits; the rest, times `decay`, is added to the next one.
#define CHOIR_SPARSE_LOCAL_FIELDS(X, T)                                 \
  CHOIR_LOCAL_FIELDS(X, T)                                              \
  X(T, FLOAT, spars, 0.02, 1e-9, 1, "share of parameters that is sent") \
  X(T, FLOAT, decay, 1, 0, 1, "of what is kept")                        \
  X(T, ENUM, values, 2, choir_sparse_local_value_names, 0,              \
    "how the sent ones travel")
CHOIR_API extern const char* const choir_sparse_local_value_names[];

// "auto": measures the link at attach and `steps` local steps, then goes on
// with the strategy that promises the least time to an accuracy, with its
// defaults (dist/plan.h).
#define CHOIR_AUTO_FIELDS(X, T)                                       \
  X(T, INT, steps, 20, 8, 1000, "steps that are measured")            \
  X(T, INT, ranks, 0, 0, 1e6,                                         \
    "plan for so many workers on a link that is given, not measured") \
  X(T, FLOAT, latency, 0, 0, 1e6, "that link's, in milliseconds")     \
  X(T, FLOAT, bandwidth, 0, 0, 1e9, "that link's, in MB/s")

#define CHOIR_STRATEGY_DECLARE_(name, FIELDS)           \
  CHOIR_CONFIG_STRUCT(choir_##name##_config_t, FIELDS); \
  CHOIR_API extern const choir_strategy_def_t choir_strategy_def_##name;
CHOIR_STRATEGY_LIST(CHOIR_STRATEGY_DECLARE_)
#undef CHOIR_STRATEGY_DECLARE_

// Room for the settings of any strategy; its definition tells which they are.
typedef union choir_strategy_config_u {
#define CHOIR_STRATEGY_MEMBER_(name, FIELDS) choir_##name##_config_t as_##name;
  CHOIR_STRATEGY_LIST(CHOIR_STRATEGY_MEMBER_)
#undef CHOIR_STRATEGY_MEMBER_
} choir_strategy_config_t;

// The definition with this dist_option ("sparseTopK"; SINGA's "plain" and
// "half" are fp32 and fp16). INVALID_ARGUMENT lists the known ones.
CHOIR_API choir_status_t choir_strategy_def_parse(
    const char* option, const choir_strategy_def_t** out_def) CHOIR_NODISCARD;
// A strategy with its settings from text, for choir_dist_opt_use: `option` as
// above; `spars`, 0 for the default; `settings` "period=8,delay=4", NULL for
// none; what these do not say has its default. Checked as choir_dist_opt_use
// does. INVALID_ARGUMENT or NOT_FOUND name option, setting, value and what is
// allowed; *out_def is NULL then. Any thread.
CHOIR_API choir_status_t choir_strategy_config_read(
    const char* option, double spars, const char* settings,
    const choir_strategy_def_t** out_def, choir_strategy_config_t* out_config)
    CHOIR_NODISCARD;
// Definitions in the order of the list; NULL when index is out of range.
CHOIR_API const choir_strategy_def_t* choir_strategy_def_get(int32_t index);
// Its dist_option; the table of its settings.
CHOIR_API const char* choir_strategy_def_option(
    const choir_strategy_def_t* def);
CHOIR_API const choir_struct_def_t* choir_strategy_def_config(
    const choir_strategy_def_t* def);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_STRATEGY_H_
