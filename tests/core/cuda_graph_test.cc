// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda_backend.h"
#include "core/graph.h"
#include "core/log.h"
#include "core/profile.h"
#include "core/stage.h"
#include "tests/core/cuda_testing.h"

// Records of a graph as CUDA graphs: core/device/cuda/cuda_graph.c, by way of
// core/graph_segments.c.

namespace {

using choir::testing::CudaTest;
using choir::testing::FailEveryAllocation;
using choir::testing::HostKernels;

using Lines = std::vector<std::string>;

constexpr int64_t kCount = 8;  // elements of every buffer here

// dst = (accumulate ? dst : 0) + factor * src + addend
struct Params {
  const int32_t* src;
  int32_t* dst;
  int32_t factor;
  int32_t addend;
  int32_t accumulate;
};
void Affine(const void* memory, uint32_t, uint32_t) {
  const auto* params = static_cast<const Params*>(memory);
  for (int64_t i = 0; i < kCount; ++i)
    params->dst[i] = (params->accumulate ? params->dst[i] : 0) +
                     params->factor * params->src[i] + params->addend;
}

HostKernels image = {{"affine", sizeof(Params), Affine}};
const choir_cuda_module_t kModule = {"some.cu", &image};
const choir_cuda_kernel_t kAffine = {&kModule, "affine"};

enum How : int32_t { kKernel, kLibrary, kHost };

struct Attrs {
  int32_t factor;
  int32_t addend;
  How how;
  // One launch for the first that is not 0, and one more for each unit.
  int32_t more;
  int64_t scratch;  // bytes
  std::function<choir_status_t(choir_stream_t*)>* in_run;
};

choir_status_t RunAffine(const choir_record_t* record, choir_stream_t* stream) {
  const auto* attrs = static_cast<const Attrs*>(record->attrs);
  if (attrs->in_run) CHOIR_TRY((*attrs->in_run)(stream));
  choir_buffer_t* src = record->operands[0].buffer;
  choir_buffer_t* dst = record->operands[1].buffer;
  Params params = {static_cast<const int32_t*>(choir_buffer_data(src)) +
                       record->operands[0].offset,
                   static_cast<int32_t*>(choir_buffer_data(dst)) +
                       record->operands[1].offset,
                   attrs->factor, attrs->addend, record->accumulate};
  if (attrs->how == kHost) {
    int32_t values[kCount];
    int32_t sums[kCount];
    CHOIR_TRY(choir_buffer_read(src, stream, 0, values, sizeof(values)));
    CHOIR_TRY(choir_buffer_read(dst, stream, 0, sums, sizeof(sums)));
    params.src = values;
    params.dst = sums;
    Affine(&params, 0, 1);
    return choir_buffer_write(dst, stream, 0, sums, sizeof(sums));
  }
  if (attrs->how == kLibrary) {
    choir::testing::FakeCuda::Current()->LaunchFor(
        "gemm", choir__cuda_stream_handle(stream),
        [params] { Affine(&params, 0, 1); }, {params.src, params.dst});
    return nullptr;
  }
  if (attrs->scratch > 0) {
    // By way of memory of the record's own.
    void* data = nullptr;
    CHOIR_TRY(choir__cuda_scratch(stream, static_cast<size_t>(attrs->scratch),
                                  &data));
    const Params first = {params.src, static_cast<int32_t*>(data), 1, 0, 0};
    CHOIR_TRY(choir__cuda_launch(stream, &kAffine, 1, 1, &first));
    params.src = static_cast<const int32_t*>(data);
  }
  CHOIR_TRY(choir__cuda_launch(stream, &kAffine, 1, 1, &params));
  params.accumulate = 1;
  params.factor = 0;
  for (int32_t i = 0; i < attrs->more; ++i)
    CHOIR_TRY(choir__cuda_launch(stream, &kAffine, 1, 1, &params));
  return nullptr;
}

class CudaGraphTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    choir_log_set_sink(
        [](void* self, choir_log_level_t, const char*, const char* message) {
          static_cast<Lines*>(self)->push_back(message);
        },
        &warnings_, CHOIR_LOG_WARNING);
    ASSERT_OK(choir_workspace_create(device_, &workspace_));
    input_ = New(3);
    kept_ = New(0);
  }
  void TearDown() override {
    for (choir_graph_t* graph : graphs_) choir_graph_destroy(graph);
    choir_workspace_destroy(workspace_);
    choir_buffer_release(input_);
    choir_buffer_release(kept_);
    CudaTest::TearDown();
    choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_WARNING);
  }

  choir_buffer_t* New(int32_t value, int64_t count = kCount) {
    choir_buffer_t* buffer = NewBuffer(static_cast<size_t>(count) * 4);
    const std::vector<int32_t> values(static_cast<size_t>(count), value);
    EXPECT_OK(choir_buffer_write(buffer, stream_, 0, values.data(),
                                 values.size() * 4));
    return buffer;
  }
  int32_t Value(choir_buffer_t* buffer) {
    int32_t value = -1;
    EXPECT_OK(choir_buffer_read(buffer, stream_, 0, &value, sizeof(value)));
    return value;
  }
  choir_view_t View(choir_buffer_t* buffer) {
    choir_view_t view;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_I32, 1, &kCount, &view));
    view.buffer = buffer;
    return view;
  }

  // dst (+)= factor * src + addend; the addend may be the number of the step.
  choir_status_t Try(choir_buffer_t* src, choir_buffer_t* dst, Attrs attrs,
                     bool accumulate = false, bool follows = false) {
    static const choir_kernel_t kernel = {
        "affine/test",
        RunAffine,
        [](const choir_record_t*, choir_cost_t* cost) { cost->flops = 1; },
        nullptr,
        nullptr,
        false};
    const choir_view_t operands[] = {View(src), View(dst)};
    choir_record_t record = {};
    record.kernel = &kernel;
    record.operands = operands;
    record.src_count = record.dst_count = 1;
    record.accumulate = accumulate;
    record.attrs = &attrs;
    record.attrs_bytes = sizeof(attrs);
    record.label = "layer";
    if (follows) {
      attrs.addend = static_cast<int32_t>(values_.step);
      record.at_step = [](void* memory, const choir_step_values_t* values) {
        static_cast<Attrs*>(memory)->addend =
            static_cast<int32_t>(values->step);
      };
    }
    return choir_stream_submit(stream_, &record);
  }
  void Submit(choir_buffer_t* src, choir_buffer_t* dst, Attrs attrs,
              bool accumulate = false, bool follows = false) {
    EXPECT_OK(Try(src, dst, attrs, accumulate, follows));
  }

  // Records and plans what `step` submits; input_ is the input.
  choir_status_t Make(const std::function<void()>& step) {
    choir_graph_t* graph = nullptr;
    CHOIR_TRY(choir_graph_create(workspace_, &graph));
    graphs_.push_back(graph);
    CHOIR_TRY(choir_graph_begin(graph, &stream_, 1, &values_));
    step();
    CHOIR_TRY(choir_graph_end(graph));
    const choir_view_t input = View(input_);
    choir_graph_options_t options = {};
    options.inputs = &input;
    options.input_count = 1;
    return choir_graph_plan(graph, &options);
  }
  // kept += 7 (2 input + step) by way of two temporaries.
  void Step(Attrs middle = {7, 0, kKernel, 0, 0, nullptr}) {
    choir_buffer_t* a = NewBuffer(kCount * 4);
    choir_buffer_t* b = NewBuffer(kCount * 4);
    Submit(input_, a, {2}, false, true);
    Submit(a, b, middle);
    Submit(b, kept_, {1}, true);
    choir_buffer_release(a);
    choir_buffer_release(b);
  }
  choir_status_t Replay(choir_buffer_t* input, int64_t offset = 0,
                        size_t graph = 0) {
    choir_view_t view = View(input);
    view.offset = offset;
    ++values_.step;
    return choir_graph_replay(graphs_.at(graph), &values_, &view);
  }
  // Replays until the device launches segments: one record by record, one that
  // makes them.
  void Warm() {
    for (int i = 0; i < 2; ++i) ASSERT_OK(Replay(input_));
    ASSERT_OK(choir_stream_synchronize(stream_));
    fake_.ClearLog();
  }
  // The next replay: by what kept_ grows, and the calls.
  void Grow(choir_buffer_t* input, int64_t offset = 0) {
    const int32_t before = Value(kept_);
    fake_.ClearLog();
    EXPECT_OK(Replay(input, offset));
    log_ = fake_.TakeLog();
    grown_ = Value(kept_) - before;
  }
  // ... in a replay of Step.
  int32_t Expected(int32_t input) const {
    return 7 * (2 * input + static_cast<int32_t>(values_.step));
  }
  // Memory of so many bytes, just let go of, is `other`'s when the compute
  // stream is done with it.
  void ExpectAWait(choir_stream_t* other, size_t bytes) {
    choir_buffer_t* reused = NewBuffer(bytes);
    fake_.ClearLog();
    const std::vector<int32_t> ones(bytes / 4, 1);
    ASSERT_OK(choir_buffer_write(reused, other, 0, ones.data(), bytes));
    bool waits = false;
    for (const std::string& line : fake_.TakeLog())
      waits |= line.rfind("record ", 0) == 0 &&
               line.find(" stream2") != std::string::npos;
    EXPECT_TRUE(waits) << "for the graph's stream";
    int32_t value = 0;
    ASSERT_OK(choir_buffer_read(reused, other, 0, &value, sizeof(value)));
    EXPECT_EQ(value, 1);
    choir_buffer_release(reused);
  }
  choir_graph_stats_t Stats() const { return choir_graph_stats(graphs_[0]); }
  std::string Text() {
    char* text = nullptr;
    EXPECT_OK(choir_graph_print(graphs_[0], &text));
    const std::string result = text ? text : "";
    free(text);
    return result;
  }
  void ExpectIn(const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }

  choir_workspace_t* workspace_ = nullptr;
  std::vector<choir_graph_t*> graphs_;
  choir_buffer_t* input_ = nullptr;
  choir_buffer_t* kept_ = nullptr;
  choir_step_values_t values_ = {1, 0, 4, 0};
  Lines warnings_;
  Lines log_;
  int32_t grown_ = 0;
};

