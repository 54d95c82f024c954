// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_CHAIN_TESTING_H_
#define CHOIR_TESTS_TENSOR_CHAIN_TESTING_H_

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "tensor/fusion_def.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// Steps as graphs whose elementwise records become chains, on a device by name:
// `cuda` is behind the scripted driver, with kernels compiled for the host.
class ChainTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (is_cuda()) {
      fake_ = std::make_unique<FakeCuda>();
      CudaKernelsOnHost(true);
    }
    Start(nullptr);
  }
  void TearDown() override {
    temporaries_.clear();
    kept_.clear();
    device_.reset();
    CudaKernelsOnHost(false);
    fake_.reset();
  }

  bool is_cuda() const { return strcmp(GetParam(), "cuda") == 0; }
  void Start(const choir_device_options_t* options) {
    device_ = MakeDevice(GetParam(), options);
    stream_ = choir_device_stream(device_.get());
  }

  // A tensor that the test holds: each run of a step begins with these values.
  choir_tensor_t* Keep(TensorPtr tensor) {
    kept_.push_back({std::move(tensor), {}});
    kept_.back().values = Read<float>(kept_.back().tensor);
    return kept_.back().tensor.get();
  }
  choir_tensor_t* Keep(const Shape& shape) {
    const uint32_t seed = static_cast<uint32_t>(kept_.size()) + 1;
    return Keep(Make<float>(device_.get(), shape, Floats(Count(shape), seed)));
  }
  // Other elements of a kept tensor, from number `skip` on, row-major.
  choir_tensor_t* Part(choir_tensor_t* whole, const Shape& shape,
                       int64_t skip) {
    choir_view_t view = *choir_tensor_view(whole);
    view.ndim = static_cast<int32_t>(shape.size());
    for (size_t k = 0; k < shape.size(); ++k) view.shape[k] = shape[k];
    choir_view_set_contiguous(&view);
    view.offset += skip;
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &tensor));
    return Keep(TensorPtr(tensor));
  }

  // One op of a step, into `dst` or a temporary.
  choir_tensor_t* Run(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                      choir_tensor_t* dst = nullptr, bool accumulate = false) {
    const choir_scale_attrs_t scale = {0.7, -0.2};
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {dst};
    if (dst) choir_tensor_retain(dst);
    EXPECT_OK(choir_op_run(
        stream_, op, srcs.data(), static_cast<int32_t>(srcs.size()),
        op == CHOIR_OP_SCALE ? &scale : nullptr, accumulate, dsts));
    temporaries_.emplace_back(dsts[0]);
    return dsts[0];
  }

  // The step eagerly, recorded, and replayed three times (on `cuda` the second
  // and third as CUDA graphs): all that is kept has the same bits each time.
  // Returns how many records were fused away.
  int32_t Fuse(const std::function<void()>& step) {
    const auto run = [&] {
      Restore();
      step();
      temporaries_.clear();
    };
    run();
    const std::vector<std::vector<float>> want = Kept();
    choir_workspace_t* workspace = nullptr;
    choir_graph_t* graph = nullptr;
    EXPECT_OK(choir_workspace_create(device_.get(), &workspace));
    EXPECT_OK(choir_graph_create(workspace, &graph));
    const choir_step_values_t values = {};
    Restore();
    EXPECT_OK(choir_graph_begin(graph, &stream_, 1, &values));
    step();
    EXPECT_OK(choir_graph_end(graph));
    temporaries_.clear();
    choir_graph_options_t options = {};
    options.rewrite = choir__graph_fuse;
    EXPECT_OK(choir_graph_plan(graph, &options));
    char* text = nullptr;
    EXPECT_OK(choir_graph_print(graph, &text));
    text_ = text ? text : "";
    free(text);
    for (int replay = 0; replay < 3; ++replay) {
      Restore();
      if (fake_) fake_->ClearLog();
      EXPECT_OK(choir_graph_replay(graph, &values, nullptr));
      EXPECT_OK(choir_stream_synchronize(stream_));
      if (fake_ && replay == 0) launched_ = Launched();
      ExpectSame(Kept(), want);
    }
    stats_ = choir_graph_stats(graph);
    choir_graph_destroy(graph);
    choir_workspace_destroy(workspace);
    return stats_.fused;
  }

  // Symbols of the kernels that the first replay launched.
  const std::vector<std::string>& launched() const { return launched_; }
  // The planned graph, in words and numbers.
  const std::string& text() const { return text_; }
  const choir_graph_stats_t& stats() const { return stats_; }
  choir_stream_t* stream() const { return stream_; }
  const DevicePtr& device() const { return device_; }

 private:
  struct KeptTensor {
    TensorPtr tensor;
    std::vector<float> values;
  };

  void Restore() {
    for (const auto& kept : kept_)
      EXPECT_OK(choir_tensor_write(kept.tensor.get(), kept.values.data(),
                                   kept.values.size() * sizeof(float)));
  }
  std::vector<std::vector<float>> Kept() const {
    std::vector<std::vector<float>> all;
    for (const auto& kept : kept_) all.push_back(Read<float>(kept.tensor));
    return all;
  }
  // A NaN is one whatever its bits.
  static void ExpectSame(const std::vector<std::vector<float>>& got,
                         const std::vector<std::vector<float>>& want) {
    for (size_t k = 0; k < want.size(); ++k) {
      for (size_t i = 0; i < want[k].size(); ++i) {
        if (std::isnan(got[k][i]) && std::isnan(want[k][i])) continue;
        ASSERT_EQ(memcmp(&got[k][i], &want[k][i], sizeof(float)), 0)
            << "kept tensor " << k << ", element " << i << ": " << got[k][i]
            << ", eagerly " << want[k][i];
      }
    }
  }
  std::vector<std::string> Launched() {
    std::vector<std::string> symbols;
    for (const std::string& line : fake_->TakeLog())
      if (line.rfind("launch ", 0) == 0)
        symbols.push_back(line.substr(7, line.find(' ', 7) - 7));
    return symbols;
  }

  std::unique_ptr<FakeCuda> fake_;
  DevicePtr device_;
  choir_stream_t* stream_ = nullptr;
  std::vector<KeptTensor> kept_;
  std::vector<TensorPtr> temporaries_;
  std::vector<std::string> launched_;
  std::string text_;
  choir_graph_stats_t stats_ = {};
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_CHAIN_TESTING_H_
