// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/tensor/ops_testing.h"

namespace {

TEST(OpTable, EveryLineHasItsDefinition) {
  std::set<std::string> names;
  for (int i = 0; i < CHOIR_OP_COUNT; ++i) {
    choir_op_t op = static_cast<choir_op_t>(i);
    const choir_op_def_t* def = choir__op_def(op);
    ASSERT_NE(def, nullptr) << i;
    EXPECT_EQ(def->op, op) << def->name;
    EXPECT_TRUE(names.insert(def->name).second) << def->name;
    EXPECT_STREQ(choir_op_name(op), def->name);
    EXPECT_GT(std::string(def->doc).size(), 0u) << def->name;
    EXPECT_NE(def->infer, nullptr) << def->name;
    EXPECT_NE(def->reference, nullptr) << def->name;
    EXPECT_NE(def->cases, nullptr) << def->name;
    EXPECT_NE(def->dtypes, 0u) << def->name;
    EXPECT_LE(1, def->src_min) << def->name;
    EXPECT_LE(def->src_min, def->src_max) << def->name;
    EXPECT_LE(def->src_max + def->dst_count, CHOIR_MAX_OPERANDS) << def->name;
    EXPECT_LE(def->dst_count, CHOIR_OP_MAX_RESULTS) << def->name;
    EXPECT_EQ(choir_op_result_count(op), def->dst_count);
  }
}

// The list's SOURCES and ATTRS columns against the definitions.
#define SOURCES_1 1
#define SOURCES_2 2
#define SOURCES_3 3
#define SOURCES_N 0
#define CHECK(ENUM, name, sources, attrs, grad)                            \
  if (SOURCES_##sources != 0) {                                            \
    EXPECT_EQ(choir__op_def(CHOIR_OP_##ENUM)->src_min, SOURCES_##sources); \
    EXPECT_EQ(choir__op_def(CHOIR_OP_##ENUM)->src_max, SOURCES_##sources); \
  }                                                                        \
  CHECK_##attrs(ENUM, name)
#define CHECK_PLAIN(ENUM, name) \
  EXPECT_EQ(choir_op_attrs_def(CHOIR_OP_##ENUM), nullptr);
#define CHECK_ATTRS(ENUM, op_name)                         \
  ASSERT_NE(choir_op_attrs_def(CHOIR_OP_##ENUM), nullptr); \
  EXPECT_EQ(choir_op_attrs_def(CHOIR_OP_##ENUM)->bytes,    \
            sizeof(choir_##op_name##_attrs_t));            \
  EXPECT_STREQ(choir_op_attrs_def(CHOIR_OP_##ENUM)->name, #op_name);

TEST(OpTable, ListAndDefinitionsAgree){CHOIR_OP_LIST(CHECK)}

// What other languages read.
TEST(OpTable, InfoTellsWhatTheListSays) {
  for (int i = 0; i < CHOIR_OP_COUNT; ++i) {
    choir_op_t op = static_cast<choir_op_t>(i);
    const choir_op_def_t* def = choir__op_def(op);
    choir_op_info_t info = choir_op_info(op);
    EXPECT_STREQ(info.name, def->name);
    EXPECT_STREQ(info.doc, def->doc) << def->name;
    EXPECT_EQ(info.src_min, def->src_min) << def->name;
    EXPECT_EQ(info.src_max, def->src_max) << def->name;
    EXPECT_EQ(info.result_count, def->dst_count) << def->name;
    EXPECT_EQ(info.attrs, choir_op_attrs_def(op)) << def->name;
  }
  EXPECT_EQ(choir_op_info(CHOIR_OP_RELU).gradient, CHOIR_OP_GRADIENT_GRAD);
  EXPECT_EQ(choir_op_info(CHOIR_OP_RELU).attrs, nullptr);
  EXPECT_EQ(choir_op_info(CHOIR_OP_LESS).gradient, CHOIR_OP_GRADIENT_NO_GRAD);
  EXPECT_EQ(choir_op_info(CHOIR_OP_CONCAT).src_min, 1);
  EXPECT_EQ(choir_op_info(CHOIR_OP_CONCAT).src_max, 15);
  EXPECT_STREQ(choir_op_info(CHOIR_OP_CONCAT).attrs->name, "concat");
  EXPECT_EQ(choir_op_info(CHOIR_OP_MAX_POOL2D).result_count, 2);
  EXPECT_EQ(choir_op_info(CHOIR_OP_SGD_UPDATE).gradient,
            CHOIR_OP_GRADIENT_INTERNAL);
}

TEST(OpTable, DefaultsPassTheirOwnChecks) {
  for (int i = 0; i < CHOIR_OP_COUNT; ++i) {
    const choir_struct_def_t* attrs =
        choir_op_attrs_def(static_cast<choir_op_t>(i));
    if (!attrs) continue;
    ASSERT_LE(attrs->bytes, 160u);
    alignas(8) unsigned char object[160];
    choir_struct_init(attrs, object);
    EXPECT_OK(choir_struct_check(attrs, object)) << attrs->name;
  }
}

TEST(OpTable, FindByName) {
  choir_op_t op;
  EXPECT_OK(choir_op_find("conv2d_grad_data", &op));
  EXPECT_EQ(op, CHOIR_OP_CONV2D_GRAD_DATA);
  EXPECT_STATUS(NOT_FOUND, "\"convolve\" is no op",
                choir_op_find("convolve", &op));
  EXPECT_STATUS(NOT_FOUND, "NULL", choir_op_find(nullptr, &op));
}

TEST(OpTable, ValuesThatAreNoOps) {
  for (int value : {-1, static_cast<int>(CHOIR_OP_COUNT), 1000000}) {
    choir_op_t op = static_cast<choir_op_t>(value);
    EXPECT_EQ(choir_op_name(op), nullptr);
    EXPECT_EQ(choir_op_attrs_def(op), nullptr);
    EXPECT_EQ(choir_op_result_count(op), 0);
    choir_op_info_t info = choir_op_info(op);
    EXPECT_EQ(info.name, nullptr);
    EXPECT_EQ(info.doc, nullptr);
    EXPECT_EQ(info.src_max, 0);
    EXPECT_EQ(info.result_count, 0);
    EXPECT_EQ(info.attrs, nullptr);
    EXPECT_EQ(choir__op_def(op), nullptr);
    EXPECT_EQ(choir__operation(op), nullptr);
    EXPECT_EQ(choir__reference_kernel(op), nullptr);
    EXPECT_EQ(choir__host_kernel(op), nullptr);
  }
}

TEST(OpTable, KernelsAroundTheReference) {
  EXPECT_STREQ(choir__reference_kernel(CHOIR_OP_RELU)->name, "relu/reference");
  EXPECT_STREQ(choir__host_kernel(CHOIR_OP_CONV2D)->name, "conv2d/host");
}

TEST(OpTable, OperationsKnowTheirOp) {
  for (int i = 0; i < CHOIR_OP_COUNT; ++i) {
    const choir_op_t op = static_cast<choir_op_t>(i);
    choir_record_t record = {};
    record.operation = choir__operation(op);
    ASSERT_NE(record.operation, nullptr);
    EXPECT_EQ(choir__record_op(&record), op);
    EXPECT_STREQ(choir_record_name(&record), choir_op_name(op));
    record.src_count = choir__op_def(op)->src_max;
    for (int32_t s = 0; s < record.src_count; ++s)
      EXPECT_EQ(choir_record_reads(&record, s),
                s >= 32 || !(choir__op_def(op)->shapes_only >> s & 1u));
  }
  const choir_record_t none = {};
  EXPECT_EQ(choir__record_op(&none), CHOIR_OP_COUNT);
}

TEST(OpTable, Cost) {
  choir_view_t operands[4];
  const int64_t x[] = {2, 3}, w[] = {3, 5}, b[] = {5}, y[] = {2, 5};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, x, &operands[0]));
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, w, &operands[1]));
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, b, &operands[2]));
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, y, &operands[3]));
  choir_record_t record = {};
  record.operands = operands;
  record.src_count = 3;
  record.dst_count = 1;
  record.operation = choir__operation(CHOIR_OP_LINEAR);
  choir_cost_t cost = choir_record_cost(&record);
  EXPECT_EQ(cost.flops, 2.0 * 2 * 3 * 5 + 2 * 5);
  EXPECT_EQ(cost.bytes, 4.0 * (6 + 15 + 5 + 10));
  record.operation = choir__operation(CHOIR_OP_ADD);
  cost = choir_record_cost(&record);
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.bytes, 4.0 * (6 + 15 + 5 + 10));
}

}  // namespace
