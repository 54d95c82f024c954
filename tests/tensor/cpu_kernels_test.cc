// SPDX-License-Identifier: Apache-2.0
// Every kernel of the CPU against its op's reference: on all of the op's
// cases, in several layouts, adding and overwriting, for every instruction
// set of this machine, on one thread and two.
#include <gtest/gtest.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_amx.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/index_rule.h"
#include "tests/tensor/kernel_cases.h"
#include "tests/tensor/kernel_problem.h"
#include "tests/testing/sanitized.h"

namespace {

using choir::testing::AllKernels;
using choir::testing::Cases;
using choir::testing::Device;
using choir::testing::kLayouts;
using choir::testing::kSanitized;
using choir::testing::Layout;
using choir::testing::Problem;
using choir::testing::Wide;

// Ops whose bits are part of their definition.
bool IsExact(choir_op_t op) {
  switch (op) {
    case CHOIR_OP_SGD_UPDATE:
    case CHOIR_OP_ADAM_UPDATE:
    case CHOIR_OP_RMSPROP_UPDATE:
    case CHOIR_OP_ADAGRAD_UPDATE:
    case CHOIR_OP_ADADELTA_UPDATE:
    case CHOIR_OP_RANDOM_UNIFORM:
    case CHOIR_OP_RANDOM_NORMAL:
    case CHOIR_OP_DROPOUT:
    case CHOIR_OP_COPY:
    case CHOIR_OP_CAST:
    case CHOIR_OP_WHERE:
    case CHOIR_OP_FILL:
    case CHOIR_OP_ARGMAX:
    case CHOIR_OP_COUNT_CORRECT:
      return true;
    default:
      return choir__op_def(op)->index_map;
  }
}

// Whether the op rounds a term of a sum to 16 bits, as the ops in whose place
// it stands would.
bool RoundsATerm(const choir_record_t& record) {
  switch (choir__record_op(&record)) {
    case CHOIR_OP_BATCH_NORM_RELU:
    case CHOIR_OP_BATCH_NORM_RELU_GRAD:
    case CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD:
      return record.src_count ==
             choir__op_def(choir__record_op(&record))->src_max;
    default:
      return false;
  }
}

void ExpectClose(const std::vector<char>& got, const std::vector<char>& want,
                 choir_dtype_t dtype, double tolerance, bool accumulate,
                 const std::string& what) {
  const size_t bytes = choir_dtype_bytes(dtype);
  ASSERT_EQ(got.size(), want.size());
  double scale = 0;
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double value = choir_element_load(&want[i], dtype);
    if (std::isfinite(value)) scale = std::fmax(scale, std::fabs(value));
  }
  // The sum with what was there is rounded once more.
  if (accumulate) tolerance += 2.5e-7;
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double a = choir_element_load(&got[i], dtype);
    const double b = choir_element_load(&want[i], dtype);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_LE(std::fabs(a - b), tolerance * (std::fabs(b) + 0.1 * scale))
        << what << ": element " << i / bytes << " is " << a << "; needs " << b;
  }
}

std::vector<choir__isa_t> InstructionSets() {
  std::vector<choir__isa_t> sets;
  for (int isa = CHOIR__ISA_AVX512; isa >= CHOIR__ISA_BASE; --isa)
    if (choir__isa_limit(static_cast<choir__isa_t>(isa)) == isa)
      sets.push_back(static_cast<choir__isa_t>(isa));
  choir__isa_limit(CHOIR__ISA_AVX512);
  return sets;
}

