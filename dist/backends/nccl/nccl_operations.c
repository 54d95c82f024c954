// SPDX-License-Identifier: Apache-2.0
// Operations of which all ranks have agreed, handed to the GPU.
#include <string.h>

#include "core/cuda_backend.h"
#include "dist/backends/nccl/nccl_internal.h"

typedef choir_comm_operation_t operation_t;

static choir__nccl_type_t type_of(choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F32:
      return CHOIR__NCCL_FLOAT32;
    case CHOIR_DTYPE_F64:
      return CHOIR__NCCL_FLOAT64;
    case CHOIR_DTYPE_F16:
      return CHOIR__NCCL_FLOAT16;
    case CHOIR_DTYPE_BF16:
      return CHOIR__NCCL_BFLOAT16;
    case CHOIR_DTYPE_I32:
      return CHOIR__NCCL_INT32;
    case CHOIR_DTYPE_I64:
      return CHOIR__NCCL_INT64;
    default:  // u8, and bool, which is 0 or 1
      return CHOIR__NCCL_UINT8;
  }
}

// ---- Reductions ----

// The same on all ranks.
static choir_status_t check_reduction(const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const bool is_float = choir_dtype_is_float(c->dtype);
  if (c->op == CHOIR_REDUCE_AVERAGE && !is_float)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "%s: averages of %s; comm nccl has those of floats, as "
                       "NCCL's sums of whole numbers overflow",
                       choir__activity_kind_name(operation->kind),
                       choir_dtype_name(c->dtype));
  const bool is_sum =
      c->op == CHOIR_REDUCE_SUM || c->op == CHOIR_REDUCE_AVERAGE;
  if (c->scales && !(is_sum && is_float))
    return CHOIR_ERROR(
        UNIMPLEMENTED,
        "%s: prescale and postscale; comm nccl has them for sums "
        "and averages of floats",
        choir__activity_kind_name(operation->kind));
  return NULL;
}

static choir__nccl_op_t plain_op(const choir_collective_t* c) {
  const bool is_bool = c->dtype == CHOIR_DTYPE_BOOL;
  switch (c->op) {
    case CHOIR_REDUCE_MIN:
      return CHOIR__NCCL_MIN;
    case CHOIR_REDUCE_MAX:
      return CHOIR__NCCL_MAX;
    case CHOIR_REDUCE_PRODUCT:
      return is_bool ? CHOIR__NCCL_MIN : CHOIR__NCCL_PRODUCT;
    default:  // of bool: "or"
      return is_bool ? CHOIR__NCCL_MAX : CHOIR__NCCL_SUM;
  }
}

static bool is_scaled(const choir_collective_t* c) {
  return c->op == CHOIR_REDUCE_AVERAGE || c->scales;
}

// Under the lock. Sums of scaled elements: each rank scales its own.
static choir__nccl_result_t open_op(const choir_comm_t* comm,
                                    const operation_t* operation,
                                    choir__nccl_op_t* out_op) {
  const choir_collective_t* c = &operation->collective;
  const nccl_plane_t* plane = choir__nccl_plane(comm);
  *out_op = plain_op(c);
  if (!choir__collective(operation->kind)->reduces || !is_scaled(c))
    return CHOIR__NCCL_SUCCESS;
  double factor = c->scales ? c->prescale * c->postscale : 1;
  if (c->op == CHOIR_REDUCE_AVERAGE)
    factor *= c->dtype == CHOIR_DTYPE_F64
                  ? comm->sums.shares_f64[comm->rank]
                  : (double)comm->sums.shares[comm->rank];
  unsigned char scalar[8] = {0};
  choir_element_store(scalar, c->dtype, factor);
  return plane->nccl->ncclRedOpCreatePreMulSum(
      out_op, scalar, type_of(c->dtype), CHOIR__NCCL_HOST_IMMEDIATE,
      plane->handle);
}