TEST_F(CudaGraphTest, AStepIsOneLaunch) {
  ASSERT_OK(Make([this] { Step(); }));
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, Lines(3, "launch affine stream2"));
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  // Captured on a stream that is nobody's.
  EXPECT_EQ(log_, (Lines{"launch affine stream3", "launch affine stream3",
                         "launch affine stream3", "launch graph1 stream2"}));
  for (int i = 0; i < 3; ++i) {
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
    EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
  }
  EXPECT_EQ(Stats().launches, 1);
  EXPECT_EQ(Stats().launched_records, 3);
  EXPECT_EQ(Stats().refused_launches, 0);
  ExpectIn("launches: 1 of 3 records together, 0 refused\n", Text());
  ExpectIn("launch 0: nodes 0..2, 3 records\n", Text());
  EXPECT_EQ(Text().find("cut at"), std::string::npos);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CudaGraphTest, OnlyWhatChangedIsSet) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  const auto set = [this] {
    return fake_.Calls("cuGraphExecKernelNodeSetParams");
  };
  EXPECT_EQ(set(), 0);
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(set(), 1);  // the step
  --values_.step;
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(set(), 1);
  // Work under way has what it was launched with.
  choir_buffer_t* other = New(10);
  const int32_t before = Value(kept_);
  ASSERT_OK(Replay(input_));
  const int32_t first = Expected(3);
  ASSERT_OK(Replay(other));
  EXPECT_EQ(Value(kept_) - before, first + Expected(10));
  EXPECT_EQ(fake_.Calls("cuGraphInstantiate"), 1);
  choir_buffer_release(other);
}

