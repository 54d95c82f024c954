// SPDX-License-Identifier: Apache-2.0
// Index maps on a GPU: all ops that have one, on their cases, have the bits of
// the CPU's reference in every dtype, and run there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

class CudaIndexMap : public CudaKernelsTest {
 protected:
  choir_gather_attrs_t axis_ = {0};

  static TensorPtr Indices(const DevicePtr& device, const Shape& shape,
                           const std::vector<int64_t>& values) {
    return Make<int64_t>(device.get(), shape, values);
  }
};

// What an embedding and its gradient are: rows that are taken again and again.
TEST_F(CudaIndexMap, GathersRowsAndAddsThemUp) {
  const int64_t kRows = 50, kTaken = 400, kWidth = 33;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < kTaken; ++i)
    indices.push_back((i * i * 7 + i / 3) % kRows - (i % 2 ? kRows : 0));
  std::vector<std::vector<float>> results[2];
  for (const DevicePtr* device : {&gpu_, &cpu_}) {
    TensorPtr x =
        Make<float>(device->get(), {kRows, kWidth}, Floats(kRows * kWidth, 1));
    TensorPtr dy = Make<float>(device->get(), {20, 20, kWidth},
                               Floats(kTaken * kWidth, 2));
    TensorPtr at = Indices(*device, {20, 20}, indices);
    auto& to = results[device == &cpu_];
    to.push_back(
        Read<float>(Result(CHOIR_OP_GATHER, {x.get(), at.get()}, &axis_)));
    to.push_back(Read<float>(
        Result(CHOIR_OP_GATHER_GRAD, {x.get(), at.get(), dy.get()}, &axis_)));
    to.push_back(Read<float>(
        Added(*device, CHOIR_OP_GATHER_GRAD, {x.get(), at.get(), dy.get()},
              &axis_, {kRows, kWidth}, Floats(kRows * kWidth, 3))));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(Launched(),
            (std::vector<std::string>{
                "choir_index_pull_F32", "choir_index_clear", "choir_index_link",
                "choir_index_make_F32", "choir_index_clear", "choir_index_link",
                "choir_index_make_F32"}));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// Of several updates of one element the last stays, in every lane.
TEST_F(CudaIndexMap, TheLastUpdateStays) {
  TensorPtr x = Make<float>(gpu_.get(), {3, 2}, {1, 2, 3, 4, 5, 6});
  TensorPtr updates = Make<float>(gpu_.get(), {3, 2}, {7, 8, 9, 10, 11, 12});
  TensorPtr at = Indices(gpu_, {3, 2}, {0, 2, 0, -1, 1, 2});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SCATTER_ELEMENTS,
                               {x.get(), at.get(), updates.get()}, &axis_)),
            (std::vector<float>{9, 2, 11, 4, 5, 12}));
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SCATTER_ELEMENTS_GRAD,
                               {x.get(), at.get()}, &axis_)),
            (std::vector<float>{0, 0, 1, 0, 3, 6}));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaIndexMap, AnIndexThatIsNoneFailsTheLaunch) {
  TensorPtr x = Make<float>(gpu_.get(), {3}, {1, 2, 3});
  TensorPtr at = Indices(gpu_, {2}, {0, 3});
  choir_tensor_t* srcs[] = {x.get(), at.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  choir_status_t status =
      choir_op_run(choir_device_stream(gpu_.get()), CHOIR_OP_GATHER, srcs, 2,
                   &axis_, false, dsts);
  if (!status)
    status = choir_stream_synchronize(choir_device_stream(gpu_.get()));
  EXPECT_NE(status, nullptr);
  choir_status_free(status);
  choir_tensor_release(dsts[0]);
}

}  // namespace
