// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_BENCH_NETS_H_
#define CHOIR_BENCH_BENCH_NETS_H_

#include "examples/gpt.h"
#include "io/dataset.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

// The networks that the benchmarks know: those of examples/.

typedef struct bench_net_s {
  const choir_model_def_t* def;
  size_t bytes;      // of the model's `self`
  int64_t shape[4];  // a batch of one image; zeros: it takes tokens
  int64_t class_count;
  const gpt_config_t* gpt;  // NULL: it takes images
  int64_t batch;            // what the benchmarks take unless told otherwise
  // folder: of MNIST or, for resnet20, of CIFAR-10; NULL: examples/data/mnist
  // or made-up images, all that there is for resnet50. limit: the first so many
  // samples; 0: all. Of a GPT: a text's windows, which folder names.
  choir_status_t (*open_data)(const char* folder, int64_t limit,
                              choir_dataset_t** out_dataset);
  // Steps between two looks at the clock, where ranks agree whether to go on.
  int64_t block;
  // Draws initial values anew; NULL: those of the layers are the network's.
  choir_status_t (*initialize)(choir_model_t* model, int64_t seed);
  // Left out of "all networks": on a CPU a step takes seconds.
  bool only_by_name;
} bench_net_t;

enum { BENCH_NET_COUNT = 8 };
// As config tables want them: ended by NULL.
extern const char* const bench_net_names[BENCH_NET_COUNT + 1];
extern const bench_net_t bench_nets[BENCH_NET_COUNT];

// Images of the network's shape, or windows of Tiny Shakespeare, the same ones
// on every run; owned by the caller.
choir_status_t bench_net_made_up_data(const bench_net_t* net, int64_t count,
                                      choir_dataset_t** out_dataset)
    CHOIR_NODISCARD;

// What trains it: SGD with momentum; of a GPT, AdamW with limited gradients.
choir_status_t bench_net_make_optimizer(const bench_net_t* net,
                                        choir_optimizer_t** out_optimizer)
    CHOIR_NODISCARD;

// The loader's batch as a step takes it.
choir_model_batch_t bench_net_batch(const choir_batch_t* batch);

// The compiled model and its `self`, which must outlive it: release the model,
// then free the layers, also after a failure.
choir_status_t bench_net_make_model(const bench_net_t* net,
                                    choir_device_t* device, void** out_layers,
                                    choir_model_t** out_model) CHOIR_NODISCARD;

#endif  // CHOIR_BENCH_BENCH_NETS_H_
