// SPDX-License-Identifier: Apache-2.0
// How ranks meet over tcp, and who does not get in. The parent starts ranks,
// each this binary again, and is itself the stranger.
#include <errno.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Contains;
using choir_testing::Heard;
using choir_testing::MakeId;
using choir_testing::OwnFilter;
using choir_testing::OwnPath;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Say;

double Seconds(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text ? atof(text) : otherwise;
}

// Puts what nobody sealed between this rank's records: on the first or second
// of its connections.
void Forge(const char* which) {
  int left = atoi(which);
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) ||
        peer.ss_family == AF_UNIX || left--)
      continue;
    const unsigned char record[4 + 40 + 16] = {40};
    EXPECT_EQ(send(fd, record, sizeof record, 0),
              static_cast<ssize_t>(sizeof record));
    return;
  }
  ADD_FAILURE() << "no connection " << which;
}

// Joins, adds up as often as it is told, and says how it went.
void BeRank() {
  choir_comm_config_t config;
  choir_comm_t* comm = nullptr;
  choir_status_t status = choir_comm_config_init(&config);
  config.deadline = Patience(Seconds("CHOIR_TEST_DEADLINE", 20));
  if (!status) status = choir_comm_create(&config, &comm);
  const int times = static_cast<int>(Seconds("CHOIR_TEST_TIMES", 1));
  const char* backend = getenv("CHOIR_TEST_BACKEND");
  if (comm && backend && strcmp(choir_comm_backend(comm), backend))
    status = CHOIR_ERROR(INTERNAL, "it is %s", choir_comm_backend(comm));
  if (comm && times > 1) Say("joined");
  const double late = Patience(Seconds("CHOIR_TEST_LATE", 0));
  std::vector<int32_t> values(5000);
  for (int i = 0; !status && i < times; ++i) {
    if (i == 10) usleep(static_cast<useconds_t>(1e6 * late));
    if (i == 10 && getenv("CHOIR_TEST_FORGE"))
      Forge(getenv("CHOIR_TEST_FORGE"));
    for (size_t k = 0; k < values.size(); ++k)
      values[k] = config.rank + 5 + static_cast<int32_t>(k);
    status = choir_comm_all_reduce(comm, values.data(), values.data(),
                                   static_cast<int64_t>(values.size()),
                                   CHOIR_DTYPE_I32, CHOIR_REDUCE_SUM, "met");
    const int32_t sum = config.size * 5 + config.size * (config.size - 1) / 2;
    if (!status && values[3] != sum + 3 * config.size)
      status = CHOIR_ERROR(INTERNAL, "the sum is %d", values[3]);
  }
  if (!status) status = choir_comm_finalize(comm);
  choir_comm_release(comm);
  Say(std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status));
  choir_status_free(status);
}

// Where ranks meet.
class Rendezvous {
 public:
  Rendezvous() {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address_;
    EXPECT_EQ(bind(socket_, plain(), bytes), 0);
    EXPECT_EQ(listen(socket_, 128), 0);
    EXPECT_EQ(getsockname(socket_, plain(), &bytes), 0);
  }
  ~Rendezvous() { close(socket_); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  std::string text() const {
    return "127.0.0.1:" + std::to_string(ntohs(address_.sin_port));
  }
  std::vector<std::string> environment() const {
    return {"CHOIR_COMM=tcp", "CHOIR_RENDEZVOUS=" + text(),
            "CHOIR_RENDEZVOUS_FD=" + std::to_string(socket_),
            "CHOIR_TEST_SIZE=1"};
  }
  // A connection, which may be on its way; -1: refused.
  int Call() {
    const int caller =
        socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!connect(caller, plain(), sizeof address_) || errno == EINPROGRESS)
      return caller;
    close(caller);
    return -1;
  }

 private:
  sockaddr* plain() { return reinterpret_cast<sockaddr*>(&address_); }
  sockaddr_in address_ = {};
  int socket_ = -1;
};

void Start(ProcessGroup* group, const Rendezvous& rendezvous, int rank,
           int size, const std::string& id,
           const std::vector<std::string>& more = {}) {
  std::vector<std::string> environment = rendezvous.environment();
  environment.push_back("CHOIR_RANK=" + std::to_string(rank));
  environment.push_back("CHOIR_SIZE=" + std::to_string(size));
  environment.push_back("CHOIR_COMM_ID=" + id);
  environment.insert(environment.end(), more.begin(), more.end());
  group->Start({OwnPath(), OwnFilter()}, environment);
}

