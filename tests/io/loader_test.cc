// SPDX-License-Identifier: Apache-2.0
#include "io/loader.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/device_backend.h"
#include "core/log.h"
#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

// Images of two pixels that hold their own index (low byte, high byte), so
// that a batch tells where it came from.
class Samples {
 public:
  explicit Samples(int64_t count) : pixels_(2 * count), labels_(count) {
    for (int64_t i = 0; i < count; ++i) {
      pixels_[2 * i] = (uint8_t)i;
      pixels_[2 * i + 1] = (uint8_t)(i >> 8);
      labels_[i] = (int32_t)(i % 10);
    }
    choir_dataset_memory_t memory = {};
    memory.pixels = pixels_.data();
    memory.labels = labels_.data();
    memory.count = count;
    memory.channels = 1;
    memory.height = 1;
    memory.width = 2;
    memory.class_count = 10;
    EXPECT_OK(choir_dataset_create(&memory, &dataset_));
  }
  ~Samples() { choir_dataset_release(dataset_); }
  choir_dataset_t* get() const { return dataset_; }

 private:
  std::vector<uint8_t> pixels_;
  std::vector<int32_t> labels_;
  choir_dataset_t* dataset_ = nullptr;
};

class Device {
 public:
  explicit Device(const char* name) {
    EXPECT_OK(choir_device_create(name, nullptr, &device_));
  }
  ~Device() { choir_device_release(device_); }
  choir_device_t* get() const { return device_; }

 private:
  choir_device_t* device_ = nullptr;
};

choir_loader_config_t Config() {
  return choir_loader_config_t{CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
}

struct LoaderDeleter {
  void operator()(choir_loader_t* loader) const {
    choir_loader_destroy(loader);
  }
};
using Loader = std::unique_ptr<choir_loader_t, LoaderDeleter>;

Loader Make(const Samples& samples, const Device& device, int32_t rank,
            int32_t size, const choir_loader_config_t& config) {
  choir_loader_t* loader = nullptr;
  EXPECT_OK(choir_loader_create(samples.get(), device.get(), rank, size,
                                &config, &loader));
  return Loader(loader);
}

// The next batch, or nullptr at the end of an epoch (and after a failure).
const choir_batch_t* Next(const Loader& loader) {
  const choir_batch_t* batch = nullptr;
  EXPECT_OK(choir_loader_next(loader.get(), &batch));
  return batch;
}

// What x and y of a batch say about where they come from; everything else in
// the batch is checked against it.
std::vector<int64_t> Indices(const choir_batch_t* batch) {
  const size_t count = (size_t)batch->sample_count;
  std::vector<float> x(2 * count);
  std::vector<int32_t> y(count);
  std::vector<int64_t> indices(count);
  EXPECT_EQ(choir_tensor_dtype(batch->x), CHOIR_DTYPE_F32);
  EXPECT_EQ(choir_tensor_dtype(batch->y), CHOIR_DTYPE_I32);
  EXPECT_EQ(choir_tensor_ndim(batch->x), 4);
  EXPECT_EQ(choir_tensor_shape(batch->x)[0], batch->sample_count);
  EXPECT_EQ(choir_tensor_shape(batch->x)[1], 1);
  EXPECT_EQ(choir_tensor_shape(batch->x)[2], 1);
  EXPECT_EQ(choir_tensor_shape(batch->x)[3], 2);
  EXPECT_EQ(choir_tensor_ndim(batch->y), 1);
  EXPECT_EQ(choir_tensor_shape(batch->y)[0], batch->sample_count);
  if (count == 0) return indices;
  EXPECT_OK(choir_tensor_read(batch->x, x.data(), x.size() * sizeof(float)));
  EXPECT_OK(choir_tensor_read(batch->y, y.data(), y.size() * sizeof(int32_t)));
  for (size_t i = 0; i < count; ++i) {
    const int low = (int)(x[2 * i] * 255.0f + 0.5f);
    const int high = (int)(x[2 * i + 1] * 255.0f + 0.5f);
    EXPECT_EQ(x[2 * i], (float)low / 255.0f);
    EXPECT_EQ(x[2 * i + 1], (float)high / 255.0f);
    indices[i] = high * 256 + low;
    EXPECT_EQ(batch->samples[i], indices[i]);
    EXPECT_EQ(y[i], indices[i] % 10);
  }
  return indices;
}

struct Step {
  int64_t epoch;
  int64_t step;
  int64_t first_sample;
  std::vector<int64_t> indices;
  bool operator==(const Step& other) const {
    return epoch == other.epoch && step == other.step &&
           first_sample == other.first_sample && indices == other.indices;
  }
};

// All steps up to the end of the epoch.
std::vector<Step> Epoch(const Loader& loader) {
  std::vector<Step> steps;
  while (const choir_batch_t* batch = Next(loader)) {
    steps.push_back(
        {batch->epoch, batch->step, batch->first_sample, Indices(batch)});
  }
  return steps;
}

std::vector<int64_t> Flat(const std::vector<Step>& steps) {
  std::vector<int64_t> all;
  for (const Step& step : steps) {
    all.insert(all.end(), step.indices.begin(), step.indices.end());
  }
  return all;
}

bool IsPermutation(std::vector<int64_t> indices, int64_t count) {
  std::sort(indices.begin(), indices.end());
  if ((int64_t)indices.size() != count) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (indices[(size_t)i] != i) return false;
  }
  return true;
}

