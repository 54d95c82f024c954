// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_OPT_PARAM_TESTING_H_
#define CHOIR_TESTS_OPT_PARAM_TESTING_H_

#include <deque>
#include <string>
#include <vector>

#include "model/updater.h"
#include "tests/tensor/ops_testing.h"

namespace choir {
namespace testing {

// Parameters with values and gradients, for tests of what updates them.
template <typename T>
class ParamSet {
 public:
  explicit ParamSet(choir_device_t* device) : device_(device) {}
  ParamSet(const ParamSet&) = delete;
  ParamSet& operator=(const ParamSet&) = delete;

  choir_param_t* Add(const std::string& name, const Shape& shape,
                     const std::vector<T>& values, bool channels_last = false) {
    Entry& entry = entries_.emplace_back();
    entry.name = name;
    const std::vector<T> zeros(values.size());
    if (channels_last) {
      entry.value = MakeChannelsLast(device_, shape, values);
      entry.grad = MakeChannelsLast(device_, shape, zeros);
    } else {
      entry.value = Make(device_, shape, values);
      entry.grad = Make(device_, shape, zeros);
    }
    entry.param = {};
    entry.param.name = entry.name.c_str();
    entry.param.value = entry.value.get();
    entry.param.grad = entry.grad.get();
    entry.param.trainable = true;
    pointers_.push_back(&entry.param);
    return &entry.param;
  }
  choir_param_list_t list() const {
    return {pointers_.data(), pointers_.size()};
  }
  choir_param_t* operator[](size_t i) { return &entries_[i].param; }
  size_t size() const { return entries_.size(); }

  std::vector<T> value(size_t i) const { return Read<T>(entries_[i].value); }
  std::vector<T> grad(size_t i) const { return Read<T>(entries_[i].grad); }
  void SetGrad(size_t i, const std::vector<T>& grad) {
    EXPECT_OK(choir_tensor_write(entries_[i].grad.get(), grad.data(),
                                 grad.size() * sizeof(T)));
  }
  void SetValue(size_t i, const std::vector<T>& value) {
    EXPECT_OK(choir_tensor_write(entries_[i].value.get(), value.data(),
                                 value.size() * sizeof(T)));
  }

 private:
  struct Entry {
    std::string name;
    TensorPtr value;
    TensorPtr grad;
    choir_param_t param;
  };
  choir_device_t* device_;
  std::deque<Entry> entries_;
  std::vector<choir_param_t*> pointers_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_OPT_PARAM_TESTING_H_
