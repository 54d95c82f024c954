// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_nets.h"

#include <stdlib.h>

#include "examples/mlp_net.h"
#include "examples/mnist_cnn.h"
#include "examples/resnet20.h"
#include "examples/resnet50.h"

// Places in bench_nets.
enum { MNIST_CNN, MLP, RESNET20, RESNET50 };
// Some megabytes of either size.
enum { SMALL_IMAGES = 2560, LARGE_IMAGES = 512 };

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
  return bench_net_made_up_data(&bench_nets[RESNET20],
                                limit ? limit : SMALL_IMAGES, out_dataset);
}

static choir_status_t make_up_imagenet(const char* folder, int64_t limit,
                                       choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  if (folder)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "data: given '%s'; resnet50 is trained on made-up "
                       "images and takes none",
                       folder);
  return bench_net_made_up_data(&bench_nets[RESNET50],
                                limit ? limit : LARGE_IMAGES, out_dataset);
}

const char* const bench_net_names[BENCH_NET_COUNT + 1] = {
    [MNIST_CNN] = "mnist_cnn",
    [MLP] = "mlp",
    [RESNET20] = "resnet20",
    [RESNET50] = "resnet50",
    NULL};
const bench_net_t bench_nets[BENCH_NET_COUNT] = {
    [MNIST_CNN] = {.def = &mnist_cnn_def,
                   .bytes = sizeof(mnist_cnn_t),
                   .shape = {1, 1, 28, 28},
                   .class_count = 10,
                   .batch = 64,
                   .open_data = open_mnist,
                   .block = 16},
    [MLP] = {.def = &mlp_net_def,
             .bytes = sizeof(mlp_net_t),
             .shape = {1, 1, 28, 28},
             .class_count = 10,
             .batch = 128,
             .open_data = open_mnist,
             .block = 2},
    [RESNET20] = {.def = &resnet20_def,
                  .bytes = sizeof(resnet20_t),
                  .shape = {1, 3, 32, 32},
                  .class_count = 10,
                  .batch = 128,
                  .open_data = open_cifar10,
                  .block = 2},
    [RESNET50] = {.def = &resnet50_def,
                  .bytes = sizeof(resnet50_t),
                  .shape = {1, 3, 224, 224},
                  .class_count = 1000,
                  .batch = 32,
                  .open_data = make_up_imagenet,
                  .block = 1,
                  .initialize = resnet50_initialize,
                  .only_by_name = true}};

choir_status_t bench_net_made_up_data(const bench_net_t* net, int64_t count,
                                      choir_dataset_t** out_dataset) {
  const choir_dataset_synthetic_t config = {.count = count,
                                            .channels = net->shape[1],
                                            .height = net->shape[2],
                                            .width = net->shape[3],
                                            .class_count = net->class_count};
  return choir_dataset_create_synthetic(&config, out_dataset);
}

choir_model_batch_t bench_net_batch(const choir_batch_t* batch) {
  return (choir_model_batch_t){.inputs = {batch->x},
                               .targets = {batch->y},
                               .first_sample = batch->first_in_step,
                               .sample_count = batch->sample_count,
                               .global_count = batch->global_count};
}

choir_status_t bench_net_make_model(const bench_net_t* net,
                                    choir_device_t* device, void** out_layers,
                                    choir_model_t** out_model) {
  *out_model = NULL;
  *out_layers = calloc(1, net->bytes);
  if (!*out_layers) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a model");
  CHOIR_TRY(choir_model_create(device, net->def, *out_layers, 0, out_model));
  choir_view_t x;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 4, net->shape, &x));
  CHOIR_TRY(choir_model_compile(*out_model, &x, 1));
  return net->initialize ? net->initialize(*out_model, 0) : NULL;
}
