// SPDX-License-Identifier: Apache-2.0
// Chains of elementwise ops in graphs: one record in the place of many has
// their bits, whatever is read, written and shared meanwhile, and is not there
// where elements would meet.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "core/profile.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/strided_internal.h"
#include "tests/tensor/chain_testing.h"
#include "tests/testing/sanitized.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

class Chains : public ChainTest {};

const char* const kDevices[] = {"cpu", "cpu_async", "cuda"};
INSTANTIATE_TEST_SUITE_P(Devices, Chains, ::testing::ValuesIn(kDevices),
                         [](const auto& param) { return param.param; });

// sum of (tanh(a b + c) - t)^2, with what its gradient needs left in memory.
TEST_P(Chains, AFormulaIsOneRecord) {
  for (const Shape& shape : {Shape{1}, Shape{3}, Shape{2048}, Shape{2049},
                             Shape{5, 7, 3}, Shape{4099}, Shape{71, 101}}) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    choir_tensor_t* a = Keep(shape);
    choir_tensor_t* b = Keep(shape);
    choir_tensor_t* c = Keep({1});
    choir_tensor_t* t = Keep(shape);
    choir_tensor_t* y = Keep(shape);
    choir_tensor_t* loss = Keep(Shape{});
    const int32_t fused = Fuse([&] {
      choir_tensor_t* ab = Run(CHOIR_OP_MUL, {a, b});
      choir_tensor_t* sum = Run(CHOIR_OP_ADD, {ab, c});
      Run(CHOIR_OP_TANH, {sum}, y);
      choir_tensor_t* difference = Run(CHOIR_OP_SUB, {y, t});
      choir_tensor_t* square = Run(CHOIR_OP_SQUARE, {difference});
      Run(CHOIR_OP_SUM, {square}, loss);
    });
    EXPECT_EQ(fused, 4);
    EXPECT_EQ(stats().records, 2);
    EXPECT_NE(text().find("[mul+add+tanh+sub+square]"), std::string::npos)
        << text();
    if (is_cuda()) {
      EXPECT_EQ(launched().at(0), "choir_chain_dense");
      // And of a CUDA graph.
      EXPECT_EQ(stats().launches, 1);
      EXPECT_EQ(stats().launched_records, 2);
      EXPECT_EQ(stats().refused_launches, 0);
    }
  }
}

TEST_P(Chains, ResultsThatAreReadLaterAreWritten) {
  choir_tensor_t* x = Keep({37});
  choir_tensor_t* first = Keep({37});
  choir_tensor_t* second = Keep({37});
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* half = Run(CHOIR_OP_SCALE, {x});
              choir_tensor_t* y = Run(CHOIR_OP_EXP, {half});
              Run(CHOIR_OP_COPY, {y}, second);
              Run(CHOIR_OP_COPY, {half}, first);
            }),
            1);
}

// Batch norm's averages: in place, then added to.
TEST_P(Chains, InPlaceAndAdded) {
  for (int64_t count : {16, 4096, 4097}) {
    choir_tensor_t* mean = Keep({count});
    choir_tensor_t* var = Keep({count});
    choir_tensor_t* x = Keep({count});
    choir_tensor_t* y = Keep({count});
    const int32_t fused = Fuse([&] {
      Run(CHOIR_OP_SCALE, {mean}, mean);
      Run(CHOIR_OP_SCALE, {x}, mean, true);
      Run(CHOIR_OP_SCALE, {var}, var);
      Run(CHOIR_OP_SCALE, {y}, var, true);
    });
    // What shares nothing is put together where it is small.
    EXPECT_EQ(fused, count <= 4096 ? 3 : 2) << count;
  }
}

