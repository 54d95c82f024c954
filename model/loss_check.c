// SPDX-License-Identifier: Apache-2.0
// A loss that is not finite: seen before anything is updated by it, and traced
// to where values of forward first were not finite.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/stage.h"
#include "model/model_internal.h"

choir_status_t choir__model_take_loss(const choir_model_t* model,
                                      choir_var_t* loss, bool adds,
                                      choir_tensor_t* counter) {
  choir_stream_t* stream = choir_scope_stream(model->scope);
  choir_tensor_t* value = choir_var_tensor(loss);
  choir_tensor_t* flat = NULL;
  const choir_reshape_attrs_t one = {.ndim = 1, .shape = {1}};
  const choir_cast_attrs_t to_f64 = {.dtype = CHOIR_DTYPE_F64};
  CHOIR_TRY(
      choir_op_run(stream, CHOIR_OP_RESHAPE, &value, 1, &one, false, &flat));
  choir_status_t status =
      choir_op_run(stream, CHOIR_OP_CAST, &flat, 1, &to_f64, adds, &counter);
  choir_tensor_release(flat);
  return status;
}

choir_status_t choir_model_set_loss_check(choir_model_t* model, bool checks) {
  choir__model_drop_graphs(model);
  model->checks_loss = checks && choir_device_is_host(model->device);
  if (!model->checks_loss || model->last_loss) return NULL;
  const int64_t one = 1;
  const double zero = 0;
  CHOIR_TRY(choir_tensor_create(model->device, CHOIR_DTYPE_F64, 1, &one,
                                &model->last_loss));
  return choir_tensor_write(model->last_loss, &zero, sizeof(zero));
}

choir_status_t choir__model_note_loss(choir_model_t* model, choir_var_t* loss) {
  if (!model->checks_loss || !loss) return NULL;
  return choir__model_take_loss(model, loss, false, model->last_loss);
}

choir_status_t choir__model_check_loss(choir_model_t* model) {
  if (!model->checks_loss) return NULL;
  double loss = 0;
  CHOIR_TRY(choir_tensor_read(model->last_loss, &loss, sizeof(loss)));
  model->is_lost = !isfinite(loss);
  if (!model->is_lost) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "the loss is %s, and nothing was updated",
                     isnan(loss) ? "nan" : "infinite");
}

// ---- Where it comes from ----

typedef struct search_s {
  choir_stage_t stage;  // first
  const choir_model_batch_t* batch;
  bool looks;  // in what is submitted to read a tensor there is nothing
  bool is_found;
  char where[320];
} search_t;

// The bits of an exponent that only infinities and NaN have.
static bool is_special(choir_dtype_t dtype, const unsigned char* element) {
  uint16_t half;
  uint32_t single;
  uint64_t wide;
  switch (dtype) {
    case CHOIR_DTYPE_F16:
    case CHOIR_DTYPE_BF16:
      memcpy(&half, element, sizeof(half));
      half &= dtype == CHOIR_DTYPE_F16 ? 0x7C00 : 0x7F80;
      return half == (dtype == CHOIR_DTYPE_F16 ? 0x7C00 : 0x7F80);
    case CHOIR_DTYPE_F32:
      memcpy(&single, element, sizeof(single));
      return (single & 0x7F800000) == 0x7F800000;
    case CHOIR_DTYPE_F64:
      memcpy(&wide, element, sizeof(wide));
      return (wide & 0x7FF0000000000000) == 0x7FF0000000000000;
    default:
      return false;
  }
}

static choir_status_t find_special(search_t* search, choir_tensor_t* tensor,
                                   bool* out_found) {
  *out_found = false;
  const choir_dtype_t dtype = choir_tensor_dtype(tensor);
  if (!choir_dtype_is_float(dtype)) return NULL;
  choir_allocator_t allocator =
      choir_device_allocator(choir_tensor_device(tensor));
  const size_t size = choir_dtype_bytes(dtype);
  const size_t bytes = (size_t)choir_tensor_count(tensor) * size;
  void* elements = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "values to check", &elements));
  search->looks = true;
  choir_status_t status = choir_tensor_read(tensor, elements, bytes);
  search->looks = false;
  for (size_t at = 0; !status && at < bytes && !*out_found; at += size)
    *out_found = is_special(dtype, (const unsigned char*)elements + at);
  choir_deallocate(allocator, elements, bytes);
  return status;
}

