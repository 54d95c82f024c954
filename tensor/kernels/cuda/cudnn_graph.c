// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cudnn_graph.h"

#include <string.h>

#include "core/library_backend.h"
#include "core/log.h"
#include "tensor/gpu_parts_internal.h"
#include "tensor/kernels/cuda/cuda_kernels.h"

static choir__cudnn_table_t machine_table;

static const choir_library_symbol_t symbols[] = {
#define SYMBOL(type, symbol, parameters) {#symbol, &machine_table.symbol},
    CHOIR__CUDNN_SYMBOLS(SYMBOL)
#undef SYMBOL
};

static choir_library_t library = {
    .who = "cuDNN",
    .needs = "cuDNN 9 for CUDA 13",
    // $CHOIR_CUDNN_LIBRARY: a file that is loaded in place of libcudnn.so.9.
    // Not set: the system's loader finds it, or it is in the toolkit's folder.
    .variable = "CHOIR_CUDNN_LIBRARY",
    .without = "convolutions on GPUs run on the host",
    .files = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"},
    .table = &machine_table,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(symbols[0]),
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

bool choir__cudnn_is_there(void) { return choir__library_is_there(&library); }

choir_status_t choir__gpu_part_cudnn(choir_gpu_part_t* part) {
  (void)part;
  const void* table = NULL;
  return choir__library_open(&library, &table);
}

void choir__cudnn_replace(const choir__cudnn_table_t* table) {
  choir__library_replace(&library, table);
}

static bool is_refusal(choir__cudnn_result_t result) {
  return (int)result / 1000 * 1000 == CHOIR__CUDNN_NOT_SUPPORTED;
}

choir_status_t choir__cudnn_status(const choir__cudnn_t* cudnn,
                                   choir__cudnn_result_t result,
                                   const char* symbol) {
  if (result == CHOIR__CUDNN_SUCCESS) return NULL;
  const char* text = cudnn->table->cudnnGetErrorString(result);
  char more[256] = "";
  cudnn->table->cudnnGetLastErrorString(more, sizeof(more));
  more[sizeof(more) - 1] = 0;
  more[strcspn(more, "\n")] = 0;  // a message has one line
  const char* comma = more[0] ? ", " : "";
  if (result == CHOIR__CUDNN_HOST_ALLOCATION_FAILED ||
      result == CHOIR__CUDNN_DEVICE_ALLOCATION_FAILED)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: %s: %s (%d)%s%s", cudnn->who, symbol,
                       text, (int)result, comma, more);
  if (is_refusal(result))
    return CHOIR_ERROR(UNIMPLEMENTED, "%s: %s: %s (%d)%s%s", cudnn->who, symbol,
                       text, (int)result, comma, more);
  return CHOIR_ERROR(INTERNAL, "%s: %s: %s (%d)%s%s", cudnn->who, symbol, text,
                     (int)result, comma, more);
}

// ---- The library on a device ----

static choir_status_t open_cudnn(choir_device_t* device, void** out_state) {
  *out_state = NULL;
  const void* table = NULL;
  CHOIR_TRY(choir__library_open(&library, &table));
  const choir_allocator_t objects = choir_device_allocator(device);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(objects, sizeof(choir__cudnn_t), "cuDNN", &memory));
  choir__cudnn_t* cudnn = memory;
  cudnn->who = choir__cuda_who(device);
  cudnn->objects = objects;
  cudnn->table = table;
  cudnn->tf32 = choir__cuda_allows_tf32();
  choir_status_t status = CHOIR__CUDNN_CALL(cudnn, cudnnCreate, &cudnn->handle);
  if (status) {
    choir_deallocate(objects, cudnn, sizeof(*cudnn));
    return status;
  }
  pthread_mutex_init(&cudnn->lock, NULL);
  *out_state = cudnn;
  return NULL;
}

static void close_cudnn(choir_device_t* device, void* state) {
  (void)device;
  choir__cudnn_t* cudnn = state;
  choir__cuda_plan_t* plan;
  while ((plan = choir__cuda_plans_take(&cudnn->plans)))
    choir__cudnn_plan_destroy(cudnn, plan);
  choir_status_t status = CHOIR__CUDNN_CALL(cudnn, cudnnDestroy, cudnn->handle);
  if (status)
    choir_log(CHOIR_LOG_WARNING, "tensor", "cuDNN was not released: %s",
              choir_status_message(status));
  choir_status_free(status);
  pthread_mutex_destroy(&cudnn->lock);
  choir_deallocate(cudnn->objects, cudnn, sizeof(*cudnn));
}

