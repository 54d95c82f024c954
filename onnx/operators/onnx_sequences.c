// SPDX-License-Identifier: Apache-2.0
// Sequences of tensors. A sequence is a list of values, each known or not; an
// operator makes a new list.
#include "onnx/operators/onnx_sequences_internal.h"

// Input 0; NULL: it is none, and the call failed.
static const choir__onnx_value_t* sequence_of(choir__onnx_call_t* c) {
  if (HAS(0) && c->inputs[0]->is_sequence) return c->inputs[0];
  if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input 0 is no sequence; needs one");
  return NULL;
}

// Position of input i, a place of 0 .. count - 1; absent: `place`. -1: it
// failed.
static int64_t place_of(choir__onnx_call_t* c, int32_t i, int64_t count,
                        int64_t place) {
  if (HAS(i) && choir__onnx_read_ints(c, i, &place, 1) != 1) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "the position is empty");
    return -1;
  }
  if (!CALL_IS_OK) return -1;
  const int64_t given = place;
  if (place < 0 && place >= -count) place += count;
  if (place >= 0 && place < count) return place;
  FAIL(INVALID_ARGUMENT, "position %lld; the sequence has places %lld to %lld",
       (long long)given, (long long)-count, (long long)count - 1);
  return -1;
}

static void give_list(choir__onnx_call_t* c, choir__onnx_value_t* items,
                      int64_t count, int32_t type) {
  if (!items || !CALL_IS_OK) return;
  for (int64_t i = 0; i < count; ++i)
    if (!items[i].var) {
      FAIL(INVALID_ARGUMENT, "item %lld of the sequence is no tensor",
           (long long)i);
      return;
    }
  choir__onnx_give(c, 0,
                   (choir__onnx_value_t){.is_sequence = true,
                                         .items = items,
                                         .count = (int32_t)count,
                                         .type = type});
}

void choir__onnx_op_sequence_empty(choir__onnx_call_t* c) {
  give_list(c, choir__onnx_make_items(c, 0), 0,
            (int32_t)choir__onnx_int(c, "dtype", CHOIR_ONNX_FLOAT));
}

void choir__onnx_op_sequence_construct(choir__onnx_call_t* c) {
  choir__onnx_value_t* items = choir__onnx_make_items(c, c->in_count);
  for (int32_t i = 0; items && i < c->in_count; ++i) items[i] = *c->inputs[i];
  give_list(c, items, c->in_count, TYPE(0));
}

void choir__onnx_op_sequence_insert(choir__onnx_call_t* c) {
  const choir__onnx_value_t* list = sequence_of(c);
  if (!list) return;
  if (!HAS(1)) {
    FAIL(INVALID_ARGUMENT, "there is no tensor to insert");
    return;
  }
  const int64_t count = list->count;
  int64_t place = count;
  if (HAS(2) && choir__onnx_read_ints(c, 2, &place, 1) != 1) place = -count - 1;
  if (place < 0 && place >= -count) place += count;
  if (place < 0 || place > count) {
    if (CALL_IS_OK)
      FAIL(INVALID_ARGUMENT, "no position to insert; needs one in %lld to %lld",
           (long long)-count, (long long)count);
    return;
  }
  choir__onnx_value_t* items = choir__onnx_make_items(c, count + 1);
  for (int64_t i = 0; items && i <= count; ++i)
    items[i] = i == place ? *c->inputs[1] : list->items[i - (i > place)];
  give_list(c, items, count + 1, TYPE(1));
}

void choir__onnx_op_sequence_erase(choir__onnx_call_t* c) {
  const choir__onnx_value_t* list = sequence_of(c);
  const int64_t place = list ? place_of(c, 1, list->count, -1) : -1;
  if (place < 0) return;
  choir__onnx_value_t* items = choir__onnx_make_items(c, list->count);
  for (int64_t i = 0; items && i < list->count - 1; ++i)
    items[i] = list->items[i + (i >= place)];
  give_list(c, items, list->count - 1, list->type);
}

