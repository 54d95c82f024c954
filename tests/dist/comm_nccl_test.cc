// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "tests/conformance/comm_gpu_cases.h"
#include "tests/dist/nccl_testing.h"

namespace {

using choir_testing::NcclRanks;
using comm_suite::DoLikeTheHost;
using comm_suite::GpuImage;
using comm_suite::Tolerance;
using Own = NcclRanks::Own;

class CommNcclSizes : public ::testing::TestWithParam<int> {};

TEST_P(CommNcclSizes, DoesWhatTheHostDoes) {
  NcclRanks ranks(GetParam());
  ranks.Run([](Own* own) {
    EXPECT_STREQ(choir_comm_backend(own->comm), "nccl");
    DoLikeTheHost(own->comm, own->stream, Tolerance);
    EXPECT_EQ(choir_comm_staged_bytes(own->comm), 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommNcclSizes, ::testing::Values(1, 2, 3, 4));

// A sum of one number of each rank, in place.
choir_collective_t SumOf(void* data, int64_t count = 1) {
  choir_collective_t sum = {};
  sum.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  sum.dtype = CHOIR_DTYPE_I32;
  sum.count = count;
  sum.src = sum.dst = data;
  sum.weight = 1;
  sum.name = "x";
  return sum;
}

std::vector<unsigned char> Number(int32_t value) {
  std::vector<unsigned char> bytes(4);
  memcpy(bytes.data(), &value, 4);
  return bytes;
}

// Nothing is waited for on the host, and all is in order on the GPU, whatever
// streams are used.
TEST(CommNcclTest, KeepsTheOrderOfStreams) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    choir_stream_t* compute = choir_device_stream(own->device);
    GpuImage image(compute, Number(own->rank + 1));
    choir_event_t* event = nullptr;
    ASSERT_OK(choir_event_create(own->device, &event));
    const auto waits = [&] {
      return ranks.cuda().Calls("cuStreamSynchronize") +
             ranks.cuda().Calls("cuEventSynchronize");
    };
    ASSERT_OK(choir_comm_barrier(own->comm, nullptr));
    const int before = waits();
    ASSERT_OK(choir_comm_barrier(own->comm, nullptr));
    // Of all ranks' sums: 3, then 6, then 12.
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    // Another stream, which NCCL must not see before the first is done.
    ASSERT_OK(choir_comm_submit(own->comm, compute, &sum));
    ASSERT_OK(choir_event_record(event, compute));
    ASSERT_OK(choir_stream_wait_event(own->stream, event));
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    EXPECT_EQ(waits(), before) << "the host waited for the GPU";
    ASSERT_OK(choir_comm_barrier(own->comm, nullptr));
    ASSERT_OK(choir_event_record(event, own->stream));
    ASSERT_OK(choir_stream_wait_event(compute, event));
    EXPECT_EQ(image.Read(), Number(12));
    choir_event_release(event);
  });
}

TEST(CommNcclTest, ManyOperations) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    for (int i = 0; i < 100; ++i) {
      choir_collective_t max = SumOf(image.data());
      max.op = CHOIR_REDUCE_MAX;
      ASSERT_OK(choir_comm_submit(own->comm, own->stream, &max));
    }
    EXPECT_EQ(image.Read(), Number(1));
  });
  EXPECT_EQ(ranks.nccl().Calls("ncclAllReduce"), 200);
}

TEST(CommNcclTest, SendAndReceive) {
  NcclRanks ranks(3);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(own->rank + 5));
    choir_collective_t move = SumOf(image.data());
    move.kind =
        own->rank == 2 ? CHOIR_COLLECTIVE_SEND : CHOIR_COLLECTIVE_RECEIVE;
    move.root = 2 - own->rank;
    if (own->rank != 1) {
      ASSERT_OK(choir_comm_submit(own->comm, own->stream, &move));
      EXPECT_EQ(image.Read(), Number(7));
    }
  });
}

TEST(CommNcclTest, Groups) {
  NcclRanks ranks(3);
  ranks.Run([&](Own* own) {
    const int32_t members[] = {2, 0};
    choir_comm_t* group = nullptr;
    ASSERT_OK(choir_comm_group(own->comm, members, 2, &group));
    if (own->rank == 1) {
      EXPECT_EQ(group, nullptr);
      return;
    }
    EXPECT_STREQ(choir_comm_backend(group), "nccl");
    GpuImage image(own->stream, Number(own->rank + 1));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(group, own->stream, &sum));
    EXPECT_EQ(image.Read(), Number(4));
    ASSERT_OK(choir_comm_finalize(group));
    choir_comm_release(group);
  });
}

// ---- What is refused, on all ranks alike ----

