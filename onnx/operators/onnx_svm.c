// SPDX-License-Identifier: Apache-2.0
// SVMRegressor and SVMClassifier of ai.onnx.ml: loops of the host's over the
// rows of a table. Each pair of classes has a decision of its own, of which
// each is a vote (Chang and Lin, LIBSVM, 2011).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_ml_internal.h"

enum { LINEAR, POLY, RBF, SIGMOID };

typedef struct svm_s {
  int32_t kernel;
  double gamma, shift, degree;
  int32_t post;
  int64_t vectors;  // 0: coefficients multiply features
  int64_t classes;
  bool is_one_class;
  bool is_positive;  // no coefficient is negative
} svm_t;

enum { X, VECTORS, FACTORS, RHO, PROB_A, PROB_B, STARTS, LABELS, SOURCES };

// ---- Rows ----

static double kernel_of(const svm_t* svm, int32_t kernel, const double* a,
                        const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += kernel == RBF ? (a[i] - b[i]) * (a[i] - b[i]) : a[i] * b[i];
  switch (kernel) {
    case POLY:
      return pow(svm->gamma * sum + svm->shift, svm->degree);
    case RBF:
      return exp(-svm->gamma * sum);
    case SIGMOID:
      return tanh(svm->gamma * sum + svm->shift);
    default:
      return sum;
  }
}

// Kernels of row x with all vectors.
static void set_kernels(const svm_t* svm, const choir__onnx_array_t* srcs,
                        int64_t row, double* kernels) {
  const int64_t features = srcs[X].view.shape[1];
  const double* x = (const double*)srcs[X].data + row * features;
  for (int64_t k = 0; k < svm->vectors; ++k)
    kernels[k] =
        kernel_of(svm, svm->kernel, x,
                  (const double*)srcs[VECTORS].data + k * features, features);
}

static double part(const double* factors, const double* kernels, int64_t from,
                   int64_t to) {
  double sum = 0;
  for (int64_t k = from; k < to; ++k) sum += factors[k] * kernels[k];
  return sum;
}

static choir_status_t regress_loop(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  const svm_t* svm = attrs;
  const int64_t rows = srcs[X].view.shape[0], features = srcs[X].view.shape[1];
  const double* factors = srcs[FACTORS].data;
  double* y = dsts[0].data;
  double* kernels = calloc((size_t)svm->vectors + 1, sizeof *kernels);
  if (!kernels) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for kernels");
  for (int64_t row = 0; row < rows; ++row) {
    set_kernels(svm, srcs, row, kernels);
    double sum =
        svm->vectors
            ? part(factors, kernels, 0, svm->vectors)
            : kernel_of(svm, LINEAR, factors,
                        (const double*)srcs[X].data + row * features, features);
    sum += ((const double*)srcs[RHO].data)[0];
    if (svm->is_one_class) sum = sum > 0 ? 1 : -1;
    choir__onnx_ml_transform(svm->post, &sum, 1);
    y[row] = sum;
  }
  free(kernels);
  return NULL;
}

// ---- Probabilities ----

// Of pairwise ones r (count, count) those of all classes: the p that minimises
// the sum of (r_ji p_i - r_ij p_j)^2, by cyclic steps (Wu, Lin and Weng,
// "Probability estimates for multi-class classification by pairwise coupling",
// 2004, algorithm 2). q and qp: room for count^2 and count numbers.
static void couple(const double* r, int64_t count, double* q, double* qp,
                   double* p) {
  for (int64_t t = 0; t < count; ++t) {
    p[t] = 1.0 / (double)count;
    q[t * count + t] = 0;
    for (int64_t j = 0; j < count; ++j) {
      if (j == t) continue;
      q[t * count + t] += r[j * count + t] * r[j * count + t];
      q[t * count + j] = -r[j * count + t] * r[t * count + j];
    }
  }
  const int64_t most = count > 100 ? count : 100;
  for (int64_t turn = 0; turn < most; ++turn) {
    double pqp = 0, error = 0;
    for (int64_t t = 0; t < count; ++t) {
      qp[t] = 0;
      for (int64_t j = 0; j < count; ++j) qp[t] += q[t * count + j] * p[j];
      pqp += p[t] * qp[t];
    }
    for (int64_t t = 0; t < count; ++t) error = fmax(error, fabs(qp[t] - pqp));
    if (error < 0.005 / (double)count) return;
    for (int64_t t = 0; t < count; ++t) {
      const double step = (pqp - qp[t]) / q[t * count + t];
      const double whole = 1 + step;
      pqp = (pqp + step * (step * q[t * count + t] + 2 * qp[t])) /
            (whole * whole);
      p[t] += step;
      for (int64_t j = 0; j < count; ++j) {
        qp[j] = (qp[j] + step * q[t * count + j]) / whole;
        p[j] /= whole;
      }
    }
  }
}

