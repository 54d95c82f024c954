// SPDX-License-Identifier: Apache-2.0
#include "core/base.h"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(BaseTest, VersionIsWhatTheHeaderSays) {
  EXPECT_EQ(std::string(choir_version()),
            std::to_string(CHOIR_VERSION_MAJOR) + "." +
                std::to_string(CHOIR_VERSION_MINOR) + "." +
                std::to_string(CHOIR_VERSION_PATCH));
}

}  // namespace
