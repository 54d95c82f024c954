// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_FAKE_NCCL_H_
#define CHOIR_TESTS_TESTING_FAKE_NCCL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dist/backends/nccl/nccl_library_internal.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// A script in the place of NCCL, for ranks that are threads of one process,
// each with a GPU of the script in the place of the driver. Its collectives are
// work in the streams of that: they move bytes when all ranks' streams have
// come to them, and sum from the last rank to the first.
//
// What it is told it does as late as NCCL may: the calls return before, and
// only who asks for the state twice finds the work in the stream. It can fail a
// chosen call and fails the test for what NCCL would not stand: calls without a
// context or on a communicator that has ended, one that blocks, memory that is
// no GPU's, an end with work under way, and what is left.
class FakeNccl {
 public:
  explicit FakeNccl(FakeCuda* cuda);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  // After `skip` more calls of the function the next one returns `result`.
  void FailNext(const std::string& symbol, int result, int skip = 0);
  int Calls(const std::string& symbol) const;
  // The GPU of this rank comes to no operation any more.
  void Hold(int rank);
  // What the rank's communicator says of its state from now on.
  void SetState(int rank, int result);
  int version() const { return version_; }
  void set_version(int version) { version_ = version; }
  // Calls of a rank since the last question: "all_reduce 33 f32", "group of 2".
  std::vector<std::string> TakeLog(int rank);

 private:
  struct Job {
    std::string kind;
    const void* src = nullptr;
    void* dst = nullptr;
    size_t count = 0;
    int type = 0;
    int op = 0;
    int peer = 0;         // or the root
    uint64_t number = 0;  // of its kind, or of its pair
    bool is_done = false;
  };
  struct Launch {
    std::vector<std::shared_ptr<Job>> jobs;
    choir__cu_stream_t stream = nullptr;
    uint64_t place = 0;
    bool has_arrived = false;
    bool is_done = false;
  };
  struct World;
  struct Comm {
    World* world = nullptr;
    int rank = 0;
    int gpu = 0;
    bool is_gone = false;
    bool is_aborted = false;
    bool is_finalized = false;
    int state = 0;
    int polls = 0;  // until what it was told is done
    std::vector<std::shared_ptr<Launch>> unlaunched;
    std::vector<std::shared_ptr<Launch>> launches;
    uint64_t collectives = 0;
    std::map<int, uint64_t> sent;
    std::map<int, uint64_t> received;
    std::vector<double> scalars;  // of made reductions
    int open_ops = 0;
    std::vector<std::string> log;
  };
  struct World {
    int size = 0;
    std::vector<Comm*> comms;
  };

  choir__nccl_library_t MakeTable();
  int Begin(const std::string& symbol);
  int Enter(const std::string& symbol, Comm* comm);
  void Misuse(const std::string& what);
  int Add(const std::string& symbol, Comm* comm, choir__cu_stream_t stream,
          Job job, size_t src_parts, size_t dst_parts);
  void Submit(Comm* comm);
  bool IsReady(Comm* comm, Launch* launch);
  bool Complete(Comm* comm, Job* job);
  Job* Find(Comm* comm, const std::string& kind, uint64_t number, int peer);
  void Reduce(World* world, const std::vector<Job*>& jobs, size_t from,
              size_t count, void* dst);

  static FakeNccl* self_;
  FakeCuda* cuda_;
  choir__nccl_library_t table_;
  int version_ = 22809;
  int next_id_ = 0;
  std::map<std::string, int> calls_;
  struct Planned {
    int skip;
    int result;
  };
  std::map<std::string, Planned> planned_;
  std::map<std::string, World> worlds_;
  std::deque<Comm> comms_;  // never moved
  std::set<int> held_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_FAKE_NCCL_H_
