// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "core/allocator.h"
#include "core/status_backend.h"
#include "tests/testing/status_matchers.h"

namespace {

// The process default of this test: libc's, until told to fail.
int allocations_left = -1;
int live_blocks = 0;

void* Alloc(void*, size_t bytes, size_t) {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  ++live_blocks;
  return std::malloc(bytes);
}

void Free(void*, void* memory, size_t, size_t) {
  --live_blocks;
  std::free(memory);
}

class StatusTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_OK(choir_allocator_set_default({nullptr, Alloc, Free}));
  }
  void TearDown() override {
    allocations_left = -1;
    EXPECT_EQ(live_blocks, 0);
  }
};

choir_status_t Fail() {
  return CHOIR_ERROR(OUT_OF_RANGE, "fail: %d given; needs %s", 7, "less");
}

choir_status_t PassUp(int levels) {
  if (levels == 0) return Fail();
  CHOIR_TRY(PassUp(levels - 1));
  return nullptr;
}

choir_status_t PassUpWithNote() {
  CHOIR_TRY_NOTE(Fail(), "layer %d", 3);
  return nullptr;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST_F(StatusTest, NullIsOk) {
  EXPECT_EQ(choir_status_code(nullptr), CHOIR_STATUS_OK);
  EXPECT_STREQ(choir_status_message(nullptr), "ok");
  EXPECT_STREQ(choir_status_origin(nullptr), "");
  choir_status_free(nullptr);
  EXPECT_EQ(choir_status_clone(nullptr), nullptr);
  EXPECT_EQ(choir_status_annotate(nullptr, "f", 1, "note"), nullptr);
}

TEST_F(StatusTest, FailureTellsCodeMessageAndOrigin) {
  choir_status_t status = Fail();
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_RANGE);
  EXPECT_STREQ(choir_status_message(status), "fail: 7 given; needs less");
  std::string origin = choir_status_origin(status);
  EXPECT_NE(origin.find("status_test.cc:"), std::string::npos) << origin;
  EXPECT_NE(origin.find(" in Fail"), std::string::npos) << origin;
  choir_status_free(status);
}

TEST_F(StatusTest, CodesHaveFixedNumbersAndTexts) {
  EXPECT_EQ(CHOIR_STATUS_INVALID_ARGUMENT, 1);
  EXPECT_EQ(CHOIR_STATUS_INTERNAL, 11);
  EXPECT_STREQ(choir_status_code_text(CHOIR_STATUS_OK), "ok");
  EXPECT_STREQ(choir_status_code_text(CHOIR_STATUS_TIMEOUT),
               "deadline exceeded");
  EXPECT_STREQ(choir_status_code_text(static_cast<choir_status_code_t>(12)),
               "unknown status code");
}

TEST_F(StatusTest, KeepsEightHandOverPoints) {
  choir_status_t status = PassUp(3);
  EXPECT_EQ(Count(choir_status_origin(status), ", via "), 3);
  choir_status_free(status);
  status = PassUp(20);
  EXPECT_EQ(Count(choir_status_origin(status), ", via "), 8);
  EXPECT_STREQ(choir_status_message(status), "fail: 7 given; needs less");
  choir_status_free(status);
}

TEST_F(StatusTest, LongOriginsAreCut) {
  std::string file(600, 'x');
  choir_status_t status = choir_status_make(CHOIR_STATUS_INTERNAL, file.c_str(),
                                            1, "function", "m");
  for (int i = 0; i < 8; ++i)
    status = choir_status_annotate(status, file.c_str(), i, nullptr);
  EXPECT_LT(std::string(choir_status_origin(status)).size(), 2000u);
  choir_status_free(status);
}

TEST_F(StatusTest, NoteComesBeforeTheMessage) {
  choir_status_t status = PassUpWithNote();
  EXPECT_STREQ(choir_status_message(status),
               "layer 3: fail: 7 given; needs less");
  choir_status_free(status);
}