// Comparisons with NaN and infinities give what they give eagerly.
TEST_P(Chains, KeepNaNAndInfinity) {
  std::vector<float> values = Floats(2053, 9);
  const float special[] = {NAN, HUGE_VALF, -HUGE_VALF, -0.0f};
  for (size_t i = 0; i < values.size(); i += 3)
    values[i] = special[i / 3 % std::size(special)];
  choir_tensor_t* x = Keep(Make<float>(device().get(), {2053}, values));
  choir_tensor_t* y = Keep({2053});
  choir_tensor_t* z = Keep({2053});
  for (choir__isa_t isa :
       {CHOIR__ISA_BASE, CHOIR__ISA_AVX2, CHOIR__ISA_AVX512}) {
    choir__isa_limit(isa);
    EXPECT_EQ(Fuse([&] {
                choir_tensor_t* scaled = Run(CHOIR_OP_SCALE, {x});
                choir_tensor_t* relu = Run(CHOIR_OP_RELU, {scaled});
                choir_tensor_t* larger = Run(CHOIR_OP_MAXIMUM, {relu, y});
                Run(CHOIR_OP_MINIMUM, {y, larger}, y);
                choir_tensor_t* masked = Run(CHOIR_OP_RELU_GRAD, {relu, z});
                Run(CHOIR_OP_ABS, {masked}, z);
              }),
              5);
  }
}

TEST_P(Chains, NotWhereElementsMeet) {
  choir_tensor_t* whole = Keep({40});
  choir_tensor_t* low = Part(whole, {33}, 0);
  choir_tensor_t* same = Part(whole, {33}, 0);
  choir_tensor_t* high = Part(whole, {33}, 1);
  choir_tensor_t* one = Part(whole, {1}, 2);
  choir_tensor_t* x = Keep({33});
  choir_tensor_t* y = Keep({33});
  const std::vector<std::function<void()>> apart = {
      [&] { Run(CHOIR_OP_NEG, {Run(CHOIR_OP_RELU, {low})}, high); },
      [&] {
        Run(CHOIR_OP_NEG, {x}, low);
        Run(CHOIR_OP_RELU, {high}, y);
      },
      [&] {
        Run(CHOIR_OP_NEG, {x}, low);
        Run(CHOIR_OP_RELU, {y}, high);
      },
      [&] {
        Run(CHOIR_OP_NEG, {x}, low);
        Run(CHOIR_OP_ADD, {x, one}, y);
      },
      [&] {
        Run(CHOIR_OP_ADD, {x, one}, y);
        Run(CHOIR_OP_NEG, {x}, low);
      },
  };
  for (size_t i = 0; i < apart.size(); ++i)
    EXPECT_EQ(Fuse(apart[i]), 0) << "step " << i;
  // One after the other at each place.
  EXPECT_EQ(Fuse([&] {
              Run(CHOIR_OP_NEG, {x}, low);
              Run(CHOIR_OP_RELU, {same}, y);
              Run(CHOIR_OP_ADD, {y, same}, low);
            }),
            2);
}

TEST_P(Chains, OnlyOfDenseRecords) {
  choir_tensor_t* x = Keep({5, 7});
  choir_tensor_t* row = Keep({7});
  choir_tensor_t* y = Keep({5, 7});
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* scaled = Run(CHOIR_OP_MUL, {x, row});
              choir_tensor_t* shifted = Run(CHOIR_OP_SCALE, {scaled});
              Run(CHOIR_OP_TANH, {shifted}, y);
            }),
            1);
  choir_view_t gaps = *choir_tensor_view(Keep({5, 14}));
  gaps.shape[1] = 7;
  gaps.strides[1] = 2;
  choir_tensor_t* made = nullptr;
  ASSERT_OK(choir_tensor_from_view(&gaps, &made));
  choir_tensor_t* spread = Keep(TensorPtr(made));
  EXPECT_EQ(Fuse([&] { Run(CHOIR_OP_NEG, {Run(CHOIR_OP_RELU, {x})}, spread); }),
            0);
  EXPECT_EQ(Fuse([&] { Run(CHOIR_OP_NEG, {Run(CHOIR_OP_RELU, {spread})}, y); }),
            0);
}

