// SPDX-License-Identifier: Apache-2.0
// Copies, fills, casts and the ReLU on a GPU, in all dtypes: the bits are the
// CPU's.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

const char* const kNames[] = {
#define NAME(ENUM, name, bytes, is_float) #ENUM,
    CHOIR_DTYPE_LIST(NAME)
#undef NAME
};

class CudaMove : public CudaKernelsTest {
 protected:
  // The same elements on both devices: those of `values` as they are, those of
  // other dtypes cast by the CPU.
  struct Both {
    TensorPtr on_gpu;
    TensorPtr on_cpu;
  };
  Both Elements(choir_dtype_t dtype, const std::vector<double>& values) {
    Both both;
    choir_cast_attrs_t attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
    attrs.dtype = dtype;
    const int64_t count = static_cast<int64_t>(values.size());
    TensorPtr reals = Make<double>(cpu_.get(), {count}, values);
    both.on_cpu = Result(CHOIR_OP_CAST, {reals.get()}, &attrs);
    const std::vector<unsigned char> bytes = Bytes(both.on_cpu.get());
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_data(gpu_.get(), dtype, 1, &count, bytes.data(),
                                     &tensor));
    both.on_gpu.reset(tensor);
    return both;
  }
  static std::vector<unsigned char> Bytes(choir_tensor_t* tensor) {
    std::vector<unsigned char> bytes(
        static_cast<size_t>(choir_tensor_count(tensor)) *
        choir_dtype_bytes(choir_tensor_dtype(tensor)));
    EXPECT_OK(choir_tensor_read(tensor, bytes.data(), bytes.size()));
    return bytes;
  }
  // Equal bits, but of a NaN.
  static void ExpectSame(choir_tensor_t* got, choir_tensor_t* want) {
    const choir_dtype_t dtype = choir_tensor_dtype(want);
    ASSERT_EQ(choir_tensor_dtype(got), dtype);
    const std::vector<unsigned char> a = Bytes(got), b = Bytes(want);
    ASSERT_EQ(a.size(), b.size());
    const size_t bytes = choir_dtype_bytes(dtype);
    for (size_t i = 0; i < a.size(); i += bytes) {
      const double x = choir_element_load(&a[i], dtype);
      const double y = choir_element_load(&b[i], dtype);
      if (std::isnan(x) && std::isnan(y)) continue;
      ASSERT_EQ(memcmp(&a[i], &b[i], bytes), 0)
          << "element " << i / bytes << ": " << x << ", on the CPU " << y;
    }
  }
  // What makes conversions go wrong, and what does not.
  static std::vector<double> Values(size_t count) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double special[] = {0.0,
                              -0.0,
                              1.0,
                              -1.0,
                              0.5,
                              -0.75,
                              255.0,
                              255.5,
                              256.0,
                              -3.7,
                              65504.0,
                              65520.0,
                              -70000.0,
                              6e-8,
                              2.9e-8,
                              1e-40,
                              1.0009765625,
                              1.00048828125,
                              1.000488281250001,
                              2147483647.0,
                              2147483648.0,
                              -2147483649.0,
                              16777217.0,
                              9007199254740993.0,
                              1e19,
                              -1e19,
                              3.4e38,
                              1e39,
                              1e300,
                              kInfinity,
                              -kInfinity,
                              std::numeric_limits<double>::quiet_NaN()};
    std::vector<double> values = Numbers(static_cast<int64_t>(count), 3);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] *= 300;
      if (i < std::size(special)) values[i] = special[i];
    }
    return values;
  }
  // Every other element of a vector.
  static TensorPtr Sparse(choir_tensor_t* tensor) {
    choir_slice_attrs_t attrs = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
    attrs.axis = 0;
    attrs.start = 1;
    attrs.stop = choir_tensor_count(tensor);
    attrs.step = 2;
    return Result(CHOIR_OP_SLICE, {tensor}, &attrs);
  }
};

