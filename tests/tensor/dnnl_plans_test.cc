// SPDX-License-Identifier: Apache-2.0
// oneDNN's primitives are made once for a problem and kept, up to a bound.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tests/tensor/kernel_problem.h"
#include "tests/tensor/ops_testing.h"

// In the place of the library's, for all calls of this program.
static bool has_no_memory;
extern "C" dnnl_status_t dnnl_primitive_attr_create(
    dnnl_primitive_attr_t* attr) {
  static const auto create =
      reinterpret_cast<decltype(&dnnl_primitive_attr_create)>(
          dlsym(RTLD_NEXT, "dnnl_primitive_attr_create"));
  if (!has_no_memory) return create(attr);
  has_no_memory = false;
  return dnnl_out_of_memory;
}

namespace {

using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

class DnnlPlans : public testing::Test {
 protected:
  void SetUp() override { choir__dnnl_cache_clear(); }
  static const choir_op_def_t* def() { return choir__op_def(CHOIR_OP_CONV2D); }
};

TEST_F(DnnlPlans, AreBuiltOnceForAProblem) {
  Device device(1);
  Problem problem(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kChannelsLast,
                  false, CHOIR_DTYPE_F32, device);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < 5; ++i) problem.Run(&choir__cpu_conv2d, device.stream());
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.built - before.built, 1u);
  EXPECT_EQ(after.reused - before.reused, 4u);
  EXPECT_EQ(after.kept, 1);
  // Another layout or number of threads is another problem.
  Device two(2);
  problem.Run(&choir__cpu_conv2d, two.stream());
  Problem dense(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kDense, false,
                CHOIR_DTYPE_F32, device);
  dense.Run(&choir__cpu_conv2d, device.stream());
  EXPECT_EQ(choir__dnnl_cache_stats().built - before.built, 3u);
  // An activation is not: it comes after the plan.
  Problem relu(def(), {"2,3,8,8;4,3,3,3;4", "activation=relu"},
               Layout::kChannelsLast, false, CHOIR_DTYPE_F32, device);
  relu.Run(&choir__cpu_conv2d, device.stream());
  EXPECT_EQ(choir__dnnl_cache_stats().built - before.built, 3u);
}

TEST_F(DnnlPlans, AreBounded) {
  Device device(1);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < CHOIR__DNNL_PLANS + 20; ++i) {
    const std::string shapes = "1,1," + std::to_string(1 + i / 24) + "," +
                               std::to_string(1 + i % 24) + ";1,1,1,1;1";
    Problem problem(def(), {shapes.c_str(), nullptr}, Layout::kChannelsLast,
                    false, CHOIR_DTYPE_F32, device);
    problem.Run(&choir__cpu_conv2d, device.stream());
  }
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.kept, CHOIR__DNNL_PLANS);
  EXPECT_EQ(after.dropped - before.dropped, 20u);
  choir__dnnl_cache_clear();
  EXPECT_EQ(choir__dnnl_cache_stats().kept, 0);
}

TEST_F(DnnlPlans, ServeThreadsAtTheSameTime) {
  const choir_op_case_t op_case = {"8,3,12,12;8,3,3,3;8", "padding=1"};
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Device device(1);
      Problem problem(def(), op_case, Layout::kChannelsLast, false,
                      CHOIR_DTYPE_F32, device);
      const auto want = problem.Run(&choir__cpu_conv2d, device.stream());
      for (int i = 0; i < 200; ++i)
        wrong += problem.Run(&choir__cpu_conv2d, device.stream()) != want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(choir__dnnl_cache_stats().kept, kThreads);
}

// A plan that could not be made is made the next time.
TEST_F(DnnlPlans, AFailureIsNotKept) {
  Device device(1);
  Problem problem(def(), {"16,64,8,8;64,64,3,3;64", "padding=1,1"},
                  Layout::kChannelsLast, false, CHOIR_DTYPE_F32, device);
  const auto want = problem.Run(&choir__cpu_conv2d, device.stream());
  choir__dnnl_cache_clear();
  choir_record_t record = problem.record();
  record.kernel = &choir__cpu_conv2d.kernel;
  has_no_memory = true;
  EXPECT_STATUS(OUT_OF_MEMORY, "dnnl_primitive_attr_create failed",
                record.kernel->run(&record, device.stream()));
  EXPECT_TRUE(problem.Run(&choir__cpu_conv2d, device.stream()) == want);
}

TEST_F(DnnlPlans, CountTheirReorders) {
  Device device(1);
  Problem problem(def(), {"2,16,8,8;32,16,3,3;32", nullptr}, Layout::kDense,
                  false, CHOIR_DTYPE_F32, device);
  choir_op_stats_reset();
  problem.Run(&choir__cpu_conv2d, device.stream());
  // x and W at least: neither lies as the primitive wants it.
  EXPECT_GE(choir_op_stats().reorders, 2u);
  EXPECT_GE(choir_op_stats().reorder_bytes, 4u * (2 * 16 * 64 + 32 * 16 * 9));
}

// ---- Reordered weights ----

