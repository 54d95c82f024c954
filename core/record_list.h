// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RECORD_LIST_H_
#define CHOIR_CORE_RECORD_LIST_H_

#include "core/allocator.h"
#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A list of records that owns copies: a graph.
//
// Ownership: unique. Threads: one thread at a time.
typedef struct choir_record_list_s choir_record_list_t;

CHOIR_API choir_status_t choir_record_list_create(
    choir_allocator_t allocator, choir_record_list_t** out_list)
    CHOIR_NODISCARD;
CHOIR_API void choir_record_list_destroy(choir_record_list_t* list);
// Copies the record, its views and attributes, and retains its buffers.
CHOIR_API choir_status_t choir_record_list_append(choir_record_list_t* list,
                                                  const choir_record_t* record)
    CHOIR_NODISCARD;
CHOIR_API size_t choir_record_list_count(const choir_record_list_t* list);
// Lent until the next append or clear.
CHOIR_API const choir_record_t* choir_record_list_get(
    const choir_record_list_t* list, size_t index);
// Forgets all records and keeps the memory for the next ones.
CHOIR_API void choir_record_list_clear(choir_record_list_t* list);
// Submits every record in order.
CHOIR_API choir_status_t choir_record_list_replay(
    const choir_record_list_t* list, choir_stream_t* stream) CHOIR_NODISCARD;
// 64 bits over kernels' names, shapes, dtypes, strides and the order in which
// buffers appear, not over addresses: equal on every rank for an equal
// program.
CHOIR_API uint64_t choir_record_list_hash(const choir_record_list_t* list);
// One line a record into a malloc'ed text that the caller frees.
CHOIR_API choir_status_t choir_record_list_print(
    const choir_record_list_t* list, char** out_text) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RECORD_LIST_H_
