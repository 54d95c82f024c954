// SPDX-License-Identifier: Apache-2.0
// TfIdfVectorizer of numbers: how often rows have the n-grams of a pool, which
// are sorted and searched on the host.
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_ml_internal.h"
#include "onnx/operators/onnx_sizes_internal.h"

enum { TF, IDF, TFIDF };
enum { X, POOL, SIZES, STARTS, COLUMNS, WEIGHTS, SOURCES };

typedef struct ngrams_s {
  int64_t least, most;  // lengths
  int64_t reach;        // largest distance of neighbours in a row
  int32_t mode;
} ngrams_t;

typedef struct gram_s {
  const int64_t* at;
  int64_t size;
  int64_t place;  // in the pool's list of n-grams
} gram_t;

static int compare_items(const int64_t* a, const int64_t* b, int64_t stride,
                         int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    if (a[i] > b[i * stride]) return 1;
    if (a[i] < b[i * stride]) return -1;
  }
  return 0;
}

static int compare_grams(const void* left, const void* right) {
  const gram_t *a = left, *b = right;
  if (a->size != b->size) return a->size > b->size ? 1 : -1;
  const int order = compare_items(a->at, b->at, 1, a->size);
  return order ? order : (a->place > b->place) - (a->place < b->place);
}

// ---- The loop ----

// The column of `size` items that lie `stride` apart, or -1. Of equal n-grams
// the last one counts.
static int64_t find_column(const choir__onnx_array_t* srcs,
                           const int64_t* items, int64_t stride, int64_t size) {
  const int64_t* pool = srcs[POOL].data;
  const int64_t* sizes = srcs[SIZES].data;
  const int64_t* starts = srcs[STARTS].data;
  int64_t low = sizes[size - 1], high = sizes[size];
  const int64_t first = low;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (compare_items(pool + starts[middle], items, stride, size) > 0)
      high = middle;
    else
      low = middle + 1;
  }
  if (low == first ||
      compare_items(pool + starts[low - 1], items, stride, size) != 0)
    return -1;
  return ((const int64_t*)srcs[COLUMNS].data)[low - 1];
}

static void count_row(const ngrams_t* a, const choir__onnx_array_t* srcs,
                      const int64_t* row, int64_t count, float* y) {
  for (int64_t stride = 1; stride <= a->reach; ++stride)
    for (int64_t first = 0; first < count; ++first)
      for (int64_t size = a->least; size <= a->most; ++size) {
        // One item is the same at any distance.
        if (size == 1 && stride > 1) continue;
        if (size > 1 && (count - 1 - first) / (size - 1) < stride) break;
        const int64_t column = find_column(srcs, row + first, stride, size);
        if (column >= 0) y[column] += 1;
      }
}

static choir_status_t ngrams_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  const ngrams_t* a = attrs;
  const int64_t count = srcs[X].view.shape[1];
  const int64_t columns = dsts[0].view.shape[1];
  const double* weights = srcs[WEIGHTS].data;
  for (int64_t row = 0; row < srcs[X].view.shape[0]; ++row) {
    float* y = (float*)dsts[0].data + row * columns;
    for (int64_t i = 0; i < columns; ++i) y[i] = 0;
    count_row(a, srcs, (const int64_t*)srcs[X].data + row * count, count, y);
    for (int64_t i = 0; i < columns; ++i) {
      if (a->mode == IDF && y[i] > 1) y[i] = 1;
      if (a->mode != TF && srcs[WEIGHTS].count > 0) y[i] *= (float)weights[i];
    }
  }
  return NULL;
}

// ---- Attributes ----

static bool take_lengths(choir__onnx_call_t* c, int32_t sizes, ngrams_t* out) {
  static const char* const names[] = {"TF", "IDF", "TFIDF"};
  const char* mode = choir__onnx_string(c, "mode", "TF");
  out->mode = -1;
  for (int32_t i = 0; i < 3; ++i)
    if (strcmp(mode, names[i]) == 0) out->mode = i;
  out->least = choir__onnx_int(c, "min_gram_length", 1);
  out->most = choir__onnx_int(c, "max_gram_length", 1);
  out->reach = choir__onnx_int(c, "max_skip_count", 0);
  if (out->mode >= 0 && out->least >= 1 && out->most >= out->least &&
      out->reach >= 0) {
    if (out->most > sizes) out->most = sizes;
    return true;
  }
  FAIL(INVALID_ARGUMENT,
       "mode '%s', lengths from %lld to %lld, up to %lld skipped", mode,
       (long long)out->least, (long long)out->most, (long long)out->reach);
  return false;
}

