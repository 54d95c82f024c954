// SPDX-License-Identifier: Apache-2.0
// Files that a run goes on from: its place and states, with one updater and
// with DistOpt. The first byte chooses.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/dist_opt.h"
#include "dist/training.h"
#include "opt/optimizer.h"
#include "tests/fuzz/fuzz.h"

enum { SAMPLES = 8, BATCH = 2 };
static const char* const options[] = {NULL, "fp32", "sparseTopK", "localSGD"};
enum { RUNS = sizeof(options) / sizeof(options[0]) };

static struct {
  choir_model_t* model;
  choir_loader_t* loader;
} runs[RUNS];
static choir_device_t* device;

static void must(choir_status_t status) {
  if (!status) return;
  fprintf(stderr, "%s\n", choir_status_message(status));
  abort();
}

static void define(choir_model_t* model, void* self) {
  (void)self;
  static const int64_t shape[] = {2, 3};
  choir_tensor_t* value = NULL;
  must(choir_tensor_create(device, CHOIR_DTYPE_F32, 2, shape, &value));
  must(choir_tensor_write(value, (const float[6]){1, 2, 3, 4, 5, 6}, 24));
  choir_model_add_param(model, "w", value, true);
  choir_tensor_release(value);
}

static choir_var_t* train(choir_model_t* model, choir_scope_t* scope,
                          void* self, choir_vars_t inputs, choir_vars_t targets,
                          choir_var_t** out_loss) {
  (void)model, (void)scope, (void)self, (void)inputs, (void)targets;
  *out_loss = NULL;
  return NULL;
}

static void set_up(int which) {
  static const choir_model_def_t def = {
      .name = "net", .define = define, .train_one_batch = train};
  const choir_dataset_synthetic_t images = {.count = SAMPLES,
                                            .channels = 1,
                                            .height = 4,
                                            .width = 4,
                                            .class_count = 2};
  choir_dataset_t* dataset = NULL;
  choir_optimizer_t* optimizer = NULL;
  if (!device) must(choir_device_create("cpu", NULL, &device));
  must(choir_dataset_create_synthetic(&images, &dataset));
  choir_loader_config_t config;
  choir_struct_init(&choir_loader_config_def, &config);
  config.batch = BATCH;
  must(
      choir_loader_create(dataset, device, 0, 1, &config, &runs[which].loader));
  must(choir_model_create(device, &def, NULL, 0, &runs[which].model));
  must(choir_model_compile(runs[which].model, NULL, 0));
  must(choir_optimizer_sgd(&optimizer, .lr = 0.1, .momentum = 0.9));
  choir_updater_t* updater = choir_optimizer_updater(optimizer);
  if (options[which]) {
    choir_comm_config_t alone;
    choir_dist_opt_config_t dist_config;
    choir_comm_t* comm = NULL;
    choir_dist_opt_t* dist = NULL;
    must(choir_comm_config_init(&alone));
    alone.backend = "self";
    alone.rank = 0;
    alone.size = 1;
    must(choir_comm_create(&alone, &comm));
    choir_struct_init(&choir_dist_opt_config_def, &dist_config);
    must(choir_dist_opt_create(optimizer, comm, &dist_config, &dist));
    updater = choir_dist_opt_updater(dist);
  }
  must(choir_model_set_updater(runs[which].model, updater));
  const choir_update_options_t update = {.dist_option = options[which]};
  if (options[which])
    must(choir_model_set_update_options(runs[which].model, &update));
}

// ---- Inputs ----

// What a run saves, and the same states as another program would write them.
static size_t make_saved(int which, uint8_t* out_data, size_t room) {
  char path[] = "/tmp/choir_fuzz_XXXXXX";
  const int fd = mkstemp(path);
  const choir_metadata_t line = {"model", "net"};
  if (fd < 0) abort();
  close(fd);
  must(choir_training_save(runs[which].model, runs[which].loader, path, &line,
                           1));
  const int saved = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = read(saved, out_data, room);
  close(saved);
  unlink(path);
  if (bytes <= 0 || (size_t)bytes == room) abort();
  return (size_t)bytes;
}

static size_t make_plain(int which, uint8_t* out_data, size_t room) {
  choir_model_t* model = runs[which].model;
  const size_t count = choir_model_states(model, NULL);
  choir_named_tensor_t* states = calloc(count, sizeof(*states));
  if (!states) abort();
  choir_model_states(model, states);
  char text[CHOIR_FUZZ_MOST_BYTES];
  size_t end = 0;
  int used = snprintf(text, sizeof(text),
                      "{\"__metadata__\":{\"model\":\"net\",\"step\":\"3\","
                      "\"epoch\":\"1\",\"batch\":\"1\",\"seed\":\"0\","
                      "\"global batch\":\"%d\",\"training samples\":\"%d\"}",
                      BATCH, SAMPLES);
  for (size_t i = 0; i < count; ++i) {
    const choir_tensor_t* state = states[i].tensor;
    const bool is_matrix = choir_tensor_ndim(state) == 2;
    const size_t start = end;
    end += (size_t)choir_tensor_count(state) * sizeof(float);
    used += snprintf(text + used, sizeof(text) - (size_t)used,
                     ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%s%d],"
                     "\"data_offsets\":[%zu,%zu]}",
                     states[i].name, is_matrix ? "2," : "",
                     (int)choir_tensor_count(state) / (is_matrix ? 2 : 1),
                     start, end);
  }
  used += snprintf(text + used, sizeof(text) - (size_t)used, "}");
  free(states);
  const uint64_t header = (uint64_t)used;
  if (sizeof(header) + header + end > room) abort();
  memcpy(out_data, &header, sizeof(header));
  memcpy(out_data + sizeof(header), text, header);
  memset(out_data + sizeof(header) + header, 0x3c, end);
  return sizeof(header) + header + end;
}

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  const int which = number / 2;
  if (which >= RUNS) return 0;
  if (!runs[which].model) set_up(which);
  out_data[0] = (uint8_t)which;
  return 1 + (number % 2 ? make_plain : make_saved)(which, out_data + 1,
                                                    CHOIR_FUZZ_MOST_BYTES - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const int which = data[0] % RUNS;
  if (!runs[which].model) set_up(which);
  const choir_metadata_t line = {"model", "net"};
  choir_status_t status =
      choir_training_resume(runs[which].model, runs[which].loader,
                            choir_fuzz_file(data + 1, bytes - 1), &line, 1);
  if (status && !choir_status_message(status)[0]) abort();
  const choir_loader_position_t at = choir_loader_position(runs[which].loader);
  if (at.epoch < 0 || at.step < 0 || at.step > SAMPLES / BATCH ||
      choir_model_step(runs[which].model) < 0)
    abort();
  choir_status_free(status);
  return 0;
}
