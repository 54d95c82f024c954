// SPDX-License-Identifier: Apache-2.0
// What only the mpi backend has: finding its library, programs that use MPI
// themselves, Open MPI's way of ending jobs, and the choice of a backend.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/timeline.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::MpiexecArguments;
using choir_testing::MpiexecEnvironment;
using choir_testing::OwnFilter;
using choir_testing::OwnPath;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    choir_status_t status_ = (expr);                              \
    ASSERT_EQ(status_, nullptr) << choir_status_message(status_); \
  } while (0)

void AllReduceOnes(choir_comm_t* comm) {
  std::vector<float> data(100000, 1);
  ASSERT_OK(choir_comm_all_reduce(comm, data.data(), data.data(), 100000,
                                  CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "ones"));
  for (float value : data)
    ASSERT_EQ(value, static_cast<float>(choir_comm_size(comm)));
}

choir_status_t Append(void* self, const char* text, size_t bytes) {
  static_cast<std::string*>(self)->append(text, bytes);
  return nullptr;
}

// Over hosts, whose clocks are compared first.
void WriteTimeline(choir_comm_t* comm) {
  choir_profile_options_t options = {0, 10, {}};
  choir_profile_t* profile = nullptr;
  ASSERT_OK(choir_profile_create(&options, &profile));
  ASSERT_OK(choir_profile_start(profile));
  choir_profile_keep_events(profile, true);
  choir_span_t span = choir_span_begin(CHOIR_SPAN_PHASE);
  choir_span_end(&span, "step", nullptr, nullptr);
  choir_profile_stop(profile);
  std::string text;
  ASSERT_OK(choir_timeline_write(comm, profile, Append, &text));
  choir_profile_destroy(profile);
  if (choir_comm_rank(comm) != 0) return;
  for (const char* pid : {"0", "1", "2"}) {
    const std::string event =
        std::string(R"("cat":"phase","ph":"X","pid":)") + pid;
    EXPECT_NE(text.find(event), std::string::npos) << text;
  }
  EXPECT_NE(text.find("rank 1 (host b, pid "), std::string::npos) << text;
}

choir_comm_config_t Config() {
  choir_comm_config_t config;
  choir_status_t status = choir_comm_config_init(&config);
  EXPECT_EQ(status, nullptr) << choir_status_message(status);
  choir_status_free(status);
  config.deadline = Patience(20);
  return config;
}

// mpiexec ends all ranks when one ends: waits until so many have said their
// words.
[[noreturn]] void EndTogether(size_t ranks) {
  const std::filesystem::path folder = getenv("CHOIR_TEST_SAID");
  std::ofstream(folder / std::to_string(getpid()));
  auto count = [&folder] {
    std::filesystem::directory_iterator entries(folder), none;
    return static_cast<size_t>(std::distance(entries, none));
  };
  for (int round = 0; round < 1000 && count() < ranks; ++round) usleep(20000);
  _exit(1);
}

// Under mpiexec on one host, `auto` is shared memory; ids travel by MPI.
TEST(MpiTest, AutoIsSharedMemoryOnOneHost) {
  if (choir_testing::RunRanks("auto+mpi", 3)) return;
  choir_comm_config_t config = Config();
  for (int round = 0; round < 2; ++round) {
    choir_comm_t* comm = nullptr;
    ASSERT_OK(choir_comm_create(&config, &comm));
    EXPECT_STREQ(choir_comm_backend(comm), "shm");
    EXPECT_EQ(choir_comm_host_count(comm), 1);
    AllReduceOnes(comm);
    ASSERT_OK(choir_comm_finalize(comm));
    choir_comm_release(comm);
  }
}

// Runs the test in one rank for each host of the list, a name each. A rank
// takes its own by SetOwnHost: mpiexec's way to give each another environment
// ends with a segmentation fault in Debian 13's 5.0.7.
ProcessResult StartOnHosts(const std::vector<std::string>& hosts) {
  ProcessGroup group;
  std::vector<std::string> environment = MpiexecEnvironment();
  choir_testing::ShortTemporaryFolder said;
  environment.push_back("CHOIR_TEST_SAID=" + said.path());
  std::string names;
  for (const std::string& host : hosts) names += host + " ";
  environment.push_back("CHOIR_TEST_HOSTS=" + names);
  environment.push_back("CHOIR_TEST_SIZE=" + std::to_string(hosts.size()));
  environment.push_back("CHOIR_COMM=auto");
  environment.push_back("GTEST_COLOR=no");
  std::vector<std::string> arguments =
      MpiexecArguments(static_cast<int>(hosts.size()));
  arguments.push_back(OwnPath());
  arguments.push_back(OwnFilter());
  group.Start(arguments, environment);
  return group.Wait(Patience(60))[0];
}

