// SPDX-License-Identifier: Apache-2.0
#include "core/record.h"

#include "core/record_internal.h"

const char* choir_record_name(const choir_record_t* record) {
  const char* name = record->kernel      ? record->kernel->name
                     : record->operation ? record->operation->name
                                         : NULL;
  return name ? name : "?";
}

bool choir_record_reads(const choir_record_t* record, int32_t operand) {
  if (operand >= record->src_count) return record->accumulate;
  return !record->operation || !record->operation->reads ||
         record->operation->reads(record, operand);
}

choir_cost_t choir_record_cost(const choir_record_t* record) {
  choir_cost_t cost = {0, 0};
  if (record->operation && record->operation->cost)
    record->operation->cost(record, &cost);
  else if (record->kernel && record->kernel->cost)
    record->kernel->cost(record, &cost);
  return cost;
}

choir_status_t choir__record_check(const char* where,
                                   const choir_record_t* record) {
  const bool lowers = record && record->operation && record->operation->lower;
  if (!record || (record->kernel ? !record->kernel->run : !lowers)) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s is NULL; needs a kernel or an operation", where,
                       !record          ? "record"
                       : record->kernel ? "record->kernel->run"
                                        : "record->kernel");
  }
  const char* name = choir_record_name(record);
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
