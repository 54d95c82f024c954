// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_SAFETENSORS_INTERNAL_H_
#define CHOIR_IO_SAFETENSORS_INTERNAL_H_

#include "core/allocator.h"
#include "io/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

// The JSON header of a safetensors file, without any file:
//
//   {"__metadata__": {"key": "text", ...},
//    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// Offsets count from the end of the header. The tensors' ranges must cover the
// data without gap or overlap. Reading trusts nothing.

// Longest header that is read or written.
#define CHOIR__SAFETENSORS_MAX_HEADER ((uint64_t)16 << 20)
#define CHOIR__SAFETENSORS_METADATA "__metadata__"
#define CHOIR__SAFETENSORS_SUM "choir.sum"
// Hexadecimal digits of the sum.
#define CHOIR__SAFETENSORS_SUM_DIGITS 16

typedef struct choir__safetensors_entry_s {
  choir_checkpoint_entry_t entry;  // must be first; name owned by the header
  uint64_t begin;                  // in the data
  size_t source;                   // index in the list that was built from
  uint64_t hash;                   // of the elements, when somebody fills it in
} choir__safetensors_entry_t;

typedef struct choir__safetensors_s {
  choir_allocator_t allocator;
  choir__safetensors_entry_t* entries;  // by place in the data
  size_t* by_name;                      // indices of entries, sorted by name
  size_t count;
  choir_metadata_t* metadata;  // by key
  size_t metadata_count;
  void* json;  // the parsed text, which the names point into
} choir__safetensors_t;

// Parses `bytes` of header text for `data_bytes` of data. `text` must have
// room for one more byte, which is overwritten. Messages begin with the
// trouble itself; the caller puts the file's name before them.
choir_status_t choir__safetensors_parse(choir_allocator_t allocator, char* text,
                                        size_t bytes, uint64_t data_bytes,
                                        choir__safetensors_t* out_header)
    CHOIR_NODISCARD;

// The two steps of it that an index of several files takes too. Parses `what`
// ("header", "index"), a JSON object of few levels, into *out_json, which
// cJSON_Delete frees; `text` has room for one more byte.
choir_status_t choir__safetensors_read_json(const char* what, char* text,
                                            size_t bytes, void** out_json)
    CHOIR_NODISCARD;
// Makes by_name of the entries; INVALID_ARGUMENT: two have the same name.
choir_status_t choir__safetensors_sort_names(choir__safetensors_t* header)
    CHOIR_NODISCARD;

// Builds the header of a new file: `tensors` are laid one after the other,
// larger elements first and otherwise in the order given, so that all are
// aligned. Names, keys and values stay the caller's. Metadata may include
// Choir's own. INVALID_ARGUMENT for what a header cannot hold, see
// choir_checkpoint_save.
choir_status_t choir__safetensors_build(
    choir_allocator_t allocator, const choir_checkpoint_entry_t* tensors,
    size_t tensor_count, const choir_metadata_t* metadata,
    size_t metadata_count, choir__safetensors_t* out_header) CHOIR_NODISCARD;
// The header as it stands in a file: 8 bytes of length, the text, spaces up to
// a multiple of 8. `out_bytes` of the header's allocator, the caller's to
// deallocate. out_sum_offset is where the sum's digits stand; 0 without one.
choir_status_t choir__safetensors_print(const choir__safetensors_t* header,
                                        char** out_text, size_t* out_bytes,
                                        size_t* out_sum_offset) CHOIR_NODISCARD;

// A zeroed header is fine.
void choir__safetensors_clear(choir__safetensors_t* header);
// NULL when there is none.
const choir__safetensors_entry_t* choir__safetensors_find(
    const choir__safetensors_t* header, const char* name);
const char* choir__safetensors_metadata(const choir__safetensors_t* header,
                                        const char* key);

// The sum of a file's contents from the hashes of its tensors: FNV-1a over
// the number of tensors; for each, by name: name, dtype, dimensions, hash of
// the elements; then each metadata pair, by key, except the sum itself. Texts
// count with their NUL, numbers as 8 bytes little-endian. So the order of
// tensors in the file does not matter, and a program that keeps names,
// elements and metadata keeps the sum.
uint64_t choir__safetensors_sum(const choir__safetensors_t* header);

// "F32"; NULL for no dtype.
const char* choir__safetensors_dtype(choir_dtype_t dtype);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_SAFETENSORS_INTERNAL_H_
