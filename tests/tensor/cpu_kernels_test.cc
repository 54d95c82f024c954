// SPDX-License-Identifier: Apache-2.0
// Every kernel of the CPU against its op's reference: on all of the op's
// cases, in several layouts, adding and overwriting, for every instruction
// set of this machine, on one thread and two.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/random.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tensor/op_def.h"
#include "tests/testing/status_matchers.h"

// ---- Counting allocations ----
//
// Blocks that Choir's own code asks the C library for. oneDNN makes a small
// C++ map for each call that it runs and packs operands of sgemm; those come
// from libstdc++ and libdnnl and are not ours to avoid.

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_calloc(size_t count, size_t bytes);
extern "C" void* __libc_memalign(size_t alignment, size_t bytes);

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> own_allocations{0};
thread_local bool inside = false;

[[maybe_unused]] void CountFor(void* caller) {
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  Dl_info info;
  if (dladdr(caller, &info) == 0 || !info.dli_fname ||
      (!strstr(info.dli_fname, "libstdc++") &&
       !strstr(info.dli_fname, "libdnnl")))
    own_allocations.fetch_add(1);
  inside = false;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHOIR_TEST_COUNTS 0
#else
#define CHOIR_TEST_COUNTS 1
extern "C" {
void* malloc(size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  CountFor(__builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}
}
#endif

namespace {

struct Device {
  explicit Device(int threads) {
    choir_device_options_t options = {};
    options.threads = threads;
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

std::vector<std::vector<int64_t>> ParseShapes(const char* text) {
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
void Arrange(Layout layout, choir_view_t* view) {
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

class Problem {
 public:
  Problem(const choir_op_def_t* def, const choir_op_case_t& op_case,
          Layout layout, bool accumulate, choir_dtype_t dtype,
          const Device& device)
      : def_(def), accumulate_(accumulate), device_(device) {
    valid_ = Make(op_case, layout, dtype);
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

  // Runs the reference (kernel NULL) or a kernel from the same start; returns
  // the bytes of all destinations' buffers, gaps and guards included.
  std::vector<std::vector<char>> Run(const choir_op_kernel_t* kernel,
                                     choir_stream_t* stream) {
    for (size_t i = 0; i < buffers_.size(); ++i)
      memcpy(choir_buffer_data(buffers_[i]), start_[i].data(),
             start_[i].size());
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
    choir_random_key_t key = {7, static_cast<uint32_t>(buffers_.size()), 0};
    char* data = static_cast<char*>(choir_buffer_data(buffer));
    for (int64_t i = 0; i < count; ++i) {
      const double value = choir_random_to_normal(
          choir_random_word(key, 0, static_cast<uint64_t>(i)));
      choir_element_store(
          data + static_cast<size_t>(i) * bytes, view->dtype,
          choir_dtype_is_float(view->dtype) ? value : 3 * value + 5);
    }
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
        default:
          break;
      }
      choir_element_store(at, view->dtype, value);
    }
  }

  // Places of windows into source 1: on the smallest image that they fit on.
  void DrawWinners() {
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
      int64_t winner[2];
      for (int k = 0; k < 2; ++k, word >>= 16) {
        const int64_t start = place[k] * pool.stride[k] - pool.padding[k];
        const int64_t size = (view.shape[2 + k] - 1) * pool.stride[k] +
                             pool.kernel[k] - 2 * pool.padding[k];
        const int64_t first = std::max<int64_t>(0, -start);
        const int64_t end = std::min(pool.kernel[k], size - start);
        winner[k] = first + (word & 0xffff) % (end - first);
      }
      data[view.offset +
           i / (view.shape[1] * view.shape[2] * view.shape[3]) *
               view.strides[0] +
           i / (view.shape[2] * view.shape[3]) % view.shape[1] *
               view.strides[1] +
           place[0] * view.strides[2] + place[1] * view.strides[3]] =
          static_cast<uint8_t>(winner[0] * pool.kernel[1] + winner[1]);
    }
  }

  bool Make(const choir_op_case_t& op_case, Layout layout,
            choir_dtype_t dtype) {
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
      if (domain == CHOIR_DOMAIN_LABELS)
        own = layout == Layout::kPadded ? CHOIR_DTYPE_I32 : CHOIR_DTYPE_I64;
      if (domain == CHOIR_DOMAIN_WINNER) own = CHOIR_DTYPE_U8;
      EXPECT_OK(choir_view_make(own, static_cast<int32_t>(shapes[i].size()),
                                shapes[i].data(), &operands_[i]));
      // A destination that is a source takes its layout from it.
      Arrange(layout, &operands_[i]);
      Allocate(&operands_[i]);
      Shape(i);
    }
    choir_view_t dsts[CHOIR_OP_MAX_RESULTS];
    const void* attrs = def_->attrs ? attrs_ : nullptr;
    choir_status_t status = def_->infer(operands_, src_count, attrs, dsts);
    EXPECT_EQ(status, nullptr) << choir_status_message(status);
    if (status) return false;
    for (int32_t i = 0; i < def_->dst_count; ++i) {
      choir_view_t* dst = &operands_[src_count + i];
      if (def_->inplace[i]) {
        *dst = operands_[def_->inplace[i] - 1];
        continue;
      }
      *dst = dsts[i];
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
    record_.src_count = src_count;
    record_.dst_count = def_->dst_count;
    record_.accumulate = accumulate_;
    record_.attrs = attrs;
    record_.attrs_bytes = def_->attrs ? def_->attrs->bytes : 0;
    if (src_count > 1 && def_->domains[1] == CHOIR_DOMAIN_WINNER) DrawWinners();
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

// Ops whose bits are part of their definition.
bool IsExact(choir_op_t op) {
  switch (op) {
    case CHOIR_OP_SGD_UPDATE:
    case CHOIR_OP_ADAM_UPDATE:
    case CHOIR_OP_RANDOM_UNIFORM:
    case CHOIR_OP_RANDOM_NORMAL:
    case CHOIR_OP_DROPOUT:
    case CHOIR_OP_COPY:
    case CHOIR_OP_CAST:
    case CHOIR_OP_FILL:
    case CHOIR_OP_ARGMAX:
    case CHOIR_OP_COUNT_CORRECT:
      return true;
    default:
      return false;
  }
}

void ExpectClose(const std::vector<char>& got, const std::vector<char>& want,
                 choir_dtype_t dtype, double tolerance, bool accumulate,
                 const std::string& what) {
  const size_t bytes = choir_dtype_bytes(dtype);
  ASSERT_EQ(got.size(), want.size());
  double scale = 0;
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double value = choir_element_load(&want[i], dtype);
    if (std::isfinite(value)) scale = std::fmax(scale, std::fabs(value));
  }
  // The sum with what was there is rounded once more.
  if (accumulate) tolerance += 2.5e-7;
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double a = choir_element_load(&got[i], dtype);
    const double b = choir_element_load(&want[i], dtype);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_LE(std::fabs(a - b), tolerance * (std::fabs(b) + 0.1 * scale))
        << what << ": element " << i / bytes << " is " << a << "; needs " << b;
  }
}

std::vector<choir__isa_t> InstructionSets() {
  std::vector<choir__isa_t> sets;
  for (int isa = CHOIR__ISA_AVX512; isa >= CHOIR__ISA_BASE; --isa)
    if (choir__isa_limit(static_cast<choir__isa_t>(isa)) == isa)
      sets.push_back(static_cast<choir__isa_t>(isa));
  choir__isa_limit(CHOIR__ISA_AVX512);
  return sets;
}

// Convolutions of enough samples for the direct kernels: x, filters, kernel and
// attributes of each, written out for the forward op and for its gradients.
const std::vector<choir_op_case_t>& BatchedConvolutions(choir_op_t op) {
  struct Convolution {
    int64_t n, c, h, w, o, kh, kw;
    const char* attrs;
    int64_t oh, ow;
  };
  static const Convolution kList[] = {
      {16, 1, 6, 6, 3, 3, 3, nullptr, 4, 4},
      {16, 1, 7, 9, 20, 5, 5, nullptr, 3, 5},
      {13, 2, 5, 5, 4, 3, 3, "padding=1", 5, 5},
      {14, 3, 8, 8, 5, 5, 5, "padding=2", 8, 8},
      {30, 3, 6, 7, 6, 3, 3, "padding=1", 6, 7},
      {32, 4, 5, 6, 7, 3, 5, "padding=1,2", 5, 6},
      {16, 5, 6, 5, 8, 5, 3, "padding=2,1", 6, 5},
      {16, 16, 4, 4, 9, 3, 3, "padding=1", 4, 4},
      {16, 17, 3, 3, 11, 3, 3, nullptr, 1, 1},
      {16, 3, 9, 9, 16, 3, 3, "stride=2 padding=1", 5, 5},
      {16, 2, 9, 8, 3, 3, 3, "stride=2,1 padding=1,0", 5, 6},
      {16, 2, 9, 9, 3, 3, 3, "dilation=2", 5, 5},
      {16, 8, 4, 4, 6, 1, 1, nullptr, 4, 4},
      {16, 8, 4, 5, 6, 1, 1, "stride=2", 2, 3},
      {16, 2, 8, 8, 4, 7, 7, "padding=3", 8, 8},
      {48, 1, 5, 5, 2, 5, 5, nullptr, 1, 1},
      {29, 7, 5, 5, 13, 3, 3, "padding=2", 7, 7},
      {16, 4, 5, 14, 5, 3, 3, nullptr, 3, 12},
      {16, 6, 3, 15, 10, 1, 5, nullptr, 3, 11},
      {16, 6, 15, 3, 10, 5, 1, nullptr, 11, 3},
      {16, 1, 28, 28, 4, 5, 5, nullptr, 24, 24},
      {16, 20, 6, 6, 25, 5, 5, nullptr, 2, 2},
      {64, 1, 4, 4, 1, 3, 3, nullptr, 2, 2},
      {16, 9, 6, 4, 21, 3, 3, "padding=0,1", 4, 4},
      {15, 12, 5, 5, 14, 3, 3, "padding=1", 5, 5},
      {17, 3, 9, 7, 7, 3, 3, nullptr, 7, 5},
      {33, 2, 8, 7, 5, 5, 5, "padding=1", 6, 5},
      {16, 1, 11, 10, 9, 4, 3, nullptr, 8, 8},
      {5, 6, 8, 8, 9, 5, 5, "padding=2", 8, 8},
      {1, 9, 9, 9, 10, 3, 3, "padding=1", 9, 9},
      {2, 40, 6, 6, 6, 3, 3, "padding=1", 6, 6},
      {16, 20, 12, 12, 10, 5, 5, nullptr, 8, 8},
      // Enough for Winograd's algorithm; too much to have pooled as well.
      {16, 64, 8, 8, 64, 3, 3, "padding=1", 8, 8},
      {13, 16, 9, 10, 16, 3, 3, "padding=1", 9, 10},
      {29, 48, 6, 7, 32, 3, 3, "padding=1", 6, 7},
      {5, 64, 17, 15, 80, 3, 3, nullptr, 15, 13},
      {64, 64, 4, 4, 64, 3, 3, "padding=1", 4, 4},
  };
  static std::deque<std::string> texts;
  const auto keep = [](const std::string& text) {
    texts.push_back(text);
    return texts.back().c_str();
  };
  const auto join = [](std::initializer_list<int64_t> sizes) {
    std::string text;
    for (int64_t size : sizes)
      text += (text.empty() ? "" : ",") + std::to_string(size);
    return text;
  };
  enum Kind { kForward, kBackward, kPooled, kPooledBackward };
  static const auto write = [&](Kind kind) {
    std::vector<choir_op_case_t> cases;
    int index = 0;
    for (const Convolution& v : kList) {
      const bool pooled = kind == kPooled || kind == kPooledBackward;
      if (pooled && (v.oh < 2 || v.ow < 2 || v.c * v.o > 1000)) continue;
      const std::string x = join({v.n, v.c, v.h, v.w});
      const std::string w = join({v.o, v.c, v.kh, v.kw});
      const std::string y = pooled ? join({v.n, v.o, v.oh / 2, v.ow / 2})
                                   : join({v.n, v.o, v.oh, v.ow});
      std::string attrs = v.attrs ? v.attrs : "";
      if (kind != kBackward && index++ % 2)
        attrs += (attrs.empty() ? "" : " ") + std::string("activation=relu");
      if (pooled) {
        for (size_t at = 0; at < attrs.size() && at != std::string::npos;) {
          attrs.insert(at, "conv.");
          at = attrs.find(' ', at);
          if (at != std::string::npos) ++at;
        }
        attrs += (attrs.empty() ? "" : " ") +
                 std::string("pool.kernel=2 pool.stride=2");
      }
      std::string shapes = x + ";" + w + ";" + join({v.o});
      if (kind == kBackward) shapes = x + ";" + w + ";" + y;
      if (kind == kPooledBackward)
        shapes = x + ";" + y + ";" + w + ";" + y + ";" + y;
      cases.push_back({keep(shapes), keep(attrs)});
    }
    return cases;
  };
  static const std::vector<choir_op_case_t> forward = write(kForward);
  static const std::vector<choir_op_case_t> backward = write(kBackward);
  static const std::vector<choir_op_case_t> pooled = write(kPooled);
  static const std::vector<choir_op_case_t> spread = write(kPooledBackward);
  switch (op) {
    case CHOIR_OP_CONV2D:
      return forward;
    case CHOIR_OP_CONV2D_MAX_POOL2D:
      return pooled;
    case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA:
    case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT:
      return spread;
    default:
      return backward;
  }
}

// Cases beside the op's own: sizes at which work is shared among threads, and
// the steps of the MNIST network.
std::vector<choir_op_case_t> Cases(const choir_op_def_t* def) {
  std::vector<choir_op_case_t> cases;
  for (const choir_op_case_t* c = def->cases; c->shapes; ++c)
    cases.push_back(*c);
  const std::vector<choir_op_case_t> more = [&] {
    using List = std::vector<choir_op_case_t>;
    switch (def->op) {
      case CHOIR_OP_SUM:
      case CHOIR_OP_MEAN:
      case CHOIR_OP_MAX:
        return List{{"64,500", "axis=0"},      {"64,500", "axis=1"},
                    {"300,200", "axis=0"},     {"300,200", nullptr},
                    {"16,20,24,24", "axis=0"}, {"16,20,24,24", "axis=1"},
                    {"16,20,24,24", "axis=2"}, {"16,20,24,24", "axis=3"},
                    {"140001", nullptr},       {"5000,3", "axis=0 keep_dims=1"},
                    {"3,9000", "axis=1"}};
      case CHOIR_OP_ARGMAX:
        return List{{"64,10", "axis=1"},
                    {"1,1", "axis=1"},
                    {"7,3", "axis=1"},
                    {"9,16", "axis=1"},
                    {"5,17", "axis=1"},
                    {"2,100", "axis=1"},
                    {"3,1000", "axis=1"},
                    {"300,100", "axis=1"},
                    {"33,64", "axis=1 keep_dims=1"},
                    {"4,31", "axis=1"}};
      case CHOIR_OP_MSE_LOSS:
        return List{{"64,10;64,10", nullptr},     {"5000;5000", nullptr},
                    {"3,33;3,33", nullptr},       {"2,3,4;2,3,4", nullptr},
                    {"15;15", nullptr},           {"16;16", nullptr},
                    {"17;17", nullptr},           {"100,100;100,100", nullptr},
                    {"2,3,5,5;2,3,5,5", nullptr}, {"4097;4097", nullptr}};
      case CHOIR_OP_MAX_POOL2D:
      case CHOIR_OP_AVG_POOL2D:
        return List{{"16,20,24,24", "kernel=2,2 stride=2,2"},
                    {"16,50,8,8", "kernel=2,2 stride=2,2"},
                    {"4,100,9,9", "kernel=3,3 stride=2,2 padding=1,1"}};
      case CHOIR_OP_MAX_POOL2D_GRAD:
        return List{
            {"16,20,24,24;16,20,12,12;16,20,12,12", "kernel=2,2 stride=2,2"},
            {"16,50,8,8;16,50,4,4;16,50,4,4", "kernel=2,2 stride=2,2"}};
      case CHOIR_OP_AVG_POOL2D_GRAD:
        return List{{"16,20,24,24;16,20,12,12", "kernel=2,2 stride=2,2"},
                    {"16,100,7,7;16,100,1,1", "kernel=7,7 stride=7,7"}};
      case CHOIR_OP_CONV2D:
      case CHOIR_OP_CONV2D_GRAD_DATA:
      case CHOIR_OP_CONV2D_GRAD_WEIGHT:
      case CHOIR_OP_CONV2D_MAX_POOL2D:
      case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA:
      case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT:
        return BatchedConvolutions(def->op);
      case CHOIR_OP_SGD_UPDATE:
        return List{{"500,800;500,800;500,800", "momentum=0.9"},
                    {"5,7;5,7;5,7", "momentum=0.5 dampening=0.25"},
                    {"1;1;1", "lr=0.5"},
                    {"3,3,3;3,3,3;3,3,3", "scale=0.125"},
                    {"130;130;130", "momentum=0.9 scale=0.5"},
                    {"50,20,5,5;50,20,5,5;50,20,5,5",
                     "momentum=0.9 nesterov=1 weight_decay=0.01"}};
      case CHOIR_OP_ADAM_UPDATE:
        return List{{"500,80;500,80;500,80;500,80", "step=7"},
                    {"5,7;5,7;5,7;5,7", "scale=0.5 step=2"},
                    {"1;1;1;1", "lr=0.5"},
                    {"3,3,3;3,3,3;3,3,3;3,3,3", "beta1=0.8 beta2=0.9"},
                    {"130;130;130;130", "weight_decay=0.1 step=1000"}};
      case CHOIR_OP_RANDOM_UNIFORM:
      case CHOIR_OP_RANDOM_NORMAL:
      case CHOIR_OP_DROPOUT:
        return List{{"64,500", "seed=3"},
                    {"3,9001", "seed=4 step=2"},
                    {"20000", "seed=5"},
                    {"1,63", "seed=6"},
                    {"2,64", "seed=7"},
                    {"2,65", "seed=8 first_sample=77"},
                    {"2,4096", nullptr},
                    {"2,4097", "stream=9"},
                    {"8,20,12,12", "seed=11"},
                    {"5,1", nullptr},
                    {"1,1,1,1", nullptr},
                    {"2,3,4,5,6", "seed=1"},
                    {"300", "first_sample=4294967290"},
                    {"7,7,7", "seed=2"},
                    {"31,2", nullptr}};
      case CHOIR_OP_BATCH_NORM:
        return List{
            {"16,20,24,24;20;20", nullptr}, {"4,100,9,9;100;100", nullptr},
            {"64,500;500;500", nullptr},    {"3,64,5,5;64;64", nullptr},
            {"128,32,9,9;32;32", nullptr},  {"5,48,7,13;48;48", nullptr},
            {"700,3;3;3", nullptr}};
      case CHOIR_OP_BATCH_NORM_INFER:
        return List{{"16,20,24,24;20;20;20;20", nullptr},
                    {"4,100,9,9;100;100;100;100", nullptr},
                    {"64,500;500;500;500;500", nullptr},
                    {"3,64,5,5;64;64;64;64", nullptr},
                    {"700,3;3;3;3;3", nullptr}};
      case CHOIR_OP_BATCH_NORM_GRAD:
        return List{{"16,20,24,24;20;20;20;16,20,24,24", nullptr},
                    {"4,100,9,9;100;100;100;4,100,9,9", nullptr},
                    {"64,500;500;500;500;64,500", nullptr},
                    {"3,64,5,5;64;64;64;3,64,5,5", nullptr},
                    {"700,3;3;3;3;700,3", nullptr}};
      case CHOIR_OP_BATCH_NORM_RELU:
        return List{{"16,20,24,24;20;20", nullptr},
                    {"4,100,9,9;100;100;4,100,9,9", nullptr},
                    {"64,500;500;500", nullptr},
                    {"3,64,5,5;64;64;3,64,5,5", nullptr},
                    {"700,3;3;3", nullptr},
                    {"128,32,9,9;32;32;128,32,9,9", nullptr},
                    {"17,16,31,33;16;16", nullptr}};
      case CHOIR_OP_BATCH_NORM_RELU_GRAD:
        return List{{"16,20,24,24;20;20;20;20;16,20,24,24", nullptr},
                    {"4,100,9,9;100;100;100;100;4,100,9,9;4,100,9,9", nullptr},
                    {"64,500;500;500;500;500;64,500", nullptr},
                    {"3,64,5,5;64;64;64;64;3,64,5,5;3,64,5,5", nullptr},
                    {"700,3;3;3;3;3;700,3", nullptr},
                    {"128,32,9,9;32;32;32;32;128,32,9,9;128,32,9,9", nullptr},
                    {"17,16,31,33;16;16;16;16;17,16,31,33", nullptr}};
      case CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD:
        return List{
            {"16,20,24,24;20;20;20;16,20,24,24;16,20,24,24", nullptr},
            {"4,100,9,9;100;100;100;4,100,9,9;4,100,9,9;4,100,9,9", nullptr},
            {"64,500;500;500;500;64,500;64,500", nullptr},
            {"3,64,5,5;64;64;64;3,64,5,5;3,64,5,5;3,64,5,5", nullptr},
            {"700,3;3;3;3;700,3;700,3", nullptr},
            {"128,32,9,9;32;32;32;128,32,9,9;128,32,9,9;128,32,9,9", nullptr},
            {"17,16,31,33;16;16;16;17,16,31,33;17,16,31,33", nullptr}};
      case CHOIR_OP_LINEAR:
        return List{{"64,800;800,500;500", nullptr},
                    {"64,500;500,10;10", nullptr}};
      case CHOIR_OP_SOFTMAX:
      case CHOIR_OP_LOG_SOFTMAX:
        return List{{"64,10", nullptr}, {"100,1000", nullptr}};
      default:
        if (def->elementwise && def->src_max == 1)
          return List{{"16,20,24,24", nullptr}, {"50000", nullptr}};
        if (def->elementwise)
          return List{{"16,20,24,24;16,20,24,24", nullptr},
                      {"50000;50000", nullptr}};
        return List{};
    }
  }();
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

class CpuKernels : public testing::TestWithParam<const choir_op_kernel_t*> {};

TEST_P(CpuKernels, AgreeWithTheReference) {
  const choir_op_kernel_t* kernel = GetParam();
  const choir_op_def_t* def = choir__op_def(kernel->op);
  ASSERT_NE(def, nullptr);
  ASSERT_NE(def->cases, nullptr);
  const bool own = strstr(kernel->kernel.name, "/cpu") != nullptr;
  const bool winners = strstr(kernel->kernel.name, "/winners") != nullptr;
  const bool direct = strstr(kernel->kernel.name, "/direct") != nullptr;
  if (direct && choir__isa_limit(CHOIR__ISA_AVX512) != CHOIR__ISA_AVX512)
    GTEST_SKIP() << "this processor has no AVX-512";
  if (winners && choir__isa_limit(CHOIR__ISA_AVX512) == CHOIR__ISA_BASE)
    GTEST_SKIP() << "this processor has no AVX2";
  Device one(1), two(2);
  std::set<std::string> shapes;
  for (const choir_op_case_t& c : Cases(def)) {
    for (Layout layout : kLayouts) {
      for (bool accumulate : {false, true}) {
        if (accumulate && def->no_accumulate) continue;
        Problem problem(def, c, layout, accumulate, CHOIR_DTYPE_F32, one);
        if (!problem.valid() || problem.empty()) continue;
        if (!kernel->supports(&problem.record())) continue;
        // The reference takes its time over the large ones, oneDNN over
        // generating code.
        if (problem.size() > (own || winners || direct ? 20000 : 2000) &&
            (layout != Layout::kChannelsLast || accumulate))
          continue;
        shapes.insert(std::string(c.shapes) + (c.attrs ? c.attrs : "") +
                      std::to_string(static_cast<int>(layout)));
        const auto want = problem.Run(nullptr, one.stream());
        const auto got = problem.Run(kernel, one.stream());
        for (size_t i = 0; i < want.size(); ++i) {
          if (IsExact(kernel->op) && !accumulate)
            ASSERT_EQ(got[i], want[i]) << problem.Describe();
          else
            ExpectClose(got[i], want[i],
                        problem.dst_dtype(static_cast<int32_t>(i)),
                        def->tolerance, accumulate, problem.Describe());
        }
        if (HasFatalFailure()) return;
        // A kernel of ours has the same bits on every instruction set and for
        // every number of threads.
        if (own || winners) {
          for (choir__isa_t isa : InstructionSets()) {
            choir__isa_limit(isa);
            if (winners && isa == CHOIR__ISA_BASE) continue;
            ASSERT_EQ(problem.Run(kernel, one.stream()), got)
                << problem.Describe() << " on instruction set " << isa;
          }
          choir__isa_limit(CHOIR__ISA_AVX512);
          ASSERT_EQ(problem.Run(kernel, two.stream()), got)
              << problem.Describe() << " on two threads";
        } else {
          ASSERT_EQ(problem.Run(kernel, one.stream()), got)
              << problem.Describe() << " run again";
          const auto shared = problem.Run(kernel, two.stream());
          if (direct) {
            ASSERT_EQ(shared, got) << problem.Describe();
          }
          for (size_t i = 0; i < want.size(); ++i)
            ExpectClose(shared[i], want[i],
                        problem.dst_dtype(static_cast<int32_t>(i)),
                        def->tolerance, accumulate, problem.Describe());
        }
      }
    }
  }
  EXPECT_GE(shapes.size(), 20u);
}

// The pooling within the convolution has the bits, and the winners, of the two
// kernels one after the other: a graph that fuses them computes what eager
// does.
TEST(CpuKernelsPooled, HasTheBitsOfConvolutionAndPooling) {
  if (choir__isa_limit(CHOIR__ISA_AVX512) != CHOIR__ISA_AVX512)
    GTEST_SKIP() << "this processor has no AVX-512";
  Device device(1);
  const choir_op_kernel_t* kernel = &choir__cpu_conv2d_max_pool2d_direct;
  const choir_op_def_t* def = choir__op_def(kernel->op);
  int compared = 0;
  for (const choir_op_case_t& c : Cases(def)) {
    Problem fused(def, c, Layout::kChannelsLast, false, CHOIR_DTYPE_F32,
                  device);
    if (fused.empty() || !kernel->supports(&fused.record())) continue;
    const auto got = fused.Run(kernel, device.stream());
    const auto* attrs = static_cast<const choir_conv2d_max_pool2d_attrs_t*>(
        fused.record().attrs);
    choir_view_t image;
    ASSERT_OK(choir__op_def(CHOIR_OP_CONV2D)
                  ->infer(fused.record().operands, 3, &attrs->conv, &image));
    ASSERT_OK(choir_buffer_create(device.device,
                                  sizeof(float) * choir_view_count(&image),
                                  &image.buffer));
    choir_view_t operands[] = {*choir_record_src(&fused.record(), 0),
                               *choir_record_src(&fused.record(), 1),
                               *choir_record_src(&fused.record(), 2),
                               image,
                               *choir_record_dst(&fused.record(), 0),
                               *choir_record_dst(&fused.record(), 1)};
    choir_record_t conv = {}, pool = {};
    conv.operands = operands;
    conv.src_count = 3;
    conv.dst_count = 1;
    conv.attrs = &attrs->conv;
    pool.operands = operands + 3;
    pool.src_count = 1;
    pool.dst_count = 2;
    pool.attrs = &attrs->pool;
    ASSERT_TRUE(choir__cpu_conv2d_direct.supports(&conv));
    ASSERT_OK(choir__cpu_conv2d_direct.kernel.run(&conv, device.stream()));
    ASSERT_OK(choir__cpu_max_pool2d.kernel.run(&pool, device.stream()));
    for (int32_t i = 0; i < 2; ++i) {
      choir_buffer_t* buffer = choir_record_dst(&fused.record(), i)->buffer;
      EXPECT_EQ(0,
                memcmp(choir_buffer_data(buffer), got[i].data(), got[i].size()))
          << fused.Describe() << " result " << i;
    }
    choir_buffer_release(image.buffer);
    ++compared;
  }
  EXPECT_GE(compared, 10);
}

// Copies and casts take more dtypes than f32.
TEST(CpuKernelsDtypes, CopiesAndCastsOfAllAreExact) {
  Device device(1);
  for (const choir_op_kernel_t* kernel : {&choir__cpu_copy, &choir__cpu_cast}) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
      int supported = 0;
      for (const choir_op_case_t* c = def->cases; c->shapes; ++c) {
        for (Layout layout : kLayouts) {
          Problem problem(def, *c, layout, false,
                          static_cast<choir_dtype_t>(dtype), device);
          if (problem.empty() || !kernel->supports(&problem.record())) continue;
          ++supported;
          ASSERT_EQ(problem.Run(kernel, device.stream()),
                    problem.Run(nullptr, device.stream()))
              << problem.Describe();
        }
      }
      // A cast to the same dtype at least.
      EXPECT_GE(supported, 4)
          << kernel->kernel.name << " of "
          << choir_dtype_name(static_cast<choir_dtype_t>(dtype));
    }
  }
}

std::vector<const choir_op_kernel_t*> AllKernels() {
  return {
#define CHOIR__CPU_KERNEL(OP, kernel) &choir__cpu_##kernel,
#include "tensor/kernels/cpu/kernels.def"
#undef CHOIR__CPU_KERNEL
  };
}

std::string KernelName(
    const testing::TestParamInfo<const choir_op_kernel_t*>& info) {
  std::string name = info.param->kernel.name;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(List, CpuKernels, testing::ValuesIn(AllKernels()),
                         KernelName);

// ---- Plans of oneDNN ----

class DnnlPlans : public testing::Test {
 protected:
  void SetUp() override { choir__dnnl_cache_clear(); }
  static const choir_op_def_t* def() { return choir__op_def(CHOIR_OP_CONV2D); }
};

TEST_F(DnnlPlans, AreBuiltOnceForAProblem) {
  Device device(1);
  Problem problem(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kChannelsLast,
                  false, CHOIR_DTYPE_F32, device);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < 5; ++i) problem.Run(&choir__cpu_conv2d, device.stream());
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.built - before.built, 1u);
  EXPECT_EQ(after.reused - before.reused, 4u);
  EXPECT_EQ(after.kept, 1);
  // Another layout, activation or number of threads is another problem.
  Device two(2);
  problem.Run(&choir__cpu_conv2d, two.stream());
  Problem relu(def(), {"2,3,8,8;4,3,3,3;4", "activation=relu"},
               Layout::kChannelsLast, false, CHOIR_DTYPE_F32, device);
  relu.Run(&choir__cpu_conv2d, device.stream());
  Problem dense(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kDense, false,
                CHOIR_DTYPE_F32, device);
  dense.Run(&choir__cpu_conv2d, device.stream());
  EXPECT_EQ(choir__dnnl_cache_stats().built - before.built, 4u);
}

TEST_F(DnnlPlans, AreBounded) {
  Device device(1);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < CHOIR__DNNL_PLANS + 20; ++i) {
    const std::string shapes = "1,1," + std::to_string(1 + i / 24) + "," +
                               std::to_string(1 + i % 24) + ";1,1,1,1;1";
    Problem problem(def(), {shapes.c_str(), nullptr}, Layout::kChannelsLast,
                    false, CHOIR_DTYPE_F32, device);
    problem.Run(&choir__cpu_conv2d, device.stream());
  }
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.kept, CHOIR__DNNL_PLANS);
  EXPECT_EQ(after.dropped - before.dropped, 20u);
  choir__dnnl_cache_clear();
  EXPECT_EQ(choir__dnnl_cache_stats().kept, 0);
}

TEST_F(DnnlPlans, ServeThreadsAtTheSameTime) {
  const choir_op_case_t op_case = {"8,3,12,12;8,3,3,3;8", "padding=1"};
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Device device(1);
      Problem problem(def(), op_case, Layout::kChannelsLast, false,
                      CHOIR_DTYPE_F32, device);
      const auto want = problem.Run(&choir__cpu_conv2d, device.stream());
      for (int i = 0; i < 200; ++i)
        wrong += problem.Run(&choir__cpu_conv2d, device.stream()) != want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(choir__dnnl_cache_stats().kept, kThreads);
}

TEST_F(DnnlPlans, CountTheirReorders) {
  Device device(1);
  Problem problem(def(), {"2,16,8,8;32,16,3,3;32", nullptr}, Layout::kDense,
                  false, CHOIR_DTYPE_F32, device);
  choir_op_stats_reset();
  problem.Run(&choir__cpu_conv2d, device.stream());
  // x and W at least: neither lies as the primitive wants it.
  EXPECT_GE(choir_op_stats().reorders, 2u);
  EXPECT_GE(choir_op_stats().reorder_bytes, 4u * (2 * 16 * 64 + 32 * 16 * 9));
}

// ---- Steady loops ----

TEST(CpuKernelsMemory, SteadyLoopsAllocateNothing) {
  if (!CHOIR_TEST_COUNTS) GTEST_SKIP() << "a sanitizer owns malloc here";
  Device device(1);
  for (const choir_op_kernel_t* kernel : AllKernels()) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    for (const choir_op_case_t& c : Cases(def)) {
      Problem problem(def, c, Layout::kChannelsLast, false, CHOIR_DTYPE_F32,
                      device);
      if (!problem.valid() || problem.empty() ||
          !kernel->supports(&problem.record()))
        continue;
      problem.Run(kernel, device.stream());
      choir_record_t record = problem.record();
      record.kernel = &kernel->kernel;
      own_allocations = 0;
      counting = true;
      choir_status_t status = kernel->kernel.run(&record, device.stream());
      counting = false;
      EXPECT_OK(status);
      EXPECT_EQ(own_allocations, 0u) << problem.Describe();
    }
  }
}

