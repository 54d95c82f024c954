// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/fake_cudnn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "core/dtype.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {
namespace {

enum {
  kSuccess = 0,
  kBadParam = 2000,
  kNotFinalized = 2004,
  kNotSupported = 3000,
  kExecutionFailed = 5000,
};

// How many values an attribute has: so many, or at least one.
enum { kAny = -1 };

// The attributes that may be set, by kind of descriptor. The scale of an
// operation is of the type that sums are in.
struct Rule {
  int kind;
  int attr;
  int type;
  int64_t count;
  bool is_needed;
};
const Rule kRules[] = {
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_DATA_TYPE,
     CHOIR__CUDNN_TYPE_DATA_TYPE, 1, true},
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_DIMENSIONS,
     CHOIR__CUDNN_TYPE_INT64, 4, true},
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_STRIDES, CHOIR__CUDNN_TYPE_INT64,
     4, true},
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_UNIQUE_ID,
     CHOIR__CUDNN_TYPE_INT64, 1, true},
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_BYTE_ALIGNMENT,
     CHOIR__CUDNN_TYPE_INT64, 1, true},
    {CHOIR__CUDNN_TENSOR, CHOIR__CUDNN_TENSOR_IS_VIRTUAL,
     CHOIR__CUDNN_TYPE_BOOLEAN, 1, false},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_COMP_TYPE,
     CHOIR__CUDNN_TYPE_DATA_TYPE, 1, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_CONV_MODE,
     CHOIR__CUDNN_TYPE_CONVOLUTION_MODE, 1, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_SPATIAL_DIMS,
     CHOIR__CUDNN_TYPE_INT64, 1, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_FILTER_STRIDES,
     CHOIR__CUDNN_TYPE_INT64, 2, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_DILATIONS,
     CHOIR__CUDNN_TYPE_INT64, 2, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_PRE_PADDINGS,
     CHOIR__CUDNN_TYPE_INT64, 2, true},
    {CHOIR__CUDNN_CONVOLUTION, CHOIR__CUDNN_CONVOLUTION_POST_PADDINGS,
     CHOIR__CUDNN_TYPE_INT64, 2, true},
    {CHOIR__CUDNN_POINTWISE, CHOIR__CUDNN_POINTWISE_MODE,
     CHOIR__CUDNN_TYPE_POINTWISE_MODE, 1, true},
    {CHOIR__CUDNN_POINTWISE, CHOIR__CUDNN_POINTWISE_MATH_PREC,
     CHOIR__CUDNN_TYPE_DATA_TYPE, 1, true},
