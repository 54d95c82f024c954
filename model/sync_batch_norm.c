// SPDX-License-Identifier: Apache-2.0
// Batch norm over the samples of all ranks: ops of one rank, and an all_gather
// of the updater between them, once in forward and once in backward. What a
// rank gives is of all its samples, or of each of its micro-shards, whose sums
// then have one order for any number of ranks.
#include "model/sync_batch_norm.h"

#include <math.h>
#include <string.h>

#include "core/sum_tree_backend.h"
#include "model/layer_def.h"
#include "model/model_internal.h"
#include "model/updater_backend.h"

// What a row has in forward: for each channel the count of elements, their mean
// and their biased variance. The count is negative where no backward follows,
// which a rank without samples cannot know otherwise.
enum { COUNT, MEAN, VAR, MOMENTS };
// What merging makes of them beside these.
enum { UNBIASED = MOMENTS, MERGED };
// In backward: the gradients of scale and bias, which are the sums that the
// gradient of x needs.
enum { DSCALE, DBIAS, SUMS };

typedef choir_sync_batch_norm_use_t use_t;

choir_status_t choir_model_add_sync_batch_norm(
    choir_model_t* model, const choir_sync_batch_norm_t* norm) {
  const choir_dtype_t dtype = choir_tensor_dtype(norm->running_mean);
  if (model->is_compiled)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%s: sync batch norm after choir_model_compile; needs "
                       "to be before",
                       norm->name);
  if (dtype != CHOIR_DTYPE_F32 && dtype != CHOIR_DTYPE_F64)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: sync batch norm of %s; f32 or f64 is needed",
                       norm->name, choir_dtype_name(dtype));
  choir_allocator_t allocator = choir_device_allocator(model->device);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(*norm), norm->name, &memory));
  memcpy(memory, norm, sizeof(*norm));
  choir_status_t status =
      choir__append(allocator, &model->sync_norms, &model->sync_norm_count,
                    &model->sync_norm_capacity, memory);
  if (status) choir_deallocate(allocator, memory, sizeof(*norm));
  return status;
}

void choir__sync_norms_keep(choir_model_t* model, size_t count) {
  while (model->sync_norm_count > count)
    choir_deallocate(choir_device_allocator(model->device),
                     model->sync_norms[--model->sync_norm_count],
                     sizeof(choir_sync_batch_norm_t));
}

static choir_status_t need_ranks(const choir_model_t* model, const char* name) {
  if (model->updater && model->updater->vtable->all_gather) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "model %s: %s has the setting sync, and %s; needs a "
                     "DistOpt, which may be one of one rank",
                     model->def->name, name,
                     model->updater
                         ? "the model's updater knows of no other ranks"
                         : "the model has no updater");
}

choir_status_t choir__sync_norms_open(choir_model_t* model, int64_t rows) {
  if (model->sync_norm_count == 0 || rows <= model->sync_norm_rows) return NULL;
  size_t most = 0;
  for (size_t i = 0; i < model->sync_norm_count; ++i) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    // One rank without others has all micro-shards.
    if (norm->only_micro_shards && !model->updater->vtable->all_gather)
      continue;
    CHOIR_TRY(need_ranks(model, norm->name));
    const size_t bytes =
        MOMENTS * (size_t)choir_tensor_count(norm->running_mean) *
        choir_dtype_bytes(choir_tensor_dtype(norm->running_mean));
    if (bytes > most) most = bytes;
  }
  model->sync_norm_rows = rows;
  return most > 0 ? model->updater->vtable->open_all_gather(model->updater,
                                                            (size_t)rows * most)
                  : NULL;
}

// ---- Rows ----

// This rank's samples: as one, or by micro-shards.
typedef struct shards_s {
  int64_t size, count;  // samples of one; how many
  int64_t total;        // of all ranks; 0: one of each
} shards_t;

static shards_t shards_of(const choir_scope_t* scope, int64_t samples) {
  const choir_step_t* step = choir_scope_step(scope);
  const int64_t size = step->micro_shard;
  const choir__leaves_t leaves = choir__leaves_of(
      size, step->global_count, step->first_sample, step->sample_count);
  return size == 0 ? (shards_t){samples, 1, 0}
                   : (shards_t){size, leaves.end - leaves.first, leaves.all};
}

