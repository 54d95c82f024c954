// SPDX-License-Identifier: Apache-2.0
// Trains a perceptron with two wide hidden layers on MNIST.
#include "examples/mlp_net.h"

#include "examples/dist_main.h"
#include "examples/mnist_task.h"

static void set_defaults(train_options_t* options) { options->lr = 0.02; }

int main(int argc, char** argv) {
  static const train_task_t task = {
      .what = "Trains a 784-4096-4096-10 perceptron on MNIST",
      .data = mnist_data_help,
      .model = &mlp_net_def,
      .model_bytes = sizeof(mlp_net_t),
      .image = {1, 28, 28},
      .set_defaults = set_defaults,
      .open_data = mnist_open_data};
  return dist_main("mlp", &task, argc, argv);
}
