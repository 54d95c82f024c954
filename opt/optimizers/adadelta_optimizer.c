// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer_def.h"

static choir_status_t check(const void* config) {
  (void)config;
  return NULL;
}

static const char* const* states(const void* config) {
  static const char* const names[] = {"square", "step_square", NULL};
  (void)config;
  return names;
}

static choir_status_t update(const void* config, choir_op_calls_t* calls,
                             choir_param_t* param, choir_tensor_t* const* kept,
                             double lr, int64_t step) {
  const choir_adadelta_config_t* adadelta = config;
  (void)step;
  const choir_adadelta_update_attrs_t attrs = {
      .lr = lr,
      .rho = adadelta->rho,
      .epsilon = adadelta->epsilon,
      .weight_decay = adadelta->weight_decay};
  choir_tensor_t* srcs[] = {param->value, param->grad, kept[0], kept[1]};
  choir_tensor_t* dsts[] = {param->value, kept[0], kept[1]};
  return choir__op_calls_run(calls, CHOIR_OP_ADADELTA_UPDATE, srcs, 4, &attrs,
                             dsts);
}

CHOIR_OPTIMIZER_DEFINE(adadelta, CHOIR_ADADELTA_FIELDS, "AdaDelta");
