// SPDX-License-Identifier: Apache-2.0
#include "core/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/device_backend.h"
#include "core/random.h"
#include "core/trace_backend.h"

enum {
  PIECES = 32,
  NAME_BYTES = 128,  // longer names are cut
  LINE_BYTES = 2048,
  PATH_BYTES = 4096,
};

// What is noted of one operand.
typedef struct summary_s {
  choir_dtype_t dtype;
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  uint64_t digest;
  double magnitude;  // the sum of absolute values
  int32_t count;     // of sums
  double sums[PIECES];
} summary_t;

// What line it is of. No name of an operand: the record has none.
typedef struct place_s {
  int64_t record;  // in the step
  const char* name;
  const char* label;
  const char* operand;
} place_t;

struct choir__trace_s {
  choir_allocator_t allocator;
  choir_trace_detail_t detail;
  char path[PATH_BYTES];
  FILE* file;
  // Over what follows, which threads share.
  pthread_mutex_t mutex;
  int error;  // errno of the first write that failed
  int64_t step;
  int64_t records;  // of the step so far
  // CHOIR_TRACE_LAYER: of the records since the label changed.
  bool has_layer;
  int64_t layer_record;
  char layer_name[NAME_BYTES];
  char layer_label[NAME_BYTES];
  summary_t layer;
};

static const char* const detail_names[] = {"tensor", "layer", "step"};

// A record that is traced runs on this thread: those within it are its own.
static _Thread_local bool is_inside;

// ---- Elements ----

// Of one hash, other words give other results, and of one word other hashes: a
// single difference is never lost.
static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}

// Of what was looked at so far.
typedef struct total_s {
  uint64_t digest;
  double sum;
  double magnitude;
} total_t;

// Any NaN counts as the quiet one of zeros.
static uint64_t quiet_nan(choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F16:
      return 0x7E00;
    case CHOIR_DTYPE_BF16:
      return 0x7FC0;
    case CHOIR_DTYPE_F32:
      return 0x7FC00000;
    default:
      return 0x7FF8000000000000;
  }
}

static uint64_t bits_of(const char* element, choir_dtype_t dtype) {
  uint64_t bits;
  uint32_t word;
  uint16_t half;
  switch (choir_dtype_bytes(dtype)) {
    case 8:
      memcpy(&bits, element, sizeof(bits));
      return bits;
    case 4:
      memcpy(&word, element, sizeof(word));
      return word;
    case 2:
      memcpy(&half, element, sizeof(half));
      return half;
    default:
      return (unsigned char)*element;
  }
}

// `count` elements that lie `stride` bytes apart.
static void add_run(const char* data, int64_t stride, int64_t count,
                    choir_dtype_t dtype, total_t* total) {
  for (int64_t i = 0; i < count; ++i, data += stride) {
    const double value = choir_element_load(data, dtype);
    total->digest = mix(total->digest,
                        isnan(value) ? quiet_nan(dtype) : bits_of(data, dtype));
    total->sum += value;
    total->magnitude += fabs(value);
  }
}

// The same for what nearly all elements are, and four times as fast.
static void add_f32_run(const char* data, int64_t stride, int64_t count,
                        total_t* total) {
  total_t local = *total;
  for (int64_t i = 0; i < count; ++i, data += stride) {
    float value;
    uint32_t bits;
    memcpy(&value, data, sizeof(value));
    memcpy(&bits, data, sizeof(bits));
    if ((bits & 0x7FFFFFFF) > 0x7F800000) bits = 0x7FC00000;
    local.digest = mix(local.digest, bits);
    local.sum += value;
    local.magnitude += fabs((double)value);
  }
  *total = local;
}

// `count` steps in logical order, none of them past the end of the last axis.
static void advance(const choir_view_t* view, int64_t count, int64_t* index,
                    int64_t* at) {
  for (int32_t axis = view->ndim; axis-- > 0; count = 1) {
    *at += view->strides[axis] * count;
    index[axis] += count;
    if (index[axis] < view->shape[axis]) return;
    *at -= view->strides[axis] * view->shape[axis];
    index[axis] = 0;
  }
}

