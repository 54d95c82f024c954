// SPDX-License-Identifier: Apache-2.0
// A training step that fails on one rank, wherever it does: the others hear at
// once why, and nobody waits for a deadline or goes on with parameters of its
// own. The last rank is the one that fails, in step 3, and its program goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::FailingAllocator;
using choir_testing::Comm;
using choir_testing::InRank;
using choir_testing::IsCalled;
using choir_testing::kSide;
using choir_testing::kUseGraph;
using choir_testing::Must;
using choir_testing::NoteStage;
using choir_testing::Pixels;
using choir_testing::Say;
using choir_testing::SmallLayers;
using choir_testing::Training;

#ifdef CHOIR_TEST_MPI
constexpr bool kIsMpi = true;
#else
constexpr bool kIsMpi = false;
#endif

constexpr int64_t kStep = 3;

std::string Words(choir_status_t status) {
  std::string words =
      std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status);
  choir_status_free(status);
  return words;
}

// Long enough to tell a deadline from "at once".
constexpr double kDeadline = 40;

// `fail` is run by the last rank in place of step 3; then all go on to train.
// `before` is run by all ranks first.
void TrainUntilTold(
    const Training::Options& options,
    const std::function<choir_status_t(Training*)>& fail,
    const std::function<void(Comm*)>& before = [](Comm*) {}) {
  Comm comm(kDeadline);
  comm.ExpectBroken();
  before(&comm);
  const bool fails = comm.rank() == comm.size() - 1;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  choir_status_t status = nullptr;
  std::string own;
  for (int64_t step = 0; !status && step < 20; ++step) {
    const bool now = fails && step == kStep;
    status =
        now ? fail(&training)
            : training.TrainOn(step, comm.rank() * 16, 16, comm.size() * 16);
    // What threads met is told by the next step or by this.
    if (!status && options.device != "cpu")
      status = choir_updater_consolidate(training.updater());
  }
  own = Words(status);
  // A program that goes on hears the same again.
  status = training.TrainOn(kStep + 1, comm.rank() * 16, 16, comm.size() * 16);
  if (!status) status = choir_updater_consolidate(training.updater());
  const std::string later = Words(status);
  Say(own + " | " + later);
  // mpiexec ends the others when one has ended.
  if (kIsMpi) usleep(1000000);
  _exit(0);
}

// reason: of the failing rank, a regular expression; told: what the others
// hear of it, if that is not all.
void Expect(const std::string& reason, const std::string& operation,
            const std::string& told = "") {
  const int sizes[] = {2, 3, 4};
  choir_testing::ProcessGroup groups[3];
  // Several mpiexec at a time would make the same folder.
  for (int i = 0; i < 3 && !kIsMpi; ++i)
    choir_testing::StartRanks(&groups[i], "shm", sizes[i]);
  for (int i = 0; i < 3; ++i) {
    const int size = sizes[i];
    if (kIsMpi) choir_testing::StartRanks(&groups[i], "mpi", size);
    SCOPED_TRACE(size);
    const std::string broken = "rank " + std::to_string(size - 1) +
                               " \\(host [^ ]+, pid \\d+\\) aborted: "
                               "(training step 3: )?" +
                               (told.empty() ? reason : told);
    const std::string peer = "aborted: (training step \\d+: )?" + operation +
                             broken + " \\| aborted: .*" + broken;
    // Its updater may refuse the next step before that meets the others.
    const std::string own = "[a-z ]+: (training step 3: )?" + reason +
                            " \\| (aborted: .*" + broken +
                            "|failed precondition: .*an earlier update failed "
                            ".*)";
    auto results = groups[i].Wait(choir_testing::Patience(60));
    for (int rank = 0; rank < size; ++rank) {
      const std::string heard = choir_testing::Heard(results, rank);
      const std::string& pattern = rank == size - 1 ? own : peer;
      EXPECT_TRUE(choir_testing::Matches(heard, pattern))
          << "rank " << rank << " said: " << heard << "\nnot: " << pattern
          << "\nall: "
          << results[static_cast<size_t>(rank) % results.size()].output;
    }
    for (const auto& result : results) EXPECT_TRUE(result.ended);
  }
}

const char kGradients[] =
    "(all_gather 'gradients'|all_reduce 'gradient bucket \\d') \\(operation "
    "\\d+\\): ";

