// SPDX-License-Identifier: Apache-2.0
// What holds for every op of the list, whatever it computes, on every line of
// core/device/devices.def: what it refuses and with which words, sizes that no
// memory has, allocations that fail, steady loops that allocate nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensor/op_def.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

extern "C" const choir_kernel_table_t choir_kernel_table_cpu;
extern "C" const choir_kernel_table_t choir_kernel_table_cuda;

namespace {

using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::FailEveryAllocation;
using choir::testing::InferResults;
using choir::testing::kContiguous;
using choir::testing::kDevices;
using choir::testing::kRepeated;
using choir::testing::MakeAnything;
using choir::testing::MakeSources;
using choir::testing::ParseAttrs;
using choir::testing::ParseShapes;
using choir::testing::Placed;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::Values;

struct Place {
  choir_op_t op;
  std::string device;
};

void PrintTo(const Place& place, std::ostream* out) {
  *out << choir_op_name(place.op) << " on " << place.device;
}

// One op on one device, with sources of its largest small case.
class OpManners : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    def_ = choir__op_def(GetParam().op);
    std::string why;
    device_ = Device(GetParam().device, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_NE(device_, nullptr);
    PickCase();
    choir_dtype_t dtype = def_->dtypes & CHOIR_DTYPE_MASK(F32)
                              ? CHOIR_DTYPE_F32
                              : CHOIR_DTYPE_I64;
    sources_ = MakeSources(def_->op, shapes_, attrs_, dtype,
                           def_->second_dtypes & CHOIR_DTYPE_MASK(U8)
                               ? CHOIR_DTYPE_U8
                               : CHOIR_DTYPE_I64,
                           false, 3);
    inferred_ = InferResults(def_, sources_, attrs_);
    for (const Values& source : sources_) {
      placed_.push_back(std::make_unique<Placed>(device_, source, kContiguous));
      srcs_.push_back(placed_.back()->tensor());
    }
  }

  // The first case with several elements in source 0 and in destination 0.
  void PickCase() {
    for (const choir_op_case_t* one = def_->cases; one->shapes; ++one) {
      shapes_ = ParseShapes(one->shapes);
      attrs_ = ParseAttrs(def_->op, one->attrs);
      if (CountOf(shapes_[0]) > 1) return;
    }
    FAIL() << "no case with more than one element";
  }

  choir_status_t RunWith(const std::vector<choir_tensor_t*>& srcs,
                         const void* attrs, bool accumulate,
                         choir_tensor_t** dsts) {
    return choir_op_run(choir_device_stream(device_), def_->op, srcs.data(),
                        static_cast<int32_t>(srcs.size()), attrs, accumulate,
                        dsts);
  }
  choir_status_t RunInto(choir_tensor_t** dsts) {
    return RunWith(srcs_, attrs(), false, dsts);
  }
  const void* attrs() const { return attrs_.empty() ? nullptr : attrs_.data(); }

  // "<op>: " and `text`, INVALID_ARGUMENT, nothing made.
  void ExpectRefused(const std::string& text, choir_status_t status,
                     choir_tensor_t** dsts) {
    std::string message = choir_status_message(status);
    EXPECT_EQ(message.find(std::string(def_->name) + ": "), 0u) << message;
    EXPECT_STATUS(INVALID_ARGUMENT, text, status);
    for (int i = 0; dsts && i < CHOIR_OP_MAX_RESULTS; ++i)
      EXPECT_EQ(dsts[i], nullptr);
  }

  std::unique_ptr<Placed> PlaceResult(size_t i, choir_dtype_t dtype,
                                      const Shape& shape,
                                      choir_device_t* device) {
    (void)i;
    return std::make_unique<Placed>(device, MakeAnything(dtype, shape, 5),
                                    kContiguous);
  }

  const choir_op_def_t* def_ = nullptr;
  choir_device_t* device_ = nullptr;
  std::vector<Shape> shapes_;
  std::vector<unsigned char> attrs_;
  std::vector<Values> sources_;
  std::vector<choir_view_t> inferred_;
  std::vector<std::unique_ptr<Placed>> placed_;
  std::vector<choir_tensor_t*> srcs_;
};

// What was written by hand for speed is tried on 20 shapes or more: on those of
// all ops that it computes.
TEST_P(OpManners, HasEnoughCases) {
  const auto count_of = [](const choir_op_def_t* def) {
    int count = 0;
    while (def->cases[count].shapes) ++count;
    return count;
  };
  EXPECT_GE(count_of(def_), 4);
  const choir_op_kernel_t* const* kernels = choir_kernel_table_cpu.kernels;
  for (int i = 0; kernels[i]; ++i) {
    if (kernels[i]->op != def_->op) continue;
    std::set<choir_op_t> ops;
    for (int k = 0; kernels[k]; ++k)
      if (kernels[k]->kernel.run == kernels[i]->kernel.run)
        ops.insert(kernels[k]->op);
    int count = 0;
    for (choir_op_t op : ops) count += count_of(choir__op_def(op));
    EXPECT_GE(count, 20) << kernels[i]->kernel.name;
  }
}

