// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_DIST_OPT_TESTING_H_
#define CHOIR_TESTS_DIST_DIST_OPT_TESTING_H_

#include <gtest/gtest.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/stage.h"
#include "dist/dist_opt.h"
#include "dist/dist_opt_internal.h"
#include "io/loader.h"
#include "model/model.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

// Models, batches and whole trainings for tests of DistOpt.

namespace choir_testing {

// Each test file is built twice: with steps run eagerly, and as graphs.
#ifdef CHOIR_TEST_GRAPH
constexpr bool kUseGraph = true;
#else
constexpr bool kUseGraph = false;
#endif

// Where a test cannot go on.
inline void Must(choir_status_t status) {
  if (!status) return;
  fprintf(stderr, "failed: %s\n  at %s\n", choir_status_message(status),
          choir_status_origin(status));
  _exit(3);
}

struct LayerText {
  std::string type;
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
};

using Layers = std::vector<LayerText>;

// The CNN of the MNIST job: with "relu" and "max_pool2d", or a variant.
inline Layers MnistLayers(const std::string& activation,
                          const std::string& pool) {
  return {
      {"conv2d", "conv1", {{"out_channels", "20"}, {"kernel_size", "5"}}},
      {activation, "act1", {}},
      {pool, "pool1", {{"kernel_size", "2"}}},
      {"conv2d", "conv2", {{"out_channels", "50"}, {"kernel_size", "5"}}},
      {activation, "act2", {}},
      {pool, "pool2", {{"kernel_size", "2"}}},
      {"flatten", "flat", {}},
      {"linear", "fc1", {{"out_features", "500"}}},
      {activation, "act3", {}},
      {"linear", "fc2", {{"out_features", "10"}}},
  };
}

// A small one for images of 12 x 12.
inline Layers SmallLayers() {
  return {
      {"conv2d",
       "conv",
       {{"out_channels", "6"}, {"kernel_size", "3"}, {"activation", "relu"}}},
      {"max_pool2d", "pool", {{"kernel_size", "2"}}},
      {"flatten", "flat", {}},
      {"dropout", "drop", {{"ratio", "0.25"}}},
      {"linear", "fc1", {{"out_features", "20"}, {"activation", "relu"}}},
      {"linear", "fc2", {{"out_features", "10"}}},
  };
}

constexpr int64_t kSide = 12;

// Samples as numbers: sample i of step `step` is the same on every rank.
inline std::vector<float> Pixels(int64_t step, int64_t first, int64_t count) {
  std::vector<float> pixels(static_cast<size_t>(count * kSide * kSide));
  for (size_t i = 0; i < pixels.size(); ++i) {
    uint32_t word = static_cast<uint32_t>(
        (static_cast<uint64_t>(step * 1000 + first) * kSide * kSide + i) *
            2654435761u +
        12345u);
    word ^= word >> 13;
    word *= 2246822519u;
    word ^= word >> 16;
    pixels[i] = static_cast<float>(word % 1024) / 1024;
  }
  return pixels;
}

inline int32_t Label(int64_t step, int64_t sample) {
  return static_cast<int32_t>((step * 3 + sample * 7) % 10);
}

using Settings = std::vector<std::pair<std::string, std::string>>;

// A strategy's config: defaults, then those of `settings` that it has.
inline std::vector<int64_t> StrategyConfig(const choir_strategy_def_t* def,
                                           const Settings& settings) {
  const choir_struct_def_t* fields = choir_strategy_def_config(def);
  std::vector<int64_t> config(fields->bytes / sizeof(int64_t) + 1);
  choir_struct_init(fields, config.data());
  for (const auto& setting : settings)
    if (choir_struct_find(fields, setting.first.c_str()))
      Must(choir_struct_set(fields, config.data(), setting.first.c_str(),
                            setting.second.c_str()));
  return config;
}

// Elements by name.
using Values = std::vector<std::pair<std::string, std::vector<float>>>;

// A model with its updater. The device is made for it, the communicator (may
// be null: no DistOpt) is borrowed.
class Training {
 public:
  struct Options {
    std::string device = "cpu";
    uint64_t device_seed = 0;
    int32_t threads = 1;
    int device_index = 0;  // of a GPU
    int64_t seed = 0;
    bool use_graph = kUseGraph;
    std::string optimizer = "sgd";
    double lr = 0.005;
    double momentum = 0.9;  // of sgd
    bool nesterov = false;
    int64_t bucket_bytes = 1048576;
    int64_t passes = 1;  // per step
    bool shard = false;
    bool peer_memory = true;
    bool elastic = false;
    const choir_strategy_def_t* strategy = &choir_strategy_def_fp32;
    Settings settings;   // of the strategy, where it has them
    std::string frozen;  // a parameter, before the updater comes
    std::string group;   // names with half the rate and no weight decay
    std::string frozen_group;
    double clip_norm = 0;
    double clip_value = 0;
    bool rehearses = false;  // each step, before it is made
    std::vector<int64_t> shape = {1, 1, kSide, kSide};
  };

