// SPDX-License-Identifier: Apache-2.0
#include "core/graph.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/graph_backend.h"
#include "core/stage.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FirstElement;
using choir::testing::TestRecord;

constexpr choir_step_values_t kValues = {1, 0, 4, 0};

// The first replay is the step that was recorded.
choir_status_t PlanAndRun(choir_graph_t* graph,
                          const choir_graph_options_t* options) {
  CHOIR_TRY(choir_graph_plan(graph, options));
  return choir_graph_replay(graph, &kValues, options->inputs);
}

class GraphTest : public ::testing::TestWithParam<const char*> {
 public:
  void SetUp() override {
    ASSERT_OK(choir_device_create(GetParam(), nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_workspace_create(device_, &workspace_));
    ASSERT_OK(choir_graph_create(workspace_, &graph_));
    input_ = Buffer(8);
    kept_ = Buffer(8);
    Submit(TestRecord::Fill(input_, 3));
    Submit(TestRecord::Fill(kept_, 0));
  }
  void TearDown() override {
    choir_graph_destroy(graph_);
    choir_workspace_destroy(workspace_);
    choir_buffer_release(input_);
    choir_buffer_release(kept_);
    choir_device_release(device_);
  }

  choir_buffer_t* Buffer(size_t elements) {
    choir_buffer_t* buffer = nullptr;
    EXPECT_OK(
        choir_buffer_create(device_, elements * sizeof(int64_t), &buffer));
    return buffer;
  }
  void Submit(TestRecord record) {
    EXPECT_OK(choir_stream_submit(stream_, record.get()));
  }
  choir_view_t View(choir_buffer_t* buffer) {
    choir_view_t view;
    const int64_t count =
        static_cast<int64_t>(choir_buffer_bytes(buffer) / sizeof(int64_t));
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_I64, 1, &count, &view));
    view.buffer = buffer;
    return view;
  }
  choir_status_t Begin() {
    return choir_graph_begin(graph_, &stream_, 1, &kValues);
  }
  choir_status_t Plan(bool with_input = true) {
    const choir_view_t input = View(input_);
    choir_graph_options_t options = {};
    options.inputs = &input;
    options.input_count = with_input ? 1 : 0;
    return PlanAndRun(graph_, &options);
  }
  // kept += 7 (2 input + 1), by way of two temporaries.
  void Step() {
    choir_buffer_t* a = Buffer(8);
    choir_buffer_t* b = Buffer(8);
    Submit(TestRecord::Affine(input_, a, 2, 1));
    Submit(TestRecord::Affine(a, b, 7, 0));
    Submit(TestRecord::Affine(b, kept_, 1, 0, /*accumulate=*/true));
    choir_buffer_release(a);
    choir_buffer_release(b);
  }
  choir_status_t Record() {
    CHOIR_TRY(Begin());
    Step();
    CHOIR_TRY(choir_graph_end(graph_));
    return Plan();
  }
  choir_status_t Replay(choir_buffer_t* input) {
    const choir_view_t view = View(input);
    return choir_graph_replay(graph_, &kValues, &view);
  }
  std::string Text() {
    char* text = nullptr;
    EXPECT_OK(choir_graph_print(graph_, &text));
    std::string result = text ? text : "";
    free(text);
    return result;
  }

  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_workspace_t* workspace_ = nullptr;
  choir_graph_t* graph_ = nullptr;
  choir_buffer_t* input_ = nullptr;
  choir_buffer_t* kept_ = nullptr;
  bool fails_ = false;
};
INSTANTIATE_TEST_SUITE_P(Devices, GraphTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

TEST_P(GraphTest, ReplaysOnOtherInputs) {
  ASSERT_OK(Record());
  EXPECT_EQ(FirstElement(kept_, stream_), 49);
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 98);
  choir_buffer_t* other = Buffer(8);
  Submit(TestRecord::Fill(other, 10));
  ASSERT_OK(Replay(other));
  EXPECT_EQ(FirstElement(kept_, stream_), 98 + 147);
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 98 + 147 + 49);
  choir_buffer_release(other);
}

TEST_P(GraphTest, AnInputMayLieInTheMiddleOfABuffer) {
  ASSERT_OK(Record());
  choir_buffer_t* large = Buffer(24);
  Submit(TestRecord::Fill(large, 1));
  const std::vector<int64_t> eights(8, 8);
  ASSERT_OK(choir_buffer_write(large, stream_, 8 * sizeof(int64_t),
                               eights.data(), 8 * sizeof(int64_t)));
  choir_view_t view = View(input_);
  view.buffer = large;
  for (int64_t offset : {8, 0, 16, 8}) {
    Submit(TestRecord::Fill(kept_, 0));
    view.offset = offset;
    ASSERT_OK(choir_graph_replay(graph_, &kValues, &view));
    EXPECT_EQ(FirstElement(kept_, stream_), offset == 8 ? 119 : 21);
  }
  choir_buffer_release(large);
}

