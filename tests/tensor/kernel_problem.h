// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_KERNEL_PROBLEM_H_
#define CHOIR_TESTS_TENSOR_KERNEL_PROBLEM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/op_def.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// One record for a kernel of the CPU: operands in some layout with guards
// around them, run from the same start as often as a test likes.

struct Device {
  explicit Device(int threads, choir_allocator_t allocator = {}) {
    choir_device_options_t options = {};
    options.threads = threads;
    options.allocator = allocator;
    choir_status_t status = choir_device_create("cpu", &options, &device);
    EXPECT_EQ(status, nullptr) << choir_status_message(status);
  }
  ~Device() { choir_device_release(device); }
  choir_stream_t* stream() const { return choir_device_stream(device); }
  choir_device_t* device = nullptr;
};

// ---- Problems ----

enum class Layout { kDense, kChannelsLast, kPadded, kReversed };
constexpr Layout kLayouts[] = {Layout::kDense, Layout::kChannelsLast,
                               Layout::kPadded, Layout::kReversed};

inline std::vector<std::vector<int64_t>> ParseShapes(const char* text) {
  std::vector<std::vector<int64_t>> shapes(1);
  for (const char* at = text; *at;) {
    if (*at == ';') {
      shapes.emplace_back();
      ++at;
    } else if (*at == ',') {
      ++at;
    } else {
      char* end;
      shapes.back().push_back(strtoll(at, &end, 10));
      at = end;
    }
  }
  return shapes;
}

// Strides of `view` for a layout; padded: one element between rows, and in
// channels-last order where there are images.
inline void Arrange(Layout layout, choir_view_t* view) {
  choir_view_set_contiguous(view);
  if (view->ndim == 4 && layout != Layout::kDense &&
      layout != Layout::kReversed)
    choir_view_set_channels_last(view);
  if (layout == Layout::kPadded && view->ndim > 1) {
    // A row is what lies along the dimension of stride 1; the others move by
    // one and a bit.
    choir_view_t wider = *view;
    const int32_t row = view->ndim == 4 ? 1 : view->ndim - 1;
    wider.shape[row] += 3;
    if (view->ndim == 4)
      choir_view_set_channels_last(&wider);
    else
      choir_view_set_contiguous(&wider);
    memcpy(view->strides, wider.strides, sizeof(view->strides));
  }
  if (layout == Layout::kReversed) {
    int64_t stride = 1;
    for (int32_t k = 0; k < view->ndim; ++k) {
      view->strides[k] = stride;
      stride *= view->shape[k] > 0 ? view->shape[k] : 1;
    }
  }
}

// What is f32 beside sources of 16 bits, of what can be.
enum class Wide { kNothing, kSources, kResults };

// The first `count` elements of a problem's buffer `number`, drawn once for all
// problems of a thread: drawing takes longer than most kernels.
inline const char* Drawn(size_t number, choir_dtype_t dtype, size_t count) {
  thread_local std::map<std::pair<size_t, choir_dtype_t>, std::vector<char>>
      drawn;
  std::vector<char>& data = drawn[{number, dtype}];
  const size_t bytes = choir_dtype_bytes(dtype);
  const choir_random_key_t key = {7, static_cast<uint32_t>(number), 0};
  while (data.size() < count * bytes) {
    const size_t end = data.size();
    uint32_t words[4];
    choir_random_block(key, 0, static_cast<uint32_t>(end / bytes / 4), words);
    data.resize(end + 4 * bytes);
    for (size_t i = 0; i < 4; ++i) {
      const double value = choir_random_to_normal(words[i]);
      choir_element_store(&data[end + i * bytes], dtype,
                          choir_dtype_is_float(dtype) ? value : 3 * value + 5);
    }
  }
  return data.data();
}

class Problem {
 public:
  Problem(const choir_op_def_t* def, const choir_op_case_t& op_case,
          Layout layout, bool accumulate, choir_dtype_t dtype,
          const Device& device, Wide wide = Wide::kNothing)
      : def_(def), accumulate_(accumulate), device_(device) {
    valid_ = Make(op_case, layout, dtype, wide);
  }
  ~Problem() {
    for (choir_buffer_t* buffer : buffers_) choir_buffer_release(buffer);
  }
  bool valid() const { return valid_; }
  const choir_record_t& record() const { return record_; }
  int64_t size() const {
    int64_t size = 0;
    for (int32_t i = 0; i < record_.src_count + record_.dst_count; ++i)
      size += choir_view_count(&operands_[i]);
    return size;
  }
  bool empty() const {
    for (int32_t i = 0; i < def_->dst_count; ++i)
      if (choir_view_count(choir_record_dst(&record_, i)) > 0) return false;
    return true;
  }

