// SPDX-License-Identifier: Apache-2.0
#include "model/updater.h"

#include "model/updater_backend.h"

void choir_updater_retain(choir_updater_t* updater) {
  if (updater)
    atomic_fetch_add_explicit(&updater->ref_count, 1, memory_order_relaxed);
}

void choir_updater_release(choir_updater_t* updater) {
  if (!updater || atomic_fetch_sub_explicit(&updater->ref_count, 1,
                                            memory_order_acq_rel) != 1)
    return;
  choir_param_set_t* params = updater->params;
  updater->vtable->destroy(updater);
  choir_param_set_release(params);
}

choir_status_t choir__updater_check_free(const choir_updater_t* updater,
                                         const choir_param_set_t* params,
                                         const char* model) {
  if (!updater->has_model ||
      (updater->params == params && (model || !updater->model)))
    return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "model %s: the updater is that of model %s; make one for "
                     "each model, or release the other model or give it "
                     "another updater first",
                     model ? model : "(no name)",
                     updater->model ? updater->model : "(no name)");
}

choir_status_t choir__updater_attach(choir_updater_t* updater,
                                     choir_device_t* device,
                                     choir_param_set_t* params,
                                     const char* model) {
  CHOIR_TRY(choir__updater_check_free(updater, params, model));
  choir__updater_detach(updater, params);
  updater->has_model = true;
  updater->had_model = true;
  choir_param_set_retain(params);
  updater->params = params;
  updater->model = model;
  choir_status_t status = updater->vtable->attach(updater, device, params);
  if (status) choir__updater_detach(updater, params);
  return status;
}

void choir__updater_detach(choir_updater_t* updater,
                           const choir_param_set_t* params) {
  if (!updater->has_model || updater->params != params) return;
  updater->vtable->detach(updater);
  updater->has_model = false;
  choir_param_set_release(updater->params);
  updater->params = NULL;
  updater->model = NULL;
}

choir_status_t choir__updater_need_model(const choir_updater_t* updater,
                                         const char* name, const char* what) {
  if (updater->has_model) return NULL;
  return CHOIR_ERROR(
      FAILED_PRECONDITION, "%s: %s %s; choir_model_set_updater gives it one",
      name, what,
      updater->had_model ? "without a model: its own was released or got "
                           "another updater"
                         : "before it has a model");
}

choir_status_t choir_updater_consolidate(choir_updater_t* updater) {
  return updater ? updater->vtable->consolidate(updater) : NULL;
}

choir_status_t choir_updater_gather(choir_updater_t* updater,
                                    const choir_named_tensor_t* state,
                                    int32_t root, choir_tensor_t** out_whole) {
  *out_whole = NULL;
  if (!state->shard) return choir_named_tensor_make_whole(state, out_whole);
  if (updater->vtable->gather)
    return updater->vtable->gather(updater, state, root, out_whole);
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "gather: %s is a shard, and this updater has one rank",
                     state->name);
}
