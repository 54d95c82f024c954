// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/random.h"
#include "io/checkpoint_internal.h"
#include "io/io_internal.h"

// Writing goes through the tensors once: the header is written with a sum of
// zeros, each tensor is fetched, added to the sum and written, and at last the
// sum's digits are put in their place. Until the rename nobody can see the
// file under its name.

// Elements go out as they lie in memory.
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian");

#define FORMAT_KEY "choir.format"
#define FORMAT_VALUE "1"
// Holds the place of the sum's digits.
#define SUM_PLACE "0000000000000000"
#define WHERE "checkpoint"
#define INDEX_END ".index.json"
#define PIECE_BYTES ((size_t)1 << 20)
#define PATH_BYTES CHOIR__CHECKPOINT_PATH_BYTES
// Names tried for the temporary file; another process of the same number (on
// another host of a shared folder) or a leftover may have taken some.
#define TEMPORARY_TRIES 64
// "18446744073709551615, " for each dimension, dtype and brackets.
#define SHAPE_TEXT_BYTES (CHOIR_MAX_NDIM * 22 + 16)

static const char* print_shape(choir_dtype_t dtype, int32_t ndim,
                               const int64_t* shape,
                               char text[SHAPE_TEXT_BYTES]) {
  int used = snprintf(text, SHAPE_TEXT_BYTES, "%s (", choir_dtype_name(dtype));
  for (int32_t k = 0; k < ndim; ++k) {
    used += snprintf(text + used, SHAPE_TEXT_BYTES - (size_t)used, "%s%lld",
                     k ? ", " : "", (long long)shape[k]);
  }
  snprintf(text + used, SHAPE_TEXT_BYTES - (size_t)used, ")");
  return text;
}

static void sum_digits(uint64_t sum,
                       char digits[CHOIR__SAFETENSORS_SUM_DIGITS + 1]) {
  snprintf(digits, CHOIR__SAFETENSORS_SUM_DIGITS + 1, "%016llx",
           (unsigned long long)sum);
}

// ---- Saving ----

typedef struct save_s {
  choir_allocator_t allocator;
  const char* path;
  const choir_named_tensor_t* tensors;
  choir__safetensors_t header;
  char* text;  // the header as written
  size_t text_bytes;
  size_t sum_offset;
  void* staging;  // the largest tensor
  size_t staging_bytes;
  char folder[PATH_BYTES];
  char temporary[PATH_BYTES];
  int fd;
} save_t;

static choir_status_t build_header(save_t* save, size_t tensor_count,
                                   const choir_metadata_t* metadata,
                                   size_t metadata_count) {
  const size_t lists_bytes = tensor_count * sizeof(choir_checkpoint_entry_t) +
                             (metadata_count + 2) * sizeof(choir_metadata_t);
  void* block;
  CHOIR_TRY(choir_allocate(save->allocator, lists_bytes,
                           "the list of a checkpoint's tensors", &block));
  choir_metadata_t* texts = block;
  choir_checkpoint_entry_t* entries = (void*)(texts + metadata_count + 2);

  choir_status_t status = NULL;
  for (size_t i = 0; i < metadata_count && !status; ++i) {
    texts[i] = metadata[i];
    if (texts[i].key && strncmp(texts[i].key, CHOIR_CHECKPOINT_RESERVED,
                                strlen(CHOIR_CHECKPOINT_RESERVED)) == 0) {
      status = CHOIR_ERROR(INVALID_ARGUMENT,
                           "metadata '%s' begins with '%s', which is kept for "
                           "Choir",
                           texts[i].key, CHOIR_CHECKPOINT_RESERVED);
    }
  }
  texts[metadata_count] = (choir_metadata_t){FORMAT_KEY, FORMAT_VALUE};
  texts[metadata_count + 1] =
      (choir_metadata_t){CHOIR__SAFETENSORS_SUM, SUM_PLACE};

  for (size_t i = 0; i < tensor_count && !status; ++i) {
    const choir_tensor_t* tensor = save->tensors[i].tensor;
    if (!tensor) {
      status = CHOIR_ERROR(INVALID_ARGUMENT, "tensor %zu is NULL", i);
      break;
    }
    choir_checkpoint_entry_t* entry = &entries[i];
    if (save->tensors[i].shard) {
      status = CHOIR_ERROR(FAILED_PRECONDITION,
                           "tensor '%s' is a shard; needs whole ones: "
                           "choir_training_save writes them",
                           save->tensors[i].name);
      break;
    }
    entry->name = save->tensors[i].name;
    entry->dtype = choir_tensor_dtype(tensor);
    entry->ndim = choir_tensor_ndim(tensor);
    memcpy(entry->shape, choir_tensor_shape(tensor),
           (size_t)entry->ndim * sizeof(int64_t));
    entry->bytes =
        (size_t)choir_tensor_count(tensor) * choir_dtype_bytes(entry->dtype);
    if (entry->bytes > save->staging_bytes) {
      save->staging_bytes = entry->bytes;
    }
  }
  if (!status) {
    status = choir__safetensors_build(save->allocator, entries, tensor_count,
                                      texts, metadata_count + 2, &save->header);
  }
  if (!status) {
    status = choir__safetensors_print(&save->header, &save->text,
                                      &save->text_bytes, &save->sum_offset);
  }
  choir_deallocate(save->allocator, block, lists_bytes);
  return status;
}

