// SPDX-License-Identifier: Apache-2.0
// The gradient of every op of the list that has one, on its smaller cases, in
// f64 and many layouts, on every line of core/device/devices.def: what the tape
// gives against central finite differences of the op itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "autograd/scope.h"
#include "tensor/op_def.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::kChannelsLast;
using choir::testing::kContiguous;
using choir::testing::kDevices;
using choir::testing::kGaps;
using choir::testing::kRepeated;
using choir::testing::kReversed;
using choir::testing::kSanitized;
using choir::testing::Layout;
using choir::testing::MakeAnything;
using choir::testing::MakeSources;
using choir::testing::ParseAttrs;
using choir::testing::ParseShapes;
using choir::testing::Placed;
using choir::testing::Shape;
using choir::testing::Values;

#define HAS_GRAD true
#define HAS_OP_GRAD true
#define HAS_NO_GRAD false
#define HAS_INTERNAL false
#define HAS(ENUM, name, n, attrs, grad) HAS_##grad,
const bool kHasGradient[] = {CHOIR_OP_LIST(HAS)};

// Difference steps are taken for this many elements of a source, and one along
// a direction through all of them.
constexpr size_t kProbes = 20;
constexpr double kStep = 2e-6;
constexpr double kTolerance = 1e-6;
// Larger cases cost time and show nothing more.
constexpr int64_t kMostElements = 700;

std::vector<unsigned char> AttrsOf(choir_op_t op, const char* text) {
  std::vector<unsigned char> attrs = ParseAttrs(op, text);
  // To another dtype the function is a staircase.
  if (op == CHOIR_OP_CAST)
    reinterpret_cast<choir_cast_attrs_t*>(attrs.data())->dtype =
        CHOIR_DTYPE_F64;
  return attrs;
}

// Moves values of later sources away from those of earlier ones: where two
// are equal, maximum and minimum have a kink.
void MakeDistinctAcross(std::vector<Values>* sources) {
  for (size_t s = 1; s < sources->size(); ++s) {
    for (double& element : (*sources)[s].elements) {
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < s && !moved; ++r) {
          for (double other : (*sources)[r].elements)
            moved |= std::fabs(element - other) < 1e-4;
        }
        if (moved) element += 2.5e-4;
      }
    }
  }
}

std::vector<Values> SourcesOf(const choir_op_def_t* def, int number,
                              bool repeated) {
  const choir_op_case_t& one = def->cases[number];
  // What chooses is no number with a slope.
  const choir_dtype_t first =
      def->rest_as_second ? CHOIR_DTYPE_BOOL : CHOIR_DTYPE_F64;
  const choir_dtype_t second =
      def->rest_as_second ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_I64;
  std::vector<Values> sources =
      MakeSources(def->op, ParseShapes(one.shapes), AttrsOf(def->op, one.attrs),
                  first, second, repeated, 11);
  if (def->domains[1] == CHOIR_DOMAIN_NO_KINK) MakeDistinctAcross(&sources);
  return sources;
}

bool IsSmall(const choir_op_case_t& one) {
  int64_t count = 0;
  for (const Shape& shape : ParseShapes(one.shapes)) count += CountOf(shape);
  return count <= kMostElements;
}

// ---- Finite differences ----

// d sum(w * op(x)) by differences, w being WeightsOf(result).
struct Differences {
  Shape result;
  struct Probe {
    size_t source;
    size_t element;
    double slope;
  };
  std::vector<Probe> probes;
  std::vector<std::vector<double>> direction;  // by source
  double slope = 0;                            // along it
};

Values WeightsOf(const Shape& result) {
  return MakeAnything(CHOIR_DTYPE_F64, result, 21);
}

class Function {
 public:
  Function(const choir_op_def_t* def, const std::vector<Values>& sources,
           const std::vector<unsigned char>& attrs)
      : def_(def), attrs_(attrs) {
    for (const Values& source : sources) {
      placed_.push_back(
          std::make_unique<Placed>(Device("cpu"), source, kContiguous));
      srcs_.push_back(placed_.back()->tensor());
    }
  }

  void Set(size_t source, const std::vector<double>& elements) {
    ASSERT_OK(choir_tensor_write(srcs_[source], elements.data(),
                                 elements.size() * sizeof(double)));
  }

  std::vector<double> operator()(Shape* out_shape = nullptr) {
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    EXPECT_OK(choir_op_run(choir_device_stream(Device("cpu")), def_->op,
                           srcs_.data(), static_cast<int32_t>(srcs_.size()),
                           attrs_.empty() ? nullptr : attrs_.data(), false,
                           dsts));
    std::vector<double> y;
    if (dsts[0]) {
      EXPECT_EQ(choir_tensor_dtype(dsts[0]), CHOIR_DTYPE_F64);
      y.resize(static_cast<size_t>(choir_tensor_count(dsts[0])));
      EXPECT_OK(
          choir_tensor_read(dsts[0], y.data(), y.size() * sizeof(double)));
      const int64_t* shape = choir_tensor_shape(dsts[0]);
      if (out_shape)
        *out_shape = Shape(shape, shape + choir_tensor_ndim(dsts[0]));
    }
    for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
    return y;
  }

