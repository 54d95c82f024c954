// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_PACKED_BACKEND_H_
#define CHOIR_CORE_PACKED_BACKEND_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A packed form is what a kernel made of a buffer's content for itself, such as
// weights in the order that a library likes. It is kept beside the buffer for
// later runs and is dropped by the next write to the buffer: by a record that
// has it as destination, by choir_buffer_write or choir_tensor_write. A buffer
// whose address left these hands (choir_buffer_data, choir_buffer_wrap) may be
// written without anybody being told, and keeps none from then on.
//
// It is made when the same content is asked for again: weights that change in
// each step have none. A kernel asks for sources of whole records alone
// (choir_record_t.is_part).
//
// Ownership: shared by the buffer and those who use it. Threads: thread-safe.

typedef struct choir__packed_s choir__packed_t;

// Most forms of one buffer; the oldest goes.
enum { CHOIR__PACKED_FORMS = 2 };

// The form that was kept for this key and is of what the buffer has now, else
// one of `bytes` bytes, 64-byte aligned, that the caller fills and then keeps.
// *out_packed NULL: there is none, and it does not pay yet or may not be.
// Release it.
choir_status_t choir__packed_take(choir_buffer_t* buffer, const void* key,
                                  size_t key_bytes, size_t bytes,
                                  choir__packed_t** out_packed) CHOIR_NODISCARD;
void* choir__packed_data(choir__packed_t* packed);
// Whether it was filled before.
bool choir__packed_is_kept(const choir__packed_t* packed);
// It is filled; of what the buffer had when it was taken.
void choir__packed_keep(choir_buffer_t* buffer, choir__packed_t* packed);
void choir__packed_release(choir__packed_t* packed);

// The buffer was written: after the write.
void choir__buffer_wrote(choir_buffer_t* buffer);
// Before the buffer goes.
void choir__packed_drop(choir_buffer_t* buffer);

// The address of an operand for the kernel of its record, which is no lending:
// what a record writes is known.
void* choir__buffer_place(const choir_buffer_t* buffer);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_PACKED_BACKEND_H_