#define CONV_RULES(kind, name)                                              \
  {kind, CHOIR__CUDNN_##name##_ALPHA, kAny, 1, true},                       \
      {kind, CHOIR__CUDNN_##name##_BETA, kAny, 1, true}, {                  \
    kind, CHOIR__CUDNN_##name##_CONV_DESC, CHOIR__CUDNN_TYPE_DESCRIPTOR, 1, \
        true                                                                \
  }
#define DESC_RULE(kind, attr) \
  { kind, attr, CHOIR__CUDNN_TYPE_DESCRIPTOR, 1, true }
    CONV_RULES(CHOIR__CUDNN_CONVOLUTION_FORWARD, FORWARD),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_FORWARD, CHOIR__CUDNN_FORWARD_X),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_FORWARD, CHOIR__CUDNN_FORWARD_W),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_FORWARD, CHOIR__CUDNN_FORWARD_Y),
    CONV_RULES(CHOIR__CUDNN_CONVOLUTION_BWD_DATA, BWD_DATA),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_DATA, CHOIR__CUDNN_BWD_DATA_DX),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_DATA, CHOIR__CUDNN_BWD_DATA_W),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_DATA, CHOIR__CUDNN_BWD_DATA_DY),
    CONV_RULES(CHOIR__CUDNN_CONVOLUTION_BWD_FILTER, BWD_FILTER),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_FILTER, CHOIR__CUDNN_BWD_FILTER_X),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_FILTER, CHOIR__CUDNN_BWD_FILTER_DW),
    DESC_RULE(CHOIR__CUDNN_CONVOLUTION_BWD_FILTER, CHOIR__CUDNN_BWD_FILTER_DY),
    DESC_RULE(CHOIR__CUDNN_OPERATION_POINTWISE,
              CHOIR__CUDNN_OPERATION_POINTWISE_DESC),
    DESC_RULE(CHOIR__CUDNN_OPERATION_POINTWISE,
              CHOIR__CUDNN_OPERATION_POINTWISE_X),
    DESC_RULE(CHOIR__CUDNN_OPERATION_POINTWISE,
              CHOIR__CUDNN_OPERATION_POINTWISE_Y),
    DESC_RULE(CHOIR__CUDNN_OPERATION_POINTWISE,
              CHOIR__CUDNN_OPERATION_POINTWISE_B),
    {CHOIR__CUDNN_OPERATIONGRAPH, CHOIR__CUDNN_OPERATIONGRAPH_HANDLE,
     CHOIR__CUDNN_TYPE_HANDLE, 1, true},
    {CHOIR__CUDNN_OPERATIONGRAPH, CHOIR__CUDNN_OPERATIONGRAPH_OPS,
     CHOIR__CUDNN_TYPE_DESCRIPTOR, kAny, true},
    DESC_RULE(CHOIR__CUDNN_ENGINEHEUR, CHOIR__CUDNN_ENGINEHEUR_OPERATION_GRAPH),
    {CHOIR__CUDNN_ENGINEHEUR, CHOIR__CUDNN_ENGINEHEUR_MODE,
     CHOIR__CUDNN_TYPE_HEUR_MODE, 1, true},
    {CHOIR__CUDNN_EXECUTION_PLAN, CHOIR__CUDNN_EXECUTION_PLAN_HANDLE,
     CHOIR__CUDNN_TYPE_HANDLE, 1, true},
    DESC_RULE(CHOIR__CUDNN_EXECUTION_PLAN,
              CHOIR__CUDNN_EXECUTION_PLAN_ENGINE_CONFIG),
    {CHOIR__CUDNN_VARIANT_PACK, CHOIR__CUDNN_VARIANT_PACK_UNIQUE_IDS,
     CHOIR__CUDNN_TYPE_INT64, kAny, true},
    {CHOIR__CUDNN_VARIANT_PACK, CHOIR__CUDNN_VARIANT_PACK_DATA_POINTERS,
     CHOIR__CUDNN_TYPE_VOID_PTR, kAny, true},
    {CHOIR__CUDNN_VARIANT_PACK, CHOIR__CUDNN_VARIANT_PACK_WORKSPACE,
     CHOIR__CUDNN_TYPE_VOID_PTR, 1, true},
};

size_t BytesOf(int type) {
  switch (type) {
    case CHOIR__CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CHOIR__CUDNN_TYPE_INT64:
    case CHOIR__CUDNN_TYPE_DOUBLE:
    case CHOIR__CUDNN_TYPE_HANDLE:
    case CHOIR__CUDNN_TYPE_VOID_PTR:
    case CHOIR__CUDNN_TYPE_DESCRIPTOR:
      return 8;
    default:
      return 4;
  }
}

choir_dtype_t ChoirDtype(int dtype) {
  switch (dtype) {
    case CHOIR__CUDNN_DOUBLE:
      return CHOIR_DTYPE_F64;
    case CHOIR__CUDNN_HALF:
      return CHOIR_DTYPE_F16;
    case CHOIR__CUDNN_BFLOAT16:
      return CHOIR_DTYPE_BF16;
    default:
      return CHOIR_DTYPE_F32;
  }
}

// The attributes of the three operations, in the order of FORWARD's.
struct ConvAttrs {
  int alpha, beta, desc, x, w, y;
};
ConvAttrs AttrsOf(int kind) {
  switch (kind) {
    case CHOIR__CUDNN_CONVOLUTION_BWD_DATA:
      return {706, 707, 708, 710, 709, 711};
    case CHOIR__CUDNN_CONVOLUTION_BWD_FILTER:
      return {712, 713, 714, 716, 715, 717};
    default:
      return {700, 701, 702, 704, 703, 705};
  }
}

bool IsConv(int kind) {
  return kind == CHOIR__CUDNN_CONVOLUTION_FORWARD ||
         kind == CHOIR__CUDNN_CONVOLUTION_BWD_DATA ||
         kind == CHOIR__CUDNN_CONVOLUTION_BWD_FILTER;
}

}  // namespace

struct FakeCudnn::Operation {
  int kind;
  Tensor x, w, y;  // of a sum: x, b, y
  double alpha = 1, beta = 0;
  int64_t stride[2], padding[2], dilation[2];
};

struct FakeCudnn::Work {
  std::vector<Operation> operations;
  std::map<int64_t, std::vector<double>> virtuals;  // row-major, by id
  Engine engine;
  void* workspace;
};

FakeCudnn* FakeCudnn::self_ = nullptr;

