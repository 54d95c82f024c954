// SPDX-License-Identifier: Apache-2.0
// Every layer of the list, on every line of core/device/devices.def: shapes,
// parameters, results, gradients, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/config_text.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::ConfigFromText;
using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::kChannelsLast;
using choir::testing::kContiguous;
using choir::testing::kDevices;
using choir::testing::kGaps;
using choir::testing::Layout;
using choir::testing::ParseAttrs;
using choir::testing::Placed;
using choir::testing::Shape;
using choir::testing::Values;

struct Parameter {
  std::string name;
  Shape shape;
  bool trainable;
};

struct Case {
  const char* config;  // "out_features=3 ...", beside the defaults
  Shape input;
  Shape output;
  std::vector<Parameter> params;
  // What it does in inference: this op on x and the parameters.
  // CHOIR_OP_COUNT: more than one op; a test of its own has numbers.
  choir_op_t op;
  const char* attrs;  // of the op
  bool relu;          // and that on top
};

struct Refusal {
  const char* config;
  Shape input;
  const char* sentence;
};

// A line of the list needs its entry here.
struct Expected {
  std::vector<Case> cases;
  std::vector<Refusal> config;    // at creation
  std::vector<Refusal> at_build;  // at the first input
  bool trains_differently;        // from inference
  int64_t ids = 0;                // the input is i64, from 0 to below this
  size_t inputs = 1;              // the input so many times
};

const std::vector<Refusal> kWindowRefusals = {
    {"", {}, "kernel_size is 0; needs a whole number from 1"},
    {"kernel_size=-1", {}, "kernel_size is -1; needs"},
    {"kernel_size=2 kernel_width=-2", {}, "kernel_width is -2; needs"},
    {"kernel_size=2 stride=-1", {}, "stride is -1; needs"},
    {"kernel_size=2 stride_width=-2", {}, "stride_width is -2; needs"},
    {"kernel_size=2 padding=-1", {}, "padding is -1; needs"},
    {"kernel_size=2 padding_width=-2", {}, "padding_width is -2; needs"},
    {"kernel_size=2 padding_after=-1", {}, "padding_after is -1; needs"},
    {"kernel_size=2 pad_mode=9", {}, "pad_mode is 9; needs one of notset, ex"},
};

std::vector<Refusal> ConvRefusals() {
  std::vector<Refusal> refusals = {
      {"", {}, "out_channels is 0; needs a whole number from 1"},
      {"out_channels=3", {}, "kernel_size is 0; needs a whole number from 1"},
      {"out_channels=-3 kernel_size=1", {}, "out_channels is -3; needs"},
      {"out_channels=3 kernel_size=1 stride=0", {}, "stride is 0; needs"},
      {"out_channels=3 kernel_size=1 padding=-1", {}, "padding is -1; needs"},
      {"out_channels=3 kernel_size=1 dilation=0", {}, "dilation is 0; needs"},
      {"out_channels=3 kernel_size=1 groups=0", {}, "groups is 0; needs"},
      {"out_channels=3 kernel_size=1 activation=9",
       {},
       "activation is 9; needs one of none, relu"},
  };
  return refusals;
}

const std::vector<Refusal> kRowNormRefusals = {
    {"epsilon=0", {}, "epsilon is 0; needs"},
    {"epsilon=2", {}, "epsilon is 2; needs"},
};

std::vector<Parameter> Rows(int64_t length, bool has_bias) {
  std::vector<Parameter> params = {{"it.scale", {length}, true}};
  if (has_bias) params.push_back({"it.bias", {length}, true});
  return params;
}

std::vector<Parameter> Conv(const Shape& w) {
  return {{"it.W", w, true}, {"it.b", {w[0]}, true}};
}

// Of one layer and direction; of gates == 3 bn too.
std::vector<Parameter> Recurrent(const std::string& suffix, int64_t in,
                                 int64_t hidden, int64_t gates,
                                 bool has_bias = true) {
  std::vector<Parameter> params = {
      {"it.Wx" + suffix, {in, gates * hidden}, true},
      {"it.Wh" + suffix, {hidden, gates * hidden}, true},
      {"it.b" + suffix, {gates * hidden}, has_bias}};
  if (gates == 3) params.push_back({"it.bn" + suffix, {hidden}, has_bias});
  return params;
}

