// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RECORD_INTERNAL_H_
#define CHOIR_CORE_RECORD_INTERNAL_H_

#include "core/record.h"

static inline size_t choir__record_operands(const choir_record_t* record) {
  return (size_t)record->src_count + (size_t)record->dst_count;
}

// Whether its attributes change from step to step.
static inline bool choir__record_changes(const choir_record_t* record) {
  return record->at_step || record->scalar;
}

// INVALID_ARGUMENT for a record that is no record: no kernel, counts out of
// range, operands or attributes missing.
choir_status_t choir__record_check(const char* where,
                                   const choir_record_t* record)
    CHOIR_NODISCARD;

#endif  // CHOIR_CORE_RECORD_INTERNAL_H_
