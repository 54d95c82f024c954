// SPDX-License-Identifier: Apache-2.0
// The ops of a step as the messages of a file: those that the results need,
// each by its writer.
#include <search.h>
#include <string.h>

#include "onnx/onnx_put_def.h"
#include "onnx/onnx_write_internal.h"
#include "tensor/op_def.h"

// ---- The ops behind the results ----

typedef struct form_s {
  void (*put)(choir__onnx_put_t* p);
  const char* type;
} form_t;
#undef CHOIR__ONNX_PUT
static const form_t forms[CHOIR_OP_COUNT] = {
#define CHOIR__ONNX_PUT(OP, function, text) \
  [CHOIR_OP_##OP] = {choir__onnx_put_##function, text},
#include "onnx/writers/writers.def"
};

// Sets *out_list to the entries that results need, the last one first.
static void find_needed(choir__onnx_writer_t* w, choir__onnx_list_t* out_list) {
  for (int32_t i = 0; i < w->trace->result_count; ++i) {
    choir__onnx_written_t* value =
        choir__onnx_need_written(w, w->trace->results[i].var);
    if (!value) return;
    value->is_used = true;
  }
  for (const choir_tape_entry_t* entry = choir_scope_tape(w->scope);
       entry && choir__onnx_writes(w); entry = entry->previous) {
    bool is_needed = false;
    for (int32_t k = 0; k < CHOIR_OP_MAX_RESULTS; ++k) {
      choir__onnx_written_t* value =
          entry->results[k] ? choir__onnx_find_written(w, entry->results[k])
                            : NULL;
      if (value) is_needed |= value->is_used;
    }
    if (!is_needed) continue;
    choir__onnx_add_to(w, out_list, (void*)entry);
    for (int32_t i = 0; i < entry->src_count; ++i) {
      choir__onnx_written_t* value =
          choir__onnx_need_written(w, entry->srcs[i]);
      if (value) value->is_used = true;
    }
  }
}

// The view of a variable at another size of the batch. Returns its `inner`.
static int64_t other_view(choir__onnx_writer_t* w, choir_var_t* var,
                          choir_view_t* out_view) {
  *out_view = *choir_var_view(var);
  const choir__onnx_written_t* value = choir__onnx_find_written(w, var);
  if (!value || !value->has_other) return 1;
  memcpy(out_view->shape, value->other,
         sizeof(int64_t) * (size_t)out_view->ndim);
  choir_view_set_contiguous(out_view);
  return value->inner;
}

// The results' sizes at another size of the batch.
static void infer_other(choir__onnx_put_t* p) {
  const choir_tape_entry_t* entry = p->entry;
  const choir_struct_def_t* def = choir_op_attrs_def(entry->op);
  _Alignas(16) char attrs[CHOIR_OP_ATTRS_MAX_BYTES] = {0};
  if (def) memcpy(attrs, entry->attrs, def->bytes);
  choir__onnx_put_other_attrs(p, attrs);
  choir_view_t dsts[CHOIR_OP_MAX_RESULTS];
  choir_status_t status =
      choir__op_infer(entry->op, p->other, entry->src_count,
                      def ? (const void*)attrs : NULL, dsts);
  if (status)
    REFUSE(INVALID_ARGUMENT,
           "with a batch of %lld in place of %lld it fails (%s); fixed_batch "
           "writes a file for the size that there is",
           (long long)p->writer->other_batch, (long long)p->writer->batch,
           choir_status_message(status));
  choir_status_free(status);
  if (!choir__onnx_writes(p->writer)) return;
  for (int32_t k = 0; k < choir_op_result_count(entry->op); ++k) {
    choir__onnx_written_t* value =
        choir__onnx_need_written(p->writer, entry->results[k]);
    if (!value) return;
    value->has_other = true;
    memcpy(value->other, dsts[k].shape, sizeof value->other);
    value->inner =
        choir__onnx_put_inner(p, choir_var_view(entry->results[k]), &dsts[k]);
  }
}

static void put_entry(choir__onnx_writer_t* w,
                      const choir_tape_entry_t* entry) {
  choir_view_t now[CHOIR_MAX_OPERANDS], other[CHOIR_MAX_OPERANDS];
  int64_t inner[CHOIR_MAX_OPERANDS];
  choir__onnx_put_t put = {
      .writer = w, .entry = entry, .now = now, .other = other, .inner = inner};
  choir__onnx_put_t* p = &put;
  const form_t* form = entry->op < CHOIR_OP_COUNT ? &forms[entry->op] : NULL;
  if (!form || !form->put) {
    REFUSE(UNIMPLEMENTED, "it has no form in ONNX files");
    return;
  }
  put.type = form->type;
  w->label = entry->label;
  for (int32_t i = 0; i < entry->src_count; ++i) {
    now[i] = *choir_var_view(entry->srcs[i]);
    inner[i] = other_view(w, entry->srcs[i], &other[i]);
  }
  for (int32_t k = 0; k < CHOIR_OP_MAX_RESULTS; ++k) {
    choir__onnx_written_t* value =
        entry->results[k] ? choir__onnx_need_written(w, entry->results[k])
                          : NULL;
    if (value) value->is_made = true;
  }
  infer_other(p);
  if (choir__onnx_writes(w)) form->put(p);
}

// ---- The file ----

// An input or a result of the file: sizes that follow the batch are "batch"
// where they are that, else open.
static Onnx__ValueInfoProto* make_declared(choir__onnx_writer_t* w,
                                           const choir_onnx_name_t* named) {
  const choir_view_t* view = choir_var_view(named->var);
  const choir__onnx_written_t* value = choir__onnx_find_written(w, named->var);
  Onnx__ValueInfoProto* info =
      choir__onnx_make_info(w, named->name, view->dtype);
  Onnx__TensorShapeProto* shape = choir__onnx_writer_alloc(w, sizeof *shape);
  const size_t count = (size_t)view->ndim;
  Onnx__TensorShapeProto__Dimension* dims =
      choir__onnx_writer_alloc(w, sizeof(*dims) * (count + 1));
  void* at = choir__onnx_writer_alloc(w, sizeof(void*) * (count + 1));
  if (!info || !shape || !dims || !at) return NULL;
  onnx__tensor_shape_proto__init(shape);
  shape->n_dim = count;
  shape->dim = at;
  for (size_t i = 0; i < count; ++i) {
    Onnx__TensorShapeProto__Dimension* dim = shape->dim[i] = &dims[i];
    onnx__tensor_shape_proto__dimension__init(dim);
    const int64_t now = view->shape[i];
    const int64_t other = value && value->has_other ? value->other[i] : now;
    if (now == other) {
      dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
      dim->dim_value = now;
    } else if (now == w->batch && other == w->other_batch) {
      dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
      dim->dim_param = "batch";
    }
  }
  info->type->tensor_type->shape = shape;
  return info;
}

static void declare(choir__onnx_writer_t* w, const choir_onnx_name_t* named,
                    choir__onnx_list_t* list) {
  Onnx__ValueInfoProto* info =
      choir__onnx_writes(w) ? make_declared(w, named) : NULL;
  if (info) choir__onnx_add_to(w, list, info);
}

static void take_name(choir__onnx_writer_t* w, const char* name) {
  if (!choir__onnx_take_name(w, name))
    choir__onnx_stop(w, CHOIR_ERROR(INVALID_ARGUMENT,
                                    "onnx: two values are called '%s'", name));
}

static bool check_named(choir__onnx_writer_t* w, const choir_onnx_name_t* named,
                        const char* what) {
  if (!named->name || !choir_var_view(named->var))
    choir__onnx_stop(w, CHOIR_ERROR(INVALID_ARGUMENT,
                                    "onnx: %s '%s' is no variable of the step",
                                    what, named->name ? named->name : ""));
  else
    take_name(w, named->name);
  return choir__onnx_writes(w);
}

static void take_inputs(choir__onnx_writer_t* w, bool fixed_batch) {
  const choir_onnx_trace_t* trace = w->trace;
  const choir_view_t* first =
      trace->input_count > 0 ? choir_var_view(trace->inputs[0].var) : NULL;
  w->batch = first && first->ndim > 0 ? first->shape[0] : 0;
  w->other_batch = w->batch + (fixed_batch || w->batch == 0 ? 0 : 1);
  for (int32_t i = 0; i < trace->input_count; ++i) {
    const choir_onnx_name_t* named = &trace->inputs[i];
    if (!check_named(w, named, "input")) return;
    choir__onnx_written_t* value = choir__onnx_need_written(w, named->var);
    if (!value) return;
    const choir_view_t* view = choir_var_view(named->var);
    value->name = named->name;
    value->has_other = true;
    value->inner = 1;
    memcpy(value->other, view->shape, sizeof value->other);
    if (view->ndim > 0 && view->shape[0] == w->batch)
      value->other[0] = w->other_batch;
  }
}

static void take_params(choir__onnx_writer_t* w) {
  for (int32_t i = 0; i < w->trace->param_count; ++i) {
    const choir_named_tensor_t* named = &w->trace->params[i];
    if (named->shard) {
      choir__onnx_stop(
          w, CHOIR_ERROR(FAILED_PRECONDITION, "onnx: parameter %s is a shard",
                         named->name));
      return;
    }
    choir__onnx_written_t* value = choir__onnx_need_written(w, named->tensor);
    if (!value || value->name) continue;  // shared, under its first name
    take_name(w, named->name);
    value->name = named->name;
    value->tensor = named->tensor;
  }
}

static void take_results(choir__onnx_writer_t* w) {
  for (int32_t i = 0; i < w->trace->result_count; ++i) {
    const choir_onnx_name_t* named = &w->trace->results[i];
    if (!check_named(w, named, "result")) return;
    choir__onnx_written_t* value = choir__onnx_need_written(w, named->var);
    if (value && !value->wanted) value->wanted = named->name;
  }
}

// Results that no op made under their name: inputs, constants, a second name.
static void finish_results(choir__onnx_writer_t* w) {
  choir__onnx_put_t put = {.writer = w}, *p = &put;
  w->label = NULL;
  for (int32_t i = 0; i < w->trace->result_count && choir__onnx_writes(w);
       ++i) {
    const choir_onnx_name_t* named = &w->trace->results[i];
    const char* name = choir__onnx_name_of(p, named->var);
    if (choir__onnx_writes(w) && strcmp(name, named->name) != 0) {
      NODE("Identity", name);
      if (choir__onnx_writes(w)) w->last->output[0] = (char*)named->name;
    }
    declare(w, named, &w->graph->outputs);
  }
}

static void add_initialisers(choir__onnx_writer_t* w, Onnx__GraphProto* graph) {
  const size_t count = w->params.count;
  Onnx__TensorProto** at =
      choir__onnx_writer_alloc(w, sizeof(void*) * (count + 1));
  if (!at) return;
  for (size_t i = 0; i < count; ++i) {
    const choir__onnx_written_t* param = w->params.at[i];
    const choir_view_t* view = choir_tensor_view(param->tensor);
    at[i] = choir__onnx_make_proto(w, view->dtype, view->ndim, view->shape);
    if (!at[i]) return;
    at[i]->name = (char*)param->name;
  }
  graph->n_initializer = count;
  graph->initializer = at;
}

// Trees keep pointers to the scope's memory alone.
static void forget(void* one) { (void)one; }

Onnx__ModelProto* choir__onnx_build_model(choir__onnx_writer_t* w,
                                          bool fixed_batch) {
  choir__onnx_body_t whole = {0};
  choir__onnx_list_t needed = {0};
  w->graph = &whole;
  if (!choir_scope_step(w->scope)->keeps_all)
    choir__onnx_stop(w, CHOIR_ERROR(FAILED_PRECONDITION,
                                    "onnx: the step was begun without "
                                    "keeps_all, so the tape lacks ops"));
  if (choir__onnx_writes(w)) take_inputs(w, fixed_batch);
  if (choir__onnx_writes(w)) take_params(w);
  if (choir__onnx_writes(w)) take_results(w);
  if (choir__onnx_writes(w)) find_needed(w, &needed);
  for (size_t i = needed.count; i > 0 && choir__onnx_writes(w); --i)
    put_entry(w, needed.at[i - 1]);
  for (int32_t i = 0; i < w->trace->input_count; ++i)
    declare(w, &w->trace->inputs[i], &whole.inputs);
  finish_results(w);
  Onnx__ModelProto* model = choir__onnx_writer_alloc(w, sizeof *model);
  Onnx__OperatorSetIdProto* set = choir__onnx_writer_alloc(w, sizeof *set);
  void* sets = choir__onnx_writer_alloc(w, sizeof(void*));
  if (choir__onnx_writes(w)) {
    onnx__model_proto__init(model);
    onnx__operator_set_id_proto__init(set);
    set->domain = "";
    set->has_version = true;
    set->version = CHOIR__ONNX_WRITTEN_VERSION;
    model->has_ir_version = true;
    model->ir_version = CHOIR__ONNX_WRITTEN_FORMAT;
    model->producer_name = "choir";
    model->n_opset_import = 1;
    model->opset_import = sets;
    model->opset_import[0] = set;
    model->graph = choir__onnx_make_graph(
        w, &whole, w->trace->name ? w->trace->name : "choir");
    if (model->graph) add_initialisers(w, model->graph);
  }
  tdestroy(w->values, forget);
  tdestroy(w->names, forget);
  w->values = w->names = NULL;
  w->graph = NULL;
  return choir__onnx_writes(w) ? model : NULL;
}
