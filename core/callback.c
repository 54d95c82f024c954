// SPDX-License-Identifier: Apache-2.0
#include "core/callback.h"

// Its address is no status.
static char not_written;

choir_status_t choir_callback_run(const choir_callback_t* callback,
                                  void* const* arguments) {
  if (!callback || !callback->run)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "callback: %s is NULL; needs a function",
                       callback ? "run" : "self");
  const choir_status_t mark = (choir_status_t)(void*)&not_written;
  choir_status_t status = mark;
  callback->run(callback->self, arguments, &status);
  if (status != mark) return status;
  return CHOIR_ERROR(INTERNAL,
                     "callback: the program's function was left before its "
                     "end; what it did is not known");
}
