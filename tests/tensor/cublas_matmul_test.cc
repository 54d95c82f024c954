// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt, over a script in its place: what is kept, what is asked
// of it, what happens when it fails. That numbers are right in every
// arrangement is the op suite's (tests/conformance:op_suite_scripted_cuda).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/log.h"
#include "tests/tensor/fake_cublas.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/fake_cuda.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

// Sums of so many products are split by the script's algorithms.
constexpr int64_t kLong = 40;

class CublasMatmul : public ::testing::Test {
 protected:
  void SetUp() override {
    gpu_ = MakeDevice("cuda");
    choir_op_stats_reset();
  }

  TensorPtr Tensor(const Shape& shape, uint32_t seed = 1) {
    return Make<float>(gpu_.get(), shape, Floats(Count(shape), seed));
  }
  choir_status_t TryProduct(int64_t m, int64_t k, int64_t n) {
    TensorPtr a = Tensor({m, k});
    TensorPtr b = Tensor({k, n});
    std::vector<TensorPtr> results;
    CHOIR_TRY(RunOp(CHOIR_OP_MATMUL, {a.get(), b.get()}, nullptr, &results));
    return choir_stream_synchronize(choir_device_stream(gpu_.get()));
  }
  int Products() { return cublas_.Calls("cublasLtMatmul"); }
  int Questions() { return cublas_.Calls("cublasLtMatmulAlgoGetHeuristic"); }

  FakeCuda cuda_;
  FakeCublas cublas_;
  DevicePtr gpu_;
};

TEST_F(CublasMatmul, IsWhatRuns) {
  TensorPtr a = Tensor({3, 5}, 1);
  TensorPtr b = Tensor({5, 2}, 2);
  std::vector<double> want(6);
  std::vector<float> x = Floats(15, 1), y = Floats(10, 2);
  for (size_t i = 0; i < 30; ++i)
    want[i / 10 * 2 + i % 2] += double{x[i / 2]} * y[i / 2 % 5 * 2 + i % 2];
  ExpectNear(Read<float>(Result(CHOIR_OP_MATMUL, {a.get(), b.get()})), want,
             1e-6);
  TensorPtr bias = Make<float>(gpu_.get(), {2}, {10, 20});
  for (size_t i = 0; i < 6; ++i) want[i] += i % 2 ? 20 : 10;
  ExpectNear(
      Read<float>(Result(CHOIR_OP_LINEAR, {a.get(), b.get(), bias.get()})),
      want, 1e-6);
  EXPECT_EQ(Products(), 2);
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// One call each, whatever is transposed or repeated: batches are the library's,
// and rows of a batch that have one b in common are one product.
TEST_F(CublasMatmul, CopiesNothing) {
  choir_matmul_attrs_t attrs = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
  struct Setting {
    Shape a, b;
    bool transpose_a, transpose_b;
    int32_t batch;
    int calls = 1;
  };
  const Setting settings[] = {
      {{4, 6}, {6, 3}, false, false, 1},
      {{6, 4}, {6, 3}, true, false, 1},
      {{4, 6}, {3, 6}, false, true, 1},
      {{6, 4}, {3, 6}, true, true, 1},
      {{7, 4, 6}, {7, 6, 3}, false, false, 7},
      {{7, 4, 6}, {6, 3}, false, false, 1},
      {{7, 6, 4}, {6, 3}, true, false, 7},
      {{4, 6}, {7, 3, 6}, false, true, 7},
      {{2, 5, 4, 6}, {2, 5, 6, 3}, false, false, 10},
      {{2, 1, 4, 6}, {1, 5, 6, 3}, false, false, 5, 2},
  };
  int calls = 0;
  for (const Setting& setting : settings) {
    attrs.transpose_a = setting.transpose_a;
    attrs.transpose_b = setting.transpose_b;
    TensorPtr a = Tensor(setting.a);
    TensorPtr b = Tensor(setting.b);
    TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()}, &attrs);
    EXPECT_EQ(cublas_.last_question().batch, setting.batch);
    calls += setting.calls;
    EXPECT_EQ(Products(), calls);
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
  EXPECT_EQ(choir_op_stats().reorders, 0u);
}

