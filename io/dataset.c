// SPDX-License-Identifier: Apache-2.0
#include "io/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "io/dataset_internal.h"
#include "io/idx.h"
#include "io/io_internal.h"

#define MNIST_CLASS_COUNT 10
#define PATH_BYTES 4096

// ---- Of any kind ----

void choir__dataset_init(const choir__dataset_vtable_t* vtable, int64_t count,
                         int64_t class_count, choir_dataset_t* dataset) {
  atomic_init(&dataset->ref_count, 1);
  dataset->vtable = vtable;
  dataset->count = count;
  dataset->class_count = class_count;
}

void choir_dataset_retain(choir_dataset_t* dataset) {
  if (!dataset) return;
  atomic_fetch_add_explicit(&dataset->ref_count, 1, memory_order_relaxed);
}

void choir_dataset_release(choir_dataset_t* dataset) {
  if (!dataset) return;
  if (atomic_fetch_sub_explicit(&dataset->ref_count, 1, memory_order_acq_rel) ==
      1)
    dataset->vtable->destroy(dataset);
}

int64_t choir_dataset_count(const choir_dataset_t* dataset) {
  return dataset->count;
}
const choir_view_t* choir_dataset_x(const choir_dataset_t* dataset) {
  return &dataset->x;
}
const choir_view_t* choir_dataset_y(const choir_dataset_t* dataset) {
  return &dataset->y;
}
int64_t choir_dataset_class_count(const choir_dataset_t* dataset) {
  return dataset->class_count;
}

// ---- Images in memory ----

typedef struct images_s {
  choir_dataset_t dataset;
  choir_allocator_t allocator;
  choir_dataset_memory_t memory;
  int64_t image_bytes;
  float scale[256];  // pixel -> pixel / 255
} images_t;

static choir_status_t images_read(const choir_dataset_t* dataset, int64_t index,
                                  void* x, void* y) {
  const images_t* images = (const images_t*)dataset;
  const uint8_t* pixels = images->memory.pixels + index * images->image_bytes;
  float* to = x;
  for (int64_t k = 0; k < images->image_bytes; ++k)
    to[k] = images->scale[pixels[k]];
  *(int32_t*)y = images->memory.labels[index];
  return NULL;
}

static void images_destroy(choir_dataset_t* dataset) {
  images_t* images = (images_t*)dataset;
  if (images->memory.release) images->memory.release(images->memory.context);
  choir_deallocate(images->allocator, images, sizeof(*images));
}

static const choir__dataset_vtable_t images_vtable = {images_read,
                                                      images_destroy};

// NULL: other samples.
static const images_t* images_of(const choir_dataset_t* dataset) {
  return dataset->vtable == &images_vtable ? (const images_t*)dataset : NULL;
}

const int64_t* choir_dataset_shape(const choir_dataset_t* dataset) {
  return images_of(dataset) ? &dataset->x.shape[1] : NULL;
}
int64_t choir_dataset_image_bytes(const choir_dataset_t* dataset) {
  return images_of(dataset) ? images_of(dataset)->image_bytes : 0;
}
const uint8_t* choir_dataset_pixels(const choir_dataset_t* dataset) {
  return images_of(dataset) ? images_of(dataset)->memory.pixels : NULL;
}
const int32_t* choir_dataset_labels(const choir_dataset_t* dataset) {
  return images_of(dataset) ? images_of(dataset)->memory.labels : NULL;
}

static choir_status_t check_memory(const choir_dataset_memory_t* memory,
                                   int64_t* out_image_bytes) {
  int64_t image_bytes = 0;
  int64_t bytes = 0;
  if (memory->count < 1 || memory->channels < 1 || memory->height < 1 ||
      memory->width < 1 ||
      __builtin_mul_overflow(memory->channels, memory->height, &image_bytes) ||
      __builtin_mul_overflow(image_bytes, memory->width, &image_bytes) ||
      __builtin_mul_overflow(image_bytes, memory->count, &bytes)) {
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "dataset: (count, channels, height, width) is (%lld, %lld, %lld, "
        "%lld); each must be at least 1 and their product below 2^63",
        (long long)memory->count, (long long)memory->channels,
        (long long)memory->height, (long long)memory->width);
  }
  if (!memory->pixels || !memory->labels) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "dataset: pixels or labels are NULL for %lld images",
                       (long long)memory->count);
  }
  if (memory->class_count < 1 || memory->class_count > INT32_MAX) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "dataset: class_count is %lld; 1 to %d is needed",
                       (long long)memory->class_count, INT32_MAX);
  }
  for (int64_t i = 0; i < memory->count; ++i) {
    if (memory->labels[i] < 0 || memory->labels[i] >= memory->class_count) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "dataset: image %lld has label %d; with %lld classes "
                         "labels are 0 to %lld",
                         (long long)i, memory->labels[i],
                         (long long)memory->class_count,
                         (long long)memory->class_count - 1);
    }
  }
  *out_image_bytes = image_bytes;
  return NULL;
}

