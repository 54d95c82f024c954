// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_STATUS_H_
#define CHOIR_CORE_STATUS_H_

#include <stdarg.h>

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// The result of every call that can fail. NULL is OK, so a check is one
// compare; a failure owns its code, its message, where it arose and the
// places that handed it over.
//
//   choir_status_t status = choir_tensor_create(...);
//   if (status) {
//     fprintf(stderr, "%s\n", choir_status_message(status));
//     choir_status_free(status);
//   }
//
// A message reads "where: what was given; what was needed".
//
// Ownership: the receiver of a failure frees it or passes it up (CHOIR_TRY).
// Threads: a failure may be handed from thread to thread.

#define CHOIR_STATUS_LIST(X)                                                \
  X(OK, 0, "ok")                                                            \
  X(INVALID_ARGUMENT, 1, "invalid argument")                                \
  X(OUT_OF_RANGE, 2, "out of range")                                        \
  X(FAILED_PRECONDITION, 3, "failed precondition")                          \
  X(NOT_FOUND, 4, "not found")                                              \
  X(ALREADY_EXISTS, 5, "already exists")                                    \
  X(OUT_OF_MEMORY, 6, "out of memory")                                      \
  X(UNIMPLEMENTED, 7, "unimplemented") /* this backend lacks it */          \
  X(UNAVAILABLE, 8, "unavailable")     /* this machine lacks it */          \
  X(TIMEOUT, 9, "deadline exceeded")   /* a peer or a wait took too long */ \
  X(ABORTED, 10, "aborted")            /* a peer died or gave up */         \
  X(INTERNAL, 11, "internal error")

typedef enum choir_status_code_e {
#define CHOIR_STATUS_ENUM_(name, value, text) CHOIR_STATUS_##name = value,
  CHOIR_STATUS_LIST(CHOIR_STATUS_ENUM_)
#undef CHOIR_STATUS_ENUM_
} choir_status_code_t;

typedef struct choir_status_s* choir_status_t;

// Makes a failure; never returns NULL. Without memory it returns a static
// OUT_OF_MEMORY status. Use the CHOIR_ERROR macro, which fills in the origin.
CHOIR_API choir_status_t choir_status_make(choir_status_code_t code,
                                           const char* file, int line,
                                           const char* function,
                                           const char* format, ...)
    CHOIR_PRINTF(5, 6) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_status_make_va(choir_status_code_t code,
                                              const char* file, int line,
                                              const char* function,
                                              const char* format, va_list args)
    CHOIR_NODISCARD;

// Adds a hand-over point (at most eight are kept) and, when `format` is not
// NULL, puts "<note>: " before the message. Returns `status`.
CHOIR_API choir_status_t choir_status_annotate(choir_status_t status,
                                               const char* file, int line,
                                               const char* format, ...)
    CHOIR_PRINTF(4, 5) CHOIR_NODISCARD;

// OK for NULL.
CHOIR_API choir_status_code_t choir_status_code(choir_status_t status);
// The sentence for the user; "ok" for NULL. Lent until the status is freed.
CHOIR_API const char* choir_status_message(choir_status_t status);
// "file:line in function", then the hand-over points; lent likewise.
CHOIR_API const char* choir_status_origin(choir_status_t status);
// "invalid argument" for CHOIR_STATUS_INVALID_ARGUMENT; static storage.
CHOIR_API const char* choir_status_code_text(choir_status_code_t code);
// Accepts NULL.
CHOIR_API void choir_status_free(choir_status_t status);
// A copy with the same code, message and origin; NULL for NULL.
CHOIR_API choir_status_t choir_status_clone(choir_status_t status)
    CHOIR_NODISCARD;
// Returns `first` if it failed (and frees `second`), else `second`.
CHOIR_API choir_status_t choir_status_join(choir_status_t first,
                                           choir_status_t second)
    CHOIR_NODISCARD;

// Tells the static analyser what it cannot see: these calls never return OK.
#ifdef __clang_analyzer__
static inline choir_status_t choir_status_certain(choir_status_t status) {
  if (!status) __builtin_unreachable();
  return status;
}
#else
#define choir_status_certain(status) (status)
#endif

// CHOIR_ERROR(INVALID_ARGUMENT, "relu: src has %d dimensions; ...", n)
#define CHOIR_ERROR(code, ...)                                          \
  choir_status_certain(choir_status_make(CHOIR_STATUS_##code, __FILE__, \
                                         __LINE__, __func__, __VA_ARGS__))

// Returns from the calling function when `expr` failed.
#define CHOIR_TRY(expr) CHOIR_TRY_NOTE(expr, NULL)

// The same with a note put before the message.
#define CHOIR_TRY_NOTE(expr, ...)                                              \
  do {                                                                         \
    choir_status_t choir_try_ = (expr);                                        \
    if (choir_try_)                                                            \
      return choir_status_certain(                                             \
          choir_status_annotate(choir_try_, __FILE__, __LINE__, __VA_ARGS__)); \
  } while (0)

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_STATUS_H_
