// SPDX-License-Identifier: Apache-2.0
// Layers in layers: their names, parameters, labels and random numbers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/model/model_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Net;
using choir::testing::TensorPtr;

choir_layer_t* Linear(choir_model_t* model, const char* name, int64_t out) {
  choir_linear_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
  config.out_features = out;
  return choir_layer_create(model, name, &choir_layer_def_linear, &config);
}

// x + second(relu(first(x))) * scale, and in it, where depth allows, another.
struct Block {
  int depth = 0;
  TensorPtr one;
  choir_layer_t* layer = nullptr;
  choir_layer_t* first = nullptr;
  choir_layer_t* second = nullptr;
  choir_param_t* scale = nullptr;
  std::unique_ptr<Block> inner;
  std::vector<std::string>* labels = nullptr;

  static void Define(choir_model_t* model, void* self) {
    Block* block = static_cast<Block*>(self);
    block->first = Linear(model, "first", 6);
    if (block->depth > 0) {
      block->inner = std::make_unique<Block>();
      block->inner->depth = block->depth - 1;
      block->inner->one = Make<float>(choir_model_device(model), {1}, {1});
      block->inner->labels = block->labels;
      block->inner->layer =
          choir_layer_block(model, "inner", &kDef, block->inner.get());
    }
    block->second = Linear(model, "second", 4);
    block->scale =
        choir_model_add_param(model, "scale", block->one.get(), true);
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    Block* block = static_cast<Block*>(self);
    choir_var_t* x = inputs.at[0];
    choir_var_t* y = choir_layer_forward(scope, block->first, x);
    if (block->inner) y = choir_layer_forward(scope, block->inner->layer, y);
    y = choir_layer_forward(scope, block->second, choir_var_relu(scope, y));
    if (block->labels) block->labels->push_back(choir_scope_label(scope));
    y = choir_var_mul(scope, y, choir_scope_param(scope, block->scale));
    return block->depth == 0 ? y : choir_var_add(scope, x, y);
  }
  static const choir_block_def_t kDef;
};
const choir_block_def_t Block::kDef = {Block::Define, Block::Forward};

class LayerNestTest : public ::testing::Test {
 protected:
  LayerNestTest() : device_(MakeDevice("cpu")) {}
  std::unique_ptr<Net> Make1(int depth) {
    block_.depth = depth;
    block_.one = Make<float>(device_.get(), {1}, {1});
    block_.labels = &labels_;
    return std::make_unique<Net>(
        [this](Net* net) {
          net->Linear("in", 4);
          block_.layer =
              choir_layer_block(net->defining, "block3", &Block::kDef, &block_);
          net->Linear("out", 3);
        },
        [this](Net* net, choir_scope_t* scope, choir_var_t* x) {
          x = choir_layer_forward(scope, net->layers[0], x);
          x = choir_layer_forward(scope, block_.layer, x);
          EXPECT_EQ(choir_scope_label(scope), nullptr);
          return choir_layer_forward(scope, net->layers[1], x);
        });
  }
  static std::vector<std::string> Names(Net* net) {
    std::vector<std::string> names;
    const choir_param_set_t* set = choir_model_params(net->get());
    for (size_t i = 0; i < set->count; ++i)
      names.push_back(set->params[i]->name);
    return names;
  }

  DevicePtr device_;
  Block block_;
  std::vector<std::string> labels_;
};

TEST_F(LayerNestTest, NamesComeAfterTheirBlocks) {
  std::unique_ptr<Net> net = Make1(1);
  ASSERT_OK(net->Create(device_.get()));
  EXPECT_STREQ(choir_layer_name(block_.layer), "block3");
  EXPECT_STREQ(choir_layer_name(block_.inner->second), "block3.inner.second");
  ASSERT_OK(net->Compile({1, 2}));
  EXPECT_EQ(Names(net.get()),
            (std::vector<std::string>{
                "block3.inner.scale", "block3.scale", "in.W", "in.b",
                "block3.first.W", "block3.first.b", "block3.inner.first.W",
                "block3.inner.first.b", "block3.inner.second.W",
                "block3.inner.second.b", "block3.second.W", "block3.second.b",
                "out.W", "out.b"}));
  // After a layer the work is again that of whoever called it.
  EXPECT_EQ(labels_, (std::vector<std::string>{"block3.inner", "block3"}));
}

