// SPDX-License-Identifier: Apache-2.0
// Random fills and dropout on a GPU: the bits are the CPU's.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

class CudaRandom : public CudaKernelsTest {
 protected:
  struct Case {
    Shape shape;
    std::vector<int> order;
    int64_t gap;
    int64_t skip;
  };
  static const std::vector<Case>& Cases() {
    static const auto* const cases = new std::vector<Case>{
        {{}, {}, 0, 0},
        {{1}, {}, 0, 0},
        {{7}, {}, 0, 0},
        {{5, 8}, {}, 0, 0},
        {{5, 8}, {}, 0, 1},
        {{5, 9}, {}, 0, 0},
        {{3, 1001}, {}, 0, 0},
        {{40, 4}, {}, 1, 0},
        {{2, 3, 5, 4}, {0, 3, 1, 2}, 0, 0},
        {{2, 8, 6, 6}, {}, 0, 0},
    };
    return *cases;
  }
  // The op's result in the layout of its source, as it is and added.
  static std::vector<std::vector<float>> Both(const DevicePtr& device,
                                              choir_op_t op, const Case& one,
                                              const void* attrs) {
    const int64_t count = Count(one.shape);
    TensorPtr x = Place<float>(device, one.shape, Floats(count, 3), one.order,
                               one.gap, one.skip);
    std::vector<std::vector<float>> both;
    for (bool is_added : {false, true}) {
      TensorPtr y = Place<float>(device, one.shape, Floats(count, 4), one.order,
                                 one.gap, one.skip);
      choir_tensor_t* srcs[] = {x.get()};
      choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {y.get()};
      EXPECT_OK(choir_op_run(choir_device_stream(device.get()), op, srcs, 1,
                             attrs, is_added, dsts));
      both.push_back(Read<float>(y));
    }
    return both;
  }
};

TEST_F(CudaRandom, FillsHaveTheBitsOfTheCpus) {
  for (choir_op_t op : {CHOIR_OP_RANDOM_UNIFORM, CHOIR_OP_RANDOM_NORMAL}) {
    for (const Case& one : Cases()) {
      for (bool whole : {false, true}) {
        choir_random_attrs_t attrs = Attrs<choir_random_attrs_t>(op);
        attrs.seed = -5;
        attrs.stream = 3;
        attrs.step = 17;
        attrs.first_sample = (int64_t{1} << 32) - 2;
        attrs.low = 0.3;
        attrs.high = 1.7;
        attrs.whole_tensor = whole;
        (void)Launched();
        const auto got = Both(gpu_, op, one, &attrs);
        EXPECT_EQ(Launched(),
                  std::vector<std::string>(
                      2, std::string("choir_") + choir_op_name(op)));
        EXPECT_EQ(got, Both(cpu_, op, one, &attrs));
      }
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRandom, DropoutHasTheBitsOfTheCpus) {
  for (const Case& one : Cases()) {
    for (double ratio : {0.0, 0.25, 0.9}) {
      choir_dropout_attrs_t attrs =
          Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
      attrs.ratio = ratio;
      attrs.seed = 12;
      attrs.stream = 2;
      attrs.step = 3;
      attrs.first_sample = 64;
      EXPECT_EQ(Both(gpu_, CHOIR_OP_DROPOUT, one, &attrs),
                Both(cpu_, CHOIR_OP_DROPOUT, one, &attrs));
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

}  // namespace
