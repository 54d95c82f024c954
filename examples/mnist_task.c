// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist_task.h"

#include <limits.h>

#include "examples/mnist_cnn.h"

const char mnist_data_help[] =
    "MNIST's four IDX files, gzipped or not; else the ones that come with "
    "Choir";

choir_status_t mnist_open_data(const train_options_t* options,
                               choir_split_t split, char* note,
                               choir_dataset_t** out_dataset) {
  (void)note;
  char own[PATH_MAX];
  if (!options->data) CHOIR_TRY(trainer_find_data("examples/data/mnist", own));
  return choir_dataset_open_mnist(
      options->data ? options->data : own, split,
      split == CHOIR_SPLIT_TRAIN ? options->limit : 0, out_dataset);
}

const train_task_t mnist_task = {
    .what = "Trains a convolutional network on MNIST",
    .data = mnist_data_help,
    .model = &mnist_cnn_def,
    .model_bytes = sizeof(mnist_cnn_t),
    .image = {1, 28, 28},
    .open_data = mnist_open_data};
