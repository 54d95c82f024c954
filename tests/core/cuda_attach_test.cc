// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "core/cuda_backend.h"
#include "tests/core/cuda_testing.h"

// What libraries of others find on a device (core/device/cuda/cuda_attach.c).

namespace {

using choir::testing::CudaTest;
using choir::testing::FailEveryAllocation;
using choir::testing::FakeCuda;

int opened = 0;
int closed = 0;
choir_status_t (*next_open)() = nullptr;

choir_status_t Open(choir_device_t* device, void** out_state) {
  EXPECT_TRUE(FakeCuda::HasContext());
  EXPECT_STREQ(choir__cuda_who(device), "cuda:0");
  if (next_open) return next_open();
  ++opened;
  *out_state = &opened;
  return nullptr;
}
void Close(choir_device_t*, void* state) {
  EXPECT_TRUE(FakeCuda::HasContext());
  EXPECT_EQ(state, &opened);
  ++closed;
}
const choir_cuda_attachment_t kAttachment = {Open, Close};
const choir_cuda_attachment_t kOther = {Open, Close};

class CudaAttachTest : public CudaTest {
 protected:
  void SetUp() override {
    opened = closed = 0;
    next_open = nullptr;
    CudaTest::SetUp();
  }
  // `call` inside a record's run on the stream.
  choir_status_t During(choir_stream_t* stream,
                        std::function<choir_status_t()> call) {
    static const choir_kernel_t kernel = {
        "call/test",
        [](const choir_record_t* record, choir_stream_t*) {
          return (*static_cast<const std::function<choir_status_t()>*>(
              record->attrs))();
        },
        nullptr,
        nullptr,
        nullptr,
        false};
    choir_record_t record = {};
    record.kernel = &kernel;
    record.attrs = &call;
    record.attrs_bytes = sizeof(call);
    return choir_stream_submit(stream, &record);
  }
  choir_status_t Attach(const choir_cuda_attachment_t* what) {
    return During(stream_, [this, what] {
      void* state = nullptr;
      CHOIR_TRY(choir__cuda_attach(device_, what, &state));
      EXPECT_EQ(state, &opened);
      return choir_status_t{};
    });
  }
  // A record that works on scratch memory: notes `mark` when its turn comes.
  // Three pieces, as a question about an event advances a stream by one.
  choir_status_t UseScratch(choir_stream_t* stream, char mark) {
    return During(stream, [this, stream, mark] {
      void* memory = nullptr;
      CHOIR_TRY(choir__cuda_scratch(stream, 1000, &memory));
      EXPECT_TRUE(fake_.Holds(memory, 1000));
      used_.push_back(memory);
      choir__cu_stream_t handle = choir__cuda_stream_handle(stream);
      for (int i = 0; i < 2; ++i)
        fake_.LaunchFor("rest", handle, [] {}, {memory});
      fake_.LaunchFor("note", handle, [this, mark] { order_ += mark; },
                      {memory});
      return choir_status_t{};
    });
  }

  std::vector<void*> used_;
  std::string order_;
};

TEST_F(CudaAttachTest, AnAttachmentIsOpenedOnceAndClosedWithTheDevice) {
  for (int i = 0; i < 3; ++i) ASSERT_OK(Attach(&kAttachment));
  EXPECT_EQ(opened, 1);
  ASSERT_OK(Attach(&kOther));
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(closed, 0);
  choir_device_release(device_);
  device_ = nullptr;
  EXPECT_EQ(closed, 2);
}

TEST_F(CudaAttachTest, OneThatDoesNotOpenIsTriedAgain) {
  next_open = [] { return CHOIR_ERROR(INTERNAL, "not today"); };
  EXPECT_STATUS(INTERNAL, "not today", Attach(&kAttachment));
  next_open = nullptr;
  ASSERT_OK(Attach(&kAttachment));
  EXPECT_EQ(opened, 1);
}

TEST_F(CudaAttachTest, NoMemoryIsAStatus) {
  const int64_t failed = FailEveryAllocation([this](choir_allocator_t objects) {
    choir_device_release(device_);
    choir_device_options_t options = {};
    options.allocator = objects;
    device_ = nullptr;
    CHOIR_TRY(choir_device_create("cuda", &options, &device_));
    stream_ = choir_device_stream(device_);
    choir_status_t status = Attach(&kAttachment);
    if (!status) status = UseScratch(stream_, 'a');
    choir_device_release(device_);
    device_ = nullptr;
    return status;
  });
  EXPECT_GE(failed, 3);
  EXPECT_EQ(opened, closed);
}

TEST_F(CudaAttachTest, ScratchIsReusedAtOnceOnItsStream) {
  for (char mark : {'a', 'b', 'c'}) ASSERT_OK(UseScratch(stream_, mark));
  EXPECT_EQ(used_[1], used_[0]);
  EXPECT_EQ(used_[2], used_[0]);
  EXPECT_EQ(choir_device_memory(device_).base_allocations, 1u);
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
  for (const std::string& line : fake_.TakeLog())
    EXPECT_EQ(line.find("wait"), std::string::npos) << line;
}

TEST_F(CudaAttachTest, ScratchIsOrderedBetweenStreams) {
  choir_stream_t* third = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &third));
  ASSERT_OK(UseScratch(stream_, 'a'));
  ASSERT_OK(UseScratch(third, 'b'));
  EXPECT_EQ(used_[1], used_[0]);
  ASSERT_OK(choir_stream_synchronize(third));
  EXPECT_EQ(order_, "ab");
  choir_stream_release(third);
}

TEST_F(CudaAttachTest, NoBytesAreNoMemoryAndTooManyAStatus) {
  ASSERT_OK(During(stream_, [this] {
    void* memory = this;
    CHOIR_TRY(choir__cuda_scratch(stream_, 0, &memory));
    EXPECT_EQ(memory, nullptr);
    return choir_status_t{};
  }));
  EXPECT_STATUS(OUT_OF_MEMORY, "cuda:0: 2147483648 bytes asked for",
                During(stream_, [this] {
                  void* memory = nullptr;
                  return choir__cuda_scratch(stream_, size_t{1} << 31, &memory);
                }));
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, 0u);
}

}  // namespace
