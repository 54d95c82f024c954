// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/library_backend.h"
#include "core/log.h"

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

static choir_status_t failure(const choir_library_t* library) {
  return CHOIR_ERROR(
      UNAVAILABLE, "%s: %s; needs %s%s%s%s", library->who, library->failure,
      library->needs, library->variable ? " (or its path in " : "",
      library->variable ? library->variable : "", library->variable ? ")" : "");
}

// The table, or NULL. Under the lock.
static const void* table_of(choir_library_t* library) {
  if (library->replacement) return library->replacement;
  if (!library->tried) open_once(library);
  library->tried = true;
  return library->failure[0] ? NULL : library->table;
}

choir_status_t choir__library_open(choir_library_t* library,
                                   const void** out_table) {
  pthread_mutex_lock(&library->lock);
  *out_table = table_of(library);
  pthread_mutex_unlock(&library->lock);
  return *out_table ? NULL : failure(library);
}

bool choir__library_is_there(choir_library_t* library) {
  pthread_mutex_lock(&library->lock);
  const bool is_there = table_of(library);
  const bool is_news = !is_there && !library->told;
  if (is_news) library->told = true;
  pthread_mutex_unlock(&library->lock);
  if (is_news) {
    choir_status_t status = failure(library);
    choir_log(CHOIR_LOG_WARNING, "core", "%s%s%s", choir_status_message(status),
              library->without ? "; " : "",
              library->without ? library->without : "");
    choir_status_free(status);
  }
  return is_there;
}

void choir__library_replace(choir_library_t* library, const void* table) {
  pthread_mutex_lock(&library->lock);
  library->replacement = table;
  pthread_mutex_unlock(&library->lock);
}