class LoaderTest : public ::testing::TestWithParam<const char*> {
 protected:
  LoaderTest() : device_(GetParam()) {}
  Device device_;
};
INSTANTIATE_TEST_SUITE_P(Devices, LoaderTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) { return info.param; });

TEST_P(LoaderTest, EvaluationGoesThroughTheFileInOrder) {
  Samples samples(300);
  choir_loader_config_t config = Config();
  config.shuffle = false;
  Loader loader = Make(samples, device_, 0, 1, config);
  EXPECT_EQ(choir_loader_steps(loader.get()), 5);
  EXPECT_EQ(choir_loader_dataset(loader.get()), samples.get());
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<Step> steps = Epoch(loader);
    ASSERT_EQ(steps.size(), 5u);
    std::vector<int64_t> all = Flat(steps);
    ASSERT_EQ(all.size(), 300u);
    for (int64_t i = 0; i < 300; ++i) ASSERT_EQ(all[(size_t)i], i);
    for (int64_t step = 0; step < 5; ++step) {
      EXPECT_EQ(steps[(size_t)step].epoch, epoch);
      EXPECT_EQ(steps[(size_t)step].step, step);
      EXPECT_EQ(steps[(size_t)step].first_sample, step * 64);
      EXPECT_EQ(steps[(size_t)step].indices.size(), step < 4 ? 64u : 44u);
    }
  }
}

TEST_P(LoaderTest, AShuffledEpochIsAPermutation) {
  Samples samples(300);
  Loader loader = Make(samples, device_, 0, 1, Config());
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(Flat(Epoch(loader)));
    EXPECT_TRUE(IsPermutation(epochs.back(), 300));
    EXPECT_FALSE(std::is_sorted(epochs.back().begin(), epochs.back().end()));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(epochs[0], epochs[2]);
}

TEST_P(LoaderTest, TheSeedMakesTheOrder) {
  Samples samples(200);
  choir_loader_config_t config = Config();
  config.batch = 32;
  config.seed = 5;
  Loader a = Make(samples, device_, 0, 1, config);
  config.prefetch = 7;
  Loader b = Make(samples, device_, 0, 1, config);
  config.seed = 6;
  Loader c = Make(samples, device_, 0, 1, config);
  std::vector<Step> steps_a = Epoch(a);
  EXPECT_TRUE(steps_a == Epoch(b));
  EXPECT_FALSE(steps_a == Epoch(c));
  EXPECT_TRUE(Epoch(a) == Epoch(b));
}

// The samples of each step, in order, do not depend on the number of ranks.
TEST_P(LoaderTest, AnyNumberOfWorkersSharesTheSameGlobalBatches) {
  Samples samples(403);
  for (bool shuffle : {true, false}) {
    choir_loader_config_t config = Config();
    config.shuffle = shuffle;
    config.global_batch = 112;
    config.seed = 3;
    Loader alone = Make(samples, device_, 0, 1, config);
    const std::vector<Step> wanted = Epoch(alone);
    ASSERT_TRUE(IsPermutation(Flat(wanted), 403));
    for (int32_t size : {1, 2, 3, 4, 7, 16}) {
      SCOPED_TRACE(size);
      std::vector<Loader> loaders;
      for (int32_t rank = 0; rank < size; ++rank) {
        loaders.push_back(Make(samples, device_, rank, size, config));
        ASSERT_EQ(choir_loader_steps(loaders.back().get()),
                  choir_loader_steps(alone.get()));
      }
      for (const Step& step : wanted) {
        std::vector<int64_t> all;
        for (int32_t rank = 0; rank < size; ++rank) {
          const choir_batch_t* batch = Next(loaders[(size_t)rank]);
          ASSERT_NE(batch, nullptr);
          EXPECT_EQ(batch->global_count, (int64_t)step.indices.size());
          EXPECT_EQ(batch->first_in_step, (int64_t)all.size());
          EXPECT_EQ(batch->first_sample,
                    step.first_sample + (int64_t)all.size());
          EXPECT_EQ(batch->micro_shard, 16);
          std::vector<int64_t> indices = Indices(batch);
          all.insert(all.end(), indices.begin(), indices.end());
        }
        ASSERT_EQ(all, step.indices);
      }
      for (const Loader& loader : loaders) EXPECT_EQ(Next(loader), nullptr);
    }
  }
}

