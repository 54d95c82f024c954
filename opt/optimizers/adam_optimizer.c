// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer_def.h"

static choir_status_t check(const void* config) {
  (void)config;
  return NULL;
}

static const char* const* states(const void* config) {
  static const char* const names[] = {"mean", "square", NULL};
  (void)config;
  return names;
}

static choir_status_t update(const void* config, choir_op_calls_t* calls,
                             choir_param_t* param,
                             choir_tensor_t* const* moments, double lr,
                             int64_t step) {
  const choir_adam_config_t* adam = config;
  const choir_adam_update_attrs_t attrs = {.lr = lr,
                                           .beta1 = adam->beta1,
                                           .beta2 = adam->beta2,
                                           .epsilon = adam->epsilon,
                                           .weight_decay = adam->weight_decay,
                                           .step = step + 1,
                                           .scale = 1};
  choir_tensor_t* srcs[] = {param->value, param->grad, moments[0], moments[1]};
  choir_tensor_t* dsts[] = {param->value, moments[0], moments[1]};
  return choir__op_calls_run(calls, CHOIR_OP_ADAM_UPDATE, srcs, 4, &attrs,
                             dsts);
}

CHOIR_OPTIMIZER_DEFINE(adam, CHOIR_ADAM_FIELDS, "Adam");
