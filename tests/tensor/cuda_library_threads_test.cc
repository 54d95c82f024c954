// SPDX-License-Identifier: Apache-2.0
// Threads with streams of their own share what a device has of a library: its
// handle and its plans. Over scripts in the places of the libraries.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/tensor/fake_cublas.h"
#include "tests/tensor/fake_cudnn.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

constexpr int kThreads = 4;
constexpr int kRounds = 10;

class CudaLibraryThreads : public ::testing::Test {
 protected:
  void SetUp() override { gpu_ = MakeDevice("cuda"); }

  // What one thread computes again and again. Sources are made by the test:
  // filling them is work of the device's own stream, for one thread at a time.
  void Repeat(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
              const void* attrs, std::vector<float>* out) {
    choir_stream_t* stream = nullptr;
    ASSERT_OK(choir_stream_create(gpu_.get(), CHOIR_STREAM_COMPUTE, &stream));
    for (int i = 0; i < kRounds; ++i) {
      choir_tensor_t* dst = nullptr;
      ASSERT_OK(choir_op_run(stream, op, srcs.data(), srcs.size(), attrs, false,
                             &dst));
      out->resize(static_cast<size_t>(choir_tensor_count(dst)));
      ASSERT_OK(choir_buffer_read(choir_tensor_view(dst)->buffer, stream, 0,
                                  out->data(), out->size() * sizeof(float)));
      choir_tensor_release(dst);
    }
    choir_stream_release(stream);
  }
  void ExpectTheSameOfAll(choir_op_t op,
                          const std::vector<choir_tensor_t*>& srcs,
                          const void* attrs) {
    std::vector<std::vector<float>> got(kThreads);
    std::vector<std::thread> threads;
    for (std::vector<float>& one : got)
      threads.emplace_back([&, this] { Repeat(op, srcs, attrs, &one); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(got[0].empty());
    for (const std::vector<float>& one : got) EXPECT_EQ(one, got[0]);
  }

  FakeCuda cuda_;
  FakeCublas cublas_;
  FakeCudnn cudnn_;
  DevicePtr gpu_;
};

TEST_F(CudaLibraryThreads, Products) {
  TensorPtr a = Make<float>(gpu_.get(), {3, 40}, Floats(120, 1));
  TensorPtr b = Make<float>(gpu_.get(), {40, 2}, Floats(80, 2));
  ExpectTheSameOfAll(CHOIR_OP_MATMUL, {a.get(), b.get()}, nullptr);
  EXPECT_EQ(cublas_.Calls("cublasLtCreate"), 1);
  EXPECT_EQ(cublas_.Calls("cublasLtMatmulAlgoGetHeuristic"), 1);
  EXPECT_EQ(cublas_.Calls("cublasLtMatmul"), kThreads * kRounds);
}

TEST_F(CudaLibraryThreads, Convolutions) {
  choir_conv2d_attrs_t attrs = Attrs<choir_conv2d_attrs_t>(CHOIR_OP_CONV2D);
  attrs.padding[0] = attrs.padding[1] = 1;
  TensorPtr x =
      MakeChannelsLast<float>(gpu_.get(), {2, 3, 7, 5}, Floats(210, 1));
  TensorPtr w =
      MakeChannelsLast<float>(gpu_.get(), {4, 3, 3, 3}, Floats(108, 2));
  TensorPtr b = Make<float>(gpu_.get(), {4}, Floats(4, 3));
  ExpectTheSameOfAll(CHOIR_OP_CONV2D, {x.get(), w.get(), b.get()}, &attrs);
  EXPECT_EQ(cudnn_.Calls("cudnnCreate"), 1);
  EXPECT_EQ(cudnn_.Calls("cudnnBackendExecute"), kThreads * kRounds);
}

}  // namespace
