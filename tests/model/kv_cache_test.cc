// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/model_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

constexpr int64_t kPlaces = 12, kSamples = 2, kWords = 11, kWidth = 12;

struct Setting {
  std::string name, value;
};
struct Layer {
  const char* name;
  const choir_layer_def_t* def;
  std::vector<Setting> settings;
};

// Layers behind one another, of ids (n, t).
class KvCacheTest : public ::testing::Test {
 protected:
  ~KvCacheTest() override {
    choir_kv_cache_destroy(cache_);
    choir_model_release(model_);
  }
  static Layer Attention(const std::vector<Setting>& more) {
    Layer layer = {"attention",
                   &choir_layer_def_multi_head_attention,
                   {{"num_heads", "3"}, {"deviation", "0.7"}}};
    layer.settings.insert(layer.settings.end(), more.begin(), more.end());
    return layer;
  }
  // A text's model with these between the tokens and the scores.
  void Create(const std::vector<Layer>& between) {
    choir_kv_cache_destroy(std::exchange(cache_, nullptr));
    choir_model_release(std::exchange(model_, nullptr));
    layers_ = {{"tokens",
                &choir_layer_def_embedding,
                {{"num_embeddings", std::to_string(kWords)},
                 {"embedding_dim", std::to_string(kWidth)}}}};
    layers_.insert(layers_.end(), between.begin(), between.end());
    layers_.push_back({"norm", &choir_layer_def_layer_norm, {}});
    layers_.push_back({"head",
                       &choir_layer_def_linear,
                       {{"out_features", std::to_string(kWords)}}});
    static const choir_model_def_t def = {"text", Define, Forward, nullptr,
                                          nullptr};
    ASSERT_OK(choir_model_create(device_.get(), &def, this, 5, &model_));
    const int64_t shape[] = {kSamples, kPlaces};
    choir_view_t x;
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_I32, 2, shape, &x));
    ASSERT_OK(choir_model_compile(model_, &x, 1));
    ASSERT_OK(choir_kv_cache_create(model_, kSamples, kPlaces, &cache_));
  }
  // Places begin .. end - 1 of both texts.
  TensorPtr Ids(int64_t begin, int64_t end) {
    std::vector<int32_t> ids;
    for (int64_t n = 0; n < kSamples; ++n)
      for (int64_t i = begin; i < end; ++i)
        ids.push_back(static_cast<int32_t>((i * i + 5 * n + 3) % kWords));
    return Make(device_.get(), {kSamples, end - begin}, ids);
  }
  std::vector<float> Whole(int64_t end) {
    const TensorPtr x = Ids(0, end);
    choir_tensor_t* const inputs[] = {x.get()};
    choir_tensor_t* y = nullptr;
    EXPECT_OK(choir_model_predict(model_, inputs, 1, &y));
    return Read<float>(TensorPtr(y).get());
  }
  choir_status_t Next(int64_t begin, int64_t end,
                      std::vector<float>* out = nullptr) {
    const TensorPtr x = Ids(begin, end);
    choir_tensor_t* y = nullptr;
    CHOIR_TRY(choir_model_predict_next(model_, cache_, x.get(), &y));
    if (out) *out = Read<float>(y);
    choir_tensor_release(y);
    return nullptr;
  }
  // In steps that end at these places.
  void ExpectTheWholesScores(const std::vector<int64_t>& ends) {
    int64_t begin = choir_kv_cache_count(cache_);
    for (int64_t end : ends) {
      std::vector<float> part;
      ASSERT_OK(Next(begin, end, &part));
      EXPECT_EQ(choir_kv_cache_count(cache_), end);
      const std::vector<float> whole = Whole(end);
      double largest = 0;
      for (float score : whole) largest = std::fmax(largest, std::fabs(score));
      ASSERT_GT(largest, 0.1);
      for (int64_t n = 0; n < kSamples; ++n)
        for (int64_t i = begin * kWords; i < end * kWords; ++i) {
          const auto at = static_cast<size_t>(n * end * kWords + i);
          const auto here = static_cast<size_t>(n * (end - begin) * kWords + i -
                                                begin * kWords);
          ASSERT_NEAR(part[here], whole[at], 1e-5 * largest)
              << "sample " << n << " element " << i;
        }
      begin = end;
    }
  }

  static void Define(choir_model_t* model, void* self) {
    auto* test = static_cast<KvCacheTest*>(self);
    test->made_.clear();
    for (const Layer& layer : test->layers_) {
      const choir_struct_def_t* fields = choir_layer_def_config(layer.def);
      alignas(8) unsigned char config[256];
      ASSERT_LE(fields->bytes, sizeof config);
      choir_struct_init(fields, config);
      for (const Setting& setting : layer.settings)
        ASSERT_OK(choir_struct_set(fields, config, setting.name.c_str(),
                                   setting.value.c_str()));
      test->made_.push_back(
          choir_layer_create(model, layer.name, layer.def, config));
    }
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    auto* test = static_cast<KvCacheTest*>(self);
    choir_var_t* x = inputs.at[0];
    for (choir_layer_t* layer : test->made_) {
      const bool is_attention =
          std::string(choir_layer_name(layer)) == "attention";
      if (is_attention && test->doubles_places_) {
        choir_var_t* const both[] = {x, x};
        const choir_concat_attrs_t behind = {.axis = 1};
        x = choir_var_concat(scope, both, 2, &behind);
      }
      for (int i = 0; i < (is_attention ? test->uses_ : 1); ++i)
        x = choir_layer_forward(scope, layer, x);
    }
    return x;
  }

  DevicePtr device_ = MakeDevice("cpu");
  std::vector<Layer> layers_;
  std::vector<choir_layer_t*> made_;
  int uses_ = 1;                 // of the layer "attention"
  bool doubles_places_ = false;  // of its input
  choir_model_t* model_ = nullptr;
  choir_kv_cache_t* cache_ = nullptr;
};

