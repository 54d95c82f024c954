// SPDX-License-Identifier: Apache-2.0
// Workers that come and go (docs/elastic.md), and parameters that count how
// often each sample was learnt; random_faults_test.py runs it and kills them.
//
//   exactly_once WORKERS EPOCHS MICRO_SHARD SHARD KEEP
//
// The content of a sample is its index. The loss of a batch is the mean of the
// table's elements at its samples, and the learning rate is their number, so
// that SGD takes 1 from the element of each sample of a step. After each
// step of the run every worker compares all elements with what they must be:
// the steps of this epoch have learnt as many samples as they have, each once
// more than the epochs before, and the other samples have been learnt by these
// alone. At the end of an epoch that is all samples, each exactly once. A step
// that is taken back and counts, one that is made twice, or a share that two
// ranks take or none, ends the run with a message. There are several tables,
// each in a bucket of its own, so that a part of a step would be seen too.
//
// MICRO_SHARD above 0: with micro-shards of so many samples, as --reproducible
// of the examples. 0: gradients are averages, rounded, so that elements are
// whole numbers but for rounding. SHARD 1: workers share out the update. KEEP
// 1: each worker's batch stays, so that the global batch is another with each
// number of workers, and the learning rate follows it by the linear rule.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choir.h"

enum { SAMPLES = 192, BATCH = 16, TABLES = 3 };
enum { STEPS_PER_LINE = 64 };  // of the run's progress
// A worker that does not answer for so long is left out.
static const double silence_seconds = 0.5;
static const double most_rounding = 1e-3;

typedef struct counter_s {
  int32_t workers;  // at first
  int64_t epochs;
  int64_t micro_shard;
  bool shard;
  bool keep_batch;
  choir_device_t* device;
  choir_dataset_t* dataset;
  choir_loader_t* loader;
  choir_layer_t* tables[TABLES];
  choir_model_t* model;
  choir_optimizer_t* sgd;
  choir_dist_opt_t* dist_opt;
  int64_t generation;  // that was told
} counter_t;

// ---- The model ----

static void define(choir_model_t* model, void* self) {
  static const char* const names[TABLES] = {"first", "second", "third"};
  counter_t* counter = self;
  for (int i = 0; i < TABLES; ++i)
    counter->tables[i] = choir_layer_embedding(
        model, names[i], .num_embeddings = SAMPLES, .embedding_dim = 1);
}

static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  counter_t* counter = self;
  choir_var_t* sum =
      choir_layer_forward(scope, counter->tables[0], inputs.at[0]);
  for (int i = 1; i < TABLES; ++i)
    sum = choir_var_add(
        scope, sum,
        choir_layer_forward(scope, counter->tables[i], inputs.at[0]));
  return sum;
}

static choir_var_t* loss(choir_scope_t* scope, void* self, choir_vars_t inputs,
                         choir_vars_t targets) {
  (void)targets;
  const choir_mean_attrs_t all = {.axis = -1};
  return choir_var_mean(scope, forward(scope, self, inputs), &all);
}

static const choir_model_def_t counter_def = {
    .name = "counter", .define = define, .forward = forward, .loss = loss};

// ---- What the parameters say ----

// Samples that the run has learnt, by the loader's place.
static int64_t samples_done(const counter_t* counter) {
  const choir_loader_position_t place = choir_loader_position(counter->loader);
  return place.epoch * SAMPLES + place.sample;
}

static choir_status_t check_table(const counter_t* counter, int table,
                                  const float* elements) {
  const int64_t step = choir_model_step(counter->model);
  const int64_t epochs = samples_done(counter) / SAMPLES;
  int64_t more = 0;
  for (int64_t i = 0; i < SAMPLES; ++i) {
    const double times = -(double)elements[i] - (double)epochs;
    const bool is_learnt = times > 0.5;
    more += is_learnt;
    if (fabs(times - is_learnt) > (counter->micro_shard ? 0 : most_rounding))
      return CHOIR_ERROR(INTERNAL,
                         "after step %" PRId64
                         " table %d has learnt sample "
                         "%" PRId64 " %.9g times",
                         step, table, i, -(double)elements[i]);
  }
  if (more == samples_done(counter) % SAMPLES) return NULL;
  return CHOIR_ERROR(INTERNAL,
                     "after step %" PRId64 " table %d has learnt %" PRId64
                     " samples of the epoch",
                     step, table, more);
}

