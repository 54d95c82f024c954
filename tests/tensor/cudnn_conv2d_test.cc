// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, over a script in its place: which engine is taken,
// what is kept, what happens when it fails. That numbers are right in every
// arrangement is the op suite's (tests/conformance:op_suite_scripted_cuda).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/log.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/fake_cudnn.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

using Engine = FakeCudnn::Engine;
constexpr int kModeA = CHOIR__CUDNN_HEUR_MODE_A;

choir_conv2d_attrs_t Conv(int32_t activation) {
  choir_conv2d_attrs_t attrs = Attrs<choir_conv2d_attrs_t>(CHOIR_OP_CONV2D);
  attrs.padding[0] = attrs.padding[1] = 1;
  attrs.stride[0] = 2;
  attrs.activation = activation;
  return attrs;
}

class CudnnConv2d : public ::testing::Test {
 protected:
  void SetUp() override {
    // Activations and the gradient of the bias are kernels of the device.
    CudaKernelsOnHost(true);
    gpu_ = MakeDevice("cuda");
    cpu_ = MakeDevice("cpu");
    choir_op_stats_reset();
  }

  static TensorPtr Image(const DevicePtr& device, const Shape& shape,
                         uint32_t seed) {
    return MakeChannelsLast<float>(device.get(), shape,
                                   Floats(Count(shape), seed));
  }
  // All results of the op: x (2, 3, 7, 5), W (4, 3, 3, 3) and b or dy.
  static choir_status_t Try(const DevicePtr& device, choir_op_t op,
                            int32_t activation, std::vector<TensorPtr>* out,
                            int64_t batch = 2) {
    const choir_conv2d_attrs_t attrs = Conv(activation);
    TensorPtr x = Image(device, {batch, 3, 7, 5}, 1);
    TensorPtr w = Image(device, {4, 3, 3, 3}, 2);
    TensorPtr last = op == CHOIR_OP_CONV2D
                         ? Make<float>(device.get(), {4}, Floats(4, 3))
                         : Image(device, {batch, 4, 4, 5}, 4);
    return RunOp(op, {x.get(), w.get(), last.get()}, &attrs, out);
  }
  choir_status_t TryForward(int64_t batch = 2) {
    std::vector<TensorPtr> results;
    CHOIR_TRY(
        Try(gpu_, CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU, &results, batch));
    return choir_stream_synchronize(choir_device_stream(gpu_.get()));
  }
  // On the GPU as on the CPU.
  void ExpectRight(choir_op_t op, int32_t activation, int64_t batch = 2) {
    std::vector<TensorPtr> got, want;
    ASSERT_OK(Try(gpu_, op, activation, &got, batch));
    ASSERT_OK(Try(cpu_, op, activation, &want, batch));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const std::vector<float> values = Read<float>(want[i]);
      ExpectNear(Read<float>(got[i]),
                 std::vector<double>(values.begin(), values.end()), 1e-5);
    }
  }
  // ReLU's convolution of an image (2, 3, 7, 5) in this dtype, as f32.
  static std::vector<float> ForwardIn(const DevicePtr& device,
                                      choir_dtype_t dtype,
                                      const std::vector<float>& image) {
    const choir_conv2d_attrs_t attrs = Conv(CHOIR_ACTIVATION_RELU);
    choir_cast_attrs_t cast = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
    cast.dtype = dtype;
    const auto make = [&](const Shape& shape, const std::vector<float>& of) {
      TensorPtr exact = Make<float>(device.get(), shape, of);
      return Result(CHOIR_OP_CAST, {exact.get()}, &cast);
    };
    TensorPtr x = make({2, 3, 7, 5}, image);
    TensorPtr w = make({4, 3, 3, 3}, Floats(4 * 27, 2));
    TensorPtr b = make({4}, Floats(4, 3));
    TensorPtr y = Result(CHOIR_OP_CONV2D, {x.get(), w.get(), b.get()}, &attrs);
    cast.dtype = CHOIR_DTYPE_F32;
    return Read<float>(Result(CHOIR_OP_CAST, {y.get()}, &cast));
  }
  int Runs() { return cudnn_.Calls("cudnnBackendExecute"); }
  uint64_t OnHost() { return choir_op_stats().host_fallbacks; }

  FakeCuda cuda_;
  FakeCudnn cudnn_;
  DevicePtr gpu_, cpu_;
};

TEST_F(CudnnConv2d, IsWhatRuns) {
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_NONE);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  ExpectRight(CHOIR_OP_CONV2D_GRAD_DATA, CHOIR_ACTIVATION_NONE);
  EXPECT_EQ(Runs(), 3);
  EXPECT_EQ(OnHost(), 0u);
  ExpectRight(CHOIR_OP_CONV2D_GRAD_WEIGHT, CHOIR_ACTIVATION_NONE);
  EXPECT_EQ(Runs(), 4);
  EXPECT_EQ(OnHost(), 0u);
}

