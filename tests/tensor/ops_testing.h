// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_OPS_TESTING_H_
#define CHOIR_TESTS_TENSOR_OPS_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/op_def.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// Tensors, devices and ops for tests, with their lifetime and checks.

struct TensorRelease {
  void operator()(choir_tensor_t* tensor) const {
    choir_tensor_release(tensor);
  }
};
using TensorPtr = std::unique_ptr<choir_tensor_t, TensorRelease>;

struct DeviceRelease {
  void operator()(choir_device_t* device) const {
    choir_device_release(device);
  }
};
using DevicePtr = std::unique_ptr<choir_device_t, DeviceRelease>;

inline DevicePtr MakeDevice(const char* name,
                            const choir_device_options_t* options = nullptr) {
  choir_device_t* device = nullptr;
  EXPECT_OK(choir_device_create(name, options, &device));
  return DevicePtr(device);
}

template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr choir_dtype_t value = CHOIR_DTYPE_F32;
};
template <>
struct DtypeOf<double> {
  static constexpr choir_dtype_t value = CHOIR_DTYPE_F64;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr choir_dtype_t value = CHOIR_DTYPE_I32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr choir_dtype_t value = CHOIR_DTYPE_I64;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr choir_dtype_t value = CHOIR_DTYPE_U8;
};

using Shape = std::vector<int64_t>;

inline int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

inline Shape ShapeOf(const choir_tensor_t* tensor) {
  const int64_t* shape = choir_tensor_shape(tensor);
  return Shape(shape, shape + choir_tensor_ndim(tensor));
}

inline Shape StridesOf(const choir_tensor_t* tensor) {
  const int64_t* strides = choir_tensor_strides(tensor);
  return Shape(strides, strides + choir_tensor_ndim(tensor));
}

template <typename T>
TensorPtr Make(choir_device_t* device, const Shape& shape,
               const std::vector<T>& values) {
  EXPECT_EQ(Count(shape), static_cast<int64_t>(values.size()));
  choir_tensor_t* tensor = nullptr;
  EXPECT_OK(choir_tensor_from_data(device, DtypeOf<T>::value,
                                   static_cast<int32_t>(shape.size()),
                                   shape.data(), values.data(), &tensor));
  return TensorPtr(tensor);
}

// The same as a channels-last tensor; 4 dimensions.
template <typename T>
TensorPtr MakeChannelsLast(choir_device_t* device, const Shape& shape,
                           const std::vector<T>& values) {
  choir_view_t layout;
  EXPECT_OK(choir_view_make(DtypeOf<T>::value, 4, shape.data(), &layout));
  choir_view_set_channels_last(&layout);
  choir_tensor_t* tensor = nullptr;
  EXPECT_OK(choir_tensor_create_layout(device, &layout, &tensor));
  EXPECT_OK(
      choir_tensor_write(tensor, values.data(), values.size() * sizeof(T)));
  return TensorPtr(tensor);
}

template <typename T>
std::vector<T> Read(choir_tensor_t* tensor) {
  EXPECT_EQ(choir_tensor_dtype(tensor), DtypeOf<T>::value);
  std::vector<T> values(static_cast<size_t>(choir_tensor_count(tensor)));
  EXPECT_OK(
      choir_tensor_read(tensor, values.data(), values.size() * sizeof(T)));
  return values;
}
template <typename T>
std::vector<T> Read(const TensorPtr& tensor) {
  return Read<T>(tensor.get());
}

// Numbers between -1 and 1 that differ from call to call of one seed.
inline std::vector<double> Numbers(int64_t count, uint32_t seed) {
  std::vector<double> values(static_cast<size_t>(count));
  uint64_t state = seed * 2654435761u + 12345;
  for (double& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<double>(state >> 40) / 8388608.0 - 1;
  }
  return values;
}
inline std::vector<float> Floats(int64_t count, uint32_t seed) {
  std::vector<double> values = Numbers(count, seed);
  return std::vector<float>(values.begin(), values.end());
}

// An op on the sources' device, results made by it.
inline choir_status_t RunOp(choir_op_t op,
                            const std::vector<choir_tensor_t*>& srcs,
                            const void* attrs, std::vector<TensorPtr>* out) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  choir_status_t status = choir_op_run(
      choir_device_stream(choir_tensor_device(srcs[0])), op, srcs.data(),
      static_cast<int32_t>(srcs.size()), attrs, false, dsts);
  out->clear();
  for (int32_t i = 0; i < choir_op_result_count(op); ++i)
    out->emplace_back(dsts[i]);
  return status;
}

// The same, expected to work; all results.
inline std::vector<TensorPtr> Results(choir_op_t op,
                                      const std::vector<choir_tensor_t*>& srcs,
                                      const void* attrs = nullptr) {
  std::vector<TensorPtr> results;
  EXPECT_OK(RunOp(op, srcs, attrs, &results));
  return results;
}

// The same, one result.
inline TensorPtr Result(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                        const void* attrs = nullptr) {
  return std::move(Results(op, srcs, attrs)[0]);
}

// An op that is expected to fail.
inline choir_status_t Failure(choir_op_t op,
                              const std::vector<choir_tensor_t*>& srcs,
                              const void* attrs = nullptr) {
  std::vector<TensorPtr> results;
  choir_status_t status = RunOp(op, srcs, attrs, &results);
  for (const TensorPtr& result : results) EXPECT_EQ(result, nullptr);
  return status;
}

// Attributes of an op with their defaults; `T` is its struct.
template <typename T>
T Attrs(choir_op_t op) {
  T attrs;
  EXPECT_EQ(choir_op_attrs_def(op)->bytes, sizeof attrs);
  choir_struct_init(choir_op_attrs_def(op), &attrs);
  return attrs;
}

template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(
        static_cast<double>(got[i]), expected[i],
        tolerance * (1 + (expected[i] < 0 ? -expected[i] : expected[i])))
        << "element " << i;
  }
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_OPS_TESTING_H_
