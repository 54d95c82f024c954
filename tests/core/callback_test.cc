// SPDX-License-Identifier: Apache-2.0
#include "core/callback.h"

#include <gtest/gtest.h>

#include <string>

#include "core/profile.h"
#include "tests/testing/status_matchers.h"

namespace {

// What a callback is given, and what it does about it.
struct Called {
  enum { kLeave, kSucceed, kFail } how = kLeave;
  std::string text;

  choir_callback_t callback() { return {Run, this}; }
  static void Run(void* self, void* const* arguments,
                  choir_status_t* out_status) {
    auto* called = static_cast<Called*>(self);
    called->text.append(static_cast<const char*>(arguments[0]),
                        reinterpret_cast<uintptr_t>(arguments[1]));
    if (called->how == kSucceed) *out_status = nullptr;
    if (called->how == kFail) *out_status = CHOIR_ERROR(UNAVAILABLE, "not now");
  }
};

TEST(CallbackTest, WhatItWritesIsItsStatus) {
  Called called;
  choir_callback_t callback = called.callback();
  called.how = Called::kSucceed;
  EXPECT_OK(choir_text_writer_callback(&callback, "abc", 2));
  called.how = Called::kFail;
  EXPECT_STATUS(UNAVAILABLE, "not now",
                choir_text_writer_callback(&callback, "de", 1));
  EXPECT_EQ(called.text, "abd");
}

TEST(CallbackTest, OneThatIsLeftHasFailed) {
  Called called;
  choir_callback_t callback = called.callback();
  for (int i = 0; i < 3; ++i)
    EXPECT_STATUS(INTERNAL, "the program's function was left before its end",
                  choir_text_writer_callback(&callback, "x", 1));
  EXPECT_EQ(called.text, "xxx");
}

TEST(CallbackTest, NoneIsRefused) {
  choir_callback_t callback = {};
  EXPECT_STATUS(INVALID_ARGUMENT, "callback: run is NULL",
                choir_text_writer_callback(&callback, "x", 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "callback: self is NULL",
                choir_text_writer_callback(nullptr, "x", 1));
}

}  // namespace
