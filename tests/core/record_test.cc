// SPDX-License-Identifier: Apache-2.0
#include "core/record_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/record_list_internal.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::TestRecord;

// Attributes that hold a reference, as a communicator's do.
int references = 0;
void RetainAttrs(const void*) { ++references; }
void ReleaseAttrs(const void*) { --references; }
choir_status_t Nothing(const choir_record_t*, choir_stream_t*) {
  return nullptr;
}
const choir_kernel_t kHolding = {"holding/test", Nothing,      nullptr,
                                 RetainAttrs,    ReleaseAttrs, false};

class RecordListTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create("cpu", nullptr, &device_));
    stream_ = choir_device_stream(device_);
    for (choir_buffer_t*& buffer : buffers_)
      ASSERT_OK(choir_buffer_create(device_, 64, &buffer));
    ASSERT_OK(choir_record_list_create(allocator_.get(), &list_));
  }
  void TearDown() override {
    choir_record_list_destroy(list_);
    for (choir_buffer_t* buffer : buffers_) choir_buffer_release(buffer);
    choir_device_release(device_);
    EXPECT_EQ(references, 0);
  }
  void Append(TestRecord record) {
    ASSERT_OK(choir_record_list_append(list_, record.get()));
  }
  std::string Print() {
    char* text = nullptr;
    EXPECT_OK(choir_record_list_print(list_, &text));
    std::string result = text;
    std::free(text);
    return result;
  }

  FailingAllocator allocator_;
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* buffers_[3] = {};
  choir_record_list_t* list_ = nullptr;
};

TEST_F(RecordListTest, OwnsCopies) {
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device_, 64, &buffer));
  {
    TestRecord record = TestRecord::Fill(buffer, 5);
    ASSERT_OK(choir_record_list_append(list_, record.get()));
    record.Spoil();
  }
  choir_buffer_release(buffer);  // the list keeps it
  ASSERT_EQ(choir_record_list_count(list_), 1u);
  const choir_record_t* record = choir_record_list_get(list_, 0);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(choir_record_dst(record, 0)->buffer, buffer);
  ASSERT_OK(choir_record_list_replay(list_, stream_));
  EXPECT_EQ(FirstElement(buffer, stream_), 5);
  EXPECT_EQ(choir_record_list_get(list_, 1), nullptr);
}

TEST_F(RecordListTest, ReplaysInOrderAnyNumberOfTimes) {
  Append(TestRecord::Fill(buffers_[0], 1));
  for (int i = 0; i < 10; ++i) {
    Append(TestRecord::Affine(buffers_[0], buffers_[1], 2, 1));
    Append(TestRecord::Affine(buffers_[1], buffers_[0], 1, 0));
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(choir_record_list_replay(list_, stream_));
    EXPECT_EQ(FirstElement(buffers_[0], stream_), 2047);
  }
}

TEST_F(RecordListTest, ReplayStopsAtAFailureAndNamesTheRecord) {
  Append(TestRecord::Fill(buffers_[0], 1));
  Append(TestRecord::Fail(3));
  Append(TestRecord::Fill(buffers_[0], 2));
  EXPECT_STATUS(OUT_OF_RANGE, "record 1, fail/test: fail: 3 given",
                choir_record_list_replay(list_, stream_));
  EXPECT_EQ(FirstElement(buffers_[0], stream_), 1);
}

TEST_F(RecordListTest, HashIsOfTheProgramNotOfAddresses) {
  auto hash = [&](choir_buffer_t* a, choir_buffer_t* b) {
    choir_record_list_clear(list_);
    Append(TestRecord::Fill(a, 1));
    Append(TestRecord::Affine(a, b, 2, 3));
    return choir_record_list_hash(list_);
  };
  uint64_t first = hash(buffers_[0], buffers_[1]);
  EXPECT_EQ(hash(buffers_[1], buffers_[2]), first);
  EXPECT_EQ(hash(buffers_[2], buffers_[0]), first);
  // The same buffer twice is another program.
  EXPECT_NE(hash(buffers_[0], buffers_[0]), first);
  choir_record_list_clear(list_);
  EXPECT_EQ(choir_record_list_hash(list_), uint64_t{0xcbf29ce484222325});
}

