// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_CHECKPOINT_INTERNAL_H_
#define CHOIR_IO_CHECKPOINT_INTERNAL_H_

#include "io/safetensors_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

// An open file, or an index of several (checkpoint_index.c).

#define CHOIR__CHECKPOINT_PATH_BYTES 4096

struct choir_checkpoint_s {
  choir_allocator_t allocator;
  char* path;
  size_t path_bytes;
  int fd;  // -1: an index
  uint64_t data_offset;
  char* text;  // the header or the index
  size_t text_bytes;
  choir__safetensors_t header;  // of an index: the entries of all files, whose
                                // `source` is the file's place in parts
  bool verified;
  choir_checkpoint_t** parts;  // an index's files, with room for header.count
  size_t part_count;           // 0: it is one file
};

// Opens one safetensors file, or with is_index an index.
choir_status_t choir__checkpoint_open(const char* path, bool is_index,
                                      choir_checkpoint_t** out_checkpoint)
    CHOIR_NODISCARD;
// Fills in a checkpoint that has its allocator and path. What was opened before
// a failure stays, for choir_checkpoint_destroy.
choir_status_t choir__checkpoint_read_index(choir_checkpoint_t* index)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_CHECKPOINT_INTERNAL_H_
