// SPDX-License-Identifier: Apache-2.0
// TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier of ai.onnx.ml:
// loops of the host's over the rows of a table.
#include "onnx/operators/onnx_trees_internal.h"

#include <math.h>

enum { NODE_WORDS = sizeof(choir__onnx_tree_node_t) / sizeof(int64_t) };

// ---- Checks ----

// Nodes of which none is its own descendant: as many as can be taken away one
// after the other, each when no node left leads to it.
static bool has_no_cycle(choir__onnx_call_t* c, const choir__onnx_forest_t* f) {
  const size_t bytes = (size_t)(f->node_count + 1) * sizeof(int64_t);
  int64_t* arrows = choir_scope_alloc(c->scope, bytes);
  int64_t* queue = choir_scope_alloc(c->scope, bytes);
  if (!arrows || !queue) return false;
  int64_t count = 0;
  for (int64_t k = 0; k < f->node_count; ++k)
    if (f->nodes[k].mode != CHOIR__ONNX_BRANCH_LEAF) {
      ++arrows[f->nodes[k].yes];
      ++arrows[f->nodes[k].no];
    }
  for (int64_t k = 0; k < f->node_count; ++k)
    if (arrows[k] == 0) queue[count++] = k;
  for (int64_t k = 0; k < count; ++k) {
    const choir__onnx_tree_node_t* node = &f->nodes[queue[k]];
    if (node->mode == CHOIR__ONNX_BRANCH_LEAF) continue;
    if (--arrows[node->yes] == 0) queue[count++] = node->yes;
    if (--arrows[node->no] == 0) queue[count++] = node->no;
  }
  if (count == f->node_count) return true;
  FAIL(INVALID_ARGUMENT, "the nodes of a tree form a cycle");
  return false;
}

static bool check_forest(choir__onnx_call_t* c, const choir__onnx_forest_t* f,
                         int64_t features) {
  for (int64_t k = 0; k < f->node_count; ++k) {
    const choir__onnx_tree_node_t* node = &f->nodes[k];
    if (node->mode != CHOIR__ONNX_BRANCH_LEAF &&
        (node->feature < 0 || node->feature >= features)) {
      FAIL(INVALID_ARGUMENT, "node %lld asks for feature %lld of %lld",
           (long long)k, (long long)node->feature, (long long)features);
      return false;
    }
  }
  for (int64_t k = 0; k < f->weight_count; ++k)
    if (f->targets[k] < 0 || f->targets[k] >= f->target_count) {
      FAIL(INVALID_ARGUMENT, "a leaf has target %lld of %lld",
           (long long)f->targets[k], (long long)f->target_count);
      return false;
    }
  for (int64_t k = 0; k < f->root_count; ++k)
    if (f->roots[k] < 0 || f->roots[k] >= f->node_count) {
      FAIL(INVALID_ARGUMENT, "root %lld of %lld nodes", (long long)f->roots[k],
           (long long)f->node_count);
      return false;
    }
  if (f->base.count > 1 && f->base.count != f->target_count) {
    FAIL(INVALID_ARGUMENT, "%lld base values for %lld targets",
         (long long)f->base.count, (long long)f->target_count);
    return false;
  }
  return has_no_cycle(c, f);
}

// ---- The loop ----

enum { X, NODES, SPLITS, TARGETS, WEIGHTS, MEMBERS, ROOTS, BASE, SOURCES };

typedef struct forest_attrs_s {
  int32_t aggregate;
  int32_t post;
} forest_attrs_t;

static bool is_member(const choir__onnx_array_t* srcs,
                      const choir__onnx_tree_node_t* node, double value) {
  const double* members = srcs[MEMBERS].data;
  for (int64_t i = node->first; i < node->last; ++i)
    if (members[i] == value) return true;
  return false;
}

static bool goes_yes(const choir__onnx_array_t* srcs,
                     const choir__onnx_tree_node_t* node, double split,
                     double value) {
  if (isnan(value) && node->missing) return true;
  switch (node->mode) {
    case CHOIR__ONNX_BRANCH_LEQ:
      return value <= split;
    case CHOIR__ONNX_BRANCH_LT:
      return value < split;
    case CHOIR__ONNX_BRANCH_GTE:
      return value >= split;
    case CHOIR__ONNX_BRANCH_GT:
      return value > split;
    case CHOIR__ONNX_BRANCH_EQ:
      return value == split;
    case CHOIR__ONNX_BRANCH_NEQ:
      return value != split;
    default:
      return is_member(srcs, node, value);
  }
}