// Ranks of any shares have the samples of the default, in its order.
TEST_P(LoaderTest, SharesChangeNoStep) {
  Samples samples(300);
  choir_loader_config_t config = Config();
  config.seed = 3;
  config.global_batch = 128;
  const std::vector<Step> expected =
      Epoch(Make(samples, device_, 0, 1, config));
  for (const char* shares : {"64,64", "96,32", "16,112", "0,128", "16,64,48"}) {
    SCOPED_TRACE(shares);
    std::string text = shares;
    config.shares = text.c_str();
    const int32_t size = (int32_t)std::count(text.begin(), text.end(), ',') + 1;
    std::vector<std::vector<Step>> of_ranks;
    for (int32_t rank = 0; rank < size; ++rank) {
      Loader loader = Make(samples, device_, rank, size, config);
      of_ranks.push_back(Epoch(loader));
    }
    for (size_t step = 0; step < expected.size(); ++step) {
      std::vector<int64_t> together;
      for (const std::vector<Step>& steps : of_ranks) {
        ASSERT_EQ(steps.size(), expected.size());
        const std::vector<int64_t>& own = steps[step].indices;
        EXPECT_EQ(steps[step].first_sample,
                  (int64_t)(128 * step + together.size()));
        together.insert(together.end(), own.begin(), own.end());
      }
      EXPECT_EQ(together, expected[step].indices);
    }
  }
}

// A run may go on with other shares, in the middle of an epoch: no sample is
// left out, none comes twice.
TEST_P(LoaderTest, SharesMayChangeBetweenSteps) {
  Samples samples(500);
  choir_loader_config_t config = Config();
  const char* const shares[] = {nullptr, "96,32", "16,112"};
  std::vector<int64_t> all;
  for (int32_t rank = 0; rank < 2; ++rank) {
    choir_loader_position_t position = {2, 0};
    for (const char* some : shares) {
      config.shares = some;
      Loader loader = Make(samples, device_, rank, 2, config);
      ASSERT_OK(choir_loader_seek(loader.get(), position));
      do {
        const choir_batch_t* batch = Next(loader);
        if (!batch) break;
        EXPECT_EQ(batch->global_count, batch->step < 3 ? 128 : 116);
        const std::vector<int64_t> own = Indices(batch);
        all.insert(all.end(), own.begin(), own.end());
      } while (some == shares[2]);
      position = choir_loader_position(loader.get());
    }
    EXPECT_EQ(position.epoch, 3);
  }
  EXPECT_TRUE(IsPermutation(all, 500));
}

TEST_P(LoaderTest, ARankWithoutSamplesStillSteps) {
  Samples samples(20);
  choir_loader_config_t config = Config();
  config.global_batch = 20;
  Loader loader = Make(samples, device_, 2, 3, config);
  const choir_batch_t* batch = Next(loader);
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->sample_count, 0);
  EXPECT_EQ(batch->global_count, 20);
  EXPECT_EQ(batch->first_in_step, 20);
  EXPECT_TRUE(Indices(batch).empty());
  EXPECT_EQ(Next(loader), nullptr);
}

TEST_P(LoaderTest, SeekIsTheSameAsRunningThere) {
  Samples samples(150);
  choir_loader_config_t config = Config();
  config.batch = 32;  // 5 steps
  Loader loader = Make(samples, device_, 0, 1, config);
  std::vector<Step> steps;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<Step> more = Epoch(loader);
    steps.insert(steps.end(), more.begin(), more.end());
  }
  // From anywhere to anywhere, with batches filled ahead and one in hand.
  for (int from = 0; from < 3; ++from) {
    for (int64_t epoch = 2; epoch >= 0; --epoch) {
      for (int64_t step = 0; step <= 5; ++step) {
        for (int k = 0; k < from; ++k) Next(loader);
        ASSERT_OK(choir_loader_seek(loader.get(), {epoch, step}));
        choir_loader_position_t at = choir_loader_position(loader.get());
        EXPECT_EQ(at.epoch, epoch);
        EXPECT_EQ(at.step, step);
        if (step == 5) {
          EXPECT_EQ(Next(loader), nullptr);
          if (epoch == 2) continue;
        }
        const choir_batch_t* batch = Next(loader);
        ASSERT_NE(batch, nullptr);
        Step found = {batch->epoch, batch->step, batch->first_sample,
                      Indices(batch)};
        EXPECT_TRUE(found == steps[(size_t)(epoch * 5 + step)]);
      }
    }
  }
}