 private:
  const choir_op_def_t* def_;
  std::vector<unsigned char> attrs_;
  std::vector<std::unique_ptr<Placed>> placed_;
  std::vector<choir_tensor_t*> srcs_;
};

double Slope(const std::vector<double>& above, const std::vector<double>& below,
             const std::vector<double>& weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i)
    sum += weights[i] * ((above[i] - below[i]) / (2 * kStep));
  return sum;
}

// They depend on neither device nor layout.
const Differences& DifferencesOf(const choir_op_def_t* def, int number,
                                 bool repeated) {
  static std::map<std::tuple<int, int, bool>, Differences> all;
  auto key = std::make_tuple(static_cast<int>(def->op), number, repeated);
  auto found = all.find(key);
  if (found != all.end()) return found->second;
  Differences& made = all[key];
  const std::vector<Values> sources = SourcesOf(def, number, repeated);
  Function function(def, sources, AttrsOf(def->op, def->cases[number].attrs));
  function(&made.result);
  const std::vector<double> weights = WeightsOf(made.result).elements;
  std::mt19937_64 random(5);
  for (size_t s = 0; s < sources.size(); ++s) {
    const std::vector<double>& x = sources[s].elements;
    made.direction.emplace_back(x.size(), 0.0);
    if (sources[s].dtype != CHOIR_DTYPE_F64) continue;
    for (double& part : made.direction[s])
      part = std::uniform_real_distribution<double>(-1, 1)(random);
    for (size_t k = 0; k < std::min(kProbes, x.size()); ++k) {
      size_t i = x.size() <= kProbes ? k : random() % x.size();
      std::vector<double> moved = x;
      moved[i] = x[i] + kStep;
      function.Set(s, moved);
      std::vector<double> above = function();
      moved[i] = x[i] - kStep;
      function.Set(s, moved);
      std::vector<double> below = function();
      made.probes.push_back({s, i, Slope(above, below, weights)});
    }
    function.Set(s, x);
  }
  std::vector<double> y[2];
  for (int k = 0; k < 2; ++k) {
    for (size_t s = 0; s < sources.size(); ++s) {
      if (sources[s].dtype != CHOIR_DTYPE_F64) continue;
      std::vector<double> moved = sources[s].elements;
      for (size_t i = 0; i < moved.size(); ++i)
        moved[i] += (k ? -kStep : kStep) * made.direction[s][i];
      function.Set(s, moved);
    }
    y[k] = function();
  }
  made.slope = Slope(y[0], y[1], weights);
  return made;
}

// ---- The tape ----

// What the sources are, and what else the loss does with them.
enum Use {
  kLeaf,        // nothing else
  kUsedBefore,  // used before the op too: the op's gradient comes first
  kUsedAfter,   // and after it: the op's gradient is added
  kParam,       // parameters with destinations of their own
  kParamUsedAfter,
};
const Use kUses[] = {kLeaf, kUsedBefore, kUsedAfter, kParam, kParamUsedAfter};
const Layout kLayouts[] = {kContiguous, kGaps, kReversed, kChannelsLast,
                           kRepeated};

struct Problem {
  choir_op_t op;
  int number;  // of the case
  std::string device;
};

void PrintTo(const Problem& problem, std::ostream* out) {
  const choir_op_case_t& one = choir__op_def(problem.op)->cases[problem.number];
  *out << choir_op_name(problem.op) << " " << one.shapes << " "
       << (one.attrs ? one.attrs : "");
}

