// SPDX-License-Identifier: Apache-2.0
#include "core/sum_tree_backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum {
  // Elements that are added up at once: a row's sums stay in a core's cache.
  STRIP = 256,
  // Of the row, of up to 2^48 leaves.
  HEIGHT = 50,
};

static int64_t shards_in(int64_t samples, int64_t size) {
  return (samples + size - 1) / size;
}

choir__leaves_t choir__leaves_of(int64_t size, int64_t global_count,
                                 int64_t first_sample, int64_t sample_count) {
  if (size == 0) return (choir__leaves_t){0, 0, 0};
  return (choir__leaves_t){
      .first = shards_in(first_sample, size),
      .end = shards_in(first_sample + sample_count, size),
      .all = shards_in(global_count, size),
  };
}

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

static void add(float* to, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

void choir__sum_tree_add_up(const choir__sum_term_t* terms, int32_t count,
                            float* dst, int64_t elements) {
  float sums[HEIGHT][STRIP];
  const float* row[HEIGHT];
  for (int64_t at = 0; at < elements; at += STRIP) {
    const int64_t width = elements - at < STRIP ? elements - at : STRIP;
    row[0] = terms[0].at + at;
    int32_t height = 1;
    for (int32_t k = 1; k < count; k++) {
      row[height++] = terms[k].at + at;
      for (int32_t n = terms[k].sums; n > 0 && height > 1; n--) {
        height--;
        add(sums[height - 1], row[height - 1], row[height], width);
        row[height - 1] = sums[height - 1];
      }
    }
    memmove(dst + at, row[0], (size_t)width * sizeof(float));
  }
}
