// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_STAGE_H_
#define CHOIR_CORE_STAGE_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A stage stands on the submit path of a stream: it sees every record of one
// stream and hands it on, changes it or keeps it. Ops, layers and optimizers
// know nothing of stages.
//
//   choir_count_stage_t count;
//   choir_count_stage_init(&count);
//   choir_stream_push_stage(stream, &count.stage);
//   ... work ...
//   choir_stream_pop_stage(stream, &count.stage);
//
// Ownership: a plain struct that the caller keeps until it is popped.

typedef struct choir_stage_s choir_stage_t;
struct choir_record_list_s;

// What orders the work of a stream, beside its records.
typedef enum choir_order_kind_e {
  CHOIR_ORDER_EVENT,  // the event was recorded
  CHOIR_ORDER_WAIT,   // the stream waits for the event
  CHOIR_ORDER_CALL,   // the caller runs `call` (choir_stream_call)
  CHOIR_ORDER_HOST,   // the host waits for the stream, as it does before it
                      // reads or writes a buffer
} choir_order_kind_t;

typedef struct choir_order_s {
  choir_order_kind_t kind;
  choir_event_t* event;                // EVENT and WAIT
  choir_status_t (*call)(void* self);  // CALL
  void* self;
} choir_order_t;

struct choir_stage_s {
  // Sees one record. To hand it on, call choir_stage_forward.
  choir_status_t (*submit)(choir_stage_t* stage, choir_stream_t* stream,
                           const choir_record_t* record);
  // Is told of what else is to happen on the stream, before it does; may be
  // NULL. *out_is_kept, false before: it does not happen now, as the stage will
  // do it later. The host's access cannot be kept.
  choir_status_t (*order)(choir_stage_t* stage, choir_stream_t* stream,
                          const choir_order_t* order, bool* out_is_kept);
  // It stands behind the lowering of operations and sees records that have
  // kernels; else in front of it, and sees what the program submits.
  bool sees_kernels;
  choir_stage_t* next;  // set by push
};

CHOIR_API choir_status_t choir_stage_forward(choir_stage_t* stage,
                                             choir_stream_t* stream,
                                             const choir_record_t* record)
    CHOIR_NODISCARD;

// Counts records and, for kernels that tell their cost, flops and bytes.
typedef struct choir_count_stage_s {
  choir_stage_t stage;
  uint64_t records;
  choir_cost_t cost;
} choir_count_stage_t;
CHOIR_API void choir_count_stage_init(choir_count_stage_t* stage);

// Refuses a record whose operands reach outside their buffers, have none, or
// lie on another device than the stream's, before it can do harm; the message
// names kernel and operand.
typedef struct choir_check_stage_s {
  choir_stage_t stage;
} choir_check_stage_t;
CHOIR_API void choir_check_stage_init(choir_check_stage_t* stage);

// Appends every record to a list; also runs it when `run` is set.
typedef struct choir_record_stage_s {
  choir_stage_t stage;
  struct choir_record_list_s* list;  // borrowed
  bool run;
} choir_record_stage_t;
CHOIR_API void choir_record_stage_init(choir_record_stage_t* stage,
                                       struct choir_record_list_s* list,
                                       bool run);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_STAGE_H_