// With no instruction set above `most`, on sources of `dtype`.
void AgreeWithTheReference(const choir_op_kernel_t* kernel, choir__isa_t most,
                           choir_dtype_t dtype = CHOIR_DTYPE_F32,
                           Wide wide = Wide::kNothing) {
  const choir_op_def_t* def = choir__op_def(kernel->op);
  ASSERT_NE(def, nullptr);
  ASSERT_NE(def->cases, nullptr);
  const bool own = strcmp(kernel->algorithm, "cpu") == 0 ||
                   strcmp(kernel->algorithm, "argmax") == 0;
  // Of ours that need AVX2.
  const bool of_avx2 = strcmp(kernel->algorithm, "winograd") == 0;
  const bool direct = strcmp(kernel->algorithm, "direct") == 0;
  const bool amx = strcmp(kernel->algorithm, "amx") == 0;
  // Of f32 where ours have no fused multiply-add.
  if (dtype == CHOIR_DTYPE_F32 &&
      (kernel == &choir__cpu_matmul_dnnl || kernel == &choir__cpu_linear_dnnl))
    most = CHOIR__ISA_BASE;
  if (choir__isa_limit(most) == CHOIR__ISA_BASE && (direct || of_avx2))
    GTEST_SKIP() << "this processor has no AVX2";
  Device one(1), two(2);
  std::set<std::string> shapes;
  int number = 0;
  using Results = std::vector<std::vector<char>>;
  const auto expect_close = [&](const Results& got, const Results& want,
                                const Problem& problem, size_t i) {
    const choir_dtype_t result = problem.dst_dtype(static_cast<int32_t>(i));
    // Two roundings that fall apart are a unit in the last place apart; of a
    // term, a unit of what may be larger than the sum. What AMX multiplies in
    // attention was rounded before as well.
    const auto unit_of = [](choir_dtype_t of) {
      return of == CHOIR_DTYPE_BF16  ? 0x1p-7
             : of == CHOIR_DTYPE_F16 ? 0x1p-10
                                     : 0;
    };
    const bool rounds_twice = amx && !def->is_product;
    const double unit = RoundsATerm(problem.record())
                            ? 4 * unit_of(dtype)
                            : (1 + rounds_twice) * unit_of(result);
    ExpectClose(got[i], want[i], result, def->tolerance + unit,
                problem.record().accumulate, problem.Describe());
  };
  for (const choir_op_case_t& c : Cases(def)) {
    ++number;
    for (Layout layout : kLayouts) {
      // Under a sanitizer one layout for each case, in turn.
      if (kSanitized && static_cast<int>(layout) != number % 4) continue;
      for (bool accumulate : {false, true}) {
        if (accumulate && def->no_accumulate) continue;
        if (accumulate && dtype != CHOIR_DTYPE_F32 && number % 2) continue;
        Problem problem(def, c, layout, accumulate, dtype, one, wide);
        if (!problem.valid() || problem.empty()) continue;
        if (!kernel->supports(&problem.record())) continue;
        // The reference takes its time over the large ones, oneDNN over
        // generating code.
        if (problem.size() > (own || of_avx2 || direct ? 20000 : 2000) &&
            (layout != Layout::kChannelsLast || accumulate))
          continue;
        shapes.insert(std::string(c.shapes) + (c.attrs ? c.attrs : "") +
                      std::to_string(static_cast<int>(layout)));
        const auto want = problem.Run(nullptr, one.stream());
        const auto got = problem.Run(kernel, one.stream());
        for (size_t i = 0; i < want.size(); ++i) {
          if (IsExact(kernel->op) && !accumulate)
            ASSERT_EQ(got[i], want[i]) << problem.Describe();
          else
            expect_close(got, want, problem, i);
        }
        if (testing::Test::HasFatalFailure()) return;
        // A kernel of ours has the same bits on every instruction set and for
        // every number of threads.
        if (own || of_avx2) {
          for (choir__isa_t isa : InstructionSets()) {
            choir__isa_limit(isa);
            if (of_avx2 && isa == CHOIR__ISA_BASE) continue;
            ASSERT_EQ(problem.Run(kernel, one.stream()), got)
                << problem.Describe() << " on instruction set " << isa;
          }
          choir__isa_limit(most);
          ASSERT_EQ(problem.Run(kernel, two.stream()), got)
              << problem.Describe() << " on two threads";
        } else {
          ASSERT_EQ(problem.Run(kernel, one.stream()), got)
              << problem.Describe() << " run again";
          const auto shared = problem.Run(kernel, two.stream());
          if (direct || amx) {
            ASSERT_EQ(shared, got) << problem.Describe();
          }
          for (size_t i = 0; i < want.size(); ++i)
            expect_close(shared, want, problem, i);
        }
      }
    }
  }
  const bool takes_f32 = kernel != &choir__cpu_conv2d_max_pool2d_dnnl;
  // As mixed precision makes them.
  const bool is_mixed =
      wide == (def->wide_sources ? Wide::kSources : Wide::kNothing);
  const bool must_run =
      amx ? dtype == CHOIR_DTYPE_BF16 && is_mixed && choir__has_amx()
          : dtype == CHOIR_DTYPE_F32 && takes_f32;
  if (must_run || !shapes.empty()) {
    EXPECT_GE(shapes.size(), kSanitized ? 4u : 20u);
  }
}

template <typename Param>
class WithIsaLimit : public testing::TestWithParam<Param> {
 protected:
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }
};

class CpuKernels : public WithIsaLimit<const choir_op_kernel_t*> {};

TEST_P(CpuKernels, AgreeWithTheReference) {
  AgreeWithTheReference(GetParam(), CHOIR__ISA_AVX512);
}

