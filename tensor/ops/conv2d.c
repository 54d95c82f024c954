// SPDX-License-Identifier: Apache-2.0
// conv2d and its gradients: sizes, shape rules, references, definitions.
#include "tensor/ops/conv2d.h"

const char* const choir__activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

static const choir_field_t fields[] = {
    CHOIR__WINDOW_FIELDS(choir_conv2d_attrs_t, 1),
    CHOIR_FIELD_INTS(choir_conv2d_attrs_t, dilation, 2, 1, 1,
                     CHOIR__LARGEST_SIZE,
                     "step inside the window, height and width"),
    CHOIR_FIELD_INT(choir_conv2d_attrs_t, groups, 1, 1, CHOIR__LARGEST_SIZE,
                    "parts of channels and filters that see only each other"),
    CHOIR_FIELD_ENUM(choir_conv2d_attrs_t, activation, choir__activation_names,
                     0, "applied to the result; gradients do not look at it"),
};
choir__conv2d_t choir__conv2d_of(const choir_view_t* x, const choir_view_t* w,
                                 const choir_conv2d_attrs_t* attrs) {
  choir__conv2d_t conv = {
      .batch = x->shape[0],
      .channels = x->shape[1],
      .filters = w->shape[0],
      .groups = attrs->groups,
  };
  for (int32_t i = 0; i < 2; ++i) {
    conv.size[i] = x->shape[2 + i];
    conv.kernel[i] = w->shape[2 + i];
    conv.stride[i] = attrs->stride[i];
    conv.dilation[i] = attrs->dilation[i];
    int64_t reach = (conv.kernel[i] - 1) * conv.dilation[i] + 1;
    choir__window_pad(attrs->pad_mode, attrs->padding[i],
                      attrs->padding_after[i], conv.size[i], reach,
                      conv.stride[i], &conv.padding[i], &conv.after[i]);
    conv.out[i] = (conv.size[i] + conv.padding[i] + conv.after[i] - reach) /
                      conv.stride[i] +
                  1;
  }
  return conv;
}

// Views without elements may have any sizes: those of the sums below are
// checked before they are taken.
static choir_status_t check_sizes(const choir_view_t* x,
                                  const choir_view_t* w) {
  for (int32_t i = 2; i < 4; ++i)
    if (w->shape[i] < 1 || w->shape[i] > CHOIR__LARGEST_SIZE ||
        x->shape[i] > CHOIR__LARGEST_SIZE)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "kernel is %lld x %lld, image %lld x %lld; needs "
                         "sizes up to %d, and from 1 for the kernel",
                         (long long)w->shape[2], (long long)w->shape[3],
                         (long long)x->shape[2], (long long)x->shape[3],
                         CHOIR__LARGEST_SIZE);
  return NULL;
}

// OK when kernel and padded image fit in each direction.
static choir_status_t check_window(const choir__conv2d_t* conv) {
  int64_t reach[2], padded[2];
  bool fits = true;
  for (int32_t i = 0; i < 2; ++i) {
    reach[i] = (conv->kernel[i] - 1) * conv->dilation[i] + 1;
    padded[i] = conv->size[i] + conv->padding[i] + conv->after[i];
    if (reach[i] > padded[i]) fits = false;
  }
  if (fits) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "kernel covers %lld x %lld; needs to fit the padded "
                     "image of %lld x %lld",
                     (long long)reach[0], (long long)reach[1],
                     (long long)padded[0], (long long)padded[1]);
}

