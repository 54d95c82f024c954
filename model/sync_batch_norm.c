// SPDX-License-Identifier: Apache-2.0
// Batch norm over the samples of all ranks: ops of one rank, and an all_gather
// of the updater between them, once in forward and once in backward.
#include "model/sync_batch_norm.h"

#include <math.h>
#include <string.h>

#include "model/layer_def.h"
#include "model/model_internal.h"
#include "model/updater_backend.h"

// What a rank gives in forward: for each channel the count of elements, their
// mean and their biased variance. The count is negative where no backward
// follows, which a rank without samples cannot know otherwise.
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

choir_status_t choir__sync_norms_open(choir_model_t* model) {
  if (model->sync_norm_count == 0) return NULL;
  size_t most = 0;
  for (size_t i = 0; i < model->sync_norm_count; ++i) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    CHOIR_TRY(need_ranks(model, norm->name));
    const size_t bytes =
        MOMENTS * (size_t)choir_tensor_count(norm->running_mean) *
        choir_dtype_bytes(choir_tensor_dtype(norm->running_mean));
    if (bytes > most) most = bytes;
  }
  return model->updater->vtable->open_all_gather(model->updater, most);
}

// ---- Parts of vectors ----

// (parts * c), and that of every rank, (ranks, parts * c).
static choir_var_t* gather(choir_model_t* model, choir_scope_t* scope,
                           choir_var_t* const* parts, int32_t count,
                           const char* name) {
  const choir_concat_attrs_t along = {.axis = 0};
  choir_var_t* own = choir_var_concat(scope, parts, count, &along);
  const choir_step_values_t values = {.step = model->step,
                                      .batch_number = model->batch_number};
  choir_tensor_t* all = NULL;
  if (!choir_scope_is_ok(scope)) return own;
  choir_status_t status = need_ranks(model, name);
  if (!status)
    status = model->updater->vtable->all_gather(
        model->updater, &values, choir_var_tensor(own), name, &all);
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

static choir_var_t* filled(choir_scope_t* scope, choir_var_t* like,
                           double value) {
  const choir_fill_attrs_t attrs = {.value = value};
  return choir_var_fill(scope, like, &attrs);
}

static choir_var_t* scaled(choir_scope_t* scope, choir_var_t* x, double factor,
                           double shift) {
  const choir_scale_attrs_t attrs = {.factor = factor, .shift = shift};
  return choir_var_scale(scope, x, &attrs);
}

static choir_var_t* sum_of_ranks(choir_scope_t* scope, choir_var_t* x) {
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

// The moments of all ranks' samples, [MERGED], from `own` (Chan, Golub and
// LeVeque, 1979): the sum of squares is that within ranks and that of the
// ranks' means around the mean, so that nothing large is subtracted from
// another. *out_signs: the counts as they came.
static void merge(choir_model_t* model, choir_scope_t* scope,
                  const choir_sync_batch_norm_t* norm, choir_var_t* const* own,
                  choir_var_t** out_moments, choir_var_t** out_signs) {
  choir_var_t* all = gather(model, scope, own, MOMENTS, norm->name);
  choir_var_t* signs = part_of(scope, all, COUNT, MOMENTS);
  choir_var_t* counts = choir_var_abs(scope, signs);
  choir_var_t* means = part_of(scope, all, MEAN, MOMENTS);
  choir_var_t* vars = part_of(scope, all, VAR, MOMENTS);
  choir_var_t* count = sum_of_ranks(scope, counts);
  choir_var_t* mean = choir_var_div(
      scope, sum_of_ranks(scope, choir_var_mul(scope, counts, means)), count);
  choir_var_t* distance = choir_var_sub(scope, means, mean);
  choir_var_t* squares = sum_of_ranks(
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

// Those of this rank's samples. The op's y is not used.
static choir_status_t moments_of(choir_scope_t* scope,
                                 choir_tensor_t* const srcs[3],
                                 choir_var_t** out_mean,
                                 choir_var_t** out_var) {
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {NULL};
  CHOIR_TRY(choir_op_run(choir_scope_stream(scope), CHOIR_OP_BATCH_NORM, srcs,
                         3, NULL, false, results));
  *out_mean = choir_scope_input(scope, results[1]);
  *out_var = choir_scope_input(scope, results[2]);
  for (int32_t i = 0; i < 3; ++i) choir_tensor_release(results[i]);
  return NULL;
}

static double elements_of_channel(const choir_tensor_t* x) {
  return (double)choir_tensor_count(x) / (double)choir_tensor_shape(x)[1];
}

static void forward(const choir_sync_batch_norm_t* norm,
                    choir_tensor_t* const srcs[3], bool has_backward,
                    use_t* use) {
  choir_scope_t* scope = use->scope;
  choir_var_t* own[MOMENTS] = {NULL};
  choir_var_t* moments[MERGED] = {NULL};
  choir_var_t* signs = NULL;
  choir_scope_fail(scope, moments_of(scope, srcs, &own[MEAN], &own[VAR]));
  if (!choir_scope_is_ok(scope)) return;
  const double count = elements_of_channel(srcs[0]);
  own[COUNT] = filled(scope, own[MEAN], has_backward ? count : -count);
  merge(use->model, scope, norm, own, moments, &signs);
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
  CHOIR_TRY(need_ranks(model, norm->name));
  forward(norm, srcs, has_backward, out_use);
  return choir_scope_take_failure(scope);
}

// ---- Backward ----

// With n samples on this rank, N on all, and L the mean of the losses L_q of
// ranks q weighted by n_q / N, the gradients that DistOpt weights by n / N are
//   N / n dL/dx = scale / sigma (dy - B / (n M) - xhat S / (n M))
// where B and S are the sums over ranks of n_q dbias and n_q dscale, and M is
// the count of elements. The op of one rank gives it with dbias / m and
// dscale / m in their place, m elements being its own: what differs is a line
// in x for each channel.
static choir_var_t* correction(choir_scope_t* scope, choir_var_t* own,
                               choir_var_t* all, choir_var_t* count,
                               choir_var_t* slope, double samples,
                               double elements) {
  choir_var_t* mean = scaled(scope, own, 1 / elements, 0);
  choir_var_t* over_ranks =
      choir_var_div(scope, scaled(scope, all, 1 / samples, 0), count);
  return choir_var_mul(scope, slope, choir_var_sub(scope, mean, over_ranks));
}

// dx += line[DSCALE] xhat + line[DBIAS]. Not added by the op itself, whose fast
// kernel overwrites.
static choir_status_t add_lines(const use_t* use, choir_var_t* const* line,
                                choir_tensor_t* dx) {
  choir_stream_t* stream = choir_scope_stream(use->scope);
  choir_tensor_t* srcs[] = {use->x, choir_var_tensor(line[DSCALE]),
                            choir_var_tensor(line[DBIAS]), use->mean, use->var};
  const choir_batch_norm_infer_attrs_t attrs = {.epsilon = use->epsilon};
  choir_tensor_t* both[2] = {dx, NULL};
  CHOIR_TRY(choir_op_run(stream, CHOIR_OP_BATCH_NORM_INFER, srcs, 5, &attrs,
                         false, &both[1]));
  choir_status_t status =
      choir_op_run(stream, CHOIR_OP_ADD, both, 2, NULL, false, &dx);
  choir_tensor_release(both[1]);
  return status;
}

static void backward(const use_t* use, choir_tensor_t* const* grads) {
  choir_scope_t* scope = use->scope;
  const double samples = (double)choir_tensor_shape(use->x)[0];
  const double elements = elements_of_channel(use->x);
  choir_var_t* own[] = {choir_scope_input(scope, grads[1]),
                        choir_scope_input(scope, grads[2])};
  choir_var_t* weighted[] = {scaled(scope, own[DSCALE], samples, 0),
                             scaled(scope, own[DBIAS], samples, 0)};
  choir_var_t* all =
      sum_of_ranks(scope, gather(use->model, scope, weighted, SUMS, use->name));
  choir_var_t* count = choir_scope_input(scope, use->count);
  choir_var_t* var = choir_scope_input(scope, use->var);
  choir_var_t* sigma =
      choir_var_sqrt(scope, scaled(scope, var, 1, use->epsilon));
  choir_var_t* slope =
      choir_var_div(scope, choir_scope_input(scope, use->scale), sigma);
  choir_var_t* line[SUMS];
  for (int32_t i = 0; i < SUMS; ++i)
    line[i] = correction(scope, own[i], part_of(scope, all, i, SUMS), count,
                         slope, samples, elements);
  if (choir_scope_is_ok(scope))
    choir_scope_fail(scope, add_lines(use, line, grads[0]));
}

choir_status_t choir_sync_batch_norm_backward(void* self, choir_tensor_t* dy,
                                              choir_tensor_t** out_grads) {
  const use_t* use = self;
  choir_scope_t* scope = use->scope;
  choir_tensor_t* srcs[] = {use->x, use->scale, use->mean, use->var, dy};
  const choir_batch_norm_grad_attrs_t attrs = {.epsilon = use->epsilon};
  choir_tensor_t* grads[CHOIR_OP_MAX_RESULTS] = {NULL};
  CHOIR_TRY(choir_op_run(choir_scope_stream(scope), CHOIR_OP_BATCH_NORM_GRAD,
                         srcs, 5, &attrs, false, grads));
  backward(use, grads);
  memcpy(out_grads, grads, 3 * sizeof(choir_tensor_t*));
  return choir_scope_take_failure(scope);
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

void choir__sync_norms_without_samples(choir_model_t* model,
                                       choir_scope_t* scope) {
  const size_t count = model->sync_norm_count;
  bool* has_backward = choir_scope_alloc(scope, count);
  for (size_t i = 0; i < count && choir_scope_is_ok(scope); ++i) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    choir_var_t* zeros =
        filled(scope, choir_scope_input(scope, norm->running_mean), 0);
    choir_var_t* const own[MOMENTS] = {zeros, zeros, zeros};
    choir_var_t* moments[MERGED];
    choir_var_t* signs = NULL;
    merge(model, scope, norm, own, moments, &signs);
    if (!choir_scope_is_ok(scope)) return;
    choir_scope_fail(scope, choir__sync_norm_update(
                                scope, norm, choir_var_tensor(moments[MEAN]),
                                choir_var_tensor(moments[UNBIASED])));
    has_backward[i] = is_backward_next(scope, signs);
  }
  for (size_t i = count; i-- > 0 && choir_scope_is_ok(scope);) {
    const choir_sync_batch_norm_t* norm = model->sync_norms[i];
    if (!has_backward[i]) continue;
    choir_var_t* zeros =
        filled(scope, choir_scope_input(scope, norm->running_mean), 0);
    choir_var_t* const own[SUMS] = {zeros, zeros};
    gather(model, scope, own, SUMS, norm->name);
  }
}
