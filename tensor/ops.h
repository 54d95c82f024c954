// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_H_
#define CHOIR_TENSOR_OPS_H_

#include "core/config.h"
#include "tensor/optimizers.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// THE OP LIST. One line an op; an elementwise op's entry is in
// tensor/elementwise.def, the others are in files of tensor/ops, one or a
// family each. Fast kernels are in tensor/kernels/kernels.def,
// gradient rules in autograd/rules. The list makes the enum, the table, the
// gradient table, the conformance tests, the benchmark rows and the functions
// of autograd.
//
// X(ENUM, name, SOURCES, ATTRS, GRAD)
//   SOURCES  1, 2, 3: that many operands; N: 1 to 15
//   ATTRS    PLAIN: none; ATTRS: takes a choir_<name>_attrs_t
//   GRAD     OP_GRAD: its gradient is one op, which its file names
//            (CHOIR_OP_GRADIENT); GRAD: has a rule; NO_GRAD: its result is a
//            constant to autograd; INTERNAL: called by rules, layers and
//            optimizers only
//
// Elementwise ops broadcast as NumPy does. Comparisons and logical ops give 1
// or 0 in the sources' dtype; to the latter all but 0 is true. All sources have
// one dtype unless said otherwise.
//
// Laid out by hand, so that a new line moves no other one.
// clang-format off
#define CHOIR_OP_LIST(X)                                                       \
  /* elementwise, one source: y = f(x) */                                      \
  X(NEG, neg, 1, PLAIN, GRAD)                                                  \
  X(ABS, abs, 1, PLAIN, GRAD)                                                  \
  X(EXP, exp, 1, PLAIN, GRAD)                                                  \
  X(LOG, log, 1, PLAIN, GRAD)                                                  \
  X(SQRT, sqrt, 1, PLAIN, GRAD)                                                \
  X(SQUARE, square, 1, PLAIN, GRAD)                                            \
  X(RELU, relu, 1, PLAIN, GRAD)                                                \
  X(SIGMOID, sigmoid, 1, PLAIN, GRAD)                                          \
  X(TANH, tanh, 1, PLAIN, GRAD)                                                \
  X(GELU, gelu, 1, PLAIN, GRAD)   /* x/2 (1 + erf(x / sqrt 2)) */              \
  X(GELU_TANH, gelu_tanh, 1, PLAIN, GRAD) /* gelu by a tanh, as GPT-2's */     \
  X(SILU, silu, 1, PLAIN, GRAD)   /* x / (1 + e^-x) */                         \
  X(SCALE, scale, 1, ATTRS, GRAD) /* factor * x + shift */                     \
  X(CEIL, ceil, 1, PLAIN, GRAD)                                                \
  X(FLOOR, floor, 1, PLAIN, GRAD)                                              \
  X(ROUND, round, 1, PLAIN, GRAD) /* half away from 0 */                       \
  X(ROUND_EVEN, round_even, 1, PLAIN, GRAD) /* half to even */                 \
  X(SIGN, sign, 1, PLAIN, GRAD)                                                \
  X(RECIPROCAL, reciprocal, 1, PLAIN, GRAD)                                    \
  X(SIN, sin, 1, PLAIN, GRAD)                                                  \
  X(COS, cos, 1, PLAIN, GRAD)                                                  \
  X(TAN, tan, 1, PLAIN, GRAD)                                                  \
  X(ASIN, asin, 1, PLAIN, GRAD)                                                \
  X(ACOS, acos, 1, PLAIN, GRAD)                                                \
  X(ATAN, atan, 1, PLAIN, GRAD)                                                \
  X(SINH, sinh, 1, PLAIN, GRAD)                                                \
  X(COSH, cosh, 1, PLAIN, GRAD)                                                \
  X(ASINH, asinh, 1, PLAIN, GRAD)                                              \
  X(ACOSH, acosh, 1, PLAIN, GRAD)                                              \
  X(ATANH, atanh, 1, PLAIN, GRAD)                                              \
  X(ERF, erf, 1, PLAIN, GRAD)                                                  \
  X(SOFTPLUS, softplus, 1, PLAIN, GRAD) /* log(1 + e^x) */                     \
  X(SOFTSIGN, softsign, 1, PLAIN, GRAD) /* x / (1 + |x|) */                    \
  X(ELU, elu, 1, ATTRS, GRAD) /* x or alpha (e^x - 1) */                       \
  X(SELU, selu, 1, ATTRS, GRAD) /* gamma elu(x) */                             \
  X(LEAKY_RELU, leaky_relu, 1, ATTRS, GRAD) /* x or alpha x */                 \
  X(HARD_SIGMOID, hard_sigmoid, 1, ATTRS, GRAD) /* from 0 to 1 */              \
  X(CLIP, clip, 1, ATTRS, GRAD) /* min(max(x, low), high) */                   \
  X(UNIT_SCALE, unit_scale, 1, PLAIN, INTERNAL) /* 2^n: 1 <= 2^n |x| < 2 */    \
  X(LOGICAL_NOT, logical_not, 1, PLAIN, NO_GRAD)                               \
  /* elementwise, two sources */                                               \
  X(ADD, add, 2, PLAIN, GRAD)                                                  \
  X(SUB, sub, 2, PLAIN, GRAD)                                                  \
  X(MUL, mul, 2, PLAIN, GRAD)                                                  \
  X(DIV, div, 2, PLAIN, GRAD)                                                  \
  X(MAXIMUM, maximum, 2, PLAIN, GRAD)                                          \
  X(MINIMUM, minimum, 2, PLAIN, GRAD)                                          \
  X(LESS, less, 2, PLAIN, NO_GRAD)                                             \
  X(GREATER, greater, 2, PLAIN, NO_GRAD)                                       \
  X(EQUAL, equal, 2, PLAIN, NO_GRAD)                                           \
  X(POW, pow, 2, PLAIN, GRAD) /* a^b */                                        \
  X(PRELU, prelu, 2, PLAIN, GRAD) /* x or slope x */                           \
  X(LESS_EQUAL, less_equal, 2, PLAIN, NO_GRAD)                                 \
  X(GREATER_EQUAL, greater_equal, 2, PLAIN, NO_GRAD)                           \
  X(NOT_EQUAL, not_equal, 2, PLAIN, NO_GRAD)                                   \
  X(LOGICAL_AND, logical_and, 2, PLAIN, NO_GRAD)                               \
  X(LOGICAL_OR, logical_or, 2, PLAIN, NO_GRAD)                                 \
  X(LOGICAL_XOR, logical_xor, 2, PLAIN, NO_GRAD)                               \
  /* their gradients: (y, dy) -> dx or (x, dy) -> dx */                        \
  X(ABS_GRAD, abs_grad, 2, PLAIN, INTERNAL)         /* x, dy */                \
  X(RELU_GRAD, relu_grad, 2, PLAIN, INTERNAL)       /* y, dy */                \
  X(SIGMOID_GRAD, sigmoid_grad, 2, PLAIN, INTERNAL) /* y, dy */                \
  X(TANH_GRAD, tanh_grad, 2, PLAIN, INTERNAL)       /* y, dy */                \
  X(GELU_GRAD, gelu_grad, 2, PLAIN, INTERNAL)       /* x, dy */                \
  X(GELU_TANH_GRAD, gelu_tanh_grad, 2, PLAIN, INTERNAL) /* x, dy */            \
  X(SILU_GRAD, silu_grad, 2, PLAIN, INTERNAL)       /* x, dy */                \
  X(ELU_GRAD, elu_grad, 2, ATTRS, INTERNAL) /* x, dy */                        \
  X(LEAKY_RELU_GRAD, leaky_relu_grad, 2, ATTRS, INTERNAL) /* x, dy */          \
  X(CLIP_GRAD, clip_grad, 2, ATTRS, INTERNAL) /* x, dy */                      \
  X(PRELU_GRAD, prelu_grad, 3, PLAIN, INTERNAL) /* x, slope, dy */             \
  X(POW_GRAD_BASE, pow_grad_base, 3, PLAIN, INTERNAL) /* a, b, dy */           \
  X(POW_GRAD_EXPONENT, pow_grad_exponent, 3, PLAIN, INTERNAL) /* a, b, dy */   \
  /* moving and changing elements */                                           \
  X(COPY, copy, 1, PLAIN, GRAD)                                                \
  X(CAST, cast, 1, ATTRS, GRAD)                                                \
  X(FILL, fill, 1, ATTRS, NO_GRAD) /* value, in the shape of x */              \
  X(RANDOM_UNIFORM, random_uniform, 1, ATTRS, NO_GRAD)                         \
  X(RANDOM_NORMAL, random_normal, 1, ATTRS, NO_GRAD)                           \
  X(RESHAPE, reshape, 1, ATTRS, GRAD)                                          \
  X(FLATTEN, flatten, 1, ATTRS, GRAD)                                          \
  X(TRANSPOSE, transpose, 1, ATTRS, GRAD)                                      \
  X(BROADCAST_TO, broadcast_to, 1, ATTRS, GRAD)                                \
  X(SLICE, slice, 1, ATTRS, GRAD)                                              \
  X(CONCAT, concat, N, ATTRS, GRAD)                                            \
  /* choosing and placing elements */                                          \
  X(WHERE, where, 3, PLAIN, GRAD) /* condition, x, y */                        \
  X(GATHER, gather, 2, ATTRS, OP_GRAD) /* x, indices */                        \
  X(GATHER_ELEMENTS, gather_elements, 2, ATTRS, OP_GRAD) /* x, indices */      \
  X(SCATTER_ELEMENTS, scatter_elements, 3, ATTRS, GRAD)                        \
  X(ONE_HOT, one_hot, 1, ATTRS, NO_GRAD)                                       \
  X(PAD, pad, 1, ATTRS, OP_GRAD)                                               \
  X(TILE, tile, 1, ATTRS, OP_GRAD)                                             \
  X(REPEAT, repeat, 1, ATTRS, OP_GRAD)                                         \
  /* their gradients: (x [shape only], ..., dy) -> dx; (dy, indices) */        \
  X(GATHER_GRAD, gather_grad, 3, ATTRS, INTERNAL)                              \
  X(GATHER_ELEMENTS_GRAD, gather_elements_grad, 3, ATTRS, INTERNAL)            \
  X(SCATTER_ELEMENTS_GRAD, scatter_elements_grad, 2, ATTRS, INTERNAL)          \
  X(PAD_GRAD, pad_grad, 2, ATTRS, INTERNAL)                                    \
  X(TILE_GRAD, tile_grad, 2, ATTRS, INTERNAL)                                  \
  X(REPEAT_GRAD, repeat_grad, 2, ATTRS, INTERNAL)                              \
  /* reductions */                                                             \
  X(SUM, sum, 1, ATTRS, GRAD)                                                  \
  X(MEAN, mean, 1, ATTRS, GRAD)                                                \
  X(MAX, max, 1, ATTRS, OP_GRAD)                                               \
  X(ARGMAX, argmax, 1, ATTRS, NO_GRAD)                                         \
  X(MAX_GRAD, max_grad, 3, ATTRS, INTERNAL)     /* x, y, dy */                 \
  X(SUM_SQUARE, sum_square, 1, ATTRS, INTERNAL) /* of limited gradients */     \
  /* linear algebra */                                                         \
  X(MATMUL, matmul, 2, ATTRS, GRAD)                                            \
  X(LINEAR, linear, 3, PLAIN, GRAD) /* x (n,in) W (in,out) b */                \
  /* images, N C H W */                                                        \
  X(CONV2D, conv2d, 3, ATTRS, GRAD) /* x, W (O, I/g, kh, kw), b */             \
  X(CONV_TRANSPOSE2D, conv_transpose2d, 2, ATTRS, GRAD) /* x, W */             \
  X(CONV2D_GRAD_DATA, conv2d_grad_data, 3, ATTRS, INTERNAL)                    \
  X(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, 3, ATTRS, INTERNAL)                \
  X(MAX_POOL2D, max_pool2d, 1, ATTRS, GRAD)                                    \
  X(MAX_POOL2D_GRAD, max_pool2d_grad, 3, ATTRS, INTERNAL)                      \
  X(AVG_POOL2D, avg_pool2d, 1, ATTRS, OP_GRAD)                                 \
  X(AVG_POOL2D_GRAD, avg_pool2d_grad, 2, ATTRS, INTERNAL)                      \
  /* max_pool2d of conv2d without the image between them */                    \
  X(CONV2D_MAX_POOL2D, conv2d_max_pool2d, 3, ATTRS, INTERNAL)                  \
  X(CONV2D_MAX_POOL2D_GRAD_DATA, conv2d_max_pool2d_grad_data, N, ATTRS,        \
    INTERNAL)                                                                  \
  X(CONV2D_MAX_POOL2D_GRAD_WEIGHT, conv2d_max_pool2d_grad_weight, N, ATTRS,    \
    INTERNAL)                                                                  \
  X(BATCH_NORM, batch_norm, 3, ATTRS, OP_GRAD) /* x, scale, bias */            \
  X(BATCH_NORM_GRAD, batch_norm_grad, N, ATTRS, INTERNAL)                      \
  X(BATCH_NORM_INFER, batch_norm_infer, N, ATTRS, GRAD)                        \
  X(BATCH_NORM_MOMENTS, batch_norm_moments, 1, ATTRS, INTERNAL)                \
  X(BATCH_NORM_SUMS, batch_norm_sums, N, ATTRS, INTERNAL)                      \
  X(BATCH_NORM_INFER_ADD, batch_norm_infer_add, N, ATTRS, INTERNAL)            \
  X(BATCH_NORM_RELU, batch_norm_relu, N, ATTRS, INTERNAL)                      \
  X(BATCH_NORM_RELU_GRAD, batch_norm_relu_grad, N, ATTRS, INTERNAL)            \
  X(BATCH_NORM_ADD_RELU_GRAD, batch_norm_add_relu_grad, N, ATTRS, INTERNAL)    \
  /* each row, along the last axis */                                          \
  X(LAYER_NORM, layer_norm, 3, ATTRS, OP_GRAD) /* x, scale, bias */            \
  X(LAYER_NORM_GRAD, layer_norm_grad, 3, ATTRS, INTERNAL) /* x, scale, dy */   \
  X(RMS_NORM, rms_norm, 2, ATTRS, OP_GRAD) /* x, scale */                      \
  X(RMS_NORM_GRAD, rms_norm_grad, 3, ATTRS, INTERNAL) /* x, scale, dy */       \
  /* probabilities and losses; (n, classes) along the last axis */             \
  X(SOFTMAX, softmax, 1, PLAIN, OP_GRAD)                                       \
  X(SOFTMAX_GRAD, softmax_grad, 2, PLAIN, INTERNAL) /* y, dy */                \
  X(LOG_SOFTMAX, log_softmax, 1, PLAIN, OP_GRAD)                               \
  X(LOG_SOFTMAX_GRAD, log_softmax_grad, 2, PLAIN, INTERNAL)                    \
  X(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy, 2, PLAIN, OP_GRAD)           \
  X(SOFTMAX_CROSS_ENTROPY_GRAD, softmax_cross_entropy_grad, 3, PLAIN,          \
    INTERNAL) /* p, labels, dy */                                              \
  X(LINEAR_CROSS_ENTROPY, linear_cross_entropy, 3, ATTRS, GRAD)                \
  X(LINEAR_CROSS_ENTROPY_GRAD, linear_cross_entropy_grad, N, ATTRS, INTERNAL)  \
  X(CROSS_ENTROPY, cross_entropy, 2, PLAIN, OP_GRAD)                           \
  X(CROSS_ENTROPY_GRAD, cross_entropy_grad, 3, PLAIN, INTERNAL)                \
  X(BINARY_CROSS_ENTROPY, binary_cross_entropy, 2, PLAIN, OP_GRAD) /* p, t */  \
  X(BINARY_CROSS_ENTROPY_GRAD, binary_cross_entropy_grad, 3, PLAIN, INTERNAL)  \
  X(MSE_LOSS, mse_loss, 2, PLAIN, GRAD)                                        \
  X(COUNT_CORRECT, count_correct, 2, PLAIN, NO_GRAD)                           \
  /* sequences */                                                              \
  X(RECURRENT, recurrent, N, ATTRS, GRAD)                                      \
  X(RECURRENT_GRAD, recurrent_grad, N, ATTRS, INTERNAL)                        \
  X(ATTENTION, attention, N, ATTRS, GRAD) /* q, k, v (, mask) */               \
  X(ATTENTION_GRAD, attention_grad, N, ATTRS, INTERNAL)                        \
  X(ATTENTION_MASK_GRAD, attention_mask_grad, N, ATTRS, INTERNAL)              \
  X(ROTARY, rotary, 1, ATTRS, OP_GRAD) /* x (..., t, d) */                     \
  X(ROTARY_GRAD, rotary_grad, 1, ATTRS, INTERNAL) /* dy */                     \
  /* regularisation */                                                         \
  X(DROPOUT, dropout, 1, ATTRS, OP_GRAD)                                       \
  /* optimizer steps: in place on destination 0 */                             \
  CHOIR_OPTIMIZER_LIST(CHOIR_OP_UPDATE_, X)