TEST_P(GraphTest, TemporariesAreWhatNobodyElseHolds) {
  ASSERT_OK(Record());
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.records, 3);
  EXPECT_EQ(stats.temporaries, 2);
  EXPECT_EQ(stats.temporary_bytes, 128u);
  EXPECT_EQ(stats.live_bytes, 128u);
  EXPECT_EQ(stats.arena_bytes, 128u);
  const std::string text = Text();
  for (const char* line :
       {"0 affine/test b0 i64 (8) -> b1 i64 (8)\n",
        "b0: 64 bytes, 0..0, input 0", "b1: 64 bytes, 0..1, workspace + 0",
        "b3: 64 bytes, 2..2, kept", "accumulate"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

TEST_P(GraphTest, BuffersThatNeverLiveTogetherShareBytes) {
  ASSERT_OK(Begin());
  choir_buffer_t* before = input_;
  choir_buffer_retain(before);
  for (int i = 0; i < 10; ++i) {
    choir_buffer_t* next = Buffer(8);
    Submit(TestRecord::Affine(before, next, 1, 1));
    choir_buffer_release(before);
    before = next;
  }
  Submit(TestRecord::Affine(before, kept_, 1, 0));
  choir_buffer_release(before);
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.temporaries, 10);
  EXPECT_EQ(stats.live_bytes, 128u);
  EXPECT_EQ(stats.arena_bytes, 128u);
  Submit(TestRecord::Fill(kept_, 0));
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 13);
}

// Its destination may lie where its source does.
const choir_operation_t kInPlace = {
    "in_place",
    2,
    [](const choir_lowering_t*, const choir_record_t*) -> choir_status_t {
      return nullptr;
    },
    nullptr,
    nullptr,
    [](const choir_record_t*, int32_t source, int32_t destination) {
      return source == 0 && destination == 0;
    }};

// dst = src + 1
choir_status_t SubmitInPlace(choir_stream_t* stream, choir_buffer_t* src,
                             choir_buffer_t* dst) {
  TestRecord affine = TestRecord::Affine(src, dst, 1, 1);
  choir_record_t record = *affine.get();
  record.operation = &kInPlace;
  return choir_stream_submit(stream, &record);
}

TEST_P(GraphTest, AResultMayTakeItsOperandsPlace) {
  ASSERT_OK(Begin());
  choir_buffer_t* first = Buffer(8);
  Submit(TestRecord::Affine(input_, first, 1, 0));
  choir_buffer_t* before = first;
  choir_buffer_retain(before);
  for (int i = 0; i < 10; ++i) {
    choir_buffer_t* next = Buffer(8);
    ASSERT_OK(SubmitInPlace(stream_, before, next));
    choir_buffer_release(before);
    before = next;
    // The third result is read at the end once more, so the fourth has its own
    // place; the others lie where their operands did.
    if (i != 2) continue;
    choir_buffer_release(first);
    first = next;
    choir_buffer_retain(first);
  }
  Submit(TestRecord::Affine(before, kept_, 1, 0));
  Submit(TestRecord::Affine(first, kept_, 1, 0, /*accumulate=*/true));
  choir_buffer_release(before);
  choir_buffer_release(first);
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  EXPECT_EQ(FirstElement(kept_, stream_), 13 + 6);
  Submit(TestRecord::Fill(kept_, 0));
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.temporaries, 11);
  EXPECT_EQ(stats.live_bytes, 128u);
  EXPECT_EQ(stats.arena_bytes, 128u);
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 13 + 6);
}

// Programs of random records over random buffers give the same with and
// without a plan, so no two that live together share bytes.
TEST_P(GraphTest, RandomProgramsKeepTheirValues) {
  const auto run = [this](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<choir_buffer_t*> alive;
    Submit(TestRecord::Fill(kept_, 0));
    for (int i = 0; i < 40; ++i) {
      // Sizes grow or shrink; a record reads from one at least as large.
      choir_buffer_t* fresh = Buffer(1 + random() % 50);
      choir_buffer_t* like = nullptr;
      for (choir_buffer_t* other : alive)
        if (random() % 2 == 0) like = other;
      if (like) {
        choir_buffer_release(fresh);
        fresh = Buffer(choir_buffer_bytes(like) / sizeof(int64_t));
        ASSERT_OK(SubmitInPlace(stream_, like, fresh));
      } else {
        Submit(TestRecord::Fill(fresh, static_cast<int64_t>(random() % 9)));
      }
      for (choir_buffer_t* other : alive)
        if (choir_buffer_bytes(other) >= choir_buffer_bytes(fresh) &&
            random() % 3 == 0)
          Submit(TestRecord::Affine(other, fresh, 1,
                                    static_cast<int64_t>(random() % 5), true));
      if (choir_buffer_bytes(fresh) >= 64)
        Submit(TestRecord::Affine(fresh, kept_, 1, 0, true));
      alive.push_back(fresh);
      while (alive.size() > 1 + random() % 6) {
        const size_t gone = random() % alive.size();
        choir_buffer_release(alive[gone]);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(gone));
      }
    }
    for (choir_buffer_t* buffer : alive) choir_buffer_release(buffer);
  };
  for (unsigned program = 0; program < 30; ++program) {
    run(program);
    const int64_t expected = FirstElement(kept_, stream_);
    choir_graph_t* graph = nullptr;
    ASSERT_OK(choir_graph_create(workspace_, &graph));
    ASSERT_OK(choir_graph_begin(graph, &stream_, 1, &kValues));
    run(program);
    ASSERT_OK(choir_graph_end(graph));
    const choir_graph_options_t options = {};
    ASSERT_OK(PlanAndRun(graph, &options));
    EXPECT_EQ(FirstElement(kept_, stream_), expected);
    const choir_graph_stats_t stats = choir_graph_stats(graph);
    EXPECT_GE(stats.arena_bytes, stats.live_bytes);
    EXPECT_LE(stats.arena_bytes, stats.temporary_bytes + 64u * 40);
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(choir_graph_replay(graph, &kValues, nullptr));
      ASSERT_EQ(FirstElement(kept_, stream_), expected) << program;
    }
    choir_graph_destroy(graph);
  }
}