static const choir_cuda_attachment_t attachment = {open_cudnn, close_cudnn};

choir_status_t choir__cudnn_of(choir_device_t* device,
                               choir__cudnn_t** out_cudnn) {
  void* state = NULL;
  *out_cudnn = NULL;
  CHOIR_TRY(choir__cuda_attach(device, &attachment, &state));
  *out_cudnn = state;
  return NULL;
}

// ---- Descriptors ----

// One attribute: so many values of a type.
typedef struct attr_s {
  choir__cudnn_attr_t name;
  choir__cudnn_type_t type;
  int64_t count;
  const void* values;
} attr_t;

static choir_status_t set_all(const choir__cudnn_t* cudnn,
                              choir__cudnn_desc_t desc, const attr_t* attrs,
                              size_t count) {
  for (size_t i = 0; i < count; ++i)
    CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendSetAttribute, desc,
                                attrs[i].name, attrs[i].type, attrs[i].count,
                                attrs[i].values));
  return NULL;
}

static choir_status_t make(const choir__cudnn_t* cudnn,
                           choir__cudnn_graph_t* graph,
                           choir__cudnn_kind_t kind,
                           choir__cudnn_desc_t* out_desc) {
  *out_desc = NULL;
  if (graph->desc_count == CHOIR__CUDNN_GRAPH_DESCS)
    return CHOIR_ERROR(INTERNAL, "cuDNN graph: more than %d descriptors",
                       CHOIR__CUDNN_GRAPH_DESCS);
  CHOIR_TRY(
      CHOIR__CUDNN_CALL(cudnn, cudnnBackendCreateDescriptor, kind, out_desc));
  graph->descs[graph->desc_count++] = *out_desc;
  return NULL;
}

// Makes a descriptor of the graph's, with these attributes.
static choir_status_t describe(const choir__cudnn_t* cudnn,
                               choir__cudnn_graph_t* graph,
                               choir__cudnn_kind_t kind, const attr_t* attrs,
                               size_t count, choir__cudnn_desc_t* out_desc) {
  CHOIR_TRY(make(cudnn, graph, kind, out_desc));
  CHOIR_TRY(set_all(cudnn, *out_desc, attrs, count));
  return CHOIR__CUDNN_CALL(cudnn, cudnnBackendFinalize, *out_desc);
}
#define DESCRIBE(cudnn, graph, kind, attrs, out_desc)                   \
  describe(cudnn, graph, kind, attrs, sizeof(attrs) / sizeof(attrs[0]), \
           out_desc)

// Takes the last descriptor away again.
static void drop(const choir__cudnn_t* cudnn, choir__cudnn_graph_t* graph) {
  // Nothing but host memory: this cannot fail.
  (void)cudnn->table->cudnnBackendDestroyDescriptor(
      graph->descs[--graph->desc_count]);
}

void choir__cudnn_graph_close(const choir__cudnn_t* cudnn,
                              choir__cudnn_graph_t* graph) {
  // What was made last refers to what was made first.
  while (graph->desc_count > 0) drop(cudnn, graph);
  *graph = (choir__cudnn_graph_t){.desc_count = 0};
}

static int32_t dtype_of(choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F64:
      return CHOIR__CUDNN_DOUBLE;
    case CHOIR_DTYPE_F16:
      return CHOIR__CUDNN_HALF;
    case CHOIR_DTYPE_BF16:
      return CHOIR__CUDNN_BFLOAT16;
    default:
      return CHOIR__CUDNN_FLOAT;
  }
}

// Sums are in f32, or f64 of that.
static int32_t compute_of(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_F64 ? CHOIR__CUDNN_DOUBLE : CHOIR__CUDNN_FLOAT;
}