// Of any rank, from any place: what a loader made for it hands out there. The
// batch in hand stays what it is until the next call.
TEST_P(LoaderTest, FollowIsTheSameAsALoaderOfThatRank) {
  Samples samples(150);
  choir_loader_config_t config = Config();
  config.batch = 12;  // of 4 ranks: 48, 4 steps
  config.shares = "24,12,6,6";
  config.micro_shard = 6;
  Loader loader = Make(samples, device_, 1, 4, config);
  config.shares = nullptr;
  config.global_batch = 48;
  for (int32_t size : {3, 1, 2, 7})
    for (int32_t rank = 0; rank < size; ++rank)
      for (int64_t step = 0; step <= 4; ++step) {
        const choir_batch_t* lent = Next(loader);
        const std::vector<int64_t> before =
            lent ? Indices(lent) : std::vector<int64_t>();
        ASSERT_OK(
            choir_loader_follow(loader.get(), rank, size, 0, {1, step, 0}));
        if (step == 2) {  // once more, with nothing handed out in between
          ASSERT_OK(
              choir_loader_follow(loader.get(), rank, size, 0, {1, step, 0}));
        }
        if (lent) {
          EXPECT_EQ(Indices(lent), before);
        }
        Loader other = Make(samples, device_, rank, size, config);
        ASSERT_OK(choir_loader_seek(other.get(), {1, step}));
        for (int k = 0; k < 6; ++k) {
          const choir_batch_t* batch = Next(loader);
          const choir_batch_t* want = Next(other);
          ASSERT_EQ(batch == nullptr, want == nullptr);
          if (!batch) continue;
          EXPECT_EQ(Indices(batch), Indices(want));
          EXPECT_EQ(batch->first_in_step, want->first_in_step);
          EXPECT_EQ(batch->global_count, want->global_count);
          EXPECT_EQ(batch->epoch, want->epoch);
          EXPECT_EQ(batch->step, want->step);
        }
      }
  IO_EXPECT_FAILS(choir_loader_follow(loader.get(), 2, 2, 0, {0, 0, 0}),
                  INVALID_ARGUMENT, HasSubstr("rank"));
  IO_EXPECT_FAILS(choir_loader_follow(loader.get(), 0, 2, 0, {0, 5, 0}),
                  OUT_OF_RANGE, HasSubstr("step 5"));
}