TEST_P(GraphTest, GraphsShareAWorkspaceThatGrows) {
  ASSERT_OK(Record());
  choir_graph_t* larger = nullptr;
  ASSERT_OK(choir_graph_create(workspace_, &larger));
  ASSERT_OK(choir_graph_begin(larger, &stream_, 1, &kValues));
  choir_buffer_t* big = Buffer(5000);
  Submit(TestRecord::Fill(big, 1000));
  Submit(TestRecord::Affine(big, kept_, 1, 0, true));
  choir_buffer_release(big);
  ASSERT_OK(choir_graph_end(larger));
  const choir_graph_options_t options = {};
  ASSERT_OK(PlanAndRun(larger, &options));
  Submit(TestRecord::Fill(kept_, 0));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Replay(input_));
    ASSERT_OK(choir_graph_replay(larger, &kValues, nullptr));
  }
  EXPECT_EQ(FirstElement(kept_, stream_), 3 * (49 + 1000));
  choir_graph_destroy(larger);
}

TEST_P(GraphTest, ResultsGoWhereTheReplaySays) {
  ASSERT_OK(Begin());
  choir_buffer_t* result = Buffer(8);
  Submit(TestRecord::Affine(input_, result, 2, 0));
  ASSERT_OK(choir_graph_end(graph_));
  const choir_view_t places[] = {View(input_), View(result)};
  choir_graph_options_t options = {};
  options.inputs = places;
  options.input_count = 2;
  options.result_count = 1;
  ASSERT_OK(PlanAndRun(graph_, &options));
  choir_buffer_t* other = Buffer(8);
  Submit(TestRecord::Fill(result, 1));
  choir_view_t given[] = {View(input_), View(other)};
  ASSERT_OK(choir_graph_replay(graph_, &kValues, given));
  EXPECT_EQ(FirstElement(other, stream_), 6);
  EXPECT_EQ(FirstElement(result, stream_), 1);
  choir_buffer_release(result);
  choir_buffer_release(other);
}

TEST_P(GraphTest, EventsAndCallsComeAgainInTheirPlace) {
  choir_stream_t* background = nullptr;
  choir_event_t* there = nullptr;
  choir_event_t* back = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &background));
  ASSERT_OK(choir_event_create(device_, &there));
  ASSERT_OK(choir_event_create(device_, &back));
  choir_stream_t* streams[] = {stream_, background};
  choir_buffer_t* shared = Buffer(8);
  Submit(TestRecord::Fill(shared, 0));
  int calls = 0;
  ASSERT_OK(choir_graph_begin(graph_, streams, 2, &kValues));
  Submit(TestRecord::Affine(input_, shared, 1, 1));
  ASSERT_OK(choir_event_record(there, stream_));
  ASSERT_OK(choir_stream_wait_event(background, there));
  ASSERT_OK(choir_stream_submit(
      background, TestRecord::Affine(shared, shared, 10, 0).get()));
  ASSERT_OK(choir_event_record(back, background));
  ASSERT_OK(choir_stream_wait_event(stream_, back));
  ASSERT_OK(choir_stream_call(
      stream_,
      [](void* self) -> choir_status_t {
        ++*static_cast<int*>(self);
        return nullptr;
      },
      &calls));
  Submit(TestRecord::Affine(shared, kept_, 1, 0, true));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  EXPECT_EQ(calls, 1);
  for (int i = 0; i < 5; ++i) ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 6 * 40);
  EXPECT_EQ(calls, 6);
  EXPECT_NE(Text().find("(stream 1) affine/test"), std::string::npos);
  choir_event_release(there);
  choir_event_release(back);
  choir_stream_release(background);
  choir_buffer_release(shared);
}

// What a call does is its own matter, also while it is recorded.
TEST_P(GraphTest, RecordsInsideACallAreNotTheGraphs) {
  ASSERT_OK(Begin());
  ASSERT_OK(choir_stream_call(
      stream_,
      [](void* self) -> choir_status_t {
        GraphTest* test = static_cast<GraphTest*>(self);
        test->Submit(TestRecord::Affine(test->input_, test->kept_, 1, 0, true));
        return choir_stream_synchronize(test->stream_);
      },
      this));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan(false));
  EXPECT_EQ(choir_graph_stats(graph_).records, 0);
  ASSERT_OK(choir_graph_replay(graph_, &kValues, nullptr));
  EXPECT_EQ(FirstElement(kept_, stream_), 6);
}