// cuDNN sees images and filters with channels last, however they lie.
TEST_F(CudnnConv2d, OtherLayoutsAreCopiedBeforeAndBehind) {
  const choir_conv2d_attrs_t attrs = Conv(CHOIR_ACTIVATION_NONE);
  std::vector<float> values[2];
  for (const DevicePtr* device : {&cpu_, &gpu_}) {
    TensorPtr x = Make<float>(device->get(), {2, 3, 7, 5}, Floats(210, 1));
    TensorPtr whole = Image(*device, {4, 6, 3, 3}, 2);
    auto slice = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
    slice.axis = 1;
    slice.stop = 6;
    slice.step = 2;
    TensorPtr w = Result(CHOIR_OP_SLICE, {whole.get()}, &slice);
    TensorPtr b = Make<float>(device->get(), {4}, Floats(4, 3));
    TensorPtr y = Make<float>(device->get(), {2, 4, 4, 5}, Floats(160, 4));
    choir_tensor_t* srcs[] = {x.get(), w.get(), b.get()};
    choir_tensor_t* dst = y.get();
    choir_op_stats_reset();
    ASSERT_OK(choir_op_run(choir_device_stream(device->get()), CHOIR_OP_CONV2D,
                           srcs, 3, &attrs, false, &dst));
    values[device == &gpu_] = Read<float>(y);
  }
  ExpectNear(values[1], std::vector<double>(values[0].begin(), values[0].end()),
             1e-5);
  EXPECT_EQ(OnHost(), 0u);
  EXPECT_EQ(choir_op_stats().reorders, 3u);  // x, w and y
  EXPECT_EQ(Runs(), 1);
}

// In a build without kernels the host does what cuDNN does not.
TEST_F(CudnnConv2d, LeavesTheActivationToTheHostWhereItMust) {
  CudaKernelsOnHost(false);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  EXPECT_EQ(Runs(), 1);
  EXPECT_EQ(OnHost(), 1u);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_NONE);
  EXPECT_EQ(OnHost(), 1u);
}

// NaN stays where it is, in whichever dtype, and takes nothing to the host.
TEST_F(CudnnConv2d, TheActivationKeepsNaN) {
  for (const choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    SCOPED_TRACE(choir_dtype_name(dtype));
    std::vector<float> image = Floats(2 * 3 * 7 * 5, 1);
    image[31] = NAN;
    const std::vector<float> got = ForwardIn(gpu_, dtype, image);
    const std::vector<float> want = ForwardIn(cpu_, dtype, image);
    ASSERT_EQ(got.size(), want.size());
    int kept = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
      if (!std::isnan(got[i])) {
        ASSERT_NEAR(got[i], want[i], 0.03) << i;
      }
      kept += std::isnan(got[i]);
    }
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, static_cast<int>(got.size()) / 2);
    EXPECT_EQ(OnHost(), 0u);
  }
}

// Some engines are wrong in f16 and say nothing of it.
TEST_F(CudnnConv2d, TakesNoEngineThatIsKnownToBeWrong) {
  const std::vector<float> image = Floats(2 * 3 * 7 * 5, 1);
  const std::vector<float> want = ForwardIn(cpu_, CHOIR_DTYPE_F16, image);
  const auto expect_right = [&] {
    ExpectNear(ForwardIn(gpu_, CHOIR_DTYPE_F16, image),
               std::vector<double>(want.begin(), want.end()), 0.03);
  };
  cudnn_.set_engines(kModeA,
                     {{{}, 0, true, false, 32}, {{}, 0, true, true, 47}});
  expect_right();
  EXPECT_EQ(OnHost(), 0u);
  // In other dtypes it is as good as any.
  cudnn_.set_engines(kModeA,
                     {{{}, 0, true, true, 32}, {{}, 0, true, false, 1}});
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_NONE);
  EXPECT_EQ(OnHost(), 0u);
}

TEST_F(CudnnConv2d, GoesToTheHostWhereAllEnginesAreWrong) {
  cudnn_.set_fuses(false);
  cudnn_.set_engines(kModeA, {{{}, 0, true, false, 47}});
  const std::vector<float> image = Floats(2 * 3 * 7 * 5, 1);
  const std::vector<float> want = ForwardIn(cpu_, CHOIR_DTYPE_F16, image);
  ExpectNear(ForwardIn(gpu_, CHOIR_DTYPE_F16, image),
             std::vector<double>(want.begin(), want.end()), 0.03);
  EXPECT_EQ(OnHost(), 1u);
}

