// SPDX-License-Identifier: Apache-2.0
// Processes that have no business in a run and lie in wait for its ranks: what
// another user of the machine sees and can do, and what a process without the
// id can. The parent starts ranks and strangers, each this binary again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/clock.h"
#include "dist/comm.h"
#include "dist/memory_file_internal.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Contains;
using choir_testing::Heard;
using choir_testing::MakeId;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Say;

// Nobody's on any machine that we know.
constexpr uid_t kOtherUser = 31337;

std::string Role() {
  const char* role = getenv("CHOIR_TEST_ROLE");
  return role ? role : "";
}

// A rank of two that joins, adds up, and says how it went.
[[noreturn]] void BeRank(double deadline) {
  choir_comm_config_t config;
  choir_status_t status = choir_comm_config_init(&config);
  if (!status) {
    config.backend = "shm";
    config.deadline = deadline;
    choir_comm_t* comm = nullptr;
    status = choir_comm_create(&config, &comm);
    int32_t value = config.rank + 5;
    if (!status)
      status = choir_comm_all_reduce(comm, &value, &value, 1, CHOIR_DTYPE_I32,
                                     CHOIR_REDUCE_SUM, "met");
    if (!status && value != 11)
      status = CHOIR_ERROR(INTERNAL, "the sum is %d", value);
    if (!status) status = choir_comm_finalize(comm);
    choir_comm_release(comm);
  }
  Say(std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status));
  choir_status_free(status);
  _exit(0);
}

// What a rank needs before it accepts a caller.
void LeaveTwoFiles() {
  int fd;
  while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 100)
    if (fd < 0) _exit(1);
  close(fd);
  struct rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(fd) + 2;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void BecomeAnotherUser() {
  if (setresgid(kOtherUser, kOtherUser, kOtherUser) ||
      setresuid(kOtherUser, kOtherUser, kOtherUser)) {
    Say("cannot become another user");
    _exit(0);
  }
}

struct sockaddr_un Address(const std::string& name, socklen_t* bytes) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  *bytes = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + 1 +
                                  name.size());
  return address;
}

int Listen(const std::string& name) {
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t bytes;
  struct sockaddr_un address = Address(name, &bytes);
  if (bind(listener, reinterpret_cast<struct sockaddr*>(&address), bytes) ||
      listen(listener, 8)) {
    Say(std::string("cannot listen: ") + strerror(errno));
    _exit(0);
  }
  return listener;
}

int Connect(const std::string& name) {
  int caller = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t bytes;
  struct sockaddr_un address = Address(name, &bytes);
  if (connect(caller, reinterpret_cast<struct sockaddr*>(&address), bytes)) {
    close(caller);
    return -1;
  }
  return caller;
}

bool Waits(int socket, int milliseconds) {
  struct pollfd ready = {socket, POLLIN, 0};
  return poll(&ready, 1, milliseconds) > 0;
}

