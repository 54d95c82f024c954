// SPDX-License-Identifier: Apache-2.0
// Ranks that are lost in training: the others take the step back and go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/log.h"
#include "dist/dist_opt.h"
#include "dist/training.h"
#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Heard;
using choir_testing::Must;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Rank;
using choir_testing::Say;
using choir_testing::SmallLayers;
using choir_testing::Training;

constexpr int64_t kGlobal = 24;
constexpr int64_t kSteps = 7;

choir_comm_t* Join() {
  choir_comm_config_t config;
  Must(choir_comm_config_init(&config));
  config.deadline = Patience(20);
  choir_comm_t* comm = nullptr;
  Must(choir_comm_create(&config, &comm));
  return comm;
}

Training::Options Elastic() {
  Training::Options options;
  options.optimizer = "adam";
  options.elastic = true;
  options.bucket_bytes = 4096;
  return options;
}

// A rank of a run that is elastic.
class ElasticRank {
 public:
  explicit ElasticRank(const Training::Options& options = Elastic())
      : comm_(Join()), training_(SmallLayers(), comm_, options) {
    Must(training_.Attach());
  }

  int64_t step() { return choir_model_step(training_.model()); }
  const choir_generation_t& generation() {
    return *choir_dist_opt_generation(training_.dist());
  }
  Training& training() { return training_; }

  // This rank's share of step `at`.
  choir_status_t TrainOn(int64_t at) {
    const int64_t size = choir_comm_size(generation().comm);
    const int64_t rank = choir_comm_rank(generation().comm);
    const int64_t first = kGlobal * rank / size;
    const int64_t count = kGlobal * (rank + 1) / size - first;
    return training_.TrainOn(at, first, count, kGlobal);
  }
  void TrainUpTo(int64_t end) {
    while (step() < end) Must(TrainOn(step()));
  }

  // Those that are left when one is lost on the way out do it again.
  void Finalize() {
    for (;;) {
      choir_status_t status = choir_comm_finalize(generation().comm);
      if (!status) return;
      Must(choir_training_recover(training_.model(), status));
    }
  }

  // On return rank `last`, which ends next, knows that all have made their
  // steps so far; others may hear of its end here.
  void ComeLast(int last) {
    choir_status_t status = choir_comm_barrier(generation().comm, "steps");
    if (Rank() == last) Must(status);
    choir_status_free(status);
  }

  // Says how it went, beside what one rank alone comes to.
  [[noreturn]] void End() {
    Training alone(SmallLayers(), nullptr, Elastic());
    Must(alone.Attach());
    for (int64_t i = 0; i < kSteps; ++i)
      Must(alone.TrainOn(i, 0, kGlobal, kGlobal));
    double worst = 0;
    const choir_testing::Values own = training_.Values();
    const uint64_t states = training_.StatesDigest();
    const choir_testing::Values want = alone.Values();
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t k = 0; k < want[i].second.size(); ++k)
        worst =
            std::fmax(worst, std::fabs(own[i].second[k] - want[i].second[k]));
    choir_metrics_t metrics;
    Must(choir_model_take_metrics(training_.model(), &metrics));
    Finalize();
    Say((worst < 2e-4 ? "close" : "off by " + std::to_string(worst)) +
        ", generation " + std::to_string(generation().number) + ", batches " +
        std::to_string(metrics.batches) + ", states " + std::to_string(states));
    _exit(0);
  }

 private:
  choir_comm_t* comm_;
  Training training_;
};

// The ranks but `lost` say the same.
void Expect(ProcessGroup* group, const std::vector<int>& lost,
            const std::string& words) {
  const int size = static_cast<int>(group->size());
  const std::vector<ProcessResult> results = group->Wait(Patience(90));
  std::string first;
  for (int r = 0; r < size; ++r) {
    const ProcessResult& result = results[static_cast<size_t>(r)];
    if (std::count(lost.begin(), lost.end(), r)) continue;
    EXPECT_EQ(result.exit_status, 0) << r << ": " << result.output;
    EXPECT_TRUE(choir_testing::Contains(Heard(result), words))
        << r << ": " << Heard(result);
    if (first.empty()) first = Heard(result);
    EXPECT_EQ(Heard(result), first) << r;
  }
}
void Expect(int size, const std::vector<int>& lost, const std::string& words,
            const std::string& backend = "shm") {
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend, size);
  Expect(&group, lost, words);
}

