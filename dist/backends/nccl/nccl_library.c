// SPDX-License-Identifier: Apache-2.0
#include "dist/backends/nccl/nccl_library_internal.h"

#include "core/library_backend.h"

static choir__nccl_library_t machine_library;

static const choir_library_symbol_t symbols[] = {
#define SYMBOL(result, symbol, parameters) {#symbol, &machine_library.symbol},
    CHOIR__NCCL_SYMBOLS(SYMBOL)
#undef SYMBOL
};

static choir_library_t library = {
    .who = "comm nccl: this machine has no NCCL that Choir can use",
    .needs = "NCCL 2.14 or newer, libnccl.so.2",
    // $CHOIR_NCCL_LIBRARY: a file that is loaded in place of libnccl.so.2. Not
    // set: the system's loader finds it, or it is in the toolkit's folder.
    .variable = "CHOIR_NCCL_LIBRARY",
    .files = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
              "/usr/local/cuda/lib/libnccl.so.2"},
    .table = &machine_library,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(symbols[0]),
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

choir_status_t choir__nccl_library(const choir__nccl_library_t** out_library) {
  const void* table = NULL;
  choir_status_t status = choir__library_open(&library, &table);
  *out_library = table;
  return status;
}

void choir__nccl_replace(const choir__nccl_library_t* table) {
  choir__library_replace(&library, table);
}
