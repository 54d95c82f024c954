// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_COMM_SUITE_H_
#define CHOIR_TESTS_CONFORMANCE_COMM_SUITE_H_

// What the parts of the communicator suite share: the cases (every backend, 1
// to 7 ranks), data that differ per rank and per element, memory with guards,
// and the documented reductions, computed anew.
#include <gtest/gtest.h>
#include <math.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include "core/gpu.h"
#include "dist/comm.h"
#include "tests/testing/ranks.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace comm_suite {

struct Case {
  const char* backend;
  int size;
};

inline std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.backend) + "_" +
         std::to_string(info.param.size);
}

// Of the backends that `is_wanted` takes, all sizes. Seven ranks run the code
// of three and of four, and on two cores take as long as all others together.
inline std::vector<Case> CasesOf(bool (*is_wanted)(const std::string& name)) {
  std::vector<Case> cases;
#define CHOIR_COMM_BACKEND(name) \
  if (is_wanted(#name)) cases.push_back({#name, 1});
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
  size_t backend_count = cases.size();
  for (size_t i = 0; i < backend_count; ++i) {
    if (!strcmp(cases[i].backend, "self")) continue;
    for (int size : {2, 3, 4, 7})
      if (size < 7 || !choir::testing::kSanitized)
        cases.push_back({cases[i].backend, size});
  }
  return cases;
}
inline std::vector<Case> AllCases() {
  return CasesOf([](const std::string&) { return true; });
}

const size_t kGuard = 64;
const unsigned char kGuardByte = 0xA5;

// Memory with guard zones, private or allocated by the communicator.
class Memory {
 public:
  Memory(choir_comm_t* comm, choir_device_t* device, bool shared, size_t bytes)
      : bytes_(bytes) {
    size_t total = bytes + 2 * kGuard;
    if (shared) {
      choir_status_t status =
          choir_comm_buffer_create(comm, device, total, &buffer_);
      EXPECT_EQ(status, nullptr) << choir_status_message(status);
      choir_status_free(status);
      base_ = static_cast<unsigned char*>(choir_buffer_data(buffer_));
    } else {
      private_.resize(total + 64);
      size_t at = reinterpret_cast<uintptr_t>(private_.data()) % 64;
      base_ = private_.data() + (64 - at) % 64;
    }
    memset(base_, kGuardByte, total);
  }
  ~Memory() { choir_buffer_release(buffer_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  unsigned char* data() { return base_ + kGuard; }
  bool GuardsHold() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (base_[i] != kGuardByte || base_[kGuard + bytes_ + i] != kGuardByte)
        return false;
    return true;
  }
  void Clear() { memset(base_, kGuardByte, bytes_ + 2 * kGuard); }

 private:
  size_t bytes_;
  unsigned char* base_ = nullptr;
  choir_buffer_t* buffer_ = nullptr;
  std::vector<unsigned char> private_;
};

// Element `i` of rank `rank`: small, of both signs where there are signs, not
// a fraction of a power of two for floats, so that rounding and order show.
inline double Value(int rank, int64_t i, choir_dtype_t dtype) {
  int64_t whole = (i * 7 + rank * 13 + (i / 31) * (rank + 3)) % 41 - 20;
  if (dtype == CHOIR_DTYPE_BOOL) return (i + rank) % 3 == 0;
  if (dtype == CHOIR_DTYPE_U8) return static_cast<double>(whole + 20);
  if (!choir_dtype_is_float(dtype)) return static_cast<double>(whole * 1001);
  return static_cast<double>(whole) / 7.0 + 0.01 * rank;
}

inline std::vector<unsigned char> Data(int rank, int64_t count,
                                       choir_dtype_t dtype) {
  size_t e = choir_dtype_bytes(dtype);
  std::vector<unsigned char> data(static_cast<size_t>(count) * e + 1);
  for (int64_t i = 0; i < count; ++i) {
    double value = Value(rank, i, dtype);
    float f32 = static_cast<float>(value);
    if (dtype == CHOIR_DTYPE_F32)
      memcpy(&data[static_cast<size_t>(i) * e], &f32, e);
    else
      choir_element_store(&data[static_cast<size_t>(i) * e], dtype, value);
  }
  return data;
}

// One element of each rank; vectors would cost more than the sums.
template <typename T>
class PerRank {
 public:
  void push_back(T value) { values_[size_++] = value; }
  size_t size() const { return size_; }
  T operator[](size_t r) const { return values_[r]; }
  const T* begin() const { return values_; }
  const T* end() const { return values_ + size_; }

 private:
  T values_[8] = {};
  size_t size_ = 0;
};

template <typename T>
T Load(const void* at) {
  T value;
  memcpy(&value, at, sizeof(value));
  return value;
}

template <typename T>
T Combine(choir_reduce_t op, T a, T x) {
  switch (op) {
    case CHOIR_REDUCE_SUM:
      return static_cast<T>(a + x);
    case CHOIR_REDUCE_MIN:
      return a < x ? a : x;
    case CHOIR_REDUCE_MAX:
      return a > x ? a : x;
    default:
      return static_cast<T>(a * x);
  }
}

// The documented rule for floats, T being the type of the sum.
template <typename T>
T ReduceFloats(choir_reduce_t op, const PerRank<T>& values,
               const std::vector<double>& weights) {
  if (op != CHOIR_REDUCE_AVERAGE) {
    T a = values[0];
    for (size_t r = 1; r < values.size(); ++r) a = Combine(op, a, values[r]);
    return a;
  }
  if (values.size() == 1) return values[0];
  double sum = 0;
  for (double weight : weights) sum += weight;
  bool first = true;
  T a = 0;
  for (size_t r = 0; r < values.size(); ++r) {
    if (weights[r] == 0) continue;
    T share = static_cast<T>(weights[r] / sum);
    a = first ? share * values[r] : std::fma(share, values[r], a);
    first = false;
  }
  return a;
}

template <typename U, typename S>
int64_t ReduceIntegers(choir_reduce_t op, const PerRank<int64_t>& values) {
  if (op == CHOIR_REDUCE_AVERAGE) {
    int64_t sum = 0;
    for (int64_t value : values) sum += value;
    return sum / static_cast<int64_t>(values.size());
  }
  bool wraps = op == CHOIR_REDUCE_SUM || op == CHOIR_REDUCE_PRODUCT;
  U u = static_cast<U>(values[0]);
  S s = static_cast<S>(values[0]);
  for (size_t r = 1; r < values.size(); ++r) {
    if (wraps) {
      u = Combine(op, u, static_cast<U>(values[r]));
    } else {
      s = Combine(op, s, static_cast<S>(values[r]));
    }
  }
  return wraps ? static_cast<int64_t>(static_cast<S>(u))
               : static_cast<int64_t>(s);
}

// Expected element i of a reduction over all ranks' data.
inline void Expect(const std::vector<std::vector<unsigned char>>& all,
                   const std::vector<double>& weights, choir_dtype_t dtype,
                   choir_reduce_t op, int64_t i, unsigned char* out) {
  size_t e = choir_dtype_bytes(dtype);
  size_t at = static_cast<size_t>(i) * e;
  PerRank<float> f32;
  PerRank<double> f64;
  PerRank<int64_t> integers;
  for (const auto& data : all) {
    const unsigned char* x = &data[at];
    if (dtype == CHOIR_DTYPE_F64)
      f64.push_back(Load<double>(x));
    else if (choir_dtype_is_float(dtype))
      f32.push_back(static_cast<float>(choir_element_load(x, dtype)));
    else if (dtype == CHOIR_DTYPE_I64)
      integers.push_back(Load<int64_t>(x));
    else
      integers.push_back(static_cast<int64_t>(choir_element_load(x, dtype)));
  }
  if (dtype == CHOIR_DTYPE_F64) {
    double value = ReduceFloats(op, f64, weights);
    memcpy(out, &value, e);
  } else if (choir_dtype_is_float(dtype)) {
    choir_element_store(out, dtype, ReduceFloats(op, f32, weights));
  } else if (dtype == CHOIR_DTYPE_I32) {
    int32_t value =
        static_cast<int32_t>(ReduceIntegers<uint32_t, int32_t>(op, integers));
    memcpy(out, &value, e);
  } else if (dtype == CHOIR_DTYPE_I64) {
    int64_t value = ReduceIntegers<uint64_t, int64_t>(op, integers);
    memcpy(out, &value, e);
  } else if (dtype == CHOIR_DTYPE_U8) {
    *out = static_cast<uint8_t>(ReduceIntegers<uint8_t, uint8_t>(op, integers));
  } else {
    bool any = false, all_set = true;
    for (int64_t value : integers) {
      any = any || value;
      all_set = all_set && value;
    }
    bool is_or = op == CHOIR_REDUCE_SUM || op == CHOIR_REDUCE_MAX;
    *out = is_or ? any : all_set;
  }
}

// Whether there is one for each rank.
inline bool HasGpus(int size) {
  int32_t count = 0;
  choir_status_free(choir_gpu_count(&count));
  return count >= size;
}

class CommSuite : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().backend == std::string("nccl") && !HasGpus(GetParam().size))
      GTEST_SKIP() << "this machine has no " << GetParam().size << " GPUs";
  }
  bool Start() {
    std::string backend = GetParam().backend;
    int size = GetParam().size;
    if (backend != "mpi") return choir_testing::RunRanks(backend, size);
    return choir_testing::RunRanksTogether(
        backend, size,
        std::string(::testing::UnitTest::GetInstance()
                        ->current_test_info()
                        ->test_suite_name()) +
            ".*/mpi_" + std::to_string(size));
  }
  void Join() {
    choir_comm_config_t config;
    ASSERT_OK(choir_comm_config_init(&config));
    config.deadline = choir_testing::Patience(20);
    config.segment_bytes = 64u << 10;  // so that it grows
    choir_device_options_t options = {};
    options.threads = 1;
    ASSERT_OK(choir_device_create("cpu", &options, &device_));
    ASSERT_OK(choir_testing::OpenNcclGpu(&gpu_));
    config.device = gpu_;
    ASSERT_OK(choir_comm_create(&config, &comm_));
    ASSERT_STREQ(choir_comm_backend(comm_), GetParam().backend);
    rank_ = choir_comm_rank(comm_);
    size_ = choir_comm_size(comm_);
    ASSERT_EQ(size_, GetParam().size);
  }
  void TearDown() override {
    if (comm_ && !HasFatalFailure()) {
      choir_status_t status = choir_comm_finalize(comm_);
      EXPECT_EQ(status, nullptr) << choir_status_message(status);
      choir_status_free(status);
    }
    choir_comm_release(comm_);
    choir_device_release(gpu_);
    choir_device_release(device_);
  }

  std::vector<std::vector<unsigned char>> AllData(int64_t count,
                                                  choir_dtype_t dtype) {
    std::vector<std::vector<unsigned char>> all;
    for (int r = 0; r < size_; ++r) all.push_back(Data(r, count, dtype));
    return all;
  }

  choir_comm_t* comm_ = nullptr;
  choir_device_t* device_ = nullptr;
  choir_device_t* gpu_ = nullptr;  // of NCCL
  int rank_ = 0;
  int size_ = 0;
};

