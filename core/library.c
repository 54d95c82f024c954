// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/library_backend.h"

static void fail(choir_library_t* library, const char* text) {
  const size_t used = strlen(library->failure);
  snprintf(library->failure + used, sizeof(library->failure) - used, "%s%s",
           used ? "; " : "", text);
}

// NULL: noted why.
static void* open_file(choir_library_t* library, const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle) return handle;
  const char* why = dlerror();
  fail(library, why ? why : file);
  return NULL;
}

static void open_once(choir_library_t* library) {
  const char* named = library->variable ? getenv(library->variable) : NULL;
  const char* file = named && named[0] ? named : library->files[0];
  void* handle = open_file(library, file);
  if (file != named) {
    for (size_t i = 1; !handle && i < 4 && library->files[i]; ++i) {
      file = library->files[i];
      handle = open_file(library, file);
    }
  }
  if (!handle) return;
  library->failure[0] = 0;
  for (size_t i = 0; i < library->symbol_count; ++i) {
    const choir_library_symbol_t* symbol = &library->symbols[i];
    void* function = dlsym(handle, symbol->name);
    if (!function) {
      snprintf(library->failure, sizeof(library->failure), "%s has no %s", file,
               symbol->name);
      return;
    }
    memcpy(symbol->place, &function, sizeof(function));
  }
}

choir_status_t choir__library_open(choir_library_t* library) {
  pthread_mutex_lock(&library->lock);
  if (!library->tried) open_once(library);
  library->tried = true;
  pthread_mutex_unlock(&library->lock);
  if (!library->failure[0]) return NULL;
  return CHOIR_ERROR(
      UNAVAILABLE, "%s: %s; needs %s%s%s%s", library->who, library->failure,
      library->needs, library->variable ? " (or its path in " : "",
      library->variable ? library->variable : "", library->variable ? ")" : "");
}