void FollowStep(void* attrs, const choir_step_values_t* values) {
  static_cast<int64_t*>(attrs)[0] = values->step;
}

TEST_P(GraphTest, AttributesFollowTheStep) {
  ASSERT_OK(Begin());
  TestRecord fill = TestRecord::Fill(kept_, 1);  // the step of kValues
  choir_record_t record = *fill.get();
  record.at_step = FollowStep;
  ASSERT_OK(choir_stream_submit(stream_, &record));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan(false));
  for (int64_t step : {5, 9, 2}) {
    const choir_step_values_t values = {step, 0, 4, 0};
    ASSERT_OK(choir_graph_replay(graph_, &values, nullptr));
    EXPECT_EQ(FirstElement(kept_, stream_), step);
  }
}

// The owner sets the scalar before each replay; the record keeps it alive.
TEST_P(GraphTest, AttributesFollowAScalar) {
  choir_scalar_t* scalar = nullptr;
  ASSERT_OK(
      choir_scalar_create(choir_allocator_default(), "rate", 1.5, &scalar));
  EXPECT_STREQ(choir_scalar_name(scalar), "rate");
  double seen = 0;
  struct Attrs {
    double* seen;
    double rate;
  } attrs = {&seen, 1.5};
  static const choir_kernel_t kernel = {
      "look/test",
      [](const choir_record_t* record, choir_stream_t*) -> choir_status_t {
        const auto* own = static_cast<const Attrs*>(record->attrs);
        *own->seen = own->rate;
        return nullptr;
      },
      nullptr, nullptr, nullptr};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.attrs = &attrs;
  record.attrs_bytes = sizeof(attrs);
  record.scalar = scalar;
  record.scalar_offset = offsetof(Attrs, rate);
  ASSERT_OK(Begin());
  ASSERT_OK(choir_stream_submit(stream_, &record));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan(false));
  for (double rate : {0.25, 7.0, 1.5}) {
    choir_scalar_set(scalar, rate);
    ASSERT_OK(choir_graph_replay(graph_, &kValues, nullptr));
    ASSERT_OK(choir_stream_synchronize(stream_));
    EXPECT_EQ(seen, rate);
  }
  choir_scalar_release(scalar);
  ASSERT_OK(choir_graph_replay(graph_, &kValues, nullptr));
  ASSERT_OK(choir_stream_synchronize(stream_));
  EXPECT_EQ(seen, 1.5);
}

// What a replay would set is what the step has.
TEST_P(GraphTest, RefusesAttributesThatAreNotTheScalars) {
  choir_scalar_t* scalar = nullptr;
  ASSERT_OK(choir_scalar_create(choir_allocator_default(), "rate", 2, &scalar));
  TestRecord fill = TestRecord::Fill(kept_, 1);
  choir_record_t record = *fill.get();
  record.scalar = scalar;
  ASSERT_OK(Begin());
  ASSERT_OK(choir_stream_submit(stream_, &record));
  EXPECT_STATUS(FAILED_PRECONDITION, "(rate, step, samples)",
                choir_graph_end(graph_));
  choir_scalar_release(scalar);
}

TEST_P(GraphTest, RewritingPutsOneRecordInThePlaceOfTwo) {
  ASSERT_OK(Begin());
  Step();
  ASSERT_OK(choir_graph_end(graph_));
  const choir_view_t input = View(input_);
  choir_graph_options_t options = {};
  options.inputs = &input;
  options.input_count = 1;
  options.rewrite = [](choir_graph_t* graph) -> choir_status_t {
    EXPECT_EQ(choir_graph_node_count(graph), 3);
    const choir_record_t first = *choir_graph_record(graph, 0);
    const choir_record_t second = *choir_graph_record(graph, 1);
    const choir_view_t a = *choir_record_dst(&first, 0);
    const choir_view_t b = *choir_record_dst(&second, 0);
    const choir_view_t in = *choir_record_src(&first, 0);
    EXPECT_TRUE(choir_graph_is_temporary(graph, &a));
    EXPECT_FALSE(choir_graph_is_temporary(graph, &in));
    EXPECT_EQ(choir_graph_writer(graph, &a, 1), 0);
    EXPECT_EQ(choir_graph_writer(graph, &in, 1), -1);
    EXPECT_EQ(choir_graph_next_use(graph, &a, 0), 1);
    EXPECT_EQ(choir_graph_next_use(graph, &a, 1), -1);
    EXPECT_EQ(choir_graph_next_use(graph, &b, 0), 1);
    EXPECT_TRUE(choir_graph_is_unchanged(graph, &a, 0, 2));
    EXPECT_FALSE(choir_graph_is_unchanged(graph, &b, 0, 2));
    // 7 (2 x + 1) = 14 x + 7
    const int64_t attrs[] = {14, 7};
    const choir_view_t operands[] = {in, b};
    choir_record_t fused = second;
    fused.operands = operands;
    fused.attrs = attrs;
    CHOIR_TRY(choir_graph_put(graph, 1, &fused));
    choir_graph_drop(graph, 0);
    EXPECT_EQ(choir_graph_record(graph, 0), nullptr);
    EXPECT_EQ(choir_graph_previous(graph, 2), 1);
    EXPECT_EQ(choir_graph_previous(graph, 1), -1);
    return nullptr;
  };
  ASSERT_OK(PlanAndRun(graph_, &options));
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.records, 2);
  EXPECT_EQ(stats.fused, 1);
  EXPECT_EQ(stats.temporaries, 1);
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 98);
}

