// SPDX-License-Identifier: Apache-2.0
// Gradients as sums over micro-shards (docs/reproducible.md). What belongs to a
// sample is computed for all samples at once, and backward likewise. Where a
// source of no sample, such as a parameter, gets a gradient from what has
// samples, the rule runs again for each micro-shard, of its rows alone; and
// where a result of no sample, such as a loss, was computed from samples, it
// runs for each from the start, with that one's share of the gradient. Those
// gradients are kept until the last use was visited, and then added up.
#include <string.h>

#include "autograd/scope_internal.h"

// ---- What has samples ----

choir_status_t choir__micro_shards_begin(choir_scope_t* scope) {
  const choir_step_t* step = &scope->step;
  const int64_t size = step->micro_shard;
  scope->leaf_count = 0;
  scope->turn = CHOIR__TURN_ALL;
  if (size == 0 || !step->training || step->sample_count == 0) return NULL;
  // Its gradients are scaled by what all samples have.
  if (scope->step_precision == CHOIR_DTYPE_F16)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "scope_begin: micro-shards in precision f16; needs f32 "
                       "or bf16");
  const int64_t end = step->first_sample + step->sample_count;
  if (size < 0 || step->first_sample % size != 0 || end > step->global_count ||
      (end % size != 0 && end < step->global_count))
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "scope_begin: samples %lld to %lld of %lld in micro-shards of %lld; "
        "they need to begin and to end with one",
        (long long)step->first_sample, (long long)end - 1,
        (long long)step->global_count, (long long)size);
  const choir__leaves_t leaves = choir__leaves_of(
      size, step->global_count, step->first_sample, step->sample_count);
  scope->first_leaf = leaves.first;
  scope->leaf_count = leaves.end - leaves.first;
  scope->leaf_total = leaves.all;
  return NULL;
}

// Whether elements of different samples meet, or change places, though the
// shapes would not tell.
static bool mixes(const choir_op_def_t* def, choir_var_t* const* srcs,
                  int32_t src_count, const void* attrs) {
  choir_view_t views[CHOIR_MAX_OPERANDS];
  int64_t rows[CHOIR_MAX_OPERANDS];
  if (!def->mixes_samples) return false;
  for (int32_t i = 0; i < src_count; ++i) {
    views[i] = *choir_tensor_view(srcs[i]->tensor);
    rows[i] = srcs[i]->rows;
  }
  const choir_record_t record = {
      .operands = views, .src_count = src_count, .attrs = attrs};
  return def->mixes_samples(&record, rows);
}

// Of a result that has `now` as shape, and `then` with one sample more.
static int64_t rows_of(const choir_view_t* now, const choir_view_t* then,
                       int64_t samples) {
  if (now->ndim != then->ndim) return CHOIR__MIXED;
  for (int32_t k = 1; k < now->ndim; ++k)
    if (now->shape[k] != then->shape[k]) return CHOIR__MIXED;
  if (now->ndim == 0 || now->shape[0] == then->shape[0]) return 0;
  const int64_t rows = now->shape[0] / samples;
  return now->shape[0] == rows * samples &&
                 then->shape[0] == rows * (samples + 1)
             ? rows
             : CHOIR__MIXED;
}

// Its attributes say a shape.
static int64_t rows_of_shape(const choir_view_t* result, int64_t samples) {
  return result->ndim > 0 && result->shape[0] % samples == 0
             ? result->shape[0] / samples
             : CHOIR__MIXED;
}

static void set_all(choir_var_t* const* dsts, int64_t rows) {
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    if (dsts[i]) dsts[i]->rows = rows;
}

static void note_by_shapes(choir_scope_t* scope, choir_op_t op,
                           choir_var_t* const* srcs, int32_t src_count,
                           const void* attrs, choir_var_t* const* dsts) {
  const int64_t samples = scope->step.sample_count;
  choir_view_t more[CHOIR_MAX_OPERANDS], then[CHOIR_OP_MAX_RESULTS];
  for (int32_t i = 0; i < src_count; ++i) {
    more[i] = *choir_tensor_view(srcs[i]->tensor);
    if (srcs[i]->rows > 0) more[i].shape[0] += srcs[i]->rows;
  }
  choir_status_t status = choir__op_infer(op, more, src_count, attrs, then);
  if (status) {
    choir_status_free(status);
    set_all(dsts, CHOIR__MIXED);
    return;
  }
  for (int32_t i = 0; i < choir_op_result_count(op); ++i) {
    dsts[i]->rows =
        rows_of(choir_tensor_view(dsts[i]->tensor), &then[i], samples);
    dsts[i]->is_partial = dsts[i]->rows == 0;
  }
}