TEST_F(CublasMatmul, KeepsWhatItMadeForAProblem) {
  for (int i = 0; i < 4; ++i) ASSERT_OK(TryProduct(3, 5, 2));
  EXPECT_EQ(Questions(), 1);
  ASSERT_OK(TryProduct(3, 5, 4));
  EXPECT_EQ(Questions(), 2);
  ASSERT_OK(TryProduct(3, 5, 2));
  EXPECT_EQ(Questions(), 2);
  // The bias may lie elsewhere each time.
  TensorPtr x = Tensor({3, 5}), w = Tensor({5, 2});
  for (float value : {1.0f, 2.0f, 3.0f}) {
    TensorPtr zeros = Make<float>(gpu_.get(), {2}, {0, 0});
    TensorPtr bias = Make<float>(gpu_.get(), {2}, {value, value});
    std::vector<float> without =
        Read<float>(Result(CHOIR_OP_LINEAR, {x.get(), w.get(), zeros.get()}));
    std::vector<float> with =
        Read<float>(Result(CHOIR_OP_LINEAR, {x.get(), w.get(), bias.get()}));
    for (size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(with[i], without[i] + value, 1e-6);
  }
  EXPECT_EQ(Questions(), 3);
}

TEST_F(CublasMatmul, KeepsNoMoreThanTheBound) {
  ASSERT_OK(TryProduct(1, 1, 1));
  const size_t one = cublas_.live();
  for (int i = 1; i < CHOIR__CUDA_PLANS; ++i)
    ASSERT_OK(TryProduct(1 + i % 32, 1, 1 + i / 32));
  const size_t full = cublas_.live();
  EXPECT_EQ(full, 1 + (one - 1) * CHOIR__CUDA_PLANS);
  // The first is asked for, and so not the one that goes.
  ASSERT_OK(TryProduct(1, 1, 1));
  EXPECT_EQ(Questions(), CHOIR__CUDA_PLANS);
  ASSERT_OK(TryProduct(50, 1, 1));
  EXPECT_EQ(cublas_.live(), full);
  ASSERT_OK(TryProduct(1, 1, 1));
  EXPECT_EQ(Questions(), CHOIR__CUDA_PLANS + 1);
  ASSERT_OK(TryProduct(2, 1, 1));
  EXPECT_EQ(Questions(), CHOIR__CUDA_PLANS + 2);
}

TEST_F(CublasMatmul, AsksForOneOrderOfSumsAndNoTf32) {
  ASSERT_OK(TryProduct(3, kLong, 2));
  const FakeCublas::Question question = cublas_.last_question();
  EXPECT_EQ(question.compute, CHOIR__CUBLAS_COMPUTE_32F);
  EXPECT_EQ(question.reduction_mask, 2u);
  EXPECT_EQ(question.workspace_bytes, uint64_t{32} << 20);
}

TEST_F(CublasMatmul, Tf32IsASettingOfTheEnvironment) {
  setenv("CHOIR_TF32", "1", 1);
  ASSERT_OK(TryProduct(3, 5, 2));
  unsetenv("CHOIR_TF32");
  EXPECT_EQ(cublas_.last_question().compute,
            CHOIR__CUBLAS_COMPUTE_32F_FAST_TF32);
}

TEST_F(CublasMatmul, SaysHowOperandsAreAligned) {
  ASSERT_OK(TryProduct(4, 4, 4));
  for (uint32_t alignment : cublas_.last_question().alignment)
    EXPECT_EQ(alignment, 256u);
  // From element 1 on, and from element 2.
  TensorPtr a = Tensor({17}), b = Tensor({18});
  choir_tensor_t* views[2];
  for (int i = 0; i < 2; ++i) {
    choir_view_t view = *choir_tensor_view(i ? b.get() : a.get());
    view.ndim = 2;
    view.shape[0] = view.shape[1] = 4;
    choir_view_set_contiguous(&view);
    view.offset = 1 + i;
    ASSERT_OK(choir_tensor_from_view(&view, &views[i]));
  }
  TensorPtr first(views[0]), second(views[1]);
  TensorPtr c = Result(CHOIR_OP_MATMUL, {first.get(), second.get()});
  const FakeCublas::Question question = cublas_.last_question();
  // The library's first factor is our second.
  EXPECT_EQ(question.alignment[0], 8u);
  EXPECT_EQ(question.alignment[1], 4u);
  EXPECT_EQ(question.alignment[2], 256u);
  EXPECT_EQ(Questions(), 2);
}

TEST_F(CublasMatmul, WorkspaceIsThePoolsAndComesBack) {
  ASSERT_OK(TryProduct(3, kLong, 2));
  const choir_pool_stats_t before = choir_device_memory(gpu_.get());
  for (int i = 0; i < 3; ++i) ASSERT_OK(TryProduct(3, kLong, 2));
  const choir_pool_stats_t after = choir_device_memory(gpu_.get());
  EXPECT_EQ(after.base_allocations, before.base_allocations);
  EXPECT_EQ(after.in_use_bytes, 0u);
  EXPECT_GE(after.peak_bytes, 4096u);
}

TEST_F(CublasMatmul, NoMemoryForTheWorkspaceIsAStatus) {
  TensorPtr a = Tensor({3, kLong}), b = Tensor({kLong, 2});
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  choir_device_trim(gpu_.get());
  cuda_.set_bytes(cuda_.live_bytes() + 1024);
  EXPECT_STATUS(OUT_OF_MEMORY, "workspace of cublasLtMatmul",
                Failure(CHOIR_OP_MATMUL, {a.get(), b.get()}));
  cuda_.set_bytes(size_t{1} << 30);
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MATMUL, {a.get(), b.get()})),
            Read<float>(c));
}

