// SPDX-License-Identifier: Apache-2.0
// Sums of products by an equation. Operands are taken in one after the other:
// each round is a product of matrices, or of elements where nothing is summed,
// so that gradients flow.
#include <string.h>

#include "onnx/operators/onnx_reduce_internal.h"

// 52 letters, then the dimensions of an ellipsis, the last one last.
enum { DOTS = 52, LABELS = DOTS + CHOIR_MAX_NDIM };

typedef struct term_s {
  int32_t ndim;
  int32_t labels[CHOIR_MAX_NDIM];
} term_t;

typedef struct einsum_s {
  int64_t sizes[LABELS];   // -1: no operand has it
  int32_t counts[LABELS];  // how often operands have it
  int32_t later[LABELS];   // operands to come that have it
  bool is_out[LABELS];
  int32_t dots;  // dimensions of the longest ellipsis
  term_t out;
} einsum_t;

// An operand on its way.
typedef struct part_s {
  choir_var_t* var;
  term_t term;
} part_t;

static bool has(const term_t* term, int32_t label) {
  for (int32_t i = 0; i < term->ndim; ++i)
    if (term->labels[i] == label) return true;
  return false;
}

// ---- The equation ----

static int32_t letter_of(char character) {
  if (character >= 'A' && character <= 'Z') return character - 'A';
  if (character >= 'a' && character <= 'z') return character - 'a' + 26;
  return -1;
}

static bool add_label(choir__onnx_call_t* c, term_t* term, int32_t label) {
  if (term->ndim == CHOIR_MAX_NDIM) {
    FAIL(UNIMPLEMENTED,
         "a term of more than %d dimensions; at most so many "
         "are possible",
         CHOIR_MAX_NDIM);
    return false;
  }
  term->labels[term->ndim++] = label;
  return true;
}

// A term up to a comma, an arrow or the end; `dots`: how many dimensions its
// ellipsis has. *text is moved behind it.
static bool parse_term(choir__onnx_call_t* c, const char** text, int32_t dots,
                       term_t* out_term, bool* out_has_dots) {
  *out_term = (term_t){.ndim = 0};
  *out_has_dots = false;
  for (; **text && **text != ',' && **text != '-'; ++*text) {
    if (**text == ' ') continue;
    const int32_t letter = letter_of(**text);
    if (letter >= 0) {
      if (!add_label(c, out_term, letter)) return false;
    } else if (strncmp(*text, "...", 3) == 0 && !*out_has_dots) {
      *out_has_dots = true;
      *text += 2;
      for (int32_t i = LABELS - dots; i < LABELS; ++i)
        if (!add_label(c, out_term, i)) return false;
    } else {
      FAIL(INVALID_ARGUMENT,
           "the equation has '%c' where a letter, one ellipsis, a comma or an "
           "arrow is needed",
           **text >= ' ' && **text <= '~' ? **text : '?');
      return false;
    }
  }
  return true;
}

// The term of an operand, whose dimensions say what its ellipsis stands for.
static bool parse_operand(choir__onnx_call_t* c, einsum_t* sum,
                          const char** text, int32_t i, term_t* out_term) {
  const choir_view_t* view = VIEW(i);
  if (!view) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
    return false;
  }
  bool has_dots;
  const char* start = *text;
  if (!parse_term(c, text, 0, out_term, &has_dots)) return false;
  const int32_t dots = view->ndim - out_term->ndim;
  if (dots < 0 || (dots > 0 && !has_dots)) {
    FAIL(INVALID_ARGUMENT,
         "input %d has %d dimensions; its term in the equation has %d", i,
         view->ndim, out_term->ndim);
    return false;
  }
  if (dots > 0) {
    *text = start;
    if (!parse_term(c, text, dots, out_term, &has_dots)) return false;
  }
  if (dots > sum->dots) sum->dots = dots;
  for (int32_t k = 0; k < out_term->ndim; ++k) {
    const int32_t label = out_term->labels[k];
    const int64_t size = view->shape[k];
    ++sum->counts[label];
    if (sum->sizes[label] == -1 || sum->sizes[label] == 1)
      sum->sizes[label] = size;
    if (size == 1 || size == sum->sizes[label]) continue;
    FAIL(INVALID_ARGUMENT,
         "dimension %d of input %d has %lld elements; others of its letter "
         "have %lld",
         k, i, (long long)size, (long long)sum->sizes[label]);
    return false;
  }
  return true;
}

// Without an arrow: the ellipsis, then letters that are there once, in order.
static bool parse_result(choir__onnx_call_t* c, einsum_t* sum,
                         const char* text) {
  bool has_dots = true;
  if (text[0] == '-') {
    text += 2;
    if (!parse_term(c, &text, sum->dots, &sum->out, &has_dots)) return false;
  } else {
    for (int32_t i = LABELS - sum->dots; i < LABELS; ++i)
      if (!add_label(c, &sum->out, i)) return false;
    for (int32_t i = 0; i < DOTS; ++i)
      if (sum->counts[i] == 1 && !add_label(c, &sum->out, i)) return false;
  }
  if (text[0] != 0) {
    FAIL(INVALID_ARGUMENT,
         "the equation has '%s' behind its result; needs "
         "nothing there",
         text);
    return false;
  }
  for (int32_t i = 0; i < sum->out.ndim; ++i) {
    const int32_t label = sum->out.labels[i];
    if (sum->sizes[label] >= 0 && !sum->is_out[label]) {
      sum->is_out[label] = true;
      continue;
    }
    FAIL(INVALID_ARGUMENT, "dimension %d of the equation's result %s", i,
         sum->is_out[label] ? "has the letter of another; needs its own"
                            : "is of no input");
    return false;
  }
  return true;
}