TEST_F(CudaGraphTest, InputsMayLieAnywhere) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  choir_buffer_t* large = New(1, 3 * kCount);
  const std::vector<int32_t> eights(kCount, 8);
  ASSERT_OK(choir_buffer_write(large, stream_, kCount * 4, eights.data(),
                               kCount * 4));
  for (int64_t offset : {8, 0, 16, 8}) {
    Grow(large, offset);
    EXPECT_EQ(grown_, Expected(offset == 8 ? 8 : 1));
    EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
  }
  // Memory of somebody else is waited for, as its owner may take it back.
  int32_t* foreign = static_cast<int32_t*>(choir_buffer_data(large));
  choir_buffer_t* wrapped = nullptr;
  ASSERT_OK(choir_buffer_wrap(device_, foreign + 8, kCount * 4, nullptr,
                              nullptr, &wrapped));
  Grow(wrapped);
  EXPECT_EQ(grown_, Expected(8));
  choir_buffer_release(wrapped);
  std::vector<int32_t> host(kCount, 5);
  ASSERT_OK(choir_buffer_wrap(device_, host.data(), kCount * 4, nullptr,
                              nullptr, &wrapped));
  Grow(wrapped);
  EXPECT_EQ(grown_, Expected(5));
  EXPECT_EQ(log_, (Lines{"launch graph1 stream2", "synchronize stream2"}));
  choir_buffer_release(wrapped);
  choir_buffer_release(large);
}

