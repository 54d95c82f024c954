// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/recurrent.h"

#include <math.h>
#include <string.h>

#include "tensor/ops/elements.h"
#include "tensor/ops/indices.h"

#define CELL_NAME(ENUM, name) #name,
static const char* const cells[] = {CHOIR_CELL_LIST(CELL_NAME) NULL};

static const choir_field_t fields[] = {
    CHOIR_FIELD_ENUM(choir_recurrent_attrs_t, cell, cells, CHOIR_CELL_LSTM,
                     "what a step computes"),
    CHOIR_FIELD_BOOL(choir_recurrent_attrs_t, reverse, false,
                     "from the last step to the first"),
};
// Small enough that no product with a cell's numbers overflows.
#define LARGEST (1 << 30)

// Gates of a cell, those that it keeps for its gradient, and its states.
static const struct {
  int64_t gates, kept, states;
} counts[] = {[CHOIR_CELL_RNN_TANH] = {1, 1, 1},
              [CHOIR_CELL_RNN_RELU] = {1, 1, 1},
              [CHOIR_CELL_LSTM] = {4, 4, 2},
              [CHOIR_CELL_GRU] = {3, 4, 1}};

choir__recurrent_t choir__recurrent_of(const choir_recurrent_attrs_t* attrs,
                                       const choir_view_t* steps,
                                       const choir_view_t* w) {
  const int32_t cell = attrs->cell;
  return (choir__recurrent_t){.cell = (choir_cell_t)cell,
                              .reverse = attrs->reverse,
                              .steps = steps->shape[0],
                              .batch = steps->shape[1],
                              .hidden = w->shape[0],
                              .gates = counts[cell].gates * w->shape[0],
                              .kept = counts[cell].kept * w->shape[0],
                              .states = counts[cell].states};
}

choir_status_t choir__recurrent_lengths(const choir_record_t* record,
                                        const choir__recurrent_t* sizes,
                                        int64_t* out_lengths) {
  const choir_view_t* view = choir_record_src(record, 1);
  for (int64_t n = 0; n < sizes->batch; ++n) {
    out_lengths[n] =
        choir__integer_load(choir__src_data(record, 1), view->dtype,
                            view->offset + n * view->strides[0]);
    if (out_lengths[n] < 0 || out_lengths[n] > sizes->steps)
      return CHOIR_ERROR(
          OUT_OF_RANGE, "%s: length %lld of sample %lld; needs 0 .. %lld",
          record->operation ? record->operation->name : "recurrent",
          (long long)out_lengths[n], (long long)n, (long long)sizes->steps);
  }
  return NULL;
}

// Fails unless the view has this shape.
static choir_status_t need_shape(const char* what, const choir_view_t* view,
                                 int32_t ndim, const int64_t* shape) {
  choir_view_t needed = *view;
  needed.ndim = ndim;
  for (int32_t k = 0; k < ndim; ++k) needed.shape[k] = shape[k];
  if (choir_view_same_shape(view, &needed)) return NULL;
  choir_view_set_contiguous(&needed);
  char text[2][160];
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s is %s; needs %s", what,
                     choir_view_print(view, text[0], sizeof text[0]),
                     choir_view_print(&needed, text[1], sizeof text[1]));
}

// Sources 0 to 2, which both ops have.
static choir_status_t check_first(const char* what, const choir_view_t* srcs,
                                  const void* attrs, bool is_kept,
                                  choir__recurrent_t* out_sizes) {
  CHOIR_TRY(choir__need_ndim(what, &srcs[0], 3));
  CHOIR_TRY(choir__need_ndim("W", &srcs[2], 2));
  const int64_t steps = srcs[0].shape[0], hidden = srcs[2].shape[0];
  if (steps > LARGEST || hidden > LARGEST)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%lld steps of %lld units; needs at most %d of each",
                       (long long)steps, (long long)hidden, LARGEST);
  const choir__recurrent_t sizes = *out_sizes =
      choir__recurrent_of(attrs, &srcs[0], &srcs[2]);
  CHOIR_TRY(
      need_shape("W", &srcs[2], 2, (int64_t[]){sizes.hidden, sizes.gates}));
  CHOIR_TRY(need_shape(what, &srcs[0], 3,
                       (int64_t[]){sizes.steps, sizes.batch,
                                   is_kept ? sizes.kept : sizes.gates}));
  return choir__need_vector("lengths", &srcs[1], sizes.batch);
}

