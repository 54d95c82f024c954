// SPDX-License-Identifier: Apache-2.0
// Trains ResNet-20 on CIFAR-10.
#include <stdio.h>
#include <unistd.h>

#include "examples/dist_main.h"
#include "examples/resnet20.h"

// As the archive of the binary format unpacks.
#define OWN_FOLDER "cifar-10-batches-bin"

enum { SYNTHETIC_TRAINING = 2560, SYNTHETIC_EVALUATION = 512 };

static choir_status_t make_synthetic(const train_options_t* options,
                                     choir_split_t split, char* note,
                                     choir_dataset_t** out_dataset) {
  choir_dataset_synthetic_t config = {.count = SYNTHETIC_TRAINING,
                                      .channels = 3,
                                      .height = 32,
                                      .width = 32,
                                      .class_count = 10};
  if (split == CHOIR_SPLIT_TEST) {
    config.first = SYNTHETIC_TRAINING;
    config.count = SYNTHETIC_EVALUATION;
  } else {
    if (options->limit && options->limit < config.count)
      config.count = options->limit;
    snprintf(note, TRAIN_NOTE_BYTES,
             "no CIFAR-10 in ./" OWN_FOLDER ": synthetic images");
  }
  return choir_dataset_create_synthetic(&config, out_dataset);
}

static choir_status_t open_data(const train_options_t* options,
                                choir_split_t split, char* note,
                                choir_dataset_t** out_dataset) {
  const char* folder = options->data ? options->data : OWN_FOLDER;
  if (!options->data && access(folder, F_OK) != 0)
    return make_synthetic(options, split, note, out_dataset);
  return choir_dataset_open_cifar10(
      folder, split, split == CHOIR_SPLIT_TRAIN ? options->limit : 0,
      out_dataset);
}

// The paper's, for batches of 128 in all.
static void set_defaults(train_options_t* options) {
  options->lr = 0.1;
  options->weight_decay = 1e-4;
}

static void set_up(const train_options_t* options, void* self) {
  ((resnet20_t*)self)->sync_batch_norm = options->sync_batch_norm;
}

int main(int argc, char** argv) {
  static const train_task_t task = {
      .what = "Trains ResNet-20 on CIFAR-10",
      .data = "CIFAR-10's .bin files; else ./" OWN_FOLDER
              " or, where there is none,\n"
              "synthetic images",
      .model = &resnet20_def,
      .model_bytes = sizeof(resnet20_t),
      .image = {3, 32, 32},
      .set_up = set_up,
      .set_defaults = set_defaults,
      .open_data = open_data};
  return dist_main("cifar", &task, argc, argv);
}