choir_status_t choir_dataset_create(const choir_dataset_memory_t* memory,
                                    choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  int64_t image_bytes = 0;
  CHOIR_TRY(check_memory(memory, &image_bytes));
  const int64_t shape[] = {1, memory->channels, memory->height, memory->width};
  choir_view_t x;
  choir_view_t y;
  CHOIR_TRY_NOTE(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &x), "dataset");
  CHOIR_TRY_NOTE(choir_view_make(CHOIR_DTYPE_I32, 1, shape, &y), "dataset");
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(choir_allocate(allocator, sizeof(images_t), "a data set", &block));
  images_t* images = block;
  choir__dataset_init(&images_vtable, memory->count, memory->class_count,
                      &images->dataset);
  images->dataset.x = x;
  images->dataset.y = y;
  images->allocator = allocator;
  images->memory = *memory;
  images->image_bytes = image_bytes;
  for (int value = 0; value < 256; ++value)
    images->scale[value] = (float)value / 255.0f;
  *out_dataset = &images->dataset;
  return NULL;
}

// ---- From files ----

// What a data set that was read owns.
typedef struct loaded_s {
  choir_allocator_t allocator;
  choir_idx_t images;
  int32_t* labels;  // (count)
  size_t labels_bytes;
} loaded_t;

static void loaded_release(void* context) {
  loaded_t* loaded = context;
  choir_idx_clear(&loaded->images);
  if (loaded->labels) {
    choir_deallocate(loaded->allocator, loaded->labels, loaded->labels_bytes);
  }
  choir_deallocate(loaded->allocator, loaded, sizeof *loaded);
}

static choir_status_t load_labels(const char* images_path,
                                  const char* labels_path, int64_t limit,
                                  loaded_t* loaded) {
  choir_idx_t bytes;
  CHOIR_TRY(choir_idx_read(labels_path, 1, limit, &bytes));
  choir_status_t status = NULL;
  if (bytes.total_rows != loaded->images.total_rows) {
    status = CHOIR_ERROR(
        INVALID_ARGUMENT,
        "dataset: '%s' has %lld images and '%s' has %lld labels; there must "
        "be as many",
        images_path, (long long)loaded->images.total_rows, labels_path,
        (long long)bytes.total_rows);
  } else if (bytes.total_rows == 0) {
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "dataset: '%s' has no images; at least one is needed",
                         images_path);
  }
  if (!status) {
    void* block;
    loaded->labels_bytes = bytes.bytes * sizeof(int32_t);
    status = choir_allocate(loaded->allocator, loaded->labels_bytes,
                            "the labels of a data set", &block);
    loaded->labels = block;
  }
  if (!status) {
    for (size_t i = 0; i < bytes.bytes; ++i) loaded->labels[i] = bytes.data[i];
  }
  choir_idx_clear(&bytes);
  return status;
}

choir_status_t choir_dataset_open_idx(const char* images_path,
                                      const char* labels_path,
                                      int64_t class_count, int64_t limit,
                                      choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(choir_allocate(allocator, sizeof(loaded_t), "a data set", &block));
  loaded_t* loaded = block;
  loaded->allocator = allocator;
  choir_status_t status =
      choir_idx_read(images_path, 3, limit, &loaded->images);
  if (!status) status = load_labels(images_path, labels_path, limit, loaded);
  if (!status) {
    const choir_dataset_memory_t memory = {
        .pixels = loaded->images.data,
        .labels = loaded->labels,
        .count = loaded->images.shape[0],
        .channels = 1,
        .height = loaded->images.shape[1],
        .width = loaded->images.shape[2],
        .class_count = class_count,
        .release = loaded_release,
        .context = loaded,
    };
    status = choir_dataset_create(&memory, out_dataset);
    if (status) {
      status = choir_status_annotate(status, __FILE__, __LINE__, "'%s', '%s'",
                                     images_path, labels_path);
    }
  }
  if (status) loaded_release(loaded);
  return status;
}

// ---- With memory of its own ----

typedef struct owned_s {
  choir_allocator_t allocator;
  uint8_t* pixels;
  size_t pixels_bytes;
  int32_t* labels;
  size_t labels_bytes;
} owned_t;

