// SPDX-License-Identifier: Apache-2.0
// From where the MPI backend is loaded: a copy of this program stands in
// folders of its own, a library that leaves a mark lies around it.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "tests/testing/ranks.h"

namespace {

namespace fs = std::filesystem;
using choir_testing::Contains;
using choir_testing::Patience;
using choir_testing::ProcessGroup;

constexpr uid_t kOtherUser = 31337;

class PluginTest : public ::testing::Test {
 protected:
  // In the copy: as a rank that mpiexec started.
  static void JoinAndSay(const char* backend) {
    choir_comm_config_t config;
    choir_status_t status = choir_comm_config_init(&config);
    choir_comm_t* comm = nullptr;
    if (!status) {
      config.backend = backend;
      config.deadline = 2;
      status = choir_comm_create(&config, &comm);
    }
    printf("\nSAYS %s\n", choir_status_message(status));
    fflush(stdout);
    _exit(0);
  }

  void SetUp() override {
    if (choir_testing::InRank()) JoinAndSay(getenv("CHOIR_TEST_BACKEND"));
    prefix_ = fs::path(folder_.path()) / "prefix";
    fs::create_directories(prefix_ / "bin");
    fs::create_directories(prefix_ / "lib");
    for (const fs::path& path : {prefix_, prefix_ / "bin", prefix_ / "lib"})
      chmod(path.c_str(), 0755);
    fs::copy_file("/proc/self/exe", prefix_ / "bin" / "program");
    mark_ = fs::path(folder_.path()) / "mark";
  }

  // A plugin at `place` below the prefix.
  fs::path Plant(const std::string& place, mode_t mode = 0755) {
    fs::path path = prefix_ / place / "libchoir_mpi.so";
    fs::copy_file("tests/dist/mark_plugin.so", path,
                  fs::copy_options::overwrite_existing);
    chmod(path.c_str(), mode);
    return path;
  }

  static void GiveAway(const fs::path& path) {
    ASSERT_EQ(lchown(path.c_str(), kOtherUser, kOtherUser), 0);
  }

