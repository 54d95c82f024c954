// SPDX-License-Identifier: Apache-2.0
// Forests by the lists of a node's attributes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_trees_internal.h"

// Ints attribute `name` of `count` numbers; NULL: it failed.
static const int64_t* list_of(choir__onnx_call_t* c, const char* name,
                              int64_t count) {
  static const int64_t none[1] = {0};
  int32_t given;
  const int64_t* ints = choir__onnx_ints(c, name, &given);
  if (given == count) return given > 0 ? ints : none;
  FAIL(INVALID_ARGUMENT, "attribute %s has %d numbers; needs %lld", name, given,
       (long long)count);
  return NULL;
}

static bool numbers_of(choir__onnx_call_t* c, const char* name,
                       const char* tensor, int64_t count,
                       choir__onnx_numbers_t* out) {
  if (!choir__onnx_ml_numbers(c, name, tensor, out)) return false;
  if (out->count == count) return true;
  FAIL(INVALID_ARGUMENT, "attribute %s has %lld numbers; needs %lld",
       name && choir__onnx_has_attr(c, name) ? name : tensor,
       (long long)out->count, (long long)count);
  return false;
}

static bool make_nodes(choir__onnx_call_t* c, int64_t count,
                       choir__onnx_forest_t* f) {
  f->node_count = count;
  f->nodes =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *f->nodes);
  f->splits =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *f->splits);
  return f->nodes && f->splits;
}

static bool make_weights(choir__onnx_call_t* c, int64_t count,
                         choir__onnx_forest_t* f) {
  f->weight_count = count;
  f->targets =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *f->targets);
  f->weights =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *f->weights);
  return f->targets && f->weights;
}

// ---- Regressor and classifier: nodes by the numbers of tree and node ----

typedef struct place_s {
  int64_t tree, node;
  int64_t at;
} place_t;

static int compare_places(const void* left, const void* right) {
  const place_t *a = left, *b = right;
  if (a->tree != b->tree) return a->tree > b->tree ? 1 : -1;
  return (a->node > b->node) - (a->node < b->node);
}

static int compare_ordered(const void* left, const void* right) {
  const place_t *a = left, *b = right;
  const int order = compare_places(a, b);
  return order ? order : (a->at > b->at) - (a->at < b->at);
}

// Sorted; NULL: there is no memory.
static place_t* sort_places(choir__onnx_call_t* c, const int64_t* trees,
                            const int64_t* nodes, int64_t count) {
  place_t* places =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *places);
  for (int64_t k = 0; places && k < count; ++k)
    places[k] = (place_t){.tree = trees[k], .node = nodes[k], .at = k};
  if (places) qsort(places, (size_t)count, sizeof *places, compare_ordered);
  return places;
}

static int64_t find_place(const place_t* places, int64_t count, int64_t tree,
                          int64_t node) {
  const place_t key = {.tree = tree, .node = node};
  const place_t* found =
      bsearch(&key, places, (size_t)count, sizeof *places, compare_places);
  return found ? found->at : -1;
}

static bool mode_of(choir__onnx_call_t* c, int32_t k, int64_t* out_mode) {
  static const char* const names[] = {
      "BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE",    "BRANCH_GT",
      "BRANCH_EQ",  "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF"};
  const char* given = choir__onnx_string_at(c, "nodes_modes", k);
  for (int64_t i = 0; given && i < (int64_t)(sizeof names / sizeof *names); ++i)
    if (i != CHOIR__ONNX_BRANCH_MEMBER && strcmp(given, names[i]) == 0) {
      *out_mode = i;
      return true;
    }
  FAIL(INVALID_ARGUMENT, "nodes_modes has '%s' for node %d",
       given ? given : "nothing", k);
  return false;
}

// A child of node k.
static bool set_child(choir__onnx_call_t* c, const place_t* places,
                      const choir__onnx_forest_t* f, int64_t tree,
                      int64_t child, int64_t* out) {
  *out = find_place(places, f->node_count, tree, child);
  if (*out >= 0) return true;
  FAIL(INVALID_ARGUMENT, "tree %lld has no node %lld", (long long)tree,
       (long long)child);
  return false;
}

// Trees begin with the first of their nodes.
static bool set_roots(choir__onnx_call_t* c, const place_t* places,
                      choir__onnx_forest_t* f) {
  f->roots = choir_scope_alloc(c->scope,
                               (size_t)(f->node_count + 1) * sizeof *f->roots);
  if (!f->roots) return false;
  for (int64_t k = 0; k < f->node_count;) {
    int64_t first = places[k].at;
    const int64_t tree = places[k].tree;
    for (; k < f->node_count && places[k].tree == tree; ++k)
      if (places[k].at < first) first = places[k].at;
    f->roots[f->root_count++] = first;
  }
  return true;
}

