// SPDX-License-Identifier: Apache-2.0
// attention and its gradient: the reference holds one row of weights.
#include "tensor/ops/attention.h"

#include <math.h>
#include <string.h>

#include "core/random.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/randoms.h"

static const char doc[] =
    "q, k, v (, mask) -> y = softmax(scale q k^T + mask) v by row, and the "
    "logarithm of each row's sum";
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

// The gradients' last source too.
static const choir_view_t* mask_of(const choir_record_t* record) {
  const int32_t count = record->src_count;
  return count == 4 || count == 7 ? choir_record_src(record, count - 1) : NULL;
}

void choir__attention_spread(const choir_view_t* mask, int64_t strides[4]) {
  for (int32_t k = 0; k < 4; ++k) {
    const int32_t own = mask->ndim - 4 + k;
    strides[k] =
        own >= 0 && mask->shape[own] > 1 ? mask->strides[own] : (int64_t)0;
  }
}

choir__attention_t choir__attention_of(const choir_record_t* record) {
  const choir_attention_attrs_t* attrs = record->attrs;
  const choir_view_t* q = choir_record_src(record, 0);
  const choir_view_t* k = choir_record_src(record, 1);
  const int64_t depth = q->shape[3];
  choir__attention_t a = {
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
      .drop = attrs,
      .mask = mask_of(record)};
  if (!a.mask) return a;
  a.hides = !choir_dtype_is_float(a.mask->dtype);
  choir__attention_spread(a.mask, a.mask_strides);
  return a;
}

static choir_status_t check_mask(const choir_view_t* mask,
                                 const choir_view_t* q, const choir_view_t* k) {
  const int64_t scores[] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
  bool fits = mask->ndim <= 4;
  for (int32_t i = 0; fits && i < mask->ndim; ++i)
    fits = mask->shape[i] == 1 || mask->shape[i] == scores[4 - mask->ndim + i];
  char text[160];
  if (!fits)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "the mask is %s; needs a shape that broadcasts to (%lld, "
        "%lld, %lld, %lld)",
        choir_view_print(mask, text, sizeof text), (long long)scores[0],
        (long long)scores[1], (long long)scores[2], (long long)scores[3]);
  if (choir_dtype_is_float(mask->dtype) && mask->dtype != q->dtype)
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "the mask is %s; needs %s, bool or whole numbers",
        choir_view_print(mask, text, sizeof text), choir_dtype_name(q->dtype));
  return NULL;
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
  const choir_view_t* mask = mask_of(record);
  return mask ? check_mask(mask, q, k) : NULL;
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
  return choir__infer_shape(
      choir__is_narrow(y.dtype) ? CHOIR_DTYPE_F32 : y.dtype, 3, y.shape,
      &dsts[1]);
}

static choir_status_t check_grad(const choir_record_t* record) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(check(record));
  const choir_view_t y = like_y(srcs);
  choir_view_t sums = y;
  sums.ndim = 3;
  CHOIR_TRY(choir__need_same_shape("y", &srcs[3], "the result", &y));
  CHOIR_TRY(choir__need_same_shape("the sums", &srcs[4], "the result", &sums));
  return choir__need_same_shape("dy", &srcs[5], "y", &srcs[3]);
}

static choir_status_t attention_grad_infer(const choir_record_t* record,
                                           choir_view_t* dsts) {
  CHOIR_TRY(check_grad(record));
  for (int i = 0; i < 3; ++i)
    CHOIR_TRY(choir__infer_like(&record->operands[i], &dsts[i]));
  return NULL;
}

static choir_status_t attention_mask_grad_infer(const choir_record_t* record,
                                                choir_view_t* dsts) {
  CHOIR_TRY(check_grad(record));
  return choir__infer_like(&record->operands[6], &dsts[0]);
}

// ---- References ----

// One head's matrices, by rows.
typedef struct head_s {
  const double *q, *k, *v;
  const double* mask;      // NULL: none
  int64_t head;            // of all samples'
  int64_t k_at, v_at;      // where k and v begin
  int64_t mask_at;         // where the head's part of the mask begins
  int64_t mask_row, step;  // between the mask's rows and columns
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
  if (!a->mask) return h;
  choir_view_t mask = *a->mask;
  choir_view_set_contiguous(&mask);
  int64_t strides[4];
  choir__attention_spread(&mask, strides);
  h.mask_at = head / a->heads * strides[0] + head % a->heads * strides[1];
  h.mask_row = strides[2];
  h.step = strides[3];
  h.mask = dense->srcs[dense->record->src_count - 1] + h.mask_at;
  return h;
}