static choir_status_t check_batch(const counter_t* counter) {
  const int64_t batch = choir_loader_partition(counter->loader)->global_batch;
  const int32_t size =
      choir_comm_size(choir_dist_opt_generation(counter->dist_opt)->comm);
  const int64_t want =
      counter->keep_batch ? BATCH * size / counter->workers : BATCH;
  if (batch == want) return NULL;
  return CHOIR_ERROR(INTERNAL,
                     "%d workers have a global batch of %" PRId64 "; %" PRId64
                     " was expected",
                     size, batch, want);
}

static choir_status_t check(const counter_t* counter) {
  CHOIR_TRY(check_batch(counter));
  const choir_param_set_t* params = choir_model_params(counter->model);
  for (int i = 0; i < TABLES; ++i) {
    float elements[SAMPLES];
    CHOIR_TRY(choir_tensor_read(params->params[i]->value, elements,
                                sizeof(elements)));
    CHOIR_TRY(check_table(counter, i, elements));
  }
  return NULL;
}

// ---- A worker ----

static choir_status_t open_data(counter_t* counter) {
  static uint8_t pixels[SAMPLES];
  static int32_t indices[SAMPLES];
  for (int32_t i = 0; i < SAMPLES; ++i) indices[i] = i;
  const choir_dataset_memory_t memory = {.pixels = pixels,
                                         .labels = indices,
                                         .count = SAMPLES,
                                         .channels = 1,
                                         .height = 1,
                                         .width = 1,
                                         .class_count = SAMPLES};
  return choir_dataset_create(&memory, &counter->dataset);
}

static choir_status_t make_model(counter_t* counter) {
  static const float zeros[SAMPLES];
  CHOIR_TRY(choir_model_create(counter->device, &counter_def, counter, 0,
                               &counter->model));
  CHOIR_TRY(choir_model_compile(counter->model,
                                choir_dataset_y(counter->dataset), 1));
  const choir_param_set_t* params = choir_model_params(counter->model);
  for (size_t i = 0; i < params->count; ++i)
    CHOIR_TRY(
        choir_tensor_write(params->params[i]->value, zeros, sizeof(zeros)));
  choir_model_set_graph(counter->model, true, false);
  return choir_optimizer_sgd(&counter->sgd, .lr = BATCH);
}

static choir_status_t make_loader(counter_t* counter,
                                  const choir_comm_t* comm) {
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.global_batch = BATCH;
  config.micro_shard = counter->micro_shard ? counter->micro_shard : 1;
  return choir_loader_create(counter->dataset, counter->device,
                             choir_comm_rank(comm), choir_comm_size(comm),
                             &config, &counter->loader);
}

static choir_status_t set_up(counter_t* counter, choir_comm_t* comm) {
  const choir_device_options_t options = {
      .threads = 1, .reproducible = counter->micro_shard > 0};
  CHOIR_TRY(choir_device_create("cpu", &options, &counter->device));
  CHOIR_TRY(open_data(counter));
  CHOIR_TRY(make_model(counter));
  choir_dist_opt_config_t config = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_DIST_OPT_FIELDS)};
  config.bucket_bytes = SAMPLES * sizeof(float);
  config.elastic = true;
  config.shard = counter->shard;
  config.keep_batch = counter->keep_batch;
  if (counter->keep_batch) config.rate_rule = CHOIR_RATE_RULE_LINEAR;
  CHOIR_TRY(
      choir_dist_opt_create(counter->sgd, comm, &config, &counter->dist_opt));
  CHOIR_TRY(choir_model_set_updater(counter->model,
                                    choir_dist_opt_updater(counter->dist_opt)));
  CHOIR_TRY(make_loader(counter, comm));
  return choir_training_follow(counter->model, counter->loader);
}

