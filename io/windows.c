// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/allocator.h"
#include "io/dataset_internal.h"
#include "io/tokens.h"

// Windows of tokens as a data set.

typedef struct windows_s {
  choir_dataset_t dataset;
  choir_allocator_t allocator;
  choir_tokens_t* tokens;
  choir_windows_t windows;
} windows_t;

static choir_status_t windows_read(const choir_dataset_t* dataset,
                                   int64_t index, void* x, void* y) {
  const windows_t* own = (const windows_t*)dataset;
  const int64_t length = own->windows.length;
  const int64_t first = own->windows.first + index * own->windows.stride;
  int32_t* inputs = x;
  int32_t* targets = y;
  CHOIR_TRY(choir_tokens_read(own->tokens, first, length, inputs));
  memcpy(targets, inputs + 1, (size_t)(length - 1) * sizeof(int32_t));
  return choir_tokens_read(own->tokens, first + length, 1,
                           targets + length - 1);
}

static void windows_destroy(choir_dataset_t* dataset) {
  windows_t* own = (windows_t*)dataset;
  choir_tokens_release(own->tokens);
  choir_deallocate(own->allocator, own, sizeof(*own));
}

static const choir__dataset_vtable_t windows_vtable = {windows_read,
                                                       windows_destroy};

// How many windows there are.
static choir_status_t count_windows(const choir_tokens_t* tokens,
                                    const choir_windows_t* windows,
                                    int64_t* out_count) {
  const int64_t all = choir_tokens_count(tokens);
  const int64_t rest =
      windows->first >= 0 && windows->first <= all ? all - windows->first : -1;
  const int64_t count = windows->count ? windows->count : rest;
  if (rest < 0 || count < 0 || count > rest || windows->length < 1 ||
      windows->stride < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "windows: first %lld, count %lld, length %lld, stride "
                       "%lld of %lld tokens; all from 0, length and stride "
                       "from 1 are needed, and no more tokens than there are",
                       (long long)windows->first, (long long)windows->count,
                       (long long)windows->length, (long long)windows->stride,
                       (long long)all);
  if (count <= windows->length)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "windows: %lld tokens are too few for a window of %lld "
                       "and the token behind it",
                       (long long)count, (long long)windows->length);
  *out_count = (count - 1 - windows->length) / windows->stride + 1;
  return NULL;
}

choir_status_t choir_dataset_create_windows(choir_tokens_t* tokens,
                                            const choir_windows_t* windows,
                                            choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  int64_t count = 0;
  CHOIR_TRY(count_windows(tokens, windows, &count));
  const int64_t shape[] = {1, windows->length};
  choir_view_t view;
  CHOIR_TRY_NOTE(choir_view_make(CHOIR_DTYPE_I32, 2, shape, &view), "windows");
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(choir_allocate(allocator, sizeof(windows_t), "a data set", &block));
  windows_t* own = block;
  choir__dataset_init(&windows_vtable, count, choir_tokens_vocabulary(tokens),
                      &own->dataset);
  own->dataset.x = own->dataset.y = view;
  own->allocator = allocator;
  own->windows = *windows;
  own->tokens = tokens;
  choir_tokens_retain(tokens);
  *out_dataset = &own->dataset;
  return NULL;
}
