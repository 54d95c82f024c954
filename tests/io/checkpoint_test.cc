// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const bool installed = ScarceMemory::Install();

// Named tensors with their row-major bytes.
class Tensors {
 public:
  explicit Tensors(const char* device) {
    EXPECT_OK(choir_device_create(device, nullptr, &device_));
  }
  ~Tensors() {
    for (const choir_named_tensor_t& each : list_) {
      choir_tensor_release(each.tensor);
    }
    choir_device_release(device_);
  }
  Tensors(const Tensors&) = delete;

  void Add(const char* name, choir_dtype_t dtype,
           const std::vector<int64_t>& shape, bool channels_last = false) {
    choir_view_t view;
    EXPECT_OK(
        choir_view_make(dtype, (int32_t)shape.size(), shape.data(), &view));
    if (channels_last) choir_view_set_channels_last(&view);
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_create_layout(device_, &view, &tensor));
    list_.push_back({name, tensor});
  }
  // Other values for each seed.
  void Fill(int seed) {
    for (const choir_named_tensor_t& each : list_) {
      std::string bytes(Bytes(each.tensor), 0);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = choir_tensor_dtype(each.tensor) == CHOIR_DTYPE_BOOL
                       ? (char)((i + (size_t)seed) % 2)
                       : (char)(i * 31 + (size_t)seed * 17 + list_.size());
      }
      if (bytes.empty()) continue;
      EXPECT_OK(choir_tensor_write(each.tensor, bytes.data(), bytes.size()));
    }
  }
  std::vector<std::string> Values() const {
    std::vector<std::string> values;
    for (const choir_named_tensor_t& each : list_) {
      std::string bytes(Bytes(each.tensor), 0);
      if (!bytes.empty()) {
        EXPECT_OK(choir_tensor_read(each.tensor, &bytes[0], bytes.size()));
      }
      values.push_back(bytes);
    }
    return values;
  }
  static size_t Bytes(choir_tensor_t* tensor) {
    return (size_t)choir_tensor_count(tensor) *
           choir_dtype_bytes(choir_tensor_dtype(tensor));
  }
  const choir_named_tensor_t* data() const { return list_.data(); }
  size_t size() const { return list_.size(); }

 private:
  choir_device_t* device_ = nullptr;
  std::vector<choir_named_tensor_t> list_;
};

void AddNet(Tensors* tensors) {
  tensors->Add("conv1.W", CHOIR_DTYPE_F32, {4, 1, 5, 5});
  tensors->Add("conv1.b", CHOIR_DTYPE_F32, {4});
  tensors->Add("opt.step", CHOIR_DTYPE_I64, {});
}

std::string Header(uint64_t bytes) {
  std::string text;
  for (int k = 0; k < 8; ++k) text.push_back((char)(bytes >> (8 * k)));
  return text;
}
// A safetensors file from a header and data.
std::string File(const std::string& header, const std::string& data) {
  return Header(header.size()) + header + data;
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override { EXPECT_EQ(ScarceMemory::Blocks(), blocks_); }

  choir_status_t Save(const std::string& path, const Tensors& tensors,
                      const std::vector<choir_metadata_t>& metadata = {}) {
    return choir_checkpoint_save(path.c_str(), tensors.data(), tensors.size(),
                                 metadata.data(), metadata.size());
  }
  // Opens and reads all tensors.
  Outcome Load(const std::string& path, const Tensors& tensors) {
    choir_checkpoint_t* checkpoint = nullptr;
    choir_status_t status = choir_checkpoint_open(path.c_str(), &checkpoint);
    EXPECT_EQ(checkpoint == nullptr, status != nullptr);
    if (!status) {
      status =
          choir_checkpoint_read_all(checkpoint, tensors.data(), tensors.size());
    }
    choir_checkpoint_destroy(checkpoint);
    return Take(status);
  }
  Outcome Open(const std::string& path) {
    choir_checkpoint_t* checkpoint = nullptr;
    Outcome outcome = Take(choir_checkpoint_open(path.c_str(), &checkpoint));
    EXPECT_EQ(checkpoint == nullptr, outcome.code != CHOIR_STATUS_OK);
    choir_checkpoint_destroy(checkpoint);
    return outcome;
  }

  TemporaryFolder folder_;
  size_t blocks_ = 0;
};