choir_status_t choir__cudnn_tensor(const choir__cudnn_t* cudnn,
                                   choir__cudnn_graph_t* graph,
                                   const choir_view_t* view, int64_t id,
                                   int64_t alignment, bool is_virtual,
                                   choir__cudnn_desc_t* out_desc) {
  const int32_t dtype = dtype_of(view->dtype);
  // A size of 1 leaves its stride without meaning: it gets that of the layout.
  choir_view_t layout = *view;
  choir_view_set_channels_last(&layout);
  const attr_t attrs[] = {
      {CHOIR__CUDNN_TENSOR_DATA_TYPE, CHOIR__CUDNN_TYPE_DATA_TYPE, 1, &dtype},
      {CHOIR__CUDNN_TENSOR_DIMENSIONS, CHOIR__CUDNN_TYPE_INT64, 4, view->shape},
      {CHOIR__CUDNN_TENSOR_STRIDES, CHOIR__CUDNN_TYPE_INT64, 4, layout.strides},
      {CHOIR__CUDNN_TENSOR_UNIQUE_ID, CHOIR__CUDNN_TYPE_INT64, 1, &id},
      {CHOIR__CUDNN_TENSOR_BYTE_ALIGNMENT, CHOIR__CUDNN_TYPE_INT64, 1,
       &alignment},
      {CHOIR__CUDNN_TENSOR_IS_VIRTUAL, CHOIR__CUDNN_TYPE_BOOLEAN, 1,
       &is_virtual},
  };
  return DESCRIBE(cudnn, graph, CHOIR__CUDNN_TENSOR, attrs, out_desc);
}

// ---- Operations ----

static choir_status_t add_op(const choir__cudnn_t* cudnn,
                             choir__cudnn_graph_t* graph,
                             choir__cudnn_kind_t kind, const attr_t* attrs,
                             size_t count) {
  if (graph->op_count == CHOIR__CUDNN_GRAPH_OPS)
    return CHOIR_ERROR(INTERNAL, "cuDNN graph: more than %d operations",
                       CHOIR__CUDNN_GRAPH_OPS);
  choir__cudnn_desc_t op = NULL;
  CHOIR_TRY(describe(cudnn, graph, kind, attrs, count, &op));
  graph->ops[graph->op_count++] = op;
  return NULL;
}

// The attributes of the three kinds of operation.
typedef struct conv_attrs_s {
  choir__cudnn_attr_t alpha, beta, desc, x, w, y;
} conv_attrs_t;

static conv_attrs_t conv_attrs_of(choir__cudnn_kind_t kind) {
  switch ((int)kind) {
    case CHOIR__CUDNN_CONVOLUTION_BWD_DATA:
      return (conv_attrs_t){
          CHOIR__CUDNN_BWD_DATA_ALPHA,     CHOIR__CUDNN_BWD_DATA_BETA,
          CHOIR__CUDNN_BWD_DATA_CONV_DESC, CHOIR__CUDNN_BWD_DATA_DX,
          CHOIR__CUDNN_BWD_DATA_W,         CHOIR__CUDNN_BWD_DATA_DY};
    case CHOIR__CUDNN_CONVOLUTION_BWD_FILTER:
      return (conv_attrs_t){
          CHOIR__CUDNN_BWD_FILTER_ALPHA,     CHOIR__CUDNN_BWD_FILTER_BETA,
          CHOIR__CUDNN_BWD_FILTER_CONV_DESC, CHOIR__CUDNN_BWD_FILTER_X,
          CHOIR__CUDNN_BWD_FILTER_DW,        CHOIR__CUDNN_BWD_FILTER_DY};
    default:
      return (conv_attrs_t){
          CHOIR__CUDNN_FORWARD_ALPHA,     CHOIR__CUDNN_FORWARD_BETA,
          CHOIR__CUDNN_FORWARD_CONV_DESC, CHOIR__CUDNN_FORWARD_X,
          CHOIR__CUDNN_FORWARD_W,         CHOIR__CUDNN_FORWARD_Y};
  }
}

