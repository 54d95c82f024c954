// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_TREES_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_TREES_INTERNAL_H_

#include "onnx/operators/onnx_ml_internal.h"

// Trees of decisions, as all operators of them are computed: the lists of a
// node (onnx_tree_lists.c) become a forest (onnx_trees.c).

// What a node does; the numbers up to MEMBER are TreeEnsemble's.
typedef enum choir__onnx_branch_e {
  CHOIR__ONNX_BRANCH_LEQ,
  CHOIR__ONNX_BRANCH_LT,
  CHOIR__ONNX_BRANCH_GTE,
  CHOIR__ONNX_BRANCH_GT,
  CHOIR__ONNX_BRANCH_EQ,
  CHOIR__ONNX_BRANCH_NEQ,
  CHOIR__ONNX_BRANCH_MEMBER,
  CHOIR__ONNX_BRANCH_LEAF,
} choir__onnx_branch_t;

// All int64_t, so that nodes are rows of a tensor.
typedef struct choir__onnx_tree_node_s {
  int64_t mode;
  int64_t feature;
  int64_t yes, no;      // nodes
  int64_t missing;      // whether a NaN goes to `yes`
  int64_t first, last;  // of a leaf's weights, or of members; last is not one
} choir__onnx_tree_node_t;

typedef enum choir__onnx_aggregate_e {
  CHOIR__ONNX_AGGREGATE_AVERAGE,
  CHOIR__ONNX_AGGREGATE_SUM,
  CHOIR__ONNX_AGGREGATE_MIN,
  CHOIR__ONNX_AGGREGATE_MAX,
} choir__onnx_aggregate_t;

typedef struct choir__onnx_forest_s {
  choir__onnx_tree_node_t* nodes;
  double* splits;  // of nodes
  int64_t node_count;
  int64_t* targets;  // of weights
  double* weights;
  int64_t weight_count;
  choir__onnx_numbers_t members;
  int64_t* roots;
  int64_t root_count;
  choir__onnx_numbers_t base;  // of targets
  int64_t target_count;
  int32_t aggregate;
} choir__onnx_forest_t;

// By the lists of TreeEnsembleRegressor and TreeEnsembleClassifier; `prefix` of
// those of leaves: "target" or "class". False: it failed.
bool choir__onnx_forest_of_lists(choir__onnx_call_t* c, const char* prefix,
                                 choir__onnx_forest_t* out_forest);
// By those of TreeEnsemble.
bool choir__onnx_forest_of_tensors(choir__onnx_call_t* c,
                                   choir__onnx_forest_t* out_forest);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_TREES_INTERNAL_H_