#define CHOIR_OP_UPDATE_(X, NAME, name, states, doc)                           \
  X(NAME##_UPDATE, name##_update, N, ATTRS, INTERNAL)
// clang-format on

typedef enum choir_op_e {
#define CHOIR_OP_ENUM_(ENUM, name, sources, attrs, grad) CHOIR_OP_##ENUM,
  CHOIR_OP_LIST(CHOIR_OP_ENUM_)
#undef CHOIR_OP_ENUM_
      CHOIR_OP_COUNT
} choir_op_t;

// ---- Attributes; defaults and ranges: in the op's file or its fields ----

// Of elementwise ops, X(T, FLOAT, name, default, minimum, maximum, doc) for
// each (core/config.h).
#define CHOIR_SCALE_FIELDS(X, T)                     \
  X(T, FLOAT, factor, 1, -INFINITY, INFINITY,        \
    "multiplies x; rounded to the dtype before use") \
  X(T, FLOAT, shift, 0, -INFINITY, INFINITY, "added after; rounded as well")
#define CHOIR_ELU_FIELDS(X, T)               \
  X(T, FLOAT, alpha, 1, -INFINITY, INFINITY, \
    "the value far below 0, with the sign changed")
#define CHOIR_SELU_FIELDS(X, T)                    \
  X(T, FLOAT, alpha, 1.67326, -INFINITY, INFINITY, \
    "the level below 0, before gamma")             \
  X(T, FLOAT, gamma, 1.0507, -INFINITY, INFINITY, "multiplies all")
#define CHOIR_LEAKY_RELU_FIELDS(X, T) \
  X(T, FLOAT, alpha, 0.01, -INFINITY, INFINITY, "slope below 0")
#define CHOIR_HARD_SIGMOID_FIELDS(X, T)                      \
  X(T, FLOAT, alpha, 0.2, -INFINITY, INFINITY, "slope at 0") \
  X(T, FLOAT, gamma, 0.5, -INFINITY, INFINITY, "value at 0")
#define CHOIR_CLIP_FIELDS(X, T)                                        \
  X(T, FLOAT, low, -INFINITY, -INFINITY, INFINITY, "the least result") \
  X(T, FLOAT, high, INFINITY, -INFINITY, INFINITY,                     \
    "the largest one; it wins when it is below low")
CHOIR_CONFIG_STRUCT(choir_scale_attrs_t, CHOIR_SCALE_FIELDS);
CHOIR_CONFIG_STRUCT(choir_elu_attrs_t, CHOIR_ELU_FIELDS);
CHOIR_CONFIG_STRUCT(choir_selu_attrs_t, CHOIR_SELU_FIELDS);
CHOIR_CONFIG_STRUCT(choir_leaky_relu_attrs_t, CHOIR_LEAKY_RELU_FIELDS);
CHOIR_CONFIG_STRUCT(choir_hard_sigmoid_attrs_t, CHOIR_HARD_SIGMOID_FIELDS);
CHOIR_CONFIG_STRUCT(choir_clip_attrs_t, CHOIR_CLIP_FIELDS);
typedef choir_elu_attrs_t choir_elu_grad_attrs_t;
typedef choir_leaky_relu_attrs_t choir_leaky_relu_grad_attrs_t;
typedef choir_clip_attrs_t choir_clip_grad_attrs_t;

typedef struct choir_cast_attrs_s {
  int64_t dtype;  // choir_dtype_t
} choir_cast_attrs_t;

typedef struct choir_fill_attrs_s {
  double value;
} choir_fill_attrs_t;

// Element e of sample s (dimension 0, counted from first_sample) draws word
// (s, e) of the key (seed, stream, step); see core/random.h. With
// whole_tensor all elements are of one sample, `first_sample`.
// uniform: low + (high - low) u; normal: low is the mean, high the deviation;
// one fma in f32 (f64 tensors: in double).
typedef struct choir_random_attrs_s {
  int64_t seed;
  int64_t stream;
  int64_t step;
  int64_t first_sample;
  double low;
  double high;
  bool whole_tensor;
} choir_random_attrs_t;
typedef choir_random_attrs_t choir_random_uniform_attrs_t;
typedef choir_random_attrs_t choir_random_normal_attrs_t;

typedef struct choir_reshape_attrs_s {
  int64_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];  // one may be -1: what is left
} choir_reshape_attrs_t;
typedef choir_reshape_attrs_t choir_broadcast_to_attrs_t;

