// SPDX-License-Identifier: Apache-2.0
// Gradients as sums over micro-shards: the bits of one rank for any number of
// ranks, the values of a step without micro-shards.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "autograd/scope.h"
#include "core/sum_tree_backend.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/reproducible_cpu.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Make;
using choir::testing::Shape;
using choir::testing::TensorPtr;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ints = std::vector<int32_t>;

constexpr int64_t kSamples = 22, kTokens = 3, kWords = 7, kWidth = 6;

choir_device_t* Cpu() { return choir::testing::ReproducibleCpu(1); }

Floats Random(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(count);
  for (float& value : values)
    value = static_cast<float>(random() % 2001) / 1000.0f - 1;
  return values;
}

Floats Bits(choir_tensor_t* tensor) {
  Floats values(static_cast<size_t>(choir_tensor_count(tensor)));
  EXPECT_OK(
      choir_tensor_read(tensor, values.data(), values.size() * sizeof(float)));
  return values;
}

// To 2^-10.
float Rounded(float value) { return std::nearbyint(value * 1024) / 1024; }

choir_status_t RoundNode(void*, choir_param_t*, choir_tensor_t* node) {
  const choir_view_t* view = choir_tensor_view(node);
  EXPECT_OK(choir_stream_synchronize(choir_device_stream(Cpu())));
  float* data =
      static_cast<float*>(choir_buffer_data(view->buffer)) + view->offset;
  for (int64_t i = 0; i < choir_view_count(view); ++i)
    data[i] = Rounded(data[i]);
  return nullptr;
}

// With room for several parts of the gradient.
struct Param {
  Param(const char* name, const Shape& shape, unsigned seed) {
    size_t count = 1;
    for (int64_t size : shape) count *= static_cast<size_t>(size);
    value = Make(Cpu(), shape, Random(count, seed));
    for (int i = 0; i < 8; ++i)
      grads.push_back(Make(Cpu(), shape, Floats(count, -77)));
    for (size_t i = 1; i < grads.size(); ++i) parts.push_back(grads[i].get());
    param.name = name;
    param.value = value.get();
    param.grad = grads[0].get();
    param.grad_parts = parts.data();
    param.grad_part_count = static_cast<int32_t>(parts.size());
    param.trainable = true;
  }
  TensorPtr value;
  std::vector<TensorPtr> grads;
  std::vector<choir_tensor_t*> parts;
  choir_param_t param = {};
};

// A small model with what models are made of: a table that is used twice, a sum
// over tokens, products, norms, a parameter behind an op, and a part of the
// loss that no sample has to do with.
class Net {
 public:
  Net() {
    const struct {
      const char* name;
      Shape shape;
    } all[] = {{"table", {kWords, kWidth}},
               {"places", {kTokens, kWidth}},
               {"scale", {kWidth}},
               {"shift", {kWidth}},
               {"W", {kWidth, kWidth}},
               {"b", {kWidth}},
               {"filters", {4, 1, 3, 4}},
               {"filter_bias", {4}},
               {"unused", {2}}};
    unsigned seed = 1;
    for (const auto& one : all)
      params.push_back(std::make_unique<Param>(one.name, one.shape, seed++));
    std::mt19937 random(5);
    for (int64_t i = 0; i < kSamples * kTokens; ++i) {
      ids.push_back(static_cast<int32_t>(random() % kWords));
      labels.push_back(static_cast<int32_t>(random() % kWords));
    }
  }