TEST_F(KvCacheTest, PlacesHaveTheScoresOfTheWhole) {
  const std::vector<std::vector<Layer>> models = {
      {{"positions",
        &choir_layer_def_position_embedding,
        {{"num_embeddings", std::to_string(kPlaces)}, {"deviation", "0.5"}}},
       Attention({{"causal", "true"}}),
       {"mlp", &choir_layer_def_feed_forward, {{"deviation", "0.7"}}}},
      {Attention({{"causal", "true"}, {"rotary", "50"}, {"kv_heads", "1"}}),
       {"more",
        &choir_layer_def_multi_head_attention,
        {{"num_heads", "2"}, {"causal", "true"}, {"rotary", "10"}}},
       {"scale", &choir_layer_def_rms_norm, {}},
       {"curve", &choir_layer_def_silu, {}}},
  };
  for (const std::vector<Layer>& layers : models) {
    ASSERT_NO_FATAL_FAILURE(Create(layers));
    ASSERT_NO_FATAL_FAILURE(ExpectTheWholesScores({4, 5, 6, 9, 10, 12}));
    choir_kv_cache_keep(cache_, 5);
    ASSERT_NO_FATAL_FAILURE(ExpectTheWholesScores({7, 12}));
    choir_kv_cache_keep(cache_, 0);
    ASSERT_NO_FATAL_FAILURE(ExpectTheWholesScores({1, 2}));
  }
}

TEST_F(KvCacheTest, EachUseOfALayerHasItsOwnKeys) {
  uses_ = 2;
  ASSERT_NO_FATAL_FAILURE(Create({Attention({{"causal", "true"}})}));
  ASSERT_NO_FATAL_FAILURE(ExpectTheWholesScores({3, 4, 6, 12}));
}

TEST_F(KvCacheTest, KeysAreOfThePlacesOfTheInput) {
  ASSERT_NO_FATAL_FAILURE(Create({Attention({{"causal", "true"}})}));
  doubles_places_ = true;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "keys of 6 places of 2 samples; the input has 3 of 2",
                Next(0, 3));
  EXPECT_EQ(choir_kv_cache_count(cache_), 0);
}

