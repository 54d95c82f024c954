// SPDX-License-Identifier: Apache-2.0
#include "core/sum_tree_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

// Sums as text: "((0+1)+2)".
using Row = std::vector<std::string>;

std::string Leaf(int64_t i) { return std::to_string(i); }

// The definition: neighbours in pairs, level by level.
std::string Root(int64_t leaves) {
  Row row;
  for (int64_t i = 0; i < leaves; ++i) row.push_back(Leaf(i));
  while (row.size() > 1) {
    Row above;
    for (size_t i = 0; i < row.size(); i += 2)
      above.push_back(i + 1 < row.size() ? "(" + row[i] + "+" + row[i + 1] + ")"
                                         : row[i]);
    row = above;
  }
  return row[0];
}

void Push(choir__sum_tree_t* tree, choir__node_t node, const std::string& sum,
          Row* row) {
  row->push_back(sum);
  for (int32_t n = choir__sum_tree_push(tree, node); n > 0; --n) {
    const std::string last = row->back();
    row->pop_back();
    row->back() = "(" + row->back() + "+" + last + ")";
  }
  ASSERT_EQ(row->size(), static_cast<size_t>(tree->count));
}

// What ranks with leaves up to each of `ends` make together.
std::string SumOf(int64_t leaves, const std::vector<int64_t>& ends,
                  int32_t* most) {
  choir__sum_tree_t all = {};
  all.leaves = leaves;
  Row row;
  int64_t first = 0;
  for (int64_t end : ends) {
    choir__sum_tree_t own = {};
    own.leaves = leaves;
    Row sums;
    for (int64_t i = first; i < end; ++i) Push(&own, {0, i}, Leaf(i), &sums);
    const choir__sum_tree_t same = choir__sum_tree_of(leaves, first, end, 0);
    EXPECT_EQ(same.count, own.count);
    *most = std::max(*most, own.count);
    for (int32_t k = 0; k < own.count; ++k)
      Push(&all, same.nodes[k], sums[static_cast<size_t>(k)], &row);
    first = end;
  }
  EXPECT_EQ(row.size(), 1u);
  return row[0];
}