TEST_F(CudaGraphTest, LibrariesArePartOfIt) {
  ASSERT_OK(Make([this] { Step({7, 0, kLibrary, 0, 0, nullptr}); }));
  Warm();
  for (int i = 0; i < 3; ++i) {
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
    EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
  }
}

// A library's launch can not be changed.
TEST_F(CudaGraphTest, LibrariesOnInputsAreCuts) {
  ASSERT_OK(Make([this] {
    Step();
    Submit(input_, kept_, {1, 0, kLibrary}, true);
    Step();
  }));
  Warm();
  Grow(input_);
  EXPECT_EQ(grown_, 2 * Expected(3) + 3);
  EXPECT_EQ(log_, (Lines{"launch graph1 stream2", "launch gemm stream2",
                         "launch graph2 stream2"}));
  EXPECT_EQ(Stats().launches, 2);
  EXPECT_EQ(Stats().launched_records, 6);
  ExpectIn("launch 1: nodes 4..6, 3 records\n", Text());
  ExpectIn(
      "cut at 3: a library launches it, with what changes from step to step\n",
      Text());
}

TEST_F(CudaGraphTest, TheHostCuts) {
  static int calls;
  calls = 0;
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  ASSERT_OK(Make([this, event] {
    Step();
    Submit(input_, kept_, {1, 0, kHost}, true);
    Submit(input_, kept_, {1, 0}, true);
    EXPECT_OK(choir_stream_call(
        stream_,
        [](void*) {
          ++calls;
          return choir_status_t{};
        },
        nullptr));
    EXPECT_OK(choir_event_record(event, stream_));
    EXPECT_OK(choir_stream_wait_event(stream_, event));
    Step();
  }));
  Warm();
  EXPECT_EQ(calls, 2);
  Grow(input_);
  EXPECT_EQ(grown_, 2 * Expected(3) + 6);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Stats().launches, 2);
  const std::string text = Text();
  for (const char* line :
       {"cut at 3: the host takes part in it\n", "cut at 4: a record alone\n",
        "cut at 5: a call of the host\n", "cut at 6: an event is recorded\n",
        "cut at 7: a wait for an event\n"})
    ExpectIn(line, text);
  choir_event_release(event);
}

TEST_F(CudaGraphTest, TwoGraphsShareAWorkspaceThatGrows) {
  ASSERT_OK(Make([this] { Step({7, 0, kLibrary, 0, 0, nullptr}); }));
  Warm();
  ASSERT_OK(Make([this] {
    choir_buffer_t* large = NewBuffer(1 << 20);
    Submit(input_, large, {1});
    Submit(large, kept_, {1}, true);
    choir_buffer_release(large);
  }));
  ASSERT_OK(Replay(input_, 0, 1));
  // The library's launch has the old place: once by themselves, then anew.
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, (Lines{"launch affine stream2", "launch gemm stream2",
                         "launch affine stream2"}));
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_.back(), "launch graph2 stream2");
  for (int i = 0; i < 3; ++i) {
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
    EXPECT_EQ(log_, Lines{"launch graph2 stream2"});
    ASSERT_OK(Replay(input_, 0, 1));
  }
  EXPECT_TRUE(warnings_.empty());
}