// ---- Classes ----

// Room for one row.
typedef struct room_s {
  double* kernels;    // vectors
  double* decisions;  // pairs, or classes
  double* votes;      // classes
  double* pairs;      // classes^2
  double* q;          // classes^2
  double* qp;         // classes
  double* shares;     // classes
} room_t;

static void decide_pairs(const svm_t* svm, const choir__onnx_array_t* srcs,
                         int64_t row, room_t* room) {
  const double *factors = srcs[FACTORS].data, *rho = srcs[RHO].data;
  const int64_t* starts = srcs[STARTS].data;
  set_kernels(svm, srcs, row, room->kernels);
  for (int64_t i = 0; i < svm->classes; ++i) room->votes[i] = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < svm->classes; ++i)
    for (int64_t j = i + 1; j < svm->classes; ++j, ++at) {
      const double sum = rho[at] +
                         part(factors + (j - 1) * svm->vectors, room->kernels,
                              starts[i], starts[i + 1]) +
                         part(factors + i * svm->vectors, room->kernels,
                              starts[j], starts[j + 1]);
      room->decisions[at] = sum;
      room->votes[sum > 0 ? i : j] += 1;
    }
}

static void decide_linear(const svm_t* svm, const choir__onnx_array_t* srcs,
                          int64_t row, room_t* room) {
  const int64_t features = srcs[X].view.shape[1];
  for (int64_t i = 0; i < svm->classes; ++i)
    room->decisions[i] =
        ((const double*)srcs[RHO].data)[0] +
        kernel_of(svm, LINEAR, (const double*)srcs[X].data + row * features,
                  (const double*)srcs[FACTORS].data + i * features, features);
}

static void set_shares(const svm_t* svm, const choir__onnx_array_t* srcs,
                       room_t* room) {
  const double *a = srcs[PROB_A].data, *b = srcs[PROB_B].data;
  const double least = 1e-7;
  int64_t at = 0;
  for (int64_t i = 0; i < svm->classes; ++i)
    for (int64_t j = i + 1; j < svm->classes; ++j, ++at) {
      const double share = 1 / (1 + exp(a[at] * room->decisions[at] + b[at]));
      const double kept = fmin(fmax(share, least), 1 - least);
      room->pairs[i * svm->classes + j] = kept;
      room->pairs[j * svm->classes + i] = 1 - kept;
    }
  couple(room->pairs, svm->classes, room->q, room->qp, room->shares);
}

static int64_t largest(const double* at, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    if (at[i] > at[best]) best = i;
  return best;
}

// A row's label and scores, of which there are `count`.
static void classify(const svm_t* svm, const choir__onnx_array_t* srcs,
                     int64_t row, room_t* room, int64_t count, int64_t* label,
                     double* scores) {
  const int64_t* labels = srcs[LABELS].data;
  const bool has_shares = svm->vectors && srcs[PROB_A].count > 0;
  if (svm->vectors)
    decide_pairs(svm, srcs, row, room);
  else
    decide_linear(svm, srcs, row, room);
  const double* marks = svm->vectors ? room->votes : room->decisions;
  int64_t best = largest(marks, svm->classes);
  if (svm->classes == 2 && !has_shares && svm->is_positive &&
      srcs[RHO].count == 1 && marks[best] >= 0.5)
    best = 1;
  *label = labels[best];
  if (svm->classes == 1) *label = marks[0] > 0 ? labels[0] : 0;
  if (has_shares) set_shares(svm, srcs, room);
  const double* given = has_shares ? room->shares : room->decisions;
  if (svm->vectors && svm->classes == 2 && !has_shares) {
    scores[0] = -given[0];
    scores[1] = given[0];
  } else {
    memcpy(scores, given, (size_t)count * sizeof *scores);
  }
  choir__onnx_ml_transform(svm->post, scores, count);
}

