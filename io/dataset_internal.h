// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_DATASET_INTERNAL_H_
#define CHOIR_IO_DATASET_INTERNAL_H_

#include <stdatomic.h>

#include "io/dataset.h"

// A kind of data set: images in memory (dataset.c), windows of tokens
// (windows.c). Its struct begins with choir_dataset_s.

typedef struct choir__dataset_vtable_s {
  // Writes sample `index`, 0 to count - 1, as x and y say. Any thread.
  choir_status_t (*read)(const choir_dataset_t* dataset, int64_t index, void* x,
                         void* y);
  void (*destroy)(choir_dataset_t* dataset);
} choir__dataset_vtable_t;

struct choir_dataset_s {
  atomic_int ref_count;
  const choir__dataset_vtable_t* vtable;
  int64_t count;
  int64_t class_count;
  choir_view_t x, y;  // of one sample, with a first dimension of 1
};

// Sets all but x and y, with one reference.
void choir__dataset_init(const choir__dataset_vtable_t* vtable, int64_t count,
                         int64_t class_count, choir_dataset_t* dataset);

#endif  // CHOIR_IO_DATASET_INTERNAL_H_
