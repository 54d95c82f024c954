// SPDX-License-Identifier: Apache-2.0
// What only the shm backend has: joining by id, memory, and leaving nothing.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dist/comm.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Patience;

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    choir_status_t status_ = (expr);                              \
    ASSERT_EQ(status_, nullptr) << choir_status_message(status_); \
  } while (0)

// Ranks as threads of one process: joining does not care.
choir_comm_config_t Config(const std::string& id, int32_t rank, int32_t size) {
  choir_comm_config_t config = {};
  config.backend = "shm";
  config.rank = rank;
  config.size = size;
  config.deadline = Patience(10);
  config.segment_bytes = 1 << 16;
  snprintf(config.id.text, sizeof(config.id.text), "%s", id.c_str());
  return config;
}

struct Result {
  choir_status_code_t code = CHOIR_STATUS_OK;
  std::string message = "ok";
};

Result Take(choir_status_t status) {
  Result result;
  result.code = choir_status_code(status);
  result.message = choir_status_message(status);
  choir_status_free(status);
  return result;
}

template <typename Body>
void InThreads(int32_t size, Body body) {
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmTest, IdServesOneCommunicator) {
  std::string id = choir_testing::MakeId();
  choir_comm_config_t config = Config(id, 0, 1);
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  choir_comm_t* second = nullptr;
  Result result = Take(choir_comm_create(&config, &second));
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(result.code, CHOIR_STATUS_ALREADY_EXISTS);
  // Without the id, which must not come into a log.
  EXPECT_EQ(result.message,
            "comm shm: rank 0 of this id is there already; an id serves one "
            "communicator");
  choir_comm_release(comm);
  // Free again.
  ASSERT_OK(choir_comm_create(&config, &comm));
  choir_comm_release(comm);
}

TEST(ShmTest, SizesMustAgree) {
  std::string id = choir_testing::MakeId();
  Result results[2];
  InThreads(2, [&](int32_t r) {
    choir_comm_config_t config = Config(id, r, r == 0 ? 2 : 3);
    choir_comm_t* comm = nullptr;
    results[r] = Take(choir_comm_create(&config, &comm));
  });
  std::string pid = std::to_string(getpid());
  for (const Result& result : results) {
    EXPECT_EQ(result.code, CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(result.message, "comm shm: rank 0 (pid " + pid +
                                  ") has size 2, rank 1 (pid " + pid +
                                  ") has size 3; all ranks need the same");
  }
}

TEST(ShmTest, SegmentSizesMustAgree) {
  std::string id = choir_testing::MakeId();
  Result results[2];
  InThreads(2, [&](int32_t r) {
    choir_comm_config_t config = Config(id, r, 2);
    config.segment_bytes = r == 0 ? 4096 : 8192;
    choir_comm_t* comm = nullptr;
    results[r] = Take(choir_comm_create(&config, &comm));
  });
  for (const Result& result : results)
    EXPECT_EQ(result.message,
              "comm shm: rank 0 has segment_bytes 4096, rank 1 has 8192; all "
              "ranks need the same");
}

// More than the machine has is a status on every rank, not a signal.
TEST(ShmTest, TooLittleMemoryIsAStatus) {
  std::string id = choir_testing::MakeId();
  Result results[3];
  InThreads(3, [&](int32_t r) {
    choir_comm_config_t config = Config(id, r, 3);
    config.segment_bytes = size_t{1} << 44;
    choir_comm_t* comm = nullptr;
    results[r] = Take(choir_comm_create(&config, &comm));
  });
  for (const Result& result : results) {
    EXPECT_EQ(result.code, CHOIR_STATUS_OUT_OF_MEMORY) << result.message;
    EXPECT_NE(result.message.find("rank 0 (host "), std::string::npos);
    EXPECT_NE(result.message.find("shared memory: 52776558133248 bytes are "
                                  "needed for all ranks; the system has "),
              std::string::npos)
        << result.message;
  }
}

// The kernel ends a process that exceeds `ulimit -f`, which shared memory does
// too; ranks get a sentence, at the start and when more memory is asked for.
TEST(ShmTest, FileSizeLimitIsAStatus) {
  if (choir_testing::RunRanks("shm", 2)) return;
  for (rlim_t limit : {rlim_t{1} << 20, rlim_t{6} << 20}) {
    struct rlimit size;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &size), 0);
    size.rlim_cur = limit;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &size), 0);
    choir_comm_config_t config;
    ASSERT_OK(choir_comm_config_init(&config));
    config.deadline = Patience(10);
    // Another id: that of the environment serves one communicator.
    config.id.text[0] = limit > 1 << 20 ? 'a' : 'b';
    choir_comm_t* comm = nullptr;
    Result result = Take(choir_comm_create(&config, &comm));
    EXPECT_EQ(comm, nullptr);
    EXPECT_EQ(result.code, CHOIR_STATUS_OUT_OF_MEMORY) << result.message;
    EXPECT_NE(result.message.find(
                  "bytes are needed; the limit on the size of files, which "
                  "holds for it too, is " +
                  std::to_string(limit) + " bytes; raise it (ulimit -f)"),
              std::string::npos)
        << result.message;
  }
}

