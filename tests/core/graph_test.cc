// SPDX-License-Identifier: Apache-2.0
#include "core/graph.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/core/graph_testing.h"

namespace {

using choir::testing::FirstElement;
using choir::testing::GraphTest;
using choir::testing::kValues;
using choir::testing::PlanAndRun;
using choir::testing::TestRecord;

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

}  // namespace