  // All operands as they are at the start.
  void Reset() {
    for (size_t i = 0; i < buffers_.size(); ++i)
      memcpy(choir_buffer_data(buffers_[i]), start_[i].data(),
             start_[i].size());
  }
  // Runs the reference (kernel NULL) or a kernel from the same start; returns
  // the bytes of all destinations' buffers, gaps and guards included.
  std::vector<std::vector<char>> Run(const choir_op_kernel_t* kernel,
                                     choir_stream_t* stream) {
    Reset();
    // A kernel may not look at what the op takes only the shape of.
    for (int32_t i = 0; kernel && i < record_.src_count; ++i)
      if (i < 32 && (def_->shapes_only >> i & 1u))
        memset(choir_buffer_data(operands_[i].buffer), 0xff,
               choir_buffer_bytes(operands_[i].buffer));
    choir_record_t record = record_;
    record.kernel =
        kernel ? &kernel->kernel : choir__reference_kernel(def_->op);
    EXPECT_OK(record.kernel->run(&record, stream));
    std::vector<std::vector<char>> results;
    for (int32_t i = 0; i < def_->dst_count; ++i) {
      const char* data = static_cast<const char*>(
          choir_buffer_data(choir_record_dst(&record_, i)->buffer));
      results.emplace_back(
          data,
          data + choir_buffer_bytes(choir_record_dst(&record_, i)->buffer));
    }
    return results;
  }

  // Puts `value` into two elements of source `index`, for the runs to come;
  // false where it cannot stand there.
  bool Put(int32_t index, double value) {
    const choir_view_t* view = choir_record_src(&record_, index);
    const int64_t count = choir_view_count(view);
    if (!choir_dtype_is_float(view->dtype) || count == 0) return false;
    size_t buffer = 0;
    while (buffers_[buffer] != view->buffer) ++buffer;
    for (int64_t at : {count / 3, count - 1}) {
      int64_t element = view->offset;
      for (int32_t k = view->ndim - 1; k >= 0; at /= view->shape[k--])
        element += at % view->shape[k] * view->strides[k];
      choir_element_store(&start_[buffer][static_cast<size_t>(element) *
                                          choir_dtype_bytes(view->dtype)],
                          view->dtype, value);
    }
    return true;
  }

  // Takes the values of another problem's sources, for dense ones of any dtype.
  void TakeSources(const Problem& other) {
    for (int32_t i = 0; i < record_.src_count; ++i)
      for (size_t k = 0; k < buffers_.size(); ++k) {
        const choir_view_t& view = operands_[i];
        const choir_view_t& from = other.operands_[i];
        if (buffers_[k] != view.buffer) continue;
        const size_t size = choir_dtype_bytes(view.dtype);
        const size_t from_size = choir_dtype_bytes(from.dtype);
        for (size_t e = 0; e < start_[k].size() / size; ++e)
          choir_element_store(
              &start_[k][e * size], view.dtype,
              choir_element_load(&other.start_[k][e * from_size], from.dtype));
      }
  }

  choir_dtype_t dst_dtype(int32_t i) const {
    return choir_record_dst(&record_, i)->dtype;
  }
  std::string Describe() const {
    char text[160];
    std::string all = def_->name;
    for (int32_t i = 0; i < record_.src_count + record_.dst_count; ++i)
      all += std::string(" | ") +
             choir_view_print(&operands_[i], text, sizeof(text));
    return all + (accumulate_ ? " accumulate" : "");
  }

 private:
  static constexpr int64_t kGuard = 32;  // elements around each operand

  void Allocate(choir_view_t* view) {
    const size_t bytes = choir_dtype_bytes(view->dtype);
    const int64_t count = choir_view_extent(view) + 2 * kGuard;
    choir_buffer_t* buffer;
    EXPECT_OK(choir_buffer_create(device_.device,
                                  static_cast<size_t>(count) * bytes, &buffer));
    buffers_.push_back(buffer);
    view->buffer = buffer;
    view->offset = kGuard;
    memcpy(choir_buffer_data(buffer),
           Drawn(buffers_.size(), view->dtype, static_cast<size_t>(count)),
           static_cast<size_t>(count) * bytes);
  }

