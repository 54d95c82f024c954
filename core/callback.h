// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CALLBACK_H_
#define CHOIR_CORE_CALLBACK_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A callback in another language. There a function can be left before its last
// line (in Python by KeyboardInterrupt, or by no stack), and what it returns
// then is undefined. So it returns nothing and writes its status into
// *out_status, as the last thing that it does; until then that holds a mark
// by which the library knows that the function was left.
//
// Function types of the library that return a status have an adapter beside
// them (choir_custom_op_callback, choir_text_writer_callback, ...): a function
// of that type whose `self` is a choir_callback_t.
typedef struct choir_callback_s {
  // arguments: those of the function type after `self`, in order, each as a
  // pointer (an integer by its value).
  void (*run)(void* self, void* const* arguments, choir_status_t* out_status);
  void* self;
} choir_callback_t;

// What the callback wrote; INTERNAL when it was left before that.
CHOIR_API choir_status_t choir_callback_run(const choir_callback_t* callback,
                                            void* const* arguments)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_CALLBACK_H_