// Sources of 16 bits alone, beside f32 where the op takes that too, and with
// results in f32, which are as exact as those of f32.
TEST_P(CpuKernels, AgreeWithTheReferenceIn16Bits) {
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16})
    for (Wide wide : {Wide::kNothing, Wide::kSources, Wide::kResults}) {
      // Without sources that can be wide the first two are the same.
      const bool has_wide = choir__op_def(GetParam()->op)->wide_sources != 0;
      if (wide == Wide::kSources && !has_wide) continue;
      if (wide == Wide::kNothing && has_wide && kSanitized) continue;
      // One loop, of two dtypes.
      if (dtype == CHOIR_DTYPE_F16 && wide != Wide::kResults && kSanitized)
        continue;
      SCOPED_TRACE(choir_dtype_name(dtype));
      AgreeWithTheReference(GetParam(), CHOIR__ISA_AVX512, dtype, wide);
    }
}

// The references themselves: of 16 bits and f32 what they make of f32 alone.
TEST(References, TakeF32Beside16Bits) {
  Device device(1);
  int count = 0;
  for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
    const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
    if (!(def->dtypes & CHOIR_DTYPE_MASK(BF16))) continue;
    // A choice among rounded sums is another choice.
    if (op == CHOIR_OP_CONV2D_MAX_POOL2D) continue;
    for (const choir_op_case_t* c = def->cases; c && c->shapes; ++c) {
      for (Wide wide : {Wide::kSources, Wide::kResults}) {
        Problem problem(def, *c, Layout::kDense, false, CHOIR_DTYPE_BF16,
                        device, wide);
        if (!problem.valid() || problem.empty() || problem.size() > 2000)
          continue;
        const auto got = problem.Run(nullptr, device.stream());
        Problem same(def, *c, Layout::kDense, false, CHOIR_DTYPE_F32, device);
        same.TakeSources(problem);
        const auto want = same.Run(nullptr, device.stream());
        for (size_t i = 0; i < want.size(); ++i) {
          const auto dtype = [&](const Problem& of) {
            return of.dst_dtype(static_cast<int32_t>(i));
          };
          const size_t elements =
              got[i].size() / choir_dtype_bytes(dtype(problem));
          ASSERT_EQ(elements, want[i].size() / choir_dtype_bytes(dtype(same)));
          // Not the guards around them, which hold other numbers.
          for (size_t k = 32; k + 32 < elements; ++k) {
            const double a = choir_element_load(
                &got[i][k * choir_dtype_bytes(dtype(problem))], dtype(problem));
            const double b = choir_element_load(
                &want[i][k * choir_dtype_bytes(dtype(same))], dtype(same));
            const double unit =
                dtype(problem) == CHOIR_DTYPE_BF16 ? 0x1p-7 : 1e-6;
            if (a == b || (std::isnan(a) && std::isnan(b))) continue;
            ASSERT_LE(std::fabs(a - b), unit * std::fabs(b))
                << problem.Describe() << ": element " << k;
          }
        }
        ++count;
      }
    }
  }
  EXPECT_GT(count, 1000);
}

// NaN, infinities and numbers where the reference has them. oneDNN's
// convolution may multiply zeros that lie outside of its data, and that is NaN
// for an infinity and for NaN: which elements, depends on processor and
// version.
void ExpectSamePlaces(const std::vector<char>& got,
                      const std::vector<char>& want, choir_dtype_t dtype,
                      bool may_multiply_zeros, const std::string& what) {
  const size_t bytes = choir_dtype_bytes(dtype);
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double a = choir_element_load(&got[i], dtype);
    const double b = choir_element_load(&want[i], dtype);
    const bool alike = std::isfinite(b) ? std::isfinite(a)
                       : std::isnan(b)  ? std::isnan(a)
                                        : a == b;
    ASSERT_TRUE(alike || (may_multiply_zeros && std::isnan(a)))
        << what << ": element " << i / bytes << " is " << a << "; needs " << b;
  }
}

