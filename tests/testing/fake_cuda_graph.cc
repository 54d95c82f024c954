// SPDX-License-Identifier: Apache-2.0
// The script's graphs: capture of one stream, nodes, launches.
#include <cstring>
#include <utility>

#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {
namespace {

enum {
  kInvalidValue = 1,
  kIllegalState = 401,
  kUnsupported = 900,
  kInvalidated = 901,
  kWrongThread = 908,
};
enum { kThreadLocal = 1 };
enum { kNone = 0, kActive = 1, kBroken = 2 };

}  // namespace

// ---- Kernels ----

// others: the product of all other sizes.
bool FakeCuda::CanLaunch(const Launched& launched, unsigned others) const {
  return launched.blocks >= 1 && launched.threads >= 1 &&
         launched.threads <= 1024 && others == 1;
}

FakeCuda::Work FakeCuda::WorkOf(const Launched& launched) {
  Work work;
  // Whatever looks like an address of the GPU's memory is one.
  for (size_t at = 0; at + sizeof(void*) <= launched.params.size();
       at += sizeof(void*)) {
    const void* place;
    std::memcpy(&place, &launched.params[at], sizeof(place));
    if (IsOnGpu(place, 1)) work.touches.push_back(place);
  }
  work.run = [this, launched] {
    for (uint32_t i = 0; i < launched.blocks && lost_ == 0; ++i)
      launched.kernel->run(launched.params.data(), i, launched.threads);
  };
  return work;
}

void FakeCuda::PushLaunch(Stream* stream, Launched launched) {
  if (!stream->graph) {
    Push(stream, WorkOf(launched));
    return;
  }
  Node node;
  node.work = WorkOf(launched);
  node.launched = std::move(launched);
  Capture(stream, std::move(node));
}

// ---- Capture ----

void FakeCuda::Capture(Stream* stream, Node node) {
  if (node.work.awaited || node.work.ready)
    Misuse("the script captures no work that waits");
  stream->graph->nodes.push_back(std::move(node));
  stream->latest =
      reinterpret_cast<choir__cu_node_t>(&stream->graph->nodes.back());
}

int FakeCuda::Break(Stream* stream, int result) {
  stream->is_broken = true;
  return result;
}

int FakeCuda::Unsafe() {
  int result = 0;
  for (Stream* stream : captured_)
    if (stream->thread == std::this_thread::get_id())
      result = Break(stream, kUnsupported);
  return result;
}

int FakeCuda::BeginCapture(Stream* stream, int mode) {
  if (stream->graph) return kIllegalState;
  if (mode != kThreadLocal)
    Misuse("a capture that is in the way of other threads, or unprotected");
  stream->graph = new Graph;
  graphs_.insert(stream->graph);
  captured_.insert(stream);
  stream->is_broken = false;
  stream->thread = std::this_thread::get_id();
  stream->latest = nullptr;
  return 0;
}

int FakeCuda::EndCapture(Stream* stream, Graph** graph) {
  *graph = nullptr;
  if (!stream->graph) return kIllegalState;
  if (stream->thread != std::this_thread::get_id())
    return Break(stream, kWrongThread);
  Graph* captured = std::exchange(stream->graph, nullptr);
  captured_.erase(stream);
  if (!stream->is_broken) {
    *graph = captured;
    return 0;
  }
  graphs_.erase(captured);
  delete captured;
  return kInvalidated;
}

int FakeCuda::LatestNode(Stream* stream, int* status,
                         const choir__cu_node_t** latest, size_t* count) {
  *status = !stream->graph ? kNone : stream->is_broken ? kBroken : kActive;
  if (*status != kActive) return 0;
  *latest = &stream->latest;
  *count = stream->latest ? 1 : 0;
  return 0;
}

// ---- Graphs that can be launched ----

int FakeCuda::Instantiate(const Graph* graph, Exec** exec) {
  auto* made = new Exec;
  made->number = ++exec_count_;
  made->nodes = graph->nodes;
  auto node = made->nodes.begin();
  for (const Node& origin : graph->nodes) (node++)->origin = &origin;
  execs_.insert(made);
  *exec = made;
  return 0;
}

int FakeCuda::SetNode(Exec* exec, const Node* origin,
                      const choir__cu_kernel_params_t* params) {
  Launched launched;
  launched.kernel = reinterpret_cast<const HostKernel*>(params->func);
  launched.blocks = params->gridDimX;
  launched.threads = params->blockDimX;
  if (!launched.kernel || params->extra || params->sharedMemBytes != 0 ||
      !CanLaunch(launched, params->gridDimY * params->gridDimZ *
                               params->blockDimY * params->blockDimZ))
    return kInvalidValue;
  const auto* start = static_cast<const char*>(params->kernelParams[0]);
  launched.params.assign(start, start + launched.kernel->bytes);
  for (Node& node : exec->nodes) {
    if (node.origin != origin || !node.launched.kernel) continue;
    node.work = WorkOf(launched);
    node.launched = std::move(launched);
    return 0;
  }
  return kInvalidValue;
}

int FakeCuda::LaunchGraph(const Exec* exec, Stream* stream) {
  if (stream->graph) {
    Misuse("the script captures no launch of a graph");
    return kUnsupported;
  }
  for (const Node& node : exec->nodes) {
    for (const void* place : node.work.touches)
      if (place && !IsOnGpu(place, 1))
        Misuse("a graph that uses memory which is gone");
    Push(stream, node.work);
  }
  return 0;
}

int FakeCuda::DestroyExec(Exec* exec) {
  if (execs_.erase(exec) == 0) {
    Misuse("cuGraphExecDestroy of no graph");
    return kInvalidValue;
  }
  delete exec;
  return 0;
}

int FakeCuda::DestroyGraph(Graph* graph) {
  if (graphs_.erase(graph) == 0) {
    Misuse("cuGraphDestroy of no graph");
    return kInvalidValue;
  }
  delete graph;
  return 0;
}

}  // namespace testing
}  // namespace choir