// Uncleared, (rows, parts * c), where `like` is (c).
static choir_tensor_t* make_rows(choir_scope_t* scope, choir_tensor_t* like,
                                 int64_t rows, int32_t parts) {
  const int64_t shape[] = {rows, parts * choir_tensor_count(like)};
  choir_tensor_t* made = NULL;
  choir_scope_fail(
      scope, choir_tensor_create(choir_scope_device(scope),
                                 choir_tensor_dtype(like), 2, shape, &made));
  (void)choir_scope_input(scope, made);
  choir_tensor_release(made);
  return made;
}

// Part `part` of `parts` of one row, (c), or of all, (rows, c).
static choir_status_t cell(choir_tensor_t* rows, int64_t row, int32_t part,
                           int32_t parts, choir_tensor_t** out_cell) {
  choir_view_t view = *choir_tensor_view(rows);
  const int64_t columns = view.shape[1] / parts;
  view.offset += (row < 0 ? 0 : row * view.strides[0]) + part * columns;
  if (row < 0) {
    view.shape[1] = columns;
  } else {
    view.ndim = 1;
    view.shape[0] = columns;
    view.strides[0] = 1;
  }
  return choir_tensor_from_view(&view, out_cell);
}

// The rows of all ranks. One rank without others has them all.
static choir_var_t* gather(choir_model_t* model, choir_scope_t* scope,
                           choir_tensor_t* own, const shards_t* shards,
                           const char* name) {
  const choir_step_values_t values = {.step = model->step,
                                      .batch_number = model->batch_number};
  choir_tensor_t* all = NULL;
  if (!choir_scope_is_ok(scope)) return choir_scope_fail(scope, NULL);
  if (shards->total > 0 && shards->total == shards->count &&
      !model->updater->vtable->all_gather)
    return choir_scope_input(scope, own);
  choir_status_t status = need_ranks(model, name);
  if (!status)
    status = model->updater->vtable->all_gather(
        model->updater, &values, own, shards->count, shards->total, name, &all);
  if (status) return choir_scope_fail(scope, status);
  choir_var_t* var = choir_scope_input(scope, all);
  choir_tensor_release(all);
  return var;
}

// Part `index` of `count`, along the last axis.
static choir_var_t* part_of(choir_scope_t* scope, choir_var_t* x, int32_t index,
                            int32_t count) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  const int32_t axis = view->ndim - 1;
  const int64_t part = view->shape[axis] / count;
  const choir_slice_attrs_t attrs = {.axis = axis,
                                     .start = index * part,
                                     .stop = (index + 1) * part,
                                     .step = 1};
  return choir_var_slice(scope, x, &attrs);
}

static choir_var_t* scaled(choir_scope_t* scope, choir_var_t* x, double factor,
                           double shift) {
  const choir_scale_attrs_t attrs = {.factor = factor, .shift = shift};
  return choir_var_scale(scope, x, &attrs);
}

static choir_var_t* sum_of_rows(choir_scope_t* scope, choir_var_t* x) {
  const choir_reduce_attrs_t attrs = {.axis = 0};
  return choir_var_sum(scope, x, &attrs);
}

// ---- Forward ----

choir_status_t choir__update_average(choir_scope_t* scope,
                                     choir_tensor_t* running,
                                     choir_tensor_t* batch, double momentum,
                                     double weight) {
  choir_stream_t* stream = choir_scope_stream(scope);
  const choir_scale_attrs_t keep = {.factor = 1 - momentum, .shift = 0};
  const choir_scale_attrs_t add = {.factor = weight, .shift = 0};
  CHOIR_TRY(choir_op_run(stream, CHOIR_OP_SCALE, &running, 1, &keep, false,
                         &running));
  return choir_op_run(stream, CHOIR_OP_SCALE, &batch, 1, &add, true, &running);
}

choir_status_t choir__sync_norm_update(choir_scope_t* scope,
                                       const choir_sync_batch_norm_t* norm,
                                       choir_tensor_t* mean,
                                       choir_tensor_t* unbiased) {
  CHOIR_TRY(choir__update_average(scope, norm->running_mean, mean,
                                  norm->momentum, norm->momentum));
  return choir__update_average(scope, norm->running_var, unbiased,
                               norm->momentum, norm->momentum);
}