void SetOwnHost() {
  std::istringstream names(getenv("CHOIR_TEST_HOSTS"));
  std::string host;
  for (int rank = atoi(getenv("OMPI_COMM_WORLD_RANK")); rank >= 0; --rank)
    names >> host;
  ASSERT_TRUE(names);
  setenv("CHOIR_HOST", host.c_str(), 1);
}

// False in a rank.
bool RunOnHosts(const std::vector<std::string>& hosts) {
  if (choir_testing::InRank()) {
    SetOwnHost();
    return false;
  }
  ProcessResult result = StartOnHosts(hosts);
  EXPECT_EQ(result.exit_status, 0) << result.output;
  return true;
}

// A group over hosts goes by MPI, one within a host by its memory.
TEST(MpiTest, GroupsOverHosts) {
  if (RunOnHosts({"a", "b", "a", "b"})) return;
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  int rank = choir_comm_rank(comm);
  const std::vector<std::vector<int32_t>> lists = {{0, 2}, {3, 0, 1}, {1, 2}};
  for (int round = 0; round < 2; ++round) {
    for (const auto& ranks : lists) {
      choir_comm_t* group = nullptr;
      ASSERT_OK(choir_comm_group(comm, ranks.data(),
                                 static_cast<int32_t>(ranks.size()), &group));
      if (!group) continue;
      bool one_host = ranks == lists[0];
      EXPECT_STREQ(choir_comm_backend(group), one_host ? "shm" : "mpi");
      EXPECT_EQ(choir_comm_host_count(group), one_host ? 1 : 2);
      EXPECT_EQ(ranks[static_cast<size_t>(choir_comm_rank(group))], rank);
      AllReduceOnes(group);
      ASSERT_OK(choir_comm_finalize(group));
      choir_comm_release(group);
    }
    AllReduceOnes(comm);
  }
  // A communicator of all, after groups that not all took part in.
  choir_comm_t* second = nullptr;
  ASSERT_OK(choir_comm_create(&config, &second));
  AllReduceOnes(second);
  ASSERT_OK(choir_comm_finalize(second));
  choir_comm_release(second);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
}

// Small whole numbers and thirds, different per rank and element.
float Element(int rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 13) % 41 - 20) / 3.0f;
}

// Sums within hosts in rank order, then over hosts: the documented order.
float HostSum(const std::vector<int>& hosts, int64_t i) {
  float sum = 0;
  for (int host = 0; host <= 1; ++host) {
    float of_host = 0;
    bool first = true;
    for (size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r] != host) continue;
      float x = Element(static_cast<int>(r), i);
      of_host = first ? x : of_host + x;
      first = false;
    }
    sum = host ? sum + of_host : of_host;
  }
  return sum;
}

// The same for averages with weights: those of a host first, then hosts by the
// sum of their weights.
float HostAverage(const std::vector<int>& hosts,
                  const std::vector<double>& weights, int64_t i) {
  double sums[2] = {};
  for (size_t r = 0; r < hosts.size(); ++r) sums[hosts[r]] += weights[r];
  float average = 0;
  bool first_host = true;
  for (int host = 0; host <= 1; ++host) {
    if (sums[host] == 0) continue;
    float of_host = 0;
    bool first = true;
    for (size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r] != host || weights[r] == 0) continue;
      float share = static_cast<float>(weights[r] / sums[host]);
      float x = Element(static_cast<int>(r), i);
      of_host = first ? share * x : fmaf(share, x, of_host);
      first = false;
    }
    float share = static_cast<float>(sums[host] / (sums[0] + sums[1]));
    average = first_host ? share * of_host : fmaf(share, of_host, average);
    first_host = false;
  }
  return average;
}