// As Python has it: scopes of the program's, and a layer that no model has.
TEST_F(KvCacheTest, IsForLayersWithoutAModelToo) {
  const std::unique_ptr<choir_scope_t, void (*)(choir_scope_t*)> scope(
      [this] {
        choir_scope_t* made = nullptr;
        EXPECT_OK(choir_scope_create(device_.get(), &made));
        return made;
      }(),
      choir_scope_destroy);
  choir_multi_head_attention_config_t config;
  const choir_layer_def_t* def = &choir_layer_def_multi_head_attention;
  choir_struct_init(choir_layer_def_config(def), &config);
  config.num_heads = 2;
  config.causal = true;
  choir_layer_t* layer = nullptr;
  ASSERT_OK(choir_layer_create_alone(device_.get(), "attention", def, &config,
                                     1, 0, &layer));
  choir_kv_cache_t* cache = nullptr;
  ASSERT_OK(choir_kv_cache_create_alone(device_.get(), 1, 3, &cache));
  const auto run = [&](const std::vector<float>& x, choir_kv_cache_t* used) {
    const TensorPtr input =
        Make(device_.get(), {1, static_cast<int64_t>(x.size()) / 2, 2}, x);
    if (used) {
      EXPECT_OK(choir_kv_cache_begin(used, input.get()));
    }
    choir_step_t step = {};
    step.cache = used;
    choir_scope_begin(scope.get(), &step);
    choir_var_t* y = choir_layer_forward(
        scope.get(), layer, choir_scope_input(scope.get(), input.get()));
    const std::vector<float> found = Read<float>(choir_var_tensor(y));
    EXPECT_OK(choir_scope_end(scope.get()));
    if (used) choir_kv_cache_end(used, true);
    return found;
  };
  const std::vector<float> whole = run({1, 2, 3, -4, 0.5, 6}, nullptr);
  run({1, 2}, cache);
  const std::vector<float> next = run({3, -4, 0.5, 6}, cache);
  EXPECT_EQ(choir_kv_cache_count(cache), 3);
  choir_layer_release(layer);  // the cache holds what it needs of it
  for (size_t i = 0; i < next.size(); ++i)
    EXPECT_NEAR(next[i], whole[i + 2], 1e-5) << i;
  EXPECT_GT(std::fabs(whole[2]), 0.01);
  const TensorPtr more =
      Make(device_.get(), {1, 1, 2}, std::vector<float>{1, 1});
  EXPECT_STATUS(INVALID_ARGUMENT, "has room for 0 of its 3 places",
                choir_kv_cache_begin(cache, more.get()));
  choir_kv_cache_destroy(cache);
}

TEST_F(KvCacheTest, HasRoomForItsPlacesAlone) {
  ASSERT_NO_FATAL_FAILURE(Create({Attention({{"causal", "true"}})}));
  ASSERT_OK(Next(0, 10));
  EXPECT_STATUS(INVALID_ARGUMENT, "has room for 2 of its 12 places",
                Next(0, 3));
  EXPECT_STATUS(INVALID_ARGUMENT, "has room for 2 of its 12 places",
                Next(10, 10));
  EXPECT_EQ(choir_kv_cache_count(cache_), 10);
  const TensorPtr one = Make(device_.get(), {1, 1}, std::vector<int32_t>{0});
  choir_tensor_t* y = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "the cache is of 2 samples",
                choir_model_predict_next(model_, cache_, one.get(), &y));
  ASSERT_OK(Next(10, 12));
  choir_kv_cache_t* none = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "0 places",
                choir_kv_cache_create(model_, 1, 0, &none));
}

// Each would give other scores than the whole.
TEST_F(KvCacheTest, LayersThatMixPlacesAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Create({Attention({})}));
  EXPECT_STATUS(FAILED_PRECONDITION, "attention (multi_head_attention): keys",
                Next(0, 3));
  ASSERT_NO_FATAL_FAILURE(
      Create({{"memory", &choir_layer_def_lstm, {{"hidden_size", "4"}}}}));
  EXPECT_STATUS(FAILED_PRECONDITION, "memory (lstm): is not known to keep",
                Next(0, 3));
  EXPECT_EQ(choir_kv_cache_count(cache_), 0);
  Whole(3);  // as ever
}

TEST_F(KvCacheTest, IsOfOneModel) {
  ASSERT_NO_FATAL_FAILURE(Create({}));
  choir_kv_cache_t* cache = std::exchange(cache_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Create({}));
  const TensorPtr x = Ids(0, 3);
  choir_tensor_t* y = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "another model's",
                choir_model_predict_next(model_, cache, x.get(), &y));
  choir_kv_cache_destroy(cache);
}

}  // namespace
