// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CORE_CUDA_TESTING_H_
#define CHOIR_TESTS_CORE_CUDA_TESTING_H_

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "core/device.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// A CUDA device over the scripted driver, and records whose kernels launch work
// on it.
class CudaTest : public ::testing::Test {
 protected:
  // Numbers of the script's streams: the device's two, and the next one.
  enum { kCopies = 1, kCompute = 2, kThird = 3 };

  void SetUp() override {
    choir_device_options_t options = {};
    options.allocator = allocator_.get();
    ASSERT_OK(choir_device_create("cuda", &options, &device_));
    stream_ = choir_device_stream(device_);
    fake_.ClearLog();
  }
  void TearDown() override {
    choir_device_release(device_);
    EXPECT_EQ(allocator_.live_blocks(), 0u);
  }
  choir_buffer_t* NewBuffer(size_t bytes) {
    choir_buffer_t* buffer = nullptr;
    EXPECT_OK(choir_buffer_create(device_, bytes, &buffer));
    return buffer;
  }
  // A record over `buffers` that launches `work` on the script's stream of this
  // number, which is `stream`.
  choir_status_t TrySubmit(choir_stream_t* stream, int number,
                           std::function<void()> work,
                           std::vector<choir_buffer_t*> buffers = {}) {
    static const choir_kernel_t kernel = {"work/test", Run,     nullptr,
                                          nullptr,     nullptr, false};
    std::vector<choir_view_t> views;
    std::vector<const void*> touches;
    for (choir_buffer_t* buffer : buffers) {
      choir_view_t view;
      const int64_t count = static_cast<int64_t>(choir_buffer_bytes(buffer));
      EXPECT_OK(choir_view_make(CHOIR_DTYPE_U8, 1, &count, &view));
      view.buffer = buffer;
      views.push_back(view);
      touches.push_back(choir_buffer_data(buffer));
    }
    std::function<void()> launch = [this, number, work, touches] {
      fake_.Launch(number, work, touches);
    };
    choir_record_t record = {};
    record.kernel = &kernel;
    record.operands = views.data();
    record.dst_count = static_cast<int32_t>(views.size());
    record.attrs = &launch;
    record.attrs_bytes = sizeof(launch);
    return choir_stream_submit(stream, &record);
  }
  void Submit(choir_stream_t* stream, int number, std::function<void()> work,
              std::vector<choir_buffer_t*> buffers = {}) {
    ASSERT_OK(TrySubmit(stream, number, std::move(work), std::move(buffers)));
  }
  void SubmitFailure(choir_stream_t* stream, int number, int result) {
    Submit(stream, number, [] {});
    fake_.LaunchFailure(number, result);
  }

  FakeCuda fake_;
  FailingAllocator allocator_;
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;

 private:
  static choir_status_t Run(const choir_record_t* record, choir_stream_t*) {
    (*static_cast<const std::function<void()>*>(record->attrs))();
    return nullptr;
  }
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_CORE_CUDA_TESTING_H_