typedef struct choir_flatten_attrs_s {
  int64_t axis;  // dimensions before it stay, the rest become one; 1
} choir_flatten_attrs_t;

typedef struct choir_transpose_attrs_s {
  int64_t axes[CHOIR_MAX_NDIM];  // all -1: reversed
} choir_transpose_attrs_t;

typedef struct choir_slice_attrs_s {
  int64_t axis;
  int64_t start;
  int64_t stop;
  int64_t step;
} choir_slice_attrs_t;

typedef struct choir_concat_attrs_s {
  int64_t axis;
} choir_concat_attrs_t;

// Indices are i32 or i64; a negative one counts from the end, one outside is
// OUT_OF_RANGE with its place. gather (numpy.take): the result has x's shape
// with dimension `axis` replaced by the shape of the indices, of any number of
// dimensions. gather_elements and scatter_elements are ONNX's: indices have as
// many dimensions as x and are none larger except along `axis`; the element at
// a place is, or goes to, that of x there with `axis` replaced by the index.
// scatter_elements: sources x, indices, updates (of the shape of indices); of
// two updates of one element the last stays, and only it has a gradient.
typedef struct choir_gather_attrs_s {
  int64_t axis;
} choir_gather_attrs_t;
typedef choir_gather_attrs_t choir_gather_grad_attrs_t;
typedef choir_gather_attrs_t choir_gather_elements_attrs_t;
typedef choir_gather_attrs_t choir_gather_elements_grad_attrs_t;
typedef choir_gather_attrs_t choir_scatter_elements_attrs_t;
typedef choir_gather_attrs_t choir_scatter_elements_grad_attrs_t;

