// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels, compiled for the host, behind the scripted driver: that
// they are what runs, in which form, and that their bits are those of the
// CPU's. That their numbers are right in every arrangement is the op suite's
// (tests/conformance:op_suite_scripted_cuda).
#include "tensor/kernels/cuda/cuda_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

struct Formula {
  choir_op_t op;
  const char* name;
  int sources;
};
const Formula kFormulas[] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) \
  {CHOIR_OP_##OP, #name, sources},
#define CHOIR__FUNCTION CHOIR__FORMULA
#include "tensor/kernels/cuda/cuda_elementwise.def"
};

class CudaKernels : public CudaKernelsTest {
 protected:
  // The op's result on a device: sources of these shapes, from element `skip`
  // on.
  std::vector<float> Run(const DevicePtr& device, const Formula& formula,
                         const Shape& shape, const Shape& other, int64_t skip) {
    std::vector<TensorPtr> kept;
    std::vector<choir_tensor_t*> srcs;
    for (int s = 0; s < formula.sources; ++s) {
      const Shape& own = s ? other : shape;
      // What is special comes first.
      std::vector<float> values = Floats(Count(own) + skip, 3u + s);
      for (float& value : values) value *= 40;
      const float special[] = {0.0f,
                               -0.0f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               1e-40f,
                               0.3f,
                               -3e38f};
      for (size_t i = 0; i < values.size() && i < std::size(special); ++i)
        values[i] = special[(i + static_cast<size_t>(3 * s)) % 8];
      kept.push_back(Make<float>(device.get(), {Count(own) + skip}, values));
      choir_view_t view = *choir_tensor_view(kept.back().get());
      view.ndim = static_cast<int32_t>(own.size());
      for (size_t k = 0; k < own.size(); ++k) view.shape[k] = own[k];
      choir_view_set_contiguous(&view);
      view.offset += skip;
      choir_tensor_t* tensor = nullptr;
      EXPECT_OK(choir_tensor_from_view(&view, &tensor));
      kept.emplace_back(tensor);
      srcs.push_back(tensor);
    }
    choir_scale_attrs_t scale = Attrs<choir_scale_attrs_t>(CHOIR_OP_SCALE);
    scale.factor = 0.7;
    scale.shift = -0.2;
    choir_fill_attrs_t fill = Attrs<choir_fill_attrs_t>(CHOIR_OP_FILL);
    fill.value = 0.1;
    const void* attrs = formula.op == CHOIR_OP_SCALE ? &scale
                        : formula.op == CHOIR_OP_FILL
                            ? static_cast<const void*>(&fill)
                            : nullptr;
    return Read<float>(Result(formula.op, srcs, attrs));
  }
};

struct Setting {
  Shape shape;
  Shape other;  // of the second source
  int64_t skip;
  const char* form;  // of two sources
};

