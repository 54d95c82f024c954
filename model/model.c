// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <string.h>

#include "core/log.h"
#include "core/packed_backend.h"
#include "core/profile.h"
#include "core/status_backend.h"
#include "core/sum_tree_backend.h"
#include "core/trace_backend.h"
#include "model/kv_cache_internal.h"
#include "model/layer_def.h"
#include "model/model_internal.h"
#include "model/updater_backend.h"

// Graphs go first: they hold streams and calls of the updater.
static void drop_updater(choir_model_t* model) {
  choir__model_drop_graphs(model);
  if (model->updater) choir__updater_detach(model->updater, model->params);
  choir_updater_release(model->updater);
  model->updater = NULL;
}

static void model_destroy(choir_model_t* model) {
  choir_device_t* device = model->device;
  choir_allocator_t allocator = choir_device_allocator(device);
  drop_updater(model);
  choir__snapshot_drop(model, &model->before);
  choir_deallocate(allocator, model->graphs, CHOIR__MODEL_GRAPHS_BYTES);
  choir_workspace_destroy(model->workspace);
  choir_scope_destroy(model->scope);
  choir_status_free(model->error);
  for (size_t i = 0; i < model->layer_count; ++i)
    choir__layer_destroy(model->layers[i]);
  choir_deallocate(allocator, model->layers,
                   model->layer_capacity * sizeof(void*));
  choir__sync_norms_keep(model, 0);
  choir_deallocate(allocator, model->sync_norms,
                   model->sync_norm_capacity * sizeof(void*));
  choir_param_set_release(model->params);
  choir_tensor_release(model->loss_sum);
  choir_tensor_release(model->correct);
  choir_tensor_release(model->evaluation_loss);
  choir_tensor_release(model->last_loss);
  choir_deallocate(allocator, model, sizeof(*model));
  choir_device_release(device);
}

void choir_model_retain(choir_model_t* model) {
  if (model)
    atomic_fetch_add_explicit(&model->ref_count, 1, memory_order_relaxed);
}

void choir_model_release(choir_model_t* model) {
  if (model && atomic_fetch_sub_explicit(&model->ref_count, 1,
                                         memory_order_acq_rel) == 1)
    model_destroy(model);
}

choir_status_t choir_model_set_precision(choir_model_t* model,
                                         choir_dtype_t dtype) {
  if (dtype != CHOIR_DTYPE_F32 && dtype != CHOIR_DTYPE_BF16 &&
      dtype != CHOIR_DTYPE_F16)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: precision is %s; f32, bf16 or f16 is needed",
                       model->def->name, choir_dtype_name(dtype));
  choir__model_drop_graphs(model);
  model->precision = dtype;
  choir_scope_set_precision(model->scope, dtype);
  return NULL;
}

choir_dtype_t choir_model_precision(const choir_model_t* model) {
  return model->precision;
}

static choir_status_t clear_counter(choir_model_t* model,
                                    choir_tensor_t* counter) {
  choir_fill_attrs_t zero = {.value = 0};
  return choir_op_run(choir_device_stream(model->device), CHOIR_OP_FILL,
                      &counter, 1, &zero, false, &counter);
}

static choir_status_t clear_counters(choir_model_t* model) {
  CHOIR_TRY(clear_counter(model, model->loss_sum));
  CHOIR_TRY(clear_counter(model, model->correct));
  return clear_counter(model, model->evaluation_loss);
}

static choir_status_t model_init(choir_model_t* model) {
  const int64_t one = 1;
  CHOIR_TRY(choir_scope_create(model->device, &model->scope));
  CHOIR_TRY(choir_param_set_create(model->device, &model->params));
  CHOIR_TRY(choir_tensor_create(model->device, CHOIR_DTYPE_F64, 1, &one,
                                &model->loss_sum));
  CHOIR_TRY(choir_tensor_create(model->device, CHOIR_DTYPE_I64, 1, &one,
                                &model->correct));
  CHOIR_TRY(choir_tensor_create(model->device, CHOIR_DTYPE_F64, 1, &one,
                                &model->evaluation_loss));
  CHOIR_TRY(clear_counters(model));
  if (model->def->define) model->def->define(model, model->self);
  return choir__model_take_error(model);
}

choir_status_t choir_model_create(choir_device_t* device,
                                  const choir_model_def_t* def, void* self,
                                  int64_t seed, choir_model_t** out_model) {
  *out_model = NULL;
  if (!def->define || (!def->forward && !def->train_one_batch))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: %s is NULL; needs define, and forward or "
                       "train_one_batch",
                       def->name, def->define ? "forward" : "define");
  return choir__model_make(device, def, self, seed, out_model);
}

