// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: which kind a step is of, recording, planning, replaying.
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/trace_backend.h"
#include "model/model_internal.h"
#include "model/updater_backend.h"
#include "tensor/fusion_def.h"

// ---- Kinds of steps ----

static choir_view_t place_of(const choir_view_t* view, bool keep_offset) {
  choir_view_t place;
  memset(&place, 0, sizeof(place));
  place.dtype = view->dtype;
  place.ndim = view->ndim;
  const size_t bytes = (size_t)view->ndim * sizeof(int64_t);
  memcpy(place.shape, view->shape, bytes);
  memcpy(place.strides, view->strides, bytes);
  if (keep_offset) place.offset = view->offset;
  return place;
}

static uint64_t hash_trainable(const choir_model_t* model) {
  uint64_t hash = CHOIR_HASH_START;
  for (size_t i = 0; i < model->params->count; ++i)
    hash = choir_hash_bytes(hash, &model->params->params[i]->trainable,
                            sizeof(bool));
  return hash;
}

static const choir_view_t* view_of(const choir_model_batch_t* batch,
                                   int32_t i) {
  const int32_t target = i - CHOIR_MODEL_MAX_TENSORS;
  choir_tensor_t* tensor =
      target < 0 ? batch->inputs[i] : batch->targets[target];
  return tensor ? choir_tensor_view(tensor) : NULL;
}

static void describe_tensors(const choir_model_batch_t* batch,
                             choir__graph_key_t* key) {
  for (int32_t i = 0; i < CHOIR__BATCH_TENSORS; ++i) {
    const choir_view_t* view = view_of(batch, i);
    if (!view) continue;
    int32_t owner = 0;
    while (owner < i && (!view_of(batch, owner) ||
                         view_of(batch, owner)->buffer != view->buffer))
      ++owner;
    key->owners[i] = owner + 1;
    key->tensors[i] = place_of(view, owner < i);
    if (owner < i) key->tensors[owner].offset = view_of(batch, owner)->offset;
  }
}

static choir__graph_key_t make_key(const choir_model_t* model,
                                   choir__step_kind_t kind,
                                   const choir_model_batch_t* batch) {
  choir__graph_key_t key;
  memset(&key, 0, sizeof(key));
  key.kind = (int64_t)kind;
  key.asked = batch->variant;
  describe_tensors(batch, &key);
  if (kind == CHOIR__STEP_TRAIN) {
    if (model->updater && model->updater->vtable->variant)
      key.variant = model->updater->vtable->variant(model->updater);
    key.partial = choir__model_is_partial(model);
    key.micro_shard = batch->micro_shard;
    key.first_sample = batch->micro_shard ? batch->first_sample : 0;
    key.global_count = batch->micro_shard ? batch->global_count : 0;
    key.trainable = hash_trainable(model);
  }
  return key;
}

// The inputs of a step: of the batch's tensors the first one in each buffer.
static int32_t list_inputs(const choir_model_batch_t* batch,
                           const choir__graph_key_t* key,
                           choir_view_t inputs[CHOIR__BATCH_TENSORS]) {
  int32_t count = 0;
  for (int32_t i = 0; i < CHOIR__BATCH_TENSORS; ++i)
    if (key->owners[i] == i + 1) inputs[count++] = *view_of(batch, i);
  return count;
}

static choir_step_values_t step_values(const choir_model_t* model,
                                       const choir_model_batch_t* batch) {
  return (choir_step_values_t){
      .step = model->step,
      .first_sample = batch->first_sample,
      .sample_count = model->pass_samples + batch->sample_count,
      .batch_number = batch->batch_number};
}

// ---- Recording ----

static void drop_graph(choir__model_graph_t* entry) {
  choir_graph_destroy(entry->graph);
  entry->graph = NULL;
}

void choir__model_drop_graphs(choir_model_t* model) {
  for (int32_t i = 0; i < model->graph_count; ++i)
    drop_graph(&model->graphs[i]);
  model->graph_count = 0;
  memset(&model->graph_stats, 0, sizeof(model->graph_stats));
  choir_workspace_trim(model->workspace);
}

void choir_model_set_graph(choir_model_t* model, bool use_graph,
                           bool sequential) {
  choir__model_drop_graphs(model);
  model->use_graph = use_graph;
  model->sequential = sequential;
}

// The graph of a run's first training step is for this step alone: in the
// second one a constant and the number of the step are not the same any more,
// so that an attribute which should have followed the step and does not is
// seen.
static bool is_first(const choir_model_t* model, choir__step_kind_t kind) {
  return kind == CHOIR__STEP_TRAIN && model->step == 0;
}

