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
#define CHOIR_STRATEGY_LIST(X) X(fp32, CHOIR_DENSE_FIELDS)

// The averages of gradients, weighted by samples, as f32.
#define CHOIR_DENSE_FIELDS(X, T)     \
  X(T, BOOL, overlap, true, 0, 1,    \
    "exchange gradients while backward computes others; false: after it")

#define CHOIR_STRATEGY_DECLARE_(name, FIELDS)           \
  CHOIR_CONFIG_STRUCT(choir_##name##_config_t, FIELDS); \
  CHOIR_API extern const choir_strategy_def_t choir_strategy_def_##name;
CHOIR_STRATEGY_LIST(CHOIR_STRATEGY_DECLARE_)
#undef CHOIR_STRATEGY_DECLARE_

// The definition with this dist_option ("sparseTopK"; SINGA's "plain" and
// "half" are fp32 and fp16). INVALID_ARGUMENT lists the known ones.
CHOIR_API choir_status_t
choir_strategy_def_parse(const char* option,
                         const choir_strategy_def_t** out_def) CHOIR_NODISCARD;
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