// data: the view's first element.
static void summarize(const choir_view_t* given, const char* data,
                      summary_t* out) {
  choir_view_t view = *given;
  const int64_t count = choir_view_count(&view);
  const int64_t bytes = (int64_t)choir_dtype_bytes(view.dtype);
  memset(out, 0, sizeof(*out));
  out->dtype = view.dtype;
  out->ndim = view.ndim;
  memcpy(out->shape, view.shape, (size_t)view.ndim * sizeof(int64_t));
  out->count = count < PIECES ? (int32_t)count : PIECES;
  if (choir_view_is_contiguous(&view)) {
    view.ndim = 1;
    view.shape[0] = count;
    view.strides[0] = 1;
  }
  const int32_t last = view.ndim - 1;
  int64_t index[CHOIR_MAX_NDIM] = {0};
  int64_t at = 0;
  int64_t i = 0;
  total_t total = {.digest = CHOIR_HASH_START};
  for (int32_t piece = 0; piece < out->count; ++piece) {
    const int64_t end = count * (piece + 1) / out->count;
    total.sum = 0;
    while (i < end) {
      const int64_t left = view.shape[last] - index[last];
      const int64_t run = end - i < left ? end - i : left;
      const int64_t stride = view.strides[last] * bytes;
      if (view.dtype == CHOIR_DTYPE_F32)
        add_f32_run(data + at * bytes, stride, run, &total);
      else
        add_run(data + at * bytes, stride, run, view.dtype, &total);
      advance(&view, run, index, &at);
      i += run;
    }
    out->sums[piece] = total.sum;
  }
  out->digest = total.digest;
  out->magnitude = total.magnitude;
}

// Of a device whose memory the host cannot see the elements are copied. The
// work on them is done.
static choir_status_t look(const choir__trace_t* trace, choir_stream_t* stream,
                           const choir_view_t* view, summary_t* out) {
  choir_buffer_t* buffer = view->buffer;
  CHOIR_TRY(choir__buffer_check_memory(buffer));
  choir_device_t* device = buffer->device;
  const size_t element = choir_dtype_bytes(view->dtype);
  const char* place = choir__buffer_place(buffer);
  place += (size_t)view->offset * element;
  if (device->vtable->is_host) {
    summarize(view, place, out);
    return NULL;
  }
  const size_t bytes = (size_t)choir_view_extent(view) * element;
  void* copy = NULL;
  CHOIR_TRY(
      choir_allocate(trace->allocator, bytes + 1, "traced elements", &copy));
  choir_status_t status = device->vtable->read(
      device, device == stream->device ? stream : device->stream, place, copy,
      bytes);
  if (!status) summarize(view, copy, out);
  choir_deallocate(trace->allocator, copy, bytes + 1);
  return status;
}

// ---- Lines ----

static choir_status_t cannot_write(choir__trace_t* trace) {
  if (!trace->error) trace->error = errno;
  return CHOIR_ERROR(UNAVAILABLE, "trace: cannot write to %s: %s", trace->path,
                     strerror(trace->error));
}

// Without what would end a column or a line.
static void set_text(char text[NAME_BYTES], const char* from) {
  snprintf(text, NAME_BYTES, "%s", from ? from : "");
  for (char* c = text; *c; ++c)
    if ((unsigned char)*c < ' ') *c = ' ';
}

// A NaN could be printed with a sign.
static double not_signed(double value) { return isnan(value) ? NAN : value; }

// Under the lock. summary NULL: the record has no operand.
static choir_status_t write_line(choir__trace_t* trace, const place_t* place,
                                 const summary_t* summary) {
  char name[NAME_BYTES];
  char label[NAME_BYTES];
  char operand[NAME_BYTES];
  char line[LINE_BYTES];
  set_text(name, place->name);
  set_text(label, place->label);
  set_text(operand, place->operand);
  size_t used = (size_t)snprintf(
      line, sizeof(line), "%" PRId64 "\t%" PRId64 "\t%s\t%s\t%s\t", trace->step,
      place->record, name, label, operand);
#define PUT(...) \
  used += (size_t)snprintf(line + used, sizeof(line) - used, __VA_ARGS__)
  PUT("%s\t", summary ? choir_dtype_name(summary->dtype) : "");
  for (int32_t k = 0; summary && k < summary->ndim; ++k)
    PUT("%s%" PRId64, k ? "," : "", summary->shape[k]);
  PUT("\t");
  if (summary) PUT("%016" PRIx64, summary->digest);
  PUT("\t");
  if (summary) PUT("%.6g", not_signed(summary->magnitude));
  PUT("\t");
  for (int32_t k = 0; summary && k < summary->count; ++k)
    PUT("%s%.17g", k ? " " : "", not_signed(summary->sums[k]));
  PUT("\n");
#undef PUT
  return fwrite(line, 1, used, trace->file) == used ? NULL
                                                    : cannot_write(trace);
}

// ---- Layers: under the lock ----

