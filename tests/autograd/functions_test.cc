// SPDX-License-Identifier: Apache-2.0
#include "autograd/functions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/grad_rule.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

// choir_var_<op> for every op that is not internal: each one hands on its own
// op with its sources and attributes.
class FunctionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_scope_create(device_.get(), &scope_));
    choir_scope_begin(scope_, nullptr);
  }
  void TearDown() override { choir_scope_destroy(scope_); }

  // A failed source makes every function name its op and the source's place.
  void ExpectNames(const char* op, int32_t place) {
    EXPECT_STATUS(INVALID_ARGUMENT,
                  std::string(op) + ": source " + std::to_string(place) +
                      " is not a variable of this step",
                  choir_scope_end(scope_));
    choir_scope_begin(scope_, nullptr);
  }
  choir_var_t* Good() {
    TensorPtr one = Make<double>(device_.get(), {1}, {1});
    return choir_scope_input(scope_, one.get());
  }

  DevicePtr device_ = MakeDevice("cpu");
  choir_scope_t* scope_ = nullptr;
};

#define SOURCES_1 nullptr
#define SOURCES_2 Good(), nullptr
#define SOURCES_3 Good(), Good(), nullptr
#define SOURCES_N srcs, 2
#define PLACE_1 0
#define PLACE_2 1
#define PLACE_3 2
#define PLACE_N 1
#define ATTRS_PLAIN
#define ATTRS_ATTRS , nullptr
#define CALL_GRAD(name, n, attrs)                        \
  {                                                      \
    choir_var_t* const srcs[] = {Good(), nullptr};       \
    (void)srcs;                                          \
    choir_var_##name(scope_, SOURCES_##n ATTRS_##attrs); \
    ExpectNames(#name, PLACE_##n);                       \
  }
#define CALL_OP_GRAD(name, n, attrs) CALL_GRAD(name, n, attrs)
#define CALL_NO_GRAD(name, n, attrs) CALL_GRAD(name, n, attrs)
#define CALL_INTERNAL(name, n, attrs)
#define CALL(ENUM, name, n, attrs, grad) CALL_##grad(name, n, attrs)

TEST_F(FunctionsTest, EachRunsItsOwnOp){CHOIR_OP_LIST(CALL)}

TEST_F(FunctionsTest, HandsOnSourcesAndAttributes) {
  TensorPtr a = Make<double>(device_.get(), {2}, {7, 9});
  TensorPtr b = Make<double>(device_.get(), {2}, {2, 3});
  choir_var_t* x = choir_scope_input(scope_, a.get());
  choir_var_t* y = choir_scope_input(scope_, b.get());
  EXPECT_EQ(Read<double>(choir_var_tensor(choir_var_sub(scope_, x, y))),
            (std::vector<double>{5, 6}));
  const choir_scale_attrs_t attrs = {3, 1};
  EXPECT_EQ(Read<double>(choir_var_tensor(choir_var_scale(scope_, x, &attrs))),
            (std::vector<double>{22, 28}));
  // NULL stands for the defaults.
  EXPECT_EQ(Read<double>(choir_var_tensor(choir_var_scale(scope_, x, nullptr))),
            (std::vector<double>{7, 9}));
  choir_var_t* const both[] = {y, x};
  EXPECT_EQ(Read<double>(
                choir_var_tensor(choir_var_concat(scope_, both, 2, nullptr))),
            (std::vector<double>{2, 3, 7, 9}));
  EXPECT_OK(choir_scope_end(scope_));
}

// The table of rules says the same as the list.
TEST(RuleTableTest, HasARuleWhereTheListSaysSo) {
#define HAS_GRAD true
#define HAS_OP_GRAD true
#define HAS_NO_GRAD false
#define HAS_INTERNAL false
#define CHECK_RULE(ENUM, name, n, attrs, grad) \
  EXPECT_EQ(choir__grad_rule(CHOIR_OP_##ENUM) != nullptr, HAS_##grad) << #name;
  CHOIR_OP_LIST(CHECK_RULE)
  EXPECT_EQ(choir__grad_rule(CHOIR_OP_COUNT), nullptr);
  EXPECT_EQ(choir__grad_rule(static_cast<choir_op_t>(-1)), nullptr);
}

}  // namespace
