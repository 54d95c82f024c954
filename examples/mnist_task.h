// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_MNIST_TASK_H_
#define CHOIR_EXAMPLES_MNIST_TASK_H_

#include "examples/trainer.h"

// Of mnist and mnist_dist.
extern const train_task_t mnist_task;

// Its data, for others who learn MNIST.
extern const char mnist_data_help[];
choir_status_t mnist_open_data(const train_options_t* options,
                               choir_split_t split, char* note,
                               choir_dataset_t** out_dataset) CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_MNIST_TASK_H_
