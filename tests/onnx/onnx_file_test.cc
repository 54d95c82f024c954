// SPDX-License-Identifier: Apache-2.0
// What is wrong with a file is said in a sentence, before anything runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::File;
using choir::testing::OnnxPtr;

File Relu() {
  File file;
  file.Input("x", 1, {-1, 2}).Node("Relu", "x", "y").Output("y");
  return file;
}

TEST(OnnxFile, EveryTruncationIsRefused) {
  const bytes_t bytes = Relu().Bytes();
  for (size_t size = 0; size < bytes.size; ++size) {
    choir_onnx_t* onnx = nullptr;
    choir_status_t status = choir_onnx_parse(bytes.data, size, nullptr, &onnx);
    EXPECT_TRUE(status && !onnx) << size;
    choir_status_free(status);
    choir_onnx_release(onnx);
  }
}

TEST(OnnxFile, NamesStandForOneValue) {
  EXPECT_STATUS(INVALID_ARGUMENT, "'z', which nothing before it gives",
                Relu().Node("Relu", "z", "w").Fail());
  EXPECT_STATUS(INVALID_ARGUMENT, "'y' is given twice",
                Relu().Node("Relu", "x", "y").Fail());
  EXPECT_STATUS(INVALID_ARGUMENT, "'x' is given twice",
                Relu().Input("x", 1, {2}).Fail());
  EXPECT_STATUS(INVALID_ARGUMENT, "'w' is given twice",
                Relu().Ints("w", {1}).Ints("w", {2}).Fail());
  EXPECT_STATUS(INVALID_ARGUMENT, "nothing gives the graph's result 'v'",
                Relu().Output("v").Fail());
}

TEST(OnnxFile, AllOperatorsThatAreNotThereAreNamed) {
  File file = Relu();
  file.Node("Florble", "y", "z").Node("Relu", "z", "w");
  put_node(&file.graph, 1, "com.example", "Gnarl", "w", "v", nullptr);
  EXPECT_STATUS(UNIMPLEMENTED, "2 operators: Florble of ai.onnx 18",
                file.Fail());
  EXPECT_STATUS(UNIMPLEMENTED, "Gnarl of com.example 1", file.Fail());
}

TEST(OnnxFile, VersionsAreThoseThatAreKnown) {
  EXPECT_STATUS(UNIMPLEMENTED, "knows those up to 28", Relu().Fail(29));
  EXPECT_STATUS(INVALID_ARGUMENT, "begin with 1", Relu().Fail(0));
  bytes_t bytes = {0, {0}};
  put_int(&bytes, 1, 8);
  const File file = Relu();
  put_part(&bytes, 7, &file.graph);
  choir_onnx_t* onnx = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "of which version",
                choir_onnx_parse(bytes.data, bytes.size, nullptr, &onnx));
}

// f calls g twice, g calls h twice, and so on: 2^30 nodes.
TEST(OnnxFile, FunctionsAreWrittenOutWithinLimits) {
  File file = Relu();
  put_node(&file.graph, 1, "local", "a", "x", "z", nullptr);
  for (char name = 'a'; name < 'a' + 30; ++name) {
    const std::string callee(1, static_cast<char>(name + 1));
    bytes_t nodes = {0, {0}};
    put_node(&nodes, 7, "local", callee.c_str(), "p", "q", nullptr);
    put_node(&nodes, 7, "local", callee.c_str(), "q", "r", nullptr);
    onnx_function(&file.functions, std::string(1, name).c_str(), "p", "r",
                  &nodes);
  }
  bytes_t last = {0, {0}};
  put_node(&last, 7, "", "Relu", "p", "r", nullptr);
  onnx_function(&file.functions, "\x7f", "p", "r", &last);
  EXPECT_STATUS(INVALID_ARGUMENT, "functions written out", file.Fail());
}