static choir__nccl_result_t close_op(const nccl_plane_t* plane,
                                     const operation_t* operation,
                                     choir__nccl_op_t op) {
  if (!choir__collective(operation->kind)->reduces ||
      !is_scaled(&operation->collective))
    return CHOIR__NCCL_SUCCESS;
  return plane->nccl->ncclRedOpDestroy(op, plane->handle);
}

// A rank of weight 0 adds nothing, whatever it has.
static bool is_idle(const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  return choir__collective(operation->kind)->reduces &&
         c->op == CHOIR_REDUCE_AVERAGE && c->weight == 0;
}

static choir_status_t take_zeros(nccl_plane_t* plane, operation_t* operation,
                                 size_t bytes) {
  choir_collective_t* c = &operation->collective;
  if (bytes > plane->zeros_bytes) {
    choir_buffer_release(plane->zeros);
    plane->zeros = NULL;
    plane->zeros_bytes = 0;
    CHOIR_TRY(choir__comm_buffer_cleared(plane->device, bytes, &plane->zeros));
    plane->zeros_bytes = bytes;
  }
  c->src = choir_buffer_data(plane->zeros);
  return NULL;
}

// ---- Calls of NCCL ----
// Under the lock, between the start and the end of a group.

typedef struct call_s {
  const choir_comm_t* comm;
  const choir__nccl_library_t* nccl;
  choir__nccl_comm_t handle;
  choir__nccl_stream_t stream;
  choir__nccl_type_t type;
  choir__nccl_op_t op;
  size_t element_bytes;
} call_t;

// One tensor of those kinds that NCCL has.
static choir__nccl_result_t call_one(const call_t* call,
                                     const choir_collective_t* c,
                                     const void* src, void* dst,
                                     int64_t count) {
  const size_t n = (size_t)count;
  if (n == 0) return CHOIR__NCCL_SUCCESS;
  switch (c->kind) {
    case CHOIR_COLLECTIVE_BROADCAST:
      return call->nccl->ncclBroadcast(dst, dst, n, call->type, c->root,
                                       call->handle, call->stream);
    case CHOIR_COLLECTIVE_ALL_GATHER:
      return call->nccl->ncclAllGather(src, dst, n, call->type, call->handle,
                                       call->stream);
    case CHOIR_COLLECTIVE_REDUCE_SCATTER:
      return call->nccl->ncclReduceScatter(src, dst, n, call->type, call->op,
                                           call->handle, call->stream);
    case CHOIR_COLLECTIVE_REDUCE:
      return call->nccl->ncclReduce(src, dst, n, call->type, call->op, c->root,
                                    call->handle, call->stream);
    default:
      return call->nccl->ncclAllReduce(src, dst, n, call->type, call->op,
                                       call->handle, call->stream);
  }
}

// Each rank's share, to it.
static choir__nccl_result_t call_shares(const call_t* call,
                                        const choir_collective_t* c) {
  const choir_comm_t* comm = call->comm;
  for (int32_t r = 0; r < comm->size; ++r) {
    int64_t start, count;
    choir_comm_share(c->count, r, comm->size, &start, &count);
    if (count == 0) continue;
    const char* src = (const char*)c->src + (size_t)start * call->element_bytes;
    const choir__nccl_result_t result =
        call->nccl->ncclReduce(src, c->dst, (size_t)count, call->type, call->op,
                               r, call->handle, call->stream);
    if (result != CHOIR__NCCL_SUCCESS) return result;
  }
  return CHOIR__NCCL_SUCCESS;
}

