// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU over communicators that exchange host memory: every kind does
// to it what it does to the host's. The GPU is a script (FakeCuda), which does
// nothing before somebody waits for it.
#include "tests/conformance/comm_gpu_cases.h"
#include "tests/testing/fake_cuda.h"

namespace comm_suite {

class CommGpuSuite : public CommSuite {
 protected:
  // With the GPU, after Join.
  void Open() {
    ASSERT_OK(choir_device_create("cuda", nullptr, &scripted_));
    ASSERT_OK(
        choir_stream_create(scripted_, CHOIR_STREAM_BACKGROUND, &stream_));
  }
  void TearDown() override {
    CommSuite::TearDown();
    choir_stream_release(stream_);
    choir_device_release(scripted_);
  }

  choir::testing::FakeCuda fake_;
  choir_device_t* scripted_ = nullptr;
  choir_stream_t* stream_ = nullptr;
};

TEST_P(CommGpuSuite, DoesWhatTheHostDoes) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  EXPECT_EQ(choir_comm_staged_bytes(comm_), 0u);
  DoLikeTheHost(comm_, stream_, [](choir_dtype_t) { return 0.0; });
  EXPECT_GT(choir_comm_staged_bytes(comm_), 100000u);
}

// What the stream has to do comes before, what is given to it later after.
TEST_P(CommGpuSuite, KeepsTheOrderOfTheStream) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  GpuImage image(stream_, std::vector<unsigned char>(4, 0));
  auto* value = reinterpret_cast<int32_t*>(image.data());
  const int stream = 3;  // of the script: after that of copies and the device's
  int32_t seen = 0;
  fake_.Launch(stream, [value] { *value = 5; }, {value});
  choir_collective_t sum = {};
  sum.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  sum.dtype = CHOIR_DTYPE_I32;
  sum.count = 1;
  sum.src = sum.dst = value;
  ASSERT_OK(choir_comm_submit(comm_, stream_, &sum));
  fake_.Launch(stream, [&] { seen = *value; }, {value});
  ASSERT_OK(choir_stream_synchronize(stream_));
  EXPECT_EQ(seen, 5 * size_);
}

// An average of one is there already.
TEST_P(CommGpuSuite, OneRankInPlaceCopiesNothing) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  const std::vector<unsigned char> bytes = Data(0, 100, CHOIR_DTYPE_F32);
  GpuImage image(stream_, bytes);
  choir_collective_t average = {};
  average.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  average.op = CHOIR_REDUCE_AVERAGE;
  average.dtype = CHOIR_DTYPE_F32;
  average.count = 100;
  average.weight = 3;
  average.src = average.dst = image.data();
  ASSERT_OK(choir_comm_submit(comm_, stream_, &average));
  EXPECT_EQ(choir_comm_staged_bytes(comm_), size_ == 1 ? 0u : 800u);
  if (size_ > 1) return;
  const std::vector<unsigned char> now = image.Read();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), now.begin()));
}

TEST_P(CommGpuSuite, SendAndReceive) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  if (size_ == 1) return;
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{20011}}) {
    const auto theirs = Data(0, count, CHOIR_DTYPE_F32);
    GpuImage image(stream_, rank_ == 0 ? theirs
                                       : std::vector<unsigned char>(
                                             theirs.size(), kGuardByte));
    choir_collective_t move = {};
    move.kind = rank_ == 0 ? CHOIR_COLLECTIVE_SEND : CHOIR_COLLECTIVE_RECEIVE;
    move.root = 1 - rank_;
    move.dtype = CHOIR_DTYPE_F32;
    move.count = count;
    move.src = move.dst = image.data();
    move.name = "one to one";
    if (rank_ > 1) continue;
    ASSERT_OK(choir_comm_submit(comm_, stream_, &move));
    const auto now = image.Read();
    for (size_t i = 0; i + 1 < now.size(); ++i) ASSERT_EQ(now[i], theirs[i]);
  }
}