static bool read_nodes(choir__onnx_call_t* c, choir__onnx_forest_t* f,
                       place_t** out_places) {
  int32_t count, missing_count;
  const int64_t* trees = choir__onnx_ints(c, "nodes_treeids", &count);
  const int64_t* ids = list_of(c, "nodes_nodeids", count);
  const int64_t* yes = list_of(c, "nodes_truenodeids", count);
  const int64_t* no = list_of(c, "nodes_falsenodeids", count);
  const int64_t* features = list_of(c, "nodes_featureids", count);
  const int64_t* missing =
      choir__onnx_ints(c, "nodes_missing_value_tracks_true", &missing_count);
  choir__onnx_numbers_t values;
  if (!ids || !yes || !no || !features ||
      !numbers_of(c, "nodes_values", "nodes_values_as_tensor", count,
                  &values) ||
      !make_nodes(c, count, f))
    return false;
  if (missing_count > 0 &&
      !list_of(c, "nodes_missing_value_tracks_true", count))
    return false;
  place_t* places = sort_places(c, trees, ids, count);
  if (!places) return false;
  for (int32_t k = 1; k < count; ++k)
    if (compare_places(&places[k - 1], &places[k]) == 0) {
      FAIL(INVALID_ARGUMENT, "tree %lld has two nodes %lld",
           (long long)places[k].tree, (long long)places[k].node);
      return false;
    }
  for (int32_t k = 0; k < count; ++k) {
    choir__onnx_tree_node_t* node = &f->nodes[k];
    f->splits[k] = values.at[k];
    node->feature = features[k];
    node->missing = missing_count > 0 && missing[k] != 0;
    if (!mode_of(c, k, &node->mode)) return false;
    if (node->mode != CHOIR__ONNX_BRANCH_LEAF &&
        (!set_child(c, places, f, trees[k], yes[k], &node->yes) ||
         !set_child(c, places, f, trees[k], no[k], &node->no)))
      return false;
  }
  *out_places = places;
  return set_roots(c, places, f);
}

static const char* name_of(choir__onnx_call_t* c, const char* prefix,
                           const char* rest) {
  const size_t size = strlen(prefix) + strlen(rest) + 1;
  char* name = choir_scope_alloc(c->scope, size);
  if (!name) return "";
  memcpy(name, prefix, strlen(prefix));
  memcpy(name + strlen(prefix), rest, strlen(rest));
  return name;
}

// Weights in the order of their nodes, each node with its part of them.
static bool read_leaves(choir__onnx_call_t* c, const char* prefix,
                        const place_t* nodes, choir__onnx_forest_t* f) {
  int32_t count;
  const int64_t* trees =
      choir__onnx_ints(c, name_of(c, prefix, "_treeids"), &count);
  const int64_t* ids = list_of(c, name_of(c, prefix, "_nodeids"), count);
  const int64_t* targets = list_of(c, name_of(c, prefix, "_ids"), count);
  choir__onnx_numbers_t weights;
  if (!ids || !targets ||
      !numbers_of(c, name_of(c, prefix, "_weights"),
                  name_of(c, prefix, "_weights_as_tensor"), count, &weights) ||
      !make_weights(c, count, f))
    return false;
  const place_t* places = sort_places(c, trees, ids, count);
  if (!places) return false;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t at =
        find_place(nodes, f->node_count, places[k].tree, places[k].node);
    if (at < 0 || f->nodes[at].mode != CHOIR__ONNX_BRANCH_LEAF) {
      FAIL(INVALID_ARGUMENT,
           "node %lld of tree %lld has a weight and is no "
           "leaf",
           (long long)places[k].node, (long long)places[k].tree);
      return false;
    }
    if (f->nodes[at].last == 0) f->nodes[at].first = k;
    f->nodes[at].last = k + 1;
    f->targets[k] = targets[places[k].at];
    f->weights[k] = weights.at[places[k].at];
  }
  return true;
}