choir_status_t choir__model_make(choir_device_t* device,
                                 const choir_model_def_t* def, void* self,
                                 int64_t seed, choir_model_t** out_model) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(device),
                           sizeof(choir_model_t), "model", &memory));
  choir_model_t* model = memory;
  atomic_init(&model->ref_count, 1);
  choir_device_retain(device);
  model->device = device;
  model->def = def;
  model->self = self;
  model->seed = seed;
  model->precision = CHOIR_DTYPE_F32;
  choir_status_t status = model_init(model);
  if (status) {
    choir_model_release(model);
    return status;
  }
  *out_model = model;
  return NULL;
}

// ---- Forward ----

// Tensors as variables of the scope, for the time of one call; what is behind
// the last one is NULL.
typedef struct vars_s {
  choir_var_t* at[CHOIR_MODEL_MAX_TENSORS];
} vars_t;

static choir_vars_t take_tensors(const choir_model_t* model,
                                 choir_tensor_t* const* tensors, vars_t* vars) {
  int32_t count = 0;
  memset(vars, 0, sizeof(*vars));
  for (; count < CHOIR_MODEL_MAX_TENSORS && tensors[count]; ++count)
    vars->at[count] = choir_scope_samples(model->scope, tensors[count]);
  return (choir_vars_t){vars->at, count};
}

static choir_var_t* run_forward(const choir_model_t* model,
                                const choir_model_batch_t* batch) {
  vars_t vars;
  choir_var_t* out = model->def->forward(
      model->scope, model->self, take_tensors(model, batch->inputs, &vars));
  const choir_tensor_t* y = choir_var_tensor(out);
  if (model->precision == CHOIR_DTYPE_F32 || !y ||
      choir_tensor_dtype(y) != model->precision)
    return out;
  const choir_cast_attrs_t to_f32 = {.dtype = CHOIR_DTYPE_F32};
  return choir_var_cast(model->scope, out, &to_f32);
}

// Zeros like the views.
static choir_status_t make_inputs(choir_model_t* model,
                                  const choir_view_t* views, int32_t count,
                                  choir_model_batch_t* batch) {
  for (int32_t i = 0; i < count; ++i) {
    CHOIR_TRY_NOTE(
        choir_tensor_create_layout(model->device, &views[i], &batch->inputs[i]),
        "input %d", i);
    CHOIR_TRY(clear_counter(model, batch->inputs[i]));
  }
  return NULL;
}

static choir_status_t run_on_zeros(choir_model_t* model,
                                   const choir_view_t* views, int32_t count) {
  choir_model_batch_t batch = {.sample_count = 1};
  choir_status_t status = make_inputs(model, views, count, &batch);
  if (!status && model->def->forward) {
    choir_scope_begin(model->scope, NULL);
    run_forward(model, &batch);
    status = choir_scope_end(model->scope);
  }
  for (int32_t i = 0; i < count; ++i) choir_tensor_release(batch.inputs[i]);
  return status;
}

// After a failure, which is `status`, layers that were built keep what they
// got.
static choir_status_t run_learnt(choir_graph_t* graph,
                                 const choir_step_values_t* values,
                                 choir_status_t status) {
  const choir_graph_options_t options = {0};
  choir_status_t why = status ? NULL : choir_graph_plan(graph, &options);
  const bool is_planned = !status && !why;
  choir_status_free(why);
  return choir_status_join(status, is_planned
                                       ? choir_graph_replay(graph, values, NULL)
                                       : choir_graph_run(graph));
}

// As a graph, which leaves out what nobody will read: of a forward pass all but
// the initial values of parameters.
static choir_status_t learn_shapes(choir_model_t* model,
                                   const choir_view_t* views, int32_t count) {
  choir_stream_t* stream = choir_device_stream(model->device);
  const choir_step_values_t values = {0};
  choir_workspace_t* workspace = NULL;
  choir_graph_t* graph = NULL;
  CHOIR_TRY(choir_workspace_create(model->device, &workspace));
  choir_status_t status = choir_graph_create(workspace, &graph);
  if (!status) status = choir_graph_begin(graph, &stream, 1, &values);
  if (!status) {
    status = run_on_zeros(model, views, count);
    choir_status_t why = choir_graph_end(graph);  // it has run then
    if (!why) status = run_learnt(graph, &values, status);
    choir_status_free(why);
  }
  choir_graph_destroy(graph);
  choir_workspace_destroy(workspace);
  return status;
}

choir_status_t choir_model_compile(choir_model_t* model,
                                   const choir_view_t* inputs, int32_t count) {
  if (model->is_compiled)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "model %s: compiled twice; once is enough, any batch "
                       "size may follow",
                       model->def->name);
  const int32_t least = model->def->forward ? 1 : 0;
  if (count < least || count > CHOIR_MODEL_MAX_TENSORS)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: compile: %d inputs; %d to %d are possible",
                       model->def->name, count, least, CHOIR_MODEL_MAX_TENSORS);
  for (size_t i = 0; i < model->params->count; ++i)
    if (!choir__buffer_place(
            choir_tensor_view(model->params->params[i]->value)->buffer))
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "model %s: compile: there was no memory for its "
                         "parameters before; make the model anew",
                         model->def->name);
  const size_t norms = model->sync_norm_count;
  choir_status_t status = learn_shapes(model, inputs, count);
  if (status) choir__sync_norms_keep(model, norms);
  CHOIR_TRY_NOTE(status, "model %s: compile", model->def->name);
  model->input_count = count;
  for (size_t i = 0; i < model->layer_count; ++i)
    if (!model->layers[i]->is_built)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "model %s: forward does not use layer %s; every "
                         "layer must be used",
                         model->def->name, model->layers[i]->name);
  model->is_compiled = true;
  return NULL;
}