// Large data over two hosts with several ranks each: every kind that goes from
// leader to leader, several stretches long.
void ExchangeBetweenHosts(const std::vector<int>& hosts) {
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  ASSERT_STREQ(choir_comm_backend(comm), "mpi");
  const int rank = choir_comm_rank(comm);
  const int size = choir_comm_size(comm);
  ASSERT_EQ(size, static_cast<int>(hosts.size()));
  ASSERT_EQ(choir_comm_host_count(comm), 2);
  for (int64_t count : {int64_t{1000}, int64_t{300007}}) {
    std::vector<float> src, dst(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) src.push_back(Element(rank, i));
    ASSERT_OK(choir_comm_all_reduce(comm, src.data(), dst.data(), count,
                                    CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "sum"));
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(dst[static_cast<size_t>(i)], HostSum(hosts, i)) << i;
    // In place, with weights; once without any sample on the second host.
    for (bool idle : {false, true}) {
      std::vector<double> weights;
      for (int r = 0; r < size; ++r)
        weights.push_back(idle && hosts[static_cast<size_t>(r)] ? 0 : 1 + r);
      dst = src;
      choir_collective_t c = {};
      c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
      c.op = CHOIR_REDUCE_AVERAGE;
      c.dtype = CHOIR_DTYPE_F32;
      c.count = count;
      c.src = c.dst = dst.data();
      c.weight = weights[static_cast<size_t>(rank)];
      c.name = "average";
      ASSERT_OK(choir_comm_run(comm, &c));
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(dst[static_cast<size_t>(i)], HostAverage(hosts, weights, i));
    }
    for (int root = 0; root < size; ++root) {
      ASSERT_OK(choir_comm_reduce(
          comm, src.data(), rank == root ? dst.data() : nullptr, count,
          CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, root, "to root"));
      for (int64_t i = 0; i < count && rank == root; ++i)
        ASSERT_EQ(dst[static_cast<size_t>(i)], HostSum(hosts, i));
      dst = src;
      ASSERT_OK(choir_comm_broadcast(comm, dst.data(), count, CHOIR_DTYPE_F32,
                                     root, "from root"));
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(dst[static_cast<size_t>(i)], Element(root, i));
    }
    // Unequal parts; that of rank 1 is small, of rank 2 empty.
    auto part = [&](int r) {
      return r == 1 ? int64_t{10} : r == 2 ? 0 : count - r;
    };
    int64_t total = 0;
    for (int r = 0; r < size; ++r) total += part(r);
    std::vector<float> all(static_cast<size_t>(total));
    std::vector<int64_t> counts(static_cast<size_t>(size));
    ASSERT_OK(choir_comm_all_gather_v(comm, src.data(), part(rank), all.data(),
                                      total, counts.data(), CHOIR_DTYPE_F32,
                                      "parts"));
    size_t at = 0;
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(counts[static_cast<size_t>(r)], part(r));
      for (int64_t i = 0; i < part(r); ++i) ASSERT_EQ(all[at++], Element(r, i));
    }
    // An average of integers is that of the exact sum.
    std::vector<int32_t> whole(static_cast<size_t>(count), 3 * rank + 1);
    ASSERT_OK(choir_comm_all_reduce(comm, whole.data(), whole.data(), count,
                                    CHOIR_DTYPE_I32, CHOIR_REDUCE_AVERAGE,
                                    "whole"));
    for (int32_t value : whole)
      ASSERT_EQ(value, (3 * size * (size - 1) / 2 + size) / size);
  }
  // Ranks 0 and 3 go on when the others have no data left.
  if (rank % 3 == 0) {
    std::vector<float> sum(300007, static_cast<float>(rank + 1));
    ASSERT_OK(choir_comm_all_reduce(comm, sum.data(), sum.data(), 300007,
                                    CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "two"));
    for (float value : sum) ASSERT_EQ(value, 5);
  }
  int32_t last = -1;
  ASSERT_OK(choir_comm_join(comm, &last));
  EXPECT_EQ(last, 3);
  // From one host to the other.
  if (rank == 0) {
    ASSERT_OK(choir_comm_send(comm, &last, 1, CHOIR_DTYPE_I32, 3, "p"));
  }
  int32_t got = -1;
  if (rank == 3) {
    ASSERT_OK(choir_comm_receive(comm, &got, 1, CHOIR_DTYPE_I32, 0, "p"));
    EXPECT_EQ(got, 3);
  }
  // A difference is told as ever, and operations count from 1.
  float two[2] = {1, 1};
  choir_status_t status = choir_comm_all_reduce(
      comm, two, two, 1 + (rank == 1), CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "x");
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
  choir_status_free(status);
  AllReduceOnes(comm);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
}

