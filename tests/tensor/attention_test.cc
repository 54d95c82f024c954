// SPDX-License-Identifier: Apache-2.0
// Attention against the ops that it stands for, with the random numbers of
// dropout; masks against plain loops; its memory; what it refuses. All else:
// tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::RunOp;
using choir::testing::Shape;
using choir::testing::TensorPtr;

class Attention : public ::testing::Test {
 protected:
  TensorPtr Input(const Shape& shape, uint32_t seed) {
    return Make(device_.get(), shape,
                Floats(choir::testing::Count(shape), seed));
  }
  // softmax(scale q k^T) v by ops, causal, with dropout.
  std::vector<float> ByParts(choir_tensor_t* q, choir_tensor_t* k,
                             choir_tensor_t* v,
                             const choir_attention_attrs_t& attrs) {
    const int64_t t = choir_tensor_shape(q)[2], s = choir_tensor_shape(k)[2];
    std::vector<uint8_t> seen;
    for (int64_t i = 0; i < t; ++i)
      for (int64_t j = 0; j < s; ++j) seen.push_back(j <= i + attrs.offset);
    auto times = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
    times.transpose_b = true;
    auto scale = Attrs<choir_scale_attrs_t>(CHOIR_OP_SCALE);
    scale.factor = attrs.scale;
    auto dropout = Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
    dropout.ratio = attrs.dropout;
    dropout.seed = attrs.seed;
    dropout.stream = attrs.stream;
    dropout.step = attrs.step;
    dropout.first_sample = attrs.first_sample;
    TensorPtr products = Result(CHOIR_OP_MATMUL, {q, k}, &times);
    products = Result(CHOIR_OP_SCALE, {products.get()}, &scale);
    TensorPtr mask = Make(device_.get(), {t, s}, seen);
    TensorPtr none = Make<float>(device_.get(), {1}, {-INFINITY});
    products = Result(CHOIR_OP_WHERE, {mask.get(), products.get(), none.get()});
    TensorPtr weights = Result(CHOIR_OP_SOFTMAX, {products.get()});
    weights = Result(CHOIR_OP_DROPOUT, {weights.get()}, &dropout);
    return Read<float>(Result(CHOIR_OP_MATMUL, {weights.get(), v}));
  }
  choir_status_t Try(const std::vector<Shape>& shapes,
                     const choir_attention_attrs_t& attrs) {
    std::vector<TensorPtr> inputs, results;
    std::vector<choir_tensor_t*> srcs;
    for (const Shape& shape : shapes) {
      inputs.push_back(Input(shape, 1));
      srcs.push_back(inputs.back().get());
    }
    return RunOp(CHOIR_OP_ATTENTION, srcs, &attrs, &results);
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(Attention, DropsTheWeightsThatDropoutDrops) {
  TensorPtr q = Input({2, 3, 70, 8}, 1);
  TensorPtr k = Input({2, 3, 135, 8}, 2);
  TensorPtr v = Input({2, 3, 135, 5}, 3);
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  attrs.scale = 1.5;
  attrs.causal = true;
  attrs.offset = 65;
  for (double dropout : {0.0, 0.3}) {
    attrs.dropout = dropout;
    attrs.seed = 5;
    attrs.stream = 7;
    attrs.step = 11;
    attrs.first_sample = 1000;
    std::vector<TensorPtr> results;
    ASSERT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &attrs,
                    &results));
    const std::vector<float> want = ByParts(q.get(), k.get(), v.get(), attrs);
    ExpectNear(Read<float>(results[0]),
               std::vector<double>(want.begin(), want.end()), 1e-5);
  }
}

// The first rows see no column of the second block, and have large negative
// scores, which a largest one from elsewhere would make vanish.
TEST_F(Attention, RowsThatSeeNothingOfABlockStayAsTheyAre) {
  std::vector<float> far = Floats(135 * 8, 2);
  for (float& x : far) x -= 20;
  TensorPtr q = Make(device_.get(), {1, 1, 70, 8}, std::vector<float>(560, 5));
  TensorPtr k = Make(device_.get(), {1, 1, 135, 8}, far);
  TensorPtr v = Input({1, 1, 135, 5}, 3);
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  attrs.scale = 1;
  attrs.causal = true;
  attrs.offset = 65;
  std::vector<TensorPtr> results;
  ASSERT_OK(
      RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &attrs, &results));
  const std::vector<float> want = ByParts(q.get(), k.get(), v.get(), attrs);
  ExpectNear(Read<float>(results[0]),
             std::vector<double>(want.begin(), want.end()), 1e-3);
}