// where: condition, of any dtype, x, y -> x where condition is not 0, else y;
// x and y have one dtype, all three broadcast.

// Indices below `depth` (negative ones as above) of i32 or i64 -> one dimension
// more, at `axis` of the result, with `on` at the index and `off` elsewhere.
typedef struct choir_one_hot_attrs_s {
  int64_t depth;
  int64_t axis;  // -1: the last
  double on;     // both as choir_element_store rounds them
  double off;
  int64_t dtype;  // choir_dtype_t of the result
} choir_one_hot_attrs_t;

// What lies around x: `value`, the nearest element, or x mirrored at its first
// and last elements, which come once (back and forth when there is more to fill
// than x has).
#define CHOIR_PAD_MODE_LIST(X) \
  X(CONSTANT, constant)        \
  X(REFLECT, reflect)          \
  X(EDGE, edge)
typedef enum choir_pad_mode_e {
#define CHOIR_PAD_MODE_ENUM_(ENUM, name) CHOIR_PAD_##ENUM,
  CHOIR_PAD_MODE_LIST(CHOIR_PAD_MODE_ENUM_)
#undef CHOIR_PAD_MODE_ENUM_
} choir_pad_mode_t;

// before[k] and after[k] elements around dimension k; those beyond x's
// dimensions are not looked at.
typedef struct choir_pad_attrs_s {
  int32_t mode;  // choir_pad_mode_t
  double value;
  int64_t before[CHOIR_MAX_NDIM];
  int64_t after[CHOIR_MAX_NDIM];
} choir_pad_attrs_t;
typedef choir_pad_attrs_t choir_pad_grad_attrs_t;