// Kernels alone are told of their new places.
TEST_F(CudaGraphTest, KernelsMoveWithTheWorkspace) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  ASSERT_OK(Make([this] {
    choir_buffer_t* large = NewBuffer(1 << 20);
    Submit(input_, large, {1});
    Submit(large, kept_, {1}, true);
    choir_buffer_release(large);
  }));
  ASSERT_OK(Replay(input_, 0, 1));
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
}

// How many launches a record is may depend on what changes.
TEST_F(CudaGraphTest, AnotherNumberOfLaunchesIsCapturedAnew) {
  static int32_t more;
  more = 1;
  std::function<choir_status_t(choir_stream_t*)> again =
      [this](choir_stream_t* stream) {
        const Params nothing = {
            static_cast<const int32_t*>(choir_buffer_data(kept_)),
            static_cast<int32_t*>(choir_buffer_data(kept_)), 0, 0, 1};
        for (int32_t i = 0; i < more; ++i)
          CHOIR_TRY(choir__cuda_launch(stream, &kAffine, 1, 1, &nothing));
        return choir_status_t{};
      };
  ASSERT_OK(Make([&] {
    Step();
    Submit(input_, kept_, {1, 0, kKernel, 0, 0, &again}, true, true);
  }));
  Warm();
  for (int32_t count : {2, 1, 3}) {
    more = count;
    const auto step = [this] { return static_cast<int32_t>(values_.step); };
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3) + 3 + step());
    EXPECT_EQ(log_.front(), "launch affine stream2");
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3) + 3 + step());
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3) + 3 + step());
    EXPECT_EQ(log_.size(), 1u);
  }
  EXPECT_EQ(Stats().refused_launches, 0);
}

// ---- Memory ----

TEST_F(CudaGraphTest, ScratchIsTheGraphsAsLongAsItLives) {
  ASSERT_OK(Make([this] {
    Step({7, 0, kKernel, 0, 4000, nullptr});
    Step({7, 0, kKernel, 0, 6000, nullptr});
  }));
  ASSERT_OK(Replay(input_));
  const uint64_t before = choir_device_memory(device_).in_use_bytes;
  ASSERT_OK(Replay(input_));
  const uint64_t during = choir_device_memory(device_).in_use_bytes;
  // One piece for both, as they never run at the same time.
  EXPECT_GE(during - before, 6000u);
  EXPECT_LT(during - before, 10000u);
  // Who asks for memory of that size gets other memory.
  choir_buffer_t* taken = NewBuffer(6000);
  ASSERT_OK(Replay(input_));
  const std::vector<int32_t> ones(1500, 1);
  ASSERT_OK(choir_buffer_write(taken, stream_, 0, ones.data(), 6000));
  Grow(input_);
  EXPECT_EQ(grown_, 2 * Expected(3));
  choir_buffer_release(taken);
  choir_graph_destroy(graphs_[0]);
  graphs_.clear();
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, before);
}

// What the graph's launch uses is not another stream's before it is done.
TEST_F(CudaGraphTest, OtherStreamsWaitForItsMemory) {
  ASSERT_OK(Make([this] { Step({7, 0, kKernel, 0, 4000, nullptr}); }));
  Warm();
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &other));
  ASSERT_OK(Replay(input_));
  choir_graph_destroy(graphs_[0]);  // while it runs
  graphs_.clear();
  ExpectAWait(other, 4000);
  choir_stream_release(other);
}