// A row of k and v (of q and dy) has no effect on the rows of q that come
// before it (on the columns that come after it), whatever it holds.
TEST_F(Attention, CausalRowsDoNotSeeLaterNaNs) {
  constexpr int64_t kRows = 150, kDepth = 40, kOdd = 70;
  const Shape shape = {1, 1, kRows, kDepth};
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  attrs.causal = true;
  const auto run = [&](float in_kv, float in_q, float in_dy) {
    std::vector<TensorPtr> x, y, grads;
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<float> data = Floats(kRows * kDepth, i + 1);
      const float added = i == 0 ? in_q : i == 3 ? in_dy : in_kv;
      data[kOdd * kDepth + 1] += added;
      x.push_back(Make(device_.get(), shape, data));
    }
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION, {x[0].get(), x[1].get(), x[2].get()},
                    &attrs, &y));
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION_GRAD,
                    {x[0].get(), x[1].get(), x[2].get(), y[0].get(), y[1].get(),
                     x[3].get()},
                    &attrs, &grads));
    return std::vector<std::vector<float>>{
        Read<float>(y[0]), Read<float>(grads[0]), Read<float>(grads[1]),
        Read<float>(grads[2])};
  };
  const auto finite = run(0, 0, 0);
  const auto expect = [&](const std::vector<std::vector<float>>& got,
                          size_t result, bool after) {
    for (size_t k = 0; k < got[result].size(); ++k) {
      const int64_t row = static_cast<int64_t>(k) / kDepth;
      if (after ? row > kOdd : row < kOdd) {
        ASSERT_NEAR(got[result][k], finite[result][k], 1e-5) << result;
      }
    }
  };
  for (float value : {NAN, HUGE_VALF, -HUGE_VALF}) {
    const auto kv = run(value, 0, 0);
    expect(kv, 0, false);
    expect(kv, 1, false);
    const auto q = run(0, value, 0), dy = run(0, 0, value);
    for (size_t result : {2, 3}) {
      expect(q, result, true);
      expect(dy, result, true);
    }
  }
}

// ---- Masks ----

// What the op is told to compute, in plain loops: all weights, one after the
// other.
struct Plain {
  int64_t n, h, g, t, s, d, e;
  choir_attention_attrs_t attrs;
  std::vector<float> q, k, v, dy;
  // Whether a place is seen, and what is added to its score.
  std::function<bool(int64_t, int64_t, int64_t, int64_t)> seen;
  std::function<double(int64_t, int64_t, int64_t, int64_t)> added;
  std::vector<double> y, dq, dk, dv, dscores;

  void Run() {
    y.assign(Size(h, t, e), 0);
    dq.assign(Size(h, t, d), 0);
    dk.assign(Size(g, s, d), 0);
    dv.assign(Size(g, s, e), 0);
    dscores.assign(Size(h, t, s), 0);
    for (int64_t sample = 0; sample < n; ++sample)
      for (int64_t head = 0; head < h; ++head)
        for (int64_t i = 0; i < t; ++i) Row(sample, head, i);
  }

 private:
  size_t Size(int64_t heads, int64_t rows, int64_t columns) const {
    return static_cast<size_t>(n * heads * rows * columns);
  }
  double Scale() const {
    return attrs.scale > 0 ? attrs.scale
                           : 1 / std::sqrt(static_cast<double>(d));
  }
  void Row(int64_t sample, int64_t head, int64_t i) {
    const size_t row = static_cast<size_t>((sample * h + head) * t + i);
    const size_t deep = static_cast<size_t>(d), wide = static_cast<size_t>(e);
    std::vector<size_t> places, others;  // of the scores; of k and v
    std::vector<double> weights;
    double sum = 0;
    for (int64_t j = 0; j < s; ++j) {
      if (attrs.causal && j > i + attrs.offset) continue;
      if (!seen(sample, head, i, j)) continue;
      const size_t other =
          static_cast<size_t>((sample * g + head / (h / g)) * s + j);
      double score = 0;
      for (size_t c = 0; c < deep; ++c)
        score += static_cast<double>(q[row * deep + c]) * k[other * deep + c];
      weights.push_back(std::exp(score * Scale() + added(sample, head, i, j)));
      sum += weights.back();
      places.push_back(row * static_cast<size_t>(s) + static_cast<size_t>(j));
      others.push_back(other);
    }
    for (size_t c = 0; sum == 0 && c < wide; ++c) y[row * wide + c] = NAN;
    for (size_t p = 0; p < places.size(); ++p)
      for (size_t c = 0; c < wide; ++c)
        y[row * wide + c] += weights[p] / sum * v[others[p] * wide + c];
    double along = 0;
    for (size_t c = 0; c < wide; ++c)
      along += y[row * wide + c] * dy[row * wide + c];
    for (size_t p = 0; p < places.size(); ++p) {
      double slope = 0;
      for (size_t c = 0; c < wide; ++c)
        slope +=
            static_cast<double>(dy[row * wide + c]) * v[others[p] * wide + c];
      const double weight = weights[p] / sum, ds = weight * (slope - along);
      dscores[places[p]] = ds;
      for (size_t c = 0; c < wide; ++c)
        dv[others[p] * wide + c] += weight * dy[row * wide + c];
      for (size_t c = 0; c < deep; ++c) {
        dq[row * deep + c] += ds * Scale() * k[others[p] * deep + c];
        dk[others[p] * deep + c] += ds * Scale() * q[row * deep + c];
      }
    }
  }
};

