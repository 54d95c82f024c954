// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_STREAM_THREAD_H_
#define CHOIR_CORE_DEVICE_STREAM_THREAD_H_

#include "core/device_backend.h"

// A queue of records with a thread that runs them in order: a stream for
// devices that are host threads. And the marks in such a queue that events
// refer to.
//
// Threads: one thread submits at a time; marks may be used by any.

typedef struct choir_stream_thread_s choir_stream_thread_t;

// A mark: "all work that the queue had when the mark was made". A zeroed mark
// is reached. It stays valid after its queue is gone.
typedef struct choir_queue_mark_s {
  struct choir_queue_progress_s* progress;  // retained
  uint64_t sequence;
} choir_queue_mark_t;

// Called on the queue's thread before each piece of work; may sleep. `number`
// counts the queue's pieces from 0. May be NULL.
typedef void (*choir_queue_pace_t)(void* self, uint64_t number);

// `stream` is what kernels are told; it must outlive the queue. All memory
// comes from `allocator`.
choir_status_t choir__stream_thread_create(choir_allocator_t allocator,
                                           choir_stream_t* stream,
                                           choir_queue_pace_t pace,
                                           void* pace_self,
                                           choir_stream_thread_t** out_thread)
    CHOIR_NODISCARD;
// Waits until the queue is empty.
void choir__stream_thread_destroy(choir_stream_thread_t* thread);

// As choir_stream_submit and choir_stream_synchronize promise.
choir_status_t choir__stream_thread_submit(choir_stream_thread_t* thread,
                                           const choir_record_t* record)
    CHOIR_NODISCARD;
choir_status_t choir__stream_thread_synchronize(choir_stream_thread_t* thread)
    CHOIR_NODISCARD;

// Replaces *mark by one for the work the queue has now.
void choir__stream_thread_mark(choir_stream_thread_t* thread,
                               choir_queue_mark_t* mark);
// Later work of the queue starts after the mark.
choir_status_t choir__stream_thread_wait_mark(choir_stream_thread_t* thread,
                                              const choir_queue_mark_t* mark)
    CHOIR_NODISCARD;

bool choir__queue_mark_is_reached(const choir_queue_mark_t* mark);
// Blocks the caller. FAILED_PRECONDITION when the caller is a record of the
// very queue, which would wait for itself.
choir_status_t choir__queue_mark_wait(const choir_queue_mark_t* mark)
    CHOIR_NODISCARD;
// Drops what the mark holds and zeroes it.
void choir__queue_mark_clear(choir_queue_mark_t* mark);

#endif  // CHOIR_CORE_DEVICE_STREAM_THREAD_H_