  Training(Layers layers, choir_comm_t* comm, Options options)
      : layers_(std::move(layers)), options_(std::move(options)) {
    choir_device_options_t device_options = {};
    device_options.threads = options_.threads;
    device_options.seed = options_.device_seed;
    device_options.index = options_.device_index;
    Must(choir_device_create(options_.device.c_str(), &device_options,
                             &device_));
    choir_model_def_t* def = &def_;
    def->name = "net";
    def->define = [](choir_model_t* model, void* self) {
      static_cast<Training*>(self)->Define(model);
    };
    def->forward = [](choir_scope_t* scope, void* self, choir_vars_t inputs) {
      return static_cast<Training*>(self)->Forward(scope, inputs.at[0]);
    };
    Must(choir_model_create(device_, def, this, options_.seed, &model_));
    choir_view_t x;
    Must(choir_view_make(CHOIR_DTYPE_F32, 4, options_.shape.data(), &x));
    Must(choir_model_compile(model_, &x, 1));
    choir_model_set_graph(model_, options_.use_graph, false);
    if (!options_.frozen.empty()) Param(options_.frozen)->trainable = false;
    MakeOptimizer();
    if (!comm) return;
    choir_dist_opt_config_t config;
    choir_struct_init(&choir_dist_opt_config_def, &config);
    config.bucket_bytes = options_.bucket_bytes;
    config.backward_passes_per_step = options_.passes;
    config.shard = options_.shard;
    config.peer_memory = options_.peer_memory;
    config.elastic = options_.elastic;
    Must(choir_dist_opt_create(optimizer_, comm, &config, &dist_));
    Must(choir_dist_opt_use(
        dist_, options_.strategy,
        StrategyConfig(options_.strategy, options_.settings).data()));
  }

