// SPDX-License-Identifier: Apache-2.0
// What a GPU computes of what strategies exchange: the bits of the host's, and
// no more copied than they are. On a scripted GPU, for which the kernels are
// compiled for the host, and on the machine's.
#include "dist/compress_gpu_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/compress_internal.h"
#include "dist/top_k_internal.h"
#include "tests/dist/compress_on_host.h"
#include "tests/dist/compress_testing.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::CompressKernelsOfTheBuild;
using choir::testing::CompressKernelsOnHost;
using choir::testing::Copied;
using choir::testing::CopiedBytes;
using choir::testing::FakeCuda;
using choir_testing::Counts;
using choir_testing::Kinds;
using choir_testing::MakeValues;
using choir_testing::Same;

using Floats = std::vector<float>;
using Indices = std::vector<int32_t>;

constexpr choir_dtype_t kHalves[] = {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16};

size_t Size(int64_t count) { return static_cast<size_t>(count); }

void ExpectSame(const Floats& got, const Floats& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(Same(got[i], want[i]))
        << "element " << i << ": " << got[i] << ", not " << want[i];
}

// To the bit, also of a NaN: nothing was computed.
void ExpectMoved(const Floats& got, const Floats& want) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_TRUE(got.empty() ||
              memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

class CompressGpuTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Memory of the GPU.
  class Array {
   public:
    Array(CompressGpuTest* test, const Floats& values)
        : test_(test), count_(values.size()) {
      EXPECT_OK(
          choir_buffer_create(test->gpu_, count_ * sizeof(float), &buffer_));
      if (count_ == 0) return;
      EXPECT_OK(choir_buffer_write(buffer_, test_->stream(), 0, values.data(),
                                   count_ * sizeof(float)));
    }
    ~Array() { choir_buffer_release(buffer_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    float* data() const {
      return static_cast<float*>(choir_buffer_data(buffer_));
    }
    Floats Read() const {
      Floats values(count_);
      if (count_ == 0) return values;
      EXPECT_OK(choir_buffer_read(buffer_, test_->stream(), 0, values.data(),
                                  count_ * sizeof(float)));
      return values;
    }

   private:
    CompressGpuTest* test_;
    size_t count_;
    choir_buffer_t* buffer_ = nullptr;
  };

  void SetUp() override {
    if (GetParam() == std::string("script")) {
      fake_ = std::make_unique<FakeCuda>();
      CompressKernelsOnHost(true);
    } else {
      CompressKernelsOfTheBuild();
    }
    choir_status_t status = choir_device_create("cuda", nullptr, &gpu_);
    if (!fake_ && choir_status_code(status) == CHOIR_STATUS_UNAVAILABLE) {
      const std::string reason = choir_status_message(status);
      choir_status_free(status);
      GTEST_SKIP() << reason;
    }
    ASSERT_OK(status);
    if (!fake_ && !choir__gpu_compress_works(gpu_))
      GTEST_SKIP() << "this build has no code for GPUs";
  }
  void TearDown() override {
    choir_device_release(gpu_);
    CompressKernelsOfTheBuild();
  }

  choir_stream_t* stream() { return choir_device_stream(gpu_); }

  // A record whose run is `work`; its status.
  using Work = std::function<choir_status_t(choir_stream_t*)>;
  choir_status_t Submit(const Work& work) {
    static const choir_kernel_t kernel = {
        "work/test",
        [](const choir_record_t* record, choir_stream_t* stream) {
          return (**static_cast<const Work* const*>(record->attrs))(stream);
        },
        nullptr,
        nullptr,
        nullptr,
        false};
    const Work* attrs = &work;
    choir_record_t record = {};
    record.kernel = &kernel;
    record.attrs = &attrs;
    record.attrs_bytes = sizeof(attrs);
    return choir_stream_submit(stream(), &record);
  }
  void Run(const Work& work) { ASSERT_OK(Submit(work)); }

  // Chosen on the GPU, by `choose`.
  using Choose =
      std::function<choir_status_t(const float*, choir__gpu_chosen_t*)>;
  void ReadChosen(const Floats& src, const Choose& choose, Indices* out_indices,
                  Floats* out_values) {
    Array on_gpu(this, src);
    Run([&](choir_stream_t* stream) -> choir_status_t {
      choir__gpu_chosen_t chosen;
      choir_status_t status = choose(on_gpu.data(), &chosen);
      if (status) return status;
      out_indices->resize(Size(chosen.k));
      out_values->resize(Size(chosen.k));
      return choir__gpu_chosen_read(stream, &chosen, out_indices->data(),
                                    out_values->data());
    });
  }

  void CheckTopK(const Floats& src, int64_t k) {
    SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(src.size()));
    const auto count = static_cast<int64_t>(src.size());
    std::vector<uint64_t> scratch(choir__top_k_scratch_bytes(count, k) / 8 + 9);
    void* line = reinterpret_cast<void*>(
        (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    Indices want(Size(k));
    Floats want_values(Size(k));
    ASSERT_OK(choir__top_k(src.data(), count, k, line, want.data(),
                           want_values.data()));
    Indices got;
    Floats values;
    ReadChosen(
        src,
        [&](const float* x, choir__gpu_chosen_t* chosen) {
          return choir__gpu_top_k(stream(), x, count, k, chosen);
        },
        &got, &values);
    ASSERT_EQ(got, want);
    ExpectMoved(values, want_values);
  }

  void CheckAbove(const Floats& src, float threshold) {
    SCOPED_TRACE(std::to_string(threshold) + ", " + std::to_string(src.size()));
    const auto count = static_cast<int64_t>(src.size());
    Indices want(src.size() + CHOIR__TOP_K_SLACK);
    Floats want_values(want.size());
    int64_t found = 0;
    ASSERT_OK(choir__select_above(src.data(), count, threshold, count,
                                  want.data(), want_values.data(), &found));
    want.resize(Size(found));
    want_values.resize(Size(found));
    Indices got;
    Floats values;
    ReadChosen(
        src,
        [&](const float* x, choir__gpu_chosen_t* chosen) {
          return choir__gpu_select_above(stream(), x, count, threshold, chosen);
        },
        &got, &values);
    ASSERT_EQ(got, want);
    ExpectMoved(values, want_values);
  }

  std::unique_ptr<FakeCuda> fake_;  // of the script
  choir_device_t* gpu_ = nullptr;
};

class CompressOnScript : public CompressGpuTest {};

INSTANTIATE_TEST_SUITE_P(Gpus, CompressGpuTest,
                         ::testing::Values("script", "machine"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Gpus, CompressOnScript, ::testing::Values("script"),
                         [](const auto& info) { return info.param; });

TEST_P(CompressOnScript, WorksWhereThereIsCode) {
  EXPECT_TRUE(choir__gpu_compress_works(gpu_));
  choir_device_t* cpu = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &cpu));
  EXPECT_FALSE(choir__gpu_compress_works(cpu));
  choir_device_release(cpu);
  CompressKernelsOnHost(false);
  EXPECT_FALSE(choir__gpu_compress_works(gpu_));
}

// ---- 16 bits ----

TEST_P(CompressGpuTest, HalvesHaveTheBitsOfTheHosts) {
  for (const auto& kind : Kinds()) {
    for (int64_t count : Counts()) {
      const Floats src = MakeValues(kind.second, count, 1);
      Array x(this, src);
      for (choir_dtype_t dtype : kHalves) {
        for (int exponent : {0, 7, -126, 126}) {
          for (float most : {INFINITY, 0.3f}) {
            SCOPED_TRACE(std::string(kind.first) + " " +
                         choir_dtype_name(dtype) + " " +
                         std::to_string(exponent));
            std::vector<uint16_t> want(src.size()), got(src.size(), 7);
            const int64_t clipped = choir__half_encode(
                dtype, src.data(), count, exponent, most, want.data());
            int64_t got_clipped = -1;
            Run([&](choir_stream_t* stream) {
              return choir__gpu_half_encode(stream, dtype, x.data(), count,
                                            exponent, most, got.data(),
                                            &got_clipped);
            });
            EXPECT_EQ(got_clipped, clipped);
            Floats back(src.size());
            choir__half_decode(dtype, want.data(), count, exponent,
                               back.data());
            for (size_t i = 0; i < src.size(); ++i)
              ASSERT_TRUE(got[i] == want[i] || std::isnan(back[i]))
                  << src[i] << " became " << got[i] << ", not " << want[i];
            Array y(this, Floats(src.size(), 99));
            Run([&](choir_stream_t* stream) {
              return choir__gpu_half_decode(stream, dtype, want.data(), count,
                                            exponent, y.data());
            });
            ExpectSame(y.Read(), back);
          }
        }
      }
    }
  }
}

// All there are: they go down from the GPU's f32 as they came up.
TEST_P(CompressGpuTest, AllHalvesComeBack) {
  constexpr int64_t kAll = 65536;
  std::vector<uint16_t> all(Size(kAll)), back(Size(kAll));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (choir_dtype_t dtype : kHalves) {
    Array x(this, Floats(Size(kAll)));
    int64_t clipped = 0;
    if (fake_) fake_->ClearLog();
    Run([&](choir_stream_t* stream) {
      return choir__gpu_half_decode(stream, dtype, all.data(), kAll, 0,
                                    x.data());
    });
    Run([&](choir_stream_t* stream) {
      return choir__gpu_half_encode(stream, dtype, x.data(), kAll, 0, INFINITY,
                                    back.data(), &clipped);
    });
    if (fake_) {
      const Copied copied = CopiedBytes(fake_->TakeLog());
      EXPECT_EQ(copied.up, 2u * kAll);
      EXPECT_EQ(copied.down, 2u * kAll + 4) << "the count of what was clipped";
    }
    Floats values(all.size());
    choir__half_decode(dtype, all.data(), kAll, 0, values.data());
    ExpectSame(x.Read(), values);
    std::vector<uint16_t> want(all.size());
    EXPECT_EQ(clipped, choir__half_encode(dtype, values.data(), kAll, 0,
                                          INFINITY, want.data()));
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_TRUE(back[i] == want[i] || std::isnan(values[i])) << i;
  }
}

// ---- Choosing ----

TEST_P(CompressGpuTest, TopKIsTheHosts) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : Counts()) {
      const Floats src = MakeValues(kind.second, count, 2);
      for (int64_t k :
           {int64_t{0}, int64_t{1}, count / 100, count / 2, count - 1, count})
        ASSERT_NO_FATAL_FAILURE(
            CheckTopK(src, std::clamp<int64_t>(k, 0, count)));
    }
  }
}