// The pool's n-grams in the order of their lengths; *out_count of them. sizes
// gets the place where each length begins, and the end. NULL: it failed.
static gram_t* list_grams(choir__onnx_call_t* c, const int64_t* pool,
                          int64_t items, const int64_t* counts, int32_t lengths,
                          int64_t* sizes, int64_t* out_count) {
  gram_t* grams =
      choir_scope_alloc(c->scope, (size_t)(items + 1) * sizeof *grams);
  *out_count = 0;
  for (int32_t i = 0; grams && i < lengths; ++i) {
    const int64_t from = counts[i], size = i + 1;
    const int64_t to = i + 1 < lengths ? counts[i + 1] : items;
    if (from < 0 || to < from || to > items || (to - from) % size != 0) {
      FAIL(INVALID_ARGUMENT,
           "ngram_counts: %d-grams from item %lld to %lld of %lld", i + 1,
           (long long)from, (long long)to, (long long)items);
      return NULL;
    }
    sizes[i] = *out_count;
    for (int64_t at = from; at < to; at += size, ++*out_count)
      grams[*out_count] =
          (gram_t){.at = pool + at, .size = size, .place = *out_count};
  }
  sizes[lengths] = *out_count;
  return grams;
}

// Constants of the pool; the number of columns of a result, or -1: it failed.
static int64_t take_pool(choir__onnx_call_t* c, ngrams_t* attrs,
                         choir_var_t** srcs) {
  int32_t items, lengths, places;
  const int64_t* pool = choir__onnx_ints(c, "pool_int64s", &items);
  const int64_t* counts = choir__onnx_ints(c, "ngram_counts", &lengths);
  const int64_t* columns = choir__onnx_ints(c, "ngram_indexes", &places);
  int64_t* sizes =
      choir_scope_alloc(c->scope, (size_t)(lengths + 1) * sizeof *sizes);
  if (!sizes || !choir__onnx_ml_no_strings(c, "pool_strings") ||
      !take_lengths(c, lengths, attrs))
    return -1;
  int64_t count, width = 0;
  gram_t* grams = list_grams(c, pool, items, counts, lengths, sizes, &count);
  if (!grams) return -1;
  bool fits = count == places && count > 0;
  for (int64_t k = 0; fits && k < count; ++k) {
    fits = columns[k] >= 0 && columns[k] < INT32_MAX;
    if (fits && columns[k] >= width) width = columns[k] + 1;
  }
  if (!fits) {
    FAIL(INVALID_ARGUMENT,
         "ngram_indexes has %d numbers for %lld n-grams, or a wrong one",
         places, (long long)count);
    return -1;
  }
  qsort(grams, (size_t)count, sizeof *grams, compare_grams);
  int64_t* sorted =
      choir_scope_alloc(c->scope, (size_t)count * 2 * sizeof *sorted);
  if (!sorted) return -1;
  for (int64_t k = 0; k < count; ++k) {
    sorted[k] = grams[k].at - pool;
    sorted[count + k] = columns[grams[k].place];
  }
  srcs[POOL] = choir__onnx_ml_whole(c, pool, items);
  srcs[SIZES] = choir__onnx_ml_whole(c, sizes, (int64_t)lengths + 1);
  srcs[STARTS] = choir__onnx_ml_whole(c, sorted, count);
  srcs[COLUMNS] = choir__onnx_ml_whole(c, sorted + count, count);
  return width;
}

// Weights of columns, by those of n-grams. NULL: it failed.
static choir_var_t* take_weights(choir__onnx_call_t* c, int64_t width) {
  choir__onnx_numbers_t weights;
  int32_t places;
  const int64_t* columns = choir__onnx_ints(c, "ngram_indexes", &places);
  if (!choir__onnx_ml_numbers(c, "weights", NULL, &weights)) return NULL;
  if (weights.count == 0) return choir__onnx_ml_reals(c, NULL, 0);
  if (weights.count != places)
    return FAIL(INVALID_ARGUMENT, "%lld weights for %d n-grams",
                (long long)weights.count, places);
  const int64_t twice[] = {2, width};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_F64, 2, twice)) return NULL;
  double* of_columns =
      choir_scope_alloc(c->scope, (size_t)width * sizeof *of_columns);
  if (!of_columns) return NULL;
  for (int32_t k = 0; k < places; ++k) of_columns[columns[k]] = weights.at[k];
  return choir__onnx_ml_reals(c, of_columns, width);
}

void choir__onnx_op_tf_idf_vectorizer(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir_var_t* srcs[SOURCES];
  ngrams_t attrs;
  if (!x) return;
  if (choir_dtype_is_float(x->dtype)) {
    FAIL(INVALID_ARGUMENT, "the input is of type %s; needs integers",
         choir_onnx_type_name(TYPE(0)));
    return;
  }
  const int64_t width = take_pool(c, &attrs, srcs);
  if (width < 0) return;
  srcs[WEIGHTS] = take_weights(c, width);
  srcs[X] = choir__onnx_ml_rows(c, CHOIR_DTYPE_I64);
  const choir_view_t* rows = choir_var_view(srcs[X]);
  if (!rows) return;
  attrs.reach = attrs.reach < rows->shape[1] ? attrs.reach + 1 : rows->shape[1];
  choir_view_t result = *rows;
  result.dtype = CHOIR_DTYPE_F32;
  result.shape[1] = width;
  choir_var_t* y;
  choir__onnx_host(c, "onnx/ngrams", ngrams_loop, &attrs, sizeof attrs, srcs,
                   SOURCES, &result, 1, &y);
  if (x->ndim == 1) y = choir__onnx_reshape(c, y, 1, &width);
  OUT_AS(0, y, FLOAT);
}