void KeepNaNAndInfinity(const choir_op_kernel_t* kernel, choir_dtype_t dtype,
                        bool accumulate = false) {
  const choir_op_def_t* def = choir__op_def(kernel->op);
  const bool is_conv2d = strncmp(def->name, "conv", 4) == 0;
  // Those copy windows with zeros beyond the image, or let oneDNN or another
  // kernel do so.
  const bool has_zeros = strcmp(kernel->algorithm, "dnnl") == 0 ||
                         strcmp(kernel->algorithm, "product") == 0 ||
                         strcmp(kernel->algorithm, "rows") == 0 ||
                         strcmp(kernel->algorithm, "winograd_defined") == 0;
  Device device(1);
  int number = 0;
  for (const choir_op_case_t& c : Cases(def)) {
    if (kSanitized && ++number % 4) continue;
    const bool is_padded = c.attrs && strstr(c.attrs, "pad");
    for (double value : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
      for (int32_t source = 0;; ++source) {
        Problem problem(def, c, Layout::kChannelsLast, accumulate, dtype,
                        device);
        if (!problem.valid() || problem.empty() || problem.size() > 20000 ||
            source == problem.record().src_count)
          break;
        if ((def->shapes_only >> source & 1u) || !problem.Put(source, value))
          continue;
        std::vector<std::vector<char>> want;
        for (choir__isa_t isa : InstructionSets()) {
          choir__isa_limit(isa);
          if (!kernel->supports(&problem.record())) continue;
          if (want.empty()) want = problem.Run(nullptr, device.stream());
          const auto got = problem.Run(kernel, device.stream());
          for (size_t i = 0; i < want.size(); ++i)
            ExpectSamePlaces(
                got[i], want[i], problem.dst_dtype(static_cast<int32_t>(i)),
                is_conv2d && (has_zeros || is_padded),
                problem.Describe() + " with " + std::to_string(value) +
                    " in source " + std::to_string(source) +
                    " on instruction set " + std::to_string(isa));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CpuKernels, KeepNaNAndInfinity) {
  KeepNaNAndInfinity(GetParam(), CHOIR_DTYPE_F32);
}

// They look at sources first where they add to what is there.
class CpuKernelsWinograd : public CpuKernels {};

TEST_P(CpuKernelsWinograd, KeepNaNAndInfinityWhereTheyAdd) {
  KeepNaNAndInfinity(GetParam(), CHOIR_DTYPE_F32, true);
}

// Sources that are finite and so large that sums overflow on the way spoil the
// tiles that meet them, and no other.
TEST(CpuKernelsConvolution, OverflowsWhereItAdds) {
  if (choir__isa() == CHOIR__ISA_BASE) GTEST_SKIP() << "needs AVX2";
  Device device(1);
  Problem problem(choir__op_def(CHOIR_OP_CONV2D),
                  {"1,16,16,16;16,16,3,3;16", "padding=1"},
                  Layout::kChannelsLast, true, CHOIR_DTYPE_F32, device);
  ASSERT_TRUE(problem.valid());
  ASSERT_TRUE(problem.Put(0, 3e38));
  const auto want = problem.Run(nullptr, device.stream());
  const auto got = problem.Run(&choir__cpu_conv2d_winograd, device.stream());
  const choir_view_t* y = choir_record_dst(&problem.record(), 0);
  for (int64_t row = 0; row < 16; ++row)
    for (int64_t column = 0; column < 16; ++column) {
      // The two elements lie in row and column 5 and 15.
      if (row / 4 == column / 4 && (row / 4 == 1 || row / 4 == 3)) continue;
      for (int64_t channel = 0; channel < 16; ++channel) {
        const int64_t at = y->offset + channel * y->strides[1] +
                           row * y->strides[2] + column * y->strides[3];
        float a, b;
        memcpy(&a, &got[0][static_cast<size_t>(at) * sizeof a], sizeof a);
        memcpy(&b, &want[0][static_cast<size_t>(at) * sizeof b], sizeof b);
        ASSERT_NEAR(a, b, 2e-5 * 144) << row << ", " << column;
      }
    }
}

TEST_P(CpuKernels, KeepNaNAndInfinityIn16Bits) {
  KeepNaNAndInfinity(GetParam(), CHOIR_DTYPE_BF16);
}

// Kernels whose loops differ between instruction sets in more than the width.
class CpuKernelsAvx2 : public CpuKernels {};

TEST_P(CpuKernelsAvx2, AgreeWithTheReference) {
  AgreeWithTheReference(GetParam(), CHOIR__ISA_AVX2);
}

TEST_P(CpuKernelsAvx2, AgreeWithTheReferenceIn16Bits) {
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16})
    AgreeWithTheReference(GetParam(), CHOIR__ISA_AVX2, dtype);
}

class CpuKernelsForward : public CpuKernels {};

// Of gradients the order of sums follows the size of the register tiles.
TEST_P(CpuKernelsForward, HaveTheSameBitsOnAvx2AndAvx512) {
  const choir_op_kernel_t* kernel = GetParam();
  if (choir__isa_limit(CHOIR__ISA_AVX512) != CHOIR__ISA_AVX512)
    GTEST_SKIP() << "this processor has no AVX-512";
  const choir_op_def_t* def = choir__op_def(kernel->op);
  Device device(1);
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    int compared = 0;
    for (const choir_op_case_t& c : Cases(def)) {
      Problem problem(def, c, Layout::kChannelsLast, false, dtype, device);
      if (!problem.valid() || problem.empty()) continue;
      choir__isa_limit(CHOIR__ISA_AVX2);
      if (!kernel->supports(&problem.record())) continue;
      const auto narrow = problem.Run(kernel, device.stream());
      choir__isa_limit(CHOIR__ISA_AVX512);
      if (!kernel->supports(&problem.record())) continue;
      ASSERT_EQ(problem.Run(kernel, device.stream()), narrow)
          << problem.Describe();
      ++compared;
    }
    EXPECT_GE(compared, 5) << choir_dtype_name(dtype);
  }
}

// The pooling within the convolution has the bits, and the argmax indices, of
// the two kernels one after the other: a graph that fuses them computes what
// eager does.
class PooledBits {
 protected:
  // Whether the fused kernel takes the case; the convolution is by `conv`.
  bool Compare(const choir_op_kernel_t* kernel,
               const choir_op_kernel_t* conv_kernel, const choir_op_case_t& c,
               choir_dtype_t dtype, const Device& device) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    Problem fused(def, c, Layout::kChannelsLast, false, dtype, device);
    if (!fused.valid() || fused.empty() || !kernel->supports(&fused.record()))
      return false;
    const auto got = fused.Run(kernel, device.stream());
    const auto* attrs = static_cast<const choir_conv2d_max_pool2d_attrs_t*>(
        fused.record().attrs);
    choir_view_t image;
    EXPECT_OK(choir__op_infer(CHOIR_OP_CONV2D, fused.record().operands, 3,
                              &attrs->conv, &image));
    EXPECT_EQ(image.dtype, dtype);
    EXPECT_OK(choir_buffer_create(device.device,
                                  sizeof(float) * choir_view_count(&image),
                                  &image.buffer));
    choir_view_t operands[] = {*choir_record_src(&fused.record(), 0),
                               *choir_record_src(&fused.record(), 1),
                               *choir_record_src(&fused.record(), 2),
                               image,
                               *choir_record_dst(&fused.record(), 0),
                               *choir_record_dst(&fused.record(), 1)};
    choir_record_t conv = {}, pool = {};
    conv.operands = operands;
    conv.src_count = 3;
    conv.dst_count = 1;
    conv.attrs = &attrs->conv;
    conv.kernel = &conv_kernel->kernel;
    pool.operands = operands + 3;
    pool.src_count = 1;
    pool.dst_count = 2;
    pool.attrs = &attrs->pool;
    EXPECT_TRUE(conv_kernel->supports(&conv));
    EXPECT_TRUE(choir__cpu_max_pool2d.supports(&pool));
    EXPECT_OK(conv_kernel->kernel.run(&conv, device.stream()));
    EXPECT_OK(choir__cpu_max_pool2d.kernel.run(&pool, device.stream()));
    for (int32_t i = 0; i < 2; ++i) {
      choir_buffer_t* buffer = choir_record_dst(&fused.record(), i)->buffer;
      EXPECT_EQ(0,
                memcmp(choir_buffer_data(buffer), got[i].data(), got[i].size()))
          << fused.Describe() << " result " << i;
    }
    choir_buffer_release(image.buffer);
    return true;
  }
};

