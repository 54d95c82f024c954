// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_INTERNAL_H_

#include "dist/dist_opt.h"

#ifdef __cplusplus
extern "C" {
#endif

// For tests: the stream on which buckets are exchanged, lent; NULL before
// attach.
choir_stream_t* choir__dist_opt_background(const choir_dist_opt_t* dist_opt);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_INTERNAL_H_
