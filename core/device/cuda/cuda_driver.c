// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/cuda_driver_internal.h"
#include "core/library_backend.h"

static choir__cuda_driver_t machine_driver;

static const choir_library_symbol_t symbols[] = {
#define SYMBOL(symbol, parameters) {#symbol, &machine_driver.symbol},
    CHOIR__CUDA_SYMBOLS(SYMBOL)
#undef SYMBOL
};

static choir_library_t library = {
    .who = "cuda: this machine has no NVIDIA driver that Choir can use",
    .needs = "one for CUDA 13 and a GPU of compute capability 7.5 or newer",
    // The name that every driver of the last ten years installs.
    .files = {"libcuda.so.1"},
    .table = &machine_driver,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(symbols[0]),
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

choir_status_t choir__cuda_driver(const choir__cuda_driver_t** out_driver) {
  const void* table = NULL;
  choir_status_t status = choir__library_open(&library, &table);
  *out_driver = table;
  return status;
}

void choir__cuda_driver_replace(const choir__cuda_driver_t* driver) {
  choir__library_replace(&library, driver);
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