class CheckpointDevices : public Checkpoint,
                          public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Devices, CheckpointDevices,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) { return info.param; });

TEST_P(CheckpointDevices, EveryDtypeAndShapeComesBack) {
  auto add_all = [](Tensors* tensors) {
#define ADD_DTYPE_(ENUM, name, bytes, is_float)                \
  tensors->Add("dense." #name, CHOIR_DTYPE_##ENUM, {3, 5});    \
  tensors->Add("scalar." #name, CHOIR_DTYPE_##ENUM, {});       \
  tensors->Add("empty." #name, CHOIR_DTYPE_##ENUM, {4, 0, 2}); \
  tensors->Add("images." #name, CHOIR_DTYPE_##ENUM, {2, 3, 4, 5}, true);
    CHOIR_DTYPE_LIST(ADD_DTYPE_)
#undef ADD_DTYPE_
    tensors->Add("eight", CHOIR_DTYPE_F32, {1, 2, 1, 2, 1, 2, 1, 2});
    tensors->Add("odd \"name\"\\ \n \xc3\xa4", CHOIR_DTYPE_U8, {1});
  };
  const std::string path = folder_.Path("net.safetensors");
  Tensors saved(GetParam());
  add_all(&saved);
  saved.Fill(1);
  ASSERT_OK(Save(path, saved, {{"epoch", "3"}, {"note", "\"x\"\n"}}));
  EXPECT_THAT(folder_.Names(), UnorderedElementsAre("net.safetensors"));

  Tensors loaded(GetParam());
  add_all(&loaded);
  loaded.Fill(2);
  choir_checkpoint_t* checkpoint = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &checkpoint));
  EXPECT_TRUE(choir_checkpoint_is_verified(checkpoint));
  EXPECT_EQ(choir_checkpoint_count(checkpoint), saved.size());
  EXPECT_STREQ(choir_checkpoint_metadata(checkpoint, "epoch"), "3");
  EXPECT_STREQ(choir_checkpoint_metadata(checkpoint, "note"), "\"x\"\n");
  EXPECT_EQ(choir_checkpoint_metadata(checkpoint, "nothing"), nullptr);
  EXPECT_EQ(choir_checkpoint_metadata_count(checkpoint), 4u);
  EXPECT_STREQ(choir_checkpoint_metadata_get(checkpoint, 0).key,
               "choir.format");
  EXPECT_STREQ(choir_checkpoint_metadata_get(checkpoint, 2).key, "epoch");
  EXPECT_EQ(choir_checkpoint_metadata_get(checkpoint, 4).key, nullptr);
  const choir_checkpoint_entry_t* entry =
      choir_checkpoint_find(checkpoint, "images.f16");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->dtype, CHOIR_DTYPE_F16);
  EXPECT_EQ(entry->ndim, 4);
  EXPECT_EQ(entry->shape[3], 5);
  EXPECT_EQ(entry->bytes, 240u);
  EXPECT_EQ(choir_checkpoint_find(checkpoint, "images"), nullptr);
  EXPECT_STREQ(choir_checkpoint_get(checkpoint, 0)->name, "dense.f64");
  EXPECT_EQ(choir_checkpoint_get(checkpoint, saved.size()), nullptr);
  EXPECT_OK(
      choir_checkpoint_read_all(checkpoint, loaded.data(), loaded.size()));
  choir_checkpoint_destroy(checkpoint);
  choir_checkpoint_destroy(nullptr);
  EXPECT_EQ(loaded.Values(), saved.Values());
}

// The format is what it was yesterday: these bytes must not change.
TEST_F(Checkpoint, TheBytesOfAFile) {
  Tensors tensors("cpu");
  tensors.Add("b", CHOIR_DTYPE_U8, {2});
  tensors.Add("w", CHOIR_DTYPE_F32, {2});
  const float w[] = {1.0f, -2.0f};
  const uint8_t b[] = {7, 9};
  EXPECT_OK(choir_tensor_write(tensors.data()[0].tensor, b, sizeof b));
  EXPECT_OK(choir_tensor_write(tensors.data()[1].tensor, w, sizeof w));
  ASSERT_OK(Save(folder_.Path("file"), tensors, {{"epoch", "3"}}));
  const std::string header =
      R"({"__metadata__":{"choir.format":"1","choir.sum":"SUMSUMSUMSUMSUM!",)"
      R"("epoch":"3"},)"
      R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
  const std::string data("\0\0\x80\x3f\0\0\0\xc0\x07\x09", 10);
  std::string wanted =
      File(header + std::string((8 - header.size() % 8) % 8, ' '), data);
  wanted.replace(wanted.find("SUM"), 16, "397db965e1110267");
  EXPECT_EQ(folder_.Read("file"), wanted);
}

TEST_F(Checkpoint, AnEmptyListIsAFileToo) {
  ASSERT_OK(choir_checkpoint_save(folder_.Path("file").c_str(), nullptr, 0,
                                  nullptr, 0));
  choir_checkpoint_t* checkpoint = nullptr;
  ASSERT_OK(choir_checkpoint_open(folder_.Path("file").c_str(), &checkpoint));
  EXPECT_EQ(choir_checkpoint_count(checkpoint), 0u);
  EXPECT_TRUE(choir_checkpoint_is_verified(checkpoint));
  choir_checkpoint_destroy(checkpoint);
}

TEST_F(Checkpoint, ANameWithoutFolderIsInTheCurrentOne) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof before), nullptr);
  ASSERT_EQ(chdir(folder_.path().c_str()), 0);
  EXPECT_OK(Save("here", tensors));
  EXPECT_EQ(Load("here", tensors).code, CHOIR_STATUS_OK);
  ASSERT_EQ(chdir(before), 0);
  EXPECT_THAT(folder_.Names(), UnorderedElementsAre("here"));
}

