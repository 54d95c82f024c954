// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_ONNX_ONNX_FILES_H_
#define CHOIR_TESTS_ONNX_ONNX_FILES_H_

#include <stdint.h>
#include <string.h>

// Writes small ONNX files, field by field, for C and C++: a bytes_t for each
// message, put into the one around it once it is whole. What does not fit is
// left out, so that a file which is too large does not parse.
//
//   bytes_t graph = {0}, model = {0};
//   onnx_value(&graph, ONNX_INPUT, "x", 1, 2, (int64_t[]){-1, 3});
//   onnx_node(&graph, "Relu", "x", "y", NULL);
//   onnx_value(&graph, ONNX_OUTPUT, "y", 1, -1, NULL);
//   onnx_model(&model, &graph, 17);

typedef struct bytes_s {
  size_t size;
  uint8_t data[4096];
} bytes_t;

// ---- The wire format ----

static inline void put_raw(bytes_t* to, const void* data, size_t bytes) {
  if (bytes == 0 || bytes > sizeof(to->data) - to->size) return;
  memcpy(to->data + to->size, data, bytes);
  to->size += bytes;
}
static inline void put_number(bytes_t* to, uint64_t number) {
  do {
    const uint8_t byte =
        (uint8_t)((number & 0x7f) | (number > 0x7f ? 0x80 : 0));
    put_raw(to, &byte, 1);
    number >>= 7;
  } while (number > 0);
}
static inline void put_int(bytes_t* to, int field, int64_t number) {
  put_number(to, (uint64_t)field << 3);
  put_number(to, (uint64_t)number);
}
static inline void put_data(bytes_t* to, int field, const void* data,
                            size_t bytes) {
  put_number(to, (uint64_t)field << 3 | 2);
  put_number(to, bytes);
  put_raw(to, data, bytes);
}
static inline void put_text(bytes_t* to, int field, const char* text) {
  put_data(to, field, text, strlen(text));
}
static inline void put_part(bytes_t* to, int field, const bytes_t* part) {
  put_data(to, field, part->data, part->size);
}
// "x w b": the field once for each word; "-" stands for an empty one.
static inline void put_words(bytes_t* to, int field, const char* words) {
  while (*words) {
    const size_t length = strcspn(words, " ");
    const int is_empty = length == 1 && *words == '-';
    put_data(to, field, words, is_empty ? 0 : length);
    words += length + (words[length] == ' ');
  }
}

// ---- Attributes: messages of a node ----

static inline void attr_int(bytes_t* attrs, const char* name, int64_t value) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_int(&attr, 3, value);
  put_int(&attr, 20, 2);
  put_part(attrs, 5, &attr);
}
static inline void attr_float(bytes_t* attrs, const char* name, float value) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_number(&attr, 2 << 3 | 5);
  put_raw(&attr, &value, sizeof(value));
  put_int(&attr, 20, 1);
  put_part(attrs, 5, &attr);
}
static inline void attr_string(bytes_t* attrs, const char* name,
                               const char* value) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_text(&attr, 4, value);
  put_int(&attr, 20, 3);
  put_part(attrs, 5, &attr);
}
static inline void attr_ints(bytes_t* attrs, const char* name, int count,
                             const int64_t* values) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  for (int i = 0; i < count; ++i) put_int(&attr, 8, values[i]);
  put_int(&attr, 20, 7);
  put_part(attrs, 5, &attr);
}
// "a b": a list of these.
static inline void attr_strings(bytes_t* attrs, const char* name,
                                const char* words) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_words(&attr, 9, words);
  put_int(&attr, 20, 8);
  put_part(attrs, 5, &attr);
}
// type: 4 for a tensor, 5 for a graph.
static inline void attr_part(bytes_t* attrs, const char* name, int type,
                             const bytes_t* part) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_part(&attr, type == 4 ? 5 : 6, part);
  put_int(&attr, 20, type);
  put_part(attrs, 5, &attr);
}
// The value of attribute `other` of the function's call.
static inline void attr_of_call(bytes_t* attrs, const char* name,
                                const char* other, int type) {
  bytes_t attr = {0, {0}};
  put_text(&attr, 1, name);
  put_int(&attr, 20, type);
  put_text(&attr, 21, other);
  put_part(attrs, 5, &attr);
}

// ---- Parts of a graph ----

