// SPDX-License-Identifier: Apache-2.0
#include "io/dataset.h"

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

std::string Images(uint8_t count, uint8_t height = 2, uint8_t width = 3) {
  std::string bytes = {0, 0,           8, 3,          0, 0,
                       0, (char)count, 0, 0,          0, (char)height,
                       0, 0,           0, (char)width};
  for (int i = 0; i < count * height * width; ++i) bytes.push_back((char)i);
  return bytes;
}

std::string Labels(const std::vector<uint8_t>& labels) {
  std::string bytes = {0, 0, 8, 1, 0, 0, 0, (char)labels.size()};
  bytes.append(labels.begin(), labels.end());
  return bytes;
}

class Dataset : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override {
    choir_dataset_release(dataset_);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  choir_status_t Open(choir_split_t split, int64_t limit = 0) {
    return choir_dataset_open_mnist(folder_.path().c_str(), split, limit,
                                    &dataset_);
  }

  TemporaryFolder folder_;
  choir_dataset_t* dataset_ = nullptr;
  size_t blocks_ = 0;
};

TEST_F(Dataset, OpensEveryNameOfTheFiles) {
  struct {
    const char* images;
    const char* labels;
    choir_split_t split;
  } cases[] = {
      {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", CHOIR_SPLIT_TRAIN},
      {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
       CHOIR_SPLIT_TRAIN},
      {"train-images.idx3-ubyte", "train-labels.idx1-ubyte.gz",
       CHOIR_SPLIT_TRAIN},
      {"t10k-images-idx3-ubyte", "t10k-labels.idx1-ubyte", CHOIR_SPLIT_TEST},
      {"t10k-images.idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
       CHOIR_SPLIT_TEST},
  };
  auto write = [](const TemporaryFolder& folder, const std::string& name,
                  const std::string& bytes) {
    if (name.substr(name.size() - 3) == ".gz") {
      folder.WriteGzip(name, bytes);
    } else {
      folder.Write(name, bytes);
    }
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.images);
    TemporaryFolder folder;
    write(folder, each.images, Images(3));
    write(folder, each.labels, Labels({7, 0, 9}));
    choir_dataset_t* dataset = nullptr;
    ASSERT_OK(choir_dataset_open_mnist(folder.path().c_str(), each.split, 0,
                                       &dataset));
    EXPECT_EQ(choir_dataset_count(dataset), 3);
    const int64_t* shape = choir_dataset_shape(dataset);
    EXPECT_EQ(shape[0], 1);
    EXPECT_EQ(shape[1], 2);
    EXPECT_EQ(shape[2], 3);
    EXPECT_EQ(choir_dataset_image_bytes(dataset), 6);
    EXPECT_EQ(choir_dataset_class_count(dataset), 10);
    for (int i = 0; i < 18; ++i) {
      EXPECT_EQ(choir_dataset_pixels(dataset)[i], i);
    }
    EXPECT_EQ(choir_dataset_labels(dataset)[0], 7);
    EXPECT_EQ(choir_dataset_labels(dataset)[1], 0);
    EXPECT_EQ(choir_dataset_labels(dataset)[2], 9);
    choir_dataset_release(dataset);
  }
}

TEST_F(Dataset, AFolderOfAFilesNameIsPassedOver) {
  ASSERT_EQ(mkdir(folder_.Path("train-images-idx3-ubyte").c_str(), 0700), 0);
  folder_.WriteGzip("train-images-idx3-ubyte.gz", Images(1));
  folder_.Write("train-labels-idx1-ubyte", Labels({1}));
  ASSERT_OK(Open(CHOIR_SPLIT_TRAIN));
}

TEST_F(Dataset, ALimitKeepsTheFirstImages) {
  folder_.Write("train-images-idx3-ubyte", Images(5));
  folder_.Write("train-labels-idx1-ubyte", Labels({5, 4, 3, 2, 1}));
  ASSERT_OK(Open(CHOIR_SPLIT_TRAIN, 2));
  EXPECT_EQ(choir_dataset_count(dataset_), 2);
  EXPECT_EQ(choir_dataset_labels(dataset_)[1], 4);
  choir_dataset_release(dataset_);
  ASSERT_OK(Open(CHOIR_SPLIT_TRAIN, 100));
  EXPECT_EQ(choir_dataset_count(dataset_), 5);
}

