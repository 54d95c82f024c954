// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/record_list.h"
#include "core/stage.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::TestRecord;

class RecordStageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create("cpu", nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_buffer_create(device_, 64, &buffer_));
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 1).get()));
    ASSERT_OK(choir_record_list_create(allocator_.get(), &list_));
  }
  void TearDown() override {
    choir_record_list_destroy(list_);
    choir_buffer_release(buffer_);
    choir_device_release(device_);
  }
  void Record(bool run) {
    choir_record_stage_init(&stage_, list_, run);
    choir_stream_push_stage(stream_, &stage_.stage);
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(choir_stream_submit(
          stream_, TestRecord::Affine(buffer_, buffer_, 2, 0).get()));
    }
    choir_stream_pop_stage(stream_, &stage_.stage);
    EXPECT_EQ(choir_record_list_count(list_), 3u);
  }
  FailingAllocator allocator_;
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* buffer_ = nullptr;
  choir_record_list_t* list_ = nullptr;
  choir_record_stage_t stage_;
};

TEST_F(RecordStageTest, KeepsAndRuns) {
  Record(/*run=*/true);
  EXPECT_EQ(FirstElement(buffer_, stream_), 8);
  ASSERT_OK(choir_record_list_replay(list_, stream_));
  EXPECT_EQ(FirstElement(buffer_, stream_), 64);
}

TEST_F(RecordStageTest, KeepsOnly) {
  Record(/*run=*/false);
  EXPECT_EQ(FirstElement(buffer_, stream_), 1);
  ASSERT_OK(choir_record_list_replay(list_, stream_));
  EXPECT_EQ(FirstElement(buffer_, stream_), 8);
}

TEST_F(RecordStageTest, WhatCannotBeKeptIsNotRun) {
  choir_record_stage_init(&stage_, list_, /*run=*/true);
  choir_stream_push_stage(stream_, &stage_.stage);
  allocator_.FailAt(0, /*for_good=*/true);
  EXPECT_STATUS(OUT_OF_MEMORY, "choir_record_list_append",
                choir_stream_submit(
                    stream_, TestRecord::Affine(buffer_, buffer_, 2, 0).get()));
  choir_stream_pop_stage(stream_, &stage_.stage);
  EXPECT_EQ(FirstElement(buffer_, stream_), 1);
}

}  // namespace