choir_status_t choir__model_begin_graph(choir_model_t* model,
                                        choir__step_kind_t kind,
                                        const choir_model_batch_t* batch,
                                        choir__model_graph_t* out_recorded) {
  out_recorded->graph = NULL;
  const bool use_graph =
      model->use_graph && !choir__trace_sees_records(model->device);
  if ((!use_graph && !model->memory) || batch->sample_count == 0) return NULL;
  if (!model->workspace)
    CHOIR_TRY(choir_workspace_create(model->device, &model->workspace));
  if (!model->graphs) {
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(choir_device_allocator(model->device),
                             CHOIR__MODEL_GRAPHS_BYTES, "graphs", &memory));
    model->graphs = memory;
  }
  choir_graph_t* graph = NULL;
  CHOIR_TRY(choir_graph_create(model->workspace, &graph));
  if (model->memory) choir_graph_forbid_run(graph);
  choir_stream_t* streams[2] = {choir_device_stream(model->device), NULL};
  int32_t count = 1;
  if (kind == CHOIR__STEP_TRAIN && model->updater->vtable->stream)
    streams[1] = model->updater->vtable->stream(model->updater);
  if (streams[1]) ++count;
  const choir_step_values_t values = step_values(model, batch);
  choir_status_t status = choir_graph_begin(graph, streams, count, &values);
  if (status) {
    choir_graph_destroy(graph);
    return status;
  }
  // The key as replays will look for it: of the model before the step.
  *out_recorded = (choir__model_graph_t){.key = make_key(model, kind, batch),
                                         .graph = graph,
                                         .is_once = is_first(model, kind),
                                         .metrics = model->metrics};
  return NULL;
}

// A place in the cache, of the one that was not used for longest.
static choir__model_graph_t* make_room(choir_model_t* model) {
  if (model->graph_count < CHOIR__MODEL_MAX_GRAPHS)
    return &model->graphs[model->graph_count++];
  choir__model_graph_t* oldest = &model->graphs[0];
  for (int32_t i = 1; i < model->graph_count; ++i)
    if (model->graphs[i].used < oldest->used) oldest = &model->graphs[i];
  drop_graph(oldest);
  return oldest;
}

// A failure of the work itself, which the updater may know more of.
static choir_status_t replay(choir_model_t* model,
                             const choir__model_graph_t* entry,
                             const choir_model_batch_t* batch,
                             const choir_view_t* inputs) {
  const choir_step_values_t values = step_values(model, batch);
  choir_status_t status = choir_graph_replay(entry->graph, &values, inputs);
  const choir_updater_t* updater = model->updater;
  if (status && entry->key.kind == CHOIR__STEP_TRAIN &&
      updater->vtable->replay_failed)
    status = updater->vtable->replay_failed(model->updater, status);
  return status;
}

static void keep_graph(choir_model_t* model,
                       const choir__model_graph_t* recorded) {
  choir__model_graph_t* entry = make_room(model);
  *entry = *recorded;
  entry->used = entry->id = ++model->graph_clock;
  if (entry->key.kind != CHOIR__STEP_TRAIN) return;
  model->last_graph = entry->id;
  model->graph_stats = choir_graph_stats(entry->graph);
}

static choir_status_t plan(const choir_model_t* model,
                           const choir_model_batch_t* batch,
                           choir__model_graph_t* recorded,
                           const choir_tensor_t* y,
                           choir_view_t inputs[CHOIR__BATCH_TENSORS + 1]) {
  choir_graph_options_t options = {
      .inputs = inputs,
      .input_count = list_inputs(batch, &recorded->key, inputs),
      .rewrite = model->sequential ? NULL : choir__graph_fuse,
  };
  if (y) {
    recorded->result = inputs[options.input_count++] = *choir_tensor_view(y);
    recorded->result_bytes = choir_buffer_bytes(recorded->result.buffer);
    options.result_count = 1;
  }
  return choir_graph_plan(recorded->graph, &options);
}

// Plans the step and runs it for the first time.
static choir_status_t plan_and_run(choir_model_t* model,
                                   const choir_model_batch_t* batch,
                                   choir__model_graph_t* recorded,
                                   const choir_tensor_t* y,
                                   choir_status_t* out_why) {
  choir_view_t inputs[CHOIR__BATCH_TENSORS + 1];
  *out_why = plan(model, batch, recorded, y, inputs);
  return *out_why ? choir_graph_run(recorded->graph)
                  : replay(model, recorded, batch, inputs);
}