class DistOptElasticTestOf : public ::testing::TestWithParam<int> {};

// The step that somebody did not come to is made by the others.
TEST_P(DistOptElasticTestOf, KilledBetweenSteps) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(3);
    if (Rank() == GetParam()) raise(SIGKILL);
    Must(rank.TrainOn(3));
    if (rank.step() != 3 || rank.generation().number != 2 ||
        rank.generation().step != 3 ||
        choir_comm_size(rank.generation().comm) != 2)
      Say("not taken back");
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {GetParam()}, "^close, generation 2, batches 7,");
}
INSTANTIATE_TEST_SUITE_P(Each, DistOptElasticTestOf, testing::Values(0, 1, 2));

TEST(DistOptElasticTest, OneIsLeft) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(2);
    if (Rank() == 0) raise(SIGKILL);
    rank.TrainUpTo(4);
    if (Rank() == 2) raise(SIGKILL);
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {0, 2}, "^close, generation 3, batches 7,");
}

// One had not made the last step yet when another was lost: it gets parameters
// and states from one that had.
TEST(DistOptElasticTest, OneIsBehind) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(2);
    std::vector<std::vector<char>> before;
    for (const choir_named_tensor_t& state : rank.training().States()) {
      before.emplace_back(
          static_cast<size_t>(choir_tensor_count(state.tensor) * 4));
      Must(choir_tensor_read(state.tensor, before.back().data(),
                             before.back().size()));
    }
    choir_metrics_t metrics;
    Must(choir_model_take_metrics(rank.training().model(), &metrics));
    rank.TrainUpTo(3);
    if (Rank() == 1) raise(SIGKILL);
    if (Rank() == 0) {
      size_t i = 0;
      for (const choir_named_tensor_t& state : rank.training().States()) {
        Must(choir_tensor_write(state.tensor, before[i].data(),
                                before[i].size()));
        ++i;
      }
      choir_model_set_step(rank.training().model(), 2);
    }
    Must(rank.TrainOn(rank.step()));
    if (rank.step() != 3) Say("not as far as the others");
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {1}, "^close, generation 2, batches 5,");
}

// A step that fails on one rank alone is that rank's failure, and it goes.
TEST(DistOptElasticTest, OneFails) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(2);
    if (Rank() == 2) {
      const choir_model_batch_t nothing = {
          {nullptr}, {nullptr}, 16, 8, kGlobal};
      choir_status_t status =
          choir_model_train_one_batch(rank.training().model(), &nothing);
      if (!status) Say("its step did not fail");
      choir_status_free(status);
      _exit(0);
    }
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {2}, "^close, generation 2, batches 7,");
}

// It has let go of all when it ends, and has told nobody why.
TEST(DistOptElasticTest, OneEndsInOrder) {
  if (choir_testing::InRank()) {
    auto rank = std::make_unique<ElasticRank>();
    rank->TrainUpTo(2);
    rank->ComeLast(1);
    if (Rank() == 1) {
      choir_comm_t* comm = rank->generation().comm;
      choir_comm_abort(comm, "enough");
      rank.reset();
      choir_comm_release(comm);
      _exit(0);
    }
    rank->TrainUpTo(kSteps);
    if (!choir_testing::Contains(rank->generation().text, "pid \\d+. is gone"))
      Say(rank->generation().text);
    rank->End();
  }
  Expect(3, {1}, "^close, generation 2, batches 7,");
}

