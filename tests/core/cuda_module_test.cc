// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <set>

#include "core/cuda_backend.h"
#include "tests/core/cuda_testing.h"

namespace {

using choir::testing::CudaTest;
using choir::testing::FailEveryAllocation;
using choir::testing::HostKernels;

// Writes 3 * thread + `add` to each of `count` numbers.
struct Params {
  int32_t* dst;
  uint32_t count;
  int32_t add;
};
void Fill(const void* memory, uint32_t block, uint32_t threads) {
  const auto* params = static_cast<const Params*>(memory);
  for (uint32_t i = block * threads; i < (block + 1) * threads; ++i)
    if (i < params->count)
      params->dst[i] = 3 * static_cast<int32_t>(i) + params->add;
}

HostKernels image = {{"fill", sizeof(Params), Fill}};
const choir_cuda_module_t kModule = {"some.cu", &image};
const choir_cuda_module_t kEmpty = {"other.cu", nullptr};
const choir_cuda_kernel_t kFill = {&kModule, "fill"};
const choir_cuda_kernel_t kMissing = {&kModule, "fall"};
const choir_cuda_kernel_t kWithoutImage = {&kEmpty, "fill"};

class CudaModuleTest : public CudaTest {
 protected:
  struct Launch {
    const choir_cuda_kernel_t* kernel;
    int32_t add;
  };

  // A record that launches the kernel over `buffer`.
  choir_status_t Run(choir_buffer_t* buffer, Launch launch) {
    static const choir_kernel_t kernel = {
        "launch/test",
        [](const choir_record_t* record, choir_stream_t* stream) {
          const auto* one = static_cast<const Launch*>(record->attrs);
          choir_buffer_t* dst = record->operands[0].buffer;
          const Params params = {
              static_cast<int32_t*>(choir_buffer_data(dst)),
              static_cast<uint32_t>(choir_buffer_bytes(dst) / 4), one->add};
          return choir__cuda_launch(stream, one->kernel, 2, 64, &params);
        },
        nullptr,
        nullptr,
        nullptr,
        false};
    choir_view_t view;
    const int64_t count = static_cast<int64_t>(choir_buffer_bytes(buffer));
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_U8, 1, &count, &view));
    view.buffer = buffer;
    choir_record_t record = {};
    record.kernel = &kernel;
    record.operands = &view;
    record.dst_count = 1;
    record.attrs = &launch;
    record.attrs_bytes = sizeof(launch);
    return choir_stream_submit(stream_, &record);
  }
};

TEST_F(CudaModuleTest, LaunchesAreWorkOfTheStream) {
  choir_buffer_t* buffer = NewBuffer(400);
  ASSERT_OK(Run(buffer, {&kFill, 5}));
  EXPECT_EQ(fake_.TakeLog(), (std::vector<std::string>{"launch fill stream2"}));
  EXPECT_EQ(fake_.Pending(kCompute), 1u);
  int32_t numbers[100];
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, numbers, sizeof(numbers)));
  for (int32_t i = 0; i < 100; ++i) ASSERT_EQ(numbers[i], 3 * i + 5);
  choir_buffer_release(buffer);
}

TEST_F(CudaModuleTest, AModuleIsLoadedAndAKernelLookedUpOnce) {
  choir_buffer_t* buffer = NewBuffer(400);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Run(buffer, {&kFill, i}));
  EXPECT_EQ(fake_.Calls("cuModuleLoadData"), 1);
  EXPECT_EQ(fake_.Calls("cuModuleGetFunction"), 1);
  EXPECT_EQ(fake_.Calls("cuLaunchKernel"), 3);
  choir_buffer_release(buffer);
}

TEST_F(CudaModuleTest, WhatFailsIsSaidAndMayBeTriedAgain) {
  choir_buffer_t* buffer = NewBuffer(400);
  EXPECT_STATUS(
      UNAVAILABLE,
      "cuda:0: this build has no code for GPUs in other.cu; needs one "
      "with --config=cuda",
      Run(buffer, {&kWithoutImage, 0}));
  EXPECT_STATUS(INTERNAL, "kernel fall of some.cu",
                Run(buffer, {&kMissing, 0}));
  fake_.FailNext("cuLaunchKernel", 700);
  EXPECT_STATUS(INTERNAL, "cuLaunchKernel", Run(buffer, {&kFill, 0}));
  ASSERT_OK(Run(buffer, {&kFill, 1}));
  choir_buffer_release(buffer);
}