static choir_status_t classify_loop(const choir__onnx_array_t* srcs,
                                    const choir__onnx_array_t* dsts,
                                    const void* attrs) {
  const svm_t* svm = attrs;
  const int64_t n = svm->classes, squares = svm->vectors ? n * n : n;
  const int64_t count = dsts[1].view.shape[1];
  double* memory =
      calloc((size_t)(svm->vectors + 3 * n + 3 * squares), sizeof *memory);
  if (!memory) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for kernels");
  room_t room = {.kernels = memory};
  room.decisions = room.kernels + svm->vectors;
  room.votes = room.decisions + squares;
  room.qp = room.votes + n;
  room.shares = room.qp + n;
  room.pairs = room.shares + n;
  room.q = room.pairs + squares;
  for (int64_t row = 0; row < srcs[X].view.shape[0]; ++row)
    classify(svm, srcs, row, &room, count, (int64_t*)dsts[0].data + row,
             (double*)dsts[1].data + row * count);
  free(memory);
  return NULL;
}

// ---- Attributes ----

static bool take_kernel(choir__onnx_call_t* c, svm_t* out) {
  static const char* const names[] = {"LINEAR", "POLY", "RBF", "SIGMOID"};
  const char* given = choir__onnx_string(c, "kernel_type", "LINEAR");
  int32_t count;
  const float* params = choir__onnx_floats(c, "kernel_params", &count);
  *out = (svm_t){.kernel = -1};
  for (int32_t i = 0; i < 4; ++i)
    if (strcmp(given, names[i]) == 0) out->kernel = i;
  if (out->kernel < 0 || (count != 0 && count != 3)) {
    FAIL(INVALID_ARGUMENT,
         "kernel_type '%s' with %d kernel_params; needs LINEAR, POLY, RBF or "
         "SIGMOID, and 3 or none",
         given, count);
    return false;
  }
  if (count == 3) {
    out->gamma = (double)params[0];
    out->shift = (double)params[1];
    out->degree = (double)params[2];
  }
  return choir__onnx_ml_post(c, &out->post);
}

// Attribute `name` as a constant, of `count` numbers (-1: any number of them,
// but one).
static bool take_reals(choir__onnx_call_t* c, const char* name, int64_t count,
                       choir__onnx_numbers_t* numbers, choir_var_t** out) {
  if (!choir__onnx_ml_numbers(c, name, NULL, numbers)) return false;
  if (count >= 0 ? numbers->count != count : numbers->count < 1) {
    FAIL(INVALID_ARGUMENT, "attribute %s has %lld numbers; needs %lld", name,
         (long long)numbers->count, (long long)(count >= 0 ? count : 1));
    return false;
  }
  *out = choir__onnx_ml_reals(c, numbers->at, numbers->count);
  return true;
}

// Vectors and coefficients: `rows` of them for each vector, or, without
// vectors, for each feature.
static bool take_vectors(choir__onnx_call_t* c, svm_t* svm, int64_t rows,
                         choir_var_t** srcs) {
  choir__onnx_numbers_t numbers;
  srcs[X] = choir__onnx_ml_rows(c, CHOIR_DTYPE_F64);
  const choir_view_t* x = choir_var_view(srcs[X]);
  if (!x) return false;
  int64_t count = 0, factors = 0;
  if (__builtin_mul_overflow(svm->vectors, x->shape[1], &count) ||
      __builtin_mul_overflow(svm->vectors ? svm->vectors : x->shape[1], rows,
                             &factors)) {
    FAIL(INVALID_ARGUMENT, "%lld vectors", (long long)svm->vectors);
    return false;
  }
  if (svm->vectors == 0)
    srcs[VECTORS] = choir__onnx_ml_reals(c, NULL, 0);
  else if (!take_reals(c, "support_vectors", count, &numbers, &srcs[VECTORS]))
    return false;
  if (!take_reals(c, "coefficients", factors, &numbers, &srcs[FACTORS]))
    return false;
  svm->is_positive = true;
  for (int64_t k = 0; k < numbers.count; ++k)
    svm->is_positive &= numbers.at[k] >= 0;
  return true;
}

