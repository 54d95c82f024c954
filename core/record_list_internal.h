// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RECORD_LIST_INTERNAL_H_
#define CHOIR_CORE_RECORD_LIST_INTERNAL_H_

#include "core/record_list.h"
#include "core/text_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

// Copies of records, for whoever keeps one past the call: the record list and
// the queues of asynchronous streams. A copy is one block for views and
// attributes, made by the caller.

// Bytes of the block, which is 16-byte aligned.
size_t choir__record_clone_bytes(const choir_record_t* record);
// Copies views and attributes into `block` and retains what they hold.
void choir__record_clone(const choir_record_t* record, void* block,
                         choir_record_t* out_clone);
// Releases what a clone holds; its block stays the caller's.
void choir__record_drop(const choir_record_t* clone);

// `buffer_ids` has a number for each operand, -1: no buffer. The hash goes over
// name, shapes, strides and these numbers; the print is one line, with its end.
uint64_t choir__record_hash(uint64_t hash, const choir_record_t* record,
                            const int32_t* buffer_ids);
void choir__record_print(choir__text_t* text, const choir_record_t* record,
                         const int32_t* buffer_ids);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RECORD_LIST_INTERNAL_H_
