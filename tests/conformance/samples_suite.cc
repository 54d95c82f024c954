// SPDX-License-Identifier: Apache-2.0
// What a scope says of an op's results with micro-shards: that a sample's rows
// are computed from that sample's alone. On a reproducible CPU they are, bit
// for bit, those of the op on the sample's rows: for every op of the list that
// a model can use, on every case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "autograd/scope.h"
#include "autograd/scope_internal.h"
#include "tests/conformance/op_problems.h"
#include "tests/testing/reproducible_cpu.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::AllOpProblems;
using choir::testing::OpProblem;
using choir::testing::ParseAttrs;
using choir::testing::PlacedSources;
using choir::testing::SourcesOf;

enum Kind { GRAD, OP_GRAD, NO_GRAD, INTERNAL };
constexpr Kind kKinds[] = {
#define X(ENUM, name, sources, attrs, kind) kind,
    CHOIR_OP_LIST(X)
#undef X
};

std::vector<OpProblem> ModelsProblems() {
  std::vector<OpProblem> problems;
  for (const OpProblem& problem : AllOpProblems())
    if (kKinds[problem.op] != INTERNAL) problems.push_back(problem);
  return problems;
}

choir_device_t* Cpu() { return choir::testing::ReproducibleCpu(1); }

// Rows first .. of a tensor, `count` of them.
choir_tensor_t* RowsOf(const choir_tensor_t* tensor, int64_t first,
                       int64_t count) {
  choir_view_t view = *choir_tensor_view(tensor);
  if (choir_view_count(&view) > 0) view.offset += first * view.strides[0];
  view.shape[0] = count;
  choir_tensor_t* part = nullptr;
  EXPECT_OK(choir_tensor_from_view(&view, &part));
  return part;
}

std::string BytesOf(choir_tensor_t* tensor) {
  std::string bytes(static_cast<size_t>(choir_tensor_count(tensor)) *
                        choir_dtype_bytes(choir_tensor_dtype(tensor)),
                    '\0');
  EXPECT_OK(choir_tensor_read(tensor, bytes.data(), bytes.size()));
  return bytes;
}

class SamplesSuite : public ::testing::TestWithParam<OpProblem> {
 protected:
  void SetUp() override { ASSERT_OK(choir_scope_create(Cpu(), &scope_)); }
  void TearDown() override { choir_scope_destroy(scope_); }

  // The op with the sources of `sampled` as what has samples.
  void Check(const std::vector<choir_tensor_t*>& srcs,
             const std::vector<bool>& sampled, int64_t samples,
             const void* attrs) {
    choir_step_t step = {};
    step.training = true;
    step.sample_count = step.global_count = samples;
    step.micro_shard = 1;
    choir_scope_begin(scope_, &step);
    std::vector<choir_var_t*> vars;
    for (size_t i = 0; i < srcs.size(); ++i)
      vars.push_back(sampled[i] ? choir_scope_samples(scope_, srcs[i])
                                : choir_scope_input(scope_, srcs[i]));
    choir_var_t* results[CHOIR_OP_MAX_RESULTS] = {};
    results[0] =
        choir_scope_op(scope_, GetParam().op, vars.data(),
                       static_cast<int32_t>(vars.size()), attrs, results + 1);
    if (choir_scope_is_ok(scope_))
      for (int64_t n = 0; n < samples; ++n)
        CheckSample(srcs, sampled, attrs, n, results);
    EXPECT_OK(choir_scope_end(scope_));
  }

  // Those of the sample alone: shapes, and numbers that samples draw by.
  std::vector<unsigned char> AttrsOf(const void* attrs, int64_t sample,
                                     const choir_var_t* result) {
    const choir_struct_def_t* def = GetParam().def()->attrs;
    if (!attrs) return {};
    std::vector<unsigned char> own(def->bytes);
    memcpy(own.data(), attrs, def->bytes);
    const choir_op_t op = GetParam().op;
    if (op == CHOIR_OP_RESHAPE || op == CHOIR_OP_BROADCAST_TO)
      reinterpret_cast<choir_reshape_attrs_t*>(own.data())->shape[0] =
          result->rows;
    if (const choir_field_t* field = choir_struct_find(def, "first_sample"))
      *reinterpret_cast<int64_t*>(own.data() + field->offset) += sample;
    return own;
  }

  void CheckSample(const std::vector<choir_tensor_t*>& srcs,
                   const std::vector<bool>& sampled, const void* attrs,
                   int64_t sample, choir_var_t* const* results) {
    const choir_op_t op = GetParam().op;
    bool is_said = false;
    for (int32_t i = 0; i < choir_op_result_count(op); ++i)
      is_said |= results[i]->rows > 0;
    if (!is_said) return;
    const std::vector<unsigned char> own = AttrsOf(attrs, sample, results[0]);
    std::vector<choir_tensor_t*> parts;
    for (size_t i = 0; i < srcs.size(); ++i) {
      if (!sampled[i]) choir_tensor_retain(srcs[i]);
      parts.push_back(sampled[i] ? RowsOf(srcs[i], sample, 1) : srcs[i]);
    }
    choir_tensor_t* got[CHOIR_OP_MAX_RESULTS] = {};
    ASSERT_OK(choir_op_run(choir_device_stream(Cpu()), op, parts.data(),
                           static_cast<int32_t>(parts.size()),
                           attrs ? own.data() : nullptr, false, got));
    for (int32_t i = 0; i < choir_op_result_count(op); ++i) {
      const int64_t rows = results[i]->rows;
      if (rows > 0) {
        choir_tensor_t* wanted =
            RowsOf(choir_var_tensor(results[i]), sample * rows, rows);
        EXPECT_TRUE(BytesOf(got[i]) == BytesOf(wanted))
            << "result " << i << " of sample " << sample;
        choir_tensor_release(wanted);
      }
      choir_tensor_release(got[i]);
    }
    for (choir_tensor_t* part : parts) choir_tensor_release(part);
  }

  choir_scope_t* scope_ = nullptr;
};

TEST_P(SamplesSuite, EachByItself) {
  const std::vector<unsigned char> attrs =
      ParseAttrs(GetParam().op, GetParam().of().attrs);
  const PlacedSources placed(Cpu(), SourcesOf(GetParam(), attrs));
  const std::vector<choir_tensor_t*>& srcs = placed.tensors;
  // Any set of sources whose first dimensions are equal.
  for (uint32_t set = 1; set < (1u << std::min<size_t>(srcs.size(), 5));
       ++set) {
    std::vector<bool> sampled;
    int64_t samples = 0;
    bool fits = true;
    for (size_t i = 0; i < srcs.size(); ++i) {
      sampled.push_back(i < 5 && (set >> i & 1));
      if (!sampled.back()) continue;
      const int64_t first =
          choir_tensor_ndim(srcs[i]) > 0 ? choir_tensor_shape(srcs[i])[0] : 0;
      fits &= first > 0 && (samples == 0 || samples == first);
      samples = first;
    }
    if (fits && !HasFailure())
      Check(srcs, sampled, samples, attrs.empty() ? nullptr : attrs.data());
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, SamplesSuite,
                         ::testing::ValuesIn(ModelsProblems()));

}  // namespace
