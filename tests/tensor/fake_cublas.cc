// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/fake_cublas.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/dtype.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {
namespace {

enum {
  kSuccess = 0,
  kInvalidValue = 7,
  kExecutionFailed = 13,
  kNotSupported = 15,
};

size_t BytesOf(int dtype) {
  switch (dtype) {
    case CHOIR__CUBLAS_R_32F:
      return 4;
    case CHOIR__CUBLAS_R_64F:
      return 8;
    case CHOIR__CUBLAS_R_16F:
    case CHOIR__CUBLAS_R_16BF:
      return 2;
    default:
      return 0;
  }
}

choir_dtype_t ChoirDtype(int dtype) {
  switch (dtype) {
    case CHOIR__CUBLAS_R_64F:
      return CHOIR_DTYPE_F64;
    case CHOIR__CUBLAS_R_16F:
      return CHOIR_DTYPE_F16;
    case CHOIR__CUBLAS_R_16BF:
      return CHOIR_DTYPE_BF16;
    default:
      return CHOIR_DTYPE_F32;
  }
}

// Factors of 16 bits have results of 16 or 32.
bool TakesDtypes(int factors, int result) {
  return result == factors ||
         (BytesOf(factors) == 2 && result == CHOIR__CUBLAS_R_32F);
}

uint32_t AlignmentOf(const void* memory) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(memory) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// Attributes have one size each.
template <typename T>
int Take(const void* value, size_t bytes, T* out) {
  if (!value || bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(out, value, sizeof(T));
  return kSuccess;
}

}  // namespace

struct FakeCublas::Desc {
  int compute = 0;
  int scale = 0;
  int32_t turn[2] = {0, 0};
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};

struct FakeCublas::Layout {
  int dtype = 0;
  uint64_t rows = 0;
  uint64_t columns = 0;
  int64_t ld = 0;
  int32_t batch = 1;
  int64_t batch_offset = 0;