static void next_temporary_name(save_t* save) {
  static atomic_uint counter;
  snprintf(save->temporary, PATH_BYTES, "%.*s.choir-%ld-%u.tmp",
           PATH_BYTES - 64, save->folder, (long)getpid(),
           atomic_fetch_add(&counter, 1));
}

static void unnamed_path(const save_t* save, char path[64]) {
  snprintf(path, 64, "/proc/self/fd/%d", save->fd);
}

// A file without a name leaves nothing behind, however the process ends; where
// the file system or /proc do not offer it, one with a name of its own.
static choir_status_t open_temporary(save_t* save) {
  const char* slash = strrchr(save->path, '/');
  const size_t folder_bytes = slash ? (size_t)(slash - save->path) + 1 : 0;
  if (folder_bytes + 64 > PATH_BYTES) {
    return CHOIR_ERROR(INVALID_ARGUMENT, "its name is longer than %d bytes",
                       PATH_BYTES - 64);
  }
  if (slash && slash[1] == '\0') {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "this names a folder; a file is needed");
  }
  snprintf(save->folder, PATH_BYTES, "%.*s", (int)folder_bytes, save->path);
  if (!slash) snprintf(save->folder, PATH_BYTES, "./");
  save->fd = open(save->folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  char path[64];
  if (save->fd >= 0) {
    unnamed_path(save, path);
    if (access(path, F_OK) == 0) return NULL;
    close(save->fd);
  }
  int error = EEXIST;
  for (int i = 0; i < TEMPORARY_TRIES && error == EEXIST; ++i) {
    next_temporary_name(save);
    save->fd = open(save->temporary,
                    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (save->fd >= 0) return NULL;
    error = errno;
  }
  save->temporary[0] = '\0';
  return CHOIR__IO_ERROR(error, "cannot make a file in folder '%s'",
                         save->folder);
}

// Gives a file without a name its temporary one, as only a name can take the
// place of another.
static choir_status_t name_temporary(save_t* save) {
  if (save->temporary[0]) return NULL;
  char path[64];
  unnamed_path(save, path);
  int error = EEXIST;
  for (int i = 0; i < TEMPORARY_TRIES && error == EEXIST; ++i) {
    next_temporary_name(save);
    if (linkat(AT_FDCWD, path, AT_FDCWD, save->temporary, AT_SYMLINK_FOLLOW) ==
        0) {
      return NULL;
    }
    error = errno;
  }
  save->temporary[0] = '\0';
  return CHOIR__IO_ERROR(error, "cannot name a file in folder '%s'",
                         save->folder);
}

static choir_status_t write_tensors(save_t* save) {
  if (save->staging_bytes > 0) {
    CHOIR_TRY(choir_allocate(save->allocator, save->staging_bytes,
                             "a tensor on its way to the disk",
                             &save->staging));
  }
  for (size_t i = 0; i < save->header.count; ++i) {
    choir__safetensors_entry_t* entry = &save->header.entries[i];
    entry->hash = CHOIR_HASH_START;
    if (entry->entry.bytes == 0) continue;
    CHOIR_TRY_NOTE(choir_tensor_read(save->tensors[entry->source].tensor,
                                     save->staging, entry->entry.bytes),
                   "tensor '%s'", entry->entry.name);
    entry->hash =
        choir_hash_bytes(entry->hash, save->staging, entry->entry.bytes);
    CHOIR_TRY(choir__io_write(save->fd, save->path, save->staging,
                              entry->entry.bytes));
  }
  return NULL;
}

static choir_status_t write_sum(const save_t* save) {
  char digits[CHOIR__SAFETENSORS_SUM_DIGITS + 1];
  sum_digits(choir__safetensors_sum(&save->header), digits);
  if (lseek(save->fd, (off_t)save->sum_offset, SEEK_SET) < 0) {
    return CHOIR__IO_ERROR(errno, "cannot go back in '%s'", save->path);
  }
  return choir__io_write(save->fd, save->path, digits,
                         CHOIR__SAFETENSORS_SUM_DIGITS);
}

static choir_status_t write_file(save_t* save) {
  CHOIR_TRY(
      choir__io_write(save->fd, save->path, save->text, save->text_bytes));
  CHOIR_TRY(write_tensors(save));
  CHOIR_TRY(write_sum(save));
  if (fsync(save->fd) != 0) {
    return CHOIR__IO_ERROR(errno, "cannot flush '%s' to the disk", save->path);
  }
  // These two stand together: only between them can a kill leave a file.
  CHOIR_TRY(name_temporary(save));
  if (rename(save->temporary, save->path) != 0) {
    return CHOIR__IO_ERROR(errno, "cannot rename '%s'", save->temporary);
  }
  save->temporary[0] = '\0';
  return NULL;
}

// Makes the new name last through a loss of power.
static choir_status_t flush_folder(const save_t* save) {
  int fd = open(save->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    // A folder that may be written but not read.
    if (errno == EACCES) return NULL;
    return CHOIR__IO_ERROR(errno, "saved, but cannot open folder '%s'",
                           save->folder);
  }
  int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // EINVAL: this file system has nothing to flush.
  if (error && error != EINVAL) {
    return CHOIR__IO_ERROR(error, "saved, but cannot flush folder '%s'",
                           save->folder);
  }
  return NULL;
}

static choir_status_t save_all(save_t* save, size_t tensor_count,
                               const choir_metadata_t* metadata,
                               size_t metadata_count) {
  CHOIR_TRY(build_header(save, tensor_count, metadata, metadata_count));
  CHOIR_TRY(open_temporary(save));
  CHOIR_TRY(write_file(save));
  return flush_folder(save);
}

choir_status_t choir_checkpoint_save(const char* path,
                                     const choir_named_tensor_t* tensors,
                                     size_t tensor_count,
                                     const choir_metadata_t* metadata,
                                     size_t metadata_count) {
  if (!path || !*path || (tensor_count > 0 && !tensors) ||
      (metadata_count > 0 && !metadata)) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": path '%s', %zu tensors, %zu metadata; a name "
                       "and lists of that length are needed",
                       path ? path : "(null)", tensor_count, metadata_count);
  }
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(choir_allocate(allocator, sizeof(save_t), WHERE, &block));
  save_t* save = block;
  save->allocator = allocator;
  save->path = path;
  save->tensors = tensors;
  save->fd = -1;
  choir_status_t status =
      save_all(save, tensor_count, metadata, metadata_count);
  if (save->fd >= 0) close(save->fd);
  if (status) {
    if (save->temporary[0]) unlink(save->temporary);
    status = choir_status_annotate(status, __FILE__, __LINE__,
                                   WHERE ": cannot save '%s'", path);
  }
  if (save->text) choir_deallocate(allocator, save->text, save->text_bytes);
  if (save->staging) {
    choir_deallocate(allocator, save->staging, save->staging_bytes);
  }
  choir__safetensors_clear(&save->header);
  choir_deallocate(allocator, save, sizeof *save);
  return status;
}

