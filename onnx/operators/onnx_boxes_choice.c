// SPDX-License-Identifier: Apache-2.0
// NonMaxSuppression: the boxes of the best scores that do not overlap much.
#include <stdlib.h>

#include "onnx/operators/onnx_window_internal.h"

typedef struct candidate_s {
  double score;
  int64_t box;
} candidate_t;

// Corners, low ones first.
typedef struct box_s {
  double low[2], high[2];
} box_t;

// The best score first, of equal ones the first box.
static int compare(const void* a, const void* b) {
  const candidate_t *x = a, *y = b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  return x->box < y->box ? -1 : x->box > y->box;
}

// Corners in any order, or the middle (x, y) and sides.
static box_t box_at(const choir__onnx_array_t* boxes, int64_t place,
                    bool by_center) {
  double numbers[4];
  box_t box;
  for (int32_t k = 0; k < 4; ++k)
    numbers[k] = choir__onnx_number_at(boxes, place * 4 + k);
  for (int32_t k = 0; k < 2; ++k) {
    const double a = by_center ? numbers[k] - numbers[2 + k] / 2 : numbers[k];
    const double b =
        by_center ? numbers[k] + numbers[2 + k] / 2 : numbers[2 + k];
    box.low[k] = a < b ? a : b;
    box.high[k] = a < b ? b : a;
  }
  return box;
}

static double area_of(const box_t* box) {
  return (box->high[0] - box->low[0]) * (box->high[1] - box->low[1]);
}

// Whether the share of the union that both cover is above the threshold.
static bool overlap(const box_t* a, const box_t* b, double threshold) {
  double common = 1;
  for (int32_t k = 0; k < 2; ++k) {
    const double low = a->low[k] > b->low[k] ? a->low[k] : b->low[k];
    const double high = a->high[k] < b->high[k] ? a->high[k] : b->high[k];
    if (!(high > low)) return false;
    common *= high - low;
  }
  const double whole = area_of(a) + area_of(b) - common;
  return whole > 0 && common / whole > threshold;
}

typedef struct choice_s {
  choir__onnx_array_t boxes, scores;
  int64_t most;
  double overlap, score;
  bool has_score, by_center;
  candidate_t* candidates;  // room for one class
  box_t* kept;
  int64_t* rows;  // of the result
  int64_t count, capacity;
} choice_t;

static bool add_row(choice_t* choice, int64_t image, int64_t class_number,
                    int64_t box) {
  if (choice->count == choice->capacity) {
    const int64_t capacity = choice->capacity ? 2 * choice->capacity : 64;
    int64_t* rows =
        realloc(choice->rows, (size_t)capacity * 3 * sizeof(int64_t));
    if (!rows) return false;
    choice->rows = rows;
    choice->capacity = capacity;
  }
  int64_t* row = choice->rows + choice->count++ * 3;
  row[0] = image;
  row[1] = class_number;
  row[2] = box;
  return true;
}

static bool choose(choice_t* choice, int64_t image, int64_t class_number) {
  const int64_t boxes = choice->boxes.view.shape[1];
  const int64_t classes = choice->scores.view.shape[1];
  int64_t found = 0, kept = 0;
  for (int64_t i = 0; i < boxes; ++i) {
    const double score = choir__onnx_number_at(
        &choice->scores, (image * classes + class_number) * boxes + i);
    if (score != score || (choice->has_score && !(score > choice->score)))
      continue;
    choice->candidates[found++] = (candidate_t){score, i};
  }
  qsort(choice->candidates, (size_t)found, sizeof(candidate_t), compare);
  for (int64_t i = 0; i < found && kept < choice->most; ++i) {
    const int64_t number = choice->candidates[i].box;
    const box_t box =
        box_at(&choice->boxes, image * boxes + number, choice->by_center);
    bool is_free = true;
    for (int64_t k = 0; is_free && k < kept; ++k)
      is_free = !overlap(&box, &choice->kept[k], choice->overlap);
    if (!is_free) continue;
    choice->kept[kept++] = box;
    if (!add_row(choice, image, class_number, number)) return false;
  }
  return true;
}

static void choose_all(choir__onnx_call_t* c, choice_t* choice) {
  const int64_t boxes = choice->boxes.view.shape[1];
  choice->candidates =
      choir_scope_alloc(c->scope, (size_t)(boxes + 1) * sizeof(candidate_t));
  choice->kept =
      choir_scope_alloc(c->scope, (size_t)(boxes + 1) * sizeof(box_t));
  if (!choice->candidates || !choice->kept) return;
  bool is_ok = true;
  for (int64_t i = 0; is_ok && i < choice->boxes.view.shape[0]; ++i)
    for (int64_t k = 0; is_ok && k < choice->scores.view.shape[1]; ++k)
      is_ok = choose(choice, i, k);
  const int64_t shape[] = {choice->count, 3};
  const int64_t none[3] = {0};
  if (!is_ok)
    FAIL(OUT_OF_MEMORY, "no memory for the boxes");
  else
    OUT_AS(0,
           choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, shape,
                                choice->rows ? choice->rows : none),
           INT64);
  free(choice->rows);
}

void choir__onnx_op_non_max_suppression(choir__onnx_call_t* c) {
  const choir_view_t *boxes = VIEW(0), *scores = VIEW(1);
  if (!boxes || !scores) return;
  if (boxes->ndim != 3 || scores->ndim != 3 || boxes->shape[2] != 4 ||
      boxes->shape[0] != scores->shape[0] ||
      boxes->shape[1] != scores->shape[2]) {
    FAIL(INVALID_ARGUMENT,
         "boxes have %d dimensions, scores %d; needs (n, boxes, 4) and (n, "
         "classes, boxes)",
         boxes->ndim, scores->ndim);
    return;
  }
  choice_t choice = {
      .overlap = choir__onnx_read_number(c, 3, 0),
      .has_score = HAS(4),
      .score = choir__onnx_read_number(c, 4, 0),
      .by_center = choir__onnx_int(c, "center_point_box", 0) != 0};
  const double most = choir__onnx_read_number(c, 2, 0);
  choice.most = most > 0 ? most < 1e15 ? (int64_t)most : INT64_MAX : 0;
  // No classes, or no boxes: nothing to look at.
  if (choir_view_count(scores) == 0) choice.most = 0;
  if (!choir__onnx_read(c, 0, &choice.boxes) ||
      !choir__onnx_read(c, 1, &choice.scores))
    return;
  if (choice.most == 0) {
    const int64_t shape[] = {0, 3}, none[3] = {0};
    OUT_AS(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, shape, none), INT64);
    return;
  }
  choose_all(c, &choice);
}
