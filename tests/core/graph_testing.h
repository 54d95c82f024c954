// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CORE_GRAPH_TESTING_H_
#define CHOIR_TESTS_CORE_GRAPH_TESTING_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/graph.h"
#include "core/stage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace choir::testing {

inline constexpr choir_step_values_t kValues = {1, 0, 4, 0};

// The first replay is the step that was recorded.
inline choir_status_t PlanAndRun(choir_graph_t* graph,
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

}  // namespace choir::testing

#endif  // CHOIR_TESTS_CORE_GRAPH_TESTING_H_
