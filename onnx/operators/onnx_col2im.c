// SPDX-License-Identifier: Apache-2.0
// Col2Im: pieces of an image, laid together and added where they overlap.
#include <string.h>

#include "onnx/operators/onnx_shapes_internal.h"
#include "onnx/operators/onnx_window_internal.h"

// An image of pieces, by dimension: a piece's place p of l = 0 .. pieces - 1
// along a dimension is the image's l stride + p dilation - before.
typedef struct pieces_s {
  int64_t image[CHOIR_MAX_NDIM], block[CHOIR_MAX_NDIM], pieces[CHOIR_MAX_NDIM],
      stride[CHOIR_MAX_NDIM], dilation[CHOIR_MAX_NDIM], before[CHOIR_MAX_NDIM];
  int64_t image_count, block_count, piece_count;
  int32_t ndim;
} pieces_t;

// How many pieces lie along dimension k, with so much padding behind the image.
static bool count_pieces(choir__onnx_call_t* c, pieces_t* p, int32_t k,
                         int64_t after) {
  const int64_t image = p->image[k], block = p->block[k];
  const bool fits = image >= 1 && image <= CHOIR__ONNX_LARGEST && block >= 1 &&
                    block <= CHOIR__ONNX_LARGEST;
  const int64_t room =
      fits ? image + p->before[k] + after - p->dilation[k] * (block - 1) - 1
           : -1;
  if (room < 0) {
    FAIL(INVALID_ARGUMENT,
         "dimension %d of the image is %lld, of a piece %lld; needs 1 to %d, "
         "and "
         "a piece that fits the padded image",
         k, (long long)image, (long long)block, CHOIR__ONNX_LARGEST);
    return false;
  }
  p->pieces[k] = room / p->stride[k] + 1;
  return true;
}

static bool read_pieces(choir__onnx_call_t* c, const choir_view_t* x,
                        pieces_t* p) {
  enum { MOST = CHOIR_MAX_NDIM - 2 };
  int64_t pads[2 * MOST];
  p->ndim = choir__onnx_read_ints(c, 1, p->image, MOST);
  const int32_t blocks = choir__onnx_read_ints(c, 2, p->block, MOST);
  if (!CALL_IS_OK) return false;
  if (x->ndim != 3 || p->ndim < 1 || blocks != p->ndim) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions, the image %d and a piece %d; needs 3, and as "
         "many "
         "of both",
         x->ndim, p->ndim, blocks);
    return false;
  }
  if (!choir__onnx_window_ints(c, "strides", p->ndim, 1, 1, p->stride) ||
      !choir__onnx_window_ints(c, "dilations", p->ndim, 1, 1, p->dilation) ||
      !choir__onnx_window_ints(c, "pads", 2 * p->ndim, 0, 0, pads))
    return false;
  for (int32_t k = 0; k < p->ndim; ++k) {
    p->before[k] = pads[k];
    if (!count_pieces(c, p, k, pads[p->ndim + k])) return false;
  }
  if (!choir__onnx_product(c, p->image, 0, p->ndim, &p->image_count) ||
      !choir__onnx_product(c, p->block, 0, p->ndim, &p->block_count) ||
      !choir__onnx_product(c, p->pieces, 0, p->ndim, &p->piece_count))
    return false;
  if (x->shape[1] % p->block_count == 0 && x->shape[2] == p->piece_count)
    return true;
  FAIL(INVALID_ARGUMENT,
       "x has %lld rows and %lld columns; needs rows of whole pieces of %lld, "
       "and a column for each of %lld pieces",
       (long long)x->shape[1], (long long)x->shape[2],
       (long long)p->block_count, (long long)p->piece_count);
  return false;
}

// Which element of (block, pieces + 1) place `at` of the image gets from place
// `of` of a piece; the one behind the pieces, a 0, where none lies so.
static int64_t piece_of(const pieces_t* p, int64_t of, int64_t at) {
  const int64_t row = of * (p->piece_count + 1);
  int64_t piece = 0, step = 1;
  for (int32_t k = p->ndim - 1; k >= 0; --k) {
    const int64_t place =
        at % p->image[k] + p->before[k] - of % p->block[k] * p->dilation[k];
    at /= p->image[k];
    of /= p->block[k];
    if (place < 0 || place % p->stride[k] != 0 ||
        place / p->stride[k] >= p->pieces[k])
      return row + p->piece_count;
    piece += place / p->stride[k] * step;
    step *= p->pieces[k];
  }
  return row + piece;
}

static choir_var_t* piece_places(choir__onnx_call_t* c, const pieces_t* p) {
  const int64_t shape[] = {p->block_count, p->image_count};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 2, shape))
    return choir_scope_fail(c->scope, NULL);
  const int64_t count = p->block_count * p->image_count;
  int64_t* places =
      choir_scope_alloc(c->scope, sizeof(int64_t) * (size_t)count);
  if (!places) return choir_scope_fail(c->scope, NULL);
  for (int64_t of = 0; of < p->block_count; ++of)
    for (int64_t at = 0; at < p->image_count; ++at)
      places[of * p->image_count + at] = piece_of(p, of, at);
  return choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, shape, places);
}

void choir__onnx_op_col2im(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  pieces_t p;
  if (!x || !read_pieces(c, x, &p)) return;
  const int64_t n = x->shape[0], depth = x->shape[1] / p.block_count;
  const bool is_small =
      x->dtype == CHOIR_DTYPE_U8 || x->dtype == CHOIR_DTYPE_BOOL;
  const int64_t all[] = {n, depth, p.block_count, p.image_count};
  if (!choir__onnx_has_room(c, x->dtype, 4, all)) return;
  choir_var_t* y =
      is_small ? choir__onnx_cast(c, IN(0), CHOIR_DTYPE_I64) : IN(0);
  const choir_pad_attrs_t attrs = {.mode = CHOIR_PAD_CONSTANT,
                                   .after = {0, 0, 1}};
  y = DO(pad, y, &attrs);
  y = choir__onnx_reshape(
      c, y, 3, (int64_t[]){n, depth, p.block_count * (p.piece_count + 1)});
  y = choir__shapes_gather(c, y, piece_places(c, &p), 2);
  y = DO(sum, y, &(choir_sum_attrs_t){.axis = 2});
  int64_t shape[CHOIR_MAX_NDIM] = {n, depth};
  memcpy(shape + 2, p.image, sizeof(int64_t) * (size_t)p.ndim);
  y = choir__onnx_reshape(c, y, p.ndim + 2, shape);
  OUT(0, choir__onnx_cast(c, y, x->dtype));
}
