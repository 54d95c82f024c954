// SPDX-License-Identifier: Apache-2.0
// RNN, LSTM and GRU: what a node has, and the plain forms by the op
// `recurrent`.
#include <string.h>

#include "onnx/operators/onnx_recurrent_internal.h"

// Fails unless input i, if there is one, has this shape; -1: any.
static bool check_shape(choir__onnx_call_t* c, int32_t i, const char* name,
                        int32_t ndim, const int64_t* shape) {
  const choir_view_t* view = VIEW(i);
  if (!view) return CALL_IS_OK;
  bool fits = view->ndim == ndim;
  for (int32_t k = 0; fits && k < ndim; ++k)
    fits = shape[k] < 0 || view->shape[k] == shape[k];
  if (fits) return true;
  char text[160];
  FAIL(INVALID_ARGUMENT, "%s is %s; needs %d dimensions that fit to X and R",
       name, choir_view_print(view, text, sizeof text), ndim);
  return false;
}

static bool read_sizes(choir__onnx_call_t* c, choir__onnx_recurrent_t* n) {
  const choir_view_t *x = VIEW(0), *w = VIEW(1), *r = VIEW(2);
  if (!x || !w || !r || x->ndim != 3 || w->ndim != 3 || r->ndim != 3 ||
      !choir_dtype_is_float(x->dtype)) {
    if (CALL_IS_OK)
      FAIL(INVALID_ARGUMENT,
           "needs X, W and R of floating-point numbers in 3 dimensions");
    return false;
  }
  static const int64_t gates[] = {
      [CHOIR__ONNX_RNN] = 1, [CHOIR__ONNX_LSTM] = 4, [CHOIR__ONNX_GRU] = 3};
  const char* direction = choir__onnx_string(c, "direction", "forward");
  n->is_reverse = strcmp(direction, "reverse") == 0;
  n->directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
  n->batch_first = choir__onnx_int(c, "layout", 0) != 0;
  n->gates = gates[n->net];
  n->steps = x->shape[n->batch_first];
  n->batch = x->shape[!n->batch_first];
  n->hidden = r->shape[2];
  n->dtype = x->dtype;
  int64_t columns;
  if (__builtin_mul_overflow(2 * n->gates, n->hidden, &columns)) columns = -2;
  const int64_t all = n->directions;
  const int64_t w_shape[] = {all, columns / 2, x->shape[2]};
  const int64_t r_shape[] = {all, columns / 2, n->hidden};
  const int64_t b_shape[] = {all, columns};
  const int64_t p_shape[] = {all, 3 * n->hidden};
  const int64_t by_layout[] = {n->batch_first ? n->batch : all,
                               n->batch_first ? all : n->batch, n->hidden};
  if (n->steps < 1 || n->hidden < 1 || columns < 0 ||
      choir__onnx_int(c, "hidden_size", n->hidden) != n->hidden) {
    FAIL(INVALID_ARGUMENT,
         "%lld steps, hidden_size %lld, and R is for %lld; needs one step at "
         "least and the size of R",
         (long long)n->steps,
         (long long)choir__onnx_int(c, "hidden_size", n->hidden),
         (long long)n->hidden);
    return false;
  }
  return check_shape(c, 1, "W", 3, w_shape) &&
         check_shape(c, 2, "R", 3, r_shape) &&
         check_shape(c, 3, "B", 2, b_shape) &&
         check_shape(c, 4, "sequence_lens", 1, &n->batch) &&
         check_shape(c, 5, "initial_h", 3, by_layout) &&
         (n->net != CHOIR__ONNX_LSTM ||
          (check_shape(c, 6, "initial_c", 3, by_layout) &&
           check_shape(c, 7, "P", 2, p_shape)));
}

// (a, b, columns) as (b, a, columns).
static choir_var_t* turned(choir__onnx_call_t* c, choir_var_t* x) {
  return choir__onnx_transpose(c, x, (const int64_t[]){1, 0, 2});
}