choir_status_t choir__model_end_graph(choir_model_t* model,
                                      const choir_model_batch_t* batch,
                                      choir__model_graph_t* recorded,
                                      const choir_tensor_t* y,
                                      choir_status_t status) {
  if (!recorded->graph) return status;
  choir_status_t why = choir_graph_end(recorded->graph);
  if (model->memory) {
    choir_view_t inputs[CHOIR__BATCH_TENSORS + 1];
    status = choir_status_join(status, why);
    if (!status) status = plan(model, batch, recorded, y, inputs);
    model->memory->activations = choir_graph_stats(recorded->graph).arena_bytes;
    choir_graph_destroy(recorded->graph);
    return status;
  }
  // A step that fails has run as far as it came, recorded or not.
  if (!why)
    status = status
                 ? choir_status_join(status, choir_graph_run(recorded->graph))
                 : plan_and_run(model, batch, recorded, y, &why);
  if (!status && !why && !recorded->is_once) {
    recorded->metrics = (choir_metrics_t){
        .batches = model->metrics.batches - recorded->metrics.batches,
        .samples = model->metrics.samples - recorded->metrics.samples};
    keep_graph(model, recorded);
    return NULL;
  }
  choir_graph_destroy(recorded->graph);
  if (!recorded->is_once) return choir_status_join(status, why);
  choir_status_free(why);  // the next step says so, if there is one
  return status;
}

// ---- Replaying ----

// A tensor like the recorded prediction, in a buffer of its own.
static choir_status_t make_result(const choir_model_t* model,
                                  const choir__model_graph_t* entry,
                                  choir_tensor_t** out_y) {
  choir_view_t view = entry->result;
  CHOIR_TRY(
      choir_buffer_create(model->device, entry->result_bytes, &view.buffer));
  choir_status_t status = choir_tensor_from_view(&view, out_y);
  choir_buffer_release(view.buffer);  // the tensor keeps it
  return status;
}

choir_status_t choir__model_replay(choir_model_t* model,
                                   choir__step_kind_t kind,
                                   const choir_model_batch_t* batch,
                                   choir_tensor_t** out_y, bool* out_done) {
  *out_done = false;
  if (kind == CHOIR__STEP_TRAIN) model->last_graph = 0;
  if (model->graph_count == 0 || batch->sample_count == 0 ||
      choir__trace_sees_records(model->device))
    return NULL;
  const choir__graph_key_t key = make_key(model, kind, batch);
  choir__model_graph_t* entry = NULL;
  for (int32_t i = 0; i < model->graph_count && !entry; ++i)
    if (memcmp(&model->graphs[i].key, &key, sizeof(key)) == 0)
      entry = &model->graphs[i];
  if (!entry) return NULL;
  entry->used = ++model->graph_clock;
  choir_view_t inputs[CHOIR__BATCH_TENSORS + 1];
  const int32_t count = list_inputs(batch, &key, inputs);
  if (out_y) CHOIR_TRY(make_result(model, entry, out_y));
  if (out_y) inputs[count] = *choir_tensor_view(*out_y);
  choir_status_t status = replay(model, entry, batch, inputs);
  if (status) {
    if (out_y) choir_tensor_release(*out_y);
    if (out_y) *out_y = NULL;
    return status;
  }
  if (kind == CHOIR__STEP_TRAIN) {
    model->last_graph = entry->id;
    model->graph_stats = choir_graph_stats(entry->graph);
  }
  model->metrics.batches += entry->metrics.batches;
  model->metrics.samples += entry->metrics.samples;
  *out_done = true;
  return NULL;
}

// ---- Looking at them ----

uint64_t choir_model_last_graph(const choir_model_t* model) {
  return model->last_graph;
}

choir_graph_stats_t choir_model_graph_stats(const choir_model_t* model) {
  return model->graph_stats;
}

choir_status_t choir_model_print_graphs(const choir_model_t* model,
                                        char** out_text) {
  char* all = calloc(1, 1);
  size_t used = 0;
  for (int32_t i = 0; all && i < model->graph_count; ++i) {
    char* one = NULL;
    choir_status_t status = choir_graph_print(model->graphs[i].graph, &one);
    if (status) {
      free(all);
      return status;
    }
    const size_t bytes = strlen(one);
    char* longer = realloc(all, used + bytes + 1);
    if (longer) memcpy(longer + used, one, bytes + 1);
    if (!longer) free(all);
    all = longer;
    used += bytes;
    free(one);
  }
  *out_text = all;
  if (all) return NULL;
  return CHOIR_ERROR(OUT_OF_MEMORY, "model %s: no memory for a text",
                     model->def->name);
}
