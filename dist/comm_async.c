// SPDX-License-Identifier: Apache-2.0
// A collective as a record on a stream and as asynchronous work.
#include "core/profile.h"
#include "core/status_backend.h"
#include "dist/comm_internal.h"

typedef struct record_attrs_s {
  choir_comm_t* comm;
  choir_collective_t collective;
  choir_work_t* work;  // NULL: the stream keeps the failure
} record_attrs_t;

struct choir_work_s {
  atomic_int ref_count;  // the caller's and the record's
  choir_allocator_t allocator;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool done;
  choir_status_t status;
};

// ---- Records ----

static void work_finish(choir_work_t* work, choir_status_t status) {
  pthread_mutex_lock(&work->mutex);
  work->done = true;
  work->status = status;
  pthread_cond_broadcast(&work->changed);
  pthread_mutex_unlock(&work->mutex);
}

static choir_status_t record_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  const record_attrs_t* attrs = record->attrs;
  const bool is_host = attrs->collective.in_host_memory ||
                       choir_device_is_host(choir_stream_device(stream));
  // On a compute stream nothing else can run meanwhile, as in a blocking call.
  choir_status_t status =
      choir__comm_execute(attrs->comm, (int32_t)attrs->collective.kind,
                          &attrs->collective, is_host ? NULL : stream,
                          choir_stream_kind(stream) == CHOIR_STREAM_COMPUTE);
  if (!attrs->work) return status;
  work_finish(attrs->work, status);
  atomic_fetch_sub(&attrs->comm->async.started, 1);
  return NULL;
}

static void record_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  const record_attrs_t* attrs = record->attrs;
  const choir_collective_t* c = &attrs->collective;
  double count = (double)(c->count_at ? *c->count_at : c->count);
  if (c->tensors) count = (double)choir__comm_tensors_count(c);
  choir__collective_cost(attrs->comm, c, count, out_cost);
}

// Work on the communicator's own stream holds no reference to it: the stream's
// thread must not be the one that ends the stream.
static void record_retain(const void* attrs_) {
  const record_attrs_t* attrs = attrs_;
  if (attrs->work)
    atomic_fetch_add(&attrs->work->ref_count, 1);
  else
    choir_comm_retain(attrs->comm);
}

static void record_release(const void* attrs_) {
  const record_attrs_t* attrs = attrs_;
  if (attrs->work)
    choir_work_release(attrs->work);
  else
    choir_comm_release(attrs->comm);
}

static const choir_kernel_t kernels[CHOIR_COLLECTIVE_COUNT] = {
#define CHOIR_COLLECTIVE_KERNEL_(ENUM, name)                               \
  [CHOIR_COLLECTIVE_##ENUM] = {#name "/comm", record_run,     record_cost, \
                               record_retain, record_release, true},
    CHOIR_COLLECTIVE_LIST(CHOIR_COLLECTIVE_KERNEL_)
#undef CHOIR_COLLECTIVE_KERNEL_
};

void choir__comm_set_step(choir_collective_t* collective,
                          const choir_step_values_t* values) {
  collective->in_step = values;
  if (!values) return;
  collective->step = values->step;
  collective->batch = values->batch_number;
}

static void record_at_step(void* attrs_, const choir_step_values_t* values) {
  choir_collective_t* collective = &((record_attrs_t*)attrs_)->collective;
  if (collective->weight_is_samples)
    collective->weight = (double)values->sample_count;
  if (collective->in_step) choir__comm_set_step(collective, values);
}

static choir_status_t submit(choir_comm_t* comm, choir_stream_t* stream,
                             const choir_collective_t* collective,
                             choir_work_t* work) {
  record_attrs_t attrs = {
      .comm = comm, .collective = *collective, .work = work};
  choir_record_t record = {
      .kernel = &kernels[collective->kind],
      .attrs = &attrs,
      .attrs_bytes = sizeof(attrs),
      .at_step = collective->weight_is_samples || collective->in_step
                     ? record_at_step
                     : NULL,
      .label = collective->name};
  return choir_stream_submit(stream, &record);
}

