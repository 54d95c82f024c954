// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/elements.h"

// The batch norm ops: what each takes and gives is data, so that they share
// shape rule, reference and cases. Ioffe and Szegedy, "Batch Normalization",
// 2015, algorithm 1. Those with a ReLU are what a planned graph runs in the
// place of several ops.

// What a source is: an image has x's shape, a vector one element a channel.
// FACTOR is an image, or (1, c, 1, ...).
typedef enum role_e {
  X,
  RESIDUAL,
  Y,
  DY,
  DY2,
  SCALE,
  BIAS,
  MEAN,
  VAR,
  FACTOR
} role_t;
static const char* const role_names[] = {"x",   "residual", "y",    "dy",
                                         "dy2", "scale",    "bias", "mean",
                                         "var", "factor"};

enum { MAX_SOURCES = 7 };

// Results are an image, `vectors` vectors, and images again.
typedef struct norm_s {
  role_t sources[MAX_SOURCES];
  int32_t vectors;
  bool has_relu;
} norm_t;

static choir_status_t need_source(role_t role, const choir_view_t* view,
                                  const choir_view_t* x) {
  if (role < SCALE)
    return choir__need_same_shape(role_names[role], view, "x", x);
  if (role < FACTOR)
    return choir__need_vector(role_names[role], view, x->shape[1]);
  if (choir_view_count(view) != x->shape[1])
    return choir__need_same_shape(role_names[role], view, "x", x);
  choir_view_t shape = *x;
  for (int32_t k = 0; k < shape.ndim; ++k)
    if (k != 1) shape.shape[k] = 1;
  return choir__need_same_shape(role_names[role], view, "channels of x",
                                &shape);
}

static choir_status_t infer(const norm_t* norm, const choir_record_t* record,
                            choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const choir_view_t* x = &srcs[0];
  // Moments are of at least one element.
  const bool has_moments = norm->vectors > 0;
  if (x->ndim < 2 || (has_moments && choir_view_count(x) == 0)) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x is %s; needs 2 or more dimensions%s",
                       choir_view_print(x, text, sizeof text),
                       has_moments ? " and an element" : "");
  }
  for (int32_t i = 1; i < record->src_count; ++i)
    CHOIR_TRY(need_source(norm->sources[i], &srcs[i], x));
  for (int32_t i = 0; i < record->dst_count; ++i)
    CHOIR_TRY(i > 0 && i <= norm->vectors
                  ? choir__infer_shape(srcs[1].dtype, 1, &x->shape[1], &dsts[i])
                  : choir__infer_like(x, &dsts[i]));
  return NULL;
}

// ---- References ----

// x (batch, channels, ...) as batch * channels images of so many elements.
typedef struct task_s {
  const norm_t* norm;
  int32_t src_count;
  double epsilon;
  int64_t batch;
  int64_t channels;
  int64_t image;
  choir__dense_t dense;
} task_t;

static choir_status_t begin(const norm_t* norm, const choir_record_t* record,
                            choir_stream_t* stream, task_t* out_task) {
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  *out_task = (task_t){.norm = norm,
                       .src_count = record->src_count,
                       .epsilon = attrs->epsilon,
                       .batch = x->shape[0],
                       .channels = x->shape[1],
                       .image = 1};
  for (int32_t k = 2; k < x->ndim; ++k) out_task->image *= x->shape[k];
  return choir__dense_begin(record, stream, CHOIR__ALL_SOURCES,
                            &out_task->dense);
}

// NULL: not among the sources.
static double* source(const task_t* task, role_t role) {
  for (int32_t i = 0; i < task->src_count; ++i)
    if (task->norm->sources[i] == role) return task->dense.srcs[i];
  return NULL;
}

// Elements of one channel, and the place of each.
static int64_t channel_count(const task_t* task) {
  return task->batch * task->image;
}
static int64_t place_of(const task_t* task, int64_t channel, int64_t i) {
  return (i / task->image * task->channels + channel) * task->image +
         i % task->image;
}

// Mean and biased variance.
static void moments(const task_t* task, int64_t c, const double* x,
                    double* out_mean, double* out_variance) {
  const int64_t count = channel_count(task);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[place_of(task, c, i)];
  *out_mean = sum / (double)count;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = x[place_of(task, c, i)] - *out_mean;
    squares += difference * difference;
  }
  *out_variance = squares / (double)count;
}

