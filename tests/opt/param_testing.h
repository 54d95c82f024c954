// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_OPT_PARAM_TESTING_H_
#define CHOIR_TESTS_OPT_PARAM_TESTING_H_

#include <string>
#include <vector>

#include "model/param_set.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// Parameters with values and gradients, for tests of what updates them.
template <typename T>
class ParamSet {
 public:
  explicit ParamSet(choir_device_t* device) : device_(device) {
    EXPECT_OK(choir_param_set_create(device, &set_));
  }
  ~ParamSet() { choir_param_set_release(set_); }
  ParamSet(const ParamSet&) = delete;
  ParamSet& operator=(const ParamSet&) = delete;

  choir_param_t* Add(const std::string& name, const Shape& shape,
                     const std::vector<T>& values, bool channels_last = false) {
    const TensorPtr value = channels_last
                                ? MakeChannelsLast(device_, shape, values)
                                : Make(device_, shape, values);
    choir_param_t* param = nullptr;
    EXPECT_OK(
        choir_param_set_add(set_, name.c_str(), value.get(), true, &param));
    SetGrad(size() - 1, std::vector<T>(values.size()));
    return param;
  }
  choir_param_set_t* list() const { return set_; }
  choir_param_t* operator[](size_t i) { return set_->params[i]; }
  size_t size() const { return set_->count; }

  std::vector<T> value(size_t i) const {
    return Read<T>(set_->params[i]->value);
  }
  std::vector<T> grad(size_t i) const { return Read<T>(set_->params[i]->grad); }
  void SetGrad(size_t i, const std::vector<T>& grad) {
    EXPECT_OK(choir_tensor_write(set_->params[i]->grad, grad.data(),
                                 grad.size() * sizeof(T)));
  }
  void SetValue(size_t i, const std::vector<T>& value) {
    EXPECT_OK(choir_tensor_write(set_->params[i]->value, value.data(),
                                 value.size() * sizeof(T)));
  }

 private:
  choir_device_t* device_;
  choir_param_set_t* set_ = nullptr;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_OPT_PARAM_TESTING_H_
