// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_LAYERS_H_
#define CHOIR_MODEL_LAYERS_H_

#include "autograd/scope.h"
#include "core/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// THE LAYER LIST. One line a layer; its file is model/layers/<name>_layer.c
// (conv_layers.c: convolution and its transpose; pool_layers.c: the poolings;
// layer_norm_layer.c: rms_norm too; recurrent_layers.c: rnn, lstm and gru;
// function_layers.c: of one op alone), its config below. Made with a macro that
// takes designated fields:
//
//   choir_layer_t* fc = choir_layer_linear(model, "fc", .out_features = 10);
//
// What is left out has its default. Creation cannot fail visibly: the model
// keeps the first error and choir_model_create returns it.
//
// Ownership: a layer belongs to its model. Threads: one thread at a time.
//
// X(name, FIELDS)
#define CHOIR_LAYER_LIST(X)                                  \
  X(linear, CHOIR_LINEAR_FIELDS)                             \
  X(conv2d, CHOIR_CONV2D_FIELDS)                             \
  X(separable_conv2d, CHOIR_SEPARABLE_CONV2D_FIELDS)         \
  X(conv_transpose2d, CHOIR_CONV_TRANSPOSE2D_FIELDS)         \
  X(max_pool2d, CHOIR_POOL2D_FIELDS)                         \
  X(avg_pool2d, CHOIR_POOL2D_FIELDS)                         \
  X(max_pool1d, CHOIR_POOL1D_FIELDS)                         \
  X(avg_pool1d, CHOIR_POOL1D_FIELDS)                         \
  X(batch_norm2d, CHOIR_BATCH_NORM2D_FIELDS)                 \
  X(layer_norm, CHOIR_LAYER_NORM_FIELDS)                     \
  X(rms_norm, CHOIR_ROW_NORM_FIELDS)                         \
  X(embedding, CHOIR_EMBEDDING_FIELDS)                       \
  X(position_embedding, CHOIR_POSITION_EMBEDDING_FIELDS)     \
  X(multi_head_attention, CHOIR_MULTI_HEAD_ATTENTION_FIELDS) \
  X(feed_forward, CHOIR_FEED_FORWARD_FIELDS)                 \
  X(rnn, CHOIR_RNN_FIELDS)                                   \
  X(lstm, CHOIR_RECURRENT_FIELDS)                            \
  X(gru, CHOIR_RECURRENT_FIELDS)                             \
  X(gemm, CHOIR_GEMM_FIELDS)                                 \
  X(cat, CHOIR_CAT_FIELDS)                                   \
  X(add, CHOIR_NO_FIELDS)                                    \
  X(dropout, CHOIR_DROPOUT_FIELDS)                           \
  X(relu, CHOIR_NO_FIELDS)                                   \
  X(gelu, CHOIR_NO_FIELDS)                                   \
  X(silu, CHOIR_NO_FIELDS)                                   \
  X(sigmoid, CHOIR_NO_FIELDS)                                \
  X(tanh, CHOIR_NO_FIELDS)                                   \
  X(softmax, CHOIR_NO_FIELDS)                                \
  X(flatten, CHOIR_NO_FIELDS)

typedef struct choir_layer_s choir_layer_t;
struct choir_model_s;

CHOIR_API extern const char* const choir_activation_names[];

// x (..., in) -> activation(x W + b), (..., out), of 2 or more dimensions, all
// but the last of which are a batch. W (in, out) starts as N(0, deviation),
// where that is 0 as N(0, sqrt(2 / (in + out))), and b as 0. `in` is learnt
// from the first input.
#define CHOIR_LINEAR_FIELDS(X, T)                                       \
  X(T, INT, out_features, 0, 1, 1e9, "columns of the result; required") \
  X(T, BOOL, bias, true, 0, 1, "add b")                                 \
  X(T, ENUM, activation, 0, choir_activation_names, 0,                  \
    "applied to the result")                                            \
  X(T, FLOAT, deviation, 0, 0, 1e9, "of W's initial values; 0: the formula's")

CHOIR_API extern const char* const choir_window_pad_names[];

