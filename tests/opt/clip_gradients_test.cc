// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients, by numbers that are worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "opt/optimizer.h"
#include "tests/opt/param_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::MakeDevice;
using choir::testing::ParamSet;

choir_gradient_clip_t Clip(double value, double norm) {
  choir_gradient_clip_t clip = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_GRADIENT_CLIP_FIELDS)};
  clip.value = value;
  clip.norm = norm;
  return clip;
}

// SGD with rate 1 on parameters that are 0: they are minus the gradients that
// the update saw.
template <typename T>
class Clipped {
 public:
  Clipped(const char* device, double value, double norm)
      : device_(MakeDevice(device)), params_(device_.get()) {
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = 1;
    EXPECT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd_));
    const choir_gradient_clip_t clip = Clip(value, norm);
    EXPECT_OK(choir_optimizer_set_clip(sgd_, &clip));
  }
  ~Clipped() { choir_optimizer_release(sgd_); }
  Clipped(const Clipped&) = delete;
  Clipped& operator=(const Clipped&) = delete;

  void Add(const std::vector<T>& grad) {
    params_.Add("p" + std::to_string(params_.size()),
                {static_cast<int64_t>(grad.size())},
                std::vector<T>(grad.size()));
    params_.SetGrad(params_.size() - 1, grad);
  }
  void Attach() {
    ASSERT_OK(choir_optimizer_attach(sgd_, device_.get(), params_.list()));
  }
  choir_status_t Update() { return choir_optimizer_update(sgd_, stream(), 0); }
  // Minus the parameter.
  std::vector<T> Seen(size_t i) {
    std::vector<T> seen = params_.value(i);
    for (T& element : seen) element = -element;
    return seen;
  }
  choir_stream_t* stream() { return choir_device_stream(device_.get()); }
  choir_device_t* device() { return device_.get(); }
  ParamSet<T>& params() { return params_; }

 private:
  DevicePtr device_;
  ParamSet<T> params_;
  choir_optimizer_t* sgd_ = nullptr;
};

class ClipTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ClipTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

using Values = std::vector<float>;

TEST_P(ClipTest, ByValue) {
  Clipped<float> one(GetParam(), 0.5, 0);
  one.Add({0.25f, 0.5f, 0.75f, -3});
  one.Add({-0.5f, -0.25f});
  one.Attach();
  ASSERT_OK(one.Update());
  EXPECT_EQ(one.Seen(0), (Values{0.25f, 0.5f, 0.5f, -0.5f}));
  EXPECT_EQ(one.Seen(1), (Values{-0.5f, -0.25f}));
  EXPECT_EQ(one.params().grad(0), (Values{0.25f, 0.5f, 0.5f, -0.5f}));
}

// The norm of (3, 0, 4), (12) is 13.
TEST_P(ClipTest, ByTheNormOfAll) {
  Clipped<float> one(GetParam(), 0, 3.25);
  one.Add({3, 0, -4});
  one.Add({12});
  one.Attach();
  ASSERT_OK(one.Update());
  EXPECT_EQ(one.Seen(0), (Values{0.75f, 0, -1}));
  EXPECT_EQ(one.Seen(1), (Values{3}));
}

TEST_P(ClipTest, ValuesComeBeforeTheNorm) {
  Clipped<float> one(GetParam(), 4, 2.5);
  one.Add({3});
  one.Add({-100});
  one.Attach();
  ASSERT_OK(one.Update());
  EXPECT_EQ(one.Seen(0), (Values{1.5f}));
  EXPECT_EQ(one.Seen(1), (Values{-2}));
}

// Up to the limit the gradients are multiplied by 1.
TEST_P(ClipTest, LeavesTheBitsBelowTheLimit) {
  Clipped<float> one(GetParam(), 0, 100);
  const Values grad = Floats(1037, 3);
  one.Add(grad);
  one.Attach();
  ASSERT_OK(one.Update());
  EXPECT_EQ(one.Seen(0), grad);
}