// A collective of the program's own fails; some are in the step behind it.
TEST(DistOptElasticTest, Recover) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(3);
    if (Rank() == 0) raise(SIGKILL);
    if (Rank() == 1) {
      choir_status_t status = choir_comm_barrier(rank.generation().comm, "end");
      if (!status) Say("nobody is missing");
      Must(choir_training_recover(rank.training().model(), status));
    } else {
      Must(rank.TrainOn(3));
    }
    if (rank.step() != 3 || rank.generation().number != 2)
      Say("not in the next generation");
    Must(choir_comm_barrier(rank.generation().comm, "end"));
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {0}, "^close, generation 2, batches 7,");
}

// What each rank has not sent yet is what it was before the step that is taken
// back, and is sent in later ones; all go on with the same parameters.
class DistOptResidualsTest
    : public ::testing::TestWithParam<const choir_strategy_def_t*> {};

TEST_P(DistOptResidualsTest, GoOn) {
  if (choir_testing::InRank()) {
    Training::Options options = Elastic();
    options.optimizer = "sgd";
    options.strategy = GetParam();
    ElasticRank rank(options);
    rank.TrainUpTo(3);
    const uint64_t before = rank.training().StatesDigest();
    if (Rank() == 1) raise(SIGKILL);
    Must(rank.TrainOn(3));
    if (rank.step() != 3) Say("not taken back");
    if (rank.training().StatesDigest() != before) Say("other states");
    bool keeps = false;
    for (const auto& [name, data] : rank.training().Values())
      if (name.find("residual") != std::string::npos)
        for (const float value : data) keeps = keeps || value != 0;
    if (!keeps) Say("nothing is kept");
    rank.TrainUpTo(kSteps);
    choir_model_t* model = rank.training().model();
    std::vector<choir_named_tensor_t> params;
    const choir_param_set_t* set = choir_model_params(model);
    for (size_t i = 0; i < set->count; ++i)
      params.push_back({set->params[i]->name, set->params[i]->value, nullptr});
    uint64_t digest = 0;
    Must(choir_tensor_digest(params.data(), params.size(), &digest));
    Must(choir_dist_opt_check_digest(rank.training().dist(), digest));
    Must(choir_comm_finalize(rank.generation().comm));
    Say(rank.generation().text);
    _exit(0);
  }
  Expect(3, {1}, "is gone, 2 workers go on without what others had not sent$");
}
INSTANTIATE_TEST_SUITE_P(
    Each, DistOptResidualsTest,
    testing::Values(&choir_strategy_def_sparse_top_k,
                    &choir_strategy_def_sparse_threshold,
                    &choir_strategy_def_dgc),
    [](const testing::TestParamInfo<const choir_strategy_def_t*>& info) {
      return choir_strategy_def_option(info.param);
    });

TEST(DistOptElasticTest, LostAtTheEnd) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(kSteps);
    if (Rank() == 0) raise(SIGKILL);
    rank.End();
  }
  Expect(3, {0}, "^close, generation 2, batches 7,");
}

// All that are there have only just come, so nobody knows the parameters.
TEST(DistOptElasticTest, NobodyIsLeftWhoKnows) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    if (Rank() == 1) raise(SIGKILL);
    choir_status_t status = choir_comm_barrier(rank.generation().comm, "end");
    choir_model_set_step(rank.training().model(), -1);
    status = choir_training_recover(rank.training().model(), status);
    Say(status ? choir_status_message(status) : "not refused");
    _exit(0);
  }
  Expect(3, {1}, "nobody is left who has the run's parameters");
}

// ---- Shards ----

Training::Options Sharded() {
  Training::Options options = Elastic();
  options.shard = true;
  options.bucket_bytes = 2000;
  return options;
}

// Is killed where a step comes to the record `number` of this name, behind all
// that it has submitted before.
class KilledAt {
 public:
  KilledAt(ElasticRank* rank, std::string name, int number)
      : stream_(choir_device_stream(rank->training().device())) {
    stage_.before = [name = std::move(name),
                     number](const choir_record_t* record) mutable {
      if (choir_record_name(record) == name && number-- == 0) raise(SIGKILL);
      return static_cast<choir_status_t>(nullptr);
    };
    choir_stream_push_stage(stream_, &stage_.stage);
  }