TEST_F(LayerNestTest, Trains) {
  std::unique_ptr<Net> net = Make1(1);
  ASSERT_OK(net->Create(device_.get()));
  // The inner block takes 6 columns and gives 4, which are not added to.
  ASSERT_OK(net->Compile({1, 2}));
  ASSERT_OK(net->UseSgd(0.1));
  const TensorPtr x = Make(device_.get(), {5, 2}, Floats(10, 1));
  const TensorPtr y =
      Make(device_.get(), {5}, std::vector<int64_t>{0, 1, 2, 0, 1});
  const choir_model_batch_t batch = {{x.get()}, {y.get()}, 0, 5, 5};
  for (int use_graph = 0; use_graph < 2; ++use_graph) {
    choir_model_set_graph(net->get(), use_graph == 1, false);
    double last = 0;
    for (int step = 0; step < 8; ++step) {
      ASSERT_OK(choir_model_train_one_batch(net->get(), &batch));
      const double loss = net->Metrics().loss_sum;
      if (step > 0) {
        EXPECT_LT(loss, last);
      }
      last = loss;
    }
  }
}

// A block with what is drawn and what is averaged.
struct NormBlock {
  choir_layer_t* conv = nullptr;
  choir_layer_t* norm = nullptr;
  choir_layer_t* dropout = nullptr;

  static void Define(choir_model_t* model, void* self) {
    NormBlock* block = static_cast<NormBlock*>(self);
    choir_conv2d_config_t conv = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
    conv.out_channels = 3;
    conv.kernel_size = 3;
    conv.padding = 1;
    block->conv =
        choir_layer_create(model, "conv", &choir_layer_def_conv2d, &conv);
    const choir_batch_norm2d_config_t norm = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_BATCH_NORM2D_FIELDS)};
    block->norm =
        choir_layer_create(model, "norm", &choir_layer_def_batch_norm2d, &norm);
    const choir_dropout_config_t dropout = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_DROPOUT_FIELDS)};
    block->dropout =
        choir_layer_create(model, "drop", &choir_layer_def_dropout, &dropout);
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    NormBlock* block = static_cast<NormBlock*>(self);
    choir_var_t* x = inputs.at[0];
    choir_var_t* y = choir_layer_forward(scope, block->conv, x);
    y = choir_var_relu(scope, choir_layer_forward(scope, block->norm, y));
    return choir_var_add(scope, x,
                         choir_layer_forward(scope, block->dropout, y));
  }
};
const choir_block_def_t kNormBlock = {NormBlock::Define, NormBlock::Forward};

// Weights and running averages after some steps, and what a step takes.
TEST_F(LayerNestTest, ABlockComputesItsActivationsAgain) {
  const TensorPtr x = Make(device_.get(), {5, 3, 8, 8}, Floats(5 * 192, 1));
  const TensorPtr y =
      Make(device_.get(), {5}, std::vector<int64_t>{0, 1, 2, 0, 1});
  const choir_model_batch_t batch = {{x.get()}, {y.get()}, 0, 5, 5};
  uint64_t digests[4];
  uint64_t activations[2];
  for (int i = 0; i < 4; ++i) {
    const bool recompute = i % 2 == 1;
    NormBlock blocks[3];
    Net net(
        [&](Net* made) {
          for (NormBlock& block : blocks) {
            const std::string name = "block" + std::to_string(&block - blocks);
            choir_layer_t* layer = choir_layer_block(
                made->defining, name.c_str(), &kNormBlock, &block);
            choir_layer_set_recompute(layer, recompute);
            made->layers.push_back(layer);
          }
          made->Add(
              "flat", &choir_layer_def_flatten,
              choir_flatten_config_t{CHOIR_CONFIG_DEFAULTS(CHOIR_NO_FIELDS)});
          made->Linear("out", 3);
        },
        choir::testing::Chain);
    ASSERT_OK(net.Create(device_.get()));
    ASSERT_OK(net.Compile({1, 3, 8, 8}));
    ASSERT_OK(net.UseSgd(0.1));
    choir_model_set_graph(net.get(), i < 2, false);
    choir_model_memory_t memory;
    ASSERT_OK(choir_model_plan_memory(net.get(), true, &batch, &memory));
    activations[i % 2] = memory.activations;
    for (int step = 0; step < 4; ++step)
      ASSERT_OK(choir_model_train_one_batch(net.get(), &batch));
    digests[i] = net.Digest();
    EXPECT_EQ(digests[i], digests[0]) << i;
  }
  EXPECT_LT(activations[1], activations[0]);
  choir_layer_set_recompute(nullptr, true);
}