void ExpectHeard(const ProcessResult& result, const std::string& pattern) {
  EXPECT_TRUE(choir_testing::Matches(Heard(result), pattern))
      << Heard(result) << "\nis not\n"
      << pattern << "\n"
      << result.output;
}

TEST(CommTcpTest, RanksMeet) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  for (int rank = 2; rank >= 0; --rank) Start(&group, rendezvous, rank, 3, id);
  for (const ProcessResult& result : group.Wait(Patience(60)))
    ExpectHeard(result, "ok: ok");
}

TEST(CommTcpTest, RanksOfOneHostTurnToItsMemory) {
  if (choir_testing::InRank()) return BeRank();
  for (int run = 0; run < 4; ++run) {
    const int hosts = 1 + run % 2;
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    for (int rank = 0; rank < 3; ++rank)
      Start(&group, rendezvous, rank, 3, id,
            {"CHOIR_COMM", "CHOIR_HOST=host" + std::to_string(rank % hosts),
             "CHOIR_TCP_ENCRYPT=" + std::to_string(run / 2),
             std::string("CHOIR_TEST_BACKEND=") + (hosts > 1 ? "tcp" : "shm")});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      ExpectHeard(result, "ok: ok");
  }
}

// Those that a firewall lets pass.
TEST(CommTcpTest, RanksListenAtPortsThatTheyAreGiven) {
  if (choir_testing::InRank()) return BeRank();
  for (const std::string more : {"", "0", "x"}) {
    SCOPED_TRACE(more);
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    const std::string text = rendezvous.text();
    const std::string taken = text.substr(text.find(':') + 1);
    const std::string ports = taken + "-" + taken + more;
    for (int rank = 0; rank < 2; ++rank)
      Start(&group, rendezvous, rank, 2, id, {"CHOIR_PORTS=" + ports});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      ExpectHeard(result,
                  more.empty()
                      ? "unavailable: comm tcp: no port of " + ports +
                            " .CHOIR_PORTS. is free for this rank to listen at"
                      : "invalid argument: comm tcp: CHOIR_PORTS is '" + ports +
                            "'; it must be FIRST-LAST, ports of 1 .. 65535");
  }
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  const std::string text = rendezvous.text();
  const int next = atoi(text.c_str() + text.find(':') + 1) + 1;
  const int first = next < 60000 ? next : next - 5000;
  for (int rank = 0; rank < 3; ++rank)
    Start(&group, rendezvous, rank, 3, id,
          {"CHOIR_PORTS=" + std::to_string(first) + "-" +
           std::to_string(first + 1000)});
  for (const ProcessResult& result : group.Wait(Patience(60)))
    ExpectHeard(result, "ok: ok");
}

// torchrun's names.
TEST(CommTcpTest, OtherLaunchersNamesAreKnown) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  const std::string text = rendezvous.text();
  for (int rank = 0; rank < 2; ++rank)
    Start(&group, rendezvous, rank, 2, id,
          {"CHOIR_RENDEZVOUS", "CHOIR_RANK", "CHOIR_SIZE",
           "RANK=" + std::to_string(rank), "WORLD_SIZE=2",
           "MASTER_ADDR=localhost",
           "MASTER_PORT=" +
               std::to_string(atoi(text.c_str() + text.find(':') + 1) - 1)});
  for (const ProcessResult& result : group.Wait(Patience(60)))
    ExpectHeard(result, "ok: ok");
}

// The names of a step of Slurm's, whose ranks meet on the first node of a list.
TEST(CommTcpTest, SlurmsNamesAreKnown) {
  if (choir_testing::InRank()) return BeRank();
  for (const char* nodes : {"localhost", "localhost,b7", "local[host-9,b],c",
                            "loc[al,7]ho[st-x]"}) {
    SCOPED_TRACE(nodes);
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    const std::string text = rendezvous.text();
    const std::string port = text.substr(text.find(':') + 1);
    for (int rank = 0; rank < 2; ++rank)
      Start(&group, rendezvous, rank, 2, id,
            {"CHOIR_RENDEZVOUS", "CHOIR_RANK", "CHOIR_SIZE",
             "SLURM_PROCID=" + std::to_string(rank), "SLURM_STEP_NUM_TASKS=2",
             std::string("SLURM_STEP_NODELIST=") + nodes,
             "SLURM_STEP_RESV_PORTS=" + port + "-65535"});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      ExpectHeard(result, "ok: ok");
  }
}

