// SPDX-License-Identifier: Apache-2.0
// Multi-head attention in numbers: its formula in plain loops, with masks,
// lengths and widths of their own. Gradients: tests/conformance/layer_suite.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

constexpr int64_t kBatch = 2, kHeads = 2, kWidth = 4;

class MultiHeadAttentionLayerTest : public ::testing::Test {
 protected:
  MultiHeadAttentionLayerTest() : device_(MakeDevice("cpu")) {
    config_ = {CHOIR_CONFIG_DEFAULTS(CHOIR_MULTI_HEAD_ATTENTION_FIELDS)};
    config_.num_heads = kHeads;
  }
  ~MultiHeadAttentionLayerTest() override { choir_model_release(model_); }

  TensorPtr Input(int64_t length, int64_t width, uint32_t seed) {
    return Make(device_.get(), {kBatch, length, width},
                Floats(kBatch * length * width, seed));
  }
  choir_status_t Predict(const std::vector<choir_tensor_t*>& inputs,
                         std::vector<float>* out) {
    static const choir_model_def_t def = {"one", Define, Forward, nullptr};
    choir_model_release(model_);
    model_ = nullptr;
    CHOIR_TRY(choir_model_create(device_.get(), &def, this, 1, &model_));
    std::vector<choir_view_t> views;
    for (choir_tensor_t* x : inputs) views.push_back(*choir_tensor_view(x));
    const int32_t count = static_cast<int32_t>(views.size());
    CHOIR_TRY(choir_model_compile(model_, views.data(), count));
    choir_tensor_t* y = nullptr;
    CHOIR_TRY(choir_model_predict(model_, inputs.data(), count, &y));
    *out = Read<float>(y);
    choir_tensor_release(y);
    return nullptr;
  }
  // x of (rows, in) through child `name`.
  std::vector<double> Linear(const std::string& name,
                             const std::vector<double>& x, int64_t in) const {
    std::vector<float> w, b;
    const choir_param_set_t* params = choir_model_params(model_);
    for (size_t i = 0; i < params->count; ++i) {
      const std::string full = params->params[i]->name;
      if (full == "it." + name + ".W")
        w = Read<float>(params->params[i]->value);
      if (full == "it." + name + ".b")
        b = Read<float>(params->params[i]->value);
    }
    const size_t width = static_cast<size_t>(in), out = w.size() / width;
    std::vector<double> y;
    for (size_t row = 0; row < x.size() / width; ++row)
      for (size_t c = 0; c < out; ++c) {
        double sum = b.empty() ? 0 : b[c];
        for (size_t k = 0; k < width; ++k)
          sum += x[row * width + k] * w[k * out + c];
        y.push_back(sum);
      }
    return y;
  }
  // Rotary positions, of (samples, rows, heads, dim): pairs of columns as
  // complex numbers, times e^(i angle).
  static void Turn(std::vector<double>* x, int64_t rows, int64_t heads,
                   int64_t dim, double theta) {
    const size_t half = static_cast<size_t>(dim / 2);
    for (size_t i = 0; i < x->size(); ++i) {
      const size_t j = i % (2 * half);
      if (j >= half) continue;
      const int64_t head = static_cast<int64_t>(i) / dim;
      const double place = static_cast<double>(head / heads % rows);
      const double power = static_cast<double>(j) / static_cast<double>(half);
      const std::complex<double> turned =
          std::complex<double>((*x)[i], (*x)[i + half]) *
          std::polar(1.0, place * std::pow(theta, -power));
      (*x)[i] = turned.real();
      (*x)[i + half] = turned.imag();
    }
  }
  // `added`: to the score of (sample, head, row, column).
  template <typename Added>
  void Expect(const std::vector<float>& got, choir_tensor_t* query,
              choir_tensor_t* key, choir_tensor_t* value, const Added& added) {
    auto wide = [](choir_tensor_t* tensor) {
      const std::vector<float> elements = Read<float>(tensor);
      return std::vector<double>(elements.begin(), elements.end());
    };
    auto size = [](choir_tensor_t* x, int k) {
      return choir_tensor_shape(x)[k];
    };
    std::vector<double> q = Linear("query", wide(query), size(query, 2));
    std::vector<double> k = Linear("key", wide(key), size(key, 2));
    const std::vector<double> v = Linear("value", wide(value), size(value, 2));
    const int64_t t = size(query, 1), s = size(key, 1);
    // Heads of query; of key and value, and how many of query one serves.
    const int64_t heads = config_.num_heads;
    const int64_t served = config_.kv_heads ? config_.kv_heads : heads;
    const int64_t group = heads / served;
    const int64_t d = static_cast<int64_t>(q.size()) / (kBatch * t * heads);
    const int64_t e = static_cast<int64_t>(v.size()) / (kBatch * s * served);
    if (config_.rotary > 0) {
      Turn(&q, t, heads, d, config_.rotary);
      Turn(&k, s, served, d, config_.rotary);
    }
    auto at = [](int64_t n, int64_t row, int64_t rows, int64_t heads,
                 int64_t head, int64_t dim, int64_t i) {
      return static_cast<size_t>(((n * rows + row) * heads + head) * dim + i);
    };
    std::vector<double> joined(static_cast<size_t>(kBatch * t * heads * e));
    for (int64_t n = 0; n < kBatch; ++n)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < t; ++i) {
          std::vector<double> weights;
          double sum = 0;
          for (int64_t j = 0; j < s; ++j) {
            double score = 0;
            for (int64_t c = 0; c < d; ++c)
              score += q[at(n, i, t, heads, h, d, c)] *
                       k[at(n, j, s, served, h / group, d, c)];
            score = score / std::sqrt(static_cast<double>(d));
            weights.push_back(std::exp(score + added(n, h, i, j)));
            sum += weights.back();
          }
          for (int64_t j = 0; j < s; ++j)
            for (int64_t c = 0; c < e; ++c)
              joined[at(n, i, t, heads, h, e, c)] +=
                  weights[static_cast<size_t>(j)] / sum *
                  v[at(n, j, s, served, h / group, e, c)];
        }
    const std::vector<double> want = Linear("out", joined, heads * e);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-5) << i;
  }

  static void Define(choir_model_t* model, void* self) {
    auto* test = static_cast<MultiHeadAttentionLayerTest*>(self);
    test->layer_ = choir_layer_create(
        model, "it", &choir_layer_def_multi_head_attention, &test->config_);
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    return choir_layer_forward_list(
        scope, static_cast<MultiHeadAttentionLayerTest*>(self)->layer_, inputs);
  }

  DevicePtr device_;
  choir_multi_head_attention_config_t config_;
  choir_layer_t* layer_ = nullptr;
  choir_model_t* model_ = nullptr;
};