TEST_P(Chains, InAnyOrderOfDimensions) {
  const Shape shape = {2, 3, 5, 7};
  const auto image = [&](uint32_t seed) {
    return Keep(MakeChannelsLast<float>(device().get(), shape,
                                        Floats(Count(shape), seed)));
  };
  choir_tensor_t* x = image(1);
  choir_tensor_t* y = image(2);
  choir_tensor_t* z = Keep(shape);
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* sum = Run(CHOIR_OP_ADD, {x, y});
              Run(CHOIR_OP_RELU, {sum}, x);
              Run(CHOIR_OP_NEG, {x}, z);  // another order
            }),
            1);
}

TEST_P(Chains, OnlyOfF32) {
  TensorPtr x = Make<double>(device().get(), {9}, Numbers(9, 1));
  TensorPtr wide = Make<double>(device().get(), {9}, Numbers(9, 2));
  choir_tensor_t* y = Keep({9});
  choir_cast_attrs_t f32 = {CHOIR_DTYPE_F32};
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* sum = Run(CHOIR_OP_ADD, {x.get(), wide.get()});
              choir_tensor_t* srcs[] = {Run(CHOIR_OP_NEG, {sum})};
              choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {y};
              EXPECT_OK(choir_op_run(stream(), CHOIR_OP_CAST, srcs, 1, &f32,
                                     false, dsts));
            }),
            0);
}

TEST_P(Chains, OfAtMostEightSteps) {
  choir_tensor_t* x = Keep({50});
  choir_tensor_t* y = Keep({50});
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* at = x;
              for (int i = 0; i < 19; ++i) at = Run(CHOIR_OP_SCALE, {at});
              Run(CHOIR_OP_TANH, {at}, y);
            }),
            17);
  EXPECT_EQ(stats().records, 3);
}

TEST_P(Chains, OfAtMostFourValues) {
  choir_tensor_t* x = Keep({50});
  choir_tensor_t* y = Keep({50});
  EXPECT_EQ(Fuse([&] {
              std::vector<choir_tensor_t*> p;
              for (int i = 0; i < 5; ++i)
                p.push_back(Run(i % 2 ? CHOIR_OP_MUL : CHOIR_OP_SUB,
                                {i > 2 ? x : y, x}));
              Run(CHOIR_OP_ADD, {p[0], p[1]}, x);
              Run(CHOIR_OP_ADD, {p[2], p[3]}, y);
              Run(CHOIR_OP_ADD, {p[4], p[0]}, y, true);
            }),
            6);
}

TEST_P(Chains, OfAtMostTwelveOperands) {
  std::vector<choir_tensor_t*> x;
  for (int i = 0; i < 15; ++i) x.push_back(Keep({11}));
  EXPECT_EQ(Fuse([&] {
              for (size_t i = 0; i < 15; i += 3)
                Run(CHOIR_OP_MUL, {x[i], x[i + 1]}, x[i + 2]);
            }),
            3);
}

TEST_P(Chains, NothingIsPutPastAnEvent) {
  choir_tensor_t* x = Keep({50});
  choir_tensor_t* y = Keep({50});
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device().get(), &event));
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* t = Run(CHOIR_OP_RELU, {x});
              EXPECT_OK(choir_event_record(event, stream()));
              Run(CHOIR_OP_NEG, {t}, y);
            }),
            0);
  choir_event_release(event);
}

TEST_P(Chains, FromAnyAddressOn) {
  choir_tensor_t* whole = Keep({4099});
  choir_tensor_t* x = Part(whole, {4097}, 1);
  choir_tensor_t* y = Keep({4097});
  EXPECT_EQ(Fuse([&] { Run(CHOIR_OP_TANH, {Run(CHOIR_OP_NEG, {x})}, y); }), 1);
  if (is_cuda()) {
    EXPECT_EQ(launched(), std::vector<std::string>{"choir_chain_single"});
  }
}

