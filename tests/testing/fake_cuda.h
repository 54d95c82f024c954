// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_FAKE_CUDA_H_
#define CHOIR_TESTS_TESTING_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda_driver_internal.h"

namespace choir {
namespace testing {

// A kernel of Choir's compiled for the host: one block of it, all its threads,
// whose struct of `bytes` bytes is at `params`. A list of them in the place of
// a module's image is what the script below can load.
struct HostKernel {
  const char* symbol;
  size_t bytes;
  void (*run)(const void* params, uint32_t block, uint32_t threads);
};
using HostKernels = std::vector<HostKernel>;

// A script in the place of the NVIDIA driver: GPUs whose memory is the host's,
// streams that keep their work until somebody waits for it, and no longer. So
// what a program did not order happens in the wrong order, each time.
//
// It logs calls, can fail a chosen one, and fails the test for what the driver
// would not stand: a call without a context, a copy from or to host memory that
// is not pinned, memory that is freed while work on it is under way, and what
// is left at the end. Kernels run their blocks one after the other.
//
// Streams can be captured, one at a time and none forked off: what they are
// given then becomes nodes of a graph, whose launches are work in a stream's
// queue as any other. Whatever the driver forbids meanwhile fails as there, and
// the capture with it.
//
// One at a time; made before the first device, gone after the last. Threads:
// any.
class FakeCuda {
 public:
  struct Gpu {
    std::string name;
    int major;
    int minor;
    size_t bytes;
  };
  explicit FakeCuda(std::vector<Gpu> gpus = {
                        {"NVIDIA Script", 9, 0, size_t{1} << 30}});
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  void set_version(int version) { version_ = version; }
  // After `skip` more calls of the function the next one returns `result`.
  void FailNext(const std::string& symbol, int result, int skip = 0);
  // Calls of one function so far.
  int Calls(const std::string& symbol) const;
  // Calls that move data or order work since the last question, in words:
  // "record event2 stream1", "wait stream1 event2", "to_device 64 stream1".
  std::vector<std::string> TakeLog();
  void ClearLog() { (void)TakeLog(); }

  // Streams by number, 1, 2, ... in order of creation. A device's own are 1,
  // for copies, and 2, its compute stream.
  choir__cu_stream_t stream(int number);
  // Priority with which it was made.
  int priority(int number);
  // What a kernel launch is: work at the end of a stream's queue. `touches` are
  // addresses of memory that it uses.
  void Launch(int stream, std::function<void()> work,
              std::vector<const void*> touches = {});
  // The same for a script in the place of a library, whose `function` was
  // called with a stream of the driver's: its work in the queue, in the log as
  // "launch <function> stream<number>". Not 0: the result of the call.
  int LaunchFor(const std::string& function, choir__cu_stream_t stream,
                std::function<void()> work, std::vector<const void*> touches);
  // For such scripts: the one there is, or NULL; whether the bytes are memory
  // of the GPU; whether a context is current.
  static FakeCuda* Current() { return self_; }
  bool Holds(const void* memory, size_t bytes) const;
  static bool HasContext();
  // Work that fails when its turn comes; nothing works after that.
  void LaunchFailure(int stream, int result);
  // What a kernel says to end with a failure: CUDA's for it, as soon as the
  // block is done.
  static void FailKernel() { self_->lost_ = 719; }
  // Work that waits in a stream.
  size_t Pending(int stream);

  // ---- For scripts in the place of libraries that launch work ----

  // Held in each of their calls.
  std::recursive_mutex& lock() { return lock_; }
  // The GPU whose context the calling thread has; -1: none.
  int CurrentGpu() const;
  bool IsOnGpu(const void* memory, size_t bytes) const;
  // Work that may have to wait for more than its turn: until `ready`, asked
  // each time. Returns its place in the stream. Who waits for such work on the
  // host lets other threads on meanwhile.
  uint64_t LaunchWhen(choir__cu_stream_t stream, std::function<bool()> ready,
                      std::vector<const void*> touches);
  // Lets the stream get on up to that place; whether it got there.
  bool Advance(choir__cu_stream_t stream, uint64_t place);

