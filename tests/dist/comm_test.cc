// SPDX-License-Identifier: Apache-2.0
// Configuration and arguments: what needs no second process.
#include "dist/comm.h"

#include <gtest/gtest.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <set>
#include <string>

namespace {

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    choir_status_t status_ = (expr);                              \
    ASSERT_EQ(status_, nullptr) << choir_status_message(status_); \
  } while (0)

void ExpectFailure(choir_status_t status, choir_status_code_t code,
                   const std::string& message) {
  EXPECT_EQ(choir_status_code(status), code);
  EXPECT_EQ(std::string(choir_status_message(status)), message);
  choir_status_free(status);
}

class CommConfigTest : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  void Clear() {
    for (const char* name :
         {"CHOIR_RANK", "CHOIR_SIZE", "CHOIR_COMM_ID", "CHOIR_COMM",
          "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})
      unsetenv(name);
  }
  choir_comm_config_t config_;
};

TEST_F(CommConfigTest, Defaults) {
  ASSERT_OK(choir_comm_config_init(&config_));
  EXPECT_STREQ(config_.backend, "auto");
  EXPECT_EQ(config_.rank, 0);
  EXPECT_EQ(config_.size, 1);
  EXPECT_EQ(config_.deadline, 60);
  EXPECT_STREQ(config_.id.text, "");
  EXPECT_EQ(config_.device, nullptr);
}

TEST_F(CommConfigTest, ReadsTheLaunchersChoice) {
  const char* id = "0123456789abcdef0123456789abcdef";
  setenv("CHOIR_RANK", "2", 1);
  setenv("CHOIR_SIZE", "4", 1);
  setenv("CHOIR_COMM_ID", id, 1);
  setenv("CHOIR_COMM", "shm", 1);
  ASSERT_OK(choir_comm_config_init(&config_));
  EXPECT_EQ(config_.rank, 2);
  EXPECT_EQ(config_.size, 4);
  EXPECT_STREQ(config_.id.text, id);
  EXPECT_STREQ(config_.backend, "shm");
}

TEST_F(CommConfigTest, ReadsOpenMpisVariables) {
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
  ASSERT_OK(choir_comm_config_init(&config_));
  EXPECT_EQ(config_.rank, 1);
  EXPECT_EQ(config_.size, 3);
}

TEST_F(CommConfigTest, ContradictionsAreTold) {
  setenv("CHOIR_RANK", "2", 1);
  ExpectFailure(choir_comm_config_init(&config_), CHOIR_STATUS_INVALID_ARGUMENT,
                "environment: CHOIR_RANK is set but CHOIR_SIZE is not; both or "
                "none");
  setenv("CHOIR_SIZE", "2", 1);
  ExpectFailure(choir_comm_config_init(&config_), CHOIR_STATUS_INVALID_ARGUMENT,
                "environment: CHOIR_RANK is 2 and CHOIR_SIZE is 2; ranks are 0 "
                ".. size-1");
  setenv("CHOIR_RANK", "1x", 1);
  ExpectFailure(choir_comm_config_init(&config_), CHOIR_STATUS_INVALID_ARGUMENT,
                "environment: CHOIR_RANK is '1x'; it must be a whole number");
  setenv("CHOIR_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  ExpectFailure(choir_comm_config_init(&config_), CHOIR_STATUS_INVALID_ARGUMENT,
                "environment: CHOIR_RANK and CHOIR_SIZE say rank 1 of 2, Open "
                "MPI's variables say rank 0 of 2; start under one launcher "
                "only");
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  ASSERT_OK(choir_comm_config_init(&config_));
  // An id that lost a digit on its way is as good as a secret as before.
  setenv("CHOIR_COMM_ID", "0123456789abcdef0123456789abcde", 1);
  ExpectFailure(choir_comm_config_init(&config_), CHOIR_STATUS_INVALID_ARGUMENT,
                "environment: CHOIR_COMM_ID has 31 characters (it is a secret, "
                "and not shown); it must be 32 hexadecimal digits");
}

TEST_F(CommConfigTest, BadConfigsAreRefused) {
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_config_init(&config_));
  config_.backend = "smoke";
  ExpectFailure(choir_comm_create(&config_, &comm), CHOIR_STATUS_NOT_FOUND,
                "comm 'smoke' is unknown; known are: auto"
#define CHOIR_COMM_BACKEND(name) ", " #name
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
  );
  config_.backend = "self";
  config_.size = 2;
  ExpectFailure(choir_comm_create(&config_, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT,
                "comm self: size is 2; it takes one rank, use shm or mpi for "
                "more");
  config_.backend = "auto";
  ExpectFailure(choir_comm_create(&config_, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT,
                "comm shm: the id has 0 characters (it is a secret, and not "
                "shown); 2 ranks need the same 32 hexadecimal digits "
                "(choir_comm_id_make in one of them), or a launcher that sets "
                "it");
  config_.rank = 2;
  ExpectFailure(choir_comm_create(&config_, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT,
                "comm: rank is 2 and size is 2; ranks are 0 .. size-1");
  config_.rank = 0;
  config_.deadline = 0;
  ExpectFailure(choir_comm_create(&config_, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT,
                "comm: deadline is 0 s; it must be above 0");
  config_.deadline = 1;
  config_.silence = -1;
  ExpectFailure(choir_comm_create(&config_, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT,
                "comm: silence is -1 s; it must be 0 or more");
  EXPECT_EQ(comm, nullptr);
}

TEST_F(CommConfigTest, OneRankIsAlwaysPossible) {
  for (const char* backend : {"auto", "self", "shm"}) {
    ASSERT_OK(choir_comm_config_init(&config_));
    config_.backend = backend;
    choir_comm_t* comm = nullptr;
    ASSERT_OK(choir_comm_create(&config_, &comm));
    EXPECT_STREQ(choir_comm_backend(comm),
                 strcmp(backend, "auto") ? backend : "self");
    float data = 3;
    ASSERT_OK(choir_comm_all_reduce(comm, &data, &data, 1, CHOIR_DTYPE_F32,
                                    CHOIR_REDUCE_AVERAGE, nullptr));
    EXPECT_EQ(data, 3);
    ASSERT_OK(choir_comm_finalize(comm));
    ASSERT_OK(choir_comm_finalize(comm));  // once is enough, twice no harm
    choir_comm_release(comm);
  }
}

TEST(CommTest, IdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    choir_comm_id_t id;
    ASSERT_OK(choir_comm_id_make(&id));
    EXPECT_EQ(strlen(id.text), 32u);
    EXPECT_EQ(strspn(id.text, "0123456789abcdef"), 32u);
    ids.insert(id.text);
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST(CommTest, NullsAreRefusedOrIgnored) {
  choir_comm_t* comm = nullptr;
  ExpectFailure(choir_comm_create(nullptr, &comm),
                CHOIR_STATUS_INVALID_ARGUMENT, "comm: config is NULL");
  ExpectFailure(choir_comm_barrier(nullptr, "x"), CHOIR_STATUS_INVALID_ARGUMENT,
                "comm_run: comm is NULL");
  ExpectFailure(choir_work_wait(nullptr), CHOIR_STATUS_INVALID_ARGUMENT,
                "work_wait: work is NULL");
  ExpectFailure(choir_comm_poll_error(nullptr), CHOIR_STATUS_INVALID_ARGUMENT,
                "poll_error: comm is NULL");
  choir_comm_release(nullptr);
  choir_comm_retain(nullptr);
  choir_comm_abort(nullptr, "x");
  choir_work_release(nullptr);
}

// Wrong arguments come back from the call, with the operation's name.
TEST(CommTest, ArgumentsAreChecked) {
  choir_comm_config_t config = {};
  config.backend = "self";
  config.size = 1;
  config.deadline = 5;
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  float data[4] = {};
  choir_collective_t c = {};
  c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  c.op = CHOIR_REDUCE_AVERAGE;
  c.count = 4;
  c.src = c.dst = data;
  c.weight = NAN;
  c.name = "w";
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 1): rank 0: weight is nan; it must "
                "be finite and 0 or more");
  c.weight = 2;
  c.dtype = CHOIR_DTYPE_I32;
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 2): rank 0: weight is 2; averages "
                "of i32 take weight 1 only");
  c.dtype = CHOIR_DTYPE_BOOL;
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 3): rank 0: bool has no average");
  c.dtype = static_cast<choir_dtype_t>(77);
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 4): rank 0: 77 is no dtype");
  c.dtype = CHOIR_DTYPE_F64;
  c.count = INT64_MAX / 4;
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 5): rank 0: 2305843009213693951 "
                "elements on 1 ranks do not fit in 63 bits of bytes");
  c.count = 1;
  c.op = static_cast<choir_reduce_t>(9);
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "all_reduce 'w' (operation 6): rank 0: op is 9; 0 .. 4 are "
                "known");
  c.kind = static_cast<choir_collective_kind_t>(CHOIR_COLLECTIVE_COUNT);
  ExpectFailure(choir_comm_run(comm, &c), CHOIR_STATUS_INVALID_ARGUMENT,
                "comm_run: " + std::to_string(CHOIR_COLLECTIVE_COUNT) +
                    " is no kind of collective");
  choir_comm_abort(comm, "enough");
  choir_status_t status = choir_comm_barrier(comm, nullptr);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_ABORTED);
  EXPECT_NE(strstr(choir_status_message(status), "aborted: enough"), nullptr);
  choir_status_free(status);
  choir_comm_release(comm);
}

}  // namespace