TEST_F(StatusTest, MessagesMayBeLong) {
  std::string text(100000, 'x');
  choir_status_t status = CHOIR_ERROR(INTERNAL, "%s", text.c_str());
  EXPECT_EQ(choir_status_message(status), text);
  // A note is a part of a sentence and is cut, the message is not.
  status = choir_status_annotate(status, "f", 1, "%s", text.c_str());
  std::string message = choir_status_message(status);
  EXPECT_GT(message.size(), text.size());
  EXPECT_LT(message.size(), text.size() + 600);
  EXPECT_NE(message.find("x: x"), std::string::npos);
  choir_status_free(status);
}

TEST_F(StatusTest, AFailureIsNeverOk) {
  choir_status_t status =
      choir_status_make(CHOIR_STATUS_OK, "f", 1, "g", "message");
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INTERNAL);
  choir_status_free(status);
}

TEST_F(StatusTest, CloneIsIndependent) {
  choir_status_t status = PassUp(2);
  choir_status_t clone = choir_status_clone(status);
  std::string origin = choir_status_origin(status);
  choir_status_free(status);
  EXPECT_EQ(choir_status_code(clone), CHOIR_STATUS_OUT_OF_RANGE);
  EXPECT_STREQ(choir_status_message(clone), "fail: 7 given; needs less");
  EXPECT_EQ(choir_status_origin(clone), origin);
  choir_status_free(clone);
}

TEST_F(StatusTest, JoinKeepsTheFirst) {
  EXPECT_EQ(choir_status_join(nullptr, nullptr), nullptr);
  choir_status_t first = CHOIR_ERROR(TIMEOUT, "first");
  EXPECT_EQ(choir_status_join(first, nullptr), first);
  EXPECT_EQ(choir_status_join(nullptr, first), first);
  choir_status_t joined =
      choir_status_join(first, CHOIR_ERROR(ABORTED, "second"));
  EXPECT_EQ(joined, first);
  choir_status_free(joined);
}

TEST_F(StatusTest, WithoutMemoryThereIsStillAStatus) {
  for (int left = 0; left < 2; ++left) {
    allocations_left = left;
    choir_status_t status = Fail();
    ASSERT_NE(status, nullptr);
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY);
    EXPECT_NE(std::string(choir_status_message(status)), "");
    // It may be handed on, copied and freed like any other.
    status = choir_status_annotate(status, "f", 1, "note");
    choir_status_t clone = choir_status_clone(status);
    EXPECT_EQ(choir_status_code(clone), CHOIR_STATUS_OUT_OF_MEMORY);
    choir_status_free(status);
    choir_status_free(clone);
    choir_status_free(clone);
  }
}

TEST_F(StatusTest, WithoutMemoryANoteIsLeftOut) {
  choir_status_t status = Fail();
  allocations_left = 0;
  status = choir_status_annotate(status, "f", 1, "note");
  EXPECT_STREQ(choir_status_message(status), "fail: 7 given; needs less");
  choir_status_t clone = choir_status_clone(status);
  EXPECT_EQ(choir_status_code(clone), CHOIR_STATUS_OUT_OF_MEMORY);
  choir_status_free(clone);
  choir_status_free(status);
}

TEST_F(StatusTest, AMarkOfAGroupIsKept) {
  const int group = 0, other = 0;
  EXPECT_EQ(choir__status_mark_shared(nullptr, &group), nullptr);
  EXPECT_FALSE(choir__status_is_shared(nullptr, &group));
  choir_status_t status = Fail();
  EXPECT_FALSE(choir__status_is_shared(status, &group));
  status = choir__status_mark_shared(status, &group);
  status = choir_status_annotate(status, "file.c", 3, "a note");
  status = choir_status_join(status, Fail());
  choir_status_t copy = choir_status_clone(status);
  for (choir_status_t each : {status, copy}) {
    EXPECT_TRUE(choir__status_is_shared(each, &group));
    EXPECT_FALSE(choir__status_is_shared(each, &other));
    choir_status_free(each);
  }
  // That of a lack of memory is everybody's.
  allocations_left = 0;
  status = choir__status_mark_shared(Fail(), &group);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY);
  EXPECT_FALSE(choir__status_is_shared(status, &group));
  choir_status_free(status);
}

TEST_F(StatusTest, GoesFromThreadToThread) {
  choir_status_t status = nullptr;
  std::thread([&] { status = Fail(); }).join();
  EXPECT_STATUS(OUT_OF_RANGE, "needs less", status);
}

}  // namespace