TEST_F(Checkpoint, AnotherModelIsTold) {
  const std::string path = folder_.Path("net");
  Tensors saved("cpu");
  AddNet(&saved);
  saved.Fill(1);
  ASSERT_OK(Save(path, saved));

  Tensors other("cpu");
  other.Add("conv1.b", CHOIR_DTYPE_F32, {4});
  other.Add("conv1.W", CHOIR_DTYPE_F32, {32, 1, 3, 3});
  other.Fill(2);
  const std::vector<std::string> before = other.Values();
  Outcome outcome = Load(path, other);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("'conv1.W'"), HasSubstr("f32 (4, 1, 5, 5)"),
                    HasSubstr("f32 (32, 1, 3, 3)"), HasSubstr(path),
                    HasSubstr("checkpoint of another model")));
  // The tensor that would have fitted was not touched either.
  EXPECT_EQ(other.Values(), before);

  Tensors dtype("cpu");
  dtype.Add("conv1.b", CHOIR_DTYPE_I32, {4});
  outcome = Load(path, dtype);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("f32 (4)"), HasSubstr("i32 (4)")));
  Tensors ndim("cpu");
  ndim.Add("opt.step", CHOIR_DTYPE_I64, {1});
  EXPECT_THAT(Load(path, ndim).message,
              AllOf(HasSubstr("i64 ()"), HasSubstr("i64 (1)")));
  Tensors missing("cpu");
  missing.Add("conv2.W", CHOIR_DTYPE_F32, {4});
  outcome = Load(path, missing);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_NOT_FOUND);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("'conv2.W'"), HasSubstr("another model")));
}