TEST_F(MultiHeadAttentionLayerTest, LooksAtItself) {
  const TensorPtr x = Input(3, kWidth, 5);
  for (bool bias : {true, false}) {
    config_.bias = bias;
    std::vector<float> y;
    ASSERT_OK(Predict({x.get()}, &y));
    Expect(y, x.get(), x.get(), x.get(),
           [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
  }
}

TEST_F(MultiHeadAttentionLayerTest, LooksAtOthersOfAnotherLengthAndWidth) {
  config_.head_dim = 3;
  config_.value_dim = 5;
  const TensorPtr query = Input(3, kWidth, 5), key = Input(6, 7, 6),
                  value = Input(6, 2, 7);
  std::vector<float> y;
  ASSERT_OK(Predict({query.get(), key.get(), value.get()}, &y));
  Expect(y, query.get(), key.get(), value.get(),
         [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
}

TEST_F(MultiHeadAttentionLayerTest, MasksPlacesAndAddsToScores) {
  const TensorPtr x = Input(3, kWidth, 5);
  std::vector<float> y;
  // Of each sample its own columns, for all heads and rows.
  const std::vector<uint8_t> seen = {1, 0, 1, 1, 1, 0};
  const TensorPtr mask = Make(device_.get(), {kBatch, 1, 1, 3}, seen);
  ASSERT_OK(Predict({x.get(), mask.get()}, &y));
  Expect(y, x.get(), x.get(), x.get(),
         [&](int64_t n, int64_t, int64_t, int64_t j) {
           return seen[static_cast<size_t>(n * 3 + j)] ? 0.0 : -HUGE_VAL;
         });
  const std::vector<float> numbers = Floats(9, 8);
  const TensorPtr added = Make(device_.get(), {3, 3}, numbers);
  ASSERT_OK(Predict({x.get(), x.get(), x.get(), added.get()}, &y));
  Expect(y, x.get(), x.get(), x.get(),
         [&](int64_t, int64_t, int64_t i, int64_t j) {
           return static_cast<double>(numbers[static_cast<size_t>(i * 3 + j)]);
         });
}

// Without a mask and with one that is added.
TEST_F(MultiHeadAttentionLayerTest, HeadsShareKeysAndValues) {
  config_.num_heads = 4;
  config_.head_dim = 3;
  config_.value_dim = 2;
  const TensorPtr query = Input(3, kWidth, 5), key = Input(5, 6, 6);
  const std::vector<float> numbers = Floats(4 * 3 * 5, 8);
  const TensorPtr added = Make(device_.get(), {4, 3, 5}, numbers);
  for (int64_t served : {1, 2, 4}) {
    config_.kv_heads = served;
    std::vector<float> y;
    ASSERT_OK(Predict({query.get(), key.get(), key.get()}, &y));
    Expect(y, query.get(), key.get(), key.get(),
           [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
    ASSERT_OK(Predict({query.get(), key.get(), key.get(), added.get()}, &y));
    Expect(y, query.get(), key.get(), key.get(),
           [&](int64_t, int64_t h, int64_t i, int64_t j) {
             return static_cast<double>(
                 numbers[static_cast<size_t>((h * 3 + i) * 5 + j)]);
           });
  }
}

TEST_F(MultiHeadAttentionLayerTest, TurnsQueryAndKeyByTheirPlaces) {
  config_.num_heads = 4;
  config_.kv_heads = 2;
  config_.head_dim = 6;
  config_.value_dim = 3;
  config_.rotary = 50;
  const TensorPtr query = Input(7, kWidth, 5), key = Input(5, 3, 6);
  std::vector<float> y;
  ASSERT_OK(Predict({query.get(), key.get(), key.get()}, &y));
  Expect(y, query.get(), key.get(), key.get(),
         [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
  const std::vector<float> numbers = Floats(7 * 5, 8);
  const TensorPtr added = Make(device_.get(), {7, 5}, numbers);
  ASSERT_OK(Predict({query.get(), key.get(), key.get(), added.get()}, &y));
  Expect(y, query.get(), key.get(), key.get(),
         [&](int64_t, int64_t, int64_t i, int64_t j) {
           return static_cast<double>(numbers[static_cast<size_t>(i * 5 + j)]);
         });
}

TEST_F(MultiHeadAttentionLayerTest, SeesNothingLaterWhereCausal) {
  config_.causal = true;
  for (const Shape& lengths : {Shape{3, 3}, Shape{4, 2}, Shape{2, 5},
                               Shape{1, 1}, Shape{1, 3}, Shape{3, 1}}) {
    const TensorPtr query = Input(lengths[0], kWidth, 5),
                    key = Input(lengths[1], kWidth, 6);
    std::vector<float> y;
    ASSERT_OK(Predict({query.get(), key.get(), key.get()}, &y));
    Expect(y, query.get(), key.get(), key.get(),
           [](int64_t, int64_t, int64_t i, int64_t j) {
             return j <= i ? 0.0 : -HUGE_VAL;
           });
  }
}

TEST_F(MultiHeadAttentionLayerTest, RefusesWhatDoesNotFit) {
  config_.num_heads = 3;
  const TensorPtr x = Input(3, kWidth, 5);
  std::vector<float> y;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "it (multi_head_attention): a row has 4 elements for 3",
                Predict({x.get()}, &y));
  config_.num_heads = kHeads;
  const TensorPtr flat = Make(device_.get(), {3, 4}, Floats(12, 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "3 dimensions are needed",
                Predict({x.get(), flat.get(), x.get()}, &y));
}

}  // namespace