TEST_P(CompressGpuTest, TopKOfManyBlocks) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : {int64_t{65537}, int64_t{300007}}) {
      const Floats src = MakeValues(kind.second, count, 3);
      for (int64_t k : {int64_t{1}, count / 1000, count / 20, count - 1, count})
        ASSERT_NO_FATAL_FAILURE(CheckTopK(src, k));
    }
  }
}

// More chunks than threads of the block that adds up their counts.
TEST_P(CompressGpuTest, TopKOfManyChunks) {
  const int64_t count = 4096 * 600 + 5;
  const Floats src = MakeValues(Kinds()[0].second, count, 4);
  CheckTopK(src, count / 100);
  CheckAbove(src, 2.5f);
}

// Equal magnitudes at the limit, of either sign and in all chunks: the first.
TEST_P(CompressGpuTest, TiesGoToLowerIndices) {
  Floats src(20000, 0.5f);
  for (size_t i = 0; i < src.size(); i += 3) src[i] = -0.5f;
  for (size_t i = 17; i < src.size(); i += 1000) src[i] = 0.75f;
  for (int64_t k : {19, 20, 21, 4095, 4096, 4097, 10000, 19999})
    ASSERT_NO_FATAL_FAILURE(CheckTopK(src, k));
  // The lowest bit decides.
  for (size_t i = 0; i < src.size(); ++i)
    src[i] = std::nextafter(1.0f, i % 7 ? 2.0f : 0.0f);
  for (int64_t k : {1, 10000, 17142, 17143, 17144, 19999})
    ASSERT_NO_FATAL_FAILURE(CheckTopK(src, k));
}