void choir__micro_shards_note(choir_scope_t* scope, choir_op_t op,
                              choir_var_t* const* srcs, int32_t src_count,
                              const void* attrs, choir_var_t* const* dsts) {
  if (scope->leaf_count == 0) return;
  bool has_samples = false, is_mixed = false, is_partial = false;
  for (int32_t i = 0; i < src_count; ++i) {
    has_samples |= srcs[i]->rows != 0;
    is_mixed |= srcs[i]->rows == CHOIR__MIXED;
    is_partial |= srcs[i]->is_partial;
  }
  if (has_samples && is_partial) {
    choir_scope_fail(
        scope, CHOIR_ERROR(UNIMPLEMENTED,
                           "%s: with micro-shards what was computed from all "
                           "of a rank's samples cannot meet samples again",
                           choir_op_name(op)));
    return;
  }
  const choir_op_def_t* def = choir__op_def(op);
  if (!attrs && def->attrs) {
    void* defaults = choir_scope_alloc(scope, def->attrs->bytes);
    if (!defaults) return;
    choir_struct_init(def->attrs, defaults);
    attrs = defaults;
  }
  const choir_view_t* result = choir_tensor_view(dsts[0]->tensor);
  if (!has_samples) {
    for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
      if (dsts[i]) dsts[i]->is_partial = is_partial;
  } else if (is_mixed || mixes(def, srcs, src_count, attrs)) {
    set_all(dsts, CHOIR__MIXED);
  } else if (def->has_shape) {
    set_all(dsts, rows_of_shape(result, scope->step.sample_count));
  } else {
    note_by_shapes(scope, op, srcs, src_count, attrs, dsts);
  }
}

void choir__micro_shards_note_custom(const choir_scope_t* scope,
                                     const choir_custom_op_t* op,
                                     choir_var_t* const* srcs,
                                     int32_t src_count, choir_var_t* dst) {
  if (scope->leaf_count == 0) return;
  for (int32_t i = 0; i < src_count; ++i)
    if (srcs[i]->rows != 0)
      dst->rows = op->knows_micro_shards ? srcs[0]->rows : CHOIR__MIXED;
}

// ---- Turns ----

bool choir__turn_wants(const choir_scope_t* scope, const choir_var_t* var) {
  switch (scope->turn) {
    case CHOIR__TURN_SAMPLES:
      return var->rows != 0;
    case CHOIR__TURN_NODE:
      return var->rows == 0 && var->has_nodes == (scope->node > 0);
    case CHOIR__TURN_REST:
      return var->rows == 0 && !var->has_nodes;
    default:
      return true;
  }
}

// Samples of the micro-shard at hand.
static int64_t samples_of(const choir_scope_t* scope, int64_t leaf) {
  const int64_t size = scope->step.micro_shard;
  const int64_t left = scope->step.sample_count - leaf * size;
  return left < size ? left : size;
}

static double share_of(const choir_scope_t* scope, int64_t leaf) {
  return (double)samples_of(scope, leaf) / (double)scope->step.global_count;
}

static void take_leaf(choir_scope_t* scope, int64_t leaf) {
  scope->leaf = leaf;
  scope->part_first = leaf * scope->step.micro_shard;
  scope->part_count = samples_of(scope, leaf);
}

static choir_status_t slice(const choir_scope_t* scope, const choir_var_t* var,
                            const choir_tensor_t* tensor,
                            choir_tensor_t** out_part) {
  choir_view_t view = *choir_tensor_view(tensor);
  const int64_t first = scope->part_first * var->rows;
  if (choir_view_count(&view) > 0) view.offset += first * view.strides[0];
  view.shape[0] = scope->part_count * var->rows;
  return choir_tensor_from_view(&view, out_part);
}

choir_status_t choir__turn_part(choir_scope_t* scope, const choir_var_t* var,
                                choir_tensor_t* tensor,
                                choir_tensor_t** out_part) {
  *out_part = tensor;
  if (scope->turn <= CHOIR__TURN_SAMPLES || var->rows == 0 || !tensor)
    return NULL;
  CHOIR_TRY(slice(scope, var, tensor, out_part));
  (void)choir__var_make(scope, *out_part);
  return scope->error ? choir_status_clone(scope->error) : NULL;
}

