// SPDX-License-Identifier: Apache-2.0
// attention and its gradient: the reference holds one row of weights.
#include "tensor/ops/attention.h"

#include <math.h>
#include <string.h>

#include "core/random.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/randoms.h"

static const char doc[] =
    "q, k, v -> y = softmax(scale q k^T) v by row, and the logarithm of each "
    "row's sum";
static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_attention_attrs_t, scale, 0, 0, INFINITY,
                      "of the products of q and k; 0: 1 / sqrt(their size)"),
    CHOIR_FIELD_BOOL(choir_attention_attrs_t, causal, false,
                     "row i sees rows 0 .. i + offset of k and v alone"),
    CHOIR_FIELD_INT(choir_attention_attrs_t, offset, 0, -(1ll << 40), 1ll << 40,
                    "where q's first row is among those of k"),
    CHOIR_FIELD_FLOAT(choir_attention_attrs_t, dropout, 0, 0, 1,
                      "share of weights that become 0; below 1"),
    CHOIR__KEY_FIELDS(choir_attention_attrs_t),
};

choir__attention_t choir__attention_of(const choir_record_t* record) {
  const choir_attention_attrs_t* attrs = record->attrs;
  const choir_view_t* q = choir_record_src(record, 0);
  const choir_view_t* k = choir_record_src(record, 1);
  const int64_t depth = q->shape[3];
  return (choir__attention_t){
      .batch = q->shape[0],
      .heads = q->shape[1],
      .kv_heads = k->shape[1],
      .rows = q->shape[2],
      .columns = k->shape[2],
      .depth = depth,
      .width = choir_record_src(record, 2)->shape[3],
      .causal = attrs->causal,
      .offset = attrs->offset,
      .scale = attrs->scale > 0 ? attrs->scale
                                : 1 / sqrt(depth > 0 ? (double)depth : 1),
      .drop = attrs};
}

static choir_status_t check(const choir_record_t* record) {
  const choir_view_t* srcs = record->operands;
  static const char* const names[] = {"q", "k", "v"};
  const choir_view_t *q = &srcs[0], *k = &srcs[1], *v = &srcs[2];
  for (int i = 0; i < 3; ++i)
    CHOIR_TRY(choir__need_ndim(names[i], &srcs[i], 4));
  const double dropout =
      ((const choir_attention_attrs_t*)record->attrs)->dropout;
  if (!(dropout < 1))
    return CHOIR_ERROR(INVALID_ARGUMENT, "dropout is %g; needs to be below 1",
                       dropout);
  char text[3][160];
  if (k->shape[0] != q->shape[0] || k->shape[3] != q->shape[3] ||
      k->shape[1] < 1 || q->shape[1] % k->shape[1] != 0)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "q is %s and k is %s; needs (n, h, t, d) and (n, g, s, d) with h a "
        "multiple of g",
        choir_view_print(q, text[0], sizeof text[0]),
        choir_view_print(k, text[1], sizeof text[1]));
  if (memcmp(v->shape, k->shape, 3 * sizeof(v->shape[0])) != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "k is %s and v is %s; needs v's first three sizes to be "
                       "k's",
                       choir_view_print(k, text[1], sizeof text[1]),
                       choir_view_print(v, text[2], sizeof text[2]));
  return NULL;
}

// q with v's last size: what y is like.
static choir_view_t like_y(const choir_view_t* srcs) {
  choir_view_t y = srcs[0];
  y.shape[3] = srcs[2].shape[3];
  return y;
}

static choir_status_t attention_infer(const choir_record_t* record,
                                      choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(check(record));
  const choir_view_t y = like_y(srcs);
  CHOIR_TRY(choir__infer_like(&y, &dsts[0]));
  return choir__infer_shape(y.dtype, 3, y.shape, &dsts[1]);
}

