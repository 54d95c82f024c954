// SPDX-License-Identifier: Apache-2.0
#include "core/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/stage.h"
#include "core/trace_backend.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FailingAllocator;
using choir::testing::TestRecord;

using Words = std::vector<std::string>;

Words Split(const std::string& text, char end) {
  Words words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, end);)
    words.push_back(word);
  return words;
}

enum Column {
  kStep,
  kNumber,
  kOp,
  kLabel,
  kOperand,
  kDtype,
  kShape,
  kDigest,
  kMagnitude
};

class TraceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create(GetParam(), nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_buffer_create(device_, 64, &a_));
    ASSERT_OK(choir_buffer_create(device_, 64, &b_));
    Submit(TestRecord::Fill(a_, 0));
    Submit(TestRecord::Fill(b_, 0));
    path_ = ::testing::TempDir() + "/trace." + std::to_string(getpid());
  }
  void TearDown() override {
    choir_buffer_release(a_);
    choir_buffer_release(b_);
    choir_device_release(device_);
    unlink(path_.c_str());
  }

  void Start(choir_trace_detail_t detail = CHOIR_TRACE_TENSOR) {
    const choir_trace_options_t options = {path_.c_str(), 0, detail};
    ASSERT_OK(choir_trace_start(device_, &options));
  }
  void Submit(TestRecord record) {
    ASSERT_OK(choir_stream_submit(stream_, record.get()));
  }
  // The lines of the trace that ends now, without the first, in columns.
  std::vector<Words> Lines() {
    EXPECT_OK(choir_trace_stop(device_));
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    EXPECT_EQ(line.rfind("choir-trace\t1\tchoir ", 0), 0u) << line;
    std::vector<Words> lines;
    while (std::getline(file, line)) lines.push_back(Split(line, '\t'));
    return lines;
  }
  // "step number op label operand" of each.
  std::string Places() {
    std::string text;
    for (const Words& line : Lines()) {
      for (int column = kStep; column <= kOperand; ++column)
        text += (column ? "|" : "") + line[column];
      text += "\n";
    }
    return text;
  }

  // What is noted of these elements.
  template <typename T>
  Words Note(choir_dtype_t dtype, const std::vector<T>& elements,
             const std::vector<int64_t>& shape,
             const std::vector<int64_t>& strides = {}) {
    choir_buffer_t* buffer = nullptr;
    const size_t bytes = elements.size() * sizeof(T);
    EXPECT_OK(choir_buffer_create(device_, bytes, &buffer));
    EXPECT_OK(choir_buffer_write(buffer, stream_, 0, elements.data(), bytes));
    choir_trace_value_t value = {"x", {}};
    EXPECT_OK(choir_view_make(dtype, static_cast<int32_t>(shape.size()),
                              shape.data(), &value.view));
    for (size_t k = 0; k < strides.size(); ++k)
      value.view.strides[k] = strides[k];
    value.view.buffer = buffer;
    Start();
    EXPECT_OK(choir_trace_note(device_, "noted", &value, 1));
    choir_buffer_release(buffer);
    return Lines().at(0);
  }
  Words NoteF32(const std::vector<float>& elements) {
    return Note(CHOIR_DTYPE_F32, elements,
                {static_cast<int64_t>(elements.size())});
  }

  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* a_ = nullptr;
  choir_buffer_t* b_ = nullptr;
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Devices, TraceTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

