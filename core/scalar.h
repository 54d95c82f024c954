// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_SCALAR_H_
#define CHOIR_CORE_SCALAR_H_

#include "core/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

// A scalar is a named number that its owner sets before a step or a replay (the
// learning rate of a parameter group). A record whose attributes were made with
// its value names the scalar and the field (choir_record_t.scalar); a graph
// that runs the record again writes the scalar's value of that moment into the
// field.
//
// Ownership: shared; records that are copied retain it. Threads: retain and
// release from any thread; set and get by the thread that submits the records.
typedef struct choir_scalar_s choir_scalar_t;

// `name` is copied, cut at 31 characters.
CHOIR_API choir_status_t choir_scalar_create(choir_allocator_t allocator,
                                             const char* name, double value,
                                             choir_scalar_t** out_scalar)
    CHOIR_NODISCARD;
CHOIR_API void choir_scalar_retain(choir_scalar_t* scalar);
CHOIR_API void choir_scalar_release(choir_scalar_t* scalar);
CHOIR_API const char* choir_scalar_name(const choir_scalar_t* scalar);
CHOIR_API double choir_scalar_get(const choir_scalar_t* scalar);
CHOIR_API void choir_scalar_set(choir_scalar_t* scalar, double value);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_SCALAR_H_