// Two operands may be one buffer when they are captured, and two later.
TEST_F(CudaGraphTest, AnInputMayBeAnotherOperandToo) {
  choir_buffer_release(kept_);
  kept_ = New(0, 1000);
  ASSERT_OK(Make([this] { Step(); }));
  ASSERT_OK(Replay(input_));
  ASSERT_OK(Replay(kept_));
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &other));
  ASSERT_OK(choir_stream_synchronize(stream_));
  ASSERT_OK(Replay(input_));
  choir_buffer_release(kept_);
  kept_ = nullptr;
  choir_graph_destroy(graphs_[0]);
  graphs_.clear();
  ExpectAWait(other, 4000);
  choir_stream_release(other);
}

// Another thread orders its work behind the stream while that is captured.
TEST_F(CudaGraphTest, ACaptureIsInNobodysWay) {
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &other));
  choir_buffer_t* used = New(1);
  bool is_beside = false;
  std::function<choir_status_t(choir_stream_t*)> beside = [&](choir_stream_t*) {
    if (!is_beside) return choir_status_t{};
    choir_status_t status = nullptr;
    std::thread([&] {
      int32_t value = 0;
      status = choir_buffer_read(used, other, 0, &value, sizeof(value));
      choir_buffer_t* fresh = nullptr;
      if (!status) status = choir_buffer_create(device_, 1 << 16, &fresh);
      if (!status)
        status = choir_buffer_write(fresh, other, 0, &value, sizeof(value));
      choir_buffer_release(fresh);
    }).join();
    return status;
  };
  ASSERT_OK(Make([&] {
    Step({7, 0, kKernel, 0, 0, &beside});
    Submit(used, used, {1});
  }));
  ASSERT_OK(Replay(input_));
  is_beside = true;
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  is_beside = false;
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
  EXPECT_TRUE(warnings_.empty());
  choir_buffer_release(used);
  choir_stream_release(other);
}

TEST_F(CudaGraphTest, NoMemoryIsAStatus) {
  const auto release = [this] {
    for (choir_graph_t* graph : graphs_) choir_graph_destroy(graph);
    graphs_.clear();
    choir_workspace_destroy(workspace_);
    choir_buffer_release(input_);
    choir_buffer_release(kept_);
    choir_device_release(device_);
    workspace_ = nullptr;
    input_ = kept_ = nullptr;
    device_ = nullptr;
  };
  const auto work = [this](choir_allocator_t objects) {
    choir_device_options_t options = {};
    options.allocator = objects;
    CHOIR_TRY(choir_device_create("cuda", &options, &device_));
    stream_ = choir_device_stream(device_);
    CHOIR_TRY(choir_workspace_create(device_, &workspace_));
    CHOIR_TRY(choir_buffer_create(device_, kCount * 4, &input_));
    CHOIR_TRY(choir_buffer_create(device_, kCount * 4, &kept_));
    choir_status_t status = nullptr;
    choir_status_t made = Make([&] {
      choir_buffer_t* a = nullptr;
      status = choir_buffer_create(device_, kCount * 4, &a);
      if (!status) status = Try(input_, a, {1});
      if (!status) status = Try(a, kept_, {1}, true);
      choir_buffer_release(a);
    });
    status = choir_status_join(status, made);
    for (int i = 0; i < 3 && !status; ++i) status = Replay(input_);
    // Of a CUDA graph that there was no memory for, the log tells.
    if (!status && Stats().refused_launches > 0)
      status = CHOIR_ERROR(OUT_OF_MEMORY, "%s", warnings_.back().c_str());
    return status;
  };
  release();
  const int64_t failed = FailEveryAllocation([&](choir_allocator_t objects) {
    choir_status_t status = work(objects);
    release();
    return status;
  });
  EXPECT_GE(failed, 20);
}

// ---- Failures ----

