// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_shared.h"

static const char* const activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

// Large enough for every image, small enough that no sum of them overflows.
#define LARGEST (1 << 30)

const choir_field_t choir__conv2d_fields[] = {
    CHOIR_FIELD_INTS(choir_conv2d_attrs_t, stride, 2, 1, 1, LARGEST,
                     "step of the window, height and width"),
    CHOIR_FIELD_INTS(choir_conv2d_attrs_t, padding, 2, 0, 0, LARGEST,
                     "zeros on each side, height and width"),
    CHOIR_FIELD_INTS(choir_conv2d_attrs_t, padding_after, 2, 0, 0, LARGEST,
                     "zeros below and right, where pad_mode is explicit"),
    CHOIR_FIELD_ENUM(choir_conv2d_attrs_t, pad_mode, choir__window_pad_names, 0,
                     "what decides on padding"),
    CHOIR_FIELD_INTS(choir_conv2d_attrs_t, dilation, 2, 1, 1, LARGEST,
                     "step inside the window, height and width"),
    CHOIR_FIELD_INT(choir_conv2d_attrs_t, groups, 1, 1, LARGEST,
                    "parts of channels and filters that see only each other"),
    CHOIR_FIELD_ENUM(choir_conv2d_attrs_t, activation, activation_names, 0,
                     "applied to the result; gradients do not look at it"),
};
_Static_assert(sizeof choir__conv2d_fields / sizeof choir__conv2d_fields[0] ==
                   CHOIR__CONV2D_FIELD_COUNT,
               "CHOIR__CONV2D_FIELD_COUNT counts choir__conv2d_fields");

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
static choir_status_t check_sizes(const char* op, const choir_view_t* x,
                                  const choir_view_t* w) {
  for (int32_t i = 2; i < 4; ++i)
    if (w->shape[i] < 1 || w->shape[i] > LARGEST || x->shape[i] > LARGEST)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: kernel is %lld x %lld, image %lld x %lld; needs "
                         "sizes up to %d, and from 1 for the kernel",
                         op, (long long)w->shape[2], (long long)w->shape[3],
                         (long long)x->shape[2], (long long)x->shape[3],
                         LARGEST);
  return NULL;
}

// "conv2d: ...", or OK when kernel and padded image fit in each direction.
static choir_status_t check_window(const char* op,
                                   const choir__conv2d_t* conv) {
  int64_t reach[2], padded[2];
  bool fits = true;
  for (int32_t i = 0; i < 2; ++i) {
    reach[i] = (conv->kernel[i] - 1) * conv->dilation[i] + 1;
    padded[i] = conv->size[i] + conv->padding[i] + conv->after[i];
    if (reach[i] > padded[i]) fits = false;
  }
  if (fits) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: kernel covers %lld x %lld; needs to fit the padded "
                     "image of %lld x %lld",
                     op, (long long)reach[0], (long long)reach[1],
                     (long long)padded[0], (long long)padded[1]);
}

choir_status_t choir__conv2d_make(const char* op, const choir_view_t* x,
                                  const choir_view_t* w,
                                  const choir_conv2d_attrs_t* attrs,
                                  choir__conv2d_t* out_conv) {
  CHOIR_TRY(choir__need_ndim(op, "x", x, 4));
  CHOIR_TRY(choir__need_ndim(op, "W", w, 4));
  long long groups = attrs->groups;
  if (x->shape[1] % groups != 0 || x->shape[1] / groups != w->shape[1])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: x has %lld channels in %lld groups; needs %lld in "
                       "each group, as W has",
                       op, (long long)x->shape[1], groups,
                       (long long)w->shape[1]);
  if (w->shape[0] % groups != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: W has %lld filters; needs a multiple of the %lld "
                       "groups",
                       op, (long long)w->shape[0], groups);
  CHOIR_TRY(check_sizes(op, x, w));
  *out_conv = choir__conv2d_of(x, w, attrs);
  return check_window(op, out_conv);
}

choir_status_t choir__conv2d_check_dy(const char* op,
                                      const choir__conv2d_t* conv,
                                      const choir_view_t* dy) {
  int64_t shape[] = {conv->batch, conv->filters, conv->out[0], conv->out[1]};
  choir_view_t y;
  CHOIR_TRY(choir__infer_shape(op, dy->dtype, 4, shape, &y));
  return choir__need_same_shape(op, "dy", dy, "conv(x, W)", &y);
}