// A sum that several blocks share needs scratch memory beside cuDNN's.
TEST_F(CudnnConv2d, TheBiasIsSummedByTheGpuToo) {
  cuda_.ClearLog();
  ExpectRight(CHOIR_OP_CONV2D_GRAD_WEIGHT, CHOIR_ACTIVATION_NONE, 64);
  EXPECT_EQ(OnHost(), 0u);
  const std::vector<std::string> log = cuda_.TakeLog();
  EXPECT_EQ(std::count_if(log.begin(), log.end(),
                          [](const std::string& line) {
                            return line.find("choir_sum_finish") !=
                                   std::string::npos;
                          }),
            1);
}

// Where no engine does all at once, the second graph adds the bias.
TEST_F(CudnnConv2d, AddsTheBiasAfterwardsWhereItMust) {
  cudnn_.set_fuses(false);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_NONE);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  EXPECT_EQ(Runs(), 4);
  EXPECT_EQ(OnHost(), 0u);
  // What is between the two graphs is the pool's.
  const choir_pool_stats_t before = choir_device_memory(gpu_.get());
  for (int i = 0; i < 3; ++i) ASSERT_OK(TryForward());
  EXPECT_EQ(choir_device_memory(gpu_.get()).base_allocations,
            before.base_allocations);
  EXPECT_EQ(choir_device_memory(gpu_.get()).in_use_bytes, 0u);
}

TEST_F(CudnnConv2d, KeepsWhatItMadeForAProblem) {
  ASSERT_OK(TryForward());
  const int made = cudnn_.Calls("cudnnBackendCreateDescriptor");
  const size_t live = cudnn_.live();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_OK(TryForward());
    // The addresses of the run, and nothing else.
    EXPECT_EQ(cudnn_.Calls("cudnnBackendCreateDescriptor"), made + i);
  }
  EXPECT_EQ(cudnn_.live(), live);
  ASSERT_OK(TryForward(3));
  EXPECT_GT(cudnn_.live(), live);
}

TEST_F(CudnnConv2d, KeepsNoMoreThanTheBound) {
  for (int i = 1; i <= CHOIR__CUDA_PLANS; ++i)
    ASSERT_OK(TryForward(i % 16 + 1));
  const size_t live = cudnn_.live();
  EXPECT_EQ((live - 1) % 16, 0u);
  const int made = cudnn_.Calls("cudnnBackendCreateDescriptor");
  ASSERT_OK(TryForward(1));
  EXPECT_EQ(cudnn_.Calls("cudnnBackendCreateDescriptor"), made + 1);
}

// Engines that round factors to TF32 are for those who ask for it.
TEST_F(CudnnConv2d, TakesNoTensorCoresForF32) {
  cudnn_.set_engines(
      kModeA,
      {{{CHOIR__CUDNN_NOTE_TENSOR_CORE}, 0, true, false},
       {{CHOIR__CUDNN_NOTE_FFT}, 0, true, false},
       {{CHOIR__CUDNN_NOTE_WINOGRAD}, 0, true, false},
       {{CHOIR__CUDNN_NOTE_WINOGRAD, CHOIR__CUDNN_NOTE_WINOGRAD_TILE_4X4},
        0,
        true,
        true}});
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  EXPECT_EQ(OnHost(), 0u);
}

TEST_F(CudnnConv2d, TakesTensorCoresForF32WhenTf32IsAllowed) {
  cudnn_.set_engines(kModeA, {{{CHOIR__CUDNN_NOTE_TENSOR_CORE}, 0, true, true},
                              {{}, 0, true, false}});
  setenv("CHOIR_TF32", "1", 1);
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  unsetenv("CHOIR_TF32");
  EXPECT_EQ(Runs(), 1);
}

TEST_F(CudnnConv2d, AsksFurtherWhenTheFirstAnswerWillNotDo) {
  cudnn_.set_engines(kModeA, {});
  cudnn_.set_engines(CHOIR__CUDNN_HEUR_MODE_B, {{{}, 0, false, false}});
  cudnn_.set_engines(CHOIR__CUDNN_HEUR_MODE_FALLBACK, {{{}, 0, true, true}});
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  EXPECT_EQ(Runs(), 1);
  EXPECT_EQ(OnHost(), 0u);
}

TEST_F(CudnnConv2d, WhatItHasNoEngineForRunsOnTheHost) {
  std::vector<std::string> logged;
  choir_log_set_sink(
      [](void* self, choir_log_level_t, const char*, const char* message) {
        static_cast<std::vector<std::string>*>(self)->emplace_back(message);
      },
      &logged, CHOIR_LOG_WARNING);
  cudnn_.set_engines(kModeA, {});
  for (int i = 0; i < 3; ++i)
    ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  EXPECT_EQ(OnHost(), 3u);
  EXPECT_EQ(Runs(), 0);
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_NE(logged[0].find("conv2d/cudnn with y f32 (2, 4, 4, 5)"),
            std::string::npos)
      << logged[0];
  EXPECT_NE(logged[0].find("runs on the host: cuda:0: cuDNN has no engine that "
                           "will do"),
            std::string::npos)
      << logged[0];
  // Nothing is kept for it but that.
  EXPECT_EQ(cudnn_.live(), 1u);
}