  // Now and here: memory of the GPU, in bytes.
  size_t live_bytes() const { return live_bytes_; }
  // Lets the GPU have so many bytes from now on.
  void set_bytes(size_t bytes) { gpus_[0].bytes = bytes; }

 private:
  struct Stream;
  struct Event;
  struct Graph;
  struct Exec;
  // A kernel's launch.
  struct Launched {
    const HostKernel* kernel = nullptr;  // NULL: none
    std::vector<char> params;
    unsigned blocks = 0;
    unsigned threads = 0;
  };
  struct Work {
    std::function<void()> run;
    std::function<bool()> ready;  // may be none
    Stream* awaited = nullptr;    // a wait: until it has done `count`
    uint64_t count = 0;
    std::vector<const void*> touches;
  };
  struct Stream {
    int number = 0;
    int priority = 0;
    bool is_live = true;
    bool is_running = false;
    uint64_t done = 0;
    uint64_t given = 0;
    std::deque<Work> work;
    // While it is captured:
    Graph* graph = nullptr;
    bool is_broken = false;
    std::thread::id thread;
    choir__cu_node_t latest = nullptr;
  };
  // One node. A kernel's parameters may be set anew, other work stays.
  struct Node {
    const Node* origin = nullptr;  // in the graph, of one that can be launched
    Launched launched;
    Work work;
  };
  struct Graph {
    std::list<Node> nodes;
  };
  struct Exec {
    int number = 0;
    std::list<Node> nodes;
  };
  struct Event {
    int number = 0;
    Stream* stream = nullptr;  // NULL: never recorded
    uint64_t count = 0;
    const Graph* graph = nullptr;  // recorded while it was captured
  };

  choir__cuda_driver_t MakeTable();
  // The scripted result of this call; logs it where there is something to say.
  int Begin(const std::string& symbol, bool needs_context,
            const std::string& said = "");
  void Misuse(const std::string& what);
  void Push(Stream* stream, Work work);
  bool RunUntil(Stream* stream, uint64_t count);
  void Await(Stream* stream, uint64_t count);
  bool IsPinned(const void* memory, size_t bytes) const;
  // fake_cuda_graph.cc
  bool CanLaunch(const Launched& launched, unsigned others) const;
  Work WorkOf(const Launched& launched);
  void PushLaunch(Stream* stream, Launched launched);
  void Capture(Stream* stream, Node node);
  int Unsafe();
  int Break(Stream* stream, int result);
  int BeginCapture(Stream* stream, int mode);
  int EndCapture(Stream* stream, Graph** graph);
  int LatestNode(Stream* stream, int* status, const choir__cu_node_t** latest,
                 size_t* count);
  int Instantiate(const Graph* graph, Exec** exec);
  int SetNode(Exec* exec, const Node* node,
              const choir__cu_kernel_params_t* params);
  int LaunchGraph(const Exec* exec, Stream* stream);
  int DestroyExec(Exec* exec);
  int DestroyGraph(Graph* graph);

  static FakeCuda* self_;
  mutable std::recursive_mutex lock_;
  choir__cuda_driver_t table_;
  std::vector<const char*> hidden_;  // variables set to hide libraries
  std::vector<Gpu> gpus_;
  int version_ = 13000;
  int lost_ = 0;  // the result of every call once a kernel failed
  std::vector<std::string> log_;
  std::map<std::string, int> calls_;
  struct Planned {
    int skip;
    int result;
  };
  std::map<std::string, Planned> planned_;
  std::deque<Stream> streams_;  // never moved, kept after their end
  std::set<Stream*> busy_;      // those with work
  std::set<Event*> events_;
  int event_count_ = 0;
  std::map<const void*, size_t> memory_;
  std::map<const void*, size_t> pinned_;
  std::set<Graph*> graphs_;
  std::set<Stream*> captured_;
  std::set<Exec*> execs_;
  int exec_count_ = 0;
  size_t live_bytes_ = 0;
  int contexts_ = 0;
  int modules_ = 0;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_FAKE_CUDA_H_