static bool parse(choir__onnx_call_t* c, einsum_t* sum, term_t* terms) {
  const char* text = choir__onnx_string(c, "equation", NULL);
  if (!text) {
    FAIL(INVALID_ARGUMENT, "attribute equation is missing");
    return false;
  }
  for (int32_t i = 0; i < LABELS; ++i) sum->sizes[i] = -1;
  for (int32_t i = 0; i < c->in_count; ++i) {
    if (!parse_operand(c, sum, &text, i, &terms[i])) return false;
    const bool is_last = i == c->in_count - 1;
    const bool is_end = text[0] == 0 || strncmp(text, "->", 2) == 0;
    if (is_last ? !is_end : text[0] != ',') {
      FAIL(INVALID_ARGUMENT,
           "the equation does not have as many terms as there are inputs, %d",
           c->in_count);
      return false;
    }
    if (!is_last) ++text;
  }
  for (int32_t i = 0; i < c->in_count; ++i)
    for (int32_t k = 0; k < LABELS; ++k)
      if (has(&terms[i], k)) ++sum->later[k];
  return parse_result(c, sum, text);
}

// ---- One operand ----

// The diagonal of dimensions first and second: they become one, the last.
static bool take_diagonal(choir__onnx_call_t* c, part_t* part, int32_t first,
                          int32_t second) {
  const choir_view_t* view = choir_var_view(part->var);
  if (!view) return false;
  const int64_t n = view->shape[first];
  if (n != view->shape[second]) {
    FAIL(INVALID_ARGUMENT,
         "a diagonal of %lld and %lld elements; needs as many", (long long)n,
         (long long)view->shape[second]);
    return false;
  }
  int64_t order[CHOIR_MAX_NDIM], shape[CHOIR_MAX_NDIM];
  term_t term = {.ndim = 0};
  for (int32_t i = 0; i < view->ndim; ++i) {
    if (i == first || i == second) continue;
    order[term.ndim] = i;
    shape[term.ndim] = view->shape[i];
    term.labels[term.ndim++] = part->term.labels[i];
  }
  const int32_t last = term.ndim;
  order[last] = first;
  order[last + 1] = second;
  term.labels[term.ndim++] = part->term.labels[first];
  if (!choir__onnx_times(c, n, n, &shape[last])) return false;
  const choir_slice_attrs_t attrs = {
      .axis = last, .start = 0, .stop = shape[last], .step = n + 1};
  choir_var_t* x = choir__onnx_transpose(c, part->var, order);
  x = choir__onnx_reshape(c, x, term.ndim, shape);
  *part = (part_t){DO(slice, x, &attrs), term};
  return CALL_IS_OK;
}

// Takes dimensions of 1 out where others of their letter have more.
static bool drop_ones(choir__onnx_call_t* c, const einsum_t* sum,
                      part_t* part) {
  const choir_view_t* view = choir_var_view(part->var);
  if (!view) return false;
  int64_t shape[CHOIR_MAX_NDIM];
  term_t term = {.ndim = 0};
  for (int32_t i = 0; i < view->ndim; ++i) {
    const int32_t label = part->term.labels[i];
    if (view->shape[i] == 1 && sum->sizes[label] != 1) continue;
    shape[term.ndim] = view->shape[i];
    term.labels[term.ndim++] = label;
  }
  if (term.ndim < view->ndim)
    part->var = choir__onnx_reshape(c, part->var, term.ndim, shape);
  part->term = term;
  return CALL_IS_OK;
}

static bool take_operand(choir__onnx_call_t* c, einsum_t* sum, int32_t i,
                         const term_t* term, part_t* out_part) {
  *out_part = (part_t){IN(i), *term};
  for (int32_t k = 0; k < LABELS; ++k)
    if (has(term, k)) --sum->later[k];
  if (VIEW(i)->dtype == CHOIR_DTYPE_U8)
    out_part->var = choir__onnx_cast(c, out_part->var, CHOIR_DTYPE_I32);
  for (int32_t a = 0; a < out_part->term.ndim; ++a)
    for (int32_t b = a + 1; b < out_part->term.ndim; ++b)
      if (out_part->term.labels[a] == out_part->term.labels[b]) {
        if (!take_diagonal(c, out_part, a, b)) return false;
        a = -1;
        break;
      }
  return drop_ones(c, sum, out_part);
}