static choir_status_t recurrent_infer(const choir_record_t* record,
                                      choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir__recurrent_t s;
  CHOIR_TRY(check_first("x", srcs, record->attrs, false, &s));
  CHOIR_TRY(need_shape("initial", &srcs[3], 3,
                       (int64_t[]){s.states, s.batch, s.hidden}));
  const int32_t needed = s.cell == CHOIR_CELL_GRU ? 5 : 4;
  if (record->src_count != needed)
    return CHOIR_ERROR(INVALID_ARGUMENT, "got %d sources; %s needs %d",
                       (int)record->src_count, cells[s.cell], (int)needed);
  if (record->src_count > 4)
    CHOIR_TRY(choir__need_vector("b", &srcs[4], s.hidden));
  const int64_t shapes[][3] = {
      {s.states * (s.steps + 1), s.batch, s.hidden},
      {s.steps, s.batch, s.kept},
      {s.steps, s.batch, 1},
  };
  for (int32_t i = 0; i < 3; ++i)
    CHOIR_TRY(choir__infer_shape(srcs[0].dtype, 3, shapes[i], &dsts[i]));
  return NULL;
}

static choir_status_t recurrent_grad_infer(const choir_record_t* record,
                                           choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir__recurrent_t s;
  CHOIR_TRY(check_first("gates", srcs, record->attrs, true, &s));
  const int64_t shape[] = {s.states * (s.steps + 1), s.batch, s.hidden};
  CHOIR_TRY(need_shape("states", &srcs[3], 3, shape));
  CHOIR_TRY(need_shape("dstates", &srcs[4], 3, shape));
  CHOIR_TRY(choir__infer_shape(
      srcs[0].dtype, 3, (int64_t[]){s.steps, s.batch, s.gates}, &dsts[0]));
  return choir__infer_shape(srcs[0].dtype, 3,
                            (int64_t[]){s.states, s.batch, s.hidden}, &dsts[1]);
}

// ---- References ----

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// One unit's step. p: its sums x + h W by gate, of gru h W_n + b apart in
// p[3]; h, c: the state before, which becomes that after; out: the gates to
// keep.
static void unit_forward(choir_cell_t cell, const double* p, double* h,
                         double* c, double* out) {
  switch (cell) {
    case CHOIR_CELL_RNN_TANH:
      *h = out[0] = tanh(p[0]);
      break;
    case CHOIR_CELL_RNN_RELU:
      *h = out[0] = p[0] < 0 ? 0 : p[0];
      break;
    case CHOIR_CELL_LSTM:
      out[0] = sigmoid(p[0]);
      out[1] = sigmoid(p[1]);
      out[2] = tanh(p[2]);
      out[3] = sigmoid(p[3]);
      *c = out[1] * *c + out[0] * out[2];
      *h = out[3] * tanh(*c);
      break;
    case CHOIR_CELL_GRU:
      out[0] = sigmoid(p[0]);
      out[1] = sigmoid(p[1]);
      out[2] = p[3];
      out[3] = tanh(p[2] + out[0] * p[3]);
      *h = (1 - out[1]) * out[3] + out[1] * *h;
      break;
  }
}

// The gradient of that: g the gates kept, h, c the state before, new_c after;
// dh, dc the gradients of the state after, which become those of the state
// before but for what comes through W. dp: of the sums, dp[3] of gru's own.
static void unit_backward(choir_cell_t cell, const double* g, double h,
                          double c, double new_c, double* dh, double* dc,
                          double* dp) {
  switch (cell) {
    case CHOIR_CELL_RNN_TANH:
      dp[0] = *dh * (1 - g[0] * g[0]);
      *dh = 0;
      break;
    case CHOIR_CELL_RNN_RELU:
      dp[0] = g[0] > 0 ? *dh : 0;
      *dh = 0;
      break;
    case CHOIR_CELL_LSTM: {
      const double t = tanh(new_c);
      *dc += *dh * g[3] * (1 - t * t);
      dp[0] = *dc * g[2] * g[0] * (1 - g[0]);
      dp[1] = *dc * c * g[1] * (1 - g[1]);
      dp[2] = *dc * g[0] * (1 - g[2] * g[2]);
      dp[3] = *dh * t * g[3] * (1 - g[3]);
      *dc *= g[1];
      *dh = 0;
      break;
    }
    case CHOIR_CELL_GRU:
      dp[2] = *dh * (1 - g[1]) * (1 - g[3] * g[3]);
      dp[0] = dp[2] * g[2] * g[0] * (1 - g[0]);
      dp[1] = *dh * (h - g[3]) * g[1] * (1 - g[1]);
      dp[3] = dp[2] * g[0];
      *dh *= g[1];
      break;
  }
}

