// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_argmax.h for AVX-512.
#include "tensor/kernels/cpu/cpu_conv2d_argmax.h"

#if defined(__AVX512F__)

#include "tensor/kernels/cpu/cpu_vectors.h"

#define FILTERS(vectors) 4
#define HAS_APPEND  // by the instruction for it

// dy of `count` filters, zero where the activation was off (y NULL: none).
CHOIR__BODY vector_t take_some(const float* y, const float* dy, int64_t count) {
  const lanes_t valid = first_lanes(count);
  __mmask16 on = valid;
  if (y)
    on = _mm512_mask_cmp_ps_mask(valid, _mm512_maskz_loadu_ps(valid, y),
                                 _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_maskz_loadu_ps(on, dy);
}

// Where the argmax indices of a 2 x 2 window are: `first`, and what is below
// and on the right of it. Returns the gradients, none for a argmax index that
// is none.
CHOIR__BODY vector_t place_some(const uint8_t* argmax, int64_t count,
                                int32_t first, int32_t below, int32_t right,
                                vector_t gradients, int32_t* offsets) {
  const lanes_t valid = first_lanes(count);
  const __m512i place =
      _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(valid, argmax));
  __m512i at = _mm512_set1_epi32(first);
  at = _mm512_mask_add_epi32(
      at, _mm512_test_epi32_mask(place, _mm512_set1_epi32(2)), at,
      _mm512_set1_epi32(below));
  at = _mm512_mask_add_epi32(
      at, _mm512_test_epi32_mask(place, _mm512_set1_epi32(1)), at,
      _mm512_set1_epi32(right));
  _mm512_mask_storeu_epi32(offsets, valid, at);
  return _mm512_maskz_mov_ps(
      _mm512_cmplt_epi32_mask(place, _mm512_set1_epi32(4)), gradients);
}

// Appends the filters whose argmax index is at `place` and whose gradient is
// not zero: where their weights are, a multiple of `step`, and the gradient.
// Writes up to a vector more than it returns the end of.
CHOIR__BODY int64_t append(const uint8_t* argmax, const float* gradients,
                           int64_t filters, int32_t place, int32_t step,
                           int32_t* offsets, float* list_gradients,
                           int64_t count) {
  const __m512i first = _mm512_mullo_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
      _mm512_set1_epi32(step));
  for (int64_t f = 0; f < filters; f += LANES) {
    const int64_t left = filters - f;
    const lanes_t valid = first_lanes(left < LANES ? left : LANES);
    const __m512 gradient = _mm512_maskz_loadu_ps(valid, gradients + f);
    const __m512i argmax_index =
        _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(valid, argmax + f));
    __mmask16 taken = _mm512_mask_cmpeq_epi32_mask(valid, argmax_index,
                                                   _mm512_set1_epi32(place));
    taken = _mm512_mask_cmp_ps_mask(taken, gradient, _mm512_setzero_ps(),
                                    _CMP_NEQ_UQ);
    const __m512i offset =
        _mm512_add_epi32(first, _mm512_set1_epi32((int32_t)f * step));
    _mm512_storeu_si512(offsets + count,
                        _mm512_maskz_compress_epi32(taken, offset));
    _mm512_storeu_ps(list_gradients + count,
                     _mm512_maskz_compress_ps(taken, gradient));
    count += __builtin_popcount(taken);
  }
  return count;
}

#include "tensor/kernels/cpu/cpu_conv2d_argmax_loops.inc"

#else

typedef int choir__argmax_avx512_is_absent_t;

#endif  // __AVX512F__