class CpuKernelsPooled : public WithIsaLimit<choir__isa_t>,
                         protected PooledBits {};

TEST_P(CpuKernelsPooled, HasTheBitsOfConvolutionAndPooling) {
  if (choir__isa_limit(GetParam()) != GetParam())
    GTEST_SKIP() << "this processor has no such instructions";
  const choir_op_kernel_t* kernel = &choir__cpu_conv2d_max_pool2d_direct;
  Device device(1);
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    int compared = 0;
    for (const choir_op_case_t& c : Cases(choir__op_def(kernel->op)))
      compared += Compare(kernel, &choir__cpu_conv2d_direct, c, dtype, device);
    // Of bf16 with AVX-512 a single channel.
    EXPECT_GE(compared, dtype == CHOIR_DTYPE_BF16 ? 5 : 10);
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuKernelsPooled,
                         testing::Values(CHOIR__ISA_AVX2, CHOIR__ISA_AVX512));

// oneDNN's, of several blocks and with a rest.
const choir_op_case_t kBlocks[] = {
    {"64,20,12,12;50,20,5,5;50", "conv.activation=relu"},
    {"70,20,12,12;50,20,5,5;50", "conv.activation=relu"},
    {"37,3,33,31;16,3,3,3;16", "conv.padding=1,1"},
    {"33,16,15,13;32,16,3,3;32", "conv.padding=1,1 conv.activation=relu"},
    {"50,8,17,19;24,8,3,3;24", "conv.activation=relu"},
    {"101,5,14,9;21,5,3,5;21", "conv.padding=1,2"},
    {"65,32,9,10;40,32,3,3;40", "conv.padding=1,1 conv.activation=relu"},
    {"19,2,40,36;9,2,5,5;9", "conv.padding=2,2"},
    {"31,7,21,22;13,7,3,3;13", "conv.stride=1,2 conv.activation=relu"},
    {"40,12,16,16;33,12,1,1;33", "conv.activation=relu"},
    {"29,6,20,18;16,6,3,3;16",
     "conv.padding=1,1 pool.kernel=3,3 pool.stride=2,2"},
    {"35,10,18,20;18,10,3,3;18",
     "conv.activation=relu pool.kernel=3,3 pool.stride=2,2 pool.padding=1,1"},
    {"27,4,24,24;20,4,5,5;20", "pool.kernel=2,3 pool.stride=3,4"},
    {"45,9,13,16;17,9,3,3;17", "conv.dilation=2,2 conv.activation=relu"},
    {"23,16,19,17;30,16,5,5;30", "conv.padding=2,2 conv.activation=relu"},
    {"90,3,12,12;48,3,3,3;48", "conv.padding=1,1 conv.activation=relu"},
    {"17,64,11,11;65,64,3,3;65", "conv.padding=1,1"},
    {"55,15,12,14;31,15,4,4;31", "conv.activation=relu"},
    {"128,11,8,8;25,11,3,3;25", "conv.padding=1,1 conv.activation=relu"},
    {"13,3,32,64;16,3,7,7;16",
     "conv.stride=2,2 conv.padding=3,3 conv.activation=relu"},
    {"41,1,28,28;32,1,5,5;32", "conv.activation=relu"},
    {"26,24,16,15;24,12,3,3;24", "conv.padding=1,1 conv.groups=2"},
    {"1,3,200,180;20,3,3,3;20", "conv.activation=relu"},
    {"3,5,90,110;20,5,3,3;20", "conv.padding=1,1"},
};