TEST_P(Chains, WithManyThreads) {
  choir_device_options_t options = {};
  options.threads = 3;
  Start(&options);
  choir_tensor_t* x = Keep({70001});
  choir_tensor_t* y = Keep({70001});
  EXPECT_EQ(Fuse([&] {
              choir_tensor_t* gate = Run(CHOIR_OP_SIGMOID, {x});
              choir_tensor_t* level = Run(CHOIR_OP_TANH, {y});
              Run(CHOIR_OP_MUL, {gate, level}, y);
              Run(CHOIR_OP_SIGMOID_GRAD, {gate, y}, x);
            }),
            3);
}

TEST_P(Chains, ProfilesNameTheirOps) {
  choir_tensor_t* x = Keep({50});
  choir_tensor_t* y = Keep({50});
  choir_profile_t* profile = nullptr;
  ASSERT_OK(choir_profile_create(nullptr, &profile));
  ASSERT_OK(choir_profile_start(profile));
  EXPECT_EQ(Fuse([&] { Run(CHOIR_OP_TANH, {Run(CHOIR_OP_NEG, {x})}, y); }), 1);
  choir_profile_stop(profile);
  std::vector<choir_profile_row_t> rows(choir_profile_rows(profile, nullptr));
  choir_profile_rows(profile, rows.data());
  int64_t calls = 0;
  for (const choir_profile_row_t& row : rows) {
    if (std::string(row.label) != "neg+tanh") continue;
    EXPECT_EQ(std::string(row.name), is_cuda() ? "chain/cuda" : "chain/cpu");
    // One read, one written.
    EXPECT_EQ(row.cost.bytes, static_cast<double>(row.calls) * 400);
    calls += row.calls;
  }
  EXPECT_EQ(calls, 3);
  choir_profile_destroy(profile);
}

TEST(ChainsWithoutKernels, RecordsStay) {
  CudaKernelsOnHost(false);
  FakeCuda fake;
  DevicePtr device = MakeDevice("cuda");
  TensorPtr x = Make<float>(device.get(), {9}, Floats(9, 1));
  TensorPtr y = Make<float>(device.get(), {9}, Floats(9, 2));
  choir_stream_t* stream = choir_device_stream(device.get());
  choir_workspace_t* workspace = nullptr;
  choir_graph_t* graph = nullptr;
  ASSERT_OK(choir_workspace_create(device.get(), &workspace));
  ASSERT_OK(choir_graph_create(workspace, &graph));
  const choir_step_values_t values = {};
  ASSERT_OK(choir_graph_begin(graph, &stream, 1, &values));
  {
    TensorPtr t = Result(CHOIR_OP_NEG, {x.get()});
    choir_tensor_t* srcs[] = {t.get()};
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {y.get()};
    ASSERT_OK(
        choir_op_run(stream, CHOIR_OP_RELU, srcs, 1, nullptr, false, dsts));
  }
  ASSERT_OK(choir_graph_end(graph));
  choir_graph_options_t options = {};
  options.rewrite = choir__graph_fuse;
  ASSERT_OK(choir_graph_plan(graph, &options));
  EXPECT_EQ(choir_graph_stats(graph).fused, 0);
  choir_graph_destroy(graph);
  choir_workspace_destroy(workspace);
}

// ---- Steps by chance ----

struct Formula {
  choir_op_t op;
  int sources;
};
const Formula kFormulas[] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) \
  {CHOIR_OP_##OP, sources},
#include "tensor/elementwise.def"
};

class Chance {
 public:
  explicit Chance(uint32_t seed) : state_(seed * 2654435761u + 99) {}
  size_t Below(size_t end) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>(state_ >> 33) % end;
  }

 private:
  uint64_t state_;
};

// Numbers below `kept` are tensors that the test holds, -1 is their one scalar,
// those from `kept` on what earlier lines made.
struct Line {
  choir_op_t op;
  std::vector<int> srcs;
  int dst;  // -1: a new one
  bool accumulate;
};

class RandomChains : public ChainTest {
 protected:
  // Whether an op may write there that reads here.
  static bool FitsBeside(choir_tensor_t* dst, choir_tensor_t* src) {
    const choir_view_t* a = choir_tensor_view(dst);
    const choir_view_t* b = choir_tensor_view(src);
    return choir__views_equal(a, b) || !choir__views_overlap(a, b);
  }

