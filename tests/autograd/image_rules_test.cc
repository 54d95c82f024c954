// SPDX-License-Identifier: Apache-2.0
// What image rules share among each other; that gradients are right at all is
// the gradient suite's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "autograd/functions.h"
#include "core/stage.h"
#include "tensor/op_def.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

using Values = std::vector<float>;

constexpr choir_step_t kTraining = {true, 1, 0, 0, 2, 2};

// Notes on what shapes a ReLU was undone.
struct WatchStage {
  choir_stage_t stage;  // first
  std::vector<Shape> masked;
  int by_argmax;  // gradients of a convolution from the pooled image

  static choir_status_t Submit(choir_stage_t* stage, choir_stream_t* stream,
                               const choir_record_t* record) {
    if (record->operation == choir__operation(CHOIR_OP_RELU_GRAD)) {
      const choir_view_t* y = choir_record_src(record, 0);
      reinterpret_cast<WatchStage*>(stage)->masked.emplace_back(
          y->shape, y->shape + y->ndim);
    }
    if (std::strstr(record->kernel->name, "/argmax"))
      ++reinterpret_cast<WatchStage*>(stage)->by_argmax;
    return choir_stage_forward(stage, stream, record);
  }
};

// x (2, 3, 9, 9), conv 3x3 to y (2, 4, 7, 7), then pooling; about half of y is
// below 0 and whole windows are.
class ReluAndPoolingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_scope_create(device_.get(), &scope_));
    choir_scope_begin(scope_, &kTraining);
    watch_.stage.submit = WatchStage::Submit;
    watch_.stage.sees_kernels = true;
    choir_stream_push_stage(choir_device_stream(device_.get()), &watch_.stage);
    x_ = choir_scope_leaf(scope_, image_.get());
    w_ = choir_scope_leaf(scope_, weight_.get());
    b_ = choir_scope_leaf(scope_, bias_.get());
  }
  void TearDown() override {
    choir_stream_pop_stage(choir_device_stream(device_.get()), &watch_.stage);
    choir_scope_destroy(scope_);
  }

  choir_var_t* Conv(int32_t activation) {
    choir_conv2d_attrs_t attrs;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
    attrs.activation = activation;
    return choir_var_conv2d(scope_, x_, w_, b_, &attrs);
  }
  // Adds sum(x * numbers) to the loss and hands out the numbers, which are the
  // gradient of x, row-major as from a flatten. Behind a pooling of single
  // pixels they come channels-last, as within a network.
  TensorPtr AddToLoss(choir_var_t* x, uint32_t seed,
                      bool channels_last = true) {
    const Shape shape = ShapeOf(choir_var_tensor(x));
    const int64_t count = choir_tensor_count(choir_var_tensor(x));
    TensorPtr numbers = Make(device_.get(), shape, Floats(count, seed));
    const choir_pool2d_attrs_t pixels = {{1, 1}, {1, 1}, {0, 0}};
    if (channels_last) x = choir_var_avg_pool2d(scope_, x, &pixels);
    choir_var_t* term = choir_var_sum(
        scope_,
        choir_var_mul(scope_, x, choir_scope_input(scope_, numbers.get())),
        nullptr);
    loss_ = loss_ ? choir_var_add(scope_, loss_, term) : term;
    return numbers;
  }
  TensorPtr Run(choir_op_t op, std::vector<choir_tensor_t*> srcs,
                const void* attrs) {
    std::vector<TensorPtr> results;
    EXPECT_OK(choir::testing::RunOp(op, srcs, attrs, &results));
    return std::move(results[0]);
  }
  // The pooling's own gradient, from max_pool2d run once more.
  TensorPtr PoolGrad(const TensorPtr& y, const choir_pool2d_attrs_t& pool,
                     const TensorPtr& dy) {
    std::vector<TensorPtr> pooled;
    EXPECT_OK(
        choir::testing::RunOp(CHOIR_OP_MAX_POOL2D, {y.get()}, &pool, &pooled));
    return Run(CHOIR_OP_MAX_POOL2D_GRAD, {y.get(), pooled[1].get(), dy.get()},
               &pool);
  }
  // A reference that outlives the scope's step.
  static TensorPtr Keep(choir_var_t* var) {
    choir_tensor_t* tensor = choir_var_tensor(var);
    choir_tensor_retain(tensor);
    return TensorPtr(tensor);
  }
  // Runs backward; the gradients of x, W and b must be those of a convolution
  // whose result gets `dy`, bit for bit.
  void ExpectConvGradients(const TensorPtr& dy) {
    choir_conv2d_attrs_t attrs;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
    std::vector<TensorPtr> dw;
    EXPECT_OK(choir::testing::RunOp(CHOIR_OP_CONV2D_GRAD_WEIGHT,
                                    {image_.get(), weight_.get(), dy.get()},
                                    &attrs, &dw));
    TensorPtr dx = Run(CHOIR_OP_CONV2D_GRAD_DATA,
                       {image_.get(), weight_.get(), dy.get()}, &attrs);
    EXPECT_EQ(Read<float>(choir_var_grad(x_)), Read<float>(dx));
    EXPECT_EQ(Read<float>(choir_var_grad(w_)), Read<float>(dw[0]));
    EXPECT_EQ(Read<float>(choir_var_grad(b_)), Read<float>(dw[1]));
  }
  void Backward() {
    watch_.masked.clear();
    choir_scope_backward(scope_, loss_, nullptr);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    masked_ = watch_.masked;
  }

  DevicePtr device_ = MakeDevice("cpu");
  TensorPtr image_ = Make(device_.get(), {2, 3, 9, 9}, Floats(486, 1));
  TensorPtr weight_ = Make(device_.get(), {4, 3, 3, 3}, Floats(108, 2));
  TensorPtr bias_ = Make(device_.get(), {4}, Values{-0.5f, 0.25f, 0, -1});
  choir_scope_t* scope_ = nullptr;
  choir_var_t* x_ = nullptr;
  choir_var_t* w_ = nullptr;
  choir_var_t* b_ = nullptr;
  choir_var_t* loss_ = nullptr;
  WatchStage watch_ = {};
  std::vector<Shape> masked_;
};

