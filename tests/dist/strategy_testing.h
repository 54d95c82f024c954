// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_STRATEGY_TESTING_H_
#define CHOIR_TESTS_DIST_STRATEGY_TESTING_H_

#include <gtest/gtest.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "dist/strategies/strategy_internal.h"
#include "tests/dist/dist_opt_testing.h"

// A strategy at work on gradients and parameters that the test makes, without
// a model; and the arithmetic of strategies once more, written as plainly as
// can be.

namespace choir_testing {

using Floats = std::vector<float>;

// Of rank `rank` in step `step`: all different, of both signs, far below 1.
inline float SomeGradient(int rank, int64_t step, int64_t i) {
  uint32_t word = static_cast<uint32_t>(i * 7919 + step * 104729 + rank * 31);
  word = (word ^ (word >> 15)) * 2246822519u;
  word = (word ^ (word >> 13)) * 3266489917u;
  word ^= word >> 16;
  const double unit = static_cast<double>(word) / 4294967296.0 - 0.5;
  return static_cast<float>(1e-5 * unit);
}

inline int64_t Padded(int64_t count) { return (count + 15) / 16 * 16; }

// One bucket per entry of `buckets`, which has the counts of its parameters:
// each f32, with zeros up to the next cache line.
class StrategyRig {
 public:
  struct Options {
    Settings settings;
    std::vector<std::vector<int64_t>> buckets = {{100}};
    int64_t rows = 1;  // of parameters that have as many or a multiple
    double lr = 0.1;
    double momentum = 0.9;
  };

  StrategyRig(const choir_strategy_def_t* def, choir_comm_t* comm,
              const Options& options)
      : comm_(comm) {
    choir_device_options_t device_options = {};
    device_options.threads = 1;
    Must(choir_device_create("cpu", &device_options, &device_));
    Must(choir_param_set_create(device_, &set_));
    for (const auto& counts : options.buckets) AddBucket(counts, options.rows);
    choir_sgd_config_t sgd;
    choir_struct_init(choir_optimizer_def_config(&choir_optimizer_def_sgd),
                      &sgd);
    sgd.lr = options.lr;
    sgd.momentum = options.momentum;
    Must(choir_optimizer_create(&choir_optimizer_def_sgd, &sgd, &optimizer_));
    Must(choir_optimizer_attach(optimizer_, device_, set_));
    Must(choir__strategy_create(
        def, StrategyConfig(def, options.settings).data(), &strategy_));
    Must(choir__strategy_attach(strategy_, comm, device_, device_, optimizer_,
                                buckets_.data(),
                                static_cast<int32_t>(buckets_.size())));
    TakeParams();
  }
  ~StrategyRig() {
    choir__strategy_destroy(strategy_);
    choir_optimizer_release(optimizer_);
    choir_param_set_release(set_);
    for (choir_buffer_t* buffer : memory_) choir_buffer_release(buffer);
    choir_device_release(device_);
  }
  StrategyRig(const StrategyRig&) = delete;
  StrategyRig& operator=(const StrategyRig&) = delete;

  float* grads(size_t bucket) {
    return static_cast<float*>(buckets_[bucket].grads);
  }
  int64_t count(size_t bucket) const { return buckets_[bucket].count; }
  Floats Grads(size_t bucket) {
    return Floats(grads(bucket), grads(bucket) + count(bucket));
  }
  float* value(size_t param) {
    return static_cast<float*>(choir_buffer_data(
        choir_tensor_view(set_->params[param]->value)->buffer));
  }
  int64_t param_count(size_t param) const {
    return choir_tensor_count(set_->params[param]->value);
  }
  choir_optimizer_t* optimizer() { return optimizer_; }
  choir_strategy_t* strategy() { return strategy_; }

  // Parameters were set; equal on all ranks.
  void TakeParams() {
    if (strategy_->def->take_params) strategy_->def->take_params(strategy_);
  }

  // One step's exchange of all buckets, then what comes after the optimizer.
  choir_status_t Exchange(int64_t step, int64_t samples) {
    strategy_->values = {step, 0, samples, 0};
    for (int32_t b = 0; b < strategy_->bucket_count; ++b) {
      choir_status_t status =
          strategy_->def->exchange(strategy_, b, choir_device_stream(device_));
      if (status) return status;
    }
    return choir_stream_synchronize(choir_device_stream(device_));
  }
  choir_status_t Update(int64_t step) {
    return choir_optimizer_update(optimizer_, choir_device_stream(device_),
                                  step);
  }
  choir_status_t Combine(int64_t step, int64_t samples) {
    const choir_step_values_t values = {step, 0, samples, 0};
    return strategy_->def->combine(strategy_, &values);
  }