TEST_F(CudaMove, CastsBetweenAllDtypes) {
  for (int from = 0; from < CHOIR_DTYPE_COUNT; ++from) {
    const Both both = Elements(static_cast<choir_dtype_t>(from), Values(1027));
    for (int to = 0; to < CHOIR_DTYPE_COUNT; ++to) {
      const std::string name =
          std::string("choir_cast_") + kNames[from] + "_" + kNames[to];
      SCOPED_TRACE(name);
      choir_cast_attrs_t attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
      attrs.dtype = to;
      (void)Launched();
      TensorPtr got = Result(CHOIR_OP_CAST, {both.on_gpu.get()}, &attrs);
      TensorPtr sparse =
          Result(CHOIR_OP_CAST, {Sparse(both.on_gpu.get()).get()}, &attrs);
      const std::vector<std::string> launched = Launched();
      if (from != to) {
        EXPECT_EQ(launched, (std::vector<std::string>{name + "_dense",
                                                      name + "_strided"}));
      }
      ExpectSame(got.get(),
                 Result(CHOIR_OP_CAST, {both.on_cpu.get()}, &attrs).get());
      ExpectSame(sparse.get(), Result(CHOIR_OP_CAST,
                                      {Sparse(both.on_cpu.get()).get()}, &attrs)
                                   .get());
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaMove, CastsAreAddedToTheLargeFloats) {
  const Both both = Elements(CHOIR_DTYPE_F16, {1.5, -2, 0.25, 4, 3});
  TensorPtr sum = Make<float>(gpu_.get(), {5}, {1, 2, 3, 4, 5});
  choir_cast_attrs_t attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
  choir_tensor_t* srcs[] = {both.on_gpu.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {sum.get()};
  ASSERT_OK(choir_op_run(choir_device_stream(gpu_.get()), CHOIR_OP_CAST, srcs,
                         1, &attrs, true, dsts));
  EXPECT_EQ(Read<float>(sum), (std::vector<float>{2.5, 0, 3.25, 8, 8}));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaMove, CopiesAllDtypes) {
  for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
    SCOPED_TRACE(choir_dtype_name(static_cast<choir_dtype_t>(d)));
    for (size_t count : {1, 4, 1027}) {
      const Both both = Elements(static_cast<choir_dtype_t>(d), Values(count));
      ExpectSame(Result(CHOIR_OP_COPY, {both.on_gpu.get()}).get(),
                 both.on_cpu.get());
      if (count == 1) continue;
      ExpectSame(
          Result(CHOIR_OP_COPY, {Sparse(both.on_gpu.get()).get()}).get(),
          Result(CHOIR_OP_COPY, {Sparse(both.on_cpu.get()).get()}).get());
      choir_reshape_attrs_t attrs =
          Attrs<choir_reshape_attrs_t>(CHOIR_OP_BROADCAST_TO);
      attrs.ndim = 2;
      attrs.shape[0] = 3;
      attrs.shape[1] = static_cast<int64_t>(count);
      ExpectSame(
          Result(CHOIR_OP_COPY,
                 {Result(CHOIR_OP_BROADCAST_TO, {both.on_gpu.get()}, &attrs)
                      .get()})
              .get(),
          Result(CHOIR_OP_COPY,
                 {Result(CHOIR_OP_BROADCAST_TO, {both.on_cpu.get()}, &attrs)
                      .get()})
              .get());
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// In one transfer, however many elements lie apart from each other; the others
// stay as they are.
TEST_F(CudaMove, WritesElementsThatLieApart) {
  for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
    SCOPED_TRACE(choir_dtype_name(static_cast<choir_dtype_t>(d)));
    const auto dtype = static_cast<choir_dtype_t>(d);
    const Both both = Elements(dtype, Values(1027));
    const std::vector<unsigned char> bytes =
        Bytes(Elements(dtype, Numbers(513, 5)).on_cpu.get());
    fake_.ClearLog();
    for (choir_tensor_t* whole : {both.on_gpu.get(), both.on_cpu.get()})
      ASSERT_OK(
          choir_tensor_write(Sparse(whole).get(), bytes.data(), bytes.size()));
    int transfers = 0;
    for (const std::string& line : fake_.TakeLog())
      transfers += line.rfind("to_device ", 0) == 0;
    EXPECT_EQ(transfers, 1);
    ExpectSame(both.on_gpu.get(), both.on_cpu.get());
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// NaN and the sign of zero stay.
TEST_F(CudaMove, ReluOfAllFloats) {
  for (const choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    SCOPED_TRACE(choir_dtype_name(dtype));
    const Both both = Elements(dtype, Values(1027));
    (void)Launched();
    TensorPtr sparse = Result(CHOIR_OP_RELU, {Sparse(both.on_gpu.get()).get()});
    for (const TensorPtr* x : {&both.on_gpu, &both.on_cpu}) {
      if (x == &both.on_cpu)
        ExpectSame(sparse.get(),
                   Result(CHOIR_OP_RELU, {Sparse(x->get()).get()}).get());
      choir_tensor_t* operands[CHOIR_OP_MAX_RESULTS] = {x->get()};
      ASSERT_OK(choir_op_run(choir_device_stream(choir_tensor_device(x->get())),
                             CHOIR_OP_RELU, operands, 1, nullptr, false,
                             operands));
    }
    ExpectSame(both.on_gpu.get(), both.on_cpu.get());
    EXPECT_EQ(Launched().size(), 2u);
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaMove, FillsAllDtypes) {
  for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
    SCOPED_TRACE(choir_dtype_name(static_cast<choir_dtype_t>(d)));
    for (double value : {0.0, 1.0, -0.3, 300.0, 1e30}) {
      choir_fill_attrs_t attrs = Attrs<choir_fill_attrs_t>(CHOIR_OP_FILL);
      attrs.value = value;
      for (size_t count : {1, 5, 1024}) {
        const Both both =
            Elements(static_cast<choir_dtype_t>(d), Values(count));
        ExpectSame(Result(CHOIR_OP_FILL, {both.on_gpu.get()}, &attrs).get(),
                   Result(CHOIR_OP_FILL, {both.on_cpu.get()}, &attrs).get());
        // Into every other element, the rest unchanged.
        if (count == 1) continue;
        for (choir_tensor_t* whole : {both.on_gpu.get(), both.on_cpu.get()}) {
          TensorPtr part = Sparse(whole);
          choir_tensor_t* srcs[] = {part.get()};
          choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {part.get()};
          ASSERT_OK(
              choir_op_run(choir_device_stream(choir_tensor_device(whole)),
                           CHOIR_OP_FILL, srcs, 1, &attrs, false, dsts));
        }
        ExpectSame(both.on_gpu.get(), both.on_cpu.get());
      }
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// A condition and what it chooses from, of every dtype; -0 is 0, NaN is not.
TEST_F(CudaMove, ChoosesBetweenAllDtypes) {
  for (int c = 0; c < CHOIR_DTYPE_COUNT; ++c) {
    for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
      SCOPED_TRACE(
          std::string(choir_dtype_name(static_cast<choir_dtype_t>(c))) + " " +
          choir_dtype_name(static_cast<choir_dtype_t>(d)));
      std::vector<double> values = Values(40);
      for (size_t i = 0; i < values.size(); i += 3)
        values[i] = i % 2 ? 0 : -0.0;
      const Both condition = Elements(static_cast<choir_dtype_t>(c), values);
      const Both x = Elements(static_cast<choir_dtype_t>(d), Values(40));
      const Both y = Elements(static_cast<choir_dtype_t>(d), {77});
      ExpectSame(Result(CHOIR_OP_WHERE, {condition.on_gpu.get(), x.on_gpu.get(),
                                         y.on_gpu.get()})
                     .get(),
                 Result(CHOIR_OP_WHERE, {condition.on_cpu.get(), x.on_cpu.get(),
                                         y.on_cpu.get()})
                     .get());
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

}  // namespace
