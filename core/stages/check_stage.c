// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/stage.h"

// A view is a plain struct that anybody may fill in, so nothing in it is
// trusted here, not even that its numbers can be added.

static choir_status_t check_view(const choir_view_t* view) {
  if (view->ndim < 0 || view->ndim > CHOIR_MAX_NDIM) {
    return CHOIR_ERROR(INVALID_ARGUMENT, "%d dimensions; needs 0 to %d",
                       view->ndim, CHOIR_MAX_NDIM);
  }
  if (choir_dtype_bytes(view->dtype) == 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%d is no dtype; needs one of CHOIR_DTYPE_LIST",
                       (int)view->dtype);
  }
  for (int32_t k = 0; k < view->ndim; ++k) {
    if (view->shape[k] < 0 || view->strides[k] < 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "dimension %d has size %lld and stride %lld; needs "
                         "both at least 0",
                         k, (long long)view->shape[k],
                         (long long)view->strides[k]);
    }
  }
  return NULL;
}

static choir_status_t check_operand(const choir_view_t* view,
                                    choir_device_t* device) {
  CHOIR_TRY(check_view(view));
  if (!view->buffer) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "a shape without memory; needs a buffer");
  }
  choir_device_t* home = choir_buffer_device(view->buffer);
  if (home != device) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "memory of another device ('%s'); needs the stream's "
                       "own ('%s')",
                       choir_device_name(home), choir_device_name(device));
  }
  int64_t extent = choir_view_extent(view);
  uint64_t room =
      choir_buffer_bytes(view->buffer) / choir_dtype_bytes(view->dtype);
  if (view->offset < 0 || (uint64_t)view->offset > room ||
      (uint64_t)extent > room - (uint64_t)view->offset) {
    char text[512];
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "%s from element %lld touches %lld elements; needs to "
                       "stay inside the %llu of its buffer",
                       choir_view_print(view, text, sizeof(text)),
                       (long long)view->offset, (long long)extent,
                       (unsigned long long)room);
  }
  return NULL;
}

static choir_status_t submit(choir_stage_t* stage, choir_stream_t* stream,
                             const choir_record_t* record) {
  choir_device_t* device = choir_stream_device(stream);
  for (int32_t k = 0; k < record->src_count + record->dst_count; ++k) {
    bool is_src = k < record->src_count;
    CHOIR_TRY_NOTE(check_operand(&record->operands[k], device), "%s%s%s: %s %d",
                   choir_record_name(record), record->label ? " of " : "",
                   record->label ? record->label : "", is_src ? "src" : "dst",
                   is_src ? k : k - record->src_count);
  }
  return choir_stage_forward(stage, stream, record);
}

void choir_check_stage_init(choir_check_stage_t* stage) {
  memset(stage, 0, sizeof(*stage));
  stage->stage.submit = submit;
}