std::vector<Parameter> Joined(
    const std::vector<std::vector<Parameter>>& parts) {
  std::vector<Parameter> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Refusal> RecurrentRefusals(const char* own, const char* sentence) {
  return {{"", {}, "hidden_size is 0; needs a whole number from 1"},
          {own, {}, sentence}};
}

const std::vector<Refusal> kRecurrentBuildRefusals = {
    {"hidden_size=3", {4, 5}, "f32 (4, 5); 3 dimensions are needed"},
    {"hidden_size=3", {0, 4, 5}, "needs one step at least"},
};

const std::map<std::string, Expected>& AllExpected() {
  static const Shape kImage = {2, 4, 7, 5};
  static const std::vector<Parameter> kNorm = {{"it.scale", {4}, true},
                                               {"it.bias", {4}, true},
                                               {"it.running_mean", {4}, false},
                                               {"it.running_var", {4}, false}};
  static const std::map<std::string, Expected> all = {
      {"linear",
       {{{"out_features=3",
          {4, 5},
          {4, 3},
          {{"it.W", {5, 3}, true}, {"it.b", {3}, true}},
          CHOIR_OP_LINEAR,
          nullptr,
          false},
         {"out_features=2 bias=false",
          {3, 7},
          {3, 2},
          {{"it.W", {7, 2}, true}},
          CHOIR_OP_MATMUL,
          nullptr,
          false},
         {"out_features=3",
          {2, 4, 5},
          {2, 4, 3},
          {{"it.W", {5, 3}, true}, {"it.b", {3}, true}},
          CHOIR_OP_LINEAR,
          nullptr,
          false},
         {"out_features=2 bias=false",
          {2, 3, 1, 7},
          {2, 3, 1, 2},
          {{"it.W", {7, 2}, true}},
          CHOIR_OP_MATMUL,
          nullptr,
          false},
         {"out_features=6 activation=1",
          {4, 5},
          {4, 6},
          {{"it.W", {5, 6}, true}, {"it.b", {6}, true}},
          CHOIR_OP_LINEAR,
          nullptr,
          true}},
        {{"", {}, "out_features is 0; needs a whole number from 1"},
         {"out_features=-4", {}, "out_features is -4; needs"},
         {"out_features=4 activation=2", {}, "activation is 2; needs one of"}},
        {{"out_features=3", {4}, "f32 (4); 2 dimensions are"}},
        false}},
      {"conv2d",
       {{{"out_channels=3 kernel_size=3",
          kImage,
          {2, 3, 5, 3},
          Conv({3, 4, 3, 3}),
          CHOIR_OP_CONV2D,
          nullptr,
          false},
         {"out_channels=6 kernel_size=3 kernel_width=2 stride=2 "
          "stride_width=1 padding=1 padding_width=0 activation=1",
          kImage,
          {2, 6, 4, 4},
          Conv({6, 4, 3, 2}),
          CHOIR_OP_CONV2D,
          "stride=2,1 padding=1,0 activation=relu",
          false},
         {"out_channels=2 kernel_size=3 dilation=2 dilation_width=1 stride=2 "
          "pad_mode=3",
          kImage,
          {2, 2, 4, 3},
          Conv({2, 4, 3, 3}),
          CHOIR_OP_CONV2D,
          "stride=2 dilation=2,1 padding=2,1",
          false},
         {"out_channels=2 kernel_size=2 pad_mode=4",
          kImage,
          {2, 2, 7, 5},
          Conv({2, 4, 2, 2}),
          CHOIR_OP_CONV2D,
          "padding=1,1 pad_mode=explicit",
          false},
         {"out_channels=2 kernel_size=3 padding=1 padding_width=0 "
          "padding_after_width=2 stride_width=2 pad_mode=1",
          kImage,
          {2, 2, 6, 3},
          Conv({2, 4, 3, 3}),
          CHOIR_OP_CONV2D,
          "stride=1,2 padding=1,0 padding_after=0,2 pad_mode=explicit",
          false},
         {"out_channels=2 kernel_size=3 padding=7 pad_mode=2",
          kImage,
          {2, 2, 5, 3},
          Conv({2, 4, 3, 3}),
          CHOIR_OP_CONV2D,
          nullptr,
          false},
         {"out_channels=4 kernel_size=2 groups=2 dilation=2 padding=1",
          kImage,
          {2, 4, 7, 5},
          Conv({4, 2, 2, 2}),
          CHOIR_OP_CONV2D,
          "groups=2 dilation=2 padding=1",
          false},
         {"out_channels=3 kernel_size=1 bias=false",
          kImage,
          {2, 3, 7, 5},
          {{"it.W", {3, 4, 1, 1}, true}, {"it.b", {3}, false}},
          CHOIR_OP_CONV2D,
          nullptr,
          false}},
        ConvRefusals(),
        {{"out_channels=3 kernel_size=3",
          {4, 5},
          "f32 (4, 5); 4 dimensions are needed"},
         {"out_channels=4 kernel_size=1 groups=3",
          {2, 6, 5, 5},
          "6 input and 4 output channels in 3 groups; both must be multiples"},
         {"out_channels=3 kernel_size=3", {2, 4, 2, 5}, "it: conv2d: "},
         {"out_channels=3 kernel_size=1 kernel_width=0",
          {2, 4, 5, 5},
          "it (conv2d): kernel_width is 0; needs"},
         {"out_channels=3 kernel_size=1 stride_width=0",
          {2, 4, 5, 5},
          "it: conv2d: stride is 0; needs"}},
        false}},
      {"max_pool2d",
       {{{"kernel_size=2",
          kImage,
          {2, 4, 3, 2},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=2 stride=2",
          false},
         {"kernel_size=3 kernel_width=2 stride=1",
          kImage,
          {2, 4, 5, 4},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=3,2 stride=1",
          false},
         {"kernel_size=3 kernel_width=2",
          kImage,
          {2, 4, 2, 2},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=3,2 stride=3,2",
          false},
         {"kernel_size=2 stride=3 stride_width=1 padding=1 padding_width=0",
          kImage,
          {2, 4, 3, 4},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=2 stride=3,1 padding=1,0",
          false},
         {"kernel_size=3 stride=2 pad_mode=3",
          kImage,
          {2, 4, 4, 3},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=3 stride=2 padding=1",
          false},
         {"kernel_size=2 stride=2 pad_mode=4",
          kImage,
          {2, 4, 4, 3},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=2 stride=2 padding=1 pad_mode=explicit",
          false}},
        kWindowRefusals,
        {{"kernel_size=2", {4, 5, 5}, "f32 (4, 5, 5); 4 dimensions are"},
         {"kernel_size=9", {2, 4, 7, 5}, "it: max_pool2d: "},
         {"kernel_size=2 padding_after=2 pad_mode=1",
          {2, 4, 7, 5},
          "padding is 2 rows for a kernel of 2; needs less than the kernel"},
         {"kernel_size=2 kernel_width=0",
          {2, 4, 7, 5},
          "it: max_pool2d: kernel is 0; needs"}},
        false}},
      {"avg_pool2d",
       {{{"kernel_size=2",
          kImage,
          {2, 4, 3, 2},
          {},
          CHOIR_OP_AVG_POOL2D,
          "kernel=2 stride=2",
          false},
         {"kernel_size=2 kernel_width=3 stride=1 padding=1 padding_width=0",
          kImage,
          {2, 4, 8, 3},
          {},
          CHOIR_OP_AVG_POOL2D,
          "kernel=2,3 stride=1 padding=1,0",
          false},
         {"kernel_size=7 kernel_width=5",
          kImage,
          {2, 4, 1, 1},
          {},
          CHOIR_OP_AVG_POOL2D,
          "kernel=7,5 stride=7,5",
          false},
         {"kernel_size=2 stride=1 padding_after=1 padding_after_width=0 "
          "pad_mode=1",
          kImage,
          {2, 4, 7, 4},
          {},
          CHOIR_OP_AVG_POOL2D,
          "kernel=2 stride=1 padding_after=1,0 pad_mode=explicit",
          false}},
        kWindowRefusals,
        {{"kernel_size=2", {4, 5, 5}, "f32 (4, 5, 5); 4 dimensions are"},
         {"kernel_size=9", {2, 4, 7, 5}, "it: avg_pool2d: "},
         {"kernel_size=2 kernel_width=0",
          {2, 4, 7, 5},
          "it: avg_pool2d: kernel is 0; needs"}},
        false}},
      {"max_pool1d",
       {{{"kernel_size=2",
          kImage,
          {2, 4, 7, 2},
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=1,2 stride=1,2",
          false},
         {"kernel_size=3 stride=2 padding=1",
          {2, 4, 6},
          {2, 4, 3},
          {},
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"kernel_size=3 stride=1 pad_mode=3",
          kImage,
          kImage,
          {},
          CHOIR_OP_MAX_POOL2D,
          "kernel=1,3 stride=1,1 padding=0,1",
          false}},
        {{"", {}, "kernel_size is 0; needs a whole number from 1"},
         {"kernel_size=2 stride=-1", {}, "stride is -1; needs"}},
        {{"kernel_size=2", {4, 5}, "f32 (4, 5); 4 dimensions are"},
         {"kernel_size=9", {2, 4, 7}, "it: max_pool2d: "}},
        false}},
      {"avg_pool1d",
       {{{"kernel_size=5",
          kImage,
          {2, 4, 7, 1},
          {},
          CHOIR_OP_AVG_POOL2D,
          "kernel=1,5 stride=1,5",
          false},
         {"kernel_size=2 stride=1 padding_after=1 pad_mode=1",
          {2, 4, 6},
          {2, 4, 6},
          {},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "kernel_size is 0; needs a whole number from 1"},
         {"kernel_size=2 padding=-1", {}, "padding is -1; needs"}},
        {{"kernel_size=2", {4, 5}, "f32 (4, 5); 4 dimensions are"},
         {"kernel_size=9", {2, 4, 7}, "it: avg_pool2d: "}},
        false}},
      {"batch_norm2d",
       {{{"", kImage, kImage, kNorm, CHOIR_OP_BATCH_NORM_INFER,
          "epsilon=0.00001", false},
         {"epsilon=0.01 momentum=0.25", kImage, kImage, kNorm,
          CHOIR_OP_BATCH_NORM_INFER, "epsilon=0.01", false}},
        {{"momentum=1.5", {}, "momentum is 1.5; needs a number from 0 to 1"},
         {"momentum=-0.5", {}, "momentum is -0.5; needs"},
         {"epsilon=0", {}, "epsilon is 0; needs a number from 1e-12"}},
        {{"", {4, 5}, "f32 (4, 5); 4 dimensions are needed"}},
        true}},
      {"layer_norm",
       {{{"", {4, 5}, {4, 5}, Rows(5, true), CHOIR_OP_COUNT, nullptr, false},
         {"epsilon=0.01",
          {2, 3, 7},
          {2, 3, 7},
          Rows(7, true),
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        kRowNormRefusals,
        {},
        false}},
      {"rms_norm",
       {{{"", {4, 5}, {4, 5}, Rows(5, false), CHOIR_OP_COUNT, nullptr, false},
         {"epsilon=0.01",
          {2, 3, 7},
          {2, 3, 7},
          Rows(7, false),
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        kRowNormRefusals,
        {},
        false}},
      {"embedding",
       {{{"num_embeddings=6 embedding_dim=3",
          {4},
          {4, 3},
          {{"it.W", {6, 3}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"num_embeddings=6 embedding_dim=1 deviation=0.02",
          {2, 5},
          {2, 5, 1},
          {{"it.W", {6, 1}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "num_embeddings is 0; needs a whole number from 1"},
         {"num_embeddings=3", {}, "embedding_dim is 0; needs a whole number"},
         {"num_embeddings=3 embedding_dim=2 deviation=-1",
          {},
          "deviation is -1; needs"}},
        {{"num_embeddings=3 embedding_dim=2", {4}, "it: gather: "}},
        false,
        6}},
      {"dropout",
       {{{"", {8, 16}, {8, 16}, {}, CHOIR_OP_COPY, nullptr, false},
         {"ratio=0.25", kImage, kImage, {}, CHOIR_OP_COPY, nullptr, false}},
        {{"ratio=1", {}, "ratio is 1; needs a number from 0 to 0.999999"},
         {"ratio=-0.1", {}, "ratio is -0.1; needs"},
         {"ratio=nan", {}, "ratio is nan; needs"}},
        {},
        true}},
      {"relu",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_RELU, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_RELU, nullptr, false},
         {"enabled=false", {7}, {7}, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
      {"gelu",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_GELU, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_GELU, nullptr, false},
         {"enabled=false", {7}, {7}, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
      {"sigmoid",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_SIGMOID, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_SIGMOID, nullptr, false},
         {"enabled=false", {7}, {7}, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
      {"tanh",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_TANH, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_TANH, nullptr, false},
         {"enabled=false", {7}, {7}, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
      {"softmax",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_SOFTMAX, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_SOFTMAX, nullptr, false},
         {"enabled=false", {7}, {7}, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
      {"separable_conv2d",
       {{{"out_channels=3 kernel_size=3",
          kImage,
          {2, 3, 5, 3},
          {{"it.depthwise_conv.W", {4, 1, 3, 3}, true},
           {"it.depthwise_conv.b", {4}, false},
           {"it.point_conv.W", {3, 4, 1, 1}, true},
           {"it.point_conv.b", {3}, false}},
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"out_channels=5 kernel_size=3 stride=2 padding=1 bias=true",
          kImage,
          {2, 5, 4, 3},
          {{"it.depthwise_conv.W", {4, 1, 3, 3}, true},
           {"it.depthwise_conv.b", {4}, true},
           {"it.point_conv.W", {5, 4, 1, 1}, true},
           {"it.point_conv.b", {5}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "out_channels is 0; needs a whole number from 1"},
         {"out_channels=3", {}, "kernel_size is 0; needs a whole number"},
         {"out_channels=3 kernel_size=1 stride=0", {}, "stride is 0; needs"}},
        {{"out_channels=3 kernel_size=3",
          {4, 5},
          "f32 (4, 5); 4 dimensions are needed"},
         {"out_channels=3 kernel_size=3", {2, 4, 2, 5}, "it.depthwise_conv: "}},
        false}},
      {"rnn",
       {{{"hidden_size=3",
          {4, 2, 5},
          {4, 2, 3},
          Recurrent("", 5, 3, 1),
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"hidden_size=4 nonlinearity=1 batch_first=true bias=false",
          {2, 3, 5},
          {2, 3, 4},
          Recurrent("", 5, 4, 1, false),
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        RecurrentRefusals("hidden_size=3 nonlinearity=2",
                          "nonlinearity is 2; needs one of"),
        kRecurrentBuildRefusals,
        false}},
      {"lstm",
       {{{"hidden_size=4",
          {3, 2, 5},
          {3, 2, 4},
          Recurrent("", 5, 4, 4),
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"hidden_size=3 bidirectional=true num_layers=2",
          {4, 2, 5},
          {4, 2, 6},
          Joined({Recurrent("", 5, 3, 4), Recurrent("_reverse", 5, 3, 4),
                  Recurrent("_l1", 6, 3, 4),
                  Recurrent("_l1_reverse", 6, 3, 4)}),
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        RecurrentRefusals("hidden_size=3 dropout=1", "dropout is 1; needs"),
        kRecurrentBuildRefusals,
        false}},
      {"gru",
       {{{"hidden_size=3 bias=false",
          {4, 2, 5},
          {4, 2, 3},
          Recurrent("", 5, 3, 3, false),
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"hidden_size=3 num_layers=2",
          {4, 2, 5},
          {4, 2, 3},
          Joined({Recurrent("", 5, 3, 3), Recurrent("_l1", 3, 3, 3)}),
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        RecurrentRefusals("hidden_size=3 num_layers=0",
                          "num_layers is 0; needs"),
        kRecurrentBuildRefusals,
        false}},
      {"conv_transpose2d",
       {{{"out_channels=3 kernel_size=3 bias=false",
          kImage,
          {2, 3, 9, 7},
          {{"it.W", {4, 3, 3, 3}, true}},
          CHOIR_OP_CONV_TRANSPOSE2D,
          nullptr,
          false},
         {"out_channels=6 kernel_size=3 kernel_width=2 stride=2 "
          "stride_width=3 padding=1 padding_width=0 output_padding=1 "
          "output_padding_width=2 groups=2 bias=false",
          kImage,
          {2, 6, 14, 16},
          {{"it.W", {4, 3, 3, 2}, true}},
          CHOIR_OP_CONV_TRANSPOSE2D,
          "stride=2,3 padding=1,0 output_padding=1,2 groups=2",
          false},
         {"out_channels=2 kernel_size=2 dilation=2 dilation_width=1",
          kImage,
          {2, 2, 9, 6},
          {{"it.W", {4, 2, 2, 2}, true}, {"it.b", {2}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "out_channels is 0; needs a whole number from 1"},
         {"out_channels=3", {}, "kernel_size is 0; needs a whole number"},
         {"out_channels=3 kernel_size=1 stride=0", {}, "stride is 0; needs"}},
        {{"out_channels=3 kernel_size=3",
          {4, 5},
          "f32 (4, 5); 4 dimensions are needed"},
         {"out_channels=4 kernel_size=1 groups=3",
          {2, 6, 5, 5},
          "6 input and 4 output channels in 3 groups; both must be multiples"},
         {"out_channels=3 kernel_size=1 padding=9",
          {2, 4, 7, 5},
          "it: conv_transpose2d: the result would have -11 rows"},
         {"out_channels=3 kernel_size=1 stride=2 output_padding=2",
          {2, 4, 7, 5},
          "output_padding is 2 with a stride of 2; needs less"}},
        false}},
      {"multi_head_attention",
       {{{"num_heads=2",
          {2, 3, 4},
          {2, 3, 4},
          {{"it.query.W", {4, 4}, true},
           {"it.query.b", {4}, true},
           {"it.key.W", {4, 4}, true},
           {"it.key.b", {4}, true},
           {"it.value.W", {4, 4}, true},
           {"it.value.b", {4}, true},
           {"it.out.W", {4, 4}, true},
           {"it.out.b", {4}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false},
         {"num_heads=3 head_dim=2 value_dim=5 causal=true bias=false",
          {2, 4, 5},
          {2, 4, 5},
          {{"it.query.W", {5, 6}, true},
           {"it.key.W", {5, 6}, true},
           {"it.value.W", {5, 15}, true},
           {"it.out.W", {15, 5}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "num_heads is 0; needs a whole number from 1"},
         {"num_heads=2 dropout=1", {}, "dropout is 1; needs a number from 0"}},
        {{"num_heads=2", {4, 5}, "f32 (4, 5); 3 dimensions are needed"},
         {"num_heads=3", {2, 3, 4}, "a row has 4 elements for 3 heads"}},
        false}},
      {"gemm",
       {{{"out_features=3 bias=false",
          {4, 5},
          {4, 3},
          {{"it.W", {3, 5}, true}},
          CHOIR_OP_MATMUL,
          "transpose_b=true",
          false},
         {"out_features=3 transpose_b=false alpha=0.5 beta=2",
          {4, 5},
          {4, 3},
          {{"it.W", {5, 3}, true}, {"it.b", {1, 3}, true}},
          CHOIR_OP_COUNT,
          nullptr,
          false}},
        {{"", {}, "out_features is 0; needs a whole number from 1"}},
        {{"out_features=3", {4}, "f32 (4); 2 dimensions are"}},
        false}},
      {"cat",
       {{{"axis=1", {3, 5}, {3, 10}, {}, CHOIR_OP_CONCAT, "axis=1", false},
         {"axis=3",
          kImage,
          {2, 4, 7, 10},
          {},
          CHOIR_OP_CONCAT,
          "axis=3",
          false}},
        {{"axis=-1", {}, "axis is -1; needs a whole number from 0"}},
        {{"axis=2", {4, 5}, "it: concat: "}},
        false,
        0,
        2}},
      {"add",
       {{{"", {3, 5}, {3, 5}, {}, CHOIR_OP_ADD, nullptr, false},
         {"", kImage, kImage, {}, CHOIR_OP_ADD, nullptr, false}},
        {},
        {},
        false,
        0,
        2}},
      {"flatten",
       {{{"", kImage, {2, 140}, {}, CHOIR_OP_FLATTEN, nullptr, false},
         {"", {3, 5}, {3, 5}, {}, CHOIR_OP_FLATTEN, nullptr, false},
         {"enabled=false", kImage, kImage, {}, CHOIR_OP_COPY, nullptr, false}},
        {},
        {},
        false}},
  };
  return all;
}

// Distinct numbers, none near 0: no kink within a step of differences.
Values MakeInput(choir_dtype_t dtype, const Shape& shape, uint64_t seed) {
  Values values{dtype, shape,
                std::vector<double>(static_cast<size_t>(CountOf(shape)))};
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < values.elements.size(); ++i) {
    values.elements[i] =
        0.125 +
        static_cast<double>(i) / static_cast<double>(values.elements.size());
    if (random() % 2) values.elements[i] *= -1;
  }
  std::shuffle(values.elements.begin(), values.elements.end(), random);
  if (dtype == CHOIR_DTYPE_F32)
    for (double& element : values.elements)
      element = static_cast<double>(static_cast<float>(element));
  return values;
}

Values MakeIds(int64_t ids, const Shape& shape) {
  Values values{CHOIR_DTYPE_I64, shape,
                std::vector<double>(static_cast<size_t>(CountOf(shape)))};
  for (size_t i = 0; i < values.elements.size(); ++i)
    values.elements[i] =
        static_cast<double>((7 * static_cast<int64_t>(i) + 3) % ids);
  return values;
}

// A model of one layer called "it".
class OneLayer {
 public:
  ~OneLayer() {
    choir_scope_destroy(scope_);
    choir_model_release(model_);
  }
  OneLayer() = default;
  OneLayer(const OneLayer&) = delete;
  OneLayer& operator=(const OneLayer&) = delete;

  choir_status_t Create(choir_device_t* device, const std::string& type,
                        const std::string& config) {
    def_ = choir_layer_def_find(type.c_str());
    inputs_ = AllExpected().at(type).inputs;
    config_ = ConfigFromText(choir_layer_def_config(def_), config);
    device_ = device;
    CHOIR_TRY(choir_scope_create(device, &scope_));
    return choir_model_create(device, &model_def_, this, 3, &model_);
  }
  choir_status_t Compile(const Shape& shape,
                         choir_dtype_t dtype = CHOIR_DTYPE_F32) {
    choir_view_t x;
    CHOIR_TRY(choir_view_make(dtype, static_cast<int32_t>(shape.size()),
                              shape.data(), &x));
    return choir_model_compile(model_, &x, 1);
  }
  choir_status_t Predict(choir_tensor_t* x, choir_tensor_t** out_y) {
    return choir_model_predict(model_, &x, 1, out_y);
  }
  choir_model_t* model() { return model_; }
  choir_scope_t* scope() { return scope_; }
  choir_layer_t* layer() { return layer_; }
  const choir_param_set_t* params() { return choir_model_params(model_); }

  void Begin(bool training) {
    const choir_step_t step = {training, 5, 2, 8, 4, 16};
    choir_scope_begin(scope_, &step);
  }

  choir_var_t* Call(choir_scope_t* scope, choir_var_t* x) {
    const std::vector<choir_var_t*> all(inputs_, x);
    return choir_layer_forward_list(
        scope, layer_, {all.data(), static_cast<int32_t>(inputs_)});
  }
  // All elements of the layer's result on x.
  std::vector<double> Run(choir_tensor_t* x, bool training) {
    Begin(training);
    choir_var_t* y = Call(scope_, choir_scope_input(scope_, x));
    std::vector<double> elements = ReadAll(choir_var_tensor(y));
    EXPECT_OK(choir_scope_end(scope_));
    return elements;
  }

  // Numbers in the place of the initial values; variances are positive.
  void FillParams() {
    for (size_t i = 0; i < params()->count; ++i) {
      choir_param_t* param = params()->params[i];
      std::string name = param->name;
      if (!param->trainable && name.substr(name.size() - 2) == ".b")
        continue;  // of no bias
      Values values = MakeInput(choir_tensor_dtype(param->value),
                                ShapeOf(param->value), 70 + i);
      for (double& element : values.elements)
        if (name.find("var") != std::string::npos) element = std::fabs(element);
      WriteAll(param->value, values.elements);
    }
  }

  static Shape ShapeOf(const choir_tensor_t* tensor) {
    const int64_t* shape = choir_tensor_shape(tensor);
    return Shape(shape, shape + choir_tensor_ndim(tensor));
  }
  static std::vector<double> ReadAll(choir_tensor_t* tensor) {
    if (!tensor) return {};
    size_t count = static_cast<size_t>(choir_tensor_count(tensor));
    std::vector<double> elements(count);
    if (choir_tensor_dtype(tensor) == CHOIR_DTYPE_F64) {
      EXPECT_OK(
          choir_tensor_read(tensor, elements.data(), count * sizeof(double)));
      return elements;
    }
    std::vector<float> floats(count);
    EXPECT_OK(choir_tensor_read(tensor, floats.data(), count * sizeof(float)));
    return std::vector<double>(floats.begin(), floats.end());
  }
  static void WriteAll(choir_tensor_t* tensor,
                       const std::vector<double>& elements) {
    if (choir_tensor_dtype(tensor) == CHOIR_DTYPE_F64) {
      ASSERT_OK(choir_tensor_write(tensor, elements.data(),
                                   elements.size() * sizeof(double)));
      return;
    }
    std::vector<float> floats(elements.begin(), elements.end());
    ASSERT_OK(choir_tensor_write(tensor, floats.data(),
                                 floats.size() * sizeof(float)));
  }

 private:
  static void Define(choir_model_t* model, void* self) {
    OneLayer* one = static_cast<OneLayer*>(self);
    one->layer_ =
        choir_layer_create(model, "it", one->def_, one->config_.data());
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    return static_cast<OneLayer*>(self)->Call(scope, inputs.at[0]);
  }

  const choir_model_def_t model_def_ = {"one", Define, Forward, nullptr};
  const choir_layer_def_t* def_ = nullptr;
  std::vector<unsigned char> config_;
  choir_device_t* device_ = nullptr;
  choir_model_t* model_ = nullptr;
  choir_layer_t* layer_ = nullptr;
  size_t inputs_ = 1;
  choir_scope_t* scope_ = nullptr;
};

using Line = std::pair<std::string, std::string>;  // device, layer

class LayerSuite : public ::testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    std::string why;
    device_ = Device(GetParam().first, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    type_ = GetParam().second;
    ASSERT_EQ(AllExpected().count(type_), 1u)
        << "layer " << type_ << " has no entry in this suite";
    expected_ = &AllExpected().at(type_);
    ASSERT_GE(expected_->cases.size(), 2u);
  }
  Values Input(choir_dtype_t dtype, const Shape& shape) const {
    return expected_->ids ? MakeIds(expected_->ids, shape)
                          : MakeInput(dtype, shape, 1);
  }
  choir_status_t Compile(OneLayer* it, const Shape& shape) const {
    return it->Compile(shape,
                       expected_->ids ? CHOIR_DTYPE_I64 : CHOIR_DTYPE_F32);
  }
  choir_device_t* device_ = nullptr;
  std::string type_;
  const Expected* expected_ = nullptr;
};

TEST_P(LayerSuite, HasItsShapesAndParameters) {
  for (const Case& one : expected_->cases) {
    SCOPED_TRACE(one.config);
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, one.config));
    EXPECT_STREQ(choir_layer_name(it.layer()), "it");
    ASSERT_OK(Compile(&it, one.input));
    ASSERT_EQ(it.params()->count, one.params.size());
    for (size_t i = 0; i < one.params.size(); ++i) {
      const choir_param_t* param = it.params()->params[i];
      EXPECT_EQ(param->name, one.params[i].name);
      EXPECT_EQ(OneLayer::ShapeOf(param->value), one.params[i].shape);
      EXPECT_EQ(choir_tensor_dtype(param->value), CHOIR_DTYPE_F32);
      EXPECT_EQ(param->trainable, one.params[i].trainable);
      ASSERT_EQ(param->grad != nullptr, param->trainable);
      if (!param->grad) continue;
      const int64_t* strides = choir_tensor_strides(param->value);
      const int64_t* others = choir_tensor_strides(param->grad);
      for (size_t k = 0; k < one.params[i].shape.size(); ++k)
        EXPECT_EQ(strides[k], others[k]);
    }
    // Any batch size may follow.
    for (int64_t batch : {one.input[0], INT64_C(1), one.input[0] + 3}) {
      Shape input = one.input;
      Shape output = one.output;
      input[0] = batch;
      output[0] = batch;
      Placed x(device_, Input(CHOIR_DTYPE_F32, input), kContiguous);
      choir_tensor_t* y = nullptr;
      ASSERT_OK(it.Predict(x.tensor(), &y));
      EXPECT_EQ(OneLayer::ShapeOf(y), output);
      EXPECT_EQ(choir_tensor_dtype(y), CHOIR_DTYPE_F32);
      choir_tensor_release(y);
    }
  }
}

TEST_P(LayerSuite, ComputesItsOp) {
  for (const Case& one : expected_->cases) {
    SCOPED_TRACE(one.config);
    if (one.op == CHOIR_OP_COUNT) continue;
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, one.config));
    ASSERT_OK(Compile(&it, one.input));
    it.FillParams();
    for (Layout layout : {kContiguous, kChannelsLast, kGaps}) {
      if (layout == kChannelsLast && one.input.size() != 4) continue;
      Placed x(device_, MakeInput(CHOIR_DTYPE_F32, one.input, 1), layout);
      std::vector<choir_tensor_t*> srcs(expected_->inputs, x.tensor());
      for (size_t i = 0; i < it.params()->count; ++i)
        srcs.push_back(it.params()->params[i]->value);
      std::vector<unsigned char> attrs = ParseAttrs(one.op, one.attrs);
      choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
      ASSERT_OK(choir_op_run(choir_device_stream(device_), one.op, srcs.data(),
                             static_cast<int32_t>(srcs.size()),
                             attrs.empty() ? nullptr : attrs.data(), false,
                             dsts));
      std::vector<double> expected = OneLayer::ReadAll(dsts[0]);
      for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
      for (double& element : expected)
        if (one.relu) element = std::fmax(element, 0);
      EXPECT_EQ(it.Run(x.tensor(), false), expected);
      if (expected_->trains_differently) {
        EXPECT_NE(it.Run(x.tensor(), true), expected);
        // Running averages have moved; the next layout starts anew.
        it.FillParams();
      } else {
        EXPECT_EQ(it.Run(x.tensor(), true), expected);
      }
      x.ExpectUnchanged();
    }
  }
}

TEST_P(LayerSuite, GivesTheSameOnEveryDevice) {
  for (const Case& one : expected_->cases) {
    for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64}) {
      SCOPED_TRACE(std::string(one.config) + ", " + choir_dtype_name(dtype));
      std::vector<double> results[2][2];  // by device, in training
      choir_device_t* devices[] = {Device("cpu"), device_};
      for (size_t d = 0; d < 2; ++d) {
        OneLayer it;
        ASSERT_OK(it.Create(devices[d], type_, one.config));
        Placed x(devices[d], Input(dtype, one.input), kContiguous);
        it.Run(x.tensor(), false);  // makes the parameters
        it.FillParams();
        results[d][0] = it.Run(x.tensor(), false);
        results[d][1] = it.Run(x.tensor(), true);
        // Running averages as training left them.
        for (size_t i = 0; i < it.params()->count; ++i)
          for (double element :
               OneLayer::ReadAll(it.params()->params[i]->value))
            results[d][1].push_back(element);
      }
      bool same_kernels = std::string(choir_device_kernels(device_)) == "cpu";
      double tolerance = dtype == CHOIR_DTYPE_F64 ? 1e-12 : 1e-5;
      for (size_t mode = 0; mode < 2; ++mode) {
        if (same_kernels) {
          EXPECT_EQ(results[1][mode], results[0][mode]);
          continue;
        }
        ASSERT_EQ(results[1][mode].size(), results[0][mode].size());
        for (size_t i = 0; i < results[0][mode].size(); ++i)
          ASSERT_NEAR(results[1][mode][i], results[0][mode][i],
                      tolerance * (1 + std::fabs(results[0][mode][i])))
              << "element " << i;
      }
    }
  }
}

// sum(w * y) of the layer in training.
class Loss {
 public:
  Loss(OneLayer* it, choir_device_t* device, const Shape& output)
      : it_(it),
        weights_(MakeInput(CHOIR_DTYPE_F64, output, 9)),
        placed_(device, weights_, kContiguous) {}
  double operator()(choir_tensor_t* x) {
    std::vector<double> y = it_->Run(x, true);
    EXPECT_EQ(y.size(), weights_.elements.size());
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights_.elements[i];
    return sum;
  }
  choir_var_t* Var(choir_var_t* y) {
    choir_scope_t* scope = it_->scope();
    return choir_var_sum(
        scope,
        choir_var_mul(scope, y, choir_scope_input(scope, placed_.tensor())),
        nullptr);
  }

 private:
  OneLayer* it_;
  Values weights_;
  Placed placed_;
};

TEST_P(LayerSuite, GradientsAgreeWithFiniteDifferences) {
  if (expected_->ids) return;  // its own: tests/model/row_layers_test.cc
  constexpr double kStep = 1e-5;
  for (const Case& one : expected_->cases) {
    for (Layout layout : {kContiguous, kChannelsLast, kGaps}) {
      if (layout == kChannelsLast && one.input.size() != 4) continue;
      SCOPED_TRACE(one.config);
      OneLayer it;
      ASSERT_OK(it.Create(device_, type_, one.config));
      Placed x(device_, MakeInput(CHOIR_DTYPE_F64, one.input, 1), layout);
      it.Run(x.tensor(), false);
      it.FillParams();
      Loss loss(&it, device_, one.output);
      it.Begin(true);
      choir_var_t* input = choir_scope_leaf(it.scope(), x.tensor());
      choir_var_t* y = it.Call(it.scope(), input);
      std::vector<choir_param_t*> params;
      std::vector<choir_tensor_t*> tensors = {x.tensor()};
      for (size_t i = 0; i < it.params()->count; ++i) {
        if (!it.params()->params[i]->trainable) continue;
        params.push_back(it.params()->params[i]);
        tensors.push_back(params.back()->value);
      }
      const choir_backward_options_t options = {params.data(), params.size(),
                                                nullptr, nullptr};
      choir_scope_backward(it.scope(), loss.Var(y), &options);
      std::vector<std::vector<double>> grads;
      ASSERT_TRUE(choir_scope_is_ok(it.scope()))
          << choir_status_message(choir_scope_end(it.scope()));
      grads.push_back(OneLayer::ReadAll(choir_var_grad(input)));
      ASSERT_OK(choir_scope_end(it.scope()));
      for (choir_param_t* param : params)
        grads.push_back(OneLayer::ReadAll(param->grad));

      std::mt19937_64 random(4);
      for (size_t t = 0; t < tensors.size(); ++t) {
        const std::vector<double> start = OneLayer::ReadAll(tensors[t]);
        ASSERT_EQ(grads[t].size(), start.size());
        for (size_t probe = 0; probe < 8; ++probe) {
          size_t i = random() % start.size();
          std::vector<double> moved = start;
          moved[i] = start[i] + kStep;
          OneLayer::WriteAll(tensors[t], moved);
          double above = loss(x.tensor());
          moved[i] = start[i] - kStep;
          OneLayer::WriteAll(tensors[t], moved);
          double slope = (above - loss(x.tensor())) / (2 * kStep);
          ASSERT_NEAR(grads[t][i], slope, 1e-6 * std::fmax(1, std::fabs(slope)))
              << (t ? params[t - 1]->name : "x") << ", element " << i;
        }
        OneLayer::WriteAll(tensors[t], start);
      }
    }
  }
}

// ---- Refusals ----

TEST_P(LayerSuite, RefusesWrongSettings) {
  for (const Refusal& refusal : expected_->config) {
    SCOPED_TRACE(refusal.config);
    OneLayer it;
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "layer it: " + type_ + ": " + refusal.sentence,
                  it.Create(device_, type_, refusal.config));
    EXPECT_EQ(it.model(), nullptr);
  }
}

TEST_P(LayerSuite, RefusesEveryNumberOutOfRange) {
  const choir_struct_def_t* def =
      choir_layer_def_config(choir_layer_def_find(type_.c_str()));
  EXPECT_EQ(def->name, type_);
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t& field = def->fields[i];
    EXPECT_FALSE(std::string(field.doc).empty()) << field.name;
    if (field.kind != CHOIR_FIELD_KIND_INT &&
        field.kind != CHOIR_FIELD_KIND_FLOAT)
      continue;
    for (const char* value : {"-9", "9000000000000"}) {
      if (std::stod(value) >= field.minimum && value[0] == '-') continue;
      OneLayer it;
      std::string config = expected_->cases[0].config;
      config += (config.empty() ? "" : " ") + std::string(field.name) + "=";
      config += value;
      EXPECT_STATUS(INVALID_ARGUMENT,
                    "layer it: " + type_ + ": " + field.name + " is ",
                    it.Create(device_, type_, config));
    }
  }
}

TEST_P(LayerSuite, RefusesWrongInputs) {
  for (const Refusal& refusal : expected_->at_build) {
    SCOPED_TRACE(refusal.sentence);
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, refusal.config));
    choir_status_t status = it.Compile(refusal.input);
    EXPECT_EQ(std::string(choir_status_message(status))
                  .find("model one: compile: it"),
              0u)
        << choir_status_message(status);
    EXPECT_STATUS(INVALID_ARGUMENT, refusal.sentence, status);
  }
}

// An input of another width than that which it was built for.
TEST_P(LayerSuite, RefusesOtherWidthsThanItLearnt) {
  const Case& one = expected_->cases[0];
  if (one.params.empty() || expected_->ids) return;
  OneLayer it;
  ASSERT_OK(it.Create(device_, type_, one.config));
  ASSERT_OK(it.Compile(one.input));
  Shape wider = one.input;
  wider[wider.size() == 3 ? 2 : 1] += 1;  // of sequences the last
  Placed x(device_, MakeInput(CHOIR_DTYPE_F32, wider, 1), kContiguous);
  choir_tensor_t* y = nullptr;
  const std::string param = one.params[0].name;
  EXPECT_STATUS(INVALID_ARGUMENT, param.substr(0, param.rfind('.')) + ": ",
                it.Predict(x.tensor(), &y));
  EXPECT_EQ(y, nullptr);
}

std::vector<Line> AllLines() {
  std::vector<Line> lines;
  for (const char* device : kDevices) {
#define LINE(name, FIELDS) lines.emplace_back(device, #name);
    CHOIR_LAYER_LIST(LINE)
#undef LINE
  }
  return lines;
}

INSTANTIATE_TEST_SUITE_P(All, LayerSuite, ::testing::ValuesIn(AllLines()),
                         [](const ::testing::TestParamInfo<Line>& info) {
                           return info.param.first + "_" + info.param.second;
                         });

}  // namespace