TEST_F(Checkpoint, WhatCannotBeSaved) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  const std::string path = folder_.Path("net");
  IO_EXPECT_FAILS(Save(path, tensors, {{"choir.mine", "x"}}), INVALID_ARGUMENT,
                  AllOf(HasSubstr("'choir.mine'"), HasSubstr(path)));
  IO_EXPECT_FAILS(Save(path, tensors, {{nullptr, "x"}}), INVALID_ARGUMENT,
                  HasSubstr("metadata 0"));
  choir_named_tensor_t none = {"w", nullptr};
  IO_EXPECT_FAILS(choir_checkpoint_save(path.c_str(), &none, 1, nullptr, 0),
                  INVALID_ARGUMENT, HasSubstr("tensor 0 is NULL"));
  IO_EXPECT_FAILS(choir_checkpoint_save(path.c_str(), nullptr, 1, nullptr, 0),
                  INVALID_ARGUMENT, HasSubstr("1 tensors"));
  IO_EXPECT_FAILS(choir_checkpoint_save(nullptr, nullptr, 0, nullptr, 0),
                  INVALID_ARGUMENT, HasSubstr("(null)"));
  IO_EXPECT_FAILS(Save("", tensors), INVALID_ARGUMENT, HasSubstr("''"));
  IO_EXPECT_FAILS(Save(folder_.path() + "/", tensors), INVALID_ARGUMENT,
                  HasSubstr("names a folder"));
  IO_EXPECT_FAILS(Save(std::string(5000, 'x') + "/y", tensors),
                  INVALID_ARGUMENT, HasSubstr("longer"));
  IO_EXPECT_FAILS(Save(folder_.Path(std::string(300, 'x')), tensors),
                  FAILED_PRECONDITION, HasSubstr("name too long"));
  IO_EXPECT_FAILS(Save(folder_.Path("nowhere") + "/net", tensors), NOT_FOUND,
                  AllOf(HasSubstr("nowhere"), HasSubstr("No such file")));
  // A folder stands where the file should be.
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  IO_EXPECT_FAILS(Save(path, tensors), FAILED_PRECONDITION,
                  HasSubstr("directory"));
  EXPECT_THAT(folder_.Names(), UnorderedElementsAre("net"));
}

TEST_F(Checkpoint, WhatCannotBeOpened) {
  const std::string missing = folder_.Path("missing");
  Outcome outcome = Open(missing);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_NOT_FOUND);
  EXPECT_THAT(outcome.message, HasSubstr(missing));
  EXPECT_EQ(Open(folder_.path()).code, CHOIR_STATUS_INVALID_ARGUMENT);
  ASSERT_EQ(mkfifo(folder_.Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Open(folder_.Path("pipe")).code, CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(Open("/dev/zero").code, CHOIR_STATUS_INVALID_ARGUMENT);
  choir_checkpoint_t* checkpoint = nullptr;
  IO_EXPECT_FAILS(choir_checkpoint_open(nullptr, &checkpoint), INVALID_ARGUMENT,
                  HasSubstr("NULL"));
  const uint64_t lengths[] = {
      1,          3,          100,        1ull << 24,
      1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
  for (uint64_t length : lengths) {
    const std::string path = folder_.Write("length", Header(length) + "{}");
    outcome = Open(path);
    EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT) << length;
    EXPECT_THAT(outcome.message, HasSubstr(path));
  }
  // A header of honest length that nobody should parse.
  std::string large = Header(17 << 20);
  large.resize(large.size() + (17 << 20), ' ');
  outcome = Open(folder_.Write("large", large));
  EXPECT_THAT(outcome.message, HasSubstr("are allowed"));
}

TEST_F(Checkpoint, TruncatedAnywhere) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  ASSERT_OK(Save(folder_.Path("net"), tensors));
  const std::string bytes = folder_.Read("net");
  for (size_t length = 0; length < bytes.size(); ++length) {
    Outcome outcome = Open(folder_.Write("cut", bytes.substr(0, length)));
    ASSERT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT) << length;
  }
  EXPECT_EQ(Open(folder_.Write("long", bytes + "x")).code,
            CHOIR_STATUS_INVALID_ARGUMENT);
}

