// SPDX-License-Identifier: Apache-2.0
// Values that are handed on as they are: Identity, and optional ones, of which
// an empty one is a value that is no tensor and no sequence.
#include "onnx/operators/onnx_sequences_internal.h"

void choir__onnx_op_identity(choir__onnx_call_t* c) {
  if (c->in_count > 0 && c->out_count > 0) c->outputs[0] = *c->inputs[0];
}

void choir__onnx_op_optional(choir__onnx_call_t* c) {
  if (c->in_count > 0) choir__onnx_give(c, 0, *c->inputs[0]);
}

void choir__onnx_op_optional_has_element(choir__onnx_call_t* c) {
  OUT_AS(0, choir__onnx_scalar(c, CHOIR_DTYPE_BOOL, HAS(0)), BOOL);
}

void choir__onnx_op_optional_get_element(choir__onnx_call_t* c) {
  if (HAS(0))
    choir__onnx_give(c, 0, *c->inputs[0]);
  else
    FAIL(INVALID_ARGUMENT, "the optional is empty; needs an element");
}