const choir_pool2d_attrs_t kTiles = {{2, 2}, {2, 2}, {0, 0}};
const choir_pool2d_attrs_t kOverlapping = {{3, 3}, {2, 2}, {1, 1}};

TEST_F(ReluAndPoolingTest, TheReluIsUndoneOnThePooledImageOnly) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 3);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 3, 3}}));
  TensorPtr dy = PoolGrad(image, kTiles, dp);
  ExpectConvGradients(
      Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
}

TEST_F(ReluAndPoolingTest, AlsoWhereWindowsOverlap) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kOverlapping), 4);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 4, 4}}));
  TensorPtr dy = PoolGrad(image, kOverlapping, dp);
  ExpectConvGradients(
      Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
}

TEST_F(ReluAndPoolingTest, AlsoForAReluOfItsOwn) {
  choir_var_t* y = choir_var_relu(scope_, Conv(CHOIR_ACTIVATION_NONE));
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 5);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 3, 3}}));
  TensorPtr dy = PoolGrad(image, kTiles, dp);
  ExpectConvGradients(
      Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
}

TEST_F(ReluAndPoolingTest, TwoPoolingsOfOneImage) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 6);
  TensorPtr dq = AddToLoss(choir_var_max_pool2d(scope_, y, &kOverlapping), 7);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 4, 4}, {2, 4, 3, 3}}));
  TensorPtr first = PoolGrad(image, kOverlapping, dq);
  TensorPtr second = PoolGrad(image, kTiles, dp);
  TensorPtr dy = Run(CHOIR_OP_ADD, {first.get(), second.get()}, nullptr);
  // The order of additions is the scope's: no bits here.
  TensorPtr masked = Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr);
  choir_conv2d_attrs_t attrs;
  choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
  TensorPtr dx = Run(CHOIR_OP_CONV2D_GRAD_DATA,
                     {image_.get(), weight_.get(), masked.get()}, &attrs);
  const Values found = Read<float>(choir_var_grad(x_));
  const Values wanted = Read<float>(dx);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(found[i], wanted[i], 1e-5) << i;
}

TEST_F(ReluAndPoolingTest, AGradientThatLiesOtherwiseIsMaskedLater) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 12, false);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 7, 7}}));
  TensorPtr dy = PoolGrad(image, kTiles, dp);
  ExpectConvGradients(
      Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
}

// A use that masked nothing: the convolution masks the sum.
TEST_F(ReluAndPoolingTest, AnotherUseIsMaskedByTheConvolution) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 8);
  TensorPtr direct = AddToLoss(y, 9);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(masked_, (std::vector<Shape>{{2, 4, 3, 3}, {2, 4, 7, 7}}));
  TensorPtr pooled = PoolGrad(image, kTiles, dp);
  TensorPtr dy = Run(CHOIR_OP_ADD, {direct.get(), pooled.get()}, nullptr);
  TensorPtr masked = Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr);
  const Values bias = Read<float>(choir_var_grad(b_));
  const Values all = Read<float>(masked);
  for (size_t channel = 0; channel < 4; ++channel) {
    double sum = 0;
    for (size_t n = 0; n < 2; ++n)
      for (size_t i = 0; i < 49; ++i) sum += all[(n * 4 + channel) * 49 + i];
    EXPECT_NEAR(bias[channel], sum, 1e-5) << channel;
  }
}

TEST_F(ReluAndPoolingTest, NothingIsMaskedWithoutARelu) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_NONE);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 10);
  TensorPtr dq = AddToLoss(choir_var_max_pool2d(scope_, x_, &kTiles), 11);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_TRUE(masked_.empty());
  // x has a gradient from its own pooling too; W and b have not.
  TensorPtr dy = PoolGrad(image, kTiles, dp);
  choir_conv2d_attrs_t attrs;
  choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
  TensorPtr dw = Run(CHOIR_OP_CONV2D_GRAD_WEIGHT,
                     {image_.get(), weight_.get(), dy.get()}, &attrs);
  EXPECT_EQ(Read<float>(choir_var_grad(w_)), Read<float>(dw));
}

