// SPDX-License-Identifier: Apache-2.0
// A step is applied and counted, or neither: whatever fails, a program that
// goes on from choir_model_step has the bits of one where nothing failed.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/model_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::FailingAllocator;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Net;
using choir::testing::Read;
using choir::testing::TensorPtr;

// What a callback does beside its step, and when.
enum class When { kNever, kInForward, kBeforeUpdate, kAfterUpdate };

class CountTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, CountTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// A model whose every step has a batch of its own, so that one applied twice or
// left out is seen.
class Training {
 public:
  explicit Training(const char* device, bool use_graph,
                    const choir_device_options_t* options = nullptr)
      : device_(MakeDevice(device, options)),
        net_(
            [](Net* net) {
              net->Linear("fc1", 8, true);
              net->Linear("middle", 8);
              net->Dropout("drop", 0.25);
              net->Linear("fc2", 3);
            },
            [this](Net* net, choir_scope_t* scope, choir_var_t* x) {
              Act(When::kInForward, scope);
              return choir::testing::Chain(net, scope, x);
            },
            [this](Net* net, choir_scope_t* scope, choir_var_t* x,
                   choir_var_t* y, choir_var_t** out_loss) {
              choir_var_t* out = net->RunForward(scope, x);
              *out_loss = choir_var_softmax_cross_entropy(scope, out, y);
              Act(When::kBeforeUpdate, scope);
              choir_model_backward_and_update(net->get(), scope, *out_loss);
              Act(When::kAfterUpdate, scope);
              return out;
            }) {
    EXPECT_OK(net_.Create(device_.get(), 3));
    EXPECT_OK(net_.Compile({1, 4}));
    EXPECT_OK(net_.UseSgd(0.1, 0.9));
    choir_model_set_graph(net_.get(), use_graph, false);
    for (uint32_t i = 0; i < 8; ++i) {
      const int64_t n = 6;
      x_.push_back(Make(device_.get(), {n, 4}, Floats(4 * n, 10 + i)));
      std::vector<int64_t> labels;
      for (int64_t k = 0; k < n; ++k) labels.push_back((k * (i + 1)) % 3);
      y_.push_back(Make(device_.get(), {n}, labels));
    }
  }
  ~Training() {
    choir_status_free(
        choir_stream_synchronize(choir_device_stream(device_.get())));
  }

  // The next step by its number, as a program does that goes on after a
  // failure. With what threads met.
  choir_status_t Step() {
    const size_t i = static_cast<size_t>(steps());
    const choir_model_batch_t batch = {{x_[i].get()}, {y_[i].get()}, 0, 6, 6};
    choir_status_t status = choir_model_train_one_batch(net_.get(), &batch);
    return status ? status
                  : choir_stream_synchronize(choir_device_stream(device()));
  }
  void StepsUpTo(int64_t count) {
    while (steps() < count) ASSERT_OK(Step());
  }
  int64_t steps() { return choir_model_step(net_.get()); }
  // Parameters, states and the optimizer's states.
  uint64_t Digest() {
    std::vector<choir_named_tensor_t> states(
        choir_model_states(net_.get(), nullptr));
    choir_model_states(net_.get(), states.data());
    uint64_t digest = 0;
    EXPECT_OK(choir_tensor_digest(states.data(), states.size(), &digest));
    return digest;
  }
  choir_device_t* device() { return device_.get(); }
  Net* net() { return &net_; }

  When when = When::kNever;
  std::function<void(choir_scope_t*)> act;

 private:
  void Act(When now, choir_scope_t* scope) {
    if (now == when) act(scope);
  }
  DevicePtr device_;
  Net net_;
  std::vector<TensorPtr> x_;
  std::vector<TensorPtr> y_;
};

// After how many steps which digest.
std::vector<uint64_t> EagerDigests(const char* device) {
  Training eager(device, false);
  std::vector<uint64_t> digests = {eager.Digest()};
  for (int i = 0; i < 6; ++i) {
    EXPECT_OK(eager.Step());
    digests.push_back(eager.Digest());
  }
  return digests;
}