TEST_F(RecordListTest, HashSeesEveryPartOfAView) {
  TestRecord maker = TestRecord::Affine(buffers_[0], buffers_[1], 1, 0);
  choir_record_t base = *maker.get();
  choir_view_t views[2] = {base.operands[0], base.operands[1]};
  base.operands = views;
  auto hash = [&](const choir_record_t& record) {
    choir_record_list_clear(list_);
    EXPECT_OK(choir_record_list_append(list_, &record));
    return choir_record_list_hash(list_);
  };
  std::vector<uint64_t> hashes = {hash(base)};
  views[0].offset = 1;
  hashes.push_back(hash(base));
  views[0].shape[0] = 3;
  hashes.push_back(hash(base));
  views[0].strides[0] = 2;
  hashes.push_back(hash(base));
  views[0].dtype = CHOIR_DTYPE_F64;
  hashes.push_back(hash(base));
  views[0].ndim = 0;
  hashes.push_back(hash(base));
  base.accumulate = true;
  hashes.push_back(hash(base));
  base.src_count = 2;
  base.dst_count = 0;
  hashes.push_back(hash(base));
  choir_kernel_t renamed = *base.kernel;
  renamed.name = "other/test";
  base.kernel = &renamed;
  hashes.push_back(hash(base));
  choir_record_list_clear(list_);
  for (size_t i = 0; i < hashes.size(); ++i)
    for (size_t k = 0; k < i; ++k) EXPECT_NE(hashes[i], hashes[k]) << i << k;
}

TEST_F(RecordListTest, PrintsOneLineARecord) {
  Append(TestRecord::Fill(buffers_[2], 1));
  TestRecord record =
      TestRecord::Affine(buffers_[2], buffers_[0], 1, 0, /*accumulate=*/true);
  choir_record_t labelled = *record.get();
  labelled.label = "conv1";
  choir_view_t views[2] = {labelled.operands[0], labelled.operands[1]};
  views[1].offset = 3;
  views[1].shape[0] = 5;
  labelled.operands = views;
  ASSERT_OK(choir_record_list_append(list_, &labelled));
  views[0].buffer = nullptr;
  ASSERT_OK(choir_record_list_append(list_, &labelled));
  EXPECT_EQ(Print(),
            "0 fill/test -> b0 i64 (8)\n"
            "1 affine/test [conv1] b0 i64 (8) -> b1+3 i64 (5) accumulate\n"
            "2 affine/test [conv1] none i64 (8) -> b1+3 i64 (5) accumulate\n");
  choir_record_list_clear(list_);
  EXPECT_EQ(Print(), "");
}

TEST_F(RecordListTest, LongListsPrintWhole) {
  for (int i = 0; i < 500; ++i)
    Append(TestRecord::Affine(buffers_[0], buffers_[1], 1, 0));
  std::string text = Print();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 500);
  EXPECT_NE(text.find("\n499 affine/test"), std::string::npos);
}

TEST_F(RecordListTest, ManyBuffersKeepTheirNumbers) {
  std::vector<choir_buffer_t*> buffers(700);
  for (choir_buffer_t*& buffer : buffers)
    ASSERT_OK(choir_buffer_create(device_, 8, &buffer));
  for (int round = 0; round < 2; ++round)
    for (choir_buffer_t* buffer : buffers) Append(TestRecord::Fill(buffer, 1));
  std::string text = Print();
  EXPECT_NE(text.find("0 fill/test -> b0 "), std::string::npos);
  EXPECT_NE(text.find("\n699 fill/test -> b699 "), std::string::npos);
  EXPECT_NE(text.find("\n700 fill/test -> b0 "), std::string::npos);
  EXPECT_NE(text.find("\n1399 fill/test -> b699 "), std::string::npos);
  for (choir_buffer_t* buffer : buffers) choir_buffer_release(buffer);
}

TEST_F(RecordListTest, ClearKeepsTheMemory) {
  uint64_t after_warm_up = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 300; ++i)
      Append(TestRecord::Affine(buffers_[i % 3], buffers_[(i + 1) % 3], 1, i));
    if (round == 0) after_warm_up = allocator_.allocations();
    choir_record_list_clear(list_);
    EXPECT_EQ(choir_record_list_count(list_), 0u);
  }
  EXPECT_EQ(allocator_.allocations(), after_warm_up);
}