choir_status_t choir__cudnn_conv(const choir__cudnn_t* cudnn,
                                 choir__cudnn_graph_t* graph,
                                 const choir__cudnn_conv_t* conv) {
  graph->conv_kind = conv->kind;
  const int32_t compute = compute_of(conv->dtype);
  const int32_t mode = CHOIR__CUDNN_CROSS_CORRELATION;
  const int64_t dims = 2;
  const attr_t windows[] = {
      {CHOIR__CUDNN_CONVOLUTION_COMP_TYPE, CHOIR__CUDNN_TYPE_DATA_TYPE, 1,
       &compute},
      {CHOIR__CUDNN_CONVOLUTION_CONV_MODE, CHOIR__CUDNN_TYPE_CONVOLUTION_MODE,
       1, &mode},
      {CHOIR__CUDNN_CONVOLUTION_SPATIAL_DIMS, CHOIR__CUDNN_TYPE_INT64, 1,
       &dims},
      {CHOIR__CUDNN_CONVOLUTION_FILTER_STRIDES, CHOIR__CUDNN_TYPE_INT64, 2,
       conv->stride},
      {CHOIR__CUDNN_CONVOLUTION_DILATIONS, CHOIR__CUDNN_TYPE_INT64, 2,
       conv->dilation},
      {CHOIR__CUDNN_CONVOLUTION_PRE_PADDINGS, CHOIR__CUDNN_TYPE_INT64, 2,
       conv->before},
      {CHOIR__CUDNN_CONVOLUTION_POST_PADDINGS, CHOIR__CUDNN_TYPE_INT64, 2,
       conv->after},
  };
  choir__cudnn_desc_t window = NULL;
  CHOIR_TRY(DESCRIBE(cudnn, graph, CHOIR__CUDNN_CONVOLUTION, windows, &window));
  const double doubles[2] = {1, conv->accumulate ? 1 : 0};
  const float floats[2] = {(float)doubles[0], (float)doubles[1]};
  const bool is_double = compute == CHOIR__CUDNN_DOUBLE;
  const choir__cudnn_type_t scale =
      is_double ? CHOIR__CUDNN_TYPE_DOUBLE : CHOIR__CUDNN_TYPE_FLOAT;
  const conv_attrs_t names = conv_attrs_of(conv->kind);
  const choir__cudnn_type_t desc = CHOIR__CUDNN_TYPE_DESCRIPTOR;
  const attr_t attrs[] = {
      {names.alpha, scale, 1,
       is_double ? (const void*)&doubles[0] : &floats[0]},
      {names.beta, scale, 1, is_double ? (const void*)&doubles[1] : &floats[1]},
      {names.desc, desc, 1, &window},
      {names.x, desc, 1, &conv->x},
      {names.w, desc, 1, &conv->w},
      {names.y, desc, 1, &conv->y},
  };
  return add_op(cudnn, graph, conv->kind, attrs,
                sizeof(attrs) / sizeof(attrs[0]));
}

