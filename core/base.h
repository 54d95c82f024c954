// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_BASE_H_
#define CHOIR_CORE_BASE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What every file of Choir may include: export and check attributes, and the
// conventions that hold for the whole public interface.
//
// Ownership: three kinds of objects, named in each header. *Shared* objects
// (device, buffer, stream, event, tensor, communicator) are counted: _create
// gives one reference, _retain adds one, _release takes one and accepts NULL.
// *Unique* objects (scope, loader, record list) have _create and _destroy.
// *Plain values* (views, configs) are copied. What is passed in is borrowed
// for the call; a callee that keeps it retains it. Getters lend.
//
// Errors: a function that can fail returns choir_status_t; NULL is OK.
// Out-parameters come last, are called out_x and are cleared first.
//
// Threads: unless a header says otherwise, an object may be used by one
// thread at a time, and different objects by different threads.

#if defined(__GNUC__)
#define CHOIR_API __attribute__((visibility("default")))
#define CHOIR_NODISCARD __attribute__((warn_unused_result))
#define CHOIR_PRINTF(format_index, first_index) \
  __attribute__((format(printf, format_index, first_index)))
#else
#define CHOIR_API
#define CHOIR_NODISCARD
#define CHOIR_PRINTF(format_index, first_index)
#endif

#define CHOIR_VERSION_MAJOR 0
#define CHOIR_VERSION_MINOR 1
#define CHOIR_VERSION_PATCH 0
// The number in the shared library's name (libchoir.so.1). It is raised when
// programs that were built before have to be compiled again.
#define CHOIR_VERSION_SONAME 1

// Most dimensions a view may have.
#define CHOIR_MAX_NDIM 8

#ifdef __cplusplus
extern "C" {
#endif

// "0.1.0"; static storage.
CHOIR_API const char* choir_version(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_BASE_H_
