// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/allocator.h"
#include "io/dataset.h"
#include "io/io_internal.h"

enum {
  CHANNELS = 3,
  SIDE = 32,
  CLASSES = 10,
  IMAGE_BYTES = CHANNELS * SIDE * SIDE,
  RECORD_BYTES = 1 + IMAGE_BYTES,
  TRAIN_FILES = 5,
  // Records that are read at a time.
  CHUNK = 64,
};

typedef struct file_s {
  char path[PATH_MAX];
  int fd;  // -1: not open
  int64_t records;
} file_t;

// Where the images go.
typedef struct images_s {
  int64_t count;
  uint8_t* pixels;
  int32_t* labels;
} images_t;

static choir_status_t check_folder(const char* folder, const char* first) {
  struct stat info;
  if (stat(folder, &info) != 0)
    return CHOIR__IO_ERROR(errno,
                           "cifar10: cannot open folder '%s', where %s should "
                           "be",
                           folder, first);
  if (!S_ISDIR(info.st_mode))
    return CHOIR_ERROR(NOT_FOUND,
                       "cifar10: '%s' is a file; the folder of %s is needed",
                       folder, first);
  return NULL;
}

static choir_status_t open_file(const char* folder, const char* name,
                                file_t* file) {
  const int length =
      snprintf(file->path, sizeof(file->path), "%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof(file->path))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "cifar10: the name of the folder is longer than %d "
                       "bytes",
                       PATH_MAX - 32);
  uint64_t bytes = 0;
  CHOIR_TRY(choir__io_open("cifar10", file->path, &file->fd, &bytes));
  if (bytes == 0 || bytes % RECORD_BYTES != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "cifar10: '%s' has %llu bytes; a multiple of %d is "
                       "needed, at least one record",
                       file->path, (unsigned long long)bytes, RECORD_BYTES);
  file->records = (int64_t)(bytes / RECORD_BYTES);
  return NULL;
}

// The first `records` of a file become the images from number `at`.
static choir_status_t read_file(const file_t* file, int64_t records,
                                uint8_t* chunk, images_t* images, int64_t at) {
  for (int64_t done = 0; done < records;) {
    const int64_t left = records - done;
    const int64_t count = left < CHUNK ? left : CHUNK;
    CHOIR_TRY(choir__io_read_at(file->fd, "cifar10", file->path,
                                (uint64_t)done * RECORD_BYTES, chunk,
                                (size_t)count * RECORD_BYTES));
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* record = chunk + i * RECORD_BYTES;
      if (record[0] >= CLASSES)
        return CHOIR_ERROR(INVALID_ARGUMENT,
                           "cifar10: record %lld of '%s' has label %d; 0 to %d "
                           "are the labels",
                           (long long)(done + i), file->path, record[0],
                           CLASSES - 1);
      const int64_t image = at + done + i;
      images->labels[image] = record[0];
      memcpy(images->pixels + image * IMAGE_BYTES, record + 1, IMAGE_BYTES);
    }
    done += count;
  }
  return NULL;
}

static choir_status_t read_files(const file_t* files, int32_t file_count,
                                 images_t* images) {
  const choir_allocator_t allocator = choir_allocator_default();
  void* chunk;
  CHOIR_TRY(choir_allocate(allocator, CHUNK * RECORD_BYTES,
                           "records of CIFAR-10", &chunk));
  choir_status_t status = NULL;
  int64_t at = 0;
  for (int32_t i = 0; i < file_count && at < images->count && !status; ++i) {
    const int64_t left = images->count - at;
    const int64_t records = files[i].records < left ? files[i].records : left;
    status = read_file(&files[i], records, chunk, images, at);
    at += records;
  }
  choir_deallocate(allocator, chunk, CHUNK * RECORD_BYTES);
  return status;
}

static choir_status_t read_data_set(const file_t* files, int32_t file_count,
                                    int64_t limit,
                                    choir_dataset_t** out_dataset) {
  images_t images = {0};
  for (int32_t i = 0; i < file_count; ++i) images.count += files[i].records;
  if (limit > 0 && limit < images.count) images.count = limit;
  choir_dataset_t* dataset;
  CHOIR_TRY(choir__dataset_create_blank(
      images.count, (const int64_t[]){CHANNELS, SIDE, SIDE}, CLASSES,
      &images.pixels, &images.labels, &dataset));
  choir_status_t status = read_files(files, file_count, &images);
  if (status)
    choir_dataset_release(dataset);
  else
    *out_dataset = dataset;
  return status;
}

choir_status_t choir_dataset_open_cifar10(const char* folder,
                                          choir_split_t split, int64_t limit,
                                          choir_dataset_t** out_dataset) {
  static const char* const names[] = {"data_batch_1.bin", "data_batch_2.bin",
                                      "data_batch_3.bin", "data_batch_4.bin",
                                      "data_batch_5.bin", "test_batch.bin"};
  *out_dataset = NULL;
  if (!folder || limit < 0 ||
      (split != CHOIR_SPLIT_TRAIN && split != CHOIR_SPLIT_TEST))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "cifar10: folder '%s', split %d, limit %lld; a folder, "
                       "0 (train) or 1 (test) and no negative limit are needed",
                       folder ? folder : "(null)", (int)split,
                       (long long)limit);
  const bool is_training = split == CHOIR_SPLIT_TRAIN;
  const char* const* wanted = is_training ? names : names + TRAIN_FILES;
  const int32_t file_count = is_training ? TRAIN_FILES : 1;
  CHOIR_TRY(check_folder(folder, wanted[0]));
  file_t files[TRAIN_FILES];
  choir_status_t status = NULL;
  int32_t opened = 0;
  while (opened < file_count && !status) {
    files[opened].fd = -1;
    status = open_file(folder, wanted[opened], &files[opened]);
    ++opened;
  }
  if (!status) status = read_data_set(files, file_count, limit, out_dataset);
  for (int32_t i = 0; i < opened; ++i)
    if (files[i].fd >= 0) close(files[i].fd);
  return status;
}