class DnnlWeights : public DnnlPlans {
 protected:
  void SetUp() override {
    DnnlPlans::SetUp();
    device_ = choir::testing::MakeDevice("cpu");
    stream_ = choir_device_stream(device_.get());
    x_ = MakeTensor({2, 32, 8, 8}, 3);
    w_ = MakeTensor({32, 32, 3, 3}, 5);
    b_ = MakeTensor({32}, 7);
  }

  static std::vector<float> Numbers(int64_t count, int seed) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          static_cast<float>((i * 37 + i / 11 * seed) % 101) / 101 - 0.5f;
    return values;
  }
  choir::testing::TensorPtr MakeTensor(const choir::testing::Shape& shape,
                                       int seed) {
    return choir::testing::Make(device_.get(), shape,
                                Numbers(choir::testing::Count(shape), seed));
  }
  std::vector<float> Run(choir_tensor_t* w) {
    choir_conv2d_attrs_t attrs = {};
    attrs.stride[0] = attrs.stride[1] = 1;
    attrs.dilation[0] = attrs.dilation[1] = 1;
    attrs.padding[0] = attrs.padding[1] = 1;
    attrs.groups = 1;
    choir_tensor_t* srcs[] = {x_.get(), w, b_.get()};
    choir_tensor_t* y = nullptr;
    EXPECT_OK(
        choir_op_run(stream_, CHOIR_OP_CONV2D, srcs, 3, &attrs, false, &y));
    const choir::testing::TensorPtr held(y);
    return choir::testing::Read<float>(y);
  }
  // With weights that nobody has seen yet.
  std::vector<float> RunOnCopy() {
    const choir::testing::TensorPtr copy =
        choir::testing::Make(device_.get(), choir::testing::ShapeOf(w_.get()),
                             choir::testing::Read<float>(w_.get()));
    return Run(copy.get());
  }
  uint64_t ReordersOfRun() {
    choir_op_stats_reset();
    Run(w_.get());
    return choir_op_stats().reorders;
  }
  // Three runs, so that the copy is kept and used, give what fresh ones do.
  void ExpectAsFresh(const char* what) {
    SCOPED_TRACE(what);
    const std::vector<float> fresh = RunOnCopy();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Run(w_.get()) == fresh) << i;
  }

  choir::testing::DevicePtr device_;
  choir_stream_t* stream_ = nullptr;
  choir::testing::TensorPtr x_, w_, b_;
};

TEST_F(DnnlWeights, AreReorderedOnceWhileTheyStayTheSame) {
  const uint64_t first = ReordersOfRun();
  ASSERT_GE(first, 2u);  // of x and W
  EXPECT_EQ(ReordersOfRun(), first);
  EXPECT_EQ(ReordersOfRun(), first - 1);
  EXPECT_EQ(ReordersOfRun(), first - 1);
  const std::vector<float> values = Numbers(32 * 32 * 9, 9);
  ASSERT_OK(choir_tensor_write(w_.get(), values.data(),
                               values.size() * sizeof(float)));
  EXPECT_EQ(ReordersOfRun(), first);
  EXPECT_EQ(ReordersOfRun(), first);
  EXPECT_EQ(ReordersOfRun(), first - 1);
}

TEST_F(DnnlWeights, AreReorderedAnewAfterAnyWrite) {
  ExpectAsFresh("as made");
  const std::vector<float> values = Numbers(32 * 32 * 9, 11);
  ASSERT_OK(choir_tensor_write(w_.get(), values.data(),
                               values.size() * sizeof(float)));
  ExpectAsFresh("choir_tensor_write");
  const choir_view_t view = *choir_tensor_view(w_.get());
  ASSERT_OK(choir_buffer_write(view.buffer, stream_, 4000, values.data(), 400));
  ExpectAsFresh("choir_buffer_write");
  const choir::testing::TensorPtr other = MakeTensor({32, 32, 3, 3}, 13);
  choir_tensor_t* from = other.get();
  choir_tensor_t* to = w_.get();
  ASSERT_OK(
      choir_op_run(stream_, CHOIR_OP_COPY, &from, 1, nullptr, false, &to));
  ExpectAsFresh("an op's result");
  ASSERT_OK(choir_op_run(stream_, CHOIR_OP_COPY, &from, 1, nullptr, true, &to));
  ExpectAsFresh("an op that adds");
  // One filter, by a view on the same buffer.
  choir_view_t part = view;
  part.shape[0] = 1;
  part.offset += 5 * part.strides[0];
  choir_tensor_t* filter = nullptr;
  ASSERT_OK(choir_tensor_from_view(&part, &filter));
  ASSERT_OK(choir_tensor_write(filter, values.data(), 32 * 9 * sizeof(float)));
  ExpectAsFresh("a write to a part");
  choir_tensor_release(filter);
  static_cast<float*>(choir_buffer_data(view.buffer))[77] = 100;
  ExpectAsFresh("the host's own write");
  static_cast<float*>(choir_buffer_data(view.buffer))[77] = 200;
  ExpectAsFresh("the host's own write, again");
}

}  // namespace