static void add_weight(int32_t aggregate, double weight, bool is_first,
                       double* sum) {
  if (aggregate == CHOIR__ONNX_AGGREGATE_MIN)
    *sum = is_first || weight < *sum ? weight : *sum;
  else if (aggregate == CHOIR__ONNX_AGGREGATE_MAX)
    *sum = is_first || weight > *sum ? weight : *sum;
  else
    *sum += weight;
}

// The weights of one tree's leaf for row x go to sums.
static void add_tree(const choir__onnx_array_t* srcs, int32_t aggregate,
                     const double* x, int64_t root, double* sums,
                     double* counts) {
  const choir__onnx_tree_node_t* nodes = srcs[NODES].data;
  const double* splits = srcs[SPLITS].data;
  const int64_t* targets = srcs[TARGETS].data;
  const double* weights = srcs[WEIGHTS].data;
  int64_t at = root;
  while (nodes[at].mode != CHOIR__ONNX_BRANCH_LEAF)
    at = goes_yes(srcs, &nodes[at], splits[at], x[nodes[at].feature])
             ? nodes[at].yes
             : nodes[at].no;
  for (int64_t i = nodes[at].first; i < nodes[at].last; ++i) {
    add_weight(aggregate, weights[i], counts[targets[i]] == 0,
               &sums[targets[i]]);
    ++counts[targets[i]];
  }
}

// dsts: sums, and counts of the weights in them.
static choir_status_t forest_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  const forest_attrs_t* a = attrs;
  const int64_t rows = srcs[X].view.shape[0], features = srcs[X].view.shape[1];
  const int64_t count = dsts[0].view.shape[1], trees = srcs[ROOTS].count;
  const double* base = srcs[BASE].data;
  for (int64_t k = 0; k < dsts[0].count; ++k)
    ((double*)dsts[0].data)[k] = ((double*)dsts[1].data)[k] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double* sums = (double*)dsts[0].data + row * count;
    for (int64_t t = 0; t < trees; ++t)
      add_tree(srcs, a->aggregate, (const double*)srcs[X].data + row * features,
               ((const int64_t*)srcs[ROOTS].data)[t], sums,
               (double*)dsts[1].data + row * count);
    for (int64_t i = 0; i < count; ++i) {
      if (a->aggregate == CHOIR__ONNX_AGGREGATE_AVERAGE && trees > 0)
        sums[i] /= (double)trees;
      if (srcs[BASE].count > 0) sums[i] += base[srcs[BASE].count > 1 ? i : 0];
    }
    choir__onnx_ml_transform(a->post, sums, count);
  }
  return NULL;
}

// Scores (n, targets) in F64; NULL: it failed.
static choir_var_t* run_forest(choir__onnx_call_t* c,
                               const choir__onnx_forest_t* f, int32_t post) {
  choir_var_t* srcs[SOURCES];
  srcs[X] = choir__onnx_ml_rows(c, CHOIR_DTYPE_F64);
  const choir_view_t* x = choir_var_view(srcs[X]);
  if (!x || !check_forest(c, f, x->shape[1])) return NULL;
  srcs[NODES] = choir__onnx_ml_whole(c, (const int64_t*)f->nodes,
                                     f->node_count * NODE_WORDS);
  srcs[SPLITS] = choir__onnx_ml_reals(c, f->splits, f->node_count);
  srcs[TARGETS] = choir__onnx_ml_whole(c, f->targets, f->weight_count);
  srcs[WEIGHTS] = choir__onnx_ml_reals(c, f->weights, f->weight_count);
  srcs[MEMBERS] = choir__onnx_ml_reals(c, f->members.at, f->members.count);
  srcs[ROOTS] = choir__onnx_ml_whole(c, f->roots, f->root_count);
  srcs[BASE] = choir__onnx_ml_reals(c, f->base.at, f->base.count);
  choir_view_t results[2] = {*x, *x};
  results[0].shape[1] = results[1].shape[1] = f->target_count;
  const forest_attrs_t attrs = {.aggregate = f->aggregate, .post = post};
  choir_var_t* outs[2];
  choir__onnx_host(c, "onnx/trees", forest_loop, &attrs, sizeof attrs, srcs,
                   SOURCES, results, 2, outs);
  return CALL_IS_OK ? outs[0] : NULL;
}

static bool take_target_count(choir__onnx_call_t* c, int64_t* out) {
  *out = choir__onnx_int(c, "n_targets", 1);
  if (*out >= 1 && *out <= INT32_MAX) return true;
  FAIL(INVALID_ARGUMENT, "n_targets is %lld", (long long)*out);
  return false;
}

