// SPDX-License-Identifier: Apache-2.0
// Learns a ring. cc embed.c $(pkg-config --cflags --libs choir)
#include <choir.h>
#include <stdio.h>

static void define(choir_model_t* model, void* layers) {
  choir_layer_t** layer = layers;
  layer[0] = choir_layer_linear(model, "hidden", .out_features = 32,
                                .activation = CHOIR_ACTIVATION_RELU);
  layer[1] = choir_layer_linear(model, "out", .out_features = 2);
}

static choir_var_t* forward(choir_scope_t* s, void* layers, choir_vars_t in) {
  choir_layer_t** l = layers;
  return choir_layer_forward(s, l[1], choir_layer_forward(s, l[0], in.at[0]));
}

static choir_status_t run(void) {
  static const choir_model_def_t ring = {"ring", define, forward, NULL, NULL};
  static const int64_t n[] = {256, 2};
  float points[256][2];
  int32_t labels[256];
  for (int i = 0; i < 256; ++i) {
    const float u = points[i][0] = (float)(i % 16) / 8 - 1;
    const float v = points[i][1] = (float)i / 128 - 1;
    labels[i] = u * u + v * v > 0.2f && u * u + v * v < 0.8f;
  }
  choir_device_t* device;
  choir_tensor_t *x, *y;
  choir_layer_t* layers[2];
  choir_model_t* model;
  choir_optimizer_t* adam;
  CHOIR_TRY(choir_device_create("cpu", NULL, &device));
  CHOIR_TRY(choir_tensor_from_data(device, CHOIR_DTYPE_F32, 2, n, points, &x));
  CHOIR_TRY(choir_tensor_from_data(device, CHOIR_DTYPE_I32, 1, n, labels, &y));
  CHOIR_TRY(choir_model_create(device, &ring, layers, 1, &model));
  CHOIR_TRY(choir_model_compile(model, choir_tensor_view(x), 1));
  CHOIR_TRY(choir_optimizer_adam(&adam, .lr = 0.01));
  CHOIR_TRY(choir_model_set_updater(model, choir_optimizer_updater(adam)));
  choir_metrics_t metrics;
  const choir_model_batch_t batch = {
      .inputs = {x}, .targets = {y}, .sample_count = 256, .global_count = 256};
  for (int step = 0; step < 500; ++step) {
    CHOIR_TRY(choir_model_train_one_batch(model, &batch));
    CHOIR_TRY(choir_model_take_metrics(model, &metrics));
  }
  printf("%d of %d right\n", (int)metrics.correct, (int)metrics.samples);
  choir_optimizer_release(adam);
  choir_model_release(model);
  choir_tensor_release(x);
  choir_tensor_release(y);
  choir_device_release(device);
  return NULL;
}

int main(void) {
  choir_status_t status = run();
  if (status) fprintf(stderr, "embed: %s\n", choir_status_message(status));
  return status != NULL;
}
