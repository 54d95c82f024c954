// SPDX-License-Identifier: Apache-2.0
// Every op of the list, on every one of its cases, on a reproducible CPU: the
// same bits on every instruction set and for every number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/conformance/op_problems.h"
#include "tests/testing/reproducible_cpu.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::AllOpProblems;
using choir::testing::InferResults;
using choir::testing::kContiguous;
using choir::testing::MakeAnything;
using choir::testing::OpProblem;
using choir::testing::ParseAttrs;
using choir::testing::Placed;
using choir::testing::PlacedSources;
using choir::testing::ReproducibleCpu;
using choir::testing::ResizedProblems;
using choir::testing::ShapeOf;
using choir::testing::SourcesOf;
using choir::testing::Values;

class DefinedSuite : public ::testing::TestWithParam<OpProblem> {
 protected:
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }

  static void RunTwo(choir_device_t* device, choir_tensor_t* const* srcs,
                     int32_t count, const void* attrs, choir_tensor_t** dsts) {
    const auto* both =
        static_cast<const choir_conv2d_max_pool2d_attrs_t*>(attrs);
    choir_stream_t* stream = choir_device_stream(device);
    choir_tensor_t* image = nullptr;
    ASSERT_OK(choir_op_run(stream, CHOIR_OP_CONV2D, srcs, count, &both->conv,
                           false, &image));
    ASSERT_OK(choir_op_run(stream, CHOIR_OP_MAX_POOL2D, &image, 1, &both->pool,
                           false, dsts));
    choir_tensor_release(image);
  }

  // The results' bytes.
  std::string Run(choir_device_t* device, bool accumulate) {
    const choir_op_def_t* def = GetParam().def();
    std::vector<unsigned char> attrs =
        ParseAttrs(def->op, GetParam().of().attrs);
    const std::vector<Values> sources = SourcesOf(GetParam(), attrs);
    const auto inferred = InferResults(def, sources, attrs);
    PlacedSources srcs(device, sources);
    std::vector<std::unique_ptr<Placed>> placed;
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    for (size_t i = 0; accumulate && i < inferred.size(); ++i) {
      placed.push_back(std::make_unique<Placed>(
          device, MakeAnything(inferred[i].dtype, ShapeOf(inferred[i]), 2 + i),
          kContiguous));
      dsts[i] = placed.back()->tensor();
    }
    const void* given = attrs.empty() ? nullptr : attrs.data();
    const int32_t count = static_cast<int32_t>(srcs.tensors.size());
    // Of a fusion there are kernels, and the two ops that it stands for.
    if (def->op == CHOIR_OP_CONV2D_MAX_POOL2D &&
        !choir__op_has_kernel(device, def->op, srcs.tensors.data(), count,
                              given, accumulate, dsts))
      RunTwo(device, srcs.tensors.data(), count, given, dsts);
    else
      EXPECT_OK(choir_op_run(choir_device_stream(device), def->op,
                             srcs.tensors.data(), count, given, accumulate,
                             dsts));
    std::string bytes;
    for (size_t i = 0; i < inferred.size() && !HasFailure(); ++i) {
      std::string some(static_cast<size_t>(choir_view_count(&inferred[i])) *
                           choir_dtype_bytes(inferred[i].dtype),
                       '\0');
      EXPECT_OK(choir_tensor_read(dsts[i], some.data(), some.size()));
      bytes += some;
      if (!accumulate) choir_tensor_release(dsts[i]);
    }
    return bytes;
  }
};

// Every op has at least so many problems, of unlike shapes.
constexpr size_t kLeast = 50;

std::vector<OpProblem> Problems() {
  std::vector<OpProblem> problems = AllOpProblems();
  std::vector<size_t> counts(CHOIR_OP_COUNT);
  for (const OpProblem& problem : problems) ++counts[problem.op];
  for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
    const size_t count = counts[static_cast<size_t>(op)];
    if (count == 0 || count >= kLeast) continue;
    for (const OpProblem& more :
         ResizedProblems(static_cast<choir_op_t>(op), kLeast - count))
      problems.push_back(more);
  }
  return problems;
}

TEST_P(DefinedSuite, HasOneResult) {
  for (bool accumulate : {false, true}) {
    if (accumulate && GetParam().def()->no_accumulate) continue;
    std::string expected;
    for (int isa = CHOIR__ISA_BASE; isa <= CHOIR__ISA_AVX512; ++isa) {
      if (choir__isa_limit(static_cast<choir__isa_t>(isa)) != isa) continue;
      for (int threads : {1, 3}) {
        const std::string got = Run(ReproducibleCpu(threads), accumulate);
        if (expected.empty()) expected = got;
        ASSERT_TRUE(got == expected)
            << "instruction set " << isa << ", threads " << threads
            << (accumulate ? ", added" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, DefinedSuite, ::testing::ValuesIn(Problems()));

}  // namespace