choir_status_t choir__cudnn_add(const choir__cudnn_t* cudnn,
                                choir__cudnn_graph_t* graph,
                                choir_dtype_t dtype, choir__cudnn_desc_t x,
                                choir__cudnn_desc_t b, choir__cudnn_desc_t y) {
  const int32_t mode = CHOIR__CUDNN_POINTWISE_ADD;
  const int32_t compute = compute_of(dtype);
  const attr_t functions[] = {
      {CHOIR__CUDNN_POINTWISE_MODE, CHOIR__CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
      {CHOIR__CUDNN_POINTWISE_MATH_PREC, CHOIR__CUDNN_TYPE_DATA_TYPE, 1,
       &compute},
  };
  choir__cudnn_desc_t function = NULL;
  CHOIR_TRY(
      DESCRIBE(cudnn, graph, CHOIR__CUDNN_POINTWISE, functions, &function));
  const choir__cudnn_type_t desc = CHOIR__CUDNN_TYPE_DESCRIPTOR;
  const attr_t attrs[] = {
      {CHOIR__CUDNN_OPERATION_POINTWISE_DESC, desc, 1, &function},
      {CHOIR__CUDNN_OPERATION_POINTWISE_X, desc, 1, &x},
      {CHOIR__CUDNN_OPERATION_POINTWISE_Y, desc, 1, &y},
      {CHOIR__CUDNN_OPERATION_POINTWISE_B, desc, 1, &b},
  };
  return add_op(cudnn, graph, CHOIR__CUDNN_OPERATION_POINTWISE, attrs,
                sizeof(attrs) / sizeof(attrs[0]));
}

// ---- The choice ----

// Memory that an engine may ask for.
#define MOST_WORKSPACE ((int64_t)256 << 20)
// Configurations of one question that are looked at.
enum { MOST_CONFIGS = 32, MOST_NOTES = 32 };

// What an engine says of its numbers, as bits, rules it out: other bits each
// time, sums or factors of less precision than the elements have. Tensor cores
// are that for f32, as they round the factors to TF32; an FFT, whose errors are
// those of the largest element and which makes a whole image of one NaN; and
// Winograd's transforms but for the smallest, whose tile is 4 by 4 (others do
// not always say which they are).
static bool is_ruled_out(const choir__cudnn_t* cudnn, choir_dtype_t dtype,
                         uint32_t notes) {
  enum {
    NEVER = 1u << CHOIR__CUDNN_NOTE_NONDETERMINISTIC |
            1u << CHOIR__CUDNN_NOTE_DOWN_CONVERT_INPUTS |
            1u << CHOIR__CUDNN_NOTE_REDUCED_PRECISION_REDUCTION |
            1u << CHOIR__CUDNN_NOTE_FFT,
    WINOGRAD = 1u << CHOIR__CUDNN_NOTE_WINOGRAD,
    TILE_4X4 = 1u << CHOIR__CUDNN_NOTE_WINOGRAD_TILE_4X4,
    TENSOR_CORE = 1u << CHOIR__CUDNN_NOTE_TENSOR_CORE,
  };
  return (notes & NEVER) || ((notes & WINOGRAD) && !(notes & TILE_4X4)) ||
         ((notes & TENSOR_CORE) && dtype == CHOIR_DTYPE_F32 && !cudnn->tf32);
}

// Engines that are wrong and say nothing of it, by the library's own numbers:
// in f16 these two write 0 where a sum is -inf, so that what has diverged looks
// sound (seen with 9.19 on an H100; its other engines are right).
static bool is_known_wrong(const choir__cudnn_graph_t* graph,
                           choir_dtype_t dtype, int64_t engine) {
  const bool adds_bias = graph->op_count > 1;
  return dtype == CHOIR_DTYPE_F16 &&
         graph->conv_kind == CHOIR__CUDNN_CONVOLUTION_FORWARD &&
         engine == (adds_bias ? 32 : 47);
}

static choir_status_t check_engine(const choir__cudnn_t* cudnn,
                                   const choir__cudnn_graph_t* graph,
                                   choir_dtype_t dtype,
                                   choir__cudnn_desc_t config,
                                   choir__cudnn_desc_t engine, bool* out_fits) {
  int64_t count = 0;
  int64_t index = 0;
  CHOIR_TRY(CHOIR__CUDNN_CALL(
      cudnn, cudnnBackendGetAttribute, config, CHOIR__CUDNN_ENGINECFG_ENGINE,
      CHOIR__CUDNN_TYPE_DESCRIPTOR, 1, &count, &engine));
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendGetAttribute, engine,
                              CHOIR__CUDNN_ENGINE_GLOBAL_INDEX,
                              CHOIR__CUDNN_TYPE_INT64, 1, &count, &index));
  if (is_known_wrong(graph, dtype, index)) return NULL;
  int32_t notes[MOST_NOTES];
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendGetAttribute, engine,
                              CHOIR__CUDNN_ENGINE_NUMERICAL_NOTE,
                              CHOIR__CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES,
                              &count, notes));
  uint32_t bits = 0;
  for (int64_t i = 0; i < count && i < MOST_NOTES; ++i)
    if (notes[i] >= 0 && notes[i] < 32) bits |= 1u << notes[i];
  *out_fits = count <= MOST_NOTES && !is_ruled_out(cudnn, dtype, bits);
  return NULL;
}

static choir_status_t has_fitting_engine(const choir__cudnn_t* cudnn,
                                         const choir__cudnn_graph_t* graph,
                                         choir_dtype_t dtype,
                                         choir__cudnn_desc_t config,
                                         bool* out_fits) {
  choir__cudnn_desc_t engine = NULL;
  *out_fits = false;
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendCreateDescriptor,
                              CHOIR__CUDNN_ENGINE, &engine));
  choir_status_t status =
      check_engine(cudnn, graph, dtype, config, engine, out_fits);
  (void)cudnn->table->cudnnBackendDestroyDescriptor(engine);
  return status;
}

