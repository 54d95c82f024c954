// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist_task.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "examples/mnist_cnn.h"

const char mnist_data_help[] =
    "MNIST's four IDX files, gzipped or not; else the ones that come with "
    "Choir";

// The data that come with Choir, as seen from the tree's root or beside the
// program that Bazel built.
static choir_status_t find_data(const train_options_t* options,
                                char folder[PATH_MAX]) {
  static const char own[] = "examples/data/mnist";
  if (options->data) {
    snprintf(folder, PATH_MAX, "%s", options->data);
    return NULL;
  }
  snprintf(folder, PATH_MAX, "%s", own);
  if (access(folder, F_OK) == 0) return NULL;
  char program[PATH_MAX - 64];
  const ssize_t length =
      readlink("/proc/self/exe", program, sizeof(program) - 1);
  program[length > 0 ? length : 0] = 0;
  snprintf(folder, PATH_MAX, "%s.runfiles/choir/%s", program, own);
  if (access(folder, F_OK) == 0) return NULL;
  return CHOIR_ERROR(NOT_FOUND,
                     "data: neither ./%s nor %s is there; name a folder with "
                     "MNIST's four files with --data DIR",
                     own, folder);
}

choir_status_t mnist_open_data(const train_options_t* options,
                               choir_split_t split, char* note,
                               choir_dataset_t** out_dataset) {
  (void)note;
  char folder[PATH_MAX];
  CHOIR_TRY(find_data(options, folder));
  return choir_dataset_open_mnist(
      folder, split, split == CHOIR_SPLIT_TRAIN ? options->limit : 0,
      out_dataset);
}

const train_task_t mnist_task = {
    .what = "Trains a convolutional network on MNIST",
    .data = mnist_data_help,
    .model = &mnist_cnn_def,
    .model_bytes = sizeof(mnist_cnn_t),
    .image = {1, 28, 28},
    .open_data = mnist_open_data};
