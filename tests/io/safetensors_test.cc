// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "io/safetensors_internal.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

const char kGood[] =
    R"({"__metadata__":{"b":"two","a":"one"},)"
    R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[24,24]},)"
    R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[24,25]}})";

// Parses a copy of exactly the right size, so that a sanitizer sees any step
// beyond it.
class Parsed {
 public:
  Parsed(const std::string& text, uint64_t data_bytes) {
    std::unique_ptr<char[]> copy(new char[text.size() + 1]);
    memcpy(copy.get(), text.data(), text.size());
    memset(&header_, 0xff, sizeof header_);
    outcome_ =
        Take(choir__safetensors_parse(choir_allocator_default(), copy.get(),
                                      text.size(), data_bytes, &header_));
  }
  ~Parsed() { choir__safetensors_clear(&header_); }
  const Outcome& outcome() const { return outcome_; }
  const choir__safetensors_t& header() const { return header_; }

 private:
  choir__safetensors_t header_;
  Outcome outcome_;
};

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override { EXPECT_EQ(ScarceMemory::Blocks(), blocks_); }

  void Fails(const std::string& text, uint64_t data_bytes, const char* part,
             choir_status_code_t code = CHOIR_STATUS_INVALID_ARGUMENT) {
    SCOPED_TRACE(text.substr(0, 200));
    Parsed parsed(text, data_bytes);
    EXPECT_EQ(parsed.outcome().code, code) << parsed.outcome().message;
    EXPECT_THAT(parsed.outcome().message, HasSubstr(part));
    EXPECT_EQ(parsed.header().entries, nullptr);
  }
  // One tensor's entry.
  void EntryFails(const std::string& entry, uint64_t data_bytes,
                  const char* part,
                  choir_status_code_t code = CHOIR_STATUS_INVALID_ARGUMENT) {
    Fails("{\"w\":" + entry + "}", data_bytes, part, code);
  }

  size_t blocks_ = 0;
};

TEST_F(Safetensors, ParsesAHeader) {
  Parsed parsed(kGood, 25);
  ASSERT_EQ(parsed.outcome().code, CHOIR_STATUS_OK) << parsed.outcome().message;
  const choir__safetensors_t& header = parsed.header();
  ASSERT_EQ(header.count, 3u);
  EXPECT_STREQ(header.entries[0].entry.name, "w");
  EXPECT_STREQ(header.entries[1].entry.name, "empty");
  EXPECT_STREQ(header.entries[2].entry.name, "scalar");
  const choir__safetensors_entry_t* w = choir__safetensors_find(&header, "w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->entry.dtype, CHOIR_DTYPE_F32);
  EXPECT_EQ(w->entry.ndim, 2);
  EXPECT_EQ(w->entry.shape[0], 2);
  EXPECT_EQ(w->entry.shape[1], 3);
  EXPECT_EQ(w->entry.bytes, 24u);
  EXPECT_EQ(w->begin, 0u);
  EXPECT_EQ(choir__safetensors_find(&header, "scalar")->entry.ndim, 0);
  EXPECT_EQ(choir__safetensors_find(&header, "empty")->entry.bytes, 0u);
  EXPECT_EQ(choir__safetensors_find(&header, "x"), nullptr);
  EXPECT_EQ(choir__safetensors_find(&header, ""), nullptr);
  EXPECT_STREQ(choir__safetensors_metadata(&header, "a"), "one");
  EXPECT_STREQ(choir__safetensors_metadata(&header, "b"), "two");
  EXPECT_EQ(choir__safetensors_metadata(&header, "c"), nullptr);
}

TEST_F(Safetensors, AcceptsWhatOtherWritersDo) {
  const char* good[] = {
      "{}",
      "{}        ",
      "{ }\n",
      R"({"__metadata__":{}})",
      R"({"":{"shape":[],"data_offsets":[0,0e3],"dtype":"BOOL"}})",
  };
  for (int i = 0; i < 4; ++i) {
    Parsed parsed(good[i], 0);
    EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OK)
        << good[i] << parsed.outcome().message;
  }
  // A scalar is one element, whatever its offsets claim.
  Fails(good[4], 0, "shape and dtype make 1");
}