choir_status_t choir__conv2d_make(const choir_view_t* x, const choir_view_t* w,
                                  const choir_conv2d_attrs_t* attrs,
                                  choir__conv2d_t* out_conv, choir_view_t* y) {
  CHOIR_TRY(choir__need_ndim("x", x, 4));
  CHOIR_TRY(choir__need_ndim("W", w, 4));
  long long groups = attrs->groups;
  if (x->shape[1] % groups != 0 || x->shape[1] / groups != w->shape[1])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x has %lld channels in %lld groups; needs %lld in "
                       "each group, as W has",
                       (long long)x->shape[1], groups, (long long)w->shape[1]);
  if (w->shape[0] % groups != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "W has %lld filters; needs a multiple of the %lld "
                       "groups",
                       (long long)w->shape[0], groups);
  CHOIR_TRY(check_sizes(x, w));
  const choir__conv2d_t conv = *out_conv = choir__conv2d_of(x, w, attrs);
  CHOIR_TRY(check_window(&conv));
  const int64_t shape[] = {conv.batch, conv.filters, conv.out[0], conv.out[1]};
  CHOIR_TRY(choir__infer_shape(x->dtype, 4, shape, y));
  choir_view_set_channels_last(y);
  return NULL;
}

// All (kernel row, kernel column) of one place of y that lie on the image.
typedef struct window_s {
  const choir__conv2d_t* conv;
  int64_t x_channel;  // place in x of the channel's first element
  int64_t w_channel;  // place in W likewise
  int64_t y_place;
  int64_t top, left;  // of the window, in the image; negative in the padding
} window_t;

static void visit_window(const window_t* window, choir__conv2d_visit_t visit,
                         void* self) {
  const choir__conv2d_t* conv = window->conv;
  for (int64_t i = 0; i < conv->kernel[0]; ++i) {
    int64_t row = window->top + i * conv->dilation[0];
    if (row < 0 || row >= conv->size[0]) continue;
    for (int64_t j = 0; j < conv->kernel[1]; ++j) {
      int64_t column = window->left + j * conv->dilation[1];
      if (column < 0 || column >= conv->size[1]) continue;
      visit(self, window->x_channel + row * conv->size[1] + column,
            window->w_channel + i * conv->kernel[1] + j, window->y_place);
    }
  }
}

void choir__conv2d_products(const choir__conv2d_t* conv,
                            choir__conv2d_visit_t visit, void* self) {
  int64_t group_channels = conv->channels / conv->groups;
  int64_t group_filters = conv->filters / conv->groups;
  int64_t image = conv->size[0] * conv->size[1];
  int64_t kernel = conv->kernel[0] * conv->kernel[1];
  int64_t out_image = conv->out[0] * conv->out[1];
  window_t window = {.conv = conv};
  for (int64_t n = 0; n < conv->batch; ++n) {
    for (int64_t filter = 0; filter < conv->filters; ++filter) {
      int64_t first = filter / group_filters * group_channels;
      for (int64_t place = 0; place < out_image; ++place) {
        window.y_place = (n * conv->filters + filter) * out_image + place;
        window.top = place / conv->out[1] * conv->stride[0] - conv->padding[0];
        window.left = place % conv->out[1] * conv->stride[1] - conv->padding[1];
        for (int64_t c = 0; c < group_channels; ++c) {
          window.x_channel = (n * conv->channels + first + c) * image;
          window.w_channel = (filter * group_channels + c) * kernel;
          visit_window(&window, visit, self);
        }
      }
    }
  }
}

void choir__conv2d_cost(const choir__conv2d_t* conv,
                        const choir_record_t* record, choir_cost_t* out_cost) {
  choir__cost_bytes(record, out_cost);
  const int64_t group_channels = conv->channels / conv->groups;
  out_cost->flops = 2.0 * (double)conv->batch * (double)conv->filters *
                    (double)(conv->out[0] * conv->out[1]) *
                    (double)group_channels *
                    (double)(conv->kernel[0] * conv->kernel[1]);
}

// ---- Shape rules: x, W, b; x, W, dy ----

static choir_status_t conv2d_infer(const choir_record_t* record,
                                   choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir__conv2d_t conv;
  CHOIR_TRY(
      choir__conv2d_make(&srcs[0], &srcs[1], record->attrs, &conv, &dsts[0]));
  return choir__need_vector("b", &srcs[2], conv.filters);
}