TEST_P(CompressGpuTest, AboveAThresholdIsTheHosts) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : Counts()) {
      const Floats src = MakeValues(kind.second, count, 5);
      for (float threshold :
           {0.0f, -1.0f, 1e-40f, 1e-6f, 0.3f, 1.0f, 1e30f, INFINITY, -INFINITY})
        ASSERT_NO_FATAL_FAILURE(CheckAbove(src, threshold));
    }
    const Floats many = MakeValues(kind.second, 65537, 6);
    for (float threshold : {0.0f, 1e-6f, 1.5f})
      ASSERT_NO_FATAL_FAILURE(CheckAbove(many, threshold));
  }
}

// The order of passes: src is gone through whole by two of them, then by none.
TEST_P(CompressOnScript, WhatIsReadAndCopied) {
  const int64_t count = 100000, k = 1000;
  const Floats src = MakeValues(Kinds()[0].second, count, 7);
  Array x(this, src);
  Indices indices(Size(count));
  Floats values(Size(count));
  auto run = [&](const Choose& choose) {
    fake_->ClearLog();
    Run([&](choir_stream_t* stream) -> choir_status_t {
      choir__gpu_chosen_t chosen;
      choir_status_t status = choose(x.data(), &chosen);
      return status ? status
                    : choir__gpu_chosen_read(stream, &chosen, indices.data(),
                                             values.data());
    });
    return fake_->TakeLog();
  };
  auto launched = [](const std::vector<std::string>& log) {
    std::vector<std::string> symbols;
    for (const std::string& line : log)
      if (line.rfind("launch ", 0) == 0)
        symbols.push_back(line.substr(7, line.find(' ', 7) - 7));
    return symbols;
  };
  auto log = run([&](const float* data, choir__gpu_chosen_t* chosen) {
    return choir__gpu_top_k(stream(), data, count, k, chosen);
  });
  EXPECT_EQ(launched(log),
            (std::vector<std::string>{
                "choir_clear", "choir_top_k_high", "choir_top_k_least",
                "choir_top_k_list", "choir_top_k_limit", "choir_top_k_count",
                "choir_top_k_place", "choir_top_k_pick"}));
  EXPECT_EQ(CopiedBytes(log).down, 8u * k);
  EXPECT_EQ(CopiedBytes(log).up, 0u);
  int64_t found = 0;
  log = run([&](const float* data, choir__gpu_chosen_t* chosen) {
    choir_status_t status =
        choir__gpu_select_above(stream(), data, count, 2, chosen);
    found = chosen->k;
    return status;
  });
  EXPECT_EQ(launched(log),
            (std::vector<std::string>{
                "choir_top_k_threshold", "choir_top_k_list",
                "choir_top_k_count", "choir_top_k_place", "choir_top_k_pick"}));
  EXPECT_GT(found, 0);
  EXPECT_EQ(CopiedBytes(log).down, 8 * Size(found) + 20) << "and how many";
}