 private:
  choir_stream_t* stream_;
  choir_testing::NoteStage stage_;
};

struct Moment {
  const char* name;
  const char* record;  // nullptr: between steps
  int number;
};

class DistOptHoldersTest
    : public ::testing::TestWithParam<std::tuple<int, Moment>> {};

// Its part is with the rank behind it, and nothing is lost.
TEST_P(DistOptHoldersTest, OneIsKilled) {
  const auto& [victim, moment] = GetParam();
  if (choir_testing::InRank()) {
    ElasticRank rank(Sharded());
    rank.TrainUpTo(3);
    if (Rank() == victim) {
      // A graph that is replayed goes by no stage.
      choir_model_set_graph(rank.training().model(), false, false);
      if (!moment.record) raise(SIGKILL);
      KilledAt end(&rank, moment.record, moment.number);
      Must(rank.TrainOn(3));
      Say("it was not killed");
      _exit(1);
    }
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {victim}, "^close, generation 2, batches ");
}
INSTANTIATE_TEST_SUITE_P(
    Each, DistOptHoldersTest,
    testing::Combine(
        testing::Values(0, 1, 2),
        testing::Values(Moment{"BetweenSteps", nullptr, 0},
                        Moment{"InTheUpdate", "second holder/dist_opt", 0},
                        Moment{"BeforeItGives", "all_gather/comm", 0},
                        Moment{"HasGivenSome", "all_gather/comm", 1})),
    [](const testing::TestParamInfo<std::tuple<int, Moment>>& info) {
      return std::string(std::get<1>(info.param).name) + "OfRank" +
             std::to_string(std::get<0>(info.param));
    });

TEST(DistOptHoldersTest, OneIsLeft) {
  if (choir_testing::InRank()) {
    ElasticRank rank(Sharded());
    rank.TrainUpTo(2);
    if (Rank() == 1) raise(SIGKILL);
    rank.TrainUpTo(4);
    if (Rank() == 0) raise(SIGKILL);
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {0, 1}, "^close, generation 3, batches ");
}

// Before the first step, too.
TEST(DistOptHoldersTest, KilledBeforeAllSteps) {
  if (choir_testing::InRank()) {
    ElasticRank rank(Sharded());
    if (Rank() == 0) raise(SIGKILL);
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {0}, "^close, generation 2, batches 7,");
}