static choir_status_t attention_grad_infer(const choir_record_t* record,
                                           choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(check(record));
  const choir_view_t y = like_y(srcs);
  choir_view_t sums = y;
  sums.ndim = 3;
  CHOIR_TRY(choir__need_same_shape("y", &srcs[3], "the result", &y));
  CHOIR_TRY(choir__need_same_shape("the sums", &srcs[4], "the result", &sums));
  CHOIR_TRY(choir__need_same_shape("dy", &srcs[5], "y", &srcs[3]));
  for (int i = 0; i < 3; ++i) CHOIR_TRY(choir__infer_like(&srcs[i], &dsts[i]));
  return NULL;
}

// ---- References ----

// One head's matrices, by rows.
typedef struct head_s {
  const double *q, *k, *v;
  int64_t head;        // of all samples'
  int64_t k_at, v_at;  // where k and v begin
} head_t;

static head_t head_of(const choir__attention_t* a, const choir__dense_t* dense,
                      int64_t head) {
  const int64_t group = a->heads / a->kv_heads;
  const int64_t kv = head / a->heads * a->kv_heads + head % a->heads / group;
  head_t h = {.head = head,
              .k_at = kv * a->columns * a->depth,
              .v_at = kv * a->columns * a->width};
  h.q = dense->srcs[0] + head * a->rows * a->depth;
  h.k = dense->srcs[1] + h.k_at;
  h.v = dense->srcs[2] + h.v_at;
  return h;
}