// y = (x - mean) scale / sigma + bias (+ residual (factor)), its ReLU if there
// is one.
static choir_status_t forward(const norm_t* norm, const choir_record_t* record,
                              choir_stream_t* stream) {
  task_t task;
  CHOIR_TRY(begin(norm, record, stream, &task));
  const double* x = source(&task, X);
  const double* residual = source(&task, RESIDUAL);
  const double* factors = source(&task, FACTOR);
  const bool by_channel =
      factors && choir_view_count(choir_record_src(record, 6)) == task.channels;
  for (int64_t c = 0; c < task.channels; ++c) {
    double mean = 0, variance = 0;
    if (source(&task, MEAN)) {
      mean = source(&task, MEAN)[c];
      variance = source(&task, VAR)[c];
    } else {
      moments(&task, c, x, &mean, &variance);
      task.dense.dsts[1][c] = mean;
      task.dense.dsts[2][c] = variance;
    }
    const double factor =
        source(&task, SCALE)[c] / sqrt(variance + task.epsilon);
    for (int64_t i = 0; i < channel_count(&task); ++i) {
      const int64_t at = place_of(&task, c, i);
      double y = (x[at] - mean) * factor + source(&task, BIAS)[c];
      if (residual)
        y += residual[at] * (factors ? factors[by_channel ? c : at] : 1);
      // A NaN stays one, as in relu.
      task.dense.dsts[0][at] = norm->has_relu && y < 0 ? 0 : y;
    }
  }
  return choir__dense_end(&task.dense, NULL);
}

// dy (+ dy2), where the ReLU let something through: where y says so, or what is
// worked out again from x, which saves the result from being read.
static void output_gradient(const task_t* task, int64_t c, double inverse) {
  const double *x = source(task, X), *y = source(task, Y),
               *dy2 = source(task, DY2);
  const double mean = source(task, MEAN)[c];
  const double factor = source(task, SCALE)[c] * inverse;
  double* g = source(task, DY);
  for (int64_t i = 0; i < channel_count(task); ++i) {
    const int64_t at = place_of(task, c, i);
    if (dy2) g[at] += dy2[at];
    if (!task->norm->has_relu) continue;
    const double result =
        y ? y[at] : (x[at] - mean) * factor + source(task, BIAS)[c];
    if (!(result > 0)) g[at] = 0;
  }
}

// From g, the gradient of the normalised x: dx and the sums dscale and dbias.
// Mean and variance are those of x, so dx goes through them too:
//   dx = scale / sigma * (g - mean(g) - xhat * mean(g * xhat))
// What reaches the residual is g.
static choir_status_t backward(const norm_t* norm, const choir_record_t* record,
                               choir_stream_t* stream) {
  task_t task;
  CHOIR_TRY(begin(norm, record, stream, &task));
  double* const* dsts = task.dense.dsts;
  const double *x = source(&task, X), *g = source(&task, DY);
  const double count = (double)channel_count(&task);
  for (int64_t c = 0; c < task.channels; ++c) {
    const double mean = source(&task, MEAN)[c];
    const double inverse = 1 / sqrt(source(&task, VAR)[c] + task.epsilon);
    output_gradient(&task, c, inverse);
    double along = 0, across = 0;
    for (int64_t i = 0; i < channel_count(&task); ++i) {
      const int64_t at = place_of(&task, c, i);
      across += g[at];
      along += g[at] * (x[at] - mean) * inverse;
    }
    for (int64_t i = 0; i < channel_count(&task); ++i) {
      const int64_t at = place_of(&task, c, i);
      const double normal = (x[at] - mean) * inverse;
      dsts[0][at] = source(&task, SCALE)[c] * inverse *
                    (g[at] - across / count - normal * along / count);
      if (record->dst_count > 3) dsts[3][at] = g[at];
    }
    dsts[1][c] = along;
    dsts[2][c] = across;
  }
  return choir__dense_end(&task.dense, NULL);
}

// ---- Definitions ----