// Whether place (i, j), which `causal` lets row i see, is hidden by the mask.
static bool is_hidden(const choir__attention_t* a, const head_t* h, int64_t i,
                      int64_t j) {
  return a->hides && h->mask && h->mask[i * h->mask_row + j * h->step] == 0;
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

// The scores of row i, -inf where the mask hides one; the largest, NaN if one
// is.
static double row_of(const choir__attention_t* a, const head_t* h, int64_t i,
                     double* weights) {
  const int64_t seen = choir__attention_seen(a, i);
  double most = -INFINITY;
  for (int64_t j = 0; j < seen; ++j) {
    weights[j] = -INFINITY;
    if (is_hidden(a, h, i, j)) continue;
    weights[j] =
        a->scale * dot(h->q + i * a->depth, h->k + j * a->depth, a->depth);
    if (h->mask && !a->hides)
      weights[j] += h->mask[i * h->mask_row + j * h->step];
    if (weights[j] > most || isnan(weights[j])) most = weights[j];
  }
  return most;
}

static void forward_row(const choir__attention_t* a, const head_t* h, int64_t i,
                        double* weights, double factor, double* y,
                        double* log_sum) {
  const int64_t seen = choir__attention_seen(a, i);
  const double most = row_of(a, h, i, weights);
  *log_sum = a->mask ? NAN : -INFINITY;
  if (most == -INFINITY) {  // sees nothing
    for (int64_t c = 0; a->mask && c < a->width; ++c) y[c] = NAN;
    return;
  }
  double sum = 0;
  for (int64_t j = 0; j < seen; ++j) {
    weights[j] = is_hidden(a, h, i, j) ? 0 : exp(weights[j] - most);
    sum += weights[j];
  }
  for (int64_t j = 0; j < seen; ++j) {
    if (is_hidden(a, h, i, j)) continue;
    const double m = kept(a, h->head, i, j, factor);
    const double p = m == 0 ? 0 : weights[j] / sum * m;
    for (int64_t c = 0; c < a->width; ++c) y[c] += p * h->v[j * a->width + c];
  }
  *log_sum = most + log(sum);
}

// What row i of the gradient is made of: with p the weights, m what they count
// as and e = sum(dy y),
//   ds = p (m dy v^T - e)   of the scores, and so of an added mask
//   pm = p m
// for the places that it sees.
static void backward_scores(const choir__attention_t* a, const head_t* h,
                            int64_t i, double factor, const double* y,
                            double log_sum, const double* dy, double* ds,
                            double* pm) {
  const int64_t seen = choir__attention_seen(a, i);
  const double e = dot(dy, y, a->width);
  (void)row_of(a, h, i, ds);
  for (int64_t j = 0; j < seen; ++j) {
    if (is_hidden(a, h, i, j)) continue;
    const double p = log_sum == -INFINITY ? 0 : exp(ds[j] - log_sum);
    const double m = kept(a, h->head, i, j, factor);
    const double slope =
        m == 0 ? 0 : m * dot(dy, h->v + j * a->width, a->width);
    ds[j] = p * (slope - e);
    pm[j] = m == 0 ? 0 : p * m;
  }
}

// dq = ds k scale, dk = ds^T q scale, dv = (p m)^T dy.
static void backward_row(const choir__attention_t* a, const head_t* h,
                         int64_t i, const double* ds, const double* pm,
                         const double* dy, double* dq, double* dk, double* dv) {
  const int64_t seen = choir__attention_seen(a, i);
  const double* q = h->q + i * a->depth;
  for (int64_t j = 0; j < seen; ++j) {
    if (is_hidden(a, h, i, j)) continue;
    const double scaled = ds[j] * a->scale;
    for (int64_t c = 0; c < a->width; ++c)
      dv[j * a->width + c] += pm[j] * dy[c];
    for (int64_t c = 0; c < a->depth; ++c) {
      dq[c] += scaled * h->k[j * a->depth + c];
      dk[j * a->depth + c] += scaled * q[c];
    }
  }
}

static choir_status_t reference(const choir_record_t* record,
                                choir_stream_t* stream) {
  const choir__attention_t a = choir__attention_of(record);
  // As in dropout: rounded to f32 first, but for f64.
  double factor = 1 / (1 - a.drop->dropout);
  if (choir_record_src(record, 0)->dtype != CHOIR_DTYPE_F64)
    factor = (float)factor;
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  void* memory = NULL;
  const size_t bytes = 2 * (size_t)(a.columns + 1) * sizeof(double);
  choir_status_t status =
      choir_allocate(dense.allocator, bytes, "rows of weights", &memory);
  for (int64_t r = 0; !status && r < a.batch * a.heads * a.rows; ++r) {
    const head_t h = head_of(&a, &dense, r / a.rows);
    const int64_t i = r % a.rows, y_at = r * a.width;
    double *row = memory, *pm = row + a.columns + 1;
    if (record->dst_count == 2) {
      forward_row(&a, &h, i, row, factor, dense.dsts[0] + y_at,
                  dense.dsts[1] + r);
      continue;
    }
    const double* dy = dense.srcs[5] + y_at;
    backward_scores(&a, &h, i, factor, dense.srcs[3] + y_at, dense.srcs[4][r],
                    dy, row, pm);
    if (record->dst_count == 3) {
      backward_row(&a, &h, i, row, pm, dy, dense.dsts[0] + r * a.depth,
                   dense.dsts[1] + h.k_at, dense.dsts[2] + h.v_at);
      continue;
    }
    double* dmask = dense.dsts[0] + h.mask_at + i * h.mask_row;
    for (int64_t j = 0; j < choir__attention_seen(&a, i); ++j)
      dmask[j * h.step] += row[j];
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

// q, k and masks are near 0: large scores are rounded before the softmax takes
// their differences. S(q, k, v, y, sums): the shapes of an op's operands.
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
      {S("0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3"), NULL}, {      \
    S("2,2,3,4", "2,2,0,4", "2,2,0,4", "2,2,3,4", "2,2,3"), NULL             \
  }
// With masks that broadcast in each of their dimensions.
// S(q, k, v, y, sums, mask).
#define MASKED_CASES(S)                                                        \
  {S("1,1,1,1", "1,1,1,1", "1,1,1,1", "1,1,1,1", "1,1,1", "1"), NULL},         \
      {S("2,2,3,4", "2,2,3,4", "2,2,3,4", "2,2,3,4", "2,2,3", "2,2,3,3"),      \
       NULL},                                                                  \
      {S("2,2,3,4", "2,1,5,4", "2,1,5,3", "2,2,3,3", "2,2,3", "3,5"),          \
       "causal=1 offset=1"},                                                   \
      {S("2,2,4,3", "2,2,5,3", "2,2,5,3", "2,2,4,3", "2,2,4", "2,1,1,5"),      \
       "dropout=0.2 seed=9"},                                                  \
      {S("2,2,4,3", "2,1,5,3", "2,1,5,2", "2,2,4,2", "2,2,4", "2,4,1"),        \
       "causal=1"},                                                            \
      {S("3,1,4,5", "3,1,2,5", "3,1,2,5", "3,1,4,5", "3,1,4", "1,1,4,2"),      \
       "scale=2"},                                                             \
      {S("1,2,9,4", "1,2,7,4", "1,2,7,4", "1,2,9,4", "1,2,9", "7"), NULL},     \
      {S("2,1,3,4", "2,1,3,4", "2,1,3,4", "2,1,3,4", "2,1,3", ""), NULL},      \
      {S("2,3,6,5", "2,3,6,5", "2,3,6,5", "2,3,6,5", "2,3,6", "6,6"),          \
       "dropout=0.3 seed=4"},                                                  \
      {S("1,8,1,16", "1,2,12,16", "1,2,12,16", "1,8,1,16", "1,8,1", "8,1,12"), \
       "causal=1 offset=9"},                                                   \
      {S("2,2,20,8", "2,1,30,8", "2,1,30,8", "2,2,20,8", "2,2,20",             \
         "2,1,20,30"),                                                         \
       "causal=1"},                                                            \
      {S("2,4,10,8", "2,4,9,8", "2,4,9,8", "2,4,10,8", "2,4,10", "4,1,1"),     \
       NULL},                                                                  \
      {S("1,1,33,7", "1,1,17,7", "1,1,17,33", "1,1,33,33", "1,1,33", "33,1"),  \
       "scale=0.2"},                                                           \
      {S("2,1,9,4", "2,1,130,4", "2,1,130,4", "2,1,9,4", "2,1,9", "9,130"),    \
       NULL},                                                                  \
      {S("1,2,8,8", "1,2,16,8", "1,2,16,8", "1,2,8,8", "1,2,8", "1,2,8,16"),   \
       NULL},                                                                  \
      {S("2,2,70,8", "2,1,140,8", "2,1,140,8", "2,2,70,8", "2,2,70",           \
         "2,1,70,140"),                                                        \
       "causal=1 offset=65"},                                                  \
      {S("1,4,65,16", "1,2,130,16", "1,2,130,40", "1,4,65,40", "1,4,65",       \
         "4,65,130"),                                                          \
       "dropout=0.2 seed=3"},                                                  \
      {S("2,1,100,8", "2,1,150,8", "2,1,150,8", "2,1,100,8", "2,1,100",        \
         "2,1,1,150"),                                                         \
       NULL},                                                                  \
      {S("1,2,100,8", "1,2,150,8", "1,2,150,8", "1,2,100,8", "1,2,100",        \
         "1,1,100,1"),                                                         \
       "causal=1"},                                                            \
  {                                                                            \
    S("0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3,4", "0,2,3", "3,3"), NULL        \
  }
#define OF_OP(q, k, v, y, sums) q ";" k ";" v
#define OF_GRAD(q, k, v, y, sums) q ";" k ";" v ";" y ";" sums ";" y
#define OF_MASKED(q, k, v, y, sums, mask) OF_OP(q, k, v, y, sums) ";" mask
#define OF_MASKED_GRAD(q, k, v, y, sums, mask) \
  OF_GRAD(q, k, v, y, sums) ";" mask
static const choir_op_case_t cases[] = {
    CASES(OF_OP), MASKED_CASES(OF_MASKED), {NULL, NULL}};
static const choir_op_case_t grad_cases[] = {
    CASES(OF_GRAD), MASKED_CASES(OF_MASKED_GRAD), {NULL, NULL}};
static const choir_op_case_t mask_grad_cases[] = {MASKED_CASES(OF_MASKED_GRAD),
                                                  {NULL, NULL}};

#define DTYPES_MASK                                                        \
  (CHOIR_DTYPE_MASK(BOOL) | CHOIR_DTYPE_MASK(U8) | CHOIR_DTYPE_MASK(I32) | \
   CHOIR_DTYPE_MASK(I64))

CHOIR_OP_DEFINE_BY(ATTENTION, attention, 3, 4, 2, attention_infer, reference,
                   doc, CHOIR_OP_ATTRS(attention, fields, doc),
                   .cost = attention_cost, .at_step = attention_at_step,
                   .dtypes = CHOIR_DTYPES_FLOAT, .last_dtypes = DTYPES_MASK,
                   .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT,
                               CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_UNIT},
                   .tolerance = 1e-5, .cases = cases);

#define DEFINE_GRAD(ENUM, id, least, results, doc, ...)                   \
  CHOIR_OP_DEFINE_BY(                                                     \
      ENUM, id, least, 7, results, id##_infer, reference, doc,            \
      CHOIR_OP_ATTRS(id, fields, "as attention"), .cost = attention_cost, \
      .at_step = attention_at_step, .dtypes = CHOIR_DTYPES_FLOAT,         \
      .wide_sources = CHOIR__SOURCE(4),                                   \
      .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_ANY, \
                  CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_POSITIVE},               \
      .tolerance = 5e-5, __VA_ARGS__)
DEFINE_GRAD(ATTENTION_GRAD, attention_grad, 6, 3,
            "q, k, v, y, sums, dy (, mask) -> dq, dk, dv",
            .last_dtypes = DTYPES_MASK, .cases = grad_cases);
DEFINE_GRAD(ATTENTION_MASK_GRAD, attention_mask_grad, 7, 1,
            "q, k, v, y, sums, dy, mask -> dmask", .cases = mask_grad_cases);
