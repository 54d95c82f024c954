// SPDX-License-Identifier: Apache-2.0
// Trains a convolutional network on MNIST with several workers.
#include "examples/dist_main.h"
#include "examples/mnist_task.h"

int main(int argc, char** argv) {
  return dist_main("mnist_dist", &mnist_task, argc, argv);
}