static choir_status_t require_compiled(choir_model_t* model, const char* what) {
  // Reported once: what is in the model's lists is whole.
  CHOIR_TRY(choir__model_take_error(model));
  if (model->is_compiled) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "model %s: %s before choir_model_compile",
                     model->def->name, what);
}

static choir_status_t need_forward(choir_model_t* model, const char* what) {
  CHOIR_TRY(require_compiled(model, what));
  if (model->def->forward) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "model %s: %s: its definition has no forward",
                     model->def->name, what);
}

choir_status_t choir__model_need_updater(const choir_model_t* model,
                                         const char* what) {
  if (model->updater) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "model %s: %s without an updater; call "
                     "choir_model_set_updater",
                     model->def->name, what);
}

static void begin_passes(choir_model_t* model) {
  model->pass = 0;
  model->pass_samples = 0;
}

choir_status_t choir__model_take_back(choir_model_t* model,
                                      choir_status_t status) {
  choir_updater_t* updater = model->updater;
  while (status && updater && updater->takes_back) {
    int64_t step = model->step;
    choir__model_drop_graphs(model);
    status = updater->vtable->take_back(updater, status, &step);
    if (status) break;
    model->step = step;
    begin_passes(model);
    model->sync_norm_rows = 0;
    status = choir__sync_norms_open(model, 1);
  }
  return status;
}

choir_status_t choir_model_set_updater(choir_model_t* model,
                                       choir_updater_t* updater) {
  CHOIR_TRY(require_compiled(model, "set_updater"));
  if (updater)
    CHOIR_TRY(
        choir__updater_check_free(updater, model->params, model->def->name));
  choir_updater_retain(updater);  // it may be the one that goes
  drop_updater(model);
  begin_passes(model);
  if (!updater) return NULL;
  choir_status_t status = choir__updater_attach(
      updater, model->device, model->params, model->def->name);
  if (status) {
    choir_updater_release(updater);
    return status;
  }
  model->updater = updater;
  model->sync_norm_rows = 0;
  status = choir__sync_norms_open(model, 1);
  // It has been by itself so far.
  if (!status && updater->is_newcomer)
    status = choir__model_take_back(
        model, CHOIR_ERROR(ABORTED, "model %s: others are under way",
                           model->def->name));
  if (status) drop_updater(model);
  return status;
}

choir_updater_t* choir_model_updater(const choir_model_t* model) {
  return model->updater;
}

choir_status_t choir_model_set_update_options(
    choir_model_t* model, const choir_update_options_t* options) {
  CHOIR_TRY(choir__model_need_updater(model, "set_update_options"));
  if (!model->updater->vtable->set_options) return NULL;
  return model->updater->vtable->set_options(model->updater, options);
}

// Also in replays, which begin the span themselves.
static choir_status_t end_forward(void* self) {
  choir_model_t* model = self;
  choir_span_end(&model->forward_span, "forward", NULL, NULL);
  model->forward_span.start = -1;
  return choir__model_check_loss(model);
}

static choir_status_t count_pass(void* self) {
  choir_model_t* model = self;
  model->is_counted = true;
  if (choir__model_is_partial(model)) {
    ++model->pass;
    model->pass_samples += model->batch_samples;
    return NULL;
  }
  begin_passes(model);
  ++model->step;
  return NULL;
}

// With micro-shards: those of all ranks together are one batch's.
static choir_status_t count_losses(choir_model_t* model, choir_var_t* loss) {
  if (!loss) return NULL;
  model->metrics.batches += choir_scope_step(model->scope)->first_sample == 0;
  return choir_scope_add_losses(model->scope, loss, model->loss_sum);
}

void choir_model_backward_and_update(choir_model_t* model, choir_scope_t* scope,
                                     choir_var_t* loss) {
  model->is_updated = true;
  choir_status_t missing = choir__model_need_updater(model, "training");
  if (missing) {
    choir_scope_fail(scope, missing);
    return;
  }
  if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, choir__model_note_loss(model, loss));
  if (choir_scope_is_ok(scope) && choir_scope_step(scope)->micro_shard > 0)
    choir_scope_fail(scope, count_losses(model, loss));
  choir_scope_fail(
      scope, choir_stream_call(choir_scope_stream(scope), end_forward, model));
  model->updater->vtable->backward_and_update(model->updater, scope, loss);
  // Here, and in replays too, so that nothing which fails later in the step can
  // make a program apply the batch again.
  if (choir_scope_is_ok(scope))
    choir_scope_fail(
        scope, choir_stream_call(choir_scope_stream(scope), count_pass, model));
}

