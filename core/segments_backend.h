// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_SEGMENTS_BACKEND_H_
#define CHOIR_CORE_SEGMENTS_BACKEND_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// For writers of a device that can be given many records as one launch: what a
// graph (core/graph.h) asks of it. A segment is a run of records of one stream,
// numbered from 0 within its graph; what the device makes of it is the device's
// own. Each of its records was submitted by itself before.
//
// Threads: one thread at a time, the one that submits to the stream.

typedef struct choir_segments_s choir_segments_t;

// What a record that was submitted by itself did.
typedef enum choir_part_e {
  // It can be launched again, with other attributes and addresses.
  CHOIR_PART_FREE,
  // It can be launched again, as it is: somebody else's library launched it.
  CHOIR_PART_FIXED,
  // The host took part in it, so it can only be submitted again.
  CHOIR_PART_HOST,
} choir_part_t;

typedef enum choir_segment_result_e {
  CHOIR_SEGMENT_LAUNCHED,
  // Nothing ran. What was made does not fit the records any more; it may be
  // asked for again once they were submitted one by one.
  CHOIR_SEGMENT_STALE,
  // Nothing ran, and it is no use to ask again; the log says why.
  CHOIR_SEGMENT_REFUSED,
} choir_segment_result_t;

typedef struct choir_segments_vtable_s {
  const char* name;  // for profiles: "graph/cuda"
  // For the segments of one graph. *out_segments: NULL when the user wants none
  // (switched off). The stream outlives them.
  choir_status_t (*create)(choir_stream_t* stream,
                           choir_segments_t** out_segments);
  // Work under way is not disturbed.
  void (*destroy)(choir_segments_t* segments);
  // Right after each record that was submitted by itself.
  choir_part_t (*observe)(choir_segments_t* segments);
  // Runs the records in order, behind what the stream has: `count` of them, the
  // same each time but for attributes and the places of operands. Those whose
  // parts are FIXED change rarely. A status is a failure of the launch itself.
  choir_status_t (*launch)(choir_segments_t* segments, int32_t segment,
                           const choir_record_t* const* records, int32_t count,
                           choir_segment_result_t* out_result);
} choir_segments_vtable_t;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_SEGMENTS_BACKEND_H_