TEST_F(CudnnConv2d, WhereItCannotAddTheHostDoes) {
  cudnn_.set_adds(false);
  const choir_conv2d_attrs_t attrs = Conv(CHOIR_ACTIVATION_NONE);
  std::vector<TensorPtr> once;
  ASSERT_OK(Try(gpu_, CHOIR_OP_CONV2D_GRAD_DATA, CHOIR_ACTIVATION_NONE, &once));
  TensorPtr x = Image(gpu_, {2, 3, 7, 5}, 1);
  TensorPtr w = Image(gpu_, {4, 3, 3, 3}, 2);
  TensorPtr dy = Image(gpu_, {2, 4, 4, 5}, 4);
  choir_tensor_t* srcs[] = {x.get(), w.get(), dy.get()};
  choir_tensor_t* dst = once[0].get();
  std::vector<float> twice = Read<float>(dst);
  ASSERT_OK(choir_op_run(choir_device_stream(gpu_.get()),
                         CHOIR_OP_CONV2D_GRAD_DATA, srcs, 3, &attrs, true,
                         &dst));
  ExpectNear(
      Read<float>(dst),
      [&] {
        std::vector<double> want(twice.begin(), twice.end());
        for (double& value : want) value *= 2;
        return want;
      }(),
      1e-5);
  EXPECT_EQ(OnHost(), 1u);
  EXPECT_EQ(Runs(), 1);
}

TEST_F(CudnnConv2d, NoMemoryForTheWorkspaceIsAStatus) {
  cudnn_.set_engines(kModeA, {{{}, 1 << 20, true, true}});
  ASSERT_OK(TryForward());
  choir_device_trim(gpu_.get());
  cuda_.set_bytes(cuda_.live_bytes() + (1 << 18));
  EXPECT_STATUS(OUT_OF_MEMORY, "workspace of cuDNN", TryForward());
  cuda_.set_bytes(size_t{1} << 30);
  ASSERT_OK(TryForward());
}

TEST_F(CudnnConv2d, FailuresNameTheGpuTheCallAndTheText) {
  cudnn_.FailNext("cudnnCreate", 4003);
  EXPECT_STATUS(OUT_OF_MEMORY,
                "cuda:0: cudnnCreate: "
                "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED (4003)",
                TryForward());
  int64_t batch = 1;
  for (const char* function :
       {"cudnnSetStream", "cudnnBackendCreateDescriptor",
        "cudnnBackendSetAttribute", "cudnnBackendFinalize",
        "cudnnBackendGetAttribute", "cudnnBackendExecute"}) {
    cudnn_.FailNext(function, 5000);
    ++batch;  // another problem, of which nothing is kept
    EXPECT_STATUS(INTERNAL,
                  std::string("cuda:0: ") + function +
                      ": CUDNN_STATUS_EXECUTION_FAILED (5000)",
                  TryForward(batch));
  }
  ASSERT_OK(TryForward());
  EXPECT_EQ(OnHost(), 0u);
}

// Whatever fails on the way, nothing is left in the end.
TEST_F(CudnnConv2d, EveryCallMayFail) {
  for (const char* function :
       {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
        "cudnnBackendFinalize", "cudnnBackendGetAttribute"}) {
    int failed = 0;
    for (int skip = 0;; ++skip) {
      const int before = cudnn_.Calls(function);
      cudnn_.FailNext(function, 5000, skip);
      choir_status_t status = TryForward();
      failed += status != nullptr;
      choir_status_free(status);
      gpu_.reset();
      ASSERT_EQ(cudnn_.live(), 0u) << function << " after " << skip;
      gpu_ = MakeDevice("cuda");
      // That call was not reached any more.
      if (cudnn_.Calls(function) - before <= skip) break;
    }
    EXPECT_GE(failed, 5) << function;
    cudnn_.FailNext(function, 0);
  }
  ExpectRight(CHOIR_OP_CONV2D, CHOIR_ACTIVATION_RELU);
}

TEST_F(CudnnConv2d, IsReleasedWithTheDevice) {
  ASSERT_OK(TryForward());
  EXPECT_GT(cudnn_.live(), 0u);
  gpu_.reset();
  EXPECT_EQ(cudnn_.live(), 0u);
  EXPECT_EQ(cudnn_.Calls("cudnnDestroy"), 1);
}

}  // namespace
