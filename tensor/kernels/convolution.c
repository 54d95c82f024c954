// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/convolution.h"

#include "tensor/ops/conv2d.h"

choir__conv_t choir__conv_of(const choir_record_t* record,
                             choir__conv_kind_t kind) {
  choir__conv_t conv = {.record = record, .attrs = record->attrs, .kind = kind};
  switch (kind) {
    case CHOIR__CONV_FORWARD:
      conv.x = choir_record_src(record, 0);
      conv.w = choir_record_src(record, 1);
      conv.b = choir_record_src(record, 2);
      conv.y = choir_record_dst(record, 0);
      break;
    case CHOIR__CONV_GRAD_DATA:
      conv.x = choir_record_dst(record, 0);
      conv.w = choir_record_src(record, 1);
      conv.y = choir_record_src(record, 2);
      break;
    case CHOIR__CONV_GRAD_WEIGHT:
      conv.x = choir_record_src(record, 0);
      conv.w = choir_record_dst(record, 0);
      conv.b = choir_record_dst(record, 1);
      conv.y = choir_record_src(record, 2);
      break;
  }
  const choir__conv2d_t sizes = choir__conv2d_of(conv.x, conv.w, conv.attrs);
  for (int32_t k = 0; k < 2; ++k) {
    conv.before[k] = sizes.padding[k];
    conv.after[k] = sizes.after[k];
  }
  return conv;
}

bool choir__elements_are_distinct(const choir_view_t* view) {
  for (int32_t k = 0; k < view->ndim; k++)
    if (view->shape[k] > 1 && view->strides[k] < 1) return false;
  return choir_view_count(view) > 0;
}