TEST(SumTreeTest, IsTheDefinitionForOneRank) {
  int32_t most = 0;
  EXPECT_EQ(SumOf(5, {5}, &most), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(most, 1);
  for (int64_t leaves = 1; leaves <= 70; ++leaves)
    EXPECT_EQ(SumOf(leaves, {leaves}, &most), Root(leaves)) << leaves;
  EXPECT_EQ(most, 1);
}

TEST(SumTreeTest, IsTheSameForAnyRanks) {
  std::mt19937 random(1);
  for (int64_t leaves = 1; leaves <= 70; ++leaves)
    for (int trial = 0; trial < 30; ++trial) {
      std::vector<int64_t> ends;
      for (size_t ranks = random() % 9; ends.size() < ranks;)
        ends.push_back(static_cast<int64_t>(random()) % (leaves + 1));
      std::sort(ends.begin(), ends.end());
      ends.push_back(leaves);
      int32_t most = 0;
      EXPECT_EQ(SumOf(leaves, ends, &most), Root(leaves));
      int32_t levels = 0;
      while (leaves >> levels) ++levels;
      EXPECT_LE(most, 2 * levels);
    }
}

// Equal shares of a power of two are one node each.
TEST(SumTreeTest, GivesOneNodeForASubtree) {
  for (int64_t share : {1, 2, 4, 8})
    for (int64_t rank = 0; rank < 6; ++rank)
      EXPECT_EQ(
          choir__sum_tree_of(6 * share, rank * share, (rank + 1) * share, 0)
              .count,
          1);
  EXPECT_EQ(choir__sum_tree_of(24, 0, 12, 0).count, 2);
  EXPECT_EQ(choir__sum_tree_of(24, 6, 6, 0).count, 0);
}

// The last node of a level may have no neighbour.
TEST(SumTreeTest, LargeTrees) {
  const int64_t leaves = (int64_t{1} << 40) + 1;
  choir__sum_tree_t tree = {};
  tree.leaves = leaves;
  EXPECT_EQ(choir__sum_tree_push(&tree, {40, 0}), 0);
  EXPECT_EQ(choir__sum_tree_push(&tree, {0, leaves - 1}), 1);
  EXPECT_EQ(tree.count, 1);
  EXPECT_EQ(tree.nodes[0].level, 41);
}

// Micro-shards of 4, of which the last has one sample.
TEST(SumTreeTest, LeavesOfARank) {
  const choir__leaves_t all = choir__leaves_of(4, 13, 0, 13);
  EXPECT_EQ(all.first, 0);
  EXPECT_EQ(all.end, 4);
  EXPECT_EQ(all.all, 4);
  const choir__leaves_t last = choir__leaves_of(4, 13, 8, 5);
  EXPECT_EQ(last.first, 2);
  EXPECT_EQ(last.end, 4);
  for (int64_t first : {0, 8, 13}) {
    const choir__leaves_t none = choir__leaves_of(4, 13, first, 0);
    EXPECT_EQ(none.first, none.end) << first;
    EXPECT_EQ(none.all, 4);
  }
  EXPECT_EQ(choir__leaves_of(0, 13, 4, 5).all, 0);
}

// Elements of any number, the sum where one of the nodes is.
TEST(SumTreeTest, AddsUpNodes) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> values(-1, 1);
  for (size_t elements : {1u, 255u, 256u, 700u})
    for (int64_t leaves = 1; leaves <= 13; ++leaves) {
      std::vector<std::vector<float>> nodes;
      std::vector<choir__sum_term_t> terms;
      choir__sum_tree_t tree = {};
      tree.leaves = leaves;
      for (int64_t i = 0; i < leaves; ++i) {
        nodes.emplace_back(elements);
        for (float& value : nodes.back()) value = values(random);
        terms.push_back(
            choir__sum_tree_term(&tree, {0, i}, nodes.back().data()));
      }
      std::vector<std::vector<float>> row = nodes;
      while (row.size() > 1) {
        std::vector<std::vector<float>> above;
        for (size_t i = 0; i < row.size(); i += 2) {
          above.push_back(row[i]);
          for (size_t e = 0; i + 1 < row.size() && e < elements; ++e)
            above.back()[e] += row[i + 1][e];
        }
        row = above;
      }
      std::vector<float>& place = nodes[random() % nodes.size()];
      choir__sum_tree_add_up(terms.data(), static_cast<int32_t>(terms.size()),
                             nullptr, place.data(),
                             static_cast<int64_t>(elements));
      EXPECT_EQ(place, row[0]) << leaves << " leaves, " << elements;
    }
}

TEST(SumTreeTest, HalfLevel) {
  for (int64_t leaves = 1; leaves <= 16; ++leaves)
    EXPECT_EQ(choir__half_level(leaves), 0) << leaves;
  EXPECT_EQ(choir__half_level(17), 1);
  EXPECT_EQ(choir__half_level(32), 1);
  EXPECT_EQ(choir__half_level(33), 2);
  EXPECT_EQ(choir__half_level(int64_t{1} << 40), 36);
}

// Sixteenths; a code is their number.
void EncodeSixteenths(void*, const float* src, int64_t count, uint16_t* dst) {
  for (int64_t i = 0; i < count; ++i)
    dst[i] = static_cast<uint16_t>(std::lrint(src[i] * 16) + 20000);
}
void DecodeSixteenths(void*, const uint16_t* src, int64_t count, float* dst) {
  for (int64_t i = 0; i < count; ++i)
    dst[i] = static_cast<float>(src[i] - 20000) / 16;
}
const choir__halves_t kSixteenths = {EncodeSixteenths, DecodeSixteenths,
                                     nullptr};

using Node = std::vector<float>;

void Round(Node* node) {
  for (float& value : *node)
    value = static_cast<float>(std::lrint(value * 16)) / 16;
}

// The definition: neighbours in pairs, rounded where the level has at most
// sixteen nodes.
Node RoundedRoot(std::vector<Node> row) {
  for (;;) {
    if (row.size() <= 16)
      for (Node& node : row) Round(&node);
    if (row.size() == 1) return row[0];
    std::vector<Node> above;
    for (size_t i = 0; i < row.size(); i += 2) {
      above.push_back(row[i]);
      for (size_t e = 0; i + 1 < row.size() && e < row[i].size(); ++e)
        above.back()[e] += row[i + 1][e];
    }
    row = above;
  }
}