// Enough channels for the kernels that take a convolution's gradients from the
// pooled image and the argmax indices: x (3, 12, 8, 9) to y (3, 5, 6, 7).
class ArgmaxTest : public ReluAndPoolingTest {
 protected:
  ArgmaxTest() {
    image_ = Make(device_.get(), {3, 12, 8, 9}, Floats(2592, 1));
    weight_ = Make(device_.get(), {5, 12, 3, 3}, Floats(540, 2));
    bias_ = Make(device_.get(), {5}, Values{-0.5f, 0.25f, 0, -1, 2});
  }
  void SetUp() override {
    ReluAndPoolingTest::SetUp();
    if (!HasKernels()) GTEST_SKIP() << "this processor has no AVX2";
  }
  // What the processor is good for, asked of the ops themselves.
  bool HasKernels() {
    const Shape pooled = {3, 5, 3, 3};
    TensorPtr dy = Make(device_.get(), pooled, Floats(135, 3));
    choir_tensor_t* argmax = nullptr;
    choir_view_t view;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_U8, 4, pooled.data(), &view));
    EXPECT_OK(choir_tensor_create_layout(device_.get(), &view, &argmax));
    TensorPtr owner(argmax);
    choir_conv2d_max_pool2d_attrs_t attrs;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA),
                      &attrs);
    choir_tensor_t* srcs[] = {image_.get(), argmax, weight_.get(), dy.get(),
                              dy.get()};
    choir_tensor_t* none[] = {nullptr, nullptr, nullptr};
    return choir__op_has_kernel(device_.get(),
                                CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA, srcs, 5,
                                &attrs, false, none);
  }
  static void ExpectNear(choir_var_t* var, const TensorPtr& wanted) {
    const Values a = Read<float>(choir_var_grad(var));
    const Values b = Read<float>(wanted);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i], b[i], 2e-5 * (1 + std::fabs(b[i]))) << i;
  }
  void ExpectNearGradients(const TensorPtr& dy) {
    choir_conv2d_attrs_t attrs;
    choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
    std::vector<TensorPtr> dw;
    EXPECT_OK(choir::testing::RunOp(CHOIR_OP_CONV2D_GRAD_WEIGHT,
                                    {image_.get(), weight_.get(), dy.get()},
                                    &attrs, &dw));
    ExpectNear(x_, Run(CHOIR_OP_CONV2D_GRAD_DATA,
                       {image_.get(), weight_.get(), dy.get()}, &attrs));
    ExpectNear(w_, dw[0]);
    ExpectNear(b_, dw[1]);
  }
};

TEST_F(ArgmaxTest, AConvolutionGetsItsGradientsFromThePooledImage) {
  for (const bool channels_last : {true, false}) {
    loss_ = nullptr;
    choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
    TensorPtr dp =
        AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 3, channels_last);
    TensorPtr image = Keep(y);
    watch_.by_argmax = 0;
    Backward();
    EXPECT_EQ(watch_.by_argmax, 2);
    EXPECT_TRUE(masked_.empty());
    TensorPtr dy = PoolGrad(image, kTiles, dp);
    ExpectNearGradients(
        Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
    TearDown();
    SetUp();
  }
}

TEST_F(ArgmaxTest, AlsoWithoutARelu) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_NONE);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 3);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(watch_.by_argmax, 2);
  ExpectNearGradients(PoolGrad(image, kTiles, dp));
}

// Both convolutions have one W: their gradients are added.
TEST_F(ArgmaxTest, TwoConvolutionsOfOneWeight) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_RELU);
  choir_var_t* z = Conv(CHOIR_ACTIVATION_RELU);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 3);
  TensorPtr dq = AddToLoss(choir_var_max_pool2d(scope_, z, &kTiles), 4);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(watch_.by_argmax, 4);
  TensorPtr first = PoolGrad(image, kTiles, dp);
  TensorPtr second = PoolGrad(image, kTiles, dq);
  TensorPtr dy = Run(CHOIR_OP_ADD, {first.get(), second.get()}, nullptr);
  ExpectNearGradients(
      Run(CHOIR_OP_RELU_GRAD, {image.get(), dy.get()}, nullptr));
}

// Somebody else's gradient has no argmax indices: the usual way.
TEST_F(ArgmaxTest, AnotherUseOfTheImageNeedsAllOfIt) {
  choir_var_t* y = Conv(CHOIR_ACTIVATION_NONE);
  TensorPtr dp = AddToLoss(choir_var_max_pool2d(scope_, y, &kTiles), 8);
  TensorPtr direct = AddToLoss(y, 9);
  TensorPtr image = Keep(y);
  Backward();
  EXPECT_EQ(watch_.by_argmax, 0);
  TensorPtr pooled = PoolGrad(image, kTiles, dp);
  ExpectNearGradients(Run(CHOIR_OP_ADD, {direct.get(), pooled.get()}, nullptr));
}

}  // namespace
