// SPDX-License-Identifier: Apache-2.0
#include "core/graph_backend.h"
#include "tests/core/graph_testing.h"

namespace {

using choir::testing::FirstElement;
using choir::testing::GraphTest;
using choir::testing::kValues;
using choir::testing::PlanAndRun;
using choir::testing::TestRecord;

INSTANTIATE_TEST_SUITE_P(Devices, GraphTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

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

}  // namespace