  choir_var_t* Loss(choir_scope_t* scope, int64_t first, int64_t count) {
    auto use = [&](int i) {
      return choir_scope_param(scope, &params[static_cast<size_t>(i)]->param);
    };
    auto rows = [&](const Ints& all) {
      TensorPtr t = Make(Cpu(), {count, kTokens},
                         Ints(all.begin() + first * kTokens,
                              all.begin() + (first + count) * kTokens));
      return choir_scope_samples(scope, t.get());
    };
    choir_var_t* table = use(0);
    choir_gather_attrs_t gather = {};
    choir_var_t* from[] = {table, rows(ids)};
    choir_var_t* x =
        choir_scope_op(scope, CHOIR_OP_GATHER, from, 2, &gather, nullptr);
    x = choir_var_add(scope, x, use(1));
    choir_var_t* norm[] = {x, use(2), use(3)};
    x = choir_scope_op(scope, CHOIR_OP_LAYER_NORM, norm, 3, nullptr, nullptr);
    // Images of one channel, a bias and a pool.
    const choir_reshape_attrs_t image = {4, {count, 1, kTokens, kWidth}};
    choir_var_t* filtered[] = {choir_var_reshape(scope, x, &image), use(6),
                               use(7)};
    choir_conv2d_attrs_t around;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &around);
    around.padding[0] = around.padding[1] = 1;
    choir_var_t* y =
        choir_scope_op(scope, CHOIR_OP_CONV2D, filtered, 3, &around, nullptr);
    choir_pool2d_attrs_t pool;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_MAX_POOL2D), &pool);
    for (int64_t* of : {pool.kernel, pool.stride}) of[0] = of[1] = 2;
    y = choir_scope_op(scope, CHOIR_OP_MAX_POOL2D, &y, 1, &pool, nullptr);
    choir_var_t* images = choir_var_sum(scope, y, nullptr);
    // The tokens as rows; W is seen through its square.
    const choir_reshape_attrs_t flat = {2, {count * kTokens, kWidth}};
    x = choir_var_reshape(scope, x, &flat);
    choir_var_t* weights = choir_var_square(scope, use(4));
    x = choir_var_add(scope, choir_var_matmul(scope, x, weights, nullptr),
                      use(5));
    x = choir_var_tanh(scope, x);
    const choir_matmul_attrs_t turned = {false, true};
    x = choir_var_matmul(scope, x, table, &turned);
    const choir_reshape_attrs_t one = {1, {count * kTokens}};
    choir_var_t* labelled = choir_var_reshape(scope, rows(labels), &one);
    choir_var_t* loss = choir_var_softmax_cross_entropy(scope, x, labelled);
    const choir_scale_attrs_t small = {1e-3, 0};
    choir_var_t* decay =
        choir_var_sum(scope, choir_var_square(scope, use(4)), nullptr);
    loss = choir_var_add(scope, loss, choir_var_scale(scope, decay, &small));
    return choir_var_add(scope, loss, choir_var_scale(scope, images, &small));
  }

  // Leaves the gradients of a rank's samples.
  choir_status_t Run(int64_t micro_shard, int64_t first, int64_t count,
                     bool rounds = false) {
    choir_scope_t* scope = nullptr;
    EXPECT_OK(choir_scope_create(Cpu(), &scope));
    choir_step_t step = {};
    step.training = true;
    step.first_sample = first;
    step.sample_count = count;
    step.global_count = kSamples;
    step.micro_shard = micro_shard;
    std::vector<choir_param_t*> list;
    for (auto& one : params) list.push_back(&one->param);
    choir_backward_options_t options = {};
    options.params = list.data();
    options.param_count = list.size();
    if (rounds) options.round_node = RoundNode;
    choir_scope_begin(scope, &step);
    choir_var_t* loss = count > 0 ? Loss(scope, first, count) : nullptr;
    if (loss) {
      EXPECT_OK(choir_scope_add_losses(scope, loss, losses.get()));
    }
    choir_scope_backward(scope, loss, &options);
    choir_status_t status = choir_scope_end(scope);
    choir_scope_destroy(scope);
    return status;
  }

  // Of all runs since it was asked.
  double TakeLosses() {
    double sum = 0, zero = 0;
    EXPECT_OK(choir_tensor_read(losses.get(), &sum, sizeof sum));
    EXPECT_OK(choir_tensor_write(losses.get(), &zero, sizeof zero));
    return sum;
  }

  std::vector<std::unique_ptr<Param>> params;
  Ints ids, labels;
  TensorPtr losses = Make(Cpu(), {1}, Doubles{0});
};

// Of each parameter, the sum over ranks whose samples end at `ends`.
std::vector<Floats> SumOfRanks(Net* net, int64_t micro_shard,
                               const std::vector<int64_t>& ends,
                               bool rounds = false) {
  const int64_t leaves = (kSamples - 1) / micro_shard + 1;
  choir__sum_tree_t tree = {};
  tree.leaves = leaves;
  std::vector<std::vector<Floats>> row;  // [node][param]
  int64_t first = 0;
  for (int64_t end : ends) {
    EXPECT_OK(net->Run(micro_shard, first, end - first, rounds));
    const choir__sum_tree_t own =
        choir__sum_tree_of(leaves, (first - 1 + micro_shard) / micro_shard,
                           (end - 1 + micro_shard) / micro_shard, 0);
    for (int32_t k = 0; k < own.count; ++k) {
      std::vector<Floats> node;
      for (auto& one : net->params)
        node.push_back(Bits(one->grads[static_cast<size_t>(k)].get()));
      row.push_back(node);
      const choir__sum_term_t term =
          choir__sum_tree_term(&tree, own.nodes[k], nullptr);
      for (int32_t n = 1; n <= term.sums; ++n) {
        for (size_t p = 0; p < node.size(); ++p)
          for (size_t i = 0; i < row.back()[p].size(); ++i) {
            float* sum = &row[row.size() - 2][p][i];
            *sum += row.back()[p][i];
            if (rounds && n >= term.exact) *sum = Rounded(*sum);
          }
        row.pop_back();
      }
    }
    first = end;
  }
  EXPECT_EQ(row.size(), 1u);
  return row[0];
}

