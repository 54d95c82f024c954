// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_OP_PROBLEMS_H_
#define CHOIR_TESTS_CONFORMANCE_OP_PROBLEMS_H_

#include <algorithm>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"

namespace choir {
namespace testing {

// The cases of the list's ops, in f32.
struct OpProblem {
  choir_op_t op;
  int number;                // of the case
  std::string resized = "";  // other shapes than the case's; empty: its own

  std::string shapes() const { return resized.empty() ? of().shapes : resized; }
  const choir_op_def_t* def() const { return choir__op_def(op); }
  const choir_op_case_t& of() const { return def()->cases[number]; }
};

inline void PrintTo(const OpProblem& problem, std::ostream* out) {
  *out << choir_op_name(problem.op) << " " << problem.shapes() << " "
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
  return MakeSources(problem.op, ParseShapes(problem.shapes()), attrs,
                     CHOIR_DTYPE_F32, second, false, 1);
}

// Whether the op takes these shapes with the case's attributes.
inline bool IsTaken(const OpProblem& problem) {
  const std::vector<unsigned char> attrs =
      ParseAttrs(problem.op, problem.of().attrs);
  std::vector<choir_view_t> views;
  for (const Values& source : SourcesOf(problem, attrs)) {
    choir_view_t view;
    choir_status_t status =
        choir_view_make(source.dtype, static_cast<int32_t>(source.shape.size()),
                        source.shape.data(), &view);
    if (status) {
      choir_status_free(status);
      return false;
    }
    views.push_back(view);
  }
  choir_view_t results[CHOIR_OP_MAX_RESULTS];
  choir_status_t status = choir__op_infer(
      problem.op, views.data(), static_cast<int32_t>(views.size()),
      attrs.empty() ? nullptr : attrs.data(), results);
  const bool is_taken = !status;
  choir_status_free(status);
  return is_taken;
}

// More shapes for an op with few: its small cases, with one of their sizes
// another one wherever it stands. At most `count`.
inline std::vector<OpProblem> ResizedProblems(choir_op_t op, size_t count) {
  std::vector<OpProblem> found;
  std::set<std::string> known;
  const choir_op_def_t* def = choir__op_def(op);
  for (int64_t more : {1, 13, 2, 30, 5, 3, 8, 17, 6, 40, 7, 20, 11, 9}) {
    for (int i = 0; def->cases[i].shapes; ++i) {
      const std::vector<Shape> shapes = ParseShapes(def->cases[i].shapes);
      std::set<int64_t> sizes;
      for (const Shape& shape : shapes)
        sizes.insert(shape.begin(), shape.end());
      for (int64_t size : sizes) {
        std::string text;
        int64_t elements = 0;
        for (const Shape& shape : shapes) {
          text += &shape == shapes.data() ? "" : ";";
          int64_t all = 1;
          for (size_t k = 0; k < shape.size(); ++k) {
            const int64_t one = shape[k] == size ? size + more : shape[k];
            text += (k > 0 ? "," : "") + std::to_string(one);
            all *= one;
          }
          elements += all;
        }
        const OpProblem problem = {op, i, text};
        if (size == 0 || elements > 20000 || found.size() == count ||
            !known.insert(text + " " + std::to_string(i)).second ||
            !IsTaken(problem))
          continue;
        found.push_back(problem);
      }
    }
  }
  return found;
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