TEST_F(CublasMatmul, FailuresNameTheGpuTheCallAndTheText) {
  cublas_.FailNext("cublasLtCreate", 3);
  EXPECT_STATUS(OUT_OF_MEMORY,
                "cuda:0: cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED, the "
                "resource allocation failed",
                TryProduct(3, 5, 2));
  for (const char* function :
       {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
    cublas_.FailNext(function, 13);
    EXPECT_STATUS(INTERNAL,
                  std::string("cuda:0: ") + function +
                      ": CUBLAS_STATUS_EXECUTION_FAILED (13), the function "
                      "failed to launch on the GPU",
                  TryProduct(3, 5, 2));
  }
  ASSERT_OK(TryProduct(3, 5, 2));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CublasMatmul, WhatItHasNoAlgorithmForRunsOnTheHost) {
  std::vector<std::string> logged;
  choir_log_set_sink(
      [](void* self, choir_log_level_t, const char*, const char* message) {
        static_cast<std::vector<std::string>*>(self)->emplace_back(message);
      },
      &logged, CHOIR_LOG_WARNING);
  cublas_.set_has_algorithms(false);
  TensorPtr a = Make<float>(gpu_.get(), {1, 2}, {2, 3});
  TensorPtr b = Make<float>(gpu_.get(), {2, 1}, {5, 7});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Read<float>(Result(CHOIR_OP_MATMUL, {a.get(), b.get()})),
              std::vector<float>{31});
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  EXPECT_EQ(choir_op_stats().host_fallbacks, 3u);
  // It is asked once, and that is said once.
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(logged, std::vector<std::string>{
                        "cuda:0: cuBLASLt has no algorithm for matmul to f32 "
                        "(1, 1); it runs on the host"});
}

TEST_F(CublasMatmul, WhatHasNoDenseRowsOrColumnsIsCopied) {
  TensorPtr wide = Tensor({4, 8});
  choir_view_t view = *choir_tensor_view(wide.get());
  view.shape[1] = 4;
  view.strides[1] = 2;
  choir_tensor_t* every_second = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &every_second));
  TensorPtr a(every_second);
  TensorPtr b = Tensor({4, 2});
  choir_op_stats_reset();
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  EXPECT_EQ(Products(), 1);
  EXPECT_EQ(choir_op_stats().reorders, 1u);
}

TEST_F(CublasMatmul, IsReleasedWithTheDevice) {
  ASSERT_OK(TryProduct(3, 5, 2));
  EXPECT_GT(cublas_.live(), 0u);
  gpu_.reset();
  EXPECT_EQ(cublas_.live(), 0u);
  EXPECT_EQ(cublas_.Calls("cublasLtDestroy"), 1);
}

}  // namespace
