// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_TEST_KERNELS_H_
#define CHOIR_TESTS_TESTING_TEST_KERNELS_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/device.h"

namespace choir {
namespace testing {

// Kernels on I64 elements, for tests of what carries records. They touch
// memory directly on host devices and by choir_buffer_read and _write on
// others, as the host reference does, so they run on every device.

// A record that owns its views and attributes. Views are flat and, as made,
// begin at the start of their buffers.
class TestRecord {
 public:
  // dst[i] = value
  static TestRecord Fill(choir_buffer_t* dst, int64_t value);
  // dst[i] = src[i] * factor + addend; with `accumulate`, dst[i] += that.
  static TestRecord Affine(choir_buffer_t* src, choir_buffer_t* dst,
                           int64_t factor, int64_t addend,
                           bool accumulate = false);
  // Fails with OUT_OF_RANGE "fail: <code> given; needs none".
  static TestRecord Fail(int64_t code);

  const choir_record_t* get();
  // Makes views and attributes unreadable, as they are after the caller's
  // stack frame has gone.
  void Spoil();

 private:
  TestRecord(const choir_kernel_t* kernel, std::vector<choir_buffer_t*> srcs,
             std::vector<choir_buffer_t*> dsts);
  choir_record_t record_ = {};
  std::vector<choir_view_t> operands_;
  std::vector<int64_t> attrs_;
};

// A door that records wait at, on whatever thread runs them.
class Gate {
 public:
  ~Gate() { Open(); }
  void Open();
  // Waits until `count` records stand at the gate.
  void AwaitArrivals(int count);
  // A record that returns when the gate is open. The gate must outlive it.
  choir_record_t Record();

 private:
  static choir_status_t Run(const choir_record_t* record,
                            choir_stream_t* stream);
  std::mutex lock_;
  std::condition_variable moved_;
  bool is_open_ = false;
  int arrivals_ = 0;
  Gate* self_ = this;  // the record's attributes
};

// The first element of `buffer`, read through `stream`.
int64_t FirstElement(choir_buffer_t* buffer, choir_stream_t* stream);

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_TEST_KERNELS_H_