choir_status_t choir_comm_submit(choir_comm_t* comm, choir_stream_t* stream,
                                 const choir_collective_t* collective) {
  choir_status_t wrong =
      choir__comm_check_collective(comm, collective, "comm_submit");
  if (!wrong && !stream)
    wrong = CHOIR_ERROR(INVALID_ARGUMENT, "comm_submit: stream is NULL");
  if (!wrong) return submit(comm, stream, collective, NULL);
  // The others hear of it behind what was submitted before.
  if (stream)
    wrong = choir_status_join(wrong, choir_stream_synchronize(stream));
  return choir__comm_refuse_call(comm, collective, wrong);
}

// ---- Asynchronous work ----

static choir_status_t open_background(choir_comm_t* comm) {
  if (comm->async.stream) return NULL;
  choir_device_t* device = comm->device;
  if (device && choir_device_is_host(device)) {
    choir_device_retain(device);
  } else {
    choir_device_options_t options = {.threads = 1};
    CHOIR_TRY(choir_device_create("cpu", &options, &device));
  }
  choir_status_t status =
      choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &comm->async.stream);
  choir_device_release(device);  // the stream keeps it
  return status;
}

static choir_status_t make_work(choir_comm_t* comm, choir_work_t** out_work) {
  void* memory = NULL;
  CHOIR_TRY(open_background(comm));
  CHOIR_TRY(choir_allocate(comm->allocator, sizeof(choir_work_t),
                           "asynchronous work", &memory));
  choir_work_t* work = memory;
  atomic_store(&work->ref_count, 1);
  work->allocator = comm->allocator;
  pthread_mutex_init(&work->mutex, NULL);
  pthread_cond_init(&work->changed, NULL);
  *out_work = work;
  return NULL;
}

static choir_status_t start(choir_comm_t* comm,
                            const choir_collective_t* collective,
                            choir_work_t** out_work) {
  choir_work_t* work = NULL;
  CHOIR_TRY(choir__comm_check_collective(comm, collective, "comm_start"));
  CHOIR_TRY(make_work(comm, &work));
  atomic_fetch_add(&comm->async.started, 1);
  choir_status_t status = submit(comm, comm->async.stream, collective, work);
  if (status) {
    atomic_fetch_sub(&comm->async.started, 1);
    choir_work_release(work);
    return status;
  }
  *out_work = work;
  return NULL;
}

choir_status_t choir_comm_start(choir_comm_t* comm,
                                const choir_collective_t* collective,
                                choir_work_t** out_work) {
  if (out_work) *out_work = NULL;
  choir_status_t status =
      out_work ? start(comm, collective, out_work)
               : CHOIR_ERROR(INVALID_ARGUMENT, "comm_start: out_work is NULL");
  return status ? choir__comm_refuse_call(comm, collective, status) : NULL;
}

bool choir_work_is_done(choir_work_t* work) {
  pthread_mutex_lock(&work->mutex);
  bool done = work->done;
  pthread_mutex_unlock(&work->mutex);
  return done;
}

choir_status_t choir_work_wait(choir_work_t* work) {
  if (!work) return CHOIR_ERROR(INVALID_ARGUMENT, "work_wait: work is NULL");
  pthread_mutex_lock(&work->mutex);
  while (!work->done) pthread_cond_wait(&work->changed, &work->mutex);
  choir_status_t status = work->status;
  work->status = NULL;
  pthread_mutex_unlock(&work->mutex);
  choir_work_release(work);
  return status;
}

void choir_work_release(choir_work_t* work) {
  if (!work || atomic_fetch_sub(&work->ref_count, 1) != 1) return;
  choir_status_free(work->status);
  pthread_cond_destroy(&work->changed);
  pthread_mutex_destroy(&work->mutex);
  choir_deallocate(work->allocator, work, sizeof(*work));
}