// The moments of all ranks' samples, [MERGED], from `own` rows (Chan, Golub and
// LeVeque, 1979): the sum of squares is that within rows and that of the rows'
// means around the mean, so that nothing large is subtracted from another.
// *out_signs: the counts as they came.
static void merge(choir_model_t* model, choir_scope_t* scope,
                  const choir_sync_batch_norm_t* norm, choir_tensor_t* own,
                  const shards_t* shards, choir_var_t** out_moments,
                  choir_var_t** out_signs) {
  choir_var_t* all = gather(model, scope, own, shards, norm->name);
  choir_var_t* signs = part_of(scope, all, COUNT, MOMENTS);
  choir_var_t* counts = choir_var_abs(scope, signs);
  choir_var_t* means = part_of(scope, all, MEAN, MOMENTS);
  choir_var_t* vars = part_of(scope, all, VAR, MOMENTS);
  choir_var_t* count = sum_of_rows(scope, counts);
  choir_var_t* mean = choir_var_div(
      scope, sum_of_rows(scope, choir_var_mul(scope, counts, means)), count);
  choir_var_t* distance = choir_var_sub(scope, means, mean);
  choir_var_t* squares = sum_of_rows(
      scope, choir_var_mul(scope, counts,
                           choir_var_add(scope, vars,
                                         choir_var_square(scope, distance))));
  const choir_clip_attrs_t from_1 = {.low = 1, .high = INFINITY};
  choir_var_t* unbiased = choir_var_div(
      scope, squares,
      choir_var_clip(scope, scaled(scope, count, 1, -1), &from_1));
  out_moments[COUNT] = count;
  out_moments[MEAN] = mean;
  out_moments[VAR] = choir_var_div(scope, squares, count);
  out_moments[UNBIASED] = unbiased;
  *out_signs = signs;
}

// Elements of a channel; in the last row those of the samples that are left.
static choir_status_t put_counts(choir_stream_t* stream, const shards_t* shards,
                                 const choir_tensor_t* x, double sign,
                                 choir_tensor_t* rows) {
  const int64_t samples = choir_tensor_shape(x)[0];
  const double image = (double)choir_tensor_count(x) / (double)samples /
                       (double)choir_tensor_shape(x)[1];
  const int64_t last = shards->count - 1;
  const int64_t left = samples - last * shards->size;
  for (int i = 0; i < (left < shards->size ? 2 : 1); ++i) {
    const choir_fill_attrs_t count = {
        .value = sign * image * (double)(i == 0 ? shards->size : left)};
    choir_tensor_t* counts = NULL;
    CHOIR_TRY(cell(rows, i == 0 ? -1 : last, COUNT, MOMENTS, &counts));
    choir_status_t status =
        choir_op_run(stream, CHOIR_OP_FILL, &counts, 1, &count, false, &counts);
    choir_tensor_release(counts);
    CHOIR_TRY(status);
  }
  return NULL;
}

// Two parts of all rows from the samples, by an op that has them as results.
static choir_status_t put_parts(choir_scope_t* scope, choir_op_t op,
                                choir_tensor_t* const* srcs, int32_t src_count,
                                const void* attrs, choir_tensor_t* rows,
                                int32_t first, int32_t parts) {
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {NULL};
  choir_status_t status = NULL;
  for (int32_t k = 0; !status && k < 2; ++k)
    status = cell(rows, -1, first + k, parts, &results[k]);
  if (!status)
    status = choir_op_run(choir_scope_stream(scope), op, srcs, src_count, attrs,
                          false, results);
  for (int32_t k = 0; k < 2; ++k) choir_tensor_release(results[k]);
  return status;
}

static choir_status_t put_moments(choir_scope_t* scope, const shards_t* shards,
                                  choir_tensor_t* x, double sign,
                                  choir_tensor_t* rows) {
  const choir_batch_norm_moments_attrs_t attrs = {.part = shards->size};
  CHOIR_TRY(put_counts(choir_scope_stream(scope), shards, x, sign, rows));
  return put_parts(scope, CHOIR_OP_BATCH_NORM_MOMENTS, &x, 1, &attrs, rows,
                   MEAN, MOMENTS);
}