TEST(CommNcclTest, WhatNcclHasNotIsSaid) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    choir_collective_t average = SumOf(image.data());
    average.op = CHOIR_REDUCE_AVERAGE;
    EXPECT_STATUS(UNIMPLEMENTED, "averages of i32",
                  choir_comm_submit(own->comm, own->stream, &average));
    choir_collective_t scaled = SumOf(image.data());
    scaled.scales = true;
    scaled.prescale = scaled.postscale = 2;
    EXPECT_STATUS(UNIMPLEMENTED, "prescale and postscale",
                  choir_comm_submit(own->comm, own->stream, &scaled));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    EXPECT_EQ(image.Read(), Number(2));
  });
}

TEST(CommNcclTest, MemoryOfOneKind) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    int32_t host = 1;
    choir_collective_t sum = SumOf(own->rank ? &host : nullptr);
    if (!own->rank) sum.src = sum.dst = image.data();
    sum.in_host_memory = own->rank == 1;
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "all_reduce 'x' (operation 1): rank 0 gives a GPU's memory, "
                  "rank 1 gives the host's; all ranks need to give the same",
                  choir_comm_submit(own->comm, own->stream, &sum));
  });
}

TEST(CommNcclTest, AnotherGpu) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    choir_device_t* other = nullptr;
    choir_device_options_t options = {};
    options.index = 1;
    ASSERT_OK(choir_device_create("cuda", &options, &other));
    {
      choir_stream_t* stream = choir_device_stream(other);
      GpuImage image(stream, Number(1));
      choir_collective_t sum = SumOf(image.data());
      EXPECT_STATUS(INVALID_ARGUMENT,
                    "rank 0: the stream is of cuda:1; the communicator's GPU "
                    "is cuda:0",
                    choir_comm_submit(own->comm, stream, &sum));
    }
    choir_device_release(other);
  });
}

TEST(CommNcclTest, RanksThatJoined) {
  NcclRanks ranks(2);
  ranks.Run([&](Own* own) {
    int32_t last = -1;
    if (own->rank == 0) {
      GpuImage image(own->stream, Number(1));
      choir_collective_t sum = SumOf(image.data());
      EXPECT_STATUS(INVALID_ARGUMENT, "of host memory",
                    choir_comm_submit(own->comm, own->stream, &sum));
    }
    ASSERT_OK(choir_comm_join(own->comm, &last));
  });
}

// ---- Faults ----

// Waits for the GPU, which an abort lets go, and says why.
void ExpectFault(Own* own, choir_status_code_t code, const std::string& text) {
  own->ends_well = false;
  EXPECT_OK(choir_stream_synchronize(own->stream));
  choir_status_t status = choir_comm_poll_error(own->comm);
  EXPECT_EQ(choir_status_code(status), code) << choir_status_message(status);
  EXPECT_TRUE(choir_testing::Contains(choir_status_message(status), text))
      << choir_status_message(status);
  choir_status_free(status);
  // And from then on.
  choir_collective_t sum = SumOf(nullptr, 0);
  status = choir_comm_submit(own->comm, own->stream, &sum);
  EXPECT_EQ(choir_status_code(status), code);
  choir_status_free(status);
}

TEST(CommNcclFaults, AGpuThatNeverComes) {
  NcclRanks ranks(2);
  ranks.nccl().Hold(1);
  const double start = choir_clock_seconds();
  ranks.Run(
      [&](Own* own) {
        GpuImage image(own->stream, Number(1));
        choir_collective_t sum = SumOf(image.data());
        ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
        ExpectFault(own, CHOIR_STATUS_TIMEOUT,
                    "the GPU of rank \\d \\(host .*, pid \\d+\\) waited \\d.\\d"
                    " s in all_reduce 'x' \\(operation 1\\) for those of the "
                    "other ranks");
      },
      1);
  EXPECT_LT(choir_clock_seconds() - start, choir_testing::Patience(4));
  EXPECT_EQ(ranks.nccl().Calls("ncclCommAbort"), 2);
}

TEST(CommNcclFaults, ARankThatLeaves) {
  NcclRanks ranks(2);
  ranks.nccl().Hold(1);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    if (own->rank == 1) {
      own->ends_well = false;
      choir_comm_release(own->comm);
      own->comm = nullptr;
      return;
    }
    ExpectFault(own, CHOIR_STATUS_ABORTED,
                "rank 1 .* left the communicator without finalize");
  });
}

TEST(CommNcclFaults, ARankThatAborts) {
  NcclRanks ranks(3);
  ranks.nccl().Hold(1);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    if (own->rank == 1) choir_comm_abort(own->comm, "enough");
    ExpectFault(own, CHOIR_STATUS_ABORTED, "rank 1 .* aborted: enough");
  });
}

TEST(CommNcclFaults, WhatNcclTellsLater) {
  NcclRanks ranks(2);
  ranks.nccl().Hold(1);
  ranks.Run([&](Own* own) {
    GpuImage image(own->stream, Number(1));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    if (own->rank == 0) ranks.nccl().SetState(0, 6);
    ExpectFault(own, CHOIR_STATUS_ABORTED,
                "rank 0 .*: NCCL failed at all_reduce 'x' \\(operation 1\\): "
                "remote process exited, the script said so");
  });
}

