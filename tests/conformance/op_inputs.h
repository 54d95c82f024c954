// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_OP_INPUTS_H_
#define CHOIR_TESTS_CONFORMANCE_OP_INPUTS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tensor/op_def.h"

namespace choir {
namespace testing {

// The problems of tensor/op_def.h as data: shapes and attributes out of their
// texts, and inputs that fit the op's domains.

using Shape = std::vector<int64_t>;

int64_t CountOf(const Shape& shape);

// "4,3;3" -> {{4, 3}, {3}}; an empty part is a scalar.
std::vector<Shape> ParseShapes(const std::string& text);

// The op's attributes: defaults, then "name=value ..." of `text` (may be NULL).
// Empty when the op takes none.
std::vector<unsigned char> ParseAttrs(choir_op_t op, const char* text);

// One operand in row-major order; every value fits the dtype.
struct Values {
  choir_dtype_t dtype;
  Shape shape;
  std::vector<double> elements;
};

// The sources of one problem. `dtype` is that of source 0 and of all others
// except source 1 when the op gives it dtypes of its own: then second_dtype
// (and that of later sources when they follow it). With `repeated` all elements
// along dimension 0 of a source are the same.
std::vector<Values> MakeSources(choir_op_t op, const std::vector<Shape>& shapes,
                                const std::vector<unsigned char>& attrs,
                                choir_dtype_t dtype, choir_dtype_t second_dtype,
                                bool repeated, uint64_t seed);

// Numbers of no special kind, for what a destination holds before.
Values MakeAnything(choir_dtype_t dtype, const Shape& shape, uint64_t seed);

// Views of the destinations as the op infers them for row-major sources.
std::vector<choir_view_t> InferResults(const choir_op_def_t* def,
                                       const std::vector<Values>& sources,
                                       const std::vector<unsigned char>& attrs);
Shape ShapeOf(const choir_view_t& view);

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_CONFORMANCE_OP_INPUTS_H_