class AttentionMask : public Attention {
 protected:
  ~AttentionMask() override { choir__isa_limit(CHOIR__ISA_AVX512); }

  static Plain MakePlain() {
    Plain plain = {};
    plain.n = 2;
    plain.h = 4;
    plain.g = 2;
    plain.t = 70;
    plain.s = 140;
    plain.d = 8;
    plain.e = 5;
    plain.attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
    plain.q = Floats(plain.n * plain.h * plain.t * plain.d, 1);
    plain.k = Floats(plain.n * plain.g * plain.s * plain.d, 2);
    plain.v = Floats(plain.n * plain.g * plain.s * plain.e, 3);
    plain.dy = Floats(plain.n * plain.h * plain.t * plain.e, 4);
    plain.seen = [](int64_t, int64_t, int64_t, int64_t) { return true; };
    plain.added = [](int64_t, int64_t, int64_t, int64_t) { return 0.0; };
    return plain;
  }
  // Where element (n, h, t, s) of what broadcasts to that is.
  static size_t Broadcast(const Shape& shape, int64_t n, int64_t h, int64_t i,
                          int64_t j) {
    const int64_t at[] = {n, h, i, j};
    int64_t element = 0;
    for (size_t k = 0; k < shape.size(); ++k)
      element =
          element * shape[k] + (shape[k] == 1 ? 0 : at[4 - shape.size() + k]);
    return static_cast<size_t>(element);
  }
  // About a third of the places are 0; any row sees some of its first ones.
  static std::vector<uint8_t> Places(const Shape& shape) {
    std::vector<uint8_t> places;
    for (float x : Floats(choir::testing::Count(shape), 9))
      places.push_back(x < -0.3f ? 0 : 3);
    if (shape.empty() || shape.back() == 1) places.assign(places.size(), 1);
    for (size_t i = 0; !shape.empty() && i < places.size();
         i += static_cast<size_t>(shape.back()))
      places[i] = 1;
    return places;
  }
  static TensorPtr MakeMask(choir_device_t* device, choir_dtype_t dtype,
                            const Shape& shape,
                            const std::vector<uint8_t>& places) {
    if (dtype == CHOIR_DTYPE_I32)
      return Make(device, shape,
                  std::vector<int32_t>(places.begin(), places.end()));
    if (dtype == CHOIR_DTYPE_I64)
      return Make(device, shape,
                  std::vector<int64_t>(places.begin(), places.end()));
    if (dtype == CHOIR_DTYPE_U8) return Make(device, shape, places);
    std::vector<uint8_t> bools;
    for (uint8_t place : places) bools.push_back(place != 0);
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_data(device, CHOIR_DTYPE_BOOL,
                                     static_cast<int32_t>(shape.size()),
                                     shape.data(), bools.data(), &tensor));
    return TensorPtr(tensor);
  }
  // y, sums, dq, dk, dv and, of an added mask, dmask, by the kernel.
  static std::vector<std::vector<float>> Run(const Plain& plain,
                                             choir_device_t* device,
                                             choir_tensor_t* mask) {
    TensorPtr q = Make(device, {plain.n, plain.h, plain.t, plain.d}, plain.q);
    TensorPtr k = Make(device, {plain.n, plain.g, plain.s, plain.d}, plain.k);
    TensorPtr v = Make(device, {plain.n, plain.g, plain.s, plain.e}, plain.v);
    TensorPtr dy = Make(device, {plain.n, plain.h, plain.t, plain.e}, plain.dy);
    choir_op_stats_reset();
    std::vector<TensorPtr> y, grads, dmask;
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get(), mask},
                    &plain.attrs, &y));
    const std::vector<choir_tensor_t*> srcs = {
        q.get(), k.get(), v.get(), y[0].get(), y[1].get(), dy.get(), mask};
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION_GRAD, srcs, &plain.attrs, &grads));
    if (choir_tensor_dtype(mask) == CHOIR_DTYPE_F32) {
      EXPECT_OK(
          RunOp(CHOIR_OP_ATTENTION_MASK_GRAD, srcs, &plain.attrs, &dmask));
    }
    EXPECT_EQ(choir_op_stats().reference_runs, 0u);
    std::vector<std::vector<float>> results;
    for (const auto* made : {&y, &grads, &dmask})
      for (const TensorPtr& result : *made)
        results.push_back(Read<float>(result));
    return results;
  }
  static void ExpectLike(const std::vector<std::vector<float>>& got,
                         const Plain& plain) {
    ExpectNear(got[0], plain.y, 2e-5);
    ExpectNear(got[2], plain.dq, 5e-5);
    ExpectNear(got[3], plain.dk, 5e-5);
    ExpectNear(got[4], plain.dv, 5e-5);
  }
};