// In the middle of an epoch, as often as workers come and go: all that is
// handed out is the epoch's order, cut otherwise, and epochs to come are whole.
TEST_P(LoaderTest, AnEpochGoesOnWithAnotherGlobalBatch) {
  Samples samples(151);
  choir_loader_config_t config = Config();
  config.batch = 20;
  config.micro_shard = 5;
  Loader whole = Make(samples, device_, 0, 1, config);
  const std::vector<int64_t> order = Flat(Epoch(whole));
  const std::vector<int64_t> next = Flat(Epoch(whole));
  Loader loader = Make(samples, device_, 0, 1, config);
  std::vector<int64_t> all;
  int64_t steps = 0;
  for (int64_t batch : {20, 35, 1, 50, 15}) {
    ASSERT_OK(choir_loader_follow(loader.get(), 0, 1, batch,
                                  choir_loader_position(loader.get())));
    for (int k = 0; k < 2 && (int64_t)all.size() < 151; ++k, ++steps) {
      const choir_batch_t* one = Next(loader);
      ASSERT_NE(one, nullptr);
      EXPECT_EQ(one->step, steps);
      EXPECT_EQ(one->epoch, 0);
      EXPECT_EQ(one->first_sample, (int64_t)all.size());
      EXPECT_EQ(one->global_count, std::min(batch, 151 - (int64_t)all.size()));
      for (int64_t index : Indices(one)) all.push_back(index);
      EXPECT_EQ(choir_loader_position(loader.get()).sample,
                (int64_t)all.size());
    }
  }
  EXPECT_EQ(all, order);
  // 20, 20, 35, 35, 1, 1 and 39.
  EXPECT_EQ(choir_loader_steps(loader.get()), 7);
  EXPECT_EQ(Next(loader), nullptr);
  EXPECT_EQ(choir_loader_steps(loader.get()), 11);
  EXPECT_EQ(Flat(Epoch(loader)), next);
  // Back, by the place that it told, and to the start.
  ASSERT_OK(choir_loader_seek(loader.get(), {0, 4, 110}));
  EXPECT_EQ(choir_loader_steps(loader.get()), 7);
  EXPECT_EQ(Next(loader)->global_count, 15);
  ASSERT_OK(choir_loader_seek(loader.get(), {0, 5, 0}));
  EXPECT_EQ(Flat(Epoch(loader)),
            std::vector<int64_t>(order.begin() + 125, order.end()));
  ASSERT_OK(choir_loader_seek(loader.get(), {0, 4, 0}));
  ASSERT_OK(choir_loader_seek(loader.get(), {0, 0, 0}));
  EXPECT_EQ(Flat(Epoch(loader)), order);
  IO_EXPECT_FAILS(choir_loader_seek(loader.get(), {0, 3, 152}), OUT_OF_RANGE,
                  HasSubstr("sample 152 of 151"));
  IO_EXPECT_FAILS(choir_loader_seek(loader.get(), {0, 30, 29}), OUT_OF_RANGE,
                  HasSubstr("step 30"));
  ASSERT_OK(choir_loader_seek(loader.get(), {0, 4, 110}));
  IO_EXPECT_FAILS(choir_loader_seek(loader.get(), {0, 3, 0}), OUT_OF_RANGE,
                  HasSubstr("steps 4 to 7"));
}

TEST_P(LoaderTest, ThePositionTellsTheNextBatch) {
  Samples samples(100);
  choir_loader_config_t config = Config();
  config.batch = 50;
  Loader loader = Make(samples, device_, 0, 1, config);
  const choir_loader_position_t wanted[] = {{0, 0}, {0, 1}, {0, 2},
                                            {1, 0}, {1, 1}, {1, 2}};
  for (const choir_loader_position_t& position : wanted) {
    choir_loader_position_t at = choir_loader_position(loader.get());
    EXPECT_EQ(at.epoch, position.epoch);
    EXPECT_EQ(at.step, position.step);
    const choir_batch_t* batch = Next(loader);
    EXPECT_EQ(batch == nullptr, position.step == 2);
    if (batch) {
      EXPECT_EQ(batch->step, position.step);
    }
  }
}

TEST_P(LoaderTest, SeekChecksItsRange) {
  Samples samples(100);
  Loader loader = Make(samples, device_, 0, 1, Config());
  for (choir_loader_position_t position :
       {choir_loader_position_t{-1, 0}, choir_loader_position_t{0, -1},
        choir_loader_position_t{0, 3},
        choir_loader_position_t{INT64_C(1) << 32, 0}}) {
    IO_EXPECT_FAILS(choir_loader_seek(loader.get(), position), OUT_OF_RANGE,
                    HasSubstr("steps 0 to 2"));
  }
  EXPECT_EQ(choir_loader_position(loader.get()).step, 0);
  const int64_t last = (INT64_C(1) << 32) - 2;
  ASSERT_OK(choir_loader_seek(loader.get(), {last, 1}));
  EXPECT_EQ(Next(loader)->epoch, last);
}

TEST_P(LoaderTest, DestroyedAtAnyMoment) {
  Samples samples(1000);
  choir_loader_config_t config = Config();
  for (int round = 0; round < 60; ++round) {
    config.prefetch = 2 + round % 4;
    Loader loader = Make(samples, device_, 0, 1, config);
    for (int k = 0; k < round % 7; ++k) Next(loader);
    if (round % 3 == 0) {
      ASSERT_OK(choir_loader_seek(loader.get(), {round, 3}));
    }
    if (round % 2) {
      std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    }
  }
  choir_loader_destroy(nullptr);
}

TEST_P(LoaderTest, TheBatchKeepsNothingAliveThatItShouldNot) {
  Samples samples(100);
  choir_tensor_t* kept = nullptr;
  {
    Loader loader = Make(samples, device_, 0, 1, Config());
    kept = Next(loader)->x;
    choir_tensor_retain(kept);
  }
  float x[128];
  EXPECT_OK(choir_tensor_read(kept, x, sizeof x));
  choir_tensor_release(kept);
}

