// SPDX-License-Identifier: Apache-2.0
// Messages as bytes and as files: a file is there as a whole or not at all, and
// of parameters one at a time is in the host's memory.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onnx/onnx_write_internal.h"

// Of all parameters: as much as a file can have, with room for the rest.
#define MOST_INSIDE ((uint64_t)1 << 30)
// Of each parameter in a file of its own, as mmap wants them.
enum { ALIGNMENT = 4096 };

static size_t bytes_of(const choir_tensor_t* tensor) {
  return (size_t)choir_tensor_count(tensor) *
         choir_dtype_bytes(choir_tensor_dtype(tensor));
}

static uint64_t bytes_of_all(const choir__onnx_writer_t* w) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < w->params.count; ++i) {
    const choir__onnx_written_t* param = w->params.at[i];
    bytes += bytes_of(param->tensor);
  }
  return bytes;
}

// ---- Packing ----

typedef struct sink_s {
  ProtobufCBuffer base;
  FILE* file;
} sink_t;

static void append_bytes(ProtobufCBuffer* buffer, size_t count,
                         const uint8_t* bytes) {
  // What fails shows when the file is closed.
  (void)fwrite(bytes, 1, count, ((sink_t*)buffer)->file);
}

static choir_status_t read_param(const choir__onnx_written_t* param,
                                 Onnx__TensorProto* proto) {
  const size_t bytes = bytes_of(param->tensor);
  proto->raw_data.data = malloc(bytes + 1);
  if (!proto->raw_data.data)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for parameter %s",
                       param->name);
  proto->raw_data.len = bytes;
  proto->has_raw_data = true;
  return choir_tensor_read(param->tensor, proto->raw_data.data, bytes);
}

static choir_status_t read_params(const choir__onnx_writer_t* w,
                                  const Onnx__ModelProto* model) {
  for (size_t i = 0; i < w->params.count; ++i)
    CHOIR_TRY(read_param(w->params.at[i], model->graph->initializer[i]));
  return NULL;
}

static void drop_params(const choir__onnx_writer_t* w,
                        const Onnx__ModelProto* model) {
  for (size_t i = 0; i < w->params.count; ++i) {
    Onnx__TensorProto* proto = model->graph->initializer[i];
    if (proto->has_raw_data) free(proto->raw_data.data);
    proto->raw_data = (ProtobufCBinaryData){0};
    proto->has_raw_data = false;
  }
}

// The model with its parameters, into an open file.
static choir_status_t pack(const choir__onnx_writer_t* w,
                           const Onnx__ModelProto* model, bool data_beside,
                           FILE* file) {
  sink_t sink = {.base = {.append = append_bytes}, .file = file};
  choir_status_t status = data_beside ? NULL : read_params(w, model);
  if (!status) onnx__model_proto__pack_to_buffer(model, &sink.base);
  if (!data_beside) drop_params(w, model);
  return status;
}

// ---- A file beside it ----