static choir_status_t end_layer(choir__trace_t* trace) {
  if (!trace->has_layer) return NULL;
  const place_t place = {.record = trace->layer_record,
                         .name = trace->layer_name,
                         .label = trace->layer_label,
                         .operand = "results"};
  trace->has_layer = false;
  return write_line(trace, &place, &trace->layer);
}

static choir_status_t add_to_layer(choir__trace_t* trace, const place_t* place,
                                   const summary_t* summary) {
  char label[NAME_BYTES];
  set_text(label, place->label);
  if (trace->has_layer && strcmp(label, trace->layer_label) != 0)
    CHOIR_TRY(end_layer(trace));
  // Of one record's results.
  const bool goes_on = trace->has_layer && trace->layer_record == place->record;
  const uint64_t before = trace->layer.digest;
  trace->has_layer = true;
  trace->layer_record = place->record;
  set_text(trace->layer_name, place->name);
  memcpy(trace->layer_label, label, sizeof(label));
  trace->layer = *summary;
  if (goes_on) trace->layer.digest = mix(before, summary->digest);
  return NULL;
}

// ---- Records ----

static int64_t begin_record(choir__trace_t* trace) {
  pthread_mutex_lock(&trace->mutex);
  const int64_t number = trace->records++;
  pthread_mutex_unlock(&trace->mutex);
  return number;
}

// view NULL: the record has no operand.
static choir_status_t note(choir__trace_t* trace, choir_stream_t* stream,
                           const place_t* place, const choir_view_t* view,
                           bool is_of_layer) {
  summary_t summary;
  if (view) CHOIR_TRY(look(trace, stream, view, &summary));
  pthread_mutex_lock(&trace->mutex);
  choir_status_t status =
      is_of_layer ? add_to_layer(trace, place, &summary)
                  : write_line(trace, place, view ? &summary : NULL);
  pthread_mutex_unlock(&trace->mutex);
  return status;
}

static choir_status_t note_operand(choir__trace_t* trace,
                                   choir_stream_t* stream, place_t place,
                                   const char* what, int32_t number,
                                   const choir_view_t* view) {
  if (!view->buffer) return NULL;
  char operand[NAME_BYTES];
  snprintf(operand, sizeof(operand), "%s %d", what, number);
  place.operand = operand;
  return note(trace, stream, &place, view, trace->detail == CHOIR_TRACE_LAYER);
}

static choir_status_t note_named(choir__trace_t* trace, choir_stream_t* stream,
                                 place_t place,
                                 const choir_trace_value_t* value,
                                 bool is_of_layer) {
  char operand[NAME_BYTES];
  snprintf(operand, sizeof(operand), "result %s", value->name);
  place.operand = operand;
  return note(trace, stream, &place, &value->view, is_of_layer);
}

static choir_status_t note_before(choir__trace_t* trace, choir_stream_t* stream,
                                  const choir_record_t* record,
                                  const place_t* place) {
  if (trace->detail != CHOIR_TRACE_TENSOR) return NULL;
  for (int32_t k = 0; k < record->src_count + record->dst_count; ++k) {
    if (!choir_record_reads(record, k)) continue;
    const bool is_src = k < record->src_count;
    // Only the first result is added to.
    if (!is_src && k > record->src_count) break;
    CHOIR_TRY(note_operand(trace, stream, *place, is_src ? "source" : "before",
                           is_src ? k : 0, &record->operands[k]));
  }
  return NULL;
}

static choir_status_t note_after(choir__trace_t* trace, choir_stream_t* stream,
                                 const choir_record_t* record,
                                 const place_t* place) {
  const bool is_layer = trace->detail == CHOIR_TRACE_LAYER;
  for (int32_t k = 0; k < record->dst_count; ++k)
    CHOIR_TRY(note_operand(trace, stream, *place, "result", k,
                           choir_record_dst(record, k)));
  if (record->src_count + record->dst_count > 0) return NULL;
  for (size_t k = 0; k < stream->result_count; ++k)
    CHOIR_TRY(note_named(trace, stream, *place, &stream->results[k], is_layer));
  if (stream->result_count > 0 || is_layer) return NULL;
  return note(trace, stream, place, NULL, false);
}

static choir_status_t trace_record(choir__trace_t* trace,
                                   choir_stream_t* stream,
                                   const choir_record_t* record,
                                   choir__trace_run_t run) {
  const place_t place = {.record = begin_record(trace),
                         // Not that of a kernel, which another machine has not.
                         .name = record->operation ? record->operation->name
                                                   : choir_record_name(record),
                         .label = record->label};
  CHOIR_TRY(stream->vtable->stream_synchronize(stream));
  CHOIR_TRY(note_before(trace, stream, record, &place));
  CHOIR_TRY(run(stream, record));
  CHOIR_TRY(stream->vtable->stream_synchronize(stream));
  return note_after(trace, stream, record, &place);
}

