// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_LAYER_CASES_H_
#define CHOIR_TESTS_CONFORMANCE_LAYER_CASES_H_

#include <map>
#include <string>
#include <vector>

#include "tensor/ops.h"
#include "tests/conformance/op_inputs.h"

// What layer_suite.cc asks of each layer: one table, in layer_cases.cc.

namespace choir {
namespace testing {

struct LayerParameter {
  std::string name;
  Shape shape;
  bool trainable;
};

struct LayerCase {
  const char* config;  // "out_features=3 ...", beside the defaults
  Shape input;
  Shape output;
  std::vector<LayerParameter> params;
  // What it does in inference: this op on x and the parameters.
  // CHOIR_OP_COUNT: more than one op; a test of its own has numbers.
  choir_op_t op;
  const char* attrs;  // of the op
  bool relu;          // and that on top
};

struct LayerRefusal {
  const char* config;
  Shape input;
  const char* sentence;
};

// What is asked of a layer.
struct LayerExpected {
  std::vector<LayerCase> cases;
  std::vector<LayerRefusal> config;    // at creation
  std::vector<LayerRefusal> at_build;  // at the first input
  bool trains_differently;             // from inference
  int64_t ids = 0;                     // the input is i64, from 0 to below this
  size_t inputs = 1;                   // the input so many times
};

// By the layers' names. A line of CHOIR_LAYER_LIST needs its entry there.
const std::map<std::string, LayerExpected>& LayersExpected();

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_CONFORMANCE_LAYER_CASES_H_
