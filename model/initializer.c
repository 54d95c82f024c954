// SPDX-License-Identifier: Apache-2.0
#include "model/initializer.h"

#include <math.h>

#include "tensor/ops.h"

// Numbers are drawn in the order of rows, by kernels for tensors that lie so;
// one that does not is a copy of one that does.
static choir_status_t draw(choir_tensor_t* tensor, choir_op_t op,
                           const choir_random_attrs_t* attrs) {
  choir_device_t* device = choir_tensor_device(tensor);
  choir_stream_t* stream = choir_device_stream(device);
  if (choir_view_is_contiguous(choir_tensor_view(tensor)))
    return choir_op_run(stream, op, &tensor, 1, attrs, false, &tensor);
  choir_tensor_t* rows = NULL;
  CHOIR_TRY(choir_tensor_create(device, choir_tensor_dtype(tensor),
                                choir_tensor_ndim(tensor),
                                choir_tensor_shape(tensor), &rows));
  choir_status_t status =
      choir_op_run(stream, op, &rows, 1, attrs, false, &rows);
  if (!status)
    status =
        choir_op_run(stream, CHOIR_OP_COPY, &rows, 1, NULL, false, &tensor);
  choir_tensor_release(rows);
  return status;
}

choir_status_t choir_initialize(choir_tensor_t* tensor,
                                const choir_initializer_t* initializer,
                                choir_random_key_t key) {
  const double fan_in = initializer->fan_in;
  const double fan_out = initializer->fan_out;
  const bool needs_both =
      initializer->kind == CHOIR_INITIALIZER_GLOROT_UNIFORM ||
      initializer->kind == CHOIR_INITIALIZER_GLOROT_NORMAL;
  const bool needs_in = needs_both ||
                        initializer->kind == CHOIR_INITIALIZER_HE_UNIFORM ||
                        initializer->kind == CHOIR_INITIALIZER_HE_NORMAL;
  if ((needs_in && !(fan_in > 0)) || (needs_both && !(fan_out > 0)))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "initialize: fan_in is %g and fan_out %g; both must be "
                       "above 0 for this initializer",
                       fan_in, fan_out);
  double low = initializer->a;
  double high = initializer->b;
  bool is_normal = false;
  switch (initializer->kind) {
    case CHOIR_INITIALIZER_CONSTANT: {
      choir_fill_attrs_t fill = {.value = initializer->a};
      return choir_op_run(choir_device_stream(choir_tensor_device(tensor)),
                          CHOIR_OP_FILL, &tensor, 1, &fill, false, &tensor);
    }
    case CHOIR_INITIALIZER_UNIFORM:
      break;
    case CHOIR_INITIALIZER_NORMAL:
      is_normal = true;
      break;
    case CHOIR_INITIALIZER_GLOROT_UNIFORM:
      high = sqrt(6.0 / (fan_in + fan_out));
      low = -high;
      break;
    case CHOIR_INITIALIZER_GLOROT_NORMAL:
      low = 0;
      high = sqrt(2.0 / (fan_in + fan_out));
      is_normal = true;
      break;
    case CHOIR_INITIALIZER_HE_UNIFORM:
      high = sqrt(6.0 / fan_in);
      low = -high;
      break;
    case CHOIR_INITIALIZER_HE_NORMAL:
      low = 0;
      high = sqrt(2.0 / fan_in);
      is_normal = true;
      break;
    case CHOIR_INITIALIZER_COUNT:
    default:
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "initialize: kind %d; one of 0 .. %d is needed",
                         (int)initializer->kind, CHOIR_INITIALIZER_COUNT - 1);
  }
  choir_random_attrs_t attrs = {.seed = (int64_t)key.seed,
                                .stream = key.stream,
                                .step = key.step,
                                .first_sample = 0,
                                .low = low,
                                .high = high,
                                .whole_tensor = true};
  return draw(tensor,
              is_normal ? CHOIR_OP_RANDOM_NORMAL : CHOIR_OP_RANDOM_UNIFORM,
              &attrs);
}