std::string Receive(int socket, int milliseconds) {
  std::string text(8192, 0);
  ssize_t bytes = 0;
  if (Waits(socket, milliseconds))
    bytes = recv(socket, &text[0], text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

// One byte with a file, as rank 0 hands over memory.
void SendFile(int socket, int fd) {
  char byte = 'm';
  struct iovec data = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

// Names of sockets that any user can see, those of a process.
std::vector<std::string> NamesOf(pid_t pid) {
  std::vector<std::string> inodes;
  std::error_code error;
  for (auto& entry : std::filesystem::directory_iterator(
           "/proc/" + std::to_string(pid) + "/fd", error)) {
    std::string target =
        std::filesystem::read_symlink(entry.path(), error).string();
    if (target.rfind("socket:[", 0) == 0)
      inodes.push_back(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, inode, name;
    for (int i = 0; i < 6; ++i) words >> word;
    words >> inode >> name;
    if (name.size() > 1 && name[0] == '@' &&
        std::find(inodes.begin(), inodes.end(), inode) != inodes.end())
      names.push_back(name.substr(1));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

class StrangersTest : public ::testing::Test {
 protected:
  // What a process of this test does; the parent goes on in the test.
  void Play(double deadline) {
    if (Role() == "other user's rank") {
      BecomeAnotherUser();
      BeRank(deadline);
    }
    if (Role() == "poor rank") {
      LeaveTwoFiles();
      BeRank(deadline);
    }
    if (Role() == "rank") BeRank(deadline);
  }

  static void Start(ProcessGroup* group, const std::string& role,
                    const std::string& id, int rank,
                    const std::string& name = "") {
    group->Start(
        {choir_testing::OwnPath(), choir_testing::OwnFilter()},
        {"CHOIR_TEST_SIZE=2", "GTEST_COLOR=no", "CHOIR_TEST_ROLE=" + role,
         "CHOIR_TEST_NAME=" + name, "CHOIR_COMM_ID=" + id, "CHOIR_SIZE=2",
         "CHOIR_RANK=" + std::to_string(rank)});
  }

  static std::string Name() { return getenv("CHOIR_TEST_NAME"); }

  // The name at which rank `rank` of `id` listens, and it alone.
  static std::string LearnName(const std::string& id, int rank) {
    ProcessGroup group;
    Start(&group, "rank", id, rank);
    const double end = choir_clock_seconds() + Patience(20);
    std::vector<std::string> names;
    while (names.size() != 1 && choir_clock_seconds() < end) {
      usleep(10000);
      names = NamesOf(group.pid(0));
    }
    if (names.size() == 1) return names[0];
    group.Signal(0, SIGKILL);
    ADD_FAILURE() << "rank " << rank << " listens at " << names.size()
                  << " names; it said: " << group.Wait(Patience(10))[0].output;
    return "";
  }

  static void WaitUntilListening(const ProcessGroup& group, size_t index) {
    const double end = choir_clock_seconds() + Patience(20);
    while (NamesOf(group.pid(index)).empty() && choir_clock_seconds() < end)
      usleep(10000);
  }
};

#define SKIP_UNLESS_ROOT()                        \
  if (!choir_testing::InRank() && geteuid() != 0) \
  GTEST_SKIP() << "only root can start a process of another user here"

TEST_F(StrangersTest, AnotherUsersRank0IsNamed) {
  SKIP_UNLESS_ROOT();
  Play(Patience(20));
  const std::string id = MakeId();  // and that user knows it
  ProcessGroup group;
  Start(&group, "other user's rank", id, 0);
  Start(&group, "rank", id, 1);
  ASSERT_TRUE(group.WaitForOutput(1, "SAYS", Patience(10)));
  const std::string stranger = std::to_string(group.pid(0));
  group.Signal(0, SIGKILL);
  EXPECT_EQ(Heard(group.Wait(Patience(30))[1]),
            "unavailable: comm shm: the place of rank 0 is held by a process "
            "of another user (uid 31337, pid " +
                stranger +
                "): the id can be guessed, or was in use before; a new one "
                "from a launcher or choir_comm_id_make keeps others out");
}

TEST_F(StrangersTest, AnotherUserAtTheOwnPlaceIsNamed) {
  SKIP_UNLESS_ROOT();
  Play(Patience(20));
  const std::string id = MakeId();
  ProcessGroup group;
  Start(&group, "other user's rank", id, 0);
  WaitUntilListening(group, 0);
  Start(&group, "rank", id, 0);
  ASSERT_TRUE(group.WaitForOutput(1, "SAYS", Patience(10)));
  const std::string stranger = std::to_string(group.pid(0));
  group.Signal(0, SIGKILL);
  const std::string said = Heard(group.Wait(Patience(30))[1]);
  EXPECT_TRUE(Contains(said,
                       "^unavailable: comm shm: the place of rank 0 is "
                       "held by a process of another user "
                       "\\(uid 31337, pid " +
                           stranger + "\\)"))
      << said;
}

// A name is all that other users see, before and while ranks wait.
TEST_F(StrangersTest, NamesTellNothing) {
  Play(Patience(20));
  const std::string id = MakeId();
  const std::string names[] = {LearnName(id, 0), LearnName(id, 1)};
  const std::string other = LearnName(MakeId(), 0);
  ASSERT_GE(names[0].size(), 32u);
  for (size_t i = 0; i + 8 <= id.size(); ++i)
    for (const std::string& name : names)
      EXPECT_EQ(name.find(id.substr(i, 8)), std::string::npos)
          << "the name " << name << " shows a part of the id " << id;
  for (const std::string& second : {names[1], other}) {
    int same = 0;
    for (size_t i = names[0].size() - 32; i < names[0].size(); ++i)
      same += names[0][i] == second[i];
    EXPECT_LT(same, 16) << names[0] << " and " << second;
  }
  EXPECT_EQ(LearnName(id, 0), names[0]);
}

TEST_F(StrangersTest, NothingIsToldToAnotherUser) {
  SKIP_UNLESS_ROOT();
  Play(Patience(20));
  if (Role() == "listener") {
    BecomeAnotherUser();
    int listener = Listen(Name());
    printf("READY\n");
    fflush(stdout);
    if (!Waits(listener, 20000)) {
      Say("nobody called");
      _exit(0);
    }
    int caller = accept(listener, nullptr, nullptr);
    Say("was told " + std::to_string(Receive(caller, 3000).size()) + " bytes");
    _exit(0);
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "listener", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(0, "READY", Patience(20)));
  Start(&group, "rank", id, 1);
  std::vector<ProcessResult> results = group.Wait(Patience(40));
  EXPECT_EQ(Heard(results[0]), "was told 0 bytes");
  EXPECT_TRUE(Contains(Heard(results[1]), "uid 31337")) << Heard(results[1]);
}

// Of the same user as far as the kernel tells, as are all users that a
// container does not know: the id is what counts.
TEST_F(StrangersTest, AListenerWithoutTheIdGetsNowhere) {
  Play(Patience(20));
  if (Role() == "listener") {
    int listener = Listen(Name());
    printf("READY\n");
    fflush(stdout);
    if (!Waits(listener, 20000)) _exit(1);
    int caller = accept(listener, nullptr, nullptr);
    std::string told = Receive(caller, 3000);
    // The same back, then memory that can be taken away again.
    send(caller, told.data(), told.size(), MSG_NOSIGNAL);
    int memory = memfd_create("choir", 0);
    if (ftruncate(memory, 64 << 20)) _exit(1);
    SendFile(caller, memory);
    std::string more = Receive(caller, 1000);
    const std::string id = getenv("CHOIR_COMM_ID");
    std::string key;
    for (size_t i = 0; i < id.size(); i += 2)
      key += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
    bool shown = false;
    for (const std::string& secret : {id.substr(0, 16), key.substr(0, 8)})
      shown = shown || (told + more).find(secret) != std::string::npos;
    Say("the id was " + std::string(shown ? "" : "not ") + "shown, " +
        std::to_string(more.size()) + " bytes more");
    _exit(0);
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "listener", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(0, "READY", Patience(20)));
  const std::string stranger = std::to_string(group.pid(0));
  Start(&group, "rank", id, 1);
  std::vector<ProcessResult> results = group.Wait(Patience(40));
  EXPECT_EQ(Heard(results[0]), "the id was not shown, 0 bytes more");
  EXPECT_EQ(Heard(results[1]),
            "unavailable: comm shm: the place of rank 0 is held by a process "
            "that does not know the id (uid " +
                std::to_string(geteuid()) + ", pid " + stranger + ")");
}

TEST_F(StrangersTest, CallersWithoutTheIdDisturbNobody) {
  Play(Patience(30));
  if (Role() == "callers") {
    const std::string noise(700, 'x');
    std::vector<int> sockets;
    for (int i = 0; i < 60; ++i) {
      // Half of them by another user, where that can be.
      if (i == 30 && geteuid() == 0) BecomeAnotherUser();
      int caller = Connect(Name());
      if (caller < 0) {
        usleep(1000);
        continue;
      }
      send(caller, noise.data(), noise.size() - static_cast<size_t>(i),
           MSG_NOSIGNAL);
      // What the listener answers, back to it.
      std::string told = Receive(caller, 20);
      if (!told.empty()) send(caller, told.data(), told.size(), MSG_NOSIGNAL);
      sockets.push_back(caller);
    }
    printf("CALLED %zu\n", sockets.size());
    fflush(stdout);
    for (int i = 0; i < 20; ++i) {
      int caller = Connect(Name());
      if (caller >= 0) close(caller);
      usleep(20000);
    }
    _exit(0);
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "rank", id, 0);
  WaitUntilListening(group, 0);
  Start(&group, "callers", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(1, "CALLED", Patience(30)));
  Start(&group, "rank", id, 1);
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  EXPECT_FALSE(Contains(results[1].output, "CALLED 0")) << "nobody got through";
  EXPECT_EQ(Heard(results[0]), "ok: ok");
  EXPECT_EQ(Heard(results[2]), "ok: ok");
}

// They take all places there are, and say nothing.
TEST_F(StrangersTest, SilentCallersDisturbNobody) {
  Play(Patience(30));
  if (Role() == "callers") {
    int count = 0;
    for (int i = 0; i < 5; ++i) count += Connect(Name()) >= 0;
    printf("CALLED %d\n", count);
    fflush(stdout);
    for (;;) pause();
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "rank", id, 0);
  WaitUntilListening(group, 0);
  Start(&group, "callers", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(1, "CALLED 5", Patience(30)));
  Start(&group, "rank", id, 1);
  ASSERT_TRUE(group.WaitForOutput(2, "SAYS", Patience(40)));
  group.Signal(1, SIGKILL);
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  EXPECT_EQ(Heard(results[0]), "ok: ok");
  EXPECT_EQ(Heard(results[2]), "ok: ok");
}

// Another user, who keeps calling.
TEST_F(StrangersTest, AFloodOfCallsDisturbsNobody) {
  SKIP_UNLESS_ROOT();
  Play(Patience(30));
  if (Role() == "flood") {
    BecomeAnotherUser();
    printf("CALLING\n");
    fflush(stdout);
    std::vector<int> sockets;
    for (;;) {
      const int caller = Connect(Name());
      if (caller >= 0) sockets.push_back(caller);
      if (caller < 0 || sockets.size() > 500) {
        for (int socket : sockets) close(socket);
        sockets.clear();
      }
    }
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "rank", id, 0);
  WaitUntilListening(group, 0);
  for (int i = 0; i < 2; ++i) Start(&group, "flood", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(2, "CALLING", Patience(20)));
  Start(&group, "rank", id, 1);
  ASSERT_TRUE(group.WaitForOutput(3, "SAYS", Patience(40)));
  for (size_t i : {1, 2}) group.Signal(i, SIGKILL);
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  EXPECT_EQ(Heard(results[0]), "ok: ok");
  EXPECT_EQ(Heard(results[3]), "ok: ok");
}

TEST_F(StrangersTest, ASilentListenerIsNamed) {
  Play(Patience(3));
  if (Role() == "listener") {
    const int listener = Listen(Name());
    printf("READY\n");
    fflush(stdout);
    if (Waits(listener, 20000)) accept(listener, nullptr, nullptr);
    for (;;) pause();
  }
  const std::string id = MakeId();
  const std::string name = LearnName(id, 0);
  ProcessGroup group;
  Start(&group, "listener", id, 0, name);
  ASSERT_TRUE(group.WaitForOutput(0, "READY", Patience(20)));
  const std::string stranger = std::to_string(group.pid(0));
  Start(&group, "rank", id, 1);
  ASSERT_TRUE(group.WaitForOutput(1, "SAYS", Patience(20)));
  group.Signal(0, SIGKILL);
  const std::string said = Heard(group.Wait(Patience(40))[1]);
  EXPECT_TRUE(Contains(
      said,
      "^deadline exceeded: comm shm: rank 1 \\(host .+, pid \\d+\\) waited "
      ".+ s at the start; rank 0 of 2 has not come; the process at the place "
      "of rank 0 does not answer \\(uid " +
          std::to_string(geteuid()) + ", pid " + stranger + "\\)$"))
      << said;
}

// With a limit on files that leaves none for a peer.
TEST_F(StrangersTest, TooFewFilesForACallerIsTold) {
  Play(Patience(5));
  const std::string id = MakeId();
  ProcessGroup group;
  Start(&group, "poor rank", id, 0);
  Start(&group, "rank", id, 1);
  EXPECT_EQ(Heard(group.Wait(Patience(40))[0]),
            "unavailable: comm shm: too few file descriptors: each rank needs "
            "one per peer; raise the limit (ulimit -n)");
}

// ---- Memory ----

TEST(MemoryFileTest, SizeCannotChange) {
  int fd = -1;
  ASSERT_EQ(choir__memory_file_create("choir-test", 8192, &fd), nullptr);
  struct stat info;
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(info.st_size, 8192);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 16384), 0);
  choir_status_t status = choir__memory_file_check(fd, 8192);
  EXPECT_EQ(status, nullptr) << choir_status_message(status);
  status = choir__memory_file_check(fd, 8193);
  EXPECT_STREQ(choir_status_message(status),
               "shared memory: what was handed over is not 8193 bytes of "
               "memory of a fixed size");
  choir_status_free(status);
  close(fd);
}

TEST(MemoryFileTest, OthersAreRefused) {
  int unsealed = memfd_create("choir-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 8192), 0);
  int half = memfd_create("choir-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(half, 8192), 0);
  ASSERT_EQ(fcntl(half, F_ADD_SEALS, F_SEAL_GROW), 0);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {unsealed, half, null, -1}) {
    choir_status_t status = choir__memory_file_check(fd, 4096);
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    choir_status_free(status);
  }
  for (int fd : {unsealed, half, null}) close(fd);
}

}  // namespace