FakeCudnn::FakeCudnn() : FakeLibrary("cuDNN") {
  EXPECT_EQ(self_, nullptr) << "one at a time";
  self_ = this;
  const int64_t huge = int64_t{1} << 30;
  engines_[CHOIR__CUDNN_HEUR_MODE_A] = {
      {{CHOIR__CUDNN_NOTE_NONDETERMINISTIC}, 0, true, false},
      {{CHOIR__CUDNN_NOTE_DOWN_CONVERT_INPUTS}, 0, true, false},
      {{CHOIR__CUDNN_NOTE_REDUCED_PRECISION_REDUCTION}, 0, true, false},
      {{}, huge, true, false},
      {{}, 0, false, false},
      {{}, 4096, true, true},
  };
  table_ = MakeTable();
  choir__cudnn_replace(&table_);
}

FakeCudnn::~FakeCudnn() {
  choir__cudnn_replace(nullptr);
  self_ = nullptr;
}

// ---- Attributes ----

int FakeCudnn::Set(Desc* desc, int attr, int type, int64_t count,
                   const void* values) {
  const std::string what = "attribute " + std::to_string(attr) +
                           " of a descriptor of kind " +
                           std::to_string(desc->kind);
  if (desc->is_final) {
    Misuse(what + " after it was finalized");
    return kBadParam;
  }
  for (const Rule& rule : kRules) {
    if (rule.kind != desc->kind || rule.attr != attr) continue;
    const bool is_scale = rule.type == kAny;
    if ((is_scale ? type != CHOIR__CUDNN_TYPE_FLOAT &&
                        type != CHOIR__CUDNN_TYPE_DOUBLE
                  : type != rule.type) ||
        (rule.count == kAny ? count < 1 : count != rule.count) || !values) {
      Misuse(what + " of another type or number");
      return kBadParam;
    }
    const auto* bytes = static_cast<const unsigned char*>(values);
    Value value = {type, count, {}};
    value.bytes.assign(bytes,
                       bytes + static_cast<size_t>(count) * BytesOf(type));
    if (type == CHOIR__CUDNN_TYPE_DESCRIPTOR) {
      for (int64_t i = 0; i < count; ++i) {
        Desc* child = nullptr;
        std::memcpy(&child, bytes + static_cast<size_t>(i) * 8, 8);
        if (!IsLive(child, what)) return kBadParam;
        if (!child->is_final) {
          Misuse(what + " that is not finalized");
          return kNotFinalized;
        }
      }
    }
    desc->attrs[attr] = std::move(value);
    return kSuccess;
  }
  Misuse(what + ", which it has not");
  return kBadParam;
}

template <typename T>
std::vector<T> FakeCudnn::Values(const Desc* desc, int attr) const {
  const Value& value = desc->attrs.at(attr);
  std::vector<T> values(static_cast<size_t>(value.count));
  std::memcpy(values.data(), value.bytes.data(), value.bytes.size());
  return values;
}

template <>
std::vector<bool> FakeCudnn::Values<bool>(const Desc* desc, int attr) const {
  return {desc->attrs.at(attr).bytes.at(0) != 0};
}

FakeCudnn::Desc* FakeCudnn::Child(const Desc* desc, int attr) const {
  return Only<Desc*>(desc, attr);
}

