// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_PLAN_H_
#define CHOIR_DIST_PLAN_H_

#include "dist/comm.h"
#include "dist/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

// What each strategy would cost on a link, before anything is trained:
//
//   step = compute + passes + what of the exchange nothing hides
//   exchange = operations x messages x latency + bytes that are sent /
//   bandwidth
//
// where of n hosts each sends 2 (n-1)/n of what is all-reduced, and what its
// ranks give to an all-gather to the n-1 others. Messages that wait for each
// other: one while ranks agree, with all that is small; then two of a
// reduction, one of an all-gather. The dist_option "auto" chooses by it, and
// //bench:simulate shows it for any number of hosts.

typedef struct choir_link_s {
  int32_t ranks;
  double latency;           // seconds of a small collective
  double bytes_per_second;  // that a host sends while all send
  int32_t hosts;            // 0: as many as ranks
} choir_link_t;

// Collective: all ranks exchange messages of growing size for a fraction of a
// second (on a very slow link: seconds). The same result on all ranks.
CHOIR_API choir_status_t choir_link_measure(choir_comm_t* comm,
                                            choir_link_t* out_link)
    CHOIR_NODISCARD;

// What a step is.
typedef struct choir_workload_s {
  int64_t params;      // f32
  int32_t buckets;     // that their gradients are exchanged in
  double compute;      // seconds of a step without exchange
  double pass;         // seconds to go once through memory of that size
  double large_share;  // of gradients, what sparseThreshold with its defaults
                       // sends in a step; negative: not known
} choir_workload_t;

#define CHOIR_PLAN_MAX_ROWS 16
typedef struct choir_plan_row_s {
  const char* option;
  double bytes;     // that a rank sends in a step, on average
  double seconds;   // of a step
  double speed_up;  // samples per second over those of one worker
  double effort;    // samples to an accuracy over those that fp32 needs
} choir_plan_row_t;

typedef struct choir_plan_s {
  choir_link_t link;
  choir_workload_t workload;
  int32_t row_count;
  // The row with the least seconds x effort; of those within 5 %, the first.
  int32_t chosen;
  choir_plan_row_t rows[CHOIR_PLAN_MAX_ROWS];
} choir_plan_t;

// A row for every strategy, with its defaults, of which it can be said what it
// costs.
CHOIR_API void choir_plan_make(const choir_link_t* link,
                               const choir_workload_t* workload,
                               choir_plan_t* out_plan);
// A table with a line for each row, the chosen one marked, into `text`, cut at
// text_bytes; returns it.
CHOIR_API const char* choir_plan_print(const choir_plan_t* plan, char* text,
                                       size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_PLAN_H_