  // `through`: a program that starts the copy.
  std::string Run(const std::string& backend,
                  std::vector<std::string> environment = {},
                  std::vector<std::string> through = {}) {
    fs::remove(mark_);
    for (const char* entry :
         {"CHOIR_TEST_SIZE=2", "CHOIR_MPI_LIBRARY", "CHOIR_RANK", "CHOIR_SIZE",
          "CHOIR_COMM_ID", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"})
      environment.insert(environment.begin(), entry);
    environment.push_back("CHOIR_TEST_BACKEND=" + backend);
    environment.push_back("CHOIR_TEST_MARK=" + mark_.string());
    through.push_back((prefix_ / "bin" / "program").string());
    through.push_back(choir_testing::OwnFilter());
    ProcessGroup group;
    group.Start(through, environment);
    const std::string output = group.Wait(Patience(20))[0].output;
    const size_t at = output.find("SAYS ");
    return at == std::string::npos ? output
                                   : output.substr(at + 5, output.size());
  }

  bool WasLoaded() const { return fs::exists(mark_); }

  choir_testing::ShortTemporaryFolder folder_;
  fs::path prefix_;
  fs::path mark_;
};

#define SKIP_UNLESS_ROOT() \
  if (geteuid() != 0)      \
  GTEST_SKIP() << "only root can make a file of another user here"

TEST_F(PluginTest, BesideTheProgramAndInAnInstallationIsLoaded) {
  for (const char* place : {"bin", "lib"}) {
    const fs::path plugin = Plant(place);
    const std::string said = Run("mpi");
    EXPECT_TRUE(WasLoaded()) << place << ": " << said;
    EXPECT_TRUE(Contains(said, "libchoir_mpi.so is of another version"))
        << said;
    fs::remove(plugin);
  }
}

// Whose it is does not matter: nobody put it there for Choir.
TEST_F(PluginTest, TheParentFolderIsNotLookedAt) {
  Plant("");
  for (const char* backend : {"mpi", "auto", "shm"}) {
    const std::string said = Run(backend);
    EXPECT_FALSE(WasLoaded()) << backend;
    EXPECT_TRUE(Contains(said, "comm mpi: libchoir_mpi.so was not found"))
        << said;
  }
}

TEST_F(PluginTest, WithAnIdNothingIsLoaded) {
  Plant("bin");
  Run("shm", {"CHOIR_COMM_ID=" + choir_testing::MakeId()});
  EXPECT_FALSE(WasLoaded());
}

TEST_F(PluginTest, AnotherUsersFileIsRefused) {
  SKIP_UNLESS_ROOT();
  for (const char* place : {"bin", "lib"}) {
    const fs::path plugin = Plant(place);
    GiveAway(plugin);
    const std::string said = Run("mpi");
    EXPECT_FALSE(WasLoaded());
    EXPECT_TRUE(Contains(said, "libchoir_mpi.so \\(" +
                                   fs::canonical(plugin).string() +
                                   " belongs to uid 31337, neither to root nor "
                                   "to this user\\)"))
        << said;
    fs::remove(plugin);
  }
}

TEST_F(PluginTest, AnotherUsersFolderIsRefused) {
  SKIP_UNLESS_ROOT();
  Plant("lib");
  GiveAway(prefix_ / "lib");
  const std::string said = Run("mpi");
  EXPECT_FALSE(WasLoaded());
  EXPECT_TRUE(Contains(said, "/lib belongs to uid 31337")) << said;
}

TEST_F(PluginTest, WhatOthersCanWriteIsRefused) {
  struct {
    const char* what;
    mode_t mode;
    const char* said;
  } const cases[] = {
      {"lib/libchoir_mpi.so", 0757, "write to [^ ]*/lib/libchoir_mpi.so\\)"},
      {"lib", 0777, "write to [^ ]*/lib\\)"},
      {"lib", 01777, "write to [^ ]*/lib\\)"},
      {"", 0777, "write to [^ ]*/prefix\\)"},
  };
  for (const auto& one : cases) {
    Plant("lib");
    const fs::path what = prefix_ / one.what;
    ASSERT_EQ(chmod(what.c_str(), one.mode), 0);
    const std::string said = Run("mpi");
    EXPECT_FALSE(WasLoaded()) << one.what;
    EXPECT_TRUE(Contains(said, one.said)) << said;
    ASSERT_EQ(chmod(what.c_str(), 0755), 0);
  }
  Run("mpi");
  EXPECT_TRUE(WasLoaded());
}

TEST_F(PluginTest, AnotherGroupThatCanWriteIsRefused) {
  SKIP_UNLESS_ROOT();
  Plant("lib");
  const fs::path lib = prefix_ / "lib";
  ASSERT_EQ(chown(lib.c_str(), 0, kOtherUser), 0);
  ASSERT_EQ(chmod(lib.c_str(), 0775), 0);
  Run("mpi");
  EXPECT_FALSE(WasLoaded());
  ASSERT_EQ(chown(lib.c_str(), 0, 0), 0);
  Run("mpi");
  EXPECT_TRUE(WasLoaded());
}

// A user namespace that knows root alone, as rootless containers and Bazel's
// sandbox have: nobody can tell whose the folders above are.
TEST_F(PluginTest, FoldersOfUsersThatANamespaceDoesNotKnow) {
  SKIP_UNLESS_ROOT();
  const std::vector<std::string> in_namespace = {"/usr/bin/unshare", "--user",
                                                 "--map-root-user"};
  const fs::path plugin = Plant("lib");
  GiveAway(prefix_);
  const std::string outside = Run("mpi");
  EXPECT_FALSE(WasLoaded());
  EXPECT_TRUE(Contains(outside, "/prefix belongs to uid 31337")) << outside;
  const std::string inside = Run("mpi", {}, in_namespace);
  EXPECT_TRUE(WasLoaded()) << inside;
  // Where others can write, and what is nearest to the file, stay refused.
  ASSERT_EQ(chmod(prefix_.c_str(), 0777), 0);
  Run("mpi", {}, in_namespace);
  EXPECT_FALSE(WasLoaded());
  ASSERT_EQ(chmod(prefix_.c_str(), 0755), 0);
  for (const fs::path& path : {plugin, plugin.parent_path()}) {
    GiveAway(path);
    const std::string said = Run("mpi", {}, in_namespace);
    EXPECT_FALSE(WasLoaded()) << path;
    EXPECT_TRUE(Contains(said, path.filename().string() + " belongs to uid"))
        << said;
    ASSERT_EQ(lchown(path.c_str(), 0, 0), 0);
  }
}

// What a link leads to is what counts.
TEST_F(PluginTest, ALinkToAnotherUsersFileIsRefused) {
  SKIP_UNLESS_ROOT();
  const fs::path theirs = Plant("");
  fs::rename(theirs, prefix_ / "theirs.so");
  GiveAway(prefix_ / "theirs.so");
  fs::create_symlink(prefix_ / "theirs.so",
                     prefix_ / "lib" / "libchoir_mpi.so");
  const std::string said = Run("mpi");
  EXPECT_FALSE(WasLoaded());
  EXPECT_TRUE(Contains(said, "theirs.so belongs to uid 31337")) << said;
}

// The folder in which somebody stands is no place.
TEST_F(PluginTest, TheWorkingFolderIsNotLookedAt) {
  const fs::path here = fs::path(folder_.path()) / "here";
  fs::create_directories(here);
  fs::copy_file(Plant(""), here / "libchoir_mpi.so");
  fs::remove(prefix_ / "libchoir_mpi.so");
  // As if the program, found in PATH, were a file of this folder.
  fs::copy_file("/proc/self/exe", here / "program");
  const fs::path before = fs::current_path();
  ProcessGroup group;
  fs::remove(mark_);
  group.Start(
      {"/bin/sh", "-c", "cd " + here.string() + " && exec program \"$0\"",
       choir_testing::OwnFilter()},
      {"CHOIR_TEST_SIZE=2", "CHOIR_MPI_LIBRARY", "CHOIR_RANK", "CHOIR_SIZE",
       "CHOIR_COMM_ID", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
       "CHOIR_TEST_BACKEND=mpi", "CHOIR_TEST_MARK=" + mark_.string(),
       "PATH=" + (prefix_ / "bin").string()});
  const std::string said = group.Wait(Patience(20))[0].output;
  EXPECT_FALSE(WasLoaded()) << said;
  EXPECT_TRUE(Contains(said, "was not found")) << said;
}

// Named by the user, it is his affair.
TEST_F(PluginTest, ANamedFileIsLoaded) {
  const fs::path plugin = Plant("");
  ASSERT_EQ(chmod(prefix_.c_str(), 0777), 0);
  Run("mpi", {"CHOIR_MPI_LIBRARY=" + plugin.string()});
  EXPECT_TRUE(WasLoaded());
}

}  // namespace