TEST_P(CompressOnScript, WrongArgumentsAreSaid) {
  Array x(this, Floats(8));
  choir__gpu_chosen_t chosen;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "top_k on a GPU: k is 9 of 8 elements; 0 .. count are allowed, "
                "of 2^31 - 1 at most",
                Submit([&](choir_stream_t* stream) {
                  return choir__gpu_top_k(stream, x.data(), 8, 9, &chosen);
                }));
  EXPECT_STATUS(INVALID_ARGUMENT, "the threshold is NaN; a number is needed",
                Submit([&](choir_stream_t* stream) {
                  return choir__gpu_select_above(stream, x.data(), 8, NAN,
                                                 &chosen);
                }));
}

// ---- What is not sent, and what came ----

TEST_P(CompressGpuTest, ResidualsHaveTheBitsOfTheHosts) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : Counts()) {
      const Floats gradient = MakeValues(kind.second, count, 8);
      Floats residual = MakeValues(kind.second, count, 9);
      Array g(this, gradient);
      Array r(this, residual);
      for (float decay : {1.0f, 0.9f}) {
        choir__residual_add(decay, gradient.data(), count, residual.data());
        Run([&](choir_stream_t* stream) {
          return choir__gpu_residual_add(stream, decay, g.data(), count,
                                         r.data());
        });
        ExpectSame(r.Read(), residual);
      }
      // Every third, as another number.
      Indices indices;
      for (int32_t i = 0; i < count; i += 3) indices.push_back(i);
      const auto k = static_cast<int64_t>(indices.size());
      Floats sent = MakeValues(kind.second, k, 10);
      for (size_t i = 0; i < sent.size(); i += 2)
        sent[i] = residual[Size(indices[i])];
      choir__residual_subtract(indices.data(), sent.data(), k, residual.data());
      Run([&](choir_stream_t* stream) -> choir_status_t {
        choir__gpu_chosen_t chosen;
        choir_status_t status = choir__gpu_chosen_create(stream, k, &chosen);
        if (!status)
          status = choir__gpu_chosen_write(stream, &chosen, indices.data(),
                                           sent.data());
        if (status) return status;
        return choir__gpu_residual_subtract(stream, &chosen, r.data());
      });
      ExpectSame(r.Read(), residual);
    }
  }
}