static bool read_node(choir__onnx_call_t* c, choir__onnx_recurrent_t* n) {
  if (!read_sizes(c, n)) return false;
  n->is_coupled =
      n->net == CHOIR__ONNX_LSTM && choir__onnx_int(c, "input_forget", 0) != 0;
  n->is_reset_last = choir__onnx_int(c, "linear_before_reset", 0) != 0;
  n->clip = choir__onnx_float(c, "clip", 0);
  if (!choir__onnx_read_activations(c, n)) return false;
  const int64_t rows[] = {n->steps * n->batch, VIEW(0)->shape[2]};
  choir_var_t* x = n->batch_first ? turned(c, IN(0)) : IN(0);
  n->x = choir__onnx_reshape(c, x, 2, rows);
  if (HAS(4)) n->lengths = choir__onnx_cast(c, IN(4), CHOIR_DTYPE_I32);
  for (int32_t i = 0; i < (n->net == CHOIR__ONNX_LSTM ? 2 : 1); ++i) {
    if (!HAS(5 + i)) continue;
    n->states[i] = n->batch_first ? turned(c, IN(5 + i)) : IN(5 + i);
  }
  return CALL_IS_OK;
}

// Entry k of dimension 0, which goes.
static choir_var_t* entry(choir__onnx_call_t* c, choir_var_t* x, int64_t k) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  return choir__onnx_reshape(c, choir__onnx_slice(c, x, 0, k, k + 1),
                             view->ndim - 1, view->shape + 1);
}

// ---- By the op ----

// The gates of a matrix's rows, or of a vector, in the op's order.
static choir_var_t* reordered(choir__onnx_call_t* c,
                              const choir__onnx_recurrent_t* n,
                              choir_var_t* x) {
  static const int64_t orders[][4] = {
      [CHOIR__ONNX_LSTM] = {0, 2, 3, 1}, [CHOIR__ONNX_GRU] = {1, 0, 2}};
  if (n->gates == 1 || !x) return x;
  choir_var_t* gates[4];
  for (int64_t k = 0; k < n->gates; ++k) {
    const int64_t from = orders[n->net][k] * n->hidden;
    gates[k] = choir__onnx_slice(c, x, 0, from, from + n->hidden);
  }
  return choir__onnx_join(c, gates, n->gates, 0);
}

// The bias of all gates: both parts of it, but of GRU's last gate only W's,
// whose other part goes into *out_last.
static choir_var_t* joined_bias(choir__onnx_call_t* c,
                                const choir__onnx_recurrent_t* n,
                                const choir__onnx_direction_t* d,
                                choir_var_t** out_last) {
  *out_last = NULL;
  if (n->net == CHOIR__ONNX_GRU && !d->wb)
    *out_last = choir__onnx_zeros(c, n->dtype, 1, &n->hidden);
  if (!d->wb) return NULL;
  choir_var_t *w = reordered(c, n, d->wb), *r = reordered(c, n, d->rb);
  if (n->net != CHOIR__ONNX_GRU) return DO(add, w, r);
  const int64_t two = 2 * n->hidden, three = 3 * n->hidden;
  *out_last = choir__onnx_slice(c, r, 0, two, three);
  return choir__onnx_join(
      c,
      (choir_var_t* const[]){DO(add, choir__onnx_slice(c, w, 0, 0, two),
                                choir__onnx_slice(c, r, 0, 0, two)),
                             choir__onnx_slice(c, w, 0, two, three)},
      2, 0);
}

static choir_var_t* full_lengths(choir__onnx_call_t* c,
                                 const choir__onnx_recurrent_t* n) {
  const choir_broadcast_to_attrs_t attrs = {.ndim = 1, .shape = {n->batch}};
  choir_var_t* steps = choir__onnx_scalar(c, CHOIR_DTYPE_I32, (double)n->steps);
  return DO(copy, DO(broadcast_to, steps, &attrs));
}