TEST_P(CommGpuSuite, HostMemoryOnItsStream) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  int32_t one = 1;
  choir_collective_t sum = {};
  sum.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  sum.dtype = CHOIR_DTYPE_I32;
  sum.count = 1;
  sum.src = sum.dst = &one;
  sum.in_host_memory = true;
  ASSERT_OK(choir_comm_submit(comm_, stream_, &sum));
  EXPECT_EQ(one, size_);
  EXPECT_EQ(choir_comm_staged_bytes(comm_), 0u);
}

TEST_P(CommGpuSuite, BuffersAreOfTheGpu) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_comm_buffer_create(comm_, scripted_, 10000, &buffer));
  EXPECT_EQ(choir_buffer_device(buffer), scripted_);
  std::vector<unsigned char> bytes(10000, 1);
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, bytes.data(), bytes.size()));
  EXPECT_EQ(bytes, std::vector<unsigned char>(10000, 0));
  choir_buffer_release(buffer);
}

// All ranks learn of it, and go on.
TEST_P(CommGpuSuite, AFailedCopyIsARefusal) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  std::vector<unsigned char> bytes(800, 1);
  GpuImage image(stream_, bytes);
  choir_collective_t sum = {};
  sum.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  sum.dtype = CHOIR_DTYPE_U8;
  sum.count = 400;
  sum.src = image.data();
  sum.dst = image.data() + 400;
  sum.name = "x";
  const int last = size_ - 1;
  if (rank_ == last) fake_.FailNext("cuMemcpyDtoHAsync", 1);
  choir_status_t status = choir_comm_submit(comm_, stream_, &sum);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INTERNAL);
  const std::string text = choir_status_message(status);
  EXPECT_EQ(text.find("all_reduce 'x' (operation 1): rank " +
                      std::to_string(last) + ": "),
            0u)
      << text;
  EXPECT_NE(text.find("cuMemcpyDtoHAsync"), std::string::npos) << text;
  choir_status_free(status);
  ASSERT_OK(choir_comm_submit(comm_, stream_, &sum));
  std::fill(bytes.begin() + 400, bytes.end(),
            static_cast<unsigned char>(size_));
  EXPECT_EQ(image.Read(), bytes);
}

// Whatever a rank gives that is wrong, it is told and nothing is touched.
TEST_P(CommGpuSuite, WrongArgumentsAreToldBeforeAnythingIsRead) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_NO_FATAL_FAILURE(Open());
  choir_collective_t gather = {};
  gather.kind = CHOIR_COLLECTIVE_ALL_GATHER_V;
  gather.dtype = CHOIR_DTYPE_F64;
  gather.count = 0;
  gather.capacity = int64_t{1} << 61;
  GpuImage image(stream_, std::vector<unsigned char>(64, 1));
  gather.src = gather.dst = image.data();
  choir_status_t status = choir_comm_submit(comm_, stream_, &gather);
  EXPECT_NE(std::string(choir_status_message(status)).find("capacity is"),
            std::string::npos)
      << choir_status_message(status);
  choir_status_free(status);
  gather.count = -1;
  status = choir_comm_submit(comm_, stream_, &gather);
  EXPECT_NE(std::string(choir_status_message(status)).find("count is -1"),
            std::string::npos)
      << choir_status_message(status);
  choir_status_free(status);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CommGpuSuite,
    ::testing::ValuesIn(CasesOf([](const std::string& name) {
      return name != "nccl";
    })),
    CaseName);

// NCCL and the GPUs of this machine; ranks may share one.
class CommNcclSuite : public CommSuite {
 protected:
  void SetUp() override {
    if (!HasGpus(1)) GTEST_SKIP() << "this machine has no GPU";
  }
};

TEST_P(CommNcclSuite, DoesWhatTheHostDoes) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(gpu_, CHOIR_STREAM_BACKGROUND, &stream));
  DoLikeTheHost(comm_, stream, Tolerance);
  EXPECT_EQ(choir_comm_staged_bytes(comm_), 0u);
  choir_stream_release(stream);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CommNcclSuite,
    ::testing::ValuesIn(CasesOf([](const std::string& name) {
      return name == "nccl";
    })),
    CaseName);

}  // namespace comm_suite