// A batch that says 16 samples and has `count` of `side` x `side`.
choir_status_t TrainOnWrong(Training* training, int64_t count, int64_t side) {
  const std::vector<float> pixels = Pixels(kStep, 0, 64);
  const std::vector<int32_t> labels(64, 1);
  const int64_t shape[] = {count, 1, side, side};
  choir_model_batch_t batch = {};
  batch.sample_count = 16;
  batch.global_count = 32;
  Must(choir_tensor_from_data(training->device(), CHOIR_DTYPE_F32, 4, shape,
                              pixels.data(), &batch.inputs[0]));
  Must(choir_tensor_from_data(training->device(), CHOIR_DTYPE_I32, 1, &count,
                              labels.data(), &batch.targets[0]));
  choir_status_t status =
      choir_model_train_one_batch(training->model(), &batch);
  choir_tensor_release(batch.inputs[0]);
  choir_tensor_release(batch.targets[0]);
  return status;
}

TEST(DistOptToldTest, ABatchOfTheWrongSize) {
  if (!InRank()) {
    Expect(
        "model net: the batch has 16 samples but its first input does not "
        "hold as many",
        kGradients);
    return;
  }
  TrainUntilTold(
      {}, [](Training* training) { return TrainOnWrong(training, 15, kSide); });
}

TEST(DistOptToldTest, ABatchOfAnotherShape) {
  if (!InRank()) {
    Expect(".*linear.*", kGradients);
    return;
  }
  Training::Options options;
  options.peer_memory = false;
  TrainUntilTold(options, [](Training* training) {
    return TrainOnWrong(training, 16, kSide - 2);
  });
}

TEST(DistOptToldTest, AStepWithoutUpdate) {
  if (!InRank()) {
    Expect(
        "model net: train_one_batch did not call "
        "choir_model_backward_and_update, and other ranks wait for its "
        "gradients",
        kGradients);
    return;
  }
  TrainUntilTold({}, [](Training* training) {
    return training->ForwardOn(kStep, 16, 16, 32);
  });
}

TEST(DistOptToldTest, NoMemoryForForward) {
  if (!InRank()) {
    Expect(".*bytes asked for; the allocator has none left", kGradients);
    return;
  }
  // For the rest of the process.
  FailingAllocator* allocator = new FailingAllocator;
  Must(choir_allocator_set_default(allocator->get()));
  TrainUntilTold({}, [allocator](Training* training) {
    // Four times the samples need blocks that no step before needed.
    const std::vector<float> pixels = Pixels(kStep, 0, 64);
    const std::vector<int32_t> labels(64, 1);
    const int64_t shape[] = {64, 1, kSide, kSide};
    choir_model_batch_t batch = {};
    batch.sample_count = 64;
    batch.global_count = 80;
    Must(choir_tensor_from_data(training->device(), CHOIR_DTYPE_F32, 4, shape,
                                pixels.data(), &batch.inputs[0]));
    Must(choir_tensor_from_data(training->device(), CHOIR_DTYPE_I32, 1, shape,
                                labels.data(), &batch.targets[0]));
    allocator->FailLarge(16384);
    choir_status_t status =
        choir_model_train_one_batch(training->model(), &batch);
    allocator->FailLarge(SIZE_MAX);
    choir_tensor_release(batch.inputs[0]);
    choir_tensor_release(batch.targets[0]);
    return status;
  });
}

// Runs a step in which the first record whose kernel's name begins so fails.
choir_status_t FailIn(Training* training, const std::string& kernel) {
  NoteStage stage;
  bool failed = false;
  stage.before = [&](const choir_record_t* record) -> choir_status_t {
    if (failed || !IsCalled(record, kernel)) return nullptr;
    failed = true;
    return CHOIR_ERROR(INTERNAL, "broken");
  };
  choir_stream_t* stream = choir_device_stream(training->device());
  choir_stream_push_stage(stream, &stage.stage);
  choir_status_t status = training->TrainOn(kStep, 16, 16, 32);
  choir_stream_pop_stage(stream, &stage.stage);
  EXPECT_TRUE(failed) << "no record of " << kernel;
  return status;
}

// All have exchanged gradients by then: the replicas would differ.
TEST(DistOptToldTest, AnUpdateOfGradientsThatAllHave) {
  if (!InRank()) {
    Expect("((sgd: )?[A-Za-z0-9.]+: )?broken", kGradients);
    return;
  }
  Training::Options options;
  options.peer_memory = false;
  TrainUntilTold(options,
                 [](Training* training) { return FailIn(training, "sgd"); });
}

