// SPDX-License-Identifier: Apache-2.0
// ONNX files. Those that parse are printed, and run once on zeros of the shapes
// that they declare.
#include <stdlib.h>
#include <string.h>

#include "core/allocator.h"
#include "onnx/onnx.h"
#include "tests/fuzz/fuzz.h"
#include "tests/onnx/onnx_files.h"

// ---- Memory ----

enum {
  MOST_MEMORY = 32 << 20,
  MOST_KEPT = 4 << 20,  // between runs: oneDNN's plans
  MOST_ELEMENTS = 4096,
};
static size_t taken;

static void* limited_alloc(void* self, size_t bytes, size_t alignment) {
  const choir_allocator_t system = choir_allocator_system();
  (void)self;
  if (bytes > MOST_MEMORY - taken) return NULL;
  void* memory = system.alloc(system.self, bytes, alignment);
  if (memory) taken += bytes;
  return memory;
}

static void limited_free(void* self, void* memory, size_t bytes,
                         size_t alignment) {
  const choir_allocator_t system = choir_allocator_system();
  (void)self;
  taken -= bytes;
  system.free(system.self, memory, bytes, alignment);
}

// ---- Files to begin with ----

static const int64_t dims[] = {-1, 3, 4, 4};
static const float floats[36] = {0.5f, -1, 2, 0.25f, 3, -2, 1, 0.125f, 4};

static void relu_file(bytes_t* graph) {
  onnx_node(graph, "Relu", "x", "r", NULL);
  onnx_node(graph, "Identity", "r", "y", NULL);
}

static void reshape_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "start", -1);
  onnx_ints(graph, "two", 2, (const int64_t[]){0, -1});
  onnx_node(graph, "Shape", "x", "s", &attrs);
  onnx_node(graph, "Reshape", "x two", "y", NULL);
}

static void constant_file(bytes_t* graph) {
  bytes_t tensor = {0, {0}}, attrs = {0, {0}};
  put_tensor(&tensor, "", 1, 1, (const int64_t[]){4}, floats, 16);
  attr_part(&attrs, "value", 4, &tensor);
  onnx_node(graph, "Constant", "", "c", &attrs);
  onnx_node(graph, "Add", "x c", "y", NULL);
}

static void product_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "transB", 1);
  attr_float(&attrs, "alpha", 0.5f);
  onnx_tensor(graph, "w", 1, 2, (const int64_t[]){3, 4}, floats, 48);
  onnx_ints(graph, "rows", 2, (const int64_t[]){-1, 4});
  onnx_node(graph, "Reshape", "x rows", "r", NULL);
  onnx_node(graph, "Gemm", "r w", "y", &attrs);
}

static void matmul_file(bytes_t* graph) {
  onnx_tensor(graph, "w", 1, 2, (const int64_t[]){4, 3}, floats, 48);
  onnx_node(graph, "MatMul", "x w", "m", NULL);
  onnx_node(graph, "Softmax", "m", "y", NULL);
}

static void conv_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}}, pool = {0, {0}};
  attr_ints(&attrs, "pads", 4, (const int64_t[]){1, 1, 1, 1});
  attr_ints(&attrs, "strides", 2, (const int64_t[]){2, 2});
  onnx_tensor(graph, "w", 1, 4, (const int64_t[]){1, 3, 2, 2}, floats, 48);
  onnx_node(graph, "Conv", "x w", "v", &attrs);
  attr_ints(&pool, "kernel_shape", 2, (const int64_t[]){2, 2});
  attr_int(&pool, "ceil_mode", 1);
  onnx_node(graph, "MaxPool", "v", "y", &pool);
}

static void norm_file(bytes_t* graph) {
  onnx_tensor(graph, "s", 1, 1, (const int64_t[]){3}, floats, 12);
  onnx_node(graph, "BatchNormalization", "x s s s s", "n", NULL);
  onnx_node(graph, "GlobalAveragePool", "n", "y", NULL);
}

static void reduce_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "keepdims", 0);
  onnx_ints(graph, "axes", 2, (const int64_t[]){1, -1});
  onnx_node(graph, "ReduceMean", "x axes", "y", &attrs);
}

static void slice_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}}, concat = {0, {0}};
  onnx_ints(graph, "from", 1, (const int64_t[]){1});
  onnx_ints(graph, "to", 1, (const int64_t[]){-1});
  attr_ints(&attrs, "perm", 4, (const int64_t[]){0, 2, 1, 3});
  attr_int(&concat, "axis", 1);
  onnx_node(graph, "Slice", "x from to from", "p", NULL);
  onnx_node(graph, "Transpose", "p", "t", &attrs);
  onnx_node(graph, "Concat", "t t", "y", &concat);
}

static void gather_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "axis", 1);
  onnx_ints(graph, "at", 2, (const int64_t[]){2, 0});
  onnx_node(graph, "Gather", "x at", "g", &attrs);
  onnx_node(graph, "Pad", "g eight", "y", NULL);
  onnx_ints(graph, "eight", 8, (const int64_t[]){0, 0, 1, 1, 0, 0, 0, 2});
}