// A record's operands as dense arrays, and the lengths.
typedef struct dense_s {
  choir__dense_t of;
  choir__recurrent_t sizes;
  int64_t* lengths;
} dense_t;

static choir_status_t dense_begin(const choir_record_t* record,
                                  choir_stream_t* stream, dense_t* d) {
  d->sizes = choir__recurrent_of(record->attrs, choir_record_src(record, 0),
                                 choir_record_src(record, 2));
  CHOIR_TRY(choir__dense_begin(record, stream, ~CHOIR__SOURCE(1), &d->of));
  void* memory = NULL;
  choir_status_t status = choir_allocate(
      d->of.allocator, sizeof(int64_t) * (size_t)(d->sizes.batch + 1),
      "lengths", &memory);
  d->lengths = memory;
  if (!status) status = choir__recurrent_lengths(record, &d->sizes, d->lengths);
  return status;
}

static choir_status_t dense_end(dense_t* d, choir_status_t status) {
  choir_deallocate(d->of.allocator, d->lengths,
                   sizeof(int64_t) * (size_t)(d->sizes.batch + 1));
  return choir__dense_end(&d->of, status);
}

// State s (h, c) of sample n in row `row` of states.
static double* state_at(const choir__recurrent_t* s, double* states,
                        int64_t state, int64_t row, int64_t n) {
  return states + ((state * (s->steps + 1) + row) * s->batch + n) * s->hidden;
}

static void forward_step(const dense_t* d, choir__recurrent_step_t step,
                         int64_t n) {
  const choir__recurrent_t* s = &d->sizes;
  const int64_t hidden = s->hidden;
  double* states = d->of.dsts[0];
  for (int64_t k = 0; k < s->states; ++k)
    memcpy(state_at(s, states, k, step.after, n),
           state_at(s, states, k, step.before, n),
           (size_t)hidden * sizeof(double));
  if (step.at >= d->lengths[n]) return;
  const double* h = state_at(s, states, 0, step.before, n);
  const double* x = d->of.srcs[0] + (step.at * s->batch + n) * s->gates;
  const double* w = d->of.srcs[2];
  double* kept = d->of.dsts[1] + (step.at * s->batch + n) * s->kept;
  const bool is_gru = s->cell == CHOIR_CELL_GRU;
  for (int64_t j = 0; j < hidden; ++j) {
    double p[4] = {0}, out[4] = {0};
    for (int64_t g = 0; g * hidden < s->gates; ++g) {
      const int64_t column = g * hidden + j;
      const bool is_apart = is_gru && g == 2;
      double sum = is_apart ? d->of.srcs[4][j] : x[column];
      for (int64_t k = 0; k < hidden; ++k)
        sum += h[k] * w[k * s->gates + column];
      p[is_apart ? 3 : g] = sum;
      if (is_apart) p[2] = x[column];
    }
    double unused = 0;
    unit_forward(
        s->cell, p, state_at(s, states, 0, step.after, n) + j,
        s->states > 1 ? state_at(s, states, 1, step.after, n) + j : &unused,
        out);
    for (int64_t g = 0; g * hidden < s->kept; ++g)
      kept[g * hidden + j] = out[g];
  }
  d->of.dsts[2][step.at * s->batch + n] = 1;
}

static choir_status_t recurrent_reference(const choir_record_t* record,
                                          choir_stream_t* stream) {
  dense_t d = {.lengths = NULL};
  choir_status_t status = dense_begin(record, stream, &d);
  const choir__recurrent_t* s = &d.sizes;
  const int64_t first = s->reverse ? s->steps : 0;
  for (int64_t n = 0; !status && n < s->batch; ++n) {
    for (int64_t k = 0; k < s->states; ++k)
      memcpy(state_at(s, d.of.dsts[0], k, first, n),
             d.of.srcs[3] + (k * s->batch + n) * s->hidden,
             (size_t)s->hidden * sizeof(double));
    for (int64_t k = 0; k < s->steps; ++k)
      forward_step(&d, choir__recurrent_step(s, k), n);
  }
  return dense_end(&d, status);
}