TEST_F(Checkpoint, EveryChangedByteIsNoticed) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  ASSERT_OK(Save(folder_.Path("net"), tensors, {{"epoch", "3"}}));
  const std::string bytes = folder_.Read("net");
  for (size_t at = 0; at < bytes.size(); ++at) {
    // One bit of each byte, and the one between capitals and small letters.
    for (int mask : {1 << (at % 8), 0x20}) {
      std::string damaged = bytes;
      damaged[at] = (char)(damaged[at] ^ mask);
      Outcome outcome = Open(folder_.Write("damaged", damaged));
      ASSERT_NE(outcome.code, CHOIR_STATUS_OK) << "byte " << at << ", " << mask;
    }
  }
  std::string damaged = bytes;
  damaged[bytes.size() - 1] ^= 1;
  EXPECT_THAT(Open(folder_.Write("damaged", damaged)).message,
              HasSubstr("is damaged: the sum"));
}

TEST_F(Checkpoint, RandomDamageIsNeverMoreThanAFailure) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  ASSERT_OK(Save(folder_.Path("net"), tensors));
  // With the sum, and without it, where more gets through.
  const std::string summed = folder_.Read("net");
  const std::string plain = File(
      R"({"conv1.W":{"dtype":"F32","shape":[4,1,5,5],"data_offsets":[0,400]},)"
      R"("flags":{"dtype":"BOOL","shape":[4],"data_offsets":[400,404]}})",
      std::string(404, 1));
  Tensors target("cpu");
  target.Add("conv1.W", CHOIR_DTYPE_F32, {4, 1, 5, 5});
  target.Add("flags", CHOIR_DTYPE_BOOL, {4});
  EXPECT_EQ(Load(folder_.Write("plain", plain), target).code, CHOIR_STATUS_OK);
  std::mt19937 random(11);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = round % 2 ? plain : summed;
    const int changes = 1 + (int)(random() % 3);
    for (int k = 0; k < changes && !bytes.empty(); ++k) {
      // Mostly in the header, where there is more to break.
      const size_t range =
          random() % 4 ? std::min<size_t>(bytes.size(), 200) : bytes.size();
      const size_t at = random() % range;
      switch (random() % 4) {
        case 0:
          bytes[at] = (char)random();
          break;
        case 1:
          bytes[at] = "{}[]\",:019eE-.\\"[random() % 15];
          break;
        case 2:
          bytes.erase(at, random() % 20);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 9));
      }
    }
    Outcome outcome = Load(folder_.Write("damaged", bytes), target);
    accepted += outcome.code == CHOIR_STATUS_OK;
    EXPECT_NE(outcome.code, CHOIR_STATUS_INTERNAL) << outcome.message;
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(Checkpoint, AFileOfAnotherProgramOpensWithoutSum) {
  const std::string path = folder_.Write(
      "plain",
      File(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )",
           "xyz"));
  Tensors tensors("cpu");
  tensors.Add("a", CHOIR_DTYPE_U8, {3});
  EXPECT_EQ(Load(path, tensors).code, CHOIR_STATUS_OK);
  EXPECT_EQ(tensors.Values()[0], "xyz");
  choir_checkpoint_t* checkpoint = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &checkpoint));
  EXPECT_FALSE(choir_checkpoint_is_verified(checkpoint));
  EXPECT_EQ(choir_checkpoint_metadata_count(checkpoint), 0u);
  choir_checkpoint_destroy(checkpoint);
}

// Adam's states were called mean and square.
TEST_F(Checkpoint, FormerNamesOfStatesAreRead) {
  const std::string path = folder_.Write(
      "former",
      File(
          R"({"fc/mean":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
          R"("rank1/fc/square":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
          "abcd"));
  Tensors tensors("cpu");
  tensors.Add("fc/exp_avg", CHOIR_DTYPE_U8, {2});
  tensors.Add("rank1/fc/exp_avg_sq", CHOIR_DTYPE_U8, {2});
  EXPECT_EQ(Load(path, tensors).code, CHOIR_STATUS_OK);
  EXPECT_THAT(tensors.Values(), ::testing::ElementsAre("ab", "cd"));
  choir_checkpoint_t* checkpoint = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &checkpoint));
  for (const char* name :
       {"fc/exp_avg_sq", "f/exp_avg", "c/exp_avg", "exp_avg", "/exp_avg"})
    EXPECT_EQ(choir_checkpoint_find(checkpoint, name), nullptr) << name;
  choir_checkpoint_destroy(checkpoint);
}