static const char* name_in(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static char* text_of(choir__onnx_writer_t* w, const char* format, const char* a,
                     const char* b) {
  const int length = snprintf(NULL, 0, format, a, b);
  char* text = choir__onnx_writer_alloc(w, (size_t)length + 1);
  if (text) snprintf(text, (size_t)length + 1, format, a, b);
  return text;
}

static void add_entry(choir__onnx_writer_t* w, Onnx__TensorProto* proto,
                      const char* key, const char* value) {
  Onnx__StringStringEntryProto* entry =
      choir__onnx_writer_alloc(w, sizeof *entry);
  if (!entry || !value) return;
  onnx__string_string_entry_proto__init(entry);
  entry->key = (char*)key;
  entry->value = (char*)value;
  proto->external_data[proto->n_external_data++] = entry;
}

// Says in the messages where parameters lie, and writes them.
static choir_status_t write_params(choir__onnx_writer_t* w,
                                   const Onnx__ModelProto* model,
                                   const char* name, FILE* file) {
  uint64_t offset = 0;
  for (size_t i = 0; i < w->params.count; ++i) {
    const choir__onnx_written_t* param = w->params.at[i];
    Onnx__TensorProto* proto = model->graph->initializer[i];
    char number[2][32];
    snprintf(number[0], sizeof number[0], "%llu", (unsigned long long)offset);
    snprintf(number[1], sizeof number[1], "%zu", bytes_of(param->tensor));
    proto->external_data = choir__onnx_writer_alloc(w, 3 * sizeof(void*));
    if (!proto->external_data) break;
    proto->has_data_location = true;
    proto->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    add_entry(w, proto, "location", name);
    add_entry(w, proto, "offset", text_of(w, "%s%s", number[0], ""));
    add_entry(w, proto, "length", text_of(w, "%s%s", number[1], ""));
    CHOIR_TRY(read_param(param, proto));
    const size_t bytes = proto->raw_data.len;
    static const char zeros[ALIGNMENT];
    (void)fwrite(proto->raw_data.data, 1, bytes, file);
    const size_t rest = (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
    (void)fwrite(zeros, 1, rest, file);
    free(proto->raw_data.data);
    proto->raw_data = (ProtobufCBinaryData){0};
    proto->has_raw_data = false;
    offset += bytes + rest;
  }
  return choir_scope_take_failure(w->scope);
}

// ---- Files ----

// A file that has its name once it is whole.
typedef struct output_s {
  const char* path;
  char* temporary;
  FILE* file;
} output_t;

static choir_status_t open_output(choir__onnx_writer_t* w, const char* path,
                                  output_t* out) {
  char number[32];
  snprintf(number, sizeof number, "%ld", (long)getpid());
  *out = (output_t){.path = path,
                    .temporary = text_of(w, "%s.choir-%s.tmp", path, number)};
  if (!out->temporary) return choir_scope_take_failure(w->scope);
  out->file = fopen(out->temporary, "wbx");
  if (out->file) return NULL;
  const int error = errno;
  choir_status_t status =
      error == ENOENT || error == ENOTDIR
          ? CHOIR_ERROR(NOT_FOUND,
                        "onnx: cannot write '%s': there is no such folder",
                        path)
          : CHOIR_ERROR(FAILED_PRECONDITION, "onnx: cannot write '%s': %s",
                        path, strerror(error));
  out->temporary = NULL;
  return status;
}

static choir_status_t close_output(output_t* out, choir_status_t status) {
  if (!out->file) return status;
  const bool is_bad = fflush(out->file) != 0 || ferror(out->file) != 0 ||
                      fsync(fileno(out->file)) != 0;
  const int error = errno;
  const bool is_closed = fclose(out->file) == 0;
  out->file = NULL;
  if (!status && (is_bad || !is_closed))
    status = CHOIR_ERROR(UNAVAILABLE, "onnx: cannot write '%s': %s", out->path,
                         strerror(error));
  return status;
}

// After all of them are closed.
static choir_status_t name_output(output_t* out, choir_status_t status) {
  if (!out->temporary) return status;
  if (!status && rename(out->temporary, out->path) != 0)
    status = CHOIR_ERROR(FAILED_PRECONDITION, "onnx: cannot write '%s': %s",
                         out->path, strerror(errno));
  if (status) unlink(out->temporary);
  return status;
}

static choir_status_t write_files(choir__onnx_writer_t* w,
                                  const Onnx__ModelProto* model,
                                  const char* path, bool data_beside) {
  output_t data = {0}, whole = {0};
  choir_status_t status = NULL;
  if (data_beside) {
    char* beside = text_of(w, "%s%s", path, ".data");
    status = beside ? open_output(w, beside, &data)
                    : choir_scope_take_failure(w->scope);
    if (!status) status = write_params(w, model, name_in(beside), data.file);
    status = close_output(&data, status);
  }
  if (!status) status = open_output(w, path, &whole);
  if (!status) status = pack(w, model, data_beside, whole.file);
  status = close_output(&whole, status);
  status = name_output(&data, status);
  return name_output(&whole, status);
}

// ---- The public functions ----

static Onnx__ModelProto* build(choir__onnx_writer_t* w,
                               const choir_onnx_write_options_t* options) {
  return choir__onnx_build_model(w, options && options->fixed_batch);
}

choir_status_t choir_onnx_write(choir_scope_t* scope,
                                const choir_onnx_trace_t* trace,
                                const char* path,
                                const choir_onnx_write_options_t* options) {
  choir__onnx_writer_t writer = {.scope = scope, .trace = trace};
  const Onnx__ModelProto* model =
      path && *path ? build(&writer, options)
                    : (choir_scope_fail(scope, CHOIR_ERROR(INVALID_ARGUMENT,
                                                           "onnx: the path is "
                                                           "empty")),
                       NULL);
  if (!model) return choir_scope_take_failure(scope);
  const bool data_beside =
      (options && options->data_beside) || bytes_of_all(&writer) > MOST_INSIDE;
  return write_files(&writer, model, path, data_beside);
}

choir_status_t choir_onnx_pack(choir_scope_t* scope,
                               const choir_onnx_trace_t* trace,
                               const choir_onnx_write_options_t* options,
                               void** out_bytes, size_t* out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  choir__onnx_writer_t writer = {.scope = scope, .trace = trace};
  const Onnx__ModelProto* model = build(&writer, options);
  if (!model) return choir_scope_take_failure(scope);
  if ((options && options->data_beside) || bytes_of_all(&writer) > MOST_INSIDE)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: %llu bytes of parameters lie in a file beside "
                       "the model's, so it needs a path (choir_onnx_write)",
                       (unsigned long long)bytes_of_all(&writer));
  FILE* file = open_memstream((char**)out_bytes, out_size);
  if (!file) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a file");
  choir_status_t status = pack(&writer, model, false, file);
  const bool is_whole = ferror(file) == 0;
  if ((fclose(file) != 0 || !is_whole) && !status)
    status = CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a file");
  if (!status) return NULL;
  free(*out_bytes);
  *out_bytes = NULL;
  *out_size = 0;
  return status;
}

// ---- A model's forward ----

// So many samples are run; few other sizes of a net are 5.
enum { SAMPLES = 5 };

static choir_var_t* make_input(choir_scope_t* scope, const choir_view_t* given,
                               int64_t first, bool fixed_batch) {
  choir_view_t view = *given;
  if (!fixed_batch && view.ndim > 0 && view.shape[0] == first)
    view.shape[0] = SAMPLES;
  choir_status_t status =
      choir_view_make(given->dtype, view.ndim, view.shape, &view);
  choir_tensor_t* tensor = NULL;
  const choir_fill_attrs_t zero = {.value = 0};
  if (!status)
    status =
        choir_tensor_create_layout(choir_scope_device(scope), &view, &tensor);
  if (!status)
    status = choir_op_run(choir_scope_stream(scope), CHOIR_OP_FILL, &tensor, 1,
                          &zero, false, &tensor);
  choir_var_t* var = status ? choir_scope_fail(scope, status)
                            : choir_scope_input(scope, tensor);
  choir_tensor_release(tensor);
  return var;
}

static choir_onnx_name_t named(choir_scope_t* scope, const char* what,
                               int32_t i, choir_var_t* var) {
  char* name = choir_scope_alloc(scope, 32);
  if (name && i == 0)
    snprintf(name, 32, "%s", what);
  else if (name)
    snprintf(name, 32, "%s%d", what, i);
  return (choir_onnx_name_t){name, var};
}

static choir_status_t save(choir_model_t* model, choir_scope_t* scope,
                           const choir_view_t* inputs, int32_t count,
                           const char* path,
                           const choir_onnx_write_options_t* options) {
  choir_var_t* vars[CHOIR_MODEL_MAX_TENSORS];
  choir_onnx_name_t ins[CHOIR_MODEL_MAX_TENSORS];
  for (int32_t i = 0; i < count; ++i) {
    vars[i] = make_input(scope, &inputs[i],
                         inputs[0].ndim > 0 ? inputs[0].shape[0] : -1,
                         options && options->fixed_batch);
    ins[i] = named(scope, "input", i, vars[i]);
  }
  choir_var_t* y =
      choir_model_forward_in(model, scope, (choir_vars_t){vars, count});
  const int32_t results = choir_var_result_count(y);
  const size_t states = choir_model_states(model, NULL);
  choir_onnx_name_t* outs =
      choir_scope_alloc(scope, sizeof(*outs) * (size_t)results);
  choir_named_tensor_t* params =
      choir_scope_alloc(scope, sizeof(*params) * (states + 1));
  if (!outs || !params) return NULL;
  for (int32_t i = 0; i < results; ++i)
    outs[i] = named(scope, "output", i, choir_scope_result(scope, y, i));
  if (!choir_scope_is_ok(scope)) return NULL;
  choir_model_states(model, params);
  // An updater's states come behind the parameters; some may be shards.
  const choir_onnx_trace_t trace = {
      .inputs = ins,
      .input_count = count,
      .results = outs,
      .result_count = results,
      .params = params,
      .param_count = (int32_t)choir_model_params(model)->count};
  return choir_onnx_write(scope, &trace, path, options);
}

choir_status_t choir_onnx_save(choir_model_t* model, const choir_view_t* inputs,
                               int32_t count, const char* path,
                               const choir_onnx_write_options_t* options) {
  if (!inputs || count < 1 || count > CHOIR_MODEL_MAX_TENSORS)
    return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: %d inputs; 1 to %d are needed",
                       count, CHOIR_MODEL_MAX_TENSORS);
  choir_scope_t* scope = NULL;
  CHOIR_TRY(choir_scope_create(choir_model_device(model), &scope));
  choir_scope_begin(
      scope, &(choir_step_t){.sample_count = SAMPLES, .keeps_all = true});
  choir_status_t status = save(model, scope, inputs, count, path, options);
  status = choir_status_join(status, choir_scope_end(scope));
  choir_scope_destroy(scope);
  return status;
}
