// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "io/dataset.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

class Synthetic : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override { EXPECT_EQ(ScarceMemory::Blocks(), blocks_); }

  using Image = std::vector<uint8_t>;
  struct Set {
    std::vector<int32_t> labels;
    std::vector<Image> images;
  };
  static Set Draw(const choir_dataset_synthetic_t& config) {
    choir_dataset_t* dataset = nullptr;
    EXPECT_OK(choir_dataset_create_synthetic(&config, &dataset));
    Set set;
    if (!dataset) return set;
    EXPECT_EQ(choir_dataset_shape(dataset)[0], config.channels);
    EXPECT_EQ(choir_dataset_shape(dataset)[1], config.height);
    EXPECT_EQ(choir_dataset_shape(dataset)[2], config.width);
    EXPECT_EQ(choir_dataset_class_count(dataset), config.class_count);
    const int64_t bytes = choir_dataset_image_bytes(dataset);
    for (int64_t i = 0; i < choir_dataset_count(dataset); ++i) {
      const uint8_t* pixels = choir_dataset_pixels(dataset) + i * bytes;
      set.images.emplace_back(pixels, pixels + bytes);
      set.labels.push_back(choir_dataset_labels(dataset)[i]);
    }
    choir_dataset_release(dataset);
    return set;
  }

  size_t blocks_ = 0;
};

constexpr choir_dataset_synthetic_t kColour = {3, 0, 20, 3, 16, 12, 10};

TEST_F(Synthetic, AnImageDependsOnSeedAndIndex) {
  const Set set = Draw(kColour);
  ASSERT_EQ(set.images.size(), 20u);
  EXPECT_EQ(Draw(kColour).images, set.images);
  choir_dataset_synthetic_t part = kColour;
  part.first = 7;
  part.count = 5;
  const Set five = Draw(part);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(five.images[i], set.images[7 + i]);
    EXPECT_EQ(five.labels[i], (7 + i) % 10);
  }
  choir_dataset_synthetic_t other = kColour;
  other.seed = 4;
  const Set others = Draw(other);
  for (int i = 0; i < 20; ++i) {
    EXPECT_NE(others.images[i], set.images[i]);
    for (int k = 0; k < i; ++k) EXPECT_NE(set.images[i], set.images[k]);
  }
}

// The difference of two images of one class is that of their noise, below 128
// everywhere; between classes it is larger somewhere.
TEST_F(Synthetic, ImagesOfAClassShareItsPattern) {
  const Set set = Draw(kColour);
  double same = 0;
  double other = 0;
  for (int i = 0; i < 10; ++i) {
    const Image& image = set.images[i];
    for (size_t p = 0; p < image.size(); ++p) {
      const int twin = std::abs(image[p] - set.images[i + 10][p]);
      EXPECT_LT(twin, 128);
      same += twin;
      other += std::abs(image[p] - set.images[(i + 3) % 10 + 10][p]);
    }
  }
  EXPECT_GT(other, 1.2 * same);
}

// Means of many images show the levels: equal within a cell, others elsewhere.
TEST_F(Synthetic, LevelsAreThoseOfAGrid) {
  const choir_dataset_synthetic_t one = {0, 0, 4000, 1, 8, 8, 1};
  const Set set = Draw(one);
  std::vector<double> mean(64, 0);
  int least = 255;
  int most = 0;
  for (const Image& image : set.images) {
    for (int p = 0; p < 64; ++p) {
      mean[p] += image[p] / 4000.0;
      least = std::min<int>(least, image[p]);
      most = std::max<int>(most, image[p]);
    }
  }
  // Uniform noise over 128 values has deviation 37: 0.6 for the mean of 4000.
  double spread = 0;
  for (int p = 0; p < 64; ++p) {
    const int corner = p / 16 * 16 + p % 8 / 2 * 2;
    EXPECT_NEAR(mean[p], mean[corner], 6) << p;
    spread = std::max(spread, std::abs(mean[p] - mean[0]));
  }
  EXPECT_GT(spread, 30);
  EXPECT_GE(least, 0);
  EXPECT_GT(most - least, 127);
}

TEST_F(Synthetic, SizesMayBeOdd) {
  const Set set = Draw({0, 5, 3, 2, 1, 3, 2});
  EXPECT_EQ(set.labels, (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(set.images[2].size(), 6u);
}

TEST_F(Synthetic, WrongSizesAreTold) {
  auto refused = [](choir_dataset_synthetic_t config) {
    choir_dataset_t* dataset = nullptr;
    IO_EXPECT_FAILS(choir_dataset_create_synthetic(&config, &dataset),
                    INVALID_ARGUMENT, HasSubstr("synthetic: seed"));
    EXPECT_EQ(dataset, nullptr);
  };
  refused({-1, 0, 1, 1, 1, 1, 1});
  refused({0, -1, 1, 1, 1, 1, 1});
  refused({0, 0, 0, 1, 1, 1, 1});
  refused({0, 0, 1, 0, 1, 1, 1});
  refused({0, 0, 1, 1, 0, 1, 1});
  refused({0, 0, 1, 1, 1, 0, 1});
  refused({0, 0, 1, 1, 1, 1, 0});
  refused({0, INT64_MAX, 1, 1, 1, 1, 1});
  refused({0, 0, 1, 1, INT64_MAX, 2, 1});
  refused({0, 0, INT64_MAX, 1, 2, 1, 1});
  refused({0, 0, 1, 1, 65536, 65536, 1});
  refused({0, 0, 1, 1, 1, 1, (int64_t)INT32_MAX + 1});
}

TEST_F(Synthetic, NoMemoryIsAStatus) {
  int failures = 0;
  for (int n = 1;; ++n) {
    choir_dataset_t* dataset = nullptr;
    ScarceMemory::FailAt(n);
    choir_status_t status = choir_dataset_create_synthetic(&kColour, &dataset);
    ScarceMemory::FailAt(0);
    if (!ScarceMemory::Failed()) {
      EXPECT_EQ(status, nullptr);
      choir_dataset_release(dataset);
      break;
    }
    ++failures;
    IO_EXPECT_FAILS(status, OUT_OF_MEMORY, HasSubstr("memory"));
    EXPECT_EQ(dataset, nullptr);
  }
  EXPECT_GE(failures, 4);
}

}  // namespace