// dh, dc: gradients of the state after the step that came from later steps;
// those of the state before it then.
static void backward_step(const dense_t* d, choir__recurrent_step_t step,
                          int64_t n, double* dh, double* dc) {
  const choir__recurrent_t* s = &d->sizes;
  const int64_t hidden = s->hidden;
  double* states = d->of.srcs[3];
  double* dstates = d->of.srcs[4];
  const bool has_c = s->states > 1;
  for (int64_t j = 0; j < hidden; ++j) {
    dh[j] += state_at(s, dstates, 0, step.after, n)[j];
    if (has_c) dc[j] += state_at(s, dstates, 1, step.after, n)[j];
  }
  if (step.at >= d->lengths[n]) return;
  const double* w = d->of.srcs[2];
  const double* kept = d->of.srcs[0] + (step.at * s->batch + n) * s->kept;
  double* dx = d->of.dsts[0] + (step.at * s->batch + n) * s->gates;
  const bool is_gru = s->cell == CHOIR_CELL_GRU;
  for (int64_t j = 0; j < hidden; ++j) {
    double g[4] = {0}, dp[4] = {0}, unused = 0;
    for (int64_t k = 0; k * hidden < s->kept; ++k) g[k] = kept[k * hidden + j];
    unit_backward(s->cell, g, state_at(s, states, 0, step.before, n)[j],
                  has_c ? state_at(s, states, 1, step.before, n)[j] : 0,
                  has_c ? state_at(s, states, 1, step.after, n)[j] : 0, &dh[j],
                  has_c ? &dc[j] : &unused, dp);
    for (int64_t k = 0; k * hidden < s->gates; ++k) dx[k * hidden + j] = dp[k];
  }
  for (int64_t column = 0; column < s->gates; ++column) {
    // gru's h W_n goes through r.
    const bool is_apart = is_gru && column >= 2 * hidden;
    const double dp = dx[column] * (is_apart ? kept[column - 2 * hidden] : 1);
    for (int64_t k = 0; k < hidden; ++k) dh[k] += dp * w[k * s->gates + column];
  }
}

static choir_status_t recurrent_grad_reference(const choir_record_t* record,
                                               choir_stream_t* stream) {
  dense_t d = {.lengths = NULL};
  choir_status_t status = dense_begin(record, stream, &d);
  const choir__recurrent_t* s = &d.sizes;
  const int64_t first = s->reverse ? s->steps : 0;
  for (int64_t n = 0; !status && n < s->batch; ++n) {
    double* dh = d.of.dsts[1] + n * s->hidden;
    double* dc = dh + s->batch * s->hidden;  // of lstm
    for (int64_t k = s->steps - 1; k >= 0; --k)
      backward_step(&d, choir__recurrent_step(s, k), n, dh, dc);
    for (int64_t j = 0; j < s->hidden; ++j) {
      dh[j] += state_at(s, d.of.srcs[4], 0, first, n)[j];
      if (s->states > 1) dc[j] += state_at(s, d.of.srcs[4], 1, first, n)[j];
    }
  }
  return dense_end(&d, status);
}

static void recurrent_cost(const choir_record_t* record,
                           choir_cost_t* out_cost) {
  const choir_view_t* steps = choir_record_src(record, 0);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = 2.0 * (double)(steps->shape[0] * steps->shape[1]) *
                    (double)choir_view_count(choir_record_src(record, 2));
}

