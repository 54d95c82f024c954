// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_STEP_PROFILE_H_
#define CHOIR_BENCH_STEP_PROFILE_H_

#include "core/stage.h"

// Adds up the time, flops and bytes of each kernel on each shape: a stage in
// front of the compute stream. On the device "cpu" compute work is done inside
// submit, so that what the thread used meanwhile is the kernel's. Processor
// time, not the wall's: others on the machine do not count.
//
//   step_profile_t profile;
//   step_profile_init(&profile);
//   choir_stream_push_stage(stream, &profile.stage);
//   ... steps ...
//   choir_stream_pop_stage(stream, &profile.stage);
//   step_profile_sort(&profile);
//
// Ownership: a plain struct. Threads: one at a time.

enum { STEP_PROFILE_ROWS = 192 };

typedef struct step_row_s {
  const choir_kernel_t* kernel;
  choir_view_t srcs[2];  // the first sources
  int32_t src_count;
  int64_t count;  // how often it ran
  double seconds;
  double flops;
  double bytes;
} step_row_t;

typedef struct step_profile_s {
  choir_stage_t stage;
  step_row_t rows[STEP_PROFILE_ROWS];  // the last takes what has no room
  int row_count;
  double seconds;  // in kernels
} step_profile_t;

void step_profile_init(step_profile_t* profile);
// Longest first.
void step_profile_sort(step_profile_t* profile);
// "64,1,28,28;20,1,5,5", as bench_ops writes shapes.
const char* step_row_shapes(const step_row_t* row, char* text, size_t bytes);

// Processor time of the calling thread.
double step_profile_thread_seconds(void);

#endif  // CHOIR_BENCH_STEP_PROFILE_H_