TEST_P(LoaderTest, SteadyStateAsksForNoMemory) {
  Samples samples(1000);
  Loader loader = Make(samples, device_, 0, 1, Config());
  for (int k = 0; k < 5; ++k) Next(loader);
  const uint64_t before = ScarceMemory::Requests();
  for (int k = 0; k < 200; ++k) Next(loader);
  EXPECT_EQ(ScarceMemory::Requests(), before);
}

TEST_P(LoaderTest, NoMemoryIsAStatus) {
  Samples samples(100);
  const size_t blocks = ScarceMemory::Blocks();
  int failures = 0;
  for (int n = 1;; ++n) {
    // A new device each time: its pool keeps blocks.
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create(GetParam(), nullptr, &device));
    choir_loader_config_t config = Config();
    choir_loader_t* loader = nullptr;
    ScarceMemory::FailAt(n);
    choir_status_t status =
        choir_loader_create(samples.get(), device, 0, 1, &config, &loader);
    ScarceMemory::FailAt(0);
    const bool failed = ScarceMemory::Failed();
    if (failed) {
      ++failures;
      IO_EXPECT_FAILS(status, OUT_OF_MEMORY, HasSubstr("memory"));
      EXPECT_EQ(loader, nullptr);
    } else {
      EXPECT_OK(status);
    }
    choir_loader_destroy(loader);
    choir_device_release(device);
    ASSERT_EQ(ScarceMemory::Blocks(), blocks);
    if (!failed) break;
  }
  EXPECT_GE(failures, 3);
}

TEST_P(LoaderTest, AForkedChildGetsAStatus) {
  Samples samples(100);
  Loader loader = Make(samples, device_, 0, 1, Config());
  ASSERT_NE(Next(loader), nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // instead of hanging for ever
    const choir_batch_t* batch = nullptr;
    choir_loader_t* other = nullptr;
    choir_loader_config_t config = Config();
    bool good = true;
    auto refused = [&good](choir_status_t status) {
      Outcome outcome = Take(status);
      good = good && outcome.code == CHOIR_STATUS_FAILED_PRECONDITION &&
             outcome.message.find("fork") != std::string::npos;
    };
    refused(choir_loader_next(loader.get(), &batch));
    refused(choir_loader_seek(loader.get(), {0, 0}));
    refused(choir_loader_create(samples.get(), device_.get(), 0, 1, &config,
                                &other));
    choir_loader_destroy(loader.get());
    _exit(good ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0) << result;
  EXPECT_NE(Next(loader), nullptr);
}

// ---- Configuration ----

class LoaderConfig : public ::testing::Test {
 protected:
  Outcome Create(int32_t rank, int32_t size,
                 const choir_loader_config_t& config) {
    choir_loader_t* loader = nullptr;
    Outcome outcome = Take(choir_loader_create(samples_.get(), device_.get(),
                                               rank, size, &config, &loader));
    EXPECT_EQ(loader == nullptr, outcome.code != CHOIR_STATUS_OK);
    choir_loader_destroy(loader);
    return outcome;
  }
  Samples samples_{1000};
  Device device_{"cpu"};
};

TEST_F(LoaderConfig, ABatchLargerThanThePartition) {
  choir_loader_config_t config = Config();
  Outcome outcome = Create(0, 32, config);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("batch of 64"), HasSubstr("32 workers"),
                    HasSubstr("1000 samples")));
  config.global_batch = 1001;
  outcome = Create(0, 2, config);
  EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(outcome.message, AllOf(HasSubstr("1001"), HasSubstr("2 workers"),
                                     HasSubstr("1000 samples")));
  config.global_batch = 1000;
  EXPECT_EQ(Create(0, 2, config).code, CHOIR_STATUS_OK);
  // One short step is all that evaluation needs.
  config.global_batch = 5000;
  config.shuffle = false;
  EXPECT_EQ(Create(0, 2, config).code, CHOIR_STATUS_OK);
}

TEST_F(LoaderConfig, FieldsAreChecked) {
  auto refused = [this](int32_t rank, int32_t size,
                        const choir_loader_config_t& config, const char* part) {
    Outcome outcome = Create(rank, size, config);
    EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(outcome.message, HasSubstr(part));
  };
  choir_loader_config_t config = Config();
  config.batch = 0;
  refused(0, 1, config, "batch");
  config = Config();
  config.micro_shard = 0;
  refused(0, 1, config, "micro_shard");
  config = Config();
  config.prefetch = 1;
  refused(0, 1, config, "prefetch");
  config = Config();
  config.deadline = 0;
  refused(0, 1, config, "deadline");
  config = Config();
  config.global_batch = -1;
  refused(0, 1, config, "global_batch");
  refused(1, 1, Config(), "rank is 1");
  refused(-1, 1, Config(), "rank is -1");
  refused(0, 0, Config(), "size is 0");
  refused(0, -5, Config(), "size is -5");
}