void choir_model_retract_step(choir_model_t* model) {
  model->is_retracted = true;
}

// Whether `targets` are class labels of `out`: (..., classes) and (...) of a
// whole number.
static bool is_classes(choir_var_t* out, choir_var_t* targets) {
  const choir_view_t* scores = out ? choir_var_view(out) : NULL;
  const choir_view_t* labels = targets ? choir_var_view(targets) : NULL;
  return scores && labels && scores->ndim >= 2 &&
         labels->ndim == scores->ndim - 1 &&
         !choir_dtype_is_float(labels->dtype) &&
         memcmp(scores->shape, labels->shape,
                (size_t)labels->ndim * sizeof(int64_t)) == 0;
}

// The same as (rows, classes) and (rows), as ops take them. Returns the rows.
static int64_t make_rows(choir_scope_t* scope, choir_var_t** out,
                         choir_var_t** targets) {
  if (!is_classes(*out, *targets)) return 0;
  const choir_view_t* labels = choir_var_view(*targets);
  const int64_t rows = choir_view_count(labels);
  if (labels->ndim == 1) return rows;
  const choir_reshape_attrs_t flat = {.ndim = 1, .shape = {rows}};
  const choir_reshape_attrs_t matrix = {
      .ndim = 2, .shape = {rows, choir_var_view(*out)->shape[labels->ndim]}};
  *out = choir_var_reshape(scope, *out, &matrix);
  *targets = choir_var_reshape(scope, *targets, &flat);
  return rows;
}

static choir_var_t* default_loss(choir_scope_t* scope, choir_var_t* out,
                                 choir_var_t* targets) {
  make_rows(scope, &out, &targets);
  return choir_var_softmax_cross_entropy(scope, out, targets);
}

// Hits, where targets are class labels; of a loss without scores the labels
// alone.
static choir_status_t count_hits(choir_model_t* model, choir_var_t* out,
                                 choir_var_t* targets) {
  choir_stream_t* stream = choir_scope_stream(model->scope);
  if (!out && model->def->loss && targets)
    model->metrics.samples += choir_view_count(choir_var_view(targets));
  if (!is_classes(out, targets)) return NULL;
  const int64_t rows = make_rows(model->scope, &out, &targets);
  choir_tensor_t* srcs[] = {choir_var_tensor(out), choir_var_tensor(targets)};
  if (!choir_scope_is_ok(model->scope)) return NULL;
  CHOIR_TRY(choir_op_run(stream, CHOIR_OP_COUNT_CORRECT, srcs, 2, NULL, true,
                         &model->correct));
  model->metrics.samples += rows;
  return NULL;
}

// Hits are counted before backward, so that the scores end there. What is
// counted here is not returned.
static choir_var_t* default_train_one_batch(choir_model_t* model,
                                            choir_scope_t* scope, void* self,
                                            choir_vars_t inputs,
                                            choir_vars_t targets,
                                            choir_var_t** out_loss) {
  if (model->def->loss) {
    *out_loss = model->def->loss(scope, self, inputs, targets);
  } else {
    choir_var_t* out = model->def->forward(scope, self, inputs);
    *out_loss = default_loss(scope, out, targets.at[0]);
    if (choir_scope_is_ok(scope))
      choir_scope_fail(scope, count_hits(model, out, targets.at[0]));
  }
  choir_model_backward_and_update(model, scope, *out_loss);
  return NULL;
}

static choir_status_t count_training(choir_model_t* model, choir_var_t* out,
                                     choir_var_t* targets, choir_var_t* loss) {
  if (loss && choir_scope_step(model->scope)->micro_shard == 0) {
    CHOIR_TRY(choir__model_take_loss(model, loss, true, model->loss_sum));
    ++model->metrics.batches;
  }
  return count_hits(model, out, targets);
}

// Where the model trains by the default loss, evaluation counts it; one of its
// own always.
static choir_status_t evaluate_in_scope(choir_model_t* model,
                                        choir_vars_t inputs,
                                        choir_vars_t targets, bool is_shard) {
  const choir_model_def_t* def = model->def;
  choir_scope_t* scope = model->scope;
  choir_var_t* labels = targets.at[0];
  choir_var_t *out = NULL, *loss = NULL;
  if (def->loss)
    loss = def->loss(scope, model->self, inputs, targets);
  else
    out = def->forward(scope, model->self, inputs);
  if (!def->train_one_batch && is_classes(out, labels))
    loss = default_loss(scope, out, labels);
  if (!choir_scope_is_ok(scope)) return NULL;
  if (loss && labels) {
    const choir_scale_attrs_t rows = {
        .factor = (double)choir_view_count(choir_var_view(labels))};
    choir_var_t* sum = choir_var_scale(scope, loss, &rows);
    if (!choir_scope_is_ok(scope)) return NULL;
    CHOIR_TRY(
        is_shard
            ? choir_scope_add_losses(scope, sum, model->evaluation_loss)
            : choir__model_take_loss(model, sum, true, model->evaluation_loss));
  }
  return count_hits(model, out, labels);
}