// numpy.tile: the first `ndim` of repeats belong to the last dimensions of x,
// in order; if they are more, x gets leading dimensions of 1 first.
typedef struct choir_tile_attrs_s {
  int64_t ndim;
  int64_t repeats[CHOIR_MAX_NDIM];
} choir_tile_attrs_t;
typedef choir_tile_attrs_t choir_tile_grad_attrs_t;

// numpy.repeat: each element along `axis` comes `repeats` times in a row.
typedef struct choir_repeat_attrs_s {
  int64_t repeats;
  int64_t axis;
} choir_repeat_attrs_t;
typedef choir_repeat_attrs_t choir_repeat_grad_attrs_t;

// axis -1: all dimensions; else that one. The reduced dimension stays as 1
// when keep_dims, else it goes. argmax gives i64, the first of equal maxima.
typedef struct choir_reduce_attrs_s {
  int64_t axis;
  bool keep_dims;
} choir_reduce_attrs_t;
typedef choir_reduce_attrs_t choir_sum_attrs_t;
typedef choir_reduce_attrs_t choir_mean_attrs_t;
typedef choir_reduce_attrs_t choir_sum_square_attrs_t;
typedef choir_reduce_attrs_t choir_max_attrs_t;
typedef choir_reduce_attrs_t choir_argmax_attrs_t;
typedef choir_reduce_attrs_t choir_max_grad_attrs_t;

// (..., m, k) x (..., k, n), leading dimensions broadcast; transposed operands
// are given by flags or by strides.
typedef struct choir_matmul_attrs_s {
  bool transpose_a;
  bool transpose_b;
} choir_matmul_attrs_t;

// 0: none; the activation is applied to the result and its gradient masked by
// the output.
#define CHOIR_ACTIVATION_LIST(X) \
  X(NONE, none)                  \
  X(RELU, relu)
typedef enum choir_activation_e {
#define CHOIR_ACTIVATION_ENUM_(ENUM, name) CHOIR_ACTIVATION_##ENUM,
  CHOIR_ACTIVATION_LIST(CHOIR_ACTIVATION_ENUM_)
#undef CHOIR_ACTIVATION_ENUM_
} choir_activation_t;

// What lies around an image, in ONNX's words. notset: `padding` rows and
// columns on both sides; explicit: `padding` in front, `padding_after` behind;
// valid: none; same_upper, same_lower: so many that each `stride` rows of x
// have a row of the result, an odd one behind or in front. Only the first two
// look at padding, only explicit at padding_after.
#define CHOIR_WINDOW_PAD_LIST(X) \
  X(NOTSET, notset)              \
  X(EXPLICIT, explicit)          \
  X(VALID, valid)                \
  X(SAME_UPPER, same_upper)      \
  X(SAME_LOWER, same_lower)
typedef enum choir_window_pad_e {
#define CHOIR_WINDOW_PAD_ENUM_(ENUM, name) CHOIR_WINDOW_PAD_##ENUM,
  CHOIR_WINDOW_PAD_LIST(CHOIR_WINDOW_PAD_ENUM_)
#undef CHOIR_WINDOW_PAD_ENUM_
} choir_window_pad_t;

