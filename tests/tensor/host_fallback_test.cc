// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_fallback_internal.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

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

// What an op is lowered to on a device, and the label that this has.
TEST_F(HostFallback, IsWhatAnOpIsLoweredTo) {
  choir_view_t views[2] = {};
  choir_record_t record = {};
  record.operation = choir__operation(CHOIR_OP_RELU);
  record.operands = views;
  record.src_count = 1;
  record.dst_count = 1;
  record.label = "layer";
  std::vector<choir_record_t> emitted;
  const choir_lowering_t lowering = {
      device_.get(),
      [](void* self, const choir_record_t* one) -> choir_status_t {
        static_cast<std::vector<choir_record_t>*>(self)->push_back(*one);
        return nullptr;
      },
      &emitted};
  ASSERT_OK(choir__lower(&lowering, &record));
  ASSERT_EQ(emitted.size(), 1u);
  EXPECT_EQ(emitted[0].kernel, choir__host_kernel(CHOIR_OP_RELU));
  EXPECT_EQ(emitted[0].operation, record.operation);
  EXPECT_STREQ(emitted[0].label, "layer");
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

// A column of a matrix whose rows are two pages long; what lies between its
// elements on the second page of each cannot be written.
class GuardedColumn {
 public:
  static constexpr int64_t kRows = 5;

  explicit GuardedColumn(choir_device_t* device)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        bytes_(2 * kRows * page_),
        data_(static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    for (size_t row = 0; row < kRows; ++row)
      EXPECT_EQ(mprotect(data_ + (2 * row + 1) * page_, page_, PROT_READ), 0);
    choir_buffer_t* buffer = nullptr;
    EXPECT_OK(
        choir_buffer_wrap(device, data_, bytes_, nullptr, nullptr, &buffer));
    const int64_t shape[] = {kRows, 3};
    choir_view_t view;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &view));
    view.buffer = buffer;
    view.offset = 2;
    view.strides[0] = static_cast<int64_t>(2 * page_ / sizeof(float));
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &tensor));
    tensor_.reset(tensor);
    choir_buffer_release(buffer);
  }
  ~GuardedColumn() {
    tensor_.reset();
    munmap(data_, bytes_);
  }
  choir_tensor_t* get() { return tensor_.get(); }

 private:
  size_t page_;
  size_t bytes_;
  char* data_;
  TensorPtr tensor_;
};

// Another stream may be writing what lies between a destination's elements.
TEST_F(HostFallback, WritesADestinationsOwnElementsOnly) {
  GuardedColumn column(device_.get());
  constexpr size_t kCount = GuardedColumn::kRows * 3;
  std::vector<float> values;
  for (size_t i = 0; i < kCount; ++i) values.push_back(static_cast<float>(i));
  ASSERT_OK(
      choir_tensor_write(column.get(), values.data(), kCount * sizeof(float)));
  EXPECT_EQ(Read<float>(column.get()), values);
  choir_stream_t* stream = choir_device_stream(device_.get());
  TensorPtr x = Make<float>(device_.get(), {GuardedColumn::kRows, 3}, values);
  choir_tensor_t* src = x.get();
  choir_tensor_t* dst = column.get();
  for (bool accumulate : {false, true}) {
    ASSERT_OK(choir_op_run(stream, CHOIR_OP_SQUARE, &src, 1, nullptr,
                           accumulate, &dst));
    std::vector<float> expected;
    for (float value : values)
      expected.push_back(value * value * (accumulate ? 2 : 1));
    EXPECT_EQ(Read<float>(column.get()), expected);
  }
  // A source and its destination in one buffer.
  ASSERT_OK(choir_op_run(stream, CHOIR_OP_NEG, &dst, 1, nullptr, false, &dst));
  EXPECT_EQ(Read<float>(column.get())[4], -32);
}

// Two streams fill two columns of one matrix, again and again.
TEST_F(HostFallback, StreamsFillColumnsOfOneMatrix) {
  constexpr int64_t kRows = 64;
  TensorPtr matrix =
      Make<float>(device_.get(), {kRows, 2}, std::vector<float>(2 * kRows));
  std::vector<std::thread> threads;
  std::vector<int> wrong(2);
  for (int64_t c = 0; c < 2; ++c) {
    threads.emplace_back([&, c] {
      choir_stream_t* stream = nullptr;
      ASSERT_OK(
          choir_stream_create(device_.get(), CHOIR_STREAM_BACKGROUND, &stream));
      choir_view_t view = *choir_tensor_view(matrix.get());
      ASSERT_OK(choir_view_slice(&view, 1, c, c + 1, 1, &view));
      choir_tensor_t* column = nullptr;
      ASSERT_OK(choir_tensor_from_view(&view, &column));
      const float* elements =
          static_cast<const float*>(choir_buffer_data(view.buffer)) +
          view.offset;
      for (int i = 1; i <= 2000; ++i) {
        choir_fill_attrs_t attrs = {static_cast<double>(i)};
        ASSERT_OK(choir_op_run(stream, CHOIR_OP_FILL, &column, 1, &attrs, false,
                               &column));
        for (int64_t row = 0; row < kRows; ++row)
          wrong[static_cast<size_t>(c)] +=
              elements[row * view.strides[0]] != static_cast<float>(i);
      }
      choir_tensor_release(column);
      choir_stream_release(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::vector<int>{0, 0}));
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
