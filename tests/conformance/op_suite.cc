// SPDX-License-Identifier: Apache-2.0
// Every op of the list, on every one of its cases, in every dtype and many
// layouts of sources and destinations, on every line of
// core/device/devices.def: choir_op_run against the op's reference on plain
// row-major copies. Around and between the elements of destinations nothing
// may change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tensor/op_def.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::InferResults;
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
using choir::testing::ShapeOf;
using choir::testing::Values;

// How one run is set up.
struct Arrangement {
  const char* name;
  Layout sources;
  bool given;  // destinations; else the op makes them
  Layout destinations;
  bool accumulate;
  bool in_place;  // destination 0 is source 0
};

const Arrangement kArrangements[] = {
    {"plain", kContiguous, false, kContiguous, false, false},
    {"given", kContiguous, true, kContiguous, false, false},
    {"added", kContiguous, true, kContiguous, true, false},
    {"gaps", kGaps, false, kContiguous, false, false},
    {"gaps, given", kGaps, true, kGaps, false, false},
    {"gaps, added", kGaps, true, kGaps, true, false},
    {"to gaps", kContiguous, true, kGaps, false, false},
    {"reversed", kReversed, false, kContiguous, false, false},
    {"reversed, given", kReversed, true, kContiguous, false, false},
    {"to reversed", kContiguous, true, kReversed, true, false},
    {"repeated", kRepeated, false, kContiguous, false, false},
    {"repeated, given", kRepeated, true, kGaps, false, false},
    {"repeated, added", kRepeated, true, kContiguous, true, false},
    {"channels-last", kChannelsLast, false, kContiguous, false, false},
    {"channels-last, given", kChannelsLast, true, kChannelsLast, false, false},
    {"channels-last, added", kChannelsLast, true, kChannelsLast, true, false},
    {"to channels-last", kContiguous, true, kChannelsLast, false, false},
    {"from channels-last", kChannelsLast, true, kContiguous, true, false},
    {"in place", kContiguous, true, kContiguous, false, true},
    {"in place, gaps", kGaps, true, kGaps, false, true},
    {"in place, added", kContiguous, true, kContiguous, true, true},
};

// One op and case.
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

std::vector<Problem> AllProblems() {
  std::vector<Problem> problems;
  for (const char* device : kDevices) {
    for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
      const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
      for (int i = 0; def->cases[i].shapes; ++i)
        problems.push_back({def->op, i, device});
    }
  }
  return problems;
}

// What the reference makes of row-major operands on the plain CPU device.
// `before` are the destinations' elements, for accumulate and steps in place.
std::vector<std::vector<double>> Expected(
    const choir_op_def_t* def, const std::vector<Values>& sources,
    const std::vector<Values>& before, const std::vector<unsigned char>& attrs,
    bool accumulate) {
  choir_device_t* device = Device("cpu");
  std::vector<std::unique_ptr<Placed>> operands;
  std::vector<choir_view_t> views;
  for (const Values& source : sources) {
    operands.push_back(std::make_unique<Placed>(device, source, kContiguous));
    views.push_back(*choir_tensor_view(operands.back()->tensor()));
  }
  std::vector<Placed*> results;
  for (size_t i = 0; i < before.size(); ++i) {
    if (def->inplace[i]) {
      results.push_back(
          operands[static_cast<size_t>(def->inplace[i] - 1)].get());
    } else {
      operands.push_back(
          std::make_unique<Placed>(device, before[i], kContiguous));
      results.push_back(operands.back().get());
    }
    views.push_back(*choir_tensor_view(results.back()->tensor()));
  }
  for (size_t i = 0; def->elementwise && i < sources.size(); ++i) {
    choir_view_t src = views[i];
    const choir_view_t& dst = views[sources.size()];
    EXPECT_OK(choir_view_broadcast(&src, dst.ndim, dst.shape, &views[i]));
  }
  choir_record_t record = {};
  record.operands = views.data();
  record.src_count = static_cast<int32_t>(sources.size());
  record.dst_count = def->dst_count;
  record.accumulate = accumulate;
  record.attrs = attrs.empty() ? nullptr : attrs.data();
  record.attrs_bytes = attrs.size();
  EXPECT_OK(def->reference(&record, choir_device_stream(device)));
  std::vector<std::vector<double>> expected;
  for (const Placed* result : results) expected.push_back(result->Read());
  return expected;
}

// How far an element may be from the reference's, as a share of its size.
double Tolerance(const choir_op_def_t* def, choir_dtype_t dtype,
                 bool accumulate) {
  switch (dtype) {
    case CHOIR_DTYPE_F32:
      return def->tolerance + (accumulate ? 2e-7 : 0);
    case CHOIR_DTYPE_F64:
      return def->tolerance == 0 && !accumulate ? 0 : 1e-12;
    case CHOIR_DTYPE_F16:
      return def->tolerance == 0 && !accumulate ? 0 : 1e-3;
    case CHOIR_DTYPE_BF16:
      return def->tolerance == 0 && !accumulate ? 0 : 8e-3;
    default:
      return 0;
  }
}

