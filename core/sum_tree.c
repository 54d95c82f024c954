// SPDX-License-Identifier: Apache-2.0
#include "core/sum_tree_backend.h"

#include <stdbool.h>
#include <stddef.h>

// Whether a node is the first of two of which there is no second: it is the
// node above, too.
static bool is_alone(const choir__sum_tree_t* tree, choir__node_t node) {
  return node.index > 0 && node.index % 2 == 0 &&
         node.index >= (tree->leaves - 1) >> node.level;
}

int32_t choir__sum_tree_push(choir__sum_tree_t* tree, choir__node_t node) {
  int32_t sums = 0;
  for (;;) {
    while (is_alone(tree, node))
      node = (choir__node_t){node.level + 1, node.index / 2};
    const choir__node_t* last =
        tree->count > 0 ? &tree->nodes[tree->count - 1] : NULL;
    if (!last || node.index % 2 == 0 || last->level != node.level ||
        last->index != node.index - 1)
      break;
    node = (choir__node_t){node.level + 1, node.index / 2};
    tree->count--;
    sums++;
  }
  tree->nodes[tree->count++] = node;
  return sums;
}

choir__sum_tree_t choir__sum_tree_of(int64_t leaves, int64_t first,
                                     int64_t end) {
  choir__sum_tree_t tree = {.leaves = leaves};
  for (int64_t i = first; i < end; i++)
    (void)choir__sum_tree_push(&tree, (choir__node_t){0, i});
  return tree;
}