class GradSuite : public ::testing::TestWithParam<Problem> {
 protected:
  void SetUp() override {
    def_ = choir__op_def(GetParam().op);
    std::string why;
    device_ = Device(GetParam().device, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_NE(device_, nullptr);
    attrs_ = AttrsOf(def_->op, def_->cases[GetParam().number].attrs);
    ASSERT_OK(choir_scope_create(device_, &scope_));
  }
  void TearDown() override { choir_scope_destroy(scope_); }

  // All pairs on the first device. On others, where each of them takes several
  // ways to the device and back, and under a sanitizer two for each case: in
  // turn, all of them.
  bool IsTried(Layout layout, Use use) const {
    if (!kSanitized && GetParam().device == kDevices[0]) return true;
    const size_t number = static_cast<size_t>(GetParam().number);
    return use == (layout + number) % std::size(kUses) &&
           (layout == kContiguous ||
            layout == number / 5 % std::size(kLayouts));
  }

  bool Fits(Layout layout, Use use) const {
    const std::vector<Shape> shapes =
        ParseShapes(def_->cases[GetParam().number].shapes);
    if (layout == kChannelsLast) {
      for (const Shape& shape : shapes)
        if (shape.size() == 4) return true;
      return false;
    }
    if (layout == kRepeated) {
      // A destination cannot repeat elements.
      if (use == kParam || use == kParamUsedAfter) return false;
      // The maximum of equal elements has a kink, and the normal form of
      // equal elements next to one.
      if (def_->op == CHOIR_OP_BATCH_NORM) return false;
      if (def_->op == CHOIR_OP_MAX)
        return reinterpret_cast<const choir_reduce_attrs_t*>(attrs_.data())
                   ->axis > 0;
    }
    return true;
  }

  choir_var_t* Input(const Values& values) {
    kept_.push_back(std::make_unique<Placed>(device_, values, kContiguous));
    return choir_scope_input(scope_, kept_.back()->tensor());
  }

  choir_var_t* Run(choir_op_t op, const std::vector<choir_var_t*>& srcs) {
    return choir_scope_op(scope_, op, srcs.data(),
                          static_cast<int32_t>(srcs.size()), nullptr, nullptr);
  }

  // sum(x * v), one number
  choir_var_t* Term(choir_var_t* x, const Values& v) {
    return Run(CHOIR_OP_SUM, {Run(CHOIR_OP_MUL, {x, Input(v)})});
  }

  static std::vector<double> ReadAll(choir_tensor_t* tensor) {
    std::vector<double> elements(
        static_cast<size_t>(choir_tensor_count(tensor)));
    EXPECT_OK(choir_tensor_read(tensor, elements.data(),
                                elements.size() * sizeof(double)));
    return elements;
  }

  void Check(Layout layout, Use use) {
    const Differences& expected =
        DifferencesOf(def_, GetParam().number, layout == kRepeated);
    if (HasFailure()) return;
    const std::vector<Values> sources =
        SourcesOf(def_, GetParam().number, layout == kRepeated);
    const bool is_param = use == kParam || use == kParamUsedAfter;
    const choir_step_t step = {true, 3, 1, 0, 1, 1};
    choir_scope_begin(scope_, &step);
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<std::unique_ptr<Placed>> grads(sources.size());
    std::vector<choir_param_t> params(sources.size());
    std::vector<choir_var_t*> vars;
    std::vector<Values> slopes;  // of the other uses
    choir_var_t* loss = nullptr;
    for (size_t s = 0; s < sources.size(); ++s) {
      const Values& source = sources[s];
      placed.push_back(std::make_unique<Placed>(device_, source, layout));
      choir_tensor_t* tensor = placed.back()->tensor();
      slopes.push_back(MakeAnything(CHOIR_DTYPE_F64, source.shape, 31 + s));
      if (source.dtype != CHOIR_DTYPE_F64) {
        vars.push_back(choir_scope_input(scope_, tensor));
        continue;
      }
      if (is_param) {
        grads[s] = std::make_unique<Placed>(
            device_, MakeAnything(CHOIR_DTYPE_F64, source.shape, 41), layout);
        params[s].name = "param";
        params[s].value = tensor;
        params[s].grad = grads[s]->tensor();
        params[s].trainable = true;
        vars.push_back(choir_scope_param(scope_, &params[s]));
      } else {
        vars.push_back(choir_scope_leaf(scope_, tensor));
      }
      if (use == kUsedBefore) {
        choir_var_t* term = Term(vars[s], slopes[s]);
        loss = loss ? Run(CHOIR_OP_ADD, {loss, term}) : term;
      }
    }
    choir_var_t* y = choir_scope_op(
        scope_, def_->op, vars.data(), static_cast<int32_t>(vars.size()),
        attrs_.empty() ? nullptr : attrs_.data(), nullptr);
    // A neighbour that is handed the same gradient as the op.
    Placed other(device_, MakeAnything(CHOIR_DTYPE_F64, expected.result, 51),
                 kContiguous);
    choir_var_t* neighbour = choir_scope_leaf(scope_, other.tensor());
    const Values weights = WeightsOf(expected.result);
    choir_var_t* sum = Term(Run(CHOIR_OP_ADD, {y, neighbour}), weights);
    loss = loss ? Run(CHOIR_OP_ADD, {loss, sum}) : sum;
    const bool is_after = use == kUsedAfter || use == kParamUsedAfter;
    for (size_t s = 0; is_after && s < sources.size(); ++s) {
      if (sources[s].dtype == CHOIR_DTYPE_F64)
        loss = Run(CHOIR_OP_ADD, {loss, Term(vars[s], slopes[s])});
    }
    choir_scope_backward(scope_, loss, nullptr);
    if (!choir_scope_is_ok(scope_)) {
      ASSERT_OK(choir_scope_end(scope_));
      return;
    }
    std::vector<std::vector<double>> got(sources.size());
    for (size_t s = 0; s < sources.size(); ++s) {
      if (sources[s].dtype != CHOIR_DTYPE_F64) continue;
      choir_tensor_t* tensor = choir_var_grad(vars[s]);
      ASSERT_NE(tensor, nullptr) << "no gradient of source " << s;
      EXPECT_TRUE(choir_view_same_shape(choir_tensor_view(tensor),
                                        choir_var_view(vars[s])));
      got[s] = is_param ? grads[s]->Read() : ReadAll(tensor);
      ASSERT_EQ(got[s].size(), sources[s].elements.size());
      for (size_t i = 0; use != kLeaf && use != kParam && i < got[s].size();
           ++i)
        got[s][i] -= slopes[s].elements[i];
    }
    EXPECT_EQ(ReadAll(choir_var_grad(neighbour)), weights.elements);
    for (const std::unique_ptr<Placed>& source : placed)
      source->ExpectUnchanged();
    ASSERT_OK(choir_scope_end(scope_));
    kept_.clear();

    for (const Differences::Probe& probe : expected.probes) {
      ASSERT_NEAR(got[probe.source][probe.element], probe.slope,
                  kTolerance * std::fmax(1, std::fabs(probe.slope)))
          << "source " << probe.source << ", element " << probe.element;
    }
    if (expected.probes.empty()) return;  // no source has an element
    double slope = 0;
    double size = 1;
    for (size_t s = 0; s < got.size(); ++s) {
      for (size_t i = 0; i < got[s].size(); ++i) {
        slope += got[s][i] * expected.direction[s][i];
        size += std::fabs(got[s][i] * expected.direction[s][i]);
      }
    }
    ASSERT_NEAR(slope, expected.slope, kTolerance * size)
        << "along a direction through all elements";
  }

  const choir_op_def_t* def_ = nullptr;
  choir_device_t* device_ = nullptr;
  choir_scope_t* scope_ = nullptr;
  std::vector<unsigned char> attrs_;
  std::vector<std::unique_ptr<Placed>> kept_;  // inputs of the running step
};

TEST_P(GradSuite, AgreesWithFiniteDifferences) {
  const char* const layouts[] = {"contiguous", "gaps", "reversed",
                                 "channels-last", "repeated"};
  const char* const uses[] = {"leaf", "used before", "used after", "parameter",
                              "parameter used after"};
  for (Layout layout : kLayouts) {
    for (Use use : kUses) {
      if (!IsTried(layout, use) || !Fits(layout, use)) continue;
      SCOPED_TRACE(std::string(layouts[layout]) + ", " + uses[use]);
      Check(layout, use);
      if (HasFailure()) return;
    }
  }
}

std::vector<Problem> AllProblems() {
  std::vector<Problem> problems;
  for (const char* device : kDevices) {
    for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
      if (!kHasGradient[op]) continue;
      const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
      for (int i = 0; def->cases[i].shapes; ++i)
        if (IsSmall(def->cases[i])) problems.push_back({def->op, i, device});
    }
  }
  return problems;
}