// States that the program sets go to their second holders before the next step.
TEST(DistOptHoldersTest, StatesAreSet) {
  if (choir_testing::InRank()) {
    ElasticRank rank(Sharded());
    rank.TrainUpTo(2);
    std::vector<choir_named_tensor_t> wholes = rank.training().WholeStates();
    std::vector<std::vector<char>> kept;
    for (const choir_named_tensor_t& whole : wholes) {
      kept.emplace_back(
          static_cast<size_t>(choir_tensor_count(whole.tensor) * 4));
      Must(choir_tensor_read(whole.tensor, kept.back().data(),
                             kept.back().size()));
    }
    rank.TrainUpTo(3);
    size_t i = 0;
    for (const choir_named_tensor_t& state : rank.training().States()) {
      choir_tensor_t* whole = nullptr;
      Must(choir_named_tensor_make_whole(&state, &whole));
      Must(choir_tensor_write(whole, kept[i].data(), kept[i].size()));
      Must(choir_named_tensor_take(&state, whole));
      choir_tensor_release(whole);
      ++i;
    }
    choir_model_set_step(rank.training().model(), 2);
    if (Rank() == 1) {
      choir_model_set_graph(rank.training().model(), false, false);
      KilledAt end(&rank, "second holder/dist_opt", 0);
      Must(rank.TrainOn(2));
    }
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(3, {1}, "^close, generation 2, batches ");
}

// Waits until a process of this family has ended, whoever has to reap it.
void WaitForEndOf(int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  for (;;) {
    FILE* file = fopen(path.c_str(), "r");
    char state = 'X';
    if (file && fscanf(file, "%*d %*s %c", &state) != 1) state = 'X';
    if (file) fclose(file);
    if (state == 'X' || state == 'Z') return;
    usleep(1000);
  }
}

// A file of this run, where ranks find each other.
std::string FileOf(const std::string& name) {
  return ::testing::TempDir() + getenv("CHOIR_COMM_ID") + name;
}
void WaitForFile(const std::string& path) {
  while (access(path.c_str(), F_OK)) usleep(1000);
}

// Of four ranks each one's part is with the next: what two next to each other
// had is lost with them, what two others had is not.
void KillTwo(int first, int second) {
  ElasticRank rank(Sharded());
  rank.TrainUpTo(3);
  int64_t pids[4];
  const int64_t own = getpid();
  Must(choir_comm_all_gather(rank.generation().comm, &own, pids, 1,
                             CHOIR_DTYPE_I64, "pids"));
  if (Rank() == first || Rank() == second) raise(SIGKILL);
  WaitForEndOf(pids[first]);
  WaitForEndOf(pids[second]);
  choir_status_t status = rank.TrainOn(3);
  if (status) {
    Say(choir_status_message(status));
    // Its end would be one more loss to those who have not said it yet.
    const std::string said = "said" + std::to_string(Rank());
    std::ofstream(FileOf(said)) << "yes";
    for (int r = 0; r < 4; ++r)
      if (r != first && r != second)
        WaitForFile(FileOf("said" + std::to_string(r)));
    _exit(0);
  }
  rank.TrainUpTo(kSteps);
  rank.End();
}

TEST(DistOptHoldersTest, TwoApartAreKilled) {
  if (choir_testing::InRank()) KillTwo(1, 3);
  Expect(4, {1, 3}, "^close, generation 2, batches 7,");
}
TEST(DistOptHoldersTest, BothHoldersAreKilled) {
  if (choir_testing::InRank()) KillTwo(1, 2);
  Expect(
      4, {1, 2},
      "rank 1 and the second holder of its shard were lost at the same time");
}

// The second holder is on another host, so that a host may be lost.
TEST(DistOptHoldersTest, AHostIsLost) {
  if (choir_testing::InRank()) {
    const std::string host = "h" + std::to_string(Rank() / 2);
    setenv("CHOIR_HOST", host.c_str(), 1);
    ElasticRank rank(Sharded());
    rank.TrainUpTo(3);
    if (host == "h1") raise(SIGKILL);
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  Expect(6, {2, 3}, "^close, generation \\d, batches ", "tcp");
}

// ---- Those who come ----

// What was logged here of the state that a newcomer was given.
std::atomic<int> fed{0};

void TellPid() {
  const std::string path = FileOf("pid" + std::to_string(Rank()));
  std::ofstream(path + "~") << getpid();
  rename((path + "~").c_str(), path.c_str());
}
pid_t PidOf(int rank) {
  const std::string path = FileOf("pid" + std::to_string(rank));
  WaitForFile(path);
  pid_t pid = 0;
  std::ifstream(path) >> pid;
  return pid;
}

// A rank that comes to a run of two.
void Come() {
  WaitForFile(FileOf("members"));
  setenv("CHOIR_RANK", "0", 1);
  setenv("CHOIR_SIZE", "1", 1);
  setenv("CHOIR_NEWCOMER", "1", 1);
  choir_log_set_sink(
      [](void*, choir_log_level_t, const char*, const char* message) {
        if (choir_testing::Contains(message, "has the state after")) ++fed;
      },
      nullptr, CHOIR_LOG_INFO);
}

// This rank gives a newcomer the state.
bool Gives() {
  bool gives = false;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    gives = gives || name == "choir-giver";
  }
  return gives;
}

// Two members; the ranks behind them come when these are under way. All train
// until `size` have made steps together, others than at the start. `giving`:
// called on each member that gives, with its rank, before it gives the
// gradients of a step.
void TakeIn(Training::Options options, int size,
            const std::function<void(int)>& giving = nullptr) {
  const int place = Rank();
  setenv("CHOIR_MEMBERS", FileOf("members").c_str(), 1);
  setenv("CHOIR_SIZE", "2", 1);
  TellPid();
  if (place >= 2) Come();
  ElasticRank rank(options);
  // A graph that is replayed goes by no stage.
  if (giving) choir_model_set_graph(rank.training().model(), false, false);
  choir_testing::NoteStage stage;
  stage.before = [&](const choir_record_t* record) {
    if (giving && place < 2 && Gives() &&
        choir_record_name(record) == std::string("feed/dist_opt"))
      giving(place);
    return static_cast<choir_status_t>(nullptr);
  };
  choir_stream_t* stream = choir_device_stream(rank.training().device());
  choir_stream_push_stage(stream, &stage.stage);
  // What the program sets of it goes to those who come.
  choir_optimizer_t* optimizer = rank.training().optimizer();
  if (place < 2) Must(choir_optimizer_set_lr(optimizer, 0.002));
  while (rank.generation().number == 1 ||
         choir_comm_size(rank.generation().comm) < size ||
         rank.step() < rank.generation().step + 3) {
    usleep(2000);
    Must(rank.TrainOn(rank.step()));
  }
  choir_stream_pop_stage(stream, &stage.stage);
  choir_model_t* model = rank.training().model();
  uint64_t digest = rank.training().Digest();
  Must(choir_dist_opt_check_digest(rank.training().dist(), digest));
  int32_t count = fed;
  Must(choir_comm_all_reduce(rank.generation().comm, &count, &count, 1,
                             CHOIR_DTYPE_I32, CHOIR_REDUCE_SUM, "fed"));
  rank.Finalize();
  Say("step " + std::to_string(choir_model_step(model)) + ", fed " +
      std::to_string(count) + ", lr " +
      std::to_string(choir_optimizer_lr(optimizer, 0)) + ", digest " +
      std::to_string(digest));
  _exit(0);
}

// The state comes while the others go on; it is theirs after as many steps.
class DistOptFeedTest
    : public ::testing::TestWithParam<const choir_strategy_def_t*> {};

TEST_P(DistOptFeedTest, OneComes) {
  if (choir_testing::InRank()) {
    Training::Options options = Elastic();
    options.strategy = GetParam();
    TakeIn(options, 3);
  }
  Expect(3, {}, "fed 1, lr 0.002000,");
}
INSTANTIATE_TEST_SUITE_P(
    Each, DistOptFeedTest,
    testing::Values(&choir_strategy_def_fp32, &choir_strategy_def_bf16,
                    &choir_strategy_def_sparse_top_k),
    [](const testing::TestParamInfo<const choir_strategy_def_t*>& info) {
      return choir_strategy_def_option(info.param);
    });

TEST(DistOptFeedTest, GradientsWithLimits) {
  if (choir_testing::InRank()) {
    Training::Options options = Elastic();
    options.clip_norm = 0.5;
    TakeIn(options, 3);
  }
  Expect(3, {}, "fed 1,");
}
TEST(DistOptFeedTest, TwoCome) {
  if (choir_testing::InRank()) TakeIn(Elastic(), 4);
  Expect(4, {}, "fed 2,");
}
// What the newcomer has got by then is of no use: it is given the state when it
// is taken in.
TEST(DistOptFeedTest, AGiverIsLost) {
  if (choir_testing::InRank()) {
    TakeIn(Elastic(), 2, [](int rank) {
      if (rank == 1) raise(SIGKILL);
      WaitForEndOf(PidOf(1));
    });
  }
  Expect(3, {1}, "fed 0,");
}
TEST(DistOptFeedTest, TheFirstGiverIsLost) {
  if (choir_testing::InRank()) {
    TakeIn(Elastic(), 2, [](int rank) {
      if (rank == 0) raise(SIGKILL);
    });
  }
  Expect(3, {0}, "fed 0,");
}
// The others do not notice, and give it to one that comes later.
TEST(DistOptFeedTest, TheNewcomerIsLost) {
  if (choir_testing::InRank()) {
    if (Rank() == 3) WaitForEndOf(PidOf(2));
    TakeIn(Elastic(), 3, [](int) { kill(PidOf(2), SIGKILL); });
  }
  Expect(4, {2}, "fed 1,");
}
TEST(DistOptFeedTest, Shards) {
  if (choir_testing::InRank()) TakeIn(Sharded(), 3);
  Expect(3, {}, "fed 0,");
}

// ---- Those who leave ----

// What the call of a rank that leaves returns.
void ExpectLeft(ElasticRank* rank, const std::string& why,
                choir_status_t status) {
  const std::string words =
      "rank " + std::to_string(Rank()) + " has left the run: " + why;
  if (choir_status_code(status) != CHOIR_STATUS_ABORTED ||
      choir_status_message(status) != words || !rank->generation().has_left)
    Say(choir_status_message(status));
  choir_status_free(status);
}

void (*TerminateHandler())(int) {
  struct sigaction action;
  sigaction(SIGTERM, nullptr, &action);
  return action.sa_handler;
}

// Nor does anybody wait for its end.
TEST_P(DistOptElasticTestOf, Terminated) {
  const int leaver = GetParam();
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(3);
    rank.ComeLast(leaver);
    if (Rank() == leaver) {
      raise(SIGTERM);
      EXPECT_EQ(TerminateHandler(), SIG_DFL);
      ExpectLeft(&rank, "SIGTERM", rank.TrainOn(3));
      ExpectLeft(&rank, "SIGTERM", rank.TrainOn(3));
      if (rank.step() != 3) Say("its last step is another");
      for (;;) pause();
    }
    Must(rank.TrainOn(3));
    if (!choir_testing::Matches(
            rank.generation().text,
            "generation 2: rank " + std::to_string(leaver) +
                " \\(host .+, pid \\d+\\) has left, 2 workers go on"))
      Say(rank.generation().text);
    rank.TrainUpTo(kSteps);
    rank.End();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, "shm", 3);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == leaver) continue;
    ASSERT_TRUE(
        group.WaitForOutput(static_cast<size_t>(rank), "SAYS", Patience(60)));
  }
  EXPECT_FALSE(choir_testing::Contains(
      group.output(static_cast<size_t>(leaver)), "SAYS"))
      << group.output(static_cast<size_t>(leaver));
  group.Signal(static_cast<size_t>(leaver), SIGKILL);
  Expect(&group, {leaver}, "^close, generation 2, batches 7,");
}