// How many there are; -1: one stands behind a NULL.
static int32_t count_tensors(choir_tensor_t* const* tensors) {
  int32_t count = 0;
  int32_t last = 0;
  for (int32_t i = 0; i < CHOIR_MODEL_MAX_TENSORS; ++i) {
    if (!tensors[i]) continue;
    ++count;
    last = i + 1;
  }
  return count == last ? count : -1;
}

static choir_status_t check_lists(const choir_model_t* model,
                                  const choir_model_batch_t* batch) {
  const int32_t inputs = count_tensors(batch->inputs);
  if (inputs < 0 || count_tensors(batch->targets) < 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: a tensor of the batch stands behind a NULL, "
                       "which ends a list",
                       model->def->name);
  if (!model->def->forward || inputs == model->input_count) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "model %s: %d inputs; it was compiled for %d",
                     model->def->name, inputs, model->input_count);
}

static choir_status_t check_batch(const choir_model_t* model,
                                  const choir_model_batch_t* batch) {
  if (batch->sample_count == 0) return NULL;
  CHOIR_TRY(check_lists(model, batch));
  const choir_tensor_t* x = batch->inputs[0];
  if (!x || choir_tensor_ndim(x) < 1 ||
      choir_tensor_shape(x)[0] != batch->sample_count)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: the batch has %lld samples but its first "
                       "input does not hold as many",
                       model->def->name, (long long)batch->sample_count);
  return NULL;
}

// A step whose train_one_batch did not update. With DistOpt it fails, as other
// ranks would wait for the gradients of this one. Else it is legal, is not
// counted, and is logged once.
static choir_status_t miss_update(choir_model_t* model) {
  static const char kFact[] =
      "train_one_batch did not call choir_model_backward_and_update";
  if (model->updater->vtable->step_failed)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "model %s: %s, and other ranks wait for its gradients",
                       model->def->name, kFact);
  if (!model->told_no_update)
    choir_log(
        CHOIR_LOG_WARNING, "model",
        "model %s: %s; such steps change no parameter and are not counted",
        model->def->name, kFact);
  model->told_no_update = true;
  return NULL;
}

// Forward, loss and update in the scope that was begun.
static void train_in_scope(choir_model_t* model,
                           const choir_model_batch_t* batch) {
  choir_scope_t* scope = model->scope;
  model->is_updated = false;
  if (batch->sample_count == 0) {
    choir__sync_norms_without_samples(model, scope);
    choir_model_backward_and_update(model, scope, NULL);
    return;
  }
  vars_t xs;
  vars_t ys;
  const choir_vars_t inputs = take_tensors(model, batch->inputs, &xs);
  const choir_vars_t targets = take_tensors(model, batch->targets, &ys);
  choir_var_t* loss = NULL;
  choir_var_t* out = (model->def->train_one_batch ? model->def->train_one_batch
                                                  : default_train_one_batch)(
      model, scope, model->self, inputs, targets, &loss);
  if (choir_scope_is_ok(scope) && !model->is_updated)
    choir_scope_fail(scope, miss_update(model));
  if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, count_training(model, out, ys.at[0], loss));
}

static choir_status_t train_eagerly(choir_model_t* model,
                                    const choir_model_batch_t* batch) {
  const choir_step_t step = {
      .training = true,
      .seed = model->seed,
      .step = model->step,
      .first_sample = batch->first_sample,
      .sample_count = model->pass_samples + batch->sample_count,
      .global_count = batch->global_count,
      .is_partial = choir__model_is_partial(model),
      .batch_number = batch->batch_number,
      .micro_shard = batch->micro_shard};
  choir__model_graph_t recorded;
  CHOIR_TRY(
      choir__model_begin_graph(model, CHOIR__STEP_TRAIN, batch, &recorded));
  choir_scope_begin(model->scope, &step);
  train_in_scope(model, batch);
  choir_status_t status = choir_scope_end(model->scope);
  return choir__model_end_graph(model, batch, &recorded, NULL, status);
}

bool choir__model_is_partial(const choir_model_t* model) {
  const choir_updater_vtable_t* vtable = model->updater->vtable;
  return vtable->passes && model->pass + 1 < vtable->passes(model->updater);
}

// Whether a failure came after the update, and did not keep it from being
// applied, as one of work that was submitted before may have.
static bool is_applied(const choir_model_t* model, choir_status_t status) {
  return model->is_counted && !choir__status_is_deferred(status);
}

