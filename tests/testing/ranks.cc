// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/clock.h"
#include "core/gpu.h"

extern char** environ;

namespace choir_testing {
namespace {

const char kMark[] = "CHOIR_TEST_SIZE";

int ReadNumber(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

std::string CurrentTestName() {
  const ::testing::TestInfo* info =
      ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

// Bazel's own variables would make each rank write the parent's report, or
// run another shard.
const std::vector<std::string>& RemovedVariables() {
  static const std::vector<std::string> names = {
      "XML_OUTPUT_FILE",         "GTEST_OUTPUT",
      "TEST_TOTAL_SHARDS",       "TEST_SHARD_INDEX",
      "TEST_SHARD_STATUS_FILE",  "GTEST_TOTAL_SHARDS",
      "GTEST_SHARD_INDEX",       "TESTBRIDGE_TEST_ONLY",
      "TEST_PREMATURE_EXIT_FILE"};
  return names;
}

std::vector<std::string> MakeEnvironment(
    const std::vector<std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) result.push_back(*entry);
  auto remove = [&result](const std::string& name) {
    auto is_named = [&name](const std::string& entry) {
      return entry.compare(0, name.size() + 1, name + "=") == 0;
    };
    result.erase(std::remove_if(result.begin(), result.end(), is_named),
                 result.end());
  };
  for (const std::string& name : RemovedVariables()) remove(name);
  // The last one counts.
  for (const std::string& change : changes) {
    remove(change.substr(0, change.find('=')));
    if (change.find('=') != std::string::npos) result.push_back(change);
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> result;
  for (std::string& text : *texts) result.push_back(&text[0]);
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string OwnPath() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string OwnFilter() { return "--gtest_filter=" + CurrentTestName(); }

bool InRank() { return getenv(kMark) != nullptr; }

int Rank() {
  return ReadNumber("CHOIR_RANK", ReadNumber("OMPI_COMM_WORLD_RANK", 0));
}

int Size() { return ReadNumber(kMark, 1); }

double Patience(double seconds) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 5 * seconds;
#else
  return seconds;
#endif
}

bool Contains(const std::string& text, const std::string& pattern) {
  std::string posix = pattern;
  for (size_t at; (at = posix.find("\\d")) != std::string::npos;)
    posix.replace(at, 2, "[0-9]");
  regex_t regex;
  if (regcomp(&regex, posix.c_str(), REG_EXTENDED | REG_NOSUB)) {
    ADD_FAILURE() << "bad pattern: " << posix;
    return false;
  }
  bool found = !regexec(&regex, text.c_str(), 0, nullptr, 0);
  regfree(&regex);
  return found;
}

bool Matches(const std::string& text, const std::string& pattern) {
  return Contains(text, "^(" + pattern + ")$");
}

void Say(const std::string& text) {
  const std::string line =
      "\nRANK " + std::to_string(Rank()) + " SAYS " + text + "\n";
  EXPECT_EQ(write(1, line.data(), line.size()),
            static_cast<ssize_t>(line.size()));
}

namespace {

// What follows `mark` in its line; "": it is not there.
std::string LineAfter(const std::string& output, const std::string& mark) {
  size_t at = output.find(mark);
  if (at == std::string::npos) return "";
  at += mark.size();
  return output.substr(at, output.find_first_of("\r\n", at) - at);
}

}  // namespace

std::string Heard(const std::vector<ProcessResult>& results, int rank) {
  for (const ProcessResult& result : results) {
    const std::string line =
        LineAfter(result.output, "RANK " + std::to_string(rank) + " SAYS ");
    if (!line.empty()) return line;
  }
  return "(nothing)";
}

std::string Heard(const ProcessResult& result) {
  const std::string line = LineAfter(result.output, " SAYS ");
  return line.empty() ? "(nothing) " + result.output : line;
}

std::string MakeId() {
  unsigned char bytes[16] = {0};
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return "";
  std::string id;
  for (unsigned char byte : bytes) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", byte);
    id += digits;
  }
  return id;
}

namespace {

std::string ReadFile(const std::string& path) {
  std::string text;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (ssize_t bytes; (bytes = read(fd, part, sizeof(part))) > 0;)
    text.append(part, static_cast<size_t>(bytes));
  close(fd);
  return text;
}

}  // namespace

void StartFamily(const std::string& mark) {
  // $0 of each shell is the mark; its child beside it is a plain sleep.
  const std::string script =
      "trap '' TERM INT HUP; "
      "sh -c 'while :; do sleep 1000; done' $0 & "
      "setsid sh -c 'while :; do sleep 1000; done' $0 & "
      "(env -i sh -c 'trap \"\" TERM; while :; do /bin/sleep 1000; done' $0 "
      "&); "
      "while :; do sleep 1000; done";
  pid_t pid = fork();
  if (pid == 0) {
    execlp("sh", "sh", "-c", script.c_str(), mark.c_str(), nullptr);
    _exit(127);
  }
  ASSERT_GT(pid, 0);
}

std::vector<pid_t> ProcessesWith(const std::string& mark) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    const std::string folder = entry.path().string();
    pid_t pid = atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    // Of what has ended and is not reaped both are empty.
    if (ReadFile(folder + "/cmdline").find(mark) != std::string::npos ||
        ReadFile(folder + "/environ").find(mark) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

bool WaitForProcesses(const std::string& mark, size_t least, size_t most,
                      double seconds) {
  double end = choir_clock_seconds() + seconds;
  for (;;) {
    size_t count = ProcessesWith(mark).size();
    if (count >= least && count <= most) return true;
    if (choir_clock_seconds() > end) return false;
    usleep(10000);
  }
}

ShortTemporaryFolder::ShortTemporaryFolder() {
  char name[] = "/tmp/choirXXXXXX";
  const char* made = mkdtemp(name);
  path_ = made ? made : "";
}

ShortTemporaryFolder::~ShortTemporaryFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

ProcessGroup::~ProcessGroup() {
  for (Process& process : processes_) {
    if (!process.reaped) {
      kill(-process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
    }
    if (process.output >= 0) close(process.output);
  }
}

void ProcessGroup::Start(const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  if (processes_.empty()) started_ = choir_clock_seconds();
  std::vector<std::string> argument_texts = arguments;
  std::vector<std::string> environment_texts = MakeEnvironment(environment);
  std::vector<char*> argv = Pointers(&argument_texts);
  std::vector<char*> envp = Pointers(&environment_texts);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    setpgid(0, 0);
    // Under `sh &` these may be ignored, which a child would inherit.
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  ASSERT_GT(pid, 0);
  setpgid(pid, pid);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Process process;
  process.pid = pid;
  process.output = ends[0];
  processes_.push_back(process);
}

void ProcessGroup::Signal(size_t index, int signal_number) {
  if (!processes_[index].reaped) kill(processes_[index].pid, signal_number);
}

// Reads what there is, waits at most `timeout_ms` for more, notes ends.
void ProcessGroup::Pump(int timeout_ms) {
  std::vector<struct pollfd> polls;
  for (const Process& process : processes_)
    polls.push_back({process.output, POLLIN, 0});
  poll(polls.data(), polls.size(), timeout_ms);
  for (Process& process : processes_) {
    int status = 0;
    if (!process.reaped && waitpid(process.pid, &status, WNOHANG) > 0) {
      process.reaped = true;
      process.result.ended = true;
      process.result.exit_status =
          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      process.result.seconds = choir_clock_seconds() - started_;
    }
    char text[4096];
    ssize_t bytes = 0;
    while (process.output >= 0 &&
           (bytes = read(process.output, text, sizeof(text))) > 0)
      process.result.output.append(text, static_cast<size_t>(bytes));
    if (process.output >= 0 && bytes == 0) {
      close(process.output);
      process.output = -1;
    }
  }
}

bool ProcessGroup::WaitForOutput(size_t index, const std::string& text,
                                 double seconds) {
  double end = choir_clock_seconds() + seconds;
  for (;;) {
    Pump(10);
    if (processes_[index].result.output.find(text) != std::string::npos)
      return true;
    if (processes_[index].reaped || choir_clock_seconds() > end) return false;
  }
}

std::vector<ProcessResult> ProcessGroup::Wait(double seconds) {
  double end = choir_clock_seconds() + seconds;
  bool running = true;
  while (running && choir_clock_seconds() < end) {
    Pump(20);
    running = false;
    for (const Process& process : processes_)
      running = running || !process.reaped;
  }
  for (Process& process : processes_) {
    if (process.reaped) continue;
    kill(-process.pid, SIGKILL);
    int status;
    waitpid(process.pid, &status, 0);
    process.reaped = true;
    process.result.exit_status = 128 + SIGKILL;
    process.result.seconds = choir_clock_seconds() - started_;
  }
  Pump(0);
  std::vector<ProcessResult> results;
  for (const Process& process : processes_) results.push_back(process.result);
  return results;
}

std::vector<std::string> MpiexecArguments(int size) {
  return {"mpiexec", "--oversubscribe",   "--bind-to", "none",
          "-n",      std::to_string(size)};
}

std::vector<std::string> MpiexecEnvironment() {
  // Open MPI names its folder in TMPDIR and its memory in /dev/shm by process
  // id. Bazel's sandboxes share both but number processes each for itself, so
  // two tests at a time would meet: each gets a folder of its own, with a
  // short name, as paths of sockets have 108 characters at most.
  static const ShortTemporaryFolder folder;
  std::vector<std::string> result = {
      "TMPDIR=" + folder.path(),
      "OMPI_MCA_btl_vader_backing_directory=" + folder.path(),
      "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  std::error_code error;
  auto plugin = std::filesystem::canonical("libchoir_mpi.so", error);
  if (!error) result.push_back("CHOIR_MPI_LIBRARY=" + plugin.string());
  return result;
}

// A socket that ranks inherit, and where it is.
static int ListenForRanks(std::vector<std::string>* environment) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  sockaddr* plain = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, plain, bytes), 0);
  EXPECT_EQ(listen(listener, 128), 0);
  EXPECT_EQ(getsockname(listener, plain, &bytes), 0);
  environment->push_back("CHOIR_RENDEZVOUS=127.0.0.1:" +
                         std::to_string(ntohs(address.sin_port)));
  environment->push_back("CHOIR_RENDEZVOUS_FD=" + std::to_string(listener));
  return listener;
}

static int32_t GpuCount() {
  int32_t count = 0;
  choir_status_free(choir_gpu_count(&count));
  return count;
}

choir_status_t OpenNcclGpu(choir_device_t** out_gpu) {
  *out_gpu = nullptr;
  const char* backend = getenv("CHOIR_COMM");
  const char* rank = getenv("CHOIR_RANK");
  if (!backend || strcmp(backend, "nccl") != 0 || !rank) return nullptr;
  choir_device_options_t options = {};
  options.threads = 1;
  options.index = atoi(rank) % std::max(GpuCount(), 1);
  return choir_device_create("cuda", &options, out_gpu);
}

void StartRanks(ProcessGroup* group, const std::string& backend, int size,
                const std::vector<std::string>& environment,
                const std::string& filter) {
  std::string own_filter =
      filter.empty() ? OwnFilter() : "--gtest_filter=" + filter;
  std::vector<std::string> common = environment;
  common.push_back(std::string(kMark) + "=" + std::to_string(size));
  common.push_back("GTEST_COLOR=no");
  bool chooses = backend == "auto+mpi";
  common.push_back("CHOIR_COMM=" + (chooses ? "auto" : backend));
  if (backend == "mpi" || chooses) {
    for (const std::string& entry : MpiexecEnvironment())
      common.push_back(entry);
    std::vector<std::string> arguments = MpiexecArguments(size);
    arguments.push_back(OwnPath());
    arguments.push_back(own_filter);
    group->Start(arguments, common);
    return;
  }
  std::string id = MakeId();
  // No other process can take the port before rank 0 listens there.
  const int listener = backend == "tcp" ? ListenForRanks(&common) : -1;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> own = common;
    own.push_back("CHOIR_RANK=" + std::to_string(rank));
    own.push_back("CHOIR_SIZE=" + std::to_string(size));
    own.push_back("CHOIR_COMM_ID=" + id);
    if (backend == "nccl" && GpuCount() < size) {
      // NCCL refuses two ranks of one host on one GPU.
      own.push_back("NCCL_HOSTID=" + std::to_string(rank));
      own.push_back("NCCL_SOCKET_IFNAME=lo");
    }
    group->Start({OwnPath(), own_filter}, own);
  }
  if (listener >= 0) close(listener);
}

static int Count(const std::vector<ProcessResult>& results,
                 const std::string& mark) {
  int count = 0;
  for (const ProcessResult& result : results)
    for (size_t at = result.output.find(mark); at != std::string::npos;
         at = result.output.find(mark, at + 1))
      ++count;
  return count;
}

bool RunRanks(const std::string& backend, int size, double time_limit,
              const std::vector<std::string>& environment) {
  if (InRank()) return false;
  ProcessGroup group;
  StartRanks(&group, backend, size, environment);
  std::vector<ProcessResult> results = group.Wait(Patience(time_limit));
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].ended) << "process " << i << " hung";
    EXPECT_EQ(results[i].exit_status, 0) << "process " << i << " said:\n"
                                         << results[i].output;
  }
  // A filter that matched nothing would pass too.
  EXPECT_EQ(Count(results, "[  PASSED  ] 1 test."), size)
      << "ranks that ran the test";
  return true;
}

bool RunRanksTogether(const std::string& backend, int size,
                      const std::string& filter, double time_limit) {
  if (InRank()) return false;
  static std::map<std::string, std::vector<ProcessResult>> all;
  std::vector<ProcessResult>& results = all[backend + filter];
  if (results.empty()) {
    ProcessGroup group;
    StartRanks(&group, backend, size, {}, filter);
    results = group.Wait(Patience(time_limit));
    for (const ProcessResult& result : results)
      EXPECT_TRUE(result.ended && result.exit_status == 0)
          << "ended: " << result.ended << ", exit " << result.exit_status
          << ", said:\n"
          << result.output;
  }
  // "[       OK ] Suite.Test (3 ms)", on every rank.
  EXPECT_EQ(Count(results, " OK ] " + CurrentTestName() + " ("), size)
      << "ranks that passed " << CurrentTestName();
  return true;
}

}  // namespace choir_testing
