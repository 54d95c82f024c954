// SPDX-License-Identifier: Apache-2.0
// A file as a model: what it declares, its parameters, and its text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

// ---- Inputs and results ----

static void fill_info(choir_onnx_value_info_t* info,
                      const Onnx__TypeProto__Tensor* tensor) {
  info->kind = "tensor";
  info->type = tensor->has_elem_type ? tensor->elem_type : 0;
  const Onnx__TensorShapeProto* shape = tensor->shape;
  if (!shape || shape->n_dim > CHOIR_MAX_NDIM) return;
  info->ndim = (int32_t)shape->n_dim;
  for (size_t i = 0; i < shape->n_dim; ++i) {
    const Onnx__TensorShapeProto__Dimension* dim = shape->dim[i];
    const bool is_number =
        dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    info->shape[i] = is_number && dim->dim_value >= 0 ? dim->dim_value : -1;
    if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
      info->symbols[i] = dim->dim_param;
  }
}

// The type of the elements of an optional, or of a sequence's tensors.
static int32_t element_type(const Onnx__TypeProto* type) {
  for (int32_t depth = 0; type && depth < 3; ++depth)
    switch (type->value_case) {
      case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE:
        return type->tensor_type->has_elem_type ? type->tensor_type->elem_type
                                                : CHOIR_ONNX_UNDEFINED;
      case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE:
        type = type->sequence_type->elem_type;
        break;
      case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
        type = type->optional_type->elem_type;
        break;
      default:
        return CHOIR_ONNX_UNDEFINED;
    }
  return CHOIR_ONNX_UNDEFINED;
}

static choir_onnx_value_info_t info_of(const Onnx__ValueInfoProto* proto) {
  choir_onnx_value_info_t info = {
      .name = proto->name ? proto->name : "", .ndim = -1, .kind = "value"};
  const Onnx__TypeProto* type = proto->type;
  if (!type) return info;
  switch (type->value_case) {
    case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE:
      fill_info(&info, type->tensor_type);
      break;
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE:
      info.kind = "sequence";
      info.type = element_type(type);
      break;
    case ONNX__TYPE_PROTO__VALUE_MAP_TYPE:
      info.kind = "map";
      break;
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
      info.kind = "optional";
      info.type = element_type(type);
      break;
    default:
      break;
  }
  return info;
}

int32_t choir_onnx_input_count(const choir_onnx_t* onnx) {
  return onnx->graph->in_count;
}
choir_onnx_value_info_t choir_onnx_input(const choir_onnx_t* onnx,
                                         int32_t index) {
  if (index < 0 || index >= onnx->graph->in_count)
    return (choir_onnx_value_info_t){.name = "", .ndim = -1, .kind = "value"};
  return info_of(onnx->graph->infos[index]);
}
int32_t choir_onnx_output_count(const choir_onnx_t* onnx) {
  return onnx->graph->out_count;
}
choir_onnx_value_info_t choir_onnx_output(const choir_onnx_t* onnx,
                                          int32_t index) {
  if (index < 0 || index >= onnx->graph->out_count)
    return (choir_onnx_value_info_t){.name = "", .ndim = -1, .kind = "value"};
  return info_of(onnx->proto->graph->output[index]);
}
int32_t choir_onnx_result_type(const choir_onnx_t* onnx, int32_t index) {
  return index < 0 || index >= onnx->result_count ? CHOIR_ONNX_UNDEFINED
                                                  : onnx->result_types[index];
}

// ---- Parameters ----

typedef struct source_s {
  const choir__onnx_place_t* place;
  bool is_learnt;
} source_t;

static source_t source_of(const choir_onnx_t* onnx, int32_t index) {
  const int32_t coded = onnx->param_places[index];
  const bool is_state = coded < 0;
  return (source_t){&onnx->graph->places[is_state ? -1 - coded : coded],
                    !is_state};
}

static choir_status_t copy_of(choir_device_t* device, choir_tensor_t* constant,
                              choir_tensor_t** out_tensor) {
  const choir_view_t* view = choir_tensor_view(constant);
  return choir_tensor_from_data(device, view->dtype, view->ndim, view->shape,
                                choir_buffer_data(view->buffer), out_tensor);
}

static void use_device(choir_onnx_t* onnx, choir_device_t* device) {
  choir_device_retain(device);
  choir_device_release(onnx->device);
  onnx->device = device;
}

void choir_onnx_define(choir_model_t* model, choir_onnx_t* onnx) {
  choir_device_t* device = choir_model_device(model);
  choir_param_set_t* set = choir_model_params(model);
  // The parameters are the set's: it stays as long as they are forward's.
  choir_param_set_retain(set);
  choir_param_set_release(onnx->param_set);
  onnx->param_set = set;
  choir_status_free(onnx->define_failure);
  onnx->define_failure = NULL;
  bool is_ok = true;
  for (int32_t i = 0; is_ok && i < onnx->param_count; ++i) {
    const source_t source = source_of(onnx, i);
    choir_tensor_t* value = NULL;
    onnx->define_failure = copy_of(device, source.place->constant, &value);
    onnx->params[i] = onnx->define_failure
                          ? NULL
                          : choir_model_add_param(model, source.place->name,
                                                  value, source.is_learnt);
    is_ok = onnx->params[i] != NULL;
    choir_tensor_release(value);
  }
  // Without one forward asks for define or place; the model tells what failed.
  use_device(onnx, is_ok ? device : NULL);
}