choir_status_t choir__trace_record(choir_stream_t* stream,
                                   const choir_record_t* record,
                                   choir__trace_run_t run) {
  if (is_inside) return run(stream, record);
  is_inside = true;
  choir_status_t status =
      trace_record(stream->device->trace, stream, record, run);
  is_inside = false;
  return status;
}

bool choir__trace_is_on(const choir_device_t* device) { return device->trace; }

bool choir__trace_sees_records(const choir_device_t* device) {
  return device->trace && device->trace->detail != CHOIR_TRACE_STEP;
}

void choir__trace_set_results(choir_stream_t* stream,
                              const choir_trace_value_t* values, size_t count) {
  stream->results = values;
  stream->result_count = count;
}

// ---- Life ----

static void destroy(choir__trace_t* trace) {
  if (trace->file) fclose(trace->file);
  pthread_mutex_destroy(&trace->mutex);
  choir_deallocate(trace->allocator, trace, sizeof(*trace));
}

static choir_status_t open_file(choir__trace_t* trace,
                                const choir_device_t* device,
                                const choir_trace_options_t* options) {
  const int length =
      options->rank > 0
          ? snprintf(trace->path, PATH_BYTES, "%s.%d", options->path,
                     (int)options->rank)
          : snprintf(trace->path, PATH_BYTES, "%s", options->path);
  errno = ENAMETOOLONG;
  trace->file = length < PATH_BYTES ? fopen(trace->path, "we") : NULL;
  if (!trace->file)
    return CHOIR_ERROR(NOT_FOUND, "trace: cannot write to %s: %s", trace->path,
                       strerror(errno));
  fprintf(trace->file, "choir-trace\t1\tchoir %s\tdevice %s\tdetail %s\n",
          choir_version(), device->name, detail_names[trace->detail]);
  return fflush(trace->file) ? cannot_write(trace) : NULL;
}

choir_status_t choir_trace_start(choir_device_t* device,
                                 const choir_trace_options_t* options) {
  if (!options || !options->path || options->rank < 0 ||
      (int)options->detail < 0 || options->detail > CHOIR_TRACE_STEP)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_trace_start: needs a path, a rank from 0 on and "
                       "a detail from CHOIR_TRACE_TENSOR to CHOIR_TRACE_STEP");
  if (device->trace)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "choir_trace_start: %s is traced already, to %s",
                       device->name, device->trace->path);
  void* memory = NULL;
  const choir_allocator_t allocator = choir_device_allocator(device);
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir__trace_t), "trace", &memory));
  choir__trace_t* trace = memory;
  trace->allocator = allocator;
  trace->detail = options->detail;
  pthread_mutex_init(&trace->mutex, NULL);
  choir_status_t status = open_file(trace, device, options);
  if (status)
    destroy(trace);
  else
    device->trace = trace;
  return status;
}

choir_status_t choir_trace_stop(choir_device_t* device) {
  choir__trace_t* trace = device->trace;
  if (!trace) return NULL;
  device->trace = NULL;
  choir_status_t status = end_layer(trace);
  const bool is_closed = fclose(trace->file) == 0;
  trace->file = NULL;
  if (!status && (trace->error || !is_closed)) status = cannot_write(trace);
  destroy(trace);
  return status;
}

void choir_trace_set_step(choir_device_t* device, int64_t step) {
  choir__trace_t* trace = device->trace;
  if (!trace || trace->step == step) return;
  pthread_mutex_lock(&trace->mutex);
  choir_status_free(end_layer(trace));  // a failure is told by stop
  trace->step = step;
  trace->records = 0;
  pthread_mutex_unlock(&trace->mutex);
}

choir_status_t choir_trace_note(choir_device_t* device, const char* name,
                                const choir_trace_value_t* values,
                                size_t count) {
  choir__trace_t* trace = device->trace;
  if (!trace || count == 0) return NULL;
  CHOIR_TRY(choir_stream_synchronize(device->stream));
  pthread_mutex_lock(&trace->mutex);
  choir_status_t status = end_layer(trace);
  pthread_mutex_unlock(&trace->mutex);
  const place_t place = {.record = begin_record(trace), .name = name};
  for (size_t k = 0; k < count && !status; ++k)
    status = note_named(trace, device->stream, place, &values[k], false);
  return status;
}