// Makes the configuration's plan the graph's. UNIMPLEMENTED, and no plan, when
// that one does not do, for whatever reason: the next may.
static choir_status_t try_config(const choir__cudnn_t* cudnn,
                                 choir__cudnn_graph_t* graph,
                                 choir__cudnn_desc_t config) {
  const attr_t attrs[] = {
      {CHOIR__CUDNN_EXECUTION_PLAN_HANDLE, CHOIR__CUDNN_TYPE_HANDLE, 1,
       &cudnn->handle},
      {CHOIR__CUDNN_EXECUTION_PLAN_ENGINE_CONFIG, CHOIR__CUDNN_TYPE_DESCRIPTOR,
       1, &config},
  };
  choir__cudnn_desc_t plan = NULL;
  CHOIR_TRY(make(cudnn, graph, CHOIR__CUDNN_EXECUTION_PLAN, &plan));
  choir_status_t status = set_all(cudnn, plan, attrs, 2);
  if (!status) status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendFinalize, plan);
  int64_t bytes = 0;
  int64_t count = 0;
  if (!status)
    status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendGetAttribute, plan,
                               CHOIR__CUDNN_EXECUTION_PLAN_WORKSPACE_SIZE,
                               CHOIR__CUDNN_TYPE_INT64, 1, &count, &bytes);
  if (!status && bytes <= MOST_WORKSPACE) {
    graph->plan = plan;
    graph->workspace_bytes = (size_t)bytes;
    return NULL;
  }
  drop(cudnn, graph);
  if (choir_status_code(status) == CHOIR_STATUS_OUT_OF_MEMORY) return status;
  choir_status_free(status);
  return CHOIR_ERROR(UNIMPLEMENTED, "cuDNN: the engine does not do");
}

// Tries the configurations in their order; those that are not taken go.
static choir_status_t try_configs(const choir__cudnn_t* cudnn,
                                  choir__cudnn_graph_t* graph,
                                  choir_dtype_t dtype,
                                  choir__cudnn_desc_t heuristics,
                                  choir__cudnn_desc_t* configs, int64_t made) {
  int64_t count = 0;
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendGetAttribute, heuristics,
                              CHOIR__CUDNN_ENGINEHEUR_RESULTS,
                              CHOIR__CUDNN_TYPE_DESCRIPTOR, made, &count,
                              configs));
  if (count > made) count = made;
  for (int64_t i = 0; i < count; ++i) {
    bool fits = false;
    CHOIR_TRY(has_fitting_engine(cudnn, graph, dtype, configs[i], &fits));
    if (!fits) continue;
    choir_status_t status = try_config(cudnn, graph, configs[i]);
    if (choir_status_code(status) != CHOIR_STATUS_UNIMPLEMENTED) {
      if (!status) {
        // It stays with its plan, which is the last descriptor.
        choir__cudnn_desc_t plan = graph->descs[graph->desc_count - 1];
        graph->descs[graph->desc_count - 1] = configs[i];
        graph->descs[graph->desc_count++] = plan;
        configs[i] = NULL;
      }
      return status;
    }
    choir_status_free(status);
  }
  return CHOIR_ERROR(UNIMPLEMENTED, "%s: cuDNN has no engine that will do",
                     cudnn->who);
}

