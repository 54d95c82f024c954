// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_inputs.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (;;) {
    size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end - start));
    if (end == std::string::npos) return parts;
    start = end + 1;
  }
}

// What is left of a value when it has been an element.
double Rounded(double value, choir_dtype_t dtype) {
  unsigned char element[8];
  choir_element_store(element, dtype, value);
  return choir_element_load(element, dtype);
}

double Number(std::mt19937_64* random, choir_dtype_t dtype,
              choir_op_domain_t domain) {
  double unit = std::uniform_real_distribution<double>(0, 1)(*random);
  if (domain == CHOIR_DOMAIN_CONDITION && (*random)() % 2) return 0;
  switch (dtype) {
    case CHOIR_DTYPE_BOOL:
      return unit < 0.5;
    case CHOIR_DTYPE_U8:
      return std::floor(unit * 12);
    case CHOIR_DTYPE_I32:
    case CHOIR_DTYPE_I64:
      return std::floor(unit * 21) - 10;
    default:
      break;
  }
  if (domain == CHOIR_DOMAIN_POSITIVE) return 0.5 + 1.5 * unit;
  if (domain == CHOIR_DOMAIN_SHARE) return 0.05 + 0.9 * unit;
  if (domain == CHOIR_DOMAIN_UNIT) return 1.8 * unit - 0.9;
  if (domain == CHOIR_DOMAIN_ABOVE_ONE) return 1.1 + 1.9 * unit;
  if (domain == CHOIR_DOMAIN_PROBABILITY) return 0.05 + unit;
  return 4 * unit - 2;
}

// Distinct, and not near 0.
void MakeDistinct(std::mt19937_64* random, std::vector<double>* elements) {
  std::vector<int> order(elements->size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), *random);
  double step = 4.0 / static_cast<double>(elements->size());
  for (size_t i = 0; i < elements->size(); ++i) {
    double value = 0.1 + step * order[i] / 2;
    (*elements)[i] = order[i] % 2 ? value : -value;
  }
}

void MakeRowsSumToOne(const Shape& shape, std::vector<double>* elements) {
  if (shape.empty() || elements->empty()) return;
  size_t row = static_cast<size_t>(shape.back());
  for (size_t start = 0; start < elements->size(); start += row) {
    double sum = 0;
    for (size_t i = 0; i < row; ++i) sum += (*elements)[start + i];
    for (size_t i = 0; i < row; ++i) (*elements)[start + i] /= sum;
  }
}

// What indices of the op may count up to.
int64_t IndexLimit(choir_op_t op, const std::vector<unsigned char>& attrs,
                   const Shape& source) {
  const choir_struct_def_t* def = choir_op_attrs_def(op);
  const choir_field_t* depth = choir_struct_find(def, "depth");
  const choir_field_t* field = depth ? depth : choir_struct_find(def, "axis");
  const int64_t value =
      *reinterpret_cast<const int64_t*>(attrs.data() + field->offset);
  return depth ? value : source[static_cast<size_t>(value)];
}

// Row-major source with one axis (or all) reduced to its maximum.
std::vector<double> MaximaOf(const Values& source, int64_t axis) {
  int64_t count = CountOf(source.shape);
  int64_t lane = axis < 0 ? count : source.shape[static_cast<size_t>(axis)];
  int64_t inner = 1;
  for (size_t k = static_cast<size_t>(axis) + 1;
       axis >= 0 && k < source.shape.size(); ++k)
    inner *= source.shape[k];
  std::vector<double> maxima;
  for (int64_t outer = 0; lane > 0 && outer < count / (lane * inner); ++outer) {
    for (int64_t i = 0; i < inner; ++i) {
      double largest = -1e300;
      for (int64_t k = 0; k < lane; ++k)
        largest = std::max(largest, source.elements[static_cast<size_t>(
                                        (outer * lane + k) * inner + i)]);
      maxima.push_back(largest);
    }
  }
  return maxima;
}

// The pooling attributes of an op that has them.
choir_pool2d_attrs_t PoolOf(choir_op_t op,
                            const std::vector<unsigned char>& attrs) {
  if (op == CHOIR_OP_MAX_POOL2D_GRAD)
    return *reinterpret_cast<const choir_pool2d_attrs_t*>(attrs.data());
  return reinterpret_cast<const choir_conv2d_max_pool2d_attrs_t*>(attrs.data())
      ->pool;
}

// Some place of each window that is on the image: the smallest one that these
// windows fit on.
std::vector<double> ArgmaxOf(const Shape& pooled,
                             const choir_pool2d_attrs_t& pool,
                             std::mt19937_64* random) {
  std::vector<double> argmax;
  for (int64_t i = 0; i < CountOf(pooled); ++i) {
    int64_t place[2] = {i / pooled[3] % pooled[2], i % pooled[3]};
    int64_t argmax_index[2];
    for (int k = 0; k < 2; ++k) {
      int64_t start = place[k] * pool.stride[k] - pool.padding[k];
      int64_t first = std::max<int64_t>(0, -start);
      int64_t size = (pooled[2 + k] - 1) * pool.stride[k] + pool.kernel[k] -
                     pool.padding[k] -
                     (pool.pad_mode ? pool.padding_after[k] : pool.padding[k]);
      int64_t last = std::min(pool.kernel[k], size - start) - 1;
      argmax_index[k] =
          std::uniform_int_distribution<int64_t>(first, last)(*random);
    }
    argmax.push_back(static_cast<double>(argmax_index[0] * pool.kernel[1] +
                                         argmax_index[1]));
  }
  return argmax;
}

}  // namespace