int FakeCudnn::Get(Desc* desc, int attr, int type, int64_t wanted,
                   int64_t* count, void* values) {
  if (desc->kind == CHOIR__CUDNN_ENGINEHEUR &&
      attr == CHOIR__CUDNN_ENGINEHEUR_RESULTS && desc->is_final) {
    const std::vector<Engine>& engines =
        engines_[Only<int32_t>(desc, CHOIR__CUDNN_ENGINEHEUR_MODE)];
    *count = static_cast<int64_t>(engines.size());
    for (int64_t i = 0; i < wanted && i < *count; ++i) {
      auto* config = static_cast<Desc**>(values)[i];
      if (!IsLive(config, "a configuration") ||
          config->kind != CHOIR__CUDNN_ENGINECFG)
        return kBadParam;
      config->engine = engines[static_cast<size_t>(i)];
      config->attrs[0] =
          desc->attrs.at(CHOIR__CUDNN_ENGINEHEUR_OPERATION_GRAPH);
      config->is_final = true;
    }
    return kSuccess;
  }
  if (desc->kind == CHOIR__CUDNN_ENGINECFG &&
      attr == CHOIR__CUDNN_ENGINECFG_ENGINE &&
      type == CHOIR__CUDNN_TYPE_DESCRIPTOR && desc->is_final) {
    auto* engine = *static_cast<Desc**>(values);
    if (!IsLive(engine, "an engine") || engine->kind != CHOIR__CUDNN_ENGINE)
      return kBadParam;
    engine->engine = desc->engine;
    engine->is_final = true;
    *count = 1;
    return kSuccess;
  }
  if (desc->kind == CHOIR__CUDNN_ENGINE &&
      attr == CHOIR__CUDNN_ENGINE_GLOBAL_INDEX &&
      type == CHOIR__CUDNN_TYPE_INT64 && desc->is_final) {
    *static_cast<int64_t*>(values) = desc->engine.index;
    *count = 1;
    return kSuccess;
  }
  if (desc->kind == CHOIR__CUDNN_ENGINE &&
      attr == CHOIR__CUDNN_ENGINE_NUMERICAL_NOTE &&
      type == CHOIR__CUDNN_TYPE_NUMERICAL_NOTE && desc->is_final) {
    const std::vector<int32_t>& notes = desc->engine.notes;
    *count = static_cast<int64_t>(notes.size());
    std::copy_n(notes.begin(), std::min<int64_t>(wanted, *count),
                static_cast<int32_t*>(values));
    return kSuccess;
  }
  if (desc->kind == CHOIR__CUDNN_EXECUTION_PLAN &&
      attr == CHOIR__CUDNN_EXECUTION_PLAN_WORKSPACE_SIZE &&
      type == CHOIR__CUDNN_TYPE_INT64 && desc->is_final) {
    *static_cast<int64_t*>(values) = desc->engine.workspace_bytes;
    *count = 1;
    return kSuccess;
  }
  Misuse("the question for attribute " + std::to_string(attr));
  return kBadParam;
}

// ---- Graphs ----

FakeCudnn::Tensor FakeCudnn::ReadTensor(const Desc* desc) const {
  Tensor tensor;
  tensor.dtype = Only<int32_t>(desc, CHOIR__CUDNN_TENSOR_DATA_TYPE);
  std::vector<int64_t> shape =
      Values<int64_t>(desc, CHOIR__CUDNN_TENSOR_DIMENSIONS);
  std::vector<int64_t> strides =
      Values<int64_t>(desc, CHOIR__CUDNN_TENSOR_STRIDES);
  std::copy_n(shape.begin(), 4, tensor.shape);
  std::copy_n(strides.begin(), 4, tensor.strides);
  tensor.id = Only<int64_t>(desc, CHOIR__CUDNN_TENSOR_UNIQUE_ID);
  tensor.alignment = Only<int64_t>(desc, CHOIR__CUDNN_TENSOR_BYTE_ALIGNMENT);
  if (desc->attrs.count(CHOIR__CUDNN_TENSOR_IS_VIRTUAL))
    tensor.is_virtual = Only<bool>(desc, CHOIR__CUDNN_TENSOR_IS_VIRTUAL);
  return tensor;
}

FakeCudnn::Operation FakeCudnn::ReadOperation(const Desc* op) const {
  Operation read = {};
  read.kind = op->kind;
  read.alpha = 1;
  if (op->kind == CHOIR__CUDNN_OPERATION_POINTWISE) {
    EXPECT_EQ(Only<int32_t>(Child(op, CHOIR__CUDNN_OPERATION_POINTWISE_DESC),
                            CHOIR__CUDNN_POINTWISE_MODE),
              CHOIR__CUDNN_POINTWISE_ADD);
    read.x = ReadTensor(Child(op, CHOIR__CUDNN_OPERATION_POINTWISE_X));
    read.w = ReadTensor(Child(op, CHOIR__CUDNN_OPERATION_POINTWISE_B));
    read.y = ReadTensor(Child(op, CHOIR__CUDNN_OPERATION_POINTWISE_Y));
    return read;
  }
  const ConvAttrs attrs = AttrsOf(op->kind);
  auto scale = [this, op](int attr) {
    return op->attrs.at(attr).type == CHOIR__CUDNN_TYPE_DOUBLE
               ? Only<double>(op, attr)
               : static_cast<double>(Only<float>(op, attr));
  };
  read.alpha = scale(attrs.alpha);
  read.beta = scale(attrs.beta);
  const Desc* window = Child(op, attrs.desc);
  auto pair = [this, window](int attr, int64_t* out) {
    std::vector<int64_t> values = Values<int64_t>(window, attr);
    std::copy_n(values.begin(), 2, out);
  };
  pair(CHOIR__CUDNN_CONVOLUTION_FILTER_STRIDES, read.stride);
  pair(CHOIR__CUDNN_CONVOLUTION_PRE_PADDINGS, read.padding);
  pair(CHOIR__CUDNN_CONVOLUTION_DILATIONS, read.dilation);
  read.x = ReadTensor(Child(op, attrs.x));
  read.w = ReadTensor(Child(op, attrs.w));
  read.y = ReadTensor(Child(op, attrs.y));
  return read;
}

