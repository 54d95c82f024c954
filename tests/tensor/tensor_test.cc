// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::FailEveryAllocation;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::StridesOf;
using choir::testing::TensorPtr;

// On a device whose memory the host sees, and on one where it may not look.
class TensorTest : public ::testing::TestWithParam<const char*> {
 protected:
  DevicePtr device_ = MakeDevice(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Devices, TensorTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) { return info.param; });

TEST_P(TensorTest, DescribesItself) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(choir_tensor_dtype(x.get()), CHOIR_DTYPE_F32);
  EXPECT_EQ(ShapeOf(x.get()), (Shape{2, 3}));
  EXPECT_EQ(StridesOf(x.get()), (Shape{3, 1}));
  EXPECT_EQ(choir_tensor_count(x.get()), 6);
  EXPECT_EQ(choir_tensor_device(x.get()), device_.get());
  EXPECT_EQ(choir_tensor_view(x.get())->offset, 0);
  EXPECT_EQ(Read<float>(x), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST_P(TensorTest, ScalarsAndNothing) {
  TensorPtr scalar = Make<int64_t>(device_.get(), {}, {-7});
  EXPECT_EQ(choir_tensor_ndim(scalar.get()), 0);
  EXPECT_EQ(Read<int64_t>(scalar), (std::vector<int64_t>{-7}));
  TensorPtr none = Make<float>(device_.get(), {2, 0, 3}, {});
  EXPECT_EQ(choir_tensor_count(none.get()), 0);
  EXPECT_EQ(Read<float>(none), (std::vector<float>{}));
}

TEST_P(TensorTest, HostDataIsRowMajorWhateverTheLayout) {
  std::vector<float> values = Floats(2 * 3 * 4 * 5, 1);
  TensorPtr x = MakeChannelsLast(device_.get(), {2, 3, 4, 5}, values);
  EXPECT_EQ(StridesOf(x.get()), (Shape{60, 1, 15, 3}));
  EXPECT_EQ(Read<float>(x), values);
}

TEST_P(TensorTest, ViewsShareTheBuffer) {
  TensorPtr x = Make<float>(device_.get(), {3, 4},
                            {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  choir_view_t view = *choir_tensor_view(x.get());
  ASSERT_OK(choir_view_slice(&view, 1, 1, 4, 2, &view));  // columns 1 and 3
  choir_tensor_t* raw = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  TensorPtr columns(raw);
  EXPECT_EQ(Read<float>(columns), (std::vector<float>{1, 3, 5, 7, 9, 11}));
  float changed[] = {-1, -3, -5, -7, -9, -11};
  ASSERT_OK(choir_tensor_write(columns.get(), changed, sizeof changed));
  EXPECT_EQ(Read<float>(x),
            (std::vector<float>{0, -1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11}));
  // The view keeps the buffer when the tensor goes.
  x.reset();
  EXPECT_EQ(Read<float>(columns)[5], -11);
}

TEST_P(TensorTest, OutlivesTheCallersDevice) {
  TensorPtr x = Make<float>(device_.get(), {2}, {1, 2});
  device_.reset();
  EXPECT_EQ(Read<float>(x), (std::vector<float>{1, 2}));
}

TEST_P(TensorTest, RefusesWrongHostSizes) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, std::vector<float>(6));
  float host[7];
  EXPECT_STATUS(INVALID_ARGUMENT,
                "tensor read: host memory has 28 bytes; f32 (2, 3) needs 24",
                choir_tensor_read(x.get(), host, 28));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "tensor write: host memory has 20 bytes; f32 (2, 3) needs 24",
                choir_tensor_write(x.get(), host, 20));
  EXPECT_STATUS(INVALID_ARGUMENT, "host memory is NULL",
                choir_tensor_read(x.get(), nullptr, 24));
}

TEST_P(TensorTest, RefusesToWriteOverARepeat) {
  TensorPtr x = Make<float>(device_.get(), {1, 2}, {5, 6});
  choir_view_t view = *choir_tensor_view(x.get());
  const int64_t shape[] = {3, 2};
  choir_view_t source = view;
  ASSERT_OK(choir_view_broadcast(&source, 2, shape, &view));
  choir_tensor_t* raw = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  TensorPtr repeated(raw);
  EXPECT_EQ(Read<float>(repeated), (std::vector<float>{5, 6, 5, 6, 5, 6}));
  float host[6] = {};
  EXPECT_STATUS(INVALID_ARGUMENT, "repeats elements",
                choir_tensor_write(raw, host, sizeof host));
}

