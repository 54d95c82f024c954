// SPDX-License-Identifier: Apache-2.0
// Attention, rotary positions and recurrent layers.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_put_def.h"

// Whether a dimension of a source does not follow the batch; else it fails.
static bool is_fixed(choir__onnx_put_t* p, int32_t source, int32_t axis) {
  if (p->now[source].shape[axis] == p->other[source].shape[axis]) return true;
  REFUSE(
      UNIMPLEMENTED,
      "dimension %d of source %d follows the batch; fixed_batch writes a file "
      "for the size that there is",
      axis, source);
  return false;
}

// ---- Attention ----

// k or v with each head as often as heads of q share it.
static const char* shared_heads(choir__onnx_put_t* p, int32_t source) {
  const int64_t heads = SRC_VIEW(0)->shape[1];
  const int64_t* shape = SRC_VIEW(source)->shape;
  if (shape[1] == heads) return SRC(source);
  const char* wide = NODE("Expand", NODE("Unsqueeze", SRC(source), NUMBERS(2)),
                          NUMBERS(1, 1, heads / shape[1], 1, 1));
  return NODE("Reshape", wide, NUMBERS(0, heads, shape[2], shape[3]));
}

// A constant of bool: what row i (of `rows`) sees of `columns` by cause and
// effect; columns 1: whether it sees anything.
static const char* seen(choir__onnx_put_t* p, int64_t rows, int64_t columns,
                        int64_t offset) {
  const int64_t shape[] = {rows, columns};
  uint8_t* bits = malloc((size_t)(rows * columns) + 1);
  if (!bits) {
    REFUSE(OUT_OF_MEMORY, "no memory for a mask");
    return "";
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      bits[i * columns + j] = j <= i + offset;
  const char* name =
      choir__onnx_put_constant(p, CHOIR_DTYPE_BOOL, 2, shape, bits);
  free(bits);
  return name;
}

static const char* masked(choir__onnx_put_t* p, const char* scores,
                          const char* is_seen, double instead) {
  return NODE("Where", is_seen, scores, NUMBER(SRC_VIEW(0)->dtype, instead));
}

void choir__onnx_put_attention(choir__onnx_put_t* p) {
  const choir_attention_attrs_t* a = ATTRS(attention);
  const choir_view_t *q = SRC_VIEW(0), *k = SRC_VIEW(1);
  if (!is_fixed(p, 0, 1) || !is_fixed(p, 1, 1) || !is_fixed(p, 0, 2) ||
      !is_fixed(p, 1, 2))
    return;
  const double depth = q->shape[3] > 0 ? (double)q->shape[3] : 1;
  const double scale = a->scale > 0 ? a->scale : 1 / sqrt(depth);
  const char* keys = NODE("Transpose", shared_heads(p, 1));
  choir__onnx_put_ints(p, "perm", 4, (const int64_t[]){0, 1, 3, 2});
  const char* scores =
      NODE("MatMul", NODE("Mul", SRC(0), NUMBER(q->dtype, scale)), keys);
  const bool has_mask = p->entry->src_count > 3;
  if (has_mask && choir_dtype_is_float(SRC_VIEW(3)->dtype))
    scores = NODE("Add", scores, SRC(3));
  else if (has_mask)
    scores =
        masked(p, scores, choir__onnx_put_cast(p, SRC(3), CHOIR_DTYPE_BOOL),
               -INFINITY);
  if (a->causal)
    scores = masked(p, scores, seen(p, q->shape[2], k->shape[2], a->offset),
                    -INFINITY);
  const char* weights = NODE("Softmax", scores);
  choir__onnx_put_int(p, "axis", -1);
  // A row that sees nothing is 0.
  if (a->causal && a->offset < 0 && !has_mask)
    weights = masked(p, weights, seen(p, q->shape[2], 1, a->offset), 0);
  if (a->dropout > 0)
    weights = NODE("Dropout", weights, NUMBER(CHOIR_DTYPE_F32, a->dropout));
  DST(0, NODE("MatMul", weights, shared_heads(p, 2)));
}

// ---- Rotary positions ----

// (rows, half): the sines or cosines of the angles.
static const char* table(choir__onnx_put_t* p, int64_t rows, int64_t half,
                         double (*function)(double)) {
  const choir_rotary_attrs_t* a = ATTRS(rotary);
  const int64_t shape[] = {rows, half};
  float* values = malloc(sizeof(float) * (size_t)(rows * half + 1));
  if (!values) {
    REFUSE(OUT_OF_MEMORY, "no memory for a table");
    return "";
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < half; ++j) {
      const double turn = pow(a->theta, -(double)j / (double)half);
      values[i * half + j] = (float)function((double)(i + a->offset) * turn);
    }
  const char* name =
      choir__onnx_put_constant(p, CHOIR_DTYPE_F32, 2, shape, values);
  free(values);
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  return dtype == CHOIR_DTYPE_F32 ? name : choir__onnx_put_cast(p, name, dtype);
}

// The parts of x along its last axis.
static const char** parts_of(choir__onnx_put_t* p, const char* x,
                             int32_t count) {
  const char* const in[] = {x, NULL};
  const char** parts = choir__onnx_put_nodes(p, "Split", in, count);
  choir__onnx_put_int(p, "axis", -1);
  choir__onnx_put_int(p, "num_outputs", count);
  return parts;
}

void choir__onnx_put_rotary(choir__onnx_put_t* p) {
  const choir_view_t* x = SRC_VIEW(0);
  const int64_t rows = x->shape[x->ndim - 2], half = x->shape[x->ndim - 1] / 2;
  if (!is_fixed(p, 0, x->ndim - 2)) return;
  const char** parts = parts_of(p, SRC(0), 2);
  const char *sine = table(p, rows, half, sin),
             *cosine = table(p, rows, half, cos);
  const char* first =
      NODE("Sub", NODE("Mul", parts[0], cosine), NODE("Mul", parts[1], sine));
  const char* second =
      NODE("Add", NODE("Mul", parts[1], cosine), NODE("Mul", parts[0], sine));
  const char* y = NODE("Concat", first, second);
  choir__onnx_put_int(p, "axis", -1);
  DST(0, y);
}

// ---- Recurrent layers: a Scan over the steps ----

typedef struct step_s {
  const char *h, *c;  // the states before, then after
  const char *x, *is_there;
  const char *w, *b;
} step_t;

static const char* gate(choir__onnx_put_t* p, const char* x) {
  return NODE("Sigmoid", x);
}

static void lstm_step(choir__onnx_put_t* p, step_t* s) {
  const char** sums =
      parts_of(p, NODE("Add", s->x, NODE("MatMul", s->h, s->w)), 4);
  const char* kept = NODE("Mul", gate(p, sums[1]), s->c);
  const char* added = NODE("Mul", gate(p, sums[0]), NODE("Tanh", sums[2]));
  s->c = NODE("Add", kept, added);
  s->h = NODE("Mul", gate(p, sums[3]), NODE("Tanh", s->c));
}

static void gru_step(choir__onnx_put_t* p, step_t* s) {
  const char** x = parts_of(p, s->x, 3);
  const char** h = parts_of(p, NODE("MatMul", s->h, s->w), 3);
  const char* r = gate(p, NODE("Add", x[0], h[0]));
  const char* z = gate(p, NODE("Add", x[1], h[1]));
  const char* inner = NODE("Mul", r, NODE("Add", h[2], s->b));
  const char* n = NODE("Tanh", NODE("Add", x[2], inner));
  s->h = NODE("Add", n, NODE("Mul", z, NODE("Sub", s->h, n)));
}

static void rnn_step(choir__onnx_put_t* p, step_t* s, bool is_tanh) {
  s->h = NODE(is_tanh ? "Tanh" : "Relu",
              NODE("Add", s->x, NODE("MatMul", s->h, s->w)));
}

// One step as the graph of a Scan: the states before, x and is_there; the
// states after, twice.
static void put_body(choir__onnx_put_t* p, int32_t cell, const char* w,
                     const char* b) {
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  const bool is_lstm = cell == CHOIR_CELL_LSTM;
  choir__onnx_put_begin_body(p);
  step_t s = {.w = w, .b = b};
  const char* h = s.h = choir__onnx_put_body_input(p, dtype);
  const char* c = s.c = is_lstm ? choir__onnx_put_body_input(p, dtype) : NULL;
  s.x = choir__onnx_put_body_input(p, dtype);
  s.is_there = choir__onnx_put_body_input(p, CHOIR_DTYPE_BOOL);
  if (is_lstm)
    lstm_step(p, &s);
  else if (cell == CHOIR_CELL_GRU)
    gru_step(p, &s);
  else
    rnn_step(p, &s, cell == CHOIR_CELL_RNN_TANH);
  // After its length the state of a sample stays.
  s.h = NODE("Where", s.is_there, s.h, h);
  if (is_lstm) s.c = NODE("Where", s.is_there, s.c, c);
  for (int32_t i = 0; i < 2; ++i) {
    choir__onnx_put_body_output(p, s.h, dtype);
    if (is_lstm) choir__onnx_put_body_output(p, s.c, dtype);
  }
  choir__onnx_put_end_body(p, "body");
}

// (T, N, 1): whether a sample has this step.
static const char* put_mask(choir__onnx_put_t* p, int64_t steps) {
  const char* const range[] = {NUMBER(CHOIR_DTYPE_I64, 0),
                               NUMBER(CHOIR_DTYPE_I64, (double)steps),
                               NUMBER(CHOIR_DTYPE_I64, 1), NULL};
  const char* places = choir__onnx_put_node(p, "Range", range);
  const char* lengths = choir__onnx_put_cast(p, SRC(1), CHOIR_DTYPE_I64);
  return NODE("Less", NODE("Unsqueeze", places, NUMBERS(1, 2)),
              NODE("Unsqueeze", lengths, NUMBERS(0, 2)));
}

// State i of `initial`: (1, N, H).
static const char* put_initial(choir__onnx_put_t* p, int64_t i) {
  return NODE("Slice", SRC(3), NUMBERS(i), NUMBERS(i + 1), NUMBERS(0));
}

void choir__onnx_put_recurrent(choir__onnx_put_t* p) {
  const choir_recurrent_attrs_t* a = ATTRS(recurrent);
  const bool is_lstm = a->cell == CHOIR_CELL_LSTM;
  const int32_t states = is_lstm ? 2 : 1;
  if (!is_fixed(p, 0, 0)) return;
  if (SRC_VIEW(0)->shape[0] == 0) {
    REFUSE(UNIMPLEMENTED, "there is no step; ONNX's Scan has one at least");
    return;
  }
  const char* mask = put_mask(p, SRC_VIEW(0)->shape[0]);
  const char *w = SRC(2), *b = p->entry->src_count > 4 ? SRC(4) : "";
  const char* before[2] = {NULL};
  const char* in[5] = {NULL};
  for (int32_t i = 0; i < states; ++i) {
    before[i] = put_initial(p, i);
    in[i] = NODE("Squeeze", before[i], NUMBERS(0));
  }
  in[states] = SRC(0);
  in[states + 1] = mask;
  const char** after = choir__onnx_put_nodes(p, "Scan", in, 2 * states);
  choir__onnx_put_int(p, "num_scan_inputs", 2);
  if (a->reverse) {
    const int64_t back[] = {1, 1};
    choir__onnx_put_ints(p, "scan_input_directions", 2, back);
    choir__onnx_put_ints(p, "scan_output_directions", states, back);
  }
  put_body(p, a->cell, w, b);
  // Of all h, then all c: the states before the first step and after each.
  const char* rows[5] = {NULL};
  for (int32_t i = 0; i < states; ++i) {
    rows[2 * i + !!a->reverse] = before[i];
    rows[2 * i + !a->reverse] = after[states + i];
  }
  const char* all = choir__onnx_put_node(p, "Concat", rows);
  choir__onnx_put_int(p, "axis", 0);
  DST(0, all);
  if (WANTS(2)) DST(2, choir__onnx_put_cast(p, mask, SRC_VIEW(0)->dtype));
}