static void forward(const choir_sync_batch_norm_t* norm,
                    choir_tensor_t* const srcs[3], bool has_backward,
                    use_t* use) {
  choir_scope_t* scope = use->scope;
  const shards_t shards = shards_of(scope, choir_tensor_shape(srcs[0])[0]);
  choir_tensor_t* own =
      make_rows(scope, norm->running_mean, shards.count, MOMENTS);
  if (!choir_scope_is_ok(scope)) return;
  choir_scope_fail(
      scope, put_moments(scope, &shards, srcs[0], has_backward ? 1 : -1, own));
  choir_var_t* moments[MERGED] = {NULL};
  choir_var_t* signs = NULL;
  merge(use->model, scope, norm, own, &shards, moments, &signs);
  choir_var_t* all[5] = {NULL, NULL, NULL, moments[MEAN], moments[VAR]};
  for (int32_t i = 0; i < 3; ++i) all[i] = choir_scope_input(scope, srcs[i]);
  const choir_batch_norm_infer_attrs_t attrs = {.epsilon = norm->epsilon};
  use->y = choir_var_tensor(choir_var_batch_norm_infer(scope, all, 5, &attrs));
  use->mean = choir_var_tensor(moments[MEAN]);
  use->var = choir_var_tensor(moments[VAR]);
  use->count = choir_var_tensor(moments[COUNT]);
  use->unbiased = choir_var_tensor(moments[UNBIASED]);
}

choir_status_t choir_sync_batch_norm_forward(
    choir_model_t* model, choir_scope_t* scope,
    const choir_sync_batch_norm_t* norm, choir_tensor_t* const srcs[3],
    bool has_backward, use_t* out_use) {
  *out_use = (use_t){.model = model,
                     .scope = scope,
                     .name = norm->name,
                     .epsilon = norm->epsilon,
                     .x = srcs[0],
                     .scale = srcs[1]};
  const choir_step_t* step = choir_scope_step(scope);
  if (step->micro_shard > 0 &&
      choir_tensor_shape(srcs[0])[0] != step->sample_count)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "%s: %lld rows of %lld samples in micro-shards; needs "
                       "one row a sample",
                       norm->name, (long long)choir_tensor_shape(srcs[0])[0],
                       (long long)step->sample_count);
  if (step->micro_shard == 0) CHOIR_TRY(need_ranks(model, norm->name));
  forward(norm, srcs, has_backward, out_use);
  return choir_scope_take_failure(scope);
}

// ---- Backward ----

// L is the loss over all samples, M a channel's count of elements, B and S the
// sums over all samples of dL/dbias and dL/dscale:
//   dL/dx = scale / sigma (dL/dy - B / M - xhat S / M)
// Without micro-shards dy is N / n dL/dy with n samples on this rank and N on
// all, since DistOpt weights by n / N; its sums are weighted by n before they
// are added up.
static choir_status_t put_sums(const use_t* use, const shards_t* shards,
                               choir_tensor_t* dy, choir_tensor_t* rows) {
  const choir_batch_norm_sums_attrs_t attrs = {.epsilon = use->epsilon,
                                               .part = shards->size};
  choir_tensor_t* srcs[] = {use->x, use->mean, use->var, dy};
  return put_parts(use->scope, CHOIR_OP_BATCH_NORM_SUMS, srcs, 4, &attrs, rows,
                   DSCALE, SUMS);
}

// (c) as what is broadcast over images (n, c, ...).
static choir_var_t* over_pixels(choir_scope_t* scope, choir_var_t* vector,
                                const choir_tensor_t* images) {
  choir_reshape_attrs_t attrs = {.ndim = choir_tensor_ndim(images)};
  for (int32_t k = 0; k < attrs.ndim; ++k)
    attrs.shape[k] = k == 1 ? choir_tensor_shape(images)[1] : 1;
  return choir_var_reshape(scope, vector, &attrs);
}

static choir_var_t* gradient_of_x(const use_t* use, choir_tensor_t* dy,
                                  choir_var_t* sums, double weight) {
  choir_scope_t* scope = use->scope;
  const choir_batch_norm_infer_attrs_t attrs = {.epsilon = use->epsilon};
  choir_var_t* count = choir_scope_input(scope, use->count);
  choir_var_t* var = choir_scope_input(scope, use->var);
  choir_var_t* sigma =
      choir_var_sqrt(scope, scaled(scope, var, 1, use->epsilon));
  choir_var_t* slope =
      choir_var_div(scope, choir_scope_input(scope, use->scale), sigma);
  choir_var_t* line[SUMS];
  for (int32_t i = 0; i < SUMS; ++i) {
    choir_var_t* mean =
        choir_var_div(scope, part_of(scope, sums, i, SUMS), count);
    line[i] = choir_var_mul(scope, slope, scaled(scope, mean, -1 / weight, 0));
  }
  choir_var_t* all[] = {choir_scope_input(scope, use->x), line[DSCALE],
                        line[DBIAS], choir_scope_input(scope, use->mean), var};
  choir_var_t* sloped = choir_var_mul(scope, choir_scope_input(scope, dy),
                                      over_pixels(scope, slope, use->x));
  return choir_var_add(scope, sloped,
                       choir_var_batch_norm_infer(scope, all, 5, &attrs));
}