// Whether the three tensors of a convolution go together.
bool FakeCudnn::CheckConv(const Desc* op) {
  const ConvAttrs attrs = AttrsOf(op->kind);
  const Operation conv = ReadOperation(op);
  const Desc* window = Child(op, attrs.desc);
  const int compute = Only<int32_t>(window, CHOIR__CUDNN_CONVOLUTION_COMP_TYPE);
  const bool is_double = conv.x.dtype == CHOIR__CUDNN_DOUBLE;
  bool fits =
      Only<int32_t>(window, CHOIR__CUDNN_CONVOLUTION_CONV_MODE) ==
          CHOIR__CUDNN_CROSS_CORRELATION &&
      Only<int64_t>(window, CHOIR__CUDNN_CONVOLUTION_SPATIAL_DIMS) == 2 &&
      compute == (is_double ? CHOIR__CUDNN_DOUBLE : CHOIR__CUDNN_FLOAT) &&
      op->attrs.at(attrs.alpha).type ==
          (is_double ? CHOIR__CUDNN_TYPE_DOUBLE : CHOIR__CUDNN_TYPE_FLOAT) &&
      op->attrs.at(attrs.beta).type == op->attrs.at(attrs.alpha).type &&
      conv.x.shape[0] == conv.y.shape[0] &&
      conv.w.shape[0] == conv.y.shape[1] &&
      conv.x.shape[1] % conv.w.shape[1] == 0;
  std::vector<int64_t> after =
      Values<int64_t>(window, CHOIR__CUDNN_CONVOLUTION_POST_PADDINGS);
  for (size_t k = 0; k < 2; ++k) {
    const int64_t reach = (conv.w.shape[2 + k] - 1) * conv.dilation[k] + 1;
    fits &= conv.y.shape[2 + k] ==
            (conv.x.shape[2 + k] + conv.padding[k] + after[k] - reach) /
                    conv.stride[k] +
                1;
  }
  for (const Tensor* tensor : {&conv.x, &conv.w, &conv.y}) {
    const int64_t* shape = tensor->shape;
    const int64_t row = shape[3] * shape[1];
    const std::vector<int64_t> wanted = {shape[2] * row, 1, row, shape[1]};
    fits &= std::equal(wanted.begin(), wanted.end(), tensor->strides);
  }
  if (!fits) Misuse("tensors that do not go together");
  return fits;
}

// A graph is a chain: what an operation makes is what the next one reads.
bool FakeCudnn::CheckGraph(const Desc* graph, bool* out_supported) {
  const std::vector<Desc*> ops =
      Values<Desc*>(graph, CHOIR__CUDNN_OPERATIONGRAPH_OPS);
  std::map<int64_t, bool> ids;  // and whether virtual
  *out_supported = true;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Operation op = ReadOperation(ops[i]);
    if (IsConv(op.kind)) {
      if (!CheckConv(ops[i])) return false;
      if (i > 0 || (ops.size() > 1 && !fuses_)) *out_supported = false;
      if (op.beta != 0 && !adds_) *out_supported = false;
    }
    if (i > 0 && ReadOperation(ops[i - 1]).y.id != op.x.id) {
      Misuse("operations that are not connected");
      return false;
    }
    for (const Tensor* tensor : {&op.x, &op.w, &op.y}) {
      auto found = ids.emplace(tensor->id, tensor->is_virtual);
      if (!found.second && found.first->second != tensor->is_virtual) {
        Misuse("two tensors of one id");
        return false;
      }
    }
    if (op.y.is_virtual != (i + 1 < ops.size())) {
      Misuse("a result without memory, or one between with");
      return false;
    }
  }
  return true;
}