// What a rank gives: nodes of f32 below the half level, of 16 bits above it.
struct Given {
  choir__node_t node;
  Node exact;
  std::vector<uint16_t> half;  // empty: it is f32
};

std::vector<Given> GivenBy(const std::vector<Node>& leaves, int64_t first,
                           int64_t end) {
  const auto all = static_cast<int64_t>(leaves.size());
  const int32_t level = choir__half_level(all);
  const choir__sum_tree_t own = choir__sum_tree_of(all, first, end, 0);
  std::vector<Given> given;
  for (int32_t k = 0; k < own.count; ++k) {
    const choir__node_t node = own.nodes[k];
    choir__sum_tree_t tree = {};
    tree.leaves = all;
    std::vector<choir__sum_term_t> terms;
    const int64_t to = std::min((node.index + 1) << node.level, all);
    for (int64_t i = node.index << node.level; i < to; ++i)
      terms.push_back(choir__sum_tree_term(
          &tree, {0, i}, leaves[static_cast<size_t>(i)].data()));
    EXPECT_EQ(tree.count, 1);
    Given one = {node, Node(leaves[0].size()), {}};
    const auto elements = static_cast<int64_t>(one.exact.size());
    choir__sum_tree_add_up(terms.data(), static_cast<int32_t>(terms.size()),
                           &kSixteenths, one.exact.data(), elements);
    if (node.level >= level) {
      one.half.resize(one.exact.size());
      EncodeSixteenths(nullptr, one.exact.data(), elements, one.half.data());
    }
    given.push_back(one);
  }
  return given;
}

TEST(SumTreeTest, RoundedSumsAreTheSameForAnyRanks) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> values(-9, 9);
  for (int64_t count = 1; count <= 70; ++count) {
    std::vector<Node> leaves(static_cast<size_t>(count), Node(300));
    for (Node& leaf : leaves)
      for (float& value : leaf) value = values(random);
    const Node wanted = RoundedRoot(leaves);
    for (int trial = 0; trial < 12; ++trial) {
      std::vector<int64_t> ends;
      for (size_t ranks = random() % 9; ends.size() < ranks;)
        ends.push_back(static_cast<int64_t>(random()) % (count + 1));
      std::sort(ends.begin(), ends.end());
      ends.push_back(count);
      std::vector<Given> all;
      int64_t first = 0;
      for (int64_t end : ends) {
        for (Given& one : GivenBy(leaves, first, end)) all.push_back(one);
        first = end;
      }
      choir__sum_tree_t tree = {};
      tree.leaves = count;
      std::vector<choir__sum_term_t> terms;
      for (Given& one : all) {
        const bool is_half = !one.half.empty();
        const void* at = one.exact.data();
        if (is_half) at = one.half.data();
        terms.push_back(choir__sum_tree_term(&tree, one.node, at));
        terms.back().is_half = is_half;
      }
      Node root(300);
      choir__sum_tree_add_up(terms.data(), static_cast<int32_t>(terms.size()),
                             &kSixteenths, root.data(), 300);
      ASSERT_EQ(root, wanted)
          << count << " leaves, " << ends.size() << " ranks";
    }
  }
}

// Nodes that are not added up here become those that are, elsewhere.
TEST(SumTreeTest, NodesOfSomeLevels) {
  for (int64_t leaves = 1; leaves <= 40; ++leaves)
    for (int32_t levels = 1; levels <= 7; ++levels) {
      const choir__sum_tree_t parts =
          choir__sum_tree_of(leaves, 0, leaves, levels);
      int64_t next = 0;
      choir__sum_tree_t tree = {};
      tree.leaves = leaves;
      for (int32_t k = 0; k < parts.count; ++k) {
        const choir__node_t node = parts.nodes[k];
        EXPECT_EQ(node.index << node.level, next);
        next = std::min((node.index + 1) << node.level, leaves);
        // A level above is that of a node without a neighbour.
        EXPECT_TRUE(node.level < levels || next == leaves);
        choir__sum_tree_push(&tree, node);
      }
      EXPECT_EQ(next, leaves);
      EXPECT_EQ(tree.count, 1);
      EXPECT_LE(parts.count, ((leaves - 1) >> (levels - 1)) + 1);
    }
}

}  // namespace