// y = activation(conv(x, W) + b). Sources x, W, b (b of shape (O); a bias of
// zeros for none). grad_data: sources (x [shape only], W, dy) -> dx.
// grad_weight: sources (x, W [shape only], dy) -> dW, db; both overwritten or,
// with accumulate, both added to.
typedef struct choir_conv2d_attrs_s {
  int64_t stride[2];
  int64_t padding[2];
  int64_t dilation[2];
  int64_t groups;
  int32_t activation;  // choir_activation_t
  int32_t pad_mode;    // choir_window_pad_t
  int64_t padding_after[2];
} choir_conv2d_attrs_t;
typedef choir_conv2d_attrs_t choir_conv2d_grad_data_attrs_t;
typedef choir_conv2d_attrs_t choir_conv2d_grad_weight_attrs_t;

// x (n, c, h, w), W (c, o / groups, kh, kw) -> y (n, o, ...): the gradient of
// conv2d, with these settings and W, for an image of y's shape, where x is the
// gradient of its result. Of y's rows (its columns likewise) there are
// (h - 1) stride - 2 padding + dilation (kh - 1) + 1 + output_padding;
// output_padding is less than the stride.
typedef struct choir_conv_transpose2d_attrs_s {
  int64_t stride[2];
  int64_t padding[2];
  int64_t output_padding[2];
  int64_t dilation[2];
  int64_t groups;
} choir_conv_transpose2d_attrs_t;

// Windows lie inside the padded image (floor). max: padding never wins; two
// results: y and the argmax index's index within the window (u8; kernels of up
// to 255 elements; the first of equal maxima). max grad: sources (x [shape
// only], index, dy). avg: divides by the kernel's full size; grad: (x [shape],
// dy).
typedef struct choir_pool2d_attrs_s {
  int64_t kernel[2];
  int64_t stride[2];
  int64_t padding[2];
  int64_t padding_after[2];
  int32_t pad_mode;  // choir_window_pad_t
} choir_pool2d_attrs_t;
typedef choir_pool2d_attrs_t choir_max_pool2d_attrs_t;
typedef choir_pool2d_attrs_t choir_max_pool2d_grad_attrs_t;
typedef choir_pool2d_attrs_t choir_avg_pool2d_attrs_t;
typedef choir_pool2d_attrs_t choir_avg_pool2d_grad_attrs_t;

// max_pool2d(conv2d(x, W, b)): sources x, W, b -> y and the argmax indices'
// places, as the two ops give them one after the other. Gradients: sources x,
// argmax indices (u8), W, y, dy, the last two of the pooled image; with an
// activation dy counts where y > 0 only. grad_data (x [shape only]) -> dx;
// grad_weight (W [shape only]) -> dW, db. As of all of a window only the argmax
// index has a gradient, they cost a window's share of the convolution's own.
typedef struct choir_conv2d_max_pool2d_attrs_s {
  choir_conv2d_attrs_t conv;
  choir_pool2d_attrs_t pool;
} choir_conv2d_max_pool2d_attrs_t;
typedef choir_conv2d_max_pool2d_attrs_t
    choir_conv2d_max_pool2d_grad_data_attrs_t;
typedef choir_conv2d_max_pool2d_attrs_t
    choir_conv2d_max_pool2d_grad_weight_attrs_t;

// Over all dimensions but 1. batch_norm: x, scale, bias -> y, mean, var
// (biased, of this batch). batch_norm_grad: x, scale, mean, var, dy -> dx,
// dscale, dbias. batch_norm_infer: x, scale, bias, mean, var -> y. In one with
// the ReLU behind it, with the bits of the ops that they stand for, on the CPU:
// batch_norm_relu: x, scale, bias (, residual) -> y, mean, var.
// batch_norm_relu_grad: x, scale, bias, mean, var, dy (, dy2) -> dx, dscale,
// dbias; batch_norm_add_relu_grad: x, scale, mean, var, y, dy (, dy2) -> dx,
// dscale, dbias, dresidual. dy2 is added to dy first. batch_norm_infer_add: x,
// scale, bias, mean, var, residual, factor -> y + residual factor; the factor
// is an image, or (1, c, 1, ...).
typedef struct choir_batch_norm_attrs_s {
  double epsilon;
} choir_batch_norm_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_grad_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_infer_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_infer_add_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_relu_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_relu_grad_attrs_t;
typedef choir_batch_norm_attrs_t choir_batch_norm_add_relu_grad_attrs_t;

// Of every `part` samples by themselves, of which the last can be fewer (0: of
// all), a row of (rows, c). batch_norm_moments: x -> mean, var (biased).
// batch_norm_sums: x, mean (c), var (c), dy -> dscale, dbias.
typedef struct choir_batch_norm_moments_attrs_s {
  int64_t part;
} choir_batch_norm_moments_attrs_t;
typedef struct choir_batch_norm_sums_attrs_s {
  double epsilon;
  int64_t part;
} choir_batch_norm_sums_attrs_t;

// layer_norm: x (..., c), scale (c), bias (c) -> (x - mean) / sqrt(variance +
// epsilon) scale + bias, with mean and biased variance of each row (Ba et al.,
// 2016, arXiv:1607.06450). rms_norm: x / sqrt(mean(x^2) + epsilon) scale (Zhang
// and Sennrich, 2019, arXiv:1910.07467). Their gradients take the moments from
// x again: x, scale, dy -> dx, dscale (c), dbias (c; not of rms_norm).
typedef struct choir_layer_norm_attrs_s {
  double epsilon;
} choir_layer_norm_attrs_t;
typedef choir_layer_norm_attrs_t choir_layer_norm_grad_attrs_t;
typedef choir_layer_norm_attrs_t choir_rms_norm_attrs_t;
typedef choir_layer_norm_attrs_t choir_rms_norm_grad_attrs_t;