int FakeCudnn::Finalize(Desc* desc) {
  for (const Rule& rule : kRules) {
    if (rule.kind == desc->kind && rule.is_needed &&
        !desc->attrs.count(rule.attr)) {
      Misuse("a descriptor of kind " + std::to_string(desc->kind) +
             " without attribute " + std::to_string(rule.attr));
      return kBadParam;
    }
  }
  switch (desc->kind) {
    case CHOIR__CUDNN_TENSOR: {
      const Tensor tensor = ReadTensor(desc);
      for (int k = 0; k < 4; ++k)
        if (tensor.shape[k] < 1 || tensor.strides[k] < 1) {
          Misuse("a tensor without elements, or that repeats them");
          return kBadParam;
        }
      break;
    }
    case CHOIR__CUDNN_OPERATIONGRAPH: {
      bool is_supported = false;
      if (!CheckGraph(desc, &is_supported)) return kBadParam;
      if (!is_supported) {
        said_ = "the pattern is not known";
        return kNotSupported + 1;
      }
      break;
    }
    case CHOIR__CUDNN_EXECUTION_PLAN: {
      const Desc* config =
          Child(desc, CHOIR__CUDNN_EXECUTION_PLAN_ENGINE_CONFIG);
      if (!config->engine.finalizes) return kNotSupported;
      desc->engine = config->engine;
      desc->attrs[0] = config->attrs.at(0);
      break;
    }
    case CHOIR__CUDNN_VARIANT_PACK:
      if (desc->attrs.at(CHOIR__CUDNN_VARIANT_PACK_UNIQUE_IDS).count !=
          desc->attrs.at(CHOIR__CUDNN_VARIANT_PACK_DATA_POINTERS).count) {
        Misuse("not as many ids as addresses");
        return kBadParam;
      }
      break;
    default:
      break;
  }
  desc->is_final = true;
  return kSuccess;
}

// ---- Runs ----

void FakeCudnn::Compute(Work* work) {
  auto place = [](const Tensor& tensor, const int64_t* index) {
    int64_t at = 0;
    for (int k = 0; k < 4; ++k)
      if (tensor.shape[k] > 1) at += index[k] * tensor.strides[k];
    return at;
  };
  auto row_major = [](const Tensor& tensor, const int64_t* index) {
    int64_t at = 0;
    for (int k = 0; k < 4; ++k) at = at * tensor.shape[k] + index[k];
    return static_cast<size_t>(at);
  };
  auto load = [&](const Tensor& tensor, const int64_t* index) {
    if (tensor.is_virtual)
      return work->virtuals[tensor.id].at(row_major(tensor, index));
    const choir_dtype_t dtype = ChoirDtype(tensor.dtype);
    return choir_element_load(
        tensor.data + place(tensor, index) *
                          static_cast<int64_t>(choir_dtype_bytes(dtype)),
        dtype);
  };
  auto store = [&](const Tensor& tensor, const int64_t* index, double value) {
    if (tensor.is_virtual) {
      work->virtuals[tensor.id].at(row_major(tensor, index)) = value;
      return;
    }
    const choir_dtype_t dtype = ChoirDtype(tensor.dtype);
    choir_element_store(
        tensor.data + place(tensor, index) *
                          static_cast<int64_t>(choir_dtype_bytes(dtype)),
        dtype, value);
  };
  auto count = [](const Tensor& tensor) {
    return static_cast<size_t>(tensor.shape[0] * tensor.shape[1] *
                               tensor.shape[2] * tensor.shape[3]);
  };
  // Calls visit(index) for all elements.
  auto each = [](const Tensor& tensor, auto visit) {
    int64_t i[4];
    for (i[0] = 0; i[0] < tensor.shape[0]; ++i[0])
      for (i[1] = 0; i[1] < tensor.shape[1]; ++i[1])
        for (i[2] = 0; i[2] < tensor.shape[2]; ++i[2])
          for (i[3] = 0; i[3] < tensor.shape[3]; ++i[3]) visit(i);
  };
  if (work->workspace)
    std::memset(work->workspace, 0x5a,
                static_cast<size_t>(work->engine.workspace_bytes));
  for (const Operation& op : work->operations) {
    const Tensor& result = op.kind == CHOIR__CUDNN_CONVOLUTION_BWD_DATA ? op.x
                           : op.kind == CHOIR__CUDNN_CONVOLUTION_BWD_FILTER
                               ? op.w
                               : op.y;
    if (result.is_virtual) work->virtuals[result.id].assign(count(result), 0);
    if (op.kind == CHOIR__CUDNN_OPERATION_POINTWISE) {
      each(result, [&](const int64_t* i) {
        const double value = load(op.x, i);
        int64_t b[4];
        for (int k = 0; k < 4; ++k) b[k] = op.w.shape[k] > 1 ? i[k] : 0;
        store(result, i, value + load(op.w, b));
      });
      continue;
    }
    // Each read once, the result as the zeros that its sums begin with.
    auto elements = [&](const Tensor& tensor) {
      std::vector<double> all(count(tensor), 0);
      if (&tensor != &result)
        each(tensor, [&](const int64_t* i) {
          all[row_major(tensor, i)] = load(tensor, i);
        });
      return all;
    };
    std::vector<double> xs = elements(op.x), ws = elements(op.w),
                        ys = elements(op.y);
    const int64_t group_channels = op.w.shape[1];
    const int64_t groups = op.x.shape[1] / group_channels;
    const int64_t group_filters = op.y.shape[1] / groups;
    each(op.y, [&](const int64_t* y) {
      for (int64_t c = 0; c < group_channels; ++c) {
        for (int64_t i = 0; i < op.w.shape[2]; ++i) {
          for (int64_t j = 0; j < op.w.shape[3]; ++j) {
            const int64_t x[4] = {
                y[0], y[1] / group_filters * group_channels + c,
                y[2] * op.stride[0] - op.padding[0] + i * op.dilation[0],
                y[3] * op.stride[1] - op.padding[1] + j * op.dilation[1]};
            const int64_t w[4] = {y[1], c, i, j};
            if (x[2] < 0 || x[2] >= op.x.shape[2] || x[3] < 0 ||
                x[3] >= op.x.shape[3])
              continue;
            double& of_x = xs[row_major(op.x, x)];
            double& of_w = ws[row_major(op.w, w)];
            double& of_y = ys[row_major(op.y, y)];
            if (&result == &op.x)
              of_x += of_w * of_y;
            else if (&result == &op.w)
              of_w += of_x * of_y;
            else
              of_y += of_x * of_w;
          }
        }
      }
    });
    const std::vector<double>& sums = &result == &op.x   ? xs
                                      : &result == &op.w ? ws
                                                         : ys;
    each(result, [&](const int64_t* i) {
      double value = op.alpha * sums[row_major(result, i)];
      if (op.beta != 0) value += op.beta * load(result, i);
      store(result, i, work->engine.is_right ? value : value + 1000);
    });
  }
}