static const char* counted_note(const choir_model_t* model,
                                choir_status_t status) {
  if (!is_applied(model, status)) return "";
  return model->pass > 0 ? " has the gradients of this pass, go on with the "
                           "next batch; then"
                         : " was applied and counted, go on with the next "
                           "batch; then";
}

// What the step left, for a trace.
static choir_status_t trace_step(choir_model_t* model) {
  const choir_param_set_t* set = model->params;
  if (!choir__trace_is_on(model->device) || set->count == 0) return NULL;
  const size_t bytes = set->count * sizeof(choir_trace_value_t);
  choir_allocator_t allocator = choir_device_allocator(model->device);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "traced parameters", &memory));
  choir_trace_value_t* values = memory;
  for (size_t i = 0; i < set->count; ++i)
    values[i] = (choir_trace_value_t){
        set->params[i]->name, *choir_tensor_view(set->params[i]->value)};
  choir_status_t status =
      choir_trace_note(model->device, "parameters", values, set->count);
  choir_deallocate(allocator, memory, bytes);
  return status;
}

static choir_status_t train_one_batch(choir_model_t* model,
                                      const choir_model_batch_t* batch) {
  CHOIR_TRY(require_compiled(model, "train_one_batch"));
  CHOIR_TRY(check_batch(model, batch));
  CHOIR_TRY(choir__model_need_updater(model, "training"));
  if (model->updater->vtable->begin_step && model->pass == 0)
    CHOIR_TRY(model->updater->vtable->begin_step(model->updater, model->step));
  if (model->updater->takes_back) {
    CHOIR_TRY(choir__snapshot_take(model, &model->before));
    model->is_kept = true;
  }
  const choir__leaves_t leaves =
      choir__leaves_of(batch->micro_shard, batch->global_count,
                       batch->first_sample, batch->sample_count);
  if (leaves.all > 0) CHOIR_TRY(choir__sync_norms_open(model, leaves.all));
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_PHASE);
  model->forward_span = choir_span_begin(CHOIR_SPAN_PHASE);
  const int64_t step = model->step;
  choir_trace_set_step(model->device, step);
  model->batch_samples = batch->sample_count;
  model->batch_number = batch->batch_number;
  bool done = false;
  choir_status_t status =
      choir__model_replay(model, CHOIR__STEP_TRAIN, batch, NULL, &done);
  if (!status && !done) status = train_eagerly(model, batch);
  if (!status && model->step != step) status = trace_step(model);
  choir_trace_set_step(model->device, model->step);
  CHOIR_TRY_NOTE(status, "training step %lld%s", (long long)step,
                 counted_note(model, status));
  choir_span_end(&span, "step", NULL, NULL);
  return NULL;
}

// Of a step that failed: what it changed before its update.
static choir_status_t undo_step(choir_model_t* model, choir_status_t status) {
  if (!model->is_kept) return status;
  return choir_status_join(status,
                           choir__snapshot_restore(model, &model->before));
}

choir_status_t choir_model_train_one_batch(choir_model_t* model,
                                           const choir_model_batch_t* batch) {
  model->is_retracted = model->is_counted = model->is_lost = false;
  model->is_kept = false;
  choir_status_t status = train_one_batch(model, batch);
  if (model->is_lost) status = choir__model_explain_loss(model, batch, status);
  if (status && !model->is_retracted && !is_applied(model, status))
    status = choir__model_take_back(model, undo_step(model, status));
  if (status && model->updater && model->updater->vtable->step_failed &&
      !model->is_retracted && !is_applied(model, status))
    model->updater->vtable->step_failed(model->updater, status);
  return status;
}

static choir_status_t evaluate_eagerly(choir_model_t* model,
                                       const choir_model_batch_t* batch) {
  choir__model_graph_t recorded;
  CHOIR_TRY(
      choir__model_begin_graph(model, CHOIR__STEP_EVALUATE, batch, &recorded));
  choir_scope_t* scope = model->scope;
  choir_scope_begin(scope, NULL);
  vars_t xs, ys;
  const choir_vars_t inputs = take_tensors(model, batch->inputs, &xs);
  const choir_vars_t targets = take_tensors(model, batch->targets, &ys);
  choir_scope_fail(
      scope, evaluate_in_scope(model, inputs, targets, batch->micro_shard > 0));
  choir_status_t status = choir_scope_end(scope);
  return choir__model_end_graph(model, batch, &recorded, NULL, status);
}

static choir_status_t evaluate(choir_model_t* model,
                               const choir_model_batch_t* batch) {
  bool done = false;
  choir_status_t status =
      choir__model_replay(model, CHOIR__STEP_EVALUATE, batch, NULL, &done);
  return status || done ? status : evaluate_eagerly(model, batch);
}

