// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/layer_def.h"

// rnn, lstm and gru: layers of the op `recurrent`, in one direction or two.

const char* const choir_nonlinearity_names[] = {"tanh", "relu", NULL};

// The settings of all three: rnn's own follow them.
typedef choir_gru_config_t common_t;
_Static_assert(offsetof(choir_rnn_config_t, nonlinearity) <= sizeof(common_t),
               "rnn begins with the common settings");

// What the three differ by, and a step's sizes and inputs.
typedef struct net_s {
  common_t config;
  choir_cell_t cell;
  int64_t gates;
  int64_t states;
  int64_t directions;
  int32_t params;  // of a direction
  choir_dtype_t dtype;
  int64_t steps;
  int64_t batch;
  choir_var_t* lengths;
  bool has_lengths;      // else all are T
  choir_var_t *h0, *c0;  // NULL: zeros
} net_t;

static net_t net_of(const choir_layer_t* layer, choir_vars_t inputs) {
  net_t net = {.cell = CHOIR_CELL_LSTM, .gates = 4, .states = 2};
  memcpy(&net.config, layer->config, sizeof(net.config));
  if (layer->def == &choir_layer_def_gru) {
    net.cell = CHOIR_CELL_GRU;
    net.gates = 3;
    net.states = 1;
  } else if (layer->def == &choir_layer_def_rnn) {
    const choir_rnn_config_t* config = layer->config;
    net.cell = config->nonlinearity ? CHOIR_CELL_RNN_RELU : CHOIR_CELL_RNN_TANH;
    net.gates = net.states = 1;
  }
  net.directions = net.config.bidirectional ? 2 : 1;
  net.params = net.cell == CHOIR_CELL_GRU ? 4 : 3;
  const choir_view_t* x = choir_var_view(inputs.at[0]);
  net.dtype = x->dtype;
  net.steps = x->shape[net.config.batch_first];
  net.batch = x->shape[!net.config.batch_first];
  return net;
}

static choir_status_t add_param(choir_layer_t* layer, const net_t* net,
                                const char* name, int64_t place, int32_t ndim,
                                const int64_t* shape, bool trainable) {
  char suffix[32] = "";
  const int64_t level = place / net->directions;
  if (level > 0) snprintf(suffix, sizeof suffix, "_l%d", (int)level);
  char text[64];
  snprintf(text, sizeof text, "%s%s%s", name, suffix,
           place % net->directions ? "_reverse" : "");
  const double bound = 1 / sqrt((double)net->config.hidden_size);
  choir_initializer_t start = {.kind = CHOIR_INITIALIZER_CONSTANT};
  if (ndim > 1 && net->cell == CHOIR_CELL_GRU)
    start = (choir_initializer_t){
        .kind = CHOIR_INITIALIZER_UNIFORM, .a = -bound, .b = bound};
  else if (ndim > 1)
    start = (choir_initializer_t){.kind = CHOIR_INITIALIZER_NORMAL,
                                  .b = net->cell == CHOIR_CELL_LSTM ? 0.01 : 1};
  choir_view_t layout;
  CHOIR_TRY(choir_view_make(net->dtype, ndim, shape, &layout));
  return choir__layer_add_param(layer, text, &layout, &start, trainable);
}

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 3, 3, &x));
  const net_t net = net_of(layer, inputs);
  const int64_t hidden = net.config.hidden_size, columns = net.gates * hidden;
  const bool bias = net.config.bias;
  for (int64_t i = 0; i < net.config.num_layers * net.directions; ++i) {
    const int64_t in =
        i < net.directions ? x->shape[2] : hidden * net.directions;
    CHOIR_TRY(
        add_param(layer, &net, "Wx", i, 2, (int64_t[]){in, columns}, true));
    CHOIR_TRY(
        add_param(layer, &net, "Wh", i, 2, (int64_t[]){hidden, columns}, true));
    CHOIR_TRY(add_param(layer, &net, "b", i, 1, &columns, bias));
    if (net.cell == CHOIR_CELL_GRU)
      CHOIR_TRY(add_param(layer, &net, "bn", i, 1, &hidden, bias));
  }
  if (net.config.num_layers > 1)
    choir_layer_dropout(layer->model, "dropout", .ratio = net.config.dropout);
  return NULL;
}