// Masks that broadcast in each dimension, of each dtype.
TEST_F(AttentionMask, HidesPlaces) {
  Plain plain = MakePlain();
  const choir_dtype_t dtypes[] = {CHOIR_DTYPE_BOOL, CHOIR_DTYPE_U8,
                                  CHOIR_DTYPE_I32, CHOIR_DTYPE_I64};
  size_t number = 0;
  for (const Shape& shape :
       {Shape{2, 4, 70, 140}, Shape{2, 1, 1, 140}, Shape{1, 4, 70, 140},
        Shape{70, 140}, Shape{4, 1, 140}, Shape{2, 1, 70, 1}, Shape{140},
        Shape{1, 1}, Shape{}}) {
    const std::vector<uint8_t> places = Places(shape);
    plain.seen = [&](int64_t n, int64_t h, int64_t i, int64_t j) {
      return places[Broadcast(shape, n, h, i, j)] != 0;
    };
    for (bool causal : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(shape) + (causal ? " causal" : ""));
      plain.attrs.causal = causal;
      plain.attrs.offset = 3;
      plain.Run();
      const TensorPtr mask =
          MakeMask(device_.get(), dtypes[number++ % 4], shape, places);
      ExpectLike(Run(plain, device_.get(), mask.get()), plain);
    }
  }
}

TEST_F(AttentionMask, HasOneSetOfBits) {
  Plain plain = MakePlain();
  plain.attrs.causal = true;
  plain.attrs.offset = 40;
  plain.attrs.dropout = 0.25;
  plain.attrs.seed = 7;
  plain.k[3] = NAN;  // so that some products go by runs of places
  std::vector<float> numbers = Floats(70 * 140, 5);
  const Shape shape = {2, 1, 70, 140};
  std::vector<uint8_t> places = Places(shape);
  for (size_t i = 0; i < places.size(); i += 140) places[i] = 0;
  std::vector<std::vector<std::vector<float>>> runs[2];
  for (int32_t threads : {1, 2, 5}) {
    choir_device_options_t options = {};
    options.threads = threads;
    const DevicePtr device = MakeDevice("cpu", &options);
    const TensorPtr masks[] = {
        MakeMask(device.get(), CHOIR_DTYPE_BOOL, shape, places),
        Make(device.get(), {70, 140}, numbers)};
    for (int isa = CHOIR__ISA_BASE; isa <= CHOIR__ISA_AVX512; ++isa) {
      choir__isa_limit(static_cast<choir__isa_t>(isa));
      for (int k = 0; k < 2; ++k) {
        Plain one = plain;
        if (k == 1) one.k[3] = 0;
        runs[k].push_back(Run(one, device.get(), masks[k].get()));
        EXPECT_EQ(runs[k].back(), runs[k].front())
            << threads << " threads, instruction set " << isa;
      }
    }
  }
}

