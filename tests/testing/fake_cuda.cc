// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_cuda.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace choir {
namespace testing {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

enum {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotFound = 500,
  kNotReady = 600,
  kCaptureUnsupported = 900,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
};

// What CUDA calls them.
struct Named {
  int result;
  const char* name;
  const char* text;
};
const Named kNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

const Named* Find(int result) {
  for (const Named& named : kNames)
    if (named.result == result) return &named;
  return nullptr;
}

// Contexts are not looked into; GPU n has the one at n of these.
char context_marks[16];
choir__cu_context_t ContextOf(int gpu) {
  return reinterpret_cast<choir__cu_context_t>(&context_marks[gpu]);
}
// Plain memory: devices that live until the end of the process outlast what the
// main thread takes apart.
struct ContextStack {
  choir__cu_context_t contexts[16];
  size_t count;
};
thread_local ContextStack current;

void* Pointer(choir__cu_address_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

}  // namespace

FakeCuda* FakeCuda::self_ = nullptr;

FakeCuda::FakeCuda(std::vector<Gpu> gpus) : gpus_(std::move(gpus)) {
  EXPECT_EQ(self_, nullptr) << "one at a time";
  self_ = this;
  // Libraries of the machine would ask its own driver: they are not there,
  // unless the test says otherwise or has a script for them too.
  for (const char* library :
       {"CHOIR_CUBLASLT_LIBRARY", "CHOIR_CUDNN_LIBRARY", "CHOIR_NCCL_LIBRARY"})
    if (!std::getenv(library)) {
      setenv(library, "/dev/null", 1);
      hidden_.push_back(library);
    }
  table_ = MakeTable();
  choir__cuda_driver_replace(&table_);
}

FakeCuda::~FakeCuda() {
  choir__cuda_driver_replace(nullptr);
  for (const char* library : hidden_) unsetenv(library);
  self_ = nullptr;
  // A lost context gives nothing back.
  if (lost_ == 0) {
    EXPECT_EQ(events_.size(), 0u) << "events are left";
    EXPECT_EQ(memory_.size(), 0u) << "device memory is left";
    EXPECT_EQ(pinned_.size(), 0u) << "pinned memory is left";
    EXPECT_EQ(modules_, 0) << "modules are left";
    EXPECT_EQ(graphs_.size() + execs_.size(), 0u) << "graphs are left";
    for (const Stream& stream : streams_)
      EXPECT_FALSE(stream.is_live) << "stream " << stream.number << " is left";
  }
  EXPECT_EQ(contexts_, 0) << "contexts are left";
  EXPECT_EQ(current.count, 0u) << "a context is current";
  for (Event* event : events_) delete event;
  for (Graph* graph : graphs_) delete graph;
  for (Exec* exec : execs_) delete exec;
  for (const auto& entry : memory_) std::free(const_cast<void*>(entry.first));
  for (const auto& entry : pinned_) std::free(const_cast<void*>(entry.first));
}

void FakeCuda::Misuse(const std::string& what) {
  ADD_FAILURE() << "the driver would not stand this: " << what;
}

void FakeCuda::FailNext(const std::string& symbol, int result, int skip) {
  Lock lock(lock_);
  planned_[symbol] = {skip, result};
}

int FakeCuda::Calls(const std::string& symbol) const {
  Lock lock(lock_);
  auto found = calls_.find(symbol);
  return found == calls_.end() ? 0 : found->second;
}

std::vector<std::string> FakeCuda::TakeLog() {
  Lock lock(lock_);
  return std::exchange(log_, {});
}

choir__cu_stream_t FakeCuda::stream(int number) {
  Lock lock(lock_);
  return reinterpret_cast<choir__cu_stream_t>(
      &streams_.at(static_cast<size_t>(number - 1)));
}

int FakeCuda::priority(int number) {
  Lock lock(lock_);
  return streams_.at(static_cast<size_t>(number - 1)).priority;
}

size_t FakeCuda::Pending(int number) {
  Lock lock(lock_);
  return streams_.at(static_cast<size_t>(number - 1)).work.size();
}

void FakeCuda::Launch(int number, std::function<void()> run,
                      std::vector<const void*> touches) {
  Lock lock(lock_);
  Work work;
  work.run = std::move(run);
  work.touches = std::move(touches);
  Push(&streams_.at(static_cast<size_t>(number - 1)), std::move(work));
}

int FakeCuda::LaunchFor(const std::string& function, choir__cu_stream_t handle,
                        std::function<void()> run,
                        std::vector<const void*> touches) {
  Lock lock(lock_);
  auto* stream = reinterpret_cast<Stream*>(handle);
  const int result =
      Begin(function, true,
            "launch " + function + " stream" + std::to_string(stream->number));
  if (result) return result;
  Work work;
  work.run = std::move(run);
  work.touches = std::move(touches);
  Push(stream, std::move(work));
  return 0;
}

bool FakeCuda::Holds(const void* memory, size_t bytes) const {
  Lock lock(lock_);
  return IsOnGpu(memory, bytes);
}

bool FakeCuda::HasContext() { return current.count > 0; }

void FakeCuda::LaunchFailure(int number, int result) {
  Launch(number, [this, result] { lost_ = result; });
}

// ---- Queues ----

void FakeCuda::Push(Stream* stream, Work work) {
  if (stream->graph) {
    Node node;
    node.work = std::move(work);
    Capture(stream, std::move(node));
    return;
  }
  ++stream->given;
  stream->work.push_back(std::move(work));
  busy_.insert(stream);
}

// Runs no more than it must; whether it got there. Waits point to work that was
// given before them, so this comes to an end.
bool FakeCuda::RunUntil(Stream* stream, uint64_t count) {
  if (stream->done >= count) return true;
  if (stream->is_running) return false;  // it would wait for itself
  stream->is_running = true;
  bool gets_on = true;
  while (gets_on && stream->done < count) {
    Work& next = stream->work.front();
    if (next.awaited) gets_on = RunUntil(next.awaited, next.count);
    if (gets_on && next.ready && lost_ == 0) gets_on = next.ready();
    if (!gets_on) break;
    Work work = std::move(next);
    stream->work.pop_front();
    if (stream->work.empty()) busy_.erase(stream);
    if (work.run && lost_ == 0) work.run();
    ++stream->done;
  }
  stream->is_running = false;
  return gets_on;
}

// With the lock held once.
void FakeCuda::Await(Stream* stream, uint64_t count) {
  while (!RunUntil(stream, count)) {
    lock_.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock_.lock();
  }
}

int FakeCuda::CurrentGpu() const {
  if (current.count == 0) return -1;
  const auto* mark =
      reinterpret_cast<const char*>(current.contexts[current.count - 1]);
  return static_cast<int>(mark - context_marks);
}

uint64_t FakeCuda::LaunchWhen(choir__cu_stream_t handle,
                              std::function<bool()> ready,
                              std::vector<const void*> touches) {
  Lock lock(lock_);
  auto* stream = reinterpret_cast<Stream*>(handle);
  Work work;
  work.ready = std::move(ready);
  work.touches = std::move(touches);
  Push(stream, std::move(work));
  return stream->given;
}

bool FakeCuda::Advance(choir__cu_stream_t handle, uint64_t place) {
  Lock lock(lock_);
  return RunUntil(reinterpret_cast<Stream*>(handle), place);
}

int FakeCuda::Begin(const std::string& symbol, bool needs_context,
                    const std::string& said) {
  ++calls_[symbol];
  if (needs_context && current.count == 0) {
    Misuse(symbol + " without a context");
    return kInvalidContext;
  }
  auto plan = planned_.find(symbol);
  if (plan != planned_.end() && plan->second.skip-- == 0) {
    const int result = plan->second.result;
    planned_.erase(plan);
    return result;
  }
  if (lost_ != 0 && needs_context) return lost_;
  if (!said.empty()) log_.push_back(said);
  return 0;
}

static bool Within(const std::map<const void*, size_t>& blocks,
                   const void* memory, size_t bytes) {
  auto after = blocks.upper_bound(memory);
  if (after == blocks.begin()) return false;
  --after;
  const char* start = static_cast<const char*>(after->first);
  const char* place = static_cast<const char*>(memory);
  return place + bytes <= start + after->second;
}

bool FakeCuda::IsPinned(const void* memory, size_t bytes) const {
  return Within(pinned_, memory, bytes);
}

bool FakeCuda::IsOnGpu(const void* memory, size_t bytes) const {
  return Within(memory_, memory, bytes);
}

// ---- The table ----

// Begins each function: the lock, and the scripted result.
#define BEGIN(symbol, needs_context, said)                          \
  FakeCuda* fake = self_;                                           \
  Lock lock(fake->lock_);                                           \
  {                                                                 \
    int scripted = fake->Begin(symbol, needs_context, said);        \
    if (scripted) return static_cast<choir__cu_result_t>(scripted); \
  }
// What the driver forbids a thread that captures.
#define UNSAFE()                                                  \
  {                                                               \
    int refused = fake->Unsafe();                                 \
    if (refused) return static_cast<choir__cu_result_t>(refused); \
  }

choir__cuda_driver_t FakeCuda::MakeTable() {
  using Result = choir__cu_result_t;
  choir__cuda_driver_t table = {};
  table.cuInit = [](unsigned) -> Result {
    BEGIN("cuInit", false, "");
    return fake->gpus_.empty() ? kNoDevice : 0;
  };
  table.cuDriverGetVersion = [](int* version) -> Result {
    BEGIN("cuDriverGetVersion", false, "");
    *version = fake->version_;
    return 0;
  };
  table.cuGetErrorName = [](Result result, const char** name) -> Result {
    const Named* named = Find(result);
    *name = named ? named->name : nullptr;
    return named ? 0 : kInvalidValue;
  };
  table.cuGetErrorString = [](Result result, const char** text) -> Result {
    const Named* named = Find(result);
    *text = named ? named->text : nullptr;
    return named ? 0 : kInvalidValue;
  };
  table.cuDeviceGetCount = [](int* count) -> Result {
    BEGIN("cuDeviceGetCount", false, "");
    *count = static_cast<int>(fake->gpus_.size());
    return 0;
  };
  table.cuDeviceGet = [](choir__cu_gpu_t* gpu, int ordinal) -> Result {
    BEGIN("cuDeviceGet", false, "");
    if (ordinal < 0 || ordinal >= static_cast<int>(fake->gpus_.size()))
      return kInvalidDevice;
    *gpu = ordinal;
    return 0;
  };
  table.cuDeviceGetName = [](char* name, int length,
                             choir__cu_gpu_t gpu) -> Result {
    BEGIN("cuDeviceGetName", false, "");
    std::snprintf(name, static_cast<size_t>(length), "%s",
                  fake->gpus_.at(static_cast<size_t>(gpu)).name.c_str());
    return 0;
  };
  table.cuDeviceGetAttribute = [](int* value, choir__cu_attribute_t attribute,
                                  choir__cu_gpu_t gpu) -> Result {
    BEGIN("cuDeviceGetAttribute", false, "");
    const Gpu& one = fake->gpus_.at(static_cast<size_t>(gpu));
    if (attribute != 75 && attribute != 76) return kInvalidValue;
    *value = attribute == 75 ? one.major : one.minor;
    return 0;
  };
  table.cuDeviceTotalMem_v2 = [](size_t* bytes, choir__cu_gpu_t gpu) -> Result {
    BEGIN("cuDeviceTotalMem", false, "");
    *bytes = fake->gpus_.at(static_cast<size_t>(gpu)).bytes;
    return 0;
  };
  table.cuDevicePrimaryCtxRetain = [](choir__cu_context_t* context,
                                      choir__cu_gpu_t gpu) -> Result {
    BEGIN("cuDevicePrimaryCtxRetain", false, "");
    ++fake->contexts_;
    *context = ContextOf(gpu);
    return 0;
  };
  table.cuDevicePrimaryCtxRelease_v2 = [](choir__cu_gpu_t) -> Result {
    BEGIN("cuDevicePrimaryCtxRelease", false, "");
    --fake->contexts_;
    return 0;
  };
  table.cuCtxPushCurrent_v2 = [](choir__cu_context_t context) -> Result {
    BEGIN("cuCtxPushCurrent", false, "");
    if (current.count == 16) return kInvalidContext;
    current.contexts[current.count++] = context;
    return 0;
  };
  table.cuCtxPopCurrent_v2 = [](choir__cu_context_t* context) -> Result {
    BEGIN("cuCtxPopCurrent", false, "");
    if (current.count == 0) return kInvalidContext;
    *context = current.contexts[--current.count];
    return 0;
  };
  table.cuCtxSynchronize = []() -> Result {
    BEGIN("cuCtxSynchronize", true, "synchronize all");
    UNSAFE();
    for (Stream& stream : fake->streams_) fake->Await(&stream, stream.given);
    return fake->lost_;
  };
  table.cuCtxGetStreamPriorityRange = [](int* least, int* greatest) -> Result {
    BEGIN("cuCtxGetStreamPriorityRange", true, "");
    *least = 0;
    *greatest = -5;
    return 0;
  };
  table.cuMemGetInfo_v2 = [](size_t* free, size_t* total) -> Result {
    BEGIN("cuMemGetInfo", true, "");
    *total = fake->gpus_[0].bytes;
    *free = *total - fake->live_bytes_;
    return 0;
  };
  table.cuMemAlloc_v2 = [](choir__cu_address_t* address,
                           size_t bytes) -> Result {
    BEGIN("cuMemAlloc", true, "");
    UNSAFE();
    if (fake->live_bytes_ + bytes > fake->gpus_[0].bytes) return kOutOfMemory;
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0xdb, bytes);
    fake->memory_[memory] = bytes;
    fake->live_bytes_ += bytes;
    *address = reinterpret_cast<uintptr_t>(memory);
    return 0;
  };
  table.cuMemFree_v2 = [](choir__cu_address_t address) -> Result {
    BEGIN("cuMemFree", true, "");
    UNSAFE();
    auto found = fake->memory_.find(Pointer(address));
    if (found == fake->memory_.end()) {
      fake->Misuse("cuMemFree of what is not memory");
      return kInvalidValue;
    }
    const char* start = static_cast<const char*>(found->first);
    for (const Stream* stream : fake->busy_) {
      for (const Work& work : stream->work) {
        for (const void* touched : work.touches) {
          const char* place = static_cast<const char*>(touched);
          if (place >= start && place < start + found->second)
            fake->Misuse("cuMemFree while stream " +
                         std::to_string(stream->number) + " works on it");
        }
      }
    }
    fake->live_bytes_ -= found->second;
    std::free(Pointer(address));
    fake->memory_.erase(found);
    return 0;
  };
  table.cuMemAllocHost_v2 = [](void** memory, size_t bytes) -> Result {
    BEGIN("cuMemAllocHost", true, "");
    UNSAFE();
    *memory = std::malloc(bytes);
    fake->pinned_[*memory] = bytes;
    return 0;
  };
  table.cuMemFreeHost = [](void* memory) -> Result {
    BEGIN("cuMemFreeHost", true, "");
    UNSAFE();
    if (fake->pinned_.erase(memory) == 0) {
      fake->Misuse("cuMemFreeHost of what is not pinned");
      return kInvalidValue;
    }
    std::free(memory);
    return 0;
  };
  table.cuMemcpyHtoDAsync_v2 = [](choir__cu_address_t dst, const void* src,
                                  size_t bytes,
                                  choir__cu_stream_t handle) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    BEGIN("cuMemcpyHtoDAsync", true,
          "to_device " + std::to_string(bytes) + " stream" +
              std::to_string(stream->number));
    if (!fake->IsPinned(src, bytes))
      fake->Misuse("a copy from pageable memory");
    if (!fake->IsOnGpu(Pointer(dst), bytes)) fake->Misuse("a copy to nowhere");
    Work work;
    work.run = [dst, src, bytes] { std::memcpy(Pointer(dst), src, bytes); };
    work.touches = {Pointer(dst)};
    fake->Push(stream, std::move(work));
    return 0;
  };
  table.cuMemcpyDtoHAsync_v2 = [](void* dst, choir__cu_address_t src,
                                  size_t bytes,
                                  choir__cu_stream_t handle) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    BEGIN("cuMemcpyDtoHAsync", true,
          "to_host " + std::to_string(bytes) + " stream" +
              std::to_string(stream->number));
    if (!fake->IsPinned(dst, bytes)) fake->Misuse("a copy to pageable memory");
    if (!fake->IsOnGpu(Pointer(src), bytes))
      fake->Misuse("a copy from nowhere");
    Work work;
    work.run = [dst, src, bytes] { std::memcpy(dst, Pointer(src), bytes); };
    work.touches = {Pointer(src)};
    fake->Push(stream, std::move(work));
    return 0;
  };
  table.cuStreamCreateWithPriority =
      [](choir__cu_stream_t* handle, unsigned flags, int priority) -> Result {
    BEGIN("cuStreamCreateWithPriority", true, "");
    if (flags != 1) fake->Misuse("a stream that waits for the default one");
    fake->streams_.emplace_back();
    Stream* stream = &fake->streams_.back();
    stream->number = static_cast<int>(fake->streams_.size());
    stream->priority = priority;
    *handle = reinterpret_cast<choir__cu_stream_t>(stream);
    return 0;
  };
  table.cuStreamDestroy_v2 = [](choir__cu_stream_t handle) -> Result {
    BEGIN("cuStreamDestroy", true, "");
    auto* stream = reinterpret_cast<Stream*>(handle);
    if (!stream->work.empty()) fake->Misuse("cuStreamDestroy with work");
    if (stream->graph) fake->Misuse("cuStreamDestroy of what is captured");
    stream->is_live = false;
    return 0;
  };
  table.cuStreamSynchronize = [](choir__cu_stream_t handle) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    BEGIN("cuStreamSynchronize", true,
          "synchronize stream" + std::to_string(stream->number));
    if (stream->graph) return fake->Break(stream, kCaptureUnsupported);
    fake->Await(stream, stream->given);
    return fake->lost_;
  };
  table.cuStreamWaitEvent = [](choir__cu_stream_t handle,
                               choir__cu_event_t event, unsigned) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    auto* mark = reinterpret_cast<Event*>(event);
    BEGIN("cuStreamWaitEvent", true,
          "wait stream" + std::to_string(stream->number) + " event" +
              std::to_string(mark->number));
    if (mark->graph && stream->graph != mark->graph)
      fake->Misuse("the script forks no second stream off a capture");
    // What came before the capture is not there when its graph is launched.
    if (mark->stream && stream->graph)
      return fake->Break(stream, kCaptureIsolation);
    if (!mark->stream) return 0;
    Work work;
    work.awaited = mark->stream;
    work.count = mark->count;
    fake->Push(stream, std::move(work));
    return 0;
  };
  table.cuEventCreate = [](choir__cu_event_t* event, unsigned flags) -> Result {
    BEGIN("cuEventCreate", true, "");
    if (flags != 2) fake->Misuse("an event that takes times");
    auto* mark = new Event;
    mark->number = ++fake->event_count_;
    fake->events_.insert(mark);
    *event = reinterpret_cast<choir__cu_event_t>(mark);
    return 0;
  };
  table.cuEventDestroy_v2 = [](choir__cu_event_t event) -> Result {
    BEGIN("cuEventDestroy", true, "");
    auto* mark = reinterpret_cast<Event*>(event);
    if (fake->events_.erase(mark) == 0) {
      fake->Misuse("cuEventDestroy of no event");
      return kInvalidValue;
    }
    delete mark;
    return 0;
  };
  table.cuEventRecord = [](choir__cu_event_t event,
                           choir__cu_stream_t handle) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    auto* mark = reinterpret_cast<Event*>(event);
    BEGIN("cuEventRecord", true,
          "record event" + std::to_string(mark->number) + " stream" +
              std::to_string(stream->number));
    mark->stream = stream->graph ? nullptr : stream;
    mark->count = stream->given;
    mark->graph = stream->graph;
    return 0;
  };
  // Each question lets the stream get one piece further, so that a program that
  // asks again and again gets its answer.
  table.cuEventQuery = [](choir__cu_event_t event) -> Result {
    BEGIN("cuEventQuery", true, "");
    UNSAFE();
    auto* mark = reinterpret_cast<Event*>(event);
    if (mark->graph) return kCapturedEvent;
    if (!mark->stream || mark->stream->done >= mark->count) return 0;
    fake->RunUntil(mark->stream, mark->stream->done + 1);
    return fake->lost_ ? fake->lost_ : kNotReady;
  };
  table.cuEventSynchronize = [](choir__cu_event_t event) -> Result {
    auto* mark = reinterpret_cast<Event*>(event);
    BEGIN("cuEventSynchronize", true,
          "synchronize event" + std::to_string(mark->number));
    UNSAFE();
    if (mark->graph) return kCapturedEvent;
    if (mark->stream) fake->Await(mark->stream, mark->count);
    return fake->lost_;
  };
  table.cuModuleLoadData = [](choir__cu_module_t* module,
                              const void* image) -> Result {
    BEGIN("cuModuleLoadData", true, "");
    UNSAFE();
    if (!image) {
      fake->Misuse("cuModuleLoadData of no image");
      return kInvalidValue;
    }
    ++fake->modules_;
    *module = reinterpret_cast<choir__cu_module_t>(const_cast<void*>(image));
    return 0;
  };
  table.cuModuleUnload = [](choir__cu_module_t) -> Result {
    BEGIN("cuModuleUnload", true, "");
    UNSAFE();
    --fake->modules_;
    return 0;
  };
  table.cuModuleGetFunction = [](choir__cu_function_t* function,
                                 choir__cu_module_t module,
                                 const char* name) -> Result {
    BEGIN("cuModuleGetFunction", true, "");
    for (HostKernel& kernel : *reinterpret_cast<HostKernels*>(module)) {
      if (std::strcmp(kernel.symbol, name) != 0) continue;
      *function = reinterpret_cast<choir__cu_function_t>(&kernel);
      return 0;
    }
    return kNotFound;
  };
  table.cuLaunchKernel =
      [](choir__cu_function_t function, unsigned blocks_x, unsigned blocks_y,
         unsigned blocks_z, unsigned threads_x, unsigned threads_y,
         unsigned threads_z, unsigned, choir__cu_stream_t handle, void** params,
         void** extra) -> Result {
    auto* stream = reinterpret_cast<Stream*>(handle);
    auto* kernel = reinterpret_cast<const HostKernel*>(function);
    BEGIN("cuLaunchKernel", true,
          std::string("launch ") + kernel->symbol + " stream" +
              std::to_string(stream->number));
    Launched launched;
    launched.kernel = kernel;
    launched.blocks = blocks_x;
    launched.threads = threads_x;
    if (!fake->CanLaunch(launched,
                         blocks_y * blocks_z * threads_y * threads_z) ||
        extra)
      return kInvalidValue;
    const auto* start = static_cast<const char*>(params[0]);
    launched.params.assign(start, start + kernel->bytes);
    fake->PushLaunch(stream, std::move(launched));
    return 0;
  };
  table.cuStreamBeginCapture_v2 = [](choir__cu_stream_t handle,
                                     choir__cu_capture_mode_t mode) -> Result {
    BEGIN("cuStreamBeginCapture", true, "");
    return fake->BeginCapture(reinterpret_cast<Stream*>(handle), mode);
  };
  table.cuStreamEndCapture = [](choir__cu_stream_t handle,
                                choir__cu_graph_t* graph) -> Result {
    FakeCuda* fake = self_;
    Lock lock(fake->lock_);
    auto* stream = reinterpret_cast<Stream*>(handle);
    // A failure ends the capture too.
    const int scripted = fake->Begin("cuStreamEndCapture", true);
    if (scripted) stream->is_broken = true;
    const int result =
        fake->EndCapture(stream, reinterpret_cast<Graph**>(graph));
    return scripted ? scripted : result;
  };
  table.cuStreamGetCaptureInfo_v3 =
      [](choir__cu_stream_t handle, choir__cu_capture_status_t* status,
         uint64_t* id, choir__cu_graph_t* graph,
         const choir__cu_node_t** latest, const struct CUgraphEdgeData_st** how,
         size_t* count) -> Result {
    BEGIN("cuStreamGetCaptureInfo", true, "");
    if (id || graph || !latest || !how || !count)
      fake->Misuse("the script knows the latest nodes of a capture only");
    return fake->LatestNode(reinterpret_cast<Stream*>(handle), status, latest,
                            count);
  };
  table.cuGraphInstantiateWithFlags = [](choir__cu_graph_exec_t* exec,
                                         choir__cu_graph_t graph,
                                         unsigned long long flags) -> Result {
    BEGIN("cuGraphInstantiate", true, "");
    if (flags != 0) return kInvalidValue;
    return fake->Instantiate(reinterpret_cast<const Graph*>(graph),
                             reinterpret_cast<Exec**>(exec));
  };
  table.cuGraphExecKernelNodeSetParams_v2 =
      [](choir__cu_graph_exec_t exec, choir__cu_node_t node,
         const choir__cu_kernel_params_t* params) -> Result {
    BEGIN("cuGraphExecKernelNodeSetParams", true, "");
    return fake->SetNode(reinterpret_cast<Exec*>(exec),
                         reinterpret_cast<const Node*>(node), params);
  };
  table.cuGraphLaunch = [](choir__cu_graph_exec_t handle,
                           choir__cu_stream_t on) -> Result {
    auto* exec = reinterpret_cast<const Exec*>(handle);
    auto* stream = reinterpret_cast<Stream*>(on);
    BEGIN("cuGraphLaunch", true,
          "launch graph" + std::to_string(exec->number) + " stream" +
              std::to_string(stream->number));
    return fake->LaunchGraph(exec, stream);
  };
  table.cuGraphExecDestroy = [](choir__cu_graph_exec_t exec) -> Result {
    BEGIN("cuGraphExecDestroy", true, "");
    return fake->DestroyExec(reinterpret_cast<Exec*>(exec));
  };
  table.cuGraphDestroy = [](choir__cu_graph_t graph) -> Result {
    BEGIN("cuGraphDestroy", true, "");
    return fake->DestroyGraph(reinterpret_cast<Graph*>(graph));
  };
  return table;
}

}  // namespace testing
}  // namespace choir