static choir_status_t look_at_result(search_t* search,
                                     const choir_record_t* record,
                                     int32_t index) {
  choir_tensor_t* tensor = NULL;
  bool found = false;
  CHOIR_TRY(choir_tensor_from_view(choir_record_dst(record, index), &tensor));
  choir_status_t status = find_special(search, tensor, &found);
  choir_tensor_release(tensor);
  if (!status && found) {
    search->is_found = true;
    snprintf(search->where, sizeof(search->where), "in what op %s made%s%s",
             choir_record_name(record), record->label ? " in layer " : "",
             record->label ? record->label : "");
  }
  return status;
}

static choir_status_t look_at_record(choir_stage_t* stage,
                                     choir_stream_t* stream,
                                     const choir_record_t* record) {
  search_t* search = (search_t*)stage;
  CHOIR_TRY(choir_stage_forward(stage, stream, record));
  for (int32_t i = 0;
       i < record->dst_count && !search->looks && !search->is_found; ++i)
    CHOIR_TRY(look_at_result(search, record, i));
  return NULL;
}

static choir_status_t look_at_given(choir_model_t* model, search_t* search) {
  for (int32_t i = 0; i < CHOIR_MODEL_MAX_TENSORS; ++i) {
    choir_tensor_t* tensor = search->batch->inputs[i];
    if (tensor) CHOIR_TRY(find_special(search, tensor, &search->is_found));
    if (search->is_found) {
      snprintf(search->where, sizeof(search->where), "in input %d of the batch",
               i);
      return NULL;
    }
  }
  for (size_t i = 0; i < model->params->count; ++i) {
    const choir_param_t* param = model->params->params[i];
    if (!param->trainable) continue;  // averages, which this step changed
    CHOIR_TRY(find_special(search, param->value, &search->is_found));
    if (search->is_found) {
      snprintf(search->where, sizeof(search->where), "in parameter %s",
               param->name);
      return NULL;
    }
  }
  return NULL;
}

// Forward is over, and the step with it.
static void stop(choir_updater_t* updater, choir_scope_t* scope,
                 choir_var_t* loss) {
  (void)updater;
  (void)loss;
  choir_scope_fail(scope, CHOIR_ERROR(ABORTED, "looked at"));
}

static choir_status_t run_forward(choir_model_t* model, void* self) {
  search_t* search = self;
  choir_stream_t* stream = choir_device_stream(model->device);
  const bool use_graph = model->use_graph;
  model->use_graph = false;
  choir_stream_push_stage(stream, &search->stage);
  choir_status_t status = choir_model_train_one_batch(model, search->batch);
  choir_stream_pop_stage(stream, &search->stage);
  model->use_graph = use_graph;
  if (choir_status_code(status) != CHOIR_STATUS_ABORTED) return status;
  choir_status_free(status);
  return NULL;
}

choir_status_t choir__model_explain_loss(choir_model_t* model,
                                         const choir_model_batch_t* batch,
                                         choir_status_t status) {
  search_t search = {.stage = {.submit = look_at_record}, .batch = batch};
  const choir__aside_t aside = {stop, run_forward, &search};
  choir_status_t failure = look_at_given(model, &search);
  // Layers over all ranks would wait for the others.
  if (!failure && !search.is_found && model->sync_norm_count == 0)
    failure = choir__model_step_aside(model, &aside);
  if (!search.is_found) return choir_status_join(status, failure);
  choir_status_free(failure);
  choir_status_t explained =
      CHOIR_ERROR(FAILED_PRECONDITION, "%s; values were first not finite %s",
                  choir_status_message(status), search.where);
  choir_status_free(status);
  return explained;
}
