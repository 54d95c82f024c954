// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_INTERNAL_H_

#include "dist/dist_opt.h"

#ifdef __cplusplus
extern "C" {
#endif

// What dist_opt_states.c needs of it; lent.
typedef struct choir__dist_opt_view_s {
  choir_comm_t* comm;
  choir_device_t* device;
  choir_allocator_t allocator;
  choir_param_list_t params;
} choir__dist_opt_view_t;

// Waits for all work of the last step. FAILED_PRECONDITION, with `what` was
// asked for, before attach.
choir_status_t choir__dist_opt_settle(choir_dist_opt_t* dist_opt,
                                      const char* what,
                                      choir__dist_opt_view_t* out_view);
// Parameters were set from outside, equal on all ranks.
void choir__dist_opt_take_params(choir_dist_opt_t* dist_opt);

// For tests: the stream on which buckets are exchanged, lent; NULL before
// attach.
choir_stream_t* choir__dist_opt_background(const choir_dist_opt_t* dist_opt);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_INTERNAL_H_
