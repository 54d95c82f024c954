// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "core/device/cuda/cuda_device.h"
#include "core/log.h"
#include "core/record_internal.h"

// Segments as CUDA graphs. One is captured by running its records' kernels with
// a stream of its own in the place of theirs, which never runs anything: so
// other threads may go on ordering their work behind the real one. From then on
// a launch compares addresses and attributes with those that were captured,
// runs the kernels of records that have others again, now to set their nodes'
// parameters, and launches the whole.

// One record of a segment.
typedef struct part_s {
  int32_t first;  // of its nodes
  int32_t launches;
  bool is_fixed;  // a library launched, at places that are not known
  bool is_moved;  // its operands are not where they were captured
  size_t known;   // where the segment has its addresses and attributes
} part_t;

// An operand whose memory no earlier one of the segment has, of a record whose
// operands stay.
typedef struct use_s {
  int32_t record;
  int32_t operand;
} use_t;

// A launch of Choir's own.
typedef struct node_s {
  choir__cu_node_t handle;
} node_t;

typedef struct segment_s {
  choir__cu_graph_t graph;
  choir__cu_graph_exec_t exec;  // NULL: not made
  void* memory;                 // for parts, uses and what is known
  size_t bytes;
  part_t* parts;
  use_t* uses;
  int32_t use_count;
  char* known;
  node_t* nodes;
  int32_t node_count;
  int32_t node_capacity;
} segment_t;

struct choir_segments_s {
  cuda_device_t* device;
  cuda_stream_t* stream;
  choir__cu_stream_t capture;
  segment_t* list;
  int32_t capacity;
  // Scratch memory: the most that a record wanted, by piece, and what all
  // segments share, as their records run one after the other.
  size_t wanted[CUDA_SCRATCH_PIECES];
  void* pieces[CUDA_SCRATCH_PIECES];
  size_t piece_bytes[CUDA_SCRATCH_PIECES];
  // Of the record that is captured or followed.
  segment_t* current;
  bool is_capturing;
  int32_t next;  // where it is followed: the node to be set
  int32_t stop;
};

// ---- Life ----

// Lets an array have room for so many elements; new ones are zeros.
static choir_status_t make_larger(cuda_device_t* device, size_t element_bytes,
                                  int32_t count, int32_t* capacity,
                                  void** array) {
  if (count <= *capacity) return NULL;
  const size_t bytes = (size_t)*capacity * element_bytes;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, 2 * (size_t)count * element_bytes,
                           "CUDA graphs", &memory));
  if (bytes > 0) memcpy(memory, *array, bytes);
  choir_deallocate(device->objects, *array, bytes);
  *array = memory;
  *capacity = 2 * count;
  return NULL;
}

// Takes one that was made in part; its memory stays with it no longer.
static void unmake(choir_segments_t* segments, segment_t* segment) {
  cuda_device_t* device = segments->device;
  // One that is under way is freed when it is done.
  if (segment->exec)
    choir__cuda_warn("a CUDA graph was not released",
                     CUDA_CALL(device, cuGraphExecDestroy, segment->exec));
  if (segment->graph)
    choir__cuda_warn("a CUDA graph was not released",
                     CUDA_CALL(device, cuGraphDestroy, segment->graph));
  choir_deallocate(device->objects, segment->memory, segment->bytes);
  choir_deallocate(device->objects, segment->nodes,
                   (size_t)segment->node_capacity * sizeof(node_t));
  *segment = (segment_t){0};
}

static void unmake_all(choir_segments_t* segments) {
  for (int32_t i = 0; i < segments->capacity; ++i)
    unmake(segments, &segments->list[i]);
}

static void destroy(choir_segments_t* segments) {
  cuda_device_t* device = segments->device;
  choir_status_t status = choir__cuda_enter(device);
  if (!status) {
    unmake_all(segments);
    if (segments->capture)
      choir__cuda_warn(
          "a stream was not released",
          CUDA_CALL(device, cuStreamDestroy_v2, segments->capture));
    choir__cuda_leave(device);
  }
  choir__cuda_warn("CUDA graphs were not released", status);
  for (int i = 0; i < CUDA_SCRATCH_PIECES; ++i)
    if (segments->pieces[i]) choir__cuda_pool_free(device, segments->pieces[i]);
  choir_deallocate(device->objects, segments->list,
                   (size_t)segments->capacity * sizeof(*segments->list));
  choir_deallocate(device->objects, segments, sizeof(*segments));
}