// Of windows over images. A _width of -1 means: as the height's. What lies
// around an image: choir_window_pad_t (tensor/ops.h).
#define CHOIR_WINDOW_FIELDS(X, T, STRIDE)                                \
  X(T, INT, kernel_size, 0, 1, 1e6, "height of the window; required")    \
  X(T, INT, kernel_width, -1, -1, 1e6, "width of the window")            \
  X(T, INT, stride, STRIDE, STRIDE, 1e6, "rows between windows")         \
  X(T, INT, stride_width, -1, -1, 1e6, "columns between windows")        \
  X(T, INT, padding, 0, 0, 1e6, "rows above and below")                  \
  X(T, INT, padding_width, -1, -1, 1e6, "columns left and right")        \
  X(T, INT, padding_after, 0, 0, 1e6, "rows below, where explicit")      \
  X(T, INT, padding_after_width, -1, -1, 1e6, "columns right, likewise") \
  X(T, ENUM, pad_mode, 0, choir_window_pad_names, 0, "what decides on padding")

// x (n, c, h, w) -> activation(conv(x, W) + b). W (out, c / groups, kh, kw)
// starts as N(0, sqrt(2 / (c / groups * kh * kw + out))), b as 0.
#define CHOIR_CONV2D_FIELDS(X, T)                                \
  X(T, INT, out_channels, 0, 1, 1e9, "filters; required")        \
  CHOIR_WINDOW_FIELDS(X, T, 1)                                   \
  X(T, INT, dilation, 1, 1, 1e6, "rows between kernel elements") \
  X(T, INT, dilation_width, -1, -1, 1e6, "columns between them") \
  X(T, INT, groups, 1, 1, 1e6, "independent groups of channels") \
  X(T, BOOL, bias, true, 0, 1, "add b")                          \
  X(T, ENUM, activation, 0, choir_activation_names, 0, "applied to the result")

// x (n, c, h, w): child depthwise_conv, a filter for each channel, and behind
// it point_conv, a convolution of 1x1 (Chollet, CVPR 2017, without an
// activation in between). Both have the bias.
#define CHOIR_SEPARABLE_CONV2D_FIELDS(X, T)                      \
  X(T, INT, out_channels, 0, 1, 1e9, "filters of 1x1; required") \
  CHOIR_WINDOW_FIELDS(X, T, 1)                                   \
  X(T, BOOL, bias, false, 0, 1, "add b")                         \
  X(T, ENUM, activation, 0, choir_activation_names, 0, "applied to the result")

// x (n, c, h, w) -> (n, out, ...), larger by the stride: the op
// conv_transpose2d, and b added. W (c, out / groups, kh, kw) starts as
// N(0, sqrt(2 / (c / groups * kh * kw + out))), b as 0.
#define CHOIR_CONV_TRANSPOSE2D_FIELDS(X, T)                                \
  X(T, INT, out_channels, 0, 1, 1e9, "channels of the result; required")   \
  X(T, INT, kernel_size, 0, 1, 1e6, "height of the window; required")      \
  X(T, INT, kernel_width, -1, -1, 1e6, "width of the window")              \
  X(T, INT, stride, 1, 1, 1e6, "rows of the result for each of x")         \
  X(T, INT, stride_width, -1, -1, 1e6, "columns likewise")                 \
  X(T, INT, padding, 0, 0, 1e6, "rows left out above and below")           \
  X(T, INT, padding_width, -1, -1, 1e6, "columns left out left and right") \
  X(T, INT, output_padding, 0, 0, 1e6, "more rows; less than the stride")  \
  X(T, INT, output_padding_width, -1, -1, 1e6, "more columns")             \
  X(T, INT, dilation, 1, 1, 1e6, "rows between kernel elements")           \
  X(T, INT, dilation_width, -1, -1, 1e6, "columns between them")           \
  X(T, INT, groups, 1, 1, 1e6, "independent groups of channels")           \
  X(T, BOOL, bias, true, 0, 1, "add b")

// x (n, c, h, w) -> the window's maximum or mean. stride 0: the kernel's size.
// Padding never is the maximum; the mean divides by the window's full size.
#define CHOIR_POOL2D_FIELDS(X, T) CHOIR_WINDOW_FIELDS(X, T, 0)

