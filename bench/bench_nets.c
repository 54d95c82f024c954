// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_nets.h"

#include <stdlib.h>

#include "examples/mlp_net.h"
#include "examples/mnist_cnn.h"
#include "examples/resnet20.h"

enum { SYNTHETIC_IMAGES = 2560 };

static choir_status_t open_mnist(const char* folder, int64_t limit,
                                 choir_dataset_t** out_dataset) {
  return choir_dataset_open_mnist(folder ? folder : "examples/data/mnist",
                                  CHOIR_SPLIT_TRAIN, limit, out_dataset);
}

static choir_status_t open_cifar10(const char* folder, int64_t limit,
                                   choir_dataset_t** out_dataset) {
  if (folder)
    return choir_dataset_open_cifar10(folder, CHOIR_SPLIT_TRAIN, limit,
                                      out_dataset);
  return bench_net_made_up_data(&bench_nets[2],
                                limit ? limit : SYNTHETIC_IMAGES, out_dataset);
}

const char* const bench_net_names[BENCH_NET_COUNT + 1] = {"mnist_cnn", "mlp",
                                                          "resnet20", NULL};
const bench_net_t bench_nets[BENCH_NET_COUNT] = {
    {&mnist_cnn_def, sizeof(mnist_cnn_t), {1, 1, 28, 28}, 64, open_mnist, 16},
    {&mlp_net_def, sizeof(mlp_net_t), {1, 1, 28, 28}, 128, open_mnist, 2},
    {&resnet20_def, sizeof(resnet20_t), {1, 3, 32, 32}, 128, open_cifar10, 2}};

choir_status_t bench_net_made_up_data(const bench_net_t* net, int64_t count,
                                      choir_dataset_t** out_dataset) {
  const choir_dataset_synthetic_t config = {.count = count,
                                            .channels = net->shape[1],
                                            .height = net->shape[2],
                                            .width = net->shape[3],
                                            .class_count = 10};
  return choir_dataset_create_synthetic(&config, out_dataset);
}

choir_status_t bench_net_make_model(const bench_net_t* net,
                                    choir_device_t* device, void** out_layers,
                                    choir_model_t** out_model) {
  *out_model = NULL;
  *out_layers = calloc(1, net->bytes);
  if (!*out_layers) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a model");
  CHOIR_TRY(choir_model_create(device, net->def, *out_layers, 0, out_model));
  return choir_model_compile(*out_model, 4, net->shape);
}
