// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "io/dataset.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kImageBytes = 3072;
constexpr int kRecordBytes = 3073;

const bool installed = ScarceMemory::Install();

// Pixel p of the image that was written as number `image`.
uint8_t Pixel(int image, int p) {
  return (uint8_t)(image * 31 + p * 7 + p / 256);
}
uint8_t Label(int image) { return (uint8_t)((image * 3 + 1) % 10); }

// Records of the images first .. first+count-1.
std::string Records(int first, int count) {
  std::string bytes;
  for (int image = first; image < first + count; ++image) {
    bytes.push_back((char)Label(image));
    for (int p = 0; p < kImageBytes; ++p) {
      bytes.push_back((char)Pixel(image, p));
    }
  }
  return bytes;
}

class Cifar10 : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override {
    choir_dataset_release(dataset_);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  // Files of 70, 1, 2, 3 and 4 images in a row: the first is read in parts.
  void WriteTraining() {
    int first = 0;
    for (int i = 1; i <= 5; ++i) {
      const int count = i == 1 ? 70 : i - 1;
      folder_.Write(Name(i), Records(first, count));
      first += count;
    }
  }
  static std::string Name(int batch) {
    return "data_batch_" + std::to_string(batch) + ".bin";
  }
  choir_status_t Open(choir_split_t split, int64_t limit = 0) {
    return choir_dataset_open_cifar10(folder_.path().c_str(), split, limit,
                                      &dataset_);
  }
  void ExpectImages(int first, int count) {
    ASSERT_EQ(choir_dataset_count(dataset_), count);
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(choir_dataset_labels(dataset_)[i], Label(first + i)) << i;
      int wrong = 0;
      for (int p = 0; p < kImageBytes; ++p) {
        wrong += choir_dataset_pixels(dataset_)[i * kImageBytes + p] !=
                 Pixel(first + i, p);
      }
      EXPECT_EQ(wrong, 0) << i;
    }
  }

  TemporaryFolder folder_;
  choir_dataset_t* dataset_ = nullptr;
  size_t blocks_ = 0;
};

TEST_F(Cifar10, TrainingFilesFollowEachOther) {
  WriteTraining();
  ASSERT_OK(Open(CHOIR_SPLIT_TRAIN));
  const int64_t* shape = choir_dataset_shape(dataset_);
  EXPECT_EQ(shape[0], 3);
  EXPECT_EQ(shape[1], 32);
  EXPECT_EQ(shape[2], 32);
  EXPECT_EQ(choir_dataset_image_bytes(dataset_), kImageBytes);
  EXPECT_EQ(choir_dataset_class_count(dataset_), 10);
  ExpectImages(0, 80);
}

TEST_F(Cifar10, TestHasAFileOfItsOwn) {
  folder_.Write("test_batch.bin", Records(100, 3));
  ASSERT_OK(Open(CHOIR_SPLIT_TEST));
  ExpectImages(100, 3);
}

TEST_F(Cifar10, ALimitKeepsTheFirstImages) {
  WriteTraining();
  for (int limit : {1, 64, 65, 72, 1000}) {
    SCOPED_TRACE(limit);
    ASSERT_OK(Open(CHOIR_SPLIT_TRAIN, limit));
    ExpectImages(0, limit < 80 ? limit : 80);
    choir_dataset_release(dataset_);
    dataset_ = nullptr;
  }
}

TEST_F(Cifar10, MissingFolderAndFilesAreNamed) {
  const std::string nowhere = folder_.Path("nowhere");
  IO_EXPECT_FAILS(choir_dataset_open_cifar10(nowhere.c_str(), CHOIR_SPLIT_TRAIN,
                                             0, &dataset_),
                  NOT_FOUND,
                  AllOf(HasSubstr(nowhere), HasSubstr("data_batch_1.bin")));
  const std::string file = folder_.Write("file", "x");
  IO_EXPECT_FAILS(
      choir_dataset_open_cifar10(file.c_str(), CHOIR_SPLIT_TEST, 0, &dataset_),
      NOT_FOUND, AllOf(HasSubstr("is a file"), HasSubstr("test_batch.bin")));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TEST), NOT_FOUND,
                  HasSubstr(folder_.Path("test_batch.bin")));
  WriteTraining();
  for (int i : {1, 3, 5}) {
    const std::string path = folder_.Path(Name(i));
    unlink(path.c_str());
    // Also where a limit ends before it.
    IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN, 1), NOT_FOUND, HasSubstr(path));
    WriteTraining();
  }
  EXPECT_EQ(dataset_, nullptr);
}