static const choir_op_case_t cases[] = {
    {"1,1,4;1;1,4;2,1,1", NULL},
    {"3,2,8;2;2,8;2,2,2", NULL},
    {"4,3,8;3;2,8;2,3,2", "reverse=true"},
    {"3,2,3;2;3,3;1,2,3", "cell=rnn_tanh"},
    {"3,3,2;3;2,2;1,3,2", "cell=rnn_relu reverse=true"},
    {"3,2,6;2;2,6;1,2,2;2", "cell=gru"},
    {"4,3,9;3;3,9;1,3,3;3", "cell=gru reverse=true"},
    {"2,5,12;5;3,12;2,5,3", NULL},
    {"5,1,4;1;4,4;1,1,4", "cell=rnn_tanh reverse=true"},
    {"2,9,64;9;16,64;2,9,16", NULL},
    {"3,17,68;17;17,68;2,17,17", "reverse=true"},
    {"2,3,132;3;33,132;2,3,33", NULL},
    {"2,12,51;12;17,51;1,12,17;17", "cell=gru"},
    {"3,7,99;7;33,99;1,7,33;33", "cell=gru reverse=true"},
    {"2,33,40;33;40,40;1,33,40", "cell=rnn_tanh"},
    {"2,8,31;8;31,31;1,8,31", "cell=rnn_relu"},
    {"3,4,256;4;64,256;2,4,64", NULL},
    {"2,16,192;16;64,192;1,16,64;64", "cell=gru"},
    {"0,2,8;2;2,8;2,2,2", NULL},
    {"3,0,8;0;2,8;2,0,2", NULL},
    {NULL, NULL}};
static const choir_op_case_t grad_cases[] = {
    {"1,1,4;1;1,4;4,1,1;4,1,1", NULL},
    {"3,2,8;2;2,8;8,2,2;8,2,2", NULL},
    {"4,3,8;3;2,8;10,3,2;10,3,2", "reverse=true"},
    {"3,2,3;2;3,3;4,2,3;4,2,3", "cell=rnn_tanh"},
    {"3,3,2;3;2,2;4,3,2;4,3,2", "cell=rnn_relu reverse=true"},
    {"3,2,8;2;2,6;4,2,2;4,2,2", "cell=gru"},
    {"4,3,12;3;3,9;5,3,3;5,3,3", "cell=gru reverse=true"},
    {"2,5,12;5;3,12;6,5,3;6,5,3", NULL},
    {"5,1,4;1;4,4;6,1,4;6,1,4", "cell=rnn_tanh reverse=true"},
    {"2,9,64;9;16,64;6,9,16;6,9,16", NULL},
    {"3,17,68;17;17,68;8,17,17;8,17,17", "reverse=true"},
    {"2,3,132;3;33,132;6,3,33;6,3,33", NULL},
    {"2,12,68;12;17,51;3,12,17;3,12,17", "cell=gru"},
    {"3,7,132;7;33,99;4,7,33;4,7,33", "cell=gru reverse=true"},
    {"2,33,40;33;40,40;3,33,40;3,33,40", "cell=rnn_tanh"},
    {"2,8,31;8;31,31;3,8,31;3,8,31", "cell=rnn_relu"},
    {"3,4,256;4;64,256;8,4,64;8,4,64", NULL},
    {"2,16,256;16;64,192;3,16,64;3,16,64", "cell=gru"},
    {"0,2,8;2;2,8;2,2,2;2,2,2", NULL},
    {"3,0,8;0;2,8;8,0,2;8,0,2", NULL},
    {NULL, NULL}};

// The first dimension is time.
static bool recurrent_mixes(const choir_record_t* record, const int64_t* rows) {
  (void)record;
  (void)rows;
  return true;
}

CHOIR_OP_DEFINE_BY(RECURRENT, recurrent, 4, 5, 3, recurrent_infer,
                   recurrent_reference,
                   "x, lengths, W, initial (, b) -> states, gates, mask",
                   CHOIR_OP_ATTRS(recurrent, fields, "a recurrent network"),
                   .mixes_samples = recurrent_mixes, .cost = recurrent_cost,
                   .dtypes = CHOIR_DTYPES_FLOAT,
                   .second_dtypes = CHOIR__DTYPES_INDEX,
                   .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_LENGTHS,
                               CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT,
                               CHOIR_DOMAIN_UNIT},
                   .tolerance = 1e-5, .cases = cases);

CHOIR_OP_DEFINE_BY(RECURRENT_GRAD, recurrent_grad, 5, 5, 2,
                   recurrent_grad_infer, recurrent_grad_reference,
                   "gates, lengths, W, states, dstates -> dx, dinitial",
                   CHOIR_OP_ATTRS(recurrent_grad, fields,
                                  "the gradient of one"),
                   .cost = recurrent_cost, .dtypes = CHOIR_DTYPES_FLOAT,
                   .second_dtypes = CHOIR__DTYPES_INDEX,
                   .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_LENGTHS,
                               CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT,
                               CHOIR_DOMAIN_ANY},
                   .tolerance = 1e-5, .cases = grad_cases);