TEST_F(Safetensors, NoHeaderAtAll) {
  Fails("", 0, "does not begin");
  Fails(" {}", 0, "does not begin");
  Fails("[]", 0, "does not begin");
  Fails("{", 0, "no JSON");
  Fails("{}x", 0, "no JSON");
  Fails("{}{}", 0, "no JSON");
  Fails(std::string("{}\0", 3), 0, "NUL");
  Fails(R"({"a"})", 0, "no JSON");
  Fails(R"({"a":1})", 0, "'a' does not consist");
  Fails(R"({"a":[]})", 0, "'a' does not consist");
  Fails(std::string(kGood, sizeof kGood - 2), 25, "no JSON");
}

TEST_F(Safetensors, Texts) {
  Fails("{\"a\xff\":1}", 0, "UTF-8");
  Fails("{\"a\nb\":1}", 0, "control character");
  Fails(R"({"a\u0000b":1})", 0, "NUL");
  Fails(R"({"a\ud800b":1})", 0, "no JSON");
  Fails(R"({"a\)", 0, "no JSON");
  // An escaped backslash before u0000 is no NUL.
  Fails(R"({"a\\u0000b":1})", 0, "'a\\u0000b' does not consist");
}

TEST_F(Safetensors, Metadata) {
  Fails(R"({"__metadata__":[]})", 0, "__metadata__");
  Fails(R"({"__metadata__":{"a":1}})", 0, "'a' is no text");
  Fails(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' twice");
  Fails(R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ twice");
}

TEST_F(Safetensors, Entries) {
  EntryFails(R"({"dtype":"F32","shape":[1]})", 4, "does not consist");
  EntryFails(
      R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4,
      "does not consist");
  EntryFails(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0})", 4,
             "does not consist");
  EntryFails(R"({"dtype":1,"shape":[1],"data_offsets":[0,4]})", 4, "no text");
  EntryFails(R"({"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]})", 1,
             "'F8_E4M3'", CHOIR_STATUS_UNIMPLEMENTED);
  EntryFails(R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", 4, "'f32'",
             CHOIR_STATUS_UNIMPLEMENTED);
  EntryFails(R"({"dtype":"F32","shape":4,"data_offsets":[0,4]})", 4, "no list");
  for (const char* size : {"-1", "0.5", "1e400", "1e30", "null", "\"1\"",
                           "9007199254740994", "true"}) {
    EntryFails(std::string(R"({"dtype":"F32","shape":[)") + size +
                   R"(],"data_offsets":[0,4]})",
               4, "no whole number");
  }
  EntryFails(
      R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})", 4,
      "more than 8 dimensions", CHOIR_STATUS_UNIMPLEMENTED);
  EntryFails(
      R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]})",
      0, "2^63");
  EntryFails(
      R"({"dtype":"F64","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})",
      0, "2^63");
  for (const char* offsets :
       {"[0]", "[0,4,8]", "{}", "4", "[0,-4]", "[0,\"4\"]", "[]", "[0,1e99]"}) {
    EntryFails(std::string(R"({"dtype":"F32","shape":[1],"data_offsets":)") +
                   offsets + "}",
               4, "two whole numbers");
  }
}

TEST_F(Safetensors, Places) {
  EntryFails(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4,
             "4 to 0 of 4");
  EntryFails(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3,
             "0 to 4 of 3");
  EntryFails(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4,
             "make 8");
  EntryFails(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5,
             "lists 4 bytes of tensors; the file has 5");
  EntryFails(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})", 5,
             "begins at byte 1");
  const std::string a = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)";
  const std::string b = R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":)";
  Fails(a + "[0,4]}" + b + "[0,4]}}", 8, "overlap");
  Fails(a + "[0,4]}" + b + "[3,7]}}", 7, "overlap");
  Fails(a + "[0,4]}" + b + "[5,9]}}", 9, "overlap");
  Fails(a + "[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],"
            "\"data_offsets\":[4,8]}}",
        8, "'a' twice");
  Parsed parsed(a + "[4,8]}" + b + "[0,4]}}", 8);
  EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OK);
  EXPECT_STREQ(parsed.header().entries[0].entry.name, "b");
}

