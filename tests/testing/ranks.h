// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_RANKS_H_
#define CHOIR_TESTS_TESTING_RANKS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/device.h"

// Tests of several processes. A test runs twice: first in the process that
// Bazel started, where it starts this binary again once per rank with a filter
// for the same test; then in each rank.
//
//   TEST(BarrierTest, ReturnsOnAllRanks) {
//     if (choir_testing::RunRanks("shm", 3)) return;  // the parent is done
//     ...  // what each rank does
//   }
//
// Backend "mpi" goes through mpiexec, all others start processes directly. A
// time limit guards against a hang; it is no part of what is tested.

namespace choir_testing {

// True in a process that was started for a rank.
bool InRank();
int Rank();
int Size();

// A folder with a short name that goes with the object.
class ShortTemporaryFolder {
 public:
  ShortTemporaryFolder();
  ~ShortTemporaryFolder();
  ShortTemporaryFolder(const ShortTemporaryFolder&) = delete;
  ShortTemporaryFolder& operator=(const ShortTemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct ProcessResult {
  bool ended = false;    // by itself within the time limit
  int exit_status = -1;  // or 128 + signal
  double seconds = 0;    // from the start of the group to its end
  std::string output;    // of both streams
};

// Processes with captured output. Those still there at the end of the object's
// life are killed, with all that they started.
class ProcessGroup {
 public:
  ProcessGroup() = default;
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // `environment` has entries "NAME=value"; "NAME" alone removes it.
  void Start(const std::vector<std::string>& arguments,
             const std::vector<std::string>& environment);
  size_t size() const { return processes_.size(); }
  pid_t pid(size_t index) const { return processes_[index].pid; }
  // What it has said so far.
  const std::string& output(size_t index) const {
    return processes_[index].result.output;
  }
  void Signal(size_t index, int signal_number);
  // Waits until `text` is in the output of a process.
  bool WaitForOutput(size_t index, const std::string& text, double seconds);
  // Waits for all; kills the rest after `seconds`.
  std::vector<ProcessResult> Wait(double seconds);

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;
    bool reaped = false;
    ProcessResult result;
  };
  void Pump(int timeout_ms);
  double started_ = 0;
  std::vector<Process> processes_;
};

// For a rank over NCCL the GPU that it works on, which ranks share where there
// are not enough; else NULL.
choir_status_t OpenNcclGpu(choir_device_t** out_gpu);

// Starts the ranks of the running test. For "mpi" it is one process, mpiexec;
// "auto+mpi" is that with Choir's choice of the backend.
void StartRanks(ProcessGroup* group, const std::string& backend, int size,
                const std::vector<std::string>& environment = {},
                const std::string& filter = "");

// Arguments and environment of mpiexec for `size` ranks, without the program.
std::vector<std::string> MpiexecArguments(int size);
std::vector<std::string> MpiexecEnvironment();
// This binary, and the filter for the running test.
std::string OwnPath();
std::string OwnFilter();

// In the parent: runs all ranks, expects each to pass, returns true. In a
// rank: returns false.
bool RunRanks(const std::string& backend, int size, double time_limit = 100,
              const std::vector<std::string>& environment = {});

// The same for many tests with one start of the ranks, where starting takes
// long (mpiexec): the first test runs all that match `filter`, and each looks
// for its own result.
bool RunRanksTogether(const std::string& backend, int size,
                      const std::string& filter, double time_limit = 200);

// Whether all of `text` (or, with Contains, a part of it) fits the extended
// regular expression, in which "\\d" is a digit. (std::regex does not build
// under gcc's sanitizers without warnings.)
bool Matches(const std::string& text, const std::string& pattern);
bool Contains(const std::string& text, const std::string& pattern);

// A line of a rank for its parent, in one write, as ranks may share a pipe.
void Say(const std::string& text);
// The first one of that rank, in any process's output; of this process.
std::string Heard(const std::vector<ProcessResult>& results, int rank);
std::string Heard(const ProcessResult& result);

// 32 random hexadecimal digits.
std::string MakeId();

// Starts a family of processes that end only by SIGKILL: a child, a child of
// it, one in a session of its own, and one whose parent has ended and whose
// environment is empty. `mark` is in the command lines of these four.
void StartFamily(const std::string& mark);
constexpr size_t kFamilySize = 4;
// Those that run with `mark` in their command line or environment.
std::vector<pid_t> ProcessesWith(const std::string& mark);
// Whether there are `least` to `most` such processes, within `seconds`.
bool WaitForProcesses(const std::string& mark, size_t least, size_t most,
                      double seconds);

// What is left of a fixed seconds value under a sanitizer's slowness.
double Patience(double seconds);

}  // namespace choir_testing

#endif  // CHOIR_TESTS_TESTING_RANKS_H_