// Rows of k and v that no row of q sees, and a row of q that sees few: what
// they hold has no effect.
TEST_F(AttentionMask, HidesNaNAndInfinity) {
  for (float value : {NAN, HUGE_VALF, -HUGE_VALF}) {
    Plain plain = MakePlain();
    const Shape shape = {70, 140};
    std::vector<uint8_t> places = Places(shape);
    auto hidden = [](int64_t j) { return j == 3 || j == 70 || j == 139; };
    for (int64_t i = 0; i < 70; ++i)
      for (int64_t j = 0; j < 140; ++j)
        if (hidden(j)) places[static_cast<size_t>(i * 140 + j)] = 0;
    for (int64_t other = 0; other < plain.n * plain.g; ++other)
      for (int64_t j = 0; j < plain.s; ++j) {
        if (!hidden(j)) continue;
        const int64_t row = other * plain.s + j;
        plain.k[static_cast<size_t>(row * plain.d + 1)] = value;
        plain.v[static_cast<size_t>(row * plain.e + 2)] = value;
      }
    plain.seen = [&](int64_t n, int64_t h, int64_t i, int64_t j) {
      return places[Broadcast(shape, n, h, i, j)] != 0;
    };
    plain.Run();
    const TensorPtr mask =
        MakeMask(device_.get(), CHOIR_DTYPE_U8, shape, places);
    const auto got = Run(plain, device_.get(), mask.get());
    ExpectLike(got, plain);
    for (const std::vector<float>& result : got)
      for (float x : result) ASSERT_TRUE(std::isfinite(x));
  }
}

// NaN, and the gradients are those of the other rows.
TEST_F(AttentionMask, LeavesRowsThatSeeNothing) {
  for (bool causal : {false, true}) {
    Plain plain = MakePlain();
    plain.attrs.causal = causal;
    const Shape shape = {2, 4, 70, 140};
    std::vector<uint8_t> places = Places(shape);
    // Row 5 of the first head, and all rows of another from 8 on.
    auto sees = [](int64_t n, int64_t h, int64_t i) {
      return !(n == 0 && h == 0 && i == 5) && !(n == 1 && h == 2 && i >= 8);
    };
    for (size_t p = 0; p < places.size(); ++p) {
      const int64_t row = static_cast<int64_t>(p) / 140;
      if (!sees(row / 280, row / 70 % 4, row % 70)) places[p] = 0;
    }
    plain.seen = [&](int64_t n, int64_t h, int64_t i, int64_t j) {
      return places[Broadcast(shape, n, h, i, j)] != 0;
    };
    // As a loss of NaN would give.
    for (int64_t row = 0; row < 560; ++row)
      if (!sees(row / 280, row / 70 % 4, row % 70))
        for (int64_t c = 0; c < plain.e; ++c)
          plain.dy[static_cast<size_t>(row * plain.e + c)] = NAN;
    plain.Run();
    const TensorPtr mask =
        MakeMask(device_.get(), CHOIR_DTYPE_I32, shape, places);
    const auto got = Run(plain, device_.get(), mask.get());
    for (int64_t row = 0; row < 560; ++row) {
      const bool has = sees(row / 280, row / 70 % 4, row % 70);
      EXPECT_EQ(std::isnan(got[1][static_cast<size_t>(row)]), !has) << row;
      for (int64_t c = 0; c < plain.e; ++c)
        EXPECT_EQ(std::isnan(got[0][static_cast<size_t>(row * plain.e + c)]),
                  !has);
      for (int64_t c = 0; !has && c < plain.d; ++c)
        EXPECT_EQ(got[2][static_cast<size_t>(row * plain.d + c)], 0);
    }
    for (size_t i = 0; i < plain.y.size(); ++i)
      if (std::isnan(plain.y[i])) plain.y[i] = 0;
    std::vector<std::vector<float>> others = got;
    for (float& y : others[0])
      if (std::isnan(y)) y = 0;
    ExpectLike(others, plain);
  }
}

// -inf among the numbers too, as other frameworks' causal masks have it.
TEST_F(AttentionMask, AddsNumbersWhichHaveAGradient) {
  Plain plain = MakePlain();
  for (const Shape& shape :
       {Shape{2, 4, 70, 140}, Shape{4, 70, 140}, Shape{2, 1, 70, 140},
        Shape{2, 1, 1, 140}, Shape{4, 1, 1}, Shape{70, 1}, Shape{}}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    std::vector<float> numbers = Floats(choir::testing::Count(shape), 6);
    for (size_t i = 1; i < numbers.size() && shape.back() > 1; i += 3)
      numbers[i] = -HUGE_VALF;
    plain.added = [&](int64_t n, int64_t h, int64_t i, int64_t j) {
      return static_cast<double>(numbers[Broadcast(shape, n, h, i, j)]);
    };
    plain.Run();
    std::vector<double> dmask(numbers.size());
    for (size_t p = 0; p < plain.dscores.size(); ++p) {
      const int64_t at = static_cast<int64_t>(p);
      dmask[Broadcast(shape, at / (140 * 280), at / (140 * 70) % 4,
                      at / 140 % 70, at % 140)] += plain.dscores[p];
    }
    const TensorPtr mask = Make(device_.get(), shape, numbers);
    const auto got = Run(plain, device_.get(), mask.get());
    ExpectLike(got, plain);
    ExpectNear(got[5], dmask, 5e-5);
  }
}