// Samples first .. first + count - 1 of each tensor; each ends a list by NULL.
static choir_status_t take_samples(choir_tensor_t* const* all, int64_t samples,
                                   int64_t first, int64_t count,
                                   choir_tensor_t** out_some) {
  for (int32_t i = 0; i < CHOIR_MODEL_MAX_TENSORS && all[i]; ++i) {
    choir_view_t view = *choir_tensor_view(all[i]);
    const int64_t rows = view.ndim > 0 ? view.shape[0] / samples : 0;
    if (rows == 0 || view.shape[0] != rows * samples)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "with micro-shards the first dimension of a batch's "
                         "tensors is that of its %lld samples",
                         (long long)samples);
    view.offset += first * rows * view.strides[0];
    view.shape[0] = count * rows;
    CHOIR_TRY(choir_tensor_from_view(&view, &out_some[i]));
  }
  return NULL;
}

static void release_all(choir_tensor_t* const* tensors) {
  for (int32_t i = 0; i < CHOIR_MODEL_MAX_TENSORS; ++i)
    choir_tensor_release(tensors[i]);
}

// Losses of a batch are sums in an order that follows from its size: those of
// micro-shards are the same wherever they are.
static choir_status_t evaluate_shards(choir_model_t* model,
                                      const choir_model_batch_t* batch) {
  const int64_t all = batch->sample_count, size = batch->micro_shard;
  choir_status_t status = NULL;
  for (int64_t first = 0; !status && first < all; first += size) {
    choir_model_batch_t one = *batch;
    memset(one.inputs, 0, sizeof(one.inputs));
    memset(one.targets, 0, sizeof(one.targets));
    one.first_sample = 0;
    one.sample_count = all - first < size ? all - first : size;
    one.global_count = one.sample_count;
    status =
        take_samples(batch->inputs, all, first, one.sample_count, one.inputs);
    if (!status)
      status = take_samples(batch->targets, all, first, one.sample_count,
                            one.targets);
    if (!status) status = evaluate(model, &one);
    release_all(one.inputs);
    release_all(one.targets);
  }
  return status;
}

choir_status_t choir_model_evaluate(choir_model_t* model,
                                    const choir_model_batch_t* batch) {
  CHOIR_TRY(need_forward(model, "evaluate"));
  CHOIR_TRY(check_batch(model, batch));
  if (batch->sample_count == 0) return NULL;
  const int64_t samples = model->metrics.samples;
  choir_status_t status = batch->micro_shard > 0 ? evaluate_shards(model, batch)
                                                 : evaluate(model, batch);
  CHOIR_TRY_NOTE(status, "model %s: evaluate%s", model->def->name,
                 model->metrics.samples != samples
                     ? " counted the batch, go on with the next one; then"
                     : "");
  return NULL;
}

static choir_status_t predict_eagerly(choir_model_t* model,
                                      const choir_model_batch_t* batch,
                                      choir_kv_cache_t* cache,
                                      choir_tensor_t** out_y) {
  choir_scope_t* scope = model->scope;
  const choir_step_t step = {.cache = cache};
  choir_scope_begin(scope, &step);
  choir_var_t* out = run_forward(model, batch);
  choir_tensor_t* y = choir_scope_is_ok(scope) ? choir_var_tensor(out) : NULL;
  if (y)
    choir_tensor_retain(y);
  else if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, CHOIR_ERROR(FAILED_PRECONDITION,
                                        "model %s: forward returned no "
                                        "variable of this step",
                                        model->def->name));
  *out_y = y;
  return choir_scope_end(scope);
}

choir_status_t choir_model_predict(choir_model_t* model,
                                   choir_tensor_t* const* inputs, int32_t count,
                                   choir_tensor_t** out_y) {
  *out_y = NULL;
  CHOIR_TRY(need_forward(model, "predict"));
  choir_model_batch_t batch = {.sample_count = 1};
  if (inputs && count <= CHOIR_MODEL_MAX_TENSORS)
    for (int32_t i = 0; i < count; ++i) batch.inputs[i] = inputs[i];
  CHOIR_TRY_NOTE(check_lists(model, &batch), "predict");
  bool done = false;
  CHOIR_TRY(
      choir__model_replay(model, CHOIR__STEP_PREDICT, &batch, out_y, &done));
  if (done) return NULL;
  choir__model_graph_t recorded;
  CHOIR_TRY(
      choir__model_begin_graph(model, CHOIR__STEP_PREDICT, &batch, &recorded));
  choir_status_t status = predict_eagerly(model, &batch, NULL, out_y);
  status = choir__model_end_graph(model, &batch, &recorded, *out_y, status);
  if (!status) return NULL;
  choir_tensor_release(*out_y);
  *out_y = NULL;
  return status;
}

choir_var_t* choir_model_forward_in(choir_model_t* model, choir_scope_t* scope,
                                    choir_vars_t inputs) {
  choir_status_t status = need_forward(model, "forward");
  if (!status && inputs.count != model->input_count)
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "model %s: forward: %d inputs; it was compiled for %d",
                         model->def->name, inputs.count, model->input_count);
  if (status) return choir_scope_fail(scope, status);
  return model->def->forward(scope, model->self, inputs);
}

