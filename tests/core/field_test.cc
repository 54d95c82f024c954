// SPDX-License-Identifier: Apache-2.0
#include "core/field.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <string>

#include "tests/testing/status_matchers.h"

namespace {

struct Config {
  bool nesterov;
  char padding_before_int;
  int64_t steps;
  int64_t kernel[2];
  double lr;
  int32_t mode;
  const char* name;
};

const char* const kModes[] = {"mean", "sum_all", "none", nullptr};

const choir_field_t kFields[] = {
    CHOIR_FIELD_BOOL(Config, nesterov, 1, "look ahead"),
    CHOIR_FIELD_INT(Config, steps, 10, 1, 1000, "steps to take"),
    CHOIR_FIELD_INTS(Config, kernel, 2, 3, 1, 99, "kernel size"),
    CHOIR_FIELD_FLOAT(Config, lr, 0.1, 0, 1e9, "step size"),
    CHOIR_FIELD_ENUM(Config, mode, kModes, 1, ""),
    CHOIR_FIELD_STRING(Config, name, "sgd", "what to call it"),
};

const choir_struct_def_t kDef =
    CHOIR_STRUCT_DEF("config", Config, kFields, "a test");

std::string Print(const Config& config) {
  char text[256];
  return choir_struct_print(&kDef, &config, text, sizeof(text));
}

class FieldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::memset(&config_, 0xff, sizeof(config_));
    choir_struct_init(&kDef, &config_);
  }
  choir_status_t Set(const char* name, const char* text) {
    return choir_struct_set(&kDef, &config_, name, text);
  }
  Config config_;
};

TEST_F(FieldTest, InitWritesDefaults) {
  EXPECT_TRUE(config_.nesterov);
  EXPECT_EQ(config_.steps, 10);
  EXPECT_EQ(config_.kernel[0], 3);
  EXPECT_EQ(config_.kernel[1], 3);
  EXPECT_EQ(config_.lr, 0.1);
  EXPECT_EQ(config_.mode, 1);
  EXPECT_STREQ(config_.name, "sgd");
  EXPECT_OK(choir_struct_check(&kDef, &config_));
}

TEST_F(FieldTest, CheckNamesStructFieldValueAndRange) {
  config_.lr = -1;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "config: lr is -1; needs a number from 0 to 1e+09 (step size)",
                choir_struct_check(&kDef, &config_));
  config_.lr = std::nan("");
  EXPECT_STATUS(INVALID_ARGUMENT, "lr is nan",
                choir_struct_check(&kDef, &config_));
  config_.lr = std::numeric_limits<double>::infinity();
  EXPECT_STATUS(INVALID_ARGUMENT, "lr is inf",
                choir_struct_check(&kDef, &config_));
  config_.lr = 0.0;
  EXPECT_OK(choir_struct_check(&kDef, &config_));
  config_.kernel[1] = 100;
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "config: kernel is 100; needs a whole number from 1 to 99 (kernel size)",
      choir_struct_check(&kDef, &config_));
  config_.kernel[1] = 99;
  config_.mode = 3;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "config: mode is 3; needs one of mean, sum_all, none",
                choir_struct_check(&kDef, &config_));
  config_.mode = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "mode is -1",
                choir_struct_check(&kDef, &config_));
}

TEST_F(FieldTest, SetReadsEveryKind) {
  for (const char* text : {"false", "0", "no", "off"}) {
    config_.nesterov = true;
    ASSERT_OK(Set("nesterov", text));
    EXPECT_FALSE(config_.nesterov);
  }
  for (const char* text : {"true", "1", "yes", "on"}) {
    config_.nesterov = false;
    ASSERT_OK(Set("nesterov", text));
    EXPECT_TRUE(config_.nesterov);
  }
  ASSERT_OK(Set("steps", "1000"));
  EXPECT_EQ(config_.steps, 1000);
  ASSERT_OK(Set("lr", "2.5e-3"));
  EXPECT_EQ(config_.lr, 2.5e-3);
  ASSERT_OK(Set("mode", "sum-all"));
  EXPECT_EQ(config_.mode, 1);
  ASSERT_OK(Set("mode", "none"));
  EXPECT_EQ(config_.mode, 2);
  const char* name = "adam, or so";
  ASSERT_OK(Set("name", name));
  EXPECT_EQ(config_.name, name);  // borrowed
  ASSERT_OK(Set("name", nullptr));
  EXPECT_EQ(config_.name, nullptr);
  ASSERT_OK(Set("kernel", "5"));
  EXPECT_EQ(config_.kernel[0], 5);
  EXPECT_EQ(config_.kernel[1], 5);
  ASSERT_OK(Set("kernel", "7,2"));
  EXPECT_EQ(config_.kernel[0], 7);
  EXPECT_EQ(config_.kernel[1], 2);
}

TEST_F(FieldTest, SetRefusesAndChangesNothing) {
  std::string before = Print(config_);
  EXPECT_STATUS(INVALID_ARGUMENT, "nesterov is 'maybe'; needs true or false",
                Set("nesterov", "maybe"));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "steps is 'ten'; needs a whole number from 1 to 1000",
                Set("steps", "ten"));
  for (const char* text :
       {"", "1.5", "5x", "1001", "0", "99999999999999999999", " "}) {
    EXPECT_STATUS(INVALID_ARGUMENT, "steps is", Set("steps", text));
  }
  for (const char* text : {"", "fast", "0.1x", "-1", "nan", "1e10", "inf"})
    EXPECT_STATUS(INVALID_ARGUMENT, "lr is", Set("lr", text));
  EXPECT_STATUS(INVALID_ARGUMENT, "mode is 'max'; needs one of mean",
                Set("mode", "max"));
  for (const char* text : {"5,5,5", "5,", ",5", "5,x", "5,100", ""})
    EXPECT_STATUS(INVALID_ARGUMENT, "kernel is", Set("kernel", text));
  EXPECT_STATUS(INVALID_ARGUMENT, "steps is (null)", Set("steps", nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "very long",
                Set("steps", std::string(1000, '1').c_str()));
  EXPECT_EQ(Print(config_), before);
  EXPECT_STATUS(NOT_FOUND,
                "config: no field is called 'momentum'; known are nesterov, "
                "steps, kernel, lr, mode, name",
                Set("momentum", "1"));
  EXPECT_STATUS(NOT_FOUND, "(null)", Set(nullptr, "1"));
}