// A(x, c) and B(x, c): an op's shapes by those of x and of a vector, B with its
// optional source.
#define CASES(A, B)                                                      \
  {A("4,3", "3"), "epsilon=0.001"}, {B("1,5", "5"), NULL},               \
      {A("2,1", "1"), NULL}, {B("33,17", "17"), "epsilon=0.001"},        \
      {A("16,8", "8"), NULL}, {B("100,2", "2"), NULL},                   \
      {A("7,33", "33"), "epsilon=0.001"}, {B("2,3,4", "3"), NULL},       \
      {A("3,2,1", "2"), NULL}, {B("2,16,9", "16"), "epsilon=0.001"},     \
      {A("5,1,7", "1"), NULL}, {B("4,3,7,5", "3"), NULL},                \
      {A("2,20,6,6", "20"), "epsilon=0.001"}, {B("3,1,5,5", "1"), NULL}, \
      {A("2,16,3,3", "16"), NULL}, {B("1,8,4,4", "8"), "epsilon=0.001"}, \
      {A("2,33,2,3", "33"), NULL}, {B("1,3,9,1", "3"), NULL},            \
      {A("1,4,1,1", "4"), "epsilon=0.001"}, {                            \
    B("2,3,2,3,2", "3"), NULL                                            \
  }

#define NORM(x, c) x ";" c ";" c
#define NORM_RESIDUAL(x, c) NORM(x, c) ";" x
#define NORM_INFER(x, c) NORM(x, c) ";" c ";" c
#define NORM_INFER_ADD(x, c, f) NORM_INFER(x, c) ";" x ";" f
#define NORM_GRAD(x, c) NORM(x, c) ";" c ";" x
#define NORM_RELU_GRAD(x, c) NORM_INFER(x, c) ";" x
#define NORM_RELU_GRAD_2(x, c) NORM_RELU_GRAD(x, c) ";" x
#define NORM_ADD_GRAD(x, c) NORM_GRAD(x, c) ";" x
#define NORM_ADD_GRAD_2(x, c) NORM_ADD_GRAD(x, c) ";" x

static const choir_op_case_t norm_cases[] = {CASES(NORM, NORM), {NULL, NULL}};
static const choir_op_case_t relu_cases[] = {CASES(NORM, NORM_RESIDUAL),
                                             {NULL, NULL}};
static const choir_op_case_t infer_cases[] = {
    CASES(NORM_INFER, NORM_INFER),
    // A rank that has run out of samples.
    {NORM_INFER("0,3", "3"), NULL},
    {NORM_INFER("0,3,4,4", "3"), "epsilon=0.001"},
    {NORM_INFER("2,3,0", "3"), NULL},
    {NULL, NULL}};
static const choir_op_case_t infer_add_cases[] = {
    {NORM_INFER_ADD("4,3", "3", "1,3"), NULL},
    {NORM_INFER_ADD("33,17", "17", "1,17"), "epsilon=0.001"},
    {NORM_INFER_ADD("2,3,4", "3", "1,3,1"), NULL},
    {NORM_INFER_ADD("4,3,7,5", "3", "1,3,1,1"), NULL},
    {NORM_INFER_ADD("2,16,3,3", "16", "1,16,1,1"), "epsilon=0.001"},
    {NORM_INFER_ADD("2,33,2,3", "33", "1,33,1,1"), NULL},
    {NORM_INFER_ADD("3,64,5,5", "64", "1,64,1,1"), NULL},
    {NORM_INFER_ADD("0,3,4,4", "3", "1,3,1,1"), NULL},
    {NULL, NULL}};
static const choir_op_case_t grad_cases[] = {CASES(NORM_GRAD, NORM_GRAD),
                                             {NULL, NULL}};
static const choir_op_case_t relu_grad_cases[] = {
    CASES(NORM_RELU_GRAD, NORM_RELU_GRAD_2), {NULL, NULL}};
static const choir_op_case_t add_relu_grad_cases[] = {
    CASES(NORM_ADD_GRAD, NORM_ADD_GRAD_2), {NULL, NULL}};

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_batch_norm_attrs_t, epsilon, 1e-5, 0, 1e9,
                      "added to the variance"),
};

#define LIST(...) \
  { __VA_ARGS__ }