// ---- Opening ----

static choir_status_t open_file(choir_checkpoint_t* checkpoint,
                                uint64_t* out_data_bytes) {
  const char* path = checkpoint->path;
  uint64_t file_bytes;
  CHOIR_TRY(choir__io_open(WHERE, path, &checkpoint->fd, &file_bytes));
  if (file_bytes < 8) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": '%s' has %llu bytes; a safetensors file has "
                       "at least 10",
                       path, (unsigned long long)file_bytes);
  }
  uint8_t length[8];
  CHOIR_TRY(
      choir__io_read_at(checkpoint->fd, WHERE, path, 0, length, sizeof length));
  uint64_t header_bytes = 0;
  for (int k = 0; k < 8; ++k) header_bytes |= (uint64_t)length[k] << (8 * k);
  if (header_bytes > file_bytes - 8 ||
      header_bytes > CHOIR__SAFETENSORS_MAX_HEADER) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": '%s' claims a header of %llu bytes; the file "
                       "has %llu after the length, and %llu are allowed "
                       "(truncated, or no safetensors file)",
                       path, (unsigned long long)header_bytes,
                       (unsigned long long)(file_bytes - 8),
                       (unsigned long long)CHOIR__SAFETENSORS_MAX_HEADER);
  }
  checkpoint->data_offset = 8 + header_bytes;
  *out_data_bytes = file_bytes - checkpoint->data_offset;
  void* block;
  CHOIR_TRY_NOTE(choir_allocate(checkpoint->allocator, header_bytes + 1,
                                "the header of a checkpoint", &block),
                 WHERE ": '%s'", path);
  checkpoint->text = block;
  checkpoint->text_bytes = header_bytes + 1;
  return choir__io_read_at(checkpoint->fd, WHERE, path, 8, checkpoint->text,
                           header_bytes);
}