class CpuKernelsBlocks : public testing::Test, protected PooledBits {};

TEST_F(CpuKernelsBlocks, BlocksHaveTheBitsOfTheWholeBatch) {
  Device one(1), two(2);
  int compared = 0, number = 0;
  for (const choir_op_case_t& c : kBlocks) {
    if (kSanitized && ++number % 4) continue;
    for (const Device* device : {&one, &two})
      compared += Compare(&choir__cpu_conv2d_max_pool2d_dnnl,
                          &choir__cpu_conv2d, c, CHOIR_DTYPE_BF16, *device);
  }
  if (compared == 0) GTEST_SKIP() << "this processor multiplies no bf16";
  EXPECT_EQ(compared, kSanitized ? 12 : 48);
}

// Copies and casts take more dtypes than f32.
TEST(CpuKernelsDtypes, CopiesAndCastsOfAllAreExact) {
  Device device(1);
  for (const choir_op_kernel_t* kernel : {&choir__cpu_copy, &choir__cpu_cast}) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
      int supported = 0;
      for (const choir_op_case_t* c = def->cases; c->shapes; ++c) {
        for (Layout layout : kLayouts) {
          Problem problem(def, *c, layout, false,
                          static_cast<choir_dtype_t>(dtype), device);
          if (problem.empty() || !kernel->supports(&problem.record())) continue;
          ++supported;
          ASSERT_EQ(problem.Run(kernel, device.stream()),
                    problem.Run(nullptr, device.stream()))
              << problem.Describe();
        }
      }
      // A cast to the same dtype at least.
      EXPECT_GE(supported, 4)
          << kernel->kernel.name << " of "
          << choir_dtype_name(static_cast<choir_dtype_t>(dtype));
    }
  }
}

// The sums of gradients too are those of the reference, in its order.
TEST(CpuKernelsDtypes, IndexMapsHaveTheBitsOfTheReference) {
  Device device(1);
  for (const choir_op_kernel_t* kernel : AllKernels()) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    if (!def->index_map) continue;
    for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
      if (!(def->dtypes & (1u << dtype))) continue;
      int compared = 0;
      for (const choir_op_case_t& c : Cases(def)) {
        for (Layout layout : kLayouts) {
          if (kSanitized && ++compared % 4) continue;
          for (bool accumulate : {false, true}) {
            Problem problem(def, c, layout, accumulate,
                            static_cast<choir_dtype_t>(dtype), device);
            if (problem.empty() ||
                (problem.size() > 20000 && dtype != CHOIR_DTYPE_F32))
              continue;
            ASSERT_TRUE(kernel->supports(&problem.record()));
            ++compared;
            ASSERT_EQ(problem.Run(kernel, device.stream()),
                      problem.Run(nullptr, device.stream()))
                << problem.Describe();
          }
        }
      }
      EXPECT_GE(compared, kSanitized ? 4 : 20) << kernel->kernel.name;
    }
  }
}

