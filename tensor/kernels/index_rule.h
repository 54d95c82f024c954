// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_INDEX_RULE_H_
#define CHOIR_TENSOR_KERNELS_INDEX_RULE_H_

#include <stdbool.h>
#include <stdint.h>

#include "core/body_backend.h"

// Which element of a dimension a place of another one points to, by a formula:
// one of the dimensions of an index map (tensor/ops/index_map.h), for hosts and
// threads of GPUs.

#ifdef __cplusplus
extern "C" {
#endif

// What places around the elements point to.
typedef enum choir__outside_e {
  CHOIR__OUTSIDE_NONE,     // nothing
  CHOIR__OUTSIDE_EDGE,     // the nearest element
  CHOIR__OUTSIDE_REFLECT,  // back and forth, the ends once each
  CHOIR__OUTSIDE_WRAP,     // the elements again, from the first
} choir__outside_t;

// Place p points to element p / each - before. `each` is 1 where places outside
// point to something, `before` 0 where they wrap around.
typedef struct choir__index_rule_s {
  int64_t size;    // elements
  int64_t before;  // places in front of the first
  int64_t each;    // places in a row of one element; 0: no rule, element p
  int32_t outside;
} choir__index_rule_t;

// Where the place points to; -1: nowhere.
CHOIR__BODY int64_t choir__rule_element(const choir__index_rule_t* rule,
                                        int64_t place) {
  if (rule->each == 0) return place;
  int64_t at = place / rule->each - rule->before;
  if (at >= 0 && at < rule->size) return at;
  if (rule->outside == CHOIR__OUTSIDE_NONE) return -1;
  if (rule->outside == CHOIR__OUTSIDE_WRAP) return at % rule->size;
  if (rule->outside == CHOIR__OUTSIDE_EDGE) return at < 0 ? 0 : rule->size - 1;
  if (rule->size == 1) return 0;
  const int64_t period = 2 * (rule->size - 1);
  at %= period;
  if (at < 0) at += period;
  return at < rule->size ? at : period - at;
}

// The first number from `from` on that is `value` modulo `period`.
CHOIR__BODY int64_t choir__rule_congruent(int64_t from, int64_t value,
                                          int64_t period) {
  const int64_t ahead = (value - from) % period;
  return from + (ahead < 0 ? ahead + period : ahead);
}

// The first place from `from` on that points to the element; INT64_MAX: there
// is none, or it is behind all places.
CHOIR__BODY int64_t choir__rule_next(const choir__index_rule_t* rule,
                                     int64_t element, int64_t from) {
  const int64_t each = rule->each > 0 ? rule->each : 1;
  const int64_t first = (element + rule->before) * each;
  const bool reaches_all =
      rule->size == 1 && rule->outside != CHOIR__OUTSIDE_NONE;
  if (reaches_all) return from;
  if (rule->outside == CHOIR__OUTSIDE_WRAP)
    return choir__rule_congruent(from, element, rule->size);
  if (rule->outside == CHOIR__OUTSIDE_REFLECT) {
    const int64_t period = 2 * (rule->size - 1);
    const int64_t there = choir__rule_congruent(from, first, period);
    const int64_t back =
        choir__rule_congruent(from, rule->before - element, period);
    return there < back ? there : back;
  }
  const bool reaches_down =
      rule->outside == CHOIR__OUTSIDE_EDGE && element == 0;
  const bool reaches_up =
      rule->outside == CHOIR__OUTSIDE_EDGE && element == rule->size - 1;
  if (from < first) return reaches_down ? from : first;
  return from < first + each || reaches_up ? from : INT64_MAX;
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_INDEX_RULE_H_