TEST_F(Checkpoint, OurOwnFileMustHaveItsSum) {
  EXPECT_THAT(
      Open(folder_.Write("lost",
                         File(R"({"__metadata__":{"choir.format":"1"}})", "")))
          .message,
      HasSubstr("has lost its sum"));
  Outcome outcome = Open(folder_.Write(
      "later",
      File(R"({"__metadata__":{"choir.format":"2","choir.sum":"00"}})", "")));
  EXPECT_EQ(outcome.code, CHOIR_STATUS_UNIMPLEMENTED);
  EXPECT_THAT(outcome.message, HasSubstr("format '2'"));
}

TEST_F(Checkpoint, BoolsAreZeroOrOne) {
  Tensors tensors("cpu");
  tensors.Add("flags", CHOIR_DTYPE_BOOL, {4});
  tensors.Fill(0);
  const std::vector<std::string> before = tensors.Values();
  Outcome outcome = Load(
      folder_.Write(
          "file",
          File(R"({"flags":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})",
               std::string("\0\1\7\0", 4))),
      tensors);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("'flags'"), HasSubstr("element 2 is 7")));
  EXPECT_EQ(tensors.Values(), before);
}

// ---- Faults ----

// No file may grow beyond `bytes`, as if the disk were full there.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  struct rlimit before_;
};

TEST_F(Checkpoint, AFullDiskLeavesTheOldFileAndNothingElse) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  const std::string path = folder_.Path("net");
  ASSERT_OK(Save(path, tensors));
  const std::string old_bytes = folder_.Read("net");
  tensors.Fill(2);
  for (size_t limit = 0; limit < old_bytes.size(); limit += 7) {
    Outcome outcome;
    {
      FileLimit full(limit);
      outcome = Take(Save(path, tensors));
    }
    ASSERT_EQ(outcome.code, CHOIR_STATUS_FAILED_PRECONDITION)
        << limit << outcome.message;
    EXPECT_THAT(outcome.message,
                AllOf(HasSubstr(path), HasSubstr("File too large")));
    ASSERT_THAT(folder_.Names(), UnorderedElementsAre("net"));
    ASSERT_EQ(folder_.Read("net"), old_bytes);
  }
  ASSERT_OK(Save(path, tensors));
  EXPECT_NE(folder_.Read("net"), old_bytes);
}

TEST_F(Checkpoint, NoMemoryLeavesNothingBehind) {
  const std::string path = folder_.Path("net");
  const std::string other = folder_.Path("other");
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  ASSERT_OK(Save(path, tensors));
  const size_t blocks = ScarceMemory::Blocks();
  int failures = 0;
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    choir_status_t status = Save(other, tensors, {{"k", "v"}});
    ScarceMemory::FailAt(0);
    const bool failed = ScarceMemory::Failed();
    EXPECT_EQ(choir_status_code(status),
              failed ? CHOIR_STATUS_OUT_OF_MEMORY : CHOIR_STATUS_OK);
    choir_status_free(status);
    ASSERT_EQ(ScarceMemory::Blocks(), blocks);
    if (!failed) break;
    ++failures;
    ASSERT_THAT(folder_.Names(), UnorderedElementsAre("net"));
  }
  EXPECT_GE(failures, 6);
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    Outcome outcome = Load(path, tensors);
    ScarceMemory::FailAt(0);
    ASSERT_EQ(ScarceMemory::Blocks(), blocks);
    if (!ScarceMemory::Failed()) {
      EXPECT_EQ(outcome.code, CHOIR_STATUS_OK);
      break;
    }
    EXPECT_EQ(outcome.code, CHOIR_STATUS_OUT_OF_MEMORY);
  }
}