// A mask of one number for all places changes nothing: dropout is the same.
TEST_F(AttentionMask, DropsWhatAttentionWithoutItDrops) {
  Plain plain = MakePlain();
  plain.attrs.dropout = 0.3;
  plain.attrs.seed = 5;
  plain.attrs.step = 2;
  TensorPtr q = Make(device_.get(), {2, 4, 70, 8}, plain.q);
  TensorPtr k = Make(device_.get(), {2, 2, 140, 8}, plain.k);
  TensorPtr v = Make(device_.get(), {2, 2, 140, 5}, plain.v);
  std::vector<TensorPtr> want;
  ASSERT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &plain.attrs,
                  &want));
  const std::vector<float> y = Read<float>(want[0]);
  const std::vector<double> wide(y.begin(), y.end());
  const TensorPtr two = Make<float>(device_.get(), {1}, {2});
  const TensorPtr seen = Make<int32_t>(device_.get(), {1}, {-1});
  ExpectNear(Run(plain, device_.get(), two.get())[0], wide, 1e-5);
  EXPECT_EQ(Run(plain, device_.get(), seen.get())[0], y);
}

// All weights of a head would be 16 MiB.
TEST_F(Attention, MemoryGrowsWithRowsNotWithTheirSquare) {
  const Shape shape = {1, 1, 2048, 16};
  TensorPtr q = Input(shape, 1), k = Input(shape, 2), v = Input(shape, 3);
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  TensorPtr mask = Input({2048}, 4);
  std::vector<TensorPtr> y, grads, dmask;
  ASSERT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &attrs, &y));
  ASSERT_OK(RunOp(CHOIR_OP_ATTENTION_GRAD,
                  {q.get(), k.get(), v.get(), y[0].get(), y[1].get(), q.get()},
                  &attrs, &grads));
  ASSERT_OK(RunOp(
      CHOIR_OP_ATTENTION_MASK_GRAD,
      {q.get(), k.get(), v.get(), y[0].get(), y[1].get(), q.get(), mask.get()},
      &attrs, &dmask));
  EXPECT_LT(choir_device_memory(device_.get()).peak_bytes, 8u << 20);
}

TEST_F(Attention, RefusesWhatDoesNotFit) {
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  EXPECT_STATUS(INVALID_ARGUMENT, "h a multiple of g",
                Try({{2, 3, 4, 5}, {2, 3, 4, 6}, {2, 3, 4, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "h a multiple of g",
                Try({{2, 3, 4, 5}, {2, 2, 4, 5}, {2, 2, 4, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs v's first three sizes to be k's",
                Try({{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 6, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "q is f32 (3, 4, 5); needs 4 dimensions",
                Try({{3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}}, attrs));
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "the mask is f32 (2, 4, 4); needs a shape that broadcasts to "
      "(2, 3, 4, 6)",
      Try({{2, 3, 4, 5}, {2, 3, 6, 5}, {2, 3, 6, 5}, {2, 4, 4}}, attrs));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "the mask is f32 (1, 2, 3, 4, 6); needs",
      Try({{2, 3, 4, 5}, {2, 3, 6, 5}, {2, 3, 6, 5}, {1, 2, 3, 4, 6}}, attrs));
  TensorPtr q = Input({2, 3, 4, 5}, 1);
  TensorPtr wide = Make<double>(device_.get(), {1}, {1});
  std::vector<TensorPtr> results;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "attention: source 3 is f64; needs",
      RunOp(CHOIR_OP_ATTENTION, {q.get(), q.get(), q.get(), wide.get()}, &attrs,
            &results));
  attrs.dropout = 1;
  EXPECT_STATUS(INVALID_ARGUMENT, "dropout is 1; needs to be below 1",
                Try({{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}}, attrs));
}

}  // namespace