static choir_status_t infer_grad(const choir_record_t* record,
                                 choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir__conv2d_t conv;
  choir_view_t y;
  CHOIR_TRY(choir__conv2d_make(&srcs[0], &srcs[1], record->attrs, &conv, &y));
  choir_view_set_contiguous(&y);
  CHOIR_TRY(choir__need_same_shape("dy", &srcs[2], "conv(x, W)", &y));
  return choir__conv2d_infer_grad(record, &srcs[0], &srcs[1], dsts);
}

choir_status_t choir__conv2d_infer_grad(const choir_record_t* record,
                                        const choir_view_t* x,
                                        const choir_view_t* w,
                                        choir_view_t* dsts) {
  if (record->dst_count > 1) {
    CHOIR_TRY(choir__infer_like(w, &dsts[0]));
    return choir__infer_shape(x->dtype, 1, w->shape, &dsts[1]);
  }
  CHOIR_TRY(choir__infer_shape(x->dtype, 4, x->shape, &dsts[0]));
  choir_view_set_channels_last(&dsts[0]);
  return NULL;
}

// ---- References ----

static void add_y(void* self, int64_t x_place, int64_t w_place,
                  int64_t y_place) {
  choir__dense_t* dense = self;
  dense->dsts[0][y_place] += dense->srcs[0][x_place] * dense->srcs[1][w_place];
}

static void add_dx(void* self, int64_t x_place, int64_t w_place,
                   int64_t y_place) {
  choir__dense_t* dense = self;
  dense->dsts[0][x_place] += dense->srcs[1][w_place] * dense->srcs[2][y_place];
}

static void add_dw(void* self, int64_t x_place, int64_t w_place,
                   int64_t y_place) {
  choir__dense_t* dense = self;
  dense->dsts[0][w_place] += dense->srcs[0][x_place] * dense->srcs[2][y_place];
}

// What is done with the bias, b or db, at element i of y or dy (NULL: nothing).
static void bias_y(choir__dense_t* dense, int64_t i, int64_t filter) {
  const choir_conv2d_attrs_t* attrs = dense->record->attrs;
  double* y = &dense->dsts[0][i];
  *y += dense->srcs[2][filter];
  if (attrs->activation == CHOIR_ACTIVATION_RELU && *y < 0) *y = 0;
}

static void bias_dw(choir__dense_t* dense, int64_t i, int64_t filter) {
  dense->dsts[1][filter] += dense->srcs[2][i];
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          uint32_t needed, choir__conv2d_visit_t add,
                          void (*bias)(choir__dense_t* dense, int64_t i,
                                       int64_t filter)) {
  const choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, needed, &dense));
  choir__conv2d_products(&conv, add, &dense);
  const int64_t image = conv.out[0] * conv.out[1];
  for (int64_t i = 0; bias && i < conv.batch * conv.filters * image; ++i)
    bias(&dense, i, i / image % conv.filters);
  return choir__dense_end(&dense, NULL);
}

// ---- Definitions ----

