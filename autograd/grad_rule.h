// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_AUTOGRAD_GRAD_RULE_H_
#define CHOIR_AUTOGRAD_GRAD_RULE_H_

#include "autograd/scope.h"
#include "tensor/op_def.h"

// For writers of gradient rules (autograd/rules/<family>.c). Not installed. A
// gradient that is one op needs none (CHOIR_OP_GRADIENT, tensor/op_def.h).
//
// A rule `choir__grad_<op>` gets one record of the tape and the gradient of
// its first result, and writes the gradients of the sources that want one by
// running ops into destinations that the scope hands out:
//
//   choir_status_t choir__grad_mul(choir_grad_t* grad) {
//     CHOIR_TRY(choir_grad_emit2(grad, 0, CHOIR_OP_MUL, grad->dy,
//                                grad->srcs[1], NULL));
//     return choir_grad_emit2(grad, 1, CHOIR_OP_MUL, grad->dy,
//                             grad->srcs[0], NULL);
//   }
//
// The helpers do nothing for a source that wants no gradient, add when the
// source has one already, sum over broadcast dimensions, and write a
// parameter's gradient where the parameter says.

#ifdef __cplusplus
extern "C" {
#endif

typedef struct choir_grad_s {
  choir_scope_t* scope;
  const void* attrs;  // the op's struct
  int32_t src_count;
  choir_tensor_t* srcs[CHOIR_MAX_OPERANDS];
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS];
  choir_tensor_t* dy;                         // gradient of dsts[0]
  choir_tensor_t* scale;                      // see choir_grad_set_scale
  bool dy_is_masked;                          // see choir_grad_note_masked
  choir_var_t* src_vars[CHOIR_MAX_OPERANDS];  // the scope's
  const char* label;                          // the op's
} choir_grad_t;

typedef choir_status_t (*choir_grad_rule_t)(choir_grad_t* grad);

bool choir_grad_wants(const choir_grad_t* grad, int32_t src);

// Gradient of source `src` = result 0 of the op (summed down to the source's
// shape when that is smaller).
choir_status_t choir_grad_emit(choir_grad_t* grad, int32_t src, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs) CHOIR_NODISCARD;
choir_status_t choir_grad_emit1(choir_grad_t* grad, int32_t src, choir_op_t op,
                                choir_tensor_t* a, const void* attrs)
    CHOIR_NODISCARD;
choir_status_t choir_grad_emit2(choir_grad_t* grad, int32_t src, choir_op_t op,
                                choir_tensor_t* a, choir_tensor_t* b,
                                const void* attrs) CHOIR_NODISCARD;
// Gradients of sources first .. first+count-1 = the op's results 0 .. count-1;
// a negative entry of `sources` drops that result.
choir_status_t choir_grad_emit_many(choir_grad_t* grad, const int32_t* sources,
                                    int32_t count, choir_op_t op,
                                    choir_tensor_t* const* srcs,
                                    int32_t src_count, const void* attrs)
    CHOIR_NODISCARD;
// The same of an op whose results are sums over rows, the first dimension of
// the sources of the call that `rows` names (bit i: srcs[i]), which all go over
// the samples. rows 0: they are none.
choir_status_t choir_grad_emit_rows(choir_grad_t* grad, const int32_t* sources,
                                    int32_t count, choir_op_t op,
                                    choir_tensor_t* const* srcs,
                                    int32_t src_count, uint32_t rows,
                                    const void* attrs) CHOIR_NODISCARD;
// Gradient of source `src` = `tensor` as it is.
choir_status_t choir_grad_pass(choir_grad_t* grad, int32_t src,
                               choir_tensor_t* tensor) CHOIR_NODISCARD;
// An intermediate of the rule: result 0 of an op, owned by the scope.
choir_status_t choir_grad_temp(choir_grad_t* grad, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs, choir_tensor_t** out_tensor)
    CHOIR_NODISCARD;
// The same with all results; out_tensors has CHOIR_OP_MAX_RESULTS entries.
choir_status_t choir_grad_temp_all(choir_grad_t* grad, choir_op_t op,
                                   choir_tensor_t* const* srcs,
                                   int32_t src_count, const void* attrs,
                                   choir_tensor_t** out_tensors)
    CHOIR_NODISCARD;

// Whether source `src` is the result of a ReLU, of its own or of an op that
// ends with one.
bool choir_grad_is_rectified(const choir_grad_t* grad, int32_t src);
// Tells the rule of the op that made source `src` that this contribution is 0
// wherever the source is not above 0, so that a ReLU there has nothing left to
// do. When all contributions are, that rule sees dy_is_masked.
void choir_grad_note_masked(choir_grad_t* grad, int32_t src);

// This contribution to the gradient of source `src`, its only one, is the
// gradient times `scale` (f32, one element, a choir_grad_temp's). The rule of
// the op that made the source sees it as grad->scale. Where that op is a
// product, whose gradients scale as dy does, the scope passes it on to the
// product's sources, which must have no other use either.
void choir_grad_set_scale(choir_grad_t* grad, int32_t src,
                          choir_tensor_t* scale);

// For a rule that does the work of the op in front of it as well: that op as
// its own rule would see it, but for dy. False when source `src` is a parameter
// or an input, or has another use: then its whole gradient is needed. A rule
// that writes the gradients of out_producer's sources must not write that of
// `src`; choir_scope_set_label tells the profile whose work it is.
bool choir_grad_only_producer(const choir_grad_t* grad, int32_t src,
                              choir_op_t* out_op, choir_grad_t* out_producer);
// Whether choir_grad_emit_many with the same arguments would run a kernel of
// the device's own, or nothing at all.
bool choir_grad_has_kernel(const choir_grad_t* grad, const int32_t* sources,
                           int32_t count, choir_op_t op,
                           choir_tensor_t* const* srcs, int32_t src_count,
                           const void* attrs);

// The rule of an op; NULL for NO_GRAD and INTERNAL ones.
choir_grad_rule_t choir__grad_rule(choir_op_t op);
// Runs the rule of an op that has one; where the op and the one in front of it
// are a fusion with gradients of its own (tensor/fusion_def.h), those, and then
// the source between them gets none.
choir_status_t choir__grad_run(choir_op_t op, choir_grad_t* grad)
    CHOIR_NODISCARD;

// One prototype for each op with GRAD, so that a missing rule fails to link
// and names the op.
#define CHOIR_GRAD_DECLARE_GRAD(name) \
  choir_status_t choir__grad_##name(choir_grad_t* grad);
#define CHOIR_GRAD_DECLARE_OP_GRAD(name)
#define CHOIR_GRAD_DECLARE_NO_GRAD(name)
#define CHOIR_GRAD_DECLARE_INTERNAL(name)
#define CHOIR_GRAD_DECLARE_(ENUM, name, n, attrs, grad) \
  CHOIR_GRAD_DECLARE_##grad(name)
CHOIR_OP_LIST(CHOIR_GRAD_DECLARE_)
#undef CHOIR_GRAD_DECLARE_

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_AUTOGRAD_GRAD_RULE_H_