// The same along the last axis of x (n, c, w) or (n, c, h, w).
#define CHOIR_POOL1D_FIELDS(X, T)                                     \
  X(T, INT, kernel_size, 0, 1, 1e6, "length of the window; required") \
  X(T, INT, stride, 0, 0, 1e6, "elements between windows")            \
  X(T, INT, padding, 0, 0, 1e6, "elements in front and behind")       \
  X(T, INT, padding_after, 0, 0, 1e6, "those behind, where explicit") \
  X(T, ENUM, pad_mode, 0, choir_window_pad_names, 0, "what decides on padding")

// Normalises each channel over the batch, then scale and bias:
//   (x - mean) / sqrt(variance + epsilon) * scale + bias
// with mean and biased variance of the n elements that the channel has in the
// batch (Ioffe and Szegedy, 2015, arXiv:1502.03167). Averages for inference:
// running = (1 - momentum) running + momentum batch, as SINGA: the weight of
// the NEW batch; the variance with n / (n - 1).
//
// With `sync` the batch of a training step is that of all ranks (PyTorch's
// SyncBatchNorm): forward gathers count, mean and variance of each rank and
// merges them (Chan et al., 1979), backward gathers the sums of gradients, each
// weighted by the rank's samples as DistOpt weights gradients. So N ranks train
// as one with the whole batch, however it is divided, and the averages are
// equal on all of them. A rank without samples takes part. It needs a model
// whose updater is a DistOpt, of one rank too: choir_model_set_updater fails
// with any other. x is f32 or f64. All ranks run the same layers in the same
// order, the one in which choir_model_compile runs them, and the loss depends
// on each.
#define CHOIR_BATCH_NORM2D_FIELDS(X, T)                         \
  X(T, FLOAT, momentum, 0.9, 0, 1, "weight of the new batch")   \
  X(T, FLOAT, epsilon, 1e-5, 1e-12, 1, "added to the variance") \
  X(T, BOOL, sync, false, 0, 1, "over the samples of all ranks")

// Each row (the last axis), with a scale per column that starts as 1.
// layer_norm: (x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al.,
// 2016, arXiv:1607.06450); rms_norm: x / sqrt(mean(x^2) + epsilon) * scale
// (Zhang and Sennrich, 2019, arXiv:1910.07467).
#define CHOIR_ROW_NORM_FIELDS(X, T) \
  X(T, FLOAT, epsilon, 1e-5, 1e-12, 1, "added below the root")
#define CHOIR_LAYER_NORM_FIELDS(X, T) \
  CHOIR_ROW_NORM_FIELDS(X, T)         \
  X(T, BOOL, bias, true, 0, 1, "add bias")

// x (...) of whole numbers, i32 or i64 -> rows of W with these numbers, (...,
// embedding_dim). W (num_embeddings, embedding_dim), f32, starts as
// N(0, deviation). A number below 0 counts from the end; OUT_OF_RANGE: one that
// there is not.
#define CHOIR_EMBEDDING_FIELDS(X, T)                                  \
  X(T, INT, num_embeddings, 0, 1, 1e9, "rows of the table; required") \
  X(T, INT, embedding_dim, 0, 1, 1e9, "length of a row; required")    \
  X(T, FLOAT, deviation, 1, 0, 1e9, "of the initial values")

// x (..., t, d) -> x + the first t rows of W (num_embeddings, d), which starts
// as N(0, deviation): learnt positions. t above num_embeddings:
// INVALID_ARGUMENT.
#define CHOIR_POSITION_EMBEDDING_FIELDS(X, T)                      \
  X(T, INT, num_embeddings, 0, 1, 1e9, "most rows of x; required") \
  X(T, FLOAT, deviation, 1, 0, 1e9, "of the initial values")