void choir__onnx_op_svm_regressor(choir__onnx_call_t* c) {
  svm_t svm;
  choir__onnx_numbers_t numbers;
  choir_var_t* srcs[SOURCES];
  if (!take_kernel(c, &svm)) return;
  svm.vectors = choir__onnx_int(c, "n_supports", 0);
  svm.is_one_class = choir__onnx_int(c, "one_class", 0) != 0;
  if (svm.vectors < 0) {
    FAIL(INVALID_ARGUMENT, "n_supports is %lld", (long long)svm.vectors);
    return;
  }
  if (!take_vectors(c, &svm, 1, srcs) ||
      !take_reals(c, "rho", -1, &numbers, &srcs[RHO]))
    return;
  choir_view_t result = *choir_var_view(srcs[X]);
  result.shape[1] = 1;
  choir_var_t* y;
  choir__onnx_host(c, "onnx/svm_regressor", regress_loop, &svm, sizeof svm,
                   srcs, RHO + 1, &result, 1, &y);
  OUT_AS(0, choir__onnx_cast(c, y, CHOIR_DTYPE_F32), FLOAT);
}

// vectors_per_class as places where each class begins, and their end.
static bool take_starts(choir__onnx_call_t* c, svm_t* svm,
                        choir_var_t** out_starts) {
  int32_t count;
  const int64_t* sizes = choir__onnx_ints(c, "vectors_per_class", &count);
  int64_t* starts =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *starts);
  if (!starts) return false;
  bool fits = count == 0 || count == svm->classes;
  for (int32_t i = 0; fits && i < count; ++i)
    fits = sizes[i] >= 0 &&
           !__builtin_add_overflow(starts[i], sizes[i], &starts[i + 1]);
  if (!fits) {
    FAIL(INVALID_ARGUMENT,
         "vectors_per_class has %d numbers for %lld classes, or a negative one",
         count, (long long)svm->classes);
    return false;
  }
  svm->vectors = starts[count];
  *out_starts = choir__onnx_ml_whole(c, starts, (int64_t)count + 1);
  return true;
}

// The rest of a classifier's sources, and how many scores a row has.
static bool take_classes(choir__onnx_call_t* c, svm_t* svm, choir_var_t** srcs,
                         int64_t* out_count) {
  choir__onnx_numbers_t a, b, rho;
  const int64_t pairs = svm->classes * (svm->classes - 1) / 2;
  const bool has_pairs = svm->vectors > 0;
  if (!take_vectors(c, svm, has_pairs ? svm->classes - 1 : svm->classes,
                    srcs) ||
      !choir__onnx_ml_numbers(c, "prob_a", NULL, &a) ||
      !take_reals(c, "rho", has_pairs ? pairs : -1, &rho, &srcs[RHO]))
    return false;
  const bool has_shares = has_pairs && a.count > 0;
  if (!take_reals(c, "prob_a", has_shares ? pairs : a.count, &a,
                  &srcs[PROB_A]) ||
      !take_reals(c, "prob_b", has_shares ? pairs : a.count, &b, &srcs[PROB_B]))
    return false;
  *out_count =
      !has_pairs || has_shares || svm->classes == 2 ? svm->classes : pairs;
  return true;
}

void choir__onnx_op_svm_classifier(choir__onnx_call_t* c) {
  svm_t svm;
  int32_t count;
  int64_t scores;
  choir_var_t *srcs[SOURCES], *outs[2];
  const int64_t* labels = choir__onnx_ml_labels(c, "classlabels_ints",
                                                "classlabels_strings", &count);
  if (!labels || !take_kernel(c, &svm)) return;
  svm.classes = count;
  if (!take_starts(c, &svm, &srcs[STARTS])) return;
  if (svm.vectors > 0 && count < 2) {
    FAIL(INVALID_ARGUMENT, "%d class label; vectors need two or more", count);
    return;
  }
  if (!take_classes(c, &svm, srcs, &scores)) return;
  srcs[LABELS] = choir__onnx_ml_whole(c, labels, count);
  choir_view_t results[2] = {*choir_var_view(srcs[X]),
                             *choir_var_view(srcs[X])};
  results[0].dtype = CHOIR_DTYPE_I64;
  results[0].ndim = 1;
  results[1].shape[1] = scores;
  choir__onnx_host(c, "onnx/svm_classifier", classify_loop, &svm, sizeof svm,
                   srcs, SOURCES, results, 2, outs);
  OUT_AS(0, outs[0], INT64);
  OUT_AS(1, choir__onnx_cast(c, outs[1], CHOIR_DTYPE_F32), FLOAT);
}