TEST_F(Dataset, MissingFolderAndFilesAreNamed) {
  const std::string nowhere = folder_.Path("nowhere");
  IO_EXPECT_FAILS(
      choir_dataset_open_mnist(nowhere.c_str(), CHOIR_SPLIT_TRAIN, 0,
                               &dataset_),
      NOT_FOUND,
      AllOf(HasSubstr(nowhere), HasSubstr("train-images-idx3-ubyte")));
  EXPECT_EQ(dataset_, nullptr);
  const std::string file = folder_.Write("file", "x");
  IO_EXPECT_FAILS(
      choir_dataset_open_mnist(file.c_str(), CHOIR_SPLIT_TEST, 0, &dataset_),
      NOT_FOUND, AllOf(HasSubstr("is a file"), HasSubstr("t10k-images")));
  IO_EXPECT_FAILS(
      Open(CHOIR_SPLIT_TEST), NOT_FOUND,
      AllOf(HasSubstr(folder_.path()), HasSubstr("t10k-images-idx3-ubyte"),
            HasSubstr(".gz"), HasSubstr("t10k-images.idx3-ubyte")));
  folder_.Write("t10k-images-idx3-ubyte", Images(1));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TEST), NOT_FOUND,
                  HasSubstr("t10k-labels-idx1-ubyte"));
  IO_EXPECT_FAILS(
      choir_dataset_open_mnist(nullptr, CHOIR_SPLIT_TEST, 0, &dataset_),
      INVALID_ARGUMENT, HasSubstr("(null)"));
  IO_EXPECT_FAILS(Open((choir_split_t)2), INVALID_ARGUMENT,
                  HasSubstr("split 2"));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TEST, -1), INVALID_ARGUMENT,
                  HasSubstr("limit -1"));
  IO_EXPECT_FAILS(choir_dataset_open_mnist(std::string(5000, 'x').c_str(),
                                           CHOIR_SPLIT_TEST, 0, &dataset_),
                  FAILED_PRECONDITION, HasSubstr("name too long"));
}

TEST_F(Dataset, ImagesAndLabelsMustAgree) {
  folder_.Write("train-images-idx3-ubyte", Images(3));
  folder_.Write("train-labels-idx1-ubyte", Labels({1, 2}));
  // Also when a limit would hide it.
  for (int64_t limit : {0, 1, 2}) {
    IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN, limit), INVALID_ARGUMENT,
                    AllOf(HasSubstr("3 images"), HasSubstr("2 labels")));
  }
  EXPECT_EQ(dataset_, nullptr);
}

TEST_F(Dataset, SwappedFilesAreNoticed) {
  folder_.Write("train-images-idx3-ubyte", Labels({1, 2}));
  folder_.Write("train-labels-idx1-ubyte", Images(2));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
                  HasSubstr("train-images-idx3-ubyte"));
}

TEST_F(Dataset, EmptyIsRefused) {
  folder_.Write("train-images-idx3-ubyte", Images(0));
  folder_.Write("train-labels-idx1-ubyte", Labels({}));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
                  HasSubstr("no images"));
  folder_.Write("train-images-idx3-ubyte", Images(2, 0, 3));
  folder_.Write("train-labels-idx1-ubyte", Labels({1, 1}));
  IO_EXPECT_FAILS(Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
                  HasSubstr("(2, 1, 0, 3)"));
}

TEST_F(Dataset, LabelsOutOfRangeAreNamed) {
  folder_.Write("train-images-idx3-ubyte", Images(4));
  folder_.Write("train-labels-idx1-ubyte", Labels({1, 9, 10, 11}));
  IO_EXPECT_FAILS(
      Open(CHOIR_SPLIT_TRAIN), INVALID_ARGUMENT,
      AllOf(HasSubstr("image 2 has label 10"), HasSubstr("10 classes"),
            HasSubstr("0 to 9"), HasSubstr("train-labels-idx1-ubyte")));
  const std::string images = folder_.Path("train-images-idx3-ubyte");
  const std::string labels = folder_.Path("train-labels-idx1-ubyte");
  ASSERT_OK(
      choir_dataset_open_idx(images.c_str(), labels.c_str(), 12, 0, &dataset_));
  EXPECT_EQ(choir_dataset_class_count(dataset_), 12);
}