TEST(MpiTest, HostsExchangeOnce) {
  if (RunOnHosts({"a", "b", "a", "b"})) return;
  ExchangeBetweenHosts({0, 1, 0, 1});
}

TEST(MpiTest, HostsExchangeOnceWithOneRankAlone) {
  if (RunOnHosts({"a", "a", "a", "b"})) return;
  ExchangeBetweenHosts({0, 0, 0, 1});
}

// A rank that is no leader ends it while others exchange: all tell its words,
// those of its host, which wait in shared memory, and those of the other.
TEST(MpiTest, HostsTellOneCause) {
  if (!choir_testing::InRank()) {
    ProcessResult result = StartOnHosts({"a", "b", "a", "b"});
    EXPECT_TRUE(result.ended);
    for (const char* rank : {"0", "1", "2"}) {
      std::string said = std::string("RANK ") + rank +
                         " SAYS all_reduce 'large' \\(operation 2\\): rank 3 "
                         "\\(host b, pid \\d+\\) aborted: enough\\.";
      EXPECT_TRUE(choir_testing::Contains(result.output, said))
          << said << result.output;
    }
    return;
  }
  SetOwnHost();
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  AllReduceOnes(comm);
  if (choir_comm_rank(comm) == 3) {
    usleep(200000);
    choir_comm_abort(comm, "enough");
  } else {
    std::vector<float> data(1000000, 1);
    choir_status_t status =
        choir_comm_all_reduce(comm, data.data(), data.data(), 1000000,
                              CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "large");
    char text[1024];
    int bytes = snprintf(text, sizeof(text), "\nRANK %d SAYS %s.\n",
                         choir_comm_rank(comm), choir_status_message(status));
    EXPECT_EQ(write(1, text, static_cast<size_t>(bytes)), bytes);
    choir_status_free(status);
  }
  EndTogether(4);
}

// Ranks 0 and 2 on host "a", rank 1 on "b".
TEST(MpiTest, AutoIsMpiOnSeveralHosts) {
  if (RunOnHosts({"a", "b", "a"})) return;
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  EXPECT_STREQ(choir_comm_backend(comm), "mpi");
  int rank = choir_comm_rank(comm);
  EXPECT_EQ(choir_comm_host_count(comm), 2);
  EXPECT_EQ(choir_comm_host_index(comm), rank == 1 ? 1 : 0);
  EXPECT_EQ(choir_comm_local_rank(comm), rank == 2 ? 1 : 0);
  EXPECT_EQ(choir_comm_local_size(comm), rank == 1 ? 1 : 2);
  std::string peer = choir_comm_peer(comm, 1);
  EXPECT_EQ(peer.find("rank 1 (host b, pid "), 0u) << peer;
  AllReduceOnes(comm);
  WriteTimeline(comm);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
  // Asked for by name, shm has to say why not.
  config.backend = "shm";
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_STREQ(choir_status_message(status),
               "comm shm: the ranks are on several hosts; use mpi");
  choir_status_free(status);
}

TEST(MpiTest, MissingLibraryIsToldWithItsPaths) {
  setenv("CHOIR_MPI_LIBRARY", "/nowhere/libchoir_mpi.so", 1);
  choir_comm_config_t config = Config();
  config.backend = "mpi";
  choir_comm_t* comm = nullptr;
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_UNAVAILABLE);
  EXPECT_STREQ(choir_status_message(status),
               "comm mpi: libchoir_mpi.so was not found; tried "
               "/nowhere/libchoir_mpi.so; it comes with Choir and needs Open "
               "MPI (Debian: openmpi-bin), or set CHOIR_MPI_LIBRARY to its "
               "path");
  choir_status_free(status);
  // A file that does not load tells why.
  setenv("CHOIR_MPI_LIBRARY", "/proc/self/exe", 1);
  status = choir_comm_create(&config, &comm);
  std::string message = choir_status_message(status);
  EXPECT_EQ(message.find("comm mpi: /proc/self/exe does not load "
                         "(/proc/self/exe: "),
            0u)
      << message;
  EXPECT_NE(message.find("); it needs Open MPI 4 or 5 (Debian: openmpi-bin)"),
            std::string::npos)
      << message;
  choir_status_free(status);
  unsetenv("CHOIR_MPI_LIBRARY");
  status = choir_comm_create(&config, &comm);
  message = choir_status_message(status);
  EXPECT_NE(message.find("/../lib/libchoir_mpi.so; "), std::string::npos)
      << message;
  choir_status_free(status);
}

