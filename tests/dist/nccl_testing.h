// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_NCCL_TESTING_H_
#define CHOIR_TESTS_DIST_NCCL_TESTING_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dist/comm.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

// Ranks that are threads of this process, each with a GPU of its own; GPUs and
// NCCL are scripts.

namespace choir_testing {

class NcclRanks {
 public:
  explicit NcclRanks(int size) : size_(size), cuda_(Gpus(size)), nccl_(&cuda_) {
    EXPECT_OK(choir_comm_id_make(&id_));
  }

  choir::testing::FakeCuda& cuda() { return cuda_; }
  choir::testing::FakeNccl& nccl() { return nccl_; }
  int size() const { return size_; }

  // What one rank has in its thread.
  struct Own {
    int rank = 0;
    choir_device_t* device = nullptr;
    choir_stream_t* stream = nullptr;  // a background one
    choir_comm_t* comm = nullptr;
    bool ends_well = true;  // finalize, at the end
  };

  // Runs `body` in all ranks, with its communicator.
  void Run(const std::function<void(Own*)>& body, double deadline = 20,
           const char* backend = "nccl") {
    Start([&](Own* own) {
      ASSERT_OK(Join(own, deadline, backend));
      body(own);
      if (own->ends_well) {
        EXPECT_OK(choir_comm_finalize(own->comm));
      }
    });
  }

  // Without one.
  void Start(const std::function<void(Own*)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank)
      threads.emplace_back([&, rank] { RunOne(rank, body); });
    for (std::thread& thread : threads) thread.join();
  }

  choir_status_t Join(Own* own, double deadline = 20,
                      const char* backend = "nccl") {
    choir_comm_config_t config;
    EXPECT_OK(choir_comm_config_init(&config));
    config.backend = backend;
    config.rank = own->rank;
    config.size = size_;
    config.id = id_;
    config.deadline = Patience(deadline);
    config.device = own->device;
    config.segment_bytes = 64u << 10;
    return choir_comm_create(&config, &own->comm);
  }

 private:
  static std::vector<choir::testing::FakeCuda::Gpu> Gpus(int count) {
    return std::vector<choir::testing::FakeCuda::Gpu>(
        static_cast<size_t>(count), {"NVIDIA Script", 9, 0, size_t{1} << 30});
  }

  void RunOne(int rank, const std::function<void(Own*)>& body) {
    Own own;
    own.rank = rank;
    choir_device_options_t options = {};
    options.threads = 1;
    options.index = rank;
    EXPECT_OK(choir_device_create("cuda", &options, &own.device));
    EXPECT_OK(
        choir_stream_create(own.device, CHOIR_STREAM_BACKGROUND, &own.stream));
    body(&own);
    choir_comm_release(own.comm);
    choir_stream_release(own.stream);
    choir_device_release(own.device);
  }

  int size_;
  choir::testing::FakeCuda cuda_;
  choir::testing::FakeNccl nccl_;
  choir_comm_id_t id_ = {};
};

}  // namespace choir_testing

#endif  // CHOIR_TESTS_DIST_NCCL_TESTING_H_