// None of these ran anything, so the records run one by one, from then on.
TEST_F(CudaGraphTest, WhatCanNotBeMadeIsSaidOnceAndCounted) {
  for (const char* call :
       {"cuStreamBeginCapture", "cuStreamGetCaptureInfo", "cuLaunchKernel",
        "cuStreamEndCapture", "cuGraphInstantiate"}) {
    SCOPED_TRACE(call);
    ASSERT_OK(Make([this] { Step(); }));
    ASSERT_OK(Replay(input_));
    fake_.FailNext(call, 1);
    for (int i = 0; i < 3; ++i) {
      Grow(input_);
      EXPECT_EQ(grown_, Expected(3));
      EXPECT_EQ(log_.back(), "launch affine stream2");
    }
    EXPECT_EQ(Stats().refused_launches, 1);
    ExpectIn("launches: 1 of 3 records together, 1 refused\n", Text());
    ExpectIn("launch 0: nodes 0..2, 3 records, refused\n", Text());
    ASSERT_EQ(warnings_.size(), 1u);
    ExpectIn(
        "cuda:0: 3 records of a step are submitted one by one, as they can "
        "not be a CUDA graph: ",
        warnings_[0]);
    ExpectIn(call, warnings_[0]);
    warnings_.clear();
    // A capture that was broken off is over.
    choir_graph_destroy(graphs_[0]);
    graphs_.clear();
  }
}

// The driver's own memory for it may be what the pool has cached.
TEST_F(CudaGraphTest, CachedMemoryMakesRoomForIt) {
  ASSERT_OK(Make([this] { Step(); }));
  ASSERT_OK(Replay(input_));
  choir_buffer_release(New(0, 1000));
  EXPECT_GT(choir_device_memory(device_).cached_bytes, 0u);
  fake_.FailNext("cuGraphInstantiate", 2);
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_.back(), "launch graph1 stream2");
  EXPECT_EQ(choir_device_memory(device_).cached_bytes, 0u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CudaGraphTest, WhatCanNotBeSetIsSaidOnceAndCounted) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  fake_.FailNext("cuGraphExecKernelNodeSetParams", 1);
  for (int i = 0; i < 3; ++i) {
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
  }
  EXPECT_EQ(log_, Lines(3, "launch affine stream2"));
  EXPECT_EQ(Stats().refused_launches, 1);
  ASSERT_EQ(warnings_.size(), 1u);
  ExpectIn("affine/test of layer", warnings_[0]);
  ExpectIn("cuGraphExecKernelNodeSetParams", warnings_[0]);
}

// What a record did not do while it was looked at, and now does.
TEST_F(CudaGraphTest, WhatACaptureForbidsIsSeen) {
  choir_stream_t* streams[] = {stream_};
  struct Case {
    std::function<choir_status_t(choir_stream_t*)> act;
    const char* sentence;
  };
  const Case cases[] = {
      {[&](choir_stream_t* on) { return choir_stream_synchronize(on); },
       "the host takes part in it; a CUDA graph can not do that again"},
      {[&](choir_stream_t*) { return choir_stream_synchronize(streams[0]); },
       "the host takes part in it"},
      {[&](choir_stream_t* on) {
         int32_t value = 0;
         return choir_buffer_read(input_, on, 0, &value, sizeof(value));
       },
       "the host takes part in it"},
      {[&](choir_stream_t* on) {
         return choir__cuda_use(on, choir_buffer_data(input_));
       },
       "the host takes part in it"},
      {[&](choir_stream_t*) { return Try(input_, kept_, {0}, true); },
       "the host takes part in it"},
      {[&](choir_stream_t*) {
         choir_buffer_t* fresh = nullptr;
         choir_status_t status = choir_buffer_create(device_, 1 << 20, &fresh);
         choir_buffer_release(fresh);
         return status;
       },
       "cuMemAlloc: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {[&](choir_stream_t* on) {
         void* data = nullptr;
         return choir__cuda_scratch(on, 100, &data);
       },
       "100 bytes of scratch memory; records asked for 0 at most before"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.sentence);
    bool acts = false;
    std::function<choir_status_t(choir_stream_t*)> in_run =
        [&](choir_stream_t* on) {
          return acts ? one.act(on) : choir_status_t{};
        };
    ASSERT_OK(Make([&] { Step({7, 0, kKernel, 0, 0, &in_run}); }));
    ASSERT_OK(Replay(input_));
    choir_device_trim(device_);
    acts = true;
    ASSERT_OK(Replay(input_));
    EXPECT_EQ(Stats().refused_launches, 1);
    ASSERT_EQ(warnings_.size(), 1u);
    ExpectIn(one.sentence, warnings_[0]);
    warnings_.clear();
    acts = false;
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
    choir_graph_destroy(graphs_[0]);
    graphs_.clear();
  }
}

