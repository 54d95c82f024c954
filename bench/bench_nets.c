// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_nets.h"

#include <stdlib.h>

#include "examples/gpt_optimizer.h"
#include "examples/mlp_net.h"
#include "examples/mnist_cnn.h"
#include "examples/resnet20.h"
#include "examples/resnet50.h"
#include "io/tokens.h"

// Places in bench_nets.
enum { MNIST_CNN, MLP, RESNET20, RESNET50, NANO, M10, GPT2, GPT2_LONG };
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

static choir_status_t open_windows(const char* path, int64_t length,
                                   int64_t limit,
                                   choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  choir_tokens_t* text = NULL;
  CHOIR_TRY(choir_tokens_open_text(
      path ? path : "examples/data/shakespeare/tiny_shakespeare.txt.gz",
      CHOIR_TEXT_CHARACTERS, &text));
  const choir_windows_t windows = {
      .count = limit ? limit + length : 0, .length = length, .stride = 1};
  choir_status_t status =
      choir_dataset_create_windows(text, &windows, out_dataset);
  choir_tokens_release(text);
  return status;
}

static choir_status_t open_64(const char* path, int64_t limit,
                              choir_dataset_t** out_dataset) {
  return open_windows(path, 64, limit, out_dataset);
}
static choir_status_t open_256(const char* path, int64_t limit,
                               choir_dataset_t** out_dataset) {
  return open_windows(path, 256, limit, out_dataset);
}
static choir_status_t open_1024(const char* path, int64_t limit,
                                choir_dataset_t** out_dataset) {
  return open_windows(path, 1024, limit, out_dataset);
}

// Layers, heads, width, context, vocabulary, of which the text needs 65.
static const gpt_config_t nano = GPT_SIZES(4, 4, 128, 64, 65);
static const gpt_config_t m10 = GPT_SIZES(6, 6, 384, 256, 65, 0.2);
static const gpt_config_t gpt2 = GPT_SIZES(12, 12, 768, 64, 50257, 0, true);
static const gpt_config_t gpt2_1k =
    GPT_SIZES(12, 12, 768, 1024, 50257, 0, true);
#define GPT(def_, config, batch_, open)                                      \
  {                                                                          \
    .def = &(def_), .bytes = sizeof(gpt_t), .gpt = &(config),                \
    .batch = (batch_), .open_data = (open), .block = 1, .only_by_name = true \
  }

const char* const bench_net_names[BENCH_NET_COUNT + 1] = {
    [MNIST_CNN] = "mnist_cnn",
    [MLP] = "mlp",
    [RESNET20] = "resnet20",
    [RESNET50] = "resnet50",
    [NANO] = "gpt_nano",
    [M10] = "gpt_10m",
    [GPT2] = "gpt2",
    [GPT2_LONG] = "gpt2_long",
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
                  .only_by_name = true},
    [NANO] = GPT(gpt_def, nano, 12, open_64),
    [M10] = GPT(gpt_def, m10, 8, open_256),
    [GPT2] = GPT(gpt_def, gpt2, 4, open_64),
    [GPT2_LONG] = GPT(gpt_loss_def, gpt2_1k, 1, open_1024)};

choir_status_t bench_net_made_up_data(const bench_net_t* net, int64_t count,
                                      choir_dataset_t** out_dataset) {
  if (net->gpt) return net->open_data(NULL, count, out_dataset);
  const choir_dataset_synthetic_t config = {.count = count,
                                            .channels = net->shape[1],
                                            .height = net->shape[2],
                                            .width = net->shape[3],
                                            .class_count = net->class_count};
  return choir_dataset_create_synthetic(&config, out_dataset);
}

choir_status_t bench_net_make_optimizer(const bench_net_t* net,
                                        choir_optimizer_t** out_optimizer) {
  if (net->gpt) return gpt_make_optimizer(1e-3, 0.99, 0.1, out_optimizer);
  return choir_optimizer_sgd(out_optimizer, .lr = 0.005, .momentum = 0.9,
                             .weight_decay = 1e-5);
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
  if (net->gpt) ((gpt_t*)*out_layers)->config = *net->gpt;
  CHOIR_TRY(choir_model_create(device, net->def, *out_layers, 0, out_model));
  const int64_t tokens[] = {1, net->gpt ? net->gpt->context : 0};
  choir_view_t x;
  CHOIR_TRY(net->gpt ? choir_view_make(CHOIR_DTYPE_I32, 2, tokens, &x)
                     : choir_view_make(CHOIR_DTYPE_F32, 4, net->shape, &x));
  CHOIR_TRY(choir_model_compile(*out_model, &x, 1));
  return net->initialize ? net->initialize(*out_model, 0) : NULL;
}