static void resize_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_string(&attrs, "mode", "linear");
  onnx_tensor(graph, "s", 1, 1, (const int64_t[]){4},
              (const float[]){1, 1, 2, 2}, 16);
  onnx_node(graph, "Resize", "x - s", "y", &attrs);
}

static void lstm_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "hidden_size", 1);
  onnx_ints(graph, "three", 3, (const int64_t[]){0, -1, 4});
  onnx_tensor(graph, "w", 1, 3, (const int64_t[]){1, 4, 4}, floats, 64);
  onnx_tensor(graph, "r", 1, 3, (const int64_t[]){1, 4, 1}, floats, 16);
  onnx_node(graph, "Reshape", "x three", "i", NULL);
  onnx_node(graph, "LSTM", "i w r", "y", &attrs);
}

// Adds 1 until the count is there.
static void loop_file(bytes_t* graph) {
  bytes_t body = {0, {0}}, attrs = {0, {0}};
  onnx_value(&body, ONNX_INPUT, "i", 7, 0, NULL);
  onnx_value(&body, ONNX_INPUT, "go", 9, 0, NULL);
  onnx_value(&body, ONNX_INPUT, "v", 1, -1, NULL);
  onnx_node(&body, "Identity", "go", "goes", NULL);
  onnx_node(&body, "Add", "v one", "w", NULL);
  onnx_value(&body, ONNX_OUTPUT, "goes", 9, 0, NULL);
  onnx_value(&body, ONNX_OUTPUT, "w", 1, -1, NULL);
  attr_part(&attrs, "body", 5, &body);
  onnx_tensor(graph, "one", 1, 1, (const int64_t[]){1}, floats, 4);
  onnx_ints(graph, "count", 1, (const int64_t[]){3});
  onnx_node(graph, "Loop", "count - x", "y", &attrs);
}

static void quantized_file(bytes_t* graph) {
  onnx_tensor(graph, "s", 1, 0, NULL, floats, 4);
  onnx_tensor(graph, "z", 3, 0, NULL, "\1", 1);
  onnx_node(graph, "QuantizeLinear", "x s z", "q", NULL);
  onnx_node(graph, "DequantizeLinear", "q s z", "y", NULL);
}

static void einsum_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_string(&attrs, "equation", "nchw,nchv->nwv");
  onnx_node(graph, "Einsum", "x x", "y", &attrs);
}

static void nonzero_file(bytes_t* graph) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "to", 7);
  onnx_node(graph, "Shape", "x", "s", NULL);
  onnx_node(graph, "ConstantOfShape", "s", "c", NULL);
  onnx_node(graph, "Greater", "x c", "b", NULL);
  onnx_node(graph, "Where", "b c x", "v", NULL);
  onnx_node(graph, "NonZero", "x", "z", NULL);
  onnx_node(graph, "Cast", "x", "y", &attrs);
}

static void gradient_file(bytes_t* graph) {
  onnx_tensor(graph, "w", 1, 1, (const int64_t[]){4}, floats, 16);
  onnx_node(graph, "Mul", "x w", "p", NULL);
  onnx_node(graph, "Sigmoid", "p", "s", NULL);
  onnx_node(graph, "Mul", "s p", "v", NULL);
  put_gradient(graph, 1, "x s", "dx y", "x w", "", "v");
}

static void (*const files[])(bytes_t* graph) = {
    relu_file,    reshape_file,  constant_file, product_file,   matmul_file,
    conv_file,    norm_file,     reduce_file,   slice_file,     gather_file,
    resize_file,  lstm_file,     loop_file,     quantized_file, einsum_file,
    nonzero_file, gradient_file,
};
enum { FILE_COUNT = sizeof files / sizeof *files };

// One of a function that has an attribute of its call.
static void function_file(bytes_t* model) {
  bytes_t graph = {0, {0}}, nodes = {0, {0}}, attrs = {0, {0}}, call = {0, {0}};
  attr_of_call(&attrs, "alpha", "slope", 1);
  put_node(&nodes, 7, "", "LeakyRelu", "a", "b", &attrs);
  onnx_function(model, "leaky", "a", "b", &nodes);
  attr_float(&call, "slope", 0.5f);
  onnx_value(&graph, ONNX_INPUT, "x", 1, 4, dims);
  put_node(&graph, 1, "local", "leaky", "x", "y", &call);
  onnx_value(&graph, ONNX_OUTPUT, "y", 1, -1, NULL);
  onnx_model(model, &graph, 18);
}

static void make_file(int number, bytes_t* model) {
  if (number == FILE_COUNT) {
    function_file(model);
    return;
  }
  bytes_t graph = {0, {0}};
  onnx_value(&graph, ONNX_INPUT, "x", 1, 4, dims);
  files[number](&graph);
  onnx_value(&graph, ONNX_OUTPUT, "y", 1, -1, NULL);
  onnx_model(model, &graph, 18);
}