// An operation that is lowered to two records with a temporary between them:
// dst += f (source + 1), where f is the attribute; 0 cannot be lowered.
choir_status_t LowerInTwo(const choir_lowering_t* lowering,
                          const choir_record_t* record) {
  const int64_t factor = static_cast<const int64_t*>(record->attrs)[0];
  if (factor == 0) return CHOIR_ERROR(UNIMPLEMENTED, "no factor");
  choir_buffer_t* middle = nullptr;
  CHOIR_TRY(choir_buffer_create(lowering->device,
                                choir_buffer_bytes(record->operands[0].buffer),
                                &middle));
  TestRecord first =
      TestRecord::Affine(record->operands[0].buffer, middle, 1, 1);
  TestRecord second =
      TestRecord::Affine(middle, record->operands[1].buffer, factor, 0, true);
  choir_status_t status = lowering->emit(lowering->self, first.get());
  if (!status) status = lowering->emit(lowering->self, second.get());
  choir_buffer_release(middle);
  return status;
}
const choir_operation_t kInTwo = {"in_two", 1,       LowerInTwo,
                                  nullptr,  nullptr, nullptr};

class LoweringTest : public GraphTest {
 public:
  choir_status_t SubmitInTwo(int64_t factor) {
    const choir_view_t operands[] = {View(input_), View(kept_)};
    choir_record_t record = {};
    record.operation = &kInTwo;
    record.operands = operands;
    record.src_count = record.dst_count = 1;
    record.attrs = &factor;
    record.attrs_bytes = sizeof factor;
    return choir_stream_submit(stream_, &record);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, LoweringTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

TEST_P(LoweringTest, OfARecordIsWhatItsOperationEmits) {
  choir_count_stage_t program, device;
  choir_count_stage_init(&program);
  choir_count_stage_init(&device);
  device.stage.sees_kernels = true;
  choir_stream_push_stage(stream_, &device.stage);
  choir_stream_push_stage(stream_, &program.stage);
  ASSERT_OK(SubmitInTwo(5));
  choir_stream_pop_stage(stream_, &device.stage);
  choir_stream_pop_stage(stream_, &program.stage);
  EXPECT_EQ(FirstElement(kept_, stream_), 20);  // 5 (3 + 1)
  EXPECT_EQ(program.records, 1u);
  EXPECT_EQ(device.records, 2u);
  EXPECT_STATUS(UNIMPLEMENTED, "no factor", SubmitInTwo(0));
}

TEST_P(LoweringTest, OfAGraphComesAfterItsRewriting) {
  ASSERT_OK(Begin());
  ASSERT_OK(SubmitInTwo(5));
  ASSERT_OK(SubmitInTwo(1));
  ASSERT_OK(choir_graph_end(graph_));
  const choir_view_t input = View(input_);
  choir_graph_options_t options = {};
  options.inputs = &input;
  options.input_count = 1;
  options.rewrite = [](choir_graph_t* graph) -> choir_status_t {
    EXPECT_EQ(choir_graph_node_count(graph), 2);
    for (int32_t i = 0; i < 2; ++i)
      EXPECT_EQ(choir_graph_record(graph, i)->operation, &kInTwo);
    // 5 (x + 1) + 1 (x + 1)
    choir_record_t both = *choir_graph_record(graph, 1);
    const int64_t factor = 6;
    both.attrs = &factor;
    CHOIR_TRY(choir_graph_put(graph, 1, &both));
    choir_graph_drop(graph, 0);
    return nullptr;
  };
  ASSERT_OK(PlanAndRun(graph_, &options));
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.records, 2);
  EXPECT_EQ(stats.fused, 1);
  EXPECT_EQ(stats.temporaries, 1);
  EXPECT_EQ(FirstElement(kept_, stream_), 24);
  ASSERT_OK(Replay(input_));
  EXPECT_EQ(FirstElement(kept_, stream_), 48);
}

TEST_P(LoweringTest, ThatFailsFailsThePlan) {
  ASSERT_OK(Begin());
  ASSERT_OK(SubmitInTwo(2));
  ASSERT_OK(choir_graph_end(graph_));
  choir_graph_options_t options = {};
  options.rewrite = [](choir_graph_t* graph) -> choir_status_t {
    choir_record_t record = *choir_graph_record(graph, 0);
    const int64_t none = 0;
    record.attrs = &none;
    return choir_graph_put(graph, 0, &record);
  };
  EXPECT_STATUS(UNIMPLEMENTED, "no factor", choir_graph_plan(graph_, &options));
  EXPECT_STATUS(FAILED_PRECONDITION, "replayed before",
                choir_graph_replay(graph_, &kValues, nullptr));
  // What the rewriting left is still there, and cannot run without a plan
  // either.
  EXPECT_STATUS(UNIMPLEMENTED, "no factor", choir_graph_run(graph_));
}

TEST_P(GraphTest, EqualStepsHashAlike) {
  uint64_t hashes[3];
  for (int i = 0; i < 3; ++i) {
    choir_graph_t* graph = nullptr;
    ASSERT_OK(choir_graph_create(workspace_, &graph));
    ASSERT_OK(choir_graph_begin(graph, &stream_, 1, &kValues));
    Step();
    if (i == 2) Submit(TestRecord::Fill(kept_, 0));
    ASSERT_OK(choir_graph_end(graph));
    const choir_graph_options_t options = {};
    ASSERT_OK(PlanAndRun(graph, &options));
    hashes[i] = choir_graph_hash(graph);
    choir_graph_destroy(graph);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_NE(hashes[0], hashes[2]);
}

// ---- What a graph cannot do ----

// A stage that counts, on the test's stream.
struct Counter {
  explicit Counter(choir_stream_t* stream) : stream_(stream) {
    choir_count_stage_init(&count);
    choir_stream_push_stage(stream, &count.stage);
  }
  uint64_t Pop() {
    choir_stream_pop_stage(stream_, &count.stage);
    return count.records;
  }
  choir_count_stage_t count;
  choir_stream_t* stream_;
};

// Stages are pushed before, in and after a recording, and popped in any of them
// later; each sees what was submitted between, and the graph all of its step.
TEST_P(GraphTest, StagesComeAndGoWhileItRecords) {
  for (int pushed = 0; pushed < 3; ++pushed) {
    for (int popped = pushed; popped < 3; ++popped) {
      SCOPED_TRACE(std::to_string(pushed) + " to " + std::to_string(popped));
      choir_graph_t* graph = nullptr;
      ASSERT_OK(choir_graph_create(workspace_, &graph));
      Submit(TestRecord::Fill(kept_, 0));
      auto counter = std::make_unique<Counter>(stream_);
      uint64_t seen = 0;
      if (pushed > 0) seen = counter->Pop();
      for (int phase = 0; phase < 3; ++phase) {
        if (phase == 1) {
          ASSERT_OK(choir_graph_begin(graph, &stream_, 1, &kValues));
        }
        if (pushed > 0 && phase == pushed)
          counter = std::make_unique<Counter>(stream_);
        Step();
        if (phase == popped) {
          seen = counter->Pop();
          counter.reset();
        }
        if (phase == 1) {
          Step();
          ASSERT_OK(choir_graph_end(graph));
        }
      }
      // A stage that went left nothing behind, a recorder neither.
      Step();
      // In front of the recorder it sees the step, behind it nothing: that
      // runs later.
      uint64_t expected = 3 * static_cast<uint64_t>(popped - pushed + 1);
      if (pushed == 1 && popped > 1) expected += 3;
      if (pushed == 0 && popped > 0) expected -= 3;
      EXPECT_EQ(seen, expected);
      const choir_view_t input = View(input_);
      choir_graph_options_t options = {};
      options.inputs = &input;
      options.input_count = 1;
      ASSERT_OK(PlanAndRun(graph, &options));
      EXPECT_EQ(choir_graph_stats(graph).records, 6);
      EXPECT_EQ(FirstElement(kept_, stream_), 5 * 49);
      ASSERT_OK(choir_graph_replay(graph, &kValues, &input));
      EXPECT_EQ(FirstElement(kept_, stream_), 7 * 49);
      choir_graph_destroy(graph);
    }
  }
}

TEST_P(GraphTest, AStageMayStayOverAGraphThatGoesWhileItRecords) {
  ASSERT_OK(Begin());
  Counter counter(stream_);
  Step();
  choir_graph_destroy(graph_);
  graph_ = nullptr;
  Step();
  EXPECT_EQ(counter.Pop(), 6u);
  Step();
  EXPECT_EQ(FirstElement(kept_, stream_), 2 * 49);
}

// What was held until then has run when it reads, and the rest runs as always,
// also in buffers that were made before.
TEST_P(GraphTest, TheHostMayNotReadInTheMiddle) {
  ASSERT_OK(Begin());
  choir_buffer_t* made = Buffer(8);
  Step();
  EXPECT_EQ(FirstElement(kept_, stream_), 49);
  Submit(TestRecord::Affine(kept_, made, 2, 0));
  EXPECT_EQ(FirstElement(made, stream_), 98);
  Step();
  EXPECT_EQ(FirstElement(kept_, stream_), 98);
  EXPECT_STATUS(FAILED_PRECONDITION, "in the middle of the step (after 3",
                choir_graph_end(graph_));
  EXPECT_STATUS(FAILED_PRECONDITION, "after the step ran", Plan());
  choir_buffer_release(made);
}

TEST_P(GraphTest, NothingRunsAndTakesMemoryBeforeTheFirstReplay) {
  const uint64_t before = choir_device_memory(device_).in_use_bytes;
  ASSERT_OK(Begin());
  choir_buffer_t* temporary = Buffer(1 << 20);
  choir_buffer_t* result = Buffer(8);
  Submit(TestRecord::Fill(temporary, 2));
  Submit(TestRecord::Affine(temporary, kept_, 1, 0));
  Submit(TestRecord::Affine(input_, result, 5, 0));
  choir_buffer_release(temporary);
  ASSERT_OK(choir_graph_end(graph_));
  EXPECT_EQ(FirstElement(kept_, stream_), 0);
  const choir_graph_options_t none = {};
  ASSERT_OK(choir_graph_plan(graph_, &none));
  EXPECT_LT(choir_device_memory(device_).in_use_bytes, before + (1 << 20));
  EXPECT_EQ(choir_graph_stats(graph_).arena_bytes, 8u << 20);
  ASSERT_OK(choir_graph_replay(graph_, &kValues, nullptr));
  EXPECT_EQ(FirstElement(kept_, stream_), 2);
  EXPECT_EQ(FirstElement(result, stream_), 15);
  choir_buffer_release(result);
}

TEST_P(GraphTest, AStepWithoutAPlanRunsAsItWasRecorded) {
  ASSERT_OK(Begin());
  Step();
  ASSERT_OK(choir_graph_end(graph_));
  choir_graph_options_t options = {};
  options.rewrite = [](choir_graph_t*) {
    return CHOIR_ERROR(INTERNAL, "no plan");
  };
  EXPECT_STATUS(INTERNAL, "no plan", choir_graph_plan(graph_, &options));
  EXPECT_EQ(FirstElement(kept_, stream_), 0);
  ASSERT_OK(choir_graph_run(graph_));
  EXPECT_EQ(FirstElement(kept_, stream_), 49);
  EXPECT_STATUS(FAILED_PRECONDITION, "twice", choir_graph_run(graph_));
}

TEST_P(GraphTest, ATemporaryMustBeWritten) {
  choir_buffer_t* filled = Buffer(8);
  Submit(TestRecord::Fill(filled, 5));
  ASSERT_OK(Begin());
  Submit(TestRecord::Affine(filled, kept_, 1, 0));
  choir_buffer_release(filled);
  ASSERT_OK(choir_graph_end(graph_));
  EXPECT_STATUS(FAILED_PRECONDITION, "reads what no record of the step wrote",
                Plan(false));
}

TEST_P(GraphTest, AttributesThatDoNotFollowAreTold) {
  ASSERT_OK(Begin());
  TestRecord fill = TestRecord::Fill(kept_, 77);
  choir_record_t record = *fill.get();
  record.at_step = FollowStep;
  ASSERT_OK(choir_stream_submit(stream_, &record));
  EXPECT_STATUS(FAILED_PRECONDITION, "fill/test are not those of the step",
                choir_graph_end(graph_));
}

TEST_P(GraphTest, InputsMustLieAsRecorded) {
  ASSERT_OK(Record());
  choir_buffer_t* other = Buffer(9);
  EXPECT_STATUS(INVALID_ARGUMENT, "input 0 is i64 (9); was recorded as i64 (8)",
                Replay(other));
  choir_buffer_release(other);
}

TEST_P(GraphTest, CallsOutOfOrderAreTold) {
  EXPECT_STATUS(FAILED_PRECONDITION, "before it was begun",
                choir_graph_end(graph_));
  EXPECT_STATUS(FAILED_PRECONDITION, "before choir_graph_plan", Replay(input_));
  EXPECT_STATUS(FAILED_PRECONDITION, "before choir_graph_begin", Plan());
  ASSERT_OK(Begin());
  EXPECT_STATUS(FAILED_PRECONDITION, "begun twice", Begin());
  EXPECT_STATUS(FAILED_PRECONDITION, "before choir_graph_end", Plan());
  Step();
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  EXPECT_STATUS(FAILED_PRECONDITION, "twice", Plan());
}

TEST_P(GraphTest, TwoInputsInOneBufferAreRefused) {
  ASSERT_OK(Begin());
  Step();
  ASSERT_OK(choir_graph_end(graph_));
  const choir_view_t places[] = {View(input_), View(input_)};
  choir_graph_options_t options = {};
  options.inputs = places;
  options.input_count = 2;
  EXPECT_STATUS(INVALID_ARGUMENT, "inputs 0 and 1 are in one buffer",
                choir_graph_plan(graph_, &options));
}

TEST_P(GraphTest, AResultMustBeComputed) {
  ASSERT_OK(Begin());
  Step();
  ASSERT_OK(choir_graph_end(graph_));
  choir_buffer_t* other = Buffer(8);
  const choir_view_t places[] = {View(input_), View(other)};
  choir_graph_options_t options = {};
  options.inputs = places;
  options.input_count = 2;
  options.result_count = 1;
  EXPECT_STATUS(FAILED_PRECONDITION, "no record of the step touches result 1",
                choir_graph_plan(graph_, &options));
  choir_buffer_release(other);
}

TEST_P(GraphTest, AFailedCallEndsTheReplay) {
  ASSERT_OK(Begin());
  Submit(TestRecord::Fill(kept_, 1));
  ASSERT_OK(choir_stream_call(
      stream_,
      [](void* self) -> choir_status_t {
        const bool fails = *static_cast<bool*>(self);
        if (!fails) return nullptr;
        return CHOIR_ERROR(INTERNAL, "on purpose");
      },
      &fails_));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan(false));
  fails_ = true;
  EXPECT_STATUS(INTERNAL, "on purpose",
                choir_graph_replay(graph_, &kValues, nullptr));
  fails_ = false;
  EXPECT_OK(choir_graph_replay(graph_, &kValues, nullptr));
}

// A graph that does not fit leaves the others with a workspace to ask for.
TEST(GraphMemory, OthersGoOnAfterAGraphThatDoesNotFit) {
  choir::testing::FailingAllocator memory;
  {
    choir_device_options_t options = {};
    options.allocator = memory.get();
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu", &options, &device));
    choir_stream_t* stream = choir_device_stream(device);
    choir_buffer_t* kept = nullptr;
    ASSERT_OK(choir_buffer_create(device, 64, &kept));
    choir_workspace_t* workspace = nullptr;
    ASSERT_OK(choir_workspace_create(device, &workspace));
    choir_graph_t* graphs[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_OK(choir_graph_create(workspace, &graphs[i]));
      ASSERT_OK(choir_graph_begin(graphs[i], &stream, 1, &kValues));
      choir_buffer_t* temporary = nullptr;
      ASSERT_OK(choir_buffer_create(device, i == 0 ? 64 : 1 << 20, &temporary));
      ASSERT_OK(
          choir_stream_submit(stream, TestRecord::Fill(temporary, 4).get()));
      ASSERT_OK(choir_stream_submit(
          stream, TestRecord::Affine(temporary, kept, 1, 1).get()));
      choir_buffer_release(temporary);
      ASSERT_OK(choir_graph_end(graphs[i]));
      const choir_graph_options_t none = {};
      if (i == 0) {
        ASSERT_OK(PlanAndRun(graphs[i], &none));
        continue;
      }
      memory.FailLarge(1 << 20);
      ASSERT_OK(choir_graph_plan(graphs[i], &none));
    }
    EXPECT_STATUS(OUT_OF_MEMORY, "workspace",
                  choir_graph_replay(graphs[1], &kValues, nullptr));
    ASSERT_OK(choir_stream_submit(stream, TestRecord::Fill(kept, 0).get()));
    ASSERT_OK(choir_graph_replay(graphs[0], &kValues, nullptr));
    EXPECT_EQ(FirstElement(kept, stream), 5);
    for (choir_graph_t* graph : graphs) choir_graph_destroy(graph);
    choir_workspace_destroy(workspace);
    choir_buffer_release(kept);
    choir_device_release(device);
  }
  EXPECT_EQ(memory.live_blocks(), 0u);
}

TEST(GraphMemory, EveryAllocationMayFail) {
  const int64_t failed =
      FailEveryAllocation([](choir_allocator_t allocator) -> choir_status_t {
        choir_device_options_t options = {};
        options.allocator = allocator;
        choir_device_t* device = nullptr;
        CHOIR_TRY(choir_device_create("cpu", &options, &device));
        choir_stream_t* stream = choir_device_stream(device);
        choir_buffer_t* kept = nullptr;
        choir_buffer_t* temporary = nullptr;
        choir_workspace_t* workspace = nullptr;
        choir_graph_t* graph = nullptr;
        choir_status_t status = choir_buffer_create(device, 64, &kept);
        if (!status) status = choir_buffer_create(device, 64, &temporary);
        if (!status) status = choir_workspace_create(device, &workspace);
        if (!status) status = choir_graph_create(workspace, &graph);
        if (!status) status = choir_graph_begin(graph, &stream, 1, &kValues);
        if (!status) {
          EXPECT_OK(choir_stream_submit(stream,
                                        TestRecord::Fill(temporary, 4).get()));
          for (int i = 0; i < 70; ++i)
            EXPECT_OK(choir_stream_submit(
                stream, TestRecord::Affine(temporary, kept, 1, i).get()));
          status = choir_graph_end(graph);
        }
        choir_buffer_release(temporary);
        const choir_graph_options_t none = {};
        if (!status) status = choir_graph_plan(graph, &none);
        if (!status) status = choir_graph_replay(graph, &kValues, nullptr);
        if (!status) {
          EXPECT_EQ(FirstElement(kept, stream), 73);
        }
        choir_graph_destroy(graph);
        choir_workspace_destroy(workspace);
        choir_buffer_release(kept);
        choir_device_release(device);
        return status;
      });
  EXPECT_GT(failed, 5);
}

}  // namespace