TEST_F(CudaKernels, HaveTheBitsOfTheCpus) {
  const Setting settings[] = {
      {{1}, {1}, 0, "dense"},
      {{3}, {3}, 0, "dense"},
      {{4}, {4}, 0, "dense"},
      {{1021}, {1021}, 0, "dense"},
      {{1024}, {1024}, 0, "dense"},
      {{4099}, {4099}, 0, "dense"},
      {{5, 7, 3}, {5, 7, 3}, 0, "dense"},
      {{2051}, {1}, 0, "dense"},
      {{64}, {64}, 4, "dense"},
      {{2051}, {2051}, 1, "strided"},
      {{33, 17}, {17}, 0, "strided"},
      {{33, 17}, {33, 1}, 0, "strided"},
      {{4, 3, 7, 5}, {3, 1, 1}, 0, "strided"},
  };
  for (const Formula& formula : kFormulas) {
    // A gradient's sources have one shape.
    const bool is_gradient = strstr(formula.name, "_grad") != nullptr;
    for (const Setting& setting : settings) {
      if (is_gradient && setting.shape != setting.other) continue;
      SCOPED_TRACE(std::string(formula.name) + " " + setting.form + ", " +
                   std::to_string(Count(setting.shape)) + " elements");
      (void)Launched();
      const std::vector<float> got =
          Run(gpu_, formula, setting.shape, setting.other, setting.skip);
      const bool is_dense = strcmp(setting.form, "dense") == 0 ||
                            (formula.sources == 1 && setting.skip % 4 == 0);
      EXPECT_EQ(Launched(),
                (std::vector<std::string>{std::string("choir_") + formula.name +
                                          (is_dense ? "_dense" : "_strided")}));
      const std::vector<float> want =
          Run(cpu_, formula, setting.shape, setting.other, setting.skip);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(got[i]) && std::isnan(want[i])) continue;
        ASSERT_EQ(memcmp(&got[i], &want[i], sizeof(float)), 0)
            << "element " << i << ": " << got[i] << ", on the CPU " << want[i];
      }
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

struct Update {
  choir_op_t op;
  const char* name;
  int kept;
};
const Update kUpdates[] = {
#define UPDATE(T, NAME, name, states, doc) \
  {CHOIR_OP_##NAME##_UPDATE, #name, states},
    CHOIR_OPTIMIZER_LIST(UPDATE, )};

class CudaUpdates : public CudaKernels {
 protected:
  using Settings = std::vector<std::pair<const char*, const char*>>;

  // Parameter and what is kept after three steps, one after the other; all are
  // views from element `skip` of a tensor on.
  static std::vector<float> Steps(const DevicePtr& device, const Update& update,
                                  int64_t count, int64_t skip,
                                  const Settings& settings) {
    std::vector<TensorPtr> kept;
    std::vector<choir_tensor_t*> srcs;
    for (int s = 0; s < 2 + update.kept; ++s) {
      // What is kept starts as 0.
      std::vector<float> values =
          Floats(count + skip, 5u + static_cast<uint32_t>(s));
      if (s > 1) values.assign(values.size(), 0.0f);
      kept.push_back(Make<float>(device.get(), {count + skip}, values));
      choir_view_t view = *choir_tensor_view(kept.back().get());
      view.shape[0] = count;
      view.offset += skip;
      choir_tensor_t* tensor = nullptr;
      EXPECT_OK(choir_tensor_from_view(&view, &tensor));
      kept.emplace_back(tensor);
      srcs.push_back(tensor);
    }
    const choir_struct_def_t* def = choir_op_attrs_def(update.op);
    std::vector<unsigned char> attrs(def->bytes);
    choir_struct_init(def, attrs.data());
    for (const auto& [field, value] : settings)
      EXPECT_OK(choir_struct_set(def, attrs.data(), field, value));
    for (int step = 0; step < 3; ++step) Results(update.op, srcs, attrs.data());
    std::vector<float> all = Read<float>(srcs[0]);
    for (int s = 2; s < 2 + update.kept; ++s) {
      const std::vector<float> one = Read<float>(srcs[static_cast<size_t>(s)]);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

TEST_F(CudaUpdates, HaveTheBitsOfTheCpus) {
  for (const Update& update : kUpdates) {
    for (int64_t skip : {0, 1}) {
      for (int64_t count : {1, 4, 1023, 4100}) {
        const bool is_sgd = update.op == CHOIR_OP_SGD_UPDATE;
        std::vector<Settings> all = {{{"weight_decay", "0.01"}}};
        if (is_sgd) {
          all.push_back({{"momentum", "0.9"}, {"dampening", "0.5"}});
          all.push_back({{"momentum", "0.9"}, {"nesterov", "1"}});
        }
        for (const Settings& settings : all) {
          SCOPED_TRACE(std::string(update.name) + " " + settings[0].first +
                       ", " + std::to_string(count) + " from " +
                       std::to_string(skip));
          (void)Launched();
          const std::vector<float> got =
              Steps(gpu_, update, count, skip, settings);
          EXPECT_EQ(Launched(),
                    std::vector<std::string>(
                        3, std::string("choir_") + update.name +
                               (skip ? "_update_strided" : "_update_dense")));
          const std::vector<float> want =
              Steps(cpu_, update, count, skip, settings);
          ASSERT_EQ(got.size(), want.size());
          ASSERT_EQ(memcmp(got.data(), want.data(), got.size() * sizeof(float)),
                    0);
        }
      }
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaKernels, OtherDtypesRunOnTheHost) {
  TensorPtr x = Make<double>(gpu_.get(), {3}, {1, -2, 3});
  EXPECT_EQ(Read<double>(Result(CHOIR_OP_NEG, {x.get()})),
            (std::vector<double>{-1, 2, -3}));
  EXPECT_EQ(Launched(), std::vector<std::string>{});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 1u);
}

TEST_F(CudaKernels, WithoutAnImageAllRunsOnTheHost) {
  CudaKernelsOnHost(false);
  TensorPtr x = Make<float>(gpu_.get(), {3}, {1, -2, 3});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_NEG, {x.get()})),
            (std::vector<float>{-1, 2, -3}));
  EXPECT_EQ(Launched(), std::vector<std::string>{});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 1u);
}

TEST_F(CudaKernels, NothingIsLaunchedForNoElements) {
  TensorPtr x = Make<float>(gpu_.get(), {2, 0}, {});
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_NEG, {x.get()}).get()), (Shape{2, 0}));
  EXPECT_EQ(Launched(), std::vector<std::string>{});
}

}  // namespace
