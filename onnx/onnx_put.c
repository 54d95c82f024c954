// SPDX-License-Identifier: Apache-2.0
// What writers of ops are written with: names, nodes, attributes, constants.
#include <search.h>
#include <stdio.h>
#include <string.h>

#include "onnx/onnx_put_def.h"
#include "onnx/onnx_write_internal.h"

// ---- Memory: the scope's, for as long as its variables ----

void* choir__onnx_writer_alloc(choir__onnx_writer_t* w, size_t bytes) {
  return choir_scope_alloc(w->scope, bytes);
}

void choir__onnx_stop(choir__onnx_writer_t* w, choir_status_t status) {
  choir_scope_fail(w->scope, status);
}

bool choir__onnx_writes(const choir__onnx_writer_t* w) {
  return choir_scope_is_ok(w->scope);
}

static char* copy_text(choir__onnx_writer_t* w, const char* text) {
  const size_t bytes = strlen(text) + 1;
  char* copy = choir__onnx_writer_alloc(w, bytes);
  return copy ? memcpy(copy, text, bytes) : NULL;
}

// Puts one more behind a list; false: no memory.
bool choir__onnx_add_to(choir__onnx_writer_t* w, choir__onnx_list_t* list,
                        void* one) {
  if (list->count == list->capacity) {
    const size_t capacity = list->capacity ? 2 * list->capacity : 16;
    void** at = choir__onnx_writer_alloc(w, capacity * sizeof(void*));
    if (!at) return false;
    if (list->count) memcpy(at, list->at, list->count * sizeof(void*));
    list->at = at;
    list->capacity = capacity;
  }
  list->at[list->count++] = one;
  return true;
}

// ---- Variables and their names ----

static int compare_values(const void* a, const void* b) {
  const void* x = ((const choir__onnx_written_t*)a)->key;
  const void* y = ((const choir__onnx_written_t*)b)->key;
  return ((uintptr_t)x > (uintptr_t)y) - ((uintptr_t)x < (uintptr_t)y);
}

choir__onnx_written_t* choir__onnx_find_written(const choir__onnx_writer_t* w,
                                                const void* key) {
  const choir__onnx_written_t wanted = {.key = key};
  void* const* found = tfind(&wanted, &w->values, compare_values);
  return found ? *found : NULL;
}