static choir_status_t hash_tensors(choir_checkpoint_t* checkpoint,
                                   uint8_t* piece, size_t piece_bytes) {
  for (size_t i = 0; i < checkpoint->header.count; ++i) {
    choir__safetensors_entry_t* entry = &checkpoint->header.entries[i];
    uint64_t offset = checkpoint->data_offset + entry->begin;
    size_t left = entry->entry.bytes;
    entry->hash = CHOIR_HASH_START;
    while (left > 0) {
      const size_t bytes = left < piece_bytes ? left : piece_bytes;
      CHOIR_TRY(choir__io_read_at(checkpoint->fd, WHERE, checkpoint->path,
                                  offset, piece, bytes));
      entry->hash = choir_hash_bytes(entry->hash, piece, bytes);
      offset += bytes;
      left -= bytes;
    }
  }
  return NULL;
}

static choir_status_t verify(choir_checkpoint_t* checkpoint) {
  const char* wanted =
      choir__safetensors_metadata(&checkpoint->header, CHOIR__SAFETENSORS_SUM);
  const char* format =
      choir__safetensors_metadata(&checkpoint->header, FORMAT_KEY);
  if (!wanted && !format) return NULL;  // another program's file
  if (!wanted) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": '%s' is damaged: it was saved by Choir and "
                       "has lost its sum (metadata '%s')",
                       checkpoint->path, CHOIR__SAFETENSORS_SUM);
  }
  if (format && strcmp(format, FORMAT_VALUE) != 0) {
    return CHOIR_ERROR(UNIMPLEMENTED,
                       WHERE
                       ": '%s' has format '%.32s'; this version of Choir "
                       "reads format '%s'",
                       checkpoint->path, format, FORMAT_VALUE);
  }
  size_t piece_bytes = 1;
  for (size_t i = 0; i < checkpoint->header.count; ++i) {
    const size_t bytes = checkpoint->header.entries[i].entry.bytes;
    if (bytes > piece_bytes) piece_bytes = bytes;
  }
  if (piece_bytes > PIECE_BYTES) piece_bytes = PIECE_BYTES;
  void* piece;
  CHOIR_TRY(choir_allocate(checkpoint->allocator, piece_bytes,
                           "verifying a checkpoint", &piece));
  choir_status_t status = hash_tensors(checkpoint, piece, piece_bytes);
  choir_deallocate(checkpoint->allocator, piece, piece_bytes);
  if (status) return status;
  char found[CHOIR__SAFETENSORS_SUM_DIGITS + 1];
  sum_digits(choir__safetensors_sum(&checkpoint->header), found);
  if (strcmp(found, wanted) != 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": '%s' is damaged: the sum of its contents is "
                       "%s, the one it was saved with %.32s",
                       checkpoint->path, found, wanted);
  }
  checkpoint->verified = true;
  return NULL;
}

