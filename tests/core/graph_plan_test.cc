// SPDX-License-Identifier: Apache-2.0
// Which buffers are temporary, where they lie, and what is left out.
#include <random>
#include <vector>

#include "tests/core/graph_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FirstElement;
using choir::testing::GraphTest;
using choir::testing::kValues;
using choir::testing::PlanAndRun;
using choir::testing::TestRecord;

INSTANTIATE_TEST_SUITE_P(Devices, GraphTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

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

// Nobody sees what they do: the second reads what the first made, and its own
// result is read by nobody.
TEST_P(GraphTest, RecordsThatNobodyReadsAreLeftOut) {
  ASSERT_OK(Begin());
  choir_buffer_t* first = Buffer(8);
  choir_buffer_t* second = Buffer(8);
  choir_buffer_t* sum = Buffer(8);
  Submit(TestRecord::Affine(input_, first, 2, 0));
  Submit(TestRecord::Affine(first, second, 2, 0));
  // Two writers of what is read, the second of which adds.
  Submit(TestRecord::Affine(input_, sum, 1, 0));
  Submit(TestRecord::Affine(input_, sum, 3, 0, /*accumulate=*/true));
  Submit(TestRecord::Affine(sum, kept_, 1, 0));
  for (choir_buffer_t* buffer : {first, second, sum})
    choir_buffer_release(buffer);
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  const choir_graph_stats_t stats = choir_graph_stats(graph_);
  EXPECT_EQ(stats.unwanted, 2);
  EXPECT_EQ(stats.fused, 0);
  EXPECT_EQ(stats.records, 3);
  EXPECT_EQ(stats.temporaries, 1);
  EXPECT_EQ(FirstElement(kept_, stream_), 12);
}

// Its owner may look at it at any time.
TEST_P(GraphTest, RecordsWhoseResultIsHeldStay) {
  ASSERT_OK(Begin());
  choir_buffer_t* made = Buffer(8);
  Submit(TestRecord::Affine(input_, made, 2, 0));
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan());
  EXPECT_EQ(choir_graph_stats(graph_).unwanted, 0);
  EXPECT_EQ(FirstElement(made, stream_), 6);
  choir_buffer_release(made);
}

// Memory that was there before the step keeps what it holds, also where nobody
// but the graph holds its buffer; its owner hears when the graph is gone.
TEST_P(GraphTest, WrappedBuffersAreKept) {
  alignas(64) int64_t numbers[8] = {5, 5, 5, 5, 5, 5, 5, 5};
  bool is_released = false;
  ASSERT_OK(Begin());
  choir_buffer_t* wrapped = nullptr;
  ASSERT_OK(choir_buffer_wrap(
      device_, numbers, sizeof(numbers),
      [](void* context, void*) { *static_cast<bool*>(context) = true; },
      &is_released, &wrapped));
  choir_buffer_t* made = Buffer(8);
  Submit(TestRecord::Affine(wrapped, made, 3, 0));
  Submit(TestRecord::Affine(made, kept_, 1, 0));
  choir_buffer_release(wrapped);
  choir_buffer_release(made);
  ASSERT_OK(choir_graph_end(graph_));
  ASSERT_OK(Plan(/*with_input=*/false));
  EXPECT_EQ(choir_graph_stats(graph_).temporaries, 1);
  EXPECT_EQ(FirstElement(kept_, stream_), 15);
  ASSERT_OK(choir_stream_synchronize(stream_));
  numbers[0] = 7;
  ASSERT_OK(choir_graph_replay(graph_, &kValues, nullptr));
  EXPECT_EQ(FirstElement(kept_, stream_), 21);
  EXPECT_EQ(numbers[0], 7);
  EXPECT_FALSE(is_released);
  choir_graph_destroy(graph_);
  graph_ = nullptr;
  EXPECT_TRUE(is_released);
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
