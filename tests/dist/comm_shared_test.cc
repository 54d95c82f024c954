// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <math.h>
#include <string.h>

#include <string>
#include <thread>
#include <vector>

#include "core/random.h"
#include "dist/comm_shared_def.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Patience;

// A rank that is a thread, with its communicator and device.
class SharedRank {
 public:
  SharedRank(const std::string& id, int32_t rank, int32_t size)
      : rank_(rank), size_(size) {
    choir_comm_config_t config = {};
    config.backend = size > 1 ? "shm" : "self";
    config.rank = rank;
    config.size = size;
    config.deadline = Patience(20);
    config.segment_bytes = 1 << 16;
    snprintf(config.id.text, sizeof(config.id.text), "%s", id.c_str());
    const choir_device_options_t options = {.threads = 1};
    EXPECT_EQ(choir_device_create("cpu", &options, &device_), nullptr);
    EXPECT_EQ(choir_comm_create(&config, &comm_), nullptr);
  }
  ~SharedRank() {
    for (choir_buffer_t* buffer : buffers_) choir_buffer_release(buffer);
    choir_comm_release(comm_);
    choir_device_release(device_);
  }
  SharedRank(const SharedRank&) = delete;
  SharedRank& operator=(const SharedRank&) = delete;

  choir_comm_t* comm() const { return comm_; }
  choir_device_t* device() const { return device_; }
  size_t rank() const { return static_cast<size_t>(rank_); }
  size_t size() const { return static_cast<size_t>(size_); }

  float* NewBuffer(size_t count) {
    choir_buffer_t* buffer = nullptr;
    EXPECT_EQ(choir_comm_buffer_create(comm_, device_, count * sizeof(float),
                                       &buffer),
              nullptr);
    buffers_.push_back(buffer);
    return static_cast<float*>(choir_buffer_data(buffer));
  }
  choir_buffer_t** buffers() { return buffers_.data(); }

 private:
  int32_t rank_;
  int32_t size_;
  choir_device_t* device_ = nullptr;
  choir_comm_t* comm_ = nullptr;
  std::vector<choir_buffer_t*> buffers_;
};

template <typename Body>
void OnRanks(int32_t size, Body body) {
  const std::string id = choir_testing::MakeId();
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r)
    threads.emplace_back([&id, &body, r, size] {
      SharedRank rank(id, r, size);
      body(&rank);
    });
  for (std::thread& thread : threads) thread.join();
}

float Mark(size_t writer, size_t buffer, size_t owner) {
  return static_cast<float>(100 * writer + 10 * buffer + owner + 1);
}

// Each rank writes a place of its own into every buffer of every rank.
TEST(CommSharedTest, RanksWriteIntoEachOthersBuffers) {
  for (int32_t size : {2, 3, 4, 7})
    OnRanks(size, [](SharedRank* rank) {
      const size_t size = rank->size();
      // So that places are not the same on all ranks.
      choir_buffer_t* first = nullptr;
      ASSERT_OK(
          choir_comm_buffer_create(rank->comm(), rank->device(), 64, &first));
      if (rank->rank() == 1) choir_buffer_release(first);
      float* own[2] = {rank->NewBuffer(16), rank->NewBuffer(1000)};
      if (rank->rank() != 1) choir_buffer_release(first);
      std::vector<void*> seen(2 * size);
      bool all = false;
      ASSERT_OK(choir__comm_shared_look(rank->comm(), rank->buffers(), 2,
                                        seen.data(), &all));
      ASSERT_TRUE(all);
      for (size_t b = 0; b < 2; ++b) {
        EXPECT_EQ(seen[b * size + rank->rank()], own[b]);
        for (size_t r = 0; r < size; ++r)
          static_cast<float*>(seen[b * size + r])[rank->rank()] =
              Mark(rank->rank(), b, r);
      }
      ASSERT_OK(choir_comm_barrier(rank->comm(), "written"));
      for (size_t b = 0; b < 2; ++b)
        for (size_t r = 0; r < size; ++r)
          EXPECT_EQ(own[b][r], Mark(r, b, rank->rank()));
    });
}

TEST(CommSharedTest, WhatOneRankDoesNotShowNobodySees) {
  OnRanks(3, [](SharedRank* rank) {
    rank->NewBuffer(16);
    choir_buffer_t* ordinary = nullptr;
    ASSERT_OK(choir_buffer_create(rank->device(), 64, &ordinary));
    for (choir_buffer_t* instead : {ordinary, (choir_buffer_t*)nullptr}) {
      choir_buffer_t* shown = rank->rank() == 1 ? instead : rank->buffers()[0];
      void* seen[3] = {};
      bool all = true;
      ASSERT_OK(choir__comm_shared_look(rank->comm(), &shown, 1, seen, &all));
      EXPECT_FALSE(all);
      EXPECT_EQ(seen[0], nullptr);
    }
    choir_buffer_release(ordinary);
  });
}

