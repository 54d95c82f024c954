// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "core/stage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FirstElement;
using choir::testing::TestRecord;

class CheckStageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create("cpu", nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_buffer_create(device_, 64, &src_));
    ASSERT_OK(choir_buffer_create(device_, 64, &dst_));
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(src_, 4).get()));
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(dst_, 0).get()));
    choir_check_stage_init(&stage_);
    choir_stream_push_stage(stream_, &stage_.stage);
    TestRecord record = TestRecord::Affine(src_, dst_, 1, 0);
    views_[0] = record.get()->operands[0];
    views_[1] = record.get()->operands[1];
  }
  void TearDown() override {
    choir_stream_pop_stage(stream_, &stage_.stage);
    EXPECT_EQ(FirstElement(dst_, stream_), expected_);
    choir_buffer_release(src_);
    choir_buffer_release(dst_);
    choir_device_release(device_);
  }
  choir_status_t Submit() {
    TestRecord maker = TestRecord::Affine(src_, dst_, 1, 0);
    choir_record_t record = *maker.get();
    record.operands = views_;
    record.label = label_;
    return choir_stream_submit(stream_, &record);
  }
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* src_ = nullptr;
  choir_buffer_t* dst_ = nullptr;
  choir_check_stage_t stage_;
  choir_view_t views_[2];
  const char* label_ = nullptr;
  int64_t expected_ = 0;
};

TEST_F(CheckStageTest, GoodRecordsPass) {
  EXPECT_OK(Submit());
  expected_ = 4;
}

TEST_F(CheckStageTest, WhatReachesOutsideIsRefused) {
  views_[1].offset = 1;
  EXPECT_STATUS(OUT_OF_RANGE,
                "affine/test: dst 0: i64 (8) from element 1 touches 8 "
                "elements; needs to stay inside the 8 of its buffer",
                Submit());
  views_[1].offset = 0;
  views_[0].shape[0] = 9;
  label_ = "conv1";
  EXPECT_STATUS(OUT_OF_RANGE, "affine/test of conv1: src 0", Submit());
  views_[0].shape[0] = 4;
  views_[0].strides[0] = 3;
  EXPECT_STATUS(OUT_OF_RANGE, "touches 10 elements", Submit());
  views_[0].strides[0] = 2;
  views_[0].offset = -1;
  EXPECT_STATUS(OUT_OF_RANGE, "from element -1", Submit());
  views_[0].offset = INT64_MAX;
  EXPECT_STATUS(OUT_OF_RANGE, "touches", Submit());
  views_[0].offset = 9;
  views_[0].shape[0] = 0;
  EXPECT_STATUS(OUT_OF_RANGE, "touches 0 elements", Submit());
  views_[0].offset = 0;
  views_[0].shape[0] = INT64_MAX;
  views_[0].strides[0] = INT64_MAX;
  EXPECT_STATUS(OUT_OF_RANGE, "touches", Submit());
}

TEST_F(CheckStageTest, BrokenViewsAreRefused) {
  choir_view_t good = views_[0];
  views_[0].ndim = 9;
  EXPECT_STATUS(INVALID_ARGUMENT, "src 0: 9 dimensions", Submit());
  views_[0] = good;
  views_[0].dtype = static_cast<choir_dtype_t>(77);
  EXPECT_STATUS(INVALID_ARGUMENT, "77 is no dtype", Submit());
  views_[0] = good;
  views_[0].strides[0] = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "size 8 and stride -1", Submit());
  views_[0] = good;
  views_[0].shape[0] = -8;
  EXPECT_STATUS(INVALID_ARGUMENT, "size -8 and stride 1", Submit());
  views_[0] = good;
  views_[0].buffer = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "needs a buffer", Submit());
}

TEST_F(CheckStageTest, DevicesDoNotMix) {
  choir_device_t* other = nullptr;
  ASSERT_OK(choir_device_create("null", nullptr, &other));
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(other, 64, &buffer));
  views_[0].buffer = buffer;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "src 0: memory of another device ('null'); needs the stream's "
                "own ('cpu')",
                Submit());
  choir_buffer_release(buffer);
  choir_device_release(other);
}

}  // namespace
