// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer_def.h"

static choir_status_t check(const void* config) {
  const choir_sgd_config_t* sgd = config;
  if (sgd->nesterov && (sgd->momentum == 0 || sgd->dampening != 0))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sgd: nesterov with momentum %g and dampening %g; "
                       "momentum above 0 and dampening 0 are needed",
                       sgd->momentum, sgd->dampening);
  return NULL;
}

static const char* const* states(const void* config) {
  static const char* const with_momentum[] = {"velocity", NULL};
  static const char* const none[] = {NULL};
  return ((const choir_sgd_config_t*)config)->momentum > 0 ? with_momentum
                                                           : none;
}

static choir_status_t update(const void* config, choir_op_calls_t* calls,
                             choir_param_t* param,
                             choir_tensor_t* const* velocity, double lr,
                             int64_t step) {
  const choir_sgd_config_t* sgd = config;
  (void)step;
  const choir_sgd_update_attrs_t attrs = {.lr = lr,
                                          .momentum = sgd->momentum,
                                          .dampening = sgd->dampening,
                                          .weight_decay = sgd->weight_decay,
                                          .nesterov = sgd->nesterov,
                                          .scale = 1};
  // Without momentum there is no velocity to keep: the op takes an empty one.
  choir_tensor_t* v = sgd->momentum > 0 ? velocity[0] : NULL;
  if (v) {
    choir_tensor_retain(v);
  } else {
    const int64_t none = 0;
    CHOIR_TRY(choir_tensor_create(choir_tensor_device(param->value),
                                  choir_tensor_dtype(param->value), 1, &none,
                                  &v));
  }
  choir_tensor_t* srcs[] = {param->value, param->grad, v};
  choir_tensor_t* dsts[] = {param->value, v};
  choir_status_t status =
      choir__op_calls_run(calls, CHOIR_OP_SGD_UPDATE, srcs, 3, &attrs, dsts);
  choir_tensor_release(v);
  return status;
}

CHOIR_OPTIMIZER_DEFINE(sgd, CHOIR_SGD_FIELDS,
                       "stochastic gradient descent with momentum");