// Whoever has another id is not let in, and finds that out at once.
TEST(CommTcpTest, AnotherIdIsNotLetIn) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  Start(&group, rendezvous, 0, 2, id);
  Start(&group, rendezvous, 1, 2, MakeId());
  std::vector<std::string> heard;
  EXPECT_TRUE(group.WaitForOutput(1, "SAYS", Patience(20)));
  // The one with the id comes late.
  Start(&group, rendezvous, 1, 2, id);
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  ExpectHeard(results[0], "ok: ok");
  ExpectHeard(results[1],
              "unavailable: comm tcp: the process that listens at the place of "
              "rank 0 does not know the id of this run, or is of another "
              "start of it");
  ExpectHeard(results[2], "ok: ok");
}

// Nor what is left of an earlier start with the same id, by whichever name.
TEST(CommTcpTest, AnotherStartIsNotLetIn) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  Start(&group, rendezvous, 0, 2, id, {"CHOIR_GENERATION=2"});
  Start(&group, rendezvous, 1, 2, id);
  Start(&group, rendezvous, 1, 2, id, {"CHOIR_GENERATION=1"});
  EXPECT_TRUE(group.WaitForOutput(1, "SAYS", Patience(20)));
  EXPECT_TRUE(group.WaitForOutput(2, "SAYS", Patience(20)));
  Start(&group, rendezvous, 1, 2, id, {"TORCHELASTIC_RESTART_COUNT=2"});
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  ExpectHeard(results[0], "ok: ok");
  for (int old : {1, 2})
    ExpectHeard(results[old],
                "unavailable: comm tcp: the process that listens at the place "
                "of rank 0 does not know the id of this run, or is of another "
                "start of it");
  ExpectHeard(results[3], "ok: ok");
}

TEST(CommTcpTest, RanksThatEncryptMeet) {
  if (choir_testing::InRank()) return BeRank();
  // Directly, and by relay.
  for (int size : {3, 9}) {
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    for (int rank = 0; rank < size; ++rank)
      Start(&group, rendezvous, rank, size, id,
            {"CHOIR_TCP_ENCRYPT=1", "CHOIR_TEST_TIMES=20"});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      EXPECT_TRUE(Contains(result.output, "SAYS ok: ok")) << result.output;
  }
}

TEST(CommTcpTest, AllEncryptOrNone) {
  if (choir_testing::InRank()) return BeRank();
  for (int which : {0, 1}) {
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    for (int rank : {0, 1})
      Start(&group, rendezvous, rank, 2, id,
            {rank == which ? "CHOIR_TCP_ENCRYPT=1" : "CHOIR_TCP_ENCRYPT=0"});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      ExpectHeard(
          result,
          "invalid argument: comm tcp: rank " + std::to_string(which) +
              " encrypts what it sends \\(CHOIR_TCP_ENCRYPT=1\\), rank " +
              std::to_string(1 - which) + " does not; all ranks need the same");
  }
}

// Whoever can write into a connection ends the run, and changes nothing in it.
TEST(CommTcpTest, AForgeryIsTold) {
  if (choir_testing::InRank()) return BeRank();
  for (const char* way : {"0", "1"}) {
    SCOPED_TRACE(way);
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    Start(&group, rendezvous, 0, 2, id,
          {"CHOIR_TCP_ENCRYPT=1", "CHOIR_TEST_TIMES=100000000"});
    Start(&group, rendezvous, 1, 2, id,
          {"CHOIR_TCP_ENCRYPT=1", "CHOIR_TEST_TIMES=100000000",
           std::string("CHOIR_TEST_FORGE=") + way});
    for (const ProcessResult& result : group.Wait(Patience(60)))
      // The watch may see it between two operations.
      EXPECT_TRUE(Contains(
          result.output,
          "internal error: (all_reduce 'met' \\(operation \\d+\\): )?the "
          "message of rank 1 \\(host .+, pid \\d+\\) is none that a rank "
          "sends: "
          "another version of Choir, or bytes that changed on the way"))
          << result.output;
  }
}