void choir__onnx_op_tree_ensemble(choir__onnx_call_t* c) {
  choir__onnx_forest_t f;
  const choir_view_t* x = VIEW(0);
  const int64_t post = choir__onnx_int(c, "post_transform", 0);
  if (!x || !choir__onnx_forest_of_tensors(c, &f) ||
      !take_target_count(c, &f.target_count))
    return;
  if (post < 0 || post > CHOIR__ONNX_POST_PROBIT) {
    FAIL(INVALID_ARGUMENT, "post_transform is %lld", (long long)post);
    return;
  }
  choir_var_t* y = run_forest(c, &f, (int32_t)post);
  if (y) OUT(0, choir__onnx_cast(c, y, x->dtype));
}

void choir__onnx_op_tree_ensemble_regressor(choir__onnx_call_t* c) {
  choir__onnx_forest_t f;
  int32_t post;
  if (!choir__onnx_ml_post(c, &post) ||
      !choir__onnx_forest_of_lists(c, "target", &f) ||
      !take_target_count(c, &f.target_count))
    return;
  choir_var_t* y = run_forest(c, &f, post);
  if (y) OUT_AS(0, choir__onnx_cast(c, y, CHOIR_DTYPE_F32), FLOAT);
}

// ---- The classifier ----

typedef struct choose_attrs_s {
  int32_t post;
  bool is_binary;  // all weights are of the first of two classes
  bool is_share;   // no weight is negative, so that scores are shares
} choose_attrs_t;

// The one score s of two classes is the second one's; the first one has 1 - s
// where scores are shares, else -s. Returns the class.
static int64_t choose_binary(const choose_attrs_t* a, double* scores) {
  const double score = scores[0];
  const bool is_rest = a->post == CHOIR__ONNX_POST_PROBIT ||
                       (a->post == CHOIR__ONNX_POST_NONE && a->is_share);
  scores[0] = is_rest ? 1 - score : -score;
  scores[1] = score;
  choir__onnx_ml_transform(a->post, scores, 2);
  return score > (a->is_share ? 0.5 : 0);
}

static choir_status_t choose_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  const choose_attrs_t* a = attrs;
  const int64_t rows = srcs[0].view.shape[0], count = srcs[0].view.shape[1];
  const int64_t* names = srcs[1].data;
  for (int64_t k = 0; k < srcs[0].count; ++k)
    ((double*)dsts[1].data)[k] = ((const double*)srcs[0].data)[k];
  for (int64_t row = 0; row < rows; ++row) {
    double* scores = (double*)dsts[1].data + row * count;
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i)
      if (scores[i] > scores[best]) best = i;
    if (a->is_binary)
      best = choose_binary(a, scores);
    else
      choir__onnx_ml_transform(a->post, scores, count);
    ((int64_t*)dsts[0].data)[row] = names[best];
  }
  return NULL;
}

static void choose(choir__onnx_call_t* c, choir_var_t* scores,
                   const int64_t* labels, int32_t count,
                   const choose_attrs_t* attrs) {
  const choir_view_t* view = choir_var_view(scores);
  if (!view) return;
  choir_view_t results[2] = {*view, *view};
  results[0].dtype = CHOIR_DTYPE_I64;
  results[0].ndim = 1;
  choir_var_t* srcs[] = {scores, choir__onnx_ml_whole(c, labels, count)};
  choir_var_t* outs[2];
  choir__onnx_host(c, "onnx/tree_classes", choose_loop, attrs, sizeof *attrs,
                   srcs, 2, results, 2, outs);
  OUT_AS(0, outs[0], INT64);
  OUT_AS(1, choir__onnx_cast(c, outs[1], CHOIR_DTYPE_F32), FLOAT);
}

void choir__onnx_op_tree_ensemble_classifier(choir__onnx_call_t* c) {
  choir__onnx_forest_t f;
  int32_t count;
  choose_attrs_t attrs = {.is_share = true};
  const int64_t* labels = choir__onnx_ml_labels(c, "classlabels_int64s",
                                                "classlabels_strings", &count);
  if (!labels || !choir__onnx_ml_post(c, &attrs.post) ||
      !choir__onnx_forest_of_lists(c, "class", &f))
    return;
  f.target_count = count;
  attrs.is_binary = count == 2 && f.weight_count > 0;
  for (int64_t k = 0; k < f.weight_count; ++k) {
    attrs.is_binary &= f.targets[k] == 0;
    attrs.is_share &= f.weights[k] >= 0;
  }
  choir_var_t* scores = run_forest(c, &f, CHOIR__ONNX_POST_NONE);
  if (scores) choose(c, scores, labels, count, &attrs);
}