  std::vector<Line> Draw(Chance* chance, size_t lines,
                         const std::vector<choir_tensor_t*>& kept) {
    std::vector<Line> program;
    size_t values = kept.size();
    while (program.size() < lines) {
      Line line = {CHOIR_OP_COPY, {}, -1, false};
      int sources = 1;
      if (chance->Below(10) > 0) {
        const Formula& formula = kFormulas[chance->Below(std::size(kFormulas))];
        line.op = formula.op;
        sources = formula.sources;
      }
      // Gradients do not broadcast.
      const bool is_gradient =
          std::string(choir_op_name(line.op)).find("_grad") !=
          std::string::npos;
      for (int s = 0; s < sources; ++s) {
        const bool is_recent = chance->Below(2) > 0 && values > 3;
        line.srcs.push_back(static_cast<int>(
            is_recent ? values - 1 - chance->Below(3) : chance->Below(values)));
      }
      if (sources == 2 && !is_gradient && chance->Below(6) == 0)
        line.srcs[chance->Below(2)] = -1;
      const size_t kind = chance->Below(10);
      if (kind < 2) line.dst = line.srcs[0];
      if (kind >= 2 && kind < 4)
        line.dst = static_cast<int>(chance->Below(kept.size()));
      line.accumulate = line.dst >= 0 && chance->Below(3) == 0;
      bool fits = true;
      for (int src : line.srcs)
        if (line.dst >= 0 && line.dst < static_cast<int>(kept.size()) &&
            src >= 0 && src < static_cast<int>(kept.size()))
          fits &= FitsBeside(kept[static_cast<size_t>(line.dst)],
                             kept[static_cast<size_t>(src)]);
      if (!fits) continue;
      if (line.dst < 0) ++values;
      program.push_back(line);
    }
    return program;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RandomChains,
                         ::testing::Values("cpu", "cuda"),
                         [](const auto& param) { return param.param; });

TEST_P(RandomChains, HaveTheBitsOfTheirRecords) {
  const Shape shapes[] = {{1},       {3},    {4},    {5, 7},   {33, 17},
                          {2, 3, 5}, {2047}, {2049}, {5, 821}, {8200}};
  const uint32_t programs = kSanitized ? 60 : 300;
  int64_t fused = 0;
  int64_t left = 0;
  for (uint32_t seed = 0; seed < programs; ++seed) {
    SCOPED_TRACE("program " + std::to_string(seed));
    Chance chance(seed);
    const Shape& shape = shapes[seed % std::size(shapes)];
    TearDown();
    SetUp();
    choir_tensor_t* scalar = Keep({1});
    choir_tensor_t* whole = Keep({Count(shape) + 5});
    std::vector<choir_tensor_t*> kept = {
        Keep(shape),
        Keep(shape),
        Keep(shape),
        Part(whole, shape, 0),
        Part(whole, shape, 1 + static_cast<int64_t>(chance.Below(4))),
        Part(whole, shape, 0)};
    const std::vector<Line> program = Draw(&chance, 2 + chance.Below(16), kept);
    fused += Fuse([&] {
      std::vector<choir_tensor_t*> values = kept;
      const auto value = [&](int number) {
        return number < 0 ? scalar : values[static_cast<size_t>(number)];
      };
      for (const Line& line : program) {
        std::vector<choir_tensor_t*> srcs;
        for (int src : line.srcs) srcs.push_back(value(src));
        choir_tensor_t* dst = line.dst < 0 ? nullptr : value(line.dst);
        choir_tensor_t* made = Run(line.op, srcs, dst, line.accumulate);
        if (!dst) values.push_back(made);
      }
    });
    left += stats().records;
    if (HasFailure()) {
      ADD_FAILURE() << text();
      break;
    }
  }
  // Of what was drawn, most could be put together.
  EXPECT_GT(fused, left / 2) << fused << " of " << fused + left;
}

}  // namespace