// The others are past the agreement: they must not wait for it.
TEST(CommNcclFaults, ACallThatFails) {
  for (const char* symbol :
       {"ncclAllReduce", "ncclGroupStart", "ncclGroupEnd"}) {
    SCOPED_TRACE(symbol);
    NcclRanks ranks(2);
    ranks.Run([&](Own* own) {
      GpuImage image(own->stream, Number(1));
      choir_collective_t sum = SumOf(image.data());
      if (own->rank == 0) {
        ranks.nccl().FailNext(symbol, 3);
        choir_status_t status = choir_comm_submit(own->comm, own->stream, &sum);
        // Whoever called it first has failed.
        choir_status_free(status);
      } else {
        choir_status_free(choir_comm_submit(own->comm, own->stream, &sum));
      }
      ExpectFault(own, CHOIR_STATUS_ABORTED, "NCCL failed at handing over");
    });
  }
}

// ---- The start ----

TEST(CommNcclStart, AllRanksLearnWhyItFails) {
  struct Failure {
    const char* symbol;
    int result;
    choir_status_code_t code;
    const char* text;
  };
  const Failure failures[] = {
      {"ncclGetUniqueId", 2, CHOIR_STATUS_UNAVAILABLE, "NCCL does not start"},
      {"ncclGetVersion", 2, CHOIR_STATUS_UNAVAILABLE, "NCCL does not start"},
      {"ncclCommInitRankConfig", 5, CHOIR_STATUS_ABORTED,
       "NCCL failed at its start: invalid usage"},
  };
  for (const Failure& failure : failures) {
    SCOPED_TRACE(failure.symbol);
    const double start = choir_clock_seconds();
    NcclRanks ranks(3);
    ranks.nccl().FailNext(failure.symbol, failure.result);
    ranks.Start([&](Own* own) {
      EXPECT_TRUE(choir::testing::HasStatus("join", ranks.Join(own),
                                            failure.code, failure.text));
      EXPECT_EQ(own->comm, nullptr);
    });
    EXPECT_LT(choir_clock_seconds() - start, choir_testing::Patience(5));
  }
}

// Two ranks on one GPU: NCCL refuses the second.
TEST(CommNcclStart, OneProcessForEachGpu) {
  NcclRanks ranks(2);
  ranks.Start([&](Own* own) {
    choir_device_release(own->device);
    choir_stream_release(own->stream);
    own->device = nullptr;
    own->stream = nullptr;
    choir_device_options_t options = {};
    ASSERT_OK(choir_device_create("cuda", &options, &own->device));
    EXPECT_STATUS(ABORTED, "invalid usage", ranks.Join(own));
  });
}

// Without a device: the GPU of the local rank.
TEST(CommNcclStart, WithoutADevice) {
  NcclRanks ranks(2);
  ranks.Start([&](Own* own) {
    choir_device_t* device = own->device;
    own->device = nullptr;
    ASSERT_OK(ranks.Join(own));
    GpuImage image(own->stream, Number(1));
    choir_collective_t sum = SumOf(image.data());
    ASSERT_OK(choir_comm_submit(own->comm, own->stream, &sum));
    EXPECT_EQ(image.Read(), Number(2));
    ASSERT_OK(choir_comm_finalize(own->comm));
    own->device = device;
  });
}

TEST(CommNcclStart, NeedsAGpu) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_comm_config_t config;
  ASSERT_OK(choir_comm_config_init(&config));
  config.backend = "nccl";
  config.device = device;
  choir_comm_t* comm = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "device is cpu; a GPU, cuda, is needed",
                choir_comm_create(&config, &comm));
  choir_device_release(device);
}

TEST(CommNcclStart, TellsItsVersion) {
  NcclRanks ranks(1);
  int32_t version = 0;
  ASSERT_OK(choir_comm_nccl_version(&version));
  EXPECT_EQ(version, ranks.nccl().version());
  ranks.nccl().FailNext("ncclGetVersion", 2);
  EXPECT_STATUS(UNAVAILABLE, "NCCL does not start",
                choir_comm_nccl_version(&version));
}

// In a process where nothing stands in the place of NCCL.
TEST(CommNcclStart, AMachineWithoutNccl) {
  setenv("CHOIR_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  choir_comm_config_t config;
  ASSERT_OK(choir_comm_config_init(&config));
  config.backend = "nccl";
  choir_comm_t* comm = nullptr;
  EXPECT_STATUS(UNAVAILABLE, "needs NCCL 2.14 or newer",
                choir_comm_create(&config, &comm));
  int32_t version = 1;
  EXPECT_STATUS(UNAVAILABLE, "needs NCCL 2.14 or newer",
                choir_comm_nccl_version(&version));
  EXPECT_EQ(version, 0);
}

}  // namespace