choir_status_t choir_onnx_place(choir_onnx_t* onnx, choir_device_t* device) {
  if (!device) return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: the device is NULL");
  if (!onnx->own_params) {
    const size_t bytes =
        sizeof(choir_param_t) * (size_t)(onnx->param_count + 1);
    onnx->own_params = choir_arena_alloc(onnx->arena, bytes);
    if (!onnx->own_params)
      return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for parameters");
    memset(onnx->own_params, 0, bytes);
  }
  // After a failure no forward runs until a later call.
  use_device(onnx, NULL);
  choir_status_free(onnx->define_failure);
  onnx->define_failure = NULL;
  for (int32_t i = 0; i < onnx->param_count; ++i) {
    const source_t source = source_of(onnx, i);
    choir_param_t* param = &onnx->own_params[i];
    choir_tensor_release(param->value);
    choir_tensor_release(param->grad);
    *param = (choir_param_t){.name = source.place->name,
                             .trainable = source.is_learnt};
    onnx->params[i] = param;
    CHOIR_TRY(copy_of(device, source.place->constant, &param->value));
  }
  choir_param_set_release(onnx->param_set);
  onnx->param_set = NULL;
  use_device(onnx, device);
  return NULL;
}

int32_t choir_onnx_param_count(const choir_onnx_t* onnx) {
  return onnx->param_count;
}
choir_param_t* choir_onnx_param(const choir_onnx_t* onnx, int32_t index) {
  return index < 0 || index >= onnx->param_count ? NULL : onnx->params[index];
}

// ---- A model ----

static void define(choir_model_t* model, void* self) {
  choir_onnx_define(model, self);
}
static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  return choir_onnx_forward(scope, self, inputs);
}
const choir_model_def_t choir_onnx_model_def = {
    .name = "onnx", .define = define, .forward = forward};

choir_status_t choir_onnx_load(choir_device_t* device, const char* path,
                               int64_t seed, choir_onnx_t** out_onnx,
                               choir_model_t** out_model) {
  *out_onnx = NULL;
  *out_model = NULL;
  choir_onnx_t* onnx;
  CHOIR_TRY(choir_onnx_open(path, &onnx));
  choir_status_t status =
      choir_model_create(device, &choir_onnx_model_def, onnx, seed, out_model);
  if (status)
    choir_onnx_release(onnx);
  else
    *out_onnx = onnx;
  return status;
}

// ---- A text ----

static void put_info(FILE* file, const char* what,
                     choir_onnx_value_info_t info) {
  fprintf(file, "%s %s: ", what, info.name);
  if (strcmp(info.kind, "tensor") != 0) {
    fprintf(file, "%s\n", info.kind);
    return;
  }
  fprintf(file, "%s", choir_onnx_type_name(info.type));
  if (info.ndim < 0) {
    fprintf(file, ", any shape\n");
    return;
  }
  fprintf(file, " (");
  for (int32_t i = 0; i < info.ndim; ++i) {
    if (i > 0) fprintf(file, ", ");
    if (info.shape[i] >= 0)
      fprintf(file, "%lld", (long long)info.shape[i]);
    else
      fprintf(file, "%s",
              info.symbols[i] && *info.symbols[i] ? info.symbols[i] : "any");
  }
  fprintf(file, ")\n");
}

static void put_names(FILE* file, const choir__onnx_graph_t* graph,
                      const int32_t* places, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    fprintf(file, "%s%.200s", i ? ", " : "",
            places[i] < 0 ? "-" : graph->places[places[i]].name);
}

static void put_graph(FILE* file, const choir__onnx_graph_t* graph,
                      int32_t depth) {
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const choir__onnx_node_t* node = &graph->nodes[i];
    fprintf(file, "%*s%s (", 2 * depth + 2, "", node->op->name);
    put_names(file, graph, node->inputs, node->in_count);
    fprintf(file, ") -> ");
    put_names(file, graph, node->outputs, node->out_count);
    fprintf(file, "\n");
    for (size_t k = 0; k < node->proto->n_attribute; ++k)
      if (node->bodies[k]) put_graph(file, node->bodies[k], depth + 1);
  }
}

choir_status_t choir_onnx_print(const choir_onnx_t* onnx, char** out_text) {
  *out_text = NULL;
  size_t bytes = 0;
  FILE* file = open_memstream(out_text, &bytes);
  if (!file) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a text");
  const Onnx__ModelProto* model = onnx->proto;
  fprintf(file, "format %lld, made by %s %s\n",
          (long long)(model->has_ir_version ? model->ir_version : 0),
          model->producer_name ? model->producer_name : "unknown",
          model->producer_version ? model->producer_version : "");
  for (size_t i = 0; i < model->n_opset_import; ++i) {
    const char* domain = model->opset_import[i]->domain;
    fprintf(file, "operators of %s %lld\n",
            domain && *domain ? domain : "ai.onnx",
            (long long)model->opset_import[i]->version);
  }
  for (int32_t i = 0; i < choir_onnx_input_count(onnx); ++i)
    put_info(file, "input", choir_onnx_input(onnx, i));
  for (int32_t i = 0; i < choir_onnx_output_count(onnx); ++i)
    put_info(file, "result", choir_onnx_output(onnx, i));
  for (int32_t i = 0; i < onnx->param_count; ++i) {
    const source_t source = source_of(onnx, i);
    char text[160];
    fprintf(file, "%s %s: %s\n", source.is_learnt ? "parameter" : "state",
            source.place->name,
            choir_view_print(choir_tensor_view(source.place->constant), text,
                             sizeof text));
  }
  fprintf(file, "%d nodes\n", onnx->graph->node_count);
  put_graph(file, onnx->graph, 0);
  if (fclose(file) != 0 || !*out_text) {
    free(*out_text);
    *out_text = NULL;
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a text");
  }
  return NULL;
}