// A step that all ranks fail in, and can go on after: none has a sample.
std::unique_ptr<Training> FailTogether(Comm* comm) {
  auto training = std::make_unique<Training>(SmallLayers(), comm->get(),
                                             Training::Options());
  Must(training->Attach());
  Must(training->TrainOn(0, comm->rank() * 16, 16, comm->size() * 16));
  EXPECT_STATUS(INVALID_ARGUMENT, "the weights of all ranks add to 0",
                training->TrainOn(1, 0, 0, 0));
  Must(choir_comm_barrier(comm->get(), "in order"));
  return training;
}

// What all ranks failed in before, one after the other, is not taken for what
// one fails in now: neither that of another DistOpt of the communicator ...
TEST(DistOptToldTest, AfterAFailureOfAllInAnother) {
  if (!InRank()) {
    Expect("((sgd: )?[A-Za-z0-9.]+: )?broken", kGradients);
    return;
  }
  Training::Options options;
  options.peer_memory = false;
  std::unique_ptr<Training> other;
  TrainUntilTold(
      options, [](Training* training) { return FailIn(training, "sgd"); },
      [&other](Comm* comm) { other = FailTogether(comm); });
}

// ... nor that of one which is gone.
TEST(DistOptToldTest, AfterAFailureOfAllInAnEarlierOne) {
  if (!InRank()) {
    Expect("((sgd: )?[A-Za-z0-9.]+: )?broken", kGradients);
    return;
  }
  Training::Options options;
  options.peer_memory = false;
  TrainUntilTold(
      options, [](Training* training) { return FailIn(training, "sgd"); },
      [](Comm* comm) { FailTogether(comm); });
}

// In place of the exchange, on one host; over mpi it is the same as above.
TEST(DistOptToldTest, AShardedUpdate) {
  if (!InRank()) {
    Expect("((sgd: )?[A-Za-z0-9.]+: )?broken",
           "(all_gather 'gradients'|all_reduce 'gradient bucket \\d'|barrier "
           "'updated parameters') \\(operation \\d+\\): ");
    return;
  }
  TrainUntilTold({},
                 [](Training* training) { return FailIn(training, "sgd"); });
}

// Local steps have no exchange that could be missed; the others hear of it
// before their next one.
TEST(DistOptToldTest, ALocalStep) {
  if (!InRank()) {
    Expect("((sgd: )?[A-Za-z0-9.]+: )?broken",
           "all_reduce 'change of parameters' \\(operation \\d+\\): ");
    return;
  }
  Training::Options options;
  options.strategy = &choir_strategy_def_local_sgd;
  options.settings = {{"period", "6"}, {"delay", "0"}};
  TrainUntilTold(options,
                 [](Training* training) { return FailIn(training, "sgd"); });
}

std::atomic<bool> has_run{false};

choir_status_t RunBroken(const choir_record_t* record, choir_stream_t* stream) {
  (void)record;
  (void)stream;
  has_run = true;
  return CHOIR_ERROR(INTERNAL, "broken");
}

// On a thread, after the call that trains has returned; or, if `is_awaited`,
// before that call has submitted all, but after the update.
void TrainWithABrokenThread(bool is_awaited) {
  if (!InRank()) {
    // Met by the step's end, or by any of the records that come after it.
    Expect("(.*submitted earlier, broken/test: )?broken", ".*");
    return;
  }
  Training::Options options;
  options.device = "cpu_async";
  options.use_graph = false;
  TrainUntilTold(options, [&](Training* training) {
    static const choir_kernel_t kernel = {"broken/test", RunBroken, nullptr,
                                          nullptr,       nullptr,   false};
    choir_stream_t* stream = choir_device_stream(training->device());
    NoteStage stage;
    stage.before = [&](const choir_record_t* record) -> choir_status_t {
      // Of the loss, which is added to its sum.
      while (is_awaited && IsCalled(record, "cast") && !has_run) usleep(1000);
      if (!IsCalled(record, "softmax_cross_entropy_grad")) return nullptr;
      choir_record_t broken = {};
      broken.kernel = &kernel;
      return choir_stream_submit(stream, &broken);
    };
    choir_stream_push_stage(stream, &stage.stage);
    choir_status_t status = training->TrainOn(kStep, 16, 16, 32);
    choir_stream_pop_stage(stream, &stage.stage);
    return status;
  });
}

TEST(DistOptToldTest, WorkOfAThread) { TrainWithABrokenThread(false); }
TEST(DistOptToldTest, WorkOfAThreadThatIsMetAfterTheUpdate) {
  TrainWithABrokenThread(true);
}

}  // namespace