static choir_status_t make_whole(choir_scope_t* scope, choir_var_t* var,
                                 choir_dtype_t dtype) {
  choir_view_t view = *choir_tensor_view(var->tensor);
  view.dtype = dtype;
  choir_view_set_layout_like(&view, choir_tensor_view(var->tensor));
  CHOIR_TRY(choir_tensor_create_layout(scope->device, &view, &var->grad));
  var->begun_by = scope->visiting;
  var->last_leaf = -1;
  return NULL;
}

choir_status_t choir__turn_place(choir_scope_t* scope, choir_var_t* var,
                                 choir_dtype_t dtype, bool makes,
                                 choir_tensor_t** out_dst,
                                 bool* out_accumulate) {
  if (!var->grad) {
    if (!makes) return NULL;
    CHOIR_TRY(make_whole(scope, var, dtype));
  } else if (var->grad_is_shared) {
    choir_tensor_t* own = NULL;
    CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_COPY, &var->grad, 1, NULL,
                           false, &own));
    choir_tensor_release(var->grad);
    var->grad = own;
    var->grad_is_shared = false;
  }
  *out_accumulate =
      var->begun_by != scope->visiting || var->last_leaf >= scope->leaf;
  return slice(scope, var, var->grad, out_dst);
}

// ---- Visits ----

static choir_status_t make_leaves(choir_scope_t* scope, choir_var_t* var) {
  if (var->unrounded) var = var->unrounded;
  if (var->rows != 0 || !var->wants_grad || var->leaves) return NULL;
  var->leaves = choir_scope_alloc(
      scope, sizeof(choir__leaf_t) * (size_t)scope->leaf_count);
  return var->leaves ? NULL : choir_status_clone(scope->error);
}

static choir_status_t scale(choir_scope_t* scope, choir_tensor_t* tensor,
                            int64_t leaf, choir_tensor_t** out_scaled) {
  const choir_scale_attrs_t attrs = {.factor = share_of(scope, leaf)};
  *out_scaled = NULL;
  return choir_op_run(scope->stream, CHOIR_OP_SCALE, &tensor, 1, &attrs, false,
                      out_scaled);
}

static choir_status_t add(choir_scope_t* scope, choir_tensor_t* a,
                          choir_tensor_t* b, choir_tensor_t** sum) {
  choir_tensor_t* srcs[] = {a, b};
  return choir_op_run(scope->stream, CHOIR_OP_ADD, srcs, 2, NULL, false, sum);
}

// What came as a whole, of no sample, is of each micro-shard its share.
static choir_status_t share_out(choir_scope_t* scope, choir_var_t* var) {
  if (!var->grad) return NULL;
  CHOIR_TRY(make_leaves(scope, var));
  for (int64_t i = 0; i < scope->leaf_count; ++i) {
    choir__leaf_t* leaf = &var->leaves[i];
    choir_tensor_t *own = NULL, *sum = NULL;
    CHOIR_TRY(scale(scope, var->grad, i, &own));
    if (leaf->grad) {
      choir_status_t status = add(scope, leaf->grad, own, &sum);
      choir_tensor_release(own);
      CHOIR_TRY(status);
      choir_tensor_release(leaf->grad);
      own = sum;
    }
    *leaf = (choir__leaf_t){own, false};
  }
  choir_tensor_release(var->grad);
  var->grad = NULL;
  return NULL;
}

typedef choir_status_t (*run_t)(choir_scope_t* scope,
                                const choir_tape_entry_t* entry,
                                choir_tensor_t* dy);

static choir_status_t run_leaf(choir_scope_t* scope,
                               const choir_tape_entry_t* entry, run_t run) {
  const choir_var_t* result = entry->results[0];
  if (scope->turn == CHOIR__TURN_REST) return run(scope, entry, result->grad);
  if (result->leaves)
    return run(scope, entry, result->leaves[scope->leaf].grad);
  choir_tensor_t* dy = NULL;
  CHOIR_TRY(scale(scope, result->grad, scope->leaf, &dy));
  choir_status_t status = run(scope, entry, dy);
  choir_tensor_release(dy);
  return status;
}

// An entry and what its gradients are those of, too.
typedef struct visit_s {
  const choir_tape_entry_t* entry;
  const choir_tape_entry_t* producer;  // NULL: its own alone
} visit_t;