// Programs that all end without finalize end well: nobody waits for anybody.
TEST(MpiTest, AllMayEndWithoutFinalize) {
  if (choir_testing::RunRanks("mpi", 3)) return;
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  AllReduceOnes(comm);
  usleep(static_cast<useconds_t>(choir_comm_rank(comm)) * 100000);
}

// Two ranks by Choir's launcher, none by MPI.
TEST(MpiTest, WithoutMpiexecTheHintNamesIt) {
  if (!choir_testing::InRank()) {
    ProcessGroup group;
    std::vector<std::string> environment = MpiexecEnvironment();
    for (const char* entry :
         {"CHOIR_TEST_SIZE=2", "CHOIR_RANK=1", "CHOIR_SIZE=2"})
      environment.push_back(entry);
    group.Start({OwnPath(), OwnFilter()}, environment);
    std::vector<ProcessResult> results = group.Wait(Patience(60));
    EXPECT_NE(results[0].output.find("[  PASSED  ] 1 test."), std::string::npos)
        << results[0].output;
    return;
  }
  choir_comm_config_t config = Config();
  config.backend = "mpi";
  choir_comm_t* comm = nullptr;
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_STREQ(choir_status_message(status),
               "comm mpi: this is rank 1 of 2, but for MPI it is rank 0 of 1; "
               "start the program with mpiexec -n 2");
  choir_status_free(status);
}

// A program that has MPI under way already, through dlopen so that this binary
// needs no MPI to be built.
int InitialiseMpi(int wanted) {
  void* mpi = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  EXPECT_NE(mpi, nullptr) << dlerror();
  if (!mpi) return -1;
  int (*init)(int*, char***, int, int*);
  void* symbol = dlsym(mpi, "MPI_Init_thread");
  memcpy(&init, &symbol, sizeof(init));
  int given = 0;
  EXPECT_EQ(init(nullptr, nullptr, wanted, &given), 0);
  return given;
}

void FinalizeMpi() {
  void* mpi = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  int (*finalize)(void);
  void* symbol = dlsym(mpi, "MPI_Finalize");
  memcpy(&finalize, &symbol, sizeof(finalize));
  EXPECT_EQ(finalize(), 0);
}

void AttachAt(int level) {
  ASSERT_EQ(InitialiseMpi(level), level);
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  EXPECT_STREQ(choir_comm_backend(comm), "mpi");
  AllReduceOnes(comm);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
  FinalizeMpi();  // the program's own business
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  choir_status_free(status);
}

TEST(MpiTest, AttachesAtMultiple) {
  if (choir_testing::RunRanks("mpi", 2)) return;
  AttachAt(3);
}

TEST(MpiTest, AttachesAtSerialized) {
  if (choir_testing::RunRanks("mpi", 2)) return;
  AttachAt(2);
}

TEST(MpiTest, RefusesLowerThreadLevels) {
  if (choir_testing::RunRanks("mpi", 1)) return;
  ASSERT_EQ(InitialiseMpi(0), 0);
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  EXPECT_STREQ(choir_status_message(status),
               "comm mpi: this program initialised MPI with a thread level "
               "below MPI_THREAD_SERIALIZED; call MPI_Init_thread with that or "
               "more, or let Choir initialise MPI");
  choir_status_free(status);
  FinalizeMpi();
}

// ---- Ranks that do not come to the start, or to the end ----

