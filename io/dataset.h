// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_DATASET_H_
#define CHOIR_IO_DATASET_H_

#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// A data set: samples, each an x and what a model is to make of it, y. They are
// images in memory with a class each (below), whose 8-bit pixels the loader
// (io/loader.h) turns into f32; or windows of tokens (io/tokens.h), whose y is
// the same window a token later.
//
//   choir_dataset_t* train;
//   CHOIR_TRY(choir_dataset_open_mnist("/usr/share/datasets/fashion-mnist",
//                                      CHOIR_SPLIT_TRAIN, 0, &train));
//   ... choir_dataset_count(train) ...
//   choir_dataset_release(train);
//
// Ownership: shared. Threads: never changes after it is made, so any thread
// may read it.

typedef struct choir_dataset_s choir_dataset_t;

typedef enum choir_split_e {
  CHOIR_SPLIT_TRAIN = 0,
  CHOIR_SPLIT_TEST = 1,
} choir_split_t;

// Opens MNIST, or a set in its files and with its 10 classes (Fashion-MNIST),
// from `folder`. Train needs train-images-idx3-ubyte and
// train-labels-idx1-ubyte, test the same with t10k-; each may also end in
// ".gz" and be called train-images.idx3-ubyte. With limit > 0 only the first
// `limit` images are kept (all, if there are fewer); 0 is all. Fails with
// NOT_FOUND when the folder or a file is not there (the message tells what
// was looked for), else as choir_dataset_open_idx. Blocks on the disk.
CHOIR_API choir_status_t choir_dataset_open_mnist(const char* folder,
                                                  choir_split_t split,
                                                  int64_t limit,
                                                  choir_dataset_t** out_dataset)
    CHOIR_NODISCARD;

// Opens CIFAR-10 in its binary format from `folder`: images (3, 32, 32) in 10
// classes. Train reads data_batch_1.bin to data_batch_5.bin, in this order,
// test test_batch.bin. A file is a row of records, at least one: a byte of
// label, then 3072 of pixels. With limit > 0 only the first `limit` images are
// kept (all, if there are fewer) and later records are not looked at, though
// every file must be there and whole; 0 is all. Fails with NOT_FOUND when the
// folder or a file is not there, INVALID_ARGUMENT when a file's size is not
// that of whole records or a label is above 9 (the message names file and
// record). Blocks on the disk.
CHOIR_API choir_status_t choir_dataset_open_cifar10(
    const char* folder, choir_split_t split, int64_t limit,
    choir_dataset_t** out_dataset) CHOIR_NODISCARD;

// A data set drawn by numbers, for where no real one is at hand.
typedef struct choir_dataset_synthetic_s {
  int64_t seed;   // another seed, another set; at least 0
  int64_t first;  // index of the first image, so that two ranges of one seed
                  // share their classes and no image; at least 0
  int64_t count;  // images, at least 1
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t class_count;
} choir_dataset_synthetic_t;

// Draws one: image i has class i mod class_count and is that class's pattern, a
// level for each channel and each cell of a 4 by 4 grid, under noise as strong
// as the levels. An image depends on seed, index, sizes and class_count only.
// Fails with INVALID_ARGUMENT on wrong sizes.
CHOIR_API choir_status_t choir_dataset_create_synthetic(
    const choir_dataset_synthetic_t* config, choir_dataset_t** out_dataset)
    CHOIR_NODISCARD;

// Opens one pair of IDX files, gzipped or not: images (count, height, width)
// and labels (count), all bytes. Fails with INVALID_ARGUMENT when the counts
// differ, there is no image, or a label is not below class_count (the message
// names the first such one), else as choir_idx_read (io/idx.h).
CHOIR_API choir_status_t choir_dataset_open_idx(
    const char* images_path, const char* labels_path, int64_t class_count,
    int64_t limit, choir_dataset_t** out_dataset) CHOIR_NODISCARD;

// A data set over the caller's memory, which is not copied.
typedef struct choir_dataset_memory_s {
  const uint8_t* pixels;  // (count, channels, height, width), row-major
  const int32_t* labels;  // (count), each 0 .. class_count - 1
  int64_t count;          // images, at least 1
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t class_count;
  // Called once when the last reference goes, on the thread that lets it go;
  // NULL: pixels and labels outlive the data set by the caller's care.
  void (*release)(void* context);
  void* context;
} choir_dataset_memory_t;

// Checks sizes and labels (INVALID_ARGUMENT). After a failure `release` has
// not been called and the memory is still the caller's.
CHOIR_API choir_status_t choir_dataset_create(
    const choir_dataset_memory_t* memory, choir_dataset_t** out_dataset)
    CHOIR_NODISCARD;
CHOIR_API void choir_dataset_retain(choir_dataset_t* dataset);
CHOIR_API void choir_dataset_release(choir_dataset_t* dataset);

// Samples.
CHOIR_API int64_t choir_dataset_count(const choir_dataset_t* dataset);
// Dtype and shape of one sample's x and y as batches have them, with a first
// dimension of 1: of images f32 (1, channels, height, width), which is pixel /
// 255, and i32 (1); of windows i32 (1, length) twice. Lent.
CHOIR_API const choir_view_t* choir_dataset_x(const choir_dataset_t* dataset);
CHOIR_API const choir_view_t* choir_dataset_y(const choir_dataset_t* dataset);
// What is in y is below it: classes, or the vocabulary.
CHOIR_API int64_t choir_dataset_class_count(const choir_dataset_t* dataset);
// Of images; NULL and 0 of other samples.
// (channels, height, width); lent.
CHOIR_API const int64_t* choir_dataset_shape(const choir_dataset_t* dataset);
// channels * height * width.
CHOIR_API int64_t choir_dataset_image_bytes(const choir_dataset_t* dataset);
// (count, channels, height, width), row-major; lent.
CHOIR_API const uint8_t* choir_dataset_pixels(const choir_dataset_t* dataset);
// (count); lent.
CHOIR_API const int32_t* choir_dataset_labels(const choir_dataset_t* dataset);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_DATASET_H_