static visit_t visit_of(choir_scope_t* scope, const choir_tape_entry_t* entry) {
  visit_t visit = {entry, NULL};
  scope->visiting = entry;
  scope->fusion = NULL;
  if (entry->op == CHOIR_OP_COUNT || !entry->results[0]->grad) return visit;
  choir_grad_t grad = choir__grad_of(scope, entry);
  grad.dy = entry->results[0]->grad;
  scope->fusion = choir__grad_fusion(entry->op, &grad, &visit.producer);
  return visit;
}

static choir_status_t run_leaves(choir_scope_t* scope, choir__turn_t turn,
                                 const visit_t* visit, run_t run) {
  const choir_tape_entry_t* entry = visit->entry;
  for (int32_t i = 0; i < entry->src_count; ++i)
    CHOIR_TRY(make_leaves(scope, entry->srcs[i]));
  for (int32_t i = 0; visit->producer && i < visit->producer->src_count; ++i)
    CHOIR_TRY(make_leaves(scope, visit->producer->srcs[i]));
  scope->turn = turn;
  choir_status_t status = NULL;
  for (int64_t i = 0; !status && i < scope->leaf_count; ++i) {
    take_leaf(scope, i);
    status = run_leaf(scope, entry, run);
  }
  scope->turn = CHOIR__TURN_ALL;
  return status;
}

choir_status_t choir__micro_shards_pass(choir_grad_t* grad, int32_t src,
                                        choir_tensor_t* gradient) {
  choir_scope_t* scope = grad->scope;
  choir_var_t* var = grad->src_vars[src];
  const choir_view_t* all = choir_tensor_view(gradient);
  if (!var->wants_grad) return NULL;
  CHOIR_TRY(make_leaves(scope, var));
  choir_view_t one = *all;
  one.ndim--;
  memmove(one.shape, all->shape + 1, sizeof(one.shape) - sizeof(one.shape[0]));
  memmove(one.strides, all->strides + 1,
          sizeof(one.strides) - sizeof(one.strides[0]));
  scope->turn = CHOIR__TURN_REST;
  choir_status_t status = NULL;
  for (int64_t i = 0; !status && i < scope->leaf_count; ++i) {
    choir_tensor_t* part = NULL;
    take_leaf(scope, i);
    one.offset = all->offset + i * all->strides[0];
    status = choir_tensor_from_view(&one, &part);
    if (!status) status = choir_grad_pass(grad, src, part);
    choir_tensor_release(part);
  }
  scope->turn = CHOIR__TURN_ALL;
  return status;
}

// ---- Nodes ----

// Whether nodes of the parameter's sum are rounded; NULL: an input's are not.
static bool is_rounded(const choir_scope_t* scope, const choir_param_t* param) {
  return param && scope->backward && scope->backward->round_node;
}

// What a gradient is made of: this rank's nodes, or those of them that are
// rounded first.
static choir__sum_tree_t nodes_of(const choir_scope_t* scope, bool is_rounded) {
  return choir__sum_tree_of(
      scope->leaf_total, scope->first_leaf,
      scope->first_leaf + scope->leaf_count,
      is_rounded ? choir__half_level(scope->leaf_total) + 1 : 0);
}

static bool can_have_nodes(const choir_scope_t* scope, const choir_var_t* var) {
  return var->param && var->uses == 1 &&
         (is_rounded(scope, var->param) ||
          scope->node_count <= 1 + var->param->grad_part_count);
}

// Where the node at hand of its gradient goes; one reference; NULL: anywhere.
static choir_status_t node_place(const choir_scope_t* scope,
                                 const choir_param_t* param,
                                 choir_tensor_t** out_place) {
  if (is_rounded(scope, param)) {
    choir_view_t view = *choir_tensor_view(param->value);
    choir_view_set_layout_like(&view, choir_tensor_view(param->value));
    return choir_tensor_create_layout(scope->device, &view, out_place);
  }
  *out_place =
      scope->node == 0 ? param->grad : param->grad_parts[scope->node - 1];
  if (*out_place) choir_tensor_retain(*out_place);
  return NULL;
}

// Takes over the reference.
static choir_status_t keep_node(choir_scope_t* scope, choir_var_t* var,
                                choir_tensor_t* node) {
  var->has_nodes = true;
  if (is_rounded(scope, var->param)) {
    choir_status_t status = make_leaves(scope, var);
    if (!status) {
      var->leaves[scope->node].grad = node;
      return NULL;
    }
    choir_tensor_release(node);
    return status;
  }
  if (scope->node == 0)
    var->grad = node;
  else
    choir_tensor_release(node);
  return NULL;
}