TEST_P(TensorTest, RefusesViewsOutsideTheirBuffer) {
  TensorPtr x = Make<float>(device_.get(), {4}, std::vector<float>(4));
  choir_tensor_t* raw = nullptr;
  choir_view_t view = *choir_tensor_view(x.get());
  view.offset = 1;
  EXPECT_STATUS(OUT_OF_RANGE, "needs to stay within its 4 elements",
                choir_tensor_from_view(&view, &raw));
  EXPECT_EQ(raw, nullptr);
  view.offset = -1;
  EXPECT_STATUS(OUT_OF_RANGE, "reaches outside",
                choir_tensor_from_view(&view, &raw));
  for (int64_t offset : {INT64_MIN, INT64_MIN + 1, INT64_MAX}) {
    view.offset = offset;
    EXPECT_STATUS(OUT_OF_RANGE, "reaches outside",
                  choir_tensor_from_view(&view, &raw));
  }
  view.offset = 0;
  view.strides[0] = INT64_MAX / 2;
  EXPECT_STATUS(OUT_OF_RANGE, "reaches outside",
                choir_tensor_from_view(&view, &raw));
  view.strides[0] = -1;
  EXPECT_STATUS(OUT_OF_RANGE, "reaches outside",
                choir_tensor_from_view(&view, &raw));
  view = *choir_tensor_view(x.get());
  view.dtype = CHOIR_DTYPE_F64;
  EXPECT_STATUS(OUT_OF_RANGE, "within its 2 elements",
                choir_tensor_from_view(&view, &raw));
  view.buffer = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "view has no buffer",
                choir_tensor_from_view(&view, &raw));
  // A view of nothing may stand at the end.
  view = *choir_tensor_view(x.get());
  view.shape[0] = 0;
  view.offset = 4;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  choir_tensor_release(raw);
}

TEST_P(TensorTest, RefusesImpossibleShapes) {
  choir_tensor_t* raw = nullptr;
  const int64_t negative[] = {2, -1};
  EXPECT_STATUS(
      OUT_OF_RANGE, "tensor: ",
      choir_tensor_create(device_.get(), CHOIR_DTYPE_F32, 2, negative, &raw));
  const int64_t huge[] = {INT64_MAX, 2};
  EXPECT_STATUS(
      OUT_OF_RANGE, "tensor: ",
      choir_tensor_create(device_.get(), CHOIR_DTYPE_F32, 2, huge, &raw));
  const int64_t nine[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_STATUS(
      INVALID_ARGUMENT, "tensor: ",
      choir_tensor_create(device_.get(), CHOIR_DTYPE_F32, 9, nine, &raw));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "tensor: ",
      choir_tensor_create(device_.get(), CHOIR_DTYPE_COUNT, 1, nine, &raw));
  choir_view_t gaps;
  const int64_t shape[] = {2, 3};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &gaps));
  gaps.strides[0] = 4;
  EXPECT_STATUS(INVALID_ARGUMENT, "has gaps or repeats",
                choir_tensor_create_layout(device_.get(), &gaps, &raw));
  EXPECT_EQ(raw, nullptr);
}

// ---- Digest ----

uint64_t Digest(const std::vector<choir_named_tensor_t>& tensors) {
  uint64_t digest = 0;
  EXPECT_OK(choir_tensor_digest(tensors.data(), tensors.size(), &digest));
  return digest;
}

TEST_P(TensorTest, DigestDependsOnBitsNotOnLayout) {
  std::vector<float> values = Floats(2 * 3 * 4 * 5, 2);
  TensorPtr rows = Make(device_.get(), {2, 3, 4, 5}, values);
  TensorPtr last = MakeChannelsLast(device_.get(), {2, 3, 4, 5}, values);
  uint64_t digest = Digest({{"w", rows.get()}});
  EXPECT_NE(digest, 0u);
  EXPECT_EQ(digest, Digest({{"w", last.get()}}));
  EXPECT_NE(digest, Digest({{"v", rows.get()}}));
  // One bit of one element, wherever it is.
  for (size_t place : {size_t{0}, size_t{1}, size_t{63}, values.size() - 1}) {
    std::vector<float> other = values;
    uint32_t bits;
    std::memcpy(&bits, &other[place], 4);
    bits ^= 1;
    std::memcpy(&other[place], &bits, 4);
    TensorPtr changed = Make(device_.get(), {2, 3, 4, 5}, other);
    EXPECT_NE(digest, Digest({{"w", changed.get()}})) << place;
  }
  TensorPtr reshaped = Make(device_.get(), {6, 20}, values);
  EXPECT_NE(digest, Digest({{"w", reshaped.get()}}));
}