TEST(CommTcpTest, WhoIsMissingIsTold) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  const std::string id = MakeId();
  for (int rank : {0, 1, 3})
    Start(&group, rendezvous, rank, 4, id, {"CHOIR_TEST_DEADLINE=2"});
  for (const ProcessResult& result : group.Wait(Patience(60)))
    ExpectHeard(result,
                "deadline exceeded: comm tcp: rank 0 \\(host .+, pid \\d+\\) "
                "waited \\d+\\.\\d s at the start; rank 2 of 4 has not come");
}

TEST(CommTcpTest, NobodyAtTheRendezvousIsTold) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  Start(&group, rendezvous, 1, 2, MakeId(), {"CHOIR_TEST_DEADLINE=1"});
  ExpectHeard(group.Wait(Patience(60))[0],
              "deadline exceeded: comm tcp: rendezvous: rank 1 \\(host .+, pid "
              "\\d+\\) waited \\d+\\.\\d s at the start; rank 0 of 2 has not "
              "come");
}

TEST(CommTcpTest, DifferencesAreToldOnBothSides) {
  if (choir_testing::InRank()) return BeRank();
  const std::string id = MakeId();
  {
    Rendezvous rendezvous;
    ProcessGroup group;
    Start(&group, rendezvous, 0, 2, id);
    Start(&group, rendezvous, 1, 3, id);
    for (const ProcessResult& result : group.Wait(Patience(60)))
      ExpectHeard(result,
                  "invalid argument: comm tcp: rank 0 \\(pid \\d+\\) has size "
                  "2, rank 1 \\(pid \\d+\\) has size 3; all ranks need the "
                  "same");
  }
  Rendezvous rendezvous;
  ProcessGroup group;
  for (int rank : {0, 1, 1}) Start(&group, rendezvous, rank, 3, id);
  int refused = 0;
  for (const ProcessResult& result : group.Wait(Patience(60)))
    refused += Contains(Heard(result),
                        "already exists: comm tcp: rank 1 of this id is there "
                        "already; an id serves one communicator");
  EXPECT_EQ(refused, 3);
}

TEST(CommTcpTest, WrongSettingsAreTold) {
  choir_comm_config_t config;
  ASSERT_OK(choir_comm_config_init(&config));
  config.backend = "tcp";
  config.size = 2;
  choir_comm_t* comm = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "comm tcp: there is no rendezvous; 2 ranks",
                choir_comm_create(&config, &comm));
  snprintf(config.rendezvous, sizeof config.rendezvous, "127.0.0.1:7777");
  EXPECT_STATUS(INVALID_ARGUMENT, "comm tcp: the id has 0 characters",
                choir_comm_create(&config, &comm));
  ASSERT_OK(choir_comm_id_make(&config.id));
  config.rank = 1;
  config.deadline = 1;
  for (const char* wrong : {"7777", ":7777", "host:"}) {
    snprintf(config.rendezvous, sizeof config.rendezvous, "%s", wrong);
    EXPECT_STATUS(INVALID_ARGUMENT, "; HOST:PORT is needed",
                  choir_comm_create(&config, &comm));
  }
  snprintf(config.rendezvous, sizeof config.rendezvous, "no.such.invalid:1");
  EXPECT_STATUS(NOT_FOUND, "comm tcp: the rendezvous no.such.invalid:1: ",
                choir_comm_create(&config, &comm));
  setenv("CHOIR_RENDEZVOUS", std::string(300, 'x').c_str(), 1);
  EXPECT_STATUS(INVALID_ARGUMENT, "the rendezvous has 300 characters",
                choir_comm_config_init(&config));
  unsetenv("CHOIR_RENDEZVOUS");
}