static int64_t segment_of(const choir_scope_t* scope,
                          choir_tensor_t* const* srcs, uint32_t rows) {
  const int first = __builtin_ctz(rows);
  return choir_tensor_shape(srcs[first])[0] / scope->part_count *
         scope->step.micro_shard;
}

choir_status_t choir__turn_node(choir_grad_t* grad, const int32_t* sources,
                                int32_t count, choir_op_t op,
                                choir_tensor_t* const* srcs, int32_t src_count,
                                uint32_t rows, const void* attrs) {
  choir_scope_t* scope = grad->scope;
  choir_var_t* vars[CHOIR_OP_MAX_RESULTS] = {NULL};  // NULL: is not wanted
  bool is_wanted = false;
  for (int32_t i = 0; i < count; ++i) {
    if (sources[i] < 0 || !choir_grad_wants(grad, sources[i])) continue;
    vars[i] = grad->src_vars[sources[i]];
    if (!can_have_nodes(scope, vars[i])) return NULL;
    is_wanted = true;
  }
  if (!is_wanted) return NULL;
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < count; ++i)
    if (vars[i]) status = node_place(scope, vars[i]->param, &dsts[i]);
  if (!status)
    status = choir__op_run_segments(scope->stream, op, srcs, src_count, rows,
                                    attrs, segment_of(scope, srcs, rows), dsts);
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (!status && vars[i])
      status = keep_node(scope, vars[i], dsts[i]);
    else
      choir_tensor_release(dsts[i]);
  }
  return status;
}

static bool has_nodes(const choir_tape_entry_t* entry) {
  bool has = false;
  for (int32_t i = 0; i < entry->src_count; ++i)
    has |= entry->srcs[i]->has_nodes;
  return has;
}

static choir_status_t run_nodes(choir_scope_t* scope, const visit_t* visit,
                                run_t run) {
  const choir__sum_tree_t tree =
      nodes_of(scope, scope->backward && scope->backward->round_node);
  const int64_t size = scope->step.micro_shard;
  choir_status_t status = NULL;
  scope->turn = CHOIR__TURN_NODE;
  scope->node_count = tree.count;
  for (scope->node = 0; !status && scope->node < tree.count; ++scope->node) {
    const choir__node_t node = tree.nodes[scope->node];
    const int64_t end =
        ((node.index + 1) << node.level) * size - scope->step.first_sample;
    scope->part_first =
        (node.index << node.level) * size - scope->step.first_sample;
    scope->part_count =
        (end < scope->step.sample_count ? end : scope->step.sample_count) -
        scope->part_first;
    status = run(scope, visit->entry, visit->entry->results[0]->grad);
    if (!has_nodes(visit->entry) &&
        !(visit->producer && has_nodes(visit->producer)))
      break;
  }
  scope->turn = CHOIR__TURN_ALL;
  return status;
}

static bool wants_gradient_of(const choir_tape_entry_t* entry, bool samples) {
  for (int32_t i = 0; i < entry->src_count; ++i) {
    const choir_var_t* var = entry->srcs[i];
    if (var->wants_grad && !var->has_nodes && (var->rows != 0) == samples)
      return true;
  }
  return false;
}
static bool wants(const visit_t* visit, bool samples) {
  return wants_gradient_of(visit->entry, samples) ||
         (visit->producer && wants_gradient_of(visit->producer, samples));
}

static choir_status_t refuse(const choir_tape_entry_t* entry) {
  return CHOIR_ERROR(
      UNIMPLEMENTED,
      "with micro-shards the first dimension of all that is computed from "
      "samples must be that of samples, "
      "and each sample's rows must follow from "
      "it alone; %s",
      entry->op == CHOIR_OP_COUNT
          ? "of a custom op it is not known"
          : "of a source or a result here that does not hold");
}

choir_status_t choir__micro_shards_check_loss(const choir_scope_t* scope,
                                              const choir_var_t* loss) {
  return scope->leaf_count > 0 && loss->rows != 0 && loss->entry
             ? refuse(loss->entry)
             : NULL;
}