// S(x, W, b, y): the shapes of an op's sources.
#define CASES(S)                                                               \
  {S("1,1,1,1", "1,1,1,1", "1", "1,1,1,1"), NULL},                             \
      {S("2,1,5,5", "3,1,3,3", "3", "2,3,3,3"), "activation=relu"},            \
      {S("2,3,7,5", "4,3,3,3", "4", "2,4,7,5"), "padding=1,1"},                \
      {S("1,1,28,28", "4,1,5,5", "4", "1,4,24,24"), NULL},                     \
      {S("2,4,12,12", "5,4,5,5", "5", "2,5,8,8"), "activation=relu"},          \
      {S("2,3,8,9", "6,3,3,3", "6", "2,6,4,5"), "stride=2,2 padding=1,1"},     \
      {S("2,3,8,9", "6,3,3,2", "6", "2,6,4,8"), "stride=2,1 padding=1,0"},     \
      {S("1,3,9,7", "2,3,3,3", "2", "1,2,3,3"), "stride=3,2 activation=relu"}, \
      {S("2,4,6,6", "8,4,1,1", "8", "2,8,6,6"), NULL},                         \
      {S("2,4,7,7", "8,4,1,1", "8", "2,8,4,4"), "stride=2,2"},                 \
      {S("1,2,11,11", "3,2,3,3", "3", "1,3,7,7"),                              \
       "dilation=2,2 activation=relu"},                                        \
      {S("1,2,11,11", "3,2,3,3", "3", "1,3,11,11"),                            \
       "padding=2,3 dilation=2,3"},                                            \
      {S("2,4,6,5", "6,2,3,3", "6", "2,6,6,5"), "padding=1,1 groups=2"},       \
      {S("2,4,6,5", "4,1,3,3", "4", "2,4,6,5"),                                \
       "padding=1,1 groups=4 activation=relu"},                                \
      {S("1,6,5,5", "9,2,3,3", "9", "1,9,2,2"), "stride=2,2 groups=3"},        \
      {S("3,5,4,4", "7,5,4,4", "7", "3,7,1,1"), NULL},                         \
      {S("1,3,16,16", "8,3,7,7", "8", "1,8,8,8"),                              \
       "stride=2,2 padding=3,3 activation=relu"},                              \
      {S("2,16,6,6", "16,16,3,3", "16", "2,16,6,6"), "padding=1,1"},           \
      {S("1,8,3,17", "8,8,1,5", "8", "1,8,3,17"), "padding=0,2"},              \
      {S("1,8,17,3", "8,8,5,1", "8", "1,8,17,3"),                              \
       "padding=2,0 activation=relu"},                                         \
      {S("5,2,4,4", "3,2,2,2", "3", "5,3,2,2"), "stride=2,2"},                 \
      {S("1,1,2,2", "1,1,3,3", "1", "1,1,4,4"), "padding=2,2"},                \
      {S("0,3,5,5", "4,3,3,3", "4", "0,4,3,3"), "activation=relu"},            \
      {S("2,33,5,5", "17,33,3,3", "17", "2,17,5,5"), "padding=1,1"},           \
      {S("16,1,12,12", "20,1,5,5", "20", "16,20,8,8"), NULL},                  \
      {S("13,3,6,6", "4,3,3,3", "4", "13,4,6,6"),                              \
       "padding=1,1 activation=relu"},                                         \
      {S("16,5,8,8", "10,5,3,3", "10", "16,10,8,8"), "padding=1,1"},           \
      {S("31,2,7,9", "3,2,3,5", "3", "31,3,7,9"), "padding=1,2"},              \
      {S("16,4,5,5", "6,4,5,5", "6", "16,6,5,5"),                              \
       "padding=2,2 activation=relu"},                                         \
      {S("32,3,6,6", "5,3,3,3", "5", "32,5,4,4"), NULL},                       \
      {S("16,8,4,4", "16,8,1,1", "16", "16,16,4,4"), NULL},                    \
      {S("17,2,5,5", "3,2,3,3", "3", "17,3,2,2"),                              \
       "stride=2,2 activation=relu"},                                          \
      {S("16,5,8,7", "10,5,3,2", "10", "16,10,8,7"),                           \
       "pad_mode=same_upper activation=relu"},                                 \
      {S("16,5,8,7", "10,5,3,2", "10", "16,10,8,7"), "pad_mode=same_lower"},   \
      {S("2,3,9,8", "6,3,3,3", "6", "2,6,5,4"),                                \
       "stride=2,2 dilation=1,2 pad_mode=same_upper"},                         \
      {S("16,3,6,6", "4,3,3,3", "4", "16,4,7,7"),                              \
       "padding=2,0 padding_after=1,3 pad_mode=explicit"},                     \
      {S("16,4,6,6", "4,2,3,3", "4", "16,4,4,4"),                              \
       "padding=9,9 pad_mode=valid groups=2"},                                 \
  {                                                                            \
    S("16,5,8,7", "10,5,3,3", "10", "16,10,8,7"), "pad_mode=same_lower"        \
  }
