// SPDX-License-Identifier: Apache-2.0
// A recurrent network step by step, for the forms that the op `recurrent` has
// not: other activations, clipping, peepholes, GRU's reset before its product.
#include "onnx/operators/onnx_recurrent_internal.h"

// Nodes that a step counts as.
enum { STEP_NODES = 8 };

// What does not change from step to step.
typedef struct steps_s {
  choir__onnx_call_t* c;
  const choir__onnx_recurrent_t* n;
  const choir__onnx_direction_t* d;
  choir_var_t* gates;  // (steps, batch, gates hidden): the inputs' part
  choir_var_t* r;      // (hidden, gates hidden)
  choir_var_t* rb;     // of GRU's last gate, where it is reset as well
  choir_var_t* mask;   // (steps, batch, 1), or NULL
  choir_var_t* zero;
  choir_var_t *h, *cell;
} steps_t;

// Gate k of (batch, gates hidden), or part k of a vector.
static choir_var_t* part(const steps_t* s, choir_var_t* x, int64_t k) {
  const choir_view_t* view = choir_var_view(x);
  const int64_t hidden = s->n->hidden;
  return view ? choir__onnx_slice(s->c, x, view->ndim - 1, k * hidden,
                                  (k + 1) * hidden)
              : x;
}

// Activation k of the direction, of a clipped x.
static choir_var_t* activated(const steps_t* s, int32_t k, choir_var_t* x) {
  const double most = s->n->clip;
  if (most > 0)
    x = choir_var_clip(s->c->scope, x,
                       &(choir_clip_attrs_t){.low = -most, .high = most});
  return choir__onnx_activate(s->c, &s->d->activations[k], x);
}

// x + peephole k . cell.
static choir_var_t* peeped(const steps_t* s, choir_var_t* x, int64_t k,
                           choir_var_t* cell) {
  choir__onnx_call_t* c = s->c;
  return s->d->p ? DO(add, x, DO(mul, part(s, s->d->p, k), cell)) : x;
}

static choir_var_t* one_minus(choir__onnx_call_t* c, choir_var_t* x) {
  return DO(scale, x, &(choir_scale_attrs_t){.factor = -1, .shift = 1});
}

// Gates in ONNX's order: i, o, f, c; peepholes i, o, f.
static choir_var_t* lstm_step(const steps_t* s, choir_var_t* x,
                              choir_var_t** cell) {
  choir__onnx_call_t* c = s->c;
  x = DO(add, x, DO(matmul, s->h, s->r, NULL));
  choir_var_t* i = activated(s, 0, peeped(s, part(s, x, 0), 0, s->cell));
  choir_var_t* f = s->n->is_coupled
                       ? one_minus(c, i)
                       : activated(s, 0, peeped(s, part(s, x, 2), 2, s->cell));
  choir_var_t* g = activated(s, 1, part(s, x, 3));
  *cell = DO(add, DO(mul, f, s->cell), DO(mul, i, g));
  choir_var_t* o = activated(s, 0, peeped(s, part(s, x, 1), 1, *cell));
  // The cell is not clipped: so ONNX Runtime has it.
  return DO(mul, o, choir__onnx_activate(c, &s->d->activations[2], *cell));
}

// Gates in ONNX's order: z, r, h.
static choir_var_t* gru_step(const steps_t* s, choir_var_t* x) {
  choir__onnx_call_t* c = s->c;
  const int64_t two = 2 * s->n->hidden, three = 3 * s->n->hidden;
  choir_var_t* rzr = choir__onnx_slice(c, s->r, 1, 0, two);
  choir_var_t* rh = choir__onnx_slice(c, s->r, 1, two, three);
  choir_var_t* zr =
      DO(add, choir__onnx_slice(c, x, 1, 0, two), DO(matmul, s->h, rzr, NULL));
  choir_var_t* z = activated(s, 0, part(s, zr, 0));
  choir_var_t* r = activated(s, 0, part(s, zr, 1));
  choir_var_t* reset;
  if (s->n->is_reset_last) {
    reset = DO(matmul, s->h, rh, NULL);
    if (s->rb) reset = DO(add, reset, s->rb);
    reset = DO(mul, r, reset);
  } else {
    reset = DO(matmul, DO(mul, r, s->h), rh, NULL);
  }
  choir_var_t* h = activated(s, 1, DO(add, part(s, x, 2), reset));
  return DO(add, DO(mul, one_minus(c, z), h), DO(mul, z, s->h));
}

