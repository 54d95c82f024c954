// SPDX-License-Identifier: Apache-2.0
// Many calls of an op as one record: optimizer steps of many parameters on a
// GPU, with its kernels compiled for the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/record_list.h"
#include "core/stage.h"
#include "tensor/op_calls_def.h"
#include "tensor/tensor_def.h"
#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

struct Update {
  choir_op_t op;
  const char* name;
  int kept;
};
const Update kUpdates[] = {
#define UPDATE(T, NAME, name, states, doc) \
  {CHOIR_OP_##NAME##_UPDATE, #name, states},
    CHOIR_OPTIMIZER_LIST(UPDATE, )};
constexpr Update kSgd = {CHOIR_OP_SGD_UPDATE, "sgd", 1};

using Symbols = std::vector<std::string>;
using Settings = std::vector<std::pair<const char*, const char*>>;

// The attributes of an update.
std::vector<unsigned char> AttrsOf(const Update& update,
                                   const Settings& settings) {
  const choir_struct_def_t* def = choir_op_attrs_def(update.op);
  std::vector<unsigned char> attrs(def->bytes);
  choir_struct_init(def, attrs.data());
  for (const auto& [field, value] : settings)
    EXPECT_OK(choir_struct_set(def, attrs.data(), field, value));
  return attrs;
}

class OpCalls : public CudaKernelsTest {
 protected:
  // A parameter, its gradient and what is kept.
  struct Param {
    std::vector<TensorPtr> tensors;

    std::vector<choir_tensor_t*> srcs() const {
      std::vector<choir_tensor_t*> all;
      for (const TensorPtr& tensor : tensors) all.push_back(tensor.get());
      return all;
    }
    // What the step changes.
    std::vector<choir_tensor_t*> dsts() const {
      std::vector<choir_tensor_t*> all = srcs();
      all.erase(all.begin() + 1);
      return all;
    }
    std::vector<float> Values() const {
      std::vector<float> all;
      for (choir_tensor_t* tensor : dsts()) {
        const std::vector<float> one = Read<float>(tensor);
        all.insert(all.end(), one.begin(), one.end());
      }
      return all;
    }
  };

  static Param MakeParam(const DevicePtr& device, const Update& update,
                         int64_t count, uint32_t seed, int64_t gap = 0,
                         int64_t skip = 0) {
    Param param;
    for (int s = 0; s < 2 + update.kept; ++s) {
      std::vector<float> values =
          Floats(count, 10 * seed + static_cast<uint32_t>(s));
      // Squares are kept, too.
      for (float& value : values)
        if (s > 1) value = std::fabs(value);
      param.tensors.push_back(
          Place<float>(device, {count}, values, {}, gap, skip));
    }
    return param;
  }

  static choir_status_t Call(choir_op_calls_t* calls, const Update& update,
                             const Param& param, const void* attrs) {
    std::vector<choir_tensor_t*> srcs = param.srcs();
    std::vector<choir_tensor_t*> dsts = param.dsts();
    return choir__op_calls_run(calls, update.op, srcs.data(),
                               static_cast<int32_t>(srcs.size()), attrs,
                               dsts.data());
  }
  static choir_status_t CallAlone(const Update& update, const Param& param,
                                  const void* attrs) {
    std::vector<choir_tensor_t*> srcs = param.srcs();
    std::vector<choir_tensor_t*> dsts = param.dsts();
    return choir_op_run(choir_device_stream(choir_tensor_device(srcs[0])),
                        update.op, srcs.data(),
                        static_cast<int32_t>(srcs.size()), attrs, false,
                        dsts.data());
  }
  static choir_op_calls_t Begin(const DevicePtr& device) {
    choir_op_calls_t calls;
    choir__op_calls_begin(&calls, choir_device_stream(device.get()),
                          "parameters");
    return calls;
  }

  // The values of all parameters after two steps: of sizes from 1 to several
  // blocks, more than fit into two launches; some from the second element of
  // their memory on.
  static std::vector<float> Train(const DevicePtr& device, const Update& update,
                                  const Settings& settings, bool has_kept,
                                  bool is_together) {
    const int64_t counts[] = {1, 3, 17, 4, 64, 5, 1023};
    const std::vector<unsigned char> attrs = AttrsOf(update, settings);
    std::vector<Param> params;
    for (uint32_t i = 0; i < 2 * 96 + 8; ++i) {
      const int64_t large = i % 48 == 0 ? 4096 + i / 48 : 0;
      params.push_back(MakeParam(device, update,
                                 i == 50 ? 100000
                                 : large ? large
                                         : counts[i % 7],
                                 i, 0, i % 5 == 4 ? 1 : 0));
      if (!has_kept)
        params.back().tensors[2] = Make<float>(device.get(), {0}, {});
    }
    for (int step = 0; step < 2; ++step) {
      choir_op_calls_t calls = Begin(device);
      for (const Param& param : params)
        EXPECT_OK(is_together ? Call(&calls, update, param, attrs.data())
                              : CallAlone(update, param, attrs.data()));
      EXPECT_OK(choir__op_calls_end(&calls, nullptr));
    }
    std::vector<float> all;
    for (const Param& param : params) {
      const std::vector<float> one = param.Values();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  static void ExpectSameBits(const std::vector<float>& got,
                             const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  }

  // What a parameter has after one step.
  static std::vector<float> AfterOne(const DevicePtr& device,
                                     const Update& update, int64_t count,
                                     uint32_t seed, const void* attrs) {
    const Param param = MakeParam(device, update, count, seed);
    EXPECT_OK(CallAlone(update, param, attrs));
    return param.Values();
  }
};

TEST_F(OpCalls, HaveTheBitsOfCallsOneByOne) {
  for (const Update& update : kUpdates) {
    std::vector<Settings> all = {{{"weight_decay", "0.01"}}};
    if (update.op == CHOIR_OP_SGD_UPDATE) {
      all.push_back({{"momentum", "0.9"}, {"dampening", "0.5"}});
      all.push_back({{"momentum", "0.9"}, {"nesterov", "1"}});
    }
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(update.name + std::string(" ") + all[i][0].first);
      // Without momentum there need be no velocity.
      const bool has_kept = update.op != CHOIR_OP_SGD_UPDATE || i > 0;
      (void)Launched();
      const std::vector<float> got =
          Train(gpu_, update, all[i], has_kept, true);
      EXPECT_EQ(Launched(), Symbols(6, std::string("choir_") + update.name +
                                           "_update_many"));
      ExpectSameBits(got, Train(cpu_, update, all[i], has_kept, false));
      ExpectSameBits(got, Train(cpu_, update, all[i], has_kept, true));
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// A velocity that is there and not used stays as it is.
TEST_F(OpCalls, WithoutMomentumVelocityIsLeftAlone) {
  ExpectSameBits(Train(gpu_, kSgd, {{"lr", "0.3"}}, true, true),
                 Train(cpu_, kSgd, {{"lr", "0.3"}}, true, false));
}

TEST_F(OpCalls, OnesThatDoNotFitRunByThemselves) {
  const Update& adam = kUpdates[1];
  const std::vector<unsigned char> attrs = AttrsOf(kSgd, {{"momentum", "0.9"}});
  const std::vector<unsigned char> other =
      AttrsOf(kSgd, {{"momentum", "0.9"}, {"weight_decay", "0.1"}});
  const std::vector<unsigned char> adams = AttrsOf(adam, {});
  const Param first = MakeParam(gpu_, kSgd, 40, 1);
  const Param apart = MakeParam(gpu_, kSgd, 40, 2, 1);  // with gaps
  const Param second = MakeParam(gpu_, kSgd, 9, 3);
  const Param decayed = MakeParam(gpu_, kSgd, 9, 4);
  const Param moments = MakeParam(gpu_, adam, 9, 5);
  Param doubles;
  for (int s = 0; s < 3; ++s)
    doubles.tensors.push_back(Make<double>(gpu_.get(), {2}, {1, 2}));
  (void)Launched();
  choir_op_calls_t calls = Begin(gpu_);
  ASSERT_OK(Call(&calls, kSgd, first, attrs.data()));
  ASSERT_OK(Call(&calls, kSgd, apart, attrs.data()));
  EXPECT_EQ(Launched(), Symbols{"choir_sgd_update_strided"});
  ASSERT_OK(Call(&calls, kSgd, doubles, attrs.data()));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 1u);
  ASSERT_OK(Call(&calls, kSgd, second, attrs.data()));
  EXPECT_EQ(Launched(), Symbols{});
  ASSERT_OK(Call(&calls, kSgd, decayed, other.data()));
  EXPECT_EQ(Launched(), Symbols{"choir_sgd_update_many"});
  ASSERT_OK(Call(&calls, adam, moments, adams.data()));
  EXPECT_EQ(Launched(), Symbols{"choir_sgd_update_many"});
  ASSERT_OK(choir__op_calls_end(&calls, nullptr));
  EXPECT_EQ(Launched(), Symbols{"choir_adam_update_many"});
  ExpectSameBits(first.Values(), AfterOne(cpu_, kSgd, 40, 1, attrs.data()));
  ExpectSameBits(apart.Values(), AfterOne(cpu_, kSgd, 40, 2, attrs.data()));
  ExpectSameBits(second.Values(), AfterOne(cpu_, kSgd, 9, 3, attrs.data()));
  ExpectSameBits(decayed.Values(), AfterOne(cpu_, kSgd, 9, 4, other.data()));
  ExpectSameBits(moments.Values(), AfterOne(cpu_, adam, 9, 5, adams.data()));
}

TEST_F(OpCalls, TensorsMayGoBeforeTheyRun) {
  const std::vector<unsigned char> attrs = AttrsOf(kSgd, {{"momentum", "0.9"}});
  Param param = MakeParam(gpu_, kSgd, 1000, 7);
  choir_op_calls_t calls = Begin(gpu_);
  ASSERT_OK(Call(&calls, kSgd, param, attrs.data()));
  param.tensors[1].reset();
  // Would take the gradient's memory, were it free.
  TensorPtr next =
      Make<float>(gpu_.get(), {1000}, std::vector<float>(1000, 1e9f));
  ASSERT_OK(choir__op_calls_end(&calls, nullptr));
  param.tensors[1] = std::move(next);
  ExpectSameBits(param.Values(), AfterOne(cpu_, kSgd, 1000, 7, attrs.data()));
}

TEST_F(OpCalls, AMistakeIsToldAtOnce) {
  const std::vector<unsigned char> attrs = AttrsOf(kSgd, {});
  const Param good = MakeParam(gpu_, kSgd, 5, 1);
  Param bad = MakeParam(gpu_, kSgd, 5, 2);
  bad.tensors[1] = Make<float>(gpu_.get(), {4}, {1, 2, 3, 4});
  choir_op_calls_t calls = Begin(gpu_);
  ASSERT_OK(Call(&calls, kSgd, good, attrs.data()));
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd_update: g is",
                Call(&calls, kSgd, bad, attrs.data()));
  ASSERT_OK(choir__op_calls_end(&calls, nullptr));
  ExpectSameBits(good.Values(), AfterOne(cpu_, kSgd, 5, 1, attrs.data()));
}

TEST_F(OpCalls, AfterAFailureNothingThatWaitsRuns) {
  const std::vector<unsigned char> attrs = AttrsOf(kSgd, {});
  const Param param = MakeParam(gpu_, kSgd, 5, 1);
  const std::vector<float> before = param.Values();
  (void)Launched();
  choir_op_calls_t calls = Begin(gpu_);
  ASSERT_OK(Call(&calls, kSgd, param, attrs.data()));
  EXPECT_STATUS(ABORTED, "no more",
                choir__op_calls_end(&calls, CHOIR_ERROR(ABORTED, "no more")));
  EXPECT_EQ(Launched(), Symbols{});
  ExpectSameBits(param.Values(), before);
}

TEST_F(OpCalls, AreRecordsByThemselvesOnTheCpu) {
  // Of more buffers than a list of records first has room for.
  constexpr uint32_t kCalls = 50;
  const std::vector<unsigned char> attrs = AttrsOf(kSgd, {});
  for (const DevicePtr* device : {&cpu_, &gpu_}) {
    std::vector<Param> params;
    for (uint32_t i = 0; i < kCalls; ++i)
      params.push_back(MakeParam(*device, kSgd, 5, i));
    choir_stream_t* stream = choir_device_stream(device->get());
    choir_record_list_t* list = nullptr;
    ASSERT_OK(
        choir_record_list_create(choir_device_allocator(device->get()), &list));
    choir_record_stage_t stage;
    choir_record_stage_init(&stage, list, true);
    choir_stream_push_stage(stream, &stage.stage);
    choir_stream_set_label(stream, "w");
    choir_op_calls_t calls = Begin(*device);
    for (const Param& param : params)
      EXPECT_OK(Call(&calls, kSgd, param, attrs.data()));
    EXPECT_OK(choir__op_calls_end(&calls, nullptr));
    choir_stream_set_label(stream, nullptr);
    choir_stream_pop_stage(stream, &stage.stage);
    const bool is_gpu = device == &gpu_;
    const size_t count = choir_record_list_count(list);
    EXPECT_EQ(count, is_gpu ? 1u : kCalls);
    const choir_record_t* record = choir_record_list_get(list, 0);
    EXPECT_STREQ(choir_record_name(record),
                 is_gpu ? "sgd_update_many/cuda" : "sgd_update");
    EXPECT_STREQ(record->label, is_gpu ? "parameters" : "w");
    const choir_cost_t cost = choir_record_cost(record);
    // Three sources and two destinations of each call.
    EXPECT_EQ(cost.bytes * static_cast<double>(count), kCalls * 5 * 5 * 4.0);
    // It can be run again from the list.
    const std::vector<float> before = params.back().Values();
    EXPECT_OK(choir_record_list_replay(list, stream));
    EXPECT_NE(params.back().Values(), before);
    choir_record_list_destroy(list);
  }
}

TEST_F(OpCalls, TellsWhatHasMemoryInCommon) {
  TensorPtr whole = Make<float>(cpu_.get(), {6}, {0, 1, 2, 3, 4, 5});
  const auto part = [&](int64_t first, int64_t count) {
    choir_view_t view = *choir_tensor_view(whole.get());
    view.shape[0] = count;
    view.offset += first;
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &tensor));
    return TensorPtr(tensor);
  };
  const TensorPtr low = part(0, 3), high = part(3, 3), middle = part(2, 2);
  EXPECT_FALSE(choir__tensors_overlap(low.get(), high.get()));
  EXPECT_TRUE(choir__tensors_overlap(low.get(), middle.get()));
  EXPECT_TRUE(choir__tensors_overlap(middle.get(), high.get()));
}

}  // namespace
