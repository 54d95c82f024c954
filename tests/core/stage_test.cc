// SPDX-License-Identifier: Apache-2.0
#include "core/stage.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FirstElement;
using choir::testing::TestRecord;

class StageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create("cpu", nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_buffer_create(device_, 64, &buffer_));
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 0).get()));
  }
  void TearDown() override {
    choir_buffer_release(buffer_);
    choir_device_release(device_);
  }
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* buffer_ = nullptr;
};

// Writes its letter when a record passes, then hands it on.
struct Letter {
  choir_stage_t stage;
  char letter;
  std::string* seen;
};

choir_status_t SubmitLetter(choir_stage_t* stage, choir_stream_t* stream,
                            const choir_record_t* record) {
  Letter* letter = reinterpret_cast<Letter*>(stage);
  letter->seen->push_back(letter->letter);
  return choir_stage_forward(stage, stream, record);
}

// The last pushed sees records first; each goes from where it stands.
TEST_F(StageTest, PushedInFrontAndPoppedAnywhere) {
  std::string seen;
  Letter a = {{SubmitLetter, nullptr}, 'a', &seen};
  Letter b = {{SubmitLetter, nullptr}, 'b', &seen};
  for (Letter* first : {&a, &b}) {
    seen.clear();
    choir_stream_push_stage(stream_, &a.stage);
    choir_stream_push_stage(stream_, &b.stage);
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 1).get()));
    EXPECT_EQ(seen, "ba");
    for (int i = 0; i < 2; ++i)  // the second time it is not there
      choir_stream_pop_stage(stream_, &first->stage);
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 2).get()));
    EXPECT_EQ(seen, first == &a ? "bab" : "baa");
    choir_stream_pop_stage(stream_, first == &a ? &b.stage : &a.stage);
    ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 3).get()));
    EXPECT_EQ(seen.size(), 3u);
    EXPECT_EQ(FirstElement(buffer_, stream_), 3);
  }
}

TEST_F(StageTest, AStageMayKeepARecord) {
  Letter keep = {};
  keep.stage.submit = [](choir_stage_t*, choir_stream_t*,
                         const choir_record_t*) -> choir_status_t {
    return nullptr;
  };
  choir_stream_push_stage(stream_, &keep.stage);
  ASSERT_OK(choir_stream_submit(stream_, TestRecord::Fill(buffer_, 9).get()));
  choir_stream_pop_stage(stream_, &keep.stage);
  EXPECT_EQ(FirstElement(buffer_, stream_), 0);
}

TEST_F(StageTest, ForwardNeedsSomethingBehind) {
  std::string seen;
  Letter loose = {{SubmitLetter, nullptr}, 'a', &seen};
  EXPECT_STATUS(FAILED_PRECONDITION, "push it on a stream first",
                choir_stage_forward(&loose.stage, stream_,
                                    TestRecord::Fill(buffer_, 1).get()));
}

}  // namespace