// Sources 1 to last_vector are vectors.
#define DEFINE(ENUM, id, run, sources_, last_vector, least, most, vectors_, \
               results_, has_relu_, ...)                                    \
  static const norm_t id##_norm = {sources_, vectors_, has_relu_};          \
  static choir_status_t id##_infer(const choir_record_t* record,            \
                                   choir_view_t* dsts) {                    \
    return infer(&id##_norm, record, dsts);                                 \
  }                                                                         \
  static choir_status_t id##_reference(const choir_record_t* record,        \
                                       choir_stream_t* stream) {            \
    return run(&id##_norm, record, stream);                                 \
  }                                                                         \
  CHOIR_OP_DEFINE_BY(ENUM, id, least, most, results_, id##_infer,           \
                     id##_reference, __VA_ARGS__,                           \
                     CHOIR_OP_ATTRS(id, fields, "normalisation"),           \
                     .wide_sources = (2u << (last_vector)) - 2u,            \
                     .dtypes = CHOIR_DTYPES_FLOAT)

static bool batch_norm_mixes(const choir_record_t* record,
                             const int64_t* rows) {
  (void)record;
  (void)rows;
  return true;
}

CHOIR_OP_GRADIENT(batch_norm, BATCH_NORM_GRAD, 0, 1, ~1, ~2, CHOIR_DY);
DEFINE(BATCH_NORM, batch_norm, forward, LIST(X, SCALE, BIAS), 2, 3, 3, 2, 3,
       false, "x, scale, bias -> normalised x, mean, biased variance",
       .mixes_samples = batch_norm_mixes, .tolerance = 1e-5,
       .cases = norm_cases);
DEFINE(BATCH_NORM_RELU, batch_norm_relu, forward,
       LIST(X, SCALE, BIAS, RESIDUAL), 2, 3, 4, 2, 3, true,
       "x, scale, bias (, residual) -> relu(normalised x + residual), mean, "
       "biased variance",
       .tolerance = 1e-5, .cases = relu_cases);
DEFINE(BATCH_NORM_INFER, batch_norm_infer, forward,
       LIST(X, SCALE, BIAS, MEAN, VAR), 4, 5, 5, 0, 1, false,
       "x, scale, bias, mean, var -> normalised x",
       .domains[4] = CHOIR_DOMAIN_POSITIVE, .tolerance = 1e-5,
       .cases = infer_cases);
DEFINE(BATCH_NORM_INFER_ADD, batch_norm_infer_add, forward,
       LIST(X, SCALE, BIAS, MEAN, VAR, RESIDUAL, FACTOR), 4, 7, 7, 0, 1, false,
       "x, scale, bias, mean, var, residual, factor -> normalised x + residual "
       "factor",
       .domains[4] = CHOIR_DOMAIN_POSITIVE, .tolerance = 1e-5,
       .cases = infer_add_cases);
DEFINE(BATCH_NORM_GRAD, batch_norm_grad, backward,
       LIST(X, SCALE, MEAN, VAR, DY), 3, 5, 5, 2, 3, false,
       "x, scale, mean, var, dy -> dx, dscale, dbias",
       .domains[3] = CHOIR_DOMAIN_POSITIVE, .tolerance = 2e-5,
       .cases = grad_cases);
DEFINE(BATCH_NORM_RELU_GRAD, batch_norm_relu_grad, backward,
       LIST(X, SCALE, BIAS, MEAN, VAR, DY, DY2), 4, 6, 7, 2, 3, true,
       "x, scale, bias, mean, var, dy (, dy2) -> dx, dscale, dbias",
       .domains[4] = CHOIR_DOMAIN_POSITIVE, .tolerance = 2e-5,
       .cases = relu_grad_cases);
DEFINE(BATCH_NORM_ADD_RELU_GRAD, batch_norm_add_relu_grad, backward,
       LIST(X, SCALE, MEAN, VAR, Y, DY, DY2), 3, 6, 7, 2, 4, true,
       "x, scale, mean, var, y, dy (, dy2) -> dx, dscale, dbias, dresidual",
       .domains[3] = CHOIR_DOMAIN_POSITIVE, .tolerance = 2e-5,
       .cases = add_relu_grad_cases);