static choir__nccl_result_t call_moves(const call_t* call,
                                       const choir_collective_t* c) {
  const choir_comm_t* comm = call->comm;
  const choir_comm_moves_t* moves = &comm->moves;
  const size_t e = call->element_bytes;
  for (int32_t r = 0; r < comm->size; ++r) {
    const char* src = (const char*)c->src + (size_t)moves->send_at[r] * e;
    char* dst = (char*)c->dst + (size_t)moves->recv_at[r] * e;
    if (r == comm->rank && src == dst) continue;
    choir__nccl_result_t result = CHOIR__NCCL_SUCCESS;
    if (moves->send_count[r])
      result = call->nccl->ncclSend(src, (size_t)moves->send_count[r],
                                    call->type, r, call->handle, call->stream);
    if (result == CHOIR__NCCL_SUCCESS && moves->recv_count[r])
      result = call->nccl->ncclRecv(dst, (size_t)moves->recv_count[r],
                                    call->type, r, call->handle, call->stream);
    if (result != CHOIR__NCCL_SUCCESS) return result;
  }
  return CHOIR__NCCL_SUCCESS;
}

static choir__nccl_result_t call_all(const call_t* call,
                                     const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const size_t n = (size_t)c->count;
  if (c->tensors) {
    for (int32_t i = 0; i < c->tensor_count; ++i) {
      const choir_comm_tensor_t* tensor = &c->tensors[i];
      const choir__nccl_result_t result =
          call_one(call, c, is_idle(operation) ? c->src : tensor->src,
                   tensor->dst, tensor->count);
      if (result != CHOIR__NCCL_SUCCESS) return result;
    }
    return CHOIR__NCCL_SUCCESS;
  }
  if (c->kind == CHOIR_COLLECTIVE_SEND)
    return n ? call->nccl->ncclSend(c->src, n, call->type, c->root,
                                    call->handle, call->stream)
             : CHOIR__NCCL_SUCCESS;
  if (c->kind == CHOIR_COLLECTIVE_RECEIVE)
    return n ? call->nccl->ncclRecv(c->dst, n, call->type, c->root,
                                    call->handle, call->stream)
             : CHOIR__NCCL_SUCCESS;
  if (c->kind == CHOIR_COLLECTIVE_REDUCE_SCATTER_V) return call_shares(call, c);
  if (choir__collective(operation->kind)->moves &&
      c->kind != CHOIR_COLLECTIVE_ALL_GATHER)
    return call_moves(call, c);
  return call_one(call, c, c->src, c->dst, c->count);
}

// Under the lock.
static choir__nccl_result_t call(const choir_comm_t* comm,
                                 const operation_t* operation) {
  const nccl_plane_t* plane = choir__nccl_plane(comm);
  call_t one = {.comm = comm,
                .nccl = plane->nccl,
                .handle = plane->handle,
                .stream = choir__cuda_stream_handle(operation->stream),
                .type = type_of(operation->collective.dtype),
                .element_bytes = operation->element_bytes};
  choir__nccl_result_t result = open_op(comm, operation, &one.op);
  if (result != CHOIR__NCCL_SUCCESS) return result;
  result = plane->nccl->ncclGroupStart();
  if (result != CHOIR__NCCL_SUCCESS) return result;
  result = call_all(&one, operation);
  // The group is ended whatever happened in it.
  const choir__nccl_result_t ended = plane->nccl->ncclGroupEnd();
  if (result == CHOIR__NCCL_SUCCESS) result = ended;
  const choir__nccl_result_t closed = close_op(plane, operation, one.op);
  const bool is_well =
      result == CHOIR__NCCL_SUCCESS || result == CHOIR__NCCL_IN_PROGRESS;
  return is_well && closed != CHOIR__NCCL_SUCCESS ? closed : result;
}

// ---- One operation ----

// What the pool of the device has to know.
static choir_status_t use_memory(const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  if (!c->tensors) {
    CHOIR_TRY(choir__cuda_use(operation->stream, c->src));
    return choir__cuda_use(operation->stream, c->dst);
  }
  for (int32_t i = 0; i < c->tensor_count; ++i) {
    CHOIR_TRY(choir__cuda_use(operation->stream, c->tensors[i].src));
    CHOIR_TRY(choir__cuda_use(operation->stream, c->tensors[i].dst));
  }
  return NULL;
}