TEST_F(LoaderConfig, SharesAreChecked) {
  choir_loader_config_t config = Config();
  const auto refused = [&](const char* shares, const std::string& why) {
    config.shares = shares;
    choir_loader_t* loader = nullptr;
    IO_EXPECT_FAILS(choir_loader_create(samples_.get(), device_.get(), 0, 2,
                                        &config, &loader),
                    INVALID_ARGUMENT, AllOf(HasSubstr(shares), HasSubstr(why)));
    EXPECT_EQ(loader, nullptr);
  };
  refused("128", "2 ranks need 2 whole numbers");
  refused("64,32",
          "the shares are 96 samples together; the global batch is "
          "128");
  refused("60,68",
          "rank 0 is 60; it must be a multiple of the micro-shard, "
          "16");
}

TEST_F(LoaderConfig, UnevenRanksAreLogged) {
  std::vector<std::string> lines;
  choir_log_set_sink(
      [](void* self, choir_log_level_t, const char*, const char* message) {
        static_cast<std::vector<std::string>*>(self)->push_back(message);
      },
      &lines, CHOIR_LOG_WARNING);
  choir_loader_config_t config = Config();
  Create(0, 4, config);
  EXPECT_TRUE(lines.empty());
  config.batch = 100;
  Create(0, 1, config);
  EXPECT_TRUE(lines.empty());
  Create(0, 2, config);
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("200 samples"), HasSubstr("micro-shards of 16"),
                    HasSubstr("2 ranks")));
}

// ---- Streams ----

struct Reading {
  std::vector<int64_t>* seen;
  std::atomic<bool>* go;  // waits for it, when not NULL
};

// Reads a batch on the compute stream, late.
choir_status_t ReadLate(const choir_record_t* record, choir_stream_s*) {
  const Reading* reading = static_cast<const Reading*>(record->attrs);
  if (reading->go) {
    while (!*reading->go) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const choir_view_t* view = choir_record_src(record, 0);
  const float* x = static_cast<const float*>(choir_buffer_data(view->buffer));
  for (int64_t i = 0; i < view->shape[0]; ++i) {
    reading->seen->push_back((int64_t)(x[2 * i] * 255.0f + 0.5f) +
                             256 * (int64_t)(x[2 * i + 1] * 255.0f + 0.5f));
  }
  return nullptr;
}

void SubmitReading(const Device& device, const choir_batch_t* batch,
                   const Reading& reading) {
  static const choir_kernel_t kernel = {"read_late", ReadLate, nullptr,
                                        nullptr,     nullptr,  false};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.operands = choir_tensor_view(batch->x);
  record.src_count = 1;
  record.attrs = &reading;
  record.attrs_bytes = sizeof reading;
  EXPECT_OK(choir_stream_submit(choir_device_stream(device.get()), &record));
}

// The compute stream is far behind; no batch is refilled before it was read.
TEST(LoaderStreams, ABatchWaitsForTheComputeStream) {
  Samples samples(1000);
  Device device("cpu_async");
  choir_loader_config_t config = Config();
  config.batch = 16;
  for (int64_t prefetch : {2, 3}) {
    config.prefetch = prefetch;
    Loader loader = Make(samples, device, 0, 1, config);
    std::vector<int64_t> seen;
    std::vector<int64_t> wanted;
    while (const choir_batch_t* batch = Next(loader)) {
      wanted.insert(wanted.end(), batch->samples,
                    batch->samples + batch->sample_count);
      SubmitReading(device, batch, {&seen, nullptr});
    }
    EXPECT_OK(choir_stream_synchronize(choir_device_stream(device.get())));
    EXPECT_EQ(seen, wanted);
  }
}

// Work that was submitted keeps what it reads, also beyond the loader.
TEST(LoaderStreams, TheLoaderMayGoBeforeTheWorkIsDone) {
  Samples samples(100);
  Device device("cpu_async");
  std::vector<int64_t> seen;
  std::vector<int64_t> wanted;
  {
    Loader loader = Make(samples, device, 0, 1, Config());
    const choir_batch_t* batch = Next(loader);
    wanted.assign(batch->samples, batch->samples + batch->sample_count);
    SubmitReading(device, batch, {&seen, nullptr});
  }
  EXPECT_OK(choir_stream_synchronize(choir_device_stream(device.get())));
  EXPECT_EQ(seen, wanted);
}

// The next batch, however slow the machine is: short deadlines may pass.
const choir_batch_t* Await(const Loader& loader) {
  for (int tries = 0; tries < 10000; ++tries) {
    const choir_batch_t* batch = nullptr;
    choir_status_t status = choir_loader_next(loader.get(), &batch);
    if (choir_status_code(status) != CHOIR_STATUS_TIMEOUT) {
      EXPECT_OK(status);
      return batch;
    }
    choir_status_free(status);
  }
  return nullptr;
}

TEST(LoaderStreams, AStreamThatHangsIsATimeout) {
  Samples samples(1000);
  Device device("cpu_async");
  choir_loader_config_t config = Config();
  config.prefetch = 2;
  config.deadline = 0.05;
  std::atomic<bool> go{false};
  std::vector<int64_t> seen;
  Loader loader = Make(samples, device, 0, 1, config);
  SubmitReading(device, Await(loader), {&seen, &go});
  ASSERT_NE(Await(loader), nullptr);
  for (int k = 0; k < 2; ++k) {
    const choir_batch_t* batch = nullptr;
    IO_EXPECT_FAILS(choir_loader_next(loader.get(), &batch), TIMEOUT,
                    AllOf(HasSubstr("epoch 0, step 2"), HasSubstr("0.05"),
                          HasSubstr("compute stream")));
    EXPECT_EQ(batch, nullptr);
  }
  EXPECT_EQ(choir_loader_position(loader.get()).step, 2);
  // The stream comes back, and so do the batches.
  go = true;
  EXPECT_OK(choir_stream_synchronize(choir_device_stream(device.get())));
  EXPECT_EQ(seen.size(), 64u);
  const choir_batch_t* batch = Await(loader);
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->step, 2);
}