static choir_status_t open_all(choir_checkpoint_t* checkpoint) {
  uint64_t data_bytes = 0;
  CHOIR_TRY(open_file(checkpoint, &data_bytes));
  CHOIR_TRY_NOTE(
      choir__safetensors_parse(checkpoint->allocator, checkpoint->text,
                               checkpoint->text_bytes - 1, data_bytes,
                               &checkpoint->header),
      WHERE ": '%s'", checkpoint->path);
  return verify(checkpoint);
}

choir_status_t choir__checkpoint_open(const char* path, bool is_index,
                                      choir_checkpoint_t** out_checkpoint) {
  *out_checkpoint = NULL;
  choir_allocator_t allocator = choir_allocator_default();
  const size_t path_bytes = strlen(path) + 1;
  void* block;
  CHOIR_TRY(choir_allocate(allocator, path_bytes, WHERE, &block));
  char* path_copy = block;
  memcpy(path_copy, path, path_bytes);
  choir_status_t status =
      choir_allocate(allocator, sizeof(choir_checkpoint_t), WHERE, &block);
  if (status) {
    choir_deallocate(allocator, path_copy, path_bytes);
    return status;
  }
  choir_checkpoint_t* checkpoint = block;
  checkpoint->allocator = allocator;
  checkpoint->path = path_copy;
  checkpoint->path_bytes = path_bytes;
  checkpoint->fd = -1;
  status = is_index ? choir__checkpoint_read_index(checkpoint)
                    : open_all(checkpoint);
  if (status) {
    choir_checkpoint_destroy(checkpoint);
    return status;
  }
  *out_checkpoint = checkpoint;
  return NULL;
}

// What of a folder is opened; *path becomes `found` then.
static choir_status_t find_in_folder(const char** path,
                                     char found[PATH_BYTES]) {
  static const char* const names[] = {"model.safetensors",
                                      "model.safetensors" INDEX_END};
  struct stat info;
  if (stat(*path, &info) != 0 || !S_ISDIR(info.st_mode)) return NULL;
  for (int i = 0; i < 2; ++i) {
    const int bytes = snprintf(found, PATH_BYTES, "%s/%s", *path, names[i]);
    if (bytes < 0 || bytes >= PATH_BYTES || access(found, F_OK) != 0) continue;
    *path = found;
    return NULL;
  }
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     WHERE
                     ": '%s' is a folder; a file is needed, or a folder "
                     "that has %s or %s",
                     *path, names[0], names[1]);
}

choir_status_t choir_checkpoint_open(const char* path,
                                     choir_checkpoint_t** out_checkpoint) {
  *out_checkpoint = NULL;
  if (!path) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE ": path is NULL; a file's name is needed");
  }
  char found[PATH_BYTES];
  CHOIR_TRY(find_in_folder(&path, found));
  const size_t bytes = strlen(path), end_bytes = strlen(INDEX_END);
  const bool is_index =
      bytes >= end_bytes && strcmp(path + bytes - end_bytes, INDEX_END) == 0;
  return choir__checkpoint_open(path, is_index, out_checkpoint);
}