choir_status_t choir__model_forward(choir_model_t* model,
                                    choir_kv_cache_t* cache, choir_tensor_t* x,
                                    choir_tensor_t** out_y) {
  const choir_model_batch_t batch = {.inputs = {x}, .sample_count = 1};
  CHOIR_TRY(need_forward(model, "predict"));
  CHOIR_TRY(check_lists(model, &batch));
  choir_status_t status = predict_eagerly(model, &batch, cache, out_y);
  if (!status) return NULL;
  choir_tensor_release(*out_y);
  *out_y = NULL;
  return status;
}

static uint64_t bytes_of(const choir_tensor_t* tensor) {
  return tensor ? (uint64_t)choir_tensor_count(tensor) *
                      choir_dtype_bytes(choir_tensor_dtype(tensor))
                : 0;
}

static choir_status_t sum_states(const choir_model_t* model, uint64_t* out) {
  choir_allocator_t allocator = choir_device_allocator(model->device);
  const size_t count = choir_model_states(model, NULL);
  const size_t bytes = (count + 1) * sizeof(choir_named_tensor_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "list of states", &memory));
  choir_named_tensor_t* states = memory;
  choir_model_states(model, states);
  for (size_t i = model->params->count; i < count; ++i)
    *out += bytes_of(states[i].tensor);
  choir_deallocate(allocator, memory, bytes);
  return NULL;
}

choir_status_t choir_model_plan_memory(choir_model_t* model, bool is_training,
                                       const choir_model_batch_t* batch,
                                       choir_model_memory_t* out_memory) {
  memset(out_memory, 0, sizeof(*out_memory));
  CHOIR_TRY(require_compiled(model, "plan_memory"));
  CHOIR_TRY(is_training ? choir__model_need_updater(model, "training")
                        : need_forward(model, "evaluate"));
  CHOIR_TRY(check_batch(model, batch));
  const choir_metrics_t metrics = model->metrics;
  model->memory = out_memory;
  choir_status_t status = is_training ? train_eagerly(model, batch)
                                      : evaluate_eagerly(model, batch);
  model->memory = NULL;
  model->metrics = metrics;
  CHOIR_TRY_NOTE(status, "model %s: plan_memory", model->def->name);
  for (size_t i = 0; i < model->params->count; ++i) {
    out_memory->parameters += bytes_of(model->params->params[i]->value);
    out_memory->gradients += bytes_of(model->params->params[i]->grad);
  }
  return sum_states(model, &out_memory->states);
}

choir_status_t choir_model_take_metrics(choir_model_t* model,
                                        choir_metrics_t* out_metrics) {
  *out_metrics = model->metrics;
  CHOIR_TRY(choir_tensor_read(model->loss_sum, &out_metrics->loss_sum,
                              sizeof(double)));
  CHOIR_TRY(choir_tensor_read(model->correct, &out_metrics->correct,
                              sizeof(int64_t)));
  CHOIR_TRY(choir_tensor_read(model->evaluation_loss,
                              &out_metrics->evaluation_loss_sum,
                              sizeof(double)));
  memset(&model->metrics, 0, sizeof(model->metrics));
  return clear_counters(model);
}

int64_t choir_model_step(const choir_model_t* model) { return model->step; }
void choir_model_set_step(choir_model_t* model, int64_t step) {
  model->step = step;
  if (model->updater) model->updater->was_set = true;
  begin_passes(model);
}
choir_device_t* choir_model_device(const choir_model_t* model) {
  return model->device;
}
choir_param_set_t* choir_model_params(const choir_model_t* model) {
  return model->params;
}

static size_t model_tensors(const choir_model_t* model,
                            choir_named_tensor_t* out_tensors) {
  const choir_param_set_t* set = model->params;
  for (size_t i = 0; out_tensors && i < set->count; ++i)
    out_tensors[i] = (choir_named_tensor_t){.name = set->params[i]->name,
                                            .tensor = set->params[i]->value};
  return set->count;
}

size_t choir_model_states(const choir_model_t* model,
                          choir_named_tensor_t* out_states) {
  size_t count = model_tensors(model, out_states);
  if (model->updater)
    count += model->updater->vtable->states(
        model->updater, out_states ? out_states + count : NULL);
  return count;
}

choir_status_t choir_model_digest(choir_model_t* model, uint64_t* out_digest) {
  *out_digest = 0;
  CHOIR_TRY(require_compiled(model, "digest"));
  choir_allocator_t allocator = choir_device_allocator(model->device);
  const size_t bytes = (model->params->count ? model->params->count : 1) *
                       sizeof(choir_named_tensor_t);
  void* tensors = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "digest list", &tensors));
  const size_t count = model_tensors(model, tensors);
  choir_status_t status = choir_tensor_digest(tensors, count, out_digest);
  choir_deallocate(allocator, tensors, bytes);
  return status;
}