bool choir__onnx_forest_of_lists(choir__onnx_call_t* c, const char* prefix,
                                 choir__onnx_forest_t* out_forest) {
  static const char* const names[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  *out_forest = (choir__onnx_forest_t){.aggregate = -1};
  place_t* places = NULL;
  const char* given = choir__onnx_string(c, "aggregate_function", "SUM");
  for (int32_t i = 0; i < 4; ++i)
    if (strcmp(given, names[i]) == 0) out_forest->aggregate = i;
  if (out_forest->aggregate < 0) {
    FAIL(INVALID_ARGUMENT, "aggregate_function is '%s'", given);
    return false;
  }
  return choir__onnx_ml_numbers(c, "base_values", "base_values_as_tensor",
                                &out_forest->base) &&
         read_nodes(c, out_forest, &places) &&
         read_leaves(c, prefix, places, out_forest);
}

// ---- TreeEnsemble: branches and leaves apart ----

// Lists of numbers with a NaN behind each, one for each node that asks for one.
static bool split_members(choir__onnx_call_t* c, int64_t branches,
                          choir__onnx_forest_t* f) {
  int64_t at = 0;
  for (int64_t k = 0; k < branches; ++k) {
    choir__onnx_tree_node_t* node = &f->nodes[k];
    if (node->mode != CHOIR__ONNX_BRANCH_MEMBER) continue;
    node->first = at;
    while (at < f->members.count && !isnan(f->members.at[at])) ++at;
    node->last = at;
    if (at++ < f->members.count) continue;
    FAIL(INVALID_ARGUMENT,
         "membership_values has fewer lists than there are nodes with mode "
         "BRANCH_MEMBER");
    return false;
  }
  return true;
}

// A child: node `id`, or the node of leaf `id`, which lies behind all branches.
static bool set_branch(choir__onnx_call_t* c, int64_t id, bool is_leaf,
                       int64_t branches, const choir__onnx_forest_t* f,
                       int64_t* out) {
  const int64_t limit = is_leaf ? f->node_count - branches : branches;
  if (id >= 0 && id < limit) {
    *out = is_leaf ? branches + id : id;
    return true;
  }
  FAIL(INVALID_ARGUMENT, "%s %lld of %lld", is_leaf ? "leaf" : "node",
       (long long)id, (long long)limit);
  return false;
}

static bool read_branches(choir__onnx_call_t* c, int64_t branches,
                          choir__onnx_forest_t* f) {
  int32_t missing_count;
  choir__onnx_numbers_t splits, modes;
  const int64_t* features = list_of(c, "nodes_featureids", branches);
  const int64_t* yes = list_of(c, "nodes_truenodeids", branches);
  const int64_t* no = list_of(c, "nodes_falsenodeids", branches);
  const int64_t* yes_leaf = list_of(c, "nodes_trueleafs", branches);
  const int64_t* no_leaf = list_of(c, "nodes_falseleafs", branches);
  const int64_t* missing =
      choir__onnx_ints(c, "nodes_missing_value_tracks_true", &missing_count);
  if (!features || !yes || !no || !yes_leaf || !no_leaf ||
      !numbers_of(c, NULL, "nodes_splits", branches, &splits) ||
      !numbers_of(c, NULL, "nodes_modes", branches, &modes))
    return false;
  if (missing_count > 0 &&
      !list_of(c, "nodes_missing_value_tracks_true", branches))
    return false;
  for (int64_t k = 0; k < branches; ++k) {
    choir__onnx_tree_node_t* node = &f->nodes[k];
    const double mode = modes.at[k];
    if (!(mode >= 0 && mode <= CHOIR__ONNX_BRANCH_MEMBER)) {
      FAIL(INVALID_ARGUMENT, "nodes_modes has %g", mode);
      return false;
    }
    node->mode = (int64_t)mode;
    node->feature = features[k];
    node->missing = missing_count > 0 && missing[k] != 0;
    f->splits[k] = splits.at[k];
    if (!set_branch(c, yes[k], yes_leaf[k] != 0, branches, f, &node->yes) ||
        !set_branch(c, no[k], no_leaf[k] != 0, branches, f, &node->no))
      return false;
  }
  return true;
}

bool choir__onnx_forest_of_tensors(choir__onnx_call_t* c,
                                   choir__onnx_forest_t* out_forest) {
  choir__onnx_forest_t* f = out_forest;
  *f = (choir__onnx_forest_t){0};
  int32_t branches, leaves, roots;
  choir__onnx_numbers_t weights;
  const int64_t aggregate =
      choir__onnx_int(c, "aggregate_function", CHOIR__ONNX_AGGREGATE_SUM);
  choir__onnx_ints(c, "nodes_featureids", &branches);
  const int64_t* targets = choir__onnx_ints(c, "leaf_targetids", &leaves);
  const int64_t* given = choir__onnx_ints(c, "tree_roots", &roots);
  if (aggregate < 0 || aggregate > CHOIR__ONNX_AGGREGATE_MAX) {
    FAIL(INVALID_ARGUMENT, "aggregate_function is %lld", (long long)aggregate);
    return false;
  }
  f->aggregate = (int32_t)aggregate;
  if (!choir__onnx_ml_numbers(c, NULL, "membership_values", &f->members) ||
      !numbers_of(c, NULL, "leaf_weights", leaves, &weights) ||
      !make_nodes(c, (int64_t)branches + leaves, f) ||
      !make_weights(c, leaves, f) || !read_branches(c, branches, f) ||
      !split_members(c, branches, f))
    return false;
  for (int64_t k = 0; k < leaves; ++k) {
    f->nodes[branches + k] = (choir__onnx_tree_node_t){
        .mode = CHOIR__ONNX_BRANCH_LEAF, .first = k, .last = k + 1};
    f->targets[k] = targets[k];
    f->weights[k] = weights.at[k];
  }
  f->roots =
      choir_scope_alloc(c->scope, (size_t)(roots + 1) * sizeof *f->roots);
  f->root_count = roots;
  for (int64_t k = 0; f->roots && k < roots; ++k) f->roots[k] = given[k];
  return f->roots != NULL;
}