static choir_var_t* sliced(choir_scope_t* scope, choir_var_t* x, int64_t axis,
                           int64_t start, int64_t count) {
  const choir_slice_attrs_t attrs = {
      .axis = axis, .start = start, .stop = start + count, .step = 1};
  return choir_var_slice(scope, x, &attrs);
}

// b behind a; a may be NULL: nothing yet.
static choir_var_t* joined(choir_scope_t* scope, choir_var_t* a, choir_var_t* b,
                           int64_t axis) {
  const choir_concat_attrs_t attrs = {.axis = axis};
  return a ? choir_var_concat(scope, (choir_var_t* const[]){a, b}, 2, &attrs)
           : b;
}

static choir_var_t* shaped(choir_scope_t* scope, choir_var_t* x, int32_t ndim,
                           int64_t a, int64_t b, int64_t c) {
  const choir_reshape_attrs_t attrs = {.ndim = ndim, .shape = {a, b, c}};
  return choir_var_reshape(scope, x, &attrs);
}

// (a, b, columns) as (b, a, columns).
static choir_var_t* turned(choir_scope_t* scope, choir_var_t* x) {
  const choir_transpose_attrs_t attrs = {.axes = {1, 0, 2}};
  return choir_var_transpose(scope, x, &attrs);
}

// T for every sample; x has three dimensions, two of them T and N.
static choir_var_t* full_lengths(choir_scope_t* scope, const net_t* net,
                                 choir_var_t* x) {
  const choir_cast_attrs_t whole = {.dtype = CHOIR_DTYPE_I32};
  const choir_fill_attrs_t steps = {.value = (double)net->steps};
  x = sliced(scope, sliced(scope, x, net->config.batch_first, 0, 1), 2, 0, 1);
  x = choir_var_cast(scope, shaped(scope, x, 1, net->batch, 0, 0), &whole);
  return choir_var_fill(scope, x, &steps);
}

// The state of direction `place` before its first step, (S, N, H).
static choir_var_t* initial(choir_scope_t* scope, const net_t* net,
                            int64_t place, choir_var_t* gates) {
  const int64_t hidden = net->config.hidden_size;
  if (!net->h0) {
    const choir_fill_attrs_t zero = {.value = 0};
    choir_var_t* some = sliced(scope, gates, 0, 0, 1);
    some = sliced(scope, some, 2, 0, net->states * hidden);
    some = shaped(scope, some, 3, net->states, net->batch, hidden);
    return choir_var_fill(scope, some, &zero);
  }
  choir_var_t* h = sliced(scope, net->h0, 0, place, 1);
  return net->c0 ? joined(scope, h, sliced(scope, net->c0, 0, place, 1), 0) : h;
}