void choir_checkpoint_destroy(choir_checkpoint_t* checkpoint) {
  if (!checkpoint) return;
  choir_allocator_t allocator = checkpoint->allocator;
  if (checkpoint->fd >= 0) close(checkpoint->fd);
  for (size_t i = 0; i < checkpoint->part_count; ++i) {
    choir_checkpoint_destroy(checkpoint->parts[i]);
  }
  if (checkpoint->parts) {
    choir_deallocate(allocator, checkpoint->parts,
                     checkpoint->header.count * sizeof(void*));
  }
  choir__safetensors_clear(&checkpoint->header);
  if (checkpoint->text) {
    choir_deallocate(allocator, checkpoint->text, checkpoint->text_bytes);
  }
  choir_deallocate(allocator, checkpoint->path, checkpoint->path_bytes);
  choir_deallocate(allocator, checkpoint, sizeof *checkpoint);
}

// ---- Queries ----

bool choir_checkpoint_is_verified(const choir_checkpoint_t* checkpoint) {
  return checkpoint->verified;
}

size_t choir_checkpoint_count(const choir_checkpoint_t* checkpoint) {
  return checkpoint->header.count;
}

const choir_checkpoint_entry_t* choir_checkpoint_get(
    const choir_checkpoint_t* checkpoint, size_t index) {
  if (index >= checkpoint->header.count) return NULL;
  return &checkpoint->header.entries[index].entry;
}

// Adam's states had other names in files of earlier versions.
static const char* const former_suffixes[][2] = {{"/exp_avg", "/mean"},
                                                 {"/exp_avg_sq", "/square"}};

static bool is_joined(const char* name, const char* stem, size_t stem_bytes,
                      const char* suffix) {
  return strncmp(name, stem, stem_bytes) == 0 &&
         strcmp(name + stem_bytes, suffix) == 0;
}

static const choir__safetensors_entry_t* find_former(
    const choir__safetensors_t* header, const char* name) {
  const char* slash = strrchr(name, '/');
  for (int k = 0; slash && k < 2; ++k) {
    if (strcmp(slash, former_suffixes[k][0]) != 0) continue;
    for (size_t i = 0; i < header->count; ++i)
      if (is_joined(header->entries[i].entry.name, name, (size_t)(slash - name),
                    former_suffixes[k][1]))
        return &header->entries[i];
  }
  return NULL;
}

static const choir__safetensors_entry_t* find(
    const choir_checkpoint_t* checkpoint, const char* name) {
  const choir__safetensors_entry_t* entry =
      choir__safetensors_find(&checkpoint->header, name);
  return entry ? entry : find_former(&checkpoint->header, name);
}

const choir_checkpoint_entry_t* choir_checkpoint_find(
    const choir_checkpoint_t* checkpoint, const char* name) {
  const choir__safetensors_entry_t* entry = find(checkpoint, name);
  return entry ? &entry->entry : NULL;
}

const char* choir_checkpoint_metadata(const choir_checkpoint_t* checkpoint,
                                      const char* key) {
  return choir__safetensors_metadata(&checkpoint->header, key);
}

size_t choir_checkpoint_metadata_count(const choir_checkpoint_t* checkpoint) {
  return checkpoint->header.metadata_count;
}

choir_metadata_t choir_checkpoint_metadata_get(
    const choir_checkpoint_t* checkpoint, size_t index) {
  if (index >= checkpoint->header.metadata_count) {
    return (choir_metadata_t){NULL, NULL};
  }
  return checkpoint->header.metadata[index];
}

// ---- Reading ----