TEST_F(CudaModuleTest, AnImageForOtherGpusIsAStatus) {
  choir_buffer_t* buffer = NewBuffer(400);
  fake_.FailNext("cuModuleLoadData", 209);
  EXPECT_STATUS(INTERNAL, "kernels of some.cu", Run(buffer, {&kFill, 0}));
  ASSERT_OK(Run(buffer, {&kFill, 1}));
  choir_buffer_release(buffer);
}

// What a record that asks for scratch is told and given.
struct Scratch {
  size_t bytes;
  int more;  // pieces, all with one byte more than the one before
  void* data;
};

choir_status_t Ask(choir_stream_t* stream, Scratch* scratch) {
  static const choir_kernel_t kernel = {
      "scratch/test",
      [](const choir_record_t* record, choir_stream_t* on) {
        auto* one = static_cast<Scratch*>(const_cast<void*>(record->attrs));
        CHOIR_TRY(choir__cuda_scratch(on, one->bytes, &one->data));
        const Params params = {static_cast<int32_t*>(one->data), 8, 0};
        CHOIR_TRY(choir__cuda_launch(on, &kFill, 1, 8, &params));
        std::set<void*> pieces = {one->data};
        for (int i = 1; i <= one->more; ++i) {
          void* piece = nullptr;
          CHOIR_TRY(choir__cuda_scratch(on, one->bytes + static_cast<size_t>(i),
                                        &piece));
          EXPECT_TRUE(pieces.insert(piece).second) << "piece " << i;
        }
        return choir_status_t{};
      },
      nullptr,
      nullptr,
      nullptr,
      false};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.attrs = scratch;
  record.attrs_bytes = sizeof(*scratch);
  return choir_stream_submit(stream, &record);
}

TEST_F(CudaModuleTest, ScratchIsTheRecordsAlone) {
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &other));
  Scratch first = {100, 0, nullptr};
  ASSERT_OK(Ask(stream_, &first));
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
  // On its own stream it is there again at once; another one waits.
  Scratch second = {100, 0, nullptr};
  ASSERT_OK(Ask(stream_, &second));
  EXPECT_EQ(second.data, first.data);
  EXPECT_EQ(fake_.TakeLog(), (std::vector<std::string>{"launch fill stream2",
                                                       "launch fill stream2"}));
  Scratch third = {100, 0, nullptr};
  ASSERT_OK(Ask(other, &third));
  EXPECT_EQ(third.data, first.data);
  const std::vector<std::string> log = fake_.TakeLog();
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[0].rfind("record ", 0), 0u) << log[0];
  EXPECT_EQ(log[1].rfind("wait stream3 ", 0), 0u) << log[1];
  EXPECT_EQ(log[2], "launch fill stream3");
  choir_stream_release(other);
}

TEST_F(CudaModuleTest, ScratchComesInFourPiecesAtMost) {
  Scratch scratch = {100, 3, nullptr};
  ASSERT_OK(Ask(stream_, &scratch));
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
  scratch.more = 4;
  EXPECT_STATUS(FAILED_PRECONDITION, "scratch/test was given 4 pieces already",
                Ask(stream_, &scratch));
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
  scratch = {size_t{1} << 40, 0, nullptr};
  EXPECT_STATUS(OUT_OF_MEMORY, "cuda:0", Ask(stream_, &scratch));
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
}

TEST_F(CudaModuleTest, NoMemoryIsAStatus) {
  const int64_t failed = FailEveryAllocation([this](choir_allocator_t objects) {
    choir_device_release(device_);
    choir_device_options_t options = {};
    options.allocator = objects;
    device_ = nullptr;
    choir_status_t status = choir_device_create("cuda", &options, &device_);
    if (!status) {
      stream_ = choir_device_stream(device_);
      choir_buffer_t* buffer = nullptr;
      status = choir_buffer_create(device_, 400, &buffer);
      if (!status) status = Run(buffer, {&kFill, 1});
      choir_buffer_release(buffer);
    }
    choir_device_release(device_);
    device_ = nullptr;
    return status;
  });
  EXPECT_GE(failed, 4);
}

}  // namespace