TEST_F(Dataset, NoMemoryIsAStatus) {
  folder_.Write("train-images-idx3-ubyte", Images(4));
  folder_.Write("train-labels-idx1-ubyte", Labels({1, 2, 3, 4}));
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
  EXPECT_GE(failures, 4);
}

TEST_F(Dataset, MemoryOfTheCaller) {
  uint8_t pixels[2 * 3 * 2 * 2] = {1, 2, 3};
  int32_t labels[2] = {4, 0};
  int released = 0;
  choir_dataset_memory_t memory = {};
  memory.pixels = pixels;
  memory.labels = labels;
  memory.count = 2;
  memory.channels = 3;
  memory.height = 2;
  memory.width = 2;
  memory.class_count = 5;
  memory.release = [](void* context) { ++*static_cast<int*>(context); };
  memory.context = &released;
  choir_dataset_t* dataset = nullptr;
  ASSERT_OK(choir_dataset_create(&memory, &dataset));
  EXPECT_EQ(choir_dataset_pixels(dataset), pixels);
  EXPECT_EQ(choir_dataset_labels(dataset), labels);
  EXPECT_EQ(choir_dataset_shape(dataset)[0], 3);
  EXPECT_EQ(choir_dataset_image_bytes(dataset), 12);
  choir_dataset_retain(dataset);
  choir_dataset_release(dataset);
  EXPECT_EQ(released, 0);
  choir_dataset_release(dataset);
  EXPECT_EQ(released, 1);
  choir_dataset_release(nullptr);

  // A failure leaves the memory with the caller.
  auto refused = [&](choir_dataset_memory_t wrong, const char* part) {
    IO_EXPECT_FAILS(choir_dataset_create(&wrong, &dataset), INVALID_ARGUMENT,
                    HasSubstr(part));
    EXPECT_EQ(dataset, nullptr);
  };
  choir_dataset_memory_t wrong = memory;
  wrong.pixels = nullptr;
  refused(wrong, "NULL");
  wrong = memory;
  wrong.count = 0;
  refused(wrong, "(0, 3, 2, 2)");
  wrong = memory;
  wrong.width = INT64_MAX;
  refused(wrong, "2^63");
  wrong = memory;
  wrong.class_count = 0;
  refused(wrong, "class_count is 0");
  wrong = memory;
  wrong.class_count = 4;
  refused(wrong, "image 0 has label 4");
  labels[1] = -1;
  refused(memory, "image 1 has label -1");
  EXPECT_EQ(released, 1);
}

// The package dataset-fashion-mnist; bootstrap installs it.
TEST_F(Dataset, FashionMnist) {
  const char* folder = "/usr/share/datasets/fashion-mnist";
  struct stat info;
  if (stat(folder, &info) != 0) {
    GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  }
  ASSERT_OK(choir_dataset_open_mnist(folder, CHOIR_SPLIT_TEST, 0, &dataset_));
  EXPECT_EQ(choir_dataset_count(dataset_), 10000);
  EXPECT_EQ(choir_dataset_shape(dataset_)[1], 28);
  EXPECT_EQ(choir_dataset_shape(dataset_)[2], 28);
  EXPECT_EQ(choir_dataset_labels(dataset_)[0], 9);
  choir_dataset_release(dataset_);
  ASSERT_OK(
      choir_dataset_open_mnist(folder, CHOIR_SPLIT_TRAIN, 1000, &dataset_));
  EXPECT_EQ(choir_dataset_count(dataset_), 1000);
}

// The files that come with the examples.
TEST_F(Dataset, Mnist) {
  const char* folder = "examples/data/mnist";
  ASSERT_OK(choir_dataset_open_mnist(folder, CHOIR_SPLIT_TRAIN, 0, &dataset_));
  ASSERT_EQ(choir_dataset_count(dataset_), 60000);
  const int32_t first[] = {5, 0, 4, 1, 9, 2, 1, 3, 1, 4};
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(choir_dataset_labels(dataset_)[i], first[i]);
  }
  choir_dataset_release(dataset_);
  ASSERT_OK(choir_dataset_open_mnist(folder, CHOIR_SPLIT_TEST, 0, &dataset_));
  EXPECT_EQ(choir_dataset_count(dataset_), 10000);
  EXPECT_EQ(choir_dataset_labels(dataset_)[0], 7);
}

}  // namespace