static void backward(const use_t* use, choir_tensor_t* dy,
                     choir_tensor_t** out_grads) {
  choir_scope_t* scope = use->scope;
  const int64_t samples = choir_tensor_shape(use->x)[0];
  const shards_t shards = shards_of(scope, samples);
  const double weight = shards.total > 0 ? 1 : (double)samples;
  choir_tensor_t* own = make_rows(scope, use->scale, shards.count, SUMS);
  if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, put_sums(use, &shards, dy, own));
  if (!choir_scope_is_ok(scope)) return;
  choir_var_t* weighted = choir_scope_input(scope, own);
  if (weight != 1) weighted = scaled(scope, weighted, weight, 0);
  choir_var_t* sums =
      sum_of_rows(scope, gather(use->model, scope, choir_var_tensor(weighted),
                                &shards, use->name));
  choir_var_t* dx = gradient_of_x(use, dy, sums, weight);
  if (!choir_scope_is_ok(scope)) return;
  choir_tensor_retain(out_grads[0] = choir_var_tensor(dx));
  const int64_t row = shards.total > 0 ? -1 : 0;
  for (int32_t k = 0; k < SUMS; ++k)
    choir_scope_fail(scope, cell(own, row, k, SUMS, &out_grads[1 + k]));
}

choir_status_t choir_sync_batch_norm_backward(void* self, choir_tensor_t* dy,
                                              choir_tensor_t** out_grads) {
  const use_t* use = self;
  backward(use, dy, out_grads);
  return choir_scope_take_failure(use->scope);
}

// ---- A rank without samples ----

static bool is_backward_next(choir_scope_t* scope, choir_var_t* signs) {
  const choir_reduce_attrs_t all = {.axis = -1};
  const choir_cast_attrs_t to_f64 = {.dtype = CHOIR_DTYPE_F64};
  choir_var_t* most =
      choir_var_cast(scope, choir_var_max(scope, signs, &all), &to_f64);
  double value = 0;
  if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, choir_tensor_read(choir_var_tensor(most), &value,
                                              sizeof(value)));
  return value > 0;
}

static choir_tensor_t* no_row(choir_scope_t* scope,
                              const choir_sync_batch_norm_t* norm,
                              int32_t parts) {
  const choir_fill_attrs_t zero = {.value = 0};
  choir_tensor_t* row = make_rows(scope, norm->running_mean, 1, parts);
  if (choir_scope_is_ok(scope))
    choir_scope_fail(
        scope, choir_op_run(choir_scope_stream(scope), CHOIR_OP_FILL, &row, 1,
                            &zero, false, &row));
  return row;
}

void choir__sync_norms_without_samples(choir_model_t* model,
                                       choir_scope_t* scope) {
  const size_t count = model->sync_norm_count;
  const bool is_cut = choir_scope_step(scope)->micro_shard > 0;
  const shards_t none = shards_of(scope, 1);
  bool* has_backward = choir_scope_alloc(scope, count);
  for (size_t i = 0; i < count && choir_scope_is_ok(scope); ++i) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    if (norm->only_micro_shards && !is_cut) continue;
    choir_var_t* moments[MERGED];
    choir_var_t* signs = NULL;
    merge(model, scope, norm, no_row(scope, norm, MOMENTS), &none, moments,
          &signs);
    if (!choir_scope_is_ok(scope)) return;
    choir_scope_fail(scope, choir__sync_norm_update(
                                scope, norm, choir_var_tensor(moments[MEAN]),
                                choir_var_tensor(moments[UNBIASED])));
    has_backward[i] = is_backward_next(scope, signs);
  }
  for (size_t i = count; i-- > 0 && choir_scope_is_ok(scope);) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    if (!has_backward[i]) continue;
    gather(model, scope, no_row(scope, norm, SUMS), &none, norm->name);
  }
}
