// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_OP_PROBLEMS_H_
#define CHOIR_TESTS_CONFORMANCE_OP_PROBLEMS_H_

#include <memory>
#include <ostream>
#include <vector>

#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"

namespace choir {
namespace testing {

// The cases of the list's ops, in f32.
struct OpProblem {
  choir_op_t op;
  int number;  // of the case

  const choir_op_def_t* def() const { return choir__op_def(op); }
  const choir_op_case_t& of() const { return def()->cases[number]; }
};

inline void PrintTo(const OpProblem& problem, std::ostream* out) {
  *out << choir_op_name(problem.op) << " " << problem.of().shapes << " "
       << (problem.of().attrs ? problem.of().attrs : "");
}

inline std::vector<OpProblem> AllOpProblems() {
  std::vector<OpProblem> problems;
  for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
    const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
    if (!(def->dtypes & CHOIR_DTYPE_MASK(F32))) continue;
    for (int i = 0; def->cases[i].shapes; ++i) problems.push_back({def->op, i});
  }
  return problems;
}

inline std::vector<Values> SourcesOf(const OpProblem& problem,
                                     const std::vector<unsigned char>& attrs) {
  choir_dtype_t second = CHOIR_DTYPE_F32;
  const uint32_t dtypes = problem.def()->second_dtypes;
  for (choir_dtype_t dtype : {CHOIR_DTYPE_BOOL, CHOIR_DTYPE_U8, CHOIR_DTYPE_I32,
                              CHOIR_DTYPE_I64, CHOIR_DTYPE_F32})
    if (dtypes >> dtype & 1) second = dtype;
  return MakeSources(problem.op, ParseShapes(problem.of().shapes), attrs,
                     CHOIR_DTYPE_F32, second, false, 1);
}

// Them on a device.
struct PlacedSources {
  PlacedSources(choir_device_t* device, const std::vector<Values>& sources) {
    for (const Values& source : sources) {
      placed.push_back(std::make_unique<Placed>(device, source, kContiguous));
      tensors.push_back(placed.back()->tensor());
    }
  }
  std::vector<std::unique_ptr<Placed>> placed;
  std::vector<choir_tensor_t*> tensors;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_CONFORMANCE_OP_PROBLEMS_H_