TEST(ShmTest, CommunicatorOutlivesAFailedBuffer) {
  std::string id = choir_testing::MakeId();
  Result results[2];
  InThreads(2, [&](int32_t r) {
    choir_comm_config_t config = Config(id, r, 2);
    choir_comm_t* comm = nullptr;
    ASSERT_OK(choir_comm_create(&config, &comm));
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu", nullptr, &device));
    choir_buffer_t* buffer = nullptr;
    results[r] =
        Take(choir_comm_buffer_create(comm, device, size_t{1} << 44, &buffer));
    EXPECT_EQ(buffer, nullptr);
    // Different sizes are a difference like any other.
    Result odd = Take(
        choir_comm_buffer_create(comm, device, r == 0 ? 4096 : 8192, &buffer));
    EXPECT_EQ(odd.message,
              "buffer_create (operation 2): rank 0 has 4096 bytes, rank 1 has "
              "8192 bytes; all ranks need the same");
    ASSERT_OK(choir_comm_buffer_create(comm, device, 4096, &buffer));
    int32_t value = 1;
    ASSERT_OK(choir_comm_all_reduce(comm, &value, &value, 1, CHOIR_DTYPE_I32,
                                    CHOIR_REDUCE_SUM, "still"));
    EXPECT_EQ(value, 2);
    ASSERT_OK(choir_comm_finalize(comm));
    // The buffer keeps the memory it lies in.
    choir_comm_release(comm);
    memset(choir_buffer_data(buffer), 1, 4096);
    choir_buffer_release(buffer);
    choir_device_release(device);
  });
  for (const Result& result : results)
    EXPECT_EQ(result.code, CHOIR_STATUS_OUT_OF_MEMORY) << result.message;
}

TEST(ShmTest, BoundRanksHaveCoresTogether) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  if (cores.size() < 2) GTEST_SKIP() << "one core only";
  for (bool same : {false, true}) {
    std::string id = choir_testing::MakeId();
    InThreads(2, [&](int32_t r) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[same ? 0 : static_cast<size_t>(r)], &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      choir_comm_config_t config = Config(id, r, 2);
      choir_comm_t* comm = nullptr;
      ASSERT_OK(choir_comm_create(&config, &comm));
      EXPECT_EQ(choir_comm_local_cores(comm), same ? 1 : 2);
      ASSERT_OK(choir_comm_finalize(comm));
      choir_comm_release(comm);
    });
  }
}

int CountEntries(const char* folder) {
  int count = 0;
  for (auto& entry : std::filesystem::directory_iterator(folder))
    count += !entry.path().empty();
  return count;
}

// The fewest threads that are listed within a while, which ends once they are
// not more than `enough`: a thread stays on the list for a moment after it was
// joined.
int CountThreads(int enough, int milliseconds) {
  int fewest = CountEntries("/proc/self/task");
  for (int wait = 0; wait < milliseconds && fewest > enough; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fewest = std::min(fewest, CountEntries("/proc/self/task"));
  }
  return fewest;
}

int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:choir") != std::string::npos;
  return count;
}

TEST(ShmTest, LeavesNothingBehind) {
  int files = CountEntries("/proc/self/fd");
  // Sanitizers have one of their own.
  int threads = CountThreads(1, 500);
  for (int round = 0; round < 10; ++round) {
    std::string id = choir_testing::MakeId();
    InThreads(3, [&](int32_t r) {
      choir_comm_config_t config = Config(id, r, 3);
      choir_comm_t* comm = nullptr;
      ASSERT_OK(choir_comm_create(&config, &comm));
      choir_device_t* device = nullptr;
      ASSERT_OK(choir_device_create("cpu", nullptr, &device));
      choir_buffer_t* buffer = nullptr;
      ASSERT_OK(choir_comm_buffer_create(comm, device, 200000, &buffer));
      choir_buffer_release(buffer);
      choir_collective_t barrier = {};
      barrier.kind = CHOIR_COLLECTIVE_BARRIER;
      choir_work_t* work = nullptr;
      ASSERT_OK(choir_comm_start(comm, &barrier, &work));
      ASSERT_OK(choir_work_wait(work));
      if (round % 2 == 0) {
        ASSERT_OK(choir_comm_finalize(comm));
      }
      choir_comm_release(comm);
      choir_device_release(device);
    });
  }
  EXPECT_EQ(CountEntries("/proc/self/fd"), files);
  EXPECT_EQ(CountThreads(threads, 10000), threads);
  EXPECT_EQ(CountMappings(), 0);
}

TEST(ShmTest, ForkedChildIsRefused) {
  std::string id = choir_testing::MakeId();
  InThreads(2, [&](int32_t r) {
    choir_comm_config_t config = Config(id, r, 2);
    choir_comm_t* comm = nullptr;
    ASSERT_OK(choir_comm_create(&config, &comm));  // starts watch threads
    ASSERT_OK(choir_comm_finalize(comm));
    choir_comm_release(comm);
  });
  pid_t pid = fork();
  if (pid == 0) {
    choir_comm_config_t config = Config(id, 0, 1);
    choir_comm_t* comm = nullptr;
    choir_status_t status = choir_comm_create(&config, &comm);
    _exit(choir_status_code(status) == CHOIR_STATUS_FAILED_PRECONDITION ? 0
                                                                        : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