// Recurrent networks, by the formulas of the op `recurrent` (tensor/ops.h).
// Inputs: x (T, N, F), T of 1 and more; then, or not, h and, of lstm, c before
// the first step, (L D, N, H) with L layers of D directions, layer by layer and
// in each the reverse one second (not given: zeros); last, or not, lengths (N)
// of i32 or i64: what lies behind a sample's length is not looked at, its y is
// 0 and its last states are those at its end. Results (choir_scope_result): y
// (T, N, D H) of the last layer, the states h of all layers after the last
// step, as above, and of lstm c.
//
// Parameters of the first layer: Wx (F, G H), Wh (H, G H), b (G H), the gates'
// columns in the op's order, and of gru bn (H), the op's b. Names of the others
// end with _l1, _l2 ... for the layer and then _reverse for the direction:
// "Wx_l1_reverse". Weights start as N(0, 1) (rnn), N(0, 0.01) (lstm), as
// SINGA's, or evenly from -1 / sqrt(H) to 1 / sqrt(H) (gru), as PyTorch's;
// biases as 0.
#define CHOIR_RECURRENT_FIELDS(X, T)                                         \
  X(T, INT, hidden_size, 0, 1, 1e9, "units of a direction; required")        \
  X(T, INT, num_layers, 1, 1, 1000, "one upon the other")                    \
  X(T, BOOL, bidirectional, false, 0, 1, "another one from the end as well") \
  X(T, BOOL, batch_first, false, 0, 1, "x is (N, T, F), and y likewise")     \
  X(T, FLOAT, dropout, 0, 0, 0.999999, "share set to 0 between layers")      \
  X(T, BOOL, bias, true, 0, 1, "add b, and bn of gru")
#define CHOIR_RNN_FIELDS(X, T) \
  CHOIR_RECURRENT_FIELDS(X, T) \
  X(T, ENUM, nonlinearity, 0, choir_nonlinearity_names, 0, "f of a step")
CHOIR_API extern const char* const choir_nonlinearity_names[];  // tanh, relu

// Multi-head attention (Vaswani et al., 2017, arXiv:1706.03762). Inputs x; x,
// mask; query, key, value; or these and mask. Query (n, t, e), key and value
// (n, s, ...) -> (n, t, e). Children query, key, value and out, layers
// `linear`, and dropout, of the weights. For each head:
//   softmax(q k' / sqrt(head_dim)) v
// mask, of a shape that broadcasts to (n, heads, t, s): bool or a whole number,
// 0 where a place must not be seen; or of the dtype of x, added to the scores,
// and then it may have a gradient. By the op `attention` where the device has a
// kernel, so that memory is linear in t and s, but for the mask's own; else all
// weights are made. causal: place i sees those up to i. A place that sees none
// is NaN. With kv_heads, of which num_heads is a multiple, key and value have
// so many heads, each of which serves num_heads / kv_heads neighbouring ones of
// query (Ainslie et al., 2023, arXiv:2305.13245). With rotary, rows of query
// and key are turned by their places, by the op `rotary` with this theta,
// before they meet.
#define CHOIR_MULTI_HEAD_ATTENTION_FIELDS(X, T)                               \
  X(T, INT, num_heads, 0, 1, 1e6, "heads; required")                          \
  X(T, INT, kv_heads, 0, 0, 1e6, "of key and value; 0: as num_heads")         \
  X(T, INT, head_dim, 0, 0, 1e6, "of query and key; 0: e / heads")            \
  X(T, INT, value_dim, 0, 0, 1e6, "of a head's values; 0: as head_dim")       \
  X(T, BOOL, bias, true, 0, 1, "of the children")                             \
  X(T, BOOL, causal, false, 0, 1, "no place sees a later one")                \
  X(T, FLOAT, dropout, 0, 0, 0.999999, "share of the weights that are set 0") \
  X(T, FLOAT, deviation, 0, 0, 1e9, "linear's, of query, key and value")      \
  X(T, FLOAT, out_deviation, 0, 0, 1e9, "linear's, of out")                   \
  X(T, FLOAT, rotary, 0, 0, 1e12, "theta of rotary positions; 0: none")