// Small texts that would grow large, or go deep, in a parser.
TEST_F(Safetensors, Bombs) {
  for (const char* bracket : {"[", "{\"a\":", "[[", "{\"a\":["}) {
    std::string text = "{\"a\":";
    for (int i = 0; i < 100000; ++i) text += bracket;
    Fails(text, 0, "nests deeper");
  }
  std::string values = "{\"a\":[0";
  for (int i = 0; i < 1000000; ++i) values += ",0";
  Fails(values + "]}", 0, "values");
  std::string objects = "{\"a\":[{}";
  for (int i = 0; i < 1000000; ++i) objects += ",{}";
  Fails(objects + "]}", 0, "values");
  // The densest honest header passes.
  std::string dense = "{";
  for (int i = 0; i < 5000; ++i) {
    if (i) dense += ",";
    dense += "\"" + std::to_string(i) +
             "\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,0],"
             "\"data_offsets\":[0,0]}";
  }
  Parsed parsed(dense + "}", 0);
  EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OK) << parsed.outcome().message;
  EXPECT_EQ(parsed.header().count, 5000u);
}

// Bytes and whole pieces replaced at random: a status, whatever comes.
TEST_F(Safetensors, RandomDamage) {
  const char* pieces[] = {"[",   "]",    "{",      "}",     ",",
                          ":",   "\"",   "0",      "-1",    "1e308",
                          "24",  "null", "\\u00",  "\\",    "\"w\"",
                          "F32", "true", "[0,24]", "99999", "__metadata__"};
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text(kGood);
    const int changes = 1 + (int)(random() % 4);
    for (int k = 0; k < changes; ++k) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = (char)random();
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        case 2:
          text.insert(at, pieces[random() % (sizeof pieces / sizeof *pieces)]);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
      }
      if (text.empty()) text = "{";
    }
    Parsed parsed(text, 25);
    accepted += parsed.outcome().code == CHOIR_STATUS_OK;
    EXPECT_NE(parsed.outcome().code, CHOIR_STATUS_INTERNAL);
  }
  EXPECT_GT(accepted, 0);  // harmless changes: names and texts
}

TEST_F(Safetensors, NoMemoryIsAStatus) {
  int failures = 0;
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    Parsed parsed(kGood, 25);
    ScarceMemory::FailAt(0);
    if (!ScarceMemory::Failed()) {
      EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OK);
      break;
    }
    ++failures;
    EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OUT_OF_MEMORY);
  }
  EXPECT_EQ(failures, 3);
}

TEST_F(Safetensors, NamesOfDtypes) {
  EXPECT_STREQ(choir__safetensors_dtype(CHOIR_DTYPE_F32), "F32");
  EXPECT_STREQ(choir__safetensors_dtype(CHOIR_DTYPE_BF16), "BF16");
  EXPECT_STREQ(choir__safetensors_dtype(CHOIR_DTYPE_BOOL), "BOOL");
  EXPECT_EQ(choir__safetensors_dtype(CHOIR_DTYPE_COUNT), nullptr);
}

TEST_F(Safetensors, TheSumSeesContentsAndNotTheirPlaces) {
  auto sum = [](const std::string& text, uint64_t hash_a, uint64_t hash_b) {
    Parsed parsed(text, 8);
    EXPECT_EQ(parsed.outcome().code, CHOIR_STATUS_OK)
        << parsed.outcome().message;
    choir__safetensors_t header = parsed.header();
    for (size_t i = 0; i < header.count; ++i) {
      header.entries[i].hash =
          header.entries[i].entry.name[0] == 'a' ? hash_a : hash_b;
    }
    return choir__safetensors_sum(&header);
  };
  const std::string base =
      R"({"__metadata__":{"k":"v"},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const uint64_t wanted = sum(base, 1, 2);
  auto changed = [&base](const std::string& from, const std::string& to) {
    std::string text = base;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_EQ(sum(R"({"b":{"shape":[1],"dtype":"F32","data_offsets":[0,4]},)"
                R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                R"( "__metadata__":{"choir.sum":"anything","k":"v"}})",
                1, 2),
            wanted);
  EXPECT_NE(sum(base, 1, 3), wanted);
  EXPECT_NE(sum(base, 2, 1), wanted);
  EXPECT_NE(sum(changed("\"b\"", "\"c\""), 1, 2), wanted);
  EXPECT_NE(sum(changed("F32", "I32"), 1, 2), wanted);
  EXPECT_NE(sum(changed("[1]", "[1,1]"), 1, 2), wanted);
  EXPECT_NE(sum(changed("\"v\"", "\"w\""), 1, 2), wanted);
  EXPECT_NE(sum(changed("\"k\":\"v\"", ""), 1, 2), wanted);
}

}  // namespace
