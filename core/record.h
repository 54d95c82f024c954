// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RECORD_H_
#define CHOIR_CORE_RECORD_H_

#include "core/scalar.h"
#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// A record is one piece of work as plain data: what is to be done (an
// operation), on which source and destination views, with which attributes.
// Every computation, collective and optimizer update is one;
// choir_stream_submit (core/device.h) is the only way in.
//
// A record that names an operation has no kernel until it is lowered, behind
// the stream's stages and in the planning of a graph: its operation then emits
// one or several records that do the same and have kernels. Work that is done
// in one way only (a collective, one kernel for many calls) comes with its
// kernel and names no operation. To core both are opaque.
//
// Ownership: a record borrows all it points to; choir_record_list_t owns.

struct choir_stream_s;

typedef struct choir_record_s choir_record_t;

typedef struct choir_cost_s {
  double flops;
  double bytes;  // read and written
} choir_cost_t;

// What changes from step to step in a program that otherwise repeats itself.
typedef struct choir_step_values_s {
  int64_t step;          // training steps before this one
  int64_t first_sample;  // place of the first sample in the global batch
  int64_t sample_count;  // this rank's samples, of all passes so far
  int64_t batch_number;  // of the batch, by the program's count; 0: not told
} choir_step_values_t;

// Where the records go that an operation is lowered to.
typedef struct choir_lowering_s {
  struct choir_device_s* device;  // that will run them
  // Takes one record, which has a kernel and is borrowed for the call; they
  // run in the order in which they come.
  choir_status_t (*emit)(void* self, const choir_record_t* record);
  void* self;
} choir_lowering_t;

// What a record asks for, whatever computes it.
typedef struct choir_operation_s {
  const char* name;  // "relu"
  int32_t id;        // the number that its owner gave it (tensor: choir_op_t)
  // Chooses kernels for the device and emits records that have them.
  choir_status_t (*lower)(const choir_lowering_t* lowering,
                          const choir_record_t* record);
  // What it costs; may be NULL.
  void (*cost)(const choir_record_t* record, choir_cost_t* out_cost);
  // Whether the elements of this source are read, and not its shape alone; may
  // be NULL: they are.
  bool (*reads)(const choir_record_t* record, int32_t source);
  // Whether this destination may lie where the source does, of equal views; may
  // be NULL: none may.
  bool (*in_place)(const choir_record_t* record, int32_t source,
                   int32_t destination);
} choir_operation_t;

typedef struct choir_kernel_s {
  const char* name;  // "relu/cpu", shown by print, profile and errors
  // Does the work. `stream` tells the device and its threads; it is called on
  // the thread that executes, which need not be the submitter's.
  choir_status_t (*run)(const choir_record_t* record,
                        struct choir_stream_s* stream);
  // What it costs, for records that name no operation; may be NULL.
  void (*cost)(const choir_record_t* record, choir_cost_t* out_cost);
  // For records whose attributes hold a reference (a communicator): called
  // when a record is copied and when the copy goes. May be NULL.
  void (*retain_attrs)(const void* attrs);
  void (*release_attrs)(const void* attrs);
  bool communicates;  // profiles count its time as communication
} choir_kernel_t;

// Most operands of one call of an op, and of a record, which may stand for many
// calls.
#define CHOIR_MAX_OPERANDS 16
#define CHOIR_RECORD_MAX_OPERANDS 1024

struct choir_record_s {
  const choir_operation_t* operation;  // NULL: the kernel is the only way
  const choir_kernel_t* kernel;        // NULL: not lowered yet
  const choir_view_t* operands;        // the sources, then the destinations
  int32_t src_count;
  int32_t dst_count;
  // Add to destination 0 instead of overwriting it.
  bool accumulate;
  const void* attrs;  // plain bytes that only the kernel reads
  size_t attrs_bytes;
  // Sets the attributes that change from step to step, when a graph runs the
  // record again (core/graph.h); NULL: none do.
  void (*at_step)(void* attrs, const choir_step_values_t* values);
  // The double at `scalar_offset` of the attributes follows this scalar, when a
  // graph runs the record again; NULL: none does.
  choir_scalar_t* scalar;
  size_t scalar_offset;
  const char* label;  // what it is for ("conv1"), or NULL
  // A kernel runs it as part of its own work: its sources may have been written
  // without their buffers being told (core/packed_backend.h).
  bool is_part;
  // What is summed up over rows, the first dimension of sources, is summed up
  // in segments of so many rows, and those in a binary tree
  // (docs/reproducible.md, 3); 0: all rows at once. The kernel must know it.
  int64_t segment;
};

static inline const choir_view_t* choir_record_src(const choir_record_t* record,
                                                   int32_t index) {
  return &record->operands[index];
}
static inline const choir_view_t* choir_record_dst(const choir_record_t* record,
                                                   int32_t index) {
  return &record->operands[record->src_count + index];
}

// Whether the record reads the elements of this operand: not those of a source
// of which it takes the shape, nor of a destination that it overwrites.
CHOIR_API bool choir_record_reads(const choir_record_t* record,
                                  int32_t operand);

// The kernel's name, or the operation's before it is lowered; for messages.
CHOIR_API const char* choir_record_name(const choir_record_t* record);
// What the record costs by its operation or its kernel; zeros where neither
// knows.
CHOIR_API choir_cost_t choir_record_cost(const choir_record_t* record);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RECORD_H_