void choir__onnx_op_sequence_at(choir__onnx_call_t* c) {
  const choir__onnx_value_t* list = sequence_of(c);
  const int64_t place = list ? place_of(c, 1, list->count, -1) : -1;
  if (place >= 0) choir__onnx_give(c, 0, list->items[place]);
}

void choir__onnx_op_sequence_length(choir__onnx_call_t* c) {
  const choir__onnx_value_t* list = sequence_of(c);
  if (!list) return;
  const int64_t count = list->count;
  OUT_AS(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &count), INT64);
}

void choir__onnx_op_concat_from_sequence(choir__onnx_call_t* c) {
  const choir__onnx_value_t* list = sequence_of(c);
  if (!list) return;
  if (!choir__onnx_has_attr(c, "axis")) {
    FAIL(INVALID_ARGUMENT, "attribute axis is missing");
    return;
  }
  choir__onnx_give(
      c, 0,
      choir__onnx_stack_values(c, list->items, list->count,
                               choir__onnx_int(c, "axis", 0),
                               choir__onnx_int(c, "new_axis", 0) != 0));
}

// ---- SplitToSequence ----

// Rows from `start` on as an item.
static choir__onnx_value_t item_of(choir__onnx_call_t* c, int64_t axis,
                                   int64_t start, int64_t count,
                                   bool keeps_axis) {
  choir_var_t* item = choir__onnx_slice(c, IN(0), axis, start, start + count);
  const choir_view_t* view = choir_var_view(item);
  if (view && !keeps_axis) {
    int64_t shape[CHOIR_MAX_NDIM];
    for (int32_t i = 0, k = 0; i < view->ndim; ++i)
      if (i != axis) shape[k++] = view->shape[i];
    item = choir__onnx_reshape(c, item, view->ndim - 1, shape);
  }
  return (choir__onnx_value_t){
      .var = item, .type = TYPE(0), .is_known = c->is_known};
}

// Parts of one size, the last one may be smaller.
static void split_evenly(choir__onnx_call_t* c, int64_t axis, int64_t size,
                         int64_t part, bool keeps_axis) {
  if (part < 1) {
    FAIL(INVALID_ARGUMENT, "split is %lld; needs 1 or more", (long long)part);
    return;
  }
  const int64_t count = size / part + (size % part > 0);
  if (!choir__onnx_charge(c, count)) return;
  choir__onnx_value_t* items = choir__onnx_make_items(c, count);
  for (int64_t i = 0; items && i < count; ++i) {
    const int64_t left = size - i * part;
    items[i] =
        item_of(c, axis, i * part, left < part ? left : part, keeps_axis);
  }
  give_list(c, items, count, TYPE(0));
}

static void split_by_list(choir__onnx_call_t* c, int64_t axis, int64_t size,
                          const choir__onnx_array_t* split) {
  if (!choir__onnx_charge(c, split->count)) return;
  choir__onnx_value_t* items = choir__onnx_make_items(c, split->count);
  int64_t start = 0;
  for (int64_t i = 0; items && i < split->count; ++i) {
    const int64_t part = choir__onnx_int_at(split, i);
    if (part < 0 || part > size - start) {
      FAIL(INVALID_ARGUMENT,
           "part %lld has size %lld; needs parts that sum up to %lld",
           (long long)i, (long long)part, (long long)size);
      return;
    }
    items[i] = item_of(c, axis, start, part, true);
    start += part;
  }
  if (start != size && CALL_IS_OK)
    FAIL(INVALID_ARGUMENT, "the parts sum up to %lld; needs %lld",
         (long long)start, (long long)size);
  give_list(c, items, split->count, TYPE(0));
}

void choir__onnx_op_split_to_sequence(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!x || !choir__onnx_axis(c, &axis, x->ndim)) return;
  const int64_t size = x->shape[axis];
  choir__onnx_array_t split;
  if (!HAS(1))
    split_evenly(c, axis, size, 1, choir__onnx_int(c, "keepdims", 1) != 0);
  else if (!choir__onnx_read(c, 1, &split))
    return;
  else if (split.view.ndim == 0)
    split_evenly(c, axis, size, choir__onnx_int_at(&split, 0), true);
  else
    split_by_list(c, axis, size, &split);
}