INSTANTIATE_TEST_SUITE_P(All, GradSuite, ::testing::ValuesIn(AllProblems()),
                         [](const ::testing::TestParamInfo<Problem>& info) {
                           return info.param.device + "_" +
                                  choir_op_name(info.param.op) + "_" +
                                  std::to_string(info.param.number);
                         });

// ---- Nothing slips through ----

class GradCases : public ::testing::TestWithParam<Problem> {};

// An op with GRAD is tried here on cases of several elements, and one without
// is not.
TEST_P(GradCases, HasSomeOfSeveralElements) {
  const choir_op_def_t* def = choir__op_def(GetParam().op);
  int count = 0;
  for (const choir_op_case_t* one = def->cases; one->shapes; ++one)
    count += IsSmall(*one) && CountOf(ParseShapes(one->shapes)[0]) > 1;
  EXPECT_GE(count, 3) << def->name << ": small cases for finite differences";
}

std::vector<Problem> AllOps() {
  std::vector<Problem> ops;
  for (const char* device : kDevices) {
    for (int op = 0; op < CHOIR_OP_COUNT; ++op)
      if (kHasGradient[op])
        ops.push_back({static_cast<choir_op_t>(op), 0, device});
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, GradCases, ::testing::ValuesIn(AllOps()),
                         [](const ::testing::TestParamInfo<Problem>& info) {
                           return info.param.device + "_" +
                                  choir_op_name(info.param.op);
                         });

}  // namespace