// The entry of a variable or tensor, made if there is none; NULL: no memory.
choir__onnx_written_t* choir__onnx_need_written(choir__onnx_writer_t* w,
                                                const void* key) {
  choir__onnx_written_t* value = choir__onnx_find_written(w, key);
  if (value) return value;
  value = choir__onnx_writer_alloc(w, sizeof *value);
  if (!value) return NULL;
  value->key = key;
  if (tsearch(value, &w->values, compare_values)) return value;
  choir__onnx_stop(w, CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for names"));
  return NULL;
}

static int compare_texts(const void* a, const void* b) { return strcmp(a, b); }

// Takes a name; false: somebody has it.
bool choir__onnx_take_name(choir__onnx_writer_t* w, const char* name) {
  if (tfind(name, &w->names, compare_texts)) return false;
  if (!tsearch(name, &w->names, compare_texts))
    choir__onnx_stop(w,
                     CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for names"));
  return true;
}

// "conv1/Conv", "conv1/Conv_2", ...
static const char* new_name(choir__onnx_writer_t* w, const char* what) {
  char text[256];
  const char* label = w->label ? w->label : "";
  for (int64_t number = 1; choir__onnx_writes(w); ++number) {
    // The tries of a name go on where the last one of this writer was taken.
    int length = snprintf(text, sizeof text, "%.120s%s%.60s", label,
                          *label ? "/" : "", what);
    if (number > 1)
      snprintf(text + length, sizeof text - (size_t)length, "_%lld",
               (long long)++w->last_number);
    char* name = copy_text(w, text);
    if (!name) break;
    if (choir__onnx_take_name(w, name)) return name;
  }
  return "";
}

// ---- Nodes ----

static Onnx__NodeProto* add_node(choir__onnx_writer_t* w, const char* type,
                                 const char* const* inputs, int32_t outputs) {
  size_t count = 0;
  while (inputs[count]) ++count;
  Onnx__NodeProto* node = choir__onnx_writer_alloc(w, sizeof *node);
  char** names =
      choir__onnx_writer_alloc(w, sizeof(char*) * (count + (size_t)outputs));
  if (!node || !names) return NULL;
  onnx__node_proto__init(node);
  memcpy(names, inputs, sizeof(char*) * count);
  // What is absent behind the last input is left out.
  while (count > 0 && !*names[count - 1]) --count;
  node->op_type = (char*)type;
  node->n_input = count;
  node->input = names;
  node->n_output = (size_t)outputs;
  node->output = names + count;
  for (int32_t i = 0; i < outputs; ++i)
    node->output[i] = (char*)new_name(w, type);
  node->name = outputs > 0 ? node->output[0] : NULL;
  w->last = node;
  return choir__onnx_add_to(w, &w->graph->nodes, node) ? node : NULL;
}

const char* choir__onnx_put_node(choir__onnx_put_t* p, const char* type,
                                 const char* const* inputs) {
  if (!choir__onnx_writes(p->writer)) return "";
  const Onnx__NodeProto* node = add_node(p->writer, type, inputs, 1);
  return node ? node->output[0] : "";
}

const char** choir__onnx_put_nodes(choir__onnx_put_t* p, const char* type,
                                   const char* const* inputs, int32_t count) {
  const char** names =
      choir__onnx_writer_alloc(p->writer, sizeof(char*) * ((size_t)count + 1));
  static const char* none[] = {"", "", "", "", "", "", "", NULL};
  if (!names || !choir__onnx_writes(p->writer)) return none;
  const Onnx__NodeProto* node = add_node(p->writer, type, inputs, count);
  if (!node) return none;
  for (int32_t i = 0; i < count; ++i) names[i] = node->output[i];
  return names;
}

static Onnx__AttributeProto* add_attribute(choir__onnx_put_t* p,
                                           const char* name, int32_t type) {
  choir__onnx_writer_t* w = p->writer;
  Onnx__AttributeProto* attribute =
      choir__onnx_writer_alloc(w, sizeof *attribute);
  if (!attribute || !choir__onnx_writes(w)) return NULL;
  onnx__attribute_proto__init(attribute);
  attribute->name = (char*)name;
  attribute->has_type = true;
  attribute->type = type;
  Onnx__NodeProto* node = w->last;
  Onnx__AttributeProto** at =
      choir__onnx_writer_alloc(w, sizeof(void*) * (node->n_attribute + 1));
  if (!at) return NULL;
  if (node->n_attribute)
    memcpy(at, node->attribute, sizeof(void*) * node->n_attribute);
  at[node->n_attribute++] = attribute;
  node->attribute = at;
  return attribute;
}

// AttributeProto.AttributeType.
enum { KIND_FLOAT = 1, KIND_INT, KIND_TEXT, KIND_TENSOR, KIND_GRAPH };
enum { KIND_INTS = 7 };

void choir__onnx_put_int(choir__onnx_put_t* p, const char* name,
                         int64_t value) {
  Onnx__AttributeProto* attribute = add_attribute(p, name, KIND_INT);
  if (!attribute) return;
  attribute->has_i = true;
  attribute->i = value;
}

void choir__onnx_put_ints(choir__onnx_put_t* p, const char* name, int32_t count,
                          const int64_t* values) {
  Onnx__AttributeProto* attribute = add_attribute(p, name, KIND_INTS);
  const size_t bytes = sizeof(int64_t) * (size_t)count;
  if (!attribute) return;
  attribute->ints = choir__onnx_writer_alloc(p->writer, bytes);
  if (!attribute->ints) return;
  memcpy(attribute->ints, values, bytes);
  attribute->n_ints = (size_t)count;
}

void choir__onnx_put_float(choir__onnx_put_t* p, const char* name,
                           double value) {
  Onnx__AttributeProto* attribute = add_attribute(p, name, KIND_FLOAT);
  if (!attribute) return;
  attribute->has_f = true;
  attribute->f = (float)value;
}

void choir__onnx_put_text(choir__onnx_put_t* p, const char* name,
                          const char* value) {
  Onnx__AttributeProto* attribute = add_attribute(p, name, KIND_TEXT);
  if (!attribute) return;
  attribute->has_s = true;
  attribute->s.data = (uint8_t*)copy_text(p->writer, value);
  attribute->s.len = attribute->s.data ? strlen(value) : 0;
}

// ---- Tensors ----

Onnx__TensorProto* choir__onnx_make_proto(choir__onnx_writer_t* w,
                                          choir_dtype_t dtype, int32_t ndim,
                                          const int64_t* shape) {
  Onnx__TensorProto* tensor = choir__onnx_writer_alloc(w, sizeof *tensor);
  int64_t* dims =
      choir__onnx_writer_alloc(w, sizeof(int64_t) * (size_t)(ndim + 1));
  if (!tensor || !dims) return NULL;
  onnx__tensor_proto__init(tensor);
  if (ndim > 0) memcpy(dims, shape, sizeof(int64_t) * (size_t)ndim);
  tensor->n_dims = (size_t)ndim;
  tensor->dims = dims;
  tensor->has_data_type = true;
  tensor->data_type = choir__onnx_dtype_type(dtype);
  return tensor;
}

static void put_tensor(choir__onnx_put_t* p, const char* name,
                       Onnx__TensorProto* tensor, const void* data,
                       size_t bytes) {
  Onnx__AttributeProto* attribute =
      tensor ? add_attribute(p, name, KIND_TENSOR) : NULL;
  void* copy = choir__onnx_writer_alloc(p->writer, bytes);
  if (!attribute || !copy) return;
  if (bytes) memcpy(copy, data, bytes);
  tensor->has_raw_data = true;
  tensor->raw_data.data = copy;
  tensor->raw_data.len = bytes;
  attribute->t = tensor;
}

void choir__onnx_put_element(choir__onnx_put_t* p, const char* name,
                             choir_dtype_t dtype, double value) {
  const int64_t one = 1;
  uint64_t element = 0;
  choir_element_store(&element, dtype, value);
  put_tensor(p, name, choir__onnx_make_proto(p->writer, dtype, 1, &one),
             &element, choir_dtype_bytes(dtype));
}

const char* choir__onnx_put_constant(choir__onnx_put_t* p, choir_dtype_t dtype,
                                     int32_t ndim, const int64_t* shape,
                                     const void* data) {
  size_t bytes = choir_dtype_bytes(dtype);
  for (int32_t i = 0; i < ndim; ++i) bytes *= (size_t)shape[i];
  const char* name = NODE("Constant", NULL);
  put_tensor(p, "value", choir__onnx_make_proto(p->writer, dtype, ndim, shape),
             data, bytes);
  return name;
}

const char* choir__onnx_put_number(choir__onnx_put_t* p, choir_dtype_t dtype,
                                   double value) {
  uint64_t element = 0;
  choir_element_store(&element, dtype, value);
  return choir__onnx_put_constant(p, dtype, 0, NULL, &element);
}

// Axes and shapes come often; each is a constant once.
typedef struct numbers_s {
  const char* name;
  int32_t count;
  int64_t values[CHOIR_MAX_NDIM];
} numbers_t;

const char* choir__onnx_put_numbers(choir__onnx_put_t* p, int32_t count,
                                    const int64_t* values) {
  choir__onnx_writer_t* w = p->writer;
  const size_t bytes = sizeof(int64_t) * (size_t)count;
  for (size_t i = 0; i < w->numbers.count; ++i) {
    const numbers_t* made = w->numbers.at[i];
    if (made->count == count && memcmp(made->values, values, bytes) == 0)
      return made->name;
  }
  const int64_t shape = count;
  const char* name =
      choir__onnx_put_constant(p, CHOIR_DTYPE_I64, 1, &shape, values);
  // Those of a body cannot be used outside.
  if (count > CHOIR_MAX_NDIM || !choir__onnx_writes(w) || w->graph->outer)
    return name;
  numbers_t* made = choir__onnx_writer_alloc(w, sizeof *made);
  if (!made) return name;
  made->name = name;
  made->count = count;
  memcpy(made->values, values, bytes);
  choir__onnx_add_to(w, &w->numbers, made);
  return name;
}

const char* choir__onnx_put_cast(choir__onnx_put_t* p, const char* x,
                                 choir_dtype_t dtype) {
  const char* name = NODE("Cast", x);
  choir__onnx_put_int(p, "to", choir__onnx_dtype_type(dtype));
  return name;
}

// ---- The size of the batch ----

int64_t choir__onnx_put_batch_now(const choir__onnx_put_t* p) {
  return p->writer->batch;
}
int64_t choir__onnx_put_batch_other(const choir__onnx_put_t* p) {
  return p->writer->other_batch;
}

const char* choir__onnx_put_batch(choir__onnx_put_t* p) {
  choir__onnx_writer_t* w = p->writer;
  if (w->other_batch == w->batch) return NULL;
  if (w->batch_name) return w->batch_name;
  w->batch_name = NODE("Shape", w->trace->inputs[0].name);
  choir__onnx_put_int(p, "start", 0);
  choir__onnx_put_int(p, "end", 1);
  return w->batch_name;
}

// ---- What a value is called ----

// A constant of the step: a parameter, which becomes an initialiser, or a node.
static const char* name_constant(choir__onnx_put_t* p, choir_var_t* var) {
  choir__onnx_writer_t* w = p->writer;
  choir_tensor_t* tensor = choir_var_tensor(var);
  const choir_view_t* view = choir_var_view(var);
  choir__onnx_written_t* param =
      tensor ? choir__onnx_find_written(w, tensor) : NULL;
  if (param) {
    if (!param->is_used && !choir__onnx_add_to(w, &w->params, param)) return "";
    param->is_used = true;
    return param->name;
  }
  if (!view) return "";
  const size_t bytes =
      (size_t)choir_view_count(view) * choir_dtype_bytes(view->dtype);
  void* data = choir__onnx_writer_alloc(w, bytes);
  if (!data) return "";
  choir__onnx_stop(w, choir_tensor_read(tensor, data, bytes));
  return choir__onnx_put_constant(p, view->dtype, view->ndim, view->shape,
                                  data);
}

const char* choir__onnx_name_of(choir__onnx_put_t* p, choir_var_t* var) {
  choir__onnx_writer_t* w = p->writer;
  choir__onnx_written_t* value = choir__onnx_need_written(w, var);
  if (!value) return "";
  if (!value->name && value->is_made) {
    REFUSE(UNIMPLEMENTED, "a result that has no form in ONNX files is used");
    return "";
  }
  if (!value->name) value->name = name_constant(p, var);
  return value->name;
}

const char* choir__onnx_put_in(choir__onnx_put_t* p, int32_t i) {
  return choir__onnx_writes(p->writer)
             ? choir__onnx_name_of(p, p->entry->srcs[i])
             : "";
}

bool choir__onnx_put_wants(const choir__onnx_put_t* p, int32_t k) {
  const choir_var_t* var = p->entry->results[k];
  const choir__onnx_written_t* value =
      var ? choir__onnx_find_written(p->writer, var) : NULL;
  return value && value->is_used;
}

void choir__onnx_put_out(choir__onnx_put_t* p, int32_t k, const char* name) {
  choir__onnx_writer_t* w = p->writer;
  if (!choir__onnx_writes(w) || !WANTS(k)) return;
  choir__onnx_written_t* value =
      choir__onnx_find_written(w, p->entry->results[k]);
  value->name = name;
  if (!value->wanted) return;
  // A result of the file: the node that makes it takes its name, or one more.
  Onnx__NodeProto* last = w->last;
  if (!last || last->n_output != 1 || last->output[0] != name) {
    NODE("Identity", name);
    last = w->last;
  }
  if (!last || !choir__onnx_writes(w)) return;
  last->output[0] = (char*)value->wanted;
  value->name = value->wanted;
}

void choir__onnx_put_fail(choir__onnx_put_t* p, choir_status_t status) {
  const char* label = p->entry ? p->entry->label : NULL;
  const char* op = !p->entry ? "constant"
                   : p->entry->op == CHOIR_OP_COUNT
                       ? p->entry->custom.name
                       : choir_op_name(p->entry->op);
  if (status)
    status = choir_status_annotate(status, __FILE__, __LINE__, "%s%sop %s",
                                   label ? label : "", label ? ": " : "", op);
  choir__onnx_stop(p->writer, status);
}

// ---- Graphs ----

Onnx__ValueInfoProto* choir__onnx_make_info(choir__onnx_writer_t* w,
                                            const char* name,
                                            choir_dtype_t dtype) {
  Onnx__ValueInfoProto* info = choir__onnx_writer_alloc(w, sizeof *info);
  Onnx__TypeProto* type = choir__onnx_writer_alloc(w, sizeof *type);
  Onnx__TypeProto__Tensor* tensor = choir__onnx_writer_alloc(w, sizeof *tensor);
  if (!info || !type || !tensor) return NULL;
  onnx__value_info_proto__init(info);
  onnx__type_proto__init(type);
  onnx__type_proto__tensor__init(tensor);
  tensor->has_elem_type = true;
  tensor->elem_type = choir__onnx_dtype_type(dtype);
  type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
  type->tensor_type = tensor;
  info->name = (char*)name;
  info->type = type;
  return info;
}

Onnx__GraphProto* choir__onnx_make_graph(choir__onnx_writer_t* w,
                                         const choir__onnx_body_t* body,
                                         const char* name) {
  Onnx__GraphProto* graph = choir__onnx_writer_alloc(w, sizeof *graph);
  if (!graph) return NULL;
  onnx__graph_proto__init(graph);
  graph->name = (char*)name;
  graph->n_node = body->nodes.count;
  graph->node = (Onnx__NodeProto**)body->nodes.at;
  graph->n_input = body->inputs.count;
  graph->input = (Onnx__ValueInfoProto**)body->inputs.at;
  graph->n_output = body->outputs.count;
  graph->output = (Onnx__ValueInfoProto**)body->outputs.at;
  return graph;
}

void choir__onnx_put_begin_body(choir__onnx_put_t* p) {
  choir__onnx_writer_t* w = p->writer;
  choir__onnx_body_t* body = choir__onnx_writer_alloc(w, sizeof *body);
  if (!body) return;
  body->outer = w->graph;
  body->owner = w->last;
  w->graph = body;
}

const char* choir__onnx_put_body_input(choir__onnx_put_t* p,
                                       choir_dtype_t dtype) {
  choir__onnx_writer_t* w = p->writer;
  const char* name = new_name(w, "x");
  Onnx__ValueInfoProto* info = choir__onnx_make_info(w, name, dtype);
  if (info) choir__onnx_add_to(w, &w->graph->inputs, info);
  return name;
}

void choir__onnx_put_body_output(choir__onnx_put_t* p, const char* name,
                                 choir_dtype_t dtype) {
  choir__onnx_writer_t* w = p->writer;
  Onnx__ValueInfoProto* info =
      choir__onnx_make_info(w, NODE("Identity", name), dtype);
  if (info) choir__onnx_add_to(w, &w->graph->outputs, info);
}

void choir__onnx_put_end_body(choir__onnx_put_t* p, const char* attribute) {
  choir__onnx_writer_t* w = p->writer;
  choir__onnx_body_t* body = w->graph;
  if (!choir__onnx_writes(w)) return;
  w->graph = body->outer;
  w->last = body->owner;
  Onnx__AttributeProto* added = add_attribute(p, attribute, KIND_GRAPH);
  if (added) added->g = choir__onnx_make_graph(w, body, "body");
}