// Sums over what nobody but this part has.
static bool sum_own(choir__onnx_call_t* c, const einsum_t* sum, part_t* part,
                    const term_t* other) {
  choir__onnx_axes_t axes = {.count = 0};
  term_t term = {.ndim = 0};
  for (int32_t i = 0; i < part->term.ndim; ++i) {
    const int32_t label = part->term.labels[i];
    axes.has[i] = !sum->is_out[label] && sum->later[label] == 0 &&
                  !(other && has(other, label));
    if (axes.has[i])
      ++axes.count;
    else
      term.labels[term.ndim++] = label;
  }
  part->var = choir__onnx_fold(c, part->var, &axes, false, choir_var_sum);
  part->term = term;
  return CALL_IS_OK;
}

// ---- Two operands ----

// The part as `pieces` dimensions, each the labels of a group joined.
static choir_var_t* arranged(choir__onnx_call_t* c, const part_t* part,
                             const term_t* const* groups, int32_t pieces) {
  const choir_view_t* view = choir_var_view(part->var);
  if (!view) return choir_scope_fail(c->scope, NULL);
  int64_t order[CHOIR_MAX_NDIM], shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t g = 0; g < pieces; ++g) {
    int64_t sizes[CHOIR_MAX_NDIM];
    for (int32_t i = 0; i < groups[g]->ndim; ++i)
      for (int32_t k = 0; k < view->ndim; ++k)
        if (part->term.labels[k] == groups[g]->labels[i]) {
          order[ndim++] = k;
          sizes[i] = view->shape[k];
        }
    if (!choir__onnx_product(c, sizes, 0, groups[g]->ndim, &shape[g]))
      return choir_scope_fail(c->scope, NULL);
  }
  choir_var_t* x = choir__onnx_transpose(c, part->var, order);
  return choir__onnx_reshape(c, x, pieces, shape);
}

static bool add_all(choir__onnx_call_t* c, term_t* to, const term_t* from) {
  for (int32_t i = 0; i < from->ndim; ++i)
    if (!add_label(c, to, from->labels[i])) return false;
  return true;
}

// *left becomes the product of both, summed over what is needed no more.
static bool multiply(choir__onnx_call_t* c, const einsum_t* sum, part_t* left,
                     part_t* right) {
  if (!sum_own(c, sum, left, &right->term) ||
      !sum_own(c, sum, right, &left->term))
    return false;
  term_t batch = {.ndim = 0}, inner = {.ndim = 0};
  term_t rows = {.ndim = 0}, columns = {.ndim = 0};
  for (int32_t i = 0; i < left->term.ndim; ++i) {
    const int32_t label = left->term.labels[i];
    const bool is_kept = sum->is_out[label] || sum->later[label] > 0;
    term_t* to = !has(&right->term, label) ? &rows : is_kept ? &batch : &inner;
    to->labels[to->ndim++] = label;
  }
  for (int32_t i = 0; i < right->term.ndim; ++i)
    if (!has(&left->term, right->term.labels[i]))
      columns.labels[columns.ndim++] = right->term.labels[i];
  term_t term = batch;
  if (!add_all(c, &term, &rows) || !add_all(c, &term, &columns)) return false;
  const term_t* const left_groups[] = {&batch, &rows, &inner};
  const term_t* const right_groups[] = {&batch, &inner, &columns};
  choir_var_t* a = arranged(c, left, left_groups, 3);
  choir_var_t* b = arranged(c, right, right_groups, 3);
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < term.ndim; ++i) shape[i] = sum->sizes[term.labels[i]];
  const choir_view_t* view = choir_var_view(a);
  if (!view || !choir__onnx_has_room(c, view->dtype, term.ndim, shape))
    return false;
  choir_var_t* y =
      inner.ndim == 0 ? DO(mul, a, b) : choir__onnx_matmul(c, a, b, NULL);
  *left = (part_t){choir__onnx_reshape(c, y, term.ndim, shape), term};
  return CALL_IS_OK;
}

void choir__onnx_op_einsum(choir__onnx_call_t* c) {
  einsum_t sum = {.dots = 0};
  part_t all, next;
  if (c->in_count == 0) {
    FAIL(INVALID_ARGUMENT, "there is no input; needs one or more");
    return;
  }
  term_t* terms =
      choir_scope_alloc(c->scope, sizeof *terms * (size_t)c->in_count);
  if (!terms || !parse(c, &sum, terms)) return;
  if (!take_operand(c, &sum, 0, &terms[0], &all)) return;
  for (int32_t i = 1; i < c->in_count; ++i)
    if (!take_operand(c, &sum, i, &terms[i], &next) ||
        !multiply(c, &sum, &all, &next))
      return;
  if (!sum_own(c, &sum, &all, NULL)) return;
  int64_t order[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < sum.out.ndim; ++i)
    for (int32_t k = 0; k < all.term.ndim; ++k)
      if (all.term.labels[k] == sum.out.labels[i]) order[i] = k;
  choir_var_t* y = choir__onnx_transpose(c, all.var, order);
  const bool is_small = VIEW(0)->dtype == CHOIR_DTYPE_U8;
  OUT(0, is_small ? choir__onnx_cast(c, y, CHOIR_DTYPE_U8) : y);
}