TEST(OnnxFile, AFunctionThatCallsItselfIsRefused) {
  File file = Relu();
  bytes_t nodes = {0, {0}};
  put_node(&nodes, 7, "local", "f", "p", "r", nullptr);
  onnx_function(&file.functions, "f", "p", "r", &nodes);
  put_node(&file.graph, 1, "local", "f", "x", "z", nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT, "calls itself", file.Fail());
  onnx_function(&file.functions, "f", "p", "r", &nodes);
  EXPECT_STATUS(INVALID_ARGUMENT, "function 'f' is given twice", file.Fail());
}

// Graphs in attributes, and messages that protobuf's reader would follow as
// deep as they are.
TEST(OnnxFile, DepthIsLimited) {
  bytes_t graph = {0, {0}};
  onnx_node(&graph, "Relu", "x", "r", nullptr);
  for (int i = 0; i < 60; ++i) {
    bytes_t attrs = {0, {0}}, outer = {0, {0}};
    attr_part(&attrs, "g", 5, &graph);
    onnx_node(&outer, "Relu", "x", "r", &attrs);
    graph = outer;
  }
  File file = Relu();
  put_raw(&file.graph, graph.data, graph.size);
  EXPECT_STATUS(INVALID_ARGUMENT, "deep", file.Fail());
}

TEST(OnnxFile, DataAreAsManyAsTheShapeSays) {
  EXPECT_STATUS(INVALID_ARGUMENT, "has 8 bytes of data; 16 are needed",
                Relu().Floats("w", {2, 2}, {1, 2}).Fail());
  EXPECT_STATUS(INVALID_ARGUMENT, "data for fewer than its",
                Relu().Floats("w", {1 << 20, 1 << 20}, {1, 2}).Fail());
  EXPECT_STATUS(OUT_OF_RANGE, "shape (-1)",
                Relu().Floats("w", {-1}, {1, 2}).Fail());
}

TEST(OnnxFile, DataInOtherFilesLieInTheFolder) {
  const std::string folder = ::testing::TempDir();
  const float values[2] = {1, -2};
  std::ofstream(folder + "/data.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(values), sizeof(values));
  const int64_t count = 2;
  const auto parse = [&](const char* location, const char* length,
                         const char* from) {
    File file = Relu();
    bytes_t tensor = {0, {0}};
    put_external(&tensor, "w", 1, &count, location, length);
    put_part(&file.graph, 5, &tensor);
    return file.Fail(18, from);
  };
  EXPECT_OK(parse("data.bin", "8", folder.c_str()));
  EXPECT_OK(parse("data.bin", nullptr, folder.c_str()));
  EXPECT_STATUS(INVALID_ARGUMENT, "which was not given",
                parse("data.bin", "8", nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "a file of the model's folder",
                parse("data.bin", "12", folder.c_str()));
  EXPECT_STATUS(INVALID_ARGUMENT, "a file of the model's folder",
                parse("a/../../data.bin", "8", folder.c_str()));
  EXPECT_STATUS(INVALID_ARGUMENT, "a file of the model's folder",
                parse("/etc/passwd", "8", folder.c_str()));
  EXPECT_STATUS(NOT_FOUND, "where data lies",
                parse("nothing.bin", "8", folder.c_str()));
  std::remove((folder + "/data.bin").c_str());
}

TEST(OnnxFile, OpensFilesAlone) {
  choir_onnx_t* onnx = nullptr;
  EXPECT_STATUS(NOT_FOUND, "no such file",
                choir_onnx_open("/nowhere/m.onnx", &onnx));
  EXPECT_STATUS(INVALID_ARGUMENT, "no regular file",
                choir_onnx_open("/dev/null", &onnx));
  const std::string path = ::testing::TempDir() + "/m.onnx";
  const bytes_t bytes = Relu().Bytes();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data),
             static_cast<std::streamsize>(bytes.size));
  ASSERT_OK(choir_onnx_open(path.c_str(), &onnx));
  EXPECT_EQ(choir_onnx_input_count(onnx), 1);
  EXPECT_STREQ(choir_onnx_input(onnx, 0).symbols[0], "n");
  EXPECT_EQ(choir_onnx_input(onnx, 0).shape[1], 2);
  choir_onnx_release(onnx);
  std::remove(path.c_str());
}

}  // namespace
