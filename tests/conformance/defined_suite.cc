// SPDX-License-Identifier: Apache-2.0
// Every op of the list, on every one of its cases, on a reproducible CPU: the
// same bits on every instruction set and for every number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/op_def.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::InferResults;
using choir::testing::kContiguous;
using choir::testing::MakeAnything;
using choir::testing::MakeSources;
using choir::testing::ParseAttrs;
using choir::testing::ParseShapes;
using choir::testing::Placed;
using choir::testing::ShapeOf;
using choir::testing::Values;

struct Problem {
  choir_op_t op;
  int number;  // of the case
};

void PrintTo(const Problem& problem, std::ostream* out) {
  const choir_op_case_t& one = choir__op_def(problem.op)->cases[problem.number];
  *out << choir_op_name(problem.op) << " " << one.shapes << " "
       << (one.attrs ? one.attrs : "");
}

std::vector<Problem> AllProblems() {
  std::vector<Problem> problems;
  for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
    const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
    if (!(def->dtypes & CHOIR_DTYPE_MASK(F32))) continue;
    for (int i = 0; def->cases[i].shapes; ++i) problems.push_back({def->op, i});
  }
  return problems;
}

choir_device_t* MakeDevice(int threads) {
  choir_device_options_t options = {};
  options.threads = threads;
  options.reproducible = true;
  choir_device_t* device = nullptr;
  EXPECT_OK(choir_device_create("cpu", &options, &device));
  return device;
}

// Made once: threads cost more than most problems here.
choir_device_t* DeviceOf(int threads) {
  static choir_device_t* const one = MakeDevice(1);
  static choir_device_t* const three = MakeDevice(3);
  return threads == 1 ? one : three;
}

choir_dtype_t SecondDtype(const choir_op_def_t* def) {
  if (!def->second_dtypes) return CHOIR_DTYPE_F32;
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_I64, CHOIR_DTYPE_I32,
                              CHOIR_DTYPE_U8, CHOIR_DTYPE_BOOL})
    if (def->second_dtypes >> dtype & 1) return dtype;
  return CHOIR_DTYPE_F32;
}

class DefinedSuite : public ::testing::TestWithParam<Problem> {
 protected:
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }

  // The results' bytes.
  std::string Run(choir_device_t* device, bool accumulate) {
    const choir_op_def_t* def = choir__op_def(GetParam().op);
    const choir_op_case_t& one = def->cases[GetParam().number];
    std::vector<unsigned char> attrs = ParseAttrs(def->op, one.attrs);
    const std::vector<Values> sources =
        MakeSources(def->op, ParseShapes(one.shapes), attrs, CHOIR_DTYPE_F32,
                    SecondDtype(def), false, 1);
    const auto inferred = InferResults(def, sources, attrs);
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<choir_tensor_t*> srcs;
    for (const Values& source : sources) {
      placed.push_back(std::make_unique<Placed>(device, source, kContiguous));
      srcs.push_back(placed.back()->tensor());
    }
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    for (size_t i = 0; accumulate && i < inferred.size(); ++i) {
      placed.push_back(std::make_unique<Placed>(
          device, MakeAnything(inferred[i].dtype, ShapeOf(inferred[i]), 2 + i),
          kContiguous));
      dsts[i] = placed.back()->tensor();
    }
    EXPECT_OK(choir_op_run(choir_device_stream(device), def->op, srcs.data(),
                           static_cast<int32_t>(srcs.size()),
                           attrs.empty() ? nullptr : attrs.data(), accumulate,
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

TEST_P(DefinedSuite, HasOneResult) {
  for (bool accumulate : {false, true}) {
    if (accumulate && choir__op_def(GetParam().op)->no_accumulate) continue;
    std::string expected;
    for (int isa = CHOIR__ISA_BASE; isa <= CHOIR__ISA_AVX512; ++isa) {
      if (choir__isa_limit(static_cast<choir__isa_t>(isa)) != isa) continue;
      for (int threads : {1, 3}) {
        const std::string got = Run(DeviceOf(threads), accumulate);
        if (expected.empty()) expected = got;
        ASSERT_TRUE(got == expected)
            << "instruction set " << isa << ", threads " << threads
            << (accumulate ? ", added" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, DefinedSuite, ::testing::ValuesIn(AllProblems()));

}  // namespace