// Most changes of a file leave nothing that parses. So an input may also be
// PATCHES, a file's number, and triples: a place of two bytes, and the byte
// that is there from now on.
enum { PATCHES = 0xff, TRIPLES = 2 };

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  bytes_t model = {0, {0}};
  if (number > 2 * FILE_COUNT + 1) return 0;
  make_file(number % (FILE_COUNT + 1), &model);
  if (number <= FILE_COUNT) {
    memcpy(out_data, model.data, model.size);
    return model.size;
  }
  out_data[0] = PATCHES;
  out_data[1] = (uint8_t)(number % (FILE_COUNT + 1));
  for (size_t i = 0; i < TRIPLES; ++i) {
    const size_t at = i * model.size / TRIPLES;
    out_data[2 + 3 * i] = (uint8_t)(at >> 8);
    out_data[3 + 3 * i] = (uint8_t)at;
    out_data[4 + 3 * i] = model.data[at];
  }
  return 2 + 3 * TRIPLES;
}

static void patch(const uint8_t* data, size_t bytes, bytes_t* model) {
  make_file(data[1] % (FILE_COUNT + 1), model);
  for (size_t i = 2; i + 3 <= bytes; i += 3)
    model->data[((size_t)data[i] << 8 | data[i + 1]) % model->size] =
        data[i + 2];
}

// ---- A run ----

static choir_tensor_t* make_input(choir_device_t* device,
                                  const choir_onnx_value_info_t* info) {
  choir_dtype_t dtype = CHOIR_DTYPE_F32;
  int64_t shape[CHOIR_MAX_NDIM] = {0};
  int64_t count = 1;
  choir_status_free(choir_onnx_type_dtype(info->type, &dtype));
  const int32_t ndim = info->ndim < 0 ? 2 : info->ndim;
  for (int32_t i = 0; i < ndim; ++i) {
    shape[i] = info->ndim < 0 || info->shape[i] < 0 ? 2 : info->shape[i];
    if (shape[i] > MOST_ELEMENTS) return NULL;
    count *= shape[i];
    if (count > MOST_ELEMENTS) return NULL;
  }
  static const char zeros[MOST_ELEMENTS * 8];
  choir_tensor_t* tensor = NULL;
  choir_status_free(
      choir_tensor_from_data(device, dtype, ndim, shape, zeros, &tensor));
  return tensor;
}

static void run(choir_onnx_t* onnx, choir_device_t* device) {
  enum { MOST_INPUTS = 8 };
  const int32_t count = choir_onnx_input_count(onnx);
  choir_scope_t* scope = NULL;
  if (count > MOST_INPUTS) return;
  choir_status_t status = choir_onnx_place(onnx, device);
  if (!status) status = choir_scope_create(device, &scope);
  choir_status_free(status);
  if (!scope) return;
  choir_scope_begin(scope, NULL);
  choir_var_t* inputs[MOST_INPUTS];
  bool is_made = true;
  for (int32_t i = 0; i < count; ++i) {
    const choir_onnx_value_info_t info = choir_onnx_input(onnx, i);
    choir_tensor_t* tensor = make_input(device, &info);
    is_made = is_made && tensor;
    inputs[i] = tensor ? choir_scope_input(scope, tensor) : NULL;
    choir_tensor_release(tensor);
  }
  if (is_made) {
    choir_var_t* y =
        choir_onnx_forward(scope, onnx, (choir_vars_t){inputs, count});
    const bool is_ok = choir_scope_is_ok(scope);
    for (int32_t i = 0; is_ok && i < choir_onnx_result_count(onnx); ++i)
      if (!choir_var_view(choir_scope_result(scope, y, i))) abort();
  }
  choir_status_free(choir_scope_end(scope));
  choir_scope_destroy(scope);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static choir_device_t* device;
  if (!device) {
    const choir_allocator_t allocator = {.alloc = limited_alloc,
                                         .free = limited_free};
    const choir_device_options_t options = {.threads = 1};
    choir_status_free(choir_allocator_set_default(allocator));
    if (choir_device_create("cpu", &options, &device)) abort();
  }
  bytes_t model = {0, {0}};
  const bool is_patched = bytes >= 2 && data[0] == PATCHES;
  if (is_patched) patch(data, bytes, &model);
  choir_onnx_t* onnx = NULL;
  choir_status_t status =
      is_patched ? choir_onnx_parse(model.data, model.size, NULL, &onnx)
                 : choir_onnx_parse(data, bytes, NULL, &onnx);
  if (!status) {
    char* text = NULL;
    choir_status_free(choir_onnx_print(onnx, &text));
    free(text);
    run(onnx, device);
  } else if (onnx) {
    abort();
  }
  choir_status_free(status);
  choir_onnx_release(onnx);
  // What the pool keeps would leave later runs without memory; what is not the
  // pool's has been given back.
  choir_device_trim(device);
  if (taken > MOST_KEPT) abort();
  return 0;
}