TEST_F(CudaGraphTest, ALaunchThatFailsIsAStatus) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  fake_.FailNext("cuGraphLaunch", 1);
  EXPECT_STATUS(INTERNAL,
                "records 0..2 of the step: cuda:0: cuGraphLaunch: "
                "CUDA_ERROR_INVALID_VALUE",
                Replay(input_));
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
}

TEST_F(CudaGraphTest, NoStreamToCaptureIsAStatus) {
  ASSERT_OK(Make([this] { Step(); }));
  fake_.FailNext("cuStreamCreateWithPriority", 2);
  EXPECT_STATUS(OUT_OF_MEMORY, "cuda:0: cuStreamCreateWithPriority",
                Replay(input_));
  Warm();
  Grow(input_);
  EXPECT_EQ(grown_, Expected(3));
  EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
}

TEST_F(CudaGraphTest, FailuresOnTheGpuNameTheLastRecord) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  ASSERT_OK(Replay(input_));
  fake_.LaunchFailure(kCompute, 700);
  EXPECT_STATUS(INTERNAL,
                "one of 3 records submitted earlier, the last of them "
                "affine/test of layer: cuda:0: cuStreamSynchronize: "
                "CUDA_ERROR_ILLEGAL_ADDRESS",
                choir_stream_synchronize(stream_));
}

// ---- Who wants none ----

TEST_F(CudaGraphTest, TheyCanBeSwitchedOff) {
  setenv("CHOIR_CUDA_GRAPHS", "0", 1);
  ASSERT_OK(Make([this] { Step(); }));
  for (int i = 0; i < 3; ++i) {
    Grow(input_);
    EXPECT_EQ(grown_, Expected(3));
    EXPECT_EQ(log_, Lines(3, "launch affine stream2"));
  }
  unsetenv("CHOIR_CUDA_GRAPHS");
  EXPECT_EQ(Stats().launches, 0);
  EXPECT_EQ(Text().find("launch"), std::string::npos);
}

TEST_F(CudaGraphTest, AProfileHasARowForEachLaunch) {
  ASSERT_OK(Make([this] { Step(); }));
  Warm();
  choir_profile_t* profile = nullptr;
  ASSERT_OK(choir_profile_create(nullptr, &profile));
  ASSERT_OK(choir_profile_start(profile));
  for (int i = 0; i < 3; ++i) ASSERT_OK(Replay(input_));
  choir_profile_stop(profile);
  ASSERT_EQ(choir_profile_rows(profile, nullptr), 1u);
  choir_profile_row_t row;
  (void)choir_profile_rows(profile, &row);
  EXPECT_STREQ(row.name, "graph/cuda");
  EXPECT_STREQ(row.label, "0..2");
  EXPECT_EQ(row.calls, 3);
  EXPECT_EQ(row.cost.flops, 9.0);  // one for each record
  choir_profile_destroy(profile);
}

TEST_F(CudaGraphTest, StagesSeeEachRecord) {
  ASSERT_OK(Make([this] { Step(); }));
  choir_count_stage_t count;
  choir_count_stage_init(&count);
  for (int round = 0; round < 2; ++round) {
    choir_stream_push_stage(stream_, &count.stage);
    for (int i = 0; i < 3; ++i) {
      Grow(input_);
      EXPECT_EQ(grown_, Expected(3));
    }
    choir_stream_pop_stage(stream_, &count.stage);
    EXPECT_EQ(count.records, 9u * static_cast<unsigned>(round + 1));
    for (int i = 0; i < 3; ++i) {
      Grow(input_);
      EXPECT_EQ(grown_, Expected(3));
    }
    EXPECT_EQ(log_, Lines{"launch graph1 stream2"});
  }
}

}  // namespace