// As the program calls for, until nobody is left.
TEST(DistOptElasticTest, AllLeave) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(2 + Rank());
    choir_dist_opt_leave(rank.training().dist());
    choir_status_t status = rank.TrainOn(rank.step());
    if (!choir_testing::Matches(
            choir_status_message(status),
            "rank 0 has left the run: choir_dist_opt_leave"))
      Say(choir_status_message(status));
    choir_status_free(status);
    Say(rank.generation().has_left ? "left" : "not left");
    _exit(0);
  }
  Expect(3, {}, "^left$");
}

// Of those who leave at the same time each goes when nobody needs it: the step
// in which it is asked is made, and more.
void LeaveTogether(int first, int second) {
  ElasticRank rank(Sharded());
  rank.TrainUpTo(3);
  if (Rank() == first || Rank() == second)
    choir_dist_opt_leave(rank.training().dist());
  choir_status_t status = nullptr;
  while (!status && rank.step() < kSteps) status = rank.TrainOn(rank.step());
  if (Rank() == first || Rank() == second) {
    if (!rank.generation().has_left)
      Say(status ? choir_status_message(status) : "has not left");
    _exit(0);
  }
  Must(status);
  rank.End();
}
TEST(DistOptHoldersTest, BothHoldersLeave) {
  if (choir_testing::InRank()) LeaveTogether(1, 2);
  Expect(4, {1, 2}, "^close, generation 3, batches 7,");
}
TEST(DistOptHoldersTest, TwoApartLeave) {
  if (choir_testing::InRank()) LeaveTogether(0, 2);
  Expect(4, {0, 2}, "^close, generation \\d, batches 7,");
}
TEST(DistOptHoldersTest, AllLeave) {
  if (choir_testing::InRank()) {
    ElasticRank rank(Sharded());
    rank.TrainUpTo(2);
    choir_dist_opt_leave(rank.training().dist());
    choir_status_t status = nullptr;
    while (!status) status = rank.TrainOn(rank.step());
    Say(rank.generation().has_left ? "left" : choir_status_message(status));
    _exit(0);
  }
  Expect(4, {}, "^left$");
}

