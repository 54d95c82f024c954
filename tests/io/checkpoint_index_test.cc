// SPDX-License-Identifier: Apache-2.0
// Tensors in several files by an index, beside the same ones in one file.
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "io/checkpoint.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

const char kIndex[] = "model.safetensors.index.json";

struct Row {
  std::string name;
  std::vector<float> values;
};

// A safetensors file of f32 rows, as others write it.
std::string File(const std::vector<Row>& rows) {
  std::string header, data;
  for (const Row& row : rows) {
    const size_t bytes = row.values.size() * sizeof(float);
    header += (header.empty() ? "{\"" : ",\"") + row.name +
              "\":{\"dtype\":\"F32\",\"shape\":[" +
              std::to_string(row.values.size()) + "],\"data_offsets\":[" +
              std::to_string(data.size()) + "," +
              std::to_string(data.size() + bytes) + "]}";
    data.append(reinterpret_cast<const char*>(row.values.data()), bytes);
  }
  header += "}";
  const uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), 8) + header + data;
}

const std::vector<Row> kRows = {{"h.0.w", {1, -2, 3.5f}},
                                {"h.1.w", {4, 5}},
                                {"wte", {6, 7.25f, 8, 9}},
                                {"ln_f", {-10}}};

class CheckpointIndex : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
    ASSERT_OK(choir_device_create("cpu", nullptr, &device_));
    folder_.Write("whole.safetensors", File(kRows));
    // Neither by name nor as the map has them.
    folder_.Write("a.safetensors", File({kRows[2], kRows[0]}));
    folder_.Write("b.safetensors", File({kRows[3], kRows[1]}));
  }
  void TearDown() override {
    choir_device_release(device_);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }

  std::string WriteIndex(const std::string& map,
                         const std::string& name = kIndex) {
    return folder_.Write(
        name, R"({"metadata":{"total_size":40.0},"weight_map":)" + map + "}");
  }
  std::string WriteGoodIndex() {
    return WriteIndex(R"({"ln_f":"b.safetensors","h.0.w":"a.safetensors",)"
                      R"("wte":"a.safetensors","h.1.w":"b.safetensors"})");
  }
  // All tensors by their names.
  choir_status_t Read(const std::string& path,
                      std::map<std::string, std::vector<float>>* out) {
    choir_checkpoint_t* file = nullptr;
    choir_status_t status = choir_checkpoint_open(path.c_str(), &file);
    EXPECT_EQ(file == nullptr, status != nullptr);
    for (size_t i = 0; !status && i < choir_checkpoint_count(file); ++i) {
      const choir_checkpoint_entry_t* entry = choir_checkpoint_get(file, i);
      EXPECT_EQ(choir_checkpoint_find(file, entry->name), entry);
      choir_tensor_t* tensor = nullptr;
      EXPECT_OK(choir_tensor_create(device_, entry->dtype, entry->ndim,
                                    entry->shape, &tensor));
      status = choir_checkpoint_read(file, entry->name, tensor);
      std::vector<float> values(entry->bytes / sizeof(float));
      EXPECT_OK(choir_tensor_read(tensor, values.data(), entry->bytes));
      choir_tensor_release(tensor);
      (*out)[entry->name] = values;
    }
    choir_checkpoint_destroy(file);
    return status;
  }
  void Fails(const std::string& map, choir_status_code_t code,
             const std::vector<std::string>& parts) {
    SCOPED_TRACE(map);
    std::map<std::string, std::vector<float>> found;
    const Outcome outcome = Take(Read(WriteIndex(map), &found));
    EXPECT_EQ(outcome.code, code) << outcome.message;
    for (const std::string& part : parts)
      EXPECT_THAT(outcome.message, HasSubstr(part));
    EXPECT_THAT(outcome.message, HasSubstr(kIndex));
  }

  TemporaryFolder folder_;
  choir_device_t* device_ = nullptr;
  size_t blocks_ = 0;
};

