// SPDX-License-Identifier: Apache-2.0
// Random numbers: keyed by the step, as those of layers are, so that a sample
// draws the same ones on whatever rank it is. Dropout is one of them: in a
// training step nodes do as PyTorch's layers in train mode. One with a seed
// draws what ONNX's reference draws, the same in every forward and on every
// rank.
#include <string.h>

#include "model/layer_def.h"
#include "onnx/onnx_twister_def.h"
#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_sequences_internal.h"

// The next stream. A node that runs again for Gradient has the one that it had.
static int64_t next_stream(choir__onnx_call_t* c) {
  choir__onnx_run_t* run = c->run;
  choir__onnx_draws_t* draws = run->draws;
  if (run->drawn < draws->count) return draws->streams[run->drawn++];
  const int64_t stream =
      choir__layer_dropout_stream(run->before ? draws->scope : c->scope);
  if (draws->count == draws->capacity) {
    const int32_t capacity = draws->capacity ? 2 * draws->capacity : 16;
    int64_t* streams =
        choir_scope_alloc(draws->scope, sizeof(*streams) * (size_t)capacity);
    if (!streams) return stream;
    if (draws->count > 0)
      memcpy(streams, draws->streams, sizeof(*streams) * (size_t)draws->count);
    draws->streams = streams;
    draws->capacity = capacity;
  }
  draws->streams[draws->count++] = stream;
  run->drawn = draws->count;
  return stream;
}

// The node's own key. The file's seed, where it says one, is a float of which
// fractions count as well.
static choir_random_attrs_t key_of(choir__onnx_call_t* c, double low,
                                   double high) {
  const choir_step_t* step = choir_scope_step(c->scope);
  double seed = choir__onnx_float(c, "seed", 0);
  if (!(seed > -9e15 && seed < 9e15)) seed = 0;
  return (choir_random_attrs_t){.seed = choir__onnx_has_attr(c, "seed")
                                            ? (int64_t)(seed * 1024)
                                            : step->seed,
                                .stream = next_stream(c),
                                .step = step->step,
                                .first_sample = step->first_sample,
                                .low = low,
                                .high = high};
}

// A tensor of this shape, of which the elements do not count.
static choir_var_t* like(choir__onnx_call_t* c, choir_dtype_t dtype,
                         int32_t ndim, const int64_t* shape) {
  if (ndim > CHOIR_MAX_NDIM)
    return FAIL(UNIMPLEMENTED, "%d dimensions; at most %d are possible", ndim,
                CHOIR_MAX_NDIM);
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] < 0)
      return FAIL(INVALID_ARGUMENT, "dimension %d of the shape is %lld", i,
                  (long long)shape[i]);
  return choir__onnx_zeros(c, dtype, ndim, shape);
}

// Attribute dtype, or `type`; it has to be of floats.
static int32_t type_of(choir__onnx_call_t* c, int32_t type,
                       choir_dtype_t* out_dtype) {
  const int64_t given = choir__onnx_int(c, "dtype", type);
  *out_dtype = CHOIR_DTYPE_F32;
  if (given < INT32_MIN || given > INT32_MAX) {
    FAIL(INVALID_ARGUMENT, "dtype %lld", (long long)given);
    return type;
  }
  choir_status_t status = choir_onnx_type_dtype((int32_t)given, out_dtype);
  if (status) choir__onnx_fail(c, status);
  return (int32_t)given;
}

// Numbers of a shape: normal ones by mean and scale, others from low to high.
static void give_numbers(choir__onnx_call_t* c, bool is_normal, int32_t type,
                         int32_t ndim, const int64_t* shape) {
  choir_dtype_t dtype;
  type = type_of(c, type, &dtype);
  if (CALL_IS_OK && !choir_dtype_is_float(dtype))
    FAIL(UNIMPLEMENTED, "dtype is %s; needs floating-point numbers",
         choir_onnx_type_name(type));
  if (!CALL_IS_OK) return;
  choir_var_t* x = like(c, dtype, ndim, shape);
  const choir_random_attrs_t key =
      key_of(c, choir__onnx_float(c, is_normal ? "mean" : "low", 0),
             choir__onnx_float(c, is_normal ? "scale" : "high", 1));
  choir__onnx_out_as(
      c, 0,
      is_normal ? DO(random_normal, x, &key) : DO(random_uniform, x, &key),
      type);
}

static void by_shape(choir__onnx_call_t* c, bool is_normal) {
  int32_t ndim;
  const int64_t* shape = choir__onnx_ints(c, "shape", &ndim);
  give_numbers(c, is_normal, CHOIR_ONNX_FLOAT, ndim, shape);
}

static void by_input(choir__onnx_call_t* c, bool is_normal) {
  const choir_view_t* x = VIEW(0);
  if (x) give_numbers(c, is_normal, TYPE(0), x->ndim, x->shape);
}

void choir__onnx_op_random_normal(choir__onnx_call_t* c) { by_shape(c, true); }
void choir__onnx_op_random_uniform(choir__onnx_call_t* c) {
  by_shape(c, false);
}
void choir__onnx_op_random_normal_like(choir__onnx_call_t* c) {
  by_input(c, true);
}
void choir__onnx_op_random_uniform_like(choir__onnx_call_t* c) {
  by_input(c, false);
}

void choir__onnx_op_bernoulli(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  choir_dtype_t dtype;
  const int32_t type = type_of(c, TYPE(0), &dtype);
  // 16 bits are too few for uniform numbers.
  const choir_dtype_t wide =
      x->dtype == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32;
  const choir_random_attrs_t key = key_of(c, 0, 1);
  choir_var_t* drawn =
      DO(random_uniform, like(c, wide, x->ndim, x->shape), &key);
  choir_var_t* is_one = DO(less, drawn, choir__onnx_cast(c, IN(0), wide));
  if (CALL_IS_OK)
    choir__onnx_out_as(c, 0, choir__onnx_cast(c, is_one, dtype), type);
}