TEST_P(ClipTest, ManyElementsFollowTheFormulaInDoubles) {
  Clipped<double> one(GetParam(), 0, 0.125);
  std::vector<std::vector<double>> grads;
  double sum = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    const Values floats = Floats(40 + 100 * i, 7 + i);
    grads.emplace_back(floats.begin(), floats.end());
    for (double g : grads.back()) sum += g * g;
    one.Add(grads.back());
  }
  one.Attach();
  ASSERT_OK(one.Update());
  for (size_t i = 0; i < grads.size(); ++i)
    for (size_t k = 0; k < grads[i].size(); ++k)
      ASSERT_NEAR(one.Seen(i)[k], grads[i][k] * 0.125 / std::sqrt(sum), 1e-13);
}

TEST_P(ClipTest, FrozenParametersDoNotCount) {
  Clipped<float> one(GetParam(), 0, 2.5);
  one.Add({3});
  one.Add({100});
  one.Add({4});
  one.Attach();
  one.params()[1]->trainable = false;
  ASSERT_OK(one.Update());
  EXPECT_EQ(one.Seen(0), (Values{1.5f}));
  EXPECT_EQ(one.params().grad(1), (Values{100}));
  EXPECT_EQ(one.Seen(2), (Values{2}));
}

TEST_P(ClipTest, NansStay) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Clipped<float> one(GetParam(), 1, 1);
  one.Add({nan, 5});
  one.Attach();
  ASSERT_OK(one.Update());
  EXPECT_TRUE(std::isnan(one.Seen(0)[0]));
  EXPECT_TRUE(std::isnan(one.Seen(0)[1]));
}

TEST_P(ClipTest, InAGraph) {
  Clipped<float> one(GetParam(), 8, 2.5);
  one.Add({3});
  one.Add({4});
  one.Attach();
  choir_workspace_t* workspace = nullptr;
  choir_graph_t* graph = nullptr;
  ASSERT_OK(choir_workspace_create(one.device(), &workspace));
  ASSERT_OK(choir_graph_create(workspace, &graph));
  choir_stream_t* stream = one.stream();
  const choir_step_values_t values = {};
  ASSERT_OK(choir_graph_begin(graph, &stream, 1, &values));
  ASSERT_OK(one.Update());
  ASSERT_OK(choir_graph_end(graph));
  choir_graph_options_t options = {};
  ASSERT_OK(choir_graph_plan(graph, &options));
  ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
  const Values grads[][2] = {{{12}, {6}}, {{0.5f}, {0.25f}}, {{0}, {-10}}};
  const Values seen[][2] = {{{2}, {1.5f}}, {{0.5f}, {0.25f}}, {{0}, {-2.5f}}};
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < 2; ++i) {
      one.params().SetGrad(i, grads[step][i]);
      one.params().SetValue(i, {0});
    }
    ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(one.Seen(i), seen[step][i]);
  }
  choir_graph_destroy(graph);
  choir_workspace_destroy(workspace);
}

TEST(ClipGradientsTest, HashPrintAndRefusals) {
  const choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  const uint64_t plain = choir_optimizer_hash(sgd);
  choir_gradient_clip_t clip = Clip(0, 2);
  ASSERT_OK(choir_optimizer_set_clip(sgd, &clip));
  EXPECT_NE(choir_optimizer_hash(sgd), plain);
  char text[200];
  EXPECT_NE(std::string(choir_optimizer_print(sgd, text, sizeof text))
                .find("; clip value=0 norm=2"),
            std::string::npos);
  clip.norm = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: clip: norm is -1; needs",
                choir_optimizer_set_clip(sgd, &clip));
  DevicePtr device = MakeDevice("cpu");
  ParamSet<float> params(device.get());
  params.Add("a", {1}, {1});
  ASSERT_OK(choir_optimizer_attach(sgd, device.get(), params.list()));
  clip.norm = 1;
  EXPECT_STATUS(FAILED_PRECONDITION, "sgd: clipping was set after",
                choir_optimizer_set_clip(sgd, &clip));
  choir_optimizer_release(sgd);
}

}  // namespace