TEST_F(FieldTest, DashesAndUnderscoresAreTheSame) {
  struct Options {
    double weight_decay;
  };
  const choir_field_t fields[] = {
      CHOIR_FIELD_FLOAT(Options, weight_decay, 0, 0, 1, ""),
  };
  const choir_struct_def_t def = CHOIR_STRUCT_DEF("o", Options, fields, "");
  EXPECT_EQ(choir_struct_find(&def, "weight-decay"), &fields[0]);
  EXPECT_EQ(choir_struct_find(&def, "weight_decay"), &fields[0]);
  EXPECT_EQ(choir_struct_find(&def, "weight"), nullptr);
  EXPECT_EQ(choir_struct_find(&def, "weight_decay_"), nullptr);
  EXPECT_EQ(choir_struct_find(&def, nullptr), nullptr);
}

TEST_F(FieldTest, PrintReadsBack) {
  EXPECT_EQ(Print(config_),
            "nesterov=true steps=10 kernel=3,3 lr=0.1 mode=sum_all name=sgd");
  config_.name = nullptr;
  config_.mode = 77;
  EXPECT_EQ(Print(config_),
            "nesterov=true steps=10 kernel=3,3 lr=0.1 mode=77 name=");
  for (double lr : {1.0 / 3.0, 1e-300, 123456789.0, 0.30000000000000004}) {
    config_.lr = lr;
    std::string text = Print(config_);
    size_t at = text.find("lr=") + 3;
    config_.lr = 0;
    ASSERT_OK(Set("lr", text.substr(at, text.find(' ', at) - at).c_str()));
    EXPECT_EQ(config_.lr, lr);
  }
  char small[10];
  EXPECT_STREQ(choir_struct_print(&kDef, &config_, small, sizeof(small)),
               "nesterov=");
  EXPECT_EQ(choir_struct_print(&kDef, &config_, small, 0), small);
}

// A locale whose decimal point is a comma, made here: few machines have one.
void MakeCommaLocale(const std::string& folder) {
  std::ofstream(folder + "/comma.locale")
      << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\n"
      << "grouping -1\nEND LC_NUMERIC\n";
  std::ofstream(folder + "/few.charmap")
      << "<code_set_name> FEW\nCHARMAP\n<a> /x61\nEND CHARMAP\n";
  // It complains about all that is not there and writes what is.
  const std::string command = "cd " + folder +
                              " && localedef -c -f ./few.charmap"
                              " -i comma.locale ./comma >localedef.log 2>&1";
  [[maybe_unused]] int ignored = std::system(command.c_str());
  setenv("LOCPATH", folder.c_str(), 1);
}

TEST_F(FieldTest, PointIsAPointInEveryLocale) {
  MakeCommaLocale(testing::TempDir());
  ASSERT_TRUE(std::setlocale(LC_NUMERIC, "comma"));
  ASSERT_EQ(std::to_string(0.25), "0,250000");
  ASSERT_OK(Set("lr", "0.25"));
  EXPECT_EQ(config_.lr, 0.25);
  EXPECT_NE(Print(config_).find("lr=0.25"), std::string::npos);
  std::setlocale(LC_NUMERIC, "C");
}

TEST_F(FieldTest, HashAndEqualSeeValuesAndNoPadding) {
  Config same;
  std::memset(&same, 0x55, sizeof(same));
  same.nesterov = config_.nesterov;
  same.steps = config_.steps;
  same.kernel[0] = config_.kernel[0];
  same.kernel[1] = config_.kernel[1];
  same.lr = config_.lr;
  same.mode = config_.mode;
  char name[] = "sgd";  // equal text at another address
  same.name = name;
  uint64_t hash = choir_struct_hash(&kDef, &config_);
  EXPECT_EQ(choir_struct_hash(&kDef, &same), hash);
  EXPECT_TRUE(choir_struct_equal(&kDef, &same, &config_));

  std::set<uint64_t> hashes = {hash};
  auto differs = [&](void (*change)(Config*)) {
    Config other = config_;
    change(&other);
    EXPECT_TRUE(hashes.insert(choir_struct_hash(&kDef, &other)).second);
    EXPECT_FALSE(choir_struct_equal(&kDef, &other, &config_));
    EXPECT_FALSE(choir_struct_equal(&kDef, &config_, &other));
    EXPECT_TRUE(choir_struct_equal(&kDef, &other, &other));
  };
  differs([](Config* c) { c->nesterov = false; });
  differs([](Config* c) { c->steps = 11; });
  differs([](Config* c) { c->kernel[1] = 4; });
  differs([](Config* c) { c->lr = 0.2; });
  differs([](Config* c) { c->mode = 0; });
  differs([](Config* c) { c->name = "sgD"; });
  differs([](Config* c) { c->name = ""; });
  differs([](Config* c) { c->name = nullptr; });

  config_.lr = 0.0;
  hash = choir_struct_hash(&kDef, &config_);
  config_.lr = -0.0;
  EXPECT_EQ(choir_struct_hash(&kDef, &config_), hash);
}

}  // namespace