static double dot(const double* x, const double* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// What weight (i, j) counts as, which is 1 without dropout.
static double kept(const choir__attention_t* a, int64_t head, int64_t i,
                   int64_t j, double factor) {
  const choir_attention_attrs_t* drop = a->drop;
  if (drop->dropout == 0) return 1;
  const choir_random_key_t key = {(uint64_t)drop->seed, (uint32_t)drop->stream,
                                  (uint32_t)drop->step};
  const uint32_t word = choir_random_word(
      key, (uint64_t)(drop->first_sample + head / a->heads),
      (uint64_t)((head % a->heads * a->rows + i) * a->columns + j));
  return choir_random_to_uniform(word) >= drop->dropout ? factor : 0;
}

// The weights of row i before they are divided by their sum; the largest
// product, NaN if one is.
static double row_of(const choir__attention_t* a, const head_t* h, int64_t i,
                     double* weights) {
  const int64_t seen = choir__attention_seen(a, i);
  double most = -INFINITY;
  for (int64_t j = 0; j < seen; ++j) {
    weights[j] =
        a->scale * dot(h->q + i * a->depth, h->k + j * a->depth, a->depth);
    if (weights[j] > most || isnan(weights[j])) most = weights[j];
  }
  return most;
}

static void forward_row(const choir__attention_t* a, const head_t* h, int64_t i,
                        double* weights, double factor, double* y,
                        double* log_sum) {
  const int64_t seen = choir__attention_seen(a, i);
  const double most = row_of(a, h, i, weights);
  *log_sum = -INFINITY;
  if (most == -INFINITY) return;  // sees nothing
  double sum = 0;
  for (int64_t j = 0; j < seen; ++j) sum += weights[j] = exp(weights[j] - most);
  for (int64_t j = 0; j < seen; ++j) {
    const double m = kept(a, h->head, i, j, factor);
    const double p = m == 0 ? 0 : weights[j] / sum * m;
    for (int64_t c = 0; c < a->width; ++c) y[c] += p * h->v[j * a->width + c];
  }
  *log_sum = most + log(sum);
}

// With p the weights, m what they count as and e = sum(dy y):
// ds = p (m dy v^T - e) scale, dq = ds k, dk = ds^T q, dv = (p m)^T dy.
static void backward_row(const choir__attention_t* a, const head_t* h,
                         int64_t i, double* weights, double factor,
                         const double* y, double log_sum, const double* dy,
                         double* dq, double* dk, double* dv) {
  const int64_t seen = choir__attention_seen(a, i);
  const double* q = h->q + i * a->depth;
  const double e = dot(dy, y, a->width);
  (void)row_of(a, h, i, weights);
  for (int64_t j = 0; j < seen; ++j) {
    const double p = log_sum == -INFINITY ? 0 : exp(weights[j] - log_sum);
    const double m = kept(a, h->head, i, j, factor);
    const double slope =
        m == 0 ? 0 : m * dot(dy, h->v + j * a->width, a->width);
    const double ds = p * (slope - e) * a->scale;
    const double counts = m == 0 ? 0 : p * m;
    for (int64_t c = 0; c < a->width; ++c)
      dv[j * a->width + c] += counts * dy[c];
    for (int64_t c = 0; c < a->depth; ++c) {
      dq[c] += ds * h->k[j * a->depth + c];
      dk[j * a->depth + c] += ds * q[c];
    }
  }
}

static choir_status_t reference(const choir_record_t* record,
                                choir_stream_t* stream) {
  const choir__attention_t a = choir__attention_of(record);
  const bool is_grad = record->dst_count == 3;
  // As in dropout: rounded to f32 first, but for f64.
  double factor = 1 / (1 - a.drop->dropout);
  if (choir_record_src(record, 0)->dtype != CHOIR_DTYPE_F64)
    factor = (float)factor;
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  void* memory = NULL;
  const size_t bytes = (size_t)(a.columns + 1) * sizeof(double);
  choir_status_t status =
      choir_allocate(dense.allocator, bytes, "a row of weights", &memory);
  for (int64_t r = 0; !status && r < a.batch * a.heads * a.rows; ++r) {
    const head_t h = head_of(&a, &dense, r / a.rows);
    const int64_t i = r % a.rows, y_at = r * a.width;
    if (is_grad)
      backward_row(&a, &h, i, memory, factor, dense.srcs[3] + y_at,
                   dense.srcs[4][r], dense.srcs[5] + y_at,
                   dense.dsts[0] + r * a.depth, dense.dsts[1] + h.k_at,
                   dense.dsts[2] + h.v_at);
    else
      forward_row(&a, &h, i, memory, factor, dense.dsts[0] + y_at,
                  dense.dsts[1] + r);
  }
  choir_deallocate(dense.allocator, memory, bytes);
  return choir__dense_end(&dense, status);
}

static void attention_at_step(void* attrs_, const choir_step_values_t* values) {
  choir_attention_attrs_t* attrs = attrs_;
  if (attrs->dropout == 0) return;  // nothing is drawn
  attrs->step = values->step;
  attrs->first_sample = values->first_sample;
}

static void attention_cost(const choir_record_t* record,
                           choir_cost_t* out_cost) {
  const choir__attention_t a = choir__attention_of(record);
  double seen = 0;
  for (int64_t i = 0; i < a.rows; ++i)
    seen += (double)choir__attention_seen(&a, i);
  const double sizes = record->dst_count == 3
                           ? 3.0 * (double)a.depth + 2.0 * (double)a.width
                           : (double)(a.depth + a.width);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = 2.0 * sizes * seen * (double)(a.batch * a.heads);
}

// q and k are near 0: products of large numbers are rounded before the softmax
// takes their differences. S(q, k, v, y, sums): the shapes of an op's operands.
#define CASES(S)                                                             \
  {S("1,1,1,1", "1,1,1,1", "1,1,1,1", "1,1,1,1", "1,1,1"), NULL},            \
      {S("2,1,3,4", "2,1,3,4", "2,1,3,4", "2,1,3,4", "2,1,3"), "causal=1"},  \
      {S("1,2,5,3", "1,2,7,3", "1,2,7,2", "1,2,5,2", "1,2,5"), NULL},        \
      {S("1,2,7,3", "1,2,5,3", "1,2,5,6", "1,2,7,6", "1,2,7"), "causal=1"},  \
      {S("2,4,6,5", "2,2,6,5", "2,2,6,5", "2,4,6,5", "2,4,6"),               \
       "causal=1 dropout=0.5 seed=9 step=1"},                                \
      {S("1,6,4,8", "1,1,9,8", "1,1,9,8", "1,6,4,8", "1,6,4"), "scale=2"},   \
      {S("1,1,1,16", "1,1,12,16", "1,1,12,16", "1,1,1,16", "1,1,1"),         \
       "causal=1 offset=11"},                                                \
      {S("1,2,5,8", "1,2,9,8", "1,2,9,8", "1,2,5,8", "1,2,5"),               \
       "causal=1 offset=4"},                                                 \
      {S("1,1,6,4", "1,1,6,4", "1,1,6,4", "1,1,6,4", "1,1,6"),               \
       "causal=1 offset=-2"},                                                \
      {S("1,2,16,16", "1,2,16,16", "1,2,16,16", "1,2,16,16", "1,2,16"),      \
       "causal=1"},                                                          \
      {S("1,1,33,31", "1,1,33,31", "1,1,33,33", "1,1,33,33", "1,1,33"),      \
       "causal=1"},                                                          \
      {S("1,1,64,32", "1,1,64,32", "1,1,64,32", "1,1,64,32", "1,1,64"),      \
       "causal=1"},                                                          \
      {S("2,4,64,32", "2,4,64,32", "2,4,64,32", "2,4,64,32", "2,4,64"),      \
       "dropout=0.2 seed=1 first_sample=7"},                                 \
      {S("1,3,65,40", "1,3,129,40", "1,3,129,24", "1,3,65,24", "1,3,65"),    \
       NULL},                                                                \
      {S("1,2,130,64", "1,2,130,64", "1,2,130,64", "1,2,130,64", "1,2,130"), \
       "causal=1"},                                                          \
      {S("1,4,100,64", "1,2,300,64", "1,2,300,64", "1,4,100,64", "1,4,100"), \
       "causal=1 offset=200"},                                               \
      {S("1,1,257,20", "1,1,257,20", "1,1,257,20", "1,1,257,20", "1,1,257"), \
       "causal=1 dropout=0.1 seed=2"},                                       \
      {S("1,1,7,128", "1,1,140,128", "1,1,140,96", "1,1,7,96", "1,1,7"),     \
       "scale=0.1 dropout=0.4 seed=3 stream=4 step=5"},                      \
      {S("1,2,200,16", "1,2,31,16", "1,2,31,48", "1,2,200,48", "1,2,200"),   \
       "causal=1 offset=-40"},                                               \
      {S("3,1,1,8", "3,1,1,8", "3,1,1,8", "3,1,1,8", "3,1,1"), "causal=1"},  \
      {S("0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3"), NULL},        \
      {S("2,2,3,4", "2,2,0,4", "2,2,0,4", "2,2,3,4", "2,2,3"), NULL}, {      \
    NULL, NULL                                                               \
  }
#define OF_OP(q, k, v, y, sums) q ";" k ";" v
#define OF_GRAD(q, k, v, y, sums) q ";" k ";" v ";" y ";" sums ";" y
static const choir_op_case_t cases[] = {CASES(OF_OP)};
static const choir_op_case_t grad_cases[] = {CASES(OF_GRAD)};

CHOIR_OP_DEFINE_BY(ATTENTION, attention, 3, 3, 2, attention_infer, reference,
                   doc, CHOIR_OP_ATTRS(attention, fields, doc),
                   .cost = attention_cost, .at_step = attention_at_step,
                   .dtypes = CHOIR_DTYPES_FLOAT,
                   .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT},
                   .tolerance = 1e-5, .cases = cases);
CHOIR_OP_DEFINE_BY(ATTENTION_GRAD, attention_grad, 6, 6, 3,
                   attention_grad_infer, reference,
                   "q, k, v, y, sums, dy -> dq, dk, dv",
                   CHOIR_OP_ATTRS(attention_grad, fields, "as attention"),
                   .cost = attention_cost, .at_step = attention_at_step,
                   .dtypes = CHOIR_DTYPES_FLOAT,
                   .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT,
                               CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY,
                               CHOIR_DOMAIN_POSITIVE},
                   .tolerance = 5e-5, .cases = grad_cases);

CHOIR_OP_GRADIENT(attention, ATTENTION_GRAD, 0, 1, 2, ~0, ~1, CHOIR_DY);