TEST_P(TensorTest, DigestSeesOrderNamesAndDtypes) {
  TensorPtr a = Make<float>(device_.get(), {3}, {1, 2, 3});
  TensorPtr b = Make<float>(device_.get(), {3}, {1, 2, 4});
  EXPECT_NE(Digest({{"a", a.get()}, {"b", b.get()}}),
            Digest({{"b", b.get()}, {"a", a.get()}}));
  EXPECT_NE(Digest({{"ab", a.get()}, {"c", a.get()}}),
            Digest({{"a", a.get()}, {"bc", a.get()}}));
  TensorPtr zero_f32 = Make<float>(device_.get(), {2}, {0, 0});
  TensorPtr zero_i32 = Make<int32_t>(device_.get(), {2}, {0, 0});
  EXPECT_NE(Digest({{"z", zero_f32.get()}}), Digest({{"z", zero_i32.get()}}));
  TensorPtr none = Make<float>(device_.get(), {0}, {});
  TensorPtr one = Make<float>(device_.get(), {1}, {0});
  EXPECT_NE(Digest({{"z", none.get()}}), Digest({{"z", one.get()}}));
  EXPECT_NE(Digest({}), Digest({{"z", none.get()}}));
  EXPECT_NE(Digest({{nullptr, a.get()}}), 0u);
  uint64_t digest = 1;
  choir_named_tensor_t missing = {"gone", nullptr};
  EXPECT_STATUS(INVALID_ARGUMENT, "tensor 0 \"gone\" is NULL",
                choir_tensor_digest(&missing, 1, &digest));
  EXPECT_EQ(digest, 0u);
}

// All sizes around the word and block sizes of the hash, no two alike.
TEST_P(TensorTest, DigestSeesEveryLength) {
  std::vector<uint64_t> digests;
  for (int64_t size = 0; size < 80; ++size) {
    TensorPtr x = Make(device_.get(), {size},
                       std::vector<uint8_t>(static_cast<size_t>(size), 0));
    digests.push_back(Digest({{"x", x.get()}}));
  }
  for (size_t i = 0; i < digests.size(); ++i) {
    for (size_t k = 0; k < i; ++k) EXPECT_NE(digests[i], digests[k]);
  }
}

// Saved digests stay comparable from version to version.
TEST(TensorDigest, IsWhatItWas) {
  DevicePtr device = MakeDevice("cpu");
  std::vector<float> values;
  for (int i = 0; i < 100; ++i) values.push_back(static_cast<float>(i) * 0.5f);
  TensorPtr x = Make(device.get(), {10, 10}, values);
  EXPECT_EQ(Digest({{"conv1.W", x.get()}}), 0x3d531fa9172f20ceu);
}

TEST(Tensor, SurvivesEveryFailedAllocation) {
  FailEveryAllocation([](choir_allocator_t allocator) -> choir_status_t {
    choir_device_options_t options = {};
    options.allocator = allocator;
    options.threads = 1;
    choir_device_t* raw = nullptr;
    CHOIR_TRY(choir_device_create("null", &options, &raw));
    DevicePtr device(raw);
    const int64_t shape[] = {2, 3};
    const float data[6] = {1, 2, 3, 4, 5, 6};
    choir_tensor_t* x = nullptr;
    CHOIR_TRY(choir_tensor_from_data(raw, CHOIR_DTYPE_F32, 2, shape, data, &x));
    TensorPtr owner(x);
    choir_view_t view = *choir_tensor_view(x);
    const int32_t axes[] = {1, 0};
    choir_view_t turned;
    CHOIR_TRY(choir_view_transpose(&view, axes, &turned));
    choir_tensor_t* y = nullptr;
    CHOIR_TRY(choir_tensor_from_view(&turned, &y));
    TensorPtr y_owner(y);
    float host[6];
    CHOIR_TRY(choir_tensor_read(y, host, sizeof host));
    CHOIR_TRY(choir_tensor_write(y, host, sizeof host));
    uint64_t digest;
    choir_named_tensor_t named = {"y", y};
    return choir_tensor_digest(&named, 1, &digest);
  });
}

// A steady loop takes its memory from the pool.
TEST(Tensor, ComesFromThePool) {
  DevicePtr device = MakeDevice("cpu");
  uint64_t idle = choir_device_memory(device.get()).in_use_bytes;
  uint64_t allocations[3];
  for (uint64_t& count : allocations) {
    TensorPtr x = Make(device.get(), {100}, Floats(100, 3));
    TensorPtr y = Make(device.get(), {100}, Floats(100, 4));
    count = choir_device_memory(device.get()).base_allocations;
  }
  EXPECT_EQ(allocations[0], allocations[2]);
  EXPECT_EQ(choir_device_memory(device.get()).in_use_bytes, idle);
}

}  // namespace