// Sizes below 1 count as 1. In sums of many terms the terms set the size of
// the error, not what is left when they cancel: there the largest element
// speaks for all.
void ExpectClose(const choir_op_def_t* def, const std::vector<double>& got,
                 const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double largest = 1;
  for (double value : expected)
    if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    double size =
        def->elementwise ? std::fmax(1, std::fabs(expected[i])) : largest;
    bool close = std::fabs(got[i] - expected[i]) <= tolerance * size ||
                 got[i] == expected[i] ||
                 (std::isnan(got[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(close) << "element " << i << " is " << got[i]
                       << ", the reference gives " << expected[i];
  }
}

class OpSuite : public ::testing::TestWithParam<Problem> {
 protected:
  void SetUp() override {
    def_ = choir__op_def(GetParam().op);
    const choir_op_case_t& one = def_->cases[GetParam().number];
    shapes_ = ParseShapes(one.shapes);
    attrs_ = ParseAttrs(def_->op, one.attrs);
    std::string why;
    device_ = Device(GetParam().device, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_NE(device_, nullptr);
  }

  // All on the first device. On others, each of which runs what that one runs
  // or takes several ways for a step, and under a sanitizer the plain one and a
  // quarter of the rest: over an op's cases all of them.
  bool IsTried(const Arrangement& arranged, int dtype) const {
    if (!kSanitized && GetParam().device == kDevices[0]) return true;
    const auto index = static_cast<int>(&arranged - kArrangements);
    return index == 0 || (index + GetParam().number + dtype) % 4 == 0;
  }

  bool Fits(const Arrangement& arranged) const {
    if (arranged.accumulate && def_->no_accumulate) return false;
    if (arranged.sources == kChannelsLast ||
        arranged.destinations == kChannelsLast) {
      bool is_image = false;
      for (const Shape& shape : shapes_) is_image |= shape.size() == 4;
      if (!is_image) return false;
    }
    // A step in place: nothing to give, and no two elements in one place.
    if (def_->inplace[0])
      return !arranged.given && arranged.sources != kRepeated;
    return true;
  }

  // Drawn once for all arrangements.
  const std::vector<Values>& SourcesOf(choir_dtype_t dtype,
                                       choir_dtype_t second_dtype,
                                       bool repeated) {
    std::vector<Values>& sources = sources_[{dtype, second_dtype, repeated}];
    if (sources.empty())
      sources = MakeSources(def_->op, shapes_, attrs_, dtype, second_dtype,
                            repeated, 1);
    return sources;
  }
  const Values& AnythingFor(const choir_view_t& view, uint64_t seed) {
    Values& values = anything_[{view.dtype, ShapeOf(view), seed}];
    if (values.elements.empty())
      values = MakeAnything(view.dtype, ShapeOf(view), seed);
    return values;
  }

  // One run of the op in one arranged.
  void Run(const Arrangement& arranged, choir_dtype_t dtype,
           choir_dtype_t second_dtype) {
    const bool repeated = arranged.sources == kRepeated;
    std::vector<Values> sources = SourcesOf(dtype, second_dtype, repeated);
    std::vector<choir_view_t> inferred = InferResults(def_, sources, attrs_);
    if (arranged.in_place &&
        (!def_->elementwise || inferred[0].dtype != dtype ||
         ShapeOf(inferred[0]) != shapes_[0]))
      return;
    std::vector<Values> before;
    for (size_t i = 0; i < inferred.size(); ++i)
      before.push_back(arranged.in_place ? sources[0]
                                         : AnythingFor(inferred[i], 2 + i));
    // Many arrangements of one problem have the same answer.
    std::vector<std::vector<double>>& expected = answers_[{
        dtype, second_dtype, repeated, arranged.accumulate, arranged.in_place}];
    if (expected.empty())
      expected = Expected(def_, sources, before, attrs_, arranged.accumulate);
    if (HasFailure()) return;

    // What only lends its shape may hold anything.
    for (size_t s = arranged.in_place; s < sources.size() && s < 32; ++s)
      if ((def_->shapes_only >> s & 1u) &&
          choir_dtype_is_float(sources[s].dtype))
        for (double& element : sources[s].elements) element = NAN;
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<choir_tensor_t*> srcs;
    for (const Values& source : sources) {
      placed.push_back(
          std::make_unique<Placed>(device_, source, arranged.sources));
      srcs.push_back(placed.back()->tensor());
    }
    std::vector<std::unique_ptr<Placed>> results;
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    for (size_t i = 0; arranged.given && i < before.size(); ++i) {
      if (arranged.in_place) {
        dsts[i] = srcs[0];
        continue;
      }
      results.push_back(
          std::make_unique<Placed>(device_, before[i], arranged.destinations));
      dsts[i] = results.back()->tensor();
    }
    ASSERT_OK(choir_op_run(choir_device_stream(device_), def_->op, srcs.data(),
                           static_cast<int32_t>(srcs.size()),
                           attrs_.empty() ? nullptr : attrs_.data(),
                           arranged.accumulate, dsts));
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_NE(dsts[i], nullptr);
      double tolerance =
          Tolerance(def_, inferred[i].dtype, arranged.accumulate);
      std::vector<double> got;
      if (arranged.in_place) {
        got = placed[0]->Read();
      } else if (arranged.given) {
        got = results[i]->Read();
      } else if (def_->inplace[i]) {
        EXPECT_EQ(dsts[i], srcs[static_cast<size_t>(def_->inplace[i] - 1)]);
        got = placed[static_cast<size_t>(def_->inplace[i] - 1)]->Read();
      } else {
        got = ReadMade(dsts[i], inferred[i]);
      }
      ExpectClose(def_, got, expected[i], tolerance);
      if (!arranged.given) choir_tensor_release(dsts[i]);
    }
    for (size_t s = 0; s < placed.size(); ++s) {
      bool is_changed = arranged.in_place && s == 0;
      for (int8_t inplace : def_->inplace)
        is_changed |= inplace == static_cast<int8_t>(s) + 1;
      if (!is_changed) placed[s]->ExpectUnchanged();
    }
  }

  // What the op and its reference make of plain sources.
  struct Answer {
    choir_dtype_t dtype;
    std::vector<double> got, expected;
  };
  std::vector<Answer> Answers(const std::vector<Values>& sources) {
    std::vector<choir_view_t> inferred = InferResults(def_, sources, attrs_);
    std::vector<Values> before;
    for (const choir_view_t& view : inferred)
      before.push_back(AnythingFor(view, 2));
    const auto expected = Expected(def_, sources, before, attrs_, false);
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<choir_tensor_t*> srcs;
    for (const Values& source : sources) {
      placed.push_back(std::make_unique<Placed>(device_, source, kContiguous));
      srcs.push_back(placed.back()->tensor());
    }
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    EXPECT_OK(choir_op_run(choir_device_stream(device_), def_->op, srcs.data(),
                           static_cast<int32_t>(srcs.size()),
                           attrs_.empty() ? nullptr : attrs_.data(), false,
                           dsts));
    std::vector<Answer> answers;
    for (size_t i = 0; i < inferred.size() && !HasFailure(); ++i) {
      answers.push_back(
          {inferred[i].dtype, ReadMade(dsts[i], inferred[i]), expected[i]});
      choir_tensor_release(dsts[i]);
    }
    return answers;
  }

  // Calls `visit` for each source of `dtype` whose elements the op looks at,
  // with the sources and its number.
  void ForEachFloatSource(
      choir_dtype_t dtype,
      const std::function<void(std::vector<Values>, size_t)>& visit) {
    if (!(def_->dtypes & (1u << dtype))) return;
    SCOPED_TRACE(choir_dtype_name(dtype));
    const bool has_bytes = def_->second_dtypes & CHOIR_DTYPE_MASK(U8);
    const std::vector<Values> sources =
        MakeSources(def_->op, shapes_, attrs_, dtype,
                    has_bytes ? CHOIR_DTYPE_U8 : CHOIR_DTYPE_I64, false, 1);
    for (size_t s = 0; s < sources.size() && !HasFailure(); ++s) {
      SCOPED_TRACE("source " + std::to_string(s));
      if (choir_dtype_is_float(sources[s].dtype) &&
          !sources[s].elements.empty() &&
          (s >= 32 || !(def_->shapes_only >> s & 1u)))
        visit(sources, s);
    }
  }

  // A convolution may multiply zeros that lie outside of its data, and that is
  // NaN for an infinity and for NaN: which elements, depends on the processor.
  bool MayMultiplyZeros() const {
    return std::strncmp(def_->name, "conv", 4) == 0;
  }

  static std::vector<double> ReadMade(choir_tensor_t* tensor,
                                      const choir_view_t& inferred) {
    const choir_view_t* view = choir_tensor_view(tensor);
    EXPECT_EQ(view->dtype, inferred.dtype);
    EXPECT_EQ(ShapeOf(*view), ShapeOf(inferred));
    size_t bytes = choir_dtype_bytes(view->dtype);
    size_t count = static_cast<size_t>(choir_tensor_count(tensor));
    std::vector<unsigned char> data(count * bytes);
    EXPECT_OK(choir_tensor_read(tensor, data.data(), data.size()));
    std::vector<double> elements;
    for (size_t i = 0; i < count; ++i)
      elements.push_back(choir_element_load(&data[i * bytes], view->dtype));
    return elements;
  }

  const choir_op_def_t* def_ = nullptr;
  std::vector<Shape> shapes_;
  std::vector<unsigned char> attrs_;
  choir_device_t* device_ = nullptr;
  // By dtypes, and whether repeated, accumulated, in place.
  std::map<std::tuple<int, int, bool, bool, bool>,
           std::vector<std::vector<double>>>
      answers_;
  std::map<std::tuple<int, int, bool>, std::vector<Values>> sources_;
  std::map<std::tuple<int, Shape, uint64_t>, Values> anything_;
};

// What has diverged must be seen, whichever kernels computed it: NaN where the
// reference gives NaN, infinities where it gives those, numbers where it gives
// numbers.
TEST_P(OpSuite, KeepsNaNAndInfinity) {
  const auto keeps = [&](std::vector<Values> sources, size_t s) {
    const double specials[] = {NAN, HUGE_VAL, -HUGE_VAL, -0.0};
    const size_t first = static_cast<size_t>(GetParam().number) +
                         static_cast<size_t>(sources[s].dtype) + s;
    for (size_t i = 0; i < std::size(specials); ++i) {
      const double special = specials[(first + i) % std::size(specials)];
      SCOPED_TRACE(special);
      std::vector<double>& elements = sources[s].elements;
      elements[elements.size() / 3] = elements.back() = special;
      for (const Answer& answer : Answers(sources)) {
        for (size_t k = 0; k < answer.got.size() && !HasFailure(); ++k) {
          const double got = answer.got[k], expected = answer.expected[k];
          const bool alike = std::isnan(expected)   ? std::isnan(got)
                             : std::isinf(expected) ? got == expected
                                                    : std::isfinite(got);
          EXPECT_TRUE(alike || (MayMultiplyZeros() && std::isnan(got)))
              << "element " << k << " is " << got << ", the reference gives "
              << expected;
        }
      }
      // Under a sanitizer one value, over an op's cases all of them.
      if (kSanitized) return;
    }
  };
  for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype)
    if (choir_dtype_is_float(static_cast<choir_dtype_t>(dtype)))
      ForEachFloatSource(static_cast<choir_dtype_t>(dtype), keeps);
}

// The differences of numbers far from zero have few digits: no step may drop
// any of them. Gradients take results, which are not just anything.
TEST_P(OpSuite, KeepsDigitsFarFromZero) {
  // Normalisation folds the mean into the bias.
  if (std::strncmp(def_->name, "batch_norm", 10) == 0 ||
      std::strstr(def_->name, "_grad"))
    return;
  for (double shift : {1e4, -1e6}) {
    SCOPED_TRACE(shift);
    ForEachFloatSource(CHOIR_DTYPE_F32, [&](std::vector<Values> sources,
                                            size_t s) {
      if (s < std::size(def_->domains) && def_->domains[s] != CHOIR_DOMAIN_ANY)
        return;
      for (double& element : sources[s].elements)
        element = static_cast<float>(element + shift);
      for (const Answer& answer : Answers(sources)) {
        // A choice among sums that were rounded is another choice.
        if (def_->tolerance > 0 && !choir_dtype_is_float(answer.dtype))
          continue;
        ExpectClose(def_, answer.got, answer.expected,
                    Tolerance(def_, answer.dtype, false));
      }
    });
  }
}

TEST_P(OpSuite, AgreesWithTheReference) {
  for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
    if (!(def_->dtypes & (1u << dtype))) continue;
    for (int second = 0; second < CHOIR_DTYPE_COUNT; ++second) {
      uint32_t seconds =
          def_->second_dtypes ? def_->second_dtypes : 1u << dtype;
      if (!(seconds & (1u << second))) continue;
      for (const Arrangement& arranged : kArrangements) {
        if (!IsTried(arranged, dtype) || !Fits(arranged)) continue;
        SCOPED_TRACE(std::string(arranged.name) + ", " +
                     choir_dtype_name(static_cast<choir_dtype_t>(dtype)) +
                     ", " +
                     choir_dtype_name(static_cast<choir_dtype_t>(second)));
        Run(arranged, static_cast<choir_dtype_t>(dtype),
            static_cast<choir_dtype_t>(second));
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpSuite, ::testing::ValuesIn(AllProblems()),
                         [](const ::testing::TestParamInfo<Problem>& info) {
                           return info.param.device + "_" +
                                  choir_op_name(info.param.op) + "_" +
                                  std::to_string(info.param.number);
                         });

}  // namespace
