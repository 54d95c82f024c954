// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "autograd/grad_rule.h"

// The gradients of elementwise ops are expressions of ops, written in
// tensor/elementwise.def. A rule runs the ops of the expressions whose source
// wants a gradient, operands first; the last one writes the gradient.

enum { MAX_SRCS = 3, MAX_TERMS = 8 };

// Where the attributes of an op in an expression are from. OWN is the op whose
// gradient it is.
typedef enum attrs_e { NO_ATTRS, NUMBERS, OWN_ATTRS, OWN_ATTR_0 } attrs_t;

// What an expression stands on, beside ops.
enum { SOURCE_A = CHOIR_OP_COUNT, SOURCE_B, RESULT, RESULT_GRADIENT };

typedef struct term_s {
  int32_t op;  // choir_op_t, or one of these
  attrs_t attrs;
  double number[2];
  const struct term_s* srcs[MAX_SRCS];  // NULL: no more
} term_t;

#define TERM(op, attrs, a, b, ...) \
  (&(const term_t){op, attrs, {a, b}, {__VA_ARGS__}})
#define A TERM(SOURCE_A, NO_ATTRS, 0, 0, NULL)
#define B TERM(SOURCE_B, NO_ATTRS, 0, 0, NULL)
#define X A
#define Y TERM(RESULT, NO_ATTRS, 0, 0, NULL)
#define DY TERM(RESULT_GRADIENT, NO_ATTRS, 0, 0, NULL)
// An op of terms: without attributes, or with their defaults; with two numbers;
// with the first attributes of the op whose gradient it is.
#define DO(OP, ...) TERM(CHOIR_OP_##OP, NO_ATTRS, 0, 0, __VA_ARGS__)
#define WITH(OP, a, b, ...) TERM(CHOIR_OP_##OP, NUMBERS, a, b, __VA_ARGS__)
#define DO_ATTRS(OP, ...) TERM(CHOIR_OP_##OP, OWN_ATTRS, 0, 0, __VA_ARGS__)
// factor * term + shift; attribute i times the term.
#define LINE(term, factor, shift) WITH(SCALE, factor, shift, term)
#define TIMES_ATTR(term, i) TERM(CHOIR_OP_SCALE, OWN_ATTR_0 + i, 0, 0, term)
// (1 - x) (1 + x), which keeps its digits near x = 1.
#define ONE_MINUS_SQUARE(x) DO(MUL, LINE(x, -1, 1), LINE(x, 1, 1))

// The results of a rule's ops: a term that comes twice is computed once.
typedef struct made_s {
  int32_t count;
  const term_t* terms[MAX_TERMS];
  choir_tensor_t* tensors[MAX_TERMS];
} made_t;

// A call of a term's op.
typedef struct call_s {
  choir_tensor_t* srcs[MAX_SRCS];
  int32_t src_count;
  double number[2];
  const void* attrs;
} call_t;

static bool same(const term_t* a, const term_t* b) {
  if (a == b || !a || !b) return a == b;
  bool is_same = a->op == b->op && a->attrs == b->attrs &&
                 a->number[0] == b->number[0] && a->number[1] == b->number[1];
  for (int32_t i = 0; is_same && i < MAX_SRCS; ++i)
    is_same = same(a->srcs[i], b->srcs[i]);
  return is_same;
}

static choir_status_t value(choir_grad_t* grad, made_t* made,
                            const term_t* term, choir_tensor_t** out_tensor);

static choir_status_t prepare(choir_grad_t* grad, made_t* made,
                              const term_t* term, call_t* out_call) {
  *out_call = (call_t){.number = {term->number[0], term->number[1]}};
  if (term->attrs == OWN_ATTRS) {
    out_call->attrs = grad->attrs;
  } else if (term->attrs != NO_ATTRS) {
    if (term->attrs != NUMBERS)
      out_call->number[0] =
          ((const double*)grad->attrs)[term->attrs - OWN_ATTR_0];
    out_call->attrs = out_call->number;
  }
  int32_t* const count = &out_call->src_count;
  for (; *count < MAX_SRCS && term->srcs[*count]; ++*count)
    CHOIR_TRY(value(grad, made, term->srcs[*count], &out_call->srcs[*count]));
  return NULL;
}

static choir_status_t value(choir_grad_t* grad, made_t* made,
                            const term_t* term, choir_tensor_t** out_tensor) {
  int32_t i = 0;
  switch (term->op) {
    case SOURCE_A:
      *out_tensor = grad->srcs[0];
      return NULL;
    case SOURCE_B:
      *out_tensor = grad->srcs[1];
      return NULL;
    case RESULT:
      *out_tensor = grad->dsts[0];
      return NULL;
    case RESULT_GRADIENT:
      *out_tensor = grad->dy;
      return NULL;
    default:
      break;
  }
  while (i < made->count && !same(made->terms[i], term)) ++i;
  if (i == made->count) {
    call_t call;
    CHOIR_TRY(prepare(grad, made, term, &call));
    if (made->count == MAX_TERMS)
      return CHOIR_ERROR(INTERNAL, "%s: its gradient needs more than %d ops",
                         grad->label, (int)MAX_TERMS);
    i = made->count++;
    made->terms[i] = term;
    CHOIR_TRY(choir_grad_temp(grad, (choir_op_t)term->op, call.srcs,
                              call.src_count, call.attrs, &made->tensors[i]));
  }
  *out_tensor = made->tensors[i];
  return NULL;
}

static choir_status_t run(choir_grad_t* grad, const term_t* const* gradients,
                          int32_t count) {
  made_t made = {.count = 0};
  for (int32_t i = 0; i < count; ++i) {
    call_t call;
    if (!choir_grad_wants(grad, i)) continue;
    if (gradients[i]->op == RESULT_GRADIENT) {
      CHOIR_TRY(choir_grad_pass(grad, i, grad->dy));
      continue;
    }
    CHOIR_TRY(prepare(grad, &made, gradients[i], &call));
    CHOIR_TRY(choir_grad_emit(grad, i, (choir_op_t)gradients[i]->op, call.srcs,
                              call.src_count, call.attrs));
  }
  return NULL;
}

#define CHOIR__GRADIENT(name, ...)                                           \
  static const term_t* const name##_gradients[] = {__VA_ARGS__};             \
  choir_status_t choir__grad_##name(choir_grad_t* grad) {                    \
    return run(grad, name##_gradients,                                       \
               (int32_t)(sizeof(name##_gradients) / sizeof(const term_t*))); \
  }
#include "tensor/elementwise.def"

choir_status_t choir__grad_relu(choir_grad_t* grad) {
  if (grad->dy_is_masked) return choir_grad_pass(grad, 0, grad->dy);
  return choir_grad_emit2(grad, 0, CHOIR_OP_RELU_GRAD, grad->dsts[0], grad->dy,
                          NULL);
}