choir_status_t choir__micro_shards_visit(choir_scope_t* scope,
                                         const choir_tape_entry_t* entry,
                                         run_t run) {
  choir_var_t* result = entry->results[0];
  const visit_t visit = visit_of(scope, entry);
  bool has_samples = false;
  const bool is_custom = entry->op == CHOIR_OP_COUNT;
  bool is_mixed = is_custom && !entry->custom.knows_micro_shards;
  for (int32_t i = 0; i < entry->src_count; ++i) {
    const choir_var_t* var = entry->srcs[i];
    has_samples |= var->rows != 0;
    is_mixed |= var->rows == CHOIR__MIXED;
  }
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    is_mixed |= entry->results[i] && entry->results[i]->rows == CHOIR__MIXED;
  // Its random numbers are those of all of the rank's samples.
  is_mixed |= !is_custom && choir__op_def(entry->op)->at_step;
  if (!has_samples) {
    if (!result->leaves) return run(scope, entry, result->grad);
    CHOIR_TRY(share_out(scope, result));
    return run_leaves(scope, CHOIR__TURN_LEAF, &visit, run);
  }
  const bool is_sum = result->rows == 0, wants_rest = wants(&visit, false);
  if (is_mixed && (is_sum || wants_rest)) return refuse(entry);
  if (is_custom && !is_mixed) return run(scope, entry, result->grad);
  if (is_sum) return run_leaves(scope, CHOIR__TURN_LEAF, &visit, run);
  if (wants(&visit, true)) {
    scope->turn = CHOIR__TURN_SAMPLES;
    choir_status_t status = run(scope, entry, result->grad);
    scope->turn = CHOIR__TURN_ALL;
    CHOIR_TRY(status);
  }
  if (wants_rest) CHOIR_TRY(run_nodes(scope, &visit, run));
  return wants(&visit, false) ? run_leaves(scope, CHOIR__TURN_REST, &visit, run)
                              : NULL;
}

// ---- Sums ----

// Neighbours in a row, one reference each. What becomes part i of the gradient
// is written to its place as soon as it is a sum.
typedef struct row_s {
  choir_tensor_t* at[CHOIR__SUM_TREE_NODES + 1];
  choir_tensor_t* places[CHOIR__SUM_TREE_NODES + 1];  // lent; NULL: none
  int32_t count;
} row_t;

static choir_status_t find_places(const choir_scope_t* scope,
                                  const choir_var_t* var, row_t* row) {
  const choir_param_t* param = var->param;
  const int32_t parts = nodes_of(scope, false).count;
  const int32_t most = 1 + (param ? param->grad_part_count : 0);
  if (parts > most)
    return CHOIR_ERROR(
        FAILED_PRECONDITION,
        "the gradient of %s has %d parts, of micro-shards %lld to %lld of "
        "%lld, and %d %s; who updates has to add up those of all ranks",
        param ? param->name : "an input", parts, (long long)scope->first_leaf,
        (long long)(scope->first_leaf + scope->leaf_count - 1),
        (long long)scope->leaf_total, most, most == 1 ? "place" : "places");
  if (!param) return NULL;
  row->places[0] = param->grad;
  for (int32_t i = 1; i < parts; ++i) row->places[i] = param->grad_parts[i - 1];
  return NULL;
}

static choir_status_t add_last(choir_scope_t* scope, row_t* row) {
  const int32_t left = row->count - 2;
  choir_tensor_t* sum = row->places[left];
  if (sum) choir_tensor_retain(sum);
  choir_tensor_t* const given = sum;
  choir_status_t status = add(scope, row->at[left], row->at[left + 1], &sum);
  if (status) {
    choir_tensor_release(given);
    return status;
  }
  choir_tensor_release(row->at[--row->count]);
  choir_tensor_release(row->at[left]);
  row->at[left] = sum;
  return NULL;
}

static choir_status_t round_last(choir_scope_t* scope, choir_param_t* param,
                                 const row_t* row) {
  return scope->backward->round_node(scope->backward->self, param,
                                     row->at[row->count - 1]);
}

// Appends what may be somebody else's tensor: a copy, where it is rounded.
static choir_status_t append(choir_scope_t* scope, const choir__leaf_t* leaf,
                             bool is_rounded, row_t* row) {
  choir_tensor_t* own = leaf->grad;
  if (is_rounded && leaf->is_shared) {
    own = NULL;
    CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_COPY, &leaf->grad, 1, NULL,
                           false, &own));
  } else {
    choir_tensor_retain(own);
  }
  row->at[row->count++] = own;
  return NULL;
}

