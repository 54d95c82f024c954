// SPDX-License-Identifier: Apache-2.0
// A recurrent network and its gradient have the same bits for every number of
// threads, on every instruction set, whatever the lengths.
#include <gtest/gtest.h>

#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

constexpr int64_t kSteps = 6, kHidden = 37;

struct Cell {
  choir_cell_t cell;
  int64_t gates, kept, states;
};

// Results of the op and of its gradient, one after the other.
std::vector<std::vector<float>> ResultsOf(const Cell& cell, int64_t batch,
                                          int threads) {
  choir_device_options_t options = {};
  options.threads = threads;
  choir_device_t* made = nullptr;
  EXPECT_OK(choir_device_create("cpu", &options, &made));
  const DevicePtr device(made);
  uint64_t seed = 1;
  auto tensor = [&](const Shape& shape) {
    size_t count = 1;
    for (int64_t size : shape) count *= static_cast<size_t>(size);
    return Make(device.get(), shape, Floats(count, ++seed));
  };
  std::vector<int64_t> numbers;
  for (int64_t n = 0; n < batch; ++n) numbers.push_back(n * 5 % (kSteps + 1));
  const TensorPtr lengths = Make(device.get(), {batch}, numbers);
  const TensorPtr x = tensor({kSteps, batch, cell.gates * kHidden});
  const TensorPtr w = tensor({kHidden, cell.gates * kHidden});
  const TensorPtr initial = tensor({cell.states, batch, kHidden});
  const TensorPtr b = tensor({kHidden});
  const TensorPtr dstates =
      tensor({cell.states * (kSteps + 1), batch, kHidden});
  const choir_recurrent_attrs_t attrs = {cell.cell, true};
  choir_tensor_t* srcs[] = {x.get(), lengths.get(), w.get(), initial.get(),
                            b.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  const uint64_t references = choir_op_stats().reference_runs;
  EXPECT_OK(choir_op_run(choir_device_stream(made), CHOIR_OP_RECURRENT, srcs,
                         cell.cell == CHOIR_CELL_GRU ? 5 : 4, &attrs, false,
                         dsts));
  choir_tensor_t* for_grad[] = {dsts[1], lengths.get(), w.get(), dsts[0],
                                dstates.get()};
  choir_tensor_t* grads[CHOIR_OP_MAX_RESULTS] = {};
  EXPECT_OK(choir_op_run(choir_device_stream(made), CHOIR_OP_RECURRENT_GRAD,
                         for_grad, 5, &attrs, false, grads));
  EXPECT_EQ(choir_op_stats().reference_runs, references);
  std::vector<std::vector<float>> results;
  for (choir_tensor_t* one : {dsts[0], dsts[1], dsts[2], grads[0], grads[1]}) {
    results.push_back(Read<float>(one));
    choir_tensor_release(one);
  }
  return results;
}

TEST(CpuRecurrent, HasTheSameBitsForEveryNumberOfThreads) {
  const Cell cells[] = {{CHOIR_CELL_RNN_TANH, 1, 1, 1},
                        {CHOIR_CELL_RNN_RELU, 1, 1, 1},
                        {CHOIR_CELL_LSTM, 4, 4, 2},
                        {CHOIR_CELL_GRU, 3, 4, 1}};
  const choir__isa_t best = choir__isa();
  for (choir__isa_t isa :
       {CHOIR__ISA_BASE, CHOIR__ISA_AVX2, CHOIR__ISA_AVX512}) {
    if (choir__isa_limit(isa) != isa) continue;
    for (const Cell& cell : cells) {
      for (int64_t batch : {1, 5, 33}) {
        const auto want = ResultsOf(cell, batch, 1);
        for (int threads : {2, 3, 4, 7})
          EXPECT_EQ(ResultsOf(cell, batch, threads), want)
              << cell.cell << " " << batch << " " << threads;
      }
    }
  }
  choir__isa_limit(best);
}

}  // namespace
