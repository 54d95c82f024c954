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
// Three function types have an adapter: a function of the type whose `self` is
// a choir_callback_t. choir_custom_op_callback (autograd/scope.h) is for a
// gradient, choir_text_writer_callback (core/profile.h) for text;
// choir_model_def_callbacks (model/model.h) is a model's definition.
//
// Ownership: a plain struct that the caller keeps while calls may come, with
// what `self` points to. Threads: it is called on the program's thread, within
// a call of the library.
typedef struct choir_callback_s {
  // arguments: those of the function type after `self`, in order, each as a
  // pointer (an integer by its value).
  void (*run)(void* self, void* const* arguments, choir_status_t* out_status);
  void* self;
} choir_callback_t;

// What the callback wrote; INTERNAL when it was left before that,
// INVALID_ARGUMENT when `callback` or its `run` is NULL.
CHOIR_API choir_status_t choir_callback_run(const choir_callback_t* callback,
                                            void* const* arguments)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_CALLBACK_H_