// softmax_cross_entropy: x (n, c), labels (n) i32 or i64 -> loss (1), the mean
// over n of -log softmax(x)[label]; and p (n, c), the softmax, for the
// gradient. A label outside 0 .. c-1 is OUT_OF_RANGE with its place.
// cross_entropy: p (n, c), labels -> (1), mean of -log p[label].
// binary_cross_entropy: p, t of one shape (n, ...) -> (1): the sum over all
// elements of -(t log p + (1 - t) log(1 - p)), divided by n; 1 for a scalar's
// n, and 0 of no elements. Where t (or 1 - t) is 0 its term is 0, whatever p.
// mse_loss: x, t -> (1), mean of (x - t)^2 over all elements.
// count_correct: x (n, c), labels (n) -> i64 (1): rows whose first maximum is
// the label.

// linear_cross_entropy: x (..., d), labels (...) i32 or i64, W (d, c) or, with
// `transpose`, (c, d), as an embedding's table is -> loss (1), what
// softmax_cross_entropy gives for x W, and sums (...), the logarithm of each
// row's sum of e^logit. For a large vocabulary: a kernel holds a tile of
// logits. linear_cross_entropy_grad makes them again: x, labels, W, sums, dy
// (1) -> dx, dW.
typedef struct choir_linear_cross_entropy_attrs_s {
  bool transpose;
} choir_linear_cross_entropy_attrs_t;
typedef choir_linear_cross_entropy_attrs_t
    choir_linear_cross_entropy_grad_attrs_t;

// One layer of a recurrent network over all T steps of a batch of N sequences,
// with H hidden units and G gates of H columns each, in this order:
//   rnn_tanh, rnn_relu  G = 1   h' = f(x + h W)
//   lstm                G = 4   i, f, g, o: c' = f c + i g, h' = o tanh(c')
//   gru                 G = 3   r, z, n: n = tanh(x_n + r (h W_n + b)),
//                               h' = (1 - z) n + z h
// f, i, o, r, z are sigmoids, g and n tanh of the same sum x + h W (Hochreiter
// and Schmidhuber, 1997; Cho et al., 2014, as PyTorch writes them).
// Sources:
//   x (T, N, G H)     the inputs' part of the gates, biases in it: one linear
//                     of all steps
//   lengths (N)       i32 or i64, 0 .. T: after its length the state of a
//                     sample stays as it is; OUT_OF_RANGE: another number
//   W (H, G H)        the state's part
//   initial (S, N, H) h and, of lstm, c: S is 2 for it and 1 for the others
//   b (H)             of gru only
// Results:
//   states (S (T + 1), N, H)  before the first step, then after each; with
//                     `reverse`, which goes from the last step to the first,
//                     after each and then before. Of lstm first all h, then
//                     all c. So the results y of the steps are rows 1 .. T, in
//                     reverse 0 .. T - 1, and the last state is row T, or 0.
//   gates (T, N, G H) as they went into h' (0 after the length); of gru
//                     (T, N, 4 H): r, z, h W_n + b, n
//   mask (T, N, 1)    1 up to a sample's length and 0 after it
// recurrent_grad: gates, lengths, W, states, dstates -> dx, dinitial.
#define CHOIR_CELL_LIST(X) \
  X(RNN_TANH, rnn_tanh)    \
  X(RNN_RELU, rnn_relu)    \
  X(LSTM, lstm)            \
  X(GRU, gru)
typedef enum choir_cell_e {
#define CHOIR_CELL_ENUM_(ENUM, name) CHOIR_CELL_##ENUM,
  CHOIR_CELL_LIST(CHOIR_CELL_ENUM_)
#undef CHOIR_CELL_ENUM_
} choir_cell_t;
typedef struct choir_recurrent_attrs_s {
  int32_t cell;  // choir_cell_t
  bool reverse;
} choir_recurrent_attrs_t;
typedef choir_recurrent_attrs_t choir_recurrent_grad_attrs_t;

// attention: q (n, h, t, d), k (n, g, s, d), v (n, g, s, e), h a multiple of g,
// and a mask or none -> y (n, h, t, e) and sums (n, h, t): of each row of q
//   w_j = scale (q k_j) (+ mask_j), over the rows j of k that it sees
//   y = sum_j e^(w_j - sums) v_j,   sums = log(sum_j e^w_j)
// (Vaswani et al., 2017, arXiv:1706.03762; heads of q that share one of k and
// v: Ainslie et al., 2023, arXiv:2305.13245). A row that sees nothing is 0, its
// sum -inf. No kernel holds the weights of more than a tile (Dao, 2023,
// arXiv:2307.08691). attention_grad: q, k, v, y, sums, dy (, mask) -> dq, dk,
// dv. attention_mask_grad: the same sources -> dmask, of the mask's shape.
//
// The mask broadcasts to (n, h, t, s). One of bool or whole numbers says which
// places are seen: where it is 0, neither the score nor the rows of k and v
// count, not even as NaN. One of q's dtype is added to the scores and has a
// gradient; a place of -inf has weight 0, times what v has there. With a mask,
// a row without any weight is NaN, and so is its sum.
//
// With dropout a share of the weights counts as 0 in y, the others as
// 1 / (1 - dropout) times as much, drawn as choir_dropout_attrs_t tells, for
// weights (n, h, t, s), and drawn again in the gradient.
typedef struct choir_attention_attrs_s {
  double scale;
  bool causal;
  int64_t offset;
  double dropout;
  int64_t seed;
  int64_t stream;
  int64_t step;
  int64_t first_sample;
} choir_attention_attrs_t;
typedef choir_attention_attrs_t choir_attention_grad_attrs_t;
typedef choir_attention_attrs_t choir_attention_mask_grad_attrs_t;