static void owned_release(void* context) {
  owned_t* owned = context;
  if (owned->pixels)
    choir_deallocate(owned->allocator, owned->pixels, owned->pixels_bytes);
  if (owned->labels)
    choir_deallocate(owned->allocator, owned->labels, owned->labels_bytes);
  choir_deallocate(owned->allocator, owned, sizeof *owned);
}

static choir_status_t owned_allocate(owned_t* owned) {
  void* block;
  CHOIR_TRY(choir_allocate(owned->allocator, owned->pixels_bytes,
                           "the pixels of a data set", &block));
  owned->pixels = block;
  CHOIR_TRY(choir_allocate(owned->allocator, owned->labels_bytes,
                           "the labels of a data set", &block));
  owned->labels = block;
  return NULL;
}

choir_status_t choir__dataset_create_blank(
    int64_t count, const int64_t shape[3], int64_t class_count,
    uint8_t** out_pixels, int32_t** out_labels, choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(choir_allocate(allocator, sizeof(owned_t), "a data set", &block));
  owned_t* owned = block;
  owned->allocator = allocator;
  owned->pixels_bytes =
      (size_t)count * (size_t)(shape[0] * shape[1] * shape[2]);
  owned->labels_bytes = (size_t)count * sizeof(int32_t);
  choir_status_t status = owned_allocate(owned);
  if (!status) {
    const choir_dataset_memory_t memory = {
        .pixels = owned->pixels,
        .labels = owned->labels,
        .count = count,
        .channels = shape[0],
        .height = shape[1],
        .width = shape[2],
        .class_count = class_count,
        .release = owned_release,
        .context = owned,
    };
    status = choir_dataset_create(&memory, out_dataset);
  }
  if (status) {
    owned_release(owned);
    return status;
  }
  *out_pixels = owned->pixels;
  *out_labels = owned->labels;
  return NULL;
}

// ---- MNIST's names ----

// Finds one of MNIST's files in `folder`, under the names that are about.
static choir_status_t find_file(const char* folder, const char* split,
                                const char* what, int dimensions,
                                char out_path[PATH_BYTES]) {
  static const char* const forms[] = {
      "%s/%s-%s-idx%d-ubyte",
      "%s/%s-%s-idx%d-ubyte.gz",
      "%s/%s-%s.idx%d-ubyte",
      "%s/%s-%s.idx%d-ubyte.gz",
  };
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int length = snprintf(out_path, PATH_BYTES, forms[i], folder, split, what,
                          dimensions);
#pragma GCC diagnostic pop
    if (length < 0 || length >= PATH_BYTES) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "mnist: the name of the folder is longer than %d "
                         "bytes",
                         PATH_BYTES - 64);
    }
    struct stat info;
    if (stat(out_path, &info) == 0) {
      // Some unpackers leave a folder of this name; a later form may be there.
      if (!S_ISDIR(info.st_mode)) return NULL;
    } else if (errno != ENOENT) {
      return CHOIR__IO_ERROR(errno, "mnist: cannot look at '%s'", out_path);
    }
  }
  return CHOIR_ERROR(NOT_FOUND,
                     "mnist: folder '%s' has no %s-%s-idx%d-ubyte, with or "
                     "without .gz, nor %s-%s.idx%d-ubyte",
                     folder, split, what, dimensions, split, what, dimensions);
}

choir_status_t choir_dataset_open_mnist(const char* folder, choir_split_t split,
                                        int64_t limit,
                                        choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  if (!folder || limit < 0 ||
      (split != CHOIR_SPLIT_TRAIN && split != CHOIR_SPLIT_TEST)) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "mnist: folder '%s', split %d, limit %lld; a folder, 0 "
                       "(train) or 1 (test) and no negative limit are needed",
                       folder ? folder : "(null)", (int)split,
                       (long long)limit);
  }
  const char* name = split == CHOIR_SPLIT_TRAIN ? "train" : "t10k";
  struct stat info;
  if (stat(folder, &info) != 0) {
    return CHOIR__IO_ERROR(errno,
                           "mnist: cannot open folder '%s', where "
                           "%s-images-idx3-ubyte should be",
                           folder, name);
  }
  if (!S_ISDIR(info.st_mode)) {
    return CHOIR_ERROR(NOT_FOUND,
                       "mnist: '%s' is a file; the folder of "
                       "%s-images-idx3-ubyte is needed",
                       folder, name);
  }
  char images_path[PATH_BYTES];
  char labels_path[PATH_BYTES];
  CHOIR_TRY(find_file(folder, name, "images", 3, images_path));
  CHOIR_TRY(find_file(folder, name, "labels", 1, labels_path));
  return choir_dataset_open_idx(images_path, labels_path, MNIST_CLASS_COUNT,
                                limit, out_dataset);
}