static choir_status_t ask(const choir__cudnn_t* cudnn,
                          choir__cudnn_graph_t* graph, choir_dtype_t dtype,
                          choir__cudnn_desc_t operations, int32_t mode) {
  // Room for the configuration beside the plan.
  if (graph->desc_count + 3 > CHOIR__CUDNN_GRAPH_DESCS)
    return CHOIR_ERROR(INTERNAL, "cuDNN graph: more than %d descriptors",
                       CHOIR__CUDNN_GRAPH_DESCS);
  const attr_t attrs[] = {
      {CHOIR__CUDNN_ENGINEHEUR_OPERATION_GRAPH, CHOIR__CUDNN_TYPE_DESCRIPTOR, 1,
       &operations},
      {CHOIR__CUDNN_ENGINEHEUR_MODE, CHOIR__CUDNN_TYPE_HEUR_MODE, 1, &mode},
  };
  choir__cudnn_desc_t heuristics = NULL;
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendCreateDescriptor,
                              CHOIR__CUDNN_ENGINEHEUR, &heuristics));
  choir__cudnn_desc_t configs[MOST_CONFIGS];
  int64_t made = 0;
  choir_status_t status = set_all(cudnn, heuristics, attrs, 2);
  if (!status)
    status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendFinalize, heuristics);
  while (!status && made < MOST_CONFIGS) {
    status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendCreateDescriptor,
                               CHOIR__CUDNN_ENGINECFG, &configs[made]);
    if (!status) ++made;
  }
  if (!status)
    status = try_configs(cudnn, graph, dtype, heuristics, configs, made);
  for (int64_t i = 0; i < made; ++i)
    if (configs[i])
      (void)cudnn->table->cudnnBackendDestroyDescriptor(configs[i]);
  (void)cudnn->table->cudnnBackendDestroyDescriptor(heuristics);
  return status;
}

choir_status_t choir__cudnn_choose(const choir__cudnn_t* cudnn,
                                   choir__cudnn_graph_t* graph,
                                   choir_dtype_t dtype) {
  const attr_t attrs[] = {
      {CHOIR__CUDNN_OPERATIONGRAPH_HANDLE, CHOIR__CUDNN_TYPE_HANDLE, 1,
       &cudnn->handle},
      {CHOIR__CUDNN_OPERATIONGRAPH_OPS, CHOIR__CUDNN_TYPE_DESCRIPTOR,
       graph->op_count, graph->ops},
  };
  choir__cudnn_desc_t operations = NULL;
  CHOIR_TRY(
      DESCRIBE(cudnn, graph, CHOIR__CUDNN_OPERATIONGRAPH, attrs, &operations));
  // B takes longer to answer and knows better: bf16 steps were a quarter
  // quicker by it. Each problem is asked for once.
  static const int32_t modes[] = {CHOIR__CUDNN_HEUR_MODE_B,
                                  CHOIR__CUDNN_HEUR_MODE_A,
                                  CHOIR__CUDNN_HEUR_MODE_FALLBACK};
  choir_status_t status = NULL;
  for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); ++i) {
    choir_status_free(status);
    status = ask(cudnn, graph, dtype, operations, modes[i]);
    if (choir_status_code(status) != CHOIR_STATUS_UNIMPLEMENTED) return status;
  }
  return status;
}

// ---- Runs ----

choir_status_t choir__cudnn_run(const choir__cudnn_t* cudnn,
                                const choir__cudnn_graph_t* graph,
                                const int64_t* ids, void* const* data,
                                int32_t count, void* workspace,
                                choir_stream_t* stream) {
  const attr_t attrs[] = {
      {CHOIR__CUDNN_VARIANT_PACK_UNIQUE_IDS, CHOIR__CUDNN_TYPE_INT64, count,
       ids},
      {CHOIR__CUDNN_VARIANT_PACK_DATA_POINTERS, CHOIR__CUDNN_TYPE_VOID_PTR,
       count, data},
      {CHOIR__CUDNN_VARIANT_PACK_WORKSPACE, CHOIR__CUDNN_TYPE_VOID_PTR, 1,
       &workspace},
  };
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnSetStream, cudnn->handle,
                              choir__cuda_stream_handle(stream)));
  choir__cudnn_desc_t pack = NULL;
  CHOIR_TRY(CHOIR__CUDNN_CALL(cudnn, cudnnBackendCreateDescriptor,
                              CHOIR__CUDNN_VARIANT_PACK, &pack));
  choir_status_t status =
      set_all(cudnn, pack, attrs, sizeof(attrs) / sizeof(attrs[0]));
  if (!status) status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendFinalize, pack);
  if (!status)
    status = CHOIR__CUDNN_CALL(cudnn, cudnnBackendExecute, cudnn->handle,
                               graph->plan, pack);
  (void)cudnn->table->cudnnBackendDestroyDescriptor(pack);
  return status;
}
