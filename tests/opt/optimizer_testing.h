// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_OPT_OPTIMIZER_TESTING_H_
#define CHOIR_TESTS_OPT_OPTIMIZER_TESTING_H_

#include <memory>

#include "opt/optimizer.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// Optimizers of the list, by their configs.
struct OptimizerRelease {
  void operator()(choir_optimizer_t* optimizer) const {
    choir_optimizer_release(optimizer);
  }
};
using OptimizerPtr = std::unique_ptr<choir_optimizer_t, OptimizerRelease>;

inline choir_sgd_config_t Sgd() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
}
inline choir_adam_config_t Adam() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_ADAM_FIELDS)};
}
inline choir_adamw_config_t Adamw() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_ADAMW_FIELDS)};
}
inline choir_rmsprop_config_t Rmsprop() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_RMSPROP_FIELDS)};
}
inline choir_adagrad_config_t Adagrad() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_ADAGRAD_FIELDS)};
}
inline choir_adadelta_config_t Adadelta() {
  return {CHOIR_CONFIG_DEFAULTS(CHOIR_ADADELTA_FIELDS)};
}
#define CREATE(T, NAME, name, states, doc)                                 \
  inline OptimizerPtr Create(const choir_##name##_config_t& config) {      \
    choir_optimizer_t* optimizer = nullptr;                                \
    EXPECT_OK(choir_optimizer_create(&choir_optimizer_def_##name, &config, \
                                     &optimizer));                         \
    return OptimizerPtr(optimizer);                                        \
  }
CHOIR_OPTIMIZER_LIST(CREATE, )
#undef CREATE

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_OPT_OPTIMIZER_TESTING_H_