// A kernel that took none of its op's cases would be listed in vain, and the
// suite would compare the reference with itself.
TEST_P(OpManners, RunsTheGpusKernelIfTheListHasOne) {
  if (GetParam().device != "cuda") return;
  const choir_op_kernel_t* const* kernels = choir_kernel_table_cuda.kernels;
  while (*kernels && (*kernels)->op != def_->op) ++kernels;
  if (!*kernels) return;
  bool has_run = false;
  for (const choir_op_case_t* one = def_->cases; one->shapes; ++one) {
    attrs_ = ParseAttrs(def_->op, one->attrs);
    const choir_dtype_t second = def_->second_dtypes & CHOIR_DTYPE_MASK(U8)
                                     ? CHOIR_DTYPE_U8
                                     : CHOIR_DTYPE_I64;
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<choir_tensor_t*> srcs;
    for (const Values& source :
         MakeSources(def_->op, ParseShapes(one->shapes), attrs_,
                     sources_[0].dtype, second, false, 3)) {
      placed.push_back(std::make_unique<Placed>(device_, source, kContiguous));
      srcs.push_back(placed.back()->tensor());
    }
    const uint64_t before = choir_op_stats().host_fallbacks;
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    ASSERT_OK(RunWith(srcs, attrs(), false, dsts));
    for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
    has_run |= choir_op_stats().host_fallbacks == before;
  }
  EXPECT_TRUE(has_run);
}

TEST_P(OpManners, RefusesWrongSources) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  std::vector<choir_tensor_t*> srcs(srcs_.begin(), srcs_.end());
  srcs.resize(static_cast<size_t>(def_->src_max) + 1, srcs_[0]);
  ExpectRefused("got " + std::to_string(srcs.size()) + " sources; needs",
                RunWith(srcs, attrs(), false, dsts), dsts);
  ExpectRefused("got 0 sources; needs", RunWith({}, attrs(), false, dsts),
                dsts);
  srcs = srcs_;
  srcs.back() = nullptr;
  ExpectRefused("is NULL; needs a tensor", RunWith(srcs, attrs(), false, dsts),
                dsts);
  std::string other_name = GetParam().device == "cpu" ? "null" : "cpu";
  Placed elsewhere(Device(other_name), sources_.back(), kContiguous);
  srcs.back() = elsewhere.tensor();
  ExpectRefused("is on another device (" + other_name + "); needs the stream's",
                RunWith(srcs, attrs(), false, dsts), dsts);
}

TEST_P(OpManners, RefusesWrongDtypes) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  for (size_t s = 0; s < srcs_.size(); ++s) {
    uint32_t mask = s == 0
                        ? def_->dtypes
                        : 1u << sources_[s > 1 && def_->rest_as_second].dtype;
    if (s == 1 && def_->second_dtypes) mask = def_->second_dtypes;
    if (s + 1 == static_cast<size_t>(def_->src_max)) mask |= def_->last_dtypes;
    for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
      // With source 0 in another dtype that it may have, others would be wrong.
      if (mask & (1u << dtype)) continue;
      Placed other(
          device_,
          MakeAnything(static_cast<choir_dtype_t>(dtype), shapes_[s], 4),
          kContiguous);
      std::vector<choir_tensor_t*> srcs = srcs_;
      srcs[s] = other.tensor();
      ExpectRefused("source " + std::to_string(s) + " is " +
                        choir_dtype_name(static_cast<choir_dtype_t>(dtype)) +
                        "; needs ",
                    RunWith(srcs, attrs(), false, dsts), dsts);
    }
  }
}

TEST_P(OpManners, RefusesAttributesThatItDoesNotTake) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  if (def_->attrs) return;
  int64_t something = 0;
  ExpectRefused("it takes none", RunWith(srcs_, &something, false, dsts), dsts);
}

TEST_P(OpManners, RefusesToAddToNothing) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  ExpectRefused(def_->no_accumulate ? "it only overwrites"
                                    : "accumulate without destination 0",
                RunWith(srcs_, attrs(), true, dsts), dsts);
}