// All (kernel row, kernel column) of one place of y that lie on the image.
typedef struct window_s {
  const choir__conv2d_t* conv;
  int64_t x_channel;  // place in x of the channel's first element
  int64_t w_channel;  // place in W likewise
  int64_t y_place;
  int64_t top, left;  // of the window, in the image; negative in the padding
} window_t;

static void visit_window(const window_t* window,
                         void (*visit)(void* self, int64_t x_place,
                                       int64_t w_place, int64_t y_place),
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
                            void (*visit)(void* self, int64_t x_place,
                                          int64_t w_place, int64_t y_place),
                            void* self) {
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

choir_conv2d_attrs_t choir__conv2d_attrs_of(
    const choir_conv_transpose2d_attrs_t* attrs) {
  choir_conv2d_attrs_t conv = {.groups = attrs->groups};
  for (int32_t k = 0; k < 2; ++k) {
    conv.stride[k] = attrs->stride[k];
    conv.padding[k] = attrs->padding[k];
    conv.dilation[k] = attrs->dilation[k];
  }
  return conv;
}

void choir__conv_transpose2d_inside(const choir_record_t* record,
                                    choir__conv2d_inside_t* out_inside) {
  out_inside->attrs = choir__conv2d_attrs_of(record->attrs);
  out_inside->operands[0] = *choir_record_dst(record, 0);
  out_inside->operands[1] = *choir_record_src(record, 1);
  out_inside->operands[2] = *choir_record_src(record, 0);
  out_inside->operands[3] = *choir_record_dst(record, 0);
  out_inside->record = *record;
  out_inside->record.operation = choir__operation(CHOIR_OP_CONV2D_GRAD_DATA);
  out_inside->record.operands = out_inside->operands;
  out_inside->record.src_count = 3;
  out_inside->record.attrs = &out_inside->attrs;
  out_inside->record.attrs_bytes = sizeof(out_inside->attrs);
}

choir_status_t choir__conv_transpose2d_run(const choir_record_t* record,
                                           choir_stream_t* stream) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return choir__run_inside(CHOIR_OP_CONV2D_GRAD_DATA, &inside.record, stream);
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

const choir_op_case_t choir__conv2d_cases[] = {
    {"1,1,1,1;1,1,1,1;1", NULL},
    {"2,1,5,5;3,1,3,3;3", "activation=relu"},
    {"2,3,7,5;4,3,3,3;4", "padding=1,1"},
    {"1,1,28,28;4,1,5,5;4", NULL},
    {"2,4,12,12;5,4,5,5;5", "activation=relu"},
    {"2,3,8,9;6,3,3,3;6", "stride=2,2 padding=1,1"},
    {"2,3,8,9;6,3,3,2;6", "stride=2,1 padding=1,0"},
    {"1,3,9,7;2,3,3,3;2", "stride=3,2 activation=relu"},
    {"2,4,6,6;8,4,1,1;8", NULL},
    {"2,4,7,7;8,4,1,1;8", "stride=2,2"},
    {"1,2,11,11;3,2,3,3;3", "dilation=2,2 activation=relu"},
    {"1,2,11,11;3,2,3,3;3", "padding=2,3 dilation=2,3"},
    {"2,4,6,5;6,2,3,3;6", "padding=1,1 groups=2"},
    {"2,4,6,5;4,1,3,3;4", "padding=1,1 groups=4 activation=relu"},
    {"1,6,5,5;9,2,3,3;9", "stride=2,2 groups=3"},
    {"3,5,4,4;7,5,4,4;7", NULL},
    {"1,3,16,16;8,3,7,7;8", "stride=2,2 padding=3,3 activation=relu"},
    {"2,16,6,6;16,16,3,3;16", "padding=1,1"},
    {"1,8,3,17;8,8,1,5;8", "padding=0,2"},
    {"1,8,17,3;8,8,5,1;8", "padding=2,0 activation=relu"},
    {"5,2,4,4;3,2,2,2;3", "stride=2,2"},
    {"1,1,2,2;1,1,3,3;1", "padding=2,2"},
    {"0,3,5,5;4,3,3,3;4", "activation=relu"},
    {"2,33,5,5;17,33,3,3;17", "padding=1,1"},
    {"16,1,12,12;20,1,5,5;20", NULL},
    {"13,3,6,6;4,3,3,3;4", "padding=1,1 activation=relu"},
    {"16,5,8,8;10,5,3,3;10", "padding=1,1"},
    {"31,2,7,9;3,2,3,5;3", "padding=1,2"},
    {"16,4,5,5;6,4,5,5;6", "padding=2,2 activation=relu"},
    {"32,3,6,6;5,3,3,3;5", NULL},
    {"16,8,4,4;16,8,1,1;16", NULL},
    {"17,2,5,5;3,2,3,3;3", "stride=2,2 activation=relu"},
    {"16,5,8,7;10,5,3,2;10", "pad_mode=same_upper activation=relu"},
    {"16,5,8,7;10,5,3,2;10", "pad_mode=same_lower"},
    {"2,3,9,8;6,3,3,3;6", "stride=2,2 dilation=1,2 pad_mode=same_upper"},
    {"16,3,6,6;4,3,3,3;4", "padding=2,0 padding_after=1,3 pad_mode=explicit"},
    {"16,4,6,6;4,2,3,3;4", "padding=9,9 pad_mode=valid groups=2"},
    {NULL, NULL}};

const choir_op_case_t choir__conv2d_grad_cases[] = {
    {"1,1,1,1;1,1,1,1;1,1,1,1", NULL},
    {"2,1,5,5;3,1,3,3;2,3,3,3", NULL},
    {"2,3,7,5;4,3,3,3;2,4,7,5", "padding=1,1"},
    {"1,1,28,28;4,1,5,5;1,4,24,24", NULL},
    {"2,4,12,12;5,4,5,5;2,5,8,8", NULL},
    {"2,3,8,9;6,3,3,3;2,6,4,5", "stride=2,2 padding=1,1"},
    {"2,3,8,9;6,3,3,2;2,6,4,8", "stride=2,1 padding=1,0"},
    {"1,3,9,7;2,3,3,3;1,2,3,3", "stride=3,2"},
    {"2,4,6,6;8,4,1,1;2,8,6,6", NULL},
    {"2,4,7,7;8,4,1,1;2,8,4,4", "stride=2,2"},
    {"1,2,11,11;3,2,3,3;1,3,7,7", "dilation=2,2"},
    {"1,2,11,11;3,2,3,3;1,3,11,11", "padding=2,3 dilation=2,3"},
    {"2,4,6,5;6,2,3,3;2,6,6,5", "padding=1,1 groups=2"},
    {"2,4,6,5;4,1,3,3;2,4,6,5", "padding=1,1 groups=4"},
    {"1,6,5,5;9,2,3,3;1,9,2,2", "stride=2,2 groups=3"},
    {"3,5,4,4;7,5,4,4;3,7,1,1", NULL},
    {"1,3,16,16;8,3,7,7;1,8,8,8", "stride=2,2 padding=3,3"},
    {"2,16,6,6;16,16,3,3;2,16,6,6", "padding=1,1"},
    {"1,8,3,17;8,8,1,5;1,8,3,17", "padding=0,2"},
    {"1,8,17,3;8,8,5,1;1,8,17,3", "padding=2,0"},
    {"5,2,4,4;3,2,2,2;5,3,2,2", "stride=2,2"},
    {"1,1,2,2;1,1,3,3;1,1,4,4", "padding=2,2"},
    {"0,3,5,5;4,3,3,3;0,4,3,3", NULL},
    {"2,33,5,5;17,33,3,3;2,17,5,5", "padding=1,1"},
    {"16,1,12,12;20,1,5,5;16,20,8,8", NULL},
    {"13,3,6,6;4,3,3,3;13,4,6,6", "padding=1,1"},
    {"16,5,8,8;10,5,3,3;16,10,8,8", "padding=1,1"},
    {"31,2,7,9;3,2,3,5;31,3,7,9", "padding=1,2"},
    {"16,4,5,5;6,4,5,5;16,6,5,5", "padding=2,2"},
    {"32,3,6,6;5,3,3,3;32,5,4,4", NULL},
    {"16,8,4,4;16,8,1,1;16,16,4,4", NULL},
    {"17,2,5,5;3,2,3,3;17,3,2,2", "stride=2,2"},
    {"16,5,8,7;10,5,3,2;16,10,8,7", "pad_mode=same_upper"},
    {"16,5,8,7;10,5,3,3;16,10,8,7", "pad_mode=same_lower"},
    {"2,3,9,8;6,3,3,3;2,6,5,4", "stride=2,2 dilation=1,2 pad_mode=same_upper"},
    {"16,3,6,6;4,3,3,3;16,4,7,7",
     "padding=2,0 padding_after=1,3 pad_mode=explicit"},
    {"16,4,6,6;4,2,3,3;16,4,4,4", "padding=9,9 pad_mode=valid groups=2"},
    {"16,20,19,21;5,20,3,3;16,5,19,21", "padding=1,1"},
    {"16,2,23,26;5,2,3,3;16,5,21,24", NULL},
    {NULL, NULL}};