int FakeCudnn::Execute(Desc* plan, Desc* pack) {
  if (!plan->is_final || !pack->is_final ||
      plan->kind != CHOIR__CUDNN_EXECUTION_PLAN ||
      pack->kind != CHOIR__CUDNN_VARIANT_PACK) {
    Misuse("a plan or its memory that is not finalized");
    return kNotFinalized;
  }
  auto work = std::make_shared<Work>();
  work->engine = plan->engine;
  work->workspace = Only<void*>(pack, CHOIR__CUDNN_VARIANT_PACK_WORKSPACE);
  if (plan->engine.workspace_bytes > 0 &&
      !IsOnGpu(work->workspace,
               static_cast<size_t>(plan->engine.workspace_bytes),
               "the workspace"))
    return kBadParam;
  if (plan->engine.workspace_bytes == 0) work->workspace = nullptr;
  std::map<int64_t, char*> memory;
  std::vector<int64_t> ids =
      Values<int64_t>(pack, CHOIR__CUDNN_VARIANT_PACK_UNIQUE_IDS);
  std::vector<char*> data =
      Values<char*>(pack, CHOIR__CUDNN_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size(); ++i) memory[ids[i]] = data[i];
  std::vector<const void*> touches(data.begin(), data.end());
  touches.push_back(work->workspace);
  Desc* graph = Child(plan, 0);
  std::set<int64_t> used;
  for (Desc* op : Values<Desc*>(graph, CHOIR__CUDNN_OPERATIONGRAPH_OPS)) {
    Operation read = ReadOperation(op);
    for (Tensor* tensor : {&read.x, &read.w, &read.y}) {
      if (tensor->is_virtual) continue;
      tensor->data = memory.count(tensor->id) ? memory[tensor->id] : nullptr;
      used.insert(tensor->id);
      int64_t extent = 1;
      for (int k = 0; k < 4; ++k)
        extent += (tensor->shape[k] - 1) * tensor->strides[k];
      if (!IsOnGpu(tensor->data,
                   static_cast<size_t>(extent) *
                       choir_dtype_bytes(ChoirDtype(tensor->dtype)),
                   "a tensor"))
        return kBadParam;
      if (reinterpret_cast<uintptr_t>(tensor->data) %
          static_cast<uintptr_t>(tensor->alignment)) {
        Misuse("a tensor that is not aligned as was promised");
        return kBadParam;
      }
    }
    work->operations.push_back(read);
  }
  if (used.size() != memory.size()) {
    Misuse("memory for tensors that the graph has not");
    return kBadParam;
  }
  return FakeCuda::Current()->LaunchFor(
             "cudnnBackendExecute", stream_, [work] { Compute(work.get()); },
             touches)
             ? kExecutionFailed
             : kSuccess;
}