#define FORWARD(x, w, b, y) x ";" w ";" b
#define BACKWARD(x, w, b, y) x ";" w ";" y
static const choir_op_case_t cases[] = {CASES(FORWARD), {NULL, NULL}};
// Two more, of which AVX2 makes the gradient of W in shares of rows, and some
// of which a reproducible CPU makes it by Winograd's algorithm.
static const choir_op_case_t grad_cases[] = {
    CASES(BACKWARD),
    {"16,20,19,21;5,20,3,3;16,5,19,21", "padding=1,1"},
    {"16,2,23,26;5,2,3,3;16,5,21,24", NULL},
    {"9,32,8,8;48,32,3,3;9,48,8,8", "padding=1,1"},
    {"3,64,9,7;32,64,3,3;3,32,7,5", NULL},
    {"1,32,4,4;32,32,3,3;1,32,4,4", "padding=1,1"},
    {"2,32,6,7;32,32,3,3;2,32,4,5", NULL},
    {"3,32,5,5;32,32,3,3;3,32,7,7", "padding=2,2"},
    {"5,32,3,8;32,32,3,3;5,32,3,6", "padding=1,0"},
    {"2,48,5,4;32,48,3,3;2,32,5,4", "pad_mode=same_upper"},
    {"4,32,4,4;32,32,3,3;4,32,4,4", "padding=1,1"},
    {"1,32,7,6;32,32,3,3;1,32,7,6", "padding=1,1"},
    {"1,32,9,8;32,32,3,3;1,32,7,6", NULL},
    {"3,48,4,5;32,48,3,3;3,32,4,5", "padding=1,1"},
    {"2,32,5,4;64,32,3,3;2,64,5,4", "padding=1,1"},
    {"7,32,4,4;32,32,3,3;7,32,6,4", "padding=2,1"},
    {"2,32,5,5;32,32,3,3;2,32,5,5", "pad_mode=same_lower"},
    {"1,64,4,6;64,64,3,3;1,64,4,6", "padding=1,1"},
    {"1,32,4,4;48,32,3,3;1,48,6,5",
     "padding=2,0 padding_after=2,3 pad_mode=explicit"},
    {NULL, NULL}};

static bool is_rectified(const void* attrs) {
  return ((const choir_conv2d_attrs_t*)attrs)->activation ==
         CHOIR_ACTIVATION_RELU;
}

static void conv2d_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), record->attrs);
  choir__conv2d_cost(&conv, record, out_cost);
}

#define DEFINE(ENUM, id, results, infer, needed, add, bias, ...)               \
  static choir_status_t id##_reference(const choir_record_t* record,           \
                                       choir_stream_t* stream) {               \
    return run(record, stream, needed, add, bias);                             \
  }                                                                            \
  CHOIR_OP_DEFINE_BY(ENUM, id, 3, 3, results, infer, id##_reference,           \
                     __VA_ARGS__, CHOIR_OP_ATTRS(id, fields, "a convolution"), \
                     .cost = conv2d_cost, .dtypes = CHOIR_DTYPES_FLOAT,        \
                     .tolerance = 2e-5)

DEFINE(CONV2D, conv2d, 1, conv2d_infer, CHOIR__ALL_SOURCES, add_y, bias_y,
       "activation(convolution of x with W + b); x (n, c, h, w)",
       .is_product = true, .is_rectified = is_rectified, .cases = cases);
DEFINE(CONV2D_GRAD_DATA, conv2d_grad_data, 1, infer_grad, ~CHOIR__SOURCE(0),
       add_dx, NULL, "x (its shape only), W, dy -> dx of a convolution",
       .is_product = true, .shapes_only = 1u << 0, .cases = grad_cases);
DEFINE(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, 2, infer_grad, ~CHOIR__SOURCE(1),
       add_dw, bias_dw, "x, W (its shape only), dy -> dW, db of a convolution",
       .is_product = true, .shapes_only = 1u << 1, .cases = grad_cases);