TEST(MicroShardsTest, AreTheSameForAnyRanks) {
  for (int64_t size : {1, 2, 5, 22, 40}) {
    Net net;
    const std::vector<Floats> wanted = SumOfRanks(&net, size, {kSamples});
    // Each micro-shard by itself: what backward adds up elsewhere, the test
    // does.
    std::vector<int64_t> each;
    for (int64_t end = size; end < kSamples; end += size) each.push_back(end);
    each.push_back(kSamples);
    const std::vector<Floats> rounded = SumOfRanks(&net, size, each, true);
    EXPECT_NE(rounded, wanted);
    std::mt19937 random(3);
    for (int trial = 0; trial < 12; ++trial) {
      std::vector<int64_t> ends;
      for (size_t ranks = random() % 8; ends.size() < ranks;)
        ends.push_back(std::min<int64_t>(
            kSamples, static_cast<int64_t>(random() % 23) / size * size));
      std::sort(ends.begin(), ends.end());
      ends.push_back(kSamples);
      const bool rounds = trial % 2 == 1;
      const std::vector<Floats> got = SumOfRanks(&net, size, ends, rounds);
      const std::vector<Floats>& same = rounds ? rounded : wanted;
      for (size_t p = 0; p < wanted.size(); ++p)
        EXPECT_EQ(0, memcmp(got[p].data(), same[p].data(),
                            wanted[p].size() * sizeof(float)))
            << net.params[p]->param.name << ", micro-shards of " << size << ", "
            << ends.size() << " ranks, rounded: " << rounds;
    }
  }
}

TEST(MicroShardsTest, LossesAreTheSameForAnyRanks) {
  for (int64_t size : {1, 3, 22}) {
    Net net;
    ASSERT_OK(net.Run(size, 0, kSamples));
    const double wanted = net.TakeLosses();
    // Each micro-shard's loss by itself.
    double sum = 0;
    for (int64_t first = 0; first < kSamples; first += size) {
      const int64_t count = std::min(size, kSamples - first);
      ASSERT_OK(net.Run(0, first, count));
      sum += net.TakeLosses() * static_cast<double>(count) / kSamples;
    }
    EXPECT_GT(sum, 1);
    EXPECT_NEAR(wanted, sum, 1e-6);
    std::mt19937 random(5);
    for (int trial = 0; trial < 8; ++trial) {
      std::vector<int64_t> ends = {kSamples};
      for (size_t ranks = random() % 8; ends.size() < ranks;)
        ends.push_back(std::min<int64_t>(
            kSamples, static_cast<int64_t>(random() % 23) / size * size));
      std::sort(ends.begin(), ends.end());
      int64_t first = 0;
      for (int64_t end : ends) {
        ASSERT_OK(net.Run(size, first, end - first));
        first = end;
      }
      EXPECT_EQ(net.TakeLosses(), wanted) << size << ", " << ends.size();
    }
  }
}

// The loss is a mean, so its gradient is the mean of those of the parts; the
// images' part is a sum, of which each micro-shard's counts by its share.
TEST(MicroShardsTest, AreGradients) {
  for (int64_t size : {1, 3, 22}) {
    Net net;
    const std::vector<Floats> got = SumOfRanks(&net, size, {kSamples});
    std::vector<Doubles> wanted(net.params.size());
    for (int64_t first = 0; first < kSamples; first += size) {
      const int64_t count = std::min(size, kSamples - first);
      ASSERT_OK(net.Run(0, first, count));
      for (size_t p = 0; p < wanted.size(); ++p) {
        const Floats own = Bits(net.params[p]->grads[0].get());
        wanted[p].resize(own.size());
        for (size_t i = 0; i < own.size(); ++i)
          wanted[p][i] += static_cast<double>(own[i]) *
                          static_cast<double>(count) / kSamples;
      }
    }
    for (size_t p = 0; p < wanted.size(); ++p)
      for (size_t i = 0; i < wanted[p].size(); ++i)
        EXPECT_NEAR(got[p][i], wanted[p][i],
                    2e-6 * (1 + std::fabs(wanted[p][i])))
            << net.params[p]->param.name << " " << i;
  }
}