TEST_F(RecordListTest, HoldsWhatAttributesHold) {
  int64_t attrs = 1;
  choir_record_t record = {};
  record.kernel = &kHolding;
  record.attrs = &attrs;
  record.attrs_bytes = sizeof(attrs);
  for (int i = 0; i < 3; ++i)
    ASSERT_OK(choir_record_list_append(list_, &record));
  EXPECT_EQ(references, 3);
  choir_record_list_clear(list_);
  EXPECT_EQ(references, 0);
  ASSERT_OK(choir_record_list_append(list_, &record));
  EXPECT_EQ(references, 1);  // TearDown checks that destroy lets go
}

TEST_F(RecordListTest, AttributesAreAligned) {
  char bytes[5] = "abcd";
  choir_record_t record = {};
  record.kernel = &kHolding;
  record.attrs = bytes;
  record.attrs_bytes = sizeof(bytes);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(choir_record_list_append(list_, &record));
    const void* attrs =
        choir_record_list_get(list_, static_cast<size_t>(i))->attrs;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(attrs) % 16, 0u);
    EXPECT_STREQ(static_cast<const char*>(attrs), "abcd");
  }
}

TEST_F(RecordListTest, RefusesWhatIsNoRecord) {
  TestRecord maker = TestRecord::Affine(buffers_[0], buffers_[1], 1, 0);
  choir_record_t record = *maker.get();
  EXPECT_STATUS(INVALID_ARGUMENT, "record is NULL",
                choir_record_list_append(list_, nullptr));
  auto refused = [&](const char* text, choir_record_t bad) {
    EXPECT_STATUS(INVALID_ARGUMENT, text,
                  choir_record_list_append(list_, &bad));
    EXPECT_STATUS(INVALID_ARGUMENT, text, choir_stream_submit(stream_, &bad));
  };
  choir_record_t bad = record;
  bad.kernel = nullptr;
  refused("record->kernel is NULL", bad);
  choir_kernel_t empty = {};
  bad.kernel = &empty;
  refused("record->kernel->run is NULL", bad);
  const choir_operation_t nothing = {"nothing", 0,       nullptr,
                                     nullptr,   nullptr, nullptr};
  bad.kernel = nullptr;
  bad.operation = &nothing;
  refused("record->kernel is NULL; needs a kernel or an operation", bad);
  bad = record;
  bad.src_count = CHOIR_RECORD_MAX_OPERANDS;
  refused("1024 sources and 1 destinations; needs 0 to 1024", bad);
  bad.src_count = -1;
  refused("-1 sources", bad);
  bad.src_count = INT32_MAX;
  refused("2147483647 sources", bad);
  bad = record;
  bad.operands = nullptr;
  refused("affine/test has no operands; needs 2 views", bad);
  bad = record;
  bad.attrs = nullptr;
  refused("has no attributes; needs 16 bytes", bad);
  EXPECT_EQ(choir_record_list_count(list_), 0u);
}

TEST_F(RecordListTest, EveryFailureIsReportedAndLeaksNothing) {
  int64_t attrs = 1;
  choir_record_t holding = {};
  holding.kernel = &kHolding;
  holding.attrs = &attrs;
  holding.attrs_bytes = sizeof(attrs);
  int64_t failures = FailEveryAllocation([&](choir_allocator_t allocator) {
    choir_record_list_t* list = nullptr;
    CHOIR_TRY(choir_record_list_create(allocator, &list));
    choir_status_t status = nullptr;
    for (int i = 0; i < 200 && !status; ++i) {
      size_t before = choir_record_list_count(list);
      TestRecord record = TestRecord::Affine(buffers_[0], buffers_[1], 1, i);
      status = choir_record_list_append(list, i % 2 ? record.get() : &holding);
      EXPECT_EQ(choir_record_list_count(list), before + (status ? 0 : 1));
    }
    choir_record_list_destroy(list);
    return status;
  });
  EXPECT_GT(failures, 5);
}

TEST(RecordTest, CloneIsOneBlock) {
  choir_record_t record = {};
  record.kernel = &kHolding;
  EXPECT_EQ(choir__record_clone_bytes(&record), 0u);
  choir_record_t clone;
  choir__record_clone(&record, nullptr, &clone);
  EXPECT_EQ(clone.operands, nullptr);
  EXPECT_EQ(clone.attrs, nullptr);
  choir__record_drop(&clone);
  EXPECT_EQ(references, 0);
}

}  // namespace