TEST_P(CompressGpuTest, MomentumHasTheBitsOfTheHosts) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : Counts()) {
      const Floats gradient = MakeValues(kind.second, count, 13);
      Floats u = MakeValues(kind.second, count, 14);
      Floats v = MakeValues(kind.second, count, 15);
      Array g(this, gradient);
      Array on_gpu_u(this, u);
      Array on_gpu_v(this, v);
      choir__momentum_add(0.9f, 0.7f, gradient.data(), count, u.data(),
                          v.data());
      Indices indices;
      for (int32_t i = 1; i < count; i += 2) indices.push_back(i);
      const auto k = static_cast<int64_t>(indices.size());
      choir__residual_mask(indices.data(), k, u.data());
      Run([&](choir_stream_t* stream) -> choir_status_t {
        choir__gpu_chosen_t chosen;
        choir_status_t status =
            choir__gpu_momentum_add(stream, 0.9f, 0.7f, g.data(), count,
                                    on_gpu_u.data(), on_gpu_v.data());
        if (!status) status = choir__gpu_chosen_create(stream, k, &chosen);
        if (!status)
          status = choir__gpu_chosen_write(stream, &chosen, indices.data(),
                                           Floats(Size(k)).data());
        if (status) return status;
        return choir__gpu_residual_mask(stream, &chosen, on_gpu_u.data());
      });
      ExpectSame(on_gpu_u.Read(), u);
      ExpectSame(on_gpu_v.Read(), v);
    }
  }
}

TEST_P(CompressGpuTest, WhatCameIsAddedInOrder) {
  for (const auto& kind : Kinds()) {
    SCOPED_TRACE(kind.first);
    for (int64_t count : Counts()) {
      Array y(this, MakeValues(kind.second, count, 11));
      Floats want(Size(count), 0.0f);
      Run([&](choir_stream_t* stream) {
        return choir__gpu_clear(stream, count, y.data());
      });
      ExpectMoved(y.Read(), want);
      for (int32_t step : {1, 2, 5}) {
        Indices indices;
        for (int32_t i = step - 1; i < count; i += step) indices.push_back(i);
        const auto k = static_cast<int64_t>(indices.size());
        const Floats values =
            MakeValues(kind.second, k, 12 + static_cast<uint64_t>(step));
        const float share = 1.0f / 3;
        for (size_t i = 0; i < values.size(); ++i) {
          float* place = &want[Size(indices[i])];
          *place = std::fma(share, values[i], *place);
        }
        Run([&](choir_stream_t* stream) -> choir_status_t {
          choir__gpu_chosen_t chosen;
          choir_status_t status = choir__gpu_chosen_create(stream, k, &chosen);
          if (!status)
            status = choir__gpu_chosen_write(stream, &chosen, indices.data(),
                                             values.data());
          if (status) return status;
          return choir__gpu_scatter_add(stream, &chosen, share, y.data());
        });
      }
      ExpectSame(y.Read(), want);
    }
  }
}

}  // namespace