class MicroShardsMistakes : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(choir_scope_create(Cpu(), &scope_)); }
  void TearDown() override { choir_scope_destroy(scope_); }

  choir_var_t* Begin(choir_step_t step = {}) {
    step.training = true;
    if (step.sample_count == 0) step.sample_count = step.global_count = 4;
    if (step.micro_shard == 0) step.micro_shard = 2;
    choir_scope_begin(scope_, &step);
    TensorPtr x = Make(Cpu(), {4, 3}, Random(12, 1));
    return choir_scope_samples(scope_, x.get());
  }
  choir_status_t Finish(choir_var_t* loss) {
    choir_scope_backward(scope_, loss, nullptr);
    return choir_scope_end(scope_);
  }
  choir_var_t* Sum(choir_var_t* x) { return choir_var_sum(scope_, x, nullptr); }

  choir_scope_t* scope_ = nullptr;
  Param w_{"W", {3, 3}, 9};
};

TEST_F(MicroShardsMistakes, CutWithinAMicroShard) {
  choir_step_t step = {};
  step.first_sample = 1;
  step.sample_count = 4;
  step.global_count = 8;
  Begin(step);
  EXPECT_STATUS(INVALID_ARGUMENT, "samples 1 to 4 of 8 in micro-shards of 2",
                choir_scope_end(scope_));
}

TEST_F(MicroShardsMistakes, HalfPrecision) {
  choir_scope_set_precision(scope_, CHOIR_DTYPE_F16);
  Begin();
  EXPECT_STATUS(UNIMPLEMENTED, "micro-shards in precision f16",
                choir_scope_end(scope_));
}

TEST_F(MicroShardsMistakes, SamplesThatAreNotInFront) {
  choir_var_t* x = Begin();
  x = choir_var_transpose(scope_, x, nullptr);  // (3, 4)
  choir_var_t* y = choir_var_matmul(
      scope_, choir_scope_param(scope_, &w_.param), x, nullptr);
  EXPECT_STATUS(UNIMPLEMENTED,
                "the first dimension of all that is computed from "
                "samples must be that of samples",
                Finish(Sum(y)));
}

TEST_F(MicroShardsMistakes, SumsThatMeetSamples) {
  choir_var_t* x = Begin();
  const choir_reduce_attrs_t first = {0, true};
  choir_var_sub(scope_, x, choir_var_mean(scope_, x, &first));
  EXPECT_STATUS(UNIMPLEMENTED, "cannot meet samples again",
                choir_scope_end(scope_));
}

TEST_F(MicroShardsMistakes, NoSamples) {
  Begin();
  EXPECT_STATUS(FAILED_PRECONDITION, "depends on no tensor of samples",
                Finish(Sum(choir_scope_param(scope_, &w_.param))));
}

TEST_F(MicroShardsMistakes, NoPlaceForParts) {
  choir_step_t step = {};
  step.first_sample = 2;
  step.sample_count = 6;
  step.global_count = 16;
  step.training = true;
  step.micro_shard = 2;
  choir_scope_begin(scope_, &step);
  w_.param.grad_part_count = 0;
  TensorPtr x = Make(Cpu(), {6, 3}, Random(18, 1));
  choir_var_t* y =
      choir_var_matmul(scope_, choir_scope_samples(scope_, x.get()),
                       choir_scope_param(scope_, &w_.param), nullptr);
  EXPECT_STATUS(FAILED_PRECONDITION,
                "the gradient of W has 2 parts, of micro-shards 1 to 3 of 8",
                Finish(Sum(y)));
}

TEST_F(MicroShardsMistakes, CustomOps) {
  choir_var_t* x = Begin();
  choir_custom_op_t op = {};
  op.name = "mine";
  op.backward = [](void*, choir_tensor_t*, choir_tensor_t**) -> choir_status_t {
    return nullptr;
  };
  choir_var_t* srcs[] = {x, choir_scope_param(scope_, &w_.param)};
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, srcs, 2, choir_var_tensor(x));
  EXPECT_STATUS(UNIMPLEMENTED, "of a custom op it is not known",
                Finish(Sum(y)));
}

// Without parameters of its own: what comes behind it is not known either.
TEST_F(MicroShardsMistakes, CustomOpsBetween) {
  choir_var_t* x = Begin();
  x = choir_var_matmul(scope_, x, choir_scope_param(scope_, &w_.param),
                       nullptr);
  choir_custom_op_t op = {};
  op.name = "mine";
  op.backward = [](void*, choir_tensor_t* dy,
                   choir_tensor_t** dxs) -> choir_status_t {
    choir_tensor_retain(dxs[0] = dy);
    return nullptr;
  };
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, &x, 1, choir_var_tensor(x));
  choir_var_t* loss = Sum(y);
  TensorPtr losses = Make(Cpu(), {1}, Doubles{0});
  EXPECT_STATUS(UNIMPLEMENTED, "a loss needs to be computed from samples",
                choir_scope_add_losses(scope_, loss, losses.get()));
  EXPECT_STATUS(UNIMPLEMENTED, "must be that of samples", Finish(loss));
}

}  // namespace
