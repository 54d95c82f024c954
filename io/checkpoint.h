// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_CHECKPOINT_H_
#define CHOIR_IO_CHECKPOINT_H_

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// Checkpoints: named tensors and text in one file of the safetensors format
// (8 bytes little-endian header length, a JSON header, the elements row by
// row), so that Python's safetensors package reads and writes them too.
//
//   choir_metadata_t metadata[] = {{"epoch", "3"}, {"seed", "7"}};
//   CHOIR_TRY(choir_checkpoint_save("net.safetensors", tensors, count,
//                                   metadata, 2));
//   choir_checkpoint_t* checkpoint;
//   CHOIR_TRY(choir_checkpoint_open("net.safetensors", &checkpoint));
//   CHOIR_TRY(choir_checkpoint_read_all(checkpoint, tensors, count));
//   choir_checkpoint_destroy(checkpoint);
//
// A saved file carries a 64-bit sum over names, shapes, dtypes, elements and
// metadata (metadata key "choir.sum"), which opening verifies. A file without
// one, as others write it, opens too; see choir_checkpoint_is_verified.
//
// Tensors may stand in several files too, as Hugging Face splits large models:
// what opens a file opens their index as well (model.safetensors.index.json),
// and reads from it as from one file with all of their tensors.
//
// Ownership: an open checkpoint is unique; what its getters return is lent
// until choir_checkpoint_destroy. Threads: one at a time per object.

// A line of text in the header. Borrowed.
typedef struct choir_metadata_s {
  const char* key;
  const char* value;
} choir_metadata_t;

// Keys that begin with this are Choir's own.
#define CHOIR_CHECKPOINT_RESERVED "choir."

// Writes all tensors, each after the work given to its device's compute
// stream, and the metadata to `path`. The file appears under its name whole or
// not at all, and a file that was there stays until then: it is written without
// a name in the same folder (where the file system lacks that, under another
// one, which a failure takes away), flushed to the disk, put in place by a
// rename, and the folder flushed.
// Only a failed flush of the folder is told after the new file is in place.
// A shard among the tensors: FAILED_PRECONDITION.
// Names and keys must be unique, UTF-8 and not empty; "__metadata__" is no
// tensor's name and keys do not start with "choir." (INVALID_ARGUMENT).
// Missing folder: NOT_FOUND; other refusals of the system:
// FAILED_PRECONDITION with its words. Several processes may save at once; the
// last one wins. Blocks.
CHOIR_API choir_status_t choir_checkpoint_save(
    const char* path, const choir_named_tensor_t* tensors, size_t tensor_count,
    const choir_metadata_t* metadata, size_t metadata_count) CHOIR_NODISCARD;

typedef struct choir_checkpoint_s choir_checkpoint_t;

// What the file says about one tensor.
typedef struct choir_checkpoint_entry_s {
  const char* name;
  choir_dtype_t dtype;
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  size_t bytes;
} choir_checkpoint_entry_t;

// Opens `path`, checks the header and, where there is a sum, reads everything
// once to verify it. NOT_FOUND: no such file. INVALID_ARGUMENT: no safetensors
// file, or damaged; the message tells where. UNIMPLEMENTED: it has a dtype or
// a number of dimensions that Choir lacks, or a later Choir wrote it. The file
// is not trusted: whatever its bytes, the result is a status, and memory stays
// in proportion to the file's length. The file must not be written to while it
// is open (replacing it by choir_checkpoint_save is fine). Blocks on the disk.
// A path that ends in ".index.json" is an index, whose object "weight_map" has
// a file's name for each tensor's: each file stands beside it under a plain
// name, is opened as above and has exactly the tensors that are placed there,
// else the message has the file and the tensor. All files stay open. A folder
// stands for its model.safetensors or, without one, its
// model.safetensors.index.json.
CHOIR_API choir_status_t choir_checkpoint_open(
    const char* path, choir_checkpoint_t** out_checkpoint) CHOIR_NODISCARD;
// Closes the file; accepts NULL.
CHOIR_API void choir_checkpoint_destroy(choir_checkpoint_t* checkpoint);

// Whether the file, of an index each file, had a sum. (A wrong one makes _open
// fail.)
CHOIR_API bool choir_checkpoint_is_verified(
    const choir_checkpoint_t* checkpoint);

// Tensors of the file, in the order of their bytes in it; of an index file by
// file, by name.
CHOIR_API size_t choir_checkpoint_count(const choir_checkpoint_t* checkpoint);
// NULL when index is out of range.
CHOIR_API const choir_checkpoint_entry_t* choir_checkpoint_get(
    const choir_checkpoint_t* checkpoint, size_t index);
// The tensor called `name`, or NULL.
CHOIR_API const choir_checkpoint_entry_t* choir_checkpoint_find(
    const choir_checkpoint_t* checkpoint, const char* name);

// The text under `key`, or NULL. An index has no metadata.
CHOIR_API const char* choir_checkpoint_metadata(
    const choir_checkpoint_t* checkpoint, const char* key);
// All metadata, Choir's own included, sorted by key.
CHOIR_API size_t
choir_checkpoint_metadata_count(const choir_checkpoint_t* checkpoint);
// {NULL, NULL} when index is out of range.
CHOIR_API choir_metadata_t choir_checkpoint_metadata_get(
    const choir_checkpoint_t* checkpoint, size_t index);

// Reads the tensor called `name` into `tensor`, whatever the layout of that
// one in memory. NOT_FOUND when the file has no such tensor; INVALID_ARGUMENT
// with both shapes when shape or dtype differ: a checkpoint of another model.
// Blocks, after the work given to the tensor's device's compute stream.
CHOIR_API choir_status_t choir_checkpoint_read(choir_checkpoint_t* checkpoint,
                                               const char* name,
                                               choir_tensor_t* tensor)
    CHOIR_NODISCARD;
// Reads each of `tensors` under its name; a shard gets its part of the file's
// tensor, which is whole. All names, shapes and dtypes are
// checked before the first one is changed. What else the file has is left.
CHOIR_API choir_status_t choir_checkpoint_read_all(
    choir_checkpoint_t* checkpoint, const choir_named_tensor_t* tensors,
    size_t tensor_count) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_CHECKPOINT_H_