static void run_op(choir__onnx_call_t* c, const choir__onnx_recurrent_t* n,
                   choir__onnx_direction_t* d, choir_cell_t cell) {
  const choir_recurrent_attrs_t attrs = {.cell = cell,
                                         .reverse = d->is_reverse};
  const int64_t by_columns[] = {1, 0};
  choir_var_t* last_bias;
  choir_var_t* bias = joined_bias(c, n, d, &last_bias);
  choir_var_t* w = choir__onnx_transpose(c, reordered(c, n, d->w), by_columns);
  choir_var_t* gates =
      bias ? DO(linear, n->x, w, bias) : DO(matmul, n->x, w, NULL);
  const int64_t shape[] = {n->steps, n->batch, n->gates * n->hidden};
  choir_var_t* srcs[] = {
      choir__onnx_reshape(c, gates, 3, shape),
      n->lengths ? n->lengths : full_lengths(c, n),
      choir__onnx_transpose(c, reordered(c, n, d->r), by_columns),
      choir__onnx_stack(c, d->start, n->net == CHOIR__ONNX_LSTM ? 2 : 1, 0),
      last_bias};
  choir_var_t* more[2];  // gates, mask
  choir_var_t* states = choir_scope_op(c->scope, CHOIR_OP_RECURRENT, srcs,
                                       last_bias ? 5 : 4, &attrs, more);
  if (!CALL_IS_OK) return;
  const int64_t last = d->is_reverse ? 0 : n->steps;
  d->y = choir__onnx_slice(c, states, 0, !d->is_reverse,
                           n->steps + !d->is_reverse);
  if (n->lengths) d->y = DO(mul, d->y, more[1]);
  d->last[0] = entry(c, states, last);
  if (n->net == CHOIR__ONNX_LSTM)
    d->last[1] = entry(c, states, n->steps + 1 + last);
}

// ---- A node ----

static choir__onnx_direction_t direction_of(choir__onnx_call_t* c,
                                            const choir__onnx_recurrent_t* n,
                                            int64_t k) {
  choir__onnx_direction_t d = {.is_reverse = n->is_reverse || k > 0,
                               .activations = n->activations[k],
                               .w = entry(c, IN(1), k),
                               .r = entry(c, IN(2), k)};
  const int64_t columns = n->gates * n->hidden;
  if (HAS(3)) {
    choir_var_t* b = entry(c, IN(3), k);
    d.wb = choir__onnx_slice(c, b, 0, 0, columns);
    d.rb = choir__onnx_slice(c, b, 0, columns, 2 * columns);
  }
  const bool is_lstm = n->net == CHOIR__ONNX_LSTM;
  if (is_lstm && HAS(7)) d.p = entry(c, IN(7), k);
  const int64_t shape[] = {n->batch, n->hidden};
  for (int32_t i = 0; i < (is_lstm ? 2 : 1); ++i)
    d.start[i] = n->states[i] ? entry(c, n->states[i], k)
                              : choir__onnx_zeros(c, n->dtype, 2, shape);
  return d;
}

static void run_net(choir__onnx_call_t* c, choir__onnx_net_t net) {
  choir__onnx_recurrent_t n = {.net = net};
  if (!read_node(c, &n)) return;
  choir_var_t *y[2], *last[2][2];
  for (int64_t k = 0; k < n.directions; ++k) {
    choir__onnx_direction_t d = direction_of(c, &n, k);
    choir_cell_t cell;
    if (choir__onnx_plain_cell(&n, &d, &cell))
      run_op(c, &n, &d, cell);
    else
      choir__onnx_run_steps(c, &n, &d);
    if (!CALL_IS_OK) return;
    y[k] = d.y;
    for (int32_t i = 0; i < 2; ++i) last[i][k] = d.last[i];
  }
  choir_var_t* all = choir__onnx_stack(c, y, n.directions, 1);
  if (n.batch_first)
    all = choir__onnx_transpose(c, all, (const int64_t[]){2, 0, 1, 3});
  OUT(0, all);
  for (int32_t i = 0; i < (net == CHOIR__ONNX_LSTM ? 2 : 1); ++i)
    if (choir__onnx_wants(c, 1 + i))
      OUT(1 + i, choir__onnx_stack(c, last[i], n.directions, n.batch_first));
}

void choir__onnx_op_rnn(choir__onnx_call_t* c) { run_net(c, CHOIR__ONNX_RNN); }
void choir__onnx_op_lstm(choir__onnx_call_t* c) {
  run_net(c, CHOIR__ONNX_LSTM);
}
void choir__onnx_op_gru(choir__onnx_call_t* c) { run_net(c, CHOIR__ONNX_GRU); }