// Micro-shards, or nodes of them.
static choir_status_t add_leaves(choir_scope_t* scope, choir_var_t* var,
                                 row_t* row) {
  const bool rounds = is_rounded(scope, var->param);
  const choir__sum_tree_t nodes = nodes_of(scope, rounds);
  const int64_t count = var->has_nodes ? nodes.count : scope->leaf_count;
  choir__sum_tree_t tree = {.leaves = scope->leaf_total};
  for (int64_t i = 0; i < count; ++i) {
    choir__leaf_t* leaf = &var->leaves[i];
    if (!leaf->grad)
      return CHOIR_ERROR(INTERNAL, "micro-shard %lld gave no gradient",
                         (long long)i);
    const choir__node_t node = var->has_nodes
                                   ? nodes.nodes[i]
                                   : (choir__node_t){0, scope->first_leaf + i};
    const choir__sum_term_t term = choir__sum_tree_term(&tree, node, NULL);
    const int32_t exact = rounds ? term.exact : term.sums + 1;
    CHOIR_TRY(append(scope, leaf, exact == 0, row));
    choir_tensor_release(leaf->grad);
    leaf->grad = NULL;
    if (exact == 0) CHOIR_TRY(round_last(scope, var->param, row));
    for (int32_t n = 1; n <= term.sums; ++n) {
      CHOIR_TRY(add_last(scope, row));
      if (n >= exact) CHOIR_TRY(round_last(scope, var->param, row));
    }
  }
  for (int32_t i = 0; i < row->count; ++i) {
    choir_tensor_t* place = row->places[i];
    if (!place || place == row->at[i]) continue;
    CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_COPY, &row->at[i], 1, NULL,
                           false, &place));
    choir_tensor_retain(place);
    choir_tensor_release(row->at[i]);
    row->at[i] = place;
  }
  return NULL;
}

static bool has_leaf(const choir_scope_t* scope, const choir_var_t* var) {
  for (int64_t i = 0; var->leaves && i < scope->leaf_count; ++i)
    if (var->leaves[i].grad) return true;
  return false;
}

choir_status_t choir__micro_shards_sum(choir_scope_t* scope, choir_var_t* var) {
  if (scope->leaf_count == 0 || (!var->grad && !has_leaf(scope, var)) ||
      (var->has_nodes && !is_rounded(scope, var->param)))
    return NULL;
  row_t row = {.count = 0};
  CHOIR_TRY(find_places(scope, var, &row));
  CHOIR_TRY(share_out(scope, var));
  choir_status_t status = add_leaves(scope, var, &row);
  if (!status) {
    var->grad = row.at[0];
    row.at[0] = NULL;
  }
  for (int32_t i = 0; i < row.count; ++i) choir_tensor_release(row.at[i]);
  return status;
}

void choir__micro_shards_drop(choir_scope_t* scope, choir_var_t* var) {
  for (int64_t i = 0; var->leaves && i < scope->leaf_count; ++i)
    choir_tensor_release(var->leaves[i].grad);
  var->leaves = NULL;
}

// ---- Losses ----

// What the variable, of no sample, is by the micro-shard at hand alone; into
// `dst`, if that is not NULL and it was computed from samples.
static choir_status_t run_part(const choir_scope_t* scope,
                               const choir_var_t* var, choir_tensor_t* dst,
                               choir_tensor_t** out_part) {
  const choir_tape_entry_t* entry = var->entry;
  *out_part = NULL;
  if (var->rows == 0 && !var->is_partial) {
    choir_tensor_retain(*out_part = var->tensor);
    return NULL;
  }
  if (var->rows > 0) return slice(scope, var, var->tensor, out_part);
  if (!entry || entry->op == CHOIR_OP_COUNT || var->rows == CHOIR__MIXED)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "with micro-shards a loss needs to be computed from "
                       "samples by ops whose rows are those of samples");
  choir_tensor_t* srcs[CHOIR_MAX_OPERANDS] = {NULL};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {dst};
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < entry->src_count; ++i)
    status = run_part(scope, entry->srcs[i], NULL, &srcs[i]);
  if (!status)
    status = choir_op_run(scope->stream, entry->op, srcs, entry->src_count,
                          entry->attrs, false, dsts);
  for (int32_t i = 0; i < entry->src_count; ++i) choir_tensor_release(srcs[i]);
  for (int32_t i = status ? 0 : 1; i < CHOIR_OP_MAX_RESULTS; ++i)
    if (dsts[i] != dst) choir_tensor_release(dsts[i]);
  *out_part = status ? NULL : dsts[0];
  if (!status && dst) choir_tensor_retain(dst);
  return status;
}