// rotary (Su et al., 2021, arXiv:2104.09864): x (..., t, d), d even, with each
// pair of columns j and j + d / 2 of row r turned by (r + offset) theta^(-2j /
// d) radians, so that products of rows tell how far apart they are:
//   y_j = x_j cos - x_(j + d/2) sin,   y_(j + d/2) = x_(j + d/2) cos + x_j sin
typedef struct choir_rotary_attrs_s {
  double theta;
  int64_t offset;
} choir_rotary_attrs_t;
typedef choir_rotary_attrs_t choir_rotary_grad_attrs_t;

// y = x * mask / (1 - ratio); the mask is drawn as in choir_random_attrs_t and
// drawn again in the backward pass, so nothing is kept.
typedef struct choir_dropout_attrs_s {
  double ratio;  // share of elements set to 0, in [0, 1)
  int64_t seed;
  int64_t stream;
  int64_t step;
  int64_t first_sample;
} choir_dropout_attrs_t;

// Sources p, g and the states; destinations p and the states, the same tensors,
// all f32 or all f64: one step of an optimizer, by its entry in
// tensor/optimizers.h. States that the settings do not need may be empty (0).
#define CHOIR_UPDATE_ATTRS_(T, NAME, name, states, doc)                      \
  typedef struct choir_##name##_update_attrs_s {                             \
    CHOIR_##NAME##_FIELDS(CHOIR_CONFIG_MEMBER_, ) int64_t step; /* from 1 */ \
  } choir_##name##_update_attrs_t;
CHOIR_OPTIMIZER_LIST(CHOIR_UPDATE_ATTRS_, )
#undef CHOIR_UPDATE_ATTRS_

// ---- Running an op ----

// Most results of an op.
#define CHOIR_OP_MAX_RESULTS 4

// Runs `op` on `stream`. dsts has the op's number of results; an entry that is
// NULL is made (and returned with one reference) on the stream's device in the
// layout the op likes, another is written where it lies, whatever its strides.
// With `accumulate` results are added to the given destinations (not for
// argmax, max_pool2d and optimizer steps). attrs is the op's struct, or NULL
// for defaults / none. View ops (reshape, flatten, transpose, slice,
// broadcast_to) return a tensor that shares the source's buffer when dsts[0] is
// NULL and strides can express it; otherwise they copy. Optimizer steps return
// the sources that they changed when dsts are NULL.
//
// A destination may be one of the sources only for elementwise ops (same
// strides) and optimizer steps. Fails with INVALID_ARGUMENT that names the op,
// what was given and what was needed; nothing is made then.
CHOIR_API choir_status_t choir_op_run(choir_stream_t* stream, choir_op_t op,
                                      choir_tensor_t* const* srcs,
                                      int32_t src_count, const void* attrs,
                                      bool accumulate, choir_tensor_t** dsts)
    CHOIR_NODISCARD;

// "relu"; NULL for a value that is no op.
CHOIR_API const char* choir_op_name(choir_op_t op);
CHOIR_API choir_status_t choir_op_find(const char* name, choir_op_t* out_op)
    CHOIR_NODISCARD;
// What the list says of an op, for programs that make functions of it (other
// languages); static storage.
typedef enum choir_op_gradient_e {
  CHOIR_OP_GRADIENT_GRAD,      // has a gradient
  CHOIR_OP_GRADIENT_NO_GRAD,   // its result is a constant to autograd
  CHOIR_OP_GRADIENT_INTERNAL,  // for rules, layers and optimizers only
} choir_op_gradient_t;
typedef struct choir_op_info_s {
  const char* name;
  const char* doc;  // one line
  int32_t src_min;
  int32_t src_max;
  int32_t result_count;
  choir_op_gradient_t gradient;
  bool is_product;                  // takes 16-bit factors in mixed precision
  const choir_struct_def_t* attrs;  // NULL: none
} choir_op_info_t;
// All zeros for a value that is no op: so ops 0, 1, ... end there.
CHOIR_API choir_op_info_t choir_op_info(choir_op_t op);

// Mixed precision (Micikevicius et al., 2018, arXiv:1710.03740): in which
// dtypes a step takes the op's sources, of which src_dtypes are given; others
// are cast first. Factors of products have `precision`, F16 or BF16, losses and
// sums F32. Other ops take BF16 where one of their sources is that already.
// Biases, scales and the like stay as they are. Returns whether the op's
// results are cast to F32 at once: those of F16's products are, since the
// gradient of each is scaled into F16's range (choir_scope_set_precision). Of
// no op all stay.
CHOIR_API bool choir_op_mixed_dtypes(choir_op_t op, choir_dtype_t precision,
                                     const choir_dtype_t* src_dtypes,
                                     int32_t src_count,
                                     choir_dtype_t* out_dtypes);

// The attributes' field table, NULL when the op has none.
CHOIR_API const choir_struct_def_t* choir_op_attrs_def(choir_op_t op);
CHOIR_API int32_t choir_op_result_count(choir_op_t op);

// How often this process fell back to something slower: copies made because a
// view op or kernels could not use the layout (reorders), ops that a device
// without a kernel ran as the host reference, and ops of 16-bit floats that
// have a kernel for f32 alone and were cast up and down for it (widened).
typedef struct choir_op_stats_s {
  uint64_t reorders;
  uint64_t reorder_bytes;
  uint64_t host_fallbacks;
  uint64_t reference_runs;  // CPU records that had no fast kernel
  uint64_t widened;
} choir_op_stats_t;
CHOIR_API choir_op_stats_t choir_op_stats(void);
CHOIR_API void choir_op_stats_reset(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_OPS_H_
