// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_SUM_TREE_BACKEND_H_
#define CHOIR_CORE_SUM_TREE_BACKEND_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The order in which sums over the micro-shards of a step are taken, whoever
// has them (docs/reproducible.md): leaf i is the sum of micro-shard i; node
// (l + 1, i) is node (l, 2 i) + node (l, 2 i + 1), or the first alone where
// there is no second; the root is the sum of all.
//
// Leaves, or nodes, come in ascending order and without a gap. Those that there
// are stand in a row; two neighbours that make a node become one, as a counter
// carries:
//
//   choir__sum_tree_t tree = {.leaves = leaves};
//   for (int64_t i = first; i < end; i++) {
//     row[count++] = leaf i;
//     for (int32_t n = choir__sum_tree_push(&tree, (choir__node_t){0, i}); n;
//          n--) {
//       count--;
//       row[count - 1] += row[count];
//     }
//   }
//
// What is left, tree.count nodes, is what a rank with these leaves gives to
// others: at most 2 log2 of them, one where they are all or a subtree.
//
// Where sums travel with 16 bits, the nodes of one level and of all above are
// rounded: of the lowest that has at most CHOIR__HALF_NODES. The level follows
// from the leaves alone, and what a rank has of a node below it stays f32.
//
// Threads: plain values.

// Micro-shards, the leaves of a step: those of all ranks, and which of them a
// rank has.
typedef struct choir__leaves_s {
  int64_t first, end;
  int64_t all;
} choir__leaves_t;

// Of micro-shards of `size` samples, of which the last can have fewer; the
// rank's samples begin with one. No leaves of size 0.
choir__leaves_t choir__leaves_of(int64_t size, int64_t global_count,
                                 int64_t first_sample, int64_t sample_count);

typedef struct choir__node_s {
  int32_t level;
  int64_t index;
} choir__node_t;

enum { CHOIR__SUM_TREE_NODES = 128, CHOIR__HALF_NODES = 16 };

typedef struct choir__sum_tree_s {
  int64_t leaves;  // of the whole step
  // Of nodes that sums make: those of levels 0 .. levels - 1; 0: all.
  int32_t levels;
  int32_t count;
  choir__node_t nodes[CHOIR__SUM_TREE_NODES];
} choir__sum_tree_t;

// Appends a node. How often the last two are to be added up.
int32_t choir__sum_tree_push(choir__sum_tree_t* tree, choir__node_t node);
// Of a step's leaves, the nodes that leaves first .. end - 1 become; levels: as
// the tree's.
choir__sum_tree_t choir__sum_tree_of(int64_t leaves, int64_t first, int64_t end,
                                     int32_t levels);
// The level from which on nodes are rounded.
int32_t choir__half_level(int64_t leaves);

// A node as it was appended: its elements, and how often the last two are to be
// added up then.
typedef struct choir__sum_term_s {
  const void* at;  // f32, or 16 bits
  int32_t sums;
  // For rounded sums: how many of the node and of those `sums` are below the
  // level, and stay f32; whether the node's elements have 16 bits.
  int32_t exact;
  bool is_half;
} choir__sum_term_t;

// Appends a node to the tree: its term, in f32.
choir__sum_term_t choir__sum_tree_term(choir__sum_tree_t* tree,
                                       choir__node_t node, const void* at);

// How 16-bit elements are made, and read.
typedef struct choir__halves_s {
  void (*encode)(void* self, const float* src, int64_t count, uint16_t* dst);
  void (*decode)(void* self, const uint16_t* src, int64_t count, float* dst);
  void* self;
} choir__halves_t;

// dst = `elements` of one node, of all nodes that become it in their order, at
// least one; dst may be a node's place of f32. halves: of rounded sums; NULL:
// none are. Any thread.
void choir__sum_tree_add_up(const choir__sum_term_t* terms, int32_t count,
                            const choir__halves_t* halves, float* dst,
                            int64_t elements);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_SUM_TREE_BACKEND_H_