std::string Said(const ProcessResult& result, int rank) {
  const std::string mark = "RANK " + std::to_string(rank) + " SAYS ";
  size_t at = result.output.find(mark);
  if (at == std::string::npos) return "(nothing)\n" + result.output;
  at += mark.size();
  return result.output.substr(at, result.output.find('\n', at) - at);
}

[[noreturn]] void SayAndEnd(choir_status_t status) {
  std::string text = "\nRANK " + std::to_string(choir_testing::Rank()) +
                     " SAYS " + (status ? choir_status_message(status) : "ok") +
                     "\n";
  EXPECT_GT(write(1, text.data(), text.size()), 0);
  EndTogether(2);
}

// Three ranks, of which 1 does not come; the others say what they got.
ProcessResult RunUntilTheyEnd(const std::string& backend, double time_limit) {
  choir_testing::ShortTemporaryFolder said;
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend, 3,
                            {"CHOIR_TEST_SAID=" + said.path()});
  ProcessResult result = group.Wait(Patience(time_limit))[0];
  EXPECT_TRUE(result.ended);
  return result;
}

class MpiStartTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MpiStartTest, NamesTheRankThatDoesNotCome) {
  const std::string what = GetParam();
  if (choir_testing::InRank()) {
    if (choir_testing::Rank() == 1 && what == "stopped") raise(SIGSTOP);
    // mpiexec takes it for the end of a program without MPI, unless others are
    // in MPI_Init by then: that ends them all.
    if (choir_testing::Rank() == 1) _exit(0);
    usleep(500000);
    choir_comm_config_t config = Config();
    config.deadline = 1.5;
    choir_comm_t* comm = nullptr;
    SayAndEnd(choir_comm_create(&config, &comm));
  }
  ProcessResult result = RunUntilTheyEnd("mpi", 60);
  for (int rank : {0, 2})
    EXPECT_TRUE(choir_testing::Matches(
        Said(result, rank),
        "comm mpi: MPI_Init did not return within 1\\.5 s: not all ranks that "
        "mpiexec started came here; rank 1 " +
            std::string(what == "stopped" ? "\\(pid \\d+\\) is stopped"
                                          : "has ended")))
        << Said(result, rank);
}