static bool is_wanted(void) {
  // $CHOIR_CUDA_GRAPHS: 0: a graph's records are launched one by one on a GPU.
  // Not set: by CUDA graphs.
  const char* text = getenv("CHOIR_CUDA_GRAPHS");
  return !text || strcmp(text, "0") != 0;
}

static choir_status_t create(choir_stream_t* stream,
                             choir_segments_t** out_segments) {
  cuda_device_t* device = (cuda_device_t*)choir_stream_device(stream);
  *out_segments = NULL;
  if (!is_wanted()) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, sizeof(choir_segments_t),
                           "CUDA graphs", &memory));
  choir_segments_t* segments = memory;
  segments->device = device;
  segments->stream = choir__cuda_stream_of(stream);
  choir_status_t status;
  CUDA_WITHIN(device, status,
              CUDA_CALL(device, cuStreamCreateWithPriority, &segments->capture,
                        CHOIR__CU_STREAM_NON_BLOCKING, 0));
  if (status) {
    destroy(segments);
    return status;
  }
  *out_segments = segments;
  return NULL;
}

static choir_part_t observe(choir_segments_t* segments) {
  const cuda_seen_t* seen = &segments->stream->seen;
  for (int i = 0; i < CUDA_SCRATCH_PIECES; ++i)
    if (segments->wanted[i] < seen->scratch[i])
      segments->wanted[i] = seen->scratch[i];
  // One that launches nothing did its work, if any, on the host.
  if (seen->host || (!seen->library && seen->launches == 0))
    return CHOIR_PART_HOST;
  return seen->library ? CHOIR_PART_FIXED : CHOIR_PART_FREE;
}

// ---- What records ask for meanwhile ----

choir_status_t choir__cuda_see_host(cuda_stream_t* stream) {
  if (stream->is_running) stream->seen.host = true;
  if (!stream->segments) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "the host takes part in it; a CUDA graph can not do that "
                     "again");
}

choir__cu_stream_t choir__cuda_segments_stream(choir_segments_t* segments) {
  return segments->capture;
}

choir_status_t choir__cuda_segments_scratch(choir_segments_t* segments,
                                            int32_t piece, size_t bytes,
                                            void** out_data) {
  if (bytes > segments->piece_bytes[piece])
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%zu bytes of scratch memory; records asked for %zu at "
                       "most before",
                       bytes, segments->piece_bytes[piece]);
  *out_data = segments->pieces[piece];
  return NULL;
}

static choir_status_t add_node(choir_segments_t* segments,
                               choir__cu_node_t node) {
  segment_t* segment = segments->current;
  void* nodes = segment->nodes;
  CHOIR_TRY(make_larger(segments->device, sizeof(node_t),
                        segment->node_count + 1, &segment->node_capacity,
                        &nodes));
  segment->nodes = nodes;
  segment->nodes[segment->node_count++] = (node_t){node};
  return NULL;
}

// The launch, and the node that it became: what the stream's next work comes
// behind.
static choir_status_t capture(choir_segments_t* segments,
                              const choir__cu_kernel_params_t* params) {
  cuda_device_t* device = segments->device;
  CHOIR_TRY(CUDA_CALL(device, cuLaunchKernel, params->func, params->gridDimX, 1,
                      1, params->blockDimX, 1, 1, 0, segments->capture,
                      params->kernelParams, NULL));
  choir__cu_capture_status_t state;
  const choir__cu_node_t* latest = NULL;
  const struct CUgraphEdgeData_st* edges = NULL;
  size_t count = 0;
  CHOIR_TRY(CUDA_CALL(device, cuStreamGetCaptureInfo_v3, segments->capture,
                      &state, NULL, NULL, &latest, &edges, &count));
  if (count != 1)
    return CHOIR_ERROR(INTERNAL,
                       "%s: a launch became %zu nodes of a CUDA graph; needs "
                       "one",
                       device->who, count);
  return add_node(segments, latest[0]);
}

