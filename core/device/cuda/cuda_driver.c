// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/cuda_driver_internal.h"

// The name that every driver of the last ten years installs.
#define LIBRARY "libcuda.so.1"

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static choir__cuda_driver_t machine_driver;
static char load_failure[512];  // empty: loaded
static _Atomic(const choir__cuda_driver_t*) replacement;

static void load(void) {
  // Never closed: the driver keeps threads of its own.
  void* library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    snprintf(load_failure, sizeof(load_failure),
             "cuda: this machine has no NVIDIA driver (%s); needs one for CUDA "
             "13 and a GPU of compute capability 7.5 or newer",
             reason ? reason : LIBRARY);
    return;
  }
  const struct {
    const char* name;
    void* place;
  } symbols[] = {
#define SYMBOL(symbol, parameters) {#symbol, &machine_driver.symbol},
      CHOIR__CUDA_SYMBOLS(SYMBOL)
#undef SYMBOL
  };
  for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); ++i) {
    void* function = dlsym(library, symbols[i].name);
    if (!function) {
      snprintf(load_failure, sizeof(load_failure),
               "cuda: the NVIDIA driver (" LIBRARY
               ") has no %s; needs a driver for CUDA 13",
               symbols[i].name);
      return;
    }
    memcpy(symbols[i].place, &function, sizeof(function));
  }
}

choir_status_t choir__cuda_driver(const choir__cuda_driver_t** out_driver) {
  *out_driver = atomic_load(&replacement);
  if (*out_driver) return NULL;
  (void)pthread_once(&load_once, load);
  if (load_failure[0]) return CHOIR_ERROR(UNAVAILABLE, "%s", load_failure);
  *out_driver = &machine_driver;
  return NULL;
}

void choir__cuda_driver_replace(const choir__cuda_driver_t* driver) {
  atomic_store(&replacement, driver);
}

choir_status_t choir__cuda_status(const choir__cuda_driver_t* driver,
                                  choir__cu_result_t result, const char* who,
                                  const char* symbol) {
  if (result == CHOIR__CU_SUCCESS) return NULL;
  // A driver may not know a result that a newer library gave it.
  const char* name = NULL;
  const char* text = NULL;
  (void)driver->cuGetErrorName(result, &name);
  (void)driver->cuGetErrorString(result, &text);
  const char* version = strstr(symbol, "_v");
  const int length =
      (int)(version ? (size_t)(version - symbol) : strlen(symbol));
  if (result == CHOIR__CU_OUT_OF_MEMORY) {
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: %.*s: %s, %s", who, length, symbol,
                       name ? name : "?", text ? text : "?");
  }
  return CHOIR_ERROR(INTERNAL, "%s: %.*s: %s (%d), %s", who, length, symbol,
                     name ? name : "an unknown error", (int)result,
                     text ? text : "without a text");
}
