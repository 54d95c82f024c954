// SPDX-License-Identifier: Apache-2.0
// Convolution and pooling in graphs: one record in the place of two has their
// bits, and is not there when somebody wants the image between them.
#include <gtest/gtest.h>

#include <iterator>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "tensor/fusion_def.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/fake_cudnn.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace {

using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

struct Problem {
  Shape x, w;
  choir_conv2d_attrs_t conv;
  bool fits;  // a kernel, with AVX-512
};

choir_conv2d_attrs_t Conv(int64_t padding, int32_t activation) {
  choir_conv2d_attrs_t attrs;
  choir_struct_init(choir_op_attrs_def(CHOIR_OP_CONV2D), &attrs);
  attrs.padding[0] = attrs.padding[1] = padding;
  attrs.activation = activation;
  return attrs;
}

class ConvPoolFusion : public ::testing::Test {
 protected:
  // Two layers, recorded and replayed, against the same step run eagerly.
  // Returns how many records were fused away.
  int32_t Fused(const Problem& problem, bool image_is_used) {
    TensorPtr x, w, b;
    MakeSources(problem, &x, &w, &b);
    choir_tensor_t* kept[3] = {};  // y, argmax indices, the image
    choir_stream_t* stream = choir_device_stream(device_.get());
    const auto step = [&] {
      choir_tensor_t* srcs[] = {x.get(), w.get(), b.get()};
      choir_tensor_t* image[CHOIR_OP_MAX_RESULTS] = {};
      EXPECT_OK(choir_op_run(stream, CHOIR_OP_CONV2D, srcs, 3, &problem.conv,
                             false, image));
      EXPECT_OK(choir_op_run(stream, CHOIR_OP_MAX_POOL2D, image, 1, &pool_,
                             false, kept));
      if (image_is_used) {
        EXPECT_OK(choir_op_run(stream, CHOIR_OP_COPY, image, 1, nullptr, false,
                               kept + 2));
      }
      choir_tensor_release(image[0]);
    };
    step();
    const std::vector<char> y = Bytes(kept[0]);
    const std::vector<uint8_t> argmax = Read<uint8_t>(kept[1]);
    choir_workspace_t* workspace = nullptr;
    choir_graph_t* graph = nullptr;
    EXPECT_OK(choir_workspace_create(device_.get(), &workspace));
    EXPECT_OK(choir_graph_create(workspace, &graph));
    const choir_step_values_t values = {};
    EXPECT_OK(choir_graph_begin(graph, &stream, 1, &values));
    step();
    EXPECT_OK(choir_graph_end(graph));
    choir_graph_options_t options = {};
    options.rewrite = choir__graph_fuse;
    EXPECT_OK(choir_graph_plan(graph, &options));
    const std::vector<char> sevens(y.size(), 7);
    EXPECT_OK(choir_tensor_write(kept[0], sevens.data(), sevens.size()));
    const std::vector<uint8_t> nines(argmax.size(), 9);
    EXPECT_OK(choir_tensor_write(kept[1], nines.data(), nines.size()));
    EXPECT_OK(choir_graph_replay(graph, &values, nullptr));
    EXPECT_EQ(Bytes(kept[0]), y);
    EXPECT_EQ(Read<uint8_t>(kept[1]), argmax);
    const int32_t fused = choir_graph_stats(graph).fused;
    choir_graph_destroy(graph);
    choir_workspace_destroy(workspace);
    for (choir_tensor_t* tensor : kept) choir_tensor_release(tensor);
    return fused;
  }

  // What the processor is good for, asked of the op itself.
  bool HasKernel(const Problem& problem) {
    TensorPtr x, w, b;
    MakeSources(problem, &x, &w, &b);
    const choir_conv2d_max_pool2d_attrs_t attrs = {problem.conv, pool_};
    choir_tensor_t* srcs[] = {x.get(), w.get(), b.get()};
    choir_tensor_t* none[CHOIR_OP_MAX_RESULTS] = {};
    return choir__op_has_kernel(device_.get(), CHOIR_OP_CONV2D_MAX_POOL2D, srcs,
                                3, &attrs, false, none);
  }