  // What indices count: the attribute "depth", or the elements of source 0
  // along the attribute "axis".
  int64_t IndexLimit() const {
    int64_t limit = 1;
    for (size_t f = 0; f < def_->attrs->field_count; ++f) {
      const choir_field_t& field = def_->attrs->fields[f];
      const int64_t value =
          *reinterpret_cast<const int64_t*>(attrs_ + field.offset);
      if (std::string(field.name) == "depth") return value;
      if (std::string(field.name) == "axis" && value >= 0)
        limit = operands_[0].shape[value];
    }
    return limit;
  }

  // Values of the op's domain into source `index`.
  void Shape(int32_t index) {
    choir_view_t* view = &operands_[index];
    const choir_op_domain_t domain =
        index < 5 ? def_->domains[index] : CHOIR_DOMAIN_ANY;
    const size_t bytes = choir_dtype_bytes(view->dtype);
    char* data = static_cast<char*>(choir_buffer_data(view->buffer));
    const int64_t count =
        static_cast<int64_t>(choir_buffer_bytes(view->buffer) / bytes);
    const choir_view_t& first = operands_[0];
    const int64_t classes = first.ndim > 0 ? first.shape[first.ndim - 1] : 1;
    for (int64_t i = 0; i < count; ++i) {
      char* at = data + static_cast<size_t>(i) * bytes;
      double value = choir_element_load(at, view->dtype);
      switch (domain) {
        case CHOIR_DOMAIN_POSITIVE:
          value = 0.5 + 1.5 * std::fabs(std::sin(value * 3));
          break;
        case CHOIR_DOMAIN_NO_KINK:
          value = value < 0 ? value - 0.1 : value + 0.1;
          break;
        case CHOIR_DOMAIN_PROBABILITY:
          value = (0.2 + std::fabs(std::sin(value * 3))) /
                  (0.8 * static_cast<double>(classes > 0 ? classes : 1));
          break;
        case CHOIR_DOMAIN_LABELS:
          value = static_cast<double>(
              (static_cast<int64_t>(std::fabs(value) * 7) + i) %
              (classes > 0 ? classes : 1));
          break;
        case CHOIR_DOMAIN_LENGTHS:
          value = static_cast<double>(
              (static_cast<int64_t>(std::fabs(value) * 7) + i) %
              (first.shape[0] + 1));
          break;
        case CHOIR_DOMAIN_INDICES:
          value = static_cast<double>(
              (static_cast<int64_t>(std::fabs(value) * 7) + i) %
                  (2 * IndexLimit()) -
              IndexLimit());
          break;
        default:
          return;
      }
      choir_element_store(at, view->dtype, value);
    }
  }

  // Places of windows into source 1: on the smallest image that they fit on.
  void DrawArgmax() {
    const choir_view_t& view = operands_[1];
    const bool alone = def_->op == CHOIR_OP_MAX_POOL2D_GRAD;
    const choir_pool2d_attrs_t& pool =
        alone ? *reinterpret_cast<const choir_pool2d_attrs_t*>(attrs_)
              : reinterpret_cast<const choir_conv2d_max_pool2d_attrs_t*>(attrs_)
                    ->pool;
    uint8_t* data = static_cast<uint8_t*>(choir_buffer_data(view.buffer));
    const choir_random_key_t key = {8, 1, 0};
    for (int64_t i = 0; i < choir_view_count(&view); ++i) {
      const int64_t place[2] = {i / view.shape[3] % view.shape[2],
                                i % view.shape[3]};
      uint32_t word = choir_random_word(key, 0, static_cast<uint64_t>(i));
      int64_t argmax_index[2];
      for (int k = 0; k < 2; ++k, word >>= 16) {
        const int64_t start = place[k] * pool.stride[k] - pool.padding[k];
        const int64_t size =
            (view.shape[2 + k] - 1) * pool.stride[k] + pool.kernel[k] -
            pool.padding[k] -
            (pool.pad_mode ? pool.padding_after[k] : pool.padding[k]);
        const int64_t first = std::max<int64_t>(0, -start);
        const int64_t end = std::min(pool.kernel[k], size - start);
        argmax_index[k] = first + (word & 0xffff) % (end - first);
      }
      data[view.offset +
           i / (view.shape[1] * view.shape[2] * view.shape[3]) *
               view.strides[0] +
           i / (view.shape[2] * view.shape[3]) % view.shape[1] *
               view.strides[1] +
           place[0] * view.strides[2] + place[1] * view.strides[3]] =
          static_cast<uint8_t>(argmax_index[0] * pool.kernel[1] +
                               argmax_index[1]);
    }
  }

