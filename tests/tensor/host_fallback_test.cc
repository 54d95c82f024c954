// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_fallback_internal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::TensorPtr;

// The null device has no kernels and says that its memory is out of reach.
class HostFallback : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(choir__host_fallback_is_forbidden())
        << "CHOIR_STRICT_DEVICE=1 is set";
    choir_op_stats_reset();
  }
  DevicePtr device_ = MakeDevice("null");
};

TEST_F(HostFallback, RunsAndCounts) {
  TensorPtr x = Make<float>(device_.get(), {4}, {-1, 2, -3, 4});
  TensorPtr y = Result(CHOIR_OP_RELU, {x.get()});
  EXPECT_EQ(Read<float>(y), (std::vector<float>{0, 2, 0, 4}));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 1u);
  EXPECT_EQ(choir_op_stats().reference_runs, 0u);
}

TEST_F(HostFallback, ChoosesByDevice) {
  choir_record_t record = {};
  choir_view_t views[2] = {};
  record.operands = views;
  record.src_count = 1;
  record.dst_count = 1;
  EXPECT_EQ(choir__kernel_select(CHOIR_OP_RELU, device_.get(), &record),
            choir__host_kernel(CHOIR_OP_RELU));
}

// Sources and destinations on one buffer stay on one: steps in place.
TEST_F(HostFallback, OperandsThatShareABuffer) {
  TensorPtr all =
      Make<float>(device_.get(), {9}, {1, 2, 3, 10, 20, 30, 0, 0, 0});
  choir_view_t view = *choir_tensor_view(all.get());
  view.shape[0] = 3;
  choir_tensor_t* parts[3];
  for (int i = 0; i < 3; ++i) {
    view.offset = 3 * i;
    ASSERT_OK(choir_tensor_from_view(&view, &parts[i]));
  }
  auto attrs = Attrs<choir_sgd_update_attrs_t>(CHOIR_OP_SGD_UPDATE);
  attrs.lr = 0.5;
  attrs.momentum = 0.5;
  Results(CHOIR_OP_SGD_UPDATE, {parts[0], parts[1], parts[2]}, &attrs);
  EXPECT_EQ(Read<float>(all),
            (std::vector<float>{-4, -8, -12, 10, 20, 30, 10, 20, 30}));
  for (choir_tensor_t* part : parts) choir_tensor_release(part);
}

// Two dtypes on one buffer, neither at its start.
TEST_F(HostFallback, OperandsOfDifferentSizesInOneBuffer) {
  choir_buffer_t* buffer = nullptr;
  choir_stream_t* stream = choir_device_stream(device_.get());
  ASSERT_OK(choir_buffer_create(device_.get(), 256, &buffer));
  std::vector<unsigned char> bytes(256, 0x77);
  const float src[] = {1.5f, -2.5f, 3.5f};
  std::memcpy(&bytes[4 * 33], src, sizeof src);
  ASSERT_OK(choir_buffer_write(buffer, stream, 0, bytes.data(), bytes.size()));
  const int64_t shape[] = {3};
  choir_view_t view;
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, shape, &view));
  view.buffer = buffer;
  view.offset = 33;
  choir_tensor_t* x = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &x));
  view.dtype = CHOIR_DTYPE_U8;
  view.offset = 5;
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  ASSERT_OK(choir_tensor_from_view(&view, &dsts[0]));
  auto attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
  attrs.dtype = CHOIR_DTYPE_U8;
  ASSERT_OK(choir_op_run(stream, CHOIR_OP_CAST, &x, 1, &attrs, false, dsts));
  std::vector<unsigned char> after(256);
  ASSERT_OK(choir_buffer_read(buffer, stream, 0, after.data(), after.size()));
  bytes[5] = 1;
  bytes[6] = 0;
  bytes[7] = 3;
  EXPECT_EQ(after, bytes);
  choir_tensor_release(dsts[0]);
  choir_tensor_release(x);
  choir_buffer_release(buffer);
}

TEST_F(HostFallback, ErrorsNameTheDevice) {
  TensorPtr x = Make(device_.get(), {1, 3}, Floats(3, 1));
  TensorPtr labels = Make<int32_t>(device_.get(), {1}, {7});
  EXPECT_STATUS(
      OUT_OF_RANGE,
      "count_correct on the host for device null: count_correct: "
      "label 7 at row 0; needs 0 .. 2",
      choir::testing::Failure(CHOIR_OP_COUNT_CORRECT, {x.get(), labels.get()}));
}

// Devices of different threads have nothing in common but the counters.
TEST_F(HostFallback, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      DevicePtr device = MakeDevice("null");
      for (int round = 0; round < 20; ++round) {
        TensorPtr x = Make<float>(device.get(), {3}, {-1, 2, 3});
        TensorPtr y = Result(CHOIR_OP_RELU, {x.get()});
        TensorPtr z = Result(CHOIR_OP_ADD, {x.get(), y.get()});
        EXPECT_EQ(Read<float>(z), (std::vector<float>{-1, 4, 6}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(choir_op_stats().host_fallbacks, 160u);
}

}  // namespace
