// SPDX-License-Identifier: Apache-2.0
#include "model/model_internal.h"

static void define(choir_model_t* model, void* self) {
  const choir_model_callbacks_t* callbacks = self;
  void* const arguments[] = {model};
  choir__model_fail(
      model,
      choir_callback_run(callbacks ? &callbacks->define : NULL, arguments));
}

static choir_var_t* train_one_batch(choir_model_t* model, choir_scope_t* scope,
                                    void* self, choir_vars_t inputs,
                                    choir_vars_t targets,
                                    choir_var_t** out_loss) {
  const choir_model_callbacks_t* callbacks = self;
  void* const arguments[] = {model, scope, &inputs, &targets, out_loss};
  choir_status_t status =
      choir_callback_run(&callbacks->train_one_batch, arguments);
  if (status) return choir_scope_fail(scope, status);
  // What forward gave stays with the program, so no hits are counted.
  return NULL;
}

const choir_model_def_t choir_model_def_callbacks = {
    .name = "callbacks", .define = define, .train_one_batch = train_one_batch};