choir_status_t choir__cuda_segments_launch(
    choir_segments_t* segments, const choir__cu_kernel_params_t* params) {
  if (segments->is_capturing) return capture(segments, params);
  // More launches than were captured: counted, and seen behind the record.
  if (segments->next++ >= segments->stop) return NULL;
  return CUDA_CALL(segments->device, cuGraphExecKernelNodeSetParams_v2,
                   segments->current->exec,
                   segments->current->nodes[segments->next - 1].handle, params);
}

// The record's kernel, with its launches for the segment.
static choir_status_t run(choir_segments_t* segments, segment_t* segment,
                          const choir_record_t* record) {
  cuda_stream_t* stream = segments->stream;
  segments->current = segment;
  stream->segments = segments;
  stream->seen = (cuda_seen_t){0};
  choir_status_t status = record->kernel->run(record, &stream->base);
  stream->segments = NULL;
  stream->scratch_count = 0;
  if (!status) return NULL;
  return choir_status_annotate(
      status, __FILE__, __LINE__, "%s%s%s", choir_record_name(record),
      record->label ? " of " : "", record->label ? record->label : "");
}

// ---- What a segment knows of its records ----

static const void* address_of(const choir_view_t* view) {
  if (!view->buffer) return NULL;
  return (const char*)choir_buffer_data(view->buffer) +
         (size_t)view->offset * choir_dtype_bytes(view->dtype);
}

static size_t known_bytes(const choir_record_t* record) {
  const size_t bytes =
      choir__record_operands(record) * sizeof(void*) + record->attrs_bytes;
  return (bytes + sizeof(void*) - 1) / sizeof(void*) * sizeof(void*);
}

static void keep(const choir_record_t* record, char* known) {
  const void** addresses = (const void**)(void*)known;
  const size_t count = choir__record_operands(record);
  for (size_t k = 0; k < count; ++k)
    addresses[k] = address_of(&record->operands[k]);
  if (record->attrs_bytes > 0)
    memcpy(addresses + count, record->attrs, record->attrs_bytes);
}

static bool has_places(const choir_record_t* record, const char* known) {
  const void* const* addresses = (const void* const*)(const void*)known;
  const size_t count = choir__record_operands(record);
  for (size_t k = 0; k < count; ++k)
    if (addresses[k] != address_of(&record->operands[k])) return false;
  return true;
}

static bool has_attrs(const choir_record_t* record, const char* known) {
  return record->attrs_bytes == 0 ||
         memcmp(known + choir__record_operands(record) * sizeof(void*),
                record->attrs, record->attrs_bytes) == 0;
}

static bool is_used(const segment_t* segment,
                    const choir_record_t* const* records,
                    const choir_buffer_t* buffer) {
  for (int32_t i = segment->use_count; i-- > 0;) {
    const use_t* use = &segment->uses[i];
    if (records[use->record]->operands[use->operand].buffer == buffer)
      return true;
  }
  return false;
}

// Not of records whose operands move: what is one buffer now may be two later.
static void list_uses(segment_t* segment, const choir_record_t* const* records,
                      int32_t count) {
  segment->use_count = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t operands = (int32_t)choir__record_operands(records[i]);
    for (int32_t k = 0; k < operands && !segment->parts[i].is_moved; ++k) {
      const choir_buffer_t* buffer = records[i]->operands[k].buffer;
      if (buffer && !is_used(segment, records, buffer))
        segment->uses[segment->use_count++] = (use_t){i, k};
    }
  }
}