int64_t CountOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         [](int64_t a, int64_t b) { return a * b; });
}

std::vector<Shape> ParseShapes(const std::string& text) {
  std::vector<Shape> shapes;
  for (const std::string& part : Split(text, ';')) {
    Shape shape;
    if (!part.empty()) {
      for (const std::string& size : Split(part, ','))
        shape.push_back(std::strtoll(size.c_str(), nullptr, 10));
    }
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<unsigned char> ParseAttrs(choir_op_t op, const char* text) {
  const choir_struct_def_t* def = choir_op_attrs_def(op);
  if (!def) return {};
  std::vector<unsigned char> attrs(def->bytes);
  choir_struct_init(def, attrs.data());
  if (!text) return attrs;
  for (const std::string& setting : Split(text, ' ')) {
    size_t equals = setting.find('=');
    EXPECT_OK(choir_struct_set(def, attrs.data(),
                               setting.substr(0, equals).c_str(),
                               setting.substr(equals + 1).c_str()));
  }
  return attrs;
}

std::vector<Values> MakeSources(choir_op_t op, const std::vector<Shape>& shapes,
                                const std::vector<unsigned char>& attrs,
                                choir_dtype_t dtype, choir_dtype_t second_dtype,
                                bool repeated, uint64_t seed) {
  const choir_op_def_t* def = choir__op_def(op);
  constexpr size_t kDomains = sizeof def->domains / sizeof def->domains[0];
  std::mt19937_64 random(seed);
  std::vector<Values> sources;
  for (size_t s = 0; s < shapes.size(); ++s) {
    choir_op_domain_t domain =
        s < kDomains ? def->domains[s] : CHOIR_DOMAIN_ANY;
    Values source;
    bool is_second =
        s == 1 ? def->second_dtypes != 0 : s > 1 && def->rest_as_second;
    source.dtype = is_second ? second_dtype : dtype;
    source.shape = shapes[s];
    source.elements.resize(static_cast<size_t>(CountOf(shapes[s])));
    std::vector<double>& elements = source.elements;
    for (double& element : elements)
      element = Number(&random, source.dtype, domain);
    if (domain == CHOIR_DOMAIN_NO_KINK && choir_dtype_is_float(source.dtype))
      MakeDistinct(&random, &elements);
    if (domain == CHOIR_DOMAIN_PROBABILITY)
      MakeRowsSumToOne(source.shape, &elements);
    if (domain == CHOIR_DOMAIN_LABELS) {
      int64_t classes = shapes[0].back();
      for (double& element : elements)
        element =
            static_cast<double>(random() % static_cast<uint64_t>(classes));
    }
    if (domain == CHOIR_DOMAIN_LENGTHS) {
      for (double& element : elements)
        element = static_cast<double>(
            random() % (static_cast<uint64_t>(shapes[0][0]) + 1));
    }
    if (domain == CHOIR_DOMAIN_INDICES) {
      const int64_t limit = IndexLimit(op, attrs, shapes[0]);
      for (double& element : elements)
        element = static_cast<double>(
            static_cast<int64_t>(random() % static_cast<uint64_t>(2 * limit)) -
            limit);
    }
    if (domain == CHOIR_DOMAIN_MAXIMUM) {
      choir_reduce_attrs_t reduce =
          *reinterpret_cast<const choir_reduce_attrs_t*>(attrs.data());
      elements = MaximaOf(sources[0], reduce.axis);
    }
    if (domain == CHOIR_DOMAIN_ARGMAX) {
      elements = ArgmaxOf(shapes[1], PoolOf(op, attrs), &random);
    }
    if (repeated && !source.shape.empty() && source.shape[0] > 1 &&
        domain != CHOIR_DOMAIN_MAXIMUM) {
      size_t period = elements.size() / static_cast<size_t>(source.shape[0]);
      for (size_t i = period; i < elements.size(); ++i)
        elements[i] = elements[i - period];
    }
    for (double& element : elements) element = Rounded(element, source.dtype);
    sources.push_back(source);
  }
  return sources;
}

Values MakeAnything(choir_dtype_t dtype, const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values{dtype, shape,
                std::vector<double>(static_cast<size_t>(CountOf(shape)))};
  for (double& element : values.elements)
    element = Rounded(Number(&random, dtype, CHOIR_DOMAIN_ANY), dtype);
  return values;
}

std::vector<choir_view_t> InferResults(
    const choir_op_def_t* def, const std::vector<Values>& sources,
    const std::vector<unsigned char>& attrs) {
  std::vector<choir_view_t> srcs(sources.size());
  for (size_t i = 0; i < sources.size(); ++i)
    EXPECT_OK(choir_view_make(sources[i].dtype,
                              static_cast<int32_t>(sources[i].shape.size()),
                              sources[i].shape.data(), &srcs[i]));
  std::vector<choir_view_t> dsts(static_cast<size_t>(def->dst_count));
  EXPECT_OK(choir__op_infer(def->op, srcs.data(),
                            static_cast<int32_t>(srcs.size()), attrs.data(),
                            dsts.data()));
  return dsts;
}

Shape ShapeOf(const choir_view_t& view) {
  return Shape(view.shape, view.shape + view.ndim);
}

}  // namespace testing
}  // namespace choir