// Direction `place` of x (T N, columns); what it gives goes behind y, h and c.
static void run_direction(choir_scope_t* scope, choir_layer_t* layer,
                          const net_t* net, int64_t place, choir_var_t* x,
                          choir_var_t** y, choir_var_t** h, choir_var_t** c) {
  const choir_recurrent_attrs_t attrs = {
      .cell = net->cell, .reverse = place % net->directions > 0};
  choir_var_t* p[4] = {NULL};  // Wx, Wh, b, bn
  for (int32_t k = 0; k < net->params; ++k)
    p[k] = choir_scope_param(scope, layer->params[place * net->params + k]);
  choir_var_t* gates = choir_var_linear(scope, x, p[0], p[2]);
  gates = shaped(scope, gates, 3, net->steps, net->batch, -1);
  choir_var_t* srcs[] = {gates, net->lengths, p[1],
                         initial(scope, net, place, gates), p[3]};
  choir_var_t* more[2];  // gates, mask
  choir_var_t* states = choir_scope_op(scope, CHOIR_OP_RECURRENT, srcs,
                                       p[3] ? 5 : 4, &attrs, more);
  const int64_t last = attrs.reverse ? 0 : net->steps;
  choir_var_t* steps = sliced(scope, states, 0, !attrs.reverse, net->steps);
  if (net->has_lengths) steps = choir_var_mul(scope, steps, more[1]);
  *y = joined(scope, *y, steps, 2);
  *h = joined(scope, *h, sliced(scope, states, 0, last, 1), 0);
  if (net->states > 1)
    *c = joined(scope, *c, sliced(scope, states, 0, net->steps + 1 + last, 1),
                0);
}

// Which input is what; else what the layer needs.
static const char* take_inputs(choir_scope_t* scope, choir_vars_t inputs,
                               net_t* net) {
  choir_var_t* last = inputs.at[inputs.count - 1];
  net->has_lengths = !choir_dtype_is_float(choir_var_view(last)->dtype);
  const int32_t states = inputs.count - 1 - net->has_lengths;
  if (net->steps == 0) return "one step at least";
  if (states != 0 && states != net->states)
    return "x, then no state or all of them, then no lengths or those in whole "
           "numbers";
  if (states > 0) net->h0 = inputs.at[1];
  if (states > 1) net->c0 = inputs.at[2];
  net->lengths =
      net->has_lengths ? last : full_lengths(scope, net, inputs.at[0]);
  return NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_view_t* view = NULL;
  const choir_status_t status =
      choir__layer_check_ndim(layer, inputs, 3, 3, &view);
  if (status) return choir_scope_fail(scope, status);
  net_t net = net_of(layer, inputs);
  const char* needs = take_inputs(scope, inputs, &net);
  if (needs)
    return choir_scope_fail(
        scope, CHOIR_ERROR(INVALID_ARGUMENT, "%s (%s): needs %s", layer->name,
                           layer->def->name, needs));
  const int64_t rows = net.steps * net.batch;
  const bool batch_first = net.config.batch_first;
  choir_var_t *x = inputs.at[0], *h = NULL, *c = NULL;
  if (batch_first) x = turned(scope, x);
  for (int64_t level = 0; level < net.config.num_layers; ++level) {
    // Masks are drawn by sample, which so must come first.
    if (level > 0)
      x = turned(scope, choir_layer_forward(scope, layer->children[0],
                                            turned(scope, x)));
    x = shaped(scope, x, 2, rows, -1, 0);
    choir_var_t* y = NULL;
    for (int64_t k = 0; k < net.directions; ++k)
      run_direction(scope, layer, &net, level * net.directions + k, x, &y, &h,
                    &c);
    x = y;
  }
  if (batch_first) {
    // Rows that lie one after the other, as linear layers want them.
    x = shaped(scope, turned(scope, x), 2, rows, -1, 0);
    x = shaped(scope, x, 3, net.batch, net.steps, -1);
  }
  return choir_scope_tuple(
      scope,
      (choir_vars_t){(choir_var_t* const[]){x, h, c}, net.states > 1 ? 3 : 2});
}

CHOIR_LAYER_DEFINE(rnn, CHOIR_RNN_FIELDS, "h = f(x Wx + h Wh + b)",
                   .max_inputs = 3, .build = build, .forward = forward);
CHOIR_LAYER_DEFINE(lstm, CHOIR_RECURRENT_FIELDS, "LSTM", .max_inputs = 4,
                   .build = build, .forward = forward);
CHOIR_LAYER_DEFINE(gru, CHOIR_RECURRENT_FIELDS, "GRU", .max_inputs = 3,
                   .build = build, .forward = forward);