TEST_F(CheckpointIndex, IsAsOneFile) {
  std::map<std::string, std::vector<float>> want, found, of_folder;
  ASSERT_OK(Read(folder_.Path("whole.safetensors"), &want));
  ASSERT_EQ(want.size(), kRows.size());
  for (const Row& row : kRows) EXPECT_EQ(want[row.name], row.values);
  const std::string path = WriteGoodIndex();
  ASSERT_OK(Read(path, &found));
  EXPECT_EQ(found, want);
  ASSERT_OK(Read(folder_.path(), &of_folder));
  EXPECT_EQ(of_folder, want);

  choir_checkpoint_t* file = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &file));
  EXPECT_FALSE(choir_checkpoint_is_verified(file));
  EXPECT_EQ(choir_checkpoint_metadata_count(file), 0u);
  EXPECT_EQ(choir_checkpoint_find(file, "h.2.w"), nullptr);
  EXPECT_STREQ(choir_checkpoint_get(file, 0)->name, "h.0.w");
  EXPECT_STREQ(choir_checkpoint_get(file, 2)->name, "h.1.w");
  EXPECT_EQ(choir_checkpoint_get(file, 4), nullptr);
  choir_checkpoint_destroy(file);

  // A folder's single file goes before its index.
  folder_.Write("model.safetensors", File({kRows[1]}));
  of_folder.clear();
  ASSERT_OK(Read(folder_.path() + "/", &of_folder));
  EXPECT_EQ(of_folder.size(), 1u);
  EXPECT_EQ(of_folder["h.1.w"], kRows[1].values);
}

TEST_F(CheckpointIndex, OfTheCurrentFolderAndOfLinks) {
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof before), nullptr);
  WriteGoodIndex();
  ASSERT_EQ(chdir(folder_.path().c_str()), 0);
  // As Hugging Face's cache has them.
  ASSERT_EQ(rename("a.safetensors", "blob"), 0);
  ASSERT_EQ(symlink("blob", "a.safetensors"), 0);
  std::map<std::string, std::vector<float>> found;
  EXPECT_OK(Read(kIndex, &found));
  EXPECT_EQ(found.size(), 4u);
  ASSERT_EQ(chdir(before), 0);
}

TEST_F(CheckpointIndex, OfVerifiedFiles) {
  const int64_t shape[] = {2};
  const float values[][2] = {{1, 2}, {3, 4}};
  for (int i = 0; i < 2; ++i) {
    choir_named_tensor_t named = {i ? "b" : "a", nullptr};
    ASSERT_OK(choir_tensor_from_data(device_, CHOIR_DTYPE_F32, 1, shape,
                                     values[i], &named.tensor));
    ASSERT_OK(choir_checkpoint_save(folder_.Path(named.name).c_str(), &named, 1,
                                    nullptr, 0));
    choir_tensor_release(named.tensor);
  }
  const std::string path = WriteIndex(R"({"a":"a","b":"b"})");
  choir_checkpoint_t* file = nullptr;
  ASSERT_OK(choir_checkpoint_open(path.c_str(), &file));
  EXPECT_TRUE(choir_checkpoint_is_verified(file));
  choir_checkpoint_destroy(file);
  std::string bytes = folder_.Read("b");
  bytes.back() ^= 1;
  folder_.Write("b", bytes);
  Fails(R"({"a":"a","b":"b"})", CHOIR_STATUS_INVALID_ARGUMENT,
        {"/b' is damaged"});
}

TEST_F(CheckpointIndex, NamesOfFilesArePlain) {
  for (const char* file :
       {"", ".", "..", "../a.safetensors", "/etc/passwd", "./a.safetensors",
        "a.safetensors/", "x/a.safetensors"})
    Fails(std::string(R"({"wte":")") + file + "\"}",
          CHOIR_STATUS_INVALID_ARGUMENT,
          {"tensor 'wte' in '" + std::string(file) + "'", "plain name"});
  Fails(R"({"wte":3})", CHOIR_STATUS_INVALID_ARGUMENT, {"'wte'", "no text"});
  Fails("{\"wte\":\"" + std::string(5000, 'x') + "\"}",
        CHOIR_STATUS_INVALID_ARGUMENT, {"a path of 4096 bytes"});
}