TEST(LoaderStreams, DestroyDoesNotWaitForAStreamThatHangs) {
  Samples samples(1000);
  Device device("cpu_async");
  choir_loader_config_t config = Config();
  config.prefetch = 2;
  config.deadline = 0.01;
  std::atomic<bool> go{false};
  std::vector<int64_t> seen;
  {
    Loader loader = Make(samples, device, 0, 1, config);
    SubmitReading(device, Await(loader), {&seen, &go});
    ASSERT_NE(Await(loader), nullptr);
    const choir_batch_t* batch = nullptr;
    IO_EXPECT_FAILS(choir_loader_next(loader.get(), &batch), TIMEOUT,
                    HasSubstr("step 2"));
  }
  // Reached although the stream still hangs.
  go = true;
  EXPECT_OK(choir_stream_synchronize(choir_device_stream(device.get())));
}

// ---- Failures of the thread ----

std::atomic<int> writes_left{0};
const choir_device_vtable_t* real_vtable = nullptr;

choir_status_t FailingWrite(choir_device_t* device, choir_stream_t* stream,
                            const void* host_src, void* device_dst,
                            size_t bytes) {
  if (writes_left-- <= 0) {
    return CHOIR_ERROR(INTERNAL, "test: the copy of %zu bytes failed", bytes);
  }
  return real_vtable->write(device, stream, host_src, device_dst, bytes);
}

TEST(LoaderFailures, OfTheThreadAreReturnedByNextUntilSeek) {
  Samples samples(1000);
  Device device("null");
  real_vtable = device.get()->vtable;
  choir_device_vtable_t vtable = *real_vtable;
  vtable.write = FailingWrite;
  device.get()->vtable = &vtable;
  writes_left = 7;  // two for each batch: the fourth one fails
  {
    Loader loader = Make(samples, device, 0, 1, Config());
    for (int64_t step = 0; step < 3; ++step) {
      const choir_batch_t* batch = Next(loader);
      ASSERT_NE(batch, nullptr);
      EXPECT_EQ(batch->step, step);
    }
    for (int k = 0; k < 3; ++k) {
      const choir_batch_t* batch = nullptr;
      IO_EXPECT_FAILS(choir_loader_next(loader.get(), &batch), INTERNAL,
                      HasSubstr("the copy of 256 bytes failed"));
      EXPECT_EQ(batch, nullptr);
    }
    EXPECT_EQ(choir_loader_position(loader.get()).step, 3);
    writes_left = 1000000;
    ASSERT_OK(
        choir_loader_seek(loader.get(), choir_loader_position(loader.get())));
    const choir_batch_t* batch = Next(loader);
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(batch->step, 3);
  }
  device.get()->vtable = real_vtable;
}

}  // namespace