TEST_P(TraceTest, HasWhatRecordsReadAndWrote) {
  Start();
  Submit(TestRecord::Fill(a_, 3));
  choir_stream_set_label(stream_, "layer\t1");
  Submit(TestRecord::Affine(a_, b_, 2, 1));
  choir_trace_set_step(device_, 7);
  Submit(TestRecord::Affine(a_, b_, 2, 1, /*accumulate=*/true));
  choir_stream_set_label(stream_, nullptr);
  const std::vector<Words> lines = Lines();
  ASSERT_EQ(lines.size(), 6u);
  const std::vector<std::string> threes(8, "3"), sevens(8, "7");
  EXPECT_EQ(lines[0].size(), 10u);
  EXPECT_EQ(lines[0][kMagnitude], "24");
  EXPECT_EQ(Words(lines[0].begin(), lines[0].begin() + kDigest),
            (Words{"0", "0", "fill/test", "", "result 0", "i64", "8"}));
  EXPECT_EQ(Split(lines[0].back(), ' '), threes);
  EXPECT_EQ(Words(lines[1].begin(), lines[1].begin() + kDtype),
            (Words{"0", "1", "affine/test", "layer 1", "source 0"}));
  EXPECT_EQ(lines[1][kDigest], lines[0][kDigest]);
  EXPECT_EQ(lines[2][kOperand], "result 0");
  EXPECT_EQ(Split(lines[2].back(), ' '), sevens);
  EXPECT_EQ(lines[3][kStep] + lines[3][kNumber], "70");
  EXPECT_EQ(lines[4][kOperand], "before 0");
  EXPECT_EQ(lines[4][kDigest], lines[2][kDigest]);
  EXPECT_EQ(lines[5][kOperand], "result 0");
  EXPECT_EQ(Split(lines[5].back(), ' '), Words(8, "14"));
}

TEST_P(TraceTest, ADigestIsOfTheElementsInLogicalOrder) {
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  const std::vector<float> columns = {1, 4, 2, 5, 3, 6};
  const Words plain = Note(CHOIR_DTYPE_F32, rows, {2, 3});
  EXPECT_EQ(plain[kShape], "2,3");
  EXPECT_EQ(plain.back(), "1 2 3 4 5 6");
  EXPECT_EQ(Note(CHOIR_DTYPE_F32, columns, {2, 3}, {1, 2}), plain);
  EXPECT_NE(Note(CHOIR_DTYPE_F32, columns, {2, 3})[kDigest], plain[kDigest]);
  // Repeated elements, and none.
  EXPECT_EQ(Note(CHOIR_DTYPE_F32, rows, {2, 2}, {0, 1}).back(), "1 2 1 2");
  EXPECT_EQ(Note(CHOIR_DTYPE_F32, rows, {}).back(), "1");
  EXPECT_EQ(Note(CHOIR_DTYPE_F32, rows, {0, 4})[kMagnitude], "0");
}

TEST_P(TraceTest, OneBitIsAnotherDigest) {
  std::vector<float> elements(77, 0.5f);
  const Words plain = NoteF32(elements);
  for (size_t at : {0u, 3u, 40u, 76u}) {
    for (uint32_t bit : {0u, 22u, 31u}) {
      std::vector<float> other = elements;
      uint32_t word;
      memcpy(&word, &other[at], 4);
      word ^= 1u << bit;
      memcpy(&other[at], &word, 4);
      const Words line = NoteF32(other);
      EXPECT_NE(line[kDigest], plain[kDigest]);
      // In the sum of one piece of 32.
      const Words a = Split(plain.back(), ' '), b = Split(line.back(), ' ');
      ASSERT_EQ(a.size(), 32u);
      for (size_t piece = 0; piece < 32; ++piece)
        EXPECT_EQ(a[piece] != b[piece],
                  77 * piece / 32 <= at && at < 77 * (piece + 1) / 32)
            << at << " " << piece;
    }
  }
  // What no sum shows.
  EXPECT_NE(NoteF32({0.0f})[kDigest], NoteF32({-0.0f})[kDigest]);
}

TEST_P(TraceTest, EachNanIsTheSameOne) {
  float negative, loaded;
  const uint32_t bits[] = {0xffc00000u, 0x7fa12345u};
  memcpy(&negative, &bits[0], 4);
  memcpy(&loaded, &bits[1], 4);
  const Words plain = NoteF32({1, std::nanf("")});
  EXPECT_EQ(plain.back(), "1 nan");
  EXPECT_EQ(NoteF32({1, negative}), plain);
  EXPECT_EQ(NoteF32({1, loaded}), plain);
  EXPECT_EQ(NoteF32({std::numeric_limits<float>::infinity()}).back(), "inf");
  const std::vector<uint16_t> f16 = {0x7e00, 0xfe01}, bf16 = {0x7fc0, 0xff81};
  for (const auto& [dtype, two] :
       {std::pair(CHOIR_DTYPE_F16, f16), std::pair(CHOIR_DTYPE_BF16, bf16)})
    EXPECT_EQ(Note(dtype, std::vector<uint16_t>{two[0]}, {1})[kDigest],
              Note(dtype, std::vector<uint16_t>{two[1]}, {1})[kDigest]);
}