TEST_F(CheckpointIndex, FilesHaveWhatIsPlacedInThem) {
  Fails(R"({"wte":"a.safetensors","h.0.w":"c.safetensors"})",
        CHOIR_STATUS_INVALID_ARGUMENT,
        {"a.safetensors' has tensor 'h.0.w'", "does not place there"});
  Fails(R"({"wte":"a.safetensors","h.0.w":"a.safetensors","x":"c.bin"})",
        CHOIR_STATUS_NOT_FOUND, {"cannot open '", "c.bin'"});
  Fails(R"({"wte":"a.safetensors","h.0.w":"a.safetensors",)"
        R"("x":"a.safetensors"})",
        CHOIR_STATUS_INVALID_ARGUMENT,
        {"tensor 'x' in '", "a.safetensors', which does not have it"});
  Fails(R"({"wte":"a.safetensors"})", CHOIR_STATUS_INVALID_ARGUMENT,
        {"a.safetensors' has tensor 'h.0.w'", "does not place there"});
  folder_.Write("other", File({kRows[1], kRows[3]}));
  Fails(R"({"ln_f":"b.safetensors","h.1.w":"b.safetensors",)"
        R"("h.1.w":"other","ln_f":"other"})",
        CHOIR_STATUS_INVALID_ARGUMENT, {"tensor 'h.1.w' twice"});
  Fails(R"({"ln_f":"b.safetensors","ln_f":"b.safetensors"})",
        CHOIR_STATUS_INVALID_ARGUMENT, {"tensor 'ln_f' twice"});
  folder_.Write("broken", File({kRows[1]}).substr(0, 70));
  Fails(R"({"h.1.w":"broken"})", CHOIR_STATUS_INVALID_ARGUMENT, {"broken'"});
  // An index is no file of tensors.
  Fails(std::string("{\"w\":\"") + kIndex + "\"}",
        CHOIR_STATUS_INVALID_ARGUMENT, {"claims a header"});
}

TEST_F(CheckpointIndex, TextsThatAreNone) {
  const std::string deep = "{\"weight_map\":{\"w\":[[[1]]]}}";
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, const char*>>{
           {"", "the index does not begin"},
           {"[]", "the index does not begin"},
           {"{", "the index is no JSON"},
           {"{}", "has 0 entries 'weight_map'"},
           {R"({"weight_map":[]})", "which has a file for each tensor"},
           {R"({"weight_map":{},"weight_map":{}})", "has 2 entries"},
           {deep, "the index nests deeper"},
           {"{\"weight_map\":{\"\xff\":\"a\"}}", "is not UTF-8"},
           {std::string("{\0}", 3), "a NUL"},
           {std::string((16 << 20) + 1, ' '), "are allowed"}}) {
    std::map<std::string, std::vector<float>> found;
    IO_EXPECT_FAILS(Read(folder_.Write(kIndex, text), &found), INVALID_ARGUMENT,
                    AllOf(HasSubstr(part), HasSubstr(kIndex)));
  }
  std::map<std::string, std::vector<float>> none;
  EXPECT_OK(Read(WriteIndex("{}"), &none));
  EXPECT_TRUE(none.empty());
  unlink(folder_.Path(kIndex).c_str());
  IO_EXPECT_FAILS(Read(folder_.path(), &none), INVALID_ARGUMENT,
                  AllOf(HasSubstr(folder_.path()), HasSubstr("is a folder"),
                        HasSubstr(kIndex)));
  IO_EXPECT_FAILS(Read(folder_.Path(kIndex), &none), NOT_FOUND,
                  HasSubstr(kIndex));
}

TEST_F(CheckpointIndex, MemoryAndFilesComeBack) {
  const std::string path = WriteGoodIndex();
  const int next = dup(0);  // the lowest number that is free
  close(next);
  int refused = 0;
  for (int n = 1; refused == n - 1; ++n) {
    choir_checkpoint_t* file = nullptr;
    ScarceMemory::FailAt(n);
    const Outcome outcome = Take(choir_checkpoint_open(path.c_str(), &file));
    ScarceMemory::FailAt(0);
    choir_checkpoint_destroy(file);
    if (!ScarceMemory::Failed()) continue;
    ++refused;
    EXPECT_EQ(outcome.code, CHOIR_STATUS_OUT_OF_MEMORY) << outcome.message;
  }
  EXPECT_GE(refused, 16);  // blocks of the index and of two files
  const int after = dup(0);
  close(after);
  EXPECT_EQ(after, next);
}

}  // namespace