static void note_pending(const choir_comm_t* comm, nccl_pending_t* pending) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  choir_activity_t activity;
  choir__activity_read(comm->activity.places[0], &activity);
  pending->since = 0;
  choir__activity_print(&activity, pending->text, sizeof(pending->text));
  pthread_mutex_lock(&plane->lock);
  ++plane->count;
  pthread_mutex_unlock(&plane->lock);
}

// Events are of the stream's device, which may be another one of the same GPU.
static choir_status_t make_events(nccl_pending_t* pending,
                                  choir_device_t* device) {
  if (pending->device == device) return NULL;
  choir__nccl_forget_events(pending);
  CHOIR_TRY(choir_event_create(device, &pending->before));
  CHOIR_TRY(choir_event_create(device, &pending->after));
  pending->device = device;
  return NULL;
}

// After the operation before, on whatever stream that was.
static choir_status_t follow_last(const nccl_plane_t* plane,
                                  choir_stream_t* stream) {
  if (!plane->last || plane->last_stream == stream) return NULL;
  // Between devices there are no waits on the GPU.
  if (plane->last->device != choir_stream_device(stream))
    return choir_event_synchronize(plane->last->after);
  return choir_stream_wait_event(stream, plane->last->after);
}

// Behind those that wait; the watch takes away what is done. Nobody else adds.
static nccl_pending_t* next_place(nccl_plane_t* plane) {
  pthread_mutex_lock(&plane->lock);
  nccl_pending_t* pending =
      &plane->pending[(plane->first + plane->count) % NCCL_PENDING];
  pthread_mutex_unlock(&plane->lock);
  return pending;
}

static choir_status_t hand_over(choir_comm_t* comm,
                                const operation_t* operation) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  CHOIR_TRY(choir__nccl_await_pending(comm, NCCL_PENDING - 1));
  nccl_pending_t* pending = next_place(plane);
  CHOIR_TRY(follow_last(plane, operation->stream));
  CHOIR_TRY(make_events(pending, choir_stream_device(operation->stream)));
  CHOIR_TRY(use_memory(operation));
  CHOIR_TRY(choir_event_record(pending->before, operation->stream));
  choir__nccl_result_t result = CHOIR__NCCL_SUCCESS;
  pthread_mutex_lock(&plane->lock);
  const bool is_there = plane->handle != NULL;
  if (is_there) result = call(comm, operation);
  pthread_mutex_unlock(&plane->lock);
  if (!is_there) return choir__comm_fault_status(comm);
  if (result != CHOIR__NCCL_SUCCESS && result != CHOIR__NCCL_IN_PROGRESS)
    return choir__nccl_break(comm, result, "handing over the operation");
  // What NCCL has not launched yet the event would not be behind.
  CHOIR_TRY(choir__nccl_await(comm, "to launch the operation"));
  CHOIR_TRY(choir_event_record(pending->after, operation->stream));
  plane->last_stream = operation->stream;
  plane->last = pending;
  note_pending(comm, pending);
  return NULL;
}

choir_status_t choir__nccl_run(choir_comm_t* comm,
                               const operation_t* operation) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (!traits->gives && !traits->takes) return NULL;  // a barrier
  if (traits->reduces) CHOIR_TRY(check_reduction(operation));
  operation_t own = *operation;
  choir_status_t status = NULL;
  if (is_idle(operation))
    status = take_zeros(plane, &own,
                        (size_t)choir__comm_payload_bytes(comm, operation));
  if (!status) status = hand_over(comm, &own);
  if (!status) return NULL;
  // The others' GPUs would wait for this one.
  if (atomic_load(&comm->faults.broken)) {
    choir_status_free(status);
    return choir__comm_fault_status(comm);
  }
  choir_status_t broken = choir__comm_break(
      comm, choir_status_code(status), "%s: %s", comm->peers[comm->rank].text,
      choir_status_message(status));
  choir_status_free(status);
  return broken;
}