TEST_P(TraceTest, ADigestIsAlwaysTheSame) {
  // Of files that were written by another version, on another machine.
  EXPECT_EQ(NoteF32({1, 2.5f, std::nanf("")})[kDigest], "f6fd1a5f5adf697d");
}

choir_status_t RunNothing(const choir_record_t* /*record*/,
                          choir_stream_t* /*stream*/) {
  return nullptr;
}

TEST_P(TraceTest, RecordsWithoutOperandsHaveTheResultsTheyAreTold) {
  const choir_kernel_t kernel = {"exchange", RunNothing, {}, {}, {}, true};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.label = "bucket";
  choir_trace_value_t value = {"w", {}};
  const int64_t count = 8;
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_I64, 1, &count, &value.view));
  value.view.buffer = a_;
  Start();
  ASSERT_OK(choir_stream_submit(stream_, &record));
  choir__trace_set_results(stream_, &value, 1);
  ASSERT_OK(choir_stream_submit(stream_, &record));
  Submit(TestRecord::Fill(b_, 1));  // has operands of its own
  choir__trace_set_results(stream_, nullptr, 0);
  ASSERT_OK(choir_stream_submit(stream_, &record));
  EXPECT_EQ(Places(),
            "0|0|exchange|bucket|\n0|1|exchange|bucket|result w\n"
            "0|2|fill/test||result 0\n0|3|exchange|bucket|\n");
}

// On any stream, and what a kernel submits is the record's own.
TEST_P(TraceTest, SeesAllStreams) {
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &other));
  Start();
  ASSERT_OK(choir_stream_submit(other, TestRecord::Fill(a_, 1).get()));
  Submit(TestRecord::Fill(b_, 1));
  EXPECT_EQ(Places(), "0|0|fill/test||result 0\n0|1|fill/test||result 0\n");
  ASSERT_OK(choir_stream_submit(other, TestRecord::Fill(a_, 2).get()));
  choir_stream_release(other);
}

// A record that submits another, on a device that runs it in submit.
choir_status_t RunInner(const choir_record_t* record, choir_stream_t* stream) {
  return choir_stream_submit(
      stream, static_cast<const choir_record_t* const*>(record->attrs)[0]);
}

class TraceOnCpuTest : public TraceTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, TraceOnCpuTest, ::testing::Values("cpu"));

TEST_P(TraceOnCpuTest, WhatAKernelSubmitsIsItsOwn) {
  TestRecord fill = TestRecord::Fill(a_, 5);
  const choir_record_t* attrs[] = {fill.get()};
  const choir_kernel_t kernel = {"outer", RunInner, {}, {}, {}, false};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.attrs = attrs;
  record.attrs_bytes = sizeof(attrs);
  Start();
  ASSERT_OK(choir_stream_submit(stream_, &record));
  EXPECT_EQ(Places(), "0|0|outer||\n");
}

TEST_P(TraceTest, LayersHaveTheResultsOfTheirLastRecord) {
  Start(CHOIR_TRACE_LAYER);
  choir_stream_set_label(stream_, "one");
  Submit(TestRecord::Fill(a_, 1));
  Submit(TestRecord::Affine(a_, b_, 2, 1));
  choir_stream_set_label(stream_, "two");
  Submit(TestRecord::Fill(a_, 2));
  choir_trace_set_step(device_, 1);
  Submit(TestRecord::Fill(a_, 4));
  choir_stream_set_label(stream_, nullptr);
  const std::vector<Words> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(Words(lines[0].begin(), lines[0].begin() + kDtype),
            (Words{"0", "1", "affine/test", "one", "results"}));
  EXPECT_EQ(Split(lines[0].back(), ' '), Words(8, "3"));
  EXPECT_EQ(lines[1][kLabel] + lines[1].back()[0], "two2");
  EXPECT_EQ(lines[2][kStep] + lines[2].back()[0], "14");
}