TEST_P(OpManners, RefusesWrongDestinations) {
  if (def_->inplace[0]) return;
  choir_dtype_t dtype = inferred_[0].dtype;
  Shape shape = ShapeOf(inferred_[0]);
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  Shape longer = shape;
  longer.push_back(2);
  auto wrong_shape = PlaceResult(0, dtype, longer, device_);
  dsts[0] = wrong_shape->tensor();
  ExpectRefused("destination 0 is", RunInto(dsts), nullptr);

  choir_dtype_t other =
      dtype == CHOIR_DTYPE_U8 ? CHOIR_DTYPE_F32 : CHOIR_DTYPE_U8;
  auto wrong_dtype = PlaceResult(0, other, shape, device_);
  dsts[0] = wrong_dtype->tensor();
  ExpectRefused("destination 0 is", RunInto(dsts), nullptr);

  std::string other_name = GetParam().device == "cpu" ? "null" : "cpu";
  auto elsewhere = PlaceResult(0, dtype, shape, Device(other_name));
  dsts[0] = elsewhere->tensor();
  ExpectRefused("destination 0 is on another device", RunInto(dsts), nullptr);

  if (!shape.empty() && shape[0] > 1) {
    Placed repeats(device_, MakeAnything(dtype, shape, 6), kRepeated);
    dsts[0] = repeats.tensor();
    ExpectRefused("repeats elements", RunInto(dsts), nullptr);
  }
  for (int i = 1; i < def_->dst_count; ++i) EXPECT_EQ(dsts[i], nullptr);
}

TEST_P(OpManners, RefusesADestinationOverASource) {
  if (def_->inplace[0]) return;
  Shape shape = ShapeOf(inferred_[0]);
  if (sources_[0].dtype != inferred_[0].dtype || CountOf(shape) < 2) return;
  // Source and destination in one buffer, one element apart.
  size_t room = static_cast<size_t>(CountOf(shape) + CountOf(shapes_[0]) + 1);
  Placed shared(
      device_, MakeAnything(sources_[0].dtype, {static_cast<int64_t>(room)}, 8),
      kContiguous);
  choir_view_t view = *choir_tensor_view(srcs_[0]);
  view.buffer = choir_tensor_view(shared.tensor())->buffer;
  view.offset = choir_tensor_view(shared.tensor())->offset;
  choir_tensor_t* src = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &src));
  choir_view_t dst_view = inferred_[0];
  choir_view_set_contiguous(&dst_view);
  dst_view.buffer = view.buffer;
  dst_view.offset = view.offset + 1;
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  ASSERT_OK(choir_tensor_from_view(&dst_view, &dsts[0]));
  std::vector<choir_tensor_t*> srcs = srcs_;
  srcs[0] = src;
  ExpectRefused("destination 0 shares memory with source 0",
                RunWith(srcs, attrs(), false, dsts), nullptr);
  choir_tensor_release(dsts[0]);
  choir_tensor_release(src);
}

// What a shape rule meets of numbers that no memory has: an empty tensor may
// have any size beside its 0. The sanitizer says what overflows.
class Sizes {
 public:
  Sizes(const choir_op_def_t* def, std::vector<Shape> shapes,
        std::vector<unsigned char> attrs)
      : def_(def), shapes_(std::move(shapes)), attrs_(std::move(attrs)) {}

  // Each size of each source, with another one 0 or none.
  void TryShapes() {
    for (Shape& shape : shapes_) {
      const Shape before = shape;
      for (size_t k = 0; k < shape.size(); ++k) {
        for (int64_t size : kSizes) {
          for (size_t zero = 0; zero <= shape.size(); ++zero) {
            shape[k] = size;
            if (zero < shape.size() && zero != k) shape[zero] = 0;
            Try();
            shape = before;
          }
        }
      }
    }
  }
  // The same with each number of the attributes at its ends.
  void TryAttrs() {
    for (size_t f = 0; def_->attrs && f < def_->attrs->field_count; ++f) {
      const choir_field_t& field = def_->attrs->fields[f];
      if (field.kind != CHOIR_FIELD_KIND_INT) continue;
      auto* values = reinterpret_cast<int64_t*>(attrs_.data() + field.offset);
      const std::vector<int64_t> before(values, values + field.count);
      for (double end : {field.minimum, field.maximum}) {
        for (int32_t i = 0; i < field.count; ++i) {
          // The nearest number inside: 2^63 as a double is none.
          values[i] = end >= 0x1p63 ? INT64_MAX : static_cast<int64_t>(end);
          Try();
        }
        TryShapes();
        std::copy(before.begin(), before.end(), values);
      }
    }
  }

 private:
  static constexpr int64_t kSizes[] = {0, 1, int64_t{1} << 31, INT64_MAX / 16,
                                       INT64_MAX};