static void tear_down(counter_t* counter) {
  choir_loader_destroy(counter->loader);
  choir_dataset_release(counter->dataset);
  choir_model_release(counter->model);
  choir_dist_opt_release(counter->dist_opt);
  choir_optimizer_release(counter->sgd);
  choir_device_release(counter->device);
}

// How far the run is, and who is in it.
static void tell(counter_t* counter) {
  const choir_generation_t* generation =
      choir_dist_opt_generation(counter->dist_opt);
  const int64_t step = choir_model_step(counter->model);
  const bool is_new = generation->number != counter->generation;
  counter->generation = generation->number;
  if (choir_comm_rank(generation->comm) != 0) return;
  if (is_new)
    printf("%s after step %" PRId64 " (%.2f s)\n", generation->text, step,
           generation->seconds);
  else if (step % STEPS_PER_LINE == 0)
    printf("step %" PRId64 "\n", step);
  fflush(stdout);
}

// The linear rule makes the global batch of it, and this the step's samples.
static choir_status_t set_rate(counter_t* counter, const choir_batch_t* batch) {
  const choir_partition_t* partition = choir_loader_partition(counter->loader);
  return choir_optimizer_set_lr(counter->sgd,
                                (double)BATCH * (double)batch->global_count /
                                    (double)partition->global_batch);
}

static choir_status_t train(counter_t* counter) {
  while (samples_done(counter) < counter->epochs * SAMPLES) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(choir_loader_next(counter->loader, &batch));
    if (!batch) continue;
    if (counter->keep_batch) CHOIR_TRY(set_rate(counter, batch));
    choir_launch_note_progress(batch->epoch, batch->step);
    const choir_model_batch_t one = {
        .inputs = {batch->y},
        .first_sample = batch->first_in_step,
        .sample_count = batch->sample_count,
        .global_count = batch->global_count,
        .batch_number = batch->epoch * SAMPLES + batch->step + 1,
        .micro_shard = counter->micro_shard ? batch->micro_shard : 0};
    CHOIR_TRY(choir_model_train_one_batch(counter->model, &one));
    CHOIR_TRY(check(counter));
    tell(counter);
  }
  return NULL;
}

static choir_status_t run(counter_t* counter, choir_comm_t* comm) {
  CHOIR_TRY(set_up(counter, comm));
  for (;;) {
    CHOIR_TRY(train(counter));
    choir_status_t status =
        choir_comm_finalize(choir_dist_opt_generation(counter->dist_opt)->comm);
    if (!status) return NULL;
    CHOIR_TRY(choir_training_recover(counter->model, status));
    CHOIR_TRY(check(counter));
    tell(counter);
  }
}

static choir_status_t work(counter_t* counter) {
  choir_comm_config_t config;
  choir_comm_t* comm = NULL;
  CHOIR_TRY(choir_comm_config_init(&config));
  config.silence = silence_seconds;
  CHOIR_TRY(choir_comm_create(&config, &comm));
  choir_status_t status = run(counter, comm);
  tear_down(counter);
  choir_comm_release(comm);
  return status;
}

// ---- The program ----

static int fail(choir_status_t status) {
  fprintf(stderr, "exactly_once: %s\n", choir_status_message(status));
  choir_launch_note_failure(choir_status_code(status),
                            choir_status_message(status));
  choir_status_free(status);
  return 1;
}

static int launch(char** argv) {
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = argv;
  config.workers = atoi(argv[1]);
  config.elastic = true;
  choir_launch_report_t report;
  choir_status_t status = choir_launch_run(&config, &report);
  if (status) return fail(status);
  if (report.message[0]) fprintf(stderr, "exactly_once: %s\n", report.message);
  return report.exit_status;
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr,
            "usage: exactly_once WORKERS EPOCHS MICRO_SHARD SHARD KEEP\n");
    return 2;
  }
  if (!choir_launch_is_worker()) return launch(argv);
  counter_t counter = {.workers = atoi(argv[1]),
                       .epochs = atoll(argv[2]),
                       .micro_shard = atoll(argv[3]),
                       .shard = atoi(argv[4]) != 0,
                       .keep_batch = atoi(argv[5]) != 0,
                       .generation = 1};
  choir_status_t status = work(&counter);
  return status ? fail(status) : 0;
}
