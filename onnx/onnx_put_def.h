// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_PUT_DEF_H_
#define CHOIR_ONNX_ONNX_PUT_DEF_H_

#include "autograd/scope.h"
#include "onnx/onnx.h"

// For writers of an op as nodes of a file (onnx/writers). Not installed.
//
//   void choir__onnx_put_silu(choir__onnx_put_t* p) {
//     DST(0, NODE("Mul", SRC(0), NODE("Sigmoid", SRC(0))));
//   }
//
// A function writes the nodes that compute the results of an op of the tape.
// Values are names. After a failure calls give "", and nothing is written.

typedef struct choir__onnx_writer_s choir__onnx_writer_t;

typedef struct choir__onnx_put_s {
  choir__onnx_writer_t* writer;
  const choir_tape_entry_t* entry;
  const char* type;  // of the op's line in writers.def
  // The sources as they are, and as they would be for another size of the
  // batch: where sizes differ, the file must not have a number.
  const choir_view_t* now;
  const choir_view_t* other;
  // Of the first dimension of each that follows the batch: how many of its
  // places a sample has in a row (3 where (n, 3) became one dimension).
  const int64_t* inner;
} choir__onnx_put_t;

// The name of source i.
const char* choir__onnx_put_in(choir__onnx_put_t* p, int32_t i);
// Result k has this name from now on. A result without a name cannot be used.
void choir__onnx_put_out(choir__onnx_put_t* p, int32_t k, const char* name);
// Whether a later op, or the file, uses result k.
bool choir__onnx_put_wants(const choir__onnx_put_t* p, int32_t k);
// A node, which reads names (the first NULL ends them; "": an absent input) and
// gives one value: its name.
const char* choir__onnx_put_node(choir__onnx_put_t* p, const char* type,
                                 const char* const* inputs);
// A node that gives `count` values: their names, NULL after the last.
const char** choir__onnx_put_nodes(choir__onnx_put_t* p, const char* type,
                                   const char* const* inputs, int32_t count);

#define SRC(i) choir__onnx_put_in(p, i)
#define DST(k, name) choir__onnx_put_out(p, k, name)
#define WANTS(k) choir__onnx_put_wants(p, k)
#define NODE(type, ...) \
  choir__onnx_put_node(p, type, (const char* const[]){__VA_ARGS__, NULL})
#define SRC_VIEW(i) (&p->now[i])
// The op's attributes: ATTRS(conv2d)->stride.
#define ATTRS(op) ((const choir_##op##_attrs_t*)p->entry->attrs)
#define REFUSE(code, ...) \
  choir__onnx_put_fail(p, CHOIR_ERROR(code, __VA_ARGS__))

// Attributes of the last node. Arrays and texts are copied.
void choir__onnx_put_int(choir__onnx_put_t* p, const char* name, int64_t value);
void choir__onnx_put_ints(choir__onnx_put_t* p, const char* name, int32_t count,
                          const int64_t* values);
void choir__onnx_put_float(choir__onnx_put_t* p, const char* name,
                           double value);
void choir__onnx_put_text(choir__onnx_put_t* p, const char* name,
                          const char* value);
// A tensor of one element.
void choir__onnx_put_element(choir__onnx_put_t* p, const char* name,
                             choir_dtype_t dtype, double value);

// Constants, as nodes. numbers: a vector of i64.
const char* choir__onnx_put_constant(choir__onnx_put_t* p, choir_dtype_t dtype,
                                     int32_t ndim, const int64_t* shape,
                                     const void* data);
const char* choir__onnx_put_number(choir__onnx_put_t* p, choir_dtype_t dtype,
                                   double value);
const char* choir__onnx_put_numbers(choir__onnx_put_t* p, int32_t count,
                                    const int64_t* values);
#define NUMBERS(...)                                                    \
  choir__onnx_put_numbers(                                              \
      p, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
      (const int64_t[]){__VA_ARGS__})
#define NUMBER(dtype, value) choir__onnx_put_number(p, dtype, value)
// x with elements of another dtype.
const char* choir__onnx_put_cast(choir__onnx_put_t* p, const char* x,
                                 choir_dtype_t dtype);
// The size of the batch, a vector of one i64. NULL: the file has a fixed one.
const char* choir__onnx_put_batch(choir__onnx_put_t* p);
// What the size of the batch is now, and in `other`.
int64_t choir__onnx_put_batch_now(const choir__onnx_put_t* p);
int64_t choir__onnx_put_batch_other(const choir__onnx_put_t* p);

// A graph as an attribute of the last node: what is written between the two
// calls is of it. Names of the graph around it can be used.
void choir__onnx_put_begin_body(choir__onnx_put_t* p);
// An input of it: its name.
const char* choir__onnx_put_body_input(choir__onnx_put_t* p,
                                       choir_dtype_t dtype);
void choir__onnx_put_body_output(choir__onnx_put_t* p, const char* name,
                                 choir_dtype_t dtype);
void choir__onnx_put_end_body(choir__onnx_put_t* p, const char* attribute);

// Takes the status over.
void choir__onnx_put_fail(choir__onnx_put_t* p, choir_status_t status);

// Attributes that name sizes, for the other size of the batch (writers/
// onnx_put_shapes.c): changes `attrs`, a copy of the op's.
void choir__onnx_put_other_attrs(choir__onnx_put_t* p, void* attrs);
// `inner` of a result, whose sizes for the other batch are in `other`.
int64_t choir__onnx_put_inner(const choir__onnx_put_t* p,
                              const choir_view_t* now,
                              const choir_view_t* other);

// writers.def: CHOIR__ONNX_PUT(OP, function, "Type")
#define CHOIR__ONNX_PUT(OP, function, type) \
  void choir__onnx_put_##function(choir__onnx_put_t* p);
#include "onnx/writers/writers.def"

#endif  // CHOIR_ONNX_ONNX_PUT_DEF_H_
