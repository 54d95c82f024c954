// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGIES_SPARSE_SHARED_H_
#define CHOIR_DIST_STRATEGIES_SPARSE_SHARED_H_

#include "dist/compress_internal.h"
#include "dist/strategies/strategy_internal.h"

// A sparse exchange of one array: each rank chooses elements, all get all
// ranks' messages and add them up in rank order.

typedef struct choir__sparse_s {
  int64_t count;
  int64_t most;  // elements that a rank may choose
  choir__message_config_t config;
  void* memory;  // of all that follows
  size_t memory_bytes;
  int32_t* indices;  // of the chosen, and what they are
  float* values;
  void* scratch;  // of choir__top_k; NULL without
  void* message;
  int64_t message_bytes;
  void* received;
  int64_t received_room;
  int64_t* received_bytes;  // [ranks]
} choir__sparse_t;

// For arrays of `count` elements and at most `most` chosen ones; by
// choir__sparse_choose_top_k if `has_top_k`.
choir_status_t choir__sparse_create(const choir_strategy_t* strategy,
                                    const choir__message_config_t* config,
                                    int64_t count, int64_t most, bool has_top_k,
                                    choir__sparse_t* out_sparse);
void choir__sparse_destroy(const choir_strategy_t* strategy,
                           choir__sparse_t* sparse);

// Chooses the k of largest magnitude.
choir_status_t choir__sparse_choose_top_k(choir__sparse_t* sparse,
                                          const float* src, int64_t k);
// Makes the message of k chosen elements, with this rank's weight in the sum;
// values become what the others will see.
choir_status_t choir__sparse_encode(choir__sparse_t* sparse, int64_t k,
                                    double weight);
// The exchange of messages, to be submitted, started or run.
choir_collective_t choir__sparse_collective(choir__sparse_t* sparse,
                                            const char* name);
// dense[count] = the weighted average over ranks. A message that does not fit
// names its rank.
choir_status_t choir__sparse_decode(const choir_strategy_t* strategy,
                                    const choir__sparse_t* sparse,
                                    float* dense);

// How many of `count` are `share` of them: at least 1.
int64_t choir__sparse_k(int64_t count, double share);

// About how many bytes a message with that share of `count` elements has.
double choir__sparse_bytes(const choir__message_config_t* config, int64_t count,
                           double share);

// What the values of a message are, by choir_strategy_value_names.
choir__message_config_t choir__sparse_values(int32_t index);

// ---- Strategies that send a part of their gradients ----

// The k of largest magnitude, or, with k -1, all of `threshold` or more.
typedef struct choir__sparse_choice_s {
  int64_t k;
  float threshold;
} choir__sparse_choice_t;

typedef struct choir__sparse_gradient_s choir__sparse_gradient_t;
typedef struct choir__sparse_part_s {
  choir__sparse_t sparse;
  choir_tensor_t* tensors[2];  // states: the residual, the velocity
  float* residual;             // the device's; NULL without error feedback
  float* velocity;
  // On a GPU, where messages of all ranks may have more bytes of indices and
  // values than it has elements: their sum. Else NULL.
  float* dense;
  char names[2][48];
} choir__sparse_part_t;

struct choir__sparse_gradient_s {
  choir_strategy_t base;        // first
  choir__sparse_part_t* parts;  // [bucket_count]
  // What of the gradient, with what was kept before, is sent.
  choir__sparse_choice_t (*choice)(const choir__sparse_gradient_t* self,
                                   const choir__sparse_part_t* part,
                                   int64_t step);
  // Adds the gradient to what was kept, where there is anything but a residual
  // to keep; else NULL. In a record's run, where the gradients lie.
  choir_status_t (*keep)(choir__sparse_gradient_t* self,
                         choir__sparse_part_t* part, const float* grads,
                         choir_stream_t* stream);
};

typedef struct choir__sparse_setup_s {
  choir__message_config_t values;
  double share;  // of elements, the most that are chosen
  bool has_residual;
  bool has_velocity;
  bool has_top_k;
} choir__sparse_setup_t;
choir_status_t choir__sparse_gradient_attach(
    choir__sparse_gradient_t* self, const choir__sparse_setup_t* setup);
void choir__sparse_gradient_detach(choir_strategy_t* strategy);
choir_status_t choir__sparse_gradient_exchange(choir_strategy_t* strategy,
                                               int32_t bucket,
                                               choir_stream_t* stream);
bool choir__sparse_gradient_works_on(const choir_strategy_t* strategy,
                                     const choir_device_t* device);
size_t choir__sparse_gradient_states(const choir_strategy_t* strategy,
                                     choir_named_tensor_t* out_states);

#endif  // CHOIR_DIST_STRATEGIES_SPARSE_SHARED_H_