TEST_P(TraceTest, StepsHaveWhatIsNotedAlone) {
  Start(CHOIR_TRACE_STEP);
  EXPECT_TRUE(choir__trace_is_on(device_));
  EXPECT_FALSE(choir__trace_sees_records(device_));
  Submit(TestRecord::Fill(a_, 1));
  choir_trace_value_t value = {"w", {}};
  const int64_t count = 8;
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_I64, 1, &count, &value.view));
  value.view.buffer = a_;
  ASSERT_OK(choir_trace_note(device_, "parameters", &value, 1));
  EXPECT_EQ(Places(), "0|0|parameters||result w\n");
  EXPECT_FALSE(choir__trace_is_on(device_));
  // Nothing where no trace runs.
  ASSERT_OK(choir_trace_note(device_, "parameters", &value, 1));
  choir_trace_set_step(device_, 3);
  ASSERT_OK(choir_trace_stop(device_));
}

// A graph's records are seen when they run, each time.
TEST_P(TraceTest, SeesReplaysOfGraphs) {
  choir_workspace_t* workspace = nullptr;
  choir_graph_t* graph = nullptr;
  const choir_step_values_t values = {};
  ASSERT_OK(choir_workspace_create(device_, &workspace));
  ASSERT_OK(choir_graph_create(workspace, &graph));
  Start();
  ASSERT_OK(choir_graph_begin(graph, &stream_, 1, &values));
  Submit(TestRecord::Affine(a_, b_, 1, 1, /*accumulate=*/true));
  ASSERT_OK(choir_graph_end(graph));
  const choir_graph_options_t options = {};
  ASSERT_OK(choir_graph_plan(graph, &options));
  Submit(TestRecord::Fill(b_, 5));
  for (int i = 0; i < 2; ++i)
    ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
  const std::vector<Words> lines = Lines();
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0][kOp], "fill/test");
  EXPECT_EQ(lines[3].back()[0], '6');
  EXPECT_EQ(lines[6].back()[0], '7');
  choir_graph_destroy(graph);
  choir_workspace_destroy(workspace);
}

TEST_P(TraceTest, RanksHaveFilesOfTheirOwn) {
  const choir_trace_options_t options = {path_.c_str(), 12, CHOIR_TRACE_TENSOR};
  ASSERT_OK(choir_trace_start(device_, &options));
  path_ += ".12";
  EXPECT_EQ(Lines().size(), 0u);
}

TEST_P(TraceTest, AFailedRecordIsAFailure) {
  Start();
  choir_status_t status =
      choir_stream_submit(stream_, TestRecord::Fail(4).get());
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 4", status);
  Submit(TestRecord::Fill(a_, 1));
  EXPECT_EQ(Places(), "0|1|fill/test||result 0\n");
}

TEST_P(TraceTest, MistakesAreTold) {
  choir_trace_options_t options = {nullptr, 0, CHOIR_TRACE_TENSOR};
  EXPECT_STATUS(INVALID_ARGUMENT, "needs a path",
                choir_trace_start(device_, &options));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs a path",
                choir_trace_start(device_, nullptr));
  options.path = "/nowhere/at/all";
  options.rank = 3;
  EXPECT_STATUS(NOT_FOUND, "trace: cannot write to /nowhere/at/all.3: No such",
                choir_trace_start(device_, &options));
  options.rank = 0;
  const std::string large(5000, 'x');
  options.path = large.c_str();
  EXPECT_STATUS(NOT_FOUND, "File name too long",
                choir_trace_start(device_, &options));
  options.path = "/dev/full";
  EXPECT_STATUS(UNAVAILABLE, "trace: cannot write to /dev/full: No space",
                choir_trace_start(device_, &options));
  Start();
  EXPECT_STATUS(FAILED_PRECONDITION, "is traced already, to " + path_,
                choir_trace_start(device_, &options));
}

TEST(TraceMemoryTest, WithoutMemoryNothingIsTraced) {
  FailingAllocator allocator;
  choir_device_options_t device_options = {};
  device_options.allocator = allocator.get();
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", &device_options, &device));
  const std::string path = ::testing::TempDir() + "/none";
  const choir_trace_options_t options = {path.c_str(), 0, CHOIR_TRACE_TENSOR};
  allocator.FailAt(0, true);
  EXPECT_STATUS(OUT_OF_MEMORY, "trace", choir_trace_start(device, &options));
  allocator.FailAt(-1);
  // The end of the device ends the trace.
  ASSERT_OK(choir_trace_start(device, &options));
  choir_device_release(device);
}

}  // namespace
