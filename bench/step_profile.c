// SPDX-License-Identifier: Apache-2.0
#include "bench/step_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double step_profile_thread_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static step_row_t* find_row(step_profile_t* profile,
                            const choir_record_t* record) {
  const int32_t srcs = record->src_count < 2 ? record->src_count : 2;
  for (int i = 0; i < profile->row_count; ++i) {
    step_row_t* row = &profile->rows[i];
    bool same = row->kernel == record->kernel && row->src_count == srcs;
    for (int32_t k = 0; same && k < srcs; ++k)
      same = choir_view_same_shape(&row->srcs[k], &record->operands[k]) &&
             row->srcs[k].dtype == record->operands[k].dtype;
    if (same) return row;
  }
  if (profile->row_count == STEP_PROFILE_ROWS)
    return &profile->rows[STEP_PROFILE_ROWS - 1];
  step_row_t* row = &profile->rows[profile->row_count++];
  *row = (step_row_t){.kernel = record->kernel, .src_count = srcs};
  for (int32_t k = 0; k < srcs; ++k) row->srcs[k] = record->operands[k];
  return row;
}

static choir_status_t submit(choir_stage_t* stage, choir_stream_t* stream,
                             const choir_record_t* record) {
  step_profile_t* profile = (step_profile_t*)stage;
  step_row_t* row = find_row(profile, record);
  const choir_cost_t cost = choir_record_cost(record);
  const double start = step_profile_thread_seconds();
  choir_status_t status = choir_stage_forward(stage, stream, record);
  const double seconds = step_profile_thread_seconds() - start;
  row->count++;
  row->seconds += seconds;
  row->flops += cost.flops;
  row->bytes += cost.bytes;
  profile->seconds += seconds;
  return status;
}

void step_profile_init(step_profile_t* profile) {
  *profile =
      (step_profile_t){.stage = {.submit = submit, .sees_kernels = true}};
}

static int by_seconds(const void* a, const void* b) {
  const double x = ((const step_row_t*)a)->seconds;
  const double y = ((const step_row_t*)b)->seconds;
  return (x < y) - (x > y);
}

void step_profile_sort(step_profile_t* profile) {
  qsort(profile->rows, (size_t)profile->row_count, sizeof(step_row_t),
        by_seconds);
}

const char* step_row_shapes(const step_row_t* row, char* text, size_t bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t k = 0; k < row->src_count; ++k)
    for (int32_t d = 0; d < row->srcs[k].ndim && used < bytes; ++d)
      used += (size_t)snprintf(text + used, bytes - used, "%s%lld",
                               d ? "," : (k ? ";" : ""),
                               (long long)row->srcs[k].shape[d]);
  return text;
}
