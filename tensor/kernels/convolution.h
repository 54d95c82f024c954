// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CONVOLUTION_H_
#define CHOIR_TENSOR_KERNELS_CONVOLUTION_H_

#include "tensor/op_def.h"

// A record of conv2d or of one of its gradients, as the libraries' kernels see
// it.
typedef enum choir__conv_kind_e {
  CHOIR__CONV_FORWARD,
  CHOIR__CONV_GRAD_DATA,
  CHOIR__CONV_GRAD_WEIGHT
} choir__conv_kind_t;

typedef struct choir__conv_s {
  const choir_record_t* record;
  const choir_conv2d_attrs_t* attrs;
  choir__conv_kind_t kind;
  const choir_view_t* x;  // or dx
  const choir_view_t* w;  // or dW
  const choir_view_t* b;  // or db; NULL
  const choir_view_t* y;  // or dy
  int64_t before[2];      // padding above and left
  int64_t after[2];       // padding below and right
} choir__conv_t;

choir__conv_t choir__conv_of(const choir_record_t* record,
                             choir__conv_kind_t kind);

// Elements that exist and repeat none.
bool choir__elements_are_distinct(const choir_view_t* view);

#endif  // CHOIR_TENSOR_KERNELS_CONVOLUTION_H_
