// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/test_kernels.h"

#include <cstring>

#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {
namespace {

// Bytes.
size_t Offset(const choir_view_t* view) {
  return static_cast<size_t>(view->offset) * sizeof(int64_t);
}

void* Start(const choir_view_t* view) {
  return static_cast<char*>(choir_buffer_data(view->buffer)) + Offset(view);
}

// The elements of an operand, wherever they lie.
choir_status_t Load(const choir_view_t* view, choir_stream_t* stream,
                    std::vector<int64_t>* out_elements) {
  out_elements->resize(static_cast<size_t>(choir_view_count(view)));
  size_t bytes = out_elements->size() * sizeof(int64_t);
  if (choir_device_is_host(choir_stream_device(stream))) {
    std::memcpy(out_elements->data(), Start(view), bytes);
    return nullptr;
  }
  return choir_buffer_read(view->buffer, stream, Offset(view),
                           out_elements->data(), bytes);
}

choir_status_t Store(const choir_view_t* view, choir_stream_t* stream,
                     const std::vector<int64_t>& elements) {
  size_t bytes = elements.size() * sizeof(int64_t);
  if (choir_device_is_host(choir_stream_device(stream))) {
    std::memcpy(Start(view), elements.data(), bytes);
    return nullptr;
  }
  return choir_buffer_write(view->buffer, stream, Offset(view), elements.data(),
                            bytes);
}

const int64_t* Attrs(const choir_record_t* record) {
  return static_cast<const int64_t*>(record->attrs);
}

choir_status_t RunFill(const choir_record_t* record, choir_stream_t* stream) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  size_t count = static_cast<size_t>(choir_view_count(dst));
  return Store(dst, stream, std::vector<int64_t>(count, Attrs(record)[0]));
}

choir_status_t RunAffine(const choir_record_t* record, choir_stream_t* stream) {
  std::vector<int64_t> src;
  std::vector<int64_t> dst;
  CHOIR_TRY(Load(choir_record_src(record, 0), stream, &src));
  CHOIR_TRY(Load(choir_record_dst(record, 0), stream, &dst));
  for (size_t i = 0; i < dst.size(); ++i) {
    int64_t value = src[i] * Attrs(record)[0] + Attrs(record)[1];
    dst[i] = record->accumulate ? dst[i] + value : value;
  }
  return Store(choir_record_dst(record, 0), stream, dst);
}

choir_status_t RunFail(const choir_record_t* record, choir_stream_t*) {
  return CHOIR_ERROR(OUT_OF_RANGE, "fail: %lld given; needs none",
                     static_cast<long long>(Attrs(record)[0]));
}

void AffineCost(const choir_record_t* record, choir_cost_t* out_cost) {
  double count =
      static_cast<double>(choir_view_count(choir_record_dst(record, 0)));
  *out_cost = {2 * count, 16 * count};
}

const choir_kernel_t kFill = {"fill/test", RunFill, nullptr,
                              nullptr,     nullptr, false};
const choir_kernel_t kAffine = {"affine/test", RunAffine, AffineCost,
                                nullptr,       nullptr,   false};
const choir_kernel_t kFail = {"fail/test", RunFail, nullptr,
                              nullptr,     nullptr, false};

}  // namespace

TestRecord::TestRecord(const choir_kernel_t* kernel,
                       std::vector<choir_buffer_t*> srcs,
                       std::vector<choir_buffer_t*> dsts) {
  record_.kernel = kernel;
  record_.src_count = static_cast<int32_t>(srcs.size());
  record_.dst_count = static_cast<int32_t>(dsts.size());
  srcs.insert(srcs.end(), dsts.begin(), dsts.end());
  for (choir_buffer_t* buffer : srcs) {
    choir_view_t view;
    int64_t count =
        static_cast<int64_t>(choir_buffer_bytes(buffer) / sizeof(int64_t));
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_I64, 1, &count, &view));
    view.buffer = buffer;
    operands_.push_back(view);
  }
}

TestRecord TestRecord::Fill(choir_buffer_t* dst, int64_t value) {
  TestRecord record(&kFill, {}, {dst});
  record.attrs_ = {value};
  return record;
}

TestRecord TestRecord::Affine(choir_buffer_t* src, choir_buffer_t* dst,
                              int64_t factor, int64_t addend, bool accumulate) {
  TestRecord record(&kAffine, {src}, {dst});
  record.attrs_ = {factor, addend};
  record.record_.accumulate = accumulate;
  return record;
}

TestRecord TestRecord::Fail(int64_t code) {
  TestRecord record(&kFail, {}, {});
  record.attrs_ = {code};
  return record;
}

const choir_record_t* TestRecord::get() {
  record_.operands = operands_.data();
  record_.attrs = attrs_.data();
  record_.attrs_bytes = attrs_.size() * sizeof(int64_t);
  return &record_;
}

void TestRecord::Spoil() {
  for (choir_view_t& view : operands_) {
    std::memset(static_cast<void*>(&view), 0x5a, sizeof(view));
  }
  for (int64_t& attr : attrs_) attr = -12345;
}

void Gate::Open() {
  std::lock_guard<std::mutex> guard(lock_);
  is_open_ = true;
  moved_.notify_all();
}

void Gate::AwaitArrivals(int count) {
  std::unique_lock<std::mutex> guard(lock_);
  moved_.wait(guard, [&] { return arrivals_ >= count; });
}

choir_status_t Gate::Run(const choir_record_t* record, choir_stream_t*) {
  Gate* gate = *static_cast<Gate* const*>(record->attrs);
  std::unique_lock<std::mutex> guard(gate->lock_);
  ++gate->arrivals_;
  gate->moved_.notify_all();
  gate->moved_.wait(guard, [&] { return gate->is_open_; });
  return nullptr;
}

choir_record_t Gate::Record() {
  static const choir_kernel_t kernel = {"gate/test", Run,     nullptr,
                                        nullptr,     nullptr, false};
  choir_record_t record = {};
  record.kernel = &kernel;
  record.attrs = &self_;
  record.attrs_bytes = sizeof(self_);
  return record;
}

int64_t FirstElement(choir_buffer_t* buffer, choir_stream_t* stream) {
  int64_t value = 0;
  EXPECT_OK(choir_buffer_read(buffer, stream, 0, &value, sizeof(value)));
  return value;
}

}  // namespace testing
}  // namespace choir