// A callback that reads a parameter in the middle of a step that is recorded,
// and one that fails the step itself.
TEST_P(CountTest, CallbacksThatFail) {
  const std::vector<uint64_t> eager = EagerDigests(GetParam());
  for (bool use_graph : {false, true}) {
    for (bool reads : {false, true}) {
      for (When when :
           {When::kInForward, When::kBeforeUpdate, When::kAfterUpdate}) {
        SCOPED_TRACE(std::string(use_graph ? "graph " : "eager ") +
                     (reads ? "reads " : "fails ") +
                     std::to_string(static_cast<int>(when)));
        Training run(GetParam(), use_graph);
        run.StepsUpTo(1);
        run.when = when;
        run.act = [&](choir_scope_t* scope) {
          if (reads) {
            run.net()->value(0);
          } else {
            choir_scope_fail(scope, CHOIR_ERROR(INTERNAL, "on purpose"));
          }
        };
        choir_status_t status = run.Step();
        const std::string said = choir_status_message(status);
        const bool failed = status != nullptr;
        choir_status_free(status);
        EXPECT_EQ(failed, use_graph || !reads);
        // Reading fails the recording, not the step.
        const bool applied = reads || when == When::kAfterUpdate;
        ASSERT_EQ(run.steps(), applied ? 2 : 1);
        EXPECT_EQ(said.find("training step 1") != std::string::npos, failed);
        EXPECT_EQ(said.find("was applied and counted") != std::string::npos,
                  failed && applied)
            << said;
        EXPECT_EQ(run.Digest(), eager[static_cast<size_t>(run.steps())]);
        run.when = When::kNever;
        run.StepsUpTo(6);
        EXPECT_EQ(run.Digest(), eager[6]);
      }
    }
  }
}

// Every allocation of a step fails in turn, from now on or once: of the first
// one (which is never recorded), of the one that is recorded and planned, and
// of a replay. Returns how many failed.
int64_t FailEach(const char* device, bool use_graph, int64_t before,
                 const std::vector<uint64_t>& eager) {
  int64_t failures = 0;
  for (bool for_good : {false, true}) {
    bool came = true;
    for (int64_t nth = 0; came && nth < 5000; ++nth) {
      SCOPED_TRACE("step " + std::to_string(before) + " allocation " +
                   std::to_string(nth) + (for_good ? " and all later" : ""));
      FailingAllocator allocator;
      choir_device_options_t options = {};
      options.allocator = allocator.get();
      {
        Training run(device, use_graph, &options);
        run.StepsUpTo(before);
        choir_device_trim(run.device());
        allocator.FailAt(nth, for_good);
        choir_status_t status = run.Step();
        came = allocator.failed();
        allocator.FailAt(-1);
        failures += status != nullptr;
        if (status) {
          EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY)
              << choir_status_message(status);
        }
        choir_status_free(status);
        choir_status_free(
            choir_stream_synchronize(choir_device_stream(run.device())));
        const bool is_whole =
            run.Digest() == eager[static_cast<size_t>(run.steps())];
        status = run.Step();
        if (!status) {
          EXPECT_TRUE(is_whole);
          run.StepsUpTo(5);
          EXPECT_EQ(run.Digest(), eager[5]);
        } else {
          // Where submitting a record takes memory an update may stop in its
          // middle; then nothing goes on from there.
          EXPECT_STRNE(device, "cpu");
          EXPECT_STATUS(FAILED_PRECONDITION, "changed some of the parameters",
                        status);
        }
      }
      if (::testing::Test::HasFailure()) return failures;
    }
  }
  return failures;
}

TEST_P(CountTest, StepsThatHaveNoMemory) {
  const std::vector<uint64_t> eager = EagerDigests(GetParam());
  int64_t failures = FailEach(GetParam(), false, 0, eager);
  if (HasFailure()) return;
  EXPECT_GT(failures, 5);
  failures = FailEach(GetParam(), true, 1, eager);
  if (HasFailure()) return;
  EXPECT_GT(failures, 50);
  FailEach(GetParam(), true, 2, eager);
}

}  // namespace
