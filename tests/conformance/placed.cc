// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/placed.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {
namespace {

struct DeviceRelease {
  void operator()(choir_device_t* device) const {
    choir_device_release(device);
  }
};

void SetStrides(Layout layout, choir_view_t* view) {
  choir_view_set_contiguous(view);
  if (layout == kChannelsLast && view->ndim == 4)
    choir_view_set_channels_last(view);
  if (layout == kRepeated && view->ndim > 0 && view->shape[0] > 1)
    view->strides[0] = 0;
  int64_t stride = layout == kGaps ? 2 : 1;
  for (int32_t k = view->ndim - 1; layout == kGaps && k >= 0; --k) {
    view->strides[k] = stride;
    stride = stride * std::max<int64_t>(view->shape[k], 1) + 3;
  }
  for (int32_t k = 0; layout == kReversed && k < view->ndim; ++k) {
    view->strides[k] = stride;
    stride *= std::max<int64_t>(view->shape[k], 1);
  }
}

// Row-major offsets of a view's elements.
std::vector<int64_t> OffsetsOf(const choir_view_t& view) {
  std::vector<int64_t> offsets = {view.offset};
  for (int32_t k = 0; k < view.ndim; ++k) {
    std::vector<int64_t> outer = std::move(offsets);
    offsets.clear();
    offsets.reserve(outer.size() * static_cast<size_t>(view.shape[k]));
    for (int64_t offset : outer)
      for (int64_t i = 0; i < view.shape[k]; ++i)
        offsets.push_back(offset + i * view.strides[k]);
  }
  return offsets;
}

}  // namespace

choir_device_t* Device(const std::string& name, std::string* why) {
  static std::map<std::string, std::unique_ptr<choir_device_t, DeviceRelease>>
      devices;
  if (!devices[name]) {
    choir_device_options_t options = {};
    options.threads = 2;
    options.seed = 7;
    choir_device_t* device = nullptr;
    choir_status_t status =
        choir_device_create(name.c_str(), &options, &device);
    if (why && choir_status_code(status) == CHOIR_STATUS_UNAVAILABLE) {
      *why = choir_status_message(status);
      choir_status_free(status);
      return nullptr;
    }
    EXPECT_OK(status);
    devices[name].reset(device);
  }
  return devices[name].get();
}

Placed::Placed(choir_device_t* device, const Values& values, Layout layout) {
  EXPECT_OK(choir_view_make(values.dtype,
                            static_cast<int32_t>(values.shape.size()),
                            values.shape.data(), &view_));
  SetStrides(layout, &view_);
  view_.offset = kGuard;
  size_t bytes = choir_dtype_bytes(values.dtype);
  image_.assign(
      static_cast<size_t>(2 * kGuard + choir_view_extent(&view_)) * bytes,
      0xA5);
  std::vector<int64_t> offsets = OffsetsOf(view_);
  for (size_t i = 0; i < offsets.size(); ++i)
    choir_element_store(&image_[static_cast<size_t>(offsets[i]) * bytes],
                        values.dtype, values.elements[i]);
  stream_ = choir_device_stream(device);
  EXPECT_OK(choir_buffer_create(device, image_.size(), &view_.buffer));
  EXPECT_OK(choir_buffer_write(view_.buffer, stream_, 0, image_.data(),
                               image_.size()));
  EXPECT_OK(choir_tensor_from_view(&view_, &tensor_));
}

Placed::~Placed() {
  choir_tensor_release(tensor_);
  choir_buffer_release(view_.buffer);
}

std::vector<double> Placed::Read() const {
  std::vector<unsigned char> now(image_.size());
  EXPECT_OK(
      choir_buffer_read(view_.buffer, stream_, 0, now.data(), now.size()));
  size_t bytes = choir_dtype_bytes(view_.dtype);
  std::vector<double> elements;
  std::vector<unsigned char> rest = now;
  for (int64_t offset : OffsetsOf(view_)) {
    size_t at = static_cast<size_t>(offset) * bytes;
    elements.push_back(choir_element_load(&now[at], view_.dtype));
    std::memcpy(&rest[at], &image_[at], bytes);
  }
  EXPECT_TRUE(rest == image_) << "bytes outside the elements were changed";
  return elements;
}

void Placed::ExpectUnchanged() const {
  std::vector<unsigned char> now(image_.size());
  EXPECT_OK(
      choir_buffer_read(view_.buffer, stream_, 0, now.data(), now.size()));
  EXPECT_TRUE(now == image_) << "a source was changed";
}

}  // namespace testing
}  // namespace choir