// x (..., in) -> shrink(activation(expand(x))), (..., in), with hidden_size
// columns between. gated: shrink(activation(gate(x)) * expand(x)) (Shazeer,
// 2020, arXiv:2002.05202), SwiGLU with silu. Children expand, shrink and, if
// gated, gate, layers `linear`.
#define CHOIR_FEED_FORWARD_FIELDS(X, T)                                      \
  X(T, INT, hidden_size, 0, 0, 1e9, "columns between; 0: 4 in")              \
  X(T, ENUM, activation, 0, choir_hidden_activation_names, 0, "see above")   \
  X(T, BOOL, gated, false, 0, 1, "multiply by a product without activation") \
  X(T, BOOL, bias, true, 0, 1, "of the children")                            \
  X(T, FLOAT, deviation, 0, 0, 1e9, "linear's, of expand and gate")          \
  X(T, FLOAT, out_deviation, 0, 0, 1e9, "linear's, of shrink")
#define CHOIR_HIDDEN_ACTIVATION_LIST(X) \
  X(GELU, gelu)                         \
  X(GELU_TANH, gelu_tanh)               \
  X(SILU, silu)                         \
  X(RELU, relu)
typedef enum choir_hidden_activation_e {
#define CHOIR_HIDDEN_ACTIVATION_ENUM_(ENUM, name) CHOIR_HIDDEN_##ENUM,
  CHOIR_HIDDEN_ACTIVATION_LIST(CHOIR_HIDDEN_ACTIVATION_ENUM_)
#undef CHOIR_HIDDEN_ACTIVATION_ENUM_
} choir_hidden_activation_t;
CHOIR_API extern const char* const choir_hidden_activation_names[];

// x, a matrix or a batch of them -> alpha op(x) op(W) + beta b, where op may
// transpose. W (out, in), or (in, out) without transpose_b, starts as
// N(0, sqrt(2 / (in + out))), b (1, out) as 0.
#define CHOIR_GEMM_FIELDS(X, T)                                         \
  X(T, INT, out_features, 0, 1, 1e9, "columns of the result; required") \
  X(T, FLOAT, alpha, 1, -1e9, 1e9, "factor of the product")             \
  X(T, FLOAT, beta, 1, -1e9, 1e9, "factor of b")                        \
  X(T, BOOL, transpose_a, false, 0, 1, "the transpose of x")            \
  X(T, BOOL, transpose_b, true, 0, 1, "the transpose of W")             \
  X(T, BOOL, bias, true, 0, 1, "add b")

// 1 to 15 inputs side by side. add: the sum of two.
#define CHOIR_CAT_FIELDS(X, T) X(T, INT, axis, 0, 0, 7, "along which they lie")

// Zeroes elements in training, scales the rest by 1 / (1 - ratio).
#define CHOIR_DROPOUT_FIELDS(X, T) \
  X(T, FLOAT, ratio, 0.5, 0, 0.999999, "share of elements set to 0")

// (no settings)
#define CHOIR_NO_FIELDS(X, T) \
  X(T, BOOL, enabled, true, 0, 1, "false: hand the input on")

typedef struct choir_layer_def_s choir_layer_def_t;