TEST_F(LayerNestTest, FailuresTellTheWholeName) {
  std::unique_ptr<Net> net = Make1(1);
  ASSERT_OK(net->Create(device_.get()));
  ASSERT_OK(net->Compile({1, 2}));
  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_scope_begin(scope, nullptr);
  const TensorPtr wide = Make(device_.get(), {2, 7}, Floats(14, 1));
  choir_layer_forward(scope, block_.inner->first,
                      choir_scope_input(scope, wide.get()));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "block3.inner.first: linear: ", choir_scope_end(scope));
  choir_scope_destroy(scope);
}

// As two convolutions with the same values.
TEST_F(LayerNestTest, SeparableConvolutionIsTwo) {
  choir_conv2d_config_t conv = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
  choir_separable_conv2d_config_t both = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SEPARABLE_CONV2D_FIELDS)};
  both.out_channels = 5;
  both.kernel_size = conv.kernel_size = 3;
  both.stride = conv.stride = 2;
  both.bias = true;
  conv.out_channels = conv.groups = 4;
  choir_conv2d_config_t point = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
  point.out_channels = 5;
  point.kernel_size = 1;
  Net two(
      [&](Net* net) {
        net->Add("a", &choir_layer_def_conv2d, conv);
        net->Add("b", &choir_layer_def_conv2d, point);
      },
      choir::testing::Chain);
  Net one(
      [&](Net* net) { net->Add("s", &choir_layer_def_separable_conv2d, both); },
      choir::testing::Chain);
  const TensorPtr x = Make(device_.get(), {2, 4, 7, 9}, Floats(504, 2));
  for (Net* net : {&one, &two}) {
    ASSERT_OK(net->Create(device_.get()));
    ASSERT_OK(net->Compile({1, 4, 7, 9}));
  }
  EXPECT_EQ(Names(&one), (std::vector<std::string>{
                             "s.depthwise_conv.W", "s.depthwise_conv.b",
                             "s.point_conv.W", "s.point_conv.b"}));
  EXPECT_EQ(one.Predict(x.get()), two.Predict(x.get()));
}

// As the second layer of a model with its values.
TEST_F(LayerNestTest, ALayerWithoutAModel) {
  choir_layer_t* alone = nullptr;
  choir_linear_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
  EXPECT_STATUS(
      INVALID_ARGUMENT, "layer it: linear: out_features is 0; needs",
      choir_layer_create_alone(device_.get(), "it", &choir_layer_def_linear,
                               &config, 4, 2, &alone));
  EXPECT_EQ(alone, nullptr);
  config.out_features = 3;
  ASSERT_OK(choir_layer_create_alone(
      device_.get(), "it", &choir_layer_def_linear, &config, 4, 2, &alone));
  EXPECT_EQ(choir_layer_param(alone, 0), nullptr);
  Net net(
      [](Net* net) {
        net->Linear("first", 4);
        net->Linear("it", 3);
      },
      choir::testing::Chain);
  ASSERT_OK(net.Create(device_.get(), 4));
  ASSERT_OK(net.Compile({1, 5}));

  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_scope_begin(scope, nullptr);
  const TensorPtr x = Make(device_.get(), {2, 4}, Floats(8, 1));
  choir_var_t* y =
      choir_layer_forward(scope, alone, choir_scope_input(scope, x.get()));
  EXPECT_EQ(choir_scope_label(scope), nullptr);
  EXPECT_EQ(choir_var_view(y)->shape[1], 3);
  ASSERT_OK(choir_scope_end(scope));
  choir_param_t* w = choir_layer_param(alone, 0);
  EXPECT_STREQ(w->name, "it.W");
  EXPECT_STREQ(choir_layer_param(alone, 1)->name, "it.b");
  EXPECT_EQ(choir_layer_param(alone, 2), nullptr);
  EXPECT_EQ(choir::testing::Read<float>(w->value), net.value(2));
  choir_scope_destroy(scope);
  choir_layer_release(alone);
  choir_layer_release(nullptr);
}