// One that connects and says nothing, something, or the beginning of what a
// rank says; or goes at once.
void Annoy(Rendezvous* rendezvous, std::mt19937* random,
           std::vector<int>* open) {
  const int caller = rendezvous->Call();
  if (caller < 0) return;
  unsigned char bytes[600];
  for (unsigned char& byte : bytes)
    byte = static_cast<unsigned char>((*random)());
  // A hello to rank 0, of which the rest is not right.
  const uint64_t magic = 0x43484f4952544333ull;
  if ((*random)() % 2) {
    memcpy(bytes, &magic, sizeof magic);
    memset(bytes + 48, 0, 4);
  }
  const size_t count = (*random)() % sizeof bytes;
  if ((*random)() % 4)
    (void)!send(caller, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  open->push_back(caller);
  if (open->size() < 100) return;
  close(open->front());
  open->erase(open->begin());
}

// Strangers call where ranks meet, before and while they do.
TEST(CommTcpTest, StrangersAreNotNoticed) {
  if (choir_testing::InRank()) return BeRank();
  Rendezvous rendezvous;
  ProcessGroup group;
  std::mt19937 random(7);
  std::vector<int> open;
  const std::string id = MakeId();
  for (int i = 0; i < 100; ++i) Annoy(&rendezvous, &random, &open);
  Start(&group, rendezvous, 0, 3, id);
  for (int i = 0; i < 400; ++i) Annoy(&rendezvous, &random, &open);
  Start(&group, rendezvous, 2, 3, id);
  for (int i = 0; i < 400; ++i) Annoy(&rendezvous, &random, &open);
  Start(&group, rendezvous, 1, 3, id);
  for (int i = 0; i < 200; ++i) Annoy(&rendezvous, &random, &open);
  for (const ProcessResult& result : group.Wait(Patience(60)))
    ExpectHeard(result, "ok: ok");
  for (int caller : open) close(caller);
}

// A rank that is killed or stopped is told by the others.
// Few ranks send to each other; many pass messages on, so that most wait for
// one that waits itself. All tell the one that it is about.
TEST(CommTcpTest, DeathsAreTold) {
  if (choir_testing::InRank()) return BeRank();
  for (int size : {3, 10}) {
    for (int signal : {SIGKILL, SIGSTOP}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, signal " +
                   std::to_string(signal));
      const char* encrypt =
          size == 3 ? "CHOIR_TCP_ENCRYPT=1" : "CHOIR_TCP_ENCRYPT=0";
      Rendezvous rendezvous;
      ProcessGroup group;
      const std::string id = MakeId();
      std::vector<int> others = {0};
      for (int rank = 2; rank < size; ++rank) others.push_back(rank);
      for (int rank = 0; rank < size; ++rank)
        Start(&group, rendezvous, rank, size, id,
              {"CHOIR_TEST_TIMES=100000000", "CHOIR_TEST_DEADLINE=3", encrypt});
      for (int rank = 0; rank < size; ++rank)
        EXPECT_TRUE(group.WaitForOutput(rank, "joined", Patience(20)));
      group.Signal(1, signal);
      for (int rank : others)
        EXPECT_TRUE(group.WaitForOutput(rank, "SAYS a", Patience(20)) ||
                    group.WaitForOutput(rank, "SAYS deadline", Patience(20)));
      group.Signal(1, SIGKILL);
      const std::vector<ProcessResult> results = group.Wait(Patience(60));
      for (int rank : others)
        EXPECT_TRUE(Contains(
            results[rank].output,
            signal == SIGKILL
                ? "rank 1 \\(host .+, pid \\d+\\) is gone: its process was "
                  "killed or ended too early"
                : "for rank 1 \\(host .+, pid \\d+\\), which has given no "
                  "sign of life for \\d+\\.\\d s"))
            << results[rank].output;
    }
  }
}

TEST(CommTcpTest, ARankThatDoesNotComeIsTold) {
  if (choir_testing::InRank()) return BeRank();
  for (int size : {3, 11}) {
    SCOPED_TRACE(size);
    Rendezvous rendezvous;
    ProcessGroup group;
    const std::string id = MakeId();
    for (int rank = 0; rank < size; ++rank)
      Start(&group, rendezvous, rank, size, id,
            {"CHOIR_TEST_TIMES=20", "CHOIR_TEST_DEADLINE=2",
             std::string(rank == 2 ? "CHOIR_TEST_LATE=4" : "CHOIR_TEST_LATE")});
    const std::vector<ProcessResult> results = group.Wait(Patience(60));
    for (const ProcessResult& result : results)
      EXPECT_TRUE(Contains(
          result.output,
          "for rank 2 \\(host .+, pid \\d+\\), which is alive but has not "
          "come to this operation; it computes since operation 10"))
          << result.output;
  }
}

}  // namespace