static choir_status_t match(const choir_checkpoint_t* checkpoint,
                            const char* name, const choir_view_t* wanted,
                            const choir__safetensors_entry_t** out_entry) {
  *out_entry = NULL;
  if (!name || !wanted) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE ": '%s': a name or a tensor to read is NULL",
                       checkpoint->path);
  }
  const choir__safetensors_entry_t* found = find(checkpoint, name);
  if (!found) {
    return CHOIR_ERROR(NOT_FOUND,
                       WHERE
                       ": '%s' has no tensor '%s' (it has %zu others); "
                       "is it a checkpoint of another model?",
                       checkpoint->path, name, checkpoint->header.count);
  }
  const choir_checkpoint_entry_t* entry = &found->entry;
  const int32_t ndim = wanted->ndim;
  if (entry->dtype != wanted->dtype || entry->ndim != ndim ||
      memcmp(entry->shape, wanted->shape, (size_t)ndim * sizeof(int64_t)) !=
          0) {
    char in_file[SHAPE_TEXT_BYTES];
    char in_model[SHAPE_TEXT_BYTES];
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        WHERE
        ": tensor '%s' is %s in '%s' and %s in this model: a checkpoint "
        "of another model",
        name, print_shape(entry->dtype, entry->ndim, entry->shape, in_file),
        checkpoint->path,
        print_shape(wanted->dtype, ndim, wanted->shape, in_model));
  }
  *out_entry = found;
  return NULL;
}

// What is stored as BOOL must be 0 or 1, on which the kernels rely.
static choir_status_t check_bools(const choir_checkpoint_t* checkpoint,
                                  const choir_checkpoint_entry_t* entry,
                                  const uint8_t* elements) {
  if (entry->dtype != CHOIR_DTYPE_BOOL) return NULL;
  for (size_t i = 0; i < entry->bytes; ++i) {
    if (elements[i] > 1) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         WHERE
                         ": tensor '%s' in '%s' is bool but element %zu "
                         "is %d",
                         entry->name, checkpoint->path, i, elements[i]);
    }
  }
  return NULL;
}

choir_status_t choir_checkpoint_read(choir_checkpoint_t* checkpoint,
                                     const char* name, choir_tensor_t* tensor) {
  const choir__safetensors_entry_t* found;
  CHOIR_TRY(match(checkpoint, name, tensor ? choir_tensor_view(tensor) : NULL,
                  &found));
  const choir_checkpoint_entry_t* entry = &found->entry;
  if (entry->bytes == 0) return NULL;
  void* elements;
  CHOIR_TRY(choir_allocate(checkpoint->allocator, entry->bytes,
                           "a tensor on its way from the disk", &elements));
  const choir_checkpoint_t* file =
      checkpoint->parts ? checkpoint->parts[found->source] : checkpoint;
  choir_status_t status = choir__io_read_at(file->fd, WHERE, file->path,
                                            file->data_offset + found->begin,
                                            elements, entry->bytes);
  if (!status) status = check_bools(file, entry, elements);
  if (!status) status = choir_tensor_write(tensor, elements, entry->bytes);
  choir_deallocate(checkpoint->allocator, elements, entry->bytes);
  return status;
}

static choir_status_t read_named(choir_checkpoint_t* checkpoint,
                                 const choir_named_tensor_t* named) {
  choir_tensor_t* whole = NULL;
  CHOIR_TRY(choir_named_tensor_make_whole(named, &whole));
  choir_status_t status = choir_checkpoint_read(checkpoint, named->name, whole);
  if (!status) status = choir_named_tensor_take(named, whole);
  choir_tensor_release(whole);
  return status;
}

static const choir_view_t* view_of(const choir_named_tensor_t* named) {
  if (named->shard) return &named->shard->whole;
  return named->tensor ? choir_tensor_view(named->tensor) : NULL;
}

choir_status_t choir_checkpoint_read_all(choir_checkpoint_t* checkpoint,
                                         const choir_named_tensor_t* tensors,
                                         size_t tensor_count) {
  for (size_t i = 0; i < tensor_count; ++i) {
    const choir__safetensors_entry_t* found;
    CHOIR_TRY(match(checkpoint, tensors[i].name, view_of(&tensors[i]), &found));
  }
  for (size_t i = 0; i < tensor_count; ++i)
    CHOIR_TRY(read_named(checkpoint, &tensors[i]));
  return NULL;
}