#define CHOIR_LAYER_DECLARE_(name, FIELDS)              \
  CHOIR_CONFIG_STRUCT(choir_##name##_config_t, FIELDS); \
  CHOIR_API extern const choir_layer_def_t choir_layer_def_##name;
CHOIR_LAYER_LIST(CHOIR_LAYER_DECLARE_)
#undef CHOIR_LAYER_DECLARE_

#define CHOIR_LAYER_MAKE_(model, type, FIELDS, name, ...)      \
  CHOIR_CONFIG_CALL_(                                          \
      choir_layer_t*,                                          \
      choir_layer_create(model, name, &choir_layer_def_##type, \
                         &(choir_##type##_config_t){           \
                             CHOIR_CONFIG_DEFAULTS(FIELDS) __VA_ARGS__}))
// choir_layer_<type>(model, name, .field = value, ...). The comma at the end
// lets there be no field at all.
#define choir_layer_linear(model, ...) \
  CHOIR_LAYER_MAKE_(model, linear, CHOIR_LINEAR_FIELDS, __VA_ARGS__, )
#define choir_layer_conv2d(model, ...) \
  CHOIR_LAYER_MAKE_(model, conv2d, CHOIR_CONV2D_FIELDS, __VA_ARGS__, )
#define choir_layer_separable_conv2d(model, ...)                            \
  CHOIR_LAYER_MAKE_(model, separable_conv2d, CHOIR_SEPARABLE_CONV2D_FIELDS, \
                    __VA_ARGS__, )
#define choir_layer_conv_transpose2d(model, ...)                            \
  CHOIR_LAYER_MAKE_(model, conv_transpose2d, CHOIR_CONV_TRANSPOSE2D_FIELDS, \
                    __VA_ARGS__, )
#define choir_layer_max_pool2d(model, ...) \
  CHOIR_LAYER_MAKE_(model, max_pool2d, CHOIR_POOL2D_FIELDS, __VA_ARGS__, )
#define choir_layer_avg_pool2d(model, ...) \
  CHOIR_LAYER_MAKE_(model, avg_pool2d, CHOIR_POOL2D_FIELDS, __VA_ARGS__, )
#define choir_layer_max_pool1d(model, ...) \
  CHOIR_LAYER_MAKE_(model, max_pool1d, CHOIR_POOL1D_FIELDS, __VA_ARGS__, )
#define choir_layer_avg_pool1d(model, ...) \
  CHOIR_LAYER_MAKE_(model, avg_pool1d, CHOIR_POOL1D_FIELDS, __VA_ARGS__, )
#define choir_layer_batch_norm2d(model, ...)                        \
  CHOIR_LAYER_MAKE_(model, batch_norm2d, CHOIR_BATCH_NORM2D_FIELDS, \
                    __VA_ARGS__, )
#define choir_layer_layer_norm(model, ...) \
  CHOIR_LAYER_MAKE_(model, layer_norm, CHOIR_LAYER_NORM_FIELDS, __VA_ARGS__, )
#define choir_layer_rms_norm(model, ...) \
  CHOIR_LAYER_MAKE_(model, rms_norm, CHOIR_ROW_NORM_FIELDS, __VA_ARGS__, )
#define choir_layer_embedding(model, ...) \
  CHOIR_LAYER_MAKE_(model, embedding, CHOIR_EMBEDDING_FIELDS, __VA_ARGS__, )
#define choir_layer_position_embedding(model, ...) \
  CHOIR_LAYER_MAKE_(model, position_embedding,     \
                    CHOIR_POSITION_EMBEDDING_FIELDS, __VA_ARGS__, )
#define choir_layer_rnn(model, ...) \
  CHOIR_LAYER_MAKE_(model, rnn, CHOIR_RNN_FIELDS, __VA_ARGS__, )
#define choir_layer_lstm(model, ...) \
  CHOIR_LAYER_MAKE_(model, lstm, CHOIR_RECURRENT_FIELDS, __VA_ARGS__, )
#define choir_layer_gru(model, ...) \
  CHOIR_LAYER_MAKE_(model, gru, CHOIR_RECURRENT_FIELDS, __VA_ARGS__, )
#define choir_layer_multi_head_attention(model, ...) \
  CHOIR_LAYER_MAKE_(model, multi_head_attention,     \
                    CHOIR_MULTI_HEAD_ATTENTION_FIELDS, __VA_ARGS__, )
#define choir_layer_feed_forward(model, ...)                        \
  CHOIR_LAYER_MAKE_(model, feed_forward, CHOIR_FEED_FORWARD_FIELDS, \
                    __VA_ARGS__, )
#define choir_layer_gemm(model, ...) \
  CHOIR_LAYER_MAKE_(model, gemm, CHOIR_GEMM_FIELDS, __VA_ARGS__, )
#define choir_layer_cat(model, ...) \
  CHOIR_LAYER_MAKE_(model, cat, CHOIR_CAT_FIELDS, __VA_ARGS__, )
#define choir_layer_add(model, ...) \
  CHOIR_LAYER_MAKE_(model, add, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_dropout(model, ...) \
  CHOIR_LAYER_MAKE_(model, dropout, CHOIR_DROPOUT_FIELDS, __VA_ARGS__, )
#define choir_layer_relu(model, ...) \
  CHOIR_LAYER_MAKE_(model, relu, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_gelu(model, ...) \
  CHOIR_LAYER_MAKE_(model, gelu, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_silu(model, ...) \
  CHOIR_LAYER_MAKE_(model, silu, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_sigmoid(model, ...) \
  CHOIR_LAYER_MAKE_(model, sigmoid, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_tanh(model, ...) \
  CHOIR_LAYER_MAKE_(model, tanh, CHOIR_NO_FIELDS, __VA_ARGS__, )
// Over the last axis.
#define choir_layer_softmax(model, ...) \
  CHOIR_LAYER_MAKE_(model, softmax, CHOIR_NO_FIELDS, __VA_ARGS__, )
#define choir_layer_flatten(model, ...) \
  CHOIR_LAYER_MAKE_(model, flatten, CHOIR_NO_FIELDS, __VA_ARGS__, )

// The general form: `config` is the layer's struct. `name` is copied; names
// are unique within a model. In a block's define it is the part behind the
// block's name.
CHOIR_API choir_layer_t* choir_layer_create(struct choir_model_s* model,
                                            const char* name,
                                            const choir_layer_def_t* def,
                                            const void* config);
// The definition called "conv2d", else NULL; for other languages.
CHOIR_API const choir_layer_def_t* choir_layer_def_find(const char* name);
// Definitions in the order of the list; NULL when index is out of range.
CHOIR_API const choir_layer_def_t* choir_layer_def_get(int32_t index);
// Its config's field table.
CHOIR_API const choir_struct_def_t* choir_layer_def_config(
    const choir_layer_def_t* def);

// A layer of the program's own, made of others. What define creates belongs to
// it: their names, and those of choir_model_add_param, come after its own
// ("block3.attention", "block3.attention.query.W"), and so do the labels of
// their work in failures and profiles. `self` is handed to both functions, as a
// model's is, and must outlive the model; `def` is borrowed as long.
typedef struct choir_block_def_s {
  void (*define)(struct choir_model_s* model, void* self);
  choir_var_t* (*forward)(choir_scope_t* scope, void* self,
                          choir_vars_t inputs);
} choir_block_def_t;
CHOIR_API choir_layer_t* choir_layer_block(struct choir_model_s* model,
                                           const char* name,
                                           const choir_block_def_t* def,
                                           void* self);

// Activation checkpointing: whether what the layer and its children compute on
// the way to the result is dropped after forward, and computed again in
// backward (choir_scope_recompute). For layers with children, such as a
// transformer's blocks: less memory for one more forward, the same bits. From
// the next recorded step on; NULL (a layer that was not made) does nothing.
CHOIR_API void choir_layer_set_recompute(choir_layer_t* layer, bool recompute);

// Runs the layer; the first call learns its shapes and makes its parameters.
CHOIR_API choir_var_t* choir_layer_forward(choir_scope_t* scope,
                                           choir_layer_t* layer,
                                           choir_var_t* x);
// The same with any number of inputs: CHOIR_VARS(x, mask).
CHOIR_API choir_var_t* choir_layer_forward_list(choir_scope_t* scope,
                                                choir_layer_t* layer,
                                                choir_vars_t inputs);

// A layer without a model, for programs that keep parameters themselves: they
// bind each to a variable of their own before forward (choir_scope_bind). The
// first forward makes the parameters, of initial values by the seed, the first
// one drawn from random stream `first_stream`, the next from the one after it.
// name: in failures and labels. INVALID_ARGUMENT: a setting out of range.
// Ownership: release it, and no other layer.
CHOIR_API choir_status_t choir_layer_create_alone(
    choir_device_t* device, const char* name, const choir_layer_def_t* def,
    const void* config, int64_t seed, int64_t first_stream,
    choir_layer_t** out_layer) CHOIR_NODISCARD;
CHOIR_API void choir_layer_release(choir_layer_t* layer);
// Parameter `index` of its own and its children's, "<name>.query.W", in the
// order of their making, lent; NULL: there are no more.
CHOIR_API choir_param_t* choir_layer_param(const choir_layer_t* layer,
                                           size_t index);

// The whole one: "block3.attention".
CHOIR_API const char* choir_layer_name(const choir_layer_t* layer);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_LAYERS_H_