// It has to go while it waits for one that is lost.
TEST(DistOptElasticTest, TerminatedInACollective) {
  if (choir_testing::InRank()) {
    ElasticRank rank;
    rank.TrainUpTo(3);
    rank.ComeLast(0);
    if (Rank() == 0) raise(SIGKILL);
    raise(SIGTERM);
    choir_status_t status = choir_comm_barrier(rank.generation().comm, "end");
    ExpectLeft(&rank, "SIGTERM",
               choir_training_recover(rank.training().model(), status));
    Say("generation " + std::to_string(rank.generation().number));
    _exit(0);
  }
  Expect(2, {0}, "^generation 1$");
}

// What handles SIGTERM, with an elastic DistOpt and after it.
void ExpectHandlers(bool is_elastic, bool is_watched, void (*before)(int)) {
  signal(SIGTERM, before);
  {
    choir_comm_t* comm = Join();
    Training::Options options = Elastic();
    options.elastic = is_elastic;
    Training training(SmallLayers(), comm, options);
    EXPECT_EQ(TerminateHandler(), before);
    Must(training.Attach());
    EXPECT_EQ(TerminateHandler() != before, is_watched);
    choir_comm_release(comm);
  }
  EXPECT_EQ(TerminateHandler(), before);
  signal(SIGTERM, SIG_DFL);
}