// ---- Odds and ends ----

TEST(CpuKernelsList, NamesEveryKernelUnderItsOp) {
#define CHOIR__CPU_KERNEL(OP, name)                  \
  EXPECT_EQ(choir__cpu_##name.op, CHOIR_OP_##OP);    \
  EXPECT_NE(choir__cpu_##name.kernel.cost, nullptr); \
  EXPECT_NE(choir__cpu_##name.supports, nullptr);
#include "tensor/kernels/cpu/kernels.def"
#undef CHOIR__CPU_KERNEL
}

TEST(CpuKernelsList, DeclinesOtherDtypes) {
  Device device(1);
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F64, CHOIR_DTYPE_BF16}) {
    Problem problem(choir__op_def(CHOIR_OP_RELU), {"3,5", nullptr},
                    Layout::kDense, false, dtype, device);
    EXPECT_FALSE(choir__cpu_relu.supports(&problem.record()));
  }
}

TEST(CpuKernelsList, NanGoesThrough) {
  Device device(1);
  choir_buffer_t* buffer;
  ASSERT_OK(choir_buffer_create(device.device, 4096, &buffer));
  float* data = static_cast<float*>(choir_buffer_data(buffer));
  for (int i = 0; i < 1024; ++i) data[i] = static_cast<float>(i % 7) - 3.0f;
  data[37] = NAN;
  choir_view_t operands[2];
  const int64_t shape[] = {100}, one[] = {1};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, shape, &operands[0]));
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, shape, &operands[1]));
  operands[0].buffer = operands[1].buffer = buffer;
  operands[1].offset = 200;
  choir_record_t record = {};
  record.operands = operands;
  record.src_count = record.dst_count = 1;
  for (const choir_op_kernel_t* kernel :
       {&choir__cpu_relu, &choir__cpu_exp, &choir__cpu_log, &choir__cpu_tanh,
        &choir__cpu_sigmoid, &choir__cpu_gelu, &choir__cpu_sqrt}) {
    record.kernel = &kernel->kernel;
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
    EXPECT_TRUE(std::isnan(data[237])) << kernel->kernel.name;
    EXPECT_FALSE(std::isnan(data[240])) << kernel->kernel.name;
  }
  choir_reduce_attrs_t attrs = {-1, true};
  record.attrs = &attrs;
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 1, one, &operands[1]));
  operands[1].buffer = buffer;
  operands[1].offset = 200;
  for (const choir_op_kernel_t* kernel :
       {&choir__cpu_sum, &choir__cpu_mean, &choir__cpu_max}) {
    record.kernel = &kernel->kernel;
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
    EXPECT_TRUE(std::isnan(data[200])) << kernel->kernel.name;
  }
  choir_buffer_release(buffer);
}

}  // namespace