  void Try() {
    choir_status_t status = TryNow();
    if (status) {
      EXPECT_NE(choir_status_code(status), CHOIR_STATUS_INTERNAL)
          << choir_status_message(status);
    }
    choir_status_free(status);
  }
  // As dispatch does: what it refuses no shape rule sees.
  choir_status_t TryNow() {
    std::vector<choir_view_t> srcs(shapes_.size());
    bool is_empty = true;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      CHOIR_TRY(choir_view_make(DtypeOf(i),
                                static_cast<int32_t>(shapes_[i].size()),
                                shapes_[i].data(), &srcs[i]));
      is_empty &= choir_view_count(&srcs[i]) == 0;
    }
    if (def_->attrs) CHOIR_TRY(choir_struct_check(def_->attrs, attrs_.data()));
    std::vector<choir_view_t> dsts(static_cast<size_t>(def_->dst_count));
    CHOIR_TRY(choir__op_infer(def_->op, srcs.data(),
                              static_cast<int32_t>(srcs.size()), attrs_.data(),
                              dsts.data()));
    for (const choir_view_t& dst : dsts)
      is_empty &= choir_view_count(&dst) == 0;
    return is_empty ? RunEmpty(srcs) : nullptr;
  }
  choir_status_t RunEmpty(const std::vector<choir_view_t>& views) {
    choir_device_t* device = Device("cpu");
    std::vector<choir_tensor_t*> srcs(views.size());
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    choir_status_t status = nullptr;
    for (size_t i = 0; !status && i < views.size(); ++i)
      status = choir_tensor_create_layout(device, &views[i], &srcs[i]);
    if (!status)
      status = choir_op_run(choir_device_stream(device), def_->op, srcs.data(),
                            static_cast<int32_t>(srcs.size()),
                            def_->attrs ? attrs_.data() : nullptr, false, dsts);
    for (choir_tensor_t* src : srcs) choir_tensor_release(src);
    for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
    return status;
  }
  choir_dtype_t DtypeOf(size_t source) const {
    const bool is_second = source == 1 ? def_->second_dtypes != 0
                                       : source > 1 && def_->rest_as_second;
    const uint32_t mask = is_second ? def_->second_dtypes : def_->dtypes;
    for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_I64})
      if (mask & (1u << dtype)) return dtype;
    return CHOIR_DTYPE_U8;
  }

  const choir_op_def_t* def_;
  std::vector<Shape> shapes_;
  std::vector<unsigned char> attrs_;
};

TEST_P(OpManners, TakesOrRefusesAnySize) {
  if (GetParam().device != "cpu") return;  // the rules are those of all
  for (const choir_op_case_t* one = def_->cases; one->shapes; ++one) {
    Sizes sizes(def_, ParseShapes(one->shapes),
                ParseAttrs(def_->op, one->attrs));
    sizes.TryShapes();
    sizes.TryAttrs();
  }
}

TEST_P(OpManners, SurvivesEveryFailedAllocation) {
  if (GetParam().device == "cpu_async") return;  // its threads allocate too
  FailEveryAllocation([&](choir_allocator_t allocator) -> choir_status_t {
    choir_device_options_t options = {};
    options.allocator = allocator;
    options.threads = 1;
    choir_device_t* device = nullptr;
    CHOIR_TRY(
        choir_device_create(GetParam().device.c_str(), &options, &device));
    std::vector<choir_tensor_t*> srcs;
    choir_status_t status = nullptr;
    for (const Values& source : sources_) {
      choir_tensor_t* src = nullptr;
      if (!status)
        status = choir_tensor_create(device, source.dtype,
                                     static_cast<int32_t>(source.shape.size()),
                                     source.shape.data(), &src);
      std::vector<unsigned char> data(source.elements.size() *
                                      choir_dtype_bytes(source.dtype));
      for (size_t i = 0; i < source.elements.size(); ++i)
        choir_element_store(&data[i * choir_dtype_bytes(source.dtype)],
                            source.dtype, source.elements[i]);
      if (!status) status = choir_tensor_write(src, data.data(), data.size());
      srcs.push_back(src);
    }
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    if (!status)
      status =
          choir_op_run(choir_device_stream(device), def_->op, srcs.data(),
                       static_cast<int32_t>(srcs.size()), attrs(), false, dsts);
    for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
    for (choir_tensor_t* src : srcs) choir_tensor_release(src);
    choir_device_release(device);
    return status;
  });
}

TEST_P(OpManners, AsksTheBaseForNothingInASteadyLoop) {
  uint64_t allocations[4];
  for (uint64_t& count : allocations) {
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    ASSERT_OK(RunInto(dsts));
    ASSERT_OK(choir_stream_synchronize(choir_device_stream(device_)));
    for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
    count = choir_device_memory(device_).base_allocations;
  }
  EXPECT_EQ(allocations[1], allocations[3]);
}

std::vector<Place> AllOps() {
  std::vector<Place> ops;
  for (const char* device : kDevices) {
    for (int op = 0; op < CHOIR_OP_COUNT; ++op)
      ops.push_back({static_cast<choir_op_t>(op), device});
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, OpManners, ::testing::ValuesIn(AllOps()),
                         [](const ::testing::TestParamInfo<Place>& info) {
                           return info.param.device + "_" +
                                  choir_op_name(info.param.op);
                         });

}  // namespace