INSTANTIATE_TEST_SUITE_P(Starts, MpiStartTest,
                         ::testing::Values("stopped", "ended"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

struct EndCase {
  const char* name;
  const char* backend;
  const char* what;
  const char* state;
};

void PrintTo(const EndCase& end, std::ostream* out) { *out << end.name; }

class MpiEndTest : public ::testing::TestWithParam<EndCase> {
 protected:
  [[noreturn]] static void GoElsewhere(const std::string& what) {
    if (what == "stops") raise(SIGSTOP);
    volatile double value = 1;
    for (;;)
      if (what == "loops")
        value = value * 0.5;
      else
        usleep(100000);
  }

  static void RunRank(const EndCase& end, bool calls_shutdown) {
    choir_comm_config_t config = Config();
    choir_comm_t* start = nullptr;
    ASSERT_OK(choir_comm_create(&config, &start));
    AllReduceOnes(start);
    // The limits of the last one hold at the end. A rank of a busy machine may
    // be slow to start, and to answer.
    const bool is_silent = end.what == std::string("stops");
    (is_silent ? config.silence : config.deadline) = 2.5;
    choir_comm_t* comm = nullptr;
    ASSERT_OK(choir_comm_create(&config, &comm));
    for (choir_comm_t* each : {comm, start}) {
      ASSERT_OK(choir_comm_finalize(each));
      choir_comm_release(each);
    }
    if (choir_testing::Rank() == 1) GoElsewhere(end.what);
    if (calls_shutdown) SayAndEnd(choir_comm_shutdown());
    exit(0);
  }
};

TEST_P(MpiEndTest, NamesTheRankThatDoesNotCome) {
  const EndCase& end = GetParam();
  if (choir_testing::InRank()) {
    RunRank(end, true);
    return;
  }
  ProcessResult result = RunUntilTheyEnd(end.backend, 60);
  for (int rank : {0, 2}) {
    std::string own = "rank " + std::to_string(rank);
    EXPECT_TRUE(choir_testing::Matches(
        Said(result, rank), "the end of the program: " + own +
                                " \\(host [^ ]+, pid \\d+\\) waited "
                                "\\d\\.\\d s for rank 1 \\(host [^ ]+, pid "
                                "\\d+\\), which " +
                                end.state))
        << Said(result, rank);
  }
}

// Nor does a program hang that leaves it to its exit.
TEST_P(MpiEndTest, ExitWaitsNoLonger) {
  if (choir_testing::InRank()) {
    RunRank(GetParam(), false);
    return;
  }
  ProcessResult result = RunUntilTheyEnd(GetParam().backend, 60);
  EXPECT_NE(result.exit_status, 0);
}

const EndCase kEndCases[] = {
    {"sleeps", "mpi", "sleeps", "is alive but has not come"},
    {"loops", "mpi", "loops", "is alive but has not come"},
    {"stops", "mpi", "stops",
     "has given no sign of life for \\d\\.\\d s \\(stopped, or its host or the "
     "link to it is down\\)"},
    {"sleeps_over_shm", "auto+mpi", "sleeps", "is alive but has not come"},
};

INSTANTIATE_TEST_SUITE_P(Ends, MpiEndTest, ::testing::ValuesIn(kEndCases),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(MpiTest, AllComeToTheEnd) {
  if (choir_testing::RunRanks("mpi", 3)) return;
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  AllReduceOnes(comm);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
  // Longer than a turn of the thread that answers.
  usleep(static_cast<useconds_t>(choir_testing::Rank()) * 300000);
  ASSERT_OK(choir_comm_shutdown());
  ASSERT_OK(choir_comm_shutdown());
  choir_status_t status = choir_comm_create(&config, &comm);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  EXPECT_STREQ(choir_status_message(status), "comm mpi: MPI was finalized");
  choir_status_free(status);
}

// A program that ends MPI and keeps a communicator: its thread does not call
// MPI any more, which would end the program.
TEST(MpiTest, ShutdownLeavesWhatIsNotFinalized) {
  if (choir_testing::RunRanks("mpi", 2)) return;
  choir_comm_config_t config = Config();
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  AllReduceOnes(comm);
  ASSERT_OK(choir_comm_shutdown());
  usleep(1000000);  // four heartbeats
  choir_status_t status = choir_comm_barrier(comm, "late");
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  choir_status_free(status);
  choir_comm_release(comm);
}

choir_comm_t* signal_comm;

// As an executable would: Open MPI gives a second between SIGTERM and SIGKILL.
void TellActivity(int) {
  const char* activity = choir_comm_activity(signal_comm);
  char text[512] = "";
  strcat(text, "\nTERM ");
  strncat(text, activity, sizeof(text) - strlen(text) - 2);
  strcat(text, "\n");
  if (write(1, text, strlen(text)) < 0) _exit(4);
  _exit(3);
}

TEST(MpiTest, SurvivorsTellFromTheirSignalHandler) {
  if (!choir_testing::InRank()) {
    ProcessGroup group;
    choir_testing::StartRanks(&group, "mpi", 3);
    std::vector<ProcessResult> results = group.Wait(Patience(60));
    EXPECT_TRUE(results[0].ended);
    EXPECT_NE(results[0].exit_status, 0);
    EXPECT_LT(results[0].seconds, Patience(15));
    std::string told(
        "TERM all_reduce 'grad' \\(operation 6\\), waiting for rank 1 \\(host "
        "[^ ]+, pid \\d+\\)");
    EXPECT_TRUE(choir_testing::Contains(results[0].output, told))
        << results[0].output;
    return;
  }
  choir_comm_config_t config = Config();
  ASSERT_OK(choir_comm_create(&config, &signal_comm));
  signal(SIGTERM, TellActivity);
  for (int step = 0;; ++step) {
    if (step == 5 && choir_comm_rank(signal_comm) == 1) {
      usleep(300000);
      raise(SIGKILL);
    }
    float data = 1;
    choir_status_t status =
        choir_comm_all_reduce(signal_comm, &data, &data, 1, CHOIR_DTYPE_F32,
                              CHOIR_REDUCE_SUM, "grad");
    // MPI may tell of the death before the signal comes; the signal follows.
    if (status) {
      printf("\nSAID %s\n", choir_status_message(status));
      fflush(stdout);
      sleep(5);
    }
  }
}

}  // namespace