// Every rule there and back.
TEST(IndexRules, NextNamesThePlacesOfEachElement) {
  for (int outside = CHOIR__OUTSIDE_NONE; outside <= CHOIR__OUTSIDE_WRAP;
       ++outside) {
    for (int64_t size = 1; size <= 5; ++size) {
      for (int64_t before = 0; before <= 9; ++before) {
        for (int64_t each = 0; each <= 3; ++each) {
          const bool is_plain = each <= 1 && before > 0;
          if (outside != CHOIR__OUTSIDE_NONE && each != 1) continue;
          if (outside == CHOIR__OUTSIDE_WRAP && before > 0) continue;
          if (each == 0 && before > 0) continue;
          const choir__index_rule_t rule = {size, before, each, outside};
          const int64_t places = is_plain ? before + size + 7 : size * 5;
          for (int64_t element = 0; element < size; ++element) {
            std::vector<int64_t> want, got;
            for (int64_t p = 0; p < places; ++p)
              if (choir__rule_element(&rule, p) == element) want.push_back(p);
            for (int64_t p = choir__rule_next(&rule, element, 0); p < places;
                 p = choir__rule_next(&rule, element, p + 1))
              got.push_back(p);
            ASSERT_EQ(got, want)
                << "element " << element << " of " << size << ", " << before
                << " before, " << each << " each, outside " << outside;
          }
        }
      }
    }
  }
}

std::string KernelName(
    const testing::TestParamInfo<const choir_op_kernel_t*>& info) {
  std::string name = info.param->kernel.name;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(List, CpuKernels, testing::ValuesIn(AllKernels()),
                         KernelName);
INSTANTIATE_TEST_SUITE_P(List, CpuKernelsAvx2,
                         testing::Values(&choir__cpu_conv2d_direct,
                                         &choir__cpu_conv2d_max_pool2d_direct,
                                         &choir__cpu_conv2d_grad_data_direct,
                                         &choir__cpu_conv2d_grad_weight_direct),
                         KernelName);
INSTANTIATE_TEST_SUITE_P(
    List, CpuKernelsWinograd,
    testing::Values(&choir__cpu_conv2d_winograd,
                    &choir__cpu_conv2d_grad_data_winograd,
                    &choir__cpu_conv2d_grad_weight_winograd,
                    &choir__cpu_conv2d_winograd_defined,
                    &choir__cpu_conv2d_grad_data_winograd_defined),
    KernelName);
INSTANTIATE_TEST_SUITE_P(List, CpuKernelsForward,
                         testing::Values(&choir__cpu_conv2d_direct,
                                         &choir__cpu_conv2d_max_pool2d_direct),
                         KernelName);

// ---- Odds and ends ----

// In a process of its own: oneDNN looks at the variable once.
TEST(CpuKernelsIsa, IsLimitedWithOneDnn) {
  if (getenv("ONEDNN_MAX_CPU_ISA")) GTEST_SKIP() << "limited already";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* most : {"SSE41", "AVX2"}) {
    const int expected = most[0] == 'S' ? CHOIR__ISA_BASE : CHOIR__ISA_AVX2;
    EXPECT_EXIT(
        {
          setenv("ONEDNN_MAX_CPU_ISA", most, 1);
          _exit(10 + choir__isa());
        },
        testing::ExitedWithCode(10 + std::min<int>(expected, choir__isa())),
        "");
  }
}

