// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_MEMORY_INTERNAL_H_
#define CHOIR_CORE_MEMORY_INTERNAL_H_

#include "core/memory.h"

// The process default as it stands, without closing the door on
// choir_allocator_set_default: for statuses, which carry the allocator that
// they came from and may arise before the program has set one.
choir_allocator_t choir__allocator_peek_default(void);

// False, and nothing changed, when the default is in use.
bool choir__allocator_replace_default(choir_allocator_t allocator);

#endif  // CHOIR_CORE_MEMORY_INTERNAL_H_