  ~Training() {
    ReleaseWholes();
    choir_model_release(model_);
    choir_dist_opt_release(dist_);
    choir_optimizer_release(optimizer_);
    choir_device_release(device_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  choir_status_t Attach() { return choir_model_set_updater(model_, updater()); }

  choir_status_t Train(const choir_batch_t* batch) {
    choir_model_batch_t step = {{batch->x},
                                {batch->y},
                                batch->first_in_step,
                                batch->sample_count,
                                batch->global_count};
    step.batch_number = batch->step + 1;
    return choir_model_train_one_batch(model_, &step);
  }

  // Samples [first, first + count) of the `global` ones of step `step`.
  choir_status_t TrainOn(int64_t step, int64_t first, int64_t count,
                         int64_t global) {
    return TrainOn(Pixels(step, first, count), step, first, count, global);
  }
  // The same with other images.
  choir_status_t TrainOn(const std::vector<float>& pixels, int64_t step,
                         int64_t first, int64_t count, int64_t global) {
    choir_model_batch_t batch = {{nullptr}, {nullptr}, first, count, global};
    batch.batch_number = step + 1;
    if (count > 0) {
      std::vector<int32_t> labels;
      for (int64_t i = 0; i < count; ++i)
        labels.push_back(Label(step, first + i));
      const int64_t shape[] = {count, 1, kSide, kSide};
      Must(choir_tensor_from_data(device_, CHOIR_DTYPE_F32, 4, shape,
                                  pixels.data(), &batch.inputs[0]));
      Must(choir_tensor_from_data(device_, CHOIR_DTYPE_I32, 1, &count,
                                  labels.data(), &batch.targets[0]));
    }
    double seconds;
    choir_status_t status = nullptr;
    if (options_.rehearses)
      status = choir_model_rehearse(model_, &batch, 2, &seconds);
    if (!status) status = choir_model_train_one_batch(model_, &batch);
    choir_tensor_release(batch.inputs[0]);
    choir_tensor_release(batch.targets[0]);
    return status;
  }

  // A step that forgets to update: forward alone.
  choir_status_t ForwardOn(int64_t step, int64_t first, int64_t count,
                           int64_t global) {
    choir_model_set_graph(model_, false, false);
    def_.train_one_batch = [](choir_model_t*, choir_scope_t* scope, void* self,
                              choir_vars_t inputs, choir_vars_t,
                              choir_var_t**) {
      return static_cast<Training*>(self)->Forward(scope, inputs.at[0]);
    };
    choir_status_t status = TrainOn(step, first, count, global);
    def_.train_one_batch = nullptr;
    return status;
  }

  uint64_t Digest() {
    uint64_t digest = 0;
    Must(choir_model_digest(model_, &digest));
    return digest;
  }

  // Parameters, model states and optimizer states by name.
  std::vector<choir_named_tensor_t> States() {
    std::vector<choir_named_tensor_t> states(
        choir_model_states(model_, nullptr));
    choir_model_states(model_, states.data());
    return states;
  }

  // The same, without shards (choir_updater_gather); until the next call.
  std::vector<choir_named_tensor_t> WholeStates() {
    std::vector<choir_named_tensor_t> states = States();
    ReleaseWholes();
    for (choir_named_tensor_t& state : states) {
      wholes_.push_back(nullptr);
      Must(choir_updater_gather(choir_model_updater(model_), &state, -1,
                                &wholes_.back()));
      state = {state.name, wholes_.back(), nullptr};
    }
    return states;
  }

  uint64_t StatesDigest() {
    std::vector<choir_named_tensor_t> states = WholeStates();
    uint64_t digest = 0;
    Must(choir_tensor_digest(states.data(), states.size(), &digest));
    return digest;
  }

  std::vector<std::pair<std::string, std::vector<float>>> Values() {
    std::vector<std::pair<std::string, std::vector<float>>> values;
    for (const choir_named_tensor_t& state : WholeStates()) {
      std::vector<float> data(
          static_cast<size_t>(choir_tensor_count(state.tensor)));
      Must(choir_tensor_read(state.tensor, data.data(),
                             data.size() * sizeof(float)));
      values.emplace_back(state.name, data);
    }
    return values;
  }

  choir_param_t* Param(const std::string& name) {
    const choir_param_set_t* list = choir_model_params(model_);
    for (size_t i = 0; i < list->count; ++i)
      if (name == list->params[i]->name) return list->params[i];
    ADD_FAILURE() << "no parameter " << name;
    return nullptr;
  }

  std::vector<float> Value(const std::string& name) {
    for (auto& value : Values())
      if (value.first == name) return value.second;
    ADD_FAILURE() << "no state " << name;
    return {};
  }

  // A layer that this rank's forward leaves out from now on.
  void Skip(const std::string& name) { skipped_ = name; }

  choir_device_t* device() const { return device_; }
  choir_model_t* model() const { return model_; }
  choir_dist_opt_t* dist() const { return dist_; }
  choir_optimizer_t* optimizer() const { return optimizer_; }
  double lr() const { return options_.lr; }
  // The optimizer's own, with and without DistOpt.
  choir_updater_t* inner_updater() const {
    return choir_optimizer_updater(optimizer_);
  }
  choir_updater_t* updater() const {
    return dist_ ? choir_dist_opt_updater(dist_)
                 : choir_optimizer_updater(optimizer_);
  }

 private:
  void ReleaseWholes() {
    for (choir_tensor_t* whole : wholes_) choir_tensor_release(whole);
    wholes_.clear();
  }

  void MakeOptimizer() {
    MakePlainOptimizer();
    choir_gradient_clip_t clip;
    choir_struct_init(&choir_gradient_clip_def, &clip);
    clip.norm = options_.clip_norm;
    clip.value = options_.clip_value;
    Must(choir_optimizer_set_clip(optimizer_, &clip));
    choir_param_group_t group;
    choir_struct_init(&choir_param_group_def, &group);
    group.lr_factor = 0.5;
    group.weight_decay = 0;
    group.match = options_.group.c_str();
    if (!options_.group.empty())
      Must(choir_optimizer_add_param_group(optimizer_, &group));
    group.trainable = false;
    group.match = options_.frozen_group.c_str();
    if (!options_.frozen_group.empty())
      Must(choir_optimizer_add_param_group(optimizer_, &group));
  }

  void MakePlainOptimizer() {
    if (options_.optimizer == "adam") {
      choir_adam_config_t adam;
      choir_struct_init(choir_optimizer_def_config(&choir_optimizer_def_adam),
                        &adam);
      adam.lr = options_.lr;
      Must(choir_optimizer_create(&choir_optimizer_def_adam, &adam,
                                  &optimizer_));
      return;
    }
    choir_sgd_config_t sgd;
    choir_struct_init(choir_optimizer_def_config(&choir_optimizer_def_sgd),
                      &sgd);
    sgd.lr = options_.lr;
    sgd.momentum = options_.momentum;
    sgd.nesterov = options_.nesterov;
    sgd.weight_decay = 1e-5;
    Must(choir_optimizer_create(&choir_optimizer_def_sgd, &sgd, &optimizer_));
  }

  void Define(choir_model_t* model) {
    for (const LayerText& text : layers_) {
      const choir_layer_def_t* def = choir_layer_def_find(text.type.c_str());
      const choir_struct_def_t* fields = choir_layer_def_config(def);
      std::vector<int64_t> config(fields->bytes / sizeof(int64_t) + 1);
      choir_struct_init(fields, config.data());
      for (const auto& setting : text.settings)
        Must(choir_struct_set(fields, config.data(), setting.first.c_str(),
                              setting.second.c_str()));
      made_.push_back(
          choir_layer_create(model, text.name.c_str(), def, config.data()));
    }
  }

  choir_var_t* Forward(choir_scope_t* scope, choir_var_t* x) {
    for (size_t i = 0; i < made_.size(); ++i)
      if (layers_[i].name != skipped_)
        x = choir_layer_forward(scope, made_[i], x);
    return x;
  }

  Layers layers_;
  Options options_;
  choir_model_def_t def_ = {};
  std::vector<choir_layer_t*> made_;
  std::string skipped_;
  std::vector<choir_tensor_t*> wholes_;
  choir_device_t* device_ = nullptr;
  choir_model_t* model_ = nullptr;
  choir_optimizer_t* optimizer_ = nullptr;
  choir_dist_opt_t* dist_ = nullptr;
};

// The communicator of a rank; finalized at the end when all went well.
class Comm {
 public:
  explicit Comm(double deadline = 60) {
    choir_comm_config_t config;
    Must(choir_comm_config_init(&config));
    config.deadline = Patience(deadline);
    Must(OpenNcclGpu(&gpu_));
    config.device = gpu_;
    Must(choir_comm_create(&config, &comm_));
  }
  ~Comm() {
    if (!::testing::Test::HasFailure() && !broken_) {
      EXPECT_OK(choir_comm_finalize(comm_));
    }
    choir_comm_release(comm_);
    choir_device_release(gpu_);
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  choir_comm_t* get() const { return comm_; }
  int32_t rank() const { return choir_comm_rank(comm_); }
  int32_t size() const { return choir_comm_size(comm_); }
  // No finalize.
  void ExpectBroken() { broken_ = true; }
  // The same number of every rank.
  std::vector<uint64_t> Gather(uint64_t own) {
    std::vector<uint64_t> all(static_cast<size_t>(size()));
    Must(choir_comm_all_gather(comm_, &own, all.data(), 1, CHOIR_DTYPE_I64,
                               "test"));
    return all;
  }

 private:
  choir_comm_t* comm_ = nullptr;
  choir_device_t* gpu_ = nullptr;  // of NCCL
  bool broken_ = false;
};

// ||a - b|| / ||a||
inline double RelativeError(const std::vector<float>& a,
                            const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += pow(static_cast<double>(a[i]) - b[i], 2);
    norm += pow(static_cast<double>(a[i]), 2);
  }
  return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

// Shares of 64 samples: of three ranks the last one has none.
inline choir_status_t TrainUnevenly(Training* training, const Comm& comm,
                                    int64_t step) {
  const int64_t first[] = {0, 48, 64};
  const int64_t count[] = {48, 16, 0};
  return training->TrainOn(step, first[comm.rank()], count[comm.rank()],
                           comm.size() == 1 ? 48 : 64);
}

// A few uneven steps; the digest of all states, the same on every rank.
inline uint64_t TrainAndDigest(Comm* comm, const Training::Options& options,
                               Layers layers = SmallLayers()) {
  Training training(std::move(layers), comm->get(), options);
  Must(training.Attach());
  for (int64_t step = 0; step < 4; ++step)
    Must(TrainUnevenly(&training, *comm, step));
  EXPECT_OK(
      choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
  return training.StatesDigest();
}

// Notes records in the order in which the program submits them.
struct NoteStage {
  choir_stage_t stage = {};  // first
  std::vector<std::string>* notes = nullptr;
  std::function<choir_status_t(const choir_record_t*)> before;

  NoteStage() {
    stage.submit = [](choir_stage_t* self, choir_stream_t* stream,
                      const choir_record_t* record) {
      NoteStage* own = reinterpret_cast<NoteStage*>(self);
      if (own->notes) own->notes->push_back(choir_record_name(record));
      if (own->before) {
        choir_status_t status = own->before(record);
        if (status) return status;
      }
      return choir_stage_forward(self, stream, record);
    };
  }
};

// Runs ranks whose words the parent compares.
inline void ExpectWords(const std::string& backend, int size,
                        const std::vector<std::string>& patterns) {
  ProcessGroup group;
  StartRanks(&group, backend, size);
  std::vector<ProcessResult> results = group.Wait(Patience(60));
  for (size_t rank = 0; rank < patterns.size(); ++rank) {
    std::string heard = Heard(results, static_cast<int>(rank));
    EXPECT_TRUE(Matches(heard, patterns[rank]))
        << "rank " << rank << " said: " << heard << "\nnot: " << patterns[rank]
        << "\nall: " << results[rank % results.size()].output;
  }
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ended) << result.output;
    EXPECT_LT(result.seconds, Patience(10));
  }
}

inline bool IsCalled(const choir_record_t* record, const std::string& start) {
  return std::string(choir_record_name(record)).find(start) == 0;
}

// Trains until a step fails, and says why. `middle` is called each time a
// record of a kernel whose name begins with `kernel` is submitted, with its
// number in the step.
inline void TrainAndSay(
    const Training::Options& options, const std::string& kernel,
    const std::function<choir_status_t(int64_t, int)>& middle) {
  Comm comm(8);
  comm.ExpectBroken();
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  int64_t step = 0;
  int number = 0;
  choir_stream_t* streams[] = {choir_device_stream(training.device()),
                               choir__dist_opt_background(training.dist())};
  NoteStage stages[2];
  for (int i = 0; i < 2; ++i) {
    stages[i].before = [&](const choir_record_t* record) {
      return IsCalled(record, kernel) ? middle(step, number++) : nullptr;
    };
    choir_stream_push_stage(streams[i], &stages[i].stage);
  }
  choir_status_t status = nullptr;
  for (; !status && step < 50; ++step) {
    number = 0;
    status = training.TrainOn(step, comm.rank() * 16, 16, comm.size() * 16);
    if (!status && options.device != "cpu") {
      // What threads met is told by the next step or by this.
      status = choir_updater_consolidate(training.updater());
    }
  }
  for (int i = 0; i < 2; ++i)
    choir_stream_pop_stage(streams[i], &stages[i].stage);
  Say(std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status));
  choir_status_free(status);
}

// Of what rank 1 is killed in, what survivors say.
inline std::string Killed(const std::string& where,
                          const std::string& operation) {
  return "aborted: " + where + operation +
         " \\(operation \\d+\\): rank 1 "
         "\\(host .+, pid \\d+\\) is gone: its process was killed or ended "
         "too early";
}

inline choir_status_t DieInStep3(int64_t step, int number) {
  if (Rank() == 1 && step == 3 && number == 2) raise(SIGKILL);
  return nullptr;
}

// Of a noted kernel.
inline bool IsExchange(const std::string& name) {
  return name == "all_reduce/comm";
}

}  // namespace choir_testing

#endif  // CHOIR_TESTS_DIST_DIST_OPT_TESTING_H_