  void MakeSources(const Problem& problem, TensorPtr* x, TensorPtr* w,
                   TensorPtr* b) {
    *x = Cast(MakeChannelsLast<float>(device_.get(), problem.x,
                                      Floats(Count(problem.x), 1)));
    *w = Cast(
        Make<float>(device_.get(), problem.w, Floats(Count(problem.w), 2)));
    *b = Cast(
        Make<float>(device_.get(), {problem.w[0]}, Floats(problem.w[0], 3)));
  }

  // To dtype_, in the same layout.
  TensorPtr Cast(TensorPtr from) {
    if (dtype_ == CHOIR_DTYPE_F32) return from;
    const choir_cast_attrs_t attrs = {dtype_};
    std::vector<TensorPtr> results;
    EXPECT_OK(
        choir::testing::RunOp(CHOIR_OP_CAST, {from.get()}, &attrs, &results));
    return std::move(results[0]);
  }

  static std::vector<char> Bytes(choir_tensor_t* tensor) {
    std::vector<char> bytes(static_cast<size_t>(choir_tensor_count(tensor)) *
                            choir_dtype_bytes(choir_tensor_dtype(tensor)));
    EXPECT_OK(choir_tensor_read(tensor, bytes.data(), bytes.size()));
    return bytes;
  }

  choir_dtype_t dtype_ = CHOIR_DTYPE_F32;
  DevicePtr device_ = MakeDevice("cpu");
  choir_pool2d_attrs_t pool_ = {{2, 2}, {2, 2}, {0, 0}};
};

const Problem kProblems[] = {
    {{16, 1, 12, 12}, {20, 1, 5, 5}, Conv(0, CHOIR_ACTIVATION_RELU), true},
    {{64, 20, 12, 12}, {50, 20, 5, 5}, Conv(0, CHOIR_ACTIVATION_RELU), true},
    {{33, 3, 9, 8}, {7, 3, 3, 3}, Conv(1, CHOIR_ACTIVATION_NONE), true},
    {{32, 4, 7, 9}, {5, 4, 3, 3}, Conv(0, CHOIR_ACTIVATION_RELU), true},
    {{2, 3, 8, 8}, {4, 3, 3, 3}, Conv(1, CHOIR_ACTIVATION_RELU), false},
};

TEST_F(ConvPoolFusion, HasTheBitsOfTheRecords) {
  for (const Problem& problem : kProblems) {
    SCOPED_TRACE(::testing::PrintToString(problem.x));
    const bool has_kernel = HasKernel(problem);
    EXPECT_TRUE(problem.fits || !has_kernel);
    EXPECT_EQ(Fused(problem, false), has_kernel ? 1 : 0);
  }
}

// Where the processor multiplies bf16 there is a kernel for all of them.
TEST_F(ConvPoolFusion, HasTheBitsOfTheRecordsIn16Bits) {
  for (choir_dtype_t dtype : {CHOIR_DTYPE_BF16, CHOIR_DTYPE_F16}) {
    dtype_ = dtype;
    for (const Problem& problem : kProblems) {
      SCOPED_TRACE(::testing::PrintToString(problem.x));
      EXPECT_EQ(Fused(problem, false), HasKernel(problem) ? 1 : 0);
      EXPECT_EQ(Fused(problem, true), 0);
    }
  }
}

TEST_F(ConvPoolFusion, NotWhereTheImageIsUsedAgain) {
  for (const Problem& problem : kProblems) EXPECT_EQ(Fused(problem, true), 0);
}

TEST_F(ConvPoolFusion, NotOnADeviceThatHasNoKernelForIt) {
  choir::testing::CudaKernelsOnHost(false);
  choir::testing::FakeCuda cuda;
  choir::testing::FakeCudnn cudnn;
  device_ = MakeDevice("cuda");
  const Problem& small = kProblems[std::size(kProblems) - 1];
  EXPECT_FALSE(HasKernel(small));
  EXPECT_EQ(Fused(small, false), 0);
  // Eagerly, when it was recorded, and in the replay.
  EXPECT_GE(cudnn.Calls("cudnnBackendExecute"), 2);
  device_.reset();
}

TEST_F(ConvPoolFusion, NotForOtherWindows) {
  pool_ = {{3, 3}, {2, 2}, {0, 0}};
  for (const Problem& problem : kProblems) EXPECT_EQ(Fused(problem, false), 0);
}

}  // namespace