TEST(DistOptElasticTest, Handlers) {
  ExpectHandlers(true, true, SIG_DFL);
  ExpectHandlers(true, false, SIG_IGN);
  ExpectHandlers(false, false, SIG_DFL);
}

TEST(DistOptElasticTest, OnlyElasticOnesLeave) {
  choir_comm_t* comm = Join();
  Training training(SmallLayers(), comm, Training::Options());
  Must(training.Attach());
  choir_dist_opt_leave(nullptr);
  choir_dist_opt_leave(training.dist());
  choir_status_t status = training.TrainOn(0, 0, kGlobal, kGlobal);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  choir_status_free(status);
  choir_comm_release(comm);
}

// ---- What is refused ----

// What it cannot do yet is refused by all.
void Refuse(const Training::Options& options) {
  choir_comm_t* comm = Join();
  Training training(SmallLayers(), comm, options);
  choir_status_t status = training.Attach();
  Say(status ? choir_status_message(status) : "not refused");
  _exit(0);
}

TEST(DistOptElasticTest, Passes) {
  Training::Options options = Elastic();
  options.passes = 2;
  if (choir_testing::InRank()) Refuse(options);
  Expect(2, {}, "elastic needs one pass per step");
}
TEST(DistOptElasticTest, FactorsOfAll) {
  Training::Options options = Elastic();
  options.strategy = &choir_strategy_def_power_sgd;
  if (choir_testing::InRank()) Refuse(options);
  Expect(2, {}, "elastic with powerSGD, which keeps more");
}
TEST(DistOptElasticTest, OtherDevices) {
  Training::Options options = Elastic();
  options.device = "cpu_async";
  if (choir_testing::InRank()) Refuse(options);
  Expect(2, {}, "elastic needs the device cpu");
}

}  // namespace
