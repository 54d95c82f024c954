// SPDX-License-Identifier: Apache-2.0
// Layers of rows in numbers: layer norm, RMS norm, and the rows of a table.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "model/model.h"
#include "tests/model/model_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Chain;
using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Net;
using choir::testing::Read;
using choir::testing::TensorPtr;

constexpr size_t kRows = 6;
constexpr size_t kColumns = 5;
constexpr double kEpsilon = 0.01;

std::vector<double> Normalised(const std::vector<float>& x, bool centred) {
  std::vector<double> y;
  for (size_t r = 0; r < kRows; ++r) {
    double mean = 0, square = 0;
    for (size_t c = 0; centred && c < kColumns; ++c)
      mean += x[r * kColumns + c] / double{kColumns};
    for (size_t c = 0; c < kColumns; ++c)
      square += std::pow(x[r * kColumns + c] - mean, 2) / double{kColumns};
    for (size_t c = 0; c < kColumns; ++c)
      y.push_back((x[r * kColumns + c] - mean) / std::sqrt(square + kEpsilon));
  }
  return y;
}

TEST(RowLayersTest, NormalisesEachRow) {
  const DevicePtr device = MakeDevice("cpu");
  for (const auto& [centred, biased] :
       {std::pair{false, false}, {true, true}, {true, false}}) {
    Net net(
        [centred = centred, biased = biased](Net* self) {
          choir_layer_norm_config_t norm = {
              CHOIR_CONFIG_DEFAULTS(CHOIR_LAYER_NORM_FIELDS)};
          choir_rms_norm_config_t rms = {
              CHOIR_CONFIG_DEFAULTS(CHOIR_ROW_NORM_FIELDS)};
          norm.epsilon = rms.epsilon = kEpsilon;
          norm.bias = biased;
          if (centred)
            self->Add("norm", &choir_layer_def_layer_norm, norm);
          else
            self->Add("norm", &choir_layer_def_rms_norm, rms);
        },
        Chain);
    ASSERT_OK(net.Create(device.get()));
    ASSERT_OK(net.Compile({1, 3, kColumns}));
    const std::vector<float> scale = {1, 2, -1, 0.5, 3};
    const std::vector<float> bias = {0.25, 0, 1, -1, 2};
    net.SetValue(0, scale);
    if (biased) net.SetValue(1, bias);
    const std::vector<float> x = Floats(kRows * kColumns, 3);
    const std::vector<double> want = Normalised(x, centred);
    const std::vector<float> got =
        net.Predict(Make(device.get(), {2, 3, kColumns}, x).get());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(
          got[i],
          want[i] * scale[i % kColumns] + (biased ? bias[i % kColumns] : 0),
          1e-5);
  }
}

// A word that comes twice gets both gradients, one that does not come none.
TEST(RowLayersTest, EmbeddingChoosesAndLearnsRows) {
  const DevicePtr device = MakeDevice("cpu");
  Net net(
      [](Net* self) {
        choir_embedding_config_t config = {
            CHOIR_CONFIG_DEFAULTS(CHOIR_EMBEDDING_FIELDS)};
        config.num_embeddings = 4;
        config.embedding_dim = 2;
        self->Add("words", &choir_layer_def_embedding, config);
      },
      Chain,
      [](Net* self, choir_scope_t* scope, choir_var_t* x, choir_var_t* y,
         choir_var_t** out_loss) {
        choir_var_t* out = Chain(self, scope, x);
        choir_var_t* weighted = choir_var_mul(scope, out, y);
        choir_reshape_attrs_t flat = {};
        flat.ndim = 1;
        flat.shape[0] = 8;
        *out_loss = choir_var_sum(
            scope, choir_var_reshape(scope, weighted, &flat), nullptr);
        choir_model_backward_and_update(self->get(), scope, *out_loss);
        return out;
      });
  ASSERT_OK(net.Create(device.get()));
  choir_view_t ids;
  const int64_t shape[] = {1, 2};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_I32, 2, shape, &ids));
  ASSERT_OK(choir_model_compile(net.get(), &ids, 1));
  ASSERT_OK(net.UseSgd(1));
  const std::vector<float> table = {1, 2, 3, 4, 5, 6, 7, 8};
  net.SetValue(0, table);
  const TensorPtr x =
      Make(device.get(), {2, 2}, std::vector<int32_t>{2, 0, 2, -1});
  EXPECT_EQ(net.Predict(x.get()), (std::vector<float>{5, 6, 1, 2, 5, 6, 7, 8}));
  const TensorPtr weights =
      Make<float>(device.get(), {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const choir_model_batch_t batch = {{x.get()}, {weights.get()}, 0, 2, 2};
  ASSERT_OK(choir_model_train_one_batch(net.get(), &batch));
  EXPECT_EQ(net.value(0),
            (std::vector<float>{1 - 3, 2 - 4, 3, 4, 5 - 6, 6 - 8, 7 - 7, 0}));
  const TensorPtr outside =
      Make(device.get(), {1, 2}, std::vector<int32_t>{4, 0});
  choir_tensor_t* y = nullptr;
  EXPECT_STATUS(OUT_OF_RANGE,
                "words: gather: ", net.Predict(outside.get(), &y));
}

}  // namespace
