// SPDX-License-Identifier: Apache-2.0
#include "core/record.h"

#include "core/record_internal.h"

choir_status_t choir__record_check(const char* where,
                                   const choir_record_t* record) {
  if (!record || !record->kernel || !record->kernel->run) {
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s is NULL; needs a kernel",
                       where,
                       !record           ? "record"
                       : !record->kernel ? "record->kernel"
                                         : "record->kernel->run");
  }
  const char* name = record->kernel->name ? record->kernel->name : "?";
  if (record->src_count < 0 || record->dst_count < 0 ||
      record->src_count > CHOIR_RECORD_MAX_OPERANDS ||
      record->src_count + record->dst_count > CHOIR_RECORD_MAX_OPERANDS) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s has %d sources and %d destinations; needs 0 to "
                       "%d together",
                       where, name, record->src_count, record->dst_count,
                       CHOIR_RECORD_MAX_OPERANDS);
  }
  if (choir__record_operands(record) > 0 && !record->operands) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s has no operands; needs %zu views", where, name,
                       choir__record_operands(record));
  }
  if (record->attrs_bytes > 0 && !record->attrs) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s has no attributes; needs %zu bytes", where, name,
                       record->attrs_bytes);
  }
  return NULL;
}