TEST_F(LayerNestTest, LayersTakeAsManyInputsAsTheyAreMadeFor) {
  static const choir_block_def_t product = {
      [](choir_model_t*, void*) {},
      [](choir_scope_t* scope, void*, choir_vars_t in) {
        return choir_var_mul(scope, in.at[0], in.at[1]);
      }};
  choir_layer_t* block = nullptr;
  Net net(
      [&block](Net* self) {
        block = choir_layer_block(self->defining, "product", &product, nullptr);
        self->Linear("fc", 2);
      },
      [&block](Net* self, choir_scope_t* scope, choir_var_t* x) {
        choir_var_t* const both[] = {x, choir_var_relu(scope, x)};
        x = choir_layer_forward_list(scope, block, {both, 2});
        return choir_layer_forward(scope, self->layers[0], x);
      });
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 4}));
  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_scope_begin(scope, nullptr);
  const TensorPtr x = Make(device_.get(), {2, 4}, Floats(8, 1));
  choir_var_t* const both[] = {choir_scope_input(scope, x.get()), nullptr};
  const std::vector<float> y = choir::testing::Read<float>(
      choir_var_tensor(choir_layer_forward(scope, net.layers[0], both[0])));
  EXPECT_EQ(y.size(), 4u);
  choir_layer_forward_list(scope, net.layers[0], {both, 2});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "fc (linear): 2 inputs were given; needs 1 at least and 1 at",
                choir_scope_end(scope));
  choir_scope_begin(scope, nullptr);
  choir_var_t* const again[] = {choir_scope_input(scope, x.get()), nullptr};
  choir_layer_forward_list(scope, block, {again, 2});
  EXPECT_STATUS(INVALID_ARGUMENT, "product: input 1 is not a variable",
                choir_scope_end(scope));
  choir_scope_destroy(scope);
}

TEST_F(LayerNestTest, NamesOfABlockMustDiffer) {
  Net net(
      [](Net* self) {
        static const choir_block_def_t twins = {
            [](choir_model_t* model, void*) {
              Linear(model, "twin", 2);
              Linear(model, "twin", 2);
            },
            [](choir_scope_t*, void*, choir_vars_t in) { return in.at[0]; }};
        self->Linear("twin", 2);
        choir_layer_block(self->defining, "block", &twins, nullptr);
      },
      choir::testing::Chain);
  EXPECT_STATUS(ALREADY_EXISTS, "two layers are called block.twin; names must",
                net.Create(device_.get()));
}

TEST_F(LayerNestTest, MistakesInABlockAreTold) {
  Net net(
      [](Net* self) {
        static const choir_block_def_t wrong = {
            [](choir_model_t* model, void*) { Linear(model, "fc", -1); },
            [](choir_scope_t*, void*, choir_vars_t in) { return in.at[0]; }};
        choir_layer_block(self->defining, "block", &wrong, nullptr);
      },
      choir::testing::Chain);
  EXPECT_STATUS(INVALID_ARGUMENT, "layer block.fc: linear: out_features is -1",
                net.Create(device_.get()));
}

}  // namespace