// Elements [first, first + count) of a vector.
static choir_status_t elements(const choir_tensor_t* vector, int64_t first,
                               int64_t count, choir_tensor_t** out_some) {
  choir_view_t view = *choir_tensor_view(vector);
  view.offset += first;
  view.shape[0] = count;
  return choir_tensor_from_view(&view, out_some);
}

// Of each micro-shard, to a vector; without them the loss itself.
static choir_status_t run_parts(choir_scope_t* scope, const choir_var_t* loss,
                                choir_tensor_t* parts) {
  choir_status_t status = NULL;
  for (int64_t i = 0; !status && i < choir_tensor_count(parts); ++i) {
    choir_tensor_t *place = NULL, *part = loss->tensor;
    choir_view_t view = *choir_tensor_view(loss->tensor);
    view.buffer = choir_tensor_view(parts)->buffer;
    view.offset = choir_tensor_view(parts)->offset + i;
    CHOIR_TRY(choir_tensor_from_view(&view, &place));
    if (scope->leaf_count > 0) {
      take_leaf(scope, i);
      status = run_part(scope, loss, place, &part);
    } else {
      choir_tensor_retain(part);
    }
    if (!status && part != place)
      status = choir_op_run(scope->stream, CHOIR_OP_COPY, &part, 1, NULL, false,
                            &place);
    choir_tensor_release(part);
    choir_tensor_release(place);
  }
  return status;
}

// values[first ..] *= factor.
static choir_status_t scale_some(const choir_scope_t* scope,
                                 const choir_tensor_t* values, int64_t first,
                                 int64_t count, double factor) {
  choir_tensor_t* some = NULL;
  const choir_scale_attrs_t attrs = {.factor = factor};
  if (count == 0) return NULL;
  CHOIR_TRY(elements(values, first, count, &some));
  choir_tensor_t* dst = some;
  choir_status_t status = choir_op_run(scope->stream, CHOIR_OP_SCALE, &some, 1,
                                       &attrs, false, &dst);
  choir_tensor_release(some);
  return status;
}

// Parts become multiples of 2^-30, and are added up.
static choir_status_t add_parts(const choir_scope_t* scope,
                                choir_tensor_t* parts, choir_tensor_t* values,
                                choir_tensor_t* sum) {
  const choir_cast_attrs_t to_f64 = {.dtype = CHOIR_DTYPE_F64};
  const choir_reduce_attrs_t all = {.axis = -1, .keep_dims = true};
  const double unit = 1.0 / (1 << 30);
  const int64_t last = choir_tensor_count(parts) - 1;
  const bool has_shares = scope->leaf_count > 0;
  choir_tensor_t* dst = values;
  CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_CAST, &parts, 1, &to_f64,
                         false, &dst));
  // The last may be shorter.
  CHOIR_TRY(scale_some(scope, values, 0, last,
                       (has_shares ? share_of(scope, 0) : 1) / unit));
  CHOIR_TRY(scale_some(scope, values, last, 1,
                       (has_shares ? share_of(scope, last) : 1) / unit));
  CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_ROUND_EVEN, &values, 1, NULL,
                         false, &dst));
  CHOIR_TRY(scale_some(scope, values, 0, last + 1, unit));
  return choir_op_run(scope->stream, CHOIR_OP_SUM, &values, 1, &all, true,
                      &sum);
}

choir_status_t choir_scope_add_losses(choir_scope_t* scope,
                                      const choir_var_t* loss,
                                      choir_tensor_t* sum) {
  const int64_t count = scope->leaf_count > 0 ? scope->leaf_count : 1;
  choir_tensor_t *parts = NULL, *values = NULL;
  if (!choir_scope_is_ok(scope)) return NULL;
  choir_status_t status = choir_tensor_create(
      scope->device, choir_tensor_dtype(loss->tensor), 1, &count, &parts);
  if (!status)
    status =
        choir_tensor_create(scope->device, CHOIR_DTYPE_F64, 1, &count, &values);
  if (!status) status = run_parts(scope, loss, parts);
  if (!status) status = add_parts(scope, parts, values, sum);
  choir_tensor_release(parts);
  choir_tensor_release(values);
  return status;
}