// By the largest of each row's log-probabilities plus Gumbel noise, which is
// class k as often as its probability says (Gumbel, 1954).
void choir__onnx_op_multinomial(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const int64_t samples = choir__onnx_int(c, "sample_size", 1);
  choir_dtype_t dtype;
  const int32_t type = type_of(c, CHOIR_ONNX_INT32, &dtype);
  if (x->ndim != 2 || samples < 1 || !choir_dtype_is_float(x->dtype)) {
    FAIL(INVALID_ARGUMENT,
         "the input has %d dimensions and sample_size is %lld; needs floats in "
         "2 dimensions and 1 or more",
         x->ndim, (long long)samples);
    return;
  }
  const int64_t shape[] = {x->shape[0], samples, x->shape[1]};
  const int64_t rows[] = {x->shape[0], 1, x->shape[1]};
  const choir_random_attrs_t key = key_of(c, 0, 1);
  choir_var_t* u = DO(random_uniform, like(c, CHOIR_DTYPE_F32, 3, shape), &key);
  choir_var_t* noise = DO(neg, DO(log, DO(neg, DO(log, u))));
  choir_var_t* logits = choir__onnx_reshape(
      c, choir__onnx_cast(c, IN(0), CHOIR_DTYPE_F32), 3, rows);
  const choir_argmax_attrs_t last = {.axis = 2};
  choir_var_t* chosen = DO(argmax, DO(add, logits, noise), &last);
  if (CALL_IS_OK)
    choir__onnx_out_as(c, 0, choir__onnx_cast(c, chosen, dtype), type);
}

// ---- Dropout ----

// All true, or 1 before version 10.
static void give_whole_mask(choir__onnx_call_t* c, const choir_view_t* x) {
  if (!choir__onnx_wants(c, 1)) return;
  const choir_dtype_t dtype = c->version < 10 ? x->dtype : CHOIR_DTYPE_BOOL;
  OUT(1, choir__onnx_filled(c, dtype, x->ndim, x->shape, 1));
}

// ONNX's reference: numpy.random.seed(seed), and what is kept is where
// numpy.random.uniform(0, 1, shape) >= ratio. Of a seed that NumPy refuses the
// lower 32 bits count.
static void give_seeded(choir__onnx_call_t* c, const choir_view_t* x,
                        double ratio) {
  if (!choir__onnx_fits(c, x->dtype, x->ndim, x->shape)) return;
  const size_t count = (size_t)choir_view_count(x);
  const size_t width = choir_dtype_bytes(x->dtype);
  char* factors = choir_scope_alloc(c->scope, count * width + 1);
  uint8_t* mask = choir_scope_alloc(c->scope, count + 1);
  if (!factors || !mask) return;
  choir__twister_t twister;
  choir__twister_seed(&twister, (uint32_t)choir__onnx_int(c, "seed", 0));
  for (size_t i = 0; i < count; ++i) {
    mask[i] = choir__twister_uniform(&twister) >= ratio;
    choir_element_store(factors + i * width, x->dtype,
                        mask[i] ? 1 / (1 - ratio) : 0);
  }
  OUT(0, DO(mul, IN(0),
            choir__onnx_constant(c, x->dtype, x->ndim, x->shape, factors)));
  if (choir__onnx_wants(c, 1))
    OUT(1, choir__onnx_constant(c, CHOIR_DTYPE_BOOL, x->ndim, x->shape, mask));
}

static bool is_in_training(choir__onnx_call_t* c) {
  if (choir__onnx_is_training(c)) return true;
  if (c->version < 7) return choir__onnx_int(c, "is_test", 0) == 0;
  return c->version >= 12 && choir__onnx_read_number(c, 2, 0) != 0;
}

void choir__onnx_op_dropout(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  // Counted also where nothing is drawn, so that a place keeps its stream.
  const int64_t stream = next_stream(c);
  const double ratio = c->version < 12 ? choir__onnx_float(c, "ratio", 0.5)
                                       : choir__onnx_read_number(c, 1, 0.5);
  if (!is_in_training(c) || ratio == 0) {
    OUT(0, IN(0));
    give_whole_mask(c, x);
    return;
  }
  if (!(ratio > 0 && ratio < 1)) {
    FAIL(INVALID_ARGUMENT, "ratio is %g; needs 0 or more, below 1", ratio);
    return;
  }
  if (c->version >= 12 && choir__onnx_has_attr(c, "seed")) {
    give_seeded(c, x, ratio);
    return;
  }
  const choir_step_t* step = choir_scope_step(c->scope);
  const choir_dropout_attrs_t attrs = {.ratio = ratio,
                                       .seed = step->seed,
                                       .stream = stream,
                                       .step = step->step,
                                       .first_sample = step->first_sample};
  if (!choir__onnx_wants(c, 1)) {
    OUT(0, DO(dropout, IN(0), &attrs));
    return;
  }
  choir_var_t* ones = DO(fill, IN(0), &(choir_fill_attrs_t){.value = 1});
  choir_var_t* mask = DO(dropout, ones, &attrs);
  OUT(0, DO(mul, IN(0), mask));
  choir_var_t* is_kept =
      DO(not_equal, mask, choir__onnx_scalar(c, x->dtype, 0));
  OUT(1, choir__onnx_cast(c, is_kept,
                          c->version < 10 ? x->dtype : CHOIR_DTYPE_BOOL));
}