TEST_F(Cifar10, WrongArgumentsAreTold) {
  IO_EXPECT_FAILS(
      choir_dataset_open_cifar10(nullptr, CHOIR_SPLIT_TEST, 0, &dataset_),
      INVALID_ARGUMENT, HasSubstr("(null)"));
  IO_EXPECT_FAILS(Open((choir_split_t)2), INVALID_ARGUMENT,
                  HasSubstr("split 2"));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TEST, -1), INVALID_ARGUMENT,
                  HasSubstr("limit -1"));
  IO_EXPECT_FAILS(choir_dataset_open_cifar10(std::string(5000, 'x').c_str(),
                                             CHOIR_SPLIT_TEST, 0, &dataset_),
                  FAILED_PRECONDITION, HasSubstr("name too long"));
}

TEST_F(Cifar10, SizesThatAreNotWholeRecordsAreTold) {
  const std::string two = Records(0, 2);
  for (const std::string& bytes :
       {std::string(), two.substr(0, 1), two.substr(0, kRecordBytes - 1),
        two.substr(0, kRecordBytes + 1), two + "x"}) {
    WriteTraining();
    folder_.Write(Name(4), bytes);
    // Also where a limit ends before it.
    for (int64_t limit : {0, 1}) {
      IO_EXPECT_FAILS(
          Open(CHOIR_SPLIT_TRAIN, limit), INVALID_ARGUMENT,
          AllOf(HasSubstr(Name(4)),
                HasSubstr(" " + std::to_string(bytes.size()) + " bytes"),
                HasSubstr("multiple of 3073")));
    }
  }
  EXPECT_EQ(dataset_, nullptr);
}

TEST_F(Cifar10, AFolderInTheFilesPlaceIsTold) {
  ASSERT_EQ(mkdir(folder_.Path("test_batch.bin").c_str(), 0700), 0);
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TEST), INVALID_ARGUMENT,
                  AllOf(HasSubstr("test_batch.bin"), HasSubstr("is a folder")));
}

TEST_F(Cifar10, LabelsOutOfRangeAreNamed) {
  WriteTraining();
  std::string bytes = Records(71, 2);
  bytes[kRecordBytes] = 10;
  folder_.Write(Name(3), bytes);
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
                  AllOf(HasSubstr("record 1 of"), HasSubstr(Name(3)),
                        HasSubstr("label 10"), HasSubstr("0 to 9")));
  EXPECT_EQ(dataset_, nullptr);
  bytes = Records(0, 70);
  bytes[66 * kRecordBytes] = (char)255;
  folder_.Write(Name(1), bytes);
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
                  AllOf(HasSubstr("record 66 of"), HasSubstr("label 255")));
  // What a limit leaves out is not looked at.
  ASSERT_OK(Open(CHOIR_SPLIT_TRAIN, 66));
  ExpectImages(0, 66);
}

TEST_F(Cifar10, NoMemoryIsAStatus) {
  WriteTraining();
  int failures = 0;
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    choir_status_t status = Open(CHOIR_SPLIT_TRAIN);
    ScarceMemory::FailAt(0);
    if (!ScarceMemory::Failed()) {
      EXPECT_EQ(status, nullptr);
      break;
    }
    ++failures;
    IO_EXPECT_FAILS(status, OUT_OF_MEMORY, HasSubstr("memory"));
    EXPECT_EQ(dataset_, nullptr);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  EXPECT_GE(failures, 5);
}

}  // namespace