  bool Make(const choir_op_case_t& op_case, Layout layout, choir_dtype_t dtype,
            Wide wide) {
    const auto shapes = ParseShapes(op_case.shapes);
    if (def_->attrs) {
      choir_struct_init(def_->attrs, attrs_);
      // "a=1,2 b=3"
      std::string text = op_case.attrs ? op_case.attrs : "";
      while (!text.empty()) {
        const size_t space = text.find(' ');
        const std::string item = text.substr(0, space);
        text = space == std::string::npos ? "" : text.substr(space + 1);
        const size_t equals = item.find('=');
        if (equals == std::string::npos) continue;
        choir_status_t status = choir_struct_set(
            def_->attrs, attrs_, item.substr(0, equals).c_str(),
            item.substr(equals + 1).c_str());
        EXPECT_EQ(status, nullptr) << choir_status_message(status);
      }
    }
    const int32_t src_count = static_cast<int32_t>(shapes.size());
    if (src_count < def_->src_min || src_count > def_->src_max) return false;
    for (int32_t i = 0; i < src_count; ++i) {
      choir_dtype_t own = dtype;
      const choir_op_domain_t domain =
          i < 4 ? def_->domains[i] : CHOIR_DOMAIN_ANY;
      if (domain == CHOIR_DOMAIN_LABELS || domain == CHOIR_DOMAIN_INDICES ||
          domain == CHOIR_DOMAIN_LENGTHS)
        own = layout == Layout::kPadded ? CHOIR_DTYPE_I32 : CHOIR_DTYPE_I64;
      if (domain == CHOIR_DOMAIN_ARGMAX) own = CHOIR_DTYPE_U8;
      if (wide == Wide::kSources && (def_->wide_sources >> i & 1u))
        own = CHOIR_DTYPE_F32;
      EXPECT_OK(choir_view_make(own, static_cast<int32_t>(shapes[i].size()),
                                shapes[i].data(), &operands_[i]));
      // A destination that is a source takes its layout from it.
      Arrange(layout, &operands_[i]);
      Allocate(&operands_[i]);
      Shape(i);
    }
    choir_view_t dsts[CHOIR_OP_MAX_RESULTS];
    const void* attrs = def_->attrs ? attrs_ : nullptr;
    choir_status_t status =
        choir__op_infer(def_->op, operands_, src_count, attrs, dsts);
    EXPECT_EQ(status, nullptr) << choir_status_message(status);
    if (status) return false;
    for (int32_t i = 0; i < def_->dst_count; ++i) {
      choir_view_t* dst = &operands_[src_count + i];
      if (def_->inplace[i]) {
        *dst = operands_[def_->inplace[i] - 1];
        continue;
      }
      *dst = dsts[i];
      if (wide == Wide::kResults &&
          choir__op_takes_dst(def_->op, dst->dtype, CHOIR_DTYPE_F32))
        dst->dtype = CHOIR_DTYPE_F32;
      if (layout == Layout::kPadded) Arrange(layout, dst);
      Allocate(dst);
    }
    if (def_->elementwise) {
      for (int32_t i = 0; i < src_count; ++i) {
        choir_view_t wide;
        EXPECT_OK(choir_view_broadcast(&operands_[i], operands_[src_count].ndim,
                                       operands_[src_count].shape, &wide));
        operands_[i] = wide;
      }
    }
    record_.operands = operands_;
    record_.operation = choir__operation(def_->op);
    record_.src_count = src_count;
    record_.dst_count = def_->dst_count;
    record_.accumulate = accumulate_;
    record_.attrs = attrs;
    record_.attrs_bytes = def_->attrs ? def_->attrs->bytes : 0;
    if (src_count > 1 && def_->domains[1] == CHOIR_DOMAIN_ARGMAX) DrawArgmax();
    for (choir_buffer_t* buffer : buffers_) {
      const char* data = static_cast<const char*>(choir_buffer_data(buffer));
      start_.emplace_back(data, data + choir_buffer_bytes(buffer));
    }
    return true;
  }

  const choir_op_def_t* def_;
  bool accumulate_;
  const Device& device_;
  bool valid_ = false;
  alignas(8) char attrs_[256] = {};
  choir_view_t operands_[CHOIR_MAX_OPERANDS] = {};
  choir_record_t record_ = {};
  std::vector<choir_buffer_t*> buffers_;
  std::vector<std::vector<char>> start_;
};

inline std::vector<const choir_op_kernel_t*> AllKernels() {
  return {
#define CHOIR__CPU_KERNEL(OP, kernel) &choir__cpu_##kernel,
#include "tensor/kernels/kernels.def"
  };
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_KERNEL_PROBLEM_H_