const int64_t kCounts[] = {0, 1, 33, 20011};

struct Mode {
  bool in_place;
  bool shared;
};
const Mode kModes[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

const choir_reduce_t kOps[] = {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE,
                               CHOIR_REDUCE_MIN, CHOIR_REDUCE_MAX,
                               CHOIR_REDUCE_PRODUCT};
const choir_dtype_t kDtypes[] = {
    CHOIR_DTYPE_F32, CHOIR_DTYPE_F64, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16,
    CHOIR_DTYPE_I32, CHOIR_DTYPE_I64, CHOIR_DTYPE_U8,  CHOIR_DTYPE_BOOL};

// The first element that differs, or -1.
inline int64_t FirstDifference(const unsigned char* a, const unsigned char* b,
                               int64_t count, size_t e) {
  for (int64_t i = 0; i < count; ++i)
    if (memcmp(a + static_cast<size_t>(i) * e, b + static_cast<size_t>(i) * e,
               e))
      return i;
  return -1;
}

inline std::string Describe(choir_dtype_t dtype, choir_reduce_t op,
                            int64_t count, Mode mode) {
  return std::string(choir_dtype_name(dtype)) + " op " + std::to_string(op) +
         " count " + std::to_string(count) +
         (mode.in_place ? " in place" : "") + (mode.shared ? " shared" : "");
}

}  // namespace comm_suite

#endif  // CHOIR_TESTS_CONFORMANCE_COMM_SUITE_H_
