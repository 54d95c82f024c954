// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_ELEMENTS_H_
#define CHOIR_TENSOR_OPS_ELEMENTS_H_

#include "core/packed_backend.h"
#include "tensor/op_def.h"
#include "tensor/strided_internal.h"

// What the references in tensor/ops share: reading and writing single elements
// of operands, and operands as dense arrays of double.

// Sources and destinations of a record in host memory.
static inline const void* choir__src_data(const choir_record_t* record,
                                          int32_t index) {
  return choir__buffer_place(choir_record_src(record, index)->buffer);
}
static inline void* choir__dst_data(const choir_record_t* record,
                                    int32_t index) {
  return choir__buffer_place(choir_record_dst(record, index)->buffer);
}

// Element `offset` of a buffer.
double choir__real_load(const void* data, choir_dtype_t dtype, int64_t offset);
// Overwrites it, or adds to it before the one rounding.
void choir__real_store(void* data, choir_dtype_t dtype, int64_t offset,
                       double value, bool accumulate);
// The same for integer dtypes, exactly. Values that do not fit wrap around;
// BOOL becomes (value != 0).
int64_t choir__integer_load(const void* data, choir_dtype_t dtype,
                            int64_t offset);
void choir__integer_store(void* data, choir_dtype_t dtype, int64_t offset,
                          int64_t value, bool accumulate);

// Element `to` of one buffer = (accumulate: +=) element `from` of another of
// the same dtype; its bits when it is overwritten.
void choir__element_copy(const void* src, int64_t from, void* dst, int64_t to,
                         choir_dtype_t dtype, bool accumulate);

// Operands as row-major arrays of double, so that a reference is a loop over
// plain indices whatever the strides:
//
//   choir__dense_t dense;
//   CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
//   ... dense.srcs[0][i], dense.dsts[0][i] = ... (zero at first) ...
//   return choir__dense_end(&dense, NULL);
//
// Memory comes from the device's pool.
typedef struct choir__dense_s {
  const choir_record_t* record;
  choir_allocator_t allocator;
  void* memory;
  size_t bytes;
  double* srcs[CHOIR_MAX_OPERANDS];  // NULL when not asked for
  double* dsts[CHOIR_OP_MAX_RESULTS];
} choir__dense_t;

// Bit i of `needed` asks for source i.
#define CHOIR__ALL_SOURCES UINT32_MAX
#define CHOIR__SOURCE(i) (1u << (i))
choir_status_t choir__dense_begin(const choir_record_t* record,
                                  choir_stream_t* stream, uint32_t needed,
                                  choir__dense_t* dense);
// Rounds the results into the record's destinations, unless the computation
// failed; gives the memory back and returns `status`.
choir_status_t choir__dense_end(choir__dense_t* dense, choir_status_t status);

// ---- For shape rules ----

// dst = dtype, shape and row-major strides.
choir_status_t choir__infer_shape(choir_dtype_t dtype, int32_t ndim,
                                  const int64_t* shape, choir_view_t* dst);
// The whole rule of an op whose first result has dtype and shape of its first
// source.
choir_status_t choir__infer_as_source(const choir_record_t* record,
                                      choir_view_t* dsts);
// dst = shape and dtype of `like`, dense, in the same order of dimensions.
choir_status_t choir__infer_like(const choir_view_t* like, choir_view_t* dst);
// dst = the dtype of source 0 and the shape that all sources broadcast to, as
// NumPy's do, in the layout of the first that has it.
choir_status_t choir__broadcast_infer(const choir_view_t* srcs,
                                      int32_t src_count, choir_view_t* dst);
// Fails unless the source has `ndim` dimensions: "x is f32 (5); needs 2
// dimensions".
choir_status_t choir__need_ndim(const char* what, const choir_view_t* view,
                                int32_t ndim);
// Fails unless the shapes are equal: "t is f32 (5); needs the shape of x, f32
// (4)".
choir_status_t choir__need_same_shape(const char* what,
                                      const choir_view_t* view,
                                      const char* other_what,
                                      const choir_view_t* other);
// Fails unless the view is one dimension of `size` elements.
choir_status_t choir__need_vector(const char* what, const choir_view_t* view,
                                  int64_t size);

// ---- Cases ----

// Shapes of any number of elements and dimensions, with settings that take
// turns. S(shape): the shapes of an op's sources.
#define CHOIR__CASES(S, A, B, C, D, E, F, G)                                   \
  {S(""), A}, {S("1"), B}, {S("7"), C}, {S("15"), D}, {S("16"), E},            \
      {S("17"), F}, {S("64"), G}, {S("257"), A}, {S("1025"), B}, {S("0"), C},  \
      {S("3,5"), D}, {S("1,9"), E}, {S("9,1"), F}, {S("33,17"), G},            \
      {S("2,0,3"), A}, {S("5,1,7"), B}, {S("4,3,7,5"), C}, {S("2,16,5,5"), D}, \
      {S("2,20,12,12"), E}, {S("5,4,3,2,3"), F}, {                             \
    S("2,1,3,1,2,1,2,2"), G                                                    \
  }
#define CHOIR__ONCE(shape) shape
#define CHOIR__TWICE(shape) shape ";" shape

// One source without settings; three that broadcast.
extern const choir_op_case_t choir__cases_1[];
extern const choir_op_case_t choir__cases_3[];

#endif  // CHOIR_TENSOR_OPS_ELEMENTS_H_