// The step that takes x (batch, gates hidden); returns its y.
static choir_var_t* run_step(steps_t* s, choir_var_t* x, choir_var_t* mask) {
  choir__onnx_call_t* c = s->c;
  choir_var_t *h, *cell = s->cell;
  if (s->n->net == CHOIR__ONNX_LSTM)
    h = lstm_step(s, x, &cell);
  else if (s->n->net == CHOIR__ONNX_GRU)
    h = gru_step(s, x);
  else
    h = activated(s, 0, DO(add, x, DO(matmul, s->h, s->r, NULL)));
  choir_var_t* y = h;
  if (mask) {
    y = DO(where, mask, h, s->zero);
    h = DO(where, mask, h, s->h);
    if (cell) cell = DO(where, mask, cell, s->cell);
  }
  s->h = h;
  s->cell = cell;
  return y;
}

// (steps, batch, 1): whether a sample has the step.
static choir_var_t* make_mask(choir__onnx_call_t* c,
                              const choir__onnx_recurrent_t* n) {
  int32_t* places =
      choir_scope_alloc(c->scope, sizeof(*places) * (size_t)n->steps);
  if (!places) return choir_scope_fail(c->scope, NULL);
  for (int64_t t = 0; t < n->steps; ++t) places[t] = (int32_t)t;
  const int64_t column[] = {n->steps, 1, 1}, row[] = {1, n->batch, 1};
  return DO(less, choir__onnx_constant(c, CHOIR_DTYPE_I32, 3, column, places),
            choir__onnx_reshape(c, n->lengths, 3, row));
}

// The inputs' part of the gates, with all biases that are only added to it.
static choir_var_t* make_gates(steps_t* s) {
  choir__onnx_call_t* c = s->c;
  const choir__onnx_recurrent_t* n = s->n;
  choir_var_t* gates =
      DO(matmul, n->x, s->d->w, &(choir_matmul_attrs_t){.transpose_b = true});
  if (s->d->wb) {
    gates = DO(add, gates, s->d->wb);
    choir_var_t* rb = s->d->rb;
    if (n->net == CHOIR__ONNX_GRU && n->is_reset_last) {
      s->rb = part(s, rb, 2);
      rb = choir__onnx_join(
          c,
          (choir_var_t* const[]){choir__onnx_slice(c, rb, 0, 0, 2 * n->hidden),
                                 choir__onnx_zeros(c, n->dtype, 1, &n->hidden)},
          2, 0);
    }
    gates = DO(add, gates, rb);
  }
  const int64_t shape[] = {n->steps, n->batch, n->gates * n->hidden};
  return choir__onnx_reshape(c, gates, 3, shape);
}

// Row t of (steps, batch, columns) as (batch, columns).
static choir_var_t* row_of(choir__onnx_call_t* c, choir_var_t* x, int64_t t) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  const int64_t shape[] = {view->shape[1], view->shape[2]};
  return choir__onnx_reshape(c, choir__onnx_slice(c, x, 0, t, t + 1), 2, shape);
}

void choir__onnx_run_steps(choir__onnx_call_t* c,
                           const choir__onnx_recurrent_t* n,
                           choir__onnx_direction_t* d) {
  if (n->steps > CHOIR__ONNX_MAX_RUNS / STEP_NODES) {
    FAIL(UNIMPLEMENTED, "%lld steps of this form; at most %d are possible",
         (long long)n->steps, CHOIR__ONNX_MAX_RUNS / STEP_NODES);
    return;
  }
  if (!choir__onnx_charge(c, n->steps * STEP_NODES)) return;
  steps_t s = {.c = c, .n = n, .d = d, .h = d->start[0], .cell = d->start[1]};
  s.gates = make_gates(&s);
  s.r = choir__onnx_transpose(c, d->r, (const int64_t[]){1, 0});
  if (n->lengths) s.mask = make_mask(c, n);
  if (n->lengths) s.zero = choir__onnx_scalar(c, n->dtype, 0);
  choir_var_t** ys =
      choir_scope_alloc(c->scope, sizeof(void*) * (size_t)(n->steps + 1));
  for (int64_t i = 0; ys && CALL_IS_OK && i < n->steps; ++i) {
    const int64_t t = d->is_reverse ? n->steps - 1 - i : i;
    ys[t] = run_step(&s, row_of(c, s.gates, t),
                     s.mask ? row_of(c, s.mask, t) : NULL);
  }
  if (!CALL_IS_OK) return;
  d->y = choir__onnx_stack(c, ys, n->steps, 0);
  d->last[0] = s.h;
  d->last[1] = s.cell;
}
