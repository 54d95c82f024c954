// SPDX-License-Identifier: Apache-2.0
// What a rank alone fails at behind its update leaves its step counted, as it
// is on all others.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::IsCalled;
using choir_testing::Must;
using choir_testing::NoteStage;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;

constexpr int64_t kSteps = 6;

// All passes of kSteps steps, `passes` each. In pass `failing` of all (-1:
// none) the record that adds the loss to its sum, behind the update, is refused
// on the last rank.
void Train(Training* training, const Comm& comm, int64_t passes,
           int64_t failing) {
  bool fails = false;
  NoteStage stage;
  stage.before = [&](const choir_record_t* record) -> choir_status_t {
    if (fails && IsCalled(record, "cast"))
      return CHOIR_ERROR(INTERNAL, "on purpose");
    return nullptr;
  };
  choir_stream_t* stream = choir_device_stream(training->device());
  choir_stream_push_stage(stream, &stage.stage);
  int64_t pass = 0;
  for (int64_t step = 0; step < kSteps;) {
    fails = pass == failing && comm.rank() + 1 == comm.size();
    choir_status_t status =
        training->TrainOn(pass, comm.rank() * 16, 16, 16 * comm.size());
    if (fails) {
      EXPECT_STATUS(INTERNAL,
                    (pass + 1) % passes ? " has the gradients of this pass, go"
                                        : " was applied and counted, go",
                    status);
    } else {
      Must(status);
    }
    ++pass;
    step = choir_model_step(training->model());
  }
  choir_stream_pop_stage(stream, &stage.stage);
  EXPECT_EQ(pass % kSteps, 0);
}

TEST(DistOptCountTest, AFailureBehindTheUpdate) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (const char* device : {"cpu", "null"}) {
    for (int64_t passes : {1, 3}) {
      for (bool sharded : {true, false}) {
        Training::Options options;
        options.device = device;
        options.passes = passes;
        options.peer_memory = sharded;
        Training expected(SmallLayers(), comm.get(), options);
        Must(expected.Attach());
        Train(&expected, comm, passes, -1);
        // Each pass of the first three steps: eager, recorded, replayed.
        for (int64_t failing = 0; failing < 3 * passes; ++failing) {
          SCOPED_TRACE(std::string(device) + " pass " +
                       std::to_string(failing) + " of " +
                       std::to_string(passes) +
                       (sharded ? " sharded" : " not sharded"));
          Training training(SmallLayers(), comm.get(), options);
          Must(training.Attach());
          Train(&training, comm, passes, failing);
          EXPECT_EQ(training.StatesDigest(), expected.StatesDigest());
        }
      }
    }
  }
}

}  // namespace
