// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/stage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FirstElement;
using choir::testing::TestRecord;

TEST(CountStageTest, CountsRecordsAndWhatKernelsTell) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_stream_t* stream = choir_device_stream(device);
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device, 80, &buffer));
  choir_count_stage_t count;
  choir_count_stage_init(&count);
  choir_stream_push_stage(stream, &count.stage);
  ASSERT_OK(choir_stream_submit(stream, TestRecord::Fill(buffer, 1).get()));
  EXPECT_EQ(count.records, 1u);
  EXPECT_EQ(count.cost.flops, 0.0);  // fill tells no cost
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(choir_stream_submit(
        stream, TestRecord::Affine(buffer, buffer, 3, 0).get()));
  }
  EXPECT_EQ(count.records, 3u);
  EXPECT_EQ(count.cost.flops, 2 * 20.0);
  EXPECT_EQ(count.cost.bytes, 2 * 160.0);
  EXPECT_EQ(FirstElement(buffer, stream), 9);  // and it hands them on
  choir_stream_pop_stage(stream, &count.stage);
  choir_buffer_release(buffer);
  choir_device_release(device);
}

}  // namespace