TEST_F(Checkpoint, ALeftoverTemporaryIsNoObstacle) {
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  for (int k = 0; k < 200; ++k) {
    folder_.Write(".choir-" + std::to_string(getpid()) + "-" +
                      std::to_string(k * 2) + ".tmp",
                  "left");
  }
  ASSERT_OK(Save(folder_.Path("net"), tensors));
  EXPECT_EQ(Load(folder_.Path("net"), tensors).code, CHOIR_STATUS_OK);
}

// Whoever looks sees a whole file, whatever happens to the writers.
TEST_F(Checkpoint, AKilledWriterLeavesAWholeFile) {
  const std::string path = folder_.Path("net");
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Add("large", CHOIR_DTYPE_F32, {300000});
  tensors.Fill(1);
  ASSERT_OK(Save(path, tensors));
  for (int round = 0; round < 10; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      for (;;) choir_status_free(Save(path, tensors));
    }
    usleep((useconds_t)(2000 + 1500 * round));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    Outcome outcome = Load(path, tensors);
    ASSERT_EQ(outcome.code, CHOIR_STATUS_OK) << outcome.message;
  }
}

TEST_F(Checkpoint, ThreadsMaySaveToOneNameAtOnce) {
  const std::string path = folder_.Path("net");
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([this, &path, k] {
      Tensors tensors("cpu");
      AddNet(&tensors);
      tensors.Fill(k);
      for (int round = 0; round < 10; ++round) {
        EXPECT_OK(Save(path, tensors));
        EXPECT_EQ(Open(path).code, CHOIR_STATUS_OK);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(folder_.Names(), UnorderedElementsAre("net"));
}

// Replacing a file does not disturb who has it open.
TEST_F(Checkpoint, AnOpenFileMayBeReplaced) {
  const std::string path = folder_.Path("net");
  Tensors tensors("cpu");
  AddNet(&tensors);
  tensors.Fill(1);
  const std::vector<std::string> wanted = tensors.Values();
  ASSERT_OK(Save(path, tensors));
  choir_checkpoint_t* checkpoint = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &checkpoint));
  tensors.Fill(2);
  ASSERT_OK(Save(path, tensors));
  EXPECT_OK(
      choir_checkpoint_read_all(checkpoint, tensors.data(), tensors.size()));
  choir_checkpoint_destroy(checkpoint);
  EXPECT_EQ(tensors.Values(), wanted);
}

// ---- Other programs ----

// Python with nothing but its standard library, following the published
// format.
const char kReader[] = R"py(
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
assert (8 + length) % 8 == 0
header = json.loads(data[8 : 8 + length])
body = data[8 + length :]
metadata = header.pop("__metadata__")
assert all(type(v) is str for v in metadata.values())
print(metadata["epoch"])
place = 0
for name, entry in header.items():
    begin, end = entry["data_offsets"]
    assert begin == place
    place = end
    count = 1
    for size in entry["shape"]:
        count *= size
    form = {"F32": "f", "I64": "q"}[entry["dtype"]]
    values = struct.unpack("<%d%s" % (count, form), body[begin:end])
    print(name, entry["shape"], values)
assert place == len(body)
)py";

TEST_F(Checkpoint, PythonReadsIt) {
  if (system("python3 -c 'import json' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "python3 is not installed";
  }
  Tensors tensors("cpu");
  tensors.Add("w", CHOIR_DTYPE_F32, {2, 2});
  tensors.Add("step", CHOIR_DTYPE_I64, {});
  const float w[] = {1, 2.5, -3, 0};
  const int64_t step = -7;
  EXPECT_OK(choir_tensor_write(tensors.data()[0].tensor, w, sizeof w));
  EXPECT_OK(choir_tensor_write(tensors.data()[1].tensor, &step, sizeof step));
  ASSERT_OK(Save(folder_.Path("net"), tensors, {{"epoch", "3 \"x\""}}));
  const std::string command = "python3 " + folder_.Write("reader.py", kReader) +
                              " " + folder_.Path("net") + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char line[256];
  while (fgets(line, sizeof line, pipe)) output += line;
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(output,
            "3 \"x\"\n"
            "step [] (-7,)\n"
            "w [2, 2] (1.0, 2.5, -3.0, 0.0)\n");
}

}  // namespace
