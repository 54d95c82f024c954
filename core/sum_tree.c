// SPDX-License-Identifier: Apache-2.0
#include "core/sum_tree_backend.h"

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

int32_t choir__half_level(int64_t leaves) {
  int32_t level = 0;
  while (leaves > (int64_t)CHOIR__HALF_NODES << level) level++;
  return level;
}

// Whether the node and the tree's last make one.
static bool has_neighbour(const choir__sum_tree_t* tree, choir__node_t node) {
  const choir__node_t* last =
      tree->count > 0 ? &tree->nodes[tree->count - 1] : NULL;
  return last && node.index % 2 == 1 && last->level == node.level &&
         last->index == node.index - 1 &&
         (tree->levels == 0 || node.level + 1 < tree->levels);
}

// exact: how many of the node and its sums are below `level`.
static int32_t push(choir__sum_tree_t* tree, choir__node_t node, int32_t level,
                    int32_t* exact) {
  for (int32_t sums = 0;; sums++) {
    while (is_alone(tree, node))
      node = (choir__node_t){node.level + 1, node.index / 2};
    *exact += node.level < level;
    if (!has_neighbour(tree, node)) {
      tree->nodes[tree->count++] = node;
      return sums;
    }
    node = (choir__node_t){node.level + 1, node.index / 2};
    tree->count--;
  }
}

int32_t choir__sum_tree_push(choir__sum_tree_t* tree, choir__node_t node) {
  int32_t exact = 0;
  return push(tree, node, 0, &exact);
}

choir__sum_term_t choir__sum_tree_term(choir__sum_tree_t* tree,
                                       choir__node_t node, const void* at) {
  choir__sum_term_t term = {.at = at};
  term.sums = push(tree, node, choir__half_level(tree->leaves), &term.exact);
  return term;
}

choir__sum_tree_t choir__sum_tree_of(int64_t leaves, int64_t first, int64_t end,
                                     int32_t levels) {
  choir__sum_tree_t tree = {.leaves = leaves, .levels = levels};
  for (int64_t i = first; i < end; i++)
    (void)choir__sum_tree_push(&tree, (choir__node_t){0, i});
  return tree;
}

static void add(float* to, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

static void round_all(const choir__halves_t* halves, const float* from,
                      float* to, int64_t count) {
  uint16_t strip[STRIP];
  halves->encode(halves->self, from, count, strip);
  halves->decode(halves->self, strip, count, to);
}

// A term's elements, from `at` on, in f32 and rounded where it is.
static const float* open_term(const choir__sum_term_t* term,
                              const choir__halves_t* halves, int64_t at,
                              float* strip, int64_t count) {
  const float* from = (const float*)term->at + at;
  if (halves && term->is_half)
    halves->decode(halves->self, (const uint16_t*)term->at + at, count, strip);
  else if (halves && term->exact == 0)
    round_all(halves, from, strip, count);
  else
    return from;
  return strip;
}

void choir__sum_tree_add_up(const choir__sum_term_t* terms, int32_t count,
                            const choir__halves_t* halves, float* dst,
                            int64_t elements) {
  float sums[HEIGHT][STRIP];
  const float* row[HEIGHT];
  for (int64_t at = 0; at < elements; at += STRIP) {
    const int64_t width = elements - at < STRIP ? elements - at : STRIP;
    row[0] = open_term(&terms[0], halves, at, sums[0], width);
    int32_t height = 1;
    for (int32_t k = 1; k < count; k++) {
      row[height] = open_term(&terms[k], halves, at, sums[height], width);
      height++;
      for (int32_t n = 1; n <= terms[k].sums && height > 1; n++) {
        height--;
        float* sum = sums[height - 1];
        add(sum, row[height - 1], row[height], width);
        if (halves && n >= terms[k].exact) round_all(halves, sum, sum, width);
        row[height - 1] = sum;
      }
    }
    memmove(dst + at, row[0], (size_t)width * sizeof(float));
  }
}