  size_t Place(uint64_t row, uint64_t column, int32_t number) const {
    return static_cast<size_t>(number) * static_cast<size_t>(batch_offset) +
           column * static_cast<size_t>(ld) + row;
  }
  // From the first byte to one past the last.
  size_t Bytes() const {
    return (Place(rows - 1, columns - 1, batch - 1) + 1) * BytesOf(dtype);
  }
};

struct FakeCublas::Product {
  Desc desc;
  Layout layouts[4];
  const char* a;
  const char* b;
  const char* c;
  char* d;
  double alpha;
  double beta;
  void* workspace;
  size_t workspace_bytes;
  Found found;
};

FakeCublas* FakeCublas::self_ = nullptr;

FakeCublas::FakeCublas() : FakeLibrary("cuBLASLt") {
  EXPECT_EQ(self_, nullptr) << "one at a time";
  self_ = this;
  table_ = MakeTable();
  choir__cublas_replace(&table_);
}

FakeCublas::~FakeCublas() {
  choir__cublas_replace(nullptr);
  self_ = nullptr;
}

std::string FakeCublas::Sign(const Desc& desc, const Layout& a, const Layout& b,
                             const Layout& c, const Layout& d) {
  std::string sign;
  for (int64_t word :
       {static_cast<int64_t>(desc.compute), static_cast<int64_t>(desc.scale),
        static_cast<int64_t>(desc.turn[0]), static_cast<int64_t>(desc.turn[1]),
        static_cast<int64_t>(desc.epilogue)})
    sign += std::to_string(word) + " ";
  for (const Layout* layout : {&a, &b, &c, &d})
    for (int64_t word :
         {static_cast<int64_t>(layout->dtype),
          static_cast<int64_t>(layout->rows),
          static_cast<int64_t>(layout->columns), layout->ld,
          static_cast<int64_t>(layout->batch), layout->batch_offset})
      sign += std::to_string(word) + " ";
  return sign;
}

// What the library finds out before it launches.
bool FakeCublas::Check(const Product& product) {
  const Layout* layouts = product.layouts;
  if (Sign(product.desc, layouts[0], layouts[1], layouts[2], layouts[3]) !=
      product.found.sign) {
    Misuse("an algorithm for other descriptors");
    return false;
  }
  const void* memory[4] = {product.a, product.b, product.c, product.d};
  for (int i = 0; i < 4; ++i) {
    if (!IsOnGpu(memory[i], layouts[i].Bytes(), "an operand")) return false;
    if (AlignmentOf(memory[i]) < product.found.alignment[i]) {
      Misuse("an operand that is not aligned as was promised");
      return false;
    }
  }
  if (product.desc.epilogue == CHOIR__CUBLAS_EPILOGUE_BIAS) {
    if (!IsOnGpu(product.desc.bias, layouts[3].rows * BytesOf(layouts[3].dtype),
                 "the bias"))
      return false;
    if (AlignmentOf(product.desc.bias) < product.found.bias_alignment) {
      Misuse("a bias that is not aligned as was promised");
      return false;
    }
  }
  if (product.workspace_bytes < product.found.workspace_bytes) return false;
  return product.found.workspace_bytes == 0 ||
         (IsOnGpu(product.workspace, product.workspace_bytes,
                  "the workspace") &&
          AlignmentOf(product.workspace) >= 16);
}

void FakeCublas::Multiply(const Product& product) {
  const Layout& a = product.layouts[0];
  const Layout& b = product.layouts[1];
  const Layout& d = product.layouts[3];
  const bool turn_a = product.desc.turn[0] == CHOIR__CUBLAS_OP_T;
  const bool turn_b = product.desc.turn[1] == CHOIR__CUBLAS_OP_T;
  const uint64_t inner = turn_a ? a.rows : a.columns;
  const choir_dtype_t dtype = ChoirDtype(d.dtype);
  const size_t bytes = BytesOf(d.dtype);
  auto load = [](const void* memory, size_t place, int type) {
    return choir_element_load(
        static_cast<const char*>(memory) + place * BytesOf(type),
        ChoirDtype(type));
  };
  if (product.workspace)
    std::memset(product.workspace, 0x5a, product.workspace_bytes);
  for (int32_t number = 0; number < d.batch; ++number) {
    for (uint64_t column = 0; column < d.columns; ++column) {
      for (uint64_t row = 0; row < d.rows; ++row) {
        double sum = 0;
        for (uint64_t i = 0; i < inner; ++i)
          sum +=
              load(product.a,
                   turn_a ? a.Place(i, row, number) : a.Place(row, i, number),
                   a.dtype) *
              load(product.b,
                   turn_b ? b.Place(column, i, number)
                          : b.Place(i, column, number),
                   b.dtype);
        double result = product.alpha * sum;
        if (product.beta != 0)
          result +=
              product.beta * load(product.c,
                                  product.layouts[2].Place(row, column, number),
                                  product.layouts[2].dtype);
        if (product.desc.epilogue == CHOIR__CUBLAS_EPILOGUE_BIAS)
          result += load(product.desc.bias, row, d.dtype);
        choir_element_store(product.d + d.Place(row, column, number) * bytes,
                            dtype, result);
      }
    }
  }
}

// Begins each function: the lock, and the scripted result.
#define BEGIN(function)                              \
  FakeCublas* fake = self_;                          \
  Lock lock(fake->lock_);                            \
  if (int scripted = fake->BeginInContext(function)) \
    return static_cast<Result>(scripted);

choir__cublas_table_t FakeCublas::MakeTable() {
  using Result = choir__cublas_result_t;
  choir__cublas_table_t table = {};
  table.cublasLtGetStatusName = [](Result result) -> const char* {
    switch (result) {
      case 3:
        return "CUBLAS_STATUS_ALLOC_FAILED";
      case kExecutionFailed:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
      default:
        return "CUBLAS_STATUS_INVALID_VALUE";
    }
  };
  table.cublasLtGetStatusString = [](Result result) -> const char* {
    switch (result) {
      case 3:
        return "the resource allocation failed";
      case kExecutionFailed:
        return "the function failed to launch on the GPU";
      default:
        return "an unsupported value or parameter was passed";
    }
  };
  table.cublasLtCreate = [](choir__cublas_handle_t* handle) -> Result {
    BEGIN("cublasLtCreate");
    fake->Give(handle, new char);
    return kSuccess;
  };
  table.cublasLtDestroy = [](choir__cublas_handle_t handle) -> Result {
    BEGIN("cublasLtDestroy");
    if (!fake->Drop(handle, "cublasLtDestroy")) return kInvalidValue;
    delete reinterpret_cast<char*>(handle);
    return kSuccess;
  };
  table.cublasLtMatmulDescCreate = [](choir__cublas_desc_t* desc,
                                      choir__cublas_compute_t compute,
                                      choir__cublas_dtype_t scale) -> Result {
    BEGIN("cublasLtMatmulDescCreate");
    auto* made = new Desc;
    made->compute = compute;
    made->scale = scale;
    fake->Give(desc, made);
    return kSuccess;
  };
  table.cublasLtMatmulDescDestroy = [](choir__cublas_desc_t desc) -> Result {
    BEGIN("cublasLtMatmulDescDestroy");
    if (!fake->Drop(desc, "cublasLtMatmulDescDestroy")) return kInvalidValue;
    delete reinterpret_cast<Desc*>(desc);
    return kSuccess;
  };
  table.cublasLtMatmulDescSetAttribute =
      [](choir__cublas_desc_t handle, choir__cublas_desc_attr_t attr,
         const void* value, size_t bytes) -> Result {
    BEGIN("cublasLtMatmulDescSetAttribute");
    if (!fake->IsLive(handle, "cublasLtMatmulDescSetAttribute"))
      return kInvalidValue;
    auto* desc = reinterpret_cast<Desc*>(handle);
    switch (attr) {
      case CHOIR__CUBLAS_DESC_TRANSA:
        return Take(value, bytes, &desc->turn[0]);
      case CHOIR__CUBLAS_DESC_TRANSB:
        return Take(value, bytes, &desc->turn[1]);
      case CHOIR__CUBLAS_DESC_EPILOGUE:
        return Take(value, bytes, &desc->epilogue);
      case CHOIR__CUBLAS_DESC_BIAS_POINTER:
        return Take(value, bytes, &desc->bias);
      default:
        return kInvalidValue;
    }
  };
  table.cublasLtMatrixLayoutCreate =
      [](choir__cublas_layout_t* layout, choir__cublas_dtype_t dtype,
         uint64_t rows, uint64_t columns, int64_t ld) -> Result {
    BEGIN("cublasLtMatrixLayoutCreate");
    if (BytesOf(dtype) == 0 || rows == 0 || columns == 0 ||
        ld < static_cast<int64_t>(rows)) {
      fake->Misuse("a matrix whose columns overlap, or that has none");
      return kInvalidValue;
    }
    auto* made = new Layout;
    made->dtype = dtype;
    made->rows = rows;
    made->columns = columns;
    made->ld = ld;
    fake->Give(layout, made);
    return kSuccess;
  };
  table.cublasLtMatrixLayoutDestroy =
      [](choir__cublas_layout_t layout) -> Result {
    BEGIN("cublasLtMatrixLayoutDestroy");
    if (!fake->Drop(layout, "cublasLtMatrixLayoutDestroy"))
      return kInvalidValue;
    delete reinterpret_cast<Layout*>(layout);
    return kSuccess;
  };
  table.cublasLtMatrixLayoutSetAttribute =
      [](choir__cublas_layout_t handle, choir__cublas_layout_attr_t attr,
         const void* value, size_t bytes) -> Result {
    BEGIN("cublasLtMatrixLayoutSetAttribute");
    if (!fake->IsLive(handle, "cublasLtMatrixLayoutSetAttribute"))
      return kInvalidValue;
    auto* layout = reinterpret_cast<Layout*>(handle);
    switch (attr) {
      case CHOIR__CUBLAS_LAYOUT_BATCH_COUNT:
        return Take(value, bytes, &layout->batch);
      case CHOIR__CUBLAS_LAYOUT_BATCH_OFFSET:
        return Take(value, bytes, &layout->batch_offset);
      default:
        return kInvalidValue;
    }
  };
  table.cublasLtMatmulPreferenceCreate =
      [](choir__cublas_wish_t* wish) -> Result {
    BEGIN("cublasLtMatmulPreferenceCreate");
    fake->Give(wish, new Question);
    return kSuccess;
  };
  table.cublasLtMatmulPreferenceDestroy =
      [](choir__cublas_wish_t wish) -> Result {
    BEGIN("cublasLtMatmulPreferenceDestroy");
    if (!fake->Drop(wish, "cublasLtMatmulPreferenceDestroy"))
      return kInvalidValue;
    delete reinterpret_cast<Question*>(wish);
    return kSuccess;
  };
  table.cublasLtMatmulPreferenceSetAttribute =
      [](choir__cublas_wish_t handle, choir__cublas_wish_attr_t attr,
         const void* value, size_t bytes) -> Result {
    BEGIN("cublasLtMatmulPreferenceSetAttribute");
    if (!fake->IsLive(handle, "cublasLtMatmulPreferenceSetAttribute"))
      return kInvalidValue;
    auto* question = reinterpret_cast<Question*>(handle);
    switch (attr) {
      case CHOIR__CUBLAS_WISH_WORKSPACE_BYTES:
        return Take(value, bytes, &question->workspace_bytes);
      case CHOIR__CUBLAS_WISH_REDUCTION_MASK:
        return Take(value, bytes, &question->reduction_mask);
      case CHOIR__CUBLAS_WISH_ALIGNMENT_A:
      case CHOIR__CUBLAS_WISH_ALIGNMENT_B:
      case CHOIR__CUBLAS_WISH_ALIGNMENT_C:
      case CHOIR__CUBLAS_WISH_ALIGNMENT_D:
        return Take(
            value, bytes,
            &question->alignment[attr - CHOIR__CUBLAS_WISH_ALIGNMENT_A]);
      default:
        return kInvalidValue;
    }
  };
  table.cublasLtMatmulAlgoGetHeuristic =
      [](choir__cublas_handle_t handle, choir__cublas_desc_t desc_handle,
         choir__cublas_layout_t a_handle, choir__cublas_layout_t b_handle,
         choir__cublas_layout_t c_handle, choir__cublas_layout_t d_handle,
         choir__cublas_wish_t wish, int wanted, choir__cublas_found_t* found,
         int* count) -> Result {
    BEGIN("cublasLtMatmulAlgoGetHeuristic");
    for (const void* object :
         {static_cast<const void*>(handle),
          static_cast<const void*>(desc_handle),
          static_cast<const void*>(a_handle),
          static_cast<const void*>(b_handle),
          static_cast<const void*>(c_handle),
          static_cast<const void*>(d_handle), static_cast<const void*>(wish)})
      if (!fake->IsLive(object, "cublasLtMatmulAlgoGetHeuristic"))
        return kInvalidValue;
    const auto& desc = *reinterpret_cast<Desc*>(desc_handle);
    const auto& a = *reinterpret_cast<Layout*>(a_handle);
    const auto& b = *reinterpret_cast<Layout*>(b_handle);
    const auto& c = *reinterpret_cast<Layout*>(c_handle);
    const auto& d = *reinterpret_cast<Layout*>(d_handle);
    const auto& question = *reinterpret_cast<Question*>(wish);
    fake->question_ = question;
    fake->question_.compute = desc.compute;
    fake->question_.batch = d.batch;
    const bool turn_a = desc.turn[0] == CHOIR__CUBLAS_OP_T;
    const bool turn_b = desc.turn[1] == CHOIR__CUBLAS_OP_T;
    const uint64_t inner = turn_a ? a.rows : a.columns;
    if ((turn_a ? a.columns : a.rows) != d.rows ||
        (turn_b ? b.rows : b.columns) != d.columns ||
        (turn_b ? b.columns : b.rows) != inner || c.rows != d.rows ||
        c.columns != d.columns) {
      fake->Misuse("matrices that do not fit");
      return kInvalidValue;
    }
    if (a.batch != d.batch || b.batch != d.batch || c.batch != d.batch ||
        (d.batch > 1 && d.batch_offset < static_cast<int64_t>(d.Place(
                                             d.rows - 1, d.columns - 1, 0)))) {
      fake->Misuse("batches that do not fit, or results that overlap");
      return kInvalidValue;
    }
    const bool is_double = d.dtype == CHOIR__CUBLAS_R_64F;
    if (!TakesDtypes(a.dtype, d.dtype) || b.dtype != a.dtype ||
        c.dtype != d.dtype ||
        desc.scale != (is_double ? CHOIR__CUBLAS_R_64F : CHOIR__CUBLAS_R_32F) ||
        (desc.compute == CHOIR__CUBLAS_COMPUTE_64F) != is_double)
      return kNotSupported;
    if (desc.epilogue == CHOIR__CUBLAS_EPILOGUE_BIAS && is_double)
      return kNotSupported;
    *count = 0;
    if (wanted < 1 || !fake->has_algorithms_) return kNotSupported;
    // Long sums are split, and the parts kept until they are added up.
    const bool is_split = inner >= 32 && question.reduction_mask & 2;
    const size_t bytes = is_split ? 4096 : 0;
    if (bytes > question.workspace_bytes) return kNotSupported;
    Found one = {Sign(desc, a, b, c, d), bytes, {}, AlignmentOf(desc.bias)};
    std::memcpy(one.alignment, question.alignment, sizeof(one.alignment));
    fake->found_.push_back(one);
    *found = {};
    found->algo.data[0] = fake->found_.size();
    found->workspaceSize = bytes;
    found->state = kSuccess;
    *count = 1;
    return kSuccess;
  };
  table.cublasLtMatmul =
      [](choir__cublas_handle_t handle, choir__cublas_desc_t desc,
         const void* alpha, const void* a, choir__cublas_layout_t a_layout,
         const void* b, choir__cublas_layout_t b_layout, const void* beta,
         const void* c, choir__cublas_layout_t c_layout, void* d,
         choir__cublas_layout_t d_layout, const choir__cublas_algo_t* algo,
         void* workspace, size_t workspace_bytes,
         struct CUstream_st* stream) -> Result {
    BEGIN("cublasLtMatmul");
    for (const void* object :
         {static_cast<const void*>(handle), static_cast<const void*>(desc),
          static_cast<const void*>(a_layout),
          static_cast<const void*>(b_layout),
          static_cast<const void*>(c_layout),
          static_cast<const void*>(d_layout)})
      if (!fake->IsLive(object, "cublasLtMatmul")) return kInvalidValue;
    const size_t number = algo ? algo->data[0] : 0;
    if (number < 1 || number > fake->found_.size()) {
      fake->Misuse("no algorithm");
      return kInvalidValue;
    }
    Product product = {*reinterpret_cast<Desc*>(desc),
                       {*reinterpret_cast<Layout*>(a_layout),
                        *reinterpret_cast<Layout*>(b_layout),
                        *reinterpret_cast<Layout*>(c_layout),
                        *reinterpret_cast<Layout*>(d_layout)},
                       static_cast<const char*>(a),
                       static_cast<const char*>(b),
                       static_cast<const char*>(c),
                       static_cast<char*>(d),
                       0,
                       0,
                       workspace,
                       workspace_bytes,
                       fake->found_[number - 1]};
    const choir_dtype_t scale = ChoirDtype(product.desc.scale);
    product.alpha = choir_element_load(alpha, scale);
    product.beta = choir_element_load(beta, scale);
    if (!fake->Check(product)) return kInvalidValue;
    const bool failed =
        FakeCuda::Current()->LaunchFor(
            "cublasLtMatmul", stream, [product] { Multiply(product); },
            {a, b, d, workspace, product.desc.bias}) != 0;
    return failed ? kExecutionFailed : kSuccess;
  };
  return table;
}

}  // namespace testing
}  // namespace choir