static choir_status_t make_room(choir_segments_t* segments, segment_t* segment,
                                const choir_record_t* const* records,
                                int32_t count) {
  size_t operands = 0;
  size_t known = 0;
  for (int32_t i = 0; i < count; ++i) {
    operands += choir__record_operands(records[i]);
    known += known_bytes(records[i]);
  }
  const size_t parts = (size_t)count * sizeof(part_t);
  segment->bytes = known + parts + operands * sizeof(use_t);
  CHOIR_TRY(choir_allocate(segments->device->objects, segment->bytes,
                           "CUDA graphs", &segment->memory));
  segment->known = segment->memory;
  segment->parts = (part_t*)(void*)(segment->known + known);
  segment->uses = (use_t*)(void*)(segment->known + known + parts);
  known = 0;
  for (int32_t i = 0; i < count; ++i) {
    segment->parts[i] = (part_t){.known = known};
    known += known_bytes(records[i]);
  }
  list_uses(segment, records, count);
  return NULL;
}

// ---- Making one ----

// Pieces as large as any record wants. What was captured with smaller ones is
// captured again.
static choir_status_t reserve_pieces(choir_segments_t* segments) {
  for (int i = 0; i < CUDA_SCRATCH_PIECES; ++i) {
    if (segments->wanted[i] <= segments->piece_bytes[i]) continue;
    unmake_all(segments);
    if (segments->pieces[i])
      choir__cuda_pool_free(segments->device, segments->pieces[i]);
    segments->pieces[i] = NULL;
    segments->piece_bytes[i] = 0;
    CHOIR_TRY(choir__cuda_pool_alloc(segments->device, segments->wanted[i],
                                     &segments->pieces[i]));
    segments->piece_bytes[i] = segments->wanted[i];
  }
  return NULL;
}

static choir_status_t capture_all(choir_segments_t* segments,
                                  segment_t* segment,
                                  const choir_record_t* const* records,
                                  int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    part_t* part = &segment->parts[i];
    part->first = segment->node_count;
    CHOIR_TRY(run(segments, segment, records[i]));
    part->launches = segment->node_count - part->first;
    part->is_fixed = segments->stream->seen.library;
    keep(records[i], segment->known + part->known);
  }
  return NULL;
}

static choir_status_t instantiate(cuda_device_t* device, segment_t* segment) {
  choir_status_t status = CUDA_CALL(device, cuGraphInstantiateWithFlags,
                                    &segment->exec, segment->graph, 0);
  if (choir_status_code(status) != CHOIR_STATUS_OUT_OF_MEMORY) return status;
  // It takes memory of the GPU's that the pool does not know of.
  choir_status_free(status);
  choir__cuda_pool_trim(device);
  return CUDA_CALL(device, cuGraphInstantiateWithFlags, &segment->exec,
                   segment->graph, 0);
}

static choir_status_t make(choir_segments_t* segments, segment_t* segment,
                           const choir_record_t* const* records,
                           int32_t count) {
  cuda_device_t* device = segments->device;
  CHOIR_TRY(reserve_pieces(segments));
  CHOIR_TRY(make_room(segments, segment, records, count));
  CHOIR_TRY(CUDA_CALL(device, cuStreamBeginCapture_v2, segments->capture,
                      CHOIR__CU_CAPTURE_THREAD_LOCAL));
  segments->is_capturing = true;
  choir_status_t status = capture_all(segments, segment, records, count);
  segments->is_capturing = false;
  // It has to be ended even where nothing will come of it.
  status =
      choir_status_join(status, CUDA_CALL(device, cuStreamEndCapture,
                                          segments->capture, &segment->graph));
  CHOIR_TRY(status);
  return instantiate(device, segment);
}

// ---- Launching one ----

// Lets nodes have the addresses and attributes of now. *out_fits: false when
// that is not possible, and part of them may have changed.
static choir_status_t follow(choir_segments_t* segments, segment_t* segment,
                             const choir_record_t* const* records,
                             int32_t count, bool* out_fits) {
  bool has_moved = false;
  for (int32_t i = 0; i < count; ++i) {
    part_t* part = &segment->parts[i];
    char* known = segment->known + part->known;
    const bool is_there = has_places(records[i], known);
    if (is_there && has_attrs(records[i], known)) continue;
    has_moved |= !is_there && !part->is_moved;
    part->is_moved |= !is_there;
    *out_fits = !part->is_fixed;
    if (!*out_fits) return NULL;
    segments->next = part->first;
    segments->stop = part->first + part->launches;
    CHOIR_TRY(run(segments, segment, records[i]));
    *out_fits =
        segments->next == segments->stop && !segments->stream->seen.library;
    if (!*out_fits) return NULL;
    keep(records[i], known);
  }
  if (has_moved) list_uses(segment, records, count);
  *out_fits = true;
  return NULL;
}