// Rank 1 gives a buffer back; what it left there is there until all ranks make
// another buffer, which tells that the memory may be somebody else's.
TEST(CommSharedTest, MemoryGoesOnWhenBuffersAreMade) {
  OnRanks(2, [](SharedRank* rank) {
    choir_buffer_t* buffer = nullptr;
    ASSERT_OK(
        choir_comm_buffer_create(rank->comm(), rank->device(), 64, &buffer));
    *static_cast<float*>(choir_buffer_data(buffer)) = 5;
    void* places[2] = {};
    bool all = false;
    ASSERT_OK(choir__comm_shared_look(rank->comm(), &buffer, 1, places, &all));
    ASSERT_TRUE(all);
    const uint64_t made = choir__comm_buffers_made(rank->comm());
    ASSERT_OK(choir_comm_barrier(rank->comm(), "looked"));
    if (rank->rank() == 1) choir_buffer_release(buffer);
    ASSERT_OK(choir_comm_barrier(rank->comm(), "given"));
    EXPECT_EQ(*static_cast<const float*>(places[1]), 5);
    EXPECT_EQ(choir__comm_buffers_made(rank->comm()), made);
    ASSERT_OK(choir_comm_barrier(rank->comm(), "read"));
    *rank->NewBuffer(16) = 9;
    EXPECT_EQ(choir__comm_buffers_made(rank->comm()), made + 1);
    ASSERT_OK(choir_comm_barrier(rank->comm(), "another"));
    EXPECT_EQ(*static_cast<const float*>(places[1]), 9) << "the same memory";
    ASSERT_OK(choir_comm_barrier(rank->comm(), "read again"));
    if (rank->rank() == 0) choir_buffer_release(buffer);
  });
}

TEST(CommSharedTest, OtherBackendsShowNothing) {
  OnRanks(1, [](SharedRank* rank) {
    rank->NewBuffer(16);
    void* seen = nullptr;
    bool all = true;
    ASSERT_OK(
        choir__comm_shared_look(rank->comm(), rank->buffers(), 1, &seen, &all));
    EXPECT_FALSE(all);
  });
}

float Number(size_t rank, size_t i) {
  const choir_random_key_t key = {5, static_cast<uint32_t>(rank), 0};
  return static_cast<float>(choir_random_word(key, 0, i)) / 4e9f - 0.5f;
}

TEST(CommSharedTest, AveragesHaveTheBitsOfAllReduce) {
  constexpr size_t kCount = 1003;
  for (int32_t size : {1, 2, 3, 7})
    OnRanks(size, [](SharedRank* rank) {
      const double weights[] = {3, 0, 5, 1, 2, 0, 7};
      double sum = 0;
      for (size_t r = 0; r < rank->size(); ++r) sum += weights[r];
      std::vector<std::vector<float>> data(rank->size());
      std::vector<const float*> sources;
      std::vector<float> shares;
      for (size_t r = 0; r < rank->size(); ++r) {
        for (size_t i = 0; i < kCount; ++i) data[r].push_back(Number(r, i));
        if (weights[r] == 0) continue;
        sources.push_back(data[r].data());
        shares.push_back(static_cast<float>(weights[r] / sum));
      }
      std::vector<float> expected = data[rank->rank()];
      choir_collective_t average = {};
      average.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
      average.op = CHOIR_REDUCE_AVERAGE;
      average.dtype = CHOIR_DTYPE_F32;
      average.count = kCount;
      average.src = expected.data();
      average.dst = expected.data();
      average.weight = weights[rank->rank()];
      average.name = "average";
      ASSERT_OK(choir_comm_run(rank->comm(), &average));
      // Into other memory, then in place of each source.
      std::vector<float> other(kCount);
      choir__comm_average(sources.data(), shares.data(),
                          static_cast<int32_t>(sources.size()), other.data(),
                          kCount);
      EXPECT_EQ(other, expected);
      for (size_t s = 0; s < sources.size(); ++s) {
        std::vector<float> own(sources[s], sources[s] + kCount);
        std::vector<const float*> with = sources;
        with[s] = own.data();
        choir__comm_average(with.data(), shares.data(),
                            static_cast<int32_t>(with.size()), own.data(),
                            kCount);
        EXPECT_EQ(own, expected) << s;
      }
    });
}

TEST(CommSharedTest, CopiesAwayFromAnyPlaceToAny) {
  std::vector<unsigned char> from(400);
  for (size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(i * 7 + 1);
  for (size_t start : {0, 1, 33, 63, 64})
    for (size_t bytes : {0, 1, 31, 64, 65, 130, 300}) {
      std::vector<unsigned char> to(400, 0xee);
      choir__comm_copy_away(to.data() + start, from.data() + 5, bytes);
      for (size_t i = 0; i < to.size(); ++i) {
        const bool is_in = i >= start && i < start + bytes;
        ASSERT_EQ(to[i], is_in ? from[5 + i - start] : 0xee)
            << start << " " << bytes << " " << i;
      }
    }
}

// Either may be the longer, or nothing, and the copy may start anywhere.
TEST(CommSharedTest, AveragesAndCopiesInOnePass) {
  std::vector<std::vector<float>> data(3);
  std::vector<float> from;
  for (size_t i = 0; i < 300; ++i) {
    for (size_t r = 0; r < 3; ++r) data[r].push_back(Number(r, i));
    from.push_back(Number(9, i));
  }
  const float shares[] = {0.5f, 0.2f, 0.3f};
  const float* sources[] = {data[0].data() + 1, data[1].data(),
                            data[2].data() + 2};
  for (int64_t count : {0, 1, 64, 95, 290})
    for (int64_t away_count : {0, 3, 64, 100, 290})
      for (size_t start : {0, 1, 8}) {
        std::vector<float> expected(300, -1);
        choir__comm_average(sources, shares, 3, expected.data(), count);
        std::vector<float> average(300, -1);
        alignas(64) float away[310];
        for (float& value : away) value = -2;
        choir__comm_average_and_copy(sources, shares, 3, average.data(), count,
                                     away + start, from.data() + 3, away_count);
        EXPECT_EQ(average, expected) << count << " " << away_count;
        for (size_t i = 0; i < 310; ++i) {
          const bool is_in =
              i >= start && i < start + static_cast<size_t>(away_count);
          ASSERT_EQ(away[i], is_in ? from[3 + i - start] : -2.0f)
              << count << " " << away_count << " " << start << " " << i;
        }
      }
}

}  // namespace