  Floats State(const std::string& name) {
    std::vector<choir_named_tensor_t> states(
        choir__strategy_states(strategy_, nullptr));
    choir__strategy_states(strategy_, states.data());
    for (const auto& state : states) {
      if (name != state.name) continue;
      Floats data(static_cast<size_t>(choir_tensor_count(state.tensor)));
      Must(choir_tensor_read(state.tensor, data.data(),
                             data.size() * sizeof(float)));
      return data;
    }
    ADD_FAILURE() << "no state " << name;
    return {};
  }

 private:
  void AddBucket(const std::vector<int64_t>& counts, int64_t rows) {
    int64_t total = 0;
    for (int64_t count : counts) total += Padded(count);
    choir_buffer_t* memory = nullptr;
    Must(choir_comm_buffer_create(
        comm_, device_, static_cast<size_t>(total) * sizeof(float), &memory));
    memset(choir_buffer_data(memory), 0,
           static_cast<size_t>(total) * sizeof(float));
    memory_.push_back(memory);
    std::vector<choir_strategy_piece_t>& pieces = pieces_.emplace_back();
    int64_t offset = 0;
    for (int64_t count : counts) {
      choir_tensor_t* tensor = nullptr;
      choir_param_t* param = nullptr;
      Must(choir_tensor_create(device_, CHOIR_DTYPE_F32, 1, &count, &tensor));
      Must(choir_param_set_add(set_,
                               ("p" + std::to_string(set_->count)).c_str(),
                               tensor, true, &param));
      choir_tensor_release(tensor);
      choir_view_t view = *choir_tensor_view(param->value);
      void* data = choir_buffer_data(view.buffer);
      memset(data, 0, static_cast<size_t>(count) * sizeof(float));
      pieces.push_back(
          {data, offset, count, count % rows == 0 ? rows : int64_t{1}});
      view.buffer = memory;
      view.offset = offset;
      Must(choir_tensor_from_view(&view, &tensor));
      choir_param_use_grad(param, tensor);
      choir_tensor_release(tensor);
      offset += Padded(count);
    }
    names_.emplace_back("gradient bucket " + std::to_string(buckets_.size()));
    buckets_.push_back({names_.back().c_str(), CHOIR_DTYPE_F32, total,
                        choir_buffer_data(memory), pieces.data(),
                        static_cast<int32_t>(pieces.size())});
  }

  choir_comm_t* comm_;
  choir_device_t* device_ = nullptr;
  choir_optimizer_t* optimizer_ = nullptr;
  choir_strategy_t* strategy_ = nullptr;
  std::deque<std::string> names_;
  choir_param_set_t* set_ = nullptr;
  std::vector<choir_buffer_t*> memory_;
  std::deque<std::vector<choir_strategy_piece_t>> pieces_;
  std::vector<choir_strategy_bucket_t> buckets_;
};

// ---- Arithmetic ----

// To `bits` of mantissa (the leading one included), ties to even, clipped to
// `largest`; below 2^least_exponent with fewer bits.
inline double RoundTo(double x, int bits, int least_exponent, double largest) {
  if (!std::isfinite(x) || x == 0) return x;
  if (std::fabs(x) > largest) return std::copysign(largest, x);
  const int exponent = std::max(std::ilogb(x), least_exponent);
  const double quantum = std::ldexp(1.0, exponent - bits + 1);
  const double rounded = std::nearbyint(x / quantum) * quantum;
  return std::copysign(std::min(std::fabs(rounded), largest), x);
}
inline double RoundF16(double x) { return RoundTo(x, 11, -14, 65504); }
inline double RoundBf16(double x) {
  return RoundTo(x, 8, -126, std::ldexp(255, 120));
}

// A rank's share of the average.
inline float Share(const std::vector<int64_t>& samples, size_t rank) {
  double sum = 0;
  for (int64_t count : samples) sum += static_cast<double>(count);
  return static_cast<float>(static_cast<double>(samples[rank]) / sum);
}

// Indices of the k largest magnitudes, increasing; of equal ones the lower.
inline std::vector<size_t> Largest(const Floats& values, size_t k) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Equal to the bit.
inline ::testing::AssertionResult SameBits(const Floats& a, const Floats& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (memcmp(&a[i], &b[i], sizeof(float)) != 0 &&
        (a[i] == a[i] || b[i] == b[i]))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " and " << b[i];
  return ::testing::AssertionSuccess();
}

}  // namespace choir_testing

#endif  // CHOIR_TESTS_DIST_STRATEGY_TESTING_H_