static choir_status_t order(choir_segments_t* segments,
                            const segment_t* segment,
                            const choir_record_t* const* records, int32_t count,
                            bool* out_foreign) {
  cuda_device_t* device = segments->device;
  cuda_stream_t* stream = segments->stream;
  choir_status_t status = NULL;
  pthread_mutex_lock(&device->lock);
  // These are not among the uses.
  for (int32_t i = 0; i < count && !status; ++i) {
    const int32_t operands = segment->parts[i].is_moved
                                 ? (int32_t)choir__record_operands(records[i])
                                 : 0;
    for (int32_t k = 0; k < operands && !status; ++k)
      status = choir__cuda_stream_order(device, stream,
                                        &records[i]->operands[k], out_foreign);
  }
  for (int32_t i = 0; i < segment->use_count && !status; ++i) {
    const use_t* use = &segment->uses[i];
    status = choir__cuda_stream_order(
        device, stream, &records[use->record]->operands[use->operand],
        out_foreign);
  }
  pthread_mutex_unlock(&device->lock);
  for (int i = 0; i < CUDA_SCRATCH_PIECES && !status; ++i)
    if (segments->pieces[i])
      status =
          choir__cuda_queue_use(device, &stream->queue, segments->pieces[i]);
  return status;
}

static choir_status_t submit(choir_segments_t* segments,
                             const segment_t* segment,
                             const choir_record_t* const* records,
                             int32_t count) {
  cuda_device_t* device = segments->device;
  cuda_stream_t* stream = segments->stream;
  bool is_foreign = false;
  CHOIR_TRY(order(segments, segment, records, count, &is_foreign));
  choir__cuda_stream_note(stream, records[count - 1]);
  stream->since += (uint64_t)count - 1;
  choir_status_t status =
      CUDA_CALL(device, cuGraphLaunch, segment->exec, stream->queue.handle);
  pthread_mutex_lock(&device->lock);
  ++stream->queue.launched;
  pthread_mutex_unlock(&device->lock);
  // As after a record over such memory.
  if (is_foreign && !status)
    status = choir__cuda_stream_tell(
        stream, choir__cuda_queue_synchronize(device, &stream->queue));
  return status;
}

static choir_status_t launch_within(choir_segments_t* segments, int32_t index,
                                    const choir_record_t* const* records,
                                    int32_t count,
                                    choir_segment_result_t* out_result) {
  void* list = segments->list;
  CHOIR_TRY(make_larger(segments->device, sizeof(segment_t), index + 1,
                        &segments->capacity, &list));
  segments->list = list;
  segment_t* segment = &segments->list[index];
  bool fits = true;
  choir_status_t status = segment->exec
                              ? follow(segments, segment, records, count, &fits)
                              : make(segments, segment, records, count);
  if (!status && fits) {
    *out_result = CHOIR_SEGMENT_LAUNCHED;
    return submit(segments, segment, records, count);
  }
  unmake(segments, segment);
  *out_result = status ? CHOIR_SEGMENT_REFUSED : CHOIR_SEGMENT_STALE;
  if (!status) return NULL;
  choir_log(CHOIR_LOG_WARNING, "core",
            "%s: %d records of a step are submitted one by one, as they can "
            "not be a CUDA graph: %s",
            segments->device->who, (int)count, choir_status_message(status));
  choir_status_free(status);
  return NULL;
}

static choir_status_t launch(choir_segments_t* segments, int32_t segment,
                             const choir_record_t* const* records,
                             int32_t count,
                             choir_segment_result_t* out_result) {
  choir_status_t status;
  CUDA_WITHIN(segments->device, status,
              launch_within(segments, segment, records, count, out_result));
  return status;
}

const choir_segments_vtable_t choir__cuda_segments = {
    .name = "graph/cuda",
    .create = create,
    .destroy = destroy,
    .observe = observe,
    .launch = launch,
};