// A TensorProto; type: of TensorProto.DataType.
static inline void put_tensor(bytes_t* to, const char* name, int type, int ndim,
                              const int64_t* dims, const void* data,
                              size_t bytes) {
  for (int i = 0; i < ndim; ++i) put_int(to, 1, dims[i]);
  put_int(to, 2, type);
  put_text(to, 8, name);
  put_data(to, 9, data, bytes);
}
// Its elements are in a file; bytes: their number as the file says, or NULL.
static inline void put_external(bytes_t* to, const char* name, int ndim,
                                const int64_t* dims, const char* location,
                                const char* bytes) {
  for (int i = 0; i < ndim; ++i) put_int(to, 1, dims[i]);
  put_int(to, 2, 1);
  put_text(to, 8, name);
  const char* const pairs[2][2] = {{"location", location}, {"length", bytes}};
  for (int i = 0; i < (bytes ? 2 : 1); ++i) {
    bytes_t entry = {0, {0}};
    put_text(&entry, 1, pairs[i][0]);
    put_text(&entry, 2, pairs[i][1]);
    put_part(to, 13, &entry);
  }
  put_int(to, 14, 1);
}
static inline void onnx_tensor(bytes_t* graph, const char* name, int type,
                               int ndim, const int64_t* dims, const void* data,
                               size_t bytes) {
  bytes_t tensor = {0, {0}};
  put_tensor(&tensor, name, type, ndim, dims, data, bytes);
  put_part(graph, 5, &tensor);
}
// A list of whole numbers, as shapes and axes are.
static inline void onnx_ints(bytes_t* graph, const char* name, int64_t count,
                             const int64_t* values) {
  onnx_tensor(graph, name, 7, 1, &count, values,
              sizeof(int64_t) * (size_t)count);
}
static inline void put_node(bytes_t* to, int field, const char* domain,
                            const char* op, const char* inputs,
                            const char* outputs, const bytes_t* attrs) {
  bytes_t node = {0, {0}};
  put_words(&node, 1, inputs);
  put_words(&node, 2, outputs);
  put_text(&node, 4, op);
  if (attrs) put_raw(&node, attrs->data, attrs->size);
  put_text(&node, 7, domain);
  put_part(to, field, &node);
}
static inline void onnx_node(bytes_t* graph, const char* op, const char* inputs,
                             const char* outputs, const bytes_t* attrs) {
  put_node(graph, 1, "", op, inputs, outputs, attrs);
}
// Gradient: xs, and zs if there are any, name what the inputs stand for.
static inline void put_gradient(bytes_t* to, int field, const char* inputs,
                                const char* outputs, const char* xs,
                                const char* zs, const char* y) {
  bytes_t attrs = {0, {0}};
  attr_strings(&attrs, "xs", xs);
  if (*zs) attr_strings(&attrs, "zs", zs);
  attr_string(&attrs, "y", y);
  put_node(to, field, "ai.onnx.preview.training", "Gradient", inputs, outputs,
           &attrs);
}
enum { ONNX_INPUT = 11, ONNX_OUTPUT = 12 };
// ndim -1: no shape is said; a size of -1: "n".
static inline void onnx_value(bytes_t* graph, int field, const char* name,
                              int type, int ndim, const int64_t* dims) {
  bytes_t shape = {0, {0}}, tensor = {0, {0}}, kind = {0, {0}},
          value = {0, {0}};
  for (int i = 0; i < ndim; ++i) {
    bytes_t dim = {0, {0}};
    if (dims[i] < 0)
      put_text(&dim, 2, "n");
    else
      put_int(&dim, 1, dims[i]);
    put_part(&shape, 1, &dim);
  }
  put_int(&tensor, 1, type);
  if (ndim >= 0) put_part(&tensor, 2, &shape);
  put_part(&kind, 1, &tensor);
  put_text(&value, 1, name);
  put_part(&value, 2, &kind);
  put_part(graph, field, &value);
}

// ---- Functions and files ----

// `nodes`: of put_node with field 7.
static inline void onnx_function(bytes_t* model, const char* name,
                                 const char* inputs, const char* outputs,
                                 const bytes_t* nodes) {
  bytes_t function = {0, {0}};
  put_text(&function, 1, name);
  put_words(&function, 4, inputs);
  put_words(&function, 5, outputs);
  put_raw(&function, nodes->data, nodes->size);
  put_text(&function, 10, "local");
  put_part(model, 25, &function);
}
static inline void onnx_model(bytes_t* model, const bytes_t* graph,
                              int64_t version) {
  bytes_t operators = {0, {0}}, named = *graph;
  put_int(&operators, 2, version);
  put_text(&named, 2, "graph");
  put_int(model, 1, 8);
  put_part(model, 8, &operators);
  put_part(model, 7, &named);
}

#endif  // CHOIR_TESTS_ONNX_ONNX_FILES_H_