TEST(CpuKernelsList, NamesEveryKernelUnderItsOp) {
#define CHOIR__CPU_KERNEL(OP, one)                            \
  EXPECT_EQ(choir__cpu_##one.op, CHOIR_OP_##OP);              \
  EXPECT_EQ(choir__cpu_##one.kernel.name,                     \
            std::string(choir_op_name(CHOIR_OP_##OP)) + "/" + \
                choir__cpu_##one.algorithm);                  \
  EXPECT_NE(choir__cpu_##one.supports, nullptr);
#include "tensor/kernels/kernels.def"
}

TEST(CpuKernelsList, DeclinesOtherDtypes) {
  Device device(1);
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F64, CHOIR_DTYPE_BF16}) {
    Problem problem(choir__op_def(CHOIR_OP_SOFTMAX), {"3,5", nullptr},
                    Layout::kDense, false, dtype, device);
    EXPECT_EQ(choir__cpu_softmax.supports(&problem.record()),
              dtype == CHOIR_DTYPE_BF16);
  }
}

// All elements of 16 bits, side by side and apart: as in f32, rounded once by
// core.
TEST(CpuKernelsList, SixteenBitsAreF32RoundedOnce) {
  constexpr int64_t kCount = 65536;
  Device device(1);
  choir_buffer_t* buffer;
  ASSERT_OK(choir_buffer_create(device.device, 12 * kCount, &buffer));
  char* data = static_cast<char*>(choir_buffer_data(buffer));
  const auto run = [&](const choir_op_kernel_t* kernel, choir_dtype_t dtype,
                       int64_t step) {
    choir_view_t operands[3];
    const int64_t shape[] = {kCount / step};
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(choir_view_make(dtype, 1, shape, &operands[i]));
      operands[i].buffer = buffer;
      operands[i].offset = i * kCount;
      operands[i].strides[0] = step;
    }
    const int32_t sources = choir__op_def(kernel->op)->src_max;
    operands[sources] = operands[2];
    choir_record_t record = {};
    record.operands = operands;
    record.src_count = sources;
    record.dst_count = 1;
    record.kernel = &kernel->kernel;
    record.operation = choir__operation(kernel->op);
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
  };
  const auto at = [&](int operand, int64_t i, choir_dtype_t dtype) {
    return data + (operand * kCount + i) *
                      static_cast<int64_t>(choir_dtype_bytes(dtype));
  };
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    std::vector<uint16_t> bits(2 * kCount);
    for (int64_t i = 0; i < 2 * kCount; ++i)
      bits[i] = static_cast<uint16_t>(i < kCount ? i : i * 40503);
    for (const choir_op_kernel_t* kernel :
         {&choir__cpu_gelu, &choir__cpu_gelu_grad, &choir__cpu_sigmoid,
          &choir__cpu_add, &choir__cpu_mul, &choir__cpu_div}) {
      for (int64_t i = 0; i < 2 * kCount; ++i)
        choir_element_store(at(0, i, CHOIR_DTYPE_F32), CHOIR_DTYPE_F32,
                            choir_element_load(&bits[i], dtype));
      run(kernel, CHOIR_DTYPE_F32, 1);
      std::vector<uint16_t> want(kCount), got(kCount);
      for (int64_t i = 0; i < kCount; ++i)
        choir_element_store(
            &want[i], dtype,
            choir_element_load(at(2, i, CHOIR_DTYPE_F32), CHOIR_DTYPE_F32));
      for (choir__isa_t isa : InstructionSets()) {
        choir__isa_limit(isa);
        for (int64_t step : {1, 3}) {
          memcpy(data, bits.data(), 4 * kCount);
          run(kernel, dtype, step);
          memcpy(got.data(), at(2, 0, dtype), 2 * kCount);
          for (int64_t i = 0; i < kCount / step; ++i) {
            const int64_t k = i * step;
            if (std::isnan(choir_element_load(&want[k], dtype)))
              ASSERT_TRUE(std::isnan(choir_element_load(&got[k], dtype)));
            else
              ASSERT_EQ(got[k], want[k])
                  << kernel->kernel.name << " of element " << k
                  << ", instruction set " << isa << ", step " << step;
          }
        }
      }
    }
  }
  choir_buffer_release(buffer);
}

TEST(CpuKernelsList, NanGoesThrough) {
  Device device(1);
  choir_buffer_t* buffer;
  ASSERT_OK(choir_buffer_create(device.device, 4096, &buffer));
  float* data = static_cast<float*>(choir_buffer_data(buffer));
  for (int i = 0; i < 1024; ++i) data[i] = static_cast<float>(i % 7) - 3.0f;
  data[37] = NAN;
  choir_view_t operands[2];
  const int64_t shape[] = {100}, one[] = {1};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, shape, &operands[0]));
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, shape, &operands[1]));
  operands[0].buffer = operands[1].buffer = buffer;
  operands[1].offset = 200;
  choir_record_t record = {};
  record.operands = operands;
  record.src_count = record.dst_count = 1;
  for (const choir_op_kernel_t* kernel :
       {&choir__cpu_relu, &choir__cpu_exp, &choir__cpu_log, &choir__cpu_tanh,
        &choir__cpu_sigmoid, &choir__cpu_gelu, &choir__cpu_gelu_tanh,
        &choir__cpu_silu, &choir__cpu_sqrt}) {
    record.kernel = &kernel->kernel;
    record.operation = choir__operation(kernel->op);
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
    EXPECT_TRUE(std::isnan(data[237])) << kernel->kernel.name;
    EXPECT_FALSE(std::isnan(data[240])) << kernel->kernel.name;
  }
  choir_reduce_attrs_t attrs = {-1, true};
  record.attrs = &attrs;
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, one, &operands[1]));
  operands[1].buffer = buffer;
  operands[1].offset = 200;
  for (const choir_op_kernel_t* kernel :
       {&choir__cpu_sum, &choir__cpu_mean, &choir__cpu_max}) {
    record.kernel = &kernel->kernel;
    record.operation = choir__operation(kernel->op);
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
    EXPECT_TRUE(std::isnan(data[200])) << kernel->kernel.name;
  }
  choir_buffer_release(buffer);
}

}  // namespace