// ---- The table ----

// Begins each function: the lock, and the scripted result.
#define BEGIN(function)                              \
  FakeCudnn* fake = self_;                           \
  Lock lock(fake->lock_);                            \
  if (int scripted = fake->BeginInContext(function)) \
    return static_cast<Result>(scripted);
// The same for one that takes a descriptor.
#define BEGIN_WITH(function, handle)                     \
  BEGIN(function)                                        \
  if (!fake->IsLive(handle, function)) return kBadParam; \
  auto* desc = static_cast<Desc*>(handle);

choir__cudnn_table_t FakeCudnn::MakeTable() {
  using Result = choir__cudnn_result_t;
  choir__cudnn_table_t table = {};
  table.cudnnGetErrorString = [](Result result) -> const char* {
    return result == 4003 ? "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
           : result >= 5000 ? "CUDNN_STATUS_EXECUTION_FAILED"
           : result >= 3000 ? "CUDNN_STATUS_NOT_SUPPORTED"
                            : "CUDNN_STATUS_BAD_PARAM";
  };
  table.cudnnGetLastErrorString = [](char* text, size_t bytes) {
    std::snprintf(text, bytes, "%s", self_->said_.c_str());
    self_->said_.clear();
  };
  table.cudnnCreate = [](choir__cudnn_handle_t* handle) -> Result {
    BEGIN("cudnnCreate");
    fake->Give(handle, new char);
    return kSuccess;
  };
  table.cudnnDestroy = [](choir__cudnn_handle_t handle) -> Result {
    BEGIN("cudnnDestroy");
    if (!fake->Drop(handle, "cudnnDestroy")) return kBadParam;
    delete reinterpret_cast<char*>(handle);
    return kSuccess;
  };
  table.cudnnSetStream = [](choir__cudnn_handle_t handle,
                            struct CUstream_st* stream) -> Result {
    BEGIN("cudnnSetStream");
    if (!fake->IsLive(handle, "cudnnSetStream")) return kBadParam;
    fake->stream_ = stream;
    return kSuccess;
  };
  table.cudnnBackendCreateDescriptor =
      [](choir__cudnn_kind_t kind, choir__cudnn_desc_t* handle) -> Result {
    BEGIN("cudnnBackendCreateDescriptor");
    auto* desc = new Desc;
    desc->kind = kind;
    fake->Give(handle, desc);
    return kSuccess;
  };
  table.cudnnBackendDestroyDescriptor =
      [](choir__cudnn_desc_t handle) -> Result {
    BEGIN("cudnnBackendDestroyDescriptor");
    if (!fake->Drop(handle, "cudnnBackendDestroyDescriptor")) return kBadParam;
    delete static_cast<Desc*>(handle);
    return kSuccess;
  };
  table.cudnnBackendFinalize = [](choir__cudnn_desc_t handle) -> Result {
    BEGIN_WITH("cudnnBackendFinalize", handle);
    return fake->Finalize(desc);
  };
  table.cudnnBackendSetAttribute = [](choir__cudnn_desc_t handle,
                                      choir__cudnn_attr_t attr,
                                      choir__cudnn_type_t type, int64_t count,
                                      const void* values) -> Result {
    BEGIN_WITH("cudnnBackendSetAttribute", handle);
    return fake->Set(desc, attr, type, count, values);
  };
  table.cudnnBackendGetAttribute = [](choir__cudnn_desc_t handle,
                                      choir__cudnn_attr_t attr,
                                      choir__cudnn_type_t type, int64_t wanted,
                                      int64_t* count, void* values) -> Result {
    BEGIN_WITH("cudnnBackendGetAttribute", handle);
    return fake->Get(desc, attr, type, wanted, count, values);
  };
  table.cudnnBackendExecute = [](choir__cudnn_handle_t handle,
                                 choir__cudnn_desc_t plan,
                                 choir__cudnn_desc_t pack) -> Result {
    BEGIN("cudnnBackendExecute");
    for (const void* object :
         {static_cast<const void*>(handle), static_cast<const void*>(plan),
          static_cast<const void*>(pack)})
      if (!fake->IsLive(object, "cudnnBackendExecute")) return kBadParam;
    return fake->Execute(static_cast<Desc*>(plan), static_cast<Desc*>(pack));
  };
  return table;
}

}  // namespace testing
}  // namespace choir
